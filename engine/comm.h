/* Ranks of one process meeting: barrier, sum in rank order, best candidate.
 *
 * Every wait has a deadline; when it passes, or when a rank gives up, all ranks fail with rank, op and wait in the message
 * and the communicator stays failed. */
#ifndef ENGINE_COMM_H
#define ENGINE_COMM_H

#include "kernels/argmax.h"

typedef struct eng_comm eng_comm;

MUST_USE err_code eng_comm_open(int32_t n_ranks, uint64_t deadline_ns, eng_comm **out, err *e);
void eng_comm_close(eng_comm *c);
/* out[i] = ((r0[i] + r1[i]) + r2[i]) ...: the same bits on every rank. in and out do not overlap. op names the place. */
MUST_USE err_code eng_comm_all_reduce(eng_comm *c, int32_t rank, const float *in, float *out, int64_t n, const char *op,
                                      err *e);
/* The best of every rank's candidates, element by element: best[i] becomes the winner on all ranks. n <= ENG_COMM_BEST. */
enum { ENG_COMM_BEST = 16 };
MUST_USE err_code eng_comm_best(eng_comm *c, int32_t rank, krn_best *best, int32_t n, const char *op, err *e);
/* A rank that failed elsewhere says so, so that the others do not wait for it. */
void eng_comm_give_up(eng_comm *c, int32_t rank, const char *why);

#endif
