/* Double products on tensor cores, mma m16n8k4 (two m8n8k4 have half its rate on an H200): 16 rows of w times 8 rows of x,
 * 4 columns at a time, an element of x and two of w a lane. Lane 4g + q holds rows g and g + 8 of w and row g of x at
 * column q; the order of columns is free as long as both operands agree, so of 32 columns a lane takes the 8 neighbours
 * 8q .. 8q + 7: one load of each operand serves 8 mma, and nothing is staged.
 *
 * Any other double instruction would take its time from the mma, so FP8 codes become doubles by integer instructions alone,
 * and their scale, which the 16 rows share, goes into the exponent of x. */
#include "kernels/linear.h"

#include "kernels/bits.cuh"
#include "kernels/launch.cuh"

enum {
    TILE_N = 16,      /* rows of w in an mma */
    TILE_T = 8,       /* rows of x */
    ROW_TILES = 3,    /* a block has 48 rows of w: 107 blocks of 5120 rows, for the 132 SMs of an H200 */
    WARPS = 16,       /* they split K; the count fixes the order of the sum */
    THREADS = WARPS * KRN_WARP,
    STEP_K = 32,      /* columns under one scale; so many rows, too */
    LANE_K = 8,
    AHEAD = 1,        /* steps that are on their way while one is added */
};

/* FP8: w comes as code * 2^-1016, and x times scale * 2^600, so that products stay far from both ends of a double. */
constexpr int X_SHIFT = 600, SCALE_BIAS = 127;
constexpr double UNSHIFT = 0x1p416;

struct product {
    const bf16 *x;
    int64_t ldx;
    int32_t rows; /* of x */
    krn_weight w;
    krn_out out;
    void *y;
    int64_t ldy;
};

/* acc [16, 8] += a [16, 4] . b [8, 4]^T. Lane 4g + q: elements (g, q) and (g + 8, q) of a, (g, q) of b; (g, 2q),
 * (g, 2q + 1), (g + 8, 2q), (g + 8, 2q + 1) of acc. */
__device__ __forceinline__ static void mma(double acc[4], double a0, double a1, double b)
{
#if __CUDA_ARCH__ >= 900
    asm("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+d"(acc[0]), "+d"(acc[1]), "+d"(acc[2]), "+d"(acc[3])
        : "d"(a0), "d"(a1), "d"(b));
#else
    asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};"
        : "+d"(acc[0]), "+d"(acc[1])
        : "d"(a0), "d"(b));
    asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};"
        : "+d"(acc[2]), "+d"(acc[3])
        : "d"(a1), "d"(b));
#endif
}

/* A lane's 8 columns of a row, as stored. */
template <krn_wformat F> struct codes;

template <> struct codes<KRN_W_FP8> {
    uint2 code;

    __device__ __forceinline__ void load(const uint8_t *row, int32_t step, int32_t q)
    {
        code = __ldg((const uint2 *)(row + step * STEP_K + q * LANE_K));
    }
    /* Column i's code * 2^-1016, exact: its sign, exponent and mantissa at their places in a double. Subnormal codes
     * are subnormal doubles, which no instruction flushes. */
    __device__ __forceinline__ double at(int i) const
    {
        const uint32_t c = i < 4 ? code.x : code.y;
        const uint32_t selector = (4 + i % 4) << 12 | (i % 4) << 8; /* byte 3: the sign's, byte 2: the rest, a bit higher */
        return __hiloint2double((int)(__byte_perm(c << 1, c, selector) & 0x80fe0000), 0);
    }
};

template <> struct codes<KRN_W_BF16> {
    uint4 pairs;

    __device__ __forceinline__ void load(const uint8_t *row, int32_t step, int32_t q)
    {
        pairs = krn_load16(row + 2 * (int64_t)(step * STEP_K + q * LANE_K));
    }
    __device__ __forceinline__ double at(int i) const
    {
        const uint32_t pair = i < 2 ? pairs.x : i < 4 ? pairs.y : i < 6 ? pairs.z : pairs.w;
        return (double)__uint_as_float(i % 2 ? pair & 0xffff0000 : pair << 16);
    }
};

/* What a lane needs of STEP_K columns. */
template <krn_wformat F> struct step {
    codes<F> w[ROW_TILES][2];
    uint32_t scale[ROW_TILES]; /* FP8 */
    codes<KRN_W_BF16> x;

    __device__ __forceinline__ void add(double acc[ROW_TILES][4]) const
    {
#pragma unroll
        for (int i = 0; i < LANE_K; i++) {
            const double b = x.at(i);
            const int high = __double2hiint(b); /* a bf16 number has no bits below */
            const bool plain = (uint32_t)(high & 0x7ff00000) - 0x00100000 < 0x7fe00000; /* not 0, infinite or NaN */
#pragma unroll
            for (int m = 0; m < ROW_TILES; m++) {
                const int power = (int)(scale[m] + X_SHIFT - SCALE_BIAS) << 20;
                const double scaled = F == KRN_W_FP8 ? __hiloint2double(high + (plain ? power : 0), 0) : b;
                mma(acc[m], w[m][0].at(i), w[m][1].at(i), scaled);                                   /* R1 */
            }
        }
    }
};

/* x: 8 rows of x a block, so that blocks that read the same weights run together; y: rows of w, from a multiple of 16 in
 * the rows that its scales count. Before the first row or past the last of either a lane takes that one again, and its sums
 * are not stored. */
