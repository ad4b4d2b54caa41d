/* A block of 256 a group [n], on a grid (hc, tokens). Thread i is lane i of the contract's order and does all there is to
 * do with channels i, i + 256, ..., so that threads meet in sums alone.
 *
 * Kernels are written once, for an N: KRN_PLE_FAST_N, the n that is known as it is built, where loops unroll and a thread's
 * part of a row is registers; or 0, any n, where it is memory. */
#include "kernels/ple.h"

#include "kernels/bits.cuh"
#include "kernels/launch.cuh"
#include "kernels/ple_steps.h"

enum { THREADS = KRN_PLE_LANES, WARPS = THREADS / KRN_WARP, FAST_N = KRN_PLE_FAST_N, FAST_TOP_K = KRN_PLE_FAST_TOP_K };
static_assert(FAST_N % THREADS == 0, "every thread has as many channels");
static_assert(WARPS == 8, "block_sum adds eight");

/* ---- a thread's channels of a row [n] ---- element i of it is channel threadIdx.x + i * THREADS */

template <int N> __device__ __forceinline__ int32_t channels(int32_t n)
{
    return N ? N / THREADS : (n + THREADS - 1 - (int32_t)threadIdx.x) / THREADS;
}

/* Read again at every use. */
struct row_in_memory {
    const float *mine;
    __device__ __forceinline__ explicit row_in_memory(const float *row) : mine(row + threadIdx.x) {}
    __device__ __forceinline__ float operator[](int32_t i) const { return mine[(int64_t)i * THREADS]; }
};

/* Read once. */
template <int N> struct row_held {
    float mine[N / THREADS];
    __device__ __forceinline__ explicit row_held(const float *row)
    {
#pragma unroll
        for (int i = 0; i < N / THREADS; i++) mine[i] = row[i * THREADS + threadIdx.x];
    }
    __device__ __forceinline__ float operator[](int i) const { return mine[i]; }
};
template <> struct row_held<0> : row_in_memory { using row_in_memory::row_in_memory; };

/* Put element by element, then stored; where it is memory it is stored as it is put. */
template <int N> struct row_made {
    float mine[N / THREADS];
    float *row;
    __device__ __forceinline__ explicit row_made(float *row) : row(row + threadIdx.x) {}
    __device__ __forceinline__ float operator[](int i) const { return mine[i]; }
    __device__ __forceinline__ void put(int i, float v) { mine[i] = v; }
    __device__ __forceinline__ void store() const
    {
#pragma unroll
        for (int i = 0; i < N / THREADS; i++) row[i * THREADS] = mine[i];
    }
};
template <> struct row_made<0> {
    float *row;
    __device__ __forceinline__ explicit row_made(float *row) : row(row + threadIdx.x) {}
    __device__ __forceinline__ float operator[](int32_t i) const { return row[(int64_t)i * THREADS]; }
    __device__ __forceinline__ void put(int32_t i, float v) { row[(int64_t)i * THREADS] = v; }
    __device__ __forceinline__ void store() const {}
};

/* ---- steps of a block ---- all threads call */

__device__ __forceinline__ int64_t token() { return blockIdx.y; }
__device__ __forceinline__ int64_t resid_stream() { return blockIdx.x; }
__device__ __forceinline__ int64_t group() { return token() * gridDim.x + resid_stream(); }

struct block_sums { float4 warps[WARPS / 4]; }; /* in shared memory, of one sum */

/* The contract's order. */
__device__ __forceinline__ float block_sum(float v, block_sums *sums)
{
    v = krn_warp_sum(v);
    if (threadIdx.x % KRN_WARP == 0) ((float *)sums->warps)[threadIdx.x / KRN_WARP] = v;
    __syncthreads();
    const float4 low = sums->warps[0], high = sums->warps[1];
    return ((low.x + high.x) + (low.z + high.z)) + ((low.y + high.y) + (low.w + high.w));
}

template <int N, typename row_type>
__device__ __forceinline__ float inv_rms(const row_type &x, int32_t n, krn_ple_scale scale, block_sums *sums)
{
    float sum = 0.0f;
#pragma unroll
    for (int32_t i = 0; i < channels<N>(n); i++) sum = fmaf(x[i], x[i], sum);                        /* R4 */
    return krn_ple_inv_rms(block_sum(sum, sums), scale.inv_n);                                       /* R5 */
}

