/* What the tests of kernels on a card share: memory between guard bands, hashed inputs, and the verdict of parity on an
 * element: equal to the reference's own rounding, a flip inside the bound, or illegal. A failing helper ends the test with
 * coordinates, both values in hex and decimal, and the label. */
#ifndef TESTS_GPU_H
#define TESTS_GPU_H

#include "formats/number.h"
#include "kernels/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

/* Runs a group, or says "no CUDA device" and returns 77, which ctest shows as skipped. */
#define GPU_MAIN(tests) \
    int main(void) { return krn_device_count() == 0 ? gpu_skip() : cmocka_run_group_tests(tests, NULL, NULL); }
int gpu_skip(void);
/* The stream of all launches of a test program. */
krn_stream gpu_stream(void);
/* Fails the test with e's message unless rc is ERR_OK. */
void gpu_ok(err_code rc, const err *e);

/* Device memory between two guard bands. put copies host in; out is filled with 0xa5, so that an element never written
 * shows. get waits for the stream, checks both guards and copies out. free_all ends every one of them. */
void *gpu_put(const void *host, size_t bytes);
void *gpu_out(size_t bytes);
void gpu_get(const void *dev, void *host, size_t bytes);
void gpu_free_all(void);

/* For benches. Device memory that krn_device_free frees: as it is, or all bytes of it `byte`. */
void *gpu_take(int64_t bytes);
void *gpu_filled(int64_t bytes, uint8_t byte);
void gpu_wait(void); /* for the stream; fails after 60 s */
/* A graph of `launches` calls of launch(ctx, 0), (ctx, 1), ...: the best of `repeats` runs, microseconds a launch. */
double gpu_best_us(void (*launch)(const void *ctx, int32_t i), const void *ctx, int32_t launches, int32_t repeats);
/* Bytes a second of a GiB copied on the device, read and written: both count. The best of nine. */
double gpu_copy_speed(void);

/* Inputs are a hash of (seed, index): the same on every machine. */
uint32_t gpu_hash(uint64_t seed, uint64_t i);
float gpu_unit(uint64_t seed, uint64_t i);                    /* uniform in [-1, 1) */
float gpu_normal(uint64_t seed, uint64_t i);                  /* about N(0, 1) */
void gpu_fill_bf16(bf16 *x, int64_t n, uint64_t seed, float scale);  /* scale * normal, rounded */
void gpu_fill_f32(float *x, int64_t n, uint64_t seed, float scale);

/* The verdict over many elements. exact: the sum before the op's last rounding, in double; delta: how far any order of the
 * sum may be from it (parity: 6 * 2^-24 * sqrt(n) * sum of magnitudes, plus what the op's contract allows). */
typedef struct gpu_tally {
    const char *label;
    int64_t n, equal, flip, illegal;
    double worst; /* how far a flip's exact value must move to round as it did, in deltas; below 1 is inside */
} gpu_tally;
void gpu_judge_f32(gpu_tally *t, int64_t index, double exact, double delta, float got);
void gpu_judge_bf16(gpu_tally *t, int64_t index, double exact, double delta, bf16 got);
/* Prints one line, then fails on any illegal element, on an empty tally, and when fewer than min_equal of the elements have
 * the reference's bits. */
void gpu_tally_end(const gpu_tally *t, double min_equal);
/* Fails at the first difference of n elements of elem_bytes (1, 2 or 4), naming label, index and both values in hex. */
void gpu_same(const char *label, const void *got, const void *wanted, int64_t n, size_t elem_bytes);

#endif
