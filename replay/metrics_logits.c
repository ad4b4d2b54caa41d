#include "replay/metrics_logits.h"

#include <math.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>

#include "base/cpu.h"
#endif

/* One body, compiled three times for vectors of W doubles. The products that are added to a number at once are fused in all
 * three (in hardware, or by libm's fma), so bits do not depend on W. */
#define BODY static inline __attribute__((always_inline))

enum { L = KRN_LANES };

/* exp(x) for x <= 0: x = k ln 2 + r with k an integer, ln 2 in two pieces of which the first ends in 32 zero bits, so
 * that k times it is exact; exp(r) = 1 + r + r^2 q(r), where q interpolates at the 10 Chebyshev nodes of |r| <= ln 2 / 2
 * (relative error of the polynomial 1.6e-17). Adding 1.5 * 2^52 rounds to an integer and leaves k in the low bits. */
#define EXP_SUMS(W, attribute, WIDEN, FMA)                                                                           \
    typedef double exp_vd##W __attribute__((vector_size(8 * W)));                                                    \
    typedef int64_t exp_vi##W __attribute__((vector_size(8 * W)));                                                   \
    typedef uint64_t exp_vu##W __attribute__((vector_size(8 * W)));                                                  \
    typedef float exp_vf##W __attribute__((vector_size(4 * W)));                                                     \
    attribute BODY void exp_##W(exp_vd##W *io)                                                                       \
    {                                                                                                                \
        const exp_vd##W zero = { 0 };                                                                                \
        exp_vd##W x = *io, shifted = x * 0x1.71547652b82fep+0 + 0x1.8p52, k = shifted - 0x1.8p52;                     \
        exp_vd##W r = (x - k * 0x1.62e42p-1) - k * 0x1.fdf473de6af28p-22;                                            \
        exp_vd##W q = FMA(r, zero + 0x1.af38b6cc9f96ap-26, zero + 0x1.289190088364dp-22);                            \
        q = FMA(q, r, zero + 0x1.71de0da8e0958p-19);                                                                 \
        q = FMA(q, r, zero + 0x1.a019b90435244p-16);                                                                 \
        q = FMA(q, r, zero + 0x1.a01a01a7c588ap-13);                                                                 \
        q = FMA(q, r, zero + 0x1.6c16c1788e279p-10);                                                                 \
        q = FMA(q, r, zero + 0x1.11111111109b1p-7);                                                                  \
        q = FMA(q, r, zero + 0x1.5555555553d5dp-5);                                                                  \
        q = FMA(q, r, zero + 0x1.5555555555556p-3);                                                                  \
        q = FMA(q, r, zero + 0x1.0000000000001p-1);                                                                  \
        q = FMA(q, r * r, r);                                                                                        \
        exp_vd##W scale = (exp_vd##W)(((exp_vu##W)shifted << 52) + 0x3ff0000000000000u); /* 2^k */                   \
        exp_vd##W v = FMA(q, scale, scale);                                                                          \
        *io = (exp_vd##W)((exp_vi##W)v & ~(exp_vi##W)(x < -708.0)); /* the scale would not be a normal number */      \
    }                                                                                                                \
    attribute static void exp_sums_##W(const float *a, const float *b, int64_t n, double max_a, double max_b,        \
                                       rpl_exp_sums *sums)                                                           \
    {                                                                                                                \
        for (int lane = 0; lane < L; lane += W) {                                                                    \
            exp_vd##W sum_a, sum_b, gain;                                                                            \
            memcpy(&sum_a, sums->a + lane, sizeof sum_a);                                                            \
            memcpy(&sum_b, sums->b + lane, sizeof sum_b);                                                            \
            memcpy(&gain, sums->gain + lane, sizeof gain);                                                           \
            for (int64_t i = lane; i < n; i += L) {                                                                  \
                exp_vf##W xf, yf;                                                                                    \
                memcpy(&xf, a + i, sizeof xf);                                                                       \
                memcpy(&yf, b + i, sizeof yf);                                                                       \
                exp_vd##W x = WIDEN(xf), y = WIDEN(yf);                                                              \
                exp_vd##W e_a = x - max_a, e_b = y - max_b;                                                          \
                exp_##W(&e_a);                                                                                       \
                exp_##W(&e_b);                                                                                       \
                sum_a += e_a;                                                                                        \
                sum_b += e_b;                                                                                        \
                gain += (exp_vd##W)((exp_vi##W)(e_b * (y - x)) & (exp_vi##W)(e_b != 0.0));                           \
            }                                                                                                        \
            memcpy(sums->a + lane, &sum_a, sizeof sum_a);                                                            \
            memcpy(sums->b + lane, &sum_b, sizeof sum_b);                                                            \
            memcpy(sums->gain + lane, &gain, sizeof gain);                                                           \
        }                                                                                                            \
    }

BODY void raise_tops(const float *v, int64_t n, float *top)
{
    float t[RPL_SCAN_LANES];
    memcpy(t, top, sizeof t);
    for (int64_t i = 0; i < n; i += RPL_SCAN_LANES)
        for (int j = 0; j < RPL_SCAN_LANES; j++) t[j] = v[i + j] > t[j] ? v[i + j] : t[j]; /* NaN never is */
    memcpy(top, t, sizeof t);
}

#define KERNEL(suffix, W, attribute)                                                                                \
    attribute static void tops_##suffix(const float *v, int64_t n, float *top) { raise_tops(v, n, top); }            \
    static const rpl_row_kernel ROW_##suffix = { exp_sums_##W, tops_##suffix, next_##suffix };

static int64_t next_plain(const float *v, int64_t i, int64_t n, float least)
{
    while (i < n && !(v[i] >= least)) i++;
    return i;
}

#if defined(__x86_64__)
#define AVX2 __attribute__((target("avx2,fma")))
#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma" CPU_PREFER_512)))

AVX2 static int64_t next_avx2(const float *v, int64_t i, int64_t n, float least)
{
    for (; i + 8 <= n; i += 8) {
        int hits = _mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(v + i), _mm256_set1_ps(least), _CMP_GE_OQ));
        if (hits) return i + __builtin_ctz((uint32_t)hits);
    }
    return next_plain(v, i, n, least);
}

AVX512 static int64_t next_avx512(const float *v, int64_t i, int64_t n, float least)
{
    for (; i + 16 <= n; i += 16) {
        uint32_t hits = _mm512_cmp_ps_mask(_mm512_loadu_ps(v + i), _mm512_set1_ps(least), _CMP_GE_OQ);
        if (hits) return i + __builtin_ctz(hits);
    }
    return next_plain(v, i, n, least);
}
#endif

#define FMA_2(x, y, z) (exp_vd2){ fma((x)[0], (y)[0], (z)[0]), fma((x)[1], (y)[1], (z)[1]) }
#define WIDEN_2(x) __builtin_convertvector(x, exp_vd2)
EXP_SUMS(2, , WIDEN_2, FMA_2)
KERNEL(plain, 2, )
#if defined(__x86_64__)
EXP_SUMS(4, AVX2, _mm256_cvtps_pd, _mm256_fmadd_pd)
KERNEL(avx2, 4, AVX2)
EXP_SUMS(8, AVX512, _mm512_cvtps_pd, _mm512_fmadd_pd)
KERNEL(avx512, 8, AVX512)
#endif

const rpl_row_kernel *rpl_row_kernel_of(krn_isa isa)
{
#if defined(__x86_64__)
    if (isa >= KRN_ISA_AVX512) return &ROW_avx512;
    if (isa == KRN_ISA_AVX2) return &ROW_avx2;
#endif
    (void)isa;
    return &ROW_plain;
}
