/* The trip through e4m3 on the device, shared by act_qdq.cu and the fused kernels. R1, R2: kernels/act_qdq.h. */
#ifndef KERNELS_QDQ_CUH
#define KERNELS_QDQ_CUH

#include "kernels/bits.cuh"

/* What an element adds to its group's amax: magnitudes order as their bits do; NaN takes no part. */
__device__ __forceinline__ uint32_t krn_qdq_magnitude(uint32_t bits)
{
    bits &= 0x7fff;
    return bits > 0x7f80 ? 0 : bits;
}

/* fmt_qdq_scale, by the same bits. amax: the largest krn_qdq_magnitude. */
__device__ __forceinline__ uint32_t krn_qdq_scale(uint32_t amax)
{
    float largest = __uint_as_float(amax << 16);
    uint32_t t = __float_as_uint(__fmul_rn(fmaxf(largest, 1e-4f), (float)(1.0 / 448.0)));            /* R1 */
    return ((t >> 23) + ((t & 0x7fffff) != 0)) & 0xff;
}

/* 2^(b - 127), b below 255; 0 is the subnormal 2^-127. */
__device__ __forceinline__ float krn_qdq_power(uint32_t b) { return __uint_as_float(b ? b << 23 : 0x400000); }

/* The value of the nearest e4m3 code, ties to even, saturating; NaN stays NaN. */
__device__ __forceinline__ float krn_e4m3_round(float v)
{
    float a = fabsf(v);
    if (a >= 448.0f) return copysignf(448.0f, v);
    if (a < 0x1p-6f) return copysignf(__fsub_rn(__fadd_rn(a, 0x1p14f), 0x1p14f), v); /* multiples of 2^-9 */
    uint32_t u = __float_as_uint(a);
    u += 0x7ffff + (u >> 20 & 1);
    return a != a ? a : copysignf(__uint_as_float(u & 0xfff00000), v);                               /* R2 */
}

/* An element under its group's scale. The rounding to bf16 is exact, but for a NaN and what lies beyond bf16's range. */
__device__ __forceinline__ bf16 krn_qdq_value(bf16 bits, uint32_t scale)
{
    const float nan = __uint_as_float(0x7fc00000);
    float inverse = scale == FMT_E8M0_NAN ? nan : krn_qdq_power(2 * FMT_E8M0_BIAS - scale);
    float code = krn_e4m3_round(__fmul_rn(krn_f32_of(bits), inverse));
    return krn_bf16_of(scale == FMT_E8M0_NAN ? nan : __fmul_rn(code, krn_qdq_power(scale)));
}

/* A group in a warp, an element a lane; all lanes call. */
__device__ __forceinline__ bf16 krn_qdq_warp(bf16 bits)
{
    uint32_t amax = krn_qdq_magnitude(bits);
    for (int apart = KRN_WARP / 2; apart > 0; apart /= 2) amax = max(amax, __shfl_xor_sync(0xffffffff, amax, apart));
    return krn_qdq_value(bits, krn_qdq_scale(amax));
}

/* A group in four neighbouring lanes, the first a multiple of 4, eight elements each; all four call. The block is
 * one-dimensional. */
__device__ __forceinline__ uint4 krn_qdq_quad(uint4 x)
{
    const uint32_t word[4] = { x.x, x.y, x.z, x.w }, lanes = 0xfu << (threadIdx.x % KRN_WARP / 4 * 4);
    uint32_t amax = 0, out[4];
#pragma unroll
    for (int i = 0; i < 4; i++) amax = max(amax, max(krn_qdq_magnitude(word[i]), krn_qdq_magnitude(word[i] >> 16)));
    for (int apart = 2; apart > 0; apart /= 2) amax = max(amax, __shfl_xor_sync(lanes, amax, apart));
    const uint32_t scale = krn_qdq_scale(amax);
#pragma unroll
    for (int i = 0; i < 4; i++)
        out[i] = krn_qdq_value((bf16)word[i], scale) | (uint32_t)krn_qdq_value((bf16)(word[i] >> 16), scale) << 16;
    return make_uint4(out[0], out[1], out[2], out[3]);
}

#endif
