/* The sum over experts on the device, shared by combine.cu and the fused kernels. R1, R2: kernels/combine.h. */
#ifndef KERNELS_COMBINE_CUH
#define KERNELS_COMBINE_CUH

#include "kernels/bits.cuh"

enum { KRN_COMBINE_MAX = 4096 }; /* k: their order is kept in shared memory */

/* order [k] = the entries of ids by ascending (id, index); all threads of the block call, and wait before they read it. */
__device__ __forceinline__ void krn_combine_order(const int32_t *ids, int32_t k, int32_t *order)
{
    for (int32_t j = threadIdx.x; j < k; j += blockDim.x) {
        int32_t before = 0;
        for (int32_t i = 0; i < k; i++) before += ids[i] < ids[j] || (ids[i] == ids[j] && i < j);
        order[before] = j;
    }
}

/* N floats of a row with n left from p on; the missing ones are +0. aligned: p is a multiple of 16 bytes. */
template <int N> __device__ __forceinline__ void krn_load_f32(const float *p, int64_t n, bool aligned, float out[N])
{
    if (N % 4 == 0 && aligned && n >= N) {
#pragma unroll
        for (int i = 0; i < N; i += 4) {
            float4 four = *(const float4 *)(p + i);
            out[i] = four.x, out[i + 1] = four.y, out[i + 2] = four.z, out[i + 3] = four.w;
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < N; i++) out[i] = i < n ? p[i] : 0.0f;
}

/* N columns of a row, of which n are there: slot [k] dim apart and shared point at the first one, order as above. Adds in
 * batches whose loads are all in flight together. */
template <bool EXACT, int N>
__device__ __forceinline__ void krn_combine_sum(const float *slot, const float *shared, const int32_t *order, int32_t k,
                                                int32_t dim, int64_t n, bool aligned, float sum[N])
{
    enum { BATCH = 4 };
#pragma unroll
    for (int c = 0; c < N; c++) sum[c] = 0.0f;
    for (int32_t first = 0; first <= k; first += BATCH) { /* term k is the shared expert */
        float term[BATCH][N];
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            if (first + i <= k)
                krn_load_f32<N>(first + i < k ? slot + (int64_t)order[first + i] * dim : shared, n, aligned, term[i]);
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            if (first + i <= k)
#pragma unroll
                for (int c = 0; c < N; c++)
                    sum[c] = __fadd_rn(sum[c], EXACT ? krn_bf16_rounded(term[i][c]) : term[i][c]);   /* R1, R2 */
    }
}

#endif
