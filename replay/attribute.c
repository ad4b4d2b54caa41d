#include "replay/attribute.h"

#include "base/clock.h"
#include "base/mem.h"
#include "capture/redact.h"
#include "replay/ddmin.h"

enum { LEVELS = 3 };

/* An attribution under way. */
typedef struct job {
    rpl_attribution *a;
    const rpl_attribute_options *o;
    const fmt_tape *tape;
    const eng_weights *weights;
    int8_t mirror, mirror64;   /* sides */
    int8_t other;              /* the arm's side, or RPL_MIX_TAPE */
    int8_t *maker;             /* [n_units] */
    int32_t *item;             /* [n_candidates] unit */
    int32_t *level[LEVELS];    /* [n_candidates] */
    bool *trial;               /* [n_units] */
    rpl_try_kind kind;         /* of the search */
    progress bar;
} job;

static err_code no_memory(err *e) { return err_set(e, ERR_NOMEM, "attribute: no memory"); }

/* ---- sides ---- */

static bool same_side(const eng_options *a, const eng_options *b)
{
    return a->arm == b->arm && a->acc == b->acc && a->combine == b->combine && a->n_ranks == b->n_ranks;
}

/* Adds a side unless it is there. Returns which it is. */
static int8_t add_side(eng_options *sides, int32_t *n, const eng_options *o)
{
    for (int32_t i = 0; i < *n; i++)
        if (same_side(&sides[i], o)) return (int8_t)i;
    sides[*n] = *o;
    return (int8_t)(*n)++;
}

static void describe(const eng_options *o, char text[RPL_SIDE_TEXT])
{
    char ranks[16] = "";
    if (o->n_ranks > 1) snprintf(ranks, sizeof ranks, " tp%d", o->n_ranks);
    snprintf(text, RPL_SIDE_TEXT, "%s%s%s%s%s", o->arm->name, ranks,
             o->combine == ENG_COMBINE_FUSED ? " combine fused" : "", o->acc != o->arm->acc ? " acc " : "",
             o->acc != o->arm->acc ? eng_acc_name(o->acc) : "");
}

/* Opens the mixture: the reference, who makes ops, and the mirrors that measure. only_side [n_only]. */
static err_code open_mix(job *j, int8_t *only_side, err *e)
{
    eng_options sides[RPL_MIX_SIDES_MAX], mirror;
    const rpl_attribute_options *o = j->o;
    int32_t n = 0;
    bool mirrors = o->metric.kind != RPL_METRIC_DRAFTS;
    add_side(sides, &n, &o->reference);
    describe(&o->reference, j->a->reference);
    j->other = RPL_MIX_TAPE;
    if (o->arm && o->n_only == 0) {
        j->other = add_side(sides, &n, o->arm);
        describe(o->arm, j->a->arm);
    } else if (o->n_only == 0) snprintf(j->a->arm, sizeof j->a->arm, "%s", o->tape_text);
    for (int32_t i = 0; i < o->n_only; i++)
        only_side[i] = o->only[i].by.arm ? add_side(sides, &n, &o->only[i].by) : RPL_MIX_TAPE;
    for (int k = 0; k < 2 && mirrors; k++) {
        const eng_option_words words = { .arm = k ? "mirror64" : "mirror" };
        TRY(eng_options_parse(&words, o->reference.threads, &mirror, e));
        mirror.reps = o->reference.reps; /* they are mirrors of the same weights */
        mirror.combine = o->reference.combine;
        *(k ? &j->mirror64 : &j->mirror) = add_side(sides, &n, &mirror);
    }
    TRY(rpl_mix_open(j->tape, j->weights, sides, n, &j->a->mix, e));
    j->a->n_units = rpl_mix_units(j->a->mix);
    return ERR_OK;
}

/* ---- rounds ---- */

static int32_t count(const bool *b, int32_t n)
{
    int32_t k = 0;
    for (int32_t i = 0; i < n; i++) k += b[i];
    return k;
}

/* Whether the options want a round, by its number. */
static bool is_wanted(const job *j, int32_t round)
{
    const int32_t *number;
    size_t n = fmt_tape_rounds(j->tape, &number);
    for (size_t i = 0; i < n && j->o->rounds; i++)
        if (number[i] == round) return j->o->rounds[i];
    return !j->o->rounds;
}

