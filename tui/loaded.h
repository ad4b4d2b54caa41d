/* A value with its payload, from one tape or both, ready to be paged through as a matrix [rows, cols]: cols is the last
 * dimension, rows all others. */
#ifndef TUI_LOADED_H
#define TUI_LOADED_H

#include "formats/number.h"
#include "tui/arms.h"

enum { TUI_BINS = 64, TUI_DECADES = 20 };

typedef struct tui_loaded {
    cap_value side[TUI_SIDES];    /* ranks joined */
    cap_value more[TUI_ARMS_MAX]; /* the arms beside them, in their order */
    bool more_there[TUI_ARMS_MAX];/* of A's dtype and shape */
    int n_more;
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
    double lowest, highest;       /* finite elements of both sides: the ends of the bins */
    int64_t bin[TUI_SIDES][TUI_BINS];
    int64_t decade[TUI_DECADES];  /* of a pair: elements by |a-b|; see tui_decade_text */
} tui_loaded;
/* The first decade holds what is equal, the last one what is not finite. */
const char *tui_decade_text(int decade, char buf[24]);

/* Reads the sides of m, and more[n_more]. Zero l before the first call; buffers are used again. What cannot be read is said
 * in why. May run beside other users of m and the tapes. ERR_NOMEM. */
MUST_USE err_code tui_loaded_get(tui_loaded *l, const tui_model *m, const fmt_tape *const *more, int n_more,
                                 const cap_name *n, err *e);
void tui_loaded_fini(tui_loaded *l);
bool tui_loaded_any(const tui_loaded *l); /* there is something to show */
int tui_loaded_first(const tui_loaded *l); /* A, or B where only that is there */
bool tui_loaded_shows(const tui_loaded *l, int side); /* both of a pair, else the first */
bool tui_loaded_differs(const tui_loaded *l, int64_t i); /* of a pair: the bits of element i */
/* The same dtype and shape. */
bool tui_same_shape(const fmt_tensor *a, const fmt_tensor *b);

/* Flat index: of a pair the element with the largest |a-b|, of one side the largest magnitude. -1: all equal, or empty. */
int64_t tui_loaded_worst(const tui_loaded *l);
/* Of a pair the next element after `from` whose bits differ, of one side the next that is not finite; previous: before it.
 * -1: none. */
int64_t tui_loaded_next(const tui_loaded *l, int64_t from);
int64_t tui_loaded_previous(const tui_loaded *l, int64_t from);
/* Heat 0 … 8 of the cells in [row0, row1) x [block0, block1): of a pair the relative L2 by decades, 1e-7 and less … 1
 * and more; of one side the magnitude by powers of two below the value's largest. */
int tui_loaded_heat(const tui_loaded *l, int64_t row0, int64_t row1, int64_t block0, int64_t block1);
/* ULP distance of a pair's element; UINT64_MAX: NaN on one side. */
uint64_t tui_loaded_ulp(const tui_loaded *l, int64_t i);

/* A QDQ'd group of 32: its codes and its scale byte, if code times scale gives every element (BF16 only). false: it does
 * not, or all are zero. */
bool tui_qdq_read(fmt_dtype d, const void *data, int64_t first, uint8_t codes[FMT_QDQ_GROUP], uint8_t *scale);
/* "code 0x3a  0 0111 010  scale byte 122, 2^-5" into buf; returns buf. */
const char *tui_qdq_text(uint8_t code, uint8_t scale, char buf[96]);

/* An element's fields as text: "0x3f80  0 01111111 0000000"; integers have no fields. Returns buf. */
const char *tui_bits_text(fmt_dtype d, const void *data, int64_t i, char buf[96]);

#endif
