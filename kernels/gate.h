/* The router: scores of all experts, then the best k and their weights. Two ops.
 *
 * Rows      each row depends on its own logits or scores alone
 * Threads   one
 * Aliasing  scores may be logits; no other overlap
 * Graph     krn_gate_*: one launch on stream, no sync, no allocation, no host read; all pointers are device memory. ERR_ARG
 *           for shapes outside the contract, ERR_DEVICE for a refused launch */
#ifndef KERNELS_GATE_H
#define KERNELS_GATE_H

#include "kernels/bound.h"
#include "kernels/device.h"
#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { KRN_GATE_PICKS_MAX = 32 }; /* CUDA: a lane of the row's warp keeps each pick */

/* krn_gate_scores, krn_gate_scores_ref - scores = sqrt(softplus(logits)).
 *
 * Shapes    logits, scores [rows, n_experts] f32; logits = krn_linear_ref(h, the BF16 gate weight, F32 out)
 * Rounding  R1 softplus: z above 20 is z; else e = exp(z) to f32, log1p(e) to f32, each in double rounded once
 *              (CUDA: f32 functions within 1 ulp)
 *           R2 sqrt to f32
 * Match     CUDA: inside Bound
 * Bound     relative: dz/2 + 3 * 2^-24, dz the absolute bound of the logit (softplus changes by at most dz, relative, and
 *           the square root halves it): exp, log1p within 1 ulp are allowed for
 * NaN       gives NaN */
void krn_gate_scores_ref(const float *logits, float *scores, int32_t rows, int32_t n_experts);
MUST_USE err_code krn_gate_scores(const float *logits, float *scores, int32_t rows, int32_t n_experts, krn_stream stream,
                                  err *e);

/* krn_gate_topk, krn_gate_topk_ref - the k experts with the largest scores + bias. The bias selects; it is never part of a
 * weight.
 *
 * Shapes    scores [rows, n_experts] f32; bias [n_experts] f32; ids, weights [rows, k].  1 <= k <= n_experts;
 *           CUDA: k <= KRN_GATE_PICKS_MAX
 * Rounding  R1 sel = scores + bias to f32
 *           R2 sum of the k chosen scores: blocked, f32 in the order of ids; F64, double, then f32; then + 1e-20 to f32
 *           R3 w = score / R2 to f32, then * route_scale to f32
 * Order     ids descending by sel; equal sel: the lower id first
 * NaN       a NaN sel comes after every number: ids are distinct and in range whatever the scores are
 * Match     CUDA: bit-equal to blocked, ids and weights. From other scores: ids equal where the margin at the cut is above
 *           the bound of the scores; weights inside Bound
 * Bound     weights, relative, from the given scores: (k + 3) * 2^-24 */
void krn_gate_topk_ref(const float *scores, const float *bias, int32_t rows, int32_t n_experts, int32_t k,
                       float route_scale, int32_t *ids, float *weights, krn_acc acc);
MUST_USE err_code krn_gate_topk(const float *scores, const float *bias, int32_t rows, int32_t n_experts, int32_t k,
                                float route_scale, int32_t *ids, float *weights, krn_stream stream, err *e);

/* krn_gate_scores_bound - one score from a bounded logit; krn_gate_weights_bound - a row's weights from its scores and the
 * ids that were chosen (in range): Bound. scores [n_experts]; ids, weights [k]. */
krn_span krn_gate_scores_bound(krn_span logit);
void krn_gate_weights_bound(const float *scores, const int32_t *ids, int32_t k, float route_scale, krn_span *weights);

#ifdef __cplusplus
}
#endif

#endif
