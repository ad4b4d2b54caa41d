#include "kernels/confidence.h"

#include "kernels/lanes.h"

float krn_confidence_ref(const bf16 *hidden, int32_t dim, const bf16 *markov, int32_t rank, const bf16 *w, krn_acc acc)
{
    float lane_f32[KRN_LANES] = { 0 };
    double lane_f64[KRN_LANES] = { 0 };
    for (int32_t i = 0; i < dim + rank; i++) {
        float x = f32_from_bf16(i < dim ? hidden[i] : markov[i - dim]), wi = f32_from_bf16(w[i]);
        lane_f32[i % KRN_LANES] += x * wi;                                                           /* R1 */
        lane_f64[i % KRN_LANES] += (double)x * (double)wi;
    }
    return acc == KRN_ACC_F64 ? (float)krn_lanes_join_f64(lane_f64) : krn_lanes_join_f32(lane_f32);
}
