#include "kernels/exl3_loops.h"

/* ROWS: of x that share the decoded weight; bounds the stack. */
enum { BLOCK = FMT_EXL3_BLOCK, TILE = FMT_EXL3_TILE, ROWS = 32, PARALLEL_MACS = 1 << 17 };

/* A rounding is off by KRN_U at most, and a result has many: their squares add up to no more than one deviation of what a
 * few of them reach, so that each counts this much in KRN_RULE_PARITY. The slack of a sum has such room of its own. */
static const double PARITY_ROUNDING = 4;

/* Values of a block and how far each may be off: squared in KRN_RULE_PARITY, where errors have nothing to do with each
 * other. */
typedef struct block_values { double v[BLOCK], off[BLOCK]; } block_values;

/* R6: every stage adds the errors of its two operands, and rounds. */
static void butterfly(block_values *b, krn_rule rule)
{
    const double unit = PARITY_ROUNDING * KRN_U;
    for (int stride = 1; stride < BLOCK; stride *= 2)
        for (int i = 0; i < BLOCK; i++) {
            if (i & stride) continue;
            double *p = &b->v[i], *q = &b->v[i + stride];
            const double sum = *p + *q, difference = *p - *q, off = b->off[i] + b->off[i + stride];
            *p = sum;
            *q = difference;
            if (rule == KRN_RULE_WORST) {
                b->off[i] = off + KRN_U * (fabs(sum) + off);
                b->off[i + stride] = off + KRN_U * (fabs(difference) + off);
            } else {
                b->off[i] = off + unit * sum * (unit * sum);
                b->off[i + stride] = off + unit * difference * (unit * difference);
            }
        }
}

/* Of R5, in the order of a strip; square in KRN_RULE_SHARP alone. */
typedef struct block_sums { _Alignas(64) double sum[BLOCK], size[BLOCK], square[BLOCK]; } block_sums;

/* One row's outputs of a column of blocks. */
static void bound_row(const krn_linear_bound_job *job, int32_t column, int32_t exponent, const block_sums *s, krn_rule rule)
{
    const krn_weight *w = job->w;
    const int64_t n = (int64_t)krn_exl3_blocks_k(w) * BLOCK;
    const double unit = ldexp((double)KRN_EXL3_NORM, exponent);
    block_values b;
    for (int c = 0; c < BLOCK; c++) {
        const double off = krn_sum_reach(rule, n, s->sum[c], s->size[c], s->square[c]);
        b.v[krn_exl3_output(c)] = s->sum[c];
        b.off[krn_exl3_output(c)] = rule == KRN_RULE_WORST ? off : off * off;
    }
    butterfly(&b, rule);
    const krn_exl3_part p = krn_exl3_part_of(column, w->exl3.n0, w->n);
    for (int32_t i = p.lo; i < p.hi; i++) {
        if (job->need && !job->need[p.at + i]) continue;
        const double scale = unit * (double)f32_from_fp16(w->exl3.svh[column * BLOCK + i]);
        const double off = rule == KRN_RULE_WORST ? b.off[i] : sqrt(b.off[i]);
        job->y[p.at + i] = krn_span_around(b.v[i] * scale, (off + 2 * KRN_U * (fabs(b.v[i]) + off)) * fabs(scale)); /* R7 */
    }
}

static bool wants(const krn_linear_bound_job *job, int32_t column)
{
    const krn_exl3_part p = krn_exl3_part_of(column, job->w->exl3.n0, job->w->n);
    if (!job->need) return true;
    for (int32_t i = p.lo; i < p.hi; i++)
        if (job->need[p.at + i]) return true;
    return false;
}

/* One column of blocks for the rows that want some output of it. */
static void bound_column(const krn_exl3_loops *l, const krn_linear_bound_job *jobs, int32_t n_jobs, const int32_t *exponent,
                         int32_t column, krn_rule rule)
{
    const krn_weight *w = jobs[0].w;
    block_sums s[ROWS];
    int32_t wanted[ROWS], n = 0;
    for (int32_t j = 0; j < n_jobs; j++)
        if (wants(&jobs[j], column)) wanted[n++] = j;
    if (n == 0) return;
    memset(s, 0, (size_t)n * sizeof *s);
    const int32_t blocks = krn_exl3_blocks_k(w);
    for (int32_t b = 0; b < blocks; b++) {
        _Alignas(64) float a[ROWS][BLOCK];
        for (int32_t t = 0; t < n; t++) krn_exl3_row_block(l, jobs[wanted[t]].x, w, b, exponent[wanted[t]], a[t]);
        for (int32_t i = 0; i < KRN_EXL3_STRIPS; i++) {
            _Alignas(64) krn_exl3_strip wq;
            krn_exl3_decode_strip(l, w, b * KRN_EXL3_STRIPS + i, column, wq);
            for (int32_t t = 0; t < n; t++) {
                l->add_size(wq, a[t] + i * TILE, s[t].sum, s[t].size);
                if (rule == KRN_RULE_SHARP) l->add_square(wq, a[t] + i * TILE, s[t].square);
            }
        }
    }
    for (int32_t t = 0; t < n; t++) bound_row(&jobs[wanted[t]], column, exponent[wanted[t]], &s[t], rule);
}

void krn_exl3_bound(const krn_linear_bound_job *jobs, int32_t n_jobs, krn_rule rule)
{
    const krn_exl3_loops *l = krn_exl3_loops_get();
#pragma omp parallel if ((int64_t)jobs[0].w->n * jobs[0].w->k * n_jobs >= PARALLEL_MACS)
    for (int32_t j = 0, run; j < n_jobs; j += run) {
        for (run = 1; j + run < n_jobs && run < ROWS && jobs[j + run].w == jobs[j].w;) run++;
        int32_t exponent[ROWS];
        for (int32_t t = 0; t < run; t++) exponent[t] = krn_exl3_row_exponent(l, jobs[j + t].x, jobs[j + t].w);
        const int32_t columns = krn_exl3_blocks_n(jobs[j].w);
#pragma omp for schedule(dynamic) nowait
        for (int32_t c = 0; c < columns; c++) bound_column(l, jobs + j, run, exponent, c, rule);
    }
}
