/* Signals while a worker still loads. Nothing has been promised then, so nothing is worth waiting for: the files that were
 * made are removed, and the process ends by that signal (a shell shows 128 + its number).
 *
 * One worker in a process. srv_server_start puts the server's own handlers in place of these. */
#ifndef SERVE_EARLY_H
#define SERVE_EARLY_H

#include "base/err.h"

enum { SRV_SIGNALS = 3 };
extern const int SRV_SIGNAL[SRV_SIGNALS]; /* SIGTERM, SIGINT, SIGHUP: what ends a worker */

/* nohup, or a shell's background: whoever started us wants the signal to have no effect, and it keeps none. */
bool srv_signal_is_ignored(int number);

void srv_early_begin(void);
/* Between these a signal waits: a file is made and noted, or neither. Threads begun there inherit it. */
void srv_early_hold(void);
void srv_early_release(void);
/* path is removed when a signal comes; copied. Two of them, of less than 512 characters. */
void srv_early_file(const char *path);

#endif
