/* Planted faults: every kind has an op, changes what the op makes and nothing before it, in eager and planned runs, on one
 * rank and on two; without a fault the list of ops is the plain one and the bits are the same. */
#include "engine/fault.h"

#include "base/mem.h"
#include "engine/engine.h"
#include "engine/exec.h"
#include "engine/synth.h"
#include "tests/support/exl3_delivery.h"
#include "tests/support/slow.h"

#include <unistd.h>

enum { SLOTS = 2, ROWS = 48, SECOND_ROWS = 9, VALUES_MAX = 512 };

static eng_weights *weights;
static eng_config config;
static bf16 *taps; /* [ROWS, n_taps * dim] */
static int32_t positions[ROWS];

static int make_model(void **state)
{
    (void)state;
    err e = { 0 };
    eng_synth_report report;
    char *folder = mem_strdup("model-XXXXXX");
    assert_non_null(mkdtemp(folder));
    assert_true(eng_config_preset("tiny", &config));
    config.window = 16; /* which the first slot fills and the second does not */
    setenv("XDG_CACHE_HOME", folder, 1);
    if (eng_synth_checkpoint(folder, &config, 11, true, &report, &e) != ERR_OK) fail_msg("%s", e.msg);
    exl3_delivery_write(folder, &config, &(exl3_delivery){ 2, 5, 6, FMT_EXL3_MUL1, 3 });
    if (eng_weights_open(folder, true, &weights, &e) != ERR_OK) fail_msg("%s", e.msg);
    free(folder);
    size_t n = (size_t)ROWS * (size_t)config.n_taps * (size_t)config.dim;
    taps = mem_alloc(n, sizeof *taps);
    uint32_t seed = 4321;
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        taps[i] = bf16_from_f32(((float)(seed >> 8) / 8388608.0f - 1) * (i % 97 == 0 ? 250000.0f : 40.0f));
    }
    for (int32_t i = 0; i < ROWS; i++) positions[i] = i;
    return 0;
}

static int drop_model(void **state)
{
    (void)state;
    eng_weights_close(weights);
    free(taps);
    return 0;
}

/* ---- a run as digests ---- */

/* One digest per value, rank and step of the run. */
typedef struct digests {
    int32_t step;                       /* steps so far */
    uint64_t of[8][ENG_RANKS_MAX][VALUES_MAX];
} digests;

static void take_digest(void *ctx, const eng_site *site, const fmt_tensor *t)
{
    digests *d = ctx;
    uint64_t h = 1469598103934665603u, bytes = fmt_dtype_bytes(t->dtype);
    for (int i = 0; i < FMT_DIMS_MAX; i++) bytes *= (uint64_t)t->shape[i];
    for (uint64_t i = 0; i < bytes; i++) h = (h ^ ((const uint8_t *)t->data)[i]) * 1099511628211u;
    /* the window's write order is program order, so a bucket of an insert that follows another overwrites it here */
    d->of[d->step][site->rank][site->value] ^= h * (uint64_t)(site->row0 + 1);
}

static eng_options options_of(const char *arm, eng_mode mode, int32_t tp, const char *combine)
{
    eng_option_words words = { .arm = arm, .mode = eng_mode_name(mode), .tp = tp, .combine = combine };
    eng_options o;
    err e = { 0 };
    if (eng_options_parse(&words, 1, &o, &e) != ERR_OK) fail_msg("%s", e.msg);
    return o;
}

