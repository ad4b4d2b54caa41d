#include "replay/first.h"

#include "base/mem.h"
#include "engine/identity.h"
#include "replay/certify.h"
#include "replay/parity.h"
#include "replay/replay.h"

#include <unistd.h>

/* ---- which round ---- */

static err_code chain_of(const fmt_tape *t, const eng_weights *w, const rpl_layout *l, const eng_options *o, bool quiet,
                         rpl_chain *out, err *e)
{
    rpl_runner *r;
    if (!o) return rpl_chain_of_tape(t, out, e);
    TRY(rpl_chain_init(out, rpl_layout_rounds(l), e));
    TRY(rpl_runner_open(t, w, l, o, false, quiet, &r, e));
    err_code rc = rpl_runner_run(r, NULL, out, e);
    rpl_runner_close(r);
    return rc;
}

/* The number of a round that drafted, but whose drafts the tape lacks; -1: none. */
static int32_t round_without_drafts(const fmt_tape *t)
{
    const int32_t *number;
    size_t n = fmt_tape_rounds(t, &number);
    for (size_t i = 0; i < n; i++) {
        size_t first, n_records;
        bool drafted = false, has = false;
        fmt_tape_round_span(t, number[i], &first, &n_records);
        for (size_t k = first; k < first + n_records; k++) {
            fmt_tape_record r;
            fmt_tape_at(t, k, &r);
            drafted = drafted || strcmp(r.key.name, "draft.slots") == 0;
            has = has || strcmp(r.key.name, "drafts") == 0;
        }
        if (drafted && !has) return number[i];
    }
    return -1;
}

static err_code find_round(const fmt_tape *t, const eng_weights *w, const eng_options *a, const eng_options *b, bool quiet,
                           rpl_divergence *out, err *e)
{
    const int32_t *number;
    size_t n = fmt_tape_rounds(t, &number);
    rpl_layout *l = NULL;
    rpl_chain x = { 0 }, y = { 0 };
    bool *none = mem_alloc(n + 1, sizeof *none); /* no values, only the count of the rounds */
    err_code rc = none ? rpl_layout_make(t, eng_weights_config(w), none, &l, e) : err_set(e, ERR_NOMEM, "no memory");
    if (rc == ERR_OK && (size_t)rpl_layout_rounds(l) != n)
        rc = err_set(e, ERR_INPUT, "%s: found %d rounds that can be run, wanted all %zu", fmt_tape_path(t),
                     rpl_layout_rounds(l), n);
    if (rc == ERR_OK) rc = chain_of(t, w, l, a, quiet, &x, e);
    if (rc == ERR_OK) rc = chain_of(t, w, l, b, quiet, &y, e);
    if (rc == ERR_OK) {
        out->found = rpl_chain_first(&x, &y);
        out->n_rounds = (int32_t)n;
        out->round = out->found.round < 0 ? -1 : number[out->found.round];
    }
    rpl_chain_fini(&x);
    rpl_chain_fini(&y);
    rpl_layout_free(l);
    free(none);
    return rc;
}

/* ---- that round in full ---- */

typedef struct scene {
    const fmt_tape *tape;
    const eng_weights *weights;
    bool *only, lean, quiet;
    char folder[200];
} scene;

/* The round by one side, as a tape of its own. */
static err_code run_side(const scene *s, const eng_options *run, const char *name, fmt_tape **out, err *e)
{
    char path[240];
    rpl_replay_options o = { .run = *run, .level = ENG_LEVEL_DEEP, .only = s->only, .lean = s->lean, .quiet = s->quiet };
    json_t *identity = eng_identity(s->weights, run);
    if (!identity) return err_set(e, ERR_NOMEM, "no memory for an identity");
    snprintf(path, sizeof path, "%s/%s.tape", s->folder, name);
    err_code rc = rpl_replay_run(s->tape, s->weights, &o, identity, path, e);
    if (rc == ERR_OK) rc = fmt_tape_open(path, out, e);
    unlink(path); /* what is open stays readable */
    json_decref(identity);
    return rc;
}

/* Both sides' certificates of the round. */
typedef struct judged { rpl_certificate side[2]; } judged;

static err_code judge_side(const scene *s, const fmt_tape *t, int32_t round, rpl_certificate *out, err *e)
{
    const int32_t *number;
    int32_t n = (int32_t)fmt_tape_rounds(t, &number), at = 0;
    rpl_certify_options o = rpl_certify_options_of(t);
    const rpl_certify_job job = { .rounds = &at, .n = 1 };
    while (at < n && number[at] != round) at++;
    return at < n ? rpl_certify_tape(t, s->weights, &o, &job, out, e) : ERR_OK;
}

static bool is_illegal(const rpl_certificate *c, const rpl_value *v)
{
    for (size_t i = 0; i < c->n_origins; i++)
        for (int32_t k = 0; k < c->origin[i].n_outputs; k++)
            if (c->origin[i].slot == v->slot && strcmp(c->origin[i].output[k], v->name) == 0) return true;
    return false;
}

static bool was_judged(const rpl_certificate *c, const rpl_value *v)
{
    for (size_t i = 0; i < c->n_notes; i++)
        if (strcmp(c->not_judged[i].value, v->name) == 0) return false;
    for (size_t i = 0; i < c->n_sums; i++)
        if (strcmp(c->sum[i].value, v->name) == 0) return c->n_origins == 0;
    return false;
}

