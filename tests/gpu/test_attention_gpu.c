/* krn_attention inside the contract's bound around the F64 twin's value before its last rounding; and what must hold
 * exactly: which keys are read, NaN, sinks, batch invariance. Ring memory that no entry owns is NaN: a stray read shows. */
#include "kernels/attention.h"

#include "gpu.h"

#include <stdlib.h>

static const double U = 0x1p-24;
enum { N_SLOTS = 6, MAX_BATCH = 4, MAX_KEYS = 640 };

typedef struct setup {
    int32_t batch, n_block, window, heads, head_dim;
    int64_t ring_stride;
    bf16 *q, *rings, *kv, *o; /* q, o [batch * n_block, heads, head_dim]; rings [N_SLOTS, ring_stride] */
    int32_t slot[MAX_BATCH], last[MAX_BATCH];
    float *sink, scale;
} setup;

static int64_t n_out(const setup *s) { return (int64_t)s->batch * s->n_block * s->heads * s->head_dim; }
static int32_t n_ring(const setup *s, int b) { return s->last[b] + 1 < s->window ? s->last[b] + 1 : s->window; }
static bf16 *ring(const setup *s, int b) { return s->rings + s->slot[b] * s->ring_stride; }

static bf16 *take(int64_t n)
{
    bf16 *p = malloc((size_t)n * sizeof *p);
    assert_non_null(p);
    return p;
}

/* gap: elements between one slot's ring and the next. */
static setup setup_open(int32_t batch, int32_t n_block, int32_t window, int32_t heads, int32_t head_dim,
                        const int32_t *last, int64_t gap, uint64_t seed)
{
    static const int32_t SLOTS[MAX_BATCH] = { 4, 0, 5, 2 };
    setup s = { .batch = batch, .n_block = n_block, .window = window, .heads = heads, .head_dim = head_dim };
    s.ring_stride = (int64_t)window * head_dim + gap;
    s.q = take(n_out(&s));
    s.o = take(n_out(&s));
    s.kv = take((int64_t)batch * n_block * head_dim);
    s.rings = take(N_SLOTS * s.ring_stride + 1);
    s.sink = malloc((size_t)heads * sizeof(float));
    assert_non_null(s.sink);
    s.scale = (float)pow(head_dim, -0.5);
    gpu_fill_bf16(s.q, n_out(&s), seed, 2.0f);
    gpu_fill_bf16(s.kv, (int64_t)batch * n_block * head_dim, seed + 1, 1.0f);
    gpu_fill_f32(s.sink, heads, seed + 2, 2.0f);
    for (int64_t i = 0; i < N_SLOTS * s.ring_stride; i++) s.rings[i] = 0x7fc1;
    for (int b = 0; b < batch; b++) {
        s.slot[b] = SLOTS[b];
        s.last[b] = last[b];
        gpu_fill_bf16(ring(&s, b), (int64_t)n_ring(&s, b) * head_dim, seed + 10 + (uint64_t)b, 1.0f);
    }
    return s;
}

static void setup_close(setup *s)
{
    free(s->q);
    free(s->o);
    free(s->kv);
    free(s->rings);
    free(s->sink);
}

/* in_place: o is q's memory. */
static void attend_into(const setup *s, bf16 *o, bool in_place)
{
    err e = { 0 };
    size_t bytes = (size_t)n_out(s) * sizeof(bf16), index_bytes = (size_t)s->batch * sizeof(int32_t);
    bf16 *q = gpu_put(s->q, bytes), *out = in_place ? q : gpu_out(bytes);
    const bf16 *rings = gpu_put(s->rings, (size_t)(N_SLOTS * s->ring_stride) * sizeof(bf16));
    const bf16 *kv = gpu_put(s->kv, (size_t)s->batch * (size_t)s->n_block * (size_t)s->head_dim * sizeof(bf16));
    const float *sink = gpu_put(s->sink, (size_t)s->heads * sizeof(float));
    const int32_t *slot = gpu_put(s->slot, index_bytes), *last = gpu_put(s->last, index_bytes);
    gpu_ok(krn_attention(q, rings, s->ring_stride, slot, last, s->window, kv, s->batch, s->n_block, sink, s->scale,
                         s->heads, s->head_dim, out, gpu_stream(), &e),
           &e);
    gpu_get(out, o, bytes);
    gpu_free_all();
}

static void attend(setup *s) { attend_into(s, s->o, false); }

