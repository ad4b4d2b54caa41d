#include "replay/judge_ops.h"

#include "base/mem.h"
#include "kernels/attention.h"
#include "kernels/combine.h"
#include "kernels/confidence.h"
#include "kernels/gate.h"
#include "kernels/markov.h"
#include "kernels/mhc.h"
#include "kernels/rmsnorm.h"
#include "kernels/rope.h"
#include "kernels/swiglu.h"

/* ---- products ---- */

/* Appends a job for row `row` of y [rows, n] unless nothing of it is needed. */
static void add_job(const rpl_chain *c, krn_linear_bound_job *jobs, int32_t *n_jobs, const krn_weight *w, const bf16 *x,
                    int32_t out, int64_t offset)
{
    const chain_value *y = &c->value[out];
    if (any(y->need + offset, w->n))
        jobs[(*n_jobs)++] = (krn_linear_bound_job){ w, x, y->need + offset, y->span + offset };
}

static krn_linear_bound_job *alloc_jobs(int64_t n, err *e)
{
    krn_linear_bound_job *jobs = mem_alloc((size_t)n, sizeof *jobs);
    if (!jobs) (void)err_set(e, ERR_NOMEM, "judge: no memory for %lld rows", (long long)n);
    return jobs;
}

/* A sum that ranks cut, as the sum of their parts: each part's inputs are transformed and become fp16 by themselves. */
static err_code bound_parts(const rpl_chain *c, eng_wid id, const krn_linear_bound_job *jobs, int32_t n_jobs, err *e)
{
    const int32_t n = jobs[0].w->n, ranks = eng_bench_ranks(c->v->bench);
    krn_linear_bound_job *part = alloc_jobs(n_jobs, e);
    krn_span *span = part ? mem_alloc((size_t)n_jobs * (size_t)n, sizeof *span) : NULL;
    err_code rc = span ? ERR_OK : err_set(e, ERR_NOMEM, "judge: no memory for the parts of a sum");
    for (int32_t rank = 0; rank < ranks && rc == ERR_OK; rank++) {
        const eng_range cut = eng_cut_range(c->config, id, rank, ranks);
        const krn_weight w = krn_weight_slice(jobs[0].w, 0, n, cut.first, cut.count);
        for (int32_t j = 0; j < n_jobs; j++)
            part[j] = (krn_linear_bound_job){ &w, jobs[j].x + cut.first, jobs[j].need, span + (int64_t)j * n };
        krn_linear_bound(part, n_jobs, c->rule);
        for (int32_t j = 0; j < n_jobs; j++)
            for (int64_t i = next_wanted(jobs[j].need, 0, n); i < n; i = next_wanted(jobs[j].need, i + 1, n)) {
                const krn_span one = part[j].y[i], *sum = &jobs[j].y[i];
                jobs[j].y[i] = rank == 0 ? one
                                         : krn_span_widen((krn_span){ sum->lo + one.lo, sum->hi + one.hi }, KRN_U);
            }
    }
    free(part);
    free(span);
    return rc;
}

int32_t rpl_parts_of(const rpl_chain *c, eng_wid id)
{
    bool parts = eng_reps_exl3(&program(c)->reps, id) && eng_wkind_of(id)->cut == ENG_CUT_COLS;
    return parts ? eng_bench_ranks(c->v->bench) : 1;
}

err_code rpl_bound_jobs(const rpl_chain *c, eng_wid id, const krn_linear_bound_job *jobs, int32_t n_jobs, err *e)
{
    if (n_jobs > 0 && rpl_parts_of(c, id) > 1) return bound_parts(c, id, jobs, n_jobs, e);
    krn_linear_bound(jobs, n_jobs, c->rule);
    return ERR_OK;
}

bool rpl_has_size(const rpl_chain *c, const eng_op *op)
{
    enum { K_MAX = 1 << 16 }; /* longer sums of sizes in f32 are not as exact as RPL_SIZE_ROOM has it */
    return c->rule != KRN_RULE_SHARP && op->kind == ENG_OP_LINEAR && dtype_of(c, op->out[0]) == FMT_DTYPE_F32 &&
           c->value[op->in[0]].sight == RPL_SIGHT_KNOWN && width_of(c, op->in[0]) <= K_MAX &&
           weight(c, op, 0).format != KRN_W_EXL3;
}

