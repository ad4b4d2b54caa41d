#include "tui/cut.h"

#include <math.h>

double tui_cut_margin(const int32_t *ids, int64_t k, const float *scores, const float *bias, int64_t n, int32_t *next)
{
    *next = -1;
    double best = (double)-INFINITY;
    if (k < 1 || ids[k - 1] < 0 || ids[k - 1] >= n) return (double)NAN;
    for (int64_t e = 0; e < n; e++) {
        bool chosen = false;
        for (int64_t i = 0; i < k; i++) chosen = chosen || ids[i] == e;
        double score = (double)(bias ? scores[e] + bias[e] : scores[e]);
        if (chosen || !(score > best)) continue;
        best = score;
        *next = (int32_t)e;
    }
    int32_t last = ids[k - 1];
    return *next < 0 ? (double)NAN : (double)(bias ? scores[last] + bias[last] : scores[last]) - best;
}

bool tui_cut_of_row(tui_app *app, int side, const cap_name *n, int64_t row, double *margin)
{
    cap_value ids = { 0 }, scores = { 0 };
    char name[FMT_TAPE_NAME_BYTES];
    double stage = tui_stage_of(n->name);
    int64_t n_bias = 0;
    int32_t next;
    bool known = false;
    if (isnan(stage)) return false;
    snprintf(name, sizeof name, "s%d.ffn.scores", (int)stage);
    const fmt_tape *t = tui_model_tape(app->model, side);
    const fmt_tape_key of_ids = { n->round, n->slot, 0, n->name }, of_scores = { n->round, n->slot, 0, name };
    if (cap_joined_get(t, &of_ids, &ids, NULL) == ERR_OK && cap_joined_get(t, &of_scores, &scores, NULL) == ERR_OK) {
        const fmt_tensor *i = &ids.tensor, *s = &scores.tensor;
        known = i->dtype == FMT_DTYPE_I32 && s->dtype == FMT_DTYPE_F32 && i->ndim == 2 && s->ndim == 2 &&
                row < i->shape[0] && row < s->shape[0];
        const float *bias = tui_judge_bias(app->judge, (int32_t)stage, &n_bias);
        if (known)
            *margin = tui_cut_margin((const int32_t *)i->data + row * i->shape[1], i->shape[1],
                                     (const float *)s->data + row * s->shape[1],
                                     bias && n_bias == s->shape[1] ? bias : NULL, s->shape[1], &next);
    }
    cap_value_fini(&ids);
    cap_value_fini(&scores);
    return known && !isnan(*margin);
}
