#include "kernels/rope.h"

/* a * k + b * l, and two roundings of each product. */
static krn_span turned(krn_span a, double k, krn_span b, double l)
{
    krn_span p = krn_span_mul(a, krn_span_point(k)), q = krn_span_mul(b, krn_span_point(l));
    double slack = 2 * KRN_U * (krn_span_largest(p) + krn_span_largest(q));
    return (krn_span){ p.lo + q.lo - slack, p.hi + q.hi + slack };
}

void krn_rope_bound(krn_span re, krn_span im, int32_t pos, float freq, bool inverse, krn_span out[2])
{
    float angle = (float)pos * freq;                                                                 /* R1 */
    double c = (double)(float)cos((double)angle), s = (double)(float)sin((double)angle);             /* R2 */
    if (inverse) s = -s;
    out[0] = turned(re, c, im, -s);
    out[1] = turned(re, s, im, c);
}
