/* krn_rmsnorm, krn_rmsnorm_ref - y = w * (x / sqrt(mean(x*x) + eps)), one row per token.
 *
 * Shapes    x, y [rows, dim] bf16, row strides ldx, ldy >= dim; w [dim] bf16.  0 <= rows, 1 <= dim
 * Dtypes    the sum and the mean in double, all else f32. No accumulation mode: the noise of an f32 sum moves a whole row,
 *           in the end a draft, and no order of it is official
 * Rounding  R1 sum of squares: double adds (each square is exact), never rounded to f32
 *           R2 mean = sum / dim: double division, then one rounding to f32
 *           R3 mean + eps to f32
 *           R4 r = 1 / sqrt(R3): double, rounded to f32 once
 *           R5 u = x * r to f32, then w * u to f32
 *           R6 f32 to bf16, nearest even; the only bf16 rounding
 * Order     twin: lanes16 over the row (kernels.h)
 *           CUDA: groups of 8 neighbours, the last one filled up with zeros. Thread i of t = min(1024, the number of groups
 *           rounded up to 32s) adds groups i, i + t, ... element by element in double; then krn_block_sum (bits.cuh)
 * Match     CUDA: bit-equal to the twin, unless R2 falls on the other side of an f32 edge by the order of R1: both sums are
 *           within a few 2^-53 of the exact one, so that about one row in 2^28 may differ
 * Bound     before R6, relative: 5.5 * 2^-24: half of mean and +eps, all of rsqrt and of both products, and a spare
 * Zero row  mean 0, r = rsqrt(eps): every y is 0 * w (eps > 0). eps is 1e-20 here, not 1e-6
 * Aliasing  y may be x with ldy == ldx; no other overlap
 * Rows      each row depends on itself and w alone; its bits do not depend on where it lies in memory
 * Threads   one
 * Graph     krn_rmsnorm: one launch on stream, no sync, no allocation, no host read; x, w and y are device memory.
 *           ERR_ARG for shapes outside the contract, ERR_DEVICE for a refused launch */
#ifndef KERNELS_RMSNORM_H
#define KERNELS_RMSNORM_H

#include "kernels/bound.h"
#include "kernels/device.h"
#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

void krn_rmsnorm_ref(const bf16 *x, int64_t ldx, const bf16 *w, bf16 *y, int64_t ldy, int32_t rows, int32_t dim, float eps);
MUST_USE err_code krn_rmsnorm(const bf16 *x, int64_t ldx, const bf16 *w, bf16 *y, int64_t ldy, int32_t rows, int32_t dim,
                              float eps, krn_stream stream, err *e);

/* krn_rmsnorm_bound - one row before R6, from bounded x. Wider than Bound: R1 and R2 may be f32 in any order, as official
 * kernels have them: relative, half of the slack of a sum of dim, and 5u. x, y, w [dim]; y may be x. */
void krn_rmsnorm_bound(const krn_span *x, const bf16 *w, int32_t dim, float eps, krn_rule rule, krn_span *y);

#ifdef __cplusplus
}
#endif

#endif
