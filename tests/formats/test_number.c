/* The number formats against definitions written from their field layouts, in doubles, by search instead of by bits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "formats/number.h"

/* Value of a code with e exponent and m mantissa bits, sign excluded. */
static double small_float(uint32_t code, int m, int bias)
{
    uint32_t mantissa = code & ((1u << m) - 1), exponent = code >> m;
    return exponent == 0 ? ldexp(mantissa, 1 - bias - m) : ldexp((1u << m) + mantissa, (int)exponent - bias - m);
}
static double e4m3_value(uint32_t code) { return small_float(code, 3, 7); }
static double e2m1_value(uint32_t code) { return small_float(code, 1, 1); }

/* Nearest of codes 0..last to |v|, ties to the even code: by looking at all of them. */
static uint32_t nearest(double v, double (*value)(uint32_t), uint32_t last)
{
    uint32_t best = 0;
    for (uint32_t c = 1; c <= last; c++) {
        double d = fabs(fabs(v) - value(c)), d_best = fabs(fabs(v) - value(best));
        if (d < d_best || (d == d_best && c % 2 == 0)) best = c;
    }
    return best;
}

static uint32_t e4m3_wanted(float v)
{
    if (isnan(v)) return 0x7f;
    return (signbit(v) ? 0x80u : 0) | (fabsf(v) > 448 ? 0x7eu : nearest(v, e4m3_value, 0x7e));
}

static uint32_t e2m1_wanted(float v)
{
    if (isnan(v)) return 0;
    return (signbit(v) ? 8u : 0) | (fabsf(v) > 6 ? 7u : nearest(v, e2m1_value, 7));
}

static void the_search_for_the_nearest_code_tells_ties_and_neighbours_apart(void **state)
{
    (void)state;
    assert_int_equal(nearest(2.5, e2m1_value, 7), 4);  /* 2 and 3: even code */
    assert_int_equal(nearest(3.5, e2m1_value, 7), 6);  /* 3 and 4 */
    assert_int_equal(nearest(2.51, e2m1_value, 7), 5);
    assert_int_equal(nearest(2.49, e2m1_value, 7), 4);
    assert_int_equal(nearest(1e9, e2m1_value, 7), 7);
}

static void every_bf16_code_survives_f32(void **state)
{
    (void)state;
    for (uint32_t c = 0; c < 65536; c++) {
        bool nan = (c & 0x7fff) > 0x7f80;
        assert_int_equal(bf16_from_f32(f32_from_bf16((bf16)c)), nan ? 0x7fc0 : c);
        assert_true(isnan(f32_from_bf16((bf16)c)) == nan);
    }
}

static void bf16_rounds_to_nearest_even_between_all_neighbours(void **state)
{
    (void)state;
    for (uint32_t sign = 0; sign < 2; sign++)
        for (uint32_t c = 0; c < 0x7f80; c++) {
            uint32_t s = sign << 31, tie = c << 16 | 0x8000, code = sign << 15 | c;
            assert_int_equal(bf16_from_f32(f32_from_bits(s | tie)), code + c % 2);
            assert_int_equal(bf16_from_f32(f32_from_bits(s | (tie - 1))), code);
            assert_int_equal(bf16_from_f32(f32_from_bits(s | (tie + 1))), code + 1); /* the last one is infinity */
        }
    assert_int_equal(bf16_from_f32(f32_from_bits(0xff800001)), 0x7fc0); /* a NaN that truncation would make infinite */
}

static void every_e4m3_code_has_its_value_and_comes_back(void **state)
{
    (void)state;
    for (uint32_t c = 0; c < 256; c++) {
        if ((c & 0x7f) == 0x7f) {
            assert_true(isnan(FMT_E4M3_VALUE[c]));
            continue;
        }
        double wanted = c < 128 ? e4m3_value(c) : -e4m3_value(c - 128);
        assert_true(FMT_E4M3_VALUE[c] == wanted && !signbit(FMT_E4M3_VALUE[c]) == (c < 128));
        assert_int_equal(e4m3_from_f32(FMT_E4M3_VALUE[c]), c);
    }
    assert_true(FMT_E4M3_VALUE[0x7e] == 448 && FMT_E4M3_VALUE[1] == 0x1p-9f);
}

