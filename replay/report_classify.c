/* The parts of a classification, put together: keys, flags and tokens are read back, and summed as the classifier does. */
#include "replay/report_sum.h"

#include "base/mem.h"
#include "replay/classify.h"
#include "replay/report.h"

#include <math.h>

static int32_t whole(const json_t *j, const char *key) { return (int32_t)rpl_count(j, key); }

static void read_reals(const json_t *list, double out[ENG_STAGES_MAX])
{
    for (size_t i = 0; i < ENG_STAGES_MAX; i++)
        out[i] = i < json_array_size(list) ? rpl_json_number(json_array_get(list, i)) : NAN;
}

static void read_side(const json_t *j, rpl_side *out)
{
    read_reals(json_object_get(j, "error"), out->error);
    read_reals(json_object_get(j, "excess"), out->excess);
    out->kl = rpl_real(j, "kl");
    out->n_equal = (int32_t)json_integer_value(json_array_get(json_object_get(j, "tokens"), 0));
}

static void read_key(const json_t *j, rpl_key *k)
{
    *k = (rpl_key){ .tape = whole(j, "tape"), .round = whole(j, "round"), .slot = whole(j, "slot"), .pos = whole(j, "pos"),
                    .n_out = whole(j, "n_out"), .n_own = whole(j, "own"),
                    .rerun = json_is_true(json_object_get(j, "rerun")) };
    if (!k->rerun) return;
    k->n_kl = whole(j, "kl_positions");
    read_reals(json_object_get(j, "mirror_error"), k->mirror_error);
    k->band = rpl_real(j, "band");
    k->band_floor = rpl_real(j, "band_floor");
    k->noise = rpl_real(j, "noise");
    read_side(json_object_get(j, "worker"), &k->worker);
    if (json_object_get(j, "control")) read_side(json_object_get(j, "control"), &k->control);
}

static void read_flag(const json_t *j, rpl_flag *f)
{
    *f = (rpl_flag){ .tape = whole(j, "tape"), .round = whole(j, "round"), .slot = whole(j, "slot"),
                     .position = whole(j, "position"), .row = whole(j, "row"), .n = rpl_count(j, "n"),
                     .got = rpl_real(j, "got"), .wanted = rpl_real(j, "wanted") };
    snprintf(f->value, sizeof f->value, "%s", fmt_json_text(j, "value"));
    for (int k = 0; k < RPL_FLAG_COUNT; k++)
        if (strcmp(rpl_flag_text((rpl_flag_kind)k), fmt_json_text(j, "kind")) == 0) f->kind = (rpl_flag_kind)k;
}

static void read_token(const json_t *j, rpl_token *t)
{
    *t = (rpl_token){ .tape = whole(j, "tape"), .round = whole(j, "round"), .slot = whole(j, "slot"),
                      .i = whole(j, "position"), .control = strcmp(fmt_json_text(j, "side"), "control") == 0,
                      .token = whole(j, "token"), .mirror = whole(j, "mirror"), .margin = rpl_real(j, "margin"),
                      .noise = rpl_real(j, "noise") };
}

static void read_counts(const json_t *j, rpl_classification *c)
{
    const json_t *state = json_object_get(j, "state"), *v = json_object_get(j, "certificate");
    c->n_rounds = whole(j, "rounds");
    c->n_rounds_wanted = whole(j, "rounds_wanted");
    c->n_state_rows = rpl_count(state, "rows");
    c->n_windows = rpl_count(state, "windows");
    c->n_windows_unchecked = rpl_count(state, "windows_given");
    c->n_main_x_given = rpl_count(state, "main_x_given");
    c->interrupted = c->n_rounds < c->n_rounds_wanted;
    c->certificate = (rpl_verdict){ .n = rpl_count(v, "elements"), .n_equal = rpl_count(v, "equal"),
                                    .n_flip = rpl_count(v, "flip"), .n_illegal = rpl_count(v, "illegal"),
                                    .n_unjudged = rpl_count(v, "not_judged") };
    snprintf(c->first_illegal, sizeof c->first_illegal, "%s", fmt_json_text(v, "first_illegal"));
    c->has_control = json_is_string(json_object_get(j, "control"));
    c->n_stages = (int32_t)json_array_size(json_object_get(json_object_get(j, "worker"), "excess"));
    if (c->n_stages > ENG_STAGES_MAX) c->n_stages = ENG_STAGES_MAX;
}

