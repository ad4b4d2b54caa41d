/* How the ranks of device steps meet: sums of partials and exchange of candidates, in stream order, capturable.
 *
 * Three kinds (eng_comm_kind): NCCL, one rank a card; emulated, all ranks on one card, one stream; solo, one rank alone
 * with stand-ins that move as many bytes on the card: its results are for timing only. One rank needs none of them. */
#ifndef ENGINE_DEVICE_COMM_H
#define ENGINE_DEVICE_COMM_H

#include "engine/arm.h"
#include "kernels/device.h"

typedef struct eng_device_comm eng_device_comm;

/* Whether this build and machine can do what o wants. ERR_DEVICE says what is missing. */
MUST_USE err_code eng_device_comm_check(const eng_options *o, err *e);
/* out[eng_device_groups(o)]: NCCL has one a rank, on devices 0..n_ranks-1, or only the rank of this process, on device
 * rank % devices; the others have one in all. elems_max: of the largest all_reduce. On error all of out is NULL. */
MUST_USE err_code eng_device_comm_open_all(const eng_options *o, int64_t elems_max, eng_device_comm **out, err *e);
void eng_device_comm_close(eng_device_comm *c); /* NULL is a no-op */
/* Ends whatever is under way on this rank, so that the stream comes free, and tells ranks in other processes why; nothing
 * works afterwards. */
void eng_device_comm_abort(eng_device_comm *c, const char *why);
/* A failure that NCCL noticed or another process told of, or ERR_OK. Does not wait. A step's values count only when this
 * was asked after it: a rank that gave up may have sent anything. */
MUST_USE err_code eng_device_comm_error(eng_device_comm *c, err *e);

/* out[r][i] = ((p0[i] + p1[i]) + p2[i]) ...: the same bits on every rank and with every kind but solo. in, out: one pointer
 * for each rank of this group. */
MUST_USE err_code eng_device_comm_all_reduce(eng_device_comm *c, const float *const *in, float *const *out, int64_t n,
                                             krn_stream s, err *e);
/* Sums between begin and end may become one launch (NCCL, two ranks); elsewhere the two do nothing. */
MUST_USE err_code eng_device_comm_group_begin(eng_device_comm *c, err *e);
MUST_USE err_code eng_device_comm_group_end(eng_device_comm *c, err *e);
/* all [n_ranks][bytes]: every rank has filled its own part; afterwards all parts are there. One buffer a group. */
MUST_USE err_code eng_device_comm_gather(eng_device_comm *c, void *all, uint64_t bytes, krn_stream s, err *e);
/* "2.28.9", or "none" in a build without NCCL. */
const char *eng_device_comm_version(void);

#endif
