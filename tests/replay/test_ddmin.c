#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/mem.h"
#include "replay/ddmin.h"

enum { N = 60 };

/* The property: the set has all of `needs` (a bit each). budget < 0: no end. */
typedef struct world { uint64_t needs; int n_tests, budget; } world;

static uint64_t bits_of(const bool *chosen)
{
    uint64_t bits = 0;
    for (int i = 0; i < N; i++) bits |= (uint64_t)chosen[i] << i;
    return bits;
}

static err_code has_needs(void *ctx, const bool *chosen, bool *holds, bool *go_on, err *e)
{
    world *w = ctx;
    (void)e;
    *go_on = w->budget < 0 || w->n_tests < w->budget;
    w->n_tests += *go_on;
    *holds = (bits_of(chosen) & w->needs) == w->needs;
    return ERR_OK;
}

/* Either of two sets will do. */
static err_code has_either(void *ctx, const bool *chosen, bool *holds, bool *go_on, err *e)
{
    const uint64_t *needs = ctx;
    (void)e;
    *go_on = true;
    *holds = (bits_of(chosen) & needs[0]) == needs[0] || (bits_of(chosen) & needs[1]) == needs[1];
    return ERR_OK;
}

/* An odd number of a set's items: not monotonic. */
static err_code has_odd(void *ctx, const bool *chosen, bool *holds, bool *go_on, err *e)
{
    (void)e;
    *go_on = true;
    *holds = __builtin_popcountll(bits_of(chosen) & *(const uint64_t *)ctx) % 2 == 1;
    return ERR_OK;
}

static err_code fails(void *ctx, const bool *chosen, bool *holds, bool *go_on, err *e)
{
    (void)ctx, (void)chosen, (void)holds;
    *go_on = true;
    return err_set(e, ERR_IO, "no more");
}

static uint64_t minimise(rpl_ddmin_fn fn, void *ctx, bool *minimal)
{
    int32_t tens[N], fives[N], ones[N];
    bool chosen[N];
    err e = { 0 };
    for (int32_t i = 0; i < N; i++) tens[i] = i / 10, fives[i] = i / 5, ones[i] = i, chosen[i] = true;
    const int32_t *const level[] = { tens, fives, ones };
    const rpl_ddmin_job job = { .n = N, .level = level, .n_levels = 3, .holds = fn, .ctx = ctx };
    assert_int_equal(rpl_ddmin(&job, chosen, minimal, &e), ERR_OK);
    return bits_of(chosen);
}

static void every_single_item_is_found_in_few_tests(void **state)
{
    (void)state;
    for (int i = 0; i < N; i++) {
        world w = { .needs = 1ull << i, .budget = -1 };
        bool minimal;
        assert_int_equal(minimise(has_needs, &w, &minimal), 1ull << i);
        assert_true(minimal);
        assert_true(w.n_tests <= 16);
    }
}

static void every_pair_is_found(void **state)
{
    (void)state;
    for (int i = 0; i < N; i++)
        for (int k = 0; k < i; k++) {
            world w = { .needs = 1ull << i | 1ull << k, .budget = -1 };
            bool minimal;
            assert_int_equal(minimise(has_needs, &w, &minimal), w.needs);
            assert_true(minimal);
        }
}

static void no_item_of_the_result_can_be_spared(void **state)
{
    uint64_t x = 88172645463325252ull;
    (void)state;
    for (int trial = 0; trial < 300; trial++) {
        uint64_t needs[2] = { 0, 0 };
        for (int k = 0; k < 8; k++) {
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
            needs[k % 2] |= 1ull << x % N;
        }
        bool minimal;
        uint64_t found = minimise(has_either, needs, &minimal);
        assert_true(minimal);
        assert_true(found == needs[0] || found == needs[1]);
    }
}

static void a_property_that_is_not_monotonic_gives_a_minimal_set(void **state)
{
    (void)state;
    uint64_t set = 1ull << 3 | 1ull << 17 | 1ull << 40;
    bool minimal;
    uint64_t found = minimise(has_odd, &set, &minimal);
    assert_true(minimal);
    assert_int_equal(__builtin_popcountll(found & set) % 2, 1);
    for (int i = 0; i < N; i++) /* without any one item the property is gone */
        if (found >> i & 1) assert_int_equal(__builtin_popcountll((found ^ 1ull << i) & set) % 2, 0);
}

static void a_spent_budget_leaves_a_set_that_holds(void **state)
{
    (void)state;
    for (int budget = 0; budget < 14; budget++) {
        world w = { .needs = 1ull << 7 | 1ull << 52, .budget = budget };
        bool minimal = true;
        uint64_t found = minimise(has_needs, &w, &minimal);
        assert_int_equal(found & w.needs, w.needs);
        assert_int_equal(w.n_tests, budget);
        assert_false(minimal);
    }
}

static void what_the_test_says_is_passed_on(void **state)
{
    (void)state;
    int32_t ones[3] = { 0, 1, 2 };
    const int32_t *const level[] = { ones };
    const rpl_ddmin_job job = { .n = 3, .level = level, .n_levels = 1, .holds = fails };
    bool chosen[3] = { true, true, true }, minimal;
    err e = { 0 };
    assert_int_equal(rpl_ddmin(&job, chosen, &minimal, &e), ERR_IO);
    assert_false(minimal);
    assert_true(chosen[0] && chosen[1] && chosen[2]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_single_item_is_found_in_few_tests),
        cmocka_unit_test(every_pair_is_found),
        cmocka_unit_test(no_item_of_the_result_can_be_spared),
        cmocka_unit_test(a_property_that_is_not_monotonic_gives_a_minimal_set),
        cmocka_unit_test(a_spent_budget_leaves_a_set_that_holds),
        cmocka_unit_test(what_the_test_says_is_passed_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
