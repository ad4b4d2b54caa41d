/* krn_linear_f64 on the card against krn_linear_ref in F64: the same bits but for a few neighbours. */
#include "gpu.h"

#include "base/mem.h"
#include "kernels/linear.h"

#include <math.h>

/* One product, and the twin's sums. */
typedef struct problem {
    krn_weight w, dw; /* host, device */
    int32_t rows;
    int64_t ldx;
    bf16 *x, *dx;     /* [rows, ldx] */
    float *want;      /* [rows, n] */
} problem;

static void *take(int64_t bytes)
{
    void *p = mem_alloc((size_t)bytes, 1);
    assert_non_null(p);
    return p;
}

/* As real taps are: a few columns are thousands of times larger than the rest. */
static void fill_x(bf16 *x, int64_t rows, int64_t ldx, uint64_t seed)
{
    gpu_fill_bf16(x, rows * ldx, seed, 1.0f);
    for (int64_t i = 0; i < rows * ldx; i++)
        if (gpu_hash(seed + 1, (uint64_t)(i % ldx)) % 97 == 0) x[i] = bf16_from_f32(f32_from_bf16(x[i]) * 6000.0f);
}

static void want_again(problem *p)
{
    krn_linear_ref(p->x, p->ldx, p->rows, &p->w, KRN_ACC_F64, KRN_OUT_F32, p->want, p->w.n);
}

/* Strides are dense, or 16 bytes and 3 scales longer. scale_row0: of the FP8 view. */
static problem make(krn_wformat f, int32_t n, int32_t k, int32_t rows, bool padded, int32_t scale_row0, uint64_t seed)
{
    const int64_t pad = padded ? 16 : 0;
    problem p = { .rows = rows, .ldx = k + pad };
    p.w = (krn_weight){ .format = f, .n = n, .k = k, .row_bytes = (f == KRN_W_FP8 ? k : 2 * (int64_t)k) + pad,
                        .scale_row_bytes = k / 32 + (padded ? 3 : 0), .scale_row0 = scale_row0 };
    const int64_t bytes = n * p.w.row_bytes, scale_bytes = (scale_row0 + n + 31) / 32 * p.w.scale_row_bytes;
    uint8_t *data = take(bytes), *scale = take(scale_bytes);
    if (f == KRN_W_BF16) gpu_fill_bf16((bf16 *)(void *)data, bytes / 2, seed, 0.02f);
    for (int64_t i = 0; f == KRN_W_FP8 && i < bytes; i++) {
        data[i] = (uint8_t)gpu_hash(seed, (uint64_t)i);
        if ((data[i] & 0x7f) == 0x7f) data[i] ^= 1;
    }
    for (int64_t i = 0; i < scale_bytes; i++) scale[i] = (uint8_t)(113 + gpu_hash(seed + 2, (uint64_t)i) % 8);
    p.w.data = data;
    p.w.scale = f == KRN_W_FP8 ? scale : NULL;
    p.x = take((rows * p.ldx) * 2);
    fill_x(p.x, rows, p.ldx, seed + 3);
    p.want = take((int64_t)rows * n * 4);
    want_again(&p);
    p.dx = gpu_put(p.x, (size_t)(rows * p.ldx) * 2);
    p.dw = p.w;
    p.dw.data = gpu_put(data, (size_t)bytes);
    if (p.w.scale) p.dw.scale = gpu_put(scale, (size_t)scale_bytes);
    else free(scale);
    return p;
}

static void drop(problem *p)
{
    free((void *)(uintptr_t)p->w.data);
    free((void *)(uintptr_t)p->w.scale);
    free(p->x);
    free(p->want);
    gpu_free_all();
}

