#include "replay/parity_judge.h"

#include "base/interrupt.h"
#include "base/mem.h"
#include "engine/identity.h"
#include "replay/cause.h"
#include "replay/replay.h"

#include <errno.h>
#include <unistd.h>

enum { NOBODY = -1 };

typedef struct judging {
    rpl_parity *p;
    const fmt_tape *tape;
    const eng_weights *weights;
    const rpl_parity_options *o;
    int8_t *judged_as; /* [rounds * n_columns] the column that is judged in a column's place; NOBODY: not to be judged */
    bool *only;        /* [rounds] of the column under way */
    char folder[200], path[240];
} judging;

static int8_t *judged_as(const judging *j, int32_t round, int32_t c) { return &j->judged_as[round * j->p->n_columns + c]; }

/* ---- who is judged ---- */

static bool has_all(const rpl_trace *t, int64_t first, int64_t n)
{
    for (int64_t i = first; i < first + n; i++)
        if (t->rank[i] < 0) return false;
    return true;
}

static bool has_any(const rpl_trace *t, int64_t first, int64_t n)
{
    for (int64_t i = first; i < first + n; i++)
        if (t->rank[i] >= 0) return true;
    return false;
}

/* The column, among those before c, that has its bits in the round; c itself if there is none. */
static int32_t find_same(const judging *j, int32_t round, int32_t c, int64_t first, int64_t n)
{
    const rpl_parity *p = j->p;
    for (int32_t k = 0; k < p->n_columns; k++)
        if (k != c && *judged_as(j, round, k) == k &&
            rpl_trace_differs(&p->column[k].trace, &p->column[c].trace, first, n) < 0)
            return k;
    return c;
}

/* A tape that kept only some values comes last: a column that has all of them is judged in its place where it can be. */
static void choose_round(judging *j, int32_t round)
{
    const rpl_parity *p = j->p;
    int64_t first, n;
    int32_t results = 0;
    rpl_layout_span(p->layout, round, &first, &n);
    for (int pass = 0; pass < 2; pass++)
        for (int32_t c = 0; c < p->n_columns; c++) {
            const rpl_trace *t = &p->column[c].trace;
            if ((pass == 0) != (!p->column[c].tape || has_all(t, first, n)) || !has_any(t, first, n)) continue;
            int32_t as = find_same(j, round, c, first, n);
            *judged_as(j, round, c) = (int8_t)as;
            results += as == c;
        }
    if (results == 1)
        for (int32_t c = 0; c < p->n_columns; c++) *judged_as(j, round, c) = NOBODY; /* all agree */
}

/* ---- verdicts ---- */

static void mark(judging *j, int32_t c, int32_t round, int64_t row, rpl_parity_state s)
{
    rpl_parity *p = j->p;
    for (int32_t k = 0; k < p->n_columns; k++) {
        uint8_t *state = &p->state[row * p->n_columns + k];
        if (*judged_as(j, round, k) != c || *state == RPL_PARITY_ABSENT) continue;
        if (s == RPL_PARITY_DIFFERS || *state == RPL_PARITY_UNJUDGED) *state = (uint8_t)s;
    }
}

static bool same_place(const rpl_row *row, int32_t round, int32_t slot, const char *name)
{
    return row->round == round && row->slot == slot && strcmp(row->name, name) == 0;
}

static void mark_illegal(judging *j, int32_t c, const rpl_origin *o)
{
    const rpl_parity *p = j->p;
    for (int64_t i = 0; i < p->n_rows; i++) {
        const rpl_row *row = rpl_layout_at(p->layout, i);
        for (int32_t k = 0; k < o->n_outputs; k++)
            if (same_place(row, o->round, o->slot, o->output[k])) mark(j, c, row->index, i, RPL_PARITY_DIFFERS);
    }
}

static bool was_judged(const rpl_certificate *cert, const rpl_row *row)
{
    for (size_t k = 0; k < cert->n_notes; k++)
        if (strcmp(cert->not_judged[k].value, row->name) == 0) return false;
    return true;
}

