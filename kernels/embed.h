/* What a draft starts from: the block's tokens and positions, their embeddings, the first pre-mix.
 *
 * Order     none: every element is made alone
 * Rounding  none: bits are copied, or are 0 and 1
 * Match     bit-equal everywhere
 * Bound     0
 * Aliasing  none
 * Rows      each row depends on its own inputs alone
 * Threads   one
 * Graph     the calls without _ref: one launch on stream, no sync, no allocation, no host read; all pointers are device
 *           memory. ERR_ARG for shapes outside the contract and dim > 65535 * 1024, ERR_DEVICE for a refused launch */
#ifndef KERNELS_EMBED_H
#define KERNELS_EMBED_H

#include "kernels/device.h"
#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* krn_block_ids, krn_block_ids_ref - the block of every batch entry: its anchor, then noise.
 *
 * Shapes    anchor, last [batch] int32; ids, pos [batch, block] int32.  0 <= batch, 1 <= block
 * Values    ids[b][0] = anchor[b], ids[b][i] = noise_id for i > 0; pos[b][i] = last[b] + 1 + i, last being the position of
 *           the newest row in the entry's rings (-1: none); last[b] + block does not overflow */
void krn_block_ids_ref(const int32_t *anchor, const int32_t *last, int32_t batch, int32_t block, int32_t noise_id,
                       int32_t *ids, int32_t *pos);
MUST_USE err_code krn_block_ids(const int32_t *anchor, const int32_t *last, int32_t batch, int32_t block, int32_t noise_id,
                                int32_t *ids, int32_t *pos, krn_stream stream, err *e);

/* krn_embed, krn_embed_ref - a token's embedding in each of the hc copies of the residual stream.
 *
 * Shapes    ids [rows] int32; table [vocab, dim] bf16, dense; x [rows, hc, dim] bf16.  0 <= rows, 1 <= vocab, dim, hc
 * Values    x[r][c] = table[ids[r]]. An id outside 0..vocab-1 reads nothing and gives NaN (0x7fc0) in all of its row */
void krn_embed_ref(const int32_t *ids, int32_t rows, const bf16 *table, int32_t vocab, int32_t dim, int32_t hc, bf16 *x);
MUST_USE err_code krn_embed(const int32_t *ids, int32_t rows, const bf16 *table, int32_t vocab, int32_t dim, int32_t hc,
                            bf16 *x, krn_stream stream, err *e);

/* krn_first_pre, krn_first_pre_ref - the pre-mix before the first sub-block: 1 for copy 0, 0 for the others.
 *
 * Shapes    pre [rows, hc] f32.  0 <= rows, 1 <= hc */
void krn_first_pre_ref(float *pre, int32_t rows, int32_t hc);
MUST_USE err_code krn_first_pre(float *pre, int32_t rows, int32_t hc, krn_stream stream, err *e);

#ifdef __cplusplus
}
#endif

#endif
