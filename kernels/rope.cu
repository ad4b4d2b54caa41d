/* A block turns up to eight heads of one row, so that a pair's angle is evaluated once for all of them: double sine and
 * cosine are the dear part. Heads are cut into groups of eight elements, counted from 0 in the copied part and from its
 * first element in the tail, so that no pair lies in two groups. */
#include "kernels/rope.h"

#include "kernels/launch.cuh"
#include "kernels/rope.cuh"

#include <limits.h>

enum { THREADS = 256, HEADS_PER_BLOCK = 8 };

/* keep: the elements of a head before the tail. Grid (rows, heads / HEADS_PER_BLOCK). */
__global__ static void __launch_bounds__(THREADS)
    rope_kernel(const bf16 *x, bf16 *y, int32_t heads, int32_t head_dim, int32_t keep, const int32_t *pos,
                const float *freq, bool inverse, bool aligned)
{
    extern __shared__ float2 turns[]; /* [rope_dim / 2] (c, s) */
    krn_begin();
    const int32_t first_head = blockIdx.y * HEADS_PER_BLOCK, rope_dim = head_dim - keep;
    const int32_t n_heads = min(HEADS_PER_BLOCK, heads - first_head);
    const int64_t start = ((int64_t)blockIdx.x * heads + first_head) * head_dim;
    x += start; /* [n_heads, head_dim] */
    y += start;
    for (int32_t i = threadIdx.x; i < rope_dim / 2; i += THREADS)
        turns[i] = krn_rope_turn(pos[blockIdx.x], freq[i], inverse);
    if (x != y) { /* beside the warps that evaluate angles */
        const int32_t groups = (int32_t)krn_blocks(keep, 8);
        for (int32_t i = threadIdx.x; i < n_heads * groups; i += THREADS) {
            int32_t head = i / groups, d = i % groups * 8;
            int64_t at = (int64_t)head * head_dim + d;
            krn_store8(y + at, krn_load8(x + at, keep - d, aligned), keep - d, aligned);
        }
    }
    __syncthreads();
    const int32_t groups = (int32_t)krn_blocks(rope_dim, 8);
    for (int32_t i = threadIdx.x; i < n_heads * groups; i += THREADS) {
        int32_t head = i / groups, d = i % groups * 8;
        int64_t at = (int64_t)head * head_dim + keep + d;
        uint4 turned = krn_rope_group(krn_load8(x + at, rope_dim - d, aligned), turns, d / 2, rope_dim / 2);
        krn_store8(y + at, turned, rope_dim - d, aligned);
    }
}

extern "C" err_code krn_rope(const bf16 *x, bf16 *y, int32_t rows, int32_t heads, int32_t head_dim, int32_t rope_dim,
                             const int32_t *pos, const float *freq, bool inverse, krn_stream stream, err *e)
{
    int64_t head_blocks = krn_blocks(heads, HEADS_PER_BLOCK);
    if (rows < 0 || heads < 0 || rope_dim < 2 || rope_dim % 2 || rope_dim > head_dim || rope_dim > KRN_ROPE_DIM_MAX ||
        head_dim > INT_MAX / HEADS_PER_BLOCK || head_blocks > 65535)
        return err_set(e, ERR_ARG, "rope: rows=%d heads=%d head_dim=%d rope_dim=%d", rows, heads, head_dim, rope_dim);
    if (rows == 0 || heads == 0) return ERR_OK;
    int32_t keep = head_dim - rope_dim;
    bool aligned = krn_aligned(x, 2 * (int64_t)head_dim) && krn_aligned(y) && keep % 8 == 0;
    krn_launch(rope_kernel, dim3((unsigned)rows, (unsigned)head_blocks), THREADS, (unsigned)rope_dim / 2 * sizeof(float2),
               stream, x, y, heads, head_dim, keep, pos, freq, inverse, aligned);
    return krn_launched("rope", e);
}
