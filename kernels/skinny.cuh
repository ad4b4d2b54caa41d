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
 *   slice    the warps that share a tile split K: slice j of S takes steps j, j + S, j + 2S, ... S depends on the format
 *            and K alone (skinny_slices); MT and NT never change the order of an element's sums
 *   ring     a warp's own piece of shared memory, filled by cp.async a few steps ahead. A lane reads back the 16 bytes that
 *            it copied itself; scales, 4 bytes a row and step, are copied by one lane for its quad
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
    SKINNY_WARPS = 8,
    SKINNY_THREADS = SKINNY_WARPS * KRN_WARP,
    SKINNY_M = 16,              /* rows of a tile */
    SKINNY_N = 8,               /* rows of x of a tile */
    SKINNY_STEP_BYTES = 64,     /* of a weight row */
    /* Of a warp: 8 KiB of codes, 512 bytes of scales. An H200 needs about 30 KiB in flight on every SM to keep its memory
     * busy. Small products have one block an SM, so a block must be able to do it alone; three fit. */
    SKINNY_RING_BYTES = 8192,
    SKINNY_RING_SCALE_BYTES = 512,
    SKINNY_WARP_BYTES = SKINNY_RING_BYTES + SKINNY_RING_SCALE_BYTES,
    SKINNY_SHARED_BYTES = SKINNY_WARPS * SKINNY_WARP_BYTES,
};

/* ---- formats ---- */

__host__ __device__ constexpr bool skinny_scaled(krn_wformat f) { return f == KRN_W_FP4 || f == KRN_W_FP8; }
/* Columns in 16 bytes. */
__host__ __device__ constexpr int32_t skinny_lane_k(krn_wformat f) { return f == KRN_W_FP4 ? 32 : f == KRN_W_FP8 ? 16 : 8; }
__host__ __device__ constexpr int32_t skinny_step_k(krn_wformat f) { return 4 * skinny_lane_k(f); }

__host__ __device__ constexpr int32_t skinny_steps(krn_wformat f, int32_t k)
{
    return (k - 1) / skinny_step_k(f) + 1;
}

