#include "capture/recorder.h"

#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "capture/tapes.h"

enum { DEPTH = 8, MEMORY_MIB = 1024, ROUND_STEPS = ENG_BATCH_MAX + 1 };

struct cap_recorder {
    eng_engine *g;
    const eng_config *config;
    cap_plan plan;
    cap_tapes *tapes;
    cap_flight *flight;    /* NULL: every round is kept */
    cap_on_full on_full;
    bool events_only;
    int32_t depth;
    uint64_t memory_bytes;
    eng_shots *shots;      /* NULL: could not be made anew */
    int32_t shot_rows;     /* the longest insert that they hold */
    eng_shot_cost closed;  /* cost of pools that are no more */
    _Atomic uint64_t held; /* bytes of all parts */
    cap_spent spent;
    uint64_t own_ns;       /* of spent.host_ns: copying inputs and handing over */
};

/* ---- shots ---- */

static void close_shots(cap_recorder *r)
{
    if (!r->shots) return;
    eng_shot_cost c = eng_shots_cost(r->shots);
    r->closed.host_ns += c.host_ns;
    r->closed.device_ns += c.device_ns;
    r->closed.n_timed += c.n_timed;
    r->closed.bytes += c.bytes;
    eng_shots_close(r->shots);
    r->shots = NULL;
}

/* A quarter of the memory is for inputs that wait, and more where the shots take less than the rest. */
static err_code open_shots(cap_recorder *r, int32_t rows, err *e)
{
    close_shots(r);
    const uint8_t *const keep[] = { r->plan.keep[ENG_STEP_INSERT], r->plan.keep[ENG_STEP_DRAFT] };
    TRY(eng_shots_open(r->g, keep, r->depth, r->memory_bytes - r->memory_bytes / 4, rows, &r->shots, e));
    r->shot_rows = rows;
    return ERR_OK;
}

static uint64_t input_bytes_max(const cap_recorder *r)
{
    uint64_t shots = eng_shots_bytes(r->shots);
    return shots < r->memory_bytes ? r->memory_bytes - shots : 0;
}

/* What steps and handing over have cost so far. */
static const cap_spent *spent(cap_recorder *r)
{
    eng_shot_cost c = r->shots ? eng_shots_cost(r->shots) : (eng_shot_cost){ 0 };
    r->spent.host_ns = r->own_ns + r->closed.host_ns + c.host_ns;
    r->spent.device_ns = r->closed.device_ns + c.device_ns;
    r->spent.device_shots = r->closed.n_timed + c.n_timed;
    r->spent.shot_bytes = r->closed.bytes + c.bytes;
    return &r->spent;
}

/* Waits for the writer. false: it has nothing to do. */
static bool wait_for_writer(cap_recorder *r, uint64_t done)
{
    uint64_t start_ns = clock_ns();
    bool more = cap_tapes_wait(r->tapes, done);
    r->spent.wait_ns += clock_ns() - start_ns;
    return more;
}

/* Shots for inserts of `rows`. They are made anew only while there is no part. */
static err_code want_rows(cap_recorder *r, int32_t rows, bool *there, err *e)
{
    *there = r->shots && rows <= r->shot_rows;
    if (*there) return ERR_OK;
    if (atomic_load(&r->held) && r->on_full == CAP_BLOCK) {
        r->spent.waits++;
        while (wait_for_writer(r, cap_tapes_done(r->tapes))) continue;
    }
    while (cap_flight_evict(r->flight)) continue;
    if (atomic_load(&r->held)) return ERR_OK;
    int32_t larger = r->shot_rows;
    while (larger < rows) larger = larger < INT32_MAX / 2 ? larger * 2 : rows;
    TRY(open_shots(r, larger, e));
    *there = true;
    return ERR_OK;
}

/* ---- parts ---- */

/* The writer's failure, unless that is only counted. */
static err_code check_writer(cap_recorder *r, err *e)
{
    return r->events_only ? ERR_OK : cap_tapes_failed(r->tapes, e);
}

