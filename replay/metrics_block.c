#include "replay/metrics_block.h"

#include <math.h>

#if defined(__x86_64__)
#include <immintrin.h>

#include "base/cpu.h"
#endif

/* One body, compiled three times: the loops are plain C whose inner 16 or 512 steps are independent, so the compiler makes
 * vectors of whatever width the instruction set has, and order of sums never depends on it. */
#define BODY static inline __attribute__((always_inline))

enum { N = RPL_BLOCK, L = KRN_LANES };

/* Elements of a tensor, whose bytes may lie anywhere. */
typedef float any_f32 __attribute__((aligned(1), may_alias));
typedef uint32_t any_u32 __attribute__((aligned(1), may_alias));
typedef uint16_t any_u16 __attribute__((aligned(1), may_alias));

/* Sums of a block; differ false: both sides are the same bits, so one product serves. GROUPS vectors of W lanes at a
 * time: all sums stay in registers, each lane keeps its order, and additions of one group need not wait for those of
 * another. A product of two f32 is exact in double, so FMA gives the bits of a multiplication and an addition; (a-b)^2
 * is not, and is rounded. */
#define SUMS(W, GROUPS, attribute, WIDEN, FMA)                                                                  \
    typedef double sums_vd##W __attribute__((vector_size(8 * W)));                                              \
    typedef float sums_vf##W __attribute__((vector_size(4 * W)));                                               \
    attribute BODY void add_sums_##W(const any_f32 *a, const any_f32 *b, bool differ, rpl_sums *s)              \
    {                                                                                                           \
        for (int lane = 0; lane < L; lane += W * GROUPS) {                                                      \
            sums_vd##W aa[GROUPS], bb[GROUPS], ab[GROUPS], dd[GROUPS];                                          \
            memcpy(aa, s->aa + lane, sizeof aa);                                                                \
            memcpy(bb, s->bb + lane, sizeof bb);                                                                \
            memcpy(ab, s->ab + lane, sizeof ab);                                                                \
            memcpy(dd, s->dd + lane, sizeof dd);                                                                \
            for (int i = lane; i < N; i += L)                                                                   \
                for (int g = 0; g < GROUPS; g++) {                                                              \
                    sums_vf##W xf, yf;                                                                          \
                    memcpy(&xf, a + i + g * W, sizeof xf);                                                      \
                    sums_vd##W x = WIDEN(xf);                                                                   \
                    if (!differ) {                                                                              \
                        sums_vd##W p = x * x;                                                                   \
                        aa[g] += p;                                                                             \
                        bb[g] += p;                                                                             \
                        ab[g] += p;                                                                             \
                        continue;                                                                               \
                    }                                                                                           \
                    memcpy(&yf, b + i + g * W, sizeof yf);                                                      \
                    sums_vd##W y = WIDEN(yf), d = x - y;                                                        \
                    aa[g] = FMA(x, x, aa[g]);                                                                   \
                    bb[g] = FMA(y, y, bb[g]);                                                                   \
                    ab[g] = FMA(x, y, ab[g]);                                                                   \
                    dd[g] += d * d;                                                                             \
                }                                                                                               \
            memcpy(s->aa + lane, aa, sizeof aa);                                                                \
            memcpy(s->bb + lane, bb, sizeof bb);                                                                \
            memcpy(s->ab + lane, ab, sizeof ab);                                                                \
            memcpy(s->dd + lane, dd, sizeof dd);                                                                \
        }                                                                                                       \
    }
#define WIDEN_2(x) __builtin_convertvector(x, sums_vd2)
#define MULTIPLY_ADD(x, y, z) ((x) * (y) + (z))
SUMS(2, 1, , WIDEN_2, MULTIPLY_ADD)
#if defined(__x86_64__)
#define AVX2 __attribute__((target("avx2,fma,popcnt")))
#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma,popcnt" CPU_PREFER_512)))
SUMS(4, 2, AVX2, _mm256_cvtps_pd, _mm256_fmadd_pd)
SUMS(8, 2, AVX512, _mm512_cvtps_pd, _mm512_fmadd_pd)
#endif
typedef void add_sums_fn(const any_f32 *a, const any_f32 *b, bool differ, rpl_sums *s);

