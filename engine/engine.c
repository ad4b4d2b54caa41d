#include "engine/engine.h"

#include "base/cpu.h"
#include "base/mem.h"
#include "engine/device.h"
#include "engine/exec.h"
#include "engine/fault.h"
#include "engine/poison.h"
#include "engine/shots_fill.h"
#include "kernels/rope.h"

#include <pthread.h>
#ifdef _OPENMP
#include <omp.h>
#endif

/* Longer than any step on a slow machine; a rank that died makes the others fail at once, not at the deadline. */
#define COMM_DEADLINE_NS 600000000000ull

typedef struct rank_state {
    eng_rank_weights *weights;
    eng_step insert, draft;
    bf16 *rings; /* [n_slots][n_stages][window][head_dim] */
    eng_markov_table markov;
} rank_state;

typedef struct slot_state { int32_t first, last; } slot_state; /* positions; last -1: empty */

/* What the workers are to run; written by the caller while they wait. */
typedef enum task_kind { TASK_INSERT, TASK_DRAFT, TASK_PREWARM } task_kind;
typedef struct task {
    task_kind kind;
    int32_t first_op, slot, row0, rows_total;
    int32_t warm_batch, warm_rows; /* prewarm: up to how much */
    const eng_tap *tap;
    eng_device_insert insert; /* the step as a device wants it */
    eng_device_draft draft;
} task;

struct eng_engine {
    const eng_weights *files;
    eng_options o;
    eng_level retain;
    eng_config config;
    eng_program *program[2]; /* by eng_step_kind */
    int32_t n_slots;
    slot_state *slots;
    float *rope_freq;
    eng_comm *comm;
    rank_state *rank;                   /* [n_ranks]; NULL on the CUDA backend */
    eng_device *device[ENG_RANKS_MAX];  /* [n_workers]; NULL on the CPU */
    bf16 *window;                       /* CUDA: the window that eng_window shows */
    err worker_error[ENG_RANKS_MAX];    /* of the last task */
    int32_t n_warmed[ENG_RANKS_MAX];    /* graphs that the last prewarm captured; every group as many */
    err failed; /* sticky: after a failed step nothing is trusted */

    pthread_t thread[ENG_RANKS_MAX];
    int32_t n_workers;                  /* ranks, or groups of ranks that share a device; the caller is worker 0 */
    int32_t n_threads;
    pthread_mutex_t lock;
    pthread_cond_t go, done;
    uint64_t generation;
    int32_t n_running;
    bool quit;
    task task;
};

typedef struct worker { eng_engine *g; int32_t index; } worker;

static bool on_device(const eng_engine *g) { return g->o.backend == ENG_BACKEND_CUDA; }

/* The calling thread's share of the threads: an OpenMP setting of that thread alone. */
static void use_threads(const eng_options *o)
{
#ifdef _OPENMP
    int32_t all = o->threads > 0 ? o->threads : cpu_count();
    omp_set_num_threads(all / o->n_ranks > 0 ? all / o->n_ranks : 1);
#else
    (void)o;
#endif
}

static int32_t window_rows(const eng_engine *g, int32_t last)
{
    return last + 1 < g->config.window ? last + 1 : g->config.window;
}

/* The windows of a draft as it sees them: its own ops leave them alone. */
static void keep_windows(const eng_engine *g, const eng_step *s, const eng_device_draft *in, eng_shot *shot)
{
    int32_t stage = 0;
    for (int32_t v = 0; v < s->program->n_values; v++) {
        if (!s->program->value[v].state) continue;
        for (int32_t b = 0; b < in->batch; b++) {
            fmt_tensor t = fmt_tensor_make(FMT_DTYPE_BF16, s->ring[b][stage], 2,
                                           (const int64_t[]){ window_rows(g, in->pos[b]), g->config.head_dim });
            eng_shot_put(shot, s->rank, v, b, 0, &t);
        }
        stage++; /* each stage has one, in order */
    }
}

