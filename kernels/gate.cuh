/* The router on the device, shared by gate.cu and the fused kernels. R1..R3: kernels/gate.h. */
#ifndef KERNELS_GATE_CUH
#define KERNELS_GATE_CUH

#include "kernels/bits.cuh"

#include <limits.h>

__device__ __forceinline__ float krn_gate_score(float z)
{
    float softplus = z > 20.0f ? z : log1pf(expf(z));                                                /* R1 */
    return __fsqrt_rn(softplus);                                                                     /* R2 */
}

typedef struct krn_gate_candidate {
    float sel;
    int32_t id;
} krn_gate_candidate;

/* The order of ids: larger sel, numbers before NaN, then the lower id. Total, so the best does not depend on who asks. */
__device__ __forceinline__ bool krn_gate_before(krn_gate_candidate a, krn_gate_candidate b)
{
    bool a_nan = isnan(a.sel), b_nan = isnan(b.sel);
    if (a_nan != b_nan) return b_nan;
    if (!a_nan && a.sel != b.sel) return a.sel > b.sel;
    return a.id < b.id;
}

/* A row's choice by one warp, one pass over the experts a pick; all lanes call. scores, bias [n_experts]; ids, weights [k].
 * Every pick is the best of those that come after the pick before it, so nothing needs to be marked as taken. Lane j keeps
 * pick j. */
__device__ __forceinline__ void krn_gate_pick(const float *scores, const float *bias, int32_t n_experts, int32_t k,
                                              float route_scale, int32_t *ids, float *weights)
{
    int32_t lane = threadIdx.x % KRN_WARP, mine = 0;
    const krn_gate_candidate none = { __uint_as_float(0x7fc00000), INT_MAX }; /* after every expert */
    krn_gate_candidate last = { __uint_as_float(0x7f800000), -1 };            /* before every expert */
    float total = 0.0f;
    for (int32_t j = 0; j < k; j++) {
        krn_gate_candidate best = none;
        for (int32_t expert = lane; expert < n_experts; expert += KRN_WARP) {
            krn_gate_candidate c = { __fadd_rn(scores[expert], bias[expert]), expert };              /* R1 */
            if (krn_gate_before(last, c) && krn_gate_before(c, best)) best = c;
        }
        for (int apart = KRN_WARP / 2; apart > 0; apart /= 2) {
            krn_gate_candidate other = { __shfl_xor_sync(0xffffffff, best.sel, apart),
                                         __shfl_xor_sync(0xffffffff, best.id, apart) };
            if (krn_gate_before(other, best)) best = other;
        }
        last = best;
        if (lane == j) mine = best.id;
        total = __fadd_rn(total, scores[best.id]);                                                   /* R2 */
    }
    total = __fadd_rn(total, 1e-20f);
    if (lane >= k) return;
    ids[lane] = mine;
    weights[lane] = __fmul_rn(__fdiv_rn(scores[mine], total), route_scale);                          /* R3 */
}

#endif
