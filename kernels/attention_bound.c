#include "kernels/attention.h"

/* Keys of a slot as krn_attention_ref has them. */
static const bf16 *key_at(const bf16 *ring, int32_t n_ring, const bf16 *block_kv, int32_t i, int32_t head_dim)
{
    return i < n_ring ? ring + (int64_t)i * head_dim : block_kv + (int64_t)(i - n_ring) * head_dim;
}

/* s[i] = q . key i * scale, and ds[i] the bound of the p made from it, relative; i < n. Returns e: how far, relative, any p
 * may be off, the largest score's error included.
 * In KRN_RULE_SHARP near[i] [n] is what e is to be made of for each p: six deviations of s[i], without the room that a
 * bound has beyond them. With it so many p might be near a tie that outputs would be free by an ulp or two. */
static double scores(const bf16 *q, const bf16 *ring, int32_t n_ring, const bf16 *block_kv, int32_t n, double scale,
                     int32_t head_dim, krn_rule rule, double *s, double *ds, double *near)
{
    double largest = 0;
    for (int32_t i = 0; i < n; i++) {
        const bf16 *key = key_at(ring, n_ring, block_kv, i, head_dim);
        double sum[KRN_LANES] = { 0 }, size[KRN_LANES] = { 0 }, square[KRN_LANES] = { 0 };
        for (int32_t d = 0; d < head_dim; d++) {
            double product = (double)f32_from_bf16(q[d]) * (double)f32_from_bf16(key[d]);
            sum[d % KRN_LANES] += product;
            size[d % KRN_LANES] += fabs(product);
            if (rule == KRN_RULE_SHARP) square[d % KRN_LANES] += product * product;
        }
        for (int l = 1; l < KRN_LANES; l++) sum[0] += sum[l], size[0] += size[l], square[0] += square[l];
        s[i] = sum[0] * scale;
        const double dot = krn_sum_reach(rule, head_dim, sum[0], size[0], square[0]) * scale;
        const double rest = KRN_U * fabs(s[i]) + 2 * KRN_U;
        ds[i] = dot + rest;
        near[i] = krn_sum_slack(rule, head_dim) / 3 * sqrt(sum[0] * sum[0] + square[0] / 2) * scale + rest;
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
    const bool sharp = rule == KRN_RULE_SHARP;
    double *s = room, *ds = room + n, *scored = room + 2 * n; /* [head_dim] terms of what the scores' errors do */
    /* Sharp only: [head_dim] sum |p v|, sum (p v)^2; [n] of scores(). */
    double *size = scored + head_dim, *square = size + head_dim, *near = square + head_dim;
    const double e = scores(q, ring, n_ring, block_kv, n, (double)scale, head_dim, rule, s, ds, near);
    const double steps = (2 * blocks + 3) * KRN_U, summed = krn_sum_slack(rule, n) + steps;
    double m = -1e30, m_near = 0, l = 0, l_scored = 0;
    for (int32_t d = 0; d < head_dim; d++) { /* o.lo: the sum, o.hi: its bound, so far */
        o[d] = krn_span_point(0);
        scored[d] = size[d] = square[d] = 0;
    }
    for (int32_t first = 0; first < n; first += KRN_ATTENTION_KEYS) {
        const int32_t end = n - first < KRN_ATTENTION_KEYS ? n : first + KRN_ATTENTION_KEYS;
        double m_next = m;
        for (int32_t i = first; i < end; i++)
            if (s[i] > m_next) m_next = s[i], m_near = near[i];
        const double c = exp(m - m_next), c_term = term(rule, c);
        m = m_next;
        l *= c, l_scored *= c_term;
        for (int32_t d = 0; d < head_dim; d++) o[d].lo *= c, o[d].hi *= c, scored[d] *= c_term;
        for (int32_t d = 0; d < head_dim && sharp; d++) size[d] *= c, square[d] *= c * c;
        for (int32_t i = first; i < end; i++) {
            const bf16 *value = key_at(ring, n_ring, block_kv, i, head_dim), code = bf16_from_f32((float)exp(s[i] - m));
            const double p = exp(s[i] - m);
            double pb = (double)f32_from_bf16(code), slack = (sharp ? steps : summed) * p;
            if (sharp) { /* what p rounds to: one number, seldom two */
                const krn_span pbs = krn_span_bf16(krn_span_around(p, hypot(near[i], m_near) * p));
                pb = krn_span_middle(pbs);
                slack += krn_span_half(pbs);
            } else {
                const krn_span own = krn_preimage_bf16(code);
                if (fmin(p - own.lo, own.hi - p) <= e * p) slack += own.hi - own.lo; /* pb may be its neighbour */
            }
            l += p;
            l_scored += term(rule, ds[i] * p);
            for (int32_t d = 0; d < head_dim; d++) {
                double v = (double)f32_from_bf16(value[d]);
                o[d].lo += pb * v;
                o[d].hi += slack * fabs(v);
                scored[d] += term(rule, ds[i] * p * v);
            }
            for (int32_t d = 0; d < head_dim && sharp; d++) {
                const double product = p * (double)f32_from_bf16(value[d]);
                size[d] += fabs(product);
                square[d] += product * product;
            }
        }
    }
    const double l_error = total(rule, l_scored) + summed * l;
    l += exp((double)sink - m);
    for (int32_t d = 0; d < head_dim; d++) {
        if (sharp) o[d].hi += krn_sum_reach(rule, n, o[d].lo, size[d], square[d]);
        o[d] = krn_span_around(o[d].lo / l, (o[d].hi + total(rule, scored[d]) + fabs(o[d].lo) / l * l_error) / l);
    }
}
