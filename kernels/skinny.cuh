/* The skinny product, shared by linear.cu and experts.cu: many rows of a weight times a few rows of x, on tensor cores.
 *
 * What such a product costs is the bytes of the weight, each read once. So weights go from memory to registers with nothing
 * between but a ring that keeps many loads in flight, and everything else is arranged around that:
 *
 *   tile     16 rows of the weight (the M of mma m16n8k16) times 8 rows of x (its N). A warp sums MT tiles of rows times NT
 *            tiles of x: the weight is decoded once for all rows of x
 *   step     64 bytes of every weight row: 128 FP4, 64 FP8 or 32 BF16 columns. Lane 4g + q has 16 bytes of rows g and
 *            g + 8, the q-th quarter of the step. The order of k inside an mma is free as long as both operands agree, so a
 *            lane takes the same columns of x: 16-byte loads on both sides, no exchange between lanes
 *   slice    the warps that share a tile split K: slice j of S takes steps j, j + S, j + 2S, ... MT and NT never change the
 *            order of an element's sums
 *   team     the S warps that share a tile. A team walks a run of neighbouring tiles. A block has SKINNY_WARPS / S teams,
 *            and there is one block for every multiprocessor: a block's start and end cost as much as many tiles
 *   ring     a warp's own piece of shared memory, filled by cp.async a few steps ahead, across tiles too. A lane reads back
 *            the 16 bytes that it copied itself; scales, 4 bytes a row and step, are copied by one lane for its quad
 *   x        goes straight to registers, a step ahead: it comes out of L1 or L2. Teams of a block read it together
 *
 * Decoding is exact. An FP4 nibble s|ee|m, its bits placed as s at 15 and eem at 8..6 of a bf16, is the value times 2^-126;
 * an FP8 byte s|eeee|mmm, as s at 15 and the rest at 10..4, is the value times 2^-120; subnormals included. One bf16
 * multiplication by 2^126 or 2^120 times the block's scale gives the weight. That factor passes bf16's range for scales of
 * 2^2 (FP4) or 2^8 (FP8) and up, which are then applied in two multiplications.
 * Codes and scales must have a bf16 product and be no NaN: the loader sees to it. */
#ifndef KERNELS_SKINNY_CUH
#define KERNELS_SKINNY_CUH

#include "kernels/bits.cuh"
#include "kernels/linear.h"

enum {
    SKINNY_WARPS = 16,
    SKINNY_THREADS = SKINNY_WARPS * KRN_WARP,
    SKINNY_M = 16,          /* rows of a tile */
    SKINNY_N = 8,           /* rows of x of a tile */
    SKINNY_NT_MAX = 3,      /* tiles of x that fit the registers */
    SKINNY_ROWS_MAX = SKINNY_NT_MAX * SKINNY_N,
    SKINNY_STEP_BYTES = 64, /* of a weight row */
};

/* A warp's shared memory: codes and scales in a ring, sums. An H200 needs about 30 KiB in flight on every multiprocessor
 * to keep its memory busy, and a short slice should be on its way as a whole. Cards before sm_90 have 99 KiB for a block:
 * fewer slots, and MT 1 alone. None of this changes a sum. Rings are multiples of 128 bytes and begin at one: copies that
 * straddle a line of shared memory take a quarter longer. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define SKINNY_LARGE false
#else
#define SKINNY_LARGE true
#endif
__host__ __device__ constexpr int32_t skinny_slots(int mt, bool large = SKINNY_LARGE) /* steps in the ring */
{
    return mt == 2 ? 3 : large ? 6 : 4;
}
__host__ __device__ constexpr int32_t skinny_slot_bytes(int mt) { return mt * SKINNY_M * SKINNY_STEP_BYTES; }
__host__ __device__ constexpr int32_t skinny_codes_bytes(int mt) { return skinny_slots(mt) * skinny_slot_bytes(mt); }
__host__ __device__ constexpr int32_t skinny_ring_bytes(int mt, bool large = SKINNY_LARGE)
{
    return skinny_slots(mt, large) * (skinny_slot_bytes(mt) + mt * SKINNY_M * 4);
}
__host__ __device__ constexpr int32_t skinny_sums_bytes(int mt, int nt) { return mt * nt * SKINNY_M * SKINNY_N * 4; }

/* ---- formats ---- */

