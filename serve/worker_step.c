#include "serve/worker_state.h"

#include "base/clock.h"
#include "base/mem.h"

#include <string.h>

void srv_worker_fail(srv_worker *w, const err *why)
{
    if (w->failed.code == ERR_OK) w->failed = *why;
}

static bool refuse_failed(srv_worker *w, srv_reply *reply)
{
    return srv_refuse(reply, SRV_REFUSED_WORKER, -1, "%s", w->failed.msg);
}

bool srv_worker_may_begin(srv_worker *w, srv_work *x)
{
    if (x->abandoned) return false;
    return w->failed.code == ERR_OK || refuse_failed(w, &x->reply);
}

/* ---- insert ---- */

/* *of_slot: the error is the rows' own. */
static err_code insert_step(srv_worker *w, const srv_insert_step *s, bool *of_slot, err *e)
{
    const eng_tap *tap = NULL;
    err later = { 0 };
    *of_slot = false;
    if (w->dump.insert_before) TRY(w->dump.insert_before(w->dump.ctx, s, &tap, e));
    err_code rc = eng_insert(w->o.engine, s->slot, s->taps, s->pos, s->rows, tap, e);
    *of_slot = rc == ERR_INPUT;
    if (w->dump.insert_after && w->dump.insert_after(w->dump.ctx, s, rc == ERR_OK, &later) != ERR_OK) {
        *of_slot = false;
        *e = later;
        rc = later.code;
    }
    return rc;
}

void srv_worker_insert(srv_worker *w, srv_work *x)
{
    const srv_insert *in = &x->request.u.insert;
    if (!srv_sessions_insert(&w->sessions, x->connection, x->request.epoch, in, &x->reply)) return;
    err e = { 0 };
    bool of_slot;
    srv_insert_step s = { .round = w->rounds, .request = w->sessions.slot[in->slot].request, .slot = in->slot,
                          .rows = in->rows, .taps = in->taps, .pos = w->pos };
    uint64_t begun = clock_ns();
    srv_worker_begin_busy(w, begun);
    for (int32_t i = 0; i < in->rows; i++) w->pos[i] = in->first_pos + i;
    err_code rc = insert_step(w, &s, &of_slot, &e);
    uint64_t took = clock_ns() - begun;
    srv_worker_end_busy(w);
    if (rc == ERR_OK) {
        srv_sessions_inserted(&w->sessions, in, &x->reply);
        w->stats.rows += (uint64_t)in->rows;
        if (!w->stats.first_insert_ns) w->stats.first_insert_ns = took;
        srv_histogram_add(&w->stats.queue, begun - x->received_ns);
        srv_histogram_add(&w->stats.insert, took);
    } else if (of_slot) {
        srv_sessions_poison(&w->sessions, in->slot, e.msg, &x->reply);
    } else {
        srv_worker_fail(w, &e);
        refuse_failed(w, &x->reply);
    }
}

/* ---- draft ---- */

bool srv_worker_joins(const srv_group *g, const srv_draft *d)
{
    return g->n == 0 || (g->n_out == d->n_out && g->batch + d->batch <= ENG_BATCH_MAX);
}

void srv_worker_join(srv_group *g, srv_work *x)
{
    g->n_out = x->request.u.draft.n_out;
    g->batch += x->request.u.draft.batch;
    g->work[g->n++] = x;
}

typedef struct draft_arrays {
    int32_t slots[ENG_BATCH_MAX], anchors[ENG_BATCH_MAX], pos[ENG_BATCH_MAX];
    int32_t drafts[ENG_BATCH_MAX * ENG_BLOCK_MAX];
    float confidence[ENG_BATCH_MAX * ENG_BLOCK_MAX];
} draft_arrays;

/* Answers those that may not be done; the step is made of the others. */
static void check_group(srv_worker *w, srv_group *g)
{
    srv_group good = { 0 };
    for (int32_t i = 0; i < g->n; i++) {
        srv_work *x = g->work[i];
        if (srv_worker_may_begin(w, x) &&
            srv_sessions_draft(&w->sessions, x->connection, x->request.epoch, &x->request.u.draft, &x->reply))
            srv_worker_join(&good, x);
        else srv_worker_finish(w, x);
    }
    *g = good;
}

static void fill_step(const srv_worker *w, const srv_group *g, draft_arrays *a, srv_draft_step *s)
{
    *s = (srv_draft_step){ .round = w->rounds, .n_out = g->n_out, .slots = a->slots, .anchors = a->anchors, .pos = a->pos };
    for (int32_t i = 0; i < g->n; i++) {
        const srv_draft *d = &g->work[i]->request.u.draft;
        for (int32_t b = 0; b < d->batch; b++, s->batch++) {
            a->slots[s->batch] = d->slot[b];
            a->anchors[s->batch] = d->anchor[b];
            a->pos[s->batch] = d->pos[b];
            s->request[s->batch] = w->sessions.slot[d->slot[b]].request;
        }
    }
}

