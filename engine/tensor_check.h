/* The one pass over a checkpoint's bytes: no NaN, and a sha256 for every tensor; remembered, since it reads 10 GB.
 *
 * What was found is kept in $XDG_CACHE_HOME/sparktape (else $HOME/.cache/sparktape), one file per shard, and holds only
 * while the shard has the same path, inode, size and times. Whatever goes wrong there only costs the pass. Private to
 * weights.c. */
#ifndef ENGINE_TENSOR_CHECK_H
#define ENGINE_TENSOR_CHECK_H

#include "formats/safetensors.h"
#include "formats/sha256.h"

/* A stored tensor and the open file it is in. */
typedef struct eng_stored {
    const fmt_safetensors_entry *entry;
    const fmt_safetensors *shard;
} eng_stored;

/* Checks and hashes n tensors, sha [n]. opened_wall_ns: clock_wall_ns from before the shards were opened.
 * ERR_INPUT names the first tensor, in the given order, with a NaN, and its element. Infinities are allowed, but in F16. */
MUST_USE err_code eng_tensors_check(const eng_stored *stored, size_t n, uint64_t opened_wall_ns, bool quiet,
                                    fmt_sha256 *sha, err *e);

#endif
