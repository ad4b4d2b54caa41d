#include "replay/forced.h"

#include "base/cli.h"
#include "base/mem.h"
#include "capture/redact.h"
#include "capture/rounds.h"
#include "replay/ordered.h"
#include "replay/value.h"

enum { N_STEPS = 2 };

/* A slot's rings as the recorded rows up to some round leave them. */
typedef struct ring_state {
    int32_t slot;
    bf16 *rows;       /* [n_stages, window, head_dim] */
    uint32_t missing; /* bit k: stage k lacks rows of some round */
    /* Of a tape of chosen rounds: what a round does not bring is taken from the windows that were recorded up to it. */
    int32_t *at;      /* [n_stages, window] the position that a row holds, -1: none */
    int64_t *told;    /* [n_stages] rows of the last draft's window that were there without it */
} ring_state;

/* The bench of a step, the most it was made for, and the groups that ran last, with what was recorded then. */
typedef struct bench_slot {
    eng_bench *bench;
    int32_t rows, batch, n_out;
    rpl_fold *fold;
    bool *folded; /* [n_values] */
} bench_slot;

/* A compared round, kept. */
typedef struct kept_round { rpl_round round; rpl_value *value; bool done; } kept_round;

struct rpl_forced {
    const fmt_tape *tape;
    const eng_weights *weights;
    eng_options options;
    eng_config config;
    bool redacted; /* the tape's ids are not the model's: what reads or chooses tokens has no inputs */
    bool chosen;   /* the tape does not hold every round */
    cap_names *names;
    rpl_ordered *ordered;
    bool *lost; /* [names] cannot be read; NULL: nobody has looked */
    kept_round *kept;
    bench_slot bench[N_STEPS];
    ring_state *ring;
    size_t n_rings, rings_capacity;
    int32_t ring_round;  /* rounds [0, ring_round) are in the rings */
    cap_value *value[N_STEPS];  /* [n_values] recorded values of the step that runs */
    bool *recorded[N_STEPS];
    int32_t n_values[N_STEPS];
    cap_value scratch[2];
};

/* One step of one round while its groups run. */
typedef struct step_run {
    rpl_forced *f;
    eng_step_kind step;
    int32_t round, slot;
    eng_bench *bench;
    const eng_program *program;
    rpl_forced_fn fn;
    void *ctx;
    int32_t n_skipped;
} step_run;

static err_code bad_value(const rpl_forced *f, int32_t round, const char *name, const char *found, const char *wanted,
                          err *e)
{
    return err_set(e, ERR_INPUT, "%s: round %d %s: found %s, wanted %s", fmt_tape_path(f->tape), round, name, found,
                   wanted);
}

/* Reads a value and checks dtype and shape. ERR_INPUT. */
static err_code get_value(const rpl_forced *f, int32_t round, int32_t slot, const char *name, const fmt_tensor *want,
                          cap_value *v, err *e)
{
    const fmt_tape_key key = { round, slot, 0, name };
    TRY(cap_joined_get(f->tape, &key, v, e));
    if (v->tensor.dtype == want->dtype && rpl_same_shape(&v->tensor, want)) return ERR_OK;
    char found[96], wanted[96];
    return bad_value(f, round, name, fmt_tensor_text(&v->tensor, found, sizeof found),
                     fmt_tensor_text(want, wanted, sizeof wanted), e);
}

/* ---- values that cannot be read ---- */

static bool is_lost(const rpl_forced *f, int64_t name) { return f->lost && name >= 0 && f->lost[name]; }

bool rpl_forced_lost(const rpl_forced *f, int32_t round, int32_t slot, const char *name)
{
    return is_lost(f, cap_names_find(f->names, round, slot, name));
}

err_code rpl_forced_leave_damaged(rpl_forced *f, bool *found, err *e)
{
    *found = false;
    if (f->lost) return ERR_OK;
    f->lost = mem_alloc(cap_names_count(f->names) + 1, sizeof *f->lost);
    if (!f->lost) return err_set(e, ERR_NOMEM, "forced run: no memory for the names");
    for (size_t i = 0; i < fmt_tape_count(f->tape); i++) {
        fmt_tape_record r;
        fmt_tape_at(f->tape, i, &r);
        if (r.tier != FMT_TIER_TENSOR) continue;
        err_code rc = cap_record_get(f->tape, i, &f->scratch[0], e);
        if (rc == ERR_NOMEM) return rc;
        int64_t name = rc == ERR_FORMAT ? cap_names_find(f->names, r.key.round, r.key.slot, r.key.name) : -1;
        if (name >= 0) *found = f->lost[name] = true;
    }
    return ERR_OK;
}