static void attend_twin(const setup *s, bf16 *o)
{
    int64_t entry = n_out(s) / s->batch;
    for (int b = 0; b < s->batch; b++)
        krn_attention_ref(s->q + b * entry, ring(s, b), n_ring(s, b), s->kv + (int64_t)b * s->n_block * s->head_dim,
                          s->n_block, s->sink, s->scale, s->heads, s->head_dim, o + b * entry, KRN_ACC_F64);
}

/* ---- the bound ---- */

/* One head of one row, as the contract has it, up to R6: weights of the keys after all corrections. */
typedef struct head_ref {
    int32_t n;
    const bf16 *key[MAX_KEYS];
    double pb[MAX_KEYS], p[MAX_KEYS], step[MAX_KEYS]; /* step: of a pb that may round either way, else 0 */
    double l, slack;                                  /* slack: the bound's factor of sum p|v| / l */
} head_ref;

/* Distance of the bf16 neighbours around p, when p is within e (relative) of the tie between them. */
static double tie_step(float p, double e)
{
    uint32_t low = f32_bits(p) & 0xffff0000;
    double tie = (double)f32_from_bits(low | 0x8000);
    if (fabs((double)p - tie) > e * (double)p) return 0;
    return (double)f32_from_bits(low + 0x10000) - (double)f32_from_bits(low);
}

static void head_refer(head_ref *h, const setup *s, int b, const bf16 *q, float sink)
{
    static float score[MAX_KEYS], p[MAX_KEYS];
    double ds = 0, l = 0, correction[MAX_KEYS];
    float m = -1e30f;
    int blocks = 0;
    h->n = n_ring(s, b) + s->n_block;
    assert_true(h->n <= MAX_KEYS);
    for (int j = 0; j < h->n; j++) {
        h->key[j] = j < n_ring(s, b) ? ring(s, b) + (int64_t)j * s->head_dim
                                     : s->kv + ((int64_t)b * s->n_block + j - n_ring(s, b)) * s->head_dim;
        double dot = 0, size = 0;
        for (int d = 0; d < s->head_dim; d++) {
            double term = (double)f32_from_bf16(q[d]) * (double)f32_from_bf16(h->key[j][d]);
            dot += term;
            size += fabs(term);
        }
        score[j] = (float)dot * s->scale;                                                            /* R1 */
        ds = fmax(ds, 6 * U * sqrt(s->head_dim) * size * (double)s->scale + U * fabs((double)score[j]));
    }
    for (int first = 0; first < h->n; first += KRN_ATTENTION_KEYS, blocks++) {
        int end = first + KRN_ATTENTION_KEYS < h->n ? first + KRN_ATTENTION_KEYS : h->n;
        float m2 = m;
        double sum = 0;
        for (int j = first; j < end; j++) m2 = fmaxf(m2, score[j]);
        double c = (double)(float)exp((double)(m - m2));                                             /* R2 */
        for (int j = 0; j < first; j++) correction[j] *= c;
        for (int j = first; j < end; j++) {
            p[j] = (float)exp((double)(score[j] - m2));
            correction[j] = 1;
            sum += (double)p[j];
        }
        l = l * c + sum;                                                                             /* R3 */
        m = m2;
    }
    double e = 2 * ds + 2 * U;
    for (int j = 0; j < h->n; j++) {
        h->pb[j] = (double)bf16_round(p[j]) * correction[j];                                         /* R4 */
        h->p[j] = (double)p[j] * correction[j];
        h->step[j] = tie_step(p[j], e) * correction[j];
    }
    h->l = l + exp((double)(sink - m));                                                              /* R5 */
    h->slack = 2 * e + (h->n + 2 * blocks + 3) * U;
}

/* Every element of o against the bound. */
static void judge(gpu_tally *t, const setup *s, const bf16 *o)
{
    static head_ref h;
    int64_t i = 0;
    for (int64_t v = 0; v < (int64_t)s->batch * s->n_block * s->heads; v++) {
        int b = (int)(v / s->heads / s->n_block);
        head_refer(&h, s, b, s->q + v * s->head_dim, s->sink[v % s->heads]);
        for (int d = 0; d < s->head_dim; d++, i++) {
            double sum = 0, size = 0, steps = 0;
            for (int j = 0; j < h.n; j++) {
                double value = (double)f32_from_bf16(h.key[j][d]);
                sum += h.pb[j] * value;
                size += h.p[j] * fabs(value);
                steps += h.step[j] * fabs(value);
            }
            gpu_judge_bf16(t, i, sum / h.l, (h.slack * size + steps) / h.l, o[i]);
        }
    }
}

