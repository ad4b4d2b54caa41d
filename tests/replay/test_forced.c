#include "replay_help.h"

#include "replay/forced.h"

static fmt_tape *source; /* deep, one rank, native-packed */
static eng_options packed;

static int setup(void **state)
{
    if (run_setup(state) != 0) return -1;
    packed = run_options("native-packed", 1, "eager");
    source = record("source.tape", &packed, ENG_LEVEL_DEEP);
    return 0;
}

static int teardown(void **state)
{
    fmt_tape_close(source);
    return run_teardown(state);
}

/* What a forced run of a whole tape gave. */
typedef struct outcome {
    int64_t n, n_differ, n_skipped;
    char first[64];  /* the first differing value: "round/slot/name" */
    char names[256]; /* distinct differing names of the first differing round */
    double worst_l2;
} outcome;

static outcome run_forced(const fmt_tape *t, const eng_options *o)
{
    rpl_forced *f;
    outcome out = { 0 };
    OK(rpl_forced_open(t, shared_run.weights, o, &f, e));
    for (int32_t i = 0; i < rpl_forced_rounds(f); i++) {
        const rpl_round *r;
        OK(rpl_forced_compare(f, i, NULL, &r, e));
        out.n += r->n_values;
        out.n_differ += r->n_differ;
        for (int32_t k = 0; k < r->n_values; k++) {
            const rpl_value *v = &r->value[k];
            if (v->cls == RPL_CLASS_EQUAL) continue;
            assert_int_equal(v->cls, RPL_CLASS_ORIGIN);
            if (v->m.rel_l2 > out.worst_l2) out.worst_l2 = v->m.rel_l2;
            if (!out.first[0]) snprintf(out.first, sizeof out.first, "%d/%d/%.40s", r->round, v->slot, v->name);
            if (atoi(out.first) == r->round && strlen(out.names) < 200) strcat(strcat(out.names, v->name), " ");
        }
    }
    rpl_forced_close(f);
    return out;
}

static outcome run_flipped(const char *at)
{
    flips f = { .at = { at } };
    fmt_tape *t = copy_tape(source, "flipped.tape", flip_bits, &f);
    assert_int_equal(f.n_done, 1);
    outcome out = run_forced(t, &packed);
    fmt_tape_close(t);
    return out;
}

/* Recorded values that an op made. */
static int64_t count_made(const fmt_tape *t)
{
    int64_t n = 0;
    for (size_t i = 0; i < fmt_tape_count(t); i++) {
        fmt_tape_record r;
        fmt_tape_at(t, i, &r);
        const char *name = r.key.name;
        n += r.key.rank == 0 && strncmp(name, "draft.", 6) != 0 && strcmp(name, "taps") != 0 && strcmp(name, "pos") != 0;
    }
    return n;
}

static void every_recorded_value_is_made_again_bit_for_bit(void **state)
{
    static const struct { const char *arm; int tp; const char *mode; } RUNS[] = {
        { "native-packed", 1, "eager" }, { "native-expanded", 1, "eager" }, { "mirror64", 1, "graph" },
        { "native-packed", 2, "eager" }, { "native-expanded", 2, "graph" }, /* sums in the ranks' parts */
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(RUNS); i++) {
        eng_options o = run_options(RUNS[i].arm, RUNS[i].tp, RUNS[i].mode);
        fmt_tape *t = record("own.tape", &o, ENG_LEVEL_DEEP);
        outcome out = run_forced(t, &o);
        assert_int_equal(out.n, count_made(t));
        assert_int_equal(out.n_differ, 0);
        fmt_tape_close(t);
    }
}

static void rounds_run_in_any_order(void **state)
{
    rpl_forced *f;
    (void)state;
    OK(rpl_forced_open(source, shared_run.weights, &packed, &f, e));
    for (int32_t i = rpl_forced_rounds(f) - 1; i >= 0; i--) {
        const rpl_round *r;
        OK(rpl_forced_compare(f, i, NULL, &r, e));
        assert_int_equal(r->n_differ, 0);
    }
    rpl_forced_close(f);
}

static void a_changed_value_and_its_readers_differ_and_no_more(void **state)
{
    (void)state;
    outcome out = run_flipped("1/-1/s1.attn.wo_a");
    assert_string_equal(out.first, "1/-1/s1.attn.wo_a");
    assert_true(out.n_differ >= 1 && out.n_differ <= 2); /* the flip may vanish in attn_out's rounding */
    out = run_flipped("1/-1/confidence");
    assert_string_equal(out.names, "confidence ");
    assert_int_equal(out.n_differ, 1);
}

static void a_changed_window_is_named_at_the_ring(void **state)
{
    (void)state;
    outcome out = run_flipped("2/0/s1.window");
    assert_string_equal(out.first, "2/0/s1.window");
    assert_int_equal(out.n_differ, 1); /* attention reads the rows, not the recorded window */
}

static void a_changed_row_shows_in_every_window_that_holds_it(void **state)
{
    (void)state;
    outcome out = run_flipped("0/0/s1.main_kv");
    assert_string_equal(out.first, "0/0/s1.main_kv");
    assert_true(out.n_differ >= 3);
}

