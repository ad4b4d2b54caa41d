#include "kernels/exl3_loops.h"

#include "kernels/simd_loops.h"

/* Below this many multiply-adds, waking threads costs more than it saves. */
enum { BLOCK = FMT_EXL3_BLOCK, TILE = FMT_EXL3_TILE, ROWS = KRN_TILE_T, PARALLEL_MACS = 1 << 17 };

const krn_exl3_loops *krn_exl3_loops_get(void)
{
#if defined(__x86_64__)
    static const krn_exl3_loops *const LOOPS[KRN_ISA_COUNT] = { &KRN_EXL3_SCALAR, &KRN_EXL3_AVX2, &KRN_EXL3_AVX512 };
    return LOOPS[krn_isa_get()];
#else
    return &KRN_EXL3_SCALAR;
#endif
}

/* ---- R1 to R4 ---- */

static krn_exl3_part inputs_of(const krn_weight *w, int32_t block) { return krn_exl3_part_of(block, w->exl3.k0, w->k); }

/* R1 to R3 of one block. */
static void transformed(const krn_exl3_loops *l, const bf16 *x, const krn_weight *w, int32_t block, float z[BLOCK])
{
    const krn_exl3_part in = inputs_of(w, block);
    l->input_f32(x + in.at, w->exl3.suh + block * BLOCK, in.lo, in.hi, z);
}

int32_t krn_exl3_row_exponent(const krn_exl3_loops *l, const bf16 *x, const krn_weight *w)
{
    uint32_t most = 0; /* magnitudes of floats order as their bits do, NaN above all */
    const int32_t blocks = krn_exl3_blocks_k(w);
    for (int32_t b = 0; b < blocks; b++) {
        float z[BLOCK];
        transformed(l, x, w, b, z);
        for (int i = 0; i < BLOCK; i++) {
            const uint32_t size = f32_bits(z[i]) & 0x7fffffff;
            most = size > most ? size : most;
        }
    }
    if (most == 0 || most >= 0x7f800000) return 0;
    const int32_t s = (int32_t)(most >> 23) - 127 - 14;
    return s < -100 ? -100 : s > 100 ? 100 : s;
}

void krn_exl3_row_block(const krn_exl3_loops *l, const bf16 *x, const krn_weight *w, int32_t block, int32_t s,
                        float a[BLOCK])
{
    transformed(l, x, w, block, a);
    l->round(a, ldexpf(1.0f, -s));
}

int32_t krn_exl3_input_ref(const bf16 *x, const krn_weight *w, fp16 *a)
{
    const krn_exl3_loops *l = krn_exl3_loops_get();
    const int32_t s = krn_exl3_row_exponent(l, x, w), blocks = krn_exl3_blocks_k(w);
    for (int32_t b = 0; b < blocks; b++) {
        float v[BLOCK];
        krn_exl3_row_block(l, x, w, b, s, v);
        for (int i = 0; i < BLOCK; i++) a[b * BLOCK + i] = fp16_from_f32(v[i]);
    }
    return s;
}

/* ---- products ---- */

/* A row's outputs [lo, hi) of a block: R8, or the f32 as it is. NaN is stored as the one quiet NaN. */
static void row_store(const float v[BLOCK], krn_exl3_part p, krn_out out, void *y)
{
    for (int32_t i = p.lo; i < p.hi; i++) {
        if (out == KRN_OUT_BF16) ((bf16 *)y)[p.at + i] = bf16_from_f32(v[i]);
        else ((float *)y)[p.at + i] = isnan(v[i]) ? f32_from_bits(0x7fc00000) : v[i];
    }
}

/* One column of blocks for up to ROWS rows of x. Every block's A is made again for every column: it costs little beside the
 * block's weights, and a row of it would not fit on the stack. */
