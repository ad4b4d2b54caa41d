/* Tables and lists: what screens of lines have in common. */
#ifndef TUI_TABLE_H
#define TUI_TABLE_H

#include "tui/canvas.h"
#include "tui/keys.h"

#include <stdint.h>

/* A column. Those of low rank go first when the screen is narrow; what is left over goes to those that may be wider. */
typedef struct tui_column {
    const char *title;
    int32_t width, width_max; /* columns of the screen, one blank after each not included; 0: not there */
    int32_t rank;             /* 0 never goes; higher ones go earlier */
    bool right;               /* numbers: against the right edge */
    bool pair;                /* only where two tapes are compared */
} tui_column;

enum { TUI_COLUMNS_MAX = 16 };
typedef struct tui_layout { int32_t x[TUI_COLUMNS_MAX], width[TUI_COLUMNS_MAX]; /* width 0: not shown */ } tui_layout;

tui_layout tui_layout_of(const tui_column *column, int n, int32_t x, int32_t width, bool pair);
/* The line of titles. sorted: index of the column with an arrow, -1: none. */
void tui_table_head(tui_canvas *c, const tui_column *column, int n, const tui_layout *l, int32_t y, int sorted,
                    bool falling);
/* One cell of column i. */
void tui_table_put(tui_canvas *c, const tui_column *column, int i, const tui_layout *l, int32_t y, int style,
                   const char *text);

/* A cursor in a list, and the part of it that is shown. */
typedef struct tui_list { int32_t n, cursor, top; } tui_list;
/* Moves the cursor; false: action is no movement. page: lines shown. */
bool tui_list_move(tui_list *l, tui_action action, int32_t page);
/* Brings cursor and top inside [0, n) and to each other. */
void tui_list_fit(tui_list *l, int32_t page);

/* Numbers as people read them, in at most width columns (8 or more keeps every double). */
const char *tui_number(double v, int width, char buf[32]);
/* Counts: "999", "12k", "3M"; "NaN" for UINT64_MAX, as ULP distances have it. */
const char *tui_count(uint64_t v, int width, char buf[32]);
/* text lies in line, whatever the case of letters. */
bool tui_contains(const char *line, const char *text);

#endif
