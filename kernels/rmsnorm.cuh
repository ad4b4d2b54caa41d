/* RMSNorm of a row on the device, shared by rmsnorm.cu and the fused kernels. R1..R6: kernels/rmsnorm.h. */
#ifndef KERNELS_RMSNORM_CUH
#define KERNELS_RMSNORM_CUH

#include "kernels/bits.cuh"
#include "kernels/launch.cuh"

enum { KRN_RMSNORM_THREADS_MAX = 1024 };

/* Threads of a row's block: part of the order of R1. */
static inline unsigned krn_rmsnorm_threads(int32_t dim)
{
    int64_t threads = KRN_WARP * krn_blocks(krn_blocks(dim, 8), KRN_WARP);
    return threads < KRN_RMSNORM_THREADS_MAX ? (unsigned)threads : KRN_RMSNORM_THREADS_MAX;
}

__device__ __forceinline__ double krn_rmsnorm_add(uint4 x, double sum)
{
    float v[8];
    krn_unpack8(x, v);
#pragma unroll
    for (int i = 0; i < 8; i++) sum = fma((double)v[i], (double)v[i], sum); /* the square is exact */
    return sum;
}

__device__ __forceinline__ uint4 krn_rmsnorm_scale(uint4 x, uint4 w, float r)
{
    float v[8], weight[8];
    krn_unpack8(x, v);
    krn_unpack8(w, weight);
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = __fmul_rn(weight[i], __fmul_rn(v[i], r));                     /* R5 */
    return krn_pack8(v);                                                                             /* R6 */
}

/* R2..R4. Of one thread: double is slow on many cards. */
__device__ __forceinline__ float krn_rmsnorm_inverse(double squares, int32_t dim, float eps)
{
    return (float)(1.0 / sqrt((double)__fadd_rn((float)(squares / dim), eps)));
}

/* By a block of krn_rmsnorm_threads(dim), which has read nothing but weights before it: it waits for what group_at reads.
 * A thread takes groups of eight elements, at 8 * thread and then 8 * threads on:
 *   group_at(i)   the group at i as bits, zeros past the row's end
 *   meanwhile()   what else there is to do while the first groups are on their way; all threads call it, and what it puts
 *                 into shared memory is there for put
 *   put(i, x, y)  is given every group and its norm; the first may lie past the end. Where dim is a multiple of 32, the
 *                 four lanes of 32 elements call it together
 * Up to dim 8192 a thread holds its only group and its weights in registers; past that group_at is called twice. */
template <typename group, typename work, typename taker>
__device__ __forceinline__ void krn_rmsnorm_row(const bf16 *w, int32_t dim, float eps, bool aligned, group group_at,
                                                work meanwhile, taker put)
{
    __shared__ double warp_sums[KRN_WARP];
    __shared__ float inv_rms;
    /* All loads go out before the sum: the weights' time in flight is hidden behind it. */
    const int64_t first = 8 * threadIdx.x, step = 8 * blockDim.x;
    krn_let_next_begin();
    const uint4 weight = krn_load8(w + first, dim - first, aligned);
    krn_wait_for_previous();
    const uint4 mine = group_at(first);
    meanwhile();
    double sum = krn_rmsnorm_add(mine, 0.0);
    for (int64_t i = first + step; i < dim; i += step) sum = krn_rmsnorm_add(group_at(i), sum);
    sum = krn_block_sum(sum, warp_sums);                                                             /* R1 */
    if (threadIdx.x == 0) inv_rms = krn_rmsnorm_inverse(sum, dim, eps);                              /* R2..R4 */
    __syncthreads();
    put(first, mine, krn_rmsnorm_scale(mine, weight, inv_rms));
    for (int64_t i = first + step; i < dim; i += step) {
        const uint4 x = group_at(i);
        put(i, x, krn_rmsnorm_scale(x, krn_load8(w + i, dim - i, aligned), inv_rms));
    }
}

#endif
