/* Which values of the programs are kept, and how much of each: a level, then the user's "PATTERN=TIER" items. */
#ifndef CAPTURE_TAPS_H
#define CAPTURE_TAPS_H

#include "capture/recorder.h"

enum { CAP_TIER_OFF = -1, CAP_STEPS = 2, CAP_TOP_NAME = 64 };

/* What is kept of one program value. */
typedef struct cap_armed {
    int tier;     /* fmt_tier, or CAP_TIER_OFF */
    int top_tier; /* likewise, of the largest entries of a value over the vocabulary */
    bool fired;   /* some step of the tape has shown it; the recorder's to set */
} cap_armed;

/* Fills armed[step][value] for both programs. ERR_ARG: a bad item, or one whose pattern matches no name. */
MUST_USE err_code cap_arm(const eng_program *const program[CAP_STEPS], const cap_options *o,
                          cap_armed *const armed[CAP_STEPS], err *e);
static inline bool cap_is_armed(const cap_armed *a) { return a->tier != CAP_TIER_OFF || a->top_tier != CAP_TIER_OFF; }
/* "head.logits.top": the record that keeps the largest entries of v; their ids are in "head.logits.top_ids". */
void cap_top_name(const eng_value *v, char out[CAP_TOP_NAME]);

#endif
