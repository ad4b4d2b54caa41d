/* Three ways, one contract: tensor cores (skinny.cuh) for what is aligned, dot products for the mHC projections and the
 * gates, and a plain warp per element for shapes that no real model has. */
#include "kernels/linear.h"

#include "kernels/launch.cuh"
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

/* A product, and how the tiles of a group are divided over n_teams teams: skinny_split::first says how. */
struct share {
    product p = {};
    skinny_split split;
    int32_t n_teams;
    uint32_t each, more;
};

/* What block `block` of a group's does, and of x the rows from 8 NT x on. */
template <krn_wformat F, int MT, int NT> __device__ __forceinline__ void skinny_block(const share &s, int32_t block)
{
    if (MT > 1 && !SKINNY_LARGE) return; /* is not launched */
    extern __shared__ __align__(128) uint8_t shared[];
    const product &p = s.p;
    const skinny_team team(shared, s.split, MT, NT);
    const int32_t t0 = blockIdx.x * NT * SKINNY_N, n_x = min(p.rows - t0, NT * SKINNY_N);
    const int32_t group_n0 = blockIdx.z * p.group_n, index = block * s.split.teams(MT) + team.index;
    if (index >= s.n_teams) return;
    const int32_t first = s.split.first(index, s.each, s.more), last = s.split.first(index + 1, s.each, s.more);
    const int32_t row0 = group_n0 + first * SKINNY_M, end = group_n0 + min(last * SKINNY_M, p.group_n);

    const bf16 *x[NT]; /* [k] */
#pragma unroll
    for (int j = 0; j < NT; j++) {
        const int32_t t = t0 + min(j * SKINNY_N + (int32_t)(threadIdx.x % KRN_WARP / 4), n_x - 1);
        x[j] = p.x + t * p.ldx + (int64_t)blockIdx.z * p.w.k;
    }
    skinny_stream<F, MT, skinny_run> stream(p.w, { row0, end }, team.slice, team.slices, team.ring);
    krn_wait_for_previous(); /* while the ring is filled */
    skinny_product<F, MT, NT>(team, stream, row0, end, p.w.k, x, n_x,
                              [&](int32_t t, int32_t n, float sum) { store(p, t0 + t, n, sum); });   /* R1 */
    stream.finish();
}

