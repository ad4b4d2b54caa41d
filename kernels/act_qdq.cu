/* A warp per group of 32: one element a lane, the group's largest magnitude by a butterfly of maxima. */
#include "kernels/act_qdq.h"

#include <limits.h>

enum { THREADS = 256, GROUPS_PER_BLOCK = THREADS / FMT_QDQ_GROUP };

/* fmt_qdq_scale, by the same bits. */
__device__ static uint32_t scale_of(float amax)
{
    uint32_t t = __float_as_uint(__fmul_rn(fmaxf(amax, 1e-4f), (float)(1.0 / 448.0)));               /* R1 */
    return ((t >> 23) + ((t & 0x7fffff) != 0)) & 0xff;
}

/* 2^(b - 127), b below 255; 0 is the subnormal 2^-127. */
__device__ static float power_of(uint32_t b) { return __uint_as_float(b ? b << 23 : 0x400000); }

/* The value of the nearest e4m3 code, ties to even, saturating; NaN stays NaN. */
__device__ static float e4m3_round(float v)
{
    float a = fabsf(v);
    if (a >= 448.0f) return copysignf(448.0f, v);
    if (a < 0x1p-6f) return copysignf(__fsub_rn(__fadd_rn(a, 0x1p14f), 0x1p14f), v); /* multiples of 2^-9 */
    uint32_t u = __float_as_uint(a);
    u += 0x7ffff + (u >> 20 & 1);
    return a != a ? a : copysignf(__uint_as_float(u & 0xfff00000), v);                               /* R2 */
}

/* f32 to bf16, nearest even: exact here, but for a NaN and for what lies beyond bf16's range. */
__device__ static bf16 to_bf16(float v)
{
    uint32_t u = __float_as_uint(v);
    if ((u & 0x7fffffff) > 0x7f800000) return 0x7fc0;
    return (bf16)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

__global__ static void act_qdq_kernel(const bf16 *x, int64_t ldx, bf16 *y, int64_t ldy, int64_t n_groups, int32_t row_groups)
{
    int64_t group = (int64_t)blockIdx.x * GROUPS_PER_BLOCK + threadIdx.x / FMT_QDQ_GROUP;
    if (group >= n_groups) return;
    int64_t row = group / row_groups, column = group % row_groups * FMT_QDQ_GROUP + threadIdx.x % FMT_QDQ_GROUP;
    bf16 bits = x[row * ldx + column];
    uint32_t amax = (bits & 0x7fff) > 0x7f80 ? 0 : bits & 0x7fff; /* magnitudes order as their bits do; NaN takes no part */
    for (int lane = 16; lane > 0; lane /= 2) amax = max(amax, __shfl_xor_sync(0xffffffff, amax, lane));
    uint32_t scale = scale_of(__uint_as_float(amax << 16));
    float value = __uint_as_float((uint32_t)bits << 16);
    float inverse = scale == FMT_E8M0_NAN ? __uint_as_float(0x7fc00000) : power_of(2 * FMT_E8M0_BIAS - scale);
    float code = e4m3_round(__fmul_rn(value, inverse));
    y[row * ldy + column] = to_bf16(scale == FMT_E8M0_NAN ? __uint_as_float(0x7fc00000) : __fmul_rn(code, power_of(scale)));
}

extern "C" err_code krn_act_qdq(const bf16 *x, int64_t ldx, bf16 *y, int64_t ldy, int32_t rows, int32_t cols, krn_stream stream,
                                err *e)
{
    if (rows < 0 || cols < 0 || cols % FMT_QDQ_GROUP || ldx < cols || ldy < cols)
        return err_set(e, ERR_ARG, "act_qdq: rows=%d cols=%d ldx=%lld ldy=%lld", rows, cols, (long long)ldx, (long long)ldy);
    int64_t groups = (int64_t)rows * (cols / FMT_QDQ_GROUP), blocks = (groups + GROUPS_PER_BLOCK - 1) / GROUPS_PER_BLOCK;
    if (groups == 0) return ERR_OK;
    if (blocks > INT_MAX) return err_set(e, ERR_ARG, "act_qdq: %lld groups are too many for one launch", (long long)groups);
    act_qdq_kernel<<<(unsigned)blocks, THREADS, 0, stream>>>(x, ldx, y, ldy, groups, cols / FMT_QDQ_GROUP);
    return krn_launched("act_qdq", e);
}