/* true: the value is on the tape with its payload. */
static bool has_payload(const rpl_forced *f, int32_t round, int32_t slot, const char *name)
{
    int64_t at = cap_names_find(f->names, round, slot, name);
    if (at < 0 || is_lost(f, at)) return false;
    fmt_tape_record r;
    fmt_tape_at(f->tape, cap_names_at(f->names, (size_t)at)->first_record, &r);
    return r.tier == FMT_TIER_TENSOR;
}

/* Length of a recorded vector of int32, of all a slot's inserts together; 0 when absent or lost. */
static int64_t vector_length(const rpl_forced *f, int32_t round, int32_t slot, const char *name)
{
    int64_t at = cap_names_find(f->names, round, slot, name);
    if (at < 0 || is_lost(f, at)) return 0;
    int64_t record = cap_names_at(f->names, (size_t)at)->first_record, length = 0;
    for (; record >= 0; record = slot == FMT_TAPE_NO_SLOT ? -1 : fmt_tape_again(f->tape, (size_t)record)) {
        fmt_tape_record r;
        fmt_tape_at(f->tape, (size_t)record, &r);
        if (r.tensor.ndim != 1 || r.tier != FMT_TIER_TENSOR) return 0;
        length += r.tensor.shape[0];
    }
    return length;
}

static err_code get_vector(const rpl_forced *f, int32_t round, int32_t slot, const char *name, int64_t n, cap_value *v,
                           err *e)
{
    fmt_tensor want = fmt_tensor_make(FMT_DTYPE_I32, NULL, 1, &n);
    return get_value(f, round, slot, name, &want, v, e);
}

static err_code check_range(const rpl_forced *f, int32_t round, const char *name, const int32_t *v, int64_t n,
                            int32_t limit, err *e)
{
    for (int64_t i = 0; i < n; i++)
        if (v[i] < 0 || v[i] >= limit)
            return err_set(e, ERR_INPUT, "%s: round %d %s[%lld]: found %d, wanted 0 to %d", fmt_tape_path(f->tape),
                           round, name, (long long)i, v[i], limit - 1);
    return ERR_OK;
}

/* ---- rings ---- */

static ring_state *find_ring(const rpl_forced *f, int32_t slot)
{
    for (size_t i = 0; i < f->n_rings; i++)
        if (f->ring[i].slot == slot) return &f->ring[i];
    return NULL;
}

static size_t ring_elems(const rpl_forced *f) { return (size_t)f->config.window * (size_t)f->config.head_dim; }

static err_code add_ring(rpl_forced *f, int32_t slot, ring_state **out, err *e)
{
    *out = find_ring(f, slot);
    if (*out) return ERR_OK;
    void *array = f->ring;
    size_t stages = (size_t)f->config.n_stages, n_at = stages * (size_t)f->config.window;
    bf16 *rows = mem_alloc(stages * ring_elems(f), sizeof *rows);
    int32_t *at = mem_alloc(n_at, sizeof *at);
    int64_t *told = mem_alloc(stages, sizeof *told);
    if (!rows || !at || !told || !mem_grow(&array, &f->rings_capacity, f->n_rings + 1, sizeof *f->ring)) {
        free(rows);
        free(at);
        free(told);
        return err_set(e, ERR_NOMEM, "forced run: no memory for the ring of slot %d", slot);
    }
    f->ring = array;
    *out = &f->ring[f->n_rings++];
    for (size_t i = 0; i < n_at; i++) at[i] = -1;
    **out = (ring_state){ .slot = slot, .rows = rows, .at = at, .told = told };
    return ERR_OK;
}

