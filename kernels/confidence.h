/* krn_confidence_ref - proj . [hidden | markov]: the raw confidence of one drafted position (no sigmoid).
 *
 * Shapes    hidden [dim] bf16: the collapsed stream before the final norm; markov [rank] bf16: the Markov embedding of the
 *           PREVIOUS token; w [dim + rank] bf16.  dim >= 1, rank >= 0
 * Rounding  R1 blocked: f32 adds of exact products; F64: double, rounded to f32 once
 * Order     lanes16 over the joined row of dim + rank elements: element i of it belongs to lane i % 16
 * Match     CUDA: inside Bound
 * Bound     parity's of a dot product: 6 * 2^-24 * sqrt(dim + rank) * sum |x * w|
 * Threads   one */
#ifndef KERNELS_CONFIDENCE_H
#define KERNELS_CONFIDENCE_H

#include "kernels/kernels.h"

float krn_confidence_ref(const bf16 *hidden, int32_t dim, const bf16 *markov, int32_t rank, const bf16 *w, krn_acc acc);

#endif
