#include "tape_help.h"

#include "capture/joined.h"

static void every_export_name_parses_back(void **state)
{
    static const struct { int32_t round, slot; const char *name, *text; } CASES[] = {
        { 0, FMT_TAPE_NO_SLOT, "s0.attn_out", "round.0.s0.attn_out" },
        { 7, 12, "main_x", "round.7.insert.12.main_x" },
        { 7, 12, "s2.main_kv", "round.7.insert.12.s2.main_kv" },
        { 3, 0, "s1.window", "round.3.window.0.s1" },
        { 2147483647, 2147483647, "s10.window", "round.2147483647.window.2147483647.s10" },
        { 0, FMT_TAPE_NO_SLOT, "draft.slots", "round.0.draft.slots" },
        { 0, 4, "taps", "round.0.insert.4.taps" },
        { 1, FMT_TAPE_NO_SLOT, "s0.window", "round.1.s0.window" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        char text[CAP_EXPORT_NAME], name[FMT_TAPE_NAME_BYTES];
        int32_t round, slot;
        cap_export_name(CASES[i].round, CASES[i].slot, CASES[i].name, text);
        assert_string_equal(text, CASES[i].text);
        assert_true(cap_export_parse(text, &round, &slot, name));
        assert_int_equal(round, CASES[i].round);
        assert_int_equal(slot, CASES[i].slot);
        assert_string_equal(name, CASES[i].name);
    }
}

static void what_no_tape_would_export_is_refused(void **state)
{
    static const char *const BAD[] = {
        "", "round", "round.", "round.0", "round.0.", "round.x.y", "round.-1.s0.out", "round.+1.s0.out", "round.00.s0.out",
        "round.01.s0.out", "round.2147483648.s0.out", "rounds.0.x", "model.layers.0.weight", "round.0.insert.1",
        "round.0.insert.1.", "round.0.insert.x.taps", "round.0.insert.01.taps", "round.0.insert.-1.taps",
        "round.0.insert.taps",
        "round.0.window.1.k0", "round.0.window.1.s", "round.0.window.1.s0.x", "round.0.window.1.s00", "round.0.window.s0",
        "round.0.insert.1.s0.window", "round.0.a/b", "round.0.a b", "round.0.\x01", "round.0.\xc3\xa4",
    };
    char name[FMT_TAPE_NAME_BYTES], longest[FMT_TAPE_NAME_BYTES + 16];
    int32_t round = 5, slot = 5;
    (void)state;
    for (size_t i = 0; i < sizeof BAD / sizeof BAD[0]; i++)
        if (cap_export_parse(BAD[i], &round, &slot, name)) fail_msg("'%s' was taken", BAD[i]);
    memcpy(longest, "round.0.", 8);
    memset(longest + 8, 'a', FMT_TAPE_NAME_BYTES);
    longest[8 + FMT_TAPE_NAME_BYTES] = 0;
    assert_false(cap_export_parse(longest, &round, &slot, name));
    longest[8 + FMT_TAPE_NAME_BYTES - 1] = 0;
    assert_true(cap_export_parse(longest, &round, &slot, name));
}

static void the_longest_name_fits_the_buffer(void **state)
{
    char name[FMT_TAPE_NAME_BYTES], text[CAP_EXPORT_NAME];
    (void)state;
    memset(name, 'n', sizeof name);
    name[sizeof name - 1] = 0;
    cap_export_name(2147483647, 2147483647, name, text);
    assert_string_equal(text + strlen(text) - strlen(name), name);
    assert_true(strlen(text) + strlen(".rank7") < CAP_EXPORT_NAME);
}

static void values_stand_in_program_order(void **state)
{
    static const char *const ORDER[] = {
        "taps", "pos", "main_x", "s0.main_kv", "s2.main_kv", "draft.slots", "draft.n_out", "s0.window", "s1.window", "ids",
        "x0", "s0.attn.mix_pre", "s0.attn_out", "s0.attn.stream", "s0.ffn.ids", "s0.out", "s1.attn.mix_pre", "s1.out",
        "head.collapse", "head.logits", "head.biased", "drafts", "confidence", "nobody.knows",
    };
    (void)state;
    for (size_t i = 1; i < sizeof ORDER / sizeof ORDER[0]; i++)
        assert_true(cap_name_order(ORDER[i - 1]) < cap_name_order(ORDER[i]));
    assert_int_equal(cap_name_order("s0.nobody"), cap_name_order("nobody"));
    assert_int_equal(cap_name_order("s99999.out"), cap_name_order("nobody"));
}

static void a_tape_lists_each_value_once_and_finds_it(void **state)
{
    enum { ROUNDS = 40, NAMES = 30 };
    fmt_tape_writer *w = tape_begin("names.tape", NULL);
    (void)state;
    for (int32_t r = 0; r < ROUNDS; r++)
        for (int32_t i = 0; i < NAMES; i++)
            for (int32_t rank = 0; rank < 2; rank++) {
                char name[32];
                snprintf(name, sizeof name, "v%d", i);
                tape_put_ints(w, r, i % 3 - 1, name, 1, &i);
                if (rank == 0) continue;
            }
    fmt_tape *t = tape_end(w, "names.tape");
    cap_names *n;
    OK(cap_names_make(t, &n, e));
    assert_int_equal(cap_names_count(n), ROUNDS * NAMES);
    for (int32_t r = 0; r < ROUNDS; r++)
        for (int32_t i = 0; i < NAMES; i++) {
            char name[32];
            snprintf(name, sizeof name, "v%d", i);
            int64_t at = cap_names_find(n, r, i % 3 - 1, name);
            assert_int_equal(at, r * NAMES + i);
            assert_string_equal(cap_names_at(n, (size_t)at)->name, name);
            assert_int_equal(cap_names_find(n, r, i % 3, name), -1);
        }
    assert_int_equal(cap_names_find(n, ROUNDS, -1, "v0"), -1);
    cap_names_free(n);
    fmt_tape_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_export_name_parses_back), cmocka_unit_test(what_no_tape_would_export_is_refused),
        cmocka_unit_test(the_longest_name_fits_the_buffer), cmocka_unit_test(values_stand_in_program_order),
        cmocka_unit_test(a_tape_lists_each_value_once_and_finds_it),
    };
    return cmocka_run_group_tests(tests, enter_folder, NULL);
}
