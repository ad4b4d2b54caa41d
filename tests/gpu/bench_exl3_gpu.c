/* How long the EXL3 products of one of two ranks take: microseconds, bytes of packed weights and weights a second, weights
 * a clock and multiprocessor, and the share of the instruction floor that this is. Each is timed as a CUDA graph of 20
 * products over enough copies of its weight that no cache serves them.
 *   bench_exl3_gpu [WORD]   only products whose name has WORD in it */
#include "gpu.h"

#include <cuda_runtime_api.h>

#include "base/mem.h"
#include "kernels/exl3.h"

enum { LAUNCHES = 20, REPEATS = 7, COPIES_MAX = LAUNCHES, PICKS = 3, EXPERTS = 128, ROWS_MAX = 20 };
/* Of all copies of a weight together: several times any L2. */
static const int64_t DISTINCT_BYTES = 400000000;
/* Of 8 weights: 8 products, 8 sums of bytes, some 12 shifts and masks, 4 to pack, at 64 a clock: what decoding alone could
 * reach where one unit did all of it. */
static const double FLOOR_WEIGHTS = 17.5;

static double clocks_a_us; /* of all multiprocessors together, at the card's highest clock */

/* A product; its i-th launch has the i-th weight, or the i-th ids into one bank. */
typedef struct product product;
typedef void launch_fn(const product *p, int32_t i);
struct product {
    const char *name;
    launch_fn *launch;
    int32_t rows, n_copies;
    krn_out out;
    krn_weight w[COPIES_MAX];
    krn_exl3_bank bank;
    bf16 *x;
    int32_t *ids;
    void *y, *y2;
    krn_exl3_scratch scratch;
};

static void launch_linear(const product *p, int32_t i)
{
    err e = { 0 };
    const krn_weight *w = &p->w[i];
    gpu_ok(krn_exl3_linear(p->x, w->k, p->rows, w, p->out, p->y, w->n, p->scratch, gpu_stream(), &e), &e);
}
static const int32_t *ids_of(const product *p, int32_t i) { return p->ids + i * p->rows * PICKS; }
static void launch_up(const product *p, int32_t i)
{
    err e = { 0 };
    gpu_ok(krn_exl3_experts_up(p->x, ids_of(p, i), p->rows, PICKS, &p->bank, p->y, p->y2, p->scratch, gpu_stream(), &e),
           &e);
}
static void launch_down(const product *p, int32_t i)
{
    err e = { 0 };
    gpu_ok(krn_exl3_experts_down(p->x, ids_of(p, i), p->rows, PICKS, &p->bank, p->y, p->scratch, gpu_stream(), &e), &e);
}

/* The i-th launch of a graph, of as many weights as there are copies. */
static void launch_copy(const void *ctx, int32_t i)
{
    const product *p = ctx;
    p->launch(p, i % p->n_copies);
}

static void report(const product *p, const char *what, int32_t bits, int64_t weights)
{
    const double us = gpu_best_us(launch_copy, p, LAUNCHES, REPEATS), a_clock = (double)weights / us / clocks_a_us;
    printf("%-12s %-10s K%d T %2d %8.2f us %8.2f MB %7.1f GB/s %7.1f Gweights/s %5.2f a clock and SM %5.1f %% of the "
           "floor\n", p->name, what, bits, p->rows, us, (double)weights * bits / 8e6, (double)weights * bits / 8e3 / us,
           (double)weights / us * 1e-3, a_clock, 100 * a_clock / FLOOR_WEIGHTS);
    fflush(stdout);
}

static void bench_linear(const char *name, int32_t bits, int32_t n, int32_t k)
{
    static const int32_t ROWS[] = { 5, 20 };
    const int64_t weights = (int64_t)n * k, bytes = weights * bits / 8, copies = (DISTINCT_BYTES + bytes - 1) / bytes;
    const uint64_t scratch = krn_exl3_linear_scratch(ROWS_MAX, n, k);
    product p = { .name = name, .launch = launch_linear, .out = KRN_OUT_F32,
                  .n_copies = copies > COPIES_MAX ? COPIES_MAX : (int32_t)copies };
    uint16_t *suh = gpu_filled(2 * k, 0x21), *svh = gpu_filled(2 * n, 0x38);
    for (int32_t i = 0; i < p.n_copies; i++)
        p.w[i] = (krn_weight){ .format = KRN_W_EXL3, .n = n, .k = k, .data = gpu_filled(bytes, (uint8_t)(0x5b + i)),
                               .row_bytes = 8 * fmt_exl3_tile_bytes(bits),
                               .exl3 = { .bits = bits, .codebook = FMT_EXL3_MUL1, .suh = suh, .svh = svh,
                                         .block_bytes = (int64_t)k / 16 * 8 * fmt_exl3_tile_bytes(bits) } };
    p.x = gpu_filled((int64_t)ROWS_MAX * k * 2, 0x3b);
    p.y = gpu_take((int64_t)ROWS_MAX * n * 4);
    p.scratch = (krn_exl3_scratch){ gpu_take((int64_t)scratch), scratch };
    for (size_t r = 0; r < sizeof ROWS / sizeof *ROWS; r++) {
        p.rows = ROWS[r];
        report(&p, "", bits, weights);
    }
    for (int32_t i = 0; i < p.n_copies; i++) krn_device_free((void *)(uintptr_t)p.w[i].data);
    krn_device_free(suh);
    krn_device_free(svh);
    krn_device_free(p.x);
    krn_device_free(p.y);
    krn_device_free(p.scratch.memory);
}

