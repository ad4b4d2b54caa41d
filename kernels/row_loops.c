#include "kernels/row_loops.h"

#include "kernels/attention.h"
#include "kernels/mhc.h"
#include "kernels/simd.h"

/* ---- lanes16 over two rows of bf16 ---- */

/* 16 elements of x from i on; past n zeros, which change no lane: a sum that starts at +0 is never -0. */
SIMD_INLINE f32x16 load_16(const bf16 *x, int64_t i, int64_t n)
{
    if (i + KRN_LANES <= n) return f32x16_from_bf16(x + i);
    bf16 tail[KRN_LANES] = { 0 };
    memcpy(tail, x + i, (size_t)(n - i) * sizeof *tail);
    return f32x16_from_bf16(tail);
}

SIMD_INLINE float dot_f32(const bf16 *x, const bf16 *w, int64_t n)
{
    f32x16 sum = f32x16_splat(0.0f);
    for (int64_t i = 0; i < n; i += KRN_LANES) sum = f32x16_add(sum, f32x16_mul(load_16(x, i, n), load_16(w, i, n)));
    return f32x16_sum(sum);
}

/* Not rounded to f32. */
SIMD_INLINE double dot_f64(const bf16 *x, const bf16 *w, int64_t n)
{
    f64x16 sum = f64x16_splat(0.0);
    for (int64_t i = 0; i < n; i += KRN_LANES)
        sum = f64x16_add_product(sum, f64x16_from_f32(load_16(x, i, n)), f64x16_from_f32(load_16(w, i, n)));
    return f64x16_sum(sum);
}

/* ---- attention ---- */

static inline const bf16 *key_at(const krn_keys *k, int32_t i)
{
    return i < k->n_ring ? k->ring + (int64_t)i * k->head_dim : k->block + (int64_t)(i - k->n_ring) * k->head_dim;
}

/* The running state of one head of one row. */
typedef struct head_state {
    float m, l;
    float acc[KRN_ATTENTION_HEAD_DIM_MAX]; /* first head_dim used */
} head_state;

enum { SIDE_BY_SIDE = 4 }; /* keys, or 16 columns of them, summed at once: one sum alone would wait for itself */

/* q . key for keys [first, first + count), in double: dot_f64 of each. */
static void scores_f64(const bf16 *q, const krn_keys *k, int32_t first, int32_t count, float *p)
{
    for (int32_t j = 0; j < count; j += SIDE_BY_SIDE) {
        const int32_t n = count - j < SIDE_BY_SIDE ? count - j : SIDE_BY_SIDE;
        const bf16 *key[SIDE_BY_SIDE];
        f64x16 sum[SIDE_BY_SIDE];
        SIMD_UNROLL
        for (int i = 0; i < SIDE_BY_SIDE; i++) {
            key[i] = key_at(k, first + j + (i < n ? i : 0)); /* past the last one: computed, not used */
            sum[i] = f64x16_splat(0.0);
        }
        for (int64_t d = 0; d < k->head_dim; d += KRN_LANES) {
            const f64x16 qd = f64x16_from_f32(load_16(q, d, k->head_dim));
            SIMD_UNROLL
            for (int i = 0; i < SIDE_BY_SIDE; i++)
                sum[i] = f64x16_add_product(sum[i], qd, f64x16_from_f32(load_16(key[i], d, k->head_dim)));
        }
        SIMD_UNROLL
        for (int i = 0; i < SIDE_BY_SIDE; i++)
            if (i < n) p[j + i] = (float)f64x16_sum(sum[i]);
    }
}

/* R1, R2 for keys [first, first + count): p, the correction c; m moves on. */
static float probabilities(head_state *st, const bf16 *q, const krn_keys *k, int32_t first, int32_t count, float scale,
                           krn_acc acc, float *p)
{
    float m = st->m;
    if (acc == KRN_ACC_F64) scores_f64(q, k, first, count, p);
    else
        for (int32_t j = 0; j < count; j++) p[j] = dot_f32(q, key_at(k, first + j), k->head_dim);
    for (int32_t j = 0; j < count; j++) {
        p[j] *= scale;                                                                               /* R1 */
        if (p[j] > m) m = p[j];
    }
    float c = krn_f32_exp(st->m - m);                                                                /* R2 */
    for (int32_t j = 0; j < count; j++) p[j] = krn_f32_exp(p[j] - m);
    st->m = m;
    return c;
}

