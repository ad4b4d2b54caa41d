/* Checksums: published values, definitions bit by bit, and all implementations of each against one another. The source is
 * included, so that the paths other processors take are tested on this one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "formats/hash.c"
#include "formats/sha256.h"

static void fill(uint8_t *p, size_t n)
{
    uint64_t s = 7;
    for (size_t i = 0; i < n; i++) {
        s = s * 6364136223846793005u + 1442695040888963407u;
        p[i] = (uint8_t)(s >> 56);
    }
}

static uint32_t crc_by_bits(uint32_t crc, const uint8_t *p, size_t n)
{
    crc = ~crc;
    for (size_t i = 0; i < n; i++)
        for (int b = 0; b < 8; b++) {
            uint32_t top = (crc ^ p[i] >> b) & 1;
            crc = crc >> 1 ^ (top ? 0x82f63b78 : 0);
        }
    return ~crc;
}

static void published_values(void **state)
{
    (void)state;
    assert_int_equal(fmt_crc32c(0, "123456789", 9), 0xe3069283);
    assert_int_equal(crc_by_bits(0, (const uint8_t *)"123456789", 9), 0xe3069283);
    assert_int_equal(fmt_crc32c(0, "", 0), 0);
    assert_true(fmt_hash64("", 0) == 0xef46db3751d8e999u);
    assert_true(fmt_hash64("a", 1) == 0xd24ec4f1a98c6e5bu);
    assert_true(fmt_hash64("abc", 3) == 0x44bc2cf5ad770999u);
    uint8_t count[100];
    for (int i = 0; i < 100; i++) count[i] = (uint8_t)i;
    assert_true(fmt_hash64(count, 100) == 0x6ac1e58032166597u); /* made from the definition in Python */
}

static void every_length_alignment_and_path_gives_the_crc_of_the_definition(void **state)
{
    (void)state;
    uint8_t data[300];
    fill(data, sizeof data);
    for (size_t at = 0; at < 9; at++)
        for (size_t n = 0; n + at <= sizeof data; n++) {
            uint32_t wanted = crc_by_bits(5, data + at, n);
            assert_int_equal(fmt_crc32c(5, data + at, n), wanted);
            assert_int_equal(~crc32c_tables(~5u, data + at, n), wanted);
        }
}

static void long_data_gives_the_crc_of_the_definition(void **state)
{
    (void)state;
    static uint8_t data[10000]; /* several turns of every inner loop */
    fill(data, sizeof data);
    for (size_t n = sizeof data - 3300; n <= sizeof data; n += 11) {
        uint32_t wanted = crc_by_bits(5, data, n);
        assert_int_equal(fmt_crc32c(5, data, n), wanted);
        assert_int_equal(~crc32c_tables(~5u, data, n), wanted);
    }
}

static void the_crc_of_two_pieces_is_the_crc_of_the_whole(void **state)
{
    (void)state;
    uint8_t data[100];
    fill(data, sizeof data);
    for (size_t cut = 0; cut <= sizeof data; cut++)
        assert_int_equal(fmt_crc32c(fmt_crc32c(0, data, cut), data + cut, sizeof data - cut), fmt_crc32c(0, data,
                                                                                                         sizeof data));
}

static void every_flipped_bit_changes_both(void **state)
{
    (void)state;
    uint8_t data[77];
    fill(data, sizeof data);
    uint32_t crc = fmt_crc32c(0, data, sizeof data);
    uint64_t hash = fmt_hash64(data, sizeof data);
    for (size_t bit = 0; bit < 8 * sizeof data; bit++) {
        data[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_int_not_equal(fmt_crc32c(0, data, sizeof data), crc);
        assert_true(fmt_hash64(data, sizeof data) != hash);
        data[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
}

static void order_and_length_change_the_hash(void **state)
{
    (void)state;
    uint8_t data[256], swapped[256], zeros[256] = { 0 };
    fill(data, sizeof data);
    for (size_t row = 8; row <= 128; row *= 2) { /* two rows exchanged */
        memcpy(swapped, data, sizeof data);
        memcpy(swapped, data + row, row);
        memcpy(swapped + row, data, row);
        assert_true(fmt_hash64(data, sizeof data) != fmt_hash64(swapped, sizeof swapped));
    }
    for (size_t n = 0; n < sizeof zeros; n++) assert_true(fmt_hash64(zeros, n) != fmt_hash64(zeros, n + 1));
}

static void the_hash_does_not_depend_on_alignment(void **state)
{
    (void)state;
    uint8_t data[200], moved[216];
    fill(data, sizeof data);
    for (size_t at = 0; at < 16; at++) {
        memcpy(moved + at, data, sizeof data);
        assert_true(fmt_hash64(moved + at, sizeof data) == fmt_hash64(data, sizeof data));
    }
}

static void sha256_has_the_published_value_in_any_pieces(void **state)
{
    (void)state;
    static const char TEXT[] = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    fmt_sha256 h;
    char hex[FMT_SHA256_HEX];
    err e;
    assert_int_equal(fmt_sha256_of("", 0, &h, &e), ERR_OK);
    fmt_sha256_hex(&h, hex);
    assert_string_equal(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    for (size_t cut = 0; cut < sizeof TEXT; cut++) {
        fmt_sha256_state *s;
        assert_int_equal(fmt_sha256_open(&s, &e), ERR_OK);
        fmt_sha256_add(s, TEXT, cut);
        fmt_sha256_add(s, TEXT + cut, sizeof TEXT - 1 - cut);
        fmt_sha256_close(s, &h);
        fmt_sha256_hex(&h, hex);
        assert_string_equal(hex, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    }
    fmt_sha256_close(NULL, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_values),
        cmocka_unit_test(every_length_alignment_and_path_gives_the_crc_of_the_definition),
        cmocka_unit_test(long_data_gives_the_crc_of_the_definition),
        cmocka_unit_test(the_crc_of_two_pieces_is_the_crc_of_the_whole),
        cmocka_unit_test(every_flipped_bit_changes_both),
        cmocka_unit_test(order_and_length_change_the_hash),
        cmocka_unit_test(the_hash_does_not_depend_on_alignment),
        cmocka_unit_test(sha256_has_the_published_value_in_any_pieces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
