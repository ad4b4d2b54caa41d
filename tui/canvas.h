/* The canvas: a grid of glyphs with styles that screens draw on. No terminal is needed to make one.
 *
 * Screens write UTF-8; a canvas in ASCII mode turns every glyph into its ASCII form, so no screen asks which mode it is in.
 * Everything outside the grid is clipped. A glyph is one column wide: others, and control characters, show as '?'. */
#ifndef TUI_CANVAS_H
#define TUI_CANVAS_H

#include "base/err.h"

#include <stddef.h>

typedef enum tui_style {
    TUI_PLAIN, TUI_DIM, TUI_STRONG,
    TUI_TITLE,                                              /* the first line */
    TUI_KEYS,                                               /* the last line  */
    TUI_ORIGIN, TUI_INHERITED, TUI_DIFFERS, TUI_EQUAL,      /* each has a glyph as well: colour is never alone */
    TUI_WARN,
    TUI_STYLE_COUNT,
    TUI_SELECTED = 0x80,                                    /* or'ed to any of them: shown reversed */
} tui_style;

typedef struct tui_cell { uint32_t glyph; uint8_t style; } tui_cell;

typedef struct tui_canvas {
    int32_t width, height;
    bool ascii;
    tui_cell *cell; /* [height, width], owned */
    size_t capacity;
} tui_canvas;

typedef struct tui_rect { int32_t x, y, width, height; } tui_rect;

/* Zero a canvas before its first resize. The contents are blank afterwards. ERR_NOMEM. */
MUST_USE err_code tui_canvas_resize(tui_canvas *c, int32_t width, int32_t height, err *e);
void tui_canvas_fini(tui_canvas *c);
void tui_canvas_clear(tui_canvas *c);

/* Text from (x, y) in at most width columns; longer text ends in "…". Returns the columns used, cut ones included. */
int32_t tui_put(tui_canvas *c, int32_t x, int32_t y, int32_t width, int style, const char *text);
int32_t tui_putf(tui_canvas *c, int32_t x, int32_t y, int32_t width, int style, const char *fmt, ...)
    __attribute__((format(printf, 6, 7)));
/* The same against the right edge of the width columns. */
void tui_put_right(tui_canvas *c, int32_t x, int32_t y, int32_t width, int style, const char *text);
/* Text over as many lines as it needs, from the rectangle's first one on; what it has no room for is left out. */
void tui_put_lines(tui_canvas *c, tui_rect r, int style, const char *text);
/* Lines that text takes in this width, at least one. */
int32_t tui_lines_of(const char *text, int32_t width);
int32_t tui_columns(const char *text); /* on one line */
/* Takes one glyph off *p: '?' for one byte that begins none, and for a glyph that is not one column wide. */
uint32_t tui_next_glyph(const char **p);
/* The text past its first n glyphs. */
const char *tui_skip(const char *text, int32_t n);
/* One glyph. */
void tui_glyph(tui_canvas *c, int32_t x, int32_t y, int style, uint32_t glyph);
/* share 0 … 1 of width columns as a line, in half columns; anything above 0 shows. */
void tui_bar(tui_canvas *c, int32_t x, int32_t y, int32_t width, int style, double share);
/* A frame around a blanked rectangle, with a title in its upper edge (NULL: none). */
void tui_box(tui_canvas *c, tui_rect r, int style, const char *title);
/* Or's style into the cells of a rectangle: TUI_SELECTED. */
void tui_mark(tui_canvas *c, tui_rect r, int style);
/* Level 0 … 8 of a heat strip: '·' for 0, then rising blocks. */
enum { TUI_HEAT_LEVELS = 8 };
uint32_t tui_heat_glyph(int level);

/* The grid as text: height lines, blanks at their ends removed, each with a newline. malloc'd; NULL: no memory. */
char *tui_canvas_text(const tui_canvas *c);
/* UTF-8 of one glyph into buf (5 bytes, ended by 0); returns its bytes. */
int tui_utf8(uint32_t glyph, char buf[5]);

#endif
