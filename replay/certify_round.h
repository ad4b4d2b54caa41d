/* A round under judgement. Private to replay/certify*. */
#ifndef REPLAY_CERTIFY_ROUND_H
#define REPLAY_CERTIFY_ROUND_H

#include "replay/certify.h"
#include "replay/ordered.h"

/* A recorded value of this round with illegal elements of its own, and what explains its readers. */
typedef struct rpl_wrong {
    eng_step_kind step;
    int32_t slot, value;   /* value: index into the program; of a window -1 */
    int32_t stage;         /* of a window */
    const char *name;      /* on the tape */
    uint8_t *right;        /* of a value: the recorded bytes, illegal elements put right. Of a window: as recorded, which is
                            * what attention read. NULL: ranks differ, which explains whatever reads it */
    size_t bytes;
} rpl_wrong;

/* Rows of a slot's ring whose record (main_kv) is illegal, put right. */
typedef struct rpl_fixed_ring {
    int32_t slot, stage;
    const char *name; /* of its rows, on the tape: "s0.main_kv" */
    bf16 **row; /* [window] each NULL or [head_dim] */
} rpl_fixed_ring;

/* What a closer look at a value found. */
typedef struct rpl_finding_of {
    const char *from;    /* the input that was put right; NULL: every input is fine */
    rpl_verdict verdict; /* of what is left */
    int64_t n_illegal;   /* elements that nothing explains; 0: inherited */
} rpl_finding_of;

/* State of one lane: one caller. */
struct rpl_certify {
    const fmt_tape *tape;
    const eng_weights *weights;
    eng_config config;
    rpl_certify_options o;
    cap_names *names;
    rpl_ordered *ordered;
    eng_program *program[2]; /* by step */
    rpl_forced *forced;
    rpl_judge *judge;

    /* of the round that is judged */
    int32_t index, round;
    const cap_name *name; /* [n_names] the round's, in program order */
    int32_t n_names, cursor;
    bool *seen;           /* [n_names] was judged or accounted for */
    size_t seen_capacity;
    eng_extents extents[2];
    int32_t slots[ENG_BATCH_MAX], batch;
    rpl_certificate *to;
    bool scanning;        /* only main_kv matters: an earlier round is looked at for its rows */
    bool full;            /* values outside of o.taps are judged too */
    bool want_scan, want_full; /* what the round needs to be judged again for */
    bool stopped;         /* the forced run was ended by us */
    rpl_wrong *wrong;
    size_t n_wrong, wrong_capacity;

    rpl_fixed_ring *ring;
    size_t n_rings, ring_capacity;
    int32_t rings_at;     /* rounds [0, rings_at) are in the fixed rings */

    uint8_t *classes, *classes_right; /* of the value at hand */
    uint8_t *right;                   /* its computed bytes with inputs put right */
    size_t classes_capacity, classes_right_capacity, right_capacity;
};

/* ---- certify_value.c ---- */

/* The forced run's callback; ctx is the lane. */
MUST_USE err_code rpl_certify_value(void *ctx, const rpl_forced_value *v, err *e);
bool rpl_certify_wants(const rpl_certify *c, const char *name); /* o.taps */
rpl_note rpl_note_of(const rpl_certify *c, const cap_name *n, const char *why);
rpl_origin rpl_origin_of(const rpl_certify *c, const rpl_forced_value *v, const rpl_verdict *verdict);
static inline void rpl_set_name(char to[RPL_NAME_BYTES], const char *text) { snprintf(to, RPL_NAME_BYTES, "%s", text); }

/* ---- certify_why.c ---- */

bool rpl_certify_is_window(const cap_name *n);
/* Why no op was run for n of the round: a phrase that names what is missing. bad_ids: the round has ids that the model has
 * not. ERR_NOMEM. */
MUST_USE err_code rpl_certify_why(const rpl_certify *c, const cap_name *n, bool bad_ids, char why[RPL_WHY_BYTES], err *e);

/* ---- certify_place.c ---- */

/* Looks whether v's illegal elements (c->classes) follow from wrong inputs. After it c->classes marks as illegal only what
 * nothing explains, and c->right holds what v's op gives when its inputs are right. */
MUST_USE err_code rpl_place_value(rpl_certify *c, const rpl_forced_value *v, const rpl_verdict *verdict,
                                  rpl_finding_of *out, err *e);
/* Remembers v as wrong, for its readers. */
MUST_USE err_code rpl_place_wrong(rpl_certify *c, const rpl_forced_value *v, bool ranks_differ, err *e);
/* Brings main_kv rows of an insert into the fixed rings; illegal: c->classes and c->right say which elements. */
MUST_USE err_code rpl_place_rows(rpl_certify *c, const rpl_forced_value *v, bool illegal, err *e);
void rpl_place_forget_round(rpl_certify *c);
void rpl_place_forget_rings(rpl_certify *c);
/* Room for n elements of v's classes, and its bytes. */
MUST_USE err_code rpl_place_room(rpl_certify *c, const fmt_tensor *t, err *e);

/* ---- certificate.c: adding to one ---- */
MUST_USE err_code rpl_certificate_sum(rpl_certificate *c, const rpl_value_sum *s, err *e);
MUST_USE err_code rpl_certificate_note(rpl_certificate *c, bool finding, const rpl_note *n, err *e);
/* Joined to the last one where that is of the same op and step. */
MUST_USE err_code rpl_certificate_origin(rpl_certificate *c, const rpl_origin *o, err *e);
MUST_USE err_code rpl_certificate_tie(rpl_certificate *c, const rpl_tie *t, err *e);

#endif
