/* Two kernels. tensor_kernel: head_dim a multiple of 16 up to 512, a block for up to eight queries of one head, keys in
 * shared memory, products on the tensor cores. plain_kernel: all else, a block for one query of one head.
 *
 * tensor_kernel works in chunks: up to three blocks of 64 keys, fewer where shared memory is small. A chunk takes three
 * phases: scores (a warp loads its own 16 keys x 128 dimensions and multiplies them as they arrive), softmax (a warp a
 * query), values (a warp 32 dimensions, from the keys in shared memory). The bits do not depend on the chunk. A key fills
 * 512 dimensions of shared memory whatever head_dim is, zeros after its own: strides are constants, loops have no tails.
 * Keys of the window were there before the step: the first chunk's come while the launch before still runs.
 *
 * Both leave their results in shared memory, where krn_attention_rope_qdq (kernels/fused.h) goes on with them. */
#include "kernels/attention.h"

#include "kernels/fused.h"
#include "kernels/launch.cuh"
#include "kernels/qdq.cuh"
#include "kernels/rope.h"
#include "kernels/rope.cuh"

#include <cuda_runtime.h>

enum {
    QUERIES = 8,                                   /* columns of one tensor-core product */
    TILE = 16,                                     /* its rows, and its depth */
    BLOCK_TILES = KRN_ATTENTION_KEYS / TILE,
    WARPS = 16, THREADS = WARPS * KRN_WARP,
    CHUNK_BLOCKS = 3, CHUNK_KEYS = CHUNK_BLOCKS * KRN_ATTENTION_KEYS,
    QUARTERS = 4, QUARTER = 128,                   /* dimensions that a warp multiplies in the scores */
    TENSOR_DIM = QUARTERS * QUARTER, KEY_BYTES = 2 * TENSOR_DIM,
    VALUE_TILES = TENSOR_DIM / TILE / WARPS,       /* of dimensions, a warp */
    WARP_STEP = WARPS / QUARTERS * TILE,           /* keys from one tile of a warp, in the scores, to its next */
    WARP_TILES = CHUNK_KEYS / WARP_STEP,
    PLAIN_THREADS = 256, PLAIN_DIMS = KRN_ATTENTION_HEAD_DIM_MAX / PLAIN_THREADS, /* a thread */
    GRID_MAX = 65535,
};

/* The launcher's arguments. */
typedef struct call {
    const bf16 *q, *rings, *block_kv;
    int64_t ring_stride;
    const int32_t *slot, *last;
    const float *sink;
    bf16 *o;
    int32_t window, n_block, heads, head_dim;
    float scale;
    bool aligned;                 /* all outputs */
    /* krn_attention_rope_qdq; else n_pairs is 0 */
    int32_t n_pairs;              /* rope_dim / 2 */
    const int32_t *pos;
    const float *freq;
    bf16 *rotated, *quantised;    /* its o and o_qdq */
    bf16 *q_rotated;              /* where rotated queries go; NULL: q is rotated already */
} call;

/* The keys of one batch entry: two pieces, one order. */
typedef struct keys {
    int32_t n_ring, n, head_dim;
    const bf16 *ring, *block; /* key 0 of each; block's is the key n_ring rows before its first */

    __device__ keys(const call &a, int32_t entry)
        : n_ring(max(min(a.last[entry], a.window - 1) + 1, 0)), n(n_ring + a.n_block), head_dim(a.head_dim),
          ring(a.rings + a.slot[entry] * a.ring_stride),
          block(a.block_kv + ((int64_t)entry * a.n_block - n_ring) * a.head_dim)
    {
    }
    __device__ const bf16 *at(int32_t i) const { return (i < n_ring ? ring : block) + (int64_t)i * head_dim; }
} keys;

/* ---- softmax ---- of one query, by one warp; every lane keeps the state */
typedef struct softmax_state {
    float m, l;
} softmax_state;

/* R2, R3 over consecutive blocks: a lane has keys lane and lane + 32 of each, -inf where there is none (its p is 0, as m is
 * never -inf). s becomes p; c are the corrections. The blocks' maxima and sums do not wait for each other. */
