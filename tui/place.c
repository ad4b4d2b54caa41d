/* Where the app is: the request, the value, the element; references to them, and the way there. */
#include "tui/app.h"

#include "base/mem.h"
#include "tui/ref.h"

const tui_request *tui_at_request(tui_app *app)
{
    int32_t i = app->at.request;
    return i >= 0 && i < tui_model_requests(app->model) ? tui_model_request(app->model, i) : NULL;
}

const cap_name *tui_at_value(tui_app *app)
{
    int32_t n;
    const tui_request *r = tui_at_request(app);
    const cap_name *v = r ? tui_model_values(app->model, r->round_index, &n) : NULL;
    return v && app->at.value >= 0 && app->at.value < n ? v + app->at.value : NULL;
}

const rpl_value *tui_at_result(tui_app *app)
{
    const cap_name *v = tui_at_value(app);
    const rpl_round *r = v ? tui_model_result(app->model, tui_at_request(app)->round_index) : NULL;
    return r ? &r->value[app->at.value] : NULL;
}

void tui_choose_value(tui_app *app)
{
    int32_t n;
    const tui_request *r = tui_at_request(app);
    if (!r || app->at.value >= 0) return;
    const cap_name *name = tui_model_values(app->model, r->round_index, &n);
    app->at.value = r->first_origin;
    for (int32_t i = 0; app->at.value < 0 && i < n; i++)
        if (tui_model_shows(r, &name[i])) app->at.value = i;
}

bool tui_open_value(tui_app *app, int32_t slot, const char *name)
{
    const tui_request *r = tui_at_request(app);
    int32_t i = r ? tui_model_find_value(app->model, r->round_index, slot, name) : -1;
    if (i < 0) return false;
    app->at.value = i;
    app->at.element = -1;
    tui_open(app, TUI_VALUE);
    return true;
}

char tui_letter(const tui_app *app, int side) { return (char)('A' + (side == TUI_A ? app->a : app->b)); }
int tui_suspect(const tui_app *app) { return tui_model_is_pair(app->model) ? TUI_B : TUI_A; }

int tui_suspect_having(const tui_app *app, const cap_name *v)
{
    tui_facts facts;
    return tui_model_facts(app->model, tui_suspect(app), v, &facts) ? tui_suspect(app) : TUI_A;
}

void tui_reference(tui_app *app, char buf[TUI_REFERENCE_BYTES])
{
    const tui_request *r = tui_at_request(app);
    const cap_name *v = tui_at_value(app);
    char slot[16] = "-", index[128] = "";
    tui_facts facts;
    int side = v ? tui_suspect_having(app, v) : tui_suspect(app);
    const char *path = fmt_tape_path(tui_model_tape(app->model, side));
    if (!r) {
        snprintf(buf, TUI_REFERENCE_BYTES, "%s", path);
        return;
    }
    int32_t number = v ? v->slot : r->slot;
    if (number != FMT_TAPE_NO_SLOT) snprintf(slot, sizeof slot, "%d", number);
    if (v && app->at.element >= 0 && tui_model_facts_any(app->model, v, &facts) && facts.tensor.ndim > 0)
        tui_index_text(&facts.tensor, app->at.element, index);
    snprintf(buf, TUI_REFERENCE_BYTES, "%s:%d/%s%s%s%s", path, r->round, slot, v ? "/" : "", v ? v->name : "", index);
}

err_code tui_app_go(tui_app *app, const char *reference, err *e)
{
    tui_ref ref;
    tui_facts facts;
    tui_place from = app->at;
    TRY(tui_ref_parse(reference, &ref, e));
    int32_t i = tui_model_find_request(app->model, ref.round, ref.slot);
    if (i < 0 && tui_model_find_request(app->model, ref.round, FMT_TAPE_NO_SLOT) >= 0)
        return err_set(e, ERR_INPUT, "%s: round %d has no slot %d", reference, ref.round, ref.slot);
    if (i < 0) return err_set(e, ERR_INPUT, "%s: round %d is not on the tape", reference, ref.round);
    app->at = (tui_place){ .request = i, .value = -1, .element = -1 };
    if (ref.name[0]) {
        app->at.value = tui_model_find_value(app->model, tui_at_request(app)->round_index, ref.slot, ref.name);
        const cap_name *v = tui_at_value(app);
        bool known = v && tui_model_facts_any(app->model, v, &facts);
        bool inside = !ref.n_index || (known && tui_index_flat(&facts.tensor, ref.index, ref.n_index, &app->at.element));
        if (!v || !inside) app->at = from;
        if (!v) return err_set(e, ERR_INPUT, "%s: round %d has no %s of that slot", reference, ref.round, ref.name);
        if (!inside) return err_set(e, ERR_INPUT, "%s: the index lies outside the value", reference);
    }
    tui_place to = app->at;
    tui_open(app, TUI_ROUNDS);
    if (ref.has_slot || ref.name[0]) tui_open(app, TUI_PROGRAM);
    if (!ref.name[0]) return ERR_OK;
    app->at = to;
    tui_open(app, TUI_VALUE);
    return ERR_OK;
}

/* ---- marks ---- */

bool tui_is_marked(const tui_app *app, const tui_request *r)
{
    for (size_t i = 0; i < app->n_marks; i++)
        if (app->mark[i].round == r->round && app->mark[i].slot == r->slot) return true;
    return false;
}

/* ---- certificates ---- */

const rpl_certificate *tui_certificate(tui_app *app, int side)
{
    const tui_request *r = tui_at_request(app);
    const fmt_tape *t = tui_model_tape(app->model, side);
    return r && t ? tui_judge_of(app->judge, t, r->round) : NULL;
}

static const rpl_origin *find_origin(const rpl_origin *o, size_t n, const cap_name *v)
{
    for (size_t i = 0; i < n; i++)
        for (int32_t k = 0; k < o[i].n_outputs; k++)
            if (o[i].slot == v->slot && strcmp(o[i].output[k], v->name) == 0) return &o[i];
    return NULL;
}

const rpl_origin *tui_origin_of(tui_app *app, int side, const cap_name *n, bool *inherited)
{
    const rpl_certificate *c = tui_certificate(app, side);
    *inherited = false;
    if (!c) return NULL;
    const rpl_origin *o = find_origin(c->origin, c->n_origins, n);
    *inherited = !o;
    return o ? o : find_origin(c->inherited, c->n_inherited, n);
}

const rpl_origin *tui_any_origin_of(tui_app *app, const cap_name *n, int *side, bool *inherited)
{
    *side = tui_suspect(app);
    const rpl_origin *o = tui_origin_of(app, *side, n, inherited);
    if (o || *side == TUI_A) return o;
    *side = TUI_A;
    return tui_origin_of(app, TUI_A, n, inherited);
}

const rpl_certificate *tui_judgement(tui_app *app, const tui_request *r)
{
    return tui_judge_of(app->judge, tui_model_tape(app->model, tui_suspect(app)), r->round);
}
