#include "replay/judge_ops.h"

#include "base/mem.h"
#include "kernels/rope.h"
#include "replay/judge_choice.h"

/* ---- which elements of its input an op wants ---- */

/* Blocks of `block` elements: one wanted, all wanted. */
static void need_blocks(const uint8_t *from, uint8_t *to, int64_t n, int32_t block)
{
    for (int64_t i = 0; i < n; i += block) {
        const bool wanted = any(from + i, block);
        for (int32_t k = 0; k < block; k++) to[i + k] = wanted;
    }
}

static void need_pairs(const rpl_chain *c, const uint8_t *from, uint8_t *to, int64_t n)
{
    const int32_t hd = c->config->head_dim, rd = c->config->rope_dim;
    memcpy(to, from, (size_t)n);
    for (int64_t head = 0; head < n; head += hd)
        for (int64_t i = head + hd - rd; i < head + hd; i += 2) to[i] = to[i + 1] = from[i] | from[i + 1];
}

/* The dots behind the mixes that are judged: pre has the first columns, then post, then comb. */
static void need_dots(const rpl_chain *c, const eng_op *op, uint8_t *to)
{
    const int32_t mixes = width_of(c, op->in[1]);
    for (int32_t k = 0, first = 0; k < op->n_out; k++) {
        const int32_t v = op->out[k], n = width_of(c, v);
        for (int32_t r = 0; r < rows_of(c, v); r++)
            if (c->value[v].need && any(c->value[v].need + (int64_t)r * n, n))
                memset(to + (int64_t)r * mixes + first, 1, (size_t)n);
        first += n;
    }
}

/* Rows of the logits behind biased [batch, n_out, vocab]. */
static void need_logits(const rpl_chain *c, const eng_op *op, uint8_t *to)
{
    const int64_t batch = c->x.n[ENG_DIM_B], n_out = c->x.n[ENG_DIM_N_OUT], vocab = c->x.n[ENG_DIM_V];
    const uint8_t *from = c->value[op->out[0]].need;
    for (int64_t b = 0; b < batch; b++)
        for (int64_t i = 0; i < n_out; i++)
            memcpy(to + (b * c->config->block + i) * vocab, from + (b * n_out + i) * vocab, (size_t)vocab);
}

/* ---- sums over a row that may have been another ---- */

/* The last sum of a chain over codes, or with an EXL3 weight over bf16 values: each row is one of a few. */
static bool may_choose(const rpl_chain *c, const eng_op *op)
{
    if (op->kind != ENG_OP_LINEAR || !last_op(c, op) || dtype_of(c, op->out[0]) != FMT_DTYPE_F32) return false;
    const rpl_sight in = c->value[op->in[0]].sight;
    return in == RPL_SIGHT_CODES || (in == RPL_SIGHT_SPAN && eng_reps_exl3(&program(c)->reps, op->weight[0]));
}

/* Row t of op's output, as recorded, lies in its spans: the computed codes explain it. */
static bool row_explained(const rpl_chain *c, const eng_op *op, int32_t t)
{
    const int64_t n = width_of(c, op->out[0]), end = (t + 1) * n;
    const chain_value *y = &c->value[op->out[0]];
    const float *got = c->v->recorded.data;
    for (int64_t i = next_wanted(y->need, t * n, end); i < end; i = next_wanted(y->need, i + 1, end))
        if (!((double)got[i] >= y->span[i].lo && (double)got[i] <= y->span[i].hi)) return false;
    return true;
}

static bool all_explained(const rpl_chain *c, const eng_op *op)
{
    for (int32_t t = 0; t < rows_of(c, op->out[0]); t++)
        if (!row_explained(c, op, t)) return false;
    return true;
}

