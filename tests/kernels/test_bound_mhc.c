/* The bound of the comb against brute force: sums in random orders, other orders of magnitude, and every number of copies;
 * its derivatives against the iterations themselves; and how little it lets through at the official width. */
#include "check.h"

#include "kernels/linear.h"
#include "kernels/mhc.h"

enum { HC_MAX = KRN_MHC_COPIES_MAX, MIX_MAX = (2 + HC_MAX) * HC_MAX, COMB_MAX = HC_MAX * HC_MAX, ITERS = 20 };
static const float EPS = 1e-6f;

static uint64_t random_bits(void)
{
    static uint64_t z = 7;
    z ^= z << 13;
    z ^= z >> 7;
    return z ^= z << 17;
}

/* One row: what krn_mhc_mixes_ref takes. */
typedef struct row {
    int32_t hc, dim, n_mixes;
    bf16 *x;                    /* [hc, dim] */
    float *fn, base[MIX_MAX], scale[3]; /* fn [n_mixes, hc * dim] */
    krn_span dots[MIX_MAX];
} row;

static row row_make(int32_t hc, int32_t dim, uint64_t seed, float fn_size, float base_size)
{
    row r = { .hc = hc, .dim = dim, .n_mixes = (2 + hc) * hc, .scale = { 0.7f, 1.1f, 0.6f } };
    const int64_t n = (int64_t)hc * dim;
    r.x = malloc((size_t)n * sizeof *r.x);
    r.fn = malloc((size_t)(r.n_mixes * n) * sizeof *r.fn);
    assert_true(r.x && r.fn);
    fill_bf16(r.x, n, seed, 1.0f);
    fill_f32(r.fn, r.n_mixes * n, seed + 1000, fn_size / sqrtf((float)n));
    fill_f32(r.base, r.n_mixes, seed + 2000, base_size);
    return r;
}

static void row_bound_dots(row *r, krn_rule rule)
{
    krn_weight w = { .format = KRN_W_F32, .n = r->n_mixes, .k = r->hc * r->dim, .data = r->fn,
                     .row_bytes = 4 * (int64_t)r->hc * r->dim };
    krn_linear_bound_job job = { &w, r->x, NULL, r->dots };
    krn_linear_bound(&job, 1, rule);
}

static void row_free(row *r)
{
    free(r->x);
    free(r->fn);
}

static void comb_of(const row *r, const float *dots, krn_acc acc, float *comb)
{
    float pre[HC_MAX], post[HC_MAX];
    krn_mhc_mixes_ref(r->x, dots, r->base, r->scale, 1, r->hc, r->dim, 1e-20f, EPS, ITERS, pre, post, comb, acc);
}

static void bound_of(const row *r, krn_rule rule, krn_span *comb)
{
    krn_mhc_mixes_bound(r->x, r->dots, r->base, r->scale, r->hc, r->dim, 1e-20f, EPS, ITERS, rule, NULL, NULL, comb);
}

static void assert_inside(const row *r, const float *got, const krn_span *s)
{
    for (int32_t i = 0; i < r->hc * r->hc; i++)
        if (!((double)got[i] >= s[i].lo && (double)got[i] <= s[i].hi))
            fail_msg("hc %d comb[%d]: %.9g is not in [%.17g, %.17g]", r->hc, i, (double)got[i], s[i].lo, s[i].hi);
}

/* A sum in one of many orders: from a random place on, by a random odd step, in up to four parts. */
static float sum_in_some_order(const float *w, const bf16 *x, int32_t n)
{
    float part[4] = { 0 };
    const int32_t parts = 1 + (int32_t)(random_bits() % 4);
    for (int32_t i = 0; i < n; i++) {
        const int32_t p = (int32_t)((random_bits() >> 40) % (uint64_t)parts);
        part[p] += w[i] * f32_from_bf16(x[i]);
    }
    for (int p = 1; p < parts; p++) part[0] += part[p];
    return part[0];
}

