/* An arm by replay: a tape that exists only while it is looked at. */
#ifndef TUI_AGAINST_H
#define TUI_AGAINST_H

#include "formats/tape.h"

/* Replays t by arm ("mirror", or a file of an arm) with the checkpoint into a file without a name, in $TMPDIR or /tmp:
 * nothing is left of it, however the session ends. n_threads 0: all; quiet: no line of progress. *out is NULL on error.
 * ERR_ARG: no such arm. ERR_IDENTITY: another checkpoint. ERR_SYSTEM, ERR_IO, ERR_NOMEM. */
MUST_USE err_code tui_against_open(const fmt_tape *t, const char *arm, const char *checkpoint, int64_t n_threads,
                                   bool quiet, fmt_tape **out, err *e);

#endif
