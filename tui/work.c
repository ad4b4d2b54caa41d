#include "tui/work.h"

#include "base/mem.h"

#include <signal.h>

struct tui_work {
    pthread_t thread;
    bool threaded;
    tui_work_fn fn;
    void *ctx;
    atomic_bool cancel, done;
};

static atomic_int running;

int tui_work_running(void) { return atomic_load(&running); }

int tui_thread_start(pthread_t *thread, void *(*fn)(void *), void *ctx)
{
    static const int FAULTS[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT }; /* blocked, they would kill unhandled */
    sigset_t others, before;
    sigfillset(&others);
    for (size_t i = 0; i < COUNT_OF(FAULTS); i++) sigdelset(&others, FAULTS[i]);
    pthread_sigmask(SIG_SETMASK, &others, &before);
    int failure = pthread_create(thread, NULL, fn, ctx);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failure;
}

static void *work(void *of)
{
    tui_work *w = of;
    w->fn(w->ctx, &w->cancel);
    atomic_store(&w->done, true);
    atomic_fetch_sub(&running, 1);
    return NULL;
}

err_code tui_work_begin(bool threaded, tui_work_fn fn, void *ctx, tui_work **out, err *e)
{
    *out = NULL;
    tui_work *w = mem_alloc(1, sizeof *w);
    if (!w) return err_set(e, ERR_NOMEM, "no memory for the work");
    w->fn = fn;
    w->ctx = ctx;
    w->threaded = threaded;
    atomic_fetch_add(&running, 1);
    int failure = threaded ? tui_thread_start(&w->thread, work, w) : 0;
    if (failure) {
        atomic_fetch_sub(&running, 1);
        free(w);
        return err_set(e, ERR_SYSTEM, "a thread cannot be started: %s", strerror(failure));
    }
    if (!threaded) work(w);
    *out = w;
    return ERR_OK;
}

bool tui_work_done(const tui_work *w) { return !w || atomic_load(&w->done); }

void tui_work_cancel(tui_work *w)
{
    if (w) atomic_store(&w->cancel, true);
}

void tui_work_end(tui_work *w)
{
    if (!w) return;
    if (w->threaded) pthread_join(w->thread, NULL);
    free(w);
}