/* The sign of d - rel * y, exactly: where y is no tiny number, d (a difference of two f32 of which one is y) is none
 * either, and nothing is lost to underflow. Fused in hardware or, elsewhere, in double. */
#define BEYOND_FMA(d, rel, y) (__builtin_fmaf(-(rel), y, d) > 0)
#define BEYOND_DOUBLE(d, rel, y) ((double)(rel) * (double)(y) < (double)(d))

/* Largest |a-b|, and |a-b| / |b| where it may exceed the largest so far, in f32. A quotient above rel, rounded or not,
 * needs |a-b| > rel * |b|; hardly a block after the first has such an element, so hardly one divides. */
#define FIND_MAX(suffix, attribute, BEYOND)                                                                     \
    attribute BODY void find_max_##suffix(const any_f32 *a, const any_f32 *b, float *rel, rpl_block *out) \
    {                                                                                                           \
        float max_abs[L] = { 0 }, max_rel[L] = { 0 }, so_far = *rel;                                            \
        int32_t beyond[L] = { 0 }, any = 0;                                                                     \
        for (int i = 0; i < N; i += L)                                                                          \
            for (int j = 0; j < L; j++) {                                                                       \
                float y = fabsf(b[i + j]), d = fabsf(a[i + j] - b[i + j]);                                      \
                max_abs[j] = d > max_abs[j] ? d : max_abs[j];                                                   \
                y = y > 0x1p-70f ? y : 0;                                                                       \
                beyond[j] |= BEYOND(d, so_far, y);                                                              \
            }                                                                                                   \
        for (int j = 0; j < L; j++) {                                                                           \
            if (max_abs[j] > max_abs[0]) max_abs[0] = max_abs[j];                                               \
            any |= beyond[j];                                                                                   \
        }                                                                                                       \
        out->max_abs = max_abs[0];                                                                              \
        if (!any) return;                                                                                       \
        for (int i = 0; i < N; i += L)                                                                          \
            for (int j = 0; j < L; j++) {                                                                       \
                float y = fabsf(b[i + j]), d = fabsf(a[i + j] - b[i + j]), r = d / (y > 0 ? y : INFINITY);      \
                max_rel[j] = r > max_rel[j] ? r : max_rel[j];                                                   \
            }                                                                                                   \
        for (int j = 0; j < L; j++)                                                                             \
            if (max_rel[j] > *rel) *rel = max_rel[j];                                                           \
    }
FIND_MAX(2, , BEYOND_DOUBLE)
#if defined(__x86_64__)
FIND_MAX(4, AVX2, BEYOND_FMA)
FIND_MAX(8, AVX512, BEYOND_FMA)
#endif
typedef void find_max_fn(const any_f32 *a, const any_f32 *b, float *rel, rpl_block *out);

/* How many of N 16-bit distances are above t, and how many of N bytes are k. */
typedef int32_t count_above_fn(const uint16_t *ulp, uint16_t t);
typedef int32_t count_bytes_fn(const uint8_t *bytes, uint8_t k);

BODY int32_t count_above_2(const uint16_t *ulp, uint16_t t)
{
    int32_t n = 0;
    for (int i = 0; i < N; i++) n += ulp[i] > t;
    return n;
}

BODY int32_t count_bytes_2(const uint8_t *bytes, uint8_t k)
{
    int32_t n = 0;
    for (int i = 0; i < N; i++) n += bytes[i] == k;
    return n;
}

#if defined(__x86_64__)
AVX2 BODY int32_t count_above_4(const uint16_t *ulp, uint16_t t)
{
    const __m256i limit = _mm256_set1_epi16((int16_t)t), zero = _mm256_setzero_si256();
    int32_t at_most = 0;
    for (int i = 0; i < N; i += 16) {
        __m256i over = _mm256_subs_epu16(_mm256_loadu_si256((const __m256i *)(ulp + i)), limit);
        at_most += __builtin_popcount((uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi16(over, zero)));
    }
    return N - at_most / 2;
}

