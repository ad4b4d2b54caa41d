/* Three kernels do every linear:
 *
 *   blocks   FP8 and FP4, blocked. A vector holds 16 outputs. The codes of a chunk of K are transposed and decoded once,
 *            [k][output], and serve all rows of x; the contract's lanes and tree are then plain vertical arithmetic.
 *   wide     sums in double, every format. The same, but that a chunk is decoded to double and laid out by the lanes of
 *            lanes16: one lane of a few rows of x is summed in registers at a time.
 *   lanes    BF16, blocked. A vector holds 16 consecutive k, the contract's lanes16; a few rows of x times a few outputs
 *            are summed in registers over the whole of K. */
#include "kernels/simd_loops.h"

#include "base/mem.h"
#include "kernels/simd.h"

enum { GROUP = 32 }; /* columns under one scale */

/* ---- blocks ---- */

enum {
    CHUNK_K = 2 * SIMD_BYTES,           /* of FP4; FP8 has half as many */
    CHUNK_BLOCKS = CHUNK_K / GROUP,
    PREFETCH_BYTES = 4 * SIMD_BYTES,    /* per row: 16 rows at once are too many streams for the hardware to follow */
};

typedef struct chunk {
    _Alignas(64) float w[CHUNK_K][KRN_TILE_N]; /* code values */
    float scale[CHUNK_BLOCKS][KRN_TILE_N];
} chunk;

/* SIMD_BYTES bytes of 16 rows, from `at` on, as columns of 16: byte i is column[simd_column(i)]. Of them `bytes` are read,
 * the others are 0. */
SIMD_INLINE void columns_get(const uint8_t *const row[KRN_TILE_N], int64_t at, int bytes,
                             uint8_t column[SIMD_BYTES][KRN_TILE_N])
{
    _Alignas(64) uint8_t padded[KRN_TILE_N][SIMD_BYTES];
    const uint8_t *from[KRN_TILE_N];
    for (int r = 0; r < KRN_TILE_N; r++) {
        from[r] = row[r] + at;
        __builtin_prefetch((const void *)((uintptr_t)from[r] + PREFETCH_BYTES));
    }
    if (bytes < SIMD_BYTES)
        for (int r = 0; r < KRN_TILE_N; r++) {
            memset(padded[r], 0, SIMD_BYTES);
            memcpy(padded[r], from[r], (size_t)bytes);
            from[r] = padded[r];
        }
    simd_transpose(from, column);
}

/* Scales of one block of 16 rows. */
SIMD_INLINE f32x16 scales_get(const uint8_t *const scale[KRN_TILE_N], int32_t block)
{
    uint8_t s[KRN_TILE_N];
    for (int r = 0; r < KRN_TILE_N; r++) s[r] = scale[r][block];
    return f32x16_from_e8m0(s);
}

/* Decodes blocks [block, block + n_blocks) of 16 rows. */
SIMD_INLINE void chunk_decode(krn_wformat format, const uint8_t *const code[KRN_TILE_N],
                              const uint8_t *const scale[KRN_TILE_N], int32_t block, int n_blocks, chunk *c)
{
    const int block_bytes = format == KRN_W_FP8 ? GROUP : GROUP / 2, bytes = n_blocks * block_bytes;
    _Alignas(64) uint8_t column[SIMD_BYTES][KRN_TILE_N];
    columns_get(code, (int64_t)block * block_bytes, bytes, column);
    for (int i = 0; i < bytes; i++) {
        const uint8_t *p = column[simd_column(i)];
        if (format == KRN_W_FP8) {
            f32x16_store(c->w[i], f32x16_from_e4m3(p));
        } else {
            f32x16_store(c->w[2 * i], f32x16_from_e2m1_low(p));
            f32x16_store(c->w[2 * i + 1], f32x16_from_e2m1_high(p));
        }
    }
    for (int b = 0; b < n_blocks; b++) f32x16_store(c->scale[b], scales_get(scale, block + b));
}