err_code rpl_size_linear(rpl_chain *c, const eng_op *op, const uint8_t *need, const float **out, err *e)
{
    const krn_weight w = weight(c, op, 0);
    const int32_t rows = rows_of(c, op->in[0]);
    const bf16 *x = data_of(c, op->in[0]);
    if (!mem_grow(&c->size, &c->size_capacity, (size_t)elems(c, op->out[0]), sizeof(float)))
        return err_set(e, ERR_NOMEM, "judge: no memory");
    float *size = c->size;
    krn_linear_bound_job *jobs = alloc_jobs(rows, e);
    int32_t n = 0;
    if (!jobs) return ERR_NOMEM;
    for (int64_t t = 0; t < rows; t++)
        if (any(need + t * w.n, w.n))
            jobs[n++] = (krn_linear_bound_job){ &w, x + t * w.k, need + t * w.n, .size = size + t * w.n };
    krn_linear_size(jobs, n);
    free(jobs);
    *out = size;
    return ERR_OK;
}

/* The spans of the dots of a comb, around the computed ones: their sizes alone have to be summed, and the bound of a dot is
 * hundreds of its roundings. *done false: some size is no usual number. */
static err_code bound_dots(rpl_chain *c, const eng_op *op, bool *done, err *e)
{
    const chain_value *y = &c->value[op->out[0]];
    const int64_t n = elems(c, op->out[0]);
    const float *made = data_of(c, op->out[0]), *size;
    const double slack = krn_sum_slack(c->rule, width_of(c, op->in[0])) * (1 + RPL_SIZE_ROOM);
    TRY(rpl_size_linear(c, op, y->need, &size, e));
    *done = true;
    for (int64_t i = next_wanted(y->need, 0, n); i < n && *done; i = next_wanted(y->need, i + 1, n)) {
        *done = rpl_size_usual(size[i]);
        y->span[i] = krn_span_around((double)made[i], slack * (double)size[i] + KRN_U * fabs((double)made[i]));
    }
    return ERR_OK;
}

err_code rpl_bound_linear(rpl_chain *c, const eng_op *op, err *e)
{
    bool done = false;
    const rpl_group *g = c->v->group;
    const eng_op *last = &program(c)->op[g->op[g->n_ops - 1]];
    const bool comb = last->kind == ENG_OP_MIXES && c->v->value == last->out[2]; /* pre and post hardly ever differ */
    if (comb && rpl_has_size(c, op)) TRY(bound_dots(c, op, &done, e));
    if (done) return ERR_OK;
    const krn_weight w = weight(c, op, 0);
    const int32_t rows = rows_of(c, op->in[0]);
    const bf16 *x = data_of(c, op->in[0]);
    krn_linear_bound_job *jobs = alloc_jobs(rows, e);
    int32_t n = 0;
    if (!jobs) return ERR_NOMEM;
    for (int32_t t = 0; t < rows; t++) add_job(c, jobs, &n, &w, x + (int64_t)t * w.k, op->out[0], (int64_t)t * w.n);
    err_code rc = rpl_bound_jobs(c, op->weight[0], jobs, n, e);
    free(jobs);
    return rc;
}

err_code rpl_bound_grouped_linear(rpl_chain *c, const eng_op *op, err *e)
{
    const krn_weight w = weight(c, op, 0);
    const int32_t o_lora = c->config->o_lora, groups = w.n / o_lora, rows = rows_of(c, op->in[0]);
    const bf16 *x = data_of(c, op->in[0]);
    krn_linear_bound_job *jobs = alloc_jobs(rows, e);
    if (!jobs) return ERR_NOMEM;
    for (int32_t g = 0; g < groups; g++) {
        krn_weight part = krn_weight_slice(&w, g * o_lora, o_lora, 0, w.k);
        int32_t n = 0;
        for (int32_t t = 0; t < rows; t++)
            add_job(c, jobs, &n, &part, x + ((int64_t)t * groups + g) * w.k, op->out[0], (int64_t)t * w.n + g * o_lora);
        krn_linear_bound(jobs, n, c->rule);
    }
    free(jobs);
    return ERR_OK;
}

