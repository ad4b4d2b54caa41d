/* The worker's insides, for its own files: worker.c the queue and the thread, worker_step.c the engine's steps,
 * worker_status.c what it tells of itself. */
#ifndef SERVE_WORKER_STATE_H
#define SERVE_WORKER_STATE_H

#include "serve/stats.h"
#include "serve/worker.h"

#include <pthread.h>

struct srv_worker {
    srv_worker_setup o;
    srv_dump dump;         /* no hooks: nothing is dumped */
    eng_config config;
    uint64_t started_ns, owned_bytes, prewarm_ns;
    json_t *about;
    int32_t *pos;          /* positions of one insert; a frame holds no more rows */
    pthread_t thread;
    bool running;          /* the thread exists */

    pthread_mutex_t lock;  /* guards everything below; never held while the engine works */
    pthread_cond_t go, warm;
    uint64_t calls;        /* of the other side, so far; the thread that spins reads it without the lock */
    srv_work *queue, *queue_last; /* only the worker's thread unlinks */
    srv_work *done, *done_last;
    srv_sessions sessions;
    srv_stats stats;
    err failed;            /* of the whole worker; the first */
    int64_t rounds;        /* draft steps begun */
    uint64_t busy_since_ns; /* of the engine's work; 0: it rests */
    bool ready, stopping, ended;
};

/* ---- the lock is held by whoever calls these; the steps let go of it while the engine works ---- */

void srv_worker_finish(srv_worker *w, srv_work *x); /* hands x back to the other side */
/* Between these the lock is not held, and status tells how long the engine has been at it. */
void srv_worker_begin_busy(srv_worker *w, uint64_t now_ns);
void srv_worker_end_busy(srv_worker *w);
/* Whether x may be looked at: its connection is there, the worker is well. Else its reply is filled. */
bool srv_worker_may_begin(srv_worker *w, srv_work *x);
void srv_worker_fail(srv_worker *w, const err *why); /* poisons the worker; the first reason stays */

/* Drafts that share a step. */
typedef struct srv_group {
    int32_t n, batch, n_out;
    srv_work *work[ENG_BATCH_MAX];
} srv_group;

/* Fills x's reply; does not finish x. */
void srv_worker_insert(srv_worker *w, srv_work *x);
/* Whether d may join; then srv_worker_join. */
bool srv_worker_joins(const srv_group *g, const srv_draft *d);
void srv_worker_join(srv_group *g, srv_work *x);
/* Finishes all of g, with or without a step. */
void srv_worker_draft(srv_worker *w, srv_group *g);
/* Graphs of what the slots can ask for, then steps on the empty slots, whose rows are forgotten again, as is what the
 * dump's hooks kept of them: the first request then finds graphs, threads, pages and caches as the later ones do. Before
 * the thread serves anything; without the lock. */
MUST_USE err_code srv_worker_prewarm(srv_worker *w, err *e);

#endif
