/* The worker: a thread that owns the engine, and the queue of requests in front of it.
 *
 * Inserts are done in the order they came; drafts that ask for the same n_out share a step, up to four slots, as far as no
 * request overtakes an earlier one of its slot. Whatever the engine says against a slot's rows poisons the slot; any other
 * failure poisons the worker, which then does nothing but say so. */
#ifndef SERVE_WORKER_H
#define SERVE_WORKER_H

#include "serve/dump.h"
#include "serve/histogram.h"
#include "serve/session.h"

/* A thread that sleeps takes some 50 us to wake, as long as an insert. With a device the worker's thread therefore stays
 * awake for so long after each piece of work, and so does the server's loop: at most that much of two processors each
 * time, 5 % of each at 50 rounds a second. On the CPU the steps need the processors more. */
#define SRV_SPIN_NS 1000000ull

/* A request on its way to the engine, and its reply on the way back. malloc'd; owned by whoever it was handed to last. */
typedef struct srv_work {
    srv_request request;
    uint64_t connection;
    uint64_t received_ns;
    uint8_t *frame;       /* what the request points into; NULL: nothing */
    uint64_t frame_bytes;
    srv_reply reply;
    bool abandoned;       /* its connection is gone */
    struct srv_work *next;
} srv_work;
void srv_work_free(srv_work *w); /* NULL is a no-op */

typedef struct srv_worker srv_worker;

typedef struct srv_worker_setup {
    eng_engine *engine;    /* with one slot more than these, the spare; the worker's thread's alone until close */
    const char *checkpoint; /* identity, in hex */
    const json_t *about;   /* identity and planned memory, shown by status; copied */
    int32_t slots;
    int64_t positions;
    bool prewarm;          /* run steps of every shape on the empty slots before the first request */
    uint64_t spin_ns;      /* how long the thread looks for work before it sleeps; 0: SRV_SPIN_NS with a device, else not */
    const srv_dump *dump;  /* NULL: nothing; copied */
    void (*wake)(void *ctx); /* any thread: there is something to take, or the worker has ended */
    void *ctx;
} srv_worker_setup;

/* Starts the thread and waits until it is warm. ERR_NOMEM, ERR_SYSTEM, and what the engine says. */
MUST_USE err_code srv_worker_open(const srv_worker_setup *s, srv_worker **out, err *e);
/* Stops, waits for the thread, frees what was not taken. NULL is a no-op. */
void srv_worker_close(srv_worker *w);
double srv_worker_prewarm_ms(const srv_worker *w);
uint64_t srv_worker_spin_ns(const srv_worker *w); /* as it was resolved: 0, it sleeps at once */

/* The rest may be called by one thread that is not the worker's. */

void srv_worker_put(srv_worker *w, srv_work *work);
/* Finished work in the order it was finished, linked by next; NULL: none. */
srv_work *srv_worker_take(srv_worker *w);
/* The connection is gone: its session is over, what it had queued is not done (and comes back from take, abandoned). */
void srv_worker_gone(srv_worker *w, uint64_t connection);
/* What status answers, apart from what the server knows. New reference; NULL: no memory. */
json_t *srv_worker_status(srv_worker *w);
/* Begins the end: the running step is finished, everything queued and everything put later is refused with "closing", dumps
 * are finished. */
void srv_worker_stop(srv_worker *w);
bool srv_worker_ended(srv_worker *w);

#endif
