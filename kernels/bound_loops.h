/* The inner loops of krn_linear_bound and krn_linear_size, one table per instruction set: kernels/bound_loops.c is compiled
 * once for each. Internal to kernels/. */
#ifndef KERNELS_BOUND_LOOPS_H
#define KERNELS_BOUND_LOOPS_H

#include "kernels/kernels.h"

enum { KRN_BOUND_ROWS = 5 }; /* of x at a time: what the registers hold */

/* sum[t] += x[t] . w, size[t] += |x[t]| . |w|: n elements, n_rows <= KRN_BOUND_ROWS; exact products, double adds. */
typedef void krn_dot_size_fn(const bf16 *const *x, int32_t n_rows, const float *w, int32_t n, double *sum, double *size);

/* The same, and square[t] += x[t]^2 . w^2. */
typedef void krn_dot_square_fn(const bf16 *const *x, int32_t n_rows, const float *w, int32_t n, double *sum, double *size,
                               double *square);

/* size[t] += |x[t]| . |w| as 16 f32 sums that are joined at the end: what is added is off by (n / 16 + 8) * 2^-24 of it. */
typedef void krn_size_fn(const bf16 *const *x, int32_t n_rows, const float *w, int32_t n, float *size);

typedef struct krn_bound_loops {
    krn_dot_size_fn *dot_size;
    krn_dot_square_fn *dot_square;
    krn_size_fn *size;
} krn_bound_loops;

extern const krn_bound_loops KRN_BOUND_SCALAR;
extern const krn_bound_loops KRN_BOUND_AVX2, KRN_BOUND_AVX512; /* x86-64 only */

#endif
