#include "replay/attribute_run.h"

#include "base/interrupt.h"
#include "base/mem.h"
#include "capture/rounds.h"
#include "replay/attribute_tape.h"

enum { N_STEPS = 2, UNWRITTEN = 0x7fff /* a NaN */ };

/* An arm's benches, and its programs as groups between the values that a deep tape would hold. */
typedef struct side {
    eng_bench *bench[N_STEPS];
    const eng_program *program[N_STEPS];
    rpl_fold *fold[N_STEPS];
} side;

struct rpl_mix {
    const fmt_tape *tape;
    eng_config config;
    cap_rounds *rounds;
    int32_t *number;         /* [rounds] */
    side side[RPL_MIX_SIDES_MAX];
    int32_t n_sides;
    rpl_unit *unit;
    int32_t n_units, first_unit[N_STEPS]; /* by step */
    int32_t window_unit[ENG_STAGES_MAX];
    bf16 *rings;             /* [slots][n_stages][window][head_dim] */
    const rpl_deviations *deviations;
};

/* A step under way. */
typedef struct step_run {
    rpl_mix *m;
    const rpl_mix_job *job;
    rpl_mix_step step;
    bool used[RPL_MIX_SIDES_MAX];
    int64_t row0;            /* of an insert's rows, the first of this part */
    bool has_main_x;
    int64_t rows_before;     /* of earlier inserts of the slot in the round: a tape has all of them as one value */
} step_run;

/* ---- rings ---- */

static size_t ring_elems(const rpl_mix *m) { return (size_t)m->config.window * (size_t)m->config.head_dim; }

static bf16 *ring_of(const rpl_mix *m, int32_t slot, int32_t stage)
{
    int32_t dense = cap_rounds_dense(m->rounds, slot);
    return m->rings + ((size_t)dense * (size_t)m->config.n_stages + (size_t)stage) * ring_elems(m);
}

static void empty_ring(const rpl_mix *m, int32_t slot)
{
    bf16 *ring = ring_of(m, slot, 0);
    for (size_t i = 0; i < (size_t)m->config.n_stages * ring_elems(m); i++) ring[i] = UNWRITTEN;
}

/* Of a tape of chosen rounds: brings the slots of round i to where its steps have them. */
static err_code start_slots(rpl_mix *m, int32_t i, err *e)
{
    const cap_start *start;
    int32_t n;
    const size_t width = (size_t)m->config.head_dim;
    TRY(cap_rounds_starts(m->rounds, i, &start, &n, e));
    for (int32_t k = 0; k < n; k++) {
        if (start[k].anew) empty_ring(m, start[k].slot);
        for (int32_t stage = 0; stage < m->config.n_stages && start[k].window; stage++) {
            bf16 *to = ring_of(m, start[k].slot, stage);
            for (int32_t p = start[k].from; p <= start[k].to; p++) {
                size_t at = (size_t)(p % m->config.window) * width;
                memcpy(to + at, start[k].window[stage] + at, width * sizeof *to);
            }
        }
    }
    return ERR_OK;
}

/* ---- units ---- */

static fmt_tensor value_tensor(const rpl_mix *m, eng_step_kind step, int32_t v)
{
    const eng_program *p = m->side[0].program[step];
    int64_t shape[FMT_DIMS_MAX];
    eng_value_shape(p, v, eng_bench_extents(m->side[0].bench[step]), 0, 1, shape);
    return fmt_tensor_make(p->value[v].dtype, eng_bench_value(m->side[0].bench[step], v), p->value[v].ndim, shape);
}

static void copy_value(const rpl_mix *m, eng_step_kind step, const side *from, const side *to, const char *name)
{
    int32_t v = eng_program_find_value(from->program[step], name), at = eng_program_find_value(to->program[step], name);
    CHECK(v >= 0 && at >= 0); /* programs differ in hidden values alone */
    if (from->program[step]->value[v].state) return; /* rings are the same on all sides from the start */
    fmt_tensor t = value_tensor(m, step, eng_program_find_value(m->side[0].program[step], name));
    memcpy(eng_bench_value(to->bench[step], at), eng_bench_value(from->bench[step], v), fmt_tensor_bytes(&t));
}

