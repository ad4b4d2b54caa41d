#include "kernels/experts_kx.h"

#include "base/mem.h"

#include <string.h>

enum { LANES_G = 8, LANES_Q = 4, CHUNKS = 4, CHUNK_K = 32, CHUNK_BYTES = CHUNK_K / 2 /* of a row */ };

/* The inverse of krn_kx_word. */
static uint32_t codes_of(uint32_t word)
{
    return (word >> 12 & 0x00080008) | (word >> 6 & 0x00070007)
         | (word >> 5 & 0x00800080) | (word & 0x00380038) << 1
         | (word & 0x02000200) << 2 | (word & 0x00070007) << 8
         | (word & 0x0c000c00) << 4 | (word >> 1 & 0x30003000);
}

/* Row r of the two matrices; NULL: past their end. */
typedef struct row_at { const uint8_t *data, *scale; } row_at;
static row_at row_of(const krn_weight *top, const krn_weight *bottom, int32_t r)
{
    const krn_weight *w = top;
    if (r >= top->n) w = bottom, r -= top->n;
    if (!w || r >= w->n) return (row_at){ NULL, NULL };
    return (row_at){ (const uint8_t *)w->data + r * w->row_bytes, w->scale + r * w->scale_row_bytes };
}

/* One row's part of a step into its places of the block, which is zero. Returns the largest scale. */
static uint8_t pack_row(row_at from, int32_t row, int32_t step, int32_t k, uint8_t *block)
{
    const int32_t g = row % LANES_G, j = row / LANES_G, first = step * CHUNKS, left = k / CHUNK_K - first;
    uint8_t largest = 0;
    for (int32_t c = 0; c < CHUNKS && c < left; c++) {
        const uint8_t *codes = from.data + (int64_t)(first + c) * CHUNK_BYTES, scale = from.scale[first + c];
        uint8_t *lanes = block + c * KRN_KX_CHUNK_BYTES + LANES_Q * g * 16 + j * 4;
        for (int32_t q = 0; q < LANES_Q; q++) put_u32(lanes + q * 16, krn_kx_word(get_u32(codes + q * 4)));
        block[KRN_KX_SCALES + g * 16 + c * 4 + j] = scale;
        if (scale > largest) largest = scale;
    }
    return largest;
}

bool krn_kx_pack(const krn_weight *top, const krn_weight *bottom, uint8_t *out)
{
    const int32_t n = top->n + (bottom ? bottom->n : 0), tiles = krn_kx_tiles(n), steps = krn_kx_steps(top->k);
    int largest = 0;
#pragma omp parallel for schedule(static) reduction(max : largest)
    for (int32_t t = 0; t < tiles; t++) {
        row_at row[KRN_KX_ROWS];
        for (int32_t r = 0; r < KRN_KX_ROWS; r++) row[r] = row_of(top, bottom, t * KRN_KX_ROWS + r);
        for (int32_t step = 0; step < steps; step++) { /* a block at a time: it stays in the nearest cache */
            uint8_t *block = out + ((int64_t)t * steps + step) * KRN_KX_BLOCK_BYTES;
            memset(block, 0, KRN_KX_BLOCK_BYTES);
            for (int32_t r = 0; r < KRN_KX_ROWS && row[r].data; r++) {
                const int found = pack_row(row[r], r, step, top->k, block);
                if (found > largest) largest = found;
            }
        }
    }
    return largest > KRN_KX_SCALE_SMALL;
}

void krn_kx_unpack(const uint8_t *packed, int32_t n, int32_t k, uint8_t *data, uint8_t *scale)
{
    const int64_t tile_bytes = (int64_t)krn_kx_steps(k) * KRN_KX_BLOCK_BYTES;
    for (int32_t r = 0; r < n; r++) {
        const uint8_t *tile = packed + r / KRN_KX_ROWS * tile_bytes;
        const int32_t g = r % LANES_G, j = r % KRN_KX_ROWS / LANES_G;
        for (int32_t b = 0; b < k / CHUNK_K; b++) {
            const uint8_t *block = tile + (int64_t)(b / CHUNKS) * KRN_KX_BLOCK_BYTES;
            const int32_t c = b % CHUNKS;
            for (int32_t q = 0; q < LANES_Q; q++)
                put_u32(data + (int64_t)r * (k / 2) + b * CHUNK_BYTES + q * 4,
                        codes_of(get_u32(block + c * KRN_KX_CHUNK_BYTES + (LANES_Q * g + q) * 16 + j * 4)));
            scale[(int64_t)r * (k / CHUNK_K) + b] = block[KRN_KX_SCALES + g * 16 + c * 4 + j];
        }
    }
}
