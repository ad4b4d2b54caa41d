#include "engine/fault.h"

#include "base/cli.h"
#include "base/mem.h"
#include "engine/fault_run.h"
#include "engine/misread.h"

#define X(name, text) text,
static const char *const CAUSE_NAMES[ENG_CAUSE_COUNT] = { ENG_CAUSE_LIST(X) };
#undef X
static const eng_fault_table *const TABLES[] = { &ENG_FAULTS_VALUES, &ENG_FAULTS_WEIGHTS, &ENG_FAULTS_OPS,
                                                 &ENG_FAULTS_ATTENTION, &ENG_FAULTS_EXPERTS, &ENG_FAULTS_EXL3 };
static const char *const STEP_NAMES[] = { "insert", "draft" };

const char *eng_cause_name(eng_cause c) { return c < ENG_CAUSE_COUNT ? CAUSE_NAMES[c] : "?"; }

size_t eng_fault_count(void)
{
    size_t n = 0;
    for (size_t t = 0; t < COUNT_OF(TABLES); t++) n += TABLES[t]->n;
    return n;
}

const eng_fault_kind *eng_fault_at(size_t i)
{
    size_t t = 0;
    while (i >= TABLES[t]->n) i -= TABLES[t++]->n;
    return &TABLES[t]->kind[i];
}

const eng_fault_kind *eng_fault_find(const char *name)
{
    for (size_t i = 0; i < eng_fault_count(); i++)
        if (strcmp(eng_fault_at(i)->name, name) == 0) return eng_fault_at(i);
    return NULL;
}

/* ---- where a kind applies ---- */

static bool packed(const eng_op *op, const eng_reps *reps, uint32_t needs)
{
    eng_wclass c = eng_wkind_of(op->weight[0])->wclass;
    bool as_stored = !eng_reps_expand(reps, op->weight[0]) && !eng_reps_exl3(reps, op->weight[0]);
    bool fp4 = c == ENG_WC_FP4 && as_stored, fp8 = c == ENG_WC_FP8 && as_stored;
    if (needs & ENG_NEED_FP8) return fp8;
    if (needs & ENG_NEED_FP4) return fp4;
    return fp8 || fp4;
}

/* The pre-mix that op i's sub-block makes for the next one; -1: it makes none, as the head, or reads it already. */
static int32_t own_pre(const eng_program *p, int32_t i)
{
    int32_t at = i - 1;
    if (p->op[i].kind != ENG_OP_COLLAPSE || at < 0 || p->op[at].kind != ENG_OP_MIXES) return -1;
    return p->op[at].out[0];
}

/* What is needed of an EXL3 weight, by its last rank's slice. */
static bool exl3_fits(const eng_op *op, const eng_config *c, const eng_options *o, uint32_t needs)
{
    if (!op->n_weights || !eng_reps_exl3(&o->reps, op->weight[0])) return false;
    const eng_wid id = op->weight[0];
    const eng_cut cut = eng_wkind_of(id)->cut;
    const eng_range slice = eng_cut_range(c, id, o->n_ranks - 1, o->n_ranks);
    int32_t n, k;
    eng_wid_shape(c, id, &n, &k);
    const eng_range outputs = cut == ENG_CUT_COLS ? (eng_range){ 0, n } : slice;
    const int32_t first_block = outputs.first / FMT_EXL3_BLOCK;
    const bool two_blocks = (outputs.first + outputs.count - 1) / FMT_EXL3_BLOCK > first_block;
    return (two_blocks || !(needs & ENG_NEED_TWO_BLOCKS)) &&
           ((cut != ENG_CUT_NONE && slice.first >= FMT_EXL3_BLOCK) || !(needs & ENG_NEED_LATE_SLICE));
}

