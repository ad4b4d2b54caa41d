/* What the inputs of a linear are like, in the form that LDLQ takes over errors with.
 *
 * Of T input rows x [k], padded with zeros to n, a multiple of 128:
 *   x' = (x * sign) with the Hadamard transform of each 128, 1 / sqrt(128)    the basis that tiles are chosen in
 *   H = sum of x'^T x' / T + 0.025 * (trace / k) I                            rows with an infinity or NaN left out
 *   H = L D L^T, L with unit 16 x 16 blocks on its diagonal, D of 16 x 16 blocks
 * Where a block of D is not positive 0.05 * (trace / k) more is added to the diagonal, up to ten times. Everything in
 * double, L and D kept as f32. */
#ifndef ENGINE_QUANTIZE_HESSIAN_H
#define ENGINE_QUANTIZE_HESSIAN_H

#include "base/err.h"
#include "engine/noise.h"

enum { ENG_HESSIAN_BLOCK = 16 };

typedef struct eng_hessian {
    int32_t n;
    float *lower; /* [n, n] L: row c has columns before its block */
    float *pivot; /* [n/16, 16, 16] D */
} eng_hessian;

/* x [rows, k]. *out is NULL, without an error, where there is nothing to be had: no finite row, a trace below 1e-20 k, or a
 * D that stays not positive. ERR_NOMEM. */
MUST_USE err_code eng_hessian_open(const float *x, int64_t rows, int32_t k, uint64_t sign_key, eng_hessian **out, err *e);
void eng_hessian_close(eng_hessian *h); /* NULL is a no-op */

/* -1 or 1: element i of a stream. */
static inline float eng_exl3_sign(uint64_t key, int64_t i)
{
    return eng_noise_bits(key, (uint64_t)i) >> 63 ? -1.0f : 1.0f;
}
/* x [128] in place: the butterfly with strides 1, 2, ..., 64, then times 1 / sqrt(128). f32. */
void eng_exl3_hadamard(float x[128]);

#endif
