/* krn_snapshot on the card: the twin's bytes, for all kinds of items, shapes, alignments and values; sum_squares in the
 * order that the contract names; what a snapshot takes. */
#include "kernels/snapshot.h"

#include "base/mem.h"
#include "gpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ARENA_BYTES = 40 << 20, UNWRITTEN = 0xa5, ALIGN = 256 };

/* Sources lie in one piece of host memory, which is copied to the device as a whole. */
static uint8_t *arena;
static size_t arena_used;

static bool small(void) { return getenv("SPARKTAPE_GPU_SMALL") != NULL; }

static void begin(void)
{
    if (!arena) arena = malloc(ARENA_BYTES);
    assert_non_null(arena);
    arena_used = 0;
}

/* shift: bytes beyond an aligned place. */
static void *take(size_t bytes, size_t shift)
{
    arena_used = (arena_used + ALIGN - 1) / ALIGN * ALIGN;
    void *p = arena + arena_used + shift;
    arena_used += bytes + shift;
    assert_true(arena_used <= ARENA_BYTES);
    return p;
}

/* An item of n units with normal values. */
static krn_snap_item item(krn_snap_per per, krn_snap_keep keep, fmt_dtype d, int64_t n, int64_t elems, size_t shift)
{
    const size_t size = fmt_dtype_bytes(d);
    void *p = take((size_t)(n * elems) * size, shift);
    for (int64_t i = 0; i < n * elems; i++) {
        float v = gpu_normal((uint64_t)(elems + (uint8_t *)p - arena), (uint64_t)i);
        bf16 half = bf16_from_f32(v);
        int32_t whole = (int32_t)(v * 1000);
        const void *value = d == FMT_DTYPE_BF16 ? (void *)&half : d == FMT_DTYPE_F32 ? (void *)&v : (void *)&whole;
        memcpy((uint8_t *)p + (size_t)i * size, value, size);
    }
    return (krn_snap_item){ .src = p, .row_bytes = (uint64_t)elems * size, .per = per, .keep = keep, .dtype = d,
                            .cols = keep == KRN_SNAP_TOP_ROWS ? (int32_t)elems : 0 };
}

/* ---- a run ---- */

typedef struct run {
    const krn_snap_item *items;
    int32_t n;
    krn_snap_live live;
    krn_snap_item *to_device; /* items with their places on the device; d_items holds them */
    void *d_items, *d_out;
    uint64_t bytes, *offset;
    uint8_t *got, *wanted;
} run;

static void launch(const run *r)
{
    err e = { 0 };
    gpu_ok(krn_snapshot(r->d_items, r->to_device, r->n, &r->live, r->d_out, gpu_stream(), &e), &e);
}

static run make(const krn_snap_item *items, int32_t n, krn_snap_live live)
{
    run r = { .items = items, .n = n, .live = live };
    r.to_device = mem_alloc((size_t)n + 1, sizeof *r.to_device);
    r.offset = mem_alloc((size_t)n + 1, sizeof *r.offset);
    r.bytes = krn_snapshot_layout(items, n, &live, r.offset);
    r.got = malloc(r.bytes + 1);
    r.wanted = malloc(r.bytes + 1);
    assert_true(r.to_device && r.offset && r.got && r.wanted);
    const uint8_t *d_arena = gpu_put(arena, arena_used);
    for (int32_t i = 0; i < n; i++) {
        r.to_device[i] = items[i];
        r.to_device[i].src = d_arena + ((const uint8_t *)items[i].src - arena);
    }
    r.d_items = gpu_put(r.to_device, (size_t)n * sizeof *r.to_device);
    r.d_out = gpu_out(r.bytes);
    return r;
}

static void done_host(run *r)
{
    free(r->to_device);
    free(r->offset);
    free(r->got);
    free(r->wanted);
}

/* Of the last run: the device memory of all is freed. */
static void done(run *r)
{
    done_host(r);
    gpu_free_all();
}

static void run_both(run *r)
{
    launch(r);
    gpu_get(r->d_out, r->got, r->bytes);
    memset(r->wanted, UNWRITTEN, r->bytes);
    krn_snapshot_ref(r->items, r->n, &r->live, r->wanted);
}

static bool like(double a, double b) { return a == b || fabs(a - b) <= 1e-12 * fabs(b); }

