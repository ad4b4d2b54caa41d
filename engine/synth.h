/* Synthetic checkpoints: official names, formats and realistic ranges, for any config.
 *
 * Ranges matter: weights lie within 2^-21 .. 6, ffn_norm gains are about 0.2, scale bytes vary from block to block, gate
 * and up projections are large enough to reach the clamps. With smaller numbers clamps, scales and ties would never be
 * exercised. Every element is a function of (seed, tensor name, index). */
#ifndef ENGINE_SYNTH_H
#define ENGINE_SYNTH_H

#include "engine/config.h"

typedef struct eng_synth_report {
    int64_t tensors;
    int32_t shards;
    uint64_t bytes; /* of tensors */
} eng_synth_report;

/* Writes config.json, the shards and model.safetensors.index.json into folder, which is made when absent (its parent must
 * exist). Streaming: memory stays below 64 MiB whatever the config. Checkpoints over 1 GiB get the official layout
 * (embedding in shard 2 of 46, head in 43, draft in 44 to 46), others two shards. ERR_ARG: folder is a file, or holds
 * anything. After any error nothing of this call is left under its final name. */
MUST_USE err_code eng_synth_checkpoint(const char *folder, const eng_config *c, uint64_t seed, bool quiet,
                                       eng_synth_report *report, err *e);

#endif