static void take_verdicts(judging *j, int32_t c, const rpl_certificate *cert)
{
    rpl_parity *p = j->p;
    for (int64_t i = 0; i < p->n_rows; i++) {
        const rpl_row *row = rpl_layout_at(p->layout, i);
        if (*judged_as(j, row->index, c) == c && was_judged(cert, row)) mark(j, c, row->index, i, RPL_PARITY_FLIP);
    }
    for (size_t k = 0; k < cert->n_origins; k++) mark_illegal(j, c, &cert->origin[k]);
    for (size_t k = 0; k < cert->n_inherited; k++) mark_illegal(j, c, &cert->inherited[k]);
}

/* The first origin of every column that is judged by c's rounds. */
static void take_origins(judging *j, int32_t c, const rpl_certificate *cert)
{
    rpl_parity *p = j->p;
    for (size_t k = 0; k < cert->n_origins; k++) {
        const rpl_origin *o = &cert->origin[k];
        int32_t round = -1;
        for (int64_t i = 0; i < p->n_rows && round < 0; i++)
            if (rpl_layout_at(p->layout, i)->round == o->round) round = rpl_layout_at(p->layout, i)->index;
        for (int32_t to = 0; to < p->n_columns && round >= 0; to++) {
            rpl_origin *first = &p->column[to].origin;
            if (*judged_as(j, round, to) == c && (!first->op[0] || o->round < first->round)) *first = *o;
        }
    }
}

/* ---- judging one column ---- */

/* Rounds of t that j->only has, as indices of t. */
static int32_t *list_rounds(const judging *j, const fmt_tape *t, int32_t *n)
{
    const int32_t *number;
    size_t n_numbers = fmt_tape_rounds(t, &number);
    int32_t *list = mem_alloc(n_numbers + 1, sizeof *list);
    *n = 0;
    for (size_t k = 0; list && k < n_numbers; k++)
        for (int32_t i = 0; i < rpl_layout_rounds(j->p->layout); i++) {
            int64_t first, rows;
            rpl_layout_span(j->p->layout, i, &first, &rows);
            if (j->only[i] && rows && rpl_layout_at(j->p->layout, first)->round == number[k]) list[(*n)++] = (int32_t)k;
        }
    return list;
}

/* The column that is c run again: itself, or the recorded run of the tape. NULL: none. */
static const rpl_column *column_again(const rpl_parity *p, int32_t c)
{
    if (!p->column[c].tape) return &p->column[c];
    for (int32_t k = 0; k < p->n_columns; k++)
        if (!p->column[k].tape && p->column[c].known && rpl_same_run(&p->column[c].o, &p->column[k].o))
            return &p->column[k];
    return NULL;
}

/* Only a column's first origin is shown: causes of later rounds are not looked for. */
typedef struct explaining { rpl_causes causes; int32_t first_round; } explaining;

static err_code explain_first(void *ctx, const rpl_forced_value *v, const rpl_verdict *verdict, const uint8_t *classes,
                              rpl_origin *o, err *e)
{
    explaining *x = ctx;
    if (v->round > __atomic_load_n(&x->first_round, __ATOMIC_RELAXED)) return ERR_OK;
    __atomic_store_n(&x->first_round, v->round, __ATOMIC_RELAXED);
    return rpl_cause_explain(&x->causes, v, verdict, classes, o, e);
}

static err_code judge_tape(judging *j, int32_t c, const fmt_tape *t, err *e)
{
    const rpl_column *again = column_again(j->p, c);
    rpl_controls controls = { .layout = j->p->layout, .recorded = &j->p->column[c].trace, .runs = j->o->repeat };
    explaining x = { .causes = { .tape = t }, .first_round = INT32_MAX };
    if (again && controls.runs > 1) {
        controls.first = &again->trace;
        controls.unstable = again->unstable;
        controls.poisoned = again->poisoned;
        x.causes.controls = &controls;
    }
    rpl_certificate cert = { 0 };
    rpl_certify_options o = rpl_certify_options_of(t);
    o.bound = j->o->bound;
    o.threads = j->o->threads;
    o.explain = explain_first;
    o.explain_ctx = &x;
    x.causes.n_ranks = o.n_ranks;
    int32_t n, *rounds = list_rounds(j, t, &n);
    if (!rounds) return err_set(e, ERR_NOMEM, "parity: no memory for the rounds to judge");
    const rpl_certify_job job = { .rounds = rounds, .n = n };
    err_code rc = rpl_certify_tape(t, j->weights, &o, &job, &cert, e);
    j->p->damaged = j->p->damaged || cert.damaged;
    if (rc == ERR_OK && !cert.interrupted) { /* a round that was left out has no verdict to take */
        take_verdicts(j, c, &cert);
        take_origins(j, c, &cert);
        j->p->n_judged += n;
    }
    rpl_certificate_fini(&cert);
    free(rounds);
    return rc;
}

