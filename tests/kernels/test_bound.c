/* Every bound against brute force: what sums in random orders, and functions in f32, really give lies inside; two bf16 ulps
 * away from the largest element lie outside. */
#include "check.h"

#include "kernels/attention.h"
#include "kernels/combine.h"
#include "kernels/confidence.h"
#include "kernels/gate.h"
#include "kernels/linear.h"
#include "kernels/markov.h"
#include "kernels/mhc.h"
#include "kernels/rmsnorm.h"
#include "kernels/rope.h"
#include "kernels/swiglu.h"

enum { ORDERS = 20, N = 24, K = 160, T = 7 };

static uint64_t random_bits(void)
{
    static uint64_t z = 1;
    z ^= z << 13;
    z ^= z >> 7;
    return z ^= z << 17;
}
static double random_unit(void) { return (double)(random_bits() >> 11) * 0x1p-53; }

/* A point of s, often an end. */
static double point_of(krn_span s)
{
    uint64_t r = random_bits() % 4;
    return r == 0 ? s.lo : r == 1 ? s.hi : s.lo + (s.hi - s.lo) * random_unit();
}

/* Sum of n products in a random order, some of them fused, in up to four parts that are added at the end; f32. */
static float sum_in_any_order(const float *a, const float *b, int32_t n)
{
    int32_t order[1024], parts = 1 + (int32_t)(random_bits() % 4);
    float part[4] = { 0 };
    assert_true(n <= 1024);
    for (int32_t i = 0; i < n; i++) {
        int32_t j = (int32_t)(random_bits() % (uint64_t)(i + 1));
        order[i] = order[j];
        order[j] = i;
    }
    for (int32_t i = 0; i < n; i++) {
        float *sum = &part[i % parts];
        *sum = random_bits() & 1 ? fmaf(a[order[i]], b[order[i]], *sum) : *sum + a[order[i]] * b[order[i]];
    }
    for (int32_t i = 1; i < parts; i++) part[0] += part[i];
    return part[0];
}

static void assert_inside(const char *what, double v, krn_span s)
{
    if (!(v >= s.lo && v <= s.hi)) fail_msg("%s: %.17g is not in [%.17g, %.17g]", what, v, s.lo, s.hi);
}
static void assert_rounds_inside(const char *what, bf16 v, krn_span s)
{
    if (!(krn_span_distance(s, krn_preimage_bf16(v)) <= 1))
        fail_msg("%s: %.9g is not rounded from [%.17g, %.17g]", what, (double)f32_from_bf16(v), s.lo, s.hi);
}
/* Two bf16 ulps to either side of the largest of n are outside. */
static void assert_sharp(const char *what, const krn_span *s, int32_t n)
{
    int32_t at = 0;
    for (int32_t i = 1; i < n; i++)
        if (krn_span_largest(s[i]) > krn_span_largest(s[at])) at = i;
    bf16 v = bf16_from_f32((float)krn_span_middle(s[at]));
    for (int ulps = -2; ulps <= 2; ulps += 4)
        if (!(krn_span_distance(s[at], krn_preimage_bf16((bf16)(v + ulps))) > 1)) fail_msg("%s: %d ulps pass", what, ulps);
}

/* ---- preimages ---- */

