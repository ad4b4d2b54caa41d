/* EXL3: trellis-coded weights, decoded bit for bit.
 *
 * A linear is stored as .trellis I16 [in/16, out/16, 16 K], .suh F16 [in], .svh F16 [out] and at most one codebook marker
 * (.mcg, .mul1); W is oriented [in, out]:  y = ((((x * suh) H) Wq) H) * svh,  H = 128-point Sylvester Hadamard / sqrt(128)
 * on each aligned block of 128. in and out of a stored tensor are multiples of 128.
 *
 * A tile is 16 (in) x 16 (out) weights in 256 K bits, one circular stream: bit b is bit 31 - b % 32 of the b / 32-th
 * little-endian 32-bit word. State p, 0 <= p < 256, is the 16 stream bits that end before bit (p + 1) K; the codebook makes
 * an fp16 of it. Weight p = 8 l + j lies at row 2 (l % 4) + (j & 1) + 8 (j >> 1 & 1), column l / 4 + 8 (j >> 2): lane l of
 * a warp holds its own fragments of an mma m16n8k16. Every bit pattern is a valid tile. */
#ifndef FORMATS_EXL3_H
#define FORMATS_EXL3_H

#include <stdint.h>

#include "base/err.h"
#include "formats/number.h"

typedef uint16_t fp16; /* IEEE binary16, as bits */

typedef enum fmt_exl3_codebook { FMT_EXL3_3INST, FMT_EXL3_MCG, FMT_EXL3_MUL1, FMT_EXL3_CODEBOOKS } fmt_exl3_codebook;

enum {
    FMT_EXL3_BLOCK = 128,     /* features that share a Hadamard transform */
    FMT_EXL3_TILE = 16,
    FMT_EXL3_TILE_WEIGHTS = 256,
    FMT_EXL3_BITS_MAX = 8,
    FMT_EXL3_STATES = 1 << 16,
};
static inline int32_t fmt_exl3_tile_bytes(int32_t bits) { return 32 * bits; }

/* Exact. Without branches, as fp16_from_f32: loops over them become vectors. */
static inline float f32_from_fp16(fp16 h)
{
    const uint32_t magnitude = h & 0x7fff, sign = (uint32_t)(h & 0x8000) << 16;
    const uint32_t normal = (magnitude << 13) + (112u << 23), special = (magnitude << 13) + (224u << 23);
    const uint32_t subnormal = f32_bits((float)(int32_t)magnitude * 0x1p-24f);
    const uint32_t finite = magnitude < 0x0400 ? subnormal : normal;
    return f32_from_bits(sign | (magnitude >= 0x7c00 ? special : finite));
}
/* Nearest even, subnormals kept; NaN becomes 0x7e00. */
static inline fp16 fp16_from_f32(float v)
{
    const uint32_t bits = f32_bits(v), magnitude = bits & 0x7fffffff, sign = bits >> 16 & 0x8000;
    const uint32_t normal = ((magnitude + 0xfff + (magnitude >> 13 & 1)) >> 13) - (112u << 10);
    /* Below 2^-14 all codes are multiples of 2^-24, the last bit of 1/2: the sum rounds there. */
    const uint32_t subnormal = f32_bits(f32_from_bits(magnitude) + 0.5f) - f32_bits(0.5f);
    const uint32_t finite = magnitude < 0x38800000 ? subnormal : normal;
    const uint32_t number = sign | (magnitude >= 0x477ff000 ? 0x7c00 : finite); /* from 65520 on: infinity */
    return (fp16)(magnitude > 0x7f800000 ? 0x7e00 : number);
}
fp16 fp16_from_f64(double v); /* as fp16_from_f32: one rounding */

const char *fmt_exl3_codebook_name(fmt_exl3_codebook c); /* "3inst" "mcg" "mul1" */
bool fmt_exl3_codebook_parse(const char *text, fmt_exl3_codebook *out);
/* The constant that .mcg and .mul1 hold, as the I32 that is stored; 0 for 3inst, which has no marker. */
int32_t fmt_exl3_codebook_marker(fmt_exl3_codebook c);

/* One state's value. */
fp16 fmt_exl3_value(fmt_exl3_codebook c, uint16_t state);
/* All of them as f32, made once: [FMT_EXL3_STATES], valid for the life of the program. Thread-safe. */
const float *fmt_exl3_table(fmt_exl3_codebook c);

/* State of every position of a tile, in position order. tile: 16 * bits words as stored. 1 <= bits <= 8. */
void fmt_exl3_unpack(const uint16_t *tile, int32_t bits, uint16_t state[FMT_EXL3_TILE_WEIGHTS]);
/* The inverse: takes the low bits of every state. unpack(pack(s)) is s where each state continues the one before it, the
 * first the last. */
void fmt_exl3_pack(const uint16_t state[FMT_EXL3_TILE_WEIGHTS], int32_t bits, uint16_t *tile);
/* Row * 16 + column of position p inside its tile. */
int32_t fmt_exl3_place(int32_t p);

#endif
