#include "replay/scorecard.h"

#include "base/cli.h"
#include "base/clock.h"
#include "base/interrupt.h"
#include "base/mem.h"
#include "replay/cause.h"
#include "replay/fold.h"
#include "replay/inject.h"

#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

/* Two bf16 ulps of a row's largest element, at most. */
static const double MOVED_MUST_SHOW = 1.0 / 64;

const char *rpl_outcome_name(rpl_outcome o)
{
    static const char *const NAMES[] = { "right", "elsewhere", "missed", "admissible", "absorbed", "idle" };
    return o < RPL_SCORE_OUTCOMES ? NAMES[o] : "?";
}

/* ---- arms ---- */

static err_code parse_arm(char *text, rpl_score_arm *out, err *e)
{
    eng_option_words words = { 0 };
    char *next = text;
    snprintf(out->text, sizeof out->text, "%s", text);
    words.arm = strsep(&next, "/");
    for (char *word; (word = strsep(&next, "/")) != NULL;) {
        if (word[0] >= '0' && word[0] <= '9') TRY(cli_int(word, "--arms, ranks", 1, ENG_RANKS_MAX, &words.tp, e));
        else if (strcmp(word, "fused") == 0 || strcmp(word, "exact") == 0) words.combine = word;
        else if (strcmp(word, "graph") == 0 || strcmp(word, "eager") == 0) words.mode = word;
        else words.acc = word;
    }
    err_code rc = eng_options_parse(&words, 1, &out->o, e);
    if (rc != ERR_OK) {
        cli_say_as(e, "--arm", "--arms");
        cli_say_as(e, "--acc", "--arms"); /* a word that is none of the others was taken for one */
    }
    return rc;
}

err_code rpl_scorecard_arms(const char *list, rpl_scorecard *card, err *e)
{
    char *copy = mem_strdup(list), *next = copy, *item;
    size_t capacity = 0;
    err_code rc = copy ? ERR_OK : err_set(e, ERR_NOMEM, "scorecard: no memory");
    while (rc == ERR_OK && (item = strsep(&next, ",")) != NULL) {
        void *array = card->arm;
        if (!mem_grow(&array, &capacity, card->n_arms + 1, sizeof *card->arm)) {
            rc = err_set(e, ERR_NOMEM, "scorecard: no memory");
            break;
        }
        card->arm = array;
        card->arm[card->n_arms] = (rpl_score_arm){ .clean = "?" };
        if ((rc = parse_arm(item, &card->arm[card->n_arms], e)) == ERR_OK) card->n_arms++;
    }
    free(copy);
    return rc;
}

void rpl_scorecard_fini(rpl_scorecard *card)
{
    free(card->arm);
    free(card->planting);
    *card = (rpl_scorecard){ 0 };
}

/* ---- what to plant ---- */

typedef struct run {
    rpl_scorecard *card;
    const eng_weights *weights;
    const eng_script *script;
    const char *folder;
    const rpl_score_options *o;
    int32_t round, round_index; /* the one that goes wrong */
    size_t capacity;
    eng_program *(*program)[2]; /* [n_arms] */
    rpl_fold *(*fold)[2];
    fmt_tape **clean;           /* [n_arms] */
} run;

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static err_code add(run *r, const rpl_planting *p, err *e)
{
    void *array = r->card->planting;
    if (!mem_grow(&array, &r->capacity, r->card->n_plantings + 1, sizeof *p))
        return err_set(e, ERR_NOMEM, "scorecard: no memory for another planting");
    r->card->planting = array;
    r->card->planting[r->card->n_plantings++] = *p;
    return ERR_OK;
}

