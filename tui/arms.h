/* The arms: up to eight tapes side by side, and a model of every pair of them that somebody looked at.
 *
 * The first tape is what the others are compared with. One comparison works at a time: that of the pair on the screen,
 * then the others. */
#ifndef TUI_ARMS_H
#define TUI_ARMS_H

#include "tui/model.h"
#include "tui/work.h"

enum { TUI_ARMS_MAX = 8 };

typedef struct tui_arms {
    int n;
    const fmt_tape *tape[TUI_ARMS_MAX];                /* borrowed */
    tui_model *pair[TUI_ARMS_MAX][TUI_ARMS_MAX];       /* [i][j], i < j; NULL: not opened. One tape alone: [0][0] */
    bool threaded;   /* false: everything is compared when its pair is opened */
    bool paused;     /* by the user */
    tui_work *opening;
    struct tui_opening *opened;  /* what opening works at */
    err failed;      /* of the last pair that could not be opened or started */
} tui_arms;

/* Opens the pairs of the first tape, comparing nothing. ERR_NOMEM, ERR_FORMAT; arms then holds nothing. */
MUST_USE err_code tui_arms_init(tui_arms *arms, const fmt_tape *const *tapes, int n, err *e);
void tui_arms_fini(tui_arms *arms);
/* Starts comparing. threaded false: compares the pairs of the first tape here and now. ERR_SYSTEM, ERR_NOMEM. */
MUST_USE err_code tui_arms_start(tui_arms *arms, bool threaded, err *e);
/* Tapes i and j, in either order. NULL: it is being opened; ask again, or see failed. */
tui_model *tui_arms_pair(tui_arms *arms, int i, int j);
tui_model *tui_arms_first(const tui_arms *arms, int j); /* the pair of the first tape and j; of one tape alone j 0 */
/* Whose turn it is to compare; shown is first in the line. true: some comparison works. */
bool tui_arms_tick(tui_arms *arms, tui_model *shown);
/* Both hold the same tapes; see tui_model_adopt. */
void tui_arms_adopt(tui_arms *arms, tui_arms *old);
/* "native-packed": the arm's name in the tape's head, "?" without one. */
const char *tui_arms_name(const tui_arms *arms, int i);

#endif
