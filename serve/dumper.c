#include "serve/dumper.h"

#include <pthread.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "capture/redact.h"
#include "serve/message.h"
#include "serve/shot_compare.h"

enum {
    SHOTS = 24,       /* four slots with a few inserts each, a draft, and the eager run's */
    SHOTS_LEAST = 12, /* so many must have room with the longest insert: two rounds of four slots */
    MEMORY_MIB = 2048, SHOTS_MIB = MEMORY_MIB / 4 * 3, /* see cap_options */
    INSERT_ROWS_MOST = 4096, /* more than a frame holds of the official model; only toys have shorter rows */
};

/* The parts that wait for a slot's next draft. */
typedef struct pending {
    cap_part **part;
    size_t n, capacity;
    const char *lost; /* why one could not be had, NULL: it could. The round cannot be whole */
} pending;

struct srv_dumper {
    srv_dumper_setup o;
    int32_t insert_rows;    /* the longest insert that is captured */
    cap_recorder *recorder; /* NULL once finished */
    pending slot[SRV_SLOTS_MAX];
    cap_part *draft;        /* of the step that runs, NULL: not captured */
    bool chosen;            /* the step that runs */
    cap_part **parts;       /* scratch: of one round */
    size_t parts_capacity;
    pthread_mutex_t lock;   /* below: shown by status */
    uint64_t checked, mismatches, unchecked;
    uint64_t unnumbered;    /* rounds lost because a tape's numbers have 31 bits */
    char mismatch[ERR_MSG_BYTES];
    cap_counts last;        /* since finish */
    err failed;             /* after finish */
};

/* ---- the eager run ---- */

/* The tap of an eager run into the part's shot. */
static eng_tap traced(const cap_part *p)
{
    eng_tap tap = *cap_part_tap(p);
    tap.traced = true;
    return tap;
}

/* A difference: an event on the tape, and the first one's text. */
static void mismatch(srv_dumper *d, int32_t round, const char *step, int64_t request, const char *value, int32_t rank,
                     int64_t element, int32_t values)
{
    char text[ERR_MSG_BYTES];
    snprintf(text, sizeof text,
             "round %d: %s of request %lld: the graph and its eager run differ in %s, rank %d, element %lld", round, step,
             (long long)request, value, rank, (long long)element);
    json_t *event = json_pack("{s:s, s:i, s:s, s:I, s:s, s:i, s:I, s:i}", "event", "mismatch", "round", (int)round, "step",
                              step, "request", (json_int_t)request, "value", value, "rank", (int)rank, "element",
                              (json_int_t)element, "values", (int)values);
    if (event) (void)!cap_recorder_event(d->recorder, round, event, NULL); /* what is lost is counted there */
    json_decref(event);
    pthread_mutex_lock(&d->lock);
    if (!d->mismatches++) memcpy(d->mismatch, text, sizeof text);
    pthread_mutex_unlock(&d->lock);
}

static void compare(srv_dumper *d, int32_t round, eng_step_kind step, int64_t request, const cap_part *graph,
                    const cap_part *eager, err_code *rc, err *e)
{
    const eng_options *o = eng_options_of(d->o.engine);
    srv_shot_difference diff;
    if (*rc == ERR_OK) *rc = eng_shot_wait(cap_part_shot(graph), e);
    if (*rc == ERR_OK) *rc = eng_shot_wait(cap_part_shot(eager), e);
    if (*rc != ERR_OK) return;
    srv_shots_compare(eng_program_of(d->o.engine, step), cap_part_shot(graph), cap_part_shot(eager),
                      o->bootstrap ? o->rank : 0, o->bootstrap ? o->rank + 1 : o->n_ranks, &diff);
    if (diff.differing)
        mismatch(d, round, step == ENG_STEP_INSERT ? "insert" : "draft", request, diff.first, diff.rank, diff.element,
                 diff.differing);
}

