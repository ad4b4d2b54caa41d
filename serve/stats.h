/* What a worker counts, for its status. Plain data, guarded by whoever owns it. */
#ifndef SERVE_STATS_H
#define SERVE_STATS_H

#include "serve/histogram.h"
#include "serve/message.h"

typedef struct srv_stats {
    uint64_t done[SRV_OP_COUNT];          /* requests answered as asked */
    uint64_t refused[SRV_REFUSAL_COUNT];
    uint64_t abandoned;                   /* queued requests whose connection went away: not done, not answered */
    uint64_t rows;                        /* inserted */
    uint64_t steps[ENG_BATCH_MAX + 1];    /* draft steps by their slots */
    uint64_t first_insert_ns, first_step_ns; /* the first of each: what was not warm shows here */
    /* Received to begun; the engine at an insert (CUDA: until it is in the queue) and at a step; received to answered. */
    srv_histogram queue, insert, step, reply;
} srv_stats;

/* New reference; NULL: no memory. */
json_t *srv_stats_json(const srv_stats *s);
/* Bytes of memory the process has resident; 0: unknown. */
uint64_t srv_resident_bytes(void);

#endif
