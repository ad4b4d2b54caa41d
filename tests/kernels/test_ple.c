/* The twins of kernels/ple.h: the float64 goldens, the written order bit for bit, the two forms alike, their edges. */
#include "kernels/ple.h"

#include "check.h"
#include "ple_case.h"

#include "base/mem.h"
#include "formats/safetensors.h"
#include "kernels/ple_steps.h"

#include <stdlib.h>

/* ---- a run of everything ---- */

typedef struct results {
    int64_t n, gates; /* gates: elements of a gate; n: of all else */
    float *resid, *xn, *gate, *norm_w, *y, *fused_resid, *fused_gate, *fused_norm_w;
} results;

static float *floats(int64_t n)
{
    float *v = mem_alloc((size_t)n, sizeof(float));
    assert_non_null(v);
    memset(v, 0xa5, (size_t)n * sizeof(float));
    return v;
}

/* Of the block's ops by the pair and by the fused one, and gnorm of the pair's stream by w_query. */
static results run(krn_ple_shape s, krn_ple_combine in, krn_ple_query q, const float *resid)
{
    results r = { .n = (int64_t)s.tokens * s.hc * s.n, .gates = (int64_t)s.tokens * s.hc };
    float **all[] = { &r.resid, &r.xn, &r.norm_w, &r.y, &r.fused_resid, &r.fused_norm_w };
    for (size_t i = 0; i < COUNT_OF(all); i++) *all[i] = floats(r.n);
    r.gate = floats(r.gates);
    r.fused_gate = floats(r.gates);
    krn_gr_norm_comb_ref(s, in, resid, r.resid, r.xn);
    krn_ple_query_gate_norm_ref(s, q, r.resid, r.gate, r.norm_w);
    krn_ple_gnorm_ref(s, r.resid, q.w_query, r.y);
    krn_ple_comb_query_gate_norm_ref(s, in, q, resid, r.fused_resid, r.fused_gate, r.fused_norm_w);
    return r;
}

static void results_free(results *r)
{
    float *all[] = { r->resid, r->xn, r->gate, r->norm_w, r->y, r->fused_resid, r->fused_gate, r->fused_norm_w };
    for (size_t i = 0; i < COUNT_OF(all); i++) free(all[i]);
}

static results run_case(const ple_case *c, uint32_t seed, ple_kind kind, float **block)
{
    size_t at[PLE_INPUTS + 1];
    ple_layout(c, at);
    *block = floats((int64_t)at[PLE_INPUTS]);
    ple_fill(c, *block, seed, kind);
    return run(c->s, ple_combine_of(c, *block), ple_query_of(c, *block), *block + at[PLE_RESID]);
}

/* ---- the goldens ---- */

enum { TOP_K = 10 };
static const double BOUND = 2e-6; /* the contract's: f32 gives some 1e-7, so that a wrong term is far outside */
static const char *const GOLDENS[] = { "T1_n96_hc4", "T3_n160_hc2", "T1_n300_hc2" };

static const void *golden(const fmt_safetensors *f, const char *name, int64_t n)
{
    const fmt_safetensors_entry *entry = fmt_safetensors_find(f, name);
    if (!entry) fail_msg("%s: no %s", fmt_safetensors_path(f), name);
    assert_int_equal(fmt_tensor_elems(&entry->tensor), n);
    return entry->tensor.data;
}

