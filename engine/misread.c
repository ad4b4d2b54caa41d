#include "engine/misread.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/exl3.h"

enum { BLOCK = FMT_EXL3_BLOCK, TILE = FMT_EXL3_TILE, STRIPS = BLOCK / TILE /* of a block */, FP16_ONE = 0x3c00 };

const char *eng_misread_text(eng_misread m)
{
    static const char *const TEXT[ENG_MISREADS] = {
        [ENG_MISREAD_BIT] = "one bit of a tile flipped",
        [ENG_MISREAD_CODEBOOK] = "another codebook",
        [ENG_MISREAD_SUH_MISSING] = "suh left out",
        [ENG_MISREAD_SUH_SIGN] = "suh without its signs",
        [ENG_MISREAD_SVH_NEXT] = "svh of the next block",
        [ENG_MISREAD_WORDS] = "16-bit words of each pair swapped",
        [ENG_MISREAD_STRIPS] = "tiles of neighbouring input rows swapped",
        [ENG_MISREAD_ROWS] = "tiles read row by row",
        [ENG_MISREAD_HADAMARD_IN] = "inputs not transformed",
        [ENG_MISREAD_HADAMARD_OUT] = "outputs not transformed",
        [ENG_MISREAD_BLOCK] = "one block too early",
    };
    return (unsigned int)m < ENG_MISREADS ? TEXT[m] : "?";
}

static int64_t blocks_k(const krn_weight *w) { return (w->exl3.k0 + w->k - 1) / BLOCK + 1; }
static int64_t blocks_n(const krn_weight *w) { return (w->exl3.n0 + w->n - 1) / BLOCK + 1; }
static int64_t strip_bytes(const krn_weight *w) { return STRIPS * fmt_exl3_tile_bytes(w->exl3.bits); }
static int64_t tile_bytes(const krn_weight *w) { return blocks_k(w) * STRIPS * blocks_n(w) * strip_bytes(w); }

int64_t eng_misread_bits(const krn_weight *w) { return 8 * tile_bytes(w); }

size_t eng_misread_bytes(const krn_weight *w)
{
    const int64_t copy = tile_bytes(w) + (blocks_k(w) + blocks_n(w)) * BLOCK * (int64_t)sizeof(uint16_t);
    const int64_t dense = (int64_t)w->n * w->k * (int64_t)sizeof(float);
    return (size_t)(copy > dense ? copy : dense);
}

/* A dense copy of all blocks of w, to change. */
typedef struct copy { uint8_t *tiles; uint16_t *suh, *svh; } copy;

static copy take(const krn_weight *w, void *memory, krn_weight *out)
{
    const int64_t strips = blocks_k(w) * STRIPS, columns = blocks_n(w), bytes = strip_bytes(w);
    copy c = { .tiles = memory };
    c.suh = (uint16_t *)(void *)(c.tiles + tile_bytes(w));
    c.svh = c.suh + blocks_k(w) * BLOCK;
    for (int64_t i = 0; i < strips; i++)
        for (int64_t j = 0; j < columns; j++)
            memcpy(c.tiles + (i * columns + j) * bytes,
                   (const uint8_t *)w->data + i * w->row_bytes + j * w->exl3.block_bytes, (size_t)bytes);
    memcpy(c.suh, w->exl3.suh, (size_t)blocks_k(w) * BLOCK * sizeof *c.suh);
    memcpy(c.svh, w->exl3.svh, (size_t)columns * BLOCK * sizeof *c.svh);
    *out = *w;
    out->data = c.tiles;
    out->row_bytes = columns * bytes;
    out->exl3.block_bytes = bytes;
    out->exl3.suh = c.suh;
    out->exl3.svh = c.svh;
    return c;
}

static void swap_strips(const krn_weight *w, uint8_t *tiles)
{
    const int64_t bytes = w->row_bytes;
    for (uint8_t *p = tiles; p < tiles + tile_bytes(w); p += 2 * bytes)
        for (int64_t i = 0; i < bytes; i++) {
            const uint8_t first = p[i];
            p[i] = p[bytes + i];
            p[bytes + i] = first;
        }
}

static void swap_words(const krn_weight *w, uint8_t *tiles)
{
    for (uint8_t *p = tiles; p < tiles + tile_bytes(w); p += 4) put_u32(p, get_u32(p) << 16 | get_u32(p) >> 16);
}

/* ---- what no tiles say ---- */

/* Position p of each tile, which belongs at fmt_exl3_place(p), stands at p. */
static void order_by_rows(float (*wq)[BLOCK])
{
    for (int32_t k0 = 0; k0 < BLOCK; k0 += TILE)
        for (int32_t n0 = 0; n0 < BLOCK; n0 += TILE) {
            float tile[FMT_EXL3_TILE_WEIGHTS];
            for (int32_t p = 0; p < FMT_EXL3_TILE_WEIGHTS; p++) {
                const int32_t place = fmt_exl3_place(p);
                tile[p] = wq[k0 + place / TILE][n0 + place % TILE];
            }
            for (int32_t p = 0; p < FMT_EXL3_TILE_WEIGHTS; p++) wq[k0 + p / TILE][n0 + p % TILE] = tile[p];
        }
}

