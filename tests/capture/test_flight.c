/* The flight recorder: rounds in memory, what calls for them, and how they give way. */
#include "honest.h"
#include "slow_disk.h"

static bf16 OTHER[2 * 96] = { 0x3f80, 0x4040 };
static const cli_list DIFFERS = { 1, { "differs:ref.tape" } };

/* As short_round; odd: from another row than the reference's. */
static void a_round(const session *s, int32_t round, bool odd)
{
    const eng_insert_event in = { 0, 1, odd ? OTHER : ROW, &round };
    const eng_round at = { .round = round, .n_inserts = 1, .inserts = &in };
    OK(cap_recorder_round(s->recorder, &at, &(int32_t){ 0 }, NULL, NULL, e));
}

static void wait_judged(const session *s, uint64_t n)
{
    for (cap_counts c = counts_of(s); c.judged + c.dropped < n; c = counts_of(s)) usleep(200);
}

static void assert_rounds(const fmt_tape *t, size_t n, const int32_t *wanted)
{
    const int32_t *rounds;
    assert_int_equal(fmt_tape_rounds(t, &rounds), n);
    for (size_t i = 0; i < n; i++) assert_int_equal(rounds[i], wanted[i]);
}

static json_int_t in_flight(const fmt_tape *t, const char *key)
{
    const json_t *n = json_object_get(json_object_get(fmt_tape_summary(t), "when"), key);
    if (!json_is_integer(n)) fail_msg("the summary's `when` lacks %s", key);
    return json_integer_value(n);
}

/* The i-th event is a trigger of that round. */
static const json_t *trigger_at(const fmt_tape *t, size_t i, int32_t round)
{
    int32_t at;
    const json_t *event = fmt_tape_event_at(t, i, &at);
    assert_string_equal(json_string_value(json_object_get(event, "event")), "trigger");
    assert_int_equal(at, round);
    return event;
}

static json_int_t before(const json_t *event) { return json_integer_value(json_object_get(event, "before")); }

/* Every record of t is one of all, with the same bits. */
static void assert_part_of(const fmt_tape *t, const fmt_tape *all)
{
    for (size_t i = 0; i < fmt_tape_count(t); i++) {
        fmt_tape_record a, b;
        fmt_tape_at(t, i, &a);
        int64_t k = fmt_tape_find(all, &a.key);
        if (k < 0) fail_msg("%s of round %d is not there", a.key.name, a.key.round);
        fmt_tape_at(all, (size_t)k, &b);
        assert_true(a.hash == b.hash && a.raw_bytes == b.raw_bytes);
    }
}

/* ---- what is kept ---- */

/* Rounds 4 and 5, then 12, differ from the reference. */
static void the_rounds_before_a_trigger_are_kept_once(void **state)
{
    static const int32_t KEPT[] = { 1, 2, 3, 4, 5, 9, 10, 11, 12 };
    static const json_int_t BEFORE[] = { 3, 0, 3 };
    const cap_options plain = { .level = ENG_LEVEL_V1 };
    const cap_options o = { .level = ENG_LEVEL_V1, .when = &DIFFERS, .flight = 3, .round_steps = 1 };
    (void)state;
    for (int pass = 0; pass < 2; pass++) {
        session s = begin(pass ? "all.tape" : "ref.tape", 1, "eager", &plain);
        for (int32_t i = 0; i < 15; i++) a_round(&s, i, pass && (i == 4 || i == 5 || i == 12));
        fmt_tape_close(finish(&s, pass ? "all.tape" : "ref.tape"));
    }
    session s = begin("flight.tape", 1, "eager", &o);
    for (int32_t i = 0; i < 15; i++) a_round(&s, i, i == 4 || i == 5 || i == 12);
    fmt_tape *t = finish(&s, "flight.tape"), *all;
    OK(fmt_tape_open("all.tape", &all, e));
    assert_rounds(t, COUNT_OF(KEPT), KEPT);
    assert_part_of(t, all);
    assert_int_equal(fmt_tape_event_count(t), 3);
    for (size_t i = 0; i < 3; i++) assert_int_equal(before(trigger_at(t, i, i == 0 ? 4 : i == 1 ? 5 : 12)), BEFORE[i]);
    assert_int_equal(in_flight(t, "judged"), 15);
    assert_int_equal(in_flight(t, "fired"), 3);
    assert_int_equal(in_flight(t, "flight"), 3);
    assert_int_equal(json_integer_value(json_object_get(fmt_tape_head(t), "flight")), 3);
    assert_honest(t);
    fmt_tape_close(t);
    fmt_tape_close(all);
}

