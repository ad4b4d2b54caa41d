#include "formats/number.h"

/* Codes of one exponent, mantissas 0..7, in units of the octave's step; sign is +1.0f or -1.0f. */
#define OCTAVE(sign, first, step)                                                                           \
    sign * ((first) + 0) * (step), sign * ((first) + 1) * (step), sign * ((first) + 2) * (step),            \
    sign * ((first) + 3) * (step), sign * ((first) + 4) * (step), sign * ((first) + 5) * (step),            \
    sign * ((first) + 6) * (step)
#define FULL(sign, first, step) OCTAVE(sign, first, step), sign * ((first) + 7) * (step)
/* Exponent 0 is subnormal with the step of exponent 1; code 7 of the last octave is NaN. */
#define HALF(sign)                                                                                          \
    FULL(sign, 0, 0x1p-9f), FULL(sign, 8, 0x1p-9f), FULL(sign, 8, 0x1p-8f), FULL(sign, 8, 0x1p-7f),         \
    FULL(sign, 8, 0x1p-6f), FULL(sign, 8, 0x1p-5f), FULL(sign, 8, 0x1p-4f), FULL(sign, 8, 0x1p-3f),         \
    FULL(sign, 8, 0x1p-2f), FULL(sign, 8, 0x1p-1f), FULL(sign, 8, 0x1p0f), FULL(sign, 8, 0x1p1f),           \
    FULL(sign, 8, 0x1p2f), FULL(sign, 8, 0x1p3f), FULL(sign, 8, 0x1p4f), OCTAVE(sign, 8, 0x1p5f), NAN

const float FMT_E4M3_VALUE[256] = { HALF(1.0f), HALF(-1.0f) };

const float FMT_E2M1_VALUE[16] = {
    0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f,
};

float f32_from_e8m0(uint8_t b)
{
    if (b == FMT_E8M0_NAN) return f32_from_bits(0x7fc00000);
    return f32_from_bits(b ? (uint32_t)b << 23 : 0x00400000);
}

uint8_t e4m3_from_f32(float v)
{
    uint32_t u = f32_bits(v), sign = u >> 24 & 0x80;
    float a = fabsf(v);
    if (a != a) return FMT_E4M3_NAN;
    if (a >= 448.0f) return (uint8_t)(sign | 0x7e);
    /* Below the smallest normal all codes are multiples of 2^-9, the last bit of 2^14: the sum rounds there, and what it
     * adds to the bits of 2^14 is the code. */
    if (a < 0x1p-6f) return (uint8_t)(sign | (f32_bits(a + 0x1p14f) - f32_bits(0x1p14f)));
    u = f32_bits(a);
    u += 0x7ffff + (u >> 20 & 1);
    return (uint8_t)(sign | ((u >> 20) - ((127 - 7) << 3)));
}

uint8_t e2m1_from_f32(float v)
{
    uint32_t u = f32_bits(v), sign = u >> 28 & 8;
    float a = fabsf(v);
    if (a != a) return 0;
    if (a >= 6.0f) return (uint8_t)(sign | 7);
    if (a < 1.0f) return (uint8_t)(sign | (f32_bits(a + 0x1p22f) - f32_bits(0x1p22f))); /* as above: steps of 1/2 */
    u = f32_bits(a);
    u += 0x1fffff + (u >> 22 & 1);
    return (uint8_t)(sign | ((u >> 22) - ((127 - 1) << 1)));
}

uint8_t fmt_qdq_scale(float amax)
{
    const float floor = 1e-4f, inverse = (float)(1.0 / 448.0);
    uint32_t t = f32_bits((amax > floor ? amax : floor) * inverse);
    uint32_t exponent = (t >> 23) + ((t & 0x7fffff) != 0); /* t is positive; an infinite amax gives 255, NaN */
    return (uint8_t)exponent;
}

void fmt_qdq_encode(const bf16 x[FMT_QDQ_GROUP], uint8_t codes[FMT_QDQ_GROUP], uint8_t *scale)
{
    /* Magnitudes of floats order as their bits do. */
    uint32_t amax = 0;
    for (int i = 0; i < FMT_QDQ_GROUP; i++) {
        uint32_t mag = x[i] & 0x7fff;
        if (mag <= 0x7f80 && mag > amax) amax = mag;
    }
    *scale = fmt_qdq_scale(f32_from_bf16((bf16)amax));
    /* The scale lies in 2^-22..2^120, so its inverse is exact, and a product with it is x / scale. */
    float inverse = *scale == FMT_E8M0_NAN ? NAN : f32_from_e8m0((uint8_t)(2 * FMT_E8M0_BIAS - *scale));
    for (int i = 0; i < FMT_QDQ_GROUP; i++) codes[i] = e4m3_from_f32(f32_from_bf16(x[i]) * inverse);
}

bf16 fmt_qdq_decode(uint8_t code, uint8_t scale)
{
    return bf16_from_f32(FMT_E4M3_VALUE[code] * f32_from_e8m0(scale));
}

/* mag: bits without the sign. Places of the grid counted from zero, negative ones below it. */
static uint64_t ulp_distance(uint32_t mag_a, bool neg_a, uint32_t mag_b, bool neg_b)
{
    int64_t d = (neg_a ? -(int64_t)mag_a : (int64_t)mag_a) - (neg_b ? -(int64_t)mag_b : (int64_t)mag_b);
    return (uint64_t)(d < 0 ? -d : d);
}

uint64_t fmt_ulp_bf16(bf16 a, bf16 b)
{
    if ((a & 0x7fff) > 0x7f80 || (b & 0x7fff) > 0x7f80) return a == b ? 0 : UINT64_MAX;
    return ulp_distance(a & 0x7fff, a >> 15, b & 0x7fff, b >> 15);
}

uint64_t fmt_ulp_f32(float a, float b)
{
    uint32_t u = f32_bits(a), v = f32_bits(b);
    if (a != a || b != b) return u == v ? 0 : UINT64_MAX;
    return ulp_distance(u & 0x7fffffff, u >> 31, v & 0x7fffffff, v >> 31);
}
