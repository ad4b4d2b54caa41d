/* What a tape says about itself, and that its bytes depend on the run alone. */
#include "honest.h"

#include <sys/stat.h>

#include "capture/round_list.h"

static void every_counter_that_is_wrong_is_found(void **state)
{
    static const char *const KEYS[] = { "rounds", "inserts", "drafts", "slots", "values", "raw_bytes", "dropped",
                                        "padded_rows", "events_lost", "fired", "armed" };
    const cap_options o = { .level = ENG_LEVEL_V1 };
    (void)state;
    fmt_tape *t = record_script("counts.tape", 2, "graph", &o);
    assert_null(dishonest(t, fmt_tape_summary(t)));
    for (size_t i = 0; i < COUNT_OF(KEYS); i++)
        for (int by = -1; by <= 1; by += 2) {
            json_t *wrong = json_deep_copy(fmt_tape_summary(t));
            json_t *of = i < 9 ? wrong : json_object_get(wrong, "taps");
            json_int_t n = json_integer_value(json_object_get(of, KEYS[i]));
            json_object_set_new(of, KEYS[i], json_integer(n + by));
            assert_string_equal(dishonest(t, wrong), KEYS[i]);
            json_decref(wrong);
        }
    fmt_tape_close(t);
}

static void costs_are_told(void **state)
{
    static const char *const COSTS[] = { "cost_us_per_round", "cost_us_per_tap", "cost_us_per_kb" };
    const cap_options o = { .level = ENG_LEVEL_DEEP };
    (void)state;
    fmt_tape *t = record_script("cost.tape", 1, "eager", &o);
    for (size_t i = 0; i < COUNT_OF(COSTS); i++)
        assert_true(json_real_value(json_object_get(fmt_tape_summary(t), COSTS[i])) > 0);
    assert_true(json_is_real(json_object_get(fmt_tape_summary(t), "device_us")));
    assert_true(number(t, "waits") >= 0 && number(t, "wait_us") >= 0);
    assert_null(json_object_get(fmt_tape_summary(t), "rounds_seen")); /* no list was given */
    fmt_tape_close(t);
}

/* ---- the same bytes ---- */

/* The file from its first data chunk to its end chunk: without the time of creation and without costs. */
static uint8_t *data_of(const char *path, size_t *bytes)
{
    enum { PRELUDE = 16, HEADER = 32, TRAILER = 16 };
    FILE *f = fopen(path, "rb");
    struct stat st;
    assert_true(f && fstat(fileno(f), &st) == 0);
    uint8_t *all = mem_alloc((size_t)st.st_size, 1);
    assert_true(all && fread(all, (size_t)st.st_size, 1, f) == 1);
    fclose(f);
    size_t first = PRELUDE + HEADER + get_u32(all + PRELUDE + 8) + get_u32(all + PRELUDE + 12);
    size_t end = get_u64(all + st.st_size - TRAILER + 8);
    assert_true(first < end && end < (size_t)st.st_size);
    *bytes = end - first;
    memmove(all, all + first, *bytes);
    return all;
}

static bool same_data(const char *a, const char *b)
{
    size_t n, m;
    uint8_t *x = data_of(a, &n), *y = data_of(b, &m);
    bool same = n == m && memcmp(x, y, n) == 0;
    free(x);
    free(y);
    return same;
}

static void the_bytes_do_not_depend_on_threads(void **state)
{
    static const char *const MODES[] = { "eager", "graph" };
    static const struct { int32_t depth; uint64_t memory_bytes; bool step_by_step; } RUNS[] = {
        { 8, 0, true }, { 1, 0, false }, { 8, 0, false }, { 2, 0, false }, { 8, 1, false }, { 64, 1 << 20, false },
    };
    (void)state;
    for (size_t m = 0; m < COUNT_OF(MODES); m++)
        for (size_t i = 0; i < COUNT_OF(RUNS); i++) {
            const cap_options o = { .level = ENG_LEVEL_DEEP, .depth = RUNS[i].depth, .memory_bytes = RUNS[i].memory_bytes };
            const char *path = i == 0 && m == 0 ? "first.tape" : "other.tape";
            session s = begin(path, 2, MODES[m], &o);
            for (int32_t k = 0; k < ROUNDS; k++) {
                OK(run_round(&s, k, true, e));
                if (RUNS[i].step_by_step) wait_rounds(&s, (uint64_t)k + 1);
            }
            fmt_tape *t = finish(&s, path);
            assert_int_equal(number(t, "rounds"), ROUNDS);
            assert_honest(t);
            fmt_tape_close(t);
            if (!same_data("first.tape", path)) fail_msg("%s, run %zu: other bytes", MODES[m], i);
        }
    fmt_tape_close(record_script("other.tape", 1, "eager", &(cap_options){ .level = ENG_LEVEL_DEEP }));
    assert_false(same_data("first.tape", "other.tape")); /* other ranks: the comparison can fail */
}

