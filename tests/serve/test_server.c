/* The server over real sockets: several clients, and all that a connection can do wrong. */
#include "tests/serve/server_rig.h"

#include "serve/stats.h"

/* As with a device: the worker and the loop stay awake between requests. */
static int set_up_awake(void **state)
{
    spin_ns = 2000000;
    return set_up(state);
}

/* Where many connections are idle together. */
static int set_up_patient(void **state)
{
    frame_timeout_ns = WAIT_NS;
    return set_up(state);
}

/* Takes s. outer NULL: a count of the status itself. */
static int64_t count_in(json_t *s, const char *outer, const char *key)
{
    int64_t n = json_integer_value(json_object_get(outer ? json_object_get(s, outer) : s, key));
    json_decref(s);
    return n;
}

static int64_t count(const char *outer, const char *key) { return count_in(status(), outer, key); }

/* Waits until a count of the status is that much. */
static void until(const char *outer, const char *key, int64_t want)
{
    uint64_t deadline = clock_ns() + WAIT_NS;
    int64_t n;
    while ((n = count(outer, key)) != want) {
        if (clock_ns() > deadline) fail_msg("%s: found %lld, wanted %lld", key, (long long)n, (long long)want);
        usleep(2000);
    }
}

/* The refusal "message", then the end of the connection. */
static void is_thrown_out(srv_client *c, const char *part)
{
    srv_reply r;
    err why;
    OK(srv_client_receive(c, &r, e));
    if (r.refused != SRV_REFUSED_MESSAGE || !strstr(r.text, part))
        fail_msg("found %s: %s; wanted message: %s", srv_refusal_name(r.refused), r.text, part);
    assert_int_equal(srv_client_receive(c, &r, &why), ERR_IO);
    srv_client_close(c);
}

/* ---- tests ---- */

typedef struct player { int32_t stream; bool same; const help_draft *want; } player;
enum { PLAYED = 24 };

static void *play(void *arg)
{
    player *p = arg;
    char name[16];
    snprintf(name, sizeof name, "player %d", p->stream);
    client x = join_in(name, 1);
    p->same = true;
    for (int32_t i = 0; i < PLAYED; i++) {
        srv_request in = insert_of(&x, p->stream, i), d = draft_of(&x, p->stream, i);
        srv_reply r;
        OK(srv_client_send(x.c, &in, e)); /* pipelined: both are on the way at once */
        OK(srv_client_send(x.c, &d, e));
        OK(srv_client_receive(x.c, &r, e));
        assert_int_equal(done(r).u.inserted.last, i);
        OK(srv_client_receive(x.c, &r, e));
        done(r);
        p->same &= help_same(&r.u.drafted, 0, &p->want[i]);
    }
    srv_client_close(x.c);
    return NULL;
}

static void four_clients_at_once_each_get_their_own(void **state)
{
    (void)state;
    static help_draft want[HELP_SLOTS][PLAYED];
    eng_engine *alone = help_engine(1);
    pthread_t thread[HELP_SLOTS];
    player p[HELP_SLOTS];
    for (int32_t s = 0; s < HELP_SLOTS; s++)
        for (int32_t i = 0; i < PLAYED; i++) want[s][i] = help_alone(alone, s, i, 5);
    eng_close(alone);
    for (int32_t s = 0; s < HELP_SLOTS; s++) {
        p[s] = (player){ .stream = s, .want = want[s] };
        assert_int_equal(pthread_create(&thread[s], NULL, play, &p[s]), 0);
    }
    for (int32_t s = 0; s < HELP_SLOTS; s++) {
        pthread_join(thread[s], NULL);
        assert_true(p[s].same);
    }
    until(NULL, "slots_unreserved", HELP_SLOTS);
}

static void a_server_that_stays_awake_answers_the_same_and_then_sleeps(void **state)
{
    (void)state;
    struct timespec before, after, wait = { .tv_nsec = 400000000 }, settle = { .tv_nsec = 50000000 };
    help_draft want[PLAYED];
    eng_engine *alone = help_engine(1);
    for (int32_t i = 0; i < PLAYED; i++) want[i] = help_alone(alone, 1, i, 5);
    eng_close(alone);
    player p = { .stream = 1, .want = want };
    play(&p);
    assert_true(p.same);
    nanosleep(&settle, NULL);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    nanosleep(&wait, NULL);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    double used = (double)(after.tv_sec - before.tv_sec) + 1e-9 * (double)(after.tv_nsec - before.tv_nsec);
    if (used > 0.1) fail_msg("%.3f s of processor in 0.4 s without a request", used);
}

