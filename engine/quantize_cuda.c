#include "engine/quantize_encoder.h"

#include <string.h>

#include "base/mem.h"
#include "kernels/device.h"

enum { TILE_BYTES_MAX = 32 * FMT_EXL3_BITS_MAX };

struct eng_encoder_cuda {
    krn_stream stream;
    float *host, *weights;      /* [batch, 256] pinned, device */
    uint16_t *host_tiles, *tiles;
    double *host_error, *error; /* [batch] */
    float *values;              /* [65536] of codebook */
    void *scratch;              /* for bits */
    krn_exl3_code made_for;     /* values and scratch; bits 0: none yet */
};

err_code eng_encoder_cuda_open(int64_t batch, eng_encoder_cuda **out, err *e)
{
    *out = NULL;
    if (krn_device_count() == 0) return err_set(e, ERR_DEVICE, "--backend cuda: found no CUDA device");
    const uint64_t n = (uint64_t)batch, weight_bytes = n * FMT_EXL3_TILE_WEIGHTS * sizeof(float);
    eng_encoder_cuda *x = mem_alloc(1, sizeof *x);
    if (!x) return err_set(e, ERR_NOMEM, "no memory for an encoder");
    err_code rc = krn_device_use(0, e);
    if (rc == ERR_OK) rc = krn_stream_open(&x->stream, e);
    if (rc == ERR_OK) rc = krn_pinned_alloc(weight_bytes, (void **)&x->host, e);
    if (rc == ERR_OK) rc = krn_pinned_alloc(n * TILE_BYTES_MAX, (void **)&x->host_tiles, e);
    if (rc == ERR_OK) rc = krn_pinned_alloc(n * sizeof(double), (void **)&x->host_error, e);
    if (rc == ERR_OK) rc = krn_device_alloc(weight_bytes, (void **)&x->weights, e);
    if (rc == ERR_OK) rc = krn_device_alloc(n * TILE_BYTES_MAX, (void **)&x->tiles, e);
    if (rc == ERR_OK) rc = krn_device_alloc(n * sizeof(double), (void **)&x->error, e);
    if (rc == ERR_OK) rc = krn_device_alloc(FMT_EXL3_STATES * sizeof(float), (void **)&x->values, e);
    if (rc == ERR_OK) *out = x;
    else eng_encoder_cuda_close(x);
    return rc;
}

void eng_encoder_cuda_close(eng_encoder_cuda *x)
{
    if (!x) return;
    krn_device_free(x->scratch);
    krn_device_free(x->values);
    krn_device_free(x->error);
    krn_device_free(x->tiles);
    krn_device_free(x->weights);
    krn_pinned_free(x->host_error);
    krn_pinned_free(x->host_tiles);
    krn_pinned_free(x->host);
    krn_stream_close(x->stream);
    free(x);
}

float *eng_encoder_cuda_weights(eng_encoder_cuda *x) { return x->host; }

static err_code prepare(eng_encoder_cuda *x, krn_exl3_code code, err *e)
{
    bool done;
    if (x->made_for.bits != code.bits) {
        uint64_t bytes;
        krn_device_free(x->scratch);
        x->scratch = NULL;
        x->made_for.bits = 0;
        TRY(krn_exl3_encode_scratch(code.bits, &bytes, e));
        TRY(krn_device_alloc(bytes, &x->scratch, e));
        x->made_for.seam = 0; /* the codebook is copied anew too */
    }
    if (x->made_for.seam == 0 || x->made_for.codebook != code.codebook) {
        TRY(krn_copy(x->values, fmt_exl3_table(code.codebook), FMT_EXL3_STATES * sizeof(float), x->stream, e));
        TRY(krn_stream_wait(x->stream, 0, &done, e));
    }
    x->made_for = code;
    return ERR_OK;
}

err_code eng_encoder_cuda_run(eng_encoder_cuda *x, int64_t n, krn_exl3_code code, uint16_t *tiles, double *error, err *e)
{
    bool done;
    const uint64_t count = (uint64_t)n, tile_bytes = count * (uint64_t)fmt_exl3_tile_bytes(code.bits);
    if (n == 0) return ERR_OK;
    TRY(prepare(x, code, e));
    TRY(krn_copy(x->weights, x->host, count * FMT_EXL3_TILE_WEIGHTS * sizeof(float), x->stream, e));
    TRY(krn_exl3_encode_tiles(x->weights, n, code, x->values, x->scratch, x->tiles, x->error, x->stream, e));
    TRY(krn_copy(x->host_tiles, x->tiles, tile_bytes, x->stream, e));
    TRY(krn_copy(x->host_error, x->error, count * sizeof(double), x->stream, e));
    TRY(krn_stream_wait(x->stream, 0, &done, e));
    memcpy(tiles, x->host_tiles, tile_bytes);
    memcpy(error, x->host_error, count * sizeof(double));
    return ERR_OK;
}