/* up: w1, w3 from rows of the token; down: w2 from rows of the pick. The value that is judged only. */
err_code rpl_bound_experts(rpl_chain *c, const eng_op *op, err *e)
{
    const bool up = op->kind == ENG_OP_EXPERTS_UP;
    const int32_t which = up && c->v->value == op->out[1], out = op->out[which], k = c->config->n_active;
    const int32_t picks = rows_of(c, out) * k, *ids = data_of(c, op->in[1]);
    const bf16 *x = data_of(c, op->in[0]);
    krn_linear_bound_job *jobs = alloc_jobs(picks, e);
    err_code rc = ERR_OK;
    if (!jobs) return ERR_NOMEM;
    for (int32_t expert = 0; expert < c->config->n_experts && rc == ERR_OK; expert++) {
        const krn_weight w = eng_weights_held(c->weights, &program(c)->reps, op->weight[which], op->stage, expert);
        int32_t n = 0;
        for (int32_t i = 0; i < picks; i++)
            if (ids[i] == expert)
                add_job(c, jobs, &n, &w, x + (int64_t)(up ? i / k : i) * w.k, out, (int64_t)i * w.n);
        rc = rpl_bound_jobs(c, op->weight[which], jobs, n, e);
    }
    free(jobs);
    return rc;
}

static const bf16 *embedding(const krn_weight *w, int32_t id)
{
    return (const bf16 *)(const void *)((const uint8_t *)w->data + (id < 0 || id >= w->n ? 0 : id) * w->row_bytes);
}

/* The token before position i of batch entry b. anchor, drafts: values. */
static int32_t token_before(const rpl_chain *c, int32_t anchor, int32_t drafts, int64_t b, int64_t i)
{
    const int32_t *forced = eng_bench_forced_drafts(c->v->bench), *token = forced ? forced : data_of(c, drafts);
    return i == 0 ? ((const int32_t *)data_of(c, anchor))[b] : token[b * c->x.n[ENG_DIM_N_OUT] + i - 1];
}

err_code rpl_bound_markov(rpl_chain *c, const eng_op *op, err *e)
{
    const krn_weight embed = weight(c, op, 0), head = weight(c, op, 1);
    const int64_t batch = c->x.n[ENG_DIM_B], n_out = c->x.n[ENG_DIM_N_OUT];
    const chain_value *y = &c->value[op->out[0]];
    krn_linear_bound_job *jobs = alloc_jobs(batch * n_out, e);
    int32_t n = 0;
    if (!jobs) return ERR_NOMEM;
    for (int64_t b = 0; b < batch; b++)
        for (int64_t i = 0; i < n_out; i++)
            add_job(c, jobs, &n, &head, embedding(&embed, token_before(c, op->in[1], op->out[1], b, i)), op->out[0],
                    (b * n_out + i) * head.n);
    krn_linear_bound(jobs, n, c->rule); /* R1's m for now */
    free(jobs);
    for (int64_t row = 0; row < batch * n_out; row++) {
        const int64_t logits = (row / n_out * c->config->block + row % n_out) * head.n;
        const uint8_t *need = y->need + row * head.n;
        krn_span *span = y->span + row * head.n;
        for (int64_t i = next_wanted(need, 0, head.n); i < head.n; i = next_wanted(need, i + 1, head.n))
            span[i] = krn_markov_bound(span_at(c, op->in[0], logits + i), span[i],
                                       program(c)->reps.markov == ENG_MARKOV_CACHE);
    }
    return ERR_OK;
}

err_code rpl_bound_confidence(rpl_chain *c, const eng_op *op, err *e)
{
    (void)e;
    const krn_weight embed = weight(c, op, 0), w = weight(c, op, 1);
    const bf16 *hidden = data_of(c, op->in[0]);
    const int64_t n_out = c->x.n[ENG_DIM_N_OUT];
    const chain_value *y = &c->value[op->out[0]];
    for (int64_t k = 0; k < elems(c, op->out[0]); k++) {
        const int64_t b = k / n_out, i = k % n_out;
        if (!y->need[k]) continue;
        y->span[k] = krn_confidence_bound(hidden + (b * c->config->block + i) * c->config->dim, c->config->dim,
                                          embedding(&embed, token_before(c, op->in[1], op->in[2], b, i)),
                                          c->config->markov_rank, w.data, c->rule);
    }
    return ERR_OK;
}

