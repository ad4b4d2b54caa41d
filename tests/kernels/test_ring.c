/* krn_ring_write_ref: places, wrap, and what stays. */
#include "kernels/ring.h"

#include "check.h"

enum { WINDOW = 8, HD = 4 };

/* Row of position p holds p in every element; bits of a NaN with a payload must survive too. */
static void make_rows(bf16 *kv, int32_t *pos, int32_t first, int32_t rows)
{
    for (int32_t r = 0; r < rows; r++) {
        pos[r] = first + r;
        for (int d = 0; d < HD; d++) kv[r * HD + d] = (bf16)(0x7f80 + first + r);
    }
}

static void row_p_lies_at_p_mod_window(void **state)
{
    (void)state;
    for (int32_t first = 0; first < 3 * WINDOW; first++) {
        bf16 kv[3 * HD], ring[WINDOW * HD];
        int32_t pos[3];
        memset(ring, 0xa5, sizeof ring);
        make_rows(kv, pos, first, 3);
        krn_ring_write_ref(kv, pos, 3, ring, WINDOW, HD);
        for (int32_t at = 0; at < WINDOW; at++) {
            int32_t offset = (at - first % WINDOW + WINDOW) % WINDOW;
            for (int d = 0; d < HD; d++)
                assert_int_equal(ring[at * HD + d], offset < 3 ? (bf16)(0x7f80 + first + offset) : 0xa5a5);
        }
    }
}

static void a_long_insert_leaves_its_last_window(void **state)
{
    (void)state;
    enum { ROWS = 3 * WINDOW + 5 };
    bf16 kv[ROWS * HD], ring[WINDOW * HD];
    int32_t pos[ROWS];
    make_rows(kv, pos, 2, ROWS);
    krn_ring_write_ref(kv, pos, ROWS, ring, WINDOW, HD);
    for (int32_t p = 2 + ROWS - WINDOW; p < 2 + ROWS; p++) assert_int_equal(ring[p % WINDOW * HD], 0x7f80 + p);
}

static void positions_need_not_be_consecutive(void **state)
{
    (void)state;
    const int32_t pos[4] = { 3, 3 + WINDOW, 6, 3 + 5 * WINDOW };
    bf16 kv[4 * HD], ring[WINDOW * HD] = { 0 };
    for (int i = 0; i < 4 * HD; i++) kv[i] = (bf16)(i / HD + 1);
    krn_ring_write_ref(kv, pos, 4, ring, WINDOW, HD);
    for (int at = 0; at < WINDOW; at++) assert_int_equal(ring[at * HD], at == 3 ? 4 : at == 6 ? 3 : 0); /* the last stays */
}

static void rows_of_negative_position_are_dropped(void **state)
{
    (void)state;
    const int32_t pos[4] = { -1, 3, -WINDOW + 3, INT32_MIN };
    bf16 kv[4 * HD], ring[WINDOW * HD] = { 0 };
    for (int i = 0; i < 4 * HD; i++) kv[i] = (bf16)(i / HD + 1);
    krn_ring_write_ref(kv, pos, 4, ring, WINDOW, HD);
    for (int at = 0; at < WINDOW; at++) assert_int_equal(ring[at * HD], at == 3 ? 2 : 0);
}

static void one_insert_or_many_give_the_same_ring(void **state)
{
    (void)state;
    enum { ROWS = 21 };
    bf16 kv[ROWS * HD], whole[WINDOW * HD] = { 0 }, pieces[WINDOW * HD] = { 0 };
    int32_t pos[ROWS];
    make_rows(kv, pos, 5, ROWS);
    krn_ring_write_ref(kv, pos, ROWS, whole, WINDOW, HD);
    for (int32_t r = 0; r < ROWS; r += 3) krn_ring_write_ref(kv + r * HD, pos + r, 3, pieces, WINDOW, HD);
    assert_bf16_same(pieces, whole, WINDOW * HD);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(row_p_lies_at_p_mod_window),
        cmocka_unit_test(a_long_insert_leaves_its_last_window),
        cmocka_unit_test(positions_need_not_be_consecutive),
        cmocka_unit_test(rows_of_negative_position_are_dropped),
        cmocka_unit_test(one_insert_or_many_give_the_same_ring),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
