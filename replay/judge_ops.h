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
    void *size;               /* [elements] f32, of rpl_chain_screen */
    size_t size_capacity;
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
    return eng_weights_held(c->weights, &program(c)->reps, op->weight[i], op->stage, -1);
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

/* Into how many parts ranks cut the sum over a weight of kind id, as far as it matters: those of an EXL3 weight have fp16
 * rows of their own. */
int32_t rpl_parts_of(const rpl_chain *c, eng_wid id);
/* krn_linear_bound of jobs of one weight of kind id, in those parts. jobs' need is not NULL. ERR_NOMEM. */
MUST_USE err_code rpl_bound_jobs(const rpl_chain *c, eng_wid id, const krn_linear_bound_job *jobs, int32_t n_jobs, err *e);

/* krn_linear_size does for op: a linear of known rows to F32, by a rule that asks for no more than sizes. */
bool rpl_has_size(const rpl_chain *c, const eng_op *op);
#define RPL_SIZE_ROOM 1e-3 /* more than a usual size is ever off, relative */
static inline bool rpl_size_usual(float size) { return size > 0x1p-90f && size < 0x1p120f; }
/* sum |x * w| of its products where need [elements] says so; *out [elements] stays valid until the next call. ERR_NOMEM. */
MUST_USE err_code rpl_size_linear(rpl_chain *c, const eng_op *op, const uint8_t *need, const float **out, err *e);

#endif