static fmt_safetensors *golden_open(const char *name, krn_ple_shape *s, krn_ple_combine *in, krn_ple_query *q)
{
    char path[4096];
    err e = { 0 };
    fmt_safetensors *f;
    snprintf(path, sizeof path, TESTS_DIR "/golden/ple/%s.safetensors", name);
    if (fmt_safetensors_open(path, &f, &e) != ERR_OK) fail_msg("%s", e.msg);
    const fmt_safetensors_entry *resid = fmt_safetensors_find(f, "resid");
    assert_non_null(resid);
    const int64_t *shape = resid->tensor.shape, T = shape[0], hc = shape[1], n = shape[2];
    *s = (krn_ple_shape){ (int32_t)T, (int32_t)hc, (int32_t)n };
    *in = (krn_ple_combine){ golden(f, "ye", TOP_K * T * n), golden(f, "plan", KRN_PLE_P_TOKENT + TOP_K * T),
                             golden(f, "ysh", T * n), golden(f, "gs", T), golden(f, "g", T * hc), TOP_K,
                             (int32_t)(TOP_K * T), KRN_PLE_P_TOKENT };
    *q = (krn_ple_query){ golden(f, "key", T * hc * n), golden(f, "value", T * n), golden(f, "w_query", hc * n),
                          golden(f, "w_conv", hc * n) };
    return f;
}

/* |got - want| / |want|, of all elements as one vector. want: doubles, wherever the file has them. */
static double distance(const float *got, const void *want, int64_t n)
{
    double sum = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) {
        double w;
        memcpy(&w, (const char *)want + (size_t)i * sizeof w, sizeof w);
        sum += ((double)got[i] - w) * ((double)got[i] - w);
        norm += w * w;
    }
    return sqrt(sum / norm);
}

/* The largest distance of the outputs that the golden has. NaN of any is infinite. */
static double worst_distance(const results *r, const fmt_safetensors *f)
{
    const struct { const char *name; const float *got; int64_t n; } all[] = {
        { "resid_out", r->resid, r->n },        { "gate", r->gate, r->gates },        { "norm_w", r->norm_w, r->n },
        { "resid_out", r->fused_resid, r->n },  { "gate", r->fused_gate, r->gates },  { "norm_w", r->fused_norm_w, r->n },
        { "y", r->y, r->n },
    };
    double worst = 0;
    for (size_t i = 0; i < COUNT_OF(all); i++) {
        const double d = distance(all[i].got, golden(f, all[i].name, all[i].n), all[i].n);
        if (!(d <= worst)) worst = d == d ? d : INFINITY;
    }
    return worst;
}

static void every_output_is_within_the_bound_of_the_goldens(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(GOLDENS); i++) {
        krn_ple_shape s;
        krn_ple_combine in;
        krn_ple_query q;
        fmt_safetensors *f = golden_open(GOLDENS[i], &s, &in, &q);
        const float *resid = golden(f, "resid", (int64_t)s.tokens * s.hc * s.n);
        results r = run(s, in, q, resid);
        const double worst = worst_distance(&r, f);
        print_message("%s: relative L2 %.2g\n", GOLDENS[i], worst);
        assert_true(worst <= BOUND);
        int64_t moved = 0;
        for (int64_t k = 0; k < r.n; k++) moved += r.resid[k] != resid[k];
        assert_true(moved > r.n * 99 / 100);
        results_free(&r);
        fmt_safetensors_close(f);
    }
}

/* One thing wrong each time: the bound is no rubber band. */
static void a_wrong_term_is_outside_the_bound(void **state)
{
    (void)state;
    krn_ple_shape s;
    krn_ple_combine in;
    krn_ple_query q;
    fmt_safetensors *f = golden_open(GOLDENS[1], &s, &in, &q);
    const float *resid = golden(f, "resid", (int64_t)s.tokens * s.hc * s.n);
    for (int wrong = 0; wrong < 7; wrong++) {
        krn_ple_combine a = in;
        krn_ple_query b = q;
        if (wrong == 0) a.top_k = TOP_K - 1;              /* and all tokens but the first have others' picks */
        if (wrong == 1) a.p_tokent -= 1;                  /* one pick is outside of ye */
        if (wrong == 2) a.g = q.w_conv;
        if (wrong == 3) b.key = resid;
        if (wrong == 4) b.w_query = q.w_conv;
        if (wrong == 5) b.w_conv = q.w_query;
        if (wrong == 6) b.value = in.ysh;
        results r = run(s, a, b, resid);
        if (!(worst_distance(&r, f) > BOUND)) fail_msg("wrong %d is not seen", wrong);
        results_free(&r);
    }
    fmt_safetensors_close(f);
}

