#include "engine/device.h"

#include "base/clock.h"
#include "base/hot.h"
#include "base/mem.h"
#include "engine/device_exec.h"
#include "engine/plan.h"
#include "kernels/markov.h"

/* A step takes milliseconds; a peer that is a minute late is not coming. */
#define COMM_DEADLINE_NS 60000000000ull
enum { WAIT_SLICE_NS = 50000000, NO_MARK = -1 };
/* Inserts run as graphs of these sizes, padded with rows that no window takes. */
static const int32_t BUCKET_ROWS[ENG_DEVICE_BUCKETS] = { 8, 16, 32, 64, ENG_INSERT_ROWS_MAX };

/* The step's small inputs, one copy: positions of an insert's rows, or a draft's anchors and last positions; then slots. */
enum { IN_POS = 0, IN_ANCHOR = 0, IN_LAST = ENG_BATCH_MAX, IN_SLOT = ENG_INSERT_ROWS_MAX,
       IN_COUNT = ENG_INSERT_ROWS_MAX + ENG_BATCH_MAX };

const int32_t *eng_device_slots(const eng_device *d) { return d->inputs + IN_SLOT; }

int32_t eng_device_groups(const eng_options *o) { return o->comm == ENG_COMM_NCCL && !o->bootstrap ? o->n_ranks : 1; }

int32_t eng_device_index(const eng_options *o, int32_t group)
{
    return o->bootstrap ? o->rank % krn_device_count() : group;
}

bool eng_device_present(void) { return krn_device_count() > 0; }

err_code eng_device_check(const eng_options *o, err *e) { return eng_device_comm_check(o, e); }

const char *eng_device_name(void)
{
    static char text[192];
    krn_device_info info;
    if (krn_device_count() == 0 || krn_device_info_get(0, &info, NULL) != ERR_OK) return "no CUDA device";
    snprintf(text, sizeof text, "%s, sm_%d%d, driver CUDA %d.%d, runtime %d.%d, NCCL %s", info.name, info.sm_major,
             info.sm_minor, info.driver_version / 1000, info.driver_version % 1000 / 10, info.runtime_version / 1000,
             info.runtime_version % 1000 / 10, eng_device_comm_version());
    return text;
}

/* ---- open ---- */

static err_code take(eng_device *d, uint64_t bytes, void **out, err *e)
{
    TRY(krn_device_alloc(bytes, out, e));
    d->bytes += bytes;
    return ERR_OK;
}

/* Places for every value of a step at its largest. */
static err_code open_values(eng_device *d, eng_device_rank *k, eng_step_kind step, err *e)
{
    const eng_program *p = d->program[step];
    int32_t rows = step == ENG_STEP_INSERT ? ENG_INSERT_ROWS_MAX : d->config.block * ENG_BATCH_MAX;
    eng_extents max = eng_extents_of(&d->config, rows, step == ENG_STEP_INSERT ? 1 : ENG_BATCH_MAX, d->config.block);
    eng_plan plan;
    TRY(eng_plan_make(p, &max, k->rank, d->n_ranks, ENG_LEVEL_HIDDEN, &plan, e));
    k->offset[step] = plan.offset;
    k->value[step] = mem_alloc((size_t)p->n_values, sizeof *k->value[step]);
    if (!k->value[step]) return err_set(e, ERR_NOMEM, "device: no memory for %d values", p->n_values);
    TRY(take(d, plan.bytes, &k->arena[step], e));
    TRY(krn_pinned_alloc(plan.bytes, (void **)&k->shadow[step], e));
    for (int32_t v = 0; v < p->n_values; v++)
        if (plan.offset[v] != UINT64_MAX) k->value[step][v] = (uint8_t *)k->arena[step] + plan.offset[v];
    return ERR_OK;
}

/* The step's own inputs are read where the one small copy puts them. */
static void bind_inputs(eng_device *d, eng_device_rank *k)
{
    const eng_program *insert = d->program[ENG_STEP_INSERT], *draft = d->program[ENG_STEP_DRAFT];
    k->value[ENG_STEP_INSERT][eng_program_find_value(insert, "pos")] = d->inputs + IN_POS;
    k->value[ENG_STEP_DRAFT][eng_program_find_value(draft, "draft.anchor")] = d->inputs + IN_ANCHOR;
    k->value[ENG_STEP_DRAFT][eng_program_find_value(draft, "draft.pos")] = d->inputs + IN_LAST;
}