static void check(setup *s, const char *label, double min_equal)
{
    gpu_tally t = { .label = label };
    attend(s);
    judge(&t, s, s->o);
    gpu_tally_end(&t, min_equal);
}

/* ---- inside the bound ---- */

static void every_position_of_the_model_lies_within_the_bound(void **state)
{
    (void)state;
    static const int32_t LAST[] = { -1, 0, 58, 59, 126, 127, 128, 129, 100000 };
    for (size_t i = 0; i < sizeof LAST / sizeof LAST[0]; i++) {
        char label[64];
        setup s = setup_open(1, 5, 128, 32, 512, &LAST[i], 0, 100 * i);
        snprintf(label, sizeof label, "attention, last %d", LAST[i]);
        check(&s, label, 0.9);
        setup_close(&s);
    }
}

static void entries_of_a_batch_read_their_own_slots(void **state)
{
    (void)state;
    static const int32_t LAST[MAX_BATCH] = { 126, 0, 5000, 63 };
    for (int32_t batch = 2; batch <= MAX_BATCH; batch++) {
        setup s = setup_open(batch, 5, 128, 8, 512, LAST, 64, 1000);
        check(&s, "attention, batch", 0.9);
        setup_close(&s);
    }
}

/* batch, n_block, window, heads, head_dim, gap. The last eight need the plain kernel: by head_dim, or by rings whose rows
 * are not at multiples of 16 bytes. */
static const int32_t SHAPES[][6] = {
    { 2, 5, 16, 4, 32, 0 },    { 1, 3, 16, 4, 48, 0 },    { 1, 8, 16, 2, 64, 0 },   { 2, 9, 128, 2, 128, 0 },
    { 1, 17, 0, 2, 16, 0 },    { 1, 1, 128, 3, 512, 0 },  { 1, 5, 187, 2, 512, 0 }, { 1, 5, 188, 2, 64, 0 },
    { 2, 5, 500, 2, 512, 8 },  { 1, 4, 60, 1, 496, 0 },   { 1, 5, 64, 2, 33, 0 },   { 2, 2, 70, 2, 1, 0 },
    { 1, 3, 100, 2, 576, 0 },  { 1, 2, 20, 1, 1040, 0 },  { 2, 5, 128, 2, 64, 1 },  { 1, 5, 128, 2, 512, 4 },
    { 1, 1, 0, 1, 7, 0 },      { 1, 1, 65, 1, 4096, 0 },
};

static void other_shapes_lie_within_the_bound(void **state)
{
    (void)state;
    static const int32_t LAST[MAX_BATCH] = { 1000, 9 };
    for (size_t i = 0; i < sizeof SHAPES / sizeof SHAPES[0]; i++) {
        const int32_t *d = SHAPES[i];
        char label[64];
        setup s = setup_open(d[0], d[1], d[2], d[3], d[4], LAST, d[5], 2000 + 100 * i);
        snprintf(label, sizeof label, "attention, %d x %d, window %d, %d x %d", d[0], d[1], d[2], d[3], d[4]);
        check(&s, label, n_out(&s) < 1000 ? 0 : 0.85); /* a share of a few elements says nothing */
        setup_close(&s);
    }
}

/* Scores rise from block to block: every correction is far below 1, and early blocks were rounded at another maximum. */
static void rising_scores_lie_within_the_bound(void **state)
{
    (void)state;
    const int32_t last = 127;
    setup s = setup_open(1, 5, 128, 8, 512, &last, 0, 5000);
    for (int64_t i = 0; i < n_out(&s); i++) s.q[i] &= 0x7fff;
    for (int j = 0; j < 128; j++)
        for (int d = 0; d < 512; d++) {
            bf16 *v = ring(&s, 0) + j * 512 + d;
            *v = bf16_from_f32(f32_from_bf16(*v) + 0.002f * (float)j);
        }
    check(&s, "attention, rising scores", 0.9);
    setup_close(&s);
}

