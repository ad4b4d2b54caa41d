/* From a sub-block's sums to the next one's input: expand, collapse, norm, quantisation of a row, which stays in registers.
 * A cluster of four blocks a row where the card has clusters, for one multiprocessor fetches a row too slowly; eight
 * columns of every copy a thread. */
#include "kernels/fused.h"

#include "kernels/combine.cuh"
#include "kernels/launch.cuh"
#include "kernels/mhc.cuh"
#include "kernels/qdq.cuh"
#include "kernels/rmsnorm.cuh"

enum { CLUSTER = 4, DIM_MAX = KRN_MHC_COLUMNS * KRN_RMSNORM_THREADS_MAX };

/* A launch's operands, as kernels/fused.h has them. */
struct call {
    const float *sum; /* [rows, dim], or of every pick [rows, k, dim] */
    const int32_t *ids; /* NULL: sum is the sub-block's, to be rounded */
    const float *shared;
    int32_t k, dim;
    float eps;
    const bf16 *x;
    const float *post, *comb, *pre;
    const bf16 *w;
    bf16 *y, *out, *collapsed, *norm, *q;
    bool aligned;
};

/* ---- a row's blocks ---- CL of them */

template <int CL> __device__ __forceinline__ void blocks_arrive()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (CL > 1) asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
#endif
}
template <int CL> __device__ __forceinline__ void blocks_wait()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (CL > 1) asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#endif
}

/* Puts v at *to of every block of the row; lane r takes block r. */
template <int CL> __device__ __forceinline__ void put_everywhere(double *to, double v)
{
    const uint32_t lane = threadIdx.x % KRN_WARP;
    if (lane >= CL) return;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    uint32_t there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"((uint32_t)__cvta_generic_to_shared(to)), "r"(lane));
    asm volatile("st.shared::cluster.f64 [%0], %1;" ::"r"(there), "d"(v) : "memory");
#else
    *to = v;
#endif
}

/* krn_rmsnorm_row's sum of a row whose groups lie eight elements a thread, over all blocks: warp after warp, as
 * krn_block_sum. Warps past the end of the row bring +0. shared [KRN_WARP] is every block's. */
template <int CL> __device__ __forceinline__ double row_sum(double v, int32_t first_warp, double *shared)
{
    const int32_t lane = threadIdx.x % KRN_WARP, warps = CL * blockDim.x / KRN_WARP;
    v = krn_warp_sum(v);
    blocks_wait<CL>(); /* all have begun */
    put_everywhere<CL>(shared + first_warp + threadIdx.x / KRN_WARP, v);
    blocks_arrive<CL>();
    blocks_wait<CL>();
    if (CL == 1) __syncthreads();
    return krn_warp_sum(lane < warps ? shared[lane] : 0.0);
}

/* ---- the kernel ---- grid: CL blocks a row */

template <int HC, bool COMBINE, int CL>
__global__ static void __launch_bounds__(KRN_RMSNORM_THREADS_MAX / CL) expand_kernel(const call a)
{
    extern __shared__ int32_t order[]; /* [k] */
    __shared__ double warp_sums[KRN_WARP];
    __shared__ float inv_rms;
    const int64_t row = blockIdx.x / CL, at = row * a.dim;
    const int32_t block = blockIdx.x % CL, warps = blockDim.x / KRN_WARP;
    const int32_t d = KRN_MHC_COLUMNS * (block * (int32_t)blockDim.x + (int32_t)threadIdx.x), left = a.dim - d;
    krn_let_next_begin();
    const uint4 weight = krn_load8(a.w + d, left, a.aligned);
    blocks_arrive<CL>();
    krn_wait_for_previous();

    const krn_mhc_weights<HC> weights(a.post + row * HC, a.comb + row * HC * HC);
    const krn_mhc_columns<HC> before(a.x + at * HC, a.dim, d, a.aligned);
    float sum[KRN_MHC_COLUMNS], own[KRN_MHC_COLUMNS], pre[HC];
#pragma unroll
    for (int j = 0; j < HC; j++) pre[j] = a.pre[row * HC + j];
    if (COMBINE) {
        krn_combine_order(a.ids + row * a.k, a.k, order);
        __syncthreads();
        krn_combine_sum<true, KRN_MHC_COLUMNS>(a.sum + at * a.k + d, a.shared + at + d, order, a.k, a.dim, left, a.aligned,
                                               sum);
    } else {
        krn_load_f32<KRN_MHC_COLUMNS>(a.sum + at + d, left, a.aligned, sum);
    }
    const uint4 y = krn_pack8(sum);
    krn_unpack8(y, own);
    uint4 made[HC];
#pragma unroll
    for (int j = 0; j < HC; j++) made[j] = krn_mhc_expanded(own, before, weights, j);
    krn_mhc_columns<HC>(made).mix(pre, 1, sum);
    const uint4 group = krn_pack8(sum);

    const double squares = row_sum<CL>(krn_rmsnorm_add(group, 0.0), block * warps, warp_sums);
    if (threadIdx.x == 0) inv_rms = krn_rmsnorm_inverse(squares, a.dim, a.eps);
    /* Beside that thread's square root: what nobody waits for in this launch. */
    krn_store8(a.y + at + d, y, left, a.aligned);
#pragma unroll
    for (int j = 0; j < HC; j++) krn_store8(a.out + (row * HC + j) * a.dim + d, made[j], left, a.aligned);
    krn_store8(a.collapsed + at + d, group, left, a.aligned);
    __syncthreads();
    const uint4 norm = krn_rmsnorm_scale(group, weight, inv_rms);
    krn_store8(a.norm + at + d, norm, left, a.aligned);
    if (a.q) krn_store8(a.q + at + d, krn_qdq_quad(norm), left, a.aligned);
}

