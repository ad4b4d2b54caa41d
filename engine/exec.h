/* Running a program on one rank: bound pointers in, ops in order. Shared by the engine and the bench. */
#ifndef ENGINE_EXEC_H
#define ENGINE_EXEC_H

#include "engine/comm.h"
#include "engine/engine.h"
#include "engine/markov_table.h"
#include "engine/plan.h"

typedef struct eng_step eng_step;
typedef err_code (*eng_op_fn)(eng_step *s, const eng_op *op, err *e);
/* The CPU implementation of a kind. */
eng_op_fn eng_op_cpu(eng_kind kind);

/* How the product of op, LINEAR, WO_A or of experts, sums. */
krn_acc eng_step_acc(const eng_step *s, const eng_op *op);

/* What an op sees of the running step. One per rank and program, made once; a step only changes the marked fields. */
struct eng_step {
    const eng_program *program;
    const eng_rank_weights *weights;
    krn_acc acc, taps_acc, exl3_acc; /* taps_acc: of main_proj; exl3_acc: of products with EXL3 weights */
    int32_t rank, n_ranks;
    eng_comm *comm;                /* NULL: one rank */
    const float *rope_freq;        /* [rope_dim / 2] */
    const krn_markov_table *markov; /* NULL: factorised. eng_step_init: the arm's rounding, no term kept */
    eng_markov_table no_terms;
    eng_op_fn *bound;              /* [n_ops]: the implementation of each op, looked up once */
    void **value;                  /* [n_values]: where each value is; inputs are set per step */
    void *arena;
    eng_plan plan;
    krn_linear_job *jobs;          /* [rows_max * n_active * 2] */
    eng_extents x;                 /* per step */
    int32_t slot[ENG_BATCH_MAX];   /* per step: where each batch entry runs; an insert uses [0] */
    bf16 *ring[ENG_BATCH_MAX][ENG_STAGES_MAX]; /* per step: batch entry's window of each stage; an insert uses [0] */
    const int32_t *forced_drafts;  /* per step: NULL, or the tokens of teacher forcing */
    int32_t poison;                /* 0, or the pattern that is put where nothing may be read (engine/poison.h) */
    struct eng_fault_run *fault;   /* NULL; a planted fault, which has put itself into bound (engine/fault.h) */
};

/* Allocates arena and scratch for up to rows_max rows and batch_max slots; rope_freq is borrowed. Of o only the
 * accumulations, the arm and how it holds its weights are used (a bench holds whole values on one rank, whatever o says of
 * ranks). ERR_NOMEM. */
MUST_USE err_code eng_step_init(eng_step *s, const eng_program *p, const eng_rank_weights *w, const eng_options *o,
                                int32_t rank, int32_t n_ranks, eng_comm *comm, const float *rope_freq, int32_t rows_max,
                                int32_t batch_max, eng_level retain, err *e);
void eng_step_fini(eng_step *s);
uint64_t eng_step_bytes(const eng_step *s);

/* Eager: ops [first, last], the tap after each op for each value it made. */
MUST_USE err_code eng_step_eager(eng_step *s, int32_t first, int32_t last, const eng_tap *tap, int32_t slot, int32_t row0,
                                 int32_t rows_total, err *e);
/* Planned: the bound list without hooks, then the tap for every retained value. */
MUST_USE err_code eng_step_planned(eng_step *s, int32_t first, eng_level retain, const eng_tap *tap, int32_t slot,
                                   int32_t row0, int32_t rows_total, err *e);

#endif
