/* Kinds of fault in attention and in its windows. */
#include "engine/fault_run.h"

#include "base/mem.h"
#include "kernels/attention.h"

static const void *in(const eng_step *s, const eng_op *op, int k) { return s->value[op->in[k]]; }
static const eng_config *config(const eng_step *s) { return &s->program->config; }

static float attention_scale(const eng_step *s) { return (float)pow((double)config(s)->head_dim, -0.5); }

/* Batch entry b on the given keys. */
static void attend(eng_step *s, const eng_op *op, int32_t b, const bf16 *ring, int32_t n_ring, const float *sink,
                   float scale, int32_t n_block)
{
    const eng_config *c = config(s);
    int32_t heads = c->n_heads / s->n_ranks;
    int64_t row = (int64_t)b * c->block, q = row * heads * c->head_dim;
    krn_attention_ref((const bf16 *)in(s, op, 0) + q, ring, n_ring, (const bf16 *)in(s, op, 1) + row * c->head_dim, n_block,
                      sink, scale, heads, c->head_dim, (bf16 *)s->value[op->out[0]] + q, s->acc);
}

static const float *sink_of(const eng_fault_run *f, const eng_step *s, const eng_op *op)
{
    return eng_fault_weight(f, s, op)->data;
}

static int32_t ring_rows(const eng_step *s, const eng_op *op, int32_t b)
{
    int32_t last = ((const int32_t *)in(s, op, 2))[b];
    return last + 1 < config(s)->window ? last + 1 : config(s)->window;
}

/* The ring without the row of position `pos`. */
static err_code without_row(eng_fault_run *f, eng_step *s, const eng_op *op, bool newest)
{
    int32_t hd = config(s)->head_dim, w = config(s)->window, n;
    const float *sink = sink_of(f, s, op);
    for (int32_t b = f->entry; b < f->entry + f->entries; b++) {
        int32_t last = ((const int32_t *)in(s, op, 2))[b];
        bf16 *ring = eng_fault_take_ring(f, s, op, b, &n);
        int32_t out = newest ? last % w : last + 1 >= w ? (last + 1) % w : 0;
        memmove(ring + (int64_t)out * hd, ring + (int64_t)(out + 1) * hd,
                (size_t)(n - 1 - out) * (size_t)hd * sizeof *ring);
        attend(s, op, b, ring, n - 1, sink, attention_scale(s), config(s)->block);
    }
    return ERR_OK;
}

static err_code window_short(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    return without_row(f, s, op, false);
}
static err_code newest_missing(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    return without_row(f, s, op, true);
}

static err_code ring_logical(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    int32_t hd = config(s)->head_dim, w = config(s)->window, n;
    for (int32_t b = f->entry; b < f->entry + f->entries; b++) {
        const bf16 *from = s->ring[b][op->stage];
        int32_t last = ((const int32_t *)in(s, op, 2))[b], oldest = last + 1 >= w ? (last + 1) % w : 0;
        bf16 *ring = eng_fault_take_ring(f, s, op, b, &n);
        for (int32_t r = 0; r < n; r++)
            memcpy(ring + (int64_t)r * hd, from + (int64_t)((oldest + r) % w) * hd, (size_t)hd * sizeof *ring);
    }
    return eng_fault_rerun(f, s, op, e);
}

/* Keys filled up with zeros to whole blocks, which then count. */
static err_code padding_keys(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    int32_t hd = config(s)->head_dim, n;
    const float *sink = sink_of(f, s, op);
    for (int32_t b = f->entry; b < f->entry + f->entries; b++) {
        bf16 *ring = eng_fault_take_ring(f, s, op, b, &n);
        int32_t keys = n + config(s)->block, more = (keys / KRN_ATTENTION_KEYS + 1) * KRN_ATTENTION_KEYS - keys;
        memset(ring + (int64_t)n * hd, 0, (size_t)more * (size_t)hd * sizeof *ring);
        attend(s, op, b, ring, n + more, sink, attention_scale(s), config(s)->block);
    }
    return ERR_OK;
}

