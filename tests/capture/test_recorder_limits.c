/* The recorder when things do not go well: full queues, slow and full disks, parts that are held or dropped. */
#include "honest.h"
#include "slow_disk.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

/* ---- no room ---- */

/* The writer stands in round 0's flush; two shots take rounds 1 and 2; 3 to 6 are lost, then the disk moves again. */
static void a_slow_disk_drops_exactly_what_has_no_room(void **state)
{
    const cap_options o = { .level = ENG_LEVEL_V1, .depth = 2, .on_full = CAP_DROP };
    (void)state;
    session s = begin("drop.tape", 1, "eager", &o);
    disk_set(true);
    OK(short_round(&s, 0, e));
    disk_wait();
    for (int32_t i = 1; i < 7; i++) OK(short_round(&s, i, e));
    cap_counts c = counts_of(&s); /* while the disk stands still */
    assert_int_equal(c.dropped, 4);
    assert_int_equal(c.rounds, 0);
    assert_int_equal(c.waits, 0);
    disk_set(false);
    wait_rounds(&s, 7);
    for (int32_t i = 7; i < 9; i++) {
        OK(short_round(&s, i, e));
        wait_rounds(&s, (uint64_t)i + 1);
    }
    c = counts_of(&s);
    assert_int_equal(c.dropped, 4);
    assert_int_equal(c.rounds, 5);
    fmt_tape *t = finish(&s, "drop.tape");
    assert_honest(t);
    assert_int_equal(number(t, "dropped"), 4);
    assert_int_equal(number(t, "waits"), 0);
    for (int32_t i = 0; i < 9; i++) assert_int_equal(has_round(t, i), i < 3 || i >= 7);
    assert_int_equal(fmt_tape_event_count(t), 4);
    for (int32_t i = 0; i < 4; i++) {
        int32_t round;
        const json_t *event = fmt_tape_event_at(t, (size_t)i, &round);
        assert_int_equal(round, 3 + i);
        assert_string_equal(json_string_value(json_object_get(event, "why")), "no room");
    }
    fmt_tape_close(t);
}

static void a_slow_disk_is_waited_for_and_counted(void **state)
{
    const cap_options o = { .level = ENG_LEVEL_V1, .depth = 2, .on_full = CAP_BLOCK };
    pthread_t thread;
    (void)state;
    session s = begin("block.tape", 1, "eager", &o);
    disk_set(true);
    OK(short_round(&s, 0, e));
    disk_wait();
    for (int32_t i = 1; i < 3; i++) OK(short_round(&s, i, e));
    assert_int_equal(counts_of(&s).waits, 0);
    assert_int_equal(pthread_create(&thread, NULL, open_disk_later, NULL), 0);
    OK(short_round(&s, 3, e));
    pthread_join(thread, NULL);
    cap_counts c = counts_of(&s);
    assert_int_equal(c.waits, 1);
    assert_true(c.wait_ns > 5000000); /* of the 30 ms */
    fmt_tape *t = finish(&s, "block.tape");
    assert_honest(t);
    assert_int_equal(number(t, "rounds"), 4);
    assert_int_equal(number(t, "dropped"), 0);
    assert_int_equal(number(t, "waits"), 1);
    assert_int_equal(number(t, "wait_us"), c.wait_ns / 1000);
    fmt_tape_close(t);
}

/* A round of several steps that finds room for some of them only is left out whole, and its shots come back. */
static void a_round_is_kept_whole_or_not_at_all(void **state)
{
    const cap_options o = { .level = ENG_LEVEL_V1, .depth = 2, .on_full = CAP_DROP };
    (void)state;
    session s = begin("whole.tape", 1, "graph", &o);
    uint64_t kept = 0;
    for (int32_t i = 0; i < ROUNDS; i++) {
        const eng_round *round = eng_script_at(s.script, i);
        kept += round->n_inserts + (round->batch > 0) <= 2;
        OK(run_round(&s, i, true, e));
        wait_rounds(&s, (uint64_t)i + 1);
        assert_int_equal(counts_of(&s).rounds, kept);
    }
    assert_true(kept < ROUNDS);
    fmt_tape *t = finish(&s, "whole.tape");
    assert_honest(t);
    assert_int_equal(number(t, "dropped"), ROUNDS - kept);
    fmt_tape_close(t);
}

/* The longest insert is 172 rows, more than the shots have room for at first. */
static void long_inserts_make_larger_shots_under_both_policies(void **state)
{
    (void)state;
    for (cap_on_full full = CAP_BLOCK; full <= CAP_DROP; full++) {
        const cap_options o = { .level = ENG_LEVEL_V1, .depth = 5, .on_full = full };
        session s = begin("long.tape", 2, "graph", &o);
        for (int32_t i = 0; i < ROUNDS; i++) {
            OK(run_round(&s, i, true, e));
            if (full == CAP_DROP) wait_rounds(&s, (uint64_t)i + 1);
        }
        fmt_tape *t = finish(&s, "long.tape");
        assert_int_equal(number(t, "rounds"), ROUNDS);
        assert_honest(t);
        fmt_tape_close(t);
    }
}

