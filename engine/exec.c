#include "engine/exec.h"

#include "base/hot.h"
#include "base/mem.h"
#include "engine/fault.h"
#include "engine/poison.h"
#include "engine/shots_fill.h"

/* How main_proj sums. Its inputs have columns thousands of times larger than the rest: sums in f32 lose what the small ones
 * say, differently in every order. An arm that is defined by its accumulation keeps that; the others sum in double. In EXL3
 * the transform of the inputs has spread the large columns over their block already. */
static krn_acc taps_acc(const eng_options *o)
{
    if (eng_reps_exl3(&o->reps, ENG_W_MAIN_PROJ)) return o->exl3_acc;
    return o->arm->fixed_acc ? o->acc : KRN_ACC_F64;
}

krn_acc eng_step_acc(const eng_step *s, const eng_op *op)
{
    if (op->weight[0] == ENG_W_MAIN_PROJ) return s->taps_acc;
    return eng_reps_exl3(&s->program->reps, op->weight[0]) ? s->exl3_acc : s->acc;
}

err_code eng_step_init(eng_step *s, const eng_program *p, const eng_rank_weights *w, const eng_options *o, int32_t rank,
                       int32_t n_ranks, eng_comm *comm, const float *rope_freq, int32_t rows_max, int32_t batch_max,
                       eng_level retain, err *e)
{
    const eng_config *c = &p->config;
    *s = (eng_step){ .program = p, .weights = w, .acc = o->acc, .taps_acc = taps_acc(o),
                     .exl3_acc = o->exl3_acc, .rank = rank, .n_ranks = n_ranks, .comm = comm, .rope_freq = rope_freq };
    eng_markov_table_empty(p->reps.markov, &s->no_terms);
    s->markov = s->no_terms.table;
    s->x = eng_extents_of(c, rows_max, batch_max, c->block);
    TRY(eng_plan_make(p, &s->x, rank, n_ranks, retain, &s->plan, e));
    s->arena = mem_alloc_aligned(s->plan.bytes, 1);
    s->value = mem_alloc((size_t)p->n_values, sizeof *s->value);
    s->bound = mem_alloc((size_t)p->n_ops, sizeof *s->bound);
    s->jobs = mem_alloc((size_t)rows_max * (size_t)c->n_active * 2, sizeof *s->jobs);
    if (!s->arena || !s->value || !s->bound || !s->jobs) {
        uint64_t bytes = s->plan.bytes;
        eng_step_fini(s);
        return err_set(e, ERR_NOMEM, "step: no memory for %llu bytes of values", (unsigned long long)bytes);
    }
    for (int32_t v = 0; v < p->n_values; v++)
        if (s->plan.offset[v] != UINT64_MAX) s->value[v] = (uint8_t *)s->arena + s->plan.offset[v];
    for (int32_t i = 0; i < p->n_ops; i++) s->bound[i] = eng_op_cpu(p->op[i].kind);
    return o->fault ? eng_fault_plant(s, o->fault, e) : ERR_OK;
}

void eng_step_fini(eng_step *s)
{
    free(s->arena);
    free(s->value);
    free(s->bound);
    free(s->jobs);
    eng_fault_uproot(s->fault);
    eng_plan_fini(&s->plan);
    *s = (eng_step){ 0 };
}

uint64_t eng_step_bytes(const eng_step *s) { return s->plan.bytes; }

/* To the shot, and to whoever looks on. */
static void show(const eng_step *s, int32_t v, const eng_tap *tap, int32_t slot, int32_t row0, int32_t rows_total)
{
    const eng_value *value = &s->program->value[v];
    eng_site site = { s->program, v, s->rank, s->n_ranks, slot, row0, rows_total };
    fmt_tensor t = { .dtype = value->dtype, .ndim = value->ndim, .data = s->value[v] };
    for (int d = 0; d < FMT_DIMS_MAX; d++) t.shape[d] = 1;
    eng_value_shape(s->program, v, &s->x, s->rank, s->n_ranks, t.shape);
    if (tap->shot) eng_shot_put(tap->shot, s->rank, v, 0, row0, &t);
    if (tap->tensor) tap->tensor(tap->ctx, &site, &t);
}

static err_code run_op(eng_step *s, int32_t i, err *e)
{
    if (s->poison) eng_poison_op(s, i);
    return s->bound[i](s, &s->program->op[i], e);
}

static bool shown(const eng_value *v) { return v->level <= ENG_LEVEL_DEEP && !v->state; }

err_code eng_step_eager(eng_step *s, int32_t first, int32_t last, const eng_tap *tap, int32_t slot, int32_t row0,
                        int32_t rows_total, err *e)
{
    err_code rc = ERR_OK;
    if (s->poison) eng_poison_step(s);
    for (int32_t i = first; i <= last && rc == ERR_OK; i++) {
        const eng_op *op = &s->program->op[i];
        hot_begin();
        rc = run_op(s, i, e);
        hot_end();
        for (int32_t k = 0; k < op->n_out && tap && rc == ERR_OK; k++)
            if (shown(&s->program->value[op->out[k]])) show(s, op->out[k], tap, slot, row0, rows_total);
    }
    return rc;
}

err_code eng_step_planned(eng_step *s, int32_t first, eng_level retain, const eng_tap *tap, int32_t slot, int32_t row0,
                          int32_t rows_total, err *e)
{
    const eng_program *p = s->program;
    err_code rc = ERR_OK;
    if (s->poison) eng_poison_step(s);
    hot_begin();
    for (int32_t i = first; i < p->n_ops && rc == ERR_OK; i++) rc = run_op(s, i, e);
    hot_end();
    for (int32_t i = first; i < p->n_ops && tap && rc == ERR_OK; i++)
        for (int32_t k = 0; k < p->op[i].n_out; k++) {
            const eng_value *v = &p->value[p->op[i].out[k]];
            if (v->level <= retain && shown(v)) show(s, p->op[i].out[k], tap, slot, row0, rows_total);
        }
    return rc;
}
