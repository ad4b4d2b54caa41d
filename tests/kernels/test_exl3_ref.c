/* The EXL3 twins against the contract, written again in exl3_case.h, and against the decoded weight; on every instruction
 * set and 1 to 3 threads. */
#include "exl3_case.h"

#ifdef _OPENMP
#include <omp.h>
#endif

static const struct { int32_t n, k, bits; fmt_exl3_codebook c; bool by_columns; } SHAPES[] = {
    { 128, 128, 1, FMT_EXL3_MUL1, false }, { 256, 128, 2, FMT_EXL3_MUL1, true },   { 128, 384, 3, FMT_EXL3_3INST, false },
    { 384, 256, 4, FMT_EXL3_MCG, true },   { 256, 256, 5, FMT_EXL3_MUL1, false },  { 128, 256, 6, FMT_EXL3_MUL1, true },
    { 128, 128, 7, FMT_EXL3_MCG, false },  { 256, 128, 8, FMT_EXL3_3INST, false },
};
enum { T_MAX = 3, N_MAX = 384, K_MAX = 384 };

static void threads_set(int n)
{
#ifdef _OPENMP
    omp_set_num_threads(n);
#else
    (void)n;
#endif
}

static uint16_t x_of(uint64_t seed, int64_t i, float scale) { return bf16_from_f32(input_f32(seed, i) * scale); }

/* ---- parts ---- */

static void every_width_and_codebook_decodes_as_the_format_says(void **state)
{
    (void)state;
    for (int c = 0; c < FMT_EXL3_CODEBOOKS; c++)
        for (int32_t bits = 1; bits <= FMT_EXL3_BITS_MAX; bits++)
            for (int by_columns = 0; by_columns < 2; by_columns++) {
                exl3_case e = case_make(256, 256, bits, (fmt_exl3_codebook)c, by_columns, 100 + (uint64_t)bits);
                float *want = case_decode(&e.w), *got = mem_alloc(256 * 256, sizeof *got);
                assert_non_null(got);
                for (krn_isa isa = KRN_ISA_SCALAR; isa < KRN_ISA_COUNT; isa++) {
                    krn_isa_set(isa);
                    krn_exl3_decode_ref(&e.w, got);
                    assert_f32_same(got, want, 256 * 256);
                }
                free(want);
                free(got);
                case_free(&e);
            }
}

static uint32_t odd_bits(uint32_t v)
{
    uint32_t n = 0;
    for (; v; v >>= 1) n ^= v & 1;
    return n;
}

/* exllamav3's own arithmetic rounds x * suh to fp16, ours does not: what follows that rounding is the same. */
static void the_known_input_vector_is_transformed_to_its_known_bits(void **state)
{
    (void)state;
    for (krn_isa isa = KRN_ISA_SCALAR; isa < KRN_ISA_COUNT; isa++) {
        krn_isa_set(isa);
        const krn_exl3_loops *l = krn_exl3_loops_get();
        float z[BLOCK];
        fp16 a[BLOCK];
        for (int i = 0; i < BLOCK; i++) {
            const fp16 x = fp16_from_f32((float)(37 * i % 256 - 128) / 48.0f);
            const float size = 0.01f + 0.001f * (float)(i % 7);
            const fp16 suh = fp16_from_f32(odd_bits((uint32_t)i) ? -size : size);
            z[i] = f32_from_fp16(fp16_from_f32(f32_from_fp16(x) * f32_from_fp16(suh)));
        }
        l->butterfly_f32(z);
        for (int i = 0; i < BLOCK; i++) z[i] *= KRN_EXL3_NORM;
        l->round(z, 1.0f);
        for (int i = 0; i < BLOCK; i++) a[i] = fp16_from_f32(z[i]);
        assert_int_equal(a[0], 0x1964);
        assert_int_equal(a[127], 0x2275);
        assert_true(hash_bytes(a, sizeof a) == 0x8124e7848d351609u);
    }
    assert_int_equal(f32_bits(KRN_EXL3_NORM), 0x3DB504F3);
}

