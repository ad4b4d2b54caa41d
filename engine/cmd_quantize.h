/* How the commands that quantize say what came out of it. */
#ifndef ENGINE_CMD_QUANTIZE_H
#define ENGINE_CMD_QUANTIZE_H

#include "engine/quantize.h"

/* A few lines on stdout. */
void cmd_quantize_print(const char *out, const eng_quantize_options *o, const eng_quantize_report *r);
/* {"out", "codebook", "seed", "shards", "kept", "tensors", "bytes", "tiles", "seconds", "tiles_per_s", "experts": {"bits",
 * "linears", "calibrated", "rms", "proxy"}, "dense": ..., "head": ...}; a part that this run encoded nothing of has rms
 * null.
 * New reference; NULL: no memory. */
json_t *cmd_quantize_json(const char *out, const eng_quantize_options *o, const eng_quantize_report *r);
/* The official bits: experts 2, dense 5, head 6, mul1, seed 1. */
eng_quantize_options cmd_quantize_defaults(void);

#endif