/* Two slots, inserts and a draft of both, twice: six steps. windows: of both slots and all stages at the end. */
static void run(const eng_options *o, digests *d, bf16 *windows)
{
    eng_engine *g;
    err e = { 0 };
    eng_tap tap = { .tensor = take_digest, .ctx = d };
    int64_t width = (int64_t)config.n_taps * config.dim;
    const int32_t slots[SLOTS] = { 0, 1 };
    memset(d, 0, sizeof *d);
    if (eng_open(weights, o, SLOTS, ENG_LEVEL_DEEP, true, &g, &e) != ERR_OK) fail_msg("%s", e.msg);
    for (int round = 0; round < 2; round++) {
        for (int32_t s = 0; s < SLOTS; s++, d->step++) {
            int32_t first = eng_slot_last(g, s) + 1, n = round ? 3 : s ? SECOND_ROWS : ROWS - SECOND_ROWS;
            const bf16 *x = taps + (first + s) * width;
            if (eng_insert(g, s, x, positions + first, n, &tap, &e) != ERR_OK) fail_msg("%s", e.msg);
        }
        int32_t drafts[SLOTS * ENG_BLOCK_MAX], anchors[SLOTS] = { 17 + round, 99 }, pos[SLOTS];
        float confidence[SLOTS * ENG_BLOCK_MAX];
        for (int32_t s = 0; s < SLOTS; s++) pos[s] = eng_slot_last(g, s);
        if (eng_draft(g, SLOTS, slots, anchors, pos, config.block, drafts, confidence, &tap, &e) != ERR_OK)
            fail_msg("%s", e.msg);
        d->step++;
    }
    for (int32_t s = 0; s < SLOTS; s++)
        for (int32_t k = 0; k < config.n_stages; k++) {
            fmt_tensor w;
            assert_int_equal(eng_window(g, s, k, &w, NULL), ERR_OK);
            size_t n = (size_t)(w.shape[0] * w.shape[1]);
            memcpy(windows, w.data, n * sizeof *windows);
            windows += (size_t)config.window * (size_t)config.head_dim;
        }
    eng_close(g);
}

static size_t windows_bytes(void)
{
    return sizeof(bf16) * SLOTS * (size_t)config.n_stages * (size_t)config.window * (size_t)config.head_dim;
}

/* The first step and value that differ, in program order; false: none. */
typedef struct place { int32_t step, op; } place;
static bool first_difference(const digests *a, const digests *b, eng_program *const p[2], place *out)
{
    for (int32_t step = 0; step < 6; step++) {
        const eng_program *q = p[step % 3 == 2 ? ENG_STEP_DRAFT : ENG_STEP_INSERT];
        for (int32_t i = 0; i < q->n_ops; i++)
            for (int32_t k = 0; k < q->op[i].n_out; k++)
                for (int32_t rank = 0; rank < q->n_ranks; rank++)
                    if (a->of[step][rank][q->op[i].out[k]] != b->of[step][rank][q->op[i].out[k]]) {
                        *out = (place){ step, i };
                        return true;
                    }
    }
    return false;
}

/* ---- every kind ---- */

typedef struct setting { const char *arm, *combine; eng_mode mode; int32_t tp; } setting;
static const setting SETTINGS[] = {
    { "native-packed", "exact", ENG_MODE_EAGER, 1 },
    { "native-packed", "fused", ENG_MODE_GRAPH, 2 },
    { "native-expanded", "exact", ENG_MODE_EAGER, 2 },
    { "mirror64", "exact", ENG_MODE_GRAPH, 1 },
    { "k2-tp2", "exact", ENG_MODE_EAGER, 2 },
};

/* These have no occasion in a run of this size, or none by what they are. */
static bool may_do_nothing(const eng_fault_kind *k)
{
    static const char *const NAMES[] = { "qdq-twice", "fp16-input", "fp16-sum", "order", "norm-eps", "hc-eps-missing",
                                         "sinkhorn-short", "combine-order", "argmax-last", "argmax-bf16",
                                         "ring-logical", "unstable" };
    for (size_t i = 0; i < COUNT_OF(NAMES); i++)
        if (strcmp(k->name, NAMES[i]) == 0) return true;
    return false;
}

static digests clean, spoiled;

