/* Choosing tokens: the best of a slice of the vocabulary, the best of two slices, the n best for the record.
 *
 * Order     descending value; equal values (-0 equals +0): the lower id first. NaN comes after every number, -inf included
 * Match     bit-equal everywhere: no arithmetic
 * Bound     0. An id is explained when the margin to the rival is within the bounds of the two values
 * Threads   one; the result does not depend on how a vocabulary is cut, as krn_best_of is associative and commutative */
#ifndef KERNELS_ARGMAX_H
#define KERNELS_ARGMAX_H

#include "kernels/kernels.h"

/* a comes before b, ids aside: larger, or a number where b is NaN. */
static inline bool krn_value_before(float a, float b) { return a > b || (isnan(b) && !isnan(a)); }

typedef struct krn_best {
    float value; /* v at id; NaN when nothing but NaN was seen */
    int32_t id;
} krn_best;

/* The best of v[0..n), whose first element has id first_id. All NaN: first_id. n == 0 (a rank without vocabulary rows):
 * {NaN, first_id}, which loses against every number. */
krn_best krn_argmax_ref(const float *v, int64_t n, int32_t first_id);
/* The better of two; both NaN: the lower id. */
krn_best krn_best_of(krn_best a, krn_best b);

/* The k best, in order: ids[j] is an index into v, values[j] = v[ids[j]] bit for bit.  1 <= k <= n <= INT32_MAX.
 * One pass with a sorted list: slowest when v ascends. */
void krn_topn_ref(const float *v, int64_t n, int32_t k, int32_t *ids, float *values);

#endif
