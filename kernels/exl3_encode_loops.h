/* The inner loop of krn_exl3_encode_tiles_ref, one per instruction set: kernels/exl3_encode_loops.c is compiled once for
 * each. Internal to kernels/. */
#ifndef KERNELS_EXL3_ENCODE_LOOPS_H
#define KERNELS_EXL3_ENCODE_LOOPS_H

#include <stdint.h>

/* One position: R1 to R3 and the least. values [65536] in the order of krn_exl3_encode_order, cost and next
 * [2^(16 - bits)], from [krn_exl3_mark_bytes]: m of every node. */
typedef void krn_exl3_step_fn(int32_t bits, const float *values, float w, const float *cost, float *next, uint8_t *from);

extern krn_exl3_step_fn krn_exl3_step_scalar;
extern krn_exl3_step_fn krn_exl3_step_avx2, krn_exl3_step_avx512; /* x86-64 only */

/* Where the loop leaves m of a node: a byte each; at 1 and 2 bits a byte for the 2^bits nodes that share their
 * predecessors. What 256 positions leave is then four times smaller and stays in a cache. */
static inline int32_t krn_exl3_mark_bytes(int32_t bits) { return 1 << (16 - (bits <= 2 ? 2 * bits : bits)); }
static inline int32_t krn_exl3_mark(int32_t bits, const uint8_t *from, int32_t node)
{
    if (bits > 2) return from[node];
    const int32_t ways = 1 << bits;
    return from[node >> bits] >> (bits * (node & (ways - 1))) & (ways - 1);
}

/* How the loop walks: groups of V vectors of 16 nodes, V = 2, 4, 8 for bits = 1, 2, 3, else 4; in a group over m; for each
 * over the vectors. The values lie in that order, so that they are read straight through. Up to 3 bits lane i of vector j
 * is node first + 2^bits i + j, so that the costs of its predecessors are neighbours too; else first + 16 j + i. */
static inline int32_t krn_exl3_vectors(int32_t bits) { return bits <= 3 ? 1 << bits : 4; }
static inline void krn_exl3_encode_order(int32_t bits, const float *table, float *values)
{
    const int32_t n = 1 << (16 - bits), v = krn_exl3_vectors(bits);
    for (int32_t first = 0; first < n; first += 16 * v)
        for (int32_t m = 0; m < 1 << bits; m++)
            for (int32_t j = 0; j < v; j++)
                for (int32_t i = 0; i < 16; i++)
                    *values++ = table[m * n + first + (bits <= 3 ? (i << bits) + j : 16 * j + i)];
}

#endif