bool eng_fault_applies(const eng_fault_kind *k, const eng_program *p, int32_t i, const eng_options *o)
{
    const eng_op *op = &p->op[i];
    if (!(k->ops >> op->kind & 1)) return false;
    const eng_value *out = &p->value[op->out[0]];
    const eng_extents x = eng_extents_of(&p->config, p->config.block, 1, 1);
    int64_t shape[3];
    eng_value_shape(p, op->out[0], &x, 0, o->n_ranks, shape);
    if (k->needs & ENG_NEED_F32 && out->dtype != FMT_DTYPE_F32) return false;
    if (k->needs & ENG_NEED_BF16 && out->dtype != FMT_DTYPE_BF16) return false;
    if (k->needs & ENG_NEED_HEADS && (out->ndim != 3 || out->dim[1] != ENG_DIM_H || shape[1] < 2)) return false;
    if (k->needs & ENG_NEED_GROUPS && shape[1] * shape[2] % FMT_QDQ_GROUP != 0) return false;
    const uint32_t of_weight = ENG_NEED_QUANTISED | ENG_NEED_FP8 | ENG_NEED_FP4;
    if (k->needs & of_weight && (!op->n_weights || !packed(op, &o->reps, k->needs)))
        return false;
    /* EXL3 has no rows of codes that a copy could change. */
    if (k->needs & ENG_WEIGHT && op->n_weights && eng_reps_exl3(&o->reps, op->weight[0])) return false;
    if (k->needs & ENG_NEED_EXL3 && !exl3_fits(op, &p->config, o, k->needs)) return false;
    if (k->needs & ENG_NEED_STAGES && (op->stage < 0 || p->config.n_stages < 2 || !op->n_weights)) return false;
    if (k->needs & ENG_NEED_DRAFT && p->step != ENG_STEP_DRAFT) return false;
    if (k->needs & ENG_NEED_ROUTED && op->n_in < 3) return false;
    if (k->needs & ENG_NEED_OWN_PRE && own_pre(p, i) < 0) return false;
    if (k->needs & ENG_NEED_NORM && (i + 1 >= p->n_ops || p->op[i + 1].kind != ENG_OP_RMSNORM ||
                                     p->op[i + 1].in[0] != op->out[0])) return false;
    if (k->needs & ENG_NEED_TWO_PICKS && p->config.n_active < 2) return false;
    if (k->needs & ENG_ONE_RANK && o->n_ranks < 2) return false;
    return true;
}

/* ---- as text ---- */

/* One "KEY=NUMBER" or "step=NAME". */
static err_code parse_key(const char *word, eng_fault *f, err *e)
{
    const struct { const char *name; int32_t *number; } KEYS[] = {
        { "rank", &f->rank }, { "round", &f->round }, { "slot", &f->slot }, { "row", &f->row },
    };
    const char *equals = strchr(word, '=');
    size_t n = equals ? (size_t)(equals - word) : 0;
    int64_t v;
    for (size_t i = 0; n && i < COUNT_OF(KEYS); i++)
        if (strlen(KEYS[i].name) == n && strncmp(word, KEYS[i].name, n) == 0) {
            TRY(cli_int(equals + 1, KEYS[i].name, 0, INT32_MAX, &v, e));
            *KEYS[i].number = (int32_t)v;
            return ERR_OK;
        }
    if (n && strncmp(word, "index=", 6) == 0) return cli_int(equals + 1, "index", 0, INT64_MAX, &f->index, e);
    for (int32_t step = 0; n && step < (int32_t)COUNT_OF(STEP_NAMES); step++)
        if (strncmp(word, "step=", 5) == 0 && strcmp(equals + 1, STEP_NAMES[step]) == 0) {
            f->step = step;
            return ERR_OK;
        }
    return err_set(e, ERR_ARG, "fault: found '%s', wanted rank=, round=, slot=, row=, index= and a number, or step=insert "
                   "or step=draft", word);
}

