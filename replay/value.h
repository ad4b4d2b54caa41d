/* One compared value and one round of them, as compare and forced fill them. Private to replay/. */
#ifndef REPLAY_VALUE_H
#define REPLAY_VALUE_H

#include "replay/compare.h"

/* Compares two tensors (data set) into v: state, metrics, logits, ids, the numbers at the worst element. vocab: row length
 * that makes F32 rows logits, 0: unknown. cls is EQUAL, or UNPLACED for the caller to place. */
void rpl_value_compare(rpl_value *v, const fmt_tensor *a, const fmt_tensor *b, int32_t vocab);
/* What rpl_value_compare would say of two tensors with the same bits, from their shape and statistics: no NaN, no infinity, not
 * all zero (those are findings, and need the elements). */
void rpl_value_same(rpl_value *v, const fmt_tensor *t, const fmt_stats *stats, int32_t vocab);
/* Adds v to the counts of its round. */
void rpl_round_count(rpl_round *r, const rpl_value *v);
/* Same shape and dtype. */
bool rpl_same_shape(const fmt_tensor *a, const fmt_tensor *b);

#endif
