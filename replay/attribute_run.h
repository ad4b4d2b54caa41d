/* A mixture: a tape's rounds run again with each op made by one of several sides, on the values that the others made.
 *
 * A side is an arm on the CPU, whole values on one rank, sums cut as its ranks cut them (eng_bench_open). Side 0 is the
 * reference, whose values the run's are; another side is given the inputs of an op and its outputs are taken over. The tape
 * itself may stand for a side: what it makes of an op is what the reference makes, off by as much as the tape's record is
 * off from what the reference makes of the recorded inputs (replay/attribute_tape.h).
 *
 * A unit is an op as a tape can show it: a recorded value with the hidden ops before it (replay/fold.h), of the insert or
 * of the draft step. Inserts run from the taps, where the tape lacks them from main_x. */
#ifndef REPLAY_ATTRIBUTE_RUN_H
#define REPLAY_ATTRIBUTE_RUN_H

#include "engine/engine.h"
#include "replay/fold.h"

enum { RPL_MIX_SIDES_MAX = 12, RPL_MIX_TAPE = -1 };

typedef struct rpl_unit {
    const char *name;       /* of the op that writes the values: "s0.attn.q", "s0.window" */
    eng_step_kind step;
    int32_t stage;          /* -1: none */
    const rpl_group *group; /* of side 0 */
} rpl_unit;

struct rpl_deviations;
typedef struct rpl_mix rpl_mix;

/* sides[0] is the reference; the others may make ops. t and w are borrowed until close. ERR_INPUT: the tape holds nothing
 * to run; ERR_ARG, ERR_NOMEM, ERR_FORMAT. */
MUST_USE err_code rpl_mix_open(const fmt_tape *t, const eng_weights *w, const eng_options *sides, int32_t n_sides,
                               rpl_mix **out, err *e);
void rpl_mix_close(rpl_mix *m); /* NULL is a no-op */
int32_t rpl_mix_units(const rpl_mix *m); /* of the insert step, then of the draft step, each in program order */
const rpl_unit *rpl_mix_unit(const rpl_mix *m, int32_t i);
/* The unit that writes a value; -1: none. */
int32_t rpl_mix_unit_of(const rpl_mix *m, const char *value);
int32_t rpl_mix_rounds(const rpl_mix *m);
int32_t rpl_mix_round_number(const rpl_mix *m, int32_t i);
const eng_program *rpl_mix_program(const rpl_mix *m, eng_step_kind step); /* of side 0 */
/* What RPL_MIX_TAPE makes; borrowed. */
void rpl_mix_set_tape(rpl_mix *m, const struct rpl_deviations *d);

/* A step that has run: of an insert up to 128 rows at a time. */
typedef struct rpl_mix_step {
    eng_step_kind step;
    int32_t index, round, slot; /* index of the round; slot: FMT_TAPE_NO_SLOT in the draft step */
    int32_t batch, n_out;       /* draft */
} rpl_mix_step;
/* The values are those of rpl_mix_value during the call. */
typedef err_code (*rpl_mix_fn)(void *ctx, const rpl_mix_step *s, err *e);

typedef struct rpl_mix_job {
    const int8_t *maker;        /* [units]: a side, or RPL_MIX_TAPE */
    const bool *wanted;         /* [rounds]: whose drafts are run; inserts run up to the last of them */
    const int32_t *const *tokens; /* [rounds] each [batch, n_out]: the tokens that later positions come after; an entry
                                   * NULL: free-running; NULL: all are */
    rpl_mix_fn fn;
    void *ctx;
} rpl_mix_job;
/* *stopped: an interrupt was seen between two rounds, and the rest was not run. */
MUST_USE err_code rpl_mix_run(rpl_mix *m, const rpl_mix_job *job, bool *stopped, err *e);
/* A value of the step that has just run, by name; data NULL: no such value. Valid during fn. */
fmt_tensor rpl_mix_value(const rpl_mix *m, const rpl_mix_step *s, const char *name);

#endif
