#include "capture/flight.h"

#include <pthread.h>

#include "base/mem.h"

/* Parts of a round, or of several, in order. */
typedef struct chain { cap_item *first, *last; } chain;

struct cap_flight {
    cap_conditions *conditions;
    chain pending;        /* the round whose parts are coming */
    cap_flight_counts total, base; /* base: when the tape began */
    uint64_t n_asked;
    pthread_mutex_t lock; /* below */
    chain *ring;          /* [capacity] rounds that did not pass; the oldest is ring[at] */
    int32_t capacity, at, n;
    uint64_t n_evicted;
    char asked[64];       /* "": nobody has */
};

static void append(chain *c, chain more)
{
    if (!more.first) return;
    if (c->first) c->last->next = more.first;
    else c->first = more.first;
    c->last = more.last;
}

static void chain_free(chain *c)
{
    for (cap_item *next; c->first; c->first = next) {
        next = c->first->next;
        cap_part_free((cap_part *)c->first);
    }
}

/* The oldest round, out of the ring; with the lock held. */
static chain pop(cap_flight *f)
{
    chain c = f->ring[f->at];
    f->at = (f->at + 1) % f->capacity;
    f->n--;
    return c;
}

/* ---- open and close ---- */

err_code cap_flight_open(const cap_options *o, const cap_plan *plan, cap_flight **out, err *e)
{
    *out = NULL;
    if (o->flight == 0 && (!o->when || o->when->count == 0)) return ERR_OK;
    cap_flight *f = mem_alloc(1, sizeof *f);
    if (!f) return err_set(e, ERR_NOMEM, "no memory for the flight recorder");
    pthread_mutex_init(&f->lock, NULL);
    f->capacity = o->flight;
    f->ring = mem_alloc((size_t)f->capacity + 1, sizeof *f->ring);
    err_code rc = f->ring ? ERR_OK : err_set(e, ERR_NOMEM, "no memory for %d rounds", f->capacity);
    if (rc == ERR_OK) rc = cap_conditions_open(o->when, plan, &f->conditions, e);
    if (rc == ERR_OK) *out = f;
    else cap_flight_close(f);
    return rc;
}

void cap_flight_close(cap_flight *f)
{
    if (!f) return;
    chain_free(&f->pending);
    while (f->n > 0) {
        chain c = pop(f);
        chain_free(&c);
    }
    cap_conditions_close(f->conditions);
    pthread_mutex_destroy(&f->lock);
    free(f->ring);
    free(f);
}

/* ---- any thread ---- */

bool cap_flight_evict(cap_flight *f)
{
    chain c = { NULL, NULL };
    if (!f) return false;
    pthread_mutex_lock(&f->lock);
    if (f->n > 0) {
        c = pop(f);
        f->n_evicted++;
    }
    pthread_mutex_unlock(&f->lock);
    bool there = c.first != NULL;
    chain_free(&c);
    return there;
}

void cap_flight_ask(cap_flight *f, const char *why)
{
    pthread_mutex_lock(&f->lock);
    snprintf(f->asked, sizeof f->asked, "%s", why);
    pthread_mutex_unlock(&f->lock);
}

/* ---- the writing thread ---- */

/* Adds the event of what was asked for, if it was. */
static err_code answer(cap_flight *f, json_t *events, err *e)
{
    char why[sizeof f->asked];
    pthread_mutex_lock(&f->lock);
    memcpy(why, f->asked, sizeof why);
    f->asked[0] = 0;
    pthread_mutex_unlock(&f->lock);
    if (!why[0]) return ERR_OK;
    f->n_asked++;
    if (json_array_append_new(events, json_pack("{s:s, s:s}", "event", "trigger", "when", why)) == 0) return ERR_OK;
    return err_set(e, ERR_NOMEM, "no memory for an event");
}

