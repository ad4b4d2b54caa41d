/* bench_diff: tensor bytes per second (A's and B's together) of `diff`, per core: bytes by processor time, user and system.
 *
 * Without tapes: the metrics, all of them, beside the speed at which one core reads memory. Values are too large for the
 * caches, as those of an official-size tape are. With tapes: the whole command, from starting it to its last line, beside
 * that speed and LZ4's own on the two tapes' frames, which both bound it: a tape has to be read and its frames decoded.
 *
 * usage: bench_diff [scalar|avx2|avx512]
 *        bench_diff SPARKTAPE A.tape B.tape
 * One command that records two tapes and times the command on them: tests/bench/diff.sh build/release */
#include "bandwidth.h"

#include <fcntl.h>
#include <lz4frame.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "formats/tape_reader.h"
#include "kernels/kernels.h"
#include "replay/compare.h"

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

static double seconds(struct timeval t) { return (double)t.tv_sec + (double)t.tv_usec * 1e-6; }

/* Processor seconds of `SPARKTAPE diff A B`, on one thread or all, its output thrown away; negative: it did not run. */
static double command_seconds(char **argv, bool one_thread, double *wall_s)
{
    char *args[] = { argv[1], "diff", argv[2], argv[3], "--quiet", one_thread ? "--threads" : NULL, "1", NULL };
    posix_spawn_file_actions_t quiet;
    pid_t child;
    int status = -1;
    struct rusage used;
    uint64_t start = clock_ns();
    posix_spawn_file_actions_init(&quiet);
    posix_spawn_file_actions_addopen(&quiet, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    bool ran = posix_spawn(&child, argv[1], &quiet, NULL, args, environ) == 0 && wait4(child, &status, 0, &used) == child;
    posix_spawn_file_actions_destroy(&quiet);
    *wall_s = (double)(clock_ns() - start) * 1e-9;
    if (!ran || !WIFEXITED(status) || WEXITSTATUS(status) > 1) return -1;
    return seconds(used.ru_utime) + seconds(used.ru_stime);
}

/* Tensor bytes that diff compares, of both sides; those of values that have the same hash in *same. */
static err_code compared_bytes(const fmt_tape *a, const fmt_tape *b, uint64_t *bytes, uint64_t *same, err *e)
{
    rpl_compare *c;
    err_code rc = ERR_OK;
    TRY(rpl_compare_open(a, b, NULL, NULL, &c, e));
    for (int32_t i = 0; rc == ERR_OK && i < rpl_compare_rounds(c); i++) {
        const rpl_round *r;
        rc = rpl_compare_round(c, i, &r, e);
        for (int32_t k = 0; rc == ERR_OK && k < r->n_values; k++)
            if (r->value[k].cls == RPL_CLASS_EQUAL)
                *same += 2 * (uint64_t)r->value[k].m.n * fmt_dtype_bytes(r->value[k].a.dtype);
        if (rc == ERR_OK) *bytes += r->n_bytes;
    }
    rpl_compare_close(c);
    return rc;
}

/* Decodes every frame of a tape with LZ4 alone: decoded bytes, and processor nanoseconds. false: it could not. */
static bool decode_frames(const fmt_tape *t, uint64_t *bytes, uint64_t *ns)
{
    static uint8_t payload[FMT_TAPE_CHUNK_BYTES];
    LZ4F_dctx *ctx;
    bool fine = !LZ4F_isError(LZ4F_createDecompressionContext(&ctx, LZ4F_VERSION));
    fmt_chunk c;
    uint64_t start = core_ns();
    const uint8_t *file = fmt_tape_map(t);
    for (uint64_t at = FMT_PRELUDE_BYTES; fine && fmt_chunk_get(file, fmt_tape_file_bytes(t), at, &c, NULL) == ERR_OK;
         at = fmt_chunk_end(&c)) {
        size_t wrote = sizeof payload, read = c.body_bytes;
        if (c.kind != FMT_CHUNK_DATA || !c.body_bytes) continue;
        fine = LZ4F_decompress(ctx, payload, &wrote, c.body, &read, NULL) == 0 && read == c.body_bytes;
        *bytes += wrote;
    }
    *ns += core_ns() - start;
    LZ4F_freeDecompressionContext(ctx);
    return fine;
}

static int whole_command(char **argv)
{
    fmt_tape *a = NULL, *b = NULL;
    err e = { 0 };
    uint64_t bytes = 0, same = 0;
    double best = 1e9, best_wall = 1e9, lz4 = 0;
    if (fmt_tape_open(argv[2], &a, &e) != ERR_OK || fmt_tape_open(argv[3], &b, &e) != ERR_OK ||
        compared_bytes(a, b, &bytes, &same, &e) != ERR_OK) {
        fprintf(stderr, "bench_diff: %s\n", e.msg);
        return 1;
    }
    for (int pass = 0; pass < PASSES; pass++) {
        double wall, used = command_seconds(argv, true, &wall);
        uint64_t decoded = 0, ns = 0;
        if (used < 0 || command_seconds(argv, false, &wall) < 0 ||
            !decode_frames(a, &decoded, &ns) || !decode_frames(b, &decoded, &ns)) {
            fprintf(stderr, "bench_diff: %s diff %s %s failed\n", argv[1], argv[2], argv[3]);
            return 1;
        }
        if (used < best) best = used;
        if (wall < best_wall) best_wall = wall;
        if ((double)decoded / (double)ns > lz4) lz4 = (double)decoded / (double)ns;
    }
    printf("whole command: %.0f MB of tensors, A and B together, %.0f%% of them equal by hash, from %.0f MB of tape\n",
           (double)bytes * 1e-6, 100 * (double)same / (double)bytes,
           (double)(fmt_tape_file_bytes(a) + fmt_tape_file_bytes(b)) * 1e-6);
    printf("  %6.2f GB/s per core: one thread, %.3f s of processor\n", (double)bytes * 1e-9 / best, best);
    printf("  %6.2f GB/s on all threads: %.3f s passed\n", (double)bytes * 1e-9 / best_wall, best_wall);
    printf("  %6.2f GB/s LZ4 alone, decoding the tapes' frames\n  %6.2f GB/s one core reading memory\n", lz4,
           bench_read_bandwidth(1) * 1e-9);
    fmt_tape_close(a);
    fmt_tape_close(b);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 4) return whole_command(argv);
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
