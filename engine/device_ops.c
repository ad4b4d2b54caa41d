/* The CUDA counterpart of exec_ops.c: one function per op kind, and per fusion of ops, reads the values and weights
 * and launches the kernel. No arithmetic lives here. Inputs are in the order of op->in. */
#include "engine/device_exec.h"

#include <math.h>

#include "base/mem.h"
#include "kernels/act_qdq.h"
#include "kernels/attention.h"
#include "kernels/combine.h"
#include "kernels/confidence.h"
#include "kernels/embed.h"
#include "kernels/exl3.h"
#include "kernels/experts.h"
#include "kernels/experts_kx.h"
#include "kernels/experts_kx2.h"
#include "kernels/fused.h"
#include "kernels/gate.h"
#include "kernels/markov.h"
#include "kernels/mhc.h"
#include "kernels/ring.h"
#include "kernels/rmsnorm.h"
#include "kernels/rope.h"
#include "kernels/swiglu.h"

typedef const eng_device_run run;
typedef const eng_device_rank rank;

static void *value(run *r, rank *k, int32_t v) { return k->value[r->program->step][v]; }
static void *in(run *r, rank *k, const eng_op *op, int i) { return value(r, k, op->in[i]); }
static void *out(run *r, rank *k, const eng_op *op, int i) { return value(r, k, op->out[i]); }
static const krn_weight *weight(rank *k, const eng_op *op, int i)
{
    return eng_device_weight(k->weights, op->weight[i], op->stage);
}
static int32_t rows(run *r) { return (int32_t)r->x.n[ENG_DIM_ROWS]; }
static int32_t batch(run *r) { return (int32_t)r->x.n[ENG_DIM_B]; }
static int32_t n_out(run *r) { return (int32_t)r->x.n[ENG_DIM_N_OUT]; }
static const eng_config *config(run *r) { return &r->program->config; }

/* Elements of one row (dimension 0) of value v on this rank. */
static int32_t width(run *r, rank *k, int32_t v)
{
    int64_t d[3];
    eng_value_shape(r->program, v, &r->x, k->rank, r->d->n_ranks, d);
    return (int32_t)(d[1] * d[2]);
}
static int64_t elems(run *r, rank *k, int32_t v)
{
    return eng_value_elems(r->program, v, &r->x, k->rank, r->d->n_ranks);
}

/* A stage's windows of all slots: slot s at + s * ring_stride. */
static bf16 *rings(run *r, rank *k, const eng_op *op)
{
    return k->rings + (int64_t)op->stage * config(r)->window * config(r)->head_dim;
}
static int64_t ring_stride(run *r)
{
    const eng_config *c = config(r);
    return (int64_t)c->n_stages * c->window * c->head_dim;
}

/* Where a product on stream s works. An eager step has a stream for itself, be it a lane or not. */
static krn_exl3_scratch scratch(run *r, krn_stream s)
{
    int lane = 0;
    for (int l = 0; l < ENG_DEVICE_LANES; l++)
        if (r->d->lane[l] == s) lane = l;
    return r->d->exl3[r->program->step][lane];
}

/* in: anchor [B], last position [B]; out: ids [T], positions [T] */
static err_code op_block_ids(run *r, rank *k, const eng_op *op, krn_stream s, err *e)
{
    return krn_block_ids(in(r, k, op, 0), in(r, k, op, 1), batch(r), config(r)->block, config(r)->noise_id,
                         out(r, k, op, 0), out(r, k, op, 1), s, e);
}

static err_code op_embed(run *r, rank *k, const eng_op *op, krn_stream s, err *e)
{
    const krn_weight *w = weight(k, op, 0);
    return krn_embed(in(r, k, op, 0), rows(r), w->data, w->n, config(r)->dim, config(r)->hc, out(r, k, op, 0), s, e);
}

static err_code op_first_pre(run *r, rank *k, const eng_op *op, krn_stream s, err *e)
{
    return krn_first_pre(out(r, k, op, 0), rows(r), config(r)->hc, s, e);
}

static err_code op_act_qdq(run *r, rank *k, const eng_op *op, krn_stream s, err *e)
{
    int32_t n = width(r, k, op->in[0]);
    return krn_act_qdq(in(r, k, op, 0), n, out(r, k, op, 0), n, rows(r), n, s, e);
}

