/* Steps of the CUDA backend, and the windows between them.
 *
 * A step is put on its stream as a whole: inputs, graph or ops, what the caller is answered, and what a shot keeps. Drafts
 * are waited for, no further than their answer; inserts are not, unless somebody looks on: what they have to say against
 * them shows at the next step. The windows stand between the two streams: a draft that finds an insert under way runs
 * beside it until it first reads one (the event `written`), and what writes windows waits until a shot has been filled from
 * them (`read`). */
#include "base/clock.h"
#include "base/hot.h"
#include "base/mem.h"
#include "engine/device_exec.h"
#include "engine/shots_fill.h"

enum { WAIT_SLICE_NS = 50000000, NO_MARK = -1 };
/* Inserts run as graphs of these sizes, padded with rows that no window takes. */
static const int32_t BUCKET_ROWS[ENG_DEVICE_BUCKETS] = { 8, 16, 32, 64, ENG_INSERT_ROWS_MAX };

const int32_t *eng_device_slots(const eng_device_run *r) { return r->d->inputs[r->program->step] + ENG_DEVICE_IN_SLOT; }

/* A step to put on the device, its inputs being there, and what becomes of its values. */
typedef struct job {
    eng_device_run run;
    int32_t first;           /* op */
    eng_device_graph *graph; /* NULL: eager */
    eng_extents live;        /* run's without padding */
    const eng_tap *tap;
    int32_t slot, row0, rows_total;
} job;

static eng_device_run run_of(eng_device *d, eng_step_kind step, int32_t rows, int32_t batch, int32_t n_out)
{
    return (eng_device_run){ d, d->program[step], eng_extents_of(&d->config, rows, batch, n_out) };
}

static err_code usable(const eng_device *d, err *e)
{
    if (d->failed == ERR_OK) return krn_device_use(d->device, e);
    return err_set(e, d->failed, "rank %d: stopped by an earlier failure", d->rank[0].rank);
}

/* A step failed: says at which collective the stream stood last, lets go of one that is under way, and tells the peers. */
static err_code give_up(eng_device *d, const eng_program *p, err_code rc, err *e)
{
    int32_t at = *(volatile int32_t *)d->mark; /* written by the device */
    if (at >= 0 && at < p->n_ops) err_wrap(e, "rank %d, %s", d->rank[0].rank, p->op[at].name);
    else err_wrap(e, "rank %d", d->rank[0].rank);
    d->failed = rc;
    if (d->comm) eng_device_comm_abort(d->comm, e ? e->msg : "failed");
    return rc;
}

/* Waits for an event, or for all of a step's stream (NULL), no longer than the deadline where ranks meet. */
static err_code wait_step(eng_device *d, eng_step_kind step, krn_event event, err *e)
{
    uint64_t start = clock_ns();
    bool done = false;
    err_code rc = ERR_OK;
    while (!done && rc == ERR_OK) {
        rc = event ? krn_event_wait(event, WAIT_SLICE_NS, &done, e)
                   : krn_stream_wait(d->stream[step], WAIT_SLICE_NS, &done, e);
        if (rc == ERR_OK && d->comm) rc = eng_device_comm_error(d->comm, e);
        if (rc == ERR_OK && !done && d->comm && clock_ns() - start > d->deadline_ns)
            rc = err_set(e, ERR_COMM, "not finished within %.1f s", (double)d->deadline_ns * 1e-9);
    }
    return rc;
}

/* ---- inputs ---- */

/* Turns to the other set of inputs on the host, which may be filled once the step before the last has taken it. */
static err_code turn_inputs(eng_device *d, int32_t **inputs, err *e)
{
    d->turn = !d->turn;
    *inputs = (int32_t *)(void *)d->host[d->turn];
    return wait_step(d, ENG_STEP_INSERT, d->taken[d->turn], e);
}

/* One copy: the small inputs, and behind them row_bytes of an insert's rows. */
static err_code put_inputs(eng_device *d, eng_step_kind step, uint64_t row_bytes, err *e)
{
    uint64_t bytes = row_bytes > 0 ? ENG_DEVICE_IN_BYTES + row_bytes : ENG_DEVICE_IN_COUNT * sizeof(int32_t);
    return krn_copy(d->inputs[step], d->host[d->turn], bytes, d->stream[step], e);
}