static void every_bf16_is_rounded_from_its_preimage_and_no_more(void **state)
{
    (void)state;
    for (uint32_t v = 0; v < 0x10000; v++) {
        krn_span s = krn_preimage_bf16((bf16)v);
        if ((v & 0x7fff) > 0x7f80) {
            assert_true(isnan(s.lo) && isnan(s.hi));
            continue;
        }
        const bf16 low = bf16_from_f32((float)s.lo), high = bf16_from_f32((float)s.hi);
        assert_true(fmt_ulp_bf16(low, (bf16)v) <= 1 && fmt_ulp_bf16(high, (bf16)v) <= 1); /* an end is a tie */
        assert_true(s.lo < s.hi);
        float in_lo = nextafterf((float)s.lo, INFINITY), in_hi = nextafterf((float)s.hi, -INFINITY);
        if (isfinite(s.lo)) assert_int_equal(fmt_ulp_bf16(bf16_from_f32(in_lo), (bf16)v), 0);
        if (isfinite(s.hi)) assert_int_equal(fmt_ulp_bf16(bf16_from_f32(in_hi), (bf16)v), 0);
        if (isfinite(s.lo)) assert_true(fmt_ulp_bf16(bf16_from_f32(nextafterf((float)s.lo, -INFINITY)), (bf16)v) == 1);
        if (isfinite(s.hi)) assert_true(fmt_ulp_bf16(bf16_from_f32(nextafterf((float)s.hi, INFINITY)), (bf16)v) == 1);
    }
}

static void every_e4m3_code_is_rounded_from_its_preimage_and_no_more(void **state)
{
    (void)state;
    for (int code = 0; code < 256; code++) {
        krn_span s = krn_preimage_e4m3((uint8_t)code);
        if ((code & 0x7f) == 0x7f) {
            assert_true(isnan(s.lo));
            continue;
        }
        const float v = FMT_E4M3_VALUE[code];
        float in_lo = nextafterf((float)s.lo, INFINITY), in_hi = nextafterf((float)s.hi, -INFINITY);
        assert_true(FMT_E4M3_VALUE[e4m3_from_f32(isfinite(s.lo) ? in_lo : -1e9f)] == v);
        assert_true(FMT_E4M3_VALUE[e4m3_from_f32(isfinite(s.hi) ? in_hi : 1e9f)] == v);
        if (isfinite(s.lo)) assert_true(FMT_E4M3_VALUE[e4m3_from_f32(nextafterf((float)s.lo, -INFINITY))] < v);
        if (isfinite(s.hi)) assert_true(FMT_E4M3_VALUE[e4m3_from_f32(nextafterf((float)s.hi, INFINITY))] > v);
    }
}

static void a_distance_is_one_at_the_end_of_the_interval(void **state)
{
    (void)state;
    krn_span s = { 1, 3 };
    assert_true(krn_span_distance(s, (krn_span){ 2, 9 }) == 0);
    assert_true(krn_span_distance(s, (krn_span){ 3, 9 }) == 1);
    assert_true(krn_span_distance(s, (krn_span){ -9, 0 }) == 2);
    assert_true(krn_span_distance(krn_span_point(1), (krn_span){ 1, 1 }) == 0);
    assert_true(isinf(krn_span_distance(krn_span_point(1), (krn_span){ 2, 2 })));
    assert_true(isnan(krn_span_distance((krn_span){ NAN, 1 }, (krn_span){ 0, 1 })));
    assert_true(isnan(krn_span_distance(s, krn_preimage_bf16(0x7fc0))));
}

/* ---- sums ---- */

typedef struct matrix {
    krn_weight w;
    uint8_t data[4 * N * K], scale[N * K / 32];
    float decoded[N * K];
    bf16 x[T * K];
} matrix;

static void matrix_make(matrix *m, krn_wformat format)
{
    static const int32_t ROW_BYTES[] = { K, K / 2, 2 * K, 4 * K };
    m->w = (krn_weight){ .format = format, .n = N, .k = K, .data = m->data, .row_bytes = ROW_BYTES[format],
                         .scale = m->scale, .scale_row_bytes = K / 32 };
    for (size_t i = 0; i < sizeof m->scale; i++) m->scale[i] = (uint8_t)(125 + random_bits() % 5);
    for (size_t i = 0; i < sizeof m->data; i++) m->data[i] = (uint8_t)(random_bits() % 0x7f | (random_bits() & 0x80));
    if (format == KRN_W_BF16) fill_bf16((bf16 *)(void *)m->data, N * K, 3, 0.1f);
    if (format == KRN_W_F32) fill_f32((float *)(void *)m->data, N * K, 4, 0.1f);
    krn_weight_decode_f32(&m->w, 0, N, m->decoded);
    fill_bf16(m->x, T * K, 5 + format, 2.0f);
}

