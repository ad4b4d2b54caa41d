/* krn_linear_ref - y[t][n] = sum_k x[t][k] * W[n][k]: every matrix product of the model, one contract.
 *
 * Shapes    x [T, K] bf16, row stride ldx; y [T, N], row stride ldy; W as krn_weight says. T >= 0, N, K >= 1
 * Formats   KRN_W_FP8   e4m3 codes [N, K], e8m0 scales [ceil(N/32), ceil(K/32)]           K % 32 == 0
 *           KRN_W_FP4   e2m1 codes [N, K/2], low nibble = even k, scales [N, K/32]        K % 32 == 0
 *           KRN_W_BF16  bf16 [N, K]
 *           KRN_W_F32   f32 [N, K] (the mHC projections)
 *           KRN_W_EXL3  trellis tiles: arithmetic, order and bound of kernels/exl3.h
 * Inputs    for FP8 and FP4 quantised linears x is already act_qdq'd (kernels/act_qdq.h): value = code * scale, exact in
 *           bf16. wo_a feeds plain bf16 rows to an FP8 weight: also valid, the weight is decoded exactly
 * Order     FP8, FP4, blocked: per 32-wide K block b, ascending: 16 lanes, lane i = f32(x[i]*w[i]) + f32(x[i+16]*w[i+16])
 *           with w the code value; halving tree (+8, +4, +2, +1) gives P; acc = acc + P * scale
 *           BF16, blocked: lanes16 over the whole of K (kernels.h)
 *           f64, every format, and F32 in both modes: lanes16 over the whole of K with exact products in double and
 *           w = code * scale. (The mHC projections scale the whole stream, and no order of their sums is official)
 * Rounding  R1 blocked: each f32 product, add as written (products of bf16 codes are exact); f64 and F32: one rounding of
 *           the sum to f32
 *           R2 KRN_OUT_BF16 only: f32 to bf16, nearest even. KRN_OUT_F32 stops after R1 (rank partials, logits)
 *           A NaN result is the quiet NaN 0x7fc00000 (bf16 0x7fc0), whatever its operands were
 * Aliasing  y overlaps no input; data may have any alignment, x and y have their type's
 * Rows      each y[t][n] depends on x[t] and W[n] alone
 * Threads   OpenMP over tiles of N (and over row groups in krn_linear_grouped_ref); bits do not depend on the count
 * Match     all instruction sets: bit-equal. CUDA: inside Bound, same R2; F32: bit-equal, unless the two double sums lie on
 *           both sides of an f32 edge: then neighbours, far fewer than one element in 100,000
 * Bound     6 * 2^-24 * sqrt(K) * sum |x * w|; F32 and f64: half an ulp of the sum, and 2^-50 * sum |x * w|
 *
 * krn_linear, krn_linear_groups - the same on CUDA. x, y and what w points at are device memory; w itself is the host's.
 *
 * Values    every FP8 and FP4 weight, code * scale, is a bf16 number: no NaN codes, no scale 255, no product that bf16
 *           would round. The loader refuses the others (krn_weight_decode_bf16 counts them)
 * Order     The way is chosen by the format, N, K and the alignment of the operands, never by T or the card:
 *           tensor cores, FP8, FP4 and BF16 where w->data, x and their row strides are multiples of 16 bytes and K of 8:
 *             step s is columns [128 s, 128 s + 128) for FP4, 64 for FP8, 32 for BF16. An mma m16n8k16 (f32 accumulation in
 *             the order of the hardware) adds 16 of them. FP8, BF16: 4 of every quarter of the step, ascending, but that of
 *             each 8 columns FP8 takes 0 2 1 3, 4 6 5 7. FP4: two mma for each 32, ascending; of each 8 of these 0 4 1 5,
 *             then 2 6 3 7.
 *             S slices: slice j adds steps j, j + S, j + 2S, ... ascending, from 0; then the slices are added, ascending,
 *             in f32. S is the most of 16 (where N <= 4096), 8, 4, 2, 1 with
 *             S * ceil(N / 16) <= 16,384 and ceil(steps / S) * S <= steps * 9/8; 1 where there is none
 *           F32, and BF16 of N <= 256 (gates), with the same alignment and one group: lane i of 512 takes columns
 *             8i .. 8i + 7, then 4096 on, ascending, in fused multiply-adds, in double for F32, in f32 for BF16; lanes 16
 *             apart are added, then 8, 4, 2, 1 apart; then the 16 warps ascending
 *           the rest, which is slow: lane i of 32 takes columns i, i + 32, ... in double; then the same tree
 * Groups    krn_linear_groups: w's rows are `groups` equal parts; part g multiplies columns [g * w->k, (g + 1) * w->k) of x
 *           into its own columns of y
 * Graph     one launch on stream, no sync, no allocation, no host read; dimensions depend on shapes and the card alone. T 0
 *           launches nothing. ERR_ARG for shapes outside the contract, ERR_DEVICE for a refused launch
 * Cost      the weight is read once for up to 24 rows of x; once more, mostly from L2, for every 24 after them
 *
 * krn_linear_pair - two krn_linear of the same x, to the same bits.
 *
 * Graph     as krn_linear, but that it is two launches where the card cannot do both at once: they must both be for tensor
 *           cores, FP8 or both BF16, of the same K, T at most 24, and of two tiles of 16 rows a team at most
 *
 * krn_linear_f64 - krn_linear_ref in F64 on CUDA: exact products, a double sum, one rounding to f32. For main_proj: its
 * inputs have columns thousands of times larger than the rest (engine/exec.h).
 *
 * Shapes    FP8 and BF16 weights, K % 32 == 0; x, w->data and their row strides are multiples of 16 bytes, else ERR_ARG
 * Order     warp j of 16 adds the 32-column blocks j, j + 16, ... ascending, from 0: columns i, 8 + i, 16 + i, 24 + i in an
 *           mma m16n8k4 in double, i ascending; then the warps ascending. T and N change nothing
 * Match     bit-equal to krn_linear_ref in F64, with the exceptions that Match allows F32 above, before R2
 * Graph     as krn_linear
 * Cost      as much double arithmetic as the card has; on cards with little of it, slow. The weight is read once for every
 *           8 rows of x, but from L2 */
