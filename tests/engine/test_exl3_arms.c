/* The arms with EXL3 weights on small checkpoints whose cuts fall inside the 128-blocks: they run on one rank and on two,
 * the same bits eager and planned, and what ranks hold is what the whole holds. */
#include "engine/engine.h"

#include <unistd.h>

#include "engine/markov_table.h"
#include "engine/synth.h"
#include "tests/engine/fixture.h"
#include "tests/support/exl3_delivery.h"
#include "tests/support/slow.h"

enum { SLOTS = 2, ROWS_MAX = 40, VALUES_MAX = 512 };

typedef struct model {
    char folder[64];
    eng_config config;
    eng_weights *weights;
    bf16 *taps; /* [ROWS_MAX, n_taps * dim] */
} model;

static model tiny, mid;

static void model_make(model *m, const char *preset, const exl3_delivery *d)
{
    eng_synth_report report;
    snprintf(m->folder, sizeof m->folder, "exl3-%s-XXXXXX", preset);
    assert_non_null(mkdtemp(m->folder));
    assert_true(eng_config_preset(preset, &m->config));
    OK(eng_synth_checkpoint(m->folder, &m->config, 7, true, &report, e));
    exl3_delivery_write(m->folder, &m->config, d);
    OK(eng_weights_open(m->folder, true, &m->weights, e));
    const size_t n = (size_t)ROWS_MAX * (size_t)m->config.n_taps * (size_t)m->config.dim;
    m->taps = mem_alloc(n, sizeof *m->taps);
    const uint64_t key = eng_noise_key(3, "taps");
    for (size_t i = 0; i < n; i++)
        m->taps[i] = bf16_from_f32((float)(2 * eng_noise_uniform(eng_noise_bits(key, i)) - 1) * (i % 97 ? 40 : 250000));
}

static int make_models(void **state)
{
    (void)state;
    setenv("XDG_CACHE_HOME", "/nowhere", 1);
    model_make(&tiny, "tiny", &(exl3_delivery){ 2, 5, 6, FMT_EXL3_MUL1, 11 });
    model_make(&mid, "mid", &(exl3_delivery){ 2, 5, 6, FMT_EXL3_MCG, 12 });
    return 0;
}

static int drop_models(void **state)
{
    (void)state;
    model *const all[] = { &tiny, &mid };
    for (int i = 0; i < 2; i++) {
        eng_weights_close(all[i]->weights);
        remove_folder(all[i]->folder);
        free(all[i]->taps);
    }
    return 0;
}

/* ---- one run ---- */

static eng_options options_of(const char *arm, const char *head, const char *mode, int32_t tp)
{
    eng_option_words words = { .arm = arm, .head = head, .mode = mode, .tp = tp };
    eng_options o;
    OK(eng_options_parse(&words, 2, &o, e));
    return o;
}

/* Every value of an insert and a draft, of all ranks, as they come: a hash each. */
typedef struct seen { int n; uint64_t hash[VALUES_MAX]; char name[VALUES_MAX][40]; } seen;

static void look(void *ctx, const eng_site *site, const fmt_tensor *t)
{
    seen *s = ctx;
    if (site->rank != 0) return;
    uint64_t h = 0xcbf29ce484222325u;
    const uint8_t *p = t->data;
    for (uint64_t i = 0; i < fmt_tensor_bytes(t); i++) h = (h ^ p[i]) * 0x100000001b3u;
    assert_true(s->n < VALUES_MAX);
    snprintf(s->name[s->n], sizeof s->name[0], "%s", site->program->value[site->value].name);
    s->hash[s->n++] = h;
}

typedef struct answer { int32_t drafts[SLOTS * ENG_BLOCK_MAX]; float confidence[SLOTS * ENG_BLOCK_MAX]; } answer;

static answer run(const model *m, const eng_options *o, seen *s)
{
    eng_engine *g;
    answer a;
    int32_t pos[ROWS_MAX];
    const eng_tap tap = { .tensor = look, .ctx = s };
    memset(&a, 0, sizeof a);
    s->n = 0;
    for (int32_t i = 0; i < ROWS_MAX; i++) pos[i] = i;
    OK(eng_open(m->weights, o, SLOTS, ENG_LEVEL_DEEP, true, &g, e));
    OK(eng_insert(g, 0, m->taps, pos, ROWS_MAX, &tap, e));
    OK(eng_insert(g, 1, m->taps, pos, 3, &tap, e));
    OK(eng_draft(g, 2, (const int32_t[]){ 0, 1 }, (const int32_t[]){ 5, 9 }, (const int32_t[]){ ROWS_MAX - 1, 2 },
                 m->config.block, a.drafts, a.confidence, &tap, e));
    eng_close(g);
    for (int32_t i = 0; i < 2 * m->config.block; i++) {
        assert_true(a.drafts[i] >= 0 && a.drafts[i] < m->config.vocab);
        assert_true(a.confidence[i] == a.confidence[i]);
    }
    return a;
}

