/* All three with the blocked twin's bits; krn_mhc_mixes also inside its bound around the same maths in double. */
#include "kernels/mhc.h"

#include "gpu.h"

#include <stdlib.h>

static const double U = 0x1p-24;
static const float NORM_EPS = 1e-20f, HC_EPS = 1e-6f;

typedef struct setup {
    int32_t rows, hc, dim, iters;
    bf16 *x, *y, *out;            /* [rows, hc, dim], [rows, dim], [rows, hc, dim] */
    float *dots, *base, scale[3]; /* [rows, (2 + hc) * hc], [(2 + hc) * hc] */
    float *pre, *post, *comb;     /* [rows, hc], [rows, hc], [rows, hc, hc]: out of mixes, into the others */
} setup;

static int64_t n_cols(const setup *s) { return (int64_t)(2 + s->hc) * s->hc; }
static int64_t n_stream(const setup *s) { return (int64_t)s->rows * s->hc * s->dim; }

static void *take(int64_t n, size_t elem_bytes)
{
    void *p = calloc((size_t)n, elem_bytes);
    assert_non_null(p);
    return p;
}

static setup setup_open(int32_t rows, int32_t hc, int32_t dim, uint64_t seed)
{
    setup s = { .rows = rows, .hc = hc, .dim = dim, .iters = 20, .scale = { 0.7f, 1.3f, 0.9f } };
    s.x = take(n_stream(&s), sizeof(bf16));
    s.y = take((int64_t)rows * dim, sizeof(bf16));
    s.out = take(n_stream(&s), sizeof(bf16));
    s.dots = take(rows * n_cols(&s), sizeof(float));
    s.base = take(n_cols(&s), sizeof(float));
    s.pre = take((int64_t)rows * hc, sizeof(float));
    s.post = take((int64_t)rows * hc, sizeof(float));
    s.comb = take((int64_t)rows * hc * hc, sizeof(float));
    gpu_fill_bf16(s.x, n_stream(&s), seed, 1.5f);
    gpu_fill_bf16(s.y, (int64_t)rows * dim, seed + 1, 1.0f);
    gpu_fill_f32(s.dots, rows * n_cols(&s), seed + 2, 2.5f);
    gpu_fill_f32(s.base, n_cols(&s), seed + 3, 1.0f);
    gpu_fill_f32(s.pre, (int64_t)rows * hc, seed + 4, 1.0f);
    gpu_fill_f32(s.post, (int64_t)rows * hc, seed + 5, 1.0f);
    gpu_fill_f32(s.comb, (int64_t)rows * hc * hc, seed + 6, 1.0f); /* asymmetric: a transposition shows */
    return s;
}

static void setup_close(setup *s)
{
    free(s->x);
    free(s->y);
    free(s->out);
    free(s->dots);
    free(s->base);
    free(s->pre);
    free(s->post);
    free(s->comb);
}

static void *put_f32(const float *v, int64_t n) { return gpu_put(v, (size_t)n * sizeof(float)); }
static void *put_bf16(const bf16 *v, int64_t n) { return gpu_put(v, (size_t)n * sizeof(bf16)); }

/* ---- mixes ---- */

static void run_mixes(setup *s)
{
    err e = { 0 };
    int64_t n = (int64_t)s->rows * s->hc;
    size_t vector = (size_t)n * sizeof(float), matrix = vector * (size_t)s->hc;
    float *pre = gpu_out(vector), *post = gpu_out(vector), *comb = gpu_out(matrix);
    gpu_ok(krn_mhc_mixes(put_bf16(s->x, n_stream(s)), put_f32(s->dots, s->rows * n_cols(s)), put_f32(s->base, n_cols(s)),
                         put_f32(s->scale, 3), s->rows, s->hc, s->dim, NORM_EPS, HC_EPS, s->iters, pre, post, comb,
                         gpu_stream(), &e),
           &e);
    gpu_get(pre, s->pre, vector);
    gpu_get(post, s->post, vector);
    gpu_get(comb, s->comb, matrix);
    gpu_free_all();
}

