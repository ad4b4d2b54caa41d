/* The routed experts' products: each row of x times the weights of the experts that its ids name.
 *
 *   krn_experts_up            gate and up of every pick: the rows of w1 and w3, one bank
 *   krn_experts_down          w2 of every pick, unsummed (mode SLOT)
 *   krn_experts_down_combine  the same, summed over a row's picks (mode COMBINE)
 *
 * Shapes    ids [rows, picks]: pick (r, j) is row r's j-th expert. rows >= 0, picks >= 1, 1 <= n_experts <= KRN_EXPERTS_MAX
 *           up       x [rows, k] bf16; bank n = 2 * inter, w1's rows before w3's; gate, up [rows, picks, inter] bf16
 *           down     h [rows, picks, k] bf16; slot [rows, picks, n] f32
 *           combine  h as in down; add [rows, n] f32 or NULL; y [rows, n] f32
 *           All dense. k is a multiple of 32 for FP4 and, on CUDA, of 8 for BF16; x, h and data are 16-byte aligned, and
 *           n < 2^21, on CUDA
 * Ids       krn_gate_topk's: of a row all different. One outside [0, n_experts) is ignored: its gate, up and slot are not
 *           written, and it adds nothing to y
 * Values    as in kernels/linear.h: every weight is a bf16 number
 * Rounding  R1 the f32 sum of krn_linear, R2 to bf16 for gate and up
 *           R3 combine: y = +0; y = f32(y + sum) in ascending id; then y = f32(y + add) unless add is NULL
 * Order     R1: the twin's is krn_linear_ref's of the mode; CUDA's is krn_linear's on tensor cores, but that
 *           S is at most 8, whatever N is
 * Match     twin: bit-equal to krn_linear_ref of each pick; combine to krn_combine_fused_ref of krn_experts_down_ref's
 *           slots, with add for shared. CUDA: inside Bound; krn_experts_down_combine has the bits of krn_experts_down,
 *           summed in R3's order
 * Bound     of R1 as in kernels/linear.h; R3 is exact given R1
 * NaN       0x7fc0 and 0x7fc00000, as in kernels/linear.h
 * Aliasing  outputs overlap no input, but y may be add
 * Rows      a pick depends on its row of x or h and its expert alone, a row of y on its own picks
 * Graph     up, down, combine: one launch for every 24 rows (fewer above 10 picks), no sync, no allocation, no host read;
 *           dimensions depend on shapes and the card alone: ids are read on the device. No rows launch nothing. ERR_ARG
 *           for shapes outside the contract, ERR_DEVICE for a refused launch
 * Cost      the weights of every expert that is used are read once, those of others not at all */
#ifndef KERNELS_EXPERTS_H
#define KERNELS_EXPERTS_H

#include "kernels/linear.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    KRN_EXPERTS_MAX = 1024,
    KRN_EXPERT_PICKS_MAX = 256, /* of one row */
};

/* One matrix of every expert: borrowed. */
typedef struct krn_expert_bank {
    krn_wformat format;   /* FP4 or BF16 */
    int32_t n_experts, n, k;
    const void *data;     /* [n_experts, n, k]; FP4: codes, k/2 bytes a row, as in kernels/linear.h */
    const uint8_t *scale; /* FP4: [n_experts, n, k/32] */
} krn_expert_bank;

/* One expert's matrix. 0 <= expert < n_experts. */
krn_weight krn_expert_weight(const krn_expert_bank *bank, int32_t expert);

MUST_USE err_code krn_experts_up(const bf16 *x, const int32_t *ids, int32_t rows, int32_t picks,
                                 const krn_expert_bank *w13, bf16 *gate, bf16 *up, krn_stream stream, err *e);
MUST_USE err_code krn_experts_down(const bf16 *h, const int32_t *ids, int32_t rows, int32_t picks,
                                   const krn_expert_bank *w2, float *slot, krn_stream stream, err *e);
MUST_USE err_code krn_experts_down_combine(const bf16 *h, const int32_t *ids, int32_t rows, int32_t picks,
                                           const krn_expert_bank *w2, const float *add, float *y, krn_stream stream,
                                           err *e);

/* The twins. Threads as in krn_linear_grouped_ref. */
void krn_experts_up_ref(const bf16 *x, const int32_t *ids, int32_t rows, int32_t picks, const krn_expert_bank *w13,
                        bf16 *gate, bf16 *up, krn_acc acc);
void krn_experts_down_ref(const bf16 *h, const int32_t *ids, int32_t rows, int32_t picks, const krn_expert_bank *w2,
                          float *slot, krn_acc acc);
void krn_experts_down_combine_ref(const bf16 *h, const int32_t *ids, int32_t rows, int32_t picks, const krn_expert_bank *w2,
                                  const float *add, float *y, krn_acc acc);

#ifdef __cplusplus
}
#endif

#endif
