/* The experts over fragment-ordered weights against krn_experts_up and krn_experts_down on the same card: every bit of
 * every output. Then how long both take, beside a copy. Banks that the card lays are those that the CPU packs. */
#include "gpu.h"

#include "base/clock.h"
#include "base/mem.h"
#include "kernels/experts_kx.h"

/* A bank both ways. host is what was packed. */
typedef struct bank {
    krn_expert_bank host, plain;
    krn_kx_bank kx;
    uint8_t *packed;
} bank;

static void *take(int64_t bytes)
{
    void *p = mem_alloc_aligned((size_t)bytes, 1);
    assert_non_null(p);
    return p;
}

/* Scales 2^-11 .. 2^-4; in a bank of large ones some reach 2^9. */
static void put_bank(bank *b, bool large, uint64_t seed)
{
    const int64_t elems = (int64_t)b->host.n_experts * b->host.n * b->host.k, kx_bytes = krn_kx_bytes(b->host.n, b->host.k);
    uint8_t *data = take(elems / 2), *scale = take(elems / 32);
    for (int64_t i = 0; i < elems / 2; i += 4) put_u32(data + i, gpu_hash(seed, (uint64_t)i));
    for (int64_t i = 0; i < elems / 32; i++) {
        const uint32_t h = gpu_hash(seed + 1, (uint64_t)i);
        scale[i] = (uint8_t)(large && h % 5 == 0 ? 126 + h / 5 % 11 : 116 + h / 5 % 8);
    }
    b->host.data = data, b->host.scale = scale;
    b->packed = take(b->host.n_experts * kx_bytes);
    b->kx = (krn_kx_bank){ b->host.n_experts, b->host.n, b->host.k, false, NULL };
    for (int32_t i = 0; i < b->host.n_experts; i++) {
        const krn_weight w = krn_expert_weight(&b->host, i);
        b->kx.large |= krn_kx_pack(&w, NULL, b->packed + i * kx_bytes);
    }
    b->plain = b->host;
    b->plain.data = gpu_put(data, (size_t)elems / 2);
    b->plain.scale = gpu_put(scale, (size_t)elems / 32);
    b->kx.blocks = gpu_put(b->packed, (size_t)(b->host.n_experts * kx_bytes));
}
static bank bank_make(int32_t n_experts, int32_t n, int32_t k, bool large, uint64_t seed)
{
    bank b = { .host = { KRN_W_FP4, n_experts, n, k, NULL, NULL } };
    put_bank(&b, large, seed);
    assert_int_equal(b.kx.large, large);
    return b;
}
static void bank_free(bank *b)
{
    free((void *)(uintptr_t)b->host.data);
    free((void *)(uintptr_t)b->host.scale);
    free(b->packed);
    gpu_free_all();
}

/* ---- calls ---- */

/* x [rows or picks of all rows, k], ids and outputs, of the most rows that any call has. got: gate and up, or slot. */
typedef struct bench {
    const bank *b;
    bool down, kx;
    int32_t rows, picks;
    bf16 *x;
    int32_t *ids;
    uint8_t *y[2];
} bench;

static int64_t out_bytes(const bench *c)
{
    return (int64_t)c->rows * c->picks * c->b->host.n * (c->down ? 4 : 1); /* of one output: half of n bf16, or n f32 */
}

static bench bench_make(const bank *b, bool down, int32_t rows, int32_t picks)
{
    bench c = { .b = b, .down = down, .rows = rows, .picks = picks };
    const int64_t n_x = (int64_t)rows * (down ? picks : 1) * b->host.k;
    bf16 *x = take(n_x * 2);
    gpu_fill_bf16(x, n_x, 77, 1.0f);
    c.x = gpu_put(x, (size_t)n_x * 2);
    c.ids = gpu_put(x, (size_t)(rows * picks) * 4); /* any: filled before each call */
    for (int i = 0; i < 2; i++) c.y[i] = gpu_out((size_t)out_bytes(&c));
    free(x);
    return c;
}

