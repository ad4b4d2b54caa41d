#include "kernels/mhc.h"

#include "kernels/row_loops.h"

static double sigmoid(double z) { return 1 / (1 + exp(-z)); }

enum { COMB_MAX = KRN_MHC_COPIES_MAX * KRN_MHC_COPIES_MAX };

/* Errors of different dots have nothing to do with each other: their squares add up. The worst case adds them as they
 * are. */
static double term(krn_rule rule, double error) { return rule == KRN_RULE_WORST ? fabs(error) : error * error; }
static double total(krn_rule rule, double sum) { return rule == KRN_RULE_WORST ? sum : sqrt(sum); }

/* z of the comb, and their errors: own is of each alone, shared (relative, of m) of r and thus of all together. */
typedef struct comb_errors { double m[COMB_MAX], own[COMB_MAX], shared, largest; } comb_errors;

/* How far log c may move; d [n]: its derivatives by the n z. */
static double moved(const double *d, int32_t n, const comb_errors *z, krn_rule rule)
{
    double own = 0, shared = 0;
    for (int32_t k = 0; k < n; k++) {
        own += term(rule, d[k] * z->own[k]);
        shared += d[k] * z->m[k];
    }
    return (total(rule, own) + fabs(shared) * z->shared) * (1 + 16 * z->largest);
}

/* comb from e^(z - max of its row). */
static void bound_comb(double *c, const comb_errors *z, int32_t hc, double hc_eps, int32_t iters, krn_rule rule,
                       krn_span *comb)
{
    const double rounding = 2 * iters * (hc + 3) * KRN_U;
    const int32_t n = hc * hc;
    double d[COMB_MAX * COMB_MAX];
    krn_row_loops_get()->balance(c, hc, hc_eps, iters, d);
    for (int32_t i = 0; i < n; i++) {
        const double *row = d + i * KRN_BALANCE_PITCH(hc);
        const double log_moved = z->largest < 0x1p-4 ? moved(row, n, z, rule) : 2 * hc * z->largest;
        comb[i] = krn_span_widen(krn_span_point(c[i]), expm1(log_moved) + rounding);
    }
}

static double inverse_rms(const bf16 *x, int64_t n, float norm_eps)
{
    double squares[KRN_LANES] = { 0 };
    for (int64_t i = 0; i < n; i++) {
        const double v = (double)f32_from_bf16(x[i]);
        squares[i % KRN_LANES] += v * v;
    }
    for (int i = 1; i < KRN_LANES; i++) squares[0] += squares[i];
    return 1 / sqrt(squares[0] / (double)n + (double)norm_eps);
}

void krn_mhc_mixes_bound(const bf16 *x, const krn_span *dots, const float *base, const float *scale, int32_t hc,
                         int32_t dim, float norm_eps, float hc_eps, int32_t iters, krn_rule rule, krn_span *pre,
                         krn_span *post, krn_span *comb)
{
    const int64_t n = (int64_t)hc * dim;
    const double r = inverse_rms(x, n, norm_eps), of_r = krn_sum_slack(rule, n) / 2, steps = 5 * KRN_U;
    double c[COMB_MAX];
    comb_errors errors = { .shared = of_r };
    for (int32_t i = 0; i < (2 + hc) * hc; i++) {
        if (!(i < hc ? pre : i < 2 * hc ? post : comb)) continue;
        const double part = (double)scale[i < hc ? 0 : i < 2 * hc ? 1 : 2];
        const double m = krn_span_middle(dots[i]) * r * part, z = m + (double)base[i];
        const double own = fabs(m) * steps + KRN_U * fabs(z) + krn_span_half(dots[i]) * r * fabs(part);
        const double dz = own + fabs(m) * of_r;
        if (i < 2 * hc) {
            const krn_span one = krn_span_widen(krn_span_point(sigmoid(z)), dz + 5 * KRN_U);
            if (i < hc) pre[i] = (krn_span){ one.lo + (double)hc_eps, one.hi + (double)hc_eps };
            else post[i - hc] = (krn_span){ 2 * one.lo, 2 * one.hi };
            continue;
        }
        c[i - 2 * hc] = z;
        errors.m[i - 2 * hc] = m;
        errors.own[i - 2 * hc] = own;
        errors.largest = fmax(errors.largest, dz);
    }
    if (!comb) return;
    for (int32_t j = 0; j < hc; j++) {
        double *row = c + j * hc, max = row[0];
        for (int32_t k = 1; k < hc; k++) max = fmax(max, row[k]);
        for (int32_t k = 0; k < hc; k++) row[k] = exp(row[k] - max);
    }
    bound_comb(c, &errors, hc, (double)hc_eps, iters, rule, comb);
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
