/* The V1 classifier: is what a worker dumped what the official model would have made of the same inputs? Or, of an arm with
 * weights of its own, what these weights would have made.
 *
 * It knows nothing of the worker. Of each dumped round it runs the mirror (the official order of f32 sums) and mirror64
 * (float64 sums) on the dump's own inputs, and judges each key, a slot in a round, five ways:
 *
 *   state      each main_x row from its taps and each main_kv row from the dumped main_x, alone: an element that no order
 *              of sums explains is a flag (replay/admissible.h). A row of a window that is not the one which the inserts
 *              brought there, a gap in the positions: flags too. Where the tape lacks taps, main_x is taken as given; where
 *              it lacks main_kv, the rows that the round's insert brought are judged where they lie in the windows. What
 *              the reference makes of a window in doubt says nothing: flagged keys take no part in what follows own-logit
 *   own-logit  each draft is the argmax of the dump's own logits and the Markov term after its own tokens
 *   attention  a stage's excess: err(worker) / max(err(mirror), floor), err the relative L2 distance of the key's attn_out
 *              rows from mirror64's; floor: half a bf16 ulp in one element, 2^-9 / sqrt(elements). The figure is the median
 *              over the keys, of the worst stage
 *   KL         KL(mirror64 || worker) over the drafted positions, mean of all keys, as a multiple of KL(mirror64 ||
 *              mirror). That band has the floor that as small a change of head.norm gives. Where the tape holds the
 *              largest logits only, both are over their ids, renormalised
 *   tokens     a draft that is not the mirror's under the dump's own tokens is explained when mirror64 holds the two as
 *              near as the mirror's noise allows (rpl_token)
 *
 * A figure passes when it is <= its gate's limit and something was compared. A control is the mirror with some ops made by
 * another arm, or all of them: judged the same way, its attention, KL and tokens stand beside the worker's. Beside these
 * five stands the certificate of what the dump holds, which needs no band. */
#ifndef REPLAY_CLASSIFY_H
#define REPLAY_CLASSIFY_H

#include "replay/admissible.h"
#include "replay/coverage.h"
#include "replay/gates.h"
#include "replay/rerun.h"

#define RPL_FLAG_LIST(X)                                                                                       \
    X(ILLEGAL, "no order of sums gives it") X(PLACE, "row of another position") X(STALE, "stale row")          \
    X(MISSING, "missing row") X(DIFFERS, "not the inserted row") X(GAP, "position gap")                        \
    X(OWN_LOGIT, "not the argmax of its own logits")
#define X(name, text) RPL_FLAG_##name,
typedef enum rpl_flag_kind { RPL_FLAG_LIST(X) RPL_FLAG_COUNT } rpl_flag_kind;
#undef X
const char *rpl_flag_text(rpl_flag_kind k);

typedef struct rpl_flag {
    int32_t tape, round, slot;
    rpl_flag_kind kind;
    char value[24];      /* "main_x" "s0.main_kv" "s0.window" "pos" "draft.pos" "drafts" */
    int32_t position;    /* of the first row; of drafts which one, 0 .. n_out-1 */
    int32_t row;         /* ring row; of drafts the token; else -1 */
    int64_t n;           /* rows, positions or elements */
    double got, wanted;  /* element of ILLEGAL; position of GAP; token of OWN_LOGIT */
} rpl_flag;

/* A draft other than the mirror's. Explained: margin <= 2 * noise, as each of the two logits may be off by the noise. That
 * is the mirror's largest distance from mirror64 in this row of biased logits, or, as a rounding that falls the other way
 * may befall the worker where it spares the mirror, the root mean square of the keys' largest ones, if that is more. */
typedef struct rpl_token {
    int32_t tape, round, slot, i;
    bool control;        /* the control's choice, not the worker's */
    int32_t token, mirror;
    double margin, noise; /* margin: mirror64's best logit less its logit of token; noise: of the row */
    bool explained;
} rpl_token;

/* A key's distance from the reference, of the worker or the control. */
typedef struct rpl_side {
    double error[ENG_STAGES_MAX], excess[ENG_STAGES_MAX]; /* NaN: not recorded */
    double kl;           /* sum over n_kl positions, nats */
    int32_t n_equal, n_explained, n_unexplained; /* tokens */
} rpl_side;

typedef struct rpl_key {
    int32_t tape, round, slot, pos, n_out;
    int32_t n_state_flags, n_own, n_own_flags; /* n_own: drafts compared with their own logits */
    bool rerun;          /* false: a window is not on the tape, and nothing below is set */
    int32_t n_kl;        /* positions whose logits are on the tape */
    bool kl_top;         /* the largest ones only */
    double mirror_error[ENG_STAGES_MAX];
    double band, band_floor, noise; /* sums over n_kl positions; noise: largest of n_out */
    rpl_side worker, control;
} rpl_key;