/* c / (sum of its row or column + eps). */
static void normalise(double *c, int hc, bool of_rows, double eps)
{
    for (int i = 0; i < hc; i++) {
        double sum = eps;
        int first = of_rows ? i * hc : i, step = of_rows ? 1 : hc;
        for (int k = 0; k < hc; k++) sum += c[first + k * step];
        for (int k = 0; k < hc; k++) c[first + k * step] /= sum;
    }
}

static double sigmoid(double z) { return 1 / (1 + exp(-z)); }

/* All rows of pre, post and comb against the exact values. */
static void judge_mixes(gpu_tally *t, const setup *s)
{
    int hc = s->hc, n = hc * s->dim;
    double eps = (double)HC_EPS;
    for (int row = 0; row < s->rows; row++) {
        const float *dot = s->dots + row * n_cols(s);
        double sum = 0, r, z[80], dz[80], largest = 0, c[64];
        for (int i = 0; i < n; i++) {
            double v = (double)f32_from_bf16(s->x[(int64_t)row * n + i]);
            sum += v * v;
        }
        r = 1 / sqrt(sum / n + (double)NORM_EPS);
        for (int i = 0; i < n_cols(s); i++) {
            double scaled = (double)dot[i] * r * (double)s->scale[i < hc ? 0 : i < 2 * hc ? 1 : 2];
            z[i] = scaled + (double)s->base[i];
            dz[i] = fabs(scaled) * 5.5 * U + U * fabs(z[i]);
            if (i >= 2 * hc) largest = fmax(largest, dz[i]);
        }
        for (int i = 0; i < hc; i++) {
            double pre = sigmoid(z[i]) + eps, post = 2 * sigmoid(z[hc + i]);
            gpu_judge_f32(t, row * hc + i, pre, pre * (dz[i] + 5 * U), s->pre[row * hc + i]);
            gpu_judge_f32(t, row * hc + i, post, post * (dz[hc + i] + 5 * U), s->post[row * hc + i]);
        }
        for (int j = 0; j < hc; j++) {
            double max = -INFINITY, total = 0;
            for (int k = 0; k < hc; k++) max = fmax(max, z[2 * hc + j * hc + k]);
            for (int k = 0; k < hc; k++) total += c[j * hc + k] = exp(z[2 * hc + j * hc + k] - max);
            for (int k = 0; k < hc; k++) c[j * hc + k] = c[j * hc + k] / total + eps;
        }
        normalise(c, hc, false, eps);
        for (int i = 1; i < s->iters; i++) {
            normalise(c, hc, true, eps);
            normalise(c, hc, false, eps);
        }
        for (int i = 0; i < hc * hc; i++)
            gpu_judge_f32(t, row * hc * hc + i, c[i], c[i] * (4 * largest + 2 * s->iters * (hc + 3) * U),
                          s->comb[row * hc * hc + i]);
    }
}

/* rows, hc, dim: the model's, every hc, rows that are not a multiple of eight elements. */
static const int32_t SHAPES[][3] = { { 5, 4, 5120 }, { 10, 4, 5120 }, { 15, 4, 5120 }, { 20, 4, 5120 }, { 128, 4, 64 },
                                     { 3, 1, 64 },   { 3, 2, 40 },    { 3, 3, 33 },    { 7, 4, 513 },   { 3, 5, 100 },
                                     { 3, 6, 72 },   { 3, 7, 31 },    { 3, 8, 2048 },  { 1, 4, 1 },     { 2, 4, 9000 } };
enum { N_SHAPES = sizeof SHAPES / sizeof SHAPES[0] };

static void mixes_lie_within_the_bound(void **state)
{
    (void)state;
    for (int i = 0; i < N_SHAPES; i++) {
        char label[64];
        setup s = setup_open(SHAPES[i][0], SHAPES[i][1], SHAPES[i][2], (uint64_t)(100 * i));
        gpu_tally t = { .label = label };
        snprintf(label, sizeof label, "mhc mixes, %d x %d x %d", s.rows, s.hc, s.dim);
        run_mixes(&s);
        judge_mixes(&t, &s);
        gpu_tally_end(&t, 0);
        setup_close(&s);
    }
}