/* The insert once more, on the spare slot. *ran false: no room or no memory for it. */
static err_code check_insert(srv_dumper *d, int32_t round, const cap_part *graph, bool *ran, err *e)
{
    const bf16 *taps;
    const int32_t *pos;
    int32_t rows, slot;
    cap_part *eager = NULL;
    cap_part_inputs(graph, &slot, &taps, &pos, &rows);
    err_code made = cap_part_insert(d->recorder, slot, taps, NULL, pos, rows, &eager, e);
    *ran = eager != NULL;
    if (!eager) return made == ERR_NOMEM ? ERR_OK : made; /* says nothing of the worker */
    eng_tap tap = traced(eager);
    eng_release(d->o.engine, d->o.slots);
    err_code rc = eng_insert(d->o.engine, d->o.slots, taps, pos, rows, &tap, e);
    compare(d, round, ENG_STEP_INSERT, slot, graph, eager, &rc, e);
    cap_part_drop(d->recorder, eager);
    return rc;
}

static err_code check_draft(srv_dumper *d, const srv_draft_step *s, const int32_t *requests, bool *ran, err *e)
{
    cap_part *eager = NULL;
    int32_t drafts[ENG_BATCH_MAX * ENG_BLOCK_MAX];
    float confidence[ENG_BATCH_MAX * ENG_BLOCK_MAX];
    err_code made = cap_part_draft(d->recorder, s->batch, requests, s->anchors, s->pos, s->n_out, &eager, e);
    *ran = eager != NULL;
    if (!eager) return made == ERR_NOMEM ? ERR_OK : made;
    eng_tap tap = traced(eager);
    err_code rc = eng_draft(d->o.engine, s->batch, s->slots, s->anchors, s->pos, s->n_out, drafts, confidence, &tap, e);
    compare(d, (int32_t)s->round, ENG_STEP_DRAFT, requests[0], d->draft, eager, &rc, e);
    size_t n = (size_t)s->batch * (size_t)s->n_out;
    for (size_t i = 0; rc == ERR_OK && i < n; i++) /* what was answered, not only what was retained */
        if (drafts[i] != s->drafts[i] || memcmp(&confidence[i], &s->confidence[i], sizeof(float)) != 0) {
            mismatch(d, (int32_t)s->round, "reply", requests[i / (size_t)s->n_out],
                     drafts[i] != s->drafts[i] ? "drafts" : "confidence", 0, (int64_t)i, 1);
            break;
        }
    cap_part_drop(d->recorder, eager);
    return rc;
}

/* ---- hooks ---- */

static void forget(srv_dumper *d, pending *p)
{
    for (size_t i = 0; i < p->n; i++) cap_part_drop(d->recorder, p->part[i]);
    p->n = 0;
    p->lost = NULL;
}

static void lose(srv_dumper *d, pending *p, const char *why)
{
    forget(d, p);
    p->lost = why;
}

static err_code insert_before(void *ctx, const srv_insert_step *s, const eng_tap **tap, err *e)
{
    srv_dumper *d = ctx;
    pending *p = &d->slot[s->slot];
    cap_part *part = NULL;
    (void)e;
    if (p->lost || s->request > INT32_MAX) return ERR_OK;
    if (s->rows > d->insert_rows) {
        lose(d, p, "an insert longer than dumps have room for");
        return ERR_OK;
    }
    void *array = p->part;
    const bool room = mem_grow(&array, &p->capacity, p->n + 1, sizeof *p->part);
    p->part = array;
    err_code rc = ERR_OK;
    if (room) rc = cap_part_insert(d->recorder, (int32_t)s->request, s->taps, NULL, s->pos, s->rows, &part, NULL);
    if (rc != ERR_OK || !part) { /* capture that cannot be made costs its round, never the worker */
        lose(d, p, "no room for an insert");
        return ERR_OK;
    }
    p->part[p->n++] = part;
    *tap = cap_part_tap(part);
    return ERR_OK;
}

static err_code insert_after(void *ctx, const srv_insert_step *s, bool done, err *e)
{
    srv_dumper *d = ctx;
    pending *p = &d->slot[s->slot];
    (void)e;
    if (!done && p->n) cap_part_drop(d->recorder, p->part[--p->n]);
    return ERR_OK;
}

