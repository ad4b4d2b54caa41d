/* One function per op kind: reads the op's values and weights, calls the CPU twin. No arithmetic lives here.
 *
 * Inputs are in the order of op->in; a weight is the rank's own slice. */
#include "engine/exec.h"

#include "kernels/act_qdq.h"
#include "kernels/attention.h"
#include "kernels/combine.h"
#include "kernels/confidence.h"
#include "kernels/embed.h"
#include "kernels/gate.h"
#include "kernels/markov.h"
#include "kernels/mhc.h"
#include "kernels/ring.h"
#include "kernels/rmsnorm.h"
#include "kernels/rope.h"
#include "kernels/swiglu.h"

static void *in(const eng_step *s, const eng_op *op, int i) { return s->value[op->in[i]]; }
static void *out(const eng_step *s, const eng_op *op, int i) { return s->value[op->out[i]]; }
static const krn_weight *weight(const eng_step *s, const eng_op *op, int i)
{
    return eng_rank_weight(s->weights, op->weight[i], op->stage, -1);
}
static int32_t rows(const eng_step *s) { return (int32_t)s->x.n[ENG_DIM_ROWS]; }
static const eng_config *config(const eng_step *s) { return &s->program->config; }

/* Elements of one row (dimension 0) of value v on this rank. */
static int32_t width(const eng_step *s, int32_t v)
{
    int64_t d[3];
    eng_value_shape(s->program, v, &s->x, s->rank, s->n_ranks, d);
    return (int32_t)(d[1] * d[2]);
}
static int64_t elems(const eng_step *s, int32_t v) { return eng_value_elems(s->program, v, &s->x, s->rank, s->n_ranks); }

/* in: anchor [B], last position [B]; out: ids [T], positions [T] */
static err_code op_block_ids(eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    krn_block_ids_ref(in(s, op, 0), in(s, op, 1), (int32_t)s->x.n[ENG_DIM_B], config(s)->block, config(s)->noise_id,
                      out(s, op, 0), out(s, op, 1));
    return ERR_OK;
}

static err_code op_embed(eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    const krn_weight *w = weight(s, op, 0);
    krn_embed_ref(in(s, op, 0), rows(s), w->data, w->n, config(s)->dim, config(s)->hc, out(s, op, 0));
    return ERR_OK;
}

static err_code op_first_pre(eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    krn_first_pre_ref(out(s, op, 0), rows(s), config(s)->hc);
    return ERR_OK;
}

static err_code op_act_qdq(eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    int32_t n = width(s, op->in[0]);
    krn_act_qdq_ref(in(s, op, 0), n, out(s, op, 0), n, rows(s), n);
    return ERR_OK;
}

/* in: x; out dtype decides whether the sum is rounded to bf16 */
static err_code op_linear(eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    const krn_weight *w = weight(s, op, 0);
    krn_out kind = s->program->value[op->out[0]].dtype == FMT_DTYPE_F32 ? KRN_OUT_F32 : KRN_OUT_BF16;
    krn_linear_ref(in(s, op, 0), w->k, rows(s), w, eng_step_acc(s, op), kind, out(s, op, 0), w->n);
    return ERR_OK;
}

static err_code op_rmsnorm(eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    int32_t n = width(s, op->in[0]);
    krn_rmsnorm_ref(in(s, op, 0), n, weight(s, op, 0)->data, out(s, op, 0), n, rows(s), n, (float)config(s)->norm_eps);
    return ERR_OK;
}

/* in: x [T, heads, head_dim] or [T, head_dim], positions [T] */
static void rope(eng_step *s, const eng_op *op, bool inverse)
{
    int32_t hd = config(s)->head_dim;
    krn_rope_ref(in(s, op, 0), out(s, op, 0), rows(s), width(s, op->in[0]) / hd, hd, config(s)->rope_dim, in(s, op, 1),
                 s->rope_freq, inverse, s->acc);
}
static err_code op_rope(eng_step *s, const eng_op *op, err *e) { (void)e; rope(s, op, false); return ERR_OK; }
static err_code op_rope_inverse(eng_step *s, const eng_op *op, err *e) { (void)e; rope(s, op, true); return ERR_OK; }

