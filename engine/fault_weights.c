/* Kinds of fault in a weight: its codes, its scales, which one it is. */
#include "engine/fault_run.h"

#include "base/mem.h"

/* Where a single code is changed: a row by the op's name, in it the column with the largest product of weight and first
 * chosen input row, so that the change is one that shows. index: the element itself. */
static int64_t place(eng_fault_run *f, const eng_step *s, const eng_op *op, const krn_weight *w)
{
    if (f->fault->index >= 0) return f->fault->index % ((int64_t)w->n * w->k);
    int64_t n = eng_fault_pick(f, op, w->n);
    const eng_fault_value x = eng_fault_value_of(f, s, op->in[0]);
    const bf16 *row = (const bf16 *)x.data + x.first * x.cols; /* of a grouped linear: of the first group */
    bool has_row = op->kind == ENG_OP_LINEAR || op->kind == ENG_OP_EXPERTS_UP;
    int32_t best = 0;
    float most = -1;
    krn_weight_decode_f32(w, (int32_t)n, 1, f->wide);
    for (int32_t k = 0; k < w->k; k++) {
        float size = fabsf(f->wide[k]) * (has_row ? fabsf(f32_from_bf16(row[k])) : 1);
        if (size > most) {
            most = size;
            best = k;
        }
    }
    return n * w->k + best;
}

/* Flips one bit of the code at place: the sign, or the lowest of the exponent. */
static err_code flip(eng_fault_run *f, eng_step *s, const eng_op *op, bool sign, err *e)
{
    const krn_weight *w = eng_fault_take_weight(f, s, op);
    int64_t i = place(f, s, op, w);
    switch (w->format) {
    case KRN_W_FP8: f->data[i] ^= sign ? 0x80 : 0x08; break;
    case KRN_W_FP4: f->data[i / 2] ^= (uint8_t)((sign ? 8 : 2) << (i % 2 * 4)); break;
    case KRN_W_BF16: f->data[i * 2 + sign] ^= 0x80; break; /* little-endian: bit 7 is the exponent's lowest */
    case KRN_W_F32: f->data[i * 4 + 2 + sign] ^= 0x80; break;
    case KRN_W_EXL3: break; /* fits() keeps these faults from it */
    }
    return eng_fault_rerun(f, s, op, e);
}

static err_code weight_sign(eng_fault_run *f, eng_step *s, const eng_op *op, err *e) { return flip(f, s, op, true, e); }
static err_code weight_exponent(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    return flip(f, s, op, false, e);
}

static err_code nibble_order(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    const krn_weight *w = eng_fault_take_weight(f, s, op);
    for (int64_t i = 0; i < w->n * w->row_bytes; i++) f->data[i] = (uint8_t)(f->data[i] << 4 | f->data[i] >> 4);
    return eng_fault_rerun(f, s, op, e);
}

static int64_t scale_rows(const krn_weight *w) { return w->format == KRN_W_FP8 ? (w->scale_row0 + w->n + 31) / 32 : w->n; }

static err_code scale_shift(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    const krn_weight *w = eng_fault_take_weight(f, s, op);
    int64_t n = scale_rows(w) * w->scale_row_bytes;
    memmove(f->scale, f->scale + 1, (size_t)n - 1); /* the last keeps its own */
    return eng_fault_rerun(f, s, op, e);
}

/* Scales read column by column out of memory that holds them row by row. */
static err_code scale_transposed(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    krn_weight true_one = *eng_fault_weight(f, s, op);
    const krn_weight *w = eng_fault_take_weight(f, s, op);
    int64_t rows = scale_rows(w), cols = w->scale_row_bytes;
    for (int64_t i = 0; i < rows * cols; i++) { /* element i of the stored order stands at [i % rows][i / rows] */
        int64_t from = i % rows * cols + i / rows;
        f->scale[i] = true_one.scale[from / cols * true_one.scale_row_bytes + from % cols];
    }
    return eng_fault_rerun(f, s, op, e);
}

static err_code set_scale(eng_fault_run *f, eng_step *s, const eng_op *op, uint8_t value, err *e)
{
    const krn_weight *w = eng_fault_take_weight(f, s, op);
    int64_t i = place(f, s, op, w), n = i / w->k, group = i % w->k / FMT_QDQ_GROUP;
    int64_t row = w->format == KRN_W_FP8 ? (w->scale_row0 + n) / 32 : n;
    f->scale[row * w->scale_row_bytes + group] = value;
    return eng_fault_rerun(f, s, op, e);
}

static err_code scale_zero(eng_fault_run *f, eng_step *s, const eng_op *op, err *e) { return set_scale(f, s, op, 0, e); }
static err_code scale_nan(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    return set_scale(f, s, op, FMT_E8M0_NAN, e);
}

static err_code scale_byte(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    const krn_weight *w = eng_fault_take_weight(f, s, op);
    int64_t i = place(f, s, op, w), n = i / w->k, group = i % w->k / FMT_QDQ_GROUP;
    int64_t row = w->format == KRN_W_FP8 ? (w->scale_row0 + n) / 32 : n;
    f->scale[row * w->scale_row_bytes + group]++;
    return eng_fault_rerun(f, s, op, e);
}

