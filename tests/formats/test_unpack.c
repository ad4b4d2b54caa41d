/* The decoder of a tape's own msgpack: every kind of item, of every width, is read as the standard says or refused. */
#include "tests/support/ok.h"

#include "base/mem.h"
#include "formats/tape_chunk.h"

#define OF(text) fmt_unpack_of(text, sizeof text - 1)

static void integers_are_read_at_every_width_and_within_limits(void **state)
{
    static const struct { const char *bytes; size_t n; int64_t want; } INTS[] = {
        { "\x7f", 1, 127 },              { "\xff", 1, -1 },
        { "\xe0", 1, -32 },              { "\xcc\xff", 2, 255 },
        { "\xcd\x01\x02", 3, 258 },      { "\xce\xff\xff\xff\xff", 5, UINT32_MAX },
        { "\xd0\x80", 2, -128 },         { "\xd1\x80\x00", 3, INT16_MIN },
        { "\xd2\x80\x00\x00\x00", 5, INT32_MIN }, { "\xd3\x80\x00\x00\x00\x00\x00\x00\x00", 9, INT64_MIN },
        { "\xd1\x00\x05", 3, 5 },        { "\xcf\x7f\xff\xff\xff\xff\xff\xff\xff", 9, INT64_MAX },
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(INTS); i++) {
        fmt_unpack u = fmt_unpack_of(INTS[i].bytes, INTS[i].n);
        assert_int_equal(fmt_unpack_int(&u, INT64_MIN, INT64_MAX), INTS[i].want);
        assert_true(!u.bad && u.at == u.end);
        for (size_t cut = 0; cut < INTS[i].n; cut++) {
            u = fmt_unpack_of(INTS[i].bytes, cut);
            (void)fmt_unpack_int(&u, INT64_MIN, INT64_MAX);
            assert_true(u.bad);
        }
    }
    fmt_unpack u = OF("\xcf\x80\x00\x00\x00\x00\x00\x00\x00"); /* 2^63 is no int64 */
    (void)fmt_unpack_int(&u, INT64_MIN, INT64_MAX);
    assert_true(u.bad);
    u = OF("\xcf\x80\x00\x00\x00\x00\x00\x00\x00");
    assert_true(fmt_unpack_u64(&u) == UINT64_C(1) << 63 && !u.bad);
    u = OF("\x05");
    (void)fmt_unpack_int(&u, 6, 9);
    assert_true(u.bad);
}

static void reals_come_from_floats_of_both_widths_and_integers(void **state)
{
    (void)state;
    fmt_unpack u = OF("\xca\x3f\xc0\x00\x00\xcb\xc0\x04\x00\x00\x00\x00\x00\x00\x03\xff");
    assert_true(fmt_unpack_real(&u) == 1.5 && fmt_unpack_real(&u) == -2.5 && fmt_unpack_real(&u) == 3 &&
                fmt_unpack_real(&u) == -1);
    assert_true(!u.bad && u.at == u.end);
    u = OF("\xa1x");
    (void)fmt_unpack_real(&u);
    assert_true(u.bad);
}

static void every_kind_can_be_stepped_over(void **state)
{
    static const struct { const char *bytes; size_t n; } ITEMS[] = {
#define X(text) { text, sizeof text - 1 }
        X("\xc0"), X("\xc2"), X("\xc3"), X("\x81\xa1k\x92\x01\xc3"), X("\xa3" "abc"), X("\xd9\x01z"), X("\xda\x00\x01z"),
        X("\xdb\x00\x00\x00\x01z"), X("\xc4\x02" "ab"), X("\xc5\x00\x01" "a"), X("\xc6\x00\x00\x00\x00"),
        X("\xdc\x00\x01\x07"),
        X("\xdd\x00\x00\x00\x01\x07"), X("\xde\x00\x01\x01\x02"), X("\xdf\x00\x00\x00\x01\x01\x02"), X("\xd4\x01z"),
        X("\xd5\x01zz"), X("\xd6\x01zzzz"), X("\xd7\x01zzzzzzzz"), X("\xd8\x01zzzzzzzzzzzzzzzz"), X("\xc7\x01\x05z"),
        X("\xc8\x00\x01\x05z"), X("\xc9\x00\x00\x00\x01\x05z"), X("\xca\0\0\0\0"), X("\xcb\0\0\0\0\0\0\0\0"),
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(ITEMS); i++) {
        fmt_unpack u = fmt_unpack_of(ITEMS[i].bytes, ITEMS[i].n);
        fmt_unpack_skip(&u);
        if (u.bad || u.at != u.end) fail_msg("item %zu: %zu bytes left", i, (size_t)(u.end - u.at));
        for (size_t cut = 0; cut < ITEMS[i].n; cut++) {
            u = fmt_unpack_of(ITEMS[i].bytes, cut);
            fmt_unpack_skip(&u);
            if (!u.bad) fail_msg("item %zu: cut to %zu bytes it passes", i, cut);
        }
    }
}

static void what_is_none_or_promises_too_much_is_bad(void **state)
{
    static const struct { const char *bytes; size_t n; } BAD[] = {
        X(""), X("\xc1"), X("\x91\xc1"), X("\xdd\xff\xff\xff\xff\x01"), X("\xdf\x80\x00\x00\x00\x01\x01"),
        X("\xdb\xff\xff\xff\xff" "a"), X("\xc6\xff\xff\xff\xff" "a"), X("\xc9\xff\xff\xff\xff\x01" "a"),
        X("\x82\x01\x02\x03"),
#undef X
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(BAD); i++) {
        fmt_unpack u = fmt_unpack_of(BAD[i].bytes, BAD[i].n);
        fmt_unpack_skip(&u);
        if (!u.bad) fail_msg("item %zu passes", i);
    }
    fmt_unpack u = OF("\x01\xa1x");
    uint32_t n;
    assert_null(fmt_unpack_str(&u, &n)); /* another kind than was asked for; and bad stays bad */
    assert_true(u.bad && fmt_unpack_map(&u) == 0 && fmt_unpack_u64(&u) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(integers_are_read_at_every_width_and_within_limits),
        cmocka_unit_test(reals_come_from_floats_of_both_widths_and_integers),
        cmocka_unit_test(every_kind_can_be_stepped_over),
        cmocka_unit_test(what_is_none_or_promises_too_much_is_bad),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
