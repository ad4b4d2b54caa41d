/* Hidden roundings: rows whose codes may have been others, groups whose scale may have been another. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/act_qdq.h"
#include "kernels/kernels.h"
#include "replay/judge_choice.h"
#include "replay/judge_group.h"

enum { K = 128, N = 200, GROUP = FMT_QDQ_GROUP };

static uint64_t random_bits(void)
{
    static uint64_t z = 1;
    z ^= z << 13;
    z ^= z >> 7;
    return z ^= z << 17;
}
static float random_float(void) { return (float)((double)(random_bits() >> 11) * 0x1p-52 - 1); }

/* A row x of which some elements may have been the next bf16 above, one such row, and sums over its QDQ. */
typedef struct row {
    bf16 w[N * K], mid[K], taken[K];
    krn_span x[K], y[N]; /* y: from mid */
    krn_weight weight;
    float got[N];        /* blocked sums from taken */
    int n_other;         /* elements of the QDQ that taken changes */
} row;

static void row_make(row *r)
{
    bf16 mid_q[K], taken_q[K];
    r->weight = (krn_weight){ .format = KRN_W_BF16, .n = N, .k = K, .data = r->w, .row_bytes = 2 * K };
    for (int i = 0; i < N * K; i++) r->w[i] = bf16_from_f32(random_float());
    for (int i = 0; i < K; i++) {
        r->mid[i] = r->taken[i] = bf16_from_f32(random_float());
        if (random_bits() % 3 == 0) { /* on the tie of two codes: the next number has another one */
            float large = 1.0f + (float)(random_bits() % 8) / 8 + 1.0f / 16;
            r->mid[i] = r->taken[i] = bf16_from_f32(large / 4);
            if (random_bits() & 1) r->taken[i]++;
        }
        r->x[i].lo = (double)f32_from_bf16(r->mid[i]);
        r->x[i].hi = (double)f32_from_bf16((bf16)(r->mid[i] + (random_bits() % 8 == 0 || r->taken[i] != r->mid[i])));
        if (r->x[i].lo > r->x[i].hi) r->x[i] = (krn_span){ r->x[i].hi, r->x[i].lo };
    }
    krn_act_qdq_ref(r->mid, K, mid_q, K, 1, K);
    krn_act_qdq_ref(r->taken, K, taken_q, K, 1, K);
    r->n_other = 0;
    for (int i = 0; i < K; i++) r->n_other += mid_q[i] != taken_q[i];
    krn_linear_bound_job job = { &r->weight, mid_q, NULL, r->y };
    krn_linear_bound(&job, 1, KRN_RULE_PARITY);
    krn_linear_ref(taken_q, K, 1, &r->weight, KRN_ACC_BLOCKED, KRN_OUT_F32, r->got, N);
}

static int count_outside(const row *r)
{
    int n = 0;
    for (int i = 0; i < N; i++) n += !((double)r->got[i] >= r->y[i].lo && (double)r->got[i] <= r->y[i].hi);
    return n;
}

static void explain(row *r)
{
    err e_ = { 0 };
    assert_int_equal(rpl_choice_explain(r->x, r->mid, &r->weight, r->got, r->y, &e_), ERR_OK);
}

static void the_codes_that_were_taken_are_found(void **state)
{
    static row r;
    int n_changed = 0;
    (void)state;
    for (int i = 0; i < 50; i++) {
        row_make(&r);
        if (r.n_other == 0) continue;
        n_changed++;
        assert_true(count_outside(&r) > N / 2);
        explain(&r);
        assert_int_equal(count_outside(&r), 0);
    }
    assert_true(n_changed > 25);
}

static void a_wrong_sum_stays_wrong_and_alone(void **state)
{
    static row r;
    (void)state;
    for (int i = 0; i < 30; i++) {
        static const uint32_t WRONG[] = { 0x7fc00000, 0x7f7fffff, 0x3f800000, 0xc2c80000, 0x7f800000 };
        const int at = (int)(random_bits() % N);
        row_make(&r);
        r.got[at] = f32_from_bits(WRONG[i % 5]);
        explain(&r);
        assert_int_equal(count_outside(&r), 1);
        assert_false((double)r.got[at] >= r.y[at].lo && (double)r.got[at] <= r.y[at].hi);
    }
}

static void sums_that_no_choice_gives_stay_wrong(void **state)
{
    static row r;
    (void)state;
    row_make(&r);
    for (int i = 0; i < N; i++) r.got[i] = random_float() * 10;
    explain(&r);
    assert_true(count_outside(&r) > N / 2);
}

/* ---- groups ---- */

/* Half of it so small that the codes are e4m3's subnormals: there a scale shows. */
static void group_make(bf16 x[GROUP], float largest)
{
    for (int i = 0; i < GROUP; i++) x[i] = bf16_from_f32(random_float() * (i % 2 ? largest : largest * 3e-5f));
    x[7] = bf16_from_f32(largest);
}

static int n_unexplained(const bf16 *got, const krn_span *x, double scale)
{
    int n = 0;
    for (int i = 0; i < GROUP; i++) n += !(rpl_group_distance(got[i], x[i], scale) <= 1);
    return n;
}

/* 448 has scale 1, its upper neighbour scale 2. */
static void a_group_is_explained_under_either_scale_and_it_is_said(void **state)
{
    (void)state;
    for (int side = 0; side <= 1; side++) {
        bf16 x[GROUP], got[GROUP];
        krn_span s[GROUP];
        group_make(x, 448);
        for (int i = 0; i < GROUP; i++) s[i] = krn_span_point((double)f32_from_bf16(x[i]));
        s[7].hi = (double)f32_from_bf16((bf16)(x[7] + 1));
        x[7] = (bf16)(x[7] + side);
        krn_act_qdq_ref(x, GROUP, got, GROUP, 1, GROUP);
        rpl_group_scale g = rpl_group_scale_of(got, s);
        assert_true(g.stepped);
        assert_true(g.scale == (side ? 2 : 1));
        assert_int_equal(n_unexplained(got, s, g.scale), 0);
    }
}

static void a_wrong_code_or_scale_of_a_known_group_is_not_explained(void **state)
{
    bf16 x[GROUP], got[GROUP];
    krn_span s[GROUP];
    (void)state;
    group_make(x, 300);
    for (int i = 0; i < GROUP; i++) s[i] = krn_span_point((double)f32_from_bf16(x[i]));
    krn_act_qdq_ref(x, GROUP, got, GROUP, 1, GROUP);
    rpl_group_scale g = rpl_group_scale_of(got, s);
    assert_false(g.stepped);
    assert_int_equal(n_unexplained(got, s, g.scale), 0);
    got[3] = bf16_from_f32(f32_from_bf16(got[7]) / 2);
    got[7] = 0x7fc0;
    got[9] = (bf16)(got[9] + 1); /* between two codes */
    assert_int_equal(n_unexplained(got, s, g.scale), 3);
    for (int i = 0; i < GROUP; i++) got[i] = bf16_from_f32(FMT_E4M3_VALUE[e4m3_from_f32(f32_from_bf16(x[i]) / 8)] * 8);
    assert_true(n_unexplained(got, s, rpl_group_scale_of(got, s).scale) > 5); /* codes of a scale that is none of its own */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_codes_that_were_taken_are_found),
        cmocka_unit_test(a_wrong_sum_stays_wrong_and_alone),
        cmocka_unit_test(sums_that_no_choice_gives_stay_wrong),
        cmocka_unit_test(a_group_is_explained_under_either_scale_and_it_is_said),
        cmocka_unit_test(a_wrong_code_or_scale_of_a_known_group_is_not_explained),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