/* ---- bits ---- */

/* The contract's order, written once more: values by lane and round, a tree over lane numbers. */
static float sum_as_written(const float *x, const float *y, int32_t n)
{
    float lane[256];
    for (int i = 0; i < 256; i++) {
        lane[i] = 0;
        for (int32_t d = i; d < n; d += 256) lane[i] = fmaf(x[d], y[d], lane[i]);
    }
    float warp[8];
    for (int w = 0; w < 8; w++) {
        const float *l = lane + 32 * w;
        float a[16], b[8];
        for (int i = 0; i < 16; i++) a[i] = l[i] + l[i + 16];
        for (int i = 0; i < 8; i++) b[i] = a[i] + a[i + 8];
        warp[w] = ((b[0] + b[4]) + (b[2] + b[6])) + ((b[1] + b[5]) + (b[3] + b[7]));
    }
    return ((warp[0] + warp[4]) + (warp[2] + warp[6])) + ((warp[1] + warp[5]) + (warp[3] + warp[7]));
}

static void has_the_bits_of_the_written_steps(void **state)
{
    (void)state;
    const int32_t ns[] = { 2560, 1, 33, 257, 1000 };
    int64_t other_order = 0;
    for (size_t i = 0; i < COUNT_OF(ns); i++) {
        const int32_t n = ns[i];
        const ple_case c = { { 1, 1, n }, 3, 5 };
        size_t at[PLE_INPUTS + 1];
        float *block;
        results r = run_case(&c, 40 + (uint32_t)i, PLE_PLAIN, &block);
        ple_layout(&c, at);
        const krn_ple_combine in = ple_combine_of(&c, block);
        const krn_ple_query q = ple_query_of(&c, block);
        float *want = floats(n), *row = floats(n), plain = 0;
        for (int32_t d = 0; d < n; d++) {
            float s = 0;
            for (int j = 0; j < 3; j++) s = s + in.ye[(int64_t)in.plan[5 + j] * n + d];
            want[d] = fmaf(fmaf(in.gs[0], in.ysh[d], s), in.g[0], block[at[PLE_RESID] + (size_t)d]);
            plain = fmaf(want[d], want[d], plain);
        }
        assert_f32_same(r.resid, want, n);
        const float sum = sum_as_written(want, want, n), root = 1.0f / sqrtf(fmaf(sum, 1.0f / (float)n, 1e-6f));
        other_order += sum != plain;
        for (int32_t d = 0; d < n; d++) row[d] = want[d] * root;
        assert_f32_same(r.xn, row, n);
        for (int32_t d = 0; d < n; d++) row[d] = row[d] * q.w_query[d];
        assert_f32_same(r.y, row, n);
        const float gate = krn_ple_gate(sum_as_written(q.key, row, n) * (float)(1.0 / sqrt((double)n)));
        assert_f32_same(r.gate, &gate, 1);
        for (int32_t d = 0; d < n; d++) row[d] = gate * q.value[d];
        const float last = 1.0f / sqrtf(fmaf(sum_as_written(row, row, n), 1.0f / (float)n, 1e-6f));
        for (int32_t d = 0; d < n; d++) row[d] = row[d] * last * q.w_conv[d];
        assert_f32_same(r.norm_w, row, n);
        free(want);
        free(row);
        free(block);
        results_free(&r);
    }
    assert_true(other_order >= 3); /* from left to right it is another sum */
}

static const ple_case SHAPES[] = {
    { { 1, 4, 2560 }, 10, KRN_PLE_P_TOKENT }, { { 3, 2, 96 }, 10, KRN_PLE_P_TOKENT }, { { 2, 4, 300 }, 7, 0 },
    { { 2, 3, 1 }, 1, 20 },
};

