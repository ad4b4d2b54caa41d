/* Guesses about the values of an op group: rows, columns and roundings of any of them, with the rest run again. */
#include "replay/cause_trial.h"

#include "base/mem.h"
#include "capture/joined.h"
#include "kernels/act_qdq.h"

#include <math.h>

/* ---- the group's values ---- */

const eng_op *rpl_trial_op(const rpl_trial *t, int32_t k) { return &t->v->program->op[t->v->group->op[k]]; }

rpl_view rpl_view_of(const rpl_trial *t, int32_t value)
{
    const eng_program *p = t->v->program;
    int64_t shape[3];
    rpl_view v = { .data = eng_bench_value(t->v->bench, value), .dtype = p->value[value].dtype };
    eng_value_shape(p, value, eng_bench_extents(t->v->bench), 0, 1, shape);
    v.rows = shape[0];
    v.cols = shape[1] * shape[2];
    v.cut = p->value[value].place == FMT_PLACE_SHARDED && p->value[value].axis == 2 ? shape[2] : v.cols;
    v.elem = fmt_dtype_bytes(v.dtype);
    v.row = (size_t)v.cols * v.elem;
    return v;
}

float rpl_view_get(const rpl_view *v, int64_t i) { return (float)rpl_element(v->dtype, v->data, i); }

void rpl_view_set(const rpl_view *v, int64_t i, float x)
{
    if (v->dtype == FMT_DTYPE_BF16) ((bf16 *)(void *)v->data)[i] = bf16_from_f32(x);
    else if (v->dtype == FMT_DTYPE_F32) ((float *)(void *)v->data)[i] = x;
}

static bool writes(const eng_op *op, int32_t value)
{
    for (int j = 0; op && j < op->n_out; j++)
        if (op->out[j] == value) return true;
    return false;
}

void rpl_trial_restore(rpl_trial *t, const eng_op *but)
{
    for (int32_t i = 0; i < t->v->program->n_values; i++) {
        if (!t->kept[i] || writes(but, i)) continue;
        rpl_view v = rpl_view_of(t, i);
        memcpy(v.data, t->kept[i], (size_t)v.rows * v.row);
    }
}

static const char *name_of(const rpl_trial *t, int32_t value) { return t->v->program->value[value].name; }

/* ---- the step before ---- */

/* The record of the same value in the step before; false: none. */
static bool find_before(const rpl_trial *t, fmt_tape_record *out)
{
    const rpl_forced_value *v = t->v;
    bool here = false;
    for (size_t i = fmt_tape_count(t->x->tape); i-- > 0;) {
        fmt_tape_at(t->x->tape, i, out);
        if (strcmp(out->key.name, v->name) != 0 || (out->key.slot == FMT_TAPE_NO_SLOT) != (v->slot == FMT_TAPE_NO_SLOT))
            continue;
        if (out->key.round == v->round && out->key.slot == v->slot) here = true;
        else if (here || out->key.round < v->round) return true;
    }
    return false;
}

/* Copies what the tape holds of a value into the bench, as far as both reach. *there: the tape has it. */
static err_code load(rpl_trial *t, const fmt_tape_key *of, int32_t value, bool *there, err *e)
{
    cap_value found = { 0 };
    rpl_view v = rpl_view_of(t, value);
    const fmt_tape_key key = { of->round, of->slot, 0, name_of(t, value) };
    err ignored = { 0 };
    err_code rc = cap_joined_get(t->x->tape, &key, &found, &ignored);
    *there = rc == ERR_OK && found.tensor.dtype == v.dtype;
    if (*there) {
        size_t bytes = (size_t)fmt_tensor_bytes(&found.tensor), room = (size_t)v.rows * v.row;
        memcpy(v.data, found.tensor.data, bytes < room ? bytes : room);
    }
    cap_value_fini(&found);
    if (rc != ERR_OK && rc != ERR_INPUT && e) *e = ignored;
    return rc == ERR_INPUT ? ERR_OK : rc;
}