/* ---- the launchers ---- */

template <bool COMBINE, int CL>
static err_code launch(const char *op, const call &a, int32_t rows, int32_t hc, krn_stream stream, err *e)
{
    const unsigned warps = (unsigned)krn_blocks(krn_rmsnorm_threads(a.dim), CL * KRN_WARP), grid = (unsigned)rows * CL;
    const unsigned order_bytes = COMBINE ? (unsigned)a.k * sizeof(int32_t) : 0;
#define EXPAND(HC) \
    krn_launch_clusters(CL, expand_kernel<HC, COMBINE, CL>, grid, warps * KRN_WARP, order_bytes, stream, a)
    KRN_MHC_FOR_COPIES(hc, EXPAND)
#undef EXPAND
    return krn_launched(op, e);
}

template <bool COMBINE>
static err_code expand(const char *op, call a, int32_t rows, int32_t hc, krn_stream stream, err *e)
{
    a.aligned = krn_aligned(a.x, 2 * (int64_t)a.dim) && krn_aligned(a.sum) && krn_aligned(a.shared) && krn_aligned(a.w) &&
                krn_aligned(a.y) && krn_aligned(a.out) && krn_aligned(a.collapsed) && krn_aligned(a.norm) &&
                krn_aligned(a.q);
    if (krn_overlaps()) return launch<COMBINE, CLUSTER>(op, a, rows, hc, stream, e);
    return launch<COMBINE, 1>(op, a, rows, hc, stream, e);
}

static err_code check(const char *op, int32_t rows, int32_t hc, int32_t dim, const bf16 *q, err *e)
{
    TRY(krn_mhc_check_columns(op, rows, hc, dim, e));
    if (rows > INT32_MAX / CLUSTER || (q && dim % FMT_QDQ_GROUP))
        return err_set(e, ERR_ARG, "%s: rows=%d dim=%d%s", op, rows, dim, q ? " with q" : "");
    return ERR_OK;
}

extern "C" err_code krn_round_expand_norm(const float *sum, const bf16 *x, const float *post, const float *comb,
                                          const float *pre, const bf16 *w, int32_t rows, int32_t hc, int32_t dim,
                                          float eps, bf16 *y, bf16 *out, bf16 *collapsed, bf16 *norm, bf16 *q,
                                          krn_stream stream, err *e)
{
    TRY(check("round_expand_norm", rows, hc, dim, q, e));
    if (rows == 0) return ERR_OK;
    if (dim > DIM_MAX) {
        TRY(krn_round_expand(sum, x, post, comb, rows, hc, dim, y, out, stream, e));
        return krn_collapse_rmsnorm_qdq(out, pre, w, rows, hc, dim, eps, collapsed, norm, q, stream, e);
    }
    const call a = { sum, NULL, NULL, 0, dim, eps, x, post, comb, pre, w, y, out, collapsed, norm, q, false };
    return expand<false>("round_expand_norm", a, rows, hc, stream, e);
}

extern "C" err_code krn_combine_expand_norm(const float *slot, const int32_t *ids, const float *shared, const bf16 *x,
                                            const float *post, const float *comb, const float *pre, const bf16 *w,
                                            int32_t rows, int32_t k, int32_t hc, int32_t dim, float eps, bf16 *y, bf16 *out,
                                            bf16 *collapsed, bf16 *norm, bf16 *q, krn_stream stream, err *e)
{
    TRY(check("combine_expand_norm", rows, hc, dim, q, e));
    if (k < 1 || k > KRN_COMBINE_MAX) return err_set(e, ERR_ARG, "combine_expand_norm: k=%d", k);
    if (rows == 0) return ERR_OK;
    if (dim > DIM_MAX) {
        TRY(krn_combine_expand(slot, ids, shared, x, post, comb, rows, k, hc, dim, y, out, stream, e));
        return krn_collapse_rmsnorm_qdq(out, pre, w, rows, hc, dim, eps, collapsed, norm, q, stream, e);
    }
    const call a = { slot, ids, shared, k, dim, eps, x, post, comb, pre, w, y, out, collapsed, norm, q, false };
    return expand<true>("combine_expand_norm", a, rows, hc, stream, e);
}
