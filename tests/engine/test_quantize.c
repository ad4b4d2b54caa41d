/* One linear to EXL3 and back, by the format's formula written out plainly: errors, zeros, extreme sizes, the Hessian. */
#include "engine/quantize_linear.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#ifdef _OPENMP
#include <omp.h>
#endif

enum { BLOCK = FMT_EXL3_BLOCK, TILE = FMT_EXL3_TILE };

static float normal(uint64_t seed, int64_t i)
{
    return eng_noise_normal(eng_noise_normals(), eng_noise_bits(eng_noise_mix(seed), (uint64_t)i));
}

/* A bf16 matrix [n, k] of normals. */
static krn_weight matrix(int32_t n, int32_t k, float scale, uint64_t seed)
{
    bf16 *w = malloc((size_t)n * (size_t)k * sizeof *w);
    assert_non_null(w);
    for (int64_t i = 0; i < (int64_t)n * k; i++) w[i] = bf16_from_f32(scale * normal(seed, i));
    return (krn_weight){ .format = KRN_W_BF16, .n = n, .k = k, .data = w, .row_bytes = 2 * (int64_t)k };
}

static eng_encoder *encoder;

static eng_exl3_linear quantize(const krn_weight *w, int32_t bits, const eng_hessian *h)
{
    err e = { 0 };
    eng_exl3_linear out;
    const krn_exl3_code code = { bits, FMT_EXL3_MUL1, 64 };
    if (eng_exl3_quantize(w, code, (eng_exl3_signs){ 11, 12 }, encoder, h, NULL, NULL, &out, &e) != ERR_OK)
        fail_msg("%s", e.msg);
    return out;
}

/* W [in, out] in double. */
static double *reconstruct(const eng_exl3_linear *q, int32_t bits)
{
    const float *table = fmt_exl3_table(FMT_EXL3_MUL1);
    double *w = calloc((size_t)q->in * (size_t)q->out, sizeof *w);
    assert_non_null(w);
    for (int32_t i = 0; i < q->in / TILE; i++)
        for (int32_t j = 0; j < q->out / TILE; j++) {
            uint16_t state[FMT_EXL3_TILE_WEIGHTS];
            fmt_exl3_unpack(q->tiles + ((int64_t)i * (q->out / TILE) + j) * 16 * bits, bits, state);
            for (int32_t p = 0; p < FMT_EXL3_TILE_WEIGHTS; p++) {
                const int32_t at = fmt_exl3_place(p);
                w[(int64_t)(TILE * i + at / TILE) * q->out + TILE * j + at % TILE] = (double)table[state[p]];
            }
        }
    /* A row, then a column of the matrix at a time, by the definition of H. */
    for (int columns = 0; columns < 2; columns++) {
        const int64_t lines = columns ? q->out : q->in, step = columns ? q->out : 1, next = columns ? 1 : q->out;
        const int32_t length = columns ? q->in : q->out;
        for (int64_t line = 0; line < lines; line++)
            for (int32_t first = 0; first < length; first += BLOCK) {
                double in[BLOCK], *x = w + line * next + first * step;
                for (int a = 0; a < BLOCK; a++) in[a] = x[a * step];
                for (int a = 0; a < BLOCK; a++) {
                    double sum = 0;
                    for (int b = 0; b < BLOCK; b++) sum += __builtin_popcount((unsigned)(a & b)) % 2 ? -in[b] : in[b];
                    x[a * step] = sum / sqrt(BLOCK);
                }
            }
    }
    for (int32_t i = 0; i < q->in; i++)
        for (int32_t j = 0; j < q->out; j++)
            w[(int64_t)i * q->out + j] *= (double)f32_from_fp16(q->suh[i]) * f32_from_fp16(q->svh[j]);
    return w;
}

static double weight_at(const krn_weight *w, int32_t row, int32_t column)
{
    return f32_from_bf16(((const bf16 *)w->data)[(int64_t)row * w->k + column]);
}

static double relative_error(const krn_weight *w, const double *got, int32_t out)
{
    double e2 = 0, w2 = 0;
    for (int32_t r = 0; r < w->n; r++)
        for (int32_t c = 0; c < w->k; c++) {
            const double want = weight_at(w, r, c), d = got[(int64_t)c * out + r] - want;
            e2 += d * d;
            w2 += want * want;
        }
    return sqrt(e2 / w2);
}

