/* A block of threads a tile, one block a multiprocessor: every thread has a part of the 65,536 branches of a position for
 * good and holds their values in registers, 128 of them as fp16. Costs stand twice in shared memory (a read, a write, one
 * barrier a position); where they come from goes to global memory, a byte a node.
 *
 * The way back is a chain of loads that depend on each other, out of reach of the caches at 2 bits: a warp loads what the
 * next positions may want for every outcome of this one, 21 loads for three positions at 2 bits. */
#include "kernels/exl3_encode.h"

#include "kernels/bits.cuh"

#include <cuda_fp16.h>
#include <cuda_runtime.h>

enum { WEIGHTS = FMT_EXL3_TILE_WEIGHTS, THREADS_MAX = 512, STATIC_SHARED_MAX = 8192 };

template <int K> struct shape {
    static constexpr int NODES = 1 << (16 - K), WAYS = 1 << K;
    static constexpr int THREADS = NODES < THREADS_MAX ? NODES : THREADS_MAX;
    static constexpr int OWN = NODES / THREADS;                          /* nodes of a thread */
    static constexpr int RUN_MAX = WAYS < 4 ? WAYS : 4;                  /* neighbours with one predecessor */
    static constexpr int RUN = OWN < RUN_MAX ? OWN : RUN_MAX;            /* of which a thread has this many together */
    static constexpr int RUNS = OWN / RUN;
    static constexpr int PAIRS = OWN * WAYS / 2;                         /* registers for values */
    static constexpr int LEVELS = 3 * K <= 6 ? 3 : K <= 5 ? 2 : 1;       /* positions of the way back at a time */
    static __device__ int node(int run) { return (run * THREADS + (int)threadIdx.x) * RUN; }
};

template <int RUN> struct run_of;
template <> struct run_of<1> { typedef uint32_t costs; typedef uint8_t ways; };
template <> struct run_of<2> { typedef uint2 costs; typedef uint16_t ways; };
template <> struct run_of<4> { typedef uint4 costs; typedef uint32_t ways; };

template <int K> struct tile_search {
    typedef shape<K> S;
    __half2 value[S::PAIRS]; /* of branch (run, m, neighbour) in that order */
    float *cost, *next;      /* [NODES], costs as their bits too */
    uint8_t *from;           /* [256, NODES] */
    const float *target;     /* [256] shared */

    __device__ void values_load(const float *values)
    {
#pragma unroll
        for (int i = 0; i < S::PAIRS; i++) {
            float v[2];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int flat = 2 * i + half, near = flat % S::RUN;
                const int m = flat / S::RUN % S::WAYS, run = flat / S::RUN / S::WAYS;
                v[half] = values[m * S::NODES + S::node(run) + near];
            }
            value[i] = __floats2half2_rn(v[0], v[1]); /* exact */
        }
    }

    __device__ void start(int at, float others)
    {
        for (int e = threadIdx.x; e < S::NODES; e += S::THREADS) cost[e] = e == at ? 0.0f : others;
        __syncthreads();
    }

    /* Positions [first, first + count) mod 256. */
    __device__ void walk(int first, int count)
    {
        for (int i = 0; i < count; i++) {
            const float w = target[(first + i) % WEIGHTS];
#pragma unroll
            for (int run = 0; run < S::RUNS; run++) {
                const int node = S::node(run);
                uint32_t best[S::RUN];
#pragma unroll
                for (int m = 0; m < S::WAYS; m++) {
                    const float before = cost[(m * S::NODES + node) >> K];
#pragma unroll
                    for (int near = 0; near < S::RUN; near++) {
                        const int flat = (run * S::WAYS + m) * S::RUN + near;
                        const float v = flat % 2 ? __high2float(value[flat / 2]) : __low2float(value[flat / 2]);
                        const float d = __fsub_rn(v, w);                                             /* R1 */
                        const uint32_t c = __float_as_uint(__fmaf_rn(d, d, before));                 /* R2 */
                        const uint32_t marked = (c & ~(uint32_t)(S::WAYS - 1)) | (uint32_t)m;        /* R3 */
                        best[near] = m == 0 ? marked : min(best[near], marked);
                    }
                }
                uint32_t ways = 0;
#pragma unroll
                for (int near = 0; near < S::RUN; near++) ways |= (best[near] & (S::WAYS - 1)) << (8 * near);
                *(typename run_of<S::RUN>::costs *)(next + node) = *(typename run_of<S::RUN>::costs *)best;
                *(typename run_of<S::RUN>::ways *)(from + i * S::NODES + node) = (typename run_of<S::RUN>::ways)ways;
            }
            float *swap = cost;
            cost = next;
            next = swap;
            __syncthreads();
        }
    }

    /* Warp 0: from node e after row `last` of the walk back to the node before row `first`. state NULL: only that. */
    __device__ int trace(int e, int last, int first, uint16_t *state)
    {
        const int lane = threadIdx.x;
        for (int i = last; i >= first;) {
            uint32_t way[S::LEVELS];
            int guess = e, who = 0;
#pragma unroll
            for (int level = 0; level < S::LEVELS; level++) { /* a lane's number is what it takes the ways before to be */
                way[level] = from[max(i - level, 0) * S::NODES + guess];
                guess = ((lane >> (level * K)) % S::WAYS * S::NODES + guess) >> K;
            }
#pragma unroll
            for (int level = 0; level < S::LEVELS; level++) {
                const int m = (int)__shfl_sync(~0u, way[level], who);
                if (i < first) break;
                if (state && lane == 0) state[i] = (uint16_t)(m * S::NODES + e);
                e = (m * S::NODES + e) >> K;
                who |= m << (level * K);
                i--;
            }
        }
        return e;
    }

    /* Every thread of the block; least: shared. */
    __device__ int cheapest(unsigned long long *least)
    {
        if (threadIdx.x == 0) *least = ~0ull;
        __syncthreads();
        unsigned long long mine = ~0ull;
        for (int e = threadIdx.x; e < S::NODES; e += S::THREADS) {
            const unsigned long long c = (unsigned long long)__float_as_uint(cost[e]) << 32 | (unsigned)e;
            mine = min(mine, c);
        }
        for (int apart = KRN_WARP / 2; apart > 0; apart /= 2) mine = min(mine, __shfl_xor_sync(~0u, mine, apart));
        if (threadIdx.x % KRN_WARP == 0) atomicMin(least, mine);
        __syncthreads();
        return (int)(uint32_t)*least;
    }
};