template <int BLOCKS>
__device__ static void softmax_step(softmax_state *st, float s[BLOCKS][2], float c[BLOCKS])
{
    float max[BLOCKS], sum[BLOCKS];
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) max[b] = fmaxf(s[b][0], s[b][1]); /* drops a NaN; its p is NaN all the same */
#pragma unroll
    for (int apart = KRN_WARP / 2; apart > 0; apart /= 2)
#pragma unroll
        for (int b = 0; b < BLOCKS; b++) max[b] = fmaxf(max[b], __shfl_xor_sync(0xffffffff, max[b], apart));
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
        float m = fmaxf(st->m, max[b]);
        c[b] = expf(__fsub_rn(st->m, m));                                                            /* R2 */
        s[b][0] = expf(__fsub_rn(s[b][0], m));
        s[b][1] = expf(__fsub_rn(s[b][1], m));
        sum[b] = __fadd_rn(s[b][0], s[b][1]);
        st->m = m;
    }
#pragma unroll
    for (int apart = KRN_WARP / 2; apart > 0; apart /= 2)
#pragma unroll
        for (int b = 0; b < BLOCKS; b++) sum[b] = __fadd_rn(sum[b], __shfl_xor_sync(0xffffffff, sum[b], apart));
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) st->l = fmaf(st->l, c[b], sum[b]);                              /* R3 */
}

__device__ static float with_sink(softmax_state st, float sink)
{
    return __fadd_rn(st.l, expf(__fsub_rn(sink, st.m)));                                             /* R5 */
}

/* ---- after the softmax ---- */

/* turns [n_queries, n_pairs] of the inverse rotation. first: the first query's row of pos. */
__device__ static void turns_make(const call &a, int64_t first, int32_t n_queries, float2 *turns)
{
    for (int32_t i = threadIdx.x; i < n_queries * a.n_pairs; i += blockDim.x)
        turns[i] = krn_rope_turn(a.pos[first + i / a.n_pairs], a.freq[i % a.n_pairs], true);
}

/* Stores the block's results, which lie in shared memory, pitch elements a query (a multiple of 16 bytes). own: where the
 * first one goes. */
template <bool ROTATED>
__device__ static void results_store(const call &a, const bf16 *result, int32_t pitch, int32_t n_queries, int64_t own,
                                     const float2 *turns)
{
    const int32_t groups = (int32_t)krn_blocks(a.head_dim, 8), keep = a.head_dim - 2 * a.n_pairs;
    for (int32_t i = threadIdx.x; i < n_queries * groups; i += blockDim.x) {
        const int32_t query = i / groups, d = i % groups * 8;
        const int64_t at = own + (int64_t)query * a.heads * a.head_dim + d;
        uint4 v = krn_load16(result + query * pitch + d);
        krn_store8(a.o + at, v, a.head_dim - d, a.aligned);
        if (!ROTATED) continue;
        v = krn_rope_group(v, turns + query * a.n_pairs, (d - keep) / 2, a.n_pairs);
        krn_store8(a.rotated + at, v, a.head_dim - d, a.aligned);
        krn_store8(a.quantised + at, krn_qdq_quad(v), a.head_dim - d, a.aligned);
    }
}

/* ---- tensor-core and copy instructions ---- addresses of shared memory are 32-bit, in bytes */

/* c[16, 8] += a[16, 16] * b[16, 8]. With g = lane / 4, t = 2 * (lane % 4), a lane holds of a (row g, columns t, t+1),
 * (g+8, t, t+1), (g, t+8, t+9), (g+8, t+8, t+9); of b (rows t, t+1, column g), (t+8, t+9, g); of c (row g, columns t, t+1),
 * (g+8, t, t+1). */
__device__ static void multiply(float c[4], const uint32_t a[4], const uint32_t b[2])
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
/* Four matrices of 8 x 8: lane i names row i % 8 of matrix i / 8; the lane gets (row g, columns t, t+1) of each. */
__device__ static void load_matrices(uint32_t a[4], uint32_t row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(row)
                 : "memory");
}
/* The same of the transposed matrices: (rows t, t+1, column g). */
__device__ static void load_transposed(uint32_t a[4], uint32_t row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(row)
                 : "memory");
}
/* 16 bytes to shared memory; zeros unless real, and then from is not read. */
__device__ static void copy16_begin(uint32_t to, const bf16 *from, bool real)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(real ? 16 : 0) : "memory");
}
__device__ static void copies_commit(void) { asm volatile("cp.async.commit_group;" ::: "memory"); }
/* Until this thread's copies are done, but for the last PENDING commits. */
template <int PENDING>
__device__ static void copies_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

