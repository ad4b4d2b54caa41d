/* The step streams the head once. Eight lanes share a row, 16 bytes a load, and hold four rows at a time, so that a block
 * has 64 KiB in flight and an embedding read from shared memory serves four rows. */
#include "kernels/markov.h"

#include "kernels/bits.cuh"

enum {
    THREADS = 256,
    WARPS = THREADS / KRN_WARP,
    CHUNK = 8,                                 /* elements of a 16-byte load */
    LANES = 8,                                 /* that share a row */
    LANE_ROWS = 4,                             /* a lane works on at a time */
    LANE_CHUNKS = 4,                           /* of each, loaded together: a row of 256 elements in one go */
    TILE_ROWS = THREADS / LANES * LANE_ROWS,   /* of a block at a time */
    ENTRIES = THREADS / TILE_ROWS,             /* batch entries that the block finishes side by side, a thread a row */
};

typedef struct step_args {
    const float *logits;
    const bf16 *embed, *head;
    int32_t vocab, k, n, first_id, block, n_out, i;
    const int32_t *anchor;
    const krn_best *before;
    int32_t n_ranks;
    int32_t *drafts;
    float *biased;
    krn_best *part;
    int32_t *arrived;
    krn_best *best;
} step_args;

/* ---- the order of kernels/argmax.h ---- */

__device__ static bool value_before(float a, float b) { return a > b || (b != b && a == a); }

__device__ static krn_best best_of(krn_best a, krn_best b)
{
    bool first = value_before(a.value, b.value) || (!value_before(b.value, a.value) && a.id <= b.id);
    return first ? a : b;
}

/* Of the warp's lanes, in every lane. */
__device__ static krn_best warp_best(krn_best best)
{
    for (int apart = KRN_WARP / 2; apart > 0; apart /= 2) {
        krn_best other;
        other.value = __shfl_xor_sync(0xffffffff, best.value, apart);
        other.id = __shfl_xor_sync(0xffffffff, best.id, apart);
        best = best_of(best, other);
    }
    return best;
}

/* Other blocks, or ranks, wrote it: not from L1. */
__device__ static krn_best load_best(const krn_best *from)
{
    const int2 bits = __ldcg((const int2 *)from);
    return { __int_as_float(bits.x), bits.y };
}

/* Of n candidates, stride apart, the warp's. */
__device__ static krn_best warp_best_of(const krn_best *from, int32_t n, int32_t stride)
{
    krn_best own = { __uint_as_float(0x7fc00000), INT32_MAX }; /* loses against all */
    for (int32_t j = threadIdx.x % KRN_WARP; j < n; j += KRN_WARP)
        own = best_of(own, load_best(from + (int64_t)j * stride));
    return warp_best(own);
}

/* ---- the step ---- */

/* The token before position i of entry b of BATCH. */
template <int BATCH> __device__ static int32_t previous_token(const step_args &a, int32_t b)
{
    if (a.i == 0) return a.anchor[b];
    krn_best winner = load_best(a.before + b);
    for (int32_t rank = 1; rank < a.n_ranks; rank++) winner = best_of(winner, load_best(a.before + rank * BATCH + b));
    return winner.id;
}

/* Chunk c of a row of k elements; past the end zeros. WIDE: rows are 16-byte aligned and k is whole chunks. */
template <bool WIDE>
__device__ static uint4 chunk_of(const bf16 *row, int32_t c, int32_t k)
{
    if constexpr (WIDE) {
        return __ldg((const uint4 *)row + c);
    } else {
        uint32_t pair[CHUNK / 2];
#pragma unroll
        for (int p = 0; p < CHUNK / 2; p++) {
            int32_t at = c * CHUNK + 2 * p;
            pair[p] = (at < k ? row[at] : 0) | (uint32_t)(at + 1 < k ? row[at + 1] : 0) << 16;
        }
        return make_uint4(pair[0], pair[1], pair[2], pair[3]);
    }
}

__device__ static float4 first_half(uint4 v)
{
    float f[CHUNK];
    krn_unpack8(v, f);
    return make_float4(f[0], f[1], f[2], f[3]);
}

