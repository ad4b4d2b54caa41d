#include "kernels/attention.h"

/* Keys of a slot as krn_attention_ref has them. */
static const bf16 *key_at(const bf16 *ring, int32_t n_ring, const bf16 *block_kv, int32_t i, int32_t head_dim)
{
    return i < n_ring ? ring + (int64_t)i * head_dim : block_kv + (int64_t)(i - n_ring) * head_dim;
}

/* s[i] = q . key i * scale, and ds[i] the bound of the p made from it, relative; i < n. Returns e: how far, relative, any p
 * may be off, the largest score's error included. */
static double scores(const bf16 *q, const bf16 *ring, int32_t n_ring, const bf16 *block_kv, int32_t n, double scale,
                     int32_t head_dim, krn_rule rule, double *s, double *ds)
{
    double largest = 0;
    for (int32_t i = 0; i < n; i++) {
        const bf16 *key = key_at(ring, n_ring, block_kv, i, head_dim);
        double sum[KRN_LANES] = { 0 }, size[KRN_LANES] = { 0 };
        for (int32_t d = 0; d < head_dim; d++) {
            double product = (double)f32_from_bf16(q[d]) * (double)f32_from_bf16(key[d]);
            sum[d % KRN_LANES] += product;
            size[d % KRN_LANES] += fabs(product);
        }
        for (int l = 1; l < KRN_LANES; l++) sum[0] += sum[l], size[0] += size[l];
        s[i] = sum[0] * scale;
        ds[i] = krn_sum_slack(rule, head_dim) * size[0] * scale + KRN_U * fabs(s[i]) + 2 * KRN_U;
        largest = fmax(largest, ds[i]);
    }
    return 2 * largest;
}

/* Errors of different scores have nothing to do with each other: their squares add up. The worst case adds them as they
 * are. */
static double term(krn_rule rule, double error) { return rule == KRN_RULE_WORST ? fabs(error) : error * error; }
static double total(krn_rule rule, double sum) { return rule == KRN_RULE_WORST ? sum : sqrt(sum); }

void krn_attention_bound(const bf16 *q, const bf16 *ring, int32_t n_ring, const bf16 *block_kv, int32_t n_block, float sink,
                         float scale, int32_t head_dim, krn_rule rule, double *room, krn_span *o)
{
    const int32_t n = n_ring + n_block, blocks = (n - 1) / KRN_ATTENTION_KEYS + 1;
    double *s = room, *ds = room + n, *scored = room + 2 * n; /* [head_dim] terms of what the scores' errors do */
    const double e = scores(q, ring, n_ring, block_kv, n, (double)scale, head_dim, rule, s, ds);
    const double summed = krn_sum_slack(rule, n) + (2 * blocks + 3) * KRN_U;
    double m = -1e30, l = 0, l_scored = 0;
    for (int32_t d = 0; d < head_dim; d++) o[d] = krn_span_point(0), scored[d] = 0; /* lo: the sum, hi: its bound, so far */
    for (int32_t first = 0; first < n; first += KRN_ATTENTION_KEYS) {
        const int32_t end = n - first < KRN_ATTENTION_KEYS ? n : first + KRN_ATTENTION_KEYS;
        double m_next = m;
        for (int32_t i = first; i < end; i++) m_next = s[i] > m_next ? s[i] : m_next;
        const double c = exp(m - m_next), c_term = term(rule, c);
        m = m_next;
        l *= c, l_scored *= c_term;
        for (int32_t d = 0; d < head_dim; d++) o[d].lo *= c, o[d].hi *= c, scored[d] *= c_term;
        for (int32_t i = first; i < end; i++) {
            const bf16 *value = key_at(ring, n_ring, block_kv, i, head_dim), code = bf16_from_f32((float)exp(s[i] - m));
            const double p = exp(s[i] - m), pb = (double)f32_from_bf16(code);
            krn_span own = krn_preimage_bf16(code);
            double slack = summed * p;
            if (fmin(p - own.lo, own.hi - p) <= e * p) slack += own.hi - own.lo; /* pb may be its neighbour */
            l += p;
            l_scored += term(rule, ds[i] * p);
            for (int32_t d = 0; d < head_dim; d++) {
                double v = (double)f32_from_bf16(value[d]);
                o[d].lo += pb * v;
                o[d].hi += slack * fabs(v);
                scored[d] += term(rule, ds[i] * p * v);
            }
        }
    }
    const double l_error = total(rule, l_scored) + summed * l;
    l += exp((double)sink - m);
    for (int32_t d = 0; d < head_dim; d++)
        o[d] = krn_span_around(o[d].lo / l, (o[d].hi + total(rule, scored[d]) + fabs(o[d].lo) / l * l_error) / l);
}
