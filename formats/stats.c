/* fmt_stats_of and fmt_stats_hash_of: range, rms and the counts of special values, one pass.
 *
 * Blocks of elements are brought to f32 bits, which holds every float type here but F64, and one loop counts them. Sums are
 * doubles in eight fixed lanes, so the result does not depend on the machine. */
#include "formats/number.h"
#include "formats/tape.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/cpu.h"
#include "base/mem.h"

enum { BLOCK = 1024, LANES = 8 };

#define ALWAYS_INLINE inline __attribute__((always_inline)) /* so that it is built for its caller's machine */

typedef struct sums {
    double square[LANES];
    int32_t min, max; /* keys, see key_of */
    uint64_t n_nan, n_inf, n_zero, n_denormal;
} sums;

/* Sign-magnitude bits as an integer that orders like the value: negative ones have their magnitude flipped. It is its own
 * inverse. */
static inline int32_t key_of(uint32_t u) { return (int32_t)(u ^ ((uint32_t)((int32_t)u >> 31) & 0x7fffffff)); }

/* Defines NAME(s, u): counts BLOCK floats given as their bits, and sets the NaN among them to 0 in place, for the squares.
 * INF: bits of infinity; NORMAL: of the smallest normal. KEY_TO_F32 widens a key. Masks, not branches, and counters of the
 * element's own width: the compiler vectorizes this as it stands. */
#define DEFINE_COUNT(NAME, INT, UINT, MAX, INF, NORMAL, KEY_TO_F32)                                          \
    static ALWAYS_INLINE void NAME(sums *s, UINT *u)                                                         \
    {                                                                                                        \
        INT n_nan = 0, n_inf = 0, n_zero = 0, n_small = 0, min = MAX, max = -MAX - 1;                        \
        for (int i = 0; i < BLOCK; i++) {                                                                    \
            INT bits = (INT)u[i], mag = bits & MAX, nan = (INT) - (mag > INF);                               \
            INT key = (bits ^ ((INT)(bits >> (8 * sizeof(INT) - 1)) & MAX)) & ~nan;                          \
            INT low = key | (nan & MAX), high = key | (nan & (-MAX - 1));                                    \
            n_nan -= nan;                                                                                    \
            n_inf += mag == INF;                                                                             \
            n_zero += mag == 0;                                                                              \
            n_small += mag < NORMAL;                                                                         \
            min = low < min ? low : min;                                                                     \
            max = high > max ? high : max;                                                                   \
            u[i] = (UINT)(bits & ~nan);                                                                      \
        }                                                                                                    \
        if (n_nan < BLOCK) {                                                                                 \
            int32_t lowest = KEY_TO_F32(min), highest = KEY_TO_F32(max);                                     \
            if (lowest < s->min) s->min = lowest;                                                            \
            if (highest > s->max) s->max = highest;                                                          \
        }                                                                                                    \
        s->n_nan += (uint64_t)n_nan;                                                                         \
        s->n_inf += (uint64_t)n_inf;                                                                         \
        s->n_zero += (uint64_t)n_zero;                                                                       \
        s->n_denormal += (uint64_t)(n_small - n_zero);                                                       \
    }
#define SAME(key) (key)
#define BF16_KEY(key) key_of((uint32_t)((key) ^ ((key) >> 15 & 0x7fff)) << 16)
DEFINE_COUNT(count_f32, int32_t, uint32_t, INT32_MAX, 0x7f800000, 0x800000, SAME)
DEFINE_COUNT(count_bf16, int16_t, uint16_t, INT16_MAX, 0x7f80, 0x80, BF16_KEY)

/* Defines NAME(s, p): counts BLOCK floats at p, as the above does, with half the work; false, and nothing is counted, when
 * a NaN or an infinity is among them. As unsigned numbers the bits of positive floats rise with their values, and above
 * them lie the negative ones, which fall: the greatest bits are the minimum if any float is negative, else the least ones
 * are; the greatest as signed numbers are the maximum if any is positive, else the least unsigned ones are. */