static void the_known_sums_are_transformed_to_their_known_bits(void **state)
{
    (void)state;
    for (krn_isa isa = KRN_ISA_SCALAR; isa < KRN_ISA_COUNT; isa++) {
        krn_isa_set(isa);
        float z[BLOCK], y[BLOCK];
        for (int i = 0; i < BLOCK; i++) z[i] = ((float)((2654435761u * (uint32_t)i) >> 8) - 8388608.0f) / 3000000.0f;
        krn_exl3_loops_get()->butterfly_f32(z);
        for (int i = 0; i < BLOCK; i++) {
            const float size = 0.75f + 0.01f * (float)(i % 50);
            y[i] = z[i] * KRN_EXL3_NORM * f32_from_fp16(fp16_from_f32(i & 1 ? -size : size));
        }
        assert_int_equal(f32_bits(y[0]), 0xbe6b46b0);
        assert_int_equal(f32_bits(y[127]), 0x40010361);
        assert_true(hash_bytes(y, sizeof y) == 0x06413e616795e9deu);
    }
}

/* ---- products ---- */

/* All instruction sets, thread counts and outputs of the blocked mode against the contract. */
static void check(const krn_weight *w, float x_scale, uint64_t seed)
{
    static bf16 x[T_MAX * (K_MAX + 3)];
    float *wq = case_decode(w);
    float want[T_MAX * N_MAX], got[T_MAX * (N_MAX + 2)];
    bf16 rounded[T_MAX * (N_MAX + 2)];
    const int64_t ldx = w->k + 3, ldy = w->n + 2;
    for (int64_t i = 0; i < T_MAX * ldx; i++) x[i] = x_of(seed, i, x_scale);
    for (int32_t t = 0; t < T_MAX; t++) case_product(w, wq, x + t * ldx, want + t * w->n);
    for (krn_isa isa = KRN_ISA_SCALAR; isa < KRN_ISA_COUNT; isa++)
        for (int threads = 1; threads <= 3; threads += 2) {
            krn_isa_set(isa);
            threads_set(threads);
            memset(got, 0xa5, sizeof got);
            memset(rounded, 0xa5, sizeof rounded);
            krn_linear_ref(x, ldx, T_MAX, w, KRN_ACC_BLOCKED, KRN_OUT_F32, got, ldy);
            krn_linear_ref(x, ldx, T_MAX, w, KRN_ACC_BLOCKED, KRN_OUT_BF16, rounded, ldy);
            for (int32_t t = 0; t < T_MAX; t++) {
                assert_f32_same(got + t * ldy, want + t * w->n, w->n);
                for (int32_t n = 0; n < w->n; n++)
                    assert_int_equal(rounded[t * ldy + n], bf16_from_f32(want[t * w->n + n]));
                for (int64_t n = t * ldy + w->n; n < (t + 1) * ldy; n++) {
                    assert_int_equal(f32_bits(got[n]), 0xa5a5a5a5);
                    assert_int_equal(rounded[n], 0xa5a5);
                }
            }
        }
    krn_isa_set(krn_isa_best());
    threads_set(2);
    free(wq);
}

static void every_product_has_the_bits_of_the_written_order(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(SHAPES); i++) {
        exl3_case e = case_make(SHAPES[i].n, SHAPES[i].k, SHAPES[i].bits, SHAPES[i].c, SHAPES[i].by_columns, 200 + i);
        check(&e.w, 3.0f, 300 + i);
        case_free(&e);
    }
}

static void views_cut_anywhere_keep_to_the_written_order(void **state)
{
    (void)state;
    static const struct { int32_t n0, n, k0, k; } CUT[] = {
        { 128, 256, 128, 128 },  { 0, 64, 0, 64 },   { 64, 64, 64, 64 },
        { 100, 180, 30, 300 },   { 383, 1, 255, 2 }, { 5, 7, 3, 9 },
    };
    for (int by_columns = 0; by_columns < 2; by_columns++) {
        exl3_case e = case_make(384, 384, 5, FMT_EXL3_MUL1, by_columns, 400);
        for (size_t i = 0; i < COUNT_OF(CUT); i++) {
            krn_weight w = krn_weight_slice(&e.w, CUT[i].n0, CUT[i].n, CUT[i].k0, CUT[i].k);
            check(&w, 3.0f, 500 + i);
            if (w.n < 4 || w.k < 4) continue;
            w = krn_weight_slice(&w, 1, w.n - 3, 2, w.k - 3); /* a slice of a slice */
            check(&w, 3.0f, 510 + i);
        }
        case_free(&e);
    }
}

