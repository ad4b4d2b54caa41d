/* Inside the ab command: what it prints, as a table or as a JSON object a line. */
#ifndef ENGINE_AB_REPORT_H
#define ENGINE_AB_REPORT_H

#include "engine/ab.h"
#include "formats/json.h"

/* A pair at one T: all shapes compared, the first one timed. */
typedef struct ab_row {
    int32_t T;
    int64_t compared;           /* sets of inputs, over all shapes */
    int64_t n_equal, n_all;     /* elements of outputs, as in ab_finding */
    ab_finding finding;         /* the first broken promise, and where */
    const int32_t *broken_dim;  /* the shape of it; NULL: none */
    bool timed;                 /* not where a promise is broken: the time of a wrong result means nothing */
    ab_times units, once;       /* once.n 0: not measured, as on the CPU */
    uint64_t bytes[AB_SIDES];   /* at the timed shape */
} ab_row;

typedef struct ab_totals { int32_t pairs, rows, broken, faster, slower; } ab_totals;

/* What the card says of itself, for bench too: an object, or null where it is not known; as a line, or none. New reference,
 * NULL: no memory. when: how the line begins. */
json_t *ab_state_json(const ab_state *s);
void ab_print_state(const char *when, const ab_state *s);

MUST_USE err_code ab_print_device(const ab_device *d, const ab_state *s, bool json, err *e);
/* dim: of the timed shape. Adds to *t. */
MUST_USE err_code ab_print_pair(const ab_pair *p, const int32_t *dim, const ab_device *d, const ab_row *rows, int32_t n,
                                bool json, ab_totals *t, err *e);
MUST_USE err_code ab_print_end(const ab_totals *t, const ab_state *s, bool json, err *e);
MUST_USE err_code ab_print_list(bool json, err *e);

#endif
