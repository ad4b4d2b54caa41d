/* NATIVE_MANIFEST.json: every tensor of a checkpoint with its format, bytes, sha256, values and what a rank of two holds;
 * and the checks of a checkpoint against a manifest or a receipt. */
#ifndef ENGINE_MANIFEST_H
#define ENGINE_MANIFEST_H

#include "engine/share.h"
#include "engine/weights.h"

enum { ENG_MANIFEST_RANKS = 2 };

typedef struct eng_tensor_record {
    eng_tensor_spec spec;
    const char *shard;               /* borrowed from the weights */
    const void *data;
    uint64_t bytes;
    fmt_sha256 sha256;
    eng_facts facts;
    eng_share share[ENG_MANIFEST_RANKS];
    fmt_sha256 share_sha256[ENG_MANIFEST_RANKS];
} eng_tensor_record;

/* The tensors of a checkpoint, by name. */
typedef struct eng_scan {
    eng_tensor_record *record;
    size_t n;
    bool has_ranks;          /* shares are filled */
    char no_ranks[256];      /* else why: the config cannot be cut in two */
    uint64_t bytes;
} eng_scan;

/* Reads every byte: values and sha256, and with_ranks the shares of both ranks too. On error nothing is owned.
 * ERR_NOMEM. */
MUST_USE err_code eng_scan_open(const eng_weights *w, bool with_ranks, bool quiet, eng_scan *out, err *e);
void eng_scan_close(eng_scan *s);

/* "MXFP4", "FP8", "BF16", "F32", "E8M0" for scales; "EXL3" for a trellis, its signs and markers, "F16" for its factors. */
const char *eng_format_name(const eng_tensor_spec *t);
/* The manifest object. New reference; NULL: no memory. */
json_t *eng_manifest_json(const eng_weights *w, const eng_scan *s);

/* The first difference found; empty when there is none. */
typedef struct eng_difference { char text[ERR_MSG_BYTES]; } eng_difference;

/* Compares the scan with a manifest file: the set of tensors, dtype, shape, sha256; then the config. ERR_FORMAT, ERR_IO. */
MUST_USE err_code eng_manifest_check(const char *path, const eng_weights *w, const eng_scan *s, eng_difference *d, err *e);
/* Hashes the shards that a receipt lists (lines "sha256  file", as sha256sum prints; blank lines and # comments are
 * skipped). Every shard in use must be listed; listed files that are neither in the folder nor in use are counted in
 * *absent, the others in *checked. ERR_FORMAT names the line. ERR_IO. */
MUST_USE err_code eng_receipt_check(const char *path, const eng_weights *w, const eng_scan *s, bool quiet, int32_t *checked,
                                    int32_t *absent, eng_difference *d, err *e);

#endif
