/* The engine on a tiny checkpoint: the same bits eager and planned, alone and in a batch, before and after another request;
 * nothing allocated inside a step; wrong requests refused without a trace. */
#include "engine/engine.h"

#include "base/hot.h"
#include "base/mem.h"
#include "engine/synth.h"
#include "tests/support/alloc_guard.h"

#include <setjmp.h>
#include <stdarg.h>
#include <unistd.h>
#include <cmocka.h>

enum { SLOTS = 4, ROWS_MAX = 300 };

static eng_weights *weights;
static eng_config config;
static bf16 *taps; /* [ROWS_MAX, n_taps * dim] */
static int32_t positions[ROWS_MAX];

static int make_model(void **state)
{
    (void)state;
    err e = { 0 };
    eng_synth_report report;
    char *folder = mem_strdup("model-XXXXXX");
    assert_non_null(mkdtemp(folder));
    assert_true(eng_config_preset("tiny", &config));
    setenv("XDG_CACHE_HOME", folder, 1);
    if (eng_synth_checkpoint(folder, &config, 7, true, &report, &e) != ERR_OK) fail_msg("%s", e.msg);
    if (eng_weights_open(folder, true, &weights, &e) != ERR_OK) fail_msg("%s", e.msg);
    free(folder);
    size_t n = (size_t)ROWS_MAX * (size_t)config.n_taps * (size_t)config.dim;
    taps = mem_alloc(n, sizeof *taps);
    uint32_t seed = 12345;
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        taps[i] = bf16_from_f32(((float)(seed >> 8) / 8388608.0f - 1) * (i % 97 == 0 ? 250000.0f : 40.0f));
    }
    for (int32_t i = 0; i < ROWS_MAX; i++) positions[i] = i;
    return 0;
}

static int drop_model(void **state)
{
    (void)state;
    eng_weights_close(weights);
    free(taps);
    return 0;
}

static eng_engine *open_arm(const char *arm, eng_mode mode, int32_t tp, eng_level retain)
{
    eng_option_words words = { .arm = arm, .mode = eng_mode_name(mode), .tp = tp };
    eng_options o;
    eng_engine *g;
    err e = { 0 };
    if (eng_options_parse(&words, 0, &o, &e) != ERR_OK) fail_msg("%s", e.msg);
    if (eng_open(weights, &o, SLOTS, retain, true, &g, &e) != ERR_OK) fail_msg("%s", e.msg);
    return g;
}

static void insert(eng_engine *g, int32_t slot, int32_t first, int32_t n)
{
    err e = { 0 };
    int64_t width = (int64_t)config.n_taps * config.dim;
    if (eng_insert(g, slot, taps + first * width, positions + first, n, NULL, &e) != ERR_OK) fail_msg("%s", e.msg);
}

typedef struct outcome { int32_t drafts[SLOTS * ENG_BLOCK_MAX]; float confidence[SLOTS * ENG_BLOCK_MAX]; } outcome;

static outcome draft(eng_engine *g, int32_t batch, const int32_t *slots, int32_t n_out, const eng_tap *tap)
{
    outcome o = { 0 };
    err e = { 0 };
    int32_t anchors[SLOTS], pos[SLOTS];
    for (int32_t b = 0; b < batch; b++) {
        anchors[b] = 17 * (slots[b] + 1);
        pos[b] = eng_slot_last(g, slots[b]);
    }
    if (eng_draft(g, batch, slots, anchors, pos, n_out, o.drafts, o.confidence, tap, &e) != ERR_OK) fail_msg("%s", e.msg);
    return o;
}

/* Four slots at the edges of the window: p = 1, 126, 127 and 299. */
static void fill(eng_engine *g)
{
    insert(g, 0, 0, 2);
    insert(g, 1, 0, 127);
    insert(g, 2, 0, 128);
    insert(g, 3, 0, 290);
    insert(g, 3, 290, 10);
}

static const int32_t ALL[SLOTS] = { 0, 1, 2, 3 };