static const struct { const char *arm, *head; } RUNS[] = {
    { "k2-tp2", NULL }, { "k2-head", NULL }, { "native-experts-packed", NULL }, { "native-packed", "k6" },
    { "native-hybrid", "k6" },
};

static void compare(const seen *a, const seen *b, const char *arm)
{
    assert_int_equal(a->n, b->n);
    for (int i = 0; i < a->n; i++) {
        int k = 0; /* planned steps show their values after the step */
        while (k < b->n && (strcmp(b->name[k], a->name[i]) != 0 || b->hash[k] != a->hash[i])) k++;
        if (k == b->n) fail_msg("%s: %s has other bits", arm, a->name[i]);
    }
}

static void check_model(const model *m)
{
    static seen eager, planned;
    for (size_t i = 0; i < sizeof RUNS / sizeof *RUNS; i++)
        for (int32_t tp = 1; tp <= 2; tp++) {
            eng_options o = options_of(RUNS[i].arm, RUNS[i].head, "eager", tp);
            answer a = run(m, &o, &eager);
            o.mode = ENG_MODE_GRAPH;
            answer b = run(m, &o, &planned);
            assert_memory_equal(&a, &b, sizeof a);
            compare(&eager, &planned, RUNS[i].arm);
        }
}

static void every_arm_has_the_same_bits_eager_and_planned_on_tiny(void **state) { (void)state; check_model(&tiny); }
static void every_arm_has_the_same_bits_eager_and_planned_on_mid(void **state)
{
    (void)state;
    if (!SLOW) check_model(&mid);
}

/* ---- the Markov term ---- */

static void hot_rows_change_no_bit(void **state)
{
    (void)state;
    static seen plain, hot;
    const model *const all[] = { &tiny, &mid };
    for (int i = 0; i < 2; i++)
        for (int32_t tp = 1; tp <= 2; tp++) {
            const eng_options o = options_of("native-hybrid-head", NULL, NULL, tp);
            const eng_options of_hot = options_of("native-hybrid-head-hot", NULL, NULL, tp);
            assert_true(eng_markov_rows(&all[i]->config, of_hot.reps.markov) > 0);
            answer a = run(all[i], &o, &plain), b = run(all[i], &of_hot, &hot);
            assert_memory_equal(&a, &b, sizeof a);
            compare(&plain, &hot, "native-hybrid-head-hot");
        }
}

/* Logits and biased logits that no bf16 number is. */
static void count_unrounded(void *ctx, const eng_site *site, const fmt_tensor *t)
{
    const char *name = site->program->value[site->value].name;
    const float *v = t->data;
    if (strcmp(name, "head.logits") != 0 && strcmp(name, "head.biased") != 0) return;
    assert_int_equal(t->dtype, FMT_DTYPE_F32);
    for (int64_t i = 0; i < fmt_tensor_elems(t); i++) *(int64_t *)ctx += v[i] != bf16_round(v[i]);
}

static int64_t unrounded(const char *arm, int32_t tp)
{
    const eng_options o = options_of(arm, NULL, NULL, tp);
    int64_t n = 0;
    const eng_tap tap = { .tensor = count_unrounded, .ctx = &n };
    const int32_t pos[3] = { 0, 1, 2 };
    eng_engine *g;
    answer a;
    OK(eng_open(tiny.weights, &o, 1, ENG_LEVEL_DEEP, true, &g, e));
    OK(eng_insert(g, 0, tiny.taps, pos, 3, NULL, e));
    OK(eng_draft(g, 1, (const int32_t[]){ 0 }, (const int32_t[]){ 5 }, (const int32_t[]){ 2 }, tiny.config.block, a.drafts,
                 a.confidence, &tap, e));
    eng_close(g);
    return n;
}

static void the_control_rounds_its_logits_and_no_other_arm_does(void **state)
{
    (void)state;
    for (int32_t tp = 1; tp <= 2; tp++) {
        assert_int_equal(unrounded("k2-tp2", tp), 0);
        assert_true(unrounded("k2-head", tp) > 1000);
        assert_true(unrounded("native-hybrid-head-hot", tp) > 1000);
    }
}

/* ---- what is held ---- */

/* Decoded columns [inputs] and rows [outputs] of a rank's view are those of the whole. */
static void check_slice(const eng_weights *w, const krn_weight *part, eng_wid id, int32_t stage, int32_t expert,
                        int32_t rank)
{
    const eng_config *c = eng_weights_config(w);
    const krn_weight whole = eng_weights_exl3(w, id, stage, expert);
    const eng_range cut = eng_cut_range(c, id, rank, 2);
    const bool cols = eng_wkind_of(id)->cut == ENG_CUT_COLS;
    const int32_t n0 = cols ? 0 : cut.first, k0 = cols ? cut.first : 0;
    float *a = mem_alloc((size_t)whole.n * (size_t)whole.k, sizeof *a);
    float *b = mem_alloc((size_t)part->n * (size_t)part->k, sizeof *b);
    krn_weight_decode_f32(&whole, 0, whole.n, a);
    krn_weight_decode_f32(part, 0, part->n, b);
    for (int32_t n = 0; n < part->n; n++)
        assert_memory_equal(b + (size_t)n * (size_t)part->k, a + (size_t)(n0 + n) * (size_t)whole.k + k0,
                            (size_t)part->k * sizeof *a);
    free(a);
    free(b);
}

