/* What a step's taps showed, kept whole, and the questions asked of a shot of the same step. For tests of both backends. */
#ifndef TESTS_SHOT_CHECK_H
#define TESTS_SHOT_CHECK_H

#include "base/mem.h"
#include "engine/shots.h"
#include "kernels/digest.h"
#include "kernels/top_rows.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

enum { SHOWN_VALUES_MAX = 256, SHOWN_RANKS_MAX = 2, SHOWN_ROWS_MAX = 512 };

static inline void shown_ok(err_code rc, const err *e)
{
    if (rc != ERR_OK) fail_msg("%s", e->msg);
}

/* Every value of every rank, an insert's buckets joined. */
typedef struct shown {
    uint8_t *data[SHOWN_RANKS_MAX][SHOWN_VALUES_MAX];
    fmt_tensor t[SHOWN_RANKS_MAX][SHOWN_VALUES_MAX];
    int32_t n;
} shown;

/* eng_tap's tensor, ctx a shown. Ranks call from their own threads, each into its own row. */
static inline void shown_look(void *ctx, const eng_site *site, const fmt_tensor *t)
{
    shown *s = ctx;
    uint8_t **data = &s->data[site->rank][site->value];
    uint64_t bytes = fmt_tensor_bytes(t), row_bytes = bytes / (uint64_t)t->shape[0];
    fmt_tensor *whole = &s->t[site->rank][site->value];
    if (!*data) {
        *data = malloc(row_bytes * (uint64_t)site->rows_total + 1);
        *whole = *t;
        whole->shape[0] = 0;
        __atomic_fetch_add(&s->n, 1, __ATOMIC_RELAXED);
    }
    memcpy(*data + row_bytes * (uint64_t)site->row0, t->data, bytes);
    whole->shape[0] += t->shape[0];
    whole->data = *data;
}

static inline void shown_forget(shown *s)
{
    for (int r = 0; r < SHOWN_RANKS_MAX; r++)
        for (int v = 0; v < SHOWN_VALUES_MAX; v++) free(s->data[r][v]);
    *s = (shown){ 0 };
}

static inline bool shown_equal(const fmt_tensor *a, const fmt_tensor *b)
{
    return a->dtype == b->dtype && a->ndim == b->ndim && memcmp(a->shape, b->shape, sizeof a->shape) == 0 &&
           memcmp(a->data, b->data, fmt_tensor_bytes(a)) == 0;
}

static inline bool shown_tapped(const eng_value *v)
{
    return v->producer >= 0 && v->level <= ENG_LEVEL_DEEP && !v->state;
}

/* ---- pools ---- */

/* keep of every tapped value and of the windows; TOP only where there is a vocabulary. */
static inline eng_shots *shots_of_all(eng_engine *g, uint8_t keep, int32_t depth, int32_t insert_rows)
{
    uint8_t choice[2][SHOWN_VALUES_MAX] = { { 0 } };
    eng_shots *s = NULL;
    err e = { 0 };
    for (int step = 0; step < 2; step++) {
        const eng_program *p = eng_program_of(g, (eng_step_kind)step);
        assert_true(p->n_values <= SHOWN_VALUES_MAX);
        for (int32_t v = 0; v < p->n_values; v++) {
            uint8_t plain = keep & (uint8_t)~ENG_KEEP_TOP;
            if (shown_tapped(&p->value[v])) choice[step][v] = p->value[v].top_only ? keep : plain;
            if (p->value[v].state && step == ENG_STEP_DRAFT) choice[step][v] = plain;
        }
    }
    shown_ok(eng_shots_open(g, (const uint8_t *const[]){ choice[0], choice[1] }, depth, 0, insert_rows, &s, &e), &e);
    return s;
}

static inline eng_shot *shot_take(eng_shots *s)
{
    eng_shot *shot = eng_shots_take(s);
    assert_non_null(shot);
    return shot;
}

static inline void shot_landed(eng_shot *shot)
{
    err e = { 0 };
    shown_ok(eng_shot_wait(shot, &e), &e);
}

/* ---- questions ---- */

/* Every tapped value of the shot is what was shown. */
static inline void shot_has_shown(const eng_engine *g, const eng_shot *shot, const shown *s)
{
    const eng_program *p = eng_program_of(g, eng_shot_step(shot));
    int32_t n_ranks = eng_options_of(g)->n_ranks, n = 0;
    for (int32_t v = 0; v < p->n_values; v++) {
        if (!shown_tapped(&p->value[v])) continue;
        assert_true(eng_shot_has(shot, v));
        for (int32_t r = 0; r < n_ranks; r++, n++) {
            fmt_tensor t;
            eng_shot_tensor(shot, r, v, 0, &t);
            if (!shown_equal(&t, &s->t[r][v])) fail_msg("%s of rank %d differs", p->value[v].name, r);
        }
    }
    assert_int_equal(n, s->n);
}

