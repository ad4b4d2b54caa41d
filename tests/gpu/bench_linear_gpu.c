/* How long the official products of one of two ranks take: microseconds, bytes of weights, and the share of this card's own
 * copy bandwidth. Each is timed as a CUDA graph of 20 launches over enough copies of its weight that no cache serves them.
 *   bench_linear_gpu [WORD]   only products whose name has WORD in it */
#include "gpu.h"

#include "base/mem.h"
#include "kernels/experts.h"

enum { LAUNCHES = 20, REPEATS = 7, COPIES_MAX = LAUNCHES };
/* Of all copies of a weight together: several times any L2. */
static const int64_t DISTINCT_BYTES = 400000000;

static double copy_bytes_a_second;

/* A product; its i-th launch has the i-th weight, or the i-th ids into one bank. */
struct product;
typedef void launch_fn(const struct product *p, int32_t i);
typedef struct product {
    const char *name;
    launch_fn *launch;
    krn_wformat format;
    int32_t n, k, groups, rows, n_copies;
    krn_out out;
    krn_weight w[COPIES_MAX];
    krn_expert_bank bank;
    bf16 *x;
    int32_t *ids;
    void *y, *y2;
} product;

static void launch_linear(const product *p, int32_t i)
{
    err e = { 0 };
    const int64_t ldx = (int64_t)p->groups * p->k;
    gpu_ok(krn_linear_groups(p->x, ldx, p->rows, &p->w[i], p->groups, p->out, p->y, p->n, gpu_stream(), &e), &e);
}
enum { PICKS = 3 };
static const int32_t *ids_of(const product *p, int32_t i) { return p->ids + (int64_t)i * p->rows * PICKS; }
static void launch_up(const product *p, int32_t i)
{
    err e = { 0 };
    gpu_ok(krn_experts_up(p->x, ids_of(p, i), p->rows, PICKS, &p->bank, p->y, p->y2, gpu_stream(), &e), &e);
}
static void launch_down(const product *p, int32_t i)
{
    err e = { 0 };
    gpu_ok(krn_experts_down(p->x, ids_of(p, i), p->rows, PICKS, &p->bank, p->y, gpu_stream(), &e), &e);
}
static void launch_combine(const product *p, int32_t i)
{
    err e = { 0 };
    gpu_ok(krn_experts_down_combine(p->x, ids_of(p, i), p->rows, PICKS, &p->bank, NULL, p->y, gpu_stream(), &e), &e);
}

/* The i-th launch of a graph, of as many weights as there are copies. */
static void launch_copy(const void *ctx, int32_t i)
{
    const product *p = ctx;
    p->launch(p, i % p->n_copies);
}

static void report(const product *p, int64_t bytes)
{
    const double us = gpu_best_us(launch_copy, p, LAUNCHES, REPEATS), rate = (double)bytes / us * 1e6;
    printf("%-24s T %3d  %8.2f us  %8.2f MB  %6.3f TB/s  %5.1f %% of a copy\n", p->name, p->rows, us, (double)bytes * 1e-6,
           rate * 1e-12, 100 * rate / copy_bytes_a_second);
    fflush(stdout);
}

/* ---- what is timed ---- */

static int64_t row_bytes_of(krn_wformat f, int64_t k)
{
    return f == KRN_W_FP4 ? k / 2 : f == KRN_W_FP8 ? k : f == KRN_W_BF16 ? 2 * k : 4 * k;
}
static int32_t copies_for(int64_t bytes)
{
    int64_t n = (DISTINCT_BYTES + bytes - 1) / bytes;
    return n > COPIES_MAX ? COPIES_MAX : (int32_t)n;
}

