#include "kernels/embed.h"

void krn_block_ids_ref(const int32_t *anchor, const int32_t *last, int32_t batch, int32_t block, int32_t noise_id,
                       int32_t *ids, int32_t *pos)
{
    for (int32_t b = 0; b < batch; b++) {
        for (int32_t i = 0; i < block; i++) {
            int64_t t = (int64_t)b * block + i;
            ids[t] = i == 0 ? anchor[b] : noise_id;
            pos[t] = last[b] + 1 + i;
        }
    }
}

void krn_embed_ref(const int32_t *ids, int32_t rows, const bf16 *table, int32_t vocab, int32_t dim, int32_t hc, bf16 *x)
{
    for (int32_t r = 0; r < rows; r++) {
        bool known = ids[r] >= 0 && ids[r] < vocab;
        for (int32_t c = 0; c < hc; c++, x += dim) {
            if (known) memcpy(x, table + (int64_t)ids[r] * dim, (size_t)dim * sizeof *x);
            else for (int32_t d = 0; d < dim; d++) x[d] = bf16_from_f32(NAN);
        }
    }
}

void krn_first_pre_ref(float *pre, int32_t rows, int32_t hc)
{
    for (int64_t i = 0; i < (int64_t)rows * hc; i++) pre[i] = i % hc == 0 ? 1.0f : 0.0f;
}
