#include "kernels/ring.h"

void krn_ring_write_ref(const bf16 *kv, const int32_t *pos, int32_t rows, bf16 *ring, int32_t window, int32_t head_dim)
{
    for (int64_t r = 0; r < rows; r++) {
        if (pos[r] < 0) continue;
        memcpy(ring + (int64_t)(pos[r] % window) * head_dim, kv + r * head_dim, (size_t)head_dim * sizeof *ring);
    }
}
