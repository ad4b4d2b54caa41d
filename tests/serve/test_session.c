/* Sessions and slots: every rule of PROTOCOL.md, and a long random life checked against its invariants. */
#include "serve/session.h"

#include "base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { SLOTS = 4, POSITIONS = 1000, WINDOW = 16, ROW_BYTES = 2 * 8 * 2 };

static srv_sessions s;
static srv_reply reply;

static int fresh(void **state)
{
    (void)state;
    srv_sessions_init(&s, &(srv_welcome){ .slots = SLOTS, .positions = POSITIONS, .block = 5, .dim = 8, .n_taps = 2,
                                          .vocab = 100, .window = WINDOW, .arm = "native-packed", .checkpoint = "c0ffee" });
    return 0;
}

static srv_reply *empty(void)
{
    reply = (srv_reply){ .refused_slot = -1 };
    return &reply;
}

static srv_hello hello_of(const char *client, int32_t slots)
{
    srv_hello h = { .version = SRV_VERSION, .positions = POSITIONS, .slots = slots };
    snprintf(h.client, sizeof h.client, "%s", client);
    return h;
}

/* 0: refused. */
static uint64_t hello(uint64_t connection, const char *client, int32_t slots)
{
    srv_hello h = hello_of(client, slots);
    return srv_sessions_hello(&s, connection, &h, empty()) ? reply.u.welcome.epoch : 0;
}

static int32_t open_slot(uint64_t connection, uint64_t epoch)
{
    return srv_sessions_open(&s, connection, epoch, empty()) ? reply.u.opened.slot : -1;
}

static bool insert(uint64_t connection, uint64_t epoch, int32_t slot, int32_t first, int32_t rows)
{
    srv_insert in = { .slot = slot, .rows = rows, .first_pos = first, .taps_bytes = (uint64_t)rows * ROW_BYTES };
    bool done = srv_sessions_insert(&s, connection, epoch, &in, empty());
    if (done) srv_sessions_inserted(&s, &in, &reply);
    return done;
}

static bool draft(uint64_t connection, uint64_t epoch, int32_t slot, int32_t anchor, int32_t pos)
{
    srv_draft d = { .batch = 1, .n_out = 5, .slot = { slot }, .anchor = { anchor }, .pos = { pos } };
    return srv_sessions_draft(&s, connection, epoch, &d, empty());
}

static void reap_all(void)
{
    for (int32_t i; (i = srv_sessions_ended(&s)) >= 0;) srv_sessions_reaped(&s, i);
}

/* The last answer was this refusal, and its text holds part. */
static void refused(srv_refusal why, int32_t slot, const char *part)
{
    if (reply.refused != why || reply.refused_slot != slot || !strstr(reply.text, part))
        fail_msg("found %s, slot %d: %s; wanted %s, slot %d: %s", srv_refusal_name(reply.refused), reply.refused_slot,
                 reply.text, srv_refusal_name(why), slot, part);
}

static void hello_settles_what_was_asked_for(void **state)
{
    (void)state;
    srv_hello h = hello_of("a", 2);
    h.positions = 50;
    strcpy(h.checkpoint, "c0ffee");
    strcpy(h.arm, "native-packed");
    assert_true(srv_sessions_hello(&s, 7, &h, empty()));
    const srv_welcome *w = &reply.u.welcome;
    assert_int_equal(w->epoch, 1);
    assert_int_equal(w->slots, 2);
    assert_int_equal(w->positions, 50);
    assert_int_equal(w->vocab, 100);
    assert_string_equal(w->checkpoint, "c0ffee");
    assert_true(w->identity_compared);
    assert_int_equal(hello(8, "b", 1), 2);
    assert_false(reply.u.welcome.identity_compared);
}

