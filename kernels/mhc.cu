/* Mixes: a block a row; after the sum of squares one warp holds the whole hc x hc matrix, an element a lane (two where hc
 * is above 5), and the Sinkhorn passes are shuffles. Collapse and expand: eight columns of a row a thread.
 * hc is a template argument, so that matrices and columns live in registers. */
#include "kernels/mhc.h"

#include "kernels/launch.cuh"
#include "kernels/mhc.cuh"

enum { MIX_THREADS = 1024, IN_FLIGHT = 3 };

/* ---- mixes ---- */

/* In double, so that no bit depends on whose exp it is. A block has few of them. */
__device__ static float rounded_exp(float x) { return (float)exp((double)x); }
__device__ static float sigmoid(float z) { return __fdiv_rn(1.0f, __fadd_rn(1.0f, rounded_exp(-z))); }

/* An HC x HC matrix in a warp, row-major: lane i holds element i, and element i + 32 in c[1]. What lanes past the end
 * hold is never read. */
template <int HC>
struct warp_matrix {
    static constexpr int N = HC * HC, HELD = (N + KRN_WARP - 1) / KRN_WARP;
    float c[HELD];

    /* Any element; all lanes call. */
    __device__ float element(int index) const
    {
        float v = __shfl_sync(0xffffffff, c[0], index % KRN_WARP);
        if (HELD == 1) return v;
        float second = __shfl_sync(0xffffffff, c[HELD - 1], index % KRN_WARP);
        return index < KRN_WARP ? v : second;
    }
    /* The sums of the rows (or columns) that this lane's elements lie in, left to right (top to bottom). */
    __device__ void sums(bool of_rows, float out[HELD]) const
    {
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            int mine = threadIdx.x % KRN_WARP + i * KRN_WARP;
            int first = of_rows ? mine / HC * HC : mine % HC, step = of_rows ? 1 : HC;
            out[i] = element(first);
#pragma unroll
            for (int k = 1; k < HC; k++) out[i] = __fadd_rn(out[i], element(first + k * step));
        }
    }
    __device__ void normalise(bool of_rows, float eps)
    {
        float sum[HELD];
        sums(of_rows, sum);
#pragma unroll
        for (int i = 0; i < HELD; i++) c[i] = __fdiv_rn(c[i], __fadd_rn(sum[i], eps));
    }
    /* Softmax of every row, + eps. The maximum drops a NaN; the sum does not, so that its row is NaN all the same. */
    __device__ void softmax(float eps)
    {
        float sum[HELD], max[HELD];
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            int first = (threadIdx.x % KRN_WARP + i * KRN_WARP) / HC * HC;
            max[i] = element(first);
#pragma unroll
            for (int k = 1; k < HC; k++) max[i] = fmaxf(max[i], element(first + k));
        }
#pragma unroll
        for (int i = 0; i < HELD; i++) c[i] = rounded_exp(__fsub_rn(c[i], max[i]));
        sums(true, sum);
#pragma unroll
        for (int i = 0; i < HELD; i++) c[i] = __fadd_rn(__fdiv_rn(c[i], sum[i]), eps);
    }
};

/* 1 / sqrt(mean(x*x) + eps) of a row of n elements; all threads get it. */
__device__ static float inv_rms(const bf16 *x, int64_t n, float eps, bool aligned)
{
    __shared__ double warp_sums[KRN_WARP];
    double sum = 0.0;
    for (int64_t i = threadIdx.x * 8; i < n; i += IN_FLIGHT * MIX_THREADS * 8) {
        uint4 part[IN_FLIGHT]; /* past the end: zeros, which leave the sum as it is */
#pragma unroll
        for (int k = 0; k < IN_FLIGHT; k++) {
            int64_t at = i + k * MIX_THREADS * 8;
            part[k] = krn_load8(x + at, n - at, aligned);
        }
#pragma unroll
        for (int k = 0; k < IN_FLIGHT * 8; k++) {
            float v[8];
            krn_unpack8(part[k / 8], v);
            sum = fma((double)v[k % 8], (double)v[k % 8], sum); /* the square is exact */
        }
    }
    sum = krn_block_sum(sum, warp_sums);
    return (float)(1.0 / sqrt((double)__fadd_rn((float)(sum / (double)n), eps)));
}

template <int HC>
__global__ static void __launch_bounds__(MIX_THREADS)
    mixes_kernel(const bf16 *x, const float *dots, const float *base, const float *scale, int32_t dim, float norm_eps,
                 float hc_eps, int32_t iters, float *pre, float *post, float *comb, bool aligned)
{
    constexpr int N = HC * HC, HELD = warp_matrix<HC>::HELD, COLS = 2 * HC + N;
    const int64_t row = blockIdx.x, n = (int64_t)HC * dim;
    const int warp = threadIdx.x / KRN_WARP, lane = threadIdx.x % KRN_WARP;
    /* Warp 0 makes comb, warp 1 pre and post. What they need is on its way before the sum. */
    float dot[HELD], shift[HELD], factor[HELD];
    krn_let_next_begin();
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        int index = lane + i * KRN_WARP, column = warp == 0 ? 2 * HC + index : index; /* of dots and base */
        bool used = warp == 0 ? index < N : warp == 1 && index < 2 * HC;
        shift[i] = used ? base[column] : 0.0f;
        factor[i] = used ? scale[warp == 0 ? 2 : index / HC] : 0.0f;
    }
    krn_wait_for_previous();
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        int index = lane + i * KRN_WARP, column = warp == 0 ? 2 * HC + index : index;
        bool used = warp == 0 ? index < N : warp == 1 && index < 2 * HC;
        dot[i] = used ? dots[row * COLS + column] : 0.0f;
    }
    const float r = inv_rms(x + row * n, n, norm_eps, aligned);                                      /* R1 */
    if (warp > 1) return;
    warp_matrix<HC> z;
