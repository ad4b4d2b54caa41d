/* Where an illegal element comes from: the op, or what it read. */
#include "replay/certify_round.h"

#include "base/mem.h"

#include <math.h>

static err_code no_memory(err *e) { return err_set(e, ERR_NOMEM, "certify: no memory"); }

static bool room_for(uint8_t **array, size_t *capacity, size_t bytes)
{
    void *a = *array;
    bool fine = mem_grow(&a, capacity, bytes + 1, 1);
    *array = a;
    return fine;
}

err_code rpl_place_room(rpl_certify *c, const fmt_tensor *t, err *e)
{
    size_t n = (size_t)fmt_tensor_elems(t), bytes = (size_t)fmt_tensor_bytes(t);
    if (room_for(&c->classes, &c->classes_capacity, n) && room_for(&c->classes_right, &c->classes_right_capacity, n) &&
        room_for(&c->right, &c->right_capacity, bytes))
        return ERR_OK;
    return no_memory(e);
}

void rpl_place_forget_round(rpl_certify *c)
{
    for (size_t i = 0; i < c->n_wrong; i++) free(c->wrong[i].right);
    c->n_wrong = 0;
}

void rpl_place_forget_rings(rpl_certify *c)
{
    for (size_t i = 0; i < c->n_rings; i++) {
        for (int32_t r = 0; r < c->config.window; r++) free(c->ring[i].row[r]);
        free(c->ring[i].row);
    }
    c->n_rings = 0;
    c->rings_at = 0;
}

static int32_t stage_of(const char *name) { return (int32_t)strtol(name + 1, NULL, 10); }

static const rpl_wrong *find_wrong(const rpl_certify *c, eng_step_kind step, int32_t slot, int32_t value)
{
    for (size_t i = 0; i < c->n_wrong; i++) {
        const rpl_wrong *w = &c->wrong[i];
        if (w->step == step && w->slot == slot && w->value == value) return w;
    }
    return NULL;
}

static const rpl_wrong *find_window(const rpl_certify *c, int32_t slot, int32_t stage)
{
    for (size_t i = 0; i < c->n_wrong; i++) {
        const rpl_wrong *w = &c->wrong[i];
        if (w->value < 0 && w->slot == slot && w->stage == stage) return w;
    }
    return NULL;
}

static rpl_fixed_ring *find_ring(const rpl_certify *c, int32_t slot, int32_t stage)
{
    for (size_t i = 0; i < c->n_rings; i++)
        if (c->ring[i].slot == slot && c->ring[i].stage == stage) return &c->ring[i];
    return NULL;
}

err_code rpl_place_wrong(rpl_certify *c, const rpl_forced_value *v, bool ranks_differ, err *e)
{
    const rpl_wrong *known = v->program ? find_wrong(c, v->program->step, v->slot, v->value) : NULL;
    if (known) return ERR_OK;
    void *array = c->wrong;
    if (!mem_grow(&array, &c->wrong_capacity, c->n_wrong + 1, sizeof *c->wrong)) return no_memory(e);
    c->wrong = array;
    rpl_wrong *w = &c->wrong[c->n_wrong];
    *w = (rpl_wrong){ .step = v->program ? v->program->step : ENG_STEP_DRAFT, .slot = v->slot, .value = v->value,
                      .bytes = (size_t)fmt_tensor_bytes(&v->recorded) };
    w->name = c->name[c->cursor].name;
    if (v->value < 0) w->stage = stage_of(v->name);
    if (!ranks_differ) {
        w->right = mem_alloc(w->bytes + 1, 1);
        if (!w->right) return no_memory(e);
        memcpy(w->right, v->recorded.data, w->bytes);
        size_t elem = fmt_dtype_bytes(v->recorded.dtype), n = w->bytes / elem;
        for (size_t i = 0; i < n && v->value >= 0; i++)
            if (c->classes[i] == RPL_ILLEGAL) memcpy(w->right + i * elem, c->right + i * elem, elem);
    }
    c->n_wrong++;
    return ERR_OK;
}