static err_code run_rank(eng_engine *g, int32_t rank, err *e)
{
    const task *t = &g->task;
    eng_step *s = t->kind == TASK_INSERT ? &g->rank[rank].insert : &g->rank[rank].draft;
    const eng_tap *tap = t->tap && (t->tap->tensor || t->tap->shot) ? t->tap : NULL;
    bool eager = g->o.mode == ENG_MODE_EAGER || (t->tap && t->tap->traced);
    if (rank == 0 && t->kind == TASK_DRAFT && tap && tap->shot) keep_windows(g, s, &t->draft, tap->shot);
    err_code rc = eager ? eng_step_eager(s, t->first_op, s->program->n_ops - 1, tap, t->slot, t->row0, t->rows_total, e)
                        : eng_step_planned(s, t->first_op, g->retain, tap, t->slot, t->row0, t->rows_total, e);
    if (rc != ERR_OK && g->comm) eng_comm_give_up(g->comm, rank, e->msg);
    return rc;
}

static void run_worker(eng_engine *g, int32_t index)
{
    const task *t = &g->task;
    err *e = &g->worker_error[index];
    eng_device *d = g->device[index];
    *e = (err){ 0 };
    err_code rc;
    if (!on_device(g)) rc = run_rank(g, index, e);
    else if (t->kind == TASK_INSERT) rc = eng_device_run_insert(d, &t->insert, t->tap, e);
    else if (t->kind == TASK_DRAFT) rc = eng_device_run_draft(d, &t->draft, t->tap, e);
    else rc = eng_device_prewarm(d, t->warm_batch, t->warm_rows, &g->n_warmed[index], e);
    CHECK(rc == e->code);
}

static void *worker_thread(void *arg)
{
    worker w = *(worker *)arg;
    free(arg);
    eng_engine *g = w.g;
    use_threads(&g->o);
    uint64_t seen = 0;
    pthread_mutex_lock(&g->lock);
    for (;;) {
        while (!g->quit && g->generation == seen) pthread_cond_wait(&g->go, &g->lock);
        if (g->quit) break;
        seen = g->generation;
        pthread_mutex_unlock(&g->lock);
        run_worker(g, w.index);
        pthread_mutex_lock(&g->lock);
        if (--g->n_running == 0) pthread_cond_signal(&g->done);
    }
    pthread_mutex_unlock(&g->lock);
    return NULL;
}

/* Runs g->task on all workers. */
static err_code run_all(eng_engine *g, err *e)
{
    use_threads(&g->o);
    pthread_mutex_lock(&g->lock);
    g->n_running = g->n_threads;
    g->generation++;
    pthread_cond_broadcast(&g->go);
    pthread_mutex_unlock(&g->lock);
    run_worker(g, 0);
    pthread_mutex_lock(&g->lock);
    while (g->n_running > 0) pthread_cond_wait(&g->done, &g->lock);
    pthread_mutex_unlock(&g->lock);
    for (int32_t i = 0; i < g->n_workers; i++)
        if (g->worker_error[i].code != ERR_OK) {
            g->failed = g->worker_error[i];
            if (e) *e = g->failed;
            return g->failed.code;
        }
    return ERR_OK;
}

static err_code open_rank(eng_engine *g, int32_t rank, bool quiet, err *e)
{
    rank_state *r = &g->rank[rank];
    const eng_config *c = &g->config;
    TRY(eng_rank_weights_open(g->files, rank, g->o.n_ranks, &g->o.reps, quiet, &r->weights, e));
    TRY(eng_step_init(&r->insert, g->program[ENG_STEP_INSERT], r->weights, &g->o, rank, g->o.n_ranks, g->comm,
                      g->rope_freq, ENG_INSERT_ROWS_MAX, 1, g->retain, e));
    TRY(eng_step_init(&r->draft, g->program[ENG_STEP_DRAFT], r->weights, &g->o, rank, g->o.n_ranks, g->comm,
                      g->rope_freq, c->block * ENG_BATCH_MAX, ENG_BATCH_MAX, g->retain, e));
    TRY(eng_markov_table_open(r->weights, c, g->o.reps.markov, g->o.acc, quiet, &r->markov, e));
    r->draft.markov = r->markov.table;
    size_t window_elems = (size_t)c->window * (size_t)c->head_dim;
    r->rings = mem_alloc_aligned((size_t)g->n_slots * (size_t)c->n_stages * window_elems, sizeof(bf16));
    if (!r->rings) return err_set(e, ERR_NOMEM, "engine: no memory for the windows of %d slots", g->n_slots);
    r->insert.poison = r->draft.poison = g->o.poison;
    eng_poison_fill(g->o.poison, FMT_DTYPE_BF16, r->rings,
                    (size_t)g->n_slots * (size_t)c->n_stages * window_elems * sizeof(bf16));
    return ERR_OK;
}

