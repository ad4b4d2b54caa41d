/* krn_markov_step_ref, krn_markov_pick_ref: the term of the right token, in the right place, and the choice it leads to. */
#include "kernels/markov.h"

#include "check.h"

enum { VOCAB = 70, RANK = 40, BATCH = 3, BLOCK = 5, N_OUT = 4 };

typedef struct problem {
    float logits[BATCH * BLOCK * VOCAB], biased[BATCH * N_OUT * VOCAB];
    bf16 embed[VOCAB * RANK], head[VOCAB * RANK];
    int32_t anchor[BATCH], drafts[BATCH * N_OUT];
    const krn_markov_table *table; /* of the whole vocabulary */
} problem;

static void make(problem *p, uint64_t seed)
{
    fill_f32(p->logits, BATCH * BLOCK * VOCAB, seed, 8.0f);
    fill_bf16(p->embed, VOCAB * RANK, seed + 1, 1.0f);
    fill_bf16(p->head, VOCAB * RANK, seed + 2, 1.0f);
    for (int b = 0; b < BATCH; b++) p->anchor[b] = (int32_t)((seed * 7 + (uint64_t)b * 31) % VOCAB);
    for (int i = 0; i < BATCH * N_OUT; i++) p->drafts[i] = -1;
    for (int i = 0; i < BATCH * N_OUT * VOCAB; i++) p->biased[i] = 77.0f;
    p->table = NULL;
}

/* Position i on a rank that holds rows [first, first + n). Its own logits and biased are dense in n. */
static void step(problem *p, int32_t first, int32_t n, int32_t i, krn_acc acc, float *biased, krn_best *best)
{
    float logits[BATCH * BLOCK * VOCAB];
    for (int row = 0; row < BATCH * BLOCK; row++)
        for (int v = 0; v < n; v++) logits[row * n + v] = p->logits[row * VOCAB + first + v];
    krn_markov_step_ref(logits, p->embed, p->head + first * RANK, VOCAB, RANK, n, first, BATCH, BLOCK, N_OUT, i, p->anchor,
                        p->drafts, p->table, acc, biased, best);
}

static void draft(problem *p, krn_acc acc)
{
    for (int i = 0; i < N_OUT; i++) {
        krn_best best[BATCH];
        step(p, 0, VOCAB, i, acc, p->biased, best);
        krn_markov_pick_ref(best, 1, BATCH, N_OUT, i, p->drafts);
    }
}

static void the_term_of_the_token_before_is_added(void **state)
{
    (void)state;
    static problem p;
    for (uint64_t seed = 0; seed < 10; seed++)
        for (int mode = 0; mode < 2; mode++) {
            make(&p, seed);
            draft(&p, mode ? KRN_ACC_F64 : KRN_ACC_BLOCKED);
            for (int b = 0; b < BATCH; b++)
                for (int i = 0; i < N_OUT; i++) {
                    int32_t before = i == 0 ? p.anchor[b] : p.drafts[b * N_OUT + i - 1];
                    const float *row = p.biased + (b * N_OUT + i) * VOCAB;
                    for (int v = 0; v < VOCAB; v++) {
                        double sum = 0, size = 0;
                        for (int k = 0; k < RANK; k++) {
                            double term = (double)f32_from_bf16(p.head[v * RANK + k]) *
                                          (double)f32_from_bf16(p.embed[before * RANK + k]);
                            sum += term;
                            size += fabs(term);
                        }
                        float logit = p.logits[(b * BLOCK + i) * VOCAB + v];
                        double delta = 6 * U * sqrt(RANK) * size, exact = (double)logit + sum;
                        assert_true(explained_f32(row[v], exact, delta + 2 * U * fabs(exact)));
                        if (mode == 1) assert_true(row[v] == logit + (float)sum);
                    }
                    assert_int_equal(p.drafts[b * N_OUT + i], krn_argmax_ref(row, VOCAB, 0).id);
                }
        }
}