static err_code choose_ops(run *r, int32_t arm, int step, uint64_t *n, err *e)
{
    const eng_program *p = r->program[arm][step];
    for (size_t k = 0; k < eng_fault_count(); k++) {
        const eng_fault_kind *kind = eng_fault_at(k);
        if (r->o->kinds && !cli_match(r->o->kinds, kind->name)) continue;
        for (int32_t i = 0; i < p->n_ops; i++) {
            const eng_op *op = &p->op[i];
            if (!eng_fault_applies(kind, p, i, &r->card->arm[arm].o)) continue;
            if (r->o->ops && !cli_match(r->o->ops, op->name)) continue;
            if (r->o->every > 1 && mix(r->o->seed * 0x9e3779b97f4a7c15u + (*n)++) % (uint64_t)r->o->every != 0) continue;
            rpl_planting one = { .kind = kind, .arm = arm, .step = step, .stage = op->stage, .op_kind = op->kind };
            snprintf(one.op, sizeof one.op, "%s", op->name);
            TRY(add(r, &one, e));
        }
    }
    return ERR_OK;
}

static err_code make_programs(run *r, int32_t arm, err *e)
{
    const eng_options *o = &r->card->arm[arm].o;
    for (int step = 0; step < 2; step++) {
        TRY(eng_program_make(eng_weights_config(r->weights), (eng_step_kind)step, o->n_ranks, o->combine, &o->reps,
                             &r->program[arm][step], e));
        const eng_program *p = r->program[arm][step];
        bool *recorded = mem_alloc((size_t)p->n_values, sizeof *recorded);
        if (!recorded) return err_set(e, ERR_NOMEM, "scorecard: no memory");
        for (int32_t v = 0; v < p->n_values; v++) recorded[v] = p->value[v].level <= ENG_LEVEL_DEEP;
        err_code rc = rpl_fold_make(p, recorded, NULL, &r->fold[arm][step], e);
        free(recorded);
        TRY(rc);
    }
    return ERR_OK;
}

/* The last round with the most slots in its draft. */
static err_code choose_round(run *r, err *e)
{
    int32_t most = 0;
    for (int32_t i = 0; i < eng_script_rounds(r->script); i++) {
        const eng_round *round = eng_script_at(r->script, i);
        if (round->batch < most || round->batch == 0) continue;
        most = round->batch;
        r->round = round->round;
        r->round_index = i;
    }
    return most ? ERR_OK : err_set(e, ERR_INPUT, "scorecard: the script has no round with a draft");
}

/* ---- a run and its certificate ---- */

static char *tape_path(const run *r, size_t i)
{
    char *path = NULL;
    return asprintf(&path, "%s/%zu.tape", r->folder, i) < 0 ? NULL : path;
}

/* controls: NULL, none are needed. */
static err_code judge(const run *r, const fmt_tape *t, const rpl_controls *controls, rpl_certificate *out, err *e)
{
    rpl_certify_options o = rpl_certify_options_of(t);
    const rpl_certify_job job = { .rounds = &r->round_index, .n = 1 };
    rpl_causes causes = { .tape = t, .n_ranks = o.n_ranks, .controls = controls };
    o.bound = r->o->bound;
    o.threads = 1;
    o.explain = rpl_cause_explain;
    o.explain_ctx = &causes;
    return rpl_certify_tape(t, r->weights, &o, &job, out, e);
}

/* The run without a fault: to compare with, and to see that the certificate passes it. */
static err_code run_clean(run *r, int32_t arm, err *e)
{
    rpl_score_arm *a = &r->card->arm[arm];
    rpl_certificate c = { 0 };
    char *path = tape_path(r, SIZE_MAX / 2 + (size_t)arm);
    err_code rc = path ? rpl_inject(r->weights, r->script, &a->o, ENG_LEVEL_DEEP, false, path, true, e)
                       : err_set(e, ERR_NOMEM, "scorecard: no memory");
    if (rc == ERR_OK) rc = fmt_tape_open(path, &r->clean[arm], e);
    if (path) unlink(path); /* mapped: stays readable */
    free(path);
    if (rc == ERR_OK) rc = judge(r, r->clean[arm], NULL, &c, e);
    if (rc == ERR_OK) snprintf(a->clean, sizeof a->clean, "%s", rpl_certificate_verdict(&c));
    rpl_certificate_fini(&c);
    return rc;
}

