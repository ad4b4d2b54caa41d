/* Two tapes compared value by value, round by round, and each difference placed: where it started, what only follows.
 *
 * Values are aligned by (round, slot, name), ranks joined. Everything that does not fit (missing, other shape) is a
 * result, not an error. A round is compared when it is asked for, its values on as many threads as OpenMP would use when
 * the comparison was opened (8 at most), and kept until it is forgotten. One caller at a time. */
#ifndef REPLAY_COMPARE_H
#define REPLAY_COMPARE_H

#include "capture/joined.h"
#include "replay/fold.h"
#include "replay/metrics.h"
#include "replay/ordered.h"

typedef enum rpl_state {
    RPL_STATE_COMPARED,   /* metrics are set */
    RPL_STATE_BY_HASH,    /* a side kept no payload: equal or not is known (metrics.n, n_equal = n or 0), and, where
                           * both have digests of their rows, which ones differ (rows) */
    RPL_STATE_ONLY_A, RPL_STATE_ONLY_B,
    RPL_STATE_DTYPE, RPL_STATE_SHAPE,
    RPL_STATE_UNKNOWN,    /* a side kept no payload, and rank counts differ, or one a hash and the other a digest */
    RPL_STATE_REDACTED,   /* it tells token ids, which the two tapes name differently, or one of them withholds it */
    RPL_STATE_UNREADABLE, /* damaged, or a rank's part is missing: `why` says */
    RPL_STATE_COUNT
} rpl_state;

typedef enum rpl_class {
    RPL_CLASS_EQUAL,      /* same bits; a value of which one side's ranks hold different copies is never equal */
    RPL_CLASS_ORIGIN,     /* differs although everything its op reads is the same: it started here */
    RPL_CLASS_INHERITED,  /* differs after different inputs */
    RPL_CLASS_INPUT,      /* a round's input differs: the two runs were asked different things */
    RPL_CLASS_UNPLACED,   /* differs; its inputs are not recorded on both sides, or it is no value of the program */
    RPL_CLASS_NONE,       /* not compared (see state) */
    RPL_CLASS_COUNT
} rpl_class;

const char *rpl_state_text(rpl_state s); /* "only in A" ... */
const char *rpl_class_text(rpl_class c); /* "equal" "origin" "inherited" "input" "unplaced" "-" */

/* Rows of a value that were compared by their digests. */
enum { RPL_ROWS_NAMED = 8 };
typedef struct rpl_rows {
    int64_t n, n_differ;     /* n 0: not compared */
    int64_t row[RPL_ROWS_NAMED]; /* the first ones that differ */
    bool permuted;           /* both sides have the same rows, n_differ of them in other places */
} rpl_rows;
/* "rows 3, 7 of 20 differ"; "rows 3, 7 of 20 changed places, the same rows otherwise"; "19 of 20 rows differ: 0, 1, ...".
 * Returns buf (160 bytes do). */
const char *rpl_rows_text(const rpl_rows *rows, char *buf, size_t buf_bytes);

typedef struct rpl_value {
    const char *name;        /* valid until rpl_compare_close */
    int32_t slot;            /* FMT_TAPE_NO_SLOT: of the whole draft step */
    const char *op;          /* name of the op that writes it; NULL: an input, or no program is known */
    char ops[RPL_GROUP_TEXT]; /* that op and those before it since the recorded values it is made from: a difference that
                              * starts here lies in one of them. "" with op NULL */
    bool draft;              /* of the draft step (else insert, state, or input of the round) */
    rpl_state state;
    rpl_class cls;
    fmt_tensor a, b;         /* dtype and shape of each side (joined); data NULL; ndim -1 where absent */
    rpl_metrics m;
    rpl_rows rows;           /* with RPL_STATE_BY_HASH */
    bool has_logits, has_ids;
    rpl_logits logits;       /* F32 rows over the vocabulary */
    rpl_ids ids;             /* "*.ids" of K experts */
    int32_t ranks_differ_a, ranks_differ_b; /* first rank that disagrees with rank 0 on a replicated value, 0: none */
    double a_worst, b_worst; /* the two numbers at m.worst */
    char why[120];           /* of RPL_STATE_UNREADABLE, or that a rank's copy differs on one side only; else "" */
} rpl_value;

/* One slot's drafted tokens on both sides. */
typedef struct rpl_draft {
    int32_t slot, entry;     /* entry: its place in the step */
    int32_t position;        /* last inserted position, -1 unknown */
    int32_t n_out;           /* positions compared: the smaller of the two sides */
    int32_t n_same;          /* leading tokens that agree */
    bool exact;              /* n_same == n_out and both sides drafted as many */
    int32_t token_a, token_b;/* at the first differing position, -1: none */
    double margin_b;         /* of head.biased on side B there: best less second. NaN: not recorded */
    double gap_b;            /* on side B: its best less A's token there. NaN: not recorded */
} rpl_draft;

typedef struct rpl_round {
    int32_t round;
    int32_t n_values, n_drafts;
    const rpl_value *value;  /* program order: inputs, inserts by slot, windows, draft step; unknown names last */
    const rpl_draft *draft;
    int32_t n_compared, n_equal, n_differ; /* n_differ includes states other than compared */
    int32_t n_redacted;      /* neither equal nor different */
    int32_t by_class[RPL_CLASS_COUNT];
    int32_t n_findings;      /* values with a finding */
    int32_t first_origin;    /* index into value, -1: none */
    int64_t n_elems;
    uint64_t n_bytes;        /* of both sides */
} rpl_round;

typedef struct rpl_compare rpl_compare;

/* a and b are borrowed until close. config: NULL takes it from the heads (B's, then A's); without any, order is writing
 * order and differences stay unplaced. taps: pattern of cli_match that value names must match, NULL: all. ERR_NOMEM. */
MUST_USE err_code rpl_compare_open(const fmt_tape *a, const fmt_tape *b, const eng_config *config, const char *taps,
                                   rpl_compare **out, err *e);
void rpl_compare_close(rpl_compare *c); /* NULL is a no-op */
/* Rounds of either side, ascending. */
int32_t rpl_compare_rounds(const rpl_compare *c);
int32_t rpl_compare_round_number(const rpl_compare *c, int32_t i);
/* Compares round i, or returns what was found before; *out is valid until the round is forgotten. ERR_NOMEM only. */
MUST_USE err_code rpl_compare_round(rpl_compare *c, int32_t i, const rpl_round **out, err *e);
bool rpl_compare_done(const rpl_compare *c, int32_t i); /* round i is in the cache */
/* Gives round i's memory back; asked for again, it is compared again, to the same result. Close forgets all rounds. */
void rpl_compare_forget(rpl_compare *c, int32_t i);
uint64_t rpl_round_bytes(const rpl_round *r); /* memory that a round takes in the cache */
/* What it made of the two tapes (side 0 A, 1 B), borrowed until close; reading them is safe while a round is compared. */
const cap_names *rpl_compare_names(const rpl_compare *c, int side);
const rpl_ordered *rpl_compare_ordered(const rpl_compare *c);
/* Programs the values are placed in; NULL: no config known. */
const eng_program *rpl_compare_program(const rpl_compare *c, eng_step_kind step);

/* Differences of two JSON objects, depth first: "arm.name: native-packed | mirror". NULL lines end the list; free with
 * rpl_lines_free. A key that one side lacks shows as "-". NULL: no memory. */
char **rpl_identity_diff(const json_t *a, const json_t *b);
void rpl_lines_free(char **lines);

#endif