#define DEFINE_COUNT_FINITE(NAME, INT, UINT, MAX, INF, NORMAL, KEY)                                          \
    static ALWAYS_INLINE bool NAME(sums *s, const uint8_t *p)                                                \
    {                                                                                                        \
        INT n_zero = 0, n_small = 0, top = -MAX - 1;                                                         \
        UINT least = (UINT)-1, greatest = 0;                                                                 \
        for (int i = 0; i < BLOCK; i++, p += sizeof(UINT)) {                                                 \
            UINT u;                                                                                          \
            memcpy(&u, p, sizeof u);                                                                         \
            INT mag = u & MAX;                                                                               \
            n_zero += mag == 0;                                                                              \
            n_small += mag < NORMAL;                                                                         \
            top = (INT)u > top ? (INT)u : top;                                                               \
            least = u < least ? u : least;                                                                   \
            greatest = u > greatest ? u : greatest;                                                          \
        }                                                                                                    \
        if (top >= INF || greatest >= (UINT)(MAX + 1u + INF)) return false;                                  \
        int32_t lowest = KEY(greatest > MAX ? greatest : least), highest = KEY(least > MAX ? least : (UINT)top); \
        if (lowest < s->min) s->min = lowest;                                                                \
        if (highest > s->max) s->max = highest;                                                              \
        s->n_zero += (uint64_t)n_zero;                                                                       \
        s->n_denormal += (uint64_t)(n_small - n_zero);                                                       \
        return true;                                                                                         \
    }
#define BF16_BITS_KEY(u) key_of((uint32_t)(u) << 16)
DEFINE_COUNT_FINITE(count_finite_f32, int32_t, uint32_t, INT32_MAX, 0x7f800000, 0x800000, key_of)
DEFINE_COUNT_FINITE(count_finite_bf16, int16_t, uint16_t, INT16_MAX, 0x7f80, 0x80, BF16_BITS_KEY)

static uint32_t f32_from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, mag = h & 0x7fff;
    if (mag >= 0x7c00) return sign | 0x7f800000 | (mag & 0x3ff) << 13;
    if (mag < 0x400) return sign | f32_bits((float)mag * 0x1p-24f);
    return sign | ((mag << 13) + ((127 - 15) << 23));
}

/* n elements at p to f32 bits, which hold them exactly. */
static ALWAYS_INLINE void load(fmt_dtype d, const uint8_t *p, int n, uint32_t *u)
{
    switch (d) {
    case FMT_DTYPE_F16:
        for (int i = 0; i < n; i++) u[i] = f32_from_f16(get_u16(p + 2 * i));
        return;
    case FMT_DTYPE_F8:
        for (int i = 0; i < n; i++) u[i] = f32_bits(FMT_E4M3_VALUE[p[i]]);
        return;
    case FMT_DTYPE_F8_E5M2: /* F16's upper half */
        for (int i = 0; i < n; i++) u[i] = f32_from_f16((uint16_t)(p[i] << 8));
        return;
    case FMT_DTYPE_E8M0:
        for (int i = 0; i < n; i++) u[i] = f32_bits(f32_from_e8m0(p[i]));
        return;
    default:
        CHECK(d == FMT_DTYPE_F32);
        memcpy(u, p, (size_t)n * 4);
    }
}

static uint64_t count_denormals(fmt_dtype d, const uint8_t *p, int n)
{
    uint64_t count = 0;
    for (int i = 0; i < n; i++) {
        uint32_t mag = d == FMT_DTYPE_F16 ? get_u16(p + 2 * i) & 0x7fffu : p[i] & 0x7fu;
        uint32_t first_normal = d == FMT_DTYPE_F16 ? 0x400 : d == FMT_DTYPE_F8 ? 8 : d == FMT_DTYPE_F8_E5M2 ? 4 : 0;
        count += mag && mag < first_normal;
    }
    return count;
}

/* A block of elements, NaN and padding as 0. */
typedef union block {
    uint32_t u[BLOCK]; /* f32 bits */
    uint16_t h[BLOCK]; /* of BF16: its own */
} block;

/* Counts n <= BLOCK elements at p. Returns where they stand as in a block, ready for the squares: p itself, or b. */
static ALWAYS_INLINE const void *count(sums *s, fmt_dtype d, const uint8_t *p, int n, block *b)
{
    if (n == BLOCK && d == FMT_DTYPE_BF16 && count_finite_bf16(s, p)) return p;
    if (n == BLOCK && d == FMT_DTYPE_F32 && count_finite_f32(s, p)) return p;
    if (d == FMT_DTYPE_BF16) {
        memcpy(b->h, p, (size_t)n * 2);
        for (int i = n; i < BLOCK; i++) b->h[i] = 0x7fc0;
        count_bf16(s, b->h);
    } else {
        load(d, p, n, b->u);
        for (int i = n; i < BLOCK; i++) b->u[i] = 0x7fc00000;
        uint64_t before = s->n_denormal;
        count_f32(s, b->u);
        if (d != FMT_DTYPE_F32) s->n_denormal = before + count_denormals(d, p, n); /* in the type's own grid */
    }
    s->n_nan -= (uint64_t)(BLOCK - n);
    return b;
}

