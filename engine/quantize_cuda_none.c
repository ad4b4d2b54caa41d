/* The encoder on a card in a build without CUDA: it refuses, and nothing else is ever reached. */
#include "engine/quantize_encoder.h"

err_code eng_encoder_cuda_open(int64_t batch, eng_encoder_cuda **out, err *e)
{
    (void)batch, (void)out;
    return err_set(e, ERR_DEVICE, "--backend cuda: this build has no CUDA backend");
}
void eng_encoder_cuda_close(eng_encoder_cuda *x) { CHECK(!x); }
float *eng_encoder_cuda_weights(eng_encoder_cuda *x) { (void)x; return NULL; }
err_code eng_encoder_cuda_run(eng_encoder_cuda *x, int64_t n, krn_exl3_code code, uint16_t *tiles, double *error, err *e)
{
    (void)x, (void)n, (void)code, (void)tiles, (void)error;
    return err_set(e, ERR_DEVICE, "--backend cuda: this build has no CUDA backend");
}