static void combs_from_sums_in_any_order_lie_inside(void **state)
{
    static const float FN[] = { 0.3f, 1.2f, 6.0f }, BASE[] = { 0.0f, 0.5f, 4.0f, 12.0f };
    (void)state;
    for (uint64_t seed = 0; seed < 96; seed++) {
        row r = row_make(1 + (int32_t)(seed % 8), 40, seed, FN[seed % 3], BASE[seed / 8 % 4]);
        krn_span s[COMB_MAX];
        row_bound_dots(&r, KRN_RULE_PARITY);
        bound_of(&r, KRN_RULE_PARITY, s);
        for (int order = 0; order < 20; order++) {
            float dots[MIX_MAX], comb[COMB_MAX];
            for (int32_t k = 0; k < r.n_mixes; k++)
                dots[k] = sum_in_some_order(r.fn + (int64_t)k * r.hc * r.dim, r.x, r.hc * r.dim);
            comb_of(&r, dots, order & 1 ? KRN_ACC_F64 : KRN_ACC_BLOCKED, comb);
            assert_inside(&r, comb, s);
        }
        row_free(&r);
    }
}

/* Dots far off, at one end of their spans each: in the worst case all errors add up. */
static void the_worst_case_holds_every_choice_of_ends(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 48; seed++) {
        row r = row_make(2 + (int32_t)(seed % 7), 24, seed, 1.2f, seed % 2 ? 0.5f : 5.0f);
        krn_span s[COMB_MAX];
        row_bound_dots(&r, KRN_RULE_WORST);
        for (int32_t k = 0; k < r.n_mixes; k++) r.dots[k] = krn_span_around(krn_span_middle(r.dots[k]), 0.02);
        bound_of(&r, KRN_RULE_WORST, s);
        for (int i = 0; i < 100; i++) {
            float dots[MIX_MAX], comb[COMB_MAX];
            for (int32_t k = 0; k < r.n_mixes; k++) dots[k] = (float)(random_bits() & 1024 ? r.dots[k].lo : r.dots[k].hi);
            comb_of(&r, dots, KRN_ACC_F64, comb);
            assert_inside(&r, comb, s);
        }
        row_free(&r);
    }
}

/* One dot alone is off: the comb moves to the end of its span, and hardly beyond. */
static void the_span_is_what_the_iterations_make_of_one_dot(void **state)
{
    const double off = 2e-3;
    (void)state;
    for (uint64_t seed = 0; seed < 24; seed++) {
        row r = row_make(4, 32, seed, 1.2f, 0.5f);
        float at[MIX_MAX], one[COMB_MAX], other[COMB_MAX];
        krn_span s[COMB_MAX];
        double closest = 2;
        row_bound_dots(&r, KRN_RULE_PARITY);
        for (int32_t k = 0; k < r.n_mixes; k++) {
            at[k] = (float)krn_span_middle(r.dots[k]);
            r.dots[k] = krn_span_point((double)at[k]);
        }
        const int32_t k = 2 * r.hc + (int32_t)(random_bits() % 16);
        r.dots[k] = krn_span_around((double)at[k], off);
        bound_of(&r, KRN_RULE_PARITY, s);
        at[k] = (float)r.dots[k].lo;
        comb_of(&r, at, KRN_ACC_F64, one);
        at[k] = (float)r.dots[k].hi;
        comb_of(&r, at, KRN_ACC_F64, other);
        assert_inside(&r, one, s);
        assert_inside(&r, other, s);
        for (int32_t i = 0; i < r.hc * r.hc; i++)
            closest = fmin(closest, (s[i].hi - s[i].lo) / fabs((double)one[i] - (double)other[i]));
        assert_true(closest >= 1 && closest < 1.1);
        row_free(&r);
    }
}

static void two_ulps_do_not_pass_at_the_official_width(void **state)
{
    int32_t tried = 0, admitted = 0;
    (void)state;
    for (uint64_t seed = 0; seed < 4; seed++) {
        row r = row_make(4, 4096, seed, 1.2f, 0.5f);
        krn_span s[COMB_MAX];
        row_bound_dots(&r, KRN_RULE_PARITY);
        bound_of(&r, KRN_RULE_PARITY, s);
        for (int32_t i = 0; i < 16; i++)
            for (int side = -1; side <= 1; side += 2, tried++) {
                const float v = (float)krn_span_middle(s[i]);
                const double other = (double)f32_from_bits(f32_bits(v) + (uint32_t)(side * (2 << 16)));
                admitted += other >= s[i].lo && other <= s[i].hi;
            }
        row_free(&r);
    }
    if (admitted * 100 > tried) fail_msg("%d of %d pass", admitted, tried);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(combs_from_sums_in_any_order_lie_inside),
        cmocka_unit_test(the_worst_case_holds_every_choice_of_ends),
        cmocka_unit_test(the_span_is_what_the_iterations_make_of_one_dot),
        cmocka_unit_test(two_ulps_do_not_pass_at_the_official_width),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
