/* The routed experts in one launch against the three launches that it stands for, on the same card: every bit of all five
 * outputs, of many launches in a row, in a graph, and beside others. Then how long both take. */
#include "gpu.h"

#include "base/mem.h"
#include "kernels/experts_kx2.h"
#include "kernels/fused.h"

#include <math.h>

enum { LAUNCHES_MAX = 20, OUTPUTS = 5 };
static const char *const OUTPUT[OUTPUTS] = { "gate", "up", "h", "h_qdq", "slot" };

/* Banks, operands and outputs of `launches` launches of at most rows x picks; each has its own ids and outputs. */
typedef struct bench {
    krn_kx_bank w13, w2;
    int32_t rows, picks, launches;
    float limit;
    bool weighted, fused;
    bf16 *x;
    int32_t *ids;
    float *weights;
    uint8_t *y[OUTPUTS];
    uint32_t *progress;
} bench;

static void *take(int64_t bytes)
{
    void *p = mem_alloc_aligned((size_t)bytes, 1);
    assert_non_null(p);
    return p;
}

/* Any bits are codes. Scales 2^-11 .. 2^-4; of large ones some reach 2^9. */
static krn_kx_bank bank_make(int32_t n_experts, int32_t n, int32_t k, bool large, uint64_t seed)
{
    const int64_t bytes = n_experts * krn_kx_bytes(n, k);
    uint8_t *blocks = take(bytes);
    for (int64_t i = 0; i < bytes; i += 4) {
        uint32_t h = gpu_hash(seed, (uint64_t)i);
        if (i % KRN_KX_BLOCK_BYTES >= KRN_KX_SCALES)
            for (int b = 0; b < 4; b++) {
                const uint32_t v = h >> 8 * b & 0xff;
                blocks[i + b] = (uint8_t)(large && v % 5 == 0 ? 126 + v / 5 % 11 : 116 + v / 5 % 8);
            }
        else
            memcpy(blocks + i, &h, 4);
    }
    const krn_kx_bank b = { n_experts, n, k, large, gpu_put(blocks, (size_t)bytes) };
    free(blocks);
    return b;
}

static int64_t picks_of(const bench *c) { return (int64_t)c->rows * c->picks; }
/* Of one launch. */
static int64_t out_bytes(const bench *c, int output)
{
    return picks_of(c) * (output == 4 ? (int64_t)c->w2.n * 4 : (int64_t)c->w2.k * 2);
}

static bench bench_make(int32_t n_experts, int32_t dim, int32_t inter, bool large, int32_t rows, int32_t picks,
                        int32_t launches, uint64_t seed)
{
    bench c = { .w13 = bank_make(n_experts, 2 * inter, dim, large && seed % 2, seed),
                .w2 = bank_make(n_experts, dim, inter, large, seed + 1),
                .rows = rows, .picks = picks, .launches = launches, .limit = seed % 3 ? 10.0f : 0.25f,
                .weighted = seed % 5 != 4 };
    const int64_t n_x = (int64_t)rows * dim, n_picks = picks_of(&c) * launches;
    bf16 *x = take(n_x * 2);
    float *weights = take(n_picks * 4);
    gpu_fill_bf16(x, n_x, seed + 2, 1.0f);
    for (int64_t i = 0; i < n_picks; i++) weights[i] = 0.05f + fabsf(gpu_unit(seed + 3, (uint64_t)i));
    c.x = gpu_put(x, (size_t)n_x * 2);
    c.weights = gpu_put(weights, (size_t)n_picks * 4);
    c.ids = gpu_out((size_t)n_picks * 4);
    for (int i = 0; i < OUTPUTS; i++) c.y[i] = gpu_out((size_t)(out_bytes(&c, i) * launches));
    const int64_t progress_bytes = krn_kx2_progress_bytes(n_experts);
    uint8_t *zeros = take(progress_bytes);
    memset(zeros, 0, (size_t)progress_bytes);
    c.progress = gpu_put(zeros, (size_t)progress_bytes);
    free(x), free(weights), free(zeros);
    return c;
}

