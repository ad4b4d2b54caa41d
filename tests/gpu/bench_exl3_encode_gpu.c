/* How many EXL3 tiles a card encodes in a second, for every number of bits, and what a draft of the official size would
 * take (routed experts K2, dense K5, head K6).
 *   bench_exl3_encode_gpu [SEAM]   default 128 */
#include "kernels/exl3_encode.h"

#include "gpu.h"

#include <stdlib.h>

enum { WEIGHTS = FMT_EXL3_TILE_WEIGHTS, TILES = 8192 };
/* 3 stages x 128 experts x 3 matrices of 2304 x 5120; dense ones; the head, 129280 x 5120: see EXL3's table of shapes. */
static const double OFFICIAL_TILES[FMT_EXL3_BITS_MAX + 1] = {
    [2] = 1152.0 * 46080,
    [5] = 3 * (3 * 46080.0 + 25600 + 10240 + 163840 + 163840) + 307200,
    [6] = 2585600,
};

int main(int argc, char **argv)
{
    err e = { 0 };
    const int32_t seam = argc > 1 ? atoi(argv[1]) : 128;
    double all = 0;
    if (krn_device_count() == 0) return gpu_skip();
    float *host = malloc((size_t)TILES * WEIGHTS * sizeof *host);
    assert_non_null(host);
    gpu_fill_f32(host, (int64_t)TILES * WEIGHTS, 1, 1.0f);
    float *w = gpu_put(host, (size_t)TILES * WEIGHTS * sizeof *w);
    float *values = gpu_put(fmt_exl3_table(FMT_EXL3_MUL1), FMT_EXL3_STATES * sizeof(float));
    uint16_t *tiles = gpu_out((size_t)TILES * 16 * FMT_EXL3_BITS_MAX * sizeof *tiles);
    double *error = gpu_out((size_t)TILES * sizeof *error);
    krn_event from, to;
    gpu_ok(krn_event_open(true, &from, &e), &e);
    gpu_ok(krn_event_open(true, &to, &e), &e);
    for (int32_t bits = 1; bits <= FMT_EXL3_BITS_MAX; bits++) {
        uint64_t bytes;
        void *scratch;
        bool done;
        double us = 0, best = 0;
        gpu_ok(krn_exl3_encode_scratch(bits, &bytes, &e), &e);
        gpu_ok(krn_device_alloc(bytes, &scratch, &e), &e);
        for (int i = 0; i < 3; i++) {
            gpu_ok(krn_event_record(from, gpu_stream(), &e), &e);
            const krn_exl3_code code = { bits, FMT_EXL3_MUL1, seam };
            gpu_ok(krn_exl3_encode_tiles(w, TILES, code, values, scratch, tiles, error, gpu_stream(), &e), &e);
            gpu_ok(krn_event_record(to, gpu_stream(), &e), &e);
            gpu_ok(krn_stream_wait(gpu_stream(), 0, &done, &e), &e);
            gpu_ok(krn_event_elapsed_us(from, to, &us, &e), &e);
            if (i == 0 || us < best) best = us;
        }
        double rate = TILES / best * 1e6, branches = rate * (256 + seam) * 65536.0;
        printf("K %d: %.0f tiles/s, %.2e branches/s, scratch %.0f MiB", bits, rate, branches, (double)bytes / 0x1p20);
        if (OFFICIAL_TILES[bits] > 0)
            printf(", %.0f official tiles in %.0f s", OFFICIAL_TILES[bits], OFFICIAL_TILES[bits] / rate);
        printf("\n");
        all += OFFICIAL_TILES[bits] / rate;
        krn_device_free(scratch);
    }
    printf("official draft, seam %d: %.0f s\n", seam, all);
    gpu_free_all();
    free(host);
    return 0;
}