/* ---- tensor_kernel ---- */

/* Beside the keys. Rows are 4 (mod 8) words long, which puts what a warp reads or writes at a time into different banks. */
typedef struct chunk_state {
    union {
        float part[QUARTERS][QUERIES][CHUNK_KEYS + 4]; /* q . k over a quarter of the dimensions */
        bf16 o[QUERIES][TENSOR_DIM + 8];               /* after the last chunk */
    };
    bf16 p[QUERIES][CHUNK_KEYS + 8];
    float c[CHUNK_BLOCKS][QUERIES], l[QUERIES];
} chunk_state;

/* Keys in shared memory: eight dimensions are a group of 16 bytes. Groups change places within 128 bytes by the row, so
 * that the same group of eight rows lies in all banks. row is in the tile, which is a multiple of eight rows. */
__device__ static uint32_t group_at(uint32_t tile, int row, int group)
{
    return tile + row * KEY_BYTES + (group ^ (row & 7)) * 16;
}

/* A tile of 16 keys from key first on, a quarter of their dimensions. Rows past the last key are zero: p is 0 there, and
 * 0 * v must be 0. */
__device__ static void tile_load(const keys &k, int32_t first, int quarter, uint32_t tile)
{
    int lane = threadIdx.x % KRN_WARP, group = quarter * QUARTER / 8 + lane % 16;
    bool inside = group * 8 < k.head_dim;
#pragma unroll
    for (int i = 0; i < TILE / 2; i++) {
        int row = 2 * i + lane / 16;
        int32_t key = first + row;
        copy16_begin(group_at(tile, row, group), k.at(min(key, k.n - 1)) + (inside ? group * 8 : 0),
                     inside && key < k.n);
    }
}

/* A quarter of the queries' dimensions, as the product's columns; columns without a query are zero. */
__device__ static void queries_load(uint32_t q[QUARTER / TILE][2], const bf16 *from, int64_t query_stride,
                                    int32_t n_queries, int quarter, int32_t head_dim)
{
    int query = threadIdx.x % KRN_WARP / 4, dim = quarter * QUARTER + threadIdx.x % 4 * 2;
    int32_t left = query < n_queries ? head_dim - dim : 0;
    from += query * query_stride + dim;
#pragma unroll
    for (int i = 0; i < 2 * (QUARTER / TILE); i++) q[i / 2][i % 2] = i * 8 < left ? *(const uint32_t *)(from + i * 8) : 0;
}

/* Rotates what queries_load gave, forward, and leaves all of it in q_rotated. turns are of the inverse rotation. own: where
 * the first query is. */
__device__ static void queries_rotate(const call &a, uint32_t q[QUARTER / TILE][2], int64_t own, int64_t query_stride,
                                      int32_t n_queries, int quarter, const float2 *turns)
{
    const int query = threadIdx.x % KRN_WARP / 4, dim = quarter * QUARTER + threadIdx.x % 4 * 2;
    const int32_t keep = a.head_dim - 2 * a.n_pairs;
    if (query >= n_queries) return;
#pragma unroll
    for (int i = 0; i < 2 * (QUARTER / TILE); i++) {
        const int32_t d = dim + i * 8;
        uint32_t *pair = &q[i / 2][i % 2];
        if (d >= a.head_dim) break;
        if (d >= keep) {
            const float2 turn = turns[query * a.n_pairs + (d - keep) / 2];
            *pair = krn_rope_pair(*pair, make_float2(turn.x, -turn.y));
        }
        if (threadIdx.x / KRN_WARP < QUARTERS) *(uint32_t *)(a.q_rotated + own + query * query_stride + d) = *pair;
    }
}

/* Waits for this warp's tile, at rows first_row.. of the chunk, and multiplies it with the queries. Two sums, of even and
 * odd steps, hide the latency. */
