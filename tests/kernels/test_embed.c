/* The block's tokens and positions, their embeddings, the first pre-mix. */
#include "kernels/embed.h"

#include "check.h"

static void a_block_is_its_anchor_then_noise_at_the_next_positions(void **state)
{
    (void)state;
    enum { BATCH = 3, BLOCK = 4 };
    const int32_t anchor[BATCH] = { 7, 0, 129279 }, last[BATCH] = { -1, 0, 1000 };
    const int32_t want_ids[BATCH * BLOCK] = { 7, 9, 9, 9, 0, 9, 9, 9, 129279, 9, 9, 9 };
    const int32_t want_pos[BATCH * BLOCK] = { 0, 1, 2, 3, 1, 2, 3, 4, 1001, 1002, 1003, 1004 };
    int32_t ids[BATCH * BLOCK], pos[BATCH * BLOCK];
    krn_block_ids_ref(anchor, last, BATCH, BLOCK, 9, ids, pos);
    assert_memory_equal(ids, want_ids, sizeof ids);
    assert_memory_equal(pos, want_pos, sizeof pos);
}

static void every_copy_is_the_row_of_the_table_bit_for_bit(void **state)
{
    (void)state;
    enum { VOCAB = 5, DIM = 3, HC = 2, ROWS = 4 };
    const int32_t ids[ROWS] = { 4, 0, 4, 2 };
    bf16 table[VOCAB * DIM], x[ROWS * HC * DIM + 1];
    for (int i = 0; i < VOCAB * DIM; i++) table[i] = (bf16)(0x7f81 + i); /* NaNs with payloads */
    x[ROWS * HC * DIM] = 0xa5a5;
    krn_embed_ref(ids, ROWS, table, VOCAB, DIM, HC, x);
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < HC; c++) assert_bf16_same(x + (r * HC + c) * DIM, table + ids[r] * DIM, DIM);
    assert_int_equal(x[ROWS * HC * DIM], 0xa5a5);
}

static void an_id_outside_the_table_gives_nan(void **state)
{
    (void)state;
    enum { VOCAB = 2, DIM = 3, HC = 2, ROWS = 4 };
    const int32_t ids[ROWS] = { -1, 1, VOCAB, INT32_MIN };
    const bf16 table[VOCAB * DIM] = { 1, 2, 3, 4, 5, 6 };
    bf16 x[ROWS * HC * DIM];
    krn_embed_ref(ids, ROWS, table, VOCAB, DIM, HC, x);
    for (int i = 0; i < ROWS * HC * DIM; i++)
        assert_int_equal(x[i], i / (HC * DIM) == 1 ? table[DIM + i % DIM] : 0x7fc0);
}

static void the_first_pre_mix_takes_copy_0(void **state)
{
    (void)state;
    const float want[6] = { 1, 0, 0, 1, 0, 0 };
    float pre[7] = { 9, 9, 9, 9, 9, 9, 9 };
    krn_first_pre_ref(pre, 2, 3);
    assert_f32_same(pre, want, 6);
    assert_true(pre[6] == 9);
    krn_first_pre_ref(pre, 2, 1);
    assert_true(pre[0] == 1 && pre[1] == 1 && pre[2] == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_block_is_its_anchor_then_noise_at_the_next_positions),
        cmocka_unit_test(every_copy_is_the_row_of_the_table_bit_for_bit),
        cmocka_unit_test(an_id_outside_the_table_gives_nan),
        cmocka_unit_test(the_first_pre_mix_takes_copy_0),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
