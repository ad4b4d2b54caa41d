/* Four elements a thread: where a part lies on another card, wide loads of all ranks at once keep the link busy. */
#include "kernels/reduce.h"

#include "kernels/bits.cuh"
#include "kernels/launch.cuh"

#include <limits.h>

enum { THREADS = 256, ELEMENTS = 4 };

typedef struct part_list { const float *part[KRN_RANKS_MAX]; } part_list; /* a kernel argument: no copy to the device */

__device__ static float4 add(float4 a, float4 b)
{
    return make_float4(__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z), __fadd_rn(a.w, b.w));
}
__device__ static float add(float a, float b) { return __fadd_rn(a, b); }

/* What every part holds at its place `at`, added in rank order; all loads go out first. */
template <typename vec> __device__ static vec sum_at(const part_list &parts, int32_t n_ranks, int64_t at)
{
    vec v[KRN_RANKS_MAX];
#pragma unroll
    for (int rank = 0; rank < KRN_RANKS_MAX; rank++)
        if (rank < n_ranks) v[rank] = *(const vec *)(parts.part[rank] + at);
    vec sum = v[0];
#pragma unroll
    for (int rank = 1; rank < KRN_RANKS_MAX; rank++)
        if (rank < n_ranks) sum = add(sum, v[rank]);                                                 /* R1 */
    return sum;
}

__global__ static void sum_ranks_kernel(part_list parts, int32_t n_ranks, int64_t n, float *out, bool aligned)
{
    krn_begin();
    int64_t i = ELEMENTS * ((int64_t)blockIdx.x * THREADS + threadIdx.x);
    if (aligned && i + ELEMENTS <= n) {
        *(float4 *)(out + i) = sum_at<float4>(parts, n_ranks, i);
        return;
    }
    for (int64_t end = min(i + ELEMENTS, n); i < end; i++) out[i] = sum_at<float>(parts, n_ranks, i);
}

extern "C" err_code krn_sum_ranks(const float *const *parts, int32_t n_ranks, int64_t first, int64_t n, float *out,
                                  krn_stream stream, err *e)
{
    int64_t blocks = krn_blocks(n, ELEMENTS * THREADS);
    if (n_ranks < 1 || n_ranks > KRN_RANKS_MAX || first < 0 || n < 0 || blocks > INT_MAX)
        return err_set(e, ERR_ARG, "sum_ranks: n_ranks=%d first=%lld n=%lld", n_ranks, (long long)first, (long long)n);
    if (n == 0) return ERR_OK;
    part_list list = {};
    bool aligned = krn_aligned(out + first);
    for (int32_t rank = 0; rank < n_ranks; rank++) {
        list.part[rank] = parts[rank] + first;
        aligned = aligned && krn_aligned(list.part[rank]);
    }
    krn_launch(sum_ranks_kernel, (unsigned)blocks, THREADS, 0, stream, list, n_ranks, n, out + first, aligned);
    return krn_launched("sum_ranks", e);
}
