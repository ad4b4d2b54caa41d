#include "kernels/act_qdq.h"

/* Below this, starting threads costs more than the work. */
enum { PARALLEL_ELEMENTS = 1 << 16 };

void krn_act_qdq_ref(const bf16 *x, int64_t ldx, bf16 *y, int64_t ldy, int32_t rows, int32_t cols)
{
#pragma omp parallel for schedule(static) if ((int64_t)rows * cols >= PARALLEL_ELEMENTS)
    for (int32_t r = 0; r < rows; r++) {
        for (int32_t c = 0; c < cols; c += FMT_QDQ_GROUP) {
            uint8_t codes[FMT_QDQ_GROUP], scale;
            fmt_qdq_encode(x + r * ldx + c, codes, &scale);                                          /* R1, R2 */
            for (int i = 0; i < FMT_QDQ_GROUP; i++) y[r * ldy + c + i] = fmt_qdq_decode(codes[i], scale);
        }
    }
}
