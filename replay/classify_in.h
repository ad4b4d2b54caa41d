/* What the classifier's parts share. Private to classify*.c. */
#ifndef REPLAY_CLASSIFY_IN_H
#define REPLAY_CLASSIFY_IN_H

#include "capture/joined.h"
#include "replay/classify.h"

/* A slot as the rounds so far leave it. */
typedef struct rpl_slot_seen {
    int32_t slot, last;            /* last inserted position, -1: none */
    int32_t round, rank;           /* of its last insert: the rank whose record counts */
    int32_t drafted, drafted_pos;  /* its last draft's round; -1: none */
} rpl_slot_seen;

/* A recorded value of the draft step. */
typedef struct rpl_loaded { cap_value v; bool there; } rpl_loaded;
enum { RPL_LOADED_LOGITS, RPL_LOADED_BIASED, RPL_LOADED_LOGITS_TOP, RPL_LOADED_LOGITS_IDS, RPL_LOADED_BIASED_TOP,
       RPL_LOADED_BIASED_IDS, RPL_LOADED_COUNT };

struct rpl_classify {
    const eng_weights *weights;
    eng_config config;
    rpl_classify_options o;
    eng_options mirror64_options;
    rpl_rerun *mirror, *mirror64, *control; /* control NULL: none */
    rpl_judge *judge;
    rpl_classification out;
    int32_t rounds_seen;           /* of all tapes */
    float *term;                   /* [vocab] the Markov term of a position */
    float *gathered[4];            /* [vocab] worker, mirror64, mirror, control at the recorded ids */
    /* Of the tape. */
    const fmt_tape *tape;
    bool chosen;                   /* it does not hold every round */
    cap_names *names;
    rpl_forced *forced;
    rpl_slot_seen *slot;
    size_t n_slots, slots_capacity;
    cap_value scratch[2];
    /* Of the round. */
    int32_t batch, n_out;
    int32_t slots[ENG_BATCH_MAX], anchors[ENG_BATCH_MAX], pos[ENG_BATCH_MAX];
    rpl_loaded drafts, attn_out[ENG_STAGES_MAX], logits[RPL_LOADED_COUNT], window[ENG_STAGES_MAX];
};

/* One draft of the round: entry b, its tokens. */
typedef struct rpl_entry { int32_t b; const int32_t *drafts; rpl_key *key; } rpl_entry;

MUST_USE err_code rpl_classify_flag(rpl_classify *c, const rpl_flag *f, err *e);
MUST_USE err_code rpl_classify_token(rpl_classify *c, const rpl_token *t, err *e);
bool rpl_classify_has(const rpl_classify *c, int32_t round, int32_t slot, const char *name);
rpl_slot_seen *rpl_classify_slot(rpl_classify *c, int32_t slot); /* NULL: no memory */

/* classify_state.c: positions of every round in order (flags: whether to flag them), then the state of the chosen ones. */
MUST_USE err_code rpl_classify_positions(rpl_classify *c, int32_t round, bool flags, err *e);
MUST_USE err_code rpl_classify_state(rpl_classify *c, int32_t i, int32_t round, err *e);
/* After the state: the round's drafts are the slots' last ones. */
void rpl_classify_drafted(rpl_classify *c, int32_t round);

/* classify_rows.c: where the round's insert has no main_kv on the tape, its rows in the windows of entry b. */
MUST_USE err_code rpl_classify_rows(rpl_classify *c, int32_t round, int32_t b, err *e);

/* classify_logits.c: own-logit; then, after the reruns, KL and tokens. */
MUST_USE err_code rpl_classify_own(rpl_classify *c, const rpl_entry *n, err *e);
MUST_USE err_code rpl_classify_logits(rpl_classify *c, const rpl_entry *n, err *e);

#endif
