#include "kernels/rmsnorm.h"

#include "kernels/row_loops.h"

void krn_rmsnorm_ref(const bf16 *x, int64_t ldx, const bf16 *w, bf16 *y, int64_t ldy, int32_t rows, int32_t dim, float eps)
{
    const krn_row_loops *loops = krn_row_loops_get();
    for (int32_t row = 0; row < rows; row++)
        loops->scale(x + row * ldx, w, loops->inv_rms(x + row * ldx, dim, eps), y + row * ldy, dim); /* R1..R6 */
}