static err_code open_rank(eng_device *d, const eng_device_setup *setup, eng_device_rank *k, err *e)
{
    const eng_config *c = &d->config;
    const eng_arm *arm = d->options.arm;
    TRY(eng_device_weights_open(setup->files, k->rank, d->n_ranks, arm->experts == ENG_REP_BF16, arm->dense == ENG_REP_BF16,
                                setup->quiet, &k->weights, e));
    for (int part = 0; part <= ENG_PART_SMALL; part++) d->bytes += eng_device_weights_bytes(k->weights, (eng_part)part);
    TRY(open_values(d, k, ENG_STEP_INSERT, e));
    TRY(open_values(d, k, ENG_STEP_DRAFT, e));
    bind_inputs(d, k);
    uint64_t windows = (uint64_t)d->n_slots * (uint64_t)c->n_stages * (uint64_t)c->window * (uint64_t)c->head_dim;
    TRY(take(d, windows * sizeof(bf16), (void **)&k->rings, e));
    TRY(take(d, sizeof *k->arrived, (void **)&k->arrived, e));
    return take(d, sizeof(krn_best) * KRN_MARKOV_PARTS * ENG_BATCH_MAX, (void **)&k->part, e);
}

static err_code open_streams(eng_device *d, err *e)
{
    for (int l = 0; l < ENG_DEVICE_LANES; l++) TRY(krn_stream_open(&d->lane[l], e));
    TRY(krn_stream_open(&d->side, e));
    TRY(krn_event_open(false, &d->fork, e));
    for (int l = 0; l <= ENG_DEVICE_LANES; l++) TRY(krn_event_open(false, &d->joined[l], e));
    TRY(krn_event_open(true, &d->started, e));
    TRY(krn_event_open(true, &d->ended, e));
    TRY(eng_device_units_make(d, ENG_STEP_INSERT, e));
    return eng_device_units_make(d, ENG_STEP_DRAFT, e);
}

static err_code open_group(eng_device *d, const eng_device_setup *setup, err *e)
{
    const eng_config *c = &d->config;
    TRY(krn_device_use(d->device, e));
    TRY(open_streams(d, e));
    TRY(take(d, IN_COUNT * sizeof(int32_t), (void **)&d->inputs, e));
    TRY(krn_pinned_alloc(IN_COUNT * sizeof(int32_t), (void **)&d->inputs_host, e));
    TRY(krn_pinned_alloc((uint64_t)ENG_INSERT_ROWS_MAX * (uint64_t)c->n_taps * (uint64_t)c->dim * sizeof(bf16),
                         (void **)&d->rows_host, e));
    TRY(krn_pinned_alloc(sizeof *d->mark, (void **)&d->mark, e));
    for (int i = 0; i < 2; i++)
        TRY(take(d, sizeof(krn_best) * ENG_BATCH_MAX * (uint64_t)d->n_ranks, (void **)&d->best[i], e));
    TRY(take(d, sizeof(float) * (uint64_t)c->rope_dim / 2, (void **)&d->rope_freq, e));
    TRY(krn_copy(d->rope_freq, setup->rope_freq, sizeof(float) * (uint64_t)c->rope_dim / 2, d->lane[0], e));
    for (int32_t r = 0; r < d->n_local; r++) TRY(open_rank(d, setup, &d->rank[r], e));
    bool done;
    return krn_stream_wait(d->lane[0], 0, &done, e);
}

/* Elements of the largest sum over ranks. */
static int64_t largest_sum(const eng_device_setup *setup)
{
    const eng_program *p = setup->program[ENG_STEP_DRAFT];
    const eng_config *c = eng_weights_config(setup->files);
    eng_extents max = eng_extents_of(c, c->block * ENG_BATCH_MAX, ENG_BATCH_MAX, c->block);
    int64_t most = 0;
    for (int32_t i = 0; i < p->n_ops; i++) {
        if (p->op[i].kind != ENG_OP_ALL_REDUCE) continue;
        int64_t n = eng_value_elems(p, p->op[i].in[0], &max, 0, setup->options->n_ranks);
        if (n > most) most = n;
    }
    return most;
}