/* ---- parts ---- */

static cap_part *insert_part(const session *s, int32_t slot, int32_t pos)
{
    cap_part *p;
    OK(cap_part_insert(s->recorder, slot, ROW, NULL, &pos, 1, &p, e));
    return p;
}

static void held_parts_are_no_room_and_waiting_for_them_ends(void **state)
{
    (void)state;
    for (cap_on_full full = CAP_BLOCK; full <= CAP_DROP; full++) {
        const cap_options o = { .level = ENG_LEVEL_V1, .depth = 2, .on_full = full };
        session s = begin("held.tape", 1, "eager", &o);
        cap_part *a = insert_part(&s, 0, 0), *b = insert_part(&s, 1, 0);
        assert_true(a && b && cap_part_shot(a) != cap_part_shot(b));
        assert_ptr_equal(cap_part_tap(a)->shot, cap_part_shot(a));
        assert_null(insert_part(&s, 2, 0));
        cap_recorder_dropped(s.recorder, 0, "no room for slot 2");
        cap_part_drop(s.recorder, a);
        cap_part_drop(s.recorder, b);
        cap_part_drop(s.recorder, NULL);
        a = insert_part(&s, 0, 0);
        assert_non_null(a);
        cap_part_drop(s.recorder, a);
        assert_int_equal(counts_of(&s).dropped, 1);
        fmt_tape *t = finish(&s, "held.tape");
        assert_honest(t);
        fmt_tape_close(t);
    }
}

/* Inserts that waited long, handed over in an order of the caller's, from memory that is gone. */
static void the_order_of_handing_over_is_the_tapes(void **state)
{
    static const struct { int32_t round, slot; const char *name; } ORDER[] = {
        { 5, 11, "taps" }, { 5, 10, "taps" }, { 5, FMT_TAPE_NO_SLOT, "draft.slots" }, { 6, 12, "taps" },
    };
    const cap_options o = { .level = ENG_LEVEL_IO };
    (void)state;
    session s = begin("order.tape", 1, "eager", &o);
    cap_part *part[3], *draft;
    int32_t drafts[5], anchors[2] = { 1, 2 }, last[2] = { 0, 0 }, slots[2] = { 11, 10 }, engine_slots[2] = { 1, 0 };
    float confidence[5 * 2];
    for (int32_t i = 0; i < 3; i++) {
        bf16 *row = mem_alloc(2 * 96, sizeof *row);
        int32_t *pos = mem_alloc(1, sizeof *pos);
        assert_true(row && pos);
        memcpy(row, ROW, sizeof ROW);
        OK(cap_part_insert(s.recorder, 10 + i, row, NULL, pos, 1, &part[i], e));
        OK(eng_insert(s.engine, i, row, pos, 1, cap_part_tap(part[i]), e));
        memset(row, 0xee, sizeof ROW);
        free(row);
        free(pos);
    }
    OK(cap_part_draft(s.recorder, 2, slots, anchors, last, 2, &draft, e));
    OK(eng_draft(s.engine, 2, engine_slots, anchors, last, 2, drafts, confidence, cap_part_tap(draft), e));
    OK(cap_recorder_submit(s.recorder, 5, (cap_part *const[]){ part[1], part[0] }, 2, draft, e));
    json_t *fact = json_pack("{s:s}", "event", "between");
    OK(cap_recorder_event(s.recorder, 5, fact, e));
    json_object_clear(fact); /* it was copied */
    json_decref(fact);
    OK(cap_recorder_submit(s.recorder, 6, &part[2], 1, NULL, e));
    fmt_tape *t = finish(&s, "order.tape");
    size_t n = 0;
    for (size_t i = 0; i < fmt_tape_count(t) && n < COUNT_OF(ORDER); i++) {
        fmt_tape_record r;
        fmt_tape_at(t, i, &r);
        if (r.key.round == ORDER[n].round && r.key.slot == ORDER[n].slot && strcmp(r.key.name, ORDER[n].name) == 0) n++;
        cap_value v = { 0 };
        OK(cap_record_get(t, i, &v, e));
        if (strcmp(r.key.name, "taps") == 0) assert_memory_equal(v.tensor.data, ROW, sizeof ROW);
        cap_value_fini(&v);
    }
    assert_int_equal(n, COUNT_OF(ORDER));
    int32_t round;
    assert_string_equal(json_string_value(json_object_get(fmt_tape_event_at(t, 0, &round), "event")), "between");
    assert_int_equal(round, 5);
    assert_honest(t);
    fmt_tape_close(t);
}