/* Before anything writes windows: nobody reads them any more. A draft was waited for, but what a shot keeps was not. */
static err_code follow_reader(eng_device *d, err *e)
{
    if (d->reading) TRY(krn_event_follow(d->read, d->stream[ENG_STEP_INSERT], e));
    d->reading = false;
    return ERR_OK;
}

/* rows: of the launch, padded. What padding rows hold does not matter: no window takes them, and every row is computed for
 * itself. It is what an earlier insert had there, or zeros. */
static err_code put_insert(eng_device *d, const eng_device_insert *in, int32_t rows, err *e)
{
    eng_extents one = eng_extents_of(&d->config, 1, 1, 1);
    uint64_t row_bytes = (uint64_t)eng_value_elems(d->program[ENG_STEP_INSERT], in->at, &one, 0, 1) * sizeof(bf16);
    uint64_t bytes = (uint64_t)in->rows * row_bytes;
    krn_stream s = d->stream[ENG_STEP_INSERT];
    int32_t *inputs;
    TRY(turn_inputs(d, &inputs, e));
    uint8_t *x = d->host[d->turn] + ENG_DEVICE_IN_BYTES;
    memcpy(x, in->x, bytes);
    for (int32_t i = 0; i < rows; i++)
        inputs[ENG_DEVICE_IN_POS + i] = i < in->rows ? in->pos[i] : -1; /* -1: no window takes it */
    inputs[ENG_DEVICE_IN_SLOT] = in->slot;
    TRY(follow_reader(d, e));
    TRY(put_inputs(d, ENG_STEP_INSERT, in->at == d->taps ? bytes : 0, e));
    for (int32_t r = 0; r < d->n_local && in->at != d->taps; r++)
        TRY(krn_copy(d->rank[r].value[ENG_STEP_INSERT][in->at], x, bytes, s, e));
    return krn_event_record(d->taken[d->turn], s, e);
}

static err_code put_draft(eng_device *d, const eng_device_draft *in, err *e)
{
    int32_t *inputs;
    TRY(turn_inputs(d, &inputs, e)); /* and no event behind the copy: a draft is waited for */
    for (int32_t b = 0; b < in->batch; b++) {
        inputs[ENG_DEVICE_IN_ANCHOR + b] = in->anchors[b];
        inputs[ENG_DEVICE_IN_LAST + b] = in->pos[b];
        inputs[ENG_DEVICE_IN_SLOT + b] = in->slots[b];
    }
    return put_inputs(d, ENG_STEP_DRAFT, 0, e);
}

/* ---- the step ---- */

/* Makes g where it is not there yet: the one way to a graph, at open, by a prewarm, or when a step first wants it. */
static err_code make_graph(const eng_device_run *r, eng_device_graph *g, err *e)
{
    if (g->graph) return ERR_OK;
    TRY(eng_device_capture(r, g, e));
    return krn_graph_upload(g->graph, r->d->stream[r->program->step], e);
}

/* Launches g, which is made first where no prewarm has done it. */
static err_code launch_graph(const eng_device_run *r, eng_device_graph *g, err *e)
{
    eng_device *d = r->d;
    krn_stream s = d->stream[r->program->step];
    TRY(make_graph(r, g, e));
    hot_begin();
    err_code rc = krn_event_record(d->started, s, e);
    if (rc == ERR_OK) rc = krn_graph_launch(g->graph, s, e);
    if (rc == ERR_OK) rc = krn_event_record(d->ended, s, e);
    if (rc == ERR_OK && r->program->step == ENG_STEP_INSERT) rc = krn_event_record(d->written, s, e);
    hot_end();
    return rc;
}

static uint64_t answer_at(const eng_device *d, int32_t v) { return d->rank[0].offset[ENG_STEP_DRAFT][v]; }

