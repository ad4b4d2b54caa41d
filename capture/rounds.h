/* A tape's inputs as rounds: what replay feeds to an engine. */
#ifndef CAPTURE_ROUNDS_H
#define CAPTURE_ROUNDS_H

#include "formats/number.h"
#include "formats/tape.h"
#include "engine/script.h"

typedef struct cap_rounds cap_rounds;

/* t is borrowed. ERR_INPUT when the tape holds no inputs to run (a value dump without taps and main_x), or breaks the rules
 * of a script (names round and slot). ERR_FORMAT: damaged. ERR_NOMEM. */
MUST_USE err_code cap_rounds_open(const fmt_tape *t, const eng_config *c, cap_rounds **out, err *e);
/* The same of a tape that may hold chosen rounds only (cap_rounds_chosen; of another one as above). There a slot may stand
 * elsewhere than its last round left it, and a draft may read rows that no round of the tape brings: cap_rounds_starts says
 * where, and cap_rounds_at leaves out the drafts that cannot be run. */
MUST_USE err_code cap_rounds_open_chosen(const fmt_tape *t, const eng_config *c, cap_rounds **out, err *e);
/* The tape says that it does not hold every round: a round list or a condition chose, or rounds were dropped. */
bool cap_rounds_chosen(const fmt_tape *t);
/* Whether t says, or what it was imported from, that its traffic was made up (sparktape script): no target took rows. */
bool cap_rounds_synthetic(const fmt_tape *t);
void cap_rounds_close(cap_rounds *r);
int32_t cap_rounds_count(const cap_rounds *r);
/* Where a tape slot runs, from its first round to its last one; a later one may have the same place, which must be emptied
 * when cap_rounds_starts names it. */
int32_t cap_rounds_slots(const cap_rounds *r);               /* places in all */
int32_t cap_rounds_dense(const cap_rounds *r, int32_t slot); /* -1: not on the tape */
/* Reads round i; *out and *main_x (per insert, NULL where the tape lacks it, or has taps and it is not finite) are valid
 * until the next call. taps of an insert are NULL where the tape lacks them. ERR_INPUT: rows of the wrong shape or dtype,
 * or not finite. */
MUST_USE err_code cap_rounds_at(cap_rounds *r, int32_t i, eng_round *out, const bf16 *const **main_x, err *e);

/* What a slot must be given before a round's steps. */
typedef struct cap_start {
    int32_t slot;     /* of the tape */
    int32_t last;     /* where it stands before the round's first row; -1: it begins with the round */
    bool anew;        /* what its place holds is not its rows before the round: to be emptied */
    int32_t from, to; /* rows that the round's draft reads and that no round of the tape brings; from > to: none */
    int32_t pos;      /* position of that draft */
    int32_t before, before_pos; /* the request's last draft on the tape: round and position; before -1: none */
    char lacks[24];   /* "": they are in the windows. Else the window that is not on the tape: the draft is left out */
    const bf16 *const *window; /* [n_stages] each [min(W, pos + 1), head_dim] as the draft saw it; NULL: none */
} cap_start;
/* Slots of round i that cannot just go on, [*n]; valid until the next call. ERR_INPUT: a window of the wrong shape. */
MUST_USE err_code cap_rounds_starts(cap_rounds *r, int32_t i, const cap_start **out, int32_t *n, err *e);

#endif