/* in: stream, dots; out: pre, post, comb; weights: base, scale */
static err_code op_mixes(eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    const eng_config *c = config(s);
    krn_mhc_mixes_ref(in(s, op, 0), in(s, op, 1), weight(s, op, 0)->data, weight(s, op, 1)->data, rows(s), c->hc, c->dim,
                      (float)c->norm_eps, (float)c->hc_eps, c->sinkhorn_iters, out(s, op, 0), out(s, op, 1),
                      out(s, op, 2), s->acc);
    return ERR_OK;
}

static err_code op_collapse(eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    krn_mhc_collapse_ref(in(s, op, 0), in(s, op, 1), out(s, op, 0), rows(s), config(s)->hc, config(s)->dim, s->acc);
    return ERR_OK;
}

/* in: sub-block output, stream before it, post, comb */
static err_code op_expand(eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    krn_mhc_expand_ref(in(s, op, 0), in(s, op, 1), in(s, op, 2), in(s, op, 3), out(s, op, 0), rows(s), config(s)->hc,
                       config(s)->dim, s->acc);
    return ERR_OK;
}

/* in: q, block kv, last positions [B], window (state) */
static err_code op_attention(eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    const eng_config *c = config(s);
    const int32_t *last = in(s, op, 2), heads = c->n_heads / s->n_ranks;
    const bf16 *q = in(s, op, 0), *kv = in(s, op, 1);
    bf16 *o = out(s, op, 0);
    float scale = (float)pow((double)c->head_dim, -0.5);
    for (int32_t b = 0; b < s->x.n[ENG_DIM_B]; b++) {
        int64_t row = (int64_t)b * c->block;
        int32_t n_ring = last[b] + 1 < c->window ? last[b] + 1 : c->window;
        krn_attention_ref(q + row * heads * c->head_dim, s->ring[b][op->stage], n_ring, kv + row * c->head_dim, c->block,
                          weight(s, op, 0)->data, scale, heads, c->head_dim, o + row * heads * c->head_dim, s->acc);
    }
    return ERR_OK;
}

/* in: o_qdq [T, heads, head_dim]; each group of heads with its own rows of wo_a */
static err_code op_wo_a(eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    const krn_weight *w = weight(s, op, 0);
    int32_t o_lora = config(s)->o_lora, groups = w->n / o_lora;
    const bf16 *x = in(s, op, 0);
    bf16 *y = out(s, op, 0);
    for (int32_t g = 0; g < groups; g++) {
        krn_weight group = krn_weight_slice(w, g * o_lora, o_lora, 0, w->k);
        krn_linear_ref(x + (int64_t)g * w->k, (int64_t)groups * w->k, rows(s), &group, s->acc, KRN_OUT_BF16,
                       y + (int64_t)g * o_lora, w->n);
    }
    return ERR_OK;
}

static err_code op_all_reduce(eng_step *s, const eng_op *op, err *e)
{
    CHECK(s->comm);
    return eng_comm_all_reduce(s->comm, s->rank, in(s, op, 0), out(s, op, 0), elems(s, op->in[0]), op->name, e);
}

static err_code op_round(eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    const int64_t n = elems(s, op->in[0]);
    if (s->program->value[op->out[0]].dtype == FMT_DTYPE_F32) krn_round_bf16_f32_ref(in(s, op, 0), out(s, op, 0), n);
    else krn_round_bf16_ref(in(s, op, 0), out(s, op, 0), n);
    return ERR_OK;
}

static err_code op_gate_scores(eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    krn_gate_scores_ref(in(s, op, 0), out(s, op, 0), rows(s), config(s)->n_experts);
    return ERR_OK;
}

static err_code op_topk(eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    const eng_config *c = config(s);
    krn_gate_topk_ref(in(s, op, 0), weight(s, op, 0)->data, rows(s), c->n_experts, c->n_active, (float)c->route_scale,
                      out(s, op, 0), out(s, op, 1), s->acc);
    return ERR_OK;
}

