#include "capture/tapes.h"

#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "capture/summary.h"

enum {
    FACTS_MAX = 1 << 16,     /* events and names of lost rounds that may wait: some megabytes, hours of a slow disk */
    NUMBERS_MAX = 1000000,   /* of tapes beside each other */
};

typedef struct event_item { cap_item item; json_t *event; } event_item;

/* Rounds lost one after the other, for one reason. */
typedef struct dropped_item {
    cap_item item;
    char why[96];
    int32_t *round;
    size_t n, capacity;
} dropped_item;

struct cap_tapes {
    cap_plan *plan;
    char *path, *name; /* as given; of the tape being written */
    json_t *head;
    bool rounds_listed;
    uint64_t rotate_bytes; /* 0: never */
    const fmt_tape *stored_on; /* NULL: nothing */
    cap_flight *flight;        /* NULL: every round passes */

    /* The thread's own; the caller's before it starts and after it has ended. */
    fmt_tape_writer *tape; /* NULL: the next item begins one */
    int32_t next_number;   /* of a rotated tape */
    uint64_t finished_bytes;
    cap_tally total, base; /* since the beginning; when the tape began */
    cap_tally flushed;     /* as the last flush that went well left them */
    cap_spent spent, spent_base;
    int32_t *slots; /* distinct request slots of the tape */
    size_t n_slots, slots_capacity;
    cap_scratch scratch;

    pthread_t thread;
    pthread_mutex_t lock; /* all below */
    pthread_cond_t work, change;
    cap_item *first, *last;
    size_t n_facts; /* waiting */
    bool busy, stop, abandon;
    uint64_t n_done;            /* items */
    uint64_t n_unnamed, n_lost; /* rounds that no event names, events without room: for the next summary */
    err failed;                 /* the first one; set by the thread */
    cap_counts shown;           /* but its `failed` */
};

/* ---- a tape ---- */

/* Whether name, with room for ".part" behind it, is that of a tape or of what a killed writer left. */
static bool is_taken(char *name)
{
    size_t n = strlen(name);
    if (access(name, F_OK) == 0) return true;
    memcpy(name + n, ".part", sizeof ".part");
    bool taken = access(name, F_OK) == 0;
    name[n] = 0;
    return taken;
}

/* "dir/NAME.tape" becomes "dir/NAME-000000.tape". Numbers of an earlier run's tapes are passed over. */
static err_code name_tape(cap_tapes *t, err *e)
{
    size_t n = strlen(t->path), suffix = sizeof ".tape" - 1;
    if (n > suffix && strcmp(t->path + n - suffix, ".tape") == 0) n -= suffix;
    size_t room = n + sizeof "-000000.tape.part";
    free(t->name);
    t->name = t->rotate_bytes ? mem_alloc(room, 1) : mem_strdup(t->path);
    if (!t->name) return err_set(e, ERR_NOMEM, "%s: no memory for a name", t->path);
    if (!t->rotate_bytes) return ERR_OK;
    for (; t->next_number < NUMBERS_MAX; t->next_number++) {
        snprintf(t->name, room, "%.*s-%06d.tape", (int)n, t->path, t->next_number % NUMBERS_MAX);
        if (!is_taken(t->name)) break;
    }
    if (t->next_number++ < NUMBERS_MAX) return ERR_OK;
    return err_set(e, ERR_IO, "%s: all numbers up to %d are taken", t->path, NUMBERS_MAX - 1);
}

static err_code begin_tape(cap_tapes *t, err *e)
{
    TRY(name_tape(t, e));
    json_object_set_new(t->head, "created", json_integer((json_int_t)(clock_wall_ns() / 1000000000u)));
    TRY(fmt_tape_create_on(t->name, t->head, t->stored_on, &t->tape, e));
    t->base = t->total;
    t->spent_base = t->spent;
    t->n_slots = 0;
    for (int s = 0; s < CAP_STEPS; s++)
        for (int32_t v = 0; v < t->plan->program[s]->n_values; v++) t->plan->armed[s][v].fired = false;
    pthread_mutex_lock(&t->lock);
    snprintf(t->shown.tape, sizeof t->shown.tape, "%s", t->name);
    pthread_mutex_unlock(&t->lock);
    return ERR_OK;
}

