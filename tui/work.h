/* Work off the drawing thread: a value that is read, a command that runs, a file that is written.
 *
 * The owner begins it, looks now and then whether it is done, and ends it. Between done and end the result is the owner's;
 * before, it is the work's. */
#ifndef TUI_WORK_H
#define TUI_WORK_H

#include "base/err.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct tui_work tui_work;
/* cancel: set when nobody waits for the result any more. */
typedef void (*tui_work_fn)(void *ctx, const atomic_bool *cancel);

/* threaded false: runs it at once, for recorded keys. *out is NULL on error. ERR_SYSTEM, ERR_NOMEM. */
MUST_USE err_code tui_work_begin(bool threaded, tui_work_fn fn, void *ctx, tui_work **out, err *e);
bool tui_work_done(const tui_work *w); /* NULL: true */
void tui_work_cancel(tui_work *w);     /* NULL is a no-op */
/* Waits for it if it is not done. NULL is a no-op. */
void tui_work_end(tui_work *w);
/* How many are not done, in the process: the loop draws again while there are any. */
int tui_work_running(void);

/* A thread that takes no signals but faults: the others are for the thread that owns the terminal. Returns errno's. */
int tui_thread_start(pthread_t *thread, void *(*fn)(void *), void *ctx);

#endif
