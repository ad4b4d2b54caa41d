/* The router: softplus on both sides of its threshold, selection with ties and NaN, weights without the bias. */
#include "kernels/gate.h"

#include "check.h"
#include "golden_ops.h"

enum { MAX_E = 128 };
static const krn_acc MODES[] = { KRN_ACC_BLOCKED, KRN_ACC_F64 };

static void scores_are_the_root_of_softplus(void **state)
{
    (void)state;
    for (float z = -60.0f; z < 60.0f; z += 0.37f) {
        float score;
        krn_gate_scores_ref(&z, &score, 1, 1);
        double exact = sqrt((double)z > 20 ? (double)z : log1p(exp((double)z)));
        assert_true(explained_f32(score, exact, 3 * U * exact));
    }
    const float at[4] = { 20.0f, 20.000002f, 1000.0f, NAN };
    float score[4];
    krn_gate_scores_ref(at, score, 2, 2);
    assert_true(score[0] == sqrtf((float)log1p((double)(float)exp(20.0))));
    assert_true(score[1] == sqrtf(20.000002f)); /* above 20 it is itself: exp would overflow further on */
    assert_true(score[2] == sqrtf(1000.0f));
    assert_true(isnan(score[3]));
}

/* Ids by sorting all pairs, literally. */
static void topk_literal(const float *scores, const float *bias, int n, int k, int32_t *ids)
{
    bool taken[MAX_E] = { false };
    for (int j = 0; j < k; j++) {
        int best = -1;
        for (int pass = 0; pass < 2 && best < 0; pass++) { /* numbers first, then NaN */
            for (int e = 0; e < n; e++) {
                float sel = scores[e] + bias[e];
                if (taken[e] || (isnan(sel) != 0) != (pass == 1)) continue;
                if (best < 0 || sel > scores[best] + bias[best]) best = e;
            }
        }
        taken[best] = true;
        ids[j] = best;
    }
}

static void ids_match_a_full_sort_with_ties_and_nan(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 300; seed++) {
        float scores[MAX_E], bias[MAX_E], weights[MAX_E];
        int32_t ids[MAX_E], want[MAX_E];
        int n = 1 + (int)(seed % MAX_E), k = 1 + (int)(seed % 7) % n;
        if (seed % 10 == 0) k = n;
        for (int e = 0; e < n; e++) {
            scores[e] = roundf(input_f32(seed, e) * 8); /* many ties */
            bias[e] = roundf(input_f32(seed + 500, e) * 4);
            float kind = input_f32(seed + 900, e);
            if (seed % 3 == 1 && kind > 0.5f) scores[e] = NAN;
            if (seed % 3 == 1 && kind < -0.8f) scores[e] = -INFINITY;
        }
        krn_gate_topk_ref(scores, bias, 1, n, k, 1.5f, ids, weights, KRN_ACC_F64);
        topk_literal(scores, bias, n, k, want);
        for (int j = 0; j < k; j++) assert_int_equal(ids[j], want[j]);
    }
}

static void equal_scores_take_the_lowest_ids(void **state)
{
    (void)state;
    float scores[MAX_E], bias[MAX_E] = { 0 }, weights[3];
    int32_t ids[3];
    for (int e = 0; e < MAX_E; e++) scores[e] = 2;
    krn_gate_topk_ref(scores, bias, 1, MAX_E, 3, 1.5f, ids, weights, KRN_ACC_BLOCKED);
    for (int j = 0; j < 3; j++) {
        assert_int_equal(ids[j], j);
        assert_true(weights[j] == 0.5f);
    }
}

