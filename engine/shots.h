/* Shots: a step's values, kept beside the step so that somebody else can read them while the next steps run.
 *
 * A pool of shots is made once for one engine and one choice of values. Before a step the caller takes a free shot and
 * names it in the eng_tap; the step fills it. On CUDA a launch after the step's last op packs what is wanted
 * (kernels/snapshot.h) and a stream of its own brings it to pinned memory: the step's answer does not wait. On the CPU the
 * ranks copy as their ops finish (eager) or after the step (planned), and digests are taken by whoever reads. A shot holds
 * live rows only.
 *
 * Threads: take and the step belong to the engine's caller; wait, the readers and free may be called from one other thread
 * at a time per shot. */
#ifndef ENGINE_SHOTS_H
#define ENGINE_SHOTS_H

#include "engine/engine.h"
#include "formats/tape.h"

/* How much of a value a shot keeps. TOP: the 64 largest of each row of a value over the vocabulary. */
typedef enum eng_keep { ENG_KEEP_OFF = 0, ENG_KEEP_TENSOR = 1, ENG_KEEP_DIGEST = 2, ENG_KEEP_TOP = 4 } eng_keep;

typedef struct eng_shots eng_shots;
typedef struct eng_shot eng_shot;

/* keep[step][value]: a sum of eng_keep for every value of both programs; inputs and hidden values must be OFF. A window
 * ("s{k}.window", draft program only) may be TENSOR or DIGEST: rank 0's copy of the drafted slots' rings as the draft saw
 * them. depth: how many shots there are, 1 or more. max_bytes: of all of them together (0: no bound); fewer shots, at least
 * one, are made when depth would take more, see eng_shots_depth. insert_rows: the longest insert that one shot has room for
 * (inserts of more than ENG_INSERT_ROWS_MAX rows run in buckets and are joined here; a longer one than this is refused with
 * ERR_ARG when it is given a shot). The pool allocates everything now.
 * The engine is borrowed. ERR_NOMEM, ERR_DEVICE, ERR_ARG (retain of the engine is too low for a value in graph mode). */
MUST_USE err_code eng_shots_open(eng_engine *g, const uint8_t *const keep[2], int32_t depth, uint64_t max_bytes,
                                 int32_t insert_rows, eng_shots **out, err *e);
void eng_shots_close(eng_shots *s); /* all shots must be free; NULL is a no-op */
int32_t eng_shots_depth(const eng_shots *s);
uint64_t eng_shots_bytes(const eng_shots *s); /* host and device memory of the pool */

/* A free shot, or NULL when all are in use. */
eng_shot *eng_shots_take(eng_shots *s);
/* Gives it back; its data is gone. Also right for one whose step failed. */
void eng_shot_free(eng_shot *shot);

/* Waits until the bytes of the step are in host memory. ERR_DEVICE: also when the step failed, or there was none. */
MUST_USE err_code eng_shot_wait(eng_shot *shot, err *e);
/* What the step was. */
eng_step_kind eng_shot_step(const eng_shot *shot);
const eng_extents *eng_shot_extents(const eng_shot *shot); /* live; of an insert all of its rows */
/* Whether the step made the value on every rank here (an insert from main_x does not make main_x). */
bool eng_shot_has(const eng_shot *shot, int32_t value);
/* After wait; rank is one of this process. Valid until free. Shapes are one rank's. A window's are those of batch entry b
 * (b = 0 for other values), whatever the rank. What is asked for must be what the pool keeps of the value. */
void eng_shot_tensor(const eng_shot *shot, int32_t rank, int32_t value, int32_t b, fmt_tensor *out);
/* row_digest [krn_digest_rows of the value], owned by the shot. Where the shot has the value whole (on the CPU, or where
 * TENSOR is kept too) it is computed now, at every call. */
void eng_shot_digest(eng_shot *shot, int32_t rank, int32_t value, int32_t b, const uint64_t **row_digest, uint64_t *n_rows,
                     uint64_t *digest, fmt_stats *stats);
/* The largest entries over all ranks' columns joined: values and ids [rows, k], rows as of the whole value without its last
 * dimension; k <= 64 is returned. Only where every rank is in this process. */
int32_t eng_shot_top(eng_shot *shot, int32_t value, const float **values, const int32_t **ids, int64_t *rows);

/* What capture cost so far, without waiting for the device: on the engine's caller or its ranks, of all shots; on the
 * device, of those that were waited for (n_timed). */
typedef struct eng_shot_cost { uint64_t host_ns, device_ns, bytes, n_shots, n_timed; } eng_shot_cost;
eng_shot_cost eng_shots_cost(const eng_shots *s);

#endif