/* Warps that share a tile: the most of 8, 4, 2 whose longest slice is at most 1/8 longer than the mean. */
__host__ __device__ constexpr int32_t skinny_slices(krn_wformat f, int32_t k)
{
    int64_t steps = skinny_steps(f, k), slices = SKINNY_WARPS;
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
 * large scales. */
template <krn_wformat F> struct skinny_factor {
    static constexpr uint32_t LIMIT = F == KRN_W_FP4 ? 128 : 134; /* the first factor is 2^(254-127) for this b */
    uint32_t first, second;
    __device__ __forceinline__ explicit skinny_factor(uint32_t b)
    {
        first = (min(b, LIMIT) + (254 - LIMIT)) * 0x00800080u;
        second = (max(b, LIMIT) - LIMIT + 127) * 0x00800080u;
    }
};

/* Columns 8c .. 8c + 7 of a lane's 16 bytes as four pairs of bf16. The pairs are those that fall out of the code words
 * without moving halves: FP4 (0,4) (1,5) (2,6) (3,7), FP8 (0,2) (1,3) (4,6) (5,7), BF16 (0,1) (2,3) (4,5) (6,7). */
template <krn_wformat F, bool LARGE>
__device__ __forceinline__ void skinny_decode(const uint32_t code[4], int c, const skinny_factor<F> &factor,
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

/* ---- one warp's sum ---- */

/* What a lane copies: 16 bytes of rows g, g + 8, ... of the warp's tiles, and the scales of row g + 8q. */
template <krn_wformat F, int MT> struct skinny_source {
    static constexpr int DEPTH = SKINNY_RING_BYTES / (MT * SKINNY_M * SKINNY_STEP_BYTES); /* steps in the ring */
    const uint8_t *row[2 * MT], *scale;
    uint8_t *codes, *scales; /* the lane's places in slot 0 of the ring */
    int32_t lane_first_k, k; /* of step 0; of the row */
    bool copies_scale, scale_words;

    /* Rows of the tiles from `end` on are read as row end - 1: computed, not used. */
    __device__ __forceinline__ skinny_source(const krn_weight &w, int32_t row0, int32_t end, uint8_t *ring)
    {
        const int32_t lane = threadIdx.x % KRN_WARP, g = lane / 4, q = lane % 4;
        k = w.k;
        lane_first_k = q * skinny_lane_k(F);
#pragma unroll
        for (int i = 0; i < 2 * MT; i++)
            row[i] = (const uint8_t *)w.data + min(row0 + 8 * i + g, end - 1) * w.row_bytes + q * 16;
        codes = ring + lane * 16;
        if (!skinny_scaled(F)) return;
        const int32_t n = min(row0 + 8 * q + g, end - 1);
        scale = w.scale + (F == KRN_W_FP8 ? (w.scale_row0 + n) / 32 : n) * w.scale_row_bytes;
        scales = ring + SKINNY_RING_BYTES + (8 * q + g) * 4;
        copies_scale = q < 2 * MT;
        scale_words = (((uintptr_t)w.scale | (uint64_t)w.scale_row_bytes) & 3) == 0;
    }

    /* Starts the copy of a step into a slot. */
    __device__ __forceinline__ void copy(int32_t step, int32_t slot)
    {
        const bool live = step * skinny_step_k(F) + lane_first_k < k;
        const int32_t at = live ? step * SKINNY_STEP_BYTES : 0;
#pragma unroll
        for (int i = 0; i < 2 * MT; i++)
            skinny_copy16(codes + (slot * 2 * MT + i) * (KRN_WARP * 16), row[i] + at, live);
        if (!skinny_scaled(F) || !copies_scale) return;
        uint8_t *to = scales + slot * (MT * SKINNY_M * 4);
        const int32_t first = F == KRN_W_FP4 ? 4 * step : 2 * step & ~3; /* FP8: two steps share a word */
        if (scale_words) {
            skinny_copy4(to, scale + first);
        } else {
            uint32_t word = 0;
            for (int i = 0; i < 4; i++)
                if (first + i < k / 32) word |= (uint32_t)scale[first + i] << 8 * i;
            *(uint32_t *)to = word;
        }
    }
};

/* acc += one step: the lane's codes and scales of its rows, and its columns of x, NULL where there are none. */
template <krn_wformat F, int MT, int NT, bool LARGE>
__device__ __forceinline__ void skinny_step(const uint32_t code[2 * MT][4], const uint32_t scale[2 * MT],
                                            const uint4 *const x[NT], int32_t x_tiles, float acc[MT][NT][4])
{
#pragma unroll
    for (int c = 0; c < skinny_lane_k(F) / 8; c++) {
        uint4 x8[NT];
#pragma unroll
        for (int j = 0; j < NT; j++)
            x8[j] = x[j] ? __ldg(x[j] + c) : make_uint4(0, 0, 0, 0);
        uint32_t w[2 * MT][4];
#pragma unroll
        for (int i = 0; i < 2 * MT; i++) skinny_decode<F, LARGE>(code[i], c, skinny_factor<F>(scale[i]), w[i]);
#pragma unroll
        for (int j = 0; j < NT; j++) {
            if (NT > 1 && j >= x_tiles) continue;
            uint32_t pair[4];
            skinny_pairs<F>(x8[j], pair);
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
                for (int i = 0; i < MT; i++)
                    skinny_mma(acc[i][j], w[2 * i][2 * h], w[2 * i + 1][2 * h], w[2 * i][2 * h + 1],
                               w[2 * i + 1][2 * h + 1], pair[2 * h], pair[2 * h + 1]);
        }
    }
}

/* Sums one slice of tiles of rows [row0, row0 + 16 MT) of w, below end, and leaves the sums in the warp's ring, where
 * skinny_joined finds them after a __syncthreads. x[j] is the lane's row of x in tile j, row 8j + g, NULL where there is
 * none; tiles from x_tiles on have none. Rows of w and of x are 16-byte aligned, w.k is a multiple of 8. */
template <krn_wformat F, int MT, int NT>
__device__ __forceinline__ void skinny_sum(const krn_weight &w, int32_t row0, int32_t end, int32_t slice, int32_t slices,
                                           const bf16 *const x[NT], int32_t x_tiles, uint8_t *ring)
{
    static_assert(MT * NT * SKINNY_M * SKINNY_N * 4 <= SKINNY_RING_BYTES, "the sums take the place of the ring");
    constexpr int DEPTH = skinny_source<F, MT>::DEPTH;
    static_assert((DEPTH & (DEPTH - 1)) == 0 && DEPTH * MT * SKINNY_M * 4 <= SKINNY_RING_SCALE_BYTES, "slots");
    const int32_t lane = threadIdx.x % KRN_WARP, q = lane % 4;
    const int32_t steps = skinny_steps(F, w.k), mine = slice < steps ? (steps - 1 - slice) / slices + 1 : 0;
    skinny_source<F, MT> source(w, row0, end, ring);
    float acc[MT][NT][4] = {};

    for (int32_t i = 0; i < DEPTH - 1; i++) {
        if (i < mine) source.copy(slice + i * slices, i);
        skinny_commit();
    }
    for (int32_t i = 0; i < mine; i++) {
        skinny_wait<DEPTH - 2>();
        __syncwarp(); /* the scales come from another lane; and all lanes are done with the slot that is filled next */
        const int32_t step = slice + i * slices, slot = i & (DEPTH - 1);
        uint32_t code[2 * MT][4], scale[2 * MT];
        bool large = false;
#pragma unroll
        for (int j = 0; j < 2 * MT; j++) {
            const uint4 v = *(const uint4 *)(ring + (slot * 2 * MT + j) * (KRN_WARP * 16) + lane * 16);
            code[j][0] = v.x, code[j][1] = v.y, code[j][2] = v.z, code[j][3] = v.w;
            scale[j] = 0;
            if (skinny_scaled(F)) {
                const int32_t byte = F == KRN_W_FP4 ? q : 2 * (step & 1) + q / 2;
                scale[j] = ring[SKINNY_RING_BYTES + (slot * MT * SKINNY_M + 8 * j + lane / 4) * 4 + byte];
                large = large || scale[j] > skinny_factor<F>::LIMIT;
            }
        }
        const int32_t ahead = i + DEPTH - 1;
        if (ahead < mine) source.copy(slice + ahead * slices, ahead & (DEPTH - 1));
        skinny_commit();
        const int32_t k0 = step * skinny_step_k(F) + q * skinny_lane_k(F);
        const uint4 *mine_x[NT];
#pragma unroll
        for (int j = 0; j < NT; j++) mine_x[j] = x[j] && k0 < w.k ? (const uint4 *)(x[j] + k0) : NULL;
        if (skinny_scaled(F) && __any_sync(0xffffffff, large))
            skinny_step<F, MT, NT, true>(code, scale, mine_x, x_tiles, acc);
        else
            skinny_step<F, MT, NT, false>(code, scale, mine_x, x_tiles, acc);
    }

    skinny_wait<0>();
    __syncwarp(); /* the ring is free */
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int j = 0; j < NT; j++)
            *(float4 *)(ring + ((j * MT + i) * KRN_WARP + lane) * 16) =
                make_float4(acc[i][j][0], acc[i][j][1], acc[i][j][2], acc[i][j][3]);
}

/* Row r of the tiles' 16 MT, column c of their 8 NT: the sum of all slices, ascending. rings: the ring of slice 0. */
template <int MT> __device__ __forceinline__ float skinny_joined(const uint8_t *rings, int32_t slices, int32_t r, int32_t c)
{
    const int32_t tile = c / SKINNY_N * MT + r / SKINNY_M, m = r % SKINNY_M, n = c % SKINNY_N;
    const uint8_t *at = rings + ((tile * KRN_WARP + m % 8 * 4 + n / 2) * 4 + m / 8 * 2 + n % 2) * 4;
    float sum = *(const float *)at;
    for (int32_t j = 1; j < slices; j++) sum = __fadd_rn(sum, *(const float *)(at + j * SKINNY_WARP_BYTES));
    return sum;
}

/* The contract's NaN. */
__device__ __forceinline__ float skinny_f32(float v) { return v != v ? __uint_as_float(0x7fc00000) : v; }

/* Allows a kernel the rings' shared memory. */
template <typename K> static err_code skinny_prepare(const char *op, K *kernel, err *e)
{
    cudaError_t rc = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SKINNY_SHARED_BYTES);
    if (rc == cudaSuccess) return ERR_OK;
    return err_set(e, ERR_DEVICE, "%s: %d bytes of shared memory: %s", op, SKINNY_SHARED_BYTES, cudaGetErrorString(rc));
}

#endif