/* Summary, index, name. */
static err_code end_tape(cap_tapes *t, err *e)
{
    pthread_mutex_lock(&t->lock);
    uint64_t n_lost = t->n_lost;
    t->total.dropped += t->n_unnamed;
    t->n_lost = t->n_unnamed = 0;
    pthread_mutex_unlock(&t->lock);
    cap_tally judged;
    json_t *when = t->flight ? cap_flight_json(t->flight, &judged) : NULL;
    const cap_summary of = {
        .judged = t->flight ? &judged : NULL,
        .plan = t->plan, .total = &t->total, .base = &t->base, .spent = &t->spent, .spent_base = &t->spent_base,
        .n_slots = t->n_slots, .n_lost = n_lost, .rounds_listed = t->rounds_listed,
        .failed = t->failed.code == ERR_OK ? NULL : t->failed.msg,
    };
    json_t *summary = cap_summary_json(&of); /* NULL without memory: the tape is worth keeping all the same */
    if (when) json_object_set_new(summary, "when", when);
    err_code rc = fmt_tape_finish(t->tape, summary, e);
    json_decref(summary);
    t->tape = NULL;
    if (rc != ERR_OK) return rc;
    struct stat st;
    if (stat(t->name, &st) == 0) t->finished_bytes += (uint64_t)st.st_size;
    pthread_mutex_lock(&t->lock);
    t->shown.tapes++;
    t->shown.tape[0] = 0;
    pthread_mutex_unlock(&t->lock);
    return ERR_OK;
}

/* ---- the thread ---- */

/* Newest first: a request's inserts come soon after each other. */
static err_code note_slot(cap_tapes *t, int32_t slot, err *e)
{
    for (size_t i = t->n_slots; i-- > 0;)
        if (t->slots[i] == slot) return ERR_OK;
    void *array = t->slots;
    if (!mem_grow(&array, &t->slots_capacity, t->n_slots + 1, sizeof *t->slots))
        return err_set(e, ERR_NOMEM, "no memory for slot %d", slot);
    t->slots = array;
    t->slots[t->n_slots++] = slot;
    return ERR_OK;
}

static err_code write_part(cap_tapes *t, cap_part *p, err *e)
{
    if (p->step == ENG_STEP_INSERT) TRY(note_slot(t, p->slot, e));
    if (cap_part_put(t->plan, p, t->tape, &t->scratch, &t->total, e) == ERR_OK) return ERR_OK;
    if (p->step == ENG_STEP_DRAFT) return err_wrap(e, "round %d draft", p->item.round);
    return err_wrap(e, "round %d slot %d", p->item.round, p->slot);
}

static err_code flush(cap_tapes *t, err *e)
{
    TRY(fmt_tape_flush(t->tape, e));
    t->flushed = t->total;
    return ERR_OK;
}

/* After a failure the counts are of what stands on the tape: all that was put, or, where the file takes no more, what had
 * been flushed. Rounds that were left out stay so. */
static void count_what_stands(cap_tapes *t)
{
    cap_tally put = t->total;
    if (t->tape && flush(t, NULL) == ERR_OK) return;
    t->total = t->flushed;
    t->total.dropped = put.dropped;
}

static err_code write_dropped(cap_tapes *t, const dropped_item *d, err *e)
{
    for (size_t i = 0; i < d->n; i++) {
        json_t *event = json_pack("{s:s, s:i, s:s}", "event", "dropped", "round", d->round[i], "why", d->why);
        err_code rc = event ? fmt_tape_put_event(t->tape, d->round[i], event, e)
                            : err_set(e, ERR_NOMEM, "no memory for an event");
        json_decref(event);
        TRY(rc);
        t->total.events++;
    }
    return flush(t, e);
}

/* Writes what an item says. A part's round is not ended here. */
static err_code write_item(cap_tapes *t, cap_item *item, err *e)
{
    if (!t->tape) TRY(begin_tape(t, e));
    t->spent = item->spent;
    if (item->kind == CAP_ITEM_PART) return write_part(t, (cap_part *)item, e);
    if (item->kind == CAP_ITEM_DROPPED) return write_dropped(t, (dropped_item *)item, e);
    TRY(fmt_tape_put_event(t->tape, item->round, ((event_item *)item)->event, e));
    t->total.events++;
    return flush(t, e);
}

static err_code end_round(cap_tapes *t, err *e)
{
    TRY(flush(t, e));
    t->flushed.rounds = ++t->total.rounds;
    return ERR_OK;
}

