/* Waivers: known gaps that stay visible and cannot grow.
 *
 * { "schema": 1, "waivers": [ { "value": "s*.attn_out", "cause": "order noise*", "max_ratio": 60, "max_count": 12,
 *   "reason": "calibration of the sink, issue 41", "expires": "2027-03-31", "analysis": "certify", "tape": "*" } ] }
 *
 * value, cause, tape: patterns (* and ?, commas between alternatives); analysis and tape may be left out. max_ratio: the
 * largest distance/delta (of a gate: its figure) that an issue may have; max_count: elements, values or rows of all issues
 * of one result that this waiver covers, together; one of the two is needed. An issue without a ratio is not covered by
 * max_ratio alone. expires: the last day, UTC, on which it counts. */
#ifndef REPLAY_WAIVER_H
#define REPLAY_WAIVER_H

#include "replay/report.h"

typedef struct rpl_waiver {
    char *value, *cause, *reason, *analysis, *tape; /* analysis, tape: NULL any */
    char expires[11];
    double max_ratio;     /* NaN: no limit */
    int64_t max_count;    /* -1: no limit */
    int64_t n_matched;    /* issues that it speaks about, after apply */
} rpl_waiver;

typedef struct rpl_waivers {
    rpl_waiver *item;
    size_t n;
} rpl_waivers;

/* ERR_FORMAT: no JSON; ERR_INPUT names file, waiver, key, found, wanted. *out is to be freed with fini in any case. */
MUST_USE err_code rpl_waivers_read(const char *path, rpl_waivers *out, err *e);
MUST_USE err_code rpl_waivers_parse(const json_t *j, const char *where, rpl_waivers *out, err *e);
void rpl_waivers_fini(rpl_waivers *w);
/* Sets waiver, or refused, of each issue that a waiver speaks about. result: of the issues. today: "2026-01-31". */
void rpl_waivers_apply(rpl_waivers *w, rpl_issue *issue, size_t n, const rpl_result *result, const char *today);
/* Today in UTC, "2026-01-31". */
void rpl_today(char out[11]);

#endif
