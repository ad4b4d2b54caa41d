/* Addresses: which texts are one, who may listen where, and that waiting ends. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/mem.h"
#include "serve/address.h"

#define PATH "address_under_test.sock"
static const uint64_t SECOND_NS = 1000000000;

static srv_address parsed(const char *text, bool listen)
{
    srv_address a;
    err e = { 0 };
    if (srv_address_parse(text, listen, &a, &e) != ERR_OK) fail_msg("%s: %s", text, e.msg);
    return a;
}

static void what_is_no_address_is_refused(void **state)
{
    (void)state;
    static const struct { const char *text, *message; } CASES[] = {
        { "", "wanted unix:PATH or tcp:HOST:PORT" },
        { "worker", "found 'worker', wanted unix:PATH or tcp:HOST:PORT" },
        { "localhost:80", "wanted unix:PATH or tcp:HOST:PORT" },
        { "unix:", "found a path of 0 bytes" },
        { "tcp:", "wanted tcp:HOST:PORT" },
        { "tcp:80", "wanted tcp:HOST:PORT" },
        { "tcp::80", "wanted tcp:HOST:PORT" },
        { "tcp:::1:80", "an IPv6 host in brackets" },
        { "tcp:[]:80", "wanted tcp:HOST:PORT" },
        { "tcp:127.0.0.1:", "port" },
        { "tcp:127.0.0.1:0", "port" },
        { "tcp:127.0.0.1:65536", "port" },
        { "tcp:127.0.0.1:-1", "port" },
        { "tcp:127.0.0.1:8x", "port" },
        { "tcp:127.0.0.1:http", "port" },
        { "unix:/012345678901234567890123456789012345678901234567890123456789"
          "0123456789012345678901234567890123456789012345678",
          "found a path of 110 bytes, wanted 1 to 107" },
    };
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        srv_address a = { .text = "as before" };
        err e = { 0 };
        if (srv_address_parse(CASES[i].text, false, &a, &e) != ERR_ARG) fail_msg("'%s' was taken", CASES[i].text);
        if (!strstr(e.msg, CASES[i].message)) fail_msg("'%s' lacks '%s'", e.msg, CASES[i].message);
        assert_string_equal(a.text, "as before");
    }
    char longer[400];
    memset(longer, '/', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    srv_address a;
    err e = { 0 };
    assert_int_equal(srv_address_parse(longer, false, &a, &e), ERR_ARG);
    assert_int_equal(srv_address_parse("tcp:[not-ipv6]:80", false, &a, &e), ERR_SYSTEM);
    assert_int_equal(srv_address_parse("tcp:no-such-host.invalid:80", false, &a, &e), ERR_SYSTEM);
    assert_non_null(strstr(e.msg, "no-such-host.invalid"));
}

static void an_address_keeps_its_kind(void **state)
{
    (void)state;
    srv_address a = parsed("/tmp/w.sock", false);
    assert_true(a.unix_socket);
    assert_string_equal(a.text, "unix:/tmp/w.sock");
    a = parsed("unix:w.sock", false);
    assert_true(a.unix_socket);
    a = parsed("tcp:127.0.0.1:8", false);
    assert_false(a.unix_socket);
    assert_int_equal(a.sock.ss_family, AF_INET);
    a = parsed("tcp:[::1]:65535", false);
    assert_int_equal(a.sock.ss_family, AF_INET6);
    assert_string_equal(a.text, "tcp:[::1]:65535");
}

static void loopback_is_known_from_other_addresses(void **state)
{
    (void)state;
    static const struct { const char *text; bool loopback; } CASES[] = {
        { "tcp:127.0.0.1:1", true },  { "tcp:127.3.2.1:1", true },          { "tcp:[::1]:1", true },
        { "tcp:0.0.0.0:1", false },   { "tcp:[::]:1", false },              { "tcp:128.0.0.1:1", false },
        { "tcp:10.0.0.1:1", false },  { "tcp:[::ffff:127.0.0.1]:1", true }, { "tcp:[::ffff:10.0.0.1]:1", false },
        { "tcp:[fe80::1]:1", false }, { "tcp:126.255.255.255:1", false },
    };
    for (size_t i = 0; i < COUNT_OF(CASES); i++)
        if (parsed(CASES[i].text, false).loopback != CASES[i].loopback) fail_msg("%s", CASES[i].text);
}

/* Connects to a and passes one byte each way over the accepted connection. */
static void talk(const srv_address *a, int listening)
{
    int fd, peer;
    char c = 0;
    err e = { 0 };
    if (srv_connect(a, clock_ns() + 5 * SECOND_NS, &fd, &e) != ERR_OK) fail_msg("%s", e.msg);
    assert_int_equal(fcntl(fd, F_GETFL) & O_NONBLOCK, 0);
    assert_true((peer = accept(listening, NULL, NULL)) >= 0);
    assert_int_equal(write(fd, "q", 1), 1);
    assert_int_equal(read(peer, &c, 1), 1);
    assert_int_equal(c, 'q');
    assert_int_equal(write(peer, "a", 1), 1);
    assert_int_equal(read(fd, &c, 1), 1);
    assert_int_equal(c, 'a');
    close(fd);
    close(peer);
}

