/* A tape's rounds as an engine is given them: where each request runs, where the rows of each insert come from, and, of a
 * tape of chosen rounds, the windows that its slots start from. */
#ifndef REPLAY_FEED_H
#define REPLAY_FEED_H

#include "capture/redact.h"
#include "replay/restore.h"

typedef enum rpl_windows {
    RPL_WINDOWS_AUTO, /* per insert: B where the tape has taps, else A */
    RPL_WINDOWS_A,    /* captured main_x goes into the rings */
    RPL_WINDOWS_B,    /* main_x is made again from the taps */
} rpl_windows;

/* A round, ready to run. Pointers are valid until the next one is asked for. */
typedef struct rpl_fed {
    eng_round in;
    const int32_t *slots_of_inserts, *slots_of_draft; /* engine slots */
    const bf16 *const *main_x; /* per insert; NULL: it runs from its taps */
} rpl_fed;

typedef struct rpl_feed rpl_feed;
/* t and redact (NULL: the tape is not redacted) are borrowed until close. Errors as cap_rounds_open_chosen. */
MUST_USE err_code rpl_feed_open(const fmt_tape *t, const eng_config *c, rpl_windows windows, const cap_redact *redact,
                                rpl_feed **out, err *e);
void rpl_feed_close(rpl_feed *f); /* NULL is a no-op */
int32_t rpl_feed_count(const rpl_feed *f);
int32_t rpl_feed_slots(const rpl_feed *f); /* places that the engine must have */
/* ERR_INPUT when the tape lacks what the windows choice needs (names round and slot), and as cap_rounds_at. */
MUST_USE err_code rpl_feed_round(rpl_feed *f, int32_t i, rpl_fed *out, err *e);
/* What brings g's slots to where the rounds have them (replay/restore.h): call rpl_restore_round between rpl_feed_round and
 * the steps of each round. g and report are borrowed until it is closed, which the feed outlives. */
MUST_USE err_code rpl_feed_restore(rpl_feed *f, eng_engine *g, rpl_replay_report *report, rpl_restore **out, err *e);

#endif
