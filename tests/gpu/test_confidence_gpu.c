/* krn_confidence on the card: inside the bound of any order, the row of the right position and token. */
#include "kernels/confidence.h"

#include "gpu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH_MAX = 4, N_OUT_MAX = 5, VOCAB = 400 };

typedef struct shape {
    int32_t dim, rank, batch, block, n_out;
} shape;

static const shape SHAPES[] = {
    { 5120, 256, 1, 5, 5 }, { 5120, 256, 2, 5, 5 }, { 5120, 256, 3, 5, 4 }, { 5120, 256, 4, 5, 5 }, /* official */
    { 64, 32, 4, 5, 5 },    { 20000, 1000, 1, 3, 2 }, /* tiny; several chunks a lane */
    { 67, 13, 3, 2, 1 },    { 1, 1, 1, 1, 1 },      { 96, 0, 2, 5, 5 }, /* odd; no Markov piece */
};

typedef struct run {
    shape s;
    bf16 *hidden, *embed, *w;
    int32_t anchor[BATCH_MAX], drafts[BATCH_MAX * N_OUT_MAX];
    float y[BATCH_MAX * N_OUT_MAX];
} run;

static bf16 *filled(int64_t n, uint64_t seed, float scale)
{
    bf16 *x = malloc(sizeof *x * (size_t)(n + 1));
    if (!x) fail_msg("no memory for %lld elements", (long long)n);
    gpu_fill_bf16(x, n, seed, scale);
    return x;
}

static run make(shape s, uint64_t seed)
{
    run r = { .s = s };
    r.hidden = filled((int64_t)s.batch * s.block * s.dim, seed, 2.0f);
    r.embed = filled((int64_t)VOCAB * s.rank, seed + 1, 1.0f);
    r.w = filled((int64_t)s.dim + s.rank, seed + 2, 0.1f);
    for (int b = 0; b < s.batch; b++) r.anchor[b] = (int32_t)(gpu_hash(seed + 3, (uint64_t)b) % VOCAB);
    for (int i = 0; i < s.batch * s.n_out; i++) r.drafts[i] = (int32_t)(gpu_hash(seed + 4, (uint64_t)i) % VOCAB);
    r.drafts[0] = VOCAB - 1;
    return r;
}

/* shift: elements that the weights, and so their rows, stand off their alignment. */
static void compute(run *r, int shift)
{
    err e = { 0 };
    const shape *s = &r->s;
    size_t joined = (size_t)(s->dim + s->rank);
    bf16 *w = malloc(sizeof *w * (joined + (size_t)shift));
    if (!w) fail_msg("no memory for %zu weights", joined);
    memset(w, 0xff, sizeof *w * (joined + (size_t)shift)); /* NaN, should it be read */
    memcpy(w + shift, r->w, sizeof *w * joined);
    bf16 *d_hidden = gpu_put(r->hidden, sizeof(bf16) * (size_t)(s->batch * s->block) * (size_t)s->dim);
    bf16 *d_embed = gpu_put(r->embed, sizeof(bf16) * VOCAB * (size_t)s->rank);
    bf16 *d_w = gpu_put(w, sizeof *w * (joined + (size_t)shift));
    int32_t *d_anchor = gpu_put(r->anchor, sizeof r->anchor), *d_drafts = gpu_put(r->drafts, sizeof r->drafts);
    float *d_y = gpu_out(sizeof(float) * (size_t)(s->batch * s->n_out));
    gpu_ok(krn_confidence(d_hidden, s->dim, d_embed, s->rank, d_w + shift, d_anchor, d_drafts, s->batch, s->block, s->n_out,
                          d_y, gpu_stream(), &e), &e);
    gpu_get(d_y, r->y, sizeof(float) * (size_t)(s->batch * s->n_out));
    gpu_free_all();
    free(w);
}

static void done(run *r)
{
    free(r->hidden);
    free(r->embed);
    free(r->w);
}

static void judge(gpu_tally *t, const run *r, int b, int i, float got)
{
    const shape *s = &r->s;
    const bf16 *hidden = r->hidden + ((int64_t)b * s->block + i) * s->dim;
    const bf16 *markov = r->embed + (int64_t)(i == 0 ? r->anchor[b] : r->drafts[b * s->n_out + i - 1]) * s->rank;
    double sum = 0, size = 0;
    for (int32_t k = 0; k < s->dim + s->rank; k++) {
        double term = (double)f32_from_bf16(k < s->dim ? hidden[k] : markov[k - s->dim]) * (double)f32_from_bf16(r->w[k]);
        sum += term;
        size += fabs(term);
    }
    gpu_judge_f32(t, b * s->n_out + i, sum, 6 * 0x1p-24 * sqrt(s->dim + s->rank) * size, got);
}

static void every_position_is_inside_the_bound(void **state)
{
    (void)state;
    for (size_t at = 0; at < sizeof SHAPES / sizeof SHAPES[0]; at++)
        for (uint64_t seed = 0; seed < 10; seed++) {
            char label[64];
            run r = make(SHAPES[at], 100 * at + seed);
            compute(&r, 0);
            snprintf(label, sizeof label, "confidence dim %d rank %d batch %d", r.s.dim, r.s.rank, r.s.batch);
            gpu_tally t = { .label = label };
            for (int b = 0; b < r.s.batch; b++)
                for (int i = 0; i < r.s.n_out; i++) judge(&t, &r, b, i, r.y[b * r.s.n_out + i]);
            gpu_tally_end(&t, 0);
            done(&r);
        }
}

