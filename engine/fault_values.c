/* Kinds of fault that need not know what the op computes: its rows, columns, roundings and buffers. */
#include "engine/fault_run.h"

#include "base/mem.h"
#include "engine/poison.h"
#include "kernels/act_qdq.h"

static uint8_t *row_of(const eng_fault_value *v, int64_t r)
{
    return (uint8_t *)v->data + (size_t)(r * v->cols) * v->elem_bytes;
}
static size_t row_bytes(const eng_fault_value *v) { return (size_t)v->cols * v->elem_bytes; }

static void swap_bytes(uint8_t *a, uint8_t *b, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint8_t keep = a[i];
        a[i] = b[i];
        b[i] = keep;
    }
}

static float element(const eng_fault_value *v, int64_t i)
{
    return v->dtype == FMT_DTYPE_BF16 ? f32_from_bf16(((const bf16 *)v->data)[i]) : ((const float *)v->data)[i];
}

static void set_element(const eng_fault_value *v, int64_t i, float x)
{
    if (v->dtype == FMT_DTYPE_BF16) ((bf16 *)v->data)[i] = bf16_from_f32(x);
    else ((float *)v->data)[i] = x;
}

/* fn of every element of the chosen rows. */
static void each(const eng_fault_value *v, float (*fn)(float))
{
    for (int64_t i = v->first * v->cols; i < (v->first + v->count) * v->cols; i++) set_element(v, i, fn(element(v, i)));
}

static float through_fp16(float x)
{
    uint32_t u = f32_bits(x), size = u & 0x7fffffff;
    if (isnan(x)) return x;
    if (size >= 0x477ff000) return copysignf(INFINITY, x);                       /* 65,520 and more */
    if (size < 0x38800000) return nearbyintf(x * 16777216.0f) / 16777216.0f;      /* subnormal: steps of 2^-24 */
    return f32_from_bits((u + 0xfff + ((u >> 13) & 1)) & 0xffffe000);
}

static float truncated(float x) { return f32_from_bits(f32_bits(x) & 0xffff0000); }

/* ---- rows ---- */

static err_code row_swap(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    for (int k = 0; k < op->n_out; k++) {
        eng_fault_value v = eng_fault_out(f, s, op, k);
        int64_t a = v.first, b = v.first + 1 < v.first + v.count ? v.first + 1 : v.first;
        swap_bytes(row_of(&v, a), row_of(&v, b), row_bytes(&v));
    }
    return ERR_OK;
}

static err_code row_repeated(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    for (int k = 0; k < op->n_out; k++) {
        eng_fault_value v = eng_fault_out(f, s, op, k);
        if (v.count > 1) memcpy(row_of(&v, v.first + v.count - 1), row_of(&v, v.first + v.count - 2), row_bytes(&v));
    }
    return ERR_OK;
}

/* Rows of output k that both this step and the one before have. */
static int64_t rows_before(const eng_fault_run *f, const eng_step *s, const eng_op *op, int k)
{
    int64_t shape[3];
    if (f->runs == 0) return 0;
    eng_value_shape(s->program, op->out[k], &f->x_before, s->rank, s->n_ranks, shape);
    return shape[0];
}

static err_code keep_old_rows(eng_fault_run *f, const eng_step *s, const eng_op *op, bool one)
{
    for (int k = 0; k < op->n_out; k++) {
        eng_fault_value v = eng_fault_out(f, s, op, k);
        int64_t n = rows_before(f, s, op, k);
        for (int64_t r = v.first; r < v.first + (one && v.count ? 1 : v.count) && r < n; r++)
            memcpy(row_of(&v, r), (const uint8_t *)f->before[k] + (size_t)r * row_bytes(&v), row_bytes(&v));
    }
    return ERR_OK;
}

static err_code row_stale(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    return keep_old_rows(f, s, op, true);
}

static err_code stale(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    return keep_old_rows(f, s, op, false);
}

/* The rows of the first chosen entry and of its neighbour in the batch change places. */
static err_code slot_swap(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    int64_t batch = s->x.n[ENG_DIM_B];
    for (int k = 0; k < op->n_out && batch > 1; k++) {
        eng_fault_value v = eng_fault_out(f, s, op, k);
        int64_t per_entry = v.rows / batch, other = (f->entry + 1) % batch;
        for (int64_t r = 0; r < per_entry; r++)
            swap_bytes(row_of(&v, f->entry * per_entry + r), row_of(&v, other * per_entry + r), row_bytes(&v));
    }
    return ERR_OK;
}