err_code eng_fault_parse(const char *text, eng_fault *out, err *e)
{
    char copy[200];
    eng_fault f = { .step = -1, .rank = -1, .round = -1, .slot = -1, .engine_slot = -1, .row = -1, .index = -1 };
    if (strlen(text) >= sizeof copy)
        return err_set(e, ERR_ARG, "fault: found %zu characters, wanted at most %zu", strlen(text), sizeof copy - 1);
    memcpy(copy, text, strlen(text) + 1);
    char *op = strchr(copy, '@'), *keys = op ? strchr(op, ':') : NULL;
    if (!op || op[1] == 0 || op + 1 == keys)
        return err_set(e, ERR_ARG, "fault: found '%s', wanted KIND@OP[:KEY=NUMBER,...]", text);
    *op++ = 0;
    if (keys) *keys++ = 0;
    if (!(f.kind = eng_fault_find(copy)))
        return err_set(e, ERR_ARG, "fault: found kind '%s', wanted one that sparktape inject --list prints", copy);
    if (strlen(op) >= sizeof f.op) return err_set(e, ERR_ARG, "fault: no op is called '%.60s'", op);
    memcpy(f.op, op, strlen(op) + 1);
    for (char *next; keys && *keys; keys = next) {
        next = keys + strcspn(keys, ",");
        if (*next) *next++ = 0;
        TRY(parse_key(keys, &f, e));
    }
    f.armed = f.round < 0;
    *out = f;
    return ERR_OK;
}

json_t *eng_fault_json(const eng_fault *f)
{
    const struct { const char *name; int64_t number; } KEYS[] = {
        { "rank", f->rank }, { "round", f->round }, { "slot", f->slot }, { "row", f->row }, { "index", f->index },
    };
    json_t *j = json_pack("{s:s, s:s, s:s, s:s}", "kind", f->kind->name, "op", f->op, "step",
                          f->step < 0 ? "?" : STEP_NAMES[f->step], "cause", eng_cause_name(f->kind->cause));
    for (size_t i = 0; j && i < COUNT_OF(KEYS); i++)
        if (KEYS[i].number >= 0 && json_object_set_new(j, KEYS[i].name, json_integer(KEYS[i].number)) != 0) {
            json_decref(j);
            return NULL;
        }
    return j;
}

err_code eng_fault_of_json(const json_t *j, eng_fault *out, err *e)
{
    static const char *const KEYS[] = { "step", "rank", "round", "slot", "row", "index" };
    enum { KEY_TEXT = 28 };
    const char *kind = json_string_value(json_object_get(j, "kind")), *op = json_string_value(json_object_get(j, "op"));
    char text[240], between = ':';
    int n = snprintf(text, sizeof text, "%.30s@%.30s", kind ? kind : "?", op ? op : "?");
    for (size_t i = 0; i < COUNT_OF(KEYS); i++) {
        const json_t *v = json_object_get(j, KEYS[i]);
        char *at = text + n;
        long long number = json_integer_value(v); /* eng_fault_json's: of 32 bits, but for the index */
        if (json_is_string(v)) n += snprintf(at, KEY_TEXT, "%c%s=%.8s", between, KEYS[i], json_string_value(v));
        else if (json_is_integer(v)) n += snprintf(at, KEY_TEXT, "%c%s=%lld", between, KEYS[i], number);
        else continue;
        between = ',';
    }
    if (eng_fault_parse(text, out, NULL) == ERR_OK) return ERR_OK;
    return err_set(e, ERR_INPUT, "injected: found %.120s, wanted a fault that this version can plant", text);
}

int64_t eng_fault_changed(const eng_fault *f)
{
    int64_t n = 0;
    for (int r = 0; r < ENG_RANKS_MAX; r++) n += f->changed[r];
    return n;
}

/* The op of that name, or the one that writes the value of that name; -1: none. */
static int32_t op_of(const eng_program *p, const char *name)
{
    int32_t i = eng_program_find_op(p, name), v = i < 0 ? eng_program_find_value(p, name) : -1;
    return v < 0 ? i : p->value[v].producer;
}

/* The next op before op i to which f's kind applies, on the way of hidden values: what it makes shows in i's. -1: none. */
static int32_t applies_before(const eng_fault *f, const eng_program *p, int32_t i, const eng_options *o)
{
    for (int32_t k = 0; k < p->op[i].n_in; k++) {
        const eng_value *v = &p->value[p->op[i].in[k]];
        if (v->level != ENG_LEVEL_HIDDEN || v->producer < 0) continue;
        if (eng_fault_applies(f->kind, p, v->producer, o)) return v->producer;
        int32_t before = applies_before(f, p, v->producer, o);
        if (before >= 0) return before;
    }
    return -1;
}

