#include "replay/fold.h"

#include "base/mem.h"

struct rpl_fold {
    rpl_group *group;
    int32_t count;
    int32_t *of_op;  /* [n_ops] group of an op, -1 */
    const eng_program *program;
    int32_t **owned; /* one array per group: ops, inputs, outputs */
};

static bool on_tape(const eng_program *p, const bool *recorded, int32_t v) { return recorded[v] || p->value[v].state; }

/* Marks the ops and inputs of the chain that ends in op `last`. Ops only read values of earlier ops, so one walk backwards
 * over the program meets every op after all ops that need it. */
static void mark_chain(const eng_program *p, const bool *recorded, int32_t last, bool *op_needed, bool *value_read)
{
    memset(op_needed, 0, (size_t)p->n_ops * sizeof *op_needed);
    memset(value_read, 0, (size_t)p->n_values * sizeof *value_read);
    op_needed[last] = true;
    for (int32_t i = last; i >= 0; i--) {
        if (!op_needed[i]) continue;
        for (int32_t k = 0; k < p->op[i].n_in; k++) {
            int32_t v = p->op[i].in[k];
            if (on_tape(p, recorded, v) || p->value[v].producer < 0) value_read[v] = true;
            else op_needed[p->value[v].producer] = true;
        }
    }
}

static int32_t count_true(const bool *flag, int32_t n)
{
    int32_t count = 0;
    for (int32_t i = 0; i < n; i++) count += flag[i];
    return count;
}

static int32_t *list_true(const bool *flag, int32_t n, int32_t *to)
{
    for (int32_t i = 0; i < n; i++)
        if (flag[i]) *to++ = i;
    return to;
}

/* Fills the next group, which ends in op `last` and writes n_out wanted values. false: no memory. */
static bool add_group(rpl_fold *f, const bool *recorded, const bool *wanted, int32_t last, bool *op_needed,
                      bool *value_read)
{
    const eng_program *p = f->program;
    const eng_op *op = &p->op[last];
    mark_chain(p, recorded, last, op_needed, value_read);
    rpl_group *g = &f->group[f->count];
    g->n_ops = count_true(op_needed, p->n_ops);
    g->n_in = count_true(value_read, p->n_values);
    int32_t *list = mem_alloc((size_t)(g->n_ops + g->n_in + ENG_OP_OUTS), sizeof *list);
    if (!list) return false;
    f->owned[f->count] = list;
    g->op = list;
    g->in = list = list_true(op_needed, p->n_ops, list);
    g->out = list = list_true(value_read, p->n_values, list);
    g->n_out = 0;
    for (int32_t k = 0; k < op->n_out; k++)
        if (wanted[op->out[k]]) list[g->n_out++] = op->out[k];
    g->name = op->name;
    g->kind = op->kind;
    g->stage = op->stage;
    g->complete = true;
    for (int32_t k = 0; k < g->n_in; k++) g->complete = g->complete && on_tape(p, recorded, g->in[k]);
    f->of_op[last] = f->count++;
    return true;
}

err_code rpl_fold_make(const eng_program *p, const bool *recorded, const bool *wanted, rpl_fold **out, err *e)
{
    *out = NULL;
    if (!wanted) wanted = recorded;
    size_t n_ops = (size_t)p->n_ops;
    bool *op_needed = mem_alloc(n_ops, sizeof *op_needed), *value_read = mem_alloc((size_t)p->n_values, sizeof *value_read);
    rpl_fold *f = mem_alloc(1, sizeof *f);
    if (f) {
        f->program = p;
        f->group = mem_alloc(n_ops, sizeof *f->group);
        f->owned = mem_alloc(n_ops, sizeof *f->owned);
        f->of_op = mem_alloc(n_ops, sizeof *f->of_op);
    }
    bool fine = f && f->group && f->owned && f->of_op && op_needed && value_read;
    for (int32_t i = 0; fine && i < p->n_ops; i++) {
        bool writes = false;
        f->of_op[i] = -1;
        for (int32_t k = 0; k < p->op[i].n_out; k++) writes = writes || wanted[p->op[i].out[k]];
        if (writes) fine = add_group(f, recorded, wanted, i, op_needed, value_read);
    }
    free(op_needed);
    free(value_read);
    if (!fine) {
        rpl_fold_free(f);
        return err_set(e, ERR_NOMEM, "folded program: no memory");
    }
    *out = f;
    return ERR_OK;
}

void rpl_fold_free(rpl_fold *f)
{
    if (!f) return;
    for (int32_t i = 0; i < f->count; i++) free(f->owned[i]);
    free(f->owned);
    free(f->group);
    free(f->of_op);
    free(f);
}

int32_t rpl_fold_count(const rpl_fold *f) { return f->count; }
const rpl_group *rpl_fold_at(const rpl_fold *f, int32_t i) { return &f->group[i]; }

int32_t rpl_fold_of_value(const rpl_fold *f, int32_t v)
{
    if (v < 0 || f->program->value[v].producer < 0) return -1;
    int32_t g = f->of_op[f->program->value[v].producer];
    for (int32_t k = 0; g >= 0 && k < f->group[g].n_out; k++)
        if (f->group[g].out[k] == v) return g;
    return -1;
}

const char *rpl_group_text(const eng_program *p, const rpl_group *g, char buf[RPL_GROUP_TEXT])
{
    size_t n = 0;
    for (int32_t i = 0; i < g->n_ops && n < RPL_GROUP_TEXT; i++)
        n += (size_t)snprintf(buf + n, RPL_GROUP_TEXT - n, "%s%s", i ? " " : "", eng_kind_name(p->op[g->op[i]].kind));
    if (n >= RPL_GROUP_TEXT)
        snprintf(buf, RPL_GROUP_TEXT, "%s .. %s, %d ops", eng_kind_name(p->op[g->op[0]].kind), eng_kind_name(g->kind),
                 g->n_ops);
    return buf;
}