template <krn_wformat F> __global__ static void __launch_bounds__(THREADS, 1) linear_f64_kernel(const product p)
{
    __shared__ double part[WARPS][TILE_N * TILE_T];
    krn_begin();
    const int32_t warp = threadIdx.x / KRN_WARP, lane = threadIdx.x % KRN_WARP, g = lane / 4, q = lane % 4;
    const int32_t t0 = blockIdx.x * TILE_T, steps = p.w.k / STEP_K;
    const int32_t n0 = blockIdx.y * ROW_TILES * TILE_N - p.w.scale_row0 % TILE_N;
    const uint8_t *w[ROW_TILES][2], *scale[ROW_TILES];
    const uint8_t *const x = (const uint8_t *)(p.x + min(t0 + g, p.rows - 1) * p.ldx);
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++)
            w[m][half] = (const uint8_t *)p.w.data +
                         max(0, min(n0 + m * TILE_N + 8 * half + g, p.w.n - 1)) * p.w.row_bytes;
        const int32_t last = max(0, min(n0 + m * TILE_N + TILE_N - 1, p.w.n - 1));
        scale[m] = F == KRN_W_FP8 ? p.w.scale + (p.w.scale_row0 + last) / STEP_K * p.w.scale_row_bytes : NULL;
    }

    double acc[ROW_TILES][4] = {};
    step<F> ring[AHEAD + 1];
    auto load = [&](int32_t s, step<F> &to) {
        if (s >= steps) return;
#pragma unroll
        for (int m = 0; m < ROW_TILES; m++) {
            to.w[m][0].load(w[m][0], s, q);
            to.w[m][1].load(w[m][1], s, q);
            if (F == KRN_W_FP8) to.scale[m] = __ldg(scale[m] + s);
        }
        to.x.load(x, s, q);
    };
#pragma unroll
    for (int i = 0; i < AHEAD; i++) load(warp + i * WARPS, ring[i]);
    for (int32_t s = warp; s < steps; s += (AHEAD + 1) * WARPS)
#pragma unroll
        for (int i = 0; i <= AHEAD; i++) { /* unrolled: a step of the ring is a set of registers */
            if (s + i * WARPS >= steps) break;
            load(s + (i + AHEAD) * WARPS, ring[(i + AHEAD) % (AHEAD + 1)]);
            ring[i].add(acc);
        }
    for (int m = 0; m < ROW_TILES; m++) {
#pragma unroll
        for (int c = 0; c < 4; c++) part[warp][(2 * q + c % 2) * TILE_N + g + c / 2 * 8] = acc[m][c];
        __syncthreads();
        const int32_t i = threadIdx.x, n = n0 + m * TILE_N + i % TILE_N, t = t0 + i / TILE_N;
        if (i < TILE_N * TILE_T && n >= 0 && n < p.w.n && t < p.rows) {
            double sum = part[0][i];
            for (int k = 1; k < WARPS; k++) sum += part[k][i];
            const float rounded = (float)(F == KRN_W_FP8 ? sum * UNSHIFT : sum);
            if (p.out == KRN_OUT_BF16) ((bf16 *)p.y)[t * p.ldy + n] = krn_bf16_of(rounded);          /* R2 */
            else ((float *)p.y)[t * p.ldy + n] = rounded != rounded ? __uint_as_float(0x7fc00000) : rounded;
        }
        __syncthreads();
    }
}

template <krn_wformat F> static err_code launch(const product &p, krn_stream s, err *e)
{
    const int32_t rows = p.w.n + p.w.scale_row0 % TILE_N;
    const dim3 grid((unsigned)krn_blocks(p.rows, TILE_T), (unsigned)krn_blocks(rows, ROW_TILES * TILE_N));
    if (grid.y > 65535) return err_set(e, ERR_ARG, "linear_f64: n=%d is too much for one launch", p.w.n);
    krn_launch(linear_f64_kernel<F>, grid, THREADS, 0, s, p);
    return krn_launched("linear_f64", e);
}

extern "C" err_code krn_linear_f64(const bf16 *x, int64_t ldx, int32_t T, const krn_weight *w, krn_out out, void *y,
                                   int64_t ldy, krn_stream stream, err *e)
{
    if (T < 0 || w->n < 1 || w->k < 1 || w->k % STEP_K || ldx < w->k || ldy < w->n)
        return err_set(e, ERR_ARG, "linear_f64: T=%d n=%d k=%d ldx=%lld ldy=%lld", T, w->n, w->k, (long long)ldx,
                       (long long)ldy);
    if (w->format != KRN_W_FP8 && w->format != KRN_W_BF16)
        return err_set(e, ERR_ARG, "linear_f64: format %d, wanted FP8 or BF16", (int)w->format);
    if (!krn_aligned(w->data, w->row_bytes) || !krn_aligned(x, 2 * ldx))
        return err_set(e, ERR_ARG, "linear_f64: rows of x or of the weight are not 16-byte aligned");
    if (T == 0) return ERR_OK;
    const product p = { x, ldx, T, *w, out, y, ldy };
    return w->format == KRN_W_FP8 ? launch<KRN_W_FP8>(p, stream, e) : launch<KRN_W_BF16>(p, stream, e);
}