static void sums_in_any_order_lie_inside(void **state)
{
    static matrix m;
    (void)state;
    for (int format = 0; format < 4; format++) {
        krn_span y[T][N];
        krn_linear_bound_job jobs[T];
        float x[T][K];
        matrix_make(&m, (krn_wformat)format);
        for (int t = 0; t < T; t++) {
            jobs[t] = (krn_linear_bound_job){ &m.w, m.x + t * K, NULL, y[t] };
            for (int k = 0; k < K; k++) x[t][k] = f32_from_bf16(m.x[t * K + k]);
        }
        for (int rule = KRN_RULE_PARITY; rule <= KRN_RULE_SHARP; rule++) {
            float sizes[T][N];
            krn_linear_bound(jobs, T, (krn_rule)rule);
            for (int t = 0; t < T; t++) jobs[t].size = sizes[t];
            krn_linear_size(jobs, T);
            for (int t = 0; t < T; t++) {
                for (int n = 0; n < N; n++) {
                    double exact = 0, size = 0, square = 0;
                    for (int k = 0; k < K; k++) {
                        const double product = (double)x[t][k] * (double)m.decoded[n * K + k];
                        exact += product;
                        size += fabs(product);
                        square += product * product;
                    }
                    const double reach = krn_sum_reach((krn_rule)rule, K, exact, size, square);
                    assert_true(fabs(krn_span_middle(y[t][n]) - exact) <= 1e-12 * size);
                    assert_true(fabs(krn_span_half(y[t][n]) / reach - 1) < 1e-6);
                    assert_true(fabs((double)sizes[t][n] - size) < (K / 16 + 10) * 0x1p-24 * size);
                    for (int i = 0; i < ORDERS; i++)
                        assert_inside("sum", (double)sum_in_any_order(x[t], m.decoded + n * K, K), y[t][n]);
                }
                assert_sharp("sum", y[t], N);
            }
        }
    }
}

static void only_what_is_needed_is_made_and_jobs_may_share_or_not(void **state)
{
    static matrix m[2];
    krn_span all[4][N], some[4][N];
    uint8_t need[4][N];
    krn_linear_bound_job jobs[4];
    (void)state;
    matrix_make(&m[0], KRN_W_FP8);
    matrix_make(&m[1], KRN_W_FP8);
    for (int i = 0; i < 4; i++) jobs[i] = (krn_linear_bound_job){ &m[i / 2].w, m[i % 2].x, NULL, all[i] };
    krn_linear_bound(jobs, 4, KRN_RULE_PARITY);
    for (int i = 0; i < 4; i++) {
        for (int n = 0; n < N; n++) {
            need[i][n] = random_bits() & 1;
            some[i][n] = krn_span_point(77);
        }
        jobs[i].need = need[i];
        jobs[i].y = some[i];
    }
    krn_linear_bound(jobs, 4, KRN_RULE_PARITY);
    for (int i = 0; i < 4; i++)
        for (int n = 0; n < N; n++) {
            krn_span want = need[i][n] ? all[i][n] : krn_span_point(77);
            assert_memory_equal(&some[i][n], &want, sizeof want);
        }
    krn_linear_bound(NULL, 0, KRN_RULE_PARITY);
}

