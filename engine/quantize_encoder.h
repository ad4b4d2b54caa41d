/* Where EXL3 tiles are encoded: on the CPU or on a card. The bits are the same. */
#ifndef ENGINE_QUANTIZE_ENCODER_H
#define ENGINE_QUANTIZE_ENCODER_H

#include "kernels/exl3_encode.h"

typedef struct eng_encoder eng_encoder;

/* krn_exl3_code's seam: within 0.5 % of the full search's error for 0.7 of its work. */
enum { ENG_ENCODER_SEAM = 96 };

/* cuda: the current device 0; ERR_DEVICE without one or in a build without CUDA. ERR_NOMEM. */
MUST_USE err_code eng_encoder_open(bool cuda, eng_encoder **out, err *e);
void eng_encoder_close(eng_encoder *x); /* NULL is a no-op */
/* Where the weights of a batch go, [eng_encoder_batch, 256] in position order; taken by eng_encoder_run. */
float *eng_encoder_weights(eng_encoder *x);
int64_t eng_encoder_batch(const eng_encoder *x);
/* The first n tiles of them, 0 <= n <= the batch. tiles and error: host memory. */
MUST_USE err_code eng_encoder_run(eng_encoder *x, int64_t n, krn_exl3_code code, uint16_t *tiles, double *error, err *e);

/* The part of it that works on a card (quantize_cuda.c, in a build without CUDA quantize_cuda_none.c). */
typedef struct eng_encoder_cuda eng_encoder_cuda;
MUST_USE err_code eng_encoder_cuda_open(int64_t batch, eng_encoder_cuda **out, err *e);
void eng_encoder_cuda_close(eng_encoder_cuda *x);
float *eng_encoder_cuda_weights(eng_encoder_cuda *x); /* pinned */
MUST_USE err_code eng_encoder_cuda_run(eng_encoder_cuda *x, int64_t n, krn_exl3_code code, uint16_t *tiles, double *error,
                                       err *e);

#endif
