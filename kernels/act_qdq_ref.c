#include "kernels/act_qdq.h"

#include "kernels/row_loops.h"

/* Below this, starting threads costs more than the work. */
enum { PARALLEL_ELEMENTS = 1 << 16 };

void krn_act_qdq_ref(const bf16 *x, int64_t ldx, bf16 *y, int64_t ldy, int32_t rows, int32_t cols)
{
    const krn_row_loops *loops = krn_row_loops_get();
#pragma omp parallel for schedule(static) if ((int64_t)rows * cols >= PARALLEL_ELEMENTS)
    for (int32_t r = 0; r < rows; r++) loops->qdq(x + r * ldx, y + r * ldy, cols);                   /* R1, R2 */
}