err_code eng_device_open_all(const eng_device_setup *setup, eng_device **out, err *e)
{
    const eng_options *o = setup->options;
    int32_t groups = eng_device_groups(o);
    eng_device_comm *comm[ENG_RANKS_MAX] = { NULL };
    err_code rc = eng_device_check(o, e);
    for (int32_t g = 0; g < groups; g++) out[g] = NULL;
    if (rc == ERR_OK && o->n_ranks > 1) rc = eng_device_comm_open_all(o, largest_sum(setup), comm, e);
    for (int32_t g = 0; g < groups && rc == ERR_OK; g++) {
        eng_device *d = out[g] = mem_alloc(1, sizeof *d);
        if (!d) {
            rc = err_set(e, ERR_NOMEM, "device: no memory");
            break;
        }
        *d = (eng_device){ .device = eng_device_index(o, g), .n_local = o->comm == ENG_COMM_EMULATED ? o->n_ranks : 1,
                           .n_ranks = o->n_ranks, .n_slots = setup->n_slots,
                           .config = *eng_weights_config(setup->files), .options = *o, .retain = setup->retain,
                           .comm = comm[g], .deadline_ns = COMM_DEADLINE_NS,
                           .program = { setup->program[0], setup->program[1] } };
        comm[g] = NULL;
        for (int32_t r = 0; r < d->n_local; r++) d->rank[r].rank = o->bootstrap ? o->rank : g + r;
        rc = open_group(d, setup, e);
    }
    for (int32_t g = 0; g < groups && rc != ERR_OK; g++) {
        eng_device_comm_close(comm[g]);
        eng_device_close(out[g]);
        out[g] = NULL;
    }
    return rc;
}

static void close_rank(eng_device_rank *k)
{
    eng_device_weights_close(k->weights);
    for (int step = 0; step < 2; step++) {
        krn_device_free(k->arena[step]);
        krn_pinned_free(k->shadow[step]);
        free(k->value[step]);
        free(k->offset[step]);
    }
    krn_device_free(k->rings);
    krn_device_free(k->part);
    krn_device_free(k->arrived);
}

void eng_device_close(eng_device *d)
{
    err ignored; /* the device was current before: it still is one */
    if (!d) return;
    if (krn_device_use(d->device, &ignored) != ERR_OK) return;
    for (int b = 0; b < ENG_BATCH_MAX; b++)
        for (int n = 0; n < ENG_BLOCK_MAX; n++) krn_graph_close(d->draft[b][n].graph);
    for (int b = 0; b < ENG_DEVICE_BUCKETS; b++) krn_graph_close(d->insert[b].graph);
    eng_device_comm_close(d->comm);
    for (int32_t r = 0; r < d->n_local; r++) close_rank(&d->rank[r]);
    for (int step = 0; step < 2; step++) {
        for (int32_t i = 0; i < d->n_units[step]; i++) krn_event_close(d->unit[step][i].done);
        free(d->unit[step]);
        free(d->unit_of[step]);
    }
    for (int l = 0; l < ENG_DEVICE_LANES; l++) krn_stream_close(d->lane[l]);
    for (int l = 0; l <= ENG_DEVICE_LANES; l++) krn_event_close(d->joined[l]);
    krn_stream_close(d->side);
    krn_event_close(d->fork);
    krn_event_close(d->started);
    krn_event_close(d->ended);
    krn_device_free(d->rope_freq);
    krn_device_free(d->inputs);
    for (int i = 0; i < 2; i++) krn_device_free(d->best[i]);
    krn_pinned_free(d->inputs_host);
    krn_pinned_free(d->rows_host);
    krn_pinned_free(d->mark);
    free(d);
}

/* ---- running ---- */

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

/* Waits for lane 0, no longer than the deadline where ranks meet. */
static err_code wait_step(eng_device *d, err *e)
{
    uint64_t start = clock_ns();
    bool done = false;
    err_code rc = ERR_OK;
    while (!done && rc == ERR_OK) {
        rc = krn_stream_wait(d->lane[0], WAIT_SLICE_NS, &done, e);
        if (rc == ERR_OK && d->comm) rc = eng_device_comm_error(d->comm, e);
        if (rc == ERR_OK && !done && d->comm && clock_ns() - start > d->deadline_ns)
            rc = err_set(e, ERR_COMM, "not finished within %.1f s", (double)d->deadline_ns * 1e-9);
    }
    return rc;
}

