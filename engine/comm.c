#include "engine/comm.h"

#include "base/clock.h"
#include "base/mem.h"
#include "engine/config.h"
#include "kernels/reduce.h"

#include <pthread.h>
#include <time.h>

struct eng_comm {
    pthread_mutex_t lock;
    pthread_cond_t turned;
    int32_t n_ranks, arrived;
    uint64_t generation, deadline_ns;
    bool failed;
    char why[200];
    const float *part[ENG_RANKS_MAX];
    krn_best best[ENG_RANKS_MAX][ENG_COMM_BEST];
};

err_code eng_comm_open(int32_t n_ranks, uint64_t deadline_ns, eng_comm **out, err *e)
{
    *out = mem_alloc(1, sizeof **out);
    if (!*out) return err_set(e, ERR_NOMEM, "communicator: no memory");
    pthread_condattr_t a;
    pthread_condattr_init(&a);
    pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    pthread_mutex_init(&(*out)->lock, NULL);
    pthread_cond_init(&(*out)->turned, &a);
    pthread_condattr_destroy(&a);
    (*out)->n_ranks = n_ranks;
    (*out)->deadline_ns = deadline_ns;
    return ERR_OK;
}

void eng_comm_close(eng_comm *c)
{
    if (!c) return;
    pthread_cond_destroy(&c->turned);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

static void fail_locked(eng_comm *c, int32_t rank, const char *op, const char *why)
{
    if (!c->failed) snprintf(c->why, sizeof c->why, "rank %d, %s: %s", rank, op, why);
    c->failed = true;
    pthread_cond_broadcast(&c->turned);
}

static err_code barrier(eng_comm *c, int32_t rank, const char *op, err *e)
{
    uint64_t until = clock_ns() + c->deadline_ns;
    struct timespec at = { (time_t)(until / 1000000000u), (long)(until % 1000000000u) };
    pthread_mutex_lock(&c->lock);
    uint64_t mine = c->generation;
    if (++c->arrived == c->n_ranks) {
        c->arrived = 0;
        c->generation++;
        pthread_cond_broadcast(&c->turned);
    }
    while (!c->failed && c->generation == mine)
        if (pthread_cond_timedwait(&c->turned, &c->lock, &at) != 0 && c->generation == mine) {
            char why[96];
            snprintf(why, sizeof why, "%d of %d ranks arrived within %.1f s", c->arrived, c->n_ranks,
                     (double)c->deadline_ns * 1e-9);
            fail_locked(c, rank, op, why);
        }
    err_code rc = c->failed ? err_set(e, ERR_COMM, "collective: %s", c->why) : ERR_OK;
    pthread_mutex_unlock(&c->lock);
    return rc;
}

/* Publishing is ordered by the first barrier; the second keeps the parts in place until everyone has read them. */
err_code eng_comm_all_reduce(eng_comm *c, int32_t rank, const float *in, float *out, int64_t n, const char *op, err *e)
{
    c->part[rank] = in;
    TRY(barrier(c, rank, op, e));
    krn_sum_ranks_ref(c->part, c->n_ranks, 0, n, out);
    return barrier(c, rank, op, e);
}

err_code eng_comm_best(eng_comm *c, int32_t rank, krn_best *best, int32_t n, const char *op, err *e)
{
    CHECK(n <= ENG_COMM_BEST);
    memcpy(c->best[rank], best, sizeof *best * (size_t)n);
    TRY(barrier(c, rank, op, e));
    for (int32_t i = 0; i < n; i++) {
        krn_best won = c->best[0][i];
        for (int32_t r = 1; r < c->n_ranks; r++) won = krn_best_of(won, c->best[r][i]);
        best[i] = won;
    }
    return barrier(c, rank, op, e);
}

void eng_comm_give_up(eng_comm *c, int32_t rank, const char *why)
{
    pthread_mutex_lock(&c->lock);
    fail_locked(c, rank, "step", why);
    pthread_mutex_unlock(&c->lock);
}
