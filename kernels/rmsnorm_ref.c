#include "kernels/rmsnorm.h"

#include "kernels/lanes.h"

void krn_rmsnorm_ref(const bf16 *x, int64_t ldx, const bf16 *w, bf16 *y, int64_t ldy, int32_t rows, int32_t dim, float eps)
{
    for (int32_t row = 0; row < rows; row++) {
        const bf16 *xr = x + row * ldx; /* [dim] */
        bf16 *yr = y + row * ldy;       /* [dim] */
        float r = krn_lanes_inv_rms(xr, dim, eps);                                                   /* R1..R4 */
        for (int32_t i = 0; i < dim; i++)
            yr[i] = bf16_from_f32(f32_from_bf16(w[i]) * (f32_from_bf16(xr[i]) * r));                 /* R5, R6 */
    }
}
