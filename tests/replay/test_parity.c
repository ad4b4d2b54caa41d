#include "replay_help.h"

#include "engine/fault.h"
#include "engine/poison.h"
#include "replay/first.h"
#include "replay/parity.h"
#include "replay/replay.h"
#include "tests/support/slow.h"

static fmt_tape *source;

static int setup(void **state)
{
    if (run_setup(state) != 0) return -1;
    eng_options o = run_options("native-packed", 2, "eager");
    source = record("source.tape", &o, ENG_LEVEL_DEEP);
    return 0;
}

static int teardown(void **state)
{
    fmt_tape_close(source);
    return run_teardown(state);
}

/* ---- a parity run of a few columns ---- */

typedef struct bench {
    rpl_column column[8];
    int32_t n;
    rpl_parity parity;
} bench;

static void add_tape(bench *b)
{
    rpl_column *c = &b->column[b->n++];
    *c = (rpl_column){ .name = "tape", .tape = true };
    c->known = rpl_parity_recorded(source, 1, &c->o);
    assert_true(c->known);
}

static void add(bench *b, const char *arm, int64_t tp, const char *mode, eng_fault *fault)
{
    rpl_column *c = &b->column[b->n++];
    *c = (rpl_column){ .o = run_options(arm, tp, mode) };
    c->o.fault = fault;
    rpl_column_name(&c->o, c->name);
}

static void compare(bench *b, int32_t repeat, bool poison)
{
    const rpl_parity_options o = { .column = b->column, .n_columns = b->n, .repeat = repeat, .poison = poison,
                                   .threads = 1, .quiet = true };
    OK(rpl_parity_run(source, shared_run.weights, &o, &b->parity, e));
}

static eng_fault planted(const char *text)
{
    eng_fault f;
    OK(eng_fault_parse(text, &f, e));
    return f;
}

static const rpl_row *row_at(const bench *b, int64_t i)
{
    assert_true(i >= 0);
    return rpl_layout_at(b->parity.layout, i);
}

static int64_t first_row(const bench *b, const char *name)
{
    for (int64_t i = 0; i < b->parity.n_rows; i++)
        if (strcmp(rpl_layout_at(b->parity.layout, i)->name, name) == 0) return i;
    fail_msg("no value %s", name);
    return -1;
}

#define PATTERN(b, row, text)                                                                             \
    do {                                                                                                  \
        char buf_[RPL_PATTERN_TEXT];                                                                      \
        if (!strstr(rpl_parity_pattern(&(b).parity, row, buf_), text)) fail_msg("'%s' lacks '%s'", buf_, text); \
    } while (0)

static void every_way_to_run_agrees_or_is_explained(void **state)
{
    bench b = { 0 };
    (void)state;
    add_tape(&b);
    add(&b, "native-packed", 1, "eager", NULL);
    add(&b, "native-packed", 1, "graph", NULL);
    add(&b, "native-packed", 2, "eager", NULL);
    add(&b, "native-packed", 2, "graph", NULL);
    add(&b, "native-expanded", 1, "eager", NULL);
    add(&b, "mirror", 1, "eager", NULL);
    add(&b, "mirror64", 1, "eager", NULL);
    compare(&b, SLOW ? 2 : 3, true);
    assert_string_equal(rpl_parity_verdict(&b.parity), "PASS");
    assert_true(b.parity.recorded_run);
    assert_int_equal(b.parity.n_pairs, 3); /* the tape and its run, and two of eager and graph */
    for (int32_t k = 0; k < b.parity.n_pairs; k++) assert_true(b.parity.pair[k].n == b.parity.n_rows);
    assert_int_equal(b.parity.reference, 7);
    assert_true(b.column[1].n[RPL_PARITY_FLIP] > 0 && b.parity.n_judged > 0);
    assert_true(b.column[7].n[RPL_PARITY_EQUAL] == b.parity.n_rows);
    json_t *j = rpl_parity_json(&(rpl_parity_report){ &b.parity, source, { 1, 1, 3, 3, 3, false, false }, 3, 0, false });
    assert_int_equal(json_array_size(json_object_get(j, "columns")), 8);
    assert_string_equal(json_string_value(json_object_get(j, "verdict")), "PASS");
    json_decref(j);
    rpl_parity_fini(&b.parity);
}

