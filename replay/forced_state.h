/* What a forced run knows between its steps: the tape's values, the rings, the benches. Private to replay/forced*.c. */
#ifndef REPLAY_FORCED_STATE_H
#define REPLAY_FORCED_STATE_H

#include "replay/forced.h"
#include "replay/ordered.h"

enum { N_STEPS = 2 };

/* A slot's rings as the recorded rows up to some round leave them. */
typedef struct ring_state {
    int32_t slot;
    bf16 *rows;       /* [n_stages, window, head_dim] */
    uint32_t missing; /* bit k: stage k lacks rows of some round */
    /* Of a tape of chosen rounds: what a round does not bring is taken from the windows that were recorded up to it. */
    int32_t *at;      /* [n_stages, window] the position that a row holds, -1: none */
    int64_t *told;    /* [n_stages] rows of the last draft's window that were there without it */
} ring_state;

/* The bench of a step, the most it was made for, and the groups that ran last, with what was recorded then. */
typedef struct bench_slot {
    eng_bench *bench;
    int32_t rows, batch, n_out;
    rpl_fold *fold;
    bool *folded; /* [n_values] */
} bench_slot;

/* A compared round, kept. */
typedef struct kept_round { rpl_round round; rpl_value *value; bool done; } kept_round;

struct rpl_forced {
    const fmt_tape *tape;
    const eng_weights *weights;
    eng_options options;
    eng_config config;
    bool redacted; /* the tape's ids are not the model's: what reads or chooses tokens has no inputs */
    bool chosen;   /* the tape does not hold every round */
    cap_names *names;
    rpl_ordered *ordered;
    bool *lost; /* [names] cannot be read; NULL: nobody has looked */
    kept_round *kept;
    bench_slot bench[N_STEPS];
    ring_state *ring;
    size_t n_rings, rings_capacity;
    int32_t ring_round;  /* rounds [0, ring_round) are in the rings */
    cap_value *value[N_STEPS];  /* [n_values] recorded values of the step that runs */
    bool *recorded[N_STEPS];
    int32_t n_values[N_STEPS];
    cap_value scratch[2];
};

/* ---- forced_read.c ---- */

MUST_USE err_code rpl_forced_bad(const rpl_forced *f, int32_t round, int32_t slot, const char *name, const char *found,
                                 const char *wanted, err *e); /* ERR_INPUT */
/* Reads a value and checks dtype and shape. ERR_INPUT. */
MUST_USE err_code rpl_forced_get(const rpl_forced *f, int32_t round, int32_t slot, const char *name, const fmt_tensor *want,
                                 cap_value *v, err *e);
/* Length of a recorded vector of int32, of all a slot's inserts together; 0 when absent or lost. */
int64_t rpl_forced_length(const rpl_forced *f, int32_t round, int32_t slot, const char *name);
MUST_USE err_code rpl_forced_vector(const rpl_forced *f, int32_t round, int32_t slot, const char *name, int64_t n,
                                    cap_value *v, err *e);
/* ERR_INPUT names the first of v [n] that is not in [0, limit). */
MUST_USE err_code rpl_forced_range(const rpl_forced *f, int32_t round, const char *name, const int32_t *v, int64_t n,
                                   int32_t limit, err *e);

/* ---- forced_ring.c ---- */

/* Brings the rings to the state after round i's inserts. */
MUST_USE err_code rpl_rings_up_to(rpl_forced *f, int32_t i, err *e);
void rpl_rings_forget(rpl_forced *f);
ring_state *rpl_rings_find(const rpl_forced *f, int32_t slot); /* NULL: it has none */
/* Ring of a slot drafted at pos, and stage, into dst [window, head_dim]; *ok false: neither rows nor a recorded window. */
MUST_USE err_code rpl_rings_load(rpl_forced *f, int32_t round, int32_t slot, int32_t stage, int32_t pos, int64_t n_rows,
                                 bf16 *dst, bool *ok, err *e);

#endif
