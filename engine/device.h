/* The CUDA backend of the engine: the same program, other implementations of its ops, values in device memory.
 *
 * An eng_device is one thread's share of the ranks: one rank per card when they meet through NCCL, all of them on one card
 * when they are emulated, one stand-alone rank for timing (solo). engine.c decides who runs what; a build without CUDA has
 * device_none.c, which refuses.
 *
 * Every value of a step has device memory of its own (nothing is reused inside a step), so that what a tap shows after the
 * step is what the op wrote. A step allocates nothing, reads nothing back and synchronises with nobody but its
 * collectives. */
#ifndef ENGINE_DEVICE_H
#define ENGINE_DEVICE_H

#include "engine/engine.h"

typedef struct eng_device eng_device;

/* What the devices of one engine are made from; borrowed until they are closed. */
typedef struct eng_device_setup {
    const eng_weights *files;
    const eng_options *options;
    const eng_program *const *program; /* [2], by eng_step_kind */
    const float *rope_freq;            /* [rope_dim / 2] */
    int32_t n_slots;
    eng_level retain;                  /* graph mode: values up to this level are shown */
    bool quiet;
} eng_device_setup;

/* How many devices (threads) the options need in this process: n_ranks with NCCL and no bootstrap, else 1. */
int32_t eng_device_groups(const eng_options *o);
/* The CUDA device of a group. */
int32_t eng_device_index(const eng_options *o, int32_t group);
/* Whether there is a CUDA device and a build that can use it. */
bool eng_device_present(void);
/* Whether this machine can run the options. ERR_DEVICE names what is missing: a build with CUDA, devices, NCCL. */
MUST_USE err_code eng_device_check(const eng_options *o, err *e);
/* Opens all groups, out[eng_device_groups()]: loads weights, makes buffers, joins the ranks. The calling thread's device
 * changes. On error all of out is NULL. ERR_DEVICE, ERR_NOMEM, ERR_COMM (ranks that did not meet), ERR_INPUT (a weight that
 * bf16 cannot hold). */
MUST_USE err_code eng_device_open_all(const eng_device_setup *setup, eng_device **out, err *e);
void eng_device_close(eng_device *d); /* NULL is a no-op */

/* Captures the graphs of drafts of up to batch slots (n_out block-1 and block) and of inserts of up to rows rows, those
 * that are not there yet: *n_new of them. The first call also loads every kernel and connects the ranks, whatever it asks
 * for. Called on the thread of each group, all groups at once, since the ranks meet while they capture. No window changes.
 * Eager mode: nothing to do. */
MUST_USE err_code eng_device_prewarm(eng_device *d, int32_t batch, int32_t rows, int32_t *n_new, err *e);

/* One step, on the group's own thread, all groups at once. x: the rows of value `at` (taps or main_x) that ops from
 * first_op on start from. A draft returns when its answer is here, and what is to be shown was shown; what a shot keeps may
 * still be under way. An insert that nobody is shown returns at once: what goes wrong with it fails the next step. A draft
 * that follows it does not wait for it before it reads windows.
 * ERR_COMM: a collective did not finish in time; the message names rank, op and wait, and the device is of no further
 * use. */
typedef struct eng_device_insert {
    int32_t slot, first_op, at; /* at: value index */
    const bf16 *x;              /* [rows, width of at] */
    const int32_t *pos;
    int32_t rows, row0, rows_total;
} eng_device_insert;
MUST_USE err_code eng_device_run_insert(eng_device *d, const eng_device_insert *in, const eng_tap *tap, err *e);

typedef struct eng_device_draft {
    int32_t batch, n_out;
    const int32_t *slots, *anchors, *pos; /* [batch] */
} eng_device_draft;
MUST_USE err_code eng_device_run_draft(eng_device *d, const eng_device_draft *in, const eng_tap *tap, err *e);
/* What the last draft chose, n = batch * n_out of each. Every rank has the same. */
void eng_device_drafts(const eng_device *d, int32_t n, int32_t *drafts, float *confidence);

/* Zeroes a slot's windows, or copies one stage's window of rank 0 to host memory [window, head_dim]. */
MUST_USE err_code eng_device_release(eng_device *d, int32_t slot, err *e);
MUST_USE err_code eng_device_window(eng_device *d, int32_t slot, int32_t stage, bf16 *out, err *e);
/* Puts rows 0 .. rows-1 of one stage's window on every rank; the others stay. */
MUST_USE err_code eng_device_restore(eng_device *d, int32_t slot, int32_t stage, const bf16 *window, int32_t rows, err *e);

/* How long a step may wait for its collectives; a minute after open. */
void eng_device_set_deadline(eng_device *d, uint64_t deadline_ns);
uint64_t eng_device_bytes(const eng_device *d);   /* device memory it holds */
/* Kernels launched by the last eager step; by the capture of a draft's graph; kernel nodes and all nodes of that graph (0:
 * not captured). Captured launches and kernel nodes are equal, unless something escaped the capture or NCCL added its own;
 * the one node more is the wait for the windows.
 * An eager step launches more: it has no fused units. */
typedef struct eng_device_counts {
    int64_t eager_launches, captured_launches, graph_kernels, graph_nodes;
} eng_device_counts;
eng_device_counts eng_device_draft_counts(const eng_device *d, int32_t batch, int32_t n_out);
/* Time of the last step on the device, from its first op to its last, or to the end of what a shot keeps. Waits for that.
 * 0: no step, or it failed. */
double eng_device_step_us(eng_device *d);
/* "NVIDIA H200, sm_90, driver CUDA 13.0, runtime 13.0, NCCL 2.28.9", for identities: valid until the next call. A fixed
 * text in a build without CUDA. */
const char *eng_device_name(void);

#endif