#ifndef KERNELS_LINEAR_H
#define KERNELS_LINEAR_H

#include "kernels/bound.h"
#include "kernels/device.h"
#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum krn_wformat { KRN_W_FP8 = 0, KRN_W_FP4 = 1, KRN_W_BF16 = 2, KRN_W_F32 = 3, KRN_W_EXL3 = 4 } krn_wformat;
typedef enum krn_out { KRN_OUT_BF16 = 0, KRN_OUT_F32 = 1 } krn_out;

/* What KRN_W_EXL3 has beside its tiles (kernels/exl3.h). Blocks are the 128 x 128 of the transforms. Tile (i, j) of the
 * stored tensor, counted from the view's first block, lies at data + i * row_bytes + j / 8 * block_bytes + j % 8 * tile
 * bytes: as in the file (block_bytes = 8 tiles), or with the tiles of a column of blocks together (row_bytes = 8 tiles). */
typedef struct krn_exl3 {
    int32_t bits, codebook;     /* 1 to 8; fmt_exl3_codebook */
    int32_t k0, n0;             /* where the view begins inside its first block: 0 unless it is cut inside one */
    int64_t block_bytes;
    const uint16_t *suh, *svh;  /* fp16 bits, from the first block's first input, output, on */
} krn_exl3;

/* A view of a weight, or of a rank's slice of one: borrowed, never copied. Slices along N move the pointers by rows, slices
 * along K by whole 32-groups (EXL3: both by any amount); the strides stay those of the whole. */
typedef struct krn_weight {
    krn_wformat format;
    int32_t n, k;               /* rows (outputs), columns (inputs) of this view */
    const void *data;           /* FP8/FP4: uint8_t codes; BF16: bf16; F32: float; EXL3: uint16_t tiles */
    int64_t row_bytes;          /* from one row of data to the next; EXL3: from one row of tiles to the next */
    const uint8_t *scale;       /* FP8: row n uses scale[(scale_row0 + n) / 32 * scale_row_bytes + k / 32]
                                 * FP4:            scale[n * scale_row_bytes + k / 32] */
    int64_t scale_row_bytes;
    int32_t scale_row0;         /* FP8: where row 0 stands among the 32 rows that share its scales; 0 but in slices */
    krn_exl3 exl3;              /* EXL3 only */
} krn_weight;