static rpl_ruling ruling_of(const judged *j, const rpl_value *v)
{
    for (int k = 0; k < 2; k++)
        if (is_illegal(&j->side[k], v)) return k ? RPL_RULING_B_ILLEGAL : RPL_RULING_A_ILLEGAL;
    return was_judged(&j->side[0], v) && was_judged(&j->side[1], v) ? RPL_RULING_NOISE : RPL_RULING_NONE;
}

static bool differs(const rpl_value *v) { return v->cls != RPL_CLASS_EQUAL && v->cls != RPL_CLASS_NONE; }

static void take_value(const rpl_round *r, const judged *j, rpl_divergence *out)
{
    const rpl_value *v = NULL;
    for (int32_t k = 0; k < r->n_values && !v; k++)
        if (differs(&r->value[k]) && ruling_of(j, &r->value[k]) >= RPL_RULING_A_ILLEGAL) v = &r->value[k];
    for (int32_t k = 0; k < r->n_values && !v; k++)
        if (r->value[k].cls == RPL_CLASS_ORIGIN) v = &r->value[k];
    for (int32_t k = 0; k < r->n_values && !v; k++)
        if (differs(&r->value[k])) v = &r->value[k];
    if (!v) return;
    out->shown = true;
    snprintf(out->value, sizeof out->value, "%s", v->name);
    snprintf(out->op, sizeof out->op, "%s", v->op ? v->op : "");
    memcpy(out->ops, v->ops, sizeof out->ops);
    out->slot = v->slot;
    out->cls = v->cls;
    out->ruling = ruling_of(j, v);
    out->m = v->m;
    out->n_values = r->n_compared;
    out->n_differ = r->n_compared - r->n_equal;
}

static err_code compare_sides(const scene *s, const fmt_tape *a, const fmt_tape *b, const judged *j, rpl_divergence *out,
                              err *e)
{
    rpl_compare *c;
    TRY(rpl_compare_open(a, b, eng_weights_config(s->weights), NULL, &c, e));
    err_code rc = ERR_OK;
    for (int32_t i = 0; i < rpl_compare_rounds(c) && rc == ERR_OK; i++) {
        const rpl_round *r;
        if (rpl_compare_round_number(c, i) != out->round) continue;
        rc = rpl_compare_round(c, i, &r, e);
        if (rc == ERR_OK) take_value(r, j, out);
    }
    rpl_compare_close(c);
    return rc;
}

static err_code show_round(const scene *s, const eng_options *a, const eng_options *b, rpl_divergence *out, err *e)
{
    fmt_tape *x = NULL, *y = NULL;
    err_code rc = a ? run_side(s, a, "a", &x, e) : ERR_OK;
    if (rc == ERR_OK) rc = run_side(s, b, "b", &y, e);
    judged j = { 0 };
    if (rc == ERR_OK) rc = judge_side(s, x ? x : s->tape, out->round, &j.side[0], e);
    if (rc == ERR_OK) rc = judge_side(s, y, out->round, &j.side[1], e);
    if (rc == ERR_OK) rc = compare_sides(s, x ? x : s->tape, y, &j, out, e);
    for (int k = 0; k < 2; k++) rpl_certificate_fini(&j.side[k]);
    if (rc == ERR_OK) out->alone = s->lean && out->shown;
    fmt_tape_close(x);
    fmt_tape_close(y);
    return rc;
}

err_code rpl_first_divergence(const fmt_tape *t, const eng_weights *w, const eng_options *a, const eng_options *b,
                              bool quiet, rpl_divergence *out, err *e)
{
    const char *base = getenv("TMPDIR");
    scene s = { .tape = t, .weights = w, .lean = true, .quiet = quiet };
    *out = (rpl_divergence){ .slot = FMT_TAPE_NO_SLOT, .cls = RPL_CLASS_NONE, .round = -1, .found.round = -1 };
    out->lacking = a ? -1 : round_without_drafts(t);
    if (out->lacking >= 0) return ERR_OK;
    eng_options one[2] = { a ? *a : (eng_options){ 0 }, *b };
    for (int k = 0; k < 2 && rpl_runs_small(w); k++) one[k].threads = 1;
    a = a ? &one[0] : NULL;
    b = &one[1];
    TRY(find_round(t, w, a, b, quiet, out, e));
    if (out->found.round < 0) return ERR_OK;
    s.only = mem_alloc((size_t)out->n_rounds, sizeof *s.only);
    if (!s.only) return err_set(e, ERR_NOMEM, "no memory for %d rounds", out->n_rounds);
    s.only[out->found.round] = true;
    snprintf(s.folder, sizeof s.folder, "%.150s/sparktape-first-XXXXXX", base && *base ? base : "/tmp");
    err_code rc = mkdtemp(s.folder) ? ERR_OK : err_set(e, ERR_IO, "%.150s: no folder can be made there", s.folder);
    if (rc == ERR_OK) {
        rc = show_round(&s, a, b, out, e);
        s.lean = false; /* it may come from what ran before */
        if (rc == ERR_OK && !out->shown) rc = show_round(&s, a, b, out, e);
        rmdir(s.folder);
    }
    free(s.only);
    return rc;
}
