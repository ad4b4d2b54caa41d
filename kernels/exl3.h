/* Products with EXL3 weights (formats/exl3.h): y = ((((x * suh) H) Wq) H) * svh, decoded inside the product.
 *
 *   krn_exl3_linear        one weight; krn_linear's place for KRN_W_EXL3
 *   krn_exl3_experts_up    gate and up of every pick; krn_experts_up's place
 *   krn_exl3_experts_down  w2 of every pick, unsummed; krn_experts_down's place
 *   krn_exl3_decode        Wq of whole tiles as fp16: the decoder that the products use, for tests
 *
 * The twin is krn_linear_ref, krn_linear_grouped_ref with KRN_W_EXL3: the arithmetic below is theirs too.
 *
 * Shapes    x [T, K] bf16, row stride ldx; y [T, N], row stride ldy; K = w->k, N = w->n, T >= 0. The blocks of the view are
 *           all 128 x 128 blocks that [k0, k0 + K) x [n0, n0 + N) touches (krn_exl3 of kernels/linear.h). Inputs of the
 *           first and last block outside of the view count as zeros, outputs outside of it are not written. So a slice may
 *           be cut anywhere, and the partial sums of slices along K add up to the whole
 *           Experts as in kernels/experts.h, x not QDQ'd; inter of w13 is a multiple of 128 on CUDA
 * Rounding  R1 p = f32(x * suh), suh as f32
 *           R2 butterfly of each block, f32: strides 1, 2, ..., 64; (a, b) -> (f32(a + b), f32(a - b))
 *           R3 z = f32(p * 0x3DB504F3), 1 / sqrt(128) in f32
 *           R4 A = fp16(z * 2^-s), nearest even, s of the row: 2^14 <= max |z| * 2^-s < 2^15 over all inputs of the view's
 *              blocks, 0 where the largest is 0, infinite or NaN; -100 <= s <= 100. So no tap overflows, and no row falls
 *              among fp16's subnormals for its size. Exact to undo
 *           R5 the f32 sum over k of A * Wq, each product exact in f32
 *           R6 butterfly of the sums of each block of outputs, as R2
 *           R7 f32(f32(f32(q * 0x3DB504F3) * 2^s) * svh)
 *           R8 KRN_OUT_BF16 only: f32 to bf16, nearest even
 *           A NaN result is the quiet NaN 0x7fc00000 (bf16 0x7fc0)
 * Order     R5, twin, blocked: k ascending from +0, one f32 add a product.
 *           Twin, f64: R1 to R7 in double, nothing rounded to fp16, the two 1 / sqrt(128) as one exact 1 / 128, and one
 *           rounding to f32 before R8: the product with krn_weight_decode_f32's weight before it is rounded
 *           CUDA: see kernels/exl3.cu; depends on K, N, bits alone, never on T, the card or other rows
 * Match     A bit-equal everywhere. CUDA: y inside Bound of the same A
 * Bound     krn_linear_bound: R5 within krn_sum_reach of the products A * Wq, n inputs of the view's blocks; R6 adds the
 *           errors of a block's sums, by their squares but in KRN_RULE_WORST; R6 and R7 with their own roundings. A is the
 *           twin's
 * Rows      each y[t] depends on x[t] and w alone
 * Aliasing  none; scratch overlaps nothing
 * Graph     three launches on stream, none where there are no rows; no sync, no allocation, no host read; dimensions depend
 *           on shapes and the card alone. Steps that may run at the same time need a scratch each. ERR_ARG for shapes
 *           outside the contract or a scratch too small, ERR_DEVICE
 * Limits    CUDA: T <= KRN_EXL3_ROWS_MAX, rows * picks <= KRN_EXL3_PICKS_MAX, K < 2^15; n and k of a bank are multiples
 *           of 128 */
#ifndef KERNELS_EXL3_H
#define KERNELS_EXL3_H

#include "formats/exl3.h"
#include "kernels/experts.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    KRN_EXL3_ROWS_MAX = 128,  /* T of a product on CUDA */
    KRN_EXL3_PICKS_MAX = 512, /* of all rows of experts there */
};

/* Device memory that a product works in. It begins with A, a row for each row of x (experts: for each pick; up: two, w1's
 * first), all inputs of the view's blocks: of every 32 those of lane q = 0 to 3 lie together, 2q, 2q + 1, 2q + 8, 2q + 9
 * and the same 16 further on. From the next multiple of 256 bytes on, s of each row as int32_t. Then the sums before R6. */
typedef struct krn_exl3_scratch {
    void *memory; /* 256-byte aligned */
    uint64_t bytes;
} krn_exl3_scratch;
/* What T rows of one weight, or rows x picks of a bank, want. */
uint64_t krn_exl3_linear_scratch(int32_t T, int32_t n, int32_t k);
uint64_t krn_exl3_experts_scratch(int32_t rows, int32_t picks, int32_t n, int32_t k);

/* One matrix of every expert on the device, borrowed. Layout of each expert: columns of blocks, in a column the rows of
 * tiles, in a row 8 tiles; w1's columns before w3's. All matrices of a bank have the same bits and codebook. */
typedef struct krn_exl3_bank {
    int32_t bits, codebook, n_experts;
    int32_t n, k;           /* w13: n = 2 * inter */
    const uint16_t *tiles;  /* [n_experts, n/128, k/16, 8, 16 * bits] */
    const uint16_t *suh;    /* w13 [n_experts, 2, k], w1's before w3's; w2 [n_experts, k] */
    const uint16_t *svh;    /* [n_experts, n] */
} krn_exl3_bank;

/* w: device pointers in device layout, block_bytes = k/16 * 8 tiles, row_bytes = 8 tiles. */
MUST_USE err_code krn_exl3_linear(const bf16 *x, int64_t ldx, int32_t T, const krn_weight *w, krn_out out, void *y,
                                  int64_t ldy, krn_exl3_scratch scratch, krn_stream stream, err *e);
MUST_USE err_code krn_exl3_experts_up(const bf16 *x, const int32_t *ids, int32_t rows, int32_t picks,
                                      const krn_exl3_bank *w13, bf16 *gate, bf16 *up, krn_exl3_scratch scratch,
                                      krn_stream stream, err *e);
MUST_USE err_code krn_exl3_experts_down(const bf16 *h, const int32_t *ids, int32_t rows, int32_t picks,
                                        const krn_exl3_bank *w2, float *slot, krn_exl3_scratch scratch, krn_stream stream,
                                        err *e);
/* wq [K of the blocks, N of the blocks] fp16 of the whole view, row-major [in, out]. */
MUST_USE err_code krn_exl3_decode(const krn_weight *w, uint16_t *wq, krn_stream stream, err *e);

/* Twins' parts (kernels/exl3_ref.c): the same bits on all instruction sets.
 * Wq of the blocks of the view as f32 [in, out], exact. */
void krn_exl3_decode_ref(const krn_weight *w, float *wq);
/* R1 to R4 of one row; A [inputs of the view's blocks], returns s. */
int32_t krn_exl3_input_ref(const bf16 *x, const krn_weight *w, fp16 *a);

#ifdef __cplusplus
}
#endif

#endif
