/* The sums of EXL3 products (R5 of kernels/exl3.h): rows of A times tiles that are decoded on the way.
 *
 * Decoding costs more than reading, so each tile is decoded once for all rows of A that want it, up to 32, and all else is
 * arranged around instructions:
 *
 *   job      every row of A has an expert, whose tiles it is multiplied by; a plain weight is the one expert of all rows
 *   group    up to 32 rows of A of one expert
 *   item     what a warp does at once: 32 outputs (two columns of tiles) of a slice of k, for a group. The decoded tile is
 *            the 16-row operand of mma m16n8k16, outputs as its rows; 8 rows of A are the other: one to four mma a tile
 *   slice    a slice's sums are a partial that the output transform adds to the others'. Slices depend on the shape alone,
 *            so a sum never depends on which rows came together, on their number, or on the card
 *   quad     four items, a block's 128 outputs: four warps of a CTA take them side by side, and read whole rows of tiles
 *            and the same columns of A
 *   ring     a warp's own piece of shared memory, filled by cp.async some stages ahead, across items. A stage is 4 rows of
 *            2 tiles
 *
 * A row of A holds its inputs by 32: lane q of four takes 16 bytes of them, what two mma want of it. */
#ifndef KERNELS_EXL3_SUMS_CUH
#define KERNELS_EXL3_SUMS_CUH

#include "kernels/exl3.h"
#include "kernels/exl3_decode.cuh"
#include "kernels/launch.cuh"

enum {
    EXL3_PICKS_MAX = KRN_EXL3_PICKS_MAX,
    EXL3_WARPS = 16,
    EXL3_THREADS = EXL3_WARPS * KRN_WARP,
    EXL3_QUADS = EXL3_WARPS / 4,                  /* that a CTA works on at once */
    EXL3_GROUP_ROWS = 32,
    EXL3_STAGE_ROWS = 4,                          /* of tiles */
    EXL3_STAGE_K = EXL3_STAGE_ROWS * FMT_EXL3_TILE,
    EXL3_STAGE_TILES = 2 * EXL3_STAGE_ROWS,
};

struct exl3_job {
    const uint8_t *tiles;
    int64_t row_bytes, block_bytes, expert_bytes; /* from a row of tiles, a block of columns, an expert to the next */
    int32_t n_blocks, stages;                     /* stages: of all of k */
    int32_t slices, slice_stages, slice_more;     /* slice_stages of each, one more of the first slice_more */
    const int32_t *ids;                           /* expert of each pick; NULL: 0 */
    int32_t n_picks, n_experts;
    const fp16 *a;                                /* [n_picks, matrices, 64 * stages] */
    int32_t matrices, matrix_blocks;              /* matrix m of a pick multiplies blocks [m, m + 1) * matrix_blocks */
    float *sums;                                  /* [slices, n_picks, 128 * n_blocks] */
};

/* Where input i of 32 is: lane q's sixteen bytes are inputs 2q, 2q + 1, 2q + 8, 2q + 9 and the same 16 further on. */
__host__ __device__ constexpr int32_t exl3_place(int32_t i)
{
    return i % 8 / 2 * 8 + i / 16 * 4 + i % 16 / 8 * 2 + i % 2;
}

/* What a launch must know of the card. large: sm_90, with room for a longer ring. */
struct exl3_card { int32_t n_sm; bool large; };

/* The kernels of one codebook, which has a file of its own: the sums of a job, and the first `rows` rows of tiles of expert
 * 0 as they are, row-major. */
struct exl3_kernels {
    err_code (*sums)(const exl3_job &j, int32_t bits, exl3_card card, krn_stream s, err *e);
    err_code (*tiles)(const exl3_job &j, int32_t bits, int32_t rows, fp16 *wq, krn_stream s, err *e);
};
extern const exl3_kernels exl3_3inst, exl3_mcg, exl3_mul1;

/* ---- which rows, which expert ---- */

