/* Conditions: what must be seen in a round for it to be kept, looked for by the writing thread in what the shots hold.
 *
 *   nan[@PATTERN]           a floating-point value has a NaN or an infinity
 *   range:LO..HI[@PATTERN]  a floating-point value has an element below LO or above HI (a NaN is neither)
 *   differs:TAPE[@PATTERN]  a value has another hash than its record of the same round, slot, rank and name in TAPE
 *   acceptance:X            of a request's drafts less than the share X was accepted
 *
 * Only values that are kept are looked at, in the form in which they are kept: of a value of which only the largest
 * entries are, these (NAME.top). A pattern is a glob over names, all of them when it is left out; what follows the last
 * '@' is one. differs: a value is passed over where TAPE has no such record, or where redaction permutes it; and, counted,
 * where TAPE has it of ranks that cut it otherwise, or cannot give it. TAPE must be finished and without damage.
 *
 * Acceptance: a draft of n tokens at position p (p the last row there was, p+1 the anchor's) is told of by the next round
 * that inserts into its slot. If its last row is at q, then q - p - 1 were accepted, at most n: the anchor's row is the
 * first one. So the round that fails is an earlier one than the round that says so; the finding names it as `drafted`.
 *
 * All but cap_conditions_check is for one thread at a time. Internal to capture/. */
#ifndef CAPTURE_CONDITION_H
#define CAPTURE_CONDITION_H

#include "capture/part.h"

typedef struct cap_conditions cap_conditions;

/* Opens what the items name; none at all is right too. plan is borrowed. ERR_ARG: as cap_when_check, or a pattern that
 * matches nothing that is kept; the errors of fmt_tape_open, in which the item is named. */
MUST_USE err_code cap_conditions_open(const cli_list *when, const cap_plan *plan, cap_conditions **out, err *e);
void cap_conditions_close(cap_conditions *c); /* NULL is a no-op */

/* Looks at the values of a part; its shot is waited for. Parts of a round come one after the other, inserts first.
 * ERR_DEVICE: its step failed. ERR_NOMEM. */
MUST_USE err_code cap_conditions_look(cap_conditions *c, cap_part *p, err *e);
/* The round is over. Adds to *events, an array, what held in it, one object for each condition: {"event": "trigger",
 * "when": ITEM, "value": NAME, "slot": S (not of a value of the whole step), "rank": R, ...} and in what way. */
MUST_USE err_code cap_conditions_end_round(cap_conditions *c, int32_t round, json_t *events, err *e);

/* Since the beginning or the last reset: [{"when": ITEM, "looked": values or drafts it could judge, "fired": rounds in
 * which it held, "first": the first of these, if any, "passed_over": of differs, values that could not be compared}].
 * NULL: no memory. */
json_t *cap_conditions_json(const cap_conditions *c);
void cap_conditions_reset(cap_conditions *c);
uint64_t cap_conditions_taps(const cap_conditions *c); /* values of steps that it was shown, since the last reset */

#endif
