#include "kernels/exl3_encode_loops.h"

#include "kernels/simd.h"

/* ---- what simd.h has not: only this loop wants it ---- */

#if defined(KRN_SIMD_AVX512)

SIMD_INLINE f32x16 add_square_of_difference(f32x16 c, f32x16 a, f32x16 b)
{
    f32x16 d = _mm512_sub_ps(a, b);
    return _mm512_fmadd_ps(d, d, c);
}
/* (c AND keep) OR m */
SIMD_INLINE f32x16 mark(f32x16 c, int32_t keep, int32_t m)
{
    return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(_mm512_castps_si512(c), _mm512_set1_epi32(keep),
                                                         _mm512_set1_epi32(m), 0xea));
}
SIMD_INLINE f32x16 least(f32x16 a, f32x16 b) { return _mm512_min_ps(a, b); }
/* a0 b0 a1 b1 ... */
SIMD_INLINE void zip(f32x16 *a, f32x16 *b)
{
    const __m512i lo = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    f32x16 x = _mm512_permutex2var_ps(*a, lo, *b);
    *b = _mm512_permutex2var_ps(*a, _mm512_add_epi32(lo, _mm512_set1_epi32(8)), *b);
    *a = x;
}
SIMD_INLINE void store_marks(uint8_t *to, f32x16 c, int32_t keep)
{
    _mm_storeu_si128((__m128i *)to, _mm512_cvtepi32_epi8(_mm512_andnot_si512(_mm512_set1_epi32(keep),
                                                                             _mm512_castps_si512(c))));
}
/* a << bits OR the mark of b */
SIMD_INLINE f32x16 append_mark(f32x16 a, f32x16 b, int32_t bits, int32_t keep)
{
    __m512i up = _mm512_slli_epi32(_mm512_castps_si512(a), (unsigned)bits);
    return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(up, _mm512_castps_si512(b), _mm512_set1_epi32(keep), 0xf4));
}

#elif defined(KRN_SIMD_AVX2)

SIMD_INLINE f32x16 add_square_of_difference(f32x16 c, f32x16 a, f32x16 b)
{
    __m256 lo = _mm256_sub_ps(a.lo, b.lo), hi = _mm256_sub_ps(a.hi, b.hi);
    return (f32x16){ _mm256_fmadd_ps(lo, lo, c.lo), _mm256_fmadd_ps(hi, hi, c.hi) };
}
SIMD_INLINE f32x16 mark(f32x16 c, int32_t keep, int32_t m)
{
    const __m256 k = _mm256_castsi256_ps(_mm256_set1_epi32(keep)), bits = _mm256_castsi256_ps(_mm256_set1_epi32(m));
    return (f32x16){ _mm256_or_ps(_mm256_and_ps(c.lo, k), bits), _mm256_or_ps(_mm256_and_ps(c.hi, k), bits) };
}
SIMD_INLINE f32x16 least(f32x16 a, f32x16 b)
{
    return (f32x16){ _mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi) };
}
SIMD_INLINE f32x16 zip_eight(__m256 a, __m256 b)
{
    __m256 lo = _mm256_unpacklo_ps(a, b), hi = _mm256_unpackhi_ps(a, b);
    return (f32x16){ _mm256_permute2f128_ps(lo, hi, 0x20), _mm256_permute2f128_ps(lo, hi, 0x31) };
}
SIMD_INLINE void zip(f32x16 *a, f32x16 *b)
{
    f32x16 x = zip_eight(a->lo, b->lo);
    *b = zip_eight(a->hi, b->hi);
    *a = x;
}
SIMD_INLINE void store_marks(uint8_t *to, f32x16 c, int32_t keep)
{
    const __m256i k = _mm256_set1_epi32(keep);
    __m256i lo = _mm256_andnot_si256(k, _mm256_castps_si256(c.lo)), hi = _mm256_andnot_si256(k, _mm256_castps_si256(c.hi));
    __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(lo, hi), 0xd8);
    _mm_storeu_si128((__m128i *)to, _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}
SIMD_INLINE __m256 append_eight(__m256 a, __m256 b, int32_t bits, int32_t keep)
{
    __m256i up = _mm256_slli_epi32(_mm256_castps_si256(a), bits);
    return _mm256_castsi256_ps(_mm256_or_si256(up, _mm256_andnot_si256(_mm256_set1_epi32(keep), _mm256_castps_si256(b))));
}
SIMD_INLINE f32x16 append_mark(f32x16 a, f32x16 b, int32_t bits, int32_t keep)
{
    return (f32x16){ append_eight(a.lo, b.lo, bits, keep), append_eight(a.hi, b.hi, bits, keep) };
}

#else

