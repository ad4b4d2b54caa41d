/* The comparisons of check.h can fail. */
#include "check.h"

static void one_flipped_bit_is_counted(void **state)
{
    (void)state;
    bf16 a[3] = { 0x3f80, 0x3f81, 0x7fc0 }, b[3] = { 0x3f80, 0x3f80, 0x7fc0 };
    float c[2] = { 1.0f, 0.0f }, d[2] = { 1.0f, -0.0f };
    assert_int_equal(differ_bf16("planted", a, b, 3), 1);
    assert_int_equal(differ_bf16("planted", a, a, 3), 0);
    assert_int_equal(differ_f32("planted", c, d, 2), 1);
    assert_int_equal(differ_f32("planted", c, c, 2), 0);
}

static void two_ulps_and_nan_are_not_explained(void **state)
{
    (void)state;
    assert_true(explained_bf16(0x3f80, 1.0, 0));
    assert_true(explained_bf16(0x3f81, 1.0, 0x1p-8 + 0x1p-20)); /* the tie between 1 and its neighbour lies at 2^-8 */
    assert_false(explained_bf16(0x3f81, 1.0, 1e-3));
    assert_false(explained_bf16(0x3f82, 1.0, 0x1p-8 + 0x1p-20));
    assert_false(explained_bf16(0x7fc0, 1.0, 1e9));
    assert_false(explained_bf16(0x3f80, NAN, 1e9));
    assert_true(explained_f32(1.0f, 1.0, 0));
    assert_false(explained_f32(1.0f + 0x1p-22f, 1.0, 0x1p-24));
    assert_false(explained_f32(NAN, 1.0, 1e9));
}

static void inputs_fill_their_range(void **state)
{
    (void)state;
    float low = 1, high = -1;
    for (int i = 0; i < 1000; i++) {
        float v = input_f32(1, i);
        assert_true(v >= -1.0f && v < 1.0f);
        low = fminf(low, v);
        high = fmaxf(high, v);
    }
    assert_true(low < -0.98f && high > 0.98f);
    assert_true(input_f32(1, 0) != input_f32(2, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_flipped_bit_is_counted),
        cmocka_unit_test(two_ulps_and_nan_are_not_explained),
        cmocka_unit_test(inputs_fill_their_range),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
