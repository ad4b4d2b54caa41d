/* The values of one tape, or of two together, by round and in program order. */
#ifndef REPLAY_ORDERED_H
#define REPLAY_ORDERED_H

#include "capture/joined.h"

typedef struct rpl_ordered rpl_ordered;

/* Union of the names of a and b (b may be NULL); both are borrowed. Within a round: inserts by slot, the draft's inputs,
 * windows, the draft step; names that are not the model's last, in writing order. ERR_NOMEM. */
MUST_USE err_code rpl_ordered_make(const cap_names *a, const cap_names *b, rpl_ordered **out, err *e);
void rpl_ordered_free(rpl_ordered *o); /* NULL is a no-op */
int32_t rpl_ordered_rounds(const rpl_ordered *o);
int32_t rpl_ordered_number(const rpl_ordered *o, int32_t i);
/* Values of the i-th round: [0, *n). */
const cap_name *rpl_ordered_at(const rpl_ordered *o, int32_t i, int32_t *n);

#endif
