/* What a model holds. Private to model.c, which compares, and model_requests.c, which lists. */
#ifndef TUI_MODEL_STATE_H
#define TUI_MODEL_STATE_H

#include "tui/model.h"

#include "engine/engine.h"
#include "replay/ordered.h"
#include "tui/work.h"

enum { N_STEPS = 2, NO_ROUND = -1 };

/* What is kept of every compared round for each of its requests. */
typedef struct tui_summary {
    tui_verdict verdict;
    int32_t first_origin, worst, n_same;
    bool drafts_equal;
    double worst_rel_l2, kl;
} tui_summary;

struct tui_model {
    const fmt_tape *tape[TUI_SIDES];
    const cap_names *names[TUI_SIDES];   /* these three are the comparison's, or those of lone */
    const rpl_ordered *ordered;
    const eng_program *program[N_STEPS]; /* NULL: no config in the heads */
    struct { cap_names *names; rpl_ordered *ordered; eng_program *program[N_STEPS]; } lone;
    tui_request *request;
    size_t n_requests, capacity;
    cap_value buffer;
    int32_t *first_request;        /* [rounds + 1] of each round */
    /* Shared with the comparing thread; while that one works, it alone calls compare. */
    rpl_compare *compare;          /* NULL: one tape */
    pthread_t thread;
    bool started;
    atomic_int n_done;
    atomic_bool stop, failed;      /* failed: no memory */
    pthread_mutex_t lock;          /* of all that follows */
    pthread_cond_t change;         /* there may be something to compare, or the thread is to stop */
    bool paused;
    int32_t next;                  /* the rounds before it are compared */
    int32_t wanted, shown;         /* rounds: the next to compare; the one that a screen holds */
    bool *compared;                /* [rounds] its summaries are there */
    tui_summary *summary;          /* [requests] */
    const rpl_round **result;      /* [rounds] NULL: not compared, or not kept */
    int32_t *kept;                 /* [rounds] a ring of the rounds with results, the oldest at kept_first */
    int32_t kept_first, n_kept;
    uint64_t kept_bytes, read_bytes;
};

/* Makes the requests of every round: what the index tells, and of rounds drafted in an unusual order one small value.
 * ERR_NOMEM. */
MUST_USE err_code tui_model_list(tui_model *m, err *e);

#endif
