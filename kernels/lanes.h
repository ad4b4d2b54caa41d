/* The canonical sum "lanes16" of kernels.h for rows of bf16, shared by the twins.
 *
 * Element i goes to lane i % 16, in order, so sixteen sums run side by side and compile to vectors on any instruction set
 * without a change of order; a halving tree joins them. Products of two bf16 are exact in f32 (barring over- and underflow)
 * and in double. A tail shorter than 16 leaves the other lanes as they are. Where speed counts: kernels/row_loops.c. */
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

#endif
