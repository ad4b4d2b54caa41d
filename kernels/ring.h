/* krn_ring_write_ref - puts rows into one stage's ring of one slot: row of position p goes to ring row p mod window.
 *
 * Shapes    kv [rows, head_dim] bf16; pos [rows], each >= 0; ring [window, head_dim] bf16.  0 <= rows, 1 <= window
 * Order     rows in order, so that of two rows for the same place the later one stays: an insert longer than the window
 *           leaves its last `window` rows. Places that no row names keep their bits
 * Rounding  none: bits are copied
 * Match     bit-equal everywhere. (A kernel that writes rows in parallel must drop the rows that later ones replace.)
 * Bound     0
 * Aliasing  none
 * Threads   one */
#ifndef KERNELS_RING_H
#define KERNELS_RING_H

#include "kernels/kernels.h"

void krn_ring_write_ref(const bf16 *kv, const int32_t *pos, int32_t rows, bf16 *ring, int32_t window, int32_t head_dim);

#endif