static bool shown(const eng_value *v, eng_level retain)
{
    return v->level <= retain && v->level <= ENG_LEVEL_DEEP && !v->state;
}

/* Copies what is to be shown to the host, then shows it in program order. live: the step's own extents, without padding. */
static err_code show(eng_device *d, const eng_program *p, int32_t first, const eng_extents *live, const eng_tap *tap,
                     int32_t slot, int32_t row0, int32_t rows_total, err *e)
{
    eng_level retain = d->options.mode == ENG_MODE_EAGER ? ENG_LEVEL_DEEP : d->retain;
    for (int pass = 0; pass < 2; pass++) {
        for (int32_t r = 0; r < d->n_local; r++)
            for (int32_t i = first; i < p->n_ops; i++)
                for (int32_t o = 0; o < p->op[i].n_out; o++) {
                    int32_t v = p->op[i].out[o];
                    const eng_device_rank *k = &d->rank[r];
                    const eng_value *value = &p->value[v];
                    if (!shown(value, retain)) continue;
                    uint8_t *host = k->shadow[p->step] + k->offset[p->step][v];
                    if (pass == 0) {
                        int64_t elems = eng_value_elems(p, v, live, k->rank, d->n_ranks);
                        TRY(krn_copy(host, k->value[p->step][v], (uint64_t)elems * fmt_dtype_bytes(value->dtype),
                                     d->lane[0], e));
                        continue;
                    }
                    eng_site site = { p, v, k->rank, d->n_ranks, slot, row0, rows_total };
                    fmt_tensor t = { .dtype = value->dtype, .ndim = value->ndim, .data = host };
                    for (int n = 0; n < FMT_DIMS_MAX; n++) t.shape[n] = 1;
                    eng_value_shape(p, v, live, k->rank, d->n_ranks, t.shape);
                    tap->tensor(tap->ctx, &site, &t);
                }
        bool done;
        if (pass == 0) TRY(krn_stream_wait(d->lane[0], 0, &done, e));
    }
    return ERR_OK;
}

static err_code usable(const eng_device *d, err *e)
{
    if (d->failed == ERR_OK) return krn_device_use(d->device, e);
    return err_set(e, d->failed, "rank %d: stopped by an earlier failure", d->rank[0].rank);
}

static eng_device_run run_of(eng_device *d, eng_step_kind step, int32_t rows, int32_t batch, int32_t n_out)
{
    return (eng_device_run){ d, d->program[step], eng_extents_of(&d->config, rows, batch, n_out) };
}

/* Launches g, capturing it first where that was not done at open. */
static err_code launch_graph(const eng_device_run *r, eng_device_graph *g, err *e)
{
    eng_device *d = r->d;
    if (!g->graph) TRY(eng_device_capture(r, g, e));
    hot_begin();
    err_code rc = krn_event_record(d->started, d->lane[0], e);
    if (rc == ERR_OK) rc = krn_graph_launch(g->graph, d->lane[0], e);
    if (rc == ERR_OK) rc = krn_event_record(d->ended, d->lane[0], e);
    hot_end();
    return rc;
}

/* Runs what the inputs are ready for, waits, shows. g NULL: eager. */
static err_code run(const eng_device_run *r, int32_t first, eng_device_graph *g, const eng_extents *live,
                    const eng_tap *tap, int32_t slot, int32_t row0, int32_t rows_total, err *e)
{
    eng_device *d = r->d;
    *d->mark = NO_MARK;
    err_code rc = g ? launch_graph(r, g, e) : eng_device_launch(r, first, e);
    if (rc == ERR_OK) rc = wait_step(d, e);
    if (rc == ERR_OK) rc = krn_event_elapsed_us(d->started, d->ended, &d->step_us, e);
    if (rc == ERR_OK && tap) rc = show(d, r->program, first, live, tap, slot, row0, rows_total, e);
    return rc == ERR_OK ? ERR_OK : give_up(d, r->program, rc, e);
}

