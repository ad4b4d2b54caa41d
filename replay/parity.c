#include "replay/parity.h"

#include "base/interrupt.h"
#include "base/mem.h"
#include "replay/parity_judge.h"
#include "replay/replay.h"

#ifdef _OPENMP
#include <omp.h>
#endif

/* Ops of this width and less leave most threads idle: columns then run side by side, on one thread for each rank. */
enum { SMALL_DIM = 1024 };

static const char *const STATES[RPL_PARITY_STATES] = { "equal", "flip", "differs", "absent", "unjudged" };

const char *rpl_parity_state_name(rpl_parity_state s) { return STATES[s]; }

rpl_parity_state rpl_parity_at(const rpl_parity *p, int64_t row, int32_t column)
{
    return (rpl_parity_state)p->state[row * p->n_columns + column];
}

/* ---- columns ---- */

bool rpl_parity_recorded(const fmt_tape *t, int64_t threads, eng_options *out)
{
    const json_t *identity = json_object_get(fmt_tape_head(t), "identity");
    const char *backend = json_string_value(json_object_get(identity, "backend"));
    eng_option_words words = { 0 };
    rpl_replay_words(t, &words);
    if (!words.arm || !backend || !words.backend || strcmp(backend, words.backend) != 0) return false;
    return eng_options_parse(&words, threads, out, NULL) == ERR_OK;
}

void rpl_column_name(const eng_options *o, char name[RPL_COLUMN_NAME])
{
    bool cuda = o->backend == ENG_BACKEND_CUDA;
    snprintf(name, RPL_COLUMN_NAME, "%s%s %s tp%d", o->arm->name, cuda ? " cuda" : "", eng_mode_name(o->mode), o->n_ranks);
}

static bool same_run_but_mode(const eng_options *a, const eng_options *b)
{
    return a->arm == b->arm && a->backend == b->backend && a->acc == b->acc && a->combine == b->combine &&
           a->n_ranks == b->n_ranks && a->reps.head == b->reps.head;
}

bool rpl_same_run(const eng_options *a, const eng_options *b) { return same_run_but_mode(a, b) && a->mode == b->mode; }

static int32_t choose_reference(const rpl_parity *p)
{
    static const char *const ARMS[] = { "mirror64", "mirror" };
    for (size_t k = 0; k < COUNT_OF(ARMS); k++)
        for (int32_t c = 0; c < p->n_columns; c++)
            if (!p->column[c].tape && strcmp(p->column[c].o.arm->name, ARMS[k]) == 0) return c;
    return p->n_columns > 1 && p->column[0].tape ? 1 : 0;
}

/* ---- running ---- */

static void note_unstable(rpl_column *c, const rpl_trace *again)
{
    for (int64_t i = 0; i < again->n; i++) {
        bool same = c->trace.rank[i] == again->rank[i] && (again->rank[i] < 0 || c->trace.hash[i] == again->hash[i]);
        if (same || c->unstable[i]) continue;
        c->unstable[i] = 1;
        c->n_unstable++;
        if (c->first_unstable < 0 || i < c->first_unstable) c->first_unstable = i;
    }
}

/* A run that was interrupted is not compared: what it lacks would count as unstable. */
static err_code run_again(const rpl_parity_options *o, rpl_column *c, rpl_runner *r, rpl_trace *again, err *e)
{
    for (int32_t i = 1; i < o->repeat; i++) {
        TRY(rpl_runner_run(r, again, NULL, e));
        if (interrupt_seen()) break;
        note_unstable(c, again);
        c->n_runs++;
    }
    return ERR_OK;
}

static err_code run_column(const rpl_parity *p, const fmt_tape *t, const eng_weights *w, const rpl_parity_options *o,
                           rpl_column *c, err *e)
{
    if (c->tape) return rpl_trace_of_tape(t, p->layout, &c->trace, e);
    rpl_runner *r;
    rpl_trace again = { 0 };
    TRY(rpl_trace_init(&c->trace, p->layout, e));
    TRY(rpl_runner_open(t, w, p->layout, &c->o, true, o->quiet, &r, e));
    err_code rc = rpl_runner_run(r, &c->trace, NULL, e);
    c->n_rounds = rpl_layout_chosen(p->layout, rpl_runner_done(r));
    c->n_runs = 1;
    if (rc == ERR_OK) rc = rpl_trace_init(&again, p->layout, e);
    if (rc == ERR_OK) rc = run_again(o, c, r, &again, e);
    rpl_runner_close(r);
    rpl_trace_fini(&again);
    bool poison = o->poison && c->o.backend == ENG_BACKEND_CPU;
    if (poison && !(c->poisoned = mem_alloc((size_t)p->n_rows + 1, 1)))
        rc = err_set(e, ERR_NOMEM, "parity: no memory for %lld values", (long long)p->n_rows);
    rpl_poisoned poisoned = { .first = -1, .row = c->poisoned };
    if (rc == ERR_OK && poison)
        rc = rpl_trace_poisoned(t, w, p->layout, &c->o, &c->trace, c->unstable, o->quiet, &poisoned, e);
    c->n_poisoned = poisoned.n;
    c->first_poisoned = poisoned.first;
    return rc == ERR_OK ? rc : err_wrap(e, "%s", c->name);
}

