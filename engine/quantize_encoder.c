#include "engine/quantize_encoder.h"

#include "base/mem.h"

/* Tiles of one call: some seconds of work on two cores, so that progress shows and Ctrl-C is heard; on a card enough that
 * the last wave of blocks does not show. */
enum { BATCH_CPU = 512, BATCH_CUDA = 1 << 15 };

struct eng_encoder {
    int64_t batch;
    float *weights;         /* CPU */
    eng_encoder_cuda *cuda; /* NULL: CPU */
};

err_code eng_encoder_open(bool cuda, eng_encoder **out, err *e)
{
    *out = NULL;
    eng_encoder *x = mem_alloc(1, sizeof *x);
    if (!x) return err_set(e, ERR_NOMEM, "no memory for an encoder");
    err_code rc = ERR_OK;
    x->batch = cuda ? BATCH_CUDA : BATCH_CPU;
    if (cuda) rc = eng_encoder_cuda_open(x->batch, &x->cuda, e);
    else if (!(x->weights = mem_alloc_aligned((size_t)x->batch * FMT_EXL3_TILE_WEIGHTS, sizeof *x->weights)))
        rc = err_set(e, ERR_NOMEM, "no memory for an encoder");
    if (rc == ERR_OK) *out = x;
    else eng_encoder_close(x);
    return rc;
}

void eng_encoder_close(eng_encoder *x)
{
    if (!x) return;
    if (x->cuda) eng_encoder_cuda_close(x->cuda);
    free(x->weights);
    free(x);
}

float *eng_encoder_weights(eng_encoder *x) { return x->cuda ? eng_encoder_cuda_weights(x->cuda) : x->weights; }
int64_t eng_encoder_batch(const eng_encoder *x) { return x->batch; }

err_code eng_encoder_run(eng_encoder *x, int64_t n, krn_exl3_code code, uint16_t *tiles, double *error, err *e)
{
    CHECK(n >= 0 && n <= x->batch);
    if (x->cuda) return eng_encoder_cuda_run(x->cuda, n, code, tiles, error, e);
    return krn_exl3_encode_tiles_ref(x->weights, n, code, tiles, error, e);
}
