#include "replay/certify_round.h"

#include "base/mem.h"

#include <math.h>

typedef enum list_kind { ORIGINS, INHERITED, SUMS, TIES, NOTES, FINDINGS } list_kind;

/* Room for one more element at the end of a list; NULL: no memory. */
static void *push(rpl_certificate *c, list_kind which, void **array, size_t *n, size_t elem_bytes)
{
    if (!mem_grow(array, &c->capacity[which], *n + 1, elem_bytes)) return NULL;
    return (uint8_t *)*array + elem_bytes * (*n)++;
}

static err_code no_memory(err *e) { return err_set(e, ERR_NOMEM, "certify: no memory for the findings"); }

static double larger(double a, double b) { return a > b || isnan(b) ? a : b; }

void rpl_certificate_fini(rpl_certificate *c)
{
    free(c->origin);
    free(c->inherited);
    free(c->sum);
    free(c->tie);
    free(c->not_judged);
    free(c->finding);
    *c = (rpl_certificate){ 0 };
}

/* Sums stand in program order, as each value's own place says. */
err_code rpl_certificate_sum(rpl_certificate *c, const rpl_value_sum *s, err *e)
{
    size_t i = c->n_sums;
    while (i > 0 && strcmp(c->sum[i - 1].value, s->value) != 0) i--;
    if (i == 0) {
        void *array = c->sum;
        void *room = push(c, SUMS, &array, &c->n_sums, sizeof *s);
        if (!room) return no_memory(e);
        c->sum = array;
        for (i = c->n_sums - 1; i > 0 && c->sum[i - 1].order > s->order; i--) c->sum[i] = c->sum[i - 1];
        c->sum[i] = *s;
        return ERR_OK;
    }
    rpl_value_sum *to = &c->sum[i - 1];
    to->n_values += s->n_values;
    to->n += s->n;
    to->n_equal += s->n_equal;
    to->n_flip += s->n_flip;
    to->n_illegal += s->n_illegal;
    to->n_unjudged += s->n_unjudged;
    to->n_events += s->n_events;
    to->flip_distance = larger(to->flip_distance, s->flip_distance);
    for (int k = 0; k < 2; k++) {
        to->tried[k] += s->tried[k];
        to->admitted[k] += s->admitted[k];
    }
    return ERR_OK;
}

/* The note of the same value and reason; NULL: none. */
static rpl_note *find_note(rpl_note *list, size_t n, const rpl_note *like)
{
    if (!list || !like) return NULL;
    for (size_t i = 0; i < n; i++)
        if (strcmp(list[i].value, like->value) == 0 && strcmp(list[i].why, like->why) == 0) return &list[i];
    return NULL;
}

err_code rpl_certificate_note(rpl_certificate *c, bool finding, const rpl_note *n, err *e)
{
    rpl_note *notes = finding ? c->finding : c->not_judged;
    size_t *count = finding ? &c->n_findings : &c->n_notes;
    rpl_note *known = find_note(notes, *count, n);
    if (!finding) c->n_not_judged += n->n_values;
    if (known) {
        known->n_values += n->n_values;
        return ERR_OK;
    }
    void *array = notes;
    void *room = push(c, finding ? FINDINGS : NOTES, &array, count, sizeof *n);
    if (!room) return no_memory(e);
    notes = array;
    if (finding) c->finding = notes;
    else c->not_judged = notes;
    size_t i = *count - 1;
    for (; i > 0 && notes[i - 1].order > n->order; i--) notes[i] = notes[i - 1];
    notes[i] = *n;
    return ERR_OK;
}

err_code rpl_certificate_origin(rpl_certificate *c, const rpl_origin *o, err *e)
{
    bool inherited = o->from[0] != 0;
    rpl_origin *list = inherited ? c->inherited : c->origin;
    size_t *n = inherited ? &c->n_inherited : &c->n_origins;
    rpl_origin *last = *n ? &list[*n - 1] : NULL;
    if (last && last->round == o->round && last->slot == o->slot && strcmp(last->op, o->op) == 0 &&
        last->n_outputs < ENG_OP_OUTS && strcmp(last->output[last->n_outputs - 1], o->output[0]) != 0) {
        memcpy(last->output[last->n_outputs++], o->output[0], sizeof o->output[0]);
        last->n_illegal += o->n_illegal;
        last->n += o->n;
        if (!(o->worst.ratio <= last->worst.ratio)) {
            last->worst = o->worst;
            last->rank = o->rank;
            last->map = o->map;
        }
        if (!last->cause[0]) memcpy(last->cause, o->cause, sizeof o->cause);
        return ERR_OK;
    }
    void *array = list;
    rpl_origin *room = push(c, inherited ? INHERITED : ORIGINS, &array, n, sizeof *o);
    if (!room) return no_memory(e);
    if (inherited) c->inherited = array;
    else c->origin = array;
    *room = *o;
    return ERR_OK;
}

err_code rpl_certificate_tie(rpl_certificate *c, const rpl_tie *t, err *e)
{
    void *array = c->tie;
    rpl_tie *room = push(c, TIES, &array, &c->n_ties, sizeof *t);
    if (!room) return no_memory(e);
    c->tie = array;
    *room = *t;
    return ERR_OK;
}

err_code rpl_certificate_add(rpl_certificate *c, const rpl_certificate *from, err *e)
{
    c->n_rounds += from->n_rounds;
    c->n_rounds_wanted += from->n_rounds_wanted;
    c->interrupted |= from->interrupted;
    c->damaged |= from->damaged;
    c->n_values += from->n_values;
    c->n += from->n;
    c->n_equal += from->n_equal;
    c->n_flip += from->n_flip;
    c->n_illegal += from->n_illegal;
    c->n_unjudged += from->n_unjudged;
    c->n_events += from->n_events;
    c->bytes += from->bytes;
    for (size_t i = 0; i < from->n_origins; i++) TRY(rpl_certificate_origin(c, &from->origin[i], e));
    for (size_t i = 0; i < from->n_inherited; i++) TRY(rpl_certificate_origin(c, &from->inherited[i], e));
    for (size_t i = 0; i < from->n_sums; i++) TRY(rpl_certificate_sum(c, &from->sum[i], e));
    for (size_t i = 0; i < from->n_ties; i++) TRY(rpl_certificate_tie(c, &from->tie[i], e));
    for (size_t i = 0; i < from->n_notes; i++) TRY(rpl_certificate_note(c, false, &from->not_judged[i], e));
    for (size_t i = 0; i < from->n_findings; i++) TRY(rpl_certificate_note(c, true, &from->finding[i], e));
    return ERR_OK;
}

const char *rpl_certificate_verdict(const rpl_certificate *c)
{
    if (c->n_illegal || c->n_origins || c->n_findings) return "FAIL";
    if (c->n > 0 && c->damaged) return "PARTIAL";
    if (c->interrupted) return "PARTIAL";
    return c->n > 0 && c->n_rounds == c->n_rounds_wanted ? "PASS" : "FAIL";
}