/* Plants k at op i; whether it changed anything. What was changed is looked for in what taps see. */
static bool plant(const setting *set, const eng_fault_kind *k, eng_program *const p[2], eng_step_kind step, int32_t i,
                  const bf16 *clean_windows, bf16 *windows)
{
    eng_options o = options_of(set->arm, set->mode, set->tp, set->combine);
    eng_fault f = { .kind = k, .step = (int32_t)step, .rank = -1, .round = -1, .slot = -1, .engine_slot = -1, .row = -1,
                    .index = -1, .armed = true };
    snprintf(f.op, sizeof f.op, "%s", p[step]->op[i].name);
    o.fault = &f;
    run(&o, &spoiled, windows);
    place at;
    bool differs = first_difference(&clean, &spoiled, p, &at);
    if (differs && (eng_step_kind)(at.step % 3 == 2) == step && at.op < i)
        fail_msg("%s at %s: %s before it differs", k->name, f.op, p[step]->op[at.op].name);
    if (differs && eng_fault_changed(&f) == 0) fail_msg("%s at %s: something differs, nothing is counted", k->name, f.op);
    const eng_value *out = &p[step]->value[p[step]->op[i].out[0]];
    bool is_window = out->state, out_shown = out->level <= ENG_LEVEL_DEEP;
    if (is_window && eng_fault_changed(&f) > 0 && memcmp(windows, clean_windows, windows_bytes()) == 0 && !differs)
        fail_msg("%s at %s: no window differs", k->name, f.op);
    if (!is_window && out_shown && eng_fault_changed(&f) > 0 && (!differs || at.op != i))
        fail_msg("%s at %s: the first difference is at %s", k->name, f.op, differs ? p[step]->op[at.op].name : "nothing");
    return eng_fault_changed(&f) > 0;
}

static bool planted[VALUES_MAX]; /* kinds, by any setting so far */

enum { AGAIN = !SLOW };

/* Every kind that was not planted before, and a part of the others. */
static void check_setting(const setting *set)
{
    eng_options o = options_of(set->arm, set->mode, set->tp, set->combine);
    eng_program *p[2];
    bf16 *windows = mem_alloc(windows_bytes(), 1), *clean_windows = mem_alloc(windows_bytes(), 1);
    for (int s = 0; s < 2; s++)
        assert_int_equal(eng_program_make(&config, (eng_step_kind)s, o.n_ranks, o.combine, &o.reps, &p[s], NULL), ERR_OK);
    assert_true(p[1]->n_values < VALUES_MAX);
    run(&o, &clean, clean_windows);
    for (size_t n = 0; n < eng_fault_count(); n++) {
        const eng_fault_kind *k = eng_fault_at(n);
        int tried = 0, changed = 0;
        if (planted[n] && (!AGAIN || n % COUNT_OF(SETTINGS) != (size_t)(set - SETTINGS))) continue;
        for (int s = 0; s < 2; s++)
            for (int32_t i = 0; i < p[s]->n_ops; i++) {
                if (!eng_fault_applies(k, p[s], i, &o) || p[s]->op[i].stage > 0 || changed) continue;
                if (tried >= 6 && may_do_nothing(k)) continue;
                tried++;
                changed += plant(set, k, p, (eng_step_kind)s, i, clean_windows, windows);
            }
        planted[n] |= tried > 0;
        if (tried && !changed && !may_do_nothing(k)) fail_msg("%s: nothing changed in %d ops", k->name, tried);
    }
    for (int s = 0; s < 2; s++) eng_program_free(p[s]);
    free(windows);
    free(clean_windows);
}

static void every_kind_changes_its_op_and_nothing_before_it(void **state)
{
    (void)state;
    check_setting(&SETTINGS[0]);
}
static void and_so_planned_on_two_ranks(void **state)
{
    (void)state;
    check_setting(&SETTINGS[1]);
}
static void and_so_of_expanded_weights(void **state)
{
    (void)state;
    check_setting(&SETTINGS[2]);
}
static void and_so_in_double(void **state)
{
    (void)state;
    check_setting(&SETTINGS[3]);
}

static void and_so_of_exl3_weights(void **state)
{
    (void)state;
    check_setting(&SETTINGS[4]);
}

static void every_kind_has_an_op(void **state)
{
    (void)state;
    assert_true(eng_fault_count() >= 40);
    for (size_t n = 0; n < eng_fault_count(); n++) {
        const eng_fault_kind *k = eng_fault_at(n);
        int found = 0;
        for (size_t at = 0; at < COUNT_OF(SETTINGS); at++) {
            eng_options o = options_of(SETTINGS[at].arm, SETTINGS[at].mode, SETTINGS[at].tp, SETTINGS[at].combine);
            for (int s = 0; s < 2; s++) {
                eng_program *p;
                assert_int_equal(eng_program_make(&config, (eng_step_kind)s, o.n_ranks, o.combine, &o.reps, &p, NULL),
                                 ERR_OK);
                for (int32_t i = 0; i < p->n_ops; i++) found += eng_fault_applies(k, p, i, &o);
                eng_program_free(p);
            }
        }
        if (!found) fail_msg("%s applies nowhere", k->name);
        assert_ptr_equal(eng_fault_find(k->name), k);
        assert_true(strlen(k->summary) > 0 && k->cause < ENG_CAUSE_COUNT);
    }
}

