/* How two shots of the same step of one pool differ, bit for bit. Both were waited for. */
#ifndef SERVE_SHOT_COMPARE_H
#define SERVE_SHOT_COMPARE_H

#include "engine/shots.h"

typedef struct srv_shot_difference {
    int32_t values, differing;     /* values compared (all ranks and windows of one count once), and those that differ */
    char first[40];                /* name of the first one */
    int32_t rank, entry;           /* where: rank, and batch entry of a window */
    int64_t element;               /* first element that differs, row-major */
} srv_shot_difference;
void srv_shots_compare(const eng_program *p, eng_shot *a, eng_shot *b, int32_t first_rank, int32_t end_rank,
                       srv_shot_difference *out);

#endif
