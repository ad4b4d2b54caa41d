/* How much of what was asked an analysis has looked at, said by all of them in the same words and the same JSON: the part
 * of --shard, the rounds of it that were done before an interrupt, and whether the tape was whole. */
#ifndef REPLAY_COVERAGE_H
#define REPLAY_COVERAGE_H

#include "base/cli.h"
#include "formats/tape.h"

typedef struct rpl_coverage {
    int32_t shard, n_shards;           /* 1, 1: the whole */
    int32_t n_rounds, n_rounds_wanted; /* done, of this part */
    int32_t n_rounds_all;              /* of all parts; 0: the tape has none, and no part is empty: there is no whole */
    bool interrupted;                  /* rounds are left */
    bool damaged;                      /* a tape is, or is unfinished: what is lost may be what is wrong */
} rpl_coverage;

/* --shard I/N: the I-th of N parts, from 1. text NULL: 1 of 1. ERR_ARG. */
MUST_USE err_code rpl_shard_parse(const char *text, int32_t *i, int32_t *n, err *e);

bool rpl_tape_damaged(const fmt_tape *t); /* or unfinished */
/* The same, and says so on stderr. */
bool rpl_warn_of_damage(const fmt_tape *t);

/* Returns rc; ERR_FORMAT after t was opened is a value that cannot be read: e then says how to go on without it. */
err_code rpl_say_recover(const fmt_tape *t, err_code rc, err *e);

/* A part that no round falls into, as the last ones of more parts than rounds: nothing to find, which is no fault. */
bool rpl_coverage_empty(const rpl_coverage *c);
/* What a report says in place of verdict: "EMPTY" of an empty part; "PARTIAL" where it would pass ("PASS", "SAME"), or has
 * nothing to fail by (NULL), but something was not looked at; else verdict, NULL as "FAIL". */
const char *rpl_coverage_verdict(const rpl_coverage *c, const char *verdict);
/* 0 of "PASS", "SAME", "EMPTY"; else 1. */
int rpl_coverage_exit(const char *verdict);

/* A line for each thing that was not looked at; none when all was. */
void rpl_coverage_print(const rpl_coverage *c);
/* Sets "rounds", "rounds_wanted", "partial" (true: interrupted or damaged), "damaged" and "shard" {i, n} of a report. NULL
 * is passed on; after a lack of memory j is released and NULL returned. */
json_t *rpl_coverage_json(const rpl_coverage *c, json_t *j);

#endif
