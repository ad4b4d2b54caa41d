/* Bit planes, the transform "bits" of TAPE.md: plane 8b + k holds bit k of byte b of all n elements, n / 8 bytes.
 *
 * All ways have the same result: whole blocks through AVX-512 or AVX2 where the processor has them, the rest in portable
 * vectors. */
#include "formats/tape_codec.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/cpu.h"

/* ---- 128 elements at a time in vectors that every compiler target has in some width ---- */

/* Loops over vectors have constant counts and must unroll, so that the vectors stay in registers: twice the speed. */
#define ALWAYS_INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 64")

typedef uint8_t v16 __attribute__((vector_size(16)));
typedef uint64_t v2x64 __attribute__((vector_size(16)));

enum { BITS_BLOCK = 128, PLANE_VECTORS = BITS_BLOCK / 16 };

/* v[0, n) as one run of 16n bytes: the even ones go to the first half, the odd ones to the second. */
ALWAYS_INLINE void unzip(v16 *v, int n)
{
    v16 t[PLANE_VECTORS * 8];
    UNROLL
    for (int i = 0; i < n / 2; i++) {
        v16 a = v[2 * i], b = v[2 * i + 1];
        t[i] = __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
        t[n / 2 + i] = __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    }
    memcpy(v, t, sizeof *v * (size_t)n);
}

/* The inverse. */
ALWAYS_INLINE void zip(v16 *v, int n)
{
    v16 t[PLANE_VECTORS * 8];
    UNROLL
    for (int i = 0; i < n / 2; i++) {
        v16 a = v[i], b = v[n / 2 + i];
        t[2 * i] = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
        t[2 * i + 1] = __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    }
    memcpy(v, t, sizeof *v * (size_t)n);
}

/* Byte i of every 2^levels bytes, together; group i ends up at reversed(i, levels). */
ALWAYS_INLINE void unzip_levels(v16 *v, int n, int levels)
{
    UNROLL
    for (int l = 0; l < levels; l++)
        for (int part = 0; part < 1 << l; part++) unzip(v + part * (n >> l), n >> l);
}

ALWAYS_INLINE void zip_levels(v16 *v, int n, int levels)
{
    UNROLL
    for (int l = levels - 1; l >= 0; l--)
        for (int part = 0; part < 1 << l; part++) zip(v + part * (n >> l), n >> l);
}

ALWAYS_INLINE int reversed(int i, int bits)
{
    int r = 0;
    UNROLL
    for (int b = 0; b < bits; b++) r |= (i >> b & 1) << (bits - 1 - b);
    return r;
}

/* The bytes of both 64-bit lanes in little-endian order, whatever the host's is. */
ALWAYS_INLINE v16 little(v16 v)
{
    if (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__) return v;
    return __builtin_shufflevector(v, v, 7, 6, 5, 4, 3, 2, 1, 0, 15, 14, 13, 12, 11, 10, 9, 8);
}

/* Turns each 8 bytes as a matrix of 8 x 8 bits: bit j of byte i becomes bit i of byte j. Its own inverse. */
ALWAYS_INLINE void turn_bits(v16 *v)
{
    UNROLL
    for (int i = 0; i < PLANE_VECTORS; i++) {
        v2x64 x = (v2x64)little(v[i]), t;
        t = (x ^ x >> 7) & 0x00aa00aa00aa00aau;
        x ^= t ^ t << 7;
        t = (x ^ x >> 14) & 0x0000cccc0000ccccu;
        x ^= t ^ t << 14;
        t = (x ^ x >> 28) & 0x00000000f0f0f0f0u;
        x ^= t ^ t << 28;
        v[i] = little((v16)x);
    }
}

