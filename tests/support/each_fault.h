/* A thing done again and again, each time with a later call failing, once or for good, until a run meets no fault.
 * The test is linked as tests/formats/alloc_fail.h and tests/support/io_fail.h want it. */
#ifndef TESTS_SUPPORT_EACH_FAULT_H
#define TESTS_SUPPORT_EACH_FAULT_H

#include "tests/formats/alloc_fail.h"
#include "tests/support/io_fail.h"
#include "tests/support/ok.h"
#include "tests/support/slow.h"

enum { FAULTS_MAX = 2000, SOME_FAULTS_MAX = 1 << 20 };

typedef struct fault_loop {
    void (*before)(const void *ctx); /* each run */
    err_code (*run)(const void *ctx, err *e);
    /* What has to hold: of a fault, rc is wanted, or ERR_OK where the run did without. */
    void (*after)(const void *ctx, err_code rc, const err *e, err_code wanted, long at);
    long spread; /* 0: every fault. Of a long run some: the first ones, then further and further apart, at / spread */
} fault_loop;

/* Returns how many faults there were. */
static long each_fault(const fault_loop *l, const void *ctx, void (*arm)(long n, bool persistent), bool (*end)(void),
                       err_code wanted, bool persistent)
{
    const long most = l->spread ? SOME_FAULTS_MAX : FAULTS_MAX;
    for (long at = persistent; at < most; at += (SLOW ? 4 : 1) + (l->spread ? at / l->spread : 0)) {
        err e = { 0 };
        l->before(ctx);
        arm(at, persistent);
        err_code rc = l->run(ctx, &e);
        const bool hit = end();
        l->after(ctx, rc, &e, wanted, at);
        if (hit) continue;
        assert_int_equal(rc, ERR_OK);
        return at;
    }
    fail_msg("no end after %ld faults", most);
    return 0;
}

/* Memory and disk; more than so many faults each, or the loop tests nothing. */
static inline void every_fault_of(const fault_loop *l, const void *ctx, long allocations, long disk_calls)
{
    for (int persistent = 0; persistent < 2; persistent++) {
        assert_true(each_fault(l, ctx, alloc_fail_at, alloc_fail_end, ERR_NOMEM, persistent) > allocations);
        assert_true(each_fault(l, ctx, io_fail_at, io_fail_end, ERR_IO, persistent) > disk_calls);
    }
}

#endif