struct exl3_group { int16_t expert, first, rows; }; /* first: in exl3_routing's list */
struct exl3_routing {
    union {
        __align__(16) int32_t id[EXL3_PICKS_MAX]; /* of every pick */
        exl3_group group[EXL3_PICKS_MAX];
    };
    int16_t pick[EXL3_PICKS_MAX];                 /* those of known experts, by expert, then ascending */
    int32_t starts[EXL3_PICKS_MAX / KRN_WARP];    /* bit i: a group starts at place i of the list */
    int32_t n_groups;
};
static_assert(EXL3_PICKS_MAX == EXL3_THREADS, "a pick a thread");

/* Every thread calls, p is its pick; ends in a __syncthreads. */
__device__ static void exl3_route(const exl3_job &j, exl3_routing *r)
{
    const int32_t NOBODY = INT32_MAX, p = threadIdx.x;
    int32_t id = NOBODY, lower = 0, before = 0, same = 0;
    if (p < j.n_picks) id = j.ids ? j.ids[p] : 0;
    if (id < 0 || id >= j.n_experts) id = NOBODY;
    r->id[p] = id;
    r->pick[p] = -1;
    __syncthreads();
    if (id != NOBODY)
        for (int32_t i = 0; i < j.n_picks; i += 4) { /* past n_picks: nobody */
            const int4 v = *(const int4 *)&r->id[i];
            const int32_t other[4] = { v.x, v.y, v.z, v.w };
#pragma unroll
            for (int c = 0; c < 4; c++) {
                lower += other[c] < id;
                same += other[c] == id;
                before += other[c] == id && i + c < p;
            }
        }
    __syncthreads(); /* ids are no longer read */
    const int32_t place = lower + before;
    if (p < EXL3_PICKS_MAX / KRN_WARP) r->starts[p] = 0;
    __syncthreads();
    const bool start = id != NOBODY && before % EXL3_GROUP_ROWS == 0;
    if (id != NOBODY) r->pick[place] = (int16_t)p;
    if (start) atomicOr(&r->starts[place / KRN_WARP], 1 << place % KRN_WARP);
    const int32_t n = __syncthreads_count(start);
    if (start) {
        int32_t g = 0;
        for (int32_t i = 0; i < place / KRN_WARP; i++) g += __popc(r->starts[i]);
        g += __popc(r->starts[place / KRN_WARP] & ((1u << place % KRN_WARP) - 1));
        r->group[g] = { (int16_t)id, (int16_t)place, (int16_t)min(same - before, (int32_t)EXL3_GROUP_ROWS) };
    }
    if (p == 0) r->n_groups = n;
    __syncthreads();
}

/* ---- items ---- */

/* A quad of items, of a count of all: blocks are its lowest digit, then slices, then groups. */
struct exl3_quad {
    int32_t group, slice, block;

    __device__ __forceinline__ exl3_quad(const exl3_job &j, uint32_t index)
    {
        const uint32_t part = index / j.n_blocks;
        block = index - part * j.n_blocks;
        group = part / j.slices;
        slice = part - group * j.slices;
    }
    /* Without a division: this stands between the stages of a ring. */
    __device__ __forceinline__ void add(const exl3_job &j, const exl3_quad &step)
    {
        block += step.block, slice += step.slice, group += step.group;
        if (block >= j.n_blocks) block -= j.n_blocks, slice++;
        if (slice >= j.slices) slice -= j.slices, group++;
    }
    /* Its stages are [first, first + count). */
    __device__ __forceinline__ int32_t first(const exl3_job &j) const
    {
        return slice * j.slice_stages + min(slice, j.slice_more);
    }
    __device__ __forceinline__ int32_t count(const exl3_job &j) const { return j.slice_stages + (slice < j.slice_more); }
};
/* A warp's quads: every exl3_step from exl3_start on. CTAs take neighbours. */
__device__ __forceinline__ uint32_t exl3_start() { return blockIdx.x + threadIdx.x / KRN_WARP / 4 * gridDim.x; }
__device__ __forceinline__ uint32_t exl3_step() { return gridDim.x * EXL3_QUADS; }

/* ---- the ring ---- */