/* Of every launch: `distinct` experts, at least picks, again and again, so that a row's are all different; the first is
 * any. wild: some are outside the bank. same: a row's first pick is always one expert, the others are outside. */
static void route(const bench *c, int32_t distinct, bool wild, bool same, uint64_t seed, int32_t *ids)
{
    const int32_t n = c->w2.n_experts;
    for (int32_t l = 0; l < c->launches; l++) {
        const uint32_t first = gpu_hash(seed, (uint64_t)l);
        for (int32_t p = 0; p < picks_of(c); p++) {
            int32_t *id = &ids[l * picks_of(c) + p];
            *id = (int32_t)((first + (uint32_t)(p % distinct)) % (uint32_t)n);
            if (same && p % c->picks == 0) *id = (int32_t)(first % (uint32_t)n);
            else if (same || (wild && gpu_hash(seed + 1, (uint64_t)p) % 6 == 0)) *id = p % 2 ? -1 - p : n + p;
        }
    }
    err e = { 0 };
    gpu_ok(krn_copy(c->ids, ids, (uint64_t)(picks_of(c) * c->launches) * 4, gpu_stream(), &e), &e);
    gpu_wait();
}

static void launch(const void *ctx, int32_t l)
{
    err e = { 0 };
    const bench *c = ctx;
    const krn_stream s = gpu_stream();
    const int32_t *ids = c->ids + l * picks_of(c);
    const float *weights = c->weighted ? c->weights + l * picks_of(c) : NULL;
    void *y[OUTPUTS];
    for (int i = 0; i < OUTPUTS; i++) y[i] = c->y[i] + l * out_bytes(c, i);
    if (c->fused) {
        gpu_ok(krn_experts_kx2(c->x, ids, weights, c->rows, c->picks, &c->w13, &c->w2, c->limit, y[0], y[1], y[2], y[3],
                               y[4], c->progress, s, &e), &e);
        return;
    }
    gpu_ok(krn_experts_kx_up(c->x, ids, c->rows, c->picks, &c->w13, y[0], y[1], s, &e), &e);
    gpu_ok(krn_swiglu_qdq(y[0], y[1], weights, c->limit, y[2], y[3], (int32_t)picks_of(c), c->w2.k, s, &e), &e);
    gpu_ok(krn_experts_kx_down(y[3], ids, c->rows, c->picks, &c->w2, y[4], s, &e), &e);
}

/* ---- comparing ---- */

static int64_t all_bytes(const bench *c)
{
    int64_t bytes = 0;
    for (int i = 0; i < OUTPUTS; i++) bytes += out_bytes(c, i) * c->launches;
    return bytes;
}

static void poison(const bench *c)
{
    err e = { 0 };
    for (int i = 0; i < OUTPUTS; i++)
        gpu_ok(krn_fill(c->y[i], 0xa5, (uint64_t)(out_bytes(c, i) * c->launches), gpu_stream(), &e), &e);
}

static void get(const bench *c, uint8_t *out)
{
    for (int i = 0; i < OUTPUTS; i++) {
        const int64_t bytes = out_bytes(c, i) * c->launches;
        gpu_get(c->y[i], out, (size_t)bytes);
        out += bytes;
    }
}

/* All launches, one after the other, from outputs that were 0xa5 all over. */
static void outputs(bench *c, bool fused, uint8_t *out)
{
    c->fused = fused;
    poison(c);
    for (int32_t l = 0; l < c->launches; l++) launch(c, l);
    get(c, out);
}