/* What a draft chose goes to the host with the step: one copy, the two values being neighbours. */
static err_code put_answer(const eng_device_run *r, err *e)
{
    eng_device *d = r->d;
    const eng_device_rank *k = &d->rank[0];
    uint64_t from = answer_at(d, d->drafts), end = answer_at(d, d->confidence);
    CHECK(from < end);
    end += (uint64_t)(r->x.n[ENG_DIM_B] * r->x.n[ENG_DIM_N_OUT]) * sizeof(float);
    const uint8_t *arena = k->arena[ENG_STEP_DRAFT];
    return krn_copy(k->shadow[ENG_STEP_DRAFT] + from, arena + from, end - from, d->lane[0], e);
}

static err_code put_step(const job *j, err *e)
{
    const eng_device_run *r = &j->run;
    eng_device *d = r->d;
    eng_step_kind step = r->program->step;
    eng_shot *shot = j->tap ? j->tap->shot : NULL;
    *d->mark = NO_MARK;
    d->ran = true;
    TRY(j->graph ? launch_graph(r, j->graph, e) : eng_device_launch(r, j->first, e));
    if (step == ENG_STEP_DRAFT) TRY(put_answer(r, e));
    if (!shot) return ERR_OK;
    TRY(krn_event_record(d->answered, d->stream[step], e));
    TRY(eng_shot_pack(shot, d->rank[0].rank, j->row0, (int32_t)j->live.n[ENG_DIM_ROWS], e));
    TRY(krn_event_record(d->ended, d->stream[step], e)); /* once more: the step's time counts what keeping it took */
    if (step == ENG_STEP_INSERT) return ERR_OK;
    d->reading = true;
    return krn_event_record(d->read, d->stream[step], e);
}

/* ---- showing ---- */

static bool shown(const job *j, int32_t v)
{
    const eng_device *d = j->run.d;
    const eng_value *value = &j->run.program->value[v];
    bool all = d->options.mode == ENG_MODE_EAGER || j->tap->traced;
    return value->level <= ENG_LEVEL_DEEP && (all || value->level <= d->retain) && !value->state;
}

static uint8_t *shadow_of(const job *j, const eng_device_rank *k, int32_t v)
{
    eng_step_kind step = j->run.program->step;
    return k->shadow[step] + k->offset[step][v];
}

static err_code bring(const job *j, const eng_device_rank *k, int32_t v, err *e)
{
    const eng_device *d = j->run.d;
    const eng_program *p = j->run.program;
    int64_t elems = eng_value_elems(p, v, &j->live, k->rank, d->n_ranks);
    return krn_copy(shadow_of(j, k, v), k->value[p->step][v], (uint64_t)elems * fmt_dtype_bytes(p->value[v].dtype),
                    d->stream[p->step], e);
}

static err_code show_one(const job *j, const eng_device_rank *k, int32_t v, err *e)
{
    const eng_program *p = j->run.program;
    eng_site site = { p, v, k->rank, j->run.d->n_ranks, j->slot, j->row0, j->rows_total };
    fmt_tensor t = { .dtype = p->value[v].dtype, .ndim = p->value[v].ndim, .data = shadow_of(j, k, v) };
    (void)e;
    for (int n = 0; n < FMT_DIMS_MAX; n++) t.shape[n] = 1;
    eng_value_shape(p, v, &j->live, k->rank, j->run.d->n_ranks, t.shape);
    j->tap->tensor(j->tap->ctx, &site, &t);
    return ERR_OK;
}

/* Does fn to every shown value, rank by rank in program order. */
static err_code each_shown(const job *j, err_code (*fn)(const job *, const eng_device_rank *, int32_t, err *), err *e)
{
    const eng_program *p = j->run.program;
    for (int32_t r = 0; r < j->run.d->n_local; r++)
        for (int32_t i = j->first; i < p->n_ops; i++)
            for (int32_t o = 0; o < p->op[i].n_out; o++)
                if (shown(j, p->op[i].out[o])) TRY(fn(j, &j->run.d->rank[r], p->op[i].out[o], e));
    return ERR_OK;
}

