/* A group of 32 elements that went through the QDQ, judged from the spans of what went in. */
#ifndef REPLAY_JUDGE_GROUP_H
#define REPLAY_JUDGE_GROUP_H

#include "kernels/bound.h"

typedef struct rpl_group_scale {
    double scale;  /* the one of the (at most two) possible scales that explains most elements */
    bool stepped;  /* there were two */
} rpl_group_scale;

rpl_group_scale rpl_group_scale_of(const bf16 got[FMT_QDQ_GROUP], const krn_span x[FMT_QDQ_GROUP]);
/* krn_span_distance of an element's code under a scale; infinite for what is no e4m3 number times scale. */
double rpl_group_distance(bf16 got, krn_span x, double scale);

#endif