static bool makes(const rpl_group *g, int32_t op)
{
    for (int32_t k = 0; k < g->n_ops; k++)
        if (g->op[k] == op) return true;
    return false;
}

/* Whether `name` is an op that writes a recorded value made with the planted op. */
static bool is_right(const run *r, const rpl_planting *p, const char *name)
{
    const eng_program *program = r->program[p->arm][p->step];
    const rpl_fold *fold = r->fold[p->arm][p->step];
    int32_t op = eng_program_find_op(program, p->op);
    for (int32_t i = 0; i < rpl_fold_count(fold); i++)
        if (makes(rpl_fold_at(fold, i), op) && strcmp(rpl_fold_at(fold, i)->name, name) == 0) return true;
    return strcmp(p->op, name) == 0; /* a ring write: its state is no group's output */
}

static double number(const fmt_tensor *t, uint64_t i)
{
    if (t->dtype == FMT_DTYPE_BF16) return f32_from_bf16(((const bf16 *)t->data)[i]);
    return t->dtype == FMT_DTYPE_F32 ? ((const float *)t->data)[i] : (double)((const int32_t *)t->data)[i];
}

/* Largest change in parts of the largest element; infinite where one is no number, or ids differ. */
static double moved(const fmt_tensor *a, const fmt_tensor *b)
{
    uint64_t n = 1, cols = 1;
    double most = 0;
    for (int d = 0; d < FMT_DIMS_MAX; d++) n *= (uint64_t)a->shape[d];
    for (int d = 1; d < FMT_DIMS_MAX; d++) cols *= (uint64_t)a->shape[d];
    for (uint64_t row = 0; row < n; row += cols) {
        double largest = 0, change = 0;
        for (uint64_t i = row; i < row + cols; i++) {
            double x = number(a, i), y = number(b, i);
            largest = fmax(largest, fabs(x));
            change = x == y || (isnan(x) && isnan(y)) ? change : fmax(change, isnan(x - y) ? INFINITY : fabs(x - y));
        }
        if (change > 0) most = fmax(most, a->dtype == FMT_DTYPE_I32 || largest == 0 ? INFINITY : change / largest);
    }
    return most;
}

static err_code compare_record(const fmt_tape *t, size_t i, const fmt_tape *clean, size_t j, double *most, err *e)
{
    fmt_tape_record a, b;
    fmt_tape_at(t, i, &a);
    fmt_tape_at(clean, j, &b);
    if (a.hash == b.hash || a.raw_bytes != b.raw_bytes) return ERR_OK;
    void *x = mem_alloc((size_t)a.raw_bytes, 1), *y = mem_alloc((size_t)a.raw_bytes, 1);
    err_code rc = x && y ? ERR_OK : err_set(e, ERR_NOMEM, "scorecard: no memory for %s", a.key.name);
    if (rc == ERR_OK) rc = fmt_tape_get(t, i, x, a.raw_bytes, e);
    if (rc == ERR_OK) rc = fmt_tape_get(clean, j, y, b.raw_bytes, e);
    if (rc == ERR_OK) {
        a.tensor.data = x;
        b.tensor.data = y;
        double m = moved(&a.tensor, &b.tensor);
        *most = fmax(*most, m > 0 ? m : 1e-30); /* -0 for 0 is a change of bits all the same */
    }
    free(x);
    free(y);
    return rc;
}

