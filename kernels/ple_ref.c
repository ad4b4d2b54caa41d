#include "kernels/ple.h"

#include "kernels/ple_steps.h"

/* The sum of all lanes: 16, 8, 4, 2, 1 apart in each warp, then the warps 4, 2, 1 apart. */
static float lanes_sum(float lane[KRN_PLE_LANES])
{
    enum { WARP = 32 };
    for (int apart = WARP / 2; apart > 0; apart /= 2)
        for (int i = 0; i < KRN_PLE_LANES; i += WARP)
            for (int j = i; j < i + apart; j++) lane[j] += lane[j + apart];
    for (int apart = KRN_PLE_LANES / 2; apart >= WARP; apart /= 2)
        for (int i = 0; i < apart; i += WARP) lane[i] += lane[i + apart];
    return lane[0];
}

/* Rows x and y [n]. */
static float dot(const float *x, const float *y, int32_t n)
{
    float lane[KRN_PLE_LANES] = { 0 };
    for (int32_t d = 0; d < n; d++) lane[d % KRN_PLE_LANES] = fmaf(x[d], y[d], lane[d % KRN_PLE_LANES]);
    return lanes_sum(lane);
}

/* y = x / sqrt(mean(x * x) + 1e-6), and then times w unless it is NULL. y may be x. */
static void gnorm(const float *x, const float *w, float *y, int32_t n)
{
    const float r = krn_ple_inv_rms(dot(x, x, n), krn_ple_scale_of(n).inv_n);                        /* R4, R5 */
    for (int32_t d = 0; d < n; d++) y[d] = x[d] * r;                                                 /* R6 */
    if (!w) return;
    for (int32_t d = 0; d < n; d++) y[d] *= w[d];
}

void krn_ple_gnorm_ref(krn_ple_shape s, const float *x, const float *w, float *y)
{
    for (int64_t group = 0; group < (int64_t)s.tokens * s.hc; group++)
        gnorm(x + group * s.n, w + group % s.hc * s.n, y + group * s.n, s.n);
}

/* R1, R2 of channel d */
static float combined(krn_ple_shape s, const krn_ple_combine *in, int32_t t, int32_t d)
{
    const int32_t *pick = in->plan + in->p_tokent + (int64_t)in->top_k * t; /* [top_k] */
    float sum = 0;
    for (int32_t j = 0; j < in->top_k; j++)
        if (pick[j] >= 0 && pick[j] < in->rows) sum += in->ye[(int64_t)pick[j] * s.n + d];
    return fmaf(in->gs[t], in->ysh[(int64_t)t * s.n + d], sum);
}

/* R1..R3 */
static void combine(krn_ple_shape s, const krn_ple_combine *in, const float *resid, float *resid_out)
{
    for (int32_t t = 0; t < s.tokens; t++)
        for (int32_t d = 0; d < s.n; d++) {
            const float m = combined(s, in, t, d);
            for (int32_t c = 0; c < s.hc; c++) {
                const int64_t group = (int64_t)t * s.hc + c, at = group * s.n + d;
                resid_out[at] = fmaf(m, in->g[group], resid[at]);
            }
        }
}

void krn_gr_norm_comb_ref(krn_ple_shape s, krn_ple_combine in, const float *resid, float *resid_out, float *xn)
{
    combine(s, &in, resid, resid_out);
    for (int64_t group = 0; group < (int64_t)s.tokens * s.hc; group++)
        gnorm(resid_out + group * s.n, NULL, xn + group * s.n, s.n);
}

void krn_ple_query_gate_norm_ref(krn_ple_shape s, krn_ple_query q, const float *resid, float *gate, float *norm_w)
{
    for (int64_t group = 0; group < (int64_t)s.tokens * s.hc; group++) {
        const int64_t at = group * s.n, weight = group % s.hc * s.n;
        const float *value = q.value + group / s.hc * s.n;
        float *row = norm_w + at; /* [n]: query, then gated, then the result */
        gnorm(resid + at, q.w_query + weight, row, s.n);                                             /* R4..R6 */
        const float a = dot(q.key + at, row, s.n) * krn_ple_scale_of(s.n).inv_sqrt_n;                /* R7 */
        const float open = krn_ple_gate(a);                                                          /* R8 */
        if (gate) gate[group] = open;
        for (int32_t d = 0; d < s.n; d++) row[d] = open * value[d];
        gnorm(row, q.w_conv + weight, row, s.n);                                                     /* R9 */
    }
}

void krn_ple_comb_query_gate_norm_ref(krn_ple_shape s, krn_ple_combine in, krn_ple_query q, const float *resid,
                                      float *resid_out, float *gate, float *norm_w)
{
    combine(s, &in, resid, resid_out);
    krn_ple_query_gate_norm_ref(s, q, resid_out, gate, norm_w);
}
