/* The folder that a delivery goes to: what may stand in it, and what makes it a checkpoint. Private to engine/quantize.c */
#ifndef ENGINE_QUANTIZE_FOLDER_H
#define ENGINE_QUANTIZE_FOLDER_H

#include "engine/weights.h"

typedef struct eng_delivery {
    const eng_weights *weights; /* borrowed, as both names */
    const char *folder;
    bool beside;                /* folder is the model's own */
} eng_delivery;

enum { ENG_DELIVERY_PATH = 4096 };
/* folder/name. ERR_ARG: too long. */
MUST_USE err_code eng_delivery_path(const eng_delivery *d, const char *name, char path[ENG_DELIVERY_PATH], err *e);

/* Fills *d; makes folder where it is not there. shard: the names that the delivery will have. ERR_ARG: the folder holds a
 * file that is neither one of these nor, beside the model, one of the model's. */
MUST_USE err_code eng_delivery_begin(const eng_weights *weights, const char *folder, const char *const *shard,
                                     size_t n_shards, eng_delivery *d, err *e);

/* Whether path is a whole file with these tensors and this metadata already. ERR_ARG: it is there and is another one;
 * with force that is no error. */
MUST_USE err_code eng_delivery_has(const char *path, const fmt_safetensors_decl *decl, size_t n, const json_t *metadata,
                                   bool force, bool *has, err *e);

/* Before these shards are written anew: no index names their old tensors any more. One of another folder than the model's
 * goes altogether: it says that the folder is whole. */
MUST_USE err_code eng_delivery_replace(const eng_delivery *d, const char *const *shard, size_t n_shards, err *e);

/* sha256 over the lines "name sha256\n" of stored tensors of the model. */
MUST_USE err_code eng_delivery_source(const eng_weights *w, const char (*name)[ENG_TENSOR_NAME], size_t n,
                                      char hex[FMT_SHA256_HEX], err *e);

/* After all shards: the official tensors that have no EXL3 form and config.json in a folder of its own; the index. */
MUST_USE err_code eng_delivery_end(const eng_delivery *d, const fmt_checkpoint_place *place, size_t n, bool force, err *e);

#endif
