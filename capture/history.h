/* Which rows of its slots a tape brings, round by round: the rules of a script, and, of a tape that holds chosen rounds
 * only, where it lacks rows. Internal to capture/. */
#ifndef CAPTURE_HISTORY_H
#define CAPTURE_HISTORY_H

#include "engine/config.h"
#include "formats/tape.h"

/* A slot of the tape, as the rounds until now leave it. */
typedef struct cap_slot {
    int32_t slot, engine;             /* its number on the tape, and where it runs: see cap_history_share */
    int32_t first, last;              /* rows there are, without gap; last -1: none */
    int32_t begin;                    /* position of the first row that the round it was in last brought, or would have */
    bool anew;                        /* its rows before begin are not those that it had before, or it had none */
    int32_t round, index, first_index;/* the round it was in last: number, and which of the tape's it is; the first one */
    int32_t drafted, drafted_pos;     /* number and position of its last draft; -1: none, or of another request */
} cap_slot;

typedef struct cap_history {
    const fmt_tape *tape;
    const eng_config *config;
    bool chosen; /* rounds may be missing: then a slot may go on elsewhere than it stood, and lack rows */
    cap_slot *slot;
    size_t n_slots, capacity;
    int32_t n_engine; /* after cap_history_share */
} cap_history;

/* Rounds come in order, index from 0; in each the inserts first. ERR_INPUT names round and slot. ERR_NOMEM. */
MUST_USE err_code cap_history_insert(cap_history *h, int32_t index, int32_t round, int32_t slot, const int32_t *pos,
                                     int32_t rows, err *e);
/* A draft at position pos of the slot. Rows *from .. *to of those that it reads are missing; *from > *to: none. With chosen
 * false these are an error. */
MUST_USE err_code cap_history_draft(cap_history *h, int32_t index, int32_t round, int32_t slot, int32_t pos, int32_t *from,
                                    int32_t *to, err *e);
cap_slot *cap_history_slot(const cap_history *h, int32_t slot); /* NULL: not seen. Valid until the next insert or draft */
/* After the last round: gives each slot a place in an engine from its first round to its last one; one that comes later may
 * have the same. ERR_NOMEM. */
MUST_USE err_code cap_history_share(cap_history *h, err *e);
void cap_history_fini(cap_history *h);

/* "T.tape: round 3 slot 1: what", slot FMT_TAPE_NO_SLOT leaves it out. Returns ERR_INPUT. */
err_code cap_history_broken(const cap_history *h, int32_t round, int32_t slot, const char *what, err *e);

#endif