/* Writes one insert's recorded main_kv rows: position p to row p mod window, later rows over earlier ones. */
static err_code apply_insert(rpl_forced *f, int32_t round, int32_t slot, err *e)
{
    int64_t rows = vector_length(f, round, slot, "pos"), width = f->config.head_dim, window = f->config.window;
    ring_state *ring;
    TRY(add_ring(f, slot, &ring, e));
    if (rpl_forced_lost(f, round, slot, "pos")) ring->missing = UINT32_MAX; /* nobody knows where its rows belong */
    if (rows == 0) return ERR_OK;
    TRY(get_vector(f, round, slot, "pos", rows, &f->scratch[0], e));
    const int32_t *pos = f->scratch[0].tensor.data;
    TRY(check_range(f, round, "pos", pos, rows, INT32_MAX, e));
    for (int32_t k = 0; k < f->config.n_stages; k++) {
        char name[32];
        snprintf(name, sizeof name, "s%d.main_kv", k);
        if (!has_payload(f, round, slot, name)) {
            ring->missing |= 1u << k;
            continue;
        }
        fmt_tensor want = fmt_tensor_make(FMT_DTYPE_BF16, NULL, 2, (const int64_t[]){ rows, width });
        TRY(get_value(f, round, slot, name, &want, &f->scratch[1], e));
        const bf16 *kv = f->scratch[1].tensor.data;
        for (int64_t r = 0; r < rows; r++) {
            memcpy(ring->rows + (size_t)k * ring_elems(f) + (size_t)((pos[r] % window) * width), kv + r * width,
                   (size_t)width * sizeof *kv);
            ring->at[k * window + pos[r] % window] = pos[r];
        }
    }
    return ERR_OK;
}

/* Rows of the window of a draft at pos that the ring holds. */
static int64_t rows_there(const rpl_forced *f, const ring_state *ring, int32_t stage, int32_t pos)
{
    int32_t window = f->config.window;
    int64_t n = 0;
    for (int32_t p = pos < window ? 0 : pos - window + 1; p <= pos; p++)
        n += ring->at[stage * window + p % window] == p;
    return n;
}

/* Takes the rows that the ring lacks from the window that a draft at pos saw, where that is recorded. */
static err_code apply_window(rpl_forced *f, int32_t round, int32_t slot, int32_t pos, int32_t stage, err *e)
{
    int32_t window = f->config.window, live = pos < window ? pos + 1 : window;
    int64_t width = f->config.head_dim;
    ring_state *ring;
    char name[32];
    TRY(add_ring(f, slot, &ring, e));
    snprintf(name, sizeof name, "s%d.window", stage);
    ring->told[stage] = rows_there(f, ring, stage, pos);
    if (ring->told[stage] == live || !has_payload(f, round, slot, name)) return ERR_OK;
    fmt_tensor want = fmt_tensor_make(FMT_DTYPE_BF16, NULL, 2, (const int64_t[]){ live, width });
    TRY(get_value(f, round, slot, name, &want, &f->scratch[1], e));
    for (int32_t p = pos - live + 1; p <= pos; p++) {
        int32_t row = p % window, *at = &ring->at[stage * window + row];
        if (*at == p) continue;
        memcpy(ring->rows + (size_t)stage * ring_elems(f) + (size_t)(row * width),
               (const bf16 *)f->scratch[1].tensor.data + row * width, (size_t)width * sizeof(bf16));
        *at = p;
    }
    return ERR_OK;
}

/* The same for all slots and stages of a round's draft. */
static err_code apply_windows(rpl_forced *f, int32_t round, err *e)
{
    int32_t slots[ENG_BATCH_MAX], pos[ENG_BATCH_MAX];
    int64_t n = vector_length(f, round, FMT_TAPE_NO_SLOT, "draft.slots");
    if (n < 1 || n > ENG_BATCH_MAX || rpl_forced_lost(f, round, FMT_TAPE_NO_SLOT, "draft.pos"))
        return ERR_OK; /* reading the draft's inputs says what is wrong with it */
    TRY(get_vector(f, round, FMT_TAPE_NO_SLOT, "draft.slots", n, &f->scratch[0], e));
    memcpy(slots, f->scratch[0].tensor.data, (size_t)n * sizeof *slots);
    TRY(get_vector(f, round, FMT_TAPE_NO_SLOT, "draft.pos", n, &f->scratch[0], e));
    memcpy(pos, f->scratch[0].tensor.data, (size_t)n * sizeof *pos);
    TRY(check_range(f, round, "draft.pos", pos, n, INT32_MAX, e));
    for (int64_t b = 0; b < n; b++)
        for (int32_t k = 0; k < f->config.n_stages; k++) TRY(apply_window(f, round, slots[b], pos[b], k, e));
    return ERR_OK;
}

