/* One compared value and one round of them, as compare and forced fill them. Private to replay/. */
#ifndef REPLAY_VALUE_H
#define REPLAY_VALUE_H

#include "replay/compare.h"

/* Compares two tensors (data set) into v: state, metrics, logits, ids, the numbers at the worst element. vocab: row length
 * that makes F32 rows logits, 0: unknown. cls is EQUAL, or UNPLACED for the caller to place. */
void rpl_value_compare(rpl_value *v, const fmt_tensor *a, const fmt_tensor *b, int32_t vocab);
/* The common case, without decoding either side: every rank's record of v has the same hash on both tapes, and the indexes'
 * statistics rule out what only the elements could tell (NaN, infinities, all zero). Sets v as rpl_value_compare would.
 * false: v is untouched and the elements have to be compared; always so for small values, partials and odd tapes. */
bool rpl_value_same(rpl_value *v, int32_t round, const fmt_tape *a, const fmt_tape *b, int32_t vocab);
/* The comparison where a side kept a digest: rec is a record of v of each side (0 A, 1 B), one of them with a digest. Sets
 * state, cls, the shapes, rows. buffer: room for each side's tensor. */
void rpl_value_by_digest(rpl_value *v, int32_t round, const fmt_tape *const tape[2], const fmt_tape_record rec[2],
                         cap_value buffer[2]);
/* One tape lacks the value, or what would tell: not compared, and no difference. An arm may lack a value. */
bool rpl_one_sided(const rpl_value *v);
/* Adds v to the counts of its round. */
void rpl_round_count(rpl_round *r, const rpl_value *v);
/* Same shape and dtype. */
bool rpl_same_shape(const fmt_tensor *a, const fmt_tensor *b);

#endif