static void column_f32(const krn_exl3_loops *l, const krn_linear_job *rows, int32_t n_rows, const int32_t *exponent,
                       int32_t column, krn_out out)
{
    const krn_weight *w = rows[0].w;
    const int32_t blocks = krn_exl3_blocks_k(w);
    _Alignas(64) float sum[ROWS][BLOCK], a[ROWS][BLOCK];
    for (int32_t t = 0; t < n_rows; t++)
        for (int n = 0; n < BLOCK; n++) sum[t][n] = 0;
    for (int32_t b = 0; b < blocks; b++) {
        for (int32_t t = 0; t < n_rows; t++) krn_exl3_row_block(l, rows[t].x, w, b, exponent[t], a[t]);
        for (int32_t i = 0; i < KRN_EXL3_STRIPS; i++) {
            _Alignas(64) krn_exl3_strip wq;
            krn_exl3_decode_strip(l, w, b * KRN_EXL3_STRIPS + i, column, wq);
            for (int32_t t = 0; t < n_rows; t++) l->add_f32(wq, a[t] + i * TILE, sum[t]);           /* R5 */
        }
    }
    const uint16_t *svh = w->exl3.svh + column * BLOCK;
    for (int32_t t = 0; t < n_rows; t++) {
        float y[BLOCK];
        for (int c = 0; c < BLOCK; c++) y[krn_exl3_output(c)] = sum[t][c];
        l->butterfly_f32(y);                                                                        /* R6 */
        const float unit = ldexpf(1.0f, exponent[t]);
        for (int n = 0; n < BLOCK; n++) y[n] = y[n] * KRN_EXL3_NORM * unit * f32_from_fp16(svh[n]); /* R7 */
        row_store(y, krn_exl3_part_of(column, w->exl3.n0, w->n), out, rows[t].y);
    }
}

/* The same in double: the two 1 / sqrt(128) are one exact 1 / 128. */
static void column_f64(const krn_exl3_loops *l, const krn_linear_job *rows, int32_t n_rows, int32_t column, krn_out out)
{
    const krn_weight *w = rows[0].w;
    const int32_t blocks = krn_exl3_blocks_k(w);
    _Alignas(64) double sum[ROWS][BLOCK], a[ROWS][BLOCK];
    for (int32_t t = 0; t < n_rows; t++)
        for (int n = 0; n < BLOCK; n++) sum[t][n] = 0;
    for (int32_t b = 0; b < blocks; b++) {
        const krn_exl3_part in = inputs_of(w, b);
        for (int32_t t = 0; t < n_rows; t++)
            l->input_f64(rows[t].x + in.at, w->exl3.suh + b * BLOCK, in.lo, in.hi, a[t]);
        for (int32_t i = 0; i < KRN_EXL3_STRIPS; i++) {
            _Alignas(64) krn_exl3_strip wq;
            krn_exl3_decode_strip(l, w, b * KRN_EXL3_STRIPS + i, column, wq);
            for (int32_t t = 0; t < n_rows; t++) l->add_f64(wq, a[t] + i * TILE, sum[t]);
        }
    }
    const uint16_t *svh = w->exl3.svh + column * BLOCK;
    for (int32_t t = 0; t < n_rows; t++) {
        double v[BLOCK];
        float y[BLOCK];
        for (int c = 0; c < BLOCK; c++) v[krn_exl3_output(c)] = sum[t][c];
        l->butterfly_f64(v);
        for (int n = 0; n < BLOCK; n++) y[n] = (float)(v[n] * (double)f32_from_fp16(svh[n]) / BLOCK);
        row_store(y, krn_exl3_part_of(column, w->exl3.n0, w->n), out, rows[t].y);
    }
}

void krn_exl3_grouped_ref(const krn_linear_job *jobs, int32_t n_jobs, krn_acc acc, krn_out out)
{
    const krn_exl3_loops *l = krn_exl3_loops_get();
#pragma omp parallel if ((int64_t)jobs[0].w->n * jobs[0].w->k * n_jobs >= PARALLEL_MACS)
    for (int32_t j = 0, run; j < n_jobs; j += run) {
        for (run = 1; j + run < n_jobs && run < ROWS && jobs[j + run].w == jobs[j].w;) run++;
        int32_t exponent[ROWS]; /* by every thread for itself: waiting for another costs more */
        if (acc == KRN_ACC_BLOCKED)
            for (int32_t t = 0; t < run; t++) exponent[t] = krn_exl3_row_exponent(l, jobs[j + t].x, jobs[j + t].w);
        const int32_t columns = krn_exl3_blocks_n(jobs[j].w);
#pragma omp for schedule(dynamic) nowait
        for (int32_t c = 0; c < columns; c++) {
            if (acc == KRN_ACC_F64) column_f64(l, jobs + j, run, c, out);
            else column_f32(l, jobs + j, run, exponent, c, out);
        }
    }
}

