/* krn_experts_up and krn_experts_down (kernels/experts.h) over FP4 weights that were re-laid when they were loaded, so that
 * a lane reads its operands of the tensor cores as whole 16 bytes and turns them into bf16 in a few instructions.
 *
 *   krn_kx_pack             one expert's matrix from the checkpoint's layout to this one, on the CPU
 *   krn_kx_lay              every expert of a bank likewise, on the device: faster than they come there
 *   krn_experts_kx_up       as krn_experts_up
 *   krn_experts_kx_down     as krn_experts_down
 *
 * Layout    a matrix [n, k] is a row of tiles of 32 rows, a tile a row of steps of 128 columns, a step a block of 2,176
 *           bytes. What rows and columns lack of whole blocks is zeros. The experts of a bank follow each other
 *
 *           block        0  codes, chunk 0 (columns 0..31): 16 bytes of lane 0, of lane 1, ... of lane 31
 *                      512  chunk 1      1024  chunk 2      1536  chunk 3
 *                     2048  scales: 16 bytes of g = 0, of g = 1, ... of g = 7; byte 4c + j is that of row g + 8j, chunk c
 *           16 bytes     four little-endian words; word j of lane 4g + q: row g + 8j, columns 8q .. 8q + 7 of the chunk
 *           word         low half columns i = 0..3, high half 4 + i; of column i the sign s, exponent h l, mantissa m:
 *                          bit 15 14 13 12 11 10  9  8  7  6  5  4  3  2  1  0
 *                              s0 l3 m3 s1 s3 h3 s2 h0 l0 m0 h1 l1 m1 h2 l2 m2
 *           A bf16 of the bits s at 15 and h l m at 8..6 is the code's value times 2^-126. Columns 0, 1 and 2 stand there
 *           after a shift by 0, 3 and 6; column 3 takes a multiplication
 * Shapes    as in kernels/experts.h; FP4 only
 * Values, Ids, Rounding, Order, Bound, NaN, Aliasing, Rows, Graph, Cost: as in kernels/experts.h
 * Match     bit-equal to krn_experts_up and krn_experts_down of the bank that was packed, on the same card; krn_kx_lay to
 *           krn_kx_pack of each expert
 * CPU       a layout is no arithmetic: what runs over this one there is krn_experts_up_ref of the checkpoint's */
#ifndef KERNELS_EXPERTS_KX_H
#define KERNELS_EXPERTS_KX_H

#include "kernels/experts.h"

#ifdef __CUDACC__
#define KRN_KX_INLINE __host__ __device__ __forceinline__
#else
#define KRN_KX_INLINE static inline
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum {
    KRN_KX_ROWS = 32,                              /* of a tile */
    KRN_KX_COLUMNS = 128,                          /* of a step: four chunks of 32 */
    KRN_KX_CHUNK_BYTES = 512,
    KRN_KX_SCALES = 4 * KRN_KX_CHUNK_BYTES,        /* where a block's scales begin */
    KRN_KX_BLOCK_BYTES = KRN_KX_SCALES + 8 * 16,
    KRN_KX_SCALE_SMALL = 128,                      /* up to this scale, 2, one multiplication makes a weight */
};
#define KRN_KX_PLACED 0x81c081c0u                  /* where the bits of two placed codes are */

/* One matrix of every expert: borrowed. */
typedef struct krn_kx_bank {
    int32_t n_experts, n, k;
    bool large;            /* some scale is above KRN_KX_SCALE_SMALL: krn_kx_pack of some expert said so */
    const uint8_t *blocks; /* [n_experts, krn_kx_bytes(n, k)], 16-byte aligned */
} krn_kx_bank;

KRN_KX_INLINE int32_t krn_kx_tiles(int32_t n) { return (n - 1) / KRN_KX_ROWS + 1; }
KRN_KX_INLINE int32_t krn_kx_steps(int32_t k) { return (k - 1) / KRN_KX_COLUMNS + 1; }
/* Of one expert. */
KRN_KX_INLINE int64_t krn_kx_bytes(int32_t n, int32_t k)
{
    return (int64_t)krn_kx_tiles(n) * krn_kx_steps(k) * KRN_KX_BLOCK_BYTES;
}

/* Eight codes, column i at bits 4i .. 4i + 3, as a word of the layout; both halves at once. */
KRN_KX_INLINE uint32_t krn_kx_word(uint32_t codes)
{
    return (codes & 0x00080008) << 12 | (codes & 0x00070007) << 6    /* column 0: s to 15, h l m to 8 .. 6 */
         | (codes & 0x00800080) << 5 | (codes & 0x00700070) >> 1     /* 1: to 12 and 5 .. 3 */
         | (codes & 0x08000800) >> 2 | (codes & 0x07000700) >> 8     /* 2: to 9 and 2 .. 0 */
         | (codes & 0xc000c000) >> 4 | (codes & 0x30003000) << 1;    /* 3: s and h to 11 and 10, l and m to 14 and 13 */
}

/* The bits of a word as four placed pairs: columns (0,4) (1,5) (2,6) (3,7), the first of each in the low half. The
 * multiplication moves column 3's bits to their places one by one; nothing that it adds meets. */
KRN_KX_INLINE void krn_kx_place(uint32_t word, uint32_t pair[4])
{
    pair[0] = word & KRN_KX_PLACED;
    pair[1] = word << 3 & KRN_KX_PLACED;
    pair[2] = word << 6 & KRN_KX_PLACED;
    pair[3] = (word >> 10 & 0x001b001bu) * 0x4108u & KRN_KX_PLACED;
}

/* Packs a matrix: the rows of top, then those of bottom (NULL: none), both FP4 and of one k, any strides: w1 and w3, or w2.
 * out [krn_kx_bytes(top->n + bottom->n, k)] is written whole. Returns whether some scale is above KRN_KX_SCALE_SMALL.
 * Threads: OpenMP over tiles. */
bool krn_kx_pack(const krn_weight *top, const krn_weight *bottom, uint8_t *out);
/* Its inverse: codes [n, k/2] and scales [n, k/32], dense, as in krn_expert_bank. */
void krn_kx_unpack(const uint8_t *packed, int32_t n, int32_t k, uint8_t *data, uint8_t *scale);
/* blocks [from->n_experts, krn_kx_bytes(n, k)], 16-byte aligned as from->data is, is written whole; all are device memory
 * and overlap nowhere. One launch. ERR_ARG for a bank that is not FP4 or not aligned. */
MUST_USE err_code krn_kx_lay(const krn_expert_bank *from, uint8_t *blocks, krn_stream stream, err *e);

MUST_USE err_code krn_experts_kx_up(const bf16 *x, const int32_t *ids, int32_t rows, int32_t picks, const krn_kx_bank *w13,
                                    bf16 *gate, bf16 *up, krn_stream stream, err *e);
MUST_USE err_code krn_experts_kx_down(const bf16 *h, const int32_t *ids, int32_t rows, int32_t picks,
                                      const krn_kx_bank *w2, float *slot, krn_stream stream, err *e);

#ifdef __cplusplus
}
#endif

#endif
