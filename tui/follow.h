/* The tapes of a session, and looking at them again while they grow.
 *
 * A tape must not be read while it is polled, so what grows is a second set of handles, polled and arranged in the
 * background; when it holds new rounds it becomes the set that is shown, and the old one is the next to grow. It ends when
 * all tapes are finished, or one is cut, gone, or another file. */
#ifndef TUI_FOLLOW_H
#define TUI_FOLLOW_H

#include "tui/app.h"

#include <sys/types.h>
#include <time.h>

/* A file as it was when it was opened, or polled. */
typedef struct tui_file { dev_t device; ino_t inode; off_t bytes; struct timespec changed; } tui_file;

typedef struct tui_tapes {
    const char *path[TUI_ARMS_MAX]; /* borrowed */
    tui_file file[TUI_ARMS_MAX];    /* of the paths */
    int n_paths;
    fmt_tape *tape[TUI_ARMS_MAX];   /* those of the paths first, then others that the caller put here */
    int n;
    tui_arms arms;                  /* not started */
} tui_tapes;

/* Opens the tapes that are not open; PATH.part where only that is there. What is open stays so on error. */
MUST_USE err_code tui_tapes_open_files(tui_tapes *t, err *e);
/* The same, and makes the arms. */
MUST_USE err_code tui_tapes_open(tui_tapes *t, err *e);
/* After an error: the tape may still come, its name being free but for a .part. */
bool tui_tapes_may_come(const tui_tapes *t);
/* ERR_INPUT: a file is shorter than it was, or a finished one was written to. Tapes are mapped, so reading on would end the
 * process; asked before each step, this says so first, as a rule. */
MUST_USE err_code tui_tapes_check(const tui_tapes *t, err *e);
void tui_tapes_close(tui_tapes *t);

typedef struct tui_follow tui_follow;
/* now: the tapes that are shown, whose paths are borrowed. grows: false for replays. ERR_NOMEM. */
MUST_USE err_code tui_follow_open(const tui_tapes *now, bool grows, tui_follow **out, err *e);
void tui_follow_close(tui_follow *f); /* waits; NULL is a no-op */
/* Does the next step, when app wants to follow. Swaps now and its own set when there is something new and nothing works for
 * the screens. true: to be called again soon. f may be NULL. */
bool tui_follow_tick(tui_follow *f, tui_app *app, tui_tapes *now);

#endif
