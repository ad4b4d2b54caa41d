/* Ranks find each other: every rank gets rank 0's bytes, strangers and wrong ranks do not, waiting ends in time. */
#include "engine/bootstrap.h"

#include "base/clock.h"
#include "base/mem.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

enum { BLOB = 128 };
static const uint64_t SECOND = 1000000000u;
static char address[32];

typedef struct rank_run {
    int32_t rank, n_ranks;
    uint64_t deadline_ns;
    uint8_t blob[BLOB];
    eng_peers *peers;
    err_code rc;
    err e;
} rank_run;

static void *run(void *arg)
{
    rank_run *r = arg;
    r->rc = eng_peers_open(address, r->rank, r->n_ranks, r->blob, BLOB, r->deadline_ns, &r->peers, &r->e);
    return NULL;
}

/* A port that was free a moment ago. */
static int new_address(void **state)
{
    (void)state;
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) != 0 || getsockname(fd, (struct sockaddr *)&a, &n) != 0)
        return 1;
    close(fd);
    snprintf(address, sizeof address, "127.0.0.1:%d", ntohs(a.sin_port));
    return 0;
}

static void every_rank_gets_the_bytes_of_rank_0(void **state)
{
    (void)state;
    rank_run r[4] = { { 0 } };
    pthread_t t[4];
    for (int i = 3; i >= 0; i--) { /* rank 0 last: the others wait for it */
        r[i] = (rank_run){ .rank = i, .n_ranks = 4, .deadline_ns = 20 * SECOND };
        memset(r[i].blob, i == 0 ? 0x5a : 0, BLOB);
        assert_int_equal(pthread_create(&t[i], NULL, run, &r[i]), 0);
    }
    for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
    for (int i = 0; i < 4; i++) {
        if (r[i].rc != ERR_OK) fail_msg("rank %d: %s", i, r[i].e.msg);
        assert_memory_equal(r[i].blob, r[0].blob, BLOB);
    }
    for (int i = 0; i < 4; i++) assert_int_equal(eng_peers_check(r[i].peers, &r[i].e), ERR_OK);
    for (int i = 0; i < 4; i++) eng_peers_close(r[i].peers);
}

/* Two ranks that have met. */
static void meet(rank_run *zero, rank_run *one)
{
    pthread_t t;
    *zero = (rank_run){ .rank = 0, .n_ranks = 2, .deadline_ns = 20 * SECOND };
    *one = (rank_run){ .rank = 1, .n_ranks = 2, .deadline_ns = 20 * SECOND };
    assert_int_equal(pthread_create(&t, NULL, run, zero), 0);
    run(one);
    pthread_join(t, NULL);
    assert_int_equal(zero->rc, ERR_OK);
    assert_int_equal(one->rc, ERR_OK);
}

static void a_failure_is_heard_with_its_words_and_a_goodbye_is_none(void **state)
{
    (void)state;
    rank_run zero, one;
    meet(&zero, &one);
    eng_peers_tell(one.peers, "s1.ffn.slot_sum: not finished within 60.0 s");
    eng_peers_close(one.peers);
    assert_int_equal(eng_peers_check(zero.peers, &zero.e), ERR_COMM);
    assert_string_equal(zero.e.msg, "rank 1 failed: s1.ffn.slot_sum: not finished within 60.0 s");
    eng_peers_close(zero.peers);
    meet(&zero, &one);
    eng_peers_close(zero.peers);
    for (int i = 0; i < 2; i++) assert_int_equal(eng_peers_check(one.peers, &one.e), ERR_OK);
    eng_peers_close(one.peers);
}

static void a_peer_that_dies_is_noticed(void **state)
{
    (void)state;
    rank_run zero, one;
    meet(&zero, &one);
    for (int fd = 3; fd < 256; fd++) { /* what a killed process leaves: its end of the connection closed */
        struct sockaddr_storage a;
        socklen_t n = sizeof a;
        char port[8];
        snprintf(port, sizeof port, ":%d", getpeername(fd, (struct sockaddr *)&a, &n) == 0 && a.ss_family == AF_INET
                                              ? ntohs(((struct sockaddr_in *)&a)->sin_port) : 0);
        if (strcmp(port, strchr(address, ':')) == 0) shutdown(fd, SHUT_RDWR); /* rank 1's end */
    }
    assert_int_equal(eng_peers_check(zero.peers, &zero.e), ERR_COMM);
    assert_string_equal(zero.e.msg, "rank 1 is gone without a word");
    eng_peers_close(zero.peers);
    eng_peers_close(one.peers);
}

