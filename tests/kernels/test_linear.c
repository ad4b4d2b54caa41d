/* krn_linear_ref against two independent writings of its contract: the order of the header, literally, with decoders of
 * this file's own; and exact sums in long double. Everything is run on every instruction set and 1 to 4 threads. Inputs end
 * at a page that cannot be read: the loops are built without sanitizers. */
#include "kernels/linear.h"

#include "base/mem.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>
#ifdef _OPENMP
#include <omp.h>
#endif

enum { GUARD = 3, MAX_THREADS = 4 };
static const uint32_t GUARD_BITS = 0xa5a5a5a5;

static void threads_set(int n)
{
#ifdef _OPENMP
    omp_set_num_threads(n);
#else
    (void)n;
#endif
}

static uint64_t hash(uint64_t seed, uint64_t i)
{
    uint64_t z = seed * UINT64_C(0x9e3779b97f4a7c15) + i + 1;
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* ---- problems ---- */

/* Memory that ends where an unreadable page begins, and starts after another (as near as its size allows). */
typedef struct fenced {
    void *map, *at;
    size_t map_bytes;
} fenced;
static fenced fenced_make(size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), inner = (bytes + page - 1) / page * page;
    fenced f = { .map_bytes = inner + 2 * page };
    f.map = mmap(NULL, f.map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(f.map != MAP_FAILED);
    assert_int_equal(mprotect((uint8_t *)f.map + page, inner, PROT_READ | PROT_WRITE), 0);
    f.at = (uint8_t *)f.map + page + inner - bytes;
    return f;
}
static void fenced_free(fenced *f) { munmap(f->map, f->map_bytes); }

typedef enum x_kind { X_NORMAL, X_TAPS, X_TINY, X_WILD, X_SPECIAL } x_kind;
typedef enum scale_kind { SCALE_NEAR_ONE, SCALE_RAMP, SCALE_EDGES, SCALE_ANY } scale_kind;

typedef struct problem {
    krn_weight w;
    fenced data_memory, scale_memory, x_memory; /* exactly as long as the views may read */
    uint8_t *data, *scale;
    bf16 *x;
    int32_t T;
    int64_t ldx;
} problem;

static int64_t natural_row_bytes(krn_wformat f, int64_t k)
{
    return f == KRN_W_FP4 ? k / 2 : f == KRN_W_FP8 ? k : f == KRN_W_BF16 ? 2 * k : 4 * k;
}

static bf16 make_x(x_kind kind, uint64_t h)
{
    static const bf16 SPECIAL[] = { 0x7f80, 0xff80, 0x7fc0, 0x8000, 0x0001, 0x7f7f, 0xff7f, 0xffc1 };
    float unit = (float)(int32_t)h * 0x1p-31f;
    switch (kind) {
    case X_NORMAL: return bf16_from_f32(unit * 4.0f);
    case X_TAPS: return bf16_from_f32(h >> 40 & 7 ? unit * 100.0f : unit * 458752.0f);
    case X_TINY: return (bf16)(h & 0x81ff);                                          /* subnormals and next to them */
    case X_WILD: return (bf16)(h % 0x7f80 | (h >> 32 & 0x8000));                     /* any finite bits */
    default: return h >> 32 & 31 ? bf16_from_f32(unit) : SPECIAL[h & 7];
    }
}

static uint8_t make_scale(scale_kind kind, uint64_t i, uint64_t h)
{
    static const uint8_t EDGES[] = { 0, 1, 127, 254 };
    switch (kind) {
    case SCALE_NEAR_ONE: return (uint8_t)(117 + h % 16);
    case SCALE_RAMP: return (uint8_t)(120 + i % 60);
    case SCALE_EDGES: return EDGES[h % 4];
    default: return (uint8_t)h;
    }
}

static problem make(krn_wformat f, int32_t N, int32_t K, int32_t T, x_kind xk, scale_kind sk, uint64_t seed)
{
    const bool scaled = f == KRN_W_FP8 || f == KRN_W_FP4;
    const int64_t row = natural_row_bytes(f, K) + 8, scale_row = K / 32 + 1;
    const int64_t scale_rows = f == KRN_W_FP8 ? (N + 31) / 32 : N;
    problem p = { .T = T, .ldx = K + 5 };
    size_t data_bytes = (size_t)(row * (N - 1) + natural_row_bytes(f, K));
    size_t scale_bytes = scaled ? (size_t)(scale_row * (scale_rows - 1) + K / 32) : 1;
    size_t n_x = T ? (size_t)(p.ldx * (T - 1) + K) : 1;
    p.data_memory = fenced_make(data_bytes);
    p.scale_memory = fenced_make(scale_bytes);
    p.x_memory = fenced_make(n_x * sizeof(bf16));
    p.data = p.data_memory.at;
    p.scale = p.scale_memory.at;
    p.x = p.x_memory.at;
    for (size_t i = 0; i < data_bytes; i++) p.data[i] = (uint8_t)hash(seed, i);
    for (int32_t n = 0; n < N; n++) /* plain formats: finite values; e4m3: no NaN, one code in four subnormal or zero */
        for (int32_t k = 0; k < K; k++) {
            uint64_t h = hash(seed + 7, (uint64_t)n * (uint64_t)K + (uint64_t)k);
            uint8_t *at = p.data + n * row;
            if (f == KRN_W_BF16) put_u16(at + 2 * k, make_x(xk == X_SPECIAL ? X_NORMAL : xk, h));
            if (f == KRN_W_F32) put_u32(at + 4 * k, f32_bits((float)(int32_t)h * 0x1p-33f));
            if (f == KRN_W_FP8 && (at[k] & 0x7f) == 0x7f) at[k] ^= 1;
            if (f == KRN_W_FP8 && h % 4 == 0) at[k] &= 0x87;
        }
    for (size_t i = 0; i < scale_bytes; i++) p.scale[i] = make_scale(sk, i, hash(seed + 1, i));
    for (size_t i = 0; i < n_x; i++) p.x[i] = make_x(xk, hash(seed + 2, i));
    p.w = (krn_weight){ f, N, K, p.data, row, scaled ? p.scale : NULL, scaled ? scale_row : 0, 0 };
    return p;
}

static void problem_free(problem *p)
{
    fenced_free(&p->data_memory);
    fenced_free(&p->scale_memory);
    fenced_free(&p->x_memory);
}

/* ---- the contract, again ---- */

static float scale_value(uint8_t b) { return b == 255 ? NAN : ldexpf(1.0f, b - 127); }

static float code_value(const krn_weight *w, int32_t n, int32_t k)
{
    static const float E2M1[] = { 0, 0.5f, 1, 1.5f, 2, 3, 4, 6 };
    const uint8_t *row = (const uint8_t *)w->data + n * w->row_bytes;
    switch (w->format) {
    case KRN_W_FP8: {
        int c = row[k], e = c >> 3 & 15, m = c & 7;
        float v = e ? ldexpf((float)(8 + m), e - 10) : ldexpf((float)m, -9);
        if ((c & 0x7f) == 0x7f) v = NAN;
        return c & 0x80 ? -v : v;
    }
    case KRN_W_FP4: {
        int c = k % 2 ? row[k / 2] >> 4 : row[k / 2] & 15;
        return c & 8 ? -E2M1[c & 7] : E2M1[c & 7];
    }
    case KRN_W_BF16: return f32_from_bf16(get_u16(row + 2 * k));
    default: return f32_from_bits(get_u32(row + 4 * k));
    }
}
static float weight_scale(const krn_weight *w, int32_t n, int32_t k)
{
    if (w->format == KRN_W_FP8) return scale_value(w->scale[(w->scale_row0 + n) / 32 * w->scale_row_bytes + k / 32]);
    if (w->format == KRN_W_FP4) return scale_value(w->scale[n * w->scale_row_bytes + k / 32]);
    return 1.0f;
}

static float by_blocks(const bf16 *x, const krn_weight *w, int32_t n)
{
    float acc = 0;
    for (int32_t k = 0; k < w->k; k += 32) {
        float lane[16];
        for (int i = 0; i < 16; i++) {
            float first = f32_from_bf16(x[k + i]) * code_value(w, n, k + i);
            float second = f32_from_bf16(x[k + i + 16]) * code_value(w, n, k + i + 16);
            lane[i] = first + second;
        }
        for (int half = 8; half; half /= 2)
            for (int i = 0; i < half; i++) lane[i] = lane[i] + lane[i + half];
        float scaled = lane[0] * weight_scale(w, n, k);
        acc = acc + scaled;
    }
    return acc;
}
static float by_lanes_f32(const bf16 *x, const krn_weight *w, int32_t n)
{
    float lane[16] = { 0 };
    for (int32_t k = 0; k < w->k; k++) {
        float product = f32_from_bf16(x[k]) * code_value(w, n, k);
        lane[k % 16] = lane[k % 16] + product;
    }
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; i++) lane[i] = lane[i] + lane[i + half];
    return lane[0];
}
static float by_lanes_f64(const bf16 *x, const krn_weight *w, int32_t n)
{
    double lane[16] = { 0 };
    for (int32_t k = 0; k < w->k; k++)
        lane[k % 16] += (double)f32_from_bf16(x[k]) * ((double)code_value(w, n, k) * (double)weight_scale(w, n, k));
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; i++) lane[i] += lane[i + half];
    return (float)lane[0];
}
static float expected(const bf16 *x, const krn_weight *w, int32_t n, krn_acc acc)
{
    float v = acc == KRN_ACC_F64 || w->format == KRN_W_F32           ? by_lanes_f64(x, w, n)
              : w->format == KRN_W_FP8 || w->format == KRN_W_FP4 ? by_blocks(x, w, n)
                                                                     : by_lanes_f32(x, w, n);
    return isnan(v) ? f32_from_bits(0x7fc00000) : v;
}

