/* The inner loops of the twins that work row by row, one table per instruction set: kernels/row_loops.c is compiled once
 * for each. Rounding points are numbered as in the contracts. Loops read nothing outside of what they are given, and never
 * allocate. Internal to kernels/. */
#ifndef KERNELS_ROW_LOOPS_H
#define KERNELS_ROW_LOOPS_H

#include "kernels/kernels.h"

/* The keys of a slot: two pieces, one order. */
typedef struct krn_keys {
    const bf16 *ring, *block; /* [n_ring, head_dim], [n - n_ring, head_dim] */
    int32_t n_ring, n, head_dim;
} krn_keys;

#define KRN_BALANCE_PITCH(hc) (((hc) * (hc) + KRN_LANES - 1) / KRN_LANES * KRN_LANES)

typedef struct krn_row_loops {
    /* One head of one row: kernels/attention.h. head_dim <= KRN_ATTENTION_HEAD_DIM_MAX. */
    void (*attend)(const bf16 *q, const krn_keys *k, float sink, float scale, krn_acc acc, bf16 *o);
    /* 1 / sqrt(mean(x*x) + eps) of n elements: R1..R4 of kernels/rmsnorm.h. */
    float (*inv_rms)(const bf16 *x, int64_t n, float eps);
    void (*scale)(const bf16 *x, const bf16 *w, float r, bf16 *y, int32_t dim); /* R5, R6 of kernels/rmsnorm.h */
    /* One row: kernels/mhc.h. out [dim] is copy k of the stream. */
    void (*collapse)(const bf16 *x, const float *pre, bf16 *y, int32_t hc, int32_t dim, krn_acc acc);
    void (*expand)(const bf16 *y, const bf16 *x, float post, const float *comb_k, bf16 *out, int32_t hc, int32_t dim,
                   krn_acc acc);
    /* R4, R5 of kernels/mhc.h in double: c [hc, hc] is e^(z - max of its row) before, the comb after. d [hc * hc,
     * KRN_BALANCE_PITCH(hc)]: the derivative of the logarithm of each of it by each of the hc * hc z, of these very
     * iterations; the rest of a row is 0. hc <= KRN_MHC_COPIES_MAX. */
    void (*balance)(double *c, int32_t hc, double eps, int32_t iters, double *d);
    void (*qdq)(const bf16 *x, bf16 *y, int32_t cols); /* kernels/act_qdq.h; cols % 32 == 0, y may be x */
} krn_row_loops;

const krn_row_loops *krn_row_loops_get(void); /* for krn_isa_get() */

extern const krn_row_loops KRN_ROWS_SCALAR;
extern const krn_row_loops KRN_ROWS_AVX2, KRN_ROWS_AVX512; /* x86-64 only */

#endif