static void the_fused_twin_has_the_bits_of_the_pair_in_place_too(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(SHAPES); i++)
        for (int kind = 0; kind < PLE_KINDS; kind++) {
            const ple_case *c = &SHAPES[i];
            float *block;
            size_t at[PLE_INPUTS + 1];
            results r = run_case(c, 7, (ple_kind)kind, &block);
            ple_layout(c, at);
            assert_f32_same(r.fused_resid, r.resid, r.n);
            assert_f32_same(r.fused_gate, r.gate, r.gates);
            assert_f32_same(r.fused_norm_w, r.norm_w, r.n);
            float *in_place = block + at[PLE_RESID];
            krn_ple_comb_query_gate_norm_ref(c->s, ple_combine_of(c, block), ple_query_of(c, block), in_place, in_place,
                                             NULL, r.norm_w);
            assert_f32_same(in_place, r.resid, r.n);
            assert_f32_same(r.norm_w, r.fused_norm_w, r.n);
            free(block);
            results_free(&r);
        }
}

static void a_token_does_not_depend_on_the_others(void **state)
{
    (void)state;
    const ple_case c = { { 3, 2, 300 }, 4, 9 };
    const int64_t token = 2 * 300;
    float *block;
    size_t at[PLE_INPUTS + 1];
    results r = run_case(&c, 8, PLE_PLAIN, &block);
    ple_layout(&c, at);
    for (int32_t t = 0; t < 3; t++) {
        krn_ple_combine in = ple_combine_of(&c, block);
        krn_ple_query q = ple_query_of(&c, block);
        in.p_tokent += t * c.top_k;
        in.ysh += t * 300, in.gs += t, in.g += t * 2, q.key += t * token, q.value += t * 300;
        results alone = run((krn_ple_shape){ 1, 2, 300 }, in, q, block + at[PLE_RESID] + t * token);
        assert_f32_same(alone.resid, r.resid + t * token, token);
        assert_f32_same(alone.norm_w, r.norm_w + t * token, token);
        results_free(&alone);
    }
    free(block);
    results_free(&r);
}

/* ---- edges ---- */

/* The same as a plan whose rows outside of ye are a row of zeros. */
static void rows_outside_of_ye_count_as_zeros(void **state)
{
    (void)state;
    const ple_case c = { { 2, 2, 70 }, 10, KRN_PLE_P_TOKENT };
    const int32_t rows = 20, n = 70;
    float *block;
    size_t at[PLE_INPUTS + 1];
    results r = run_case(&c, 9, PLE_STALE, &block);
    ple_layout(&c, at);
    krn_ple_combine in = ple_combine_of(&c, block);
    float *ye = floats((rows + 1) * n);
    int32_t plan[20], outside = 0;
    memcpy(ye, in.ye, (size_t)(rows * n) * sizeof(float));
    memset(ye + rows * n, 0, (size_t)n * sizeof(float));
    for (int i = 0; i < 20; i++) {
        plan[i] = in.plan[KRN_PLE_P_TOKENT + i];
        const bool there = plan[i] >= 0 && plan[i] < rows;
        outside += !there;
        if (!there) plan[i] = rows;
    }
    assert_true(outside > 3 && outside < 17);
    in.ye = ye, in.plan = plan, in.rows = rows + 1, in.p_tokent = 0;
    results zeros = run(c.s, in, ple_query_of(&c, block), block + at[PLE_RESID]);
    assert_f32_same(r.resid, zeros.resid, r.n);
    results_free(&zeros);
    results_free(&r);
    free(ye);
    free(block);
}

