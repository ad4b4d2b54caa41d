/* One value whose cause is looked for. Private to replay/cause*.c. */
#ifndef REPLAY_CAUSE_TRIAL_H
#define REPLAY_CAUSE_TRIAL_H

#include "kernels/linear.h"
#include "replay/cause.h"

typedef struct rpl_trial {
    const rpl_causes *x;
    const rpl_forced_value *v;
    const uint8_t *classes;
    fmt_tensor computed;    /* a copy: the bench's own changes */
    int64_t rows, cols, n;  /* cols: elements of a row */
    int64_t n_illegal, n_bad_rows, first_bad, last_bad; /* rows with an illegal element */
    bool *bad;              /* [rows] */
    double *scale;          /* [rows] largest magnitude of the computed row */
    void **kept;            /* [n_values] what the group's values held; NULL: not of the group */
    void **old;             /* [n_values] what the step before gave; NULL: unknown */
    int32_t old_round;
    int32_t batch;          /* entries of the draft step; 1 in an insert */
    rpl_shown shown;        /* of the value, by the controls; RPL_SHOWN_NOTHING: there are none */
    rpl_cause *best;
    int64_t best_exact;     /* elements that the best guess gives to the bit */
} rpl_trial;

/* What is found is good enough: nothing more has to be tried. */
static inline bool rpl_trial_done(const rpl_trial *t) { return t->best->share > 0.9999; }
/* Weighs `guess`, made with the mistake; format names what was tried, without class and share. */
void rpl_trial_weigh(rpl_trial *t, const void *guess, eng_cause cause, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* A share that was counted otherwise. */
void rpl_trial_offer(rpl_trial *t, double share, eng_cause cause, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* ---- cause_rerun.c: the group run again ---- */

/* A value of the group as rows, in the bench. */
typedef struct rpl_view {
    uint8_t *data;
    fmt_dtype dtype;
    int64_t rows, cols, cut; /* cut: columns that the ranks share out; each has its part of every `cut` */
    size_t elem, row;        /* bytes */
} rpl_view;
rpl_view rpl_view_of(const rpl_trial *t, int32_t value);
/* Where column j of one rank's part stands, of `shares` equal parts. */
static inline int64_t rpl_view_column(const rpl_view *v, int64_t shares, int64_t share, int64_t j)
{
    int64_t part = v->cut / shares;
    return j / part * v->cut + share * part + j % part;
}
static inline uint8_t *rpl_view_row(const rpl_view *v, int64_t r) { return v->data + (size_t)r * v->row; }
float rpl_view_get(const rpl_view *v, int64_t i);
void rpl_view_set(const rpl_view *v, int64_t i, float x);

/* Op k of the group. */
const eng_op *rpl_trial_op(const rpl_trial *t, int32_t k);
/* Runs ops k .. of the group as the bench stands, weighs the value, and puts the bench's values back. */
MUST_USE err_code rpl_trial_run(rpl_trial *t, int32_t k, eng_cause cause, err *e, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
/* The same for changed inputs of op k: other ops read them as they were. */
MUST_USE err_code rpl_trial_run_op(rpl_trial *t, int32_t k, eng_cause cause, err *e, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
/* What the controls say that it is not: its bits do not change with what stands in unwritten memory. */
static inline bool rpl_trial_is_written(const rpl_trial *t)
{
    return t->shown == RPL_SHOWN_STABLE && t->x->controls->poisoned;
}
/* The group's values as they were, but for the outputs of `but` (NULL: all). */
void rpl_trial_restore(rpl_trial *t, const eng_op *but);
/* Op k in f32 sums that are not rounded, [elements of its output] malloc'd; NULL: no such sums, or no memory. */
float *rpl_trial_wide(const rpl_trial *t, int32_t k);

/* Op k, an attention, on the windows of an earlier round where the tape has them. */
MUST_USE err_code rpl_trial_attend_before(rpl_trial *t, int32_t k, err *e);

/* ---- the guesses ---- */
MUST_USE err_code rpl_guess_direct(rpl_trial *t, err *e);    /* cause_direct.c: from the tensors alone */
MUST_USE err_code rpl_guess_window(rpl_trial *t, err *e);    /* ... of a ring */
MUST_USE err_code rpl_guess_held(rpl_trial *t, err *e);      /* ... another value's row */
MUST_USE err_code rpl_guess_values(rpl_trial *t, err *e);    /* cause_rerun.c: rows, columns, roundings */
MUST_USE err_code rpl_guess_ops(rpl_trial *t, err *e);       /* cause_ops.c: what ops compute */
MUST_USE err_code rpl_guess_padding(rpl_trial *t, err *e);   /* ... and padding in groups of 32 */
MUST_USE err_code rpl_guess_weights(rpl_trial *t, err *e);   /* cause_weight.c */
/* cause_exl3.c: the first weight of op k, which is EXL3; expert -1: it has none. */
MUST_USE err_code rpl_guess_exl3(rpl_trial *t, int32_t k, int32_t expert, err *e);

#endif
