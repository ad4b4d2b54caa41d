/* The scorecard: faults planted one at a time (engine/fault.h), each run certified (replay/certify.h), and what the
 * certificate made of it.
 *
 * A planting is a kind of fault at one op of one arm. It goes wrong in one round of a script, the last of those with the
 * most slots in the draft, and that round is judged. */
#ifndef REPLAY_SCORECARD_H
#define REPLAY_SCORECARD_H

#include "engine/fault.h"
#include "engine/script.h"
#include "engine/weights.h"
#include "replay/certify.h"

typedef enum rpl_outcome {
    RPL_SCORE_RIGHT,      /* detected, and the first origin is an op whose recorded value the planted op makes */
    RPL_SCORE_ELSEWHERE,  /* detected, with another first origin */
    RPL_SCORE_MISSED,     /* PASS, though an element moved by more than two bf16 ulps of its row's largest, and the kind is
                           * one that must show */
    RPL_SCORE_ADMISSIBLE, /* PASS: recorded bits differ, and every one is explained by an order of sums */
    RPL_SCORE_ABSORBED,   /* PASS: the op's output differed, no recorded bit does (a later rounding hid it) */
    RPL_SCORE_IDLE,       /* no occasion: nothing differed */
    RPL_SCORE_OUTCOMES
} rpl_outcome;
const char *rpl_outcome_name(rpl_outcome o);

/* An arm with its options. */
typedef struct rpl_score_arm {
    eng_options o;
    char text[64];       /* "native-packed/2/fused" */
    char clean[16];      /* verdict of the run without a fault */
} rpl_score_arm;

typedef struct rpl_planting {
    const eng_fault_kind *kind;
    int32_t arm, step, stage;
    eng_kind op_kind;
    char op[32];
    rpl_outcome outcome;
    int64_t n_changed, n_illegal; /* elements of the op's outputs; of recorded values */
    double moved;                 /* largest change of a recorded value of the op, in parts of its row's largest */
    char origin[RPL_NAME_BYTES];  /* the first; "" none */
    char cause[RPL_CAUSE_BYTES];  /* that the certificate names; "" none */
    bool done;                    /* judged; what an interrupt cut short is not */
} rpl_planting;

typedef struct rpl_scorecard {
    rpl_score_arm *arm;
    rpl_planting *planting;
    size_t n_arms, n_plantings, n_plantings_wanted;
    bool interrupted;
    uint64_t seed;
} rpl_scorecard;

typedef struct rpl_score_options {
    const char *kinds, *ops; /* patterns (cli_match); NULL: all */
    int32_t every;           /* only one planting in so many, chosen by the seed; 1: all */
    uint64_t seed;
    rpl_bound bound;         /* the certificate's */
    int32_t threads;         /* plantings at a time; 0: all of the machine */
    bool quiet;
} rpl_score_options;

/* "ARM[/TP][/fused][/graph][/blocked|/f64],..." into card->arm. ERR_ARG names the word. */
MUST_USE err_code rpl_scorecard_arms(const char *list, rpl_scorecard *card, err *e);
/* Plants everything that o chooses, card->arm being filled; after an interrupt (base/interrupt.h) card->planting keeps what
 * was done. folder: for tapes, which are removed as it goes. ERR_INPUT: the script drafts nothing; what engine, writer and
 * certificate say. */
MUST_USE err_code rpl_scorecard_run(rpl_scorecard *card, const eng_weights *w, const eng_script *s, const char *folder,
                                    const rpl_score_options *o, err *e);
void rpl_scorecard_fini(rpl_scorecard *card);

/* Its kind has a cause class, and its origin was found. */
bool rpl_planting_has_class(const rpl_planting *p);
/* The certificate named that class. */
bool rpl_planting_named(const rpl_planting *p);
/* { "tables": [ { "of": "kind", "by": "op", "rows": [text], "columns": [text], "cells": [[cell or null: none planted]] },
 *               { "of": "stage", "by": "arm", ... } ],
 *   "unshown": [ { "kind", "outcome": "admissible" "absorbed" or "idle", "n", "ops", "why", "summary" } ] }
 * A cell counts: "planted", "detected", each outcome, "causes_named" (that have a class) and "causes_right" of them. New
 * reference; NULL: no memory. */
json_t *rpl_scorecard_matrix(const rpl_scorecard *card);

/* Counts of plantings with this outcome, of one kind (NULL: all). */
int64_t rpl_scorecard_count(const rpl_scorecard *card, rpl_outcome outcome, const eng_fault_kind *k);
/* Of the detected faults 98 in 100 have the right origin: enough. */
static inline bool rpl_score_is_enough(int64_t right, int64_t detected) { return right * 100 >= detected * 98; }
/* Every fault that moved a recorded value beyond admissibility was detected, enough with the right origin, and every clean
 * run passed. */
bool rpl_scorecard_passes(const rpl_scorecard *card);
/* "PASS" "FAIL"; "PARTIAL": interrupted, and nothing was missed so far. */
const char *rpl_scorecard_verdict(const rpl_scorecard *card);

#endif