__device__ static float4 second_half(uint4 v)
{
    float f[CHUNK];
    krn_unpack8(v, f);
    return make_float4(f[4], f[5], f[6], f[7]);
}

/* The embeddings of the previous tokens as f32 [batch][2][chunks]: first halves of the chunks, then second halves, so that
 * eight lanes that read neighbouring chunks read 128 bytes in a row. */
template <int BATCH, bool WIDE>
__device__ static void stage_embeddings(const step_args &a, int32_t chunks, float4 *staged)
{
    for (int32_t q = threadIdx.x; q < BATCH * chunks; q += THREADS) {
        int32_t b = q / chunks, c = q % chunks;
        int32_t id = previous_token<BATCH>(a, b);
        if (id < 0 || id >= a.vocab) id = 0;
        uint4 v = chunk_of<WIDE>(a.embed + (int64_t)id * a.k, c, a.k);
        staged[2 * b * chunks + c] = first_half(v);
        staged[(2 * b + 1) * chunks + c] = second_half(v);
    }
}

__device__ static float dot4(float4 w, float4 x, float sum)
{
    sum = fmaf(w.x, x.x, sum);
    sum = fmaf(w.y, x.y, sum);
    sum = fmaf(w.z, x.z, sum);
    return fmaf(w.w, x.w, sum);                                                                      /* R1 */
}

/* The last block to come here joins what all have left in part. */
template <int BATCH> __device__ static void join_parts(const step_args &a)
{
    __shared__ bool is_last;
    __threadfence(); /* this block's part before its arrival */
    __syncthreads();
    if (threadIdx.x == 0) is_last = atomicAdd(a.arrived, 1) == (int32_t)gridDim.x - 1;
    __syncthreads();
    if (!is_last) return;
    if (threadIdx.x == 0) *a.arrived = 0;
    __threadfence(); /* the arrivals before the parts are read */
    /* Every warp takes a share of one entry's parts, all loads at once: their time is most of what this costs. */
    enum { SHARES = WARPS / BATCH, LOADS = KRN_MARKOV_PARTS / (SHARES * KRN_WARP) };
    static_assert(LOADS * SHARES * KRN_WARP == KRN_MARKOV_PARTS, "whole loads");
    __shared__ krn_best bests[WARPS];
    const int warp = threadIdx.x / KRN_WARP, b = warp / SHARES, share = warp % SHARES;
    krn_best mine[LOADS];
#pragma unroll
    for (int j = 0; j < LOADS; j++)
        mine[j] = load_best(a.part + (b < BATCH ? b : 0) * KRN_MARKOV_PARTS + j * SHARES * KRN_WARP + share * KRN_WARP +
                            threadIdx.x % KRN_WARP);
#pragma unroll
    for (int j = 1; j < LOADS; j++) mine[0] = best_of(mine[0], mine[j]);
    mine[0] = warp_best(mine[0]);
    if (threadIdx.x % KRN_WARP == 0) bests[warp] = mine[0];
    __syncthreads();
    if (threadIdx.x >= BATCH) return;
    krn_best winner = bests[threadIdx.x * SHARES];
    for (int s = 1; s < SHARES; s++) winner = best_of(winner, bests[threadIdx.x * SHARES + s]);
    a.best[threadIdx.x] = winner;
}

