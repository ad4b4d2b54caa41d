/* krn_linear_ref - y[t][n] = sum_k x[t][k] * W[n][k]: every matrix product of the model, one contract.
 *
 * Shapes    x [T, K] bf16, row stride ldx; y [T, N], row stride ldy; W as krn_weight says. T >= 0, N, K >= 1
 * Formats   KRN_W_FP8   e4m3 codes [N, K], e8m0 scales [ceil(N/32), ceil(K/32)]           K % 32 == 0
 *           KRN_W_FP4   e2m1 codes [N, K/2], low nibble = even k, scales [N, K/32]        K % 32 == 0
 *           KRN_W_BF16  bf16 [N, K]
 *           KRN_W_F32   f32 [N, K] (the mHC projections)
 * Inputs    for FP8 and FP4 quantised linears x is already act_qdq'd (kernels/act_qdq.h): value = code * scale, exact in
 *           bf16. wo_a feeds plain bf16 rows to an FP8 weight: also valid, the weight is decoded exactly
 * Order     FP8, FP4, blocked: per 32-wide K block b, ascending: 16 lanes, lane i = f32(x[i]*w[i]) + f32(x[i+16]*w[i+16])
 *           with w the code value; halving tree (+8, +4, +2, +1) gives P; acc = acc + P * scale
 *           BF16, F32, blocked: lanes16 over the whole of K (kernels.h)
 *           f64, every format: lanes16 over the whole of K with exact products in double and w = code * scale
 * Rounding  R1 blocked: each f32 product, add as written (products of bf16 codes are exact); f64: one rounding of the sum
 *           to f32
 *           R2 KRN_OUT_BF16 only: f32 to bf16, nearest even. KRN_OUT_F32 stops after R1 (rank partials, logits)
 *           A NaN result is the quiet NaN 0x7fc00000 (bf16 0x7fc0), whatever its operands were
 * Aliasing  y overlaps no input; data may have any alignment, x and y have their type's
 * Rows      each y[t][n] depends on x[t] and W[n] alone
 * Threads   OpenMP over tiles of N (and over row groups in krn_linear_grouped_ref); bits do not depend on the count
 * Match     all instruction sets: bit-equal. CUDA: inside the bound of parity (order of sums), same R2 */
#ifndef KERNELS_LINEAR_H
#define KERNELS_LINEAR_H

#include "kernels/kernels.h"

typedef enum krn_wformat { KRN_W_FP8 = 0, KRN_W_FP4 = 1, KRN_W_BF16 = 2, KRN_W_F32 = 3 } krn_wformat;
typedef enum krn_out { KRN_OUT_BF16 = 0, KRN_OUT_F32 = 1 } krn_out;

/* A view of a weight, or of a rank's slice of one: borrowed, never copied. Slices along N move the pointers by rows, slices
 * along K by whole 32-groups; the strides stay those of the whole. */
typedef struct krn_weight {
    krn_wformat format;
    int32_t n, k;               /* rows (outputs), columns (inputs) of this view */
    const void *data;           /* FP8/FP4: uint8_t codes; BF16: bf16; F32: float */
    int64_t row_bytes;          /* from one row of data to the next */
    const uint8_t *scale;       /* FP8: row n uses scale[(scale_row0 + n) / 32 * scale_row_bytes + k / 32]
                                 * FP4:            scale[n * scale_row_bytes + k / 32] */
    int64_t scale_row_bytes;
    int32_t scale_row0;         /* FP8: where row 0 stands among the 32 rows that share its scales; 0 but in slices */
} krn_weight;

/* The view of rows [n0, n0+n) and columns [k0, k0+k). FP8, FP4: k0 and k are multiples of 32. */
krn_weight krn_weight_slice(const krn_weight *w, int32_t n0, int32_t n, int32_t k0, int32_t k);

void krn_linear_ref(const bf16 *x, int64_t ldx, int32_t T, const krn_weight *w, krn_acc acc, krn_out out, void *y,
                    int64_t ldy);

/* Many products at once, for routed experts: job j multiplies row x + j's offset by its weight. Jobs that share a weight
 * should be adjacent: the weight is then decoded once for all of them. */
typedef struct krn_linear_job {
    const krn_weight *w; /* all jobs of a call have the same format, n and k */
    const bf16 *x;       /* [K] */
    void *y;             /* [N] of the out type */
} krn_linear_job;
void krn_linear_grouped_ref(const krn_linear_job *jobs, int32_t n_jobs, krn_acc acc, krn_out out);

/* Decodes rows [n0, n0+n) of w to f32, out [n, k] dense. Exact, but a code times 2^126 or 2^127 may pass the f32 range and
 * is infinite then. */
void krn_weight_decode_f32(const krn_weight *w, int32_t n0, int32_t n, float *out);
/* The same to bf16; returns the number of elements that bf16 cannot hold exactly (0 for every official weight). */
int64_t krn_weight_decode_bf16(const krn_weight *w, int32_t n0, int32_t n, bf16 *out);

#endif