/* t->old: the group's values as the step before made them, from its recorded inputs. */
static err_code load_old(rpl_trial *t, err *e)
{
    const rpl_group *g = t->v->group;
    fmt_tape_record before;
    bool there, all = true, own;
    if (!find_before(t, &before)) return ERR_OK;
    t->old_round = before.key.round;
    for (int32_t i = 0; i < g->n_in; i++) {
        if (t->v->program->value[g->in[i]].state) continue;
        TRY(load(t, &before.key, g->in[i], &there, e));
        all = all && there;
    }
    err_code rc = ERR_OK;
    for (int32_t k = 0; k < g->n_ops && rc == ERR_OK && all; k++) {
        bool attends = rpl_trial_op(t, k)->kind == ENG_OP_ATTENTION;
        rc = attends ? rpl_trial_attend_before(t, k, e) : eng_bench_run(t->v->bench, g->op[k], g->op[k], e);
    }
    if (rc == ERR_OK) rc = load(t, &before.key, t->v->value, &own, e);
    for (int32_t i = 0; i < t->v->program->n_values && rc == ERR_OK; i++) {
        if (!t->kept[i] || (!all && !(i == t->v->value && own))) continue;
        rpl_view v = rpl_view_of(t, i);
        if (!(t->old[i] = mem_alloc((size_t)v.rows * v.row + 1, 1))) rc = err_set(e, ERR_NOMEM, "cause: no memory");
        else memcpy(t->old[i], v.data, (size_t)v.rows * v.row);
    }
    rpl_trial_restore(t, NULL);
    return rc;
}

/* Rows [first, last] that are `wanted` (NULL: all), columns from the given fraction of every share on, become the old. */
static bool make_old(rpl_trial *t, int32_t value, const bool *wanted, int64_t first, int64_t last, int shares, bool half)
{
    if (!t->old[value]) return false;
    rpl_view v = rpl_view_of(t, value);
    const uint8_t *old = t->old[value];
    if ((wanted && v.rows != t->rows) || v.cut % shares != 0) return false;
    for (int64_t r = first; r <= last && r < v.rows; r++)
        for (int s = 0; s < shares && (!wanted || wanted[r]); s++)
            for (int64_t n = v.cols / shares, j = half ? n / 2 : 0; j < n; j++) {
                size_t at = (size_t)r * v.row + (size_t)rpl_view_column(&v, shares, s, j) * v.elem;
                memcpy(v.data + at, old + at, v.elem);
            }
    return true;
}

/* Values of the group that op k writes, or (k - 1) that the op after it reads. */
typedef struct set { const int32_t *value; int32_t n; } set;

static err_code guess_stale(rpl_trial *t, int32_t k, set of, err *e)
{
    const int64_t end = INT32_MAX;
    for (int how = 0; how < 4; how++) { /* all rows, those that are wrong, the first, the first wrong one */
        bool any = false;
        int64_t one = how == 2 ? 0 : t->first_bad;
        for (int32_t j = 0; j < of.n; j++)
            if (!t->v->program->value[of.value[j]].state)
                any |= make_old(t, of.value[j], how == 1 ? t->bad : NULL, how < 2 ? 0 : one, how < 2 ? end : one, 1, false);
        if (any)
            TRY(rpl_trial_run(t, k + 1, ENG_CAUSE_STALE, e, "%s%s of round %d", how == 2 ? "the first row of " : how ?
                              "rows of " : "", name_of(t, of.value[0]), t->old_round));
    }
    return ERR_OK;
}

