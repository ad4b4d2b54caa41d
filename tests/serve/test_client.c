/* The client against workers that answer, are silent, close, or talk nonsense. */
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/mem.h"
#include "serve/client.h"
#include "serve/tls.h"

#define KEY_PATH "client_under_test.key"
#define OTHER_PATH "client_other.key"
static const uint64_t MS = 1000000, LONG = 20000 * (uint64_t)1000000;

/* ---- a worker on a thread: takes one connection and does as told ---- */

typedef struct worker {
    pthread_t thread;
    srv_address address;
    int listening, fd;
    srv_key *key;
    srv_tls *tls;
    srv_buf in, wire; /* plain text received; bytes to send */
    void (*act)(struct worker *w);
} worker;

static void send_wire(worker *w)
{
    for (size_t at = 0; at < w->wire.bytes; ) {
        ssize_t n = send(w->fd, w->wire.data + at, w->wire.bytes - at, MSG_NOSIGNAL);
        if (n <= 0) break;
        at += (size_t)n;
    }
    w->wire.bytes = 0;
}

/* Receives until n bytes of plain text are there; false: the client closed, or does not speak TLS with our key. */
static bool receive(worker *w, size_t n)
{
    static uint8_t data[1 << 16];
    while (w->in.bytes < n) {
        ssize_t got = read(w->fd, data, sizeof data);
        bool ended = false;
        err e;
        if (got <= 0) return false;
        err_code rc = w->tls ? srv_tls_receive(w->tls, data, (size_t)got, &w->in, &w->wire, &ended, &e)
                             : srv_buf_append(&w->in, data, (size_t)got, &e);
        send_wire(w);
        if (rc != ERR_OK || ended) return false;
    }
    return true;
}

/* The next request; its taps are gone. */
static bool next_request(worker *w, srv_request *r)
{
    uint32_t n;
    err e;
    if (!receive(w, SRV_FRAME_HEADER_BYTES)) return false;
    if (srv_frame_bytes(w->in.data, &n, &e) != ERR_OK || !receive(w, SRV_FRAME_HEADER_BYTES + n)) return false;
    if (srv_decode_request(w->in.data + SRV_FRAME_HEADER_BYTES, n, r, &e) != ERR_OK) return false;
    w->in.bytes -= SRV_FRAME_HEADER_BYTES + n;
    memmove(w->in.data, w->in.data + SRV_FRAME_HEADER_BYTES + n, w->in.bytes);
    return true;
}

static void say(worker *w, const void *data, size_t n)
{
    err e;
    CHECK((w->tls ? srv_tls_send(w->tls, data, n, &w->wire, &e) : srv_buf_append(&w->wire, data, n, &e)) == ERR_OK);
    send_wire(w);
}

static srv_reply reply_to(const srv_request *r)
{
    srv_reply reply = { .op = r->op, .id = r->id, .refused_slot = -1 };
    if (r->op == SRV_INSERT) reply.u.inserted.last = r->u.insert.first_pos + r->u.insert.rows - 1;
    if (r->op == SRV_OPEN) reply.u.opened.request = (int64_t)r->epoch;
    return reply;
}

static void say_reply(worker *w, const srv_reply *r)
{
    srv_buf b = { 0 };
    err e;
    CHECK(srv_encode_reply(r, &b, &e) == ERR_OK);
    say(w, b.data, b.bytes);
    srv_buf_fini(&b);
}

static void *run(void *arg)
{
    worker *w = arg;
    w->fd = accept(w->listening, NULL, NULL);
    CHECK(w->fd >= 0);
    err e;
    if (w->key) CHECK(srv_tls_open(w->key, &w->tls, &e) == ERR_OK);
    w->act(w);
    close(w->fd);
    return NULL;
}

static void worker_begin(worker *w, const char *key_file, void (*act)(worker *w))
{
    srv_address any;
    err e = { 0 };
    *w = (worker){ .act = act };
    assert_int_equal(srv_address_parse("unix:client_under_test.sock", true, &any, &e), ERR_OK);
    if (srv_listen(&any, &w->listening, &w->address, &e) != ERR_OK) fail_msg("%s", e.msg);
    assert_int_equal(fcntl(w->listening, F_SETFL, 0), 0); /* accept waits */
    if (key_file) assert_int_equal(srv_key_open(key_file, true, &w->key, &e), ERR_OK);
    assert_int_equal(pthread_create(&w->thread, NULL, run, w), 0);
}

