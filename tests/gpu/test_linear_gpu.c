/* krn_linear and krn_linear_groups on the card against exact sums, over the official shapes of one of two ranks and shapes
 * that no model has. Exact sums are krn_linear_ref's in F64; their magnitudes too, of the operands without signs. */
#include "gpu.h"

#include "base/mem.h"
#include "kernels/linear.h"

#include <math.h>

/* One product and what it should give. */
typedef struct problem {
    const char *label;
    krn_weight w; /* host */
    int32_t rows, groups;
    int64_t ldx;
    bf16 *x;                  /* [rows, ldx] */
    float *exact, *magnitude; /* [rows, n] */
    /* on the device */
    bf16 *dx;
    krn_weight dw;
} problem;

static int64_t row_bytes_of(krn_wformat f, int64_t k)
{
    return f == KRN_W_FP4 ? k / 2 : f == KRN_W_FP8 ? k : f == KRN_W_BF16 ? 2 * k : 4 * k;
}
static int64_t scale_rows_of(const krn_weight *w) { return w->format == KRN_W_FP8 ? (w->n + 31) / 32 : w->n; }
static bool scaled(const krn_weight *w) { return w->format == KRN_W_FP8 || w->format == KRN_W_FP4; }

static void *take(int64_t bytes)
{
    void *p = mem_alloc((size_t)bytes, 1);
    assert_non_null(p);
    return p;
}

/* Random codes without NaN; scales near 2^-10, as in real weights, or where large every byte that keeps weights in bf16. */
static void weight_fill(krn_weight *w, bool large, uint64_t seed)
{
    int64_t bytes = w->n * w->row_bytes;
    uint8_t *data = take(bytes);
    if (w->format == KRN_W_F32) gpu_fill_f32((float *)(void *)data, bytes / 4, seed, 0.02f);
    else if (w->format == KRN_W_BF16) gpu_fill_bf16((bf16 *)(void *)data, bytes / 2, seed, 0.02f);
    else
        for (int64_t i = 0; i < bytes; i++) {
            data[i] = (uint8_t)gpu_hash(seed, (uint64_t)i);
            if (w->format == KRN_W_FP8 && (data[i] & 0x7f) == 0x7f) data[i] ^= 1;
        }
    w->data = data;
    if (!scaled(w)) return;
    bytes = scale_rows_of(w) * w->scale_row_bytes;
    uint8_t *scale = take(bytes);
    for (int64_t i = 0; i < bytes; i++) {
        uint32_t h = gpu_hash(seed + 1, (uint64_t)i);
        scale[i] = (uint8_t)(large ? 100 + h % 60 : 113 + h % 8);
    }
    w->scale = scale;
}

/* The same weight without signs. */
static krn_weight weight_magnitude(const krn_weight *w)
{
    krn_weight m = *w;
    int64_t bytes = w->n * w->row_bytes;
    uint8_t *data = take(bytes);
    memcpy(data, w->data, (size_t)bytes);
    for (int64_t i = 0; i < bytes; i++)
        switch (w->format) {
        case KRN_W_FP8: data[i] &= 0x7f; break;
        case KRN_W_FP4: data[i] &= 0x77; break;
        case KRN_W_BF16: data[i] &= i % 2 ? 0x7f : 0xff; break;
        case KRN_W_F32: data[i] &= i % 4 == 3 ? 0x7f : 0xff; break;
        case KRN_W_EXL3: break; /* not krn_linear's */
        }
    m.data = data;
    return m;
}

/* y [rows, n] of the twin in F64, group by group. */
static void exact_linear(const bf16 *x, int64_t ldx, int32_t rows, const krn_weight *w, int32_t groups, float *y)
{
    const int32_t n = w->n / groups;
    for (int32_t g = 0; g < groups; g++) {
        krn_weight part = krn_weight_slice(w, g * n, n, 0, w->k);
        krn_linear_ref(x + g * w->k, ldx, rows, &part, KRN_ACC_F64, KRN_OUT_F32, y + g * n, w->n);
    }
}

