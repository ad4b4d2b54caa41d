/* The routed experts on the card against exact sums: gate, up and slot of every pick; and the sum over a row's picks
 * against the card's own slots, bit for bit. */
#include "gpu.h"

#include "base/mem.h"
#include "kernels/combine.h"
#include "kernels/experts.h"

#include <math.h>

typedef struct bank { krn_expert_bank host, dev, magnitude; } bank;

static void *take(int64_t bytes)
{
    void *p = mem_alloc((size_t)bytes, 1);
    assert_non_null(p);
    return p;
}

static bank bank_make(krn_wformat format, int32_t n_experts, int32_t n, int32_t k, uint64_t seed)
{
    const int64_t elems = (int64_t)n_experts * n * k, bytes = format == KRN_W_FP4 ? elems / 2 : 2 * elems;
    uint8_t *data = take(bytes), *magnitude = take(bytes), *scale = NULL;
    if (format == KRN_W_BF16) /* any sign and mantissa, 2^-8 to 2^-5: one hash each, as there are many */
        for (int64_t i = 0; i < elems; i++) {
            const uint32_t h = gpu_hash(seed, (uint64_t)i);
            put_u16(data + 2 * i, (uint16_t)((h & 0x807f) | (0x77 + (h >> 16 & 3)) << 7));
        }
    else
        for (int64_t i = 0; i < bytes; i++) data[i] = (uint8_t)gpu_hash(seed, (uint64_t)i);
    for (int64_t i = 0; i < bytes; i++) magnitude[i] = data[i] & (format == KRN_W_FP4 ? 0x77 : i % 2 ? 0x7f : 0xff);
    if (format == KRN_W_FP4) {
        scale = take(elems / 32);
        for (int64_t i = 0; i < elems / 32; i++) scale[i] = (uint8_t)(116 + gpu_hash(seed + 1, (uint64_t)i) % 8);
    }
    bank b = { .host = { format, n_experts, n, k, data, scale } };
    b.magnitude = b.dev = b.host;
    b.magnitude.data = magnitude;
    b.dev.data = gpu_put(data, (size_t)bytes);
    if (scale) b.dev.scale = gpu_put(scale, (size_t)(elems / 32));
    return b;
}
static void bank_free(bank *b)
{
    free((void *)(uintptr_t)b->host.data);
    free((void *)(uintptr_t)b->host.scale);
    free((void *)(uintptr_t)b->magnitude.data);
}

/* ---- routings ---- */

typedef enum route { ROUTE_RANDOM, ROUTE_ONE, ROUTE_DISTINCT, ROUTE_WILD, ROUTE_COUNT } route;
static const char *const ROUTE_NAME[] = { "random", "the same experts", "many experts", "ids out of range" };

/* Ids of a row are distinct, in any order. */
static void route_make(route kind, int32_t rows, int32_t picks, int32_t n_experts, uint64_t seed, int32_t *ids)
{
    for (int32_t r = 0; r < rows; r++)
        for (int32_t j = 0; j < picks; j++) {
            int32_t p = r * picks + j, id;
            if (kind == ROUTE_ONE) id = (n_experts - 1 - j * 2 + n_experts * picks) % n_experts;
            else if (kind == ROUTE_DISTINCT) id = (p * 7 + 3) % n_experts; /* n_experts is no multiple of 7 */
            else {
                bool taken = true;
                for (uint64_t try = 0; taken; try++) {
                    id = (int32_t)(gpu_hash(seed + (uint64_t)p, try) % (uint32_t)n_experts);
                    taken = false;
                    for (int32_t i = 0; i < j; i++) taken = taken || ids[r * picks + i] == id;
                }
            }
            if (kind == ROUTE_WILD && p % 4 == 1) id = p % 8 == 1 ? -1 - p : n_experts + p * 1000;
            ids[p] = id;
        }
}

static bool in_range(const bank *b, int32_t id) { return id >= 0 && id < b->host.n_experts; }

/* ---- the verdict ---- */

/* x [x_rows, k] and everything the call needs on the device, and the exact sums of every pick with their magnitudes,
 * [picks, n] f32; up's are gate's columns, then up's. */
