/* The twin of the snapshot kernel, and the layout that both follow. */
#include "kernels/snapshot.h"

#include "check.h"

#include <stdlib.h>
#include <string.h>

enum { ROWS = 6, SLOTS = 3, WINDOW = 8, HEAD = 20, COLS = 100, OUT_BYTES = 1 << 16, UNWRITTEN = 0xa5 };

static float rows[ROWS * COLS];
static bf16 rings[SLOTS * WINDOW * HEAD];
static int32_t ids[SLOTS * 3];
static _Alignas(KRN_SNAP_ALIGN) uint8_t out[OUT_BYTES];

enum { COPY_IDS, DIGEST_ROWS, RING1_COPY, RING0_DIGEST, TOP_ROWS, COPY_ROWS, N_ITEMS };

static const krn_snap_item ITEMS[N_ITEMS] = {
    [COPY_IDS] = { .src = ids, .row_bytes = 12, .per = KRN_SNAP_PER_SLOT, .keep = KRN_SNAP_COPY, .dtype = FMT_DTYPE_I32 },
    [DIGEST_ROWS] = { .src = rows, .row_bytes = 4 * COLS, .per = KRN_SNAP_PER_ROW, .keep = KRN_SNAP_DIGEST,
                      .dtype = FMT_DTYPE_F32 },
    [RING1_COPY] = { .src = rings, .row_bytes = 2 * HEAD, .slot_bytes = 2 * HEAD * WINDOW, .per = KRN_SNAP_PER_WINDOW + 1,
                     .keep = KRN_SNAP_COPY, .dtype = FMT_DTYPE_BF16 },
    [RING0_DIGEST] = { .src = rings, .row_bytes = 2 * HEAD, .slot_bytes = 2 * HEAD * WINDOW, .per = KRN_SNAP_PER_WINDOW,
                       .keep = KRN_SNAP_DIGEST, .dtype = FMT_DTYPE_BF16 },
    [TOP_ROWS] = { .src = rows, .row_bytes = 4 * COLS, .per = KRN_SNAP_PER_ROW, .keep = KRN_SNAP_TOP_ROWS,
                   .dtype = FMT_DTYPE_F32, .cols = COLS / 2 }, /* two rows of 50 a unit */
    [COPY_ROWS] = { .src = rows, .row_bytes = 4 * COLS, .per = KRN_SNAP_PER_ROW, .keep = KRN_SNAP_COPY,
                    .dtype = FMT_DTYPE_F32 },
};

static void fill(void)
{
    fill_f32(rows, ROWS * COLS, 1, 3);
    fill_bf16(rings, SLOTS * WINDOW * HEAD, 2, 3);
    for (int i = 0; i < SLOTS * 3; i++) ids[i] = 100 - i;
    memset(out, UNWRITTEN, sizeof out);
}

static krn_snap_live live_of(int32_t n_rows, int32_t n_slots, int32_t window0, int32_t window1)
{
    return (krn_snap_live){ .count = { n_rows, n_slots, window0, window1 }, .slot = { 2, 1 } };
}

static void parts_lie_in_order_at_multiples_of_the_alignment(void **state)
{
    (void)state;
    uint64_t offset[N_ITEMS];
    krn_snap_live live = live_of(5, 2, 3, 4);
    assert_int_equal(krn_snapshot_layout(ITEMS, N_ITEMS, &live, offset), 256 * (1 + 1 + 1 + 1 + 16 + 8));
    const uint64_t wanted[N_ITEMS] = { 0, 256, 512, 768, 1024, 1024 + 4096 }; /* 24, 240, 160, 144, 4000, 2000 bytes */
    assert_memory_equal(offset, wanted, sizeof wanted);
    live = live_of(0, 0, 0, 0);
    assert_int_equal(krn_snapshot_layout(ITEMS, N_ITEMS, &live, offset), 0);
    assert_int_equal(krn_snapshot_layout(ITEMS, 0, &live, offset), 0);
}

