/* A block a row: its threads look for a later row of the same place, all at once, then copy the row unless there is one. */
#include "kernels/ring.h"

#include "kernels/bits.cuh"
#include "kernels/launch.cuh"

enum { THREADS = 128 };

__global__ static void ring_write_kernel(const bf16 *kv, const int32_t *pos, bf16 *rings, int64_t ring_stride,
                                         const int32_t *slot, int32_t window, int32_t head_dim, bool aligned)
{
    krn_begin();
    const int32_t row = blockIdx.x, rows = gridDim.x, p = pos[row];
    if (p < 0) return;
    const int32_t place = p % window;
    bool replaced = false;
    for (int32_t r = row + 1 + threadIdx.x; r < rows; r += THREADS) replaced |= pos[r] >= 0 && pos[r] % window == place;
    if (__syncthreads_or(replaced)) return;
    const bf16 *from = kv + (int64_t)row * head_dim;
    bf16 *to = rings + slot[0] * ring_stride + (int64_t)place * head_dim;
    for (int32_t d = 8 * threadIdx.x; d < head_dim; d += 8 * THREADS)
        krn_store8(to + d, krn_load8(from + d, head_dim - d, aligned), head_dim - d, aligned);
}

extern "C" err_code krn_ring_write(const bf16 *kv, const int32_t *pos, int32_t rows, bf16 *rings, int64_t ring_stride,
                                   const int32_t *slot, int32_t window, int32_t head_dim, krn_stream stream, err *e)
{
    if (rows < 0 || window < 1 || head_dim < 1 || ring_stride < (int64_t)window * head_dim)
        return err_set(e, ERR_ARG, "ring_write: rows=%d window=%d head_dim=%d ring_stride=%lld", rows, window, head_dim,
                       (long long)ring_stride);
    if (rows == 0) return ERR_OK;
    bool aligned = krn_aligned(kv, 2 * (int64_t)head_dim) && krn_aligned(rings, 2 * ring_stride);
    krn_launch(ring_write_kernel, (unsigned)rows, THREADS, 0, stream, kv, pos, rings, ring_stride, slot, window, head_dim,
               aligned);
    return krn_launched("ring_write", e);
}