static err_code show(const job *j, err *e)
{
    bool done;
    TRY(each_shown(j, bring, e));
    TRY(krn_stream_wait(j->run.d->stream[j->run.program->step], 0, &done, e));
    return each_shown(j, show_one, e);
}

/* ---- running ---- */

/* The whole of a step whose inputs are on their way. */
static err_code run(const job *j, err *e)
{
    eng_device *d = j->run.d;
    eng_step_kind step = j->run.program->step;
    bool looked_on = j->tap && j->tap->tensor, kept = j->tap && j->tap->shot;
    TRY(put_step(j, e));
    if (step == ENG_STEP_DRAFT || looked_on) TRY(wait_step(d, step, kept ? d->answered : NULL, e));
    return looked_on ? show(j, e) : ERR_OK;
}

static int bucket_of(int32_t rows)
{
    int b = 0;
    while (BUCKET_ROWS[b] < rows) b++;
    return b;
}

static bool by_graph(const eng_device *d, const eng_tap *tap)
{
    return d->options.mode == ENG_MODE_GRAPH && !(tap && tap->traced);
}

err_code eng_device_run_insert(eng_device *d, const eng_device_insert *in, const eng_tap *tap, err *e)
{
    TRY(usable(d, e));
    bool graph = by_graph(d, tap) && in->first_op == 0; /* from main_x on: rare, not worth a graph each */
    int bucket = bucket_of(in->rows);
    int32_t rows = graph ? BUCKET_ROWS[bucket] : in->rows;
    job j = { .run = run_of(d, ENG_STEP_INSERT, rows, 1, 1), .first = in->first_op,
              .graph = graph ? &d->insert[bucket] : NULL, .live = eng_extents_of(&d->config, in->rows, 1, 1), .tap = tap,
              .slot = in->slot, .row0 = in->row0, .rows_total = in->rows_total };
    err_code rc = put_insert(d, in, rows, e);
    if (rc == ERR_OK) rc = run(&j, e);
    return rc == ERR_OK ? ERR_OK : give_up(d, j.run.program, rc, e);
}

err_code eng_device_run_draft(eng_device *d, const eng_device_draft *in, const eng_tap *tap, err *e)
{
    TRY(usable(d, e));
    int32_t rows = in->batch * d->config.block;
    job j = { .run = run_of(d, ENG_STEP_DRAFT, rows, in->batch, in->n_out),
              .graph = by_graph(d, tap) ? &d->draft[in->batch - 1][in->n_out - 1] : NULL, .tap = tap,
              .slot = FMT_TAPE_NO_SLOT, .rows_total = rows };
    j.live = j.run.x;
    err_code rc = put_draft(d, in, e);
    if (rc == ERR_OK) rc = run(&j, e);
    return rc == ERR_OK ? ERR_OK : give_up(d, j.run.program, rc, e);
}

void eng_device_drafts(const eng_device *d, int32_t n, int32_t *drafts, float *confidence)
{
    const uint8_t *shadow = d->rank[0].shadow[ENG_STEP_DRAFT];
    memcpy(drafts, shadow + answer_at(d, d->drafts), (size_t)n * sizeof *drafts);
    memcpy(confidence, shadow + answer_at(d, d->confidence), (size_t)n * sizeof *confidence);
}

double eng_device_step_us(eng_device *d)
{
    double us = 0;
    err ignored;
    bool done;
    if (!d->ran || d->failed != ERR_OK || krn_event_wait(d->ended, 0, &done, &ignored) != ERR_OK) return 0;
    return krn_event_elapsed_us(d->started, d->ended, &us, &ignored) == ERR_OK ? us : 0;
}

/* ---- before the first step ---- */

/* Runs both steps once where no state can change (no live row, no tap), so that kernels are loaded and the ranks connected
 * before anything is captured. */
