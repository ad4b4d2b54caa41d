/* Screens: keys in, text out, against the files of golden/. SPARKTAPE_GOLDEN_WRITE=1 writes them anew: read the difference
 * before keeping it. */
#include "tui_help.h"

#include <time.h>

static fmt_tape *left, *right; /* round 1 of the right one differs from s0.attn_out on */

static int setup(void **state)
{
    if (enter_folder(state) != 0) return -1;
    left = make_tape("left.tape", "native-packed", (plant){ 0 });
    right = make_tape("right.tape", "mirror", (plant){ true, 1 });
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    fmt_tape_close(left);
    fmt_tape_close(right);
    return 0;
}

static char *read_golden(const char *path)
{
    FILE *f = fopen(path, "rb");
    char *text = f ? mem_alloc(1 << 16, 1) : NULL;
    if (f) {
        assert_true(text && fread(text, 1, (1 << 16) - 1, f) > 0);
        fclose(f);
    }
    return text;
}

static void assert_golden(const char *name, const char *keys, int32_t width, int32_t height, bool ascii, const fmt_tape *b)
{
    char path[512];
    snprintf(path, sizeof path, "%s/tui/golden/%s_%dx%d%s.txt", TESTS_DIR, name, width, height, ascii ? "_ascii" : "");
    char *got = screen_of(left, b, keys, width, height, ascii);
    if (getenv("SPARKTAPE_GOLDEN_WRITE")) {
        FILE *f = fopen(path, "wb");
        assert_true(f && fputs(got, f) >= 0 && fclose(f) == 0);
    }
    char *want = read_golden(path);
    if (!want || strcmp(got, want) != 0) fail_msg("%s\nfound:\n%s\nwanted:\n%s", path, got, want ? want : "(no file)\n");
    free(got);
    free(want);
}

/* Each screen and state at both sizes. */
static void the_screens_are_the_golden_ones(void **state)
{
    (void)state;
    static const struct { const char *name, *keys; bool alone; } CASES[] = {
        { "rounds", "", false },
        { "rounds_sorted", "s Down", false },
        { "rounds_filtered", "\"/slot 3\" Enter", false },
        { "rounds_help", "?", false },
        { "rounds_alone", "Down m", true },
        { "program_origin", "o", false },
        { "program_first_round", "Enter Down Down", false },
        { "program_alone", "Enter", true },
        { "program_help", "2 ?", false },
        { "value_origin", "o Enter", false },
        { "value_bits", "o Enter h e", false },
        { "value_one_pane", "o Enter Tab Tab Tab", false },
        { "value_goto", "o Enter g \"9,31\" Enter y", false },
        { "value_nan", "n Enter End Enter", false },
        { "value_alone", "Enter End Enter w", true },
        { "value_help", "3 ?", false },
    };
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        const fmt_tape *b = CASES[i].alone ? NULL : right;
        assert_golden(CASES[i].name, CASES[i].keys, 80, 24, false, b);
        assert_golden(CASES[i].name, CASES[i].keys, 120, 40, false, b);
    }
    assert_golden("program_origin", "o", 80, 24, true, right);
    assert_golden("value_origin", "o Enter", 80, 24, true, right);
}

static void assert_has(const char *keys, bool pair, const char *text)
{
    char *got = screen_of(left, pair ? right : NULL, keys, 80, 24, false);
    if (!strstr(got, text)) fail_msg("keys '%s' do not show '%s':\n%s", keys, text, got);
    free(got);
}

static void the_first_origin_is_two_keys_away(void **state)
{
    (void)state;
    assert_has("o", true, "o s0.attn_out");
    assert_has("o", true, "Program  round 1 slot 0");
    assert_has("o Enter", true, "3 of 960 differ");
    assert_has("o Enter y", true, "left.tape:1/-/s0.attn_out[");
    assert_has("o", false, "one tape alone");
}

