/* A classification as text and as JSON. */
#include <inttypes.h>
#include <math.h>

#include "replay/classify.h"

enum { FEW = 12 }; /* lines of a kind unless all are wanted */

/* ---- text ---- */

static const char *number(double v, char buf[24])
{
    if (isnan(v)) return "-";
    snprintf(buf, 24, fabs(v) < 1e6 && v == floor(v) ? "%.0f" : "%.4g", v);
    return buf;
}

static bool has_control(const rpl_classification *c, rpl_gate g)
{
    return c->has_control && g != RPL_GATE_STATE && g != RPL_GATE_OWN_LOGIT;
}

static const char *verdict_of(const rpl_classification *c, rpl_gate g)
{
    return c->n_compared[g] ? rpl_outcome_text(c->gate[g]) : "FAIL: nothing compared";
}

static void print_gates(const rpl_classify_report *r)
{
    const rpl_classification *c = r->c;
    printf("%-53s %10s %10s %10s %9s\n", "gate", "worker", "control", "limit", "of");
    for (int g = 0; g < RPL_GATE_COUNT; g++) {
        char a[24], b[24], l[24];
        printf("%-53s %10s %10s %10s %9" PRId64 "  %s\n", rpl_gate_text((rpl_gate)g), number(c->worker.gate[g], a),
               has_control(c, (rpl_gate)g) ? number(c->control.gate[g], b) : "-", number(r->gates->limit[g], l),
               c->n_compared[g], verdict_of(c, (rpl_gate)g));
    }
    bool any = false;
    for (int g = 0; g < RPL_GATE_COUNT; g++) {
        char a[24], b[24];
        if (!r->gates->overridden[g]) continue;
        printf("%s %s: limit %s instead of %s", any ? "," : r->gates->file, rpl_gate_key((rpl_gate)g),
               number(r->gates->limit[g], a), number(r->gates->strict[g], b));
        any = true;
    }
    if (any) printf("\n");
    else printf("limits: the defaults, which are strict\n");
}

static void print_stages(const rpl_classify_report *r)
{
    const rpl_classification *c = r->c;
    for (int32_t s = 0; s < c->n_stages; s++) {
        char a[24], b[24];
        printf("%s s%d.attn_out %s", s ? "," : "median excess of", s, number(c->worker.excess[s], a));
        if (c->has_control) printf(" (control %s)", number(c->control.excess[s], b));
    }
    printf("\n");
}

static void print_logits(const rpl_classify_report *r)
{
    const rpl_classification *c = r->c;
    bool top = false;
    for (size_t i = 0; i < c->n_keys; i++) top = top || c->key[i].kl_top;
    if (c->n_compared[RPL_GATE_KL]) {
        printf("KL %.3g nats a position, band %.3g", c->worker.kl, c->band);
        if (c->has_control) printf(", control %.3g", c->control.kl);
        printf(" (over %s)\n", top ? "the recorded largest logits, renormalised" : "the vocabulary");
    }
    printf("tokens: %" PRId64 " equal, %" PRId64 " explained, %" PRId64 " unexplained", c->worker.n_equal,
           c->worker.n_explained, c->worker.n_unexplained);
    if (c->has_control)
        printf("; control %" PRId64 ", %" PRId64 ", %" PRId64, c->control.n_equal, c->control.n_explained,
               c->control.n_unexplained);
    printf("\n");
}

static void print_state(const rpl_classification *c)
{
    printf("state: %" PRId64 " rows, %" PRId64 " windows", c->n_state_rows, c->n_windows);
    if (c->n_windows_unchecked)
        printf("; %" PRId64 " windows taken as given (no main_kv on the tape tells them)", c->n_windows_unchecked);
    if (c->n_keys_in_doubt)
        printf("; %" PRId64 " keys are flagged, and left out of attention, KL and tokens", c->n_keys_in_doubt);
    if (c->n_main_x_given) printf("; main_x of %" PRId64 " rows taken as given (no taps)", c->n_main_x_given);
    printf("\n");
}

