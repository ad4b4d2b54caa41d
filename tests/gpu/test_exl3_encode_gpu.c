/* krn_exl3_encode_tiles on the card: the twin's bits and errors for every number of bits and every codebook. */
#include "kernels/exl3_encode.h"

#include "gpu.h"

#include <stdlib.h>

enum { WEIGHTS = FMT_EXL3_TILE_WEIGHTS };

static void check_same(krn_exl3_code code, const float *w, int64_t n)
{
    err e = { 0 };
    char label[64];
    uint64_t scratch_bytes;
    const size_t tile_bytes = (size_t)fmt_exl3_tile_bytes(code.bits) * (size_t)n, error_bytes = (size_t)n * sizeof(double);
    uint16_t *want = malloc(tile_bytes), *got = malloc(tile_bytes);
    double *want_error = malloc(error_bytes), *got_error = malloc(error_bytes);
    assert_true(want && got && want_error && got_error);
    snprintf(label, sizeof label, "K %d, %s, seam %d", code.bits, fmt_exl3_codebook_name(code.codebook), code.seam);
    gpu_ok(krn_exl3_encode_tiles_ref(w, n, code, want, want_error, &e), &e);
    gpu_ok(krn_exl3_encode_scratch(code.bits, &scratch_bytes, &e), &e);
    float *dw = gpu_put(w, (size_t)n * WEIGHTS * sizeof *w);
    float *values = gpu_put(fmt_exl3_table(code.codebook), FMT_EXL3_STATES * sizeof(float));
    uint16_t *tiles = gpu_out(tile_bytes);
    double *error = gpu_out(error_bytes);
    void *scratch;
    gpu_ok(krn_device_alloc(scratch_bytes, &scratch, &e), &e);
    gpu_ok(krn_exl3_encode_tiles(dw, n, code, values, scratch, tiles, error, gpu_stream(), &e), &e);
    gpu_get(tiles, got, tile_bytes);
    gpu_get(error, got_error, error_bytes);
    gpu_same(label, got, want, (int64_t)tile_bytes / 2, 2);
    gpu_same(label, got_error, want_error, 2 * n, 4);
    krn_device_free(scratch);
    gpu_free_all();
    free(want);
    free(got);
    free(want_error);
    free(got_error);
}

static void tiles_are_the_twins_bit_for_bit(void **state)
{
    (void)state;
    enum { N = 3 };
    float w[N * WEIGHTS];
    for (int32_t bits = 1; bits <= FMT_EXL3_BITS_MAX; bits++)
        for (int32_t c = 0; c < FMT_EXL3_CODEBOOKS; c++) {
            gpu_fill_f32(w, N * WEIGHTS, (uint64_t)(100 * bits + c), 1.1f);
            check_same((krn_exl3_code){ bits, (fmt_exl3_codebook)c, 64 }, w, N);
        }
    check_same((krn_exl3_code){ 2, FMT_EXL3_MUL1, KRN_EXL3_SEAM_MAX }, w, N);
    check_same((krn_exl3_code){ 5, FMT_EXL3_MUL1, 2 }, w, N);
}

/* Blocks take a second tile and a third one. */
static void more_tiles_than_blocks(void **state)
{
    (void)state;
    enum { N = 300 };
    float *w = malloc(N * WEIGHTS * sizeof *w);
    assert_non_null(w);
    gpu_fill_f32(w, N * WEIGHTS, 7, 0.9f);
    check_same((krn_exl3_code){ 6, FMT_EXL3_MUL1, 64 }, w, N);
    check_same((krn_exl3_code){ 2, FMT_EXL3_MUL1, 64 }, w, 150);
    free(w);
}

/* Equal costs everywhere: the lowest way wins on both. */
static void ties_and_zeros(void **state)
{
    (void)state;
    float w[WEIGHTS] = { 0 };
    for (int32_t bits = 1; bits <= FMT_EXL3_BITS_MAX; bits++) check_same((krn_exl3_code){ bits, FMT_EXL3_MUL1, 64 }, w, 1);
    for (int p = 0; p < WEIGHTS; p++) w[p] = 1e6f;
    check_same((krn_exl3_code){ 2, FMT_EXL3_MCG, 64 }, w, 1);
}

static void bad_shapes_are_refused(void **state)
{
    (void)state;
    err e = { 0 };
    uint64_t bytes;
    assert_int_equal(krn_exl3_encode_scratch(9, &bytes, &e), ERR_ARG);
    const krn_exl3_code BAD[] = { { 0, FMT_EXL3_MUL1, 64 }, { 9, FMT_EXL3_MUL1, 64 }, { 2, FMT_EXL3_MUL1, 3 },
                                  { 2, FMT_EXL3_MUL1, 0 }, { 2, FMT_EXL3_MUL1, 258 } };
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++)
        assert_int_equal(krn_exl3_encode_tiles(NULL, 1, BAD[i], NULL, NULL, NULL, NULL, gpu_stream(), &e), ERR_ARG);
    const krn_exl3_code good = { 2, FMT_EXL3_MUL1, 64 };
    gpu_ok(krn_exl3_encode_tiles(NULL, 0, good, NULL, NULL, NULL, NULL, gpu_stream(), &e), &e);
}

static const struct CMUnitTest TESTS[] = {
    cmocka_unit_test(tiles_are_the_twins_bit_for_bit),
    cmocka_unit_test(more_tiles_than_blocks),
    cmocka_unit_test(ties_and_zeros),
    cmocka_unit_test(bad_shapes_are_refused),
};
GPU_MAIN(TESTS)
