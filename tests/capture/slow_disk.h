/* A disk as slow as a test says: for executables that are linked with fmt_tape_flush wrapped. */
#ifndef TESTS_CAPTURE_SLOW_DISK_H
#define TESTS_CAPTURE_SLOW_DISK_H

#include "recorder_help.h"

#include <pthread.h>

static struct {
    pthread_mutex_t lock;
    pthread_cond_t change;
    bool closed;
    int waiting;
} disk = { .lock = PTHREAD_MUTEX_INITIALIZER, .change = PTHREAD_COND_INITIALIZER };

err_code __real_fmt_tape_flush(fmt_tape_writer *w, err *e);
err_code __wrap_fmt_tape_flush(fmt_tape_writer *w, err *e);

err_code __wrap_fmt_tape_flush(fmt_tape_writer *w, err *e)
{
    pthread_mutex_lock(&disk.lock);
    disk.waiting++;
    pthread_cond_broadcast(&disk.change);
    while (disk.closed) pthread_cond_wait(&disk.change, &disk.lock);
    disk.waiting--;
    pthread_mutex_unlock(&disk.lock);
    return __real_fmt_tape_flush(w, e);
}

static inline void disk_set(bool closed)
{
    pthread_mutex_lock(&disk.lock);
    disk.closed = closed;
    pthread_cond_broadcast(&disk.change);
    pthread_mutex_unlock(&disk.lock);
}

/* Until the writer stands before the closed disk. */
static inline void disk_wait(void)
{
    pthread_mutex_lock(&disk.lock);
    while (!disk.waiting) pthread_cond_wait(&disk.change, &disk.lock);
    pthread_mutex_unlock(&disk.lock);
}

static inline void *open_disk_later(void *ctx)
{
    (void)ctx;
    usleep(30000);
    disk_set(false);
    return NULL;
}

#endif
