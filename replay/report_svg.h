/* The pictures of a report: heat maps and bars as SVG in HTML. Every cell has a glyph beside its colour, and a tooltip.
 * Private to report*.c. */
#ifndef REPLAY_REPORT_SVG_H
#define REPLAY_REPORT_SVG_H

#include "base/err.h"

#include <stddef.h>

/* Kinds of cells: class of the style sheet, glyph, what it says in the legend. */
#define RPL_TONE_LIST(X)                                                                          \
    X(EQUAL, "good", "=", "equal") X(FLIP, "mild", "~", "flip: an order of sums explains it")     \
    X(DIFFERS, "bad", "X", "differs") X(UNJUDGED, "open", "?", "could not be judged")             \
    X(ABSENT, "none", "-", "absent") X(UNSTABLE, "worst", "!", "differs from itself, or a rank")  \
    X(D0, "d0", "0", "equal") X(D1, "d1", "1", "below 0.1 of the bound") X(D2, "d2", "2", "below 0.5") \
    X(D3, "d3", "3", "within the bound") X(D4, "bad", "X", "illegal")                             \
    X(P0, "d0", "", "none illegal") X(P1, "bad", "%", "so many percent of the elements illegal")  \
    X(RIGHT, "good", "=", "first origin is the op") X(ELSEWHERE, "open", "?", "named elsewhere")  \
    X(MISSED, "bad", "X", "missed") X(ADMISSIBLE, "mild", "~", "admissible")                      \
    X(ABSORBED, "d1", "o", "absorbed") X(IDLE, "none", "-", "no occasion")                        \
    X(S0, "d0", "", "0 %") X(S1, "d1", "", "to 25 %") X(S2, "d2", "", "to 50 %")                  \
    X(S3, "d3", "", "to 75 %") X(S4, "d4", "", "above") X(BLANK, "blank", "", "")
#define X(name, style, glyph, text) RPL_TONE_##name,
typedef enum rpl_tone { RPL_TONE_LIST(X) RPL_TONE_COUNT } rpl_tone;
#undef X

enum { RPL_HEAT_TEXT = 240 };

typedef struct rpl_heat {
    const char *title;
    int rows, columns;
    void *ctx;
    const char *(*row)(void *ctx, int row);       /* label */
    const char *(*column)(void *ctx, int column);
    /* The cell: what a tooltip says behind "row, column: ", and a text instead of the tone's glyph ("" the glyph). */
    rpl_tone (*cell)(void *ctx, int row, int column, char tip[RPL_HEAT_TEXT], char glyph[16]);
    int cell_width;                               /* pixels; 0: 18 */
    const char *note;                             /* what a cell is of, and what is not shown; before the legend */
} rpl_heat;

/* Map and legend; nothing when it has no cell. */
void rpl_svg_heat(const rpl_heat *h, FILE *out);

typedef struct rpl_bar {
    char label[64];
    double value, control, limit; /* control NaN: none */
    bool fails, control_fails;
} rpl_bar;
/* Bars of value and control in parts of the limit, which is a line; on a scale that grows by powers of ten. */
void rpl_svg_bars(const rpl_bar *bar, int n, bool controls, FILE *out);

/* The style sheet of the pictures and the page. */
extern const char RPL_REPORT_STYLE[];

#endif