static void launch(const bench *c, const int32_t *ids)
{
    err e = { 0 };
    const krn_stream s = gpu_stream();
    err_code rc;
    if (c->kx && c->down)
        rc = krn_experts_kx_down(c->x, ids, c->rows, c->picks, &c->b->kx, (float *)(void *)c->y[0], s, &e);
    else if (c->kx)
        rc = krn_experts_kx_up(c->x, ids, c->rows, c->picks, &c->b->kx, (bf16 *)(void *)c->y[0], (bf16 *)(void *)c->y[1], s,
                               &e);
    else if (c->down)
        rc = krn_experts_down(c->x, ids, c->rows, c->picks, &c->b->plain, (float *)(void *)c->y[0], s, &e);
    else
        rc = krn_experts_up(c->x, ids, c->rows, c->picks, &c->b->plain, (bf16 *)(void *)c->y[0], (bf16 *)(void *)c->y[1], s,
                            &e);
    gpu_ok(rc, &e);
}

/* One call's outputs, gate then up or slot, from memory that was 0xa5 all over. */
static void outputs(bench *c, bool kx, uint8_t *got)
{
    err e = { 0 };
    const int64_t bytes = out_bytes(c);
    c->kx = kx;
    for (int i = 0; i < 2; i++) gpu_ok(krn_fill(c->y[i], 0xa5, (uint64_t)bytes, gpu_stream(), &e), &e);
    launch(c, c->ids);
    for (int i = 0; i < (c->down ? 1 : 2); i++) gpu_get(c->y[i], got + i * bytes, (size_t)bytes);
}

/* Pick p names the expert number p % distinct: all of them, where there are so many picks. spread is no divisor's multiple
 * of n_experts. Every seventh pick is wild, where that is wanted. */
static void route(const bench *c, int32_t distinct, int32_t spread, bool wild, int32_t *ids)
{
    for (int32_t p = 0; p < c->rows * c->picks; p++) {
        ids[p] = (p % distinct * spread + 3) % c->b->host.n_experts;
        if (wild && p % 7 == 2) ids[p] = p % 2 ? -1 - p : c->b->host.n_experts + p;
    }
}

/* Outputs of both ways for these ids. Returns elements that differ, of 2 or 4 bytes, and prints the first. */
static int64_t differ(const char *label, bench *c, const int32_t *ids, uint8_t *want, uint8_t *got)
{
    err e = { 0 };
    const int32_t n = c->b->host.n, per_pick = c->down ? n : n / 2;
    const int64_t elem = c->down ? 4 : 2, all = out_bytes(c) * (c->down ? 1 : 2);
    int64_t count = 0;
    gpu_ok(krn_copy(c->ids, ids, (uint64_t)(c->rows * c->picks) * 4, gpu_stream(), &e), &e);
    gpu_wait();
    outputs(c, false, want);
    outputs(c, true, got);
    if (memcmp(want, got, (size_t)all) == 0) return 0;
    for (int64_t i = 0; i < all / elem; i++) {
        uint32_t a = 0, b = 0;
        memcpy(&a, got + i * elem, (size_t)elem);
        memcpy(&b, want + i * elem, (size_t)elem);
        if (a == b || count++ > 0) continue;
        const int64_t in_output = i % (out_bytes(c) / elem), pick = in_output / per_pick;
        print_message("%s, %d rows: %s: first difference: pick %lld of expert %d, row %lld: got %08x wanted %08x\n", label,
                      c->rows, c->down ? "slot" : i == in_output ? "gate" : "up", (long long)pick, ids[pick],
                      (long long)(in_output % per_pick), a, b);
    }
    print_message("%s, %d rows: %lld of %lld elements differ\n", label, c->rows, (long long)count, (long long)(all / elem));
    return count;
}

