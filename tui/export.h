/* What is on the screen as a file; its ending says which form.
 *
 *   .npy          one arm's value as the tape has it: of the pane that Value shows alone, else of the suspect
 *                 (tui_suspect); with several arms its letter stands in the name and in the message
 *   .safetensors  the value of every arm that has it, as A, B ...; the metadata say which tape, arm and reference each is
 *   .csv          a screen's table; of Value all elements, a line each: index, every arm's number, B-A, ULPs
 *   .txt          the screen as it stands
 *
 * A file that is there is replaced only where '!' stands behind its name.
 * Bytes are collected at once and written in the background; the file appears under its name when it is whole. */
#ifndef TUI_EXPORT_H
#define TUI_EXPORT_H

#include "tui/app.h"

typedef struct tui_export tui_export;

/* A name for what is on the screen: "r1-s0.attn_out-B.npy", "rounds.csv", "program-r1.csv". */
void tui_export_name(tui_app *app, char *buf, size_t bytes);
/* ERR_ARG: another ending, nothing of this form is on the screen, or the file is there. ERR_NOMEM. ERR_IO comes later, as
 * a message. */
MUST_USE err_code tui_export_begin(tui_app *app, const char *path, err *e);
/* Says how a file went that is done. */
void tui_export_poll(tui_app *app);
void tui_export_end(tui_export *x); /* waits; NULL is a no-op */
/* Removes what a file on its way has left. Safe in a signal handler, for the end of the process. */
void tui_export_abandon(void);

#endif
