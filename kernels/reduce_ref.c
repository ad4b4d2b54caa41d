#include "kernels/reduce.h"

void krn_sum_ranks_ref(const float *const *parts, int32_t n_ranks, int64_t first, int64_t n, float *out)
{
    for (int64_t i = first; i < first + n; i++) {
        float sum = parts[0][i];
        for (int32_t rank = 1; rank < n_ranks; rank++) sum += parts[rank][i];                        /* R1 */
        out[i] = sum;
    }
}
