#include "kernels/gate.h"

static double score(double z) { return sqrt(z > 20 ? z : log1p(exp(z))); }

krn_span krn_gate_scores_bound(krn_span logit)
{
    return krn_span_widen((krn_span){ score(logit.lo), score(logit.hi) }, 3 * KRN_U); /* it rises throughout */
}

void krn_gate_weights_bound(const float *scores, const int32_t *ids, int32_t k, float route_scale, krn_span *weights)
{
    double total = 0;
    for (int32_t j = 0; j < k; j++) total += (double)scores[ids[j]];
    for (int32_t j = 0; j < k; j++) {
        double exact = (double)scores[ids[j]] / total * (double)route_scale;
        weights[j] = krn_span_widen(krn_span_point(exact), (k + 3) * KRN_U);
    }
}
