#include "kernels/combine.h"

/* Columns summed at a time: the sums stay on the stack. */
enum { CHUNK = 256 };

/* The entry of ids that follows entry `last` (-1: the first) in ascending (id, index) order. */
static int32_t next_expert(const int32_t *ids, int32_t k, int32_t last)
{
    int32_t best = -1;
    for (int32_t j = 0; j < k; j++) {
        bool after = last < 0 || ids[j] > ids[last] || (ids[j] == ids[last] && j > last);
        if (after && (best < 0 || ids[j] < ids[best])) best = j;
    }
    return best;
}

/* sum[0..n) of columns d.. of one row: ascending expert id, then shared; terms rounded to bf16 first when exact. */
static void combine_chunk(const float *slot, const int32_t *ids, const float *shared, int32_t k, int32_t dim, int32_t d,
                          int32_t n, bool exact, float sum[CHUNK])
{
    memset(sum, 0, (size_t)n * sizeof *sum);
    int32_t j = -1;
    for (int32_t i = 0; i <= k; i++) {
        if (i < k) j = next_expert(ids, k, j);
        const float *term = i < k ? slot + (int64_t)j * dim + d : shared + d; /* [n] */
        for (int32_t c = 0; c < n; c++) sum[c] += exact ? bf16_round(term[c]) : term[c];
    }
}

void krn_combine_exact_ref(const float *slot, const int32_t *ids, const float *shared, bf16 *y, int32_t rows, int32_t k,
                           int32_t dim)
{
    for (int64_t r = 0; r < rows; r++) {
        for (int32_t d = 0; d < dim; d += CHUNK) {
            int32_t n = dim - d < CHUNK ? dim - d : CHUNK;
            float sum[CHUNK];
            combine_chunk(slot + r * k * dim, ids + r * k, shared + r * dim, k, dim, d, n, true, sum); /* R1, R2 */
            krn_round_bf16_ref(sum, y + r * dim + d, n);                                             /* R3 */
        }
    }
}

void krn_combine_fused_ref(const float *slot, const int32_t *ids, const float *shared, float *y, int32_t rows, int32_t k,
                           int32_t dim)
{
    for (int64_t r = 0; r < rows; r++) {
        for (int32_t d = 0; d < dim; d += CHUNK) {
            int32_t n = dim - d < CHUNK ? dim - d : CHUNK;
            float sum[CHUNK];
            combine_chunk(slot + r * k * dim, ids + r * k, shared + r * dim, k, dim, d, n, false, sum); /* R1 */
            memcpy(y + r * dim + d, sum, (size_t)n * sizeof *sum);
        }
    }
}

void krn_round_bf16_ref(const float *x, bf16 *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++) y[i] = bf16_from_f32(x[i]);
}

void krn_round_bf16_f32_ref(const float *x, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++) y[i] = bf16_round(x[i]);
}

void krn_add_f32_ref(const float *a, const float *b, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++) y[i] = a[i] + b[i];
}
