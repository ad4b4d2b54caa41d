/* An EXL3 tile to the operand of a tensor core, in registers (formats/exl3.h has the format).
 *
 * Of a tile's stream lane l of a warp wants the bits of its eight states: 16 + 7 K of them, that end before bit
 * 8 (l + 1) K. It takes the two or three words that hold them and shifts them down, so that the end is at the lowest bit:
 * from then on every state lies at the same place in all lanes, and is cut out with constant shifts.
 *
 * What a weight costs are integer instructions, not bytes: for eight of them 11 to 17 that cut states out, 8 products and,
 * for mul1, 8 sums of bytes. Beside them run 8 of half precision and 2 or 3 loads from shared memory. */
#ifndef KERNELS_EXL3_DECODE_CUH
#define KERNELS_EXL3_DECODE_CUH

#include "formats/exl3.h"
#include "kernels/bits.cuh"

enum { EXL3_WORDS_MAX = 3 };

/* Words that a lane reads of a tile. */
__host__ __device__ constexpr int exl3_words(int bits) { return bits <= 4 ? 2 : 3; }

/* What a lane knows beforehand. at: where its words are, in bytes: the one with the end, the one before it, circularly. */
template <int K> struct exl3_lane {
    uint32_t at[EXL3_WORDS_MAX];
    uint32_t shift;  /* bits of the last word after the end */
    uint32_t factor; /* mul1's, in the high half. Made of what the compiler cannot know: it would set it for every use */

    __device__ __forceinline__ explicit exl3_lane(uint32_t lane)
    {
        const uint32_t end = 8 * K * (lane + 1), last = (end - 1) / 32;
        shift = last * 32 + 32 - end;
#pragma unroll
        for (uint32_t i = 0; i < EXL3_WORDS_MAX; i++) at[i] = (last + 8 * K - i) % (8 * K) * 4;
        asm volatile("mov.u32 %0, %%nsmid;" : "=r"(factor));
        factor = 0x1eee0000 + (factor >> 31);
    }
};

/* The lane's bits, the last 32 in word 0. */
template <int K>
__device__ __forceinline__ void exl3_take(const uint8_t *tile, const exl3_lane<K> &lane, uint32_t window[EXL3_WORDS_MAX])
{
    uint32_t word[EXL3_WORDS_MAX + 1] = { 0 };
#pragma unroll
    for (int i = 0; i < exl3_words(K); i++) word[i] = *(const uint32_t *)(tile + lane.at[i]);
#pragma unroll
    for (int i = 0; i < EXL3_WORDS_MAX; i++)
        window[i] = i * 32 >= 16 + 7 * K ? 0 : K % 4 == 0 ? word[i] : __funnelshift_r(word[i], word[i + 1], lane.shift);
}

/* State j of the lane, which ends (7 - j) K bits before the end. Whole bytes fall out of a word in one instruction. */
template <int K, int J> __device__ __forceinline__ uint32_t exl3_state(const uint32_t window[EXL3_WORDS_MAX])
{
    constexpr int from = (7 - J) * K, word = from / 32, bit = from % 32;
    if (bit + 16 > 32) return __funnelshift_r(window[word], window[(word + 1) % EXL3_WORDS_MAX], bit) & 0xffff;
    if (bit == 16) return window[word] >> 16;
    return __byte_perm(window[word] >> bit % 8, 0, bit < 8 ? 0x4410 : 0x4421);
}

/* Two values, the first in the low half. */
template <int CODEBOOK> __device__ __forceinline__ uint32_t exl3_values(uint32_t s0, uint32_t s1, uint32_t factor_high)
{
    uint32_t y;
    if (CODEBOOK == FMT_EXL3_MUL1) {
        /* 1024 + the sum of the bytes, as the bits of an fp16. Each is made a value in its own half by a multiplication
         * that leaves the other half as it is: the integer unit, which all is waiting for, need not pack them. */
        const uint32_t b0 = __dp4a(s0 * 0x83dcd12du, 0x01010101u, 0x6400u);
        const uint32_t b1 = __dp4a(s1 * 0x83dcd12du, 0x01010101u, 0x6400u);
        asm("{\n\t.reg .b16 low, none;\n\t.reg .b32 twice, high;\n\t"
            "mov.b32 {low, none}, %2;\n\tmov.b32 twice, {low, low};\n\t"
            "fma.rn.f16x2 high, twice, %3, %5;\n\t"
            "mov.b32 {low, none}, %1;\n\tmov.b32 twice, {low, low};\n\t"
            "fma.rn.f16x2 %0, twice, %4, high;\n\t}"
            : "=r"(y)
            : "r"(b0), "r"(b1), "r"(factor_high), "r"(0x00001eeeu), "r"(0xc931c931u));
    } else {
        const uint32_t factor = CODEBOOK == FMT_EXL3_MCG ? 0xcbac1fedu : 89226354u;
        const uint32_t added = CODEBOOK == FMT_EXL3_MCG ? 0u : 64248484u;
        const uint32_t x0 = ((s0 * factor + added) & 0x8fff8fffu) ^ 0x3b603b60u;
        const uint32_t x1 = ((s1 * factor + added) & 0x8fff8fffu) ^ 0x3b603b60u;
        asm("{\n\t.reg .f16 a, b, c, d;\n\t"
            "mov.b32 {a, b}, %1;\n\tmov.b32 {c, d}, %2;\n\t"
            "add.rn.f16 a, a, b;\n\tadd.rn.f16 c, c, d;\n\t"
            "mov.b32 %0, {a, c};\n\t}"
            : "=r"(y)
            : "r"(x0), "r"(x1));
    }
    return y;
}

/* The eight weights of lane 4g + q as pairs of mma m16n8k16's first operand, outputs as its rows: pair[i] holds inputs 2q,
 * 2q + 1 (i even) or 2q + 8, 2q + 9 of output g (i below 2) or g + 8. */
template <int K, int CODEBOOK>
__device__ __forceinline__ void exl3_decode(const uint8_t *tile, const exl3_lane<K> &lane, uint32_t pair[4])
{
    uint32_t window[EXL3_WORDS_MAX];
    exl3_take<K>(tile, lane, window);
    pair[0] = exl3_values<CODEBOOK>(exl3_state<K, 0>(window), exl3_state<K, 1>(window), lane.factor);
    pair[1] = exl3_values<CODEBOOK>(exl3_state<K, 2>(window), exl3_state<K, 3>(window), lane.factor);
    pair[2] = exl3_values<CODEBOOK>(exl3_state<K, 4>(window), exl3_state<K, 5>(window), lane.factor);
    pair[3] = exl3_values<CODEBOOK>(exl3_state<K, 6>(window), exl3_state<K, 7>(window), lane.factor);
}

#endif
