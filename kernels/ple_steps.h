/* The steps of kernels/ple.h on a single number, written once for the twins and CUDA: IEEE operations of f32 alone, so that
 * both give the same bits. No product may be contracted with a sum here (-ffp-contract=off, --fmad=false). */
#ifndef KERNELS_PLE_STEPS_H
#define KERNELS_PLE_STEPS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define KRN_PLE_STEP __host__ __device__ static inline
#else
#define KRN_PLE_STEP static inline
#endif

/* What depends on n alone: 1/n, and 1/sqrt(n) in double rounded once. */
typedef struct krn_ple_scale { float inv_n, inv_sqrt_n; } krn_ple_scale;
static inline krn_ple_scale krn_ple_scale_of(int32_t n)
{
    const krn_ple_scale scale = { 1.0f / (float)n, (float)(1.0 / sqrt((double)n)) };
    return scale;
}

/* R5 */
KRN_PLE_STEP float krn_ple_inv_rms(float sum, float inv_n) { return 1.0f / sqrtf(fmaf(sum, inv_n, 1e-6f)); }

/* 2^k, -126 <= k <= 127. */
KRN_PLE_STEP float krn_ple_power_of_two(int32_t k)
{
    const uint32_t bits = (uint32_t)(k + 127) << 23;
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

/* exp(x) within an ulp, for any x. x = k * log(2) + f, |f| below 0.35: the terms of exp(f) up to f^7 leave 2^-27. The first
 * part of log(2) has 15 bits, so that its product with k and the difference from x are exact. */
KRN_PLE_STEP float krn_ple_exp(float x)
{
    if (x != x) return x;
    if (x > 100.0f) x = 100.0f; /* beyond both ends of the range of f32 */
    if (x < -110.0f) x = -110.0f;
    const float k = rintf(x * 0x1.715476p+0f);
    const float f = fmaf(k, -0x1.7f7d1cp-20f, fmaf(k, -0x1.62e4p-1f, x));
    float p = fmaf(f, 1.0f / 5040, 1.0f / 720);
    p = fmaf(f, p, 1.0f / 120);
    p = fmaf(f, p, 1.0f / 24);
    p = fmaf(f, p, 1.0f / 6);
    p = fmaf(f, p, 0.5f);
    p = fmaf(f, p, 1.0f);
    p = fmaf(f, p, 1.0f);
    /* In two halves, as 2^k itself may be outside of f32 where exp(x) is not. */
    const int32_t half = (int32_t)k / 2;
    return p * krn_ple_power_of_two(half) * krn_ple_power_of_two((int32_t)k - half);
}

/* R8: z = sign(a) * sqrt(max(|a|, 1e-6)), 1 / (1 + exp(-z)). A NaN passes. */
KRN_PLE_STEP float krn_ple_gate(float a)
{
    const float magnitude = fabsf(a), z = sqrtf(magnitude < 1e-6f ? 1e-6f : magnitude);
    return 1.0f / (1.0f + krn_ple_exp(a == 0.0f ? 0.0f : -copysignf(z, a)));
}

#endif