/* Picks spread evenly over `distinct` experts; the next launch takes those that follow. */
static void bench_experts(const char *name, launch_fn *launch, int32_t n, int32_t k, int32_t matrices)
{
    static const struct { int32_t rows, distinct; } CASES[] = { { 5, 3 }, { 5, 9 }, { 5, 15 }, { 20, 15 }, { 20, 45 } };
    enum { BITS = 2 };
    const int64_t weights = (int64_t)n * k;
    const uint64_t scratch = krn_exl3_experts_scratch(ROWS_MAX, PICKS, n, k);
    err e = { 0 };
    product p = { .name = name, .launch = launch, .n_copies = LAUNCHES };
    uint16_t *tiles = gpu_filled(EXPERTS * weights * BITS / 8, 0x5b), *svh = gpu_filled(EXPERTS * 2 * (int64_t)n, 0x38);
    uint16_t *suh = gpu_filled((int64_t)EXPERTS * matrices * 2 * k, 0x21);
    int32_t ids[LAUNCHES * ROWS_MAX * PICKS];
    p.bank = (krn_exl3_bank){ BITS, FMT_EXL3_MUL1, EXPERTS, n, k, tiles, suh, svh };
    p.ids = gpu_take(sizeof ids);
    p.x = gpu_filled((int64_t)ROWS_MAX * PICKS * k * 2, 0x3b);
    p.y = gpu_take((int64_t)ROWS_MAX * PICKS * n * 4);
    p.y2 = gpu_take((int64_t)ROWS_MAX * PICKS * n * 4);
    p.scratch = (krn_exl3_scratch){ gpu_take((int64_t)scratch), scratch };
    for (size_t c = 0; c < sizeof CASES / sizeof *CASES; c++) {
        const int32_t all = CASES[c].rows * PICKS;
        char what[16];
        p.rows = CASES[c].rows;
        for (int32_t l = 0; l < LAUNCHES; l++)
            for (int32_t i = 0; i < all; i++)
                ids[l * all + i] = (l * CASES[c].distinct + i % CASES[c].distinct) * 37 % EXPERTS;
        gpu_ok(krn_copy(p.ids, ids, sizeof ids, gpu_stream(), &e), &e);
        gpu_wait();
        snprintf(what, sizeof what, "%d experts", CASES[c].distinct);
        report(&p, what, BITS, CASES[c].distinct * weights);
    }
    krn_device_free(tiles);
    krn_device_free(suh);
    krn_device_free(svh);
    krn_device_free(p.ids);
    krn_device_free(p.x);
    krn_device_free(p.y);
    krn_device_free(p.y2);
    krn_device_free(p.scratch.memory);
}

int main(int argc, char **argv)
{
    static const struct { const char *name; int32_t bits, n, k; } LINEAR[] = {
        { "wq_a", 5, 1280, 5120 },      { "wkv", 5, 512, 5120 },        { "wq_b", 5, 16384, 1280 },
        { "wo_b", 5, 5120, 4096 },      { "shared w1", 5, 1152, 5120 }, { "shared w2", 5, 5120, 1152 },
        { "main_proj", 5, 5120, 15360 }, { "head", 6, 64768, 5120 },
    };
    const char *word = argc > 1 ? argv[1] : "";
    int khz = 0, n_sm = 0;
    if (krn_device_count() == 0) return gpu_skip();
    cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, 0);
    cudaDeviceGetAttribute(&n_sm, cudaDevAttrMultiProcessorCount, 0);
    clocks_a_us = khz * 1e-3 * n_sm;
    printf("%d multiprocessors, %d MHz at most\n", n_sm, khz / 1000);
    for (size_t i = 0; i < sizeof LINEAR / sizeof *LINEAR; i++)
        if (strstr(LINEAR[i].name, word)) bench_linear(LINEAR[i].name, LINEAR[i].bits, LINEAR[i].n, LINEAR[i].k);
    if (strstr("experts up", word)) bench_experts("experts up", launch_up, 2304, 5120, 2);
    if (strstr("experts down", word)) bench_experts("experts down", launch_down, 5120, 1152, 1);
    return 0;
}