static void eager_and_planned_give_the_same_bits(void **state)
{
    (void)state;
    const char *arms[] = { "mirror", "mirror64", "native-packed", "native-expanded" };
    for (size_t a = 0; a < COUNT_OF(arms); a++)
        for (int32_t tp = 1; tp <= (a < 2 ? 1 : 2); tp++) {
            eng_engine *x = open_arm(arms[a], ENG_MODE_EAGER, tp, ENG_LEVEL_IO);
            eng_engine *y = open_arm(arms[a], ENG_MODE_GRAPH, tp, ENG_LEVEL_IO);
            fill(x);
            fill(y);
            for (int32_t n_out = 4; n_out <= 5; n_out++) {
                outcome p = draft(x, 4, ALL, n_out, NULL), q = draft(y, 4, ALL, n_out, NULL);
                assert_memory_equal(&p, &q, sizeof p);
            }
            eng_close(x);
            eng_close(y);
        }
}

/* Replays A, B, A: the second A must not see B, and a slot alone must equal itself in a batch. */
static void a_step_depends_on_its_slot_alone(void **state)
{
    (void)state;
    eng_engine *g = open_arm("native-packed", ENG_MODE_GRAPH, 2, ENG_LEVEL_IO);
    fill(g);
    outcome all = draft(g, 4, ALL, 5, NULL);
    for (int32_t s = 0; s < SLOTS; s++) {
        outcome one = draft(g, 1, &s, 5, NULL);
        assert_memory_equal(one.drafts, all.drafts + s * 5, 5 * sizeof(int32_t));
        assert_memory_equal(one.confidence, all.confidence + s * 5, 5 * sizeof(float));
    }
    const int32_t swapped[2] = { 3, 1 };
    outcome two = draft(g, 2, swapped, 5, NULL);
    assert_memory_equal(two.drafts, all.drafts + 15, 5 * sizeof(int32_t));
    outcome again = draft(g, 4, ALL, 5, NULL);
    assert_memory_equal(&all, &again, sizeof all);
    eng_close(g);
}

/* Five outputs of which four are asked for: the first four are the same. */
static void fewer_outputs_are_a_prefix(void **state)
{
    (void)state;
    eng_engine *g = open_arm("native-packed", ENG_MODE_EAGER, 1, ENG_LEVEL_IO);
    fill(g);
    const int32_t s = 3;
    outcome five = draft(g, 1, &s, 5, NULL);
    for (int32_t n = 1; n <= 4; n++) {
        outcome fewer = draft(g, 1, &s, n, NULL);
        assert_memory_equal(fewer.drafts, five.drafts, sizeof(int32_t) * (size_t)n);
    }
    eng_close(g);
}

/* A stage's window; on the CPU it stays valid while others are asked for. */
static fmt_tensor window_of(eng_engine *g, int32_t slot, int32_t stage)
{
    fmt_tensor t;
    err e;
    if (eng_window(g, slot, stage, &t, &e) != ERR_OK) fail_msg("%s", e.msg);
    return t;
}

static void windows_do_not_depend_on_how_rows_were_inserted(void **state)
{
    (void)state;
    eng_engine *g = open_arm("mirror", ENG_MODE_EAGER, 1, ENG_LEVEL_IO);
    insert(g, 0, 0, 300);
    for (int32_t at = 0, n = 1; at < 300; at += n, n = n % 7 + 1) insert(g, 1, at, at + n <= 300 ? n : 300 - at);
    for (int32_t s = 0; s < config.n_stages; s++) {
        fmt_tensor a = window_of(g, 0, s), b = window_of(g, 1, s);
        assert_int_equal(a.shape[0], config.window);
        assert_memory_equal(a.data, b.data, fmt_tensor_bytes(&a));
    }
    eng_close(g);
}

static void a_released_slot_leaves_nothing_to_the_next_request(void **state)
{
    (void)state;
    eng_engine *g = open_arm("native-packed", ENG_MODE_EAGER, 1, ENG_LEVEL_IO);
    eng_engine *fresh = open_arm("native-packed", ENG_MODE_EAGER, 1, ENG_LEVEL_IO);
    const int32_t s = 2;
    insert(g, s, 0, 300);
    draft(g, 1, &s, 5, NULL);
    eng_release(g, s);
    assert_int_equal(eng_slot_last(g, s), -1);
    insert(g, s, 0, 3);
    insert(fresh, s, 0, 3);
    outcome a = draft(g, 1, &s, 5, NULL), b = draft(fresh, 1, &s, 5, NULL);
    assert_memory_equal(&a, &b, sizeof a);
    eng_close(g);
    eng_close(fresh);
}

