#include "kernels/markov.h"

#include "kernels/linear.h"

/* The embedding of the token before position i of entry b. */
static const bf16 *embedding_before(const bf16 *embed, int32_t vocab, int32_t markov_rank, const int32_t *anchor,
                                    const int32_t *drafts, int32_t n_out, int32_t b, int32_t i)
{
    int32_t id = i == 0 ? anchor[b] : drafts[(int64_t)b * n_out + i - 1];
    return embed + (int64_t)(id < 0 || id >= vocab ? 0 : id) * markov_rank;
}

void krn_markov_step_ref(const float *logits, const bf16 *embed, const bf16 *head, int32_t vocab, int32_t markov_rank,
                         int32_t n, int32_t first_id, int32_t batch, int32_t block, int32_t n_out, int32_t i,
                         const int32_t *anchor, const int32_t *drafts, krn_acc acc, float *biased, krn_best *best)
{
    const krn_weight w = { .format = KRN_W_BF16, .n = n, .k = markov_rank, .data = head,
                           .row_bytes = (int64_t)markov_rank * (int64_t)sizeof *head };
    krn_linear_job jobs[KRN_MARKOV_BATCH_MAX] = { 0 }; /* one weight: its rows are read once for all entries */
    for (int32_t b = 0; b < batch; b++)
        jobs[b] = (krn_linear_job){ &w, embedding_before(embed, vocab, markov_rank, anchor, drafts, n_out, b, i),
                                    n ? biased + ((int64_t)b * n_out + i) * n : NULL };
    if (n > 0) krn_linear_grouped_ref(jobs, batch, acc, KRN_OUT_F32);                                /* R1 */
    for (int32_t b = 0; b < batch; b++) {
        float *row = jobs[b].y;
        for (int32_t v = 0; v < n; v++) {
            float sum = logits[((int64_t)b * block + i) * n + v] + row[v];                           /* R2 */
            row[v] = isnan(sum) ? f32_from_bits(0x7fc00000) : sum;
        }
        best[b] = krn_argmax_ref(row, n, first_id);
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