/* Rows [t0, t0 + rows) into host memory [rows, ldy] of out's type. */
static void run(const problem *p, int32_t t0, int32_t rows, krn_out out, int64_t ldy, void *y)
{
    err e = { 0 };
    const size_t bytes = (size_t)(rows * ldy) * (out == KRN_OUT_BF16 ? 2 : 4);
    void *dy = gpu_out(bytes);
    gpu_ok(krn_linear_f64(p->dx + t0 * p->ldx, p->ldx, rows, &p->dw, out, dy, ldy, gpu_stream(), &e), &e);
    gpu_get(dy, y, bytes);
}

/* ---- the verdict ---- */

/* Elements of got [rows, ldy] that are not the twin's. Those that are no neighbours of it either are counted in *far. */
static int64_t differing(const problem *p, const float *got, int64_t ldy, int64_t *far)
{
    int64_t n = 0;
    *far = 0;
    for (int32_t t = 0; t < p->rows; t++)
        for (int32_t c = 0; c < p->w.n; c++) {
            const float g = got[t * ldy + c], w = p->want[(int64_t)t * p->w.n + c];
            if (f32_bits(g) == f32_bits(w)) continue;
            n++;
            if (g != nextafterf(w, INFINITY) && g != nextafterf(w, -INFINITY) && (*far)++ == 0)
                print_message("first far element (%d, %d): got %.9g wanted %.9g\n", t, c, (double)g, (double)w);
        }
    return n;
}

/* The twin's bits but for 1 in 100,000, and those neighbours; bf16 is the f32 sum rounded; rows have the same bits alone,
 * in any company, and again; what lies between rows stays. */
static void judge(const char *label, const problem *p)
{
    static const int32_t ROWS[] = { 1, 5, 8, 9, 16, 17, 64 };
    const int32_t n = p->w.n;
    const int64_t ldy = n + 3;
    float *all = take(p->rows * ldy * 4), *some = take(p->rows * ldy * 4);
    bf16 *rounded = take(p->rows * ldy * 2);
    run(p, 0, p->rows, KRN_OUT_F32, ldy, all);
    run(p, 0, p->rows, KRN_OUT_BF16, ldy, rounded);
    for (int32_t t = 0; t < p->rows; t++)
        for (int32_t c = 0; c < ldy; c++) {
            if (c < n) assert_int_equal(rounded[t * ldy + c], bf16_from_f32(all[t * ldy + c]));
            else assert_true(f32_bits(all[t * ldy + c]) == 0xa5a5a5a5u && rounded[t * ldy + c] == 0xa5a5);
        }
    int64_t far, n_differ = differing(p, all, ldy, &far);
    print_message("%-40s n %lld differ %lld\n", label, (long long)p->rows * n, (long long)n_differ);
    assert_int_equal(far, 0);
    assert_true((double)n_differ <= 1e-5 * (double)p->rows * n);
    for (size_t r = 0; r < sizeof ROWS / sizeof *ROWS && ROWS[r] <= p->rows; r++)
        for (int32_t t0 = 0; t0 <= p->rows - ROWS[r]; t0 += p->rows - ROWS[r] > 0 ? p->rows - ROWS[r] : 1) {
            run(p, t0, ROWS[r], KRN_OUT_F32, ldy, some);
            gpu_same(label, some, all + t0 * ldy, ROWS[r] * ldy, 4);
        }
    free(all);
    free(some);
    free(rounded);
}

/* ---- tests ---- */

static void main_proj_has_the_twins_bits(void **state)
{
    (void)state;
    problem p = make(KRN_W_FP8, 5120, 15360, 24, false, 0, 1);
    judge("main_proj, FP8, 24 rows", &p);
    drop(&p);
    p = make(KRN_W_BF16, 5120, 15360, 8, false, 0, 2);
    judge("main_proj, BF16, 8 rows", &p);
    drop(&p);
}

static void an_insert_of_128_rows_has_the_twins_bits(void **state)
{
    (void)state;
    problem p = make(KRN_W_FP8, 1280, 15360, 128, false, 0, 3);
    judge("a quarter of main_proj, FP8, 128 rows", &p);
    drop(&p);
}