/* ---- without, and unarmed ---- */

static void without_a_fault_the_bound_list_is_plain(void **state)
{
    (void)state;
    eng_options o = options_of("native-packed", ENG_MODE_EAGER, 1, NULL);
    eng_rank_weights *w;
    eng_program *p;
    eng_step s;
    float freq[ENG_BLOCK_MAX * 64] = { 0 };
    assert_int_equal(eng_rank_weights_open(weights, 0, 1, &o.reps, true, &w, NULL), ERR_OK);
    assert_int_equal(eng_program_make(&config, ENG_STEP_DRAFT, 1, ENG_COMBINE_EXACT, &o.reps, &p, NULL), ERR_OK);
    assert_int_equal(eng_step_init(&s, p, w, &o, 0, 1, NULL, freq, config.block, 1, ENG_LEVEL_DEEP, NULL), ERR_OK);
    assert_null(s.fault);
    for (int32_t i = 0; i < p->n_ops; i++) assert_true(s.bound[i] == eng_op_cpu(p->op[i].kind));
    eng_step_fini(&s);
    eng_fault f;
    assert_int_equal(eng_fault_parse("row-swap@s0.attn_out:step=draft", &f, NULL), ERR_OK);
    o.fault = &f;
    assert_int_equal(eng_step_init(&s, p, w, &o, 0, 1, NULL, freq, config.block, 1, ENG_LEVEL_DEEP, NULL), ERR_OK);
    for (int32_t i = 0; i < p->n_ops; i++)
        assert_true((s.bound[i] == eng_op_cpu(p->op[i].kind)) == (strcmp(p->op[i].name, "s0.attn_out") != 0));
    eng_step_fini(&s);
    eng_program_free(p);
    eng_rank_weights_close(w);
}

static void an_unarmed_fault_changes_nothing(void **state)
{
    (void)state;
    bf16 *windows = mem_alloc(2, windows_bytes());
    eng_options o = options_of("native-packed", ENG_MODE_EAGER, 2, NULL);
    eng_fault f;
    run(&o, &clean, windows);
    assert_int_equal(eng_fault_parse("reduce-twice@s0.attn.wo_b_sum:round=7", &f, NULL), ERR_OK);
    assert_false(f.armed);
    o.fault = &f;
    run(&o, &spoiled, windows + windows_bytes() / sizeof *windows);
    assert_memory_equal(&clean, &spoiled, sizeof clean);
    assert_memory_equal(windows, windows + windows_bytes() / sizeof *windows, windows_bytes());
    assert_int_equal(eng_fault_changed(&f), 0);
    free(windows);
}

static void a_fault_of_one_slot_leaves_the_other_alone(void **state)
{
    (void)state;
    bf16 *windows = mem_alloc(2, windows_bytes()), *after = windows + windows_bytes() / sizeof *windows;
    eng_options o = options_of("native-packed", ENG_MODE_EAGER, 1, NULL);
    eng_fault f;
    run(&o, &clean, windows);
    assert_int_equal(eng_fault_parse("rope-late@s0.attn.kv_rope:step=insert", &f, NULL), ERR_OK);
    f.engine_slot = 1;
    o.fault = &f;
    run(&o, &spoiled, after);
    size_t half = windows_bytes() / 2;
    assert_true(eng_fault_changed(&f) > 0);
    assert_memory_equal(windows, after, half);
    assert_memory_not_equal((uint8_t *)windows + half, (uint8_t *)after + half, half);
    free(windows);
}

/* ---- words ---- */