template <int PENDING>
__device__ static void tile_scores(int32_t first_row, int32_t count, int quarter, uint32_t tile,
                                   const uint32_t q[QUARTER / TILE][2], chunk_state *sh)
{
    copies_wait<PENDING>();
    __syncwarp();
    if (first_row >= count) return;
    int lane = threadIdx.x % KRN_WARP;
    uint32_t key[QUARTER / TILE][4];
    float s[2][4] = {};
#pragma unroll
    for (int i = 0; i < QUARTER / TILE; i++)
        load_matrices(key[i], group_at(tile, lane % 16, (quarter * QUARTER + i * TILE) / 8 + lane / 16));
#pragma unroll
    for (int i = 0; i < QUARTER / TILE; i++) multiply(s[i % 2], key[i], q[i]);
    int row = first_row + lane / 4, query = lane % 4 * 2;
    sh->part[quarter][query][row] = __fadd_rn(s[0][0], s[1][0]);
    sh->part[quarter][query + 1][row] = __fadd_rn(s[0][1], s[1][1]);
    sh->part[quarter][query][row + 8] = __fadd_rn(s[0][2], s[1][2]);
    sh->part[quarter][query + 1][row + 8] = __fadd_rn(s[0][3], s[1][3]);
}

/* One query (the warp's index) over the chunk's count keys. */
__device__ static void chunk_softmax(softmax_state *st, int32_t count, float scale, chunk_state *sh)
{
    int query = threadIdx.x / KRN_WARP, lane = threadIdx.x % KRN_WARP;
    float s[CHUNK_BLOCKS][2], c[CHUNK_BLOCKS];
#pragma unroll
    for (int i = 0; i < 2 * CHUNK_BLOCKS; i++) {
        int key = i * KRN_WARP + lane;
        float dot[QUARTERS];
#pragma unroll
        for (int k = 0; k < QUARTERS; k++) dot[k] = key < count ? sh->part[k][query][key] : 0.0f;
        float sum = __fadd_rn(__fadd_rn(dot[0], dot[1]), __fadd_rn(dot[2], dot[3]));
        s[i / 2][i % 2] = key < count ? __fmul_rn(sum, scale) : -INFINITY;                           /* R1 */
    }
    softmax_step<CHUNK_BLOCKS>(st, s, c);
#pragma unroll
    for (int i = 0; i < 2 * CHUNK_BLOCKS; i++)
        sh->p[query][i * KRN_WARP + lane] = krn_bf16_of(s[i / 2][i % 2]);                            /* R4 */
    if (lane == 0)
#pragma unroll
        for (int b = 0; b < CHUNK_BLOCKS; b++) sh->c[b][query] = c[b];
}

/* R4: this warp's dimensions, rows of the product; keys are its depth. */
__device__ static void chunk_values(float acc[VALUE_TILES][4], int n_tiles, uint32_t rows, const chunk_state *sh)
{
    int warp = threadIdx.x / KRN_WARP, lane = threadIdx.x % KRN_WARP, query = lane % 4 * 2;
#pragma unroll 4
    for (int tile = 0; tile < n_tiles; tile++) {
        const bf16 *p_row = &sh->p[lane / 4][tile * TILE + query];
        const uint32_t p[2] = { *(const uint32_t *)p_row, *(const uint32_t *)(p_row + 8) };
#pragma unroll
        for (int i = 0; i < VALUE_TILES; i++) {
            uint32_t value[4];
            int dim = (warp * VALUE_TILES + i) * TILE;
            if (tile % BLOCK_TILES == 0) {
                const float *c = &sh->c[tile / BLOCK_TILES][query];
#pragma unroll
                for (int k = 0; k < 4; k++) acc[i][k] = __fmul_rn(acc[i][k], c[k % 2]);
            }
            load_transposed(value, group_at(rows + tile * TILE * KEY_BYTES, lane % 8 + lane / 16 * 8,
                                            dim / 8 + lane / 8 % 2));
            multiply(acc[i], value, p);
        }
    }
}