/* The column's rounds once more, under capture this time. */
static err_code judge_run(judging *j, int32_t c, err *e)
{
    const eng_options *run = &j->p->column[c].o;
    rpl_replay_options o = { .run = *run, .level = ENG_LEVEL_DEEP, .only = j->only, .quiet = j->o->quiet };
    json_t *identity = eng_identity(j->weights, run);
    fmt_tape *t = NULL;
    if (!identity) return err_set(e, ERR_NOMEM, "parity: no memory for an identity");
    err_code rc = rpl_replay_run(j->tape, j->weights, &o, identity, j->path, e);
    json_decref(identity);
    if (rc == ERR_OK) rc = fmt_tape_open(j->path, &t, e);
    if (rc == ERR_OK && !interrupt_seen()) rc = judge_tape(j, c, t, e);
    fmt_tape_close(t);
    unlink(j->path);
    return rc;
}

static err_code judge_column(judging *j, int32_t c, err *e)
{
    bool any = false;
    for (int32_t i = 0; i < rpl_layout_rounds(j->p->layout); i++) {
        j->only[i] = *judged_as(j, i, c) == c;
        any = any || j->only[i];
    }
    if (!any) return ERR_OK;
    if (j->p->column[c].tape) return judge_tape(j, c, j->tape, e);
    if (!j->folder[0]) {
        const char *base = getenv("TMPDIR");
        snprintf(j->folder, sizeof j->folder, "%.150s/sparktape-parity-XXXXXX", base && *base ? base : "/tmp");
        if (!mkdtemp(j->folder)) {
            char wanted[sizeof j->folder];
            memcpy(wanted, j->folder, sizeof wanted);
            j->folder[0] = 0;
            return err_set(e, ERR_IO, "%s: cannot be made: %s", wanted, strerror(errno));
        }
        snprintf(j->path, sizeof j->path, "%s/rounds.tape", j->folder);
    }
    err_code rc = judge_run(j, c, e);
    return rc == ERR_OK ? rc : err_wrap(e, "judging %s", j->p->column[c].name);
}

err_code rpl_parity_judge(rpl_parity *p, const fmt_tape *t, const eng_weights *w, const rpl_parity_options *o, err *e)
{
    judging j = { .p = p, .tape = t, .weights = w, .o = o };
    size_t n_rounds = (size_t)rpl_layout_rounds(p->layout);
    err_code rc = ERR_OK;
    if (p->n_differ == 0) return ERR_OK;
    j.judged_as = mem_alloc(n_rounds + 1, (size_t)p->n_columns);
    j.only = mem_alloc(n_rounds + 1, sizeof *j.only);
    if (!j.judged_as || !j.only) rc = err_set(e, ERR_NOMEM, "parity: no memory for %zu rounds", n_rounds);
    if (j.judged_as) memset(j.judged_as, NOBODY, n_rounds * (size_t)p->n_columns);
    for (int32_t i = 0; i < (int32_t)n_rounds && rc == ERR_OK; i++)
        if (rpl_layout_has(p->layout, i)) choose_round(&j, i);
    for (int32_t c = 0; c < p->n_columns && rc == ERR_OK && !interrupt_seen(); c++) rc = judge_column(&j, c, e);
    if (j.folder[0]) rmdir(j.folder);
    free(j.judged_as);
    free(j.only);
    return rc;
}
