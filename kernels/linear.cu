/* Three ways, one contract: tensor cores (skinny.cuh) for what is aligned, double dot products for the mHC projections, and
 * a plain warp per element for shapes that no real model has. */
#include "kernels/linear.h"

#include "kernels/skinny.cuh"

#include <limits.h>

/* A launch's operands. Group g of z multiplies columns [g k, (g + 1) k) of x by rows [g group_n, (g + 1) group_n) of w. */
struct product {
    const bf16 *x;
    int64_t ldx;
    int32_t rows; /* of x */
    krn_weight w;
    int32_t group_n;
    krn_out out;
    void *y;
    int64_t ldy;
};

__device__ static void store(const product &p, int32_t t, int32_t n, float sum)
{
    const int64_t at = t * p.ldy + n;
    if (p.out == KRN_OUT_BF16) ((bf16 *)p.y)[at] = krn_bf16_of(sum);                                 /* R2 */
    else ((float *)p.y)[at] = skinny_f32(sum);
}

/* ---- tensor cores ---- */

/* A block sums SKINNY_WARPS / slices neighbours of 16 MT rows. Grid: x: rows of x, 8 NT a block, so that blocks that read
 * the same weights run together; y: rows of w; z: groups. */
template <krn_wformat F, int MT, int NT>
__global__ static void __launch_bounds__(SKINNY_THREADS, 2) skinny_kernel(const product p)
{
    extern __shared__ __align__(16) uint8_t rings[];
    const int32_t slices = skinny_slices(F, p.w.k), warp = threadIdx.x / KRN_WARP, g = threadIdx.x % KRN_WARP / 4;
    const int32_t n_rows = SKINNY_WARPS / slices * MT * SKINNY_M;
    const int32_t t0 = blockIdx.x * NT * SKINNY_N, n_x = min(p.rows - t0, NT * SKINNY_N);
    const int32_t group_n0 = blockIdx.z * p.group_n, end = group_n0 + p.group_n, n0 = group_n0 + blockIdx.y * n_rows;

    const bf16 *x[NT]; /* [k] */
#pragma unroll
    for (int j = 0; j < NT; j++) {
        const int32_t t = j * SKINNY_N + g;
        x[j] = t < n_x ? p.x + (t0 + t) * p.ldx + (int64_t)blockIdx.z * p.w.k : NULL;
    }
    skinny_sum<F, MT, NT>(p.w, n0 + warp / slices * MT * SKINNY_M, end, warp % slices, slices, x, (n_x - 1) / SKINNY_N + 1,
                          rings + warp * SKINNY_WARP_BYTES);                                         /* R1 */
    __syncthreads();
    for (int32_t i = threadIdx.x; i < n_rows * n_x; i += SKINNY_THREADS) {
        const int32_t r = i % n_rows, t = i / n_rows;
        if (n0 + r >= end) continue;
        const uint8_t *first = rings + r / (MT * SKINNY_M) * slices * SKINNY_WARP_BYTES;
        store(p, t0 + t, n0 + r, skinny_joined<MT>(first, slices, r % (MT * SKINNY_M), t));
    }
}

template <krn_wformat F, int MT, int NT>
static err_code launch_tiles(const product &p, int32_t groups, krn_stream s, err *e)
{
    const int32_t n_rows = SKINNY_WARPS / skinny_slices(F, p.w.k) * MT * SKINNY_M;
    const int64_t blocks = krn_blocks(p.group_n, n_rows);
    if (blocks > 65535 || groups > 65535)
        return err_set(e, ERR_ARG, "linear: n=%d in %d groups is too much for one launch", p.w.n, groups);
    TRY(skinny_prepare("linear", skinny_kernel<F, MT, NT>, e));
    const dim3 grid((unsigned)krn_blocks(p.rows, NT * SKINNY_N), (unsigned)blocks, (unsigned)groups);
    skinny_kernel<F, MT, NT><<<grid, SKINNY_THREADS, SKINNY_SHARED_BYTES, s>>>(p);
    return krn_launched("linear", e);
}

/* Two tiles of rows a warp read x half as often, but make half as many blocks. An H200 has 132 SMs. With up to 8 rows of x
 * every SM should have two blocks; with more, x is what passes through L2 most, and one is enough. */
template <krn_wformat F, int NT> static err_code launch_rows(const product &p, int32_t groups, krn_stream s, err *e)
{
    const int32_t pair_rows = SKINNY_WARPS / skinny_slices(F, p.w.k) * 2 * SKINNY_M, wanted = NT == 1 ? 264 : 132;
    if (krn_blocks(p.group_n, pair_rows) * groups >= wanted) return launch_tiles<F, 2, NT>(p, groups, s, e);
    return launch_tiles<F, 1, NT>(p, groups, s, e);
}

