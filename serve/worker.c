#include "serve/worker_state.h"

#include "base/clock.h"
#include "base/mem.h"

void srv_work_free(srv_work *w)
{
    if (!w) return;
    srv_reply_fini(&w->reply);
    free(w->frame);
    free(w);
}

/* ---- lists; the lock is held ---- */

static void append(srv_work **first, srv_work **last, srv_work *x)
{
    x->next = NULL;
    if (*first) (*last)->next = x;
    else *first = x;
    *last = x;
}

/* before: x's predecessor in the queue, NULL when it is the first. */
static void unlink_queued(srv_worker *w, srv_work *before, srv_work *x)
{
    if (before) before->next = x->next;
    else w->queue = x->next;
    if (w->queue_last == x) w->queue_last = before;
}

void srv_worker_finish(srv_worker *w, srv_work *x)
{
    if (x->abandoned) w->stats.abandoned++;
    else if (x->reply.refused != SRV_REFUSED_NONE) w->stats.refused[x->reply.refused]++;
    else {
        w->stats.done[x->request.op]++;
        srv_histogram_add(&w->stats.reply, clock_ns() - x->received_ns);
    }
    append(&w->done, &w->done_last, x);
    w->o.wake(w->o.ctx);
}

void srv_worker_begin_busy(srv_worker *w, uint64_t now_ns)
{
    w->busy_since_ns = now_ns;
    pthread_mutex_unlock(&w->lock);
}

void srv_worker_end_busy(srv_worker *w)
{
    pthread_mutex_lock(&w->lock);
    w->busy_since_ns = 0;
}

/* ---- the queue ---- */

/* Slots that a request touches, as bits. */
static uint32_t slots_of(const srv_request *r)
{
    uint32_t slots = 0;
    const srv_draft *d = &r->u.draft;
    int32_t one = r->op == SRV_INSERT ? r->u.insert.slot : r->op == SRV_RELEASE ? r->u.slot : -1;
    for (int32_t b = 0; r->op == SRV_DRAFT && b < d->batch; b++)
        if (d->slot[b] >= 0 && d->slot[b] < SRV_SLOTS_MAX) slots |= 1u << d->slot[b];
    if (one >= 0 && one < SRV_SLOTS_MAX) slots |= 1u << one;
    return slots;
}

/* Forgets the rows of slots that ended. */
static void reap(srv_worker *w)
{
    for (int32_t slot; (slot = srv_sessions_ended(&w->sessions)) >= 0;) {
        int64_t request = w->sessions.slot[slot].request;
        bool well = w->failed.code == ERR_OK;
        srv_worker_begin_busy(w, clock_ns());
        if (w->dump.released) w->dump.released(w->dump.ctx, request, slot);
        if (well) eng_release(w->o.engine, slot);
        srv_worker_end_busy(w);
        srv_sessions_reaped(&w->sessions, slot);
    }
}

/* Any request but a draft. */
static void do_one(srv_worker *w, srv_work *x)
{
    const srv_request *r = &x->request;
    if (srv_worker_may_begin(w, x)) {
        if (r->op == SRV_HELLO) srv_sessions_hello(&w->sessions, x->connection, &r->u.hello, &x->reply);
        else if (r->op == SRV_INSERT) srv_worker_insert(w, x);
        else if (r->op == SRV_RELEASE) srv_sessions_release(&w->sessions, x->connection, r->epoch, r->u.slot, &x->reply);
        else if (r->op == SRV_OPEN) {
            reap(w);
            srv_sessions_open(&w->sessions, x->connection, r->epoch, &x->reply);
        }
    }
    srv_worker_finish(w, x);
}

/* One pass over what was queued when it began: everything but drafts is done in order, the drafts that fit together
 * become one step at the end. What would overtake an earlier request of its slot stays for the next pass; a hello, which
 * ends sessions, overtakes nothing. The first in the queue always goes, so every pass makes progress. */
