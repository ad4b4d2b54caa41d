/* Inside the bench command: arms under measurement. The command line: cmd_bench.c; an engine open and its drafts:
 * cmd_bench_arm.c; inserts: cmd_bench_insert.c; single ops and memory: cmd_bench_ops.c; repetitions compared:
 * cmd_bench_reps.c; variants of launches: cmd_bench_tune.c. What is printed: docs/bench.md. */
#ifndef ENGINE_CMD_BENCH_H
#define ENGINE_CMD_BENCH_H

#include "engine/device_bench.h"
#include "engine/dispatch.h"
#include "engine/engine.h"

enum { BENCH_SLOTS = ENG_BATCH_MAX, BENCH_LIST_MAX = 16, BENCH_OP_SAMPLES = 21, BENCH_REPS_MAX = 99 };

typedef struct bench_list { int32_t n, item[BENCH_LIST_MAX]; } bench_list;

/* What is measured of every arm. */
typedef struct bench_plan {
    bench_list batches, n_outs, rows;
    double settle_s;
    int32_t samples, reps;
    bool ops, json, quiet;
} bench_plan;

/* One arm, open. */
typedef struct bench {
    const eng_weights *weights;
    const bench_plan *plan;
    eng_options options;
    eng_engine *engine;
    eng_device *device;      /* NULL on the CPU */
    double load_s;
    double copy_bytes_per_s; /* of the card; 0 on the CPU */
    int32_t rep;             /* which repetition, from 0 */
    int32_t slots[BENCH_SLOTS], anchors[BENCH_SLOTS], pos[BENCH_SLOTS];
    int32_t experts[ENG_STAGES_MAX]; /* that bench_warm counted, by stage */
    int32_t *drafts;
    float *confidence;
    double *us, *wall_us, *op_us; /* [samples]; op_us: [BENCH_OP_SAMPLES][n_ops] */
    uint64_t opened_bytes;   /* in use on the card once it was open */
} bench;

/* Sorts samples, which are then ready for bench_quantile. */
void bench_sort(double *samples, int32_t n);
/* By the nearest rank. */
double bench_quantile(const double *sorted, int32_t n, double q);

/* ---- an arm ---- */

/* Opens the engine of b->options over b->weights and fills its slots; all else of *b but plan and rep is zero before.
 * bench_close follows, after an error too. */
MUST_USE err_code bench_open(bench *b, err *e);
void bench_close(bench *b);
/* Taps of slot-like noise, the same for equal seeds: [rows, n_taps * dim]. */
void bench_taps(const bench *b, uint64_t seed, int32_t rows, bf16 *taps);
/* One draft of the first `batch` slots at their last positions. */
MUST_USE err_code bench_draft(bench *b, int32_t batch, int32_t n_out, const eng_tap *tap, err *e);
/* One that counts the experts each stage reads: b->experts. It makes ready whatever such a draft needs. */
MUST_USE err_code bench_warm(bench *b, int32_t batch, int32_t n_out, err *e);
/* Settles, then samples, sorted: on the device b->us, on the host's clock b->wall_us (the CPU: both). */
MUST_USE err_code bench_sample(bench *b, int32_t batch, int32_t n_out, err *e);
/* All shapes, each printed; the p50 of the i-th to p50[i * stride]. */
MUST_USE err_code bench_shapes(bench *b, double *p50, int32_t stride, err *e);
/* Clocks, temperature and power of the card, printed; nothing on the CPU. when: "before", "after". */
MUST_USE err_code bench_state(const bench *b, const char *when, err *e);

/* ---- of a device: inserts, ops, memory ---- */

/* Inserts of each number of rows. Prints the time on the device, the time of the call, which does not wait for it, and the
 * wall time of such an insert with a draft of its slot behind it; with plan->ops every op too. */
MUST_USE err_code bench_inserts(bench *b, err *e);
/* Times every op of a step alone, with profile, and prints its median beside the bytes of weights it reads, and their sum.
 * key, value: what the step was ("b" or "insert_rows", and how many). */
typedef err_code (*bench_profile_fn)(bench *b, int32_t value, int32_t n_out, double *us, err *e);
MUST_USE err_code bench_ops(bench *b, eng_step_kind step, const char *key, int32_t value, int32_t n_out,
                            bench_profile_fn profile, err *e);
/* The same of drafts of every batch. */
MUST_USE err_code bench_draft_ops(bench *b, err *e);
/* What is on the card beside what plan says. */
MUST_USE err_code bench_memory(const bench *b, err *e);

/* ---- repetitions ---- */

typedef struct bench_spread { double median, min, max; } bench_spread;
/* Of one p50 a repetition, 1 <= n <= BENCH_REPS_MAX. */
bench_spread bench_spread_of(const double *p50, int32_t n);
/* "faster": the slowest repetition of a lies below the fastest of the control; "slower": the other way; else "overlap". */
const char *bench_spread_word(const bench_spread *a, const bench_spread *control);
/* arm: [n_arms] names, the first one the control; p50: [n_arms][shapes][reps], shapes in the order of bench_shapes. */
MUST_USE err_code bench_report(const bench_plan *p, const char *const *arm, int32_t n_arms, const double *p50, err *e);

/* ---- variants of launches ---- */

/* One repetition: the p50 in us of a draft of every batch with these variants. */
typedef err_code (*bench_tune_fn)(void *ctx, const eng_dispatch *d, double *us, err *e);
typedef struct bench_tuning {
    int32_t n_stages, block, reps;
    bench_list batches; /* each once */
    bench_tune_fn measure;
    void *ctx;
} bench_tuning;

/* What was found of one number of rows with one variant everywhere, and with a stage's changed. */
typedef struct bench_tuned {
    bench_spread all[BENCH_LIST_MAX][ENG_VARIANTS];                /* by batch, as listed */
    eng_variant base[BENCH_LIST_MAX];                              /* the better one of all */
    bench_spread stage[ENG_STAGES_MAX][BENCH_LIST_MAX][ENG_VARIANTS]; /* the others at base */
    eng_variant chosen[ENG_STAGES_MAX][BENCH_LIST_MAX];
} bench_tuned;
/* First all stages with the one variant against all with the other; then the better of these against itself with one
 * stage's changed, stage after stage. What there was before is replaced only by what is faster as bench_spread_word means
 * it, and before all else there is the default. Repetitions are interleaved. */
MUST_USE err_code bench_tune(const bench_tuning *t, bench_tuned *out, err *e);
/* The same with engines over w, from o's arm; prints the table and writes it to path. */
MUST_USE err_code bench_tune_arm(const eng_weights *w, const eng_options *o, const bench_plan *p, const char *path, err *e);

#endif
