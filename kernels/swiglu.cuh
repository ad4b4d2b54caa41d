/* SwiGLU of one element on the device, shared by swiglu.cu and the fused kernels. R1..R5: kernels/swiglu.h. */
#ifndef KERNELS_SWIGLU_CUH
#define KERNELS_SWIGLU_CUH

#include "kernels/bits.cuh"

/* R2..R4 from the rounded exponential. */
__device__ __forceinline__ float krn_swiglu_product(float gate, float up, float e, float weight)
{
    return __fmul_rn(weight, __fmul_rn(__fdiv_rn(gate, __fadd_rn(1.0f, e)), up));
}

/* Two exponentials an ulp or two apart give products at most some 12 ulp apart: R1..R4 add one each, and an ulp may halve.
 * A product further than this from a tie of bf16 rounds the same way whichever was used. */
__device__ __forceinline__ bool krn_swiglu_near_a_tie(float v)
{
    enum { NEAR = 32 };
    int32_t below = (int32_t)(__float_as_uint(v) & 0xffff) - 0x8000;
    return below >= -NEAR && below <= NEAR;
}

/* weight: the row's; 1 for the shared expert, which changes no bit of h. */
__device__ __forceinline__ bf16 krn_swiglu_of(bf16 g, bf16 u, float weight, float limit)
{
    float gate = krn_f32_of(g), up = krn_f32_of(u);
    /* Comparisons written so that NaN passes. */
    if (gate > limit) gate = limit;
    if (up > limit) up = limit;
    if (up < -limit) up = -limit;
    float v = krn_swiglu_product(gate, up, expf(-gate), weight);
    if (krn_swiglu_near_a_tie(v)) v = krn_swiglu_product(gate, up, (float)exp(-(double)gate), weight); /* R1 */
    return krn_bf16_of(v);                                                                           /* R5 */
}

#endif
