/* What drive plays: a script's or a tape's rounds, dealt out to clients by slot, and what must be answered. */
#ifndef SERVE_DRIVE_PLAN_H
#define SERVE_DRIVE_PLAN_H

#include "engine/engine.h"
#include "engine/script.h"

/* One client's share of a round. Slots are the script's. */
typedef struct srv_turn {
    int32_t round, n_inserts;
    eng_insert_event *insert; /* [n_inserts] */
    int32_t batch, n_out;     /* batch 0: nothing to draft */
    int32_t slot[ENG_BATCH_MAX], anchor[ENG_BATCH_MAX], pos[ENG_BATCH_MAX];
    bool expected;            /* the two below hold */
    int32_t drafts[ENG_BATCH_MAX * ENG_BLOCK_MAX]; /* [batch, n_out] */
    float confidence[ENG_BATCH_MAX * ENG_BLOCK_MAX];
} srv_turn;

/* A slot of a client: it is opened for its first turn and released after its last. */
typedef struct srv_plan_slot { int32_t slot; size_t first_turn, last_turn; } srv_plan_slot;

typedef struct srv_part {
    srv_turn *turn;
    size_t n_turns, turns_capacity;
    srv_plan_slot *slot;
    size_t n_slots, slots_capacity;
    int32_t slots_at_once; /* the most that are open in one turn */
} srv_part;

typedef struct srv_plan srv_plan;

/* c: dim, n_taps, block, window and vocab are used. n_parts clients: the k-th slot by first use goes to client k mod
 * n_parts; a client without a slot has no turn. ERR_INPUT, ERR_FORMAT: as eng_script_open and cap_rounds_open; a tape
 * without taps. */
MUST_USE err_code srv_plan_script(const char *path, const eng_config *c, int32_t n_parts, srv_plan **out, err *e);
MUST_USE err_code srv_plan_tape(const char *path, const eng_config *c, int32_t n_parts, srv_plan **out, err *e);
void srv_plan_close(srv_plan *p); /* NULL is a no-op */
int32_t srv_plan_parts(const srv_plan *p);
const srv_part *srv_plan_part(const srv_plan *p, int32_t i);
int32_t srv_plan_positions(const srv_plan *p); /* the last position of any slot + 1: what hello must ask for */

/* Takes the expected answers from a tape of the same rounds. ERR_INPUT: a round of the plan that the tape lacks, or other
 * slots, anchors, positions or n_out in it. */
MUST_USE err_code srv_plan_expect(srv_plan *p, const char *tape_path, err *e);

#endif
