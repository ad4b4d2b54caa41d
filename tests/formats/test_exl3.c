/* EXL3's numbers, codebooks and tiles. The vectors come from a decoder that was checked against exllamav3's own index
 * arithmetic; a hash is FNV-1a, 64 bits, of little-endian bytes. */
#include "formats/exl3.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

static uint64_t hash_u16(const uint16_t *v, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < 2 * n; i++) h = (h ^ (uint8_t)(v[i / 2] >> (i % 2 * 8))) * 0x100000001b3u;
    return h;
}

static uint32_t random_next(uint32_t *x) { return *x = *x * 1664525u + 1013904223u; }

/* ---- fp16 ---- */

static double fp16_value(uint32_t h) /* by definition; finite */
{
    const int exponent = h >> 10 & 31, fraction = h & 0x3ff;
    const double size = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
    return h & 0x8000 ? -size : size;
}

static void every_fp16_is_its_value_and_comes_back(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        const float v = f32_from_fp16((fp16)h);
        if ((h & 0x7fff) > 0x7c00) {
            assert_true(isnan(v));
            assert_int_equal(fp16_from_f32(v), 0x7e00);
            assert_int_equal(fp16_from_f64((double)v), 0x7e00);
            continue;
        }
        if ((h & 0x7fff) == 0x7c00) assert_true(isinf(v) && (v < 0) == (h > 0x7fff));
        else assert_true((double)v == fp16_value(h) && !signbit(v) == (h < 0x8000));
        assert_int_equal(fp16_from_f32(v), h);
        assert_int_equal(fp16_from_f64((double)v), h);
    }
}

static void values_between_two_fp16_round_to_the_nearer_and_ties_to_even(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x7c00; h++) {
        const double below = fp16_value(h), above = h == 0x7bff ? 65536 : fp16_value(h + 1), tie = (below + above) / 2;
        const uint32_t even = h & 1 ? h + 1 : h;
        for (uint32_t sign = 0; sign <= 0x8000; sign += 0x8000) {
            const double s = sign ? -1 : 1;
            assert_int_equal(fp16_from_f64(s * tie), sign | even);
            assert_int_equal(fp16_from_f64(s * nextafter(tie, 0)), sign | h);
            assert_int_equal(fp16_from_f64(s * nextafter(tie, 1e9)), sign | (h + 1));
            assert_int_equal(fp16_from_f32((float)(s * tie)), sign | even);
            assert_int_equal(fp16_from_f32((float)s * nextafterf((float)tie, 0)), sign | h);
            assert_int_equal(fp16_from_f32((float)s * nextafterf((float)tie, 1e9f)), sign | (h + 1));
        }
    }
    assert_int_equal(fp16_from_f32(1e30f), 0x7c00);
    assert_int_equal(fp16_from_f64(-1e300), 0xfc00);
    assert_int_equal(fp16_from_f32(0x1p-140f), 0);
    assert_int_equal(fp16_from_f64(-0x1p-1060), 0x8000);
}

/* ---- codebooks ---- */

static void every_state_of_every_codebook_has_the_known_value(void **state)
{
    (void)state;
    static const uint64_t HASH[] = { 0xfad431e7e9266898u, 0x7bb36b05a3b885a7u, 0x55e1c748ed9f0cd7u };
    static const uint16_t AT[] = { 0x0000, 0x0001, 0x0002, 0x0003, 0x1234, 0x7fff, 0x8000, 0xabcd, 0xffff };
    static const fp16 VALUE[][9] = {
        { 0x3a25, 0xbb5b, 0x3b74, 0x34b6, 0xc066, 0xba96, 0xb7f8, 0xb98e, 0xb110 },
        { 0x3f60, 0x304e, 0xba13, 0x3ab8, 0x3e0f, 0x4172, 0xb915, 0x35e7, 0x3acd },
        { 0xc2e8, 0x3921, 0xb72d, 0x3239, 0xb89e, 0x3fca, 0xbaf2, 0xbd42, 0xb936 },
    };
    static uint16_t all[FMT_EXL3_STATES];
    for (int c = 0; c < FMT_EXL3_CODEBOOKS; c++) {
        const float *table = fmt_exl3_table((fmt_exl3_codebook)c);
        for (int32_t s = 0; s < FMT_EXL3_STATES; s++) {
            all[s] = fmt_exl3_value((fmt_exl3_codebook)c, (uint16_t)s);
            assert_true(f32_bits(table[s]) == f32_bits(f32_from_fp16(all[s])));
        }
        for (int i = 0; i < 9; i++) assert_int_equal(all[AT[i]], VALUE[c][i]);
        assert_true(hash_u16(all, FMT_EXL3_STATES) == HASH[c]);
    }
}