/* R3, R4 in f32. */
static void accumulate_f32(head_state *st, const krn_keys *k, int32_t first, int32_t count, float c, const float *p)
{
    float sum = 0;
    for (int32_t j = 0; j < count; j++) sum += p[j];
    st->l = fmaf(st->l, c, sum);                                                                     /* R3 */
    for (int32_t d = 0; d < k->head_dim; d++) st->acc[d] *= c;                                       /* R4 */
    for (int32_t j = 0; j < count; j++) {
        const bf16 *value = key_at(k, first + j);
        float pb = bf16_round(p[j]);
        for (int32_t d = 0; d < k->head_dim; d++) st->acc[d] += pb * f32_from_bf16(value[d]);
    }
}

/* R4 for `blocks` times 16 columns from d on. */
SIMD_INLINE void weigh_f64(head_state *st, const krn_keys *k, int32_t first, int32_t count, float c, const double *pb,
                           int32_t d, int blocks)
{
    f64x16 sum[SIDE_BY_SIDE];
    SIMD_UNROLL
    for (int b = 0; b < blocks; b++) sum[b] = f64x16_splat(0.0);
    for (int32_t j = 0; j < count; j++) {
        const bf16 *value = key_at(k, first + j);
        const f64x16 weight = f64x16_splat(pb[j]);
        SIMD_UNROLL
        for (int b = 0; b < blocks; b++)
            sum[b] = f64x16_add_product(sum[b], weight,
                                        f64x16_from_f32(load_16(value, d + b * KRN_LANES, k->head_dim))); /* exact */
    }
    SIMD_UNROLL
    for (int b = 0; b < blocks; b++) {
        double sums[KRN_LANES];
        float *acc = st->acc + d + b * KRN_LANES;
        f64x16_store(sums, sum[b]);
        for (int32_t i = 0; i < KRN_LANES && d + b * KRN_LANES + i < k->head_dim; i++) {
            float scaled = acc[i] * c;
            acc[i] = (float)(scaled + sums[i]);                                                      /* R4 */
        }
    }
}

/* R3, R4 with the sums in double. */
static void accumulate_f64(head_state *st, const krn_keys *k, int32_t first, int32_t count, float c, const float *p)
{
    double sum = 0, pb[KRN_ATTENTION_KEYS];
    for (int32_t j = 0; j < count; j++) sum += p[j];
    for (int32_t j = 0; j < count; j++) pb[j] = (double)bf16_round(p[j]);
    st->l = (float)((double)st->l * c + sum);                                                        /* R3 */
    int32_t d = 0;
    for (; d + SIDE_BY_SIDE * KRN_LANES <= k->head_dim; d += SIDE_BY_SIDE * KRN_LANES)
        weigh_f64(st, k, first, count, c, pb, d, SIDE_BY_SIDE);
    for (; d < k->head_dim; d += KRN_LANES) weigh_f64(st, k, first, count, c, pb, d, 1);
}

static void attend(const bf16 *q, const krn_keys *k, float sink, float scale, krn_acc acc, bf16 *o)
{
    head_state st;
    st.m = -1e30f;
    st.l = 0;
    memset(st.acc, 0, (size_t)k->head_dim * sizeof st.acc[0]);
    for (int32_t first = 0; first < k->n; first += KRN_ATTENTION_KEYS) {
        int32_t count = k->n - first < KRN_ATTENTION_KEYS ? k->n - first : KRN_ATTENTION_KEYS;
        float p[KRN_ATTENTION_KEYS];
        float c = probabilities(&st, q, k, first, count, scale, acc, p);
        if (acc == KRN_ACC_F64) accumulate_f64(&st, k, first, count, c, p);
        else accumulate_f32(&st, k, first, count, c, p);
    }
    float l = st.l + krn_f32_exp(sink - st.m);                                                       /* R5 */
    for (int32_t d = 0; d < k->head_dim; d++) o[d] = bf16_from_f32(st.acc[d] / l);                   /* R6 */
}

