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

#endif
