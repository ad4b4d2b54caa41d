/* Inside the bench command: one arm under measurement. Drafts and the command line: cmd_bench.c; inserts:
 * cmd_bench_insert.c. */
#ifndef ENGINE_CMD_BENCH_H
#define ENGINE_CMD_BENCH_H

#include "engine/device_bench.h"
#include "engine/engine.h"

enum { BENCH_SLOTS = ENG_BATCH_MAX, BENCH_LIST_MAX = 16, BENCH_OP_SAMPLES = 21 };

typedef struct bench_list { int32_t n, item[BENCH_LIST_MAX]; } bench_list;

typedef struct bench {
    const eng_weights *weights;
    eng_options options;
    eng_engine *engine;
    eng_device *device;      /* NULL on the CPU */
    double copy_bytes_per_s; /* of the card; 0 on the CPU */
    double settle_s;
    int32_t samples;
    int32_t slots[BENCH_SLOTS], anchors[BENCH_SLOTS], pos[BENCH_SLOTS];
    int32_t *drafts;
    float *confidence;
    double *us, *wall_us, *op_us; /* [samples]; op_us: [BENCH_OP_SAMPLES][n_ops] */
    bool json;
} bench;

/* Taps of slot-like noise, the same for equal seeds: [rows, n_taps * dim]. */
void bench_taps(const bench *b, uint64_t seed, int32_t rows, bf16 *taps);
/* Sorts samples, which are then ready for bench_quantile. */
void bench_sort(double *samples, int32_t n);
/* By the nearest rank. */
double bench_quantile(const double *sorted, int32_t n, double q);
/* One draft of the first `batch` slots at their last positions. */
MUST_USE err_code bench_draft(bench *b, int32_t batch, int32_t n_out, const eng_tap *tap, err *e);

/* Times every op of a step alone, with profile, and prints its median and their sum. key, value: what the step was ("b" or
 * "insert_rows", and how many). */
typedef err_code (*bench_profile_fn)(bench *b, int32_t value, int32_t n_out, double *us, err *e);
MUST_USE err_code bench_ops(bench *b, eng_step_kind step, const char *key, int32_t value, int32_t n_out,
                            bench_profile_fn profile, err *e);

/* On a device: inserts of each number of rows. Prints the time on the device, the time of the call, which does not wait for
 * it, and the wall time of such an insert with a draft of its slot behind it; with ops every op too. */
MUST_USE err_code bench_inserts(bench *b, const bench_list *rows, int32_t n_out, bool ops, err *e);

#endif
