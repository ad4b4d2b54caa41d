/* The skinny product, shared by linear.cu and experts.cu: many rows of a weight times a few rows of x, on tensor cores.
 *
 * What such a product costs is the bytes of the weight, each read once. So weights go from memory to registers with nothing
 * between but a ring that keeps many loads in flight, and everything else is arranged around that:
 *
 *   tile     16 rows of the weight (the M of mma m16n8k16) times 8 rows of x (its N). A warp sums MT tiles of rows times NT
 *            tiles of x: the weight is decoded once for all rows of x
 *   step     64 bytes of every weight row: 128 FP4, 64 FP8 or 32 BF16 columns. The order of k inside an mma is free as long
 *            as both operands agree. Of rows g and g + 8 lane 4g + q takes the q-th 16 bytes, or of FP4, whose 16 bytes are
 *            32 columns, the q-th word of every 16: its columns of x are then 16-byte loads too, side by side with those
 *            of the next lane, and no lane exchanges anything with others
 *   slice    the warps that share a tile split K: slice j of S takes steps j, j + S, j + 2S, ... MT and NT never change the
 *            order of an element's sums
 *   team     the S warps that share a tile. A team walks runs of neighbouring tiles. A block has 16 warps, or 8 with twice
 *            the registers, and there is one block for every multiprocessor: a block's start and end cost as much as many
 *            tiles
 *   stream   a warp's own piece of shared memory, a ring filled by cp.async a few steps ahead, across tiles and runs too.
 *            Scales are 4 bytes a row and step
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
    SKINNY_M = 16,          /* rows of a tile */
    SKINNY_N = 8,           /* rows of x of a tile */
    SKINNY_NT_MAX = 3,      /* tiles of x that fit the registers */
    SKINNY_ROWS_MAX = SKINNY_NT_MAX * SKINNY_N,
    SKINNY_STEP_BYTES = 64, /* of a weight row */
};

/* Warps of a block that sum MT tiles of rows each. Four tiles need the registers of two warps. */
__host__ __device__ constexpr int32_t skinny_warps(int mt) { return mt == 4 ? 8 : 16; }
__host__ __device__ constexpr int32_t skinny_threads(int mt) { return skinny_warps(mt) * KRN_WARP; }

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
    return mt > 1 ? 3 : large ? 6 : 4;
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

/* The first column, of those of a step, of the c-th eight that lane 4g + q takes. */
__host__ __device__ constexpr int32_t skinny_column(krn_wformat f, int32_t q, int32_t c)
{
    return f == KRN_W_FP4 ? 32 * c + 8 * q : skinny_lane_k(f) * q + 8 * c;
}

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

/* Four matrices of eight rows of 16 bytes: lane 4g + q gets word q of row g of each. Lane 8m + r says where row r of matrix
 * m is. */
__device__ __forceinline__ void skinny_load_words(const uint8_t *shared, uint32_t word[4])
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(shared))
                 : "memory");
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
    /* b is byte c of scales. */
    __device__ __forceinline__ void of(uint32_t scales, int c)
    {
        const uint32_t b = scales >> 8 * c & 0xff;
        first = (LARGE ? min(b, LIMIT) : b) * 0x00800080u + (254 - LIMIT) * 0x00800080u;
        second = LARGE ? (max(b, LIMIT) - LIMIT + 127) * 0x00800080u : 0;
    }
};

/* Columns 8c .. 8c + 7 of a lane's codes as four pairs of bf16. The pairs are those that fall out of the code words
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

/* ---- what a warp reads, what it sums ---- */

/* Rows that follow each other: the only run of a team that has one. */
struct skinny_run {
    int32_t row0, end;

    /* The next run, if there is one. */
    __device__ __forceinline__ bool next(int32_t *next_row0, int32_t *next_end)
    {
        *next_row0 = row0, *next_end = end;
        row0 = end;
        return *next_row0 < end;
    }
};

/* Where the c-th 16 bytes of row g of eight lie in the ring. Lanes that read the c-th of all eight rows, or all of two
 * rows, find them in different banks. */
__device__ __forceinline__ int32_t skinny_place(int32_t g, int32_t c) { return g * SKINNY_STEP_BYTES + (c ^ g >> 1) * 16; }