/* taps: what is armed; lie: the answer is not what the draft made. */
static fmt_tape *answered(const cli_list *taps, bool lie)
{
    const cap_options o = { .level = ENG_LEVEL_IO, .taps = taps };
    session s = begin("answer.tape", 1, "eager", &o);
    cap_part *insert = insert_part(&s, 0, 0), *draft;
    int32_t drafts[2], pos = 0, slot = 0, anchor = 3;
    float confidence[2];
    OK(eng_insert(s.engine, 0, ROW, &pos, 1, cap_part_tap(insert), e));
    OK(cap_part_draft(s.recorder, 1, &slot, &anchor, &pos, 2, &draft, e));
    OK(eng_draft(s.engine, 1, &slot, &anchor, &pos, 2, drafts, confidence, cap_part_tap(draft), e));
    if (lie) drafts[1]++;
    cap_part_answer(draft, drafts, confidence);
    OK(cap_recorder_submit(s.recorder, 0, &insert, 1, draft, e));
    return finish(&s, "answer.tape");
}

static void an_answer_is_on_the_tape_once_and_a_false_one_is_an_event(void **state)
{
    const cli_list off = { 1, { "*=off" } };
    const fmt_tape_key key = { 0, FMT_TAPE_NO_SLOT, 0, "drafts" };
    int32_t round;
    (void)state;
    fmt_tape *shown = answered(NULL, false), *untapped = answered(&off, false);
    fmt_tape_record a, b;
    assert_int_equal(fmt_tape_event_count(shown), 0);
    fmt_tape_at(shown, (size_t)fmt_tape_find(shown, &key), &a);
    fmt_tape_at(untapped, (size_t)fmt_tape_find(untapped, &key), &b);
    assert_true(a.hash == b.hash && a.tensor.shape[0] == 1 && a.tensor.shape[1] == 2);
    assert_int_equal(fmt_tape_count(shown), fmt_tape_count(untapped));
    fmt_tape *lied = answered(NULL, true);
    assert_int_equal(fmt_tape_event_count(lied), 1);
    const json_t *event = fmt_tape_event_at(lied, 0, &round);
    assert_string_equal(json_string_value(json_object_get(event, "event")), "answer differs");
    assert_string_equal(json_string_value(json_object_get(event, "value")), "drafts");
    assert_int_equal(json_array_size(json_object_get(event, "answer")), 2);
    fmt_tape_close(shown);
    fmt_tape_close(untapped);
    fmt_tape_close(lied);
}

/* ---- a disk that fails ---- */

