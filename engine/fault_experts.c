/* Kinds of fault in the router, the experts and the choice of tokens. */
#include "engine/fault_run.h"

#include "base/mem.h"
#include "kernels/combine.h"
#include "kernels/markov.h"

static const void *in(const eng_step *s, const eng_op *op, int k) { return s->value[op->in[k]]; }
static const eng_config *config(const eng_step *s) { return &s->program->config; }

/* ---- router and experts ---- */

static err_code router(eng_fault_run *f, const eng_step *s, const eng_op *op, bool sigmoid)
{
    eng_fault_value v = eng_fault_out(f, s, op, 0);
    for (int64_t i = v.first * v.cols; i < (v.first + v.count) * v.cols; i++) {
        float *score = (float *)v.data + i;
        *score = sigmoid ? krn_f32_sigmoid(((const float *)in(s, op, 0))[i]) : *score * *score;
    }
    return ERR_OK;
}
static err_code router_sigmoid(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    return router(f, s, op, true);
}
static err_code router_no_root(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    return router(f, s, op, false);
}

static err_code topk_unbiased(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    const krn_weight *w = eng_fault_take_weight(f, s, op);
    memset(f->data, 0, (size_t)w->n * sizeof(float));
    return eng_fault_rerun(f, s, op, e);
}

/* Weights made again from the chosen scores, with bias or without the division. */
static err_code reweigh(eng_fault_run *f, const eng_step *s, const eng_op *op, bool biased, bool normalised)
{
    eng_fault_value ids = eng_fault_out(f, s, op, 0), weights = eng_fault_out(f, s, op, 1);
    const float *bias = eng_fault_weight(f, s, op)->data;
    for (int64_t r = ids.first; r < ids.first + ids.count; r++) {
        const float *score = (const float *)in(s, op, 0) + r * config(s)->n_experts;
        const int32_t *id = (const int32_t *)ids.data + r * ids.cols;
        float *w = (float *)weights.data + r * ids.cols, sum = 0;
        for (int64_t j = 0; j < ids.cols; j++) sum += w[j] = score[id[j]] + (biased ? bias[id[j]] : 0);
        for (int64_t j = 0; j < ids.cols; j++)
            w[j] = (normalised ? w[j] / (sum + 1e-20f) : w[j]) * (float)config(s)->route_scale;
    }
    return ERR_OK;
}
static err_code bias_in_weights(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    return reweigh(f, s, op, true, true);
}
static err_code weights_unnormalised(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    return reweigh(f, s, op, false, false);
}

static err_code route_scale_missing(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    eng_fault_take_config(f, s)->route_scale = 1;
    return eng_fault_rerun(f, s, op, e);
}

/* The first two picks of every chosen row change places, in output k or in both. */
static err_code swap_picks(eng_fault_run *f, const eng_step *s, const eng_op *op, bool ids)
{
    for (int k = ids ? 0 : 1; k < 2; k++) {
        eng_fault_value v = eng_fault_out(f, s, op, k);
        for (int64_t r = v.first; r < v.first + v.count; r++) {
            int32_t *pick = (int32_t *)v.data + r * v.cols, keep = pick[0]; /* both are 4 bytes wide */
            pick[0] = pick[1];
            pick[1] = keep;
        }
    }
    return ERR_OK;
}
static err_code picks_swapped(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    return swap_picks(f, s, op, true);
}
static err_code weights_swapped(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    return swap_picks(f, s, op, false);
}

/* The next id that the row has not chosen. */
static int32_t other_expert(const int32_t *id, int64_t k, int32_t n_experts)
{
    int32_t other = id[k - 1];
    for (int64_t j = 0; j < k;) {
        other = (other + 1) % n_experts;
        for (j = 0; j < k && id[j] != other; j++) {}
        if (k >= n_experts) break; /* all are chosen */
    }
    return other;
}

static err_code pick_wrong(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    eng_fault_value ids = eng_fault_out(f, s, op, 0);
    int32_t *id = (int32_t *)ids.data + ids.first * ids.cols;
    if (ids.count) id[ids.cols - 1] = other_expert(id, ids.cols, config(s)->n_experts);
    return ERR_OK;
}

