/* Monotonic time and the progress line of long work. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

uint64_t clock_ns(void);      /* CLOCK_MONOTONIC */
uint64_t clock_wall_ns(void); /* CLOCK_REALTIME */

/* One line on stderr, rewritten at most ten times a second and only on a terminal. */
typedef struct progress {
    const char *what; /* "hashing", borrowed */
    uint64_t total, done, last_ns, start_ns;
    bool shown, on;
} progress;
void progress_begin(progress *p, const char *what, uint64_t total, bool quiet);
void progress_add(progress *p, uint64_t n); /* not thread-safe */
void progress_end(progress *p);             /* clears the line */

#endif
