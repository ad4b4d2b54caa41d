/* Tensor statistics against a loop over doubles, one element at a time. The source is included, so that the portable path
 * is tested on every machine. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "formats/stats.c"

/* Element i of the types used here, and whether it is denormal in its own type. */
static double element(fmt_dtype d, const uint8_t *p, int64_t i, bool *denormal)
{
    *denormal = false;
    switch (d) {
    case FMT_DTYPE_F64: {
        double v;
        memcpy(&v, p + 8 * i, 8);
        *denormal = fpclassify(v) == FP_SUBNORMAL;
        return v;
    }
    case FMT_DTYPE_F32: {
        float v;
        memcpy(&v, p + 4 * i, 4);
        *denormal = fpclassify(v) == FP_SUBNORMAL;
        return v;
    }
    case FMT_DTYPE_BF16: {
        float v = f32_from_bf16(get_u16(p + 2 * i));
        *denormal = fpclassify(v) == FP_SUBNORMAL;
        return v;
    }
    case FMT_DTYPE_F16: {
        uint16_t h = get_u16(p + 2 * i);
        int e = h >> 10 & 31, m = h & 1023;
        double v = e == 31 ? (m ? NAN : INFINITY) : e == 0 ? ldexp(m, -24) : ldexp(1024 + m, e - 25);
        *denormal = e == 0 && m != 0;
        return h >> 15 ? -v : v;
    }
    case FMT_DTYPE_F8_E5M2: {
        int e = p[i] >> 2 & 31, m = p[i] & 3;
        double v = e == 31 ? (m ? NAN : INFINITY) : e == 0 ? ldexp(m, -16) : ldexp(4 + m, e - 17);
        *denormal = e == 0 && m != 0;
        return p[i] >> 7 ? -v : v;
    }
    case FMT_DTYPE_F8:
        *denormal = (p[i] & 0x7f) > 0 && (p[i] & 0x7f) < 8;
        return FMT_E4M3_VALUE[p[i]];
    default: return f32_from_e8m0(p[i]);
    }
}

static fmt_stats wanted(const fmt_tensor *t)
{
    fmt_stats s = { .min = INFINITY, .max = -INFINITY };
    int64_t n = fmt_tensor_elems(t), counted = 0;
    double square = 0;
    for (int64_t i = 0; i < n; i++) {
        bool denormal;
        double v = element(t->dtype, t->data, i, &denormal);
        if (isnan(v)) { s.n_nan++; continue; }
        counted++;
        s.n_inf += isinf(v) != 0;
        s.n_zero += v == 0;
        s.n_denormal += denormal;
        s.min = fmin(s.min, v);
        s.max = fmax(s.max, v);
        square += v * v;
    }
    if (!counted) return (fmt_stats){ .n_nan = s.n_nan };
    s.rms = sqrt(square / (double)counted);
    return s;
}

static bool agree(const fmt_stats *a, const fmt_stats *b)
{
    bool rms = a->rms == b->rms || fabs(a->rms - b->rms) <= 1e-12 * b->rms; /* sums in another order */
    return a->min == b->min && a->max == b->max && rms && a->n_nan == b->n_nan && a->n_inf == b->n_inf &&
           a->n_zero == b->n_zero && a->n_denormal == b->n_denormal;
}

static void the_comparison_sees_every_field(void **state)
{
    (void)state;
    const fmt_stats good = { -1, 2, 3, 4, 5, 6, 7 };
    assert_true(agree(&good, &good));
    fmt_stats bad[] = { good, good, good, good, good, good, good };
    bad[0].min = 0; bad[1].max = 0; bad[2].rms = NAN; bad[3].n_nan++; bad[4].n_inf++; bad[5].n_zero++; bad[6].n_denormal++;
    for (size_t i = 0; i < COUNT_OF(bad); i++) assert_false(agree(&bad[i], &good));
}