static bool other_token(void *ctx, fmt_tape_record *r, uint8_t *data)
{
    (void)ctx;
    if (is_at(r, "1/-1/drafts")) put_u32(data, get_u32(data) ^ 1);
    return true;
}

static void later_tokens_are_made_under_the_recorded_ones(void **state)
{
    (void)state;
    fmt_tape *t = copy_tape(source, "drafts.tape", other_token, NULL);
    outcome out = run_forced(t, &packed);
    /* position 0 has the token against it, position 1 of the biased logits and of the confidence another prefix */
    assert_string_equal(out.first, "1/-1/head.biased");
    assert_string_equal(out.names, "head.biased drafts confidence ");
    assert_int_equal(out.n_differ, 3);
    fmt_tape_close(t);
}

static void ranks_differ_by_the_order_of_sums_only(void **state)
{
    eng_options o = run_options("native-packed", 2, "eager");
    (void)state;
    fmt_tape *t = record("two.tape", &o, ENG_LEVEL_DEEP);
    outcome out = run_forced(t, &packed);
    assert_int_equal(out.n, count_made(source));
    assert_true(out.n_differ > 0 && out.worst_l2 < 1e-2);
    fmt_tape_close(t);
}

static void v1_and_io_tapes_run_over_longer_chains(void **state)
{
    (void)state;
    fmt_tape *t = record("v1.tape", &packed, ENG_LEVEL_V1);
    outcome out = run_forced(t, &packed);
    assert_true(out.n > 50);
    assert_int_equal(out.n_differ, 0);
    fmt_tape_close(t);
    t = record("io.tape", &packed, ENG_LEVEL_IO); /* no rows and no windows: nothing to attend to */
    out = run_forced(t, &packed);
    assert_int_equal(out.n, 0);
    fmt_tape_close(t);
}

static bool no_rows(void *ctx, fmt_tape_record *r, uint8_t *data)
{
    (void)ctx, (void)data;
    return !strstr(r->key.name, ".main_kv");
}

static void recorded_windows_stand_in_for_missing_rows(void **state)
{
    (void)state;
    fmt_tape *t = copy_tape(source, "rows.tape", no_rows, NULL);
    outcome out = run_forced(t, &packed);
    assert_true(out.n > 100);
    assert_int_equal(out.n_differ, 0);
    fmt_tape_close(t);
}

typedef struct poke { const char *at; uint32_t value; } poke;

static bool poke_value(void *ctx, fmt_tape_record *r, uint8_t *data)
{
    const poke *p = ctx;
    if (is_at(r, p->at)) put_u32(data, p->value);
    return true;
}

static bool flatten_wo_a(void *ctx, fmt_tape_record *r, uint8_t *data)
{
    (void)ctx, (void)data;
    int64_t n = fmt_tensor_elems(&r->tensor);
    if (strcmp(r->key.name, "s0.attn.wo_a") == 0) r->tensor = fmt_tensor_make(r->tensor.dtype, NULL, 1, &n);
    return true;
}

static void numbers_that_the_model_does_not_have_are_refused(void **state)
{
    static const struct { poke p; const char *text; } CASES[] = {
        { { "1/-1/s0.ffn.ids", 100000 }, "s0.ffn.ids[0]: found 100000" },
        { { "1/-1/ids", 0xffffffff }, "ids[0]: found -1" },
        { { "1/-1/draft.anchor", 0x7fffffff }, "draft.anchor[0]" },
        { { "1/-1/draft.n_out", 99 }, "draft.n_out[0]: found 99" },
        { { "1/0/pos", 0xfffffff0 }, "pos[0]: found -16" },
    };
    rpl_forced *f;
    const rpl_round *r;
    (void)state;
    for (size_t i = 0; i <= COUNT_OF(CASES); i++) {
        bool shape = i == COUNT_OF(CASES);
        poke p = CASES[shape ? 0 : i].p;
        fmt_tape *t = copy_tape(source, "bad.tape", shape ? flatten_wo_a : poke_value, &p);
        OK(rpl_forced_open(t, shared_run.weights, &packed, &f, e));
        if (!shape) OK(rpl_forced_compare(f, 0, NULL, &r, e));
        REFUSED(rpl_forced_compare(f, shape ? 0 : 1, NULL, &r, e), ERR_INPUT,
                shape ? "s0.attn.wo_a: found BF16 [" : CASES[i].text);
        rpl_forced_close(f);
        fmt_tape_close(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_recorded_value_is_made_again_bit_for_bit),
        cmocka_unit_test(rounds_run_in_any_order),
        cmocka_unit_test(a_changed_value_and_its_readers_differ_and_no_more),
        cmocka_unit_test(a_changed_window_is_named_at_the_ring),
        cmocka_unit_test(a_changed_row_shows_in_every_window_that_holds_it),
        cmocka_unit_test(later_tokens_are_made_under_the_recorded_ones),
        cmocka_unit_test(ranks_differ_by_the_order_of_sums_only),
        cmocka_unit_test(v1_and_io_tapes_run_over_longer_chains),
        cmocka_unit_test(recorded_windows_stand_in_for_missing_rows),
        cmocka_unit_test(numbers_that_the_model_does_not_have_are_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