/* A digest of t's bits. The squares may be added up in another order than the twin's: of n terms that are not negative, any
 * order is within n units of 2^-53, here far below 1e-10. */
static inline void shot_digest_is_of(eng_shot *shot, int32_t rank, int32_t value, int32_t b, const fmt_tensor *t)
{
    static uint64_t wanted_row[SHOWN_ROWS_MAX];
    const uint64_t *row;
    uint64_t n_rows, digest, wanted;
    fmt_stats stats, wanted_stats;
    eng_shot_digest(shot, rank, value, b, &row, &n_rows, &digest, &stats);
    krn_digest_ref(t, wanted_row, &wanted, &wanted_stats);
    assert_int_equal(n_rows, krn_digest_rows(t));
    assert_memory_equal(row, wanted_row, n_rows * sizeof *row);
    assert_int_equal(digest, wanted);
    assert_true(fabs(stats.rms - wanted_stats.rms) <= 1e-10 * wanted_stats.rms);
    stats.rms = wanted_stats.rms;
    assert_memory_equal(&stats, &wanted_stats, sizeof stats);
}

static inline void shot_digests_shown(const eng_engine *g, eng_shot *shot, const shown *s)
{
    const eng_program *p = eng_program_of(g, eng_shot_step(shot));
    for (int32_t v = 0; v < p->n_values; v++)
        for (int32_t r = 0; shown_tapped(&p->value[v]) && r < eng_options_of(g)->n_ranks; r++)
            shot_digest_is_of(shot, r, v, 0, &s->t[r][v]);
}

static inline void shot_top_of_shown(const eng_engine *g, eng_shot *shot, const shown *s)
{
    const eng_program *p = eng_program_of(g, ENG_STEP_DRAFT);
    int32_t n_ranks = eng_options_of(g)->n_ranks, n = 0;
    static float wanted[ENG_BATCH_MAX * ENG_BLOCK_MAX * KRN_TOP_ROWS];
    static int32_t wanted_id[ENG_BATCH_MAX * ENG_BLOCK_MAX * KRN_TOP_ROWS];
    int32_t vocab = p->config.vocab;
    for (int32_t v = 0; v < p->n_values; v++) {
        if (!p->value[v].top_only) continue;
        const float *shard[2], *value;
        const int32_t *id;
        int64_t cols[2], rows;
        for (int32_t r = 0; r < n_ranks; r++) {
            shard[r] = s->t[r][v].data;
            cols[r] = s->t[r][v].shape[s->t[r][v].ndim - 1];
        }
        int32_t k = eng_shot_top(shot, v, &value, &id, &rows);
        assert_int_equal(k, vocab < KRN_TOP_ROWS ? vocab : KRN_TOP_ROWS);
        assert_int_equal(rows, fmt_tensor_elems(&s->t[0][v]) / cols[0]);
        krn_top_rows(shard, cols, n_ranks, rows, k, wanted, wanted_id);
        assert_memory_equal(value, wanted, sizeof(float) * (size_t)(rows * k));
        assert_memory_equal(id, wanted_id, sizeof(int32_t) * (size_t)(rows * k));
        n++;
    }
    assert_int_equal(n, 2);
}

/* The windows of a draft's slots, which nothing has changed since. keep: of what the pool keeps of them. */
static inline void shot_has_windows(eng_engine *g, eng_shot *shot, uint8_t keep, int32_t batch, const int32_t *slots)
{
    const eng_program *p = eng_program_of(g, ENG_STEP_DRAFT);
    int32_t stage = 0;
    for (int32_t v = 0; v < p->n_values; v++) {
        if (!p->value[v].state) continue;
        assert_true(eng_shot_has(shot, v));
        for (int32_t b = 0; b < batch; b++) {
            err e = { 0 };
            fmt_tensor wanted, t;
            shown_ok(eng_window(g, slots[b], stage, &wanted, &e), &e);
            if (keep & ENG_KEEP_DIGEST) shot_digest_is_of(shot, 0, v, b, &wanted);
            if (!(keep & ENG_KEEP_TENSOR)) continue;
            eng_shot_tensor(shot, 0, v, b, &t);
            assert_true(shown_equal(&t, &wanted));
        }
        stage++;
    }
    assert_int_equal(stage, p->config.n_stages);
}

#endif