/* Grid (heads, batch, groups of eight queries). chunk_keys: a multiple of 16 that holds all keys, or one of 64. */
template <bool ROTATED>
__global__ static void __launch_bounds__(THREADS) tensor_kernel(const call a, int32_t chunk_keys)
{
    extern __shared__ __align__(128) bf16 key_rows[]; /* [chunk_keys, TENSOR_DIM], see group_at; then the turns */
    __shared__ __align__(16) chunk_state sh;
    float2 *turns = (float2 *)(key_rows + chunk_keys * TENSOR_DIM);
    const int warp = threadIdx.x / KRN_WARP, lane = threadIdx.x % KRN_WARP, quarter = warp % QUARTERS;
    const int32_t head = blockIdx.x, entry = blockIdx.y, first_query = blockIdx.z * QUERIES;
    const int32_t n_queries = min((int32_t)QUERIES, a.n_block - first_query);
    const int64_t query_stride = (int64_t)a.heads * a.head_dim;
    const int64_t own = ((int64_t)entry * a.n_block + first_query) * query_stride + (int64_t)head * a.head_dim;
    const uint32_t rows = (uint32_t)__cvta_generic_to_shared(key_rows);
    const int32_t row = warp / QUARTERS * TILE; /* of this warp's first tile */
    const uint32_t tile = rows + row * KEY_BYTES;
    krn_let_next_begin();
    const float sink = a.sink[head];
    const keys k(a, entry);
    const int32_t early = min(k.n_ring, chunk_keys); /* keys that need not be waited for: whole tiles of them */
#pragma unroll
    for (int i = 0; i < WARP_TILES; i++)
        if (row + i * WARP_STEP + TILE <= early)
            tile_load(k, row + i * WARP_STEP, quarter, tile + i * WARP_STEP * KEY_BYTES);
    copies_commit();
    krn_wait_for_previous();

    uint32_t q[QUARTER / TILE][2];
    queries_load(q, a.q + own, query_stride, n_queries, quarter, a.head_dim);
    softmax_state st = { -1e30f, 0.0f };
    float acc[VALUE_TILES][4] = {};
    for (int32_t first = 0; first < k.n; first += chunk_keys) {
        const int32_t count = min(chunk_keys, k.n - first);
#pragma unroll
        for (int i = 0; i < WARP_TILES; i++) {
            const int32_t at = row + i * WARP_STEP;
            if (at < count && (first > 0 || at + TILE > early))
                tile_load(k, first + at, quarter, tile + i * WARP_STEP * KEY_BYTES);
            copies_commit();
        }
        if (ROTATED && first == 0) /* while the keys are on their way */
            turns_make(a, (int64_t)entry * a.n_block + first_query, n_queries, turns);
        if (ROTATED && first == 0 && a.q_rotated) {
            __syncthreads(); /* all turns are there */
            queries_rotate(a, q, own, query_stride, n_queries, quarter, turns);
        }
        static_assert(WARP_TILES == 3, "one call for each commit");
        tile_scores<2>(row, count, quarter, tile, q, &sh);
        tile_scores<1>(row + WARP_STEP, count, quarter, tile + WARP_STEP * KEY_BYTES, q, &sh);
        tile_scores<0>(row + 2 * WARP_STEP, count, quarter, tile + 2 * WARP_STEP * KEY_BYTES, q, &sh);
        __syncthreads();
        if (warp < QUERIES) {
            chunk_softmax(&st, count, a.scale, &sh);
            if (lane == 0) sh.l[warp] = with_sink(st, sink); /* the last chunk's counts */
        }
        __syncthreads();
        chunk_values(acc, (count + TILE - 1) / TILE, rows, &sh);
        if (first + chunk_keys < k.n) __syncthreads(); /* before the next keys and scores come */
    }
#pragma unroll
    for (int i = 0; i < VALUE_TILES * 4; i++) {
        int dim = (warp * VALUE_TILES + i / 4) * TILE + lane / 4 + i % 4 / 2 * 8, query = lane % 4 * 2 + i % 2;
        sh.o[query][dim] = krn_bf16_of(__fdiv_rn(acc[i / 4][i % 4], sh.l[query]));                   /* R6 */
    }
    __syncthreads();
    results_store<ROTATED>(a, sh.o[0], TENSOR_DIM + 8, n_queries, own, turns);
}

/* ---- plain_kernel ---- grid (heads, n_block, batch) */

