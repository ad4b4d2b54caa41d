/* The inner loops of krn_linear_ref, one table per instruction set: kernels/simd_loops.c is compiled once for each.
 *
 * The unit of work is a tile: up to KRN_TILE_N outputs (rows of the weight) times up to KRN_TILE_T rows of x. Loops work on
 * the stack, never allocate, and read nothing outside the rows they are given. Internal to kernels/. */
#ifndef KERNELS_SIMD_LOOPS_H
#define KERNELS_SIMD_LOOPS_H

#include "kernels/linear.h"

enum {
    KRN_TILE_N = 16,  /* the lanes of a vector; divides the 32 rows that share an FP8 scale */
    KRN_TILE_T = 128, /* bounds the stack; the largest insert */
};

/* out[t][r] = the sum for output n0 + r and rows[t].x: the contract's R1, f32. 1 <= n <= KRN_TILE_N,
 * 1 <= n_rows <= KRN_TILE_T, n0 % KRN_TILE_N == 0. Of a row of out, lanes n and up are not defined afterwards. */
typedef void krn_tile_fn(const krn_weight *w, int32_t n0, int32_t n, const krn_linear_job *rows, int32_t n_rows,
                         float (*out)[KRN_TILE_N]);

typedef struct krn_loops {
    krn_tile_fn *tile_blocked, *tile_f64;
    void (*decode_row)(const krn_weight *w, int32_t n0, float *out); /* out [k] = row n0 as f32 */
} krn_loops;

extern const krn_loops KRN_LOOPS_SCALAR;
extern const krn_loops KRN_LOOPS_AVX2, KRN_LOOPS_AVX512; /* x86-64 only */

static inline const uint8_t *krn_weight_row(const krn_weight *w, int32_t n)
{
    return (const uint8_t *)w->data + n * w->row_bytes;
}
/* The scales of row n, one per 32 columns. FP8 and FP4 only. */
static inline const uint8_t *krn_weight_scale_row(const krn_weight *w, int32_t n)
{
    return w->scale + (w->format == KRN_W_FP8 ? (w->scale_row0 + n) / 32 : n) * w->scale_row_bytes;
}

#endif
