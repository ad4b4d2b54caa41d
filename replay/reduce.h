/* The reducer: one op of one round as a folder that says by itself whether the op is right, on a machine that has a C
 * compiler and nothing else.
 *
 * The folder (a bundle) holds what the op read, of the weights only what it reads, what was recorded, what the twin makes
 * of it in float64 sums (mirror64), where each element may lie (replay/admissible.h), the twins' sources, a test.c of plain
 * calls to them, a Makefile and a README.md. An op is a unit as a tape shows it: a recorded value with the hidden ops
 * before it (replay/fold.h), on the inputs that the tape recorded. */
#ifndef REPLAY_REDUCE_H
#define REPLAY_REDUCE_H

#include "replay/admissible.h"

typedef struct rpl_reduce_options {
    int32_t round;
    int32_t slot;        /* of an insert; FMT_TAPE_NO_SLOT: the draft step, or the only insert of the round */
    const char *op;      /* of the op, or of a value that it writes */
    int32_t first, last; /* rows of the step; last -1: all. Those that are made together, as by attention, stay so */
    const char *folder;  /* to be made */
} rpl_reduce_options;

typedef struct rpl_reduced {
    char op[40], ops[56]; /* name; the kinds of its ops */
    int32_t slot, n_values;
    int64_t n, n_equal, n_flip, n_illegal, n_unjudged; /* elements of the op's values, of the rows taken */
    int32_t rows, rows_total;
    uint64_t bytes;       /* of the folder */
} rpl_reduced;

/* Writes o->folder, under its name when it is whole. ERR_ARG: it is there, or its .part; ERR_INPUT: no such round or op, or
 * one that is a copy alone (a ring write), or whose inputs are not on the tape; ERR_IO, ERR_NOMEM. */
MUST_USE err_code rpl_reduce(const fmt_tape *t, const eng_weights *w, const rpl_reduce_options *o, rpl_reduced *out,
                             err *e);

/* ---- for the writer of test.c ---- */

/* A bundle being written. */
typedef struct rpl_bundle {
    const rpl_forced_value *v;   /* of the op, while the forced run holds it */
    const eng_config *config;
    eng_bench *bench;
    const eng_program *program;
    const rpl_group *group;
    eng_extents x;               /* of the rows taken */
    int32_t row, entry;          /* the first row, the first batch entry taken */
    krn_acc exl3_acc;            /* of the forced run (engine/arm.h) */
    char path[512];              /* the folder under its working name */
    size_t path_bytes;
    char **file;                 /* those written, without the folder */
    size_t n_files, files_capacity;
    uint64_t bytes;
    FILE *test;                  /* the body of main, in memory */
} rpl_bundle;

/* Makes the folder under its working name. ERR_ARG: folder is there, or is no name, or a working folder is left. */
MUST_USE err_code rpl_bundle_open(rpl_bundle *b, const char *folder, err *e);
MUST_USE err_code rpl_bundle_commit(const rpl_bundle *b, const char *folder, err *e); /* gives it its name */
void rpl_bundle_remove(const rpl_bundle *b); /* takes back what was written */
void rpl_bundle_fini(rpl_bundle *b);
/* A file of the folder, of bytes or of text. One that is there already stays. */
MUST_USE err_code rpl_bundle_write(rpl_bundle *b, const char *name, const void *head, size_t head_bytes, const void *body,
                                   size_t body_bytes, err *e);
MUST_USE err_code rpl_bundle_text(rpl_bundle *b, const char *name, const char *text, err *e);
/* data/NAME.npy */
MUST_USE err_code rpl_bundle_array(rpl_bundle *b, const char *name, const fmt_tensor *t, err *e);
/* Value v in the rows taken; data: of the whole value. Its name in C into c_name (48 bytes). */
fmt_tensor rpl_bundle_slice(const rpl_bundle *b, int32_t v, const void *data);
void rpl_bundle_name(const rpl_bundle *b, int32_t v, char c_name[48]);
/* Writes the op's inputs and weights, and the calls that make its values, to b->test. */
MUST_USE err_code rpl_bundle_calls(rpl_bundle *b, err *e);
/* The sources that every bundle has. */
MUST_USE err_code rpl_bundle_sources(rpl_bundle *b, err *e);

#endif