/* ---- the rest ---- */

err_code rpl_bound_rmsnorm(rpl_chain *c, const eng_op *op, err *e)
{
    const krn_weight w = weight(c, op, 0);
    const int32_t out = op->out[0], rows = rows_of(c, out), dim = width_of(c, out);
    const chain_value *y = &c->value[out];
    krn_span *x = mem_alloc((size_t)dim, sizeof *x);
    if (!x) return err_set(e, ERR_NOMEM, "judge: no memory");
    for (int64_t first = 0; first < (int64_t)rows * dim; first += dim) {
        if (!any(y->need + first, dim)) continue;
        for (int32_t i = 0; i < dim; i++) x[i] = span_at(c, op->in[0], first + i);
        krn_rmsnorm_bound(x, w.data, dim, (float)c->config->norm_eps, c->rule, y->span + first);
    }
    free(x);
    return ERR_OK;
}

err_code rpl_bound_rope(rpl_chain *c, const eng_op *op, err *e)
{
    (void)e;
    const int32_t hd = c->config->head_dim, rd = c->config->rope_dim, width = width_of(c, op->out[0]);
    const int32_t *pos = data_of(c, op->in[1]);
    const chain_value *y = &c->value[op->out[0]];
    const int64_t n = elems(c, op->out[0]);
    for (int64_t head = 0; head < n; head += hd) {
        if (!any(y->need + head, hd)) continue;
        for (int64_t i = head; i < head + hd - rd; i++)
            if (y->need[i]) y->span[i] = span_at(c, op->in[0], i);
        for (int64_t i = head + hd - rd; i < head + hd; i += 2)
            if (y->need[i] || y->need[i + 1])
                krn_rope_bound(span_at(c, op->in[0], i), span_at(c, op->in[0], i + 1), pos[head / width],
                               c->freq[(i - head - (hd - rd)) / 2], op->kind == ENG_OP_ROPE_INV, y->span + i);
    }
    return ERR_OK;
}

err_code rpl_bound_attention(rpl_chain *c, const eng_op *op, err *e)
{
    const eng_config *g = c->config;
    const int32_t hd = g->head_dim, heads = g->n_heads, *last = data_of(c, op->in[2]);
    const bf16 *q = data_of(c, op->in[0]), *kv = data_of(c, op->in[1]);
    const float *sink = weight(c, op, 0).data, scale = (float)pow((double)hd, -0.5);
    const chain_value *y = &c->value[op->out[0]];
    const int64_t tasks = elems(c, op->out[0]) / hd;
    bool fine = true;
#pragma omp parallel reduction(&& : fine)
    {
        double *room = mem_alloc(KRN_ATTENTION_BOUND_ROOM(g->window + g->block, hd), sizeof *room);
        fine = fine && room;
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < tasks; i++) {
            const int32_t b = (int32_t)(i / heads / g->block), n_ring = last[b] + 1 < g->window ? last[b] + 1 : g->window;
            if (!room || !any(y->need + i * hd, hd)) continue;
            krn_attention_bound(q + i * hd, eng_bench_ring(c->v->bench, b, op->stage), n_ring,
                                kv + (int64_t)b * g->block * hd, g->block, sink[i % heads], scale, hd, c->rule, room,
                                y->span + i * hd);
        }
        free(room);
    }
    return fine ? ERR_OK : err_set(e, ERR_NOMEM, "judge: no memory for the scores of a head");
}