static err_code scale_missing(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    const krn_weight *w = eng_fault_take_weight(f, s, op);
    memset(f->scale, FMT_E8M0_BIAS, (size_t)(scale_rows(w) * w->scale_row_bytes));
    return eng_fault_rerun(f, s, op, e);
}

/* Output n is made with the weights of output n + 1. */
static err_code weight_row_shift(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    const krn_weight *w = eng_fault_take_weight(f, s, op);
    memmove(f->data, f->data + w->row_bytes, (size_t)((w->n - 1) * w->row_bytes));
    if (w->format == KRN_W_FP4) memmove(f->scale, f->scale + w->scale_row_bytes, (size_t)((w->n - 1) * w->scale_row_bytes));
    return eng_fault_rerun(f, s, op, e);
}

/* The second half of the rows was never loaded. */
static err_code weight_half(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    const krn_weight *w = eng_fault_take_weight(f, s, op);
    memset(f->data + w->n / 2 * w->row_bytes, 0, (size_t)((w->n - w->n / 2) * w->row_bytes));
    return eng_fault_rerun(f, s, op, e);
}

static err_code weight_stage(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    int32_t other = (op->stage + 1) % s->program->config.n_stages;
    eng_fault_set_weight(f, s, op, *eng_rank_weight(s->weights, op->weight[0], other, 0));
    return eng_fault_rerun(f, s, op, e);
}

static err_code gain_missing(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    const krn_weight *w = eng_fault_take_weight(f, s, op);
    for (int32_t i = 0; i < w->n; i++) ((bf16 *)(void *)f->data)[i] = bf16_from_f32(1);
    return eng_fault_rerun(f, s, op, e);
}

static err_code gain_plus_one(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    const krn_weight *w = eng_fault_take_weight(f, s, op);
    bf16 *gain = (bf16 *)(void *)f->data;
    for (int32_t i = 0; i < w->n; i++) gain[i] = bf16_from_f32(f32_from_bf16(gain[i]) + 1);
    return eng_fault_rerun(f, s, op, e);
}

/* ---- the table ---- */

#define K(name) ENG_FAULT_OP(name)
#define MATRICES (K(LINEAR) | K(WO_A) | K(EXPERTS_UP) | K(EXPERTS_DOWN))
#define COPY (ENG_RERUNS | ENG_WEIGHT)

static const eng_fault_kind KINDS[] = {
    { "weight-sign", "the sign of one weight is flipped", MATRICES, COPY, ENG_CAUSE_FUNCTION, true, weight_sign },
    { "weight-exponent", "an exponent bit of one weight is flipped", MATRICES, COPY, ENG_CAUSE_FUNCTION, true,
      weight_exponent },
    { "nibble-order", "the two FP4 codes of every byte change places", MATRICES, COPY | ENG_NEED_FP4,
      ENG_CAUSE_NIBBLE_ORDER, true, nibble_order },
    { "scale-shift", "every block uses the scale of the next one", MATRICES, COPY | ENG_NEED_QUANTISED,
      ENG_CAUSE_SCALE_ORDER, true, scale_shift },
    { "scale-transposed", "scales are read by columns", MATRICES, COPY | ENG_NEED_QUANTISED, ENG_CAUSE_SCALE_ORDER, true,
      scale_transposed },
    { "scale-byte", "one block's scale is twice as large", MATRICES, COPY | ENG_NEED_QUANTISED, ENG_CAUSE_SCALE_BYTE,
      true, scale_byte },
    { "scale-0", "one block's scale byte is 0: 2^-127", MATRICES, COPY | ENG_NEED_QUANTISED, ENG_CAUSE_E8M0_EDGE, true,
      scale_zero },
    { "scale-255", "one block's scale byte is 255: NaN", MATRICES, COPY | ENG_NEED_QUANTISED, ENG_CAUSE_E8M0_EDGE, true,
      scale_nan },
    { "scale-missing", "all scales are 1", MATRICES, COPY | ENG_NEED_QUANTISED, ENG_CAUSE_SCALE_BYTE, true, scale_missing },
    { "weight-row-shift", "every output uses the weights of the next one", MATRICES, COPY, ENG_CAUSE_PERMUTATION, true,
      weight_row_shift },
    { "weight-half", "the second half of the weight's rows is 0", MATRICES, COPY, ENG_CAUSE_FUNCTION, true, weight_half },
    { "weight-stage", "the next stage's weight", K(LINEAR) | K(WO_A) | K(RMSNORM), ENG_RERUNS | ENG_NEED_STAGES,
      ENG_CAUSE_FUNCTION, true, weight_stage },
    { "gain-missing", "the norm's gains are 1", K(RMSNORM), COPY, ENG_CAUSE_FUNCTION, true, gain_missing },
    { "gain-plus-one", "the norm's gains are 1 + w", K(RMSNORM), COPY, ENG_CAUSE_FUNCTION, true, gain_plus_one },
};

const eng_fault_table ENG_FAULTS_WEIGHTS = { KINDS, COUNT_OF(KINDS) };