static void codebooks_have_names_and_markers(void **state)
{
    (void)state;
    fmt_exl3_codebook c = FMT_EXL3_CODEBOOKS;
    for (int i = 0; i < FMT_EXL3_CODEBOOKS; i++) {
        assert_true(fmt_exl3_codebook_parse(fmt_exl3_codebook_name((fmt_exl3_codebook)i), &c));
        assert_int_equal(c, i);
    }
    assert_false(fmt_exl3_codebook_parse("mul2", &c));
    assert_string_equal(fmt_exl3_codebook_name(FMT_EXL3_CODEBOOKS), "unknown");
    assert_int_equal(fmt_exl3_codebook_marker(FMT_EXL3_3INST), 0);
    assert_int_equal(fmt_exl3_codebook_marker(FMT_EXL3_MCG), -877912083);
    assert_int_equal(fmt_exl3_codebook_marker(FMT_EXL3_MUL1), -2082680531);
}

/* ---- tiles ---- */

typedef struct vector {
    uint16_t word[2], value[4]; /* the tile's first words; decoded (0, 0), (0, 1), (1, 0), (15, 15) */
    uint64_t hash;              /* of all 256, row by row */
} vector;
static const vector VECTOR[FMT_EXL3_CODEBOOKS][FMT_EXL3_BITS_MAX] = {
    {
        { { 0x755c, 0xe468 }, { 0xbbbc, 0x3e9d, 0x4074, 0x38ea }, 0x2415f42bd41257fc },
        { { 0x7575, 0xfba1 }, { 0xbc71, 0x3f0d, 0xbe8e, 0x20a0 }, 0x942e61eef84197b0 },
        { { 0x758f, 0x12d9 }, { 0xb242, 0xbcb2, 0x3f1a, 0xc015 }, 0xbcb6449d2991fa32 },
        { { 0x75a8, 0x2a11 }, { 0x404f, 0x3d4f, 0xbeeb, 0xbfe0 }, 0xd8dd6a95032cf834 },
        { { 0x75c2, 0x414a }, { 0x343c, 0x4058, 0x4129, 0xb3a0 }, 0x82a273e8ee10e32a },
        { { 0x75db, 0x5882 }, { 0xbdb4, 0x30f4, 0xc02e, 0x3d22 }, 0xace79aa96144e25e },
        { { 0x75f4, 0x6fba }, { 0x3fc8, 0x351a, 0xbadb, 0xbc80 }, 0x2b2342827ce2a718 },
        { { 0x760e, 0x86f3 }, { 0x3ffe, 0x3475, 0x3624, 0xab10 }, 0xcf39cee2d0bebdd8 },
    },
    {
        { { 0x755c, 0xe468 }, { 0x3d8a, 0xc014, 0xb4df, 0xbd87 }, 0x4ca145f38fce815e },
        { { 0x7575, 0xfba1 }, { 0xb5de, 0xb983, 0xbc41, 0xb4ec }, 0x5fd3ce4cd5440e81 },
        { { 0x758f, 0x12d9 }, { 0xb891, 0xbd90, 0x31a0, 0x3164 }, 0x79339698e5c57df2 },
        { { 0x75a8, 0x2a11 }, { 0xb83b, 0x3e57, 0x3b6f, 0x409c }, 0x3a2c7447f3bb6936 },
        { { 0x75c2, 0x414a }, { 0xb692, 0x312c, 0x36c6, 0x4140 }, 0xf4efcf0bc156c3e3 },
        { { 0x75db, 0x5882 }, { 0xbbd7, 0xba04, 0x4020, 0x35c6 }, 0x967aa97076d38667 },
        { { 0x75f4, 0x6fba }, { 0x28b8, 0xbd20, 0x3237, 0x3a2c }, 0xec953215131272b2 },
        { { 0x760e, 0x86f3 }, { 0xbde0, 0x4276, 0x3862, 0xbb8f }, 0x07a212135b030498 },
    },
    {
        { { 0x755c, 0xe468 }, { 0xb51e, 0x38dc, 0x3ef3, 0xb7b7 }, 0x4384230896af1131 },
        { { 0x7575, 0xfba1 }, { 0xbaf2, 0x3124, 0xbe20, 0x3f8c }, 0x43d16cf1c69a0403 },
        { { 0x758f, 0x12d9 }, { 0x3d31, 0xb7d3, 0x3aa5, 0xb7d3 }, 0x06654f15bf5b8526 },
        { { 0x75a8, 0x2a11 }, { 0x3a7b, 0x2df2, 0xbd2d, 0x34bc }, 0xeec44ffcd283d6bc },
        { { 0x75c2, 0x414a }, { 0xc091, 0x39c7, 0x3c53, 0xb66b }, 0xea2894ab5e01e704 },
        { { 0x75db, 0x5882 }, { 0x1d12, 0x3562, 0x38e9, 0x3d92 }, 0x38f2c6ed3b7676ae },
        { { 0x75f4, 0x6fba }, { 0xbef7, 0xbd12, 0x3b4b, 0xab2a }, 0x4b9c64d30e274724 },
        { { 0x760e, 0x86f3 }, { 0x3046, 0xc01e, 0xb890, 0x37fc }, 0x435c037ed42ec695 },
    },
};