err_code rpl_bound_mixes(rpl_chain *c, const eng_op *op, err *e)
{
    (void)e;
    const eng_config *g = c->config;
    const krn_weight base = weight(c, op, 0), scale = weight(c, op, 1);
    const int32_t hc = g->hc, n_mixes = (2 + hc) * hc, out = c->v->value, width = width_of(c, out);
    const bf16 *x = data_of(c, op->in[0]);
    for (int32_t r = 0; r < rows_of(c, out); r++) {
        krn_span dots[(2 + KRN_MHC_COPIES_MAX) * KRN_MHC_COPIES_MAX], *y = c->value[out].span + (int64_t)r * width;
        if (!any(c->value[out].need + (int64_t)r * width, width)) continue;
        for (int32_t i = 0; i < n_mixes; i++) dots[i] = span_at(c, op->in[1], (int64_t)r * n_mixes + i);
        krn_mhc_mixes_bound(x + (int64_t)r * hc * g->dim, dots, base.data, scale.data, hc, g->dim, (float)g->norm_eps,
                            (float)g->hc_eps, g->sinkhorn_iters, c->rule, out == op->out[0] ? y : NULL,
                            out == op->out[1] ? y : NULL, out == op->out[2] ? y : NULL);
    }
    return ERR_OK;
}

err_code rpl_bound_gate_weights(rpl_chain *c, const eng_op *op, err *e)
{
    (void)e;
    const int32_t k = c->config->n_active, n = c->config->n_experts, out = op->out[1];
    const float *scores = data_of(c, op->in[0]);
    const int32_t *ids = c->ids ? c->ids : data_of(c, op->out[0]);
    for (int64_t r = 0; r < rows_of(c, out); r++)
        krn_gate_weights_bound(scores + r * n, ids + r * k, k, (float)c->config->route_scale, c->value[out].span + r * k);
    return ERR_OK;
}

/* Ops that make each element from a few others: one element. */
static krn_span element(const rpl_chain *c, const eng_op *op, int64_t i)
{
    const eng_config *g = c->config;
    const int64_t dim = g->dim, hc = g->hc;
    const int32_t *in = op->in;
    switch (op->kind) {
    case ENG_OP_SWIGLU: {
        double weight = op->n_in > 2 ? krn_span_middle(span_at(c, in[2], i / g->inter)) : 1;
        return krn_swiglu_bound(span_at(c, in[0], i), span_at(c, in[1], i), weight, (float)g->swiglu_limit);
    }
    case ENG_OP_ROUND: /* to bf16 the value's own rounding does it */
        return dtype_of(c, op->out[0]) == FMT_DTYPE_F32 ? krn_span_bf16(span_at(c, in[0], i)) : span_at(c, in[0], i);
    case ENG_OP_GATE_SCORES: return krn_gate_scores_bound(span_at(c, in[0], i));
    case ENG_OP_COLLAPSE: {
        const bf16 *x = data_of(c, in[0]);
        const float *pre = data_of(c, in[1]);
        return krn_mhc_collapse_bound(x + i / dim * hc * dim, pre + i / dim * hc, g->hc, g->dim, (int32_t)(i % dim));
    }
    case ENG_OP_EXPAND: {
        const int64_t r = i / (hc * dim);
        const bf16 *y = data_of(c, in[0]), *x = data_of(c, in[1]);
        const float *post = data_of(c, in[2]), *comb = data_of(c, in[3]);
        return krn_mhc_expand_bound(y + r * dim, x + r * hc * dim, post + r * hc, comb + r * hc * hc, g->hc, g->dim,
                                    (int32_t)(i / dim % hc), (int32_t)(i % dim));
    }
    case ENG_OP_COMBINE_FUSED: {
        const int64_t r = i / dim;
        const float *slot = data_of(c, in[0]), *shared = data_of(c, in[2]);
        return krn_combine_fused_bound(slot + r * g->n_active * dim, shared + r * dim, g->n_active, g->dim,
                                       (int32_t)(i % dim));
    }
    default: return span_at(c, in[0], i); /* ROUND: rounded where the output's dtype says */
    }
}

err_code rpl_bound_elementwise(rpl_chain *c, const eng_op *op, err *e)
{
    (void)e;
    const chain_value *y = &c->value[op->out[0]];
    const int64_t n = elems(c, op->out[0]);
    for (int64_t i = next_wanted(y->need, 0, n); i < n; i = next_wanted(y->need, i + 1, n)) y->span[i] = element(c, op, i);
    return ERR_OK;
}
