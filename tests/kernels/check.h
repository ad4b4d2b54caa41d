/* What the tests of the kernels share: inputs that are a hash of (seed, index), comparisons that say where they fail. */
#ifndef TESTS_KERNELS_CHECK_H
#define TESTS_KERNELS_CHECK_H

#include "formats/number.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <inttypes.h>
#include <stdio.h>

/* Exact in f32, in [-1, 1). */
static inline float input_f32(uint64_t seed, int64_t i)
{
    uint64_t z = seed * 0x9e3779b97f4a7c15u + (uint64_t)i + 1;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return (float)((int64_t)(z >> 40) - (1 << 23)) / (float)(1 << 23);
}

static inline void fill_f32(float *v, int64_t n, uint64_t seed, float scale)
{
    for (int64_t i = 0; i < n; i++) v[i] = input_f32(seed, i) * scale;
}

static inline void fill_bf16(bf16 *v, int64_t n, uint64_t seed, float scale)
{
    for (int64_t i = 0; i < n; i++) v[i] = bf16_from_f32(input_f32(seed, i) * scale);
}

/* FNV-1a, 64 bits, of the bytes as they lie (little-endian machines). */
static inline uint64_t hash_bytes(const void *data, size_t bytes)
{
    const uint8_t *p = data;
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < bytes; i++) h = (h ^ p[i]) * 0x100000001b3u;
    return h;
}

/* Elements whose bits differ; the first one is printed. */
static inline int64_t differ_bf16(const char *label, const bf16 *got, const bf16 *want, int64_t n)
{
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) {
        if (got[i] == want[i]) continue;
        if (count++ == 0)
            print_error("%s[%" PRId64 "]: got 0x%04x (%.9g), want 0x%04x (%.9g)\n", label, i, got[i],
                        (double)f32_from_bf16(got[i]), want[i], (double)f32_from_bf16(want[i]));
    }
    if (count > 0) print_error("%s: %" PRId64 " of %" PRId64 " differ\n", label, count, n);
    return count;
}

static inline int64_t differ_f32(const char *label, const float *got, const float *want, int64_t n)
{
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) {
        if (f32_bits(got[i]) == f32_bits(want[i])) continue;
        if (count++ == 0)
            print_error("%s[%" PRId64 "]: got 0x%08x (%.9g), want 0x%08x (%.9g)\n", label, i, f32_bits(got[i]),
                        (double)got[i], f32_bits(want[i]), (double)want[i]);
    }
    if (count > 0) print_error("%s: %" PRId64 " of %" PRId64 " differ\n", label, count, n);
    return count;
}

/* Some point of [exact - delta, exact + delta] rounds to got. */
static inline bool explained_bf16(bf16 got, double exact, double delta)
{
    float v = f32_from_bf16(got);
    return v >= bf16_round((float)(exact - delta)) && v <= bf16_round((float)(exact + delta));
}

static inline bool explained_f32(float got, double exact, double delta)
{
    return got >= (float)(exact - delta) && got <= (float)(exact + delta);
}

#define assert_bf16_same(got, want, n) assert_int_equal(differ_bf16(#got, got, want, n), 0)
#define assert_f32_same(got, want, n) assert_int_equal(differ_f32(#got, got, want, n), 0)

static const double U = 0x1p-24; /* half an ulp of f32, relative */

#endif