typedef struct call {
    bank *b;
    bool down;
    int32_t rows, picks;
    bf16 *x, *dx;
    int32_t *ids, *dids;
    float *exact, *magnitude;
} call;

static void exact_picks(const call *c, const krn_expert_bank *b, const bf16 *x, float *y)
{
    const int32_t n_picks = c->rows * c->picks, limit = b->n_experts;
    krn_weight w = { .n = 0 };
    for (int32_t expert = 0; expert < limit; expert++) {
        bool have = false;
        for (int32_t p = 0; p < n_picks; p++) {
            if (c->ids[p] != expert) continue;
            if (!have) w = krn_expert_weight(b, expert);
            have = true;
            krn_linear_ref(x + (int64_t)(c->down ? p : p / c->picks) * b->k, b->k, 1, &w, KRN_ACC_F64, KRN_OUT_F32,
                           y + (int64_t)p * b->n, b->n);
        }
    }
}

static call call_make(bank *b, bool down, int32_t rows, int32_t picks, route kind, uint64_t seed)
{
    const int64_t n_picks = (int64_t)rows * picks, n_x = (down ? n_picks : rows) * b->host.k;
    call c = { .b = b, .down = down, .rows = rows, .picks = picks };
    c.ids = take(n_picks * 4);
    route_make(kind, rows, picks, b->host.n_experts, seed, c.ids);
    c.x = take(n_x * 2);
    gpu_fill_bf16(c.x, n_x, seed + 9, 1.0f);
    bf16 *x_magnitude = take(n_x * 2);
    for (int64_t i = 0; i < n_x; i++) x_magnitude[i] = c.x[i] & 0x7fff;
    c.exact = take(n_picks * b->host.n * 4);
    c.magnitude = take(n_picks * b->host.n * 4);
    exact_picks(&c, &b->host, c.x, c.exact);
    exact_picks(&c, &b->magnitude, x_magnitude, c.magnitude);
    free(x_magnitude);
    c.dx = gpu_put(c.x, (size_t)n_x * 2);
    c.dids = gpu_put(c.ids, (size_t)n_picks * 4);
    return c;
}
static void call_free(call *c)
{
    free(c->x);
    free(c->ids);
    free(c->exact);
    free(c->magnitude);
}

static double delta_of(const call *c, int64_t i) { return 6 * 0x1p-24 * sqrt(c->b->host.k) * (double)c->magnitude[i]; }

/* Rows [r0, r0 + rows) of a call. y: up, gate then up [rows * picks, inter] each; down, slots. */
static void run_up(const call *c, int32_t r0, int32_t rows, bf16 *gate, bf16 *up)
{
    err e = { 0 };
    const int32_t inter = c->b->host.n / 2;
    const size_t bytes = (size_t)(rows * c->picks) * (size_t)inter * 2;
    bf16 *dgate = gpu_out(bytes), *dup = gpu_out(bytes);
    const bf16 *dx = c->dx + (int64_t)r0 * c->b->host.k;
    gpu_ok(krn_experts_up(dx, c->dids + r0 * c->picks, rows, c->picks, &c->b->dev, dgate, dup, gpu_stream(), &e), &e);
    gpu_get(dgate, gate, bytes);
    gpu_get(dup, up, bytes);
}
static void run_down(const call *c, int32_t r0, int32_t rows, float *slot)
{
    err e = { 0 };
    const size_t bytes = (size_t)(rows * c->picks) * (size_t)c->b->host.n * 4;
    float *dslot = gpu_out(bytes);
    const bf16 *dh = c->dx + (int64_t)r0 * c->picks * c->b->host.k;
    gpu_ok(krn_experts_down(dh, c->dids + r0 * c->picks, rows, c->picks, &c->b->dev, dslot, gpu_stream(), &e), &e);
    gpu_get(dslot, slot, bytes);
}
static void run_combine(const call *c, int32_t r0, int32_t rows, const float *add, float *y)
{
    err e = { 0 };
    const size_t bytes = (size_t)rows * (size_t)c->b->host.n * 4;
    float *dy = gpu_out(bytes);
    const float *dadd = add ? gpu_put(add, bytes) : NULL;
    const bf16 *dh = c->dx + (int64_t)r0 * c->picks * c->b->host.k;
    gpu_ok(krn_experts_down_combine(dh, c->dids + r0 * c->picks, rows, c->picks, &c->b->dev, dadd, dy, gpu_stream(), &e),
           &e);
    gpu_get(dy, y, bytes);
}