/* The contract's tree over one block, for 16 outputs: lane i of 16, then the sums of lanes that are 8, 4, 2, 1 apart.
 * Written depth first, so that five registers are enough. */
typedef const float (*wcolumns)[KRN_TILE_N];
SIMD_INLINE f32x16 block_lane(const float *x, wcolumns w, int i)
{
    return f32x16_add(f32x16_mul(f32x16_splat(x[i]), f32x16_load(w[i])),
                      f32x16_mul(f32x16_splat(x[i + 16]), f32x16_load(w[i + 16])));
}
SIMD_INLINE f32x16 block_sum8(const float *x, wcolumns w, int i)
{
    return f32x16_add(block_lane(x, w, i), block_lane(x, w, i + 8));
}
SIMD_INLINE f32x16 block_sum4(const float *x, wcolumns w, int i)
{
    return f32x16_add(block_sum8(x, w, i), block_sum8(x, w, i + 4));
}
SIMD_INLINE f32x16 block_sum2(const float *x, wcolumns w, int i)
{
    return f32x16_add(block_sum4(x, w, i), block_sum4(x, w, i + 2));
}
SIMD_INLINE f32x16 block_sum(const float *x, wcolumns w) { return f32x16_add(block_sum2(x, w, 0), block_sum2(x, w, 1)); }

/* out[r] += the chunk's blocks for one row of x (of f32). A call of its own: inlined, gcc would take the broadcast values
 * of x out of the registers that it had just stored them from, by shuffles, which are what this loop is short of. */
static __attribute__((noinline)) void chunk_add(const chunk *c, const float *x, int n_blocks, float out[KRN_TILE_N])
{
    f32x16 acc = f32x16_load(out);
    for (int b = 0; b < n_blocks; b++) {
        f32x16 sum = block_sum(x + b * GROUP, (wcolumns)c->w + b * GROUP);
        acc = f32x16_add(acc, f32x16_mul(sum, f32x16_load(c->scale[b])));
    }
    f32x16_store(out, acc);
}

/* Rows [n0, n0 + n) of w. scale: FP8 and FP4 only. */
SIMD_INLINE void tile_rows(krn_wformat format, const krn_weight *w, int32_t n0, int32_t n, const uint8_t *code[KRN_TILE_N],
                           const uint8_t *scale[KRN_TILE_N])
{
    const bool scaled = format == KRN_W_FP8 || format == KRN_W_FP4;
    for (int r = 0; r < KRN_TILE_N; r++) {
        int32_t row = n0 + (r < n ? r : n - 1); /* a short tile repeats its last row: computed, not used */
        code[r] = krn_weight_row(w, row);
        scale[r] = scaled ? krn_weight_scale_row(w, row) : NULL;
    }
}

SIMD_INLINE void tile_blocks(krn_wformat format, const krn_weight *w, int32_t n0, int32_t n, const krn_linear_job *rows,
                             int32_t n_rows, float (*out)[KRN_TILE_N])
{
    const int per_chunk = format == KRN_W_FP8 ? CHUNK_BLOCKS / 2 : CHUNK_BLOCKS;
    const uint8_t *code[KRN_TILE_N], *scale[KRN_TILE_N];
    tile_rows(format, w, n0, n, code, scale);
    for (int32_t t = 0; t < n_rows; t++) f32x16_store(out[t], f32x16_splat(0.0f));

    chunk c;
    const int32_t blocks = w->k / GROUP;
    for (int32_t block = 0; block < blocks; block += per_chunk) {
        int n_blocks = blocks - block < per_chunk ? (int)(blocks - block) : per_chunk;
        chunk_decode(format, code, scale, block, n_blocks, &c);
        for (int32_t t = 0; t < n_rows; t++) {
            _Alignas(64) float x[CHUNK_K];
            for (int i = 0; i < n_blocks * GROUP; i += 16)
                f32x16_store(x + i, f32x16_from_bf16(rows[t].x + (int64_t)block * GROUP + i));
            chunk_add(&c, x, n_blocks, out[t]);
        }
    }
}

