/* Runs around RMSNorm: a block a row, eight elements of it a thread (rmsnorm.cuh); four threads share a QDQ group. */
#include "kernels/fused.h"

#include "kernels/launch.cuh"
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
    krn_rmsnorm_row(
        w, dim, eps, aligned,
        [&](int64_t i) {
            float weight[HC], sum[KRN_MHC_COLUMNS];
            const krn_mhc_columns<HC> columns(x, dim, (int32_t)i, aligned);
#pragma unroll
            for (int j = 0; j < HC; j++) weight[j] = pre[row * HC + j];
            columns.mix(weight, 1, sum);
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
    krn_launch(collapse_kernel<HC>, (unsigned)rows, krn_rmsnorm_threads(dim), 0, stream, x, pre, w, dim, eps, collapsed,  \
               norm, q, aligned)
    KRN_MHC_FOR_COPIES(hc, COLLAPSE)
#undef COLLAPSE
    return krn_launched("collapse_rmsnorm_qdq", e);
}

/* ---- rmsnorm, qdq ---- */

/* Row blockIdx.x. The block may have more threads than krn_rmsnorm_threads of the row: each thread then has one group at
 * most, and those past the row's end add +0 to R1. */
__device__ static void norm_row(const krn_norm_side &side, float eps, bool aligned)
{
    const int64_t start = (int64_t)blockIdx.x * side.dim;
    krn_rmsnorm_row(
        side.w, side.dim, eps, aligned,
        [&](int64_t i) { return krn_load8(side.x + start + i, side.dim - i, aligned); }, [] {},
        [&](int64_t i, uint4, uint4 y) {
            krn_store8(side.norm + start + i, y, side.dim - i, aligned);
            krn_store8(side.q + start + i, krn_qdq_quad(y), side.dim - i, aligned);
        });
}

__global__ static void __launch_bounds__(KRN_RMSNORM_THREADS_MAX)
    norm_kernel(const krn_norm_side side, float eps, bool aligned)
{
    norm_row(side, eps, aligned);
}

static err_code check_norm(const char *op, const krn_norm_side *side, int32_t rows, err *e)
{
    if (rows >= 0 && side->dim >= 1 && side->dim % FMT_QDQ_GROUP == 0) return ERR_OK;
    return err_set(e, ERR_ARG, "%s: rows=%d dim=%d", op, rows, side->dim);
}

static bool side_aligned(const krn_norm_side *s)
{
    return krn_aligned(s->x) && krn_aligned(s->w) && krn_aligned(s->norm) && krn_aligned(s->q);
}

extern "C" err_code krn_rmsnorm_qdq(const bf16 *x, const bf16 *w, int32_t rows, int32_t dim, float eps, bf16 *norm, bf16 *q,
                                    krn_stream stream, err *e)
{
    const krn_norm_side side = { x, w, dim, norm, q };
    TRY(check_norm("rmsnorm_qdq", &side, rows, e));
    if (rows == 0) return ERR_OK;
    krn_launch(norm_kernel, (unsigned)rows, krn_rmsnorm_threads(dim), 0, stream, side, eps, side_aligned(&side));
    return krn_launched("rmsnorm_qdq", e);
}

/* ---- rmsnorm, rope, qdq ---- */

struct rotation {
    int32_t n_pairs;
    const int32_t *pos;
    const float *freq;
    bf16 *rotated;
};

/* Row blockIdx.x, as norm_row. turns: shared memory, [n_pairs]. */
__device__ static void rope_row(const krn_norm_side &side, const rotation &rope, float eps, float2 *turns, bool aligned)
{
    const int64_t start = (int64_t)blockIdx.x * side.dim;
    const int32_t keep = side.dim - 2 * rope.n_pairs; /* even: no pair lies in two groups */
    krn_rmsnorm_row(
        side.w, side.dim, eps, aligned, [&](int64_t i) { return krn_load8(side.x + start + i, side.dim - i, aligned); },
        [&] {
            for (int32_t i = threadIdx.x; i < rope.n_pairs; i += blockDim.x)
                turns[i] = krn_rope_turn(rope.pos[blockIdx.x], rope.freq[i], false);
        },
        [&](int64_t i, uint4, uint4 y) {
            const uint4 turned = krn_rope_group(y, turns, ((int32_t)i - keep) / 2, rope.n_pairs);
            krn_store8(side.norm + start + i, y, side.dim - i, aligned);
            krn_store8(rope.rotated + start + i, turned, side.dim - i, aligned);
            krn_store8(side.q + start + i, krn_qdq_quad(turned), side.dim - i, aligned);
        });
}

__global__ static void __launch_bounds__(KRN_RMSNORM_THREADS_MAX)
    rope_kernel(const krn_norm_side side, const rotation rope, float eps, bool aligned)
{
    extern __shared__ float2 turns[];
    rope_row(side, rope, eps, turns, aligned);
}

static err_code check_rope(const char *op, const krn_norm_side *side, int32_t rows, int32_t rope_dim, err *e)
{
    TRY(check_norm(op, side, rows, e));
    if (rope_dim >= 2 && rope_dim % 2 == 0 && rope_dim <= side->dim && rope_dim <= KRN_ROPE_DIM_MAX) return ERR_OK;
    return err_set(e, ERR_ARG, "%s: rows=%d head_dim=%d rope_dim=%d", op, rows, side->dim, rope_dim);
}

extern "C" err_code krn_rmsnorm_rope_qdq(const bf16 *x, const bf16 *w, int32_t rows, int32_t head_dim, int32_t rope_dim,
                                         const int32_t *pos, const float *freq, float eps, bf16 *norm, bf16 *rotated,
                                         bf16 *q, krn_stream stream, err *e)
{
    const krn_norm_side side = { x, w, head_dim, norm, q };
    const rotation rope = { rope_dim / 2, pos, freq, rotated };
    TRY(check_rope("rmsnorm_rope_qdq", &side, rows, rope_dim, e));
    if (rows == 0) return ERR_OK;
    krn_launch(rope_kernel, (unsigned)rows, krn_rmsnorm_threads(head_dim), (unsigned)rope_dim / 2 * sizeof(float2), stream,
               side, rope, eps, side_aligned(&side) && krn_aligned(rotated));
    return krn_launched("rmsnorm_rope_qdq", e);
}

/* ---- both ---- */

/* Grid: x: rows; y: latent, kv. */
__global__ static void __launch_bounds__(KRN_RMSNORM_THREADS_MAX)
    pair_kernel(const krn_norm_side latent, const krn_norm_side kv, const rotation rope, float eps, bool aligned)
{
    extern __shared__ float2 turns[];
    if (blockIdx.y == 0) norm_row(latent, eps, aligned);
    else rope_row(kv, rope, eps, turns, aligned);
}

extern "C" err_code krn_rmsnorm_pair_qdq(const krn_norm_side *latent, const krn_norm_side *kv, int32_t rows,
                                         int32_t rope_dim, const int32_t *pos, const float *freq, float eps, bf16 *rotated,
                                         krn_stream stream, err *e)
{
    const rotation rope = { rope_dim / 2, pos, freq, rotated };
    TRY(check_norm("rmsnorm_pair_qdq", latent, rows, e));
    TRY(check_rope("rmsnorm_pair_qdq", kv, rows, rope_dim, e));
    if (rows == 0) return ERR_OK;
    krn_launch(pair_kernel, dim3((unsigned)rows, 2), max(krn_rmsnorm_threads(latent->dim), krn_rmsnorm_threads(kv->dim)),
               (unsigned)rope_dim / 2 * sizeof(float2), stream, *latent, *kv, rope, eps,
               side_aligned(latent) && side_aligned(kv) && krn_aligned(rotated));
    return krn_launched("rmsnorm_pair_qdq", e);
}
