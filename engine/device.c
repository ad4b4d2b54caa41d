#include "engine/device.h"

#include <limits.h>

#include "base/mem.h"
#include "engine/device_exec.h"
#include "engine/plan.h"
#include "kernels/experts_kx2.h"
#include "kernels/markov.h"

/* A step takes milliseconds; a peer that is a minute late is not coming. */
#define COMM_DEADLINE_NS 60000000000ull
#define CLOSE_DEADLINE_NS 10000000000ull

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
    k->offset[step] = plan.offset; /* the rest of the plan is for poison, which no device has */
    free(plan.room);
    free(plan.last);
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
    int32_t *of_insert = d->inputs[ENG_STEP_INSERT], *of_draft = d->inputs[ENG_STEP_DRAFT];
    k->value[ENG_STEP_INSERT][eng_program_find_value(insert, "pos")] = of_insert + ENG_DEVICE_IN_POS;
    k->value[ENG_STEP_INSERT][d->taps] = (uint8_t *)of_insert + ENG_DEVICE_IN_BYTES;
    k->value[ENG_STEP_DRAFT][eng_program_find_value(draft, "draft.anchor")] = of_draft + ENG_DEVICE_IN_ANCHOR;
    k->value[ENG_STEP_DRAFT][eng_program_find_value(draft, "draft.pos")] = of_draft + ENG_DEVICE_IN_LAST;
}

/* The arm's table of Markov terms, made on the device. */
static err_code open_markov(eng_device *d, eng_device_rank *k, err *e)
{
    const eng_config *c = &d->config;
    const eng_markov m = d->options.reps.markov;
    const krn_weight *embed = eng_device_weight(k->weights, ENG_W_MARKOV_EMBED, -1);
    const krn_weight *head = eng_device_weight(k->weights, ENG_W_MARKOV_HEAD, -1);
    const int32_t rows = eng_markov_rows(c, m);
    bool done;
    eng_markov_table_empty(m, &k->markov);
    if (m == ENG_MARKOV_FACTORISED) return ERR_OK;
    const uint64_t index_bytes = (uint64_t)c->vocab * sizeof(int32_t);
    TRY(take(d, index_bytes, (void **)&k->markov.row, e));
    TRY(take(d, eng_markov_table_bytes(c, m, head->n) - index_bytes + 1, &k->markov.term, e));
    int32_t *row = mem_alloc((size_t)c->vocab, sizeof *row);
    if (!row) return err_set(e, ERR_NOMEM, "no memory for the index of %d Markov terms", rows);
    for (int32_t t = 0; t < c->vocab; t++) row[t] = t < rows ? t : -1;
    err_code rc = krn_copy(k->markov.row, row, index_bytes, d->lane[0], e);
    if (rc == ERR_OK) /* the first entries of row are the tokens themselves */
        rc = krn_markov_terms(embed->data, head->data, embed->n, c->markov_rank, head->n, k->markov.row, rows,
                              m == ENG_MARKOV_CACHE, k->markov.term, d->lane[0], e);
    err_code waited = krn_stream_wait(d->lane[0], 0, &done, rc == ERR_OK ? e : NULL);
    free(row);
    k->markov.view.row = k->markov.row;
    k->markov.view.term = k->markov.term;
    return rc == ERR_OK ? waited : rc;
}

static err_code open_rank(eng_device *d, const eng_device_setup *setup, eng_device_rank *k, err *e)
{
    const eng_config *c = &d->config;
    TRY(eng_device_weights_open(setup->files, k->rank, d->n_ranks, &d->options.reps, d->options.arm->kx,
                                setup->quiet, &k->weights, e));
    for (int part = 0; part <= ENG_PART_SMALL; part++) d->bytes += eng_device_weights_bytes(k->weights, (eng_part)part);
    TRY(open_values(d, k, ENG_STEP_INSERT, e));
    TRY(open_values(d, k, ENG_STEP_DRAFT, e));
    bind_inputs(d, k);
    TRY(open_markov(d, k, e));
    if (d->options.arm->kx2) {
        const uint64_t bytes = (uint64_t)krn_kx2_progress_bytes(c->n_experts);
        TRY(take(d, bytes, (void **)&k->experts, e));
        TRY(krn_fill(k->experts, 0, bytes, d->lane[0], e));
    }
    uint64_t windows = (uint64_t)d->n_slots * (uint64_t)c->n_stages * (uint64_t)c->window * (uint64_t)c->head_dim;
    return take(d, windows * sizeof(bf16), (void **)&k->rings, e);
}

