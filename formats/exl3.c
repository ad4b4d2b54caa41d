#include "formats/exl3.h"

#include "base/mem.h"

#include <pthread.h>

fp16 fp16_from_f64(double v)
{
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    const uint64_t magnitude = bits & (UINT64_MAX >> 1);
    const uint32_t sign = (uint32_t)(bits >> 48 & 0x8000);
    if (magnitude > UINT64_C(0x7ff) << 52) return 0x7e00;
    if (fabs(v) >= 65520) return (fp16)(sign | 0x7c00);
    if (fabs(v) < 0x1p-14) { /* multiples of 2^-24, the last bit of 2^28 */
        const double sum = fabs(v) + 0x1p28, from = 0x1p28;
        uint64_t a, b;
        memcpy(&a, &sum, sizeof a);
        memcpy(&b, &from, sizeof b);
        return (fp16)(sign | (uint32_t)(a - b));
    }
    const uint64_t half = (UINT64_C(1) << 41) - 1 + (magnitude >> 42 & 1);
    return (fp16)(sign | (uint32_t)(((magnitude + half) >> 42) - (UINT64_C(1008) << 10)));
}

/* ---- codebooks ---- */

static const struct { const char *name; uint32_t multiplier, add; } CODEBOOK[FMT_EXL3_CODEBOOKS] = {
    [FMT_EXL3_3INST] = { "3inst", 89226354, 64248484 },
    [FMT_EXL3_MCG] = { "mcg", 0xcbac1fed, 0 },
    [FMT_EXL3_MUL1] = { "mul1", 0x83dcd12d, 0 },
};

const char *fmt_exl3_codebook_name(fmt_exl3_codebook c)
{
    return (unsigned int)c < FMT_EXL3_CODEBOOKS ? CODEBOOK[c].name : "unknown";
}

bool fmt_exl3_codebook_parse(const char *text, fmt_exl3_codebook *out)
{
    for (int c = 0; c < FMT_EXL3_CODEBOOKS; c++)
        if (strcmp(text, CODEBOOK[c].name) == 0) {
            *out = (fmt_exl3_codebook)c;
            return true;
        }
    return false;
}

int32_t fmt_exl3_codebook_marker(fmt_exl3_codebook c)
{
    return c == FMT_EXL3_3INST ? 0 : (int32_t)CODEBOOK[c].multiplier;
}

fp16 fmt_exl3_value(fmt_exl3_codebook c, uint16_t state)
{
    const uint32_t x = state * CODEBOOK[c].multiplier + CODEBOOK[c].add;
    if (c == FMT_EXL3_MUL1) {
        /* One fused multiply-add of fp16: product and sum are exact in double. */
        const uint32_t bytes = (x & 0xff) + (x >> 8 & 0xff) + (x >> 16 & 0xff) + (x >> 24);
        return fp16_from_f64((double)(1024 + bytes) * (double)f32_from_fp16(0x1eee) + (double)f32_from_fp16(0xc931));
    }
    /* Two halves of 2^-3 to 2 in size: their sum is exact in f32. */
    const uint32_t halves = (x & 0x8fff8fff) ^ 0x3b603b60;
    return fp16_from_f32(f32_from_fp16((fp16)halves) + f32_from_fp16((fp16)(halves >> 16)));
}

static float table[FMT_EXL3_CODEBOOKS][FMT_EXL3_STATES];
static pthread_once_t table_once = PTHREAD_ONCE_INIT;

static void table_fill(void)
{
    for (int c = 0; c < FMT_EXL3_CODEBOOKS; c++)
        for (int32_t s = 0; s < FMT_EXL3_STATES; s++)
            table[c][s] = f32_from_fp16(fmt_exl3_value((fmt_exl3_codebook)c, (uint16_t)s));
}

const float *fmt_exl3_table(fmt_exl3_codebook c)
{
    pthread_once(&table_once, table_fill);
    return table[c];
}

/* ---- tiles ---- */

/* The i-th 16 bits of a tile's stream: of each pair of words the second comes first. */
static uint32_t stream_word(const uint16_t *tile, int32_t i) { return tile[i ^ 1]; }

void fmt_exl3_unpack(const uint16_t *tile, int32_t bits, uint16_t state[FMT_EXL3_TILE_WEIGHTS])
{
    const int32_t words = 16 * bits;
    for (int32_t p = 0; p < FMT_EXL3_TILE_WEIGHTS; p++) {
        const int32_t end = (p + 1) * bits, word = (end / 16 + words - 1) % words, next = (word + 1) % words;
        const uint32_t both = stream_word(tile, word) << 16 | stream_word(tile, next);
        state[p] = (uint16_t)(both >> (16 - end % 16));
    }
}

void fmt_exl3_pack(const uint16_t state[FMT_EXL3_TILE_WEIGHTS], int32_t bits, uint16_t *tile)
{
    uint32_t stream = 0; /* its last n bits are not stored yet */
    int32_t n = 0, word = 0;
    for (int32_t p = 0; p < FMT_EXL3_TILE_WEIGHTS; p++) {
        stream = stream << bits | (state[p] & ((1u << bits) - 1));
        n += bits;
        if (n < 16) continue;
        n -= 16;
        tile[word++ ^ 1] = (uint16_t)(stream >> n);
    }
}

int32_t fmt_exl3_place(int32_t p)
{
    const int32_t lane = p / 8, j = p % 8, row = 2 * (lane % 4) + (j & 1) + 8 * (j >> 1 & 1);
    const int32_t column = lane / 4 + 8 * (j >> 2);
    return row * FMT_EXL3_TILE + column;
}