/* Elements [at, n) of n; at is a multiple of 8. */
ALWAYS_INLINE void split_portable(const uint8_t *restrict src, uint8_t *restrict dst, size_t at, size_t n, int size)
{
    const int levels = size == 8 ? 3 : size / 2; /* log2 */
    for (; at < n; at += BITS_BLOCK) {
        size_t m = n - at < BITS_BLOCK ? n - at : BITS_BLOCK;
        v16 v[PLANE_VECTORS * 8];
        if (m < BITS_BLOCK) memset(v, 0, sizeof v);
        if (m == BITS_BLOCK) memcpy(v, src + at * (size_t)size, BITS_BLOCK * (size_t)size);
        else memcpy(v, src + at * (size_t)size, m * (size_t)size);
        unzip_levels(v, PLANE_VECTORS * size, levels);
        UNROLL
        for (int b = 0; b < size; b++) {
            v16 *plane = v + PLANE_VECTORS * reversed(b, levels);
            uint8_t *out = dst + 8 * (size_t)b * (n / 8) + at / 8;
            turn_bits(plane);
            unzip_levels(plane, PLANE_VECTORS, 3);
            UNROLL
            for (int k = 0; k < 8; k++) {
                if (m == BITS_BLOCK) memcpy(out + (size_t)k * (n / 8), &plane[reversed(k, 3)], sizeof(v16));
                else memcpy(out + (size_t)k * (n / 8), &plane[reversed(k, 3)], m / 8);
            }
        }
    }
}

ALWAYS_INLINE void join_portable(const uint8_t *restrict src, uint8_t *restrict dst, size_t at, size_t n, int size)
{
    const int levels = size == 8 ? 3 : size / 2;
    for (; at < n; at += BITS_BLOCK) {
        size_t m = n - at < BITS_BLOCK ? n - at : BITS_BLOCK;
        v16 v[PLANE_VECTORS * 8];
        if (m < BITS_BLOCK) memset(v, 0, sizeof v);
        UNROLL
        for (int b = 0; b < size; b++) {
            v16 *plane = v + PLANE_VECTORS * reversed(b, levels);
            const uint8_t *in = src + 8 * (size_t)b * (n / 8) + at / 8;
            UNROLL
            for (int k = 0; k < 8; k++) {
                if (m == BITS_BLOCK) memcpy(&plane[reversed(k, 3)], in + (size_t)k * (n / 8), sizeof(v16));
                else memcpy(&plane[reversed(k, 3)], in + (size_t)k * (n / 8), m / 8);
            }
            zip_levels(plane, PLANE_VECTORS, 3);
            turn_bits(plane);
        }
        zip_levels(v, PLANE_VECTORS * size, levels);
        if (m == BITS_BLOCK) memcpy(dst + at * (size_t)size, v, BITS_BLOCK * (size_t)size);
        else memcpy(dst + at * (size_t)size, v, m * (size_t)size);
    }
}

#if defined(__x86_64__)
/* ---- AVX2 ---- */

#define AVX2 __attribute__((target("avx2")))
#define AVX2_INLINE AVX2 ALWAYS_INLINE

enum {
    LINE_BYTES = 64,
    SPLIT_BLOCK = 8 * LINE_BYTES, /* elements: a cache line of every plane, so that planes are written by whole lines */
    JOIN_BLOCK = 256,  /* a vector of every plane */
};

/* v[0, n) as bytes: the even ones to the first half, the odd ones to the second. */
AVX2_INLINE void unzip_avx2(__m256i *v, int n)
{
    __m256i t[8];
    UNROLL
    for (int i = 0; i < n / 2; i++) {
        __m256i a = v[2 * i], b = v[2 * i + 1], low = _mm256_set1_epi16(0xff);
        __m256i even = _mm256_packus_epi16(_mm256_and_si256(a, low), _mm256_and_si256(b, low));
        __m256i odd = _mm256_packus_epi16(_mm256_srli_epi16(a, 8), _mm256_srli_epi16(b, 8));
        t[i] = _mm256_permute4x64_epi64(even, 0xd8);
        t[n / 2 + i] = _mm256_permute4x64_epi64(odd, 0xd8);
    }
    UNROLL
    for (int i = 0; i < n; i++) v[i] = t[i];
}

/* A cache line to each of n planes. */
ALWAYS_INLINE void put_lines(const uint8_t *line, uint8_t *dst, size_t plane_bytes, int n)
{
    for (int p = 0; p < n; p++, line += LINE_BYTES, dst += plane_bytes) {
        memcpy(dst, line, LINE_BYTES);
        /* The line after next: so many planes at once are more than the processor foresees by itself. */
        __builtin_prefetch(dst + 2 * LINE_BYTES, 1);
    }
}

