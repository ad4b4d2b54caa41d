#include "tui_help.h"

static void assert_keys(const char *text, size_t n, const int32_t *want)
{
    int32_t *keys;
    size_t got;
    OK(tui_keys_parse(text, strlen(text), "keys", &keys, &got, e));
    assert_int_equal(got, n);
    for (size_t i = 0; i < n; i++) assert_int_equal(keys[i], want[i]);
    free(keys);
}
#define KEYS(text, ...) assert_keys(text, COUNT_OF(((const int32_t[]){ __VA_ARGS__ })), (const int32_t[]){ __VA_ARGS__ })

static void names_characters_and_texts_are_keys(void **state)
{
    (void)state;
    KEYS("Enter Down\n o  q\t# the rest is a comment, Foo\nF6", TUI_KEY_ENTER, TUI_KEY_DOWN, 'o', 'q', TUI_KEY_F6);
    KEYS("enter PGDN space", TUI_KEY_ENTER, TUI_KEY_PGDN, ' ');
    KEYS("/ab Enter", '/', 'a', 'b', TUI_KEY_ENTER);
    KEYS(":x", ':', 'x');
    KEYS("g \"3, 4\" Enter", 'g', '3', ',', ' ', '4', TUI_KEY_ENTER);
    KEYS("\"#\" \" / ?", '#', '"', '/', '?');
    KEYS("\"\n\"", '"', '"');
    KEYS("\"\" [ ]", '[', ']');
}

static void an_unknown_word_is_named_with_file_and_line(void **state)
{
    (void)state;
    int32_t *keys;
    size_t n;
    REFUSED(tui_keys_parse("Enter\n\nFoo", 9 + 1, "my.keys", &keys, &n, e), ERR_INPUT, "my.keys: line 3: found 'Foo'");
    assert_null(keys);
    REFUSED(tui_keys_parse("\x01", 1, "k", &keys, &n, e), ERR_INPUT, "line 1");
    REFUSED(tui_keys_parse("a\0b", 3, "k", &keys, &n, e), ERR_INPUT, "line 1");
    REFUSED(tui_keys_read("no-such-file", &keys, &n, e), ERR_INPUT, "no-such-file");
    REFUSED(tui_keys_read(".", &keys, &n, e), ERR_INPUT, ".");
}

static void every_short_file_is_read_or_refused(void **state)
{
    (void)state;
    static const char BYTES[] = "a\"/:# \n\x80";
    enum { N = sizeof BYTES - 1 };
    char text[4];
    for (int i = 0; i < N * N * N * N; i++) {
        int32_t *keys;
        size_t n;
        err e = { 0 };
        for (int k = 0, rest = i; k < 4; k++, rest /= N) text[k] = BYTES[rest % N];
        err_code rc = tui_keys_parse(text, sizeof text, "k", &keys, &n, &e);
        assert_true(rc == ERR_OK || rc == ERR_INPUT);
        free(keys);
    }
}

static void no_key_means_two_things_on_a_screen(void **state)
{
    (void)state;
    for (uint32_t screen = 1; screen <= TUI_ON_ALL; screen *= 2)
        for (size_t i = 0; i < tui_bindings(); i++)
            for (int k = 0; k < TUI_BINDING_KEYS && tui_binding_at(i)->key[k]; k++)
                if (tui_binding_at(i)->screens & screen)
                    assert_ptr_equal(tui_binding_find(tui_binding_at(i)->key[k], screen), tui_binding_at(i));
    assert_null(tui_binding_find('Z', TUI_ON_ROUNDS));
    assert_null(tui_binding_find(TUI_KEY_NONE, TUI_ON_ROUNDS));
}

static void every_screen_has_help_back_and_quit(void **state)
{
    (void)state;
    for (uint32_t screen = 1; screen <= TUI_ON_ALL; screen *= 2) {
        assert_int_equal(tui_binding_find('?', screen)->action, TUI_DO_HELP);
        assert_int_equal(tui_binding_find('q', screen)->action, TUI_DO_BACK);
        assert_int_equal(tui_binding_find('Q', screen)->action, TUI_DO_QUIT);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_characters_and_texts_are_keys),
        cmocka_unit_test(an_unknown_word_is_named_with_file_and_line),
        cmocka_unit_test(every_short_file_is_read_or_refused),
        cmocka_unit_test(no_key_means_two_things_on_a_screen),
        cmocka_unit_test(every_screen_has_help_back_and_quit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