static err_code first_touch(eng_device *d, err *e)
{
    static const int32_t nowhere = 0;
    const eng_device_draft one = { 1, d->config.block, &nowhere, &nowhere, &nowhere };
    job insert = { .run = run_of(d, ENG_STEP_INSERT, BUCKET_ROWS[0], 1, 1) };
    job draft = { .run = run_of(d, ENG_STEP_DRAFT, d->config.block, 1, d->config.block) };
    int32_t *inputs;
    TRY(turn_inputs(d, &inputs, e));
    for (int32_t i = 0; i < ENG_INSERT_ROWS_MAX; i++) inputs[ENG_DEVICE_IN_POS + i] = -1;
    inputs[ENG_DEVICE_IN_SLOT] = 0;
    TRY(put_inputs(d, ENG_STEP_INSERT, 0, e));
    TRY(krn_event_record(d->taken[d->turn], d->stream[ENG_STEP_INSERT], e));
    TRY(run(&insert, e));
    TRY(put_draft(d, &one, e));
    TRY(run(&draft, e));
    d->touched = true;
    return ERR_OK;
}

static err_code warm(eng_device_run r, eng_device_graph *g, int32_t *n_new, err *e)
{
    *n_new += g->graph == NULL;
    return make_graph(&r, g, e);
}

err_code eng_device_prewarm(eng_device *d, int32_t batch, int32_t rows, int32_t *n_new, err *e)
{
    const int32_t block = d->config.block;
    *n_new = 0;
    TRY(usable(d, e));
    if (d->options.mode != ENG_MODE_GRAPH) return ERR_OK;
    err_code rc = d->touched ? ERR_OK : first_touch(d, e);
    if (rc != ERR_OK) return give_up(d, d->program[ENG_STEP_DRAFT], rc, e);
    for (int b = 0; b < ENG_DEVICE_BUCKETS && rows > (b > 0 ? BUCKET_ROWS[b - 1] : 0); b++)
        TRY(warm(run_of(d, ENG_STEP_INSERT, BUCKET_ROWS[b], 1, 1), &d->insert[b], n_new, e));
    for (int32_t k = 1; k <= batch; k++)
        for (int32_t n = block > 1 ? block - 1 : 1; n <= block; n++)
            TRY(warm(run_of(d, ENG_STEP_DRAFT, k * block, k, n), &d->draft[k - 1][n - 1], n_new, e));
    return ERR_OK;
}

/* ---- windows ---- */

static int64_t ring_elems(const eng_device *d) { return (int64_t)d->config.window * d->config.head_dim; }

static bf16 *ring_of(const eng_device *d, int32_t local, int32_t slot, int32_t stage)
{
    return d->rank[local].rings + ((int64_t)slot * d->config.n_stages + stage) * ring_elems(d);
}

err_code eng_device_release(eng_device *d, int32_t slot, err *e)
{
    TRY(usable(d, e));
    uint64_t bytes = (uint64_t)ring_elems(d) * (uint64_t)d->config.n_stages * sizeof(bf16);
    krn_stream s = d->stream[ENG_STEP_INSERT];
    TRY(follow_reader(d, e));
    for (int32_t r = 0; r < d->n_local; r++) TRY(krn_fill(ring_of(d, r, slot, 0), 0, bytes, s, e));
    return krn_event_record(d->written, s, e);
}

err_code eng_device_window(eng_device *d, int32_t slot, int32_t stage, bf16 *out, err *e)
{
    TRY(usable(d, e));
    TRY(krn_copy(out, ring_of(d, 0, slot, stage), (uint64_t)ring_elems(d) * sizeof(bf16), d->stream[ENG_STEP_INSERT], e));
    return wait_step(d, ENG_STEP_INSERT, NULL, e);
}

err_code eng_device_restore(eng_device *d, int32_t slot, int32_t stage, const bf16 *window, int32_t rows, err *e)
{
    TRY(usable(d, e));
    uint64_t bytes = (uint64_t)rows * (uint64_t)d->config.head_dim * sizeof(bf16);
    krn_stream s = d->stream[ENG_STEP_INSERT];
    TRY(follow_reader(d, e));
    for (int32_t r = 0; r < d->n_local; r++) TRY(krn_copy(ring_of(d, r, slot, stage), window, bytes, s, e));
    TRY(krn_event_record(d->written, s, e));
    return wait_step(d, ENG_STEP_INSERT, NULL, e); /* window may be the caller's to change at once */
}
