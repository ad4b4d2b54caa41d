/* What the kinds of fault work with. Private to engine/fault*.c.
 *
 * A kind's function is called after the true op has run; inputs and outputs are in place. It changes outputs, or changes
 * inputs, weights or numbers of the step and runs the op again (eng_fault_rerun). Whatever it changed of the step is put
 * back afterwards: pointers of values, weights' views, the program, accumulation, frequencies. */
#ifndef ENGINE_FAULT_RUN_H
#define ENGINE_FAULT_RUN_H

#include "engine/exec.h"
#include "engine/fault.h"

typedef struct eng_fault_run eng_fault_run;

#define ENG_FAULT_OP(kind) (1ull << ENG_OP_##kind)

/* What must hold at an op for a kind to apply. */
enum {
    ENG_NEED_F32 = 1 << 0,      /* first output f32 */
    ENG_NEED_BF16 = 1 << 1,     /* first output bf16 */
    ENG_NEED_HEADS = 1 << 2,    /* first output has heads: [rows, heads, head_dim] */
    ENG_NEED_GROUPS = 1 << 3,   /* rows of the first output divide by 32 */
    ENG_NEED_QUANTISED = 1 << 4, /* the first weight is FP8 or FP4, and the arm keeps it so */
    ENG_NEED_FP8 = 1 << 5, ENG_NEED_FP4 = 1 << 6,
    ENG_NEED_STAGES = 1 << 7,   /* an op of a stage, of more than one */
    ENG_NEED_DRAFT = 1 << 8,    /* an op of the draft step */
    ENG_NEED_ROUTED = 1 << 9,   /* a swiglu with route weights */
    ENG_NEED_OWN_PRE = 1 << 10, /* a collapse whose sub-block has mixes of its own */
    ENG_NEED_NORM = 1 << 11,    /* the next op is the norm of this one's output */
    ENG_NEED_TWO_PICKS = 1 << 12,
    ENG_ONE_RANK = 1 << 13,     /* about one rank of several */
    ENG_RERUNS = 1 << 14,       /* runs the op again */
    ENG_WEIGHT = 1 << 15,       /* changes a copy of the first weight */
    ENG_HELD = 1 << 16,         /* wants what the outputs' buffers held before the op */
    ENG_NEED_EXL3 = 1 << 17,    /* the first weight is EXL3; data has room for what engine/misread.h makes of it */
    ENG_NEED_TWO_BLOCKS = 1 << 18, /* ... and its last rank's outputs lie in several blocks */
    ENG_NEED_LATE_SLICE = 1 << 19, /* ... and its last rank's slice begins after the first block */
};

enum { ENG_FAULT_PADDING = 64 }; /* rows that f->ring has room for beyond the window */

struct eng_fault_run {
    eng_fault *fault;
    eng_op_fn fn, next_fn;        /* the true implementations of the op, and of the norm after it */
    bool mine;                    /* this rank is to go wrong; when not, a kind that reruns must still do that */
    int32_t entry, entries;       /* chosen batch entries of a draft; all of an insert */
    int64_t runs, armed_runs;     /* steps so far that ran the op; of them, those in which it was to go wrong */
    eng_extents x_before;         /* of the previous one */
    void *scratch[ENG_OP_INS];    /* room for a changed copy of each input */
    void *input_before;           /* first input of the previous step */
    void *clean[ENG_OP_OUTS];     /* outputs of the true op */
    void *held[ENG_OP_OUTS];      /* ENG_HELD: outputs as the op finds them */
    void *before[ENG_OP_OUTS];    /* outputs as the previous step left them */
    bf16 *ring[ENG_BATCH_MAX];    /* attention: a copy to change; ring writes, [0]: as the true op left it */
    bf16 *ring_before[ENG_BATCH_MAX]; /* attention: in the previous step; ring writes, [0]: before the op */
    const bf16 *ring_before_of[ENG_BATCH_MAX]; /* where those lie */
    float *wide;                  /* [elements of the first output, or columns of the weight] */
    bool wide_valid;              /* the next op's norm takes wide */
    uint8_t *data, *scale;        /* ENG_WEIGHT: a dense copy. ENG_NEED_EXL3: data alone */
    krn_weight *view, view_true;  /* the view that was replaced; NULL: none */
    eng_program program;          /* to change */
};

/* A value as rows. */
typedef struct eng_fault_value {
    void *data;
    fmt_dtype dtype;
    size_t elem_bytes;
    int64_t rows, cols;    /* cols: elements of a row */
    int64_t first, count;  /* chosen rows: of the slot, and `row` alone if one was named */
} eng_fault_value;

eng_fault_value eng_fault_value_of(const eng_fault_run *f, const eng_step *s, int32_t v);
eng_fault_value eng_fault_out(const eng_fault_run *f, const eng_step *s, const eng_op *op, int k);
/* Input k replaced by a copy that may be changed. */
eng_fault_value eng_fault_take_in(eng_fault_run *f, eng_step *s, const eng_op *op, int k);
/* The step's config to change, used by the next rerun. */
eng_config *eng_fault_take_config(eng_fault_run *f, eng_step *s);
/* The op's first weight (of an expert: the first chosen row's first pick) replaced by a dense copy, whose data and scale
 * are f->data and f->scale. */
krn_weight *eng_fault_take_weight(eng_fault_run *f, eng_step *s, const eng_op *op);
/* Replaces the view of the op's first weight. */
void eng_fault_set_weight(eng_fault_run *f, const eng_step *s, const eng_op *op, krn_weight w);
const krn_weight *eng_fault_weight(const eng_fault_run *f, const eng_step *s, const eng_op *op);
/* Whose weight that is: that of the first chosen row's first pick. -1: the op has no experts. */
int32_t eng_fault_expert(const eng_fault_run *f, const eng_step *s, const eng_op *op);
/* A copy of the ring of batch entry b at the op's stage to change, used by the next rerun; its rows that are written. */
bf16 *eng_fault_take_ring(eng_fault_run *f, eng_step *s, const eng_op *op, int32_t b, int32_t *n_rows);
err_code eng_fault_rerun(eng_fault_run *f, eng_step *s, const eng_op *op, err *e) MUST_USE;
/* fault->index, or a number made from the op's name, below n (n >= 1). */
int64_t eng_fault_pick(const eng_fault_run *f, const eng_op *op, int64_t n);
/* The true op's f32 sums of a linear with a bf16 output into f->wide. */
void eng_fault_wide(eng_fault_run *f, const eng_step *s, const eng_op *op);

typedef struct eng_fault_table { const eng_fault_kind *kind; size_t n; } eng_fault_table;
extern const eng_fault_table ENG_FAULTS_VALUES, ENG_FAULTS_WEIGHTS, ENG_FAULTS_OPS, ENG_FAULTS_ATTENTION,
                             ENG_FAULTS_EXPERTS, ENG_FAULTS_EXL3;

#endif
