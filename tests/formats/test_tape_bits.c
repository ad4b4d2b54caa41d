/* Bit planes against their definition, one bit at a time. The source is included, so that the ways that this processor does
 * not take by itself are tested too. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>

#include "formats/tape_bits.c"

enum { ELEMS = 1700, GUARD = 64 }; /* several blocks of both widths, and every remainder of 8 */

static uint8_t raw[8 * ELEMS + 1], planes[8 * ELEMS + GUARD], joined[8 * ELEMS + GUARD];

static void fill(void)
{
    uint64_t s = 11;
    for (size_t i = 0; i < sizeof raw; i++) {
        s = s * 6364136223846793005u + 1442695040888963407u;
        raw[i] = (uint8_t)(s >> 56);
    }
}

static bool planes_right(const uint8_t *src, size_t n, int size)
{
    for (size_t p = 0; p < 8 * (size_t)size; p++)
        for (size_t i = 0; i < n; i++)
            if ((planes[p * (n / 8) + i / 8] >> i % 8 & 1) != (src[i * (size_t)size + p / 8] >> p % 8 & 1)) return false;
    return true;
}

static bool guard_right(const uint8_t *end)
{
    for (int i = 0; i < GUARD; i++)
        if (end[i] != 0xa5) return false;
    return true;
}

static void the_comparison_sees_one_wrong_bit(void **state)
{
    (void)state;
    fill();
    fmt_bits_split(raw, planes, 64, 2);
    assert_true(planes_right(raw, 64, 2));
    planes[100] ^= 16;
    assert_false(planes_right(raw, 64, 2));
}

/* This processor's way, AVX2 even where there is AVX-512, the portable one. */
enum { WAY_OWN, WAY_AVX2, WAY_PORTABLE, WAYS };

static void split_by(int way, const uint8_t *src, size_t n, int size)
{
    size_t at = 0;
    if (way == WAY_OWN) { fmt_bits_split(src, planes, n, size); return; }
#if defined(__x86_64__)
    if (way == WAY_AVX2 && cpu_has_avx2()) at = split_avx2(src, planes, 0, n, size);
#endif
    FMT_BY_SIZE(size, split_portable(src, planes, at, n, SIZE));
}

static void join_by(int way, size_t n, int size)
{
    size_t at = 0;
    if (way == WAY_OWN) { fmt_bits_join(planes, joined, n, size); return; }
#if defined(__x86_64__)
    if (way == WAY_AVX2 && cpu_has_avx2()) at = join_avx2(planes, joined, 0, n, size);
#endif
    FMT_BY_SIZE(size, join_portable(planes, joined, at, n, SIZE));
}

static void every_length_size_and_way_gives_the_planes_of_the_definition(void **state)
{
    (void)state;
    fill();
    for (int size = 1; size <= 8; size *= 2)
        for (size_t n = 0; n <= ELEMS; n += n < 600 ? 8 : 72)
            for (int way = 0; way < WAYS; way++) {
                const uint8_t *src = raw + 1; /* not aligned */
                size_t bytes = n * (size_t)size;
                memset(planes, 0xa5, sizeof planes);
                memset(joined, 0xa5, sizeof joined);
                split_by(way, src, n, size);
                if (!planes_right(src, n, size)) fail_msg("split: %zu of %d bytes, way %d", n, size, way);
                join_by(way, n, size);
                if (memcmp(joined, src, bytes) != 0) fail_msg("join: %zu of %d bytes, way %d", n, size, way);
                assert_true(guard_right(planes + bytes) && guard_right(joined + bytes));
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_comparison_sees_one_wrong_bit),
        cmocka_unit_test(every_length_size_and_way_gives_the_planes_of_the_definition),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