static void a_round_list_leaves_the_other_rounds_out(void **state)
{
    const cap_options all = { .level = ENG_LEVEL_V1 };
    const cap_options some = { .level = ENG_LEVEL_V1, .rounds = "every:3" };
    cap_round_list wanted;
    (void)state;
    OK(cap_round_list_parse(some.rounds, "--rounds", &wanted, e));
    fmt_tape *whole = record_script("all.tape", 1, "eager", &all);
    session s = begin("some.tape", 1, "eager", &some);
    for (int32_t i = 0; i < ROUNDS; i++) OK(run_round(&s, i, cap_round_list_has(&wanted, i), e));
    fmt_tape *t = finish(&s, "some.tape");
    assert_int_equal(number(t, "rounds"), 4);
    assert_int_equal(number(t, "rounds_seen"), ROUNDS);
    assert_int_equal(number(t, "rounds_wanted"), 4);
    assert_int_equal(number(t, "dropped"), 0);
    assert_string_equal(json_string_value(json_object_get(fmt_tape_head(t), "rounds")), "every:3");
    assert_honest(t);
    for (size_t i = 0; i < fmt_tape_count(t); i++) { /* what was not captured ran all the same */
        fmt_tape_record a, b;
        fmt_tape_at(t, i, &a);
        assert_int_equal(a.key.round % 3, 0);
        int64_t at = fmt_tape_find(whole, &a.key);
        assert_true(at >= 0);
        fmt_tape_at(whole, (size_t)at, &b);
        assert_true(a.hash == b.hash);
    }
    fmt_tape_close(t);
    fmt_tape_close(whole);
}

/* ---- rotation ---- */

static void rotated_tapes_are_whole_and_miss_nothing(void **state)
{
    cap_options o = { .level = ENG_LEVEL_V1 };
    (void)state;
    fmt_tape *one = record_script("one.tape", 2, "eager", &o);
    o.rotate_bytes = fmt_tape_file_bytes(one) / 4;
    fclose(fopen("many-000001.tape", "wb"));      /* an earlier run's */
    fclose(fopen("many-000002.tape.part", "wb")); /* a killed one's */
    session s = begin("many.tape", 2, "eager", &o);
    for (int32_t i = 0; i < ROUNDS; i++) OK(run_round(&s, i, true, e));
    wait_rounds(&s, ROUNDS);
    cap_counts c = counts_of(&s);
    OK(cap_recorder_finish(s.recorder, e));
    end_session(&s);
    size_t at = 0;
    int n_tapes = 0;
    uint64_t bytes = 0;
    json_int_t sums[3] = { 0 };
    for (int n = 0; n < 20; n++) {
        char path[64];
        fmt_tape *t;
        snprintf(path, sizeof path, "many-%06d.tape", n);
        if (n == 1 || n == 2 || access(path, F_OK) != 0) continue;
        OK(fmt_tape_open(path, &t, e));
        assert_true(fmt_tape_finished(t));
        assert_honest(t);
        json_t *heads[2] = { json_copy((json_t *)(uintptr_t)fmt_tape_head(one)),
                             json_copy((json_t *)(uintptr_t)fmt_tape_head(t)) };
        for (int k = 0; k < 2; k++) json_object_del(heads[k], "created");
        assert_true(json_equal(heads[0], heads[1]));
        json_decref(heads[0]);
        json_decref(heads[1]);
        for (size_t i = 0; i < fmt_tape_count(t); i++) {
            fmt_tape_record a, b;
            fmt_tape_at(t, i, &a);
            fmt_tape_at(one, at++, &b);
            assert_true(a.hash == b.hash && a.key.round == b.key.round && strcmp(a.key.name, b.key.name) == 0);
        }
        sums[0] += number(t, "rounds");
        sums[1] += number(t, "values");
        sums[2] += number(t, "raw_bytes");
        bytes += fmt_tape_file_bytes(t);
        n_tapes++;
        fmt_tape_close(t);
    }
    assert_int_equal(at, fmt_tape_count(one));
    assert_true(n_tapes > 2);
    assert_int_equal(sums[0], number(one, "rounds"));
    assert_int_equal(sums[1], number(one, "values"));
    assert_int_equal(sums[2], number(one, "raw_bytes"));
    assert_true(c.tapes == (uint64_t)n_tapes || c.tapes + 1 == (uint64_t)n_tapes); /* the last one was ended by finish */
    assert_true(c.tape_bytes <= bytes && c.tape_bytes > bytes / 2);
    assert_int_equal(access("many.tape", F_OK), -1);
    fmt_tape_close(one);
}

static void a_tape_that_ends_with_the_last_round_is_followed_by_none(void **state)
{
    const cap_options o = { .level = ENG_LEVEL_IO, .rotate_bytes = 1 }; /* a tape a round */
    (void)state;
    session s = begin("each.tape", 1, "eager", &o);
    for (int32_t i = 0; i < 3; i++) OK(short_round(&s, i, e));
    wait_rounds(&s, 3);
    cap_counts c = counts_of(&s);
    while (c.tapes < 3) c = counts_of(&s);
    assert_string_equal(c.tape, "");
    OK(cap_recorder_finish(s.recorder, e));
    end_session(&s);
    assert_int_equal(access("each-000002.tape", F_OK), 0);
    assert_int_equal(access("each-000003.tape", F_OK), -1);
    assert_int_equal(access("each-000003.tape.part", F_OK), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_counter_that_is_wrong_is_found),
        cmocka_unit_test(costs_are_told),
        cmocka_unit_test(the_bytes_do_not_depend_on_threads),
        cmocka_unit_test(a_round_list_leaves_the_other_rounds_out),
        cmocka_unit_test(rotated_tapes_are_whole_and_miss_nothing),
        cmocka_unit_test(a_tape_that_ends_with_the_last_round_is_followed_by_none),
    };
    return cmocka_run_group_tests(tests, make_long_model, drop_model);
}