static void worker_end(worker *w)
{
    pthread_join(w->thread, NULL);
    close(w->listening);
    srv_address_remove(&w->address);
    srv_tls_close(w->tls);
    srv_key_close(w->key);
    srv_buf_fini(&w->in);
    srv_buf_fini(&w->wire);
}

static srv_client *client_of(worker *w, const char *key_file, uint64_t timeout_ns)
{
    srv_client *c;
    err e = { 0 };
    if (srv_client_open(&w->address, key_file, timeout_ns, &c, &e) != ERR_OK) fail_msg("%s", e.msg);
    return c;
}

static void put_key(const char *path, char digit)
{
    char text[65];
    memset(text, digit, 64);
    text[64] = '\n';
    unlink(path);
    int fd = open(path, O_CREAT | O_WRONLY, 0600);
    assert_int_equal(write(fd, text, sizeof text), sizeof text);
    close(fd);
}

static int setup(void **state)
{
    (void)state;
    put_key(KEY_PATH, 'a');
    put_key(OTHER_PATH, 'b');
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(KEY_PATH);
    unlink(OTHER_PATH);
    return 0;
}

/* ---- what workers do ---- */

static void answer(worker *w)
{
    srv_request r;
    while (next_request(w, &r)) {
        srv_reply reply = reply_to(&r);
        say_reply(w, &reply);
    }
}

static void answer_byte_by_byte(worker *w)
{
    srv_request r;
    while (next_request(w, &r)) {
        srv_reply reply = reply_to(&r);
        srv_buf b = { 0 };
        err e;
        CHECK(srv_encode_reply(&reply, &b, &e) == ERR_OK);
        for (size_t i = 0; i < b.bytes; i++) say(w, b.data + i, 1);
        srv_buf_fini(&b);
    }
}

static void be_silent(worker *w) { (void)receive(w, SIZE_MAX); }
static void close_at_once(worker *w) { (void)w; }
static void close_after_a_request(worker *w) { (void)!next_request(w, &(srv_request){ 0 }); }

static void close_inside_a_reply(worker *w)
{
    srv_request r;
    if (next_request(w, &r)) say(w, "\x20\x00\x00\x00\x83\xa2id", 8);
}

static void say_what_is_no_message(worker *w)
{
    srv_request r;
    if (next_request(w, &r)) say(w, "\x01\x00\x00\x00\xc0", 5);
}

static void announce_a_gigabyte(worker *w)
{
    srv_request r;
    if (next_request(w, &r)) say(w, "\x00\x00\x00\x40\x80", 5);
}

static void answer_another_request(worker *w)
{
    srv_request r;
    if (!next_request(w, &r)) return;
    srv_reply reply = { .op = r.op, .id = r.id + 1, .refused = SRV_REFUSED_MESSAGE, .refused_slot = -1 };
    strcpy(reply.text, "not you");
    say_reply(w, &reply);
}

static void refuse_and_close(worker *w)
{
    srv_request r;
    if (!next_request(w, &r)) return;
    srv_reply reply = { .op = r.op, .id = r.id, .refused = SRV_REFUSED_EPOCH, .refused_slot = -1 };
    strcpy(reply.text, "epoch 1 is over");
    say_reply(w, &reply);
}

/* Many replies before it reads anything: more than the socket holds. */
enum { EARLY = 40000 };
static void answer_before_it_reads(worker *w)
{
    srv_reply reply = { .op = SRV_RELEASE, .refused_slot = -1 };
    for (reply.id = 1000; reply.id < 1000 + EARLY; reply.id++) say_reply(w, &reply);
    answer(w);
}

/* ---- tests ---- */

static void a_request_gets_its_reply(void **state)
{
    (void)state;
    void (*const acts[])(worker *) = { answer, answer_byte_by_byte };
    static const char *const KEYS[] = { NULL, KEY_PATH };
    for (size_t i = 0; i < 4; i++) {
        worker w;
        const char *key = KEYS[i / 2];
        worker_begin(&w, key, acts[i % 2]);
        srv_client *c = client_of(&w, key, LONG);
        for (uint64_t n = 1; n <= 20; n++) {
            srv_request r = { .op = SRV_OPEN, .epoch = 100 + n };
            srv_reply reply;
            err e = { 0 };
            if (srv_client_call(c, &r, &reply, &e) != ERR_OK) fail_msg("%s", e.msg);
            assert_int_equal(r.id, n);
            assert_int_equal(reply.id, n);
            assert_int_equal(reply.u.opened.request, 100 + n);
        }
        srv_client_close(c);
        worker_end(&w);
    }
    srv_client_close(NULL);
}