/* The first byte of got that differs, or -1. Sums of squares that are like the twin's are made the twin's first. */
static int64_t first_difference(run *r)
{
    for (int32_t i = 0; i < r->n; i++) {
        if (r->items[i].keep != KRN_SNAP_DIGEST) continue;
        krn_piece *got = (krn_piece *)(void *)(r->got + r->offset[i]);
        const krn_piece *wanted = (const krn_piece *)(const void *)(r->wanted + r->offset[i]);
        uint64_t n = krn_pieces((uint64_t)r->live.count[r->items[i].per], r->items[i].row_bytes);
        for (uint64_t k = 0; k < n; k++)
            if (like(got[k].sum_squares, wanted[k].sum_squares)) got[k].sum_squares = wanted[k].sum_squares;
    }
    for (uint64_t k = 0; k < r->bytes; k++)
        if (r->got[k] != r->wanted[k]) return (int64_t)k;
    return -1;
}

static void assert_same(run *r)
{
    int64_t at = first_difference(r);
    if (at < 0) return;
    int32_t i = r->n - 1;
    while (i > 0 && (uint64_t)at < r->offset[i]) i--;
    const krn_snap_item *it = &r->items[i];
    fail_msg("item %d of %d (per %d keep %d dtype %d row_bytes %llu cols %d): byte %lld of its part is %02x, wanted %02x",
             i, r->n, it->per, it->keep, it->dtype, (unsigned long long)it->row_bytes, it->cols,
             (long long)((uint64_t)at - r->offset[i]), r->got[at], r->wanted[at]);
}

static void check(const krn_snap_item *items, int32_t n, krn_snap_live live)
{
    run r = make(items, n, live);
    run_both(&r);
    assert_same(&r);
    done(&r);
}

static krn_snap_live live_of(int32_t rows, int32_t slots)
{
    return (krn_snap_live){ .count = { rows, slots } };
}

/* ---- items ---- */

static void shapes_of_a_step_are_kept_as_by_the_twin(void **state)
{
    (void)state;
    static const int32_t rows[] = { 5, 10, 15, 20, 1 };
    for (size_t t = 0; t < COUNT_OF(rows); t++) {
        const int64_t T = rows[t], S = (T + 4) / 5, dim = small() ? 512 : 5120;
        begin();
        const krn_snap_item items[] = {
            item(KRN_SNAP_PER_ROW, KRN_SNAP_DIGEST, FMT_DTYPE_BF16, T, 4 * dim, 0),
            item(KRN_SNAP_PER_ROW, KRN_SNAP_COPY, FMT_DTYPE_BF16, T, 4 * dim, 0),
            item(KRN_SNAP_PER_ROW, KRN_SNAP_DIGEST, FMT_DTYPE_F32, T, dim, 0),
            item(KRN_SNAP_PER_ROW, KRN_SNAP_COPY, FMT_DTYPE_I32, T, 3, 0),
            item(KRN_SNAP_PER_ROW, KRN_SNAP_DIGEST, FMT_DTYPE_I32, T, 3, 0),
            item(KRN_SNAP_PER_ROW, KRN_SNAP_TOP_ROWS, FMT_DTYPE_F32, T, small() ? 5000 : 64640, 0),
            item(KRN_SNAP_PER_SLOT, KRN_SNAP_COPY, FMT_DTYPE_F32, S, 5, 0),
            item(KRN_SNAP_PER_SLOT, KRN_SNAP_DIGEST, FMT_DTYPE_BF16, S, 64 * 512, 0),
            item(KRN_SNAP_PER_ROW, KRN_SNAP_DIGEST, FMT_DTYPE_F32, T, 128, 0),
            item(KRN_SNAP_PER_ROW, KRN_SNAP_DIGEST, FMT_DTYPE_BF16, T, 512, 0),
            item(KRN_SNAP_PER_ROW, KRN_SNAP_DIGEST, FMT_DTYPE_F32, T, 4, 0),
        };
        check(items, COUNT_OF(items), live_of((int32_t)T, (int32_t)S));
        check(items, COUNT_OF(items), live_of((int32_t)(T - 1), 0)); /* less is live than there is room for */
    }
}