static void judge_up(const call *c, const char *label)
{
    const int32_t n = c->b->host.n, inter = n / 2, n_picks = c->rows * c->picks;
    bf16 *gate = take((int64_t)n_picks * inter * 2), *up = take((int64_t)n_picks * inter * 2);
    bf16 *gate1 = take((int64_t)c->picks * inter * 2), *up1 = take((int64_t)c->picks * inter * 2);
    gpu_tally t = { .label = label };
    run_up(c, 0, c->rows, gate, up);
    for (int32_t p = 0; p < n_picks; p++)
        for (int32_t i = 0; i < n; i++) {
            const int64_t at = (int64_t)p * n + i;
            const bf16 got = i < inter ? gate[(int64_t)p * inter + i] : up[(int64_t)p * inter + i - inter];
            if (in_range(c->b, c->ids[p])) gpu_judge_bf16(&t, at, c->exact[at], delta_of(c, at), got);
            else assert_int_equal(got, 0xa5a5);
        }
    for (int32_t r = 0; r < c->rows; r += c->rows > 4 ? 3 : 1) { /* alone, and once more */
        run_up(c, r, 1, gate1, up1);
        gpu_same(label, gate1, gate + (int64_t)r * c->picks * inter, (int64_t)c->picks * inter, 2);
        gpu_same(label, up1, up + (int64_t)r * c->picks * inter, (int64_t)c->picks * inter, 2);
    }
    gpu_tally_end(&t, 0.999);
    free(gate), free(up), free(gate1), free(up1);
}

static void judge_down(const call *c, const char *label)
{
    const int32_t n = c->b->host.n, n_picks = c->rows * c->picks;
    const int64_t row_slots = (int64_t)c->picks * n;
    float *slot = take((int64_t)n_picks * n * 4), *one = take(row_slots * 4), *add = take((int64_t)c->rows * n * 4);
    float *sum = take((int64_t)c->rows * n * 4), *y = take((int64_t)c->rows * n * 4);
    gpu_tally t = { .label = label };
    run_down(c, 0, c->rows, slot);
    for (int32_t p = 0; p < n_picks; p++)
        for (int32_t i = 0; i < n; i++) {
            const int64_t at = (int64_t)p * n + i;
            if (in_range(c->b, c->ids[p])) {
                gpu_judge_f32(&t, at, c->exact[at], delta_of(c, at), slot[at]);
            } else {
                assert_int_equal(f32_bits(slot[at]), 0xa5a5a5a5u);
                slot[at] = 0; /* adds nothing below */
            }
        }
    gpu_fill_f32(add, (int64_t)c->rows * n, 77, 3.0f);
    krn_combine_fused_ref(slot, c->ids, add, sum, c->rows, c->picks, n);
    run_combine(c, 0, c->rows, add, y);
    gpu_same(label, y, sum, (int64_t)c->rows * n, 4);
    for (int32_t r = 0; r < c->rows; r += c->rows > 4 ? 3 : 1) {
        run_combine(c, r, 1, add + (int64_t)r * n, y);
        gpu_same(label, y, sum + (int64_t)r * n, n, 4);
        run_down(c, r, 1, one);
        for (int32_t p = 0; p < c->picks; p++)
            if (in_range(c->b, c->ids[r * c->picks + p]))
                gpu_same(label, one + (int64_t)p * n, slot + r * row_slots + (int64_t)p * n, n, 4);
    }
    memset(add, 0, (size_t)c->rows * (size_t)n * 4);
    krn_combine_fused_ref(slot, c->ids, add, sum, c->rows, c->picks, n);
    run_combine(c, 0, c->rows, NULL, y);
    gpu_same(label, y, sum, (int64_t)c->rows * n, 4);
    gpu_tally_end(&t, 0);
    free(slot), free(one), free(add), free(sum), free(y);
}