/* One block: counts, and element i's square added to lane i % LANES. A float's square is exact in a double, so it does not
 * matter whether multiplying and adding is one operation. */
static void take_plain(sums *s, fmt_dtype d, const uint8_t *p, int n)
{
    block b;
    const uint8_t *at = count(s, d, p, n, &b);
    for (int i = 0; i < BLOCK; i += LANES)
        for (int l = 0; l < LANES; l++) {
            uint32_t u;
            if (d == FMT_DTYPE_BF16) {
                uint16_t h;
                memcpy(&h, at + 2 * (i + l), sizeof h);
                u = (uint32_t)h << 16;
            } else {
                memcpy(&u, at + 4 * (i + l), sizeof u);
            }
            double v = f32_from_bits(u);
            s->square[l] += v * v;
        }
}

#if defined(__x86_64__)
#define AVX2 __attribute__((target("avx2,fma")))

AVX2 static void square_f32_avx2(sums *s, const uint8_t *p)
{
    __m256d low = _mm256_loadu_pd(s->square), high = _mm256_loadu_pd(s->square + 4);
    for (int i = 0; i < BLOCK; i += LANES, p += 4 * LANES) {
        __m256d x = _mm256_cvtps_pd(_mm_loadu_ps((const float *)p));
        __m256d y = _mm256_cvtps_pd(_mm_loadu_ps((const float *)(p + 16)));
        low = _mm256_fmadd_pd(x, x, low);
        high = _mm256_fmadd_pd(y, y, high);
    }
    _mm256_storeu_pd(s->square, low);
    _mm256_storeu_pd(s->square + 4, high);
}

/* Even elements and odd ones apart: each is the upper half of an f32 after a shift or a mask, cheaper than widening. */
AVX2 static void square_bf16_avx2(sums *s, const uint8_t *p)
{
    double *q = s->square;
    __m256d even = _mm256_setr_pd(q[0], q[2], q[4], q[6]), odd = _mm256_setr_pd(q[1], q[3], q[5], q[7]);
    for (int i = 0; i < BLOCK; i += LANES, p += 2 * LANES) {
        __m128i h = _mm_loadu_si128((const __m128i *)p);
        __m256d x = _mm256_cvtps_pd(_mm_castsi128_ps(_mm_slli_epi32(h, 16)));
        __m256d y = _mm256_cvtps_pd(_mm_castsi128_ps(_mm_and_si128(h, _mm_set1_epi32((int)0xffff0000))));
        even = _mm256_fmadd_pd(x, x, even);
        odd = _mm256_fmadd_pd(y, y, odd);
    }
    __m256d pairs04 = _mm256_unpacklo_pd(even, odd), pairs26 = _mm256_unpackhi_pd(even, odd);
    _mm256_storeu_pd(q, _mm256_permute2f128_pd(pairs04, pairs26, 0x20));
    _mm256_storeu_pd(q + 4, _mm256_permute2f128_pd(pairs04, pairs26, 0x31));
}

AVX2 static void take_avx2(sums *s, fmt_dtype d, const uint8_t *p, int n)
{
    block b;
    const uint8_t *at = count(s, d, p, n, &b);
    if (d == FMT_DTYPE_BF16) square_bf16_avx2(s, at);
    else square_f32_avx2(s, at);
}
#endif

static void finish(fmt_stats *out, int64_t n, double min, double max, double square)
{
    int64_t counted = n - (int64_t)out->n_nan;
    if (counted == 0) return;
    out->min = min + 0.0; /* -0 becomes 0: equal values give equal bits whatever their order */
    out->max = max + 0.0;
    out->rms = sqrt(square / (double)counted);
}

