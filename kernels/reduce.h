/* krn_sum_ranks, krn_sum_ranks_ref - the sum over ranks of f32 partials, in rank order.
 *
 * Shapes    parts [n_ranks] pointers to f32 arrays of the same shape; elements [first, first + n) of each are summed into
 *           the SAME elements of out (out[first + i]), so that threads can share an array out among them.  n_ranks >= 1
 * Rounding  R1 ((p0 + p1) + p2) + ...: each add to f32. One rank: a copy, bit for bit
 * Order     ascending rank, for every element: all ranks get the same bits whoever computes them
 * Match     bit-equal everywhere, also CUDA: the order is the contract, both accumulation modes. (Of several ranks, a NaN
 *           has the device's own bits)
 * Bound     0 from the given parts; between different cuts of the ranks (n_ranks - 1) * 2^-24 * sum |part|
 * Aliasing  out may be parts[0]; no other overlap
 * Threads   none inside: the caller's ranks call it for disjoint spans
 * Graph     krn_sum_ranks: one launch on stream, no sync, no allocation. parts is a host array of device pointers,
 *           read before the call returns; a part may lie on another card that this one can read. ERR_ARG for n_ranks
 *           outside 1..KRN_RANKS_MAX and negative first or n, ERR_DEVICE for a refused launch */
#ifndef KERNELS_REDUCE_H
#define KERNELS_REDUCE_H

#include "kernels/device.h"
#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { KRN_RANKS_MAX = 8 };

void krn_sum_ranks_ref(const float *const *parts, int32_t n_ranks, int64_t first, int64_t n, float *out);
MUST_USE err_code krn_sum_ranks(const float *const *parts, int32_t n_ranks, int64_t first, int64_t n, float *out,
                                krn_stream stream, err *e);

#ifdef __cplusplus
}
#endif

#endif