static err_code does_not_apply(const eng_fault *f, const eng_program *p, int32_t i, const eng_options *o, err *e)
{
    const int32_t before = applies_before(f, p, i, o);
    return err_set(e, ERR_ARG, "fault: %s does not apply to %s (%s) of arm %s on %d rank%s%s%s%s", f->kind->name, f->op,
                   eng_kind_name(p->op[i].kind), o->arm->name, o->n_ranks, o->n_ranks == 1 ? "" : "s",
                   before < 0 ? "" : "; did you mean ", before < 0 ? "" : p->op[before].name,
                   before < 0 ? "" : ", which makes what it reads?");
}

err_code eng_fault_resolve(eng_fault *f, eng_program *const program[2], const eng_options *o, err *e)
{
    int32_t at[2] = { op_of(program[0], f->op), op_of(program[1], f->op) };
    if (o->backend == ENG_BACKEND_CUDA) return err_set(e, ERR_ARG, "fault: found --backend cuda, wanted cpu");
    if (f->step < 0 && at[0] >= 0 && at[1] >= 0)
        return err_set(e, ERR_ARG, "fault: op %s is in both steps, wanted step=insert or step=draft", f->op);
    int32_t step = f->step >= 0 ? f->step : at[0] >= 0 ? 0 : 1;
    if (at[step] < 0)
        return err_set(e, ERR_ARG, "fault: no op and no value is called %s, see sparktape plan", f->op);
    const eng_op *op = &program[step]->op[at[step]];
    if (!eng_fault_applies(f->kind, program[step], at[step], o)) return does_not_apply(f, program[step], at[step], o, e);
    if (f->rank >= o->n_ranks) return err_set(e, ERR_ARG, "fault: rank %d, wanted below %d", f->rank, o->n_ranks);
    if (f->rank >= 0 && op->kind == ENG_OP_MARKOV && f->kind->needs & ENG_RERUNS)
        return err_set(e, ERR_ARG, "fault: rank %d, wanted none: tokens are chosen by all ranks together", f->rank);
    f->step = step;
    memcpy(f->op, op->name, sizeof f->op);
    f->hidden = true;
    for (int32_t k = 0; k < op->n_out; k++)
        if (program[step]->value[op->out[k]].level != ENG_LEVEL_HIDDEN) f->hidden = false;
    return ERR_OK;
}

/* ---- what kinds work with ---- */

eng_fault_value eng_fault_value_of(const eng_fault_run *f, const eng_step *s, int32_t v)
{
    const eng_value *value = &s->program->value[v];
    int64_t shape[3];
    eng_value_shape(s->program, v, &s->x, s->rank, s->n_ranks, shape);
    eng_fault_value out = { .data = s->value[v], .dtype = value->dtype, .elem_bytes = fmt_dtype_bytes(value->dtype),
                            .rows = shape[0], .cols = shape[1] * shape[2], .count = shape[0] };
    if (s->program->step == ENG_STEP_DRAFT) {
        int64_t per_entry = shape[0] / s->x.n[ENG_DIM_B];
        out.first = f->entry * per_entry;
        out.count = f->entries * per_entry;
    }
    if (f->fault->row >= 0) {
        out.count = f->fault->row < out.count ? 1 : 0;
        out.first += out.count ? f->fault->row : 0;
    }
    return out;
}

eng_fault_value eng_fault_out(const eng_fault_run *f, const eng_step *s, const eng_op *op, int k)
{
    return eng_fault_value_of(f, s, op->out[k]);
}

eng_fault_value eng_fault_take_in(eng_fault_run *f, eng_step *s, const eng_op *op, int k)
{
    eng_fault_value v = eng_fault_value_of(f, s, op->in[k]);
    if (v.data != f->scratch[k]) memcpy(f->scratch[k], v.data, (size_t)(v.rows * v.cols) * v.elem_bytes);
    s->value[op->in[k]] = v.data = f->scratch[k];
    return v;
}

