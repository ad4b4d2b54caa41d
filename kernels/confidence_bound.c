#include "kernels/confidence.h"

krn_span krn_confidence_bound(const bf16 *hidden, int32_t dim, const bf16 *markov, int32_t rank, const bf16 *w,
                              krn_rule rule)
{
    double sum = 0, size = 0, square = 0;
    for (int32_t i = 0; i < dim + rank; i++) {
        double x = (double)f32_from_bf16(i < dim ? hidden[i] : markov[i - dim]), product = x * (double)f32_from_bf16(w[i]);
        sum += product;
        size += fabs(product);
        square += product * product;
    }
    return krn_span_around(sum, krn_sum_reach(rule, dim + rank, sum, size, square));
}