/* w: format, n, k, strides. x_pad, in elements, makes ldx. */
static problem make(const char *label, krn_weight w, int32_t rows, int32_t groups, int32_t x_pad, bool large, uint64_t seed)
{
    problem p = { .label = label, .w = w, .rows = rows, .groups = groups, .ldx = (int64_t)groups * w.k + x_pad };
    const int64_t n_x = rows * p.ldx, n_y = (int64_t)rows * w.n;
    weight_fill(&p.w, large, seed);
    p.x = take(n_x * 2);
    gpu_fill_bf16(p.x, n_x, seed + 2, 1.0f);
    p.exact = take(n_y * 4);
    p.magnitude = take(n_y * 4);
    exact_linear(p.x, p.ldx, rows, &p.w, groups, p.exact);
    bf16 *x_magnitude = take(n_x * 2);
    for (int64_t i = 0; i < n_x; i++) x_magnitude[i] = p.x[i] & 0x7fff;
    krn_weight magnitude = weight_magnitude(&p.w);
    exact_linear(x_magnitude, p.ldx, rows, &magnitude, groups, p.magnitude);
    free(x_magnitude);
    free((void *)(uintptr_t)magnitude.data);

    p.dx = gpu_put(p.x, (size_t)n_x * 2);
    p.dw = p.w;
    p.dw.data = gpu_put(p.w.data, (size_t)(w.n * w.row_bytes));
    if (scaled(&w)) p.dw.scale = gpu_put(p.w.scale, (size_t)(scale_rows_of(&w) * w.scale_row_bytes));
    return p;
}

static krn_weight dense(krn_wformat f, int32_t n, int32_t k)
{
    return (krn_weight){ .format = f, .n = n, .k = k, .row_bytes = row_bytes_of(f, k), .scale_row_bytes = (k + 31) / 32 };
}

static void free_problem(problem *p)
{
    free((void *)(uintptr_t)p->w.data);
    free((void *)(uintptr_t)p->w.scale);
    free(p->x);
    free(p->exact);
    free(p->magnitude);
    gpu_free_all();
}

static double delta_of(const problem *p, int64_t i) { return 6 * 0x1p-24 * sqrt(p->w.k) * (double)p->magnitude[i]; }

/* Runs `rows` rows from row t0 on into host memory [rows, ldy] of out's type. */
static void run(const problem *p, int32_t t0, int32_t rows, krn_out out, int64_t ldy, void *y)
{
    err e = { 0 };
    const size_t bytes = (size_t)(rows * ldy) * (out == KRN_OUT_BF16 ? 2 : 4);
    void *dy = gpu_out(bytes);
    gpu_ok(krn_linear_groups(p->dx + t0 * p->ldx, p->ldx, rows, &p->dw, p->groups, out, dy, ldy, gpu_stream(), &e), &e);
    gpu_get(dy, y, bytes);
}

/* Every count of rows up to the problem's: legal sums; a row has the same bits in any company, and alone, and again; f32
 * and bf16 output are the same sum; what lies between rows stays. */
