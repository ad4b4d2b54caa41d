/* The summary of a tape: what its writer says about it at its end (formats/TAPE.md). Internal to capture/. */
#ifndef CAPTURE_SUMMARY_H
#define CAPTURE_SUMMARY_H

#include "capture/part.h"

/* What it is made of; all borrowed. */
typedef struct cap_summary {
    const cap_plan *plan;                 /* with what fired */
    const cap_tally *total, *base;        /* now, and when the tape began */
    const cap_spent *spent, *spent_base;
    const cap_tally *judged;              /* rounds and tapped of all that was captured; NULL: it is what was written */
    size_t n_slots;
    uint64_t n_lost;                      /* events without room */
    bool rounds_listed;
    const char *failed;                   /* NULL: all went well */
} cap_summary;

json_t *cap_summary_json(const cap_summary *s); /* NULL: no memory */

#endif
