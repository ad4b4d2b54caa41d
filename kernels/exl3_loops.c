#include "kernels/exl3_loops.h"

#include "base/mem.h"

enum {
    BLOCK = FMT_EXL3_BLOCK,
    TILE = FMT_EXL3_TILE,
    GROUPS = 8,                                  /* of 32 positions: `bits` words of the stream each */
    LANES = KRN_EXL3_STRIP_TILES * GROUPS,       /* 8 t + i is group i of tile t */
};

/* ---- decode ---- */

/* f32 to the nearest fp16, for numbers that are 0 or 2^-14 and more in size, or need no rounding. */
static inline float fp16_normal(float v)
{
    const uint32_t u = f32_bits(v);
    return f32_from_bits((u + 0xfff + (u >> 13 & 1)) & ~0x1fffu);
}

/* fmt_exl3_value as f32. Both sums are exact in f32; of two halves it is a multiple of 2^-13, of mul1 of 2^-18, so that
 * fp16 holds exactly what lies below its smallest normal number. */
static inline float value_mul1(uint32_t state)
{
    uint32_t x = state * 0x83dcd12du;
    x = (x & 0x00ff00ff) + (x >> 8 & 0x00ff00ff);
    const int32_t bytes = (int32_t)((x & 0xffff) + (x >> 16));
    return fp16_normal((float)(1024 + bytes) * 0x1.bb8p-8f + -0x1.4c4p+3f);
}
static inline float half_normal(uint32_t h) /* an fp16 of normal size */
{
    return f32_from_bits(((h & 0x8000) << 16) + ((h & 0x7fff) << 13) + (112u << 23));
}
static inline float value_halves(uint32_t state, uint32_t multiplier, uint32_t add)
{
    const uint32_t x = ((state * multiplier + add) & 0x8fff8fff) ^ 0x3b603b60;
    return fp16_normal(half_normal(x & 0xffff) + half_normal(x >> 16));
}

/* The states of position j of every group: the 16 bits that end before bit (j + 1) bits of the group's words. Row 0 of
 * `word` is the last word of the group before. */
static inline void states(uint32_t (*word)[LANES], int32_t j, int32_t bits, uint32_t state[LANES])
{
    const int32_t begin = (j + 1) * bits + 16, r = begin % 32; /* counted from row 0 */
    const uint32_t *first = word[begin / 32];
    if (r <= 16) {
        for (int n = 0; n < LANES; n++) state[n] = first[n] >> (16 - r) & 0xffff;
    } else {
        const uint32_t *next = word[begin / 32 + 1];
        for (int n = 0; n < LANES; n++) state[n] = (first[n] << (r - 16) | next[n] >> (48 - r)) & 0xffff;
    }
}

static void decode(const uint8_t *tiles, int32_t bits, fmt_exl3_codebook c, krn_exl3_strip w)
{
    uint32_t word[FMT_EXL3_BITS_MAX + 1][LANES];
    for (int t = 0; t < KRN_EXL3_STRIP_TILES; t++)
        for (int i = 0; i < GROUPS; i++)
            for (int32_t b = 0; b < bits; b++) {
                const uint32_t v = get_u32(tiles + 4 * ((t * GROUPS + i) * bits + b));
                word[b + 1][t * GROUPS + i] = v;
                if (b == bits - 1) word[0][t * GROUPS + (i + 1) % GROUPS] = v; /* the stream is a circle */
            }
    for (int32_t j = 0; j < 32; j++) {
        /* fmt_exl3_place of position 32 i + j: output i + 8 h of this row. */
        const int32_t row = 2 * (j / 8) + (j & 1) + 8 * (j >> 1 & 1), h = j >> 2 & 1;
        uint32_t state[LANES];
        float *out = w[row] + h * LANES;
        states(word, j, bits, state);
        switch (c) {
        case FMT_EXL3_MUL1:
            for (int n = 0; n < LANES; n++) out[n] = value_mul1(state[n]);
            break;
        case FMT_EXL3_MCG:
            for (int n = 0; n < LANES; n++) out[n] = value_halves(state[n], 0xcbac1fed, 0);
            break;
        default:
            for (int n = 0; n < LANES; n++) out[n] = value_halves(state[n], 89226354, 64248484);
            break;
        }
    }
}

/* ---- transforms ---- */

/* Strides 1 to 8 mix the 16 elements of a run, strides 16 to 64 the 8 runs: the first are taken over [16][8], where the
 * runs stand side by side, so that both halves are loops over neighbours. */
