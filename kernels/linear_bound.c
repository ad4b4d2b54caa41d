#include "kernels/linear.h"

#include "kernels/bound_loops.h"
#include "kernels/simd_loops.h"

/* PIECE: columns of a weight row decoded at a time, on the stack, whole scale groups. JOBS: rows of x that share it. */
enum { PIECE = 1024, JOBS = 128, PARALLEL_MACS = 1 << 17 };

typedef struct loops {
    const krn_loops *decode;
    krn_dot_size_fn *dot_size;
} loops;

static loops loops_get(void)
{
#if defined(__x86_64__)
    static const loops LOOPS[KRN_ISA_COUNT] = { { &KRN_LOOPS_SCALAR, krn_dot_size_scalar },
                                                { &KRN_LOOPS_AVX2, krn_dot_size_avx2 },
                                                { &KRN_LOOPS_AVX512, krn_dot_size_avx512 } };
    return LOOPS[krn_isa_get()];
#else
    return (loops){ &KRN_LOOPS_SCALAR, krn_dot_size_scalar };
#endif
}

/* Output n of the jobs that want it. */
static void bound_output(const krn_linear_bound_job *jobs, int32_t n_jobs, int32_t n, loops l, double slack)
{
    const krn_weight *w = jobs[0].w;
    double sum[JOBS], size[JOBS];
    int32_t wanted[JOBS], n_wanted = 0;
    for (int32_t j = 0; j < n_jobs; j++)
        if (!jobs[j].need || jobs[j].need[n]) wanted[n_wanted++] = j;
    if (n_wanted == 0) return;
    for (int32_t i = 0; i < n_wanted; i++) sum[i] = size[i] = 0;
    /* FP8 slices start at multiples of 32 rows only: the piece is cut from the row's own 32. */
    const int32_t base = n / 32 * 32, base_n = w->n - base < 32 ? w->n - base : 32;
    for (int32_t k0 = 0; k0 < w->k; k0 += PIECE) {
        const int32_t k = w->k - k0 < PIECE ? w->k - k0 : PIECE;
        float row[PIECE];
        krn_weight piece = krn_weight_slice(w, base, base_n, k0, k);
        l.decode->decode_row(&piece, n - base, row);
        for (int32_t i = 0; i < n_wanted; i += KRN_BOUND_ROWS) {
            const int32_t n_rows = n_wanted - i < KRN_BOUND_ROWS ? n_wanted - i : KRN_BOUND_ROWS;
            const bf16 *x[KRN_BOUND_ROWS];
            for (int32_t t = 0; t < n_rows; t++) x[t] = jobs[wanted[i + t]].x + k0;
            l.dot_size(x, n_rows, row, k, sum + i, size + i);
        }
    }
    for (int32_t i = 0; i < n_wanted; i++) jobs[wanted[i]].y[n] = krn_span_around(sum[i], slack * size[i]);
}

void krn_linear_bound(const krn_linear_bound_job *jobs, int32_t n_jobs, krn_rule rule)
{
    if (n_jobs <= 0) return;
    const loops l = loops_get();
    const int32_t n = jobs[0].w->n, k = jobs[0].w->k;
    const double slack = krn_sum_slack(rule, k);

#pragma omp parallel if ((int64_t)n * k * n_jobs >= PARALLEL_MACS)
    for (int32_t j = 0, run; j < n_jobs; j += run) {
        for (run = 1; j + run < n_jobs && run < JOBS && jobs[j + run].w == jobs[j].w;) run++;
#pragma omp for schedule(dynamic, 16) nowait
        for (int32_t i = 0; i < n; i++) bound_output(jobs + j, run, i, l, slack);
    }
}