static void judge(const problem *p, double min_equal, double min_equal_f32)
{
    static const int32_t ROWS[] = { 1, 5, 8, 10, 15, 16, 20, 32, 33, 40, 128 };
    const int32_t n = p->w.n;
    const int64_t ldy = n + 3;
    float *all = take(p->rows * ldy * 4), *some = take(p->rows * ldy * 4);
    bf16 *rounded = take(p->rows * ldy * 2);
    gpu_tally f32 = { .label = p->label }, b16 = { .label = p->label };
    run(p, 0, p->rows, KRN_OUT_F32, ldy, all);
    run(p, 0, p->rows, KRN_OUT_BF16, ldy, rounded);
    for (int32_t t = 0; t < p->rows; t++)
        for (int32_t c = 0; c < ldy; c++) {
            const int64_t at = t * ldy + c, i = (int64_t)t * n + c;
            if (c >= n) {
                assert_int_equal(f32_bits(all[at]), 0xa5a5a5a5u);
                assert_int_equal(rounded[at], 0xa5a5);
                continue;
            }
            gpu_judge_f32(&f32, i, p->exact[i], delta_of(p, i), all[at]);
            gpu_judge_bf16(&b16, i, p->exact[i], delta_of(p, i), rounded[at]);
            assert_int_equal(rounded[at], bf16_from_f32(all[at]));
        }
    for (size_t r = 0; r < sizeof ROWS / sizeof *ROWS; r++) {
        if (ROWS[r] > p->rows) break;
        run(p, 0, ROWS[r], KRN_OUT_F32, ldy, some);
        gpu_same(p->label, some, all, ROWS[r] * ldy, 4);
        const int32_t last = p->rows - ROWS[r]; /* other places in a tile */
        run(p, last, ROWS[r], KRN_OUT_F32, ldy, some);
        gpu_same(p->label, some, all + last * ldy, ROWS[r] * ldy, 4);
    }
    gpu_tally_end(&f32, min_equal_f32);
    gpu_tally_end(&b16, min_equal);
    free(all);
    free(some);
    free(rounded);
}

/* ---- official shapes, one of two ranks ---- */

typedef struct shape { const char *label; krn_wformat format; int32_t n, k, rows, groups; } shape;

static void judge_shapes(const shape *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        problem p = make(s[i].label, dense(s[i].format, s[i].n, s[i].k), s[i].rows, s[i].groups, 0, false, 100 + i);
        judge(&p, 0.999, s[i].format == KRN_W_F32 ? 0.998 : 0); /* F32: one of 792 may be a neighbour */
        free_problem(&p);
    }
}

static void dense_products_are_legal_for_every_batch(void **state)
{
    (void)state;
    static const shape SHAPES[] = {
        { "wq_a", KRN_W_FP8, 1280, 5120, 33, 1 },       { "wkv", KRN_W_FP8, 512, 5120, 20, 1 },
        { "wq_b", KRN_W_FP8, 16384, 1280, 20, 1 },      { "wo_b", KRN_W_FP8, 5120, 4096, 33, 1 },
        { "wo_a", KRN_W_FP8, 4096, 4096, 20, 4 },       { "shared w1", KRN_W_FP8, 1152, 5120, 32, 1 },
        { "shared w2", KRN_W_FP8, 5120, 1152, 20, 1 },
    };
    judge_shapes(SHAPES, sizeof SHAPES / sizeof *SHAPES);
}

static void an_insert_of_128_rows_is_legal(void **state)
{
    (void)state;
    static const shape SHAPES[] = { { "wkv, an insert", KRN_W_FP8, 512, 5120, 128, 1 } };
    judge_shapes(SHAPES, 1);
}

static void bf16_and_f32_weights_are_legal(void **state)
{
    (void)state;
    static const shape SHAPES[] = {
        { "head, a part", KRN_W_BF16, 4096, 5120, 20, 1 }, { "gate", KRN_W_BF16, 128, 5120, 33, 1 },
        { "wo_a expanded", KRN_W_BF16, 4096, 4096, 20, 4 }, { "mHC", KRN_W_F32, 24, 20480, 33, 1 },
    };
    judge_shapes(SHAPES, sizeof SHAPES / sizeof *SHAPES);
}

static void fp4_dense_is_legal(void **state)
{
    (void)state;
    static const shape SHAPES[] = {
        { "fp4 w13", KRN_W_FP4, 2304, 5120, 33, 1 }, { "fp4 w2", KRN_W_FP4, 5120, 1152, 20, 1 },
    };
    judge_shapes(SHAPES, sizeof SHAPES / sizeof *SHAPES);
}

/* ---- odd shapes ---- */

