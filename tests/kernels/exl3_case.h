/* EXL3 weights of random tiles for the tests, and their contract (kernels/exl3.h) written again, plainly. */
#ifndef TESTS_KERNELS_EXL3_CASE_H
#define TESTS_KERNELS_EXL3_CASE_H

#include "check.h"

#include "base/mem.h"
#include "kernels/exl3_loops.h"

enum { BLOCK = FMT_EXL3_BLOCK, TILE = FMT_EXL3_TILE };

/* A stored tensor [k, n], both multiples of 128, or with its columns of blocks together, and the view of the whole. */
typedef struct exl3_case {
    krn_weight w;
    uint16_t *tiles, *suh, *svh;
    int64_t words; /* of tiles */
} exl3_case;

static inline uint32_t case_bits(uint64_t seed, int64_t i) { return f32_bits(input_f32(seed, i) + 3.0f) & 0x3fffff; }

static inline exl3_case case_make(int32_t n, int32_t k, int32_t bits, fmt_exl3_codebook c, bool by_columns, uint64_t seed)
{
    const int64_t tile = fmt_exl3_tile_bytes(bits);
    exl3_case e = { .words = (int64_t)n / TILE * (k / TILE) * 16 * bits };
    e.tiles = mem_alloc((size_t)e.words, 2);
    e.suh = mem_alloc((size_t)k, 2);
    e.svh = mem_alloc((size_t)n, 2);
    assert_true(e.tiles && e.suh && e.svh);
    for (int64_t i = 0; i < e.words; i++) e.tiles[i] = (uint16_t)(case_bits(seed, i) >> 3);
    for (int32_t i = 0; i < k; i++) e.suh[i] = fp16_from_f32((i & 5 ? 0.015f : -0.015f) * (1.5f + input_f32(seed + 1, i)));
    for (int32_t i = 0; i < n; i++) e.svh[i] = fp16_from_f32((i & 6 ? 1.0f : -1.0f) * (1.5f + input_f32(seed + 2, i)));
    e.w = (krn_weight){ .format = KRN_W_EXL3, .n = n, .k = k, .data = e.tiles };
    e.w.exl3 = (krn_exl3){ .bits = bits, .codebook = c, .suh = e.suh, .svh = e.svh };
    e.w.row_bytes = by_columns ? 8 * tile : n / TILE * tile;
    e.w.exl3.block_bytes = by_columns ? k / TILE * 8 * tile : 8 * tile;
    return e;
}

static inline void case_free(exl3_case *e)
{
    free(e->tiles);
    free(e->suh);
    free(e->svh);
}

/* Wq of the whole tensor, tile by tile: [k, n]. Free it. */
static inline float *case_decode(const krn_weight *w)
{
    const int32_t n = krn_exl3_blocks_n(w) * BLOCK, k = krn_exl3_blocks_k(w) * BLOCK;
    float *wq = mem_alloc((size_t)n * (size_t)k, sizeof *wq);
    assert_non_null(wq);
    for (int32_t i = 0; i < k / TILE; i++)
        for (int32_t j = 0; j < n / TILE; j++) {
            const uint8_t *at = (const uint8_t *)w->data + i * w->row_bytes + j / 8 * w->exl3.block_bytes +
                                j % 8 * fmt_exl3_tile_bytes(w->exl3.bits);
            uint16_t tile[16 * FMT_EXL3_BITS_MAX], state[FMT_EXL3_TILE_WEIGHTS];
            memcpy(tile, at, (size_t)fmt_exl3_tile_bytes(w->exl3.bits));
            fmt_exl3_unpack(tile, w->exl3.bits, state);
            for (int32_t p = 0; p < FMT_EXL3_TILE_WEIGHTS; p++) {
                const int32_t place = fmt_exl3_place(p);
                const fp16 v = fmt_exl3_value((fmt_exl3_codebook)w->exl3.codebook, state[p]);
                wq[(int64_t)(i * TILE + place / TILE) * n + j * TILE + place % TILE] = f32_from_fp16(v);
            }
        }
    return wq;
}

/* R2, R6. */
static inline void case_butterfly(float *v)
{
    for (int stride = 1; stride < BLOCK; stride *= 2)
        for (int i = 0; i < BLOCK; i++)
            if (!(i & stride)) {
                const float a = v[i], b = v[i + stride];
                v[i] = a + b;
                v[i + stride] = a - b;
            }
}

/* R1 to R4 of a row: a [inputs of the blocks] as f32; returns s. */
static inline int32_t case_input(const krn_weight *w, const bf16 *x, float *a)
{
    const int32_t k = krn_exl3_blocks_k(w) * BLOCK;
    float most = 0;
    bool odd = false;
    for (int32_t i = 0; i < k; i++) {
        const int32_t at = i - w->exl3.k0;
        a[i] = at >= 0 && at < w->k ? f32_from_bf16(x[at]) * f32_from_fp16(w->exl3.suh[i]) : 0;
    }
    for (int32_t i = 0; i < k; i += BLOCK) case_butterfly(a + i);
    for (int32_t i = 0; i < k; i++) {
        a[i] *= f32_from_bits(0x3DB504F3);
        if (!isfinite(a[i])) odd = true;
        if (fabsf(a[i]) > most) most = fabsf(a[i]);
    }
    int32_t s = 0;
    if (!odd && most > 0) {
        while (s < 100 && ldexp(most, -s) >= 0x1p15) s++;
        while (s > -100 && ldexp(most, -s) < 0x1p14) s--;
    }
    for (int32_t i = 0; i < k; i++) a[i] = f32_from_fp16(fp16_from_f32(ldexpf(a[i], -s)));
    return s;
}

/* R5 to R7 of a row, blocked; wq as case_decode gives it. y [w->n]. */
static inline void case_product(const krn_weight *w, const float *wq, const bf16 *x, float *y)
{
    const int32_t n = krn_exl3_blocks_n(w) * BLOCK, k = krn_exl3_blocks_k(w) * BLOCK;
    float *a = mem_alloc((size_t)k, sizeof *a), *q = mem_alloc((size_t)n, sizeof *q);
    assert_true(a && q);
    const int32_t s = case_input(w, x, a);
    for (int32_t j = 0; j < n; j++)
        for (int32_t i = 0; i < k; i++) q[j] += a[i] * wq[(int64_t)i * n + j];
    for (int32_t j = 0; j < n; j += BLOCK) case_butterfly(q + j);
    for (int32_t j = 0; j < w->n; j++) {
        const float scaled = ldexpf(q[w->exl3.n0 + j] * f32_from_bits(0x3DB504F3), s);
        y[j] = scaled * f32_from_fp16(w->exl3.svh[w->exl3.n0 + j]);
        if (isnan(y[j])) y[j] = f32_from_bits(0x7fc00000);
    }
    free(a);
    free(q);
}

#endif