#define BUTTERFLY(name, type)                                                                                    \
    static inline __attribute__((always_inline)) void stages_##name(type *v, int n, int lanes) /* [n][lanes] */ \
    {                                                                                                            \
        for (int stride = 1; stride < n; stride *= 2)                                                            \
            for (int first = 0; first < n; first += 2 * stride) {                                                \
                type *p = v + first * lanes, *q = p + stride * lanes;                                            \
                _Pragma("omp simd")                                                                              \
                for (int i = 0; i < stride * lanes; i++) {                                                       \
                    const type a = p[i], b = q[i];                                                               \
                    p[i] = a + b;                                                                                \
                    q[i] = a - b;                                                                                \
                }                                                                                                \
            }                                                                                                    \
    }                                                                                                            \
    static void butterfly_##name(type v[BLOCK])                                                                  \
    {                                                                                                            \
        enum { RUN = 16, RUNS = BLOCK / RUN };                                                                   \
        type side[BLOCK];                                                                                        \
        for (int i = 0; i < RUN; i++)                                                                            \
            for (int r = 0; r < RUNS; r++) side[i * RUNS + r] = v[r * RUN + i];                                  \
        stages_##name(side, RUN, RUNS);                                                                          \
        for (int r = 0; r < RUNS; r++)                                                                           \
            for (int i = 0; i < RUN; i++) v[r * RUN + i] = side[i * RUNS + r];                                   \
        stages_##name(v, RUNS, RUN);                                                                             \
    }
BUTTERFLY(f32, float)
BUTTERFLY(f64, double)

static void input_f32(const bf16 *x, const uint16_t *suh, int32_t lo, int32_t hi, float z[BLOCK])
{
    for (int i = 0; i < BLOCK; i++) z[i] = 0;
    for (int32_t i = lo; i < hi; i++) z[i] = f32_from_bf16(x[i]) * f32_from_fp16(suh[i]);       /* R1 */
    butterfly_f32(z);                                                                           /* R2 */
    for (int i = 0; i < BLOCK; i++) z[i] *= KRN_EXL3_NORM;                                      /* R3 */
}

static void input_f64(const bf16 *x, const uint16_t *suh, int32_t lo, int32_t hi, double z[BLOCK])
{
    for (int i = 0; i < BLOCK; i++) z[i] = 0;
    for (int32_t i = lo; i < hi; i++) z[i] = (double)f32_from_bf16(x[i]) * (double)f32_from_fp16(suh[i]);
    butterfly_f64(z);
}

static void round_fp16(float z[BLOCK], float factor)
{
    for (int i = 0; i < BLOCK; i++) z[i] = f32_from_fp16(fp16_from_f32(z[i] * factor));         /* R4 */
}

/* ---- products ---- */

static void add_f32(krn_exl3_strip w, const float a[TILE], float sum[BLOCK])
{
#pragma omp simd
    for (int n = 0; n < BLOCK; n++) {
        float s = sum[n];
#pragma GCC unroll 16
        for (int k = 0; k < TILE; k++) s += a[k] * w[k][n];
        sum[n] = s;
    }
}

static void add_f64(krn_exl3_strip w, const double a[TILE], double sum[BLOCK])
{
#pragma omp simd
    for (int n = 0; n < BLOCK; n++) {
        double s = sum[n];
#pragma GCC unroll 16
        for (int k = 0; k < TILE; k++) s += a[k] * (double)w[k][n];
        sum[n] = s;
    }
}

static void add_size(krn_exl3_strip w, const float a[TILE], double sum[BLOCK], double size[BLOCK])
{
#pragma omp simd
    for (int n = 0; n < BLOCK; n++) {
        double s = sum[n], larger = size[n];
#pragma GCC unroll 16
        for (int k = 0; k < TILE; k++) {
            const double product = (double)a[k] * (double)w[k][n];
            s += product;
            larger += fabs(product);
        }
        sum[n] = s;
        size[n] = larger;
    }
}

static void add_square(krn_exl3_strip w, const float a[TILE], double square[BLOCK])
{
#pragma omp simd
    for (int n = 0; n < BLOCK; n++) {
        double s = square[n];
#pragma GCC unroll 16
        for (int k = 0; k < TILE; k++) {
            const double product = (double)a[k] * (double)w[k][n];
            s += product * product;
        }
        square[n] = s;
    }
}

#if defined(KRN_SIMD_AVX512)
#define LOOPS KRN_EXL3_AVX512
#elif defined(KRN_SIMD_AVX2)
#define LOOPS KRN_EXL3_AVX2
#else
#define LOOPS KRN_EXL3_SCALAR
#endif
const krn_exl3_loops LOOPS = { decode,        input_f32, input_f64, round_fp16, butterfly_f32,
                               butterfly_f64, add_f32,   add_f64,   add_size,   add_square };
