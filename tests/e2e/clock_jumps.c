/* Preloaded: the wall clock of a program jumps to another year each time it is asked, forwards and backwards. Clocks that
 * only count are left alone. For soak.py. */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static time_t jumped(time_t now)
{
    static const time_t YEAR = 31556952;
    static const int YEARS[] = { 0, 30, -30, 1, -1, 30, -10 }; /* to after 2038 and back */
    static atomic_uint asked;
    return now + YEARS[atomic_fetch_add(&asked, 1) % (sizeof YEARS / sizeof YEARS[0])] * YEAR;
}

int clock_gettime(clockid_t id, struct timespec *t)
{
    int rc = (int)syscall(SYS_clock_gettime, id, t);
    if (rc == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) t->tv_sec = jumped(t->tv_sec);
    return rc;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
    *t = (struct timeval){ now.tv_sec, now.tv_nsec / 1000 };
    return 0;
}

time_t time(time_t *out)
{
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