static void tails_of_rows_and_columns_are_legal(void **state)
{
    (void)state;
    static const shape SHAPES[] = {
        { "fp8 1 x 32", KRN_W_FP8, 1, 32, 5, 1 },       { "fp8 17 x 96", KRN_W_FP8, 17, 96, 9, 1 },
        { "fp8 100 x 416", KRN_W_FP8, 100, 416, 40, 1 }, { "fp8 300 x 160, 3 groups", KRN_W_FP8, 300, 160, 17, 3 },
        { "fp4 1 x 32", KRN_W_FP4, 1, 32, 5, 1 },       { "fp4 33 x 96", KRN_W_FP4, 33, 96, 9, 1 },
        { "fp4 100 x 416", KRN_W_FP4, 100, 416, 40, 1 }, { "fp4 70 x 1184", KRN_W_FP4, 70, 1184, 8, 1 },
        { "bf16 1 x 8", KRN_W_BF16, 1, 8, 5, 1 },       { "bf16 45 x 72", KRN_W_BF16, 45, 72, 33, 1 },
        { "bf16 130 x 1000", KRN_W_BF16, 130, 1000, 20, 1 }, { "bf16 257 x 8", KRN_W_BF16, 257, 8, 5, 1 },
        { "bf16 300 x 1000", KRN_W_BF16, 300, 1000, 33, 1 }, { "f32 3 x 8", KRN_W_F32, 3, 8, 3, 1 },
        { "f32 25 x 4104", KRN_W_F32, 25, 4104, 21, 1 },
    };
    for (size_t i = 0; i < sizeof SHAPES / sizeof *SHAPES; i++) {
        const shape *s = &SHAPES[i];
        problem p = make(s->label, dense(s->format, s->n, s->k), s->rows, s->groups, 8, false, 200 + i);
        judge(&p, 0.99, 0);
        free_problem(&p);
    }
}

/* No alignment at all: the slow way. */
static void unaligned_operands_are_legal(void **state)
{
    (void)state;
    static const shape SHAPES[] = {
        { "slow fp8", KRN_W_FP8, 37, 96, 9, 1 },  { "slow fp4", KRN_W_FP4, 37, 160, 9, 1 },
        { "slow bf16", KRN_W_BF16, 19, 131, 9, 1 }, { "slow f32", KRN_W_F32, 24, 1001, 9, 1 },
        { "slow bf16 1 x 1", KRN_W_BF16, 1, 1, 3, 1 }, { "slow bf16, 2 groups", KRN_W_BF16, 18, 33, 3, 2 },
        { "f32, 2 groups", KRN_W_F32, 18, 64, 3, 2 },
    };
    for (size_t i = 0; i < sizeof SHAPES / sizeof *SHAPES; i++) {
        const shape *s = &SHAPES[i];
        krn_weight w = dense(s->format, s->n, s->k);
        w.row_bytes += s->format == KRN_W_F32 ? 4 : 2;
        problem p = make(s->label, w, s->rows, s->groups, 3, false, 300 + i);
        judge(&p, 0.99, 0);
        free_problem(&p);
    }
}

/* Slices share the strides and scales of the whole; FP8 ones may begin inside the 32 rows of a scale. */
static void slices_have_the_sums_of_their_part(void **state)
{
    (void)state;
    static const struct { int32_t n0, n, k0, k; } CUTS[] = {
        { 0, 100, 0, 640 }, { 48, 52, 0, 640 }, { 63, 33, 128, 512 }, { 17, 1, 32, 96 }, { 32, 64, 256, 384 }
    };
    for (krn_wformat f = KRN_W_FP8; f <= KRN_W_F32; f++)
        for (size_t i = 0; i < sizeof CUTS / sizeof *CUTS; i++) {
            problem p = make("slice", dense(f, 100, 640), 9, 1, 0, false, 400 + i);
            krn_weight whole = p.w;
            p.w = krn_weight_slice(&whole, CUTS[i].n0, CUTS[i].n, CUTS[i].k0, CUTS[i].k);
            p.dw = krn_weight_slice(&p.dw, CUTS[i].n0, CUTS[i].n, CUTS[i].k0, CUTS[i].k);
            exact_linear(p.x, p.ldx, p.rows, &p.w, 1, p.exact);
            bf16 *x_magnitude = take(p.rows * p.ldx * 2);
            for (int64_t j = 0; j < p.rows * p.ldx; j++) x_magnitude[j] = p.x[j] & 0x7fff;
            krn_weight m = weight_magnitude(&whole);
            krn_weight m_part = krn_weight_slice(&m, CUTS[i].n0, CUTS[i].n, CUTS[i].k0, CUTS[i].k);
            exact_linear(x_magnitude, p.ldx, p.rows, &m_part, 1, p.magnitude);
            judge(&p, 0.98, 0);
            free(x_magnitude);
            free((void *)(uintptr_t)m.data);
            p.w = whole;
            free_problem(&p);
        }
}