static void no_answer_is_half_and_a_faint_one_is_as_if_1e_minus_6(void **state)
{
    (void)state;
    const ple_case c = { { 3, 4, 300 }, 10, KRN_PLE_P_TOKENT };
    float *block;
    results r = run_case(&c, 10, PLE_NO_ANSWER, &block);
    for (int64_t i = 0; i < r.gates; i++) assert_true(r.gate[i] == 0.5f);
    results_free(&r);
    free(block);
    r = run_case(&c, 11, PLE_FAINT, &block);
    int above = 0;
    for (int64_t i = 0; i < r.gates; i++) {
        const bool up = r.gate[i] > 0.5f;
        above += up;
        assert_true(explained_f32(r.gate[i], 1 / (1 + exp(up ? -1e-3 : 1e-3)), 2 * U));
    }
    assert_true(above > 0 && above < r.gates);
    results_free(&r);
    free(block);
}

static void sums_beyond_f32_give_zeros_and_nan_stays_in_its_group(void **state)
{
    (void)state;
    enum { N = 300, GROUPS = 4 };
    static float x[GROUPS * N], w[GROUPS * N], y[GROUPS * N];
    fill_f32(x, GROUPS * N, 1, 1.0f);
    fill_f32(w, GROUPS * N, 2, 1.0f);
    for (int d = 0; d < N; d++) x[N + d] = 0x1p100f, x[3 * N + d] = 0x1p-140f;
    x[2 * N + 17] = NAN;
    krn_ple_gnorm_ref((krn_ple_shape){ 2, 2, N }, x, w, y);
    for (int d = 0; d < N; d++) {
        assert_true(y[d] == y[d] && (y[d] != 0 || w[d] == 0));
        assert_true(y[N + d] == 0);
        assert_true(isnan(y[2 * N + d]));
        assert_true(y[3 * N + d] == x[3 * N + d] * (1.0f / sqrtf(1e-6f)) * w[N + d]); /* the squares vanish: only eps */
    }
}

static void the_exponential_is_within_an_ulp_and_the_gate_passes_its_ends(void **state)
{
    (void)state;
    double worst = 0;
    for (uint32_t bits = 0; bits < 0xff800000u; bits += 99991) {
        const float x = f32_from_bits(bits), want = (float)exp((double)x), got = krn_ple_exp(x);
        if (x != x) continue;
        if (isinf(want) || isinf(got)) {
            assert_true(got == want);
            continue;
        }
        const double ulp = (double)nextafterf(want, INFINITY) - (double)want;
        const double off = fabs((double)got - exp((double)x)) / ulp;
        if (off > worst) worst = off;
    }
    print_message("exp: %.3f ulp\n", worst);
    assert_true(worst < 1.0);
    assert_true(krn_ple_gate(INFINITY) == 1 && krn_ple_gate(3e38f) == 1 && krn_ple_gate(-3e38f) == 0);
    assert_true(krn_ple_gate(-INFINITY) == 0 && krn_ple_gate(0.0f) == 0.5f && krn_ple_gate(-0.0f) == 0.5f);
    assert_true(isnan(krn_ple_gate(NAN)));
    for (int i = -60; i <= 60; i++) {
        const double a = i * 0.37, z = copysign(sqrt(fabs((double)(float)a)), a);
        assert_true(explained_f32(krn_ple_gate((float)a), 1 / (1 + exp(-z)), 8 * U / (1 + exp(-z))));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_output_is_within_the_bound_of_the_goldens),
        cmocka_unit_test(a_wrong_term_is_outside_the_bound),
        cmocka_unit_test(has_the_bits_of_the_written_steps),
        cmocka_unit_test(the_fused_twin_has_the_bits_of_the_pair_in_place_too),
        cmocka_unit_test(a_token_does_not_depend_on_the_others),
        cmocka_unit_test(rows_outside_of_ye_count_as_zeros),
        cmocka_unit_test(no_answer_is_half_and_a_faint_one_is_as_if_1e_minus_6),
        cmocka_unit_test(sums_beyond_f32_give_zeros_and_nan_stays_in_its_group),
        cmocka_unit_test(the_exponential_is_within_an_ulp_and_the_gate_passes_its_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
