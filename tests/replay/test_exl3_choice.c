/* The row that went into a sum with an EXL3 weight, found among those it may have been: its elements lie near a rounding to
 * bf16, and each that rounded the other way moves all sums. */
#include "replay/judge_choice.h"

#include "base/mem.h"
#include "engine/noise.h"
#include "formats/exl3.h"
#include "tests/support/ok.h"

enum { N = 200, K = 300, PADDED = 512, BITS = 5, TAKEN = 5 };

typedef struct row {
    uint16_t tiles[PADDED / 16 * (PADDED / 16) * 16 * BITS], suh[PADDED], svh[PADDED];
    krn_weight w;
    bf16 mid[K], taken[K];
    krn_span x[K], y[N];
    float got[N];
} row;

static uint64_t bits(uint64_t seed, uint64_t i) { return eng_noise_bits(eng_noise_key(seed, "row"), i); }

/* A weight cut out of a larger one, and a row of which a third may have been the next number, TAKEN of them were. */
static void make(row *r, uint64_t seed)
{
    memset(r, 0, sizeof *r);
    for (size_t i = 0; i < sizeof r->tiles / 2; i++) r->tiles[i] = (uint16_t)bits(seed, i);
    for (int i = 0; i < PADDED; i++) {
        r->suh[i] = fp16_from_f32(bits(seed, 1000000 + (uint64_t)i) & 1 ? 0.03f : -0.02f);
        r->svh[i] = fp16_from_f32(bits(seed, 2000000 + (uint64_t)i) & 1 ? 1.0f : -1.25f);
    }
    const krn_weight whole = { .format = KRN_W_EXL3, .n = PADDED, .k = PADDED, .data = r->tiles,
                               .row_bytes = PADDED / 16 * fmt_exl3_tile_bytes(BITS),
                               .exl3 = { BITS, FMT_EXL3_MUL1, 0, 0, 8 * fmt_exl3_tile_bytes(BITS), r->suh, r->svh } };
    r->w = krn_weight_slice(&whole, 70, N, 50, K);
    for (int i = 0; i < K; i++) {
        r->mid[i] = r->taken[i] = bf16_from_f32((float)(4 * eng_noise_uniform(bits(seed, 3000000 + (uint64_t)i)) - 2));
        const float here = f32_from_bf16(r->mid[i]), next = f32_from_bf16((bf16)(r->mid[i] + 1));
        const bool open = i % 3 == 0;
        r->x[i] = (krn_span){ fmin((double)here, open ? (double)next : (double)here),
                              fmax((double)here, open ? (double)next : (double)here) };
        if (open && i % (K / TAKEN) == 0) r->taken[i]++;
    }
}

/* Sums of the parts between cut[0], cut[1], ..., as ranks make them and add them; y: of mid. */
static void sum(row *r, const int32_t *cut, int32_t n_parts)
{
    for (int32_t p = 0; p < n_parts; p++) {
        const krn_weight w = krn_weight_slice(&r->w, 0, N, cut[p], cut[p + 1] - cut[p]);
        float part[N];
        krn_span span[N];
        krn_linear_bound_job job = { &w, r->mid + cut[p], NULL, span };
        krn_linear_ref(r->taken + cut[p], w.k, 1, &w, KRN_ACC_BLOCKED, KRN_OUT_F32, part, N);
        krn_linear_bound(&job, 1, KRN_RULE_PARITY);
        for (int i = 0; i < N; i++) {
            r->got[i] = p ? r->got[i] + part[i] : part[i];
            r->y[i] = p ? krn_span_widen((krn_span){ r->y[i].lo + span[i].lo, r->y[i].hi + span[i].hi }, KRN_U) : span[i];
        }
    }
}

static int count_outside(const row *r)
{
    int n = 0;
    for (int i = 0; i < N; i++) n += !((double)r->got[i] >= r->y[i].lo && (double)r->got[i] <= r->y[i].hi);
    return n;
}

static row r;

static void the_row_that_was_summed_is_found(void **state)
{
    (void)state;
    static const int32_t ONE[] = { 0, K }, TWO[] = { 0, 160, K }; /* the second begins inside a block */
    for (uint64_t seed = 1; seed <= 3; seed++)
        for (int32_t parts = 1; parts <= 2; parts++) {
            const int32_t *cut = parts == 1 ? ONE : TWO;
            make(&r, seed);
            sum(&r, cut, parts);
            assert_true(count_outside(&r) > N / 2);
            OK(rpl_choice_explain_exl3(r.x, r.mid, &r.w, cut, parts, r.got, r.y, e));
            assert_int_equal(count_outside(&r), 0);
        }
}

static void a_wrong_sum_is_not_explained(void **state)
{
    (void)state;
    static const int32_t ONE[] = { 0, K };
    make(&r, 4);
    sum(&r, ONE, 1);
    r.got[17] += (float)(100 * krn_span_half(r.y[17]));
    OK(rpl_choice_explain_exl3(r.x, r.mid, &r.w, ONE, 1, r.got, r.y, e));
    assert_int_equal(count_outside(&r), 1);
    assert_false((double)r.got[17] >= r.y[17].lo && (double)r.got[17] <= r.y[17].hi);
}

static void a_row_that_was_none_of_them_is_not_explained(void **state)
{
    (void)state;
    static const int32_t ONE[] = { 0, K };
    make(&r, 5);
    r.taken[1] ^= 0x40; /* an element that had no choice */
    sum(&r, ONE, 1);
    OK(rpl_choice_explain_exl3(r.x, r.mid, &r.w, ONE, 1, r.got, r.y, e));
    assert_true(count_outside(&r) > N / 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_row_that_was_summed_is_found),
        cmocka_unit_test(a_wrong_sum_is_not_explained),
        cmocka_unit_test(a_row_that_was_none_of_them_is_not_explained),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
