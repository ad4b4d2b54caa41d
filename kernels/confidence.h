/* krn_confidence_ref - proj . [hidden | markov]: the raw confidence of one drafted position (no sigmoid).
 *
 * Shapes    hidden [dim] bf16: the collapsed stream before the final norm; markov [rank] bf16: the Markov embedding of the
 *           PREVIOUS token; w [dim + rank] bf16.  dim >= 1, rank >= 0
 * Rounding  R1 blocked: f32 adds of exact products; F64: double, rounded to f32 once
 * Order     lanes16 over the joined row of dim + rank elements: element i of it belongs to lane i % 16
 * Match     CUDA: inside Bound
 * Bound     parity's of a dot product: 6 * 2^-24 * sqrt(dim + rank) * sum |x * w|; the other rules' in kernels/bound.h
 * Threads   one */
#ifndef KERNELS_CONFIDENCE_H
#define KERNELS_CONFIDENCE_H

#include "kernels/bound.h"
#include "kernels/device.h"
#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

float krn_confidence_ref(const bf16 *hidden, int32_t dim, const bf16 *markov, int32_t rank, const bf16 *w, krn_acc acc);

/* krn_confidence - the same for every drafted position of every batch entry:
 *   y[b][i] = krn_confidence_ref(hidden[b * block + i], dim, embed[previous token], markov_rank, w)
 *
 * Shapes    hidden [batch * block, dim], embed [vocab, markov_rank], w [dim + markov_rank] bf16; anchor [batch];
 *           drafts [batch, n_out]; y [batch, n_out] f32.  batch >= 0, 1 <= n_out <= block, dim >= 1, markov_rank >= 0
 * Previous  i == 0: anchor[b], else drafts[b][i - 1]; below vocab, as all that krn_markov_pick writes are. A negative id is
 *           taken as 0
 * Order     1024 lanes. Chunk c is the elements 8c .. 8c + 7 of the joined row; lane c % 1024 takes it. A lane starts from
 *           +0 and adds its elements in ascending order, one fmaf each (R1: the products are exact). Within each 32 lanes
 *           those 16 apart are added, then 8, 4, 2, 1; then the 32 sums in the same way
 * Rows      y[b][i] depends on its own rows alone
 * Graph     one launch on stream, no sync, no allocation, no host read; all pointers are device memory.
 *           ERR_ARG for shapes outside the contract, ERR_DEVICE for a refused launch */
MUST_USE err_code krn_confidence(const bf16 *hidden, int32_t dim, const bf16 *embed, int32_t markov_rank, const bf16 *w,
                                 const int32_t *anchor, const int32_t *drafts, int32_t batch, int32_t block, int32_t n_out,
                                 float *y, krn_stream stream, err *e);

/* krn_confidence_bound - krn_confidence_ref's sum in any order of f32 sums: Bound. */
krn_span krn_confidence_bound(const bf16 *hidden, int32_t dim, const bf16 *markov, int32_t rank, const bf16 *w,
                              krn_rule rule);

#ifdef __cplusplus
}
#endif

#endif
