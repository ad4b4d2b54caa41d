/* Digests: their definition, slowly and from outside; pieces against the whole; what must change them. */
#include "kernels/digest.h"

#include "check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_MAX = 40, PIECES_MAX = 100 };

/* ---- the definition, a byte at a time ---- */

static uint64_t mix(uint64_t x)
{
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93u;
    x ^= x >> 29;
    x *= 0xc2b2ae3d27d4eb4fu;
    return x ^ x >> 32;
}

static uint64_t slow_row(const uint8_t *p, uint64_t bytes)
{
    const uint64_t p1 = 0x9e3779b97f4a7c15u;
    uint64_t sum = 0;
    for (uint64_t i = 0; 8 * i < bytes; i++) {
        uint64_t word = 0;
        for (uint64_t b = 8 * i; b < 8 * i + 8 && b < bytes; b++) word |= (uint64_t)p[b] << 8 * (b % 8);
        sum += mix(word + (i + 1) * p1);
    }
    return mix(sum + bytes * p1);
}

static uint64_t slow_tensor(const uint64_t *row, uint64_t n_rows)
{
    const uint64_t p1 = 0x9e3779b97f4a7c15u;
    uint64_t sum = 0;
    for (uint64_t r = 0; r < n_rows; r++) sum += mix(row[r] + (r + 1) * p1);
    return mix(sum + n_rows * p1);
}

/* ---- a tensor and all that is said of it ---- */

typedef struct answer {
    uint64_t row[ROWS_MAX], digest;
    fmt_stats stats;
} answer;

static fmt_tensor tensor2(fmt_dtype d, const void *data, int64_t rows, int64_t cols)
{
    const int64_t shape[] = { rows, cols };
    return fmt_tensor_make(d, data, 2, shape);
}

static answer whole(const fmt_tensor *t)
{
    answer a;
    krn_digest_ref(t, a.row, &a.digest, &a.stats);
    return a;
}

static answer joined(const fmt_tensor *t)
{
    static krn_piece piece[PIECES_MAX];
    answer a;
    const uint64_t n_rows = krn_digest_rows(t), row_bytes = n_rows ? fmt_tensor_bytes(t) / n_rows : 0;
    const uint8_t *p = t->data;
    uint64_t n = 0;
    for (uint64_t r = 0; r < n_rows; r++)
        for (uint64_t at = 0; at < row_bytes; at += KRN_PIECE_BYTES, n++) {
            assert_true(n < PIECES_MAX);
            uint64_t left = row_bytes - at;
            krn_digest_piece_ref(p + r * row_bytes + at, left < KRN_PIECE_BYTES ? left : KRN_PIECE_BYTES, at, t->dtype,
                                 &piece[n]);
        }
    assert_int_equal(n, krn_pieces(n_rows, row_bytes));
    krn_digest_join(piece, n_rows, row_bytes, t->dtype, a.row, &a.digest, &a.stats);
    return a;
}

/* Equal but for the last digits of rms: 10^5 squares added in another order may differ by 10^5 * 2^-53 of their sum. */
static void assert_stats_like(const fmt_stats *got, const fmt_stats *want)
{
    assert_memory_equal(&got->min, &want->min, sizeof got->min);
    assert_memory_equal(&got->max, &want->max, sizeof got->max);
    assert_int_equal(got->n_nan, want->n_nan);
    assert_int_equal(got->n_inf, want->n_inf);
    assert_int_equal(got->n_zero, want->n_zero);
    assert_int_equal(got->n_denormal, want->n_denormal);
    if (got->rms != want->rms) assert_true(fabs(got->rms - want->rms) <= 0x1p-36 * want->rms);
}

static void check(const fmt_tensor *t)
{
    answer a = whole(t), b = joined(t);
    fmt_stats stats;
    const uint64_t n_rows = krn_digest_rows(t), row_bytes = n_rows ? fmt_tensor_bytes(t) / n_rows : 0;
    assert_true(n_rows <= ROWS_MAX);
    for (uint64_t r = 0; r < n_rows; r++) {
        assert_int_equal(a.row[r], slow_row((const uint8_t *)t->data + r * row_bytes, row_bytes));
        assert_int_equal(b.row[r], a.row[r]);
    }
    assert_int_equal(a.digest, slow_tensor(a.row, n_rows));
    assert_int_equal(b.digest, a.digest);
    fmt_stats_of(t, &stats);
    assert_memory_equal(&a.stats, &stats, sizeof stats);
    assert_stats_like(&b.stats, &stats);
}