static void the_twin_passes_and_faults_do_not(void **state)
{
    (void)state;
    const int32_t last = 100;
    gpu_tally twin = { .label = "the twin" }, fewer = { .label = "a key less" }, sinkless = { .label = "no sink" };
    setup s = setup_open(1, 5, 128, 4, 512, &last, 0, 6000), fault;
    for (int h = 0; h < s.heads; h++) s.sink[h] = 4; /* as much as some tens of keys */
    attend_twin(&s, s.o);
    judge(&twin, &s, s.o);
    gpu_tally_end(&twin, 0.999);

    fault = s;
    fault.last[0]--;
    attend_into(&fault, s.o, false);
    judge(&fewer, &s, s.o);
    assert_true(fewer.illegal > fewer.n / 10);

    fault = s;
    fault.sink = calloc((size_t)s.heads, sizeof(float));
    assert_non_null(fault.sink);
    for (int i = 0; i < s.heads; i++) fault.sink[i] = -INFINITY;
    attend_into(&fault, s.o, false);
    judge(&sinkless, &s, s.o);
    assert_true(sinkless.illegal > sinkless.n / 10);
    free(fault.sink);
    setup_close(&s);
}

/* ---- exactly ---- head_dim 64: the tensor-core kernel, 40: the plain one */

static const int32_t BOTH[] = { 64, 40 };

static void values_of_one_without_sink_give_exactly_one(void **state)
{
    (void)state;
    static const int32_t LAST[] = { -1, 0, 58, 59, 63, 126, 127, 300 };
    for (size_t i = 0; i < 2 * sizeof LAST / sizeof LAST[0]; i++) {
        setup s = setup_open(1, 5, 128, 3, BOTH[i % 2], &LAST[i / 2], 0, 7000);
        for (int64_t k = 0; k < 5 * s.head_dim; k++) s.kv[k] = 0x3f80;
        for (int64_t k = 0; k < (int64_t)n_ring(&s, 0) * s.head_dim; k++) ring(&s, 0)[k] = 0x3f80;
        for (int h = 0; h < s.heads; h++) s.sink[h] = -INFINITY;
        attend(&s);
        for (int64_t k = 0; k < n_out(&s); k++) assert_int_equal(s.o[k], 0x3f80);
        setup_close(&s);
    }
}

static void a_sink_far_above_the_scores_leaves_nothing(void **state)
{
    (void)state;
    const int32_t last = 70;
    for (int i = 0; i < 2; i++) {
        setup s = setup_open(1, 5, 128, 2, BOTH[i], &last, 0, 7500);
        s.sink[0] = 1e6f;
        attend(&s);
        for (int row = 0; row < s.n_block; row++)
            for (int d = 0; d < s.head_dim; d++) {
                assert_int_equal(s.o[(int64_t)row * 2 * s.head_dim + d] & 0x7fff, 0);
                assert_true(isfinite(f32_from_bf16(s.o[((int64_t)row * 2 + 1) * s.head_dim + d])));
            }
        setup_close(&s);
    }
}

/* Elements of o that are NaN must be those of the (row, head) pairs that wanted names. */
static void assert_nan_where(const setup *s, bool (*wanted)(int64_t row, int32_t head))
{
    for (int64_t i = 0; i < n_out(s); i++) {
        int64_t v = i / s->head_dim;
        bool is_nan = isnan(f32_from_bf16(s->o[i]));
        if (is_nan != wanted(v / s->heads, (int32_t)(v % s->heads)))
            fail_msg("element %lld of row %lld head %lld: %04x", (long long)(i % s->head_dim), (long long)(v / s->heads),
                     (long long)(v % s->heads), s->o[i]);
    }
}
static bool in_row_3_head_1(int64_t row, int32_t head) { return row == 3 && head == 1; }
static bool in_entry_1(int64_t row, int32_t head) { return row >= 5 && row < 10 && head >= 0; }

static void nan_reaches_the_heads_that_meet_it_and_no_others(void **state)
{
    (void)state;
    static const int32_t LAST[MAX_BATCH] = { 20, 90, 127 };
    for (int i = 0; i < 2; i++) {
        setup s = setup_open(3, 5, 128, 2, BOTH[i], LAST, 0, 8000);
        bf16 *q = s.q + (3 * s.heads + 1) * s.head_dim + 7, *key = ring(&s, 1) + 66 * s.head_dim + s.head_dim - 1;
        bf16 q_was = *q, key_was = *key;
        *q = 0xffc0;
        attend(&s);
        assert_nan_where(&s, in_row_3_head_1);
        *q = q_was;
        *key = 0x7fc0;
        attend(&s);
        assert_nan_where(&s, in_entry_1);
        *key = key_was;
        s.kv[(5 + 4) * s.head_dim] = 0x7fc0; /* the last row of entry 1's block */
        attend(&s);
        assert_nan_where(&s, in_entry_1);
        setup_close(&s);
    }
}