static void every_e2m1_code_has_its_value_and_comes_back(void **state)
{
    (void)state;
    for (uint32_t c = 0; c < 16; c++) {
        double wanted = c < 8 ? e2m1_value(c) : -e2m1_value(c - 8);
        assert_true(FMT_E2M1_VALUE[c] == wanted && !signbit(FMT_E2M1_VALUE[c]) == (c < 8));
        assert_int_equal(e2m1_from_f32(FMT_E2M1_VALUE[c]), c);
    }
}

static void every_e8m0_code_is_its_power_of_two(void **state)
{
    (void)state;
    for (int b = 0; b < 255; b++) assert_true(f32_from_e8m0((uint8_t)b) == ldexp(1, b - 127));
    assert_true(isnan(f32_from_e8m0(255)));
}

static void every_tie_and_its_neighbours_round_as_defined(void **state)
{
    (void)state;
    for (int sign = -1; sign <= 1; sign += 2) {
        for (uint32_t c = 0; c < 0x7e; c++) {
            float tie = (float)(sign * (e4m3_value(c) + e4m3_value(c + 1)) / 2);
            assert_int_equal(e4m3_from_f32(tie) & 0x7f, c + c % 2);
            for (int i = -1; i <= 1; i++) {
                float v = i == 0 ? tie : nextafterf(tie, i * INFINITY);
                assert_int_equal(e4m3_from_f32(v), e4m3_wanted(v));
            }
        }
        for (uint32_t c = 0; c < 7; c++) {
            float tie = (float)(sign * (e2m1_value(c) + e2m1_value(c + 1)) / 2);
            assert_int_equal(e2m1_from_f32(tie) & 7, c + c % 2);
            for (int i = -1; i <= 1; i++) {
                float v = i == 0 ? tie : nextafterf(tie, i * INFINITY);
                assert_int_equal(e2m1_from_f32(v), e2m1_wanted(v));
            }
        }
    }
}

static void every_bf16_value_goes_to_the_nearest_small_code(void **state)
{
    (void)state;
    for (uint32_t c = 0; c < 65536; c++) {
        float v = f32_from_bf16((bf16)c);
        assert_int_equal(e4m3_from_f32(v), e4m3_wanted(v));
        assert_int_equal(e2m1_from_f32(v), e2m1_wanted(v));
    }
}

static void out_of_range_saturates_and_nan_has_its_code(void **state)
{
    (void)state;
    const float big[] = { 448.0f, 449.0f, 464.0f, 480.0f, 1e30f, INFINITY };
    for (size_t i = 0; i < sizeof big / sizeof big[0]; i++) {
        assert_int_equal(e4m3_from_f32(big[i]), 0x7e);
        assert_int_equal(e4m3_from_f32(-big[i]), 0xfe);
        assert_int_equal(e2m1_from_f32(big[i]), 7);
        assert_int_equal(e2m1_from_f32(-big[i]), 15);
    }
    assert_int_equal(e4m3_from_f32(NAN), FMT_E4M3_NAN);
    assert_int_equal(e4m3_from_f32(-NAN), FMT_E4M3_NAN);
    assert_int_equal(e2m1_from_f32(NAN), 0);
    assert_int_equal(e4m3_from_f32(-0.0f), 0x80);
    assert_int_equal(e4m3_from_f32(0x1p-10f), 0);      /* half of the smallest: to even */
    assert_int_equal(e4m3_from_f32(1e-45f), 0);
}

/* act_qdq's scale from its definition, through frexp: exact, no bits and no logarithm. */
static int scale_wanted(float amax)
{
    float t = fmaxf(amax, 1e-4f) * (float)(1.0 / 448.0);
    int e;
    double m = frexp(t, &e);
    return e - (m == 0.5) + 127;
}