static void forget_rings(rpl_forced *f)
{
    for (size_t i = 0; i < f->n_rings; i++) {
        free(f->ring[i].rows);
        free(f->ring[i].at);
        free(f->ring[i].told);
    }
    f->n_rings = 0;
    f->ring_round = 0;
}

static err_code apply_round(rpl_forced *f, int32_t i, err *e)
{
    int32_t n, round = rpl_ordered_number(f->ordered, i);
    const cap_name *name = rpl_ordered_at(f->ordered, i, &n);
    for (int32_t k = 0; k < n; k++)
        if (name[k].slot != FMT_TAPE_NO_SLOT && strcmp(name[k].name, "pos") == 0)
            TRY(apply_insert(f, round, name[k].slot, e));
    return f->chosen ? apply_windows(f, round, e) : ERR_OK;
}

/* Brings the rings to the state after round i's inserts. */
static err_code rings_up_to(rpl_forced *f, int32_t i, err *e)
{
    if (f->ring_round > i + 1) forget_rings(f);
    for (; f->ring_round <= i; f->ring_round++) {
        err_code rc = apply_round(f, f->ring_round, e);
        if (rc == ERR_OK) continue;
        forget_rings(f);
        return rc;
    }
    return ERR_OK;
}

/* Ring of a slot drafted at pos, and stage, into dst [window, head_dim]; *ok false: neither rows nor a recorded window. */
static err_code load_ring(rpl_forced *f, int32_t round, int32_t slot, int32_t stage, int32_t pos, int64_t n_rows, bf16 *dst,
                          bool *ok, err *e)
{
    const ring_state *ring = find_ring(f, slot);
    char name[32];
    snprintf(name, sizeof name, "s%d.window", stage);
    *ok = true;
    memset(dst, 0, ring_elems(f) * sizeof *dst);
    if (f->chosen) *ok = ring && rows_there(f, ring, stage, pos) == n_rows;
    if (f->chosen && !*ok) return ERR_OK;
    if (ring && (f->chosen || !(ring->missing >> stage & 1))) {
        memcpy(dst, ring->rows + (size_t)stage * ring_elems(f), ring_elems(f) * sizeof *dst);
        return ERR_OK;
    }
    *ok = has_payload(f, round, slot, name);
    if (!*ok) return ERR_OK;
    fmt_tensor want = fmt_tensor_make(FMT_DTYPE_BF16, NULL, 2, (const int64_t[]){ n_rows, f->config.head_dim });
    TRY(get_value(f, round, slot, name, &want, &f->scratch[0], e));
    memcpy(dst, f->scratch[0].tensor.data, fmt_tensor_bytes(&want));
    return ERR_OK;
}

/* ---- groups of a step ---- */

/* Elements of value v at the bench's extents. */
static fmt_tensor value_tensor(const step_run *s, int32_t v, const eng_extents *x, const void *data)
{
    int64_t shape[FMT_DIMS_MAX];
    eng_value_shape(s->program, v, x, 0, 1, shape);
    return fmt_tensor_make(s->program->value[v].dtype, data, s->program->value[v].ndim, shape);
}

/* Reads every recorded value of the step. Ids are checked against the model: they choose rows of weights. */
static err_code read_values(step_run *s, const eng_extents *x, err *e)
{
    rpl_forced *f = s->f;
    for (int32_t v = 0; v < s->program->n_values; v++) {
        const eng_value *value = &s->program->value[v];
        cap_value *to = &f->value[s->step][v];
        f->recorded[s->step][v] = !value->state && has_payload(f, s->round, s->slot, value->name) &&
                                  !(f->redacted && cap_redact_tells_ids(value->name));
        if (!f->recorded[s->step][v]) continue;
        fmt_tensor want = value_tensor(s, v, x, NULL);
        TRY(get_value(f, s->round, s->slot, value->name, &want, to, e));
        int64_t n = fmt_tensor_elems(&want);
        const char *dot = strrchr(value->name, '.');
        if (strcmp(value->name, "ids") == 0 || strcmp(value->name, "drafts") == 0)
            TRY(check_range(f, s->round, value->name, to->tensor.data, n, f->config.vocab, e));
        if (dot && strcmp(dot, ".ids") == 0)
            TRY(check_range(f, s->round, value->name, to->tensor.data, n, f->config.n_experts, e));
    }
    return ERR_OK;
}