static void a_is_the_rounded_transform_of_the_row_and_its_scale(void **state)
{
    (void)state;
    static const float SCALE[] = { 3.0f, 2.8e5f, 0x1p-60f, 0x1p-120f, 0x1p110f };
    exl3_case e = case_make(128, 256, 2, FMT_EXL3_MUL1, false, 600);
    const krn_weight cut = krn_weight_slice(&e.w, 0, 128, 77, 101);
    const krn_weight *const VIEW[] = { &e.w, &cut };
    for (size_t i = 0; i < COUNT_OF(SCALE); i++)
        for (int v = 0; v < 2; v++) {
            bf16 x[256];
            fp16 a[256];
            float want[256];
            for (int k = 0; k < 256; k++) x[k] = x_of(700 + i, k, SCALE[i]);
            assert_int_equal(krn_exl3_input_ref(x, VIEW[v], a), case_input(VIEW[v], x, want));
            float most = 0;
            for (int k = 0; k < 256; k++) {
                assert_int_equal(a[k], fp16_from_f32(want[k]));
                if (fabsf(want[k]) > most) most = fabsf(want[k]);
            }
            if (i < 3) assert_true(most >= 0x1p14f && most <= 0x1p15f);
        }
    case_free(&e);
}

/* ---- the decoded weight ---- */

/* W of a view by its formula, in double: [n, k]. All sums are exact. */
static double *effective(const krn_weight *w)
{
    const int32_t n = krn_exl3_blocks_n(w) * BLOCK, k = krn_exl3_blocks_k(w) * BLOCK;
    float *wq = case_decode(w);
    double *half = mem_alloc((size_t)n * (size_t)k, sizeof *half);
    double *out = mem_alloc((size_t)w->n * (size_t)w->k, sizeof *out);
    assert_true(half && out);
    for (int32_t i = 0; i < k; i++)
        for (int32_t j = 0; j < n; j++)
            for (int32_t b = 0; b < BLOCK; b++) {
                const double v = (double)wq[(int64_t)i * n + j / BLOCK * BLOCK + b];
                half[(int64_t)j * k + i] += __builtin_parity((uint32_t)(j % BLOCK & b)) ? -v : v;
            }
    for (int32_t j = 0; j < w->n; j++)
        for (int32_t i = 0; i < w->k; i++) {
            const int32_t row = w->exl3.n0 + j, col = w->exl3.k0 + i;
            double sum = 0;
            for (int32_t a = 0; a < BLOCK; a++) {
                const double v = half[(int64_t)row * k + col / BLOCK * BLOCK + a];
                sum += __builtin_parity((uint32_t)(col % BLOCK & a)) ? -v : v;
            }
            out[(int64_t)j * w->k + i] =
                sum * ((double)f32_from_fp16(w->exl3.suh[col]) * (double)f32_from_fp16(w->exl3.svh[row]) / 128);
        }
    free(half);
    free(wq);
    return out;
}

static void decoded_rows_are_the_formula_rounded_once(void **state)
{
    (void)state;
    exl3_case e = case_make(256, 256, 2, FMT_EXL3_MUL1, true, 800);
    const krn_weight cut = krn_weight_slice(&e.w, 70, 150, 100, 90);
    const krn_weight *const VIEW[] = { &e.w, &cut };
    static float got[256 * 256];
    static bf16 rounded[256 * 256];
    for (int v = 0; v < 2; v++) {
        const krn_weight *w = VIEW[v];
        double *want = effective(w);
        int64_t inexact = 0;
        krn_weight_decode_f32(w, 0, w->n, got);
        for (int64_t i = 0; i < (int64_t)w->n * w->k; i++) {
            assert_int_equal(f32_bits(got[i]), f32_bits((float)want[i]));
            inexact += bf16_round(got[i]) != got[i];
        }
        assert_true(inexact > (int64_t)w->n * w->k / 2);
        assert_int_equal(krn_weight_decode_bf16(w, 0, w->n, rounded), inexact);
        for (int64_t i = 0; i < (int64_t)w->n * w->k; i++) assert_int_equal(rounded[i], bf16_from_f32(got[i]));
        krn_weight_decode_f32(w, 60, 3, got); /* rows from the middle */
        for (int64_t i = 0; i < 3 * (int64_t)w->k; i++)
            assert_int_equal(f32_bits(got[i]), f32_bits((float)want[60 * (int64_t)w->k + i]));
        free(want);
    }
    case_free(&e);
}

