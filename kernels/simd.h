/* 16-lane vectors for the inner loops of kernels/simd_loops.c, in three builds of one vocabulary.
 *
 * KRN_SIMD_AVX512 or KRN_SIMD_AVX2 selects the intrinsics; with neither, plain C loops, which are the definition: every
 * operation gives the same bits in all three. Products and sums round separately (there is no f32 fused multiply-add
 * here), except f64x16_add_product, whose products are exact in double. Only simd_loops.c and bound_loops.c include it.
 *
 *   f32x16, f64x16     16 lanes of f32, of f64; loads take any alignment
 *   ..._sum            halving tree: lane i += lane i+8, then +4, +2, +1; returns lane 0
 *   simd_transpose     16 rows of SIMD_BYTES bytes -> columns of 16 bytes. The network moves whole registers, so the
 *                      columns come out permuted: column c is at out[simd_column(c)] */
#ifndef KERNELS_SIMD_H
#define KERNELS_SIMD_H

#include "formats/number.h"

#include <stdint.h>
#include <string.h>

/* SIMD_UNROLL goes before loops over registers: an array that is indexed by a variable would live in memory. The plain
 * build leaves both to the compiler: it has no registers to lose. */
#if defined(KRN_SIMD_AVX512) || defined(KRN_SIMD_AVX2)
#define SIMD_INLINE static inline __attribute__((always_inline, unused))
#define SIMD_UNROLL _Pragma("GCC unroll 16")
#else
#define SIMD_INLINE static inline __attribute__((unused))
#define SIMD_UNROLL
#endif

#if defined(KRN_SIMD_AVX512)

#include <immintrin.h>

typedef __m512 f32x16;
typedef struct f64x16 { __m512d lo, hi; } f64x16;

SIMD_INLINE f32x16 f32x16_splat(float v) { return _mm512_set1_ps(v); }
SIMD_INLINE f32x16 f32x16_load(const void *p) { return _mm512_loadu_ps(p); }
SIMD_INLINE void f32x16_store(float *p, f32x16 a) { _mm512_storeu_ps(p, a); }
SIMD_INLINE f32x16 f32x16_add(f32x16 a, f32x16 b) { return _mm512_add_ps(a, b); }
SIMD_INLINE f32x16 f32x16_abs(f32x16 a) { return _mm512_abs_ps(a); }
SIMD_INLINE f32x16 f32x16_mul(f32x16 a, f32x16 b) { return _mm512_mul_ps(a, b); }
SIMD_INLINE float f32x16_sum(f32x16 a)
{
    __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

SIMD_INLINE f32x16 f32x16_from_bf16(const void *p)
{
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
/* An e4m3 code, moved up by 7 bits, is an fp16 whose value is 2^8 too small, subnormals included. The conversion from
 * fp16 takes subnormals at full speed; multiplying f32 subnormals instead would trap into microcode. */
SIMD_INLINE f32x16 f32x16_from_e4m3(const uint8_t *p)
{
    __m128i code = _mm_loadu_si128((const __m128i *)p);
    __m128i magnitude = _mm_and_si128(code, _mm_set1_epi8(0x7f));
    __m256i half = _mm256_and_si256(_mm256_slli_epi16(_mm256_cvtepi8_epi16(code), 7), _mm256_set1_epi16((short)0xbfff));
    half = _mm256_mask_mov_epi16(half, _mm_cmpeq_epi8_mask(magnitude, _mm_set1_epi8(0x7f)), _mm256_set1_epi16(0x7e00));
    return _mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(256.0f));
}
/* Looks up bits 3..0 of each lane. */
SIMD_INLINE f32x16 f32x16_e2m1_lookup(__m512i nibble)
{
    const __m512 table = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f, -1.5f, -2.0f,
                                        -3.0f, -4.0f, -6.0f);
    return _mm512_permutexvar_ps(nibble, table);
}
SIMD_INLINE f32x16 f32x16_from_e2m1(const uint8_t *p)
{
    uint32_t first, second;
    memcpy(&first, p, 4);
    memcpy(&second, p + 4, 4);
    __m512i both = _mm512_mask_set1_epi32(_mm512_set1_epi32((int)first), 0xff00, (int)second);
    return f32x16_e2m1_lookup(_mm512_srlv_epi32(both, _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20,
                                                                         24, 28)));
}
SIMD_INLINE f32x16 f32x16_from_e2m1_low(const uint8_t *p)
{
    return f32x16_e2m1_lookup(_mm512_cvtepu8_epi32(_mm_load_si128((const __m128i *)p)));
}
SIMD_INLINE f32x16 f32x16_from_e2m1_high(const uint8_t *p)
{
    return f32x16_e2m1_lookup(_mm512_srli_epi32(_mm512_cvtepu8_epi32(_mm_load_si128((const __m128i *)p)), 4));
}
SIMD_INLINE f32x16 f32x16_from_bytes(const uint8_t *const b[4])
{
    __m512i v = _mm512_cvtepu8_epi32(_mm_load_si128((const __m128i *)b[0]));
    for (int i = 1; i < 4; i++)
        v = _mm512_or_si512(_mm512_slli_epi32(v, 8), _mm512_cvtepu8_epi32(_mm_load_si128((const __m128i *)b[i])));
    return _mm512_castsi512_ps(v);
}
SIMD_INLINE f32x16 f32x16_from_e8m0(const uint8_t *p)
{
    __m512i code = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
    __m512i bits = _mm512_slli_epi32(code, 23);
    __mmask16 is_nan = _mm512_cmpeq_epi32_mask(code, _mm512_set1_epi32(255));
    bits = _mm512_mask_mov_epi32(bits, _mm512_testn_epi32_mask(code, code), _mm512_set1_epi32(0x00400000));
    bits = _mm512_mask_mov_epi32(bits, is_nan, _mm512_set1_epi32(0x7fc00000));
    return _mm512_castsi512_ps(bits);
}

