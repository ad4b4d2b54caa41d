/* Runs of ops in one launch. Each writes every output that its ops write, with the bits that they write one after the
 * other: the arithmetic is theirs (the .cuh files), so rounding, order, bounds and edges are those of the ops' headers.
 * There are no twins: the reference is the ops.
 *
 * Shapes    those of the ops; rows are dense. Where the run ends in ACT_QDQ, the columns of a row divide by 32
 * Match     bit-equal to the ops
 * Aliasing  none, but where said
 * Rows      as the ops: no row's bits depend on the others, or on how many there are
 * Graph     one launch on stream, no sync, no allocation, no host read; all pointers are device memory. ERR_ARG for shapes
 *           outside the contract of an op or of this file, ERR_DEVICE for a refused launch */
#ifndef KERNELS_FUSED_H
#define KERNELS_FUSED_H

#include "kernels/device.h"
#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- fused_norm.cu ---- */

/* krn_mhc_collapse of x [rows, hc, dim] by pre [rows, hc] to collapsed; krn_rmsnorm of that by w [dim] to norm; krn_act_qdq
 * of that to q. collapsed, norm, q [rows, dim]. q may be NULL: no quantisation, any dim. */
MUST_USE err_code krn_collapse_rmsnorm_qdq(const bf16 *x, const float *pre, const bf16 *w, int32_t rows, int32_t hc,
                                           int32_t dim, float eps, bf16 *collapsed, bf16 *norm, bf16 *q,
                                           krn_stream stream, err *e);

/* krn_rmsnorm of x [rows, dim] to norm; krn_act_qdq of that to q. norm may be x. */
MUST_USE err_code krn_rmsnorm_qdq(const bf16 *x, const bf16 *w, int32_t rows, int32_t dim, float eps, bf16 *norm, bf16 *q,
                                  krn_stream stream, err *e);

/* krn_rmsnorm of x [rows, head_dim] to norm; krn_rope of that, one head, forward, to rotated; krn_act_qdq of that to q.
 * norm may be x. pos [rows]; freq [rope_dim / 2]; rope_dim <= 8192. */
MUST_USE err_code krn_rmsnorm_rope_qdq(const bf16 *x, const bf16 *w, int32_t rows, int32_t head_dim, int32_t rope_dim,
                                       const int32_t *pos, const float *freq, float eps, bf16 *norm, bf16 *rotated,
                                       bf16 *q, krn_stream stream, err *e);

/* krn_rmsnorm_qdq of latent and krn_rmsnorm_rope_qdq of kv, side by side: rows of two products of the same rows. */
typedef struct krn_norm_side {
    const bf16 *x, *w; /* [rows, dim], [dim] */
    int32_t dim;
    bf16 *norm, *q;    /* [rows, dim] */
} krn_norm_side;
MUST_USE err_code krn_rmsnorm_pair_qdq(const krn_norm_side *latent, const krn_norm_side *kv, int32_t rows,
                                       int32_t rope_dim, const int32_t *pos, const float *freq, float eps, bf16 *rotated,
                                       krn_stream stream, err *e);

/* ---- attention.cu ---- */

/* krn_rope of q, forward, to q_rotated (NULL: q is rotated already); krn_attention of that to attended; krn_rope of that,
 * inverse, to o; krn_act_qdq of that to o_qdq; all [batch * n_block, heads, head_dim], head_dim a multiple of 32. attended
 * may be q, q_rotated is not. pos [batch * n_block]; freq [rope_dim / 2]. Two launches where q_rotated is given and
 * head_dim is above 512 or an operand does not begin at 16 bytes.
 * ERR_DEVICE also where a card's shared memory does not hold 64 keys beside the angles of eight rows: at 99 KiB, for
 * head_dim up to 512, when rope_dim is above 232. */
MUST_USE err_code krn_attention_rope_qdq(const bf16 *q, const bf16 *rings, int64_t ring_stride, const int32_t *slot,
                                         const int32_t *last, int32_t window, const bf16 *block_kv, int32_t batch,
                                         int32_t n_block, const float *sink, float scale, int32_t heads, int32_t head_dim,
                                         int32_t rope_dim, const int32_t *pos, const float *freq, bf16 *q_rotated,
                                         bf16 *attended, bf16 *o, bf16 *o_qdq, krn_stream stream, err *e);

/* ---- fused_ffn.cu ---- */

enum { KRN_GATE_SELECT_EXPERTS_MAX = 6144 }; /* a row's scores and the bias lie in 48 KiB of shared memory */

/* krn_swiglu to h; krn_act_qdq of that to q. g, u, h, q [rows, cols]; h may be g or u. */
MUST_USE err_code krn_swiglu_qdq(const bf16 *g, const bf16 *u, const float *route_weight, float limit, bf16 *h, bf16 *q,
                                 int32_t rows, int32_t cols, krn_stream stream, err *e);

/* krn_gate_scores to scores; krn_gate_topk of those to ids, weights. n_experts <= KRN_GATE_SELECT_EXPERTS_MAX. scores may
 * be logits. */
MUST_USE err_code krn_gate_select(const float *logits, const float *bias, int32_t rows, int32_t n_experts, int32_t k,
                                  float route_scale, float *scores, int32_t *ids, float *weights, krn_stream stream,
                                  err *e);

/* ---- fused_expand.cu ---- two launches where dim is above 8192 */

/* krn_round_expand, then krn_collapse_rmsnorm_qdq of out by pre [rows, hc]: from one sub-block's sum to the next one's
 * input. q may be NULL, as there. */
MUST_USE err_code krn_round_expand_norm(const float *sum, const bf16 *x, const float *post, const float *comb,
                                        const float *pre, const bf16 *w, int32_t rows, int32_t hc, int32_t dim, float eps,
                                        bf16 *y, bf16 *out, bf16 *collapsed, bf16 *norm, bf16 *q, krn_stream stream,
                                        err *e);

/* krn_combine_expand, then the same. */
MUST_USE err_code krn_combine_expand_norm(const float *slot, const int32_t *ids, const float *shared, const bf16 *x,
                                          const float *post, const float *comb, const float *pre, const bf16 *w,
                                          int32_t rows, int32_t k, int32_t hc, int32_t dim, float eps, bf16 *y, bf16 *out,
                                          bf16 *collapsed, bf16 *norm, bf16 *q, krn_stream stream, err *e);

/* krn_round_bf16 of sum [rows, dim] to y; krn_mhc_expand of that and x [rows, hc, dim] to out. */
MUST_USE err_code krn_round_expand(const float *sum, const bf16 *x, const float *post, const float *comb, int32_t rows,
                                   int32_t hc, int32_t dim, bf16 *y, bf16 *out, krn_stream stream, err *e);

/* krn_combine_exact to y; krn_mhc_expand of that and x [rows, hc, dim] to out. */
MUST_USE err_code krn_combine_expand(const float *slot, const int32_t *ids, const float *shared, const bf16 *x,
                                     const float *post, const float *comb, int32_t rows, int32_t k, int32_t hc,
                                     int32_t dim, bf16 *y, bf16 *out, krn_stream stream, err *e);

#ifdef __cplusplus
}
#endif

#endif