static void a_step_allocates_nothing(void **state)
{
    (void)state;
    assert_true(alloc_guard_other_calls > 0); /* the guard is in place */
    for (int mode = 0; mode < 2; mode++)
        for (int32_t tp = 1; tp <= 2; tp++) {
            eng_engine *g = open_arm("native-packed", (eng_mode)mode, tp, ENG_LEVEL_V1);
            int64_t before = alloc_guard_hot_calls;
            fill(g);
            draft(g, 4, ALL, 5, NULL);
            assert_int_equal(alloc_guard_hot_calls, before);
            eng_close(g);
        }
}

static void the_guard_sees_an_allocation(void **state)
{
    (void)state;
    int64_t before = alloc_guard_hot_calls;
    hot_begin();
    __asm__ volatile("" ::: "memory"); /* the compiler may think that malloc reads no globals */
    void *volatile p = malloc(8);
    __asm__ volatile("" ::: "memory");
    hot_end();
    free(p);
    assert_int_equal(alloc_guard_hot_calls, before + 1);
}

typedef struct seen { int32_t n[2]; char last[2][40]; bool ordered; const eng_program *program; int32_t at[2]; } seen;

static void watch(void *ctx, const eng_site *site, const fmt_tensor *t)
{
    seen *s = ctx;
    const eng_value *v = &site->program->value[site->value];
    if (v->producer < s->at[site->rank] || !t->data || v->level > ENG_LEVEL_DEEP) s->ordered = false;
    s->at[site->rank] = v->producer;
    s->n[site->rank]++;
}

static void taps_show_every_value_once_in_order(void **state)
{
    (void)state;
    for (int mode = 0; mode < 2; mode++) {
        eng_engine *g = open_arm("native-packed", (eng_mode)mode, 2, ENG_LEVEL_DEEP);
        fill(g);
        seen s = { .ordered = true };
        eng_tap tap = { watch, &s };
        draft(g, 4, ALL, 5, &tap);
        const eng_program *p = eng_program_of(g, ENG_STEP_DRAFT);
        int32_t wanted = 0;
        for (int32_t v = 0; v < p->n_values; v++)
            wanted += p->value[v].producer >= 0 && p->value[v].level <= ENG_LEVEL_DEEP && !p->value[v].state;
        assert_int_equal(s.n[0], wanted);
        assert_int_equal(s.n[1], wanted);
        assert_true(s.ordered);
        eng_close(g);
    }
}

static void wrong_requests_are_refused_and_change_nothing(void **state)
{
    (void)state;
    err e = { 0 };
    eng_engine *g = open_arm("native-packed", ENG_MODE_EAGER, 1, ENG_LEVEL_IO);
    int32_t s = 0, anchor = 5, pos = 0, drafts[ENG_BLOCK_MAX];
    float confidence[ENG_BLOCK_MAX];
    /* before any insert */
    assert_int_equal(eng_draft(g, 1, &s, &anchor, &pos, 5, drafts, confidence, NULL, &e), ERR_INPUT);
    insert(g, 0, 0, 10);
    const int32_t gap[] = { 11 }, back[] = { 9 }, negative[] = { -1 };
    assert_int_equal(eng_insert(g, 0, taps, gap, 1, NULL, &e), ERR_INPUT);
    assert_int_equal(eng_insert(g, 0, taps, back, 1, NULL, &e), ERR_INPUT);
    assert_int_equal(eng_insert(g, 1, taps, negative, 1, NULL, &e), ERR_INPUT);
    assert_int_equal(eng_insert(g, SLOTS, taps, positions, 1, NULL, &e), ERR_INPUT);
    bf16 keep = taps[3];
    taps[3] = 0x7f80; /* +inf */
    assert_int_equal(eng_insert(g, 1, taps, positions, 1, NULL, &e), ERR_INPUT);
    assert_non_null(strstr(e.msg, "not finite"));
    taps[3] = keep;
    assert_int_equal(eng_slot_last(g, 0), 9);
    assert_int_equal(eng_slot_last(g, 1), -1);
    pos = 8;
    assert_int_equal(eng_draft(g, 1, &s, &anchor, &pos, 5, drafts, confidence, NULL, &e), ERR_INPUT); /* not the last */
    pos = 9;
    anchor = config.vocab;
    assert_int_equal(eng_draft(g, 1, &s, &anchor, &pos, 5, drafts, confidence, NULL, &e), ERR_INPUT);
    anchor = 5;
    assert_int_equal(eng_draft(g, 1, &s, &anchor, &pos, 6, drafts, confidence, NULL, &e), ERR_INPUT);
    const int32_t late[] = { 40 }, slot1 = 1, late_pos = 40; /* rows 0..39 were never there */
    assert_int_equal(eng_insert(g, 1, taps, late, 1, NULL, &e), ERR_OK);
    assert_int_equal(eng_draft(g, 1, &slot1, &anchor, &late_pos, 5, drafts, confidence, NULL, &e), ERR_INPUT);
    assert_int_equal(eng_draft(g, 1, &s, &anchor, &pos, 5, drafts, confidence, NULL, &e), ERR_OK);
    eng_close(g);
}