/* The out dtype decides whether sums are rounded to bf16. */
static krn_out out_kind(run *r, const eng_op *op)
{
    return r->program->value[op->out[0]].dtype == FMT_DTYPE_F32 ? KRN_OUT_F32 : KRN_OUT_BF16;
}

/* in: x */
static err_code op_linear(run *r, rank *k, const eng_op *op, krn_stream s, err *e)
{
    const krn_weight *w = weight(k, op, 0);
    const krn_out kind = out_kind(r, op);
    if (w->format == KRN_W_EXL3)
        return krn_exl3_linear(in(r, k, op, 0), w->k, rows(r), w, kind, out(r, k, op, 0), w->n, scratch(r, s), s, e);
    if (op->weight[0] == ENG_W_MAIN_PROJ) /* exec.c says why */
        return krn_linear_f64(in(r, k, op, 0), w->k, rows(r), w, kind, out(r, k, op, 0), w->n, s, e);
    return krn_linear(in(r, k, op, 0), w->k, rows(r), w, kind, out(r, k, op, 0), w->n, s, e);
}

static err_code op_rmsnorm(run *r, rank *k, const eng_op *op, krn_stream s, err *e)
{
    int32_t n = width(r, k, op->in[0]);
    return krn_rmsnorm(in(r, k, op, 0), n, weight(k, op, 0)->data, out(r, k, op, 0), n, rows(r), n,
                       (float)config(r)->norm_eps, s, e);
}

/* in: x [T, heads, head_dim] or [T, head_dim], positions [T] */
static err_code rope(run *r, rank *k, const eng_op *op, bool inverse, krn_stream s, err *e)
{
    int32_t hd = config(r)->head_dim;
    return krn_rope(in(r, k, op, 0), out(r, k, op, 0), rows(r), width(r, k, op->in[0]) / hd, hd, config(r)->rope_dim,
                    in(r, k, op, 1), r->d->rope_freq, inverse, s, e);
}
static err_code op_rope(run *r, rank *k, const eng_op *op, krn_stream s, err *e)
{
    return rope(r, k, op, false, s, e);
}
static err_code op_rope_inverse(run *r, rank *k, const eng_op *op, krn_stream s, err *e)
{
    return rope(r, k, op, true, s, e);
}

/* in: stream, dots; out: pre, post, comb; weights: base, scale */
static err_code op_mixes(run *r, rank *k, const eng_op *op, krn_stream s, err *e)
{
    const eng_config *c = config(r);
    return krn_mhc_mixes(in(r, k, op, 0), in(r, k, op, 1), weight(k, op, 0)->data, weight(k, op, 1)->data, rows(r), c->hc,
                         c->dim, (float)c->norm_eps, (float)c->hc_eps, c->sinkhorn_iters, out(r, k, op, 0),
                         out(r, k, op, 1), out(r, k, op, 2), s, e);
}

static err_code op_collapse(run *r, rank *k, const eng_op *op, krn_stream s, err *e)
{
    return krn_mhc_collapse(in(r, k, op, 0), in(r, k, op, 1), out(r, k, op, 0), rows(r), config(r)->hc, config(r)->dim,
                            s, e);
}

/* in: sub-block output, stream before it, post, comb */
static err_code op_expand(run *r, rank *k, const eng_op *op, krn_stream s, err *e)
{
    return krn_mhc_expand(in(r, k, op, 0), in(r, k, op, 1), in(r, k, op, 2), in(r, k, op, 3), out(r, k, op, 0), rows(r),
                          config(r)->hc, config(r)->dim, s, e);
}

/* in: q, block kv, last positions [B], window (state) */
static err_code op_attention(run *r, rank *k, const eng_op *op, krn_stream s, err *e)
{
    const eng_config *c = config(r);
    return krn_attention(in(r, k, op, 0), rings(r, k, op), ring_stride(r), eng_device_slots(r), in(r, k, op, 2),
                         c->window, in(r, k, op, 1), batch(r), c->block, weight(k, op, 0)->data,
                         (float)pow((double)c->head_dim, -0.5), c->n_heads / r->d->n_ranks, c->head_dim,
                         out(r, k, op, 0), s, e);
}

