#include "kernels/swiglu.h"

void krn_swiglu_ref(const bf16 *g, const bf16 *u, const float *route_weight, float limit, bf16 *h, int32_t rows,
                    int32_t cols)
{
    for (int32_t r = 0; r < rows; r++) {
        for (int32_t c = 0; c < cols; c++) {
            int64_t i = (int64_t)r * cols + c;
            float gate = f32_from_bf16(g[i]), up = f32_from_bf16(u[i]);
            /* Comparisons written so that NaN passes. */
            if (gate > limit) gate = limit;
            if (up > limit) up = limit;
            if (up < -limit) up = -limit;
            float v = gate / (1.0f + krn_f32_exp(-gate)) * up;                                       /* R1..R3 */
            if (route_weight) v = route_weight[r] * v;                                               /* R4 */
            h[i] = bf16_from_f32(v);                                                                 /* R5 */
        }
    }
}
