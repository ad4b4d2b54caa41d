/* Inputs of the PLE block (kernels/ple.h) in one block of memory, so that a test can copy it to a card at once: hashed, and
 * of several kinds that a kernel could take wrong. */
#ifndef TESTS_KERNELS_PLE_CASE_H
#define TESTS_KERNELS_PLE_CASE_H

#include "kernels/ple.h"

#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>

typedef enum ple_kind {
    PLE_PLAIN,
    PLE_NO_ANSWER, /* keys of +0 and -0: a = 0 exactly */
    PLE_FAINT,     /* |a| below 1e-6, of both signs */
    PLE_REPEATED,  /* all picks of a token are one row */
    PLE_STALE,     /* half the rows of the plan lie outside of ye */
    PLE_DENORMAL,
    PLE_HUGE,      /* sums of squares beyond f32 */
    PLE_WILD,      /* NaN and infinities here and there */
    PLE_ZEROS,     /* of both signs */
    PLE_KINDS
} ple_kind;

typedef struct ple_case {
    krn_ple_shape s;
    int32_t top_k, p_tokent; /* ye has top_k * tokens rows */
} ple_case;

enum { PLE_RESID, PLE_YE, PLE_YSH, PLE_GS, PLE_G, PLE_KEY, PLE_VALUE, PLE_W_QUERY, PLE_W_CONV, PLE_PLAN, PLE_INPUTS };

/* Where each begins in the block, in elements of four bytes; at[PLE_INPUTS]: the block's size. */
static inline void ple_layout(const ple_case *c, size_t at[PLE_INPUTS + 1])
{
    const size_t tokens = (size_t)c->s.tokens, hc = (size_t)c->s.hc, n = (size_t)c->s.n, picks = (size_t)c->top_k * tokens;
    const size_t size[PLE_INPUTS] = { tokens * hc * n, picks * n,  tokens * n, tokens, tokens * hc,
                                      tokens * hc * n, tokens * n, hc * n,     hc * n, (size_t)c->p_tokent + picks };
    at[0] = 0;
    for (int i = 0; i < PLE_INPUTS; i++) at[i + 1] = at[i] + size[i];
}

static inline krn_ple_combine ple_combine_of(const ple_case *c, const float *block)
{
    size_t at[PLE_INPUTS + 1];
    ple_layout(c, at);
    return (krn_ple_combine){ block + at[PLE_YE], (const int32_t *)(const void *)(block + at[PLE_PLAN]),
                              block + at[PLE_YSH], block + at[PLE_GS], block + at[PLE_G], c->top_k,
                              c->top_k * c->s.tokens, c->p_tokent };
}

static inline krn_ple_query ple_query_of(const ple_case *c, const float *block)
{
    size_t at[PLE_INPUTS + 1];
    ple_layout(c, at);
    return (krn_ple_query){ block + at[PLE_KEY], block + at[PLE_VALUE], block + at[PLE_W_QUERY], block + at[PLE_W_CONV] };
}

static inline uint32_t ple_hash(uint32_t seed, uint32_t i)
{
    uint32_t h = i * 0x9e3779b9u ^ seed * 0x85ebca6bu;
    h = (h ^ h >> 16) * 0x7feb352du;
    h = (h ^ h >> 15) * 0x846ca68bu;
    return h ^ h >> 16;
}

/* Uniform in [-1, 1), exact in f32. */
static inline float ple_unit(uint32_t seed, uint32_t i)
{
    return (float)(int32_t)(ple_hash(seed, i) >> 8) * 0x1p-23f - 1.0f;
}

static inline void ple_fill_plan(const ple_case *c, int32_t *plan, uint32_t seed, ple_kind kind)
{
    const int32_t rows = c->top_k * c->s.tokens, outside[4] = { -1, rows, INT_MIN, INT_MAX };
    for (int32_t i = 0; i < c->p_tokent; i++) plan[i] = INT_MAX; /* not the table */
    plan += c->p_tokent;
    for (int32_t i = 0; i < rows; i++) {
        const uint32_t h = ple_hash(seed, (uint32_t)i);
        plan[i] = (int32_t)((kind == PLE_REPEATED ? ple_hash(seed, (uint32_t)(i / c->top_k)) : h) % (uint32_t)rows);
        if (kind == PLE_STALE && h >> 31) plan[i] = outside[h >> 29 & 3];
    }
}

/* block [size of the layout]: everything, overwritten. */
static inline void ple_fill(const ple_case *c, float *block, uint32_t seed, ple_kind kind)
{
    size_t at[PLE_INPUTS + 1];
    ple_layout(c, at);
    const float scale = kind == PLE_DENORMAL ? 0x1p-130f : kind == PLE_HUGE ? 0x1p100f : kind == PLE_ZEROS ? 0.0f : 1.5f;
    for (int array = 0; array < PLE_PLAN; array++) {
        float *v = block + at[array], by = scale;
        if (array == PLE_KEY) by = kind == PLE_NO_ANSWER ? 0.0f : kind == PLE_FAINT ? 1e-9f : 1.5f;
        for (size_t i = 0; i < at[array + 1] - at[array]; i++) {
            const float u = ple_unit(seed + 0x10000u * (uint32_t)array, (uint32_t)i);
            if (array == PLE_W_QUERY || array == PLE_W_CONV) v[i] = 1.0f + 0.2f * u;
            else if (array == PLE_GS || array == PLE_G) v[i] = 0.75f + 0.5f * u;
            else v[i] = u * by;
        }
    }
    for (uint32_t i = 0; i < 4 && kind == PLE_WILD; i++) {
        static const int ARRAY[4] = { PLE_RESID, PLE_KEY, PLE_VALUE, PLE_YE };
        const uint32_t h = ple_hash(seed ^ 0x5151u, i);
        const int array = ARRAY[h >> 8 & 3];
        block[at[array] + (h >> 10) % (at[array + 1] - at[array])] = h & 1 ? NAN : h & 2 ? INFINITY : -INFINITY;
    }
    ple_fill_plan(c, (int32_t *)(void *)(block + at[PLE_PLAN]), seed, kind);
}

#endif
