/* Acceptance and fidelity: what arms would have drafted in a tape's rounds, against what was drafted and what the target
 * took.
 *
 * The target's own tokens are on a tape in so far as a slot's rounds follow each other. A draft at p, whose anchor stands
 * at p + 1, offers tokens for p + 2 .. p + 1 + n_out. The target answers with one insert of that slot, the rows of the
 * anchor and of the k drafts that it took, p + 1 .. p + 1 + k, and with the next draft, at p' = p + 1 + k, whose anchor is
 * its own token at p' + 1. So the tokens at p + 2 .. p + 1 + k are the recorded drafts, the one at p + 2 + k is the next
 * anchor, and what comes later is told by later drafts. Where a slot goes on in another way (several inserts, more than
 * n_out + 1 rows, rounds that are not on the tape, its end), nothing is known from there.
 *
 * A block is determined when all its n_out tokens are known, which does not depend on what an arm drafts. Of determined
 * blocks an arm's accepted length is the number of leading drafts that are the target's tokens; the anchor, and the token
 * that the target adds, are not counted. With a greedy target that is what it would have taken. With one that samples at
 * temperature 1 the tokens are a sample: a match then estimates p_target(draft), without bias. Synthetic traffic had no
 * target: which drafts it "took" was drawn by lot, so that they are the recorded arm's own, and favour it.
 *
 * Where inserts hold "target.logits" [P, vocab] F32, the target's logits after each inserted row, the estimate at
 * temperature 1 is made of the probabilities themselves: the sum over positions of p_target(draft), up to the first draft
 * that is not the target's token. Blocks without all n_out rows take no part. */
#ifndef REPLAY_ACCEPT_H
#define REPLAY_ACCEPT_H

#include "capture/rounds.h"
#include "engine/engine.h"
#include "replay/coverage.h"
#include "replay/feed.h"

/* One drafted slot of a round. */
typedef struct rpl_block {
    int32_t round, slot, pos, anchor, n_out;
    bool mine;                     /* of this shard */
    bool has_drafts;
    int32_t drafts[ENG_BLOCK_MAX]; /* recorded */
    int32_t taken;                 /* k, -1: not known */
    int32_t next;                  /* the slot's next draft, -1: none, or it does not follow */
    int32_t target[ENG_BLOCK_MAX], n_target; /* known tokens from p + 2 on; n_target at most n_out */
    bool determined;               /* n_target is n_out, and the drafts are recorded */
    int32_t n_logits;              /* rows of target.logits of its positions */
} rpl_block;

/* A mean over blocks; error: its standard error, NaN with fewer than 2. */
typedef struct rpl_mean { int64_t n; double mean, error; } rpl_mean;
typedef struct rpl_moments { int64_t n; double sum, squares; } rpl_moments; /* what it is made of; zeroed is empty */
void rpl_moments_add(rpl_moments *m, double v); /* NaN: nothing to add */
rpl_mean rpl_moments_mean(const rpl_moments *m);

/* An arm in one kind of windows, or what was recorded. */
typedef struct rpl_accept_run {
    const eng_options *arm;   /* NULL: the recorded drafts */
    char windows;             /* 'A' captured main_x, 'B' main_x from taps; 0 recorded */
    char missing[64];         /* what the tape lacks for it; "": it ran */
    int32_t *drafts;          /* [n_blocks, ENG_BLOCK_MAX]; -1: not drafted */
    size_t n_reached;         /* blocks from the first on that the run came to, and that its sums are of */
    int32_t n_rounds;         /* of this part, that it ran */
    double *p;                /* [n_blocks] sums of p_target, NaN: not to be had */
    int64_t n_blocks, n_exact, n_tokens, n_tokens_equal; /* against the recorded drafts */
    rpl_mean accepted, p_target;
    rpl_mean versus, p_versus;/* paired difference from the control in the same windows; n 0: none */
} rpl_accept_run;

typedef struct rpl_acceptance {
    rpl_block *block;         /* by round */
    size_t n_blocks, capacity;
    rpl_accept_run *run;      /* the recorded drafts, then by arm: A, B */
    int32_t n_runs;
    int32_t control;          /* arm */
    int64_t n_mine, n_determined;
    int32_t n_rounds, n_rounds_wanted, n_rounds_all; /* that every run ran; that they were to; of all parts */
    bool interrupted;
    bool synthetic;           /* no target took the rows: `accepted` says how like the recorded drafts an arm's are */
    int64_t n_short;          /* blocks of which fewer drafts were taken than were the target's tokens */
    int64_t n_target_logits;  /* rows of inserts with the target's logits */
    rpl_replay_report restored; /* of the last run */
} rpl_acceptance;
void rpl_acceptance_fini(rpl_acceptance *a);

typedef struct rpl_accept_options {
    const eng_options *arm; /* [n_arms] borrowed until rpl_acceptance_fini */
    int32_t n_arms, control;/* control: index of the arm that the others are compared with */
    int32_t shard, n_shards;/* rounds that are drafted, as rpl_classify_options has them; inserts are all run */
    bool quiet;
} rpl_accept_options;

/* Runs every arm over t's rounds, free from the first row on, in windows A and B; after an interrupt (base/interrupt.h) the
 * rest is left out. *out, zeroed before, is to be freed with rpl_acceptance_fini whatever happens. ERR_INPUT: redacted, no
 * inputs to run; ERR_FORMAT, ERR_NOMEM, ERR_DEVICE. */
MUST_USE err_code rpl_accept_tape(const fmt_tape *t, const eng_weights *w, const rpl_accept_options *o, rpl_acceptance *out,
                                  err *e);

/* ---- output ---- */
typedef struct rpl_accept_report {
    const rpl_acceptance *a;
    const char *tape, *model;
    rpl_coverage coverage;
} rpl_accept_report;
/* "PASS" (it has run: there is no more to pass), "PARTIAL" or "EMPTY" (replay/coverage.h), "FAIL" (nothing to run). */
const char *rpl_accept_verdict(const rpl_accept_report *r);
void rpl_accept_print(const rpl_accept_report *r);
json_t *rpl_accept_json(const rpl_accept_report *r); /* new reference; NULL: no memory */
json_t *rpl_mean_json(const rpl_mean *m);            /* null: of nothing */

/* ---- between accept.c and accept_target.c ---- */
/* Fills a->block from the rounds of t: what was drafted, what the target took, its tokens. *all_taps, *all_main_x: every
 * insert has them. */
MUST_USE err_code rpl_accept_blocks(const fmt_tape *t, cap_rounds *rounds, const rpl_accept_options *o, rpl_acceptance *a,
                                    bool *all_taps, bool *all_main_x, err *e);
/* After the runs: probabilities of the target, and the sums of each run. */
MUST_USE err_code rpl_accept_probabilities(const fmt_tape *t, const eng_config *c, rpl_acceptance *a, err *e);
void rpl_accept_sum(rpl_acceptance *a);
/* Leading drafts that are the target's tokens. */
int32_t rpl_accept_leading(const rpl_block *b, const int32_t *drafts);

#endif
