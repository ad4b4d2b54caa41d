/* An element a thread: a step's experts make some 70,000 elements, which fill a card without more work for each. */
#include "kernels/swiglu.h"

#include "kernels/launch.cuh"
#include "kernels/swiglu.cuh"

enum { THREADS = 256, COLUMN_BLOCKS_MAX = 65535 };

__global__ static void swiglu_kernel(const bf16 *g, const bf16 *u, const float *route_weight, float limit, bf16 *h,
                                     int32_t cols)
{
    krn_begin();
    int32_t column = blockIdx.y * THREADS + threadIdx.x;
    if (column >= cols) return;
    int64_t i = (int64_t)blockIdx.x * cols + column;
    h[i] = krn_swiglu_of(g[i], u[i], route_weight ? route_weight[blockIdx.x] : 1.0f, limit);
}

extern "C" err_code krn_swiglu(const bf16 *g, const bf16 *u, const float *route_weight, float limit, bf16 *h, int32_t rows,
                               int32_t cols, krn_stream stream, err *e)
{
    int64_t column_blocks = krn_blocks(cols, THREADS);
    if (rows < 0 || cols < 0 || column_blocks > COLUMN_BLOCKS_MAX)
        return err_set(e, ERR_ARG, "swiglu: rows=%d cols=%d", rows, cols);
    if (rows == 0 || cols == 0) return ERR_OK;
    dim3 grid((unsigned)rows, (unsigned)column_blocks);
    krn_launch(swiglu_kernel, grid, THREADS, 0, stream, g, u, route_weight, limit, h, cols);
    return krn_launched("swiglu", e);
}
