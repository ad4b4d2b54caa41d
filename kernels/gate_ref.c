#include "kernels/gate.h"

#include "kernels/argmax.h"

void krn_gate_scores_ref(const float *logits, float *scores, int32_t rows, int32_t n_experts)
{
    for (int64_t i = 0; i < (int64_t)rows * n_experts; i++) {
        float z = logits[i];
        float softplus = z > 20.0f ? z : krn_f32_log1p(krn_f32_exp(z));                              /* R1 */
        scores[i] = sqrtf(softplus);                                                                 /* R2 */
    }
}

/* Inserts experts one by one into the sorted list ids[k]. A newcomer passes only those it beats: ties keep the lower id. */
static void select_best(const float *score, const float *bias, int32_t n_experts, int32_t k, int32_t *ids)
{
    for (int32_t e = 0; e < n_experts; e++) {
        float sel = score[e] + bias[e];                                                              /* R1 */
        int32_t at = e < k ? e : k; /* end of the list so far */
        while (at > 0 && krn_value_before(sel, score[ids[at - 1]] + bias[ids[at - 1]])) {
            if (at < k) ids[at] = ids[at - 1];
            at--;
        }
        if (at < k) ids[at] = e;
    }
}

void krn_gate_topk_ref(const float *scores, const float *bias, int32_t rows, int32_t n_experts, int32_t k,
                       float route_scale, int32_t *ids, float *weights, krn_acc acc)
{
    for (int32_t r = 0; r < rows; r++) {
        const float *score = scores + (int64_t)r * n_experts; /* [n_experts] */
        int32_t *id = ids + (int64_t)r * k;                   /* [k] */
        float *w = weights + (int64_t)r * k;                  /* [k] */
        select_best(score, bias, n_experts, k, id);
        float sum_f32 = 0;
        double sum_f64 = 0;
        for (int32_t j = 0; j < k; j++) {
            sum_f32 += score[id[j]];
            sum_f64 += score[id[j]];
        }
        float total = (acc == KRN_ACC_F64 ? (float)sum_f64 : sum_f32) + 1e-20f;                      /* R2 */
        for (int32_t j = 0; j < k; j++) w[j] = score[id[j]] / total * route_scale;                   /* R3 */
    }
}
