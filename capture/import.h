/* Values into a tape: another engine's dump, or an export that someone changed, as a safetensors file. */
#ifndef CAPTURE_IMPORT_H
#define CAPTURE_IMPORT_H

#include "formats/safetensors.h"
#include "formats/tape.h"

typedef struct cap_import_options {
    const json_t *map;      /* {"their.name": "round.0.s0.attn_out"}; names it lacks must be export names. NULL: none */
    const fmt_tape *origin; /* identity, config, program and level are taken from its head; NULL: marked unknown */
    bool quiet;
} cap_import_options;

/* Names of one kind: how many, and the first ones in order, borrowed from the file or the map. */
enum { CAP_IMPORT_FIRST = 3 };
typedef struct cap_import_names {
    uint64_t n;
    const char *first[CAP_IMPORT_FIRST];
} cap_import_names;

typedef struct cap_import_result {
    uint64_t n_values, n_rounds, bytes;
    uint64_t n_narrowed;    /* values stored in their name's own dtype, without loss (capture/narrow.h) */
    uint64_t n_other_dtype; /* values kept in another dtype, because their name's own cannot hold them */
    cap_import_names unmapped; /* tensors that the map lacks: they keep their names, which are export names. No map: none */
    cap_import_names unused;   /* entries of the map that no tensor has */
    cap_import_names unknown;  /* values under a name that docs/values.md does not list: nothing replays or judges them */
} cap_import_result;

/* Writes every tensor of f to a tape, in the order a recorder would: whatever the values are. Its metadata goes to the head
 * ("imported"). ERR_INPUT names tensors whose names are no export names (how many, the first ones, and what the map has
 * beside them), or two tensors of one value; metadata that a head cannot hold. ERR_IO, ERR_NOMEM. The tape appears under
 * its name only when whole. */
MUST_USE err_code cap_import(const fmt_safetensors *f, const char *path, const cap_import_options *o,
                             cap_import_result *out, err *e);
/* "a, b, c and 4 more", cut where out ends. */
enum { CAP_IMPORT_LIST = 256 };
void cap_import_list(const cap_import_names *names, char out[CAP_IMPORT_LIST]);

#endif
