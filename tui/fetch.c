#include "tui/fetch.h"

#include "base/mem.h"

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