AVX2 BODY int32_t count_bytes_4(const uint8_t *bytes, uint8_t k)
{
    const __m256i wanted = _mm256_set1_epi8((int8_t)k);
    int32_t n = 0;
    for (int i = 0; i < N; i += 32) {
        __m256i v = _mm256_loadu_si256((const __m256i *)(bytes + i));
        n += __builtin_popcount((uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(v, wanted)));
    }
    return n;
}

AVX512 BODY int32_t count_above_8(const uint16_t *ulp, uint16_t t)
{
    const __m512i limit = _mm512_set1_epi16((int16_t)t);
    int32_t n = 0;
    for (int i = 0; i < N; i += 32) n += __builtin_popcount(_mm512_cmpgt_epu16_mask(_mm512_loadu_si512(ulp + i), limit));
    return n;
}

AVX512 BODY int32_t count_bytes_8(const uint8_t *bytes, uint8_t k)
{
    const __m512i wanted = _mm512_set1_epi8((int8_t)k);
    int32_t n = 0;
    for (int i = 0; i < N; i += 64)
        n += __builtin_popcountll(_mm512_cmpeq_epi8_mask(_mm512_loadu_si512(bytes + i), wanted));
    return n;
}
#endif

/* Histogram of 16-bit distances by thresholds 0, 1, 2, 4, 8, ... : one counting pass per bucket in use, which for order
 * noise are few. More than threshold k lies in a bucket above k. */
BODY void count_thresholds(const uint16_t *ulp, rpl_block *out, count_above_fn *count_above)
{
    int32_t above = N;
    uint64_t t = 0;
    for (int k = 0; k < RPL_ULP_BUCKETS; k++, t = t ? 2 * t : 1) {
        int32_t more = t < out->max_ulp ? count_above(ulp, (uint16_t)t) : 0;
        out->ulp[k] = above - more;
        above = more;
    }
}

/* Histogram of 32-bit distances, whose buckets are many: the bucket of every element as a byte, then one pass over bytes
 * per bucket. Bucket of u >= 2: 2 + floor(log2(u - 1)), read off the exponent of u - 1 as a float; clearing the bit
 * below the leading one keeps it from being rounded up to the next power of two. Above 2^31 the float is negative: the
 * last bucket. */
BODY void count_buckets(const uint32_t *restrict ulp, rpl_block *out, count_bytes_fn *count_bytes)
{
    enum { LAST = RPL_ULP_BUCKETS - 1 };
    uint8_t bucket[N];
    for (int i = 0; i < N; i++) {
        uint32_t x = ulp[i] - 1;
        float f = (float)(int32_t)(x & ~(x >> 1));
        int32_t k = (int32_t)(f32_bits(f) >> 23) - 125;
        k = k < 1 ? 1 : k;
        k = k > LAST ? LAST : k;
        bucket[i] = (uint8_t)(k & -(int32_t)(ulp[i] != 0));
    }
    int32_t left = N;
    for (int k = 0; k < RPL_ULP_BUCKETS; k++) {
        out->ulp[k] = left ? count_bytes(bucket, (uint8_t)k) : 0;
        left -= out->ulp[k];
    }
}

/* Asks for a later block while this one is worked on; otherwise reading and arithmetic take turns (measured: a third less).
 * Past the end it does nothing. */
BODY void look_ahead(const void *p, size_t block_bytes)
{
    const char *next = (const char *)p + 2 * block_bytes;
    for (size_t i = 0; i < block_bytes; i += 64) __builtin_prefetch(next + i);
}

