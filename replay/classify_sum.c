/* What the keys amount to: medians, the pooled band, the gates. */
#include "replay/classify_in.h"

#include <math.h>

#include "base/mem.h"

const char *rpl_outcome_text(rpl_outcome o)
{
    return o == RPL_OUTCOME_PASS ? "PASS" : o == RPL_OUTCOME_FAIL ? "FAIL" : "CONTROL-FAILS";
}

static int ascending(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

/* Median of v, which is sorted; the mean of the middle two. NaN: n is 0. */
static double median(double *v, size_t n)
{
    if (n == 0) return NAN;
    qsort(v, n, sizeof *v, ascending);
    return n % 2 ? v[n / 2] : v[n / 2 - 1] / 2 + v[n / 2] / 2;
}

/* A flagged window is in doubt, and so is what the reference made of it. */
static bool takes_part(const rpl_key *k) { return k->rerun && k->n_state_flags == 0; }

static const rpl_side *side_of(const rpl_key *k, bool control) { return control ? &k->control : &k->worker; }

/* Medians by stage; *n: keys that the stage with the fewest has. */
static void sum_attention(const rpl_classification *c, bool control, double *scratch, rpl_figures *out, int64_t *n)
{
    double worst = 0;
    *n = INT64_MAX;
    for (int32_t s = 0; s < c->n_stages; s++) {
        size_t count = 0;
        for (size_t i = 0; i < c->n_keys; i++) {
            double excess = side_of(&c->key[i], control)->excess[s];
            if (takes_part(&c->key[i]) && !isnan(excess)) scratch[count++] = excess;
        }
        out->excess[s] = median(scratch, count);
        if (!(out->excess[s] <= worst)) worst = out->excess[s];
        if ((int64_t)count < *n) *n = (int64_t)count;
    }
    out->gate[RPL_GATE_ATTENTION] = worst;
}

static void sum_kl(rpl_classification *c, int64_t *n)
{
    double worker = 0, control = 0, band = 0, floor = 0;
    *n = 0;
    for (size_t i = 0; i < c->n_keys; i++) {
        const rpl_key *k = &c->key[i];
        if (!takes_part(k)) continue;
        *n += k->n_kl;
        worker += k->worker.kl;
        control += k->control.kl;
        band += k->band;
        floor += k->band_floor;
    }
    double count = *n ? (double)*n : 1;
    c->band = (band > floor ? band : floor) / count;
    c->worker.kl = worker / count;
    c->control.kl = control / count;
    c->worker.ratio = c->worker.gate[RPL_GATE_KL] = *n ? c->worker.kl / c->band : 0;
    c->control.ratio = c->control.gate[RPL_GATE_KL] = *n ? c->control.kl / c->band : 0;
}

static rpl_key *key_of(rpl_classification *c, int32_t tape, int32_t round, int32_t slot)
{
    for (size_t i = 0; i < c->n_keys; i++) /* tens of keys have flags or other tokens, of thousands */
        if (c->key[i].tape == tape && c->key[i].round == round && c->key[i].slot == slot) return &c->key[i];
    return NULL;
}

static void sum_flags(rpl_classification *c)
{
    for (size_t i = 0; i < c->n_keys; i++) c->key[i].n_state_flags = c->key[i].n_own_flags = 0;
    for (size_t i = 0; i < c->n_flags; i++) {
        const rpl_flag *f = &c->flag[i];
        rpl_key *k = key_of(c, f->tape, f->round, f->slot);
        bool own = f->kind == RPL_FLAG_OWN_LOGIT;
        c->worker.gate[own ? RPL_GATE_OWN_LOGIT : RPL_GATE_STATE] += (double)f->n;
        if (k && own) k->n_own_flags += (int32_t)f->n;
        else if (k) k->n_state_flags += (int32_t)f->n;
    }
}

static void sum_tokens(rpl_classification *c)
{
    double squares = 0;
    int64_t n = 0;
    for (size_t i = 0; i < c->n_keys; i++) {
        rpl_key *k = &c->key[i];
        k->worker.n_explained = k->worker.n_unexplained = k->control.n_explained = k->control.n_unexplained = 0;
        if (!takes_part(k)) continue;
        squares += k->noise * k->noise;
        n++;
        c->worker.n_equal += k->worker.n_equal;
        c->control.n_equal += k->control.n_equal;
    }
    c->noise = n ? sqrt(squares / (double)n) : 0;
    for (size_t i = 0; i < c->n_tokens; i++) {
        rpl_token *t = &c->token[i];
        rpl_key *k = key_of(c, t->tape, t->round, t->slot);
        if (!takes_part(k)) continue;
        t->explained = t->margin <= 2 * (t->noise > c->noise ? t->noise : c->noise);
        rpl_figures *f = t->control ? &c->control : &c->worker;
        rpl_side *s = t->control ? &k->control : &k->worker;
        *(t->explained ? &f->n_explained : &f->n_unexplained) += 1;
        *(t->explained ? &s->n_explained : &s->n_unexplained) += 1;
    }
    c->worker.gate[RPL_GATE_TOKENS] = (double)c->worker.n_unexplained;
    c->control.gate[RPL_GATE_TOKENS] = (double)c->control.n_unexplained;
}

static void judge_gates(rpl_classification *c, const rpl_gates *gates)
{
    c->outcome = RPL_OUTCOME_PASS;
    for (int g = 0; g < RPL_GATE_COUNT; g++) {
        bool controlled = c->has_control && g != RPL_GATE_STATE && g != RPL_GATE_OWN_LOGIT;
        bool compared = c->n_compared[g] > 0;
        c->gate[g] = RPL_OUTCOME_FAIL;
        if (compared && c->worker.gate[g] <= gates->limit[g]) c->gate[g] = RPL_OUTCOME_PASS;
        else if (compared && controlled && !(c->control.gate[g] <= gates->limit[g])) c->gate[g] = RPL_OUTCOME_CONTROL_FAILS;
        if (c->gate[g] == RPL_OUTCOME_PASS || c->outcome == RPL_OUTCOME_FAIL) continue;
        c->outcome = c->gate[g];
    }
}

err_code rpl_classify_sum(rpl_classification *r, const rpl_gates *gates, err *e)
{
    int64_t unused;
    double *scratch = mem_alloc(r->n_keys + 1, sizeof *scratch);
    if (!scratch) return err_set(e, ERR_NOMEM, "classify: no memory for %zu keys", r->n_keys);
    r->worker = r->control = (rpl_figures){ 0 };
    memset(r->n_compared, 0, sizeof r->n_compared);
    r->n_keys_in_doubt = 0;
    sum_flags(r);
    for (size_t i = 0; i < r->n_keys; i++) {
        const rpl_key *k = &r->key[i];
        r->n_compared[RPL_GATE_OWN_LOGIT] += k->n_own;
        if (takes_part(k)) r->n_compared[RPL_GATE_TOKENS] += k->n_out;
        r->n_keys_in_doubt += k->rerun && !takes_part(k);
    }
    r->n_compared[RPL_GATE_STATE] = r->n_keys && r->n_windows == 0 ? 0 : r->n_state_rows; /* windows are the state */
    sum_attention(r, false, scratch, &r->worker, &r->n_compared[RPL_GATE_ATTENTION]);
    if (r->has_control) sum_attention(r, true, scratch, &r->control, &unused);
    sum_kl(r, &r->n_compared[RPL_GATE_KL]);
    sum_tokens(r);
    judge_gates(r, gates);
    free(scratch);
    return ERR_OK;
}

err_code rpl_classify_result(rpl_classify *c, const rpl_classification **out, err *e)
{
    *out = &c->out;
    return rpl_classify_sum(&c->out, &c->o.gates, e);
}