AVX2_INLINE void split_block_avx2(const uint8_t *src, uint8_t *dst, size_t plane_bytes, int size)
{
    const int levels = size == 8 ? 3 : size / 2;
    uint32_t line[64][SPLIT_BLOCK / 32]; /* [8 * size] of it */
    for (int i = 0; i < SPLIT_BLOCK / 32; i++) {
        __m256i v[8]; /* 32 elements */
        UNROLL
        for (int b = 0; b < size; b++) v[b] = _mm256_loadu_si256((const __m256i *)src + (size_t)(i * size + b));
        UNROLL
        for (int l = 0; l < levels; l++)
            for (int part = 0; part < 1 << l; part++) unzip_avx2(v + part * (size >> l), size >> l);
        UNROLL
        for (int b = 0; b < size; b++) {
            __m256i byte = v[reversed(b, levels)];
            UNROLL
            for (int k = 7; k >= 0; k--) {
                line[8 * b + k][i] = (uint32_t)_mm256_movemask_epi8(byte); /* the top bits */
                byte = _mm256_add_epi8(byte, byte);
            }
        }
    }
    put_lines((const uint8_t *)line, dst, plane_bytes, 8 * size);
}

/* As turn_bits. */
AVX2_INLINE __m256i turn_avx2(__m256i x)
{
    __m256i t = _mm256_and_si256(_mm256_xor_si256(x, _mm256_srli_epi64(x, 7)), _mm256_set1_epi64x(0x00aa00aa00aa00aa));
    x = _mm256_xor_si256(x, _mm256_xor_si256(t, _mm256_slli_epi64(t, 7)));
    t = _mm256_and_si256(_mm256_xor_si256(x, _mm256_srli_epi64(x, 14)), _mm256_set1_epi64x(0x0000cccc0000cccc));
    x = _mm256_xor_si256(x, _mm256_xor_si256(t, _mm256_slli_epi64(t, 14)));
    t = _mm256_and_si256(_mm256_xor_si256(x, _mm256_srli_epi64(x, 28)), _mm256_set1_epi64x(0x00000000f0f0f0f0));
    return _mm256_xor_si256(x, _mm256_xor_si256(t, _mm256_slli_epi64(t, 28)));
}

/* v[0, width) holds some bytes of every element, v[width, 2 * width) the width bytes that follow them: put together, within
 * each 128-bit lane. */
AVX2_INLINE void zip_avx2(__m256i *v, int width)
{
    __m256i t[8];
    UNROLL
    for (int i = 0; i < width; i++) {
        __m256i a = v[i], b = v[width + i];
        t[2 * i] = width == 1 ? _mm256_unpacklo_epi8(a, b) : width == 2 ? _mm256_unpacklo_epi16(a, b)
                                                                         : _mm256_unpacklo_epi32(a, b);
        t[2 * i + 1] = width == 1 ? _mm256_unpackhi_epi8(a, b) : width == 2 ? _mm256_unpackhi_epi16(a, b)
                                                                             : _mm256_unpackhi_epi32(a, b);
    }
    UNROLL
    for (int i = 0; i < 2 * width; i++) v[i] = t[i];
}

