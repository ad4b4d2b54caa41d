/* Inside shots: what a pool and a shot are. shots.c makes, fills and waits for them, shots_read.c shows what they hold. */
#ifndef ENGINE_SHOTS_STATE_H
#define ENGINE_SHOTS_STATE_H

#include "engine/device_shots.h"

struct eng_shot {
    eng_shots *pool;
    int32_t index;      /* in the pool */
    bool used;          /* atomic: taken by the caller, freed by another thread */
    bool whole, landed; /* the step went well; its bytes are here */
    eng_step_kind step;
    int32_t first_op, table, n_parts; /* n_parts: buckets of the insert, 1 of a draft */
    eng_extents extents;
    krn_snap_live live;
    uint8_t *memory;                   /* CPU: everything; CUDA: inserts of several buckets, joined; else NULL */
    uint64_t bytes;                    /* of all ranks, packed */
    uint8_t *data[ENG_RANKS_MAX];      /* [n_here]: a rank's packed items */
    uint64_t *offset[ENG_RANKS_MAX];   /* [n_here][n_items] */
    uint64_t host_ns[ENG_RANKS_MAX];   /* by rank or group: they run side by side */
    uint64_t begin_ns;
    uint64_t *row_digest[ENG_RANKS_MAX];
    float *top_value;
    int32_t *top_id;
};

struct eng_shots {
    eng_engine *g;
    const eng_program *program[2];
    bool cuda;
    int32_t n_ranks, first_rank, n_here, n_groups; /* ranks of the run; of this process; devices that they are on */
    int32_t depth, insert_rows;
    uint8_t *keep[2];          /* [n_values]: eng_keep */
    uint64_t *rows_at[2];      /* [n_values + 1]: where a value's row digests begin in a shot */
    uint64_t *top_at;          /* [n_values + 1] of the draft: where its top rows begin in a shot, in rows */
    eng_shot_items items[ENG_RANKS_MAX][ENG_SHOT_TABLES]; /* [n_here] */
    eng_shot *shot;            /* [depth] */
    eng_device_shots *device[ENG_RANKS_MAX]; /* [n_groups] */
    uint64_t bytes;
    eng_shot_cost cost;        /* atomic */
};

#endif
