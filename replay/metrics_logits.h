/* The inner loops over a row of logits, per instruction set. Private to replay/metrics_rows.c. */
#ifndef REPLAY_METRICS_LOGITS_H
#define REPLAY_METRICS_LOGITS_H

#include "kernels/kernels.h"

/* Lane sums over the elements of a row pair (lane i takes elements i, i+16, ...): exp(a - max_a), exp(b - max_b), and
 * exp(b - max_b) * (b - a), where the last is 0 wherever the exponential is, whatever a says. Exponentials are within
 * 1.05 ulp of the true ones (tests/replay/test_metrics.c measures 1.04 over 4 million arguments) and 0 below exp(-708). */
typedef struct rpl_exp_sums { double a[KRN_LANES], b[KRN_LANES], gain[KRN_LANES]; } rpl_exp_sums;

enum { RPL_SCAN_LANES = 128 };

typedef struct rpl_row_kernel {
    /* Adds n elements, a multiple of KRN_LANES. */
    void (*exp_sums)(const float *a, const float *b, int64_t n, double max_a, double max_b, rpl_exp_sums *sums);
    /* Raises top[j] to the largest number among v[j], v[j + RPL_SCAN_LANES], ...; n is a multiple of RPL_SCAN_LANES. */
    void (*lane_tops)(const float *v, int64_t n, float top[RPL_SCAN_LANES]);
    /* First element of [i, n) that is >= least; n: none. */
    int64_t (*next)(const float *v, int64_t i, int64_t n, float least);
} rpl_row_kernel;

const rpl_row_kernel *rpl_row_kernel_of(krn_isa isa);

#endif