/* The row of x that is nearest to what was recorded of its sums y. */
static err_code choose_row(rpl_chain *c, const eng_op *op, const krn_weight *w, int64_t x, int64_t y, err *e)
{
    const float *got = (const float *)c->v->recorded.data + y;
    krn_span *sums = c->value[op->out[0]].span + y;
    if (w->format == KRN_W_EXL3) {
        int32_t cut[ENG_RANKS_MAX + 1] = { 0 };
        const int32_t hidden = op->in[0], parts = rpl_parts_of(c, op->weight[0]);
        for (int32_t r = 0; r < parts; r++) cut[r + 1] = w->k;
        for (int32_t r = 1; r < parts; r++) cut[r] = eng_cut_range(c->config, op->weight[0], r, parts).first;
        return rpl_choice_explain_exl3(c->value[hidden].span + x, (const bf16 *)data_of(c, hidden) + x, w, cut, parts, got,
                                       sums, e);
    }
    const int32_t hidden = program(c)->op[program(c)->value[op->in[0]].producer].in[0];
    return rpl_choice_explain(c->value[hidden].span + x, (const bf16 *)data_of(c, hidden) + x, w, got, sums, e);
}

/* Moves the rows that the computed ones do not explain to the choice that does. */
static err_code choose_rows(rpl_chain *c, const eng_op *op, err *e)
{
    const krn_weight w = weight(c, op, 0);
    const int32_t out = op->out[0];
    for (int32_t t = 0; t < rows_of(c, out); t++) {
        const int64_t x = (int64_t)t * w.k, y = (int64_t)t * w.n;
        if (row_explained(c, op, t)) continue;
        memset(c->value[out].need + y, 1, (size_t)w.n); /* the choice is made from all sums of the row */
        krn_linear_bound_job job = { &w, (const bf16 *)data_of(c, op->in[0]) + x, c->value[out].need + y,
                                     c->value[out].span + y };
        TRY(rpl_bound_jobs(c, op->weight[0], &job, 1, e));
        TRY(choose_row(c, op, &w, x, y, e));
    }
    return ERR_OK;
}

static void need_codes(const rpl_chain *c, const eng_op *op, uint8_t *to)
{
    const int32_t k = width_of(c, op->in[0]);
    for (int32_t t = 0; t < rows_of(c, op->in[0]); t++) memset(to + (int64_t)t * k, !row_explained(c, op, t), (size_t)k);
}

/* ---- the table ---- */

typedef struct op_rule {
    bool exact;       /* its bits follow from its inputs' */
    uint32_t spans;   /* bit per input that may be a span */
    rpl_op_bound *bound;
} op_rule;

static const op_rule RULE[ENG_KIND_COUNT] = {
    [ENG_OP_BLOCK_IDS] = { .exact = true },
    [ENG_OP_EMBED] = { .exact = true },
    [ENG_OP_FIRST_PRE] = { .exact = true },
    [ENG_OP_ACT_QDQ] = { .exact = true, .spans = 1 },
    [ENG_OP_LINEAR] = { .bound = rpl_bound_linear },
    [ENG_OP_RMSNORM] = { .spans = 1, .bound = rpl_bound_rmsnorm },
    [ENG_OP_ROPE] = { .spans = 1, .bound = rpl_bound_rope },
    [ENG_OP_ROPE_INV] = { .spans = 1, .bound = rpl_bound_rope },
    [ENG_OP_MIXES] = { .spans = 2, .bound = rpl_bound_mixes },
    [ENG_OP_COLLAPSE] = { .bound = rpl_bound_elementwise },
    [ENG_OP_EXPAND] = { .bound = rpl_bound_elementwise },
    [ENG_OP_ATTENTION] = { .bound = rpl_bound_attention },
    [ENG_OP_WO_A] = { .bound = rpl_bound_grouped_linear },
    [ENG_OP_ROUND] = { .exact = true, .spans = 1, .bound = rpl_bound_elementwise },
    [ENG_OP_GATE_SCORES] = { .spans = 1, .bound = rpl_bound_elementwise },
    [ENG_OP_TOPK] = { .bound = rpl_bound_gate_weights },
    [ENG_OP_EXPERTS_UP] = { .bound = rpl_bound_experts },
    [ENG_OP_EXPERTS_DOWN] = { .bound = rpl_bound_experts },
    [ENG_OP_SWIGLU] = { .spans = 3, .bound = rpl_bound_elementwise },
    [ENG_OP_COMBINE_EXACT] = { .exact = true },
    [ENG_OP_COMBINE_FUSED] = { .bound = rpl_bound_elementwise },
    [ENG_OP_MARKOV] = { .spans = 1, .bound = rpl_bound_markov },
    [ENG_OP_CONFIDENCE] = { .bound = rpl_bound_confidence },
    [ENG_OP_RING_WRITE] = { .exact = true },
};

