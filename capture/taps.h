/* Which values of the programs are kept, and how much of each: a level, then the user's "PATTERN=TIER" items. */
#ifndef CAPTURE_TAPS_H
#define CAPTURE_TAPS_H

#include "capture/recorder.h"
#include "capture/redact.h"

enum { CAP_TIER_OFF = -1, CAP_STEPS = 2, CAP_TOP_NAME = 64 };

/* What is kept of one program value. */
typedef struct cap_armed {
    int tier;     /* fmt_tier, or CAP_TIER_OFF */
    int top_tier; /* likewise, of the largest entries of a value over the vocabulary */
    bool fired;   /* some step of the tape has shown it; the tape's writer sets it */
    cap_hide hide; /* what redaction does to it; withheld is OFF too */
} cap_armed;

/* Fills armed[step][value] for both programs. ERR_ARG: a bad item, or one whose pattern matches no name. */
MUST_USE err_code cap_arm(const eng_program *const program[CAP_STEPS], const cap_options *o,
                          cap_armed *const armed[CAP_STEPS], err *e);
static inline bool cap_is_armed(const cap_armed *a) { return a->tier != CAP_TIER_OFF || a->top_tier != CAP_TIER_OFF; }
/* "head.logits.top": the record that keeps the largest entries of v; their ids are in "head.logits.top_ids". */
void cap_top_name(const eng_value *v, char out[CAP_TOP_NAME]);

/* What is kept of an engine's steps. */
typedef struct cap_plan {
    const eng_program *program[CAP_STEPS]; /* the engine's */
    cap_armed *armed[CAP_STEPS];           /* [n_values]; what no shot can hold is OFF */
    uint8_t *keep[CAP_STEPS];              /* [n_values] the same as sums of eng_keep: what a pool of shots wants to know */
    int32_t n_ranks, first_rank, end_rank; /* of the run; ranks [first, end) are in this process */
    int32_t main_x;                        /* the insert program's value of that name */
    const cap_redact *redact;              /* borrowed; NULL: ids are as they are */
} cap_plan;

/* Zeroed *out is filled; cap_plan_fini is right for it whatever happened. ERR_ARG as cap_arm, and for a tap item that asks
 * by name for what redaction withholds; ERR_NOMEM. */
MUST_USE err_code cap_plan_init(eng_engine *g, const cap_options *o, cap_plan *out, err *e);
void cap_plan_fini(cap_plan *p);
/* What the plan's redaction says in a tape's head; NULL with none, or without memory. */
json_t *cap_plan_redact_json(const cap_plan *p);

#endif