static err_code choose_rounds(job *j, err *e)
{
    rpl_attribution *a = j->a;
    int32_t n = rpl_mix_rounds(a->mix);
    a->wanted = mem_alloc((size_t)n + 1, sizeof *a->wanted);
    if (!a->wanted) return no_memory(e);
    for (int32_t i = 0; i < n; i++) {
        fmt_tape_key key = { rpl_mix_round_number(a->mix, i), FMT_TAPE_NO_SLOT, FMT_TAPE_NO_RANK, "draft.slots" };
        bool drafts = fmt_tape_find(j->tape, &key) >= 0;
        for (key.rank = 0; !drafts && key.rank < ENG_RANKS_MAX; key.rank++) drafts = fmt_tape_find(j->tape, &key) >= 0;
        a->wanted[i] = drafts && is_wanted(j, rpl_mix_round_number(a->mix, i));
    }
    a->n_wanted = a->n_rounds = count(a->wanted, n);
    if (a->n_wanted == 0) return err_set(e, ERR_INPUT, "%s: found no draft to compare", fmt_tape_path(j->tape));
    return ERR_OK;
}

/* Leaves the rounds that differ by themselves, if there are any: the tries need not run the others. */
static void keep_differing(job *j)
{
    rpl_attribution *a = j->a;
    int32_t n = rpl_mix_rounds(a->mix), n_differ = 0;
    bool *alone = mem_alloc((size_t)n + 1, sizeof *alone), *differs = mem_alloc((size_t)n + 1, sizeof *differs);
    for (int32_t i = 0; i < n && alone && differs; i++) {
        if (!a->wanted[i]) continue;
        alone[i] = true;
        differs[i] = rpl_meter_differs(a->meter, rpl_meter_figure(a->meter, alone));
        n_differ += differs[i];
        alone[i] = false;
    }
    if (n_differ) { /* none, also without memory: all are kept */
        memcpy(a->wanted, differs, (size_t)n * sizeof *differs);
        a->n_wanted = n_differ;
    }
    free(alone);
    free(differs);
}

/* ---- tries ---- */

static err_code add_try(job *j, const rpl_try *t, err *e)
{
    rpl_attribution *a = j->a;
    void *array = a->tried;
    if (!mem_grow(&array, &a->tries_capacity, a->n_tries + 1, sizeof *a->tried)) return no_memory(e);
    a->tried = array;
    a->tried[a->n_tries++] = *t;
    if (!j->o->say) return ERR_OK;
    progress_end(&j->bar);
    j->o->say(j->o->ctx, a, t);
    return ERR_OK;
}

/* Runs with the units of `by` made by the arm or, of a search for what makes the difference go away, by the reference. */
static err_code try_units(job *j, rpl_try_kind kind, const bool *units, double *figure, bool *differs, err *e)
{
    rpl_attribution *a = j->a;
    bool stopped;
    const uint64_t start = clock_ns();
    for (int32_t i = 0; i < a->n_units; i++) j->maker[i] = units[i] == (kind == RPL_TRY_AWAY) ? 0 : j->other;
    TRY(rpl_meter_run(a->meter, j->maker, a->wanted, &stopped, e));
    if (stopped) {
        a->interrupted = true;
        return ERR_OK;
    }
    *figure = rpl_meter_figure(a->meter, a->wanted);
    *differs = rpl_meter_differs(a->meter, *figure);
    rpl_try t = { .kind = kind, .n_units = count(units, a->n_units), .figure = *figure, .differs = *differs,
                  .seconds = (double)(clock_ns() - start) * 1e-9 };
    rpl_units_text(a, units, t.text);
    return add_try(j, &t, e);
}

/* rpl_ddmin_fn. */
static err_code holds(void *ctx, const bool *chosen, bool *property, bool *go_on, err *e)
{
    job *j = ctx;
    rpl_attribution *a = j->a;
    double figure;
    bool differs = false;
    *go_on = false;
    if ((a->spent = (int64_t)a->n_tries >= j->o->tries)) return ERR_OK;
    memset(j->trial, 0, (size_t)a->n_units * sizeof *j->trial);
    for (int32_t i = 0; i < a->n_candidates; i++) j->trial[j->item[i]] = chosen[i];
    progress_add(&j->bar, 1);
    TRY(try_units(j, j->kind, j->trial, &figure, &differs, e));
    *go_on = !a->interrupted;
    *property = differs == (j->kind == RPL_TRY_APPEAR);
    if (*go_on && *property) (j->kind == RPL_TRY_APPEAR ? &a->appear : &a->away)->figure = figure;
    return ERR_OK;
}

