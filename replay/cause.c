#include "replay/cause_trial.h"

#include "base/mem.h"

#include <math.h>
#include <stdarg.h>

static const double NAMED_FROM = 0.9;
static const char UNTOLD[] = "wrong function, unstable or unwritten"; /* which one tape does not tell */

/* ---- weighing a guess ---- */

/* Whether a guess gives element i as it is recorded. Of a handful of elements a near miss proves nothing. */
static bool gives(const rpl_trial *t, const void *guess, int64_t i)
{
    const fmt_tensor *r = &t->v->recorded;
    if (rpl_element_bits(r->dtype, guess, i) == rpl_element_bits(r->dtype, r->data, i)) return true;
    double got = rpl_element(r->dtype, r->data, i), would = rpl_element(r->dtype, guess, i);
    if (isnan(got) && isnan(would)) return true;
    if (r->dtype == FMT_DTYPE_I32) return false;
    double off = fabs(got - rpl_element(r->dtype, t->computed.data, i));
    return fabs(got - would) <= fmin(off, fabs(got) + t->scale[i / t->cols] / 64) / (t->n_illegal < 8 ? 64 : 4);
}

/* A legal element that the guess takes further away than sums and roundings do. */
static bool spoils(const rpl_trial *t, const void *guess, int64_t i)
{
    const fmt_tensor *r = &t->v->recorded;
    if (rpl_element_bits(r->dtype, guess, i) == rpl_element_bits(r->dtype, t->computed.data, i)) return false;
    double got = rpl_element(r->dtype, r->data, i), would = rpl_element(r->dtype, guess, i);
    if (isnan(got) && isnan(would)) return false;
    if (r->dtype == FMT_DTYPE_I32) return got != would;
    double off = fabs(got - rpl_element(r->dtype, t->computed.data, i));
    return !(fabs(got - would) <= 2 * off + t->scale[i / t->cols] / 128);
}

/* exact: elements that the guess gives to the bit, of all; between guesses that explain as much it decides. */
static void offer(rpl_trial *t, double share, int64_t exact, eng_cause cause, const char *format, va_list args)
{
    char what[96];
    if (share < t->best->share - 0.002 || (share < t->best->share + 0.002 && exact <= t->best_exact)) return;
    t->best_exact = exact;
    vsnprintf(what, sizeof what, format, args);
    t->best->cause = cause;
    t->best->share = share;
    snprintf(t->best->text, sizeof t->best->text, "%s: %s, %.4g %% of %lld illegal elements", eng_cause_name(cause), what,
             100 * share, (long long)t->n_illegal);
}

void rpl_trial_offer(rpl_trial *t, double share, eng_cause cause, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    offer(t, share, 0, cause, format, args);
    va_end(args);
}

static double share_of(const rpl_trial *t, const void *guess, int64_t *exact)
{
    const fmt_tensor *r = &t->v->recorded;
    int64_t given = 0, spoilt = 0;
    *exact = 0;
    for (int64_t i = 0; i < t->n; i++) {
        if (t->classes[i] == RPL_ILLEGAL) given += gives(t, guess, i);
        else spoilt += spoils(t, guess, i);
        *exact += rpl_element_bits(r->dtype, guess, i) == rpl_element_bits(r->dtype, r->data, i);
    }
    return (double)(given - spoilt) / (double)t->n_illegal;
}

static void weigh(rpl_trial *t, const void *guess, eng_cause cause, const char *format, va_list args)
{
    int64_t exact;
    double share = share_of(t, guess, &exact);
    offer(t, share, exact, cause, format, args);
}

void rpl_trial_weigh(rpl_trial *t, const void *guess, eng_cause cause, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    weigh(t, guess, cause, format, args);
    va_end(args);
}

static err_code run_rest(rpl_trial *t, int32_t k, eng_cause cause, err *e, const char *format, va_list args)
{
    err_code rc = ERR_OK;
    for (; rc == ERR_OK && k < t->v->group->n_ops; k++)
        rc = eng_bench_run(t->v->bench, t->v->group->op[k], t->v->group->op[k], e);
    if (rc == ERR_OK) weigh(t, eng_bench_value(t->v->bench, t->v->value), cause, format, args);
    rpl_trial_restore(t, NULL);
    return rc;
}

