/* krn_attention, krn_attention_ref - a slot's block attends to its ring and to itself: softmax with a sink, one latent for
 * K and V.
 *
 * Shapes    q, o [n_block, heads, head_dim] bf16; ring [n_ring, head_dim] bf16, rows 0.. in physical order;
 *           block_kv [n_block, head_dim] bf16; sink [heads] f32; scale = f32(head_dim^-0.5).  n_ring >= 0 (at 0 ring may be
 *           NULL), n_block >= 1, 1 <= head_dim <= KRN_ATTENTION_HEAD_DIM_MAX
 * Keys      the ring rows, then the block rows; keys are values. Every row of the block sees all of them: no causal mask,
 *           no sliding window per row
 * Rounding  per head of a row, over blocks of 64 keys; state m = -1e30, l = 0, acc = 0, f32:
 *           R1 s = f32(q . k) * scale to f32: blocked, lanes16 in f32; F64, lanes16 in double, rounded once, then * scale
 *           R2 m' = max(m, s...); c = exp(m - m'), p = exp(s - m'): difference to f32, exp in double rounded once. The
 *              first c is 0 (for m' above -1e29, which every finite product reaches)
 *           R3 l = l * c + sum p, of the f32 p: blocked, the sum in f32, ascending keys, then one fmaf; F64, all in double,
 *              rounded once
 *           R4 acc = acc * c to f32; pb = bf16(p); acc += sum pb * v: blocked, f32, key by key onto acc (the products are
 *              exact); F64, the sum in double, ascending keys, acc added to it, rounded once
 *           R5 after the last block: l = l + exp(sink - m) to f32. The sink is not scaled, not in the max, has no value
 *           R6 o = bf16(f32(acc / l))
 *           The block of 64 is part of the numerics: pb is taken against the running maximum of that moment
 * Edges     sink = -inf adds nothing; sink so far above m that exp overflows: o = 0. A NaN in q or in a key makes the heads
 *           that meet it NaN: it is never dropped by the maximum
 * Slots     krn_attention: batch entries at once; q, o [batch * n_block, heads, head_dim]. Entry b reads rows 0 ..
 *           min(window, last[b] + 1) - 1 (none for last[b] < 0) of its ring at rings + slot[b] * ring_stride elements, then
 *           its own n_block rows of block_kv [batch * n_block, head_dim]. slot, last [batch] are device memory and may
 *           change between launches of one graph. No other row of rings is read. CUDA: rings, slot and last are read while
 *           the launch before still runs (kernels/launch.cuh): no kernel of the step writes them
 * Order     CUDA, R1, head_dim a multiple of 16, at most 512, all rows at multiples of 16 bytes: the tensor core adds 16
 *           products at a time; within each quarter of 128 dimensions even and odd steps of 16 are summed apart, then
 *           joined; quarters (0 + 1) + (2 + 3). Elsewhere lane d % 32 by fmaf, then lanes 16, 8, 4, 2, 1 apart.
 *           R3: keys j and j + 32 of a block, then lanes 16, 8, 4, 2, 1 apart. R4: 16 keys at a time onto acc, ascending
 *           (elsewhere one key at a time, by fmaf)
 * Match     CUDA: inside Bound, same blocks of 64; exp is an f32 function within 1 ulp
 * Bound     ds = b * scale + u * |s| + 2u per key, b the bound of the dot product (parity: 6 * u * sqrt(head_dim) *
 *           sum |q*k|), u = 2^-24. A pb is either neighbour where p lies within twice the largest ds (relative) of a bf16
 *           tie. c: 6u sqrt(n) of n keys + (2 * blocks + 3) * u. Before R6 the sum of
 *             c * sum p|v| / l, and the steps of those pb times |v| / l
 *             sqrt(sum (ds p v)^2) / l: the scores' errors, which do not know of each other
 *             |o| * (sqrt(sum (ds p)^2) / l + c): those of l
 *           worst: n u for 6u sqrt(n), and sums for the roots of squares
 *           sharp: sums of q*k and p*v by KRN_RULE_SHARP; a pb is its neighbour on one side, where p lies within the root
 *             of squares of two errors of the tie: its score's and the largest score's, with 2u sqrt(head_dim) sqrt(S^2 +
 *             Q / 2) for b, six deviations
 * Graph     krn_attention: one launch on stream, no sync, no allocation, no host read; all pointers are device memory.
 *           window <= KRN_ATTENTION_WINDOW_MAX. ERR_ARG for shapes outside the contract, ERR_DEVICE for a refused launch
 * Aliasing  o may be q; no other overlap
 * Rows      each (row, head) depends on its own q, its sink and the keys alone
 * Threads   OpenMP over (row, head); bits do not depend on the count. Allocates nothing: 4 bytes of stack a dimension */
#ifndef KERNELS_ATTENTION_H
#define KERNELS_ATTENTION_H

#include "kernels/bound.h"
#include "kernels/device.h"
#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    KRN_ATTENTION_KEYS = 64,            /* keys of one step of the online softmax */
    KRN_ATTENTION_HEAD_DIM_MAX = 4096,  /* larger head_dim: refused with the config, not here */
    KRN_ATTENTION_WINDOW_MAX = 1 << 24, /* CUDA: keys are counted in 32 bits */
};

void krn_attention_ref(const bf16 *q, const bf16 *ring, int32_t n_ring, const bf16 *block_kv, int32_t n_block,
                       const float *sink, float scale, int32_t heads, int32_t head_dim, bf16 *o, krn_acc acc);
MUST_USE err_code krn_attention(const bf16 *q, const bf16 *rings, int64_t ring_stride, const int32_t *slot,
                                const int32_t *last, int32_t window, const bf16 *block_kv, int32_t batch, int32_t n_block,
                                const float *sink, float scale, int32_t heads, int32_t head_dim, bf16 *o, krn_stream stream,
                                err *e);

/* krn_attention_bound - one head of one row before R6: Bound. q [head_dim], keys as krn_attention_ref's, sink and scale the
 * head's; o [head_dim]. room: for KRN_ATTENTION_BOUND_ROOM(n_ring + n_block, head_dim) numbers. */
#define KRN_ATTENTION_BOUND_ROOM(n_keys, head_dim) (3 * ((size_t)(n_keys) + (size_t)(head_dim)))
void krn_attention_bound(const bf16 *q, const bf16 *ring, int32_t n_ring, const bf16 *block_kv, int32_t n_block, float sink,
                         float scale, int32_t head_dim, krn_rule rule, double *room, krn_span *o);

#ifdef __cplusplus
}
#endif

#endif
