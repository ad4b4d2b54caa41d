/* Re-lays a bank on the device: a warp makes a block of the layout, a lane the very bytes that it will multiply. Words of
 * four bytes are read, a row's 64 after each other, so that the nearest cache turns them into whole lines. */
#include "kernels/experts_kx.h"

#include "kernels/bits.cuh"

enum { WARPS = 8 };

/* Grid: a warp for every block of every expert. */
__global__ static void __launch_bounds__(WARPS *KRN_WARP)
    lay_kernel(const uint8_t *data, const uint8_t *scale, int32_t n, int32_t k, int64_t n_blocks, uint8_t *out)
{
    const int64_t b = (int64_t)blockIdx.x * WARPS + threadIdx.x / KRN_WARP;
    if (b >= n_blocks) return;
    const int32_t lane = threadIdx.x % KRN_WARP, g = lane / 4, q = lane % 4;
    const int32_t tiles = krn_kx_tiles(n), steps = krn_kx_steps(k), chunks = k / 32;
    const int32_t first = (int32_t)(b % steps) * 4, tile = (int32_t)(b / steps % tiles);
    const int32_t row = tile * KRN_KX_ROWS + g;
    const int64_t from = b / steps / tiles * n + row; /* of all experts' rows */
    const uint8_t *codes = data + from * (k / 2) + first * 16 + q * 4, *scales = scale + from * chunks + first;
    uint8_t *block = out + b * KRN_KX_BLOCK_BYTES;
    uint32_t four = 0; /* scales of chunk q */
    for (int32_t c = 0; c < 4; c++) {
        uint32_t word[4];
#pragma unroll
        for (int32_t j = 0; j < 4; j++) {
            const bool there = row + 8 * j < n && first + c < chunks;
            word[j] = there ? krn_kx_word(__ldg((const uint32_t *)(codes + (int64_t)8 * j * (k / 2) + c * 16))) : 0;
            if (there && c == q) four |= (uint32_t)scales[(int64_t)8 * j * chunks + c] << 8 * j;
        }
        *(uint4 *)(block + c * KRN_KX_CHUNK_BYTES + lane * 16) = make_uint4(word[0], word[1], word[2], word[3]);
    }
    *(uint32_t *)(block + KRN_KX_SCALES + lane * 4) = four;
}

extern "C" err_code krn_kx_lay(const krn_expert_bank *from, uint8_t *blocks, krn_stream stream, err *e)
{
    if (from->format != KRN_W_FP4 || from->n_experts < 1 || from->n < 1 || from->k < 32 || from->k % 32)
        return err_set(e, ERR_ARG, "kx_lay: format=%d n_experts=%d n=%d k=%d", (int)from->format, from->n_experts, from->n,
                       from->k);
    if (!krn_aligned(from->data) || !krn_aligned(blocks))
        return err_set(e, ERR_ARG, "kx_lay: the weights do not begin at 16 bytes");
    const int64_t n_blocks = (int64_t)from->n_experts * krn_kx_tiles(from->n) * krn_kx_steps(from->k);
    const int64_t grid = krn_blocks(n_blocks, WARPS);
    if (grid > INT32_MAX) return err_set(e, ERR_ARG, "kx_lay: %lld blocks", (long long)n_blocks);
    lay_kernel<<<(unsigned)grid, WARPS * KRN_WARP, 0, stream>>>((const uint8_t *)from->data, from->scale, from->n, from->k,
                                                               n_blocks, blocks);
    return krn_launched("kx_lay", e);
}