SIMD_INLINE f64x16 f64x16_splat(double v) { return (f64x16){ _mm512_set1_pd(v), _mm512_set1_pd(v) }; }
SIMD_INLINE f64x16 f64x16_from_f32(f32x16 a)
{
    return (f64x16){ _mm512_cvtps_pd(_mm512_castps512_ps256(a)), _mm512_cvtps_pd(_mm512_extractf32x8_ps(a, 1)) };
}
SIMD_INLINE f64x16 f64x16_load(const double *p) { return (f64x16){ _mm512_loadu_pd(p), _mm512_loadu_pd(p + 8) }; }
SIMD_INLINE void f64x16_store(double *p, f64x16 a)
{
    _mm512_storeu_pd(p, a.lo);
    _mm512_storeu_pd(p + 8, a.hi);
}
SIMD_INLINE f32x16 f32x16_from_f64(f64x16 a)
{
    return _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(a.lo)), _mm512_cvtpd_ps(a.hi), 1);
}
SIMD_INLINE f64x16 f64x16_add(f64x16 a, f64x16 b)
{
    return (f64x16){ _mm512_add_pd(a.lo, b.lo), _mm512_add_pd(a.hi, b.hi) };
}
SIMD_INLINE f64x16 f64x16_mul(f64x16 a, f64x16 b)
{
    return (f64x16){ _mm512_mul_pd(a.lo, b.lo), _mm512_mul_pd(a.hi, b.hi) };
}
SIMD_INLINE f64x16 f64x16_abs(f64x16 a) { return (f64x16){ _mm512_abs_pd(a.lo), _mm512_abs_pd(a.hi) }; }
SIMD_INLINE f64x16 f64x16_add_product(f64x16 sum, f64x16 a, f64x16 b)
{
    return (f64x16){ _mm512_fmadd_pd(a.lo, b.lo, sum.lo), _mm512_fmadd_pd(a.hi, b.hi, sum.hi) };
}
SIMD_INLINE double f64x16_sum(f64x16 a)
{
    __m512d b = _mm512_add_pd(a.lo, a.hi);
    __m256d c = _mm256_add_pd(_mm512_castpd512_pd256(b), _mm512_extractf64x4_pd(b, 1));
    __m128d d = _mm_add_pd(_mm256_castpd256_pd128(c), _mm256_extractf128_pd(c, 1));
    return _mm_cvtsd_f64(_mm_add_sd(d, _mm_unpackhi_pd(d, d)));
}