static bool is_long_enough(const cap_tapes *t)
{
    return t->rotate_bytes && fmt_tape_written_bytes(t->tape) >= t->rotate_bytes;
}

static size_t facts_of(const cap_item *item)
{
    return item->kind == CAP_ITEM_PART ? 0 : item->kind == CAP_ITEM_EVENT ? 1 : ((const dropped_item *)item)->n;
}

static void item_free(cap_item *item)
{
    if (item->kind == CAP_ITEM_PART) cap_part_free((cap_part *)item);
    else if (item->kind == CAP_ITEM_EVENT) {
        json_decref(((event_item *)item)->event);
        free(item);
    } else {
        free(((dropped_item *)item)->round);
        free(item);
    }
}

/* Shows what has become of an item, with the lock held. */
static void publish(cap_tapes *t)
{
    cap_counts *c = &t->shown;
    c->rounds = t->total.rounds;
    c->inserts = t->total.inserts;
    c->drafts = t->total.drafts;
    c->values = t->total.values;
    c->raw_bytes = t->total.raw_bytes;
    c->events = t->total.events;
    if (t->flight) c->judged = cap_flight_counts_of(t->flight).judged;
    if (t->flight) c->fired = cap_flight_counts_of(t->flight).fired;
    c->tape_bytes = t->finished_bytes + (t->tape ? fmt_tape_written_bytes(t->tape) : 0);
}

/* Writes an item, or after a failure only frees it. */
static void handle(cap_tapes *t, cap_item *item, bool abandon)
{
    bool ends_round = item->kind == CAP_ITEM_PART && ((cap_part *)item)->ends_round;
    bool written = t->failed.code == ERR_OK && !abandon;
    err failed = { .code = ERR_OK };
    if (written) written = write_item(t, item, &failed) == ERR_OK;
    if (item->kind == CAP_ITEM_DROPPED) t->total.dropped += ((dropped_item *)item)->n;
    if (!written && item->kind == CAP_ITEM_EVENT) cap_tapes_lost_event(t);
    item_free(item); /* before the round is flushed: a shot is wanted back early */
    pthread_mutex_lock(&t->lock);
    t->n_done++;
    pthread_cond_broadcast(&t->change);
    pthread_mutex_unlock(&t->lock);
    if (written && ends_round) written = end_round(t, &failed) == ERR_OK;
    if (failed.code != ERR_OK) count_what_stands(t);
    if (written && ends_round && is_long_enough(t)) (void)end_tape(t, &failed);
    pthread_mutex_lock(&t->lock);
    if (failed.code != ERR_OK) t->failed = failed;
    if (!written && ends_round) {
        t->total.dropped++;
        t->shown.dropped++;
    }
    publish(t);
    pthread_mutex_unlock(&t->lock);
}

/* What passed: the rounds from memory, then the events that say why, then the round that they are about. */
static void handle_passed(cap_tapes *t, cap_passed *passed, int32_t round, const cap_spent *spent)
{
    bool told = false;
    for (cap_item *item = passed->first, *next; item; item = next) {
        next = item->next;
        for (size_t i = 0; !told && item->round == round && i < json_array_size(passed->events); i++) {
            event_item *event = mem_alloc(1, sizeof *event);
            if (!event) {
                cap_tapes_lost_event(t);
                continue;
            }
            event->item = (cap_item){ .kind = CAP_ITEM_EVENT, .round = round, .spent = *spent };
            event->event = json_incref(json_array_get(passed->events, i));
            handle(t, &event->item, false);
        }
        told = told || item->round == round;
        item->spent = *spent; /* it may be older than what the tape has already */
        handle(t, item, false);
    }
    json_decref(passed->events);
}

/* Parts wait until their round is judged. */
static void handle_in_flight(cap_tapes *t, cap_part *p)
{
    const cap_spent spent = p->item.spent;
    int32_t round = p->item.round;
    bool ends_round = p->ends_round;
    cap_passed passed;
    err failed = { .code = ERR_OK };
    if (cap_flight_pass(t->flight, p, &passed, &failed) != ERR_OK) err_wrap(&failed, "round %d", round);
    handle_passed(t, &passed, round, &spent);
    pthread_mutex_lock(&t->lock);
    t->n_done++;
    if (failed.code != ERR_OK) t->failed = failed;
    if (failed.code != ERR_OK && ends_round) {
        t->total.dropped++;
        t->shown.dropped++;
    }
    publish(t);
    pthread_cond_broadcast(&t->change);
    pthread_mutex_unlock(&t->lock);
}

