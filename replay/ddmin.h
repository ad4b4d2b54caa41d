/* Delta debugging: of a set of items that shows a property, a smaller set that still shows it and no longer does without
 * any one of its items (1-minimal).
 *
 * Items are first left out by large units, then by smaller ones: a property of one op in eighty is found in about a dozen
 * tests. The property need not be monotonic: whatever is returned was itself tested. Where the property has several minimal
 * sets, the one that the order of items leads to is found. */
#ifndef REPLAY_DDMIN_H
#define REPLAY_DDMIN_H

#include "base/err.h"

/* Does the set chosen[n] show the property? *go_on false ends the search; *holds is then not looked at. */
typedef err_code (*rpl_ddmin_fn)(void *ctx, const bool *chosen, bool *holds, bool *go_on, err *e);

typedef struct rpl_ddmin_job {
    int32_t n;                    /* items */
    const int32_t *const *level;  /* [n_levels] each [n]: the unit of an item, coarse levels first; the last one must have
                                   * every item apart */
    int32_t n_levels;
    rpl_ddmin_fn holds;
    void *ctx;
} rpl_ddmin_job;

/* chosen [n]: in, a set that is known to show the property, which the empty set does not; out, a minimal one, or, when the
 * search was ended, the smallest that was found (*minimal false). Neither of the two, nor any set twice, is tested.
 * ERR_NOMEM, and what holds returns; chosen is then as far as the search had come. */
MUST_USE err_code rpl_ddmin(const rpl_ddmin_job *job, bool *chosen, bool *minimal, err *e);

#endif
