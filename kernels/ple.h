/* The block of a per-layer embedding (PLE): hc residual streams of n channels in f32 take the deferred result of a mixture
 * of experts, ask for a key with a query, and gate a value into the input of a convolution. Three ops, two also as one.
 *
 * Per token t, stream c, channel d:
 *   s = sum over j of ye[row(t, j)][d]              row(t, j) = plan[p_tokent + top_k * t + j]
 *   m = gs[t] * ysh[t][d] + s                       the shared expert, gated
 *   resid_out[t][c][d] = m * g[t][c] + resid[t][c][d]
 *   xn = gnorm(resid_out)                           gnorm(x) = x / sqrt(mean(x * x) + 1e-6), over the n channels
 *   query = gnorm(resid_out) * w_query
 *   a[t][c] = sum over d of key * query / sqrt(n)
 *   gate[t][c] = sigmoid(sign(a) * sqrt(max(|a|, 1e-6))), sign(0) = 0
 *   norm_w = gnorm(gate * value) * w_conv           the convolution's input and row of history
 *
 * Shapes    resid, resid_out, xn, key, norm_w, x, y [tokens, hc, n]; ysh, value [tokens, n]; gs [tokens];
 *           g, gate [tokens, hc]; w, w_query, w_conv [hc, n]; ye [rows, n]; plan int32 [p_tokent + top_k * tokens] or more
 *           0 <= tokens <= KRN_PLE_TOKENS_MAX; 1 <= n <= KRN_PLE_N_MAX; 1 <= hc, top_k, rows; 0 <= p_tokent
 * Dtypes    f32
 * Plan      a row outside [0, rows) is never read and counts as zeros, whatever a stale plan says; rows may repeat
 * Rounding  R1 s = 0; s = f32(s + ye) in the order of j
 *           R2 m = fma(gs, ysh, s)
 *           R3 resid_out = fma(m, g, resid)
 *           R4 sum of squares: one fma an element
 *           R5 r = 1 / sqrt(fma(sum, 1/n, 1e-6)): 1/n, fma, sqrt and 1/ each to f32
 *           R6 resid_out * r to f32: xn; then * w_query to f32: query
 *           R7 sum of key * query: one fma an element; then * 1/sqrt(n) to f32, that factor in double rounded once: a
 *           R8 gate: krn_ple_gate of ple_steps.h
 *           R9 gate * value to f32, R4 and R5 of it, * r to f32, * w_conv to f32: norm_w
 *           A gnorm alone: R4, R5, x * r to f32, * w to f32: y
 * Order     of a sum over d (R4, R7), twin and CUDA, for any n: lane i of 256 takes d = i, i + 256, ... from +0 on. Each 32
 *           neighbouring lanes are a warp: lanes 16 apart are added, then 8, 4, 2, 1 apart; then the eight warps 4 apart,
 *           then 2, 1
 * Match     CUDA: bit-equal to the twins, exponential included: all steps are IEEE operations of f32 that both sides have.
 *           (A NaN has the device's own bits.) The fused op: bit-equal to the pair in all it writes; the cached gnorm: to
 *           krn_ple_gnorm
 * Bound     each output within a relative L2 of 2e-6 of float64, where nothing leaves the range of f32
 * Edges     a sum of squares beyond f32 gives r = 0: finite channels become zeros. A NaN of resid, g or key stays in its
 *           group, one of ye, ysh, gs or value in its token
 * Groups    a group [n] depends on its own inputs alone, not on how many come together
 * Aliasing  resid_out may be resid, y may be x; no other overlap
 * Fast      n = 2560, and top_k = 10 where there is a combine: registers and unrolled loops. Otherwise loops over memory,
 *           where the fused op reads back what it wrote to resid_out. The bits do not depend on which
 * Traffic   of a group, in n * 4 bytes: gnorm 4 (x twice, w, y), cached 3; the pair moves 3 more than the fused op: xn
 *           written, resid_out read twice
 * Threads   one
 * Graph     the calls without _ref: one launch on stream, no sync, no allocation, no host read; all pointers are device
 *           memory. Where the card can (sm_90) a launch begins while the one before ends, and waits for it before its first
 *           read. ERR_ARG for shapes outside the contract, ERR_DEVICE for a refused launch. No tokens: no launch */
#ifndef KERNELS_PLE_H
#define KERNELS_PLE_H

#include "kernels/device.h"
#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    KRN_PLE_LANES = 256,
    KRN_PLE_FAST_N = 2560,
    KRN_PLE_FAST_TOP_K = 10,
    KRN_PLE_TOKENS_MAX = 65535,
    KRN_PLE_N_MAX = 1 << 30,
    KRN_PLE_P_TOKENT = 532, /* where a plan's table of tokens begins, unless the plan has another header */
};

typedef struct krn_ple_shape { int32_t tokens, hc, n; } krn_ple_shape;

/* What the mixture of experts left to be added. */
typedef struct krn_ple_combine {
    const float *ye;
    const int32_t *plan;
    const float *ysh, *gs, *g;
    int32_t top_k, rows, p_tokent; /* rows: of ye */
} krn_ple_combine;

typedef struct krn_ple_query { const float *key, *value, *w_query, *w_conv; } krn_ple_query;

/* krn_ple_gnorm - y = gnorm(x) * w. It reads x twice; krn_ple_gnorm_cached once, where n is KRN_PLE_FAST_N. */
void krn_ple_gnorm_ref(krn_ple_shape s, const float *x, const float *w, float *y);
MUST_USE err_code krn_ple_gnorm(krn_ple_shape s, const float *x, const float *w, float *y, krn_stream stream, err *e);
MUST_USE err_code krn_ple_gnorm_cached(krn_ple_shape s, const float *x, const float *w, float *y, krn_stream stream,
                                       err *e);

/* The pair: krn_gr_norm_comb - resid_out and xn. krn_ple_query_gate_norm - from that resid_out, here resid, gate (NULL: not
 * wanted) and norm_w. */
void krn_gr_norm_comb_ref(krn_ple_shape s, krn_ple_combine in, const float *resid, float *resid_out, float *xn);
MUST_USE err_code krn_gr_norm_comb(krn_ple_shape s, krn_ple_combine in, const float *resid, float *resid_out, float *xn,
                                   krn_stream stream, err *e);
void krn_ple_query_gate_norm_ref(krn_ple_shape s, krn_ple_query q, const float *resid, float *gate, float *norm_w);
MUST_USE err_code krn_ple_query_gate_norm(krn_ple_shape s, krn_ple_query q, const float *resid, float *gate,
                                          float *norm_w, krn_stream stream, err *e);

/* krn_ple_comb_query_gate_norm - the pair as one, without xn: resid is read once, resid_out written once. */
void krn_ple_comb_query_gate_norm_ref(krn_ple_shape s, krn_ple_combine in, krn_ple_query q, const float *resid,
                                      float *resid_out, float *gate, float *norm_w);
MUST_USE err_code krn_ple_comb_query_gate_norm(krn_ple_shape s, krn_ple_combine in, krn_ple_query q, const float *resid,
                                               float *resid_out, float *gate, float *norm_w, krn_stream stream, err *e);

#ifdef __cplusplus
}
#endif

#endif