static err_code expert_wrong(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    eng_fault_value ids = eng_fault_take_in(f, s, op, 1);
    int32_t *id = (int32_t *)ids.data + ids.first * ids.cols;
    if (ids.count) id[ids.cols - 1] = other_expert(id, ids.cols, config(s)->n_experts);
    return eng_fault_rerun(f, s, op, e);
}

static err_code expert_swap(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    eng_fault_value ids = eng_fault_take_in(f, s, op, 1);
    for (int64_t r = ids.first; r < ids.first + ids.count; r++) {
        int32_t *id = (int32_t *)ids.data + r * ids.cols, keep = id[0];
        id[0] = id[1];
        id[1] = keep;
    }
    return eng_fault_rerun(f, s, op, e);
}

static err_code swiglu_unclamped(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    eng_fault_take_config(f, s)->swiglu_limit = INFINITY;
    return eng_fault_rerun(f, s, op, e);
}

static err_code swiglu_swapped(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    void *gate = s->value[op->in[0]];
    s->value[op->in[0]] = s->value[op->in[1]];
    s->value[op->in[1]] = gate;
    return eng_fault_rerun(f, s, op, e);
}

static err_code swiglu_gate_floor(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    eng_fault_value gate = eng_fault_take_in(f, s, op, 0);
    bf16 *x = gate.data;
    float floor = -(float)config(s)->swiglu_limit / 4; /* one that is met */
    for (int64_t i = gate.first * gate.cols; i < (gate.first + gate.count) * gate.cols; i++)
        if (f32_from_bf16(x[i]) < floor) x[i] = bf16_from_f32(floor);
    return eng_fault_rerun(f, s, op, e);
}

static err_code route_weight_missing(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    eng_fault_value w = eng_fault_take_in(f, s, op, 2);
    for (int64_t i = 0; i < w.rows * w.cols; i++) ((float *)w.data)[i] = 1;
    return eng_fault_rerun(f, s, op, e);
}

static err_code combine_order(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    eng_fault_value ids = eng_fault_take_in(f, s, op, 1);
    for (int64_t i = 0; i < ids.rows * ids.cols; i++) ((int32_t *)ids.data)[i] *= -1; /* descending */
    return eng_fault_rerun(f, s, op, e);
}

static err_code combine_unrounded(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    (void)e;
    eng_fault_value y = eng_fault_out(f, s, op, 0);
    krn_combine_fused_ref(in(s, op, 0), in(s, op, 1), in(s, op, 2), f->wide, (int32_t)y.rows, config(s)->n_active,
                          config(s)->dim);
    krn_round_bf16_ref(f->wide, y.data, y.rows * y.cols);
    return ERR_OK;
}

static err_code shared_missing(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    eng_fault_value shared = eng_fault_take_in(f, s, op, 2);
    memset(shared.data, 0, (size_t)(shared.rows * shared.cols) * shared.elem_bytes);
    return eng_fault_rerun(f, s, op, e);
}

/* The first pick of every chosen row is added `times` times. */
static err_code weigh_pick(eng_fault_run *f, eng_step *s, const eng_op *op, float times, err *e)
{
    eng_fault_value slot = eng_fault_take_in(f, s, op, 0);
    for (int64_t r = slot.first; r < slot.first + slot.count; r++)
        for (int64_t i = 0; i < config(s)->dim; i++) ((float *)slot.data)[r * slot.cols + i] *= times;
    return eng_fault_rerun(f, s, op, e);
}
static err_code pick_twice(eng_fault_run *f, eng_step *s, const eng_op *op, err *e) { return weigh_pick(f, s, op, 2, e); }
static err_code pick_lost(eng_fault_run *f, eng_step *s, const eng_op *op, err *e) { return weigh_pick(f, s, op, 0, e); }

/* ---- tokens and confidence ---- */

static err_code markov_missing(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    const krn_weight *w = eng_fault_take_weight(f, s, op);
    memset(f->data, 0, (size_t)(w->n * w->row_bytes));
    return eng_fault_rerun(f, s, op, e);
}

/* The token before position i is that before position i - 1. */
static err_code markov_previous(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    eng_fault_value drafts = eng_fault_out(f, s, op, 1);
    const int32_t *anchor = in(s, op, 1), *token = drafts.data;
    int32_t *forced = f->before[1]; /* read by nobody before the step ends */
    for (int64_t b = 0; b < drafts.rows; b++)
        for (int64_t i = 0; i < drafts.cols; i++)
            forced[b * drafts.cols + i] = i == 0 ? anchor[b] : token[b * drafts.cols + i - 1];
    s->forced_drafts = forced;
    return eng_fault_rerun(f, s, op, e);
}