static err_code guess_stale_input(rpl_trial *t, int32_t k, err *e)
{
    const eng_op *op = rpl_trial_op(t, k);
    const int64_t end = INT32_MAX;
    if (op->n_in == 0 || t->v->program->value[op->in[0]].state) return ERR_OK;
    for (int how = 0; how < 3; how++) { /* the whole input, half of it, half of every rank's */
        if (how == 2 && t->x->n_ranks < 2) continue;
        if (make_old(t, op->in[0], NULL, 0, end, how == 2 ? t->x->n_ranks : 1, how > 0))
            TRY(rpl_trial_run_op(t, k, ENG_CAUSE_STALE, e, "%s read %s of round %d%s", op->name, name_of(t, op->in[0]),
                              t->old_round, how ? ", half of its columns" : ""));
    }
    return ERR_OK;
}

/* ---- rows ---- */

static void swap_bytes(uint8_t *a, uint8_t *b, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint8_t keep = a[i];
        a[i] = b[i];
        b[i] = keep;
    }
}

static void swap_rows(rpl_trial *t, set of, int64_t a, int64_t b, int64_t n)
{
    for (int32_t j = 0; j < of.n; j++) {
        if (t->v->program->value[of.value[j]].state) continue;
        rpl_view v = rpl_view_of(t, of.value[j]);
        if (a + n <= v.rows && b + n <= v.rows) swap_bytes(rpl_view_row(&v, a), rpl_view_row(&v, b), (size_t)n * v.row);
    }
}

static err_code guess_rows(rpl_trial *t, int32_t k, set of, err *e)
{
    const char *name = name_of(t, of.value[0]);
    int64_t a = t->n_bad_rows == 2 ? t->first_bad : 0, b = t->n_bad_rows == 2 ? t->last_bad : 1;
    int64_t rows = rpl_view_of(t, of.value[0]).rows;
    for (int32_t x = 0; x < t->batch && rows % t->batch == 0; x++)
        for (int32_t y = x + 1; y < t->batch; y++) {
            int64_t n = rows / t->batch;
            swap_rows(t, of, x * n, y * n, n);
            TRY(rpl_trial_run(t, k + 1, ENG_CAUSE_SLOT_SWAP, e, "%s, entries %d and %d of the batch", name, x, y));
        }
    if (rows > 1) { /* after the slots: rows of a position that all slots share are the same */
        swap_rows(t, of, a, b, 1);
        TRY(rpl_trial_run(t, k + 1, ENG_CAUSE_ROW_SWAP, e, "%s, rows %lld and %lld", name, (long long)a, (long long)b));
    }
    return ERR_OK;
}

/* ---- columns ---- */

static err_code guess_columns(rpl_trial *t, int32_t k, int32_t value, int32_t shares, err *e)
{
    rpl_view v = rpl_view_of(t, value);
    const int64_t hd = t->v->program->config.head_dim, share = v.cols / shares;
    const char *name = name_of(t, value), *each = shares > 1 ? " of every rank" : "";
    if (v.cut % shares != 0 || share < 2) return ERR_OK;
    if (v.cols % hd == 0 && share / hd >= 2) {
        for (int64_t r = 0; r < v.rows; r++)
            for (int32_t s = 0; s < shares; s++) {
                uint8_t *at = rpl_view_row(&v, r) + (size_t)(s * share) * v.elem;
                swap_bytes(at, at + (size_t)hd * v.elem, (size_t)hd * v.elem);
            }
        TRY(rpl_trial_run(t, k + 1, ENG_CAUSE_HEAD_SWAP, e, "%s, heads 0 and 1%s", name, each));
    }
    const uint8_t *right = t->kept[value];
    for (int back = 0; back < 2; back++) {
        for (int64_t r = 0; r < v.rows; r++)
            for (int64_t s = 0; s < shares; s++)
                for (int64_t j = 0; j < share; j++) {
                    int64_t to = r * v.cols + rpl_view_column(&v, shares, s, j);
                    int64_t from = r * v.cols + rpl_view_column(&v, shares, s, (j + (back ? share - 1 : 1)) % share);
                    memcpy(v.data + (size_t)to * v.elem, right + (size_t)from * v.elem, v.elem);
                }
        TRY(rpl_trial_run(t, k + 1, ENG_CAUSE_PERMUTATION, e, "%s, columns rotated by %d%s", name, back ? 1 : -1, each));
    }
    return ERR_OK;
}

