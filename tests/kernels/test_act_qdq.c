/* krn_act_qdq_ref against a literal reference, at the steps of the scale, and on the values other code gets wrong. */
#include "kernels/act_qdq.h"

#include "check.h"
#include "golden_ops.h"

/* Nearest e4m3 value by looking at all of them; an exact tie goes to the even code. */
static double nearest_e4m3(double v)
{
    double best = 0, best_distance = INFINITY;
    for (int code = 0; code < 127; code++) {
        double value = code < 8 ? code * 0x1p-9 : ldexp(1 + (code & 7) / 8.0, (code >> 3) - 7);
        double distance = fabs(fabs(v) - value);
        if (distance < best_distance || (distance == best_distance && code % 2 == 0)) {
            best = value;
            best_distance = distance;
        }
    }
    return copysign(best, v);
}

static void qdq_literal(const bf16 *x, bf16 *y)
{
    float amax = 1e-4f;
    for (int i = 0; i < 32; i++) amax = fmaxf(amax, fabsf(f32_from_bf16(x[i])));
    float t = amax * (float)(1.0 / 448.0);
    double scale = 0x1p-40;
    while (scale < (double)t) scale *= 2;
    for (int i = 0; i < 32; i++) {
        double v = (double)f32_from_bf16(x[i]) / scale;
        if (v > 448) v = 448;
        if (v < -448) v = -448;
        y[i] = bf16_from_f32((float)(nearest_e4m3(v) * scale));
    }
}

static void values_match_the_literal_reference(void **state)
{
    (void)state;
    for (int exponent = -24; exponent <= 18; exponent++) {
        bf16 x[96], y[96], want[96];
        fill_bf16(x, 96, (uint64_t)(exponent + 100), ldexpf(1.0f, exponent));
        x[40] = bf16_from_f32(280576.0f); /* a tap's outlier channel beside ordinary ones */
        for (int g = 0; g < 3; g++) qdq_literal(x + 32 * g, want + 32 * g);
        krn_act_qdq_ref(x, 96, y, 96, 1, 96);
        assert_bf16_same(y, want, 96);
    }
}

/* 2^k * 2^-9 is the smallest code under scale 2^k and a tie that falls to zero under 2^(k+1): it shows the scale. */
static void scale_steps_just_above_448_times_a_power_of_two(void **state)
{
    (void)state;
    for (int k = -20; k <= 20; k++) {
        for (int neighbour = -1; neighbour <= 1; neighbour++) {
            bf16 x[32] = { 0 }, y[32];
            x[7] = (bf16)(bf16_from_f32(ldexpf(448.0f, k)) + neighbour);
            x[8] = bf16_from_f32(ldexpf(1.0f, k - 9));
            krn_act_qdq_ref(x, 32, y, 32, 1, 32);
            if (neighbour == 0) assert_int_equal(y[7], x[7]);
            assert_int_equal(y[8], neighbour <= 0 ? x[8] : 0);
        }
    }
}

static void amax_has_a_floor(void **state)
{
    (void)state;
    bf16 x[32] = { 0 }, y[32];
    krn_act_qdq_ref(x, 32, y, 32, 1, 32);
    assert_bf16_same(y, x, 32);
    x[0] = bf16_from_f32(0x1p-31f); /* the smallest code under the floor's scale 2^-22 */
    x[1] = bf16_from_f32(0x1p-33f);
    krn_act_qdq_ref(x, 32, y, 32, 1, 32);
    assert_int_equal(y[0], x[0]);
    assert_int_equal(y[1], 0);
}

static void a_second_pass_changes_nothing(void **state)
{
    (void)state;
    bf16 x[1024], once[1024], twice[1024];
    fill_bf16(x, 1024, 3, 7.0f);
    krn_act_qdq_ref(x, 1024, once, 1024, 1, 1024);
    krn_act_qdq_ref(once, 1024, twice, 1024, 1, 1024);
    assert_bf16_same(twice, once, 1024);
    assert_true(memcmp(x, once, sizeof x) != 0);
}

static void signs_of_zero_are_kept_and_nan_stays_alone(void **state)
{
    (void)state;
    bf16 x[32], y[32], clean[32];
    fill_bf16(x, 32, 4, 1.0f);
    x[3] = 0x8000;
    x[5] = 0;
    krn_act_qdq_ref(x, 32, clean, 32, 1, 32);
    assert_int_equal(clean[3], 0x8000);
    x[5] = 0x7fc0;
    krn_act_qdq_ref(x, 32, y, 32, 1, 32);
    assert_true(isnan(f32_from_bf16(y[5])));
    y[5] = clean[5];
    assert_bf16_same(y, clean, 32);
}

static void strides_and_in_place(void **state)
{
    (void)state;
    bf16 x[3 * 80], want[3 * 64], y[3 * 70];
    fill_bf16(x, 3 * 80, 5, 2.0f);
    memset(y, 0xa5, sizeof y);
    for (int r = 0; r < 3; r++) krn_act_qdq_ref(x + r * 80, 64, want + r * 64, 64, 1, 64);
    krn_act_qdq_ref(x, 80, y, 70, 3, 64);
    for (int r = 0; r < 3; r++) {
        assert_bf16_same(y + r * 70, want + r * 64, 64);
        for (int c = 64; c < 70; c++) assert_int_equal(y[r * 70 + c], 0xa5a5);
    }
    krn_act_qdq_ref(x, 80, x, 80, 3, 64);
    for (int r = 0; r < 3; r++) assert_bf16_same(x + r * 80, want + r * 64, 64);
}

static void rows_do_not_see_each_other_when_threaded(void **state)
{
    (void)state;
    enum { ROWS = 40, COLS = 2048 };
    static bf16 x[ROWS * COLS], y[ROWS * COLS], row[COLS];
    fill_bf16(x, ROWS * COLS, 6, 100.0f);
    krn_act_qdq_ref(x, COLS, y, COLS, ROWS, COLS);
    for (int r = 0; r < ROWS; r++) {
        krn_act_qdq_ref(x + r * COLS, COLS, row, COLS, 1, COLS);
        assert_bf16_same(y + r * COLS, row, COLS);
    }
}

static void golden(void **state)
{
    (void)state;
    bf16 x[4096];
    for (int i = 0; i < 4096; i++) x[i] = bf16_from_f32(input_f32(1, i) * (float)exp2((i / 32 - 64) / 4.0));
    krn_act_qdq_ref(x, 128, x, 128, 32, 128);
    assert_true(hash_bytes(x, sizeof x) == GOLDEN_ACT_QDQ);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_match_the_literal_reference),
        cmocka_unit_test(scale_steps_just_above_448_times_a_power_of_two),
        cmocka_unit_test(amax_has_a_floor),
        cmocka_unit_test(a_second_pass_changes_nothing),
        cmocka_unit_test(signs_of_zero_are_kept_and_nan_stays_alone),
        cmocka_unit_test(strides_and_in_place),
        cmocka_unit_test(rows_do_not_see_each_other_when_threaded),
        cmocka_unit_test(golden),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