static err_code ring_of_other(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    int32_t batch = (int32_t)s->x.n[ENG_DIM_B];
    bf16 *first = s->ring[0][op->stage];
    for (int32_t b = 0; b + 1 < batch; b++) s->ring[b][op->stage] = s->ring[b + 1][op->stage];
    s->ring[batch - 1][op->stage] = first;
    return eng_fault_rerun(f, s, op, e);
}

/* The windows as they stood in the previous step, where the same slot took part in it. */
static err_code ring_stale(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    for (int32_t b = f->entry; b < f->entry + f->entries; b++)
        for (int32_t k = 0; k < ENG_BATCH_MAX; k++)
            if (f->ring_before_of[k] == s->ring[b][op->stage]) {
                s->ring[b][op->stage] = f->ring_before[k];
                break;
            }
    return eng_fault_rerun(f, s, op, e);
}

static err_code sink_skipped(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    const krn_weight *w = eng_fault_take_weight(f, s, op);
    for (int32_t h = 0; h < w->n; h++) ((float *)(void *)f->data)[h] = -INFINITY;
    return eng_fault_rerun(f, s, op, e);
}

static err_code sink_scaled(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    const krn_weight *w = eng_fault_take_weight(f, s, op);
    for (int32_t h = 0; h < w->n; h++) ((float *)(void *)f->data)[h] *= attention_scale(s);
    return eng_fault_rerun(f, s, op, e);
}

static err_code softmax_scale(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    for (int32_t b = f->entry; b < f->entry + f->entries; b++) /* of the rotated part alone */
        attend(s, op, b, s->ring[b][op->stage], ring_rows(s, op, b), sink_of(f, s, op),
               (float)pow((double)config(s)->rope_dim, -0.5), config(s)->block);
    return ERR_OK;
}

static err_code causal_mask(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    for (int32_t b = f->entry; b < f->entry + f->entries; b++) /* row i is last written when rows 0..i alone are keys */
        for (int32_t n = config(s)->block; n >= 1; n--)
            attend(s, op, b, s->ring[b][op->stage], ring_rows(s, op, b), sink_of(f, s, op), attention_scale(s), n);
    return ERR_OK;
}

/* One head of one row in double, the probabilities never rounded to bf16. */
static void attend_unrounded(const bf16 *q, const bf16 *const *key, int32_t n, float sink, float scale, int32_t hd, bf16 *o)
{
    double m = -INFINITY, l = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int32_t j = 0; j < n; j++) {
            double dot = 0;
            for (int32_t d = 0; d < hd; d++) dot += (double)f32_from_bf16(q[d]) * f32_from_bf16(key[j][d]);
            if (pass == 0) m = fmax(m, dot * scale);
            else l += exp(dot * scale - m);
        }
    l += exp(sink - m);
    for (int32_t d = 0; d < hd; d++) o[d] = 0;
    double acc[KRN_ATTENTION_HEAD_DIM_MAX];
    memset(acc, 0, (size_t)hd * sizeof acc[0]);
    for (int32_t j = 0; j < n; j++) {
        double dot = 0;
        for (int32_t d = 0; d < hd; d++) dot += (double)f32_from_bf16(q[d]) * f32_from_bf16(key[j][d]);
        for (int32_t d = 0; d < hd; d++) acc[d] += exp(dot * scale - m) * f32_from_bf16(key[j][d]);
    }
    for (int32_t d = 0; d < hd; d++) o[d] = bf16_from_f32((float)(acc[d] / l));
}

static err_code p_unrounded(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    const eng_config *c = config(s);
    int32_t heads = c->n_heads / s->n_ranks;
    for (int32_t b = f->entry; b < f->entry + f->entries; b++) {
        int32_t n_ring = ring_rows(s, op, b), n = n_ring + c->block;
        const bf16 **key = (const bf16 **)(void *)f->ring[b]; /* head_dim is at least 32 */
        for (int32_t j = 0; j < n; j++)
            key[j] = j < n_ring ? s->ring[b][op->stage] + (int64_t)j * c->head_dim
                                : (const bf16 *)in(s, op, 1) + ((int64_t)b * c->block + j - n_ring) * c->head_dim;
        for (int64_t i = (int64_t)b * c->block * heads; i < (int64_t)(b + 1) * c->block * heads; i++)
            attend_unrounded((const bf16 *)in(s, op, 0) + i * c->head_dim, key, n, sink_of(f, s, op)[i % heads],
                             attention_scale(s), c->head_dim, (bf16 *)s->value[op->out[0]] + i * c->head_dim);
    }
    (void)e;
    return ERR_OK;
}

