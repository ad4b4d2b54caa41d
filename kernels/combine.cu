/* A column a thread. A block works in one row: it ranks the row's experts once, then adds. */
#include "kernels/combine.h"

#include "kernels/combine.cuh"
#include "kernels/launch.cuh"

#include <limits.h>

enum { THREADS = 256, COLUMN_BLOCKS_MAX = 65535 };

__device__ static void put(float *y, float sum) { *y = sum; }
__device__ static void put(bf16 *y, float sum) { *y = krn_bf16_of(sum); }                            /* R3 of exact */

/* out is bf16 for exact, float for fused. Grid (rows, dim / THREADS). */
template <typename out>
__global__ static void combine_kernel(const float *slot, const int32_t *ids, const float *shared, out *y, int32_t k,
                                      int32_t dim)
{
    constexpr bool exact = sizeof(out) == sizeof(bf16);
    extern __shared__ int32_t order[]; /* [k] */
    krn_begin();
    krn_combine_order(ids + (int64_t)blockIdx.x * k, k, order);
    __syncthreads();
    int32_t column = blockIdx.y * THREADS + threadIdx.x;
    if (column >= dim) return;
    int64_t at = (int64_t)blockIdx.x * dim + column;
    float sum[1];
    krn_combine_sum<exact, 1>(slot + (int64_t)blockIdx.x * k * dim + column, shared + at, order, k, dim, 1, false, sum);
    put(y + at, sum[0]);
}

template <typename out>
static err_code combine(const char *op, const float *slot, const int32_t *ids, const float *shared, out *y, int32_t rows,
                        int32_t k, int32_t dim, krn_stream stream, err *e)
{
    int64_t column_blocks = krn_blocks(dim, THREADS);
    if (rows < 0 || k < 1 || k > KRN_COMBINE_MAX || dim < 0 || column_blocks > COLUMN_BLOCKS_MAX)
        return err_set(e, ERR_ARG, "%s: rows=%d k=%d dim=%d", op, rows, k, dim);
    if (rows == 0 || dim == 0) return ERR_OK;
    krn_launch(combine_kernel<out>, dim3((unsigned)rows, (unsigned)column_blocks), THREADS, (unsigned)k * sizeof(int32_t),
               stream, slot, ids, shared, y, k, dim);
    return krn_launched(op, e);
}

extern "C" err_code krn_combine_exact(const float *slot, const int32_t *ids, const float *shared, bf16 *y, int32_t rows,
                                      int32_t k, int32_t dim, krn_stream stream, err *e)
{
    return combine("combine_exact", slot, ids, shared, y, rows, k, dim, stream, e);
}

extern "C" err_code krn_combine_fused(const float *slot, const int32_t *ids, const float *shared, float *y, int32_t rows,
                                      int32_t k, int32_t dim, krn_stream stream, err *e)
{
    return combine("combine_fused", slot, ids, shared, y, rows, k, dim, stream, e);
}

/* ---- element by element ---- */

__global__ static void round_kernel(const float *x, bf16 *y, int64_t n)
{
    krn_begin();
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n) y[i] = krn_bf16_of(x[i]);
}

__global__ static void round_f32_kernel(const float *x, float *y, int64_t n)
{
    krn_begin();
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n) y[i] = krn_bf16_rounded(x[i]);
}

__global__ static void add_kernel(const float *a, const float *b, float *y, int64_t n)
{
    krn_begin();
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n) y[i] = __fadd_rn(a[i], b[i]);
}

static err_code check_count(const char *op, int64_t n, err *e)
{
    if (n >= 0 && krn_blocks(n, THREADS) <= INT_MAX) return ERR_OK;
    return err_set(e, ERR_ARG, "%s: n=%lld", op, (long long)n);
}

extern "C" err_code krn_round_bf16(const float *x, bf16 *y, int64_t n, krn_stream stream, err *e)
{
    TRY(check_count("round_bf16", n, e));
    if (n == 0) return ERR_OK;
    krn_launch(round_kernel, (unsigned)krn_blocks(n, THREADS), THREADS, 0, stream, x, y, n);
    return krn_launched("round_bf16", e);
}

extern "C" err_code krn_round_bf16_f32(const float *x, float *y, int64_t n, krn_stream stream, err *e)
{
    TRY(check_count("round_bf16_f32", n, e));
    if (n == 0) return ERR_OK;
    krn_launch(round_f32_kernel, (unsigned)krn_blocks(n, THREADS), THREADS, 0, stream, x, y, n);
    return krn_launched("round_bf16_f32", e);
}

extern "C" err_code krn_add_f32(const float *a, const float *b, float *y, int64_t n, krn_stream stream, err *e)
{
    TRY(check_count("add_f32", n, e));
    if (n == 0) return ERR_OK;
    krn_launch(add_kernel, (unsigned)krn_blocks(n, THREADS), THREADS, 0, stream, a, b, y, n);
    return krn_launched("add_f32", e);
}