static err_code run_group(const side *s, eng_step_kind step, const rpl_group *g, err *e)
{
    for (int32_t k = 0; k < g->n_ops; k++) TRY(eng_bench_run(s->bench[step], g->op[k], g->op[k], e));
    return ERR_OK;
}

/* A unit made by another side on the run's values. */
static err_code run_elsewhere(const rpl_mix *m, eng_step_kind step, const side *by, const rpl_group *g, err *e)
{
    const side *own = &m->side[0];
    const eng_program *p = by->program[step];
    const char *name = own->program[step]->value[g->out[0]].name;
    int32_t i = rpl_fold_of_value(by->fold[step], eng_program_find_value(p, name));
    CHECK(i >= 0);
    const rpl_group *made = rpl_fold_at(by->fold[step], i);
    for (int32_t k = 0; k < made->n_in; k++) copy_value(m, step, own, by, p->value[made->in[k]].name);
    TRY(run_group(by, step, made, e));
    for (int32_t k = 0; k < made->n_out; k++) copy_value(m, step, by, own, p->value[made->out[k]].name);
    return ERR_OK;
}

/* ---- the tape as a side ---- */

static void apply_tape(const step_run *s, int32_t unit, const rpl_group *g)
{
    const rpl_mix *m = s->m;
    for (int32_t k = 0; k < g->n_out; k++) {
        const rpl_deviation *d = rpl_deviations_find(m->deviations, s->step.round, s->step.slot, unit, g->out[k]);
        fmt_tensor t = value_tensor(m, s->step.step, g->out[k]);
        int64_t n = fmt_tensor_elems(&t), rows = t.shape[0];
        if (d) rpl_deviation_apply(d, t.dtype, (void *)(uintptr_t)t.data, s->row0 * (n / rows), n);
    }
}

/* The Markov op, position by position: a token that the tape chose otherwise is what the next position comes after. */
static err_code run_markov(const step_run *s, int32_t unit, const rpl_group *g, err *e)
{
    const side *own = &s->m->side[0];
    const int32_t v = eng_program_find_value(own->program[ENG_STEP_DRAFT], "drafts");
    const int32_t *drafts = eng_bench_value(own->bench[ENG_STEP_DRAFT], v);
    int32_t before[ENG_BATCH_MAX * ENG_BLOCK_MAX] = { 0 };
    for (int32_t i = 0; i < s->step.n_out; i++) {
        eng_bench_force_drafts(own->bench[ENG_STEP_DRAFT], before);
        TRY(run_group(own, ENG_STEP_DRAFT, g, e));
        apply_tape(s, unit, g);
        for (int32_t b = 0; b < s->step.batch; b++) before[b * s->step.n_out + i] = drafts[b * s->step.n_out + i];
    }
    eng_bench_force_drafts(own->bench[ENG_STEP_DRAFT], NULL);
    return ERR_OK;
}

static err_code run_unit(const step_run *s, int32_t unit, err *e)
{
    const rpl_mix *m = s->m;
    const rpl_group *g = m->unit[unit].group;
    const int8_t maker = s->job->maker[unit];
    bool state = m->side[0].program[s->step.step]->value[g->out[0]].state;
    bool free_running = !s->job->tokens || !s->job->tokens[s->step.index];
    if (maker > 0 && !state) return run_elsewhere(m, s->step.step, &m->side[maker], g, e);
    if (maker == RPL_MIX_TAPE && g->kind == ENG_OP_MARKOV && free_running) return run_markov(s, unit, g, e);
    TRY(run_group(&m->side[0], s->step.step, g, e));
    if (maker == RPL_MIX_TAPE && !state) apply_tape(s, unit, g); /* a ring's own is put on it when a draft reads it */
    return ERR_OK;
}

static bool writes(const rpl_mix *m, const rpl_unit *u, const char *value)
{
    for (int32_t k = 0; k < u->group->n_out; k++)
        if (strcmp(m->side[0].program[u->step]->value[u->group->out[k]].name, value) == 0) return true;
    return false;
}

