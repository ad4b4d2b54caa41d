/* kernels/ple.h on the card, bit for bit: the fused op and the pair, the two gnorms, all of them and the twins. */
#include "kernels/ple.h"

#include "gpu.h"

#include "../kernels/ple_case.h"

#include <stdlib.h>

/* ---- memory ---- one block of inputs and one of outputs, here pinned and on the card, large enough for every case */

enum { RESID, XN, GATE, NORM_W, FUSED_RESID, FUSED_GATE, FUSED_NORM_W, Y, CACHED_Y, OUTPUTS };
static const char *const NAME[OUTPUTS] = { "resid_out", "xn",     "gate",      "norm_w", "fused resid_out", "fused gate",
                                           "fused norm_w", "y", "cached y" };
enum { GUARD = 64, UNWRITTEN = 0xa5 }; /* elements between outputs, before the first and after the last */

static const ple_case LARGEST = { { 8, 4, 2561 }, 10, KRN_PLE_P_TOKENT };
static float *in, *out, *want, *dev_in, *dev_out;

/* Of output i: where it begins; how many elements it has. */
static size_t out_size(const ple_case *c, int i)
{
    const size_t groups = (size_t)c->s.tokens * (size_t)c->s.hc;
    return i == GATE || i == FUSED_GATE ? groups : groups * (size_t)c->s.n;
}
static size_t out_at(const ple_case *c, int i)
{
    size_t at = GUARD;
    for (int j = 0; j < i; j++) at += out_size(c, j) + GUARD;
    return at; /* out_at(c, OUTPUTS): the block's size */
}
static size_t in_size(const ple_case *c)
{
    size_t at[PLE_INPUTS + 1];
    ple_layout(c, at);
    return at[PLE_INPUTS];
}

static void memory(void)
{
    err e = { 0 };
    if (in) return;
    gpu_ok(krn_pinned_alloc(in_size(&LARGEST) * 4, (void **)&in, &e), &e);
    gpu_ok(krn_pinned_alloc(out_at(&LARGEST, OUTPUTS) * 4, (void **)&out, &e), &e);
    dev_in = gpu_take((int64_t)in_size(&LARGEST) * 4);
    dev_out = gpu_take((int64_t)out_at(&LARGEST, OUTPUTS) * 4);
    want = malloc(out_at(&LARGEST, OUTPUTS) * 4);
    assert_non_null(want);
}

static void upload(const ple_case *c, uint32_t seed, ple_kind kind)
{
    err e = { 0 };
    memory();
    assert_true(in_size(c) <= in_size(&LARGEST) && out_at(c, OUTPUTS) <= out_at(&LARGEST, OUTPUTS));
    ple_fill(c, in, seed, kind);
    gpu_ok(krn_copy(dev_in, in, in_size(c) * 4, gpu_stream(), &e), &e);
    gpu_ok(krn_fill(dev_out, UNWRITTEN, out_at(c, OUTPUTS) * 4, gpu_stream(), &e), &e);
}

static void download(const ple_case *c)
{
    err e = { 0 };
    gpu_ok(krn_copy(out, dev_out, out_at(c, OUTPUTS) * 4, gpu_stream(), &e), &e);
    gpu_wait();
}

/* ---- launches ---- from the inputs' resid, which begins the block, to the outputs */

static void launch_pair(const ple_case *c, const float *resid, float *resid_out, float *xn, float *gate, float *norm_w)
{
    err e = { 0 };
    gpu_ok(krn_gr_norm_comb(c->s, ple_combine_of(c, dev_in), resid, resid_out, xn, gpu_stream(), &e), &e);
    gpu_ok(krn_ple_query_gate_norm(c->s, ple_query_of(c, dev_in), resid_out, gate, norm_w, gpu_stream(), &e), &e);
}

