/* Buffers of a step: every value gets a place in one allocation, decided before anything runs.
 *
 * A value lives from its producer to its last reader; values whose lives do not meet share bytes. Retained ones live to the
 * end of the step. */
#ifndef ENGINE_PLAN_H
#define ENGINE_PLAN_H

#include "engine/program.h"

typedef struct eng_plan {
    uint64_t bytes;      /* of the whole allocation */
    uint64_t *offset;    /* [n_values]; state values and inputs read in place have none (UINT64_MAX) */
    uint64_t *room;      /* [n_values] bytes there */
    int32_t *last;       /* [n_values] the op after which nobody reads it; n_ops: it is kept */
} eng_plan;

/* Sized for max extents on one rank. retain: values up to this level live to the end (ENG_LEVEL_HIDDEN: all). ERR_NOMEM. */
MUST_USE err_code eng_plan_make(const eng_program *p, const eng_extents *max, int32_t rank, int32_t n_ranks,
                                eng_level retain, eng_plan *out, err *e);
void eng_plan_fini(eng_plan *plan);

#endif