eng_config *eng_fault_take_config(eng_fault_run *f, eng_step *s)
{
    f->program = *s->program;
    s->program = &f->program;
    return &f->program.config;
}

int32_t eng_fault_expert(const eng_fault_run *f, const eng_step *s, const eng_op *op)
{
    if (op->kind != ENG_OP_EXPERTS_UP && op->kind != ENG_OP_EXPERTS_DOWN) return -1;
    eng_fault_value ids = eng_fault_value_of(f, s, op->in[1]);
    return ((const int32_t *)ids.data)[ids.first * ids.cols];
}

const krn_weight *eng_fault_weight(const eng_fault_run *f, const eng_step *s, const eng_op *op)
{
    return eng_rank_weight(s->weights, op->weight[0], op->stage, eng_fault_expert(f, s, op));
}

void eng_fault_set_weight(eng_fault_run *f, const eng_step *s, const eng_op *op, krn_weight w)
{
    krn_weight *view = (krn_weight *)(uintptr_t)eng_fault_weight(f, s, op); /* this rank's own, put back after the op */
    if (!f->view) f->view_true = *view;
    f->view = view;
    *view = w;
}

static size_t row_bytes(const krn_weight *w)
{
    switch (w->format) {
    case KRN_W_FP8: return (size_t)w->k;
    case KRN_W_FP4: return (size_t)w->k / 2;
    case KRN_W_BF16: return (size_t)w->k * sizeof(bf16);
    case KRN_W_F32:
    case KRN_W_EXL3: break; /* no fault of a weight fits EXL3 */
    }
    return (size_t)w->k * sizeof(float);
}

static int32_t scale_rows(const krn_weight *w)
{
    return w->format == KRN_W_FP8 ? (w->scale_row0 + w->n + 31) / 32 : w->format == KRN_W_FP4 ? w->n : 0;
}

krn_weight *eng_fault_take_weight(eng_fault_run *f, eng_step *s, const eng_op *op)
{
    krn_weight w = *eng_fault_weight(f, s, op);
    size_t bytes = row_bytes(&w), groups = (size_t)w.k / FMT_QDQ_GROUP;
    for (int32_t n = 0; n < w.n; n++) memcpy(f->data + (size_t)n * bytes, (const uint8_t *)w.data + n * w.row_bytes, bytes);
    for (int32_t n = 0; n < scale_rows(&w); n++)
        memcpy(f->scale + (size_t)n * groups, w.scale + n * w.scale_row_bytes, groups);
    w.data = f->data;
    w.row_bytes = (int64_t)bytes;
    w.scale = f->scale;
    w.scale_row_bytes = (int64_t)groups;
    eng_fault_set_weight(f, s, op, w);
    return f->view;
}

static size_t ring_bytes(const eng_step *s)
{
    return (size_t)s->program->config.window * (size_t)s->program->config.head_dim * sizeof(bf16);
}

static size_t ring_padding_bytes(const eng_step *s)
{
    size_t row = (size_t)s->program->config.head_dim * sizeof(bf16), one = sizeof(bf16 *);
    return ENG_FAULT_PADDING * (row > one ? row : one);
}

bf16 *eng_fault_take_ring(eng_fault_run *f, eng_step *s, const eng_op *op, int32_t b, int32_t *n_rows)
{
    const eng_config *c = &s->program->config;
    int32_t last = ((const int32_t *)s->value[op->in[2]])[b];
    memcpy(f->ring[b], s->ring[b][op->stage], ring_bytes(s));
    s->ring[b][op->stage] = f->ring[b];
    *n_rows = last + 1 < c->window ? last + 1 : c->window;
    return f->ring[b];
}

err_code eng_fault_rerun(eng_fault_run *f, eng_step *s, const eng_op *op, err *e) { return f->fn(s, op, e); }

