/* The inner loops of EXL3's twins, one table per instruction set: kernels/exl3_loops.c is compiled once for each. Internal
 * to kernels/.
 *
 * A strip is one row of tiles of one block: 16 inputs x 128 outputs. Its weights stand in the order of the tiles' streams:
 * column 64 h + 8 t + i is output 16 t + 8 h + i (krn_exl3_output), so that decoding is loops over 64 neighbours. Sums are
 * kept in that order too and sorted once, at the end. */
#ifndef KERNELS_EXL3_LOOPS_H
#define KERNELS_EXL3_LOOPS_H

#include "kernels/exl3.h"

enum {
    KRN_EXL3_STRIPS = FMT_EXL3_BLOCK / FMT_EXL3_TILE, /* of a block */
    KRN_EXL3_STRIP_TILES = FMT_EXL3_BLOCK / FMT_EXL3_TILE,
};
#define KRN_EXL3_NORM 0x1.6a09e6p-4f /* 1 / sqrt(128) in f32, 0x3DB504F3 */

typedef float krn_exl3_strip[FMT_EXL3_TILE][FMT_EXL3_BLOCK];

typedef struct krn_exl3_loops {
    /* tiles: the strip's 8, one after the other, of any alignment. Exact. */
    void (*decode)(const uint8_t *tiles, int32_t bits, fmt_exl3_codebook c, krn_exl3_strip w);
    /* z = R1 to R3 for inputs [lo, hi) of a block, x and suh from the block's first input on; the others count as +0. The
     * second in double and without R3. */
    void (*input_f32)(const bf16 *x, const uint16_t *suh, int32_t lo, int32_t hi, float z[FMT_EXL3_BLOCK]);
    void (*input_f64)(const bf16 *x, const uint16_t *suh, int32_t lo, int32_t hi, double z[FMT_EXL3_BLOCK]);
    /* z = R4, as f32; factor is 2^-s. */
    void (*round)(float z[FMT_EXL3_BLOCK], float factor);
    void (*butterfly_f32)(float v[FMT_EXL3_BLOCK]);
    void (*butterfly_f64)(double v[FMT_EXL3_BLOCK]);
    /* sum[n] += a[k] * w[k][n], k ascending, product and sum each rounded. */
    void (*add_f32)(krn_exl3_strip w, const float a[FMT_EXL3_TILE], float sum[FMT_EXL3_BLOCK]);
    void (*add_f64)(krn_exl3_strip w, const double a[FMT_EXL3_TILE], double sum[FMT_EXL3_BLOCK]);
    /* The same in double, and size[n] += |a[k] * w[k][n]|. */
    void (*add_size)(krn_exl3_strip w, const float a[FMT_EXL3_TILE], double sum[FMT_EXL3_BLOCK],
                     double size[FMT_EXL3_BLOCK]);
    /* square[n] += (a[k] * w[k][n])^2, in double. */
    void (*add_square)(krn_exl3_strip w, const float a[FMT_EXL3_TILE], double square[FMT_EXL3_BLOCK]);
} krn_exl3_loops;

extern const krn_exl3_loops KRN_EXL3_SCALAR;
extern const krn_exl3_loops KRN_EXL3_AVX2, KRN_EXL3_AVX512; /* x86-64 only */
const krn_exl3_loops *krn_exl3_loops_get(void);             /* by krn_isa_get */

/* Output of its block that column c of a strip is. */
static inline int32_t krn_exl3_output(int32_t c) { return c / 8 % 8 * 16 + c / 64 * 8 + c % 8; }

/* Blocks of a view. */
static inline int32_t krn_exl3_blocks_k(const krn_weight *w) { return (w->exl3.k0 + w->k - 1) / FMT_EXL3_BLOCK + 1; }
static inline int32_t krn_exl3_blocks_n(const krn_weight *w) { return (w->exl3.n0 + w->n - 1) / FMT_EXL3_BLOCK + 1; }

/* What of block `block` a view of n elements that begins at `first` of block 0 has: [lo, hi) of the block; element `at` of
 * the view is the block's first (negative where the view begins inside the block). */
typedef struct krn_exl3_part { int32_t lo, hi, at; } krn_exl3_part;
static inline krn_exl3_part krn_exl3_part_of(int32_t block, int32_t first, int32_t n)
{
    const int32_t at = block * FMT_EXL3_BLOCK - first, lo = at < 0 ? -at : 0;
    return (krn_exl3_part){ lo, n - at < FMT_EXL3_BLOCK ? n - at : FMT_EXL3_BLOCK, at };
}

/* Strip `strip` (counted from the view's first block) of column `column` of blocks. */
static inline void krn_exl3_decode_strip(const krn_exl3_loops *l, const krn_weight *w, int32_t strip, int32_t column,
                                         krn_exl3_strip out)
{
    const krn_exl3 *x = &w->exl3;
    l->decode((const uint8_t *)w->data + strip * w->row_bytes + column * x->block_bytes, x->bits,
              (fmt_exl3_codebook)x->codebook, out);
}

/* s of R4 for a row of x, and the row's A in block `block` as f32. */
int32_t krn_exl3_row_exponent(const krn_exl3_loops *l, const bf16 *x, const krn_weight *w);
void krn_exl3_row_block(const krn_exl3_loops *l, const bf16 *x, const krn_weight *w, int32_t block, int32_t s,
                        float a[FMT_EXL3_BLOCK]);

/* What kernels/linear.h promises, for jobs and weights of KRN_W_EXL3. */
void krn_exl3_grouped_ref(const krn_linear_job *jobs, int32_t n_jobs, krn_acc acc, krn_out out);
void krn_exl3_weight_f32(const krn_weight *w, int32_t n0, int32_t n, float *out);
int64_t krn_exl3_weight_bf16(const krn_weight *w, int32_t n0, int32_t n, bf16 *out);
void krn_exl3_bound(const krn_linear_bound_job *jobs, int32_t n_jobs, krn_rule rule);

#endif
