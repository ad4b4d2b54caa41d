#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/mem.h"
#include "formats/number.h"
#include "kernels/kernels.h"
#include "replay/metrics.h"
#include "replay/metrics_logits.h"

static uint64_t hash(uint64_t x)
{
    x = (x ^ x >> 33) * 0xff51afd7ed558ccdu;
    x = (x ^ x >> 33) * 0xc4ceb9fe1a85ec53u;
    return x ^ x >> 33;
}

/* Element i of side A, and of side B some ulps off; specials: NaN, infinities and zeros now and then. */
static void make_pair(fmt_dtype d, int64_t n, uint64_t seed, uint32_t noise, bool specials, void *a, void *b)
{
    static const uint32_t SPECIAL[] = { 0x7fc00000, 0x7f800000, 0xff800000, 0, 0x80000000, 0x7fc10000 };
    for (int64_t i = 0; i < n; i++) {
        uint64_t h = hash(seed + (uint64_t)i);
        uint32_t x = f32_bits((float)((double)(int32_t)h * 0x1p-29)), step = d == FMT_DTYPE_BF16 ? 1u << 16 : 1;
        uint32_t y = x + step * (noise ? (uint32_t)(h >> 40) % (2 * noise + 1) : 0);
        y -= step * noise;
        if (specials && h % 7 == 0) x = SPECIAL[(h >> 8) % COUNT_OF(SPECIAL)];
        if (specials && h % 11 == 0) y = SPECIAL[(h >> 16) % COUNT_OF(SPECIAL)];
        if (specials && h % 13 == 0) y = x;
        if (d == FMT_DTYPE_F32) ((uint32_t *)a)[i] = x, ((uint32_t *)b)[i] = y;
        else ((uint16_t *)a)[i] = (uint16_t)(x >> 16), ((uint16_t *)b)[i] = (uint16_t)(y >> 16);
    }
}

static double value_at(fmt_dtype d, const void *p, int64_t i)
{
    return d == FMT_DTYPE_F32 ? (double)((const float *)p)[i] : (double)f32_from_bf16(((const bf16 *)p)[i]);
}

/* The definitions of metrics.h, one element at a time and nothing clever. */
static rpl_metrics plain_metrics(fmt_dtype d, const void *a, const void *b, int64_t n)
{
    rpl_metrics m = { .n = n, .first = -1, .worst = -1, .cosine = 1 };
    double aa = 0, bb = 0, ab = 0, dd = 0;
    bool apart = false;
    float worst = 0;
    for (int64_t i = 0; i < n; i++) {
        double x = value_at(d, a, i), y = value_at(d, b, i);
        size_t bytes = fmt_dtype_bytes(d), at = (size_t)i * bytes;
        bool same = memcmp((const char *)a + at, (const char *)b + at, bytes) == 0;
        uint64_t ulp = d == FMT_DTYPE_F32 ? fmt_ulp_f32((float)x, (float)y)
                                          : fmt_ulp_bf16(((const bf16 *)a)[i], ((const bf16 *)b)[i]);
        float off = fabsf((float)x - (float)y);
        m.n_equal += same;
        if (!same && m.first < 0) m.first = i;
        m.n_nan_a += isnan(x) != 0, m.n_nan_b += isnan(y) != 0, m.n_nan_both += isnan(x) && isnan(y);
        m.n_inf_a += isinf(x) != 0, m.n_inf_b += isinf(y) != 0, m.n_inf_differ += (isinf(x) || isinf(y)) && x != y;
        m.n_zero_a += x == 0, m.n_zero_b += y == 0, m.n_zero_differ += (x == 0) != (y == 0);
        if (ulp > m.max_ulp) m.max_ulp = ulp;
        m.ulp[rpl_ulp_bucket(ulp)]++;
        if (!isfinite(x) || !isfinite(y)) {
            off = same || x == y ? 0 : INFINITY;
            apart = apart || off > 0;
        } else {
            aa += x * x, bb += y * y, ab += x * y, dd += (x - y) * (x - y);
            if (y != 0 && (double)(off / fabsf((float)y)) > m.max_rel) m.max_rel = (double)(off / fabsf((float)y));
        }
        if (off > worst) worst = off, m.worst = i, m.max_abs = isinf(off) ? (double)INFINITY : fabs(x - y);
    }
    if (m.worst < 0) m.worst = m.first;
    m.norm_a = sqrt(aa), m.norm_b = sqrt(bb);
    m.rel_l2 = apart ? (double)INFINITY : dd == 0 ? 0 : sqrt(dd / bb);
    if (aa > 0 && bb > 0) m.cosine = ab / sqrt(aa * bb);
    return m;
}