__host__ __device__ constexpr int32_t exl3_stage_bytes(int bits) { return EXL3_STAGE_TILES * 32 * bits; }
/* Stages in the ring: 3 KiB of every warp under way and more. Cards before sm_90 have 99 KiB for a CTA. None of this
 * changes a sum. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define EXL3_LARGE false
#else
#define EXL3_LARGE true
#endif
__host__ __device__ constexpr int32_t exl3_slots(int bits, bool large = EXL3_LARGE)
{
    return bits <= 2 ? 8 : large ? (bits <= 4 ? 6 : 4) : bits == 3 ? 7 : bits <= 5 ? 4 : bits <= 7 ? 3 : 2;
}
__host__ __device__ constexpr int32_t exl3_ring_bytes(int bits, bool large = EXL3_LARGE)
{
    return exl3_slots(bits, large) * exl3_stage_bytes(bits);
}

template <int K> class exl3_stream {
    static constexpr int SLOTS = exl3_slots(K), COPIES = (K + 1) / 2; /* of 16 bytes by a lane; odd K: half the last */
    const exl3_job &j;
    const exl3_routing &route;
    const exl3_quad &step;
    exl3_quad quad;    /* after the one whose stages are copied */
    const uint8_t *at; /* the next stage's first byte */
    int32_t left;      /* stages of it; 0: none */
    uint32_t offset[COPIES];
    uint32_t ring, feed_slot;
    int32_t slot;

    __device__ __forceinline__ void find()
    {
        if (quad.group >= route.n_groups) return;
        at = j.tiles + route.group[quad.group].expert * j.expert_bytes + quad.block * j.block_bytes +
             quad.first(j) * (EXL3_STAGE_ROWS * j.row_bytes) + threadIdx.x / KRN_WARP % 4 * (2 * 32 * K);
        left = quad.count(j);
        quad.add(j, step);
    }

    __device__ __forceinline__ void feed(uint32_t into)
    {
        if (left > 0) {
            const uint32_t to = ring + into * exl3_stage_bytes(K) + threadIdx.x % KRN_WARP * 16;
#pragma unroll
            for (int i = 0; i < COPIES; i++)
                if (K % 2 == 0 || i + 1 < COPIES || threadIdx.x % KRN_WARP < 16)
                    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to + i * 512),
                                 "l"(at + offset[i])
                                 : "memory");
            at += EXL3_STAGE_ROWS * j.row_bytes;
            if (--left == 0) find();
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }

public:
    __device__ __forceinline__ exl3_stream(const exl3_job &j_, const exl3_routing &route_, const exl3_quad &first,
                                           const exl3_quad &step_, uint8_t *ring_)
        : j(j_), route(route_), step(step_), quad(first), left(0), ring((uint32_t)__cvta_generic_to_shared(ring_)), slot(0)
    {
#pragma unroll
        for (int i = 0; i < COPIES; i++) {
            const uint32_t c = threadIdx.x % KRN_WARP + 32 * i; /* of the stage's 16 K */
            offset[i] = c / (4 * K) * (uint32_t)j.row_bytes + c % (4 * K) * 16;
        }
        find();
#pragma unroll 1
        for (int i = 0; i < SLOTS - 1; i++) feed(i);
        feed_slot = SLOTS - 1;
    }

    /* Offset of the next stage in the ring. Starts the copy of a later one to where the stage before it was. */
    __device__ __forceinline__ int32_t take()
    {
        asm volatile("cp.async.wait_group %0;" ::"n"(SLOTS - 2) : "memory");
        __syncwarp(); /* what other lanes copied is there; and all are done with the slot that is filled next */
        const int32_t own = slot;
        feed(feed_slot);
        feed_slot = own;
        slot = own + 1 == SLOTS ? 0 : own + 1;
        return own * exl3_stage_bytes(K);
    }
};

/* ---- sums ---- */

/* acc [16, 8] += a [16, 16] . b [8, 16]^T. Lane 4g + q: a rows g, g + 8, g, g + 8, b row g, acc rows g, g, g + 8, g + 8 and
 * columns 2q, 2q + 1, 2q, 2q + 1. */