/* Whole rounds of several steps, prompts of more than a bucket, two ranks: all that was in memory is on the tape. */
static void rounds_of_many_steps_come_back_whole(void **state)
{
    const cap_options plain = { .level = ENG_LEVEL_V1 };
    (void)state;
    fmt_tape *all = record_script("all.tape", 2, "graph", &plain);
    for (cap_on_full full = CAP_BLOCK; full <= CAP_DROP; full++) {
        const cap_options o = { .level = ENG_LEVEL_V1, .flight = 4, .insert_rows = 172, .on_full = full };
        session s = begin("whole.tape", 2, "graph", &o);
        for (int32_t i = 0; i < ROUNDS; i++) {
            if (i == 8) cap_recorder_trigger(s.recorder, "the test");
            OK(run_round(&s, i, true, e));
            wait_judged(&s, (uint64_t)i + 1);
        }
        fmt_tape *t = finish(&s, "whole.tape");
        assert_rounds(t, 5, (const int32_t[]){ 4, 5, 6, 7, 8 });
        assert_part_of(t, all);
        size_t first, n, n_all = 0;
        for (int32_t r = 4; r <= 8; r++) {
            fmt_tape_round_span(all, r, &first, &n);
            n_all += n;
        }
        assert_int_equal(fmt_tape_count(t), n_all);
        assert_string_equal(json_string_value(json_object_get(trigger_at(t, 0, 8), "when")), "the test");
        assert_int_equal(in_flight(t, "asked"), 1);
        assert_int_equal(in_flight(t, "evicted"), 0);
        assert_honest(t);
        fmt_tape_close(t);
    }
    fmt_tape_close(all);
}

static void what_is_asked_for_after_the_last_round_is_kept_at_the_end(void **state)
{
    const cap_options o = { .level = ENG_LEVEL_IO, .flight = 2, .round_steps = 1 };
    (void)state;
    session s = begin("late.tape", 1, "eager", &o);
    for (int32_t i = 0; i < 5; i++) a_round(&s, i, false);
    wait_judged(&s, 5);
    cap_recorder_trigger(s.recorder, "late");
    fmt_tape *t = finish(&s, "late.tape");
    assert_rounds(t, 2, (const int32_t[]){ 3, 4 });
    assert_string_equal(json_string_value(json_object_get(trigger_at(t, 0, 4), "when")), "late");
    assert_honest(t);
    fmt_tape_close(t);
}

static void nothing_is_written_before_a_trigger(void **state)
{
    const cap_options o = { .level = ENG_LEVEL_V1, .flight = 3, .round_steps = 1 };
    (void)state;
    session s = begin("quiet.tape", 1, "eager", &o);
    uint64_t at_first = counts_of(&s).tape_bytes;
    for (int32_t i = 0; i < 20; i++) a_round(&s, i, false);
    wait_judged(&s, 20);
    cap_counts c = counts_of(&s);
    assert_int_equal(c.tape_bytes, at_first);
    assert_int_equal(c.rounds + c.fired + c.dropped, 0);
    fmt_tape *t = finish(&s, "quiet.tape");
    assert_int_equal(fmt_tape_count(t), 0);
    assert_honest(t);
    fmt_tape_close(t);
}

/* ---- room ---- */

/* The longest prompts make the pool anew: what is in memory goes, and steps never wait for it or are lost to it. */
static void rounds_in_memory_give_way_to_steps(void **state)
{
    (void)state;
    for (cap_on_full full = CAP_BLOCK; full <= CAP_DROP; full++) {
        const cap_options o = { .level = ENG_LEVEL_V1, .flight = 8, .round_steps = 2, .depth = 1, .insert_rows = 1,
                                .on_full = full };
        session s = begin("room.tape", 1, "eager", &o); /* 18 shots, and rounds of up to five steps */
        for (int32_t i = 0; i < ROUNDS; i++) {
            OK(run_round(&s, i, true, e));
            wait_judged(&s, (uint64_t)i + 1);
        }
        cap_recorder_trigger(s.recorder, "the end");
        fmt_tape *t = finish(&s, "room.tape");
        const int32_t *rounds;
        size_t n = fmt_tape_rounds(t, &rounds);
        assert_int_equal(number(t, "dropped"), 0);
        assert_true(in_flight(t, "evicted") > 0 && n > 0 && n < 8);
        assert_int_equal(rounds[n - 1], ROUNDS - 1); /* the oldest went */
        assert_int_equal(rounds[0], ROUNDS - (int32_t)n);
        assert_int_equal(before(trigger_at(t, 0, ROUNDS - 1)), n);
        assert_honest(t);
        fmt_tape_close(t);
    }
}

/* A round of more steps than there are shots cannot be judged: it is dropped, by name, and the others are not. */
static void a_round_without_room_is_dropped_whole_and_named(void **state)
{
    static const cli_list ALL = { 1, { "range:1e30..2e30" } };
    const cap_options o = { .level = ENG_LEVEL_V1, .when = &ALL, .round_steps = 1, .depth = 3 };
    int32_t n_long = 0;
    (void)state;
    session s = begin("long.tape", 1, "eager", &o);
    for (int32_t i = 0; i < ROUNDS; i++) {
        const eng_round *round = eng_script_at(s.script, i);
        n_long += round->n_inserts + (round->batch > 0) > 3;
        OK(run_round(&s, i, true, e));
    }
    fmt_tape *t = finish(&s, "long.tape");
    assert_true(n_long > 0 && n_long < ROUNDS);
    assert_int_equal(number(t, "dropped"), n_long);
    assert_int_equal(number(t, "rounds"), ROUNDS - n_long);
    assert_honest(t);
    fmt_tape_close(t);
}

