#include "serve/early.h"

#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

enum { FILES_MAX = 2, PATH_BYTES = 512 };

const int SRV_SIGNAL[SRV_SIGNALS] = { SIGTERM, SIGINT, SIGHUP };

static char file[FILES_MAX][PATH_BYTES];
static atomic_int n_files; /* raised when the name is whole: the handler reads no other */

/* Only what is safe in a handler. The default is in force again when it returns, and the signal comes once more. */
static void on_signal(int number)
{
    for (int i = 0; i < atomic_load(&n_files); i++) (void)unlink(file[i]);
    (void)raise(number);
}

bool srv_signal_is_ignored(int number)
{
    struct sigaction now;
    return sigaction(number, NULL, &now) == 0 && now.sa_handler == SIG_IGN;
}

void srv_early_begin(void)
{
    struct sigaction act = { .sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND };
    sigemptyset(&act.sa_mask);
    for (int i = 0; i < SRV_SIGNALS; i++)
        if (!srv_signal_is_ignored(SRV_SIGNAL[i])) (void)sigaction(SRV_SIGNAL[i], &act, NULL);
}

static void mask(int how)
{
    sigset_t set;
    sigemptyset(&set);
    for (int i = 0; i < SRV_SIGNALS; i++) sigaddset(&set, SRV_SIGNAL[i]);
    (void)pthread_sigmask(how, &set, NULL);
}

void srv_early_hold(void) { mask(SIG_BLOCK); }
void srv_early_release(void) { mask(SIG_UNBLOCK); }

void srv_early_file(const char *path)
{
    int at = atomic_load(&n_files);
    CHECK(at < FILES_MAX && strlen(path) < PATH_BYTES);
    memcpy(file[at], path, strlen(path) + 1);
    atomic_store(&n_files, at + 1);
}
