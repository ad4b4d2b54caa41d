/* A text that grows, ended by 0. Zero before use; a failed allocation is remembered and nothing is added after it. */
#ifndef TUI_TEXT_H
#define TUI_TEXT_H

#include "base/err.h"

#include <stddef.h>

typedef struct tui_text { char *text; size_t n, capacity; bool failed; } tui_text;

void tui_text_add(tui_text *t, const char *bytes, size_t n);
void tui_text_addf(tui_text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* A field of a line of CSV: quoted where it must be, then a comma, or a newline behind the last. */
void tui_text_csv(tui_text *t, const char *field, bool last);
/* Adds a whole file, or what comes out of a pipe. ERR_INPUT: cannot be opened, or longer than max_bytes. ERR_IO.
 * ERR_NOMEM. */
MUST_USE err_code tui_text_read(tui_text *t, const char *path, size_t max_bytes, err *e);
void tui_text_fini(tui_text *t);

#endif