/* What the keys amount to. */
typedef struct rpl_figures {
    double excess[ENG_STAGES_MAX]; /* medians */
    double kl, ratio;              /* mean nats a position; its multiple of the band */
    int64_t n_equal, n_explained, n_unexplained;
    double gate[RPL_GATE_COUNT];   /* the gates' figures */
} rpl_figures;

typedef enum rpl_outcome { RPL_OUTCOME_PASS, RPL_OUTCOME_FAIL, RPL_OUTCOME_CONTROL_FAILS } rpl_outcome;
const char *rpl_outcome_text(rpl_outcome o); /* "PASS" "FAIL" "CONTROL-FAILS" */

typedef struct rpl_classification {
    rpl_key *key;
    rpl_flag *flag;
    rpl_token *token;
    size_t n_keys, n_flags, n_tokens, keys_capacity, flags_capacity, tokens_capacity;
    int32_t n_stages, n_tapes;
    int32_t n_rounds, n_rounds_wanted, n_rounds_all; /* classified; that were to be; of all parts */
    bool interrupted;
    int64_t n_state_rows;          /* rows made again, or compared in windows */
    int64_t n_windows, n_windows_unchecked; /* unchecked: nothing else on the tape tells them */
    int64_t n_main_x_given;        /* rows of main_x without taps */
    int64_t n_keys_in_doubt;       /* keys with flagged state: in no figure of attention, KL and tokens */
    bool has_control;
    double band;                   /* KL, mean nats a position, with its floor */
    double noise;                  /* of a logit: root mean square over keys of rpl_key.noise */
    rpl_figures worker, control;   /* control: attention, KL, tokens */
    int64_t n_compared[RPL_GATE_COUNT]; /* what the figure is made of; 0 never passes */
    rpl_outcome gate[RPL_GATE_COUNT], outcome; /* of all: CONTROL-FAILS when every gate that fails is one that the control
                                                * fails */
    rpl_verdict certificate;       /* counts over all values */
    char first_illegal[64];        /* "round 3 slot 0 s0.window" */
} rpl_classification;

typedef struct rpl_classify_options {
    rpl_gates gates;
    const eng_options *control;        /* NULL: the mirror, if there are substitutes */
    const rpl_substitute *substitute;  /* its ops that others make; borrowed until close */
    int32_t n_substitutes;
    const eng_options *own;            /* mirror64 of other weights (rpl_forced_mirror64): the references, and the mirror
                                        * of a control, are of these; NULL: of the official ones */
    int32_t threads;                   /* 0: all of the machine */
    int32_t shard, n_shards;           /* every n-th round from the shard-th on, from 1; 1, 1: all */
    bool quiet;
} rpl_classify_options;

typedef struct rpl_classify rpl_classify;

/* w is borrowed until close. ERR_ARG: a control that cannot run; ERR_NOMEM. */
MUST_USE err_code rpl_classify_open(const eng_weights *w, const rpl_classify_options *o, rpl_classify **out, err *e);
void rpl_classify_close(rpl_classify *c); /* NULL is a no-op */
/* Adds a tape's rounds; after an interrupt (base/interrupt.h) it only counts them. Whether it is of this checkpoint is the
 * caller's to check. ERR_INPUT: it is redacted, or a value has another shape or dtype than the model's; ERR_FORMAT:
 * damaged; ERR_NOMEM. What it had added before that stays. */
MUST_USE err_code rpl_classify_tape(rpl_classify *c, const fmt_tape *t, err *e);
/* Sums up. *out is valid until the next tape or close. ERR_NOMEM. */
MUST_USE err_code rpl_classify_result(rpl_classify *c, const rpl_classification **out, err *e);

/* Makes the figures and the outcome from keys, flags, tokens and counts: also of parts put together. ERR_NOMEM. */
MUST_USE err_code rpl_classify_sum(rpl_classification *c, const rpl_gates *gates, err *e);

/* ---- output ---- */
typedef struct rpl_classify_report {
    const rpl_classification *c;
    const rpl_gates *gates;
    const char *const *tape;     /* paths [c->n_tapes] */
    const char *model, *control; /* control: what it is, in words; NULL: none */
    const char *own;             /* the arm whose weights the references are of; NULL: the official ones */
    const char *exl3;            /* an arm on EXL3 weights that a tape is of; NULL: none. Judged by the official ones it
                                  * differs by what the encoder lost, and the text says what to do */
    rpl_coverage coverage;
    bool all;                    /* every line, not the first ones of each kind */
} rpl_classify_report;
/* By the gates and the certificate: "PASS" "FAIL" "CONTROL-FAILS", "PARTIAL" "EMPTY" (replay/coverage.h). */
const char *rpl_classify_verdict(const rpl_classify_report *r);
void rpl_classify_print(const rpl_classify_report *r);
/* One object: verdict, gates, figures, certificate, keys, flags, tokens. New reference; NULL: no memory. */
json_t *rpl_classify_json(const rpl_classify_report *r);

#endif