/* A shot, once the part's bytes have room too. NULL: there is none, and will be none by waiting. */
static eng_shot *take_shot(cap_recorder *r, uint64_t bytes)
{
    bool waited = false;
    for (;;) {
        uint64_t done = cap_tapes_done(r->tapes), held = atomic_load(&r->held);
        bool room = held == 0 || held + bytes <= input_bytes_max(r);
        eng_shot *shot = room ? eng_shots_take(r->shots) : NULL;
        if (shot) return shot;
        if (r->on_full == CAP_DROP) {
            if (!cap_flight_evict(r->flight)) return NULL;
            continue;
        }
        if (!waited) r->spent.waits++;
        waited = true;
        if (!wait_for_writer(r, done) && !cap_flight_evict(r->flight)) return NULL;
    }
}

/* Finds room for a part of so many rows and bytes. *out NULL with ERR_OK: there is none. */
static err_code find_room(cap_recorder *r, int32_t rows, uint64_t bytes, eng_shot **out, err *e)
{
    bool there;
    *out = NULL;
    TRY(check_writer(r, e));
    if (cap_tapes_failed(r->tapes, NULL) != ERR_OK) return ERR_OK;
    TRY(want_rows(r, rows, &there, e));
    if (there) *out = take_shot(r, bytes);
    return ERR_OK;
}

/* Joins a part and its shot. part NULL: no memory. */
static err_code equip(cap_recorder *r, cap_part *part, eng_shot *shot, uint64_t start_ns, cap_part **out, err *e)
{
    if (!part) {
        eng_shot_free(shot);
        return err_set(e, ERR_NOMEM, "no memory for a captured step's inputs");
    }
    part->shot = shot;
    part->tap = (eng_tap){ .shot = shot };
    *out = part;
    r->own_ns += clock_ns() - start_ns;
    return ERR_OK;
}

err_code cap_part_insert(cap_recorder *r, int32_t slot, const bf16 *taps, const bf16 *main_x, const int32_t *pos,
                         int32_t rows, cap_part **out, err *e)
{
    eng_shot *shot;
    *out = NULL;
    TRY(find_room(r, rows, cap_part_insert_bytes(r->config, taps, main_x, rows), &shot, e));
    if (!shot) return ERR_OK;
    uint64_t start_ns = clock_ns();
    cap_part *part = cap_part_of_insert(r->config, slot, taps, main_x, pos, rows, &r->held);
    return equip(r, part, shot, start_ns, out, e);
}

err_code cap_part_draft(cap_recorder *r, int32_t batch, const int32_t *slots, const int32_t *anchors, const int32_t *pos,
                        int32_t n_out, cap_part **out, err *e)
{
    eng_shot *shot;
    *out = NULL;
    TRY(find_room(r, 1, cap_part_draft_bytes(batch, n_out), &shot, e));
    if (!shot) return ERR_OK;
    uint64_t start_ns = clock_ns();
    cap_part *part = cap_part_of_draft(batch, slots, anchors, pos, n_out, &r->held);
    return equip(r, part, shot, start_ns, out, e);
}

void cap_part_drop(cap_recorder *r, cap_part *p)
{
    (void)r;
    cap_part_free(p);
}

static void hand_over(cap_recorder *r, cap_part *p, int32_t round, bool ends_round)
{
    uint64_t start_ns = clock_ns();
    cap_tapes_part(r->tapes, p, round, ends_round, spent(r));
    r->own_ns += clock_ns() - start_ns;
}

err_code cap_recorder_submit(cap_recorder *r, int32_t round, cap_part *const *inserts, int32_t n_inserts, cap_part *draft,
                             err *e)
{
    for (int32_t i = 0; i < n_inserts; i++) hand_over(r, inserts[i], round, !draft && i + 1 == n_inserts);
    if (draft) hand_over(r, draft, round, true);
    return check_writer(r, e);
}