/* ---- rmsnorm ---- */

static float inv_rms(const bf16 *x, int64_t n, float eps)
{
    float mean = (float)(dot_f64(x, x, n) / (double)n);
    return krn_f32_rsqrt(mean + eps);
}

static void scale(const bf16 *x, const bf16 *w, float r, bf16 *y, int32_t dim)
{
    for (int32_t i = 0; i < dim; i++)
        y[i] = bf16_from_f32(f32_from_bf16(w[i]) * (f32_from_bf16(x[i]) * r));                       /* R5, R6 */
}

/* ---- mHC ---- */

enum { MIX_COLUMNS = 64 }; /* summed at a time */

/* sum_j w[j * w_stride] * x[j][d] to f32 for n columns from d on: R1 of collapse and of expand. */
static void mix(const float *w, int32_t w_stride, const bf16 *x, int32_t hc, int32_t dim, int32_t d, int32_t n, krn_acc acc,
                float out[MIX_COLUMNS])
{
    if (acc == KRN_ACC_F64) {
        double sum[MIX_COLUMNS] = { 0 };
        for (int32_t j = 0; j < hc; j++) {
            const double wj = (double)w[(int64_t)j * w_stride];
            const bf16 *xj = x + (int64_t)j * dim + d;
            for (int32_t i = 0; i < n; i++) sum[i] += wj * (double)f32_from_bf16(xj[i]);
        }
        for (int32_t i = 0; i < n; i++) out[i] = (float)sum[i];
        return;
    }
    for (int32_t i = 0; i < n; i++) out[i] = w[0] * f32_from_bf16(x[d + i]);
    for (int32_t j = 1; j < hc; j++) {
        const float wj = w[(int64_t)j * w_stride];
        const bf16 *xj = x + (int64_t)j * dim + d;
        for (int32_t i = 0; i < n; i++) out[i] += wj * f32_from_bf16(xj[i]);
    }
}

static void collapse(const bf16 *x, const float *pre, bf16 *y, int32_t hc, int32_t dim, krn_acc acc)
{
    for (int32_t d = 0; d < dim; d += MIX_COLUMNS) {
        const int32_t n = dim - d < MIX_COLUMNS ? dim - d : MIX_COLUMNS;
        float sum[MIX_COLUMNS];
        mix(pre, 1, x, hc, dim, d, n, acc, sum);
        for (int32_t i = 0; i < n; i++) y[d + i] = bf16_from_f32(sum[i]);
    }
}

static void expand(const bf16 *y, const bf16 *x, float post, const float *comb_k, bf16 *out, int32_t hc, int32_t dim,
                   krn_acc acc)
{
    for (int32_t d = 0; d < dim; d += MIX_COLUMNS) {
        const int32_t n = dim - d < MIX_COLUMNS ? dim - d : MIX_COLUMNS;
        float sum[MIX_COLUMNS];
        mix(comb_k, hc, x, hc, dim, d, n, acc, sum);
        for (int32_t i = 0; i < n; i++) out[d + i] = bf16_from_f32(post * f32_from_bf16(y[d + i]) + sum[i]); /* R1..R3 */
    }
}

/* hc numbers of c, `stride` apart, by their sum, to which eps is added; the first softmax adds its eps to the quotients.
 * Products and sums are rounded one by one, so that all instruction sets agree. */