static void requests_may_go_out_before_replies_come(void **state)
{
    (void)state;
    worker w;
    worker_begin(&w, NULL, answer);
    srv_client *c = client_of(&w, NULL, LONG);
    err e = { 0 };
    for (uint64_t n = 1; n <= 1000; n++) {
        srv_request r = { .op = SRV_OPEN, .id = 7000 + n, .epoch = n };
        assert_int_equal(srv_client_send(c, &r, &e), ERR_OK);
    }
    for (uint64_t n = 1; n <= 1000; n++) {
        srv_reply reply;
        assert_int_equal(srv_client_receive(c, &reply, &e), ERR_OK);
        assert_int_equal(reply.id, 7000 + n);
    }
    srv_client_close(c);
    worker_end(&w);
}

static void twenty_megabytes_go_out_while_replies_come_in(void **state)
{
    (void)state;
    static const char *const KEYS[] = { NULL, KEY_PATH };
    bf16 *taps = mem_alloc(10 << 20, sizeof *taps);
    for (size_t i = 0; i < COUNT_OF(KEYS); i++) {
        worker w;
        /* With a key the client's first text comes with its handshake, which the worker must read first. */
        worker_begin(&w, KEYS[i], KEYS[i] ? answer : answer_before_it_reads);
        srv_client *c = client_of(&w, KEYS[i], LONG);
        srv_request r = { .op = SRV_INSERT, .epoch = 1, .u.insert = { 0, 100, 50, taps, 20 << 20 } };
        srv_reply reply;
        err e = { 0 };
        if (srv_client_send(c, &r, &e) != ERR_OK) fail_msg("%s", e.msg);
        for (int early = 0; early < (KEYS[i] ? 0 : EARLY); early++) {
            assert_int_equal(srv_client_receive(c, &reply, &e), ERR_OK);
            assert_int_equal(reply.id, 1000 + early);
        }
        assert_int_equal(srv_client_receive(c, &reply, &e), ERR_OK);
        assert_int_equal(reply.u.inserted.last, 149);
        srv_client_close(c);
        worker_end(&w);
    }
    free(taps);
}

static void what_is_wrong_is_told(void **state)
{
    (void)state;
    static const struct { void (*act)(worker *); err_code code; const char *message; } CASES[] = {
        { be_silent, ERR_IO, "unix:client_under_test.sock: timed out after 0.2 s" },
        { close_after_a_request, ERR_IO, "closed" },
        { close_inside_a_reply, ERR_IO, "the worker closed the connection inside a reply" },
        { say_what_is_no_message, ERR_INPUT, "reply: message: found nil, wanted a map" },
        { announce_a_gigabyte, ERR_INPUT, "found a frame of 1073741824 bytes" },
        { answer_another_request, ERR_INPUT, "found the reply to request 2 (open), wanted that to 1 (open): not you" },
    };
    for (size_t i = 0; i < 2 * COUNT_OF(CASES); i++) {
        worker w;
        const char *key = i % 2 ? KEY_PATH : NULL;
        worker_begin(&w, key, CASES[i / 2].act);
        srv_client *c = client_of(&w, key, CASES[i / 2].act == be_silent ? 200 * MS : LONG);
        srv_request r = { .op = SRV_OPEN, .epoch = 1 };
        srv_reply reply;
        err e = { 0 };
        uint64_t begun = clock_ns();
        if (srv_client_call(c, &r, &reply, &e) != CASES[i / 2].code) fail_msg("case %zu: '%s'", i, e.msg);
        if (!strstr(e.msg, CASES[i / 2].message)) fail_msg("'%s' lacks '%s'", e.msg, CASES[i / 2].message);
        assert_true(clock_ns() - begun < LONG);
        srv_client_close(c);
        worker_end(&w);
    }
}

/* Something else listens there: a line that names it, before any reply. */
static void say_http(worker *w)
{
    srv_request r;
    if (next_request(w, &r)) say(w, "HTTP/1.1 400 Bad Request\r\n\r\n", 28);
}