err_code cap_recorder_event(cap_recorder *r, int32_t round, const json_t *event, err *e)
{
    for (;;) {
        TRY(check_writer(r, e));
        uint64_t done = cap_tapes_done(r->tapes);
        if (cap_tapes_event(r->tapes, round, event, spent(r))) return ERR_OK;
        if (r->on_full == CAP_BLOCK && wait_for_writer(r, done)) continue;
        cap_tapes_lost_event(r->tapes);
        return ERR_OK;
    }
}

void cap_recorder_dropped(cap_recorder *r, int32_t round, const char *why)
{
    cap_tapes_dropped(r->tapes, round, why, spent(r));
}

/* ---- whole rounds ---- */

/* A whole round under way. */
typedef struct whole_round {
    const eng_round *in;
    const int32_t *slots_of_inserts, *slots_of_draft;
    const bf16 *const *main_x;
    cap_part **part;  /* [n_inserts + 1], those that wait for the round's end (CAP_DROP) */
    int32_t n_parts;
    bool captured;    /* false: it runs without capture, or goes on without it */
} whole_round;

static err_code step_insert(cap_recorder *r, const whole_round *w, int32_t i, const eng_tap *tap, err *e)
{
    const eng_insert_event *in = &w->in->inserts[i];
    const bf16 *main_x = w->main_x ? w->main_x[i] : NULL;
    err_code rc = main_x ? eng_insert_main_x(r->g, w->slots_of_inserts[i], main_x, in->pos, in->rows, tap, e)
                         : eng_insert(r->g, w->slots_of_inserts[i], in->taps, in->pos, in->rows, tap, e);
    return rc == ERR_OK ? rc : err_wrap(e, "round %d slot %d", w->in->round, in->slot);
}

static err_code step_draft(cap_recorder *r, const whole_round *w, const eng_tap *tap, err *e)
{
    int32_t drafts[ENG_BATCH_MAX * ENG_BLOCK_MAX];
    float confidence[ENG_BATCH_MAX * ENG_BLOCK_MAX];
    const eng_round *in = w->in;
    err_code rc = eng_draft(r->g, in->batch, w->slots_of_draft, in->anchors, in->pos, in->n_out, drafts, confidence, tap,
                            e);
    return rc == ERR_OK ? rc : err_wrap(e, "round %d draft", in->round);
}

static err_code prepare(cap_recorder *r, const whole_round *w, int32_t i, cap_part **out, err *e)
{
    const eng_round *in = w->in;
    if (i == in->n_inserts)
        return cap_part_draft(r, in->batch, in->slots, in->anchors, in->pos, in->n_out, out, e);
    const eng_insert_event *insert = &in->inserts[i];
    return cap_part_insert(r, insert->slot, insert->taps, w->main_x ? w->main_x[i] : NULL, insert->pos, insert->rows, out,
                           e);
}

static void leave_out(cap_recorder *r, whole_round *w)
{
    while (w->n_parts > 0) cap_part_drop(r, w->part[--w->n_parts]);
    w->captured = false;
}

/* Step i of the round: an insert, or the draft behind them. */
static err_code run_step(cap_recorder *r, whole_round *w, int32_t i, bool last, err *e)
{
    cap_part *part = NULL;
    if (w->captured) {
        TRY(prepare(r, w, i, &part, e));
        if (!part) leave_out(r, w);
    }
    const eng_tap *tap = part ? cap_part_tap(part) : NULL;
    err_code rc = i < w->in->n_inserts ? step_insert(r, w, i, tap, e) : step_draft(r, w, tap, e);
    if (rc != ERR_OK) cap_part_drop(r, part);
    else if (part && r->on_full == CAP_BLOCK && !r->flight) /* its shot may be the only one */
        hand_over(r, part, w->in->round, last);
    else if (part) w->part[w->n_parts++] = part;
    return rc;
}

