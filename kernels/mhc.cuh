/* Collapse and expand on the device, shared by mhc.cu and the fused kernels: eight columns of a row a thread. hc is a
 * template argument, so that columns and mixing weights live in registers. R1..R3: kernels/mhc.h. */
#ifndef KERNELS_MHC_CUH
#define KERNELS_MHC_CUH

#include "kernels/bits.cuh"
#include "kernels/mhc.h"

enum { KRN_MHC_COLUMNS = 8, KRN_MHC_COLUMN_THREADS = 64, KRN_MHC_COLUMN_BLOCKS_MAX = 65535 };

/* Calls LAUNCH(hc) with hc a constant. */
#define KRN_MHC_FOR_COPIES(hc, LAUNCH) \
    switch (hc) {                      \
    case 1: LAUNCH(1); break;          \
    case 2: LAUNCH(2); break;          \
    case 3: LAUNCH(3); break;          \
    case 4: LAUNCH(4); break;          \
    case 5: LAUNCH(5); break;          \
    case 6: LAUNCH(6); break;          \
    case 7: LAUNCH(7); break;          \
    case 8: LAUNCH(8); break;          \
    }

static inline bool krn_mhc_copies_fit(int32_t hc) { return hc >= 1 && hc <= KRN_MHC_COPIES_MAX; }

static inline err_code krn_mhc_check_columns(const char *op, int32_t rows, int32_t hc, int32_t dim, err *e)
{
    if (rows >= 0 && krn_mhc_copies_fit(hc) && dim >= 1 &&
        krn_blocks(dim, KRN_MHC_COLUMNS * KRN_MHC_COLUMN_THREADS) <= KRN_MHC_COLUMN_BLOCKS_MAX)
        return ERR_OK;
    return err_set(e, ERR_ARG, "%s: rows=%d hc=%d dim=%d", op, rows, hc, dim);
}

/* Blocks of KRN_MHC_COLUMN_THREADS: (rows, columns). */
static inline dim3 krn_mhc_column_grid(int32_t rows, int32_t dim)
{
    return dim3((unsigned)rows, (unsigned)krn_blocks(dim, KRN_MHC_COLUMNS * KRN_MHC_COLUMN_THREADS));
}

/* This thread's first column in that grid. */
__device__ __forceinline__ int32_t krn_mhc_own_column(void)
{
    return (int32_t)(blockIdx.y * KRN_MHC_COLUMN_THREADS + threadIdx.x) * KRN_MHC_COLUMNS;
}

/* Eight columns of every copy of one row, from column d on; past the end, zeros. */
template <int HC>
struct krn_mhc_columns {
    float v[HC][KRN_MHC_COLUMNS];

    __device__ __forceinline__ explicit krn_mhc_columns(const uint4 bits[HC])
    {
#pragma unroll
        for (int j = 0; j < HC; j++) krn_unpack8(bits[j], v[j]);
    }
    __device__ __forceinline__ krn_mhc_columns(const bf16 *x, int32_t dim, int32_t d, bool aligned)
    {
        uint4 bits[HC];
#pragma unroll
        for (int j = 0; j < HC; j++) bits[j] = krn_load8(x + (int64_t)j * dim + d, dim - d, aligned);
#pragma unroll
        for (int j = 0; j < HC; j++) krn_unpack8(bits[j], v[j]);
    }
    /* sum_j w[j * stride] * x[j], each product rounded, added in ascending j. */
    __device__ __forceinline__ void mix(const float *w, int stride, float out[KRN_MHC_COLUMNS]) const
    {
#pragma unroll
        for (int j = 0; j < HC; j++) {
            float weight = w[j * stride];
#pragma unroll
            for (int i = 0; i < KRN_MHC_COLUMNS; i++) {
                float product = __fmul_rn(weight, v[j][i]);
                out[i] = j == 0 ? product : __fadd_rn(out[i], product);
            }
        }
    }
};

/* A row's post and comb, loaded at once: stores to out cannot come between. */
template <int HC>
struct krn_mhc_weights {
    float post[HC], comb[HC * HC];

    __device__ __forceinline__ krn_mhc_weights(const float *from_post, const float *from_comb)
    {
#pragma unroll
        for (int i = 0; i < HC; i++) post[i] = from_post[i];
#pragma unroll
        for (int i = 0; i < HC * HC; i++) comb[i] = from_comb[i];
    }
};

/* Expand of the columns, of copy k: own is the sub-block's result, stream what lies before it. */
template <int HC>
__device__ __forceinline__ uint4 krn_mhc_expanded(const float own[KRN_MHC_COLUMNS], const krn_mhc_columns<HC> &stream,
                                                  const krn_mhc_weights<HC> &weights, int k)
{
    float sum[KRN_MHC_COLUMNS];
    stream.mix(weights.comb + k, HC, sum);                                                           /* R1 */
#pragma unroll
    for (int i = 0; i < KRN_MHC_COLUMNS; i++)
        sum[i] = __fadd_rn(__fmul_rn(weights.post[k], own[i]), sum[i]);                              /* R2, R3 */
    return krn_pack8(sum);
}

/* All copies, to out [HC, dim], the row's. */
template <int HC>
__device__ __forceinline__ void krn_mhc_expand_columns(const float own[KRN_MHC_COLUMNS], const krn_mhc_columns<HC> &stream,
                                                       const krn_mhc_weights<HC> &weights, bf16 *out, int32_t dim,
                                                       int32_t d, bool aligned)
{
#pragma unroll
    for (int k = 0; k < HC; k++)
        krn_store8(out + (int64_t)k * dim + d, krn_mhc_expanded(own, stream, weights, k), dim - d, aligned);
}

#endif
