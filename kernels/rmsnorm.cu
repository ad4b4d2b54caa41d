/* A block a row: see rmsnorm.cuh. */
#include "kernels/rmsnorm.h"

#include "kernels/launch.cuh"
#include "kernels/rmsnorm.cuh"

__global__ static void __launch_bounds__(KRN_RMSNORM_THREADS_MAX)
    rmsnorm_kernel(const bf16 *x, int64_t ldx, const bf16 *w, bf16 *y, int64_t ldy, int32_t dim, float eps, bool aligned)
{
    x += blockIdx.x * ldx; /* [dim] */
    y += blockIdx.x * ldy; /* [dim] */
    krn_rmsnorm_row(
        w, dim, eps, aligned, [&](int64_t i) { return krn_load8(x + i, dim - i, aligned); }, [] {},
        [&](int64_t i, uint4, uint4 norm) { krn_store8(y + i, norm, dim - i, aligned); });
}

extern "C" err_code krn_rmsnorm(const bf16 *x, int64_t ldx, const bf16 *w, bf16 *y, int64_t ldy, int32_t rows, int32_t dim,
                                float eps, krn_stream stream, err *e)
{
    if (rows < 0 || dim < 1 || ldx < dim || ldy < dim)
        return err_set(e, ERR_ARG, "rmsnorm: rows=%d dim=%d ldx=%lld ldy=%lld", rows, dim, (long long)ldx, (long long)ldy);
    if (rows == 0) return ERR_OK;
    bool aligned = krn_aligned(x, 2 * ldx) && krn_aligned(y, 2 * ldy) && krn_aligned(w);
    krn_launch(rmsnorm_kernel, (unsigned)rows, krn_rmsnorm_threads(dim), 0, stream, x, ldx, w, y, ldy, dim, eps, aligned);
    return krn_launched("rmsnorm", e);
}
