/* Why an op's recorded value is wrong: what can be named from the tensors and their neighbours on the tape alone.
 *
 * A cause is a guess that is tried. Each guess makes the value as it would be with that one mistake: by moving the
 * reference's own elements, by taking what the tape holds of the step before, or by running the op group again on its
 * recorded inputs with one thing changed (another position, a block's scale, a rounding left out). Its share is of the
 * illegal elements: those that it gives as recorded (the bits, or four times nearer than the reference) less the legal ones
 * that it spoils. Guesses go from the most specific to the least, and one is named from a share of 0.9 on; the first of
 * equals wins.
 *
 * Before all guesses come the controls, if there are any (cause_controls.h): a value that differs from itself is unstable,
 * one that changes with the poison is unwritten, unless a value that its op reads does too.
 *
 * Where nothing fits, the cause is ENG_CAUSE_FUNCTION, and the text says which rows and columns are wrong. From a tape
 * alone it names no class then, as an unstable and an unwritten value look the same, but what to run. Order noise is legal
 * and never asked for. */
#ifndef REPLAY_CAUSE_H
#define REPLAY_CAUSE_H

#include "engine/fault.h"
#include "replay/cause_controls.h"
#include "replay/certify.h"

typedef struct rpl_cause {
    eng_cause cause;
    double share;               /* of the illegal elements that it explains, 0 .. 1 */
    char text[RPL_CAUSE_BYTES]; /* class first: "stale: s0.attn.wq_a~ of round 2, 100 % of 512 illegal elements" */
} rpl_cause;

/* Both borrowed. n_ranks: of the run, 1 if unknown. May be used by several threads. */
typedef struct rpl_causes {
    const fmt_tape *tape;
    int32_t n_ranks;
    const rpl_controls *controls; /* NULL: the tape alone */
} rpl_causes;

/* classes [elements]: as the judge gave them, RPL_ILLEGAL where to explain. v's bench is as it was afterwards.
 * ERR_NOMEM, ERR_FORMAT (a damaged tape). */
MUST_USE err_code rpl_cause_of(const rpl_causes *x, const rpl_forced_value *v, const uint8_t *classes, rpl_cause *out,
                               err *e);
/* The certificate's explain function; ctx is an rpl_causes. */
MUST_USE err_code rpl_cause_explain(void *ctx, const rpl_forced_value *v, const rpl_verdict *verdict,
                                    const uint8_t *classes, rpl_origin *o, err *e);

#endif