/* ---- tests ---- */

/* Found outside this program, with the definition in kernels/digest.h written down in Python. */
static void known_tensors_have_known_digests(void **state)
{
    (void)state;
    static uint8_t bytes[20000];
    for (int i = 0; i < 20; i++) bytes[i] = (uint8_t)i;
    fmt_tensor t = tensor2(FMT_DTYPE_BF16, bytes, 2, 5);
    answer a = whole(&t);
    assert_int_equal(a.row[0], 0x9960519820a95c3bu);
    assert_int_equal(a.row[1], 0xfd0e9954e3f24bfbu);
    assert_int_equal(a.digest, 0xfa83b68934e1e163u);
    for (int i = 0; i < 20000; i++) bytes[i] = (uint8_t)(i * 7);
    const int64_t n = 5000;
    t = fmt_tensor_make(FMT_DTYPE_I32, bytes, 1, &n);
    assert_int_equal(whole(&t).digest, 0x8e81006b2a5f6a12u);
    t = tensor2(FMT_DTYPE_F32, bytes, 0, 4);
    assert_int_equal(whole(&t).digest, 0x0u);
}

static void any_shape_and_type_is_digested_by_the_definition(void **state)
{
    (void)state;
    static const int64_t shapes[][2] = { { 1, 1 }, { 3, 1 }, { 5, 3 }, { 7, 4 }, { 2, 8192 }, { 2, 8193 }, { 3, 4096 },
                                         { 1, 4097 }, { 20, 5120 }, { 4, 64640 / 4 }, { 40, 129 }, { 0, 7 }, { 3, 0 } };
    static const fmt_dtype types[] = { FMT_DTYPE_BF16, FMT_DTYPE_F32, FMT_DTYPE_I32 };
    const size_t bytes = 4 * 20 * 5120 + 16;
    uint8_t *p = malloc(bytes);
    assert_non_null(p);
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int d = 0; d < 3; d++)
            for (int shift = 0; shift < 3; shift++) { /* alignment does not show */
                uint8_t *at = p + shift * 3;
                const int64_t n = shapes[s][0] * shapes[s][1];
                for (int64_t i = 0; i < n; i++) {
                    float v = input_f32(s + 1, i) * 10;
                    bf16 half = bf16_from_f32(v);
                    if (types[d] == FMT_DTYPE_BF16) memcpy(at + 2 * i, &half, 2);
                    else memcpy(at + 4 * i, &v, 4); /* of integers: any bits */
                }
                fmt_tensor t = tensor2(types[d], at, shapes[s][0], shapes[s][1]);
                check(&t);
            }
    free(p);
}

static void special_values_are_counted_as_by_fmt_stats_of(void **state)
{
    (void)state;
    static float x[3 * 9000];
    static bf16 half[3 * 9000];
    static const float special[] = { NAN, INFINITY, -INFINITY, 0.0f, -0.0f, 0x1p-140f, -0x1p-130f, 3e38f, 0x1p-126f };
    for (int64_t i = 0; i < 3 * 9000; i++) {
        x[i] = input_f32(3, i);
        if (i % 5 == 0) x[i] = special[i / 5 % 9];
        half[i] = bf16_from_f32(x[i]);
    }
    fmt_tensor t = tensor2(FMT_DTYPE_F32, x, 3, 9000);
    check(&t);
    t = tensor2(FMT_DTYPE_BF16, half, 3, 9000);
    check(&t);
    for (size_t k = 0; k < 9; k++) { /* only one of them, over pieces: all NaN, all zero, ... */
        for (int64_t i = 0; i < 3 * 9000; i++) x[i] = special[k];
        t = tensor2(FMT_DTYPE_F32, x, 3, 9000);
        check(&t);
    }
}