/* in: o_qdq [T, heads, head_dim]; each group of heads with its own rows of wo_a */
static err_code op_wo_a(run *r, rank *k, const eng_op *op, krn_stream s, err *e)
{
    const krn_weight *w = weight(k, op, 0);
    int32_t groups = w->n / config(r)->o_lora;
    return krn_linear_groups(in(r, k, op, 0), (int64_t)groups * w->k, rows(r), w, groups, KRN_OUT_BF16, out(r, k, op, 0),
                             w->n, s, e);
}

static err_code op_round(run *r, rank *k, const eng_op *op, krn_stream s, err *e)
{
    const int64_t n = elems(r, k, op->in[0]);
    if (r->program->value[op->out[0]].dtype == FMT_DTYPE_F32)
        return krn_round_bf16_f32(in(r, k, op, 0), out(r, k, op, 0), n, s, e);
    return krn_round_bf16(in(r, k, op, 0), out(r, k, op, 0), n, s, e);
}

static err_code op_gate_scores(run *r, rank *k, const eng_op *op, krn_stream s, err *e)
{
    return krn_gate_scores(in(r, k, op, 0), out(r, k, op, 0), rows(r), config(r)->n_experts, s, e);
}

static err_code op_topk(run *r, rank *k, const eng_op *op, krn_stream s, err *e)
{
    const eng_config *c = config(r);
    return krn_gate_topk(in(r, k, op, 0), weight(k, op, 0)->data, rows(r), c->n_experts, c->n_active, (float)c->route_scale,
                         out(r, k, op, 0), out(r, k, op, 1), s, e);
}

/* in: rows [T, dim], QDQ'd unless the experts are EXL3, ids [T, K]; out: w1's and w3's results [T, K, inter] */
static err_code op_experts_up(run *r, rank *k, const eng_op *op, krn_stream s, err *e)
{
    const krn_exl3_bank *exl3 = eng_device_experts_exl3(k->weights, op->stage, false);
    if (exl3)
        return krn_exl3_experts_up(in(r, k, op, 0), in(r, k, op, 1), rows(r), config(r)->n_active, exl3, out(r, k, op, 0),
                                   out(r, k, op, 1), scratch(r, s), s, e);
    const krn_kx_bank *kx = eng_device_experts_kx(k->weights, op->stage, false);
    if (kx)
        return krn_experts_kx_up(in(r, k, op, 0), in(r, k, op, 1), rows(r), config(r)->n_active, kx, out(r, k, op, 0),
                                 out(r, k, op, 1), s, e);
    return krn_experts_up(in(r, k, op, 0), in(r, k, op, 1), rows(r), config(r)->n_active,
                          eng_device_experts(k->weights, op->stage, false), out(r, k, op, 0), out(r, k, op, 1), s, e);
}

static err_code op_experts_down(run *r, rank *k, const eng_op *op, krn_stream s, err *e)
{
    const krn_exl3_bank *exl3 = eng_device_experts_exl3(k->weights, op->stage, true);
    if (exl3)
        return krn_exl3_experts_down(in(r, k, op, 0), in(r, k, op, 1), rows(r), config(r)->n_active, exl3,
                                     out(r, k, op, 0), scratch(r, s), s, e);
    const krn_kx_bank *kx = eng_device_experts_kx(k->weights, op->stage, true);
    if (kx)
        return krn_experts_kx_down(in(r, k, op, 0), in(r, k, op, 1), rows(r), config(r)->n_active, kx, out(r, k, op, 0), s,
                                   e);
    return krn_experts_down(in(r, k, op, 0), in(r, k, op, 1), rows(r), config(r)->n_active,
                            eng_device_experts(k->weights, op->stage, true), out(r, k, op, 0), s, e);
}

/* in: gate, up, and for routed experts the weights [T, K] */
static err_code op_swiglu(run *r, rank *k, const eng_op *op, krn_stream s, err *e)
{
    const eng_config *c = config(r);
    int32_t cols = c->inter / r->d->n_ranks, n = (int32_t)(elems(r, k, op->in[0]) / cols);
    return krn_swiglu(in(r, k, op, 0), in(r, k, op, 1), op->n_in > 2 ? in(r, k, op, 2) : NULL, (float)c->swiglu_limit,
                      out(r, k, op, 0), n, cols, s, e);
}