/* What a warp reads of w: one slice of the rows of `runs`, 16 MT at a time, step after step. Lane 4g + q copies 16 bytes
 * of rows g, g + 8, ..., and the scales of row g + 8q, and of 32 rows after it. Rows past the run's last are read as the
 * last: computed, not used. */
template <krn_wformat F, int MT, typename RUNS> class skinny_stream {
    static constexpr int SLOTS = skinny_slots(MT), SCALES = (2 * MT + 3) / 4; /* SCALES: rows whose scales a lane copies */
    const krn_weight &w;
    RUNS runs;
    const uint8_t *row[2 * MT], *scale[SCALES];
    uint8_t *ring;
    int32_t slice, slices, row0, end, step; /* what is copied next: nothing where row0 is end */
    int32_t slot, feed_slot;
    int32_t g, q;
    bool scale_words;

    __device__ __forceinline__ void find_rows()
    {
#pragma unroll
        for (int i = 0; i < 2 * MT; i++)
            row[i] = (const uint8_t *)w.data + min(row0 + 8 * i + g, end - 1) * w.row_bytes + q * 16;
#pragma unroll
        for (int i = 0; i < SCALES && skinny_scaled(F); i++) {
            const int32_t n = min(row0 + 32 * i + 8 * q + g, end - 1);
            scale[i] = w.scale + (F == KRN_W_FP8 ? (w.scale_row0 + n) / 32 : n) * w.scale_row_bytes;
        }
    }
    __device__ __forceinline__ void find_run()
    {
        if (slice < skinny_steps(F, w.k) && runs.next(&row0, &end)) find_rows();
        else row0 = end = 0;
    }

    __device__ __forceinline__ void copy() const
    {
        const bool live = step * skinny_step_k(F) + q * skinny_lane_k(F) < w.k;
        const int32_t at = live ? step * SKINNY_STEP_BYTES : 0;
        uint8_t *codes = ring + feed_slot * skinny_slot_bytes(MT) + skinny_place(g, q);
#pragma unroll
        for (int i = 0; i < 2 * MT; i++) skinny_copy16(codes + i * (KRN_WARP * 16), row[i] + at, live);
        uint8_t *scales = ring + skinny_codes_bytes(MT) + (feed_slot * MT * SKINNY_M + 8 * q + g) * 4;
        const int32_t first = F == KRN_W_FP4 ? 4 * step : 2 * step & ~3; /* FP8: two steps share a word */
#pragma unroll
        for (int i = 0; i < SCALES && skinny_scaled(F); i++) {
            if (4 * i + q >= 2 * MT) break;
            if (scale_words) {
                skinny_copy4(scales + i * 128, scale[i] + first);
            } else {
                uint32_t word = 0;
                for (int b = 0; b < 4; b++)
                    if (first + b < w.k / 32) word |= (uint32_t)scale[i][first + b] << 8 * b;
                *(uint32_t *)(scales + i * 128) = word;
            }
        }
    }

    /* Starts the copy of the next step, if there is one. */
    __device__ __forceinline__ void feed()
    {
        if (row0 < end) {
            copy();
            step += slices;
            if (step >= skinny_steps(F, w.k)) {
                step = slice;
                row0 += MT * SKINNY_M;
                if (row0 < end) find_rows();
                else find_run();
            }
        }
        skinny_commit();
    }

public:
    __device__ __forceinline__ skinny_stream(const krn_weight &w_, const RUNS &runs_, int32_t slice_, int32_t slices_,
                                             uint8_t *ring_)
        : w(w_), runs(runs_), ring(ring_), slice(slice_), slices(slices_), step(slice_), slot(0)
    {
        const int32_t lane = threadIdx.x % KRN_WARP;
        g = lane / 4, q = lane % 4;
        scale_words = (((uintptr_t)w.scale | (uint64_t)w.scale_row_bytes) & 3) == 0;
        find_run();
#pragma unroll
        for (int i = 0; i < SLOTS - 1; i++) {
            feed_slot = i;
            feed();
        }
        feed_slot = SLOTS - 1;
    }

    /* The lane's codes, in the order of skinny_column, and scales of the next step, which is step `at` of its tiles: a
     * byte, or four for FP4. Returns whether a scale may be LARGE. */
    __device__ __forceinline__ bool take(int32_t at, uint32_t code[2 * MT][4], uint32_t scale_of[2 * MT])
    {
        const int32_t lane = threadIdx.x % KRN_WARP;
        const uint8_t *codes = ring + slot * skinny_slot_bytes(MT);
        const uint8_t *scales = ring + skinny_codes_bytes(MT) + (slot * MT * SKINNY_M + g) * 4;
        uint32_t any = 0;
        codes += F == KRN_W_FP4 ? skinny_place(lane % 8, lane / 8) : skinny_place(g, q);
        skinny_wait<SLOTS - 2>();
        __syncwarp(); /* what other lanes copied is there; and all are done with the slot that is filled next */
#pragma unroll
        for (int j = 0; j < 2 * MT; j++) {
            if (F == KRN_W_FP4) {
                skinny_load_words(codes + j * (KRN_WARP * 16), code[j]);
                scale_of[j] = *(const uint32_t *)(scales + j * 32);
            } else {
                const uint4 v = *(const uint4 *)(codes + j * (KRN_WARP * 16));
                code[j][0] = v.x, code[j][1] = v.y, code[j][2] = v.z, code[j][3] = v.w;
                scale_of[j] = F == KRN_W_FP8 ? scales[j * 32 + 2 * (at & 1) + q / 2] : 0;
            }
            any |= scale_of[j];
        }
        feed();
        feed_slot = slot;
        slot = slot + 1 == SLOTS ? 0 : slot + 1;
        return skinny_scaled(F) && __any_sync(0xffffffff, (any & 0x80808080) != 0);
    }

    /* After all steps: the ring is free. */
    __device__ __forceinline__ void finish()
    {
        skinny_wait<0>();
        __syncwarp();
    }
};

