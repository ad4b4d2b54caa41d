/* The program folded to what a tape can show: groups of ops between recorded values.
 *
 * A group is a recorded value (or several of one op) with the chain of ops that makes it from other recorded values;
 * values that no tape holds (hidden ones, and those below the capture level) lie inside it. An op between two groups (a
 * shared QDQ copy) belongs to both. Origins, forced runs and the program screen walk groups. */
#ifndef REPLAY_FOLD_H
#define REPLAY_FOLD_H

#include "engine/program.h"

typedef struct rpl_group {
    const char *name;       /* of the op that writes the outputs, borrowed from the program */
    eng_kind kind;          /* of that op */
    int32_t stage;          /* -1: none */
    int32_t n_ops, n_in, n_out;
    const int32_t *op;      /* op indices, ascending: run them in this order */
    const int32_t *in;      /* recorded values and program inputs that the chain reads, ascending */
    const int32_t *out;     /* wanted values that the last op writes */
    bool complete;          /* false: a program input that is not recorded is needed */
} rpl_group;

typedef struct rpl_fold rpl_fold;

/* recorded[v]: value v of p is on the tape, so chains stop there. wanted[v]: a group that writes v is made (NULL: as
 * recorded). p->n_values flags each; state values (windows) count as recorded. p is borrowed. ERR_NOMEM. */
MUST_USE err_code rpl_fold_make(const eng_program *p, const bool *recorded, const bool *wanted, rpl_fold **out, err *e);
void rpl_fold_free(rpl_fold *f); /* NULL is a no-op */
int32_t rpl_fold_count(const rpl_fold *f);
const rpl_group *rpl_fold_at(const rpl_fold *f, int32_t i); /* in program order */
/* Group that writes value v, -1: none (an input, or not wanted). */
int32_t rpl_fold_of_value(const rpl_fold *f, int32_t v);

/* The group's chain as kinds, "linear rmsnorm rope act_qdq"; a long one as its first, last and number: "act_qdq ..
 * round_bf16, 12 ops". Returns buf. */
enum { RPL_GROUP_TEXT = 56 };
const char *rpl_group_text(const eng_program *p, const rpl_group *g, char buf[RPL_GROUP_TEXT]);

#endif
