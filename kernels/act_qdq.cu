/* A warp per group of 32: one element a lane, the group's largest magnitude by a butterfly of maxima. */
#include "kernels/act_qdq.h"

#include "kernels/launch.cuh"
#include "kernels/qdq.cuh"

#include <limits.h>

enum { THREADS = 256, GROUPS_PER_BLOCK = THREADS / FMT_QDQ_GROUP };

__global__ static void act_qdq_kernel(const bf16 *x, int64_t ldx, bf16 *y, int64_t ldy, int64_t n_groups,
                                      int32_t row_groups)
{
    krn_begin();
    int64_t group = (int64_t)blockIdx.x * GROUPS_PER_BLOCK + threadIdx.x / FMT_QDQ_GROUP;
    if (group >= n_groups) return;
    int64_t row = group / row_groups, column = group % row_groups * FMT_QDQ_GROUP + threadIdx.x % FMT_QDQ_GROUP;
    y[row * ldy + column] = krn_qdq_warp(x[row * ldx + column]);
}

extern "C" err_code krn_act_qdq(const bf16 *x, int64_t ldx, bf16 *y, int64_t ldy, int32_t rows, int32_t cols,
                                krn_stream stream, err *e)
{
    if (rows < 0 || cols < 0 || cols % FMT_QDQ_GROUP || ldx < cols || ldy < cols)
        return err_set(e, ERR_ARG, "act_qdq: rows=%d cols=%d ldx=%lld ldy=%lld", rows, cols, (long long)ldx,
                       (long long)ldy);
    int64_t groups = (int64_t)rows * (cols / FMT_QDQ_GROUP), blocks = (groups + GROUPS_PER_BLOCK - 1) / GROUPS_PER_BLOCK;
    if (groups == 0) return ERR_OK;
    if (blocks > INT_MAX) return err_set(e, ERR_ARG, "act_qdq: %lld groups are too many for one launch", (long long)groups);
    krn_launch(act_qdq_kernel, (unsigned)blocks, THREADS, 0, stream, x, ldx, y, ldy, groups, cols / FMT_QDQ_GROUP);
    return krn_launched("act_qdq", e);
}