/* The 32-bit word u of a tile: bit b of the stream is bit K - 1 - b % K of state b / K. */
template <int K> static __device__ uint32_t tile_word(const uint16_t *state, int u)
{
    uint32_t word = 0;
    for (int b = 32 * u; b < 32 * u + 32; b++) word = word << 1 | (state[b / K] >> (K - 1 - b % K) & 1);
    return word;
}

/* costs NULL: in shared memory. */
template <int K, bool SHARED>
__global__ static void __launch_bounds__(shape<K>::THREADS, 1)
    encode_kernel(const float *w, int64_t n, int seam, const float *values, float *costs, uint8_t *from, uint16_t *tiles,
                  double *error)
{
    typedef shape<K> S;
    extern __shared__ float4 shared_costs[];
    __shared__ float target[WEIGHTS];
    __shared__ double square[WEIGHTS];
    __shared__ uint16_t state[WEIGHTS];
    __shared__ unsigned long long least;
    __shared__ int seam_node;
    tile_search<K> s;
    s.cost = SHARED ? (float *)shared_costs : costs + (int64_t)blockIdx.x * 2 * S::NODES;
    s.next = s.cost + S::NODES;
    s.from = from + (int64_t)blockIdx.x * WEIGHTS * S::NODES;
    s.target = target;
    s.values_load(values);
    for (int64_t tile = blockIdx.x; tile < n; tile += gridDim.x) {
        for (int p = threadIdx.x; p < WEIGHTS; p += S::THREADS) target[p] = w[tile * WEIGHTS + p];
        s.start(-1, 0.0f);
        s.walk(WEIGHTS - seam / 2, seam);
        const int end = s.cheapest(&least);
        if (threadIdx.x < KRN_WARP) {
            const int q = s.trace(end, seam - 1, seam / 2, NULL);
            if (threadIdx.x == 0) seam_node = q;
        }
        __syncthreads();
        const int q = seam_node;
        s.start(q, 0x1p100f);
        s.walk(0, WEIGHTS);
        if (threadIdx.x < KRN_WARP) s.trace(q, WEIGHTS - 1, 0, state);
        __syncthreads();
        for (int p = threadIdx.x; p < WEIGHTS; p += S::THREADS) {
            const double d = (double)values[state[p]] - (double)target[p];
            square[p] = d * d;
        }
        if (threadIdx.x < 8 * K) ((uint32_t *)tiles)[tile * 8 * K + threadIdx.x] = tile_word<K>(state, threadIdx.x);
        __syncthreads();
        if (threadIdx.x == 0) {
            double sum = 0;
            for (int p = 0; p < WEIGHTS; p++) sum += square[p];
            error[tile] = sum;
        }
        __syncthreads();
    }
}