static void set_input(const step_run *s, int32_t v)
{
    if (s->program->value[v].state || !s->f->recorded[s->step][v]) return;
    const fmt_tensor *t = &s->f->value[s->step][v].tensor;
    if (fmt_tensor_elems(t)) memcpy(eng_bench_value(s->bench, v), t->data, fmt_tensor_bytes(t));
}

static bool reads(const rpl_group *g, int32_t v)
{
    for (int32_t k = 0; k < g->n_in; k++)
        if (g->in[k] == v) return true;
    return false;
}

/* Runs a group's ops one by one. An op of the chain may also write a recorded input (it stands between two groups): what
 * the tape holds wins. */
static err_code run_group(const step_run *s, const rpl_group *g, err *e)
{
    for (int32_t k = 0; k < g->n_in; k++) set_input(s, g->in[k]);
    for (int32_t k = 0; k < g->n_ops; k++) {
        const eng_op *op = &s->program->op[g->op[k]];
        TRY(eng_bench_run(s->bench, g->op[k], g->op[k], e));
        for (int32_t o = 0; o < op->n_out; o++)
            if (reads(g, op->out[o])) set_input(s, op->out[o]);
    }
    return ERR_OK;
}

static err_code report_group(step_run *s, const rpl_group *g, const eng_extents *x, err *e)
{
    for (int32_t k = 0; k < g->n_out; k++) {
        int32_t v = g->out[k];
        rpl_forced_value r = { .round = s->round, .slot = s->slot, .program = s->program, .group = g, .op = g->name,
                               .name = s->program->value[v].name, .value = v, .bench = s->bench };
        r.computed = value_tensor(s, v, x, eng_bench_value(s->bench, v));
        r.recorded = s->f->value[s->step][v].tensor;
        TRY(s->fn(s->ctx, &r, e));
    }
    return ERR_OK;
}

static void close_bench(bench_slot *b)
{
    eng_bench_close(b->bench);
    rpl_fold_free(b->fold);
    free(b->folded);
    *b = (bench_slot){ 0 };
}

/* The groups of the step that runs: the last ones where the same values are recorded. */
static err_code fold_of(rpl_forced *f, eng_step_kind step, const rpl_fold **out, err *e)
{
    bench_slot *b = &f->bench[step];
    const size_t bytes = (size_t)f->n_values[step] * sizeof *b->folded;
    if (!b->fold || memcmp(b->folded, f->recorded[step], bytes) != 0) {
        rpl_fold_free(b->fold);
        b->fold = NULL;
        if (!b->folded) b->folded = mem_alloc(bytes, 1);
        if (!b->folded) return err_set(e, ERR_NOMEM, "forced run: no memory");
        TRY(rpl_fold_make(eng_bench_program(b->bench), f->recorded[step], NULL, &b->fold, e));
        memcpy(b->folded, f->recorded[step], bytes);
    }
    *out = b->fold;
    return ERR_OK;
}

/* no_ring: bit k set: stage k's attention has nothing to read. */
static err_code run_groups(step_run *s, const eng_extents *x, uint32_t no_ring, err *e)
{
    const rpl_fold *fold = NULL;
    TRY(fold_of(s->f, s->step, &fold, e));
    err_code rc = ERR_OK;
    for (int32_t i = 0; rc == ERR_OK && i < rpl_fold_count(fold); i++) {
        const rpl_group *g = rpl_fold_at(fold, i);
        bool runs = g->complete;
        for (int32_t k = 0; k < g->n_ops; k++) {
            const eng_op *op = &s->program->op[g->op[k]];
            if (op->kind == ENG_OP_ATTENTION && (no_ring >> (uint32_t)op->stage & 1)) runs = false;
        }
        if (!runs) {
            s->n_skipped += g->n_out;
            continue;
        }
        rc = run_group(s, g, e);
        if (rc == ERR_OK) rc = report_group(s, g, x, e);
    }
    return rc;
}