static void pass(srv_worker *w)
{
    srv_group g = { 0 };
    uint32_t held = 0; /* slots with an earlier request that stays, or is in g */
    srv_work *before = NULL, *x = w->queue, *const last = w->queue_last;
    for (bool more = true; more && !w->stopping; x = before ? before->next : w->queue) {
        more = x != last;
        uint32_t slots = slots_of(&x->request);
        bool draft = x->request.op == SRV_DRAFT;
        if (x->request.op == SRV_HELLO && (before || g.n)) break;
        if ((slots & held) || (draft && !srv_worker_joins(&g, &x->request.u.draft))) {
            held |= slots;
            before = x;
            continue;
        }
        unlink_queued(w, before, x);
        if (draft) {
            held |= slots;
            srv_worker_join(&g, x);
        } else do_one(w, x);
    }
    if (!w->stopping) {
        srv_worker_draft(w, &g);
        return;
    }
    for (int32_t i = 0; i < g.n; i++) {
        srv_refuse(&g.work[i]->reply, SRV_REFUSED_CLOSING, -1, "the worker is shutting down");
        srv_worker_finish(w, g.work[i]);
    }
}

/* ---- the thread ---- */

static void refuse_queued(srv_worker *w)
{
    while (w->queue) {
        srv_work *x = w->queue;
        unlink_queued(w, NULL, x);
        srv_refuse(&x->reply, SRV_REFUSED_CLOSING, -1, "the worker is shutting down");
        srv_worker_finish(w, x);
    }
}

static void pause_processor(void)
{
#if defined __x86_64__
    __builtin_ia32_pause();
#endif
}

/* Until the other side calls: awake for spin_ns, then asleep. */
static void rest(srv_worker *w)
{
    const uint64_t seen = w->calls;
    if (w->o.spin_ns > 0) {
        uint64_t until = clock_ns() + w->o.spin_ns;
        pthread_mutex_unlock(&w->lock);
        while (__atomic_load_n(&w->calls, __ATOMIC_RELAXED) == seen && clock_ns() < until) pause_processor();
        pthread_mutex_lock(&w->lock);
    }
    while (w->calls == seen) pthread_cond_wait(&w->go, &w->lock);
}

/* There is something for the thread to see; the lock is held. */
static void call(srv_worker *w)
{
    __atomic_store_n(&w->calls, w->calls + 1, __ATOMIC_RELAXED);
    pthread_cond_signal(&w->go);
}

static void *worker_thread(void *arg)
{
    srv_worker *w = arg;
    err e = { 0 };
    uint64_t start = clock_ns();
    /* Here, not in open: the engine's CPU threads belong to the thread that asks. */
    err_code rc = w->o.prewarm ? srv_worker_prewarm(w, &e) : ERR_OK;
    pthread_mutex_lock(&w->lock);
    w->prewarm_ns = w->o.prewarm ? clock_ns() - start : 0;
    if (rc != ERR_OK) srv_worker_fail(w, &e);
    w->ready = true;
    pthread_cond_signal(&w->warm);
    for (;;) {
        reap(w);
        if (w->stopping) break;
        if (w->queue) pass(w);
        else if (srv_sessions_ended(&w->sessions) < 0) rest(w);
    }
    refuse_queued(w);
    pthread_mutex_unlock(&w->lock);
    if (w->dump.finish) w->dump.finish(w->dump.ctx);
    pthread_mutex_lock(&w->lock);
    w->ended = true;
    pthread_mutex_unlock(&w->lock);
    w->o.wake(w->o.ctx);
    return NULL;
}

/* ---- the other side ---- */

static err_code start(srv_worker *w, err *e)
{
    size_t row_bytes = (size_t)w->config.n_taps * (size_t)w->config.dim * sizeof(bf16);
    w->about = json_deep_copy(w->o.about);
    w->pos = mem_alloc(SRV_FRAME_MAX_BYTES / row_bytes + 1, sizeof *w->pos);
    if (!w->about || !w->pos) return err_set(e, ERR_NOMEM, "worker: no memory");
    if (pthread_create(&w->thread, NULL, worker_thread, w) != 0)
        return err_set(e, ERR_SYSTEM, "the worker's thread cannot be started");
    w->running = true;
    pthread_mutex_lock(&w->lock);
    while (!w->ready) pthread_cond_wait(&w->warm, &w->lock);
    err failed = w->failed;
    pthread_mutex_unlock(&w->lock);
    if (failed.code == ERR_OK) return ERR_OK;
    *e = failed;
    return err_wrap(e, "prewarm");
}

