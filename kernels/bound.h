/* Bounds: where a value may lie before its last rounding, from inputs that are known or bounded themselves.
 *
 * An f32 sum S of n exact products p, in some order, also cut between ranks whose sums are added in f32, lies within
 * krn_sum_reach of the exact sum. With A = sum |p|, Q = sum p^2, u = 2^-24:
 *   KRN_RULE_PARITY  6 u sqrt(n) A: what rounding errors of mixed signs reach, with room: a typical sum stays below a
 *                    hundredth of it
 *   KRN_RULE_WORST   n u A: what no order can exceed
 *   KRN_RULE_SHARP   6 u sqrt(n) min(A, sqrt(Q) + |S|): what orders reach that were chosen without a look at the products.
 *                    An add is off by u times its partial sum t at most, by u t / sqrt(3) as a deviation, of either sign.
 *                    In such an order t is a share of S and a random walk of p that has come back at the end: the mean of
 *                    t^2 after i of n is (i/n)^2 S^2 + i (n-i) / n^2 Q at most, which n adds make n (S^2 / 3 + Q / 6), one
 *                    deviation of the sum u sqrt(n) (|S| + sqrt(Q)) / 3 at most. Six of these are two parts of the six that
 *                    the bound has; the rest is room for hardware that cuts instead of rounding, and for walks that wander
 *                    further. A grows as n, sqrt(Q) as sqrt(n): parity's bound of a long row is several bf16 ulps of S wide
 *                    where S is small.
 *                    Not covered: products that rise, fall or change their sign with the index, in an order along it. Their
 *                    partial sums go far beyond sqrt(Q) + |S|, and an honest sum may be outside. So what is outside here
 *                    and inside by KRN_RULE_PARITY is a hint, no proof.
 * The rules differ in sums of mixed signs alone: sums of positive terms (norms, softmax, weights of the gate) have A = S,
 * and what is bounded by a stated number of ulps is so by every rule.
 * Every primitive whose result depends on an order of sums, or on an elementary function, has a krn_OP_bound beside its
 * twin (kernels/OP_bound.c): the Bound of its contract as code. It works in double, and its own errors are not counted.
 * A bounded input x stands for all values in [x.lo, x.hi]: the result holds what each of them gives. */
#ifndef KERNELS_BOUND_H
#define KERNELS_BOUND_H

#include "kernels/kernels.h"

typedef enum krn_rule { KRN_RULE_PARITY, KRN_RULE_WORST, KRN_RULE_SHARP } krn_rule;

/* All numbers from lo to hi; a NaN in either holds none. */
typedef struct krn_span { double lo, hi; } krn_span;

#ifndef __cplusplus /* kernels include the contracts, which name the types */

#define KRN_U 0x1p-24 /* half an ulp of f32, relative */

static inline double krn_sum_slack(krn_rule rule, int64_t n)
{
    return rule == KRN_RULE_WORST ? (double)n * KRN_U : 6 * KRN_U * sqrt((double)n);
}
/* How far a sum of n products may lie from its exact one. size: sum |p|; square: sum p^2, looked at by KRN_RULE_SHARP. */
static inline double krn_sum_reach(krn_rule rule, int64_t n, double sum, double size, double square)
{
    return krn_sum_slack(rule, n) * (rule == KRN_RULE_SHARP ? fmin(size, sqrt(square) + fabs(sum)) : size);
}

static inline krn_span krn_span_point(double v) { return (krn_span){ v, v }; }
static inline krn_span krn_span_around(double middle, double half) { return (krn_span){ middle - half, middle + half }; }
static inline double krn_span_middle(krn_span s) { return (s.lo + s.hi) / 2; }
static inline double krn_span_half(krn_span s) { return (s.hi - s.lo) / 2; }
static inline double krn_span_largest(krn_span s) { return fmax(fabs(s.lo), fabs(s.hi)); }

/* Room for relative errors: an interval that grows outwards at both ends. */
static inline krn_span krn_span_widen(krn_span s, double relative)
{
    return (krn_span){ s.lo - relative * fabs(s.lo), s.hi + relative * fabs(s.hi) };
}
/* a * b, all pairs. */
static inline krn_span krn_span_mul(krn_span a, krn_span b)
{
    double v[4] = { a.lo * b.lo, a.lo * b.hi, a.hi * b.lo, a.hi * b.hi };
    krn_span s = krn_span_point(v[0]);
    for (int i = 1; i < 4; i++) {
        if (v[i] < s.lo) s.lo = v[i];
        if (v[i] > s.hi) s.hi = v[i];
    }
    return s;
}
/* The bf16 numbers that points of s round to, by way of f32. */
static inline krn_span krn_span_bf16(krn_span s)
{
    return (krn_span){ (double)bf16_round((float)s.lo), (double)bf16_round((float)s.hi) };
}

/* The reals that round to v, both ties included. e4m3: the code is sat, so that all above 448 give 448. */
krn_span krn_preimage_bf16(bf16 v);
krn_span krn_preimage_e4m3(uint8_t code);

/* How far from the middle of s, in halves of it, a value must lie to be in `preimage`: 0 the middle is, up to 1 some point
 * of s is, above it none. Infinite where s is a point outside; NaN where anything is. */
double krn_span_distance(krn_span s, krn_span preimage);

#endif
#endif