/* ---- tests ---- */

static void comes_back_within_the_known_error(void **state)
{
    (void)state;
    static const struct { int32_t n, k, bits; float scale; double error; } CASES[] = {
        { 128, 256, 5, 0.014f, 0.0341 }, { 128, 128, 2, 0.014f, 0.262 },
        /* Padded both ways; sizes that fp16 scales would lose. */
        { 160, 96, 6, 0.05f, 0.0175 }, { 96, 64, 4, 0x1p-22f, 0.0664 }, { 64, 96, 4, 0x1p20f, 0.0664 },
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        krn_weight w = matrix(CASES[i].n, CASES[i].k, CASES[i].scale, i);
        eng_exl3_linear q = quantize(&w, CASES[i].bits, NULL);
        double *got = reconstruct(&q, CASES[i].bits);
        const double found = relative_error(&w, got, q.out), told = sqrt(q.error2 / q.weight2);
        /* 8 %: no large sample. What of a block's error falls on the padding is multiplied by 0. */
        const bool padded = q.in != w.k || q.out != w.n;
        if (!(found < 1.08 * CASES[i].error && found > (padded ? 0.5 : 0.92) * CASES[i].error))
            fail_msg("case %zu: %.5f, wanted %.5f", i, found, CASES[i].error);
        if (!(fabs(told / CASES[i].error - 1) < 0.08))
            fail_msg("case %zu: says %.5f, wanted %.5f", i, told, CASES[i].error);
        free(got);
        free((void *)w.data);
        eng_exl3_linear_fini(&q);
    }
}

static void zero_rows_and_columns_stay_zero(void **state)
{
    (void)state;
    krn_weight w = matrix(140, 96, 1.0f, 77);
    bf16 *data = (bf16 *)w.data;
    memset(data + 5 * w.k, 0, (size_t)w.k * sizeof *data); /* output 5, input 17 */
    for (int32_t r = 0; r < w.n; r++) data[(int64_t)r * w.k + 17] = 0;
    eng_exl3_linear q = quantize(&w, 4, NULL);
    double *got = reconstruct(&q, 4);
    assert_int_equal(q.in, 128);
    assert_int_equal(q.out, 256);
    for (int32_t i = 0; i < q.in; i++)
        for (int32_t j = 0; j < q.out; j++)
            if (i == 17 || i >= w.k || j == 5 || j >= w.n) assert_true(got[(int64_t)i * q.out + j] == 0);
    assert_true(relative_error(&w, got, q.out) < 0.08);
    free(got);
    eng_exl3_linear_fini(&q);
    memset(data, 0, (size_t)w.n * (size_t)w.k * sizeof *data);
    q = quantize(&w, 4, NULL);
    got = reconstruct(&q, 4);
    for (int64_t i = 0; i < (int64_t)q.in * q.out; i++) assert_true(got[i] == 0);
    free(got);
    eng_exl3_linear_fini(&q);
    free(data);
}

static void weights_beyond_the_scales_are_refused(void **state)
{
    (void)state;
    static const float SCALES[] = { 1e12f, 1e30f, 1e37f };
    for (size_t i = 0; i < sizeof SCALES / sizeof *SCALES; i++) {
        err e = { 0 };
        krn_weight w = matrix(32, 32, SCALES[i], i);
        eng_exl3_linear out;
        const krn_exl3_code code = { 8, FMT_EXL3_MUL1, 2 };
        const err_code rc = eng_exl3_quantize(&w, code, (eng_exl3_signs){ 1, 2 }, encoder, NULL, NULL, NULL, &out, &e);
        if (rc != ERR_INPUT) fail_msg("%g: %s", (double)SCALES[i], err_name(rc));
        assert_non_null(strstr(e.msg, "too large"));
        free((void *)w.data);
    }
}