static void compare_mixes_with_the_twin(setup *s)
{
    int64_t n = (int64_t)s->rows * s->hc;
    float *pre = take(n, sizeof(float)), *post = take(n, sizeof(float)), *comb = take(n * s->hc, sizeof(float));
    krn_mhc_mixes_ref(s->x, s->dots, s->base, s->scale, s->rows, s->hc, s->dim, NORM_EPS, HC_EPS, s->iters, pre, post, comb,
                      KRN_ACC_BLOCKED);
    run_mixes(s);
    gpu_same("pre", s->pre, pre, n, sizeof(float));
    gpu_same("post", s->post, post, n, sizeof(float));
    gpu_same("comb", s->comb, comb, n * s->hc, sizeof(float));
    free(pre);
    free(post);
    free(comb);
}

static void mixes_have_the_blocked_twins_bits(void **state)
{
    (void)state;
    for (int i = 0; i < N_SHAPES; i++)
        for (uint64_t seed = 0; seed < 3; seed++) {
            setup s = setup_open(SHAPES[i][0], SHAPES[i][1], SHAPES[i][2], 9000 + 100 * (uint64_t)i + 10 * seed);
            s.iters = seed == 2 ? 1 : 20;
            compare_mixes_with_the_twin(&s);
            setup_close(&s);
        }
}

static void one_iteration_and_none_of_the_later_ones(void **state)
{
    (void)state;
    gpu_tally t = { .label = "mhc mixes, 1 iteration" };
    setup s = setup_open(20, 4, 256, 50);
    s.iters = 1;
    run_mixes(&s);
    judge_mixes(&t, &s);
    gpu_tally_end(&t, 0);
    setup_close(&s);
}

static void the_judge_of_mixes_refuses_faults(void **state)
{
    (void)state;
    gpu_tally perturbed = { .label = "a changed comb" }, fewer = { .label = "an iteration less" };
    setup s = setup_open(20, 4, 256, 60);
    run_mixes(&s);
    for (int i = 0; i < 20 * 16; i++) s.comb[i] *= 1 + 0x1p-12f;
    judge_mixes(&perturbed, &s);
    assert_true(perturbed.illegal > 20 * 8);
    s.iters = 1;
    run_mixes(&s);
    s.iters = 2;
    judge_mixes(&fewer, &s);
    assert_true(fewer.illegal > 20 * 8);
    setup_close(&s);
}

/* A stream of zeros: r is 1 / sqrt(eps), and dots that are zero too leave the base alone. */
static void a_row_of_zeros_gives_the_base(void **state)
{
    (void)state;
    gpu_tally t = { .label = "mhc mixes, zeros" };
    setup s = setup_open(2, 4, 128, 70);
    memset(s.x, 0, (size_t)n_stream(&s) * sizeof(bf16));
    memset(s.dots, 0, (size_t)(2 * n_cols(&s)) * sizeof(float));
    run_mixes(&s);
    judge_mixes(&t, &s);
    gpu_tally_end(&t, 0);
    setup_close(&s);
}

static void nan_in_the_stream_stays_in_its_row(void **state)
{
    (void)state;
    setup s = setup_open(3, 4, 128, 80);
    s.x[4 * 128 + 77] = 0x7fc0; /* row 1 */
    run_mixes(&s);
    for (int i = 0; i < 3 * 4; i++) assert_true(isnan(s.pre[i]) == (i / 4 == 1) && isnan(s.post[i]) == (i / 4 == 1));
    for (int i = 0; i < 3 * 16; i++) assert_true(isnan(s.comb[i]) == (i / 16 == 1));
    setup_close(&s);
}

/* ---- collapse, expand ---- */