/* A fault in one column, and what is said of it. */
static void a_column_that_goes_wrong_is_named(void **state)
{
    static const struct { const char *fault, *mode; int64_t tp; const char *value, *pattern; } CASES[] = {
        { "nan@s1.attn.qr", "graph", 1, "s1.attn.qr", "only graph differs" },
        { "row-swap@s0.attn_out:step=draft", "graph", 1, "s0.attn_out", "only graph differs" },
        { "rank-differs@s0.ffn_out", "eager", 2, "s0.ffn_out", "only rank 1 differs (native-packed eager tp2)" },
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        bench b = { 0 };
        eng_fault f = planted(CASES[i].fault);
        bool ranks = CASES[i].tp > 1;
        add(&b, "native-packed", ranks ? 2 : 1, "eager", ranks ? &f : NULL);
        add(&b, "native-packed", ranks ? 2 : 1, "graph", ranks ? NULL : &f);
        add(&b, "mirror", 1, "eager", NULL);
        compare(&b, 1, false);
        const rpl_column *wrong = &b.column[ranks ? 0 : 1], *right = &b.column[ranks ? 1 : 0];
        assert_string_equal(rpl_parity_verdict(&b.parity), "FAIL");
        assert_true(b.parity.pair[0].n_differ > 0);
        if (!ranks) {
            assert_string_equal(row_at(&b, b.parity.pair[0].first)->name, CASES[i].value);
            assert_true(wrong->n[RPL_PARITY_DIFFERS] > 0);
            assert_string_equal(wrong->origin.output[0], CASES[i].value);
        } else assert_string_equal(row_at(&b, wrong->first_ranks_differ)->name, CASES[i].value);
        PATTERN(b, first_row(&b, CASES[i].value), CASES[i].pattern);
        assert_int_equal(right->n[RPL_PARITY_DIFFERS], 0);
        rpl_parity_fini(&b.parity);
    }
}

/* Round 0 without its last value, which is all that round 1 has; later rounds are one later. */
typedef struct moved { size_t i, last; } moved;

static bool move_last_value(void *ctx, fmt_tape_record *r, uint8_t *data)
{
    moved *m = ctx;
    (void)data;
    r->key.round += r->key.round > 0 || m->i == m->last;
    m->i++;
    return true;
}

static void a_round_is_chosen_by_its_number_whatever_has_no_inputs(void **state)
{
    static const bool ONLY[8] = { [2] = true };
    size_t first, n;
    bench b = { 0 };
    (void)state;
    fmt_tape_round_span(source, 0, &first, &n);
    moved m = { .last = first + n - 1 };
    fmt_tape *t = copy_tape(source, "moved.tape", move_last_value, &m);
    assert_int_equal(fmt_tape_rounds(t, &(const int32_t *){ NULL }), 5);
    add(&b, "native-packed", 1, "eager", NULL);
    const rpl_parity_options o = { .column = b.column, .n_columns = b.n, .repeat = 1, .only = ONLY, .threads = 1,
                                   .quiet = true };
    OK(rpl_parity_run(t, shared_run.weights, &o, &b.parity, e));
    assert_true(b.parity.n_rows > 0);
    assert_int_equal(b.parity.n_rounds_wanted, 1);
    assert_int_equal(b.parity.n_rounds_all, 4);
    for (int64_t i = 0; i < b.parity.n_rows; i++) assert_int_equal(row_at(&b, i)->round, 2);
    rpl_parity_fini(&b.parity);
    fmt_tape_close(t);
}

static void a_value_that_cannot_be_read_is_no_pass(void **state)
{
    bench b = { 0 };
    (void)state;
    fmt_tape *t = lose_value(source, "1/-1/s1.attn.q");
    add_tape(&b);
    add(&b, "mirror64", 1, "eager", NULL);
    const rpl_parity_options o = { .column = b.column, .n_columns = b.n, .repeat = 1, .threads = 1, .quiet = true };
    OK(rpl_parity_run(t, shared_run.weights, &o, &b.parity, e));
    assert_true(b.parity.damaged && b.parity.n_judged > 0);
    assert_null(rpl_parity_verdict(&b.parity));
    rpl_parity_fini(&b.parity);
    fmt_tape_close(t);
}

/* A, B, A: what one run leaves behind must not reach the next. */
static void a_column_that_differs_from_itself_is_unstable(void **state)
{
    bench b = { 0 };
    eng_fault f = planted("stale@s0.attn.kv:round=0");
    (void)state;
    add(&b, "native-packed", 1, "eager", &f);
    add(&b, "native-packed", 1, "graph", NULL);
    compare(&b, 3, false);
    assert_string_equal(rpl_parity_verdict(&b.parity), "FAIL");
    assert_true(b.column[0].n_unstable > 0 && b.column[1].n_unstable == 0);
    assert_string_equal(row_at(&b, b.column[0].first_unstable)->name, "s0.attn.kv");
    PATTERN(b, b.column[0].first_unstable, "unstable: differs from itself (native-packed eager tp1)");
    rpl_parity_fini(&b.parity);
}