static void threads_change_nothing(void **state)
{
    (void)state;
#ifdef _OPENMP
    krn_weight w = matrix(128, 128, 0.02f, 4);
    const int before = omp_get_max_threads();
    omp_set_num_threads(1);
    eng_exl3_linear one = quantize(&w, 6, NULL);
    omp_set_num_threads(3);
    eng_exl3_linear three = quantize(&w, 6, NULL);
    omp_set_num_threads(before);
    assert_memory_equal(one.tiles, three.tiles, 128 * 128 / 8 * 6);
    assert_memory_equal(one.suh, three.suh, 128 * sizeof *one.suh);
    assert_memory_equal(one.svh, three.svh, 128 * sizeof *one.svh);
    assert_true(one.error2 == three.error2 && one.weight2 == three.weight2);
    eng_exl3_linear_fini(&one);
    eng_exl3_linear_fini(&three);
    free((void *)w.data);
#endif
}

static err_code give_up(void *ctx, int64_t tiles, err *e)
{
    (void)ctx, (void)tiles;
    return err_set(e, ERR_SYSTEM, "interrupted");
}

static void an_interrupted_linear_leaves_nothing(void **state)
{
    (void)state;
    err e = { 0 };
    krn_weight w = matrix(32, 32, 0.02f, 4);
    eng_exl3_linear out;
    const krn_exl3_code code = { 8, FMT_EXL3_MCG, 2 };
    err_code rc = eng_exl3_quantize(&w, code, (eng_exl3_signs){ 1, 2 }, encoder, NULL, give_up, NULL, &out, &e);
    assert_int_equal(rc, ERR_SYSTEM);
    assert_true(!out.tiles && !out.suh && !out.svh);
    free((void *)w.data);
}

/* ---- the Hessian ---- */

enum { ROWS = 96, IN = 128, OUT = 64 };

/* Rows in a few directions, and a little of everything. */
static float *inputs(uint64_t seed)
{
    enum { DIRECTIONS = 12 };
    float *x = malloc(ROWS * IN * sizeof *x);
    assert_non_null(x);
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < IN; i++) {
            float sum = 0.1f * normal(seed, r * IN + i);
            for (int d = 0; d < DIRECTIONS; d++) sum += normal(seed + 1, r * DIRECTIONS + d) * normal(seed + 2, d * IN + i);
            x[r * IN + i] = sum;
        }
    return x;
}

/* RMS of x (W' - W) by that of x W. */
static double output_error(const krn_weight *w, const float *x, const eng_exl3_linear *q, int32_t bits)
{
    double *got = reconstruct(q, bits), e2 = 0, y2 = 0;
    for (int r = 0; r < ROWS; r++)
        for (int32_t j = 0; j < w->n; j++) {
            double y = 0, d = 0;
            for (int32_t i = 0; i < w->k; i++) {
                const double want = weight_at(w, j, i);
                y += x[r * w->k + i] * want;
                d += x[r * w->k + i] * (got[(int64_t)i * q->out + j] - want);
            }
            e2 += d * d;
            y2 += y * y;
        }
    free(got);
    return sqrt(e2 / y2);
}

static void a_hessian_lowers_the_error_of_outputs(void **state)
{
    (void)state;
    err e = { 0 };
    eng_hessian *h;
    float *x = inputs(21);
    krn_weight w = matrix(OUT, IN, 0.02f, 22);
    assert_int_equal(eng_hessian_open(x, ROWS, IN, 11, &h, &e), ERR_OK);
    assert_non_null(h);
    eng_exl3_linear alone = quantize(&w, 4, NULL), with = quantize(&w, 4, h);
    const double before = output_error(&w, x, &alone, 4), after = output_error(&w, x, &with, 4);
    /* Half, where the inputs are as correlated as here; the weights themselves come out no better. */
    if (!(after < 0.6 * before)) fail_msg("outputs: %.5f with, %.5f without", after, before);
    assert_true(with.error2 > alone.error2);
    assert_true(with.proxy > 0 && sqrt(with.proxy) < before);
    eng_exl3_linear_fini(&alone);
    eng_exl3_linear_fini(&with);
    eng_hessian_close(h);
    free(x);
    free((void *)w.data);
}

static float lower_at(const eng_hessian *h, int row, int column)
{
    if (row / TILE == column / TILE) return row == column;
    return row > column ? h->lower[row * h->n + column] : 0;
}