static err_code run_steps(cap_recorder *r, whole_round *w, err *e)
{
    const eng_round *in = w->in;
    int32_t n = in->n_inserts + (in->batch ? 1 : 0), longest = 1;
    bool there;
    for (int32_t i = 0; i < in->n_inserts; i++)
        if (in->inserts[i].rows > longest) longest = in->inserts[i].rows;
    if (w->captured) TRY(want_rows(r, longest, &there, e)); /* now, while the round has no parts yet */
    for (int32_t i = 0; i < n; i++) TRY(run_step(r, w, i, i + 1 == n, e));
    for (int32_t i = 0; i < w->n_parts; i++) hand_over(r, w->part[i], in->round, i + 1 == n);
    w->n_parts = 0;
    return ERR_OK;
}

err_code cap_recorder_round(cap_recorder *r, const eng_round *round, const int32_t *engine_slots_of_inserts,
                            const int32_t *engine_slots_of_draft, const bf16 *const *main_x, err *e)
{
    whole_round w = { round, engine_slots_of_inserts, engine_slots_of_draft, main_x, NULL, 0, true };
    w.part = mem_alloc((size_t)round->n_inserts + 1, sizeof(cap_part *));
    if (!w.part) return err_set(e, ERR_NOMEM, "round %d: no memory for its parts", round->round);
    r->spent.rounds_seen++;
    r->spent.rounds_wanted++;
    err_code rc = run_steps(r, &w, e);
    bool dropped = rc == ERR_OK && !w.captured;
    leave_out(r, &w);
    free(w.part);
    TRY(rc);
    if (dropped) cap_recorder_dropped(r, round->round, "no room");
    return check_writer(r, e);
}

err_code cap_recorder_skip_round(cap_recorder *r, const eng_round *round, const int32_t *engine_slots_of_inserts,
                                 const int32_t *engine_slots_of_draft, const bf16 *const *main_x, err *e)
{
    whole_round w = { round, engine_slots_of_inserts, engine_slots_of_draft, main_x, NULL, 0, false };
    r->spent.rounds_seen++;
    return run_steps(r, &w, e);
}

void cap_recorder_trigger(cap_recorder *r, const char *why)
{
    if (r->flight) cap_flight_ask(r->flight, why);
}

/* ---- open and close ---- */

/* Ops in order, each with the names of what it writes. NULL: no memory. */
static json_t *program_json(const eng_program *p)
{
    json_t *ops = json_array();
    for (int32_t i = 0; i < p->n_ops; i++) {
        json_t *out = json_array();
        for (int32_t k = 0; k < p->op[i].n_out; k++)
            json_array_append_new(out, json_string(p->value[p->op[i].out[k]].name));
        json_array_append_new(ops, json_pack("{s:s, s:o}", "op", p->op[i].name, "out", out));
    }
    return ops;
}

static json_t *list_json(const cli_list *l)
{
    json_t *items = json_array();
    for (int i = 0; l && i < l->count; i++) json_array_append_new(items, json_string(l->item[i]));
    return items;
}

static json_t *head_json(const cap_recorder *r, const json_t *identity, const cap_options *o)
{
    json_t *when = r->flight ? list_json(o->when) : NULL, *flight = r->flight ? json_integer(o->flight) : NULL;
    return json_pack("{s:s, s:s, s:s*, s:O, s:o, s:{s:o, s:o}, s:o, s:s*, s:o*, s:o*, s:o*}", "format", "sparktape",
                     "level", eng_level_name(o->level), "traffic", o->synthetic ? "synthetic" : NULL, "identity", identity,
                     "config", eng_config_json(r->config), "program", "insert",
                     program_json(r->plan.program[ENG_STEP_INSERT]), "draft",
                     program_json(r->plan.program[ENG_STEP_DRAFT]), "taps", list_json(o->taps), "rounds", o->rounds,
                     "redact", cap_plan_redact_json(&r->plan), "when", when, "flight", flight);
}