static void assert_near(double got, double want)
{
    if (got == want) return;
    if (!(fabs(got - want) <= 1e-12 * fabs(want))) fail_msg("found %.17g, wanted %.17g", got, want);
}

static void assert_same_counts(const rpl_metrics *got, const rpl_metrics *want)
{
    assert_int_equal(got->n, want->n);
    assert_int_equal(got->n_equal, want->n_equal);
    assert_int_equal(got->max_ulp, want->max_ulp);
    assert_int_equal(got->first, want->first);
    assert_int_equal(got->worst, want->worst);
    assert_memory_equal(got->ulp, want->ulp, sizeof got->ulp);
    assert_memory_equal(&got->n_nan_a, &want->n_nan_a, offsetof(rpl_metrics, findings) - offsetof(rpl_metrics, n_nan_a));
}

static const int64_t SIZES[] = { 1, 15, 16, 511, 512, 513, 1024, 5000 };

static void metrics_follow_their_definition(void **state)
{
    uint32_t a[5000], b[5000];
    (void)state;
    for (int d = 0; d < 2; d++)
        for (size_t s = 0; s < COUNT_OF(SIZES); s++)
            for (uint32_t kind = 0; kind < 5; kind++) {
                static const uint32_t NOISE[5] = { 0, 1, 3, 5000, 2 };
                fmt_dtype dtype = d ? FMT_DTYPE_F32 : FMT_DTYPE_BF16;
                make_pair(dtype, SIZES[s], 100 * s + kind, NOISE[kind], kind == 4, a, b);
                rpl_metrics got, want = plain_metrics(dtype, a, b, SIZES[s]);
                rpl_metrics_of(dtype, a, b, SIZES[s], &got);
                assert_same_counts(&got, &want);
                assert_near(got.max_abs, want.max_abs);
                assert_near(got.max_rel, want.max_rel);
                assert_near(got.rel_l2, want.rel_l2);
                assert_near(got.cosine, want.cosine);
            }
}

static void every_instruction_set_gives_the_same_bits(void **state)
{
    uint32_t a[5000], b[5000];
    (void)state;
    for (int d = 0; d < 2; d++)
        for (int specials = 0; specials < 2; specials++) {
            fmt_dtype dtype = d ? FMT_DTYPE_F32 : FMT_DTYPE_BF16;
            rpl_metrics first, other;
            make_pair(dtype, 5000, 7, 900, specials, a, b);
            krn_isa_set(KRN_ISA_SCALAR);
            rpl_metrics_of(dtype, a, b, 5000, &first);
            for (int isa = 1; isa < KRN_ISA_COUNT; isa++) {
                krn_isa_set((krn_isa)isa);
                rpl_metrics_of(dtype, a, b, 5000, &other);
                assert_memory_equal(&first, &other, offsetof(rpl_metrics, findings));
            }
            krn_isa_set(krn_isa_best());
        }
}