static void a_read_of_unwritten_memory_is_named(void **state)
{
    static const char *const OPS[] = { "s0.attn.qr", "s1.ffn.scores", "s0.attn.o", "head.logits" };
    static const char *const MODES[] = { "eager", "graph" };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(OPS) * COUNT_OF(MODES); i += SLOW ? 3 : 1) {
        char text[80];
        bench b = { 0 };
        snprintf(text, sizeof text, "unwritten-held@%s", OPS[i / 2]);
        eng_fault f = planted(text);
        add(&b, "native-packed", 1, MODES[i % 2], &f);
        compare(&b, 1, true);
        assert_string_equal(rpl_parity_verdict(&b.parity), "FAIL");
        assert_true(b.column[0].n_poisoned > 0);
        if (strcmp(row_at(&b, b.column[0].first_poisoned)->op, OPS[i / 2]) != 0)
            fail_msg("%s %s: found %s", OPS[i / 2], MODES[i % 2], row_at(&b, b.column[0].first_poisoned)->op);
        rpl_parity_fini(&b.parity);
    }
}

/* The controls of a column name the cause of its first origin. */
static void a_cause_that_one_run_does_not_show_is_named(void **state)
{
    static const char *const FAULTS[][2] = {
        { "unwritten-held@s1.attn_out", "unwritten: " }, { "unstable@s1.attn_out", "unstable: " },
        { "norm-sum@s1.attn.norm", "wrong function: " },
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(FAULTS); i++) {
        bench b = { 0 };
        eng_fault f = planted(FAULTS[i][0]);
        add(&b, "native-packed", 1, "eager", &f);
        add(&b, "native-packed", 1, "graph", NULL);
        compare(&b, 2, true);
        const char *cause = b.parity.column[0].origin.cause;
        if (strncmp(cause, FAULTS[i][1], strlen(FAULTS[i][1])) != 0) fail_msg("%s: found '%s'", FAULTS[i][0], cause);
        assert_string_equal(b.parity.column[1].origin.op, "");
        rpl_parity_fini(&b.parity);
    }
}

static void poison_is_what_it_says(void **state)
{
    uint32_t word[2] = { 7, 7 };
    (void)state;
    eng_poison_fill(1, FMT_DTYPE_BF16, word, sizeof word);
    for (int i = 0; i < 4; i++) {
        uint16_t half = ((const uint16_t *)word)[i];
        assert_true((half & 0x7f80) == 0x7f80 && (half & 0x7f) != 0 && !(half & 0x40)); /* NaN, signalling */
    }
    assert_true((word[0] & 0x7fffffff) > 0x7f800000 && !(word[0] & 0x400000));
    eng_poison_fill(2, FMT_DTYPE_F32, word, sizeof word);
    assert_true(f32_from_bits(word[1]) > 8e8f && f32_from_bits(word[1]) < 9e8f);
    eng_poison_fill(2, FMT_DTYPE_I32, word, sizeof word);
    assert_int_equal(word[0], 2);
    eng_poison_fill(0, FMT_DTYPE_F32, word, sizeof word);
    assert_int_equal(word[0], 0);
}

/* ---- the conditions under which a step must give the same bits ---- */

typedef struct drafted {
    int32_t tokens[ENG_BATCH_MAX * ENG_BLOCK_MAX];
    float confidence[ENG_BATCH_MAX * ENG_BLOCK_MAX];
} drafted;

static void fill_rows(bf16 *x, int64_t n, uint32_t seed)
{
    for (int64_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = bf16_from_f32((float)(int32_t)(seed >> 8 & 0xffff) / 32768.0f - 1.0f);
    }
}

static eng_engine *open_engine(const char *mode, int64_t tp, int32_t slots)
{
    eng_options o = run_options("native-packed", tp, mode);
    eng_engine *g;
    OK(eng_open(shared_run.weights, &o, slots, ENG_LEVEL_IO, true, &g, e));
    return g;
}