static err_code start_threads(eng_engine *g, err *e)
{
    for (int32_t i = 1; i < g->n_workers; i++) {
        worker *w = mem_alloc(1, sizeof *w);
        if (!w) return err_set(e, ERR_NOMEM, "engine: no memory for rank %d", i);
        *w = (worker){ g, i };
        if (pthread_create(&g->thread[g->n_threads], NULL, worker_thread, w) != 0) {
            free(w);
            return err_set(e, ERR_SYSTEM, "engine: the thread of rank %d cannot be started", i);
        }
        g->n_threads++;
    }
    return ERR_OK;
}

static err_code open_ranks(eng_engine *g, bool quiet, err *e)
{
    g->rank = mem_alloc((size_t)g->o.n_ranks, sizeof *g->rank);
    if (!g->rank) return err_set(e, ERR_NOMEM, "engine: no memory for %d ranks", g->o.n_ranks);
    if (g->o.n_ranks > 1) TRY(eng_comm_open(g->o.n_ranks, COMM_DEADLINE_NS, &g->comm, e));
    use_threads(&g->o);
    for (int32_t r = 0; r < g->o.n_ranks; r++) TRY(open_rank(g, r, quiet, e));
    g->n_workers = g->o.n_ranks;
    return start_threads(g, e);
}

static err_code open_devices(eng_engine *g, bool quiet, err *e)
{
    const eng_program *const program[2] = { g->program[0], g->program[1] };
    eng_device_setup setup = { g->files, &g->o, program, g->rope_freq, g->n_slots, g->retain, quiet };
    g->window = mem_alloc((size_t)g->config.window * (size_t)g->config.head_dim, sizeof *g->window);
    if (!g->window) return err_set(e, ERR_NOMEM, "engine: no memory for a window");
    TRY(eng_device_open_all(&setup, g->device, e));
    g->n_workers = eng_device_groups(&g->o);
    TRY(start_threads(g, e));
    return eng_prewarm(g, g->o.lazy ? 0 : ENG_BATCH_MAX, g->o.lazy ? 0 : ENG_INSERT_ROWS_MAX, NULL, e);
}

static err_code open_all(eng_engine *g, bool quiet, err *e)
{
    const eng_config *c = &g->config;
    for (int k = 0; k < 2; k++)
        TRY(eng_program_make(c, (eng_step_kind)k, g->o.n_ranks, g->o.combine, &g->o.reps, &g->program[k], e));
    if (g->o.fault) TRY(eng_fault_resolve(g->o.fault, g->program, &g->o, e));
    g->slots = mem_alloc((size_t)g->n_slots, sizeof *g->slots);
    g->rope_freq = mem_alloc((size_t)c->rope_dim / 2, sizeof *g->rope_freq);
    if (!g->slots || !g->rope_freq) return err_set(e, ERR_NOMEM, "engine: no memory for %d slots", g->n_slots);
    for (int32_t i = 0; i < g->n_slots; i++) g->slots[i].last = -1;
    krn_rope_freqs(c->rope_theta, c->rope_dim, g->rope_freq);
    return on_device(g) ? open_devices(g, quiet, e) : open_ranks(g, quiet, e);
}