/* Marks what op wants of its inputs that are no points. */
static void need_inputs(rpl_chain *c, const eng_op *op)
{
    const uint8_t *from = c->value[op->out[0]].need;
    for (int k = 0; k < op->n_in; k++) {
        const int32_t v = op->in[k];
        uint8_t *to = c->value[v].need;
        if (c->value[v].sight == RPL_SIGHT_KNOWN) continue;
        switch (op->kind) {
        case ENG_OP_RMSNORM: need_blocks(from, to, elems(c, v), width_of(c, v)); break;
        case ENG_OP_ACT_QDQ: need_blocks(from, to, elems(c, v), FMT_QDQ_GROUP); break;
        case ENG_OP_ROPE: case ENG_OP_ROPE_INV: need_pairs(c, from, to, elems(c, v)); break;
        case ENG_OP_MIXES: need_dots(c, op, to); break;
        case ENG_OP_MARKOV: need_logits(c, op, to); break;
        case ENG_OP_LINEAR: need_codes(c, op, to); break;
        default: memcpy(to, from, (size_t)elems(c, v)); break; /* element by element */
        }
    }
}

/* What is known of op's outputs. */
static rpl_sight sight_of(const rpl_chain *c, const eng_op *op)
{
    const op_rule *rule = &RULE[op->kind];
    bool known = true;
    for (int k = 0; k < op->n_in; k++) {
        rpl_sight in = c->value[op->in[k]].sight;
        if (in == RPL_SIGHT_KNOWN) continue;
        known = false;
        const bool spans = in == RPL_SIGHT_SPAN && rule->spans >> k & 1;
        if (!spans && !may_choose(c, op)) return RPL_SIGHT_NONE;
    }
    if (known && rule->exact) return RPL_SIGHT_KNOWN;
    if (op->kind == ENG_OP_ACT_QDQ) return RPL_SIGHT_CODES;
    return rule->bound ? RPL_SIGHT_SPAN : RPL_SIGHT_NONE;
}

static bool reads(const rpl_group *g, int32_t v)
{
    for (int32_t k = 0; k < g->n_in; k++)
        if (g->in[k] == v) return true;
    return false;
}

/* The extents of the step, from the shape of the value. */
static eng_extents extents_of(const rpl_chain *c)
{
    const eng_value *value = &program(c)->value[c->v->value];
    int64_t rows = 0, batch = 0, n_out = 1;
    for (int32_t d = 0; d < value->ndim; d++) {
        if (value->dim[d] == ENG_DIM_ROWS) rows = c->v->computed.shape[d];
        if (value->dim[d] == ENG_DIM_B) batch = c->v->computed.shape[d];
        if (value->dim[d] == ENG_DIM_N_OUT) n_out = c->v->computed.shape[d];
    }
    if (program(c)->step == ENG_STEP_DRAFT && rows == 0) rows = batch * c->config->block;
    if (batch == 0) batch = program(c)->step == ENG_STEP_DRAFT ? rows / c->config->block : 1;
    return eng_extents_of(c->config, (int32_t)rows, (int32_t)batch, (int32_t)n_out);
}

static void forget(rpl_chain *c)
{
    if (c->n_values) memset(c->value, 0, c->n_values * sizeof *c->value);
    c->rooms_used = 0;
}

