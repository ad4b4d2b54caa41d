/* krn_rmsnorm on the card: the contract's order of sums bit for bit, its bound against double, its edges. */
#include "kernels/rmsnorm.h"

#include "gpu.h"

#include <stdlib.h>

static const float EPS = 1e-20f;

/* ---- the contract's CUDA order, written out once more ---- */

/* v[0..32): lanes 16 apart, then 8, 4, 2, 1. */
static double warp_sum(double v[32])
{
    for (int apart = 16; apart > 0; apart /= 2)
        for (int i = 0; i < apart; i++) v[i] += v[i + apart];
    return v[0];
}

static void norm_as_the_contract_says(const bf16 *x, const bf16 *w, bf16 *y, int32_t dim)
{
    double part[1024] = { 0 }, warp[32] = { 0 };
    int32_t groups = (dim + 7) / 8, threads = (groups + 31) / 32 * 32;
    if (threads > 1024) threads = 1024;
    for (int32_t i = 0; i < dim; i++) {
        double v = (double)f32_from_bf16(x[i]);
        part[i / 8 % threads] += v * v;
    }
    for (int32_t i = 0; i < threads / 32; i++) warp[i] = warp_sum(part + 32 * i);
    float mean = (float)(warp_sum(warp) / dim), r = (float)(1.0 / sqrt((double)(mean + EPS)));
    for (int32_t i = 0; i < dim; i++) y[i] = bf16_from_f32(f32_from_bf16(w[i]) * (f32_from_bf16(x[i]) * r));
}

/* ---- runs ---- */

/* x [rows, ldx], w [dim] on the host; y [rows, ldy], its gaps not written. shift: elements past an aligned address. */
static bf16 *run(const bf16 *x, int64_t ldx, const bf16 *w, int64_t ldy, int32_t rows, int32_t dim, int32_t shift)
{
    err e = { 0 };
    size_t nx = (size_t)(rows * ldx + shift), ny = (size_t)(rows * ldy + shift), nw = (size_t)(dim + shift);
    bf16 *hx = calloc(nx, 2), *hw = calloc(nw, 2), *hy = calloc(ny, 2);
    assert_true(hx && hw && hy);
    memcpy(hx + shift, x, (nx - (size_t)shift) * 2);
    memcpy(hw + shift, w, (size_t)dim * 2);
    bf16 *dx = gpu_put(hx, nx * 2), *dw = gpu_put(hw, nw * 2), *dy = gpu_out(ny * 2);
    gpu_ok(krn_rmsnorm(dx + shift, ldx, dw + shift, dy + shift, ldy, rows, dim, EPS, gpu_stream(), &e), &e);
    gpu_get(dy, hy, ny * 2);
    memmove(hy, hy + shift, (ny - (size_t)shift) * 2);
    gpu_free_all();
    free(hx);
    free(hw);
    return hy;
}

static const int32_t DIMS[] = { 512, 1280, 5120, 1, 2, 7, 8, 9, 33, 64, 256, 257, 1000, 4096, 8192, 8193, 20001 };
static const int32_t ROWS[] = { 5, 10, 15, 20, 128 };
enum { N_DIMS = sizeof DIMS / sizeof DIMS[0], N_ROWS = sizeof ROWS / sizeof ROWS[0], OFFICIAL = 3 };

/* ---- tests ---- */

/* And the twin's, whose sum has another order: no row of these is one in 2^28. */
static void sums_in_the_contracts_order_bit_for_bit(void **state)
{
    (void)state;
    for (int i = 0; i < N_DIMS; i++) {
        for (int t = 0; t < (i < OFFICIAL ? N_ROWS : 1); t++) {
            int32_t dim = DIMS[i], rows = ROWS[t];
            int64_t n = (int64_t)rows * dim;
            bf16 *x = malloc((size_t)n * 2), *w = malloc((size_t)dim * 2), *want = malloc((size_t)n * 2);
            assert_true(x && w && want);
            gpu_fill_bf16(x, n, (uint64_t)(dim + t), 3.0f);
            gpu_fill_bf16(w, dim, 99, 0.5f);
            for (int64_t at = 0; at < n; at += dim) norm_as_the_contract_says(x + at, w, want + at, dim);
            bf16 *got = run(x, dim, w, dim, rows, dim, 0), *again = run(x, dim, w, dim, rows, dim, 0);
            gpu_same("order", got, want, n, 2);
            krn_rmsnorm_ref(x, dim, w, want, dim, rows, dim, EPS);
            gpu_same("twin", got, want, n, 2);
            gpu_same("second run", again, want, n, 2);
            free(x);
            free(w);
            free(want);
            free(got);
            free(again);
        }
    }
}