/* Lengths around vectors, spans and pieces, at any alignment that elements may have. */
static void lengths_and_alignments_do_not_matter(void **state)
{
    (void)state;
    static const int64_t elems[] = { 1, 2, 3, 4, 5, 7, 8, 9, 63, 255, 256, 257, 1024, 1025, 2047, 2050, 4096, 4099,
                                     8192, 8193, 8200, 12289 };
    static const fmt_dtype types[] = { FMT_DTYPE_BF16, FMT_DTYPE_F32, FMT_DTYPE_I32 };
    for (int d = 0; d < 3; d++)
        for (size_t shift = 0; shift < 16; shift += 2) {
            krn_snap_item items[2 * COUNT_OF(elems)];
            if (shift % fmt_dtype_bytes(types[d])) continue;
            begin();
            for (size_t i = 0; i < COUNT_OF(elems); i++)
                for (size_t k = 0; k < 2; k++)
                    items[2 * i + k] = item(KRN_SNAP_PER_ROW, k ? KRN_SNAP_COPY : KRN_SNAP_DIGEST, types[d], 3, elems[i],
                                            shift);
            check(items, COUNT_OF(items), live_of(3, 0));
        }
}

static void a_window_is_that_of_its_slot(void **state)
{
    (void)state;
    enum { SLOTS = 5, WINDOW = 12, HEAD = 40 };
    krn_snap_item items[2 * KRN_SNAP_SLOTS];
    begin();
    krn_snap_item ring = item(KRN_SNAP_PER_WINDOW, KRN_SNAP_COPY, FMT_DTYPE_BF16, SLOTS * WINDOW, HEAD, 0);
    ring.slot_bytes = WINDOW * HEAD * 2;
    for (int i = 0; i < 2 * KRN_SNAP_SLOTS; i++) {
        items[i] = ring;
        items[i].per = KRN_SNAP_PER_WINDOW + i / 2;
        if (i % 2) items[i].keep = KRN_SNAP_DIGEST;
    }
    krn_snap_live live = { .count = { 0, 0, WINDOW, 0, 1, WINDOW - 1 }, .slot = { 4, -7, 0, 2 } };
    check(items, 2 * KRN_SNAP_SLOTS, live);
}

/* As many items as there may be, some without a byte, some of one; and none at all. */
static void any_number_of_items(void **state)
{
    (void)state;
    static const int32_t numbers[] = { 1, 31, 32, 33, 255, 256, 257, KRN_SNAP_ITEMS_MAX };
    for (size_t k = 0; k < COUNT_OF(numbers); k++) {
        krn_snap_item items[KRN_SNAP_ITEMS_MAX];
        begin();
        for (int32_t i = 0; i < numbers[k]; i++) {
            static const krn_snap_keep keeps[] = { KRN_SNAP_COPY, KRN_SNAP_DIGEST, KRN_SNAP_TOP_ROWS };
            const krn_snap_per per = i % 7 ? KRN_SNAP_PER_ROW : KRN_SNAP_PER_SLOT;
            items[i] = item(per, keeps[i % 3], FMT_DTYPE_F32, 2, 1 + i * 5 % 301, 4);
            if (i % 11 == 5 && i % 3 != 2) items[i].row_bytes = 0;
        }
        check(items, numbers[k], live_of(2, 0));
        check(items, numbers[k], live_of(1, 2));
    }
    err e = { 0 };
    krn_snap_live live = live_of(1, 1);
    gpu_ok(krn_snapshot(NULL, NULL, 0, &live, NULL, gpu_stream(), &e), &e);
}

/* ---- values ---- */

