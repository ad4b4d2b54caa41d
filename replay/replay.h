/* Replay: a tape's rounds run again by an arm and recorded anew. */
#ifndef REPLAY_REPLAY_H
#define REPLAY_REPLAY_H

#include "capture/recorder.h"
#include "capture/rounds.h"

typedef enum rpl_windows {
    RPL_WINDOWS_AUTO, /* per insert: B where the tape has taps, else A */
    RPL_WINDOWS_A,    /* captured main_x goes into the rings */
    RPL_WINDOWS_B,    /* main_x is made again from the taps */
} rpl_windows;

typedef struct rpl_replay_options {
    eng_options run;
    eng_level level;     /* of the new tape: io, v1 or deep */
    rpl_windows windows;
    bool quiet;
} rpl_replay_options;

/* Fills what *words leaves open (NULL, tp 0) from the run that t's head names; strings are borrowed from the head. An arm
 * other than the recorded one brings its own accumulation, and one rank where it cannot be cut. */
void rpl_replay_words(const fmt_tape *t, eng_option_words *words);
/* The capture level in t's head; deep when it names none. */
eng_level rpl_replay_level(const fmt_tape *t);

/* Runs every round of t with w and writes path. identity goes into the new head. ERR_INPUT when the tape lacks what the
 * windows choice needs (names round and slot). After an error nothing stands under path. */
MUST_USE err_code rpl_replay_run(const fmt_tape *t, const eng_weights *w, const rpl_replay_options *o,
                                 const json_t *identity, const char *path, err *e);

/* Whether two runs of the same rounds recorded the same bits: every record's key, shape and hash, in order. false: what
 * names the first difference. */
bool rpl_replay_same(const fmt_tape *a, const fmt_tape *b, char what[192]);

#endif