/* ---- launching ---- */

typedef struct room {
    int blocks;
    bool shared;               /* the costs fit into a block's shared memory */
    uint64_t costs, from;      /* bytes of all blocks */
} room;

static err_code room_of(int32_t bits, room *out, err *e)
{
    int device, n_sm, shared_bytes;
    cudaError_t rc = cudaGetDevice(&device);
    if (rc == cudaSuccess) rc = cudaDeviceGetAttribute(&n_sm, cudaDevAttrMultiProcessorCount, device);
    if (rc == cudaSuccess) rc = cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (rc != cudaSuccess) return err_set(e, ERR_DEVICE, "exl3_encode: %s", cudaGetErrorString(rc));
    const uint64_t nodes = (uint64_t)1 << (16 - bits), costs = 2 * nodes * sizeof(float);
    out->blocks = n_sm;
    out->shared = costs + STATIC_SHARED_MAX <= (uint64_t)shared_bytes;
    out->costs = out->shared ? 0 : costs * (uint64_t)n_sm;
    out->from = WEIGHTS * nodes * (uint64_t)n_sm;
    return ERR_OK;
}

extern "C" err_code krn_exl3_encode_scratch(int32_t bits, uint64_t *bytes, err *e)
{
    room r;
    if (bits < 1 || bits > FMT_EXL3_BITS_MAX) return err_set(e, ERR_ARG, "exl3_encode: bits=%d", bits);
    TRY(room_of(bits, &r, e));
    *bytes = r.costs + r.from;
    return ERR_OK;
}

template <int K>
static err_code launch(const float *w, int64_t n, int seam, const float *values, const room *r, uint8_t *scratch,
                       uint16_t *tiles, double *error, krn_stream stream, err *e)
{
    const unsigned blocks = (unsigned)(n < r->blocks ? n : r->blocks);
    if constexpr (K >= 2) {
        if (r->shared) {
            const int bytes = 2 * shape<K>::NODES * (int)sizeof(float);
            const cudaError_t rc =
                cudaFuncSetAttribute(encode_kernel<K, true>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
            if (rc != cudaSuccess) return err_set(e, ERR_DEVICE, "exl3_encode: %s", cudaGetErrorString(rc));
            encode_kernel<K, true><<<blocks, shape<K>::THREADS, bytes, stream>>>(w, n, seam, values, NULL, scratch, tiles,
                                                                                 error);
            return krn_launched("exl3_encode", e);
        }
    }
    if constexpr (K <= 2) {
        encode_kernel<K, false><<<blocks, shape<K>::THREADS, 0, stream>>>(w, n, seam, values, (float *)scratch,
                                                                          scratch + r->costs, tiles, error);
        return krn_launched("exl3_encode", e);
    }
    return err_set(e, ERR_DEVICE, "exl3_encode: %d bits: this card has too little shared memory", K);
}

extern "C" err_code krn_exl3_encode_tiles(const float *w, int64_t n, krn_exl3_code code, const float *values, void *scratch,
                                          uint16_t *tiles, double *error, krn_stream stream, err *e)
{
    typedef err_code launcher(const float *, int64_t, int, const float *, const room *, uint8_t *, uint16_t *, double *,
                              krn_stream, err *);
    static launcher *const LAUNCH[] = { launch<1>, launch<2>, launch<3>, launch<4>, launch<5>, launch<6>, launch<7>,
                                        launch<8> };
    if (n < 0 || code.bits < 1 || code.bits > FMT_EXL3_BITS_MAX || code.seam < 2 || code.seam > KRN_EXL3_SEAM_MAX ||
        code.seam % 2)
        return err_set(e, ERR_ARG, "exl3_encode: n=%lld bits=%d seam=%d", (long long)n, code.bits, code.seam);
    if (n == 0) return ERR_OK;
    room r;
    TRY(room_of(code.bits, &r, e));
    return LAUNCH[code.bits - 1](w, n, code.seam, values, &r, (uint8_t *)scratch, tiles, error, stream, e);
}
