/* The combine's two modes and the element-wise ops on the card: the twins' bits. */
#include "kernels/combine.h"

#include "gpu.h"

#include <stdlib.h>

typedef struct shape { int32_t rows, k, dim; } shape;

static const shape SHAPES[] = {
    { 5, 3, 5120 }, { 10, 3, 5120 }, { 15, 3, 5120 }, { 20, 3, 5120 }, { 128, 3, 5120 },
    { 1, 1, 1 }, { 3, 1, 64 }, { 4, 2, 257 }, { 7, 4, 65 }, { 5, 5, 256 }, { 2, 8, 100 }, { 2, 300, 70 },
};
enum { N_SHAPES = sizeof SHAPES / sizeof SHAPES[0] };

typedef struct inputs { float *slot, *shared; int32_t *ids; } inputs;

static void inputs_init(inputs *in, const shape *s, uint64_t seed)
{
    int64_t n = (int64_t)s->rows * s->k * s->dim, m = (int64_t)s->rows * s->dim;
    *in = (inputs){ malloc((size_t)n * 4), malloc((size_t)m * 4), malloc((size_t)s->rows * (size_t)s->k * 4) };
    assert_true(in->slot && in->shared && in->ids);
    gpu_fill_f32(in->slot, n, seed, 3.0f);
    gpu_fill_f32(in->shared, m, seed + 1, 3.0f);
    for (int32_t i = 0; i < s->rows * s->k; i++)
        in->ids[i] = (int32_t)(gpu_hash(seed + 2, (uint64_t)i) % 128); /* some are equal */
}

static void inputs_fini(inputs *in)
{
    free(in->slot);
    free(in->shared);
    free(in->ids);
}

/* Rows [first, first + rows) of in. exact [rows, dim] and fused [rows, dim] are the kernels' results. */
static void run(const inputs *in, const shape *s, int32_t first, int32_t rows, bf16 *exact, float *fused)
{
    err e = { 0 };
    size_t n = (size_t)rows * (size_t)s->dim;
    int64_t at = (int64_t)first * s->dim;
    float *slot = gpu_put(in->slot + at * s->k, n * (size_t)s->k * 4), *shared = gpu_put(in->shared + at, n * 4);
    int32_t *ids = gpu_put(in->ids + (int64_t)first * s->k, (size_t)rows * (size_t)s->k * 4);
    bf16 *y = gpu_out(n * 2);
    float *f = gpu_out(n * 4);
    gpu_ok(krn_combine_exact(slot, ids, shared, y, rows, s->k, s->dim, gpu_stream(), &e), &e);
    gpu_ok(krn_combine_fused(slot, ids, shared, f, rows, s->k, s->dim, gpu_stream(), &e), &e);
    gpu_get(y, exact, n * 2);
    gpu_get(f, fused, n * 4);
    gpu_free_all();
}

static void both_modes_give_the_twins_bits(void **state)
{
    (void)state;
    for (int i = 0; i < N_SHAPES; i++) {
        const shape *s = &SHAPES[i];
        int64_t n = (int64_t)s->rows * s->dim;
        inputs in;
        inputs_init(&in, s, 10 * (uint64_t)i);
        bf16 *exact = malloc((size_t)n * 2), *want = malloc((size_t)n * 2);
        float *fused = malloc((size_t)n * 4), *want_fused = malloc((size_t)n * 4);
        assert_true(exact && want && fused && want_fused);
        krn_combine_exact_ref(in.slot, in.ids, in.shared, want, s->rows, s->k, s->dim);
        krn_combine_fused_ref(in.slot, in.ids, in.shared, want_fused, s->rows, s->k, s->dim);
        run(&in, s, 0, s->rows, exact, fused);
        gpu_same("exact", exact, want, n, 2);
        gpu_same("fused", fused, want_fused, n, 4);
        int32_t last = s->rows - 1; /* and alone */
        run(&in, s, last, 1, exact, fused);
        gpu_same("exact, row alone", exact, want + (int64_t)last * s->dim, s->dim, 2);
        gpu_same("fused, row alone", fused, want_fused + (int64_t)last * s->dim, s->dim, 4);
        inputs_fini(&in);
        free(exact);
        free(want);
        free(fused);
        free(want_fused);
    }
}

/* 2^24 + 1 - 2^24 in f32: another order of the experts would give another sum. */
static void experts_are_added_in_ascending_id(void **state)
{
    (void)state;
    const shape s = { 2, 3, 1 };
    float slot[6] = { 1, -0x1p24f, 0x1p24f, 1, -0x1p24f, 0x1p24f }, shared[2] = { 0, 0 }, fused[2];
    int32_t ids[6] = { 9, 4, 2, 5, 7, 2 };
    bf16 exact[2];
    const inputs in = { slot, shared, ids };
    run(&in, &s, 0, 2, exact, fused);
    assert_true(f32_from_bf16(exact[0]) == 1.0f && fused[0] == 1.0f);
    assert_true(f32_from_bf16(exact[1]) == 0.0f && fused[1] == 0.0f);
}