static void print_flag(const rpl_classify_report *r, const rpl_flag *f)
{
    if (r->c->n_tapes > 1) printf("%s ", r->tape[f->tape]);
    printf("round %d slot %d %s: %s", f->round, f->slot, f->value, rpl_flag_text(f->kind));
    if (f->kind == RPL_FLAG_OWN_LOGIT) {
        printf(": position %d drafted %.0f, its logits say %.0f\n", f->position, f->got, f->wanted);
        return;
    }
    if (f->kind == RPL_FLAG_GAP) printf(": found %.0f, wanted %.0f", f->got, f->wanted);
    else printf(": %" PRId64 " %s, position %d", f->n, f->kind == RPL_FLAG_ILLEGAL ? "elements" : "rows", f->position);
    if (f->row >= 0) printf(" (ring row %d)", f->row);
    if (f->kind == RPL_FLAG_ILLEGAL) printf(": got %.6g, exact %.6g", f->got, f->wanted);
    printf("\n");
}

static void print_lists(const rpl_classify_report *r)
{
    const rpl_classification *c = r->c;
    size_t most = r->all ? SIZE_MAX : FEW, n = 0;
    for (size_t i = 0; i < c->n_flags && i < most; i++) print_flag(r, &c->flag[i]);
    if (c->n_flags > most) printf("... and %zu more flags (--all)\n", c->n_flags - most);
    for (size_t i = 0; i < c->n_tokens; i++) {
        const rpl_token *t = &c->token[i];
        if ((t->control || t->explained) && !r->all) continue;
        if (n++ >= most) continue;
        if (c->n_tapes > 1) printf("%s ", r->tape[t->tape]);
        printf("round %d slot %d position %d: %s drafted %d, mirror %d, margin %.3g, noise %.3g: %s\n", t->round, t->slot,
               t->i, t->control ? "control" : "worker", t->token, t->mirror, t->margin,
               t->noise > c->noise ? t->noise : c->noise, t->explained ? "explained" : "unexplained");
    }
    if (n > most) printf("... and %zu more tokens (--all)\n", n - most);
}

/* What was compared and fails; NULL: nothing does. */
static const char *failure_of(const rpl_classification *c)
{
    const char *found = c->certificate.n_illegal ? "FAIL" : NULL;
    for (int g = 0; g < RPL_GATE_COUNT; g++) {
        if (c->n_compared[g] == 0 || c->gate[g] == RPL_OUTCOME_PASS) continue;
        if (!found || c->gate[g] == RPL_OUTCOME_FAIL) found = rpl_outcome_text(c->gate[g]);
    }
    return found;
}

const char *rpl_classify_verdict(const rpl_classify_report *r)
{
    const rpl_classification *c = r->c;
    const char *whole = c->outcome == RPL_OUTCOME_PASS && c->certificate.n_illegal ? "FAIL" : rpl_outcome_text(c->outcome);
    return rpl_coverage_verdict(&r->coverage, c->interrupted ? failure_of(c) : whole);
}

static const char *certified(const rpl_verdict *v) { return v->n_illegal == 0 && v->n > v->n_unjudged ? "PASS" : "FAIL"; }