/* in: slot sums [T, K, dim], ids [T, K], shared sums [T, dim] */
static err_code op_combine_exact(run *r, rank *k, const eng_op *op, krn_stream s, err *e)
{
    return krn_combine_exact(in(r, k, op, 0), in(r, k, op, 1), in(r, k, op, 2), out(r, k, op, 0), rows(r),
                             config(r)->n_active, config(r)->dim, s, e);
}

static err_code op_combine_fused(run *r, rank *k, const eng_op *op, krn_stream s, err *e)
{
    return krn_combine_fused(in(r, k, op, 0), in(r, k, op, 1), in(r, k, op, 2), out(r, k, op, 0), rows(r),
                             config(r)->n_active, config(r)->dim, s, e);
}

/* in: hidden before the final norm [T, dim], anchor [B], drafts [B, n_out] */
static err_code op_confidence(run *r, rank *k, const eng_op *op, krn_stream s, err *e)
{
    const eng_config *c = config(r);
    return krn_confidence(in(r, k, op, 0), c->dim, weight(k, op, 0)->data, c->markov_rank, weight(k, op, 1)->data,
                          in(r, k, op, 1), in(r, k, op, 2), batch(r), c->block, n_out(r), out(r, k, op, 0), s, e);
}

/* in: rows [P, head_dim], positions [P]; out: the window of the slot (state) */
static err_code op_ring_write(run *r, rank *k, const eng_op *op, krn_stream s, err *e)
{
    return krn_ring_write(in(r, k, op, 0), in(r, k, op, 1), rows(r), rings(r, k, op), ring_stride(r),
                          eng_device_slots(r), config(r)->window, config(r)->head_dim, s, e);
}

/* ---- where the ranks meet ---- */

static err_code meet_all_reduce(run *r, const eng_op *op, krn_stream s, err *e)
{
    const float *part[ENG_RANKS_MAX];
    float *sum[ENG_RANKS_MAX];
    const eng_device *d = r->d;
    for (int32_t i = 0; i < d->n_local; i++) {
        part[i] = in(r, &d->rank[i], op, 0);
        sum[i] = out(r, &d->rank[i], op, 0);
    }
    return eng_device_comm_all_reduce(d->comm, part, sum, elems(r, &d->rank[0], op->in[0]), s, e);
}

/* in: logits [T, V_rank], anchor [B]; out: biased [B, n_out, V_rank], drafts [B, n_out]. Position i needs the token of i-1,
 * decided by all ranks together; it stays on the device. */
static err_code meet_markov(run *r, const eng_op *op, krn_stream s, err *e)
{
    const eng_device *d = r->d;
    const eng_config *c = config(r);
    const int64_t n_best = (int64_t)batch(r) * KRN_MARKOV_PARTS; /* of one rank */
    for (int32_t i = 0; i < n_out(r); i++) {
        krn_best *best = d->best[i % 2];
        for (int32_t j = 0; j < d->n_local; j++) {
            rank *k = &d->rank[j];
            const krn_weight *embed = weight(k, op, 0), *head = weight(k, op, 1);
            TRY(krn_markov_step(in(r, k, op, 0), embed->data, head->data, embed->n, c->markov_rank, head->n,
                                eng_cut_range(c, ENG_W_HEAD, k->rank, d->n_ranks).first, batch(r), c->block, n_out(r), i,
                                in(r, k, op, 1), d->best[(i + 1) % 2], d->n_ranks, k->markov.table, out(r, k, op, 1),
                                out(r, k, op, 0), best + k->rank * n_best, s, e));
        }
        if (d->n_ranks > 1) TRY(eng_device_comm_gather(d->comm, best, (uint64_t)n_best * sizeof *best, s, e));
    }
    for (int32_t j = 0; j < d->n_local; j++)
        TRY(krn_markov_pick(d->best[(n_out(r) - 1) % 2], d->n_ranks, batch(r), n_out(r), n_out(r) - 1,
                            out(r, &d->rank[j], op, 1), s, e));
    return ERR_OK;
}