/* How far the recorded values that the planted op makes are from the clean run's; 0: the same bits. */
static err_code compare_clean(const run *r, const fmt_tape *t, rpl_planting *p, err *e)
{
    const eng_program *program = r->program[p->arm][p->step];
    const rpl_fold *fold = r->fold[p->arm][p->step];
    int32_t op = eng_program_find_op(program, p->op);
    size_t first, n;
    fmt_tape_round_span(t, r->round, &first, &n);
    for (size_t i = first; i < first + n; i++) {
        fmt_tape_record rec;
        fmt_tape_at(t, i, &rec);
        bool of_step = (rec.key.slot == FMT_TAPE_NO_SLOT) == (p->step == ENG_STEP_DRAFT);
        int32_t v = of_step ? eng_program_find_value(program, rec.key.name) : -1;
        int32_t g = v < 0 ? -1 : rpl_fold_of_value(fold, v);
        int64_t j = g < 0 || !makes(rpl_fold_at(fold, g), op) ? -1 : fmt_tape_find(r->clean[p->arm], &rec.key);
        if (j >= 0) TRY(compare_record(t, i, r->clean[p->arm], (size_t)j, &p->moved, e));
    }
    return ERR_OK;
}

static rpl_outcome outcome_of(const run *r, const rpl_planting *p, const rpl_certificate *c)
{
    if (strcmp(rpl_certificate_verdict(c), "FAIL") == 0)
        return c->n_origins && is_right(r, p, c->origin[0].op) ? RPL_SCORE_RIGHT : RPL_SCORE_ELSEWHERE;
    if (p->n_changed == 0) return RPL_SCORE_IDLE;
    if (p->moved == 0) return RPL_SCORE_ABSORBED;
    return p->kind->must && p->moved > MOVED_MUST_SHOW ? RPL_SCORE_MISSED : RPL_SCORE_ADMISSIBLE;
}

static err_code run_one(const run *r, rpl_planting *p, const char *path, err *e)
{
    eng_options o = r->card->arm[p->arm].o;
    eng_fault f = { .kind = p->kind, .step = p->step, .rank = -1, .round = r->round, .slot = -1, .engine_slot = -1,
                    .row = -1, .index = -1 };
    fmt_tape *t = NULL;
    rpl_certificate c = { 0 };
    rpl_controls controls = { 0 };
    snprintf(f.op, sizeof f.op, "%s", p->op);
    o.fault = &f;
    err_code rc = rpl_inject(r->weights, r->script, &o, ENG_LEVEL_DEEP, false, path, true, e);
    if (rc == ERR_OK) rc = fmt_tape_open(path, &t, e);
    p->n_changed = eng_fault_changed(&f);
    if (rc == ERR_OK && p->n_changed) rc = rpl_controls_make(t, r->weights, &o, NULL, RPL_CONTROL_RUNS, true, &controls, e);
    if (rc == ERR_OK) rc = judge(r, t, p->n_changed ? &controls : NULL, &c, e);
    if (rc == ERR_OK) {
        p->n_illegal = c.n_illegal;
        if (c.n_origins) {
            snprintf(p->origin, sizeof p->origin, "%s", c.origin[0].op);
            snprintf(p->cause, sizeof p->cause, "%s", c.origin[0].cause);
        }
        rc = compare_clean(r, t, p, e);
        p->outcome = outcome_of(r, p, &c);
    }
    rpl_certificate_fini(&c);
    rpl_controls_fini(&controls);
    fmt_tape_close(t);
    unlink(path);
    if (rc != ERR_OK) err_wrap(e, "%s at %s of %s", p->kind->name, p->op, r->card->arm[p->arm].text);
    return rc;
}

/* Keeps the plantings that were done. */
static void drop_undone(rpl_scorecard *card)
{
    size_t n = 0;
    for (size_t i = 0; i < card->n_plantings; i++)
        if (card->planting[i].done) card->planting[n++] = card->planting[i];
    card->n_plantings = n;
}

