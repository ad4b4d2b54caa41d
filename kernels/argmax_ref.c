#include "kernels/argmax.h"

krn_best krn_best_of(krn_best a, krn_best b)
{
    if (krn_value_before(a.value, b.value)) return a;
    if (krn_value_before(b.value, a.value)) return b;
    return a.id <= b.id ? a : b;
}

krn_best krn_argmax_ref(const float *v, int64_t n, int32_t first_id)
{
    krn_best best = { NAN, first_id };
    for (int64_t i = 0; i < n; i++)
        if (krn_value_before(v[i], best.value)) best = (krn_best){ v[i], (int32_t)(first_id + i) };
    return best;
}

void krn_topn_ref(const float *v, int64_t n, int32_t k, int32_t *ids, float *values)
{
    int32_t count = 0; /* entries of the sorted list so far */
    for (int64_t i = 0; i < n; i++) {
        if (count == k && !krn_value_before(v[i], values[k - 1])) continue;
        if (count < k) count++;
        int32_t at = count - 1;
        for (; at > 0 && krn_value_before(v[i], values[at - 1]); at--) {
            ids[at] = ids[at - 1];
            values[at] = values[at - 1];
        }
        ids[at] = (int32_t)i;
        values[at] = v[i];
    }
}