/* A bank under every routing and some numbers of rows. */
static void judge_bank(krn_wformat f, bool down, int32_t n_experts, int32_t n, int32_t k, int32_t picks,
                       const int32_t *rows, size_t n_rows, uint64_t seed)
{
    for (route kind = 0; kind < ROUTE_COUNT; kind++) {
        bank b = bank_make(f, n_experts, n, k, seed);
        for (size_t i = 0; i < n_rows; i++) {
            char label[96];
            snprintf(label, sizeof label, "%s %s, %d rows, %s", f == KRN_W_FP4 ? "fp4" : "bf16", down ? "down" : "up",
                     rows[i], ROUTE_NAME[kind]);
            call c = call_make(&b, down, rows[i], picks, kind, seed + 50 * i);
            if (down) judge_down(&c, label);
            else judge_up(&c, label);
            call_free(&c);
        }
        bank_free(&b);
        gpu_free_all();
    }
}

/* ---- tests ---- */

/* One rank of two has 1,152 of the 2,304 inner columns. Fewer experts than 128, so that the sums of a test fit its time. */
enum { EXPERTS = 20, EXPERTS_EXPANDED = 6, DIM = 5120, INTER = 1152, PICKS = 3 };

static void official_shapes_are_legal_packed(void **state)
{
    (void)state;
    if (getenv("SPARKTAPE_GPU_SMALL")) skip(); /* minutes under a checker, and the same loops as small shapes */
    static const int32_t ROWS[] = { 5, 20 };
    judge_bank(KRN_W_FP4, false, EXPERTS, 2 * INTER, DIM, PICKS, ROWS, 2, 1000);
    judge_bank(KRN_W_FP4, true, EXPERTS, DIM, INTER, PICKS, ROWS, 2, 2000);
}

static void official_shapes_are_legal_expanded(void **state)
{
    (void)state;
    if (getenv("SPARKTAPE_GPU_SMALL")) skip();
    static const int32_t ROWS[] = { 10 };
    judge_bank(KRN_W_BF16, false, EXPERTS_EXPANDED, 2 * INTER, DIM, PICKS, ROWS, 1, 3000);
    judge_bank(KRN_W_BF16, true, EXPERTS_EXPANDED, DIM, INTER, PICKS, ROWS, 1, 4000);
}

/* 1 to 40 rows: past the 24 of one launch. Rows of the weight end inside a tile, K inside a step. */
static void small_shapes_are_legal(void **state)
{
    (void)state;
    static const int32_t ROWS[] = { 1, 9, 16, 32, 40 };
    for (krn_wformat f = KRN_W_FP4; f <= KRN_W_BF16; f++) {
        judge_bank(f, false, 9, 2 * 33, 96, 3, ROWS, 5, 5000);
        judge_bank(f, true, 9, 70, 416, 3, ROWS, 5, 6000);
        judge_bank(f, true, 40, 33, 32, 8, ROWS, 5, 7000);
    }
}

/* 60 picks of 60 experts out of 128: what a block must find for itself. */
static void sixty_experts_are_told_apart(void **state)
{
    (void)state;
    static const int32_t ROWS[] = { 20 };
    judge_bank(KRN_W_FP4, false, 128, 64, 256, 3, ROWS, 1, 8000);
    judge_bank(KRN_W_FP4, true, 128, 48, 1152, 3, ROWS, 1, 9000);
    judge_bank(KRN_W_BF16, true, KRN_EXPERTS_MAX, 16, 32, 3, ROWS, 1, 9500);
}

static void no_rows_and_no_known_expert_do_nothing(void **state)
{
    (void)state;
    err e = { 0 };
    bank b = bank_make(KRN_W_FP4, 4, 64, 64, 1);
    const int32_t ids[6] = { -1, 4, 99, -7, INT32_MAX, INT32_MIN };
    float y[2 * 64];
    bf16 x[6 * 64] = { 0 };
    int32_t *dids = gpu_put(ids, sizeof ids);
    bf16 *dx = gpu_put(x, sizeof x);
    float *dy = gpu_out(sizeof y), *dslot = gpu_out(6 * 64 * 4), slot[6 * 64];
    gpu_ok(krn_experts_down_combine(dx, dids, 0, 3, &b.dev, NULL, dy, gpu_stream(), &e), &e);
    gpu_get(dy, y, sizeof y);
    for (int i = 0; i < 2 * 64; i++) assert_int_equal(f32_bits(y[i]), 0xa5a5a5a5u);
    gpu_ok(krn_experts_down(dx, dids, 2, 3, &b.dev, dslot, gpu_stream(), &e), &e);
    gpu_get(dslot, slot, sizeof slot);
    for (int i = 0; i < 6 * 64; i++) assert_int_equal(f32_bits(slot[i]), 0xa5a5a5a5u);
    gpu_ok(krn_experts_down_combine(dx, dids, 2, 3, &b.dev, NULL, dy, gpu_stream(), &e), &e);
    gpu_get(dy, y, sizeof y);
    for (int i = 0; i < 2 * 64; i++) assert_int_equal(f32_bits(y[i]), 0);
    bank_free(&b);
    gpu_free_all();
}