__host__ __device__ constexpr bool skinny_scaled(krn_wformat f) { return f == KRN_W_FP4 || f == KRN_W_FP8; }
/* Columns in 16 bytes. */
__host__ __device__ constexpr int32_t skinny_lane_k(krn_wformat f) { return f == KRN_W_FP4 ? 32 : f == KRN_W_FP8 ? 16 : 8; }
__host__ __device__ constexpr int32_t skinny_step_k(krn_wformat f) { return 4 * skinny_lane_k(f); }

__host__ __device__ constexpr int32_t skinny_steps(krn_wformat f, int32_t k)
{
    return (k - 1) / skinny_step_k(f) + 1;
}

/* Warps that share a tile: the largest power of two up to `most` whose longest slice is at most 1/8 longer than the mean
 * one. */
__host__ __device__ constexpr int32_t skinny_slices(krn_wformat f, int32_t k, int32_t most)
{
    int64_t steps = skinny_steps(f, k), slices = most;
    while (slices > 1 && (steps + slices - 1) / slices * slices * 8 > steps * 9) slices /= 2;
    return (int32_t)slices;
}

/* ---- instructions ---- */

/* 16 bytes past L1: a weight is read once. live false: 16 zero bytes, nothing is read. */
__device__ __forceinline__ void skinny_copy16(uint8_t *shared, const uint8_t *from, bool live)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(shared)),
                 "l"(from), "r"(live ? 16 : 0)
                 : "memory");
}
__device__ __forceinline__ void skinny_copy4(uint8_t *shared, const uint8_t *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"((uint32_t)__cvta_generic_to_shared(shared)), "l"(from)
                 : "memory");
}
__device__ __forceinline__ void skinny_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/* Until at most PENDING of the groups committed last are under way. */
template <int PENDING> __device__ __forceinline__ void skinny_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

/* Two bf16 products. Written as a fused multiply-add of -0, which sm_86 has too; it keeps the sign of zero. */
__device__ __forceinline__ uint32_t skinny_mul2(uint32_t a, uint32_t b)
{
    uint32_t y;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(0x80008000u));
    return y;
}

/* acc [16, 8] += a [16, 16] . b [8, 16]^T. Lane 4g + q: a rows g, g + 8, g, g + 8, b row g, acc rows g, g, g + 8, g + 8 and
 * columns 2q, 2q + 1, 2q, 2q + 1. */
__device__ __forceinline__ void skinny_mma(float acc[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                           uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* ---- decoding ---- */

/* Of a scale 2^(b - 127): the powers of two that take placed bits to weights, twice in a word. The second one is 1 but for
 * LARGE scales, those above LIMIT. */
template <krn_wformat F, bool LARGE> struct skinny_factor {
    static constexpr uint32_t LIMIT = F == KRN_W_FP4 ? 128 : 134; /* the first factor is 2^(254-127) for this b */
    uint32_t first, second;
    __device__ __forceinline__ void of(uint32_t b)
    {
        first = (LARGE ? min(b, LIMIT) : b) * 0x00800080u + (254 - LIMIT) * 0x00800080u;
        second = LARGE ? (max(b, LIMIT) - LIMIT + 127) * 0x00800080u : 0;
    }
};

/* Columns 8c .. 8c + 7 of a lane's 16 bytes as four pairs of bf16. The pairs are those that fall out of the code words
 * without moving halves: FP4 (0,4) (1,5) (2,6) (3,7), FP8 (0,2) (1,3) (4,6) (5,7), BF16 (0,1) (2,3) (4,5) (6,7). */
template <krn_wformat F, bool LARGE>
__device__ __forceinline__ void skinny_decode(const uint32_t code[4], int c, const skinny_factor<F, LARGE> &factor,
                                              uint32_t pair[4])
{
    if (F == KRN_W_FP4) {
        /* A multiplication sets a nibble down twice, s|ee|m at 15..12 and at 9..6, without carries. It runs beside the
         * logic unit, which this loop is short of. */
        const uint32_t LOW = 0x000f000f, HIGH = 0x00f000f0, BITS = 0x81c081c0, q = code[c], q8 = q >> 8;
        pair[0] = (q & LOW) * 0x1040 & BITS;
        pair[1] = (q & HIGH) * 0x104 & BITS;
        pair[2] = (q8 & LOW) * 0x1040 & BITS;
        pair[3] = (q8 & HIGH) * 0x104 & BITS;
    } else if (F == KRN_W_FP8) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t SIGNS = 0x80008000, BITS = 0x07f007f0, q = code[(2 * c + i) & 3];
            pair[2 * i] = (q << 8 & SIGNS) | (q << 4 & BITS);
            pair[2 * i + 1] = (q & SIGNS) | (q >> 4 & BITS);
        }
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) pair[i] = code[i];
    }
    if (skinny_scaled(F)) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            pair[i] = skinny_mul2(pair[i], factor.first);
            if (LARGE) pair[i] = skinny_mul2(pair[i], factor.second);
        }
    }
}