static const eng_device_op CUDA[ENG_KIND_COUNT] = {
    [ENG_OP_BLOCK_IDS] = { op_block_ids, NULL },
    [ENG_OP_EMBED] = { op_embed, NULL },
    [ENG_OP_FIRST_PRE] = { op_first_pre, NULL },
    [ENG_OP_ACT_QDQ] = { op_act_qdq, NULL },
    [ENG_OP_LINEAR] = { op_linear, NULL },
    [ENG_OP_RMSNORM] = { op_rmsnorm, NULL },
    [ENG_OP_ROPE] = { op_rope, NULL },
    [ENG_OP_ROPE_INV] = { op_rope_inverse, NULL },
    [ENG_OP_MIXES] = { op_mixes, NULL },
    [ENG_OP_COLLAPSE] = { op_collapse, NULL },
    [ENG_OP_EXPAND] = { op_expand, NULL },
    [ENG_OP_ATTENTION] = { op_attention, NULL },
    [ENG_OP_WO_A] = { op_wo_a, NULL },
    [ENG_OP_ALL_REDUCE] = { NULL, meet_all_reduce },
    [ENG_OP_ROUND] = { op_round, NULL },
    [ENG_OP_GATE_SCORES] = { op_gate_scores, NULL },
    [ENG_OP_TOPK] = { op_topk, NULL },
    [ENG_OP_EXPERTS_UP] = { op_experts_up, NULL },
    [ENG_OP_EXPERTS_DOWN] = { op_experts_down, NULL },
    [ENG_OP_SWIGLU] = { op_swiglu, NULL },
    [ENG_OP_COMBINE_EXACT] = { op_combine_exact, NULL },
    [ENG_OP_COMBINE_FUSED] = { op_combine_fused, NULL },
    [ENG_OP_MARKOV] = { NULL, meet_markov },
    [ENG_OP_CONFIDENCE] = { op_confidence, NULL },
    [ENG_OP_RING_WRITE] = { op_ring_write, NULL },
};

eng_device_op eng_op_cuda(eng_kind kind) { return CUDA[kind]; }

/* ---- fusions ---- */

/* Two products of the same x that krn_linear runs, of weights that are held alike. */
static bool linears_fit(const eng_device *d, const eng_program *p, const eng_op *const *op)
{
    (void)d;
    const eng_wid a = op[0]->weight[0], b = op[1]->weight[0];
    return op[0]->in[0] == op[1]->in[0] && a != ENG_W_MAIN_PROJ && b != ENG_W_MAIN_PROJ &&
           eng_wkind_of(a)->wclass == ENG_WC_FP8 && eng_wkind_of(b)->wclass == ENG_WC_FP8 && !eng_reps_exl3(&p->reps, a) &&
           !eng_reps_exl3(&p->reps, b) && eng_reps_expand(&p->reps, a) == eng_reps_expand(&p->reps, b);
}

static err_code fused_linears(run *r, rank *k, const eng_op *const *op, krn_stream s, err *e)
{
    krn_linear_side side[2];
    for (int i = 0; i < 2; i++)
        side[i] = (krn_linear_side){ weight(k, op[i], 0), out_kind(r, op[i]), out(r, k, op[i], 0), weight(k, op[i], 0)->n };
    return krn_linear_pair(in(r, k, op[0], 0), side[0].w->k, rows(r), side, s, e);
}

/* op: COLLAPSE, RMSNORM and perhaps ACT_QDQ */
static err_code fused_collapse(run *r, rank *k, const eng_op *const *op, bool quantised, krn_stream s, err *e)
{
    const eng_config *c = config(r);
    return krn_collapse_rmsnorm_qdq(in(r, k, op[0], 0), in(r, k, op[0], 1), weight(k, op[1], 0)->data, rows(r), c->hc,
                                    c->dim, (float)c->norm_eps, out(r, k, op[0], 0), out(r, k, op[1], 0),
                                    quantised ? out(r, k, op[2], 0) : NULL, s, e);
}
static err_code fused_collapse_norm_qdq(run *r, rank *k, const eng_op *const *op, krn_stream s, err *e)
{
    return fused_collapse(r, k, op, true, s, e);
}
static err_code fused_collapse_norm(run *r, rank *k, const eng_op *const *op, krn_stream s, err *e)
{
    return fused_collapse(r, k, op, false, s, e);
}