SIMD_INLINE void balance_line(double *c, int32_t hc, int32_t stride, double eps, bool softmax, double *d)
{
    const int32_t pitch = KRN_BALANCE_PITCH(hc), step = stride * pitch;
    double sum = softmax ? 0 : eps, share[KRN_MHC_COPIES_MAX], factor[KRN_MHC_COPIES_MAX];
    for (int32_t k = 0; k < hc; k++) sum += c[k * stride];
    for (int32_t k = 0; k < hc; k++) {
        double *ck = c + k * stride;
        share[k] = -*ck / sum;
        *ck /= sum;
        factor[k] = 1;
        if (!softmax) continue;
        factor[k] = *ck / (*ck + eps);
        *ck += eps;
    }
    for (int32_t i = 0; i < pitch; i += KRN_LANES) {
        f64x16 back = f64x16_splat(0.0); /* what the sum's logarithm moves by, negative */
        for (int32_t k = 0; k < hc; k++)
            back = f64x16_add(back, f64x16_mul(f64x16_splat(share[k]), f64x16_load(d + k * step + i)));
        for (int32_t k = 0; k < hc; k++) {
            const f64x16 moved = f64x16_add(f64x16_load(d + k * step + i), back);
            f64x16_store(d + k * step + i, softmax ? f64x16_mul(moved, f64x16_splat(factor[k])) : moved);
        }
    }
}

SIMD_INLINE void balance_of(double *c, int32_t hc, double eps, int32_t iters, double *d)
{
    const int32_t pitch = KRN_BALANCE_PITCH(hc);
    for (int32_t i = 0; i < hc * hc; i++)
        for (int32_t k = 0; k < pitch; k++) d[i * pitch + k] = i == k;
    for (int32_t pass = 0; pass < 2 * iters; pass++) { /* rows, columns, rows, ... */
        const int32_t along = pass % 2 ? hc : 1, across = pass % 2 ? 1 : hc;
        for (int32_t j = 0; j < hc; j++) {
            double *cj = c + j * across, *dj = d + j * across * pitch;
            if (pass == 0) balance_line(cj, hc, along, eps, true, dj);
            else balance_line(cj, hc, along, eps, false, dj);
        }
    }
}

/* The official number of copies has its own loop. */
static void balance(double *c, int32_t hc, double eps, int32_t iters, double *d)
{
    if (hc == 4) balance_of(c, 4, eps, iters, d);
    else balance_of(c, hc, eps, iters, d);
}

/* ---- QDQ ---- */

/* e4m3_from_f32 and back, without a table and without a branch. v NaN gives NaN. */
static inline float e4m3_round(float v)
{
    const float size = fabsf(v), a = size > 448.0f ? 448.0f : size;
    uint32_t u = f32_bits(a);
    const float normal = f32_from_bits((u + 0x7ffff + (u >> 20 & 1)) & 0xfff00000), small = (a + 0x1p14f) - 0x1p14f;
    const float rounded = a < 0x1p-6f ? small : normal;
    return size == size ? copysignf(rounded, v) : NAN;
}

static void qdq(const bf16 *x, bf16 *y, int32_t cols)
{
    for (int32_t c = 0; c < cols; c += FMT_QDQ_GROUP) {
        uint16_t amax = 0; /* magnitudes of floats order as their bits do */
        for (int i = 0; i < FMT_QDQ_GROUP; i++) {
            const uint16_t size = x[c + i] & 0x7fff, number = size <= 0x7f80 ? size : 0;
            amax = number > amax ? number : amax;
        }
        const uint8_t e = fmt_qdq_scale(f32_from_bf16(amax));                                        /* R1 */
        /* The scale lies in 2^-22..2^120, so its inverse is exact, and a product with it is x / scale. */
        const float inverse = e == FMT_E8M0_NAN ? NAN : f32_from_e8m0((uint8_t)(2 * FMT_E8M0_BIAS - e));
        const float factor = f32_from_e8m0(e);
        for (int i = 0; i < FMT_QDQ_GROUP; i++)
            y[c + i] = bf16_from_f32(e4m3_round(f32_from_bf16(x[c + i]) * inverse) * factor);        /* R2 */
    }
}

#if defined(KRN_SIMD_AVX512)
const krn_row_loops KRN_ROWS_AVX512 = { attend, inv_rms, scale, collapse, expand, balance, qdq };
#elif defined(KRN_SIMD_AVX2)
const krn_row_loops KRN_ROWS_AVX2 = { attend, inv_rms, scale, collapse, expand, balance, qdq };
#else
const krn_row_loops KRN_ROWS_SCALAR = { attend, inv_rms, scale, collapse, expand, balance, qdq };
#endif
