/* The bounds of one op of a chain each: kernels/OP_bound.c over the rows that are wanted. Private to judge_chain.c. */
#ifndef REPLAY_JUDGE_OPS_H
#define REPLAY_JUDGE_OPS_H

#include "replay/judge_chain.h"

/* A value of the program while a chain is walked. */
typedef struct chain_value {
    rpl_sight sight;
    krn_span *span;  /* [elements], SPAN only; a room's */
    uint8_t *need;   /* [elements] those that are wanted; a room's */
} chain_value;

/* Memory for one value's spans, used again for those of the next chain: most chains are short, and many. */
typedef struct chain_room {
    void *span, *need;
    size_t span_capacity, need_capacity;
} chain_room;

struct rpl_chain {
    const eng_weights *weights;
    const eng_config *config;
    float *freq;              /* [rope_dim / 2] */
    krn_rule rule;
    const rpl_forced_value *v;
    eng_extents x;
    const int32_t *ids;
    chain_value *value;       /* [n_values] */
    size_t n_values;
    chain_room *room;         /* [n_rooms], of which rooms_used are given out */
    size_t n_rooms, rooms_used, rooms_capacity;
};

/* ---- reading the bench ---- */

static inline const eng_program *program(const rpl_chain *c) { return c->v->program; }
static inline fmt_dtype dtype_of(const rpl_chain *c, int32_t v) { return program(c)->value[v].dtype; }
static inline const void *data_of(const rpl_chain *c, int32_t v) { return eng_bench_value(c->v->bench, v); }
static inline int64_t elems(const rpl_chain *c, int32_t v) { return eng_value_elems(program(c), v, &c->x, 0, 1); }
static inline int32_t rows_of(const rpl_chain *c, int32_t v) { return (int32_t)c->x.n[program(c)->value[v].dim[0]]; }
static inline int32_t width_of(const rpl_chain *c, int32_t v) { return (int32_t)(elems(c, v) / rows_of(c, v)); }
static inline krn_weight weight(const rpl_chain *c, const eng_op *op, int32_t i)
{
    return eng_weights_view(c->weights, op->weight[i], op->stage, -1);
}
static inline bool last_op(const rpl_chain *c, const eng_op *op)
{
    return op == &program(c)->op[c->v->group->op[c->v->group->n_ops - 1]];
}

/* Element i of an input. */
static inline krn_span span_at(const rpl_chain *c, int32_t v, int64_t i)
{
    if (c->value[v].sight == RPL_SIGHT_SPAN) return c->value[v].span[i];
    if (dtype_of(c, v) == FMT_DTYPE_F32) return krn_span_point((double)((const float *)data_of(c, v))[i]);
    return krn_span_point((double)f32_from_bf16(((const bf16 *)data_of(c, v))[i]));
}

/* The next wanted element from i on; n: none. */
static inline int64_t next_wanted(const uint8_t *need, int64_t i, int64_t n)
{
    const uint8_t *at = i < n ? memchr(need + i, 1, (size_t)(n - i)) : NULL;
    return at ? at - need : n;
}
static inline bool any(const uint8_t *need, int64_t n) { return n > 0 && memchr(need, 1, (size_t)n) != NULL; }

/* ---- bounds ---- */

/* Each fills the spans of the op's output that is judged, or of its only one, where need says so. ERR_NOMEM. */
typedef err_code rpl_op_bound(rpl_chain *c, const eng_op *op, err *e);
rpl_op_bound rpl_bound_linear, rpl_bound_grouped_linear, rpl_bound_experts, rpl_bound_markov, rpl_bound_confidence,
    rpl_bound_rmsnorm, rpl_bound_rope, rpl_bound_attention, rpl_bound_mixes, rpl_bound_gate_weights, rpl_bound_elementwise;

#endif
