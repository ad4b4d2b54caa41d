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

typedef struct cap_import_result {
    uint64_t n_values, n_rounds, bytes;
    uint64_t n_narrowed;    /* values stored in their name's own dtype, without loss (capture/narrow.h) */
    uint64_t n_other_dtype; /* values kept in another dtype, because their name's own cannot hold them */
} cap_import_result;

/* Writes every tensor of f to a tape, in the order a recorder would: whatever the values are. Its metadata goes to the head
 * ("imported"). ERR_INPUT names a tensor whose name is no export name, or two tensors of one value; metadata that a head
 * cannot hold. ERR_IO, ERR_NOMEM. The tape appears under its name only when whole. */
MUST_USE err_code cap_import(const fmt_safetensors *f, const char *path, const cap_import_options *o,
                             cap_import_result *out, err *e);

#endif