/* Several at a time; after an error or an interrupt no new one begins. */
static err_code run_all(run *r, err *e)
{
    err failed = { 0 };
    progress bar;
    rpl_scorecard *card = r->card;
    progress_begin(&bar, "planting", card->n_plantings, r->o->quiet);
#ifdef _OPENMP
    int lanes = r->o->threads > 0 ? r->o->threads : omp_get_max_threads();
#pragma omp parallel for schedule(dynamic) num_threads(lanes)
#endif
    for (size_t i = 0; i < card->n_plantings; i++) {
        err mine = { 0 };
        bool stop;
#pragma omp critical(scorecard)
        stop = failed.code != ERR_OK;
        if (stop || interrupt_seen()) continue;
        char *path = tape_path(r, i);
        err_code rc = path ? run_one(r, &card->planting[i], path, &mine)
                           : err_set(&mine, ERR_NOMEM, "scorecard: no memory");
        free(path);
        if (interrupt_seen()) continue; /* runs of this one were cut short */
        card->planting[i].done = rc == ERR_OK;
#pragma omp critical(scorecard)
        {
            if (rc != ERR_OK && failed.code == ERR_OK) failed = mine;
            progress_add(&bar, 1);
        }
    }
    progress_end(&bar);
    if (e && failed.code != ERR_OK) *e = failed;
    card->interrupted = interrupt_seen();
    card->n_plantings_wanted = card->n_plantings;
    drop_undone(card);
    return failed.code;
}

err_code rpl_scorecard_run(rpl_scorecard *card, const eng_weights *w, const eng_script *s, const char *folder,
                           const rpl_score_options *o, err *e)
{
    run r = { .card = card, .weights = w, .script = s, .folder = folder, .o = o };
    uint64_t n = 0;
    err_code rc = ERR_OK;
    card->seed = o->seed;
    r.program = mem_alloc(card->n_arms, sizeof *r.program);
    r.fold = mem_alloc(card->n_arms, sizeof *r.fold);
    r.clean = mem_alloc(card->n_arms, sizeof *r.clean);
    if (!r.program || !r.fold || !r.clean) rc = err_set(e, ERR_NOMEM, "scorecard: no memory");
    if (rc == ERR_OK) rc = choose_round(&r, e);
    for (int32_t arm = 0; arm < (int32_t)card->n_arms && rc == ERR_OK; arm++) {
        rc = make_programs(&r, arm, e);
        for (int step = 0; step < 2 && rc == ERR_OK; step++) rc = choose_ops(&r, arm, step, &n, e);
        if (rc == ERR_OK) rc = run_clean(&r, arm, e);
    }
    if (rc == ERR_OK) rc = run_all(&r, e);
    for (size_t arm = 0; arm < card->n_arms && r.program && r.fold && r.clean; arm++) {
        for (int step = 0; step < 2; step++) {
            rpl_fold_free(r.fold[arm][step]);
            eng_program_free(r.program[arm][step]);
        }
        fmt_tape_close(r.clean[arm]);
    }
    free(r.program);
    free(r.fold);
    free(r.clean);
    return rc;
}

/* ---- sums ---- */

int64_t rpl_scorecard_count(const rpl_scorecard *card, rpl_outcome outcome, const eng_fault_kind *k)
{
    int64_t n = 0;
    for (size_t i = 0; i < card->n_plantings; i++)
        n += card->planting[i].outcome == outcome && (!k || card->planting[i].kind == k);
    return n;
}

bool rpl_scorecard_passes(const rpl_scorecard *card)
{
    int64_t right = rpl_scorecard_count(card, RPL_SCORE_RIGHT, NULL);
    int64_t detected = right + rpl_scorecard_count(card, RPL_SCORE_ELSEWHERE, NULL);
    for (size_t i = 0; i < card->n_arms; i++)
        if (strcmp(card->arm[i].clean, "PASS") != 0) return false;
    return rpl_scorecard_count(card, RPL_SCORE_MISSED, NULL) == 0 && detected > 0 && rpl_score_is_enough(right, detected);
}

const char *rpl_scorecard_verdict(const rpl_scorecard *card)
{
    if (card->interrupted && rpl_scorecard_count(card, RPL_SCORE_MISSED, NULL) == 0) return "PARTIAL";
    return rpl_scorecard_passes(card) ? "PASS" : "FAIL";
}