static void memory_that_cannot_hold_the_rounds_is_refused(void **state)
{
    const eng_options run = options_of(1, NULL);
    const cap_options o = { .level = ENG_LEVEL_V1, .flight = 100, .memory_bytes = 4 << 20 };
    json_t *identity = json_object();
    eng_engine *g;
    cap_recorder *r;
    (void)state;
    OK(eng_open(weights, &run, 1, ENG_LEVEL_V1, true, &g, e));
    REFUSED(cap_recorder_open(g, "small.tape", identity, &o, &r, e), ERR_ARG, "--flight");
    assert_int_equal(access("small.tape.part", F_OK), -1);
    json_decref(identity);
    eng_close(g);
}

/* The disk stands still while rounds from memory are written: later rounds find no room and are counted. */
static void a_slow_disk_costs_rounds_never_steps(void **state)
{
    const cap_options o = { .level = ENG_LEVEL_V1, .flight = 2, .round_steps = 1, .depth = 1, .on_full = CAP_DROP };
    (void)state;
    session s = begin("slow.tape", 1, "eager", &o); /* three shots */
    for (int32_t i = 0; i < 2; i++) a_round(&s, i, false);
    wait_judged(&s, 2);
    disk_set(true);
    cap_recorder_trigger(s.recorder, "now");
    a_round(&s, 2, false);
    disk_wait();
    for (int32_t i = 3; i < 9; i++) a_round(&s, i, false);
    cap_counts c = counts_of(&s);
    assert_int_equal(c.waits, 0);
    disk_set(false);
    wait_judged(&s, 9);
    c = counts_of(&s);
    assert_int_equal(c.judged + c.dropped, 9);
    assert_true(c.dropped > 0);
    fmt_tape *t = finish(&s, "slow.tape");
    assert_rounds(t, 3, (const int32_t[]){ 0, 1, 2 });
    assert_honest(t);
    fmt_tape_close(t);
}

/* ---- ends ---- */

static void discarding_with_rounds_in_memory_leaves_nothing(void **state)
{
    const cap_options o = { .level = ENG_LEVEL_V1, .when = &DIFFERS, .flight = 3, .round_steps = 1 };
    (void)state;
    session s = begin("discard.tape", 1, "eager", &o);
    for (int32_t i = 0; i < 5; i++) a_round(&s, i, false);
    cap_recorder_trigger(s.recorder, "too late");
    cap_recorder_discard(s.recorder);
    end_session(&s);
    assert_int_equal(access("discard.tape", F_OK), -1);
    assert_int_equal(access("discard.tape.part", F_OK), -1);
}

static void tapes_that_rotate_count_their_own_rounds(void **state)
{
    const cap_options o = { .level = ENG_LEVEL_V1, .when = &DIFFERS, .flight = 1, .round_steps = 1, .rotate_bytes = 1 };
    static const int32_t KEPT[][1] = { { 1 }, { 2 }, { 6 }, { 7 } };
    json_int_t judged = 0, fired = 0;
    (void)state;
    session s = begin("turn.tape", 1, "eager", &o);
    for (int32_t i = 0; i < 10; i++) {
        a_round(&s, i, i == 2 || i == 7);
        wait_judged(&s, (uint64_t)i + 1);
    }
    OK(cap_recorder_finish(s.recorder, e));
    end_session(&s);
    for (int k = 0; k < 4; k++) {
        char path[32];
        fmt_tape *t;
        snprintf(path, sizeof path, "turn-%06d.tape", k);
        OK(fmt_tape_open(path, &t, e));
        assert_rounds(t, 1, KEPT[k]);
        judged += in_flight(t, "judged");
        fired += in_flight(t, "fired");
        fmt_tape_close(t);
    }
    assert_int_equal(judged, 8); /* the last two were after the last tape */
    assert_int_equal(fired, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_rounds_before_a_trigger_are_kept_once),
        cmocka_unit_test(rounds_of_many_steps_come_back_whole),
        cmocka_unit_test(what_is_asked_for_after_the_last_round_is_kept_at_the_end),
        cmocka_unit_test(nothing_is_written_before_a_trigger),
        cmocka_unit_test(rounds_in_memory_give_way_to_steps),
        cmocka_unit_test(a_round_without_room_is_dropped_whole_and_named),
        cmocka_unit_test(memory_that_cannot_hold_the_rounds_is_refused),
        cmocka_unit_test(a_slow_disk_costs_rounds_never_steps),
        cmocka_unit_test(discarding_with_rounds_in_memory_leaves_nothing),
        cmocka_unit_test(tapes_that_rotate_count_their_own_rounds),
    };
    return cmocka_run_group_tests(tests, make_long_model, drop_model);
}
