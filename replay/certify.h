/* The certificate of a tape: is every recorded value one that some order of fp32 sums gives, and if not, which op made it?
 *
 * Each op runs alone, in float64 sums, on the inputs that the tape recorded (replay/forced.h), and each recorded value is
 * judged against it (replay/admissible.h). An op whose output holds an illegal element is an origin, unless its recorded
 * inputs hold one too that explains it: put right, they give what is recorded, or come nearer to it in every illegal
 * element. Then the op did its work and only its input's record is wrong: it has inherited.
 *
 *   rows of a ring    a wrong main_kv explains the windows and the attention of later rounds; a wrong recorded window the
 *                     attention that read it
 *   drafts            a wrong token explains the positions after it, in head.biased, drafts and confidence
 *   ranks             a replicated value that is not the same on all ranks is an origin of the rank that differs from the
 *                     first one, and explains what reads it
 *
 * Rounds are independent: any subset may be judged, in any order and by several processes, with the same findings.
 * Certificates of disjoint rounds add up (rpl_certificate_add). */
#ifndef REPLAY_CERTIFY_H
#define REPLAY_CERTIFY_H

#include "replay/admissible.h"
#include "replay/coverage.h"

enum { RPL_NAME_BYTES = 40 /* of a value or an op of the program */, RPL_WHY_BYTES = 96, RPL_CAUSE_BYTES = 224 };

/* One element, named. */
typedef struct rpl_spot {
    char value[RPL_NAME_BYTES];
    int64_t index;           /* into the joined value */
    int32_t ndim;
    int64_t at[FMT_DIMS_MAX];/* the same as coordinates */
    double got, exact, bound, ratio; /* rpl_verdict's */
} rpl_spot;

/* Where the illegal elements of a value lie: rows by blocks of 32 elements, several of each in a cell where it has more
 * than fit. */
enum { RPL_MAP_ROWS = 16, RPL_MAP_BLOCKS = 32 };
typedef struct rpl_illegal_map {
    char value[RPL_NAME_BYTES];   /* "" nothing was mapped */
    int32_t rows, columns;        /* of the value, its columns in elements */
    int32_t row_step, block_step; /* rows, and blocks of 32 elements, of a cell */
    uint8_t share[RPL_MAP_ROWS][RPL_MAP_BLOCKS]; /* illegal elements of the cell: 0 none, 255 all */
} rpl_illegal_map;

/* An op with illegal outputs in one step of one round. */
typedef struct rpl_origin {
    int32_t round, slot;     /* slot: FMT_TAPE_NO_SLOT in the draft step */
    char op[RPL_NAME_BYTES]; /* "s0.attn.q"; of a ring "s0.window" */
    char output[ENG_OP_OUTS][RPL_NAME_BYTES]; /* its values with illegal elements */
    int32_t n_outputs;
    int32_t rank;            /* whose share of a sharded value holds the worst element, or whose copy of a replicated one
                              * differs; -1: a value that is not of one rank */
    bool ranks_differ;       /* found as two ranks' copies that differ */
    int64_t n_illegal, n;    /* elements, and of how many */
    rpl_spot worst;
    rpl_illegal_map map;         /* of the value with the worst element; an origin's */
    char from[RPL_NAME_BYTES];   /* inherited: the input that explains it; "" of an origin */
    char cause[RPL_CAUSE_BYTES]; /* "" until an explain function names one */
} rpl_origin;

/* Sums over the rounds, of one value of the program. */
typedef struct rpl_value_sum {
    char value[RPL_NAME_BYTES], op[RPL_NAME_BYTES];
    int32_t order;           /* its place in the program */
    int64_t n_values, n, n_equal, n_flip, n_illegal, n_unjudged, n_events; /* n: without the unjudged */
    double flip_distance;    /* of the flip that needed most, 0 .. 1 */
    int64_t tried[2], admitted[2]; /* sharpness: neighbours 1 and 2 ulps away */
} rpl_value_sum;

/* A token or an expert that differs from mirror64's choice although the scores that it was chosen by are legal. */
typedef struct rpl_tie {
    int32_t round;
    char value[RPL_NAME_BYTES]; /* "drafts" "s0.ffn.ids" */
    int64_t row;
    int32_t place;              /* among the row's choices */
    int32_t got, exact;
    double margin;              /* by mirror64: score of exact less score of got */
} rpl_tie;

/* Values that were not judged, of one name and for one reason; or, of findings, judged and worth nothing. */
typedef struct rpl_note {
    char value[FMT_TAPE_NAME_BYTES], why[RPL_WHY_BYTES];
    int32_t first_round;
    int64_t n_values;
    int32_t order;
} rpl_note;