static void alert_as_tls(worker *w)
{
    srv_request r;
    if (next_request(w, &r)) say(w, "\x15\x03\x03\0\x02\x02\x46", 7);
}

static void who_is_no_worker_is_told_by_what_was_found(void **state)
{
    (void)state;
    static const struct { void (*act)(worker *); err_code code; const char *message; } CASES[] = {
        { be_silent, ERR_IO, ": timed out after 0.2 s: found silence, wanted a sparktape worker" },
        { close_after_a_request, ERR_IO, ": closed without a word, wanted a sparktape worker" },
        { say_http, ERR_INPUT, ": found 'HTTP/1.1 400 Bad Reques', wanted a sparktape worker" },
        { alert_as_tls, ERR_INPUT, ": found TLS, wanted a plain connection" },
    };
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        worker w;
        worker_begin(&w, NULL, CASES[i].act);
        srv_client *c = client_of(&w, NULL, CASES[i].act == be_silent ? 200 * MS : LONG);
        srv_request r = { .op = SRV_STATUS };
        srv_reply reply;
        err e = { 0 };
        if (srv_client_call(c, &r, &reply, &e) != CASES[i].code) fail_msg("case %zu: '%s'", i, e.msg);
        if (!strstr(e.msg, CASES[i].message) || !strstr(e.msg, "unix:client_under_test.sock"))
            fail_msg("'%s' lacks '%s'", e.msg, CASES[i].message);
        srv_client_close(c);
        worker_end(&w);
    }
}

static void a_refusal_is_read_though_the_connection_ends_with_it(void **state)
{
    (void)state;
    worker w;
    worker_begin(&w, NULL, refuse_and_close);
    srv_client *c = client_of(&w, NULL, LONG);
    srv_request r = { .op = SRV_OPEN, .epoch = 1 };
    srv_reply reply;
    err e = { 0 };
    assert_int_equal(srv_client_call(c, &r, &reply, &e), ERR_OK);
    assert_int_equal(reply.refused, SRV_REFUSED_EPOCH);
    assert_string_equal(reply.text, "epoch 1 is over");
    pthread_join(w.thread, NULL); /* it has closed: sending fails, and is no signal */
    err_code rc = ERR_OK;
    for (int i = 0; i < 3 && rc == ERR_OK; i++) {
        r.id = 0;
        rc = srv_client_send(c, &r, &e);
    }
    assert_int_equal(rc, ERR_IO);
    assert_int_equal(srv_client_receive(c, &reply, &e), ERR_IO);
    srv_client_close(c);
    close(w.listening);
    srv_address_remove(&w.address);
    srv_buf_fini(&w.in);
    srv_buf_fini(&w.wire);
}

static void a_request_that_cannot_be_encoded_is_not_sent(void **state)
{
    (void)state;
    static const char *const KEYS[] = { NULL, KEY_PATH };
    for (size_t i = 0; i < COUNT_OF(KEYS); i++) {
        worker w;
        worker_begin(&w, KEYS[i], answer);
        srv_client *c = client_of(&w, KEYS[i], LONG);
        srv_request bad = { .op = SRV_RELEASE, .epoch = 1, .u.slot = -1 }, good = { .op = SRV_OPEN, .epoch = 1 };
        srv_reply reply;
        err e = { 0 };
        assert_int_equal(srv_client_send(c, &bad, &e), ERR_ARG);
        assert_int_equal(bad.id, 0);
        assert_int_equal(srv_client_call(c, &good, &reply, &e), ERR_OK);
        assert_int_equal(good.id, 1);
        srv_client_close(c);
        worker_end(&w);
    }
}

static void raw_bytes_pass_as_they_are(void **state)
{
    (void)state;
    static const char *const KEYS[] = { NULL, KEY_PATH };
    for (size_t i = 0; i < COUNT_OF(KEYS); i++) {
        worker w;
        worker_begin(&w, KEYS[i], answer);
        srv_client *c = client_of(&w, KEYS[i], LONG);
        srv_request r = { .op = SRV_OPEN, .id = 77, .epoch = 1 };
        srv_buf b = { 0 };
        srv_reply reply;
        err e = { 0 };
        assert_int_equal(srv_encode_request(&r, &b, &e), ERR_OK);
        for (size_t k = 0; k < b.bytes; k++) assert_int_equal(srv_client_send_raw(c, b.data + k, 1, &e), ERR_OK);
        assert_int_equal(srv_client_receive(c, &reply, &e), ERR_OK);
        assert_int_equal(reply.id, 77);
        assert_true(srv_client_fd(c) >= 0);
        srv_buf_fini(&b);
        srv_client_close(c);
        worker_end(&w);
    }
}