/* Rows of a request up to position last, which its number makes. */
static void fill_slot(eng_engine *g, int32_t slot, int32_t request, int32_t last)
{
    const eng_config *c = eng_config_of(g);
    int32_t first = last - c->window + 1 > 0 ? last - c->window + 1 : 0, rows = last - first + 1;
    int64_t width = (int64_t)c->n_taps * c->dim;
    bf16 *taps = mem_alloc((size_t)(rows * width), sizeof *taps);
    int32_t *pos = mem_alloc((size_t)rows, sizeof *pos);
    for (int32_t i = 0; i < rows; i++) {
        pos[i] = first + i;
        fill_rows(taps + i * width, width, (uint32_t)(request * 1000 + first + i + 1)); /* the same row at a position */
    }
    eng_release(g, slot);
    OK(eng_insert(g, slot, taps, pos, rows, NULL, e));
    free(taps);
    free(pos);
}

static void draft(eng_engine *g, int32_t batch, const int32_t *slots, const int32_t *anchors, int32_t n_out, drafted *out)
{
    int32_t pos[ENG_BATCH_MAX];
    memset(out, 0, sizeof *out);
    for (int32_t b = 0; b < batch; b++) pos[b] = eng_slot_last(g, slots[b]);
    OK(eng_draft(g, batch, slots, anchors, pos, n_out, out->tokens, out->confidence, NULL, e));
}

#define SAME(a, b) assert_memory_equal(&(a), &(b), sizeof(drafted))

static void a_step_depends_on_its_slot_alone(void **state)
{
    static const char *const MODES[] = { "eager", "graph" };
    (void)state;
    for (size_t m = 0; m < 2; m++)
        for (int64_t tp = 1; tp <= 2; tp++) {
            eng_engine *g = open_engine(MODES[m], tp, 5);
            drafted a, b, again;
            fill_slot(g, 0, 1, 40);
            fill_slot(g, 1, 2, 90);
            fill_slot(g, 4, 1, 40);
            draft(g, 1, (int32_t[]){ 0 }, (int32_t[]){ 17 }, 5, &a);
            draft(g, 1, (int32_t[]){ 1 }, (int32_t[]){ 3 }, 5, &b); /* A, B, A */
            draft(g, 1, (int32_t[]){ 0 }, (int32_t[]){ 17 }, 5, &again);
            SAME(a, again);
            draft(g, 1, (int32_t[]){ 4 }, (int32_t[]){ 17 }, 5, &again); /* another slot */
            SAME(a, again);
            for (int place = 0; place < 2; place++) { /* in a batch, at either place, and alone after it: fewer live rows */
                const int32_t slots[] = { place, 1 - place }, anchors[] = { place ? 3 : 17, place ? 17 : 3 };
                draft(g, 2, slots, anchors, 5, &again);
                assert_memory_equal(again.tokens + 5 * place, a.tokens, 5 * sizeof(int32_t));
                assert_memory_equal(again.confidence + 5 * place, a.confidence, 5 * sizeof(float));
                draft(g, 1, (int32_t[]){ 1 }, (int32_t[]){ 3 }, 5, &again);
                SAME(b, again);
            }
            eng_close(g);
        }
}

static void eager_and_graph_agree_at_the_edge_of_the_window_and_at_every_depth(void **state)
{
    (void)state;
    for (int64_t tp = 1; tp <= 2; tp++) {
        eng_engine *eager = open_engine("eager", tp, 2), *graph = open_engine("graph", tp, 2);
        const int32_t AT[] = { 0, 126, 127, 128, 129 };
        for (size_t i = 0; i < COUNT_OF(AT); i++)
            for (int32_t n_out = 1; n_out <= eng_config_of(eager)->block; n_out++) {
                drafted a, b;
                fill_slot(eager, 0, 3, AT[i]);
                fill_slot(graph, 0, 3, AT[i]);
                draft(eager, 1, (int32_t[]){ 0 }, (int32_t[]){ 9 }, n_out, &a);
                draft(graph, 1, (int32_t[]){ 0 }, (int32_t[]){ 9 }, n_out, &b);
                SAME(a, b);
            }
        eng_close(eager);
        eng_close(graph);
    }
}

static void a_refused_step_leaves_no_trace(void **state)
{
    (void)state;
    eng_engine *g = open_engine("graph", 1, 2);
    drafted a, again;
    err e = { 0 };
    fill_slot(g, 0, 1, 60);
    draft(g, 1, (int32_t[]){ 0 }, (int32_t[]){ 17 }, 5, &a);
    assert_int_equal(eng_draft(g, 1, (int32_t[]){ 0 }, (int32_t[]){ -1 }, (int32_t[]){ 60 }, 5, again.tokens,
                               again.confidence, NULL, &e), ERR_INPUT);
    assert_int_equal(eng_draft(g, 1, (int32_t[]){ 0 }, (int32_t[]){ 17 }, (int32_t[]){ 61 }, 5, again.tokens,
                               again.confidence, NULL, &e), ERR_INPUT);
    draft(g, 1, (int32_t[]){ 0 }, (int32_t[]){ 17 }, 5, &again);
    SAME(a, again);
    eng_close(g);
}