static err_code fill_column(const rpl_parity *p, const fmt_tape *t, const eng_weights *w, const rpl_parity_options *o,
                            rpl_column *c, err *e)
{
    c->unstable = mem_alloc((size_t)p->n_rows + 1, 1);
    if (!c->unstable) return err_set(e, ERR_NOMEM, "parity: no memory for %lld values", (long long)p->n_rows);
    TRY(run_column(p, t, w, o, c, e));
    for (int64_t i = 0; i < p->n_rows; i++) {
        if (c->trace.rank[i] <= 0) continue;
        if (c->n_ranks_differ++ == 0) c->first_ranks_differ = i;
    }
    return ERR_OK;
}

bool rpl_runs_small(const eng_weights *w) { return eng_weights_config(w)->dim <= SMALL_DIM; }

static int lanes_for(const rpl_parity *p, const eng_weights *w, int32_t threads)
{
    int lanes = 1;
#ifdef _OPENMP
    lanes = threads > 0 ? threads : omp_get_max_threads();
#else
    (void)threads;
#endif
    for (int32_t k = 0; k < p->n_columns; k++)
        if (!p->column[k].tape && p->column[k].o.backend != ENG_BACKEND_CPU) return 1;
    return rpl_runs_small(w) ? lanes : 1;
}

static err_code run_columns(rpl_parity *p, const fmt_tape *t, const eng_weights *w, const rpl_parity_options *o, err *e)
{
    const int lanes = lanes_for(p, w, o->threads);
    err_code rc = ERR_OK;
    (void)lanes; /* one, without OpenMP */
    for (int32_t k = 0; k < p->n_columns && rpl_runs_small(w); k++) p->column[k].o.threads = 1;
#pragma omp parallel for schedule(dynamic, 1) num_threads(lanes)
    for (int32_t k = 0; k < p->n_columns; k++) {
        err mine = { 0 };
        err_code my = fill_column(p, t, w, o, &p->column[k], &mine);
#pragma omp critical(parity_columns)
        if (my != ERR_OK && rc == ERR_OK) {
            rc = my;
            if (e) *e = mine;
        }
    }
    return rc;
}

/* ---- comparing ---- */

static void add_pair(rpl_parity *p, int32_t a, int32_t b, const char *why)
{
    if (p->n_pairs == (int32_t)COUNT_OF(p->pair)) return;
    rpl_pair *pair = &p->pair[p->n_pairs++];
    *pair = (rpl_pair){ .a = a, .b = b, .why = why, .first = -1 };
    const rpl_trace *x = &p->column[a].trace, *y = &p->column[b].trace;
    for (int64_t i = 0; i < p->n_rows; i++) {
        if (x->rank[i] < 0 || y->rank[i] < 0) continue;
        pair->n++;
        if (x->hash[i] == y->hash[i]) continue;
        if (pair->n_differ++ == 0) pair->first = i;
    }
}

static void make_pairs(rpl_parity *p)
{
    for (int32_t a = 0; a < p->n_columns; a++)
        for (int32_t b = a + 1; b < p->n_columns; b++) {
            const rpl_column *x = &p->column[a], *y = &p->column[b];
            if ((x->tape && !x->known) || y->tape || !same_run_but_mode(&x->o, &y->o)) continue;
            if (x->tape && x->o.mode == y->o.mode) p->recorded_run = true;
            if (x->tape && x->o.mode == y->o.mode) add_pair(p, a, b, "recorded against run again");
            else if (!x->tape && x->o.mode != y->o.mode) add_pair(p, a, b, "eager against graph");
        }
}

