/* A checkpoint opened, checked and mapped: the official bytes, unsharded, never copied.
 *
 * eng_weights answers "where is tensor X"; a rank's slice and an arm's representation of it are made by
 * eng_rank_weights. */
#ifndef ENGINE_WEIGHTS_H
#define ENGINE_WEIGHTS_H

#include "engine/inventory.h"
#include "formats/safetensors.h"
#include "formats/sha256.h"
#include "kernels/linear.h"

typedef struct eng_weights eng_weights;

/* Opens FOLDER: config.json, index, needed shards; then checks the inventory (ERR_IDENTITY names a tensor that is missing,
 * unknown under mtp., or of the wrong dtype or shape) and the values (ERR_INPUT names the tensor and element of a NaN
 * code or a scale byte 255; attn_sink may be -inf). Values and the identity are remembered per shard in the user's
 * cache folder by the file's size and times, so that a second open does not read 10 GB again. */
MUST_USE err_code eng_weights_open(const char *folder, bool quiet, eng_weights **out, err *e);
void eng_weights_close(eng_weights *w); /* NULL is a no-op */
const eng_config *eng_weights_config(const eng_weights *w);
const char *eng_weights_folder(const eng_weights *w);
const fmt_checkpoint *eng_weights_files(const eng_weights *w);

/* The checkpoint's identity: sha256 over the manifest lines "name dtype shape sha256\n" of every inventory tensor in name
 * order, after config's canonical JSON. */
void eng_weights_identity(const eng_weights *w, char hex[FMT_SHA256_HEX]);
/* sha256 of one stored tensor's bytes, as the identity pass found it. name must be in the inventory. */
MUST_USE err_code eng_weights_sha256(const eng_weights *w, const char *name, fmt_sha256 *out, err *e);

/* The whole stored tensor as a matrix view; stage and expert -1 where the kind has none. Vectors have n = length, k = 1. */
krn_weight eng_weights_view(const eng_weights *w, eng_wid id, int32_t stage, int32_t expert);

/* What one rank of one arm computes with: slices of the mapped bytes, or decoded bf16 copies for expanded parts. */
typedef struct eng_rank_weights eng_rank_weights;
/* expand_experts / expand_dense: decode FP4 experts / FP8 dense matrices to bf16 once (owned). ERR_NOMEM says how many
 * bytes are wanted and available. */
MUST_USE err_code eng_rank_weights_open(const eng_weights *w, int32_t rank, int32_t n_ranks, bool expand_experts,
                                        bool expand_dense, bool quiet, eng_rank_weights **out, err *e);
void eng_rank_weights_close(eng_rank_weights *r);
const krn_weight *eng_rank_weight(const eng_rank_weights *r, eng_wid id, int32_t stage, int32_t expert);
uint64_t eng_rank_weights_owned_bytes(const eng_rank_weights *r);

#endif
