/* A tiny model, engines over it, rows for its slots, and a worker whose engine a test can hold up. */
#ifndef TESTS_SERVE_HELP_H
#define TESTS_SERVE_HELP_H

#include "base/clock.h"
#include "base/mem.h"
#include "engine/synth.h"
#include "serve/worker.h"
#include "tests/engine/scratch.h"
#include "tests/support/ok.h"

#include <pthread.h>
#include <semaphore.h>
#include <string.h>

enum { HELP_SLOTS = 4, HELP_ROWS = 64 };

static eng_weights *help_weights;
static eng_config help_config;
static bf16 *help_taps; /* [HELP_ROWS, n_taps * dim] */
static int32_t help_pos[HELP_ROWS];

static inline int help_make_model(void **state)
{
    eng_synth_report report;
    if (scratch_make(state) != 0) return -1;
    eng_config_preset("tiny", &help_config);
    OK(eng_synth_checkpoint("model", &help_config, 3, true, &report, e));
    OK(eng_weights_open("model", true, &help_weights, e));
    size_t n = (size_t)HELP_ROWS * (size_t)help_config.n_taps * (size_t)help_config.dim;
    help_taps = mem_alloc(n, sizeof *help_taps);
    uint32_t seed = 12345;
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        help_taps[i] = (bf16)(0x3f00 | (seed >> 16 & 0x80ff));
    }
    for (int32_t i = 0; i < HELP_ROWS; i++) help_pos[i] = i;
    return 0;
}

static inline int help_drop_model(void **state)
{
    eng_weights_close(help_weights);
    free(help_taps);
    return scratch_remove(state);
}

static inline size_t help_width(void) { return (size_t)help_config.n_taps * (size_t)help_config.dim; }
/* Rows of stream s from position p on; streams differ. There are HELP_ROWS / 2 positions. */
static inline const bf16 *help_rows(int32_t s, int32_t p) { return help_taps + (size_t)(s * 5 + p) * help_width(); }

static inline eng_engine *help_engine(int32_t slots)
{
    eng_option_words words = { .mode = "graph" };
    eng_options o;
    eng_engine *g = NULL;
    OK(eng_options_parse(&words, 1, &o, e));
    OK(eng_open(help_weights, &o, slots, ENG_LEVEL_IO, true, &g, e));
    return g;
}

typedef struct help_draft { int32_t drafts[ENG_BLOCK_MAX]; float confidence[ENG_BLOCK_MAX]; } help_draft;

/* What stream s drafts at position p, its rows 0..p inserted one by one and nobody else there. */
static inline help_draft help_alone(eng_engine *g, int32_t s, int32_t p, int32_t n_out)
{
    help_draft d = { 0 };
    int32_t slot = 0, anchor = 10 * s + p;
    eng_release(g, slot);
    for (int32_t i = 0; i <= p; i++) OK(eng_insert(g, slot, help_rows(s, i), help_pos + i, 1, NULL, e));
    OK(eng_draft(g, 1, &slot, &anchor, &p, n_out, d.drafts, d.confidence, NULL, e));
    return d;
}

/* Entry b of a reply is d, bit for bit. */
static inline bool help_same(const srv_drafted *r, int32_t b, const help_draft *d)
{
    size_t n = (size_t)r->n_out;
    return memcmp(r->drafts + b * r->n_out, d->drafts, n * sizeof *d->drafts) == 0 &&
           memcmp(r->confidence + b * r->n_out, d->confidence, n * sizeof *d->confidence) == 0;
}

static inline srv_hello help_hello(const char *client, int32_t slots)
{
    srv_hello h = { .version = SRV_VERSION, .positions = HELP_ROWS, .slots = slots };
    snprintf(h.client, sizeof h.client, "%s", client);
    return h;
}

/* Hooks that let the test hold the worker before its next insert, count calls, and fail. */
typedef struct help_hooks {
    sem_t reached, go;
    _Atomic bool hold;
    _Atomic int inserts, drafts, released, finished;
    _Atomic bool fail_draft;
} help_hooks;

static inline err_code help_insert_before(void *ctx, const srv_insert_step *s, const eng_tap **tap, err *e)
{
    help_hooks *h = ctx;
    (void)s, (void)tap, (void)e;
    if (h->hold) {
        sem_post(&h->reached);
        sem_wait(&h->go);
    }
    return ERR_OK;
}

static inline err_code help_insert_after(void *ctx, const srv_insert_step *s, bool done, err *e)
{
    (void)s, (void)e;
    ((help_hooks *)ctx)->inserts += done;
    return ERR_OK;
}

static inline err_code help_draft_after(void *ctx, const srv_draft_step *s, bool done, err *e)
{
    help_hooks *h = ctx;
    (void)s;
    h->drafts += done;
    return h->fail_draft ? err_set(e, ERR_INPUT, "round %lld: planted mismatch", (long long)s->round) : ERR_OK;
}

static inline void help_released(void *ctx, int64_t request, int32_t slot)
{
    (void)request, (void)slot;
    ((help_hooks *)ctx)->released++;
}

static inline void help_finish(void *ctx) { ((help_hooks *)ctx)->finished++; }

static inline srv_dump help_dump(help_hooks *h)
{
    memset(h, 0, sizeof *h);
    sem_init(&h->reached, 0, 0);
    sem_init(&h->go, 0, 0);
    return (srv_dump){ .ctx = h, .insert_before = help_insert_before, .insert_after = help_insert_after,
                       .draft_after = help_draft_after, .released = help_released, .finish = help_finish };
}

#endif