static void any_bits_of_every_float_type_and_length_give_the_defined_numbers(void **state)
{
    (void)state;
    static const fmt_dtype FLOATS[] = { FMT_DTYPE_F32, FMT_DTYPE_BF16, FMT_DTYPE_F16, FMT_DTYPE_F8, FMT_DTYPE_F8_E5M2,
                                        FMT_DTYPE_E8M0, FMT_DTYPE_F64 };
    static const int64_t LENGTHS[] = { 0, 1, 2, 7, 8, 9, 31, 1000, 1023, 1024, 1025, 2048, 5000 };
    static uint8_t data[8 * 5000 + 1];
    uint64_t s = 3;
    for (size_t i = 0; i < sizeof data; i++) {
        s = s * 6364136223846793005u + 1442695040888963407u;
        data[i] = s >> 60 ? (uint8_t)(s >> 40) : s >> 59 & 1 ? 0xff : 0; /* runs of 0 and 0xff: zeros, NaN, denormals */
    }
    for (size_t d = 0; d < COUNT_OF(FLOATS); d++)
        for (size_t i = 0; i < COUNT_OF(LENGTHS); i++)
            for (int odd = 0; odd < 2; odd++) {
                fmt_tensor t = fmt_tensor_make(FLOATS[d], data + odd, 1, &LENGTHS[i]);
                fmt_stats got, right = wanted(&t);
                fmt_stats_of(&t, &got);
                if (!agree(&got, &right))
                    fail_msg("%s, %lld elements, offset %d: min %g %g max %g %g rms %g %g nan %d %d denormal %d %d",
                             fmt_dtype_name(t.dtype), (long long)LENGTHS[i], odd, got.min, right.min, got.max, right.max,
                             got.rms, right.rms, (int)got.n_nan, (int)right.n_nan, (int)got.n_denormal,
                             (int)right.n_denormal);
            }
}

static void every_bf16_code_at_once_gives_the_defined_numbers(void **state)
{
    (void)state;
    static uint16_t all[65536];
    const int64_t n = 65536;
    for (uint32_t c = 0; c < 65536; c++) all[c] = (uint16_t)(c * 40503u); /* shuffled */
    fmt_tensor t = fmt_tensor_make(FMT_DTYPE_BF16, all, 1, &n);
    fmt_stats got, right = wanted(&t);
    fmt_stats_of(&t, &got);
    assert_true(agree(&got, &right));
    assert_int_equal(got.n_nan, 2 * 127);
    assert_int_equal(got.n_inf, 2);
    assert_int_equal(got.n_zero, 2);
    assert_int_equal(got.n_denormal, 2 * 127);
}

static void nothing_and_only_nan_give_zeros(void **state)
{
    (void)state;
    const uint16_t nan[3] = { 0x7fc0, 0xffc0, 0x7f81 };
    const int64_t shapes[] = { 0, 3 };
    for (int i = 0; i < 2; i++) {
        fmt_tensor t = fmt_tensor_make(FMT_DTYPE_BF16, nan, 1, &shapes[i]);
        fmt_stats s;
        fmt_stats_of(&t, &s);
        assert_true(s.min == 0 && s.max == 0 && s.rms == 0 && s.n_nan == (uint64_t)shapes[i]);
    }
}

static void negative_zero_alone_is_a_zero(void **state)
{
    (void)state;
    const float z[2] = { -0.0f, -0.0f };
    const int64_t n = 2;
    fmt_tensor t = fmt_tensor_make(FMT_DTYPE_F32, z, 1, &n);
    fmt_stats s;
    fmt_stats_of(&t, &s);
    assert_true(!signbit(s.min) && !signbit(s.max) && s.n_zero == 2 && s.n_denormal == 0);
}

/* Whole blocks without NaN and infinities are counted another way, which has cases for the signs that occur. */
static void whole_blocks_of_every_kind_of_float_give_the_defined_numbers(void **state)
{
    (void)state;
    enum { BLOCKS = 3 };
    static uint8_t data[4 * BLOCKS * BLOCK];
    /* Upper halves: zeros, denormals, the least and the greatest normals, infinities, NaN. */
    static const uint16_t ODD[] = { 0, 0x8000, 1, 0x8001, 0x7f, 0x80, 0x8080, 0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7f81,
                                    0xff81, 0xffff };
    const int64_t n = BLOCKS * BLOCK;
    for (size_t size = 2; size <= 4; size += 2)
        for (size_t odd = 0; odd < COUNT_OF(ODD); odd++)
            for (int signs = 0; signs < 3; signs++) { /* positive, negative, both */
                memset(data, 0, sizeof data);
                for (size_t i = 0; i < (size_t)n; i++) {
                    uint16_t sign = signs == 1 || (signs == 2 && i % 3 == 0) ? 0x8000 : 0;
                    put_u16(data + size * (i + 1) - 2, (uint16_t)((0x3f00 + i * 31 % 0x100) | sign));
                }
                put_u16(data + size * (BLOCK + 18) - 2, ODD[odd]);
                fmt_tensor t = fmt_tensor_make(size == 4 ? FMT_DTYPE_F32 : FMT_DTYPE_BF16, data, 1, &n);
                fmt_stats got, right = wanted(&t);
                fmt_stats_of(&t, &got);
                if (!agree(&got, &right)) fail_msg("%s, %04x, signs %d", fmt_dtype_name(t.dtype), ODD[odd], signs);
            }
}