/* A lane's columns of x to come, 8 at a time: a step's, or less of FP4's where registers do not suffice. */
template <krn_wformat F, int MT, int NT> struct skinny_x {
    static constexpr int PIECES = skinny_lane_k(F) / 8, ALL = MT == 4 || NT * PIECES <= 4;
    static constexpr int AHEAD = ALL ? PIECES : NT * PIECES <= 8 ? 2 : 1;
    uint4 of[AHEAD][NT];

    /* Piece c of the step whose first column of the lane is k. Past the end of K: zeros. */
    __device__ __forceinline__ void load(const bf16 *const x[NT], int32_t k, int32_t end, int c)
    {
        const int32_t ahead = skinny_column(F, 0, c);
        const bool live = k + ahead < end;
#pragma unroll
        for (int j = 0; j < NT; j++)
            of[c % AHEAD][j] = live ? krn_load16((const uint8_t *)x[j] + 2 * (uint32_t)k + 2 * ahead)
                                    : make_uint4(0, 0, 0, 0);
    }
};

/* acc += one step of the first TILES tiles: the lane's codes and scales of its rows, and its columns of x, from k on. Takes
 * x of the step after from column next on. */
template <krn_wformat F, int MT, int TILES, int NT, bool LARGE>
__device__ __forceinline__ void skinny_step(const uint32_t code[2 * MT][4], const uint32_t scale[2 * MT],
                                            skinny_x<F, MT, NT> &own, const bf16 *const x[NT], int32_t k, int32_t next,
                                            int32_t end, float acc[MT][NT][4])
{
    constexpr int PIECES = skinny_x<F, MT, NT>::PIECES, AHEAD = skinny_x<F, MT, NT>::AHEAD;
#pragma unroll
    for (int c = 0; c < PIECES; c++) {
        uint32_t pair[NT][4];
#pragma unroll
        for (int j = 0; j < NT; j++) skinny_pairs<F>(own.of[c % AHEAD][j], pair[j]);
        if (c + AHEAD < PIECES) own.load(x, k, end, c + AHEAD);
        else own.load(x, next, end, c + AHEAD - PIECES);
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            uint32_t w[2][4]; /* rows g and g + 8 */
#pragma unroll
            for (int r = 0; r < 2; r++) {
                skinny_factor<F, LARGE> factor;
                factor.of(scale[2 * i + r], F == KRN_W_FP4 ? c : 0);
                skinny_decode<F, LARGE>(code[2 * i + r], c, factor, w[r]);
            }
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
                for (int j = 0; j < NT; j++)
                    skinny_mma(acc[i][j], w[0][2 * h], w[1][2 * h], w[0][2 * h + 1], w[1][2 * h + 1], pair[j][2 * h],
                               pair[j][2 * h + 1]);
        }
    }
}