/* Slices that begin in the middle of an FP8 scale's rows, and columns past one decoded piece. */
static void slices_and_long_rows_are_summed_as_a_whole(void **state)
{
    enum { LONG = 2080 };
    static bf16 w[2 * LONG], x[LONG];
    static matrix m;
    krn_span y[N], part[8];
    (void)state;
    fill_bf16(w, 2 * LONG, 8, 1.0f);
    fill_bf16(x, LONG, 9, 1.0f);
    krn_weight wide = { .format = KRN_W_BF16, .n = 2, .k = LONG, .data = w, .row_bytes = 2 * LONG };
    krn_linear_bound_job job = { &wide, x, NULL, y };
    krn_linear_bound(&job, 1, KRN_RULE_PARITY);
    for (int n = 0; n < 2; n++) {
        double exact = 0;
        for (int k = 0; k < LONG; k++) exact += (double)f32_from_bf16(x[k]) * (double)f32_from_bf16(w[n * LONG + k]);
        assert_true(fabs(krn_span_middle(y[n]) - exact) < 1e-9);
    }
    matrix_make(&m, KRN_W_FP8);
    krn_weight slice = krn_weight_slice(&m.w, 9, 8, 32, 96);
    job = (krn_linear_bound_job){ &slice, m.x, NULL, part };
    krn_linear_bound(&job, 1, KRN_RULE_PARITY);
    for (int n = 0; n < 8; n++) {
        double exact = 0;
        for (int k = 0; k < 96; k++) exact += (double)f32_from_bf16(m.x[k]) * (double)m.decoded[(9 + n) * K + 32 + k];
        assert_true(fabs(krn_span_middle(part[n]) - exact) < 1e-9);
    }
}

static void every_instruction_set_bounds_alike(void **state)
{
    static matrix m;
    krn_span y[KRN_ISA_COUNT][T * N];
    (void)state;
    matrix_make(&m, KRN_W_FP4);
    for (int rule = KRN_RULE_PARITY; rule <= KRN_RULE_SHARP; rule++)
        for (int isa = 0; isa < KRN_ISA_COUNT; isa++) {
            krn_linear_bound_job jobs[T];
            for (int t = 0; t < T; t++) jobs[t] = (krn_linear_bound_job){ &m.w, m.x + t * K, NULL, y[isa] + t * N };
            krn_isa_set((krn_isa)isa);
            krn_linear_bound(jobs, T, (krn_rule)rule);
            for (int n = 0; n < T * N; n++) {
                const krn_span one = y[isa][n], want = y[0][n];
                assert_true(fabs(one.lo - want.lo) <= 1e-13 * (1 + fabs(want.lo)));
                assert_true(fabs(one.hi - want.hi) <= 1e-13 * (1 + fabs(want.hi)));
            }
        }
    krn_isa_set(krn_isa_best());
}

static void a_confidence_in_any_order_lies_inside(void **state)
{
    bf16 hidden[96], markov[32], w[128];
    float x[128], wf[128];
    (void)state;
    fill_bf16(hidden, 96, 21, 1.0f);
    fill_bf16(markov, 32, 22, 1.0f);
    fill_bf16(w, 128, 23, 1.0f);
    for (int i = 0; i < 128; i++) {
        x[i] = f32_from_bf16(i < 96 ? hidden[i] : markov[i - 96]);
        wf[i] = f32_from_bf16(w[i]);
    }
    for (int rule = KRN_RULE_PARITY; rule <= KRN_RULE_SHARP; rule++) {
        krn_span s = krn_confidence_bound(hidden, 96, markov, 32, w, (krn_rule)rule);
        for (int i = 0; i < 500; i++) assert_inside("confidence", (double)sum_in_any_order(x, wf, 128), s);
        assert_inside("confidence", (double)krn_confidence_ref(hidden, 96, markov, 32, w, KRN_ACC_BLOCKED), s);
        assert_sharp("confidence", &s, 1);
    }
}

static void biased_logits_lie_inside(void **state)
{
    (void)state;
    for (int i = 0; i < 10000; i++) {
        krn_span logit = krn_span_around(random_unit() - 0.5, 1e-6 * random_unit());
        krn_span term = krn_span_around(random_unit() - 0.5, 1e-6 * random_unit());
        float a = (float)krn_span_middle(logit), b = (float)krn_span_middle(term);
        logit = (krn_span){ fmin(logit.lo, (double)a), fmax(logit.hi, (double)a) };
        term = (krn_span){ fmin(term.lo, (double)b), fmax(term.hi, (double)b) };
        assert_inside("biased", (double)(a + b), krn_markov_bound(logit, term, false));
        float rounded = bf16_round(a + bf16_round(b));
        krn_span s = krn_markov_bound(logit, term, true);
        assert_inside("biased, rounded", (double)rounded, s);
        assert_true(s.lo == (double)bf16_round((float)s.lo) && s.hi == (double)bf16_round((float)s.hi));
    }
}