#pragma unroll
    for (int i = 0; i < HELD; i++) z.c[i] = __fadd_rn(__fmul_rn(__fmul_rn(dot[i], r), factor[i]), shift[i]); /* R2 */
    if (warp == 1) {                                                                                 /* R3 */
        if (lane < HC) pre[row * HC + lane] = __fadd_rn(sigmoid(z.c[0]), hc_eps);
        else if (lane < 2 * HC) post[row * HC + lane - HC] = __fmul_rn(2.0f, sigmoid(z.c[0]));
        return;
    }
    z.softmax(hc_eps);                                                                               /* R4 */
    z.normalise(false, hc_eps);
    for (int32_t i = 1; i < iters; i++) {                                                            /* R5 */
        z.normalise(true, hc_eps);
        z.normalise(false, hc_eps);
    }
#pragma unroll
    for (int i = 0; i < HELD; i++)
        if (lane + i * KRN_WARP < N) comb[row * N + lane + i * KRN_WARP] = z.c[i];
}

extern "C" err_code krn_mhc_mixes(const bf16 *x, const float *dots, const float *base, const float *scale, int32_t rows,
                                  int32_t hc, int32_t dim, float norm_eps, float hc_eps, int32_t iters, float *pre,
                                  float *post, float *comb, krn_stream stream, err *e)
{
    if (rows < 0 || !krn_mhc_copies_fit(hc) || dim < 1 || iters < 1)
        return err_set(e, ERR_ARG, "mhc_mixes: rows=%d hc=%d dim=%d iters=%d", rows, hc, dim, iters);
    if (rows == 0) return ERR_OK;
    bool aligned = krn_aligned(x, 2 * (int64_t)hc * dim);
#define MIXES(HC)                                                                                                          \
    krn_launch(mixes_kernel<HC>, (unsigned)rows, MIX_THREADS, 0, stream, x, dots, base, scale, dim, norm_eps, hc_eps,      \
               iters, pre, post, comb, aligned)
    KRN_MHC_FOR_COPIES(hc, MIXES)
#undef MIXES
    return krn_launched("mhc_mixes", e);
}

/* ---- collapse, expand ---- a thread eight columns of a row */

template <int HC>
__global__ static void collapse_kernel(const bf16 *x, const float *pre, bf16 *y, int32_t dim, bool aligned)
{
    krn_begin();
    const int64_t row = blockIdx.x;
    const int32_t d = krn_mhc_own_column();
    if (d >= dim) return;
    float sum[KRN_MHC_COLUMNS];
    krn_mhc_columns<HC>(x + row * HC * dim, dim, d, aligned).mix(pre + row * HC, 1, sum);            /* R1 */
    krn_store8(y + row * dim + d, krn_pack8(sum), dim - d, aligned);                                 /* R2 */
}

template <int HC>
__global__ static void expand_kernel(const bf16 *y, const bf16 *x, const float *post, const float *comb, bf16 *out,
                                     int32_t dim, bool aligned)
{
    krn_begin();
    const int64_t row = blockIdx.x;
    const int32_t d = krn_mhc_own_column();
    if (d >= dim) return;
    const uint4 bits = krn_load8(y + row * dim + d, dim - d, aligned);
    const krn_mhc_columns<HC> stream(x + row * HC * dim, dim, d, aligned);
    const krn_mhc_weights<HC> weights(post + row * HC, comb + row * HC * HC);
    float own[KRN_MHC_COLUMNS];
    krn_unpack8(bits, own);
    krn_mhc_expand_columns(own, stream, weights, out + row * HC * dim, dim, d, aligned);
}

extern "C" err_code krn_mhc_collapse(const bf16 *x, const float *pre, bf16 *y, int32_t rows, int32_t hc, int32_t dim,
                                     krn_stream stream, err *e)
{
    TRY(krn_mhc_check_columns("mhc_collapse", rows, hc, dim, e));
    if (rows == 0) return ERR_OK;
    const dim3 grid = krn_mhc_column_grid(rows, dim);
    bool aligned = krn_aligned(x, 2 * (int64_t)dim) && krn_aligned(y);
#define COLLAPSE(HC) krn_launch(collapse_kernel<HC>, grid, KRN_MHC_COLUMN_THREADS, 0, stream, x, pre, y, dim, aligned)
    KRN_MHC_FOR_COPIES(hc, COLLAPSE)
#undef COLLAPSE
    return krn_launched("mhc_collapse", e);
}

extern "C" err_code krn_mhc_expand(const bf16 *y, const bf16 *x, const float *post, const float *comb, bf16 *out,
                                   int32_t rows, int32_t hc, int32_t dim, krn_stream stream, err *e)
{
    TRY(krn_mhc_check_columns("mhc_expand", rows, hc, dim, e));
    if (rows == 0) return ERR_OK;
    const dim3 grid = krn_mhc_column_grid(rows, dim);
    bool aligned = krn_aligned(y, 2 * (int64_t)dim) && krn_aligned(x) && krn_aligned(out);
#define EXPAND(HC) \
    krn_launch(expand_kernel<HC>, grid, KRN_MHC_COLUMN_THREADS, 0, stream, y, x, post, comb, out, dim, aligned)
    KRN_MHC_FOR_COPIES(hc, EXPAND)
#undef EXPAND
    return krn_launched("mhc_expand", e);
}