static void the_f64_mode_is_the_product_with_the_decoded_weight(void **state)
{
    (void)state;
    exl3_case e = case_make(256, 384, 3, FMT_EXL3_MCG, false, 900);
    const krn_weight cut = krn_weight_slice(&e.w, 70, 150, 100, 190);
    const krn_weight *const VIEW[] = { &e.w, &cut };
    for (int v = 0; v < 2; v++) {
        const krn_weight *w = VIEW[v];
        double *want = effective(w);
        bf16 x[384];
        float y[3][256];
        for (int i = 0; i < 384; i++) x[i] = x_of(901, i, 3.0f);
        for (krn_isa isa = KRN_ISA_SCALAR; isa < KRN_ISA_COUNT; isa++) {
            krn_isa_set(isa);
            krn_linear_ref(x, w->k, 1, w, KRN_ACC_F64, KRN_OUT_F32, y[isa], w->n);
            assert_f32_same(y[isa], y[0], w->n);
        }
        for (int32_t n = 0; n < w->n; n++) {
            double sum = 0, size = 0;
            for (int32_t k = 0; k < w->k; k++) {
                sum += (double)f32_from_bf16(x[k]) * want[(int64_t)n * w->k + k];
                size += fabs((double)f32_from_bf16(x[k]) * want[(int64_t)n * w->k + k]);
            }
            assert_true(explained_f32(y[0][n], sum, 1e-13 * size)); /* one rounding, and nothing else */
        }
        free(want);
    }
    case_free(&e);
}

static void the_blocked_mode_stays_near_the_f64_mode(void **state)
{
    (void)state;
    exl3_case e = case_make(256, 384, 2, FMT_EXL3_MUL1, false, 1000);
    for (int taps = 0; taps < 2; taps++) {
        bf16 x[384];
        float y[2][256];
        double error = 0, size = 0;
        for (int i = 0; i < 384; i++) x[i] = x_of(1001, i, taps && i % 50 == 0 ? 2.8e5f : 3.0f);
        for (int acc = 0; acc < 2; acc++) krn_linear_ref(x, 384, 1, &e.w, (krn_acc)acc, KRN_OUT_F32, y[acc], 256);
        for (int n = 0; n < 256; n++) {
            const double d = (double)y[0][n] - (double)y[1][n];
            error += d * d;
            size += (double)y[1][n] * (double)y[1][n];
        }
        assert_true(sqrt(error / size) < 4e-4); /* A's rounding to fp16: about 2.1e-4 */
        assert_true(error > 0);
    }
    case_free(&e);
}

/* ---- slices ---- */

static void outputs_of_a_slice_along_n_are_those_of_the_whole(void **state)
{
    (void)state;
    static const int32_t CUT[] = { 128, 256, 64, 200 };
    exl3_case e = case_make(384, 256, 6, FMT_EXL3_MUL1, false, 1100);
    bf16 x[256];
    float whole[384], part[384];
    for (int i = 0; i < 256; i++) x[i] = x_of(1101, i, 3.0f);
    for (int acc = 0; acc < 2; acc++)
        for (size_t i = 0; i < COUNT_OF(CUT); i++) {
            const krn_weight low = krn_weight_slice(&e.w, 0, CUT[i], 0, 256);
            const krn_weight high = krn_weight_slice(&e.w, CUT[i], 384 - CUT[i], 0, 256);
            krn_linear_ref(x, 256, 1, &e.w, (krn_acc)acc, KRN_OUT_F32, whole, 384);
            krn_linear_ref(x, 256, 1, &low, (krn_acc)acc, KRN_OUT_F32, part, 384);
            krn_linear_ref(x, 256, 1, &high, (krn_acc)acc, KRN_OUT_F32, part + CUT[i], 384);
            assert_f32_same(part, whole, 384);
        }
    case_free(&e);
}

static void slices_along_k_add_up_to_the_whole(void **state)
{
    (void)state;
    static const int32_t CUT[] = { 128, 256, 64, 200, 383 };
    exl3_case e = case_make(128, 384, 2, FMT_EXL3_MUL1, true, 1200);
    bf16 x[384];
    float whole[128], part[2][128];
    for (int i = 0; i < 384; i++) x[i] = x_of(1201, i, 3.0f);
    krn_linear_ref(x, 384, 1, &e.w, KRN_ACC_F64, KRN_OUT_F32, whole, 128);
    for (size_t i = 0; i < COUNT_OF(CUT); i++) {
        const krn_weight low = krn_weight_slice(&e.w, 0, 128, 0, CUT[i]);
        const krn_weight high = krn_weight_slice(&e.w, 0, 128, CUT[i], 384 - CUT[i]);
        krn_linear_ref(x, 384, 1, &low, KRN_ACC_F64, KRN_OUT_F32, part[0], 128);
        krn_linear_ref(x + CUT[i], 384, 1, &high, KRN_ACC_F64, KRN_OUT_F32, part[1], 128);
        for (int n = 0; n < 128; n++) {
            const double a = (double)part[0][n], b = (double)part[1][n];
            assert_true(fabs(a + b - (double)whole[n]) <= 2 * U * (fabs(a) + fabs(b)) + 1e-12);
        }
    }
    case_free(&e);
}