/* Jobs of one weight kind for every (row, pick), grouped by expert so that each weight is decoded once. x_per_pick: x has
 * a row per pick, else one per token. Appends to jobs; returns how many. */
static int32_t expert_jobs(eng_step *s, const eng_op *op, eng_wid wid, const int32_t *ids, const bf16 *x, bool x_per_pick,
                           void *y, size_t y_elem_bytes, krn_linear_job *jobs)
{
    const eng_config *c = config(s);
    int32_t picks = rows(s) * c->n_active, n = 0;
    for (int32_t ex = 0; ex < c->n_experts; ex++) {
        const krn_weight *w = eng_rank_weight(s->weights, wid, op->stage, ex);
        for (int32_t i = 0; i < picks; i++)
            if (ids[i] == ex)
                jobs[n++] = (krn_linear_job){ w, x + (int64_t)(x_per_pick ? i : i / c->n_active) * w->k,
                                              (uint8_t *)y + (int64_t)i * w->n * (int64_t)y_elem_bytes };
    }
    CHECK(n == picks); /* each pick exactly once: ids are in range by krn_gate_topk's contract */
    return n;
}

/* in: rows [T, dim], QDQ'd unless the experts are EXL3, ids [T, K]; out: w1's and w3's results [T, K, inter] */
static err_code op_experts_up(eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    int32_t n = expert_jobs(s, op, op->weight[0], in(s, op, 1), in(s, op, 0), false, out(s, op, 0), sizeof(bf16), s->jobs);
    n += expert_jobs(s, op, op->weight[1], in(s, op, 1), in(s, op, 0), false, out(s, op, 1), sizeof(bf16), s->jobs + n);
    krn_linear_grouped_ref(s->jobs, n, eng_step_acc(s, op), KRN_OUT_BF16);
    return ERR_OK;
}

static err_code op_experts_down(eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    int32_t n = expert_jobs(s, op, op->weight[0], in(s, op, 1), in(s, op, 0), true, out(s, op, 0), sizeof(float), s->jobs);
    krn_linear_grouped_ref(s->jobs, n, eng_step_acc(s, op), KRN_OUT_F32);
    return ERR_OK;
}

/* in: gate, up, and for routed experts the weights [T, K] */
static err_code op_swiglu(eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    const eng_config *c = config(s);
    int32_t cols = c->inter / s->n_ranks;
    int32_t n = (int32_t)(elems(s, op->in[0]) / cols);
    krn_swiglu_ref(in(s, op, 0), in(s, op, 1), op->n_in > 2 ? in(s, op, 2) : NULL, (float)c->swiglu_limit, out(s, op, 0),
                   n, cols);
    return ERR_OK;
}

/* in: slot sums [T, K, dim], ids [T, K], shared sums [T, dim] */
static err_code op_combine_exact(eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    krn_combine_exact_ref(in(s, op, 0), in(s, op, 1), in(s, op, 2), out(s, op, 0), rows(s), config(s)->n_active,
                          config(s)->dim);
    return ERR_OK;
}

static err_code op_combine_fused(eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    krn_combine_fused_ref(in(s, op, 0), in(s, op, 1), in(s, op, 2), out(s, op, 0), rows(s), config(s)->n_active,
                          config(s)->dim);
    return ERR_OK;
}

static const bf16 *embedding(const krn_weight *w, int32_t id)
{
    return (const bf16 *)((const uint8_t *)w->data + id * w->row_bytes);
}

/* The token before position i of batch entry b. */
static int32_t token_before(const eng_step *s, const int32_t *anchor, const int32_t *drafts, int32_t b, int32_t i)
{
    return i == 0 ? anchor[b] : drafts[(int64_t)b * s->x.n[ENG_DIM_N_OUT] + i - 1];
}

/* in: logits [T, V_rank], anchor [B]; out: biased [B, n_out, V_rank], drafts [B, n_out]. The only sequential part: position
 * i needs the token of i-1, decided by all ranks together. */
