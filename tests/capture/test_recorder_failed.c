/* The recorder's counts, and what it leaves, after its writer failed. */
#include "recorder_help.h"

#include <signal.h>
#include <sys/resource.h>

/* ---- a flush that fails once ---- */

static int flushes_left = -1; /* until the one that fails; -1: none does */

err_code __real_fmt_tape_flush(fmt_tape_writer *w, err *e);
err_code __wrap_fmt_tape_flush(fmt_tape_writer *w, err *e);

err_code __wrap_fmt_tape_flush(fmt_tape_writer *w, err *e)
{
    if (flushes_left >= 0 && flushes_left-- == 0) return err_set(e, ERR_NOMEM, "no memory, as the test says");
    return __real_fmt_tape_flush(w, e);
}

/* The tape that a failed run closed. */
static fmt_tape *closed(session *s, const char *path)
{
    fmt_tape *t;
    REFUSED(cap_recorder_finish(s->recorder, e), ERR_NOMEM, "as the test says");
    end_session(s);
    OK(fmt_tape_open(path, &t, e));
    assert_true(fmt_tape_finished(t));
    assert_non_null(strstr(json_string_value(json_object_get(fmt_tape_summary(t), "failed")), "as the test says"));
    return t;
}

static void a_tape_is_closed_after_a_failure_where_it_can_be(void **state)
{
    const cap_options o = { .level = ENG_LEVEL_V1 };
    (void)state;
    session s = begin("closed.tape", 1, "eager", &o);
    flushes_left = 2; /* round 2's */
    for (int32_t i = 0; i < 5; i++) (void)!run_round(&s, i, true, NULL);
    wait_rounds(&s, 3);
    fmt_tape *t = closed(&s, "closed.tape");
    assert_int_equal(number(t, "rounds"), 2);
    assert_true(number(t, "dropped") >= 1);
    assert_int_equal(number(t, "values"), fmt_tape_count(t)); /* what was put is there, flushed once more */
    fmt_tape_close(t);
}

static void a_lost_round_is_counted_once(void **state)
{
    const cap_options o = { .level = ENG_LEVEL_IO };
    (void)state;
    session s = begin("once.tape", 1, "eager", &o);
    flushes_left = 0;
    cap_recorder_dropped(s.recorder, 7, "why not");
    for (cap_counts c = counts_of(&s); !c.failed[0]; c = counts_of(&s)) usleep(200);
    assert_int_equal(counts_of(&s).dropped, 1);
    fmt_tape *t = closed(&s, "once.tape");
    assert_int_equal(number(t, "dropped"), 1);
    assert_int_equal(fmt_tape_event_count(t), 1);
    fmt_tape_close(t);
}

/* ---- a disk that is full ---- */

static void limit_files(rlim_t bytes)
{
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static void counts_do_not_run_ahead_of_a_full_disk(void **state)
{
    const cap_options o = { .level = ENG_LEVEL_V1, .events_only = true };
    cap_counts c;
    fmt_tape *left;
    const int32_t *rounds;
    (void)state;
    session s = begin("full.tape", 1, "eager", &o);
    limit_files(200000);
    for (int32_t i = 0; i < ROUNDS; i++) OK(run_round(&s, i, true, e));
    REFUSED(cap_recorder_end(s.recorder, &c, e), ERR_IO, "full.tape");
    limit_files(RLIM_INFINITY);
    end_session(&s);
    OK(fmt_tape_open("full.tape.part", &left, e));
    assert_int_equal(c.rounds + c.dropped, ROUNDS);
    assert_true(c.rounds > 0 && c.rounds < ROUNDS);
    assert_int_equal(fmt_tape_rounds(left, &rounds), c.rounds);
    assert_int_equal(fmt_tape_count(left), c.values);
    fmt_tape_close(left);
}

/* ---- cost ---- */

/* Also of the steps whose values nobody had read when the last round was handed over. */
static void every_step_of_a_tape_is_timed_on_the_device(void **state)
{
    const cap_options o = { .level = ENG_LEVEL_V1, .depth = 64 };
    (void)state;
    fmt_tape *t = record_script("timed.tape", 1, "eager", &o);
    assert_int_equal(number(t, "device_shots"), number(t, "inserts") + number(t, "drafts"));
    fmt_tape_close(t);
}

static int setup(void **state)
{
    signal(SIGXFSZ, SIG_IGN);
    return make_long_model(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tape_is_closed_after_a_failure_where_it_can_be),
        cmocka_unit_test(a_lost_round_is_counted_once),
        cmocka_unit_test(counts_do_not_run_ahead_of_a_full_disk),
        cmocka_unit_test(every_step_of_a_tape_is_timed_on_the_device),
    };
    return cmocka_run_group_tests(tests, setup, drop_model);
}
