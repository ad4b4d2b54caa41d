#include "kernels/attention.h"

#include "kernels/row_loops.h"

void krn_attention_ref(const bf16 *q, const bf16 *ring, int32_t n_ring, const bf16 *block_kv, int32_t n_block,
                       const float *sink, float scale, int32_t heads, int32_t head_dim, bf16 *o, krn_acc acc)
{
    CHECK(head_dim >= 1 && head_dim <= KRN_ATTENTION_HEAD_DIM_MAX);
    const krn_row_loops *loops = krn_row_loops_get();
    const krn_keys k = { ring, block_kv, n_ring, n_ring + n_block, head_dim };
    int64_t tasks = (int64_t)n_block * heads;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < tasks; i++) loops->attend(q + i * head_dim, &k, sink[i % heads], scale, acc, o + i * head_dim);
}
