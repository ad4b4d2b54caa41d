/* Bounds: where a value may lie before its last rounding, from inputs that are known or bounded themselves.
 *
 * An f32 sum of n exact products, in any order, also cut between ranks whose sums are added in f32, lies within
 * krn_sum_slack(rule, n) * sum |products| of the exact sum. KRN_RULE_PARITY is what rounding errors of mixed signs reach,
 * with room: a typical sum stays below a hundredth of it. KRN_RULE_WORST is what no order can exceed.
 * Every primitive whose result depends on an order of sums, or on an elementary function, has a krn_OP_bound beside its
 * twin (kernels/OP_bound.c): the Bound of its contract as code. It works in double, and its own errors are not counted.
 * A bounded input x stands for all values in [x.lo, x.hi]: the result holds what each of them gives. */
#ifndef KERNELS_BOUND_H
#define KERNELS_BOUND_H

#include "kernels/kernels.h"

typedef enum krn_rule { KRN_RULE_PARITY, KRN_RULE_WORST } krn_rule;

/* All numbers from lo to hi; a NaN in either holds none. */
typedef struct krn_span { double lo, hi; } krn_span;

#ifndef __cplusplus /* kernels include the contracts, which name the types */

#define KRN_U 0x1p-24 /* half an ulp of f32, relative */

static inline double krn_sum_slack(krn_rule rule, int64_t n)
{
    return rule == KRN_RULE_WORST ? (double)n * KRN_U : 6 * KRN_U * sqrt((double)n);
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
