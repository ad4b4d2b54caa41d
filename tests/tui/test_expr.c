#include "tui_help.h"

#include "tui/config.h"
#include "tui/expr.h"

#include <math.h>

static const tui_expr_field FIELDS[] = { { "round", false }, { "excess", false }, { "verdict", true },
                                         { "marked", false } };

static tui_field get(void *line, int field)
{
    const tui_field *f = line;
    return f[field];
}

/* Round 3, excess 4.5, verdict "origin", not marked. */
static bool passes(const char *text)
{
    tui_expr x;
    tui_field line[] = { { 3, NULL }, { 4.5, NULL }, { NAN, "origin" }, { 0, NULL } };
    OK(tui_expr_parse(text, FIELDS, COUNT_OF(FIELDS), &x, e));
    return tui_expr_passes(&x, get, line);
}

static void expressions_mean_what_they_say(void **state)
{
    (void)state;
    static const struct { const char *text; bool passes; } CASES[] = {
        { "", true }, { "  ", true }, { "excess>4", true }, { "excess > 4.5", false }, { "excess>=4.5", true },
        { "round==3", true }, { "round=3", true }, { "round!=3", false }, { "round<3", false }, { "round<=3", true },
        { "verdict==origin", true }, { "verdict == \"origin\"", true }, { "verdict!=equal", true }, { "verdict~RIG", true },
        { "verdict~x", false }, { "verdict", true }, { "marked", false }, { "!marked", true }, { "!!round", true },
        { "round==3 && excess>9 || verdict==origin", true }, { "round==3 && (excess>9 || verdict==equal)", false },
        { "!(round==3 && excess>4)", false }, { "Round==3 && EXCESS>1e0", true },
    };
    for (size_t i = 0; i < COUNT_OF(CASES); i++)
        if (passes(CASES[i].text) != CASES[i].passes) fail_msg("'%s' says the opposite", CASES[i].text);
}

static void a_field_without_a_figure_compares_false(void **state)
{
    (void)state;
    tui_expr x;
    tui_field none[] = { { NAN, NULL }, { NAN, NULL }, { NAN, "" }, { NAN, NULL } };
    static const char *const TEXTS[] = { "round==3", "round!=3", "excess<1", "excess>=1", "round", "verdict" };
    for (size_t i = 0; i < COUNT_OF(TEXTS); i++) {
        OK(tui_expr_parse(TEXTS[i], FIELDS, COUNT_OF(FIELDS), &x, e));
        if (tui_expr_passes(&x, get, none)) fail_msg("'%s' passes", TEXTS[i]);
    }
}

static void what_is_no_expression_is_refused_by_place_and_word(void **state)
{
    (void)state;
    tui_expr x;
    static const struct { const char *text, *word; } CASES[] = {
        { "excess>", "found 'the end', wanted a number" }, { "colour==1", "found 'colour==1', wanted a field" },
        { "(round==3", "wanted a closing bracket" }, { "round==3)", "found ')', wanted && or ||" },
        { "&& round", "wanted a field" },
        { "round==3 excess", "wanted && or ||" }, { "verdict==\"orig", "wanted a text" },
        { "!", "wanted a field" }, { "excess>x", "found 'x', wanted a number" }, { "excess>nan", "wanted a number" },
        { "round ~ 3", "found '~ 3', wanted ==" },
    };
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        REFUSED(tui_expr_parse(CASES[i].text, FIELDS, COUNT_OF(FIELDS), &x, e), ERR_ARG, CASES[i].word);
        assert_int_equal(x.n, 0);
    }
    char deep[200];
    memset(deep, '(', sizeof deep - 1);
    deep[sizeof deep - 1] = 0;
    REFUSED(tui_expr_parse(deep, FIELDS, COUNT_OF(FIELDS), &x, e), ERR_ARG, "fewer ( and !");
    size_t n = 0;
    while (n + 12 < sizeof deep) n += (size_t)snprintf(deep + n, sizeof deep - n, "marked||");
    snprintf(deep + n, sizeof deep - n, "round");
    OK(tui_expr_parse(deep, FIELDS, COUNT_OF(FIELDS), &x, e));
}

/* ---- settings ---- */

static void settings_bind_keys_and_are_checked(void **state)
{
    (void)state;
    static const struct { const char *text, *word; } WRONG[] = {
        { "bind nowhere x", "test: line 1: found action 'nowhere'" },
        { "\nbind origin q", "test: line 2: origin: the key q" },
        { "bind origin Dwon", "Dwon" }, { "set mouse maybe", "wanted on or off" }, { "set sound on", "found 'sound'" },
        { "bind origin a b c d", "found 4 keys" }, { "unbind x", "found 'unbind x'" },
        { "bind quit", "quit: found no key" }, { "set mouse on off", "found 'set mouse on off'" },
    };
    static const char GOOD[] = "# mine\n  bind origin O F5\nbind next-different n \"#\"\nset mouse on # off: no\n"
                               "set color off\n\n";
    tui_config c = { 0 };
    OK(tui_config_parse(GOOD, sizeof GOOD - 1, "test", &c, e));
    assert_true(c.mouse && c.no_color && !c.ascii);
    assert_int_equal(tui_binding_find('O', TUI_ON_VALUE)->action, TUI_DO_ORIGIN);
    assert_int_equal(tui_binding_find(TUI_KEY_F5, TUI_ON_ROUNDS)->action, TUI_DO_ORIGIN);
    assert_int_equal(tui_binding_find('#', TUI_ON_ROUNDS)->action, TUI_DO_NEXT_DIFFERENT);
    assert_null(tui_binding_find('o', TUI_ON_ROUNDS));
    tui_bindings_reset();
    assert_int_equal(tui_binding_find('o', TUI_ON_ROUNDS)->action, TUI_DO_ORIGIN);
    for (size_t i = 0; i < COUNT_OF(WRONG); i++)
        REFUSED(tui_config_parse(WRONG[i].text, strlen(WRONG[i].text), "test", &c, e), ERR_INPUT, WRONG[i].word);
    tui_bindings_reset();
    OK(tui_config_parse("bind goto q2", 0, "test", &c, e)); /* no bytes, no lines */
}

static void an_action_may_be_left_without_a_key(void **state)
{
    (void)state;
    char keys[64];
    OK(tui_binding_set("origin", NULL, 0, e));
    assert_null(tui_binding_find('o', TUI_ON_ROUNDS));
    for (size_t i = 0; i < tui_bindings(); i++)
        if (tui_binding_at(i)->action == TUI_DO_ORIGIN)
            assert_string_equal(tui_binding_keys_text(i, TUI_ON_ROUNDS, 10, keys), "");
    tui_bindings_reset();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(expressions_mean_what_they_say),
        cmocka_unit_test(a_field_without_a_figure_compares_false),
        cmocka_unit_test(what_is_no_expression_is_refused_by_place_and_word),
        cmocka_unit_test(settings_bind_keys_and_are_checked),
        cmocka_unit_test(an_action_may_be_left_without_a_key),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