/* Scales from 2^-27 to 2^32: the second factor is needed. */
static void large_scales_are_exact(void **state)
{
    (void)state;
    for (krn_wformat f = KRN_W_FP8; f <= KRN_W_FP4; f++) {
        problem p = make("large scales", dense(f, 96, 1024), 9, 1, 0, true, 500);
        judge(&p, 0.98, 0);
        free_problem(&p);
    }
}

/* Each output is one weight, times 1: every code under every scale that keeps it in bf16, decoded exactly. */
static void every_code_under_every_scale_is_exact(void **state)
{
    (void)state;
    for (krn_wformat f = KRN_W_FP8; f <= KRN_W_FP4; f++) {
        const int32_t k = 256, n = 256; /* FP8: codes along k, a scale every 32 rows; FP4: a scale every row */
        const int32_t share = f == KRN_W_FP8 ? 32 : 1; /* rows under a scale; the scales that keep weights in bf16: */
        const int32_t lowest = f == KRN_W_FP8 ? 3 : 0, highest = f == KRN_W_FP8 ? 246 : 252;
        for (int32_t first = 0; first < 256; first += n / share) {
            krn_weight w = dense(f, n, k);
            uint8_t *data = take(n * w.row_bytes), *scale = take(n * w.scale_row_bytes);
            bf16 *x = take(k * k * 2);
            float *y = take((int64_t)k * n * 4), *wanted = take((int64_t)k * n * 4);
            for (int32_t r = 0; r < n; r++) {
                for (int32_t c = 0; c < w.row_bytes; c++)
                    data[r * w.row_bytes + c] = (uint8_t)(c * (f == KRN_W_FP4 ? 2 : 1) + r);
                int32_t s = first + r / share;
                s = s < lowest ? lowest : s > highest ? highest : s;
                memset(scale + r / share * w.scale_row_bytes, s, (size_t)k / 32);
            }
            for (int64_t i = 0; f == KRN_W_FP8 && i < n * w.row_bytes; i++)
                if ((data[i] & 0x7f) == 0x7f) data[i] ^= 1;
            w.data = data;
            w.scale = scale;
            memset(x, 0, (size_t)k * k * 2);
            for (int32_t t = 0; t < k; t++) x[t * k + t] = 0x3f80;
            krn_linear_ref(x, k, k, &w, KRN_ACC_F64, KRN_OUT_F32, wanted, n);
            problem p = { .label = "one weight", .w = w, .rows = k, .groups = 1, .ldx = k, .dw = w };
            p.dx = gpu_put(x, (size_t)k * k * 2);
            p.dw.data = gpu_put(data, (size_t)(n * w.row_bytes));
            p.dw.scale = gpu_put(scale, (size_t)(n * w.scale_row_bytes));
            run(&p, 0, k, KRN_OUT_F32, n, y);
            for (int64_t i = 0; i < (int64_t)k * n; i++)
                if (y[i] == 0 && wanted[i] == 0) y[i] = wanted[i]; /* the sum of zeros of both signs is +0 */
            gpu_same("one weight", y, wanted, (int64_t)k * n, 4);
            free(data), free(scale), free(x), free(y), free(wanted);
            gpu_free_all();
        }
    }
}

/* ---- pairs ---- */

