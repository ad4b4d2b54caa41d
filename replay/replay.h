/* Replay: a tape's rounds run again by an arm and recorded anew. */
#ifndef REPLAY_REPLAY_H
#define REPLAY_REPLAY_H

#include "capture/recorder.h"
#include "replay/feed.h"

typedef struct rpl_replay_options {
    eng_options run;
    eng_level level;     /* of the new tape: io, v1 or deep */
    rpl_windows windows;
    const cap_redact *redact; /* of a redacted tape: its key, or what cap_redact_inherit gives, and then nothing that reads
                               * the embedding is recorded. NULL: the tape is not redacted */
    const bool *only;    /* [rounds]: which rounds go on the new tape, which then is one of chosen rounds; NULL: all */
    bool lean;           /* with only: before the last wanted round no draft is run but wanted ones, and no insert whose
                          * rows that round does not read; what comes after it is not run. A tape of chosen rounds is run
                          * whole all the same */
    bool quiet;
    rpl_replay_report *report; /* filled, also on error; NULL: not wanted */
} rpl_replay_options;

/* Fills what *words leaves open (NULL, tp 0) from the run that t's head names; strings are borrowed from the head. An arm
 * other than the recorded one brings its own accumulation, and one rank where it cannot be cut. */
void rpl_replay_words(const fmt_tape *t, eng_option_words *words);
/* The capture level in t's head; deep when it names none. */
eng_level rpl_replay_level(const fmt_tape *t);

/* Runs every round of t with w and writes path. identity goes into the new head. Where t holds chosen rounds only, their
 * slots start from the recorded windows (replay/restore.h), and a draft whose rows are not on t is left out. ERR_INPUT when
 * the tape lacks what the windows choice needs (names round and slot). After an error nothing stands under path, but what a
 * writer that failed had written. A caller that catches interrupts (base/interrupt.h) gets the rounds before one. */
MUST_USE err_code rpl_replay_run(const fmt_tape *t, const eng_weights *w, const rpl_replay_options *o,
                                 const json_t *identity, const char *path, err *e);

/* Whether two runs of the same rounds recorded the same bits: every record's key, shape and hash, in order. false: what
 * names the first difference. */
bool rpl_replay_same(const fmt_tape *a, const fmt_tape *b, char what[192]);

/* What a comparison by name does not see: a slot that is inserted into several times in a round has values of one name
 * several times (V1 dumps of a worker). All but the first are compared here, in order, by dtype, shape and hash, where both
 * tapes have them. first: names the first that differs, "" none. */
typedef struct rpl_repeats { int64_t n, n_equal; char first[192]; } rpl_repeats;
void rpl_replay_repeats(const fmt_tape *a, const fmt_tape *b, rpl_repeats *out);

#endif
