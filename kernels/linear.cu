/* Three ways, one contract: tensor cores (skinny.cuh) for what is aligned, dot products for the mHC projections and the
 * gates, and a plain warp per element for shapes that no real model has. */
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

/* Slices of a tile. Of a large weight few: warps beside each other then read the same columns of x, out of L1. */
static int32_t slices_of(krn_wformat f, int32_t n, int32_t k)
{
    enum { WARPS_WANTED = 16384, TILES_MANY = 256 }; /* many: a block of 8 warps should have room for all slices */
    const int64_t tiles = krn_blocks(n, SKINNY_M);
    int32_t most = tiles > TILES_MANY ? 8 : 16;
    while (most > 1 && tiles * most > WARPS_WANTED) most /= 2;
    return skinny_slices(f, k, most);
}

/* The tiles of a group are divided over n_teams teams. Grid: x: rows of x, 8 NT a block; y: blocks of teams; z: groups. */
template <krn_wformat F, int MT, int NT>
__global__ static void __launch_bounds__(skinny_threads(MT), 1)
    skinny_kernel(const product p, const skinny_split split, int32_t n_teams, uint32_t each, uint32_t more)
{
    if (MT > 1 && !SKINNY_LARGE) return; /* is not launched */
    extern __shared__ __align__(128) uint8_t shared[];
    const skinny_team team(shared, split, MT, NT);
    const int32_t t0 = blockIdx.x * NT * SKINNY_N, n_x = min(p.rows - t0, NT * SKINNY_N);
    const int32_t group_n0 = blockIdx.z * p.group_n, index = blockIdx.y * split.teams(MT) + team.index;
    if (index >= n_teams) return;
    const int32_t first = split.first(index, each, more), last = split.first(index + 1, each, more);
    const int32_t row0 = group_n0 + first * SKINNY_M, end = group_n0 + min(last * SKINNY_M, p.group_n);

    const bf16 *x[NT]; /* [k] */
#pragma unroll
    for (int j = 0; j < NT; j++) {
        const int32_t t = t0 + min(j * SKINNY_N + (int32_t)(threadIdx.x % KRN_WARP / 4), n_x - 1);
        x[j] = p.x + t * p.ldx + (int64_t)blockIdx.z * p.w.k;
    }
    skinny_stream<F, MT, skinny_run> stream(p.w, { row0, end }, team.slice, team.slices, team.ring);
    skinny_product<F, MT, NT>(team, stream, row0, end, p.w.k, x, n_x,
                              [&](int32_t t, int32_t n, float sum) { store(p, t0 + t, n, sum); });   /* R1 */
    stream.finish();
}

/* What one launch of MT tiles a warp looks like. */
struct tiling {
    int32_t tiles, n_teams, run; /* tiles of a group; teams that share them; the longest team's */

    /* One block for every multiprocessor. others: blocks for each of a group's teams. */
    tiling(int mt, const skinny_split &split, int32_t group_n, int64_t others, int32_t n_sm)
        : tiles((int32_t)krn_blocks(group_n, SKINNY_M))
    {
        n_teams = (int32_t)min((int64_t)tiles, max((int64_t)1, n_sm / others) * split.teams(mt));
        run = (int32_t)krn_blocks(tiles, n_teams);
    }
};

template <krn_wformat F, int MT, int NT>
static err_code launch_tiles(const product &p, int32_t groups, const skinny_split &split, const tiling &t,
                             const skinny_device &device, krn_stream s, err *e)
{
    const int32_t bytes = device.shared_bytes(MT, NT);
    const dim3 grid((unsigned)krn_blocks(p.rows, NT * SKINNY_N), (unsigned)krn_blocks(t.n_teams, split.teams(MT)),
                    (unsigned)groups);
    if (groups > 65535) return err_set(e, ERR_ARG, "linear: %d groups are too many for one launch", groups);
    TRY(skinny_prepare("linear", skinny_kernel<F, MT, NT>, bytes, e));
    skinny_kernel<F, MT, NT><<<grid, skinny_threads(MT), bytes, s>>>(p, split, t.n_teams, (uint32_t)t.tiles / t.n_teams,
                                                                     (uint32_t)t.tiles % t.n_teams);
    return krn_launched("linear", e);
}

