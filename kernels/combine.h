/* The end of the mixture of experts, and the element-wise f32 ops beside it.
 *
 * slot      [rows, k, dim] f32: slot[r][j] is the result of expert ids[r][j]: summed over the ranks for exact, this
 *           rank's partial for fused. shared [rows, dim] f32 likewise
 * Order     ascending expert id within the row, whatever the order of ids; the shared expert last. (Equal ids, which the
 *           gate never makes, keep their order)
 * Rows      each row, and each element of it, depends on its own inputs alone
 * Threads   one
 * Modes     the same f32 arithmetic in blocked and F64: there is no acc argument */
#ifndef KERNELS_COMBINE_H
#define KERNELS_COMBINE_H

#include "kernels/kernels.h"

/* krn_combine_exact_ref - the official result: every expert's output is bf16 before it is added.
 *
 * Shapes    y [rows, dim] bf16.  k >= 1
 * Rounding  R1 slot and shared values to bf16, nearest even
 *           R2 y = 0; y = f32(y + R1) for each expert, then for shared
 *           R3 f32 to bf16
 * Match     bit-equal: the order is fixed
 * Bound     0 ulp from the given slot and shared */
void krn_combine_exact_ref(const float *slot, const int32_t *ids, const float *shared, bf16 *y, int32_t rows, int32_t k,
                           int32_t dim);

/* krn_combine_fused_ref - the same sum without R1 and R3; the one rounding to bf16 follows the sum over ranks.
 *
 * Shapes    y [rows, dim] f32
 * Rounding  R1 y = 0; y = f32(y + slot) for each expert, then for shared
 * Match     CUDA: inside Bound (any order)
 * Bound     k * 2^-24 * (sum |slot| + |shared|) */
void krn_combine_fused_ref(const float *slot, const int32_t *ids, const float *shared, float *y, int32_t rows, int32_t k,
                           int32_t dim);

/* y[i] = bf16(x[i]), nearest even, NaN to 0x7fc0. No overlap. Bit-equal everywhere. */
void krn_round_bf16_ref(const float *x, bf16 *y, int64_t n);
/* y[i] = f32(a[i] + b[i]). y may be a or b. Bit-equal everywhere. */
void krn_add_f32_ref(const float *a, const float *b, float *y, int64_t n);

#endif