/* ---- checking ---- */

/* An output [T, ldy] with guards in front of, between and after the rows. */
typedef struct output {
    uint8_t *bytes;
    int32_t T, N;
    krn_out out;
} output;
static int64_t elem_bytes(krn_out out) { return out == KRN_OUT_BF16 ? 2 : 4; }
static int64_t output_ldy(const output *o) { return o->N + GUARD; }
static uint8_t *output_y(const output *o) { return o->bytes + GUARD * elem_bytes(o->out); }
static size_t output_elems(const output *o) { return (size_t)(GUARD + output_ldy(o) * o->T); }
static output output_make(int32_t T, int32_t N, krn_out out)
{
    output o = { .T = T, .N = N, .out = out };
    size_t bytes = output_elems(&o) * (size_t)elem_bytes(out);
    o.bytes = mem_alloc(bytes, 1);
    assert_non_null(o.bytes);
    memset(o.bytes, (int)(GUARD_BITS & 0xff), bytes);
    return o;
}
static uint32_t output_bits(const output *o, size_t i)
{
    const uint8_t *p = o->bytes + i * (size_t)elem_bytes(o->out);
    return o->out == KRN_OUT_BF16 ? get_u16(p) : get_u32(p);
}

static double output_value(const output *o, uint32_t bits)
{
    return (double)f32_from_bits(o->out == KRN_OUT_BF16 ? bits << 16 : bits);
}

