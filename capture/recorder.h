/* The recorder: runs rounds through an engine and streams what the taps show to a tape.
 *
 * During a step the taps only copy into buffers made beforehand, one set per rank; after the step they are written in
 * program order, rank by rank, so that the same run gives the same tape. A round is flushed before the next begins. */
#ifndef CAPTURE_RECORDER_H
#define CAPTURE_RECORDER_H

#include "base/cli.h"
#include "engine/engine.h"
#include "engine/script.h"
#include "formats/tape.h"

typedef struct cap_recorder cap_recorder;

typedef struct cap_options {
    eng_level level;      /* io, v1 or deep */
    const cli_list *taps; /* "PATTERN=TIER" items (tier tensor, stats, hash or off), later ones win; NULL: none */
} cap_options;

/* Checks "PATTERN=TIER" items before anything is opened. ERR_ARG: no '=', or an unknown tier. NULL: nothing to check. */
MUST_USE err_code cap_taps_check(const cli_list *taps, err *e);
/* Level up to which graph mode must retain values for o: what eng_open wants. */
eng_level cap_retain_level(const cap_options *o);

/* Opens PATH (as .part) with the head made from identity (borrowed), level, config, program and tap items. The engine is
 * borrowed until the recorder is gone. ERR_ARG: a bad tap item, or one that matches no value. A round's inputs are recorded
 * at every level and whatever the taps say: they are what makes a tape replayable. */
MUST_USE err_code cap_recorder_open(eng_engine *g, const char *path, const json_t *identity, const cap_options *o,
                                    cap_recorder **out, err *e);
/* Runs one round (inserts, then the draft) and records it: inputs, tapped values, windows, outputs. The slots of the round
 * are the requests' own and go on the tape; the engine_slots say where each insert and each draft entry runs. main_x: NULL,
 * or the round's captured main_x per insert (windows A; a NULL entry runs from its taps). After an error the round is not
 * whole on the tape: discard. */
MUST_USE err_code cap_recorder_round(cap_recorder *r, const eng_round *round, const int32_t *engine_slots_of_inserts,
                                     const int32_t *engine_slots_of_draft, const bf16 *const *main_x, err *e);
/* Writes the summary (rounds, values, taps that never fired, bytes, cost) and gives the tape its name. Frees r. */
MUST_USE err_code cap_recorder_finish(cap_recorder *r, err *e);
/* Frees r and removes .part. NULL is a no-op. */
void cap_recorder_discard(cap_recorder *r);

#endif
