#include "kernels/embed.h"

#include "kernels/bits.cuh"
#include "kernels/launch.cuh"

#include <limits.h>

enum { THREADS = 128, COLUMN_BLOCKS_MAX = 65535 };

__global__ static void block_ids_kernel(const int32_t *anchor, const int32_t *last, int64_t n, int32_t block,
                                        int32_t noise_id, int32_t *ids, int32_t *pos)
{
    krn_begin();
    int64_t t = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (t >= n) return;
    int32_t i = (int32_t)(t % block);
    ids[t] = i == 0 ? anchor[t / block] : noise_id;
    pos[t] = last[t / block] + 1 + i;
}

/* Eight columns a thread, read once and written to every copy. Grid (rows, dim / 8 / THREADS). */
__global__ static void embed_kernel(const int32_t *ids, const bf16 *table, int32_t vocab, int32_t dim, int32_t hc, bf16 *x,
                                    bool aligned)
{
    krn_begin();
    int64_t column = 8 * ((int64_t)blockIdx.y * THREADS + threadIdx.x), left = dim - column;
    if (left <= 0) return;
    const int32_t id = ids[blockIdx.x];
    const uint32_t nans = 0x7fc07fc0;
    uint4 v = make_uint4(nans, nans, nans, nans);
    if (id >= 0 && id < vocab) v = krn_load8(table + (int64_t)id * dim + column, left, aligned);
    x += (int64_t)blockIdx.x * hc * dim + column; /* [hc] dim apart */
    for (int32_t c = 0; c < hc; c++, x += dim) krn_store8(x, v, left, aligned);
}

__global__ static void first_pre_kernel(float *pre, int64_t n, int32_t hc)
{
    krn_begin();
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n) pre[i] = i % hc == 0 ? 1.0f : 0.0f;
}

extern "C" err_code krn_block_ids(const int32_t *anchor, const int32_t *last, int32_t batch, int32_t block,
                                  int32_t noise_id, int32_t *ids, int32_t *pos, krn_stream stream, err *e)
{
    int64_t n = (int64_t)batch * block, blocks = krn_blocks(n, THREADS);
    if (batch < 0 || block < 1 || blocks > INT_MAX)
        return err_set(e, ERR_ARG, "block_ids: batch=%d block=%d", batch, block);
    if (n == 0) return ERR_OK;
    krn_launch(block_ids_kernel, (unsigned)blocks, THREADS, 0, stream, anchor, last, n, block, noise_id, ids, pos);
    return krn_launched("block_ids", e);
}

extern "C" err_code krn_embed(const int32_t *ids, int32_t rows, const bf16 *table, int32_t vocab, int32_t dim, int32_t hc,
                              bf16 *x, krn_stream stream, err *e)
{
    int64_t column_blocks = krn_blocks(krn_blocks(dim, 8), THREADS);
    if (rows < 0 || vocab < 1 || dim < 1 || hc < 1 || column_blocks > COLUMN_BLOCKS_MAX)
        return err_set(e, ERR_ARG, "embed: rows=%d vocab=%d dim=%d hc=%d", rows, vocab, dim, hc);
    if (rows == 0) return ERR_OK;
    bool aligned = krn_aligned(table, 2 * (int64_t)dim) && krn_aligned(x);
    dim3 grid((unsigned)rows, (unsigned)column_blocks);
    krn_launch(embed_kernel, grid, THREADS, 0, stream, ids, table, vocab, dim, hc, x, aligned);
    return krn_launched("embed", e);
}

extern "C" err_code krn_first_pre(float *pre, int32_t rows, int32_t hc, krn_stream stream, err *e)
{
    int64_t n = (int64_t)rows * hc, blocks = krn_blocks(n, THREADS);
    if (rows < 0 || hc < 1 || blocks > INT_MAX) return err_set(e, ERR_ARG, "first_pre: rows=%d hc=%d", rows, hc);
    if (n == 0) return ERR_OK;
    krn_launch(first_pre_kernel, (unsigned)blocks, THREADS, 0, stream, pre, n, hc);
    return krn_launched("first_pre", e);
}