/* After the last item. */
static void end_flight(cap_tapes *t)
{
    cap_passed passed;
    int32_t round = 0;
    if (!t->flight || t->abandon || t->failed.code != ERR_OK) return;
    if (cap_flight_end(t->flight, &round, &passed, &t->failed) == ERR_OK) handle_passed(t, &passed, round, &t->spent);
}

static void *run(void *ctx)
{
    cap_tapes *t = ctx;
    pthread_mutex_lock(&t->lock);
    for (;;) {
        while (!t->first && !t->stop) pthread_cond_wait(&t->work, &t->lock);
        cap_item *item = t->first;
        if (!item) break;
        t->first = item->next;
        t->n_facts -= facts_of(item);
        t->busy = true;
        bool abandon = t->abandon;
        pthread_mutex_unlock(&t->lock);
        bool waits = t->flight && item->kind == CAP_ITEM_PART && t->failed.code == ERR_OK && !abandon;
        if (waits) handle_in_flight(t, (cap_part *)item);
        else handle(t, item, abandon);
        pthread_mutex_lock(&t->lock);
        t->busy = false;
        pthread_cond_broadcast(&t->change);
    }
    pthread_mutex_unlock(&t->lock);
    end_flight(t);
    return NULL;
}

/* ---- handing over ---- */

/* With the lock held. */
static void push(cap_tapes *t, cap_item *item, const cap_spent *spent)
{
    item->next = NULL;
    item->spent = *spent;
    if (t->first) t->last->next = item;
    else t->first = item;
    t->last = item;
    t->n_facts += facts_of(item);
    pthread_cond_signal(&t->work);
}

static void show_spent(cap_tapes *t, const cap_spent *spent)
{
    t->shown.waits = spent->waits;
    t->shown.wait_ns = spent->wait_ns;
    t->shown.host_ns = spent->host_ns;
    t->shown.device_ns = spent->device_ns;
}

void cap_tapes_part(cap_tapes *t, cap_part *p, int32_t round, bool ends_round, const cap_spent *spent)
{
    p->item.round = round;
    p->ends_round = ends_round;
    pthread_mutex_lock(&t->lock);
    show_spent(t, spent);
    push(t, &p->item, spent);
    pthread_mutex_unlock(&t->lock);
}

bool cap_tapes_event(cap_tapes *t, int32_t round, const json_t *event, const cap_spent *spent)
{
    event_item *item = mem_alloc(1, sizeof *item);
    if (!item) return false;
    item->item = (cap_item){ .kind = CAP_ITEM_EVENT, .round = round };
    item->event = json_deep_copy(event); /* a count of references would be shared with the thread */
    pthread_mutex_lock(&t->lock);
    bool room = item->event && t->n_facts < FACTS_MAX;
    if (room) push(t, &item->item, spent);
    pthread_mutex_unlock(&t->lock);
    if (!room) item_free(&item->item);
    return room;
}

void cap_tapes_lost_event(cap_tapes *t)
{
    pthread_mutex_lock(&t->lock);
    t->n_lost++;
    t->shown.events_lost++;
    pthread_mutex_unlock(&t->lock);
}

/* Puts round behind those of the queue's last item, or in a new one, with the lock held. false: no memory. */
static bool name_dropped(cap_tapes *t, int32_t round, const char *why, const cap_spent *spent)
{
    dropped_item *d = t->first && t->last->kind == CAP_ITEM_DROPPED ? (dropped_item *)t->last : NULL;
    bool is_new = !d || strncmp(d->why, why, sizeof d->why - 1) != 0;
    if (is_new) {
        d = mem_alloc(1, sizeof *d);
        if (!d) return false;
        d->item = (cap_item){ .kind = CAP_ITEM_DROPPED, .round = round };
        snprintf(d->why, sizeof d->why, "%s", why);
    }
    void *array = d->round;
    if (!mem_grow(&array, &d->capacity, d->n + 1, sizeof *d->round)) {
        if (is_new) free(d);
        return false;
    }
    d->round = array;
    d->round[d->n++] = round;
    if (is_new) push(t, &d->item, spent);
    else t->n_facts++;
    d->item.spent = *spent;
    return true;
}