static err_code run_units(const step_run *s, err *e)
{
    const rpl_mix *m = s->m;
    int32_t first = m->first_unit[s->step.step];
    int32_t end = s->step.step == ENG_STEP_INSERT ? m->first_unit[ENG_STEP_DRAFT] : m->n_units;
    for (int32_t i = first; i < end; i++) {
        if (s->has_main_x && writes(m, &m->unit[i], "main_x")) continue;
        TRY(run_unit(s, i, e));
    }
    return s->job->fn ? s->job->fn(s->job->ctx, &s->step, e) : ERR_OK;
}

/* ---- steps ---- */

static void set_value(const side *s, eng_step_kind step, const char *name, const void *data, size_t bytes)
{
    memcpy(eng_bench_value(s->bench[step], eng_program_find_value(s->program[step], name)), data, bytes);
}

static err_code run_insert(step_run *s, const eng_insert_event *in, const bf16 *main_x, err *e)
{
    rpl_mix *m = s->m;
    const eng_config *c = &m->config;
    const bf16 *x = in->taps ? in->taps : main_x;
    const int64_t width = in->taps ? (int64_t)c->n_taps * c->dim : c->dim;
    if (!x)
        return err_set(e, ERR_INPUT, "%s: round %d slot %d: found neither taps nor main_x", fmt_tape_path(m->tape),
                       s->step.round, in->slot);
    s->step.step = ENG_STEP_INSERT;
    s->step.slot = in->slot;
    s->has_main_x = !in->taps;
    for (int32_t row0 = 0; row0 < in->rows; row0 += ENG_INSERT_ROWS_MAX) {
        int32_t n = in->rows - row0 < ENG_INSERT_ROWS_MAX ? in->rows - row0 : ENG_INSERT_ROWS_MAX;
        const side *own = &m->side[0];
        for (int32_t k = 0; k < m->n_sides; k++) {
            eng_bench_resize(m->side[k].bench[ENG_STEP_INSERT], n, 1, 1);
            eng_bench_positions(m->side[k].bench[ENG_STEP_INSERT], in->pos + row0, NULL);
        }
        set_value(own, ENG_STEP_INSERT, in->taps ? "taps" : "main_x", x + row0 * width,
                  (size_t)(n * width) * sizeof *x);
        for (int32_t k = 0; k < c->n_stages; k++)
            memcpy(eng_bench_ring(own->bench[ENG_STEP_INSERT], 0, k), ring_of(m, in->slot, k), ring_elems(m) * sizeof *x);
        s->row0 = s->rows_before + row0;
        TRY(run_units(s, e));
        for (int32_t k = 0; k < c->n_stages; k++)
            memcpy(ring_of(m, in->slot, k), eng_bench_ring(own->bench[ENG_STEP_INSERT], 0, k), ring_elems(m) * sizeof *x);
    }
    return ERR_OK;
}

/* The windows of the step's slots on every side that makes something. */
static void load_windows(const step_run *s, const eng_round *r)
{
    const rpl_mix *m = s->m;
    for (int32_t b = 0; b < r->batch; b++)
        for (int32_t k = 0; k < m->config.n_stages; k++) {
            bf16 *ring = eng_bench_ring(m->side[0].bench[ENG_STEP_DRAFT], b, k);
            int64_t rows = r->pos[b] < m->config.window ? r->pos[b] + 1 : m->config.window;
            int32_t unit = m->window_unit[k];
            memcpy(ring, ring_of(m, r->slots[b], k), ring_elems(m) * sizeof *ring);
            const rpl_deviation *d = s->job->maker[unit] == RPL_MIX_TAPE
                                         ? rpl_deviations_find(m->deviations, r->round, r->slots[b], unit, -1)
                                         : NULL;
            if (d) rpl_deviation_apply(d, FMT_DTYPE_BF16, ring, 0, rows * m->config.head_dim);
            for (int32_t i = 1; i < m->n_sides; i++)
                if (s->used[i])
                    memcpy(eng_bench_ring(m->side[i].bench[ENG_STEP_DRAFT], b, k), ring, ring_elems(m) * sizeof *ring);
        }
}

