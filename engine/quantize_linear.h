/* One linear to EXL3 (formats/exl3.h), without and with a Hessian.
 *
 * W [out, in], as official checkpoints have it, padded with zeros to multiples of 128, becomes
 *   1. every output divided by svh: sign * RMS of the output / mean RMS of all, rounded to fp16; of a block with outputs
 *      that are zero less by the share that the next step spreads over them
 *   2. Hadamard over each 128 outputs, 1 / sqrt(128)
 *   3. every input divided by suh: sign * RMS of the input / (g * RMS of the codebook), likewise
 *   4. Hadamard over each 128 inputs, 1 / sqrt(128): near N(0, g * RMS of the codebook)
 *   5. tiles, each to the nearest one of the codebook's (kernels/exl3_encode.h)
 * Outputs and inputs that are all zero, as the padding is, get a scale of 0 and stay exactly zero. g is a table: the best
 * for normal weights, which the transforms make of nearly any. Where the weights as a whole are outside of what suh in fp16
 * holds well a power of two goes to svh.
 *
 * All sums are in double or along one element, in an order of their own: bits do not depend on threads or the backend. */
#ifndef ENGINE_QUANTIZE_LINEAR_H
#define ENGINE_QUANTIZE_LINEAR_H

#include "engine/quantize_encoder.h"
#include "engine/quantize_hessian.h"
#include "kernels/linear.h"

typedef struct eng_exl3_linear {
    int32_t in, out;        /* padded: multiples of 128 */
    uint16_t *tiles;        /* [in/16, out/16, 16 * bits] */
    fp16 *suh, *svh;        /* [in], [out] */
    double weight2, error2; /* sums of squares after step 4: the weights', and of what became of them */
    double proxy;           /* tr(E^T H E) / tr(W^T H W) with a Hessian, else 0 */
} eng_exl3_linear;

/* Where the signs come from: streams of engine/noise.h. Linears with one input share the input's. */
typedef struct eng_exl3_signs { uint64_t in, out; } eng_exl3_signs;

/* Called after every batch of tiles; anything but ERR_OK ends the linear with that error. NULL: nobody is told. */
typedef err_code (*eng_exl3_tiles_done)(void *ctx, int64_t tiles, err *e);

/* w: an official weight, finite. hessian NULL: every tile alone. Else LDLQ: from the last 16 inputs to the first, each
 * taking over what the ones after it got wrong. hessian is for w's inputs and signs.in. Memory: 4 bytes a weight, with a
 * Hessian 8. ERR_INPUT: weights of about 2^27 and more. ERR_NOMEM, ERR_DEVICE, done's. *out is empty on error;
 * eng_exl3_linear_fini after success. */
MUST_USE err_code eng_exl3_quantize(const krn_weight *w, krn_exl3_code code, eng_exl3_signs signs, eng_encoder *encoder,
                                    const eng_hessian *hessian, eng_exl3_tiles_done done, void *ctx, eng_exl3_linear *out,
                                    err *e);
void eng_exl3_linear_fini(eng_exl3_linear *x);

#endif
