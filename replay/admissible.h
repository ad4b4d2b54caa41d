/* The judge: is every element of a recorded value one that some order of fp32 sums gives from the recorded inputs?
 *
 * An fp32 sum of n exact products may come out anywhere in [S - d, S + d], S the exact sum, d = c * u * sqrt(n) * A with
 * A = sum |a * w|, u = 2^-24, c = 6 (RPL_BOUND_DEFAULT), or d = n * u * A (RPL_BOUND_WORST). RPL_BOUND_SHARP takes
 * sqrt(sum (a * w)^2) + |S| for A where that is less: illegal by it alone is a hint, no proof (kernels/bound.h). Ops
 * without long sums have the bound of their contract (kernels/OP.h). Values between the recorded ones are carried as the
 * interval of the values that they may have had, each rounding point at its place. Each element is then
 *   equal    the bits of mirror64's own rounding
 *   flip     another value that some point of the interval rounds to
 *   illegal  no order of sums explains it; NaN against a number always is
 *   unjudged another value, and so much is hidden that nothing sharp can be said (V1 tapes: whole sub-blocks). Never a pass
 * A group of 32 whose scale may have been another power of two is judged under the scale that explains most of it, and is
 * one event. Top-k and argmax: another choice is a flip where the scores at the cut lie within their bounds. */
#ifndef REPLAY_ADMISSIBLE_H
#define REPLAY_ADMISSIBLE_H

#include "replay/forced.h"

typedef enum rpl_bound { RPL_BOUND_DEFAULT, RPL_BOUND_WORST, RPL_BOUND_SHARP, RPL_BOUNDS } rpl_bound;

const char *rpl_bound_name(rpl_bound b);    /* "default", "worst", "sharp" */
const char *rpl_bound_formula(rpl_bound b); /* for people: "n * 2^-24 * A" */
/* word: an argument of --bound; NULL is the default. ERR_ARG. */
MUST_USE err_code rpl_bound_parse(const char *word, rpl_bound *out, err *e);
#define RPL_BOUND_HELP "default: 6 u sqrt(n) A of a sum; worst: n u A; sharp: 6 u sqrt(n) (sqrt(sum p^2) + |S|)"

typedef enum rpl_element_class { RPL_EQUAL, RPL_FLIP, RPL_ILLEGAL, RPL_UNJUDGED } rpl_element_class;

typedef struct rpl_verdict {
    int64_t n, n_equal, n_flip, n_illegal, n_unjudged; /* n is their sum */
    int64_t n_events;     /* groups of 32 that moved with their scale; their elements are among the flips */
    double flip_distance; /* of the flip that needed most: how far from the middle of its interval the value before rounding
                           * must have been, in halves of the interval; 0 .. 1 */
    int64_t first, worst; /* illegal elements: the first, and that with the largest ratio; -1: none */
    double got, exact, bound, ratio; /* of worst: its number, the exact value, the half interval, |got - exact| past
                           * rounding / bound; infinite where the bound is 0 or got no number */
} rpl_verdict;

typedef struct rpl_judge rpl_judge;

/* w is borrowed until close. ERR_NOMEM. */
MUST_USE err_code rpl_judge_open(const eng_weights *w, rpl_bound bound, rpl_judge **out, err *e);
void rpl_judge_close(rpl_judge *j); /* NULL is a no-op */
/* Judges v->recorded, as a forced run with the arm mirror64 gave it (rpl_forced_round), so that v->computed is what "equal"
 * means. classes [elements]: an rpl_element_class each; NULL: not wanted. Bounds are made for elements that differ alone.
 * Values of one round and slot come in program order: what a choice (ids, drafts) is judged from may be one of them.
 * ERR_NOMEM. */
MUST_USE err_code rpl_judge_value(rpl_judge *j, const rpl_forced_value *v, rpl_verdict *out, uint8_t *classes, err *e);
/* Sharpness of a value, the last one judged: of its wrong neighbours, ulps (1 or 2) of bf16 above and below every recorded
 * element, how many would be admitted. An F32 value moves as far (2^16 of its own ulps): less is what orders of sums do.
 * Integers move by ulps. *tried counts them; none of a value that cannot be judged. ERR_NOMEM. */
MUST_USE err_code rpl_judge_sharpness(rpl_judge *j, const rpl_forced_value *v, int ulps, int64_t *admitted, int64_t *tried,
                                      err *e);

#endif