/* ---- rows of the rings ---- */

static err_code add_ring(rpl_certify *c, int32_t slot, int32_t stage, rpl_fixed_ring **out, err *e)
{
    void *array = c->ring;
    if (!mem_grow(&array, &c->ring_capacity, c->n_rings + 1, sizeof *c->ring)) return no_memory(e);
    c->ring = array;
    rpl_fixed_ring *ring = *out = &c->ring[c->n_rings];
    *ring = (rpl_fixed_ring){ .slot = slot, .stage = stage, .name = c->name[c->cursor].name };
    ring->row = mem_alloc((size_t)c->config.window, sizeof *ring->row);
    if (!ring->row) return no_memory(e);
    c->n_rings++;
    return ERR_OK;
}

err_code rpl_place_rows(rpl_certify *c, const rpl_forced_value *v, bool illegal, err *e)
{
    int32_t stage = stage_of(v->name);
    rpl_fixed_ring *ring = find_ring(c, v->slot, stage);
    if (!ring && !illegal) return ERR_OK;
    if (!ring) TRY(add_ring(c, v->slot, stage, &ring, e));
    const int32_t *pos = eng_bench_value(v->bench, eng_program_find_value(v->program, "pos"));
    int64_t rows = v->recorded.shape[0], width = v->recorded.shape[1];
    for (int64_t r = 0; r < rows; r++) {
        bf16 **to = &ring->row[pos[r] % c->config.window];
        bool wrong = false;
        for (int64_t i = 0; illegal && i < width; i++) wrong = wrong || c->classes[r * width + i] == RPL_ILLEGAL;
        if (!wrong) {
            free(*to);
            *to = NULL;
            continue;
        }
        if (!*to) *to = mem_alloc((size_t)width, sizeof **to);
        if (!*to) return no_memory(e);
        const bf16 *was = (const bf16 *)v->recorded.data + r * width;
        const bf16 *right = (const bf16 *)(const void *)c->right + r * width;
        for (int64_t i = 0; i < width; i++) (*to)[i] = c->classes[r * width + i] == RPL_ILLEGAL ? right[i] : was[i];
    }
    return ERR_OK;
}

/* ---- a group run with its inputs put right ---- */

typedef struct rerun {
    rpl_certify *c;
    const rpl_forced_value *v;
    uint8_t **was, **use;    /* [n_in] bytes of each input as recorded, and as the group is to read it */
    bf16 *rings_was;         /* of attention: [batch, window, head_dim] */
    int32_t *forced_was;     /* recorded drafts, NULL: none */
    size_t n_forced;
    const char *from;        /* the first input that was put right */
} rerun;

static size_t input_bytes(const rerun *r, int32_t k)
{
    const eng_program *p = r->v->program;
    int32_t in = r->v->group->in[k];
    return (size_t)eng_value_elems(p, in, &r->c->extents[p->step], 0, 1) * fmt_dtype_bytes(p->value[in].dtype);
}

static bool attends(const rerun *r, int32_t *stage)
{
    const rpl_group *g = r->v->group;
    for (int32_t k = 0; k < g->n_ops; k++) {
        const eng_op *op = &r->v->program->op[g->op[k]];
        if (op->kind != ENG_OP_ATTENTION) continue;
        *stage = op->stage;
        return true;
    }
    return false;
}

static size_t ring_elems(const rpl_certify *c) { return (size_t)c->config.window * (size_t)c->config.head_dim; }