/* Against the reference's bits; what differs waits for the judge. */
static void compare_columns(rpl_parity *p)
{
    const rpl_trace *ref = &p->column[p->reference].trace;
    p->n_differ = 0;
    for (int64_t i = 0; i < p->n_rows; i++) {
        bool differs = false;
        for (int32_t c = 0; c < p->n_columns; c++) {
            const rpl_trace *t = &p->column[c].trace;
            rpl_parity_state s = t->rank[i] < 0                                       ? RPL_PARITY_ABSENT
                                 : ref->rank[i] >= 0 && t->hash[i] == ref->hash[i] ? RPL_PARITY_EQUAL
                                                                                    : RPL_PARITY_UNJUDGED;
            p->state[i * p->n_columns + c] = (uint8_t)s;
            differs = differs || s == RPL_PARITY_UNJUDGED;
        }
        p->n_differ += differs;
    }
    p->n_pairs = 0;
    make_pairs(p);
}

static void count_states(rpl_parity *p)
{
    for (int32_t c = 0; c < p->n_columns; c++) {
        rpl_column *column = &p->column[c];
        for (int s = 0; s < RPL_PARITY_STATES; s++) column->n[s] = 0, column->first[s] = -1;
        for (int64_t i = 0; i < p->n_rows; i++) {
            rpl_parity_state s = rpl_parity_at(p, i, c);
            if (column->n[s]++ == 0) column->first[s] = i;
        }
    }
}

err_code rpl_parity_run(const fmt_tape *t, const eng_weights *w, const rpl_parity_options *o, rpl_parity *p, err *e)
{
    if (cap_redact_key_of(t))
        return err_set(e, ERR_INPUT, "%s: is redacted, wanted a tape whose tokens can be run", fmt_tape_path(t));
    p->column = o->column;
    p->n_columns = o->n_columns;
    for (int32_t c = 0; c < p->n_columns; c++)
        p->column[c].first_unstable = p->column[c].first_ranks_differ = p->column[c].first_poisoned = -1;
    TRY(rpl_layout_make(t, eng_weights_config(w), o->only, &p->layout, e));
    p->n_rows = rpl_layout_count(p->layout);
    p->n_rounds_all = rpl_layout_rounds(p->layout);
    p->n_rounds = p->n_rounds_wanted = rpl_layout_chosen(p->layout, p->n_rounds_all);
    p->reference = choose_reference(p);
    p->state = mem_alloc((size_t)p->n_rows + 1, (size_t)p->n_columns);
    if (!p->state) return err_set(e, ERR_NOMEM, "parity: no memory for %lld values", (long long)p->n_rows);
    if (p->n_rows) TRY(run_columns(p, t, w, o, e)); /* an empty part needs no run */
    for (int32_t c = 0; c < p->n_columns; c++) p->damaged = p->damaged || p->column[c].trace.damaged;
    compare_columns(p);
    TRY(rpl_parity_judge(p, t, w, o, e));
    count_states(p);
    p->interrupted = interrupt_seen();
    for (int32_t c = 0; c < p->n_columns && p->n_rows; c++)
        if (!p->column[c].tape && p->column[c].n_rounds < p->n_rounds) p->n_rounds = p->column[c].n_rounds;
    return ERR_OK;
}

void rpl_parity_fini(rpl_parity *p)
{
    for (int32_t c = 0; c < p->n_columns; c++) {
        rpl_trace_fini(&p->column[c].trace);
        free(p->column[c].unstable);
        free(p->column[c].poisoned);
        p->column[c].unstable = p->column[c].poisoned = NULL;
    }
    rpl_layout_free(p->layout);
    free(p->state);
    *p = (rpl_parity){ 0 };
}

const char *rpl_parity_verdict(const rpl_parity *p)
{
    bool incomplete = p->n_rows == 0;
    for (int32_t k = 0; k < p->n_pairs; k++)
        if (p->pair[k].n_differ > 0) return "FAIL";
    for (int32_t k = 0; k < p->n_columns; k++) {
        const rpl_column *c = &p->column[k];
        if (c->n_unstable || c->n_ranks_differ || c->n_poisoned || c->n[RPL_PARITY_DIFFERS]) return "FAIL";
        incomplete = incomplete || c->n[RPL_PARITY_UNJUDGED] > 0 || c->n[RPL_PARITY_ABSENT] == p->n_rows;
    }
    return p->interrupted || p->damaged ? NULL : incomplete ? "INCOMPLETE" : "PASS";
}