err_code rpl_trial_run(rpl_trial *t, int32_t k, eng_cause cause, err *e, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    err_code rc = run_rest(t, k, cause, e, format, args);
    va_end(args);
    return rc;
}

err_code rpl_trial_run_op(rpl_trial *t, int32_t k, eng_cause cause, err *e, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    err_code rc = eng_bench_run(t->v->bench, t->v->group->op[k], t->v->group->op[k], e);
    rpl_trial_restore(t, rpl_trial_op(t, k));
    if (rc == ERR_OK) rc = run_rest(t, k + 1, cause, e, format, args);
    va_end(args);
    return rc;
}

/* ---- what is left when nothing fits ---- */

static void describe(rpl_trial *t)
{
    const fmt_tensor *r = &t->v->recorded;
    int64_t n_cols = 0, first = -1, last = -1, n_nan = 0, n_down = 0;
    for (int64_t c = 0; c < t->cols; c++) {
        bool here = false;
        for (int64_t row = 0; row < t->rows; row++) here = here || t->classes[row * t->cols + c] == RPL_ILLEGAL;
        n_cols += here;
        if (here && first < 0) first = c;
        if (here) last = c;
    }
    for (int64_t i = 0; i < t->n; i++) {
        if (t->classes[i] != RPL_ILLEGAL) continue;
        uint64_t got = rpl_element_bits(r->dtype, r->data, i), exact = rpl_element_bits(r->dtype, t->computed.data, i);
        n_nan += isnan(rpl_element(r->dtype, r->data, i));
        n_down += got + 1 == exact;
    }
    char more[48] = "";
    if (n_nan) snprintf(more, sizeof more, ", %lld NaN", (long long)n_nan);
    else if (n_down == t->n_illegal && r->dtype == FMT_DTYPE_BF16)
        snprintf(more, sizeof more, ", all one ulp towards 0: cut off");
    t->best->cause = ENG_CAUSE_FUNCTION;
    t->best->share = 0;
    bool told = t->shown != RPL_SHOWN_NOTHING;
    snprintf(t->best->text, sizeof t->best->text, "%s: %lld of %lld rows (%lld to %lld), %lld of %lld columns (%lld to "
             "%lld)%s%s", told ? eng_cause_name(ENG_CAUSE_FUNCTION) : UNTOLD, (long long)t->n_bad_rows, (long long)t->rows,
             (long long)t->first_bad, (long long)t->last_bad, (long long)n_cols, (long long)t->cols, (long long)first,
             (long long)last, more, told ? "" : "; sparktape certify --rerun tells");
}

/* ---- a trial ---- */

static err_code no_memory(err *e) { return err_set(e, ERR_NOMEM, "cause: no memory"); }

static err_code keep(rpl_trial *t, int32_t value, err *e)
{
    if (t->kept[value] || t->v->program->value[value].state) return ERR_OK;
    rpl_view v = rpl_view_of(t, value);
    size_t bytes = (size_t)v.rows * v.row;
    if (!(t->kept[value] = mem_alloc(bytes + 1, 1))) return no_memory(e);
    memcpy(t->kept[value], v.data, bytes);
    return ERR_OK;
}

static err_code open_trial(rpl_trial *t, err *e)
{
    const fmt_tensor *c = &t->v->computed;
    size_t bytes = (size_t)fmt_tensor_bytes(c);
    t->rows = t->v->recorded.ndim > 0 ? t->v->recorded.shape[0] : 1;
    t->cols = t->rows ? t->n / t->rows : 0;
    t->computed = *c;
    t->computed.data = mem_alloc(bytes + 1, 1);
    t->bad = mem_alloc((size_t)t->rows + 1, sizeof *t->bad);
    t->scale = mem_alloc((size_t)t->rows + 1, sizeof *t->scale);
    if (!t->computed.data || !t->bad || !t->scale) return no_memory(e);
    memcpy((void *)(uintptr_t)t->computed.data, c->data, bytes);
    t->first_bad = -1;
    for (int64_t i = 0; i < t->n; i++) {
        double size = fabs(rpl_element(c->dtype, t->computed.data, i));
        t->scale[i / t->cols] = fmax(t->scale[i / t->cols], isfinite(size) ? size : 0);
        if (t->classes[i] != RPL_ILLEGAL) continue;
        t->n_illegal++;
        t->bad[i / t->cols] = true;
        if (t->first_bad < 0) t->first_bad = i / t->cols;
        t->last_bad = i / t->cols;
    }
    for (int64_t r = 0; r < t->rows; r++) t->n_bad_rows += t->bad[r];
    if (!t->v->group) return ERR_OK;
    const eng_program *p = t->v->program;
    t->batch = p->step == ENG_STEP_DRAFT ? (int32_t)eng_bench_extents(t->v->bench)->n[ENG_DIM_B] : 1;
    t->kept = mem_alloc((size_t)p->n_values, sizeof *t->kept);
    t->old = mem_alloc((size_t)p->n_values, sizeof *t->old);
    if (!t->kept || !t->old) return no_memory(e);
    for (int32_t k = 0; k < t->v->group->n_ops; k++) {
        const eng_op *op = rpl_trial_op(t, k);
        for (int j = 0; j < op->n_in; j++) TRY(keep(t, op->in[j], e));
        for (int j = 0; j < op->n_out; j++) TRY(keep(t, op->out[j], e));
    }
    return ERR_OK;
}

