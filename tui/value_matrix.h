/* What Value shows, and its two pictures: the matrix of elements, and the strip that says where they differ. */
#ifndef TUI_VALUE_MATRIX_H
#define TUI_VALUE_MATRIX_H

#include "tui/app.h"
#include "tui/loaded.h"
#include "tui/value_panel.h"

/* What a column of figures shows. ALL: all side by side; MORE + i: the i-th arm beside the two. */
typedef enum tui_pane {
    PANE_ALL, PANE_A, PANE_B, PANE_DIFFERENCE, PANE_ULP, PANE_MORE, PANES_MAX = PANE_MORE + TUI_ARMS_MAX,
} tui_pane;

/* A value on its way: the work's until it is done. */
typedef struct tui_coming {
    tui_loaded data;
    const tui_model *model;
    const fmt_tape *more[TUI_ARMS_MAX];
    int n_more;
    const cap_name *name;
    err e;
    bool good;
} tui_coming;

typedef struct tui_value {
    tui_loaded data;
    tui_coming coming;
    tui_work *work;
    bool is_loaded;
    int32_t request, index;   /* what is loaded, or coming: as in app->at */
    uint32_t generation;
    char letter[TUI_ARMS_MAX]; /* of the arms beside */
    tui_list rows;            /* row of the cursor, and the rows shown */
    int64_t col, left, shown_cols;
    tui_pane pane;
    tui_panel panel;
    bool bits;
} tui_value;

static inline int64_t tui_value_element(const tui_value *s) { return s->rows.cursor * s->data.cols + s->col; }

/* Element i as pane p has it, in width columns. */
const char *tui_value_cell(const tui_value *s, tui_pane p, int64_t i, int width, char buf[32]);
/* "2,3": the row's place in all dimensions but the last. */
void tui_value_row(const tui_value *s, int64_t row, char buf[128]);
/* All panes, then each alone, and so on. */
void tui_value_next_pane(tui_value *s);
/* Both fit the rows and columns that they show to r and to the cursor. */
void tui_value_matrix(tui_app *app, tui_value *s, tui_rect r);
void tui_value_strip(tui_app *app, const tui_value *s, tui_rect r);

#endif