template <int BATCH, bool WIDE>
__global__ static void __launch_bounds__(THREADS, 2) step_kernel(const step_args a)
{
    static_assert(BATCH <= WARPS, "a warp joins each entry's parts");
    enum { ROUNDS = (BATCH + ENTRIES - 1) / ENTRIES };
    extern __shared__ float4 staged[];
    __shared__ float sums[BATCH][TILE_ROWS];
    __shared__ krn_best bests[ROUNDS][WARPS];
    const int32_t chunks = (a.k + CHUNK - 1) / CHUNK;
    const int lane = threadIdx.x % LANES, lane_row = threadIdx.x / LANES * LANE_ROWS;
    const int own_row = threadIdx.x % TILE_ROWS, own_entry = threadIdx.x / TILE_ROWS; /* + ENTRIES each round */
    bool is_staged = false;
    if (a.i > 0 && blockIdx.x == 0 && threadIdx.x < BATCH)
        a.drafts[threadIdx.x * a.n_out + a.i - 1] = previous_token<BATCH>(a, threadIdx.x);
    krn_best best[ROUNDS];
#pragma unroll
    for (int s = 0; s < ROUNDS; s++) best[s] = { __uint_as_float(0x7fc00000), a.first_id };

    for (int64_t row0 = (int64_t)blockIdx.x * TILE_ROWS; row0 < a.n; row0 += (int64_t)gridDim.x * TILE_ROWS) {
        float logit[ROUNDS], sum[BATCH][LANE_ROWS] = {};
        const bf16 *row[LANE_ROWS];
        bool has_row = row0 + own_row < a.n;
#pragma unroll
        for (int s = 0; s < ROUNDS; s++) {
            int64_t b = own_entry + s * ENTRIES;
            logit[s] = has_row && b < BATCH ? a.logits[(b * a.block + a.i) * a.n + row0 + own_row] : 0;
        }
#pragma unroll
        for (int r = 0; r < LANE_ROWS; r++) /* past the end the last row again, which nobody reads */
            row[r] = a.head + min(row0 + lane_row + r, (int64_t)a.n - 1) * a.k;

        for (int32_t c0 = 0; c0 < chunks; c0 += LANES * LANE_CHUNKS) {
            uint4 w[LANE_ROWS][LANE_CHUNKS];
#pragma unroll
            for (int r = 0; r < LANE_ROWS; r++)
#pragma unroll
                for (int j = 0; j < LANE_CHUNKS; j++) {
                    int32_t c = c0 + j * LANES + lane;
                    w[r][j] = c < chunks ? chunk_of<WIDE>(row[r], c, a.k) : make_uint4(0, 0, 0, 0);
                }
            if (!is_staged) { /* behind the first rows' loads: the chain token, embedding, shared memory hides in them */
                stage_embeddings<BATCH, WIDE>(a, chunks, staged);
                __syncthreads();
                is_staged = true;
            }
#pragma unroll
            for (int j = 0; j < LANE_CHUNKS; j++) {
                int32_t c = c0 + j * LANES + lane;
                if (c >= chunks) break;
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    float4 x[BATCH];
#pragma unroll
                    for (int b = 0; b < BATCH; b++) x[b] = staged[(2 * b + half) * chunks + c];
#pragma unroll
                    for (int r = 0; r < LANE_ROWS; r++) {
                        float4 h = half ? second_half(w[r][j]) : first_half(w[r][j]);
#pragma unroll
                        for (int b = 0; b < BATCH; b++) sum[b][r] = dot4(h, x[b], sum[b][r]);
                    }
                }
            }
        }

        __syncthreads(); /* the tile before has been read */
#pragma unroll
        for (int b = 0; b < BATCH; b++)
#pragma unroll
            for (int r = 0; r < LANE_ROWS; r++) {
                float v = sum[b][r];
                for (int apart = LANES / 2; apart > 0; apart /= 2) v += __shfl_xor_sync(0xffffffff, v, apart);
                if (lane == 0) sums[b][lane_row + r] = v;
            }
        __syncthreads();
#pragma unroll
        for (int s = 0; s < ROUNDS; s++) {
            int64_t b = own_entry + s * ENTRIES;
            if (!has_row || b >= BATCH) continue;
            float v = logit[s] + sums[b][own_row];                                                   /* R2 */
            if (v != v) v = __uint_as_float(0x7fc00000);
            a.biased[(b * a.n_out + a.i) * a.n + row0 + own_row] = v;
            best[s] = best_of(best[s], { v, (int32_t)(a.first_id + row0 + own_row) });
        }
    }