static void bad_words_are_refused_by_name(void **state)
{
    (void)state;
    static const struct { const char *text, *named; } BAD[] = {
        { "row-swap", "KIND@OP" }, { "row-swap@", "KIND@OP" }, { "row-swap@:row=1", "KIND@OP" },
        { "nope@s0.attn_out", "nope" },
        { "row-swap@s0.attn_out:lane=1", "lane" }, { "row-swap@s0.attn_out:row=x", "row" },
        { "row-swap@s0.attn_out:step=both", "step" }, { "row-swap@s0.attn_out:row", "row" },
        { "row-swap@a-name-that-is-longer-than-any-op-has", "a-name-that" },
    };
    for (size_t i = 0; i < COUNT_OF(BAD); i++) {
        eng_fault f;
        err e = { 0 };
        assert_int_equal(eng_fault_parse(BAD[i].text, &f, &e), ERR_ARG);
        if (!strstr(e.msg, BAD[i].named)) fail_msg("'%s': %s", BAD[i].text, e.msg);
    }
}

static void a_fault_that_cannot_be_planted_is_refused(void **state)
{
    (void)state;
    static const struct { const char *text, *arm, *named; } BAD[] = {
        { "row-swap@s0.nothing", "native-packed", "s0.nothing" }, { "row-swap@s0.attn.wkv", "native-packed", "step=" },
        { "qdq-missing@s0.attn_out", "native-packed", "does not apply" },
        { "order@s0.attn_out", "native-packed", "did you mean s0.attn.wo_b" }, /* its sum is hidden, and another op's */
        { "nibble-order@s0.ffn.gate", "native-expanded", "does not apply" },
        { "nibble-order@s0.ffn.gate", "k2-tp2", "does not apply" },
        { "exl3-bit@s0.ffn.gate", "native-packed", "does not apply" },
        { "exl3-slice@head.logits_sum", "k2-tp2", "does not apply" }, /* of one rank nothing is cut */
        { "exl3-svh-shift@s0.attn.wq_a", "k2-tp2", "does not apply" }, /* one block of outputs */
        { "row-swap@s0.attn_out:rank=1", "native-packed", "rank" },
        { "reduce-twice@s0.attn.wo_b_sum", "native-packed", "s0.attn.wo_b_sum" }, /* one rank adds nothing */
    };
    for (size_t i = 0; i < COUNT_OF(BAD); i++) {
        eng_options o = options_of(BAD[i].arm, ENG_MODE_EAGER, 1, NULL);
        eng_engine *g;
        eng_fault f;
        err e = { 0 };
        assert_int_equal(eng_fault_parse(BAD[i].text, &f, &e), ERR_OK);
        o.fault = &f;
        assert_int_equal(eng_open(weights, &o, SLOTS, ENG_LEVEL_DEEP, true, &g, &e), ERR_ARG);
        if (!strstr(e.msg, BAD[i].named)) fail_msg("'%s': %s", BAD[i].text, e.msg);
    }
}

static void a_value_stands_for_its_op(void **state)
{
    (void)state;
    static const struct { const char *text, *op; bool hidden; } CASES[] = {
        { "row-swap@s0.ffn.weights", "s0.ffn.ids", false }, { "nan@s0.ffn.up", "s0.ffn.gate", false },
        { "nan@s0.attn.wo_b~", "s0.attn.wo_b", true }, { "nan@s0.attn.wo_b", "s0.attn.wo_b", true },
    };
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        eng_options o = options_of("native-packed", ENG_MODE_EAGER, 1, NULL);
        eng_engine *g;
        eng_fault f;
        err e = { 0 };
        assert_int_equal(eng_fault_parse(CASES[i].text, &f, &e), ERR_OK);
        o.fault = &f;
        if (eng_open(weights, &o, SLOTS, ENG_LEVEL_DEEP, true, &g, &e) != ERR_OK)
            fail_msg("'%s': %s", CASES[i].text, e.msg);
        eng_close(g);
        assert_string_equal(f.op, CASES[i].op);
        assert_int_equal(f.hidden, CASES[i].hidden);
    }
}

static void json_says_what_was_chosen(void **state)
{
    (void)state;
    eng_fault f;
    assert_int_equal(eng_fault_parse("scale-255@s1.ffn.gate:rank=0,round=3,slot=12,row=2,index=5", &f, NULL), ERR_OK);
    json_t *j = eng_fault_json(&f);
    assert_string_equal(json_string_value(json_object_get(j, "kind")), "scale-255");
    assert_string_equal(json_string_value(json_object_get(j, "op")), "s1.ffn.gate");
    assert_string_equal(json_string_value(json_object_get(j, "cause")), "E8M0 0 or 255");
    assert_int_equal(json_integer_value(json_object_get(j, "round")), 3);
    assert_int_equal(json_integer_value(json_object_get(j, "slot")), 12);
    assert_int_equal(json_integer_value(json_object_get(j, "index")), 5);
    json_decref(j);
}