/* What stands where nobody wrote: this run's poison, or the first one. */
static void poison(const eng_step *s, const eng_fault_value *v, int64_t first, int64_t n)
{
    uint32_t word;
    eng_poison_fill(s->poison ? s->poison : 1, v->dtype, &word, sizeof word);
    for (int64_t i = first; i < first + n; i++)
        memcpy((uint8_t *)v->data + (size_t)i * v->elem_bytes, &word, v->elem_bytes);
}

static err_code unwritten_tail(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    eng_fault_value v = eng_fault_out(f, s, op, 0);
    if (v.count) poison(s, &v, (v.first + v.count - 1) * v.cols, v.cols);
    return ERR_OK;
}

/* Not what the previous step left there (row_stale): whatever lies in the memory, as other values share it. */
static err_code row_held(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    eng_fault_value v = eng_fault_out(f, s, op, 0);
    int64_t last = v.first + v.count - 1;
    if (v.count) memcpy(row_of(&v, last), (const uint8_t *)f->held[0] + (size_t)last * row_bytes(&v), row_bytes(&v));
    return ERR_OK;
}

static err_code unwritten_columns(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    eng_fault_value v = eng_fault_out(f, s, op, 0);
    int64_t n = v.cols < 2 * FMT_QDQ_GROUP ? v.cols / 2 : FMT_QDQ_GROUP; /* what a tile too few leaves */
    for (int64_t r = v.first; r < v.first + v.count; r++) poison(s, &v, (r + 1) * v.cols - n, n);
    return ERR_OK;
}

/* ---- columns and elements ---- */

static void zero_column(const eng_fault_value *v, int64_t column)
{
    for (int64_t r = v->first; r < v->first + v->count; r++) set_element(v, r * v->cols + column, 0);
}

static err_code first_column_zero(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    eng_fault_value v = eng_fault_out(f, s, op, 0);
    zero_column(&v, 0);
    return ERR_OK;
}

static err_code last_column_zero(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    eng_fault_value v = eng_fault_out(f, s, op, 0);
    zero_column(&v, v.cols - 1);
    return ERR_OK;
}

static err_code columns_rotated(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    eng_fault_value v = eng_fault_out(f, s, op, 0);
    for (int64_t r = v.first; r < v.first + v.count; r++) {
        uint8_t keep[sizeof(float)];
        memcpy(keep, row_of(&v, r), v.elem_bytes);
        memmove(row_of(&v, r), row_of(&v, r) + v.elem_bytes, row_bytes(&v) - v.elem_bytes);
        memcpy(row_of(&v, r + 1) - v.elem_bytes, keep, v.elem_bytes);
    }
    return ERR_OK;
}

static err_code head_swap(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    eng_fault_value v = eng_fault_out(f, s, op, 0);
    size_t head = (size_t)s->program->config.head_dim * v.elem_bytes;
    for (int64_t r = v.first; r < v.first + v.count; r++) swap_bytes(row_of(&v, r), row_of(&v, r) + head, head);
    return ERR_OK;
}

/* Element that the fault is about, in the chosen rows; -1: there are none. */
static int64_t chosen_element(const eng_fault_run *f, const eng_op *op, const eng_fault_value *v)
{
    int64_t n = v->count * v->cols;
    return n ? v->first * v->cols + eng_fault_pick(f, op, n) : -1;
}

static err_code nan_element(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    eng_fault_value v = eng_fault_out(f, s, op, 0);
    int64_t i = chosen_element(f, op, &v);
    if (i >= 0) set_element(&v, i, NAN);
    return ERR_OK;
}

/* A few units in the last place of one row's largest element, now and then: what a race looks like from outside. As a race
 * the Thue-Morse sequence (parity of the bits of a count) has no period: however often a run has the op, a second run goes
 * wrong in other places than the first. */
static err_code unstable(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    eng_fault_value v = eng_fault_out(f, s, op, 0);
    int64_t largest = v.first * v.cols;
    if (__builtin_parityll((unsigned long long)f->armed_runs) || v.count == 0) return ERR_OK;
    for (int64_t i = largest; i < (v.first + 1) * v.cols; i++)
        if (fabsf(element(&v, i)) > fabsf(element(&v, largest))) largest = i;
    set_element(&v, largest, element(&v, largest) * (1 + 1 / 32.0f)); /* 4 to 8 units of bf16 */
    return ERR_OK;
}

