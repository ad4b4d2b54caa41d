/* krn_sum_ranks on the card: rank order, spans, odd addresses. */
#include "kernels/reduce.h"

#include "gpu.h"

#include <stdlib.h>

enum { ELEMENTS = 20 * 5120 + 5 };

static float part[KRN_RANKS_MAX][ELEMENTS], got[ELEMENTS], want[ELEMENTS];

static void fill_parts(void)
{
    for (int rank = 0; rank < KRN_RANKS_MAX; rank++) gpu_fill_f32(part[rank], ELEMENTS, (uint64_t)rank, 3.0f);
}

/* Sums [first, first + n) on the card, into memory of its own or into part 0. shift_rank's array lies at an odd address. */
static void compare(int32_t n_ranks, int64_t first, int64_t n, bool in_place, int shift_rank)
{
    err e = { 0 };
    const float *host[KRN_RANKS_MAX], *dev[KRN_RANKS_MAX];
    static float shifted[ELEMENTS + 1];
    for (int rank = 0; rank < n_ranks; rank++) {
        host[rank] = part[rank];
        if (rank == shift_rank) {
            memcpy(shifted + 1, part[rank], sizeof part[rank]);
            dev[rank] = (float *)gpu_put(shifted, sizeof shifted) + 1;
        } else {
            dev[rank] = gpu_put(part[rank], sizeof part[rank]);
        }
    }
    float *out = in_place ? (float *)(uintptr_t)dev[0] : gpu_out(sizeof got);
    if (in_place) memcpy(want, part[0], sizeof want);
    else memset(want, 0xa5, sizeof want);
    krn_sum_ranks_ref(host, n_ranks, first, n, want);
    gpu_ok(krn_sum_ranks(dev, n_ranks, first, n, out, gpu_stream(), &e), &e);
    gpu_get(out, got, sizeof got);
    gpu_free_all();
    gpu_same("sum_ranks", got, want, ELEMENTS, 4);
}

static void all_rank_counts_and_spans_give_the_twins_bits(void **state)
{
    (void)state;
    fill_parts();
    const int64_t span[][2] = { { 0, ELEMENTS }, { 0, 20 * 5120 }, { 10 * 5120, 5 * 5120 }, { 4, 9 }, { 1, 4 }, { 7, 1 },
                                { 3, 1026 }, { ELEMENTS, 0 } };
    for (int32_t n_ranks = 1; n_ranks <= KRN_RANKS_MAX; n_ranks++) {
        for (size_t i = 0; i < sizeof span / sizeof span[0]; i++) compare(n_ranks, span[i][0], span[i][1], i % 2, -1);
        compare(n_ranks, 0, ELEMENTS, false, n_ranks - 1);
    }
}

/* 2^24 + 1 - 2^24 in f32: only one order gives 0. */
static void ranks_are_added_in_ascending_order(void **state)
{
    (void)state;
    for (int64_t i = 0; i < ELEMENTS; i++) {
        part[0][i] = 0x1p24f;
        part[1][i] = 1;
        part[2][i] = -0x1p24f;
    }
    compare(3, 0, ELEMENTS, false, -1);
    for (int64_t i = 0; i < ELEMENTS; i++) assert_true(got[i] == 0);
    for (int64_t i = 0; i < ELEMENTS; i++) part[1][i] = -0x1p24f, part[2][i] = 1;
    compare(3, 0, ELEMENTS, false, -1);
    for (int64_t i = 0; i < ELEMENTS; i++) assert_true(got[i] == 1);
}

static void one_rank_is_a_copy_of_bits(void **state)
{
    (void)state;
    for (int64_t i = 0; i < ELEMENTS; i++) part[0][i] = f32_from_bits(gpu_hash(9, (uint64_t)i)); /* NaN payloads too */
    part[0][1] = f32_from_bits(0x7f800001);
    part[0][2] = -0.0f;
    compare(1, 0, ELEMENTS, false, -1);
    compare(1, 1, ELEMENTS - 2, false, 0);
}

static void arguments_outside_the_contract_are_refused(void **state)
{
    (void)state;
    err e = { 0 };
    const float *none[KRN_RANKS_MAX + 1] = { 0 };
    assert_int_equal(krn_sum_ranks(none, 0, 0, 1, NULL, gpu_stream(), &e), ERR_ARG);
    assert_int_equal(krn_sum_ranks(none, KRN_RANKS_MAX + 1, 0, 1, NULL, gpu_stream(), &e), ERR_ARG);
    assert_int_equal(krn_sum_ranks(none, 1, -1, 1, NULL, gpu_stream(), &e), ERR_ARG);
    assert_int_equal(krn_sum_ranks(none, 1, 0, -1, NULL, gpu_stream(), &e), ERR_ARG);
    gpu_ok(krn_sum_ranks(none, 1, 0, 0, NULL, gpu_stream(), &e), &e);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(all_rank_counts_and_spans_give_the_twins_bits),
    cmocka_unit_test(ranks_are_added_in_ascending_order),
    cmocka_unit_test(one_rank_is_a_copy_of_bits),
    cmocka_unit_test(arguments_outside_the_contract_are_refused),
};
GPU_MAIN(tests)