static void a_comparison_of_nothing_is_a_finding(void **state)
{
    float zero[600] = { 0 }, one[600];
    int32_t ids[4] = { 0 };
    rpl_metrics m;
    (void)state;
    for (int i = 0; i < 600; i++) one[i] = 1;
    rpl_metrics_of(FMT_DTYPE_F32, zero, zero, 0, &m);
    assert_int_equal(m.findings, RPL_FIND_EMPTY);
    rpl_metrics_of(FMT_DTYPE_F32, zero, zero, 600, &m);
    assert_int_equal(m.findings, RPL_FIND_ALL_ZERO);
    rpl_metrics_of(FMT_DTYPE_F32, zero, one, 600, &m);
    assert_int_equal(m.findings, 0);
    rpl_metrics_of(FMT_DTYPE_I32, ids, ids, 4, &m); /* position 0 and token 0 are numbers like others */
    assert_int_equal(m.findings, 0);
    one[3] = (float)NAN;
    rpl_metrics_of(FMT_DTYPE_F32, one, one, 600, &m);
    assert_int_equal(m.findings, RPL_FIND_NAN_EQUALS_NAN);
    assert_int_equal(m.n_equal, 600);
}

static void nan_on_one_side_is_as_far_as_can_be(void **state)
{
    float a[40] = { 1 }, b[40] = { 1 };
    rpl_metrics m;
    (void)state;
    b[0] = 1.5f;
    a[17] = (float)NAN;
    rpl_metrics_of(FMT_DTYPE_F32, a, b, 40, &m);
    assert_true(isinf(m.max_abs) && isinf(m.rel_l2));
    assert_int_equal(m.worst, 17);
    assert_int_equal(m.first, 0);
    assert_true(m.max_ulp == UINT64_MAX);
    assert_int_equal(m.ulp[RPL_ULP_BUCKETS - 1], 1);
}

static void other_dtypes_are_compared_on_their_own_grid(void **state)
{
    const int32_t i32[2][3] = { { 5, -7, 100 }, { 5, 7, 90 } };
    const uint8_t f8[2][2] = { { 0x38, 0x81 }, { 0x39, 0x01 } }; /* 1.0 and its neighbour; -2^-9 and 2^-9 */
    const int64_t big[2][1] = { { INT64_MAX }, { INT64_MIN } };
    rpl_metrics m;
    (void)state;
    rpl_metrics_of(FMT_DTYPE_I32, i32[0], i32[1], 3, &m);
    assert_int_equal(m.n_equal, 1);
    assert_int_equal(m.max_ulp, 14);
    assert_int_equal(m.worst, 1);
    rpl_metrics_of(FMT_DTYPE_F8, f8[0], f8[1], 2, &m);
    assert_int_equal(m.max_ulp, 2);
    assert_int_equal(m.ulp[1], 1);
    rpl_metrics_of(FMT_DTYPE_I64, big[0], big[1], 1, &m);
    assert_true(m.max_ulp == UINT64_MAX);
}

static void ulp_buckets_double(void **state)
{
    char text[24];
    (void)state;
    static const struct { uint64_t ulp; int bucket; const char *text; } WANT[] = {
        { 0, 0, "0" }, { 1, 1, "1" }, { 2, 2, "2" }, { 3, 3, "3-4" }, { 4, 3, "3-4" }, { 5, 4, "5-8" }, { 8, 4, "5-8" },
        { 9, 5, "9-16" }, { UINT64_C(1) << 31, 32, "1073741825-2147483648" }, { UINT64_MAX, 33, "2147483649.." },
    };
    for (size_t i = 0; i < COUNT_OF(WANT); i++) {
        assert_int_equal(rpl_ulp_bucket(WANT[i].ulp), WANT[i].bucket);
        assert_string_equal(rpl_ulp_bucket_text(WANT[i].bucket, text), WANT[i].text);
    }
}

static void a_profile_shows_where(void **state)
{
    enum { ROWS = 3, COLS = 70, BLOCKS = 3 };
    float a[ROWS * COLS], b[ROWS * COLS];
    rpl_cell row[ROWS], block[ROWS * BLOCKS];
    (void)state;
    for (int i = 0; i < ROWS * COLS; i++) a[i] = b[i] = (float)(i + 1);
    b[2 * COLS + 65] += 1;
    rpl_profile(FMT_DTYPE_F32, a, b, ROWS, COLS, row, block);
    for (int i = 0; i < ROWS; i++) assert_int_equal(row[i].n_differ, i == 2);
    for (int i = 0; i < ROWS * BLOCKS; i++) assert_int_equal(block[i].n_differ, i == 2 * BLOCKS + 2);
    assert_true(block[8].max_abs == 1 && block[8].rel_l2 > row[2].rel_l2);
}