/* ---- weights ---- */

void krn_exl3_decode_ref(const krn_weight *w, float *wq)
{
    const krn_exl3_loops *l = krn_exl3_loops_get();
    const int32_t strips = krn_exl3_blocks_k(w) * KRN_EXL3_STRIPS, columns = krn_exl3_blocks_n(w);
    const int64_t n = (int64_t)columns * BLOCK;
#pragma omp parallel for schedule(static) if (n * strips * TILE >= PARALLEL_MACS)
    for (int32_t i = 0; i < strips; i++)
        for (int32_t j = 0; j < columns; j++) {
            krn_exl3_strip strip;
            krn_exl3_decode_strip(l, w, i, j, strip);
            for (int32_t k = 0; k < TILE; k++)
                for (int32_t c = 0; c < BLOCK; c++) wq[(i * TILE + k) * n + j * BLOCK + krn_exl3_output(c)] = strip[k][c];
        }
}

/* Wq of block (b, column), transformed on both sides: v[output][input], without suh, svh and 1 / 128. Exact: sums of 2^14
 * multiples of 2^-24 that are below 4. */
static void block_transformed(const krn_exl3_loops *l, const krn_weight *w, int32_t b, int32_t column, double (*v)[BLOCK])
{
    double row[BLOCK];
    for (int32_t i = 0; i < KRN_EXL3_STRIPS; i++) {
        krn_exl3_strip wq;
        krn_exl3_decode_strip(l, w, b * KRN_EXL3_STRIPS + i, column, wq);
        for (int32_t k = 0; k < TILE; k++) {
            for (int32_t c = 0; c < BLOCK; c++) row[krn_exl3_output(c)] = (double)wq[k][c];
            l->butterfly_f64(row);
            for (int32_t n = 0; n < BLOCK; n++) v[n][i * TILE + k] = row[n];
        }
    }
    for (int32_t n = 0; n < BLOCK; n++) l->butterfly_f64(v[n]);
}

/* Rows [n0, n0 + n) of w into one of out_f32, out_bf16 [n, k]. Returns how many f32 that bf16 cannot hold. */
static int64_t weight_decode(const krn_weight *w, int32_t n0, int32_t n, float *out_f32, bf16 *out_bf16)
{
    const krn_exl3_loops *l = krn_exl3_loops_get();
    const krn_weight rows = krn_weight_slice(w, n0, n, 0, w->k);
    const int32_t blocks = krn_exl3_blocks_k(&rows), columns = krn_exl3_blocks_n(&rows);
    int64_t inexact = 0;
#pragma omp parallel for schedule(dynamic) collapse(2) reduction(+ : inexact) if ((int64_t)n * w->k >= PARALLEL_MACS)
    for (int32_t c = 0; c < columns; c++)
        for (int32_t b = 0; b < blocks; b++) {
            double v[BLOCK][BLOCK];
            const krn_exl3_part in = inputs_of(&rows, b), to = krn_exl3_part_of(c, rows.exl3.n0, rows.n);
            const uint16_t *suh = rows.exl3.suh + b * BLOCK, *svh = rows.exl3.svh + c * BLOCK;
            block_transformed(l, &rows, b, c, v);
            for (int32_t i = to.lo; i < to.hi; i++) {
                const int64_t at = (int64_t)(to.at + i) * rows.k + in.at;
                const double scale = (double)f32_from_fp16(svh[i]) / BLOCK;
                for (int32_t k = in.lo; k < in.hi; k++) {
                    const float f = (float)(v[i][k] * (scale * (double)f32_from_fp16(suh[k])));
                    if (out_f32) {
                        out_f32[at + k] = f;
                        continue;
                    }
                    const bf16 h = bf16_from_f32(f);
                    out_bf16[at + k] = h;
                    inexact += !isnan(f) && f32_from_bf16(h) != f;
                }
            }
        }
    return inexact;
}

void krn_exl3_weight_f32(const krn_weight *w, int32_t n0, int32_t n, float *out) { weight_decode(w, n0, n, out, NULL); }

int64_t krn_exl3_weight_bf16(const krn_weight *w, int32_t n0, int32_t n, bf16 *out)
{
    return weight_decode(w, n0, n, NULL, out);
}
