/* A part: one step under capture, from its preparation to its records on a tape. Internal to capture/. */
#ifndef CAPTURE_PART_H
#define CAPTURE_PART_H

#include <stdatomic.h>

#include "capture/taps.h"

/* Counters of the engine's caller, as they stood when something was handed over: a tape's summary has those of its last
 * round, whatever the caller has done since. */
typedef struct cap_spent {
    uint64_t waits, wait_ns, host_ns, device_ns, device_shots, shot_bytes;
    uint64_t rounds_seen, rounds_wanted; /* of whole rounds */
} cap_spent;

/* What a writer is handed, in order. */
typedef enum cap_item_kind { CAP_ITEM_PART, CAP_ITEM_EVENT, CAP_ITEM_DROPPED } cap_item_kind;
typedef struct cap_item {
    struct cap_item *next;
    cap_item_kind kind;
    int32_t round;
    cap_spent spent;
} cap_item;

struct cap_part {
    cap_item item; /* first: the writer's queue */
    bool ends_round;
    const char *wanted; /* why its round is kept whatever conditions say; NULL: they decide */
    eng_step_kind step;
    eng_tap tap;
    eng_shot *shot;
    uint64_t bytes;         /* of this struct with its inputs */
    _Atomic uint64_t *held; /* bytes of all parts there are */
    /* Below: in the same block of memory. */
    int32_t slot, rows;           /* insert */
    const bf16 *taps, *main_x;    /* [rows, n_taps * dim], [rows, dim]; either may be NULL */
    int32_t batch, n_out;         /* draft */
    const int32_t *slots, *anchors;
    const int32_t *pos;           /* [rows], or [batch] */
    bool answered;
    int32_t *drafts;              /* [batch, n_out] */
    float *confidence;            /* the same */
};

/* What tapes were given. */
typedef struct cap_tally {
    uint64_t rounds, inserts, drafts, values, raw_bytes;
    uint64_t tapped;  /* values that came out of shots */
    uint64_t dropped; /* rounds named as left out */
    uint64_t events;
} cap_tally;

/* Room that writing parts needs; zeroed at first. */
typedef struct cap_scratch {
    uint64_t *row_digest;
    uint8_t *hidden; /* a value of all ranks here, permuted */
    size_t capacity, hidden_capacity;
} cap_scratch;
void cap_scratch_fini(cap_scratch *s);

/* Copies of the inputs, no shot yet. *held grows by what part->bytes says. NULL: no memory. */
cap_part *cap_part_of_insert(const eng_config *c, int32_t slot, const bf16 *taps, const bf16 *main_x, const int32_t *pos,
                             int32_t rows, _Atomic uint64_t *held);
cap_part *cap_part_of_draft(int32_t batch, const int32_t *slots, const int32_t *anchors, const int32_t *pos, int32_t n_out,
                            _Atomic uint64_t *held);
/* Bytes that cap_part_of_* will take. */
uint64_t cap_part_insert_bytes(const eng_config *c, bool taps, bool main_x, int32_t rows);
uint64_t cap_part_draft_bytes(int32_t batch, int32_t n_out);
void cap_part_free(cap_part *p); /* with its shot; NULL is a no-op */

/* Waits for the shot's bytes and writes the part's records: inputs, windows, then values in program order, rank by rank.
 * Marks what fired in plan, counts in t. ERR_DEVICE, or the tape's error. */
MUST_USE err_code cap_part_put(cap_plan *plan, cap_part *p, fmt_tape_writer *tape, cap_scratch *scratch, cap_tally *t,
                               err *e);

#endif
