/* krn_rmsnorm_ref - y = w * (x / sqrt(mean(x*x) + eps)), one row per token.
 *
 * Shapes    x, y [rows, dim] bf16, row strides ldx, ldy >= dim; w [dim] bf16.  0 <= rows, 1 <= dim
 * Dtypes    arithmetic f32 (F64: the sum and the mean in double)
 * Rounding  R1 sum of squares: blocked, f32 adds (each square is exact); F64, double, never rounded to f32
 *           R2 mean = sum / dim: one rounding to f32 (blocked: f32 division; F64: double division, then f32)
 *           R3 mean + eps to f32
 *           R4 r = 1 / sqrt(R3): double, rounded to f32 once
 *           R5 u = x * r to f32, then w * u to f32
 *           R6 f32 to bf16, nearest even; the only bf16 rounding
 * Order     lanes16 over the row (kernels.h), both modes
 * Match     CUDA: inside Bound, same R3..R6
 * Bound     before R6, relative: (s/2 + 5) * 2^-24, s the sum's own bound in units of 2^-24 (6 * sqrt(dim) by default, dim
 *           at worst): half of sum, mean (a product with f32(1/dim) allowed) and +eps, all of rsqrt and of both products
 * Zero row  mean 0, r = rsqrt(eps): every y is 0 * w (eps > 0). eps is 1e-20 here, not 1e-6
 * Aliasing  y may be x with ldy == ldx; no other overlap
 * Rows      each row depends on itself and w alone
 * Threads   one */
#ifndef KERNELS_RMSNORM_H
#define KERNELS_RMSNORM_H

#include "kernels/kernels.h"

void krn_rmsnorm_ref(const bf16 *x, int64_t ldx, const bf16 *w, bf16 *y, int64_t ldy, int32_t rows, int32_t dim, float eps,
                     krn_acc acc);

#endif
