#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/mem.h"
#include "formats/number.h"
#include "kernels/kernels.h"
#include "replay/metrics.h"

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
        cmocka_unit_test(ids_are_compared_as_sets_and_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