static void recorder_free(cap_recorder *r)
{
    cap_flight_close(r->flight); /* which has shots */
    eng_shots_close(r->shots);
    cap_plan_fini(&r->plan);
    free(r);
}

void cap_recorder_discard(cap_recorder *r)
{
    if (!r) return;
    cap_tapes_discard(r->tapes);
    recorder_free(r);
}

/* Shots for the rounds in memory, and for a whole one that runs. */
static int32_t depth_with_flight(int32_t depth, const cap_options *o)
{
    int64_t steps = o->round_steps > 0 ? o->round_steps : ROUND_STEPS, more = depth > steps ? depth : steps;
    more += steps * o->flight;
    return more < INT32_MAX ? (int32_t)more : INT32_MAX;
}

static err_code recorder_open(cap_recorder *r, const char *path, const json_t *identity, const cap_options *o, err *e)
{
    TRY(cap_plan_init(r->g, o, &r->plan, e));
    r->shot_rows = o->insert_rows > 0 ? o->insert_rows : ENG_INSERT_ROWS_MAX;
    TRY(cap_flight_open(o, &r->plan, &r->flight, e));
    if (r->flight) r->depth = depth_with_flight(r->depth, o);
    TRY(open_shots(r, r->shot_rows, e));
    if (eng_shots_depth(r->shots) < o->flight + 1)
        return err_set(e, ERR_ARG, "--flight: found %d, and memory for %d steps, wanted a step for each round and one more",
                       o->flight, eng_shots_depth(r->shots));
    json_t *head = head_json(r, identity, o);
    if (!head) return err_set(e, ERR_NOMEM, "%s: no memory for the head", path);
    err_code rc = cap_tapes_open(&r->plan, path, head, o, r->flight, &r->tapes, e);
    json_decref(head);
    return rc;
}

err_code cap_recorder_open(eng_engine *g, const char *path, const json_t *identity, const cap_options *o,
                           cap_recorder **out, err *e)
{
    *out = NULL;
    cap_recorder *r = mem_alloc(1, sizeof *r);
    if (!r) return err_set(e, ERR_NOMEM, "%s: no memory for the recorder", path);
    r->g = g;
    r->config = eng_config_of(g);
    r->on_full = o->on_full;
    r->events_only = o->events_only;
    r->depth = o->depth > 0 ? o->depth : DEPTH;
    r->memory_bytes = o->memory_bytes ? o->memory_bytes : (uint64_t)MEMORY_MIB << 20;
    err_code rc = recorder_open(r, path, identity, o, e);
    if (rc != ERR_OK) {
        cap_recorder_discard(r);
        return rc;
    }
    *out = r;
    return ERR_OK;
}

void cap_recorder_counts(cap_recorder *r, cap_counts *out) { cap_tapes_counts(r->tapes, out); }

err_code cap_recorder_end(cap_recorder *r, cap_counts *counts, err *e)
{
    while (cap_tapes_wait(r->tapes, cap_tapes_done(r->tapes))) continue; /* then the last shots are timed, too */
    err_code rc = cap_tapes_finish(r->tapes, spent(r), counts, e);
    recorder_free(r);
    return rc;
}

err_code cap_recorder_finish(cap_recorder *r, err *e)
{
    bool only_counted = r->events_only;
    err_code rc = cap_recorder_end(r, NULL, e);
    return only_counted ? ERR_OK : rc;
}

err_code cap_say_what_is_left(const char *path, err *e)
{
    char part[4096];
    snprintf(part, sizeof part, "%s.part", path);
    const char *left = access(part, F_OK) == 0 ? part : access(path, F_OK) == 0 ? path : NULL;
    size_t n = strlen(e->msg);
    if (left) snprintf(e->msg + n, sizeof e->msg - n, "; what had been written is in %s, see sparktape recover", left);
    return e->code;
}