/* A bank under 1 to most_rows rows and some numbers of distinct experts. */
static void same_bits(const char *label, const bank *b, bool down, int32_t most_rows, int32_t picks, int32_t spread)
{
    static const int32_t DISTINCT[] = { 3, 8, 15, 30, 47 };
    bench c = bench_make(b, down, most_rows, picks);
    const int64_t bytes = out_bytes(&c) * 2;
    uint8_t *want = take(bytes), *got = take(bytes);
    int32_t *ids = take((int64_t)most_rows * picks * 4);
    int64_t different = 0;
    int32_t calls = 0;
    for (c.rows = 1; c.rows <= most_rows; c.rows++)
        for (size_t i = 0; i < sizeof DISTINCT / sizeof *DISTINCT; i++) {
            const int32_t distinct = DISTINCT[i] < picks ? picks : DISTINCT[i];
            if (i > 0 && (DISTINCT[i - 1] >= c.rows * picks || distinct > b->host.n_experts)) break;
            route(&c, distinct, spread, c.rows % 4 == 2, ids);
            different += differ(label, &c, ids, want, got);
            calls++;
        }
    print_message("%s: %d calls, %lld elements differ\n", label, calls, (long long)different);
    free(want), free(got), free(ids);
    assert_true(different == 0 && calls > most_rows / 2);
}

/* ---- laying ---- */

/* Lays the bank where guards stand around it and every byte was 0xa5, and compares it with the packed one. */
static void lays_what_the_cpu_packs(const char *label, const bank *b)
{
    err e = { 0 };
    const int64_t bytes = b->host.n_experts * krn_kx_bytes(b->host.n, b->host.k);
    uint8_t *blocks = gpu_out((size_t)bytes), *got = take(bytes);
    gpu_ok(krn_kx_lay(&b->plain, blocks, gpu_stream(), &e), &e);
    gpu_get(blocks, got, (size_t)bytes);
    gpu_same(label, got, b->packed, bytes / 4, 4);
    free(got);
}

typedef struct laying { const bank *b; uint8_t *blocks; } laying;
static void lay(const void *ctx, int32_t i)
{
    (void)i;
    err e = { 0 };
    const laying *l = ctx;
    gpu_ok(krn_kx_lay(&l->b->plain, l->blocks, gpu_stream(), &e), &e);
}

/* Beside the CPU's packing of one expert. Bytes read and written both count, as in a copy. */
static void print_laying(const bank *b, bool down)
{
    const int64_t packed = krn_kx_bytes(b->host.n, b->host.k), bytes = b->host.n_experts * packed;
    const krn_weight first = krn_expert_weight(&b->host, 0);
    const double us = gpu_best_us(lay, &(laying){ b, gpu_out((size_t)bytes) }, 4, 5);
    const uint64_t start = clock_ns();
    krn_kx_pack(&first, NULL, b->packed);
    const double cpu_us = (double)(clock_ns() - start) * 1e-3;
    print_message("figure: kx_lay_%s %.0f GB/s\n", down ? "down" : "up", 2e-3 * (double)bytes / us);
    print_message("figure: kx_pack_cpu_%s %.1f GB/s\n", down ? "down" : "up", 2e-3 * (double)packed / cpu_us);
}

/* ---- tests ---- */

/* One rank of two has 1,152 of the 2,304 inner columns. */
enum { EXPERTS = 48, DIM = 5120, INTER = 1152, PICKS = 3, ROWS_MOST = 20, SPREAD = 29 };

static void small_shapes_have_the_same_bits(void **state)
{
    (void)state;
    static const struct { int32_t n_experts, n, k, picks; bool down, large; } SHAPE[] = {
        { 9, 66, 96, 3, false, false },  { 9, 70, 416, 3, true, false },    { 40, 33, 32, 8, true, false },
        { 128, 64, 256, 3, true, true }, { 128, 100, 1152, 3, false, true }, { 1000, 32, 160, 3, true, false },
    };
    for (size_t i = 0; i < sizeof SHAPE / sizeof *SHAPE; i++) {
        char label[96];
        bank b = bank_make(SHAPE[i].n_experts, SHAPE[i].n, SHAPE[i].k, SHAPE[i].large, 100 + 10 * i);
        snprintf(label, sizeof label, "%s %d x %d%s", SHAPE[i].down ? "down" : "up", SHAPE[i].n, SHAPE[i].k,
                 SHAPE[i].large ? ", large scales" : "");
        lays_what_the_cpu_packs(label, &b);
        same_bits(label, &b, SHAPE[i].down, 27, SHAPE[i].picks, 7);
        bank_free(&b);
    }
}