/* Elements that differ, a count for every output; prints the first. Nothing may be left in progress. */
static void differ(const char *label, const bench *c, const uint8_t *want, const uint8_t *got, int64_t count[OUTPUTS])
{
    for (int i = 0; i < OUTPUTS; i++) {
        const int64_t bytes = out_bytes(c, i) * c->launches, size = i == 4 ? 4 : 2, row = i == 4 ? c->w2.n : c->w2.k;
        count[i] = 0;
        for (int64_t at = 0; at < bytes; at += size) {
            if (memcmp(want + at, got + at, (size_t)size) == 0 || count[i]++ > 0) continue;
            uint32_t a = 0, b = 0;
            memcpy(&a, got + at, (size_t)size);
            memcpy(&b, want + at, (size_t)size);
            const int64_t pick = at / size / row;
            print_message("%s: %s: first difference: launch %lld pick %lld column %lld: got %08x wanted %08x\n", label,
                          OUTPUT[i], (long long)(pick / picks_of(c)), (long long)(pick % picks_of(c)),
                          (long long)(at / size % row), a, b);
        }
        want += bytes, got += bytes;
    }
    const int64_t words = krn_kx2_progress_bytes(c->w2.n_experts) / 4;
    uint32_t *left = take(words * 4);
    gpu_get(c->progress, left, (size_t)words * 4);
    for (int64_t i = 0; i < words; i++)
        if (left[i]) fail_msg("%s: progress word %lld is %u, wanted 0", label, (long long)i, left[i]);
    free(left);
}

static void same(const char *label, const bench *c, const uint8_t *want, const uint8_t *got)
{
    int64_t count[OUTPUTS], all = 0;
    differ(label, c, want, got, count);
    for (int i = 0; i < OUTPUTS; i++) all += count[i];
    if (all) fail_msg("%s: %lld elements differ", label, (long long)all);
}

/* ---- tests ---- */

static void random_shapes_have_the_same_bits(void **state)
{
    (void)state;
    enum { IN_A_ROW = 4 };
    const int32_t seeds = getenv("SPARKTAPE_GPU_SMALL") ? 8 : 96;
    for (int32_t s = 0; s < seeds; s++) {
        char label[128];
        uint32_t h[8];
        for (int i = 0; i < 8; i++) h[i] = gpu_hash(9000 + (uint64_t)s, (uint64_t)i);
        const int32_t n_experts = 4 + (int32_t)(h[0] % 61), dim = 32 * (2 + (int32_t)(h[1] % 35));
        const int32_t inter = 32 * (1 + (int32_t)(h[2] % 13)), rows = s % 16 == 7 ? 27 : 1 + (int32_t)(h[3] % 20);
        int32_t picks = 1 + (int32_t)(h[4] % 8);
        if (picks > n_experts) picks = n_experts;
        const int32_t distinct = picks + (int32_t)(h[5] % (uint32_t)(n_experts - picks + 1));
        const bool large = h[6] % 4 == 0, wild = h[6] % 3 == 0, one = h[7] % 5 == 0;
        snprintf(label, sizeof label, "seed %d: %d experts dim %d inter %d rows %d picks %d distinct %d%s%s%s", s,
                 n_experts, dim, inter, rows, picks, distinct, large ? " large" : "", wild ? " wild" : "",
                 one ? " one" : "");
        bench c = bench_make(n_experts, dim, inter, large, rows, picks, IN_A_ROW, 10 * (uint64_t)s + h[7] % 10);
        uint8_t *want = take(all_bytes(&c)), *got = take(all_bytes(&c));
        int32_t *ids = take(picks_of(&c) * IN_A_ROW * 4);
        route(&c, distinct, wild, one, (uint64_t)s, ids);
        outputs(&c, false, want);
        outputs(&c, true, got);
        same(label, &c, want, got);
        free(want), free(got), free(ids);
        gpu_free_all();
    }
    print_message("random shapes: %d, %d launches each\n", seeds, IN_A_ROW);
}

static void all_ids_outside_the_bank_end(void **state)
{
    (void)state;
    bench c = bench_make(4, 64, 96, false, 3, 2, 2, 1);
    int32_t ids[12];
    uint8_t *want = take(all_bytes(&c)), *got = take(all_bytes(&c));
    for (int i = 0; i < 12; i++) ids[i] = i % 2 ? -1 : 4 + i;
    err e = { 0 };
    gpu_ok(krn_copy(c.ids, ids, sizeof ids, gpu_stream(), &e), &e);
    gpu_wait();
    outputs(&c, false, want);
    outputs(&c, true, got);
    same("all outside", &c, want, got);
    free(want), free(got);
    gpu_free_all();
}