static void every_bf16_and_special_f32_is_counted_as_by_the_twin(void **state)
{
    (void)state;
    enum { N = 65536 };
    static const float special[] = { NAN, INFINITY, -INFINITY, 0.0f, -0.0f, 0x1p-149f, -0x1.fffffcp-127f, 3.4028235e38f,
                                     -0x1p-126f, 1.0f };
    begin();
    bf16 *in_order = take(2 * N, 0), *mixed = take(2 * N, 0), *rare = take(2 * N, 0);
    float *wide = take(4 * N, 0), *only = take(4 * COUNT_OF(special) * 600, 0);
    int32_t *ends = take(4 * 640, 0);
    for (uint32_t i = 0; i < N; i++) {
        in_order[i] = (bf16)i;
        mixed[i] = (bf16)(i * 40503u);
        rare[i] = i % 977 ? bf16_from_f32(gpu_normal(1, i)) : (bf16)(i / 977 * 1021);
        wide[i] = i % 5 ? gpu_normal(2, i) : special[i / 5 % COUNT_OF(special)];
    }
    for (size_t i = 0; i < COUNT_OF(special) * 600; i++) only[i] = special[i / 600];
    for (int i = 0; i < 640; i++) ends[i] = i % 3 == 0 ? INT32_MIN : i % 3 == 1 ? INT32_MAX : 0;
    krn_snap_item items[] = {
        { .src = in_order, .row_bytes = 2 * N / 16, .dtype = FMT_DTYPE_BF16 },
        { .src = mixed, .row_bytes = 2 * N / 16, .dtype = FMT_DTYPE_BF16 },
        { .src = rare, .row_bytes = 2 * N / 16, .dtype = FMT_DTYPE_BF16 },
        { .src = wide, .row_bytes = 4 * N / 16, .dtype = FMT_DTYPE_F32 },
        { .src = ends, .row_bytes = 4 * 640 / 16, .dtype = FMT_DTYPE_I32 },
        { .src = in_order, .row_bytes = 2 * 128, .dtype = FMT_DTYPE_BF16 }, /* rows of few exponents */
        { .src = in_order + 0x7f80, .row_bytes = 2 * 8, .dtype = FMT_DTYPE_BF16 },
        { .src = in_order + 0xff80, .row_bytes = 2 * 8, .dtype = FMT_DTYPE_BF16 },
        { .src = only, .row_bytes = 4 * 600 * COUNT_OF(special) / 16, .dtype = FMT_DTYPE_F32 },
    };
    for (size_t i = 0; i < COUNT_OF(items); i++) items[i].keep = KRN_SNAP_DIGEST;
    check(items, COUNT_OF(items), live_of(16, 0));
    krn_snap_item one_value = { .src = only, .row_bytes = 4 * 600, .dtype = FMT_DTYPE_F32, .keep = KRN_SNAP_DIGEST };
    check(&one_value, 1, live_of(COUNT_OF(special), 0));
}

/* The contract's order, redone. */
static double squares_in_order(const uint8_t *p, uint32_t bytes, fmt_dtype d)
{
    double lane[32];
    const uint32_t size = fmt_dtype_bytes(d);
    for (uint32_t l = 0; l < 32; l++) {
        double sum[2] = { 0, 0 };
        for (uint32_t at = 16 * l; at < bytes; at += 512)
            for (uint32_t i = 0; i < 16 && at + i < bytes; i += size) {
                float v;
                bf16 half;
                memcpy(d == FMT_DTYPE_BF16 ? (void *)&half : (void *)&v, p + at + i, size);
                if (d == FMT_DTYPE_BF16) v = f32_from_bf16(half);
                if (!isnan(v)) sum[i / size % 2] += (double)v * (double)v;
            }
        lane[l] = sum[0] + sum[1];
    }
    for (int half = 16; half > 0; half /= 2)
        for (int l = 0; l < half; l++) lane[l] += lane[l + half];
    return lane[0];
}

static void squares_are_added_in_the_order_of_the_contract(void **state)
{
    (void)state;
    static const int64_t elems[] = { 1, 100, 1000, 1024, 4093, 5120, 8192, 20000 };
    for (int shift = 0; shift <= 4; shift += 4) {
        krn_snap_item items[2 * COUNT_OF(elems)];
        begin();
        for (size_t i = 0; i < COUNT_OF(items); i++) {
            const fmt_dtype d = i % 2 ? FMT_DTYPE_F32 : FMT_DTYPE_BF16;
            items[i] = item(KRN_SNAP_PER_ROW, KRN_SNAP_DIGEST, d, 2, elems[i / 2], (size_t)shift);
            if (i / 2 % 2 == 0) continue; /* half of them with values that are looked at one by one */
            uint8_t *p = arena + ((const uint8_t *)items[i].src - arena);
            for (uint64_t at = 0; at + 4 <= items[i].row_bytes; at += 4 * 37) memset(p + at, at / 4 % 2 ? 0 : 0xff, 4);
        }
        run r = make(items, COUNT_OF(items), live_of(2, 0));
        run_both(&r);
        for (size_t i = 0; i < COUNT_OF(items); i++) {
            const krn_piece *piece = (const krn_piece *)(const void *)(r.got + r.offset[i]);
            for (uint64_t row = 0; row < 2; row++)
                for (uint64_t at = 0; at < items[i].row_bytes; at += KRN_PIECE_BYTES, piece++) {
                    const uint64_t left = items[i].row_bytes - at;
                    double wanted = squares_in_order((const uint8_t *)items[i].src + row * items[i].row_bytes + at,
                                                     (uint32_t)(left < KRN_PIECE_BYTES ? left : KRN_PIECE_BYTES),
                                                     (fmt_dtype)items[i].dtype);
                    if (memcmp(&wanted, &piece->sum_squares, sizeof wanted) != 0)
                        fail_msg("item %zu row %llu byte %llu: %.17g, wanted %.17g", i, (unsigned long long)row,
                                 (unsigned long long)at, piece->sum_squares, wanted);
                }
        }
        done(&r);
    }
}

