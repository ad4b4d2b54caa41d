/* Hyper-connections: the residual stream has hc copies, mixed around every sub-block. Three ops.
 *
 * Stream    [rows, hc, dim] bf16, dense. Flattened, a row is hc * dim elements, copy-major
 * Use       mixes are taken from the stream a sub-block starts from. post and comb serve that sub-block's own expand; pre
 *           serves the next sub-block's collapse. That wiring is the engine's
 * Rows      each row depends on its own row of every input alone
 * Threads   one
 * Aliasing  none
 * Graph     krn_mhc_*: one launch on stream, no sync, no allocation, no host read; all pointers are device memory.
 *           1 <= hc <= KRN_MHC_COPIES_MAX. ERR_ARG for shapes outside the contract, ERR_DEVICE for a refused launch
 * u         2^-24 in the bounds below */
#ifndef KERNELS_MHC_H
#define KERNELS_MHC_H

#include "kernels/bound.h"
#include "kernels/device.h"
#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { KRN_MHC_COPIES_MAX = 8 }; /* CUDA: a kernel is made for each hc */

/* krn_mhc_mixes, krn_mhc_mixes_ref - the mixing weights of a row.
 *
 * Shapes    x [rows, hc, dim] bf16; dots [rows, (2 + hc) * hc] f32, base the same columns, scale [3];
 *           pre, post [rows, hc] f32; comb [rows, hc, hc] f32, comb[j][k]: source copy j, destination copy k; iters >= 1
 * Inputs    dots = krn_linear_ref(x flattened, the F32 projection, F32 out). Its columns: hc of pre, hc of post, hc * hc of
 *           comb row by row
 * Rounding  R1 sum of squares of the flattened row, mean, + norm_eps, rsqrt: as R1..R4 of kernels/rmsnorm.h
 *           R2 m = dots * r; z = m * scale[part] + base: each to f32
 *           R3 pre = sigmoid(z) + hc_eps; post = 2 * sigmoid(z), no eps; each step to f32, exp in double rounded once
 *           R4 comb: e = exp(z - max of its row) to f32; e / sum of its row, + hc_eps; then columns: c / (sum + hc_eps)
 *           R5 iters - 1 times: rows, c / (sum + hc_eps), then columns likewise. It ends on columns
 *           A sum of hc terms: blocked, f32 left to right; F64, double, rounded to f32; then + hc_eps to f32
 * Order     lanes16 in double for R1, both modes; R4, R5 ascending index. CUDA, R1: thread t of 1024 takes elements
 *           8t..8t+7, then the eight 8192 on, and so forth, one double add each; then krn_block_sum (bits.cuh)
 * Match     CUDA: bit-equal to blocked, but for what rmsnorm.h says of R1, and for an exp in double that the two libraries
 *           round to different f32 (both within an ulp of double: about one exp in 2^28)
 * Bound     dz = |m * scale| * 5.5u + u * |z|.  pre, post relative: dz + 5u.
 *           comb, its logarithm: 2 * hc * (largest dz of the matrix); then 2 * iters * (hc + 3) * u relative, as a pass
 *           never amplifies its roundings. krn_mhc_mixes_bound says more of it */
void krn_mhc_mixes_ref(const bf16 *x, const float *dots, const float *base, const float *scale, int32_t rows, int32_t hc,
                       int32_t dim, float norm_eps, float hc_eps, int32_t iters, float *pre, float *post, float *comb,
                       krn_acc acc);
MUST_USE err_code krn_mhc_mixes(const bf16 *x, const float *dots, const float *base, const float *scale, int32_t rows,
                                int32_t hc, int32_t dim, float norm_eps, float hc_eps, int32_t iters, float *pre,
                                float *post, float *comb, krn_stream stream, err *e);

