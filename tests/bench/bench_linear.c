/* bench_linear: multiply-adds and weight bytes per second of krn_linear_ref on the shapes of an official-size draft block,
 * beside the speed at which this machine reads memory. Weights are random and lie in 4 KiB pages, as a mapped file does.
 *
 * usage: bench_linear [scalar|avx2|avx512] */
#include "kernels/linear.h"

#include "base/clock.h"
#include "base/mem.h"

#include <inttypes.h>
#include <sys/mman.h>
#ifdef _OPENMP
#include <omp.h>
#endif

typedef struct shape {
    const char *name;
    krn_wformat format;
    int32_t n, k, t;
    int32_t matrices; /* so many different ones in turn, as in the block: caches see each once */
} shape;

static const shape SHAPES[] = {
    { "expert w1  fp4", KRN_W_FP4, 2304, 5120, 1, 45 },   { "expert w2  fp4", KRN_W_FP4, 5120, 2304, 1, 45 },
    { "dense      fp8", KRN_W_FP8, 5120, 8192, 5, 4 },    { "dense      fp8", KRN_W_FP8, 5120, 8192, 1, 4 },
    { "insert     fp8", KRN_W_FP8, 1280, 5120, 128, 2 },  { "head      bf16", KRN_W_BF16, 129280, 5120, 5, 1 },
    { "markov    bf16", KRN_W_BF16, 129280, 256, 1, 5 },  { "gate      bf16", KRN_W_BF16, 128, 5120, 5, 8 },
    { "mhc fn     f32", KRN_W_F32, 24, 20480, 5, 8 },
};

static const int64_t POOL_BYTES = INT64_C(129280) * 5120 * 2;
static const int32_t X_ROWS = 128, X_K = 20480, Y_N = 129280;

static void threads_set(int n)
{
#ifdef _OPENMP
    omp_set_num_threads(n);
#else
    (void)n;
#endif
}

static double seconds_since(uint64_t start_ns) { return (double)(clock_ns() - start_ns) * 1e-9; }

static void bench_read(const uint8_t *pool, int threads)
{
    uint64_t sum = 0, start = clock_ns();
    threads_set(threads);
#pragma omp parallel for schedule(static) reduction(+ : sum)
    for (int64_t i = 0; i < POOL_BYTES / 64; i++) {
        uint64_t v[8];
        memcpy(v, pool + i * 64, sizeof v);
        for (int j = 0; j < 8; j++) sum += v[j];
    }
    double s = seconds_since(start);
    printf("read memory       threads %d  %6.2f GB/s   (checksum %016" PRIx64 ")\n", threads, (double)POOL_BYTES / s * 1e-9,
           sum);
}

static void bench_shape(const shape *s, krn_acc acc, int threads, const uint8_t *pool, const uint8_t *scales, const bf16 *x,
                        float *y)
{
    static const int BITS[] = { [KRN_W_FP8] = 8, [KRN_W_FP4] = 4, [KRN_W_BF16] = 16, [KRN_W_F32] = 32 };
    const int64_t row_bytes = (int64_t)s->k * BITS[s->format] / 8, bytes = row_bytes * s->n;
    threads_set(threads);
    double best = 1e9;
    for (int run = 0; run < 3; run++) {
        uint64_t start = clock_ns();
        for (int m = 0; m < s->matrices; m++) {
            const uint8_t *data = pool + bytes * m % (POOL_BYTES - bytes + 1) / 64 * 64;
            krn_weight w = { s->format, s->n, s->k, data, row_bytes, scales, s->k / 32 };
            krn_linear_ref(x, X_K, s->t, &w, acc, KRN_OUT_F32, y, Y_N);
        }
        double took = seconds_since(start);
        if (took < best) best = took;
    }
    double macs = (double)s->n * s->k * s->t * s->matrices;
    printf("%s [%6d x%6d] T %3d  %-7s threads %d  %7.2f GMAC/s  %6.2f GB/s  %8.2f ms each\n", s->name, (int)s->n, (int)s->k,
           (int)s->t, acc == KRN_ACC_F64 ? "f64" : "blocked", threads, macs / best * 1e-9,
           (double)bytes * s->matrices / best * 1e-9, best * 1e3 / s->matrices);
}

int main(int argc, char **argv)
{
    for (krn_isa isa = KRN_ISA_SCALAR; argc > 1 && isa < KRN_ISA_COUNT; isa++)
        if (strcmp(argv[1], krn_isa_name(isa)) == 0) krn_isa_set(isa);
    uint8_t *pool = mmap(NULL, (size_t)POOL_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint8_t *scales = mem_alloc((size_t)Y_N * 640, 1);
    bf16 *x = mem_alloc((size_t)X_ROWS * (size_t)X_K, sizeof(bf16));
    float *y = mem_alloc((size_t)X_ROWS * (size_t)Y_N, sizeof(float));
    if (pool == MAP_FAILED || !scales || !x || !y) {
        fprintf(stderr, "bench_linear: out of memory\n");
        return 5;
    }
    (void)madvise(pool, (size_t)POOL_BYTES, MADV_NOHUGEPAGE);
    uint32_t r = 1;
    for (int64_t i = 0; i < POOL_BYTES; i += 4) {
        r = r * 1664525 + 1013904223;
        put_u32(pool + i, (r & 0x0fbf0fbf) | 0x30003000); /* bf16 and f32 of 1e-9 to 1, no e4m3 NaN */
    }
    memset(scales, 120, (size_t)Y_N * 640);
    for (int64_t i = 0; i < (int64_t)X_ROWS * X_K; i++) x[i] = bf16_from_f32((float)(i * 7919 % 257) - 128.0f);

    printf("instruction set: %s\n", krn_isa_name(krn_isa_get()));
    for (int threads = 1; threads <= 2; threads++) bench_read(pool, threads);
    for (krn_acc acc = KRN_ACC_BLOCKED; acc <= KRN_ACC_F64; acc++)
        for (size_t i = 0; i < COUNT_OF(SHAPES); i++)
            for (int threads = 1; threads <= 2; threads++) bench_shape(&SHAPES[i], acc, threads, pool, scales, x, y);
    munmap(pool, (size_t)POOL_BYTES);
    free(scales);
    free(x);
    free(y);
    return 0;
}