static void within_the_bound_of_the_exact_norm(void **state)
{
    (void)state;
    for (int i = 0; i < N_DIMS; i++) {
        enum { T = 20 };
        int32_t dim = DIMS[i];
        int64_t n = (int64_t)T * dim;
        bf16 *x = malloc((size_t)n * 2), *w = malloc((size_t)dim * 2);
        assert_true(x && w);
        gpu_fill_bf16(x, n, (uint64_t)dim, 3.0f);
        gpu_fill_bf16(w, dim, 98, 0.5f);
        bf16 *y = run(x, dim, w, dim, T, dim, 0);
        char label[32];
        snprintf(label, sizeof label, "rmsnorm dim %d", dim);
        gpu_tally tally = { .label = label };
        for (int32_t r = 0; r < T; r++) {
            double sum = 0;
            for (int32_t d = 0; d < dim; d++) sum += (double)f32_from_bf16(x[r * dim + d]) * f32_from_bf16(x[r * dim + d]);
            double inverse = 1 / sqrt(sum / dim + EPS);
            for (int32_t d = 0; d < dim; d++) {
                double exact = (double)f32_from_bf16(w[d]) * f32_from_bf16(x[r * dim + d]) * inverse;
                gpu_judge_bf16(&tally, r * dim + d, exact, 5.5 * 0x1p-24 * fabs(exact), y[r * dim + d]);
            }
        }
        gpu_tally_end(&tally, 0.999);
        free(x);
        free(w);
        free(y);
    }
}

/* Rows alone, with strides, from odd addresses: always the same bits, and the gaps between rows stay. */
static void bits_depend_on_the_row_alone(void **state)
{
    (void)state;
    for (int i = 0; i < N_DIMS; i++) {
        enum { T = 6 };
        int32_t dim = DIMS[i];
        int64_t ldx = dim + 3, ldy = dim + 16;
        bf16 *x = malloc((size_t)(T * ldx) * 2), *w = malloc((size_t)dim * 2);
        assert_true(x && w);
        gpu_fill_bf16(x, T * ldx, (uint64_t)dim + 7, 3.0f);
        gpu_fill_bf16(w, dim, 97, 0.5f);
        bf16 *all = run(x, ldx, w, ldy, T, dim, 0), *odd = run(x, ldx, w, ldy, T, dim, 1);
        for (int32_t r = 0; r < T; r++) {
            bf16 *alone = run(x + r * ldx, dim, w, dim, 1, dim, 0);
            gpu_same("row alone", all + r * ldy, alone, dim, 2);
            gpu_same("row at an odd address", odd + r * ldy, alone, dim, 2);
            for (int64_t c = dim; c < ldy; c++) assert_int_equal(all[r * ldy + c], 0xa5a5);
            for (int64_t c = dim; c < ldy; c++) assert_int_equal(odd[r * ldy + c], 0xa5a5);
            free(alone);
        }
        free(x);
        free(w);
        free(all);
        free(odd);
    }
}

static void in_place_gives_the_same(void **state)
{
    (void)state;
    const int32_t dims[] = { 5120, 33, 20001 };
    for (int i = 0; i < 3; i++) {
        enum { T = 3 };
        err e = { 0 };
        int32_t dim = dims[i];
        size_t bytes = (size_t)T * (size_t)dim * 2;
        bf16 *x = malloc(bytes), *w = malloc((size_t)dim * 2);
        assert_true(x && w);
        gpu_fill_bf16(x, T * dim, 4, 3.0f);
        gpu_fill_bf16(w, dim, 5, 0.5f);
        bf16 *want = run(x, dim, w, dim, T, dim, 0);
        bf16 *dx = gpu_put(x, bytes), *dw = gpu_put(w, (size_t)dim * 2);
        gpu_ok(krn_rmsnorm(dx, dim, dw, dx, dim, T, dim, EPS, gpu_stream(), &e), &e);
        gpu_get(dx, x, bytes);
        gpu_free_all();
        gpu_same("in place", x, want, T * dim, 2);
        free(x);
        free(w);
        free(want);
    }
}