static void logits_give_divergence_overlap_and_margin(void **state)
{
    const float a[4] = { 0, logf(3), -(float)INFINITY, logf(2) }, b[4] = { logf(2), logf(3.5f), -(float)INFINITY, 0 };
    /* p_a = 1/6, 3/6, 0, 2/6 and p_b = 4/13, 7/13, 0, 2/13 */
    const double want = 4.0 / 13 * log(4.0 / 13 * 6) + 7.0 / 13 * log(7.0 / 13 * 2) + 2.0 / 13 * log(2.0 / 13 * 3);
    rpl_logits_row r;
    rpl_logits all;
    (void)state;
    rpl_logits_row_of(a, b, 4, &r);
    assert_true(fabs(r.kl - want) <= 1e-6);
    assert_int_equal(r.argmax_a, 1);
    assert_int_equal(r.argmax_b, 1);
    assert_true(fabs(r.margin_b - log(1.75)) <= 1e-6);
    rpl_logits_row_of(a, a, 4, &r);
    assert_true(r.kl == 0 && r.overlap == 4);

    float x[2 * 100], y[2 * 100];
    for (int i = 0; i < 200; i++) x[i] = y[i] = (float)(i % 100);
    for (int i = 100; i < 200; i++) y[i] = (float)(99 - i % 100); /* the second row upside down */
    rpl_logits_of(x, y, 2, 100, &all);
    assert_int_equal(all.n_argmax_equal, 1);
    assert_int_equal(all.overlap_min, 28); /* ids 36..99 against 0..63 */
    assert_true(all.margin_min == 1 && all.kl_max > 1);
    y[150] = (float)NAN;
    rpl_logits_row_of(x + 100, y + 100, 100, &r);
    assert_true(isnan(r.kl));
}

static void equal_logits_prefer_the_lowest_id(void **state)
{
    const float a[5] = { 1, 7, 7, 7, 2 };
    rpl_logits_row r;
    (void)state;
    rpl_logits_row_of(a, a, 5, &r);
    assert_int_equal(r.argmax_a, 1);
    assert_true(r.margin_a == 0);
}

/* exp_sums of one pair of lanes' worth: lane j of out is exp(x[j]). */
static void exp_of(krn_isa isa, const float x[KRN_LANES], double out[KRN_LANES])
{
    rpl_exp_sums sums = { 0 };
    rpl_row_kernel_of(isa)->exp_sums(x, x, KRN_LANES, 0, 0, &sums);
    memcpy(out, sums.a, sizeof sums.a);
}

static void exponentials_are_within_1_05_ulp_on_every_instruction_set(void **state)
{
    enum { GROUPS = 1 << 18 };
    double worst = 0;
    (void)state;
    for (int64_t g = 0; g < GROUPS; g++) {
        float x[KRN_LANES];
        double best[KRN_LANES], plain[KRN_LANES];
        for (int j = 0; j < KRN_LANES; j++) { /* as many in every octave: |x| from 2^-26 to 708 */
            uint64_t h = hash((uint64_t)(g * KRN_LANES + j) + 1);
            x[j] = -(float)exp2((double)(h >> 11) * 0x1p-53 * 35.4 - 26);
        }
        exp_of(krn_isa_best(), x, best);
        for (int j = 0; j < KRN_LANES; j++) {
            long double want = expl((long double)x[j]);
            int exponent;
            (void)frexpl(want, &exponent);
            double ulps = (double)(fabsl((long double)best[j] - want) / ldexpl(1, exponent - 53));
            if (!(ulps <= worst)) worst = ulps;
        }
        if (g % 64) continue; /* libm's fma is slow where the build does not know the processor's */
        for (int isa = 0; isa <= (int)krn_isa_best(); isa++) {
            exp_of((krn_isa)isa, x, plain);
            assert_memory_equal(plain, best, sizeof best);
        }
    }
    if (!(worst <= 1.05)) fail_msg("exponentials are up to %g ulp off", worst);

    const float edge[KRN_LANES] = { 0, -0.0f, -708, -709, -(float)INFINITY, (float)NAN, -1000, -0x1p-149f };
    double got[KRN_LANES];
    for (int isa = 0; isa <= (int)krn_isa_best(); isa++) {
        exp_of((krn_isa)isa, edge, got);
        assert_true(got[0] == 1 && got[1] == 1 && got[7] == 1);
        assert_true(fabs(got[2] / exp(-708) - 1) < 4e-16);
        assert_true(got[3] == 0 && got[4] == 0 && got[6] == 0 && isnan(got[5]));
    }
}