/* figure: of the whole set, until a smaller one is found. */
static err_code search(job *j, rpl_try_kind kind, double figure, rpl_found *f, err *e)
{
    rpl_attribution *a = j->a;
    bool *chosen = mem_alloc((size_t)a->n_candidates + 1, sizeof *chosen);
    f->unit = mem_alloc((size_t)a->n_units + 1, sizeof *f->unit);
    const rpl_ddmin_job work = { .n = a->n_candidates, .level = (const int32_t *const *)j->level, .n_levels = LEVELS,
                                 .holds = holds, .ctx = j };
    err_code rc = chosen && f->unit ? ERR_OK : no_memory(e);
    f->searched = true;
    f->figure = figure;
    j->kind = kind;
    for (int32_t i = 0; i < a->n_candidates && rc == ERR_OK; i++) chosen[i] = true;
    if (rc == ERR_OK) rc = rpl_ddmin(&work, chosen, &f->minimal, e);
    for (int32_t i = 0; i < a->n_candidates && f->unit && chosen; i++) f->unit[j->item[i]] = chosen[i];
    f->n = f->unit ? count(f->unit, a->n_units) : 0;
    free(chosen);
    return rc;
}

/* ---- candidates ---- */

/* "s0.attn.q" and "s0.attn_out" are of "s0.attn", "head.logits" is of "head". Returns the length of that. */
static size_t part_bytes(const rpl_unit *u)
{
    size_t n = u->stage >= 0 ? strcspn(u->name, ".") + 1 : 0;
    return n + strcspn(u->name + n, "._");
}

static bool same_part(const rpl_unit *a, const rpl_unit *b)
{
    size_t n = part_bytes(a);
    return n == part_bytes(b) && memcmp(a->name, b->name, n) == 0;
}

static bool same_stage(const rpl_unit *a, const rpl_unit *b)
{
    return a->stage == b->stage && (a->stage >= 0 || a->step == b->step);
}

static err_code list_candidates(job *j, err *e)
{
    rpl_attribution *a = j->a;
    size_t n = (size_t)a->n_units + 1;
    a->candidate = mem_alloc(n, sizeof *a->candidate);
    j->maker = mem_alloc(n, sizeof *j->maker);
    j->item = mem_alloc(n, sizeof *j->item);
    j->trial = mem_alloc(n, sizeof *j->trial);
    for (int l = 0; l < LEVELS; l++) j->level[l] = mem_alloc(n, sizeof **j->level);
    if (!a->candidate || !j->maker || !j->item || !j->trial || !j->level[0] || !j->level[1] || !j->level[2])
        return no_memory(e);
    for (int32_t i = 0; i < a->n_units; i++) {
        const rpl_unit *u = rpl_mix_unit(a->mix, i);
        bool ring = u->group->kind == ENG_OP_RING_WRITE; /* one op for all arms; of a tape it can be off */
        a->candidate[i] = j->other == RPL_MIX_TAPE ? a->deviations && rpl_deviations_of_unit(a->deviations, i) > 0 : !ring;
        if (!a->candidate[i]) continue;
        int32_t k = a->n_candidates++;
        j->item[k] = i;
        for (int l = 0; l < LEVELS; l++) j->level[l][k] = k;
        for (int32_t before = k - 1; before >= 0; before--) {
            const rpl_unit *other = rpl_mix_unit(a->mix, j->item[before]);
            if (same_stage(u, other)) j->level[0][k] = j->level[0][before];
            if (same_part(u, other)) j->level[1][k] = j->level[1][before];
        }
    }
    return ERR_OK;
}

/* How the tape is off from the reference, as far as the last round wanted. */
static err_code read_tape(job *j, err *e)
{
    rpl_attribution *a = j->a;
    bool stopped;
    int32_t last = rpl_mix_rounds(a->mix) - 1;
    while (!a->wanted[last]) last--;
    TRY(rpl_deviations_make(j->tape, j->weights, &j->o->reference, a->mix, rpl_mix_round_number(a->mix, last),
                            j->o->quiet, &a->deviations, &stopped, e));
    a->interrupted = stopped;
    a->damaged = a->deviations && rpl_deviations_damaged(a->deviations);
    rpl_mix_set_tape(a->mix, a->deviations);
    return ERR_OK;
}