/* ---- wide ---- */

/* WIDE_K: columns decoded at a time, for what the caches hold. WIDE_T: rows of x summed at once, for what the registers
 * hold. WIDE_ROWS: rows that a chunk serves before it is decoded again, for what the stack holds. */
#if defined(KRN_SIMD_AVX512)
enum { WIDE_T = 5 };
#else
enum { WIDE_T = 2 };
#endif
enum { WIDE_K = 128, WIDE_STEPS = WIDE_K / KRN_LANES, WIDE_ROWS = 20 };

/* A chunk of 16 outputs: [lane][step] is column lane + 16 * step. */
typedef struct wide { _Alignas(64) double w[KRN_LANES][WIDE_STEPS][KRN_TILE_N]; } wide;
typedef double lane_sums[KRN_LANES][KRN_TILE_N]; /* of one row of x */

SIMD_INLINE int64_t format_bytes(krn_wformat format, int64_t k) /* of k columns */
{
    return format == KRN_W_FP4 ? k / 2 : format == KRN_W_FP8 ? k : format == KRN_W_BF16 ? 2 * k : 4 * k;
}

/* Element k of the columns that columns_get got, of 16 outputs, without scale. */
SIMD_INLINE f32x16 column_load(krn_wformat format, uint8_t column[SIMD_BYTES][KRN_TILE_N], int k)
{
    static const _Alignas(16) uint8_t ZERO[KRN_TILE_N];
    if (format == KRN_W_FP8) return f32x16_from_e4m3(column[simd_column(k)]);
    if (format == KRN_W_FP4)
        return k % 2 ? f32x16_from_e2m1_high(column[simd_column(k / 2)]) : f32x16_from_e2m1_low(column[simd_column(k / 2)]);
    if (format == KRN_W_BF16)
        return f32x16_from_bytes((const uint8_t *const[]){ column[simd_column(2 * k + 1)], column[simd_column(2 * k)], ZERO,
                                                           ZERO });
    return f32x16_from_bytes((const uint8_t *const[]){ column[simd_column(4 * k + 3)], column[simd_column(4 * k + 2)],
                                                       column[simd_column(4 * k + 1)], column[simd_column(4 * k)] });
}

/* Decodes columns [k0, k0 + n_k) of 16 rows; columns_get fills up a last, short step with zeros. Adding +0 changes no lane:
 * a sum that starts at +0 is never -0. */
SIMD_INLINE void wide_decode(krn_wformat format, const uint8_t *const code[KRN_TILE_N],
                             const uint8_t *const scale[KRN_TILE_N], int32_t k0, int n_k, wide *c)
{
    const bool scaled = format == KRN_W_FP8 || format == KRN_W_FP4;
    const int per_get = 2 * SIMD_BYTES / (int)format_bytes(format, 2); /* columns in SIMD_BYTES of a row */
    const int run = per_get < KRN_LANES ? per_get : KRN_LANES, end = (n_k + KRN_LANES - 1) / KRN_LANES * KRN_LANES;
    f64x16 factor = f64x16_splat(1.0);
    for (int first = 0; first < end; first += per_get) {
        _Alignas(64) uint8_t column[SIMD_BYTES][KRN_TILE_N];
        const int left = n_k - first < 0 ? 0 : n_k - first, n = left < per_get ? left : per_get;
        columns_get(code, format_bytes(format, k0 + first), (int)format_bytes(format, n), column);
        for (int k = first; k < first + per_get && k < end; k += run) {
            if (scaled && k % GROUP == 0) factor = f64x16_from_f32(scales_get(scale, (k0 + k) / GROUP));
            SIMD_UNROLL
            for (int i = 0; i < run; i++) {
                f64x16 v = f64x16_from_f32(column_load(format, column, k - first + i));
                f64x16_store(c->w[k % KRN_LANES + i][k / KRN_LANES], scaled ? f64x16_mul(v, factor) : v);
            }
        }
    }
}

