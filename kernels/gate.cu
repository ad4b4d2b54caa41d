/* Scores: an element a thread. Choice: a warp a row, one pass over the experts a pick. */
#include "kernels/gate.h"

#include "kernels/gate.cuh"
#include "kernels/launch.cuh"

#include <limits.h>

enum { THREADS = 128, ROWS_PER_BLOCK = THREADS / KRN_WARP };

__global__ static void scores_kernel(const float *logits, float *scores, int64_t n)
{
    krn_begin();
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n) scores[i] = krn_gate_score(logits[i]);
}

__global__ static void topk_kernel(const float *scores, const float *bias, int32_t rows, int32_t n_experts, int32_t k,
                                   float route_scale, int32_t *ids, float *weights)
{
    krn_begin();
    const int64_t row = blockIdx.x * ROWS_PER_BLOCK + threadIdx.x / KRN_WARP;
    if (row >= rows) return; /* the whole warp */
    krn_gate_pick(scores + row * n_experts, bias, n_experts, k, route_scale, ids + row * k, weights + row * k);
}

extern "C" err_code krn_gate_scores(const float *logits, float *scores, int32_t rows, int32_t n_experts, krn_stream stream,
                                    err *e)
{
    int64_t n = (int64_t)rows * n_experts;
    if (rows < 0 || n_experts < 1 || krn_blocks(n, THREADS) > INT_MAX)
        return err_set(e, ERR_ARG, "gate_scores: rows=%d n_experts=%d", rows, n_experts);
    if (rows == 0) return ERR_OK;
    krn_launch(scores_kernel, (unsigned)krn_blocks(n, THREADS), THREADS, 0, stream, logits, scores, n);
    return krn_launched("gate_scores", e);
}

extern "C" err_code krn_gate_topk(const float *scores, const float *bias, int32_t rows, int32_t n_experts, int32_t k,
                                  float route_scale, int32_t *ids, float *weights, krn_stream stream, err *e)
{
    if (rows < 0 || k < 1 || k > n_experts || k > KRN_GATE_PICKS_MAX)
        return err_set(e, ERR_ARG, "gate_topk: rows=%d n_experts=%d k=%d (at most %d)", rows, n_experts, k,
                       KRN_GATE_PICKS_MAX);
    if (rows == 0) return ERR_OK;
    krn_launch(topk_kernel, (unsigned)krn_blocks(rows, ROWS_PER_BLOCK), THREADS, 0, stream, scores, bias, rows, n_experts,
               k, route_scale, ids, weights);
    return krn_launched("gate_topk", e);
}