static err_code read_gates(const json_t *j, rpl_gates *g, err *e)
{
    rpl_gates_default(g);
    for (int k = 0; k < RPL_GATE_COUNT; k++) {
        const json_t *o = json_object_get(json_object_get(j, "gates"), rpl_gate_key((rpl_gate)k));
        g->limit[k] = rpl_real(o, "limit");
        g->strict[k] = rpl_real(o, "default");
        if (!isfinite(g->limit[k]) || !isfinite(g->strict[k]))
            return err_set(e, ERR_INPUT, "a classification's gate %s: found no \"limit\" and \"default\", wanted numbers",
                           rpl_gate_key((rpl_gate)k));
    }
    return ERR_OK;
}

/* The sums take it for granted. */
static bool has_key(const rpl_classification *c, const rpl_token *t)
{
    for (size_t i = 0; i < c->n_keys; i++)
        if (c->key[i].tape == t->tape && c->key[i].round == t->round && c->key[i].slot == t->slot) return true;
    return false;
}

static err_code read_lists(const json_t *j, rpl_classification *c, err *e)
{
    const json_t *keys = json_object_get(j, "keys"), *flags = json_object_get(j, "flags");
    const json_t *tokens = json_object_get(j, "tokens");
    c->n_keys = json_array_size(keys);
    c->n_flags = json_array_size(flags);
    c->n_tokens = json_array_size(tokens);
    c->key = mem_alloc(c->n_keys + 1, sizeof *c->key);
    c->flag = mem_alloc(c->n_flags + 1, sizeof *c->flag);
    c->token = mem_alloc(c->n_tokens + 1, sizeof *c->token);
    if (!c->key || !c->flag || !c->token) return err_set(e, ERR_NOMEM, "no memory for %zu keys", c->n_keys);
    for (size_t i = 0; i < c->n_keys; i++) read_key(json_array_get(keys, i), &c->key[i]);
    for (size_t i = 0; i < c->n_flags; i++) read_flag(json_array_get(flags, i), &c->flag[i]);
    for (size_t i = 0; i < c->n_tokens; i++) {
        read_token(json_array_get(tokens, i), &c->token[i]);
        if (!has_key(c, &c->token[i]))
            return err_set(e, ERR_INPUT, "a classification's token %zu is of round %d, slot %d: found no such key", i,
                           c->token[i].round, c->token[i].slot);
    }
    return ERR_OK;
}

err_code rpl_sum_classification(json_t *j, err *e)
{
    static const char *const MADE[] = { "verdict", "gates", "band", "noise", "worker", "control_figures", "certificate",
                                        "keys", "tokens" };
    rpl_classification c = { 0 };
    rpl_gates gates;
    json_t *made = NULL;
    read_counts(j, &c);
    err_code rc = read_gates(j, &gates, e);
    if (rc == ERR_OK) rc = read_lists(j, &c, e);
    if (rc == ERR_OK) rc = rpl_classify_sum(&c, &gates, e);
    if (rc == ERR_OK) {
        const rpl_coverage coverage = { 1, 1, c.n_rounds, c.n_rounds_wanted, c.n_rounds, c.interrupted,
                                        json_is_true(json_object_get(j, "damaged")) };
        const rpl_classify_report r = { &c, &gates, NULL, "", c.has_control ? "" : NULL, NULL, NULL, coverage, false };
        made = rpl_classify_json(&r);
        if (!made) rc = err_set(e, ERR_NOMEM, "no memory for %zu keys", c.n_keys);
    }
    for (size_t i = 0; rc == ERR_OK && i < COUNT_OF(MADE); i++) {
        json_t *v = json_object_get(made, MADE[i]);
        if (v && json_object_set(j, MADE[i], v) != 0) rc = err_set(e, ERR_NOMEM, "no memory for %zu keys", c.n_keys);
    }
    json_decref(made);
    free(c.key);
    free(c.flag);
    free(c.token);
    return rc;
}
