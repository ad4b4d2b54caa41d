/* Argmax, its merge over ranks, and the n best. */
#include "kernels/argmax.h"

#include "check.h"

static void ties_go_to_the_lower_id(void **state)
{
    (void)state;
    const float v[5] = { 1, 3, -0.0f, 3, 3 };
    assert_int_equal(krn_argmax_ref(v, 5, 100).id, 101);
    const float zeros[3] = { -1, -0.0f, 0.0f };
    assert_int_equal(krn_argmax_ref(zeros, 3, 0).id, 1); /* -0 equals +0 */
    assert_int_equal(krn_best_of((krn_best){ 2, 9 }, (krn_best){ 2, 4 }).id, 4);
}

static void nan_never_wins(void **state)
{
    (void)state;
    const float v[4] = { NAN, -INFINITY, NAN, NAN }, none[2] = { NAN, NAN };
    assert_int_equal(krn_argmax_ref(v, 4, 10).id, 11);
    assert_int_equal(krn_argmax_ref(none, 2, 10).id, 10);
    assert_true(isnan(krn_argmax_ref(none, 2, 10).value));
    krn_best low = { -INFINITY, 7 }, nan = { NAN, 3 }, nan2 = { NAN, 2 };
    assert_int_equal(krn_best_of(low, nan).id, 7);
    assert_int_equal(krn_best_of(nan, low).id, 7);
    assert_int_equal(krn_best_of(nan, nan2).id, 2);
    assert_int_equal(krn_best_of(nan2, nan).id, 2);
}

static void a_cut_vocabulary_gives_the_same_token(void **state)
{
    (void)state;
    enum { N = 60 };
    for (uint64_t seed = 0; seed < 50; seed++) {
        float v[N];
        for (int i = 0; i < N; i++) {
            v[i] = roundf(input_f32(seed, i) * 4);
            if (seed % 2 && input_f32(seed + 99, i) > 0.3f) v[i] = NAN;
        }
        krn_best whole = krn_argmax_ref(v, N, 0);
        for (int cut = 0; cut <= N; cut++) { /* a rank may hold nothing */
            krn_best a = krn_argmax_ref(v, cut, 0), b = krn_argmax_ref(v + cut, N - cut, cut);
            assert_int_equal(krn_best_of(a, b).id, whole.id);
            assert_int_equal(krn_best_of(b, a).id, whole.id);
        }
    }
}

static void the_n_best_match_repeated_search(void **state)
{
    (void)state;
    enum { N = 90 };
    for (uint64_t seed = 0; seed < 60; seed++) {
        float v[N], left[N], values[N];
        int32_t ids[N];
        bool taken[N] = { false };
        int n = 1 + (int)(seed * 3 % N), k = seed % 4 ? 1 + (int)(seed % (uint64_t)n) : n;
        for (int i = 0; i < n; i++) {
            left[i] = v[i] = roundf(input_f32(seed, i) * 9);
            if (seed % 3 == 1 && input_f32(seed + 99, i) > 0.2f) left[i] = v[i] = NAN;
        }
        krn_topn_ref(v, n, k, ids, values);
        for (int j = 0; j < k; j++) {
            int best = -1;
            for (int i = 0; i < n; i++)
                if (!taken[i] && !isnan(left[i]) && (best < 0 || left[i] > left[best])) best = i;
            for (int i = 0; i < n && best < 0; i++)
                if (!taken[i]) best = i; /* only NaN is left */
            taken[best] = true;
            assert_int_equal(ids[j], best);
            assert_int_equal(f32_bits(values[j]), f32_bits(v[best]));
        }
        assert_int_equal(ids[0], krn_argmax_ref(v, n, 0).id);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ties_go_to_the_lower_id),
        cmocka_unit_test(nan_never_wins),
        cmocka_unit_test(a_cut_vocabulary_gives_the_same_token),
        cmocka_unit_test(the_n_best_match_repeated_search),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
