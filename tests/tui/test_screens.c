/* Screens: keys in, text out, against the files of golden/. SPARKTAPE_GOLDEN_WRITE=1 writes them anew: read the difference
 * before keeping it. */
#include "tui_help.h"

#include <time.h>

static fmt_tape *left, *right, *third; /* round 1 of the right one differs from s0.attn_out on, round 2 of the third */
static tui_arms arms_of[4];            /* of the first 1, 2, 3 of them, compared; 0: of others */

static int setup(void **state)
{
    if (enter_folder(state) != 0) return -1;
    left = make_tape("left.tape", "native-packed", (plant){ 0 });
    right = make_tape("right.tape", "mirror", (plant){ true, 1 });
    third = make_tape("third.tape", "mirror64", (plant){ true, 2 });
    const fmt_tape *tapes[] = { left, right, third };
    for (int n = 1; n <= 3; n++) {
        OK(tui_arms_init(&arms_of[n], tapes, n, e));
        OK(tui_arms_start(&arms_of[n], false, e));
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (int n = 1; n <= 3; n++) tui_arms_fini(&arms_of[n]);
    fmt_tape_close(left);
    fmt_tape_close(right);
    fmt_tape_close(third);
    return 0;
}

/* The screen that keys lead to on the first n tapes; the caller frees it. */
static char *screen_on(int n, const char *keys, int32_t width, int32_t height, bool ascii)
{
    stage s;
    arms_of[n].paused = false;
    stage_open_on(&s, &arms_of[n], width, height, ascii);
    stage_play(&s, keys);
    char *text = stage_text(&s);
    stage_close(&s);
    return text;
}

/* A tape of one round that is still being written, and lacks, reshapes and only hashes values of the left one. */
static fmt_tape *make_odd(fmt_tape_writer **w)
{
    fmt_tape *t;
    int32_t pos[2] = { 0, 1 }, slots[SLOTS] = { 0, 3 }, drafts[SLOTS * 2] = { 1, 2, 3, 4 };
    bf16 v[BLOCK * SLOTS * DIM] = { 0x3f80 };
    const fmt_tensor rows = fmt_tensor_make(FMT_DTYPE_BF16, v, 2, (const int64_t[]){ BLOCK * SLOTS, DIM });
    const fmt_tape_key hashed = { 0, -1, 0, "s0.attn_out" };
    json_t *head = json_pack("{s:s, s:{s:{s:s}}}", "format", "sparktape", "identity", "arm", "name", "other");
    OK(fmt_tape_create("odd.tape", head, w, e));
    json_decref(head);
    put_value(*w, 0, 0, "pos", FMT_DTYPE_I32, pos, 1, 2, 1);
    put_value(*w, 0, -1, "draft.slots", FMT_DTYPE_I32, slots, 1, SLOTS, 1);
    put_rows(*w, 0, -1, "x0", BLOCK, 0);
    OK(fmt_tape_put(*w, &hashed, &rows, FMT_PLACE_REPLICATED, 0, 1, FMT_TIER_HASH, e));
    put_rows(*w, 0, -1, "extra", 2, 0);
    put_value(*w, 0, -1, "drafts", FMT_DTYPE_I32, drafts, 2, SLOTS, 2);
    OK(fmt_tape_flush(*w, e));
    OK(fmt_tape_open("odd.tape.part", &t, e));
    return t;
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

static void assert_golden(const char *name, const char *keys, int32_t width, int32_t height, bool ascii, int n)
{
    char path[512];
    snprintf(path, sizeof path, "%s/tui/golden/%s_%dx%d%s.txt", TESTS_DIR, name, width, height, ascii ? "_ascii" : "");
    char *got = screen_on(n, keys, width, height, ascii);
    if (getenv("SPARKTAPE_GOLDEN_WRITE")) {
        FILE *f = fopen(path, "wb");
        assert_true(f && fputs(got, f) >= 0 && fclose(f) == 0);
    }
    char *want = read_golden(path);
    if (!want || strcmp(got, want) != 0) fail_msg("%s\nfound:\n%s\nwanted:\n%s", path, got, want ? want : "(no file)\n");
    free(got);
    free(want);
}

/* Each screen and state at three sizes. */
static void the_screens_are_the_golden_ones(void **state)
{
    (void)state;
    static const struct { const char *name, *keys; int n; } CASES[] = {
        { "rounds", "", 2 },
        { "rounds_sorted", "s s Down", 2 },
        { "rounds_filtered", "\"/slot 3\" Enter", 2 },
        { "rounds_expression", "f \"excess>0.1 && stage==0\" Enter", 2 },
        { "rounds_expression_wrong", "f \"excess>\" Enter", 2 },
        { "rounds_typing", "f \"kl>1\"", 2 },
        { "rounds_help", "?", 2 },
        { "rounds_alone", "Down m", 1 },
        { "rounds_three", "n", 3 },
        { "program_origin", "o", 2 },
        { "program_first_round", "Enter Down Down", 2 },
        { "program_sorted", "o s s", 2 },
        { "program_alone", "Enter", 1 },
        { "program_help", "2 ?", 2 },
        { "value_origin", "o Enter", 2 },
        { "value_bits", "o Enter h e", 2 },
        { "value_one_pane", "o Enter Tab Tab Tab", 2 },
        { "value_goto", "o Enter g \"9,31\" Enter y", 2 },
        { "value_nan", "n Enter End Enter", 2 },
        { "value_alone", "Enter End Enter w", 1 },
        { "value_three", "o Enter", 3 },
        { "value_histogram", "o Enter p", 2 },
        { "value_profile", "\":2/-/s0.attn.o_qdq\" Enter p p", 3 },
        { "value_block", "\":2/-/s0.attn.o_qdq[0,1,8]\" Enter b p p p h", 3 },
        { "value_help", "3 ?", 2 },
        { "routing", "\":1/3\" Enter 4 n", 2 },
        { "routing_alone", "4", 1 },
        { "routing_help", "4 ?", 2 },
        { "tokens", "o 5 n", 3 },
        { "tokens_alone", "5", 1 },
        { "tokens_help", "5 ?", 2 },
        { "matrix", "6 Right", 3 },
        { "matrix_alone", "6", 1 },
        { "matrix_help", "6 ?", 2 },
        { "info", "7", 3 },
        { "info_alone", "7 Down", 1 },
        { "info_help", "7 ?", 2 },
        { "output_nothing", ":diff Enter", 2 },
        { "certify_without_model", "c", 2 },
        { "attribute_without_model", "o a", 2 },
        { "export_typing", "o Enter x", 2 },
        { "export_wrong", "o Enter x Clear \"a.png\" Enter", 2 },
    };
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        assert_golden(CASES[i].name, CASES[i].keys, 80, 24, false, CASES[i].n);
        assert_golden(CASES[i].name, CASES[i].keys, 120, 40, false, CASES[i].n);
        assert_golden(CASES[i].name, CASES[i].keys, 200, 60, false, CASES[i].n);
    }
    assert_golden("rounds", "", 80, 24, true, 2);
    assert_golden("program_origin", "o", 80, 24, true, 2);
    assert_golden("value_origin", "o Enter", 80, 24, true, 2);
    assert_golden("routing", "\":1/3\" Enter 4 n", 80, 24, true, 2);
    assert_golden("matrix", "6 Right", 80, 24, true, 3);
}

/* What cannot be compared says why. */
static void odd_tapes_are_the_golden_ones(void **state)
{
    (void)state;
    static const struct { const char *name, *keys; } CASES[] = {
        { "odd_rounds", "" }, { "odd_program", "Enter" }, { "odd_info", "7" }, { "odd_tokens", "5" },
        { "odd_routing", "4" }, { "odd_shape", "\":0/-/x0\" Enter" }, { "odd_hash", "\":0/-/s0.attn_out\" Enter" },
        { "odd_missing", "\":0/-/s0.out\" Enter" }, { "odd_nowhere", "\":9/-/x0\" Enter" },
    };
    fmt_tape_writer *w;
    fmt_tape *odd = make_odd(&w);
    const fmt_tape *tapes[] = { left, odd };
    OK(tui_arms_init(&arms_of[0], tapes, 2, e));
    OK(tui_arms_start(&arms_of[0], false, e));
    for (size_t i = 0; i < COUNT_OF(CASES); i++) assert_golden(CASES[i].name, CASES[i].keys, 80, 24, false, 0);
    tui_arms_fini(&arms_of[0]);
    fmt_tape_close(odd);
    fmt_tape_discard(w);
}

static void assert_has(const char *keys, bool pair, const char *text)
{
    char *got = screen_on(pair ? 2 : 1, keys, 80, 24, false);
    if (!strstr(got, text)) fail_msg("keys '%s' do not show '%s':\n%s", keys, text, got);
    free(got);
}

static void the_first_origin_is_two_keys_away(void **state)
{
    (void)state;
    assert_has("o", true, "o s0.attn_out");
    assert_has("o", true, "Program  round 1 slot 0");
    assert_has("o Enter", true, "3 of 960 differ");
    assert_has("o Enter y", true, "right.tape:1/-/s0.attn_out["); /* of the side that is suspect */
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
    assert_has("Down /zzz Enter m", true, "no round is chosen");
    assert_has("Down /zzz Enter c", true, "no round is chosen");
    assert_has("Down /zzz Enter 2", true, "no values");
    assert_has("Down /zzz Enter / Enter", true, "> =      0     3"); /* the cursor is where it was */
    assert_has("/origin Enter", true, "2 of 6 lines");
    assert_has("2 /attn Enter", true, "(filtered)");
    assert_has("2 n", true, "no later value differs");
    assert_has("3", true, "Value  round 0");
    assert_has("Enter n", false, "nothing differs");
    assert_has("n Enter /confidence Enter Enter", true, "NaN");
    assert_has(":1/0 Enter 5 Down Down Down Down Down", true, "NaN"); /* a figure like others, not an unknown one */
}

static void an_export_says_whose_it_is_and_replaces_nothing(void **state)
{
    (void)state;
    assert_has("o Enter x", true, "r1-s0.attn_out-B.npy_"); /* of the suspect, unless a pane is alone */
    assert_has("o Enter Tab x Enter", true, "wrote r1-s0.attn_out-A.npy of A, native-packed: 2048 bytes");
    assert_has("o Enter Tab x Enter", true, "r1-s0.attn_out-A.npy exists: wanted another name, or ");
    assert_has("o Enter Tab x \"!\" Enter", true, "wrote r1-s0.attn_out-A.npy of A");
    assert_has("o Enter Tab 2 x Clear \"p.npy\" Enter", true, "wrote p.npy of B, mirror");
    assert_has("3 x Enter", false, "wrote r0-slot0-pos.npy, ");
    assert_has("Down Enter x", true, "program-r0-slot3.csv_");
    assert_has("x", true, "rounds.csv_");
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
    static const char *const KEYS[] = { "?", "2 ?", "3 ?", "4 ?", "5 ?", "6 ?", "7 ?" };
    for (size_t i = 0; i < COUNT_OF(KEYS); i++) {
        char *got = screen_on(2, KEYS[i], 80, 24, false), keys[64], line[128];
        for (size_t k = 0; k < tui_bindings(); k++) {
            const tui_binding *b = tui_binding_at(k);
            if (!(b->screens & (1u << i)) || !b->help) continue; /* the others' keys stand in a line before */
            snprintf(line, sizeof line, "%-11s%s", tui_binding_keys_text(k, 1u << i, 10, keys), b->help);
            if (!strstr(got, line)) fail_msg("'%s' is not in\n%s", line, got);
        }
        free(got);
    }
}

static void every_size_and_key_draws_inside_the_canvas(void **state)
{
    (void)state;
    static const char *const KEYS[] = { "", "?", "? ?", "o", "o ?", "o Enter", "o Enter h", "o Enter End", "3 ?", "/x", "y",
                                        "o Enter p", "o Enter p p", "o Enter p p p h", "4", "5", "6 Right Right",
                                        "7 End", ":zz Enter" };
    static const int32_t SIZES[][2] = { { 1, 1 }, { 20, 5 }, { 40, 10 }, { 41, 11 }, { 80, 10 }, { 79, 24 }, { 300, 100 } };
    for (size_t i = 0; i < COUNT_OF(KEYS); i++)
        for (size_t k = 0; k < COUNT_OF(SIZES); k++) {
            free(screen_on(3, KEYS[i], SIZES[k][0], SIZES[k][1], false));
            free(screen_on(1, KEYS[i], SIZES[k][0], SIZES[k][1], true));
        }
}

/* No key of the table may crash any screen in any order: each pair of them is tried. */
static void any_two_keys_are_safe(void **state)
{
    (void)state;
    stage s;
    stage_open_on(&s, &arms_of[3], 80, 24, false);
    for (size_t i = 0; i < tui_bindings(); i++)
        for (size_t k = 0; k < tui_bindings(); k++) {
            const int32_t keys[] = { tui_binding_at(i)->key[0], tui_binding_at(k)->key[0], TUI_KEY_ESC };
            for (size_t j = 0; j < COUNT_OF(keys); j++) {
                s.app.quit = false;
                tui_app_key(&s.app, keys[j]);
                tui_app_draw(&s.app);
                if (s.app.depth == 0) fail_msg("no screen is left");
            }
        }
    stage_close(&s);
}

/* Waits until nothing works any more, drawing as the loop does. */
static void settle(tui_app *app)
{
    do {
        tui_app_draw(app);
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    } while (tui_app_working(app));
}

static void working_in_the_background_gives_the_same(void **state)
{
    (void)state;
    static const char *const KEYS[] = { "", "o Enter", "o 4 n", "5", "6 Right", "7" };
    const fmt_tape *tapes[] = { left, right, third };
    const tui_tools tools = { .threaded = true };
    stage s;
    OK(tui_arms_init(&s.own, tapes, 3, e));
    OK(tui_arms_start(&s.own, true, e));
    s.arms = &s.own;
    OK(tui_app_init(&s.app, &s.own, &tools, 80, 24, e));
    settle(&s.app);
    for (size_t i = 0; i < COUNT_OF(KEYS); i++) {
        int32_t *key;
        size_t n;
        OK(tui_keys_parse(KEYS[i], strlen(KEYS[i]), "test", &key, &n, e));
        tui_app_key(&s.app, '1');
        tui_app_key(&s.app, TUI_KEY_HOME);
        for (size_t k = 0; k < n; k++) {
            tui_app_key(&s.app, key[k]);
            settle(&s.app);
        }
        char *got = stage_text(&s), *want = screen_on(3, KEYS[i], 80, 24, false);
        assert_string_equal(got, want);
        free(got);
        free(want);
        free(key);
        tui_use_pair(&s.app, 0, 1);
    }
    stage_close(&s);
}

static void a_reference_opens_where_it_points(void **state)
{
    (void)state;
    stage s;
    stage_open_on(&s, &arms_of[2], 80, 24, false);
    OK(tui_app_go(&s.app, "left.tape:1/-/s0.attn_out[4, 39]", e));
    char *got = stage_text(&s), reference[TUI_REFERENCE_BYTES];
    assert_non_null(strstr(got, "[4, 39]"));
    tui_reference(&s.app, reference);
    assert_string_equal(reference, "right.tape:1/-/s0.attn_out[4, 39]");
    free(got);
    REFUSED(tui_app_go(&s.app, "9", e), ERR_INPUT, "round 9 is not on the tape");
    REFUSED(tui_app_go(&s.app, "1/7", e), ERR_INPUT, "has no slot 7");
    REFUSED(tui_app_go(&s.app, "1/-/nothing", e), ERR_INPUT, "has no nothing");
    REFUSED(tui_app_go(&s.app, "1/-/s0.attn_out[10,0]", e), ERR_INPUT, "outside the value");
    tui_reference(&s.app, reference);
    assert_string_equal(reference, "right.tape:1/-/s0.attn_out[4, 39]"); /* a refused one leads nowhere */
    stage_close(&s);
}

static void a_click_moves_the_cursor_and_a_second_one_opens(void **state)
{
    (void)state;
    stage s;
    stage_open_on(&s, &arms_of[2], 80, 24, false);
    int32_t y = s.app.list_y;
    tui_app_click(&s.app, y + 3);
    tui_app_draw(&s.app);
    assert_int_equal(s.app.at.request, 3);
    tui_app_click(&s.app, y + 1);
    tui_app_draw(&s.app);
    assert_int_equal(s.app.at.request, 1);
    tui_app_click(&s.app, 0);
    tui_app_click(&s.app, y + 15);
    assert_int_equal(s.app.at.request, 1);
    tui_app_click(&s.app, y + 1);
    assert_string_equal(tui_app_screen(&s.app)->title, "Program");
    stage_close(&s);
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
                                        "s S m ' /x Enter", "4 n Tab Enter", "5 n Enter", "6 Enter", "7 Enter Down",
                                        "f \"kl>1\" Enter", "F P b c a :diff Enter", "x Enter" };
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
        cmocka_unit_test(odd_tapes_are_the_golden_ones),
        cmocka_unit_test(the_first_origin_is_two_keys_away),
        cmocka_unit_test(keys_move_as_the_help_says),
        cmocka_unit_test(an_export_says_whose_it_is_and_replaces_nothing),
        cmocka_unit_test(equal_tapes_show_no_origin),
        cmocka_unit_test(help_is_whole_on_the_smallest_usual_screen),
        cmocka_unit_test(every_size_and_key_draws_inside_the_canvas),
        cmocka_unit_test(any_two_keys_are_safe),
        cmocka_unit_test(working_in_the_background_gives_the_same),
        cmocka_unit_test(a_click_moves_the_cursor_and_a_second_one_opens),
        cmocka_unit_test(a_reference_opens_where_it_points),
        cmocka_unit_test(an_empty_tape_shows_empty_screens),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
