/* The lines of Program: which values, in which order, and what is said of each. */
#ifndef TUI_PROGRAM_LINES_H
#define TUI_PROGRAM_LINES_H

#include "tui/app.h"
#include "tui/expr.h"

enum { PAIR_VERDICT, PAIR_VALUE, PAIR_OP, PAIR_TYPE, PAIR_DIFFER, PAIR_L2, PAIR_ULP, PAIR_BAR, PAIR_NOTE, PAIR_COUNT };
extern const tui_column TUI_PAIR_COLUMNS[PAIR_COUNT];
/* The first column is never drawn: sorted by it is program order, as with a pair. */
enum { LONE_ORDER, LONE_VALUE, LONE_OP, LONE_TYPE, LONE_MIN, LONE_MAX, LONE_RMS, LONE_NOTE, LONE_COUNT };
extern const tui_column TUI_LONE_COLUMNS[LONE_COUNT];

/* What filter expressions may ask of a value. */
enum { PROGRAM_VALUE, PROGRAM_OP, PROGRAM_STAGE, PROGRAM_VERDICT, PROGRAM_DIFFER, PROGRAM_L2, PROGRAM_EXCESS, PROGRAM_ULP,
       PROGRAM_MAX, PROGRAM_RMS, PROGRAM_FIELDS };
extern const tui_expr_field TUI_PROGRAM_FIELDS[PROGRAM_FIELDS];

typedef struct tui_program_line { int32_t value; /* -1: the heading of a group */ int32_t group; } tui_program_line;

typedef struct tui_program {
    tui_program_line *line;
    size_t capacity;
    tui_list list;
    char filter[64];
    tui_expr expr;
    int sorted;      /* column, 0: program order, by groups */
    bool rising;     /* figures start with the worst */
    uint32_t generation;
    int32_t request; /* whose lines they are, and whether its result was there */
    bool had_result;
} tui_program;

/* Makes the lines of the request at app->at. */
void tui_program_make(tui_app *app, tui_program *s);
/* The next column to sort by after this one; of a name: the column that has it in its title, -1: none. */
int tui_program_next_column(bool pair, int column);
int tui_program_named_column(bool pair, const char *name);
/* "stage 0", "head" into buf. */
void tui_program_group_text(int32_t group, char *buf, size_t bytes);

/* A value of the request's round, v NULL: not compared. */
typedef struct tui_program_of { tui_app *app; const cap_name *n; const rpl_value *v; } tui_program_of;
tui_field tui_program_field(void *of, int field);
/* What certificates say of it, else what does not fit the figures: why it was not compared, findings, agreement of ids and
 * tokens, how near the router's cut was. Into buf. */
void tui_program_note(const tui_program_of *of, char *buf, size_t bytes);
/* Its error as a bar, 0 ... 1: against its bound, by the certificates; else relative L2 from 1e-8 to 1. */
double tui_program_error(const tui_program_of *of);
/* "BF16 [10, 96]" into buf. */
void tui_program_type(tui_app *app, const cap_name *n, char *buf, size_t bytes);

#endif