/* Both products of a pair, and each alone: the same bits, and nothing between rows. rows: of p's x. */
static void judge_pair(const problem *p, const krn_weight *second, int32_t rows, krn_out out, krn_out second_out)
{
    err e = { 0 };
    const krn_weight *w[2] = { &p->dw, second };
    const krn_out kind[2] = { out, second_out };
    krn_linear_side side[2];
    void *alone[2];
    size_t bytes[2];
    for (int i = 0; i < 2; i++) {
        const int64_t ldy = w[i]->n + 3 + i;
        bytes[i] = (size_t)(rows * ldy) * (kind[i] == KRN_OUT_BF16 ? 2 : 4);
        side[i] = (krn_linear_side){ w[i], kind[i], gpu_out(bytes[i]), ldy };
        alone[i] = gpu_out(bytes[i]);
        gpu_ok(krn_linear(p->dx, p->ldx, rows, w[i], kind[i], alone[i], ldy, gpu_stream(), &e), &e);
    }
    gpu_ok(krn_linear_pair(p->dx, p->ldx, rows, side, gpu_stream(), &e), &e);
    for (int i = 0; i < 2; i++) {
        uint8_t *got = take((int64_t)bytes[i]), *wanted = take((int64_t)bytes[i]);
        char label[96];
        snprintf(label, sizeof label, "%s, rows %d, product %d", p->label, rows, i);
        gpu_get(side[i].y, got, bytes[i]);
        gpu_get(alone[i], wanted, bytes[i]);
        const size_t size = kind[i] == KRN_OUT_BF16 ? 2 : 4;
        gpu_same(label, got, wanted, (int64_t)(bytes[i] / size), size);
        free(got);
        free(wanted);
    }
}

typedef struct pair_shape { const char *label; krn_wformat format[2]; int32_t n[2], k[2], x_pad; bool one; } pair_shape;

static void a_pair_has_the_bits_of_its_products(void **state)
{
    (void)state;
    enum { ROWS = 33 };
    static const int32_t T[] = { 1, 4, 5, 8, 9, 10, 15, 16, 17, 20, 24, 25, 33 };
    static const pair_shape SHAPES[] = { /* one: a single launch on a card of 132 multiprocessors */
        { "wq_a, wkv", { KRN_W_FP8, KRN_W_FP8 }, { 1280, 512 }, { 5120, 5120 }, 0, true },
        { "shared w1, w3", { KRN_W_FP8, KRN_W_FP8 }, { 1152, 1152 }, { 5120, 5120 }, 0, true },
        { "wq_a, wkv expanded", { KRN_W_BF16, KRN_W_BF16 }, { 1280, 512 }, { 5120, 5120 }, 0, true },
        { "slices 1 and 16", { KRN_W_FP8, KRN_W_FP8 }, { 1, 520 }, { 1024, 1024 }, 8, true },
        { "tails", { KRN_W_FP8, KRN_W_FP8 }, { 17, 100 }, { 416, 416 }, 8, true },
        { "bf16 tails", { KRN_W_BF16, KRN_W_BF16 }, { 257, 300 }, { 1000, 1000 }, 8, true },
        { "too long for one", { KRN_W_FP8, KRN_W_FP8 }, { 16384, 512 }, { 128, 128 }, 0, false },
        { "unaligned", { KRN_W_FP8, KRN_W_FP8 }, { 40, 48 }, { 160, 160 }, 3, false },
        { "other formats", { KRN_W_FP8, KRN_W_BF16 }, { 320, 320 }, { 256, 256 }, 0, false },
        { "a gate", { KRN_W_BF16, KRN_W_BF16 }, { 128, 320 }, { 256, 256 }, 0, false },
        { "other columns", { KRN_W_FP8, KRN_W_FP8 }, { 64, 64 }, { 256, 128 }, 0, false },
        { "fp4", { KRN_W_FP4, KRN_W_FP4 }, { 64, 80 }, { 256, 256 }, 0, false },
    };
    for (size_t i = 0; i < sizeof SHAPES / sizeof *SHAPES; i++) {
        const pair_shape *s = &SHAPES[i];
        problem p = { .label = s->label, .rows = ROWS, .groups = 1, .ldx = s->k[0] + s->x_pad };
        krn_weight host[2], dev[2];
        p.x = take(ROWS * p.ldx * 2);
        gpu_fill_bf16(p.x, ROWS * p.ldx, 900 + i, 1.0f);
        for (int j = 0; j < 2; j++) {
            host[j] = dense(s->format[j], s->n[j], s->k[j]);
            weight_fill(&host[j], false, 910 + 2 * i + (uint64_t)j);
        }
        for (size_t t = 0; t < sizeof T / sizeof *T; t++) {
            p.dx = gpu_put(p.x, (size_t)(ROWS * p.ldx) * 2);
            for (int j = 0; j < 2; j++) {
                dev[j] = host[j];
                dev[j].data = gpu_put(host[j].data, (size_t)(host[j].n * host[j].row_bytes));
                if (scaled(&host[j]))
                    dev[j].scale = gpu_put(host[j].scale, (size_t)(scale_rows_of(&host[j]) * host[j].scale_row_bytes));
            }
            p.dw = dev[0];
            const int64_t before = krn_launch_count();
            judge_pair(&p, &dev[1], T[t], t % 2 ? KRN_OUT_BF16 : KRN_OUT_F32, t % 3 ? KRN_OUT_BF16 : KRN_OUT_F32);
            const int64_t launches = krn_launch_count() - before - 2; /* without those of each alone */
            if (T[t] > 24 || !s->one) assert_int_equal(launches, 2);
            else assert_in_range(launches, 1, 2);
            gpu_free_all();
        }
        for (int j = 0; j < 2; j++) {
            free((void *)(uintptr_t)host[j].data);
            free((void *)(uintptr_t)host[j].scale);
        }
        free(p.x);
    }
}