static void nan_scores_leave_ids_distinct_and_in_range(void **state)
{
    (void)state;
    float scores[16], bias[16] = { 0 }, weights[6];
    int32_t ids[6];
    for (int e = 0; e < 16; e++) scores[e] = NAN;
    krn_gate_topk_ref(scores, bias, 1, 16, 6, 1.5f, ids, weights, KRN_ACC_F64);
    for (int j = 0; j < 6; j++) assert_int_equal(ids[j], j);
    scores[9] = -INFINITY;
    krn_gate_topk_ref(scores, bias, 1, 16, 6, 1.5f, ids, weights, KRN_ACC_F64);
    assert_int_equal(ids[0], 9); /* any number comes before NaN */
    assert_int_equal(ids[1], 0);
}

static void bias_selects_but_is_no_weight(void **state)
{
    (void)state;
    const float scores[4] = { 1, 2, 3, 4 }, bias[4] = { 10, 0, 0, 0 };
    for (int m = 0; m < 2; m++) {
        float w[2];
        int32_t ids[2];
        krn_gate_topk_ref(scores, bias, 1, 4, 2, 1.5f, ids, w, MODES[m]);
        assert_int_equal(ids[0], 0);
        assert_int_equal(ids[1], 3);
        assert_true(w[0] == 1.0f / 5.0f * 1.5f && w[1] == 4.0f / 5.0f * 1.5f);
        const float zero[4] = { 0 };
        krn_gate_topk_ref(zero, bias, 1, 4, 2, 1.5f, ids, w, MODES[m]);
        assert_true(w[0] == 0.0f && w[1] == 0.0f); /* 1e-20 keeps 0 / 0 away */
    }
}

static void weights_lie_within_the_bound_and_rows_are_independent(void **state)
{
    (void)state;
    enum { ROWS = 6, N = 40, K = 5 };
    float scores[ROWS * N], bias[N], w[ROWS * K], one_w[K];
    int32_t ids[ROWS * K], one[K];
    for (int i = 0; i < ROWS * N; i++) scores[i] = fabsf(input_f32(3, i)) * 3;
    fill_f32(bias, N, 4, 1.0f);
    for (int m = 0; m < 2; m++) {
        krn_gate_topk_ref(scores, bias, ROWS, N, K, 1.5f, ids, w, MODES[m]);
        for (int r = 0; r < ROWS; r++) {
            double total = 1e-20;
            for (int j = 0; j < K; j++) total += (double)scores[r * N + ids[r * K + j]];
            for (int j = 0; j < K; j++) {
                double exact = (double)scores[r * N + ids[r * K + j]] / total * 1.5;
                assert_true(explained_f32(w[r * K + j], exact, (K + 3) * U * exact));
            }
            krn_gate_topk_ref(scores + r * N, bias, 1, N, K, 1.5f, one, one_w, MODES[m]);
            assert_memory_equal(ids + r * K, one, sizeof one);
            assert_f32_same(w + r * K, one_w, K);
        }
    }
}

static void golden(void **state)
{
    (void)state;
    float scores[5 * 16], bias[16], weights[15];
    int32_t ids[15];
    fill_f32(scores, 5 * 16, 13, 25.0f);
    fill_f32(bias, 16, 14, 0.5f);
    krn_gate_scores_ref(scores, scores, 5, 16);
    krn_gate_topk_ref(scores, bias, 5, 16, 3, 1.5f, ids, weights, KRN_ACC_F64);
    assert_true(hash_bytes(scores, sizeof scores) == GOLDEN_GATE_SCORES);
    assert_true(hash_bytes(ids, sizeof ids) == GOLDEN_GATE_IDS);
    assert_true(hash_bytes(weights, sizeof weights) == GOLDEN_GATE_WEIGHTS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scores_are_the_root_of_softplus),
        cmocka_unit_test(ids_match_a_full_sort_with_ties_and_nan),
        cmocka_unit_test(equal_scores_take_the_lowest_ids),
        cmocka_unit_test(nan_scores_leave_ids_distinct_and_in_range),
        cmocka_unit_test(bias_selects_but_is_no_weight),
        cmocka_unit_test(weights_lie_within_the_bound_and_rows_are_independent),
        cmocka_unit_test(golden),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
