#include "replay/metrics.h"

#include "base/err.h"
#include "replay/metrics_logits.h"

#include <math.h>
#include <string.h>

/* Candidate of the top-k: larger value first, the lower index wins a tie. */
typedef struct entry { float v; int32_t i; } entry;

static bool before(entry x, entry y) { return x.v > y.v || (x.v == y.v && x.i < y.i); }

/* Puts x into the heap of the best so far, whose root is the last one that is still in. */
static void keep(entry heap[RPL_TOP_K], int32_t *count, entry x)
{
    int32_t at = 0;
    if (*count < RPL_TOP_K) {
        at = (*count)++;
        while (at > 0 && before(heap[(at - 1) / 2], x)) {
            heap[at] = heap[(at - 1) / 2];
            at = (at - 1) / 2;
        }
        heap[at] = x;
        return;
    }
    if (!(x.v > heap[0].v)) return; /* an equal one came first */
    for (;;) {
        int32_t child = 2 * at + 1;
        if (child + 1 < RPL_TOP_K && before(heap[child], heap[child + 1])) child++;
        if (child >= RPL_TOP_K || !before(x, heap[child])) break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = x;
}

/* A number that none of the k largest lies below: the k-th largest of the lanes' largest, each of them an element. Close
 * enough to the k-th largest of all (of 16384 random ones about 90 are not smaller) that few elements reach the heap. */
static float least_of(const rpl_row_kernel *kernel, const float *v, int64_t n)
{
    float top[RPL_SCAN_LANES], least = INFINITY;
    for (int j = 0; j < RPL_SCAN_LANES; j++) top[j] = -INFINITY;
    kernel->lane_tops(v, n - n % RPL_SCAN_LANES, top);
    for (int i = 0; i < RPL_SCAN_LANES; i++) {
        int32_t above = 0;
        for (int j = 0; j < RPL_SCAN_LANES; j++) above += top[j] > top[i];
        if (above < RPL_TOP_K && top[i] < least) least = top[i];
    }
    return least;
}

/* The k largest of n, in no particular order. NaN never is. */
static int32_t top_of(const rpl_row_kernel *kernel, const float *v, int64_t n, entry heap[RPL_TOP_K])
{
    int32_t count = 0;
    float least = least_of(kernel, v, n);
    for (int64_t i = kernel->next(v, 0, n, least); i < n; i = kernel->next(v, i + 1, n, least))
        keep(heap, &count, (entry){ v[i], (int32_t)i });
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

static double join(double lane[KRN_LANES])
{
    for (int half = KRN_LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) lane[i] += lane[i + half];
    return lane[0];
}

/* sum p_b (log p_b - log p_a) = sum e_b (b - a) / Z_b + log Z_a - log Z_b, where e = exp(v - max) and Z = max + log sum e:
 * two exponentials an element. max_a, max_b: the largest numbers of each row. */
static double kl_of(const rpl_row_kernel *kernel, const float *a, const float *b, int64_t n, double max_a, double max_b)
{
    rpl_exp_sums sums = { 0 };
    int64_t whole = n - n % KRN_LANES;
    kernel->exp_sums(a, b, whole, max_a, max_b, &sums);
    if (whole < n) {
        float tail[2][KRN_LANES];
        for (int i = 0; i < KRN_LANES; i++) tail[0][i] = tail[1][i] = -INFINITY; /* probability 0 adds nothing */
        memcpy(tail[0], a + whole, (size_t)(n - whole) * sizeof *a);
        memcpy(tail[1], b + whole, (size_t)(n - whole) * sizeof *b);
        kernel->exp_sums(tail[0], tail[1], KRN_LANES, max_a, max_b, &sums);
    }
    double sum_a = join(sums.a), sum_b = join(sums.b);
    double kl = join(sums.gain) / sum_b + (max_a - max_b) + log(sum_a / sum_b);
    return kl < 0 ? 0 : kl; /* rounding of a sum that is zero or more */
}

void rpl_logits_row_of(const float *a, const float *b, int64_t n, rpl_logits_row *out)
{
    const rpl_row_kernel *kernel = rpl_row_kernel_of(krn_isa_get());
    bool same = memcmp(a, b, (size_t)n * sizeof *a) == 0;
    entry ta[RPL_TOP_K], tb[RPL_TOP_K];
    int32_t nb = top_of(kernel, b, n, tb), na = same ? nb : top_of(kernel, a, n, ta);
    if (same) memcpy(ta, tb, (size_t)nb * sizeof *tb);
    *out = (rpl_logits_row){ .k = na < nb ? na : nb };
    out->argmax_a = lead(ta, na, &out->margin_a);
    out->argmax_b = lead(tb, nb, &out->margin_b);
    for (int32_t i = 0; i < nb; i++)
        for (int32_t j = 0; j < na; j++) out->overlap += ta[j].i == tb[i].i;
    if (same && nb == (n < RPL_TOP_K ? n : RPL_TOP_K)) return; /* same bits: KL is 0 */
    out->kl = na && nb ? kl_of(kernel, a, b, n, (double)a[out->argmax_a], (double)b[out->argmax_b]) : (double)NAN;
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