/* ---- edges ---- */

static void nan_and_infinity_are_the_contracts(void **state)
{
    (void)state;
    for (krn_wformat f = KRN_W_FP8; f <= KRN_W_F32; f++)
        for (int32_t pad = 0; pad < 2; pad++) { /* both ways */
            const int32_t k = 256, n = 40;
            problem p = make("nan", dense(f, n, k), 3, 1, 8 + pad, false, 600);
            p.x[5] = 0xffc1;
            p.x[p.ldx + 7] = 0x7f80;
            p.dx = gpu_put(p.x, (size_t)(3 * p.ldx) * 2);
            exact_linear(p.x, p.ldx, 3, &p.w, 1, p.exact);
            float y[3 * 40];
            bf16 rounded[3 * 40];
            run(&p, 0, 3, KRN_OUT_F32, n, y);
            run(&p, 0, 3, KRN_OUT_BF16, n, rounded);
            for (int32_t i = 0; i < 2 * n; i++) {
                assert_int_equal(f32_bits(y[i]), f32_bits(p.exact[i]));
                assert_int_equal(rounded[i], bf16_from_f32(p.exact[i]));
            }
            for (int32_t i = 2 * n; i < 3 * n; i++) assert_true(isfinite(y[i])); /* the row beside them */
            free_problem(&p);
        }
}