template <krn_wformat F> static err_code launch_skinny(const product &p, int32_t groups, krn_stream s, err *e)
{
    if (p.rows <= SKINNY_N) return launch_rows<F, 1>(p, groups, s, e);
    if (p.rows <= 2 * SKINNY_N) return launch_rows<F, 2>(p, groups, s, e);
    return launch_rows<F, 4>(p, groups, s, e);
}

/* ---- f32 ---- */

enum { DOT_THREADS = 512, DOT_WARPS = DOT_THREADS / KRN_WARP, DOT_N = 2, DOT_T = 2 };

/* Every product is exact. */
__device__ __forceinline__ static double dot8(const double x[8], const double w[8], double sum)
{
#pragma unroll
    for (int i = 0; i < 8; i++) sum = fma(x[i], w[i], sum);
    return sum;
}

__device__ __forceinline__ static void widen4(float4 v, double out[4])
{
    out[0] = (double)v.x, out[1] = (double)v.y, out[2] = (double)v.z, out[3] = (double)v.w;
}

/* A block: DOT_N rows of w times DOT_T rows of x, over the whole of K. What counts is that both operands are fetched by
 * many threads at once and that no SM turns many of them into doubles, which is slower than to multiply these: of 24
 * outputs, K 20,480 and 20 rows this makes 120 blocks, for the 132 SMs of an H200. Past the end of either a block takes the
 * last row again and does not store it. */
__global__ static void __launch_bounds__(DOT_THREADS) dot_kernel(const product p)
{
    __shared__ double part[DOT_N * DOT_T][DOT_WARPS];
    const int32_t n0 = blockIdx.x * DOT_N, t0 = blockIdx.y * DOT_T;
    const int32_t lane = threadIdx.x % KRN_WARP, warp = threadIdx.x / KRN_WARP;
    const float *w[DOT_N]; /* [k] */
    const bf16 *x[DOT_T];  /* [k] */
    double sum[DOT_N][DOT_T] = {};
#pragma unroll
    for (int i = 0; i < DOT_N; i++)
        w[i] = (const float *)((const uint8_t *)p.w.data + min(n0 + i, p.w.n - 1) * p.w.row_bytes);
#pragma unroll
    for (int j = 0; j < DOT_T; j++) x[j] = p.x + min(t0 + j, p.rows - 1) * p.ldx;

#pragma unroll 2
    for (int32_t k = 8 * threadIdx.x; k < p.w.k; k += 8 * DOT_THREADS) {
        float4 low[DOT_N], high[DOT_N];
        uint4 x8[DOT_T];
        double wide_x[DOT_T][8];
#pragma unroll
        for (int i = 0; i < DOT_N; i++) {
            low[i] = __ldg((const float4 *)(w[i] + k));
            high[i] = __ldg((const float4 *)(w[i] + k + 4));
        }
#pragma unroll
        for (int j = 0; j < DOT_T; j++) x8[j] = __ldg((const uint4 *)(x[j] + k));
#pragma unroll
        for (int j = 0; j < DOT_T; j++) {
            float v[8];
            krn_unpack8(x8[j], v);
#pragma unroll
            for (int c = 0; c < 8; c++) wide_x[j][c] = (double)v[c];
        }
#pragma unroll
        for (int i = 0; i < DOT_N; i++) {
            double wide_w[8];
            widen4(low[i], wide_w);
            widen4(high[i], wide_w + 4);
#pragma unroll
            for (int j = 0; j < DOT_T; j++) sum[i][j] = dot8(wide_x[j], wide_w, sum[i][j]);          /* R1 */
        }
    }
#pragma unroll
    for (int i = 0; i < DOT_N; i++)
#pragma unroll
        for (int j = 0; j < DOT_T; j++) {
            const double v = krn_warp_sum(sum[i][j]);
            if (lane == 0) part[i * DOT_T + j][warp] = v;
        }
    __syncthreads();
    if (threadIdx.x >= DOT_N * DOT_T) return;
    const int32_t n = n0 + threadIdx.x / DOT_T, t = t0 + threadIdx.x % DOT_T;
    double total = part[threadIdx.x][0];
    for (int i = 1; i < DOT_WARPS; i++) total += part[threadIdx.x][i];
    if (n < p.w.n && t < p.rows) store(p, t, n, (float)total);
}

static err_code launch_dot(const product &p, krn_stream s, err *e)
{
    const dim3 grid((unsigned)krn_blocks(p.w.n, DOT_N), (unsigned)krn_blocks(p.rows, DOT_T));
    if (grid.y > 65535) return err_set(e, ERR_ARG, "linear: %d rows are too many for one launch", p.rows);
    dot_kernel<<<grid, DOT_THREADS, 0, s>>>(p);
    return krn_launched("linear", e);
}

/* ---- anything ---- */

enum { PLAIN_WARPS = 8 };

/* 2^(b - 127); 0 is the subnormal 2^-127. */
__device__ static float power_of(uint32_t b) { return __uint_as_float(b ? b << 23 : 0x400000); }