/* A long prompt needs only its last W rows: starting at W more than enough gives the same draft. */
static void a_prompt_may_begin_at_its_last_window(void **state)
{
    (void)state;
    eng_engine *g = open_arm("mirror", ENG_MODE_EAGER, 1, ENG_LEVEL_IO);
    insert(g, 0, 0, 300);
    insert(g, 1, 300 - config.window, config.window);
    const int32_t one = 0, two = 1;
    int32_t anchor = 9, pos = 299;
    outcome a = { 0 }, b = { 0 };
    err e = { 0 };
    assert_int_equal(eng_draft(g, 1, &one, &anchor, &pos, 5, a.drafts, a.confidence, NULL, &e), ERR_OK);
    assert_int_equal(eng_draft(g, 1, &two, &anchor, &pos, 5, b.drafts, b.confidence, NULL, &e), ERR_OK);
    assert_memory_equal(&a, &b, sizeof a);
    eng_close(g);
}

static void main_x_given_equals_main_x_made(void **state)
{
    (void)state;
    err e = { 0 };
    eng_bench *b;
    eng_option_words words = { .arm = "mirror" };
    eng_options o;
    assert_int_equal(eng_options_parse(&words, 0, &o, &e), ERR_OK);
    assert_int_equal(eng_bench_open(weights, &o, ENG_STEP_INSERT, 20, 1, 1, &b, &e), ERR_OK);
    const eng_program *p = eng_bench_program(b);
    int32_t v = eng_program_find_value(p, "main_x");
    memcpy(eng_bench_value(b, eng_program_find_value(p, "taps")), taps,
           sizeof(bf16) * 20 * (size_t)config.n_taps * (size_t)config.dim);
    eng_bench_positions(b, positions, NULL);
    assert_int_equal(eng_bench_run(b, 0, p->value[v].producer, &e), ERR_OK);
    eng_engine *g = open_arm("mirror", ENG_MODE_EAGER, 1, ENG_LEVEL_IO);
    insert(g, 0, 0, 20);
    assert_int_equal(eng_insert_main_x(g, 1, eng_bench_value(b, v), positions, 20, NULL, &e), ERR_OK);
    for (int32_t s = 0; s < config.n_stages; s++) {
        fmt_tensor x = window_of(g, 0, s), y = window_of(g, 1, s);
        assert_memory_equal(x.data, y.data, fmt_tensor_bytes(&x));
    }
    insert(g, 1, 20, 3); /* from taps again */
    insert(g, 0, 20, 3);
    fmt_tensor x = window_of(g, 0, 0), y = window_of(g, 1, 0);
    assert_memory_equal(x.data, y.data, fmt_tensor_bytes(&x));
    eng_close(g);
    eng_bench_close(b);
}

enum { TAP_ROWS = 128 };