/* Puts right the rows of one slot's ring: as its window was recorded where that is wrong, else by the fixed rows. */
static bool fix_ring(const rpl_certify *c, int32_t slot, int32_t stage, bf16 *ring)
{
    const rpl_wrong *window = find_window(c, slot, stage);
    const rpl_fixed_ring *fixed = find_ring(c, slot, stage);
    size_t width = (size_t)c->config.head_dim;
    bool changed = false;
    if (window) {
        memcpy(ring, window->right, window->bytes);
        return true;
    }
    for (int32_t r = 0; fixed && r < c->config.window; r++) {
        if (!fixed->row[r]) continue;
        memcpy(ring + (size_t)r * width, fixed->row[r], width * sizeof *ring);
        changed = true;
    }
    return changed;
}

static err_code open_rerun(rerun *r, err *e)
{
    rpl_certify *c = r->c;
    const rpl_forced_value *v = r->v;
    const rpl_group *g = v->group;
    int32_t stage, drafts = eng_program_find_value(v->program, "drafts");
    const int32_t *forced = v->program->step == ENG_STEP_DRAFT ? eng_bench_forced_drafts(v->bench) : NULL;
    r->was = mem_alloc((size_t)g->n_in + 1, sizeof *r->was);
    r->use = mem_alloc((size_t)g->n_in + 1, sizeof *r->use);
    if (!r->was || !r->use) return no_memory(e);
    for (int32_t k = 0; k < g->n_in; k++) {
        size_t bytes = input_bytes(r, k);
        const rpl_wrong *wrong = find_wrong(c, v->program->step, v->slot, g->in[k]);
        if (v->program->value[g->in[k]].state) continue;
        r->was[k] = mem_alloc(bytes + 1, 1);
        r->use[k] = mem_alloc(bytes + 1, 1);
        if (!r->was[k] || !r->use[k]) return no_memory(e);
        memcpy(r->was[k], eng_bench_value(v->bench, g->in[k]), bytes);
        memcpy(r->use[k], wrong && wrong->right ? wrong->right : r->was[k], bytes);
        if (wrong && !r->from) r->from = wrong->name;
    }
    if (attends(r, &stage)) {
        r->rings_was = mem_alloc((size_t)c->batch * ring_elems(c), sizeof *r->rings_was);
        if (!r->rings_was) return no_memory(e);
        for (int32_t b = 0; b < c->batch; b++) {
            bf16 *ring = eng_bench_ring(v->bench, b, stage);
            memcpy(r->rings_was + (size_t)b * ring_elems(c), ring, ring_elems(c) * sizeof *ring);
            if (!fix_ring(c, c->slots[b], stage, ring) || r->from) continue;
            const rpl_wrong *window = find_window(c, c->slots[b], stage);
            r->from = window ? window->name : find_ring(c, c->slots[b], stage)->name;
        }
    }
    if (forced) {
        r->n_forced = (size_t)eng_value_elems(v->program, drafts, &c->extents[ENG_STEP_DRAFT], 0, 1);
        r->forced_was = mem_alloc(r->n_forced, sizeof *r->forced_was);
        if (!r->forced_was) return no_memory(e);
        memcpy(r->forced_was, forced, r->n_forced * sizeof *forced);
        const rpl_wrong *wrong = find_wrong(c, ENG_STEP_DRAFT, v->slot, drafts);
        if (wrong && wrong->right && r->from) eng_bench_force_drafts(v->bench, (const int32_t *)(const void *)wrong->right);
    }
    return ERR_OK;
}

static void set_inputs(const rerun *r, uint8_t *const *from)
{
    for (int32_t k = 0; k < r->v->group->n_in; k++)
        if (from[k]) memcpy(eng_bench_value(r->v->bench, r->v->group->in[k]), from[k], input_bytes(r, k));
}

/* As a forced run does it: an op of the chain may also write an input, whose given bytes then win. */
static err_code run_group(const rerun *r, uint8_t *const *inputs, err *e)
{
    const rpl_group *g = r->v->group;
    set_inputs(r, inputs);
    for (int32_t k = 0; k < g->n_ops; k++) {
        TRY(eng_bench_run(r->v->bench, g->op[k], g->op[k], e));
        set_inputs(r, inputs);
    }
    return ERR_OK;
}