/* Eight neighbours of x in the same pairs. */
template <krn_wformat F> __device__ __forceinline__ void skinny_pairs(uint4 x, uint32_t pair[4])
{
    const uint32_t LOW = 0x5410, HIGH = 0x7632; /* the low, or high, halves of both words */
    if (F == KRN_W_FP4) {
        pair[0] = __byte_perm(x.x, x.z, LOW);
        pair[1] = __byte_perm(x.x, x.z, HIGH);
        pair[2] = __byte_perm(x.y, x.w, LOW);
        pair[3] = __byte_perm(x.y, x.w, HIGH);
    } else if (F == KRN_W_FP8) {
        pair[0] = __byte_perm(x.x, x.y, LOW);
        pair[1] = __byte_perm(x.x, x.y, HIGH);
        pair[2] = __byte_perm(x.z, x.w, LOW);
        pair[3] = __byte_perm(x.z, x.w, HIGH);
    } else {
        pair[0] = x.x, pair[1] = x.y, pair[2] = x.z, pair[3] = x.w;
    }
}

/* ---- one warp's sums ---- */

/* What a lane copies: 16 bytes of rows g, g + 8, ... of the warp's tiles, and the scales of row g + 8q; step after step of
 * the slice, tile after tile up to row `end`. Rows past the last are read as the last: computed, not used. */
template <krn_wformat F, int MT> class skinny_source {
    const krn_weight &w;
    const uint8_t *row[2 * MT], *scale;
    uint8_t *codes, *scales; /* the lane's places in slot 0 of the ring */
    int32_t row0, end, step, slice, slices;
    int32_t g, q;
    bool scale_words;

    __device__ __forceinline__ void find_rows()
    {
#pragma unroll
        for (int i = 0; i < 2 * MT; i++)
            row[i] = (const uint8_t *)w.data + min(row0 + 8 * i + g, end - 1) * w.row_bytes + q * 16;
        if (!skinny_scaled(F)) return;
        const int32_t n = min(row0 + 8 * q + g, end - 1);
        scale = w.scale + (F == KRN_W_FP8 ? (w.scale_row0 + n) / 32 : n) * w.scale_row_bytes;
    }

    __device__ __forceinline__ void copy(int32_t slot) const
    {
        const bool live = step * skinny_step_k(F) + q * skinny_lane_k(F) < w.k;
        const int32_t at = live ? step * SKINNY_STEP_BYTES : 0;
#pragma unroll
        for (int i = 0; i < 2 * MT; i++)
            skinny_copy16(codes + slot * skinny_slot_bytes(MT) + i * (KRN_WARP * 16), row[i] + at, live);
        if (!skinny_scaled(F) || q >= 2 * MT) return;
        uint8_t *to = scales + slot * (MT * SKINNY_M * 4);
        const int32_t first = F == KRN_W_FP4 ? 4 * step : 2 * step & ~3; /* FP8: two steps share a word */
        if (scale_words) {
            skinny_copy4(to, scale + first);
        } else {
            uint32_t word = 0;
            for (int i = 0; i < 4; i++)
                if (first + i < w.k / 32) word |= (uint32_t)scale[first + i] << 8 * i;
            *(uint32_t *)to = word;
        }
    }

public:
    __device__ __forceinline__ skinny_source(const krn_weight &w_, int32_t row0_, int32_t end_, int32_t slice_,
                                             int32_t slices_, uint8_t *ring)
        : w(w_), row0(row0_), end(end_), step(slice_), slice(slice_), slices(slices_)
    {
        const int32_t lane = threadIdx.x % KRN_WARP;
        g = lane / 4, q = lane % 4;
        codes = ring + lane * 16;
        scales = ring + skinny_codes_bytes(MT) + (8 * q + g) * 4;
        scale_words = (((uintptr_t)w.scale | (uint64_t)w.scale_row_bytes) & 3) == 0;
        if (slice >= skinny_steps(F, w.k)) row0 = end; /* nothing to do */
        if (row0 < end) find_rows();
    }

    /* Starts the copy of the next step, if there is one, into a slot. */
    __device__ __forceinline__ void feed(int32_t slot)
    {
        if (row0 < end) {
            copy(slot);
            step += slices;
            if (step >= skinny_steps(F, w.k)) {
                step = slice;
                row0 += MT * SKINNY_M;
                if (row0 < end) find_rows();
            }
        }
        skinny_commit();
    }
};