static err_code op_markov(eng_step *s, const eng_op *op, err *e)
{
    const eng_config *c = config(s);
    const krn_weight *embed = weight(s, op, 0), *head = weight(s, op, 1);
    const int32_t *anchor = in(s, op, 1), first = eng_cut_range(c, ENG_W_HEAD, s->rank, s->n_ranks).first;
    int32_t batch = (int32_t)s->x.n[ENG_DIM_B], n_out = (int32_t)s->x.n[ENG_DIM_N_OUT];
    int32_t *drafts = out(s, op, 1);
    const int32_t *before = s->forced_drafts ? s->forced_drafts : drafts;
    for (int32_t i = 0; i < n_out; i++) {
        krn_best best[ENG_BATCH_MAX];
        krn_markov_step_ref(in(s, op, 0), embed->data, head->data, embed->n, c->markov_rank, head->n, first, batch,
                            c->block, n_out, i, anchor, before, s->markov, s->acc, out(s, op, 0), best);
        if (s->comm) TRY(eng_comm_best(s->comm, s->rank, best, batch, op->name, e));
        krn_markov_pick_ref(best, 1, batch, n_out, i, drafts);
    }
    return ERR_OK;
}

/* in: hidden before the final norm [T, dim], anchor [B], drafts [B, n_out] */
static err_code op_confidence(eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    const eng_config *c = config(s);
    const bf16 *hidden = in(s, op, 0);
    const int32_t *anchor = in(s, op, 1), *drafts = s->forced_drafts ? s->forced_drafts : in(s, op, 2);
    float *y = out(s, op, 0);
    int64_t n_out = s->x.n[ENG_DIM_N_OUT];
    for (int32_t b = 0; b < s->x.n[ENG_DIM_B]; b++)
        for (int32_t i = 0; i < n_out; i++)
            y[b * n_out + i] = krn_confidence_ref(hidden + ((int64_t)b * c->block + i) * c->dim, c->dim,
                                                  embedding(weight(s, op, 0), token_before(s, anchor, drafts, b, i)),
                                                  c->markov_rank, weight(s, op, 1)->data, s->acc);
    return ERR_OK;
}

/* in: rows [P, head_dim], positions [P]; out: the window of the slot (state) */
static err_code op_ring_write(eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    krn_ring_write_ref(in(s, op, 0), in(s, op, 1), rows(s), s->ring[0][op->stage], config(s)->window, config(s)->head_dim);
    return ERR_OK;
}

static const eng_op_fn CPU[ENG_KIND_COUNT] = {
    [ENG_OP_BLOCK_IDS] = op_block_ids,
    [ENG_OP_EMBED] = op_embed,
    [ENG_OP_FIRST_PRE] = op_first_pre,
    [ENG_OP_ACT_QDQ] = op_act_qdq,
    [ENG_OP_LINEAR] = op_linear,
    [ENG_OP_RMSNORM] = op_rmsnorm,
    [ENG_OP_ROPE] = op_rope,
    [ENG_OP_ROPE_INV] = op_rope_inverse,
    [ENG_OP_MIXES] = op_mixes,
    [ENG_OP_COLLAPSE] = op_collapse,
    [ENG_OP_EXPAND] = op_expand,
    [ENG_OP_ATTENTION] = op_attention,
    [ENG_OP_WO_A] = op_wo_a,
    [ENG_OP_ALL_REDUCE] = op_all_reduce,
    [ENG_OP_ROUND] = op_round,
    [ENG_OP_GATE_SCORES] = op_gate_scores,
    [ENG_OP_TOPK] = op_topk,
    [ENG_OP_EXPERTS_UP] = op_experts_up,
    [ENG_OP_EXPERTS_DOWN] = op_experts_down,
    [ENG_OP_SWIGLU] = op_swiglu,
    [ENG_OP_COMBINE_EXACT] = op_combine_exact,
    [ENG_OP_COMBINE_FUSED] = op_combine_fused,
    [ENG_OP_MARKOV] = op_markov,
    [ENG_OP_CONFIDENCE] = op_confidence,
    [ENG_OP_RING_WRITE] = op_ring_write,
};

eng_op_fn eng_op_cpu(eng_kind kind) { return CPU[kind]; }