/* Everything as the forced run left it, its outputs too: others of the group are yet to be judged. */
static err_code close_rerun(rerun *r, bool ran, err *e)
{
    int32_t stage;
    if (r->rings_was && attends(r, &stage))
        for (int32_t b = 0; b < r->c->batch; b++)
            memcpy(eng_bench_ring(r->v->bench, b, stage), r->rings_was + (size_t)b * ring_elems(r->c),
                   ring_elems(r->c) * sizeof *r->rings_was);
    if (r->forced_was) eng_bench_force_drafts(r->v->bench, r->forced_was);
    err_code rc = ran ? run_group(r, r->was, e) : ERR_OK;
    for (int32_t k = 0; k < r->v->group->n_in; k++) {
        if (r->was) free(r->was[k]);
        if (r->use) free(r->use[k]);
    }
    free(r->was);
    free(r->use);
    free(r->rings_was);
    free(r->forced_was);
    return rc;
}

/* Puts right the recorded drafts, position by position: a token that the logits under the tokens before it do not allow
 * gives way to theirs, before the next position is looked at. *found: all tokens then (the caller frees them), NULL: none
 * had to. */
static err_code fix_drafts(rerun *r, int32_t **found, err *e)
{
    rpl_certify *c = r->c;
    const eng_program *p = r->v->program;
    int32_t drafts = eng_program_find_value(p, "drafts"), n_out = (int32_t)c->extents[ENG_STEP_DRAFT].n[ENG_DIM_N_OUT];
    rpl_forced_value d = *r->v;
    const int32_t *computed = eng_bench_value(r->v->bench, drafts);
    uint8_t *classes = mem_alloc(r->n_forced, 1);
    int32_t *right = mem_alloc(r->n_forced, sizeof *right);
    bool changed = false;
    err_code rc = classes && right ? ERR_OK : no_memory(e);
    if (rc == ERR_OK) memcpy(right, r->forced_was, r->n_forced * sizeof *right);
    d.value = drafts;
    d.name = p->value[drafts].name;
    d.computed = fmt_tensor_make(FMT_DTYPE_I32, computed, 2, (const int64_t[]){ c->batch, n_out });
    d.recorded = fmt_tensor_make(FMT_DTYPE_I32, r->forced_was, 2, (const int64_t[]){ c->batch, n_out });
    for (int32_t i = 0; i < n_out && rc == ERR_OK; i++) {
        rpl_verdict verdict;
        eng_bench_force_drafts(r->v->bench, right);
        rc = run_group(r, r->use, e);
        if (rc == ERR_OK) rc = rpl_judge_value(c->judge, &d, &verdict, classes, e);
        for (int32_t b = 0; b < c->batch && rc == ERR_OK; b++) {
            int32_t k = b * n_out + i;
            if (classes[k] != RPL_ILLEGAL || right[k] == computed[k]) continue;
            right[k] = computed[k];
            changed = true;
        }
    }
    if (rc == ERR_OK && changed) {
        eng_bench_force_drafts(r->v->bench, right);
        rc = run_group(r, r->use, e);
    }
    free(classes);
    if (rc == ERR_OK && changed) *found = right;
    else free(right);
    return rc;
}

/* ---- what is left ---- */

/* got lies nearer to what right inputs give than to what the recorded ones do. */
static bool nearer(fmt_dtype dtype, const void *got, const void *recorded_gives, const void *right_gives, int64_t i)
{
    double g = rpl_element(dtype, got, i), before = fabs(g - rpl_element(dtype, recorded_gives, i)),
           after = fabs(g - rpl_element(dtype, right_gives, i));
    return dtype != FMT_DTYPE_I32 && isfinite(after) && !(before <= after);
}