void rpl_classify_print(const rpl_classify_report *r)
{
    const rpl_classification *c = r->c;
    const rpl_verdict *v = &c->certificate;
    for (int32_t i = 0; i < c->n_tapes; i++) printf("%s%s", i ? " " : "", r->tape[i]);
    printf(": %zu keys of %d rounds", c->n_keys, c->n_rounds);
    if (r->coverage.n_shards > 1) printf(" (part %d of %d)", r->coverage.shard, r->coverage.n_shards);
    printf(" against mirror and mirror64 of %s", r->model);
    if (r->own) printf(", of the weights that %s holds", r->own);
    puts("");
    if (r->control) printf("control: %s\n", r->control);
    rpl_coverage_print(&r->coverage);
    if (rpl_coverage_empty(&r->coverage)) {
        printf("verdict: %s\n", rpl_classify_verdict(r));
        return;
    }
    print_gates(r);
    print_state(c);
    if (c->n_compared[RPL_GATE_TOKENS]) {
        print_stages(r);
        print_logits(r);
    }
    print_lists(r);
    printf("certificate: %s  %" PRId64 " elements: equal %" PRId64 ", flip %" PRId64 ", illegal %" PRId64, certified(v),
           v->n, v->n_equal, v->n_flip, v->n_illegal);
    if (v->n_unjudged) printf(", not judged %" PRId64 " (what they are made from is not on the tape)", v->n_unjudged);
    printf("%s%s\n", c->first_illegal[0] ? ", first: " : "", c->first_illegal);
    printf("verdict: %s%s\n", rpl_classify_verdict(r), c->outcome == RPL_OUTCOME_PASS && c->certificate.n_illegal
                                                            ? ": the gates pass, the certificate fails" : "");
    if (c->outcome == RPL_OUTCOME_CONTROL_FAILS)
        printf("every gate that fails is failed by the control too: a question of the gate, and still not a pass\n");
    if (r->exl3 && !r->own && strcmp(rpl_classify_verdict(r), "PASS") != 0)
        printf("%s ran on EXL3 weights, the references are of the official ones: --own takes the arm's\n",
               r->exl3);
}

/* ---- JSON ---- */

/* Adds value; false once anything failed. */
static void set(json_t *o, const char *key, json_t *value, bool *fine)
{
    if (json_object_set_new(o, key, value) != 0) *fine = false; /* also where value is NULL */
}

static void append(json_t *list, json_t *value, bool *fine)
{
    if (json_array_append_new(list, value) != 0) *fine = false;
}

static json_t *reals(const double *v, int32_t n, bool *fine)
{
    json_t *list = json_array();
    for (int32_t i = 0; i < n; i++) append(list, fmt_json_real(v[i]), fine);
    return list;
}

static json_t *gates_json(const rpl_classify_report *r, bool *fine)
{
    json_t *all = json_object();
    for (int g = 0; g < RPL_GATE_COUNT; g++) {
        json_t *o = json_pack("{s:s, s:o, s:I}", "verdict", verdict_of(r->c, (rpl_gate)g), "figure",
                              fmt_json_real(r->c->worker.gate[g]), "of", (json_int_t)r->c->n_compared[g]);
        if (has_control(r->c, (rpl_gate)g)) set(o, "control", fmt_json_real(r->c->control.gate[g]), fine);
        set(o, "limit", json_real(r->gates->limit[g]), fine);
        set(o, "default", json_real(r->gates->strict[g]), fine);
        set(all, rpl_gate_key((rpl_gate)g), o, fine);
    }
    return all;
}

static json_t *figures_json(const rpl_figures *f, int32_t n_stages, bool *fine)
{
    return json_pack("{s:o, s:o, s:o, s:{s:I, s:I, s:I}}", "excess", reals(f->excess, n_stages, fine), "kl",
                     fmt_json_real(f->kl), "kl_ratio", fmt_json_real(f->ratio), "tokens", "equal", (json_int_t)f->n_equal,
                     "explained", (json_int_t)f->n_explained, "unexplained", (json_int_t)f->n_unexplained);
}

static json_t *side_json(const rpl_side *s, int32_t n_stages, bool *fine)
{
    return json_pack("{s:o, s:o, s:o, s:[i,i,i]}", "error", reals(s->error, n_stages, fine), "excess",
                     reals(s->excess, n_stages, fine), "kl", fmt_json_real(s->kl), "tokens", (int)s->n_equal,
                     (int)s->n_explained, (int)s->n_unexplained);
}

static json_t *key_json(const rpl_classification *c, const rpl_key *k, bool *fine)
{
    json_t *o = json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:b}", "tape", (int)k->tape, "round", (int)k->round,
                          "slot", (int)k->slot, "pos", (int)k->pos, "n_out", (int)k->n_out, "state_flags",
                          (int)k->n_state_flags, "own", (int)k->n_own, "own_flags", (int)k->n_own_flags, "rerun", k->rerun);
    if (!k->rerun) return o;
    set(o, "kl_positions", json_integer(k->n_kl), fine);
    set(o, "mirror_error", reals(k->mirror_error, c->n_stages, fine), fine);
    set(o, "band", fmt_json_real(k->band), fine);
    set(o, "band_floor", fmt_json_real(k->band_floor), fine);
    set(o, "noise", fmt_json_real(k->noise), fine);
    set(o, "worker", side_json(&k->worker, c->n_stages, fine), fine);
    if (c->has_control) set(o, "control", side_json(&k->control, c->n_stages, fine), fine);
    return o;
}