static void keys_move_as_the_help_says(void **state)
{
    (void)state;
    assert_has("n", true, "round 1: origin");
    assert_has("n N", true, "no earlier different line");
    assert_has("End Enter", true, "Program  round 2 slot 3");
    assert_has("o ]", true, "Program  round 2 slot 0");
    assert_has("o ] ]", true, "no later round of this slot");
    assert_has("o Enter [", true, "Value  round 0 slot 0");
    assert_has("o Enter [", true, "s0.attn_out");
    assert_has("o Enter q q", true, "sparktape  Rounds");
    assert_has("o Enter Esc Esc Esc Esc", true, "sparktape  Rounds");
    assert_has("o Enter", true, " [3, 95]  A ");
    assert_has("o Enter Home e", true, " [3, 95]  A ");
    assert_has("o Enter e", true, " [4, 39]  A ");
    assert_has("o Enter e e", true, " [4, 79]  A ");
    assert_has("o Enter e e e", true, "no later element differs");
    assert_has("o Enter End w", true, " [3, 95]  A ");
    assert_has("o Enter g \"959\" Enter", true, "[9, 95]");
    assert_has("o Enter g \"10,0\" Enter", true, "is no index in");
    assert_has("o Enter g 1 Backspace 2 Esc", true, "Value  round 1");
    assert_has("m Down ' Up Up '", true, "no later marked line");
    assert_has("/zzz Enter", true, "no line has this text");
    assert_has("/origin Enter", true, "2 of 6 lines");
    assert_has("2 /attn Enter", true, "(filtered)");
    assert_has("2 n", true, "no later value differs");
    assert_has("3", true, "Value  round 0");
    assert_has("Enter n", false, "nothing differs");
    assert_has("n Enter /confidence Enter Enter", true, "NaN");
}

/* What the screens say of the planted difference is taken from the tapes: another tape shows another screen. */
static void equal_tapes_show_no_origin(void **state)
{
    (void)state;
    char *got = screen_of(left, left, "o", 80, 24, false);
    assert_non_null(strstr(got, "no origin found"));
    assert_null(strstr(got, "s0.attn_out"));
    free(got);
}

static void help_is_whole_on_the_smallest_usual_screen(void **state)
{
    (void)state;
    static const char *const KEYS[] = { "?", "2 ?", "3 ?" };
    for (size_t i = 0; i < COUNT_OF(KEYS); i++) {
        char *got = screen_of(left, right, KEYS[i], 80, 24, false);
        for (size_t k = 0; k < tui_bindings(); k++)
            if (tui_binding_at(k)->screens & (1u << i)) assert_non_null(strstr(got, tui_binding_at(k)->help));
        free(got);
    }
}

static void every_size_and_key_draws_inside_the_canvas(void **state)
{
    (void)state;
    static const char *const KEYS[] = { "", "?", "o", "o ?", "o Enter", "o Enter h", "o Enter End", "3 ?", "/x", "y" };
    static const int32_t SIZES[][2] = { { 1, 1 }, { 20, 5 }, { 40, 10 }, { 41, 11 }, { 80, 10 }, { 79, 24 }, { 300, 100 } };
    for (size_t i = 0; i < COUNT_OF(KEYS); i++)
        for (size_t k = 0; k < COUNT_OF(SIZES); k++) {
            free(screen_of(left, right, KEYS[i], SIZES[k][0], SIZES[k][1], false));
            free(screen_of(left, NULL, KEYS[i], SIZES[k][0], SIZES[k][1], true));
        }
}