static err_code open_streams(eng_device *d, err *e)
{
    for (int l = 0; l < ENG_DEVICE_LANES; l++) TRY(krn_stream_open(&d->lane[l], e));
    TRY(krn_stream_open(&d->side, e));
    d->stream[ENG_STEP_DRAFT] = d->lane[0];
    TRY(krn_stream_open(&d->stream[ENG_STEP_INSERT], e));
    TRY(krn_event_open(false, &d->written, e));
    TRY(krn_event_open(false, &d->read, e));
    TRY(krn_event_open(false, &d->fork, e));
    for (int l = 0; l <= ENG_DEVICE_LANES; l++) TRY(krn_event_open(false, &d->joined[l], e));
    for (int i = 0; i < 2; i++) TRY(krn_event_open(false, &d->taken[i], e));
    TRY(krn_event_open(false, &d->answered, e));
    TRY(krn_event_open(true, &d->started, e));
    TRY(krn_event_open(true, &d->ended, e));
    TRY(eng_device_units_make(d, ENG_STEP_INSERT, e));
    return eng_device_units_make(d, ENG_STEP_DRAFT, e);
}

/* Room for the largest product with an EXL3 weight of a step. */
static err_code open_scratch(eng_device *d, eng_step_kind step, err *e)
{
    const eng_program *p = d->program[step];
    const int32_t rows = step == ENG_STEP_INSERT ? ENG_INSERT_ROWS_MAX : d->config.block * ENG_BATCH_MAX;
    uint64_t bytes = 0;
    for (int32_t i = 0; i < p->n_ops; i++)
        for (int32_t r = 0; r < d->n_local; r++) {
            const eng_op *op = &p->op[i];
            uint64_t wanted = 0;
            if (!op->n_weights || !eng_reps_exl3(&p->reps, op->weight[0])) continue;
            if (op->kind == ENG_OP_LINEAR) {
                const krn_weight *w = eng_device_weight(d->rank[r].weights, op->weight[0], op->stage);
                wanted = krn_exl3_linear_scratch(rows, w->n, w->k);
            } else {
                const bool w2 = op->kind == ENG_OP_EXPERTS_DOWN;
                const krn_exl3_bank *b = eng_device_experts_exl3(d->rank[r].weights, op->stage, w2);
                wanted = krn_exl3_experts_scratch(rows, d->config.n_active, b->n, b->k);
            }
            if (wanted > bytes) bytes = wanted;
        }
    for (int l = 0; l < ENG_DEVICE_LANES && bytes; l++) {
        d->exl3[step][l].bytes = bytes;
        TRY(take(d, bytes, &d->exl3[step][l].memory, e));
    }
    return ERR_OK;
}

/* Which launches run the experts: as the options say, or as was measured on this card. */
static err_code find_dispatch(eng_device *d, const eng_device_setup *setup, err *e)
{
    char path[PATH_MAX], note[ERR_MSG_BYTES];
    d->dispatch = d->options.dispatch ? *d->options.dispatch : eng_dispatch_default();
    if (!d->options.arm->kx2 || d->options.dispatch) return ERR_OK;
    TRY(eng_dispatch_path(eng_weights_folder(setup->files), path, sizeof path, e));
    TRY(eng_dispatch_read(path, eng_device_name(), &d->dispatch, note, e));
    if (note[0] && !setup->quiet && d->rank[0].rank == 0) fprintf(stderr, "note: %s\n", note);
    return ERR_OK;
}