static void launch_fused(const ple_case *c, const float *resid, float *resid_out, float *gate, float *norm_w)
{
    err e = { 0 };
    gpu_ok(krn_ple_comb_query_gate_norm(c->s, ple_combine_of(c, dev_in), ple_query_of(c, dev_in), resid, resid_out, gate,
                                        norm_w, gpu_stream(), &e), &e);
}

static void launch_gnorm(const ple_case *c, bool cached, const float *x, float *y)
{
    err e = { 0 };
    const float *w = ple_query_of(c, dev_in).w_query;
    gpu_ok((cached ? krn_ple_gnorm_cached : krn_ple_gnorm)(c->s, x, w, y, gpu_stream(), &e), &e);
}

static void launch_all(const ple_case *c)
{
    float *o[OUTPUTS];
    for (int i = 0; i < OUTPUTS; i++) o[i] = dev_out + out_at(c, i);
    launch_pair(c, dev_in, o[RESID], o[XN], o[GATE], o[NORM_W]);
    launch_fused(c, dev_in, o[FUSED_RESID], o[FUSED_GATE], o[FUSED_NORM_W]);
    launch_gnorm(c, false, dev_in, o[Y]);
    launch_gnorm(c, true, dev_in, o[CACHED_Y]);
}

/* ---- verdicts ---- */

/* Elements whose bits differ; the first is told. alike: two NaN are the same, as with the twins, which have other ones. */
static int64_t differ(const ple_case *c, const char *what, int i, const float *got, const float *wanted, bool alike)
{
    const int64_t n = (int64_t)out_size(c, i);
    const int32_t row = i == GATE || i == FUSED_GATE ? 1 : c->s.n;
    int64_t count = 0;
    if (memcmp(got, wanted, (size_t)n * 4) == 0) return 0;
    for (int64_t k = 0; k < n; k++) {
        if (f32_bits(got[k]) == f32_bits(wanted[k]) || (alike && isnan(got[k]) && isnan(wanted[k]))) continue;
        if (count++ == 0)
            print_error("%s, %s: T %d n %d hc %d top_k %d: token %lld stream %lld channel %lld: %08x (%.9g), %08x (%.9g)\n",
                        NAME[i], what, c->s.tokens, c->s.n, c->s.hc, c->top_k, (long long)(k / row / c->s.hc),
                        (long long)(k / row % c->s.hc), (long long)(k % row), f32_bits(got[k]), (double)got[k],
                        f32_bits(wanted[k]), (double)wanted[k]);
    }
    if (count) print_error("%lld of %lld differ\n", (long long)count, (long long)n);
    return count;
}

static void twins(const ple_case *c)
{
    float *o[OUTPUTS];
    for (int i = 0; i < OUTPUTS; i++) o[i] = want + out_at(c, i);
    const krn_ple_query q = ple_query_of(c, in);
    krn_gr_norm_comb_ref(c->s, ple_combine_of(c, in), in, o[RESID], o[XN]);
    krn_ple_query_gate_norm_ref(c->s, q, o[RESID], o[GATE], o[NORM_W]);
    krn_ple_gnorm_ref(c->s, in, q.w_query, o[Y]);
}

/* All that is downloaded: the fused op's against the pair's, the cached gnorm's against the plain one's, both against the
 * twins', and what lies between. */
static void judge(const ple_case *c, uint32_t seed, ple_kind kind)
{
    static const int ONE_OF_TWO[OUTPUTS] = { RESID, XN, GATE, NORM_W, RESID, GATE, NORM_W, Y, Y };
    int64_t bad = 0, moved = 0;
    twins(c);
    for (int i = 0; i < OUTPUTS; i++) {
        const float *got = out + out_at(c, i);
        const size_t one = out_at(c, ONE_OF_TWO[i]);
        bad += differ(c, "against the other", i, got, out + one, false);
        bad += differ(c, "against the twin", i, got, want + one, true);
        for (int k = 1; k <= GUARD; k++) bad += f32_bits(got[-k]) != 0xa5a5a5a5u;
    }
    for (int k = 1; k <= GUARD; k++) bad += f32_bits(out[out_at(c, OUTPUTS) - (size_t)k]) != 0xa5a5a5a5u;
    for (size_t k = 0; k < out_size(c, RESID); k++) moved += in[k] != out[out_at(c, RESID) + k];
    if (bad) fail_msg("seed %u kind %d: %lld elements differ, or were written outside", seed, kind, (long long)bad);
    if (kind <= PLE_STALE && moved * 100 < (int64_t)out_size(c, RESID) * 99)
        fail_msg("seed %u kind %d: resid moved in %lld of %zu elements", seed, kind, (long long)moved, out_size(c, RESID));
}