static void a_unix_socket_is_its_owners_alone(void **state)
{
    (void)state;
    srv_address a = parsed("unix:" PATH, true), bound;
    struct stat st;
    int fd;
    err e = { 0 };
    unlink(PATH);
    mode_t old = umask(0);
    if (srv_listen(&a, &fd, &bound, &e) != ERR_OK) fail_msg("%s", e.msg);
    umask(old);
    assert_int_equal(stat(PATH, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_int_equal(fcntl(fd, F_GETFL) & O_NONBLOCK, O_NONBLOCK);
    assert_int_equal(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    assert_string_equal(bound.text, a.text);
    talk(&a, fd);
    close(fd);
    srv_address_remove(&bound);
    assert_int_equal(stat(PATH, &st), -1);
}

static void a_live_socket_is_refused_and_a_stale_one_replaced(void **state)
{
    (void)state;
    srv_address a = parsed("unix:" PATH, true);
    int fd, again;
    err e = { 0 };
    unlink(PATH);
    assert_int_equal(srv_listen(&a, &fd, NULL, &e), ERR_OK);
    assert_int_equal(srv_listen(&a, &again, NULL, &e), ERR_SYSTEM);
    assert_non_null(strstr(e.msg, "cannot listen on unix:" PATH ": somebody does already"));
    close(accept(fd, NULL, NULL)); /* the question whether it is live */
    talk(&a, fd);
    close(fd); /* as after a kill: the name stays */
    assert_int_equal(srv_listen(&a, &again, NULL, &e), ERR_OK);
    talk(&a, again);
    close(again);
    srv_address_remove(&a);
}

static void a_file_that_is_no_socket_is_kept(void **state)
{
    (void)state;
    srv_address a = parsed("unix:" PATH, true);
    int fd;
    err e = { 0 };
    unlink(PATH);
    close(open(PATH, O_CREAT | O_WRONLY, 0600));
    assert_int_equal(srv_listen(&a, &fd, NULL, &e), ERR_SYSTEM);
    assert_non_null(strstr(e.msg, "no socket"));
    assert_int_equal(access(PATH, F_OK), 0);
    unlink(PATH);
    a = parsed("unix:no/such/folder/w.sock", true);
    assert_int_equal(srv_listen(&a, &fd, NULL, &e), ERR_SYSTEM);
    assert_non_null(strstr(e.msg, strerror(ENOENT)));
}

static void port_0_becomes_the_port_that_was_found(void **state)
{
    (void)state;
    static const char *const HOSTS[] = { "tcp:127.0.0.1:0", "tcp:[::1]:0" };
    for (size_t i = 0; i < COUNT_OF(HOSTS); i++) {
        srv_address a = parsed(HOSTS[i], true), bound;
        int fd, again;
        err e = { 0 };
        if (srv_listen(&a, &fd, &bound, &e) != ERR_OK) {
            assert_int_equal(i, 1); /* a machine without IPv6 */
            continue;
        }
        assert_string_not_equal(bound.text, a.text);
        srv_address there = parsed(bound.text, false);
        assert_memory_equal(&there.sock, &bound.sock, bound.sock_bytes);
        assert_true(there.loopback);
        talk(&there, fd);
        assert_int_equal(srv_listen(&bound, &again, NULL, &e), ERR_SYSTEM);
        assert_non_null(strstr(e.msg, bound.text));
        close(fd);
    }
}

static void who_does_not_listen_is_named(void **state)
{
    (void)state;
    srv_address a = parsed("unix:nobody.sock", false);
    int fd;
    err e = { 0 };
    assert_int_equal(srv_connect(&a, clock_ns() + SECOND_NS, &fd, &e), ERR_IO);
    assert_non_null(strstr(e.msg, "cannot connect to unix:nobody.sock"));
    a = parsed("tcp:127.0.0.1:1", false);
    assert_int_equal(srv_connect(&a, clock_ns() + SECOND_NS, &fd, &e), ERR_IO);
    assert_non_null(strstr(e.msg, "cannot connect to tcp:127.0.0.1:1: "));
}

static void waiting_for_a_full_queue_ends_at_the_deadline(void **state)
{
    (void)state;
    enum { MANY = 200 };
    srv_address a = parsed("unix:" PATH, true);
    int fd, held[MANY], n = 0;
    err e = { 0 };
    unlink(PATH);
    assert_int_equal(srv_listen(&a, &fd, NULL, &e), ERR_OK);
    while (n < MANY && srv_connect(&a, clock_ns() + SECOND_NS / 20, &held[n], &e) == ERR_OK) n++;
    assert_in_range(n, 1, MANY - 1);
    assert_non_null(strstr(e.msg, strerror(ETIMEDOUT)));
    uint64_t begun = clock_ns();
    assert_int_equal(srv_connect(&a, begun + SECOND_NS / 10, &held[n], &e), ERR_IO);
    assert_in_range(clock_ns() - begun, SECOND_NS / 10, 5 * SECOND_NS);
    while (n > 0) close(held[--n]);
    close(fd);
    srv_address_remove(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_no_address_is_refused),
        cmocka_unit_test(an_address_keeps_its_kind),
        cmocka_unit_test(loopback_is_known_from_other_addresses),
        cmocka_unit_test(a_unix_socket_is_its_owners_alone),
        cmocka_unit_test(a_live_socket_is_refused_and_a_stale_one_replaced),
        cmocka_unit_test(a_file_that_is_no_socket_is_kept),
        cmocka_unit_test(port_0_becomes_the_port_that_was_found),
        cmocka_unit_test(who_does_not_listen_is_named),
        cmocka_unit_test(waiting_for_a_full_queue_ends_at_the_deadline),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
