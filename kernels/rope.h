/* krn_rope, krn_rope_ref - rotates the last rope_dim elements of every head by the row's position; plain RoPE, no YaRN.
 *
 * Shapes    x, y [rows, heads, head_dim] bf16, dense; pos [rows]; freq [rope_dim / 2] from krn_rope_freqs
 *           rope_dim even, 2 <= rope_dim <= head_dim; kv rows have heads == 1
 * Pairs     interleaved: elements (head_dim - rope_dim + 2i, + 2i + 1) are (re, im) of pair i. Never halves
 * Rounding  R1 angle = f32(f32(pos) * freq[i]): rounded, part of the function at long positions
 *           R2 c = cos(angle), s = sin(angle): double, rounded to f32 once; inverse: s = -s
 *           R3 re' = re*c - im*s, im' = re*s + im*c: blocked, each product and the sum to f32; F64, in double, then f32
 *           R4 f32 to bf16, nearest even
 * Order     as written; no sums longer than two
 * Match     freq (made on the host) and angle bit-equal everywhere; c and s as far as two good double cosines round to the
 *           same f32 (all but about one in 2^28). R3 within Bound; CUDA: bit-equal to blocked from the same c and s
 * Bound     before R4: 2 * 2^-24 * (|re*c| + |im*s|), likewise for im': covers contraction to FMA
 * Kept      the first head_dim - rope_dim elements of every head are copied bit for bit (NaN payloads too)
 * Aliasing  y may be x; no other overlap
 * Rows      each head of each row depends on itself and its pos alone
 * Threads   one
 * Graph     krn_rope: one launch on stream, no sync, no allocation, no host read; x, y, pos and freq are device memory.
 *           ERR_ARG for shapes outside the contract, rope_dim > 8192 and heads > 65535 * 8, ERR_DEVICE for a refused
 *           launch */
#ifndef KERNELS_ROPE_H
#define KERNELS_ROPE_H

#include "kernels/bound.h"
#include "kernels/device.h"
#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* freq[i] = f32(1 / f32(theta^(2i / rope_dim))), i < rope_dim / 2: the exponent is an f32 quotient, the power is taken in
 * double and rounded to f32, its reciprocal is rounded again. With one rounding a third of the pairs would differ. */
void krn_rope_freqs(double theta, int32_t rope_dim, float *freq);

void krn_rope_ref(const bf16 *x, bf16 *y, int32_t rows, int32_t heads, int32_t head_dim, int32_t rope_dim,
                  const int32_t *pos, const float *freq, bool inverse, krn_acc acc);
MUST_USE err_code krn_rope(const bf16 *x, bf16 *y, int32_t rows, int32_t heads, int32_t head_dim, int32_t rope_dim,
                           const int32_t *pos, const float *freq, bool inverse, krn_stream stream, err *e);

/* krn_rope_bound - one pair before R4, from bounded re and im: Bound. out {re', im'}. */
void krn_rope_bound(krn_span re, krn_span im, int32_t pos, float freq, bool inverse, krn_span out[2]);

#ifdef __cplusplus
}
#endif

#endif