static void a_changed_weight_of_a_pick_is_seen(void **state)
{
    (void)state;
    err e = { 0 };
    bench c = bench_make(8, 256, 64, false, 2, 2, 1, 1);
    int32_t ids[4];
    int64_t count[OUTPUTS];
    uint8_t *want = take(all_bytes(&c)), *got = take(all_bytes(&c));
    const float other = 3.0f;
    route(&c, 4, false, false, 1, ids);
    outputs(&c, false, want);
    gpu_ok(krn_copy(c.weights, &other, sizeof other, gpu_stream(), &e), &e);
    gpu_wait();
    outputs(&c, true, got);
    differ("another weight, wanted", &c, want, got, count);
    assert_true(count[0] == 0 && count[1] == 0);
    assert_true(count[2] > 32 && count[2] <= 64 && count[3] > 32 && count[3] <= 64 && count[4] > 128 && count[4] <= 256);
    free(want), free(got);
    gpu_free_all();
}

static void shapes_outside_the_contract_are_refused(void **state)
{
    (void)state;
    err e = { 0 };
    bench c = bench_make(4, 64, 32, false, 2, 2, 1, 1);
    void *y[OUTPUTS];
    for (int i = 0; i < OUTPUTS; i++) y[i] = c.y[i];
    bf16 *q = y[3];
#define CALL(x, rows, picks, w13, w2, q)                                                                                   \
    krn_experts_kx2(x, c.ids, c.weights, rows, picks, w13, w2, 10.0f, y[0], y[1], y[2], q, y[4], c.progress, gpu_stream(), \
                    &e)
    krn_kx_bank bad = c.w13;
    bad.n = 96;
    assert_int_equal(CALL(c.x, 2, 2, &bad, &c.w2, q), ERR_ARG);
    bad = c.w2;
    bad.n_experts = 3;
    assert_int_equal(CALL(c.x, 2, 2, &c.w13, &bad, q), ERR_ARG);
    bad = c.w2;
    bad.k = 48;
    assert_int_equal(CALL(c.x, 2, 2, &c.w13, &bad, q), ERR_ARG);
    bad = c.w13;
    bad.blocks += 8;
    assert_int_equal(CALL(c.x, 2, 2, &bad, &c.w2, q), ERR_ARG);
    assert_int_equal(CALL(c.x + 1, 2, 2, &c.w13, &c.w2, q), ERR_ARG);
    assert_int_equal(CALL(c.x, 2, 2, &c.w13, &c.w2, q + 1), ERR_ARG);
    assert_int_equal(CALL(c.x, -1, 2, &c.w13, &c.w2, q), ERR_ARG);
    assert_int_equal(CALL(c.x, 2, 0, &c.w13, &c.w2, q), ERR_ARG);
    gpu_ok(CALL(c.x, 0, 2, &c.w13, &c.w2, q), &e);
#undef CALL
    gpu_free_all();
}

/* Twenty launches as one graph, several times, while another stream keeps blocks of its own on the card. */
static void a_graph_beside_others_has_the_same_bits(void **state)
{
    (void)state;
    enum { N = 4096, K = 4096, T = 8, BESIDE = 200 };
    const int32_t graphs = getenv("SPARKTAPE_GPU_SMALL") ? 2 : 12;
    err e = { 0 };
    krn_stream side;
    krn_graph *graph;
    bool finished;
    bench c = bench_make(24, 768, 288, false, 10, 3, LAUNCHES_MAX, 2);
    uint8_t *want = take(all_bytes(&c)), *got = take(all_bytes(&c));
    int32_t *ids = take(picks_of(&c) * LAUNCHES_MAX * 4);
    const krn_weight w = { .format = KRN_W_BF16, .n = N, .k = K, .data = gpu_filled(2 * (int64_t)N * K, 0),
                           .row_bytes = 2 * K };
    bf16 *side_x = gpu_filled(2 * T * K, 0);
    float *side_y = gpu_filled(4 * T * N, 0);
    gpu_ok(krn_stream_open(&side, &e), &e);
    route(&c, 20, true, false, 5, ids);
    outputs(&c, false, want);
    outputs(&c, true, got);
    same("in a row", &c, want, got);
    gpu_ok(krn_linear(side_x, K, T, &w, KRN_OUT_F32, side_y, N, side, &e), &e);
    gpu_ok(krn_capture_begin(gpu_stream(), &e), &e);
    for (int32_t l = 0; l < LAUNCHES_MAX; l++) launch(&c, l);
    gpu_ok(krn_capture_end(gpu_stream(), &graph, &e), &e);
    for (int32_t i = 0; i < graphs; i++) {
        poison(&c);
        gpu_wait();
        for (int j = 0; j < BESIDE; j++) gpu_ok(krn_linear(side_x, K, T, &w, KRN_OUT_F32, side_y, N, side, &e), &e);
        gpu_ok(krn_graph_launch(graph, gpu_stream(), &e), &e);
        get(&c, got);
        same("a graph beside others", &c, want, got);
        gpu_ok(krn_stream_wait(side, 60000000000ull, &finished, &e), &e);
        assert_true(finished);
    }
    krn_graph_close(graph);
    krn_stream_close(side);
    krn_device_free((void *)(uintptr_t)w.data);
    krn_device_free(side_x);
    krn_device_free(side_y);
    free(want), free(got), free(ids);
    gpu_free_all();
}

