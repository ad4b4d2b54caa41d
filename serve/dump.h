/* What the worker shows of its steps to whoever dumps them. It does not know who that is.
 *
 * All hooks are called on the worker's thread, between steps, with the engine at rest; only status comes from another
 * one. They may run steps of their own on the spare slot (the one after the worker's), and read the windows of the
 * others. Prewarm's inserts come before all others, as request 0's; released ends them. A hook that fails poisons the
 * worker, so a failure of the disk is none: it is counted, and told by status. Any hook may be NULL. */
#ifndef SERVE_DUMP_H
#define SERVE_DUMP_H

#include "engine/engine.h"
#include "formats/json.h"

/* An insert into an engine slot. round: the next draft step's number, which is the first that can see these rows. */
typedef struct srv_insert_step {
    int64_t round, request;
    int32_t slot, rows;
    const bf16 *taps;   /* [rows, n_taps * dim] */
    const int32_t *pos; /* [rows] */
} srv_insert_step;

typedef struct srv_draft_step {
    int64_t round, request[ENG_BATCH_MAX];
    int32_t batch, n_out;
    const int32_t *slots, *anchors, *pos; /* [batch] */
    const int32_t *drafts;                /* [batch, n_out]: what is answered; before the step NULL */
    const float *confidence;
} srv_draft_step;

typedef struct srv_dump {
    void *ctx;
    /* Whether draft_after must have passed before a draft is answered; else the client does not wait for it. */
    bool hold_replies;
    /* Before a step: *tap is what the engine gets, NULL as it comes in: nothing. Borrowed until after. */
    err_code (*insert_before)(void *ctx, const srv_insert_step *s, const eng_tap **tap, err *e);
    err_code (*draft_before)(void *ctx, const srv_draft_step *s, const eng_tap **tap, err *e);
    /* After it. done false: the step failed, and what was prepared is to be dropped. */
    err_code (*insert_after)(void *ctx, const srv_insert_step *s, bool done, err *e);
    err_code (*draft_after)(void *ctx, const srv_draft_step *s, bool done, err *e);
    /* The request is over, its rows are forgotten next. */
    void (*released)(void *ctx, int64_t request, int32_t slot);
    /* The last hook of all: everything is written when it returns. */
    void (*finish)(void *ctx);
    json_t *(*status)(void *ctx); /* any thread, new reference; NULL: no memory */
} srv_dump;

#endif
