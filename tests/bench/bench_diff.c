/* bench_diff: tensor bytes per second (A's and B's together) of the metrics of `diff`, all of them, on one core, beside the
 * speed at which one core reads memory. Values are too large for the caches, as those of an official-size tape are.
 *
 * usage: bench_diff [scalar|avx2|avx512] */
#include "bandwidth.h"

#include "kernels/kernels.h"
#include "replay/metrics.h"

#include <string.h>
#include <time.h>

enum { N_BYTES = 64 << 20, PASSES = 7 }; /* of one side */

typedef struct kind { const char *name; uint32_t noise; /* largest ulp distance; 0: equal, UINT32_MAX: unrelated */ } kind;

static const kind KINDS[] = {
    { "equal", 0 }, { "every element 1 ulp off", 1 }, { "order noise, up to 16 ulps", 16 }, { "unrelated", UINT32_MAX },
};

/* Time this core spent here: what "per core" means when the machine has other work too. */
static uint64_t core_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t hash(uint64_t x)
{
    x = (x ^ x >> 33) * 0xff51afd7ed558ccdu;
    return x ^ x >> 33;
}

static void fill(fmt_dtype d, int64_t n, const kind *k, void *a, void *b)
{
    for (int64_t i = 0; i < n; i++) {
        uint64_t h = hash((uint64_t)i + 1);
        uint32_t x = f32_bits((float)((double)(int32_t)h * 0x1p-29)), shift = d == FMT_DTYPE_BF16 ? 16 : 0, y = x >> shift;
        if (k->noise == UINT32_MAX) y = f32_bits((float)((double)(int32_t)hash(h) * 0x1p-29)) >> shift;
        else if (k->noise) y += (h >> 40 & 1 ? 1u : UINT32_MAX) * (1 + (uint32_t)(h >> 41) % k->noise);
        if (d == FMT_DTYPE_BF16) ((uint16_t *)a)[i] = (uint16_t)(x >> 16), ((uint16_t *)b)[i] = (uint16_t)y;
        else ((uint32_t *)a)[i] = x, ((uint32_t *)b)[i] = y;
    }
}

int main(int argc, char **argv)
{
    for (int i = 0; argc > 1 && i < KRN_ISA_COUNT; i++)
        if (strcmp(argv[1], krn_isa_name((krn_isa)i)) == 0) krn_isa_set((krn_isa)i);
    void *a = mem_alloc_aligned(N_BYTES, 1), *b = mem_alloc_aligned(N_BYTES, 1);
    if (!a || !b) return 1;
    printf("read memory, one core: %.2f GB/s\n", bench_read_bandwidth(1) * 1e-9);
    for (int f = 0; f < 2; f++)
        for (size_t k = 0; k < COUNT_OF(KINDS); k++) {
            fmt_dtype d = f ? FMT_DTYPE_F32 : FMT_DTYPE_BF16;
            int64_t n = N_BYTES / fmt_dtype_bytes(d);
            double best = 0;
            rpl_metrics m;
            fill(d, n, &KINDS[k], a, b);
            for (int pass = 0; pass < PASSES; pass++) {
                uint64_t start = core_ns();
                rpl_metrics_of(d, a, b, n, &m);
                double rate = 2.0 * N_BYTES / (double)(core_ns() - start);
                if (rate > best) best = rate;
            }
            printf("%-7s %-5s %-28s %6.2f GB/s   (%lld differ, rel L2 %.2e)\n", krn_isa_name(krn_isa_get()),
                   fmt_dtype_name(d), KINDS[k].name, best, (long long)(m.n - m.n_equal), m.rel_l2);
        }
    free(a);
    free(b);
    return 0;
}