static int larger_first(const void *x, const void *y)
{
    float a = **(const float *const *)x, b = **(const float *const *)y;
    return a > b ? -1 : a < b ? 1 : *(const float *const *)x < *(const float *const *)y ? -1 : 1;
}

/* Pointers to the elements of v that are numbers, largest first; an equal one with a lower index first. */
static int32_t sorted(const float *v, int32_t n, const float **out)
{
    int32_t count = 0;
    for (int32_t i = 0; i < n; i++)
        if (!isnan(v[i])) out[count++] = &v[i];
    qsort(out, (size_t)count, sizeof *out, larger_first);
    return count;
}

static void the_largest_logits_are_those_that_sorting_finds(void **state)
{
    enum { MAX = 3000 };
    static float a[MAX], b[MAX];
    static const float *by_a[MAX], *by_b[MAX];
    (void)state;
    for (int32_t trial = 0; trial < 400; trial++) {
        int32_t n = trial < 200 ? 1 + trial : 1 + (int32_t)(hash((uint64_t)trial) % MAX);
        uint64_t values = trial % 3 == 0 ? 5 : trial % 3 == 1 ? 200 : 1u << 24; /* few: mostly ties */
        for (int32_t i = 0; i < n; i++) {
            uint64_t h = hash((uint64_t)trial * MAX + (uint64_t)i);
            a[i] = (float)(h % values), b[i] = (float)((h >> 32) % values);
            if (trial % 4 == 3 && h % 3 == 0) a[i] = (float)NAN;
            if (trial % 4 == 2 && h % 3 == 0) b[i] = -(float)INFINITY;
        }
        int32_t na = sorted(a, n, by_a), nb = sorted(b, n, by_b), overlap = 0;
        int32_t ka = na < RPL_TOP_K ? na : RPL_TOP_K, kb = nb < RPL_TOP_K ? nb : RPL_TOP_K;
        for (int32_t i = 0; i < ka; i++)
            for (int32_t j = 0; j < kb; j++) overlap += by_a[i] - a == by_b[j] - b;
        for (int isa = 0; isa <= (int)krn_isa_best(); isa++) {
            rpl_logits_row r;
            krn_isa_set((krn_isa)isa);
            rpl_logits_row_of(a, b, n, &r);
            assert_int_equal(r.overlap, overlap);
            assert_int_equal(r.k, ka < kb ? ka : kb);
            assert_int_equal(r.argmax_a, ka ? by_a[0] - a : -1);
            assert_int_equal(r.argmax_b, kb ? by_b[0] - b : -1);
            if (kb > 1 && isfinite(*by_b[1])) assert_true(r.margin_b == (double)*by_b[0] - (double)*by_b[1]);
        }
        krn_isa_set(krn_isa_best());
    }
}