static err_code run_draft(step_run *s, const eng_round *r, err *e)
{
    rpl_mix *m = s->m;
    const int32_t *tokens = s->job->tokens ? s->job->tokens[s->step.index] : NULL;
    s->step.step = ENG_STEP_DRAFT;
    s->step.slot = FMT_TAPE_NO_SLOT;
    s->step.batch = r->batch;
    s->step.n_out = r->n_out;
    s->row0 = 0;
    s->has_main_x = false;
    for (int32_t k = 0; k < m->n_sides; k++) {
        eng_bench *bench = m->side[k].bench[ENG_STEP_DRAFT];
        eng_bench_resize(bench, r->batch * m->config.block, r->batch, r->n_out);
        eng_bench_positions(bench, r->pos, r->anchors);
        eng_bench_force_drafts(bench, tokens);
    }
    load_windows(s, r);
    return run_units(s, e);
}

static err_code run_round(step_run *s, int32_t i, err *e)
{
    rpl_mix *m = s->m;
    const bf16 *const *main_x;
    eng_round r;
    TRY(cap_rounds_at(m->rounds, i, &r, &main_x, e));
    TRY(start_slots(m, i, e));
    s->step = (rpl_mix_step){ .index = i, .round = r.round };
    for (int32_t k = 0; k < r.n_inserts; k++) {
        s->rows_before = 0;
        for (int32_t before = 0; before < k; before++)
            if (r.inserts[before].slot == r.inserts[k].slot) s->rows_before += r.inserts[before].rows;
        TRY(run_insert(s, &r.inserts[k], main_x[k], e));
    }
    return r.batch > 0 && s->job->wanted[i] ? run_draft(s, &r, e) : ERR_OK;
}

err_code rpl_mix_run(rpl_mix *m, const rpl_mix_job *job, bool *stopped, err *e)
{
    step_run s = { .m = m, .job = job };
    int32_t end = rpl_mix_rounds(m);
    *stopped = false;
    while (end > 0 && !job->wanted[end - 1]) end--;
    for (int32_t i = 0; i < m->n_units; i++)
        if (job->maker[i] > 0) s.used[job->maker[i]] = true;
    memset(m->rings, 0, (size_t)cap_rounds_slots(m->rounds) * (size_t)m->config.n_stages * ring_elems(m) * sizeof(bf16));
    for (int32_t i = 0; i < end; i++) {
        if ((*stopped = interrupt_seen())) return ERR_OK;
        TRY(run_round(&s, i, e));
    }
    return ERR_OK;
}

fmt_tensor rpl_mix_value(const rpl_mix *m, const rpl_mix_step *s, const char *name)
{
    int32_t v = eng_program_find_value(m->side[0].program[s->step], name);
    return v < 0 || m->side[0].program[s->step]->value[v].state ? (fmt_tensor){ 0 } : value_tensor(m, s->step, v);
}

/* ---- open ---- */

static err_code open_side(rpl_mix *m, const eng_weights *w, const eng_options *o, side *s, err *e)
{
    const eng_config *c = &m->config;
    const int32_t rows[N_STEPS] = { ENG_INSERT_ROWS_MAX, c->block * ENG_BATCH_MAX }, batch[N_STEPS] = { 1, ENG_BATCH_MAX };
    for (int k = 0; k < N_STEPS; k++) {
        TRY(eng_bench_open(w, o, (eng_step_kind)k, rows[k], batch[k], k == ENG_STEP_DRAFT ? c->block : 1, &s->bench[k], e));
        const eng_program *p = s->program[k] = eng_bench_program(s->bench[k]);
        bool *recorded = mem_alloc((size_t)p->n_values, sizeof *recorded);
        if (!recorded) return err_set(e, ERR_NOMEM, "attribute: no memory");
        for (int32_t v = 0; v < p->n_values; v++) recorded[v] = p->value[v].level <= ENG_LEVEL_DEEP;
        err_code rc = rpl_fold_make(p, recorded, NULL, &s->fold[k], e);
        free(recorded);
        TRY(rc);
    }
    return ERR_OK;
}

