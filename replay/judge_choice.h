/* Which of several admissible hidden rows was it? Sums over a quantised row, where a few elements were so near a step of
 * their rounding that another value would have been right too: each of those moves all the sums at once. */
#ifndef REPLAY_JUDGE_CHOICE_H
#define REPLAY_JUDGE_CHOICE_H

#include "kernels/linear.h"

/* x [w->k]: the spans of a row of bf16 values; mid: the values that y's sums over its QDQ were made from. y [w->n] moves to
 * the choice that brings the sums nearest to got, one element at a time as long as that lessens sum |got - y|: which cannot
 * follow a single wrong sum, as every choice moves them all. ERR_NOMEM. */
MUST_USE err_code rpl_choice_explain(const krn_span *x, const bf16 *mid, const krn_weight *w, const float *got, krn_span *y,
                                     err *e);

/* The same where w is EXL3: the sums are over the row itself. cut [n_parts + 1]: the inputs that the parts begin at, and
 * w->k; a part's sums are made, and added, apart. Blocks of a part are independent, elements of a block are not: they
 * become fp16 together. So one swap, or two of a block, are tried at a time: where three went the other way in a block,
 * none of which lessens the sum alone, the row stays unexplained. */
MUST_USE err_code rpl_choice_explain_exl3(const krn_span *x, const bf16 *mid, const krn_weight *w, const int32_t *cut,
                                          int32_t n_parts, const float *got, krn_span *y, err *e);

#endif
