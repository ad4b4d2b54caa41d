/* A value with its payload, from one tape or both, ready to be paged through as a matrix [rows, cols]: cols is the last
 * dimension, rows all others. */
#ifndef TUI_LOADED_H
#define TUI_LOADED_H

#include "tui/model.h"

typedef struct tui_loaded {
    cap_value side[TUI_SIDES];    /* ranks joined */
    bool there[TUI_SIDES];
    char why[TUI_SIDES][160];     /* of a side that is on the tape and cannot be read; else "" */
    bool pair;                    /* both are there, of one dtype and shape */
    fmt_tensor tensor;            /* of A, or of B where only that is there; data NULL */
    int64_t rows, cols, blocks;   /* blocks of RPL_PROFILE_BLOCK columns in a row */
    rpl_metrics m;                /* of a pair */
    double largest;               /* of one side: its largest finite magnitude */
    rpl_cell *by_row, *by_block;  /* [rows], [rows, blocks]. Of one side: max_abs its largest finite magnitude, n_differ
                                     elements that are not finite */
    size_t rows_capacity, blocks_capacity;
} tui_loaded;

/* Reads both sides. Zero l before the first call; buffers are used again. What cannot be read is said in why. ERR_NOMEM. */
MUST_USE err_code tui_loaded_get(tui_loaded *l, const tui_model *m, const cap_name *n, err *e);
void tui_loaded_fini(tui_loaded *l);
bool tui_loaded_any(const tui_loaded *l); /* there is something to show */
int tui_loaded_first(const tui_loaded *l); /* A, or B where only that is there */

/* Flat index: of a pair the element with the largest |a-b|, of one side the largest magnitude. -1: all equal, or empty. */
int64_t tui_loaded_worst(const tui_loaded *l);
/* Of a pair the next element after `from` whose bits differ, of one side the next that is not finite. -1: none. */
int64_t tui_loaded_next(const tui_loaded *l, int64_t from);
/* Heat 0 … 8 of the cells in [row0, row1) x [block0, block1): of a pair the relative L2 by decades, 1e-7 and less … 1
 * and more; of one side the magnitude by powers of two below the value's largest. */
int tui_loaded_heat(const tui_loaded *l, int64_t row0, int64_t row1, int64_t block0, int64_t block1);
/* ULP distance of a pair's element; UINT64_MAX: NaN on one side. */
uint64_t tui_loaded_ulp(const tui_loaded *l, int64_t i);

/* An element's fields as text: "0x3f80  0 01111111 0000000"; integers have no fields. Returns buf. */
const char *tui_bits_text(fmt_dtype d, const void *data, int64_t i, char buf[96]);

#endif
