#include "replay/rerun.h"

#include "base/cli.h"
#include "base/mem.h"

/* An arm's bench, and its program as groups between values that a deep tape would hold. */
typedef struct side {
    eng_bench *bench;
    const eng_program *program;
    rpl_fold *fold;
    const char *set;
} side;

struct rpl_rerun {
    eng_config config;
    side own, by[RPL_SUBSTITUTES_MAX];
    int32_t n_by;
    int32_t *maker; /* [groups of own]: which of `by` makes the group, -1: own */
};

/* ---- sets ---- */

err_code rpl_substitute_parse(const char *text, const eng_option_words *words, int64_t threads, char buf[RPL_SET_BYTES],
                              rpl_substitute *out, err *e)
{
    const char *equals = strchr(text, '=');
    size_t n = equals ? (size_t)(equals - text) : 0;
    if (n == 0 || n >= RPL_SET_BYTES || !equals[1])
        return err_set(e, ERR_ARG, "--only: found '%.64s', wanted SET=ARM, as in s0.attn=native-expanded", text);
    memcpy(buf, text, n);
    buf[n] = 0;
    if (strcmp(equals + 1, "cuda") == 0)
        return err_set(e, ERR_ARG, "--only %.64s: one op alone runs on the CPU, wanted an arm", text);
    eng_option_words by = *words;
    by.arm = equals + 1;
    out->set = buf;
    err_code rc = eng_options_parse(&by, threads, &out->by, e);
    if (rc != ERR_OK) cli_say_as(e, "--arm", "--only");
    return rc;
}

/* One item of a set: what it matches, and what lies below that. */
static bool item_has(const char *item, size_t n, const char *name)
{
    char pattern[3 * RPL_SET_BYTES + 8];
    snprintf(pattern, sizeof pattern, "%.*s,%.*s.*,%.*s_*", (int)n, item, (int)n, item, (int)n, item);
    return cli_match(pattern, name);
}

bool rpl_set_has(const char *set, const char *name)
{
    for (;;) {
        size_t n = strcspn(set, ",");
        if (n > 0 && n < RPL_SET_BYTES && item_has(set, n, name)) return true;
        if (!set[n]) return false;
        set += n + 1;
    }
}

/* The very name: "s0.attn.norm" has what lies below it, but not the qr that reads s0.attn.norm.qdq. */
static bool set_names(const char *set, const char *name)
{
    const size_t bytes = strlen(name);
    for (;;) {
        size_t n = strcspn(set, ",");
        if (n == bytes && memcmp(set, name, n) == 0) return true;
        if (!set[n]) return false;
        set += n + 1;
    }
}

bool rpl_set_has_group(const char *set, const eng_program *p, const rpl_group *g)
{
    if (rpl_set_has(set, g->name)) return true;
    for (int32_t i = 0; i < g->n_out; i++)
        if (rpl_set_has(set, p->value[g->out[i]].name)) return true;
    for (int32_t i = 0; i < g->n_ops; i++)
        if (set_names(set, p->op[g->op[i]].name)) return true;
    return false;
}

/* ---- open ---- */

static err_code open_side(const eng_weights *w, const eng_options *o, const char *set, side *s, err *e)
{
    const eng_config *c = eng_weights_config(w);
    s->set = set;
    TRY(eng_bench_open(w, o, ENG_STEP_DRAFT, c->block, 1, c->block, &s->bench, e));
    s->program = eng_bench_program(s->bench);
    bool *recorded = mem_alloc((size_t)s->program->n_values, sizeof *recorded);
    if (!recorded) return err_set(e, ERR_NOMEM, "rerun: no memory");
    for (int32_t v = 0; v < s->program->n_values; v++) recorded[v] = s->program->value[v].level <= ENG_LEVEL_DEEP;
    err_code rc = rpl_fold_make(s->program, recorded, NULL, &s->fold, e);
    free(recorded);
    return rc;
}

static err_code choose_makers(rpl_rerun *r, err *e)
{
    int32_t n = rpl_fold_count(r->own.fold), n_made[RPL_SUBSTITUTES_MAX] = { 0 };
    r->maker = mem_alloc((size_t)n, sizeof *r->maker);
    if (!r->maker) return err_set(e, ERR_NOMEM, "rerun: no memory");
    for (int32_t i = 0; i < n; i++) {
        r->maker[i] = -1;
        for (int32_t k = r->n_by - 1; k >= 0; k--)
            if (rpl_set_has_group(r->by[k].set, r->own.program, rpl_fold_at(r->own.fold, i))) r->maker[i] = k;
        if (r->maker[i] >= 0) n_made[r->maker[i]]++;
    }
    for (int32_t k = 0; k < r->n_by; k++)
        if (n_made[k] == 0)
            return err_set(e, ERR_ARG, "--only %s: found no op of that name, wanted one of sparktape plan, as in s0.attn",
                           r->by[k].set);
    return ERR_OK;
}

