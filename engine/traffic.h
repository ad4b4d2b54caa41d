/* Synthetic traffic: a script (docs/values.md) that walks the edges of the window with several requests. */
#ifndef ENGINE_TRAFFIC_H
#define ENGINE_TRAFFIC_H

#include "engine/config.h"

enum { ENG_TRAFFIC_ROUNDS_MAX = 100000, ENG_TRAFFIC_SLOTS_MAX = 256 };

typedef struct eng_traffic_report { int64_t inserts, rows, drafts; } eng_traffic_report;

/* Writes path, streaming. Two slots arrive a round, with first prompts of 2, W-1, W/2, 2W+44, 1, W, W+1 and 3 rows (W the
 * window); each round drafts one to four of the slots, in turn, after inserting 1 .. block+1 accepted rows for each. The
 * second slot goes one row at a time past the end of its window, so that drafts run at p = W-2, W-1, W and W+1. n_out
 * alternates between block and block-1. Tap rows are a function of (seed, slot, position): normals of width 30 with outlier
 * channels that reach 280,576. rounds and slots within the limits above, else ERR_ARG. ERR_IO, ERR_NOMEM. */
MUST_USE err_code eng_traffic_write(const char *path, const eng_config *c, int64_t rounds, int64_t slots, uint64_t seed,
                                    bool quiet, eng_traffic_report *report, err *e);

#endif
