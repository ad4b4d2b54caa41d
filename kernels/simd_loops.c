/* Two kernels do every linear:
 *
 *   blocks   FP8 and FP4, blocked. A vector holds 16 outputs. The codes of a chunk of K are transposed and decoded once,
 *            [k][output], and serve all rows of x; the contract's lanes and tree are then plain vertical arithmetic.
 *   lanes    everything else. A vector holds 16 consecutive k, the contract's lanes16; a few rows of x times a few outputs
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

/* Decodes blocks [block, block + n_blocks) of 16 rows. */
SIMD_INLINE void chunk_decode(krn_wformat format, const uint8_t *const code[KRN_TILE_N],
                              const uint8_t *const scale[KRN_TILE_N], int32_t block, int n_blocks, chunk *c)
{
    const int block_bytes = format == KRN_W_FP8 ? GROUP : GROUP / 2, bytes = n_blocks * block_bytes;
    _Alignas(64) uint8_t column[SIMD_BYTES][KRN_TILE_N], padded[KRN_TILE_N][SIMD_BYTES];
    const uint8_t *row[KRN_TILE_N];
    for (int r = 0; r < KRN_TILE_N; r++) {
        row[r] = code[r] + (int64_t)block * block_bytes;
        __builtin_prefetch((const void *)((uintptr_t)row[r] + PREFETCH_BYTES));
    }
    if (bytes < SIMD_BYTES)
        for (int r = 0; r < KRN_TILE_N; r++) {
            memset(padded[r], 0, SIMD_BYTES);
            memcpy(padded[r], row[r], (size_t)bytes);
            row[r] = padded[r];
        }
    simd_transpose(row, column);

    for (int i = 0; i < bytes; i++) {
        const uint8_t *p = column[simd_column(i)];
        if (format == KRN_W_FP8) {
            f32x16_store(c->w[i], f32x16_from_e4m3(p));
        } else {
            f32x16_store(c->w[2 * i], f32x16_from_e2m1_low(p));
            f32x16_store(c->w[2 * i + 1], f32x16_from_e2m1_high(p));
        }
    }
    for (int b = 0; b < n_blocks; b++) {
        uint8_t s[KRN_TILE_N];
        for (int r = 0; r < KRN_TILE_N; r++) s[r] = scale[r][block + b];
        f32x16_store(c->scale[b], f32x16_from_e8m0(s));
    }
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

SIMD_INLINE void tile_blocks(krn_wformat format, const krn_weight *w, int32_t n0, int32_t n, const krn_linear_job *rows,
                             int32_t n_rows, float (*out)[KRN_TILE_N])
{
    const int per_chunk = format == KRN_W_FP8 ? CHUNK_BLOCKS / 2 : CHUNK_BLOCKS;
    const uint8_t *code[KRN_TILE_N], *scale[KRN_TILE_N];
    for (int r = 0; r < KRN_TILE_N; r++) {
        int32_t row = n0 + (r < n ? r : n - 1); /* a short tile repeats its last row: computed, not used */
        code[r] = krn_weight_row(w, row);
        scale[r] = krn_weight_scale_row(w, row);
    }
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

/* ---- lanes ---- */

/* Rows of x and outputs summed at once: what the registers hold. More rows of x than one are taken LANES_T at a time. */
#if defined(KRN_SIMD_AVX512)
enum { LANES_T = 5, LANES_N_F32 = 4, LANES_N_F64 = 2 };
#else
enum { LANES_T = 5, LANES_N_F32 = 1, LANES_N_F64 = 1 };
#endif
enum { LANES_N_MAX = 4 };

/* The operands of up to LANES_T x LANES_N_MAX dot products. */
typedef struct lanes_in {
    const uint8_t *w[LANES_N_MAX], *scale[LANES_N_MAX];
    const bf16 *x[LANES_T];
    int32_t k;
} lanes_in;

SIMD_INLINE int64_t format_bytes(krn_wformat format, int64_t k) /* of k columns */
{
    return format == KRN_W_FP4 ? k / 2 : format == KRN_W_FP8 ? k : format == KRN_W_BF16 ? 2 * k : 4 * k;
}
/* Columns [k, k + 16) of a row, without scale. */
SIMD_INLINE f32x16 weight_load(krn_wformat format, const uint8_t *row, int32_t k)
{
    const uint8_t *p = row + format_bytes(format, k);
    switch (format) {
    case KRN_W_FP8: return f32x16_from_e4m3(p);
    case KRN_W_FP4: return f32x16_from_e2m1(p);
    case KRN_W_BF16: return f32x16_from_bf16(p);
    default: return f32x16_load(p);
    }
}
SIMD_INLINE double f64_from_e8m0(uint8_t b)
{
    if (b == FMT_E8M0_NAN) return NAN;
    uint64_t bits = (uint64_t)(b + 1023 - FMT_E8M0_BIAS) << 52;
    double v;
    memcpy(&v, &bits, sizeof v);
    return v;
}
/* The last, short step of K: both operands padded with zeros. Adding +0 changes no lane: a sum that starts at +0 is
 * never -0. */
typedef struct lanes_tail {
    bf16 x[LANES_T][KRN_LANES];
    _Alignas(64) uint8_t w[LANES_N_MAX][4 * KRN_LANES];
} lanes_tail;
SIMD_INLINE lanes_in lanes_pad(krn_wformat format, const lanes_in *in, int n_t, int n_n, int32_t k, lanes_tail *tail)
{
    lanes_in padded = *in;
    memset(tail, 0, sizeof *tail);
    for (int t = 0; t < n_t; t++) {
        memcpy(tail->x[t], in->x[t] + k, (size_t)(in->k - k) * sizeof(bf16));
        padded.x[t] = tail->x[t];
    }
    for (int j = 0; j < n_n; j++) {
        memcpy(tail->w[j], in->w[j] + format_bytes(format, k), (size_t)format_bytes(format, in->k - k));
        padded.w[j] = tail->w[j];
    }
    return padded;
}

SIMD_INLINE void step_f32(krn_wformat format, const lanes_in *in, int n_t, int n_n, int32_t k,
                          f32x16 acc[LANES_T][LANES_N_MAX])
{
    f32x16 x[LANES_T];
    SIMD_UNROLL
    for (int t = 0; t < n_t; t++) x[t] = f32x16_from_bf16(in->x[t] + k);
    SIMD_UNROLL
    for (int j = 0; j < n_n; j++) {
        f32x16 w = weight_load(format, in->w[j], k);
        SIMD_UNROLL
        for (int t = 0; t < n_t; t++) acc[t][j] = f32x16_add(acc[t][j], f32x16_mul(x[t], w));
    }
}
SIMD_INLINE void lanes_f32(krn_wformat format, const lanes_in *in, int n_t, int n_n, float sum[LANES_T][LANES_N_MAX])
{
    f32x16 acc[LANES_T][LANES_N_MAX];
    SIMD_UNROLL
    for (int t = 0; t < n_t; t++)
        SIMD_UNROLL
        for (int j = 0; j < n_n; j++) acc[t][j] = f32x16_splat(0.0f);
    int32_t k = 0;
    for (; k + KRN_LANES <= in->k; k += KRN_LANES) step_f32(format, in, n_t, n_n, k, acc);
    if (k < in->k) {
        lanes_tail tail;
        lanes_in padded = lanes_pad(format, in, n_t, n_n, k, &tail);
        step_f32(format, &padded, n_t, n_n, 0, acc);
    }
    SIMD_UNROLL
    for (int t = 0; t < n_t; t++)
        SIMD_UNROLL
        for (int j = 0; j < n_n; j++) sum[t][j] = f32x16_sum(acc[t][j]);
}

SIMD_INLINE void step_f64(krn_wformat format, const lanes_in *in, int n_t, int n_n, int32_t k,
                          f64x16 acc[LANES_T][LANES_N_MAX])
{
    f64x16 w[LANES_N_MAX];
    SIMD_UNROLL
    for (int j = 0; j < n_n; j++) {
        w[j] = f64x16_from_f32(weight_load(format, in->w[j], k));
        if (format == KRN_W_FP8 || format == KRN_W_FP4)
            w[j] = f64x16_mul(w[j], f64x16_splat(f64_from_e8m0(in->scale[j][k / GROUP])));
    }
    SIMD_UNROLL
    for (int t = 0; t < n_t; t++) {
        f64x16 x = f64x16_from_f32(f32x16_from_bf16(in->x[t] + k));
        SIMD_UNROLL
        for (int j = 0; j < n_n; j++) acc[t][j] = f64x16_add_product(acc[t][j], x, w[j]);
    }
}
SIMD_INLINE void lanes_f64(krn_wformat format, const lanes_in *in, int n_t, int n_n, float sum[LANES_T][LANES_N_MAX])
{
    f64x16 acc[LANES_T][LANES_N_MAX];
    SIMD_UNROLL
    for (int t = 0; t < n_t; t++)
        SIMD_UNROLL
        for (int j = 0; j < n_n; j++) acc[t][j] = f64x16_splat(0.0);
    int32_t k = 0;
    for (; k + KRN_LANES <= in->k; k += KRN_LANES) step_f64(format, in, n_t, n_n, k, acc);
    if (k < in->k) {
        lanes_tail tail;
        lanes_in padded = lanes_pad(format, in, n_t, n_n, k, &tail);
        step_f64(format, &padded, n_t, n_n, 0, acc);
    }
    SIMD_UNROLL
    for (int t = 0; t < n_t; t++)
        SIMD_UNROLL
        for (int j = 0; j < n_n; j++) sum[t][j] = (float)f64x16_sum(acc[t][j]);
}

/* Walks a tile in register-sized pieces. Short pieces repeat their last row or output: computed, not used. */
SIMD_INLINE void tile_lanes(krn_wformat format, krn_acc acc, const krn_weight *w, int32_t n0, int32_t n,
                            const krn_linear_job *rows, int32_t n_rows, float (*out)[KRN_TILE_N])
{
    const int n_n = acc == KRN_ACC_F64 ? LANES_N_F64 : LANES_N_F32;
    const bool scaled = format == KRN_W_FP8 || format == KRN_W_FP4;
    for (int32_t r = 0; r < n; r += n_n) {
        lanes_in in = { .k = w->k };
        for (int j = 0; j < n_n; j++) {
            int32_t row = n0 + (r + j < n ? r + j : n - 1);
            in.w[j] = krn_weight_row(w, row);
            in.scale[j] = scaled ? krn_weight_scale_row(w, row) : NULL;
        }
        for (int32_t t = 0; t < n_rows; t += LANES_T) {
            const int live = n_rows - t < LANES_T ? (int)(n_rows - t) : LANES_T;
            float sum[LANES_T][LANES_N_MAX];
            for (int i = 0; i < LANES_T; i++) in.x[i] = rows[t + (i < live ? i : live - 1)].x;
            if (acc == KRN_ACC_F64) {
                if (live == 1) lanes_f64(format, &in, 1, n_n, sum);
                else lanes_f64(format, &in, LANES_T, n_n, sum);
            } else {
                if (live == 1) lanes_f32(format, &in, 1, n_n, sum);
                else lanes_f32(format, &in, LANES_T, n_n, sum);
            }
            for (int i = 0; i < live; i++)
                for (int j = 0; j < n_n && r + j < n; j++) out[t + i][r + j] = sum[i][j];
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
    case KRN_W_BF16: tile_lanes(KRN_W_BF16, KRN_ACC_BLOCKED, w, n0, n, rows, n_rows, out); break;
    case KRN_W_F32: tile_lanes(KRN_W_F32, KRN_ACC_F64, w, n0, n, rows, n_rows, out); break;
    }
}
static void tile_f64(const krn_weight *w, int32_t n0, int32_t n, const krn_linear_job *rows, int32_t n_rows,
                     float (*out)[KRN_TILE_N])
{
    switch (w->format) {
    case KRN_W_FP8: tile_lanes(KRN_W_FP8, KRN_ACC_F64, w, n0, n, rows, n_rows, out); break;
    case KRN_W_FP4: tile_lanes(KRN_W_FP4, KRN_ACC_F64, w, n0, n, rows, n_rows, out); break;
    case KRN_W_BF16: tile_lanes(KRN_W_BF16, KRN_ACC_F64, w, n0, n, rows, n_rows, out); break;
    case KRN_W_F32: tile_lanes(KRN_W_F32, KRN_ACC_F64, w, n0, n, rows, n_rows, out); break;
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
            f32x16_store(out + k, f32x16_mul(w->format == KRN_W_FP8 ? weight_load(KRN_W_FP8, row, k)
                                                                    : weight_load(KRN_W_FP4, row, k),
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