/* More tiles a warp read x less often, but a team with one more than a multiple of them computes some for nothing; a team
 * with three has a block of 8 warps. */
template <krn_wformat F, int NT> static err_code launch_rows(const product &p, int32_t groups, krn_stream s, err *e)
{
    skinny_device device = {};
    TRY(skinny_device_get("linear", &device, e));
    const skinny_split split(slices_of(F, p.w.n, p.w.k));
    const int64_t others = krn_blocks(p.rows, NT * SKINNY_N) * groups;
    if (device.large && split.slices <= skinny_warps(4)) {
        const tiling four(4, split, p.group_n, others, device.n_sm);
        if (four.run == 3) return launch_tiles<F, 4, NT>(p, groups, split, four, device, s, e);
    }
    const tiling two(2, split, p.group_n, others, device.n_sm);
    if ((two.run == 2 || two.run > 3) && device.large) return launch_tiles<F, 2, NT>(p, groups, split, two, device, s, e);
    return launch_tiles<F, 1, NT>(p, groups, split, two, device, s, e);
}

template <krn_wformat F> static err_code launch_skinny(const product &p, int32_t groups, krn_stream s, err *e)
{
    const int64_t tiles = krn_blocks(p.rows, SKINNY_N), blocks = krn_blocks(tiles, SKINNY_NT_MAX);
    switch (krn_blocks(tiles, (int32_t)blocks)) {
    case 1: return launch_rows<F, 1>(p, groups, s, e);
    case 2: return launch_rows<F, 2>(p, groups, s, e);
    default: return launch_rows<F, 3>(p, groups, s, e);
    }
}

/* ---- dot products ---- */

enum { DOT_THREADS = 512, DOT_WARPS = DOT_THREADS / KRN_WARP, DOT_BF16_N_MAX = 256 };

/* Eight columns of a row of w, as stored; how sums are kept, and how many rows of w and of x a block takes. */
template <krn_wformat F> struct dot_columns;

/* Every product is exact. What counts is that both operands are fetched by many threads at once and that no multiprocessor
 * turns many of them into doubles, which is slower than to multiply these: of 24 outputs, K 20,480 and 20 rows this makes
 * 120 blocks, for the 132 of an H200. */
template <> struct dot_columns<KRN_W_F32> {
    typedef double sum;
    enum { N = 2, T = 2, COLUMN_BYTES = 4 };
    float4 low, high;

    __device__ __forceinline__ void load(const uint8_t *p)
    {
        low = __ldg((const float4 *)p);
        high = __ldg((const float4 *)(p + 16));
    }
    __device__ __forceinline__ void widen(double out[8]) const
    {
        out[0] = (double)low.x, out[1] = (double)low.y, out[2] = (double)low.z, out[3] = (double)low.w;
        out[4] = (double)high.x, out[5] = (double)high.y, out[6] = (double)high.z, out[7] = (double)high.w;
    }
};

/* A gate has too few rows for tensor cores to be fed from more than a few multiprocessors: 128 outputs and 20 rows make 256
 * blocks here. */
template <> struct dot_columns<KRN_W_BF16> {
    typedef float sum;
    enum { N = 2, T = 5, COLUMN_BYTES = 2 };
    uint4 pairs;

    __device__ __forceinline__ void load(const uint8_t *p) { pairs = __ldg((const uint4 *)p); }
    __device__ __forceinline__ void widen(float out[8]) const { krn_unpack8(pairs, out); }
};

