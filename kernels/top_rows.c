#include "kernels/top_rows.h"

#include <math.h>

/* Strictly before: equal values keep the order they came in, which is by id. */
static inline int before(float a, float b) { return a > b || (isnan(b) && !isnan(a)); }

void krn_top_rows(const float *const *shard, const int64_t *cols, int32_t n_shards, int64_t rows, int32_t k, float *values,
              int32_t *ids)
{
    for (int64_t row = 0; row < rows; row++) {
        float *v = values + row * k;
        int32_t *id = ids + row * k, n = 0, next = 0;
        for (int32_t s = 0; s < n_shards; s++) {
            const float *x = shard[s] + row * cols[s];
            for (int64_t c = 0; c < cols[s]; c++, next++) {
                if (n == k && !before(x[c], v[k - 1])) continue; /* nearly always */
                int32_t at = n < k ? n++ : k - 1;
                for (; at > 0 && before(x[c], v[at - 1]); at--) {
                    v[at] = v[at - 1];
                    id[at] = id[at - 1];
                }
                v[at] = x[c];
                id[at] = next;
            }
        }
    }
}