static int32_t larger(int32_t a, int32_t b) { return a > b ? a : b; }

/* The bench for these extents: the last one when it has room for them. */
static err_code open_bench(rpl_forced *f, eng_step_kind step, int32_t rows, int32_t batch, int32_t n_out,
                           eng_bench **out, err *e)
{
    bench_slot *b = &f->bench[step];
    if (!b->bench || b->rows < rows || b->batch < batch || b->n_out < n_out) {
        const bench_slot most = { .rows = larger(b->rows, rows), .batch = larger(b->batch, batch),
                                  .n_out = larger(b->n_out, n_out) };
        close_bench(b);
        *b = most;
        TRY(eng_bench_open(f->weights, &f->options, step, b->rows, b->batch, b->n_out, &b->bench, e));
    }
    eng_bench_resize(b->bench, rows, batch, n_out);
    *out = b->bench;
    const eng_program *p = eng_bench_program(b->bench);
    if (!f->value[step]) {
        f->value[step] = mem_alloc((size_t)p->n_values, sizeof *f->value[step]);
        f->recorded[step] = mem_alloc((size_t)p->n_values, sizeof *f->recorded[step]);
        f->n_values[step] = p->n_values;
        if (!f->value[step] || !f->recorded[step]) return err_set(e, ERR_NOMEM, "forced run: no memory");
    }
    return ERR_OK;
}

static err_code run_insert(step_run *s, int32_t slot, err *e)
{
    rpl_forced *f = s->f;
    int64_t rows = vector_length(f, s->round, slot, "pos");
    if (rows < 1 || rows > INT32_MAX) return ERR_OK;
    s->step = ENG_STEP_INSERT;
    s->slot = slot;
    TRY(open_bench(f, s->step, (int32_t)rows, 1, 1, &s->bench, e));
    s->program = eng_bench_program(s->bench);
    eng_extents x = eng_extents_of(&f->config, (int32_t)rows, 1, 1);
    TRY(read_values(s, &x, e));
    return run_groups(s, &x, 0, e);
}

/* ---- the draft step and its windows ---- */

static err_code report_window(step_run *s, int32_t slot, int32_t stage, int64_t n_rows, const bf16 *ring, err *e)
{
    rpl_forced *f = s->f;
    char name[32];
    snprintf(name, sizeof name, "s%d.window", stage);
    const ring_state *state = find_ring(f, slot);
    if (!has_payload(f, s->round, slot, name)) return ERR_OK;
    bool none = f->chosen ? !state || state->told[stage] == 0 : !state || state->missing >> stage & 1;
    if (none) { /* the recorded window itself is all there is */
        s->n_skipped++;
        return ERR_OK;
    }
    fmt_tensor want = fmt_tensor_make(FMT_DTYPE_BF16, ring, 2, (const int64_t[]){ n_rows, f->config.head_dim });
    TRY(get_value(f, s->round, slot, name, &want, &f->scratch[0], e));
    rpl_forced_value r = { .round = s->round, .slot = slot, .op = name, .name = name, .value = -1, .computed = want,
                           .recorded = f->scratch[0].tensor };
    return s->fn(s->ctx, &r, e);
}

/* Loads and reports the windows of the step's slots. *no_ring: stages that some slot lacks rows for. */
static err_code load_windows(step_run *s, const int32_t *slots, const int32_t *pos, int32_t batch, uint32_t *no_ring,
                             err *e)
{
    rpl_forced *f = s->f;
    *no_ring = 0;
    for (int32_t k = 0; k < f->config.n_stages; k++)
        for (int32_t b = 0; b < batch; b++) {
            int64_t n_rows = (int64_t)pos[b] + 1 < f->config.window ? pos[b] + 1 : f->config.window;
            bf16 *ring = eng_bench_ring(s->bench, b, k);
            bool ok;
            TRY(load_ring(f, s->round, slots[b], k, pos[b], n_rows, ring, &ok, e));
            if (!ok) *no_ring |= 1u << k;
            TRY(report_window(s, slots[b], k, n_rows, ring, e));
        }
    return ERR_OK;
}