/* ---- roundings ---- */

static err_code rounding_extra(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    eng_fault_value v = eng_fault_out(f, s, op, 0);
    each(&v, bf16_round);
    return ERR_OK;
}

static err_code qdq_extra(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    eng_fault_value v = eng_fault_out(f, s, op, 0);
    bf16 *at = (bf16 *)(void *)row_of(&v, v.first);
    krn_act_qdq_ref(at, v.cols, at, v.cols, (int32_t)v.count, (int32_t)v.cols);
    return ERR_OK;
}

static err_code fp16_output(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    eng_fault_value v = eng_fault_out(f, s, op, 0);
    each(&v, through_fp16);
    return ERR_OK;
}

static err_code fp16_input(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    eng_fault_value v = eng_fault_take_in(f, s, op, 0);
    each(&v, through_fp16);
    return eng_fault_rerun(f, s, op, e);
}

/* The sums before they became bf16, rounded by fn instead. */
static err_code round_wide(eng_fault_run *f, const eng_step *s, const eng_op *op, float (*fn)(float))
{
    eng_fault_value v = eng_fault_out(f, s, op, 0);
    const float *x = s->value[op->in[0]]; /* of a round op */
    if (op->kind != ENG_OP_ROUND) {
        eng_fault_wide(f, s, op);
        x = f->wide;
    }
    for (int64_t i = v.first * v.cols; i < (v.first + v.count) * v.cols; i++) set_element(&v, i, fn(x[i]));
    return ERR_OK;
}

static err_code rounding_truncated(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    return round_wide(f, s, op, truncated);
}

static err_code fp16_sum(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    return round_wide(f, s, op, through_fp16);
}

/* The norm that follows takes the sums as they were before they became bf16. */
static err_code rounding_missing(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    eng_fault_wide(f, s, op);
    f->wide_valid = true;
    return ERR_OK;
}

static err_code order(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    s->acc = s->acc == KRN_ACC_F64 ? KRN_ACC_BLOCKED : KRN_ACC_F64;
    s->taps_acc = s->taps_acc == KRN_ACC_F64 ? KRN_ACC_BLOCKED : KRN_ACC_F64;
    s->exl3_acc = s->exl3_acc == KRN_ACC_F64 ? KRN_ACC_BLOCKED : KRN_ACC_F64;
    return eng_fault_rerun(f, s, op, e);
}

/* ---- inputs ---- */

/* Columns [from, end) of every row of the first input are what they were in the previous step. */
static err_code with_old_input(eng_fault_run *f, eng_step *s, const eng_op *op, bool half, err *e)
{
    int64_t shape[3];
    eng_fault_value v = eng_fault_take_in(f, s, op, 0);
    int64_t from = half ? v.cols / 2 : 0;
    eng_value_shape(s->program, op->in[0], &f->x_before, s->rank, s->n_ranks, shape);
    for (int64_t r = v.first; f->runs && r < v.first + v.count && r < shape[0]; r++) {
        size_t at = (size_t)(r * v.cols + from) * v.elem_bytes;
        memcpy((uint8_t *)v.data + at, (const uint8_t *)f->input_before + at, (size_t)(v.cols - from) * v.elem_bytes);
    }
    return eng_fault_rerun(f, s, op, e);
}

static err_code race(eng_fault_run *f, eng_step *s, const eng_op *op, err *e) { return with_old_input(f, s, op, false, e); }
static err_code torn(eng_fault_run *f, eng_step *s, const eng_op *op, err *e) { return with_old_input(f, s, op, true, e); }

static err_code k_tail(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    eng_fault_value v = eng_fault_take_in(f, s, op, 0);
    int64_t n = v.cols < FMT_QDQ_GROUP ? v.cols / 2 : FMT_QDQ_GROUP;
    for (int64_t r = v.first; r < v.first + v.count; r++)
        memset(row_of(&v, r + 1) - (size_t)n * v.elem_bytes, 0, (size_t)n * v.elem_bytes);
    return eng_fault_rerun(f, s, op, e);
}

/* ---- ranks ---- */