/* ---- the first round that differs ---- */

enum { MANY = 40 }; /* the end-to-end test has 200 */

static void the_first_differing_round_of_many_is_found_by_few_checks(void **state)
{
    eng_traffic_report traffic;
    eng_script *short_script = shared_run.script;
    (void)state;
    OK(eng_traffic_write("long.safetensors", eng_weights_config(shared_run.weights), MANY, 2, 5, true, &traffic, e));
    OK(eng_script_open("long.safetensors", eng_weights_config(shared_run.weights), &shared_run.script, e));
    eng_options clean = run_options("native-packed", 1, "eager"), wrong = clean;
    fmt_tape *tape = record("long.tape", &clean, ENG_LEVEL_IO);
    static const struct { const char *fault, *value; int32_t round; bool state; } CASES[] = {
        { "row-swap@s0.main_kv:round=1", "s0.main_kv", 1, true },
        { "row-swap@s0.main_kv:round=27", "s0.main_kv", 27, true },
        { "nan@s1.attn.qr:round=0", "s1.attn.qr", 0, false },
        { "nan@s1.attn.qr:round=39", "s1.attn.qr", MANY - 1, false },
    };
    eng_fault f; /* wrong's, after the loop too */
    for (size_t i = 0; i < COUNT_OF(CASES); i += SLOW ? 3 : 1) {
        rpl_divergence d;
        f = planted(CASES[i].fault);
        wrong.fault = &f;
        OK(rpl_first_divergence(tape, shared_run.weights, &clean, &wrong, true, &d, e));
        assert_int_equal(d.round, CASES[i].round);
        assert_in_range(d.found.checks, 5, 6);
        assert_int_equal(d.found.state, CASES[i].state);
        assert_true(d.shown && d.alone);
        assert_string_equal(d.value, CASES[i].value);
        assert_int_equal(d.ruling, RPL_RULING_B_ILLEGAL);
        assert_int_equal(d.cls, RPL_CLASS_ORIGIN);
        print_message("round %d of %d: %d checks\n", d.round, d.n_rounds, d.found.checks);
    }
    rpl_divergence d; /* the tape itself, which holds drafts only */
    OK(rpl_first_divergence(tape, shared_run.weights, NULL, &clean, true, &d, e));
    assert_int_equal(d.round, -1);
    OK(rpl_first_divergence(tape, shared_run.weights, NULL, &wrong, true, &d, e));
    assert_int_equal(d.round, MANY - 1);
    eng_options exact = run_options("mirror64", 1, "eager"); /* other bits from the first op on, all of them legal */
    OK(rpl_first_divergence(tape, shared_run.weights, &exact, &clean, true, &d, e));
    assert_int_equal(d.ruling, RPL_RULING_NOISE);
    f = planted("nan@s1.attn.qr:round=0"); /* and one that is not */
    OK(rpl_first_divergence(tape, shared_run.weights, &exact, &wrong, true, &d, e));
    assert_int_equal(d.round, 0);
    assert_int_equal(d.ruling, RPL_RULING_B_ILLEGAL);
    assert_string_equal(d.value, "s1.attn.qr");
    fmt_tape_close(tape);
    eng_script_close(shared_run.script);
    shared_run.script = short_script;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_way_to_run_agrees_or_is_explained),
        cmocka_unit_test(a_column_that_goes_wrong_is_named),
        cmocka_unit_test(a_round_is_chosen_by_its_number_whatever_has_no_inputs),
        cmocka_unit_test(a_value_that_cannot_be_read_is_no_pass),
        cmocka_unit_test(a_column_that_differs_from_itself_is_unstable),
        cmocka_unit_test(a_read_of_unwritten_memory_is_named),
        cmocka_unit_test(a_cause_that_one_run_does_not_show_is_named),
        cmocka_unit_test(poison_is_what_it_says),
        cmocka_unit_test(a_step_depends_on_its_slot_alone),
        cmocka_unit_test(eager_and_graph_agree_at_the_edge_of_the_window_and_at_every_depth),
        cmocka_unit_test(a_refused_step_leaves_no_trace),
        cmocka_unit_test(the_first_differing_round_of_many_is_found_by_few_checks),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