SIMD_INLINE f32x16 append_mark(f32x16 a, f32x16 b, int32_t bits, int32_t keep)
{
    SIMD_LANES(f32x16, r.v[i] = f32_from_bits(f32_bits(a.v[i]) << bits | (f32_bits(b.v[i]) & ~(uint32_t)keep)));
}
SIMD_INLINE f32x16 add_square_of_difference(f32x16 c, f32x16 a, f32x16 b)
{
    SIMD_LANES(f32x16, r.v[i] = fmaf(a.v[i] - b.v[i], a.v[i] - b.v[i], c.v[i]));
}
SIMD_INLINE f32x16 mark(f32x16 c, int32_t keep, int32_t m)
{
    SIMD_LANES(f32x16, r.v[i] = f32_from_bits((f32_bits(c.v[i]) & (uint32_t)keep) | (uint32_t)m));
}
SIMD_INLINE f32x16 least(f32x16 a, f32x16 b) { SIMD_LANES(f32x16, r.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
SIMD_INLINE void zip(f32x16 *a, f32x16 *b)
{
    f32x16 x = *a, y = *b;
    for (int i = 0; i < 16; i++) {
        f32x16 *to = i < 8 ? a : b;
        to->v[2 * i % 16] = x.v[i];
        to->v[2 * i % 16 + 1] = y.v[i];
    }
}
SIMD_INLINE void store_marks(uint8_t *to, f32x16 c, int32_t keep)
{
    for (int i = 0; i < 16; i++) to[i] = (uint8_t)(f32_bits(c.v[i]) & ~(uint32_t)keep);
}

#endif

/* ---- one position ---- */

enum { VECTORS_MAX = 8 };

/* Lane i of vector j is node i * 2^bits + j: bits rounds of a perfect shuffle put them in order. */
SIMD_INLINE void sort(const int32_t bits, f32x16 best[VECTORS_MAX])
{
    const int32_t v = 1 << bits;
    for (int32_t round = 0; round < bits; round++) {
        f32x16 a[VECTORS_MAX];
        SIMD_UNROLL
        for (int32_t j = 0; j < v / 2; j++) {
            a[2 * j] = best[j];
            a[2 * j + 1] = best[j + v / 2];
            zip(&a[2 * j], &a[2 * j + 1]);
        }
        SIMD_UNROLL
        for (int32_t j = 0; j < v; j++) best[j] = a[j];
    }
}

/* The marks of each lane's nodes in one byte, the first vector's lowest; what is above it is of no use. */
SIMD_INLINE f32x16 gather_marks(const int32_t bits, const f32x16 best[VECTORS_MAX], int32_t keep)
{
    f32x16 all = best[(1 << bits) - 1];
    SIMD_UNROLL
    for (int32_t j = (1 << bits) - 2; j >= 0; j--) all = append_mark(all, best[j], bits, keep);
    return all;
}

/* bits is a constant of the caller, so that the vectors stay in registers. */
SIMD_INLINE void step(const int32_t bits, const float *values, float w, const float *cost, float *next, uint8_t *from)
{
    const int32_t n = 1 << (16 - bits), v = bits <= 3 ? 1 << bits : 4, keep = -(1 << bits);
    const f32x16 target = f32x16_splat(w);
    for (int32_t first = 0; first < n; first += 16 * v) {
        f32x16 best[VECTORS_MAX];
        for (int32_t m = 0; m < 1 << bits; m++) {
            const float *before = cost + ((m * n + first) >> bits); /* of the first node's predecessor */
            SIMD_UNROLL
            for (int32_t j = 0; j < v; j++, values += 16) {
                f32x16 c = bits <= 3 ? f32x16_load(before) : f32x16_splat(before[(16 * j) >> bits]);
                c = mark(add_square_of_difference(c, f32x16_load(values), target), keep, m);         /* R1 R2 R3 */
                best[j] = m == 0 ? c : least(best[j], c);
            }
        }
        if (bits <= 2) store_marks(from + (first >> bits), gather_marks(bits, best, keep), -256);
        if (bits <= 3) sort(bits, best);
        SIMD_UNROLL
        for (int32_t j = 0; j < v; j++) {
            f32x16_store(next + first + 16 * j, best[j]);
            if (bits > 2) store_marks(from + first + 16 * j, best[j], keep);
        }
    }
}

#if defined(KRN_SIMD_AVX512)
void krn_exl3_step_avx512
#elif defined(KRN_SIMD_AVX2)
void krn_exl3_step_avx2
#else
void krn_exl3_step_scalar
#endif
    (int32_t bits, const float *values, float w, const float *cost, float *next, uint8_t *from)
{
    switch (bits) {
    case 1: step(1, values, w, cost, next, from); return;
    case 2: step(2, values, w, cost, next, from); return;
    case 3: step(3, values, w, cost, next, from); return;
    case 4: step(4, values, w, cost, next, from); return;
    case 5: step(5, values, w, cost, next, from); return;
    case 6: step(6, values, w, cost, next, from); return;
    case 7: step(7, values, w, cost, next, from); return;
    default: step(8, values, w, cost, next, from); return;
    }
}
