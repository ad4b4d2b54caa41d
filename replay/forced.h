/* Forced runs: every op group of a tape run alone on the inputs that the tape recorded, so that nothing compounds.
 *
 * The op runs with the whole weights on joined values; its sums are cut as the ranks cut them (see eng_bench_open). Hidden
 * values are made again inside the group. Rings come from the recorded main_kv rows of this and the earlier rounds (from
 * the recorded windows where a tape has no rows). Every head.biased row is made under the recorded drafts before it.
 * Of a tape of chosen rounds the rows that no round brings come from the recorded windows up to the round.
 * On a redacted tape nothing that reads or chooses tokens runs. */
#ifndef REPLAY_FORCED_H
#define REPLAY_FORCED_H

#include "capture/joined.h"
#include "engine/engine.h"
#include "replay/compare.h"

typedef struct rpl_forced rpl_forced;

/* What one group gave. Pointers are valid during the call only. */
typedef struct rpl_forced_value {
    int32_t round, slot;       /* slot: FMT_TAPE_NO_SLOT in the draft step */
    const eng_program *program;/* of the bench; NULL for a window */
    const rpl_group *group;    /* NULL for a window */
    const char *op;            /* name of the op that writes the value; for windows the ring's op */
    const char *name;          /* of the value: "s0.attn_out", "s0.window" */
    int32_t value;             /* index into program->value, -1 for a window */
    fmt_tensor computed;
    fmt_tensor recorded;       /* joined */
    eng_bench *bench;          /* holds the group's inputs and hidden values; NULL for a window */
} rpl_forced_value;

/* Called once per recorded output. Anything but ERR_OK ends the round with that error. */
typedef err_code (*rpl_forced_fn)(void *ctx, const rpl_forced_value *v, err *e);

/* The mirror64 of a tape's run: over the weights as that run held them, its sums cut between n_ranks as far as EXL3 sums
 * are, exact combine. Threads as in eng_options_parse. */
MUST_USE err_code rpl_forced_mirror64(const fmt_tape *t, int32_t n_ranks, int32_t threads, eng_options *out, err *e);
/* t and w are borrowed until close. ERR_INPUT: the tape's shapes do not fit the model. ERR_ARG: o's ranks cannot cut it. */
MUST_USE err_code rpl_forced_open(const fmt_tape *t, const eng_weights *w, const eng_options *o, rpl_forced **out, err *e);
void rpl_forced_close(rpl_forced *f); /* NULL is a no-op */
/* For a round that ended with ERR_FORMAT: reads every record of the tape, and from then on values that cannot be read count
 * as not recorded. *found: there are such values, and this was the first call: it is worth a second try. ERR_NOMEM. */
MUST_USE err_code rpl_forced_leave_damaged(rpl_forced *f, bool *found, err *e);
/* The value is on the tape with its payload, and can be read. */
bool rpl_forced_has(const rpl_forced *f, int32_t round, int32_t slot, const char *name);
/* The first of a draft's inputs (draft.slots, .anchor, .pos, .n_out) that round does not have, or not so that it can be
 * read: nothing of its draft step runs. NULL: it has all. */
const char *rpl_forced_draft_lacks(const rpl_forced *f, int32_t round);
/* The value is on the tape and was left so. */
bool rpl_forced_lost(const rpl_forced *f, int32_t round, int32_t slot, const char *name);
int32_t rpl_forced_rounds(const rpl_forced *f);
int32_t rpl_forced_round_number(const rpl_forced *f, int32_t i);
/* Runs round i: inserts by slot, windows, the draft step, each in program order. Rounds may come in any order; going
 * back rebuilds the rings from the start of the tape. ERR_INPUT names a value of the wrong shape or dtype, or an id
 * that the model does not have. *n_skipped (may be NULL): recorded values whose inputs are not all recorded. */
MUST_USE err_code rpl_forced_round(rpl_forced *f, int32_t i, rpl_forced_fn fn, void *ctx, int32_t *n_skipped, err *e);
/* Runs round i and compares: side A is what was computed, side B what is recorded; whatever differs is an origin. taps:
 * pattern that names must match, NULL: all. The result is kept; *out is valid until close. */
MUST_USE err_code rpl_forced_compare(rpl_forced *f, int32_t i, const char *taps, const rpl_round **out, err *e);

#endif