/* Grid: x: rows of x, 8 NT a block; y: blocks of teams; z: groups. */
template <krn_wformat F, int MT, int NT>
__global__ static void __launch_bounds__(skinny_threads(MT), 1) skinny_kernel(const share s)
{
    krn_let_next_begin();
    skinny_block<F, MT, NT>(s, blockIdx.y);
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
    share share_of(const product &p, const skinny_split &split) const
    {
        return { p, split, n_teams, (uint32_t)tiles / n_teams, (uint32_t)tiles % n_teams };
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
    krn_launch(skinny_kernel<F, MT, NT>, grid, skinny_threads(MT), bytes, s, t.share_of(p, split));
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

/* ---- a pair on tensor cores ---- */

/* The first n_blocks do the first product. */
struct pair {
    share of[2];
    int32_t n_blocks;
};

template <krn_wformat F, int NT>
__global__ static void __launch_bounds__(skinny_threads(1), 1) pair_kernel(const __grid_constant__ pair p)
{
    krn_let_next_begin();
    const bool second = (int32_t)blockIdx.y >= p.n_blocks;
    const share s = p.of[second];
    skinny_block<F, 1, NT>(s, blockIdx.y - (second ? p.n_blocks : 0));
}

/* *done false: not at once. */
template <krn_wformat F, int NT> static err_code launch_pair(const product p[2], bool *done, krn_stream s, err *e)
{
    enum { RUN_MAX = 2 }; /* longer ones are better read two or three tiles at a time, as each product's own launch does */
    skinny_device device = {};
    TRY(skinny_device_get("linear_pair", &device, e));
    const skinny_split split[2] = { skinny_split(slices_of(F, p[0].w.n, p[0].w.k)),
                                    skinny_split(slices_of(F, p[1].w.n, p[1].w.k)) };
    int32_t blocks[2]; /* for a tile a team; if these are too many, as many as there are multiprocessors */
    for (int i = 0; i < 2; i++)
        blocks[i] = (int32_t)krn_blocks(krn_blocks(p[i].w.n, SKINNY_M), split[i].teams(1));
    if (blocks[0] + blocks[1] > device.n_sm) {
        const int64_t all = (int64_t)blocks[0] + blocks[1];
        blocks[0] = max(1, (int32_t)((2 * (int64_t)device.n_sm * blocks[0] + all) / (2 * all)));
        blocks[1] = max(1, device.n_sm - blocks[0]);
    }
    const tiling of[2] = { tiling(1, split[0], p[0].w.n, 1, blocks[0]), tiling(1, split[1], p[1].w.n, 1, blocks[1]) };
    *done = of[0].run <= RUN_MAX && of[1].run <= RUN_MAX;
    if (!*done) return ERR_OK;
    const int32_t bytes = device.shared_bytes(1, NT);
    const pair both = { { of[0].share_of(p[0], split[0]), of[1].share_of(p[1], split[1]) }, blocks[0] };
    TRY(skinny_prepare("linear_pair", pair_kernel<F, NT>, bytes, e));
    krn_launch(pair_kernel<F, NT>, dim3(1, (unsigned)(blocks[0] + blocks[1])), skinny_threads(1), bytes, s, both);
    return krn_launched("linear_pair", e);
}

template <krn_wformat F> static err_code launch_pair_rows(const product p[2], bool *done, krn_stream s, err *e)
{
    switch (krn_blocks(p[0].rows, SKINNY_N)) {
    case 1: return launch_pair<F, 1>(p, done, s, e);
    case 2: return launch_pair<F, 2>(p, done, s, e);
    default: return launch_pair<F, 3>(p, done, s, e);
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
    krn_let_next_begin();
    if (blockIdx.y == 0)
        for (int i = 0; i < N; i++) krn_fetch_ahead(w[i], (int64_t)p.w.k * columns::COLUMN_BYTES, DOT_THREADS);
    krn_wait_for_previous();

#pragma unroll 2
    for (int32_t k = 8 * threadIdx.x; k < p.w.k; k += 8 * DOT_THREADS) {
        columns w8[N];
        uint4 x8[T];
        sum_t wide_w[N][8];
#pragma unroll
        for (int i = 0; i < N; i++) w8[i].load(w[i] + (int64_t)k * columns::COLUMN_BYTES);
#pragma unroll
        for (int j = 0; j < T; j++) x8[j] = krn_load16(x[j] + k);
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
    krn_launch(dot_kernel<F>, grid, DOT_THREADS, 0, s, p);
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
    krn_begin();
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
    krn_launch(plain_kernel, grid, PLAIN_WARPS * KRN_WARP, 0, s, p);
    return krn_launched("linear", e);
}

/* ---- the launchers ---- */

static err_code make_product(const bf16 *x, int64_t ldx, int32_t T, const krn_weight *w, int32_t groups, krn_out out,
                             void *y, int64_t ldy, product *p, err *e)
{
    if (T < 0 || w->n < 1 || w->k < 1 || groups < 1 || w->n % groups || ldx < (int64_t)groups * w->k || ldy < w->n)
        return err_set(e, ERR_ARG, "linear: T=%d n=%d k=%d groups=%d ldx=%lld ldy=%lld", T, w->n, w->k, groups,
                       (long long)ldx, (long long)ldy);
    if (skinny_scaled(w->format) && w->k % 32)
        return err_set(e, ERR_ARG, "linear: k=%d is no multiple of the 32 columns of a scale", w->k);
    *p = { x, ldx, T, *w, w->n / groups, out, y, ldy };
    return ERR_OK;
}

static bool is_aligned(const product &p)
{
    return p.w.k % 8 == 0 && krn_aligned(p.w.data, p.w.row_bytes) && krn_aligned(p.x, 2 * p.ldx);
}
static bool is_dot(const product &p, int32_t groups)
{
    return groups == 1 && (p.w.format == KRN_W_F32 || (p.w.format == KRN_W_BF16 && p.w.n <= DOT_BF16_N_MAX));
}

static err_code launch(const product &p, int32_t groups, krn_stream stream, err *e)
{
    if (p.rows == 0) return ERR_OK;
    if (!is_aligned(p)) return launch_plain(p, groups, stream, e);
    const bool dot = is_dot(p, groups);
    switch (p.w.format) {
    case KRN_W_FP8: return launch_skinny<KRN_W_FP8>(p, groups, stream, e);
    case KRN_W_FP4: return launch_skinny<KRN_W_FP4>(p, groups, stream, e);
    case KRN_W_BF16: return dot ? launch_dot<KRN_W_BF16>(p, stream, e) : launch_skinny<KRN_W_BF16>(p, groups, stream, e);
    case KRN_W_F32: break;
    case KRN_W_EXL3: return err_set(e, ERR_ARG, "linear: EXL3 weights are multiplied by krn_exl3_linear");
    }
    return dot ? launch_dot<KRN_W_F32>(p, stream, e) : launch_plain(p, groups, stream, e);
}

extern "C" err_code krn_linear_groups(const bf16 *x, int64_t ldx, int32_t T, const krn_weight *w, int32_t groups,
                                      krn_out out, void *y, int64_t ldy, krn_stream stream, err *e)
{
    product p = {};
    TRY(make_product(x, ldx, T, w, groups, out, y, ldy, &p, e));
    return launch(p, groups, stream, e);
}

extern "C" err_code krn_linear(const bf16 *x, int64_t ldx, int32_t T, const krn_weight *w, krn_out out, void *y,
                               int64_t ldy, krn_stream stream, err *e)
{
    return krn_linear_groups(x, ldx, T, w, 1, out, y, ldy, stream, e);
}

extern "C" err_code krn_linear_pair(const bf16 *x, int64_t ldx, int32_t T, const krn_linear_side side[2], krn_stream stream,
                                    err *e)
{
    product p[2] = {};
    bool done = false;
    for (int i = 0; i < 2; i++)
        TRY(make_product(x, ldx, T, side[i].w, 1, side[i].out, side[i].y, side[i].ldy, &p[i], e));
    const krn_wformat format = p[0].w.format;
    if (T > 0 && T <= SKINNY_ROWS_MAX && format == p[1].w.format && p[0].w.k == p[1].w.k && is_aligned(p[0]) &&
        is_aligned(p[1]) && !is_dot(p[0], 1) && !is_dot(p[1], 1)) {
        if (format == KRN_W_FP8) TRY(launch_pair_rows<KRN_W_FP8>(p, &done, stream, e));
        if (format == KRN_W_BF16) TRY(launch_pair_rows<KRN_W_BF16>(p, &done, stream, e));
    }
    for (int i = 0; i < 2 && !done; i++) TRY(launch(p[i], 1, stream, e));
    return ERR_OK;
}