static void zero_rows_give_zero_and_nan_stays_in_its_row(void **state)
{
    (void)state;
    enum { T = 4, DIM = 512 };
    static bf16 x[T * DIM], w[DIM], want[T * DIM];
    gpu_fill_bf16(x, T * DIM, 11, 3.0f);
    gpu_fill_bf16(w, DIM, 12, 0.5f);
    for (int d = 0; d < DIM; d++) x[d] = d % 2 ? 0x8000 : 0; /* zeros of both signs */
    x[1 * DIM + 77] = 0x7fc1;                                 /* NaN */
    x[2 * DIM + 5] = 0xff80;                                  /* -inf: the row is 0 but for its own NaN */
    for (int r = 0; r < T; r++) norm_as_the_contract_says(x + r * DIM, w, want + r * DIM, DIM);
    bf16 *y = run(x, DIM, w, DIM, T, DIM, 0);
    gpu_same("edges", y, want, T * DIM, 2);
    for (int d = 0; d < DIM; d++) {
        assert_int_equal(y[d] & 0x7fff, 0);
        assert_int_equal(y[DIM + d], 0x7fc0);
    }
    free(y);
}

static void shapes_outside_the_contract_are_refused(void **state)
{
    (void)state;
    err e = { 0 };
    assert_int_equal(krn_rmsnorm(NULL, 8, NULL, NULL, 8, -1, 8, EPS, gpu_stream(), &e), ERR_ARG);
    assert_int_equal(krn_rmsnorm(NULL, 8, NULL, NULL, 8, 1, 0, EPS, gpu_stream(), &e), ERR_ARG);
    assert_int_equal(krn_rmsnorm(NULL, 7, NULL, NULL, 8, 1, 8, EPS, gpu_stream(), &e), ERR_ARG);
    assert_int_equal(krn_rmsnorm(NULL, 8, NULL, NULL, 7, 1, 8, EPS, gpu_stream(), &e), ERR_ARG);
    gpu_ok(krn_rmsnorm(NULL, 8, NULL, NULL, 8, 0, 8, EPS, gpu_stream(), &e), &e); /* no rows: nothing to do */
}

/* Two bf16 steps beside the kernel's own result are no legal rounding of anything inside the bound. */
static void the_verdict_refuses_two_steps(void **state)
{
    (void)state;
    enum { DIM = 512 };
    static bf16 x[DIM], w[DIM];
    gpu_fill_bf16(x, DIM, 21, 3.0f);
    gpu_fill_bf16(w, DIM, 22, 0.5f);
    bf16 *y = run(x, DIM, w, DIM, 1, DIM, 0);
    double sum = 0;
    for (int d = 0; d < DIM; d++) sum += (double)f32_from_bf16(x[d]) * f32_from_bf16(x[d]);
    gpu_tally good = { .label = "own" }, bad = { .label = "perturbed" };
    for (int d = 0; d < DIM; d++) {
        double exact = (double)f32_from_bf16(w[d]) * f32_from_bf16(x[d]) / sqrt(sum / DIM + EPS);
        double delta = 5.5 * 0x1p-24 * fabs(exact);
        gpu_judge_bf16(&good, d, exact, delta, y[d]);
        gpu_judge_bf16(&bad, d, exact, delta, (bf16)(y[d] + 2));
    }
    assert_int_equal(good.illegal, 0);
    assert_int_equal(bad.illegal, DIM);
    free(y);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(sums_in_the_contracts_order_bit_for_bit),
    cmocka_unit_test(within_the_bound_of_the_exact_norm),
    cmocka_unit_test(bits_depend_on_the_row_alone),
    cmocka_unit_test(in_place_gives_the_same),
    cmocka_unit_test(zero_rows_give_zero_and_nan_stays_in_its_row),
    cmocka_unit_test(shapes_outside_the_contract_are_refused),
    cmocka_unit_test(the_verdict_refuses_two_steps),
};
GPU_MAIN(tests)