static void the_scale_is_right_next_to_every_power_of_two(void **state)
{
    (void)state;
    assert_int_equal(scale_wanted(448.0f), 127);
    assert_int_equal(scale_wanted(nextafterf(448.0f, INFINITY)), 128);
    for (int k = -160; k <= 119; k++) {
        float at = ldexpf(448.0f, k);
        for (int i = -1; i <= 1; i++) {
            float amax = i == 0 ? at : nextafterf(at, i * INFINITY);
            if (amax < 0) continue;
            assert_int_equal(fmt_qdq_scale(amax), scale_wanted(amax));
        }
    }
    assert_int_equal(fmt_qdq_scale(448.0f), 127);
    assert_int_equal(fmt_qdq_scale(0.0f), fmt_qdq_scale(1e-4f));
    assert_int_equal(fmt_qdq_scale(INFINITY), FMT_E8M0_NAN);
}

static void the_scale_is_right_for_every_bf16_magnitude(void **state)
{
    (void)state;
    for (uint32_t c = 0; c < 0x7f80; c++) {
        float amax = f32_from_bf16((bf16)c);
        assert_int_equal(fmt_qdq_scale(amax), scale_wanted(amax));
    }
}

/* Groups of every kind of bf16: kind 0 any bits, 1 one exponent, 2 exponents close together, 3 tiny, 4 huge. Not the last
 * exponent: its top rounds to 2^128, infinity. */
static void fill_group(uint64_t *seed, int kind, bf16 x[FMT_QDQ_GROUP])
{
    static const uint32_t FIRST[] = { 0, 120, 115, 0, 245 }, COUNT[] = { 254, 1, 12, 100, 9 };
    for (int i = 0; i < FMT_QDQ_GROUP; i++) {
        *seed = *seed * 6364136223846793005u + 1442695040888963407u;
        uint32_t r = (uint32_t)(*seed >> 32);
        x[i] = (bf16)((r & 0x807f) | (FIRST[kind] + (r >> 16) % COUNT[kind]) << 7);
    }
}

static void a_group_is_coded_as_defined_and_coding_it_again_changes_nothing(void **state)
{
    (void)state;
    uint64_t seed = 1;
    for (int n = 0; n < 50000; n++) {
        bf16 x[FMT_QDQ_GROUP], y[FMT_QDQ_GROUP];
        uint8_t code[FMT_QDQ_GROUP], again[FMT_QDQ_GROUP], scale, scale_again;
        float amax = 0;
        fill_group(&seed, n % 5, x);
        fmt_qdq_encode(x, code, &scale);
        for (int i = 0; i < FMT_QDQ_GROUP; i++) amax = fmaxf(amax, fabsf(f32_from_bf16(x[i])));
        assert_int_equal(scale, scale_wanted(amax));
        for (int i = 0; i < FMT_QDQ_GROUP; i++) {
            float q = (float)(f32_from_bf16(x[i]) / ldexp(1, scale - 127));
            assert_int_equal(code[i], e4m3_from_f32(fminf(fmaxf(q, -448), 448)));
            y[i] = fmt_qdq_decode(code[i], scale);
            assert_true(f32_from_bf16(y[i]) == FMT_E4M3_VALUE[code[i]] * ldexp(1, scale - 127)); /* exact */
        }
        fmt_qdq_encode(y, again, &scale_again);
        for (int i = 0; i < FMT_QDQ_GROUP; i++) assert_int_equal(fmt_qdq_decode(again[i], scale_again), y[i]);
    }
}

static void decoding_is_exact_for_every_code_and_scale_that_coding_makes(void **state)
{
    (void)state;
    for (int scale = fmt_qdq_scale(0); scale <= fmt_qdq_scale(f32_from_bf16(0x7f7f)); scale++)
        for (int c = 0; c < 256; c++) {
            if ((c & 0x7f) == 0x7f) continue;
            float got = f32_from_bf16(fmt_qdq_decode((uint8_t)c, (uint8_t)scale));
            double wanted = (double)FMT_E4M3_VALUE[c] * ldexp(1, scale - 127);
            if (fabs(wanted) >= 0x1p128) wanted = copysign(INFINITY, wanted); /* over bf16's range */
            assert_true(got == wanted && !signbit(got) == !signbit(wanted));
        }
}

