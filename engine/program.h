/* The program: the draft step and the insert step as data.
 *
 * A program is a flat array of named ops over named, typed, shaped values. There is one definition of the model
 * (program_insert.c, program_draft.c) for every arm, backend, rank count and mode; running, capturing, replaying,
 * comparing and certifying are different things done to the same arrays.
 *
 * Value names and shapes are the contract of docs/values.md, e.g. "s0.attn.qr". Values whose name ends in '~' are hidden:
 * they exist inside a step (a linear's output before its norm, QDQ'd copies) and never reach a tape. */
#ifndef ENGINE_PROGRAM_H
#define ENGINE_PROGRAM_H

#include "engine/arm.h"
#include "engine/inventory.h"
#include "formats/tape.h"

/* Symbolic dimensions; the numbers come from the config, the rank count and the step. */
typedef enum eng_dim {
    ENG_DIM_1, ENG_DIM_ROWS,   /* T = block * B in a draft, P in an insert */
    ENG_DIM_B, ENG_DIM_N_OUT,
    ENG_DIM_TAPS,              /* n_taps * dim */
    ENG_DIM_DIM, ENG_DIM_HC, ENG_DIM_MIX, /* MIX = (2 + hc) * hc */
    ENG_DIM_Q, ENG_DIM_H, ENG_DIM_HD, ENG_DIM_GO, /* GO = o_groups * o_lora */
    ENG_DIM_E, ENG_DIM_K, ENG_DIM_I, ENG_DIM_V, ENG_DIM_W, ENG_DIM_COUNT
} eng_dim;

/* From which capture level on a value is kept. DEEP: only when everything is. */
typedef enum eng_level { ENG_LEVEL_OFF, ENG_LEVEL_IO, ENG_LEVEL_V1, ENG_LEVEL_DEEP, ENG_LEVEL_HIDDEN } eng_level;

typedef struct eng_value {
    char name[40];
    fmt_dtype dtype;
    int32_t ndim;
    eng_dim dim[3];
    fmt_place place;
    int32_t axis;     /* the cut axis when place is SHARDED */
    eng_level level;
    bool top_only;    /* head.logits, head.biased: shown at V1, but a V1 recorder keeps the top 64 unless asked for all */
    bool state;       /* s{k}.window: lives in the slots' rings, not in the step; never tapped, see eng_window */
    int32_t producer; /* index of the op that writes it, -1: an input of the step */
} eng_value;

/* Kinds of op; each is one primitive of kernels/ or a copy. The CPU implementations are the table in exec_ops.c. */
#define ENG_KIND_LIST(X)                                                                                        \
    X(BLOCK_IDS, "block_ids") X(EMBED, "embed") X(FIRST_PRE, "first_pre")                                       \
    X(ACT_QDQ, "act_qdq") X(LINEAR, "linear") X(RMSNORM, "rmsnorm") X(ROPE, "rope") X(ROPE_INV, "rope_inverse")\
    X(MIXES, "mhc_mixes") X(COLLAPSE, "mhc_collapse") X(EXPAND, "mhc_expand") X(ATTENTION, "attention")         \
    X(WO_A, "grouped_linear") X(ALL_REDUCE, "all_reduce") X(ROUND, "round_bf16")                                \
    X(GATE_SCORES, "gate_scores") X(TOPK, "gate_topk") X(EXPERTS_UP, "experts_w1_w3") X(EXPERTS_DOWN, "experts_w2") \
    X(SWIGLU, "swiglu") X(COMBINE_EXACT, "combine_exact") X(COMBINE_FUSED, "combine_fused")                     \
    X(MARKOV, "markov_decode") X(CONFIDENCE, "confidence") X(RING_WRITE, "ring_write")
#define X(name, text) ENG_OP_##name,
typedef enum eng_kind { ENG_KIND_LIST(X) ENG_KIND_COUNT } eng_kind;
#undef X

enum { ENG_OP_INS = 6, ENG_OP_OUTS = 4, ENG_OP_WEIGHTS = 4 };

typedef struct eng_op {
    char name[32];             /* "s0.attn.wq_a" */
    eng_kind kind;
    int32_t stage;             /* -1: none */
    int32_t n_in, n_out, n_weights;
    int32_t in[ENG_OP_INS];    /* value indices, in the order exec_ops.c reads them */
    int32_t out[ENG_OP_OUTS];
    eng_wid weight[ENG_OP_WEIGHTS];
} eng_op;

typedef enum eng_step_kind { ENG_STEP_INSERT, ENG_STEP_DRAFT } eng_step_kind;

typedef struct eng_program {
    eng_step_kind step;
    eng_config config;
    eng_combine combine;
    eng_reps reps;
    int32_t n_ranks;
    int32_t n_values, n_ops;
    eng_value *value;
    eng_op *op;
} eng_program;

/* Builds the program of a step. n_ranks and combine choose where all_reduce and round ops stand; reps where act_qdq ops
 * stand, since a product with an EXL3 weight takes its rows as they are, and how logits are rounded (NULL: official).
 * Nothing else depends on them.
 * ERR_NOMEM. */
MUST_USE err_code eng_program_make(const eng_config *c, eng_step_kind step, int32_t n_ranks, eng_combine combine,
                                   const eng_reps *reps, eng_program **out, err *e);
void eng_program_free(eng_program *p);
int32_t eng_program_find_value(const eng_program *p, const char *name); /* -1: none */
int32_t eng_program_find_op(const eng_program *p, const char *name);
const char *eng_kind_name(eng_kind k);
const char *eng_level_name(eng_level l);
bool eng_level_parse(const char *text, eng_level *out); /* off io v1 deep */

/* The numbers behind symbolic dimensions for a whole (unsharded) step. */
typedef struct eng_extents { int64_t n[ENG_DIM_COUNT]; } eng_extents;
eng_extents eng_extents_of(const eng_config *c, int32_t rows, int32_t batch, int32_t n_out);
/* Shape of value v on one rank (n_ranks 1: the whole). Vocabulary shards differ between ranks. */
void eng_value_shape(const eng_program *p, int32_t v, const eng_extents *x, int32_t rank, int32_t n_ranks,
                     int64_t shape[3]);
int64_t eng_value_elems(const eng_program *p, int32_t v, const eng_extents *x, int32_t rank, int32_t n_ranks);

#endif
