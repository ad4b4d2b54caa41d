/* krn_top_rows against its definition, whole and cut into shards. */
#include "kernels/top_rows.h"

#include "check.h"

#include <math.h>
#include <string.h>

enum { ROWS = 3, COLS = 500 };

static void fill(float *x, uint32_t seed, uint32_t levels)
{
    for (int i = 0; i < ROWS * COLS; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 8 & 0xffff) / 256.0f;
        if (levels) x[i] = (float)((seed >> 8) % levels);
    }
}

/* The definition, slowly: how many columns come before column c. */
static int place(const float *row, int c)
{
    int n = 0;
    for (int i = 0; i < COLS; i++) {
        bool first = row[i] > row[c] || (isnan(row[c]) && !isnan(row[i]));
        bool equal = row[i] == row[c] || (isnan(row[i]) && isnan(row[c]));
        n += first || (equal && i < c);
    }
    return n;
}

static void check(const float *x, int32_t k, int32_t cut)
{
    float whole[ROWS * COLS], left[ROWS * COLS], right[ROWS * COLS], values[ROWS * KRN_TOP_ROWS];
    int32_t ids[ROWS * KRN_TOP_ROWS];
    memcpy(whole, x, sizeof whole);
    for (int r = 0; r < ROWS; r++) {
        memcpy(left + r * cut, x + r * COLS, (size_t)cut * sizeof *x);
        memcpy(right + r * (COLS - cut), x + r * COLS + cut, (size_t)(COLS - cut) * sizeof *x);
    }
    const float *one[] = { whole }, *two[] = { left, right };
    const int64_t one_cols[] = { COLS }, two_cols[] = { cut, COLS - cut };
    for (int shards = 1; shards <= 2; shards++) {
        krn_top_rows(shards == 1 ? one : two, shards == 1 ? one_cols : two_cols, shards, ROWS, k, values, ids);
        for (int r = 0; r < ROWS; r++)
            for (int32_t i = 0; i < k; i++) {
                int32_t id = ids[r * k + i];
                assert_in_range(id, 0, COLS - 1);
                assert_int_equal(place(x + r * COLS, id), i);
                assert_int_equal(f32_bits(values[r * k + i]), f32_bits(x[r * COLS + id]));
            }
    }
}

static void the_largest_come_first_over_any_cut(void **state)
{
    float x[ROWS * COLS];
    (void)state;
    fill(x, 1, 0);
    check(x, 64, 256);
    check(x, 1, 1);
    check(x, 10, 499);
}

static void equal_values_keep_the_order_of_ids(void **state)
{
    float x[ROWS * COLS];
    (void)state;
    fill(x, 2, 3);
    check(x, 64, 100);
    fill(x, 3, 1);
    check(x, 64, 100);
}

static void nan_comes_after_every_number(void **state)
{
    float x[ROWS * COLS];
    (void)state;
    fill(x, 4, 0);
    for (int i = 0; i < ROWS * COLS; i += 2) x[i] = NAN;
    x[1] = -INFINITY;
    check(x, 64, 100);
    for (int i = 0; i < ROWS * COLS; i++)
        if (i % COLS > 10) x[i] = NAN;
    check(x, 64, 100);
}

static void zeros_of_both_signs_are_equal_and_infinities_are_ends(void **state)
{
    float x[ROWS * COLS];
    (void)state;
    for (int i = 0; i < ROWS * COLS; i++) x[i] = i % 3 == 0 ? -0.0f : i % 3 == 1 ? 0.0f : -INFINITY;
    check(x, 64, 100);
    for (int i = 0; i < ROWS * COLS; i += 9) x[i] = i % 2 ? INFINITY : NAN;
    check(x, 64, 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_largest_come_first_over_any_cut), cmocka_unit_test(equal_values_keep_the_order_of_ids),
        cmocka_unit_test(nan_comes_after_every_number),
        cmocka_unit_test(zeros_of_both_signs_are_equal_and_infinities_are_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
