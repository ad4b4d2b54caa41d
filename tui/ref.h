/* Stable references: "TAPE:ROUND/SLOT/VALUE[INDEX]", as show prints and takes them. */
#ifndef TUI_REF_H
#define TUI_REF_H

#include "formats/tape.h"

typedef struct tui_ref {
    int32_t round;
    bool has_slot;
    int32_t slot;                      /* FMT_TAPE_NO_SLOT: "-" */
    char name[FMT_TAPE_NAME_BYTES];    /* "": none */
    int32_t n_index;                   /* 0: none */
    int64_t index[FMT_DIMS_MAX];
} tui_ref;

/* "[TAPE:]ROUND[/SLOT[/VALUE[INDEX]]]"; the tape's name is not looked at, and "@rRANK" is skipped: values are shown with
 * their ranks joined. ERR_ARG. */
MUST_USE err_code tui_ref_parse(const char *text, tui_ref *out, err *e);
/* "3,17" or "[3, 17]": 1 … FMT_DIMS_MAX numbers. false: not that. */
bool tui_index_parse(const char *text, int64_t index[FMT_DIMS_MAX], int32_t *n);
/* Flat index of n numbers in a shape (one number: already flat). false: outside. */
bool tui_index_flat(const fmt_tensor *t, const int64_t *index, int32_t n, int64_t *flat);
/* "[3, 17]" into buf; returns buf. */
const char *tui_index_text(const fmt_tensor *t, int64_t flat, char buf[128]);

#endif