/* ---- rows ---- */

static void rows_and_jobs_do_not_depend_on_their_company(void **state)
{
    (void)state;
    enum { ROWS = 133, N = 128, K = 128 };
    exl3_case e[2] = { case_make(N, K, 2, FMT_EXL3_MUL1, false, 1300), case_make(N, K, 2, FMT_EXL3_MUL1, false, 1301) };
    static bf16 x[ROWS * K];
    static float want[ROWS * N], got[ROWS * N];
    krn_linear_job jobs[ROWS];
    for (int i = 0; i < ROWS * K; i++) x[i] = x_of(1302, i, i / K % 3 ? 3.0f : 1e5f);
    for (int acc = 0; acc < 2; acc++) {
        for (int t = 0; t < ROWS; t++) krn_linear_ref(x + t * K, K, 1, &e[0].w, (krn_acc)acc, KRN_OUT_F32, want + t * N, N);
        krn_linear_ref(x, K, ROWS, &e[0].w, (krn_acc)acc, KRN_OUT_F32, got, N);
        assert_f32_same(got, want, ROWS * N);
        for (int t = 0; t < ROWS; t++) { /* one, four of the other, many, then in turn */
            const krn_weight *w = &e[t > 0 && t < 5 ? 1 : t > 120 ? t % 2 : 0].w;
            jobs[t] = (krn_linear_job){ w, x + t * K, got + t * N };
            krn_linear_ref(x + t * K, K, 1, w, (krn_acc)acc, KRN_OUT_F32, want + t * N, N);
        }
        krn_linear_grouped_ref(jobs, ROWS, (krn_acc)acc, KRN_OUT_F32);
        assert_f32_same(got, want, ROWS * N);
    }
    case_free(&e[0]);
    case_free(&e[1]);
}

static void a_power_of_two_on_a_row_is_one_on_its_outputs(void **state)
{
    (void)state;
    exl3_case e = case_make(128, 256, 5, FMT_EXL3_3INST, false, 1400);
    bf16 x[256];
    float y[128], scaled[128];
    for (int i = 0; i < 256; i++) x[i] = x_of(1401, i, 3.0f);
    krn_linear_ref(x, 256, 1, &e.w, KRN_ACC_BLOCKED, KRN_OUT_F32, y, 128);
    for (int power = -70; power <= 100; power += 17) {
        bf16 to[256];
        for (int i = 0; i < 256; i++) to[i] = bf16_from_f32(ldexpf(f32_from_bf16(x[i]), power));
        krn_linear_ref(to, 256, 1, &e.w, KRN_ACC_BLOCKED, KRN_OUT_F32, scaled, 128);
        for (int n = 0; n < 128; n++) assert_int_equal(f32_bits(scaled[n]), f32_bits(ldexpf(y[n], power)));
    }
    case_free(&e);
}

/* Taps reach 280,576; suh of 0.02 and signs that all agree put 63,500 and more on one input of A. */
static void the_largest_taps_do_not_overflow(void **state)
{
    (void)state;
    exl3_case e = case_make(128, 256, 2, FMT_EXL3_MUL1, false, 1500);
    bf16 x[256];
    fp16 a[256];
    float y[2][128];
    for (int factor = 1; factor <= 1000; factor *= 1000) {
        for (int i = 0; i < 256; i++) {
            e.suh[i] = fp16_from_f32(i % 3 ? 0.02f : -0.02f);
            x[i] = bf16_from_f32((i % 3 ? 2.8e5f : -2.8e5f) * (float)factor);
        }
        assert_true(krn_exl3_input_ref(x, &e.w, a) >= 1);
        for (int i = 0; i < 256; i++) assert_true((a[i] & 0x7fff) < 0x7800);
        for (int acc = 0; acc < 2; acc++) krn_linear_ref(x, 256, 1, &e.w, (krn_acc)acc, KRN_OUT_F32, y[acc], 128);
        for (int n = 0; n < 128; n++)
            assert_true(fabs((double)y[0][n] - (double)y[1][n]) <= 1e-3 * 2.8e5 * factor * 0.02 * 4 * 16);
    }
    case_free(&e);
}

