/* A tiny checkpoint and an engine on it, for tests of whole steps on cards: engines of several arms and communicators are
 * compared by a hash of every value they show. */
#ifndef TESTS_ENGINE_CASE_H
#define TESTS_ENGINE_CASE_H

#include "gpu.h"

#include "engine/device.h"
#include "engine/dispatch.h"

enum { CASE_SLOTS = 4, CASE_ROWS_MAX = 300, CASE_VALUES_MAX = 512 };
static const int32_t CASE_ALL[CASE_SLOTS] = { 0, 1, 2, 3 };

/* cmocka group setup and teardown. CASE_MODEL in the environment: a checkpoint folder to use instead of the tiny one. */
int case_open(void **state);
int case_close(void **state);
eng_config case_config(void);

typedef struct case_run {
    const char *arm;
    eng_backend backend;
    eng_mode mode;
    int32_t tp;
    eng_comm_kind comm;
    eng_combine combine;
    eng_level retain; /* OFF: DEEP, every value */
    bool lazy;        /* nothing is captured at open */
    const eng_dispatch *dispatch; /* of a kx2 arm; NULL: as by default */
} case_run;
/* Fails the test on an error. */
eng_engine *case_engine(case_run run);

/* What a step showed: a hash of each value of each rank, 0 where nothing was shown. */
typedef struct case_shown { uint64_t hash[ENG_RANKS_MAX][CASE_VALUES_MAX]; int64_t n; } case_shown;
typedef struct case_outcome {
    int32_t drafts[CASE_SLOTS * ENG_BLOCK_MAX];
    float confidence[CASE_SLOTS * ENG_BLOCK_MAX];
} case_outcome;
/* shown may be NULL: no tap. */
void case_insert(eng_engine *g, int32_t slot, int32_t first, int32_t rows, case_shown *shown);
case_outcome case_draft(eng_engine *g, int32_t batch, const int32_t *slots, int32_t n_out, case_shown *shown);
/* The same with a tap of the test's own, or NULL. */
void case_insert_tapped(eng_engine *g, int32_t slot, int32_t first, int32_t rows, const eng_tap *tap);
case_outcome case_draft_tapped(eng_engine *g, int32_t batch, const int32_t *slots, int32_t n_out, const eng_tap *tap);
/* Four slots at the edges of the window: p = 1, W-2, W-1 and far beyond. */
void case_fill(eng_engine *g);
/* Fails with the first value that differs, or when nothing was shown. */
void case_same(const char *what, const eng_program *p, int32_t n_ranks, const case_shown *a, const case_shown *b);

#endif