/* Elements, guards included, that are not as wanted; the first is printed. */
static int64_t output_differs(const output *got, const float *want, const char *label)
{
    int64_t count = 0;
    for (size_t i = 0; i < output_elems(got); i++) {
        int64_t at = (int64_t)i - GUARD, t = at / output_ldy(got), n = at % output_ldy(got);
        bool guard = at < 0 || n >= got->N;
        uint32_t bits = output_bits(got, i), wanted;
        if (guard) wanted = got->out == KRN_OUT_BF16 ? GUARD_BITS & 0xffff : GUARD_BITS;
        else if (got->out == KRN_OUT_BF16) wanted = bf16_from_f32(want[t * got->N + n]);
        else wanted = f32_bits(want[t * got->N + n]);
        if (bits != wanted && count++ == 0)
            print_message("%s: t %" PRId64 " n %" PRId64 "%s: got %08x (%g) want %08x (%g)\n", label, t, n,
                          guard ? " (guard)" : "", bits, output_value(got, bits), wanted, output_value(got, wanted));
    }
    return count;
}

static float *expect_all(const problem *p, krn_acc acc)
{
    float *want = mem_alloc((size_t)p->T * (size_t)p->w.n + 1, sizeof(float));
    assert_non_null(want);
    for (int32_t t = 0; t < p->T; t++)
        for (int32_t n = 0; n < p->w.n; n++) want[t * p->w.n + n] = expected(p->x + t * p->ldx, &p->w, n, acc);
    return want;
}