/* Columns [k0, k0 + n_k) of a row of x as double, filled up likewise. */
SIMD_INLINE void wide_row(const bf16 *x, int32_t k0, int n_k, double out[WIDE_K])
{
    int k = 0;
    for (; k + KRN_LANES <= n_k; k += KRN_LANES) f64x16_store(out + k, f64x16_from_f32(f32x16_from_bf16(x + k0 + k)));
    if (k == n_k) return;
    bf16 tail[KRN_LANES] = { 0 };
    memcpy(tail, x + k0 + k, (size_t)(n_k - k) * sizeof *tail);
    f64x16_store(out + k, f64x16_from_f32(f32x16_from_bf16(tail)));
}

/* sum[t][lane] += the chunk's products for n_t rows of x; = where the chunk is the first one. */
SIMD_INLINE void wide_add(const wide *c, double (*x)[WIDE_K], int steps, int n_t, bool first, lane_sums *sum)
{
    for (int lane = 0; lane < KRN_LANES; lane++) {
        f64x16 acc[WIDE_T];
        SIMD_UNROLL
        for (int t = 0; t < n_t; t++) acc[t] = first ? f64x16_splat(0.0) : f64x16_load(sum[t][lane]);
        for (int step = 0; step < steps; step++) {
            const f64x16 w = f64x16_load(c->w[lane][step]);
            SIMD_UNROLL
            for (int t = 0; t < n_t; t++)
                acc[t] = f64x16_add_product(acc[t], f64x16_splat(x[t][lane + step * KRN_LANES]), w);
        }
        SIMD_UNROLL
        for (int t = 0; t < n_t; t++) f64x16_store(sum[t][lane], acc[t]);
    }
}
/* The constant number of rows lets each case compile to its own loop. */
static void wide_add_rows(const wide *c, double (*x)[WIDE_K], int steps, int n_t, bool first, lane_sums *sum)
{
    switch (n_t) {
    case 1: wide_add(c, x, steps, 1, first, sum); break;
    case 2: wide_add(c, x, steps, 2, first, sum); break;
#if defined(KRN_SIMD_AVX512)
    case 3: wide_add(c, x, steps, 3, first, sum); break;
    case 4: wide_add(c, x, steps, 4, first, sum); break;
    default: wide_add(c, x, steps, WIDE_T, first, sum); break;
#endif
    }
}

