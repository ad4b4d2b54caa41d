/* The end of the mixture of experts, and the element-wise f32 ops beside it.
 *
 * slot      [rows, k, dim] f32: slot[r][j] is the result of expert ids[r][j]: summed over the ranks for exact, this
 *           rank's partial for fused. shared [rows, dim] f32 likewise
 * Order     ascending expert id within the row, whatever the order of ids; the shared expert last. (Equal ids, which the
 *           gate never makes, keep their order)
 * Rows      each row, and each element of it, depends on its own inputs alone
 * Threads   one
 * Modes     the same f32 arithmetic in blocked and F64: there is no acc argument
 * Match     bit-equal everywhere: CUDA adds in the same order. (A sum that is NaN in f32 has the device's own NaN bits)
 * Graph     the calls without _ref: one launch on stream, no sync, no allocation, no host read; all pointers are device
 *           memory. ERR_ARG for shapes outside the contract, k > 4096, dim > 65535 * 256 and n > 2^39 - 256, ERR_DEVICE
 *           for a refused launch */
#ifndef KERNELS_COMBINE_H
#define KERNELS_COMBINE_H

#include "kernels/bound.h"
#include "kernels/device.h"
#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* krn_combine_exact, krn_combine_exact_ref - the official result: every expert's output is bf16 before it is added.
 *
 * Shapes    y [rows, dim] bf16.  k >= 1
 * Rounding  R1 slot and shared values to bf16, nearest even
 *           R2 y = 0; y = f32(y + R1) for each expert, then for shared
 *           R3 f32 to bf16
 * Bound     0 ulp from the given slot and shared */
void krn_combine_exact_ref(const float *slot, const int32_t *ids, const float *shared, bf16 *y, int32_t rows, int32_t k,
                           int32_t dim);
MUST_USE err_code krn_combine_exact(const float *slot, const int32_t *ids, const float *shared, bf16 *y, int32_t rows,
                                    int32_t k, int32_t dim, krn_stream stream, err *e);

/* krn_combine_fused, krn_combine_fused_ref - the same sum without R1 and R3: the one rounding to bf16 follows the sum
 * over ranks.
 *
 * Shapes    y [rows, dim] f32
 * Rounding  R1 y = 0; y = f32(y + slot) for each expert, then for shared
 * Bound     any other order: k * 2^-24 * (sum |slot| + |shared|) */
void krn_combine_fused_ref(const float *slot, const int32_t *ids, const float *shared, float *y, int32_t rows, int32_t k,
                           int32_t dim);
MUST_USE err_code krn_combine_fused(const float *slot, const int32_t *ids, const float *shared, float *y, int32_t rows,
                                    int32_t k, int32_t dim, krn_stream stream, err *e);

/* y[i] = bf16(x[i]), nearest even, NaN to 0x7fc0. No overlap. Bit-equal everywhere. */
void krn_round_bf16_ref(const float *x, bf16 *y, int64_t n);
MUST_USE err_code krn_round_bf16(const float *x, bf16 *y, int64_t n, krn_stream stream, err *e);
/* The same as f32 numbers: y[i] = f32(bf16(x[i])). y may be x. */
void krn_round_bf16_f32_ref(const float *x, float *y, int64_t n);
MUST_USE err_code krn_round_bf16_f32(const float *x, float *y, int64_t n, krn_stream stream, err *e);
/* y[i] = f32(a[i] + b[i]). y may be a or b. Bit-equal everywhere. */
void krn_add_f32_ref(const float *a, const float *b, float *y, int64_t n);
MUST_USE err_code krn_add_f32(const float *a, const float *b, float *y, int64_t n, krn_stream stream, err *e);

/* krn_combine_fused_bound - element d of a row of krn_combine_fused, summed over the ranks, in any order. slot [k, dim] and
 * shared [dim] are sums over the ranks themselves; the ranks add their parts before they meet, and these may be larger:
 * 2 * (k + 2) * 2^-24 * (sum |slot| + |shared|). krn_combine_exact has no bound: its order is official. */
krn_span krn_combine_fused_bound(const float *slot, const float *shared, int32_t k, int32_t dim, int32_t d);

#ifdef __cplusplus
}
#endif

#endif