static void other_shapes_have_the_twins_bits(void **state)
{
    (void)state;
    static const struct { int32_t n, k, rows, scale_row0; } SHAPES[] = {
        { 64, 192, 9, 0 }, { 1, 32, 1, 0 }, { 41, 64, 3, 0 }, { 39, 512, 16, 0 }, { 100, 544, 17, 0 }, { 200, 1056, 33, 17 }
    };
    char label[64];
    for (size_t i = 0; i < sizeof SHAPES / sizeof *SHAPES; i++)
        for (int f = 0; f < 2; f++)
            for (int padded = 0; padded < 2; padded++) {
                const krn_wformat format = f ? KRN_W_BF16 : KRN_W_FP8;
                problem p = make(format, SHAPES[i].n, SHAPES[i].k, SHAPES[i].rows, padded, SHAPES[i].scale_row0, 10 + i);
                snprintf(label, sizeof label, "%s %d x %d, %d rows", f ? "bf16" : "fp8", p.w.n, p.w.k, p.rows);
                judge(label, &p);
                drop(&p);
            }
}

/* x picks single weights, every code under every scale that keeps it in bf16: decoding is exact, subnormals included. */
static void every_code_under_every_scale_is_exact(void **state)
{
    (void)state;
    enum { K = 256 };
    problem p = make(KRN_W_FP8, 244 * 32, K, 16, false, 0, 20);
    uint8_t *data = (uint8_t *)(uintptr_t)p.w.data, *scale = (uint8_t *)(uintptr_t)p.w.scale;
    for (int64_t r = 0; r < p.w.n; r++)
        for (int c = 0; c < K; c++) data[r * K + c] = (uint8_t)((c + 16 * (r % 16)) % 128 == 127 ? 0 : c + 16 * (r % 16));
    for (int64_t i = 0; i < 244 * (K / 32); i++) scale[i] = (uint8_t)(3 + i / (K / 32));
    memset(p.x, 0, (size_t)(p.rows * p.ldx) * 2);
    for (int t = 0; t < p.rows; t++) p.x[t * p.ldx + t] = 0x3f80;
    want_again(&p);
    p.dw.data = gpu_put(data, (size_t)(p.w.n * K));
    p.dw.scale = gpu_put(scale, (size_t)(244 * (K / 32)));
    p.dx = gpu_put(p.x, (size_t)(p.rows * p.ldx) * 2);
    float *y = take((int64_t)p.rows * p.w.n * 4);
    int64_t far;
    run(&p, 0, p.rows, KRN_OUT_F32, p.w.n, y);
    assert_int_equal(differing(&p, y, p.w.n, &far), 0);
    free(y);
    drop(&p);
}

static void nan_and_infinity_are_the_contracts(void **state)
{
    (void)state;
    enum { N = 48, K = 96, ROWS = 9 };
    problem p = make(KRN_W_FP8, N, K, ROWS, false, 0, 30);
    float y[ROWS * N];
    bf16 rounded[ROWS * N];
    p.x[1 * K + 40] = 0xffc1; /* NaN with other bits */
    p.x[3 * K + 7] = 0x7f80;
    p.x[5 * K + 7] = 0x7f80;
    p.x[5 * K + 8] = 0xff80;
    want_again(&p);
    p.dx = gpu_put(p.x, ROWS * K * 2);
    run(&p, 0, ROWS, KRN_OUT_F32, N, y);
    run(&p, 0, ROWS, KRN_OUT_BF16, N, rounded);
    gpu_same("special values", y, p.want, ROWS * N, 4);
    for (int i = 0; i < ROWS * N; i++) assert_int_equal(rounded[i], bf16_from_f32(y[i]));
    drop(&p);
}