static err_code reduce_bf16(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    eng_fault_value v = eng_fault_take_in(f, s, op, 0);
    each(&v, bf16_round);
    return eng_fault_rerun(f, s, op, e);
}

static float nothing(float x) { (void)x; return 0; }
static float twice(float x) { return 2 * x; }

static err_code reduce_missing(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    eng_fault_value v = eng_fault_take_in(f, s, op, 0);
    each(&v, nothing);
    return eng_fault_rerun(f, s, op, e);
}

static err_code reduce_twice(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    eng_fault_value v = eng_fault_take_in(f, s, op, 0);
    each(&v, twice);
    return eng_fault_rerun(f, s, op, e);
}

/* One rank goes on with its own part. */
static err_code reduce_skipped(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    eng_fault_value v = eng_fault_out(f, s, op, 0);
    memcpy(v.data, s->value[op->in[0]], (size_t)(v.rows * v.cols) * v.elem_bytes);
    return ERR_OK;
}

/* One rank's copy of a value that all have differs in a row. */
static err_code rank_differs(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    eng_fault_value v = eng_fault_out(f, s, op, 0);
    if (v.count) v.count = 1;
    each(&v, twice);
    return ERR_OK;
}

/* ---- the table ---- */

#define K(name) ENG_FAULT_OP(name)
#define REAL (K(EMBED) | K(ACT_QDQ) | LINEARS | K(RMSNORM) | K(ROPE) | K(ROPE_INV) | K(MIXES) | K(COLLAPSE) | K(EXPAND) | \
              K(ATTENTION) | K(ALL_REDUCE) | K(ROUND) | K(GATE_SCORES) | K(EXPERTS_UP) | K(EXPERTS_DOWN) | K(SWIGLU) |    \
              K(COMBINE_EXACT) | K(COMBINE_FUSED) | K(CONFIDENCE))
#define LINEARS (K(LINEAR) | K(WO_A))
#define SUMS (LINEARS | K(MIXES) | K(COLLAPSE) | K(EXPAND) | K(ATTENTION) | K(TOPK) | K(EXPERTS_UP) | K(EXPERTS_DOWN) |   \
              K(MARKOV) | K(CONFIDENCE))
#define READERS (K(ACT_QDQ) | LINEARS | K(RMSNORM) | K(ROPE) | K(ROPE_INV) | K(COLLAPSE) | K(EXPAND) | K(ATTENTION) |     \
                 K(ROUND) | K(GATE_SCORES) | K(EXPERTS_UP) | K(EXPERTS_DOWN) | K(SWIGLU) | K(COMBINE_EXACT) |             \
                 K(COMBINE_FUSED) | K(CONFIDENCE))

