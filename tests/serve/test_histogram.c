/* The histogram: quantiles within their promise, merging, empty and huge values. */
#include "serve/histogram.h"

#include "base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { N = 20000 };

static int ascending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static uint64_t next(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return *seed >> 22; /* 42 bits */
}

/* True quantile: the smallest value that a fraction q of all is not above. */
static void every_quantile_is_the_true_one_or_a_256th_above(void **state)
{
    (void)state;
    static uint64_t v[N];
    static srv_histogram h;
    uint64_t seed = 1;
    for (int i = 0; i < N; i++) {
        v[i] = next(&seed) >> (i % 42); /* every size there is */
        srv_histogram_add(&h, v[i]);
    }
    qsort(v, N, sizeof *v, ascending);
    for (int i = 1; i <= N; i++) {
        uint64_t got = srv_histogram_quantile(&h, (i - 0.5) / N), true_one = v[i - 1];
        if (got < true_one || got - true_one > true_one / 256)
            fail_msg("quantile %d of %d: found %llu, wanted %llu", i, N, (unsigned long long)got,
                     (unsigned long long)true_one);
    }
    assert_int_equal(srv_histogram_quantile(&h, 0), v[0]);
    assert_int_equal(srv_histogram_quantile(&h, 1), v[N - 1]);
}

static void merged_is_as_if_all_were_added_to_one(void **state)
{
    (void)state;
    static srv_histogram all, half[2], empty;
    uint64_t seed = 2;
    for (int i = 0; i < N; i++) {
        uint64_t v = next(&seed) >> (i % 37);
        srv_histogram_add(&all, v);
        srv_histogram_add(&half[i % 2], v);
    }
    srv_histogram_merge(&half[0], &half[1]);
    srv_histogram_merge(&half[0], &empty);
    assert_memory_equal(&half[0], &all, sizeof all);
    srv_histogram_merge(&empty, &all);
    assert_memory_equal(&empty, &all, sizeof all);
}

static void no_value_and_huge_values_are_told(void **state)
{
    (void)state;
    static srv_histogram h;
    assert_int_equal(srv_histogram_quantile(&h, 0.5), 0);
    assert_int_equal(srv_histogram_quantile(&h, 1), 0);
    json_t *j = srv_histogram_json(&h);
    assert_int_equal(json_integer_value(json_object_get(j, "count")), 0);
    assert_true(json_number_value(json_object_get(j, "p999_us")) == 0);
    json_decref(j);
    srv_histogram_add(&h, UINT64_MAX / 2);
    srv_histogram_add(&h, 5);
    assert_int_equal(srv_histogram_quantile(&h, 0.99), UINT64_MAX / 2);
    assert_int_equal(srv_histogram_quantile(&h, 0.5), 5);
    assert_int_equal(h.min_ns, 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_quantile_is_the_true_one_or_a_256th_above),
        cmocka_unit_test(merged_is_as_if_all_were_added_to_one),
        cmocka_unit_test(no_value_and_huge_values_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
