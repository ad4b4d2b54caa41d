/* Kinds of fault in what an op computes, one known mistake each: embeddings, QDQ, norms, RoPE, hyper-connections. */
#include "engine/fault_run.h"

#include "base/mem.h"
#include "kernels/rope.h"

static const void *in(const eng_step *s, const eng_op *op, int k) { return s->value[op->in[k]]; }
static const eng_config *config(const eng_step *s) { return &s->program->config; }

/* ---- tokens and embeddings ---- */

static void add_to_rows(const eng_fault_value *v, int32_t n, int32_t modulo)
{
    int32_t *x = v->data;
    for (int64_t i = v->first; i < v->first + v->count; i++) x[i] = modulo ? (x[i] + n) % modulo : x[i] + n;
}

static err_code embed_row(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    eng_fault_value ids = eng_fault_take_in(f, s, op, 0);
    add_to_rows(&ids, 1, config(s)->vocab);
    return eng_fault_rerun(f, s, op, e);
}

static err_code block_position(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    eng_fault_value last = eng_fault_take_in(f, s, op, 1);
    add_to_rows(&last, -1, 0);
    return eng_fault_rerun(f, s, op, e);
}

static err_code noise_token(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    eng_config *c = eng_fault_take_config(f, s);
    c->noise_id = c->noise_id > 0 ? 0 : 1;
    return eng_fault_rerun(f, s, op, e);
}

static err_code first_pre_even(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    eng_fault_value v = eng_fault_out(f, s, op, 0);
    for (int64_t i = 0; i < v.rows * v.cols; i++) ((float *)v.data)[i] = 1.0f / (float)v.cols;
    return ERR_OK;
}

/* ---- QDQ ---- */

typedef enum qdq_mistake { QDQ_GROUP64, QDQ_LATE, QDQ_LOW, QDQ_SHIFTED, QDQ_TRUNCATED, QDQ_PADDED } qdq_mistake;

static float largest(const bf16 *x, int64_t n)
{
    float amax = 0;
    for (int64_t i = 0; i < n; i++)
        if (fabsf(f32_from_bf16(x[i])) > amax) amax = fabsf(f32_from_bf16(x[i]));
    return amax;
}

/* The group of row x that begins at column c, with the mistake. */
static void qdq_group(const bf16 *x, int64_t cols, int64_t c, qdq_mistake how, bf16 *y)
{
    int64_t scaled_at = c, n = FMT_QDQ_GROUP;
    if (how == QDQ_GROUP64) {
        scaled_at = c / 64 * 64;
        n = scaled_at + 64 <= cols ? 64 : cols - scaled_at;
    }
    if (how == QDQ_SHIFTED) scaled_at = (c + FMT_QDQ_GROUP) % cols;
    float amax = largest(x + scaled_at, n);
    if (how == QDQ_PADDED && amax < 1e4f) amax = 1e4f; /* what a padding row held */
    uint8_t byte = fmt_qdq_scale(amax);
    if (how == QDQ_LOW && byte > 0) byte--;
    float scale = f32_from_e8m0(byte);
    float by = how == QDQ_LATE ? fmaxf(amax, 1e-4f) * (1.0f / 448.0f) : scale; /* codes first, then the scale's rounding */
    for (int i = 0; i < FMT_QDQ_GROUP; i++) {
        float v = f32_from_bf16(x[c + i]) / by;
        uint8_t code = e4m3_from_f32(fminf(fmaxf(v, -448), 448));
        if (how == QDQ_TRUNCATED && fabsf(FMT_E4M3_VALUE[code]) > fabsf(v)) code--;
        y[c + i] = bf16_from_f32(FMT_E4M3_VALUE[code] * scale);
    }
}

static err_code qdq(eng_fault_run *f, const eng_step *s, const eng_op *op, qdq_mistake how)
{
    eng_fault_value y = eng_fault_out(f, s, op, 0);
    for (int64_t r = y.first; r < y.first + y.count; r++)
        for (int64_t c = 0; c < y.cols; c += FMT_QDQ_GROUP)
            qdq_group((const bf16 *)in(s, op, 0) + r * y.cols, y.cols, c, how, (bf16 *)y.data + r * y.cols);
    return ERR_OK;
}

static err_code qdq_group64(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    return qdq(f, s, op, QDQ_GROUP64);
}
static err_code qdq_late(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    return qdq(f, s, op, QDQ_LATE);
}
static err_code qdq_low(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    return qdq(f, s, op, QDQ_LOW);
}
static err_code qdq_shifted(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    return qdq(f, s, op, QDQ_SHIFTED);
}
static err_code qdq_truncated(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    return qdq(f, s, op, QDQ_TRUNCATED);
}
static err_code qdq_padded(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    return qdq(f, s, op, QDQ_PADDED);
}