static err_code list_units(rpl_mix *m, err *e)
{
    const side *own = &m->side[0];
    m->first_unit[ENG_STEP_DRAFT] = rpl_fold_count(own->fold[ENG_STEP_INSERT]);
    m->n_units = m->first_unit[ENG_STEP_DRAFT] + rpl_fold_count(own->fold[ENG_STEP_DRAFT]);
    m->unit = mem_alloc((size_t)m->n_units, sizeof *m->unit);
    if (!m->unit) return err_set(e, ERR_NOMEM, "attribute: no memory");
    for (int32_t i = 0; i < m->n_units; i++) {
        eng_step_kind step = i < m->first_unit[ENG_STEP_DRAFT] ? ENG_STEP_INSERT : ENG_STEP_DRAFT;
        const rpl_group *g = rpl_fold_at(own->fold[step], i - m->first_unit[step]);
        m->unit[i] = (rpl_unit){ .name = g->name, .step = step, .stage = g->stage, .group = g };
        if (own->program[step]->value[g->out[0]].state) m->window_unit[g->stage] = i;
    }
    return ERR_OK;
}

/* A tape may have rounds of values alone, which are not among those that can be run. */
static err_code read_numbers(rpl_mix *m, err *e)
{
    const bf16 *const *main_x;
    m->number = mem_alloc((size_t)cap_rounds_count(m->rounds), sizeof *m->number);
    if (!m->number) return err_set(e, ERR_NOMEM, "attribute: no memory");
    for (int32_t i = 0; i < cap_rounds_count(m->rounds); i++) {
        eng_round r;
        TRY(cap_rounds_at(m->rounds, i, &r, &main_x, e));
        m->number[i] = r.round;
    }
    return ERR_OK;
}

static err_code open_all(rpl_mix *m, const eng_weights *w, const eng_options *sides, err *e)
{
    TRY(cap_rounds_open_chosen(m->tape, &m->config, &m->rounds, e));
    TRY(read_numbers(m, e));
    size_t slots = (size_t)cap_rounds_slots(m->rounds);
    m->rings = mem_alloc_aligned((slots ? slots : 1) * (size_t)m->config.n_stages * ring_elems(m), sizeof *m->rings);
    if (!m->rings) return err_set(e, ERR_NOMEM, "attribute: no memory for the windows of %zu slots", slots);
    for (int32_t k = 0; k < m->n_sides; k++) TRY(open_side(m, w, &sides[k], &m->side[k], e));
    return list_units(m, e);
}

err_code rpl_mix_open(const fmt_tape *t, const eng_weights *w, const eng_options *sides, int32_t n_sides, rpl_mix **out,
                      err *e)
{
    *out = NULL;
    CHECK(n_sides >= 1 && n_sides <= RPL_MIX_SIDES_MAX);
    rpl_mix *m = mem_alloc(1, sizeof *m);
    if (!m) return err_set(e, ERR_NOMEM, "attribute: no memory");
    m->tape = t;
    m->config = *eng_weights_config(w);
    m->n_sides = n_sides;
    err_code rc = open_all(m, w, sides, e);
    if (rc != ERR_OK) {
        rpl_mix_close(m);
        return rc;
    }
    *out = m;
    return ERR_OK;
}

void rpl_mix_close(rpl_mix *m)
{
    if (!m) return;
    for (int32_t k = 0; k < m->n_sides; k++)
        for (int step = 0; step < N_STEPS; step++) {
            rpl_fold_free(m->side[k].fold[step]);
            eng_bench_close(m->side[k].bench[step]);
        }
    cap_rounds_close(m->rounds);
    free(m->number);
    free(m->unit);
    free(m->rings);
    free(m);
}

int32_t rpl_mix_units(const rpl_mix *m) { return m->n_units; }
const rpl_unit *rpl_mix_unit(const rpl_mix *m, int32_t i) { return &m->unit[i]; }

int32_t rpl_mix_unit_of(const rpl_mix *m, const char *value)
{
    for (int32_t i = 0; i < m->n_units; i++)
        if (writes(m, &m->unit[i], value)) return i;
    return -1;
}

int32_t rpl_mix_rounds(const rpl_mix *m) { return cap_rounds_count(m->rounds); }
int32_t rpl_mix_round_number(const rpl_mix *m, int32_t i) { return m->number[i]; }
const eng_program *rpl_mix_program(const rpl_mix *m, eng_step_kind step) { return m->side[0].program[step]; }
void rpl_mix_set_tape(rpl_mix *m, const rpl_deviations *d) { m->deviations = d; }