/* Bits of the contract, on every instruction set, thread count, mode and output. */
static void check(const problem *p)
{
    for (krn_acc acc = KRN_ACC_BLOCKED; acc <= KRN_ACC_F64; acc++) {
        float *want = expect_all(p, acc);
        for (krn_isa isa = KRN_ISA_SCALAR; isa <= krn_isa_best(); isa++)
            for (int threads = 1; threads <= MAX_THREADS; threads++)
                for (krn_out out = KRN_OUT_BF16; out <= KRN_OUT_F32; out++) {
                    output o = output_make(p->T, p->w.n, out);
                    char label[160];
                    snprintf(label, sizeof label, "format %d [%d x %d] T %d acc %d isa %s threads %d", (int)p->w.format,
                             p->w.n, p->w.k, p->T, (int)acc, krn_isa_name(isa), threads);
                    krn_isa_set(isa);
                    threads_set(threads);
                    krn_linear_ref(p->x, p->ldx, p->T, &p->w, acc, out, output_y(&o), output_ldy(&o));
                    assert_int_equal(output_differs(&o, want, label), 0);
                    free(o.bytes);
                }
        free(want);
    }
    krn_isa_set(krn_isa_best());
}

typedef struct shape { int32_t N, K, T; } shape;
static const shape SCALED_SHAPES[] = { { 1, 32, 1 },    { 16, 32, 1 },  { 17, 64, 2 },  { 33, 96, 5 },  { 40, 160, 6 },
                                       { 64, 1152, 7 }, { 100, 320, 1 }, { 31, 352, 11 }, { 15, 4128, 3 } };
static const shape PLAIN_SHAPES[] = { { 1, 1, 1 },  { 3, 15, 2 },   { 5, 16, 1 },    { 16, 17, 5 },
                                      { 24, 100, 6 }, { 35, 1283, 7 }, { 129, 256, 1 }, { 18, 2560, 10 } };

static void check_shapes(x_kind xk, scale_kind sk, uint64_t seed)
{
    for (krn_wformat f = KRN_W_FP8; f <= KRN_W_F32; f++) {
        const bool scaled = f == KRN_W_FP8 || f == KRN_W_FP4;
        size_t n = scaled ? COUNT_OF(SCALED_SHAPES) : COUNT_OF(PLAIN_SHAPES);
        for (size_t i = 0; i < n; i++) {
            shape s = scaled ? SCALED_SHAPES[i] : PLAIN_SHAPES[i];
            problem p = make(f, s.N, s.K, s.T, xk, sk, seed + i);
            check(&p);
            problem_free(&p);
        }
    }
}

/* ---- tests ---- */

