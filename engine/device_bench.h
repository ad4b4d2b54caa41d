/* Measuring device steps: what a step must read, how fast the card copies, how long each op takes. */
#ifndef ENGINE_DEVICE_BENCH_H
#define ENGINE_DEVICE_BENCH_H

#include "engine/device.h"
#include "kernels/device.h"

/* Bytes of weights that a draft of n_out positions reads on the group's first rank: every dense matrix, the head and the
 * mHC projections once, experts_used[stage] routed experts a stage, the Markov head once a position. Rows of embeddings,
 * windows and values are left out: they are small, and the figure is a floor. */
uint64_t eng_device_draft_bytes(const eng_device *d, int32_t n_out, const int32_t *experts_used);
/* The same of an insert, of any number of rows. */
uint64_t eng_device_insert_bytes(const eng_device *d);
/* What op i of a step's program adds to them; 0: it reads no weights that count. */
uint64_t eng_device_op_bytes(const eng_device *d, eng_step_kind step, int32_t i, int32_t n_out,
                             const int32_t *experts_used);
/* Bytes of weights of one part on the group's first rank, as loaded. */
uint64_t eng_device_part_bytes(const eng_device *d, eng_part part);
/* Memory of the group's card that is in use at this moment, by whomever. ERR_DEVICE. */
MUST_USE err_code eng_device_memory_used(const eng_device *d, uint64_t *bytes, err *e);
/* Read plus write speed of the best of several large copies on the card. ERR_DEVICE, ERR_NOMEM. */
MUST_USE err_code eng_device_copy_speed(eng_device *d, double *bytes_per_s, err *e);
/* The same on any stream, between two timed events. Only in a build with CUDA. */
MUST_USE err_code eng_copy_speed(krn_stream s, krn_event started, krn_event ended, double *bytes_per_s, err *e);
/* One eager draft, every op alone on the stream and timed by events around it: us [n_ops] of the draft program, all local
 * ranks of an op together. The host runs ahead, so launch time on the host is in none of them; an event's own time, about
 * a microsecond, is in all. */
MUST_USE err_code eng_device_profile(eng_device *d, const eng_device_draft *in, double *us, err *e);
/* The same of an insert that was run before: its ops once more, on the rows and positions that it left on the device, so
 * that no window changes. us [n_ops] of the insert program. */
MUST_USE err_code eng_device_profile_insert(eng_device *d, int32_t rows, double *us, err *e);

#endif