err_code srv_worker_open(const srv_worker_setup *s, srv_worker **out, err *e)
{
    *out = NULL;
    srv_worker *w = mem_alloc(1, sizeof *w);
    if (!w) return err_set(e, ERR_NOMEM, "worker: no memory");
    const eng_config *c = eng_config_of(s->engine);
    srv_welcome what = { .slots = s->slots, .positions = s->positions, .block = c->block, .dim = c->dim,
                         .n_taps = c->n_taps, .vocab = c->vocab, .window = c->window };
    snprintf(what.arm, sizeof what.arm, "%s", eng_options_of(s->engine)->arm->name);
    snprintf(what.checkpoint, sizeof what.checkpoint, "%s", s->checkpoint);
    w->o = *s;
    if (w->o.spin_ns == 0 && eng_device_of(s->engine, 0)) w->o.spin_ns = SRV_SPIN_NS;
    if (s->dump) w->dump = *s->dump;
    w->config = *c;
    w->started_ns = clock_ns();
    w->owned_bytes = eng_owned_bytes(s->engine);
    srv_sessions_init(&w->sessions, &what);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->go, NULL);
    pthread_cond_init(&w->warm, NULL);
    err_code rc = start(w, e);
    if (rc != ERR_OK) {
        srv_worker_close(w);
        return rc;
    }
    *out = w;
    return ERR_OK;
}

static void free_list(srv_work *x)
{
    for (srv_work *next; x; x = next) {
        next = x->next;
        srv_work_free(x);
    }
}

void srv_worker_close(srv_worker *w)
{
    if (!w) return;
    if (w->running) {
        srv_worker_stop(w);
        pthread_join(w->thread, NULL);
    }
    free_list(w->queue);
    free_list(w->done);
    pthread_cond_destroy(&w->warm);
    pthread_cond_destroy(&w->go);
    pthread_mutex_destroy(&w->lock);
    json_decref(w->about);
    free(w->pos);
    free(w);
}

double srv_worker_prewarm_ms(const srv_worker *w) { return (double)w->prewarm_ns * 1e-6; }
uint64_t srv_worker_spin_ns(const srv_worker *w) { return w->o.spin_ns; }

void srv_worker_put(srv_worker *w, srv_work *work)
{
    work->reply = (srv_reply){ .op = work->request.op, .id = work->request.id, .refused_slot = -1 };
    pthread_mutex_lock(&w->lock);
    if (w->stopping) {
        srv_refuse(&work->reply, SRV_REFUSED_CLOSING, -1, "the worker is shutting down");
        srv_worker_finish(w, work);
    } else {
        append(&w->queue, &w->queue_last, work);
        call(w);
    }
    pthread_mutex_unlock(&w->lock);
}

srv_work *srv_worker_take(srv_worker *w)
{
    pthread_mutex_lock(&w->lock);
    srv_work *first = w->done;
    w->done = w->done_last = NULL;
    pthread_mutex_unlock(&w->lock);
    return first;
}

void srv_worker_gone(srv_worker *w, uint64_t connection)
{
    pthread_mutex_lock(&w->lock);
    for (srv_work *x = w->queue; x; x = x->next)
        if (x->connection == connection) x->abandoned = true;
    srv_sessions_gone(&w->sessions, connection);
    call(w); /* there may be slots to forget */
    pthread_mutex_unlock(&w->lock);
}

void srv_worker_stop(srv_worker *w)
{
    pthread_mutex_lock(&w->lock);
    w->stopping = true;
    call(w);
    pthread_mutex_unlock(&w->lock);
}

bool srv_worker_ended(srv_worker *w)
{
    pthread_mutex_lock(&w->lock);
    bool ended = w->ended;
    pthread_mutex_unlock(&w->lock);
    return ended;
}