static void where_nothing_counts_there_are_zeros(void **state)
{
    (void)state;
    const float nan[4] = { NAN, NAN, NAN, NAN };
    const fmt_stats none = { 0 }, all_nan = { .n_nan = 4 };
    fmt_tensor t = tensor2(FMT_DTYPE_F32, nan, 2, 2);
    answer a = joined(&t);
    assert_memory_equal(&a.stats, &all_nan, sizeof none);
    t = tensor2(FMT_DTYPE_F32, nan, 0, 2);
    a = joined(&t);
    assert_memory_equal(&a.stats, &none, sizeof none);
    krn_piece piece;
    krn_digest_piece_ref(nan, 8, 0, FMT_DTYPE_F32, &piece);
    assert_true(piece.min == (double)INFINITY && piece.max == -(double)INFINITY && piece.sum_squares == 0);
}

static void tensors_of_one_dimension_are_one_row(void **state)
{
    (void)state;
    const int32_t ids[6] = { 5, 4, 3, 2, 1, 0 };
    const int64_t n = 6;
    fmt_tensor flat = fmt_tensor_make(FMT_DTYPE_I32, ids, 1, &n), scalar = fmt_tensor_make(FMT_DTYPE_I32, ids, 0, NULL);
    fmt_tensor row = tensor2(FMT_DTYPE_I32, ids, 1, 6);
    assert_int_equal(krn_digest_rows(&flat), 1);
    assert_int_equal(krn_digest_rows(&scalar), 1);
    assert_int_equal(whole(&flat).digest, whole(&row).digest);
    check(&flat);
    check(&scalar);
}

/* Two pieces a row and an odd end: every bit, and every exchange of neighbours, is seen. */
static void any_change_changes_the_digest(void **state)
{
    (void)state;
    enum { COLS = 4097 + 8, BITS = 2 * COLS * 32 };
    static uint32_t x[2 * COLS];
    for (int i = 0; i < 2 * COLS; i++) x[i] = (uint32_t)(i + 1) * 2654435761u;
    fmt_tensor t = tensor2(FMT_DTYPE_I32, x, 2, COLS);
    const uint64_t before = whole(&t).digest;
    for (int bit = 0; bit < BITS; bit += 997) {
        x[bit / 32] ^= 1u << bit % 32;
        assert_true(whole(&t).digest != before);
        x[bit / 32] ^= 1u << bit % 32;
    }
    for (int i = 0; i + COLS < 2 * COLS; i += 191)
        for (int distance = 1; distance <= COLS; distance += COLS - 1) { /* in a row, and between rows */
            uint32_t a = x[i], b = x[i + distance];
            x[i] = b;
            x[i + distance] = a;
            assert_true(whole(&t).digest != before);
            x[i] = a;
            x[i + distance] = b;
        }
    assert_int_equal(whole(&t).digest, before);
    fmt_tensor other = tensor2(FMT_DTYPE_I32, x, COLS, 2);
    static uint64_t rows[COLS];
    uint64_t digest;
    fmt_stats stats;
    krn_digest_ref(&other, rows, &digest, &stats);
    assert_true(digest != before);
}

static void zeros_of_another_length_are_another_row(void **state)
{
    (void)state;
    static const bf16 zero[64];
    uint64_t seen[65];
    for (int64_t n = 0; n <= 64; n++) {
        fmt_tensor t = tensor2(FMT_DTYPE_BF16, zero, 1, n);
        seen[n] = whole(&t).digest;
        for (int64_t i = 0; i < n; i++) assert_true(seen[i] != seen[n]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_tensors_have_known_digests),
        cmocka_unit_test(any_shape_and_type_is_digested_by_the_definition),
        cmocka_unit_test(special_values_are_counted_as_by_fmt_stats_of),
        cmocka_unit_test(where_nothing_counts_there_are_zeros),
        cmocka_unit_test(tensors_of_one_dimension_are_one_row),
        cmocka_unit_test(any_change_changes_the_digest),
        cmocka_unit_test(zeros_of_another_length_are_another_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