template <bool ROTATED>
__global__ static void __launch_bounds__(PLAIN_THREADS) plain_kernel(const call a)
{
    extern __shared__ float2 plain_turns[]; /* [n_pairs] */
    __shared__ __align__(16) bf16 result[KRN_ATTENTION_HEAD_DIM_MAX];
    __shared__ float s[KRN_ATTENTION_KEYS], p[KRN_ATTENTION_KEYS], c, l;
    krn_begin();
    const int warp = threadIdx.x / KRN_WARP, lane = threadIdx.x % KRN_WARP;
    const int32_t head = blockIdx.x, entry = blockIdx.z;
    const int64_t row = (int64_t)entry * a.n_block + blockIdx.y, own = (row * a.heads + head) * a.head_dim;
    const keys k(a, entry);
    const float sink = a.sink[head];
    softmax_state st = { -1e30f, 0.0f }; /* warp 0's */
    float acc[PLAIN_DIMS] = {};
    if (ROTATED) turns_make(a, row, 1, plain_turns);
    for (int32_t first = 0; first < k.n; first += KRN_ATTENTION_KEYS) {
        int32_t count = min((int32_t)KRN_ATTENTION_KEYS, k.n - first);
        for (int32_t j = warp; j < count; j += PLAIN_THREADS / KRN_WARP) {
            const bf16 *key = k.at(first + j);
            float dot = 0.0f;
            for (int32_t d = lane; d < a.head_dim; d += KRN_WARP)
                dot = fmaf(krn_f32_of(a.q[own + d]), krn_f32_of(key[d]), dot);
            dot = krn_warp_sum(dot);
            if (lane == 0) s[j] = __fmul_rn(dot, a.scale);                                           /* R1 */
        }
        __syncthreads();
        if (warp == 0) {
            float pair[1][2], correction[1];
            for (int i = 0; i < 2; i++) pair[0][i] = lane + i * KRN_WARP < count ? s[lane + i * KRN_WARP] : -INFINITY;
            softmax_step<1>(&st, pair, correction);
            for (int i = 0; i < 2; i++) p[lane + i * KRN_WARP] = krn_bf16_rounded(pair[0][i]);       /* R4 */
            c = correction[0];
            l = with_sink(st, sink); /* the last block's counts */
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < PLAIN_DIMS; i++) {
            int32_t d = i * PLAIN_THREADS + threadIdx.x;
            if (d >= a.head_dim) break;
            acc[i] = __fmul_rn(acc[i], c);                                                           /* R4 */
            for (int32_t j = 0; j < count; j++) acc[i] = fmaf(p[j], krn_f32_of(k.at(first + j)[d]), acc[i]);
        }
    }
#pragma unroll
    for (int i = 0; i < PLAIN_DIMS; i++) {
        int32_t d = i * PLAIN_THREADS + threadIdx.x;
        if (d < a.head_dim) result[d] = krn_bf16_of(__fdiv_rn(acc[i], l));                           /* R6 */
    }
    __syncthreads();
    results_store<ROTATED>(a, result, KRN_ATTENTION_HEAD_DIM_MAX, 1, own, plain_turns);
}

/* ---- launchers ---- */

static bool tensor_fits(const call *a)
{
    return a->head_dim % TILE == 0 && a->head_dim <= TENSOR_DIM && krn_aligned(a->q) && krn_aligned(a->block_kv) &&
           krn_aligned(a->rings, 2 * a->ring_stride) && krn_aligned(a->q_rotated);
}