/* A lane's columns of x to come, 8 at a time: a step's, or half of FP4's, whose registers would not suffice. */
template <krn_wformat F, int NT> struct skinny_x {
    static constexpr int PIECES = skinny_lane_k(F) / 8, AHEAD = PIECES == 1 || NT * PIECES > 8 ? 1 : 2;
    uint4 of[AHEAD][NT];

    /* Piece c of the columns from k on. Past the end of K: zeros. */
    __device__ __forceinline__ void load(const bf16 *const x[NT], int32_t k, bool live, int c)
    {
#pragma unroll
        for (int j = 0; j < NT; j++)
            of[c % AHEAD][j] = live ? __ldg((const uint4 *)((const uint8_t *)x[j] + 2 * (uint32_t)k) + c)
                                    : make_uint4(0, 0, 0, 0);
    }
};

/* acc += one step: the lane's codes and scales of its rows, and its columns of x, from k on. Takes x of the step after from
 * column next on. */
template <krn_wformat F, int MT, int NT, bool LARGE>
__device__ __forceinline__ void skinny_step(const uint32_t code[2 * MT][4], const uint32_t scale[2 * MT],
                                            skinny_x<F, NT> &own, const bf16 *const x[NT], int32_t k, int32_t next,
                                            int32_t end, float acc[MT][NT][4])
{
    constexpr int PIECES = skinny_x<F, NT>::PIECES, AHEAD = skinny_x<F, NT>::AHEAD;
    skinny_factor<F, LARGE> factor[2 * MT];
#pragma unroll
    for (int i = 0; i < 2 * MT; i++) factor[i].of(scale[i]);
#pragma unroll
    for (int c = 0; c < PIECES; c++) {
        uint32_t pair[NT][4];
#pragma unroll
        for (int j = 0; j < NT; j++) skinny_pairs<F>(own.of[c % AHEAD][j], pair[j]);
        if (c + AHEAD < PIECES) own.load(x, k, k < end, c + AHEAD);
        else own.load(x, next, next < end, c + AHEAD - PIECES);
#pragma unroll
        for (int i = 0; i < MT; i++) {
            uint32_t w[2][4]; /* rows g and g + 8 */
            skinny_decode<F, LARGE>(code[2 * i], c, factor[2 * i], w[0]);
            skinny_decode<F, LARGE>(code[2 * i + 1], c, factor[2 * i + 1], w[1]);
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
                for (int j = 0; j < NT; j++)
                    skinny_mma(acc[i][j], w[0][2 * h], w[1][2 * h], w[0][2 * h + 1], w[1][2 * h + 1], pair[j][2 * h],
                               pair[j][2 * h + 1]);
        }
    }
}

/* Sums one slice of rows [row0, end) of w, 16 MT at a time, and calls done(first row, acc) after each: acc as skinny_keep
 * takes it. x[j] is the lane's row of x in tile j, row 8j + g; any readable row where there is none. Rows of w and of x are
 * 16-byte aligned, w.k is a multiple of 8. */