/* The sum 2^40 + 1 - 2^40, of 15,360 columns: no f32 order gives more than luck, a double one gives 1. */
static void small_terms_survive_beside_large_ones(void **state)
{
    (void)state;
    enum { K = 15360 };
    problem p = make(KRN_W_BF16, 8, K, 8, false, 0, 40);
    bf16 *data = (bf16 *)(uintptr_t)p.w.data;
    float y[64];
    memset(p.x, 0, 8 * K * 2);
    for (int i = 0; i < 8 * K; i++) data[i] = 0x3f80;
    for (int t = 0; t < 8; t++) {
        p.x[t * K + 100 * t] = bf16_from_f32(0x1p40f);
        p.x[t * K + 1000 + 31 * t] = 0x3f80;
        p.x[t * K + K - 1 - t] = bf16_from_f32(-0x1p40f);
    }
    p.dx = gpu_put(p.x, 8 * K * 2);
    p.dw.data = gpu_put(data, 8 * K * 2);
    run(&p, 0, 8, KRN_OUT_F32, 8, y);
    for (int i = 0; i < 64; i++) assert_true(y[i] == 1.0f);
    drop(&p);
}

static void operands_outside_the_contract_are_refused(void **state)
{
    (void)state;
    problem p = make(KRN_W_FP8, 48, 96, 2, false, 0, 50);
    err e = { 0 };
    float *y = gpu_out(2 * 48 * 4);
    krn_weight bad[5] = { p.dw, p.dw, p.dw, p.dw, p.dw };
    bad[0].k = 80;
    bad[1].n = 0;
    bad[2].format = KRN_W_FP4;
    bad[3].row_bytes = 97;
    bad[4].data = (const uint8_t *)p.dw.data + 8;
    for (int i = 0; i < 5; i++)
        assert_int_equal(krn_linear_f64(p.dx, 96, 2, &bad[i], KRN_OUT_F32, y, 48, gpu_stream(), &e), ERR_ARG);
    assert_int_equal(krn_linear_f64(p.dx, 95, 2, &p.dw, KRN_OUT_F32, y, 48, gpu_stream(), &e), ERR_ARG);
    assert_int_equal(krn_linear_f64(p.dx + 1, 96, 2, &p.dw, KRN_OUT_F32, y, 48, gpu_stream(), &e), ERR_ARG);
    assert_int_equal(krn_linear_f64(p.dx, 96, 2, &p.dw, KRN_OUT_F32, y, 47, gpu_stream(), &e), ERR_ARG);
    assert_int_equal(krn_linear_f64(p.dx, 96, -1, &p.dw, KRN_OUT_F32, y, 48, gpu_stream(), &e), ERR_ARG);
    assert_int_equal(krn_linear_f64(p.dx, 96, 0, &p.dw, KRN_OUT_F32, y, 48, gpu_stream(), &e), ERR_OK);
    drop(&p);
}

static void the_verdict_sees_one_neighbour_and_refuses_two_steps(void **state)
{
    (void)state;
    problem p = make(KRN_W_FP8, 40, 512, 8, false, 0, 60);
    float *y = take(8 * 40 * 4);
    int64_t far;
    run(&p, 0, 8, KRN_OUT_F32, 40, y);
    assert_int_equal(differing(&p, y, 40, &far), 0);
    y[77] = nextafterf(y[77], INFINITY);
    assert_int_equal(differing(&p, y, 40, &far), 1);
    assert_int_equal(far, 0);
    y[77] = nextafterf(y[77], INFINITY);
    assert_int_equal(differing(&p, y, 40, &far), 1);
    assert_int_equal(far, 1);
    free(y);
    drop(&p);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(main_proj_has_the_twins_bits),
    cmocka_unit_test(an_insert_of_128_rows_has_the_twins_bits),
    cmocka_unit_test(other_shapes_have_the_twins_bits),
    cmocka_unit_test(every_code_under_every_scale_is_exact),
    cmocka_unit_test(nan_and_infinity_are_the_contracts),
    cmocka_unit_test(small_terms_survive_beside_large_ones),
    cmocka_unit_test(operands_outside_the_contract_are_refused),
    cmocka_unit_test(the_verdict_sees_one_neighbour_and_refuses_two_steps),
};
GPU_MAIN(tests)