static err_code fused_norm_rope_qdq(run *r, rank *k, const eng_op *const *op, krn_stream s, err *e)
{
    const eng_config *c = config(r);
    return krn_rmsnorm_rope_qdq(in(r, k, op[0], 0), weight(k, op[0], 0)->data, rows(r), c->head_dim, c->rope_dim,
                                in(r, k, op[1], 1), r->d->rope_freq, (float)c->norm_eps, out(r, k, op[0], 0),
                                out(r, k, op[1], 0), out(r, k, op[2], 0), s, e);
}

static err_code fused_norm_qdq(run *r, rank *k, const eng_op *const *op, krn_stream s, err *e)
{
    return krn_rmsnorm_qdq(in(r, k, op[0], 0), weight(k, op[0], 0)->data, rows(r), width(r, k, op[0]->in[0]),
                           (float)config(r)->norm_eps, out(r, k, op[0], 0), out(r, k, op[1], 0), s, e);
}

/* op: RMSNORM, ACT_QDQ of the query's latent; RMSNORM, ROPE, ACT_QDQ of the row of keys and values */
static err_code fused_latents(run *r, rank *k, const eng_op *const *op, krn_stream s, err *e)
{
    const eng_config *c = config(r);
    const krn_norm_side latent = { in(r, k, op[0], 0), weight(k, op[0], 0)->data, width(r, k, op[0]->in[0]),
                                   out(r, k, op[0], 0), out(r, k, op[1], 0) };
    const krn_norm_side kv = { in(r, k, op[2], 0), weight(k, op[2], 0)->data, c->head_dim, out(r, k, op[2], 0),
                               out(r, k, op[4], 0) };
    return krn_rmsnorm_pair_qdq(&latent, &kv, rows(r), c->rope_dim, in(r, k, op[3], 1), r->d->rope_freq,
                                (float)c->norm_eps, out(r, k, op[3], 0), s, e);
}

/* op: ATTENTION, ROPE_INV, ACT_QDQ; rope: the op that rotates the queries, NULL: they are rotated. */
static err_code fused_attend(run *r, rank *k, const eng_op *rope, const eng_op *const *op, krn_stream s, err *e)
{
    const eng_config *c = config(r);
    return krn_attention_rope_qdq(in(r, k, rope ? rope : op[0], 0), rings(r, k, op[0]), ring_stride(r),
                                  eng_device_slots(r), in(r, k, op[0], 2), c->window, in(r, k, op[0], 1), batch(r),
                                  c->block, weight(k, op[0], 0)->data, (float)pow((double)c->head_dim, -0.5),
                                  c->n_heads / r->d->n_ranks, c->head_dim, c->rope_dim, in(r, k, op[1], 1),
                                  r->d->rope_freq, rope ? out(r, k, rope, 0) : NULL, out(r, k, op[0], 0),
                                  out(r, k, op[1], 0), out(r, k, op[2], 0), s, e);
}
static err_code fused_rope_attention(run *r, rank *k, const eng_op *const *op, krn_stream s, err *e)
{
    return fused_attend(r, k, op[0], op + 1, s, e);
}
static err_code fused_attention(run *r, rank *k, const eng_op *const *op, krn_stream s, err *e)
{
    return fused_attend(r, k, NULL, op, s, e);
}

static err_code fused_swiglu_qdq(run *r, rank *k, const eng_op *const *op, krn_stream s, err *e)
{
    const eng_config *c = config(r);
    int32_t cols = c->inter / r->d->n_ranks, n = (int32_t)(elems(r, k, op[0]->in[0]) / cols);
    return krn_swiglu_qdq(in(r, k, op[0], 0), in(r, k, op[0], 1), op[0]->n_in > 2 ? in(r, k, op[0], 2) : NULL,
                          (float)c->swiglu_limit, out(r, k, op[0], 0), out(r, k, op[1], 0), n, cols, s, e);
}

/* A rank's part of an expert is whole tiles of the layout, and the arm may run it in one launch. */
static bool experts_fit(const eng_device *d, const eng_program *p, const eng_op *const *op)
{
    (void)op;
    return d->options.arm->kx2 && p->config.inter / d->n_ranks % KRN_KX_ROWS == 0;
}

