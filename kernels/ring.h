/* krn_ring_write, krn_ring_write_ref - puts rows into one stage's ring of one slot: row of position p goes to ring
 * row p mod window.
 *
 * Shapes    kv [rows, head_dim] bf16; pos [rows]; ring [window, head_dim] bf16.  0 <= rows, 1 <= window, 1 <= head_dim
 * Padding   a row whose pos is negative is dropped
 * Slots     krn_ring_write: ring = rings + slot[0] * ring_stride elements (ring_stride >= window * head_dim). slot is one
 *           int32 >= 0 in device memory: it may change between launches of the same graph
 * Order     rows in order, so that of two rows for the same place the later one stays: an insert longer than the window
 *           leaves its last `window` rows. Places that no row names keep their bits
 * Rounding  none: bits are copied
 * Match     bit-equal everywhere. CUDA writes rows in parallel and drops those that a later row of the call replaces
 * Bound     0
 * Aliasing  none
 * Threads   one
 * Graph     krn_ring_write: one launch on stream, no sync, no allocation, no host read; kv, pos, rings and slot are device
 *           memory. ERR_ARG for shapes outside the contract, ERR_DEVICE for a refused launch */
#ifndef KERNELS_RING_H
#define KERNELS_RING_H

#include "kernels/device.h"
#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

void krn_ring_write_ref(const bf16 *kv, const int32_t *pos, int32_t rows, bf16 *ring, int32_t window, int32_t head_dim);
MUST_USE err_code krn_ring_write(const bf16 *kv, const int32_t *pos, int32_t rows, bf16 *rings, int64_t ring_stride,
                                 const int32_t *slot, int32_t window, int32_t head_dim, krn_stream stream, err *e);

#ifdef __cplusplus
}
#endif

#endif
