/* One number per round that stands for a whole run up to there, so that the first round in which two long runs differ is
 * found by bisection, without a tensor kept.
 *
 * Both numbers of a round are chained to the round before: two runs that agree up to a round have the same numbers there,
 * and never again once they differ.
 *   state    the windows and positions of the slots that the round inserted into, after its inserts
 *   outputs  the tokens and confidences that the round drafted */
#ifndef REPLAY_STATE_HASH_H
#define REPLAY_STATE_HASH_H

#include "engine/engine.h"

typedef struct rpl_chain {
    uint64_t *state, *outputs; /* [n]; state NULL: not known, as of a tape that holds no windows */
    int32_t n;
} rpl_chain;

/* Zeroed *c; free with rpl_chain_fini. ERR_NOMEM. */
MUST_USE err_code rpl_chain_init(rpl_chain *c, int32_t n, err *e);
void rpl_chain_fini(rpl_chain *c);

/* Round i, after its inserts into slots[n_slots] of g (engine slots; what they are called is left out, so that another
 * place gives the same number). Rounds in order, 0 first. ERR_DEVICE. */
MUST_USE err_code rpl_chain_state(rpl_chain *c, int32_t i, eng_engine *g, const int32_t *slots, int32_t n_slots, err *e);
/* Round i, what it drafted, as fmt_hash64 of both values' bytes; 0, 0: no draft. */
void rpl_chain_outputs(rpl_chain *c, int32_t i, uint64_t drafts, uint64_t confidence);
/* The outputs of a tape, any level: from its index alone. state is then NULL. ERR_NOMEM. */
MUST_USE err_code rpl_chain_of_tape(const fmt_tape *t, rpl_chain *out, err *e);

/* What a bisection found. */
typedef struct rpl_first {
    int32_t round;   /* index of the first round that differs, -1: none */
    int32_t checks;  /* rounds whose numbers were compared */
    bool state;      /* the state differs there; else only what was drafted */
} rpl_first;
/* a and b are of the same rounds. State is looked at where both know it. */
rpl_first rpl_chain_first(const rpl_chain *a, const rpl_chain *b);

#endif
