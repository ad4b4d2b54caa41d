/* Values out of a tape: safetensors, .npz, or a folder of .npy files. */
#ifndef CAPTURE_EXPORT_H
#define CAPTURE_EXPORT_H

#include "formats/tape.h"

typedef struct cap_export_options {
    const char *pattern; /* of cli_match, on the value's name or its whole export name; NULL: all */
    bool per_rank;       /* every rank's part under its own name, ".rank{r}" appended, instead of the joined value */
    bool quiet;
} cap_export_options;

typedef struct cap_export_result {
    uint64_t n_values, bytes; /* written */
    uint64_t n_damaged;       /* values left out because their bytes, or a rank's part of them, are not sound */
    uint64_t n_no_payload;    /* values left out because the tape kept only statistics or a hash */
    char damage[ERR_MSG_BYTES]; /* the first reason; empty: none. May be set with n_damaged 0: the tape itself is damaged */
} cap_export_result;

/* Writes t's values, in the tape's order, to path: *.safetensors, *.npz, else a folder. Metadata (in the archive and the
 * folder: metadata.json): format, level, combine, identity, and what an import kept. The output appears under its name
 * only when whole. ERR_INPUT: nothing to write, or two values of one name. ERR_ARG: a folder that exists and is not empty,
 * or its .part does. ERR_IO: a failed write. ERR_NOMEM. */
MUST_USE err_code cap_export(const fmt_tape *t, const char *path, const cap_export_options *o, cap_export_result *out,
                             err *e);

#endif