void cap_tapes_dropped(cap_tapes *t, int32_t round, const char *why, const cap_spent *spent)
{
    pthread_mutex_lock(&t->lock);
    show_spent(t, spent);
    t->shown.dropped++;
    if (t->n_facts >= FACTS_MAX || !name_dropped(t, round, why, spent)) t->n_unnamed++;
    pthread_mutex_unlock(&t->lock);
}

/* ---- asking and waiting ---- */

err_code cap_tapes_failed(cap_tapes *t, err *e)
{
    pthread_mutex_lock(&t->lock);
    err_code rc = t->failed.code;
    if (rc != ERR_OK && e) *e = t->failed;
    pthread_mutex_unlock(&t->lock);
    return rc;
}

uint64_t cap_tapes_done(cap_tapes *t)
{
    pthread_mutex_lock(&t->lock);
    uint64_t n = t->n_done;
    pthread_mutex_unlock(&t->lock);
    return n;
}

bool cap_tapes_wait(cap_tapes *t, uint64_t done)
{
    pthread_mutex_lock(&t->lock);
    while (t->n_done == done && (t->first || t->busy)) pthread_cond_wait(&t->change, &t->lock);
    bool more = t->n_done != done;
    pthread_mutex_unlock(&t->lock);
    return more;
}

void cap_tapes_counts(cap_tapes *t, cap_counts *out)
{
    pthread_mutex_lock(&t->lock);
    *out = t->shown;
    snprintf(out->failed, sizeof out->failed, "%s", t->failed.code == ERR_OK ? "" : t->failed.msg);
    pthread_mutex_unlock(&t->lock);
}

/* ---- open and close ---- */

static void tapes_free(cap_tapes *t)
{
    pthread_mutex_destroy(&t->lock);
    pthread_cond_destroy(&t->work);
    pthread_cond_destroy(&t->change);
    json_decref(t->head);
    free(t->path);
    free(t->name);
    free(t->slots);
    cap_scratch_fini(&t->scratch);
    free(t);
}

err_code cap_tapes_open(cap_plan *plan, const char *path, const json_t *head, const cap_options *o, cap_flight *flight,
                        cap_tapes **out, err *e)
{
    *out = NULL;
    cap_tapes *t = mem_alloc(1, sizeof *t);
    if (!t) return err_set(e, ERR_NOMEM, "%s: no memory for the recorder", path);
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->work, NULL);
    pthread_cond_init(&t->change, NULL);
    t->plan = plan;
    t->rotate_bytes = o->rotate_bytes;
    t->stored_on = o->base;
    t->flight = flight;
    t->rounds_listed = o->rounds != NULL;
    t->path = mem_strdup(path);
    t->head = json_deep_copy(head);
    err_code rc = ERR_OK;
    if (!t->path || !t->head) rc = err_set(e, ERR_NOMEM, "%s: no memory for the head", path);
    if (rc == ERR_OK) rc = begin_tape(t, e);
    if (rc == ERR_OK && pthread_create(&t->thread, NULL, run, t) != 0)
        rc = err_set(e, ERR_SYSTEM, "%s: cannot start the writing thread", path);
    if (rc != ERR_OK) {
        fmt_tape_discard(t->tape);
        tapes_free(t);
        return rc;
    }
    publish(t);
    *out = t;
    return ERR_OK;
}

static void stop(cap_tapes *t, bool abandon)
{
    pthread_mutex_lock(&t->lock);
    t->stop = true;
    t->abandon = abandon;
    pthread_cond_signal(&t->work);
    pthread_mutex_unlock(&t->lock);
    pthread_join(t->thread, NULL);
}

err_code cap_tapes_finish(cap_tapes *t, const cap_spent *spent, cap_counts *counts, err *e)
{
    stop(t, false);
    t->spent = *spent;
    err after = { .code = ERR_OK }; /* the first failure is the one to tell of */
    if (t->failed.code == ERR_OK && t->tape) (void)end_tape(t, &t->failed);
    else if (t->tape) (void)end_tape(t, &after);
    err_code rc = t->failed.code;
    if (rc != ERR_OK && e) *e = t->failed;
    publish(t);
    if (counts) cap_tapes_counts(t, counts);
    tapes_free(t);
    return rc;
}

void cap_tapes_discard(cap_tapes *t)
{
    if (!t) return;
    stop(t, true);
    fmt_tape_discard(t->tape);
    tapes_free(t);
}