enum { SIMD_BYTES = 64 };
typedef __m512i simd_bytes;
SIMD_INLINE simd_bytes simd_bytes_load(const uint8_t *p) { return _mm512_loadu_si512(p); }
SIMD_INLINE void simd_bytes_store(uint8_t *p, simd_bytes a) { _mm512_store_si512(p, a); }
SIMD_INLINE simd_bytes simd_bytes_interleave_lo(simd_bytes a, simd_bytes b) { return _mm512_unpacklo_epi8(a, b); }
SIMD_INLINE simd_bytes simd_bytes_interleave_hi(simd_bytes a, simd_bytes b) { return _mm512_unpackhi_epi8(a, b); }

#elif defined(KRN_SIMD_AVX2)

#include <immintrin.h>

typedef struct f32x16 { __m256 lo, hi; } f32x16;
typedef struct f64x16 { __m256d q[4]; } f64x16;

SIMD_INLINE f32x16 f32x16_splat(float v) { return (f32x16){ _mm256_set1_ps(v), _mm256_set1_ps(v) }; }
SIMD_INLINE f32x16 f32x16_load(const void *p)
{
    return (f32x16){ _mm256_loadu_ps(p), _mm256_loadu_ps((const float *)p + 8) };
}
SIMD_INLINE void f32x16_store(float *p, f32x16 a)
{
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}
SIMD_INLINE f32x16 f32x16_abs(f32x16 a)
{
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return (f32x16){ _mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi) };
}
SIMD_INLINE f32x16 f32x16_add(f32x16 a, f32x16 b)
{
    return (f32x16){ _mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi) };
}
SIMD_INLINE f32x16 f32x16_mul(f32x16 a, f32x16 b)
{
    return (f32x16){ _mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi) };
}
SIMD_INLINE float f32x16_sum(f32x16 a)
{
    __m256 b = _mm256_add_ps(a.lo, a.hi);
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

SIMD_INLINE __m256 f32x8_from_bf16(const void *p)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
SIMD_INLINE f32x16 f32x16_from_bf16(const void *p)
{
    return (f32x16){ f32x8_from_bf16(p), f32x8_from_bf16((const bf16 *)p + 8) };
}
SIMD_INLINE f32x16 f32x16_from_e4m3(const uint8_t *p) /* by fp16: see the AVX-512 build */
{
    __m256i code = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p));
    __m256i half = _mm256_and_si256(_mm256_slli_epi16(code, 7), _mm256_set1_epi16((short)0xbfff));
    __m256i magnitude = _mm256_and_si256(half, _mm256_set1_epi16(0x3fff));
    __m256i is_nan = _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x3f80));
    half = _mm256_or_si256(half, _mm256_and_si256(is_nan, _mm256_set1_epi16(0x7e00)));
    const __m256 up = _mm256_set1_ps(256.0f);
    return (f32x16){ _mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(half)), up),
                     _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(half, 1)), up) };
}
SIMD_INLINE __m256 f32x8_e2m1_lookup(__m256i nibble)
{
    const __m256 table = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
    __m256i sign = _mm256_slli_epi32(_mm256_and_si256(nibble, _mm256_set1_epi32(8)), 28);
    return _mm256_xor_ps(_mm256_permutevar8x32_ps(table, nibble), _mm256_castsi256_ps(sign));
}
SIMD_INLINE f32x16 f32x16_from_e2m1(const uint8_t *p)
{
    uint32_t first, second;
    memcpy(&first, p, 4);
    memcpy(&second, p + 4, 4);
    const __m256i shift = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
    return (f32x16){ f32x8_e2m1_lookup(_mm256_srlv_epi32(_mm256_set1_epi32((int)first), shift)),
                     f32x8_e2m1_lookup(_mm256_srlv_epi32(_mm256_set1_epi32((int)second), shift)) };
}
SIMD_INLINE __m256i u32x8_from_u8(const uint8_t *p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)); }
SIMD_INLINE f32x16 f32x16_from_e2m1_low(const uint8_t *p)
{
    return (f32x16){ f32x8_e2m1_lookup(u32x8_from_u8(p)), f32x8_e2m1_lookup(u32x8_from_u8(p + 8)) };
}
SIMD_INLINE f32x16 f32x16_from_e2m1_high(const uint8_t *p)
{
    return (f32x16){ f32x8_e2m1_lookup(_mm256_srli_epi32(u32x8_from_u8(p), 4)),
                     f32x8_e2m1_lookup(_mm256_srli_epi32(u32x8_from_u8(p + 8), 4)) };
}
SIMD_INLINE __m256 f32x8_from_bytes(const uint8_t *const b[4], int at)
{
    __m256i v = u32x8_from_u8(b[0] + at);
    for (int i = 1; i < 4; i++) v = _mm256_or_si256(_mm256_slli_epi32(v, 8), u32x8_from_u8(b[i] + at));
    return _mm256_castsi256_ps(v);
}
SIMD_INLINE f32x16 f32x16_from_bytes(const uint8_t *const b[4])
{
    return (f32x16){ f32x8_from_bytes(b, 0), f32x8_from_bytes(b, 8) };
}
SIMD_INLINE __m256 f32x8_from_e8m0(const uint8_t *p)
{
    __m256i code = u32x8_from_u8(p), bits = _mm256_slli_epi32(code, 23);
    __m256i is_zero = _mm256_cmpeq_epi32(code, _mm256_setzero_si256());
    __m256i is_nan = _mm256_cmpeq_epi32(code, _mm256_set1_epi32(255));
    bits = _mm256_or_si256(bits, _mm256_and_si256(is_zero, _mm256_set1_epi32(0x00400000)));
    bits = _mm256_or_si256(bits, _mm256_and_si256(is_nan, _mm256_set1_epi32(0x7fc00000)));
    return _mm256_castsi256_ps(bits);
}
SIMD_INLINE f32x16 f32x16_from_e8m0(const uint8_t *p) { return (f32x16){ f32x8_from_e8m0(p), f32x8_from_e8m0(p + 8) }; }

