/* Runs around RMSNorm: a block a row, eight elements of it a thread (rmsnorm.cuh); four threads share a QDQ group. */
#include "kernels/fused.h"

#include "kernels/mhc.cuh"
#include "kernels/qdq.cuh"
#include "kernels/rmsnorm.cuh"
#include "kernels/rope.cuh"

/* ---- collapse, rmsnorm, qdq ---- */

template <int HC>
__global__ static void __launch_bounds__(KRN_RMSNORM_THREADS_MAX)
    collapse_kernel(const bf16 *x, const float *pre, const bf16 *w, int32_t dim, float eps, bf16 *collapsed, bf16 *norm,
                    bf16 *q, bool aligned)
{
    const int64_t row = blockIdx.x;
    x += row * HC * dim; /* [HC, dim] */
    float weight[HC];
#pragma unroll
    for (int j = 0; j < HC; j++) weight[j] = pre[row * HC + j];
    krn_rmsnorm_row(
        w, dim, eps, aligned,
        [&](int64_t i) {
            float sum[KRN_MHC_COLUMNS];
            krn_mhc_columns<HC>(x, dim, (int32_t)i, aligned).mix(weight, 1, sum);
            return krn_pack8(sum);
        },
        [] {},
        [&](int64_t i, uint4 group, uint4 y) {
            krn_store8(collapsed + row * dim + i, group, dim - i, aligned);
            krn_store8(norm + row * dim + i, y, dim - i, aligned);
            if (q) krn_store8(q + row * dim + i, krn_qdq_quad(y), dim - i, aligned);
        });
}

extern "C" err_code krn_collapse_rmsnorm_qdq(const bf16 *x, const float *pre, const bf16 *w, int32_t rows, int32_t hc,
                                             int32_t dim, float eps, bf16 *collapsed, bf16 *norm, bf16 *q,
                                             krn_stream stream, err *e)
{
    TRY(krn_mhc_check_columns("collapse_rmsnorm_qdq", rows, hc, dim, e));
    if (q && dim % FMT_QDQ_GROUP) return err_set(e, ERR_ARG, "collapse_rmsnorm_qdq: dim=%d with q", dim);
    if (rows == 0) return ERR_OK;
    bool aligned = krn_aligned(x, 2 * (int64_t)dim) && krn_aligned(w) && krn_aligned(collapsed) && krn_aligned(norm) &&
                   krn_aligned(q);
#define COLLAPSE(HC)                                                                                                      \
    collapse_kernel<HC><<<(unsigned)rows, krn_rmsnorm_threads(dim), 0, stream>>>(x, pre, w, dim, eps, collapsed, norm, q, \
                                                                                 aligned)
    KRN_MHC_FOR_COPIES(hc, COLLAPSE)
#undef COLLAPSE
    return krn_launched("collapse_rmsnorm_qdq", e);
}

/* ---- rmsnorm, qdq ---- */

__global__ static void __launch_bounds__(KRN_RMSNORM_THREADS_MAX)
    norm_kernel(const bf16 *x, const bf16 *w, int32_t dim, float eps, bf16 *norm, bf16 *q, bool aligned)
{
    const int64_t start = (int64_t)blockIdx.x * dim;
    krn_rmsnorm_row(
        w, dim, eps, aligned, [&](int64_t i) { return krn_load8(x + start + i, dim - i, aligned); }, [] {},
        [&](int64_t i, uint4, uint4 y) {
            krn_store8(norm + start + i, y, dim - i, aligned);
            krn_store8(q + start + i, krn_qdq_quad(y), dim - i, aligned);
        });
}

extern "C" err_code krn_rmsnorm_qdq(const bf16 *x, const bf16 *w, int32_t rows, int32_t dim, float eps, bf16 *norm, bf16 *q,
                                    krn_stream stream, err *e)
{
    if (rows < 0 || dim < 1 || dim % FMT_QDQ_GROUP) return err_set(e, ERR_ARG, "rmsnorm_qdq: rows=%d dim=%d", rows, dim);
    if (rows == 0) return ERR_OK;
    bool aligned = krn_aligned(x) && krn_aligned(w) && krn_aligned(norm) && krn_aligned(q);
    norm_kernel<<<(unsigned)rows, krn_rmsnorm_threads(dim), 0, stream>>>(x, w, dim, eps, norm, q, aligned);
    return krn_launched("rmsnorm_qdq", e);
}

/* ---- rmsnorm, rope, qdq ---- */

__global__ static void __launch_bounds__(KRN_RMSNORM_THREADS_MAX)
    rope_kernel(const bf16 *x, const bf16 *w, int32_t head_dim, int32_t n_pairs, const int32_t *pos, const float *freq,
                float eps, bf16 *norm, bf16 *rotated, bf16 *q, bool aligned)
{
    extern __shared__ float2 turns[]; /* [n_pairs] */
    const int64_t start = (int64_t)blockIdx.x * head_dim;
    const int32_t keep = head_dim - 2 * n_pairs; /* even: no pair lies in two groups */
    krn_rmsnorm_row(
        w, head_dim, eps, aligned, [&](int64_t i) { return krn_load8(x + start + i, head_dim - i, aligned); },
        [&] {
            for (int32_t i = threadIdx.x; i < n_pairs; i += blockDim.x)
                turns[i] = krn_rope_turn(pos[blockIdx.x], freq[i], false);
        },
        [&](int64_t i, uint4, uint4 y) {
            const uint4 turned = krn_rope_group(y, turns, ((int32_t)i - keep) / 2, n_pairs);
            krn_store8(norm + start + i, y, head_dim - i, aligned);
            krn_store8(rotated + start + i, turned, head_dim - i, aligned);
            krn_store8(q + start + i, krn_qdq_quad(turned), head_dim - i, aligned);
        });
}

extern "C" err_code krn_rmsnorm_rope_qdq(const bf16 *x, const bf16 *w, int32_t rows, int32_t head_dim, int32_t rope_dim,
                                         const int32_t *pos, const float *freq, float eps, bf16 *norm, bf16 *rotated,
                                         bf16 *q, krn_stream stream, err *e)
{
    if (rows < 0 || head_dim < 1 || head_dim % FMT_QDQ_GROUP || rope_dim < 2 || rope_dim % 2 || rope_dim > head_dim ||
        rope_dim > KRN_ROPE_DIM_MAX)
        return err_set(e, ERR_ARG, "rmsnorm_rope_qdq: rows=%d head_dim=%d rope_dim=%d", rows, head_dim, rope_dim);
    if (rows == 0) return ERR_OK;
    bool aligned = krn_aligned(x) && krn_aligned(w) && krn_aligned(norm) && krn_aligned(rotated) && krn_aligned(q);
    rope_kernel<<<(unsigned)rows, krn_rmsnorm_threads(head_dim), (unsigned)rope_dim / 2 * sizeof(float2), stream>>>(
        x, w, head_dim, rope_dim / 2, pos, freq, eps, norm, rotated, q, aligned);
    return krn_launched("rmsnorm_rope_qdq", e);
}
