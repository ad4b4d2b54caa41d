/* The terminal: shows a canvas, reads keys. The only module that knows curses.
 *
 * From open to close the terminal is in another state; it is put back by close, by ^Z while stopped, and by every signal
 * that ends the process, a crash included. */
#ifndef TUI_TERM_H
#define TUI_TERM_H

#include "tui/canvas.h"

typedef struct tui_term tui_term;

/* Standard input and output must be terminals. color: false draws with bold and reverse only. One at a time. on_ending is
 * called when a signal ends the process: only what is safe in a handler. ERR_SYSTEM names TERM when the terminal is not
 * known, or too simple. */
MUST_USE err_code tui_term_open(bool color, void (*on_ending)(void), tui_term **out, err *e);
void tui_term_close(tui_term *t); /* NULL is a no-op */
void tui_term_size(const tui_term *t, int32_t *width, int32_t *height);
void tui_term_show(tui_term *t, const tui_canvas *c);
/* Clicks and the wheel come as keys; off, the terminal keeps them. */
void tui_term_mouse(tui_term *t, bool on);
int32_t tui_term_click(const tui_term *t); /* the line of the last TUI_KEY_CLICK */
/* Puts text on the clipboard of terminals that take it (OSC 52); others show nothing. */
void tui_term_copy(tui_term *t, const char *text);
/* Waits for a key, at most timeout_ms (-1: as long as it takes). TUI_KEY_NONE: none came, or bytes that are no character.
 * TUI_KEY_RESIZE: another size. ERR_IO: the terminal is gone. */
MUST_USE err_code tui_term_key(tui_term *t, int timeout_ms, int32_t *key, err *e);

#endif