SIMD_INLINE f64x16 f64x16_splat(double v)
{
    __m256d a = _mm256_set1_pd(v);
    return (f64x16){ { a, a, a, a } };
}
SIMD_INLINE f64x16 f64x16_from_f32(f32x16 a)
{
    return (f64x16){ { _mm256_cvtps_pd(_mm256_castps256_ps128(a.lo)), _mm256_cvtps_pd(_mm256_extractf128_ps(a.lo, 1)),
                       _mm256_cvtps_pd(_mm256_castps256_ps128(a.hi)), _mm256_cvtps_pd(_mm256_extractf128_ps(a.hi, 1)) } };
}
SIMD_INLINE f64x16 f64x16_load(const double *p)
{
    return (f64x16){ { _mm256_loadu_pd(p), _mm256_loadu_pd(p + 4), _mm256_loadu_pd(p + 8), _mm256_loadu_pd(p + 12) } };
}
SIMD_INLINE void f64x16_store(double *p, f64x16 a)
{
    for (int i = 0; i < 4; i++) _mm256_storeu_pd(p + 4 * i, a.q[i]);
}
SIMD_INLINE f32x16 f32x16_from_f64(f64x16 a)
{
    return (f32x16){ _mm256_set_m128(_mm256_cvtpd_ps(a.q[1]), _mm256_cvtpd_ps(a.q[0])),
                     _mm256_set_m128(_mm256_cvtpd_ps(a.q[3]), _mm256_cvtpd_ps(a.q[2])) };
}
SIMD_INLINE f64x16 f64x16_add(f64x16 a, f64x16 b)
{
    return (f64x16){ { _mm256_add_pd(a.q[0], b.q[0]), _mm256_add_pd(a.q[1], b.q[1]), _mm256_add_pd(a.q[2], b.q[2]),
                       _mm256_add_pd(a.q[3], b.q[3]) } };
}
SIMD_INLINE f64x16 f64x16_mul(f64x16 a, f64x16 b)
{
    return (f64x16){ { _mm256_mul_pd(a.q[0], b.q[0]), _mm256_mul_pd(a.q[1], b.q[1]), _mm256_mul_pd(a.q[2], b.q[2]),
                       _mm256_mul_pd(a.q[3], b.q[3]) } };
}
SIMD_INLINE f64x16 f64x16_abs(f64x16 a)
{
    const __m256d sign = _mm256_set1_pd(-0.0);
    return (f64x16){ { _mm256_andnot_pd(sign, a.q[0]), _mm256_andnot_pd(sign, a.q[1]), _mm256_andnot_pd(sign, a.q[2]),
                       _mm256_andnot_pd(sign, a.q[3]) } };
}
SIMD_INLINE f64x16 f64x16_add_product(f64x16 sum, f64x16 a, f64x16 b)
{
    return (f64x16){ { _mm256_fmadd_pd(a.q[0], b.q[0], sum.q[0]), _mm256_fmadd_pd(a.q[1], b.q[1], sum.q[1]),
                       _mm256_fmadd_pd(a.q[2], b.q[2], sum.q[2]), _mm256_fmadd_pd(a.q[3], b.q[3], sum.q[3]) } };
}
SIMD_INLINE double f64x16_sum(f64x16 a)
{
    __m256d c = _mm256_add_pd(_mm256_add_pd(a.q[0], a.q[2]), _mm256_add_pd(a.q[1], a.q[3]));
    __m128d d = _mm_add_pd(_mm256_castpd256_pd128(c), _mm256_extractf128_pd(c, 1));
    return _mm_cvtsd_f64(_mm_add_sd(d, _mm_unpackhi_pd(d, d)));
}

