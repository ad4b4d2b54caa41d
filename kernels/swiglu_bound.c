#include "kernels/swiglu.h"

static double silu(double g) { return g / (1 + exp(-g)); }

krn_span krn_swiglu_bound(krn_span g, krn_span u, double route_weight, float limit)
{
    const double top = (double)limit;
    krn_span ends = { silu(fmin(g.lo, top)), silu(fmin(g.hi, top)) }; /* falls below -1.28, rises above: */
    krn_span gate = { fmin(ends.lo, ends.hi), fmax(ends.lo, ends.hi) };
    const double lowest_at = -1.2784645427610738, lowest = -0.27846454276107380;
    if (g.lo < lowest_at && lowest_at < g.hi) gate.lo = lowest;
    krn_span up = { fmax(fmin(u.lo, top), -top), fmax(fmin(u.hi, top), -top) };
    krn_span v = krn_span_mul(krn_span_mul(gate, up), krn_span_point(route_weight));
    return krn_span_widen(v, 10 * KRN_U); /* 5 ulp; an ulp is at most 2 u of the value */
}
