/* krn_experts_kx2 - the routed experts from x to slots in one launch: krn_experts_kx_up, krn_swiglu_qdq of its gate and up,
 * krn_experts_kx_down of that.
 *
 * Shapes    x [rows, dim] bf16; ids, weights [rows, picks]; w13 [2 * inter, dim], w2 [n, inter], of as many experts;
 *           gate, up, h, h_qdq [rows, picks, inter] bf16; slot [rows, picks, n] f32. All dense; dim and inter are multiples
 *           of 32; x and h_qdq are 16-byte aligned. weights may be NULL: every one is 1
 * Progress  device memory of krn_kx2_progress_bytes(n_experts), zero before its first use; every launch leaves it zero.
 *           Launches that may overlap do not share it
 * Ids       krn_gate_topk's: of a row all different. One outside [0, n_experts): its gate, up and slot are not written; h
 *           and h_qdq are made of what lies in gate and up
 * Values, Rounding, Order, Bound, NaN, Rows: those of kernels/experts_kx.h, kernels/fused.h and kernels/experts.h
 * Match     bit-equal to the three launches, in all five outputs
 * Aliasing  none
 * Waiting   blocks wait for others of the same launch, at most one a multiprocessor, and all of them come to be there: what
 *           follows on the stream begins only once they are, and what is on the card beside them ends without them. So
 *           nothing else that waits for blocks which may not be there yet runs at the same time: no second krn_experts_kx2
 *           on the card, whatever its progress, and no collective
 * Graph     one launch for every 24 rows (fewer above 10 picks) on stream, no sync, no allocation, no host read; dimensions
 *           depend on shapes and the card alone; all pointers are device memory. No rows launch nothing. ERR_ARG for shapes
 *           outside the contract, ERR_DEVICE for a refused launch
 * Cost      the weights of every expert that is used are read once, those of others not at all. While the last of an
 *           expert's h are made, w2 is on its way
 * CPU       no twin: the reference is the three ops */
#ifndef KERNELS_EXPERTS_KX2_H
#define KERNELS_EXPERTS_KX2_H

#include "kernels/experts_kx.h"

#ifdef __cplusplus
extern "C" {
#endif

int64_t krn_kx2_progress_bytes(int32_t n_experts);
MUST_USE err_code krn_experts_kx2(const bf16 *x, const int32_t *ids, const float *weights, int32_t rows, int32_t picks,
                                  const krn_kx_bank *w13, const krn_kx_bank *w2, float limit, bf16 *gate, bf16 *up, bf16 *h,
                                  bf16 *h_qdq, float *slot, uint32_t *progress, krn_stream stream, err *e);

#ifdef __cplusplus
}
#endif

#endif