err_code eng_open(const eng_weights *w, const eng_options *o, int32_t n_slots, eng_level retain, bool quiet,
                  eng_engine **out, err *e)
{
    *out = NULL;
    const eng_config *c = eng_weights_config(w);
    if (o->poison && o->backend == ENG_BACKEND_CUDA)
        return err_set(e, ERR_ARG, "poison: found --backend cuda, wanted cpu");
    if (o->n_ranks > 1 && o->arm->unsharded)
        return err_set(e, ERR_ARG, "arm %s is unsharded: found --tp %d, wanted 1", o->arm->name, o->n_ranks);
    TRY(eng_cut_check(c, o->n_ranks, e));
    if (eng_weights_need(w, &o->reps, e) != ERR_OK) return err_wrap(e, "arm %s", o->arm->name);
    eng_engine *g = mem_alloc(1, sizeof *g);
    if (!g) return err_set(e, ERR_NOMEM, "engine: no memory");
    g->files = w;
    g->o = *o;
    g->retain = retain;
    g->config = *c;
    g->n_slots = n_slots;
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->go, NULL);
    pthread_cond_init(&g->done, NULL);
    err_code rc = open_all(g, quiet, e);
    if (rc != ERR_OK) {
        eng_close(g);
        return rc;
    }
    *out = g;
    return ERR_OK;
}