static void every_format_has_the_bits_of_the_written_order(void **state)
{
    (void)state;
    check_shapes(X_NORMAL, SCALE_NEAR_ONE, 100);
}
static void large_taps_and_ramped_scales_keep_the_bits(void **state)
{
    (void)state;
    check_shapes(X_TAPS, SCALE_RAMP, 200);
}
static void edge_scales_keep_the_bits(void **state) /* 2^-127 is an f32 subnormal; 2^127 overflows most sums */
{
    (void)state;
    check_shapes(X_NORMAL, SCALE_EDGES, 300);
    check_shapes(X_TINY, SCALE_EDGES, 310);
}
static void any_bits_in_x_and_any_scale_keep_the_bits(void **state)
{
    (void)state;
    check_shapes(X_WILD, SCALE_ANY, 400);
}
static void infinities_and_nans_keep_the_bits(void **state)
{
    (void)state;
    check_shapes(X_SPECIAL, SCALE_NEAR_ONE, 500);
}

static void every_code_decodes_to_its_value(void **state)
{
    (void)state;
    for (krn_wformat f = KRN_W_FP8; f <= KRN_W_FP4; f++)
        for (int scale = 0; scale < 256; scale++) {
            problem p = make(f, 3, 512, 1, X_NORMAL, SCALE_NEAR_ONE, 600);
            for (int n = 0; n < 3; n++)
                for (int i = 0; i < 256; i++) p.data[n * p.w.row_bytes + i] = (uint8_t)(i + n);
            memset(p.scale, scale, f == KRN_W_FP8 ? 16 : 17 * 2 + 16);
            for (krn_isa isa = KRN_ISA_SCALAR; isa <= krn_isa_best(); isa++) {
                krn_isa_set(isa);
                float out[2 * 512 + 1] = { [1024] = 7.0f };
                krn_weight_decode_f32(&p.w, 1, 2, out);
                for (int i = 0; i < 1024; i++) {
                    float want = code_value(&p.w, 1 + i / 512, i % 512) * scale_value((uint8_t)scale);
                    assert_true(isnan(want) ? isnan(out[i]) : f32_bits(out[i]) == f32_bits(want));
                }
                assert_true(out[1024] == 7.0f);
            }
            problem_free(&p);
        }
}

static void decoding_to_bf16_counts_what_it_cannot_hold(void **state)
{
    (void)state;
    for (krn_wformat f = KRN_W_FP8; f <= KRN_W_F32; f++)
        for (krn_isa isa = KRN_ISA_SCALAR; isa <= krn_isa_best(); isa++) {
            problem p = make(f, 70, 2080, 1, X_NORMAL, SCALE_ANY, 700);
            bf16 *out = mem_alloc(40 * 2080, sizeof(bf16));
            assert_non_null(out);
            krn_isa_set(isa);
            int64_t inexact = krn_weight_decode_bf16(&p.w, 30, 40, out), want = 0;
            for (int32_t i = 0; i < 40 * 2080; i++) {
                int32_t n = 30 + i / 2080, k = i % 2080;
                double exact = (double)code_value(&p.w, n, k) * (double)weight_scale(&p.w, n, k);
                if (isnan(exact)) {
                    assert_int_equal(out[i], 0x7fc0);
                    continue;
                }
                assert_int_equal(out[i], bf16_from_f32((float)exact));
                if ((double)f32_from_bf16(out[i]) != exact) want++;
            }
            assert_int_equal(inexact, want);
            if (f == KRN_W_BF16) assert_int_equal(inexact, 0);
            else assert_true(inexact > 0);
            free(out);
            problem_free(&p);
        }
    problem p = make(KRN_W_FP8, 64, 256, 1, X_NORMAL, SCALE_RAMP, 710); /* the scales of real weights */
    bf16 out[64 * 256];
    assert_int_equal(krn_weight_decode_bf16(&p.w, 0, 64, out), 0);
    problem_free(&p);
}

