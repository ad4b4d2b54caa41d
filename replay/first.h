/* The first round of a long tape in which two runs differ, found by states (replay/state_hash.h) and then shown in full. */
#ifndef REPLAY_FIRST_H
#define REPLAY_FIRST_H

#include "replay/compare.h"
#include "replay/state_hash.h"

typedef enum rpl_ruling {
    RPL_RULING_NONE,      /* what would judge it is not recorded on both sides */
    RPL_RULING_NOISE,     /* the round holds no illegal value: some order of sums gives either side's */
    RPL_RULING_A_ILLEGAL, /* no order of sums gives it from that side's own inputs */
    RPL_RULING_B_ILLEGAL,
    RPL_RULINGS
} rpl_ruling;

typedef struct rpl_divergence {
    rpl_first found;          /* round: an index; -1: none */
    int32_t n_rounds, round;  /* rounds of the tape; the number of the found one */
    int32_t lacking;          /* number of a round whose drafts are not on the tape, so that nothing was looked for; -1 */
    bool alone;               /* it shows when the round is run alone, after the rows it reads; else after all rounds */
    bool shown;               /* a value below is set; else no value of the round differs when it is run once more */
    char value[64], op[64], ops[RPL_GROUP_TEXT]; /* first illegal one; else the origin; else the first that differs */
    int32_t slot;
    rpl_class cls;
    rpl_ruling ruling;        /* on the value */
    int32_t n_differ, n_values;
    rpl_metrics m;
} rpl_divergence;

/* a and b run the rounds of t, without a tensor kept; a NULL: what t recorded, of which only the drafts are looked at. The
 * round found is run once more by both, under capture. ERR_INPUT, ERR_DEVICE, ERR_NOMEM, ERR_IO. */
MUST_USE err_code rpl_first_divergence(const fmt_tape *t, const eng_weights *w, const eng_options *a, const eng_options *b,
                                       bool quiet, rpl_divergence *out, err *e);

#endif
