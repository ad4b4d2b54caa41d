#include "kernels/experts.h"

/* Picks of one expert that are multiplied at a time, and columns of a sum: both bound the stack. */
enum { JOBS = 64, CHUNK_N = 256 };

krn_weight krn_expert_weight(const krn_expert_bank *b, int32_t expert)
{
    const int64_t row_bytes = b->format == KRN_W_FP4 ? b->k / 2 : 2 * (int64_t)b->k, first = (int64_t)expert * b->n;
    krn_weight w = { .format = b->format, .n = b->n, .k = b->k, .data = (const uint8_t *)b->data + first * row_bytes,
                     .row_bytes = row_bytes };
    if (b->format == KRN_W_FP4) {
        w.scale = b->scale + first * (b->k / 32);
        w.scale_row_bytes = b->k / 32;
    }
    return w;
}

/* The next picks of an expert, at most JOBS, from *from on; *from moves behind the last. Returns their number. */
static int32_t picks_next(const int32_t *ids, int32_t n_picks, int32_t expert, int32_t *from, int32_t pick[JOBS])
{
    int32_t n = 0;
    for (; *from < n_picks && n < JOBS; ++*from)
        if (ids[*from] == expert) pick[n++] = *from;
    return n;
}

/* y[p] (n outputs of out's type, y_bytes apart) = w . row p of x; a row serves picks_a_row picks. */
static void multiply(const krn_weight *w, const bf16 *x, int32_t picks_a_row, const int32_t *pick, int32_t n, void *y,
                     int64_t y_bytes, krn_acc acc, krn_out out)
{
    krn_linear_job job[JOBS];
    for (int32_t i = 0; i < n; i++)
        job[i] = (krn_linear_job){ w, x + (int64_t)(pick[i] / picks_a_row) * w->k, (uint8_t *)y + pick[i] * y_bytes };
    krn_linear_grouped_ref(job, n, acc, out);
}

void krn_experts_up_ref(const bf16 *x, const int32_t *ids, int32_t rows, int32_t picks, const krn_expert_bank *w13,
                        bf16 *gate, bf16 *up, krn_acc acc)
{
    const int32_t inter = w13->n / 2;
    const int64_t y_bytes = inter * (int64_t)sizeof(bf16);
    for (int32_t expert = 0; expert < w13->n_experts; expert++) {
        krn_weight both = krn_expert_weight(w13, expert);
        krn_weight w1 = krn_weight_slice(&both, 0, inter, 0, both.k), w3 = krn_weight_slice(&both, inter, inter, 0, both.k);
        int32_t pick[JOBS];
        for (int32_t from = 0, n; (n = picks_next(ids, rows * picks, expert, &from, pick)) > 0;) {
            multiply(&w1, x, picks, pick, n, gate, y_bytes, acc, KRN_OUT_BF16);                      /* R1, R2 */
            multiply(&w3, x, picks, pick, n, up, y_bytes, acc, KRN_OUT_BF16);
        }
    }
}

void krn_experts_down_ref(const bf16 *h, const int32_t *ids, int32_t rows, int32_t picks, const krn_expert_bank *w2,
                          float *slot, krn_acc acc)
{
    for (int32_t expert = 0; expert < w2->n_experts; expert++) {
        krn_weight w = krn_expert_weight(w2, expert);
        int32_t pick[JOBS];
        for (int32_t from = 0, n; (n = picks_next(ids, rows * picks, expert, &from, pick)) > 0;)
            multiply(&w, h, 1, pick, n, slot, w.n * (int64_t)sizeof(float), acc, KRN_OUT_F32);       /* R1 */
    }
}

/* The pick of a row that follows pick `last` (-1: the first) in ascending (id, index) order; -1 after the last one. */
static int32_t pick_after(const int32_t *ids, int32_t picks, int32_t last)
{
    int32_t best = -1;
    for (int32_t j = 0; j < picks; j++) {
        bool after = last < 0 || ids[j] > ids[last] || (ids[j] == ids[last] && j > last);
        if (after && (best < 0 || ids[j] < ids[best])) best = j;
    }
    return best;
}

/* Row by row: a reference for tests, which does not share an expert's decoded weights between rows. */
void krn_experts_down_combine_ref(const bf16 *h, const int32_t *ids, int32_t rows, int32_t picks, const krn_expert_bank *w2,
                                  const float *add, float *y, krn_acc acc)
{
    for (int64_t r = 0; r < rows; r++) {
        const int32_t *row_ids = ids + r * picks;
        for (int32_t n0 = 0; n0 < w2->n; n0 += CHUNK_N) {
            const int32_t n = w2->n - n0 < CHUNK_N ? w2->n - n0 : CHUNK_N;
            float sum[CHUNK_N] = { 0 }, term[CHUNK_N];
            for (int32_t j = -1; (j = pick_after(row_ids, picks, j)) >= 0;) {
                if (row_ids[j] < 0 || row_ids[j] >= w2->n_experts) continue;
                krn_weight whole = krn_expert_weight(w2, row_ids[j]), w = krn_weight_slice(&whole, n0, n, 0, w2->k);
                krn_linear_ref(h + (r * picks + j) * w2->k, w2->k, 1, &w, acc, KRN_OUT_F32, term, n); /* R1 */
                for (int32_t c = 0; c < n; c++) sum[c] += term[c];                                   /* R3 */
            }
            for (int32_t c = 0; c < n; c++) {
                const int64_t at = r * w2->n + n0 + c;
                float v = add ? sum[c] + add[at] : sum[c];
                y[at] = isnan(v) ? f32_from_bits(0x7fc00000) : v;
            }
        }
    }
}