AVX2_INLINE void join_block_avx2(const uint8_t *src, size_t plane_bytes, uint8_t *dst, int size)
{
    __m256i byte[8][8]; /* [size] of it: byte b of elements 16q, ..., 16q + 15 and 128 + 16q, ... in [b][q] */
    UNROLL
    for (int b = 0; b < size; b++) {
        __m256i v[8], w[8];
        UNROLL
        for (int k = 0; k < 8; k++) v[k] = _mm256_loadu_si256((const __m256i *)(src + (size_t)(8 * b + k) * plane_bytes));
        /* The same byte of all 8 planes, together: pairs, fours, eights of planes. */
        UNROLL
        for (int k = 0; k < 4; k++) {
            w[k] = _mm256_unpacklo_epi8(v[2 * k], v[2 * k + 1]);
            w[4 + k] = _mm256_unpackhi_epi8(v[2 * k], v[2 * k + 1]);
        }
        UNROLL
        for (int h = 0; h < 2; h++)
            for (int k = 0; k < 2; k++) {
                v[4 * h + k] = _mm256_unpacklo_epi16(w[4 * h + 2 * k], w[4 * h + 2 * k + 1]);
                v[4 * h + 2 + k] = _mm256_unpackhi_epi16(w[4 * h + 2 * k], w[4 * h + 2 * k + 1]);
            }
        UNROLL
        for (int h = 0; h < 4; h++) {
            byte[b][2 * h] = turn_avx2(_mm256_unpacklo_epi32(v[2 * h], v[2 * h + 1]));
            byte[b][2 * h + 1] = turn_avx2(_mm256_unpackhi_epi32(v[2 * h], v[2 * h + 1]));
        }
    }
    UNROLL
    for (int q = 0; q < 8; q++) {
        __m256i v[8];
        UNROLL
        for (int b = 0; b < size; b++) v[b] = byte[b][q];
        UNROLL
        for (int b = 0; b + 1 < size; b += 2) zip_avx2(v + b, 1);
        UNROLL
        for (int b = 0; b + 3 < size; b += 4) zip_avx2(v + b, 2);
        if (size == 8) zip_avx2(v, 4);
        UNROLL
        for (int b = 0; b < size; b++) {
            _mm_storeu_si128((__m128i *)(dst + size * 16 * q) + b, _mm256_castsi256_si128(v[b]));
            _mm_storeu_si128((__m128i *)(dst + size * (128 + 16 * q)) + b, _mm256_extracti128_si256(v[b], 1));
        }
    }
}

/* ---- AVX-512, for splitting elements of 2 and 4 bytes: masks of 64 elements instead of 32 ---- */

#define AVX512 __attribute__((target("avx512f,avx512bw")))
#define AVX512_INLINE AVX512 ALWAYS_INLINE

/* As unzip_avx2, but within each 128-bit lane. */
AVX512_INLINE void unzip_avx512(__m512i *v, int n)
{
    __m512i t[4];
    UNROLL
    for (int i = 0; i < n / 2; i++) {
        __m512i a = v[2 * i], b = v[2 * i + 1], low = _mm512_set1_epi16(0xff);
        t[i] = _mm512_packus_epi16(_mm512_and_si512(a, low), _mm512_and_si512(b, low));
        t[n / 2 + i] = _mm512_packus_epi16(_mm512_srli_epi16(a, 8), _mm512_srli_epi16(b, 8));
    }
    UNROLL
    for (int i = 0; i < n; i++) v[i] = t[i];
}

AVX512_INLINE void split_block_avx512(const uint8_t *src, uint8_t *dst, size_t plane_bytes, int size)
{
    const int levels = size / 2;
    /* What in-lane unzipping leaves in a lane: 16 / size bytes of each of the size source vectors. */
    const __m512i order = size == 2 ? _mm512_setr_epi32(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15)
                                    : _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    uint64_t line[32][SPLIT_BLOCK / 64]; /* [8 * size] of it */
    for (int i = 0; i < SPLIT_BLOCK / 64; i++) {
        __m512i v[4]; /* 64 elements */
        UNROLL
        for (int b = 0; b < size; b++) v[b] = _mm512_loadu_si512(src + 64 * (size_t)(i * size + b));
        UNROLL
        for (int l = 0; l < levels; l++)
            for (int part = 0; part < 1 << l; part++) unzip_avx512(v + part * (size >> l), size >> l);
        UNROLL
        for (int b = 0; b < size; b++) {
            __m512i byte = _mm512_permutexvar_epi32(order, v[reversed(b, levels)]), up = byte;
            UNROLL
            for (int k = 7; k >= 4; k--) { /* half of the bits each way: the two take turns at the processor's ports */
                line[8 * b + k][i] = _mm512_movepi8_mask(up);
                line[8 * b + k - 4][i] = _mm512_test_epi8_mask(byte, _mm512_set1_epi8((char)(1 << (k - 4))));
                up = _mm512_add_epi8(up, up);
            }
        }
    }
    put_lines((const uint8_t *)line, dst, plane_bytes, 8 * size);
}