int64_t eng_fault_pick(const eng_fault_run *f, const eng_op *op, int64_t n)
{
    uint64_t h = 0x9e3779b97f4a7c15u;
    if (f->fault->index >= 0) return f->fault->index % n;
    for (const char *c = op->name; *c; c++) h = (h ^ (uint8_t)*c) * 0x100000001b3u;
    return (int64_t)((h ^ h >> 29) % (uint64_t)n);
}

void eng_fault_wide(eng_fault_run *f, const eng_step *s, const eng_op *op)
{
    const krn_weight *w = eng_fault_weight(f, s, op);
    const bf16 *x = s->value[op->in[0]];
    int32_t rows = (int32_t)s->x.n[ENG_DIM_ROWS], o_lora = s->program->config.o_lora;
    if (op->kind != ENG_OP_WO_A) {
        krn_linear_ref(x, w->k, rows, w, eng_step_acc(s, op), KRN_OUT_F32, f->wide, w->n);
        return;
    }
    for (int32_t g = 0, groups = w->n / o_lora; g < groups; g++) {
        krn_weight group = krn_weight_slice(w, g * o_lora, o_lora, 0, w->k);
        krn_linear_ref(x + (int64_t)g * w->k, (int64_t)groups * w->k, rows, &group, s->acc, KRN_OUT_F32,
                       f->wide + (int64_t)g * o_lora, w->n);
    }
}

/* ---- in place of the op ---- */

static bool is_state(const eng_step *s, const eng_op *op) { return s->program->value[op->out[0]].state; }

static size_t value_bytes(const eng_step *s, int32_t v)
{
    return (size_t)eng_value_elems(s->program, v, &s->x, s->rank, s->n_ranks) * fmt_dtype_bytes(s->program->value[v].dtype);
}

/* The batch entries that the fault is about; false: none of this step. */
static bool choose_entries(eng_fault_run *f, const eng_step *s)
{
    const eng_fault *fault = f->fault;
    int32_t batch = s->program->step == ENG_STEP_DRAFT ? (int32_t)s->x.n[ENG_DIM_B] : 1;
    f->entry = 0;
    f->entries = batch;
    if (fault->engine_slot < 0) return true;
    f->entries = 1;
    while (f->entry < batch && s->slot[f->entry] != fault->engine_slot) f->entry++;
    return f->entry < batch;
}

static int64_t differing(const void *a, const void *b, size_t n, size_t elem_bytes)
{
    int64_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += memcmp((const uint8_t *)a + i * elem_bytes, (const uint8_t *)b + i * elem_bytes, elem_bytes) != 0;
    return count;
}

/* Rows that were not chosen get the true bits again; the rest is counted. */
static void settle(eng_fault_run *f, const eng_step *s, const eng_op *op)
{
    int64_t *changed = &f->fault->changed[s->rank];
    if (is_state(s, op)) {
        *changed += differing(s->ring[0][op->stage], f->ring[0], ring_bytes(s) / sizeof(bf16), sizeof(bf16));
        return;
    }
    for (int k = 0; k < op->n_out; k++) {
        eng_fault_value v = eng_fault_out(f, s, op, k);
        size_t row = (size_t)v.cols * v.elem_bytes;
        for (int64_t r = 0; r < v.rows; r++) {
            uint8_t *at = (uint8_t *)v.data + (size_t)r * row;
            const uint8_t *clean = (const uint8_t *)f->clean[k] + (size_t)r * row;
            if (r < v.first || r >= v.first + v.count) memcpy(at, clean, row);
            else *changed += differing(at, clean, (size_t)v.cols, v.elem_bytes);
        }
    }
}

static void keep_clean(eng_fault_run *f, const eng_step *s, const eng_op *op)
{
    if (is_state(s, op)) memcpy(f->ring[0], s->ring[0][op->stage], ring_bytes(s));
    else
        for (int k = 0; k < op->n_out; k++) memcpy(f->clean[k], s->value[op->out[k]], value_bytes(s, op->out[k]));
}

