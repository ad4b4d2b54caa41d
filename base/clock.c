#include "base/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { REDRAW_NS = 100000000 };

static uint64_t now(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t clock_ns(void) { return now(CLOCK_MONOTONIC); }
uint64_t clock_wall_ns(void) { return now(CLOCK_REALTIME); }

void progress_begin(progress *p, const char *what, uint64_t total, bool quiet)
{
    *p = (progress){ .what = what, .total = total, .start_ns = clock_ns(), .on = !quiet && isatty(STDERR_FILENO) };
}

void progress_add(progress *p, uint64_t n)
{
    p->done += n;
    if (!p->on) return;
    uint64_t t = clock_ns();
    if (t - p->last_ns < REDRAW_NS) return;
    p->last_ns = t;
    p->shown = true;
    double share = p->total ? (double)p->done / (double)p->total : 0, spent = (double)(t - p->start_ns) * 1e-9;
    fprintf(stderr, "\r\033[K%s %3.0f %%  %.0f s", p->what, 100 * share, spent);
    if (share > 0.02) fprintf(stderr, ", %.0f s left", spent * (1 / share - 1));
    fflush(stderr);
}

void progress_end(progress *p)
{
    if (p->shown) fprintf(stderr, "\r\033[K");
    p->shown = false;
}