static err_code open_all(const eng_weights *w, const eng_options *o, const rpl_substitute *substitute, rpl_rerun *r, err *e)
{
    TRY(open_side(w, o, NULL, &r->own, e));
    for (int32_t k = 0; k < r->n_by; k++) TRY(open_side(w, &substitute[k].by, substitute[k].set, &r->by[k], e));
    return choose_makers(r, e);
}

err_code rpl_rerun_open(const eng_weights *w, const eng_options *o, const rpl_substitute *substitute,
                        int32_t n_substitutes, rpl_rerun **out, err *e)
{
    *out = NULL;
    if (n_substitutes > RPL_SUBSTITUTES_MAX)
        return err_set(e, ERR_ARG, "--only: found %d sets, wanted at most %d", n_substitutes, RPL_SUBSTITUTES_MAX);
    rpl_rerun *r = mem_alloc(1, sizeof *r);
    if (!r) return err_set(e, ERR_NOMEM, "rerun: no memory");
    r->config = *eng_weights_config(w);
    r->n_by = n_substitutes;
    err_code rc = open_all(w, o, substitute, r, e);
    if (rc != ERR_OK) {
        rpl_rerun_close(r);
        return rc;
    }
    *out = r;
    return ERR_OK;
}

static void close_side(side *s)
{
    rpl_fold_free(s->fold);
    eng_bench_close(s->bench);
}

void rpl_rerun_close(rpl_rerun *r)
{
    if (!r) return;
    close_side(&r->own);
    for (int32_t k = 0; k < r->n_by; k++) close_side(&r->by[k]);
    free(r->maker);
    free(r);
}

/* ---- run ---- */

static void set_inputs(const rpl_rerun *r, const side *s, const rpl_rerun_draft *d)
{
    const eng_config *c = &r->config;
    int32_t before[ENG_BLOCK_MAX] = { 0 }, rows = d->pos < c->window ? d->pos + 1 : c->window;
    memcpy(before, d->drafts, (size_t)d->n_out * sizeof *before); /* positions after n_out are made and not looked at */
    eng_bench_positions(s->bench, &d->pos, &d->anchor);
    eng_bench_force_drafts(s->bench, before);
    for (int32_t k = 0; k < c->n_stages; k++)
        memcpy(eng_bench_ring(s->bench, 0, k), d->window[k], (size_t)rows * (size_t)c->head_dim * sizeof(bf16));
}

static size_t value_bytes(const rpl_rerun *r, const eng_program *p, int32_t v)
{
    eng_extents x = eng_extents_of(&r->config, r->config.block, 1, r->config.block);
    return (size_t)eng_value_elems(p, v, &x, 0, 1) * fmt_dtype_bytes(p->value[v].dtype);
}

static void copy_value(const rpl_rerun *r, const side *from, const side *to, const char *name)
{
    int32_t v = eng_program_find_value(from->program, name), at = eng_program_find_value(to->program, name);
    CHECK(v >= 0 && at >= 0); /* programs differ in hidden values alone */
    if (from->program->value[v].state) return;
    memcpy(eng_bench_value(to->bench, at), eng_bench_value(from->bench, v), value_bytes(r, from->program, v));
}

static err_code run_group(const side *s, const rpl_group *g, err *e)
{
    for (int32_t k = 0; k < g->n_ops; k++) TRY(eng_bench_run(s->bench, g->op[k], g->op[k], e));
    return ERR_OK;
}

/* A group of own made by another arm, on own's values. */
static err_code run_elsewhere(const rpl_rerun *r, const side *by, const rpl_group *g, err *e)
{
    const char *name = r->own.program->value[g->out[0]].name;
    int32_t i = rpl_fold_of_value(by->fold, eng_program_find_value(by->program, name));
    CHECK(i >= 0);
    const rpl_group *made = rpl_fold_at(by->fold, i);
    for (int32_t k = 0; k < made->n_in; k++) copy_value(r, &r->own, by, by->program->value[made->in[k]].name);
    TRY(run_group(by, made, e));
    for (int32_t k = 0; k < made->n_out; k++) copy_value(r, by, &r->own, by->program->value[made->out[k]].name);
    return ERR_OK;
}

err_code rpl_rerun_run(rpl_rerun *r, const rpl_rerun_draft *d, err *e)
{
    set_inputs(r, &r->own, d);
    if (r->n_by == 0) return eng_bench_run(r->own.bench, 0, r->own.program->n_ops - 1, e);
    for (int32_t k = 0; k < r->n_by; k++) set_inputs(r, &r->by[k], d);
    for (int32_t i = 0; i < rpl_fold_count(r->own.fold); i++) {
        const rpl_group *g = rpl_fold_at(r->own.fold, i);
        TRY(r->maker[i] < 0 ? run_group(&r->own, g, e) : run_elsewhere(r, &r->by[r->maker[i]], g, e));
    }
    return ERR_OK;
}

const void *rpl_rerun_value(const rpl_rerun *r, const char *name)
{
    int32_t v = eng_program_find_value(r->own.program, name);
    return v < 0 ? NULL : eng_bench_value(r->own.bench, v);
}
