#include "tui_help.h"

#include "tui/table.h"

static tui_canvas make(int32_t width, int32_t height, bool ascii)
{
    tui_canvas c = { .ascii = ascii };
    OK(tui_canvas_resize(&c, width, height, e));
    return c;
}

static void assert_text(tui_canvas *c, const char *want)
{
    char *got = tui_canvas_text(c);
    assert_string_equal(got, want);
    free(got);
    tui_canvas_fini(c);
}

static void text_is_clipped_at_every_edge(void **state)
{
    (void)state;
    tui_canvas c = make(6, 3, false);
    tui_put(&c, -2, 0, 10, TUI_PLAIN, "abcdef");
    tui_put(&c, 4, 1, 10, TUI_PLAIN, "xyz");
    tui_put(&c, 0, -1, 10, TUI_PLAIN, "never");
    tui_put(&c, 0, 3, 10, TUI_PLAIN, "never");
    tui_put(&c, 100, 1, 10, TUI_PLAIN, "never");
    tui_glyph(&c, -1, 2, TUI_PLAIN, 'x');
    tui_box(&c, (tui_rect){ 3, 2, 10, 10 }, TUI_PLAIN, "t");
    tui_mark(&c, (tui_rect){ -3, -3, 100, 100 }, TUI_SELECTED);
    assert_text(&c, "cdef\n    xy\n   \u250c\u2500\n");
}

static void longer_text_ends_in_an_ellipsis(void **state)
{
    (void)state;
    tui_canvas c = make(10, 3, false);
    assert_int_equal(tui_put(&c, 0, 0, 4, TUI_PLAIN, "abcdef"), 4);
    assert_int_equal(tui_put(&c, 0, 1, 6, TUI_PLAIN, "abcdef"), 6);
    tui_put_right(&c, 0, 2, 8, TUI_PLAIN, "12");
    assert_int_equal(tui_put(&c, 0, 2, 0, TUI_PLAIN, "abc"), 0);
    assert_text(&c, "abc\u2026\nabcdef\n      12\n");
}

static void long_text_takes_lines_of_whole_glyphs(void **state)
{
    (void)state;
    tui_canvas c = make(6, 4, false);
    static const char TEXT[] = "ab\u2260cdefgh";
    assert_int_equal(tui_lines_of(TEXT, 3), 3);
    assert_int_equal(tui_lines_of("abc", 3), 1);
    assert_int_equal(tui_lines_of("", 3), 1);
    tui_put_lines(&c, (tui_rect){ 1, 1, 3, 2 }, TUI_PLAIN, TEXT);
    assert_string_equal(tui_skip(TEXT, 3), "cdefgh");
    assert_string_equal(tui_skip(TEXT, 30), "");
    assert_text(&c, "\n ab\u2260\n cde\n\n");
}

static void control_and_wide_characters_show_as_question_marks(void **state)
{
    (void)state;
    tui_canvas c = make(20, 2, false);
    tui_put(&c, 0, 0, 20, TUI_PLAIN, "a\x1b[31m\tb\x7f\u4e2d\u00e9");
    tui_put(&c, 0, 1, 20, TUI_PLAIN, "\xff\xc3(\xe2\x86");
    assert_text(&c, "a?[31m?b??\u00e9\n?" "?(?" "?\n");
}

static void ascii_mode_leaves_no_other_byte(void **state)
{
    (void)state;
    tui_canvas c = make(40, 4, true);
    tui_put(&c, 0, 0, 20, TUI_PLAIN, "\u2193 \u2260 B\u2212A \u00e9 \u2026");
    tui_bar(&c, 0, 1, 4, TUI_PLAIN, 0.7);
    for (int i = 0; i <= TUI_HEAT_LEVELS; i++) tui_glyph(&c, i, 2, TUI_PLAIN, tui_heat_glyph(i));
    tui_put(&c, 0, 3, 3, TUI_PLAIN, "abcd");
    assert_text(&c, "v # B-A ? ~\n==-\n.:-=+*%#@\nab~\n");
}

static void a_bar_shows_anything_above_nothing(void **state)
{
    (void)state;
    tui_canvas c = make(10, 5, true);
    const double share[] = { 0, 1e-9, 0.5, 1, (double)NAN };
    for (int i = 0; i < 5; i++) tui_bar(&c, 0, i, 4, TUI_PLAIN, share[i]);
    assert_text(&c, "\n-\n==\n====\n\n");
}

static void a_canvas_survives_growing_and_shrinking(void **state)
{
    (void)state;
    tui_canvas c = make(3, 1, false);
    tui_put(&c, 0, 0, 3, TUI_PLAIN, "abc");
    OK(tui_canvas_resize(&c, 200, 60, e));
    tui_put(&c, 199, 59, 1, TUI_PLAIN, "z");
    OK(tui_canvas_resize(&c, 2, 2, e));
    assert_text(&c, "\n\n");
}

static void narrow_layouts_drop_the_columns_of_highest_rank(void **state)
{
    (void)state;
    static const tui_column COLUMNS[] = { { "a", 4, 4, 0, false, false }, { "b", 4, 6, 2, false, false },
                                          { "c", 4, 4, 1, false, false }, { "d", 4, 4, 0, false, true } };
    tui_layout l = tui_layout_of(COLUMNS, 4, 0, 22, true);
    assert_int_equal(l.width[1], 6); /* 4 + 6 + 4 + 4 and 3 gaps: the spare columns go to b */
    l = tui_layout_of(COLUMNS, 4, 0, 14, true);
    assert_int_equal(l.width[1], 0);
    assert_int_equal(l.width[2], 4);
    l = tui_layout_of(COLUMNS, 4, 0, 10, true);
    assert_int_equal(l.width[2], 0);
    l = tui_layout_of(COLUMNS, 4, 0, 100, false);
    assert_int_equal(l.width[3], 0);
}

static void numbers_fit_their_width(void **state)
{
    (void)state;
    static const double V[] = { 0, 1, -1.5, 1e-38, -1.2345678e-5, 123456789, -3.4e38, 0.1, 1e300, -1e-300 };
    char buf[32];
    for (size_t i = 0; i < COUNT_OF(V); i++) assert_true(strlen(tui_number(V[i], 8, buf)) <= 8);
    assert_string_equal(tui_number((double)NAN, 8, buf), "NaN");
    assert_string_equal(tui_count(UINT64_MAX, 5, buf), "NaN");
    assert_string_equal(tui_count(99999, 5, buf), "99999");
    assert_string_equal(tui_count(1234567, 5, buf), "1234k");
    assert_true(strlen(tui_count(UINT64_MAX - 1, 5, buf)) <= 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_is_clipped_at_every_edge),
        cmocka_unit_test(longer_text_ends_in_an_ellipsis),
        cmocka_unit_test(long_text_takes_lines_of_whole_glyphs),
        cmocka_unit_test(control_and_wide_characters_show_as_question_marks),
        cmocka_unit_test(ascii_mode_leaves_no_other_byte),
        cmocka_unit_test(a_bar_shows_anything_above_nothing),
        cmocka_unit_test(a_canvas_survives_growing_and_shrinking),
        cmocka_unit_test(narrow_layouts_drop_the_columns_of_highest_rank),
        cmocka_unit_test(numbers_fit_their_width),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