static void bench_linear(const char *name, krn_wformat f, int32_t n, int32_t k, int32_t groups, krn_out out,
                         const int32_t *rows, size_t n_rows)
{
    const int64_t row = row_bytes_of(f, k), scale_rows = f == KRN_W_FP8 ? (n + 31) / 32 : f == KRN_W_FP4 ? n : 0;
    const int64_t bytes = n * row + scale_rows * (k / 32);
    product p = { .name = name, .launch = launch_linear, .format = f, .n = n, .k = k, .groups = groups, .out = out,
                  .n_copies = copies_for(bytes) };
    /* Codes and scales that are all harmless: bf16 and f32 numbers near 2^-9, e4m3 and e2m1 codes, scale 2^-9. */
    for (int32_t i = 0; i < p.n_copies; i++)
        p.w[i] = (krn_weight){ .format = f, .n = n, .k = k, .data = gpu_filled(n * row, 0x3b), .row_bytes = row,
                               .scale = gpu_filled(scale_rows * (k / 32), 118), .scale_row_bytes = k / 32 };
    p.x = gpu_filled((int64_t)128 * groups * k * 2, 0x3b);
    p.y = gpu_take((int64_t)128 * n * 4);
    for (size_t r = 0; r < n_rows; r++) {
        p.rows = rows[r];
        report(&p, bytes);
    }
    for (int32_t i = 0; i < p.n_copies; i++) {
        krn_device_free((void *)(uintptr_t)p.w[i].data);
        krn_device_free((void *)(uintptr_t)p.w[i].scale);
    }
    krn_device_free(p.x);
    krn_device_free(p.y);
}

/* Apart: every pick of a launch another expert, the most bytes a step can want; the next launch goes on with those that
 * follow. Together: as a draft's rows choose, one expert with a pick of every row, three with a third of that, eleven with
 * the rest; 15 experts for 20 rows. */
enum { EXPERTS = 128 };
static int32_t expert_of(bool together, int32_t launch, int32_t row, int32_t pick, int32_t rows)
{
    if (!together) return ((launch * rows + row) * PICKS + pick) * 37 % EXPERTS;
    const int32_t i = pick == 0 ? 0 : pick == 1 ? 1 + row % 3 : 4 + row * 7 % 11;
    return (launch * 15 + i) * 37 % EXPERTS;
}

static void bench_experts(const char *name, launch_fn *launch, krn_wformat f, int32_t n, int32_t k, bool together,
                          const int32_t *rows, size_t n_rows)
{
    const int64_t row = row_bytes_of(f, k), expert_bytes = n * row + (f == KRN_W_FP4 ? (int64_t)n * (k / 32) : 0);
    product p = { .name = name, .launch = launch, .format = f, .n = n, .k = k, .n_copies = LAUNCHES };
    err e = { 0 };
    p.bank = (krn_expert_bank){ f, EXPERTS, n, k, gpu_filled(EXPERTS * n * row, 0x3b),
                                   gpu_filled(EXPERTS * (int64_t)n * (k / 32), 118) };
    int32_t ids[LAUNCHES * 32 * PICKS];
    p.ids = gpu_take(sizeof ids);
    p.x = gpu_filled((int64_t)32 * PICKS * k * 2, 0x3b);
    p.y = gpu_take((int64_t)32 * PICKS * n * 4);
    p.y2 = gpu_take((int64_t)32 * PICKS * n * 4);
    for (size_t r = 0; r < n_rows; r++) {
        bool used[EXPERTS] = { false };
        int64_t n_used = 0;
        p.rows = rows[r];
        for (int32_t l = 0; l < LAUNCHES; l++)
            for (int32_t i = 0; i < p.rows * PICKS; i++) {
                const int32_t expert = expert_of(together, l, i / PICKS, i % PICKS, p.rows);
                ids[l * p.rows * PICKS + i] = expert;
                if (l == 0 && !used[expert]) used[expert] = true, n_used++;
            }
        gpu_ok(krn_copy(p.ids, ids, sizeof ids, gpu_stream(), &e), &e);
        gpu_wait();
        report(&p, n_used * expert_bytes);
    }
    krn_device_free((void *)(uintptr_t)p.bank.data);
    krn_device_free((void *)(uintptr_t)p.bank.scale);
    krn_device_free(p.ids);
    krn_device_free(p.x);
    krn_device_free(p.y);
    krn_device_free(p.y2);
}

