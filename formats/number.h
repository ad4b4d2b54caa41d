/* The model's number formats, as bits. Everything here is exact or rounds once, to nearest, ties to even.
 *
 *   bf16  1-8-7    f32's upper half
 *   e4m3  1-4-3    bias 7, no infinity, 0x7f and 0xff are NaN, largest 448, smallest 2^-9
 *   e2m1  1-2-1    magnitudes 0 .5 1 1.5 2 3 4 6, no NaN
 *   e8m0  8        2^(b-127); 0 is 2^-127 (an f32 subnormal), 255 is NaN */
#ifndef FORMATS_NUMBER_H
#define FORMATS_NUMBER_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef uint16_t bf16;

enum {
    FMT_QDQ_GROUP = 32,       /* elements that share one E8M0 scale */
    FMT_E4M3_NAN = 0x7f,
    FMT_E8M0_NAN = 255,
    FMT_E8M0_BIAS = 127,
};

static inline uint32_t f32_bits(float v) { uint32_t u; memcpy(&u, &v, 4); return u; }
static inline float f32_from_bits(uint32_t u) { float v; memcpy(&v, &u, 4); return v; }
static inline float f32_from_bf16(bf16 b) { return f32_from_bits((uint32_t)b << 16); }

/* NaN becomes the quiet NaN 0x7fc0, whatever its sign and payload. */
static inline bf16 bf16_from_f32(float v)
{
    uint32_t u = f32_bits(v);
    if ((u & 0x7fffffff) > 0x7f800000) return 0x7fc0;
    return (bf16)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}
static inline float bf16_round(float v) { return f32_from_bf16(bf16_from_f32(v)); }

extern const float FMT_E4M3_VALUE[256]; /* NaN at 0x7f, 0xff */
extern const float FMT_E2M1_VALUE[16];
float f32_from_e8m0(uint8_t b); /* exact; NaN for 255 */

/* Nearest e4m3 code, ties to even; |v| above 448 saturates to 448 (clamp first, as act_qdq does); NaN to 0x7f. */
uint8_t e4m3_from_f32(float v);
/* Nearest e2m1 code, ties to even code; |v| above 6 saturates; NaN to 0. */
uint8_t e2m1_from_f32(float v);

/* The E8M0 byte of act_qdq's scale for a group whose largest magnitude is amax (>= 0, not NaN):
 * t = f32(max(amax, 1e-4) * f32(1/448)), then the exponent of t, plus 1 if its mantissa is not 0. By bits: log2 and pow
 * would be off by one next to the powers of two. */
uint8_t fmt_qdq_scale(float amax);
/* One group of 32: codes and scale byte from bf16 values. NaN in the group gives a NaN code for that element;
 * amax ignores NaN (the largest finite or infinite magnitude counts). */
void fmt_qdq_encode(const bf16 x[FMT_QDQ_GROUP], uint8_t codes[FMT_QDQ_GROUP], uint8_t *scale);
/* code * scale as bf16: exact for every code and every scale that act_qdq can make, but infinite from 2^128 on (the last
 * values of bf16's range round up to it). */
bf16 fmt_qdq_decode(uint8_t code, uint8_t scale);

/* Distance in representable values of the dtype's own grid, sign-magnitude order, -0 and +0 at the same place.
 * NaN against anything: UINT64_MAX; NaN against NaN: 0 only if the bits agree. */
uint64_t fmt_ulp_bf16(bf16 a, bf16 b);
uint64_t fmt_ulp_f32(float a, float b);

#endif