/* krn_mhc_collapse, krn_mhc_collapse_ref - y[d] = sum_c pre[c] * x[c][d].
 *
 * Shapes    x [rows, hc, dim] bf16; pre [rows, hc] f32; y [rows, dim] bf16
 * Rounding  R1 blocked: each product to f32, added left to right in f32; F64: in double, ascending c, then f32
 *           R2 f32 to bf16, nearest even
 * Match     CUDA: bit-equal to blocked
 * Bound     before R2: hc * u * sum_c |pre[c] * x[c][d]|, any order, FMA allowed */
void krn_mhc_collapse_ref(const bf16 *x, const float *pre, bf16 *y, int32_t rows, int32_t hc, int32_t dim, krn_acc acc);
MUST_USE err_code krn_mhc_collapse(const bf16 *x, const float *pre, bf16 *y, int32_t rows, int32_t hc, int32_t dim,
                                   krn_stream stream, err *e);

/* krn_mhc_expand, krn_mhc_expand_ref - out[k][d] = post[k] * y[d] + sum_j comb[j][k] * x[j][d]: the sum runs over comb's
 * FIRST index. (A doubly stochastic comb hides a transposition from every norm; only an asymmetric test shows it.)
 *
 * Shapes    y [rows, dim] bf16, the sub-block's result; x [rows, hc, dim] bf16, the stream before it; post [rows, hc],
 *           comb [rows, hc, hc] f32; out [rows, hc, dim] bf16
 * Rounding  R1 the sum over j: blocked, each product to f32, added left to right; F64, in double, then f32
 *           R2 post * y to f32 (both modes)
 *           R3 R2 + R1 to f32, then bf16, nearest even
 * Match     CUDA: bit-equal to blocked
 * Bound     before bf16: (hc + 2) * u * (|post * y| + sum_j |comb * x|) */
void krn_mhc_expand_ref(const bf16 *y, const bf16 *x, const float *post, const float *comb, bf16 *out, int32_t rows,
                        int32_t hc, int32_t dim, krn_acc acc);
MUST_USE err_code krn_mhc_expand(const bf16 *y, const bf16 *x, const float *post, const float *comb, bf16 *out,
                                 int32_t rows, int32_t hc, int32_t dim, krn_stream stream, err *e);

/* krn_mhc_mixes_bound - one row's mixes from bounded dots. Wider than Bound: the sum of squares may be f32 in any order, as
 * in krn_rmsnorm_bound. Shapes as krn_mhc_mixes_ref's, of one row; hc <= KRN_MHC_COPIES_MAX. pre, post
 * or comb NULL: not wanted.
 *
 * comb: the errors of z are its dot's (half the span) and its own roundings, which have nothing to do with each other, and
 * that of r, which all z share. The derivatives of log comb by every z, of the very iterations, give the root of the sum of
 * squares of the former (worst case: their sum), and the sum of the latter with its signs. 16 * dz of that (dz the largest
 * error) is added, as the derivatives change on the way. Where dz is over 1/16 it is 2 * hc * dz: balancing takes from the
 * logarithm a projection, in the weights of comb, on sums of a number for each row and one for each column; that is a mean
 * of what spanning trees of the graph rows - columns give, and those leave alternating sums around cycles of at most 2 * hc
 * edges.
 *
 * krn_mhc_collapse_bound, krn_mhc_expand_bound - one element before bf16: Bound. All arrays are one row's. */
void krn_mhc_mixes_bound(const bf16 *x, const krn_span *dots, const float *base, const float *scale, int32_t hc,
                         int32_t dim, float norm_eps, float hc_eps, int32_t iters, krn_rule rule, krn_span *pre,
                         krn_span *post, krn_span *comb);
krn_span krn_mhc_collapse_bound(const bf16 *x, const float *pre, int32_t hc, int32_t dim, int32_t d);
krn_span krn_mhc_expand_bound(const bf16 *y, const bf16 *x, const float *post, const float *comb, int32_t hc, int32_t dim,
                              int32_t k, int32_t d);

#ifdef __cplusplus
}
#endif

#endif