AVX512 static size_t split_avx512(const uint8_t *src, uint8_t *dst, size_t n, int size)
{
    size_t at = 0;
    if (size == 2)
        for (; at + SPLIT_BLOCK <= n; at += SPLIT_BLOCK) split_block_avx512(src + at * 2, dst + at / 8, n / 8, 2);
    if (size == 4)
        for (; at + SPLIT_BLOCK <= n; at += SPLIT_BLOCK) split_block_avx512(src + at * 4, dst + at / 8, n / 8, 4);
    return at;
}

AVX2 static size_t split_avx2(const uint8_t *src, uint8_t *dst, size_t at, size_t n, int size)
{
    FMT_BY_SIZE(size, for (; at + SPLIT_BLOCK <= n; at += SPLIT_BLOCK)
                      split_block_avx2(src + at * SIZE, dst + at / 8, n / 8, SIZE));
    return at;
}

AVX2 static size_t join_avx2(const uint8_t *src, uint8_t *dst, size_t at, size_t n, int size)
{
    FMT_BY_SIZE(size, for (; at + JOIN_BLOCK <= n; at += JOIN_BLOCK)
                      join_block_avx2(src + at / 8, n / 8, dst + at * SIZE, SIZE));
    return at;
}

/* ---- AVX-512, for joining elements of 2 and 4 bytes ---- */

enum { JOIN_BLOCK_512 = 512 }; /* elements: a cache line of every plane */

/* As turn_bits: x ^= t ^ t << n with t = (x ^ x >> n) & mask, two operations of three inputs a step. */
#define TURN_STEP(x, n, mask)                                                                                     \
    do {                                                                                                          \
        __m512i t = _mm512_ternarylogic_epi64(x, _mm512_srli_epi64(x, n), _mm512_set1_epi64(mask), 0x28);         \
        x = _mm512_ternarylogic_epi64(x, t, _mm512_slli_epi64(t, n), 0x96);                                       \
    } while (0)

AVX512_INLINE __m512i turn_avx512(__m512i x)
{
    TURN_STEP(x, 7, 0x00aa00aa00aa00aa);
    TURN_STEP(x, 14, 0x0000cccc0000cccc);
    TURN_STEP(x, 28, 0x00000000f0f0f0f0);
    return x;
}

/* Lane l of v[b] holds 16 bytes that belong at dst + l * stride + 16 * b; size of them side by side. */
AVX512_INLINE void store_lanes(const __m512i *v, uint8_t *dst, size_t stride, int size)
{
    if (size == 4) {
        __m512i a = _mm512_shuffle_i32x4(v[0], v[1], 0x44), b = _mm512_shuffle_i32x4(v[2], v[3], 0x44);
        __m512i c = _mm512_shuffle_i32x4(v[0], v[1], 0xee), d = _mm512_shuffle_i32x4(v[2], v[3], 0xee);
        _mm512_storeu_si512(dst, _mm512_shuffle_i32x4(a, b, 0x88));
        _mm512_storeu_si512(dst + stride, _mm512_shuffle_i32x4(a, b, 0xdd));
        _mm512_storeu_si512(dst + 2 * stride, _mm512_shuffle_i32x4(c, d, 0x88));
        _mm512_storeu_si512(dst + 3 * stride, _mm512_shuffle_i32x4(c, d, 0xdd));
    } else {
        __m512i even = _mm512_shuffle_i32x4(v[0], v[1], 0x88), odd = _mm512_shuffle_i32x4(v[0], v[1], 0xdd);
        even = _mm512_shuffle_i32x4(even, even, 0xd8);
        odd = _mm512_shuffle_i32x4(odd, odd, 0xd8);
        _mm256_storeu_si256((__m256i *)dst, _mm512_castsi512_si256(even));
        _mm256_storeu_si256((__m256i *)(dst + stride), _mm512_castsi512_si256(odd));
        _mm256_storeu_si256((__m256i *)(dst + 2 * stride), _mm512_extracti64x4_epi64(even, 1));
        _mm256_storeu_si256((__m256i *)(dst + 3 * stride), _mm512_extracti64x4_epi64(odd, 1));
    }
}

