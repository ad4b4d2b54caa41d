#include "replay/metrics_block.h"

/* One body, compiled three times: the loops are plain C whose inner 16 or 512 steps are independent, so the compiler makes
 * vectors of whatever width the instruction set has, and order of sums never depends on it. */
#define BODY static inline __attribute__((always_inline))

enum { N = RPL_BLOCK, L = KRN_LANES };

/* Sums of a block; differ false: both sides are the same bits, so one product serves. W lanes at a time (a register of
 * the instruction set), an order of the loops that keeps all sums in registers and each lane's own order as it is. */
#define SUMS(W)                                                                                                 \
    typedef double sums_vd##W __attribute__((vector_size(8 * W)));                                              \
    typedef float sums_vf##W __attribute__((vector_size(4 * W)));                                               \
    BODY void add_sums_##W(const float *restrict a, const float *restrict b, bool differ, rpl_sums *s)          \
    {                                                                                                           \
        for (int lane = 0; lane < L; lane += W) {                                                               \
            sums_vd##W aa, bb, ab, dd;                                                                          \
            sums_vf##W xf, yf;                                                                                  \
            memcpy(&aa, s->aa + lane, sizeof aa);                                                               \
            memcpy(&bb, s->bb + lane, sizeof bb);                                                               \
            memcpy(&ab, s->ab + lane, sizeof ab);                                                               \
            memcpy(&dd, s->dd + lane, sizeof dd);                                                               \
            for (int i = lane; i < N; i += L) {                                                                 \
                memcpy(&xf, a + i, sizeof xf);                                                                  \
                sums_vd##W x = __builtin_convertvector(xf, sums_vd##W), p = x * x;                              \
                aa += p;  \
                if (!differ) {                                                                                  \
                    bb += p;                                                                                    \
                    ab += p;                                                                                    \
                    continue;                                                                                   \
                }                                                                                               \
                memcpy(&yf, b + i, sizeof yf);                                                                  \
                sums_vd##W y = __builtin_convertvector(yf, sums_vd##W), d = x - y;                              \
                bb += y * y;                                                                                    \
                ab += x * y;                                                                                    \
                dd += d * d;                                                                                    \
            }                                                                                                   \
            memcpy(s->aa + lane, &aa, sizeof aa);                                                               \
            memcpy(s->bb + lane, &bb, sizeof bb);                                                               \
            memcpy(s->ab + lane, &ab, sizeof ab);                                                               \
            memcpy(s->dd + lane, &dd, sizeof dd);                                                               \
        }                                                                                                       \
    }
SUMS(2)
SUMS(4)
SUMS(8)
typedef void add_sums_fn(const float *a, const float *b, bool differ, rpl_sums *s);

/* Largest |a-b| and |a-b| / |b|, in f32. */
BODY void find_max(const float *restrict a, const float *restrict b, rpl_block *out)
{
    float max_abs[L] = { 0 }, max_rel[L] = { 0 };
    for (int i = 0; i < N; i += L)
        for (int j = 0; j < L; j++) {
            float y = fabsf(b[i + j]), d = fabsf(a[i + j] - b[i + j]), r = d / (y > 0 ? y : INFINITY);
            max_abs[j] = d > max_abs[j] ? d : max_abs[j];
            max_rel[j] = r > max_rel[j] ? r : max_rel[j];
        }
    for (int j = 1; j < L; j++) {
        if (max_abs[j] > max_abs[0]) max_abs[0] = max_abs[j];
        if (max_rel[j] > max_rel[0]) max_rel[0] = max_rel[j];
    }
    out->max_abs = max_abs[0];
    out->max_rel = max_rel[0];
}

/* Histogram by thresholds 0, 1, 2, 4, 8, ... : one counting pass per bucket in use, which for order noise are few.
 * More than threshold k lies in a bucket above k. */
#define HISTOGRAM(type)                                                   \
    do {                                                                  \
        int32_t above = N;                                                \
        int k = 0;                                                        \
        for (uint64_t t = 0; above > 0; k++, t = t ? 2 * t : 1) {         \
            type more = 0;                                                \
            if (t < out->max_ulp)                                         \
                for (int i = 0; i < N; i++) more += ulp[i] > (type)t;     \
            out->ulp[k] = above - (int32_t)more;                          \
            above = (int32_t)more;                                        \
        }                                                                 \
        for (; k < RPL_ULP_BUCKETS; k++) out->ulp[k] = 0;                 \
    } while (0)

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

BODY bool block_bf16(const void *a, const void *b, rpl_sums *s, rpl_block *out, add_sums_fn *add_sums)
{
    uint16_t ua[N], ub[N], ulp[N];
    float fa[N], fb[N];
    look_ahead(a, sizeof ua);
    look_ahead(b, sizeof ub);
    memcpy(ua, a, sizeof ua);
    memcpy(ub, b, sizeof ub);
    COUNT(uint16_t, 0x8000u, 0x7f80u);
    for (int i = 0; i < N; i++) fa[i] = f32_from_bf16(ua[i]), fb[i] = f32_from_bf16(ub[i]);
    add_sums(fa, fb, differ != 0, s);
    if (differ) {
        find_max(fa, fb, out);
        HISTOGRAM(uint16_t);
    }
    return true;
}

BODY bool block_f32(const void *a, const void *b, rpl_sums *s, rpl_block *out, add_sums_fn *add_sums)
{
    uint32_t ua[N], ub[N], ulp[N];
    float fa[N], fb[N];
    look_ahead(a, sizeof ua);
    look_ahead(b, sizeof ub);
    memcpy(ua, a, sizeof ua);
    memcpy(ub, b, sizeof ub);
    COUNT(uint32_t, 0x80000000u, 0x7f800000u);
    memcpy(fa, ua, sizeof fa);
    memcpy(fb, ub, sizeof fb);
    add_sums(fa, fb, differ != 0, s);
    if (differ) {
        find_max(fa, fb, out);
        HISTOGRAM(uint32_t);
    }
    return true;
}

#define KERNELS(suffix, W, attribute)                                                                 \
    attribute static bool bf16_##suffix(const void *a, const void *b, rpl_sums *s, rpl_block *out)    \
    {                                                                                                 \
        return block_bf16(a, b, s, out, add_sums_##W);                                                \
    }                                                                                                 \
    attribute static bool f32_##suffix(const void *a, const void *b, rpl_sums *s, rpl_block *out)     \
    {                                                                                                 \
        return block_f32(a, b, s, out, add_sums_##W);                                                 \
    }

KERNELS(plain, 2, )
#if defined(__x86_64__)
KERNELS(avx2, 4, __attribute__((target("avx2"))))
KERNELS(avx512, 8, __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,prefer-vector-width=512"))))
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