static void vector_tile(int32_t bits, uint16_t *tile)
{
    uint32_t x = 0x12345678u + (uint32_t)bits;
    for (int32_t i = 0; i < 16 * bits; i++) tile[i] = (uint16_t)(random_next(&x) >> 16);
}

static void known_tiles_decode_to_their_known_weights(void **state)
{
    (void)state;
    for (int c = 0; c < FMT_EXL3_CODEBOOKS; c++)
        for (int32_t bits = 1; bits <= FMT_EXL3_BITS_MAX; bits++) {
            const vector *v = &VECTOR[c][bits - 1];
            uint16_t tile[16 * FMT_EXL3_BITS_MAX], state_of[FMT_EXL3_TILE_WEIGHTS], weight[FMT_EXL3_TILE_WEIGHTS];
            vector_tile(bits, tile);
            assert_memory_equal(tile, v->word, sizeof v->word);
            fmt_exl3_unpack(tile, bits, state_of);
            for (int32_t p = 0; p < FMT_EXL3_TILE_WEIGHTS; p++)
                weight[fmt_exl3_place(p)] = fmt_exl3_value((fmt_exl3_codebook)c, state_of[p]);
            const uint16_t got[4] = { weight[0], weight[1], weight[16], weight[255] };
            assert_memory_equal(got, v->value, sizeof got);
            if (hash_u16(weight, FMT_EXL3_TILE_WEIGHTS) != v->hash) fail_msg("codebook %d, %d bits: another hash", c, bits);
        }
}

static void every_tile_continues_its_own_end_and_packs_to_itself(void **state)
{
    (void)state;
    uint32_t x = 1;
    for (int32_t bits = 1; bits <= FMT_EXL3_BITS_MAX; bits++)
        for (int round = 0; round < 50; round++) {
            uint16_t tile[16 * FMT_EXL3_BITS_MAX], again[16 * FMT_EXL3_BITS_MAX], s[FMT_EXL3_TILE_WEIGHTS];
            for (int32_t i = 0; i < 16 * bits; i++) tile[i] = (uint16_t)(random_next(&x) >> 16);
            fmt_exl3_unpack(tile, bits, s);
            for (int32_t p = 0; p < FMT_EXL3_TILE_WEIGHTS; p++) {
                const uint16_t next = s[(p + 1) % FMT_EXL3_TILE_WEIGHTS];
                assert_int_equal(next >> bits, s[p] & ((1 << (16 - bits)) - 1));
            }
            fmt_exl3_pack(s, bits, again);
            assert_memory_equal(again, tile, (size_t)fmt_exl3_tile_bytes(bits));
        }
}

static void a_state_is_the_sixteen_bits_that_end_behind_its_symbol(void **state)
{
    (void)state;
    for (int32_t bits = 1; bits <= FMT_EXL3_BITS_MAX; bits++) {
        uint16_t tile[16 * FMT_EXL3_BITS_MAX], s[FMT_EXL3_TILE_WEIGHTS];
        vector_tile(bits, tile);
        fmt_exl3_unpack(tile, bits, s);
        for (int32_t p = 0; p < FMT_EXL3_TILE_WEIGHTS; p++) {
            uint16_t want = 0;
            for (int32_t i = 0; i < 16; i++) { /* bit by bit, as the header has it */
                const int32_t b = ((p + 1) * bits - 16 + i + 256 * bits) % (256 * bits);
                const uint32_t word = tile[b / 32 * 2] | (uint32_t)tile[b / 32 * 2 + 1] << 16;
                want = (uint16_t)(want << 1 | (word >> (31 - b % 32) & 1));
            }
            assert_int_equal(s[p], want);
        }
    }
}

static void positions_fill_the_tile(void **state)
{
    (void)state;
    bool taken[FMT_EXL3_TILE_WEIGHTS] = { false };
    for (int32_t p = 0; p < FMT_EXL3_TILE_WEIGHTS; p++) {
        const int32_t at = fmt_exl3_place(p);
        assert_true(at >= 0 && at < FMT_EXL3_TILE_WEIGHTS && !taken[at]);
        taken[at] = true;
    }
    assert_int_equal(fmt_exl3_place(0), 0);
    assert_int_equal(fmt_exl3_place(1), 16);
    assert_int_equal(fmt_exl3_place(2), 8 * 16);
    assert_int_equal(fmt_exl3_place(4), 8);
    assert_int_equal(fmt_exl3_place(8), 2 * 16);
    assert_int_equal(fmt_exl3_place(32), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_fp16_is_its_value_and_comes_back),
        cmocka_unit_test(values_between_two_fp16_round_to_the_nearer_and_ties_to_even),
        cmocka_unit_test(every_state_of_every_codebook_has_the_known_value),
        cmocka_unit_test(codebooks_have_names_and_markers),
        cmocka_unit_test(known_tiles_decode_to_their_known_weights),
        cmocka_unit_test(every_tile_continues_its_own_end_and_packs_to_itself),
        cmocka_unit_test(a_state_is_the_sixteen_bits_that_end_behind_its_symbol),
        cmocka_unit_test(positions_fill_the_tile),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
