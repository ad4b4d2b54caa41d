/* krn_ring_write on the card: the twin's ring in the slot that device memory names, all other bytes as they were. */
#include "kernels/ring.h"

#include "gpu.h"

#include <stdlib.h>

enum { SLOTS = 3, ROWS_MAX = 300 };

typedef struct shape { int32_t rows, window, head_dim; int64_t gap; } shape; /* gap: elements between rings */

/* Writes pos's rows into each slot in turn and compares all of the rings. */
static void compare(const shape *s, const int32_t *pos)
{
    err e = { 0 };
    int64_t stride = (int64_t)s->window * s->head_dim + s->gap, n = SLOTS * stride, kv_n = (int64_t)s->rows * s->head_dim;
    bf16 *kv = malloc((size_t)kv_n * 2), *want = malloc((size_t)n * 2), *got = malloc((size_t)n * 2);
    assert_true(kv && want && got);
    for (int64_t i = 0; i < kv_n; i++) kv[i] = (bf16)gpu_hash(1, (uint64_t)i);
    for (int64_t i = 0; i < n; i++) want[i] = (bf16)gpu_hash(2, (uint64_t)i);
    bf16 *rings = gpu_put(want, (size_t)n * 2), *dkv = gpu_put(kv, (size_t)kv_n * 2);
    int32_t *dpos = gpu_put(pos, (size_t)s->rows * 4);
    for (int32_t slot = SLOTS - 1; slot >= 0; slot--) {
        int32_t *dslot = gpu_put(&slot, sizeof slot);
        krn_ring_write_ref(kv, pos, s->rows, want + slot * stride, s->window, s->head_dim);
        gpu_ok(krn_ring_write(dkv, dpos, s->rows, rings, stride, dslot, s->window, s->head_dim, gpu_stream(), &e), &e);
        gpu_get(rings, got, (size_t)n * 2);
        gpu_same("rings", got, want, n, 2);
    }
    gpu_free_all();
    free(kv);
    free(want);
    free(got);
}

static void consecutive_rows_of_every_shape(void **state)
{
    (void)state;
    const shape shapes[] = { { 1, 128, 512, 0 },   { 5, 128, 512, 0 }, { 20, 128, 512, 64 }, { 128, 128, 512, 0 },
                             { 300, 128, 512, 8 }, { 7, 16, 32, 0 },   { 40, 16, 33, 1 },    { 9, 1, 8, 0 },
                             { 3, 5, 1, 0 },       { 130, 3, 2048, 0 } };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        const int32_t starts[] = { 0, 100, 131071 };
        for (int k = 0; k < 3; k++) {
            int32_t pos[ROWS_MAX];
            for (int32_t r = 0; r < shapes[i].rows; r++) pos[r] = starts[k] + r;
            compare(&shapes[i], pos);
        }
    }
}

/* Repeated places in any order, with padding between: of those for one place the last row stays. */
static void the_last_row_of_a_place_stays_and_padding_is_dropped(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 8; seed++) {
        const shape s = { 30 + 30 * (int32_t)seed, 16, 32, 0 };
        int32_t pos[ROWS_MAX];
        for (int32_t r = 0; r < s.rows; r++) {
            uint32_t h = gpu_hash(seed, (uint64_t)r);
            pos[r] = h % 3 == 0 ? -1 - (int32_t)(h >> 8 & 31) : (int32_t)(h >> 8 & 0xffff);
        }
        compare(&s, pos);
    }
    const int32_t only_padding[3] = { -1, -16, INT32_MIN };
    compare(&(shape){ 3, 16, 32, 0 }, only_padding);
}

static void shapes_outside_the_contract_are_refused(void **state)
{
    (void)state;
    err e = { 0 };
    assert_int_equal(krn_ring_write(NULL, NULL, -1, NULL, 64, NULL, 8, 8, gpu_stream(), &e), ERR_ARG);
    assert_int_equal(krn_ring_write(NULL, NULL, 1, NULL, 64, NULL, 0, 8, gpu_stream(), &e), ERR_ARG);
    assert_int_equal(krn_ring_write(NULL, NULL, 1, NULL, 64, NULL, 8, 0, gpu_stream(), &e), ERR_ARG);
    assert_int_equal(krn_ring_write(NULL, NULL, 1, NULL, 63, NULL, 8, 8, gpu_stream(), &e), ERR_ARG);
    gpu_ok(krn_ring_write(NULL, NULL, 0, NULL, 64, NULL, 8, 8, gpu_stream(), &e), &e);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(consecutive_rows_of_every_shape),
    cmocka_unit_test(the_last_row_of_a_place_stays_and_padding_is_dropped),
    cmocka_unit_test(shapes_outside_the_contract_are_refused),
};
GPU_MAIN(tests)
