/* krn_swiglu_ref: which branch is clamped where, the ends of exp, the place of the routing weight. */
#include "kernels/swiglu.h"

#include "check.h"
#include "golden_ops.h"

static bf16 swiglu_one(float g, float u)
{
    bf16 gb = bf16_from_f32(g), ub = bf16_from_f32(u), h;
    krn_swiglu_ref(&gb, &ub, NULL, 10.0f, &h, 1, 1);
    return h;
}

static bf16 silu_times(float g, float u)
{
    float e = (float)exp((double)-g), silu = g / (1.0f + e);
    return bf16_from_f32(silu * u);
}

static void clamps_act_before_the_product(void **state)
{
    (void)state;
    assert_int_equal(swiglu_one(12, -15), silu_times(10, -10));
    assert_int_equal(swiglu_one(12, 15), silu_times(10, 10));
    assert_int_equal(swiglu_one(12, 0.5f), silu_times(10, 0.5f));
    assert_int_equal(swiglu_one(-15, 3), silu_times(-15, 3)); /* no lower clamp of the gate */
    assert_int_equal(swiglu_one(-15, -15), silu_times(-15, -10));
    assert_int_equal(swiglu_one(9.9375f, 9.9375f), silu_times(9.9375f, 9.9375f));
}

static void ends_of_exp_and_nan(void **state)
{
    (void)state;
    assert_int_equal(swiglu_one(-1e30f, 1), 0x8000);
    assert_int_equal(swiglu_one(-1e30f, -1), 0);
    assert_int_equal(swiglu_one(INFINITY, INFINITY), silu_times(10, 10));
    assert_true(isnan(f32_from_bf16(swiglu_one(NAN, 1))));
    assert_true(isnan(f32_from_bf16(swiglu_one(1, NAN))));
    assert_int_equal(swiglu_one(0, 5), 0);
}

static void routed_rows_lie_within_the_bound(void **state)
{
    (void)state;
    enum { ROWS = 6, COLS = 96, N = ROWS * COLS };
    bf16 g[N], u[N], h[N], shared[N], row[COLS];
    float w[ROWS];
    fill_bf16(g, N, 1, 14.0f);
    fill_bf16(u, N, 2, 14.0f);
    fill_f32(w, ROWS, 3, 1.0f);
    krn_swiglu_ref(g, u, w, 10.0f, h, ROWS, COLS);
    krn_swiglu_ref(g, u, NULL, 10.0f, shared, ROWS, COLS);
    int rounded_early = 0;
    for (int i = 0; i < N; i++) {
        double gate = fmin((double)f32_from_bf16(g[i]), 10), up = fmin(fmax((double)f32_from_bf16(u[i]), -10), 10);
        double exact = gate / (1 + exp(-gate)) * up;
        assert_true(explained_bf16(shared[i], exact, 5 * 2 * U * fabs(exact)));
        exact *= (double)w[i / COLS];
        assert_true(explained_bf16(h[i], exact, 5 * 2 * U * fabs(exact)));
        rounded_early += h[i] != bf16_from_f32(w[i / COLS] * f32_from_bf16(shared[i]));
    }
    assert_true(rounded_early > N / 20); /* bf16 before the weight would have been seen */
    for (int r = 0; r < ROWS; r++) {
        krn_swiglu_ref(g + r * COLS, u + r * COLS, w + r, 10.0f, row, 1, COLS);
        assert_bf16_same(h + r * COLS, row, COLS);
    }
    krn_swiglu_ref(g, u, w, 10.0f, g, ROWS, COLS);
    assert_bf16_same(g, h, N);
}

static void golden(void **state)
{
    (void)state;
    bf16 g[4 * 96], u[4 * 96];
    float w[4];
    fill_bf16(g, 4 * 96, 15, 20.0f);
    fill_bf16(u, 4 * 96, 16, 20.0f);
    fill_f32(w, 4, 17, 1.0f);
    krn_swiglu_ref(g, u, w, 10.0f, u, 4, 96);
    assert_true(hash_bytes(u, sizeof u) == GOLDEN_SWIGLU);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clamps_act_before_the_product),
        cmocka_unit_test(ends_of_exp_and_nan),
        cmocka_unit_test(routed_rows_lie_within_the_bound),
        cmocka_unit_test(golden),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
