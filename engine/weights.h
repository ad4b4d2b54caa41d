/* A checkpoint opened, checked and mapped: the stored bytes, unsharded, never copied.
 *
 * Every weight is there in its official form, in EXL3 (formats/exl3.h) where that exists for its kind, or in both; an arm
 * chooses (engine/arm.h). eng_weights answers "where is tensor X"; a rank's slice and an arm's representation of it are
 * made by eng_rank_weights. */
#ifndef ENGINE_WEIGHTS_H
#define ENGINE_WEIGHTS_H

#include "engine/arm.h"
#include "engine/inventory.h"
#include "formats/safetensors.h"
#include "formats/sha256.h"
#include "kernels/linear.h"

typedef struct eng_weights eng_weights;

/* Opens FOLDER: config.json, index, needed shards; then checks the inventory (ERR_IDENTITY names a tensor that is missing,
 * unknown under mtp., or of the wrong dtype or shape; of EXL3 also half bits, a foreign codebook, a bias) and the values
 * (ERR_INPUT names the tensor and element of a NaN code, a scale byte 255, an EXL3 factor that is not finite; attn_sink may
 * be -inf). Values and the identity are remembered per shard in the user's
 * cache folder by the file's size and times, so that a second open does not read 10 GB again. */
MUST_USE err_code eng_weights_open(const char *folder, bool quiet, eng_weights **out, err *e);
void eng_weights_close(eng_weights *w); /* NULL is a no-op */
const eng_config *eng_weights_config(const eng_weights *w);
const char *eng_weights_folder(const eng_weights *w);
const fmt_checkpoint *eng_weights_files(const eng_weights *w);

/* The stored tensors that are the draft's, official and EXL3, by name: [n], borrowed. */
const eng_tensor_spec *eng_weights_specs(const eng_weights *w, size_t *n);
/* The checkpoint's identity: sha256 over the manifest lines "name dtype shape sha256\n" of every one of them in name order,
 * after config's canonical JSON. */
void eng_weights_identity(const eng_weights *w, char hex[FMT_SHA256_HEX]);
/* The same of the official tensors alone: what it was, and is again, without an EXL3 delivery. Borrowed. */
const char *eng_weights_official_identity(const eng_weights *w);
/* sha256 of one stored tensor's bytes, as the identity pass found it. name must be one of the draft's that are stored. */
MUST_USE err_code eng_weights_sha256(const eng_weights *w, const char *name, fmt_sha256 *out, err *e);

/* The whole official tensor as a matrix view; stage and expert -1 where the kind has none. Vectors have n = length, k = 1.
 * data NULL: the weight is there in EXL3 only. */
krn_weight eng_weights_view(const eng_weights *w, eng_wid id, int32_t stage, int32_t expert);
/* The same in EXL3, n and k without the padding. data NULL: it has none. */
krn_weight eng_weights_exl3(const eng_weights *w, eng_wid id, int32_t stage, int32_t expert);
/* The one of the two that an arm with these representations multiplies by (what it expands has the official values). */
krn_weight eng_weights_held(const eng_weights *w, const eng_reps *reps, eng_wid id, int32_t stage, int32_t expert);
/* Whether the checkpoint has every weight in the form that an arm with these representations reads. ERR_IDENTITY names the
 * first that it lacks. */
MUST_USE err_code eng_weights_need(const eng_weights *w, const eng_reps *reps, err *e);

/* What one rank of one arm computes with: slices of the mapped bytes, or decoded bf16 copies for expanded parts. */
typedef struct eng_rank_weights eng_rank_weights;
/* What reps expands is decoded to bf16 once (owned). ERR_IDENTITY as eng_weights_need; ERR_NOMEM says how many bytes are
 * wanted and available. */
MUST_USE err_code eng_rank_weights_open(const eng_weights *w, int32_t rank, int32_t n_ranks, const eng_reps *reps,
                                        bool quiet, eng_rank_weights **out, err *e);
void eng_rank_weights_close(eng_rank_weights *r);
const krn_weight *eng_rank_weight(const eng_rank_weights *r, eng_wid id, int32_t stage, int32_t expert);
uint64_t eng_rank_weights_owned_bytes(const eng_rank_weights *r);

#endif
