/* The lines of Rounds: which requests, in which order, and what stands in their columns. */
#ifndef TUI_ROUNDS_LINES_H
#define TUI_ROUNDS_LINES_H

#include "tui/app.h"
#include "tui/expr.h"

typedef enum tui_rounds_column {
    ROUNDS_C_VERDICT, ROUNDS_C_ROUND, ROUNDS_C_SLOT, ROUNDS_C_ARM, ROUNDS_C_ROWS, ROUNDS_C_SAME, ROUNDS_C_DRAFTS_A,
    ROUNDS_C_DRAFTS_B, ROUNDS_C_ORIGIN, ROUNDS_C_WORST, ROUNDS_C_EXCESS, ROUNDS_C_KL, ROUNDS_C_ARMS, ROUNDS_C_JUDGED,
    ROUNDS_C_COUNT,
} tui_rounds_column;
extern const tui_column TUI_ROUNDS_COLUMNS[ROUNDS_C_COUNT];

/* What filter expressions may ask. */
enum {
    ROUNDS_F_ROUND, ROUNDS_F_SLOT, ROUNDS_F_P, ROUNDS_F_SAME, ROUNDS_F_L2, ROUNDS_F_EXCESS, ROUNDS_F_KL, ROUNDS_F_STAGE,
    ROUNDS_F_ORIGIN, ROUNDS_F_VERDICT, ROUNDS_F_MARKED, ROUNDS_F_COUNT,
};
extern const tui_expr_field TUI_ROUNDS_FIELDS[ROUNDS_F_COUNT];

typedef struct tui_rounds {
    int32_t *line;   /* requests shown, in the order shown */
    size_t capacity;
    tui_list list;
    int sorted;      /* column; ROUND is the tape's own order */
    bool falling;
    int32_t n_done;  /* rounds compared when the lines were made: sorting and filtering depend on it */
    char filter[64];
    tui_expr expr;
    int32_t hidden;  /* the request that the cursor was on before no line passed */
} tui_rounds;

/* Makes the lines again; the cursor stays on app->at, and without a line nothing is chosen there. */
void tui_rounds_make(tui_app *app, tui_rounds *s);
/* A cell of a line into buf; tokens as far as they have been read. */
void tui_rounds_cell(tui_app *app, const tui_request *r, tui_rounds_column c, char *buf, size_t bytes);
/* "103 18 873", "-" for none, into buf. */
void tui_rounds_drafts(const tui_request *r, int side, char *buf, size_t bytes);
/* Name of a value of the request's round; "" for -1. */
const char *tui_rounds_value(tui_app *app, const tui_request *r, int32_t value);

#endif