/* Slots and shared of up to four ranks: each adds its own in any order, then the ranks meet. */
static void a_fused_combine_of_ranks_lies_inside(void **state)
{
    enum { PICKS = 6, DIM = 32, RANKS = 4 };
    (void)state;
    for (int ranks = 1; ranks <= RANKS; ranks++) {
        float part[RANKS][PICKS + 1][DIM], slot[PICKS][DIM], shared[DIM], one[PICKS + 1], ones[PICKS + 1];
        krn_span s[DIM];
        for (int r = 0; r < ranks; r++) fill_f32(part[r][0], (PICKS + 1) * DIM, 40 + (uint64_t)r, 1.0f);
        for (int k = 0; k <= PICKS; k++)
            for (int d = 0; d < DIM; d++) {
                float sum = part[0][k][d];
                for (int r = 1; r < ranks; r++) sum += part[r][k][d];
                *(k < PICKS ? &slot[k][d] : &shared[d]) = sum;
            }
        for (int k = 0; k <= PICKS; k++) ones[k] = 1;
        for (int d = 0; d < DIM; d++) {
            s[d] = krn_combine_fused_bound(slot[0], shared, PICKS, DIM, d);
            for (int i = 0; i < ORDERS; i++) {
                float all = 0;
                for (int r = 0; r < ranks; r++) {
                    for (int k = 0; k <= PICKS; k++) one[k] = part[r][k][d];
                    all += sum_in_any_order(one, ones, PICKS + 1);
                }
                assert_inside("combine", (double)all, s[d]);
            }
        }
        assert_sharp("combine", s, DIM);
    }
}

/* ---- norms and functions ---- */

/* Inputs that are points (spread 0) or spans around them. */
static void spans_make(const bf16 *x, krn_span *s, int32_t n, double spread)
{
    for (int32_t i = 0; i < n; i++) {
        double v = (double)f32_from_bf16(x[i]);
        s[i] = krn_span_bf16(krn_span_around(v, fabs(v) * spread * random_unit()));
    }
}

static void norms_of_any_point_and_order_lie_inside(void **state)
{
    enum { DIM = 200 };
    bf16 x[DIM], w[DIM], y[DIM];
    krn_span s[DIM], out[DIM];
    (void)state;
    fill_bf16(x, DIM, 31, 3.0f);
    fill_bf16(w, DIM, 32, 1.0f);
    x[5] = 0;
    for (int wide = 0; wide <= 1; wide++) {
        spans_make(x, s, DIM, wide ? 0.01 : 0);
        if (wide) s[5] = (krn_span){ -1e-3, 1e-3 };
        krn_rmsnorm_bound(s, w, DIM, 1e-20f, KRN_RULE_PARITY, out);
        for (int i = 0; i < 200; i++) {
            bf16 point[DIM];
            float v[DIM];
            for (int d = 0; d < DIM; d++) v[d] = f32_from_bf16(point[d] = bf16_from_f32((float)point_of(s[d])));
            krn_rmsnorm_ref(point, DIM, w, y, DIM, 1, DIM, 1e-20f);
            for (int d = 0; d < DIM; d++) assert_rounds_inside("norm", y[d], out[d]);
            float r = 1.0f / sqrtf(sum_in_any_order(v, v, DIM) / DIM + 1e-20f); /* all in f32 */
            for (int d = 0; d < DIM; d++) assert_inside("f32 norm", (double)(f32_from_bf16(w[d]) * (v[d] * r)), out[d]);
        }
        if (!wide) assert_sharp("norm", out, DIM);
    }
}