__device__ __forceinline__ void exl3_mma(float acc[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
        : "r"(a[0]), "r"(a[2]), "r"(a[1]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* acc += two rows of two tiles, inputs k .. k + 31, times the lane's columns of them of A's rows. */
template <int K, int CODEBOOK, int NT>
__device__ __forceinline__ void exl3_half(const uint8_t *tiles, const exl3_lane<K> &lane, const uint4 b[NT],
                                          float acc[2][NT][4])
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t pair[4];
        exl3_decode<K, CODEBOOK>(tiles + i * 32 * K, lane, pair);
#pragma unroll
        for (int t = 0; t < NT; t++) exl3_mma(acc[i % 2][t], pair, i < 2 ? b[t].x : b[t].z, i < 2 ? b[t].y : b[t].w);
    }
}

/* An item for the picks of a list, at most 8 NT. A comes out of L1 or L2, half a stage ahead. */
template <int K, int CODEBOOK, int NT>
__device__ __forceinline__ void exl3_item_sums(const exl3_job &j, const exl3_quad &quad, const int16_t *list,
                                               int32_t rows, exl3_stream<K> &stream, const uint8_t *ring,
                                               const exl3_lane<K> &lane)
{
    const int32_t g = threadIdx.x % KRN_WARP / 4, q = threadIdx.x % 4, matrix = quad.block >= j.matrix_blocks;
    const fp16 *a[NT];
    float acc[2][NT][4] = {};
    uint4 b[2][NT];
#pragma unroll
    for (int t = 0; t < NT; t++) {
        const int64_t row = (int64_t)list[min(8 * t + g, rows - 1)] * j.matrices + matrix;
        a[t] = j.a + (row * j.stages + quad.first(j)) * EXL3_STAGE_K + q * 8;
        b[0][t] = *(const uint4 *)a[t];
    }
#pragma unroll 1
    for (int32_t left = quad.count(j); left > 0; left--) {
        const uint8_t *tiles = ring + stream.take();
#pragma unroll
        for (int t = 0; t < NT; t++) b[1][t] = *(const uint4 *)(a[t] + 32);
        exl3_half<K, CODEBOOK, NT>(tiles, lane, b[0], acc);
        if (left > 1) {
#pragma unroll
            for (int t = 0; t < NT; t++) {
                a[t] += EXL3_STAGE_K;
                b[0][t] = *(const uint4 *)a[t];
            }
        }
        exl3_half<K, CODEBOOK, NT>(tiles + 4 * 32 * K, lane, b[1], acc);
    }
    float *sums = j.sums + ((int64_t)quad.slice * j.n_picks * j.n_blocks + quad.block) * FMT_EXL3_BLOCK +
                  threadIdx.x / KRN_WARP % 4 * 32 + g;
#pragma unroll
    for (int t = 0; t < NT; t++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int32_t r = 8 * t + 2 * q + h;
            if (r >= rows) continue;
            float *y = sums + (int64_t)list[r] * j.n_blocks * FMT_EXL3_BLOCK;
#pragma unroll
            for (int i = 0; i < 4; i++) y[8 * i] = acc[i / 2][t][i % 2 * 2 + h];
        }
}

template <int K, int CODEBOOK>
__global__ static void __launch_bounds__(EXL3_THREADS, 1) exl3_sums_kernel(const exl3_job j)
{
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ exl3_routing route;
    krn_let_next_begin();
    exl3_route(j, &route);
    uint8_t *ring = shared + threadIdx.x / KRN_WARP * exl3_ring_bytes(K);
    const exl3_lane<K> lane(threadIdx.x % KRN_WARP);
    const exl3_quad step(j, exl3_step());
    exl3_quad quad(j, exl3_start());
    exl3_stream<K> stream(j, route, quad, step, ring);
    krn_wait_for_previous();
    for (; quad.group < route.n_groups; quad.add(j, step)) {
        const exl3_group group = route.group[quad.group];
        const int16_t *list = route.pick + group.first;
        switch ((group.rows + 7) / 8) {
        case 1: exl3_item_sums<K, CODEBOOK, 1>(j, quad, list, group.rows, stream, ring, lane); break;
        case 2: exl3_item_sums<K, CODEBOOK, 2>(j, quad, list, group.rows, stream, ring, lane); break;
        case 3: exl3_item_sums<K, CODEBOOK, 3>(j, quad, list, group.rows, stream, ring, lane); break;
        default: exl3_item_sums<K, CODEBOOK, 4>(j, quad, list, group.rows, stream, ring, lane); break;
        }
    }
}

/* ---- tiles as they are ---- */

/* A warp a tile. rows: of tiles. */
template <int K, int CODEBOOK> __global__ static void exl3_tiles_kernel(const exl3_job j, int32_t rows, fp16 *wq)
{
    const int64_t tile = (int64_t)blockIdx.x * (blockDim.x / KRN_WARP) + threadIdx.x / KRN_WARP;
    const int32_t columns = j.n_blocks * 8, lane = threadIdx.x % KRN_WARP, g = lane / 4, q = lane % 4;
    const int32_t row = (int32_t)(tile / columns), column = (int32_t)(tile % columns);
    uint32_t pair[4];
    if (row >= rows) return;
    exl3_decode<K, CODEBOOK>(j.tiles + row * j.row_bytes + column / 8 * j.block_bytes + column % 8 * 32 * K,
                             exl3_lane<K>(lane), pair);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int32_t k = row * 16 + 2 * q + i % 2 + i / 2 % 2 * 8, n = column * 16 + g + i / 4 * 8;
        wq[(int64_t)k * columns * 16 + n] = (fp16)(pair[i / 2] >> 16 * (i % 2));
    }
}