int main(int argc, char **argv)
{
    static const int32_t ROWS[] = { 5, 10, 15, 20 }, INSERT_ROWS[] = { 5, 10, 15, 20, 128 };
    static const struct { const char *name; krn_wformat format; int32_t n, k, groups; krn_out out; } LINEAR[] = {
        { "wq_a", KRN_W_FP8, 1280, 5120, 1, KRN_OUT_BF16 },
        { "wkv", KRN_W_FP8, 512, 5120, 1, KRN_OUT_BF16 },
        { "wq_b", KRN_W_FP8, 16384, 1280, 1, KRN_OUT_BF16 },
        { "wo_a", KRN_W_FP8, 4096, 4096, 4, KRN_OUT_BF16 },
        { "wo_b", KRN_W_FP8, 5120, 4096, 1, KRN_OUT_F32 },
        { "shared w1", KRN_W_FP8, 1152, 5120, 1, KRN_OUT_BF16 },
        { "shared w2", KRN_W_FP8, 5120, 1152, 1, KRN_OUT_F32 },
        { "gate", KRN_W_BF16, 128, 5120, 1, KRN_OUT_F32 },
        { "mHC", KRN_W_F32, 24, 20480, 1, KRN_OUT_F32 },
        { "main_proj", KRN_W_FP8, 5120, 15360, 1, KRN_OUT_F32 },
        { "head", KRN_W_BF16, 64768, 5120, 1, KRN_OUT_F32 },
        { "wq_b expanded", KRN_W_BF16, 16384, 1280, 1, KRN_OUT_BF16 },
        { "wo_b expanded", KRN_W_BF16, 5120, 4096, 1, KRN_OUT_F32 },
    };
    static const struct {
        const char *name;
        launch_fn *launch;
        krn_wformat format;
        int32_t n, k;
        bool together;
    } BANKS[] = {
        { "up, together", launch_up, KRN_W_FP4, 2304, 5120, true },
        { "down, together", launch_down, KRN_W_FP4, 5120, 1152, true },
        { "up, apart", launch_up, KRN_W_FP4, 2304, 5120, false },
        { "down, apart", launch_down, KRN_W_FP4, 5120, 1152, false },
        { "combine, together", launch_combine, KRN_W_FP4, 5120, 1152, true },
        { "up expanded, together", launch_up, KRN_W_BF16, 2304, 5120, true },
        { "down expanded, together", launch_down, KRN_W_BF16, 5120, 1152, true },
        { "up expanded, apart", launch_up, KRN_W_BF16, 2304, 5120, false },
        { "down expanded, apart", launch_down, KRN_W_BF16, 5120, 1152, false },
    };
    const char *word = argc > 1 ? argv[1] : "";
    if (krn_device_count() == 0) return gpu_skip();
    copy_bytes_a_second = gpu_copy_speed();
    printf("copy on the device: %.3f TB/s, reads and writes\n", copy_bytes_a_second * 1e-12);
    for (size_t i = 0; i < sizeof LINEAR / sizeof *LINEAR; i++) {
        if (!strstr(LINEAR[i].name, word)) continue;
        bool insert = strcmp(LINEAR[i].name, "main_proj") == 0 || strcmp(LINEAR[i].name, "wkv") == 0;
        bench_linear(LINEAR[i].name, LINEAR[i].format, LINEAR[i].n, LINEAR[i].k, LINEAR[i].groups, LINEAR[i].out,
                     insert ? INSERT_ROWS : ROWS, insert ? 5 : 4);
    }
    for (size_t i = 0; i < sizeof BANKS / sizeof *BANKS; i++)
        if (strstr(BANKS[i].name, word))
            bench_experts(BANKS[i].name, BANKS[i].launch, BANKS[i].format, BANKS[i].n, BANKS[i].k, BANKS[i].together,
                          ROWS, 4);
    return 0;
}
