/* Runs around the experts, and those that end a sub-block. */
#include "kernels/fused.h"

#include "kernels/combine.cuh"
#include "kernels/gate.cuh"
#include "kernels/gate.h"
#include "kernels/launch.cuh"
#include "kernels/mhc.cuh"
#include "kernels/qdq.cuh"
#include "kernels/swiglu.cuh"

/* ---- swiglu, qdq ---- an element a thread, a group a warp */

enum { SWIGLU_THREADS = 256, SWIGLU_BLOCKS_MAX = 65535 };

__global__ static void swiglu_kernel(const bf16 *g, const bf16 *u, const float *route_weight, float limit, bf16 *h, bf16 *q,
                                     int32_t cols)
{
    krn_begin();
    int32_t column = blockIdx.y * SWIGLU_THREADS + threadIdx.x;
    if (column >= cols) return; /* the whole warp */
    int64_t i = (int64_t)blockIdx.x * cols + column;
    bf16 product = krn_swiglu_of(g[i], u[i], route_weight ? route_weight[blockIdx.x] : 1.0f, limit);
    h[i] = product;
    q[i] = krn_qdq_warp(product);
}

extern "C" err_code krn_swiglu_qdq(const bf16 *g, const bf16 *u, const float *route_weight, float limit, bf16 *h, bf16 *q,
                                   int32_t rows, int32_t cols, krn_stream stream, err *e)
{
    int64_t column_blocks = krn_blocks(cols, SWIGLU_THREADS);
    if (rows < 0 || cols < 0 || cols % FMT_QDQ_GROUP || column_blocks > SWIGLU_BLOCKS_MAX)
        return err_set(e, ERR_ARG, "swiglu_qdq: rows=%d cols=%d", rows, cols);
    if (rows == 0 || cols == 0) return ERR_OK;
    dim3 grid((unsigned)rows, (unsigned)column_blocks);
    krn_launch(swiglu_kernel, grid, SWIGLU_THREADS, 0, stream, g, u, route_weight, limit, h, q, cols);
    return krn_launched("swiglu_qdq", e);
}

/* ---- gate scores, top k ---- a warp a row, a block a warp */

__global__ static void __launch_bounds__(KRN_WARP)
    gate_kernel(const float *logits, const float *bias, int32_t n_experts, int32_t k, float route_scale, float *scores,
                int32_t *ids, float *weights)
{
    enum { AT_ONCE = 4 }; /* elements of a lane */
    extern __shared__ float row_scores[]; /* [n_experts], then the bias: every pick reads them again */
    krn_wait_for_previous();
    float *row_bias = row_scores + n_experts;
    const int64_t row = blockIdx.x;
    logits += row * n_experts; /* [n_experts] */
    scores += row * n_experts;
    for (int32_t first = threadIdx.x; first < n_experts; first += AT_ONCE * KRN_WARP) {
        float z[AT_ONCE], b[AT_ONCE]; /* all on their way before the first store */
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            int32_t i = first + j * KRN_WARP;
            z[j] = i < n_experts ? logits[i] : 0.0f;
            b[j] = i < n_experts ? bias[i] : 0.0f;
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            int32_t i = first + j * KRN_WARP;
            if (i >= n_experts) break;
            row_bias[i] = b[j];
            scores[i] = row_scores[i] = krn_gate_score(z[j]);
        }
    }
    __syncwarp();
    krn_let_next_begin(); /* not before: the experts can do nothing without ids, and would keep others from the card */
    krn_gate_pick(row_scores, row_bias, n_experts, k, route_scale, ids + row * k, weights + row * k);
}

extern "C" err_code krn_gate_select(const float *logits, const float *bias, int32_t rows, int32_t n_experts, int32_t k,
                                    float route_scale, float *scores, int32_t *ids, float *weights, krn_stream stream,
                                    err *e)
{
    if (rows < 0 || k < 1 || k > n_experts || k > KRN_GATE_PICKS_MAX || n_experts > KRN_GATE_SELECT_EXPERTS_MAX)
        return err_set(e, ERR_ARG, "gate_select: rows=%d n_experts=%d k=%d (at most %d of %d)", rows, n_experts, k,
                       KRN_GATE_PICKS_MAX, KRN_GATE_SELECT_EXPERTS_MAX);
    if (rows == 0) return ERR_OK;
    krn_launch(gate_kernel, (unsigned)rows, KRN_WARP, 2 * (unsigned)n_experts * sizeof(float), stream, logits, bias,
               n_experts, k, route_scale, scores, ids, weights);
    return krn_launched("gate_select", e);
}

/* ---- round or combine, expand ---- a thread eight columns of a row */

