/* Stable references to what a tape holds: "TAPE:ROUND/SLOT/VALUE[@rRANK][INDEX]", as show prints them. */
#ifndef CAPTURE_REFERENCE_H
#define CAPTURE_REFERENCE_H

#include "formats/tape.h"

typedef struct cap_reference {
    char *tape;                /* owned; NULL: none was given */
    char *value;               /* owned */
    int32_t round, slot, rank; /* FMT_TAPE_NO_SLOT: "-"; FMT_TAPE_NO_RANK: none was given */
    bool indexed;
    int n_index;
    int64_t index[FMT_DIMS_MAX];
} cap_reference;

/* The rank and the index may come in either order, or not at all; a tape's name may hold colons. *out is zeroed first, and
 * cap_reference_fini is right for it whatever happened. ERR_ARG: not of that form; ERR_NOMEM. */
MUST_USE err_code cap_reference_parse(const char *text, cap_reference *out, err *e);
void cap_reference_fini(cap_reference *r);

/* A tape and a place on it, given as arguments. b NULL: a is a reference with its tape. Else one of the two is the tape,
 * the other a reference, which may name the same tape. out->tape is set after ERR_OK. ERR_ARG. */
MUST_USE err_code cap_reference_of_arguments(const char *a, const char *b, cap_reference *out, err *e);

/* Reads a decimal number of at most hi at *p and steps over it. false: none is there, or it is larger. */
bool cap_number_take(const char **p, int64_t hi, int64_t *out);

#endif