/* An op left out: its output is its first input. */
static err_code dropped(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    eng_fault_value v = eng_fault_out(f, s, op, 0);
    memcpy(v.data, in(s, op, 0), (size_t)(v.rows * v.cols) * v.elem_bytes);
    return ERR_OK;
}

/* The op on its own output. */
static err_code twice(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    eng_fault_value x = eng_fault_take_in(f, s, op, 0);
    memcpy(x.data, s->value[op->out[0]], (size_t)(x.rows * x.cols) * x.elem_bytes);
    return eng_fault_rerun(f, s, op, e);
}

/* ---- norm, RoPE ---- */

static err_code norm_eps(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    eng_fault_take_config(f, s)->norm_eps = 1e-6;
    return eng_fault_rerun(f, s, op, e);
}

static err_code norm_missing_mean(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    eng_fault_value y = eng_fault_out(f, s, op, 0);
    for (int64_t i = y.first * y.cols; i < (y.first + y.count) * y.cols; i++) /* the sum of squares for their mean */
        ((bf16 *)y.data)[i] = bf16_from_f32(f32_from_bf16(((bf16 *)y.data)[i]) / sqrtf((float)y.cols));
    return ERR_OK;
}

static err_code with_position(eng_fault_run *f, eng_step *s, const eng_op *op, int32_t off, err *e)
{
    eng_fault_value pos = eng_fault_take_in(f, s, op, 1);
    add_to_rows(&pos, off, 0);
    return eng_fault_rerun(f, s, op, e);
}
static err_code rope_late(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    return with_position(f, s, op, 1, e);
}
static err_code rope_early(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    return with_position(f, s, op, -1, e);
}

/* RoPE with its pairs elsewhere: halves, (i, i + n / 2) for (2i, 2i + 1); front, the first elements of a head. */
static err_code rotate(eng_fault_run *f, const eng_step *s, const eng_op *op, bool halves, bool front)
{
    const int32_t hd = config(s)->head_dim, n = config(s)->rope_dim, *pos = in(s, op, 1);
    eng_fault_value y = eng_fault_out(f, s, op, 0);
    bf16 *out = y.data;
    memcpy(out, in(s, op, 0), (size_t)(y.rows * y.cols) * sizeof *out);
    for (int64_t r = y.first; r < y.first + y.count; r++)
        for (int32_t i = 0; i < n / 2; i++) {
            float angle = (float)pos[r] * s->rope_freq[i], c = cosf(angle), si = sinf(angle);
            if (op->kind == ENG_OP_ROPE_INV) si = -si;
            for (int64_t head = r * y.cols; head < (r + 1) * y.cols; head += hd) {
                bf16 *x = out + head + (front ? 0 : hd - n); /* [n], the rotated part */
                bf16 *re = x + (halves ? i : 2 * i), *im = x + (halves ? i + n / 2 : 2 * i + 1);
                float a = f32_from_bf16(*re), b = f32_from_bf16(*im);
                *re = bf16_from_f32(a * c - b * si);
                *im = bf16_from_f32(a * si + b * c);
            }
        }
    return ERR_OK;
}

static err_code rope_halves(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    return rotate(f, s, op, true, false);
}
static err_code rope_front(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    return rotate(f, s, op, false, true);
}

static err_code rope_direction(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    eng_fault_value y = eng_fault_out(f, s, op, 0);
    int32_t hd = config(s)->head_dim;
    krn_rope_ref(in(s, op, 0), y.data, (int32_t)y.rows, (int32_t)(y.cols / hd), hd, config(s)->rope_dim, in(s, op, 1),
                 s->rope_freq, op->kind == ENG_OP_ROPE, s->acc);
    return ERR_OK;
}

/* A context extension that these layers do not have. */
static err_code rope_theta(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    krn_rope_freqs(config(s)->rope_theta * 4, config(s)->rope_dim, f->wide);
    s->rope_freq = f->wide;
    return eng_fault_rerun(f, s, op, e);
}

/* ---- hyper-connections ---- */

static err_code sinkhorn_short(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    eng_fault_take_config(f, s)->sinkhorn_iters--;
    return eng_fault_rerun(f, s, op, e);
}

static err_code sinkhorn_once(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    eng_fault_take_config(f, s)->sinkhorn_iters = 1;
    return eng_fault_rerun(f, s, op, e);
}

static err_code hc_eps_missing(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    eng_fault_take_config(f, s)->hc_eps = 0;
    return eng_fault_rerun(f, s, op, e);
}

static err_code pre_of_this(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    s->value[op->in[1]] = s->value[op[-1].out[0]]; /* the mixes stand just before */
    return eng_fault_rerun(f, s, op, e);
}