err_code rpl_chain_start(rpl_chain *c, const rpl_forced_value *v, rpl_sight *out, err *e)
{
    forget(c);
    c->v = v;
    *out = RPL_SIGHT_KNOWN;
    if (v->value < 0) return ERR_OK; /* a window: rows that were copied */
    const rpl_group *g = v->group;
    if (c->n_values < (size_t)v->program->n_values) {
        free(c->value);
        c->n_values = 0;
        c->value = mem_alloc((size_t)v->program->n_values, sizeof *c->value);
        if (!c->value) return err_set(e, ERR_NOMEM, "judge: no memory");
        c->n_values = (size_t)v->program->n_values;
    }
    c->x = extents_of(c);
    for (int32_t k = 0; k < g->n_ops; k++) {
        const eng_op *op = &v->program->op[g->op[k]];
        const rpl_sight sight = sight_of(c, op);
        for (int32_t i = 0; i < op->n_out; i++)
            if (!reads(g, op->out[i])) c->value[op->out[i]].sight = sight;
        if (op->kind == ENG_OP_TOPK && sight == RPL_SIGHT_SPAN) c->value[op->out[0]].sight = RPL_SIGHT_KNOWN; /* the ids */
    }
    *out = c->value[v->value].sight;
    return ERR_OK;
}

static err_code alloc_value(rpl_chain *c, int32_t v, err *e)
{
    chain_value *to = &c->value[v];
    const size_t n = (size_t)elems(c, v);
    if (!to->need) {
        void *rooms = c->room;
        if (!mem_grow(&rooms, &c->rooms_capacity, c->rooms_used + 1, sizeof *c->room)) goto no_memory;
        c->room = rooms;
        chain_room *room = &c->room[c->rooms_used];
        if (c->rooms_used == c->n_rooms) {
            *room = (chain_room){ 0 };
            c->n_rooms++;
        }
        if (!mem_grow(&room->need, &room->need_capacity, n, 1) ||
            !mem_grow(&room->span, &room->span_capacity, n, sizeof *to->span))
            goto no_memory;
        c->rooms_used++;
        to->need = room->need;
        to->span = room->span;
    }
    memset(to->need, 0, n);
    return ERR_OK;
no_memory:
    return err_set(e, ERR_NOMEM, "judge: no memory for the spans of %s", c->v->name);
}

static err_code walk(rpl_chain *c, err *e)
{
    const rpl_group *g = c->v->group;
    for (int32_t k = g->n_ops - 1; k >= 0; k--) need_inputs(c, &program(c)->op[g->op[k]]);
    for (int32_t k = 0; k < g->n_ops; k++) {
        const eng_op *op = &program(c)->op[g->op[k]];
        chain_value *out = &c->value[op->out[0]];
        if (out->sight != RPL_SIGHT_SPAN && !last_op(c, op)) continue;
        if (out->sight == RPL_SIGHT_CODES) continue; /* its input's spans are the answer */
        TRY(may_choose(c, op) ? choose_rows(c, op, e) : RULE[op->kind].bound(c, op, e));
        if (last_op(c, op) || dtype_of(c, op->out[0]) != FMT_DTYPE_BF16) continue;
        const int64_t n = elems(c, op->out[0]);
        for (int64_t i = next_wanted(out->need, 0, n); i < n; i = next_wanted(out->need, i + 1, n))
            out->span[i] = krn_span_bf16(out->span[i]);
    }
    return ERR_OK;
}

/* Room for the spans of the hidden values. */
static err_code alloc_hidden(rpl_chain *c, err *e)
{
    const rpl_group *g = c->v->group;
    for (int32_t k = 0; k < g->n_ops - 1; k++) {
        const eng_op *op = &program(c)->op[g->op[k]];
        for (int32_t i = 0; i < op->n_out; i++) {
            const int32_t v = op->out[i];
            if (!reads(g, v) && c->value[v].sight != RPL_SIGHT_KNOWN) TRY(alloc_value(c, v, e));
        }
    }
    return ERR_OK;
}