/* What follows the sum of the columns from d on: y, and out from y's rounded values. */
template <int HC>
__device__ static void round_and_expand(const float sum[KRN_MHC_COLUMNS], const krn_mhc_columns<HC> &stream,
                                        const krn_mhc_weights<HC> &weights, int64_t row, int32_t dim, int32_t d, bf16 *y,
                                        bf16 *out, bool aligned)
{
    const uint4 bits = krn_pack8(sum);
    float own[KRN_MHC_COLUMNS];
    krn_store8(y + row * dim + d, bits, dim - d, aligned);
    krn_unpack8(bits, own);
    krn_mhc_expand_columns(own, stream, weights, out + row * HC * dim, dim, d, aligned);
}

template <int HC>
__global__ static void __launch_bounds__(KRN_MHC_COLUMN_THREADS)
    round_kernel(const float *sum, const bf16 *x, const float *post, const float *comb, int32_t dim, bf16 *y, bf16 *out,
                 bool aligned)
{
    krn_begin();
    const int64_t row = blockIdx.x;
    const int32_t d = krn_mhc_own_column();
    if (d >= dim) return;
    float total[KRN_MHC_COLUMNS];
    const krn_mhc_weights<HC> weights(post + row * HC, comb + row * HC * HC);
    krn_load_f32<KRN_MHC_COLUMNS>(sum + row * dim + d, dim - d, aligned, total);
    const krn_mhc_columns<HC> stream(x + row * HC * dim, dim, d, aligned);
    round_and_expand(total, stream, weights, row, dim, d, y, out, aligned);
}

template <int HC>
__global__ static void __launch_bounds__(KRN_MHC_COLUMN_THREADS)
    combine_kernel(const float *slot, const int32_t *ids, const float *shared, const bf16 *x, const float *post,
                   const float *comb, int32_t k, int32_t dim, bf16 *y, bf16 *out, bool aligned)
{
    extern __shared__ int32_t order[]; /* [k] */
    krn_begin();
    const int64_t row = blockIdx.x;
    const int32_t d = krn_mhc_own_column(); /* past the end: zeros are loaded */
    /* Before the wait for the order, so that only the slots are waited for after it. */
    const krn_mhc_weights<HC> weights(post + row * HC, comb + row * HC * HC);
    const krn_mhc_columns<HC> stream(x + row * HC * dim, dim, d, aligned);
    krn_combine_order(ids + row * k, k, order);
    __syncthreads();
    if (d >= dim) return;
    float total[KRN_MHC_COLUMNS];
    krn_combine_sum<true, KRN_MHC_COLUMNS>(slot + row * k * dim + d, shared + row * dim + d, order, k, dim, dim - d,
                                           aligned, total);
    round_and_expand(total, stream, weights, row, dim, d, y, out, aligned);
}

extern "C" err_code krn_round_expand(const float *sum, const bf16 *x, const float *post, const float *comb, int32_t rows,
                                     int32_t hc, int32_t dim, bf16 *y, bf16 *out, krn_stream stream, err *e)
{
    TRY(krn_mhc_check_columns("round_expand", rows, hc, dim, e));
    if (rows == 0) return ERR_OK;
    const dim3 grid = krn_mhc_column_grid(rows, dim);
    bool aligned = krn_aligned(x, 2 * (int64_t)dim) && krn_aligned(sum) && krn_aligned(y) && krn_aligned(out);
#define ROUND(HC) \
    krn_launch(round_kernel<HC>, grid, KRN_MHC_COLUMN_THREADS, 0, stream, sum, x, post, comb, dim, y, out, aligned)
    KRN_MHC_FOR_COPIES(hc, ROUND)
#undef ROUND
    return krn_launched("round_expand", e);
}

extern "C" err_code krn_combine_expand(const float *slot, const int32_t *ids, const float *shared, const bf16 *x,
                                       const float *post, const float *comb, int32_t rows, int32_t k, int32_t hc,
                                       int32_t dim, bf16 *y, bf16 *out, krn_stream stream, err *e)
{
    TRY(krn_mhc_check_columns("combine_expand", rows, hc, dim, e));
    if (k < 1 || k > KRN_COMBINE_MAX) return err_set(e, ERR_ARG, "combine_expand: k=%d", k);
    if (rows == 0) return ERR_OK;
    const dim3 grid = krn_mhc_column_grid(rows, dim);
    const unsigned order_bytes = (unsigned)k * sizeof(int32_t);
    bool aligned = krn_aligned(x, 2 * (int64_t)dim) && krn_aligned(slot) && krn_aligned(shared) && krn_aligned(y) &&
                   krn_aligned(out);
#define COMBINE(HC)                                                                                                       \
    krn_launch(combine_kernel<HC>, grid, KRN_MHC_COLUMN_THREADS, order_bytes, stream, slot, ids, shared, x, post, comb, k, \
               dim, y, out, aligned)
    KRN_MHC_FOR_COPIES(hc, COMBINE)
#undef COMBINE
    return krn_launched("combine_expand", e);
}
