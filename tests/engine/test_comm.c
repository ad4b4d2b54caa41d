/* Ranks meeting: the sum's order is fixed, a tie across ranks goes to the lower id, a rank that stays away fails all. */
#include "engine/comm.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

enum { RANKS = 3, N = 1000 };
#define SECOND 1000000000ull

typedef struct rank_arg {
    eng_comm *comm;
    int32_t rank;
    float in[N], out[N];
    krn_best best[2];
    err_code rc;
    err e;
} rank_arg;

static void *reduce_rank(void *p)
{
    rank_arg *a = p;
    for (int rep = 0; rep < 50 && a->rc == ERR_OK; rep++) {
        for (int i = 0; i < N; i++) a->in[i] = a->rank == 0 ? 1e8f : a->rank == 1 ? 1.0f + (float)rep : -1e8f;
        a->rc = eng_comm_all_reduce(a->comm, a->rank, a->in, a->out, N, "sum", &a->e);
    }
    a->best[0] = (krn_best){ 2.5f, 100 - a->rank };
    a->best[1] = (krn_best){ (float)a->rank, a->rank };
    if (a->rc == ERR_OK) a->rc = eng_comm_best(a->comm, a->rank, a->best, 2, "token", &a->e);
    return NULL;
}

static rank_arg args[RANKS];

static void run(eng_comm *c, int n, void *(*fn)(void *))
{
    pthread_t t[RANKS];
    for (int r = 0; r < n; r++) {
        memset(&args[r], 0, sizeof args[r]);
        args[r].comm = c;
        args[r].rank = r;
        assert_int_equal(pthread_create(&t[r], NULL, fn, &args[r]), 0);
    }
    for (int r = 0; r < n; r++) pthread_join(t[r], NULL);
}

static void sums_are_in_rank_order_and_ties_go_to_the_lower_id(void **state)
{
    (void)state;
    eng_comm *c;
    err e = { 0 };
    assert_int_equal(eng_comm_open(RANKS, 20 * SECOND, &c, &e), ERR_OK);
    run(c, RANKS, reduce_rank);
    volatile float wanted = 1e8f + 50.0f; /* rounds in f32: another order would give 50 */
    wanted = wanted - 1e8f;
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(args[r].rc, ERR_OK);
        for (int i = 0; i < N; i++) assert_true(args[r].out[i] == wanted);
        assert_int_equal(args[r].best[0].id, 98);
        assert_int_equal(args[r].best[1].id, 2);
    }
    eng_comm_close(c);
}

static void a_missing_rank_fails_the_others_with_its_name(void **state)
{
    (void)state;
    eng_comm *c;
    err e = { 0 };
    assert_int_equal(eng_comm_open(RANKS, SECOND / 5, &c, &e), ERR_OK);
    run(c, RANKS - 1, reduce_rank);
    for (int r = 0; r < RANKS - 1; r++) {
        assert_int_equal(args[r].rc, ERR_COMM);
        assert_non_null(strstr(args[r].e.msg, "sum"));
        assert_non_null(strstr(args[r].e.msg, "2 of 3 ranks"));
    }
    eng_comm_close(c);
}

static void *give_up_rank(void *p)
{
    rank_arg *a = p;
    if (a->rank == 1) eng_comm_give_up(a->comm, 1, "out of paper");
    else a->rc = eng_comm_all_reduce(a->comm, a->rank, a->in, a->out, N, "sum", &a->e);
    return NULL;
}

static void a_rank_that_gives_up_is_not_waited_for(void **state)
{
    (void)state;
    eng_comm *c;
    err e = { 0 };
    assert_int_equal(eng_comm_open(RANKS, 600 * SECOND, &c, &e), ERR_OK); /* the test's own limit is far below */
    run(c, RANKS, give_up_rank);
    assert_int_equal(args[0].rc, ERR_COMM);
    assert_int_equal(args[2].rc, ERR_COMM);
    assert_non_null(strstr(args[0].e.msg, "out of paper"));
    eng_comm_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_in_rank_order_and_ties_go_to_the_lower_id),
        cmocka_unit_test(a_missing_rank_fails_the_others_with_its_name),
        cmocka_unit_test(a_rank_that_gives_up_is_not_waited_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