static void transform(float *v, int64_t step)
{
    for (int32_t stride = 1; stride < BLOCK; stride *= 2)
        for (int32_t i = 0; i < BLOCK; i++) {
            if (i & stride) continue;
            float *p = v + i * step, *q = v + (i + stride) * step, a = *p, b = *q;
            *p = a + b;
            *q = a - b;
        }
}

/* Rows [n, n_end), columns [k, k_end), all of one block, of the effective weight, into out [w->n, w->k]. */
static void effective(eng_misread m, const krn_weight *w, int32_t n, int32_t n_end, int32_t k, int32_t k_end, float *out)
{
    float wq[BLOCK][BLOCK]; /* [in, out] */
    const krn_weight part = krn_weight_slice(w, n, n_end - n, k, k_end - k);
    const float scale = m == ENG_MISREAD_ROWS ? 1.0f / BLOCK : 1 / sqrtf(BLOCK); /* of both transforms, of one */
    krn_exl3_decode_ref(&part, wq[0]);
    if (m == ENG_MISREAD_ROWS) order_by_rows(wq);
    for (int32_t i = 0; i < BLOCK && m != ENG_MISREAD_HADAMARD_OUT; i++) transform(wq[i], 1);
    for (int32_t i = 0; i < BLOCK && m != ENG_MISREAD_HADAMARD_IN; i++) transform(wq[0] + i, BLOCK);
    for (int32_t r = n; r < n_end; r++)
        for (int32_t c = k; c < k_end; c++) {
            const int32_t o = part.exl3.n0 + r - n, i = part.exl3.k0 + c - k;
            out[(int64_t)r * w->k + c] =
                wq[i][o] * f32_from_fp16(part.exl3.svh[o]) * scale * f32_from_fp16(part.exl3.suh[i]);
        }
}

/* Where the block of element i ends, of n elements that begin at `first` of a block. */
static int32_t block_end(int32_t i, int32_t first, int32_t n)
{
    const int32_t end = ((first + i) / BLOCK + 1) * BLOCK - first;
    return end < n ? end : n;
}

static krn_weight dense(eng_misread m, const krn_weight *w, float *memory)
{
    for (int32_t n = 0, n_end; n < w->n; n = n_end) {
        n_end = block_end(n, w->exl3.n0, w->n);
        for (int32_t k = 0, k_end; k < w->k; k = k_end) {
            k_end = block_end(k, w->exl3.k0, w->k);
            effective(m, w, n, n_end, k, k_end, memory);
        }
    }
    return (krn_weight){ .format = KRN_W_F32, .n = w->n, .k = w->k, .data = memory,
                         .row_bytes = w->k * (int64_t)sizeof *memory };
}

/* ---- all of them ---- */

static krn_weight one_block_early(const krn_weight *w, bool along_k)
{
    krn_weight out = *w;
    out.data = (const uint8_t *)w->data - (along_k ? STRIPS * w->row_bytes : w->exl3.block_bytes);
    if (along_k) out.exl3.suh -= BLOCK;
    else out.exl3.svh -= BLOCK;
    return out;
}

krn_weight eng_misread_make(eng_misread m, const krn_weight *w, int64_t which, void *memory)
{
    CHECK(w->format == KRN_W_EXL3);
    if (m == ENG_MISREAD_ROWS || m == ENG_MISREAD_HADAMARD_IN || m == ENG_MISREAD_HADAMARD_OUT) return dense(m, w, memory);
    if (m == ENG_MISREAD_BLOCK) return one_block_early(w, which == 1);
    krn_weight out;
    const copy c = take(w, memory, &out);
    const int64_t n_suh = blocks_k(w) * BLOCK, n_svh = blocks_n(w) * BLOCK;
    switch (m) {
    case ENG_MISREAD_BIT: c.tiles[which / 8] ^= (uint8_t)(1 << which % 8); break;
    case ENG_MISREAD_CODEBOOK:
        out.exl3.codebook = (int32_t)((w->exl3.codebook + 1 + which % 2) % FMT_EXL3_CODEBOOKS);
        break;
    case ENG_MISREAD_SUH_MISSING:
        for (int64_t i = 0; i < n_suh; i++) c.suh[i] = FP16_ONE;
        break;
    case ENG_MISREAD_SUH_SIGN:
        for (int64_t i = 0; i < n_suh; i++) c.suh[i] &= 0x7fff;
        break;
    case ENG_MISREAD_SVH_NEXT: memmove(c.svh, c.svh + BLOCK, (size_t)(n_svh - BLOCK) * sizeof *c.svh); break;
    case ENG_MISREAD_WORDS: swap_words(w, c.tiles); break;
    case ENG_MISREAD_STRIPS: swap_strips(&out, c.tiles); break;
    default: break;
    }
    return out;
}
