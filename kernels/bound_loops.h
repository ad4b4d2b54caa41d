/* The inner loop of krn_linear_bound, one per instruction set: kernels/bound_loops.c is compiled once for each. Internal to
 * kernels/. */
#ifndef KERNELS_BOUND_LOOPS_H
#define KERNELS_BOUND_LOOPS_H

#include "kernels/kernels.h"

enum { KRN_BOUND_ROWS = 5 }; /* of x at a time: what the registers hold */

/* sum[t] += x[t] . w, size[t] += |x[t]| . |w|: n elements, n_rows <= KRN_BOUND_ROWS; exact products, double adds. */
typedef void krn_dot_size_fn(const bf16 *const *x, int32_t n_rows, const float *w, int32_t n, double *sum, double *size);

krn_dot_size_fn krn_dot_size_scalar;
krn_dot_size_fn krn_dot_size_avx2, krn_dot_size_avx512; /* x86-64 only */

#endif