static void nan_infinity_and_zeros_in_exact(void **state)
{
    (void)state;
    const shape s = { 1, 3, 4 };
    float slot[12] = { NAN, INFINITY, -0.0f, 1, 1, -INFINITY, -0.0f, -1, 2, 3, -0.0f, 0 }, shared[4] = { 1, 1, -0.0f, 0 };
    float fused[4];
    int32_t ids[3] = { 1, 2, 3 };
    bf16 exact[4];
    const inputs in = { slot, shared, ids };
    run(&in, &s, 0, 1, exact, fused);
    assert_int_equal(exact[0], 0x7fc0);
    assert_int_equal(exact[1], 0x7fc0);
    assert_int_equal(exact[2], 0); /* the sum starts from +0 */
    assert_int_equal(exact[3], 0);
    assert_true(isnan(fused[0]) && isnan(fused[1]));
    assert_int_equal(f32_bits(fused[2]), 0);
}

static void round_and_add_give_the_twins_bits(void **state)
{
    (void)state;
    const int64_t counts[] = { 1, 255, 256, 257, 20 * 5120, 1000003 };
    for (int i = 0; i < 6; i++) {
        err e = { 0 };
        int64_t n = counts[i];
        size_t bytes = (size_t)n * 4;
        float *a = malloc(bytes), *b = malloc(bytes), *want = malloc(bytes), *got = malloc(bytes);
        bf16 *want_bf16 = malloc((size_t)n * 2), *got_bf16 = malloc((size_t)n * 2);
        assert_true(a && b && want && got && want_bf16 && got_bf16);
        for (int64_t j = 0; j < n; j++) a[j] = f32_from_bits(gpu_hash(1, (uint64_t)j)); /* NaN and subnormals too */
        for (int64_t j = 0; j < n; j += 3) a[j] = f32_from_bits((f32_bits(a[j]) & 0xffff0000) | 0x8000); /* ties */
        krn_round_bf16_ref(a, want_bf16, n);
        float *da = gpu_put(a, bytes);
        bf16 *dy = gpu_out((size_t)n * 2);
        gpu_ok(krn_round_bf16(da, dy, n, gpu_stream(), &e), &e);
        gpu_get(dy, got_bf16, (size_t)n * 2);
        gpu_same("round", got_bf16, want_bf16, n, 2);

        gpu_fill_f32(a, n, 2, 3.0f);
        gpu_fill_f32(b, n, 3, 3.0f);
        krn_add_f32_ref(a, b, want, n);
        float *dc = gpu_put(a, bytes), *db = gpu_put(b, bytes), *df = gpu_out(bytes);
        gpu_ok(krn_add_f32(dc, db, df, n, gpu_stream(), &e), &e);
        gpu_get(df, got, bytes);
        gpu_same("add", got, want, n, 4);
        gpu_ok(krn_add_f32(dc, db, db, n, gpu_stream(), &e), &e);
        gpu_get(db, got, bytes);
        gpu_same("add in place", got, want, n, 4);
        gpu_free_all();
        free(a);
        free(b);
        free(want);
        free(got);
        free(want_bf16);
        free(got_bf16);
    }
}

static void shapes_outside_the_contract_are_refused(void **state)
{
    (void)state;
    err e = { 0 };
    const shape bad[] = { { -1, 1, 1 }, { 1, 0, 1 }, { 1, 4097, 1 }, { 1, 1, -1 }, { 1, 1, 65535 * 256 + 1 } };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const shape *s = &bad[i];
        assert_int_equal(krn_combine_exact(NULL, NULL, NULL, NULL, s->rows, s->k, s->dim, gpu_stream(), &e), ERR_ARG);
        assert_int_equal(krn_combine_fused(NULL, NULL, NULL, NULL, s->rows, s->k, s->dim, gpu_stream(), &e), ERR_ARG);
    }
    assert_int_equal(krn_round_bf16(NULL, NULL, -1, gpu_stream(), &e), ERR_ARG);
    assert_int_equal(krn_add_f32(NULL, NULL, NULL, (int64_t)1 << 40, gpu_stream(), &e), ERR_ARG);
    gpu_ok(krn_combine_exact(NULL, NULL, NULL, NULL, 0, 1, 1, gpu_stream(), &e), &e);
    gpu_ok(krn_round_bf16(NULL, NULL, 0, gpu_stream(), &e), &e);
    gpu_ok(krn_add_f32(NULL, NULL, NULL, 0, gpu_stream(), &e), &e);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(both_modes_give_the_twins_bits),
    cmocka_unit_test(experts_are_added_in_ascending_id),
    cmocka_unit_test(nan_infinity_and_zeros_in_exact),
    cmocka_unit_test(round_and_add_give_the_twins_bits),
    cmocka_unit_test(shapes_outside_the_contract_are_refused),
};
GPU_MAIN(tests)