static void another_worker_is_refused_by_name(void **state)
{
    (void)state;
    srv_hello h = hello_of("a", 1);
    h.version = 2;
    assert_false(srv_sessions_hello(&s, 1, &h, empty()));
    refused(SRV_REFUSED_VERSION, -1, "version 2, wanted 1");
    h = hello_of("a", 1);
    strcpy(h.checkpoint, "deadbeef");
    assert_false(srv_sessions_hello(&s, 1, &h, empty()));
    refused(SRV_REFUSED_IDENTITY, -1, "c0ffee");
    h = hello_of("a", 1);
    strcpy(h.arm, "mirror");
    assert_false(srv_sessions_hello(&s, 1, &h, empty()));
    refused(SRV_REFUSED_ARM, -1, "native-packed");
    h = hello_of("a", 1);
    h.positions = POSITIONS + 1;
    assert_false(srv_sessions_hello(&s, 1, &h, empty()));
    refused(SRV_REFUSED_LIMIT, -1, "1001 positions");
    assert_int_equal(hello(1, "a", 5), 0);
    refused(SRV_REFUSED_LIMIT, -1, "5 slots");
    assert_int_equal(hello(1, "a", 0), 0);
    assert_int_equal(s.epochs, 0);
}

static void slots_are_reserved_by_hello(void **state)
{
    (void)state;
    uint64_t a = hello(1, "a", 3);
    assert_int_equal(hello(2, "b", 2), 0);
    refused(SRV_REFUSED_LIMIT, -1, "1 of 4");
    uint64_t b = hello(2, "b", 1);
    assert_true(a && b);
    for (int i = 0; i < 3; i++) assert_int_equal(open_slot(1, a), i);
    assert_int_equal(open_slot(1, a), -1);
    refused(SRV_REFUSED_LIMIT, -1, "all 3");
    assert_int_equal(open_slot(2, b), 3);
    assert_int_equal(srv_sessions_unreserved(&s), 0);
}

static void a_restarted_client_finds_nothing_of_its_former_life(void **state)
{
    (void)state;
    uint64_t first = hello(1, "a", 4);
    int32_t slot = open_slot(1, first);
    assert_true(insert(1, first, slot, 0, 10));
    uint64_t second = hello(2, "a", 4); /* all four slots are free again for it */
    assert_int_equal(second, first + 1);
    assert_int_equal(s.slot[slot].state, SRV_SLOT_ENDED);
    assert_false(insert(1, first, slot, 10, 1));
    refused(SRV_REFUSED_EPOCH, -1, "no session");
    assert_false(insert(2, first, slot, 10, 1));
    refused(SRV_REFUSED_EPOCH, -1, "wanted 2");
    assert_false(insert(2, second, slot, 10, 1));
    refused(SRV_REFUSED_SLOT, slot, "not an open slot");
    reap_all();
    assert_int_equal(open_slot(2, second), slot);
    assert_int_equal(reply.u.opened.request, 1);
    assert_true(insert(2, second, slot, 0, 1));
    /* also on its own connection, and under another name */
    uint64_t third = hello(2, "other", 4);
    assert_int_equal(third, second + 1);
    assert_null(srv_sessions_of_epoch(&s, second));
}

static void a_refused_hello_changes_nothing(void **state)
{
    (void)state;
    uint64_t a = hello(1, "a", 2), b = hello(2, "b", 1);
    int32_t slot = open_slot(1, a);
    srv_sessions before = s;
    assert_int_equal(hello(3, "a", 4), 0); /* 3 would be there for it */
    refused(SRV_REFUSED_LIMIT, -1, "3 of 4");
    assert_memory_equal(&s, &before, sizeof s);
    assert_true(insert(1, a, slot, 0, 1));
    assert_true(b != 0);
}

static void a_closed_connection_ends_its_session_alone(void **state)
{
    (void)state;
    uint64_t a = hello(1, "a", 2), b = hello(2, "b", 2);
    int32_t x = open_slot(1, a), y = open_slot(2, b);
    srv_sessions_gone(&s, 1);
    srv_sessions_gone(&s, 99);
    assert_int_equal(s.slot[x].state, SRV_SLOT_ENDED);
    assert_int_equal(srv_sessions_unreserved(&s), 2);
    assert_true(insert(2, b, y, 0, 3));
    assert_int_equal(hello(3, "c", 2), 3); /* may reserve what has ended and is not yet reaped */
}

