/* The side of shots that a running step writes (engine/shots.h is its reader's): what is kept, and how it gets there.
 *
 * What one rank keeps of one kind of step is a table of snapshot items (kernels/snapshot.h). On CUDA the table is in device
 * memory, and a launch packs the items into the shot's buffer. On the CPU all items are copies, put one by one where the
 * same rule of layout says. A value that is copied has no other item: its digest and its top rows come from the copy. */
#ifndef ENGINE_SHOTS_FILL_H
#define ENGINE_SHOTS_FILL_H

#include "engine/device.h"
#include "engine/shots.h"
#include "kernels/snapshot.h"

enum { ENG_SHOT_TABLES = 1 + ENG_BLOCK_MAX /* the insert's, then the drafts' by n_out, as some widths depend on it */ };

typedef struct eng_shot_items {
    const eng_program *program;
    int32_t n;
    krn_snap_item *item; /* [n]; src NULL but on a device */
    int32_t *at;         /* [n_values]: item of the copy or the digest, -1: none; a window has ENG_BATCH_MAX, by entry */
    int32_t *top;        /* [n_values]: item of the top rows, -1: none */
} eng_shot_items;

/* A step begins, on the engine's caller, and ends. rows of an insert: all of its buckets. draft NULL: an insert. ERR_ARG:
 * an insert longer than the pool has room for. */
MUST_USE err_code eng_shot_begin(eng_shot *shot, const eng_engine *g, int32_t first_op, int32_t rows,
                                 const eng_device_draft *draft, err *e);
void eng_shot_end(eng_shot *shot, bool whole);

/* CPU, on the rank's thread: keeps rows [row0, ...) of value, if it is wanted. b: batch entry of a window, else 0. */
void eng_shot_put(eng_shot *shot, int32_t rank, int32_t value, int32_t b, int32_t row0, const fmt_tensor *t);
/* CUDA, on the thread of the group whose first rank is given: puts behind the step what keeps rows [row0, row0 + rows) of
 * it. Does not wait. ERR_DEVICE. */
MUST_USE err_code eng_shot_pack(eng_shot *shot, int32_t first_rank, int32_t row0, int32_t rows, err *e);

#endif
