/* Poison: what stands in a step's buffers wherever nothing may be read, so that a read of it shows in the result.
 *
 * Before a step the whole arena is filled; before each op the whole room of its outputs, live rows and those beyond, and
 * that of the values whose last reader has run; the rows of a ring that no insert has written hold it too. Two patterns,
 * because a comparison may swallow a NaN and a product with 0 a number:
 *   1  signalling NaN (bf16 0x7fa5, f32 0x7fa57fa5), in integers 1
 *   2  a large number (bf16 0x4e4e, f32 0x4e4e4e4e, about 8.65e8), in integers 2
 * Integers are valid ids: a wrong one is read, and nothing out of bounds. A run that reads only what was written has the
 * same bits with either as without. */
#ifndef ENGINE_POISON_H
#define ENGINE_POISON_H

#include "formats/dtype.h"

#include <stddef.h>

struct eng_step;

enum { ENG_POISONS = 2 };
/* bytes % 4 == 0. pattern 0: zeros. */
void eng_poison_fill(int32_t pattern, fmt_dtype dtype, void *data, size_t bytes);
void eng_poison_step(struct eng_step *s);
/* Before op i; ops run in order. */
void eng_poison_op(struct eng_step *s, int32_t i);

#endif
