#include "engine/program.h"

#include "base/mem.h"
#include "engine/program_build.h"

#include <stdarg.h>

#define X(name, text) text,
static const char *const KIND_NAMES[ENG_KIND_COUNT] = { ENG_KIND_LIST(X) };
#undef X
static const char *const LEVEL_NAMES[] = { "off", "io", "v1", "deep", "hidden" };

const char *eng_kind_name(eng_kind k) { return k < ENG_KIND_COUNT ? KIND_NAMES[k] : "?"; }
const char *eng_level_name(eng_level l) { return (size_t)l < COUNT_OF(LEVEL_NAMES) ? LEVEL_NAMES[l] : "?"; }

bool eng_level_parse(const char *text, eng_level *out)
{
    for (int i = ENG_LEVEL_OFF; i <= ENG_LEVEL_DEEP; i++)
        if (strcmp(text, LEVEL_NAMES[i]) == 0) {
            *out = (eng_level)i;
            return true;
        }
    return false;
}

/* ---- building ---- */

static int32_t append_value(eng_builder *b, const char *name, eng_form form, fmt_place place, int32_t axis, eng_level level)
{
    eng_program *p = b->p;
    void *array = p->value;
    if (!mem_grow(&array, &b->cap_values, (size_t)p->n_values + 1, sizeof *p->value)) {
        b->no_memory = true;
        return 0;
    }
    p->value = array;
    eng_value *v = &p->value[p->n_values];
    *v = (eng_value){ .dtype = form.dtype, .ndim = form.ndim, .place = place, .axis = axis, .level = level };
    v->producer = -1;
    memcpy(v->dim, form.dim, sizeof v->dim);
    if (b->stage == ENG_NO_STAGE) snprintf(v->name, sizeof v->name, "%s", name);
    else snprintf(v->name, sizeof v->name, "s%d.%s", b->stage, name);
    return p->n_values++;
}

int32_t eng_build_value(eng_builder *b, const char *name, eng_form form, eng_level level)
{
    return append_value(b, name, form, FMT_PLACE_REPLICATED, 0, level);
}

int32_t eng_build_sharded(eng_builder *b, const char *name, eng_form form, int32_t axis, eng_level level)
{
    return append_value(b, name, form, FMT_PLACE_SHARDED, axis, level);
}

int32_t eng_build_partial(eng_builder *b, const char *name, eng_form form, eng_level level)
{
    return append_value(b, name, form, FMT_PLACE_PARTIAL, 0, level);
}

void eng_build_op(eng_builder *b, eng_kind kind, eng_refs in, eng_refs out, eng_refs weights)
{
    eng_program *p = b->p;
    void *array = p->op;
    if (b->no_memory || !mem_grow(&array, &b->cap_ops, (size_t)p->n_ops + 1, sizeof *p->op)) {
        b->no_memory = true;
        return;
    }
    p->op = array;
    CHECK(in.n <= ENG_OP_INS && out.n <= ENG_OP_OUTS && weights.n <= ENG_OP_WEIGHTS);
    eng_op *op = &p->op[p->n_ops];
    *op = (eng_op){ .kind = kind, .stage = b->stage, .n_in = in.n, .n_out = out.n, .n_weights = weights.n };
    memcpy(op->in, in.id, sizeof(int32_t) * (size_t)in.n);
    memcpy(op->out, out.id, sizeof(int32_t) * (size_t)out.n);
    for (int i = 0; i < weights.n; i++) op->weight[i] = (eng_wid)weights.id[i];
    snprintf(op->name, sizeof op->name, "%.31s", p->value[out.id[0]].name);
    op->name[strcspn(op->name, "~")] = 0;
    for (int i = 0; i < out.n; i++) p->value[out.id[i]].producer = p->n_ops;
    p->n_ops++;
}

int32_t eng_build_all_reduce(eng_builder *b, int32_t value, const char *hidden_name)
{
    if (b->p->n_ranks == 1 || b->no_memory) return value;
    eng_form form = { b->p->value[value].dtype, b->p->value[value].ndim, { 0 } };
    memcpy(form.dim, b->p->value[value].dim, sizeof form.dim);
    int32_t sum = eng_build_value(b, hidden_name, form, ENG_LEVEL_HIDDEN);
    eng_build_op(b, ENG_OP_ALL_REDUCE, ENG_REFS(value), ENG_REFS(sum), ENG_NONE);
    return sum;
}

int32_t eng_build_operand(eng_builder *b, int32_t x, const char *name, eng_wid id)
{
    if (b->no_memory || eng_reps_exl3(&b->p->reps, id)) return x;
    const eng_value v = b->p->value[x];
    eng_form form = { v.dtype, v.ndim, { 0 } };
    memcpy(form.dim, v.dim, sizeof form.dim);
    int32_t q = append_value(b, name, form, v.place, v.axis, ENG_LEVEL_HIDDEN);
    eng_build_op(b, ENG_OP_ACT_QDQ, ENG_REFS(x), ENG_REFS(q), ENG_NONE);
    return q;
}

