/* krn_swiglu on the card: the twin's bits for every gate there is, and for the shapes of a step. */
#include "kernels/swiglu.h"

#include "gpu.h"

#include <stdlib.h>

static bf16 *run(const bf16 *g, const bf16 *u, const float *weight, float limit, int32_t rows, int32_t cols, bool in_place)
{
    err e = { 0 };
    size_t bytes = (size_t)rows * (size_t)cols * 2;
    bf16 *h = malloc(bytes);
    assert_non_null(h);
    bf16 *dg = gpu_put(g, bytes), *du = gpu_put(u, bytes), *dh = in_place ? dg : gpu_out(bytes);
    float *dw = weight ? gpu_put(weight, (size_t)rows * 4) : NULL;
    gpu_ok(krn_swiglu(dg, du, dw, limit, dh, rows, cols, gpu_stream(), &e), &e);
    gpu_get(dh, h, bytes);
    gpu_free_all();
    return h;
}

/* Against the twin: apart, in place, routed and shared. */
static void compare(const bf16 *g, const bf16 *u, const float *weight, float limit, int32_t rows, int32_t cols)
{
    int64_t n = (int64_t)rows * cols;
    bf16 *want = malloc((size_t)n * 2);
    assert_non_null(want);
    for (int way = 0; way < 4; way++) {
        const float *w = way / 2 ? weight : NULL;
        krn_swiglu_ref(g, u, w, limit, want, rows, cols);
        bf16 *got = run(g, u, w, limit, rows, cols, way % 2);
        gpu_same(w ? "routed" : "shared", got, want, n, 2);
        free(got);
    }
    free(want);
}

/* Each of the 65,536 patterns, NaN and infinities too, 16 times with other values beside it. Products near a tie of bf16
 * are met some hundred times: an exponential an ulp off would show. */
static void every_gate_gives_the_twins_bits(void **state)
{
    (void)state;
    enum { ROWS = 16, COLS = 65536 };
    static bf16 g[ROWS * COLS], u[ROWS * COLS];
    float weight[ROWS];
    gpu_fill_bf16(u, ROWS * COLS, 1, 4.0f);
    for (int i = 0; i < ROWS * COLS; i++) g[i] = (bf16)i;
    for (int r = 0; r < ROWS; r++) weight[r] = r == 0 ? 0 : r == 1 ? -1.5f : 2.5f * (gpu_unit(2, (uint64_t)r) + 1);
    compare(g, u, weight, 10.0f, ROWS, COLS);
    compare(g, u, weight, INFINITY, ROWS, COLS);
}

static void every_other_factor_gives_the_twins_bits(void **state)
{
    (void)state;
    enum { ROWS = 4, COLS = 65536 };
    static bf16 g[ROWS * COLS], u[ROWS * COLS];
    const float weight[ROWS] = { 1, 0.3f, INFINITY, NAN };
    gpu_fill_bf16(g, ROWS * COLS, 3, 4.0f);
    for (int i = 0; i < ROWS * COLS; i++) u[i] = (bf16)i;
    compare(g, u, weight, 10.0f, ROWS, COLS);
}

static void shapes_of_a_step_and_odd_ones(void **state)
{
    (void)state;
    const int32_t rows[] = { 5, 10, 15, 20, 60, 384, 1, 3, 2, 7 };
    const int32_t cols[] = { 2304, 1152, 1152, 1152, 1152, 1152, 1, 7, 257, 64 };
    for (int i = 0; i < 10; i++) {
        int64_t n = (int64_t)rows[i] * cols[i];
        bf16 *g = malloc((size_t)n * 2), *u = malloc((size_t)n * 2);
        float *weight = malloc((size_t)rows[i] * 4);
        assert_true(g && u && weight);
        gpu_fill_bf16(g, n, 10 + (uint64_t)i, 5.0f);
        gpu_fill_bf16(u, n, 30 + (uint64_t)i, 5.0f);
        gpu_fill_f32(weight, rows[i], 50 + (uint64_t)i, 1.0f);
        compare(g, u, weight, 10.0f, rows[i], cols[i]);
        bf16 *all = run(g, u, weight, 10.0f, rows[i], cols[i], false);
        int64_t last = n - cols[i];
        bf16 *alone = run(g + last, u + last, weight + rows[i] - 1, 10.0f, 1, cols[i], false);
        gpu_same("row alone", all + last, alone, cols[i], 2);
        free(g);
        free(u);
        free(weight);
        free(all);
        free(alone);
    }
}

/* The contract's bound from the exact function, and that two steps of bf16 are outside it. */
static void within_the_bound_of_the_exact_product(void **state)
{
    (void)state;
    enum { ROWS = 60, COLS = 1152 };
    static bf16 g[ROWS * COLS], u[ROWS * COLS];
    float weight[ROWS];
    gpu_fill_bf16(g, ROWS * COLS, 70, 3.0f);
    gpu_fill_bf16(u, ROWS * COLS, 71, 3.0f);
    gpu_fill_f32(weight, ROWS, 72, 1.0f);
    bf16 *h = run(g, u, weight, 10.0f, ROWS, COLS, false);
    gpu_tally tally = { .label = "swiglu 60 x 1152" }, bad = { .label = "perturbed" };
    for (int i = 0; i < ROWS * COLS; i++) {
        double gate = fmin(f32_from_bf16(g[i]), 10.0), up = fmax(-10.0, fmin(f32_from_bf16(u[i]), 10.0));
        double exact = gate / (1 + exp(-gate)) * up * weight[i / COLS], delta = 5 * 0x1p-23 * fabs(exact);
        gpu_judge_bf16(&tally, i, exact, delta, h[i]);
        if (exact != 0) gpu_judge_bf16(&bad, i, exact, delta, (bf16)(h[i] + 2));
    }
    gpu_tally_end(&tally, 0.999);
    assert_int_equal(bad.illegal, bad.n);
    free(h);
}

static void shapes_outside_the_contract_are_refused(void **state)
{
    (void)state;
    err e = { 0 };
    assert_int_equal(krn_swiglu(NULL, NULL, NULL, 10, NULL, -1, 8, gpu_stream(), &e), ERR_ARG);
    assert_int_equal(krn_swiglu(NULL, NULL, NULL, 10, NULL, 1, -8, gpu_stream(), &e), ERR_ARG);
    assert_int_equal(krn_swiglu(NULL, NULL, NULL, 10, NULL, 1, 65535 * 256 + 1, gpu_stream(), &e), ERR_ARG);
    gpu_ok(krn_swiglu(NULL, NULL, NULL, 10, NULL, 0, 8, gpu_stream(), &e), &e);
    gpu_ok(krn_swiglu(NULL, NULL, NULL, 10, NULL, 8, 0, gpu_stream(), &e), &e);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_gate_gives_the_twins_bits),
    cmocka_unit_test(every_other_factor_gives_the_twins_bits),
    cmocka_unit_test(shapes_of_a_step_and_odd_ones),
    cmocka_unit_test(within_the_bound_of_the_exact_product),
    cmocka_unit_test(shapes_outside_the_contract_are_refused),
};
GPU_MAIN(tests)