/* op: EXPERTS_UP, SWIGLU, ACT_QDQ, EXPERTS_DOWN */
static err_code fused_experts(run *r, rank *k, const eng_op *const *op, krn_stream s, err *e)
{
    const eng_config *c = config(r);
    if (eng_dispatch_variant(&r->d->dispatch, op[0]->stage, rows(r)) == ENG_VARIANT_SEPARATE) {
        TRY(op_experts_up(r, k, op[0], s, e));
        TRY(fused_swiglu_qdq(r, k, op + 1, s, e));
        return op_experts_down(r, k, op[3], s, e);
    }
    return krn_experts_kx2(in(r, k, op[0], 0), in(r, k, op[0], 1), in(r, k, op[1], 2), rows(r), c->n_active,
                           eng_device_experts_kx(k->weights, op[0]->stage, false),
                           eng_device_experts_kx(k->weights, op[0]->stage, true), (float)c->swiglu_limit,
                           out(r, k, op[0], 0), out(r, k, op[0], 1), out(r, k, op[1], 0), out(r, k, op[2], 0),
                           out(r, k, op[3], 0), k->experts, s, e);
}

static err_code fused_gate(run *r, rank *k, const eng_op *const *op, krn_stream s, err *e)
{
    const eng_config *c = config(r);
    return krn_gate_select(in(r, k, op[0], 0), weight(k, op[1], 0)->data, rows(r), c->n_experts, c->n_active,
                           (float)c->route_scale, out(r, k, op[0], 0), out(r, k, op[1], 0), out(r, k, op[1], 1), s, e);
}

static err_code fused_round_expand(run *r, rank *k, const eng_op *const *op, krn_stream s, err *e)
{
    const eng_config *c = config(r);
    return krn_round_expand(in(r, k, op[0], 0), in(r, k, op[1], 1), in(r, k, op[1], 2), in(r, k, op[1], 3), rows(r), c->hc,
                            c->dim, out(r, k, op[0], 0), out(r, k, op[1], 0), s, e);
}

static err_code fused_combine_expand(run *r, rank *k, const eng_op *const *op, krn_stream s, err *e)
{
    const eng_config *c = config(r);
    return krn_combine_expand(in(r, k, op[0], 0), in(r, k, op[0], 1), in(r, k, op[0], 2), in(r, k, op[1], 1),
                              in(r, k, op[1], 2), in(r, k, op[1], 3), rows(r), c->n_active, c->hc, c->dim,
                              out(r, k, op[0], 0), out(r, k, op[1], 0), s, e);
}

/* op: ROUND or COMBINE_EXACT, EXPAND, then COLLAPSE, RMSNORM and perhaps ACT_QDQ of the next sub-block */
static err_code round_expand_norm(run *r, rank *k, const eng_op *const *op, bool quantised, krn_stream s, err *e)
{
    const eng_config *c = config(r);
    return krn_round_expand_norm(in(r, k, op[0], 0), in(r, k, op[1], 1), in(r, k, op[1], 2), in(r, k, op[1], 3),
                                 in(r, k, op[2], 1), weight(k, op[3], 0)->data, rows(r), c->hc, c->dim, (float)c->norm_eps,
                                 out(r, k, op[0], 0), out(r, k, op[1], 0), out(r, k, op[2], 0), out(r, k, op[3], 0),
                                 quantised ? out(r, k, op[4], 0) : NULL, s, e);
}
static err_code fused_round_expand_norm_qdq(run *r, rank *k, const eng_op *const *op, krn_stream s, err *e)
{
    return round_expand_norm(r, k, op, true, s, e);
}
static err_code fused_round_expand_norm(run *r, rank *k, const eng_op *const *op, krn_stream s, err *e)
{
    return round_expand_norm(r, k, op, false, s, e);
}

