#include "kernels/combine.h"

krn_span krn_combine_fused_bound(const float *slot, const float *shared, int32_t k, int32_t dim, int32_t d)
{
    double sum = (double)shared[d], size = fabs(sum);
    for (int32_t j = 0; j < k; j++) {
        double term = (double)slot[(int64_t)j * dim + d];
        sum += term;
        size += fabs(term);
    }
    /* Where ranks summed before they met, slot and shared are sums of their parts: rounded once more, and the parts may be
     * the larger ones. Twice the bound of whole terms, and two more roundings of each. */
    return krn_span_around(sum, 2 * (k + 2) * KRN_U * size);
}