static void a_frame_may_come_byte_by_byte(void **state)
{
    (void)state;
    client x = join_in("slow", 1), y = join_in("quick", 1);
    srv_request r = insert_of(&x, 0, 0);
    srv_buf b = { 0 };
    srv_reply reply;
    OK(srv_encode_request(&r, &b, e));
    for (size_t i = 0; i < b.bytes; i++) OK(srv_client_send_raw(x.c, b.data + i, 1, e));
    OK(srv_client_receive(x.c, &reply, e));
    done(reply);
    srv_buf_fini(&b);
    done(call(y.c, insert_of(&y, 0, 0)));
    srv_drafted a = done(call(x.c, draft_of(&x, 0, 0))).u.drafted, c = done(call(y.c, draft_of(&y, 0, 0))).u.drafted;
    assert_memory_equal(a.drafts, c.drafts, sizeof a.drafts);
    srv_client_close(x.c);
    srv_client_close(y.c);
}

/* Rows at even and odd addresses of a frame, in frames that are read in one and in many pieces. */
static void long_inserts_are_the_rows_one_by_one(void **state)
{
    (void)state;
    enum { ROWS = 40 };
    client x = join_in("long", 1), y = join_in("one by one", 1);
    for (int32_t k = 0; k < 2; k++) {
        srv_request r = { .op = SRV_INSERT, .epoch = x.epoch, .id = k ? 1000 : 100 }; /* another width, another address */
        r.u.insert = (srv_insert){ x.slot, ROWS / 2, k * ROWS / 2, help_rows(0, k * ROWS / 2),
                                   ROWS / 2 * help_width() * sizeof(bf16) };
        srv_reply reply;
        OK(srv_client_call(x.c, &r, &reply, e));
        done(reply);
    }
    srv_drafted b = { 0 };
    for (int32_t p = 0; p < ROWS; p++) b = step(&y, 0, p);
    srv_drafted a = done(call(x.c, draft_of(&x, 0, ROWS - 1))).u.drafted;
    assert_memory_equal(a.drafts, b.drafts, sizeof a.drafts);
    assert_memory_equal(a.confidence, b.confidence, sizeof a.confidence);
    srv_client_close(x.c);
    srv_client_close(y.c);
}

static void garbage_gets_one_refusal_and_the_end(void **state)
{
    (void)state;
    client x = join_in("well behaved", 1);
    static const struct { const char *bytes; size_t n; const char *part; } BAD[] = {
        { "\0\0\0\0", 4, "" },                  /* no body */
        { "\x01\0\0\0\xc0", 5, "" },            /* nil */
        { "\x02\0\0\0\x81\xa2", 6, "" },        /* cut inside */
        { "\x01\0\0\0\x80", 5, "op" },          /* an empty map */
        { "GET / HTTP/1.1\r\n\r\n", 18, "" },   /* 542 MB, as a length */
        { "\0\0\0\x40 and more", 13, "" },      /* 1 GiB announced */
    };
    uint64_t before = srv_resident_bytes();
    for (size_t i = 0; i < COUNT_OF(BAD); i++) {
        srv_client *c = dial(NULL);
        OK(srv_client_send_raw(c, BAD[i].bytes, BAD[i].n, e));
        is_thrown_out(c, BAD[i].part);
    }
    assert_true(srv_resident_bytes() < before + (16 << 20));
    step(&x, 0, 0);
    assert_int_equal(count("connections", "bad_messages"), COUNT_OF(BAD));
    json_t *s = status(), *refused = json_object_get(json_object_get(s, "counts"), "refused");
    assert_int_equal(json_integer_value(json_object_get(refused, "message")), COUNT_OF(BAD));
    json_decref(s);
    srv_client_close(x.c);
}

