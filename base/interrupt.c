#include "base/interrupt.h"

#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>

/* Atomic, not sig_atomic_t: the handler runs on one thread while loops look on others. Lock-free, as a handler needs it. */
static atomic_bool seen;
_Static_assert(ATOMIC_BOOL_LOCK_FREE == 2, "a signal handler must not wait for a lock");

static void on_interrupt(int number)
{
    (void)number;
    atomic_store_explicit(&seen, true, memory_order_relaxed);
}

void interrupt_catch(void)
{
    static const int SIGNALS[] = { SIGINT, SIGTERM };
    const struct sigaction once = { .sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND | SA_RESTART };
    atomic_store_explicit(&seen, false, memory_order_relaxed);
    for (size_t i = 0; i < sizeof SIGNALS / sizeof SIGNALS[0]; i++) {
        struct sigaction now;
        if (sigaction(SIGNALS[i], NULL, &now) != 0 || now.sa_handler == SIG_IGN) continue;
        (void)sigaction(SIGNALS[i], &once, NULL);
    }
}

bool interrupt_seen(void) { return atomic_load_explicit(&seen, memory_order_relaxed); }