enum { SIMD_BYTES = 32 };
typedef __m256i simd_bytes;
SIMD_INLINE simd_bytes simd_bytes_load(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)p); }
SIMD_INLINE void simd_bytes_store(uint8_t *p, simd_bytes a) { _mm256_store_si256((__m256i *)p, a); }
SIMD_INLINE simd_bytes simd_bytes_interleave_lo(simd_bytes a, simd_bytes b) { return _mm256_unpacklo_epi8(a, b); }
SIMD_INLINE simd_bytes simd_bytes_interleave_hi(simd_bytes a, simd_bytes b) { return _mm256_unpackhi_epi8(a, b); }

#else

typedef struct f32x16 { float v[16]; } f32x16;
typedef struct f64x16 { double v[16]; } f64x16;

/* One statement for each lane i of a result r. */
#define SIMD_LANES(type, statement)           \
    type r;                                   \
    for (int i = 0; i < 16; i++) statement;   \
    return r

SIMD_INLINE f32x16 f32x16_splat(float v) { SIMD_LANES(f32x16, r.v[i] = v); }
SIMD_INLINE f32x16 f32x16_load(const void *p)
{
    f32x16 r;
    memcpy(r.v, p, sizeof r.v);
    return r;
}
SIMD_INLINE void f32x16_store(float *p, f32x16 a) { memcpy(p, a.v, sizeof a.v); }
SIMD_INLINE f32x16 f32x16_add(f32x16 a, f32x16 b) { SIMD_LANES(f32x16, r.v[i] = a.v[i] + b.v[i]); }
SIMD_INLINE f32x16 f32x16_mul(f32x16 a, f32x16 b) { SIMD_LANES(f32x16, r.v[i] = a.v[i] * b.v[i]); }
SIMD_INLINE f32x16 f32x16_abs(f32x16 a) { SIMD_LANES(f32x16, r.v[i] = fabsf(a.v[i])); }
SIMD_INLINE float f32x16_sum(f32x16 a)
{
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++) a.v[i] += a.v[i + half];
    return a.v[0];
}

SIMD_INLINE f32x16 f32x16_from_bf16(const void *p)
{
    bf16 bits[16];
    memcpy(bits, p, sizeof bits);
    SIMD_LANES(f32x16, r.v[i] = f32_from_bf16(bits[i]));
}
SIMD_INLINE f32x16 f32x16_from_e4m3(const uint8_t *p) { SIMD_LANES(f32x16, r.v[i] = FMT_E4M3_VALUE[p[i]]); }
/* 16 consecutive elements, two to a byte; the low or the high nibble of 16 bytes (16-byte aligned). */
SIMD_INLINE f32x16 f32x16_from_e2m1(const uint8_t *p)
{
    SIMD_LANES(f32x16, r.v[i] = FMT_E2M1_VALUE[p[i / 2] >> i % 2 * 4 & 15]);
}
SIMD_INLINE f32x16 f32x16_from_e2m1_low(const uint8_t *p) { SIMD_LANES(f32x16, r.v[i] = FMT_E2M1_VALUE[p[i] & 15]); }
SIMD_INLINE f32x16 f32x16_from_e2m1_high(const uint8_t *p) { SIMD_LANES(f32x16, r.v[i] = FMT_E2M1_VALUE[p[i] >> 4]); }
/* The bytes of 16 numbers, four rows of 16, most significant first (16-byte aligned). */
SIMD_INLINE f32x16 f32x16_from_bytes(const uint8_t *const b[4])
{
    SIMD_LANES(f32x16, r.v[i] = f32_from_bits((uint32_t)b[0][i] << 24 | (uint32_t)b[1][i] << 16 |
                                              (uint32_t)b[2][i] << 8 | b[3][i]));
}
SIMD_INLINE f32x16 f32x16_from_e8m0(const uint8_t *p) { SIMD_LANES(f32x16, r.v[i] = f32_from_e8m0(p[i])); }

