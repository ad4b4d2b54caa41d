/* How a tape is off from the reference, op by op: the elements of each recorded value that are not what the reference makes
 * of the recorded inputs (replay/forced.h). An op without such elements is the reference's.
 *
 * The attention of a slot whose recorded window is not the one that the inserts brought is compared on the recorded window:
 * the fault is the ring's. */
#ifndef REPLAY_ATTRIBUTE_TAPE_H
#define REPLAY_ATTRIBUTE_TAPE_H

#include "replay/attribute_run.h"

/* The elements of one value of one round that are off. */
typedef struct rpl_deviation {
    int32_t round, slot;  /* slot: FMT_TAPE_NO_SLOT in the draft step; of a window its own */
    int32_t unit;
    int32_t value;        /* of the program; -1: a window */
    int32_t n;
    uint32_t *at, *from, *to; /* [n]: element, ascending; bits of the reference, of the tape */
} rpl_deviation;

typedef struct rpl_deviations rpl_deviations;
/* Runs the rounds of the tape forced by the reference o, up to round number `last`; m tells the units. ERR_INPUT: the tape
 * has values that the model does not; ERR_NOMEM, ERR_FORMAT. *stopped: an interrupt was seen; *out is then NULL. */
MUST_USE err_code rpl_deviations_make(const fmt_tape *t, const eng_weights *w, const eng_options *o, const rpl_mix *m,
                                      int32_t last, bool quiet, rpl_deviations **out, bool *stopped, err *e);
void rpl_deviations_free(rpl_deviations *d); /* NULL is a no-op */
/* NULL: that value is the reference's. */
const rpl_deviation *rpl_deviations_find(const rpl_deviations *d, int32_t round, int32_t slot, int32_t unit, int32_t value);
/* Elements of a unit that are off, over all rounds. */
int64_t rpl_deviations_of_unit(const rpl_deviations *d, int32_t unit);
int64_t rpl_deviations_skipped(const rpl_deviations *d); /* recorded values whose inputs are not on the tape */
int64_t rpl_deviations_compared(const rpl_deviations *d); /* recorded values that ops were compared by */
bool rpl_deviations_damaged(const rpl_deviations *d); /* the tape has values that cannot be read: as if not recorded */

/* Makes n elements of dtype, the first of which is element `first` of the value, what the tape makes of them: where the
 * reference's bits are the ones the record was compared with, the recorded bits; else the reference's number and the
 * difference (of integers: the reference's). */
void rpl_deviation_apply(const rpl_deviation *d, fmt_dtype dtype, void *data, int64_t first, int64_t n);

#endif