/* ---- the two ways ---- */

/* One mixture, measured. */
static err_code run_control(job *j, const int8_t *side, err *e)
{
    rpl_attribution *a = j->a;
    bool stopped;
    double figure;
    const uint64_t start = clock_ns();
    rpl_try t = { .kind = RPL_TRY_ONLY };
    memset(j->maker, 0, (size_t)a->n_units * sizeof *j->maker);
    memset(a->candidate, true, (size_t)a->n_units * sizeof *a->candidate);
    for (int32_t k = j->o->n_only - 1; k >= 0; k--) { /* the first set that has an op makes it */
        int32_t n = 0;
        for (int32_t i = 0; i < a->n_units; i++) {
            const rpl_unit *u = rpl_mix_unit(a->mix, i);
            if (!rpl_set_has_group(j->o->only[k].set, rpl_mix_program(a->mix, u->step), u->group)) continue;
            j->maker[i] = side[k];
            j->trial[i] = true;
            n++;
        }
        if (n == 0)
            return err_set(e, ERR_ARG, "--only %s: found no op of that name, wanted one of sparktape plan, as in s0.attn",
                           j->o->only[k].set);
    }
    TRY(rpl_meter_run(a->meter, j->maker, a->wanted, &stopped, e));
    if ((a->interrupted = stopped)) return ERR_OK;
    figure = a->arm_figure = t.figure = rpl_meter_figure(a->meter, a->wanted);
    a->differs = t.differs = rpl_meter_differs(a->meter, figure);
    t.n_units = count(j->trial, a->n_units);
    t.seconds = (double)(clock_ns() - start) * 1e-9;
    rpl_units_text(a, j->trial, t.text);
    return add_try(j, &t, e);
}

/* The reference alone and the arm alone, then the searches. */
static err_code attribute(job *j, err *e)
{
    rpl_attribution *a = j->a;
    bool *all = a->candidate, differs;
    TRY(try_units(j, RPL_TRY_ARM, all, &a->arm_figure, &a->differs, e));
    if (a->interrupted) return ERR_OK;
    a->n_tape_other = rpl_meter_tape_tokens(a->meter, a->wanted, false, &a->n_tape_tokens);
    if (a->differs) keep_differing(j);
    if (a->differs) a->arm_figure = rpl_meter_figure(a->meter, a->wanted);
    memset(j->trial, 0, (size_t)a->n_units * sizeof *j->trial);
    TRY(try_units(j, RPL_TRY_REFERENCE, j->trial, &a->reference_figure, &differs, e));
    if (a->interrupted) return ERR_OK;
    a->stays = differs || (!a->differs && j->other == RPL_MIX_TAPE && a->metric.kind == RPL_METRIC_DRAFTS &&
                           a->n_tape_other > 0);
    if (!a->differs) return ERR_OK;
    progress_begin(&j->bar, "trying", (uint64_t)j->o->tries, j->o->quiet);
    err_code rc = a->stays ? ERR_OK : search(j, RPL_TRY_AWAY, a->reference_figure, &a->away, e);
    if (rc == ERR_OK && !a->stays && !a->interrupted && !a->spent)
        rc = search(j, RPL_TRY_APPEAR, a->arm_figure, &a->appear, e);
    progress_end(&j->bar);
    return rc;
}

static err_code run_job(job *j, err *e)
{
    rpl_attribution *a = j->a;
    int8_t only_side[RPL_SUBSTITUTES_MAX] = { 0 };
    bool stopped, tape = !j->o->arm && j->o->n_only == 0;
    if (cap_redact_key_of(j->tape))
        return err_set(e, ERR_INPUT, "%s: is redacted, wanted a tape whose tokens can be run", fmt_tape_path(j->tape));
    CHECK(j->o->n_only <= RPL_SUBSTITUTES_MAX);
    TRY(open_mix(j, only_side, e));
    TRY(choose_rounds(j, e));
    for (int32_t i = 0; i < j->o->n_only; i++) tape = tape || only_side[i] == RPL_MIX_TAPE;
    if (tape) TRY(read_tape(j, e));
    if (a->interrupted) return ERR_OK;
    TRY(list_candidates(j, e));
    TRY(rpl_meter_open(j->tape, a->mix, &j->o->metric, a->wanted, j->mirror, j->mirror64, &a->meter, &stopped, e));
    if ((a->interrupted = stopped)) return ERR_OK;
    return j->o->n_only ? run_control(j, only_side, e) : attribute(j, e);
}