/* slots, anchors and positions of the step [3][ENG_BATCH_MAX]; *batch 0: no draft in this round. */
static err_code read_draft_inputs(rpl_forced *f, int32_t round, int32_t in[3][ENG_BATCH_MAX], int32_t *batch,
                                  int32_t *n_out, err *e)
{
    static const char *const NAME[4] = { "draft.slots", "draft.anchor", "draft.pos", "draft.n_out" };
    const int32_t limit[3] = { INT32_MAX, f->config.vocab, INT32_MAX - ENG_BLOCK_MAX };
    int64_t n = vector_length(f, round, FMT_TAPE_NO_SLOT, NAME[0]);
    *batch = 0;
    for (int i = 0; i < 4; i++)
        if (n == 0 || rpl_forced_lost(f, round, FMT_TAPE_NO_SLOT, NAME[i])) return ERR_OK;
    if (n > ENG_BATCH_MAX) return bad_value(f, round, NAME[0], "more than 4 slots", "1 to 4", e);
    for (int i = 0; i < 3; i++) {
        TRY(get_vector(f, round, FMT_TAPE_NO_SLOT, NAME[i], n, &f->scratch[0], e));
        memcpy(in[i], f->scratch[0].tensor.data, (size_t)n * sizeof **in);
        TRY(check_range(f, round, NAME[i], in[i], n, limit[i], e));
    }
    TRY(get_vector(f, round, FMT_TAPE_NO_SLOT, NAME[3], 1, &f->scratch[0], e));
    *n_out = *(const int32_t *)f->scratch[0].tensor.data;
    TRY(check_range(f, round, NAME[3], n_out, 1, f->config.block + 1, e));
    if (*n_out == 0) return bad_value(f, round, NAME[3], "0", "1 or more", e);
    *batch = (int32_t)n;
    return ERR_OK;
}

static err_code run_draft(step_run *s, err *e)
{
    rpl_forced *f = s->f;
    int32_t in[3][ENG_BATCH_MAX], batch, n_out = 1;
    TRY(read_draft_inputs(f, s->round, in, &batch, &n_out, e));
    if (batch == 0) return ERR_OK;
    int32_t rows = batch * f->config.block;
    s->step = ENG_STEP_DRAFT;
    s->slot = FMT_TAPE_NO_SLOT;
    TRY(open_bench(f, s->step, rows, batch, n_out, &s->bench, e));
    s->program = eng_bench_program(s->bench);
    eng_extents x = eng_extents_of(&f->config, rows, batch, n_out);
    uint32_t no_ring;
    eng_bench_positions(s->bench, in[2], in[1]);
    TRY(load_windows(s, in[0], in[2], batch, &no_ring, e));
    TRY(read_values(s, &x, e));
    int32_t drafts = eng_program_find_value(s->program, "drafts");
    bool has_drafts = drafts >= 0 && f->recorded[s->step][drafts];
    eng_bench_force_drafts(s->bench, has_drafts ? f->value[s->step][drafts].tensor.data : NULL);
    return run_groups(s, &x, no_ring, e);
}

err_code rpl_forced_round(rpl_forced *f, int32_t i, rpl_forced_fn fn, void *ctx, int32_t *n_skipped, err *e)
{
    int32_t n;
    step_run s = { .f = f, .round = rpl_ordered_number(f->ordered, i), .fn = fn, .ctx = ctx };
    const cap_name *name = rpl_ordered_at(f->ordered, i, &n);
    TRY(rings_up_to(f, i, e));
    for (int32_t k = 0; k < n; k++)
        if (name[k].slot != FMT_TAPE_NO_SLOT && strcmp(name[k].name, "pos") == 0) TRY(run_insert(&s, name[k].slot, e));
    TRY(run_draft(&s, e));
    if (n_skipped) *n_skipped = s.n_skipped;
    return ERR_OK;
}

/* ---- compared ---- */

typedef struct collect { rpl_forced *f; kept_round *r; size_t capacity; const char *taps; } collect;

/* The tape's own copy of a name, as the one given lives in a bench that may be closed. NULL: not on the tape. */
static const char *lasting_name(const rpl_forced *f, int32_t round, int32_t slot, const char *name)
{
    int64_t at = cap_names_find(f->names, round, slot, name);
    return at < 0 ? NULL : cap_names_at(f->names, (size_t)at)->name;
}