static void a_group_with_nan_keeps_it_in_its_place(void **state)
{
    (void)state;
    bf16 x[FMT_QDQ_GROUP];
    uint8_t code[FMT_QDQ_GROUP], scale;
    for (int i = 0; i < FMT_QDQ_GROUP; i++) x[i] = 0x3f80;
    x[5] = 0xffff;
    fmt_qdq_encode(x, code, &scale);
    assert_int_equal(scale, scale_wanted(1.0f));
    for (int i = 0; i < FMT_QDQ_GROUP; i++) assert_true(((code[i] & 0x7f) == 0x7f) == (i == 5));
    x[5] = 0x7f80;
    fmt_qdq_encode(x, code, &scale);
    assert_int_equal(scale, FMT_E8M0_NAN);
    assert_int_equal(fmt_qdq_decode(code[0], scale), 0x7fc0);
}

static void ulp_distance_counts_places_of_the_grid(void **state)
{
    (void)state;
    assert_int_equal(fmt_ulp_bf16(0x0000, 0x8000), 0);
    assert_int_equal(fmt_ulp_bf16(0x0001, 0x8001), 2);
    assert_int_equal(fmt_ulp_bf16(0x3f80, 0x3f81), 1);
    assert_int_equal(fmt_ulp_bf16(0x7f80, 0xff80), 2 * 0x7f80);
    assert_true(fmt_ulp_bf16(0x7fc0, 0x3f80) == UINT64_MAX && fmt_ulp_bf16(0x7fc0, 0x7fc1) == UINT64_MAX);
    assert_int_equal(fmt_ulp_bf16(0x7fc1, 0x7fc1), 0);
    assert_int_equal(fmt_ulp_f32(1.0f, nextafterf(1.0f, 2.0f)), 1);
    assert_int_equal(fmt_ulp_f32(-0.0f, 0.0f), 0);
    assert_int_equal(fmt_ulp_f32(-1e-45f, 1e-45f), 2);
    assert_int_equal(fmt_ulp_f32(INFINITY, -INFINITY), 2 * (uint64_t)0x7f800000);
    assert_true(fmt_ulp_f32(NAN, 1.0f) == UINT64_MAX);
    assert_int_equal(fmt_ulp_f32(f32_from_bits(0x7fc00000), f32_from_bits(0x7fc00000)), 0);
    for (uint32_t c = 0; c < 0x7f80; c++) assert_int_equal(fmt_ulp_bf16((bf16)c, (bf16)(c + 1)), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_search_for_the_nearest_code_tells_ties_and_neighbours_apart),
        cmocka_unit_test(every_bf16_code_survives_f32),
        cmocka_unit_test(bf16_rounds_to_nearest_even_between_all_neighbours),
        cmocka_unit_test(every_e4m3_code_has_its_value_and_comes_back),
        cmocka_unit_test(every_e2m1_code_has_its_value_and_comes_back),
        cmocka_unit_test(every_e8m0_code_is_its_power_of_two),
        cmocka_unit_test(every_tie_and_its_neighbours_round_as_defined),
        cmocka_unit_test(every_bf16_value_goes_to_the_nearest_small_code),
        cmocka_unit_test(out_of_range_saturates_and_nan_has_its_code),
        cmocka_unit_test(the_scale_is_right_next_to_every_power_of_two),
        cmocka_unit_test(the_scale_is_right_for_every_bf16_magnitude),
        cmocka_unit_test(a_group_is_coded_as_defined_and_coding_it_again_changes_nothing),
        cmocka_unit_test(decoding_is_exact_for_every_code_and_scale_that_coding_makes),
        cmocka_unit_test(a_group_with_nan_keeps_it_in_its_place),
        cmocka_unit_test(ulp_distance_counts_places_of_the_grid),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