static err_code comb_transposed(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    eng_fault_value comb = eng_fault_take_in(f, s, op, 3);
    int32_t hc = config(s)->hc;
    for (int64_t r = comb.first; r < comb.first + comb.count; r++)
        for (int32_t j = 0; j < hc; j++)
            for (int32_t k = 0; k < j; k++) {
                float *m = (float *)comb.data + r * comb.cols, keep = m[j * hc + k];
                m[j * hc + k] = m[k * hc + j];
                m[k * hc + j] = keep;
            }
    return eng_fault_rerun(f, s, op, e);
}

static err_code post_missing(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    eng_fault_value post = eng_fault_take_in(f, s, op, 2);
    for (int64_t i = 0; i < post.rows * post.cols; i++) ((float *)post.data)[i] = 1;
    return eng_fault_rerun(f, s, op, e);
}

/* ---- the table ---- */

#define K(name) ENG_FAULT_OP(name)
#define ROPES (K(ROPE) | K(ROPE_INV))
#define WRONG ENG_CAUSE_FUNCTION

static const eng_fault_kind KINDS[] = {
    { "embed-row", "the embedding of the next token id", K(EMBED), ENG_RERUNS, WRONG, true, embed_row },
    { "block-position", "the block stands one position early", K(BLOCK_IDS), ENG_RERUNS, ENG_CAUSE_POSITION, true,
      block_position },
    { "noise-token", "the block is filled with another token", K(BLOCK_IDS), ENG_RERUNS, WRONG, true, noise_token },
    { "first-pre-even", "the first pre-mix takes all copies alike", K(FIRST_PRE), 0, WRONG, false, first_pre_even },
    { "qdq-missing", "the input is not quantised", K(ACT_QDQ), 0, ENG_CAUSE_ROUNDING_MISSING, true, dropped },
    { "qdq-twice", "the input is quantised twice: that changes nothing", K(ACT_QDQ), ENG_RERUNS, ENG_CAUSE_ROUNDING_EXTRA,
      false, twice },
    { "qdq-group-64", "64 elements share a scale", K(ACT_QDQ), 0, ENG_CAUSE_SCALE_BYTE, true, qdq_group64 },
    { "qdq-scale-late", "codes are made before the scale is rounded", K(ACT_QDQ), 0, ENG_CAUSE_SCALE_BYTE, true, qdq_late },
    { "qdq-scale-low", "the scale is the power of two below", K(ACT_QDQ), 0, ENG_CAUSE_SCALE_BYTE, true, qdq_low },
    { "qdq-scale-shift", "every group uses the next group's scale", K(ACT_QDQ), 0, ENG_CAUSE_SCALE_ORDER, true,
      qdq_shifted },
    { "qdq-truncated", "codes are cut off, not to nearest", K(ACT_QDQ), 0, WRONG, true, qdq_truncated },
    { "qdq-padding", "what padding holds enters the largest magnitude", K(ACT_QDQ), 0, ENG_CAUSE_PADDING_LEAK, true,
      qdq_padded },
    { "norm-eps", "eps is 1e-6", K(RMSNORM) | K(MIXES), ENG_RERUNS, WRONG, false, norm_eps },
    { "norm-sum", "divided by the root of the sum of squares, not of their mean", K(RMSNORM), 0, WRONG, true,
      norm_missing_mean },
    { "rope-late", "the position is one too large", ROPES, ENG_RERUNS, ENG_CAUSE_POSITION, true, rope_late },
    { "rope-early", "the position is one too small", ROPES, ENG_RERUNS, ENG_CAUSE_POSITION, true, rope_early },
    { "rope-halves", "pairs are halves, not neighbours", ROPES, 0, WRONG, true, rope_halves },
    { "rope-front", "the first elements are rotated, not the last", ROPES, 0, WRONG, true, rope_front },
    { "rope-missing", "nothing is rotated", ROPES, 0, WRONG, true, dropped },
    { "rope-direction", "rotated the other way", ROPES, 0, WRONG, true, rope_direction },
    { "rope-theta", "frequencies of a longer context", ROPES, ENG_RERUNS, WRONG, true, rope_theta },
    { "sinkhorn-short", "one iteration fewer", K(MIXES), ENG_RERUNS, WRONG, false, sinkhorn_short },
    { "sinkhorn-once", "one iteration", K(MIXES), ENG_RERUNS, WRONG, false, sinkhorn_once },
    { "hc-eps-missing", "no eps in the mixes", K(MIXES), ENG_RERUNS, WRONG, false, hc_eps_missing },
    { "pre-of-this", "collapsed with this sub-block's pre-mix, not the previous one's", K(COLLAPSE), ENG_RERUNS |
      ENG_NEED_OWN_PRE, WRONG, true, pre_of_this },
    { "comb-transposed", "the sum runs over comb's second index", K(EXPAND), ENG_RERUNS, WRONG, true, comb_transposed },
    { "post-missing", "the sub-block's output is added with weight 1", K(EXPAND), ENG_RERUNS, WRONG, true, post_missing },
};

const eng_fault_table ENG_FAULTS_OPS = { KINDS, COUNT_OF(KINDS) };