static void a_fault_comes_back_from_json(void **state)
{
    static const char *const TEXT[] = { "scale-255@s1.ffn.gate:rank=0,round=3,slot=12,row=2,index=5,step=draft",
                                        "row-swap@s0.attn.wkv:step=insert", "unstable@x0" };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(TEXT); i++) {
        eng_fault f, back;
        assert_int_equal(eng_fault_parse(TEXT[i], &f, NULL), ERR_OK);
        json_t *j = eng_fault_json(&f), *again;
        if (f.step < 0) assert_int_equal(json_object_del(j, "step"), 0); /* an engine finds it before it writes this */
        assert_int_equal(eng_fault_of_json(j, &back, NULL), ERR_OK);
        again = eng_fault_json(&back);
        if (f.step < 0) assert_int_equal(json_object_del(again, "step"), 0);
        assert_true(json_equal(j, again) && back.armed == f.armed);
        json_object_set_new(j, "kind", json_string("no-such-kind"));
        err e = { 0 };
        assert_int_equal(eng_fault_of_json(j, &back, &e), ERR_INPUT);
        assert_non_null(strstr(e.msg, "no-such-kind"));
        json_decref(j);
        json_decref(again);
    }
}

/* Two whole runs of a race never go wrong in the same places, however often a run has the op. */
static void an_unstable_op_has_no_period(void **state)
{
    enum { STEPS = 32 };
    const int32_t slot = 0, anchor = 17, pos = ROWS - 1;
    int32_t drafts[ENG_BLOCK_MAX];
    float confidence[ENG_BLOCK_MAX];
    bool wrong[STEPS];
    eng_options o = options_of("native-packed", ENG_MODE_EAGER, 1, "exact");
    eng_fault f;
    eng_engine *g;
    err e = { 0 };
    (void)state;
    assert_int_equal(eng_fault_parse("unstable@x0:step=draft", &f, NULL), ERR_OK);
    o.fault = &f;
    if (eng_open(weights, &o, 1, ENG_LEVEL_DEEP, true, &g, &e) != ERR_OK) fail_msg("%s", e.msg);
    assert_int_equal(eng_insert(g, slot, taps, positions, ROWS, NULL, NULL), ERR_OK);
    for (int i = 0; i < STEPS; i++) {
        int64_t before = eng_fault_changed(&f);
        if (eng_draft(g, 1, &slot, &anchor, &pos, 1, drafts, confidence, NULL, &e) != ERR_OK) fail_msg("%s", e.msg);
        wrong[i] = eng_fault_changed(&f) > before;
    }
    eng_close(g);
    for (int n = 1; n <= STEPS / 2; n++) /* a run of n steps, and another one */
        if (memcmp(wrong, wrong + n, (size_t)n * sizeof *wrong) == 0) fail_msg("two runs of %d steps are the same", n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_has_an_op),
        cmocka_unit_test(every_kind_changes_its_op_and_nothing_before_it),
        cmocka_unit_test(and_so_planned_on_two_ranks),
        cmocka_unit_test(and_so_of_expanded_weights),
        cmocka_unit_test(and_so_in_double),
        cmocka_unit_test(and_so_of_exl3_weights),
        cmocka_unit_test(without_a_fault_the_bound_list_is_plain),
        cmocka_unit_test(an_unarmed_fault_changes_nothing),
        cmocka_unit_test(a_fault_of_one_slot_leaves_the_other_alone),
        cmocka_unit_test(bad_words_are_refused_by_name),
        cmocka_unit_test(a_fault_that_cannot_be_planted_is_refused),
        cmocka_unit_test(json_says_what_was_chosen),
        cmocka_unit_test(a_fault_comes_back_from_json),
        cmocka_unit_test(a_value_stands_for_its_op),
        cmocka_unit_test(an_unstable_op_has_no_period),
    };
    return cmocka_run_group_tests(tests, make_model, drop_model);
}
