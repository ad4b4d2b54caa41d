/* Errors: one line, never longer than its buffer, and exit statuses as documented. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/err.h"

static void a_message_is_kept_with_its_code(void **state)
{
    (void)state;
    err e = { 0 };
    assert_int_equal(err_set(&e, ERR_FORMAT, "%s: found %d, wanted %d", "file", 3, 4), ERR_FORMAT);
    assert_int_equal(e.code, ERR_FORMAT);
    assert_string_equal(e.msg, "file: found 3, wanted 4");
}

static void context_goes_in_front_and_the_code_stays(void **state)
{
    (void)state;
    err e = { 0 };
    err_set(&e, ERR_IO, "disk full");
    assert_int_equal(err_wrap(&e, "record %d", 41), ERR_IO);
    assert_string_equal(e.msg, "record 41: disk full");
}

static void control_characters_of_input_do_not_reach_a_terminal(void **state)
{
    (void)state;
    err e = { 0 };
    err_set(&e, ERR_FORMAT, "tensor %s", "a\x1b[2J\nb\x7f\xc3\xa9");
    assert_string_equal(e.msg, "tensor a?[2J?b?\xc3\xa9");
    err_wrap(&e, "file\r");
    assert_string_equal(e.msg, "file?: tensor a?[2J?b?\xc3\xa9");
    err_set(&e, ERR_FORMAT, "%s", "\xc2\x9b" "31m\x9b\xe2\x82"); /* the C1 code; bytes of no character */
    assert_string_equal(e.msg, "??31m???");
}

static void long_messages_and_contexts_are_cut_and_stay_terminated(void **state)
{
    (void)state;
    char text[3 * ERR_MSG_BYTES];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    err e = { 0 };
    err_set(&e, ERR_ARG, "%s", text);
    assert_int_equal(strlen(e.msg), ERR_MSG_BYTES - 1);
    err_wrap(&e, "%s", "front");
    assert_int_equal(strlen(e.msg), ERR_MSG_BYTES - 1);
    assert_memory_equal(e.msg, "front: xxx", 10);
    err_wrap(&e, "%s", text);
    assert_int_equal(strlen(e.msg), ERR_MSG_BYTES - 1);
}

static void no_place_for_the_message_is_allowed(void **state)
{
    (void)state;
    assert_int_equal(err_set(NULL, ERR_NOMEM, "x"), ERR_NOMEM);
}

static void exit_statuses_are_those_of_the_command_line(void **state)
{
    (void)state;
    assert_int_equal(err_exit_status(ERR_OK), 0);
    assert_int_equal(err_exit_status(ERR_ARG), 2);
    assert_int_equal(err_exit_status(ERR_FORMAT), 3);
    assert_int_equal(err_exit_status(ERR_INPUT), 3);
    assert_int_equal(err_exit_status(ERR_IDENTITY), 4);
    assert_int_equal(err_exit_status(ERR_IO), 5);
    assert_int_equal(err_exit_status(ERR_COUNT), 5);
    assert_string_equal(err_name(ERR_FORMAT), "FORMAT");
    assert_string_equal(err_text(ERR_OK), "ok");
}

static err_code passes_on(err_code rc, int *reached)
{
    TRY(rc);
    *reached = 1;
    return ERR_OK;
}

static void try_returns_the_first_error(void **state)
{
    (void)state;
    int reached = 0;
    assert_int_equal(passes_on(ERR_COMM, &reached), ERR_COMM);
    assert_int_equal(reached, 0);
    assert_int_equal(passes_on(ERR_OK, &reached), ERR_OK);
    assert_int_equal(reached, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_message_is_kept_with_its_code),
        cmocka_unit_test(context_goes_in_front_and_the_code_stays),
        cmocka_unit_test(control_characters_of_input_do_not_reach_a_terminal),
        cmocka_unit_test(long_messages_and_contexts_are_cut_and_stay_terminated),
        cmocka_unit_test(no_place_for_the_message_is_allowed),
        cmocka_unit_test(exit_statuses_are_those_of_the_command_line),
        cmocka_unit_test(try_returns_the_first_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
