#include "kernels/rmsnorm.h"

void krn_rmsnorm_bound(const krn_span *x, const bf16 *w, int32_t dim, float eps, krn_rule rule, krn_span *y)
{
    double least = 0, most = 0; /* of the sum of squares */
    for (int32_t i = 0; i < dim; i++) {
        double a = x[i].lo * x[i].lo, b = x[i].hi * x[i].hi;
        most += a > b ? a : b;
        if (x[i].lo > 0 || x[i].hi < 0) least += a < b ? a : b; /* else 0 lies inside */
    }
    const double slack = krn_sum_slack(rule, dim) / 2 + 5 * KRN_U; /* the root halves the error of the sum */
    krn_span r = { (1 - slack) / sqrt(most / dim + (double)eps), (1 + slack) / sqrt(least / dim + (double)eps) };
    for (int32_t i = 0; i < dim; i++) {
        krn_span u = krn_span_mul(x[i], r);
        y[i] = krn_span_mul(u, krn_span_point((double)f32_from_bf16(w[i])));
    }
}