/* As join_block_avx2, four lanes wide: byte b of elements 128 l + 16 q, ..., + 15 in lane l of byte[b][q]. */
AVX512_INLINE void join_block_avx512(const uint8_t *src, size_t plane_bytes, uint8_t *dst, int size)
{
    __m512i byte[4][8];
    UNROLL
    for (int b = 0; b < size; b++) {
        __m512i v[8], w[8];
        UNROLL
        for (int k = 0; k < 8; k++) {
            const uint8_t *plane = src + (size_t)(8 * b + k) * plane_bytes;
            /* So many planes at once are more than the processor foresees by itself. */
            __builtin_prefetch(plane + 3 * sizeof v[k]);
            v[k] = _mm512_loadu_si512(plane);
        }
        UNROLL
        for (int k = 0; k < 4; k++) {
            w[k] = _mm512_unpacklo_epi8(v[2 * k], v[2 * k + 1]);
            w[4 + k] = _mm512_unpackhi_epi8(v[2 * k], v[2 * k + 1]);
        }
        UNROLL
        for (int h = 0; h < 2; h++)
            for (int k = 0; k < 2; k++) {
                v[4 * h + k] = _mm512_unpacklo_epi16(w[4 * h + 2 * k], w[4 * h + 2 * k + 1]);
                v[4 * h + 2 + k] = _mm512_unpackhi_epi16(w[4 * h + 2 * k], w[4 * h + 2 * k + 1]);
            }
        UNROLL
        for (int h = 0; h < 4; h++) {
            byte[b][2 * h] = turn_avx512(_mm512_unpacklo_epi32(v[2 * h], v[2 * h + 1]));
            byte[b][2 * h + 1] = turn_avx512(_mm512_unpackhi_epi32(v[2 * h], v[2 * h + 1]));
        }
    }
    UNROLL
    for (int q = 0; q < 8; q++) {
        __m512i v[4], lo = _mm512_unpacklo_epi8(byte[0][q], byte[1][q]), hi = _mm512_unpackhi_epi8(byte[0][q], byte[1][q]);
        v[0] = lo;
        v[1] = hi;
        if (size == 4) {
            __m512i lo2 = _mm512_unpacklo_epi8(byte[2][q], byte[3][q]), hi2 = _mm512_unpackhi_epi8(byte[2][q], byte[3][q]);
            v[0] = _mm512_unpacklo_epi16(lo, lo2);
            v[1] = _mm512_unpackhi_epi16(lo, lo2);
            v[2] = _mm512_unpacklo_epi16(hi, hi2);
            v[3] = _mm512_unpackhi_epi16(hi, hi2);
        }
        store_lanes(v, dst + size * 16 * q, (size_t)size * 128, size);
    }
}

AVX512 static size_t join_avx512(const uint8_t *src, uint8_t *dst, size_t n, int size)
{
    size_t at = 0;
    if (size == 2)
        for (; at + JOIN_BLOCK_512 <= n; at += JOIN_BLOCK_512) join_block_avx512(src + at / 8, n / 8, dst + at * 2, 2);
    if (size == 4)
        for (; at + JOIN_BLOCK_512 <= n; at += JOIN_BLOCK_512) join_block_avx512(src + at / 8, n / 8, dst + at * 4, 4);
    return at;
}
#endif

void fmt_bits_split(const uint8_t *src, uint8_t *dst, size_t n, int size)
{
    size_t at = 0;
#if defined(__x86_64__)
    if (cpu_has_avx512()) at = split_avx512(src, dst, n, size);
    if (cpu_has_avx2()) at = split_avx2(src, dst, at, n, size);
#endif
    FMT_BY_SIZE(size, split_portable(src, dst, at, n, SIZE));
}

void fmt_bits_join(const uint8_t *src, uint8_t *dst, size_t n, int size)
{
    size_t at = 0;
#if defined(__x86_64__)
    if (cpu_has_avx512()) at = join_avx512(src, dst, n, size);
    if (cpu_has_avx2()) at = join_avx2(src, dst, at, n, size);
#endif
    FMT_BY_SIZE(size, join_portable(src, dst, at, n, SIZE));
}
