/* The combine's two modes and the element-wise ops. */
#include "kernels/combine.h"

#include "check.h"

/* 2^24 + 1 - 2^24 in f32: 0 from left to right, 1 when the large terms meet first. */
static void experts_are_added_in_ascending_id(void **state)
{
    (void)state;
    const float slot[3] = { 1, -0x1p24f, 0x1p24f }, shared[1] = { 0 };
    const int32_t ids[3] = { 9, 4, 2 }, other[3] = { 5, 7, 2 }; /* 2^24, -2^24, 1 and 2^24, 1, -2^24 */
    bf16 y;
    float f;
    krn_combine_exact_ref(slot, ids, shared, &y, 1, 3, 1);
    krn_combine_fused_ref(slot, ids, shared, &f, 1, 3, 1);
    assert_true(f32_from_bf16(y) == 1.0f && f == 1.0f);
    krn_combine_exact_ref(slot, other, shared, &y, 1, 3, 1);
    krn_combine_fused_ref(slot, other, shared, &f, 1, 3, 1);
    assert_true(f32_from_bf16(y) == 0.0f && f == 0.0f);
}

static void exact_rounds_every_expert_and_fused_none(void **state)
{
    (void)state;
    /* Each lies a quarter ulp above 1 in bf16: rounded they vanish, together they make one ulp. */
    const float slot[3] = { 1 + 0x1p-9f, 1 + 0x1p-9f, 1 + 0x1p-9f }, shared[1] = { 1 + 0x1p-9f };
    const int32_t ids[3] = { 2, 0, 1 };
    bf16 y;
    float f;
    krn_combine_exact_ref(slot, ids, shared, &y, 1, 3, 1);
    krn_combine_fused_ref(slot, ids, shared, &f, 1, 3, 1);
    assert_true(f32_from_bf16(y) == 4.0f);
    assert_true(f == 4 + 0x1p-7f);
}

static void both_modes_match_a_literal_loop(void **state)
{
    (void)state;
    enum { ROWS = 4, K = 3, DIM = 600 }; /* more than two pieces of the twin's stack buffer */
    static float slot[ROWS * K * DIM], shared[ROWS * DIM], fused[ROWS * DIM], want_f[ROWS * DIM];
    static bf16 exact[ROWS * DIM], want[ROWS * DIM];
    const int32_t ids[ROWS * K] = { 0, 1, 2, 7, 3, 5, 120, 4, 11, 6, 127, 0 };
    const int ascending[ROWS * K] = { 0, 1, 2, 1, 2, 0, 1, 2, 0, 2, 0, 1 };
    fill_f32(slot, ROWS * K * DIM, 1, 3.0f);
    fill_f32(shared, ROWS * DIM, 2, 3.0f);
    for (int r = 0; r < ROWS; r++) {
        for (int d = 0; d < DIM; d++) {
            float rounded = 0, plain = 0;
            for (int j = 0; j < K; j++) {
                float v = slot[(r * K + ascending[r * K + j]) * DIM + d];
                rounded += f32_from_bf16(bf16_from_f32(v));
                plain += v;
            }
            rounded += f32_from_bf16(bf16_from_f32(shared[r * DIM + d]));
            want[r * DIM + d] = bf16_from_f32(rounded);
            want_f[r * DIM + d] = plain + shared[r * DIM + d];
        }
    }
    krn_combine_exact_ref(slot, ids, shared, exact, ROWS, K, DIM);
    krn_combine_fused_ref(slot, ids, shared, fused, ROWS, K, DIM);
    assert_bf16_same(exact, want, ROWS * DIM);
    assert_f32_same(fused, want_f, ROWS * DIM);
}

static void rounding_goes_to_even_and_nan_is_quiet(void **state)
{
    (void)state;
    const float x[5] = { 1 + 0x1p-8f, 1 + 3 * 0x1p-8f, -0.0f, 3.4e38f * 1.0001f, NAN };
    const bf16 want[5] = { 0x3f80, 0x3f82, 0x8000, 0x7f80, 0x7fc0 };
    bf16 y[6] = { 0, 0, 0, 0, 0, 0xa5a5 };
    krn_round_bf16_ref(x, y, 5);
    assert_bf16_same(y, want, 5);
    assert_int_equal(y[5], 0xa5a5);
}

static void addition_is_plain_f32_and_in_place(void **state)
{
    (void)state;
    float a[3] = { 1, 0x1p24f, -0.0f }, b[3] = { 2, 1, -0.0f };
    const float want[3] = { 3, 0x1p24f, -0.0f };
    krn_add_f32_ref(a, b, a, 3);
    assert_f32_same(a, want, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_are_added_in_ascending_id),
        cmocka_unit_test(exact_rounds_every_expert_and_fused_none),
        cmocka_unit_test(both_modes_match_a_literal_loop),
        cmocka_unit_test(rounding_goes_to_even_and_nan_is_quiet),
        cmocka_unit_test(addition_is_plain_f32_and_in_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
