/* What bench makes of its times: how repetitions are compared, and which variants a tuning chooses, over steps whose times
 * the test makes up. */
#include "base/mem.h"
#include "engine/cmd_bench.h"
#include "tests/support/ok.h"

static bench_spread of(double a, double b, double c) { return bench_spread_of((const double[]){ a, b, c }, 3); }

static const char *word(bench_spread a, bench_spread control) { return bench_spread_word(&a, &control); }

static void repetitions_that_touch_are_no_difference(void **state)
{
    (void)state;
    const bench_spread s = of(3, 1, 2);
    assert_true(s.median == 2 && s.min == 1 && s.max == 3);
    assert_string_equal(word(of(1, 2, 3), of(4, 5, 6)), "faster");
    assert_string_equal(word(of(6, 5, 4), of(3, 2, 1)), "slower");
    assert_string_equal(word(of(1, 2, 4), of(4, 5, 6)), "overlap"); /* equal is not below */
    assert_string_equal(word(of(1, 1, 4.5), of(4, 5, 6)), "overlap");
    assert_string_equal(word(of(1, 2, 3), of(1, 2, 3)), "overlap");
    const bench_spread one = bench_spread_of((const double[]){ 7 }, 1);
    assert_true(one.median == 7 && one.min == 7 && one.max == 7);
}

/* ---- tuning ---- */

enum { STAGES = 3, BLOCK = 5 };

/* A card on which a step takes 100 us, and each stage run fused adds so many, by batch and stage; noise: added in every
 * second repetition. */
typedef struct card {
    double fused_us[3][STAGES], noise_us[3];
    int32_t calls, fails_at; /* 0: never */
    int32_t order[64];       /* per call: stages run fused at the first batch */
} card;

static const int32_t BATCHES[3] = { 1, 2, 4 };

static err_code step(void *ctx, const eng_dispatch *d, double *us, err *e)
{
    card *k = ctx;
    const int32_t call = k->calls++, rep = call < 6 ? call / 2 : (call - 6) / (1 + STAGES);
    if (k->calls == k->fails_at) return err_set(e, ERR_DEVICE, "the card fell out");
    assert_true(k->calls < (int32_t)COUNT_OF(k->order));
    for (int i = 0; i < 3; i++) {
        us[i] = 100 + (rep % 2 ? k->noise_us[i] : 0);
        for (int32_t s = 0; s < STAGES; s++)
            if (eng_dispatch_variant(d, s, BATCHES[i] * BLOCK) == ENG_VARIANT_FUSED) {
                us[i] += k->fused_us[i][s];
                if (i == 0) k->order[call] |= 1 << s;
            }
    }
    return ERR_OK;
}

static bench_tuning tuning(card *k)
{
    return (bench_tuning){ STAGES, BLOCK, 3, { 3, { BATCHES[0], BATCHES[1], BATCHES[2] } }, step, k };
}

static void the_faster_variant_is_chosen_by_rows_and_stage(void **state)
{
    /* Batch 1: fused is faster everywhere. Batch 2: slower everywhere. Batch 4: slower as a whole, faster in stage 1. */
    card k = { .fused_us = { { -5, -5, -5 }, { 5, 5, 5 }, { 9, -2, 9 } } };
    const bench_tuning t = tuning(&k);
    bench_tuned f;
    (void)state;
    OK(bench_tune(&t, &f, e));
    assert_int_equal(f.base[0], ENG_VARIANT_FUSED);
    assert_int_equal(f.base[1], ENG_VARIANT_SEPARATE);
    assert_int_equal(f.base[2], ENG_VARIANT_SEPARATE);
    assert_true(f.all[0][ENG_VARIANT_FUSED].median == 85 && f.all[0][ENG_VARIANT_SEPARATE].median == 100);
    for (int32_t s = 0; s < STAGES; s++) {
        assert_int_equal(f.chosen[s][0], ENG_VARIANT_FUSED);
        assert_int_equal(f.chosen[s][1], ENG_VARIANT_SEPARATE);
        assert_int_equal(f.chosen[s][2], s == 1 ? ENG_VARIANT_FUSED : ENG_VARIANT_SEPARATE);
        /* With the others as they are for that number of rows. */
        assert_true(f.stage[s][0][ENG_VARIANT_FUSED].median == 85 && f.stage[s][0][ENG_VARIANT_SEPARATE].median == 90);
        assert_true(f.stage[s][1][ENG_VARIANT_SEPARATE].median == 100);
        assert_true(f.stage[s][1][ENG_VARIANT_FUSED].median == 105);
    }
    assert_true(f.stage[1][2][ENG_VARIANT_FUSED].median == 98);
}

static void repetitions_are_interleaved(void **state)
{
    card k = { .fused_us = { { -5, -5, -5 }, { 0 }, { 0 } } };
    const bench_tuning t = tuning(&k);
    bench_tuned f;
    static const int32_t FIRST[] = { 0, 7 }, THEN[] = { 7, 6, 5, 3 };
    (void)state;
    OK(bench_tune(&t, &f, e));
    assert_int_equal(k.calls, 3 * 2 + 3 * 4);
    for (int32_t i = 0; i < 6; i++) assert_int_equal(k.order[i], FIRST[i % 2]);
    for (int32_t i = 0; i < 12; i++) assert_int_equal(k.order[6 + i], THEN[i % 4]);
}

static void what_overlaps_stays_as_it_was(void **state)
{
    /* Fused is faster by 6 and times move by 7: nothing is certain. At batch 2 they move by 1: certain as a whole, and
     * no stage alone brings back what lost. */
    card k = { .fused_us = { { -2, -2, -2 }, { -0.5, -0.5, -0.5 }, { 0 } }, .noise_us = { 7, 1, 1 } };
    const bench_tuning t = tuning(&k);
    bench_tuned f;
    (void)state;
    OK(bench_tune(&t, &f, e));
    assert_int_equal(f.base[0], ENG_VARIANT_DEFAULT);
    assert_int_equal(f.base[1], ENG_VARIANT_FUSED);
    assert_int_equal(f.base[2], ENG_VARIANT_DEFAULT);
    for (int32_t s = 0; s < STAGES; s++) {
        assert_int_equal(f.chosen[s][0], ENG_VARIANT_DEFAULT);
        assert_int_equal(f.chosen[s][1], ENG_VARIANT_FUSED);
        assert_int_equal(f.chosen[s][2], ENG_VARIANT_DEFAULT);
    }
}

static void a_card_that_fails_ends_it(void **state)
{
    (void)state;
    for (int32_t at = 1; at <= 18; at++) {
        card k = { .fails_at = at };
        const bench_tuning t = tuning(&k);
        bench_tuned f;
        REFUSED(bench_tune(&t, &f, e), ERR_DEVICE, "fell out");
        assert_int_equal(k.calls, at);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(repetitions_that_touch_are_no_difference),
        cmocka_unit_test(the_faster_variant_is_chosen_by_rows_and_stage),
        cmocka_unit_test(repetitions_are_interleaved),
        cmocka_unit_test(what_overlaps_stays_as_it_was),
        cmocka_unit_test(a_card_that_fails_ends_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