/* What the next step finds in its buffers. */
static void keep_before(eng_fault_run *f, const eng_step *s, const eng_op *op)
{
    for (int k = 0; k < op->n_out && !is_state(s, op); k++)
        memcpy(f->before[k], s->value[op->out[k]], value_bytes(s, op->out[k]));
    if (op->n_in) memcpy(f->input_before, s->value[op->in[0]], value_bytes(s, op->in[0]));
    if (op->kind == ENG_OP_ATTENTION)
        for (int32_t b = 0; b < s->x.n[ENG_DIM_B]; b++) {
            memcpy(f->ring_before[b], s->ring[b][op->stage], ring_bytes(s));
            f->ring_before_of[b] = s->ring[b][op->stage];
        }
    f->x_before = s->x;
    f->runs++;
}

static err_code plant_once(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    const eng_step keep = *s;
    void *in[ENG_OP_INS];
    for (int k = 0; k < op->n_in; k++) in[k] = s->value[op->in[k]];
    err_code rc = f->mine || !(f->fault->kind->needs & ENG_RERUNS) ? f->fault->kind->plant(f, s, op, e) : f->fn(s, op, e);
    *s = keep;
    for (int k = 0; k < op->n_in; k++) s->value[op->in[k]] = in[k];
    if (f->view) *f->view = f->view_true;
    f->view = NULL;
    return rc;
}

static err_code faulty(eng_step *s, const eng_op *op, err *e)
{
    eng_fault_run *f = s->fault;
    const eng_fault *fault = f->fault;
    bool meets = s->comm && (op->kind == ENG_OP_ALL_REDUCE || op->kind == ENG_OP_MARKOV); /* then all ranks run it again */
    if (is_state(s, op)) memcpy(f->ring_before[0], s->ring[0][op->stage], ring_bytes(s));
    for (int k = 0; k < op->n_out && fault->kind->needs & ENG_HELD; k++)
        memcpy(f->held[k], s->value[op->out[k]], value_bytes(s, op->out[k]));
    TRY(f->fn(s, op, e));
    int32_t rank = fault->rank < 0 && fault->kind->needs & ENG_ONE_RANK ? s->n_ranks - 1 : fault->rank;
    f->mine = rank < 0 || rank == s->rank;
    bool here = fault->armed && choose_entries(f, s);
    if (here && (f->mine || (meets && fault->kind->needs & ENG_RERUNS))) {
        keep_clean(f, s, op);
        TRY(plant_once(f, s, op, e));
        settle(f, s, op);
        f->armed_runs++;
    }
    keep_before(f, s, op);
    return ERR_OK;
}

/* The norm of f32 sums that never were bf16: what a fused kernel makes when it leaves the rounding out. */
static err_code norm_of_wide(eng_step *s, const eng_op *op, err *e)
{
    eng_fault_run *f = s->fault;
    TRY(f->next_fn(s, op, e));
    if (!f->wide_valid) return ERR_OK;
    f->wide_valid = false;
    eng_fault_value y = eng_fault_out(f, s, op, 0);
    const bf16 *gain = eng_rank_weight(s->weights, op->weight[0], op->stage, -1)->data;
    for (int64_t r = y.first; r < y.first + y.count; r++) {
        const float *x = f->wide + r * y.cols;
        bf16 *out = (bf16 *)y.data + r * y.cols;
        double sum = 0;
        for (int64_t i = 0; i < y.cols; i++) sum += (double)x[i] * x[i];
        float scale = krn_f32_rsqrt((float)(sum / (double)y.cols) + (float)s->program->config.norm_eps);
        for (int64_t i = 0; i < y.cols; i++) {
            bf16 v = bf16_from_f32(f32_from_bf16(gain[i]) * (x[i] * scale));
            f->fault->changed[s->rank] += v != out[i];
            out[i] = v;
        }
    }
    return ERR_OK;
}

/* ---- planting ---- */

static err_code no_memory(const eng_fault *fault, err *e)
{
    return err_set(e, ERR_NOMEM, "fault %s: no memory", fault->kind->name);
}