/* ---- largest entries ---- */

typedef float (*value_at)(uint32_t row, uint32_t c, uint32_t cols);

static float normal(uint32_t row, uint32_t c, uint32_t cols) { return gpu_normal(row * 7919u + cols, c); }
static float few_levels(uint32_t row, uint32_t c, uint32_t cols) { return (float)(gpu_hash(row + cols, c) % (2 + row)); }
static float the_same(uint32_t row, uint32_t c, uint32_t cols) { return (void)c, (void)cols, (float)row - 2; }
static float rising(uint32_t row, uint32_t c, uint32_t cols) { return (float)(row % 2 ? c : cols - c); }
/* What is large lies in fewer than 64 of the kernel's groups of columns: more reaches its bound than it has room for. */
static float crowded(uint32_t row, uint32_t c, uint32_t cols)
{
    return gpu_normal(row + cols, c) + (c / 4 % 128 < 40 + row ? 100.0f : 0.0f);
}
static float specials(uint32_t row, uint32_t c, uint32_t cols)
{
    static const float some[] = { NAN, INFINITY, -INFINITY, 0.0f, -0.0f, 0x1p-149f, -1.0f };
    uint32_t h = gpu_hash(row + cols, c);
    if (row == 0) return NAN;
    if (row == 1) return h % 2 ? NAN : -INFINITY;
    if (row == 2) return h % 2 ? -0.0f : 0.0f;
    if (row == 3) return c == cols / 2 ? 1.0f : NAN;
    return row == 4 && h % 3 ? gpu_normal(1, c) : some[h % COUNT_OF(some)];
}

static void the_largest_entries_are_the_twins(void **state)
{
    (void)state;
    static const value_at kinds[] = { normal, few_levels, the_same, rising, crowded, specials };
    static const uint32_t widths[] = { 1, 2, 63, 64, 65, 100, 1000, 4096, 5001, 16384, 16390, 64640, 129280 };
    enum { TOP_TEST_ROWS = 6 };
    for (size_t w = 0; w < COUNT_OF(widths); w++) {
        const uint32_t cols = widths[w];
        krn_snap_item items[COUNT_OF(kinds)];
        if (small() && cols > 16390) continue;
        begin();
        for (size_t k = 0; k < COUNT_OF(kinds); k++) {
            float *x = take(4 * (size_t)cols * TOP_TEST_ROWS, 4 * (k % 2));
            for (uint32_t r = 0; r < TOP_TEST_ROWS; r++)
                for (uint32_t c = 0; c < cols; c++) x[r * (size_t)cols + c] = kinds[k](r, c, cols);
            items[k] = (krn_snap_item){ .src = x, .row_bytes = 4 * (uint64_t)cols * 2, .per = KRN_SNAP_PER_ROW,
                                        .keep = KRN_SNAP_TOP_ROWS, .dtype = FMT_DTYPE_F32, .cols = (int32_t)cols };
        }
        check(items, COUNT_OF(items), live_of(TOP_TEST_ROWS / 2, 0)); /* two rows a unit */
    }
}

/* ---- what holds for all ---- */

