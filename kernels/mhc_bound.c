#include "kernels/mhc.h"

static double sigmoid(double z) { return 1 / (1 + exp(-z)); }

/* R4, R5 in double. */
static void sinkhorn(double *c, int32_t hc, double eps, int32_t iters)
{
    for (int32_t pass = 0; pass < 2 * iters; pass++) { /* rows, columns, rows, ... */
        const int32_t along = pass % 2 ? hc : 1, across = pass % 2 ? 1 : hc;
        for (int32_t j = 0; j < hc; j++) {
            double *line = c + j * across, sum = 0;
            for (int32_t k = 0; k < hc; k++) sum += line[k * along];
            for (int32_t k = 0; k < hc; k++) /* the first softmax adds its eps to the quotient */
                line[k * along] = pass == 0 ? line[k * along] / sum + eps : line[k * along] / (sum + eps);
        }
    }
}

void krn_mhc_mixes_bound(const bf16 *x, const krn_span *dots, const float *base, const float *scale, int32_t hc,
                         int32_t dim, float norm_eps, float hc_eps, int32_t iters, krn_rule rule, krn_span *pre,
                         krn_span *post, krn_span *comb)
{
    const int64_t n = (int64_t)hc * dim;
    double squares = 0, comb_dz = 0, c[KRN_MHC_COPIES_MAX * KRN_MHC_COPIES_MAX];
    for (int64_t i = 0; i < n; i++) squares += (double)f32_from_bf16(x[i]) * (double)f32_from_bf16(x[i]);
    const double r = 1 / sqrt(squares / (double)n + (double)norm_eps), slack = krn_sum_slack(rule, n) / 2 + 5 * KRN_U;
    for (int32_t i = 0; i < (2 + hc) * hc; i++) {
        double part = (double)scale[i < hc ? 0 : i < 2 * hc ? 1 : 2];
        double m = krn_span_middle(dots[i]) * r * part, z = m + (double)base[i];
        double dz = fabs(m) * slack + KRN_U * fabs(z) + krn_span_half(dots[i]) * r * fabs(part);
        krn_span one = krn_span_widen(krn_span_point(sigmoid(z)), dz + 5 * KRN_U);
        if (i < hc) pre[i] = (krn_span){ one.lo + (double)hc_eps, one.hi + (double)hc_eps };
        else if (i < 2 * hc) post[i - hc] = (krn_span){ 2 * one.lo, 2 * one.hi };
        else c[i - 2 * hc] = z, comb_dz = fmax(comb_dz, dz);
    }
    for (int32_t j = 0; j < hc; j++) {
        double *row = c + j * hc, max = row[0];
        for (int32_t k = 1; k < hc; k++) max = fmax(max, row[k]);
        for (int32_t k = 0; k < hc; k++) row[k] = exp(row[k] - max);
    }
    sinkhorn(c, hc, (double)hc_eps, iters);
    for (int32_t i = 0; i < hc * hc; i++)
        comb[i] = krn_span_widen(krn_span_point(c[i]), 4 * comb_dz + 2 * iters * (hc + 3) * KRN_U);
}

/* sum_j w[j * w_stride] * x[j][d]; *size the sum of sizes. */
static double mix(const float *w, int32_t w_stride, const bf16 *x, int32_t hc, int32_t dim, int32_t d, double *size)
{
    double sum = 0;
    *size = 0;
    for (int32_t j = 0; j < hc; j++) {
        double term = (double)w[j * w_stride] * (double)f32_from_bf16(x[(int64_t)j * dim + d]);
        sum += term;
        *size += fabs(term);
    }
    return sum;
}

krn_span krn_mhc_collapse_bound(const bf16 *x, const float *pre, int32_t hc, int32_t dim, int32_t d)
{
    double size, sum = mix(pre, 1, x, hc, dim, d, &size);
    return krn_span_around(sum, hc * KRN_U * size);
}

krn_span krn_mhc_expand_bound(const bf16 *y, const bf16 *x, const float *post, const float *comb, int32_t hc, int32_t dim,
                              int32_t k, int32_t d)
{
    double size, sum = mix(comb + k, hc, x, hc, dim, d, &size), own = (double)post[k] * (double)f32_from_bf16(y[d]);
    return krn_span_around(own + sum, (hc + 2) * KRN_U * (size + fabs(own)));
}
