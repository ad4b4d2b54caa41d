/* What one rank holds of a stored tensor, and what its numbers are like. */
#ifndef ENGINE_SHARE_H
#define ENGINE_SHARE_H

#include "engine/inventory.h"
#include "formats/sha256.h"

/* A rectangle of a stored tensor: `spans` runs of span_bytes, stride_bytes apart, the first at offset_bytes. Rows and
 * columns are those of the stored tensor: FP4 columns are bytes of two codes, scales have one element per group; those of a
 * trellis are tiles, [in, out], and a rank holds whole blocks of 8, as of its vectors whole blocks of 128. */
typedef struct eng_share {
    fmt_dtype dtype;
    int32_t ndim;
    int64_t shape[3];          /* [rows, cols], or [rows] of a vector; of a trellis [rows, cols, words of a tile] */
    int64_t row0, col0;
    uint64_t offset_bytes, span_bytes, stride_bytes;
    int64_t spans;
    bool whole;                /* the rank holds the tensor as it is stored */
} eng_share;

/* The share of rank of n_ranks (1: the whole tensor). n_ranks has passed eng_cut_check. */
eng_share eng_share_of(const eng_config *c, const eng_tensor_spec *t, int32_t rank, int32_t n_ranks);
uint64_t eng_share_bytes(const eng_share *s);
/* sha256 of the share's bytes, row after row. data: the whole stored tensor. ERR_NOMEM. */
MUST_USE err_code eng_share_sha256(const eng_share *s, const void *data, fmt_sha256 *out, err *e);

/* The decoded values of a tensor. Codes count with their block's scale; a scale tensor counts as its own powers of two; a
 * trellis as the codebook's values that its states stand for; packed signs as 1 and -1; a marker as nothing. */
typedef struct eng_facts {
    double min_abs, max_abs;   /* of finite values that are not zero; 0 when there are none */
    int64_t elems, zeros, nans, infs;
    int64_t inexact_bf16, inexact_fp16; /* values that the format cannot hold exactly */
} eng_facts;

enum { ENG_FACTS_BINS = 1 << 16 };
/* data: the whole stored tensor; scale: its scales, NULL when it has none. bins: room for ENG_FACTS_BINS counts, used as
 * scratch: every 16-bit pattern, or every (scale byte, code byte), is counted once and decoded once. */
void eng_facts_of(const eng_config *c, const eng_tensor_spec *t, const eng_share *s, const void *data, const uint8_t *scale,
                  uint64_t *bins, eng_facts *out);

#endif
