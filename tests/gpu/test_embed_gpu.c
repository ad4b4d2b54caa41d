/* krn_block_ids, krn_embed and krn_first_pre on the card: the twins' bits. */
#include "kernels/embed.h"

#include "gpu.h"

#include <stdlib.h>

static void blocks_have_the_twins_ids_and_positions(void **state)
{
    (void)state;
    const int32_t batches[] = { 1, 2, 3, 4, 1, 33, 100 }, blocks[] = { 5, 5, 5, 5, 1, 4, 7 };
    for (int i = 0; i < 7; i++) {
        err e = { 0 };
        int32_t anchor[100], last[100], ids[700], pos[700], want_ids[700], want_pos[700];
        size_t n = (size_t)(batches[i] * blocks[i]) * 4, batch_bytes = (size_t)batches[i] * 4;
        for (int b = 0; b < batches[i]; b++) {
            anchor[b] = (int32_t)(gpu_hash(1, (uint64_t)b) % 129280);
            last[b] = (int32_t)(gpu_hash(2, (uint64_t)b) % 1000) - 1;
        }
        last[0] = -1;
        krn_block_ids_ref(anchor, last, batches[i], blocks[i], 128799, want_ids, want_pos);
        int32_t *da = gpu_put(anchor, batch_bytes), *dl = gpu_put(last, batch_bytes), *di = gpu_out(n), *dp = gpu_out(n);
        gpu_ok(krn_block_ids(da, dl, batches[i], blocks[i], 128799, di, dp, gpu_stream(), &e), &e);
        gpu_get(di, ids, n);
        gpu_get(dp, pos, n);
        gpu_free_all();
        gpu_same("ids", ids, want_ids, batches[i] * blocks[i], 4);
        gpu_same("pos", pos, want_pos, batches[i] * blocks[i], 4);
    }
}

typedef struct shape { int32_t rows, vocab, dim, hc, shift; } shape; /* shift: of the table and x past an aligned address */

static void embeddings_are_copied_bit_for_bit(void **state)
{
    (void)state;
    const shape shapes[] = { { 5, 500, 5120, 4, 0 },  { 10, 500, 5120, 4, 0 }, { 15, 500, 5120, 4, 0 },
                             { 20, 500, 5120, 4, 0 }, { 20, 500, 5120, 4, 1 }, { 3, 40, 64, 4, 0 },
                             { 4, 40, 65, 3, 0 },     { 2, 3, 1, 1, 0 },       { 6, 9, 1030, 2, 0 } };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        err e = { 0 };
        const shape *s = &shapes[i];
        int64_t table_n = (int64_t)s->vocab * s->dim + s->shift, n = (int64_t)s->rows * s->hc * s->dim;
        int32_t ids[20];
        bf16 *table = malloc((size_t)table_n * 2), *want = malloc((size_t)n * 2), *got = malloc((size_t)(n + s->shift) * 2);
        assert_true(table && want && got);
        for (int64_t j = 0; j < table_n; j++) table[j] = (bf16)gpu_hash(3, (uint64_t)j);
        for (int32_t r = 0; r < s->rows; r++) ids[r] = (int32_t)(gpu_hash(4, (uint64_t)r) % (uint32_t)s->vocab);
        ids[0] = s->vocab - 1;
        if (s->rows > 2) { /* outside on both sides */
            ids[1] = -1;
            ids[2] = s->vocab;
        }
        krn_embed_ref(ids, s->rows, table + s->shift, s->vocab, s->dim, s->hc, want);
        bf16 *dt = gpu_put(table, (size_t)table_n * 2), *dx = gpu_out((size_t)(n + s->shift) * 2);
        int32_t *di = gpu_put(ids, (size_t)s->rows * 4);
        gpu_ok(krn_embed(di, s->rows, dt + s->shift, s->vocab, s->dim, s->hc, dx + s->shift, gpu_stream(), &e), &e);
        gpu_get(dx, got, (size_t)(n + s->shift) * 2);
        gpu_free_all();
        gpu_same("embed", got + s->shift, want, n, 2);
        free(table);
        free(want);
        free(got);
    }
}

static void the_first_pre_mix_takes_copy_0(void **state)
{
    (void)state;
    const int32_t rows[] = { 1, 20, 128, 33 }, hc[] = { 4, 4, 4, 1 };
    for (int i = 0; i < 4; i++) {
        err e = { 0 };
        float got[512], want[512];
        size_t bytes = (size_t)(rows[i] * hc[i]) * 4;
        krn_first_pre_ref(want, rows[i], hc[i]);
        float *pre = gpu_out(bytes);
        gpu_ok(krn_first_pre(pre, rows[i], hc[i], gpu_stream(), &e), &e);
        gpu_get(pre, got, bytes);
        gpu_free_all();
        gpu_same("first_pre", got, want, rows[i] * hc[i], 4);
    }
}

static void shapes_outside_the_contract_are_refused(void **state)
{
    (void)state;
    err e = { 0 };
    krn_stream s = gpu_stream();
    assert_int_equal(krn_block_ids(NULL, NULL, -1, 5, 0, NULL, NULL, s, &e), ERR_ARG);
    assert_int_equal(krn_block_ids(NULL, NULL, 1, 0, 0, NULL, NULL, s, &e), ERR_ARG);
    assert_int_equal(krn_embed(NULL, -1, NULL, 1, 1, 1, NULL, s, &e), ERR_ARG);
    assert_int_equal(krn_embed(NULL, 1, NULL, 0, 1, 1, NULL, s, &e), ERR_ARG);
    assert_int_equal(krn_embed(NULL, 1, NULL, 1, 0, 1, NULL, s, &e), ERR_ARG);
    assert_int_equal(krn_embed(NULL, 1, NULL, 1, 1, 0, NULL, s, &e), ERR_ARG);
    assert_int_equal(krn_first_pre(NULL, -1, 4, s, &e), ERR_ARG);
    assert_int_equal(krn_first_pre(NULL, 1, 0, s, &e), ERR_ARG);
    gpu_ok(krn_block_ids(NULL, NULL, 0, 5, 0, NULL, NULL, s, &e), &e);
    gpu_ok(krn_embed(NULL, 0, NULL, 1, 1, 1, NULL, s, &e), &e);
    gpu_ok(krn_first_pre(NULL, 0, 4, s, &e), &e);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(blocks_have_the_twins_ids_and_positions),
    cmocka_unit_test(embeddings_are_copied_bit_for_bit),
    cmocka_unit_test(the_first_pre_mix_takes_copy_0),
    cmocka_unit_test(shapes_outside_the_contract_are_refused),
};
GPU_MAIN(tests)