/* Past the end of w or x a block takes the last row again and does not store it. */
template <krn_wformat F> __global__ static void __launch_bounds__(DOT_THREADS, 2) dot_kernel(const product p)
{
    typedef dot_columns<F> columns;
    typedef typename columns::sum sum_t;
    enum { N = columns::N, T = columns::T };
    __shared__ sum_t part[N * T][DOT_WARPS];
    const int32_t n0 = blockIdx.x * N, t0 = blockIdx.y * T;
    const int32_t lane = threadIdx.x % KRN_WARP, warp = threadIdx.x / KRN_WARP;
    const uint8_t *w[N];
    const bf16 *x[T]; /* [k] */
    sum_t sum[N][T] = {};
#pragma unroll
    for (int i = 0; i < N; i++) w[i] = (const uint8_t *)p.w.data + min(n0 + i, p.w.n - 1) * p.w.row_bytes;
#pragma unroll
    for (int j = 0; j < T; j++) x[j] = p.x + min(t0 + j, p.rows - 1) * p.ldx;

#pragma unroll 2
    for (int32_t k = 8 * threadIdx.x; k < p.w.k; k += 8 * DOT_THREADS) {
        columns w8[N];
        uint4 x8[T];
        sum_t wide_w[N][8];
#pragma unroll
        for (int i = 0; i < N; i++) w8[i].load(w[i] + (int64_t)k * columns::COLUMN_BYTES);
#pragma unroll
        for (int j = 0; j < T; j++) x8[j] = __ldg((const uint4 *)(x[j] + k));
#pragma unroll
        for (int i = 0; i < N; i++) w8[i].widen(wide_w[i]);
#pragma unroll
        for (int j = 0; j < T; j++) {
            float v[8];
            krn_unpack8(x8[j], v);
#pragma unroll
            for (int c = 0; c < 8; c++) {
                const sum_t wide_x = (sum_t)v[c];
#pragma unroll
                for (int i = 0; i < N; i++) sum[i][j] = fma(wide_x, wide_w[i][c], sum[i][j]);        /* R1 */
            }
        }
    }
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
        for (int j = 0; j < T; j++) {
            const sum_t v = krn_warp_sum(sum[i][j]);
            if (lane == 0) part[i * T + j][warp] = v;
        }
    __syncthreads();
    if (threadIdx.x >= N * T) return;
    const int32_t n = n0 + threadIdx.x / T, t = t0 + threadIdx.x % T;
    sum_t total = part[threadIdx.x][0];
    for (int i = 1; i < DOT_WARPS; i++) total += part[threadIdx.x][i];
    if (n < p.w.n && t < p.rows) store(p, t, n, (float)total);
}

template <krn_wformat F> static err_code launch_dot(const product &p, krn_stream s, err *e)
{
    const dim3 grid((unsigned)krn_blocks(p.w.n, dot_columns<F>::N), (unsigned)krn_blocks(p.rows, dot_columns<F>::T));
    if (grid.y > 65535) return err_set(e, ERR_ARG, "linear: %d rows are too many for one launch", p.rows);
    dot_kernel<F><<<grid, DOT_THREADS, 0, s>>>(p);
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
    case KRN_W_BF16:
        if (w->n <= DOT_BF16_N_MAX && groups == 1) return launch_dot<KRN_W_BF16>(p, stream, e);
        return launch_skinny<KRN_W_BF16>(p, groups, stream, e);
    case KRN_W_F32: break;
    case KRN_W_EXL3: return err_set(e, ERR_ARG, "linear: EXL3 weights are multiplied by krn_exl3_linear");
    }
    return groups == 1 ? launch_dot<KRN_W_F32>(p, stream, e) : launch_plain(p, groups, stream, e);
}

extern "C" err_code krn_linear(const bf16 *x, int64_t ldx, int32_t T, const krn_weight *w, krn_out out, void *y,
                               int64_t ldy, krn_stream stream, err *e)
{
    return krn_linear_groups(x, ldx, T, w, 1, out, y, ldy, stream, e);
}
