/* krn_act_qdq_ref - what an activation is after a trip through e4m3: y = value of (code, scale), 32 elements a scale.
 *
 * Shapes    x, y [rows, cols] bf16, row strides ldx, ldy >= cols.  0 <= rows, cols >= 0, cols % 32 == 0
 * Dtypes    arithmetic f32; codes e4m3, scales e8m0 (formats/number.h); neither is stored
 * Rounding  R1 t = f32(max(amax, 1e-4) * f32(1/448)); scale = 2^ceil(log2 t) by exponent bits, so that 448 * 2^k gives 2^k
 *              and its upper neighbour 2^(k+1)
 *           R2 code = e4m3(clamp(x / scale, -448, 448)), nearest even; the division is exact
 *           The value code * scale is exact in bf16: no third rounding
 * Order     the scale is fixed first, then the codes are made from it. A group is 32 consecutive columns of one row
 * Match     bit-equal everywhere: nothing here depends on an order of sums
 * Bound     0 ulp from x. Where x is hidden, an amax whose interval crosses 448 * 2^k moves its whole group: one event
 * NaN       a NaN stays in its own element; amax is taken over the others. Signed zeros keep their sign
 * Aliasing  y may be x with ldy == ldx; no other overlap
 * Rows      each group depends on its own 32 elements alone
 * Threads   rows are shared out when there is enough work; the bits do not depend on it
 * Graph     krn_act_qdq: one launch on stream, no sync, no allocation, no host read; x and y are device memory.
 *           ERR_ARG for shapes outside the contract, ERR_DEVICE for a refused launch */
#ifndef KERNELS_ACT_QDQ_H
#define KERNELS_ACT_QDQ_H

#include "kernels/device.h"
#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

void krn_act_qdq_ref(const bf16 *x, int64_t ldx, bf16 *y, int64_t ldy, int32_t rows, int32_t cols);
MUST_USE err_code krn_act_qdq(const bf16 *x, int64_t ldx, bf16 *y, int64_t ldy, int32_t rows, int32_t cols,
                              krn_stream stream, err *e);

#ifdef __cplusplus
}
#endif

#endif
