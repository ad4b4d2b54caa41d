/* krn_swiglu, krn_swiglu_ref - h = silu(min(g, limit)) * clamp(u, -limit, limit) [* route_weight]: the middle of an expert.
 *
 * Shapes    g, u, h [rows, cols] bf16, dense; route_weight [rows] f32, or NULL for the shared expert
 * Clamps    on the bf16 results of w1 and w3, before the product. g has no lower clamp; u has both
 * Rounding  R1 e = exp(-g): double, rounded to f32; 1 + e to f32
 *           R2 g / (1 + e) to f32
 *           R3 * u to f32
 *           R4 routed: route_weight * R3 to f32 (before w2, so that it passes through the quantisation of w2's input)
 *           R5 f32 to bf16, nearest even; the only bf16 rounding
 * Order     element by element
 * Match     CUDA: bit-equal, as far as two good double exponentials round to the same f32: an f32 exponential decides where
 *           R5 is sure whatever its error, else the element is done again with the double one
 * Bound     before R5: 5 ulp of f32, from the given g, u (exp within 1 ulp allowed for). exp(-g) overflows to inf below
 *           g = -88.7: the result is then a signed zero, not NaN
 * NaN       passes through both clamps
 * Aliasing  h may be g or u; no other overlap
 * Rows      each element depends on its own g, u and its row's weight alone
 * Threads   one
 * Graph     krn_swiglu: one launch on stream, no sync, no allocation, no host read; all pointers are device memory.
 *           ERR_ARG for negative shapes and cols > 65535 * 256, ERR_DEVICE for a refused launch */
#ifndef KERNELS_SWIGLU_H
#define KERNELS_SWIGLU_H

#include "kernels/bound.h"
#include "kernels/device.h"
#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

void krn_swiglu_ref(const bf16 *g, const bf16 *u, const float *route_weight, float limit, bf16 *h, int32_t rows,
                    int32_t cols);
MUST_USE err_code krn_swiglu(const bf16 *g, const bf16 *u, const float *route_weight, float limit, bf16 *h, int32_t rows,
                             int32_t cols, krn_stream stream, err *e);

/* krn_swiglu_bound - one element before R5, from bounded g and u: Bound. route_weight 1 for the shared expert. */
krn_span krn_swiglu_bound(krn_span g, krn_span u, double route_weight, float limit);

#ifdef __cplusplus
}
#endif

#endif
