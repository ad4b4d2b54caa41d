/* A block a drafted position: a row of official size, 5,376 elements, is one 16-byte load a thread. */
#include "kernels/confidence.h"

#include "kernels/bits.cuh"
#include "kernels/launch.cuh"

enum { THREADS = 1024, WARPS = THREADS / KRN_WARP, CHUNK = 8 /* elements of a 16-byte load */ };

typedef struct confidence_args {
    const bf16 *hidden, *embed, *w;
    int32_t dim, markov_rank;
    const int32_t *anchor, *drafts;
    int32_t block, n_out;
    float *y;
} confidence_args;

/* WIDE: all rows are 16-byte aligned and both pieces are whole chunks, so a chunk lies in one of them. */
template <bool WIDE>
__global__ static void confidence_kernel(const confidence_args a)
{
    __shared__ float shared[WARPS];
    krn_begin();
    int32_t b = blockIdx.x / a.n_out, i = blockIdx.x % a.n_out, joined = a.dim + a.markov_rank;
    int32_t id = i == 0 ? a.anchor[b] : a.drafts[b * a.n_out + i - 1];
    const bf16 *hidden = a.hidden + ((int64_t)b * a.block + i) * a.dim;
    const bf16 *markov = a.embed + (int64_t)max(id, 0) * a.markov_rank;
    float sum = 0;
    for (int32_t at = threadIdx.x * CHUNK; at < joined; at += THREADS * CHUNK) {
        if constexpr (WIDE) {
            float x[CHUNK], w[CHUNK];
            krn_unpack8(krn_load16(at < a.dim ? hidden + at : markov + (at - a.dim)), x);
            krn_unpack8(krn_load16(a.w + at), w);
#pragma unroll
            for (int j = 0; j < CHUNK; j++) sum = fmaf(x[j], w[j], sum);                             /* R1 */
        } else {
            for (int32_t j = at; j < min(at + CHUNK, joined); j++)
                sum = fmaf(krn_f32_of(j < a.dim ? hidden[j] : markov[j - a.dim]), krn_f32_of(a.w[j]), sum); /* R1 */
        }
    }
    sum = krn_block_sum(sum, shared);
    if (threadIdx.x == 0) a.y[blockIdx.x] = sum;
}

extern "C" err_code krn_confidence(const bf16 *hidden, int32_t dim, const bf16 *embed, int32_t markov_rank, const bf16 *w,
                                   const int32_t *anchor, const int32_t *drafts, int32_t batch, int32_t block,
                                   int32_t n_out, float *y, krn_stream stream, err *e)
{
    enum { JOINED_MAX = 1 << 30 }; /* counts of elements stay inside int32 */
    if (dim < 1 || markov_rank < 0 || dim > JOINED_MAX - markov_rank || batch < 0 || n_out < 1 || n_out > block)
        return err_set(e, ERR_ARG, "confidence: dim=%d markov_rank=%d batch=%d block=%d n_out=%d", dim, markov_rank, batch,
                       block, n_out);
    if (batch == 0) return ERR_OK;
    const confidence_args a = { hidden, embed, w, dim, markov_rank, anchor, drafts, block, n_out, y };
    bool wide = krn_aligned(hidden, (int64_t)dim * (int64_t)sizeof(bf16)) &&
                krn_aligned(embed, (int64_t)markov_rank * (int64_t)sizeof(bf16)) && krn_aligned(w);
    if (wide) krn_launch(confidence_kernel<true>, (unsigned)batch * (unsigned)n_out, THREADS, 0, stream, a);
    else krn_launch(confidence_kernel<false>, (unsigned)batch * (unsigned)n_out, THREADS, 0, stream, a);
    return krn_launched("confidence", e);
}
