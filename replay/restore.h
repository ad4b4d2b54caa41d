/* The slots of a replay, brought to where a tape of chosen rounds has them before each of its rounds.
 *
 * The rows before a kept round are not on such a tape; the window that its draft saw is, when its level kept it. Of that
 * window only rows are taken that the draft reads and that nothing else brings. The others are NaN until the round's own
 * inserts have written them, so that an insert that does not is seen. */
#ifndef REPLAY_RESTORE_H
#define REPLAY_RESTORE_H

#include "capture/rounds.h"
#include "engine/engine.h"

/* A draft that was left out: rows from .. to of the slot are not on the tape, nor is the window that would hold them. */
typedef struct rpl_left_out { int32_t round, slot, from, to; char wanted[24]; } rpl_left_out;

/* Two windows of one request that hold another row for a position: one of them was not recorded right. */
typedef struct rpl_contradiction {
    int32_t round, before, slot;
    char window[24];              /* "s0.window" */
    int32_t position, row;        /* the first such position, and its row of the ring */
    int32_t n_rows, n_shared;     /* rows that differ, of those that both hold */
} rpl_contradiction;

typedef struct rpl_replay_report {
    int32_t rounds, rounds_left_out; /* rounds_left_out: their draft could not be run; their inserts were */
    int64_t windows_restored;        /* slots of rounds */
    rpl_left_out *left_out;
    rpl_contradiction *contradiction;
    size_t n_left_out, n_contradictions, left_out_capacity, contradictions_capacity;
} rpl_replay_report;
void rpl_replay_report_fini(rpl_replay_report *r);
/* One line: "round 3 slot 1: ...". Returns buf (200 bytes do). */
const char *rpl_left_out_text(const rpl_left_out *l, char *buf, size_t buf_bytes);
const char *rpl_contradiction_text(const rpl_contradiction *c, char *buf, size_t buf_bytes);

typedef struct rpl_restore rpl_restore;
/* All are borrowed until close; t is what the rounds were opened on, g has cap_rounds_slots slots. ERR_NOMEM. */
MUST_USE err_code rpl_restore_open(const fmt_tape *t, cap_rounds *rounds, eng_engine *g, rpl_replay_report *report,
                                   rpl_restore **out, err *e);
void rpl_restore_close(rpl_restore *s); /* NULL is a no-op */
/* Before the steps of round i (rounds in order). ERR_INPUT, ERR_FORMAT: a window that is not what it must be; ERR_DEVICE,
 * ERR_NOMEM. */
MUST_USE err_code rpl_restore_round(rpl_restore *s, int32_t i, int32_t round, err *e);

#endif