/* Room for everything that a kind may want, for the largest step. */
static err_code take_room(eng_fault_run *f, const eng_step *s, const eng_op *op, err *e)
{
    size_t wide = 1;
    for (int k = 0; k < op->n_in; k++) {
        if (s->program->value[op->in[k]].state) continue;
        size_t bytes = value_bytes(s, op->in[k]);
        if (!(f->scratch[k] = mem_alloc_aligned(bytes, 1))) return no_memory(f->fault, e);
        if (k == 0 && !(f->input_before = mem_alloc_aligned(bytes, 1))) return no_memory(f->fault, e);
    }
    for (int k = 0; k < op->n_out && !is_state(s, op); k++) {
        size_t bytes = value_bytes(s, op->out[k]);
        f->clean[k] = mem_alloc_aligned(bytes, 1);
        f->before[k] = mem_alloc_aligned(bytes, 1);
        f->held[k] = mem_alloc_aligned(bytes, 1);
        if (!f->clean[k] || !f->before[k] || !f->held[k]) return no_memory(f->fault, e);
        if (k == 0) wide = (size_t)eng_value_elems(s->program, op->out[0], &s->x, s->rank, s->n_ranks);
    }
    for (int32_t b = 0; b < ENG_BATCH_MAX && (is_state(s, op) || op->kind == ENG_OP_ATTENTION); b++) {
        f->ring[b] = mem_alloc_aligned(ring_bytes(s) + ring_padding_bytes(s), 1);
        f->ring_before[b] = mem_alloc_aligned(ring_bytes(s), 1);
        if (!f->ring[b] || !f->ring_before[b]) return no_memory(f->fault, e);
    }
    if (op->n_weights && f->fault->kind->needs & ENG_WEIGHT) {
        const krn_weight *w = eng_rank_weight(s->weights, op->weight[0], op->stage, 0);
        f->data = mem_alloc_aligned((size_t)w->n, row_bytes(w));
        f->scale = mem_alloc_aligned((size_t)scale_rows(w) + 1, (size_t)w->k / FMT_QDQ_GROUP + 1);
        if (!f->data || !f->scale) return no_memory(f->fault, e);
        if (wide < (size_t)w->k) wide = (size_t)w->k;
    }
    if (f->fault->kind->needs & ENG_NEED_EXL3) {
        const krn_weight *w = eng_rank_weight(s->weights, op->weight[0], op->stage, 0);
        if (!(f->data = mem_alloc_aligned(eng_misread_bytes(w), 1))) return no_memory(f->fault, e);
    }
    return (f->wide = mem_alloc_aligned(wide, sizeof *f->wide)) ? ERR_OK : no_memory(f->fault, e);
}

err_code eng_fault_plant(eng_step *s, eng_fault *fault, err *e)
{
    const eng_program *p = s->program;
    if (fault->step != (int32_t)p->step) return ERR_OK;
    int32_t i = eng_program_find_op(p, fault->op);
    CHECK(i >= 0);
    eng_fault_run *f = s->fault = mem_alloc(1, sizeof *f);
    if (!f) return no_memory(fault, e);
    f->fault = fault;
    TRY(take_room(f, s, &p->op[i], e));
    f->fn = s->bound[i];
    s->bound[i] = faulty;
    if (fault->kind->needs & ENG_NEED_NORM) {
        f->next_fn = s->bound[i + 1];
        s->bound[i + 1] = norm_of_wide;
    }
    return ERR_OK;
}

void eng_fault_uproot(eng_fault_run *f)
{
    if (!f) return;
    for (int k = 0; k < ENG_OP_INS; k++) free(f->scratch[k]);
    for (int k = 0; k < ENG_OP_OUTS; k++) {
        free(f->clean[k]);
        free(f->before[k]);
        free(f->held[k]);
    }
    for (int b = 0; b < ENG_BATCH_MAX; b++) {
        free(f->ring[b]);
        free(f->ring_before[b]);
    }
    free(f->input_before);
    free(f->wide);
    free(f->data);
    free(f->scale);
    free(f);
}