/* Sums one slice of rows [row0, end), which come next in the stream, 16 MT at a time, and calls done(first row, acc) after
 * each: acc as skinny_keep takes it. k_end: w.k, a multiple of 8. x[j] is the lane's row of x in tile j, row 8j + g,
 * 16-byte aligned; any readable row where there is none. */
template <krn_wformat F, int MT, int NT, typename STREAM, typename DONE>
__device__ __forceinline__ void skinny_walk(STREAM &stream, int32_t row0, int32_t end, int32_t slice, int32_t slices,
                                            int32_t k_end, const bf16 *const x[NT], DONE done)
{
    const int32_t steps = skinny_steps(F, k_end), lane_k = skinny_column(F, threadIdx.x % 4, 0);
    const int32_t first_k = slice * skinny_step_k(F) + lane_k;
    skinny_x<F, MT, NT> own;
#pragma unroll
    for (int c = 0; c < skinny_x<F, MT, NT>::AHEAD; c++) own.load(x, first_k, k_end, c);
    for (; row0 < end; row0 += MT * SKINNY_M) {
        const bool half = MT > 1 && end - row0 <= MT * SKINNY_M / 2;
        float acc[MT][NT][4] = {};
#pragma unroll 1
        for (int32_t step = slice; step < steps; step += slices) {
            uint32_t code[2 * MT][4], scale[2 * MT];
            const bool large = stream.take(step, code, scale);
            const int32_t k = step * skinny_step_k(F) + lane_k;
            const int32_t next = step + slices < steps ? k + slices * skinny_step_k(F) : first_k;
            if (half) /* the rest of a run */
                skinny_step<F, MT, (MT + 1) / 2, NT, skinny_scaled(F)>(code, scale, own, x, k, next, k_end, acc);
            else if (skinny_scaled(F) && large)
                skinny_step<F, MT, MT, NT, true>(code, scale, own, x, k, next, k_end, acc);
            else
                skinny_step<F, MT, MT, NT, false>(code, scale, own, x, k, next, k_end, acc);
        }
        done(row0, acc);
    }
}

/* ---- a team's sums ---- */

/* How a launch is divided: every team gets each = tiles / teams neighbours, the first more = tiles % teams one more. */
struct skinny_split {
    int32_t slices, log2_slices; /* slices: a power of two, at most the block's warps */

    __host__ __device__ explicit skinny_split(int32_t slices_) : slices(slices_), log2_slices(0)
    {
        while (1 << log2_slices < slices) log2_slices++;
    }
    __host__ __device__ int32_t teams(int mt) const { return skinny_warps(mt) >> log2_slices; } /* of a block */
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
        sums = shared + skinny_warps(mt) * skinny_ring_bytes(mt) + (warp - slice) * skinny_sums_bytes(mt, nt);
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

/* A team's work on rows [row0, end), which come next in its warps' streams: times n_x rows of x, n_x <= 8 NT; store(row of
 * x, row of w, sum) is called once for each product. */
template <krn_wformat F, int MT, int NT, typename STREAM, typename STORE>
__device__ __forceinline__ void skinny_product(const skinny_team &team, STREAM &stream, int32_t row0, int32_t end,
                                               int32_t k, const bf16 *const x[NT], int32_t n_x, STORE store)
{
    skinny_walk<F, MT, NT>(stream, row0, end, team.slice, team.slices, k, x,
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
    bool large; /* room for MT above 1, and for the longer ring: sm_90 */

    /* Of a block: the rings of all warps, then their sums. */
    int32_t shared_bytes(int mt, int nt) const
    {
        return skinny_warps(mt) * (skinny_ring_bytes(mt, large) + skinny_sums_bytes(mt, nt));
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
