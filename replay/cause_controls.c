#include "replay/cause_controls.h"

#include "base/mem.h"
#include "engine/identity.h"
#include "replay/parity.h"

/* ---- the recorded run ---- */

err_code rpl_controls_options(const fmt_tape *t, int64_t threads, eng_options *out, eng_fault *f, err *e)
{
    const json_t *injected = json_object_get(json_object_get(fmt_tape_head(t), "identity"), "injected");
    if (!rpl_parity_recorded(t, threads, out))
        return err_set(e, ERR_INPUT, "%s: its head names no run that this machine can make again", fmt_tape_path(t));
    if (!injected) return ERR_OK;
    TRY(eng_fault_of_json(injected, f, e));
    out->fault = f;
    return ERR_OK;
}

/* Nothing but chance separates the recorded run from o: program, machine, checkpoint and options are the same. */
static bool same_program(const fmt_tape *t, const eng_weights *w, const eng_options *o)
{
    json_t *identity = eng_identity(w, o);
    bool same = identity && json_equal(identity, json_object_get(fmt_tape_head(t), "identity"));
    json_decref(identity);
    return same;
}

/* ---- running ---- */

struct rpl_control_runs {
    rpl_layout *layout;
    rpl_trace recorded, first, again[2];
    uint8_t *unstable, *poisoned;
};

/* Rows from `from` on in which two runs differ. */
static void note(struct rpl_control_runs *c, int64_t from, const rpl_trace *a, const rpl_trace *b)
{
    for (int64_t i = from; i < a->n; i++) {
        bool both = a->rank[i] >= 0 && b->rank[i] >= 0;
        if (both && (a->hash[i] != b->hash[i] || a->rank[i] != b->rank[i])) c->unstable[i] = 1;
    }
}

/* In the first round that drafts, the first run has no step before it and the others have the last one of the run before:
 * what is stale there shows as stale, not as unstable. */
static int64_t rows_with_history(const rpl_layout *l)
{
    int64_t first, n = 0;
    for (int32_t i = 0; i < rpl_layout_rounds(l) && n == 0; i++) rpl_layout_span(l, i, &first, &n);
    return n ? first + n : 0;
}

static err_code run_all(rpl_runner *r, int32_t runs, struct rpl_control_runs *c, err *e)
{
    TRY(rpl_runner_run(r, &c->first, NULL, e));
    for (int32_t run = 1; run < runs; run++) {
        rpl_trace *now = &c->again[run > 1];
        TRY(rpl_runner_run(r, now, NULL, e));
        note(c, rows_with_history(c->layout), &c->first, now);
        if (run > 1) note(c, 0, &c->again[0], now);
    }
    return ERR_OK;
}

static err_code make_room(const fmt_tape *t, const eng_config *config, const bool *only, bool poison,
                          struct rpl_control_runs *c, err *e)
{
    TRY(rpl_layout_make(t, config, only, &c->layout, e));
    size_t n = (size_t)rpl_layout_count(c->layout) + 1;
    TRY(rpl_trace_init(&c->first, c->layout, e));
    for (int k = 0; k < 2; k++) TRY(rpl_trace_init(&c->again[k], c->layout, e));
    c->unstable = mem_alloc(n, 1);
    c->poisoned = poison ? mem_alloc(n, 1) : NULL;
    bool fine = c->unstable && (c->poisoned || !poison);
    return fine ? ERR_OK : err_set(e, ERR_NOMEM, "controls: no memory for %zu values", n);
}

err_code rpl_controls_make(const fmt_tape *t, const eng_weights *w, const eng_options *o, const bool *only, int32_t runs,
                           bool quiet, rpl_controls *out, err *e)
{
    rpl_runner *r = NULL;
    if (cap_redact_key_of(t))
        return err_set(e, ERR_INPUT, "%s: is redacted, wanted a tape whose tokens can be run", fmt_tape_path(t));
    struct rpl_control_runs *c = out->own = mem_alloc(1, sizeof *c);
    if (!c) return err_set(e, ERR_NOMEM, "controls: no memory");
    TRY(make_room(t, eng_weights_config(w), only, o->backend == ENG_BACKEND_CPU, c, e));
    TRY(rpl_trace_of_tape(t, c->layout, &c->recorded, e));
    TRY(rpl_runner_open(t, w, c->layout, o, true, quiet, &r, e));
    err_code rc = run_all(r, runs, c, e);
    rpl_runner_close(r);
    rpl_poisoned found = { .row = c->poisoned };
    if (rc == ERR_OK && c->poisoned)
        rc = rpl_trace_poisoned(t, w, c->layout, o, &c->first, c->unstable, quiet, &found, e);
    *out = (rpl_controls){ c->layout, &c->recorded, &c->first, runs, !only && same_program(t, w, o), c->unstable,
                           c->poisoned, c };
    return rc;
}

void rpl_controls_fini(rpl_controls *out)
{
    struct rpl_control_runs *c = out->own;
    *out = (rpl_controls){ 0 };
    if (!c) return;
    rpl_layout_free(c->layout);
    rpl_trace_fini(&c->recorded);
    rpl_trace_fini(&c->first);
    for (int k = 0; k < 2; k++) rpl_trace_fini(&c->again[k]);
    free(c->unstable);
    free(c->poisoned);
    free(c);
}

/* ---- what they show ---- */

static rpl_shown show_row(const rpl_controls *c, int64_t i)
{
    if (c->unstable[i]) return RPL_SHOWN_UNSTABLE;
    if (c->poisoned && c->poisoned[i]) return RPL_SHOWN_POISONED;
    if (c->recorded->rank[i] < 0 || c->first->rank[i] < 0) return RPL_SHOWN_NOTHING;
    if (c->recorded->hash[i] == c->first->hash[i]) return RPL_SHOWN_STABLE;
    return c->same ? RPL_SHOWN_UNSTABLE : RPL_SHOWN_NOTHING;
}

rpl_shown rpl_controls_show(const rpl_controls *c, int32_t round, int32_t slot, const char *name)
{
    rpl_shown shown = RPL_SHOWN_NOTHING;
    for (int64_t i = 0; i < rpl_layout_count(c->layout); i++) {
        const rpl_row *row = rpl_layout_at(c->layout, i);
        if (row->round != round || row->slot != slot || strcmp(row->name, name) != 0) continue;
        rpl_shown one = show_row(c, i);
        if (one > shown) shown = one;
    }
    return shown;
}
