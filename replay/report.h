/* Results of analyses, as their --json prints them, put together and written as text, JSON, JUnit and HTML.
 *
 * A result is one JSON object (docs/report.md); a diff is several lines, kept here as one object. Parts of --shard that
 * agree in what they judged (analysis, content and run of the tape, builds, options) become one result: counts add up,
 * lists follow each other by round, and what a verdict or a figure is made of is summed again, so that the result is the
 * one of the unsharded run. The merged object is read like any other: merging is associative, and a report of reports is a
 * report.
 *
 * What went wrong in a result is a list of issues, origins first; waivers (replay/waiver.h) speak about issues. */
#ifndef REPLAY_REPORT_H
#define REPLAY_REPORT_H

#include "formats/json.h"
#include "replay/report_merge.h"

typedef enum rpl_issue_kind { RPL_ISSUE_ORIGIN, RPL_ISSUE_OTHER, RPL_ISSUE_INHERITED } rpl_issue_kind;

typedef struct rpl_issue {
    int32_t result;            /* index */
    rpl_issue_kind kind;
    int64_t round;             /* -1: of no one round */
    char value[160];           /* names, commas between: those of an origin's outputs, a gate's key */
    char op[48];               /* "" */
    char cause[200];
    double ratio;              /* distance/delta, or a gate's figure; NaN: it has none */
    int64_t n;                 /* elements, values or rows; 1 where nothing is counted */
    int32_t waiver;            /* that covers it; -1: none */
    char refused[160];         /* why a waiver that speaks about it does not cover it; "" none does */
} rpl_issue;

typedef struct rpl_result {
    const rpl_analysis *analysis;
    json_t *json;              /* merged; owned */
    char *key;                 /* parts with the same one are parts of one result */
    char *files;               /* the first few that it came from, commas between */
    const char *verdict;       /* after rpl_report_finish: PASS WAIVED PARTIAL INCOMPLETE CONTROL-FAILS FAIL; DONE where an
                                * analysis judges nothing */
    int32_t n_issues, n_waived, n_parts; /* parts: objects that it is merged from */
} rpl_result;

struct rpl_waivers;

typedef struct rpl_report {
    rpl_result *result;        /* after finish: by analysis, tape, key */
    rpl_issue *issue;          /* after finish: by result, origins first */
    char **error;              /* "2 of 4 shards of certify a.tape are missing: 2, 4" */
    size_t n_results, n_issues, n_errors, n_files, capacity[3]; /* capacity: of result, issue, error */
    size_t n_twice;            /* the first so many errors: results that are there twice, of which the first counts */
    const struct rpl_waivers *waivers; /* borrowed; NULL: none */
    const char *verdict;       /* the worst */
} rpl_report;

/* Reads a file of results, one object or several, or every *.json of a folder. *r is zeroed before the first.
 * ERR_INPUT: not there, a folder without results, an unknown or incomplete result; ERR_FORMAT: no JSON. */
MUST_USE err_code rpl_report_read(rpl_report *r, const char *path, err *e);
/* Adds one object; where ("a.json: line 3") is for messages. j stays the caller's. ERR_INPUT as above. */
MUST_USE err_code rpl_report_add(rpl_report *r, const json_t *j, const char *file, const char *where, err *e);
/* Names what is missing, judges, applies the waivers (NULL: none; borrowed as long as r). today: "2026-01-31". */
MUST_USE err_code rpl_report_finish(rpl_report *r, struct rpl_waivers *w, const char *today, err *e);
/* 0: every result is PASS, WAIVED or DONE, there is one, and there is no error. Else 1. */
int rpl_report_exit(const rpl_report *r);
void rpl_report_fini(rpl_report *r);

/* The tape's name as the result has it ("a.tape", "a.tape, b.tape"), and what ran, in words ("native-packed, cpu, eager,
 * blocked, exact, tp 2"; "" unknown), into buf. Return buf. */
const char *rpl_result_tape(const rpl_result *r, char *buf, size_t buf_bytes);
const char *rpl_result_run(const rpl_result *r, char *buf, size_t buf_bytes);
/* One line of figures: "2263632 elements in 8 rounds: 2190263 equal, 73369 flips, 0 illegal". */
const char *rpl_result_figures(const rpl_result *r, char *buf, size_t buf_bytes);

/* ---- output ---- */
void rpl_report_text(const rpl_report *r, bool all, bool color, FILE *out);
/* One line a result, merged, and a last one of type "report", which readers skip. */
MUST_USE err_code rpl_report_json(const rpl_report *r, FILE *out, err *e);
void rpl_report_junit(const rpl_report *r, FILE *out); /* one testsuite a result, one testcase an op or a gate */
void rpl_report_html(const rpl_report *r, FILE *out);  /* needs no network and no script */

/* s as XML text or attribute value: & < > " ' as entities; characters that XML forbids, and bytes that are of no whole
 * character of UTF-8, as where a text was cut, as "?". */
void rpl_escape(const char *s, FILE *out);

/* For an analysis that takes --waivers itself: judges its one result (a part of --shard stands for itself) with waivers,
 * prints on out (NULL: nothing) the issues that they speak about and those that match nothing, and sets
 * *exit_status to 0 where every issue is waived. */
MUST_USE err_code rpl_report_waive(const json_t *result, struct rpl_waivers *w, FILE *out, int *exit_status, err *e);

/* ---- between the report's files ---- */
void rpl_report_waived_text(const rpl_report *r, FILE *out); /* the issues that waivers speak about, unused waivers */
MUST_USE err_code rpl_issues_add(rpl_report *r, int32_t result, err *e); /* of one result; ERR_NOMEM */
const char *rpl_issue_kind_text(rpl_issue_kind kind);                    /* "origin" "finding" "inherited" */
const char *rpl_result_verdict(const rpl_result *r);                     /* from the merged sums alone */
/* What results come to, from good to bad: the words, how they look, whether a report with it exits with 0. */
typedef enum rpl_look { RPL_LOOK_GOOD, RPL_LOOK_NONE, RPL_LOOK_OPEN, RPL_LOOK_BAD } rpl_look;
typedef struct rpl_verdict_word { const char *text; rpl_look look; bool fine; } rpl_verdict_word;
enum { RPL_VERDICT_WORDS = 7 };
extern const rpl_verdict_word RPL_VERDICT_WORD[RPL_VERDICT_WORDS];
int rpl_badness(const char *verdict);                    /* its place there; of an unknown word behind the last */
const rpl_verdict_word *rpl_word_of(const char *verdict); /* an unknown one is as FAIL */
/* Members of JSON that may lack them, NaN and 0 then, of files that may hold anything. A real may be "nan" "inf" "-inf". A
 * count is cut to 2^53 either way, up to where every reader of JSON is exact: sums of a few cannot overflow. */
double rpl_real(const json_t *j, const char *key);
int64_t rpl_count(const json_t *j, const char *key);
double rpl_json_number(const json_t *v);

#endif