SIMD_INLINE f64x16 f64x16_splat(double v) { SIMD_LANES(f64x16, r.v[i] = v); }
SIMD_INLINE f64x16 f64x16_from_f32(f32x16 a) { SIMD_LANES(f64x16, r.v[i] = (double)a.v[i]); }
SIMD_INLINE f64x16 f64x16_load(const double *p)
{
    f64x16 r;
    memcpy(r.v, p, sizeof r.v);
    return r;
}
SIMD_INLINE void f64x16_store(double *p, f64x16 a) { memcpy(p, a.v, sizeof a.v); }
SIMD_INLINE f32x16 f32x16_from_f64(f64x16 a) { SIMD_LANES(f32x16, r.v[i] = (float)a.v[i]); }
SIMD_INLINE f64x16 f64x16_add(f64x16 a, f64x16 b) { SIMD_LANES(f64x16, r.v[i] = a.v[i] + b.v[i]); }
SIMD_INLINE f64x16 f64x16_abs(f64x16 a) { SIMD_LANES(f64x16, r.v[i] = fabs(a.v[i])); }
SIMD_INLINE f64x16 f64x16_mul(f64x16 a, f64x16 b) { SIMD_LANES(f64x16, r.v[i] = a.v[i] * b.v[i]); }
SIMD_INLINE f64x16 f64x16_add_product(f64x16 sum, f64x16 a, f64x16 b)
{
    SIMD_LANES(f64x16, r.v[i] = sum.v[i] + a.v[i] * b.v[i]);
}
SIMD_INLINE double f64x16_sum(f64x16 a)
{
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++) a.v[i] += a.v[i + half];
    return a.v[0];
}

enum { SIMD_BYTES = 32 };
SIMD_INLINE int simd_column(int c) { return c; }
SIMD_INLINE void simd_transpose(const uint8_t *const row[16], uint8_t out[SIMD_BYTES][16])
{
    for (int c = 0; c < SIMD_BYTES; c++)
        for (int r = 0; r < 16; r++) out[c][r] = row[r][c];
}

#endif

#if defined(KRN_SIMD_AVX512) || defined(KRN_SIMD_AVX2)
/* Registers are made of 16-byte groups and hold one column per group. */
SIMD_INLINE int simd_column(int c) { return c % 16 * (SIMD_BYTES / 16) + c / 16; }
/* Each round turns the 8-bit index (row, column in its group) left by one bit; four rounds exchange row and column. */
SIMD_INLINE void simd_transpose(const uint8_t *const row[16], uint8_t out[SIMD_BYTES][16])
{
    simd_bytes a[16], b[16];
    for (int r = 0; r < 16; r++) a[r] = simd_bytes_load(row[r]);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 8; i++) {
            b[2 * i] = simd_bytes_interleave_lo(a[i], a[i + 8]);
            b[2 * i + 1] = simd_bytes_interleave_hi(a[i], a[i + 8]);
        }
        for (int i = 0; i < 8; i++) {
            a[2 * i] = simd_bytes_interleave_lo(b[i], b[i + 8]);
            a[2 * i + 1] = simd_bytes_interleave_hi(b[i], b[i + 8]);
        }
    }
    for (int c = 0; c < 16; c++) simd_bytes_store(out[c * (SIMD_BYTES / 16)], a[c]);
}
#endif

#endif
