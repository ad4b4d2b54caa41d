#include "base/interrupt.h"

#include <signal.h>

static volatile sig_atomic_t seen;

static void on_interrupt(int number)
{
    (void)number;
    seen = 1;
}

void interrupt_catch(void)
{
    static const int SIGNALS[] = { SIGINT, SIGTERM };
    const struct sigaction once = { .sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND | SA_RESTART };
    seen = 0;
    for (unsigned int i = 0; i < sizeof SIGNALS / sizeof SIGNALS[0]; i++) {
        struct sigaction now;
        if (sigaction(SIGNALS[i], 0, &now) != 0 || now.sa_handler == SIG_IGN) continue;
        (void)sigaction(SIGNALS[i], &once, 0);
    }
}

bool interrupt_seen(void) { return seen != 0; }