static void a_changed_weight_is_seen(void **state)
{
    (void)state;
    err e = { 0 };
    bank b = bank_make(4, 64, 128, false, 1);
    bench c = bench_make(&b, true, 1, 3);
    const int32_t ids[3] = { 2, 1, 0 };
    uint8_t want[3 * 64 * 4], got[3 * 64 * 4];
    assert_true(differ("as it is", &c, ids, want, got) == 0);
    uint8_t *byte = &b.packed[krn_kx_bytes(64, 128) + KRN_KX_SCALES]; /* expert 1's first scale */
    *byte ^= 1;
    b.kx.blocks = gpu_put(b.packed, (size_t)(4 * krn_kx_bytes(64, 128)));
    gpu_ok(krn_copy(c.ids, ids, sizeof ids, gpu_stream(), &e), &e);
    assert_int_equal(differ("a changed scale, wanted", &c, ids, want, got), 1);
    bank_free(&b);
}

static void shapes_outside_the_contract_are_refused(void **state)
{
    (void)state;
    err e = { 0 };
    bank b = bank_make(4, 64, 64, false, 1);
    bench c = bench_make(&b, true, 1, 3);
    float *slot = (float *)(void *)c.y[0];
    const krn_kx_bank good = b.kx;
    krn_kx_bank bad[5] = { good, good, good, good, good };
    bad[0].k = 48;
    bad[1].n_experts = KRN_EXPERTS_MAX + 1;
    bad[2].n = 0;
    bad[3].blocks += 8;
    bad[4].n_experts = 0;
    for (int i = 0; i < 5; i++)
        assert_int_equal(krn_experts_kx_down(c.x, c.ids, 1, 3, &bad[i], slot, gpu_stream(), &e), ERR_ARG);
    bad[0] = good;
    bad[0].n = 63;
    assert_int_equal(krn_experts_kx_up(c.x, c.ids, 1, 3, &bad[0], c.x, c.x, gpu_stream(), &e), ERR_ARG);
    assert_int_equal(krn_experts_kx_down(c.x, c.ids, -1, 3, &good, slot, gpu_stream(), &e), ERR_ARG);
    assert_int_equal(krn_experts_kx_down(c.x, c.ids, 1, 0, &good, slot, gpu_stream(), &e), ERR_ARG);
    assert_int_equal(krn_experts_kx_down(c.x + 1, c.ids, 1, 3, &good, slot, gpu_stream(), &e), ERR_ARG);
    gpu_ok(krn_experts_kx_down(c.x, c.ids, 0, 3, &good, slot, gpu_stream(), &e), &e);
    krn_expert_bank from[5] = { b.plain, b.plain, b.plain, b.plain, b.plain };
    uint8_t *blocks = c.y[0]; /* never written */
    from[0].k = 48;
    from[1].n_experts = 0;
    from[2].n = 0;
    from[3].format = KRN_W_BF16;
    from[4].data = (const uint8_t *)from[4].data + 8;
    for (int i = 0; i < 5; i++) assert_int_equal(krn_kx_lay(&from[i], blocks, gpu_stream(), &e), ERR_ARG);
    assert_int_equal(krn_kx_lay(&b.plain, blocks + 8, gpu_stream(), &e), ERR_ARG);
    bank_free(&b);
}

/* ---- official shapes: bits, then times ---- */

enum { LAUNCHES = 16, REPEATS = 9 };