/* Takes from c->classes what right inputs explain. before: the op's output from the recorded inputs. */
static void leave_unexplained(rpl_certify *c, const rpl_forced_value *v, const uint8_t *before, rpl_finding_of *out)
{
    int64_t n = fmt_tensor_elems(&v->recorded), first = -1;
    bool worst_left = false;
    out->n_illegal = 0;
    for (int64_t i = 0; i < n; i++) {
        if (c->classes[i] != RPL_ILLEGAL) continue;
        if (c->classes_right[i] != RPL_ILLEGAL || nearer(v->recorded.dtype, v->recorded.data, before, c->right, i)) {
            c->classes[i] = RPL_FLIP;
            continue;
        }
        if (first < 0) first = i;
        worst_left = worst_left || i == out->verdict.worst;
        out->n_illegal++;
    }
    out->verdict.n_illegal = out->n_illegal;
    out->verdict.first = first;
    if (worst_left || first < 0) return;
    out->verdict.worst = first; /* the worst one of all is explained: the first that is not stands for the rest */
    out->verdict.got = rpl_element(v->recorded.dtype, v->recorded.data, first);
    out->verdict.exact = rpl_element(v->recorded.dtype, c->right, first);
    out->verdict.bound = out->verdict.ratio = NAN;
}

/* drafts under their own right prefix: only the tokens that were replaced are the op's own. */
static void leave_replaced(rpl_certify *c, const rpl_forced_value *v, const int32_t *right, rpl_finding_of *out)
{
    const int32_t *got = v->recorded.data;
    int64_t n = fmt_tensor_elems(&v->recorded);
    out->n_illegal = 0;
    out->verdict.first = -1;
    for (int64_t i = 0; i < n; i++) {
        bool own = got[i] != right[i];
        if (!own && c->classes[i] == RPL_ILLEGAL) c->classes[i] = RPL_FLIP;
        if (!own) continue;
        c->classes[i] = RPL_ILLEGAL;
        if (out->n_illegal++ == 0) {
            out->verdict.first = out->verdict.worst = i;
            out->verdict.got = got[i];
            out->verdict.exact = right[i];
            out->verdict.bound = 0;
            out->verdict.ratio = INFINITY;
        }
    }
    out->verdict.n_illegal = out->n_illegal;
    memcpy(c->right, right, (size_t)n * sizeof *right);
}

/* The first output of v's op, where that is wrong and v the second: tokens are judged from the recorded scores, weights
 * from the recorded ids. NULL: it is not. */
static const rpl_wrong *wrong_sibling(const rpl_certify *c, const rpl_forced_value *v, int32_t *value)
{
    const eng_op *op = &v->program->op[v->group->op[v->group->n_ops - 1]];
    *value = op->out[0];
    const rpl_wrong *w = *value == v->value ? NULL : find_wrong(c, v->program->step, v->slot, *value);
    return w && w->right ? w : NULL;
}

/* Judges v after its sibling, which the judge keeps, as the tape has it or put right. */
static err_code judge_after(rpl_certify *c, const rpl_forced_value *v, const rpl_wrong *w, int32_t value, err *e)
{
    rpl_forced_value s = *v;
    rpl_verdict ignored;
    int64_t shape[FMT_DIMS_MAX];
    eng_value_shape(v->program, value, &c->extents[v->program->step], 0, 1, shape);
    s.value = value;
    s.name = v->program->value[value].name;
    s.computed = fmt_tensor_make(v->program->value[value].dtype, eng_bench_value(v->bench, value),
                                 v->program->value[value].ndim, shape);
    s.recorded = s.computed;
    s.recorded.data = w->right;
    return rpl_judge_value(c->judge, &s, &ignored, NULL, e);
}