/* Why the round cannot be whole; NULL: it can. */
static const char *has_lost(const srv_dumper *d, const srv_draft_step *s)
{
    for (int32_t b = 0; b < s->batch; b++)
        if (d->slot[s->slots[b]].lost) return d->slot[s->slots[b]].lost;
    return NULL;
}

/* Whether a tape can name the round and its requests. */
static bool is_numbered(const srv_draft_step *s)
{
    for (int32_t b = 0; b < s->batch; b++)
        if (s->request[b] > INT32_MAX) return false;
    return s->round <= INT32_MAX;
}

/* Of a step that is numbered. */
static void requests_of(const srv_draft_step *s, int32_t *out)
{
    for (int32_t b = 0; b < s->batch; b++) out[b] = (int32_t)s->request[b];
}

static err_code draft_before(void *ctx, const srv_draft_step *s, const eng_tap **tap, err *e)
{
    srv_dumper *d = ctx;
    int32_t requests[ENG_BATCH_MAX] = { 0 };
    d->draft = NULL;
    d->chosen = cap_round_list_has(&d->o.rounds, s->round);
    if (d->chosen && !is_numbered(s)) {
        pthread_mutex_lock(&d->lock);
        d->unnumbered++;
        pthread_mutex_unlock(&d->lock);
        d->chosen = false;
    }
    if (!d->chosen || has_lost(d, s)) return ERR_OK;
    requests_of(s, requests);
    err_code rc = cap_part_draft(d->recorder, s->batch, requests, s->anchors, s->pos, s->n_out, &d->draft, NULL);
    (void)e;
    if (rc == ERR_OK && d->draft) *tap = cap_part_tap(d->draft);
    return ERR_OK;
}

/* Runs a chosen round's steps once more. */
static err_code check_round(srv_dumper *d, const srv_draft_step *s, err *e)
{
    int32_t requests[ENG_BATCH_MAX] = { 0 };
    uint64_t before = d->mismatches;
    bool all = true, ran = true;
    requests_of(s, requests);
    for (int32_t b = 0; b < s->batch; b++)
        for (size_t i = 0; i < d->slot[s->slots[b]].n; i++, all = all && ran)
            TRY(check_insert(d, (int32_t)s->round, d->slot[s->slots[b]].part[i], &ran, e));
    TRY(check_draft(d, s, requests, &ran, e));
    pthread_mutex_lock(&d->lock);
    if (all && ran) d->checked++;
    else d->unchecked++;
    pthread_mutex_unlock(&d->lock);
    if (d->mismatches != before) cap_part_want(d->draft, "mismatch");
    if (d->mismatches == before || !d->o.poison) return ERR_OK;
    return err_set(e, ERR_SYSTEM, "%s", d->mismatch);
}

static err_code submit(srv_dumper *d, const srv_draft_step *s, err *e)
{
    size_t n = 0;
    for (int32_t b = 0; b < s->batch; b++) n += d->slot[s->slots[b]].n;
    void *array = d->parts;
    const bool room = mem_grow(&array, &d->parts_capacity, n + 1, sizeof *d->parts);
    d->parts = array;
    if (!room) { /* draft_after drops the parts */
        cap_recorder_dropped(d->recorder, (int32_t)s->round, "no memory for the round");
        return ERR_OK;
    }
    n = 0;
    for (int32_t b = 0; b < s->batch; b++) {
        pending *p = &d->slot[s->slots[b]];
        for (size_t i = 0; i < p->n; i++) d->parts[n++] = p->part[i];
        p->n = 0;
    }
    cap_part *draft = d->draft;
    d->draft = NULL;
    cap_part_answer(draft, s->drafts, s->confidence);
    return cap_recorder_submit(d->recorder, (int32_t)s->round, d->parts, (int32_t)n, draft, e);
}

