/* What `diff` prints: the same findings as text for people, or as JSON, one object a line. Private to replay/. */
#ifndef REPLAY_DIFF_REPORT_H
#define REPLAY_DIFF_REPORT_H

#include "replay/compare.h"
#include "replay/coverage.h"

typedef struct rpl_diff {
    const fmt_tape *a, *b;
    const char *tap, *rounds; /* options that narrow it, NULL: none */
    bool forced, all, json; /* all: every difference, not the first ones */
    const rpl_round **round;/* the compared rounds */
    int32_t n_rounds, n_rounds_wanted;
    bool interrupted;       /* the others were left out */
    bool damaged;           /* a tape is, or is unfinished */
    char **identity;        /* rpl_identity_diff of what ran, NULL-terminated */
    /* Totals, from rpl_diff_sum. */
    int64_t n_values, n_compared, n_equal, n_differ, n_findings, n_elems, n_blocks, n_blocks_exact;
    uint64_t n_bytes;
    int64_t by_class[RPL_CLASS_COUNT];
    int32_t rounds_differ;
    int64_t n_one_sided;    /* values that one tape lacks */
    int64_t n_redacted;     /* values that tell token ids and could not be compared */
    bool alike;             /* both tapes say that they hold the same set of values (level and taps of their heads) */
} rpl_diff;

/* Sums the rounds. */
void rpl_diff_sum(rpl_diff *d);
MUST_USE err_code rpl_diff_print(const rpl_diff *d, err *e);
MUST_USE err_code rpl_diff_print_json(const rpl_diff *d, err *e);
/* "SAME": something was compared, nothing differs, no finding. A value that one tape lacks is a difference only between
 * tapes that should hold the same set: an arm, a lower level or another engine's dump may lack it. "INCOMPLETE": the same,
 * but that redaction kept values from being compared. "PARTIAL": the same, or nothing yet, but a tape is damaged or rounds
 * are left after an interrupt. Else "DIFFERENT". */
const char *rpl_diff_verdict(const rpl_diff *d);
/* v is worth a line: other bits, or it could not be compared. */
bool rpl_diff_differs(const rpl_value *v);

#endif
