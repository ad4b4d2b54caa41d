#include "replay_help.h"

#include "replay/replay.h"

static fmt_tape *source;

static int setup(void **state)
{
    if (run_setup(state) != 0) return -1;
    eng_options o = run_options("native-packed", 2, "eager");
    source = record("source.tape", &o, ENG_LEVEL_DEEP);
    return 0;
}

static int teardown(void **state)
{
    fmt_tape_close(source);
    return run_teardown(state);
}

static fmt_tape *replay(const fmt_tape *from, const eng_options *run, eng_level level, rpl_windows windows)
{
    const rpl_replay_options o = { .run = *run, .level = level, .windows = windows, .quiet = true };
    json_t *identity = eng_identity(shared_run.weights, run);
    fmt_tape *t;
    OK(rpl_replay_run(from, shared_run.weights, &o, identity, "replayed.tape", e));
    OK(fmt_tape_open("replayed.tape", &t, e));
    json_decref(identity);
    return t;
}

static void a_replay_gives_the_recorded_bits(void **state)
{
    static const struct { const char *mode; rpl_windows windows; } CASES[] = {
        { "eager", RPL_WINDOWS_AUTO }, { "graph", RPL_WINDOWS_B }, { "eager", RPL_WINDOWS_A },
    };
    char what[192] = "";
    (void)state;
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        eng_options o = run_options("native-packed", 2, CASES[i].mode);
        fmt_tape *t = replay(source, &o, ENG_LEVEL_DEEP, CASES[i].windows);
        if (!rpl_replay_same(source, t, what)) fail_msg("case %zu: %s", i, what);
        fmt_tape_close(t);
    }
}

static void a_difference_between_two_runs_is_named(void **state)
{
    flips f = { .at = { "2/-1/s1.ffn_out" } };
    char what[192] = "";
    (void)state;
    fmt_tape *t = copy_tape(source, "flipped.tape", flip_bits, &f);
    assert_false(rpl_replay_same(source, t, what));
    assert_string_equal(what, "round 2 s1.ffn_out rank 0");
    fmt_tape_close(t);
    eng_options o = run_options("native-packed", 2, "eager");
    t = replay(source, &o, ENG_LEVEL_V1, RPL_WINDOWS_AUTO);
    assert_false(rpl_replay_same(source, t, what));
    fmt_tape_close(t);
}

static bool without(void *ctx, fmt_tape_record *r, uint8_t *data)
{
    (void)data;
    return strcmp(r->key.name, ctx) != 0;
}

static void windows_take_what_the_tape_has_or_say_what_it_lacks(void **state)
{
    const struct { const char *gone; rpl_windows refused; const char *text; } CASES[] = {
        { "taps", RPL_WINDOWS_B, "slot 0: found no taps, wanted by --windows B" },
        { "main_x", RPL_WINDOWS_A, "slot 0: found no main_x, wanted by --windows A" },
    };
    eng_options run = run_options("native-packed", 2, "eager");
    json_t *identity = eng_identity(shared_run.weights, &run);
    (void)state;
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        rpl_replay_options o = { .run = run, .level = ENG_LEVEL_V1, .windows = CASES[i].refused, .quiet = true };
        fmt_tape *less = copy_tape(source, "less.tape", without, (void *)(uintptr_t)CASES[i].gone);
        REFUSED(rpl_replay_run(less, shared_run.weights, &o, identity, "refused.tape", e), ERR_INPUT, CASES[i].text);
        assert_int_not_equal(access("refused.tape", F_OK), 0);
        assert_int_not_equal(access("refused.tape.part", F_OK), 0);
        fmt_tape_close(replay(less, &run, ENG_LEVEL_V1, RPL_WINDOWS_AUTO));
        fmt_tape_close(less);
    }
    json_decref(identity);
}

static void options_default_to_the_recorded_run(void **state)
{
    eng_option_words w = { 0 };
    (void)state;
    rpl_replay_words(source, &w);
    assert_string_equal(w.arm, "native-packed");
    assert_string_equal(w.acc, "blocked");
    assert_int_equal(w.tp, 2);
    assert_int_equal(rpl_replay_level(source), ENG_LEVEL_DEEP);
    w = (eng_option_words){ .arm = "mirror64" }; /* another arm: neither the accumulation nor the ranks are carried over */
    rpl_replay_words(source, &w);
    assert_null(w.acc);
    assert_int_equal(w.tp, 0);
    assert_string_equal(w.combine, "exact");
    w = (eng_option_words){ .arm = "native-expanded", .combine = "fused", .tp = 1 };
    rpl_replay_words(source, &w);
    assert_string_equal(w.combine, "fused");
    assert_int_equal(w.tp, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_replay_gives_the_recorded_bits),
        cmocka_unit_test(a_difference_between_two_runs_is_named),
        cmocka_unit_test(windows_take_what_the_tape_has_or_say_what_it_lacks),
        cmocka_unit_test(options_default_to_the_recorded_run),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