static void another_rank_count_is_turned_away(void **state)
{
    (void)state;
    rank_run zero = { .rank = 0, .n_ranks = 2, .deadline_ns = 20 * SECOND }, wrong = { .rank = 1, .n_ranks = 3,
                      .deadline_ns = 20 * SECOND }, right = { .rank = 1, .n_ranks = 2, .deadline_ns = 20 * SECOND };
    pthread_t t;
    assert_int_equal(pthread_create(&t, NULL, run, &zero), 0);
    run(&wrong);
    assert_int_equal(wrong.rc, ERR_COMM);
    assert_non_null(strstr(wrong.e.msg, "rank 1 of 3 is not wanted"));
    run(&right);
    pthread_join(t, NULL);
    assert_int_equal(right.rc, ERR_OK);
    assert_int_equal(zero.rc, ERR_OK);
    eng_peers_close(right.peers);
    eng_peers_close(zero.peers);
}

static void a_rank_that_does_not_come_is_counted_and_in_time(void **state)
{
    (void)state;
    uint64_t start = clock_ns();
    rank_run zero = { .rank = 0, .n_ranks = 2, .deadline_ns = SECOND / 5 }, one = { .rank = 1, .n_ranks = 2,
                      .deadline_ns = SECOND / 5 };
    run(&zero);
    assert_int_equal(zero.rc, ERR_COMM);
    assert_non_null(strstr(zero.e.msg, "1 of 2 ranks"));
    run(&one);
    assert_int_equal(one.rc, ERR_COMM);
    assert_non_null(strstr(one.e.msg, "rank 1: rank 0 did not answer"));
    assert_true(clock_ns() - start < 10 * SECOND);
}

/* Its queue of connections is full, so connecting itself waits. */
static void a_rank_0_that_does_not_accept_is_given_up_in_time(void **state)
{
    (void)state;
    enum { CALLERS = 8 };
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) },
                             .sin_port = htons((uint16_t)atoi(strchr(address, ':') + 1)) };
    int listener = socket(AF_INET, SOCK_STREAM, 0), caller[CALLERS];
    assert_int_equal(bind(listener, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(listener, 0), 0);
    for (int i = 0; i < CALLERS; i++) {
        caller[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        (void)connect(caller[i], (struct sockaddr *)&a, sizeof a);
    }
    uint64_t start = clock_ns();
    rank_run one = { .rank = 1, .n_ranks = 2, .deadline_ns = SECOND / 5 };
    run(&one);
    assert_int_equal(one.rc, ERR_COMM);
    assert_non_null(strstr(one.e.msg, "rank 1: rank 0 did not answer"));
    assert_true(clock_ns() - start < 2 * SECOND);
    for (int i = 0; i < CALLERS; i++) close(caller[i]);
    close(listener);
}

static void addresses_are_checked(void **state)
{
    (void)state;
    const char *const good[] = { "host:1", "10.0.0.1:65535", "[::1]:29500" };
    const char *const bad[] = { "", "host", "host:", ":1", "host:0", "host:65536", "host:1x", "::1:29500", "[]:1" };
    err e;
    for (size_t i = 0; i < COUNT_OF(good); i++) assert_int_equal(eng_bootstrap_check(good[i], &e), ERR_OK);
    for (size_t i = 0; i < COUNT_OF(bad); i++) assert_int_equal(eng_bootstrap_check(bad[i], &e), ERR_ARG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(every_rank_gets_the_bytes_of_rank_0, new_address),
        cmocka_unit_test_setup(another_rank_count_is_turned_away, new_address),
        cmocka_unit_test_setup(a_rank_that_does_not_come_is_counted_and_in_time, new_address),
        cmocka_unit_test_setup(a_rank_0_that_does_not_accept_is_given_up_in_time, new_address),
        cmocka_unit_test_setup(a_failure_is_heard_with_its_words_and_a_goodbye_is_none, new_address),
        cmocka_unit_test_setup(a_peer_that_dies_is_noticed, new_address),
        cmocka_unit_test(addresses_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