static void every_part_is_what_its_item_keeps(void **state)
{
    (void)state;
    uint64_t offset[N_ITEMS];
    const krn_snap_live live = live_of(5, 2, 3, 4);
    fill();
    uint64_t bytes = krn_snapshot_layout(ITEMS, N_ITEMS, &live, offset);
    krn_snapshot_ref(ITEMS, N_ITEMS, &live, out);
    assert_memory_equal(out + offset[COPY_IDS], ids, 24);
    assert_memory_equal(out + offset[COPY_ROWS], rows, 5 * 4 * COLS);
    assert_memory_equal(out + offset[RING1_COPY], rings + 1 * WINDOW * HEAD, 4 * 2 * HEAD);
    for (int r = 0; r < 5; r++) {
        krn_piece wanted;
        krn_digest_piece_ref(rows + r * COLS, 4 * COLS, 0, FMT_DTYPE_F32, &wanted);
        assert_memory_equal(out + offset[DIGEST_ROWS] + (size_t)r * sizeof wanted, &wanted, sizeof wanted);
    }
    for (int r = 0; r < 3; r++) {
        krn_piece wanted;
        krn_digest_piece_ref(rings + (2 * WINDOW + r) * HEAD, 2 * HEAD, 0, FMT_DTYPE_BF16, &wanted);
        assert_memory_equal(out + offset[RING0_DIGEST] + (size_t)r * sizeof wanted, &wanted, sizeof wanted);
    }
    float values[10 * 50];
    int32_t columns[10 * 50];
    krn_top_rows(&(const float *){ rows }, &(int64_t){ 50 }, 1, 10, 50, values, columns);
    assert_memory_equal(out + offset[TOP_ROWS], values, sizeof values);
    assert_memory_equal(out + offset[TOP_ROWS] + sizeof values, columns, sizeof columns);
    for (uint64_t i = bytes; i < OUT_BYTES; i++) assert_int_equal(out[i], UNWRITTEN);
    for (uint64_t i = offset[COPY_IDS] + 24; i < offset[DIGEST_ROWS]; i++) assert_int_equal(out[i], UNWRITTEN);
}

/* A window without live rows may name any slot. */
static void what_is_not_live_is_not_read(void **state)
{
    (void)state;
    krn_snap_item items[N_ITEMS];
    krn_snap_live live = live_of(0, 0, 0, 0);
    live.slot[0] = live.slot[1] = -1;
    memcpy(items, ITEMS, sizeof items);
    for (int i = 0; i < N_ITEMS; i++) items[i].src = NULL;
    memset(out, UNWRITTEN, sizeof out);
    krn_snapshot_ref(items, N_ITEMS, &live, out);
    for (int i = 0; i < OUT_BYTES; i++) assert_int_equal(out[i], UNWRITTEN);
}

static void long_rows_are_cut_into_pieces(void **state)
{
    (void)state;
    enum { LONG = KRN_PIECE_BYTES / 2 + 3 };
    static bf16 x[2 * LONG];
    uint64_t offset;
    const krn_snap_item item = { .src = x, .row_bytes = 2 * LONG, .per = KRN_SNAP_PER_ROW, .keep = KRN_SNAP_DIGEST,
                                 .dtype = FMT_DTYPE_BF16 };
    const krn_snap_live live = live_of(2, 0, 0, 0);
    fill_bf16(x, 2 * LONG, 5, 1);
    assert_int_equal(krn_snapshot_layout(&item, 1, &live, &offset), 256); /* 4 * 48 bytes */
    krn_snapshot_ref(&item, 1, &live, out);
    const int64_t shape[] = { 2, LONG };
    fmt_tensor t = fmt_tensor_make(FMT_DTYPE_BF16, x, 2, shape);
    uint64_t got, wanted;
    fmt_stats stats;
    krn_digest_join((const krn_piece *)(const void *)out, 2, 2 * LONG, FMT_DTYPE_BF16, NULL, &got, &stats);
    krn_digest_ref(&t, NULL, &wanted, &stats);
    assert_int_equal(got, wanted);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_lie_in_order_at_multiples_of_the_alignment),
        cmocka_unit_test(every_part_is_what_its_item_keeps),
        cmocka_unit_test(what_is_not_live_is_not_read),
        cmocka_unit_test(long_rows_are_cut_into_pieces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