typedef struct rpl_certificate {
    int32_t n_rounds, n_rounds_wanted; /* judged; that were to be judged */
    bool interrupted;
    bool damaged; /* the tape is, or is unfinished: values may be missing. Set by who opened it, and by values (among those
                   * not judged) that cannot be read */
    int64_t n_values, n, n_equal, n_flip, n_illegal, n_events;
    int64_t n_unjudged;                /* elements that are not in n: too much is hidden to tell */
    int64_t n_not_judged;              /* values with any, and those that no op could be run for */
    uint64_t bytes;                    /* of the judged values */
    rpl_origin *origin, *inherited;    /* by round, in program order */
    rpl_value_sum *sum;                /* in program order */
    rpl_tie *tie;
    rpl_note *not_judged, *finding;    /* finding: all zero, or NaN where NaN is right: equal, and proves nothing */
    size_t n_origins, n_inherited, n_sums, n_ties, n_notes, n_findings;
    size_t capacity[6];
} rpl_certificate;

void rpl_certificate_fini(rpl_certificate *c);
/* Adds from, of other rounds, to c; origins of later rounds must be added later. ERR_NOMEM. */
MUST_USE err_code rpl_certificate_add(rpl_certificate *c, const rpl_certificate *from, err *e);
/* "PASS": every wanted round was judged, at least one element was, none is illegal and there is no finding. "PARTIAL":
 * the same but that rounds are left or the tape is damaged. "FAIL" otherwise. */
const char *rpl_certificate_verdict(const rpl_certificate *c);

/* Called for every value with illegal elements of its op's own, while the forced run holds its tensors: may write o->cause.
 * classes [elements]. */
typedef err_code (*rpl_explain_fn)(void *ctx, const rpl_forced_value *v, const rpl_verdict *verdict, const uint8_t *classes,
                                   rpl_origin *o, err *e);

typedef struct rpl_certify_options {
    rpl_bound bound;
    const char *taps;   /* pattern that judged values must match (cli_match), NULL: all. Others are still judged where an
                         * illegal element has to be placed. Borrowed */
    bool sharpness;     /* count admitted neighbours: many times the work */
    int32_t threads;    /* 0: all of the machine */
    eng_combine combine;/* of the run; rpl_certify_options_of reads it from the tape */
    int32_t n_ranks;    /* of the run, for the rank that holds an element */
    rpl_explain_fn explain; /* NULL: none */
    void *explain_ctx;
} rpl_certify_options;

/* Default bound, and combine and n_ranks of the run that t's head names (exact and 1 where it names none). */
rpl_certify_options rpl_certify_options_of(const fmt_tape *t);

typedef struct rpl_certify rpl_certify;

/* t and w are borrowed until close. The checkpoint's identity is the caller's to check. ERR_INPUT, ERR_NOMEM. */
MUST_USE err_code rpl_certify_open(const fmt_tape *t, const eng_weights *w, const rpl_certify_options *o, rpl_certify **out,
                                   err *e);
void rpl_certify_close(rpl_certify *c); /* NULL is a no-op */
int32_t rpl_certify_rounds(const rpl_certify *c);
/* Judges round i and adds it to *out, which is zeroed or holds other rounds. Ascending order is fastest. ERR_INPUT: a value
 * of the wrong shape or dtype; *out is then as it was. A value that cannot be read is not judged, and out->damaged. */
MUST_USE err_code rpl_certify_round(rpl_certify *c, int32_t i, rpl_certificate *out, err *e);

/* Judges rounds[n] (indices, ascending) of t into *out, zeroed before; several at a time where ops are small. After an
 * interrupt (base/interrupt.h) the rest is left out and out->interrupted says so. step (may be NULL) is called after each
 * round, never twice at a time. */
typedef struct rpl_certify_job {
    const int32_t *rounds;
    int32_t n;
    void (*step)(void *ctx);
    void *ctx;
} rpl_certify_job;
MUST_USE err_code rpl_certify_tape(const fmt_tape *t, const eng_weights *w, const rpl_certify_options *o,
                                   const rpl_certify_job *job, rpl_certificate *out, err *e);

/* ---- output ---- */

/* What a report says beside the certificate. */
typedef struct rpl_certify_report {
    const rpl_certificate *c;
    const fmt_tape *tape;
    const eng_weights *weights;
    rpl_bound bound;
    rpl_coverage coverage;
    double seconds;
    bool sharpness, all;      /* all: every line, not the first ones of each kind */
    bool waived;              /* every issue is: the text's first line says so */
} rpl_certify_report;

const char *rpl_certify_verdict(const rpl_certify_report *r); /* the certificate's, or "EMPTY" of an empty part */
MUST_USE err_code rpl_certify_print(const rpl_certify_report *r, err *e);
/* One object; keys in docs: verdict, rounds, elements, equal, flip, illegal, origins, inherited first. Sums, lists and
 * counts of several shards add up to the whole's. New reference; NULL: no memory. */
json_t *rpl_certify_json(const rpl_certify_report *r);

#endif
