/* RoPE on the device, shared by rope.cu and the fused kernels. R1..R4: kernels/rope.h. */
#ifndef KERNELS_ROPE_CUH
#define KERNELS_ROPE_CUH

#include "kernels/bits.cuh"

enum { KRN_ROPE_DIM_MAX = 8192 }; /* turns of a row are kept in shared memory */

/* (c, s) of one pair at one position: double sine and cosine, the dear part. */
__device__ __forceinline__ float2 krn_rope_turn(int32_t pos, float freq, bool inverse)
{
    float angle = __fmul_rn(__int2float_rn(pos), freq);                                              /* R1 */
    double s, c;
    sincos((double)angle, &s, &c);
    return make_float2((float)c, inverse ? -(float)s : (float)s);                                    /* R2 */
}

/* pair: re in the low half, im in the high one. */
__device__ __forceinline__ uint32_t krn_rope_pair(uint32_t pair, float2 turn)
{
    float v[2];
    krn_unpack2(pair, v);
    return krn_pack2(__fsub_rn(__fmul_rn(v[0], turn.x), __fmul_rn(v[1], turn.y)),                    /* R3, R4 */
                     __fadd_rn(__fmul_rn(v[0], turn.y), __fmul_rn(v[1], turn.x)));
}

/* Eight elements: pair i of them is pair first + i of the tail, kept bit for bit where that is not among its n_pairs.
 * turns [n_pairs]. */
__device__ __forceinline__ uint4 krn_rope_group(uint4 x, const float2 *turns, int32_t first, int32_t n_pairs)
{
    uint32_t word[4] = { x.x, x.y, x.z, x.w };
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (first + i >= 0 && first + i < n_pairs) word[i] = krn_rope_pair(word[i], turns[first + i]);
    return make_uint4(word[0], word[1], word[2], word[3]);
}

#endif