/* Small whole numbers: every order gives the twin's bits. */
static void exact_sums_have_the_twins_bits(void **state)
{
    (void)state;
    for (size_t at = 0; at < sizeof SHAPES / sizeof SHAPES[0]; at++) {
        const shape *s = &SHAPES[at];
        run r = make(*s, 7);
        for (int64_t i = 0; i < (int64_t)s->batch * s->block * s->dim; i++)
            r.hidden[i] = bf16_from_f32((float)(gpu_hash(1, (uint64_t)i) % 9) - 4);
        for (int64_t i = 0; i < (int64_t)VOCAB * s->rank; i++)
            r.embed[i] = bf16_from_f32((float)(gpu_hash(2, (uint64_t)i) % 9) - 4);
        for (int32_t i = 0; i < s->dim + s->rank; i++)
            r.w[i] = bf16_from_f32((float)(gpu_hash(3, (uint64_t)i) % 9) - 4);
        compute(&r, 0);
        float wanted[BATCH_MAX * N_OUT_MAX];
        for (int b = 0; b < s->batch; b++)
            for (int i = 0; i < s->n_out; i++) {
                int32_t before = i == 0 ? r.anchor[b] : r.drafts[b * s->n_out + i - 1];
                const bf16 *hidden = r.hidden + ((int64_t)b * s->block + i) * s->dim;
                const bf16 *markov = r.embed + (int64_t)before * s->rank;
                wanted[b * s->n_out + i] = krn_confidence_ref(hidden, s->dim, markov, s->rank, r.w, KRN_ACC_F64);
            }
        gpu_same("confidence", r.y, wanted, s->batch * s->n_out, sizeof(float));
        done(&r);
    }
}

static void the_verdict_refuses_what_no_order_gives(void **state)
{
    (void)state;
    run r = make((shape){ 1, 1, 1, 1, 1 }, 8);
    r.w[1] = 0; /* one product is left; delta is 8 ulps of it */
    r.hidden[0] = bf16_from_f32(1.5f);
    r.w[0] = bf16_from_f32(1.25f);
    compute(&r, 0);
    assert_true(r.y[0] == 1.875f);
    gpu_tally bad = { .label = "thirty ulps off (illegal is wanted)" };
    judge(&bad, &r, 0, 0, r.y[0] * (1 + 0x1p-19f));
    assert_int_equal(bad.illegal, 1);
    done(&r);
}

static void an_entry_has_the_same_bits_alone_again_and_unaligned(void **state)
{
    (void)state;
    for (size_t at = 0; at < sizeof SHAPES / sizeof SHAPES[0]; at++) {
        run all = make(SHAPES[at], 30 + at), again = all;
        compute(&all, 0);
        for (int shift = 0; shift < 3; shift++) {
            compute(&again, shift);
            gpu_same("the same inputs", again.y, all.y, all.s.batch * all.s.n_out, sizeof(float));
        }
        for (int b = 0; b < all.s.batch; b++) {
            run one = all;
            one.s.batch = 1;
            one.hidden = all.hidden + (int64_t)b * all.s.block * all.s.dim;
            one.anchor[0] = all.anchor[b];
            memcpy(one.drafts, all.drafts + b * all.s.n_out, sizeof(int32_t) * (size_t)all.s.n_out);
            compute(&one, 0);
            gpu_same("one entry alone", one.y, all.y + b * all.s.n_out, all.s.n_out, sizeof(float));
        }
        done(&all);
    }
}

static void shapes_outside_the_contract_are_refused(void **state)
{
    (void)state;
    static const shape BAD[] = {
        { 0, 8, 1, 1, 1 }, { 8, -1, 1, 1, 1 }, { 8, 8, -1, 1, 1 }, { 8, 8, 1, 1, 0 }, { 8, 8, 1, 1, 2 },
        { 1 << 30, 1 << 30, 1, 1, 1 },
    };
    float *y = gpu_out(sizeof(float));
    err e = { 0 };
    for (size_t at = 0; at < sizeof BAD / sizeof BAD[0]; at++) {
        const shape *s = &BAD[at];
        assert_int_equal(krn_confidence(NULL, s->dim, NULL, s->rank, NULL, NULL, NULL, s->batch, s->block, s->n_out, y,
                                        gpu_stream(), &e), ERR_ARG);
        assert_non_null(strstr(e.msg, "confidence: dim="));
    }
    gpu_ok(krn_confidence(NULL, 8, NULL, 8, NULL, NULL, NULL, 0, 1, 1, y, gpu_stream(), &e), &e); /* nothing to do */
    gpu_free_all();
}

static const struct CMUnitTest TESTS[] = {
    cmocka_unit_test(every_position_is_inside_the_bound),
    cmocka_unit_test(exact_sums_have_the_twins_bits),
    cmocka_unit_test(the_verdict_refuses_what_no_order_gives),
    cmocka_unit_test(an_entry_has_the_same_bits_alone_again_and_unaligned),
    cmocka_unit_test(shapes_outside_the_contract_are_refused),
};
GPU_MAIN(TESTS)