/* The view of rows [n0, n0+n) and columns [k0, k0+k). FP8, FP4: k0 and k are multiples of 32. */
krn_weight krn_weight_slice(const krn_weight *w, int32_t n0, int32_t n, int32_t k0, int32_t k);

void krn_linear_ref(const bf16 *x, int64_t ldx, int32_t T, const krn_weight *w, krn_acc acc, krn_out out, void *y,
                    int64_t ldy);
MUST_USE err_code krn_linear(const bf16 *x, int64_t ldx, int32_t T, const krn_weight *w, krn_out out, void *y, int64_t ldy,
                             krn_stream stream, err *e);
MUST_USE err_code krn_linear_groups(const bf16 *x, int64_t ldx, int32_t T, const krn_weight *w, int32_t groups, krn_out out,
                                    void *y, int64_t ldy, krn_stream stream, err *e);
/* One of the products of a pair: y [T, w->n], row stride ldy. */
typedef struct krn_linear_side {
    const krn_weight *w;
    krn_out out;
    void *y;
    int64_t ldy;
} krn_linear_side;
MUST_USE err_code krn_linear_pair(const bf16 *x, int64_t ldx, int32_t T, const krn_linear_side side[2], krn_stream stream,
                                  err *e);
MUST_USE err_code krn_linear_f64(const bf16 *x, int64_t ldx, int32_t T, const krn_weight *w, krn_out out, void *y,
                                 int64_t ldy, krn_stream stream, err *e);

/* Many products at once, for routed experts: job j multiplies row x + j's offset by its weight. Jobs that share a weight
 * should be adjacent: the weight is then decoded once for all of them. */
typedef struct krn_linear_job {
    const krn_weight *w; /* all jobs of a call have the same format, n and k */
    const bf16 *x;       /* [K] */
    void *y;             /* [N] of the out type */
} krn_linear_job;
void krn_linear_grouped_ref(const krn_linear_job *jobs, int32_t n_jobs, krn_acc acc, krn_out out);

/* Decodes rows [n0, n0+n) of w to f32, out [n, k] dense. Exact, but a code times 2^126 or 2^127 may pass the f32 range and
 * is infinite then. EXL3: the effective weight, its double rounded to f32; of any row its whole block is decoded. */
void krn_weight_decode_f32(const krn_weight *w, int32_t n0, int32_t n, float *out);
/* The same to bf16; returns the number of elements that bf16 cannot hold exactly: 0 for every official weight, nearly
 * all for EXL3. */
int64_t krn_weight_decode_bf16(const krn_weight *w, int32_t n0, int32_t n, bf16 *out);

/* krn_linear_bound - where the sums of this contract may lie in any order of f32 sums (kernels/bound.h), before R2. One
 * decoded pass over the rows of w that some job needs. Threads: OpenMP over outputs */
typedef struct krn_linear_bound_job {
    const krn_weight *w; /* as krn_linear_job's */
    const bf16 *x;       /* [K] */
    const uint8_t *need; /* [N] outputs that are wanted, the others' y is left alone; NULL: all */
    krn_span *y;         /* [N] */
    float *size;         /* [N]; krn_linear_size writes it, and not y */
} krn_linear_bound_job;
void krn_linear_bound(const krn_linear_bound_job *jobs, int32_t n_jobs, krn_rule rule);
/* The sums of sizes alone, sum |x * w| in f32: several times faster. Off by less than (K / 16 + 10) * 2^-24 of it, unless
 * it passes the f32 range or is so small that products vanish. Not for EXL3, whose transforms are part of its bound. */
void krn_linear_size(const krn_linear_bound_job *jobs, int32_t n_jobs);

#ifdef __cplusplus
}
#endif

#endif
