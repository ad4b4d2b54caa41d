#include "replay/forced_state.h"

#include "base/cli.h"
#include "base/mem.h"
#include "replay/value.h"

typedef struct collect { rpl_forced *f; kept_round *r; size_t capacity; const char *taps; } collect;

/* The tape's own copy of a name, as the one given lives in a bench that may be closed. NULL: not on the tape. */
static const char *lasting_name(const rpl_forced *f, int32_t round, int32_t slot, const char *name)
{
    int64_t at = cap_names_find(f->names, round, slot, name);
    return at < 0 ? NULL : cap_names_at(f->names, (size_t)at)->name;
}

static err_code collect_value(void *ctx, const rpl_forced_value *v, err *e)
{
    collect *c = ctx;
    if (c->taps && !cli_match(c->taps, v->name)) return ERR_OK;
    void *array = c->r->value;
    if (!mem_grow(&array, &c->capacity, (size_t)c->r->round.n_values + 1, sizeof *c->r->value))
        return err_set(e, ERR_NOMEM, "forced comparison: no memory");
    c->r->value = array;
    rpl_value *to = &c->r->value[c->r->round.n_values];
    *to = (rpl_value){ .slot = v->slot, .draft = v->slot == FMT_TAPE_NO_SLOT };
    to->name = lasting_name(c->f, v->round, v->slot, v->name);
    to->op = lasting_name(c->f, v->round, v->slot, v->op); /* an op has the name of the first value that it writes */
    if (!to->op) to->op = to->name;
    if (v->group) rpl_group_text(v->program, v->group, to->ops);
    rpl_value_compare(to, &v->computed, &v->recorded, c->f->config.vocab);
    if (to->cls == RPL_CLASS_UNPLACED) to->cls = RPL_CLASS_ORIGIN; /* its inputs are the same by construction */
    if (to->cls == RPL_CLASS_ORIGIN && c->r->round.first_origin < 0) c->r->round.first_origin = c->r->round.n_values;
    c->r->round.n_values++;
    rpl_round_count(&c->r->round, to);
    return ERR_OK;
}

err_code rpl_forced_compare(rpl_forced *f, int32_t i, const char *taps, const rpl_round **out, err *e)
{
    kept_round *r = &f->kept[i];
    if (!r->done) {
        collect c = { .f = f, .r = r, .taps = taps };
        r->round = (rpl_round){ .round = rpl_ordered_number(f->ordered, i), .first_origin = -1 };
        err_code rc = rpl_forced_round(f, i, collect_value, &c, NULL, e);
        if (rc != ERR_OK) {
            free(r->value);
            *r = (kept_round){ 0 };
            return rc;
        }
        r->round.value = r->value;
        r->done = true;
    }
    *out = &r->round;
    return ERR_OK;
}