static void the_hash_taken_along_is_the_hash_of_the_bytes(void **state)
{
    (void)state;
    static const int64_t LENGTHS[] = { 0, 1, 7, 8, 15, 16, 17, 1023, 1024, 1025, 2048, 3003 };
    static uint8_t data[8 * 3003];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)(i * i >> 3);
    for (int d = 0; d < FMT_DTYPE_COUNT; d++)
        for (size_t i = 0; i < COUNT_OF(LENGTHS); i++) {
            fmt_tensor t = fmt_tensor_make((fmt_dtype)d, data, 1, &LENGTHS[i]);
            fmt_stats alone, along;
            uint64_t hash = 0;
            fmt_stats_of(&t, &alone);
            fmt_stats_hash_of(&t, &along, &hash);
            if (hash != fmt_hash64(data, fmt_tensor_bytes(&t)) || memcmp(&alone, &along, sizeof alone) != 0)
                fail_msg("%s, %lld elements", fmt_dtype_name(t.dtype), (long long)LENGTHS[i]);
        }
}

static void the_portable_path_gives_the_same_bits(void **state)
{
    (void)state;
#if defined(__x86_64__)
    if (!cpu_has_avx2()) skip();
    uint8_t data[4 * BLOCK];
    uint64_t s = 11;
    for (int round = 0; round < 50; round++) {
        for (size_t i = 0; i < sizeof data; i++) {
            s = s * 6364136223846793005u + 1442695040888963407u;
            data[i] = (uint8_t)(s >> 56);
            if (round % 2) data[i] &= 0xbf; /* no NaN and no infinity */
        }
        for (int k = 0; k < 2; k++) {
            sums a = { .min = INT32_MAX, .max = INT32_MIN }, b = a;
            int n = round % 2 ? BLOCK : BLOCK - round;
            take_plain(&a, k ? FMT_DTYPE_BF16 : FMT_DTYPE_F32, data, n);
            take_avx2(&b, k ? FMT_DTYPE_BF16 : FMT_DTYPE_F32, data, n);
            assert_memory_equal(&a, &b, sizeof a);
        }
    }
#else
    skip();
#endif
}

static void integers_have_a_range_and_zeros(void **state)
{
    (void)state;
    const int32_t i32[4] = { -7, 0, 0, 9 };
    const uint8_t u8[4] = { 1, 255, 0, 3 };
    const int64_t i64[4] = { INT64_MIN, 1, 2, 3 }, n = 4, none = 0;
    fmt_stats s;
    fmt_tensor t = fmt_tensor_make(FMT_DTYPE_I32, i32, 1, &n);
    fmt_stats_of(&t, &s);
    assert_true(s.min == -7 && s.max == 9 && s.n_zero == 2 && s.rms == 0 && s.n_nan == 0);
    t = fmt_tensor_make(FMT_DTYPE_U8, u8, 1, &n);
    fmt_stats_of(&t, &s);
    assert_true(s.min == 0 && s.max == 255 && s.n_zero == 1);
    t = fmt_tensor_make(FMT_DTYPE_I8, u8, 1, &n);
    fmt_stats_of(&t, &s);
    assert_true(s.min == -1 && s.max == 3);
    t = fmt_tensor_make(FMT_DTYPE_I64, i64, 1, &n);
    fmt_stats_of(&t, &s);
    assert_true(s.min == -0x1p63 && s.max == 3);
    t = fmt_tensor_make(FMT_DTYPE_I64, i64, 1, &none);
    fmt_stats_of(&t, &s);
    assert_true(s.min == 0 && s.max == 0 && s.n_zero == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_comparison_sees_every_field),
        cmocka_unit_test(any_bits_of_every_float_type_and_length_give_the_defined_numbers),
        cmocka_unit_test(every_bf16_code_at_once_gives_the_defined_numbers),
        cmocka_unit_test(nothing_and_only_nan_give_zeros),
        cmocka_unit_test(negative_zero_alone_is_a_zero),
        cmocka_unit_test(whole_blocks_of_every_kind_of_float_give_the_defined_numbers),
        cmocka_unit_test(the_hash_taken_along_is_the_hash_of_the_bytes),
        cmocka_unit_test(the_portable_path_gives_the_same_bits),
        cmocka_unit_test(integers_have_a_range_and_zeros),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