static void a_client_that_sends_garbage_loses_its_slots(void **state)
{
    (void)state;
    client x = join_in("turns bad", 4);
    OK(srv_client_send_raw(x.c, "\x01\0\0\0\xc0", 5, e));
    is_thrown_out(x.c, "");
    until(NULL, "slots_unreserved", HELP_SLOTS);
}

static void a_client_that_stalls_in_a_frame_is_closed(void **state)
{
    (void)state;
    client x = join_in("stalls", 2), y = join_in("idle", 2);
    srv_request r = insert_of(&x, 0, 0);
    srv_buf b = { 0 };
    OK(srv_encode_request(&r, &b, e));
    OK(srv_client_send_raw(x.c, b.data, b.bytes - 1, e));
    uint64_t start_ns = clock_ns();
    is_thrown_out(x.c, "not finished in time");
    assert_true(clock_ns() - start_ns >= FRAME_TIMEOUT_NS - 10000000);
    srv_buf_fini(&b);
    assert_int_equal(count("connections", "timeouts"), 1);
    step(&y, 0, 0); /* silence between frames is no stall */
    assert_int_equal(count(NULL, "slots_unreserved"), 2);
    srv_client_close(y.c);
}

/* Silence is allowed to those who have said hello, and to nobody else. */
static void those_who_say_nothing_leave_room_for_others(void **state)
{
    (void)state;
    enum { MANY = 63 };
    int fd[MANY];
    client idle = join_in("idle", 1);
    for (int i = 0; i < MANY; i++) OK(srv_connect(&g.address, clock_ns() + WAIT_NS, &fd[i], e));
    uint64_t start_ns = clock_ns();
    client x = { .c = NULL };
    for (bool in = false; !in;) {
        srv_request hello = { .op = SRV_HELLO, .u.hello = help_hello("late", 1) };
        srv_reply r;
        err why;
        if (clock_ns() - start_ns > WAIT_NS) fail_msg("found no room in %d s", (int)(WAIT_NS / 1000000000));
        srv_client_close(x.c);
        x.c = dial(NULL);
        in = srv_client_call(x.c, &hello, &r, &why) == ERR_OK;
        if (in) x.epoch = done(r).u.welcome.epoch;
    }
    x.slot = done(call(x.c, (srv_request){ .op = SRV_OPEN, .epoch = x.epoch })).u.opened.slot;
    step(&x, 1, 0);
    char byte[512];
    for (int i = 0; i < MANY; i++) { /* told why, then the end */
        assert_true(read(fd[i], byte, sizeof byte) > 20);
        assert_int_equal(read(fd[i], byte, 1), 0);
        close(fd[i]);
    }
    /* On a connection that is there: there may be no room for another one yet. */
    assert_int_equal(count_in(status_by(x.c), "connections", "timeouts"), MANY);
    step(&idle, 0, 0);
    srv_client_close(idle.c);
    srv_client_close(x.c);
}

static void without_a_session_a_client_may_not_fall_silent(void **state)
{
    (void)state;
    srv_client *c = dial(NULL);
    for (int i = 0; i < 3; i++) { /* every word gives it as long again */
        usleep(FRAME_TIMEOUT_NS / 1000 / 2);
        srv_reply r = done(call(c, (srv_request){ .op = SRV_STATUS }));
        srv_reply_fini(&r);
    }
    is_thrown_out(c, "no session");
    client old = join_in("restarts", 1), x = join_in("restarts", 1); /* the session that is over counts for nothing */
    is_thrown_out(old.c, "no session");
    step(&x, 0, 0);
    srv_client_close(x.c);
}

static void a_connection_that_closes_in_a_frame_frees_its_slots(void **state)
{
    (void)state;
    client x = join_in("vanishes", 4);
    OK(srv_client_send_raw(x.c, "\xff\xff\0\0 half", 9, e));
    srv_client_close(x.c);
    until(NULL, "slots_unreserved", HELP_SLOTS);
    client y = join_in("next", 4);
    step(&y, 0, 0);
    srv_client_close(y.c);
}

static void a_client_that_reads_no_replies_is_closed(void **state)
{
    (void)state;
    client x = join_in("well behaved", 1);
    int fd;
    srv_buf b = { 0 };
    OK(srv_encode_request(&(srv_request){ .op = SRV_STATUS, .id = 1 }, &b, e));
    OK(srv_connect(&g.address, clock_ns() + WAIT_NS, &fd, e));
    for (int i = 0; i < 100000 && send(fd, b.data, b.bytes, MSG_NOSIGNAL) > 0; i++) { }
    close(fd);
    srv_buf_fini(&b);
    assert_int_equal(count("connections", "slow"), 1);
    step(&x, 0, 0);
    srv_client_close(x.c);
}

