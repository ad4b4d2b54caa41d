/* Planted faults: one op of one arm goes wrong in a known way, so that whatever judges the run can be judged by it.
 *
 * A fault belongs to the options an engine is opened with. The implementation of its op is then replaced by one that runs
 * the true op, spoils what the kind says, and counts the elements that differ; all other ops, and every run without a
 * fault, are as they are. CPU only. What such a run records says so in its identity ("injected").
 *
 * A kind names the cause that a judge of the tape should name, if the tensors can show one, and whether its result must
 * lie outside of what an order of fp32 sums explains. A fault that has no occasion (another slot's rows in a batch of one,
 * a clamp that nothing reaches, what a buffer held before the first step) changes nothing: eng_fault_changed says so. */
#ifndef ENGINE_FAULT_H
#define ENGINE_FAULT_H

#include "engine/program.h"
#include "formats/json.h"

/* The cause classes of docs/parity.md; a fault of another kind is a wrong function and has none. */
#define ENG_CAUSE_LIST(X)                                                                                            \
    X(FUNCTION, "wrong function") X(ORDER, "order noise") X(ROUNDING_MISSING, "missing rounding")                    \
    X(ROUNDING_EXTRA, "extra rounding") X(SCALE_BYTE, "scale byte") X(SCALE_ORDER, "scale order")                    \
    X(NIBBLE_ORDER, "nibble order") X(E8M0_EDGE, "E8M0 0 or 255") X(MISREAD, "weight misread")                       \
    X(FP16_RANGE, "fp16 range") X(STALE, "stale")                                                                    \
    X(UNWRITTEN, "unwritten") X(PADDING_LEAK, "padding leak") X(PERMUTATION, "permutation") X(ROW_SWAP, "row swap")  \
    X(HEAD_SWAP, "head swap") X(SLOT_SWAP, "slot swap") X(RING_ROTATION, "ring rotation")                            \
    X(POSITION, "position off by one") X(TIE_FLIP, "tie flip") X(RANK_DISAGREEMENT, "rank disagreement")             \
    X(UNSTABLE, "unstable")
#define X(name, text) ENG_CAUSE_##name,
typedef enum eng_cause { ENG_CAUSE_LIST(X) ENG_CAUSE_COUNT } eng_cause;
#undef X
const char *eng_cause_name(eng_cause c);

struct eng_fault_run;
struct eng_step;

typedef struct eng_fault_kind {
    const char *name;    /* "row-swap" */
    const char *summary; /* one line */
    uint64_t ops;        /* bit per eng_kind */
    uint32_t needs;      /* engine/fault_run.h */
    eng_cause cause;
    bool must;           /* its result lies beyond admissibility, if it changes anything */
    err_code (*plant)(struct eng_fault_run *f, struct eng_step *s, const eng_op *op, err *e);
} eng_fault_kind;

size_t eng_fault_count(void);
const eng_fault_kind *eng_fault_at(size_t i);
const eng_fault_kind *eng_fault_find(const char *name); /* NULL: unknown */
/* Whether the kind makes sense at op i of p under o's arm and rank count. */
bool eng_fault_applies(const eng_fault_kind *k, const eng_program *p, int32_t i, const eng_options *o);

/* Where and when; the caller's, and it outlives the engine. Chosen but for armed, which is set between steps, and for
 * changed, which is read there. */
typedef struct eng_fault {
    const eng_fault_kind *kind;
    char op[32];             /* name of the op, or of a value that it writes (eng_open makes it the op's) */
    int32_t step;            /* an eng_step_kind; -1: the one that has the op (resolved by eng_open) */
    int32_t rank;            /* -1: all ranks, or the last one for a kind that is about one */
    int32_t round;           /* -1: every round. For the caller, who knows rounds */
    int32_t slot;            /* the request's number; -1: all. For the caller */
    int32_t engine_slot;     /* where it runs; -1: all */
    int32_t row;             /* of the value, within the slot; -1: the kind's choice, or all rows */
    int64_t index;           /* which element, group or weight; -1: chosen by the op's name */
    bool armed;              /* does its work in the steps that follow */
    int64_t changed[ENG_RANKS_MAX]; /* elements of the op's outputs that it changed so far, by rank */
    bool hidden;             /* resolved: no tape holds these outputs, and a later rounding may take the change away */
} eng_fault;

/* "KIND@OP[:KEY=NUMBER,...]", keys rank round slot row index, and step=insert or step=draft; armed unless a round is
 * given. ERR_ARG names the word. */
MUST_USE err_code eng_fault_parse(const char *text, eng_fault *out, err *e);
/* { "kind", "op", "step", "cause", and of rank, round, slot, row, index those that are given }. New reference; NULL: no
 * memory. */
json_t *eng_fault_json(const eng_fault *f);
/* The fault that eng_fault_json wrote. ERR_INPUT: it is none that can be planted. */
MUST_USE err_code eng_fault_of_json(const json_t *j, eng_fault *out, err *e);
/* Elements changed so far, all ranks. */
int64_t eng_fault_changed(const eng_fault *f);

/* ---- for the engine ---- */
/* Resolves f->op, f->step and f->hidden. program: by eng_step_kind. ERR_ARG: no such op or value, in both steps and no step
 * said, a kind that does not apply there, a rank that is not, CUDA. */
MUST_USE err_code eng_fault_resolve(eng_fault *f, eng_program *const program[2], const eng_options *o, err *e);
/* Replaces the op's implementation in s if s is of the fault's step; s->x are the largest extents. ERR_NOMEM. */
MUST_USE err_code eng_fault_plant(struct eng_step *s, eng_fault *f, err *e);
void eng_fault_uproot(struct eng_fault_run *f); /* NULL is a no-op */

#endif