static void a_part_has_the_same_bits_alone_among_others_and_again(void **state)
{
    (void)state;
    begin();
    const krn_snap_item items[] = {
        item(KRN_SNAP_PER_ROW, KRN_SNAP_COPY, FMT_DTYPE_BF16, 20, 5120, 0),
        item(KRN_SNAP_PER_ROW, KRN_SNAP_DIGEST, FMT_DTYPE_BF16, 20, 9000, 2),
        item(KRN_SNAP_PER_ROW, KRN_SNAP_DIGEST, FMT_DTYPE_F32, 20, 5120, 0),
        item(KRN_SNAP_PER_ROW, KRN_SNAP_TOP_ROWS, FMT_DTYPE_F32, 20, 5120, 0),
    };
    run all = make(items, COUNT_OF(items), live_of(20, 0));
    launch(&all);
    gpu_get(all.d_out, all.got, all.bytes);
    launch(&all);
    gpu_get(all.d_out, all.wanted, all.bytes);
    gpu_same("again", all.got, all.wanted, (int64_t)all.bytes, 1);
    for (size_t i = 0; i < COUNT_OF(items); i++) {
        run one = make(&items[i], 1, live_of(20, 0));
        launch(&one);
        gpu_get(one.d_out, one.got, one.bytes);
        gpu_same("alone", one.got, all.got + all.offset[i], (int64_t)krn_snapshot_bytes(&items[i], 20), 1);
        done_host(&one);
    }
    done(&all);
}

/* One changed bit of the source must be seen in each kind of part. */
static void the_comparison_sees_one_bit(void **state)
{
    (void)state;
    static const krn_snap_keep keeps[] = { KRN_SNAP_COPY, KRN_SNAP_DIGEST, KRN_SNAP_TOP_ROWS };
    for (size_t k = 0; k < COUNT_OF(keeps); k++) {
        begin();
        krn_snap_item it = item(KRN_SNAP_PER_ROW, keeps[k], FMT_DTYPE_F32, 2, 50, 0);
        run r = make(&it, 1, live_of(2, 0));
        run_both(&r);
        assert_int_equal(first_difference(&r), -1);
        arena[(const uint8_t *)it.src - arena + 70 * 4] ^= 1; /* after it was copied to the device */
        run_both(&r);
        assert_true(first_difference(&r) >= 0);
        done(&r);
    }
}

static void items_outside_the_contract_are_refused(void **state)
{
    (void)state;
    begin();
    const krn_snap_item good = item(KRN_SNAP_PER_ROW, KRN_SNAP_TOP_ROWS, FMT_DTYPE_F32, 2, 50, 0);
    krn_snap_item bad[9];
    for (size_t i = 0; i < COUNT_OF(bad); i++) bad[i] = good;
    bad[0].per = KRN_SNAP_PER_COUNT;
    bad[1].per = -1;
    bad[2].keep = 3;
    bad[3].dtype = FMT_DTYPE_F64;
    bad[4].dtype = FMT_DTYPE_I32;
    bad[5].cols = 0;
    bad[6].cols = 49;
    bad[7].row_bytes = 202;
    bad[8].src = (const uint8_t *)good.src + 2;
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        err e = { 0 };
        krn_snap_live live = live_of(2, 0);
        assert_int_equal(krn_snapshot(bad, &bad[i], 1, &live, arena, gpu_stream(), &e), ERR_ARG);
        assert_non_null(strstr(e.msg, "snapshot: item 0"));
    }
    err e = { 0 };
    krn_snap_live live = live_of(-1, 0);
    assert_int_equal(krn_snapshot(&good, &good, 1, &live, arena, gpu_stream(), &e), ERR_ARG);
    live = live_of(2, 0);
    assert_int_equal(krn_snapshot(&good, &good, KRN_SNAP_ITEMS_MAX + 1, &live, arena, gpu_stream(), &e), ERR_ARG);
    assert_int_equal(krn_snapshot(&good, &good, 1, &live, arena + 8, gpu_stream(), &e), ERR_ARG);
    live = live_of(INT32_MAX, 0);
    krn_snap_item large = good;
    large.keep = KRN_SNAP_COPY;
    assert_int_equal(krn_snapshot(&large, &large, 1, &live, arena, gpu_stream(), &e), ERR_ARG);
    assert_non_null(strstr(e.msg, "bytes to"));
}