void eng_build_latent(eng_builder *b, int32_t x_q, int32_t pos, int32_t out)
{
    const eng_form form = ENG_FORM(BF16, 2, ENG_DIM_ROWS, ENG_DIM_HD);
    int32_t projected = eng_build_value(b, "attn.wkv~", form, ENG_LEVEL_HIDDEN);
    int32_t normed = eng_build_value(b, "attn.kv_norm~", form, ENG_LEVEL_HIDDEN);
    int32_t rotated = eng_build_value(b, "attn.kv_rope~", form, ENG_LEVEL_HIDDEN);
    eng_build_op(b, ENG_OP_LINEAR, ENG_REFS(x_q), ENG_REFS(projected), ENG_REFS(ENG_W_WKV));
    eng_build_op(b, ENG_OP_RMSNORM, ENG_REFS(projected), ENG_REFS(normed), ENG_REFS(ENG_W_KV_NORM));
    eng_build_op(b, ENG_OP_ROPE, ENG_REFS(normed, pos), ENG_REFS(rotated), ENG_NONE);
    eng_build_op(b, ENG_OP_ACT_QDQ, ENG_REFS(rotated), ENG_REFS(out), ENG_NONE);
}

err_code eng_program_make(const eng_config *c, eng_step_kind step, int32_t n_ranks, eng_combine combine,
                          const eng_reps *reps, eng_program **out, err *e)
{
    *out = NULL;
    eng_program *p = mem_alloc(1, sizeof *p);
    if (!p) return err_set(e, ERR_NOMEM, "program: no memory");
    p->step = step;
    p->config = *c;
    p->combine = combine;
    p->reps = reps ? *reps : (eng_reps){ ENG_REP_FP4, ENG_REP_FP8, ENG_REP_BF16 };
    p->n_ranks = n_ranks;
    eng_builder b = { .p = p, .stage = ENG_NO_STAGE };
    if (step == ENG_STEP_INSERT) eng_build_insert(&b);
    else eng_build_draft(&b);
    if (b.no_memory) {
        eng_program_free(p);
        return err_set(e, ERR_NOMEM, "program: no memory");
    }
    *out = p;
    return ERR_OK;
}

void eng_program_free(eng_program *p)
{
    if (!p) return;
    free(p->value);
    free(p->op);
    free(p);
}

int32_t eng_program_find_value(const eng_program *p, const char *name)
{
    for (int32_t i = 0; i < p->n_values; i++)
        if (strcmp(p->value[i].name, name) == 0) return i;
    return -1;
}

int32_t eng_program_find_op(const eng_program *p, const char *name)
{
    for (int32_t i = 0; i < p->n_ops; i++)
        if (strcmp(p->op[i].name, name) == 0) return i;
    return -1;
}

/* ---- shapes ---- */

eng_extents eng_extents_of(const eng_config *c, int32_t rows, int32_t batch, int32_t n_out)
{
    eng_extents x;
    x.n[ENG_DIM_1] = 1;
    x.n[ENG_DIM_ROWS] = rows;
    x.n[ENG_DIM_B] = batch;
    x.n[ENG_DIM_N_OUT] = n_out;
    x.n[ENG_DIM_TAPS] = (int64_t)c->n_taps * c->dim;
    x.n[ENG_DIM_DIM] = c->dim;
    x.n[ENG_DIM_HC] = c->hc;
    x.n[ENG_DIM_MIX] = (int64_t)(2 + c->hc) * c->hc;
    x.n[ENG_DIM_Q] = c->q_lora;
    x.n[ENG_DIM_H] = c->n_heads;
    x.n[ENG_DIM_HD] = c->head_dim;
    x.n[ENG_DIM_GO] = (int64_t)c->o_groups * c->o_lora;
    x.n[ENG_DIM_E] = c->n_experts;
    x.n[ENG_DIM_K] = c->n_active;
    x.n[ENG_DIM_I] = c->inter;
    x.n[ENG_DIM_V] = c->vocab;
    x.n[ENG_DIM_W] = c->window;
    return x;
}

void eng_value_shape(const eng_program *p, int32_t v, const eng_extents *x, int32_t rank, int32_t n_ranks, int64_t shape[3])
{
    const eng_value *value = &p->value[v];
    for (int32_t d = 0; d < 3; d++) {
        shape[d] = d < value->ndim ? x->n[value->dim[d]] : 1;
        if (d >= value->ndim || value->place != FMT_PLACE_SHARDED || value->axis != d) continue;
        if (value->dim[d] == ENG_DIM_V) shape[d] = eng_cut_range(&p->config, ENG_W_HEAD, rank, n_ranks).count;
        else shape[d] /= n_ranks;
    }
}

int64_t eng_value_elems(const eng_program *p, int32_t v, const eng_extents *x, int32_t rank, int32_t n_ranks)
{
    int64_t s[3];
    eng_value_shape(p, v, x, rank, n_ranks, s);
    return s[0] * s[1] * s[2];
}