/* hash: NULL, or where the hash of the bytes goes, taken block by block. */
static void stats_small_float(const fmt_tensor *t, int64_t n, fmt_stats *out, uint64_t *hash)
{
    void (*take_block)(sums *, fmt_dtype, const uint8_t *, int) = take_plain;
#if defined(__x86_64__)
    if (cpu_has_avx2()) take_block = take_avx2;
#endif
    sums s = { .min = INT32_MAX, .max = INT32_MIN };
    fmt_hash_run run = fmt_hash_begin();
    const uint8_t *p = t->data;
    const size_t size = fmt_dtype_bytes(t->dtype);
    for (; n >= BLOCK; n -= BLOCK, p += BLOCK * size) {
        if (hash) fmt_hash_add(&run, p, BLOCK * size);
        take_block(&s, t->dtype, p, BLOCK);
    }
    if (n) take_block(&s, t->dtype, p, (int)n);
    if (hash) {
        size_t left = (size_t)n * size, whole = left - left % 32;
        if (whole) fmt_hash_add(&run, p, whole);
        *hash = fmt_hash_end(&run, whole ? p + whole : p, left - whole);
    }
    double square = 0;
    for (int l = 0; l < LANES; l++) square += s.square[l];
    out->n_nan = s.n_nan;
    out->n_inf = s.n_inf;
    out->n_zero = s.n_zero;
    out->n_denormal = s.n_denormal;
    finish(out, fmt_tensor_elems(t), f32_from_bits((uint32_t)key_of((uint32_t)s.min)),
           f32_from_bits((uint32_t)key_of((uint32_t)s.max)), square);
}

static void stats_f64(const fmt_tensor *t, int64_t n, fmt_stats *out)
{
    double min = INFINITY, max = -INFINITY, square = 0;
    for (int64_t i = 0; i < n; i++) {
        double v;
        memcpy(&v, (const uint8_t *)t->data + 8 * i, 8);
        switch (fpclassify(v)) {
        case FP_NAN: out->n_nan++; continue;
        case FP_INFINITE: out->n_inf++; break;
        case FP_ZERO: out->n_zero++; break;
        case FP_SUBNORMAL: out->n_denormal++; break;
        default: break;
        }
        if (v < min) min = v;
        if (v > max) max = v;
        square += v * v;
    }
    finish(out, n, min, max, square);
}

/* Integers: range and zeros. */
#define STATS_INT(type)                                                                   \
    do {                                                                                  \
        type min = 0, max = 0;                                                            \
        uint64_t n_zero = 0;                                                              \
        for (int64_t i = 0; i < n; i++) {                                                 \
            type v;                                                                       \
            memcpy(&v, (const uint8_t *)t->data + sizeof v * (uint64_t)i, sizeof v);      \
            min = i == 0 || v < min ? v : min;                                            \
            max = i == 0 || v > max ? v : max;                                            \
            n_zero += v == 0;                                                             \
        }                                                                                 \
        out->min = (double)min;                                                           \
        out->max = (double)max;                                                           \
        out->n_zero = n_zero;                                                             \
    } while (0)

/* hash is NULL or the type is one of stats_small_float's. */
static void stats_of(const fmt_tensor *t, fmt_stats *out, uint64_t *hash)
{
    int64_t n = fmt_tensor_elems(t);
    *out = (fmt_stats){ 0 };
    switch (t->dtype) {
    case FMT_DTYPE_I8: STATS_INT(int8_t); return;
    case FMT_DTYPE_U8: case FMT_DTYPE_BOOL: STATS_INT(uint8_t); return;
    case FMT_DTYPE_I16: STATS_INT(int16_t); return;
    case FMT_DTYPE_U16: STATS_INT(uint16_t); return;
    case FMT_DTYPE_I32: STATS_INT(int32_t); return;
    case FMT_DTYPE_U32: STATS_INT(uint32_t); return;
    case FMT_DTYPE_I64: STATS_INT(int64_t); return;
    case FMT_DTYPE_U64: STATS_INT(uint64_t); return;
    case FMT_DTYPE_F64: stats_f64(t, n, out); return;
    default: stats_small_float(t, n, out, hash); return;
    }
}

void fmt_stats_of(const fmt_tensor *t, fmt_stats *out) { stats_of(t, out, NULL); }

void fmt_stats_hash_of(const fmt_tensor *t, fmt_stats *out, uint64_t *hash)
{
    bool large = t->dtype == FMT_DTYPE_F32 || t->dtype == FMT_DTYPE_BF16; /* a model's large values are */
    if (!large) *hash = fmt_hash64(t->data, fmt_tensor_bytes(t));
    stats_of(t, out, large ? hash : NULL);
}