/* Hands each its part of the step; failed workers answer nothing else. */
static void answer_group(srv_worker *w, const srv_group *g, const srv_draft_step *s, uint64_t begun, uint64_t took)
{
    int32_t at = 0;
    for (int32_t i = 0; i < g->n; i++) {
        srv_work *x = g->work[i];
        int32_t batch = x->request.u.draft.batch;
        size_t n = (size_t)batch * (size_t)s->n_out;
        srv_drafted *d = &x->reply.u.drafted;
        if (w->failed.code != ERR_OK) refuse_failed(w, &x->reply);
        else {
            *d = (srv_drafted){ .round = s->round, .batch = batch, .n_out = s->n_out, .step_batch = s->batch,
                                .queue_us = (double)(begun - x->received_ns) * 1e-3, .step_us = (double)took * 1e-3 };
            memcpy(d->drafts, s->drafts + (int64_t)at * s->n_out, n * sizeof *d->drafts);
            memcpy(d->confidence, s->confidence + (int64_t)at * s->n_out, n * sizeof *d->confidence);
            srv_histogram_add(&w->stats.queue, begun - x->received_ns);
        }
        at += batch;
        srv_worker_finish(w, x);
    }
}

void srv_worker_draft(srv_worker *w, srv_group *g)
{
    check_group(w, g);
    if (g->n == 0) return;
    draft_arrays a;
    srv_draft_step s;
    err e = { 0 };
    const eng_tap *tap = NULL;
    fill_step(w, g, &a, &s);
    w->rounds++;
    srv_worker_begin_busy(w, clock_ns());
    err_code rc = w->dump.draft_before ? w->dump.draft_before(w->dump.ctx, &s, &tap, &e) : ERR_OK;
    uint64_t begun = clock_ns(), took = 0;
    if (rc == ERR_OK) {
        rc = eng_draft(w->o.engine, s.batch, s.slots, s.anchors, s.pos, s.n_out, a.drafts, a.confidence, tap, &e);
        took = clock_ns() - begun;
        s.drafts = a.drafts;
        s.confidence = a.confidence;
    }
    bool hold = w->dump.draft_after && w->dump.hold_replies;
    if (hold && w->dump.draft_after(w->dump.ctx, &s, rc == ERR_OK, &e) != ERR_OK) rc = e.code;
    srv_worker_end_busy(w);
    if (rc != ERR_OK) srv_worker_fail(w, &e); /* the sessions saw nothing wrong with any slot: so the engine is */
    else {
        w->stats.steps[s.batch]++;
        srv_histogram_add(&w->stats.step, took);
        if (!w->stats.first_step_ns) w->stats.first_step_ns = took;
    }
    answer_group(w, g, &s, begun, took);
    if (hold || !w->dump.draft_after) return;
    srv_worker_begin_busy(w, clock_ns());
    err_code after = w->dump.draft_after(w->dump.ctx, &s, rc == ERR_OK, &e);
    srv_worker_end_busy(w);
    if (after != ERR_OK) srv_worker_fail(w, &e);
}

/* ---- prewarm ---- */

enum { WARM_POSITIONS = 2 * ENG_INSERT_ROWS_MAX };
typedef struct warm_rows { bf16 *taps; int32_t pos[WARM_POSITIONS]; } warm_rows;

/* Inserts of 1, 2, 4 ... rows_max rows into an empty slot; *last: where it stands then. */
static err_code warm_slot(srv_worker *w, const warm_rows *x, int32_t slot, int32_t rows_max, int32_t *last, err *e)
{
    int32_t next = 0;
    for (int32_t rows = 1; rows <= rows_max; next += rows, rows *= 2) {
        srv_insert_step s = { .slot = slot, .rows = rows, .taps = x->taps, .pos = x->pos + next };
        bool of_slot;
        TRY(insert_step(w, &s, &of_slot, e));
    }
    *last = next - 1;
    return ERR_OK;
}

/* On the CPU there is one path for all shapes. */
static err_code warm_steps(srv_worker *w, const warm_rows *x, err *e)
{
    const int32_t block = w->config.block;
    const bool every_shape = eng_device_of(w->o.engine, 0) != NULL;
    draft_arrays a = { 0 };
    for (int32_t b = 0; b < w->o.slots; b++) {
        a.slots[b] = b;
        TRY(warm_slot(w, x, b, every_shape && b == 0 ? ENG_INSERT_ROWS_MAX : 1, &a.pos[b], e));
    }
    for (int32_t batch = every_shape ? 1 : w->o.slots; batch <= w->o.slots; batch++)
        for (int32_t n = every_shape && block > 1 ? block - 1 : block; n <= block; n++)
            TRY(eng_draft(w->o.engine, batch, a.slots, a.anchors, a.pos, n, a.drafts, a.confidence, NULL, e));
    return ERR_OK;
}

err_code srv_worker_prewarm(srv_worker *w, err *e)
{
    size_t n = (size_t)ENG_INSERT_ROWS_MAX * (size_t)w->config.n_taps * (size_t)w->config.dim;
    warm_rows x = { .taps = mem_alloc(n, sizeof *x.taps) };
    if (!x.taps) return err_set(e, ERR_NOMEM, "prewarm: no memory for %d rows", ENG_INSERT_ROWS_MAX);
    for (size_t i = 0; i < n; i++) x.taps[i] = 0x3f80; /* 1.0 */
    for (int32_t i = 0; i < WARM_POSITIONS; i++) x.pos[i] = i;
    err_code rc = eng_prewarm(w->o.engine, w->o.slots, ENG_INSERT_ROWS_MAX, NULL, e);
    if (rc == ERR_OK) rc = warm_steps(w, &x, e);
    for (int32_t b = 0; b < w->o.slots; b++) {
        if (w->dump.released) w->dump.released(w->dump.ctx, 0, b);
        eng_release(w->o.engine, b);
    }
    free(x.taps);
    return rc;
}
