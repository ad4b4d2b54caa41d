#include "tui_help.h"

#include "tui/model.h"

/* More rounds than the model keeps results of, 16 MiB. */
enum { MANY_ROUNDS = 300, VALUES = 80, ODD_ROUND = 7 };

/* Every round differs in value (round % VALUES), round ODD_ROUND in two. */
static fmt_tape *many_rounds(const char *path, bool other)
{
    fmt_tape_writer *w;
    fmt_tape *t;
    json_t *head = json_pack("{s:s}", "format", "sparktape");
    OK(fmt_tape_create(path, head, &w, e));
    json_decref(head);
    for (int32_t i = 0; i < MANY_ROUNDS; i++)
        for (int k = 0; k < VALUES; k++) {
            char name[16];
            float v[2] = { 1, (float)k };
            snprintf(name, sizeof name, "v%d", k);
            if (other && (k == i % VALUES || (i == ODD_ROUND && k == 0))) v[0] = 2;
            put_value(w, i, FMT_TAPE_NO_SLOT, name, FMT_DTYPE_F32, v, 1, 2, 1);
        }
    OK(fmt_tape_finish(w, NULL, e));
    OK(fmt_tape_open(path, &t, e));
    return t;
}

/* What the model has for a round is that round's, compared only now or long ago. */
static void check_round(tui_model *m, int32_t i)
{
    const rpl_round *r = tui_model_result(m, i);
    for (int tries = 0; !r && tries < 20000; tries++) { /* no longer kept: it comes */
        usleep(500);
        r = tui_model_result(m, i);
    }
    assert_non_null(r);
    assert_int_equal(r->round, i);
    assert_int_equal(r->n_values, VALUES);
    assert_int_equal(r->n_differ, i == ODD_ROUND ? 2 : 1);
    assert_true(r->value[i % VALUES].m.n_equal == 1 && r->value[i % VALUES].m.first == 0);
}

static int make_tapes(void **state)
{
    static fmt_tape *tape[2];
    if (enter_folder(state) != 0) return -1;
    tape[0] = many_rounds("a.tape", false);
    tape[1] = many_rounds("b.tape", true);
    *state = tape;
    return 0;
}

static int close_tapes(void **state)
{
    fmt_tape **tape = *state;
    fmt_tape_close(tape[0]);
    fmt_tape_close(tape[1]);
    return 0;
}

static void every_round_can_be_looked_at_long_after(void **state)
{
    fmt_tape **tape = *state;
    tui_model *m;
    OK(tui_model_open(tape[0], tape[1], &m, e));
    assert_true((uint64_t)MANY_ROUNDS * VALUES * sizeof(rpl_value) > 16u << 20); /* or the test proves nothing */
    OK(tui_model_finish(m, e));
    assert_int_equal(tui_model_rounds_done(m), MANY_ROUNDS);
    for (int32_t i = 0; i < MANY_ROUNDS; i += 12) check_round(m, i);
    for (int32_t i = 0; i < tui_model_requests(m); i++) {
        const tui_request *r = tui_model_request(m, i);
        assert_int_equal(r->worst, r->round % VALUES == 0 || r->round != ODD_ROUND ? r->round % VALUES : 0);
        assert_int_equal(r->verdict, TUI_VERDICT_DIFFERS);
    }
    tui_model_close(m);
}

static void rounds_can_be_looked_at_while_others_are_compared(void **state)
{
    enum { ENOUGH = 60 };
    fmt_tape **tape = *state;
    tui_model *m;
    int n_looked = 0;
    OK(tui_model_open(tape[0], tape[1], &m, e));
    OK(tui_model_start(m, e));
    for (int32_t i = 0; tui_model_rounds_done(m) < ENOUGH; i = (i + 1) % MANY_ROUNDS) {
        tui_model_want(m, (i * 7) % MANY_ROUNDS);
        usleep(200);
        if (!tui_model_result(m, i)) continue;
        check_round(m, i);
        n_looked++;
    }
    assert_true(n_looked > 0);
    for (int32_t i = MANY_ROUNDS - 1; i >= 0; i -= 30) check_round(m, i);
    tui_model_close(m); /* in the middle */
}

/* Paused, nothing is compared but what is looked at; going on, all is. */
static void a_stopped_comparison_shows_what_is_looked_at(void **state)
{
    fmt_tape **tape = *state;
    tui_model *m;
    OK(tui_model_open(tape[0], tape[1], &m, e));
    tui_model_pause(m, true);
    OK(tui_model_start(m, e));
    usleep(20000);
    assert_int_equal(tui_model_rounds_done(m), 0);
    assert_false(tui_model_is_working(m));
    check_round(m, 150);
    assert_int_equal(tui_model_rounds_done(m), 1);
    tui_model_pause(m, false);
    while (tui_model_rounds_done(m) < 9) usleep(1000);
    tui_model_close(m);
}

/* A longer tape's model keeps what the shorter one found. */
static void what_was_compared_is_adopted(void **state)
{
    fmt_tape **tape = *state;
    tui_model *old, *new;
    OK(tui_model_open(tape[0], tape[1], &old, e));
    tui_model_pause(old, true);
    OK(tui_model_start(old, e));
    check_round(old, 5);
    check_round(old, 250);
    OK(tui_model_open(tape[0], tape[1], &new, e));
    tui_model_adopt(new, old);
    tui_model_close(old);
    assert_int_equal(tui_model_rounds_done(new), 2);
    assert_int_equal(tui_model_request(new, 5)->verdict, TUI_VERDICT_DIFFERS);
    assert_int_equal(tui_model_request(new, 6)->verdict, TUI_VERDICT_PENDING);
    check_round(new, 250);
    tui_model_close(new);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_round_can_be_looked_at_long_after),
        cmocka_unit_test(rounds_can_be_looked_at_while_others_are_compared),
        cmocka_unit_test(a_stopped_comparison_shows_what_is_looked_at),
        cmocka_unit_test(what_was_compared_is_adopted),
    };
    return cmocka_run_group_tests(tests, make_tapes, close_tapes);
}
