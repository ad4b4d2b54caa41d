#include "kernels/linear.h"

#include "kernels/bound_loops.h"
#include "kernels/exl3_loops.h"
#include "kernels/simd_loops.h"

/* PIECE: columns of a weight row decoded at a time, on the stack, whole scale groups. JOBS: rows of x that share it. */
enum { PIECE = 1024, JOBS = 128, PARALLEL_MACS = 1 << 17 };

typedef struct loops {
    const krn_loops *decode;
    const krn_bound_loops *bound;
} loops;

static loops loops_get(void)
{
#if defined(__x86_64__)
    static const loops LOOPS[KRN_ISA_COUNT] = { { &KRN_LOOPS_SCALAR, &KRN_BOUND_SCALAR },
                                                { &KRN_LOOPS_AVX2, &KRN_BOUND_AVX2 },
                                                { &KRN_LOOPS_AVX512, &KRN_BOUND_AVX512 } };
    return LOOPS[krn_isa_get()];
#else
    return (loops){ &KRN_LOOPS_SCALAR, &KRN_BOUND_SCALAR };
#endif
}

/* Sums over a row of the weight, of the jobs that want it. */
typedef struct sums {
    int32_t wanted[JOBS], n;
    double sum[JOBS], size[JOBS], square[JOBS];
    float size_f32[JOBS];
} sums;

/* Which of a row's sums are made: size_f32 alone; sum and size; square too. */
typedef enum wanted_sums { SIZE_F32, SUM_SIZE, SUM_SIZE_SQUARE } wanted_sums;

/* Adds up row n for the jobs that want it. */
static void sum_row(const krn_linear_bound_job *jobs, int32_t n_jobs, int32_t n, loops l, wanted_sums which, sums *s)
{
    const krn_weight *w = jobs[0].w;
    s->n = 0;
    for (int32_t j = 0; j < n_jobs; j++)
        if (!jobs[j].need || jobs[j].need[n]) s->wanted[s->n++] = j;
    if (s->n == 0) return;
    for (int32_t i = 0; i < s->n; i++) s->sum[i] = s->size[i] = s->square[i] = 0, s->size_f32[i] = 0;
    /* FP8 slices start at multiples of 32 rows only: the piece is cut from the row's own 32. */
    const int32_t base = n / 32 * 32, base_n = w->n - base < 32 ? w->n - base : 32;
    for (int32_t k0 = 0; k0 < w->k; k0 += PIECE) {
        const int32_t k = w->k - k0 < PIECE ? w->k - k0 : PIECE;
        float row[PIECE];
        krn_weight piece = krn_weight_slice(w, base, base_n, k0, k);
        l.decode->decode_row(&piece, n - base, row);
        for (int32_t i = 0; i < s->n; i += KRN_BOUND_ROWS) {
            const int32_t n_rows = s->n - i < KRN_BOUND_ROWS ? s->n - i : KRN_BOUND_ROWS;
            const bf16 *x[KRN_BOUND_ROWS];
            for (int32_t t = 0; t < n_rows; t++) x[t] = jobs[s->wanted[i + t]].x + k0;
            switch (which) {
            case SIZE_F32: l.bound->size(x, n_rows, row, k, s->size_f32 + i); break;
            case SUM_SIZE: l.bound->dot_size(x, n_rows, row, k, s->sum + i, s->size + i); break;
            case SUM_SIZE_SQUARE:
                l.bound->dot_square(x, n_rows, row, k, s->sum + i, s->size + i, s->square + i);
                break;
            }
        }
    }
}

static void sum_rows(const krn_linear_bound_job *jobs, int32_t n_jobs, krn_rule rule, wanted_sums which)
{
    const loops l = loops_get();
    const int32_t n = jobs[0].w->n, k = jobs[0].w->k;

#pragma omp parallel if ((int64_t)n * k * n_jobs >= PARALLEL_MACS)
    for (int32_t j = 0, run; j < n_jobs; j += run) {
        for (run = 1; j + run < n_jobs && run < JOBS && jobs[j + run].w == jobs[j].w;) run++;
#pragma omp for schedule(dynamic, 16) nowait
        for (int32_t i = 0; i < n; i++) {
            sums s;
            sum_row(jobs + j, run, i, l, which, &s);
            for (int32_t at = 0; at < s.n; at++) {
                const krn_linear_bound_job *job = &jobs[j + s.wanted[at]];
                if (which == SIZE_F32) job->size[i] = s.size_f32[at];
                else
                    job->y[i] = krn_span_around(s.sum[at],
                                                krn_sum_reach(rule, k, s.sum[at], s.size[at], s.square[at]));
            }
        }
    }
}

void krn_linear_bound(const krn_linear_bound_job *jobs, int32_t n_jobs, krn_rule rule)
{
    if (n_jobs <= 0) return;
    if (jobs[0].w->format == KRN_W_EXL3) krn_exl3_bound(jobs, n_jobs, rule);
    else sum_rows(jobs, n_jobs, rule, rule == KRN_RULE_SHARP ? SUM_SIZE_SQUARE : SUM_SIZE);
}

void krn_linear_size(const krn_linear_bound_job *jobs, int32_t n_jobs)
{
    if (n_jobs <= 0) return;
    CHECK(jobs[0].w->format != KRN_W_EXL3);
    sum_rows(jobs, n_jobs, KRN_RULE_PARITY, SIZE_F32);
}
