/* Filter expressions: excess>4 && stage==0.
 *
 *   either   a || b        both   a && b        not   !a        ( a )
 *   compare  FIELD == != < <= > >= VALUE; FIELD ~ TEXT: holds the text, whatever the case of letters
 *   VALUE    a number, a word, or "a text"
 *   FIELD    alone: it is there, and neither 0 nor empty
 *
 * A field that has no figure in a line compares false with everything, also with !=. */
#ifndef TUI_EXPR_H
#define TUI_EXPR_H

#include "base/err.h"

enum { TUI_EXPR_NODES = 64, TUI_EXPR_TEXT = 128 };

/* What an expression may ask. */
typedef struct tui_expr_field { const char *name; bool is_text; } tui_expr_field;
/* What a field holds in a line: a number (NaN: none), or a text (NULL: it is a number). */
typedef struct tui_field { double number; const char *text; } tui_field;

typedef enum tui_expr_op {
    TUI_EXPR_OR, TUI_EXPR_AND, TUI_EXPR_NOT, TUI_EXPR_EQ, TUI_EXPR_NE, TUI_EXPR_LE, TUI_EXPR_GE, TUI_EXPR_LT, TUI_EXPR_GT,
    TUI_EXPR_HAS, TUI_EXPR_THERE,
} tui_expr_op;
typedef struct tui_expr_node {
    tui_expr_op op;
    int left, right; /* nodes; of a comparison left is the field */
    double number;   /* the value; NaN: it is none */
    int text;        /* the value as it is written, into words; -1: THERE has none */
} tui_expr_node;
typedef struct tui_expr {
    int n, root;       /* n 0: no expression, which every line passes */
    tui_expr_node node[TUI_EXPR_NODES];
    char source[TUI_EXPR_TEXT], words[TUI_EXPR_TEXT * 2];
} tui_expr;

/* fields [n]: numbers are compared with numbers alone. ERR_ARG says what was found where, and names the fields; *out is
 * then no expression. */
MUST_USE err_code tui_expr_parse(const char *text, const tui_expr_field *fields, int n, tui_expr *out, err *e);
/* get gives field i of the line. */
bool tui_expr_passes(const tui_expr *x, tui_field (*get)(void *line, int field), void *line);

#endif