err_code rpl_attribute(const fmt_tape *t, const eng_weights *w, const rpl_attribute_options *o, rpl_attribution *out,
                       err *e)
{
    job j = { .a = out, .o = o, .tape = t, .weights = w };
    out->metric = o->metric;
    err_code rc = run_job(&j, e);
    free(j.maker);
    free(j.item);
    free(j.trial);
    for (int l = 0; l < LEVELS; l++) free(j.level[l]);
    return rc;
}

void rpl_attribution_fini(rpl_attribution *a)
{
    rpl_meter_close(a->meter);
    rpl_mix_close(a->mix);
    rpl_deviations_free(a->deviations);
    free(a->candidate);
    free(a->wanted);
    free(a->away.unit);
    free(a->appear.unit);
    free(a->tried);
    *a = (rpl_attribution){ 0 };
}

/* ---- words ---- */

const char *rpl_attribution_verdict(const rpl_attribution *a)
{
    bool control = a->n_tries == 1 && a->tried[0].kind == RPL_TRY_ONLY;
    if (a->interrupted || a->spent) return "PARTIAL";
    if (a->stays) return "REMAINS";
    if (!a->differs && a->deviations && rpl_deviations_compared(a->deviations) == 0) return "INCOMPLETE";
    if (!a->differs) return a->damaged ? "PARTIAL" : "SAME";
    return control ? "DIFFERS" : "ATTRIBUTED";
}

/* Whether the set has all units of the part, or of the stage, that unit i is of and that could be in it. */
static bool has_all(const rpl_attribution *a, const bool *unit, int32_t i, bool stage)
{
    const rpl_unit *u = rpl_mix_unit(a->mix, i);
    int32_t n = 0;
    for (int32_t k = 0; k < a->n_units; k++) {
        const rpl_unit *other = rpl_mix_unit(a->mix, k);
        if (!(stage ? same_stage(u, other) : same_part(u, other)) || !(a->candidate[k] || unit[k])) continue;
        if (!unit[k]) return false;
        n++;
    }
    return n > 1;
}

static bool seen_before(const rpl_attribution *a, const bool *unit, int32_t i, bool stage)
{
    const rpl_unit *u = rpl_mix_unit(a->mix, i);
    for (int32_t k = 0; k < i; k++) {
        const rpl_unit *other = rpl_mix_unit(a->mix, k);
        if (unit[k] && (stage ? same_stage(u, other) : same_part(u, other))) return true;
    }
    return false;
}

const char *rpl_units_text(const rpl_attribution *a, const bool *unit, char buf[RPL_TRY_TEXT])
{
    enum { TAIL = 20 }; /* room for ".. 999 ops" */
    size_t n = 0;
    int32_t total = count(unit, a->n_units), told = 0;
    buf[0] = 0;
    if (total == 0) snprintf(buf, RPL_TRY_TEXT, "none");
    for (int32_t i = 0; i < a->n_units; i++) {
        const rpl_unit *u = rpl_mix_unit(a->mix, i);
        char word[RPL_NAME_BYTES + 8];
        if (!unit[i]) continue;
        bool stage = u->stage >= 0 && has_all(a, unit, i, true), part = !stage && has_all(a, unit, i, false);
        if ((stage || part) && seen_before(a, unit, i, stage)) continue;
        if (stage) snprintf(word, sizeof word, "s%d.*", u->stage);
        else if (part) snprintf(word, sizeof word, "%.*s.*", (int)part_bytes(u), u->name);
        else snprintf(word, sizeof word, "%s", u->name);
        if (n + strlen(word) + TAIL >= RPL_TRY_TEXT) {
            snprintf(buf + n, RPL_TRY_TEXT - n, " .. %d ops", total);
            return buf;
        }
        n += (size_t)snprintf(buf + n, RPL_TRY_TEXT - n, "%s%s", n ? " " : "", word);
        told++;
    }
    if (total > told) snprintf(buf + n, RPL_TRY_TEXT - n, " (%d ops)", total);
    return buf;
}