template <krn_wformat F, int MT, int NT, typename DONE>
__device__ __forceinline__ void skinny_walk(const krn_weight &w, int32_t row0, int32_t end, int32_t slice, int32_t slices,
                                            const bf16 *const x[NT], uint8_t *ring, DONE done)
{
    constexpr int SLOTS = skinny_slots(MT);
    const int32_t lane = threadIdx.x % KRN_WARP, q = lane % 4, steps = skinny_steps(F, w.k);
    const int32_t lane_k = q * skinny_lane_k(F);
    skinny_source<F, MT> source(w, row0, end, slice, slices, ring);
    const int32_t first_k = slice * skinny_step_k(F) + lane_k;
    skinny_x<F, NT> own;
#pragma unroll
    for (int c = 0; c < skinny_x<F, NT>::AHEAD; c++) own.load(x, first_k, first_k < w.k, c);
#pragma unroll
    for (int i = 0; i < SLOTS - 1; i++) source.feed(i);
    int32_t slot = 0, feed_slot = SLOTS - 1;
    for (; row0 < end; row0 += MT * SKINNY_M) {
        float acc[MT][NT][4] = {};
#pragma unroll 1
        for (int32_t step = slice; step < steps; step += slices) {
            skinny_wait<SLOTS - 2>();
            __syncwarp(); /* the scales come from another lane; and all lanes are done with the slot that is filled next */
            uint32_t code[2 * MT][4], scale[2 * MT];
            bool large = false;
#pragma unroll
            for (int j = 0; j < 2 * MT; j++) {
                const uint4 v = *(const uint4 *)(ring + slot * skinny_slot_bytes(MT) + j * (KRN_WARP * 16) + lane * 16);
                code[j][0] = v.x, code[j][1] = v.y, code[j][2] = v.z, code[j][3] = v.w;
                scale[j] = 0;
                if (skinny_scaled(F)) {
                    const int32_t byte = F == KRN_W_FP4 ? q : 2 * (step & 1) + q / 2;
                    scale[j] = ring[skinny_codes_bytes(MT) + (slot * MT * SKINNY_M + 8 * j + lane / 4) * 4 + byte];
                    large = large || scale[j] > skinny_factor<F, true>::LIMIT;
                }
            }
            source.feed(feed_slot);
            feed_slot = slot;
            slot = slot + 1 == SLOTS ? 0 : slot + 1;
            const int32_t k = step * skinny_step_k(F) + lane_k;
            const int32_t next = step + slices < steps ? k + slices * skinny_step_k(F) : first_k;
            if (skinny_scaled(F) && __any_sync(0xffffffff, large))
                skinny_step<F, MT, NT, true>(code, scale, own, x, k, next, w.k, acc);
            else
                skinny_step<F, MT, NT, false>(code, scale, own, x, k, next, w.k, acc);
        }
        done(row0, acc);
    }
    skinny_wait<0>();
    __syncwarp(); /* the ring is free */
}

/* ---- a team's sums ---- */

/* How a launch is divided: every team gets each = tiles / teams neighbours, the first more = tiles % teams one more. */
struct skinny_split {
    int32_t slices, log2_slices; /* slices: a power of two up to SKINNY_WARPS */

    __host__ __device__ explicit skinny_split(int32_t slices_) : slices(slices_), log2_slices(0)
    {
        while (1 << log2_slices < slices) log2_slices++;
    }
    __host__ __device__ int32_t teams() const { return SKINNY_WARPS >> log2_slices; } /* of a block */
    static __device__ __forceinline__ uint32_t first(uint32_t team, uint32_t each, uint32_t more)
    {
        return team * each + min(team, more);
    }
};

struct skinny_team {
    int32_t slices, slice, index; /* warps of a team; of this warp; of this team in its block */
    uint8_t *ring, *sums;         /* of this warp; of slice 0, the others skinny_sums_bytes of the product's MT, NT apart */

    /* nt: the most tiles of x of any product of the block. */
    __device__ __forceinline__ skinny_team(uint8_t *shared, const skinny_split &split, int mt, int nt)
        : slices(split.slices)
    {
        const int32_t warp = threadIdx.x / KRN_WARP;
        slice = warp & (slices - 1), index = warp >> split.log2_slices;
        ring = shared + warp * skinny_ring_bytes(mt);
        sums = shared + SKINNY_WARPS * skinny_ring_bytes(mt) + (warp - slice) * skinny_sums_bytes(mt, nt);
    }
    /* Of the team's threads. */
    __device__ __forceinline__ int32_t thread() const { return slice * KRN_WARP + threadIdx.x % KRN_WARP; }
    __device__ __forceinline__ int32_t threads() const { return slices * KRN_WARP; }
    __device__ __forceinline__ void sync() const
    {
        if (slices == 1) __syncwarp();
        else asm volatile("bar.sync %0, %1;" ::"r"(index + 1), "r"(threads()) : "memory"); /* 0 is __syncthreads' */
    }
};