static void nan_codes_and_nan_scales_give_nan(void **state)
{
    (void)state;
    for (krn_wformat f = KRN_W_FP8; f <= KRN_W_FP4; f++) {
        problem p = make(f, 33, 256, 6, X_NORMAL, SCALE_NEAR_ONE, 800);
        if (f == KRN_W_FP8) {
            p.data[3 * p.w.row_bytes + 130] = 0x7f;
            p.data[20 * p.w.row_bytes] = 0xff;
        }
        p.scale[f == KRN_W_FP8 ? p.w.scale_row_bytes + 2 : 5 * p.w.scale_row_bytes + 7] = 255;
        assert_true(isnan(expected(p.x, &p.w, f == KRN_W_FP8 ? 32 : 5, KRN_ACC_BLOCKED)));
        check(&p);
        problem_free(&p);
    }
}

/* Against the exact sum: catches an error that both writings of the order could share. */
static void sums_stay_within_the_bound_of_any_order(void **state)
{
    (void)state;
    for (krn_wformat f = KRN_W_FP8; f <= KRN_W_F32; f++) {
        problem p = make(f, 50, 2304, 5, X_NORMAL, SCALE_NEAR_ONE, 900);
        for (krn_acc acc = KRN_ACC_BLOCKED; acc <= KRN_ACC_F64; acc++) {
            float y[5 * 50];
            krn_linear_ref(p.x, p.ldx, p.T, &p.w, acc, KRN_OUT_F32, y, 50);
            for (int i = 0; i < 5 * 50; i++) {
                long double sum = 0, magnitude = 0;
                for (int32_t k = 0; k < p.w.k; k++) {
                    float x = f32_from_bf16(p.x[i / 50 * p.ldx + k]);
                    long double term = (long double)x * code_value(&p.w, i % 50, k) * weight_scale(&p.w, i % 50, k);
                    sum += term;
                    magnitude += fabsl(term);
                }
                /* f64: one rounding, and next to nothing from the sum. blocked: n roundings, as a random walk. */
                long double tol = acc == KRN_ACC_F64 || f == KRN_W_F32 ? fabsl(sum) * 0x1p-24L + magnitude * 0x1p-45L
                                                                       : 6 * 0x1p-24L * sqrtl(2304) * magnitude;
                assert_true(fabsl((long double)y[i] - sum) <= tol);
            }
        }
        problem_free(&p);
    }
}

/* But for F32 weights, which have one sum. */
static void the_two_modes_are_not_the_same_sum(void **state)
{
    (void)state;
    for (krn_wformat f = KRN_W_FP8; f <= KRN_W_F32; f++) {
        problem p = make(f, 64, 2304, 1, X_TAPS, SCALE_NEAR_ONE, 1000);
        float y[2][64];
        krn_linear_ref(p.x, p.ldx, 1, &p.w, KRN_ACC_BLOCKED, KRN_OUT_F32, y[0], 64);
        krn_linear_ref(p.x, p.ldx, 1, &p.w, KRN_ACC_F64, KRN_OUT_F32, y[1], 64);
        if (f == KRN_W_F32) assert_memory_equal(y[0], y[1], sizeof y[0]);
        else assert_memory_not_equal(y[0], y[1], sizeof y[0]);
        problem_free(&p);
    }
}

static void bf16_output_rounds_ties_to_even(void **state)
{
    (void)state;
    const bf16 x[2] = { 0x3f80, 0x3f80 }; /* 1, 1 */
    const struct { float a, b; bf16 want; } CASES[] = {
        { 1.0f, 0x1p-8f, 0x3f80 },      { 1.0f + 0x1p-7f, 0x1p-8f, 0x3f82 }, { 1.0f, 0x1.02p-8f, 0x3f81 },
        { -1.0f, -0x1p-8f, 0xbf80 }, { -1.0f - 0x1p-7f, -0x1p-8f, 0xbf82 }, { 0.0f, 0.0f, 0x0000 },
    };
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        bf16 row[2] = { bf16_from_f32(CASES[i].a), bf16_from_f32(CASES[i].b) };
        krn_weight w = { KRN_W_BF16, 1, 2, row, 4, NULL, 0 };
        for (krn_acc acc = KRN_ACC_BLOCKED; acc <= KRN_ACC_F64; acc++) {
            bf16 y = 0;
            krn_linear_ref(x, 2, 1, &w, acc, KRN_OUT_BF16, &y, 1);
            assert_int_equal(y, CASES[i].want);
        }
    }
}