static void rotations_lie_inside_both_ways(void **state)
{
    (void)state;
    for (int i = 0; i < 20000; i++) {
        krn_span in[2], out[2];
        bf16 x[2] = { bf16_from_f32((float)(4 * random_unit() - 2)), bf16_from_f32((float)(4 * random_unit() - 2)) }, y[2];
        const int32_t pos = (int32_t)(random_bits() % 200000);
        const float freq = (float)random_unit();
        const bool inverse = i & 1;
        spans_make(x, in, 2, i & 2 ? 0.01 : 0);
        krn_rope_bound(in[0], in[1], pos, freq, inverse, out);
        for (int k = 0; k < 2; k++) x[k] = bf16_from_f32((float)point_of(in[k]));
        for (int acc = KRN_ACC_BLOCKED; acc <= KRN_ACC_F64; acc++) {
            krn_rope_ref(x, y, 1, 1, 2, 2, &pos, &freq, inverse, (krn_acc)acc);
            for (int k = 0; k < 2; k++) assert_rounds_inside("rope", y[k], out[k]);
        }
        if (!(i & 2)) assert_sharp("rope", out, 2);
    }
}

static void swiglu_of_any_point_lies_inside(void **state)
{
    (void)state;
    for (int i = 0; i < 50000; i++) {
        const bool wide = i & 1;
        bf16 g = bf16_from_f32((float)(40 * random_unit() - 25)), u = bf16_from_f32((float)(30 * random_unit() - 15)), h;
        if (i % 8 == 0) g = bf16_from_f32((float)(-1.3 + 0.05 * random_unit())); /* where silu turns */
        const float weight = i & 2 ? 1.0f : (float)random_unit();
        krn_span gs, us;
        spans_make(&g, &gs, 1, wide ? 0.02 : 0);
        spans_make(&u, &us, 1, wide ? 0.02 : 0);
        krn_span out = krn_swiglu_bound(gs, us, (double)weight, 10.0f);
        g = bf16_from_f32((float)point_of(gs));
        u = bf16_from_f32((float)point_of(us));
        krn_swiglu_ref(&g, &u, &weight, 10.0f, &h, 1, 1);
        assert_rounds_inside("swiglu", h, out);
        if (!wide) assert_sharp("swiglu", &out, 1);
    }
}

static void scores_and_weights_of_the_gate_lie_inside(void **state)
{
    enum { EXPERTS = 40, PICKS = 6 };
    (void)state;
    for (int i = 0; i < 20000; i++) {
        float at = (float)(60 * random_unit() - 30), score;
        krn_span z = krn_span_around((double)at, i & 1 ? 1e-3 * random_unit() : 0);
        if (i & 1) at = (float)(z.lo + (z.hi - z.lo) * (0.01 + 0.98 * random_unit())); /* inside when rounded */
        krn_span out = krn_gate_scores_bound(z);
        krn_gate_scores_ref(&at, &score, 1, 1);
        assert_inside("score", (double)score, out);
        if (!(i & 1)) assert_sharp("score", &out, 1);
    }
    float scores[EXPERTS], bias[EXPERTS] = { 0 }, w[PICKS];
    int32_t ids[PICKS];
    krn_span out[PICKS];
    for (uint64_t seed = 0; seed < 200; seed++) {
        for (int i = 0; i < EXPERTS; i++) scores[i] = fabsf(input_f32(seed, i)) + 0.01f;
        for (int acc = KRN_ACC_BLOCKED; acc <= KRN_ACC_F64; acc++) {
            krn_gate_topk_ref(scores, bias, 1, EXPERTS, PICKS, 2.5f, ids, w, (krn_acc)acc);
            krn_gate_weights_bound(scores, ids, PICKS, 2.5f, out);
            for (int k = 0; k < PICKS; k++) assert_inside("weight", (double)w[k], out[k]);
            assert_sharp("weight", out, PICKS);
        }
    }
}

/* ---- hyper-connections, attention ---- */