static json_t *flag_json(const rpl_flag *f)
{
    return json_pack("{s:i, s:i, s:i, s:s, s:s, s:i, s:i, s:I, s:o, s:o}", "tape", (int)f->tape, "round", (int)f->round,
                     "slot", (int)f->slot, "kind", rpl_flag_text(f->kind), "value", f->value, "position", (int)f->position,
                     "row", (int)f->row, "n", (json_int_t)f->n, "got", fmt_json_real(f->got), "wanted",
                     fmt_json_real(f->wanted));
}

static json_t *token_json(const rpl_token *t)
{
    return json_pack("{s:i, s:i, s:i, s:i, s:s, s:i, s:i, s:o, s:o, s:b}", "tape", (int)t->tape, "round", (int)t->round,
                     "slot", (int)t->slot, "position", (int)t->i, "side", t->control ? "control" : "worker", "token",
                     (int)t->token, "mirror", (int)t->mirror, "margin", fmt_json_real(t->margin), "noise",
                     fmt_json_real(t->noise), "explained", t->explained);
}

static json_t *certificate_json(const rpl_classification *c)
{
    const rpl_verdict *v = &c->certificate;
    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:s}", "verdict", certified(v), "elements", (json_int_t)v->n, "equal",
                     (json_int_t)v->n_equal, "flip", (json_int_t)v->n_flip, "illegal", (json_int_t)v->n_illegal,
                     "not_judged", (json_int_t)v->n_unjudged, "first_illegal", c->first_illegal);
}

json_t *rpl_classify_json(const rpl_classify_report *r)
{
    const rpl_classification *c = r->c;
    bool fine = true;
    json_t *tapes = json_array(), *keys = json_array(), *flags = json_array(), *tokens = json_array();
    for (int32_t i = 0; i < c->n_tapes; i++) append(tapes, json_string(r->tape[i]), &fine);
    for (size_t i = 0; i < c->n_keys; i++) append(keys, key_json(c, &c->key[i], &fine), &fine);
    for (size_t i = 0; i < c->n_flags; i++) append(flags, flag_json(&c->flag[i]), &fine);
    for (size_t i = 0; i < c->n_tokens; i++) append(tokens, token_json(&c->token[i]), &fine);
    json_t *o = json_pack("{s:i, s:s, s:s, s:o, s:s, s:s?, s:s?, s:s?, s:o}", "schema", 1, "type", "classification",
                          "verdict", rpl_classify_verdict(r), "tapes", tapes, "model", r->model, "own", r->own, "control",
                          r->control, "gates_file", r->gates->file[0] ? r->gates->file : NULL, "gates",
                          gates_json(r, &fine));
    set(o, "state", json_pack("{s:I, s:I, s:I, s:I, s:I}", "rows", (json_int_t)c->n_state_rows, "windows",
                              (json_int_t)c->n_windows, "windows_given", (json_int_t)c->n_windows_unchecked, "main_x_given",
                              (json_int_t)c->n_main_x_given, "keys_in_doubt", (json_int_t)c->n_keys_in_doubt), &fine);
    set(o, "band", fmt_json_real(c->band), &fine);
    set(o, "noise", fmt_json_real(c->noise), &fine);
    set(o, "worker", figures_json(&c->worker, c->n_stages, &fine), &fine);
    if (c->has_control) set(o, "control_figures", figures_json(&c->control, c->n_stages, &fine), &fine);
    set(o, "certificate", certificate_json(c), &fine);
    set(o, "flags", flags, &fine);
    set(o, "tokens", tokens, &fine);
    set(o, "keys", keys, &fine);
    if (fine && o) return rpl_coverage_json(&r->coverage, o);
    json_decref(o);
    return NULL;
}