/* Leaves a warp's sums where skinny_joined finds them after a barrier. */
template <int MT, int NT> __device__ __forceinline__ void skinny_keep(const skinny_team &team, const float acc[MT][NT][4])
{
    const int32_t lane = threadIdx.x % KRN_WARP;
    uint8_t *sums = team.sums + team.slice * skinny_sums_bytes(MT, NT);
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int j = 0; j < NT; j++)
            *(float4 *)(sums + ((j * MT + i) * KRN_WARP + lane) * 16) =
                make_float4(acc[i][j][0], acc[i][j][1], acc[i][j][2], acc[i][j][3]);
}

/* Row r of the tiles' 16 MT, column c of their 8 NT: the sum of all slices, ascending. sums: of slice 0. */
template <int MT, int NT>
__device__ __forceinline__ float skinny_joined(const uint8_t *sums, int32_t slices, int32_t r, int32_t c)
{
    const int32_t tile = c / SKINNY_N * MT + r / SKINNY_M, m = r % SKINNY_M, n = c % SKINNY_N;
    const uint8_t *at = sums + ((tile * KRN_WARP + m % 8 * 4 + n / 2) * 4 + m / 8 * 2 + n % 2) * 4;
    float sum = *(const float *)at;
#pragma unroll 4
    for (int32_t j = 1; j < slices; j++) sum = __fadd_rn(sum, *(const float *)(at + j * skinny_sums_bytes(MT, NT)));
    return sum;
}

/* The whole of a team's work: rows [row0, end) of w times n_x rows of x, n_x <= 8 NT; store(row of x, row of w, sum) is
 * called once for each product. */
template <krn_wformat F, int MT, int NT, typename STORE>
__device__ __forceinline__ void skinny_product(const skinny_team &team, const krn_weight &w, int32_t row0, int32_t end,
                                               const bf16 *const x[NT], int32_t n_x, STORE store)
{
    skinny_walk<F, MT, NT>(w, row0, end, team.slice, team.slices, x, team.ring,
                           [&](int32_t first, const float acc[MT][NT][4]) {
        skinny_keep<MT, NT>(team, acc);
        team.sync();
        for (int32_t i = team.thread(); i < MT * SKINNY_M * n_x; i += team.threads()) {
            const int32_t r = i % (MT * SKINNY_M), t = i / (MT * SKINNY_M);
            if (first + r < end) store(t, first + r, skinny_joined<MT, NT>(team.sums, team.slices, r, t));
        }
        team.sync(); /* before the next sums */
    });
}

/* ---- launching ---- */

/* The contract's NaN. */
__device__ __forceinline__ float skinny_f32(float v) { return v != v ? __uint_as_float(0x7fc00000) : v; }

/* The current device. */
struct skinny_device {
    int32_t n_sm;
    bool two_tiles; /* room for MT 2, and for the longer ring: sm_90 */

    /* Of a block: the rings of all warps, then their sums. */
    int32_t shared_bytes(int mt, int nt) const
    {
        return SKINNY_WARPS * (skinny_ring_bytes(mt, two_tiles) + skinny_sums_bytes(mt, nt));
    }
};

static inline err_code skinny_device_get(const char *op, skinny_device *out, err *e)
{
    int device = 0, n_sm = 0, major = 0;
    cudaError_t rc = cudaGetDevice(&device);
    if (rc == cudaSuccess) rc = cudaDeviceGetAttribute(&n_sm, cudaDevAttrMultiProcessorCount, device);
    if (rc == cudaSuccess) rc = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (rc != cudaSuccess) return err_set(e, ERR_DEVICE, "%s: the device: %s", op, cudaGetErrorString(rc));
    *out = { n_sm, major >= 9 };
    return ERR_OK;
}

/* Allows a kernel its shared memory. */
template <typename K> static err_code skinny_prepare(const char *op, K *kernel, int32_t shared_bytes, err *e)
{
    cudaError_t rc = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    if (rc == cudaSuccess) return ERR_OK;
    return err_set(e, ERR_DEVICE, "%s: %d bytes of shared memory: %s", op, shared_bytes, cudaGetErrorString(rc));
}

#endif
