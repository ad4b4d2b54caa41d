#include "tui/fetch.h"

#include "base/mem.h"

#include <math.h>

void tui_fetch_clear(tui_fetch *f)
{
    tui_work_cancel(f->work);
    tui_work_end(f->work);
    f->work = NULL;
    for (int32_t i = 0; i < f->n; i++) cap_value_fini(&f->item[i].value);
    f->n = 0;
    atomic_store(&f->n_ready, 0);
}

void tui_fetch_fini(tui_fetch *f)
{
    tui_fetch_clear(f);
    free(f->item);
    f->item = NULL;
}

int32_t tui_fetch_add(tui_fetch *f, const fmt_tape *tape, int32_t round, int32_t slot, const char *name)
{
    void *array = f->item;
    if (!mem_grow(&array, &f->capacity, (size_t)f->n + 1, sizeof *f->item)) return -1;
    f->item = array;
    tui_fetch_item *i = &f->item[f->n];
    *i = (tui_fetch_item){ .tape = tape, .round = round, .slot = slot };
    snprintf(i->name, sizeof i->name, "%s", name);
    return f->n++;
}

static void fetch(void *ctx, const atomic_bool *cancel)
{
    tui_fetch *f = ctx;
    for (int32_t i = 0; i < f->n && !atomic_load(cancel); i++) {
        tui_fetch_item *x = &f->item[i];
        const fmt_tape_key key = { x->round, x->slot, 0, x->name };
        x->there = cap_joined_get(x->tape, &key, &x->value, NULL) == ERR_OK;
        atomic_store(&f->n_ready, i + 1);
    }
}

void tui_fetch_start(tui_app *app, tui_fetch *f)
{
    err e = { 0 };
    if (f->n && tui_work_begin(tui_is_threaded(app), fetch, f, &f->work, &e) != ERR_OK) tui_say(app, "%s", e.msg);
}

bool tui_fetch_ready(const tui_fetch *f, int32_t i) { return i >= 0 && i < atomic_load(&f->n_ready); }

const fmt_tensor *tui_fetch_get(const tui_fetch *f, int32_t i, fmt_dtype dtype, int32_t ndim)
{
    if (!tui_fetch_ready(f, i) || !f->item[i].there) return NULL;
    const fmt_tensor *t = &f->item[i].value.tensor;
    return t->dtype == dtype && t->ndim == ndim ? t : NULL;
}

/* ---- the router's cut ---- */

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

bool tui_margin_at_cut(tui_app *app, int side, const cap_name *n, int64_t row, double *margin)
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
