/* Traces: what every value of a run was, as hashes, so that many runs of the same rounds are compared without keeping a
 * tensor. All traces of one layout have the same rows: values in program order, round by round. */
#ifndef REPLAY_TRACE_H
#define REPLAY_TRACE_H

#include "replay/feed.h"
#include "replay/state_hash.h"

/* One value of one round. */
typedef struct rpl_row {
    int32_t index, round;  /* index of the round in the feed, its number */
    int32_t slot, nth;     /* of the tape; FMT_TAPE_NO_SLOT in the draft step; nth insert of the slot in the round */
    bool draft;            /* of the draft step (windows too) */
    const char *name;      /* "s0.attn_out", "s0.window"; the layout's */
    const char *op;        /* that writes it */
} rpl_row;

typedef struct rpl_layout rpl_layout;
/* The rows of t's rounds for which only [rounds of t, as fmt_tape_rounds has them] is set (NULL: all), and the values of up
 * to deep of any arm. t is borrowed until free. Errors as rpl_feed_round. */
MUST_USE err_code rpl_layout_make(const fmt_tape *t, const eng_config *c, const bool *only, rpl_layout **out, err *e);
void rpl_layout_free(rpl_layout *l); /* NULL is a no-op */
int64_t rpl_layout_count(const rpl_layout *l);
const rpl_row *rpl_layout_at(const rpl_layout *l, int64_t i);
int32_t rpl_layout_rounds(const rpl_layout *l);  /* of the feed, all of them */
int32_t rpl_layout_chosen(const rpl_layout *l, int32_t index); /* rounds before `index` that were chosen */
bool rpl_layout_has(const rpl_layout *l, int32_t index); /* it was, and makes a value */
/* Rows of round `index`: [first, first + n); n 0 when it was not chosen. */
void rpl_layout_span(const rpl_layout *l, int32_t index, int64_t *first, int64_t *n);
int32_t rpl_layout_insert_rows(const rpl_layout *l); /* of the longest insert */
/* "round 3 slot 1 s0.main_kv (op s0.main_kv)". Returns buf (200 bytes do). */
const char *rpl_row_text(const rpl_row *r, char *buf, size_t buf_bytes);

enum { RPL_TRACE_ABSENT = -1 }; /* the run has no such value, or the tape kept none of it that tells */
typedef struct rpl_trace {
    int64_t n;
    uint64_t *hash; /* [n] of the whole value's bytes, shards joined and partials added */
    int8_t *rank;   /* [n] RPL_TRACE_ABSENT; 0; the first rank whose copy of a replicated value differs from rank 0's */
    bool damaged;   /* of a tape: values that cannot be read are absent */
} rpl_trace;
MUST_USE err_code rpl_trace_init(rpl_trace *t, const rpl_layout *l, err *e);
void rpl_trace_fini(rpl_trace *t);
/* The first row in [first, first + n) that both have and that differs; -1: none. */
int64_t rpl_trace_differs(const rpl_trace *a, const rpl_trace *b, int64_t first, int64_t n);
/* What the tape recorded. *out zeroed. ERR_NOMEM. */
MUST_USE err_code rpl_trace_of_tape(const fmt_tape *t, const rpl_layout *l, rpl_trace *out, err *e);

/* An engine that runs the rounds again and again: slots are emptied before each time, everything else stays, so that what a
 * run leaves behind is there for the next one to trip over. */
typedef struct rpl_runner rpl_runner;
/* t, w, l are borrowed until close. looks: values are wanted (false: chains alone, which need no shots). */
MUST_USE err_code rpl_runner_open(const fmt_tape *t, const eng_weights *w, const rpl_layout *l, const eng_options *o,
                                  bool looks, bool quiet, rpl_runner **out, err *e);
void rpl_runner_close(rpl_runner *r); /* NULL is a no-op */
/* Runs all rounds; of those that the layout does not have only the inserts. trace: inited (NULL: not wanted); chain: inited
 * for rpl_layout_rounds (NULL: not wanted). A planted fault that names a round is armed in that one. After an interrupt
 * (base/interrupt.h) the rounds that are left are not run: their rows are absent. */
MUST_USE err_code rpl_runner_run(rpl_runner *r, rpl_trace *trace, rpl_chain *chain, err *e);
int32_t rpl_runner_done(const rpl_runner *r); /* rounds of the feed that the last run ran, from the first on */
/* Runs o with each poison (engine/poison.h; CPU only), in an engine of its own, against clean, a trace of o without. Counts
 * the rows that change, over both patterns, but those with skip[row] (NULL: none). first: the first of them, -1 none; its
 * op, or a hidden one that this op reads, has read what nobody wrote. row: the caller's [rows], zeroed, 1 where one
 * changes; NULL: not wanted. After an interrupt it has found nothing. */
typedef struct rpl_poisoned { int64_t n, first; uint8_t *row; } rpl_poisoned;
MUST_USE err_code rpl_trace_poisoned(const fmt_tape *t, const eng_weights *w, const rpl_layout *l, const eng_options *o,
                                     const rpl_trace *clean, const uint8_t *skip, bool quiet, rpl_poisoned *out, err *e);

#endif