static void every_breach_poisons_its_slot_and_no_other(void **state)
{
    (void)state;
    struct { int32_t first, rows; int64_t more_bytes; const char *text; } bad[] = {
        { 9, 1, 0, "from position 9, wanted 10" },  { 11, 1, 0, "from position 11, wanted 10" },
        { -1, 1, 0, "from position -1" },           { 10, 0, 0, "insert of 0 rows" },
        { 10, 1, 1, "taps of 33 bytes" },           { 10, 2, -ROW_BYTES, "2 rows take 64" },
        { 10, 991, 0, "up to position 1000" },      { INT32_MAX, 1, 0, "wanted 10" },
    };
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        fresh(NULL);
        uint64_t a = hello(1, "a", 2);
        int32_t x = open_slot(1, a), y = open_slot(1, a);
        assert_true(insert(1, a, x, 0, 10) && insert(1, a, y, 0, 10));
        srv_insert in = { .slot = x, .rows = bad[i].rows, .first_pos = bad[i].first,
                          .taps_bytes = (uint64_t)((int64_t)bad[i].rows * ROW_BYTES + bad[i].more_bytes) };
        assert_false(srv_sessions_insert(&s, 1, a, &in, empty()));
        refused(SRV_REFUSED_POISONED, x, bad[i].text);
        assert_false(insert(1, a, x, 10, 1)); /* right, and too late */
        refused(SRV_REFUSED_POISONED, x, bad[i].text);
        assert_false(draft(1, a, x, 1, 9));
        refused(SRV_REFUSED_POISONED, x, bad[i].text);
        srv_sessions_poison(&s, x, "a later reason", empty());
        assert_non_null(strstr(s.slot[x].reason, bad[i].text));
        assert_true(draft(1, a, y, 1, 9));
        assert_true(srv_sessions_release(&s, 1, a, x, empty()));
        reap_all();
        assert_int_equal(open_slot(1, a), x);
        assert_true(insert(1, a, x, 5, 1)); /* a request may begin anywhere */
    }
}

static void a_draft_without_its_rows_or_with_a_wrong_anchor_poisons(void **state)
{
    (void)state;
    struct { int32_t first, rows, anchor, pos; const char *text; } bad[] = {
        { 0, 0, 1, 0, "before any insert" },    { 0, 5, 1, 3, "draft at 3, wanted the last inserted 4" },
        { 0, 5, 100, 4, "anchor 100" },         { 0, 5, -1, 4, "anchor -1" },
        { 3, 15, 1, 17, "needs rows from 2, the slot begins at 3" },
    };
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        fresh(NULL);
        uint64_t a = hello(1, "a", 1);
        int32_t x = open_slot(1, a);
        if (bad[i].rows) assert_true(insert(1, a, x, bad[i].first, bad[i].rows));
        assert_false(draft(1, a, x, bad[i].anchor, bad[i].pos));
        refused(SRV_REFUSED_POISONED, x, bad[i].text);
        assert_int_equal(s.slot[x].state, SRV_SLOT_POISONED);
    }
    fresh(NULL);
    uint64_t a = hello(1, "a", 1);
    int32_t x = open_slot(1, a);
    assert_true(insert(1, a, x, 2, 16)); /* 2..17: all that a draft at 17 sees through a window of 16 */
    assert_true(draft(1, a, x, 99, 17));
}

static void a_draft_is_for_all_of_its_slots_or_for_none(void **state)
{
    (void)state;
    uint64_t a = hello(1, "a", 3), b = hello(2, "b", 1);
    int32_t x = open_slot(1, a), y = open_slot(1, a), other = open_slot(2, b);
    assert_true(insert(1, a, x, 0, 4) && insert(1, a, y, 0, 4) && insert(2, b, other, 0, 4));
    srv_draft d = { .batch = 2, .n_out = 5, .slot = { x, other }, .anchor = { 1, 1 }, .pos = { 3, 3 } };
    assert_false(srv_sessions_draft(&s, 1, a, &d, empty()));
    refused(SRV_REFUSED_SLOT, other, "not an open slot of this session");
    d.slot[1] = x;
    assert_false(srv_sessions_draft(&s, 1, a, &d, empty()));
    refused(SRV_REFUSED_SLOT, x, "twice");
    d.slot[1] = y;
    d.n_out = 6;
    assert_false(srv_sessions_draft(&s, 1, a, &d, empty()));
    refused(SRV_REFUSED_LIMIT, -1, "n_out 6, wanted 1 to 5");
    d.n_out = 5;
    d.anchor[1] = 100;
    assert_false(srv_sessions_draft(&s, 1, a, &d, empty()));
    refused(SRV_REFUSED_POISONED, y, "anchor 100");
    assert_int_equal(s.slot[x].state, SRV_SLOT_OPEN);
    assert_int_equal(s.slot[other].state, SRV_SLOT_OPEN);
    assert_true(draft(1, a, x, 1, 3));
}