static err_code draft_after(void *ctx, const srv_draft_step *s, bool done, err *e)
{
    srv_dumper *d = ctx;
    err_code rc = ERR_OK;
    if (d->draft && done) {
        if (d->o.asked && atomic_exchange(d->o.asked, false)) cap_part_want(d->draft, "asked for");
        rc = check_round(d, s, e);
        err_code kept = submit(d, s, rc == ERR_OK ? e : NULL);
        if (rc == ERR_OK) rc = kept;
    } else if (d->chosen) {
        const char *lost = has_lost(d, s);
        cap_recorder_dropped(d->recorder, (int32_t)s->round,
                             !done ? "the step failed" : lost ? lost : "no room for the draft");
    }
    cap_part_drop(d->recorder, d->draft);
    d->draft = NULL;
    for (int32_t b = 0; b < s->batch; b++) forget(d, &d->slot[s->slots[b]]);
    return rc;
}

static void released(void *ctx, int64_t request, int32_t slot)
{
    srv_dumper *d = ctx;
    (void)request;
    forget(d, &d->slot[slot]);
}

static void finish(void *ctx)
{
    srv_dumper *d = ctx;
    err e = { 0 };
    if (!d->recorder) return;
    for (int32_t i = 0; i < SRV_SLOTS_MAX; i++) forget(d, &d->slot[i]);
    cap_counts counts;
    cap_recorder *r = d->recorder;
    if (d->o.asked && atomic_exchange(d->o.asked, false)) cap_recorder_trigger(r, "asked for");
    pthread_mutex_lock(&d->lock);
    cap_recorder_counts(r, &d->last); /* for as long as writing the rest takes */
    d->recorder = NULL;
    pthread_mutex_unlock(&d->lock);
    (void)!cap_recorder_end(r, &counts, &e); /* close tells */
    pthread_mutex_lock(&d->lock);
    d->last = counts;
    d->failed = e;
    pthread_mutex_unlock(&d->lock);
}

/* With the lock held. */
static cap_counts counts_of(srv_dumper *d)
{
    cap_counts n = d->last;
    if (d->recorder) cap_recorder_counts(d->recorder, &n);
    n.dropped += d->unnumbered;
    return n;
}

static json_t *status(void *ctx)
{
    srv_dumper *d = ctx;
    pthread_mutex_lock(&d->lock);
    cap_counts n = counts_of(d);
    json_t *j = json_pack("{s:s, s:s, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:I, s:I, s:s, s:s, s:s}",
                          "dir", d->o.dir, "chosen", d->o.rounds_text, "insert_rows", (int)d->insert_rows,
                          "rounds", (json_int_t)n.rounds, "dropped", (json_int_t)n.dropped,
                          "judged", (json_int_t)n.judged, "fired", (json_int_t)n.fired,
                          "checked", (json_int_t)d->checked, "unchecked", (json_int_t)d->unchecked,
                          "mismatches", (json_int_t)d->mismatches, "events_lost", (json_int_t)n.events_lost,
                          "first_mismatch", d->mismatch, "bytes", (json_int_t)n.tape_bytes, "tapes", (json_int_t)n.tapes,
                          "tape", n.tape, "redact", d->o.redact ? cap_redact_key(d->o.redact) : "", "failed", n.failed);
    pthread_mutex_unlock(&d->lock);
    return j;
}

/* ---- open and close ---- */

static err_code check_folder(const char *dir, err *e)
{
    struct stat st;
    if (stat(dir, &st) != 0 || !S_ISDIR(st.st_mode))
        return err_set(e, ERR_INPUT, "--dump-dir %s: found no folder, wanted one that is there", dir);
    if (access(dir, W_OK | X_OK) == 0) return ERR_OK;
    return err_set(e, ERR_INPUT, "--dump-dir %s: found no right to write there, wanted it", dir);
}

/* What a row of an insert takes in a shot, at most: on CUDA it is on the device, in pinned memory, and joined there. */
static uint64_t row_bytes(const eng_engine *g)
{
    const eng_program *p = eng_program_of(g, ENG_STEP_INSERT);
    const eng_options *o = eng_options_of(g);
    eng_extents one = eng_extents_of(&p->config, 1, 1, 1);
    uint64_t bytes = 0;
    for (int32_t v = 0; v < p->n_values; v++) {
        const eng_value *value = &p->value[v];
        if (value->level > ENG_LEVEL_V1 || value->state) continue;
        for (int32_t rank = 0; rank < o->n_ranks; rank++)
            bytes += (uint64_t)eng_value_elems(p, v, &one, rank, o->n_ranks) * fmt_dtype_bytes(value->dtype);
    }
    return o->backend == ENG_BACKEND_CUDA ? 3 * bytes : bytes;
}

