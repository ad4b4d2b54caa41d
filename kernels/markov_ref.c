#include "kernels/markov.h"

#include <string.h>

#include "kernels/linear.h"

static int32_t in_vocabulary(int32_t id, int32_t vocab) { return id < 0 || id >= vocab ? 0 : id; }

static krn_weight head_view(const bf16 *head, int32_t markov_rank, int32_t n)
{
    return (krn_weight){ .format = KRN_W_BF16, .n = n, .k = markov_rank, .data = head,
                         .row_bytes = (int64_t)markov_rank * (int64_t)sizeof *head };
}

/* The n terms of a token as f32, where the table has them. */
static bool take_ready(const krn_markov_table *table, int32_t token, int32_t n, float *y)
{
    const int32_t row = table && table->row ? table->row[token] : -1;
    if (row < 0) return false;
    if (!table->bf16) memcpy(y, (const float *)table->term + (int64_t)row * n, (size_t)n * sizeof *y);
    else
        for (int32_t v = 0; v < n; v++) y[v] = f32_from_bf16(((const bf16 *)table->term)[(int64_t)row * n + v]);
    return true;
}

void krn_markov_step_ref(const float *logits, const bf16 *embed, const bf16 *head, int32_t vocab, int32_t markov_rank,
                         int32_t n, int32_t first_id, int32_t batch, int32_t block, int32_t n_out, int32_t i,
                         const int32_t *anchor, const int32_t *drafts, const krn_markov_table *table, krn_acc acc,
                         float *biased, krn_best *best)
{
    const krn_weight w = head_view(head, markov_rank, n);
    const bool round_bf16 = table && table->bf16;
    krn_linear_job jobs[KRN_MARKOV_BATCH_MAX] = { 0 }; /* one weight: its rows are read once for all entries */
    int32_t n_jobs = 0;
    for (int32_t b = 0; b < batch && n > 0; b++) {
        float *row = biased + ((int64_t)b * n_out + i) * n;
        int32_t token = in_vocabulary(i == 0 ? anchor[b] : drafts[(int64_t)b * n_out + i - 1], vocab);
        if (!take_ready(table, token, n, row))
            jobs[n_jobs++] = (krn_linear_job){ &w, embed + (int64_t)token * markov_rank, row };
    }
    krn_linear_grouped_ref(jobs, n_jobs, acc, KRN_OUT_F32);                                          /* R1 */
    for (int32_t b = 0; b < batch; b++) {
        float *row = n > 0 ? biased + ((int64_t)b * n_out + i) * n : NULL;
        for (int32_t v = 0; v < n; v++) {
            float m = round_bf16 ? bf16_round(row[v]) : row[v];
            float sum = logits[((int64_t)b * block + i) * n + v] + m;                                /* R2 */
            row[v] = isnan(sum) ? f32_from_bits(0x7fc00000) : round_bf16 ? bf16_round(sum) : sum;
        }
        best[b] = krn_argmax_ref(row, n, first_id);
    }
}

void krn_markov_terms_ref(const bf16 *embed, const bf16 *head, int32_t vocab, int32_t markov_rank, int32_t n,
                          const int32_t *tokens, int32_t count, bool round_bf16, krn_acc acc, void *term)
{
    const krn_weight w = head_view(head, markov_rank, n);
    enum { JOBS = 128 }; /* as many as share a decoded tile */
    for (int32_t t = 0, some; t < count && n > 0; t += some) {
        krn_linear_job jobs[JOBS];
        some = count - t < JOBS ? count - t : JOBS;
        for (int32_t k = 0; k < some; k++) {
            const int64_t at = (int64_t)(t + k) * n;
            jobs[k] = (krn_linear_job){ &w, embed + (int64_t)in_vocabulary(tokens[t + k], vocab) * markov_rank,
                                        round_bf16 ? (void *)((bf16 *)term + at) : (void *)((float *)term + at) };
        }
        krn_linear_grouped_ref(jobs, some, acc, round_bf16 ? KRN_OUT_BF16 : KRN_OUT_F32);
    }
}

void krn_markov_pick_ref(const krn_best *best, int32_t n_ranks, int32_t batch, int32_t n_out, int32_t i, int32_t *drafts)
{
    for (int32_t b = 0; b < batch; b++) {
        krn_best winner = best[b];
        for (int32_t rank = 1; rank < n_ranks; rank++) winner = krn_best_of(winner, best[(int64_t)rank * batch + b]);
        drafts[(int64_t)b * n_out + i] = winner.id;
    }
}