template <bool ROTATED>
static err_code tensor_launch(const char *op, const call *a, dim3 grid, krn_stream stream, err *e)
{
    const int32_t turn_bytes = QUERIES * a->n_pairs * (int32_t)sizeof(float2);
    int device = 0, shared_max = 0;
    cudaError_t rc = cudaGetDevice(&device);
    if (rc == cudaSuccess) rc = cudaDeviceGetAttribute(&shared_max, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    const int32_t n_keys = a->window + a->n_block;
    const int32_t room = (shared_max - (int32_t)sizeof(chunk_state) - turn_bytes) / KEY_BYTES;
    int32_t chunk_keys = min((n_keys + TILE - 1) / TILE * TILE, (int32_t)CHUNK_KEYS);
    if (chunk_keys > room) chunk_keys = room / KRN_ATTENTION_KEYS * KRN_ATTENTION_KEYS;
    /* Always the most there is: another thread's launch may have other shapes. */
    if (rc == cudaSuccess)
        rc = cudaFuncSetAttribute(tensor_kernel<ROTATED>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  shared_max - (int)sizeof(chunk_state));
    if (rc != cudaSuccess || chunk_keys < TILE)
        return err_set(e, ERR_DEVICE, "%s: %d bytes of shared memory a block: %s", op, shared_max, cudaGetErrorString(rc));
    krn_launch(tensor_kernel<ROTATED>, grid, THREADS, (size_t)(chunk_keys * KEY_BYTES + turn_bytes), stream, *a,
               chunk_keys);
    return krn_launched(op, e);
}

template <bool ROTATED>
static err_code attend(const char *op, const call *a, int32_t batch, krn_stream stream, err *e)
{
    if (batch < 0 || batch > GRID_MAX || a->n_block < 1 || a->n_block > GRID_MAX || a->window < 0 ||
        a->window > KRN_ATTENTION_WINDOW_MAX || a->heads < 1 || a->head_dim < 1 ||
        a->head_dim > KRN_ATTENTION_HEAD_DIM_MAX || a->ring_stride < (int64_t)a->window * a->head_dim)
        return err_set(e, ERR_ARG, "%s: batch=%d n_block=%d window=%d heads=%d head_dim=%d ring_stride=%lld", op, batch,
                       a->n_block, a->window, a->heads, a->head_dim, (long long)a->ring_stride);
    if (batch == 0) return ERR_OK;
    const unsigned heads = (unsigned)a->heads, n_block = (unsigned)a->n_block;
    if (tensor_fits(a))
        return tensor_launch<ROTATED>(op, a, dim3(heads, (unsigned)batch, (unsigned)krn_blocks(n_block, QUERIES)), stream,
                                      e);
    krn_launch(plain_kernel<ROTATED>, dim3(heads, n_block, (unsigned)batch), PLAIN_THREADS,
               (size_t)a->n_pairs * sizeof(float2), stream, *a);
    return krn_launched(op, e);
}

extern "C" err_code krn_attention(const bf16 *q, const bf16 *rings, int64_t ring_stride, const int32_t *slot,
                                  const int32_t *last, int32_t window, const bf16 *block_kv, int32_t batch, int32_t n_block,
                                  const float *sink, float scale, int32_t heads, int32_t head_dim, bf16 *o,
                                  krn_stream stream, err *e)
{
    const call a = { q, rings, block_kv, ring_stride, slot, last, sink, o, window, n_block, heads, head_dim, scale,
                     krn_aligned(o, 2 * (int64_t)head_dim) };
    return attend<false>("attention", &a, batch, stream, e);
}

extern "C" err_code krn_attention_rope_qdq(const bf16 *q, const bf16 *rings, int64_t ring_stride, const int32_t *slot,
                                           const int32_t *last, int32_t window, const bf16 *block_kv, int32_t batch,
                                           int32_t n_block, const float *sink, float scale, int32_t heads,
                                           int32_t head_dim, int32_t rope_dim, const int32_t *pos, const float *freq,
                                           bf16 *q_rotated, bf16 *attended, bf16 *o, bf16 *o_qdq, krn_stream stream, err *e)
{
    if (head_dim % FMT_QDQ_GROUP || rope_dim < 2 || rope_dim % 2 || rope_dim > head_dim)
        return err_set(e, ERR_ARG, "attention_rope_qdq: head_dim=%d rope_dim=%d", head_dim, rope_dim);
    call a = { q, rings, block_kv, ring_stride, slot, last, sink, attended, window, n_block, heads, head_dim, scale,
               krn_aligned(attended) && krn_aligned(o) && krn_aligned(o_qdq), rope_dim / 2, pos, freq, o, o_qdq,
               q_rotated };
    if (q_rotated && !tensor_fits(&a) && batch > 0 && n_block > 0) { /* plain_kernel reads the queries of memory */
        TRY(krn_rope(q, q_rotated, batch * n_block, heads, head_dim, rope_dim, pos, freq, false, stream, e));
        a.q = q_rotated;
        a.q_rotated = NULL;
    }
    return attend<true>("attention_rope_qdq", &a, batch, stream, e);
}