/* R1..R3: made from resid, both this block's rows. */
template <int N>
__device__ __forceinline__ void combine(krn_ple_shape s, const krn_ple_combine &in, const float *resid, row_made<N> *made)
{
    const int32_t top_k = N ? FAST_TOP_K : in.top_k;
    const int64_t t = token();
    const int32_t *pick = in.plan + in.p_tokent + top_k * t; /* [top_k] */
    const row_held<N> shared(in.ysh + t * s.n), before(resid);
    const float gs = in.gs[t], g = in.g[group()];
#pragma unroll
    for (int32_t i = 0; i < channels<N>(s.n); i++) {
        const int32_t d = i * THREADS + threadIdx.x;
        float sum = 0.0f;
#pragma unroll
        for (int32_t j = 0; j < top_k; j++) {
            const int32_t row = pick[j];
            const bool known = row >= 0 && row < in.rows;
            const float ye = in.ye[(int64_t)(known ? row : 0) * s.n + d]; /* row 0 is there: no branch holds up the rest */
            sum += known ? ye : 0.0f;                                                                /* R1 */
        }
        made->put(i, fmaf(fmaf(gs, shared[i], sum), g, before[i]));                                  /* R2, R3 */
    }
    made->store();
}

/* What a query reads beside x. */
template <int N> struct query_rows {
    const row_held<N> key, w_query, value, w_conv;
    __device__ __forceinline__ query_rows(krn_ple_shape s, const krn_ple_query &q)
        : key(q.key + group() * s.n), w_query(q.w_query + resid_stream() * s.n), value(q.value + token() * s.n),
          w_conv(q.w_conv + resid_stream() * s.n)
    {
    }
};

/* R4..R9 from x, this block's row of resid_out. */
template <int N, typename row_type>
__device__ __forceinline__ void query_gate_norm(krn_ple_shape s, krn_ple_scale scale, const query_rows<N> &q,
                                                const row_type &x, float *gate, float *norm_w)
{
    __shared__ block_sums sums[3];
    float r = inv_rms<N>(x, s.n, scale, &sums[0]), dot = 0.0f, sum = 0.0f;
#pragma unroll
    for (int32_t i = 0; i < channels<N>(s.n); i++) dot = fmaf(q.key[i], x[i] * r * q.w_query[i], dot);  /* R6, R7 */
    const float open = krn_ple_gate(block_sum(dot, &sums[1]) * scale.inv_sqrt_n);                    /* R8 */
    if (gate && threadIdx.x == 0) gate[group()] = open;
#pragma unroll
    for (int32_t i = 0; i < channels<N>(s.n); i++) {
        const float gated = open * q.value[i];
        sum = fmaf(gated, gated, sum);
    }
    r = krn_ple_inv_rms(block_sum(sum, &sums[2]), scale.inv_n);
    norm_w += group() * s.n + threadIdx.x;
#pragma unroll
    for (int32_t i = 0; i < channels<N>(s.n); i++)
        norm_w[(int64_t)i * THREADS] = open * q.value[i] * r * q.w_conv[i];                          /* R9 */
}

/* ---- kernels ---- */

/* There are few blocks: each may have the registers for a hundred loads on their way at once. */
#define ONE_BLOCK_A_SM __launch_bounds__(THREADS, 1)

/* Two plain loops over the row. */
__global__ static void ONE_BLOCK_A_SM
    gnorm_kernel(krn_ple_shape s, krn_ple_scale scale, const float *x, const float *__restrict__ w, float *y)
{
    __shared__ block_sums sums;
    krn_begin();
    x += group() * s.n;
    y += group() * s.n;
    w += resid_stream() * s.n;
    const float r = inv_rms<0>(row_in_memory(x), s.n, scale, &sums);
    for (int32_t d = threadIdx.x; d < s.n; d += THREADS) y[d] = x[d] * r * w[d];
}

/* The same for n = FAST_N. The weights are on their way too before the sum: w is not __restrict__, for that would let the
 * compiler put off their loads. */
__global__ static void ONE_BLOCK_A_SM
    gnorm_cached_kernel(krn_ple_shape s, krn_ple_scale scale, const float *x, const float *w, float *y)
{
    __shared__ block_sums sums;
    krn_begin();
    const row_held<FAST_N> row(x + group() * FAST_N), weight(w + resid_stream() * FAST_N);
    const float r = inv_rms<FAST_N>(row, FAST_N, scale, &sums);
    y += group() * FAST_N + threadIdx.x;
#pragma unroll
    for (int i = 0; i < FAST_N / THREADS; i++) y[i * THREADS] = row[i] * r * weight[i];
}

template <int N>
__global__ static void ONE_BLOCK_A_SM
    comb_kernel(krn_ple_shape s, krn_ple_scale scale, krn_ple_combine in, const float *resid, float *resid_out, float *xn)
{
    __shared__ block_sums sums;
    const int64_t at = group() * s.n;
    row_made<N> x(resid_out + at);
    krn_begin();
    combine<N>(s, in, resid + at, &x);
    const float r = inv_rms<N>(x, s.n, scale, &sums);
    xn += at + threadIdx.x;
#pragma unroll
    for (int32_t i = 0; i < channels<N>(s.n); i++) xn[(int64_t)i * THREADS] = x[i] * r;              /* R6 */
}