static void no_session_begins_without_the_same_key_at_both_ends(void **state)
{
    (void)state;
    static const struct { const char *server, *client; void (*act)(worker *); const char *message; } CASES[] = {
        { KEY_PATH, OTHER_PATH, be_silent, "tls: no handshake: " },
        { NULL, KEY_PATH, be_silent, "timed out" },
        { NULL, KEY_PATH, close_at_once, "the worker closed the connection" },
        { NULL, KEY_PATH, answer_before_it_reads, "tls: no handshake: " },
    };
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        worker w;
        srv_client *c = (srv_client *)1;
        err e = { 0 };
        worker_begin(&w, CASES[i].server, CASES[i].act);
        assert_int_equal(srv_client_open(&w.address, CASES[i].client, 300 * MS, &c, &e), ERR_IO);
        assert_null(c);
        if (!strstr(e.msg, CASES[i].message)) fail_msg("'%s' lacks '%s'", e.msg, CASES[i].message);
        assert_non_null(strstr(e.msg, "unix:client_under_test.sock: "));
        worker_end(&w);
    }
    worker w;
    worker_begin(&w, KEY_PATH, be_silent); /* a plain client at a TLS worker */
    srv_client *c = client_of(&w, NULL, LONG);
    srv_request r = { .op = SRV_STATUS };
    srv_reply reply;
    err e = { 0 };
    assert_int_not_equal(srv_client_call(c, &r, &reply, &e), ERR_OK);
    srv_client_close(c);
    worker_end(&w);
}

static void a_missing_key_or_worker_is_named(void **state)
{
    (void)state;
    srv_address a;
    srv_client *c;
    err e = { 0 };
    assert_int_equal(srv_address_parse("unix:client_nobody.sock", false, &a, &e), ERR_OK);
    assert_int_equal(srv_client_open(&a, "no.key", LONG, &c, &e), ERR_INPUT);
    assert_non_null(strstr(e.msg, "no.key"));
    assert_int_equal(srv_client_open(&a, NULL, LONG, &c, &e), ERR_IO);
    assert_non_null(strstr(e.msg, "client_nobody.sock"));
    assert_null(c);
}

static uint64_t cpu_ns(void)
{
    struct timespec t;
    assert_int_equal(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t), 0);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void a_client_waits_asleep_or_awake_but_no_longer_than_its_deadline(void **state)
{
    (void)state;
    uint64_t took[2];
    for (int awake = 0; awake < 2; awake++) {
        worker w;
        worker_begin(&w, NULL, be_silent);
        srv_client *c = client_of(&w, NULL, 400 * MS);
        srv_request r = { .op = SRV_STATUS };
        srv_reply reply;
        err e = { 0 };
        srv_client_stay_awake(c, awake ? LONG : 0);
        uint64_t before = cpu_ns();
        assert_int_equal(srv_client_call(c, &r, &reply, &e), ERR_IO);
        took[awake] = cpu_ns() - before;
        assert_non_null(strstr(e.msg, "timed out"));
        srv_client_close(c);
        worker_end(&w);
    }
    assert_true(took[0] < 20 * MS); /* of 400; a busy machine gives the one who is awake a part of them */
    assert_true(took[1] > 40 * MS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_gets_its_reply),
        cmocka_unit_test(requests_may_go_out_before_replies_come),
        cmocka_unit_test(twenty_megabytes_go_out_while_replies_come_in),
        cmocka_unit_test(what_is_wrong_is_told),
        cmocka_unit_test(who_is_no_worker_is_told_by_what_was_found),
        cmocka_unit_test(a_refusal_is_read_though_the_connection_ends_with_it),
        cmocka_unit_test(a_request_that_cannot_be_encoded_is_not_sent),
        cmocka_unit_test(raw_bytes_pass_as_they_are),
        cmocka_unit_test(no_session_begins_without_the_same_key_at_both_ends),
        cmocka_unit_test(a_missing_key_or_worker_is_named),
        cmocka_unit_test(a_client_waits_asleep_or_awake_but_no_longer_than_its_deadline),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