/* ---- time ---- */

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Of one snapshot among others that follow each other in a graph; what it reads fits an H200's second-level cache. */
static double time_us(const krn_snap_item *items, int32_t n, krn_snap_live live)
{
    enum { SAMPLES = 51, REPLAYS = 5, LAUNCHES = 10 };
    err e = { 0 };
    krn_graph *g;
    krn_event from, to;
    bool waited;
    double us[SAMPLES];
    run r = make(items, n, live);
    gpu_ok(krn_event_open(true, &from, &e), &e);
    gpu_ok(krn_event_open(true, &to, &e), &e);
    gpu_ok(krn_capture_begin(gpu_stream(), &e), &e);
    for (int i = 0; i < LAUNCHES; i++) launch(&r);
    gpu_ok(krn_capture_end(gpu_stream(), &g, &e), &e);
    for (int sample = 0; sample < SAMPLES; sample++) {
        gpu_ok(krn_event_record(from, gpu_stream(), &e), &e);
        for (int k = 0; k < REPLAYS; k++) gpu_ok(krn_graph_launch(g, gpu_stream(), &e), &e);
        gpu_ok(krn_event_record(to, gpu_stream(), &e), &e);
        gpu_ok(krn_stream_wait(gpu_stream(), 0, &waited, &e), &e);
        gpu_ok(krn_event_elapsed_us(from, to, &us[sample], &e), &e);
    }
    qsort(us, SAMPLES, sizeof us[0], by_size);
    krn_graph_close(g);
    krn_event_close(from);
    krn_event_close(to);
    done(&r);
    return us[SAMPLES / 2] / (REPLAYS * LAUNCHES);
}

static void a_snapshot_is_timed(void **state)
{
    (void)state;
    enum { T = 20, N = 120 };
    if (small()) skip(); /* under a checker time says nothing */
    krn_snap_item items[N];
    begin();
    for (int i = 0; i < N; i++) { /* streams, branches, head vectors and gates: 33 MB */
        static const int64_t elems[] = { 4 * 5120, 5120, 512, 128 };
        items[i] = item(KRN_SNAP_PER_ROW, KRN_SNAP_DIGEST, i % 4 == 3 ? FMT_DTYPE_F32 : FMT_DTYPE_BF16, T,
                        elems[i < 3 ? 0 : i % 4], 0);
    }
    print_message("figure: snapshot_digest_bytes %.1f MB\n", (double)arena_used * 1e-6);
    print_message("figure: snapshot_digest %.2f us\n", time_us(items, N, live_of(T, 0)));
    begin();
    for (int i = 0; i < 30; i++) items[i] = item(KRN_SNAP_PER_ROW, KRN_SNAP_COPY, FMT_DTYPE_BF16, T, 5120, 0);
    print_message("figure: snapshot_copy_bytes %.1f MB\n", (double)arena_used * 1e-6);
    print_message("figure: snapshot_copy %.2f us\n", time_us(items, 30, live_of(T, 0)));
    begin();
    for (int i = 0; i < 2; i++) items[i] = item(KRN_SNAP_PER_ROW, KRN_SNAP_TOP_ROWS, FMT_DTYPE_F32, T, 64640, 0);
    print_message("figure: snapshot_top_40_rows %.2f us\n", time_us(items, 2, live_of(T, 0)));
    /* Zeros everywhere: every value is counted by itself. */
    begin();
    for (int i = 0; i < 30; i++) {
        items[i] = item(KRN_SNAP_PER_ROW, KRN_SNAP_DIGEST, FMT_DTYPE_BF16, T, 5120, 0);
        memset(arena + ((const uint8_t *)items[i].src - arena), 0, T * 5120 * 2);
    }
    print_message("figure: snapshot_digest_6mb_of_zeros %.2f us\n", time_us(items, 30, live_of(T, 0)));
    free(arena);
    arena = NULL;
}

static const struct CMUnitTest TESTS[] = {
    cmocka_unit_test(shapes_of_a_step_are_kept_as_by_the_twin),
    cmocka_unit_test(lengths_and_alignments_do_not_matter),
    cmocka_unit_test(a_window_is_that_of_its_slot),
    cmocka_unit_test(any_number_of_items),
    cmocka_unit_test(every_bf16_and_special_f32_is_counted_as_by_the_twin),
    cmocka_unit_test(squares_are_added_in_the_order_of_the_contract),
    cmocka_unit_test(the_largest_entries_are_the_twins),
    cmocka_unit_test(a_part_has_the_same_bits_alone_among_others_and_again),
    cmocka_unit_test(the_comparison_sees_one_bit),
    cmocka_unit_test(items_outside_the_contract_are_refused),
    cmocka_unit_test(a_snapshot_is_timed),
};
GPU_MAIN(TESTS)