/* Column k of a row; scale: of the row. Codes are placed in an f32 as skinny.cuh places them in a bf16. */
__device__ static float weight_at(krn_wformat format, const uint8_t *row, const uint8_t *scale, int32_t k)
{
    if (format == KRN_W_BF16) return krn_f32_of((bf16)(row[2 * (int64_t)k] | row[2 * (int64_t)k + 1] << 8));
    if (format == KRN_W_F32) {
        const uint8_t *p = row + 4 * (int64_t)k;
        return __uint_as_float(p[0] | p[1] << 8 | p[2] << 16 | (uint32_t)p[3] << 24);
    }
    float code;
    if (format == KRN_W_FP8) {
        const uint32_t q = row[k];
        code = __uint_as_float((q & 0x80) << 24 | (q & 0x7f) << 20) * 0x1p120f;
    } else {
        const uint32_t q = row[k / 2] >> 4 * (k % 2);
        code = __uint_as_float((q & 8) << 28 | (q & 7) << 22) * 0x1p126f;
    }
    return code * power_of(scale[k / 32]);
}

/* A warp per output and row of x. Grid: x: rows of w; y: rows of x, in turns; z: groups. */
__global__ static void __launch_bounds__(PLAIN_WARPS * KRN_WARP) plain_kernel(const product p)
{
    const int32_t lane = threadIdx.x % KRN_WARP, r = blockIdx.x * PLAIN_WARPS + threadIdx.x / KRN_WARP;
    if (r >= p.group_n) return;
    const int32_t n = blockIdx.z * p.group_n + r;
    const uint8_t *row = (const uint8_t *)p.w.data + n * p.w.row_bytes, *scale = NULL;
    if (skinny_scaled(p.w.format))
        scale = p.w.scale + (p.w.format == KRN_W_FP8 ? (p.w.scale_row0 + n) / 32 : n) * p.w.scale_row_bytes;
    for (int32_t t = blockIdx.y; t < p.rows; t += gridDim.y) {
        const bf16 *x = p.x + t * p.ldx + (int64_t)blockIdx.z * p.w.k; /* [k] */
        double sum = 0;
        for (int32_t k = lane; k < p.w.k; k += KRN_WARP)
            sum = fma((double)krn_f32_of(x[k]), (double)weight_at(p.w.format, row, scale, k), sum);  /* R1 */
        sum = krn_warp_sum(sum);
        if (lane == 0) store(p, t, n, (float)sum);
    }
}

static err_code launch_plain(const product &p, int32_t groups, krn_stream s, err *e)
{
    if (groups > 65535) return err_set(e, ERR_ARG, "linear: %d groups are too many for one launch", groups);
    const dim3 grid((unsigned)krn_blocks(p.group_n, PLAIN_WARPS), (unsigned)min(p.rows, 1024), (unsigned)groups);
    plain_kernel<<<grid, PLAIN_WARPS * KRN_WARP, 0, s>>>(p);
    return krn_launched("linear", e);
}

/* ---- the launchers ---- */

extern "C" err_code krn_linear_groups(const bf16 *x, int64_t ldx, int32_t T, const krn_weight *w, int32_t groups,
                                      krn_out out, void *y, int64_t ldy, krn_stream stream, err *e)
{
    if (T < 0 || w->n < 1 || w->k < 1 || groups < 1 || w->n % groups || ldx < (int64_t)groups * w->k || ldy < w->n)
        return err_set(e, ERR_ARG, "linear: T=%d n=%d k=%d groups=%d ldx=%lld ldy=%lld", T, w->n, w->k, groups,
                       (long long)ldx, (long long)ldy);
    if (skinny_scaled(w->format) && w->k % 32)
        return err_set(e, ERR_ARG, "linear: k=%d is no multiple of the 32 columns of a scale", w->k);
    if (T == 0) return ERR_OK;
    const product p = { x, ldx, T, *w, w->n / groups, out, y, ldy };
    const bool aligned = w->k % 8 == 0 && krn_aligned(w->data, w->row_bytes) && krn_aligned(x, 2 * ldx);
    if (!aligned) return launch_plain(p, groups, stream, e);
    switch (w->format) {
    case KRN_W_FP8: return launch_skinny<KRN_W_FP8>(p, groups, stream, e);
    case KRN_W_FP4: return launch_skinny<KRN_W_FP4>(p, groups, stream, e);
    case KRN_W_BF16: return launch_skinny<KRN_W_BF16>(p, groups, stream, e);
    case KRN_W_F32: break;
    }
    return groups == 1 ? launch_dot(p, stream, e) : launch_plain(p, groups, stream, e);
}

extern "C" err_code krn_linear(const bf16 *x, int64_t ldx, int32_t T, const krn_weight *w, krn_out out, void *y,
                               int64_t ldy, krn_stream stream, err *e)
{
    return krn_linear_groups(x, ldx, T, w, 1, out, y, ldy, stream, e);
}