static err_code place_in_group(rerun *r, const uint8_t *before, rpl_finding_of *out, err *e)
{
    rpl_certify *c = r->c;
    const rpl_forced_value *v = r->v;
    bool markov = v->group->kind == ENG_OP_MARKOV && r->forced_was;
    int32_t *right_drafts = NULL;
    int32_t first;
    const rpl_wrong *sibling = wrong_sibling(c, v, &first);
    err_code rc = run_group(r, r->use, e);
    if (rc == ERR_OK && sibling) rc = judge_after(c, v, sibling, first, e);
    if (rc == ERR_OK && markov) rc = fix_drafts(r, &right_drafts, e);
    if (sibling && !r->from) r->from = sibling->name;
    if (right_drafts && v->value == eng_program_find_value(v->program, "drafts")) {
        leave_replaced(c, v, right_drafts, out);
        out->from = r->from ? r->from : "drafts";
        free(right_drafts);
        return rc;
    }
    if (right_drafts && !r->from) r->from = "drafts";
    free(right_drafts);
    if (rc != ERR_OK || !r->from) return rc;
    rc = rpl_judge_value(c->judge, v, &out->verdict, c->classes_right, e);
    if (rc != ERR_OK) return rc;
    memcpy(c->right, v->computed.data, (size_t)fmt_tensor_bytes(&v->computed));
    out->from = r->from;
    leave_unexplained(c, v, before, out);
    return ERR_OK;
}

static err_code place_window(rpl_certify *c, const rpl_forced_value *v, rpl_finding_of *out, err *e)
{
    size_t bytes = (size_t)fmt_tensor_bytes(&v->computed);
    bf16 *ring = mem_alloc(ring_elems(c), sizeof *ring);
    if (!ring) return no_memory(e);
    memcpy(ring, v->computed.data, bytes);
    rpl_forced_value right = *v;
    right.computed.data = ring;
    err_code rc = ERR_OK;
    const rpl_fixed_ring *fixed = find_ring(c, v->slot, stage_of(v->name));
    if (fixed && fix_ring(c, v->slot, stage_of(v->name), ring)) {
        rc = rpl_judge_value(c->judge, &right, &out->verdict, c->classes_right, e);
        memcpy(c->right, ring, bytes);
        out->from = fixed->name;
        if (rc == ERR_OK) leave_unexplained(c, v, v->computed.data, out);
    }
    free(ring);
    return rc;
}

/* A reader of a value on which ranks differ may have read either copy. */
static const char *reads_differing(const rpl_certify *c, const rpl_forced_value *v)
{
    for (int32_t k = 0; v->group && k < v->group->n_in; k++) {
        const rpl_wrong *w = find_wrong(c, v->program->step, v->slot, v->group->in[k]);
        if (w && !w->right) return w->name;
    }
    return NULL;
}

err_code rpl_place_value(rpl_certify *c, const rpl_forced_value *v, const rpl_verdict *verdict, rpl_finding_of *out, err *e)
{
    size_t bytes = (size_t)fmt_tensor_bytes(&v->computed);
    *out = (rpl_finding_of){ .verdict = *verdict, .n_illegal = verdict->n_illegal };
    memcpy(c->right, v->computed.data, bytes);
    if (!v->group) return place_window(c, v, out, e);
    const char *differing = reads_differing(c, v);
    if (differing) {
        out->from = differing;
        out->n_illegal = 0;
        return ERR_OK;
    }
    uint8_t *before = mem_alloc(bytes + 1, 1);
    if (!before) return no_memory(e);
    memcpy(before, v->computed.data, bytes);
    rerun r = { .c = c, .v = v };
    bool ran = false;
    err_code rc = open_rerun(&r, e);
    int32_t first;
    if (rc == ERR_OK && (r.from || wrong_sibling(c, v, &first) || (v->group->kind == ENG_OP_MARKOV && r.forced_was))) {
        ran = true;
        rc = place_in_group(&r, before, out, e);
    }
    err_code closed = close_rerun(&r, ran, rc == ERR_OK ? e : NULL);
    free(before);
    return rc == ERR_OK ? closed : rc;
}
