/* Read bandwidth of main memory, the floor of what reads weights: the best of several passes over 1 GiB. */
#ifndef TESTS_BENCH_BANDWIDTH_H
#define TESTS_BENCH_BANDWIDTH_H

#include "base/clock.h"
#include "base/mem.h"

#ifdef _OPENMP
#include <omp.h>
#endif

static inline double bench_read_bandwidth(int threads)
{
    const size_t n = (size_t)1 << 27; /* 64-bit words */
    uint64_t *a = mem_alloc_aligned(n, sizeof *a), sink = 0;
    if (!a) return 1e9;
    for (size_t i = 0; i < n; i += 512) a[i] = i; /* touch every page */
    double best = 0;
    for (int pass = 0; pass < 5; pass++) {
        uint64_t t0 = clock_ns(), sum = 0;
#ifdef _OPENMP
#pragma omp parallel for num_threads(threads) reduction(+ : sum) schedule(static)
#endif
        for (size_t i = 0; i < n; i += 8)
            sum += a[i] ^ a[i + 1] ^ a[i + 2] ^ a[i + 3] ^ a[i + 4] ^ a[i + 5] ^ a[i + 6] ^ a[i + 7];
        double rate = (double)(n * sizeof *a) / ((double)(clock_ns() - t0) * 1e-9);
        sink ^= sum;
        if (rate > best) best = rate;
    }
    volatile uint64_t keep = sink;
    (void)keep;
    (void)threads;
    free(a);
    return best;
}

#endif