/* Integer half of a block: sign-magnitude distance, non-finite values, zeros (counted only where there are any). */
#define COUNT(type, sign, inf)                                                                     \
    type differ = 0, max = 0, largest = 0, smallest = (type)inf;                                   \
    for (int i = 0; i < N; i++) {                                                                  \
        type ma = ua[i] & (type)(sign - 1), mb = ub[i] & (type)(sign - 1);                         \
        type hi = ma > mb ? ma : mb, lo = ma > mb ? mb : ma;                                       \
        type across = (type)(hi + lo), along = (type)(hi - lo);                                    \
        type d = ((ua[i] ^ ub[i]) & (type)sign) ? across : along;                                  \
        ulp[i] = d;                                                                                \
        max = d > max ? d : max;                                                                   \
        differ += (type)(ua[i] != ub[i]);                                                          \
        largest = hi > largest ? hi : largest;                                                     \
        smallest = lo < smallest ? lo : smallest;                                                  \
    }                                                                                              \
    if (largest >= (type)inf) return false;                                                        \
    type zero_a = 0, zero_b = 0, zero_differ = 0;                                                  \
    for (int i = 0; smallest == 0 && i < N; i++) {                                                 \
        type za = (ua[i] & (type)(sign - 1)) == 0, zb = (ub[i] & (type)(sign - 1)) == 0;           \
        zero_a += za, zero_b += zb, zero_differ += (type)(za ^ zb);                                \
    }                                                                                              \
    out->n_differ = (int32_t)differ, out->n_zero_a = (int32_t)zero_a, out->n_zero_b = (int32_t)zero_b; \
    out->n_zero_differ = (int32_t)zero_differ, out->max_ulp = (uint32_t)max

BODY bool block_bf16(const void *a, const void *b, rpl_sums *s, rpl_block *out, add_sums_fn *add_sums,
                     find_max_fn *find_max, count_above_fn *count_above)
{
    const any_u16 *ua = a, *ub = b;
    uint16_t ulp[N];
    float fa[N], fb[N];
    look_ahead(a, sizeof ulp);
    look_ahead(b, sizeof ulp);
    COUNT(uint16_t, 0x8000u, 0x7f80u);
    for (int i = 0; i < N; i++) fa[i] = f32_from_bf16(ua[i]), fb[i] = f32_from_bf16(ub[i]);
    add_sums(fa, fb, differ != 0, s);
    if (differ) {
        find_max(fa, fb, &s->max_rel, out);
        count_thresholds(ulp, out, count_above);
    }
    return true;
}

BODY bool block_f32(const void *a, const void *b, rpl_sums *s, rpl_block *out, add_sums_fn *add_sums,
                    find_max_fn *find_max, count_bytes_fn *count_bytes)
{
    const any_u32 *ua = a, *ub = b;
    uint32_t ulp[N];
    look_ahead(a, sizeof ulp);
    look_ahead(b, sizeof ulp);
    COUNT(uint32_t, 0x80000000u, 0x7f800000u);
    add_sums(a, b, differ != 0, s);
    if (differ) {
        find_max(a, b, &s->max_rel, out);
        count_buckets(ulp, out, count_bytes);
    }
    return true;
}

#define KERNELS(suffix, W, attribute)                                                                 \
    attribute static bool bf16_##suffix(const void *a, const void *b, rpl_sums *s, rpl_block *out)    \
    {                                                                                                 \
        return block_bf16(a, b, s, out, add_sums_##W, find_max_##W, count_above_##W);                 \
    }                                                                                                 \
    attribute static bool f32_##suffix(const void *a, const void *b, rpl_sums *s, rpl_block *out)     \
    {                                                                                                 \
        return block_f32(a, b, s, out, add_sums_##W, find_max_##W, count_bytes_##W);                  \
    }

KERNELS(plain, 2, )
#if defined(__x86_64__)
KERNELS(avx2, 4, AVX2)
KERNELS(avx512, 8, AVX512)
#endif

rpl_block_fn *rpl_block_kernel(fmt_dtype dtype, krn_isa isa)
{
#if defined(__x86_64__)
    if (isa >= KRN_ISA_AVX512) return dtype == FMT_DTYPE_BF16 ? bf16_avx512 : f32_avx512;
    if (isa == KRN_ISA_AVX2) return dtype == FMT_DTYPE_BF16 ? bf16_avx2 : f32_avx2;
#endif
    (void)isa;
    return dtype == FMT_DTYPE_BF16 ? bf16_plain : f32_plain;
}