static void a_row_does_not_depend_on_its_company(void **state)
{
    (void)state;
    const int32_t COMPANY[] = { 2, 5, 6, 20, 128, 129, 300 };
    for (krn_wformat f = KRN_W_FP8; f <= KRN_W_F32; f++)
        for (size_t i = 0; i < COUNT_OF(COMPANY); i++) {
            int32_t T = COMPANY[i];
            problem p = make(f, 20, 96, T, X_NORMAL, SCALE_NEAR_ONE, 1100);
            float *y = mem_alloc((size_t)T * 20, sizeof(float)), alone[20];
            assert_non_null(y);
            for (krn_acc acc = KRN_ACC_BLOCKED; acc <= KRN_ACC_F64; acc++) {
                krn_linear_ref(p.x, p.ldx, T, &p.w, acc, KRN_OUT_F32, y, 20);
                for (int32_t t = 0; t < T; t++) {
                    krn_linear_ref(p.x + t * p.ldx, 1, 1, &p.w, acc, KRN_OUT_F32, alone, 20);
                    assert_memory_equal(alone, y + t * 20, sizeof alone);
                }
            }
            free(y);
            problem_free(&p);
        }
}

static void no_rows_write_nothing(void **state)
{
    (void)state;
    problem p = make(KRN_W_FP8, 20, 64, 0, X_NORMAL, SCALE_NEAR_ONE, 1200);
    check(&p);
    krn_linear_grouped_ref(NULL, 0, KRN_ACC_BLOCKED, KRN_OUT_F32);
    problem_free(&p);
}

static void a_slice_computes_what_its_part_of_the_whole_does(void **state)
{
    (void)state;
    const struct { int32_t n0, n, k0, k; } CUTS[] = {
        { 0, 100, 0, 320 }, { 32, 64, 0, 320 }, { 64, 36, 96, 32 }, { 32, 7, 160, 160 },
        { 16, 48, 0, 320 }, { 63, 33, 32, 64 } /* FP8: from the middle of a row of scales */
    };
    for (krn_wformat f = KRN_W_FP8; f <= KRN_W_F32; f++)
        for (size_t i = 0; i < COUNT_OF(CUTS); i++) {
            problem p = make(f, 100, 320, 6, X_NORMAL, SCALE_NEAR_ONE, 1300);
            problem part = p;
            part.w = krn_weight_slice(&p.w, CUTS[i].n0, CUTS[i].n, CUTS[i].k0, CUTS[i].k);
            for (int32_t n = 0; n < part.w.n; n++)
                for (int32_t k = 0; k < part.w.k; k++) {
                    assert_true(code_value(&part.w, n, k) == code_value(&p.w, CUTS[i].n0 + n, CUTS[i].k0 + k));
                    assert_true(weight_scale(&part.w, n, k) == weight_scale(&p.w, CUTS[i].n0 + n, CUTS[i].k0 + k));
                }
            check(&part);
            problem_free(&p);
        }
}