static void one(const ple_case *c, uint32_t seed, ple_kind kind)
{
    upload(c, seed, kind);
    launch_all(c);
    download(c);
    judge(c, seed, kind);
}

/* ---- tests ---- */

static const int32_t NS[] = { 2560, 96, 1000, 2561 };
enum { N_NS = sizeof NS / sizeof NS[0], T_MAX = 8 };

static ple_case case_of(int32_t T, int32_t n, int32_t hc) { return (ple_case){ { T, hc, n }, 10, KRN_PLE_P_TOKENT }; }

/* T 1..8 in turn at the size of the fast path; then as many over all sizes, with hc 4 and 2. */
static void a_thousand_seeds_give_the_pairs_and_the_twins_bits(void **state)
{
    (void)state;
    const uint32_t seeds = getenv("SPARKTAPE_GPU_SMALL") ? 16 : 1000;
    for (uint32_t seed = 0; seed < seeds; seed++) {
        const ple_case c = case_of((int32_t)(1 + seed % T_MAX), 2560, 4);
        one(&c, seed, PLE_PLAIN);
    }
    for (uint32_t seed = 0; seed < seeds; seed++) {
        const ple_case c = case_of((int32_t)(1 + seed % T_MAX), NS[seed / T_MAX % N_NS], seed / T_MAX / N_NS % 2 ? 4 : 2);
        one(&c, 5000 + seed, PLE_PLAIN);
    }
}

static void inputs_that_invite_mistakes_give_the_same_bits(void **state)
{
    (void)state;
    const int32_t step = getenv("SPARKTAPE_GPU_SMALL") ? 7 : 1;
    for (int kind = 0; kind < PLE_KINDS; kind++)
        for (int i = 0; i < N_NS; i++)
            for (int32_t T = 1; T <= T_MAX; T += step)
                for (int32_t hc = 2; hc <= 4; hc += 2) {
                    const ple_case c = case_of(T, NS[i], hc);
                    one(&c, (uint32_t)(100 * kind + T), (ple_kind)kind);
                }
}

/* One channel; fewer than a warp; another top_k at the n of the fast path, where the pair's halves take different ways. */
static void other_shapes_give_the_same_bits(void **state)
{
    (void)state;
    const ple_case cases[] = { { { 5, 3, 1 }, 1, 0 },      { { 2, 1, 31 }, 2, 1 },      { { 3, 8, 256 }, 10, 7 },
                               { { 8, 4, 2560 }, 7, 20 },  { { 1, 4, 2560 }, 1, 0 },    { { 2, 4, 2560 }, 10, 0 },
                               { { 40, 2, 257 }, 10, 33 }, { { 2, 2, 2559 }, 10, 532 } };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int kind = PLE_PLAIN; kind < PLE_KINDS; kind += PLE_STALE) one(&cases[i], 300 + (uint32_t)i, (ple_kind)kind);
}

/* a = 0 gives a gate of exactly a half, on the card too. */
static void no_answer_is_half(void **state)
{
    (void)state;
    const ple_case c = case_of(8, 2560, 4);
    one(&c, 77, PLE_NO_ANSWER);
    for (int64_t k = 0; k < 32; k++) assert_true(out[out_at(&c, FUSED_GATE) + (size_t)k] == 0.5f);
}

