#include "engine/plan.h"

#include "base/mem.h"

enum { ALIGN = 64 };

typedef struct life { int32_t first, last; uint64_t bytes; } life; /* op indices, both inclusive */

/* Inputs of the step (no producer) are the caller's memory, except that none of them is ever written by an op. */
static void lives(const eng_program *p, const eng_extents *max, int32_t rank, int32_t n_ranks, eng_level retain, life *out)
{
    for (int32_t v = 0; v < p->n_values; v++) {
        const eng_value *value = &p->value[v];
        bool kept = value->level <= retain;
        out[v] = (life){ value->producer, kept ? p->n_ops : value->producer, 0 };
        if (value->state) continue;
        uint64_t bytes = (uint64_t)eng_value_elems(p, v, max, rank, n_ranks) * fmt_dtype_bytes(value->dtype);
        out[v].bytes = (bytes + ALIGN - 1) / ALIGN * ALIGN;
        if (value->producer < 0) out[v].first = 0;
    }
    for (int32_t i = 0; i < p->n_ops; i++)
        for (int32_t k = 0; k < p->op[i].n_in; k++) {
            life *l = &out[p->op[i].in[k]];
            if (l->last < i) l->last = i;
        }
}

static bool overlap(const life *a, const life *b) { return a->first <= b->last && b->first <= a->last; }

/* First fit: the lowest offset at which v's bytes meet no placed value that is alive at the same time. */
static uint64_t place(const life *l, const uint64_t *offset, int32_t v)
{
    uint64_t at = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (int32_t u = 0; u < v; u++) {
            if (offset[u] == UINT64_MAX || !overlap(&l[u], &l[v])) continue;
            if (at < offset[u] + l[u].bytes && offset[u] < at + l[v].bytes) {
                at = offset[u] + l[u].bytes;
                moved = true;
            }
        }
    }
    return at;
}

err_code eng_plan_make(const eng_program *p, const eng_extents *max, int32_t rank, int32_t n_ranks, eng_level retain,
                       eng_plan *out, err *e)
{
    *out = (eng_plan){ 0 };
    life *l = mem_alloc((size_t)p->n_values, sizeof *l);
    out->offset = mem_alloc((size_t)p->n_values, sizeof *out->offset);
    out->room = mem_alloc((size_t)p->n_values, sizeof *out->room);
    out->last = mem_alloc((size_t)p->n_values, sizeof *out->last);
    if (!l || !out->offset || !out->room || !out->last) {
        free(l);
        eng_plan_fini(out);
        return err_set(e, ERR_NOMEM, "plan: no memory for %d values", p->n_values);
    }
    lives(p, max, rank, n_ranks, retain, l);
    for (int32_t v = 0; v < p->n_values; v++) {
        out->room[v] = l[v].bytes;
        out->last[v] = l[v].last;
        if (p->value[v].state) {
            out->offset[v] = UINT64_MAX;
            continue;
        }
        out->offset[v] = place(l, out->offset, v);
        uint64_t end = out->offset[v] + l[v].bytes;
        if (end > out->bytes) out->bytes = end;
    }
    free(l);
    return ERR_OK;
}

void eng_plan_fini(eng_plan *plan)
{
    free(plan->offset);
    free(plan->room);
    free(plan->last);
    *plan = (eng_plan){ 0 };
}