static err_code open_group(eng_device *d, const eng_device_setup *setup, err *e)
{
    const eng_config *c = &d->config;
    TRY(krn_device_use(d->device, e));
    TRY(find_dispatch(d, setup, e));
    TRY(open_streams(d, e));
    uint64_t rows_bytes = (uint64_t)ENG_INSERT_ROWS_MAX * (uint64_t)c->n_taps * (uint64_t)c->dim * sizeof(bf16);
    TRY(take(d, ENG_DEVICE_IN_BYTES + rows_bytes, (void **)&d->inputs[ENG_STEP_INSERT], e));
    TRY(take(d, ENG_DEVICE_IN_BYTES, (void **)&d->inputs[ENG_STEP_DRAFT], e));
    TRY(krn_pinned_alloc(sizeof *d->mark, (void **)&d->mark, e));
    for (int i = 0; i < 2; i++) {
        TRY(krn_pinned_alloc(ENG_DEVICE_IN_BYTES + rows_bytes, (void **)&d->host[i], e));
        TRY(take(d, sizeof(krn_best) * KRN_MARKOV_PARTS * ENG_BATCH_MAX * (uint64_t)d->n_ranks, (void **)&d->best[i], e));
    }
    TRY(take(d, sizeof(float) * (uint64_t)c->rope_dim / 2, (void **)&d->rope_freq, e));
    TRY(krn_copy(d->rope_freq, setup->rope_freq, sizeof(float) * (uint64_t)c->rope_dim / 2, d->lane[0], e));
    for (int32_t r = 0; r < d->n_local; r++) TRY(open_rank(d, setup, &d->rank[r], e));
    for (int step = 0; step < 2; step++) TRY(open_scratch(d, (eng_step_kind)step, e));
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
    for (int32_t g = 0; g < groups; g++) out[g] = NULL;
    err_code rc = o->n_ranks > 1 ? eng_device_comm_open_all(o, largest_sum(setup), comm, e) : eng_device_check(o, e);
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
                           .program = { setup->program[0], setup->program[1] },
                           .taps = eng_program_find_value(setup->program[ENG_STEP_INSERT], "taps"),
                           .drafts = eng_program_find_value(setup->program[ENG_STEP_DRAFT], "drafts"),
                           .confidence = eng_program_find_value(setup->program[ENG_STEP_DRAFT], "confidence") };
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
    krn_device_free(k->experts);
    krn_device_free(k->markov.row);
    krn_device_free(k->markov.term);
}

void eng_device_close(eng_device *d)
{
    err ignored; /* the device was current before: it still is one */
    err_code last = ERR_OK;
    bool done;
    if (!d) return;
    if (krn_device_use(d->device, &ignored) != ERR_OK) return;
    /* An insert may still run. Whatever the device says to that now, the memory goes. */
    for (int step = 0; step < 2 && d->failed == ERR_OK && last == ERR_OK; step++)
        if (d->stream[step]) last = krn_stream_wait(d->stream[step], CLOSE_DEADLINE_NS, &done, &ignored);
    for (int b = 0; b < ENG_BATCH_MAX; b++)
        for (int n = 0; n < ENG_BLOCK_MAX; n++) krn_graph_close(d->draft[b][n].graph);
    for (int b = 0; b < ENG_DEVICE_BUCKETS; b++) krn_graph_close(d->insert[b].graph);
    eng_device_comm_close(d->comm);
    for (int32_t r = 0; r < d->n_local; r++) close_rank(&d->rank[r]);
    for (int step = 0; step < 2; step++) {
        for (int32_t i = 0; i < d->n_units[step]; i++) krn_event_close(d->unit[step][i].done);
        free(d->unit[step]);
        free(d->unit_of[step]);
        for (int l = 0; l < ENG_DEVICE_LANES; l++) krn_device_free(d->exl3[step][l].memory);
    }
    for (int l = 0; l < ENG_DEVICE_LANES; l++) krn_stream_close(d->lane[l]);
    for (int l = 0; l <= ENG_DEVICE_LANES; l++) krn_event_close(d->joined[l]);
    krn_stream_close(d->side);
    krn_stream_close(d->stream[ENG_STEP_INSERT]);
    krn_event_close(d->written);
    krn_event_close(d->read);
    krn_event_close(d->fork);
    krn_event_close(d->started);
    krn_event_close(d->ended);
    krn_event_close(d->answered);
    krn_device_free(d->rope_freq);
    for (int i = 0; i < 2; i++) {
        krn_event_close(d->taken[i]);
        krn_device_free(d->best[i]);
        krn_device_free(d->inputs[i]);
        krn_pinned_free(d->host[i]);
    }
    krn_pinned_free(d->mark);
    free(d);
}

/* ---- what it is ---- */

void eng_device_set_deadline(eng_device *d, uint64_t deadline_ns) { d->deadline_ns = deadline_ns; }
uint64_t eng_device_bytes(const eng_device *d) { return d->bytes; }

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