/* ---- never written ---- */

/* What stands there when nobody wrote: NaN, in the last row or in the last columns of every row. */
static err_code guess_unwritten(rpl_trial *t, int32_t k, int32_t value, err *e)
{
    const fmt_tensor *r = &t->v->recorded;
    rpl_view v = rpl_view_of(t, value);
    int64_t i = rpl_trial_is_written(t) ? t->n : 0;
    while (i < t->n && !isnan(rpl_element(r->dtype, r->data, i))) i++;
    if (i == t->n) return ERR_OK;
    for (int64_t c = 0; c < v.cols; c++) rpl_view_set(&v, (v.rows - 1) * v.cols + c, NAN);
    TRY(rpl_trial_run(t, k + 1, ENG_CAUSE_UNWRITTEN, e, "%s, the last row is NaN", name_of(t, value)));
    for (int shares = 1; shares <= t->x->n_ranks; shares += t->x->n_ranks > 1 ? t->x->n_ranks - 1 : 1) {
        if (v.cut % shares != 0) break;
        int64_t share = v.cols / shares, n = share < 2 * FMT_QDQ_GROUP ? share / 2 : FMT_QDQ_GROUP;
        for (int64_t at = 0; at < v.rows * shares * n; at++) {
            int64_t row = at / n / shares, s = at / n % shares;
            rpl_view_set(&v, row * v.cols + rpl_view_column(&v, shares, s, share - n + at % n), NAN);
        }
        TRY(rpl_trial_run(t, k + 1, ENG_CAUSE_UNWRITTEN, e, "%s, the last %lld columns are NaN", name_of(t, value),
                          (long long)n));
    }
    return ERR_OK;
}

/* ---- roundings ---- */

static float through_fp16(float x)
{
    uint32_t u = f32_bits(x), size = u & 0x7fffffff;
    if (isnan(x)) return x;
    if (size >= 0x477ff000) return copysignf(INFINITY, x);                   /* 65,520 and more */
    if (size < 0x38800000) return nearbyintf(x * 0x1p24f) * 0x1p-24f;        /* subnormal */
    return f32_from_bits((u + 0xfff + ((u >> 13) & 1)) & 0xffffe000);
}

static void each(const rpl_view *v, float (*fn)(float))
{
    for (int64_t i = 0; i < v->rows * v->cols; i++) rpl_view_set(v, i, fn(rpl_view_get(v, i)));
}

static err_code guess_rounding(rpl_trial *t, int32_t k, int32_t value, err *e)
{
    rpl_view v = rpl_view_of(t, value);
    const char *name = name_of(t, value);
    if (v.dtype == FMT_DTYPE_F32) {
        each(&v, bf16_round);
        TRY(rpl_trial_run(t, k + 1, ENG_CAUSE_ROUNDING_EXTRA, e, "%s as bf16", name));
        each(&v, through_fp16);
        return rpl_trial_run(t, k + 1, ENG_CAUSE_FP16_RANGE, e, "%s through fp16", name);
    }
    if (v.dtype != FMT_DTYPE_BF16 || v.cols % FMT_QDQ_GROUP != 0) return ERR_OK;
    bf16 *at = (bf16 *)(void *)v.data;
    krn_act_qdq_ref(at, v.cols, at, v.cols, (int32_t)v.rows, (int32_t)v.cols);
    return rpl_trial_run(t, k + 1, ENG_CAUSE_ROUNDING_EXTRA, e, "%s through e4m3", name);
}

