/* krn_swiglu_ref - h = silu(min(g, limit)) * clamp(u, -limit, limit) [* route_weight]: the middle of an expert.
 *
 * Shapes    g, u, h [rows, cols] bf16, dense; route_weight [rows] f32, or NULL for the shared expert
 * Clamps    on the bf16 results of w1 and w3, before the product. g has no lower clamp; u has both
 * Rounding  R1 e = exp(-g): double, rounded to f32; 1 + e to f32
 *           R2 g / (1 + e) to f32
 *           R3 * u to f32
 *           R4 routed: route_weight * R3 to f32 (before w2, so that it passes through the quantisation of w2's input)
 *           R5 f32 to bf16, nearest even; the only bf16 rounding
 * Order     element by element
 * Match     CUDA: inside Bound
 * Bound     before R5: 5 ulp of f32, from the given g, u (exp within 1 ulp allowed for). exp(-g) overflows to inf below
 *           g = -88.7: the result is then a signed zero, not NaN
 * NaN       passes through both clamps
 * Aliasing  h may be g or u; no other overlap
 * Rows      each element depends on its own g, u and its row's weight alone
 * Threads   one */
#ifndef KERNELS_SWIGLU_H
#define KERNELS_SWIGLU_H

#include "kernels/kernels.h"

void krn_swiglu_ref(const bf16 *g, const bf16 *u, const float *route_weight, float limit, bf16 *h, int32_t rows,
                    int32_t cols);

#endif