static err_code combine_expand_norm(run *r, rank *k, const eng_op *const *op, bool quantised, krn_stream s, err *e)
{
    const eng_config *c = config(r);
    return krn_combine_expand_norm(in(r, k, op[0], 0), in(r, k, op[0], 1), in(r, k, op[0], 2), in(r, k, op[1], 1),
                                   in(r, k, op[1], 2), in(r, k, op[1], 3), in(r, k, op[2], 1), weight(k, op[3], 0)->data,
                                   rows(r), c->n_active, c->hc, c->dim, (float)c->norm_eps, out(r, k, op[0], 0),
                                   out(r, k, op[1], 0), out(r, k, op[2], 0), out(r, k, op[3], 0),
                                   quantised ? out(r, k, op[4], 0) : NULL, s, e);
}
static err_code fused_combine_expand_norm_qdq(run *r, rank *k, const eng_op *const *op, krn_stream s, err *e)
{
    return combine_expand_norm(r, k, op, true, s, e);
}
static err_code fused_combine_expand_norm(run *r, rank *k, const eng_op *const *op, krn_stream s, err *e)
{
    return combine_expand_norm(r, k, op, false, s, e);
}

const eng_device_fusion ENG_DEVICE_FUSIONS[] = {
    { .n = 5, .kind = { ENG_OP_ROUND, ENG_OP_EXPAND, ENG_OP_COLLAPSE, ENG_OP_RMSNORM, ENG_OP_ACT_QDQ },
      .fn = fused_round_expand_norm_qdq },
    { .n = 4, .kind = { ENG_OP_ROUND, ENG_OP_EXPAND, ENG_OP_COLLAPSE, ENG_OP_RMSNORM }, .fn = fused_round_expand_norm },
    { .n = 5, .kind = { ENG_OP_COMBINE_EXACT, ENG_OP_EXPAND, ENG_OP_COLLAPSE, ENG_OP_RMSNORM, ENG_OP_ACT_QDQ },
      .fn = fused_combine_expand_norm_qdq },
    { .n = 4, .kind = { ENG_OP_COMBINE_EXACT, ENG_OP_EXPAND, ENG_OP_COLLAPSE, ENG_OP_RMSNORM },
      .fn = fused_combine_expand_norm },
    { .n = 2, .kind = { ENG_OP_LINEAR, ENG_OP_LINEAR }, .by = { 0, ENG_DEVICE_BESIDE }, .fits = linears_fit,
      .fn = fused_linears },
    { .n = 3, .kind = { ENG_OP_COLLAPSE, ENG_OP_RMSNORM, ENG_OP_ACT_QDQ }, .fn = fused_collapse_norm_qdq },
    { .n = 2, .kind = { ENG_OP_COLLAPSE, ENG_OP_RMSNORM }, .fn = fused_collapse_norm },
    { .n = 5, .kind = { ENG_OP_RMSNORM, ENG_OP_ACT_QDQ, ENG_OP_RMSNORM, ENG_OP_ROPE, ENG_OP_ACT_QDQ },
      .by = { 0, 0, ENG_DEVICE_BESIDE }, .fn = fused_latents },
    { .n = 3, .kind = { ENG_OP_RMSNORM, ENG_OP_ROPE, ENG_OP_ACT_QDQ }, .fn = fused_norm_rope_qdq },
    { .n = 2, .kind = { ENG_OP_RMSNORM, ENG_OP_ACT_QDQ }, .fn = fused_norm_qdq },
    { .n = 4, .kind = { ENG_OP_ROPE, ENG_OP_ATTENTION, ENG_OP_ROPE_INV, ENG_OP_ACT_QDQ }, .fn = fused_rope_attention },
    { .n = 3, .kind = { ENG_OP_ATTENTION, ENG_OP_ROPE_INV, ENG_OP_ACT_QDQ }, .fn = fused_attention },
    { .n = 4, .kind = { ENG_OP_EXPERTS_UP, ENG_OP_SWIGLU, ENG_OP_ACT_QDQ, ENG_OP_EXPERTS_DOWN }, .fits = experts_fit,
      .fn = fused_experts },
    { .n = 2, .kind = { ENG_OP_SWIGLU, ENG_OP_ACT_QDQ }, .fn = fused_swiglu_qdq },
    { .n = 2, .kind = { ENG_OP_GATE_SCORES, ENG_OP_TOPK }, .fn = fused_gate },
    { .n = 2, .kind = { ENG_OP_ROUND, ENG_OP_EXPAND }, .fn = fused_round_expand },
    { .n = 2, .kind = { ENG_OP_COMBINE_EXACT, ENG_OP_EXPAND }, .fn = fused_combine_expand },
};
const size_t ENG_DEVICE_N_FUSIONS = COUNT_OF(ENG_DEVICE_FUSIONS);