static void a_step_writes_its_own_position_only(void **state)
{
    (void)state;
    static problem p;
    krn_best best[BATCH];
    make(&p, 3);
    for (int i = 0; i < BATCH * N_OUT; i++) p.drafts[i] = i;
    step(&p, 0, VOCAB, 2, KRN_ACC_BLOCKED, p.biased, best);
    for (int b = 0; b < BATCH; b++)
        for (int i = 0; i < N_OUT; i++)
            for (int v = 0; v < VOCAB; v++) assert_true((p.biased[(b * N_OUT + i) * VOCAB + v] == 77.0f) == (i != 2));
    krn_markov_pick_ref(best, 1, BATCH, N_OUT, 2, p.drafts);
    for (int b = 0; b < BATCH; b++)
        for (int i = 0; i < N_OUT; i++)
            assert_int_equal(p.drafts[b * N_OUT + i], i == 2 ? best[b].id : b * N_OUT + i);
}

/* The last cut leaves the second rank without rows. */
static void ranks_agree_on_the_token_wherever_the_vocabulary_is_cut(void **state)
{
    (void)state;
    static problem p;
    static float biased[BATCH * N_OUT * VOCAB];
    for (uint64_t seed = 0; seed < 5; seed++) {
        make(&p, seed);
        for (int i = 0; i < BATCH * BLOCK * VOCAB; i++) p.logits[i] = roundf(p.logits[i] / 4); /* ties */
        memset(p.head, 0, sizeof p.head);
        draft(&p, KRN_ACC_BLOCKED);
        for (int32_t cut = 0; cut <= VOCAB; cut += 7) {
            krn_best best[2 * BATCH];
            int32_t drafts[BATCH * N_OUT];
            for (int i = 0; i < N_OUT; i++) {
                step(&p, 0, cut, i, KRN_ACC_BLOCKED, cut ? biased : NULL, best);
                step(&p, cut, VOCAB - cut, i, KRN_ACC_BLOCKED, cut < VOCAB ? biased : NULL, best + BATCH);
                krn_markov_pick_ref(best, 2, BATCH, N_OUT, i, drafts);
            }
            assert_memory_equal(drafts, p.drafts, sizeof drafts);
        }
    }
}

static void an_id_outside_the_vocabulary_is_taken_as_0(void **state)
{
    (void)state;
    static problem p, q;
    const int32_t outside[] = { -1, VOCAB, INT32_MIN, INT32_MAX };
    krn_best best[BATCH];
    make(&p, 4);
    make(&q, 4);
    memset(p.anchor, 0, sizeof p.anchor);
    step(&p, 0, VOCAB, 0, KRN_ACC_BLOCKED, p.biased, best);
    for (int o = 0; o < 4; o++) {
        for (int b = 0; b < BATCH; b++) q.anchor[b] = outside[o];
        step(&q, 0, VOCAB, 0, KRN_ACC_BLOCKED, q.biased, best);
        assert_memory_equal(p.biased, q.biased, sizeof p.biased);
    }
}

static void a_nan_is_quiet_and_never_chosen(void **state)
{
    (void)state;
    static problem p;
    krn_best best[BATCH];
    make(&p, 5);
    memset(p.head, 0, sizeof p.head);
    for (int b = 0; b < BATCH; b++)
        for (int v = 0; v < VOCAB; v++) p.logits[b * BLOCK * VOCAB + v] = v == 33 ? -INFINITY : f32_from_bits(0xffabcdef);
    step(&p, 0, VOCAB, 0, KRN_ACC_BLOCKED, p.biased, best);
    for (int b = 0; b < BATCH; b++) {
        assert_int_equal(f32_bits(p.biased[b * N_OUT * VOCAB]), 0x7fc00000);
        assert_int_equal(best[b].id, 33);
    }
}

/* Every third token has a row, in descending order of ids. */
static krn_markov_table make_table(const problem *p, bool round_bf16, krn_acc acc, int32_t row[VOCAB], float *term)
{
    int32_t tokens[VOCAB], count = 0;
    for (int32_t t = VOCAB; t-- > 0;) row[t] = t % 3 ? -1 : (tokens[count] = t, count++);
    krn_markov_terms_ref(p->embed, p->head, VOCAB, RANK, VOCAB, tokens, count, round_bf16, acc, term);
    return (krn_markov_table){ .bf16 = round_bf16, .row = row, .term = term };
}

