/* N-way parity: the rounds of one tape run again in many ways, and what each way made of every value.
 *
 * A column is one way to run (arm, backend, mode, rank count), or the tape itself. Every column runs twice or more with the
 * same engine, so that its difference from itself is known before it is compared with others. Values are compared by hash;
 * only rounds in which columns differ are run once more under capture, to be judged (replay/certify.h): a column is judged
 * on its own inputs, so that a difference that only follows another one is no fault.
 *
 * These must have the same bits: a column and itself; eager and graph; the ranks' copies of a replicated value; the tape
 * and the column that is the recorded run. Everything else may differ as far as the order of fp32 sums explains it. */
#ifndef REPLAY_PARITY_H
#define REPLAY_PARITY_H

#include "replay/certify.h"
#include "replay/trace.h"

enum { RPL_COLUMNS_MAX = 32, RPL_COLUMN_NAME = 56 };

typedef enum rpl_parity_state {
    RPL_PARITY_EQUAL,    /* the reference's bits */
    RPL_PARITY_FLIP,     /* other bits, and some order of sums gives them from the column's own inputs */
    RPL_PARITY_DIFFERS,  /* no order of sums explains it */
    RPL_PARITY_ABSENT,   /* the column has no such value, or the tape kept none of it */
    RPL_PARITY_UNJUDGED, /* other bits, and what would judge them is not recorded */
    RPL_PARITY_STATES
} rpl_parity_state;
const char *rpl_parity_state_name(rpl_parity_state s); /* "equal" "flip" "differs" "absent" "unjudged" */

typedef struct rpl_column {
    char name[RPL_COLUMN_NAME]; /* "native-packed graph tp2"; "tape" */
    eng_options o;              /* of the tape: as far as its head says */
    bool tape;
    bool known;                 /* of the tape: o is the recorded run */
    int32_t n_rounds, n_runs;   /* that ran in the first run, of those compared; runs that were not interrupted */
    rpl_trace trace;            /* of the first run */
    uint8_t *unstable;          /* [rows] 1: another run of the column has other bits */
    int64_t n_unstable, first_unstable, n_ranks_differ, first_ranks_differ; /* rows; first: -1 none */
    uint8_t *poisoned;          /* [rows] 1: changes with the poison; NULL: not looked at */
    int64_t n_poisoned, first_poisoned; /* rows that change when poison stands in unwritten memory; -1 none */
    int64_t n[RPL_PARITY_STATES], first[RPL_PARITY_STATES];                 /* rows by state; first: -1 none */
    rpl_origin origin;          /* the first that no order of sums explains; op "" none */
} rpl_column;

/* Two columns that must have the same bits. */
typedef struct rpl_pair {
    int32_t a, b;
    const char *why;            /* "eager against graph" */
    int64_t n, n_differ, first; /* rows that both have */
} rpl_pair;

typedef struct rpl_parity_options {
    rpl_column *column;         /* [n_columns] name, o, tape, known are set; the rest is filled */
    int32_t n_columns;
    int32_t repeat;             /* runs of each column, 1 or more */
    bool poison;                /* also run with poison (engine/poison.h) */
    const bool *only;           /* [rounds of the tape, as fmt_tape_rounds has them]; NULL: all */
    rpl_bound bound;
    int32_t threads;
    bool quiet;
} rpl_parity_options;

typedef struct rpl_parity {
    rpl_layout *layout;
    rpl_column *column;         /* the caller's */
    int32_t n_columns, reference; /* mirror64, else mirror, else the first column that runs */
    int32_t n_rounds, n_rounds_wanted, n_rounds_all; /* that every column ran; that were to be; of all parts */
    bool interrupted;
    bool damaged;               /* values of the tape that were wanted cannot be read */
    int64_t n_rows;
    uint8_t *state;             /* [n_rows * n_columns] rpl_parity_state */
    rpl_pair pair[RPL_COLUMNS_MAX * 2];
    int32_t n_pairs;
    int64_t n_differ;           /* rows in which not all columns have the same bits */
    int32_t n_judged;           /* rounds under the judge, columns that agree counted once */
    bool recorded_run;          /* some column is the recorded run again */
} rpl_parity;

/* The recorded run as options, as far as this machine can make it: false when the head does not say, or another backend was
 * recorded. */
bool rpl_parity_recorded(const fmt_tape *t, int64_t threads, eng_options *out);
/* Ops of the model are too small to be shared between threads: whole runs are. */
bool rpl_runs_small(const eng_weights *w);
/* "native-packed graph tp2" into name. */
void rpl_column_name(const eng_options *o, char name[RPL_COLUMN_NAME]);

/* Runs, compares, judges. After an interrupt (base/interrupt.h) what is left is not run, and nothing more is judged. p is
 * zeroed; rpl_parity_fini is right for it whatever happened (it also frees what was filled of the columns). t and w are
 * borrowed by the call. ERR_INPUT as rpl_feed_open; ERR_DEVICE, ERR_NOMEM, ERR_IO (room for the rounds to be judged, in the
 * folder for temporary files). */
MUST_USE err_code rpl_parity_run(const fmt_tape *t, const eng_weights *w, const rpl_parity_options *o, rpl_parity *p,
                                 err *e);
void rpl_parity_fini(rpl_parity *p);

rpl_parity_state rpl_parity_at(const rpl_parity *p, int64_t row, int32_t column);
/* What the columns make of a row, in words: "only graph differs", "only rank 1 differs (A)", "every arm differs from
 * mirror64 alike", "unstable: differs from itself (A)", "3 results: A, B | C | D". "": all the same. Returns buf. */
enum { RPL_PATTERN_TEXT = 400 };
const char *rpl_parity_pattern(const rpl_parity *p, int64_t row, char buf[RPL_PATTERN_TEXT]);
/* "PASS"; "FAIL": a pair, an unstable value, ranks, poison, or a value that no order of sums explains; "INCOMPLETE":
 * nothing of this, but values that could not be judged, or a column of which nothing was compared. Interrupted or
 * damaged: NULL without a failure. */
const char *rpl_parity_verdict(const rpl_parity *p);

/* ---- output ---- */
typedef struct rpl_parity_report {
    const rpl_parity *p;
    const fmt_tape *tape;
    rpl_coverage coverage;
    int32_t repeat;
    double seconds;
    bool all;                   /* every line, not the first ones of each kind */
} rpl_parity_report;
MUST_USE err_code rpl_parity_print(const rpl_parity_report *r, err *e);
json_t *rpl_parity_json(const rpl_parity_report *r); /* NULL: no memory */

#endif
