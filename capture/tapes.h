/* The thread that writes tapes: it takes parts, events and lost rounds in the order in which they were handed over, and
 * begins a new tape when one is long enough. Internal to capture/.
 *
 * Everything is called by one thread, the engine's caller, but cap_tapes_counts (any). After the first failure nothing is
 * written any more: what comes is freed, its rounds are counted as dropped. */
#ifndef CAPTURE_TAPES_H
#define CAPTURE_TAPES_H

#include "capture/flight.h"

typedef struct cap_tapes cap_tapes;

/* Creates the first tape and starts the thread. plan is borrowed until the end, its `fired` is the thread's. flight is the
 * thread's too until then (NULL: every round is written). head is copied and gets the time of creation. ERR_IO and others
 * of fmt_tape_create, ERR_NOMEM, ERR_SYSTEM. */
MUST_USE err_code cap_tapes_open(cap_plan *plan, const char *path, const json_t *head, const cap_options *o,
                                 cap_flight *flight, cap_tapes **out, err *e);

/* p is the thread's from here on. ends_round: the round is whole with it. */
void cap_tapes_part(cap_tapes *t, cap_part *p, int32_t round, bool ends_round, const cap_spent *spent);
/* An event, copied. false: as many wait already as may (wait and try again, or count it as lost), or no memory. */
MUST_USE bool cap_tapes_event(cap_tapes *t, int32_t round, const json_t *event, const cap_spent *spent);
void cap_tapes_lost_event(cap_tapes *t);
/* The round was left out: counted now, named on the tape in its place. */
void cap_tapes_dropped(cap_tapes *t, int32_t round, const char *why, const cap_spent *spent);

/* The first failure, or ERR_OK. */
err_code cap_tapes_failed(cap_tapes *t, err *e);
/* Items that the thread is through with: a number to give to cap_tapes_wait. */
uint64_t cap_tapes_done(cap_tapes *t);
/* Waits until the thread is through with more than `done` items. false: it has none, so nothing will come of waiting. */
bool cap_tapes_wait(cap_tapes *t, uint64_t done);

void cap_tapes_counts(cap_tapes *t, cap_counts *out);

/* Writes what waits, then the summary, and gives the tape its name; frees t. Returns the first failure of all. After one
 * the tape is closed all the same (its summary says `failed`), or where that cannot be, .part is left with what was
 * flushed. counts (may be NULL) are those after all of it, also on error. */
MUST_USE err_code cap_tapes_finish(cap_tapes *t, const cap_spent *spent, cap_counts *counts, err *e);
/* Frees t and what waits, removes .part. NULL is a no-op. */
void cap_tapes_discard(cap_tapes *t);

#endif