static const eng_fault_kind KINDS[] = {
    { "row-swap", "the first two rows of every output change places", REAL | K(TOPK), 0, ENG_CAUSE_ROW_SWAP, true,
      row_swap },
    { "row-repeated", "the last row is the one before it again", REAL | K(TOPK), 0, ENG_CAUSE_FUNCTION, true,
      row_repeated },
    { "row-stale", "the first row is what the previous step left there", REAL | K(TOPK), 0, ENG_CAUSE_STALE, true,
      row_stale },
    { "stale", "the whole output is what the previous step left there", REAL | K(TOPK), 0, ENG_CAUSE_STALE, true, stale },
    { "slot-swap", "rows of two slots of the batch change places", REAL | K(TOPK), ENG_NEED_DRAFT, ENG_CAUSE_SLOT_SWAP,
      true, slot_swap },
    { "unwritten-tail", "the last row is never written: poison stands there", REAL, 0, ENG_CAUSE_UNWRITTEN, true,
      unwritten_tail },
    { "unwritten-held", "the last row is never written: what its memory held stands there", REAL, ENG_HELD,
      ENG_CAUSE_UNWRITTEN, true, row_held },
    { "unwritten-columns", "the last columns are never written: poison stands there", REAL, 0, ENG_CAUSE_UNWRITTEN, true,
      unwritten_columns },
    { "first-column-zero", "the first column is 0", REAL, 0, ENG_CAUSE_FUNCTION, true, first_column_zero },
    { "last-column-zero", "the last column is 0", REAL, 0, ENG_CAUSE_FUNCTION, true, last_column_zero },
    { "columns-rotated", "every row is rotated by one column", REAL, 0, ENG_CAUSE_PERMUTATION, true, columns_rotated },
    { "head-swap", "the first two heads change places", K(LINEAR) | K(ROPE) | K(ROPE_INV) | K(ATTENTION) | K(ACT_QDQ),
      ENG_NEED_HEADS, ENG_CAUSE_HEAD_SWAP, true, head_swap },
    { "nan", "one element is NaN", REAL, 0, ENG_CAUSE_FUNCTION, true, nan_element },
    { "unstable", "now and then one element is a few ulps larger", REAL, 0, ENG_CAUSE_UNSTABLE, false, unstable },
    { "rounding-extra", "the f32 output is rounded to bf16", REAL | K(MARKOV), ENG_NEED_F32, ENG_CAUSE_ROUNDING_EXTRA,
      true, rounding_extra },
    { "qdq-extra", "the output goes through e4m3, which it must not", LINEARS | K(RMSNORM) | K(COLLAPSE) | K(EXPAND) |
      K(ATTENTION) | K(ROUND) | K(SWIGLU) | K(COMBINE_EXACT), ENG_NEED_BF16 | ENG_NEED_GROUPS, ENG_CAUSE_ROUNDING_EXTRA,
      false, qdq_extra },
    { "rounding-truncated", "the sum becomes bf16 by cutting off, not to nearest", LINEARS | K(ROUND), ENG_NEED_BF16,
      ENG_CAUSE_FUNCTION, true, rounding_truncated },
    { "rounding-missing", "the norm takes the linear's f32 sums, not their bf16", K(LINEAR), ENG_NEED_BF16 |
      ENG_NEED_NORM, ENG_CAUSE_ROUNDING_MISSING, true, rounding_missing },
    { "fp16-sum", "the sum is fp16 before it is bf16", LINEARS | K(ROUND), ENG_NEED_BF16, ENG_CAUSE_FP16_RANGE, false,
      fp16_sum },
    { "fp16-output", "the f32 output went through fp16", REAL, ENG_NEED_F32, ENG_CAUSE_FP16_RANGE, true, fp16_output },
    { "fp16-input", "the input went through fp16: large ones are infinite, small ones 0", K(ACT_QDQ) | LINEARS |
      K(RMSNORM) | K(EXPERTS_DOWN), ENG_RERUNS, ENG_CAUSE_FP16_RANGE, false, fp16_input },
    { "order", "sums are made in the other order (blocked or f64)", SUMS, ENG_RERUNS, ENG_CAUSE_ORDER, false, order },
    { "race", "the op runs before its first input is written: it sees the previous step's", READERS, ENG_RERUNS,
      ENG_CAUSE_STALE, true, race },
    { "torn", "the second half of the first input is the previous step's", READERS, ENG_RERUNS, ENG_CAUSE_STALE, true,
      torn },
    { "k-tail", "the last 32 columns of the input are left out of the sum", LINEARS | K(EXPERTS_UP) | K(EXPERTS_DOWN) |
      K(CONFIDENCE), ENG_RERUNS, ENG_CAUSE_FUNCTION, true, k_tail },
    { "reduce-bf16", "partial sums are bf16 before they are added", K(ALL_REDUCE), ENG_RERUNS, ENG_CAUSE_ROUNDING_EXTRA,
      true, reduce_bf16 },
    { "reduce-missing", "one rank's part is left out", K(ALL_REDUCE), ENG_RERUNS | ENG_ONE_RANK, ENG_CAUSE_FUNCTION, true,
      reduce_missing },
    { "reduce-twice", "one rank's part is added twice", K(ALL_REDUCE), ENG_RERUNS | ENG_ONE_RANK, ENG_CAUSE_FUNCTION,
      true, reduce_twice },
    { "reduce-skipped", "one rank goes on with its own part alone", K(ALL_REDUCE), ENG_ONE_RANK,
      ENG_CAUSE_RANK_DISAGREEMENT, true, reduce_skipped },
    { "rank-differs", "one rank's copy of a row is twice as large", K(RMSNORM) | K(COLLAPSE) | K(EXPAND) | K(ROUND) |
      K(COMBINE_EXACT) | K(GATE_SCORES), ENG_ONE_RANK, ENG_CAUSE_RANK_DISAGREEMENT, true, rank_differs },
};

const eng_fault_table ENG_FAULTS_VALUES = { KINDS, COUNT_OF(KINDS) };
