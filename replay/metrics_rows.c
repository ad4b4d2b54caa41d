#include "replay/metrics.h"

#include "base/err.h"

#include <math.h>
#include <string.h>

/* Candidate of the top-k: larger value first, the lower index wins a tie. */
typedef struct entry { float v; int32_t i; } entry;

static bool before(entry x, entry y) { return x.v > y.v || (x.v == y.v && x.i < y.i); }

/* The k largest of n, in no particular order: a heap whose root is the last one that is still in. NaN never is. */
static int32_t top_of(const float *v, int64_t n, entry heap[RPL_TOP_K])
{
    int32_t count = 0;
    for (int64_t i = 0; i < n; i++) {
        entry x = { v[i], (int32_t)i };
        if (count == RPL_TOP_K && !(x.v > heap[0].v)) continue; /* an equal one came first; NaN never passes */
        if (isnan(x.v)) continue;
        int32_t at;
        if (count < RPL_TOP_K) {
            at = count++;
            while (at > 0 && before(heap[(at - 1) / 2], x)) {
                heap[at] = heap[(at - 1) / 2];
                at = (at - 1) / 2;
            }
        } else {
            at = 0;
            for (;;) {
                int32_t child = 2 * at + 1;
                if (child + 1 < count && before(heap[child], heap[child + 1])) child++;
                if (child >= count || !before(x, heap[child])) break;
                heap[at] = heap[child];
                at = child;
            }
        }
        heap[at] = x;
    }
    return count;
}

/* Best entry's index (-1: none) and its lead over the second. */
static int32_t lead(const entry *top, int32_t n, double *margin)
{
    int32_t best = 0;
    double second = -(double)INFINITY;
    *margin = (double)INFINITY;
    if (n == 0) return -1;
    for (int32_t i = 1; i < n; i++)
        if (before(top[i], top[best])) best = i;
    for (int32_t i = 0; i < n; i++)
        if (i != best && (double)top[i].v > second) second = (double)top[i].v;
    *margin = (double)top[best].v - second;
    return top[best].i;
}

/* sum p_b (log p_b - log p_a) = sum e_b (b - a) / Z_b + log Z_a - log Z_b, where e = exp(v - max) and Z = max + log sum e:
 * two exponentials an element. max_a, max_b: the largest numbers of each row. */
static double kl_of(const float *a, const float *b, int64_t n, double max_a, double max_b)
{
    double sum_a = 0, sum_b = 0, gain = 0;
    for (int64_t i = 0; i < n; i++) {
        double e_b = exp((double)b[i] - max_b);
        sum_a += exp((double)a[i] - max_a);
        sum_b += e_b;
        if (e_b != 0) gain += e_b * ((double)b[i] - (double)a[i]); /* probability 0 adds nothing, whatever A says */
    }
    double kl = gain / sum_b + (max_a - max_b) + log(sum_a / sum_b);
    return kl < 0 ? 0 : kl; /* rounding of a sum that is zero or more */
}

void rpl_logits_row_of(const float *a, const float *b, int64_t n, rpl_logits_row *out)
{
    entry ta[RPL_TOP_K], tb[RPL_TOP_K];
    int32_t na = top_of(a, n, ta), nb = top_of(b, n, tb);
    *out = (rpl_logits_row){ .k = na < nb ? na : nb };
    out->argmax_a = lead(ta, na, &out->margin_a);
    out->argmax_b = lead(tb, nb, &out->margin_b);
    for (int32_t i = 0; i < nb; i++)
        for (int32_t j = 0; j < na; j++) out->overlap += ta[j].i == tb[i].i;
    if (memcmp(a, b, (size_t)n * sizeof *a) == 0 && nb == (n < RPL_TOP_K ? n : RPL_TOP_K)) return; /* same bits: KL is 0 */
    out->kl = na && nb ? kl_of(a, b, n, (double)a[out->argmax_a], (double)b[out->argmax_b]) : (double)NAN;
}

void rpl_logits_of(const float *a, const float *b, int64_t rows, int64_t n, rpl_logits *out)
{
    rpl_logits s = { .rows = rows, .margin_min = (double)INFINITY, .overlap_min = RPL_TOP_K, .k = RPL_TOP_K };
    for (int64_t r = 0; r < rows; r++) {
        rpl_logits_row row;
        rpl_logits_row_of(a + r * n, b + r * n, n, &row);
        s.kl_mean += row.kl / (double)rows;
        if (!(row.kl <= s.kl_max)) s.kl_max = row.kl;
        if (row.overlap < s.overlap_min) s.overlap_min = row.overlap;
        if (row.k < s.k) s.k = row.k;
        if (row.argmax_a == row.argmax_b) s.n_argmax_equal++;
        else if (row.margin_b < s.margin_min) s.margin_min = row.margin_b;
    }
    *out = s;
}

static int compare_i32(const void *x, const void *y)
{
    int32_t a, b;
    memcpy(&a, x, 4);
    memcpy(&b, y, 4);
    return (a > b) - (a < b);
}

void rpl_ids_of(const int32_t *a, const int32_t *b, int64_t rows, int32_t k, rpl_ids *out)
{
    CHECK(k >= 1 && k <= RPL_TOP_K);
    rpl_ids s = { .rows = rows, .first_set = -1, .first_order = -1 };
    for (int64_t r = 0; r < rows; r++) {
        int32_t x[RPL_TOP_K], y[RPL_TOP_K];
        size_t bytes = (size_t)k * sizeof *x;
        memcpy(x, a + r * k, bytes);
        memcpy(y, b + r * k, bytes);
        bool same_order = memcmp(x, y, bytes) == 0;
        qsort(x, (size_t)k, sizeof *x, compare_i32);
        qsort(y, (size_t)k, sizeof *y, compare_i32);
        bool same_set = memcmp(x, y, bytes) == 0;
        s.n_same_order += same_order;
        s.n_same_set += same_set;
        if (!same_order && s.first_order < 0) s.first_order = r;
        if (!same_set && s.first_set < 0) s.first_set = r;
    }
    *out = s;
}