/* No key of the table may crash any screen in any order: each pair of them is tried. */
static void any_two_keys_are_safe(void **state)
{
    (void)state;
    tui_model *m;
    tui_app app;
    OK(tui_model_open(left, right, &m, e));
    OK(tui_model_finish(m, e));
    OK(tui_app_init(&app, m, 80, 24, false, e));
    for (size_t i = 0; i < tui_bindings(); i++)
        for (size_t k = 0; k < tui_bindings(); k++) {
            const int32_t keys[] = { tui_binding_at(i)->key[0], tui_binding_at(k)->key[0], '1', TUI_KEY_ESC };
            for (size_t j = 0; j < COUNT_OF(keys); j++) {
                app.quit = false;
                tui_app_key(&app, keys[j]);
                tui_app_draw(&app);
                if (app.depth == 0) fail_msg("no screen is left");
            }
        }
    tui_app_fini(&app);
    tui_model_close(m);
}

static void comparing_in_the_background_gives_the_same(void **state)
{
    (void)state;
    tui_model *m;
    tui_app app;
    OK(tui_model_open(left, right, &m, e));
    OK(tui_app_init(&app, m, 80, 24, false, e));
    OK(tui_model_start(m, e));
    while (tui_model_is_working(m)) {
        tui_app_draw(&app);
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    }
    char *got = tui_canvas_text(tui_app_draw(&app)), *want = screen_of(left, right, "", 80, 24, false);
    assert_string_equal(got, want);
    free(got);
    free(want);
    tui_app_fini(&app);
    tui_model_close(m);
}

static void a_reference_opens_where_it_points(void **state)
{
    (void)state;
    tui_model *m;
    tui_app app;
    OK(tui_model_open(left, right, &m, e));
    OK(tui_app_init(&app, m, 80, 24, false, e));
    OK(tui_app_go(&app, "left.tape:1/-/s0.attn_out[4, 39]", e));
    char *got = tui_canvas_text(tui_app_draw(&app)), reference[256];
    assert_non_null(strstr(got, "[4, 39]"));
    tui_reference(&app, reference, sizeof reference);
    assert_string_equal(reference, "left.tape:1/-/s0.attn_out[4, 39]");
    free(got);
    REFUSED(tui_app_go(&app, "9", e), ERR_INPUT, "round 9 is not on the tape");
    REFUSED(tui_app_go(&app, "1/7", e), ERR_INPUT, "has no slot 7");
    REFUSED(tui_app_go(&app, "1/-/nothing", e), ERR_INPUT, "has no nothing");
    REFUSED(tui_app_go(&app, "1/-/s0.attn_out[10,0]", e), ERR_INPUT, "outside the value");
    tui_app_fini(&app);
    tui_model_close(m);
}

static void an_empty_tape_shows_empty_screens(void **state)
{
    (void)state;
    fmt_tape_writer *w;
    fmt_tape *t;
    json_t *head = json_pack("{s:s}", "format", "sparktape");
    OK(fmt_tape_create("empty.tape", head, &w, e));
    json_decref(head);
    OK(fmt_tape_finish(w, NULL, e));
    OK(fmt_tape_open("empty.tape", &t, e));
    static const char *const KEYS[] = { "", "Enter", "2 Down End ] o y n Enter", "3 w e h Tab g 1 Enter y ]",
                                        "s S m ' /x Enter" };
    for (size_t i = 0; i < COUNT_OF(KEYS); i++) {
        free(screen_of(t, NULL, KEYS[i], 80, 24, false));
        free(screen_of(t, t, KEYS[i], 80, 24, false));
        free(screen_of(left, t, KEYS[i], 80, 24, false));
    }
    fmt_tape_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_screens_are_the_golden_ones),
        cmocka_unit_test(the_first_origin_is_two_keys_away),
        cmocka_unit_test(keys_move_as_the_help_says),
        cmocka_unit_test(equal_tapes_show_no_origin),
        cmocka_unit_test(help_is_whole_on_the_smallest_usual_screen),
        cmocka_unit_test(every_size_and_key_draws_inside_the_canvas),
        cmocka_unit_test(any_two_keys_are_safe),
        cmocka_unit_test(comparing_in_the_background_gives_the_same),
        cmocka_unit_test(a_reference_opens_where_it_points),
        cmocka_unit_test(an_empty_tape_shows_empty_screens),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
