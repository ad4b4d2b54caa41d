/* krn_gate_scores inside its bound; krn_gate_topk with the blocked twin's bits whatever the scores are. */
#include "kernels/gate.h"

#include "gpu.h"

#include <stdlib.h>

static const double U = 0x1p-24;

/* ---- scores ---- */

static void run_scores(const float *logits, float *scores, int32_t rows, int32_t n_experts)
{
    err e = { 0 };
    size_t bytes = (size_t)rows * (size_t)n_experts * sizeof(float);
    const float *in = gpu_put(logits, bytes);
    float *out = gpu_out(bytes);
    gpu_ok(krn_gate_scores(in, out, rows, n_experts, gpu_stream(), &e), &e);
    gpu_get(out, scores, bytes);
    gpu_free_all();
}

static void judge_scores(gpu_tally *t, const float *logits, const float *scores, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        double z = (double)logits[i], exact = sqrt(z > 20 ? z : log1p(exp(z)));
        gpu_judge_f32(t, i, exact, 3 * U * exact, scores[i]);
    }
}

enum { SCORE_ROWS = 128, SCORE_EXPERTS = 128, N_SCORES = SCORE_ROWS * SCORE_EXPERTS };
static float logits[N_SCORES], scores[N_SCORES];

static void scores_lie_within_the_bound(void **state)
{
    (void)state;
    gpu_tally t = { .label = "gate scores" };
    gpu_fill_f32(logits, N_SCORES, 1, 8.0f);
    run_scores(logits, scores, SCORE_ROWS, SCORE_EXPERTS);
    judge_scores(&t, logits, scores, N_SCORES);
    for (int i = 0; i < N_SCORES; i++) logits[i] = -87.0f + 110.0f * (float)i / N_SCORES; /* to both sides of 20 */
    run_scores(logits, scores, SCORE_ROWS, SCORE_EXPERTS);
    judge_scores(&t, logits, scores, N_SCORES);
    gpu_tally_end(&t, 0.5);
}

static void extreme_logits_give_their_limits(void **state)
{
    (void)state;
    const float z[8] = { -INFINITY, -3e38f, -200, INFINITY, 3e38f, nextafterf(20, 30), NAN, -NAN };
    const float wanted[6] = { 0, 0, 0, INFINITY, sqrtf(3e38f), sqrtf(nextafterf(20, 30)) };
    float got[8];
    run_scores(z, got, 1, 8);
    gpu_same("limits", got, wanted, 6, sizeof(float));
    assert_true(isnan(got[6]) && isnan(got[7]));
}

static void the_judge_of_scores_refuses_a_few_ulps(void **state)
{
    (void)state;
    gpu_tally t = { .label = "perturbed scores" };
    gpu_fill_f32(logits, N_SCORES, 2, 8.0f);
    run_scores(logits, scores, SCORE_ROWS, SCORE_EXPERTS);
    for (int i = 0; i < N_SCORES; i++) scores[i] += 8 * (float)U * scores[i];
    judge_scores(&t, logits, scores, N_SCORES);
    assert_true(t.illegal > N_SCORES / 2);
}

/* ---- topk ---- */

typedef struct choice {
    int32_t rows, n_experts, k;
    float *scores, *bias, *weights;
    int32_t *ids;
} choice;

static choice choice_open(int32_t rows, int32_t n_experts, int32_t k)
{
    choice c = { rows, n_experts, k, NULL, NULL, NULL, NULL };
    c.scores = calloc((size_t)rows * (size_t)n_experts, sizeof(float));
    c.bias = calloc((size_t)n_experts, sizeof(float));
    c.weights = calloc((size_t)rows * (size_t)k, sizeof(float));
    c.ids = calloc((size_t)rows * (size_t)k, sizeof(int32_t));
    assert_true(c.scores && c.bias && c.weights && c.ids);
    return c;
}

static void choice_close(choice *c)
{
    free(c->scores);
    free(c->bias);
    free(c->weights);
    free(c->ids);
}

static void run_topk(choice *c)
{
    err e = { 0 };
    size_t in = (size_t)c->rows * (size_t)c->n_experts * 4, picked = (size_t)c->rows * (size_t)c->k * 4;
    const float *s = gpu_put(c->scores, in), *bias = gpu_put(c->bias, (size_t)c->n_experts * 4);
    int32_t *ids = gpu_out(picked);
    float *weights = gpu_out(picked);
    gpu_ok(krn_gate_topk(s, bias, c->rows, c->n_experts, c->k, 1.5f, ids, weights, gpu_stream(), &e), &e);
    gpu_get(ids, c->ids, picked);
    gpu_get(weights, c->weights, picked);
    gpu_free_all();
}

/* NaN weights are alike, whatever their bits. */
static void unify_nan(float *v, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (isnan(v[i])) v[i] = NAN;
}

static void compare_with_twin(choice *c)
{
    int64_t picked = (int64_t)c->rows * c->k;
    choice twin = choice_open(c->rows, c->n_experts, c->k);
    krn_gate_topk_ref(c->scores, c->bias, c->rows, c->n_experts, c->k, 1.5f, twin.ids, twin.weights, KRN_ACC_BLOCKED);
    run_topk(c);
    unify_nan(c->weights, picked);
    unify_nan(twin.weights, picked);
    gpu_same("ids", c->ids, twin.ids, picked, 4);
    gpu_same("weights", c->weights, twin.weights, picked, 4);
    choice_close(&twin);
}