/* The rounds in memory and the one that is whole pass. */
static void let_pass(cap_flight *f, json_t *events, cap_passed *out)
{
    chain all = { NULL, NULL };
    size_t i;
    json_t *event;
    pthread_mutex_lock(&f->lock);
    int32_t before = f->n;
    while (f->n > 0) append(&all, pop(f));
    pthread_mutex_unlock(&f->lock);
    append(&all, f->pending);
    f->pending = (chain){ NULL, NULL };
    json_array_foreach(events, i, event) json_object_set_new(event, "before", json_integer(before));
    *out = (cap_passed){ all.first, events };
}

/* The whole round did not pass: it is remembered, and the one before it that is too many is not any more. */
static void keep_in_memory(cap_flight *f)
{
    chain round = f->pending, old = { NULL, NULL };
    f->pending = (chain){ NULL, NULL };
    pthread_mutex_lock(&f->lock);
    if (f->n > 0 && f->n == f->capacity) old = pop(f);
    if (f->capacity > 0) {
        f->ring[(f->at + f->n++) % f->capacity] = round;
        round = (chain){ NULL, NULL };
    }
    pthread_mutex_unlock(&f->lock);
    chain_free(&old);
    chain_free(&round);
}

static err_code judge(cap_flight *f, int32_t round, cap_passed *out, err *e)
{
    json_t *events = json_array();
    err_code rc = events ? cap_conditions_end_round(f->conditions, round, events, e)
                         : err_set(e, ERR_NOMEM, "no memory for an event");
    if (rc == ERR_OK) rc = answer(f, events, e);
    f->total.judged++;
    if (rc == ERR_OK && json_array_size(events) > 0) {
        f->total.fired++;
        let_pass(f, events, out);
        return ERR_OK;
    }
    json_decref(events);
    if (rc == ERR_OK) keep_in_memory(f);
    else chain_free(&f->pending);
    return rc;
}

err_code cap_flight_pass(cap_flight *f, cap_part *p, cap_passed *out, err *e)
{
    int32_t round = p->item.round;
    bool ends_round = p->ends_round;
    if (p->wanted) cap_flight_ask(f, p->wanted);
    *out = (cap_passed){ NULL, NULL };
    p->item.next = NULL;
    append(&f->pending, (chain){ &p->item, &p->item });
    err_code rc = cap_conditions_look(f->conditions, p, e);
    if (rc != ERR_OK) chain_free(&f->pending);
    if (rc != ERR_OK || !ends_round) return rc;
    return judge(f, round, out, e);
}

err_code cap_flight_end(cap_flight *f, int32_t *round, cap_passed *out, err *e)
{
    *out = (cap_passed){ NULL, NULL };
    pthread_mutex_lock(&f->lock);
    bool is_due = f->asked[0] && f->n > 0;
    if (is_due) *round = f->ring[(f->at + f->n - 1) % f->capacity].last->round;
    pthread_mutex_unlock(&f->lock);
    if (!is_due) return ERR_OK;
    json_t *events = json_array();
    err_code rc = events ? answer(f, events, e) : err_set(e, ERR_NOMEM, "no memory for an event");
    if (rc == ERR_OK) let_pass(f, events, out);
    else json_decref(events);
    return rc;
}

/* ---- counts ---- */

cap_flight_counts cap_flight_counts_of(const cap_flight *f) { return f->total; }

json_t *cap_flight_json(cap_flight *f, cap_tally *judged)
{
    pthread_mutex_lock(&f->lock);
    uint64_t n_evicted = f->n_evicted;
    f->n_evicted = 0;
    pthread_mutex_unlock(&f->lock);
    *judged = (cap_tally){ .rounds = f->total.judged - f->base.judged, .tapped = cap_conditions_taps(f->conditions) };
    json_t *j = json_pack("{s:I, s:I, s:I, s:i, s:I, s:o}", "judged", (json_int_t)judged->rounds, "fired",
                          (json_int_t)(f->total.fired - f->base.fired), "asked", (json_int_t)f->n_asked, "flight",
                          (int)f->capacity, "evicted", (json_int_t)n_evicted, "conditions",
                          cap_conditions_json(f->conditions));
    f->base = f->total;
    f->n_asked = 0;
    cap_conditions_reset(f->conditions);
    return j;
}
