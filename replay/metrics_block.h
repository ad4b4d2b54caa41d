/* The inner loop of the metrics: one block of F32 or BF16, per instruction set. Private to replay/metrics.c. */
#ifndef REPLAY_METRICS_BLOCK_H
#define REPLAY_METRICS_BLOCK_H

#include "kernels/kernels.h"
#include "replay/metrics.h"

enum { RPL_BLOCK = 512 }; /* elements; scratch of a block stays in the first-level cache, 16-bit counters cannot overflow */

/* Over everything so far: lane sums of a*a, b*b, a*b, (a-b)*(a-b), and the largest |a-b| / |b| over b != 0, in f32. */
typedef struct rpl_sums {
    double aa[KRN_LANES], bb[KRN_LANES], ab[KRN_LANES], dd[KRN_LANES];
    float max_rel;
} rpl_sums;

typedef struct rpl_block {
    int32_t n_differ, n_zero_a, n_zero_b, n_zero_differ;
    uint32_t max_ulp;
    float max_abs; /* of |a-b| rounded to f32 */
    int32_t ulp[RPL_ULP_BUCKETS]; /* ulp, max_abs: set only when n_differ is not 0 */
} rpl_block;

/* Adds RPL_BLOCK elements. false: a value is not finite, and sums are untouched. */
typedef bool rpl_block_fn(const void *a, const void *b, rpl_sums *sums, rpl_block *out);
rpl_block_fn *rpl_block_kernel(fmt_dtype dtype, krn_isa isa);

#endif