static err_code collect_value(void *ctx, const rpl_forced_value *v, err *e)
{
    collect *c = ctx;
    if (c->taps && !cli_match(c->taps, v->name)) return ERR_OK;
    void *array = c->r->value;
    if (!mem_grow(&array, &c->capacity, (size_t)c->r->round.n_values + 1, sizeof *c->r->value))
        return err_set(e, ERR_NOMEM, "forced comparison: no memory");
    c->r->value = array;
    rpl_value *to = &c->r->value[c->r->round.n_values];
    *to = (rpl_value){ .slot = v->slot, .draft = v->slot == FMT_TAPE_NO_SLOT };
    to->name = lasting_name(c->f, v->round, v->slot, v->name);
    to->op = lasting_name(c->f, v->round, v->slot, v->op); /* an op has the name of the first value that it writes */
    if (!to->op) to->op = to->name;
    if (v->group) rpl_group_text(v->program, v->group, to->ops);
    rpl_value_compare(to, &v->computed, &v->recorded, c->f->config.vocab);
    if (to->cls == RPL_CLASS_UNPLACED) to->cls = RPL_CLASS_ORIGIN; /* its inputs are the same by construction */
    if (to->cls == RPL_CLASS_ORIGIN && c->r->round.first_origin < 0) c->r->round.first_origin = c->r->round.n_values;
    c->r->round.n_values++;
    rpl_round_count(&c->r->round, to);
    return ERR_OK;
}

err_code rpl_forced_compare(rpl_forced *f, int32_t i, const char *taps, const rpl_round **out, err *e)
{
    kept_round *r = &f->kept[i];
    if (!r->done) {
        collect c = { .f = f, .r = r, .taps = taps };
        r->round = (rpl_round){ .round = rpl_ordered_number(f->ordered, i), .first_origin = -1 };
        err_code rc = rpl_forced_round(f, i, collect_value, &c, NULL, e);
        if (rc != ERR_OK) {
            free(r->value);
            *r = (kept_round){ 0 };
            return rc;
        }
            r->round.value = r->value;
        r->done = true;
    }
    *out = &r->round;
    return ERR_OK;
}

/* ---- open and close ---- */

err_code rpl_forced_open(const fmt_tape *t, const eng_weights *w, const eng_options *o, rpl_forced **out, err *e)
{
    *out = NULL;
    rpl_forced *f = mem_alloc(1, sizeof *f);
    if (!f) return err_set(e, ERR_NOMEM, "forced run: no memory");
    f->tape = t;
    f->redacted = cap_redact_key_of(t) != NULL;
    f->chosen = cap_rounds_chosen(t);
    f->weights = w;
    f->options = *o;
    f->options.mode = ENG_MODE_EAGER;
    f->config = *eng_weights_config(w);
    err_code rc = cap_names_make(t, &f->names, e);
    if (rc == ERR_OK) rc = rpl_ordered_make(f->names, NULL, &f->ordered, e);
    if (rc == ERR_OK) {
        f->kept = mem_alloc((size_t)rpl_ordered_rounds(f->ordered), sizeof *f->kept);
        if (!f->kept) rc = err_set(e, ERR_NOMEM, "forced run: no memory");
    }
    if (rc != ERR_OK) {
        rpl_forced_close(f);
        return rc;
    }
    *out = f;
    return ERR_OK;
}

void rpl_forced_close(rpl_forced *f)
{
    if (!f) return;
    for (int32_t i = 0; f->kept && i < rpl_ordered_rounds(f->ordered); i++) free(f->kept[i].value);
    free(f->kept);
    free(f->lost);
    for (int step = 0; step < N_STEPS; step++) {
        close_bench(&f->bench[step]);
        for (int32_t v = 0; v < f->n_values[step]; v++) cap_value_fini(&f->value[step][v]);
        free(f->value[step]);
        free(f->recorded[step]);
    }
    forget_rings(f);
    free(f->ring);
    for (int i = 0; i < 2; i++) cap_value_fini(&f->scratch[i]);
    rpl_ordered_free(f->ordered);
    cap_names_free(f->names);
    free(f);
}

int32_t rpl_forced_rounds(const rpl_forced *f) { return rpl_ordered_rounds(f->ordered); }
int32_t rpl_forced_round_number(const rpl_forced *f, int32_t i) { return rpl_ordered_number(f->ordered, i); }