/* The halving tree of lanes16, and the one rounding. */
SIMD_INLINE void wide_join(lane_sums sum, float out[KRN_TILE_N])
{
    for (int half = KRN_LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            f64x16_store(sum[i], f64x16_add(f64x16_load(sum[i]), f64x16_load(sum[i + half])));
    f32x16_store(out, f32x16_from_f64(f64x16_load(sum[0])));
}

SIMD_INLINE void tile_wide(krn_wformat format, const krn_weight *w, int32_t n0, int32_t n, const krn_linear_job *rows,
                           int32_t n_rows, float (*out)[KRN_TILE_N])
{
    const uint8_t *code[KRN_TILE_N], *scale[KRN_TILE_N];
    _Alignas(64) lane_sums sum[WIDE_ROWS];
    tile_rows(format, w, n0, n, code, scale);
    for (int32_t t0 = 0; t0 < n_rows; t0 += WIDE_ROWS) {
        const int32_t end = n_rows - t0 < WIDE_ROWS ? n_rows - t0 : WIDE_ROWS;
        for (int32_t k = 0; k < w->k; k += WIDE_K) {
            const int n_k = w->k - k < WIDE_K ? w->k - k : WIDE_K;
            wide c;
            wide_decode(format, code, scale, k, n_k, &c);
            for (int32_t t = 0; t < end; t += WIDE_T) {
                const int n_t = end - t < WIDE_T ? end - t : WIDE_T;
                _Alignas(64) double x[WIDE_T][WIDE_K];
                for (int i = 0; i < n_t; i++) wide_row(rows[t0 + t + i].x, k, n_k, x[i]);
                wide_add_rows(&c, x, (n_k + KRN_LANES - 1) / KRN_LANES, n_t, k == 0, sum + t);
            }
        }
        for (int32_t t = 0; t < end; t++) wide_join(sum[t], out[t0 + t]);
    }
}

/* ---- lanes ---- */

/* Rows of x and outputs summed at once: what the registers hold. More rows of x than one are taken LANES_T at a time. */
#if defined(KRN_SIMD_AVX512)
enum { LANES_T = 5, LANES_N = 4 };
#else
enum { LANES_T = 5, LANES_N = 1 };
#endif

/* The operands of up to LANES_T x LANES_N dot products. */
typedef struct lanes_in {
    const uint8_t *w[LANES_N]; /* of any alignment */
    const bf16 *x[LANES_T];
    int32_t k;
} lanes_in;

/* The last, short step of K: both operands padded with zeros, as above. */
typedef struct lanes_tail { bf16 x[LANES_T][KRN_LANES], w[LANES_N][KRN_LANES]; } lanes_tail;
SIMD_INLINE lanes_in lanes_pad(const lanes_in *in, int n_t, int32_t k, lanes_tail *tail)
{
    lanes_in padded = *in;
    memset(tail, 0, sizeof *tail);
    for (int t = 0; t < n_t; t++) {
        memcpy(tail->x[t], in->x[t] + k, (size_t)(in->k - k) * sizeof(bf16));
        padded.x[t] = tail->x[t];
    }
    for (int j = 0; j < LANES_N; j++) {
        memcpy(tail->w[j], in->w[j] + 2 * (int64_t)k, (size_t)(in->k - k) * sizeof(bf16));
        padded.w[j] = (const uint8_t *)tail->w[j];
    }
    return padded;
}

SIMD_INLINE void lanes_step(const lanes_in *in, int n_t, int32_t k, f32x16 acc[LANES_T][LANES_N])
{
    f32x16 x[LANES_T];
    SIMD_UNROLL
    for (int t = 0; t < n_t; t++) x[t] = f32x16_from_bf16(in->x[t] + k);
    SIMD_UNROLL
    for (int j = 0; j < LANES_N; j++) {
        f32x16 w = f32x16_from_bf16(in->w[j] + 2 * (int64_t)k);
        SIMD_UNROLL
        for (int t = 0; t < n_t; t++) acc[t][j] = f32x16_add(acc[t][j], f32x16_mul(x[t], w));
    }
}
SIMD_INLINE void lanes_sum(const lanes_in *in, int n_t, float sum[LANES_T][LANES_N])
{
    f32x16 acc[LANES_T][LANES_N];
    SIMD_UNROLL
    for (int t = 0; t < n_t; t++)
        SIMD_UNROLL
        for (int j = 0; j < LANES_N; j++) acc[t][j] = f32x16_splat(0.0f);
    int32_t k = 0;
    for (; k + KRN_LANES <= in->k; k += KRN_LANES) lanes_step(in, n_t, k, acc);
    if (k < in->k) {
        lanes_tail tail;
        lanes_in padded = lanes_pad(in, n_t, k, &tail);
        lanes_step(&padded, n_t, 0, acc);
    }
    SIMD_UNROLL
    for (int t = 0; t < n_t; t++)
        SIMD_UNROLL
        for (int j = 0; j < LANES_N; j++) sum[t][j] = f32x16_sum(acc[t][j]);
}

/* Walks a tile in register-sized pieces. Short pieces repeat their last row or output: computed, not used. */
static void tile_lanes(const krn_weight *w, int32_t n0, int32_t n, const krn_linear_job *rows, int32_t n_rows,
                       float (*out)[KRN_TILE_N])
{
    for (int32_t r = 0; r < n; r += LANES_N) {
        lanes_in in = { .k = w->k };
        for (int j = 0; j < LANES_N; j++) in.w[j] = krn_weight_row(w, n0 + (r + j < n ? r + j : n - 1));
        for (int32_t t = 0; t < n_rows; t += LANES_T) {
            const int live = n_rows - t < LANES_T ? (int)(n_rows - t) : LANES_T;
            float sum[LANES_T][LANES_N];
            for (int i = 0; i < LANES_T; i++) in.x[i] = rows[t + (i < live ? i : live - 1)].x;
            if (live == 1) lanes_sum(&in, 1, sum);
            else lanes_sum(&in, LANES_T, sum);
            for (int i = 0; i < live; i++)
                for (int j = 0; j < LANES_N && r + j < n; j++) out[t + i][r + j] = sum[i][j];
        }
    }
}

/* ---- the table ---- */

/* The constant format lets each case compile to its own loop. */
static void tile_blocked(const krn_weight *w, int32_t n0, int32_t n, const krn_linear_job *rows, int32_t n_rows,
                         float (*out)[KRN_TILE_N])
{
    switch (w->format) {
    case KRN_W_FP8: tile_blocks(KRN_W_FP8, w, n0, n, rows, n_rows, out); break;
    case KRN_W_FP4: tile_blocks(KRN_W_FP4, w, n0, n, rows, n_rows, out); break;
    case KRN_W_BF16: tile_lanes(w, n0, n, rows, n_rows, out); break;
    case KRN_W_F32: tile_wide(KRN_W_F32, w, n0, n, rows, n_rows, out); break;
    case KRN_W_EXL3: break; /* kernels/exl3_ref.c */
    }
}
static void tile_f64(const krn_weight *w, int32_t n0, int32_t n, const krn_linear_job *rows, int32_t n_rows,
                     float (*out)[KRN_TILE_N])
{
    switch (w->format) {
    case KRN_W_FP8: tile_wide(KRN_W_FP8, w, n0, n, rows, n_rows, out); break;
    case KRN_W_FP4: tile_wide(KRN_W_FP4, w, n0, n, rows, n_rows, out); break;
    case KRN_W_BF16: tile_wide(KRN_W_BF16, w, n0, n, rows, n_rows, out); break;
    case KRN_W_F32: tile_wide(KRN_W_F32, w, n0, n, rows, n_rows, out); break;
    case KRN_W_EXL3: break; /* kernels/exl3_ref.c */
    }
}

static void decode_row(const krn_weight *w, int32_t n0, float *out)
{
    const uint8_t *row = krn_weight_row(w, n0);
    if (w->format == KRN_W_F32) {
        memcpy(out, row, (size_t)w->k * sizeof(float));
    } else if (w->format == KRN_W_BF16) {
        for (int32_t k = 0; k < w->k; k++) out[k] = f32_from_bf16(get_u16(row + 2 * (int64_t)k));
    } else {
        const uint8_t *scale = krn_weight_scale_row(w, n0);
        for (int32_t k = 0; k < w->k; k += KRN_LANES)
            f32x16_store(out + k, f32x16_mul(w->format == KRN_W_FP8 ? f32x16_from_e4m3(row + k)
                                                                    : f32x16_from_e2m1(row + k / 2),
                                             f32x16_splat(f32_from_e8m0(scale[k / GROUP]))));
    }
}

#if defined(KRN_SIMD_AVX512)
const krn_loops KRN_LOOPS_AVX512 = { tile_blocked, tile_f64, decode_row };
#elif defined(KRN_SIMD_AVX2)
const krn_loops KRN_LOOPS_AVX2 = { tile_blocked, tile_f64, decode_row };
#else
const krn_loops KRN_LOOPS_SCALAR = { tile_blocked, tile_f64, decode_row };
#endif