/* One rank of two has 1,152 of the 2,304 inner columns. Neighbouring launches use other experts as long as there are such:
 * no cache holds what is read again. */
static void official_shapes_have_the_same_bits(void **state)
{
    (void)state;
    enum { EXPERTS = 48, DIM = 5120, INTER = 1152, PICKS = 3, LAUNCHES = 16, REPEATS = 9 };
    static const struct { int32_t rows, distinct; } CASE[] = { { 5, 3 },   { 5, 6 },   { 5, 13 },  { 5, 15 },  { 10, 10 },
                                                               { 15, 13 }, { 20, 15 }, { 20, 30 }, { 20, 47 } };
    if (getenv("SPARKTAPE_GPU_SMALL")) skip(); /* minutes under a checker, and the same loops as small shapes */
    bench c = bench_make(EXPERTS, DIM, INTER, false, 20, PICKS, LAUNCHES, 1);
    uint8_t *want = take(all_bytes(&c)), *got = take(all_bytes(&c));
    int32_t *ids = take(picks_of(&c) * LAUNCHES * 4);
    for (size_t i = 0; i < sizeof CASE / sizeof *CASE; i++) {
        char label[64];
        double us[2];
        err e = { 0 };
        c.rows = CASE[i].rows;
        for (int32_t p = 0; p < LAUNCHES * picks_of(&c); p++)
            ids[p] = (int32_t)((p / picks_of(&c) * CASE[i].distinct + p % picks_of(&c) % CASE[i].distinct) * 29 % EXPERTS);
        gpu_ok(krn_copy(c.ids, ids, (uint64_t)(LAUNCHES * picks_of(&c)) * 4, gpu_stream(), &e), &e);
        gpu_wait();
        snprintf(label, sizeof label, "official, %d rows, %d experts", c.rows, CASE[i].distinct);
        outputs(&c, false, want);
        outputs(&c, true, got);
        same(label, &c, want, got);
        for (int fused = 0; fused < 2; fused++) {
            c.fused = fused;
            us[fused] = gpu_best_us(launch, &c, LAUNCHES, REPEATS);
        }
        print_message("figure: experts_kx_apart_t%d_e%d %.2f us\n", c.rows, CASE[i].distinct, us[0]);
        print_message("figure: experts_kx2_t%d_e%d %.2f us\n", c.rows, CASE[i].distinct, us[1]);
    }
    free(want), free(got), free(ids);
    gpu_free_all();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes_outside_the_contract_are_refused),
        cmocka_unit_test(all_ids_outside_the_bank_end),
        cmocka_unit_test(a_changed_weight_of_a_pick_is_seen),
        cmocka_unit_test(random_shapes_have_the_same_bits),
        cmocka_unit_test(a_graph_beside_others_has_the_same_bits),
        cmocka_unit_test(official_shapes_have_the_same_bits),
    };
    return krn_device_count() == 0 ? gpu_skip() : cmocka_run_group_tests(tests, NULL, NULL);
}
