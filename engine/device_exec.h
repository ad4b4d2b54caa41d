/* Inside the CUDA backend: what its ops see of a running step. Shared by device.c (memory), device_step.c (steps and the
 * state between them), device_exec.c (order, lanes, graphs), device_ops.c (one function per op kind) and device_shots.c. */
#ifndef ENGINE_DEVICE_EXEC_H
#define ENGINE_DEVICE_EXEC_H

#include "engine/device.h"
#include "engine/device_comm.h"
#include "engine/device_weights.h"
#include "engine/dispatch.h"
#include "engine/markov_table.h"
#include "kernels/argmax.h"

enum { ENG_DEVICE_LANES = 4, ENG_DEVICE_BUCKETS = 5, ENG_DEVICE_UNIT_OPS = 5 };
/* A step's small inputs: positions of an insert's rows, or a draft's anchors and last positions; then slots. An insert's
 * rows follow at ENG_DEVICE_IN_BYTES, so that one copy brings all of it. */
enum { ENG_DEVICE_IN_POS = 0, ENG_DEVICE_IN_ANCHOR = 0, ENG_DEVICE_IN_LAST = ENG_BATCH_MAX,
       ENG_DEVICE_IN_SLOT = ENG_INSERT_ROWS_MAX, ENG_DEVICE_IN_COUNT = ENG_INSERT_ROWS_MAX + ENG_BATCH_MAX,
       ENG_DEVICE_IN_BYTES = 1024 };
_Static_assert(ENG_DEVICE_IN_COUNT * sizeof(int32_t) <= ENG_DEVICE_IN_BYTES, "a step's small inputs have room");

typedef struct eng_device_run eng_device_run;
typedef struct eng_device_rank eng_device_rank;
/* A fused launch for one rank: op[0], op[1], ... of a unit. */
typedef err_code (*eng_device_fused_fn)(const eng_device_run *r, const eng_device_rank *k, const eng_op *const *op,
                                        krn_stream s, err *e);
/* What a graph launches at once: an op, some that a fused kernel runs to the same bits, or two sums over ranks. */
typedef struct eng_device_unit {
    int32_t n, op[ENG_DEVICE_UNIT_OPS]; /* indices, ascending */
    eng_device_fused_fn fn;             /* of a fusion; else NULL */
    int32_t stand;                      /* the op of the program in whose place it runs */
    int32_t lane;
    int32_t n_waits, wait[ENG_DEVICE_LANES]; /* units of other lanes that it waits for; at most one of each lane */
    krn_event done;
} eng_device_unit;

/* One rank's memory on the device. */
struct eng_device_rank {
    int32_t rank;
    eng_device_weights *weights;
    void *arena[2];      /* by eng_step_kind: all values of the step */
    void **value[2];     /* [n_values]; a value without memory (state) is NULL */
    uint64_t *offset[2]; /* [n_values]: where it is in the arena and in the shadow, UINT64_MAX: nowhere */
    uint8_t *shadow[2];  /* pinned: what taps are shown */
    bf16 *rings;         /* [n_slots][n_stages][window][head_dim] */
    eng_markov_table markov; /* .row, .term: device memory */
    uint32_t *experts;       /* of a kx2 arm: how far its fused launches are (kernels/experts_kx2.h) */
};

/* A captured step. */
typedef struct eng_device_graph {
    krn_graph *graph; /* NULL: not captured yet */
    int64_t launches; /* kernels that the capture launched */
} eng_device_graph;