/* The ring as it was before the op, for a write that goes wrong. */
static void unwrite(const eng_fault_run *f, const eng_step *s, const eng_op *op)
{
    memcpy(s->ring[0][op->stage], f->ring_before[0],
           (size_t)config(s)->window * (size_t)config(s)->head_dim * sizeof(bf16));
}

static err_code ring_rotated(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    unwrite(f, s, op);
    eng_fault_value pos = eng_fault_take_in(f, s, op, 1);
    for (int64_t r = 0; r < pos.rows; r++) ((int32_t *)pos.data)[r]++;
    return eng_fault_rerun(f, s, op, e);
}

static err_code ring_row_missing(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    unwrite(f, s, op);
    s->x.n[ENG_DIM_ROWS]--;
    return eng_fault_rerun(f, s, op, e);
}

static err_code ring_reversed(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    const bf16 *from = in(s, op, 0);
    unwrite(f, s, op);
    eng_fault_value rows = eng_fault_take_in(f, s, op, 0);
    for (int64_t r = 0; r < rows.rows; r++)
        memcpy((bf16 *)rows.data + r * rows.cols, from + (rows.rows - 1 - r) * rows.cols, (size_t)rows.cols * sizeof *from);
    return eng_fault_rerun(f, s, op, e);
}

/* ---- the table ---- */

#define K(name) ENG_FAULT_OP(name)
#define COPY (ENG_RERUNS | ENG_WEIGHT)
#define WRONG ENG_CAUSE_FUNCTION

static const eng_fault_kind KINDS[] = {
    { "window-short", "the oldest row of the window is not read", K(ATTENTION), 0, WRONG, true, window_short },
    { "newest-missing", "the newest row of the window is not read", K(ATTENTION), 0, ENG_CAUSE_STALE, true,
      newest_missing },
    { "ring-logical", "the window is read oldest first, not in physical order", K(ATTENTION), ENG_RERUNS,
      ENG_CAUSE_RING_ROTATION, false, ring_logical },
    { "ring-other-slot", "slots of the batch read each other's windows", K(ATTENTION), ENG_RERUNS, ENG_CAUSE_SLOT_SWAP,
      true, ring_of_other },
    { "ring-stale", "the window as it stood in the previous step", K(ATTENTION), ENG_RERUNS, ENG_CAUSE_STALE, true,
      ring_stale },
    { "padding-keys", "keys are filled up with zeros, which count", K(ATTENTION), 0, ENG_CAUSE_PADDING_LEAK, true,
      padding_keys },
    { "sink-skipped", "no sink", K(ATTENTION), COPY, WRONG, true, sink_skipped },
    { "sink-scaled", "the sink is scaled as scores are", K(ATTENTION), COPY, WRONG, true, sink_scaled },
    { "softmax-scale", "scores are scaled by the rotated part's size", K(ATTENTION), 0, WRONG, true, softmax_scale },
    { "causal-mask", "a row of the block sees no later one", K(ATTENTION), 0, WRONG, true, causal_mask },
    { "p-unrounded", "probabilities are not rounded to bf16", K(ATTENTION), 0, ENG_CAUSE_ROUNDING_MISSING, false,
      p_unrounded },
    { "ring-rotated", "rows are written one place further", K(RING_WRITE), ENG_RERUNS, ENG_CAUSE_RING_ROTATION, true,
      ring_rotated },
    { "ring-row-missing", "the last row of an insert is not written", K(RING_WRITE), ENG_RERUNS, ENG_CAUSE_STALE, true,
      ring_row_missing },
    { "ring-reversed", "rows of an insert are written in reverse", K(RING_WRITE), ENG_RERUNS, ENG_CAUSE_PERMUTATION, true,
      ring_reversed },
};

const eng_fault_table ENG_FAULTS_ATTENTION = { KINDS, COUNT_OF(KINDS) };
