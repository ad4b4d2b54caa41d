/* Double products on tensor cores, mma m8n8k4: 8 rows of w times 8 rows of x, 4 columns at a time, an element of each
 * operand a lane. Lane 4g + q holds row g of w and of x at column q; the order of columns is free as long as both operands
 * agree, so of 32 columns a lane takes the 8 neighbours 8q .. 8q + 7: one load of each operand serves 8 mma, and nothing is
 * staged. Turning an element into a double costs about as much as an mma; a block has many rows, so that each is turned
 * seldom. */
#include "kernels/linear.h"

#include "kernels/bits.cuh"

enum {
    TILE = 8,
    ROW_TILES = 5,    /* a block has 40 rows of w: 128 blocks of 5120 rows, for the 132 SMs of an H200 */
    WARPS = 16,       /* they split K; the count fixes the order of the sum, so it may not follow the number of rows of x */
    THREADS = WARPS * KRN_WARP,
    STEP_K = 32,      /* columns under one scale */
    LANE_K = 8,
};

struct product {
    const bf16 *x;
    int64_t ldx;
    int32_t rows; /* of x */
    krn_weight w;
    krn_out out;
    void *y;
    int64_t ldy;
};

/* acc [8, 8] += a [8, 4] . b [8, 4]^T. Lane 4g + q: element (g, q) of a and of b, (g, 2q) and (g, 2q + 1) of acc. */
__device__ __forceinline__ static void mma(double acc[2], double a, double b)
{
    asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};"
        : "+d"(acc[0]), "+d"(acc[1])
        : "d"(a), "d"(b));
}

/* A lane's 8 columns of a row of w, as stored. */
template <krn_wformat F> struct codes;

template <> struct codes<KRN_W_FP8> {
    uint2 code;
    uint32_t scale;

    __device__ __forceinline__ void load(const uint8_t *row, const uint8_t *scale_row, int32_t step, int32_t q)
    {
        code = __ldg((const uint2 *)(row + step * STEP_K + q * LANE_K));
        scale = __ldg(scale_row + step);
    }
    /* Column i, exact: the code's bits, placed in an f32, are its value times 2^-120. */
    __device__ __forceinline__ double at(int i) const
    {
        const uint32_t c = (i < 4 ? code.x : code.y) >> 8 * (i % 4);
        const float power = __uint_as_float(scale ? scale << 23 : 0x400000); /* 2^(scale - 127) */
        return (double)(__uint_as_float((c & 0x80) << 24 | (c & 0x7f) << 20) * 0x1p120f * power);
    }
};

template <> struct codes<KRN_W_BF16> {
    uint4 pairs;

    __device__ __forceinline__ void load(const uint8_t *row, const uint8_t *, int32_t step, int32_t q)
    {
        pairs = __ldg((const uint4 *)(row + 2 * (int64_t)(step * STEP_K + q * LANE_K)));
    }
    __device__ __forceinline__ double at(int i) const
    {
        const uint32_t pair = i < 2 ? pairs.x : i < 4 ? pairs.y : i < 6 ? pairs.z : pairs.w;
        return (double)__uint_as_float(i % 2 ? pair & 0xffff0000 : pair << 16);
    }
};

/* What a lane needs of STEP_K columns. */
template <krn_wformat F, int NT> struct step {
    codes<F> w[ROW_TILES];
    codes<KRN_W_BF16> x[NT];

    __device__ __forceinline__ void add(double acc[ROW_TILES][NT][2]) const
    {
#pragma unroll
        for (int i = 0; i < LANE_K; i++) {
            double b[NT];
#pragma unroll
            for (int j = 0; j < NT; j++) b[j] = x[j].at(i);
#pragma unroll
            for (int m = 0; m < ROW_TILES; m++) {
                const double a = w[m].at(i);
#pragma unroll
                for (int j = 0; j < NT; j++) mma(acc[m][j], a, b[j]);                                /* R1 */
            }
        }
    }
};