/* rows, n_experts, k: the model's, small ones, every lane's first and last expert, more than a warp holds at once. */
static const int32_t SHAPES[][3] = { { 5, 128, 3 },  { 10, 128, 3 }, { 15, 128, 3 }, { 20, 128, 3 }, { 128, 128, 3 },
                                     { 7, 1, 1 },    { 3, 8, 8 },    { 6, 31, 5 },   { 3, 33, 8 },   { 4, 1024, 8 },
                                     { 2, 1000, 32 } };
enum { N_SHAPES = sizeof SHAPES / sizeof SHAPES[0] };

/* Kinds: distinct values, few values (ties in every row), values that no score should have. */
static void fill_choice(choice *c, int kind, uint64_t seed)
{
    static const float WILD[8] = { NAN, INFINITY, -INFINITY, 0, -0.0f, -NAN, 1, 1e-45f };
    for (int64_t i = 0; i < (int64_t)c->rows * c->n_experts; i++) {
        float v = fabsf(gpu_normal(seed, (uint64_t)i));
        c->scores[i] = kind == 0 ? v : kind == 1 ? truncf(3 * v) : WILD[gpu_hash(seed, (uint64_t)i) % 8];
    }
    for (int32_t i = 0; i < c->n_experts; i++)
        c->bias[i] = kind == 1 ? (float)(i % 2) : 0.1f * gpu_normal(seed + 1, (uint64_t)i);
}

static void choices_have_the_twins_bits(void **state)
{
    (void)state;
    for (int kind = 0; kind < 3; kind++)
        for (int i = 0; i < N_SHAPES; i++) {
            choice c = choice_open(SHAPES[i][0], SHAPES[i][1], SHAPES[i][2]);
            fill_choice(&c, kind, (uint64_t)(100 * kind + i));
            compare_with_twin(&c);
            choice_close(&c);
        }
}

static void rows_without_a_number_still_give_distinct_ids(void **state)
{
    (void)state;
    choice c = choice_open(2, 40, 8);
    for (int i = 0; i < 80; i++) c.scores[i] = i == 40 + 37 ? 0.5f : NAN; /* row 1 has one number */
    run_topk(&c);
    for (int j = 0; j < 8; j++) {
        assert_int_equal(c.ids[j], j);
        assert_int_equal(c.ids[8 + j], j == 0 ? 37 : j - 1);
    }
    choice_close(&c);
}

static void weights_lie_within_the_bound(void **state)
{
    (void)state;
    gpu_tally t = { .label = "gate weights" };
    choice c = choice_open(20, 128, 3);
    fill_choice(&c, 0, 7);
    run_topk(&c);
    for (int r = 0; r < c.rows; r++) {
        double total = 1e-20;
        for (int j = 0; j < c.k; j++) total += (double)c.scores[r * c.n_experts + c.ids[r * c.k + j]];
        for (int j = 0; j < c.k; j++) {
            double exact = (double)c.scores[r * c.n_experts + c.ids[r * c.k + j]] / total * 1.5;
            gpu_judge_f32(&t, r * c.k + j, exact, (c.k + 3) * U * exact, c.weights[r * c.k + j]);
        }
    }
    gpu_tally_end(&t, 0.3);
    choice_close(&c);
}

static void a_row_alone_has_the_bits_it_has_among_others(void **state)
{
    (void)state;
    choice all = choice_open(20, 128, 3), one = choice_open(1, 128, 3);
    fill_choice(&all, 0, 9);
    run_topk(&all);
    for (int r = 0; r < all.rows; r++) {
        memcpy(one.scores, all.scores + r * 128, 128 * sizeof(float));
        memcpy(one.bias, all.bias, 128 * sizeof(float));
        run_topk(&one);
        gpu_same("ids", one.ids, all.ids + r * 3, 3, 4);
        gpu_same("weights", one.weights, all.weights + r * 3, 3, 4);
    }
    choice_close(&all);
    choice_close(&one);
}

static void shapes_outside_the_contract_are_refused(void **state)
{
    (void)state;
    err e = { 0 };
    float f[4] = { 0 };
    int32_t i[4] = { 0 };
    assert_int_equal(krn_gate_scores(f, f, -1, 4, NULL, &e), ERR_ARG);
    assert_int_equal(krn_gate_scores(f, f, 1, 0, NULL, &e), ERR_ARG);
    assert_int_equal(krn_gate_scores(f, f, 0, 4, NULL, &e), ERR_OK);
    assert_int_equal(krn_gate_topk(f, f, -1, 4, 1, 1, i, f, NULL, &e), ERR_ARG);
    assert_int_equal(krn_gate_topk(f, f, 1, 4, 0, 1, i, f, NULL, &e), ERR_ARG);
    assert_int_equal(krn_gate_topk(f, f, 1, 4, 5, 1, i, f, NULL, &e), ERR_ARG);
    assert_int_equal(krn_gate_topk(f, f, 1, 64, KRN_GATE_PICKS_MAX + 1, 1, i, f, NULL, &e), ERR_ARG);
    assert_int_equal(krn_gate_topk(f, f, 0, 4, 1, 1, i, f, NULL, &e), ERR_OK);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(scores_lie_within_the_bound),
    cmocka_unit_test(extreme_logits_give_their_limits),
    cmocka_unit_test(the_judge_of_scores_refuses_a_few_ulps),
    cmocka_unit_test(choices_have_the_twins_bits),
    cmocka_unit_test(rows_without_a_number_still_give_distinct_ids),
    cmocka_unit_test(weights_lie_within_the_bound),
    cmocka_unit_test(a_row_alone_has_the_bits_it_has_among_others),
    cmocka_unit_test(shapes_outside_the_contract_are_refused),
};

GPU_MAIN(tests)