static void divergence_is_that_of_the_definition(void **state)
{
    enum { N = 5003 };
    static float a[N], b[N];
    (void)state;
    for (int noise = 1; noise <= 1 << 20; noise *= 32) {
        long double sum_a = 0, sum_b = 0, kl = 0;
        make_pair(FMT_DTYPE_F32, N, (uint64_t)noise, (uint32_t)noise, false, a, b);
        for (int i = 0; i < N; i++) sum_a += expl((long double)a[i]), sum_b += expl((long double)b[i]);
        for (int i = 0; i < N; i++)
            kl += expl((long double)b[i]) / sum_b * ((long double)b[i] - (long double)a[i] + logl(sum_a) - logl(sum_b));
        rpl_logits_row r, again;
        rpl_logits_row_of(a, b, N, &r);
        assert_true(fabsl(kl - (long double)r.kl) <= 1e-15L + 1e-13L * kl); /* a difference of sums that are about 1 */
        for (int isa = 0; isa <= (int)krn_isa_best(); isa++) {
            krn_isa_set((krn_isa)isa);
            rpl_logits_row_of(a, b, N, &again);
            assert_memory_equal(&again, &r, sizeof r);
        }
        krn_isa_set(krn_isa_best());
    }
}

/* Where a quotient is only looked for among candidates, none may be missed: also not where products underflow. */
static void the_largest_quotient_of_tiny_numbers_is_found(void **state)
{
    enum { N = 4 * 512 + 7 };
    static uint32_t a[N], b[N];
    (void)state;
    for (uint64_t seed = 0; seed < 200; seed++) {
        float want = 0;
        for (int64_t i = 0; i < N; i++) {
            uint64_t h = hash(seed * N + (uint64_t)i);
            uint32_t exponent = seed % 4 == 0 ? 0 : seed % 4 == 1 ? (uint32_t)(h % 3) : (uint32_t)(h % 60);
            a[i] = (uint32_t)(h >> 63) << 31 | exponent << 23 | (h >> 32 & 0x7fffff);
            b[i] = a[i] + (uint32_t)(h >> 20 & 15);
            if (h % 97 == 0) b[i] = 0;
            float x = f32_from_bits(a[i]), y = f32_from_bits(b[i]);
            float rel = y != 0 ? fabsf(x - y) / fabsf(y) : 0;
            if (rel > want) want = rel;
        }
        for (int isa = 0; isa <= (int)krn_isa_best(); isa++) {
            rpl_metrics m;
            krn_isa_set((krn_isa)isa);
            rpl_metrics_of(FMT_DTYPE_F32, a, b, N, &m);
            assert_true(m.max_rel == (double)want);
        }
        krn_isa_set(krn_isa_best());
    }
}

static void ids_are_compared_as_sets_and_in_order(void **state)
{
    const int32_t a[9] = { 3, 1, 2, 5, 6, 7, 4, 4, 1 }, b[9] = { 1, 2, 3, 5, 6, 7, 4, 1, 1 };
    rpl_ids m;
    (void)state;
    rpl_ids_of(a, b, 3, 3, &m);
    assert_int_equal(m.n_same_set, 2);
    assert_int_equal(m.n_same_order, 1);
    assert_int_equal(m.first_order, 0);
    assert_int_equal(m.first_set, 2); /* 4 4 1 is not 4 1 1 */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(metrics_follow_their_definition),
        cmocka_unit_test(every_instruction_set_gives_the_same_bits),
        cmocka_unit_test(a_comparison_of_nothing_is_a_finding),
        cmocka_unit_test(nan_on_one_side_is_as_far_as_can_be),
        cmocka_unit_test(other_dtypes_are_compared_on_their_own_grid),
        cmocka_unit_test(ulp_buckets_double),
        cmocka_unit_test(a_profile_shows_where),
        cmocka_unit_test(logits_give_divergence_overlap_and_margin),
        cmocka_unit_test(equal_logits_prefer_the_lowest_id),
        cmocka_unit_test(exponentials_are_within_1_05_ulp_on_every_instruction_set),
        cmocka_unit_test(the_largest_logits_are_those_that_sorting_finds),
        cmocka_unit_test(divergence_is_that_of_the_definition),
        cmocka_unit_test(the_largest_quotient_of_tiny_numbers_is_found),
        cmocka_unit_test(ids_are_compared_as_sets_and_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