err_code rpl_chain_spans(rpl_chain *c, const uint8_t *need, const int32_t *ids, const krn_span **out, err *e)
{
    const rpl_group *g = c->v->group;
    const eng_op *last = &program(c)->op[g->op[g->n_ops - 1]];
    /* The biased logits stand in for the tokens. */
    const int32_t target = last->kind == ENG_OP_MARKOV ? last->out[0] : c->v->value;
    const int64_t n = elems(c, c->v->value), repeat = target == c->v->value ? 1 : c->x.n[ENG_DIM_V];
    c->ids = ids;
    TRY(alloc_value(c, target, e));
    if (repeat == 1) memcpy(c->value[target].need, need, (size_t)n);
    else
        for (int64_t i = 0; i < n; i++) memset(c->value[target].need + i * repeat, need[i], (size_t)repeat);
    *out = c->value[target].span;
    if (may_choose(c, last)) {
        TRY(rpl_bound_linear(c, last, e));
        if (all_explained(c, last)) return ERR_OK; /* nearly always */
    }
    TRY(alloc_hidden(c, e));
    TRY(walk(c, e));
    if (c->value[target].sight == RPL_SIGHT_CODES) *out = c->value[last->in[0]].span;
    return ERR_OK;
}

/* ---- flips beyond doubt ---- */

/* How far got lies from the exact sum, in halves of the bound: at least, at most. made is the exact sum rounded to f32. */
typedef struct reach { double least, most; } reach;

static reach reach_of(float got, float made, float size, double slack)
{
    const double ulp = (double)f32_from_bits(f32_bits(made) & 0x7f800000) * 2 * KRN_U; /* of a subnormal 0 */
    const double apart = fabs((double)got - (double)made), rounding = ulp / 2 + 0x1p-149, half = slack * (double)size;
    if (!rpl_size_usual(size)) return (reach){ 0, (double)INFINITY };
    return (reach){ (apart - rounding) / half * (1 - RPL_SIZE_ROOM), (apart + rounding) / half * (1 + RPL_SIZE_ROOM) };
}

err_code rpl_chain_screen(rpl_chain *c, uint8_t *need, int64_t *n_flips, err *e)
{
    const rpl_group *g = c->v->group;
    const eng_op *op = g ? &program(c)->op[g->op[0]] : NULL;
    *n_flips = 0;
    if (!op || g->n_ops != 1 || !rpl_has_size(c, op)) return ERR_OK;
    const int64_t n = elems(c, op->out[0]);
    const float *got = c->v->recorded.data, *made = c->v->computed.data, *size;
    const double slack = krn_sum_slack(c->rule, width_of(c, op->in[0]));
    TRY(rpl_size_linear(c, op, need, &size, e));
    double most = 0; /* at least so much some flip needed */
    for (int64_t i = next_wanted(need, 0, n); i < n; i = next_wanted(need, i + 1, n)) {
        const reach r = reach_of(got[i], made[i], size[i], slack);
        if (r.most <= 1 && r.least > most) most = r.least;
    }
    for (int64_t i = next_wanted(need, 0, n); i < n; i = next_wanted(need, i + 1, n)) {
        const reach r = reach_of(got[i], made[i], size[i], slack);
        if (!(r.most <= 1 && r.most < most)) continue;
        need[i] = 0;
        ++*n_flips;
    }
    return ERR_OK;
}

err_code rpl_chain_open(const eng_weights *w, krn_rule rule, rpl_chain **out, err *e)
{
    *out = NULL;
    rpl_chain *c = mem_alloc(1, sizeof *c);
    if (c) {
        c->weights = w;
        c->config = eng_weights_config(w);
        c->rule = rule;
        c->freq = mem_alloc((size_t)c->config->rope_dim / 2, sizeof *c->freq);
    }
    if (!c || !c->freq) {
        rpl_chain_close(c);
        return err_set(e, ERR_NOMEM, "judge: no memory");
    }
    krn_rope_freqs(c->config->rope_theta, c->config->rope_dim, c->freq);
    *out = c;
    return ERR_OK;
}

void rpl_chain_close(rpl_chain *c)
{
    if (!c) return;
    for (size_t i = 0; i < c->n_rooms; i++) {
        free(c->room[i].span);
        free(c->room[i].need);
    }
    free(c->room);
    free(c->size);
    free(c->value);
    free(c->freq);
    free(c);
}