/* Partial sums of the ranks, rounded before they are added. */
static err_code guess_parts(rpl_trial *t, int32_t k, bool fp16, err *e)
{
    const eng_op *op = rpl_trial_op(t, k);
    if (t->x->n_ranks < 2 || op->n_weights != 1 || eng_wkind_of(op->weight[0])->cut != ENG_CUT_COLS) return ERR_OK;
    rpl_view in = rpl_view_of(t, op->in[0]), out = rpl_view_of(t, op->out[0]);
    const int64_t n = out.rows * out.cols;
    if (out.dtype != FMT_DTYPE_F32) return ERR_OK;
    float *sum = mem_alloc((size_t)n + 1, sizeof *sum);
    err_code rc = sum ? ERR_OK : err_set(e, ERR_NOMEM, "cause: no memory");
    for (int32_t rank = 0; rank < t->x->n_ranks && rc == ERR_OK; rank++) {
        int32_t n_w, k_w;
        eng_wid_shape(&t->v->program->config, op->weight[0], &n_w, &k_w);
        eng_range r = eng_cut_range(&t->v->program->config, op->weight[0], rank, t->x->n_ranks);
        for (int64_t i = 0; i < in.rows * in.cols; i++)
            if (i % k_w < r.first || i % k_w >= r.first + r.count) rpl_view_set(&in, i, 0);
        rc = eng_bench_run(t->v->bench, t->v->group->op[k], t->v->group->op[k], e);
        for (int64_t i = 0; i < n; i++) {
            float part = rpl_view_get(&out, i);
            sum[i] += fp16 ? through_fp16(part) : bf16_round(part);
        }
        rpl_trial_restore(t, NULL);
    }
    if (rc == ERR_OK) {
        memcpy(out.data, sum, (size_t)n * sizeof *sum);
        rc = rpl_trial_run(t, k + 1, fp16 ? ENG_CAUSE_FP16_RANGE : ENG_CAUSE_ROUNDING_EXTRA, e,
                           "%s, each rank's part as %s", name_of(t, op->out[0]), fp16 ? "fp16" : "bf16");
    }
    free(sum);
    return rc;
}

static err_code guess_fp16_input(rpl_trial *t, int32_t k, err *e)
{
    const eng_op *op = rpl_trial_op(t, k);
    if (op->n_in == 0 || t->v->program->value[op->in[0]].state) return ERR_OK;
    rpl_view v = rpl_view_of(t, op->in[0]);
    if (v.dtype == FMT_DTYPE_I32) return ERR_OK;
    each(&v, through_fp16);
    return rpl_trial_run_op(t, k, ENG_CAUSE_FP16_RANGE, e, "%s as %s reads it, through fp16", name_of(t, op->in[0]),
                            op->name);
}

/* ---- sums before their rounding ---- */

float *rpl_trial_wide(const rpl_trial *t, int32_t k)
{
    const eng_op *op = rpl_trial_op(t, k);
    rpl_view in, out = rpl_view_of(t, op->out[0]);
    if (out.dtype != FMT_DTYPE_BF16 || (op->kind != ENG_OP_LINEAR && op->kind != ENG_OP_WO_A && op->kind != ENG_OP_ROUND))
        return NULL;
    in = rpl_view_of(t, op->in[0]);
    float *wide = mem_alloc((size_t)(out.rows * out.cols) + 1, sizeof *wide);
    if (!wide) return NULL;
    if (op->kind == ENG_OP_ROUND) {
        memcpy(wide, in.data, (size_t)(out.rows * out.cols) * sizeof *wide);
        return wide;
    }
    const krn_weight *w = eng_bench_weight(t->v->bench, op->weight[0], op->stage, -1);
    const int32_t groups = (int32_t)(in.cols / w->k), each_n = w->n / groups;
    for (int32_t g = 0; g < groups; g++) {
        krn_weight part = krn_weight_slice(w, g * each_n, each_n, 0, w->k);
        krn_linear_ref((const bf16 *)(void *)in.data + (int64_t)g * w->k, in.cols, (int32_t)in.rows, &part, KRN_ACC_F64,
                       KRN_OUT_F32, wide + (int64_t)g * each_n, w->n);
    }
    return wide;
}