/* main_proj and main_norm of the first rows, [TAP_ROWS, dim]. */
static bf16 *main_x_of(const char *arm, const char *acc)
{
    err e = { 0 };
    eng_bench *b;
    eng_option_words words = { .arm = arm, .acc = acc };
    eng_options o;
    size_t n = TAP_ROWS * (size_t)config.dim;
    assert_int_equal(eng_options_parse(&words, 0, &o, &e), ERR_OK);
    assert_int_equal(eng_bench_open(weights, &o, ENG_STEP_INSERT, TAP_ROWS, 1, 1, &b, &e), ERR_OK);
    const eng_program *p = eng_bench_program(b);
    int32_t v = eng_program_find_value(p, "main_x");
    size_t n_taps = TAP_ROWS * (size_t)config.n_taps * (size_t)config.dim;
    memcpy(eng_bench_value(b, eng_program_find_value(p, "taps")), taps, n_taps * sizeof *taps);
    assert_int_equal(eng_bench_run(b, 0, p->value[v].producer, &e), ERR_OK);
    bf16 *main_x = mem_alloc(n, sizeof *main_x);
    assert_non_null(main_x);
    memcpy(main_x, eng_bench_value(b, v), n * sizeof *main_x);
    eng_bench_close(b);
    return main_x;
}

/* Large tap columns: the order of an f32 sum shows, and only mirror has one. */
static void native_arms_sum_the_taps_in_double_and_mirror_does_not(void **state)
{
    (void)state;
    static const char *const NATIVE[][2] = { { "native-packed", NULL }, { "native-packed", "f64" },
                                             { "native-expanded", NULL }, { "native-hybrid", NULL } };
    size_t bytes = TAP_ROWS * (size_t)config.dim * sizeof(bf16);
    bf16 *exact = main_x_of("mirror64", NULL), *blocked = main_x_of("mirror", NULL);
    assert_memory_not_equal(exact, blocked, bytes);
    for (size_t i = 0; i < COUNT_OF(NATIVE); i++) {
        bf16 *native = main_x_of(NATIVE[i][0], NATIVE[i][1]);
        assert_memory_equal(exact, native, bytes);
        free(native);
    }
    free(exact);
    free(blocked);
}

static void prewarm_changes_nothing(void **state)
{
    (void)state;
    const int32_t slot = 1;
    err e = { 0 };
    int32_t n = -1;
    eng_engine *g = open_arm("native-packed", ENG_MODE_GRAPH, 2, ENG_LEVEL_IO);
    insert(g, slot, 0, 5);
    outcome before = draft(g, 1, &slot, 5, NULL);
    assert_int_equal(eng_prewarm(g, ENG_BATCH_MAX, ENG_INSERT_ROWS_MAX, &n, &e), ERR_OK);
    assert_int_equal(n, 0); /* the CPU has nothing to prepare */
    outcome after = draft(g, 1, &slot, 5, NULL);
    assert_memory_equal(&before, &after, sizeof before);
    assert_int_equal(eng_prewarm(g, -1, 0, NULL, &e), ERR_ARG);
    assert_int_equal(eng_prewarm(g, 0, ENG_INSERT_ROWS_MAX + 1, NULL, &e), ERR_ARG);
    eng_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(eager_and_planned_give_the_same_bits),
        cmocka_unit_test(a_step_depends_on_its_slot_alone),
        cmocka_unit_test(fewer_outputs_are_a_prefix),
        cmocka_unit_test(windows_do_not_depend_on_how_rows_were_inserted),
        cmocka_unit_test(a_released_slot_leaves_nothing_to_the_next_request),
        cmocka_unit_test(a_step_allocates_nothing),
        cmocka_unit_test(the_guard_sees_an_allocation),
        cmocka_unit_test(taps_show_every_value_once_in_order),
        cmocka_unit_test(wrong_requests_are_refused_and_change_nothing),
        cmocka_unit_test(a_prompt_may_begin_at_its_last_window),
        cmocka_unit_test(main_x_given_equals_main_x_made),
        cmocka_unit_test(native_arms_sum_the_taps_in_double_and_mirror_does_not),
        cmocka_unit_test(prewarm_changes_nothing),
    };
    return cmocka_run_group_tests(tests, make_model, drop_model);
}