/* The longest insert that a session may send, as far as memory allows. */
static int32_t longest_insert(const srv_dumper_setup *s)
{
    const eng_config *c = eng_config_of(s->engine);
    uint64_t of_frame = SRV_FRAME_MAX_BYTES / ((uint64_t)c->n_taps * (uint64_t)c->dim * sizeof(bf16));
    uint64_t of_memory = ((uint64_t)SHOTS_MIB << 20) / SHOTS_LEAST / row_bytes(s->engine);
    uint64_t rows = INSERT_ROWS_MOST;
    if (rows > (uint64_t)s->positions) rows = (uint64_t)s->positions;
    if (rows > of_frame) rows = of_frame;
    if (rows > of_memory) rows = of_memory;
    return rows < ENG_INSERT_ROWS_MAX ? ENG_INSERT_ROWS_MAX : (int32_t)rows;
}

static err_code open_recorder(srv_dumper *d, err *e)
{
    char path[4096], when[32];
    time_t now = (time_t)(clock_wall_ns() / 1000000000u);
    struct tm tm;
    strftime(when, sizeof when, "%Y%m%d-%H%M%S", gmtime_r(&now, &tm));
    int n = snprintf(path, sizeof path, "%s/v1-%s-%d.tape", d->o.dir, when, (int)getpid());
    if (n < 0 || (size_t)n >= sizeof path) return err_set(e, ERR_ARG, "--dump-dir: found %d characters, wanted fewer", n);
    d->insert_rows = longest_insert(&d->o);
    cap_options o = { .level = ENG_LEVEL_V1, .on_full = CAP_DROP, .depth = SHOTS, .insert_rows = d->insert_rows,
                      .memory_bytes = (uint64_t)MEMORY_MIB << 20, .rounds = d->o.rounds_text,
                      .rotate_bytes = d->o.rotate_bytes, .events_only = true,
                      .when = d->o.when, .flight = d->o.flight, .redact = d->o.redact };
    return cap_recorder_open(d->o.engine, path, d->o.identity, &o, &d->recorder, e);
}

err_code srv_dumper_open(const srv_dumper_setup *s, srv_dumper **out, err *e)
{
    *out = NULL;
    TRY(check_folder(s->dir, e));
    srv_dumper *d = mem_alloc(1, sizeof *d);
    if (!d) return err_set(e, ERR_NOMEM, "no memory for dumps");
    d->o = *s;
    pthread_mutex_init(&d->lock, NULL);
    err_code rc = open_recorder(d, e);
    if (rc == ERR_OK) *out = d;
    else (void)!srv_dumper_close(d, NULL);
    return rc;
}

void srv_dumper_hooks(srv_dumper *d, srv_dump *out)
{
    *out = (srv_dump){ .ctx = d, .hold_replies = d->o.poison, .insert_before = insert_before, .draft_before = draft_before,
                       .insert_after = insert_after, .draft_after = draft_after, .released = released, .finish = finish,
                       .status = status };
}

void srv_dumper_tape(srv_dumper *d, char out[256])
{
    pthread_mutex_lock(&d->lock);
    cap_counts n = counts_of(d);
    pthread_mutex_unlock(&d->lock);
    snprintf(out, 256, "%s", strlen(n.tape) + 1 < sizeof n.tape ? n.tape : "");
}

err_code srv_dumper_close(srv_dumper *d, err *e)
{
    if (!d) return ERR_OK;
    finish(d);
    err_code rc = d->failed.code;
    if (rc != ERR_OK)
        err_set(e, rc, "dumps failed, %llu rounds kept, %llu dropped: %s", (unsigned long long)d->last.rounds,
                (unsigned long long)(d->last.dropped + d->unnumbered), d->failed.msg);
    for (int32_t i = 0; i < SRV_SLOTS_MAX; i++) free(d->slot[i].part);
    free(d->parts);
    pthread_mutex_destroy(&d->lock);
    free(d);
    return rc;
}