static void close_trial(rpl_trial *t)
{
    for (int32_t i = 0; t->kept && t->old && i < t->v->program->n_values; i++) {
        free(t->kept[i]);
        free(t->old[i]);
    }
    free(t->kept);
    free(t->old);
    free((void *)(uintptr_t)t->computed.data);
    free(t->bad);
    free(t->scale);
}

static err_code guess(rpl_trial *t, err *e)
{
    static err_code (*const GROUP[])(rpl_trial *, err *) = {
        rpl_guess_direct, rpl_guess_ops, rpl_guess_values, rpl_guess_weights, rpl_guess_padding, rpl_guess_held,
    };
    if (!t->v->group) return rpl_guess_window(t, e);
    for (size_t i = 0; i < COUNT_OF(GROUP) && !rpl_trial_done(t); i++) TRY(GROUP[i](t, e));
    return ERR_OK;
}

/* ---- controls ---- */

/* An input of the group of which the controls show the same explains its output. */
static bool reads_shown(const rpl_trial *t, rpl_shown what)
{
    const rpl_forced_value *v = t->v;
    for (int32_t k = 0; v->group && k < v->group->n_in; k++) {
        const char *in = v->program->value[v->group->in[k]].name;
        if (rpl_controls_show(t->x->controls, v->round, v->slot, in) == what) return true;
    }
    return false;
}

static void look_at_controls(rpl_trial *t)
{
    const rpl_controls *c = t->x->controls;
    if (!c) return;
    t->shown = rpl_controls_show(c, t->v->round, t->v->slot, t->v->name);
    if (t->shown < RPL_SHOWN_POISONED || reads_shown(t, t->shown)) return;
    if (t->shown == RPL_SHOWN_UNSTABLE)
        rpl_trial_offer(t, 1, ENG_CAUSE_UNSTABLE, "%s differs from itself in %d runs of the same rounds", t->v->name,
                        c->runs + c->same);
    else
        rpl_trial_offer(t, 1, ENG_CAUSE_UNWRITTEN, "%s changes with what stands in unwritten memory", t->v->name);
}

err_code rpl_cause_of(const rpl_causes *x, const rpl_forced_value *v, const uint8_t *classes, rpl_cause *out, err *e)
{
    rpl_trial t = { .x = x, .v = v, .classes = classes, .n = fmt_tensor_elems(&v->recorded), .batch = 1, .best = out };
    *out = (rpl_cause){ .share = 0 };
    err_code rc = open_trial(&t, e);
    if (rc == ERR_OK && t.n_illegal) {
        look_at_controls(&t);
        if (!rpl_trial_done(&t)) rc = guess(&t, e);
        if (out->share < NAMED_FROM) describe(&t);
    }
    close_trial(&t);
    return rc;
}

err_code rpl_cause_explain(void *ctx, const rpl_forced_value *v, const rpl_verdict *verdict, const uint8_t *classes,
                           rpl_origin *o, err *e)
{
    rpl_cause found;
    (void)verdict;
    TRY(rpl_cause_of(ctx, v, classes, &found, e));
    memcpy(o->cause, found.text, sizeof o->cause);
    return ERR_OK;
}