/* More requests than are taken at once: the rest waits in the socket, and all are answered. */
static void a_client_may_send_far_ahead(void **state)
{
    (void)state;
    enum { AHEAD = 1000 };
    client x = join_in("eager", 1);
    step(&x, 0, 0);
    for (int i = 0; i < AHEAD; i++) {
        srv_request r = draft_of(&x, 0, 0);
        OK(srv_client_send(x.c, &r, e));
    }
    srv_reply first, r;
    OK(srv_client_receive(x.c, &first, e));
    for (int i = 1; i < AHEAD; i++) {
        OK(srv_client_receive(x.c, &r, e));
        assert_int_equal(done(r).id, first.id + (uint64_t)i);
        assert_memory_equal(r.u.drafted.drafts, first.u.drafted.drafts, sizeof r.u.drafted.drafts);
    }
    srv_client_close(x.c);
}

static void status_is_answered_while_a_step_hangs(void **state)
{
    (void)state;
    client x = join_in("hangs", 1);
    hooks.hold = true;
    srv_request r = insert_of(&x, 0, 0);
    OK(srv_client_send(x.c, &r, e));
    sem_wait(&hooks.reached);
    json_t *s = status();
    assert_true(json_number_value(json_object_get(s, "busy_us")) > 0);
    json_decref(s);
    hooks.hold = false;
    sem_post(&hooks.go);
    srv_reply reply;
    OK(srv_client_receive(x.c, &reply, e));
    done(reply);
    srv_client_close(x.c);
}

static void a_restarted_client_takes_over_from_its_half_open_self(void **state)
{
    (void)state;
    client old = join_in("restarts", 4);
    done(call(old.c, insert_of(&old, 0, 0)));
    client x = join_in("restarts", 4);
    step(&x, 1, 0);
    srv_reply r = call(old.c, insert_of(&old, 0, 1));
    assert_int_equal(r.refused, SRV_REFUSED_EPOCH);
    step(&x, 1, 1);
    srv_client_close(old.c);
    step(&x, 1, 2); /* and the old connection's end is not its own */
    srv_client_close(x.c);
}

static void more_connections_than_there_may_be_are_turned_away(void **state)
{
    (void)state;
    enum { MANY = 64 };
    srv_client *c[MANY];
    for (int i = 0; i < MANY; i++) {
        c[i] = dial(NULL);
        srv_reply r = done(call(c[i], (srv_request){ .op = SRV_STATUS }));
        srv_reply_fini(&r);
    }
    srv_client *extra = dial(NULL);
    srv_reply r;
    err why;
    assert_int_equal(srv_client_receive(extra, &r, &why), ERR_IO);
    srv_client_close(extra);
    for (int i = 0; i < MANY; i++) srv_client_close(c[i]);
    usleep(1000);
    uint64_t deadline = clock_ns() + WAIT_NS;
    for (bool in = false; !in && clock_ns() < deadline;) { /* their places are free again */
        srv_client *again = dial(NULL);
        srv_request ask = { .op = SRV_STATUS };
        in = srv_client_call(again, &ask, &r, &why) == ERR_OK;
        if (in) {
            const json_t *counts = json_object_get(r.u.status, "connections");
            assert_true(json_integer_value(json_object_get(counts, "turned_away")) >= 1);
            srv_reply_fini(&r);
        }
        srv_client_close(again);
    }
}