typedef enum choice { CHOOSE_SECOND, CHOOSE_LAST, CHOOSE_BF16 } choice;

static krn_best choose(float *row, int64_t n, int32_t first, choice how, krn_best best)
{
    if (how == CHOOSE_SECOND) {
        bool here = best.id >= first && best.id < first + n;
        float *at = row + (here ? best.id - first : 0), keep = n ? *at : 0;
        if (here) *at = -INFINITY;
        krn_best second = krn_argmax_ref(row, n, first);
        if (here) *at = keep;
        return second;
    }
    krn_best won = { NAN, first };
    for (int64_t i = 0; i < n; i++) {
        float v = how == CHOOSE_BF16 ? bf16_round(row[i]) : row[i];
        if (krn_value_before(v, won.value) || (how == CHOOSE_LAST && v == won.value))
            won = (krn_best){ v, first + (int32_t)i };
    }
    return won;
}

/* The Markov loop with another choice at its end; later positions follow the token that was chosen. */
static err_code choose_tokens(eng_step *s, const eng_op *op, choice how, err *e)
{
    const eng_config *c = config(s);
    const krn_weight *embed = eng_rank_weight(s->weights, op->weight[0], -1, -1);
    const krn_weight *head = eng_rank_weight(s->weights, op->weight[1], -1, -1);
    int32_t first = eng_cut_range(c, ENG_W_HEAD, s->rank, s->n_ranks).first;
    int32_t batch = (int32_t)s->x.n[ENG_DIM_B], n_out = (int32_t)s->x.n[ENG_DIM_N_OUT], *drafts = s->value[op->out[1]];
    float *biased = s->value[op->out[0]];
    for (int32_t i = 0; i < n_out; i++) {
        krn_best best[ENG_BATCH_MAX];
        krn_markov_step_ref(in(s, op, 0), embed->data, head->data, embed->n, c->markov_rank, head->n, first, batch,
                            c->block, n_out, i, in(s, op, 1), drafts, s->markov, s->acc, biased, best);
        if (s->comm) TRY(eng_comm_best(s->comm, s->rank, best, batch, op->name, e));
        for (int32_t b = 0; b < batch; b++)
            best[b] = choose(biased + ((int64_t)b * n_out + i) * head->n, head->n, first, how, best[b]);
        if (s->comm) TRY(eng_comm_best(s->comm, s->rank, best, batch, op->name, e));
        krn_markov_pick_ref(best, 1, batch, n_out, i, drafts);
    }
    return ERR_OK;
}
static err_code argmax_second(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    (void)f;
    return choose_tokens(s, op, CHOOSE_SECOND, e);
}
static err_code argmax_last(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    (void)f;
    return choose_tokens(s, op, CHOOSE_LAST, e);
}
static err_code argmax_bf16(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    (void)f;
    return choose_tokens(s, op, CHOOSE_BF16, e);
}

/* The hidden row of the next position. */
static err_code confidence_row(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    eng_fault_value x = eng_fault_take_in(f, s, op, 0);
    bf16 *row = x.data;
    memmove(row, row + x.cols, (size_t)((x.rows - 1) * x.cols) * sizeof *row);
    return eng_fault_rerun(f, s, op, e);
}

/* The position's own token for the one before it. */
static err_code confidence_token(eng_fault_run *f, eng_step *s, const eng_op *op, err *e)
{
    eng_fault_value drafts = eng_fault_take_in(f, s, op, 2);
    int32_t *token = drafts.data;
    memmove(token, token + 1, (size_t)(drafts.rows * drafts.cols - 1) * sizeof *token);
    return eng_fault_rerun(f, s, op, e);
}

/* ---- the table ---- */

#define K(name) ENG_FAULT_OP(name)
#define EXPERTS (K(EXPERTS_UP) | K(EXPERTS_DOWN))
#define COMBINES (K(COMBINE_EXACT) | K(COMBINE_FUSED))
#define COPY (ENG_RERUNS | ENG_WEIGHT)
#define WRONG ENG_CAUSE_FUNCTION