static void shapes_outside_the_contract_are_refused(void **state)
{
    (void)state;
    err e = { 0 };
    problem p = make("refused", dense(KRN_W_FP8, 64, 64), 4, 1, 0, false, 700);
    float *y = gpu_out(4 * 64 * 4);
    krn_weight w = p.dw;
    assert_int_equal(krn_linear(p.dx, 64, -1, &w, KRN_OUT_F32, y, 64, gpu_stream(), &e), ERR_ARG);
    assert_int_equal(krn_linear(p.dx, 63, 4, &w, KRN_OUT_F32, y, 64, gpu_stream(), &e), ERR_ARG);
    assert_int_equal(krn_linear(p.dx, 64, 4, &w, KRN_OUT_F32, y, 63, gpu_stream(), &e), ERR_ARG);
    assert_int_equal(krn_linear_groups(p.dx, 192, 4, &w, 3, KRN_OUT_F32, y, 64, gpu_stream(), &e), ERR_ARG);
    assert_int_equal(krn_linear_groups(p.dx, 64, 4, &w, 2, KRN_OUT_F32, y, 64, gpu_stream(), &e), ERR_ARG);
    w.k = 40;
    assert_int_equal(krn_linear(p.dx, 64, 4, &w, KRN_OUT_F32, y, 64, gpu_stream(), &e), ERR_ARG);
    assert_non_null(strstr(e.msg, "k=40"));
    const krn_linear_side side[2] = { { &p.dw, KRN_OUT_F32, y, 64 }, { &w, KRN_OUT_F32, y, 64 } };
    assert_int_equal(krn_linear_pair(p.dx, 64, 4, side, gpu_stream(), &e), ERR_ARG); /* the second alone is wrong */
    w.k = 0;
    assert_int_equal(krn_linear(p.dx, 64, 4, &w, KRN_OUT_F32, y, 64, gpu_stream(), &e), ERR_ARG);

    gpu_ok(krn_linear(p.dx, 64, 0, &p.dw, KRN_OUT_F32, y, 64, gpu_stream(), &e), &e); /* nothing to do */
    float got[4 * 64];
    gpu_get(y, got, sizeof got);
    for (int i = 0; i < 4 * 64; i++) assert_int_equal(f32_bits(got[i]), 0xa5a5a5a5u);
    free_problem(&p);
}

/* One flipped weight bit, one scale a step up, one x of the neighbour: each must be illegal somewhere. */
static void the_verdict_sees_planted_faults(void **state)
{
    (void)state;
    for (int fault = 0; fault < 3; fault++) {
        problem p = make("planted", dense(KRN_W_FP4, 64, 1024), 5, 1, 0, false, 800);
        uint8_t *data = (uint8_t *)(uintptr_t)p.w.data, *scale = (uint8_t *)(uintptr_t)p.w.scale;
        if (fault == 0) data[20 * p.w.row_bytes + 77] ^= 4;
        else if (fault == 1) scale[9 * p.w.scale_row_bytes + 3] += 1;
        else p.x[2 * p.ldx + 11] = p.x[2 * p.ldx + 12];
        p.dw.data = gpu_put(data, (size_t)(64 * p.w.row_bytes));
        p.dw.scale = gpu_put(scale, (size_t)(64 * p.w.scale_row_bytes));
        p.dx = gpu_put(p.x, (size_t)(5 * p.ldx) * 2);
        float y[5 * 64];
        gpu_tally t = { .label = "planted, illegal wanted" };
        run(&p, 0, 5, KRN_OUT_F32, 64, y);
        for (int64_t i = 0; i < 5 * 64; i++) gpu_judge_f32(&t, i, p.exact[i], delta_of(&p, i), y[i]);
        assert_true(t.illegal > 0 && t.illegal <= (fault == 2 ? 64 : 5));
        free_problem(&p);
    }
}

int main(void)
{
    if (krn_device_count() == 0) return gpu_skip();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_under_every_scale_is_exact),
        cmocka_unit_test(tails_of_rows_and_columns_are_legal),
        cmocka_unit_test(unaligned_operands_are_legal),
        cmocka_unit_test(slices_have_the_sums_of_their_part),
        cmocka_unit_test(large_scales_are_exact),
        cmocka_unit_test(a_pair_has_the_bits_of_its_products),
        cmocka_unit_test(nan_and_infinity_are_the_contracts),
        cmocka_unit_test(shapes_outside_the_contract_are_refused),
        cmocka_unit_test(the_verdict_sees_planted_faults),
        cmocka_unit_test(dense_products_are_legal_for_every_batch),
        cmocka_unit_test(bf16_and_f32_weights_are_legal),
        cmocka_unit_test(fp4_dense_is_legal),
        cmocka_unit_test(an_insert_of_128_rows_is_legal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