struct eng_device {
    int32_t device, n_local, n_ranks, n_slots;
    eng_device_rank rank[ENG_RANKS_MAX]; /* [n_local] */
    eng_config config;
    eng_options options;
    eng_level retain;
    const eng_program *program[2];
    int32_t taps;               /* value of the insert: its rows */
    int32_t drafts, confidence; /* values of the draft: its answer */
    eng_device_comm *comm; /* NULL: one rank */
    float *rope_freq;
    int32_t *inputs[2];    /* device, by eng_step_kind: [ENG_DEVICE_IN_COUNT]; an insert's rows behind */
    /* Inserts are not waited for: two sets of what the host fills take turns, each free again once it was taken. */
    uint8_t *host[2];      /* pinned image of an insert's inputs and rows, or of a draft's inputs */
    krn_event taken[2];
    int32_t turn;          /* the set of this step */
    /* Where products with EXL3 weights work, by eng_step_kind and lane: what may run at the same time never shares one. No
     * memory: the arm has none. */
    krn_exl3_scratch exl3[2][ENG_DEVICE_LANES];
    krn_best *best[2];     /* [n_ranks][batch][KRN_MARKOV_PARTS]: candidates for a token, of even and odd positions */
    krn_stream lane[ENG_DEVICE_LANES], side;
    /* Drafts run on lane 0. What writes windows, inserts above all, has a stream of its own, so that a draft need not wait
     * for it before it reads one: stream[], by eng_step_kind. */
    krn_stream stream[2];
    krn_event written;     /* of that stream: windows are as the calls so far left them */
    krn_event read;        /* of lane 0: the last draft whose windows a shot keeps has been kept */
    bool reading;          /* read was recorded, and stream[ENG_STEP_INSERT] does not follow it yet */
    eng_dispatch dispatch; /* of a kx2 arm */
    eng_device_unit *unit[2]; /* [n_units], in the order in which they are captured */
    int32_t n_units[2];
    int32_t *unit_of[2];   /* [n_ops] */
    /* joined: the end of side, then of lanes 1, 2, ...; the last one: a lane has reached a collective. */
    krn_event fork, joined[ENG_DEVICE_LANES + 1], started, ended;
    krn_event answered;    /* of a step whose values are kept: what the caller waits for */
    int32_t *mark;         /* pinned: the collective that the stream reached last */
    uint64_t deadline_ns;
    eng_device_graph draft[ENG_BATCH_MAX][ENG_BLOCK_MAX]; /* by batch - 1, n_out - 1 */
    eng_device_graph insert[ENG_DEVICE_BUCKETS];
    int64_t launches;      /* of the last eager step */
    bool ran;              /* started and ended are a step's */
    bool touched;          /* every kernel was loaded, the ranks met */
    uint64_t bytes;
    err_code failed;       /* of an earlier step: no other runs */
};

/* A step as its ops see it. */
struct eng_device_run {
    eng_device *d;
    const eng_program *program;
    eng_extents x; /* rows: of the bucket in a captured insert */
};

/* One rank's op. k is the rank. */
typedef err_code (*eng_device_fn)(const eng_device_run *r, const eng_device_rank *k, const eng_op *op, krn_stream s,
                                  err *e);
/* An op in which the ranks meet: called once for all local ranks. */
typedef err_code (*eng_device_meet_fn)(const eng_device_run *r, const eng_op *op, krn_stream s, err *e);
/* Exactly one of the two is set for every kind. */
typedef struct eng_device_op { eng_device_fn one; eng_device_meet_fn all; } eng_device_op;
eng_device_op eng_op_cuda(eng_kind kind);
/* The fused kernels there are: kinds of ops that hang together, and what runs them. Longer ones come before their
 * beginnings. */
enum { ENG_DEVICE_BESIDE = -1 };
typedef struct eng_device_fusion {
    int32_t n;
    eng_kind kind[ENG_DEVICE_UNIT_OPS];
    /* How op[i] hangs on those before it: the input by which it takes the first output of op[i - 1]; or BESIDE: it begins
     * another branch, of op[0]'s stage, whose first input op[0] takes too, or the unit makes that makes op[0]'s. */
    int32_t by[ENG_DEVICE_UNIT_OPS];
    bool (*fits)(const eng_device *d, const eng_program *p, const eng_op *const *op); /* NULL: always */
    eng_device_fused_fn fn;
} eng_device_fusion;
extern const eng_device_fusion ENG_DEVICE_FUSIONS[];
extern const size_t ENG_DEVICE_N_FUSIONS;

/* Where the step's slots are in device memory: [ENG_BATCH_MAX] */
const int32_t *eng_device_slots(const eng_device_run *r);

/* Puts ops [first, n_ops) on the step's stream: one after another, each with its own kernel (eager), or recorded as a
 * graph of units with independent ones side by side. The bits are the same. Nothing waits. A draft follows `written` at its
 * start, or as a graph where it first reads a window; an insert records it. */
MUST_USE err_code eng_device_launch(const eng_device_run *r, int32_t first, err *e);
MUST_USE err_code eng_device_capture(const eng_device_run *r, eng_device_graph *g, err *e);
/* One op of every local rank. */
MUST_USE err_code eng_device_launch_op(const eng_device_run *r, int32_t i, krn_stream s, err *e);
/* Units, lanes and events of a program. */
MUST_USE err_code eng_device_units_make(eng_device *d, eng_step_kind step, err *e);

#endif
