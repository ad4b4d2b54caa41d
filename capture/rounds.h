/* A tape's inputs as rounds: what replay feeds to an engine. */
#ifndef CAPTURE_ROUNDS_H
#define CAPTURE_ROUNDS_H

#include "formats/number.h"
#include "formats/tape.h"
#include "engine/script.h"

typedef struct cap_rounds cap_rounds;

/* t is borrowed. ERR_INPUT when the tape holds no inputs to run (a value dump without taps and main_x), or breaks the rules
 * of a script (names round and slot). ERR_FORMAT: damaged. ERR_NOMEM. */
MUST_USE err_code cap_rounds_open(const fmt_tape *t, const eng_config *c, cap_rounds **out, err *e);
void cap_rounds_close(cap_rounds *r);
int32_t cap_rounds_count(const cap_rounds *r);
int32_t cap_rounds_slots(const cap_rounds *r);               /* distinct slots of the whole tape */
int32_t cap_rounds_dense(const cap_rounds *r, int32_t slot); /* engine slot of a tape slot */
/* Reads round i; *out and *main_x (per insert, NULL entries where the tape lacks it) are valid until the next call.
 * taps of an insert are NULL where the tape lacks them. ERR_INPUT: rows of the wrong shape or dtype, or not finite. */
MUST_USE err_code cap_rounds_at(cap_rounds *r, int32_t i, eng_round *out, const bf16 *const **main_x, err *e);

#endif