#pragma unroll
    for (int s = 0; s < ROUNDS; s++) {
        best[s] = warp_best(best[s]);
        if (threadIdx.x % KRN_WARP == 0) bests[s][threadIdx.x / KRN_WARP] = best[s];
    }
    __syncthreads();
    if (threadIdx.x < BATCH) {
        const krn_best *of = &bests[threadIdx.x / ENTRIES][threadIdx.x % ENTRIES * (WARPS / ENTRIES)];
        krn_best winner = of[0];
        for (int warp = 1; warp < WARPS / ENTRIES; warp++) winner = best_of(winner, of[warp]);
        a.part[threadIdx.x * KRN_MARKOV_PARTS + blockIdx.x] = winner;
    }
    join_parts<BATCH>(a);
}

template <int BATCH>
static void step_launch(const step_args &a, bool wide, krn_stream stream)
{
    size_t shared_bytes = sizeof(float4) * 2 * BATCH * (size_t)((a.k + CHUNK - 1) / CHUNK);
    if (wide) step_kernel<BATCH, true><<<KRN_MARKOV_PARTS, THREADS, shared_bytes, stream>>>(a);
    else step_kernel<BATCH, false><<<KRN_MARKOV_PARTS, THREADS, shared_bytes, stream>>>(a);
}

extern "C" err_code krn_markov_step(const float *logits, const bf16 *embed, const bf16 *head, int32_t vocab,
                                    int32_t markov_rank, int32_t n, int32_t first_id, int32_t batch, int32_t block,
                                    int32_t n_out, int32_t i, const int32_t *anchor, const krn_best *before,
                                    int32_t n_ranks, int32_t *drafts, float *biased, krn_best *part,
                                    int32_t *arrived, krn_best *best, krn_stream stream, err *e)
{
    if (vocab < 1 || markov_rank < 1 || markov_rank > KRN_MARKOV_RANK_MAX || n < 0 || batch < 1 ||
        batch > KRN_MARKOV_BATCH_MAX || n_out < 1 || n_out > block || i < 0 || i >= n_out || n_ranks < 1)
        return err_set(e, ERR_ARG, "markov_step: vocab=%d markov_rank=%d n=%d batch=%d block=%d n_out=%d i=%d n_ranks=%d",
                       vocab, markov_rank, n, batch, block, n_out, i, n_ranks);
    const step_args a = { logits, embed,  head,    vocab,  markov_rank, n,    first_id, block, n_out,
                          i,      anchor, before,  n_ranks, drafts,     biased, part,   arrived, best };
    int64_t row_bytes = (int64_t)markov_rank * (int64_t)sizeof(bf16);
    bool wide = krn_aligned(head, row_bytes) && krn_aligned(embed, row_bytes);
    switch (batch) {
    case 1: step_launch<1>(a, wide, stream); break;
    case 2: step_launch<2>(a, wide, stream); break;
    case 3: step_launch<3>(a, wide, stream); break;
    default: step_launch<KRN_MARKOV_BATCH_MAX>(a, wide, stream); break;
    }
    return krn_launched("markov_step", e);
}

/* ---- the last choice ---- */

/* A warp for each entry. */
__global__ static void pick_kernel(const krn_best *best, int32_t n_ranks, int32_t batch, int32_t n_out, int32_t *draft)
{
    const int32_t b = threadIdx.x / KRN_WARP;
    const krn_best winner = warp_best_of(best + b, n_ranks, batch);
    if (threadIdx.x % KRN_WARP == 0) draft[b * n_out] = winner.id;
}

extern "C" err_code krn_markov_pick(const krn_best *best, int32_t n_ranks, int32_t batch, int32_t n_out, int32_t i,
                                    int32_t *drafts, krn_stream stream, err *e)
{
    if (n_ranks < 1 || batch < 1 || batch > KRN_MARKOV_BATCH_MAX || i < 0 || i >= n_out)
        return err_set(e, ERR_ARG, "markov_pick: n_ranks=%d batch=%d n_out=%d i=%d", n_ranks, batch, n_out, i);
    pick_kernel<<<1, (unsigned)batch * KRN_WARP, 0, stream>>>(best, n_ranks, batch, n_out, drafts + i);
    return krn_launched("markov_pick", e);
}
