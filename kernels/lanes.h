/* The canonical sum "lanes16" of kernels.h for rows of bf16, shared by the twins.
 *
 * Element i goes to lane i % 16, in order, so sixteen sums run side by side and compile to vectors on any instruction set
 * without a change of order; a halving tree joins them. Products of two bf16 are exact in f32 (barring over- and underflow)
 * and in double. A tail shorter than 16 leaves the other lanes as they are. */
#ifndef KERNELS_LANES_H
#define KERNELS_LANES_H

#include "kernels/kernels.h"

/* lane i += lane i+8, then +4, +2, +1. Destroys lane. */
static inline float krn_lanes_join_f32(float lane[KRN_LANES])
{
    for (int half = KRN_LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) lane[i] += lane[i + half];
    return lane[0];
}

static inline double krn_lanes_join_f64(double lane[KRN_LANES])
{
    for (int half = KRN_LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) lane[i] += lane[i + half];
    return lane[0];
}

/* sum x[i] * w[i], i < n; f32 adds. */
static inline float krn_lanes_dot_f32(const bf16 *x, const bf16 *w, int64_t n)
{
    float lane[KRN_LANES] = { 0 };
    int64_t i = 0;
    for (; i + KRN_LANES <= n; i += KRN_LANES)
        for (int j = 0; j < KRN_LANES; j++) lane[j] += f32_from_bf16(x[i + j]) * f32_from_bf16(w[i + j]);
    for (int j = 0; i < n; i++, j++) lane[j] += f32_from_bf16(x[i]) * f32_from_bf16(w[i]);
    return krn_lanes_join_f32(lane);
}

/* The same with double adds; not rounded to f32. */
static inline double krn_lanes_dot_f64(const bf16 *x, const bf16 *w, int64_t n)
{
    double lane[KRN_LANES] = { 0 };
    int64_t i = 0;
    for (; i + KRN_LANES <= n; i += KRN_LANES)
        for (int j = 0; j < KRN_LANES; j++) lane[j] += (double)f32_from_bf16(x[i + j]) * (double)f32_from_bf16(w[i + j]);
    for (int j = 0; i < n; i++, j++) lane[j] += (double)f32_from_bf16(x[i]) * (double)f32_from_bf16(w[i]);
    return krn_lanes_join_f64(lane);
}

/* 1 / sqrt(mean(x*x) + eps) of n elements, rounding points R1..R4 of kernels/rmsnorm.h. */
static inline float krn_lanes_inv_rms(const bf16 *x, int64_t n, float eps)
{
    float mean = (float)(krn_lanes_dot_f64(x, x, n) / (double)n);
    return krn_f32_rsqrt(mean + eps);
}

#endif