static int bucket_of(int32_t rows)
{
    int b = 0;
    while (BUCKET_ROWS[b] < rows) b++;
    return b;
}

err_code eng_device_run_insert(eng_device *d, const eng_device_insert *in, const eng_tap *tap, err *e)
{
    TRY(usable(d, e));
    const eng_program *p = d->program[ENG_STEP_INSERT];
    eng_extents live = eng_extents_of(&d->config, in->rows, 1, 1);
    int64_t width = eng_value_elems(p, in->at, &live, 0, 1) / in->rows;
    bool graph = d->options.mode == ENG_MODE_GRAPH && in->first_op == 0; /* from main_x on: rare, not worth a graph each */
    int bucket = bucket_of(in->rows);
    int32_t rows = graph ? BUCKET_ROWS[bucket] : in->rows;
    uint64_t live_bytes = (uint64_t)(in->rows * width) * sizeof(bf16), bytes = (uint64_t)(rows * width) * sizeof(bf16);
    memcpy(d->rows_host, in->x, live_bytes);
    memset((uint8_t *)d->rows_host + live_bytes, 0, bytes - live_bytes);
    for (int32_t i = 0; i < rows; i++)
        d->inputs_host[IN_POS + i] = i < in->rows ? in->pos[i] : -1; /* -1: no window takes it */
    d->inputs_host[IN_SLOT] = in->slot;
    TRY(krn_copy(d->inputs, d->inputs_host, IN_COUNT * sizeof(int32_t), d->lane[0], e));
    for (int32_t r = 0; r < d->n_local; r++)
        TRY(krn_copy(d->rank[r].value[ENG_STEP_INSERT][in->at], d->rows_host, bytes, d->lane[0], e));
    eng_device_run r = run_of(d, ENG_STEP_INSERT, rows, 1, 1);
    return run(&r, in->first_op, graph ? &d->insert[bucket] : NULL, &live, tap, in->slot, in->row0, in->rows_total, e);
}

err_code eng_device_run_draft(eng_device *d, const eng_device_draft *in, const eng_tap *tap, err *e)
{
    TRY(usable(d, e));
    const eng_program *p = d->program[ENG_STEP_DRAFT];
    int32_t rows = in->batch * d->config.block;
    for (int32_t b = 0; b < in->batch; b++) {
        d->inputs_host[IN_ANCHOR + b] = in->anchors[b];
        d->inputs_host[IN_LAST + b] = in->pos[b];
        d->inputs_host[IN_SLOT + b] = in->slots[b];
    }
    TRY(krn_copy(d->inputs, d->inputs_host, IN_COUNT * sizeof(int32_t), d->lane[0], e));
    eng_device_run r = run_of(d, ENG_STEP_DRAFT, rows, in->batch, in->n_out);
    eng_device_graph *g = d->options.mode == ENG_MODE_GRAPH ? &d->draft[in->batch - 1][in->n_out - 1] : NULL;
    TRY(run(&r, 0, g, &r.x, tap, FMT_TAPE_NO_SLOT, 0, rows, e));
    const eng_device_rank *k = &d->rank[0];
    static const char *const OUTPUTS[] = { "drafts", "confidence" };
    for (size_t i = 0; i < COUNT_OF(OUTPUTS); i++) {
        int32_t v = eng_program_find_value(p, OUTPUTS[i]);
        uint64_t bytes = (uint64_t)(in->batch * in->n_out) * fmt_dtype_bytes(p->value[v].dtype);
        uint8_t *host = k->shadow[ENG_STEP_DRAFT] + k->offset[ENG_STEP_DRAFT][v];
        TRY(krn_copy(host, k->value[ENG_STEP_DRAFT][v], bytes, d->lane[0], e));
    }
    bool done;
    return krn_stream_wait(d->lane[0], 0, &done, e);
}

/* ---- around steps ---- */

/* Runs both steps once where no state can change (no live row, no tap), so that kernels are loaded and the ranks connected
 * before anything is captured. */
