/* The gate between a recorder's parts and its tape: parts wait here until their round is whole and judged. A round on which
 * a condition held, or that somebody asked for, passes, and before it the last rounds that did not, as many as the flight
 * recorder holds. Other rounds are forgotten in the end.
 *
 * What waits keeps its shots: the rounds in memory take whatever room the pool has, and are given up, oldest first, when a
 * step needs it. Internal to capture/.
 *
 * Threads: pass, end and what the summary says are the writing thread's; ask and evict may be called by any. */
#ifndef CAPTURE_FLIGHT_H
#define CAPTURE_FLIGHT_H

#include "capture/condition.h"

typedef struct cap_flight cap_flight;

/* Of o: when and flight. *out NULL with ERR_OK: neither is asked for, every round passes. plan is borrowed. Errors as
 * cap_conditions_open. */
MUST_USE err_code cap_flight_open(const cap_options *o, const cap_plan *plan, cap_flight **out, err *e);
void cap_flight_close(cap_flight *f); /* with the parts that wait, whose pool must still be there; NULL is a no-op */

/* Frees the oldest round in memory for its room. false: there is none. f may be NULL. */
bool cap_flight_evict(cap_flight *f);
/* The round that is judged next passes, whatever the conditions say; why (short, copied) is the `when` of its event. */
void cap_flight_ask(cap_flight *f, const char *why);

/* What passes: items that are the caller's now, oldest first; and why, an array of events ({"event": "trigger", "when":
 * ITEM, "before": rounds from memory, ...} with what cap_conditions_end_round says), NULL when nothing passes. */
typedef struct cap_passed { cap_item *first; json_t *events; } cap_passed;
/* p is the flight's from here on, also on error, after which its round will not pass. ERR_DEVICE, ERR_NOMEM. */
MUST_USE err_code cap_flight_pass(cap_flight *f, cap_part *p, cap_passed *out, err *e);
/* Nothing comes any more. What was asked for and not judged passes: the rounds in memory, *round the last of them. */
MUST_USE err_code cap_flight_end(cap_flight *f, int32_t *round, cap_passed *out, err *e);

/* Rounds judged and passed through the gate by a trigger, since the beginning. */
typedef struct cap_flight_counts { uint64_t judged, fired; } cap_flight_counts;
cap_flight_counts cap_flight_counts_of(const cap_flight *f);
/* Since the last tape's end, which this is: {"judged": rounds, "fired": of them, "asked": of these by cap_flight_ask,
 * "flight": rounds that may be in memory, "evicted": rounds given up for their room, "conditions": cap_conditions_json}.
 * judged->rounds and judged->tapped are what the cost of capture is shared among. NULL: no memory. */
json_t *cap_flight_json(cap_flight *f, cap_tally *judged);

#endif