void eng_close(eng_engine *g)
{
    if (!g) return;
    pthread_mutex_lock(&g->lock);
    g->quit = true;
    pthread_cond_broadcast(&g->go);
    pthread_mutex_unlock(&g->lock);
    for (int32_t i = 0; i < g->n_threads; i++) pthread_join(g->thread[i], NULL);
    for (int32_t r = 0; g->rank && r < g->o.n_ranks; r++) {
        eng_step_fini(&g->rank[r].insert);
        eng_step_fini(&g->rank[r].draft);
        eng_rank_weights_close(g->rank[r].weights);
        eng_markov_table_close(&g->rank[r].markov);
        free(g->rank[r].rings);
    }
    free(g->rank);
    for (int32_t i = 0; i < ENG_RANKS_MAX; i++) eng_device_close(g->device[i]);
    free(g->window);
    eng_comm_close(g->comm);
    for (int k = 0; k < 2; k++) eng_program_free(g->program[k]);
    free(g->slots);
    free(g->rope_freq);
    pthread_cond_destroy(&g->done);
    pthread_cond_destroy(&g->go);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

err_code eng_prewarm(eng_engine *g, int32_t batch, int32_t rows, int32_t *n_new, err *e)
{
    if (n_new) *n_new = 0;
    if (batch < 0 || batch > ENG_BATCH_MAX || rows < 0 || rows > ENG_INSERT_ROWS_MAX)
        return err_set(e, ERR_ARG, "prewarm: %d slots, %d rows, wanted at most %d and %d", batch, rows, (int)ENG_BATCH_MAX,
                       (int)ENG_INSERT_ROWS_MAX);
    if (!on_device(g)) return ERR_OK;
    g->task = (task){ .kind = TASK_PREWARM, .warm_batch = batch, .warm_rows = rows };
    TRY(run_all(g, e));
    if (n_new) *n_new = g->n_warmed[0];
    return ERR_OK;
}

const eng_config *eng_config_of(const eng_engine *g) { return &g->config; }
const eng_options *eng_options_of(const eng_engine *g) { return &g->o; }
const eng_program *eng_program_of(const eng_engine *g, eng_step_kind step) { return g->program[step]; }
eng_level eng_retain_of(const eng_engine *g) { return g->retain; }

static bf16 *ring_of(const eng_engine *g, int32_t rank, int32_t slot, int32_t stage)
{
    const eng_config *c = &g->config;
    return g->rank[rank].rings + ((int64_t)slot * c->n_stages + stage) * c->window * c->head_dim;
}

static err_code check_slot(const eng_engine *g, int32_t slot, err *e)
{
    if (g->failed.code != ERR_OK) {
        err earlier = g->failed;
        err_wrap(&earlier, "engine stopped by an earlier failure");
        if (e) *e = earlier;
        return earlier.code;
    }
    if (slot < 0 || slot >= g->n_slots)
        return err_set(e, ERR_INPUT, "slot %d: wanted 0 to %d", slot, g->n_slots - 1);
    return ERR_OK;
}

/* ---- insert ---- */

static bool finite_rows(const bf16 *x, int64_t n, int64_t *bad)
{
    enum { BLOCK = 4096 }; /* counted without a way out, so that the loop is vectorised: rows of a request pass here */
    for (int64_t first = 0; first < n; first += BLOCK) {
        int64_t end = first + BLOCK < n ? first + BLOCK : n;
        uint32_t count = 0;
        for (int64_t i = first; i < end; i++) count += (x[i] & 0x7f80) == 0x7f80;
        if (!count) continue;
        for (*bad = first; (x[*bad] & 0x7f80) != 0x7f80;) ++*bad;
        return false;
    }
    return true;
}

/* Points a CPU rank's step at the rows of the caller. */
static void bind_insert(eng_engine *g, int32_t rank, const eng_device_insert *in)
{
    eng_step *s = &g->rank[rank].insert;
    s->x = eng_extents_of(&g->config, in->rows, 1, 1);
    s->value[in->at] = (void *)(uintptr_t)in->x; /* read only */
    s->value[eng_program_find_value(s->program, "pos")] = (void *)(uintptr_t)in->pos;
    s->slot[0] = in->slot;
    for (int32_t k = 0; k < g->config.n_stages; k++) s->ring[0][k] = ring_of(g, rank, in->slot, k);
}

/* rows of x ([rows, width]) enter the program at value `at`; ops before first_op are skipped. */
static err_code insert_rows(eng_engine *g, int32_t slot, const char *at, const bf16 *x, int64_t width, int32_t first_op,
                            const int32_t *pos, int32_t rows, const eng_tap *tap, err *e)
{
    TRY(check_slot(g, slot, e));
    slot_state *state = &g->slots[slot];
    int64_t bad = 0;
    if (rows < 1) return err_set(e, ERR_INPUT, "slot %d: insert of %d rows, wanted 1 or more", slot, rows);
    for (int32_t i = 0; i < rows; i++) {
        int32_t wanted = i > 0 ? pos[i - 1] + 1 : state->last + 1;
        if (pos[i] < 0 || ((i > 0 || state->last >= 0) && pos[i] != wanted))
            return err_set(e, ERR_INPUT, "slot %d: position %d at row %d, wanted %d", slot, pos[i], i, wanted);
    }
    if (!finite_rows(x, rows * width, &bad))
        return err_set(e, ERR_INPUT, "slot %d: %s row %lld column %lld is not finite", slot, at, (long long)(bad / width),
                       (long long)(bad % width));
    if (tap && tap->shot) TRY(eng_shot_begin(tap->shot, g, first_op, rows, NULL, e));

    int32_t v_in = eng_program_find_value(g->program[ENG_STEP_INSERT], at);
    err_code rc = ERR_OK;
    for (int32_t row0 = 0; row0 < rows && rc == ERR_OK; row0 += ENG_INSERT_ROWS_MAX) {
        int32_t n = rows - row0 < ENG_INSERT_ROWS_MAX ? rows - row0 : ENG_INSERT_ROWS_MAX;
        g->task = (task){ .kind = TASK_INSERT, .first_op = first_op, .slot = slot, .row0 = row0, .rows_total = rows,
                          .tap = tap, .insert = { slot, first_op, v_in, x + row0 * width, pos + row0, n, row0, rows } };
        for (int32_t r = 0; g->rank && r < g->o.n_ranks; r++) bind_insert(g, r, &g->task.insert);
        rc = run_all(g, e);
    }
    for (int32_t r = 0; g->rank && r < g->o.n_ranks; r++) { /* the next step may make this value itself */
        eng_step *s = &g->rank[r].insert;
        s->value[v_in] = (uint8_t *)s->arena + s->plan.offset[v_in];
    }
    if (tap && tap->shot) eng_shot_end(tap->shot, rc == ERR_OK);
    if (rc != ERR_OK) return rc;
    if (state->last < 0) state->first = pos[0];
    state->last = pos[rows - 1];
    return ERR_OK;
}

err_code eng_insert(eng_engine *g, int32_t slot, const bf16 *taps, const int32_t *pos, int32_t rows, const eng_tap *tap,
                    err *e)
{
    return insert_rows(g, slot, "taps", taps, (int64_t)g->config.n_taps * g->config.dim, 0, pos, rows, tap, e);
}

err_code eng_insert_main_x(eng_engine *g, int32_t slot, const bf16 *main_x, const int32_t *pos, int32_t rows,
                           const eng_tap *tap, err *e)
{
    const eng_program *p = g->program[ENG_STEP_INSERT];
    int32_t made_by = p->value[eng_program_find_value(p, "main_x")].producer;
    return insert_rows(g, slot, "main_x", main_x, g->config.dim, made_by + 1, pos, rows, tap, e);
}

/* ---- draft ---- */

static err_code check_draft(const eng_engine *g, int32_t batch, const int32_t *slots, const int32_t *anchors,
                            const int32_t *pos, int32_t n_out, err *e)
{
    const eng_config *c = &g->config;
    if (batch < 1 || batch > ENG_BATCH_MAX)
        return err_set(e, ERR_INPUT, "draft of %d slots, wanted 1 to %d", batch, ENG_BATCH_MAX);
    if (n_out < 1 || n_out > c->block) return err_set(e, ERR_INPUT, "n_out %d, wanted 1 to %d", n_out, c->block);
    for (int32_t b = 0; b < batch; b++) {
        TRY(check_slot(g, slots[b], e));
        const slot_state *s = &g->slots[slots[b]];
        for (int32_t a = 0; a < b; a++)
            if (slots[a] == slots[b]) return err_set(e, ERR_INPUT, "slot %d: twice in one draft", slots[b]);
        if (anchors[b] < 0 || anchors[b] >= c->vocab)
            return err_set(e, ERR_INPUT, "slot %d: anchor %d, wanted 0 to %d", slots[b], anchors[b], c->vocab - 1);
        if (s->last < 0) return err_set(e, ERR_INPUT, "slot %d: draft before any insert", slots[b]);
        if (pos[b] != s->last)
            return err_set(e, ERR_INPUT, "slot %d: draft at %d, wanted the last inserted %d", slots[b], pos[b], s->last);
        int32_t needs = pos[b] - c->window + 1 > 0 ? pos[b] - c->window + 1 : 0;
        if (s->first > needs)
            return err_set(e, ERR_INPUT, "slot %d: draft at %d needs rows from %d, the slot begins at %d", slots[b], pos[b],
                           needs, s->first);
    }
    return ERR_OK;
}

static void bind_draft(eng_engine *g, int32_t rank, const eng_device_draft *in)
{
    eng_step *s = &g->rank[rank].draft;
    s->x = eng_extents_of(&g->config, in->batch * g->config.block, in->batch, in->n_out);
    s->value[eng_program_find_value(s->program, "draft.anchor")] = (void *)(uintptr_t)in->anchors; /* read only */
    s->value[eng_program_find_value(s->program, "draft.pos")] = (void *)(uintptr_t)in->pos;
    for (int32_t b = 0; b < in->batch; b++) {
        s->slot[b] = in->slots[b];
        for (int32_t k = 0; k < g->config.n_stages; k++) s->ring[b][k] = ring_of(g, rank, in->slots[b], k);
    }
}

err_code eng_draft(eng_engine *g, int32_t batch, const int32_t *slots, const int32_t *anchors, const int32_t *pos,
                   int32_t n_out, int32_t *drafts, float *confidence, const eng_tap *tap, err *e)
{
    TRY(check_draft(g, batch, slots, anchors, pos, n_out, e));
    g->task = (task){ .kind = TASK_DRAFT, .slot = FMT_TAPE_NO_SLOT, .rows_total = batch * g->config.block, .tap = tap,
                      .draft = { batch, n_out, slots, anchors, pos } };
    if (tap && tap->shot) TRY(eng_shot_begin(tap->shot, g, 0, batch * g->config.block, &g->task.draft, e));
    for (int32_t r = 0; g->rank && r < g->o.n_ranks; r++) bind_draft(g, r, &g->task.draft);
    err_code rc = run_all(g, e);
    if (tap && tap->shot) eng_shot_end(tap->shot, rc == ERR_OK);
    if (rc != ERR_OK) return rc;
    if (on_device(g)) {
        eng_device_drafts(g->device[0], batch * n_out, drafts, confidence);
        return ERR_OK;
    }
    const eng_program *p = g->program[ENG_STEP_DRAFT];
    const eng_step *s = &g->rank[0].draft;
    size_t n = (size_t)batch * (size_t)n_out;
    memcpy(drafts, s->value[eng_program_find_value(p, "drafts")], n * sizeof *drafts);
    memcpy(confidence, s->value[eng_program_find_value(p, "confidence")], n * sizeof *confidence);
    return ERR_OK;
}

void eng_release(eng_engine *g, int32_t slot)
{
    const eng_config *c = &g->config;
    if (slot < 0 || slot >= g->n_slots) return;
    g->slots[slot] = (slot_state){ 0, -1 };
    size_t ring_bytes = sizeof(bf16) * (size_t)c->n_stages * (size_t)c->window * (size_t)c->head_dim;
    for (int32_t r = 0; g->rank && r < g->o.n_ranks; r++) /* the next request must not find this one's rows */
        eng_poison_fill(g->o.poison, FMT_DTYPE_BF16, ring_of(g, r, slot, 0), ring_bytes);
    for (int32_t i = 0; on_device(g) && i < g->n_workers; i++) {
        err e = { 0 };
        if (eng_device_release(g->device[i], slot, &e) != ERR_OK && g->failed.code == ERR_OK) g->failed = e;
    }
}

err_code eng_window(eng_engine *g, int32_t slot, int32_t stage, fmt_tensor *out, err *e)
{
    const eng_config *c = &g->config;
    if (on_device(g)) TRY(eng_device_window(g->device[0], slot, stage, g->window, e));
    *out = fmt_tensor_make(FMT_DTYPE_BF16, on_device(g) ? g->window : ring_of(g, 0, slot, stage), 2,
                           (const int64_t[]){ window_rows(g, g->slots[slot].last), c->head_dim });
    return ERR_OK;
}

err_code eng_restore(eng_engine *g, int32_t slot, int32_t last, const bf16 *const *window, err *e)
{
    const eng_config *c = &g->config;
    TRY(check_slot(g, slot, e));
    if (last < 0) return err_set(e, ERR_INPUT, "slot %d: windows at position %d, wanted 0 or more", slot, last);
    int32_t rows = window_rows(g, last);
    eng_release(g, slot);
    TRY(check_slot(g, slot, e)); /* what the device said against the release */
    for (int32_t k = 0; k < c->n_stages; k++) {
        for (int32_t r = 0; g->rank && r < g->o.n_ranks; r++)
            memcpy(ring_of(g, r, slot, k), window[k], sizeof(bf16) * (size_t)rows * (size_t)c->head_dim);
        for (int32_t i = 0; on_device(g) && i < g->n_workers; i++)
            TRY(eng_device_restore(g->device[i], slot, k, window[k], rows, e));
    }
    g->slots[slot] = (slot_state){ last + 1 - rows, last };
    return ERR_OK;
}

int32_t eng_slot_last(const eng_engine *g, int32_t slot) { return g->slots[slot].last; }

eng_device *eng_device_of(eng_engine *g, int32_t i) { return g->device[i]; }

uint64_t eng_owned_bytes(const eng_engine *g)
{
    const eng_config *c = &g->config;
    uint64_t window_bytes = (uint64_t)c->window * (uint64_t)c->head_dim * sizeof(bf16);
    uint64_t ring = (uint64_t)g->n_slots * (uint64_t)c->n_stages * window_bytes;
    uint64_t n = 0;
    for (int32_t i = 0; on_device(g) && i < g->n_workers; i++) n += eng_device_bytes(g->device[i]);
    for (int32_t r = 0; g->rank && r < g->o.n_ranks; r++)
        n += ring + eng_step_bytes(&g->rank[r].insert) + eng_step_bytes(&g->rank[r].draft) +
             eng_rank_weights_owned_bytes(g->rank[r].weights);
    return n;
}