static void grouped_products_equal_single_ones(void **state)
{
    (void)state;
    enum { N = 45, K = 160, JOBS = 150 };
    for (krn_wformat f = KRN_W_FP8; f <= KRN_W_F32; f++) {
        problem p[3];
        for (int i = 0; i < 3; i++) p[i] = make(f, N, K, JOBS, X_NORMAL, SCALE_RAMP, 1400 + (uint64_t)i);
        for (krn_acc acc = KRN_ACC_BLOCKED; acc <= KRN_ACC_F64; acc++)
            for (int threads = 1; threads <= MAX_THREADS; threads++) {
                /* Runs of 1, 5 and 139 rows (more than a tile), then weights that come back out of order. */
                output got = output_make(JOBS, N, KRN_OUT_F32);
                krn_linear_job jobs[JOBS];
                float want[JOBS * N];
                for (int j = 0; j < JOBS; j++) {
                    int which = j == 0 ? 2 : j < 6 ? 0 : j < 145 ? 1 : j % 3;
                    const bf16 *x = p[which].x + j * p[which].ldx;
                    jobs[j] = (krn_linear_job){ &p[which].w, x, output_y(&got) + j * output_ldy(&got) * 4 };
                    krn_linear_ref(x, K, 1, &p[which].w, acc, KRN_OUT_F32, want + j * N, N);
                }
                threads_set(threads);
                krn_linear_grouped_ref(jobs, JOBS, acc, KRN_OUT_F32);
                assert_int_equal(output_differs(&got, want, "grouped"), 0);
                free(got.bytes);
            }
        for (int i = 0; i < 3; i++) problem_free(&p[i]);
    }
}

static void a_large_product_is_the_same_on_any_number_of_threads(void **state)
{
    (void)state;
    for (krn_wformat f = KRN_W_FP8; f <= KRN_W_F32; f++) {
        problem p = make(f, 527, 512, 9, X_TAPS, SCALE_RAMP, 1500);
        check(&p);
        problem_free(&p);
    }
}

static void the_checker_sees_one_wrong_weight_bit_and_one_touched_guard(void **state)
{
    (void)state;
    problem p = make(KRN_W_FP4, 20, 64, 3, X_NORMAL, SCALE_NEAR_ONE, 1600);
    float *want = expect_all(&p, KRN_ACC_BLOCKED);
    output o = output_make(3, 20, KRN_OUT_F32);
    p.data[4 * p.w.row_bytes + 9] ^= 1;
    krn_linear_ref(p.x, p.ldx, 3, &p.w, KRN_ACC_BLOCKED, KRN_OUT_F32, output_y(&o), output_ldy(&o));
    assert_int_equal(output_differs(&o, want, "one weight bit, wanted"), 3); /* column 4 of each row */
    p.data[4 * p.w.row_bytes + 9] ^= 1;
    krn_linear_ref(p.x, p.ldx, 3, &p.w, KRN_ACC_BLOCKED, KRN_OUT_F32, output_y(&o), output_ldy(&o));
    assert_int_equal(output_differs(&o, want, "restored"), 0);
    output_y(&o)[20 * 4] ^= 1;
    assert_int_equal(output_differs(&o, want, "one guard bit, wanted"), 1);
    free(o.bytes);
    free(want);
    problem_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_format_has_the_bits_of_the_written_order),
        cmocka_unit_test(large_taps_and_ramped_scales_keep_the_bits),
        cmocka_unit_test(edge_scales_keep_the_bits),
        cmocka_unit_test(any_bits_in_x_and_any_scale_keep_the_bits),
        cmocka_unit_test(infinities_and_nans_keep_the_bits),
        cmocka_unit_test(every_code_decodes_to_its_value),
        cmocka_unit_test(decoding_to_bf16_counts_what_it_cannot_hold),
        cmocka_unit_test(nan_codes_and_nan_scales_give_nan),
        cmocka_unit_test(sums_stay_within_the_bound_of_any_order),
        cmocka_unit_test(the_two_modes_are_not_the_same_sum),
        cmocka_unit_test(bf16_output_rounds_ties_to_even),
        cmocka_unit_test(a_row_does_not_depend_on_its_company),
        cmocka_unit_test(no_rows_write_nothing),
        cmocka_unit_test(a_slice_computes_what_its_part_of_the_whole_does),
        cmocka_unit_test(grouped_products_equal_single_ones),
        cmocka_unit_test(a_large_product_is_the_same_on_any_number_of_threads),
        cmocka_unit_test(the_checker_sees_one_wrong_weight_bit_and_one_touched_guard),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
