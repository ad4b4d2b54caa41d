/* krn_sum_ranks_ref: rank order, spans, one rank. */
#include "kernels/reduce.h"

#include "check.h"

static void ranks_are_added_in_order(void **state)
{
    (void)state;
    const float a[1] = { 0x1p24f }, b[1] = { 1 }, c[1] = { -0x1p24f };
    const float *const abc[3] = { a, b, c }, *const acb[3] = { a, c, b };
    float out;
    krn_sum_ranks_ref(abc, 3, 0, 1, &out);
    assert_true(out == 0.0f);
    krn_sum_ranks_ref(acb, 3, 0, 1, &out);
    assert_true(out == 1.0f);
}

static void one_rank_is_a_copy_of_the_bits(void **state)
{
    (void)state;
    const float a[3] = { -0.0f, 1.5f, INFINITY };
    const float *const parts[1] = { a };
    float out[3] = { 1, 1, 1 };
    krn_sum_ranks_ref(parts, 1, 0, 3, out);
    assert_f32_same(out, a, 3);
}

static void spans_of_any_cut_make_the_whole(void **state)
{
    (void)state;
    enum { N = 37 };
    float a[N], b[N], whole[N], pieces[N];
    fill_f32(a, N, 1, 3.0f);
    fill_f32(b, N, 2, 3.0f);
    const float *const parts[2] = { a, b };
    krn_sum_ranks_ref(parts, 2, 0, N, whole);
    for (int i = 0; i < N; i++) assert_true(whole[i] == a[i] + b[i]);
    for (int cut = 0; cut <= N; cut++) {
        for (int i = 0; i < N; i++) pieces[i] = 99;
        krn_sum_ranks_ref(parts, 2, 0, cut, pieces);
        for (int i = cut; i < N; i++) assert_true(pieces[i] == 99.0f); /* nothing outside the span */
        krn_sum_ranks_ref(parts, 2, cut, N - cut, pieces);
        assert_f32_same(pieces, whole, N);
    }
    krn_sum_ranks_ref(parts, 2, 0, N, a); /* onto the first part */
    assert_f32_same(a, whole, N);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_are_added_in_order),
        cmocka_unit_test(one_rank_is_a_copy_of_the_bits),
        cmocka_unit_test(spans_of_any_cut_make_the_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