static err_code first_touch(eng_device *d, err *e)
{
    for (int32_t i = 0; i < ENG_INSERT_ROWS_MAX; i++) d->inputs_host[i] = -1;
    d->inputs_host[IN_SLOT] = 0;
    TRY(krn_copy(d->inputs, d->inputs_host, IN_COUNT * sizeof(int32_t), d->lane[0], e));
    eng_device_run insert = run_of(d, ENG_STEP_INSERT, BUCKET_ROWS[0], 1, 1);
    TRY(run(&insert, 0, NULL, NULL, NULL, 0, 0, 0, e));
    d->inputs_host[IN_ANCHOR] = d->inputs_host[IN_LAST] = 0;
    TRY(krn_copy(d->inputs, d->inputs_host, IN_COUNT * sizeof(int32_t), d->lane[0], e));
    eng_device_run draft = run_of(d, ENG_STEP_DRAFT, d->config.block, 1, d->config.block);
    return run(&draft, 0, NULL, NULL, NULL, FMT_TAPE_NO_SLOT, 0, 0, e);
}

err_code eng_device_prewarm(eng_device *d, err *e)
{
    TRY(usable(d, e));
    if (d->options.mode != ENG_MODE_GRAPH) return ERR_OK;
    TRY(first_touch(d, e));
    for (int b = 0; b < ENG_DEVICE_BUCKETS; b++) {
        eng_device_run r = run_of(d, ENG_STEP_INSERT, BUCKET_ROWS[b], 1, 1);
        TRY(eng_device_capture(&r, &d->insert[b], e));
    }
    for (int32_t batch = 1; batch <= ENG_BATCH_MAX; batch++)
        for (int32_t n = d->config.block > 1 ? d->config.block - 1 : 1; n <= d->config.block; n++) {
            eng_device_run r = run_of(d, ENG_STEP_DRAFT, batch * d->config.block, batch, n);
            TRY(eng_device_capture(&r, &d->draft[batch - 1][n - 1], e));
        }
    return ERR_OK;
}

void eng_device_drafts(const eng_device *d, int32_t n, int32_t *drafts, float *confidence)
{
    const eng_program *p = d->program[ENG_STEP_DRAFT];
    const eng_device_rank *k = &d->rank[0];
    const uint8_t *shadow = k->shadow[ENG_STEP_DRAFT];
    memcpy(drafts, shadow + k->offset[ENG_STEP_DRAFT][eng_program_find_value(p, "drafts")], (size_t)n * sizeof *drafts);
    memcpy(confidence, shadow + k->offset[ENG_STEP_DRAFT][eng_program_find_value(p, "confidence")],
           (size_t)n * sizeof *confidence);
}

static int64_t ring_elems(const eng_device *d) { return (int64_t)d->config.window * d->config.head_dim; }

err_code eng_device_release(eng_device *d, int32_t slot, err *e)
{
    TRY(usable(d, e));
    uint64_t bytes = (uint64_t)ring_elems(d) * (uint64_t)d->config.n_stages * sizeof(bf16);
    for (int32_t r = 0; r < d->n_local; r++)
        TRY(krn_fill((uint8_t *)d->rank[r].rings + (uint64_t)slot * bytes, 0, bytes, d->lane[0], e));
    return ERR_OK;
}

err_code eng_device_window(eng_device *d, int32_t slot, int32_t stage, bf16 *out, err *e)
{
    bool done;
    TRY(usable(d, e));
    const bf16 *ring = d->rank[0].rings + ((int64_t)slot * d->config.n_stages + stage) * ring_elems(d);
    TRY(krn_copy(out, ring, (uint64_t)ring_elems(d) * sizeof(bf16), d->lane[0], e));
    return krn_stream_wait(d->lane[0], 0, &done, e);
}

void eng_device_set_deadline(eng_device *d, uint64_t deadline_ns) { d->deadline_ns = deadline_ns; }
uint64_t eng_device_bytes(const eng_device *d) { return d->bytes; }
double eng_device_step_us(const eng_device *d) { return d->step_us; }

eng_device_counts eng_device_draft_counts(const eng_device *d, int32_t batch, int32_t n_out)
{
    const eng_device_graph *g = &d->draft[batch - 1][n_out - 1];
    eng_device_counts n = { .eager_launches = d->launches };
    if (!g->graph) return n;
    n.captured_launches = g->launches;
    n.graph_kernels = krn_graph_kernels(g->graph);
    n.graph_nodes = krn_graph_nodes(g->graph);
    return n;
}
