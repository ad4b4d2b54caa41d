#include "replay/forced_state.h"

#include "base/mem.h"
#include "capture/redact.h"
#include "capture/rounds.h"
#include "engine/identity.h"

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
        f->recorded[s->step][v] = !value->state && rpl_forced_has(f, s->round, s->slot, value->name) &&
                                  !(f->redacted && cap_redact_tells_ids(value->name));
        if (!f->recorded[s->step][v]) continue;
        fmt_tensor want = value_tensor(s, v, x, NULL);
        TRY(rpl_forced_get(f, s->round, s->slot, value->name, &want, to, e));
        int64_t n = fmt_tensor_elems(&want);
        const char *dot = strrchr(value->name, '.');
        if (strcmp(value->name, "ids") == 0 || strcmp(value->name, "drafts") == 0)
            TRY(rpl_forced_range(f, s->round, value->name, to->tensor.data, n, f->config.vocab, e));
        if (dot && strcmp(dot, ".ids") == 0)
            TRY(rpl_forced_range(f, s->round, value->name, to->tensor.data, n, f->config.n_experts, e));
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
    int64_t rows = rpl_forced_length(f, s->round, slot, "pos");
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
    const ring_state *state = rpl_rings_find(f, slot);
    if (!rpl_forced_has(f, s->round, slot, name)) return ERR_OK;
    bool none = f->chosen ? !state || state->told[stage] == 0 : !state || state->missing >> stage & 1;
    if (none) { /* the recorded window itself is all there is */
        s->n_skipped++;
        return ERR_OK;
    }
    fmt_tensor want = fmt_tensor_make(FMT_DTYPE_BF16, ring, 2, (const int64_t[]){ n_rows, f->config.head_dim });
    TRY(rpl_forced_get(f, s->round, slot, name, &want, &f->scratch[0], e));
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
            TRY(rpl_rings_load(f, s->round, slots[b], k, pos[b], n_rows, ring, &ok, e));
            if (!ok) *no_ring |= 1u << k;
            TRY(report_window(s, slots[b], k, n_rows, ring, e));
        }
    return ERR_OK;
}

static const char *const DRAFT_INPUT[4] = { "draft.slots", "draft.anchor", "draft.pos", "draft.n_out" };

const char *rpl_forced_draft_lacks(const rpl_forced *f, int32_t round)
{
    if (rpl_forced_length(f, round, FMT_TAPE_NO_SLOT, DRAFT_INPUT[0]) == 0) return DRAFT_INPUT[0];
    for (int i = 1; i < 4; i++)
        if (!rpl_forced_has(f, round, FMT_TAPE_NO_SLOT, DRAFT_INPUT[i])) return DRAFT_INPUT[i];
    return NULL;
}

/* slots, anchors and positions of the step [3][ENG_BATCH_MAX]; *batch 0: no draft in this round. */
static err_code read_draft_inputs(rpl_forced *f, int32_t round, int32_t in[3][ENG_BATCH_MAX], int32_t *batch,
                                  int32_t *n_out, err *e)
{
    const int32_t limit[3] = { INT32_MAX, f->config.vocab, INT32_MAX - ENG_BLOCK_MAX };
    int64_t n = rpl_forced_length(f, round, FMT_TAPE_NO_SLOT, DRAFT_INPUT[0]);
    *batch = 0;
    if (rpl_forced_draft_lacks(f, round)) return ERR_OK;
    if (n > ENG_BATCH_MAX)
        return rpl_forced_bad(f, round, FMT_TAPE_NO_SLOT, DRAFT_INPUT[0], "more than 4 slots", "1 to 4", e);
    for (int i = 0; i < 3; i++) {
        TRY(rpl_forced_vector(f, round, FMT_TAPE_NO_SLOT, DRAFT_INPUT[i], n, &f->scratch[0], e));
        memcpy(in[i], f->scratch[0].tensor.data, (size_t)n * sizeof **in);
        TRY(rpl_forced_range(f, round, DRAFT_INPUT[i], in[i], n, limit[i], e));
    }
    TRY(rpl_forced_vector(f, round, FMT_TAPE_NO_SLOT, DRAFT_INPUT[3], 1, &f->scratch[0], e));
    *n_out = *(const int32_t *)f->scratch[0].tensor.data;
    TRY(rpl_forced_range(f, round, DRAFT_INPUT[3], n_out, 1, f->config.block + 1, e));
    if (*n_out == 0) return rpl_forced_bad(f, round, FMT_TAPE_NO_SLOT, DRAFT_INPUT[3], "0", "1 or more", e);
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
    TRY(rpl_rings_up_to(f, i, e));
    for (int32_t k = 0; k < n; k++)
        if (name[k].slot != FMT_TAPE_NO_SLOT && strcmp(name[k].name, "pos") == 0) TRY(run_insert(&s, name[k].slot, e));
    TRY(run_draft(&s, e));
    if (n_skipped) *n_skipped = s.n_skipped;
    return ERR_OK;
}

/* ---- open and close ---- */

err_code rpl_forced_mirror64(const fmt_tape *t, int32_t n_ranks, int32_t threads, eng_options *out, err *e)
{
    const json_t *identity = json_object_get(fmt_tape_head(t), "identity");
    const char *acc = json_string_value(json_object_get(identity, "acc"));
    TRY(eng_options_parse(&(eng_option_words){ .arm = "mirror64" }, threads, out, e));
    out->reps = eng_identity_reps(identity);
    /* What was summed in double never had fp16 rows: it has mirror64's bits or none. */
    out->exl3_acc = acc && strcmp(acc, eng_acc_name(KRN_ACC_F64)) == 0 ? KRN_ACC_F64 : KRN_ACC_BLOCKED;
    if (eng_reps_exl3(&out->reps, ENG_W_WO_B) || eng_reps_exl3(&out->reps, ENG_W_EXPERT_W2))
        out->n_ranks = n_ranks; /* a rank's part of an EXL3 sum has fp16 rows of its own */
    return ERR_OK;
}

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
    rpl_rings_forget(f);
    free(f->ring);
    for (int i = 0; i < 2; i++) cap_value_fini(&f->scratch[i]);
    rpl_ordered_free(f->ordered);
    cap_names_free(f->names);
    free(f);
}

int32_t rpl_forced_rounds(const rpl_forced *f) { return rpl_ordered_rounds(f->ordered); }
int32_t rpl_forced_round_number(const rpl_forced *f, int32_t i) { return rpl_ordered_number(f->ordered, i); }