/* 64 nodes that each take what the one before wrote: with launches that begin early, one that did not wait would show.
 * gate NULL on the way. */
static void nodes_of_a_graph_wait_for_each_other(void **state)
{
    (void)state;
    enum { NODES = 64 };
    for (int32_t T = 1; T <= T_MAX; T += T_MAX - 1)
        for (int fused = 0; fused < 3; fused++) {
            const ple_case c = case_of(T, 2560, 4);
            err e = { 0 };
            krn_graph *graph;
            const size_t n = out_size(&c, RESID);
            float *resid, *norm, *xn;
            for (int warm = 1; warm >= 0; warm--) { /* once outside of the graph: a capture may not load kernels */
                upload(&c, 900, PLE_PLAIN);
                resid = dev_out + out_at(&c, RESID), norm = dev_out + out_at(&c, NORM_W), xn = dev_out + out_at(&c, XN);
                gpu_ok(krn_copy(resid, dev_in, n * 4, gpu_stream(), &e), &e);
                gpu_wait();
                if (!warm) gpu_ok(krn_capture_begin(gpu_stream(), &e), &e);
                for (int i = 0; i < (warm ? 1 : NODES); i++) {
                    if (fused == 0) launch_pair(&c, resid, resid, xn, NULL, norm);
                    if (fused == 1) launch_fused(&c, resid, resid, NULL, norm);
                    if (fused == 2) launch_gnorm(&c, i % 2, resid, resid);
                }
            }
            gpu_ok(krn_capture_end(gpu_stream(), &graph, &e), &e);
            assert_int_equal(krn_graph_kernels(graph), fused == 0 ? 2 * NODES : NODES);
            gpu_ok(krn_graph_launch(graph, gpu_stream(), &e), &e);
            download(&c);
            krn_graph_close(graph);
            memcpy(want, in, n * 4);
            for (int i = 0; i < NODES; i++) {
                if (fused == 2) krn_ple_gnorm_ref(c.s, want, ple_query_of(&c, in).w_query, want);
                else krn_ple_comb_query_gate_norm_ref(c.s, ple_combine_of(&c, in), ple_query_of(&c, in), want, want, NULL,
                                                      want + n);
            }
            assert_int_equal(differ(&c, "after 64 nodes", RESID, out + out_at(&c, RESID), want, true), 0);
            if (fused < 2)
                assert_int_equal(differ(&c, "after 64 nodes", NORM_W, out + out_at(&c, NORM_W), want + n, true), 0);
        }
}

static void a_flipped_bit_is_seen(void **state)
{
    (void)state;
    const ple_case c = case_of(2, 96, 2);
    one(&c, 1, PLE_PLAIN);
    float *last = &out[out_at(&c, CACHED_Y) + out_size(&c, CACHED_Y) - 1];
    *last = f32_from_bits(f32_bits(*last) ^ 1);
    assert_int_equal(differ(&c, "a planted one", CACHED_Y, out + out_at(&c, CACHED_Y), out + out_at(&c, Y), false), 1);
}