/* ---- launching ---- */

template <int K, int CODEBOOK> static err_code exl3_sums_of(const exl3_job &j, exl3_card card, krn_stream s, err *e)
{
    const int32_t bytes = EXL3_WARPS * exl3_ring_bytes(K, card.large);
    cudaError_t rc = cudaFuncSetAttribute(exl3_sums_kernel<K, CODEBOOK>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          bytes);
    if (rc != cudaSuccess)
        return err_set(e, ERR_DEVICE, "exl3: %d bytes of shared memory: %s", bytes, cudaGetErrorString(rc));
    const int64_t quads = (int64_t)j.n_picks * j.slices * j.n_blocks; /* at most: a group has a pick */
    const int64_t blocks = min((int64_t)card.n_sm, quads);
    krn_launch(exl3_sums_kernel<K, CODEBOOK>, (unsigned)blocks, EXL3_THREADS, bytes, s, j);
    return krn_launched("exl3 sums", e);
}
template <int K, int CODEBOOK>
static err_code exl3_tiles_of(const exl3_job &j, int32_t rows, fp16 *wq, krn_stream s, err *e)
{
    enum { WARPS = 8 };
    const int64_t tiles = (int64_t)rows * j.n_blocks * 8;
    exl3_tiles_kernel<K, CODEBOOK><<<(unsigned)krn_blocks(tiles, WARPS), WARPS * KRN_WARP, 0, s>>>(j, rows, wq);
    return krn_launched("exl3 decode", e);
}

template <int CODEBOOK> static err_code exl3_sums(const exl3_job &j, int32_t bits, exl3_card card, krn_stream s, err *e)
{
    static err_code (*const OF[FMT_EXL3_BITS_MAX])(const exl3_job &, exl3_card, krn_stream, err *) = {
        exl3_sums_of<1, CODEBOOK>, exl3_sums_of<2, CODEBOOK>, exl3_sums_of<3, CODEBOOK>, exl3_sums_of<4, CODEBOOK>,
        exl3_sums_of<5, CODEBOOK>, exl3_sums_of<6, CODEBOOK>, exl3_sums_of<7, CODEBOOK>, exl3_sums_of<8, CODEBOOK>,
    };
    return OF[bits - 1](j, card, s, e);
}
template <int CODEBOOK>
static err_code exl3_tiles(const exl3_job &j, int32_t bits, int32_t rows, fp16 *wq, krn_stream s, err *e)
{
    static err_code (*const OF[FMT_EXL3_BITS_MAX])(const exl3_job &, int32_t, fp16 *, krn_stream, err *) = {
        exl3_tiles_of<1, CODEBOOK>, exl3_tiles_of<2, CODEBOOK>, exl3_tiles_of<3, CODEBOOK>, exl3_tiles_of<4, CODEBOOK>,
        exl3_tiles_of<5, CODEBOOK>, exl3_tiles_of<6, CODEBOOK>, exl3_tiles_of<7, CODEBOOK>, exl3_tiles_of<8, CODEBOOK>,
    };
    return OF[bits - 1](j, rows, wq, s, e);
}

#endif
