/* Tensors out of a checkpoint: official bytes, a rank's share, or decoded values. Streaming. */
#ifndef ENGINE_WEIGHTS_EXPORT_H
#define ENGINE_WEIGHTS_EXPORT_H

#include "engine/share.h"
#include "engine/weights.h"

typedef struct eng_export_options {
    const char *pattern; /* glob over names, with or without .weight and .scale; NULL: all */
    bool decode;         /* FP4 and FP8 as BF16 [out, in] under the weight's name, without their scales; EXL3 as the
                          * effective weight in F32 [in, out] under the trellis's name, without its other tensors */
    int32_t rank, n_ranks; /* n_ranks 1: the whole tensors. Has passed eng_cut_check */
} eng_export_options;

/* One tensor to give out. */
typedef struct eng_export_item {
    eng_tensor_spec spec;
    eng_share share;
    const fmt_safetensors_entry *stored; /* borrowed from the weights */
    const uint8_t *scale;                /* of codes; else NULL */
    bool decode;
    krn_weight view;                     /* decode: the rank's codes */
    fmt_dtype dtype;                     /* as given out */
    int32_t ndim;
    int64_t shape[3];
} eng_export_item;

/* The chosen tensors, by name. *out malloc'd. ERR_ARG: no name matches. ERR_NOMEM. */
MUST_USE err_code eng_export_select(const eng_weights *w, const eng_export_options *o, eng_export_item **out, size_t *n,
                                    err *e);
uint64_t eng_export_bytes(const eng_export_item *item); /* as given out */

typedef void (*eng_export_sink)(void *ctx, const void *data, size_t bytes);
/* Gives out item's bytes in order, in pieces. ERR_INPUT: a decoded value is not exact in BF16. ERR_NOMEM. */
MUST_USE err_code eng_export_stream(const eng_export_item *item, eng_export_sink sink, void *ctx, err *e);
MUST_USE err_code eng_export_sha256(const eng_export_item *item, fmt_sha256 *out, err *e);
/* Writes items to a safetensors file that appears only when it is whole. Its metadata names the checkpoint and the
 * choice. */
MUST_USE err_code eng_export_write(const eng_weights *w, const eng_export_options *o, const eng_export_item *items,
                                   size_t n, const char *path, bool quiet, err *e);

#endif