static void zero_rows_give_zero_and_odd_rows_give_the_one_nan(void **state)
{
    (void)state;
    static const bf16 ODD[] = { 0x7fc0, 0xffc1, 0x7f80, 0xff80 };
    exl3_case e = case_make(128, 256, 2, FMT_EXL3_MUL1, false, 1600);
    bf16 x[3 * 256] = { 0 };
    float y[3 * 128];
    bf16 rounded[3 * 128];
    for (size_t i = 0; i < COUNT_OF(ODD); i++)
        for (int acc = 0; acc < 2; acc++) {
            for (int k = 256; k < 3 * 256; k++) x[k] = x_of(1601, k, 3.0f);
            x[256 + 130] = ODD[i];
            krn_linear_ref(x, 256, 3, &e.w, (krn_acc)acc, KRN_OUT_F32, y, 128);
            krn_linear_ref(x, 256, 3, &e.w, (krn_acc)acc, KRN_OUT_BF16, rounded, 128);
            for (int n = 0; n < 128; n++) {
                assert_true(y[n] == 0 && (rounded[n] & 0x7fff) == 0);
                assert_int_equal(f32_bits(y[128 + n]), 0x7fc00000);
                assert_int_equal(rounded[128 + n], 0x7fc0);
                assert_true(isfinite(y[256 + n]) && y[256 + n] != 0);
            }
        }
    fp16 a[256];
    assert_int_equal(krn_exl3_input_ref(x, &e.w, a), 0);
    assert_int_equal(krn_exl3_input_ref(x + 256, &e.w, a), 0);
    case_free(&e);
}

static void one_wrong_bit_of_a_tile_shows_in_its_block_and_nowhere_else(void **state)
{
    (void)state;
    exl3_case e = case_make(256, 128, 2, FMT_EXL3_MUL1, false, 1700);
    bf16 x[128];
    float y[2][256];
    for (int i = 0; i < 128; i++) x[i] = x_of(1701, i, 3.0f);
    krn_linear_ref(x, 128, 1, &e.w, KRN_ACC_BLOCKED, KRN_OUT_F32, y[0], 256);
    e.tiles[10 * 32 + 5] ^= 0x100; /* tile (0, 10): the second column of blocks */
    krn_linear_ref(x, 128, 1, &e.w, KRN_ACC_BLOCKED, KRN_OUT_F32, y[1], 256);
    assert_memory_equal(y[0], y[1], 128 * sizeof(float));
    int changed = 0;
    for (int n = 128; n < 256; n++) changed += y[0][n] != y[1][n];
    assert_true(changed > 120);
    case_free(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_width_and_codebook_decodes_as_the_format_says),
        cmocka_unit_test(the_known_input_vector_is_transformed_to_its_known_bits),
        cmocka_unit_test(the_known_sums_are_transformed_to_their_known_bits),
        cmocka_unit_test(every_product_has_the_bits_of_the_written_order),
        cmocka_unit_test(views_cut_anywhere_keep_to_the_written_order),
        cmocka_unit_test(a_is_the_rounded_transform_of_the_row_and_its_scale),
        cmocka_unit_test(decoded_rows_are_the_formula_rounded_once),
        cmocka_unit_test(the_f64_mode_is_the_product_with_the_decoded_weight),
        cmocka_unit_test(the_blocked_mode_stays_near_the_f64_mode),
        cmocka_unit_test(outputs_of_a_slice_along_n_are_those_of_the_whole),
        cmocka_unit_test(slices_along_k_add_up_to_the_whole),
        cmocka_unit_test(rows_and_jobs_do_not_depend_on_their_company),
        cmocka_unit_test(a_power_of_two_on_a_row_is_one_on_its_outputs),
        cmocka_unit_test(the_largest_taps_do_not_overflow),
        cmocka_unit_test(zero_rows_give_zero_and_odd_rows_give_the_one_nan),
        cmocka_unit_test(one_wrong_bit_of_a_tile_shows_in_its_block_and_nowhere_else),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