static void mixes_from_sums_in_any_order_lie_inside(void **state)
{
    enum { HC = 4, DIM = 48, MIX = (2 + HC) * HC };
    static bf16 x[HC * DIM];
    static float fn[MIX * HC * DIM], xf[HC * DIM];
    float base[MIX], scale[3] = { 0.7f, 1.1f, 0.9f };
    krn_span dots[MIX], pre[HC], post[HC], comb[HC * HC];
    (void)state;
    for (uint64_t seed = 0; seed < 30; seed++) {
        const krn_rule rule = seed < 20 ? KRN_RULE_PARITY : KRN_RULE_SHARP;
        fill_bf16(x, HC * DIM, seed, 1.0f);
        fill_f32(fn, MIX * HC * DIM, seed + 100, 0.3f);
        fill_f32(base, MIX, seed + 200, 1.0f);
        for (int i = 0; i < HC * DIM; i++) xf[i] = f32_from_bf16(x[i]);
        krn_weight w = { .format = KRN_W_F32, .n = MIX, .k = HC * DIM, .data = fn, .row_bytes = 4 * HC * DIM };
        krn_linear_bound_job job = { &w, x, NULL, dots };
        krn_linear_bound(&job, 1, rule);
        krn_mhc_mixes_bound(x, dots, base, scale, HC, DIM, 1e-20f, 1e-6f, 20, rule, pre, post, comb);
        for (int i = 0; i < ORDERS; i++) {
            float d[MIX], p[HC], q[HC], c[HC * HC];
            for (int k = 0; k < MIX; k++) d[k] = sum_in_any_order(xf, fn + k * HC * DIM, HC * DIM);
            krn_mhc_mixes_ref(x, d, base, scale, 1, HC, DIM, 1e-20f, 1e-6f, 20, p, q, c,
                              i & 1 ? KRN_ACC_F64 : KRN_ACC_BLOCKED);
            for (int k = 0; k < HC; k++) assert_inside("pre", (double)p[k], pre[k]);
            for (int k = 0; k < HC; k++) assert_inside("post", (double)q[k], post[k]);
            for (int k = 0; k < HC * HC; k++) assert_inside("comb", (double)c[k], comb[k]);
        }
        assert_sharp("pre", pre, HC);
        assert_sharp("post", post, HC);
        assert_sharp("comb", comb, HC * HC);
    }
}

static void collapse_and_expand_in_any_order_lie_inside(void **state)
{
    enum { HC = 4, DIM = 64 };
    bf16 x[HC * DIM], y[DIM], one[DIM], many[HC * DIM];
    float pre[HC], post[HC], comb[HC * HC], term[HC + 1], weight[HC + 1];
    krn_span narrow[DIM], wide[HC * DIM];
    (void)state;
    fill_bf16(x, HC * DIM, 51, 2.0f);
    fill_bf16(y, DIM, 52, 2.0f);
    fill_f32(pre, HC, 53, 1.0f);
    fill_f32(post, HC, 54, 1.0f);
    fill_f32(comb, HC * HC, 55, 1.0f);
    for (int d = 0; d < DIM; d++) narrow[d] = krn_mhc_collapse_bound(x, pre, HC, DIM, d);
    for (int i = 0; i < HC * DIM; i++) wide[i] = krn_mhc_expand_bound(y, x, post, comb, HC, DIM, i / DIM, i % DIM);
    for (int acc = KRN_ACC_BLOCKED; acc <= KRN_ACC_F64; acc++) {
        krn_mhc_collapse_ref(x, pre, one, 1, HC, DIM, (krn_acc)acc);
        krn_mhc_expand_ref(y, x, post, comb, many, 1, HC, DIM, (krn_acc)acc);
        for (int d = 0; d < DIM; d++) assert_rounds_inside("collapse", one[d], narrow[d]);
        for (int i = 0; i < HC * DIM; i++) assert_rounds_inside("expand", many[i], wide[i]);
    }
    for (int i = 0; i < HC * DIM; i++)
        for (int order = 0; order < ORDERS; order++) {
            for (int j = 0; j < HC; j++) {
                term[j] = f32_from_bf16(x[j * DIM + i % DIM]);
                weight[j] = pre[j];
            }
            if (i < DIM) assert_inside("collapse", (double)sum_in_any_order(term, weight, HC), narrow[i]);
            for (int j = 0; j < HC; j++) weight[j] = comb[j * HC + i / DIM];
            term[HC] = f32_from_bf16(y[i % DIM]);
            weight[HC] = post[i / DIM];
            assert_inside("expand", (double)sum_in_any_order(term, weight, HC + 1), wide[i]);
        }
    assert_sharp("collapse", narrow, DIM);
    assert_sharp("expand", wide, HC * DIM);
}