static void shapes_outside_the_contract_are_refused(void **state)
{
    (void)state;
    err e = { 0 };
    const krn_ple_shape bad[] = { { -1, 4, 8 }, { KRN_PLE_TOKENS_MAX + 1, 4, 8 }, { 1, 0, 8 }, { 1, 4, 0 },
                                  { 1, 4, KRN_PLE_N_MAX + 1 } };
    const krn_ple_combine good = { .top_k = 1, .rows = 1 };
    const krn_ple_combine bad_combine[] = { { .top_k = 0, .rows = 1 }, { .top_k = 1 },
                                            { .top_k = 1, .rows = 1, .p_tokent = -1 } };
    const krn_ple_query q = { 0 };
    krn_stream s = gpu_stream();
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(krn_ple_gnorm(bad[i], NULL, NULL, NULL, s, &e), ERR_ARG);
        assert_int_equal(krn_ple_gnorm_cached(bad[i], NULL, NULL, NULL, s, &e), ERR_ARG);
        assert_int_equal(krn_gr_norm_comb(bad[i], good, NULL, NULL, NULL, s, &e), ERR_ARG);
        assert_int_equal(krn_ple_query_gate_norm(bad[i], q, NULL, NULL, NULL, s, &e), ERR_ARG);
        assert_int_equal(krn_ple_comb_query_gate_norm(bad[i], good, q, NULL, NULL, NULL, NULL, s, &e), ERR_ARG);
    }
    const krn_ple_shape one_group = { 1, 1, 8 }, none = { 0, 4, 2560 };
    for (size_t i = 0; i < sizeof bad_combine / sizeof bad_combine[0]; i++) {
        assert_int_equal(krn_gr_norm_comb(one_group, bad_combine[i], NULL, NULL, NULL, s, &e), ERR_ARG);
        assert_int_equal(krn_ple_comb_query_gate_norm(one_group, bad_combine[i], q, NULL, NULL, NULL, NULL, s, &e),
                         ERR_ARG);
    }
    gpu_ok(krn_ple_gnorm_cached(none, NULL, NULL, NULL, s, &e), &e); /* no tokens: nothing to do */
    gpu_ok(krn_ple_comb_query_gate_norm(none, good, q, NULL, NULL, NULL, NULL, s, &e), &e);
}

/* ---- times ---- of 64 in a graph */

typedef struct timed { ple_case c; int op; } timed;

static void launch_timed(const void *ctx, int32_t i)
{
    const timed *t = ctx;
    const ple_case *c = &t->c;
    (void)i;
    if (t->op == 0) launch_pair(c, dev_in, dev_out + out_at(c, RESID), dev_out + out_at(c, XN), dev_out + out_at(c, GATE),
                                dev_out + out_at(c, NORM_W));
    if (t->op == 1) launch_fused(c, dev_in, dev_out + out_at(c, RESID), dev_out + out_at(c, GATE),
                                 dev_out + out_at(c, NORM_W));
    if (t->op >= 2) launch_gnorm(c, t->op == 3, dev_in, dev_out + out_at(c, Y));
}

static void the_ops_are_timed(void **state)
{
    (void)state;
    static const char *const OP[] = { "pair", "fused", "gnorm", "gnorm_cached" };
    if (getenv("SPARKTAPE_GPU_SMALL")) skip(); /* under a checker time says nothing */
    for (int32_t T = 1; T <= T_MAX; T = T < 4 ? T + 1 : 2 * T) {
        double us[4];
        upload(&(ple_case){ { T, 4, 2560 }, 10, KRN_PLE_P_TOKENT }, 1, PLE_PLAIN);
        for (int op = 0; op < 4; op++) {
            const timed t = { case_of(T, 2560, 4), op };
            us[op] = gpu_best_us(launch_timed, &t, 64, 50);
            print_message("figure: ple_%s_t%d %.3f us\n", OP[op], T, us[op]);
        }
        print_message("figure: ple_fused_of_pair_t%d %.3f x\n", T, us[1] / us[0]);
        print_message("figure: ple_cached_of_gnorm_t%d %.3f x\n", T, us[3] / us[2]);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_thousand_seeds_give_the_pairs_and_the_twins_bits),
    cmocka_unit_test(inputs_that_invite_mistakes_give_the_same_bits),
    cmocka_unit_test(other_shapes_give_the_same_bits),
    cmocka_unit_test(no_answer_is_half),
    cmocka_unit_test(nodes_of_a_graph_wait_for_each_other),
    cmocka_unit_test(a_flipped_bit_is_seen),
    cmocka_unit_test(shapes_outside_the_contract_are_refused),
    cmocka_unit_test(the_ops_are_timed),
};
GPU_MAIN(tests)