static void stopping_answers_and_closes_everybody(void **state)
{
    (void)state;
    client x = join_in("busy", 1), y = join_in("waits", 1), idle = join_in("idle", 1);
    done(call(y.c, insert_of(&y, 1, 0)));
    hooks.hold = true;
    srv_request in = insert_of(&x, 0, 0), d = draft_of(&y, 1, 0);
    OK(srv_client_send(x.c, &in, e));
    sem_wait(&hooks.reached);
    OK(srv_client_send(y.c, &d, e));
    until(NULL, "queued", 1);
    srv_server_stop(g.server);
    while (access("s.sock", F_OK) == 0) usleep(1000);
    hooks.hold = false;
    sem_post(&hooks.go);
    srv_reply r;
    err why;
    OK(srv_client_receive(x.c, &r, e));
    assert_int_equal(done(r).u.inserted.last, 0); /* it had begun */
    OK(srv_client_receive(y.c, &r, e));
    assert_int_equal(r.refused, SRV_REFUSED_CLOSING);
    const client *all[] = { &x, &y, &idle };
    for (size_t i = 0; i < COUNT_OF(all); i++) {
        assert_int_equal(srv_client_receive(all[i]->c, &r, &why), ERR_IO);
        srv_client_close(all[i]->c);
    }
    join();
    assert_int_equal(hooks.finished, 1);
}

static void tls_carries_the_same_bits_and_admits_only_the_key(void **state)
{
    (void)state;
    client plain = join_in("plain", 1);
    srv_drafted want = step(&plain, 2, 0);
    srv_client_close(plain.c);
    tear_down(NULL);
    static const char GOOD[] = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff\n";
    static const char OTHER[] = "ff112233445566778899aabbccddeeff00112233445566778899aabbccddeeff\n";
    scratch_write("good.key", GOOD, sizeof GOOD - 1);
    scratch_write("other.key", OTHER, sizeof OTHER - 1);
    assert_int_equal(chmod("good.key", 0600) | chmod("other.key", 0600), 0);
    start("tcp:127.0.0.1:0", "good.key");

    srv_client *c = NULL;
    err why = { 0 };
    assert_int_equal(srv_client_open(&g.address, "other.key", WAIT_NS, &c, &why), ERR_IO);
    if (srv_client_open(&g.address, NULL, WAIT_NS, &c, &why) == ERR_OK) { /* plain text to a TLS server */
        srv_request r = { .op = SRV_STATUS };
        srv_reply reply;
        assert_int_not_equal(srv_client_call(c, &r, &reply, &why), ERR_OK);
        srv_client_close(c);
    }
    int fd; /* a handshake that never comes */
    OK(srv_connect(&g.address, clock_ns() + WAIT_NS, &fd, e));
    char byte;
    assert_int_equal(read(fd, &byte, 1), 0);
    close(fd);

    client x = { .c = dial("good.key") };
    x.epoch = done(call(x.c, (srv_request){ .op = SRV_HELLO, .u.hello = help_hello("tls", 1) })).u.welcome.epoch;
    x.slot = done(call(x.c, (srv_request){ .op = SRV_OPEN, .epoch = x.epoch })).u.opened.slot;
    srv_drafted got = step(&x, 2, 0);
    assert_memory_equal(got.drafts, want.drafts, sizeof got.drafts);
    assert_memory_equal(got.confidence, want.confidence, sizeof got.confidence);
    srv_client_close(x.c);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        CASE(four_clients_at_once_each_get_their_own),
        cmocka_unit_test_setup_teardown(a_server_that_stays_awake_answers_the_same_and_then_sleeps, set_up_awake,
                                        tear_down),
        CASE(a_frame_may_come_byte_by_byte),
        CASE(long_inserts_are_the_rows_one_by_one),
        CASE(garbage_gets_one_refusal_and_the_end),
        CASE(a_client_that_sends_garbage_loses_its_slots),
        CASE(a_client_that_stalls_in_a_frame_is_closed),
        CASE(those_who_say_nothing_leave_room_for_others),
        CASE(without_a_session_a_client_may_not_fall_silent),
        CASE(a_connection_that_closes_in_a_frame_frees_its_slots),
        CASE(a_client_that_reads_no_replies_is_closed),
        CASE(a_client_may_send_far_ahead),
        CASE(status_is_answered_while_a_step_hangs),
        CASE(a_restarted_client_takes_over_from_its_half_open_self),
        cmocka_unit_test_setup_teardown(more_connections_than_there_may_be_are_turned_away, set_up_patient, tear_down),
        CASE(stopping_answers_and_closes_everybody),
        CASE(tls_carries_the_same_bits_and_admits_only_the_key),
    };
    return cmocka_run_group_tests(tests, make_all, help_drop_model);
}