/* The rings' NaN shows a key too many of the ring; this shows that only the entry's own block is read. */
static void an_entry_alone_has_the_bits_it_has_among_others(void **state)
{
    (void)state;
    static const int32_t LAST[MAX_BATCH] = { 126, 3, 5000, 63 };
    for (int i = 0; i < 3; i++) {
        setup s = setup_open(4, 5, 128, 2, i < 2 ? BOTH[i] : 512, LAST, 0, 9000);
        int64_t entry = n_out(&s) / s.batch;
        attend(&s);
        for (int b = 0; b < s.batch; b++) {
            setup one = s;
            one.batch = 1;
            one.slot[0] = s.slot[b];
            one.last[0] = s.last[b];
            one.q = s.q + b * entry;
            one.kv = s.kv + (int64_t)b * s.n_block * s.head_dim;
            one.o = take(entry);
            attend(&one);
            gpu_same("alone", one.o, s.o + b * entry, entry, sizeof(bf16));
            free(one.o);
        }
        setup_close(&s);
    }
}

static void a_second_run_and_one_in_place_have_the_same_bits(void **state)
{
    (void)state;
    static const int32_t LAST[MAX_BATCH] = { 126, 400 };
    for (int i = 0; i < 3; i++) {
        setup s = setup_open(2, 9, 128, 2, i < 2 ? BOTH[i] : 512, LAST, 0, 9500);
        bf16 *again = take(n_out(&s));
        attend(&s);
        attend_into(&s, again, false);
        gpu_same("again", again, s.o, n_out(&s), sizeof(bf16));
        attend_into(&s, again, true);
        gpu_same("in place", again, s.o, n_out(&s), sizeof(bf16));
        free(again);
        setup_close(&s);
    }
}

static void shapes_outside_the_contract_are_refused(void **state)
{
    (void)state;
    static const int32_t BAD[][5] = { /* batch, n_block, window, heads, head_dim */
        { -1, 5, 128, 4, 64 }, { 1, 0, 128, 4, 64 },
        { 1, 5, -1, 4, 64 },   { 1, 5, KRN_ATTENTION_WINDOW_MAX + 1, 4, 64 },
        { 1, 5, 128, 0, 64 },  { 1, 5, 128, 4, 0 },
        { 1, 5, 128, 4, KRN_ATTENTION_HEAD_DIM_MAX + 1 },
    };
    err e = { 0 };
    bf16 v[8] = { 0 };
    int32_t i[1] = { 0 };
    float f[1] = { 0 };
    for (size_t k = 0; k < sizeof BAD / sizeof BAD[0]; k++)
        assert_int_equal(krn_attention(v, v, INT64_MAX, i, i, BAD[k][2], v, BAD[k][0], BAD[k][1], f, 1, BAD[k][3],
                                       BAD[k][4], v, NULL, &e),
                         ERR_ARG);
    assert_int_equal(krn_attention(v, v, 128 * 64 - 1, i, i, 128, v, 1, 5, f, 1, 4, 64, v, NULL, &e), ERR_ARG);
    assert_int_equal(krn_attention(v, v, 128 * 64, i, i, 128, v, 0, 5, f, 1, 4, 64, v, NULL, &e), ERR_OK);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_position_of_the_model_lies_within_the_bound),
    cmocka_unit_test(entries_of_a_batch_read_their_own_slots),
    cmocka_unit_test(other_shapes_lie_within_the_bound),
    cmocka_unit_test(rising_scores_lie_within_the_bound),
    cmocka_unit_test(the_twin_passes_and_faults_do_not),
    cmocka_unit_test(values_of_one_without_sink_give_exactly_one),
    cmocka_unit_test(a_sink_far_above_the_scores_leaves_nothing),
    cmocka_unit_test(nan_reaches_the_heads_that_meet_it_and_no_others),
    cmocka_unit_test(an_entry_alone_has_the_bits_it_has_among_others),
    cmocka_unit_test(a_second_run_and_one_in_place_have_the_same_bits),
    cmocka_unit_test(shapes_outside_the_contract_are_refused),
};

GPU_MAIN(tests)
