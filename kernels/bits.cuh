/* What the kernels share on the device: bf16 as bits, loads and stores of 16 bytes, sums in a written-down order.
 *
 * bf16 stays the uint16_t of formats/number.h: CUDA's own conversion makes another NaN, so rounding is done on the bits.
 * Everything is inline and free of state; only .cu files include it. */
#ifndef KERNELS_BITS_CUH
#define KERNELS_BITS_CUH

#include "formats/number.h"

enum { KRN_WARP = 32 };

__device__ __forceinline__ float krn_f32_of(bf16 b) { return __uint_as_float((uint32_t)b << 16); }

/* bf16_from_f32: nearest even, every NaN to 0x7fc0. */
__device__ __forceinline__ bf16 krn_bf16_of(float v)
{
    uint32_t u = __float_as_uint(v);
    return (u & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : (bf16)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

__device__ __forceinline__ float krn_bf16_rounded(float v) { return krn_f32_of(krn_bf16_of(v)); }

/* ---- 16 bytes ---- p must be 16-byte aligned; krn_aligned says whether a pointer is, or a stride keeps rows so */
__host__ __device__ __forceinline__ bool krn_aligned(const void *p) { return ((uintptr_t)p & 15) == 0; }
__host__ __device__ __forceinline__ bool krn_aligned(const void *p, int64_t stride_bytes)
{
    return (((uintptr_t)p | (uint64_t)stride_bytes) & 15) == 0;
}

/* Element 0 of eight bf16 is the low half of x. */
__device__ __forceinline__ uint4 krn_load16(const void *p) { return *(const uint4 *)p; }
__device__ __forceinline__ void krn_store16(void *p, uint4 v) { *(uint4 *)p = v; }

/* Eight bf16 of a row with n left from p on: fewer than eight are filled up with +0. aligned false: one by one. */
__device__ __forceinline__ uint4 krn_load8(const bf16 *p, int64_t n, bool aligned)
{
    if (aligned && n >= 8) return krn_load16(p);
    uint32_t word[4] = { 0 };
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (i < n) word[i / 2] |= (uint32_t)p[i] << 16 * (i % 2);
    return make_uint4(word[0], word[1], word[2], word[3]);
}
/* Stores the first n of them, at most eight. */
__device__ __forceinline__ void krn_store8(bf16 *p, uint4 v, int64_t n, bool aligned)
{
    if (aligned && n >= 8) {
        krn_store16(p, v);
        return;
    }
    const uint32_t word[4] = { v.x, v.y, v.z, v.w };
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (i < n) p[i] = (bf16)(word[i / 2] >> 16 * (i % 2));
}

__device__ __forceinline__ void krn_unpack2(uint32_t pair, float out[2])
{
    out[0] = __uint_as_float(pair << 16);
    out[1] = __uint_as_float(pair & 0xffff0000);
}
__device__ __forceinline__ uint32_t krn_pack2(float low, float high)
{
    return (uint32_t)krn_bf16_of(low) | (uint32_t)krn_bf16_of(high) << 16;
}
__device__ __forceinline__ void krn_unpack8(uint4 v, float out[8])
{
    krn_unpack2(v.x, out);
    krn_unpack2(v.y, out + 2);
    krn_unpack2(v.z, out + 4);
    krn_unpack2(v.w, out + 6);
}
/* Rounds each. */
__device__ __forceinline__ uint4 krn_pack8(const float v[8])
{
    return make_uint4(krn_pack2(v[0], v[1]), krn_pack2(v[2], v[3]), krn_pack2(v[4], v[5]), krn_pack2(v[6], v[7]));
}

/* ---- sums ---- of f32 or double; all threads call, all get the same bits */
/* Lanes 16 apart are added, then 8, 4, 2, 1 apart. */
template <typename F> __device__ __forceinline__ F krn_warp_sum(F v)
{
    for (int apart = KRN_WARP / 2; apart > 0; apart /= 2) v += __shfl_xor_sync(0xffffffff, v, apart);
    return v;
}

/* krn_warp_sum of every warp's krn_warp_sum, warp i in lane i and +0 in the lanes past the last warp. blockDim.x is a
 * multiple of 32, at most 1024; the block is one-dimensional. shared holds an F a warp, and may be used for something
 * else, or for the next sum, only after another __syncthreads. */
template <typename F> __device__ __forceinline__ F krn_block_sum(F v, F *shared)
{
    int lane = threadIdx.x % KRN_WARP, n_warps = blockDim.x / KRN_WARP;
    v = krn_warp_sum(v);
    if (lane == 0) shared[threadIdx.x / KRN_WARP] = v;
    __syncthreads();
    return krn_warp_sum(lane < n_warps ? shared[lane] : F(0));
}

/* Blocks of `threads` that cover n elements. */
__host__ __device__ __forceinline__ int64_t krn_blocks(int64_t n, int32_t threads) { return (n + threads - 1) / threads; }

#endif