template <int N>
__global__ static void ONE_BLOCK_A_SM
    query_kernel(krn_ple_shape s, krn_ple_scale scale, krn_ple_query q, const float *resid, float *gate, float *norm_w)
{
    krn_begin();
    query_gate_norm<N>(s, scale, query_rows<N>(s, q), row_in_memory(resid + group() * s.n), gate, norm_w);
}

template <int N>
__global__ static void ONE_BLOCK_A_SM
    comb_query_kernel(krn_ple_shape s, krn_ple_scale scale, krn_ple_combine in, krn_ple_query q, const float *resid,
                      float *resid_out, float *gate, float *norm_w)
{
    const int64_t at = group() * s.n;
    row_made<N> x(resid_out + at);
    krn_begin();
    const query_rows<N> rows(s, q); /* before the combine: no load may pass the stores of R */
    combine<N>(s, in, resid + at, &x);
    query_gate_norm<N>(s, scale, rows, x, gate, norm_w);
}

/* ---- launchers ---- */

static err_code check_shape(const char *op, krn_ple_shape s, err *e)
{
    if (s.tokens >= 0 && s.tokens <= KRN_PLE_TOKENS_MAX && s.hc >= 1 && s.n >= 1 && s.n <= KRN_PLE_N_MAX) return ERR_OK;
    return err_set(e, ERR_ARG, "%s: tokens=%d hc=%d n=%d", op, s.tokens, s.hc, s.n);
}

static err_code check_combine(const char *op, krn_ple_shape s, const krn_ple_combine &in, err *e)
{
    TRY(check_shape(op, s, e));
    if (in.top_k >= 1 && in.rows >= 1 && in.p_tokent >= 0) return ERR_OK;
    return err_set(e, ERR_ARG, "%s: top_k=%d rows=%d p_tokent=%d", op, in.top_k, in.rows, in.p_tokent);
}

/* A block a group; none for no tokens. */
template <typename... parameter, typename... argument>
static err_code launch(const char *op, void (*kernel)(krn_ple_shape, krn_ple_scale, parameter...), krn_ple_shape s,
                       krn_stream stream, err *e, argument... arguments)
{
    if (s.tokens == 0) return ERR_OK;
    krn_launch(kernel, dim3((unsigned)s.hc, (unsigned)s.tokens), THREADS, 0, stream, s, krn_ple_scale_of(s.n),
               (parameter)arguments...);
    return krn_launched(op, e);
}

extern "C" err_code krn_ple_gnorm(krn_ple_shape s, const float *x, const float *w, float *y, krn_stream stream, err *e)
{
    TRY(check_shape("ple_gnorm", s, e));
    return launch("ple_gnorm", gnorm_kernel, s, stream, e, x, w, y);
}

extern "C" err_code krn_ple_gnorm_cached(krn_ple_shape s, const float *x, const float *w, float *y, krn_stream stream,
                                         err *e)
{
    TRY(check_shape("ple_gnorm_cached", s, e));
    return launch("ple_gnorm_cached", s.n == FAST_N ? gnorm_cached_kernel : gnorm_kernel, s, stream, e, x, w, y);
}

extern "C" err_code krn_gr_norm_comb(krn_ple_shape s, krn_ple_combine in, const float *resid, float *resid_out, float *xn,
                                     krn_stream stream, err *e)
{
    TRY(check_combine("gr_norm_comb", s, in, e));
    const bool fast = s.n == FAST_N && in.top_k == FAST_TOP_K;
    return launch("gr_norm_comb", fast ? comb_kernel<FAST_N> : comb_kernel<0>, s, stream, e, in, resid, resid_out, xn);
}

extern "C" err_code krn_ple_query_gate_norm(krn_ple_shape s, krn_ple_query q, const float *resid, float *gate,
                                            float *norm_w, krn_stream stream, err *e)
{
    TRY(check_shape("ple_query_gate_norm", s, e));
    return launch("ple_query_gate_norm", s.n == FAST_N ? query_kernel<FAST_N> : query_kernel<0>, s, stream, e, q, resid,
                  gate, norm_w);
}

extern "C" err_code krn_ple_comb_query_gate_norm(krn_ple_shape s, krn_ple_combine in, krn_ple_query q, const float *resid,
                                                 float *resid_out, float *gate, float *norm_w, krn_stream stream, err *e)
{
    TRY(check_combine("ple_comb_query_gate_norm", s, in, e));
    const bool fast = s.n == FAST_N && in.top_k == FAST_TOP_K;
    return launch("ple_comb_query_gate_norm", fast ? comb_query_kernel<FAST_N> : comb_query_kernel<0>, s, stream, e, in, q,
                  resid, resid_out, gate, norm_w);
}