static void hot_rows_change_no_bit(void **state)
{
    (void)state;
    static problem plain, hot;
    static float term[VOCAB * VOCAB];
    int32_t row[VOCAB];
    for (uint64_t seed = 0; seed < 10; seed++)
        for (int mode = 0; mode < 2; mode++) {
            const krn_acc acc = mode ? KRN_ACC_F64 : KRN_ACC_BLOCKED;
            make(&plain, seed);
            make(&hot, seed);
            const krn_markov_table table = make_table(&hot, false, acc, row, term);
            draft(&plain, acc);
            hot.table = &table;
            draft(&hot, acc);
            assert_memory_equal(plain.biased, hot.biased, sizeof plain.biased);
            assert_memory_equal(plain.drafts, hot.drafts, sizeof plain.drafts);
        }
}

/* The control's policy: term and sum are bf16 numbers, and whether the cache has a token does not show. */
static void the_bias_cache_rounds_term_and_sum_and_a_miss_gives_the_same_bits(void **state)
{
    (void)state;
    static problem p, empty;
    static float term[VOCAB * VOCAB];
    int32_t row[VOCAB];
    for (uint64_t seed = 0; seed < 10; seed++) {
        make(&p, seed);
        make(&empty, seed);
        for (int i = 0; i < BATCH * BLOCK * VOCAB; i++) p.logits[i] = empty.logits[i] = bf16_round(p.logits[i]);
        const krn_markov_table cache = make_table(&p, true, KRN_ACC_BLOCKED, row, term), none = { .bf16 = true };
        p.table = &cache;
        empty.table = &none;
        draft(&p, KRN_ACC_BLOCKED);
        draft(&empty, KRN_ACC_BLOCKED);
        assert_memory_equal(p.biased, empty.biased, sizeof p.biased);
        assert_memory_equal(p.drafts, empty.drafts, sizeof p.drafts);
        int differ = 0;
        make(&empty, seed);
        for (int i = 0; i < BATCH * BLOCK * VOCAB; i++) empty.logits[i] = bf16_round(empty.logits[i]);
        draft(&empty, KRN_ACC_BLOCKED);
        for (int i = 0; i < BATCH * N_OUT * VOCAB; i++) {
            assert_true(p.biased[i] == bf16_round(p.biased[i]));
            differ += p.biased[i] != empty.biased[i];
        }
        assert_true(differ > 0);
    }
}

/* A table with other terms is seen: it is read, and only for the tokens it has. */
static void a_stale_row_shows_after_its_token_alone(void **state)
{
    (void)state;
    static problem p, q;
    static float term[VOCAB * VOCAB];
    int32_t row[VOCAB];
    krn_best best[BATCH];
    make(&p, 6);
    make(&q, 6);
    const krn_markov_table table = make_table(&p, false, KRN_ACC_BLOCKED, row, term);
    term[(int64_t)row[33] * VOCAB + 5] += 1;
    q.table = &table;
    p.anchor[0] = q.anchor[0] = 33;
    p.anchor[1] = q.anchor[1] = 34;
    p.anchor[2] = q.anchor[2] = 36;
    step(&p, 0, VOCAB, 0, KRN_ACC_BLOCKED, p.biased, best);
    step(&q, 0, VOCAB, 0, KRN_ACC_BLOCKED, q.biased, best);
    for (int i = 0; i < BATCH * N_OUT * VOCAB; i++) assert_true((p.biased[i] == q.biased[i]) == (i != 5));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_term_of_the_token_before_is_added),
        cmocka_unit_test(a_step_writes_its_own_position_only),
        cmocka_unit_test(ranks_agree_on_the_token_wherever_the_vocabulary_is_cut),
        cmocka_unit_test(an_id_outside_the_vocabulary_is_taken_as_0),
        cmocka_unit_test(a_nan_is_quiet_and_never_chosen),
        cmocka_unit_test(hot_rows_change_no_bit),
        cmocka_unit_test(the_bias_cache_rounds_term_and_sum_and_a_miss_gives_the_same_bits),
        cmocka_unit_test(a_stale_row_shows_after_its_token_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