/* The l-th of a graph's launches, on experts that its predecessors left alone as long as there are such: 150 MB and more
 * lie between two readings of one, and no cache holds them. */
typedef struct graph { const bench *c; const int32_t *ids; } graph;
static void launch_ids(const void *ctx, int32_t l)
{
    const graph *g = ctx;
    launch(g->c, g->ids + l * g->c->rows * g->c->picks);
}

static void print_times(const bank *b, bool down)
{
    static const struct { int32_t rows, distinct; } CASE[] = { { 5, 3 },   { 5, 6 },   { 5, 15 },  { 10, 10 },
                                                               { 15, 13 }, { 20, 15 }, { 20, 30 }, { 20, 47 } };
    const double copy = gpu_copy_speed() * 1e-9; /* GB/s */
    bench c = bench_make(b, down, ROWS_MOST, PICKS);
    int32_t ids[LAUNCHES * ROWS_MOST * PICKS] = { 0 }, *device_ids = gpu_put(ids, sizeof ids);
    print_message("%s n %d k %d, copy %.0f GB/s\n rows experts      MB    plain us  GB/s  copy%%      kx us  GB/s  copy%%  "
                  "plain/kx\n", down ? "down" : "up", b->host.n, b->host.k, copy);
    for (size_t i = 0; i < sizeof CASE / sizeof *CASE; i++) {
        err e = { 0 };
        double us[2], gb = 1e-9 * CASE[i].distinct * (double)b->host.n * (b->host.k / 2 + b->host.k / 32);
        c.rows = CASE[i].rows;
        for (int32_t p = 0; p < LAUNCHES * c.rows * PICKS; p++) {
            const int32_t l = p / (c.rows * PICKS), at = p % (c.rows * PICKS);
            ids[p] = (l * CASE[i].distinct + at % CASE[i].distinct) * SPREAD % EXPERTS;
        }
        gpu_ok(krn_copy(device_ids, ids, sizeof ids, gpu_stream(), &e), &e);
        gpu_wait();
        for (int kx = 0; kx < 2; kx++) {
            c.kx = kx;
            us[kx] = gpu_best_us(launch_ids, &(graph){ &c, device_ids }, LAUNCHES, REPEATS);
        }
        print_message(" %4d %7d %7.1f   %9.2f %5.0f %6.1f  %9.2f %5.0f %6.1f  %8.2f\n", c.rows, CASE[i].distinct, gb * 1e3,
                      us[0], gb / us[0] * 1e6, gb / us[0] * 1e8 / copy, us[1], gb / us[1] * 1e6, gb / us[1] * 1e8 / copy,
                      us[0] / us[1]);
        print_message("figure: experts_kx_%s_t%d_e%d %.2f us\n", down ? "down" : "up", c.rows, CASE[i].distinct, us[1]);
    }
}

static void official(bool down)
{
    if (getenv("SPARKTAPE_GPU_SMALL")) skip(); /* minutes under a checker, and the same loops as small shapes */
    bank b = bank_make(EXPERTS, down ? DIM : 2 * INTER, down ? INTER : DIM, false, down ? 2000 : 1000);
    lays_what_the_cpu_packs(down ? "official down, laid" : "official up, laid", &b);
    print_laying(&b, down);
    same_bits(down ? "official down" : "official up", &b, down, ROWS_MOST, PICKS, SPREAD);
    print_times(&b, down);
    bank_free(&b);
}
static void official_up_has_the_same_bits(void **state)
{
    (void)state;
    official(false);
}
static void official_down_has_the_same_bits(void **state)
{
    (void)state;
    official(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes_outside_the_contract_are_refused),
        cmocka_unit_test(a_changed_weight_is_seen),
        cmocka_unit_test(small_shapes_have_the_same_bits),
        cmocka_unit_test(official_up_has_the_same_bits),
        cmocka_unit_test(official_down_has_the_same_bits),
    };
    return krn_device_count() == 0 ? gpu_skip() : cmocka_run_group_tests(tests, NULL, NULL);
}