static void run_collapse(const setup *s, bf16 *y)
{
    err e = { 0 };
    size_t bytes = (size_t)s->rows * (size_t)s->dim * sizeof(bf16);
    bf16 *out = gpu_out(bytes);
    gpu_ok(krn_mhc_collapse(put_bf16(s->x, n_stream(s)), put_f32(s->pre, (int64_t)s->rows * s->hc), out, s->rows, s->hc,
                            s->dim, gpu_stream(), &e),
           &e);
    gpu_get(out, y, bytes);
    gpu_free_all();
}

static void run_expand(const setup *s, bf16 *to)
{
    err e = { 0 };
    size_t bytes = (size_t)n_stream(s) * sizeof(bf16);
    int64_t n = (int64_t)s->rows * s->hc;
    bf16 *out = gpu_out(bytes);
    gpu_ok(krn_mhc_expand(put_bf16(s->y, (int64_t)s->rows * s->dim), put_bf16(s->x, n_stream(s)), put_f32(s->post, n),
                          put_f32(s->comb, n * s->hc), out, s->rows, s->hc, s->dim, gpu_stream(), &e),
           &e);
    gpu_get(out, to, bytes);
    gpu_free_all();
}

static void compare_with_twins(const setup *s)
{
    bf16 *got = take(n_stream(s), sizeof(bf16));
    run_collapse(s, got);
    krn_mhc_collapse_ref(s->x, s->pre, s->out, s->rows, s->hc, s->dim, KRN_ACC_BLOCKED);
    gpu_same("collapse", got, s->out, (int64_t)s->rows * s->dim, sizeof(bf16));
    run_expand(s, got);
    krn_mhc_expand_ref(s->y, s->x, s->post, s->comb, s->out, s->rows, s->hc, s->dim, KRN_ACC_BLOCKED);
    gpu_same("expand", got, s->out, n_stream(s), sizeof(bf16));
    free(got);
}

static void collapse_and_expand_have_the_blocked_twins_bits(void **state)
{
    (void)state;
    for (int i = 0; i < N_SHAPES; i++) {
        setup s = setup_open(SHAPES[i][0], SHAPES[i][1], SHAPES[i][2], (uint64_t)(3000 + 100 * i));
        compare_with_twins(&s);
        setup_close(&s);
    }
    setup s = setup_open(128, 4, 5120, 5000); /* an insert */
    compare_with_twins(&s);
    s.x[3 * 5120 + 9] = 0x7fc0;
    s.x[5 * 5120] = 0x7f80; /* infinite */
    s.y[17] = 0xff80;
    s.comb[16] = NAN;
    compare_with_twins(&s);
    setup_close(&s);
}

static void expand_lies_within_the_bound(void **state)
{
    (void)state;
    gpu_tally t = { .label = "mhc expand" };
    setup s = setup_open(5, 4, 1024, 6000);
    run_expand(&s, s.out);
    for (int64_t i = 0; i < n_stream(&s); i++) {
        int64_t d = i % s.dim, k = i / s.dim % s.hc, row = i / s.dim / s.hc;
        double sum = (double)s.post[row * s.hc + k] * (double)f32_from_bf16(s.y[row * s.dim + d]), size = fabs(sum);
        for (int64_t j = 0; j < s.hc; j++) {
            double term = (double)s.comb[(row * s.hc + j) * s.hc + k] *
                          (double)f32_from_bf16(s.x[(row * s.hc + j) * s.dim + d]);
            sum += term;
            size += fabs(term);
        }
        gpu_judge_bf16(&t, i, sum, (s.hc + 2) * U * size, s.out[i]);
    }
    gpu_tally_end(&t, 0.99);
    setup_close(&s);
}

/* ---- all three ---- */