/* H = L D L^T in the turned basis, by its definition. */
static void the_hessian_is_that_of_the_turned_rows(void **state)
{
    (void)state;
    err e = { 0 };
    eng_hessian *h;
    float *x = inputs(31), turned[ROWS][IN];
    double trace = 0, worst = 0;
    assert_int_equal(eng_hessian_open(x, ROWS, IN, 5, &h, &e), ERR_OK);
    assert_non_null(h);
    for (int r = 0; r < ROWS; r++) {
        for (int i = 0; i < IN; i++) {
            turned[r][i] = x[r * IN + i] * eng_exl3_sign(5, i);
            trace += (double)x[r * IN + i] * x[r * IN + i] / ROWS;
        }
        eng_exl3_hadamard(turned[r]);
    }
    for (int i = 0; i < IN; i++)
        for (int j = 0; j < IN; j++) {
            double want = i == j ? 0.025 * trace / IN : 0, got = 0;
            for (int r = 0; r < ROWS; r++) want += (double)turned[r][i] * turned[r][j] / ROWS;
            for (int b = 0; b < IN / TILE; b++)
                for (int p = 0; p < TILE; p++)
                    for (int q = 0; q < TILE; q++) {
                        const float d = h->pivot[(b * TILE + p) * TILE + q];
                        got += (double)lower_at(h, i, b * TILE + p) * d * lower_at(h, j, b * TILE + q);
                    }
            if (fabs(got - want) > worst) worst = fabs(got - want);
        }
    if (!(worst < 1e-5 * trace / IN)) fail_msg("off by %g of a mean diagonal of %g", worst, trace / IN);
    eng_hessian_close(h);
    free(x);
}

static void unusable_inputs_give_no_hessian(void **state)
{
    (void)state;
    err e = { 0 };
    eng_hessian *h = NULL, *good;
    float *x = inputs(41);
    assert_int_equal(eng_hessian_open(x, 0, IN, 1, &h, &e), ERR_OK);
    assert_null(h);
    float *zeros = calloc(ROWS * IN, sizeof *zeros);
    assert_non_null(zeros);
    assert_int_equal(eng_hessian_open(zeros, ROWS, IN, 1, &h, &e), ERR_OK);
    assert_null(h);
    free(zeros);
    /* Rows with an infinity or NaN are as if they were not there. */
    assert_int_equal(eng_hessian_open(x, ROWS - 2, IN, 1, &good, &e), ERR_OK);
    x[(ROWS - 2) * IN + 3] = INFINITY;
    x[(ROWS - 1) * IN] = NAN;
    assert_int_equal(eng_hessian_open(x, ROWS, IN, 1, &h, &e), ERR_OK);
    assert_true(h && good);
    assert_memory_equal(h->lower, good->lower, IN * IN * sizeof *h->lower);
    eng_hessian_close(h);
    eng_hessian_close(good);
    for (int r = 0; r < ROWS; r++) x[r * IN] = NAN;
    assert_int_equal(eng_hessian_open(x, ROWS, IN, 1, &h, &e), ERR_OK);
    assert_null(h);
    free(x);
}

static int open_encoder(void **state)
{
    (void)state;
    err e = { 0 };
    return eng_encoder_open(false, &encoder, &e) == ERR_OK ? 0 : -1;
}

static int close_encoder(void **state)
{
    (void)state;
    eng_encoder_close(encoder);
    return 0;
}

int main(void)
{
    static const struct CMUnitTest TESTS[] = {
        cmocka_unit_test(comes_back_within_the_known_error),
        cmocka_unit_test(zero_rows_and_columns_stay_zero),
        cmocka_unit_test(weights_beyond_the_scales_are_refused),
        cmocka_unit_test(threads_change_nothing),
        cmocka_unit_test(an_interrupted_linear_leaves_nothing),
        cmocka_unit_test(a_hessian_lowers_the_error_of_outputs),
        cmocka_unit_test(the_hessian_is_that_of_the_turned_rows),
        cmocka_unit_test(unusable_inputs_give_no_hessian),
    };
    return cmocka_run_group_tests(TESTS, open_encoder, close_encoder);
}