static void attention_lies_inside_on_both_sides_of_a_block_of_keys(void **state)
{
    enum { HD = 64, BLOCK = 5, RING = 140 };
    static bf16 q[BLOCK * HD], ring[RING * HD], kv[BLOCK * HD], o[BLOCK * HD];
    static const int32_t N_RING[] = { 0, 1, 59, 60, 128, 140 };
    static const float SINK[] = { -INFINITY, 0.3f, 60.0f };
    double room[KRN_ATTENTION_BOUND_ROOM(RING + BLOCK, HD)];
    krn_span s[HD];
    (void)state;
    fill_bf16(q, BLOCK * HD, 61, 2.0f);
    fill_bf16(ring, RING * HD, 62, 2.0f);
    fill_bf16(kv, BLOCK * HD, 63, 2.0f);
    const float scale = (float)pow(HD, -0.5);
    for (size_t i = 0; i < sizeof N_RING / sizeof *N_RING * 3; i++) {
        const int32_t n = N_RING[i / 3];
        const float sink = SINK[i % 3];
        for (int k = 0; k < 4; k++) {
            const krn_acc acc = k & 1 ? KRN_ACC_F64 : KRN_ACC_BLOCKED;
            const krn_rule rule = k & 2 ? KRN_RULE_SHARP : KRN_RULE_PARITY;
            krn_attention_ref(q, ring, n, kv, BLOCK, &sink, scale, 1, HD, o, acc);
            for (int t = 0; t < BLOCK; t++) {
                krn_attention_bound(q + t * HD, ring, n, kv, BLOCK, sink, scale, HD, rule, room, s);
                for (int d = 0; d < HD; d++) assert_rounds_inside("attention", o[t * HD + d], s[d]);
                if (sink < 10) assert_sharp("attention", s, HD);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_bf16_is_rounded_from_its_preimage_and_no_more),
        cmocka_unit_test(every_e4m3_code_is_rounded_from_its_preimage_and_no_more),
        cmocka_unit_test(a_distance_is_one_at_the_end_of_the_interval),
        cmocka_unit_test(sums_in_any_order_lie_inside),
        cmocka_unit_test(only_what_is_needed_is_made_and_jobs_may_share_or_not),
        cmocka_unit_test(slices_and_long_rows_are_summed_as_a_whole),
        cmocka_unit_test(every_instruction_set_bounds_alike),
        cmocka_unit_test(a_confidence_in_any_order_lies_inside),
        cmocka_unit_test(biased_logits_lie_inside),
        cmocka_unit_test(a_fused_combine_of_ranks_lies_inside),
        cmocka_unit_test(norms_of_any_point_and_order_lie_inside),
        cmocka_unit_test(rotations_lie_inside_both_ways),
        cmocka_unit_test(swiglu_of_any_point_lies_inside),
        cmocka_unit_test(scores_and_weights_of_the_gate_lie_inside),
        cmocka_unit_test(mixes_from_sums_in_any_order_lie_inside),
        cmocka_unit_test(collapse_and_expand_in_any_order_lie_inside),
        cmocka_unit_test(attention_lies_inside_on_both_sides_of_a_block_of_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