static void a_row_alone_has_the_bits_it_has_among_others(void **state)
{
    (void)state;
    setup all = setup_open(20, 4, 5120, 7000);
    bf16 *y = take((int64_t)20 * 5120, sizeof(bf16)), *alone = take(4 * 5120, sizeof(bf16));
    run_mixes(&all);
    run_collapse(&all, y);
    run_expand(&all, all.out);
    for (int row = 0; row < 20; row += 7) {
        setup one = all;
        float pre[4], post[4], comb[16];
        one.rows = 1;
        one.x = all.x + (int64_t)row * 4 * 5120;
        one.y = all.y + (int64_t)row * 5120;
        one.dots = all.dots + row * n_cols(&all);
        one.pre = pre;
        one.post = post;
        one.comb = comb;
        run_mixes(&one);
        gpu_same("pre", pre, all.pre + row * 4, 4, sizeof(float));
        gpu_same("post", post, all.post + row * 4, 4, sizeof(float));
        gpu_same("comb", comb, all.comb + row * 16, 16, sizeof(float));
        run_collapse(&one, alone);
        gpu_same("collapse", alone, y + (int64_t)row * 5120, 5120, sizeof(bf16));
        run_expand(&one, alone);
        gpu_same("expand", alone, all.out + (int64_t)row * 4 * 5120, 4 * 5120, sizeof(bf16));
    }
    free(y);
    free(alone);
    setup_close(&all);
}

static void a_second_run_has_the_same_bits(void **state)
{
    (void)state;
    setup a = setup_open(20, 4, 5120, 8000), b = setup_open(20, 4, 5120, 8000);
    run_mixes(&a);
    run_mixes(&b);
    gpu_same("pre", b.pre, a.pre, 20 * 4, sizeof(float));
    gpu_same("post", b.post, a.post, 20 * 4, sizeof(float));
    gpu_same("comb", b.comb, a.comb, 20 * 16, sizeof(float));
    setup_close(&a);
    setup_close(&b);
}

static void shapes_outside_the_contract_are_refused(void **state)
{
    (void)state;
    static const int32_t BAD[][3] = { { -1, 4, 64 }, { 1, 0, 64 }, { 1, KRN_MHC_COPIES_MAX + 1, 64 }, { 1, 4, 0 } };
    err e = { 0 };
    bf16 b[1] = { 0 };
    float f[1] = { 0 };
    for (size_t i = 0; i < sizeof BAD / sizeof BAD[0]; i++) {
        const int32_t *n = BAD[i];
        assert_int_equal(krn_mhc_mixes(b, f, f, f, n[0], n[1], n[2], 1, 1, 20, f, f, f, NULL, &e), ERR_ARG);
        assert_int_equal(krn_mhc_collapse(b, f, b, n[0], n[1], n[2], NULL, &e), ERR_ARG);
        assert_int_equal(krn_mhc_expand(b, b, f, f, b, n[0], n[1], n[2], NULL, &e), ERR_ARG);
    }
    assert_int_equal(krn_mhc_mixes(b, f, f, f, 1, 4, 64, 1, 1, 0, f, f, f, NULL, &e), ERR_ARG);
    assert_int_equal(krn_mhc_mixes(b, f, f, f, 0, 4, 64, 1, 1, 20, f, f, f, NULL, &e), ERR_OK);
    assert_int_equal(krn_mhc_collapse(b, f, b, 0, 4, 64, NULL, &e), ERR_OK);
    assert_int_equal(krn_mhc_expand(b, b, f, f, b, 0, 4, 64, NULL, &e), ERR_OK);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(mixes_lie_within_the_bound),
    cmocka_unit_test(mixes_have_the_blocked_twins_bits),
    cmocka_unit_test(one_iteration_and_none_of_the_later_ones),
    cmocka_unit_test(the_judge_of_mixes_refuses_faults),
    cmocka_unit_test(a_row_of_zeros_gives_the_base),
    cmocka_unit_test(nan_in_the_stream_stays_in_its_row),
    cmocka_unit_test(collapse_and_expand_have_the_blocked_twins_bits),
    cmocka_unit_test(expand_lies_within_the_bound),
    cmocka_unit_test(a_row_alone_has_the_bits_it_has_among_others),
    cmocka_unit_test(a_second_run_has_the_same_bits),
    cmocka_unit_test(shapes_outside_the_contract_are_refused),
};

GPU_MAIN(tests)