static void slots_out_of_range_are_refused(void **state)
{
    (void)state;
    uint64_t a = hello(1, "a", 1);
    const int32_t bad[] = { INT32_MIN, -1, 0, 3, 4, 5, INT32_MAX };
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        int32_t slot = bad[i];
        assert_false(insert(1, a, slot, 0, 1));
        refused(SRV_REFUSED_SLOT, slot, "not an open slot");
        assert_false(draft(1, a, slot, 0, 0));
        assert_false(srv_sessions_release(&s, 1, a, slot, empty()));
        refused(SRV_REFUSED_SLOT, slot, "not an open slot");
    }
}

/* What must hold whatever clients do. */
static void check_invariants(void)
{
    int32_t reserved = 0;
    for (int32_t i = 0; i < SRV_SLOTS_MAX; i++) {
        const srv_session *x = &s.session[i];
        if (!x->epoch) continue;
        int32_t held = 0;
        for (int32_t k = 0; k < SLOTS; k++)
            held += s.slot[k].epoch == x->epoch &&
                    (s.slot[k].state == SRV_SLOT_OPEN || s.slot[k].state == SRV_SLOT_POISONED);
        assert_true(held <= x->slots && x->slots >= 1);
        reserved += x->slots;
        for (int32_t j = 0; j < i; j++)
            if (s.session[j].epoch)
                assert_true(strcmp(s.session[j].client, x->client) != 0 && s.session[j].connection != x->connection);
    }
    assert_true(reserved <= SLOTS);
    for (int32_t k = 0; k < SLOTS; k++)
        if (s.slot[k].state == SRV_SLOT_OPEN || s.slot[k].state == SRV_SLOT_POISONED)
            assert_non_null(srv_sessions_of_epoch(&s, s.slot[k].epoch));
}

static void a_long_random_life_keeps_the_invariants(void **state)
{
    (void)state;
    static const char *const NAMES[] = { "a", "b", "c", "d", "e" };
    uint32_t seed = 7;
    uint64_t epoch[6] = { 0 }; /* by connection */
    for (int i = 0; i < 200000; i++) {
        seed = seed * 1664525u + 1013904223u;
        uint32_t r = seed >> 8, connection = r % 6, slot = r / 6 % 5, what = r / 30 % 12;
        if (what == 0) {
            uint64_t got = hello(connection, NAMES[r / 360 % 5], (int32_t)(r / 1800 % 5));
            if (got) epoch[connection] = got;
        } else if (what == 1) srv_sessions_gone(&s, connection);
        else if (what < 5) {
            reap_all();
            open_slot(connection, epoch[connection]);
        } else if (what < 9) insert(connection, epoch[connection], (int32_t)slot, (int32_t)(r / 360 % 3), 1);
        else if (what < 10) draft(connection, epoch[connection], (int32_t)slot, 1, (int32_t)(r / 360 % 3));
        else srv_sessions_release(&s, connection, epoch[connection], (int32_t)slot, empty());
        check_invariants();
    }
    assert_true(s.epochs > 1000 && s.requests > 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(hello_settles_what_was_asked_for, fresh),
        cmocka_unit_test_setup(another_worker_is_refused_by_name, fresh),
        cmocka_unit_test_setup(slots_are_reserved_by_hello, fresh),
        cmocka_unit_test_setup(a_restarted_client_finds_nothing_of_its_former_life, fresh),
        cmocka_unit_test_setup(a_refused_hello_changes_nothing, fresh),
        cmocka_unit_test_setup(a_closed_connection_ends_its_session_alone, fresh),
        cmocka_unit_test_setup(every_breach_poisons_its_slot_and_no_other, fresh),
        cmocka_unit_test_setup(a_draft_without_its_rows_or_with_a_wrong_anchor_poisons, fresh),
        cmocka_unit_test_setup(a_draft_is_for_all_of_its_slots_or_for_none, fresh),
        cmocka_unit_test_setup(slots_out_of_range_are_refused, fresh),
        cmocka_unit_test_setup(a_long_random_life_keeps_the_invariants, fresh),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