static err_code guess_wide(rpl_trial *t, int32_t k, err *e)
{
    const eng_op *op = rpl_trial_op(t, k);
    rpl_view out = rpl_view_of(t, op->out[0]);
    float *wide = rpl_trial_wide(t, k);
    if (!wide) return ERR_OK;
    for (int64_t i = 0; i < out.rows * out.cols; i++) rpl_view_set(&out, i, through_fp16(wide[i]));
    err_code rc = rpl_trial_run(t, k + 1, ENG_CAUSE_FP16_RANGE, e, "the sums of %s through fp16", op->name);
    const eng_op *next = k + 1 < t->v->group->n_ops ? rpl_trial_op(t, k + 1) : NULL;
    if (rc == ERR_OK && next && next->kind == ENG_OP_RMSNORM && next->in[0] == op->out[0]) {
        rpl_view y = rpl_view_of(t, next->out[0]);
        const bf16 *gain = eng_bench_weight(t->v->bench, next->weight[0], next->stage, -1)->data;
        for (int64_t r = 0; r < y.rows; r++) {
            double sum = 0;
            for (int64_t i = r * y.cols; i < (r + 1) * y.cols; i++) sum += (double)wide[i] * wide[i];
            float by = (float)(1 / sqrt(sum / (double)y.cols + t->v->program->config.norm_eps));
            for (int64_t i = 0; i < y.cols; i++)
                rpl_view_set(&y, r * y.cols + i, f32_from_bf16(gain[i]) * (wide[r * y.cols + i] * by));
        }
        rc = rpl_trial_run(t, k + 2, ENG_CAUSE_ROUNDING_MISSING, e, "%s takes the f32 sums of %s", next->name, op->name);
    }
    free(wide);
    return rc;
}

/* What the ranks added before op k reads it; their adding is no op of its own here. */
static err_code guess_reduced(rpl_trial *t, int32_t k, int32_t value, err *e)
{
    const eng_value *v = &t->v->program->value[value];
    const set read = { &value, 1 };
    if (t->x->n_ranks < 2 || v->place != FMT_PLACE_PARTIAL || !t->kept[value]) return ERR_OK;
    TRY(guess_rows(t, k - 1, read, e));
    TRY(guess_stale(t, k - 1, read, e));
    TRY(guess_rounding(t, k - 1, value, e));
    return guess_columns(t, k - 1, value, 1, e);
}

err_code rpl_guess_values(rpl_trial *t, err *e)
{
    TRY(load_old(t, e));
    for (int32_t k = t->v->group->n_ops - 1; k >= 0 && !rpl_trial_done(t); k--) {
        const eng_op *op = rpl_trial_op(t, k);
        const set made = { op->out, op->n_out };
        TRY(guess_rows(t, k, made, e));
        TRY(guess_stale(t, k, made, e));
        TRY(guess_stale_input(t, k, e));
        for (int j = 0; j < op->n_out; j++) {
            if (t->v->program->value[op->out[j]].state || rpl_view_of(t, op->out[j]).dtype == FMT_DTYPE_I32) continue;
            TRY(guess_unwritten(t, k, op->out[j], e));
            TRY(guess_rounding(t, k, op->out[j], e));
            TRY(guess_columns(t, k, op->out[j], 1, e));
            if (t->x->n_ranks > 1) TRY(guess_columns(t, k, op->out[j], t->x->n_ranks, e));
        }
        for (int j = 0; j < op->n_in; j++) TRY(guess_reduced(t, k, op->in[j], e));
        for (int fp16 = 0; fp16 < 2; fp16++) TRY(guess_parts(t, k, fp16, e));
        TRY(guess_wide(t, k, e));
        TRY(guess_fp16_input(t, k, e));
    }
    return ERR_OK;
}