static void shapes_outside_the_contract_are_refused(void **state)
{
    (void)state;
    err e = { 0 };
    bank b = bank_make(KRN_W_FP4, 4, 64, 64, 1);
    bf16 *x = gpu_out(4096), *gate = gpu_out(4096), *up = gpu_out(4096);
    int32_t *ids = gpu_out(64);
    float *slot = gpu_out(4096);
    const krn_expert_bank good = b.dev;
    krn_expert_bank bad[5] = { good, good, good, good, good };
    bad[0].format = KRN_W_FP8;
    bad[1].k = 48;
    bad[2].n_experts = KRN_EXPERTS_MAX + 1;
    bad[3].n = 0;
    bad[4].data = (const uint8_t *)good.data + 8;
    for (int i = 0; i < 5; i++) {
        assert_int_equal(krn_experts_up(x, ids, 1, 3, &bad[i], gate, up, gpu_stream(), &e), ERR_ARG);
        assert_int_equal(krn_experts_down(x, ids, 1, 3, &bad[i], slot, gpu_stream(), &e), ERR_ARG);
        assert_int_equal(krn_experts_down_combine(x, ids, 1, 3, &bad[i], NULL, slot, gpu_stream(), &e), ERR_ARG);
    }
    krn_expert_bank odd = good;
    odd.n = 63;
    assert_int_equal(krn_experts_up(x, ids, 1, 3, &odd, gate, up, gpu_stream(), &e), ERR_ARG);
    assert_int_equal(krn_experts_down(x, ids, -1, 3, &good, slot, gpu_stream(), &e), ERR_ARG);
    assert_int_equal(krn_experts_down(x, ids, 1, 0, &good, slot, gpu_stream(), &e), ERR_ARG);
    assert_int_equal(krn_experts_down(x + 1, ids, 1, 3, &good, slot, gpu_stream(), &e), ERR_ARG);
    bank_free(&b);
    gpu_free_all();
}

/* One wrong id must be illegal, and only in its pick. */
static void the_verdict_sees_a_wrong_expert(void **state)
{
    (void)state;
    bank b = bank_make(KRN_W_FP4, 8, 64, 256, 1);
    call c = call_make(&b, true, 4, 2, ROUTE_RANDOM, 5);
    int32_t ids[8];
    memcpy(ids, c.ids, sizeof ids);
    ids[5] = (ids[5] + 1) % 8;
    c.dids = gpu_put(ids, sizeof ids);
    float slot[8 * 64];
    run_down(&c, 0, 4, slot);
    gpu_tally t = { .label = "wrong expert, illegal wanted" };
    for (int64_t i = 0; i < 8 * 64; i++) gpu_judge_f32(&t, i, c.exact[i], delta_of(&c, i), slot[i]);
    assert_true(t.illegal > 32 && t.illegal <= 64);
    call_free(&c);
    bank_free(&b);
    gpu_free_all();
}

int main(void)
{
    if (krn_device_count() == 0) return gpu_skip();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_rows_and_no_known_expert_do_nothing),
        cmocka_unit_test(shapes_outside_the_contract_are_refused),
        cmocka_unit_test(the_verdict_sees_a_wrong_expert),
        cmocka_unit_test(small_shapes_are_legal),
        cmocka_unit_test(sixty_experts_are_told_apart),
        cmocka_unit_test(official_shapes_are_legal_packed),
        cmocka_unit_test(official_shapes_are_legal_expanded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
