/* Counter-based random numbers: a value is a function of (seed, name, index), so that any part of a synthetic tensor
 * can be made alone, by any thread, on any rank. */
#ifndef ENGINE_NOISE_H
#define ENGINE_NOISE_H

#include <stdint.h>

enum { ENG_NOISE_NORMALS = 1 << 16 };

/* Finaliser of splitmix64: every input bit reaches every output bit. */
static inline uint64_t eng_noise_mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* The stream of one tensor. */
uint64_t eng_noise_key(uint64_t seed, const char *name);
/* 64 independent bits for index i of a stream. */
static inline uint64_t eng_noise_bits(uint64_t key, uint64_t i)
{
    return eng_noise_mix(key + i * 0x9e3779b97f4a7c15u);
}

/* Standard normal quantiles at (i + 1/2) / 65536, ascending, -4.3 to 4.3. Made on first use, from any thread; static. */
const float *eng_noise_normals(void);
/* A standard normal out of 32 bits: two table entries, so that tails reach 6. normals as eng_noise_normals returns it. */
static inline float eng_noise_normal(const float *normals, uint64_t bits)
{
    return (normals[bits & 0xffff] + normals[bits >> 16 & 0xffff]) * 0.70710678f;
}
/* Uniform in [0, 1), 53 bits. */
static inline double eng_noise_uniform(uint64_t bits) { return (double)(bits >> 11) * 0x1p-53; }

#endif