static const eng_fault_kind KINDS[] = {
    { "router-sigmoid", "sigmoid for the root of softplus", K(GATE_SCORES), 0, WRONG, true, router_sigmoid },
    { "router-no-root", "softplus without its root", K(GATE_SCORES), 0, WRONG, true, router_no_root },
    { "topk-unbiased", "experts are chosen without the bias", K(TOPK), COPY, WRONG, true, topk_unbiased },
    { "bias-in-weights", "the bias enters the weights", K(TOPK), 0, WRONG, true, bias_in_weights },
    { "weights-unnormalised", "weights are not divided by their sum", K(TOPK), 0, WRONG, true, weights_unnormalised },
    { "route-scale-missing", "weights are not multiplied by the route scale", K(TOPK), ENG_RERUNS, WRONG, true,
      route_scale_missing },
    { "picks-swapped", "the first two picks change places", K(TOPK), ENG_NEED_TWO_PICKS, ENG_CAUSE_PERMUTATION, true,
      picks_swapped },
    { "weights-swapped", "the first two picks have each other's weights", K(TOPK), ENG_NEED_TWO_PICKS,
      ENG_CAUSE_PERMUTATION, true, weights_swapped },
    { "pick-wrong", "the last pick of a row is another expert", K(TOPK), 0, WRONG, true, pick_wrong },
    { "expert-wrong", "the last pick of a row goes through another expert", EXPERTS, ENG_RERUNS, WRONG, true,
      expert_wrong },
    { "expert-swap", "the first two picks go through each other's experts", EXPERTS, ENG_RERUNS | ENG_NEED_TWO_PICKS,
      WRONG, true, expert_swap },
    { "swiglu-unclamped", "no clamp", K(SWIGLU), ENG_RERUNS, WRONG, true, swiglu_unclamped },
    { "swiglu-swapped", "gate and up change places", K(SWIGLU), ENG_RERUNS, WRONG, true, swiglu_swapped },
    { "swiglu-gate-floor", "the gate is clamped from below as well", K(SWIGLU), ENG_RERUNS, WRONG, true,
      swiglu_gate_floor },
    { "route-weight-missing", "experts are not weighted", K(SWIGLU), ENG_RERUNS | ENG_NEED_ROUTED, WRONG, true,
      route_weight_missing },
    { "combine-order", "experts are added in descending order", COMBINES, ENG_RERUNS, ENG_CAUSE_ORDER, false,
      combine_order },
    { "combine-unrounded", "experts are added without their rounding to bf16", K(COMBINE_EXACT), 0,
      ENG_CAUSE_ROUNDING_MISSING, true, combine_unrounded },
    { "shared-missing", "the shared expert is left out", COMBINES, ENG_RERUNS, WRONG, true, shared_missing },
    { "pick-twice", "the first pick is added twice", COMBINES, ENG_RERUNS, WRONG, true, pick_twice },
    { "pick-lost", "the first pick is left out", COMBINES, ENG_RERUNS, WRONG, true, pick_lost },
    { "markov-missing", "no Markov term", K(MARKOV), COPY, WRONG, true, markov_missing },
    { "markov-previous", "the token two positions before, not the one before", K(MARKOV), ENG_RERUNS, ENG_CAUSE_POSITION,
      true, markov_previous },
    { "argmax-second", "the second best token", K(MARKOV), ENG_RERUNS, WRONG, true, argmax_second },
    { "argmax-last", "of equal logits the highest id", K(MARKOV), ENG_RERUNS, ENG_CAUSE_TIE_FLIP, true, argmax_last },
    { "argmax-bf16", "the best of logits that were rounded to bf16", K(MARKOV), ENG_RERUNS, ENG_CAUSE_TIE_FLIP, true,
      argmax_bf16 },
    { "confidence-row", "the hidden row of the next position", K(CONFIDENCE), ENG_RERUNS, ENG_CAUSE_POSITION, true,
      confidence_row },
    { "confidence-token", "the position's own token, not the one before", K(CONFIDENCE), ENG_RERUNS, ENG_CAUSE_POSITION,
      true, confidence_token },
};

const eng_fault_table ENG_FAULTS_EXPERTS = { KINDS, COUNT_OF(KINDS) };