static void ranks_hold_slices_of_the_whole(void **state)
{
    (void)state;
    const eng_reps reps = { ENG_REP_EXL3, ENG_REP_EXL3, ENG_REP_EXL3, ENG_MARKOV_FACTORISED };
    for (int32_t rank = 0; rank < 2; rank++) {
        eng_rank_weights *r;
        OK(eng_rank_weights_open(tiny.weights, rank, 2, &reps, true, &r, e));
        assert_int_equal(eng_rank_weights_owned_bytes(r), 0); /* all of it lies in the files */
        for (int id = 0; id < ENG_W_COUNT; id++) {
            const krn_weight *v = eng_rank_weight(r, (eng_wid)id, 1, 2);
            assert_int_equal(v->format == KRN_W_EXL3, eng_wid_has_exl3((eng_wid)id));
            if (v->format == KRN_W_EXL3) check_slice(tiny.weights, v, (eng_wid)id, 1, 2, rank);
        }
        eng_rank_weights_close(r);
    }
}

/* ---- the program ---- */

static int count_qdq(const char *arm, const char *head, eng_step_kind step)
{
    const eng_options o = options_of(arm, head, NULL, 1);
    eng_program *p;
    int n = 0;
    OK(eng_program_make(&tiny.config, step, 1, ENG_COMBINE_EXACT, &o.reps, &p, e));
    for (int32_t i = 0; i < p->n_ops; i++) n += p->op[i].kind == ENG_OP_ACT_QDQ;
    eng_program_free(p);
    return n;
}

static void a_product_with_exl3_takes_its_rows_as_they_are(void **state)
{
    (void)state;
    const int stages = tiny.config.n_stages;
    /* QDQ of: o, the latent row; then norm for wq_a and wkv, qr, wo_a; norm for the FFN, h, shared h. */
    assert_int_equal(count_qdq("native-packed", NULL, ENG_STEP_DRAFT), 8 * stages);
    assert_int_equal(count_qdq("native-packed", "k6", ENG_STEP_DRAFT), 8 * stages);
    assert_int_equal(count_qdq("k2-tp2", NULL, ENG_STEP_DRAFT), 2 * stages);
    assert_int_equal(count_qdq("native-experts-packed", NULL, ENG_STEP_DRAFT), 4 * stages);
    /* taps, main_x, and of every stage the latent row */
    assert_int_equal(count_qdq("native-packed", NULL, ENG_STEP_INSERT), 2 + stages);
    assert_int_equal(count_qdq("k2-tp2", NULL, ENG_STEP_INSERT), stages);
}

/* ---- refusals ---- */

static void an_arm_refuses_by_name_what_is_not_delivered(void **state)
{
    (void)state;
    model m;
    eng_engine *g;
    eng_options o = options_of("native-packed", "k6", NULL, 1);
    model_make(&m, "tiny", &(exl3_delivery){ 2, 0, 0, FMT_EXL3_3INST, 5 });
    REFUSED(eng_open(m.weights, &o, 1, ENG_LEVEL_IO, true, &g, e), ERR_IDENTITY,
            "has no head.trellis: make it with `sparktape quantize`");
    REFUSED(eng_open(m.weights, &o, 1, ENG_LEVEL_IO, true, &g, e), ERR_IDENTITY, "arm native-packed: --head k6: ");
    o = options_of("k2-head", NULL, NULL, 1);
    REFUSED(eng_open(m.weights, &o, 1, ENG_LEVEL_IO, true, &g, e), ERR_IDENTITY, "main_proj.trellis");
    eng_weights_close(m.weights);
    remove_folder(m.folder);
    free(m.taps);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_arm_has_the_same_bits_eager_and_planned_on_tiny),
        cmocka_unit_test(every_arm_has_the_same_bits_eager_and_planned_on_mid),
        cmocka_unit_test(hot_rows_change_no_bit),
        cmocka_unit_test(the_control_rounds_its_logits_and_no_other_arm_does),
        cmocka_unit_test(ranks_hold_slices_of_the_whole),
        cmocka_unit_test(a_product_with_exl3_takes_its_rows_as_they_are),
        cmocka_unit_test(an_arm_refuses_by_name_what_is_not_delivered),
    };
    return cmocka_run_group_tests(tests, make_models, drop_models);
}