/* x: 8 NT rows of x a block, so that blocks that read the same weights run together; y: rows of w. Past the end of either a
 * lane takes the last row again, and its sums are not stored. */
template <krn_wformat F, int NT> __global__ static void __launch_bounds__(THREADS, 1) linear_f64_kernel(const product p)
{
    __shared__ double part[WARPS][NT * TILE * TILE];
    const int32_t warp = threadIdx.x / KRN_WARP, lane = threadIdx.x % KRN_WARP, g = lane / 4, q = lane % 4;
    const int32_t t0 = blockIdx.x * NT * TILE, n0 = blockIdx.y * ROW_TILES * TILE, steps = p.w.k / STEP_K;
    const uint8_t *w[ROW_TILES], *scale[ROW_TILES], *x[NT];
#pragma unroll
    for (int m = 0; m < ROW_TILES; m++) {
        const int32_t n = min(n0 + m * TILE + g, p.w.n - 1);
        w[m] = (const uint8_t *)p.w.data + n * p.w.row_bytes;
        scale[m] = F == KRN_W_FP8 ? p.w.scale + (p.w.scale_row0 + n) / 32 * p.w.scale_row_bytes : NULL;
    }
#pragma unroll
    for (int j = 0; j < NT; j++) x[j] = (const uint8_t *)(p.x + min(t0 + j * TILE + g, p.rows - 1) * p.ldx);

    double acc[ROW_TILES][NT][2] = {};
    step<F, NT> now, next;
    auto load = [&](int32_t s, step<F, NT> &to) {
#pragma unroll
        for (int m = 0; m < ROW_TILES; m++) to.w[m].load(w[m], scale[m], s, q);
#pragma unroll
        for (int j = 0; j < NT; j++) to.x[j].load(x[j], NULL, s, q);
    };
    if (warp < steps) load(warp, now);
    for (int32_t s = warp; s < steps; s += WARPS) {
        if (s + WARPS < steps) load(s + WARPS, next); /* on its way while this one is added */
        now.add(acc);
        now = next;
    }
    for (int m = 0; m < ROW_TILES; m++) {
#pragma unroll
        for (int j = 0; j < NT; j++)
#pragma unroll
            for (int c = 0; c < 2; c++) part[warp][(j * TILE + 2 * q + c) * TILE + g] = acc[m][j][c];
        __syncthreads();
        const int32_t i = threadIdx.x, n = n0 + m * TILE + i % TILE, t = t0 + i / TILE;
        if (i < NT * TILE * TILE && n < p.w.n && t < p.rows) {
            double sum = part[0][i];
            for (int k = 1; k < WARPS; k++) sum += part[k][i];
            const float rounded = (float)sum;
            if (p.out == KRN_OUT_BF16) ((bf16 *)p.y)[t * p.ldy + n] = krn_bf16_of(rounded);          /* R2 */
            else ((float *)p.y)[t * p.ldy + n] = rounded != rounded ? __uint_as_float(0x7fc00000) : rounded;
        }
        __syncthreads();
    }
}

template <krn_wformat F, int NT> static err_code launch(const product &p, krn_stream s, err *e)
{
    const dim3 grid((unsigned)krn_blocks(p.rows, NT * TILE), (unsigned)krn_blocks(p.w.n, ROW_TILES * TILE));
    if (grid.y > 65535) return err_set(e, ERR_ARG, "linear_f64: n=%d is too much for one launch", p.w.n);
    linear_f64_kernel<F, NT><<<grid, THREADS, 0, s>>>(p);
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
    if (w->format == KRN_W_FP8) return T <= TILE ? launch<KRN_W_FP8, 1>(p, stream, e) : launch<KRN_W_FP8, 2>(p, stream, e);
    return T <= TILE ? launch<KRN_W_BF16, 1>(p, stream, e) : launch<KRN_W_BF16, 2>(p, stream, e);
}