static void limit_files(rlim_t bytes)
{
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static void a_full_disk_is_an_error_of_the_run(void **state)
{
    const cap_options o = { .level = ENG_LEVEL_DEEP };
    (void)state;
    session s = begin("full.tape", 1, "eager", &o);
    err failed = { 0 };
    limit_files(200000);
    for (int32_t i = 0; i < ROUNDS && failed.code == ERR_OK; i++) {
        (void)run_round(&s, i, true, &failed);
        wait_rounds(&s, failed.code == ERR_OK ? (uint64_t)i + 1 : 0);
    }
    assert_int_equal(failed.code, ERR_IO);
    assert_non_null(strstr(failed.msg, "full.tape"));
    err again = { 0 }; /* and stays one */
    assert_int_equal(run_round(&s, ROUNDS - 1, true, &again), ERR_IO);
    assert_string_equal(again.msg, failed.msg);
    REFUSED(cap_recorder_finish(s.recorder, e), ERR_IO, "full.tape");
    end_session(&s);
    limit_files(RLIM_INFINITY);
    assert_int_equal(access("full.tape", F_OK), -1);
    fmt_tape *left; /* what had been flushed */
    const int32_t *rounds;
    OK(fmt_tape_open("full.tape.part", &left, e));
    assert_true(fmt_tape_rounds(left, &rounds) >= 1);
    fmt_tape_close(left);
}

static void a_full_disk_does_not_disturb_serving(void **state)
{
    (void)state;
    for (cap_on_full full = CAP_BLOCK; full <= CAP_DROP; full++) {
        const cap_options o = { .level = ENG_LEVEL_DEEP, .depth = 5, .on_full = full, .events_only = true };
        session s = begin("serve.tape", 1, "eager", &o);
        limit_files(200000);
        for (int32_t i = 0; i < ROUNDS; i++) {
            OK(run_round(&s, i, true, e));
            wait_rounds(&s, (uint64_t)i + 1);
        }
        json_t *event = json_pack("{s:s}", "event", "x");
        OK(cap_recorder_event(s.recorder, ROUNDS, event, e));
        json_decref(event);
        cap_counts c = counts_of(&s);
        assert_non_null(strstr(c.failed, "serve.tape"));
        assert_true(c.rounds < ROUNDS);
        assert_int_equal(c.rounds + c.dropped, ROUNDS);
        cap_part *p;
        OK(cap_part_insert(s.recorder, 0, ROW, NULL, &(int32_t){ 0 }, 1, &p, e));
        assert_null(p);
        OK(cap_recorder_finish(s.recorder, e));
        end_session(&s);
        limit_files(RLIM_INFINITY);
        assert_int_equal(access("serve.tape", F_OK), -1);
        fmt_tape *left; /* what had been flushed */
        const int32_t *rounds;
        OK(fmt_tape_open("serve.tape.part", &left, e));
        assert_true(fmt_tape_rounds(left, &rounds) >= c.rounds);
        fmt_tape_close(left);
    }
}

static void a_vanished_folder_does_not_disturb_serving(void **state)
{
    const cap_options o = { .level = ENG_LEVEL_IO, .rotate_bytes = 1, .events_only = true };
    (void)state;
    assert_int_equal(mkdir("gone", 0700), 0);
    session s = begin("gone/t.tape", 1, "eager", &o);
    assert_int_equal(unlink("gone/t-000000.tape.part"), 0);
    assert_int_equal(rmdir("gone"), 0);
    for (int32_t i = 0; i < 5; i++) {
        OK(short_round(&s, i, e));
        wait_rounds(&s, (uint64_t)i + 1);
    }
    cap_counts c = counts_of(&s);
    assert_true(c.failed[0] && c.dropped >= 4);
    assert_int_equal(c.tapes, 0);
    assert_int_equal(c.rounds + c.dropped, 5);
    OK(cap_recorder_finish(s.recorder, e));
    end_session(&s);
}

/* The writer's failure finds a queue: everything in it is freed, and nobody waits for ever. */
static void a_failure_with_a_full_queue_ends_all_waiting(void **state)
{
    const cap_options o = { .level = ENG_LEVEL_V1, .depth = 2, .events_only = true };
    pthread_t thread;
    (void)state;
    session s = begin("queue.tape", 1, "eager", &o);
    disk_set(true);
    OK(short_round(&s, 0, e));
    disk_wait();
    limit_files(100);
    for (int32_t i = 1; i < 3; i++) OK(short_round(&s, i, e));
    assert_int_equal(pthread_create(&thread, NULL, open_disk_later, NULL), 0);
    for (int32_t i = 3; i < 8; i++) OK(short_round(&s, i, e));
    pthread_join(thread, NULL);
    wait_rounds(&s, 8);
    assert_int_equal(counts_of(&s).dropped, 8);
    OK(cap_recorder_finish(s.recorder, e));
    end_session(&s);
    limit_files(RLIM_INFINITY);
}

static void discarding_with_a_full_queue_leaves_nothing(void **state)
{
    const cap_options o = { .level = ENG_LEVEL_V1 };
    pthread_t thread;
    (void)state;
    session s = begin("discard.tape", 1, "eager", &o);
    disk_set(true);
    for (int32_t i = 0; i < 5; i++) OK(short_round(&s, i, e));
    cap_recorder_dropped(s.recorder, 5, "why not");
    assert_int_equal(pthread_create(&thread, NULL, open_disk_later, NULL), 0);
    cap_recorder_discard(s.recorder);
    pthread_join(thread, NULL);
    end_session(&s);
    assert_int_equal(access("discard.tape", F_OK), -1);
    assert_int_equal(access("discard.tape.part", F_OK), -1);
}

static int setup(void **state)
{
    signal(SIGXFSZ, SIG_IGN);
    return make_long_model(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_slow_disk_drops_exactly_what_has_no_room),
        cmocka_unit_test(a_slow_disk_is_waited_for_and_counted),
        cmocka_unit_test(a_round_is_kept_whole_or_not_at_all),
        cmocka_unit_test(long_inserts_make_larger_shots_under_both_policies),
        cmocka_unit_test(held_parts_are_no_room_and_waiting_for_them_ends),
        cmocka_unit_test(the_order_of_handing_over_is_the_tapes),
        cmocka_unit_test(an_answer_is_on_the_tape_once_and_a_false_one_is_an_event),
        cmocka_unit_test(a_full_disk_is_an_error_of_the_run),
        cmocka_unit_test(a_full_disk_does_not_disturb_serving),
        cmocka_unit_test(a_vanished_folder_does_not_disturb_serving),
        cmocka_unit_test(a_failure_with_a_full_queue_ends_all_waiting),
        cmocka_unit_test(discarding_with_a_full_queue_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, setup, drop_model);
}
