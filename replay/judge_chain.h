/* What an op group can give: the chain from recorded inputs to a recorded value, walked with intervals.
 *
 * Every hidden value on the way is known (its bits follow from the recorded ones whatever the order of sums), or a span of
 * what it may have been, rounded where the program rounds, or neither: an op that sums over spans would blow them up until
 * nothing is illegal any more. Such a value is not judged. */
#ifndef REPLAY_JUDGE_CHAIN_H
#define REPLAY_JUDGE_CHAIN_H

#include "kernels/bound.h"
#include "replay/forced.h"

typedef enum rpl_sight {
    RPL_SIGHT_KNOWN, /* the computed bits and no others */
    RPL_SIGHT_SPAN,  /* what some point of the span rounds to */
    RPL_SIGHT_CODES, /* the QDQ of what some points of the spans round to, 32 under one scale */
    RPL_SIGHT_NONE,  /* not to be judged */
} rpl_sight;

typedef struct rpl_chain rpl_chain;

/* w is borrowed until close. ERR_NOMEM. */
MUST_USE err_code rpl_chain_open(const eng_weights *w, krn_rule rule, rpl_chain **out, err *e);
void rpl_chain_close(rpl_chain *c); /* NULL is a no-op */

/* Starts on v's value, which stays borrowed, as does the bench behind it, until the next start. Says what can be known of
 * it. Tokens (drafts) are SPAN: rpl_chain_spans then gives the spans of the scores that they are chosen from. ERR_NOMEM. */
MUST_USE err_code rpl_chain_start(rpl_chain *c, const rpl_forced_value *v, rpl_sight *out, err *e);
/* Spans of the value before its last rounding (SPAN), or of the input of its QDQ (CODES), at the elements with need set
 * [elements] and maybe at others; for drafts the biased logits [rows, vocab] of rows with need set. ids: for the weights of
 * chosen experts, the ids that were chosen, NULL: the computed ones. Valid until the next call. ERR_NOMEM. */
MUST_USE err_code rpl_chain_spans(rpl_chain *c, const uint8_t *need, const int32_t *ids, const krn_span **out, err *e);

/* Where the value is an F32 sum of products of known rows, elements of need [elements] that are flips beyond doubt, and not
 * the one that needed most, are cleared: the sum of sizes alone shows it, at a fraction of the cost of rpl_chain_spans.
 * *n_flips: how many; 0 of any other value. Call it between rpl_chain_start and rpl_chain_spans. ERR_NOMEM. */
MUST_USE err_code rpl_chain_screen(rpl_chain *c, uint8_t *need, int64_t *n_flips, err *e);

#endif
