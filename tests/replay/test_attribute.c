#include "replay_help.h"

#include "replay/attribute.h"
#include "replay/inject.h"
#include "tests/support/slow.h"

enum { EVERY = SLOW ? 4 : 1 };

static fmt_tape *clean; /* of native-packed, deep */

static int setup(void **state)
{
    if (run_setup(state) != 0) return -1;
    eng_options o = run_options("native-packed", 1, "eager");
    clean = record("clean.tape", &o, ENG_LEVEL_DEEP);
    return 0;
}

static int teardown(void **state)
{
    fmt_tape_close(clean);
    return run_teardown(state);
}

/* Most tests need one round. */
static const bool ROUND_1[] = { false, true, false, false };

static rpl_attribute_options of_metric(const char *metric)
{
    rpl_attribute_options o = { .rounds = ROUND_1, .reference = run_options("mirror", 1, "eager"),
                                .tape_text = "the tape", .tries = 500, .quiet = true };
    OK(rpl_metric_parse(metric, &o.metric, e));
    return o;
}

static rpl_attribution attribute(const fmt_tape *t, const rpl_attribute_options *o)
{
    rpl_attribution a = { 0 };
    OK(rpl_attribute(t, shared_run.weights, o, &a, e));
    return a;
}

/* "s0.attn.q s1.out", in the order of the program. */
static const char *names(const rpl_attribution *a, const rpl_found *f)
{
    static char text[600];
    text[0] = 0;
    for (int32_t i = 0; f->searched && i < a->n_units; i++)
        if (f->unit[i]) snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", *text ? " " : "",
                                 rpl_mix_unit(a->mix, i)->name);
    return text;
}

/* A tape of the shared rounds with a fault. */
static fmt_tape *injected(const char *text, const eng_options *run)
{
    eng_fault fault;
    eng_options o = *run;
    fmt_tape *t;
    OK(eng_fault_parse(text, &fault, e));
    o.fault = &fault;
    unlink("injected.tape");
    OK(rpl_inject(shared_run.weights, shared_run.script, &o, ENG_LEVEL_DEEP, true, "injected.tape", true, e));
    OK(fmt_tape_open("injected.tape", &t, e));
    return t;
}

static void a_clean_run_has_no_difference(void **state)
{
    static const char *const METRICS[] = { "drafts", "kl", "excess:s0.attn_out", "excess:main_x" };
    (void)state;
    for (size_t k = 0; k < COUNT_OF(METRICS); k++) {
        rpl_attribute_options o = of_metric(METRICS[k]);
        if (k == 0) o.rounds = NULL;
        rpl_attribution a = attribute(clean, &o);
        assert_string_equal(rpl_attribution_verdict(&a), "SAME");
        assert_int_equal(a.n_tape_other, 0);
        assert_true(a.n_tape_tokens > 0 || a.metric.kind == RPL_METRIC_KL);
        rpl_attribution_fini(&a);
    }
}

static void no_difference_in_what_is_left_of_a_damaged_tape_is_partial(void **state)
{
    rpl_attribute_options o = of_metric("drafts");
    (void)state;
    rpl_attribution a = attribute(clean, &o);
    a.damaged = true; /* as who opened an unfinished tape sets it */
    assert_string_equal(rpl_attribution_verdict(&a), "PARTIAL");
    json_t *j = rpl_attribution_json(&a, clean);
    assert_true(json_is_true(json_object_get(j, "damaged")));
    json_decref(j);
    rpl_attribution_fini(&a);
    fmt_tape *t = lose_value(clean, "1/-1/s1.attn.q");
    a = attribute(t, &o);
    assert_true(a.damaged && rpl_deviations_compared(a.deviations) > 0);
    assert_string_equal(rpl_attribution_verdict(&a), "PARTIAL");
    rpl_attribution_fini(&a);
    fmt_tape_close(t);
}

static void a_comparison_of_nothing_is_no_pass(void **state)
{
    eng_options run = run_options("native-packed", 1, "eager");
    rpl_attribute_options o = of_metric("drafts");
    (void)state;
    fmt_tape *t = record("io.tape", &run, ENG_LEVEL_IO);
    rpl_attribution a = attribute(t, &o);
    assert_int_equal(rpl_deviations_compared(a.deviations), 0);
    assert_string_equal(rpl_attribution_verdict(&a), "INCOMPLETE");
    rpl_attribution_fini(&a);
    o.arm = &run; /* both sides run: nothing is wanted of the tape but inputs */
    a = attribute(t, &o);
    assert_string_equal(rpl_attribution_verdict(&a), "SAME");
    rpl_attribution_fini(&a);
    fmt_tape_close(t);
}

static void each_planted_fault_comes_out_as_its_op(void **state)
{
    /* the fault, the op as a tape shows it, the metric that sees it */
    static const char *const FAULTS[][3] = {
        { "row-swap@s0.attn_out:round=1", "s0.attn_out", "excess:s0.attn_out" },
        { "rope-late@s1.attn.q", "s1.attn.q", "kl" },
        { "scale-255@s0.ffn.slot:round=1", "s0.ffn.slot", "kl" },
        { "ring-rotated@s1.window:round=1", "s1.window", "kl" },
        { "qdq-missing@s0.ffn.h.qdq", "s0.ffn.slot", "kl" },
        { "k-tail@s1.attn.wq_a", "s1.attn.qr", "kl" },
        { "sink-skipped@s0.attn.attend", "s0.attn.o", "kl" },
        { "causal-mask@s1.attn.attend", "s1.attn.o", "kl" },
        { "pick-wrong@s1.ffn.ids", "s1.ffn.ids", "kl" },
        { "expert-wrong@s0.ffn.gate", "s0.ffn.gate", "kl" },
        { "router-no-root@s0.ffn.scores", "s0.ffn.scores", "kl" },
        { "swiglu-swapped@s1.ffn.h", "s1.ffn.h", "kl" },
        { "post-missing@s0.attn.stream", "s0.attn.stream", "kl" },
        { "embed-row@x0", "x0", "kl" },
        { "gain-missing@s0.attn.kv_norm:step=insert", "s0.main_kv", "kl" },
        { "nan@s1.attn.kv:step=draft", "s1.attn.kv", "kl" },
    };
    eng_options run = run_options("native-packed", 1, "eager");
    (void)state;
    for (size_t k = 0; k < COUNT_OF(FAULTS); k += EVERY) {
        fmt_tape *t = injected(FAULTS[k][0], &run);
        rpl_attribute_options o = of_metric(FAULTS[k][2]);
        rpl_attribution a = attribute(t, &o);
        if (strcmp(rpl_attribution_verdict(&a), "ATTRIBUTED") != 0 || strcmp(names(&a, &a.away), FAULTS[k][1]) != 0 ||
            strcmp(names(&a, &a.appear), FAULTS[k][1]) != 0)
            fail_msg("%s: %s, away '%s'", FAULTS[k][0], rpl_attribution_verdict(&a), names(&a, &a.away));
        rpl_attribution_fini(&a);
        fmt_tape_close(t);
    }
}

/* Of the sets that were found: each holds, and none of its ops can be spared. */
static void check_minimal(const rpl_attribution *a, int8_t other)
{
    int8_t *maker = mem_alloc((size_t)a->n_units, sizeof *maker);
    for (int way = 0; way < 2; way++) {
        const rpl_found *f = way ? &a->appear : &a->away;
        assert_true(f->minimal && f->n > 0);
        for (int32_t spared = -1; spared < a->n_units; spared++) {
            bool stopped;
            if (spared >= 0 && !f->unit[spared]) continue;
            for (int32_t i = 0; i < a->n_units; i++) maker[i] = (f->unit[i] && i != spared) == (way == 1) ? other : 0;
            OK(rpl_meter_run(a->meter, maker, a->wanted, &stopped, e));
            bool differs = rpl_meter_differs(a->meter, rpl_meter_figure(a->meter, a->wanted));
            assert_int_equal(differs, (way == 1) == (spared < 0));
        }
    }
    free(maker);
}

static void a_fault_among_other_differences_is_in_a_minimal_set(void **state)
{
    eng_options run = run_options("native-packed", 2, "eager");
    (void)state;
    run.combine = ENG_COMBINE_FUSED; /* another order of rounding in every stage */
    fmt_tape *t = injected("rope-late@s1.attn.q", &run);
    rpl_attribute_options o = of_metric("kl");
    rpl_attribution a = attribute(t, &o);
    assert_string_equal(rpl_attribution_verdict(&a), "ATTRIBUTED");
    assert_non_null(strstr(names(&a, &a.away), "s1.attn.q"));
    assert_non_null(strstr(names(&a, &a.away), "s0.ffn_out"));
    assert_true(a.n_candidates > a.away.n); /* sums of two ranks are off too, and make no difference */
    check_minimal(&a, RPL_MIX_TAPE);
    rpl_attribution_fini(&a);
    o.reference.combine = ENG_COMBINE_FUSED; /* against a reference of the same order the fault is left */
    a = attribute(t, &o);
    assert_string_equal(names(&a, &a.away), "s1.attn.q");
    rpl_attribution_fini(&a);
    fmt_tape_close(t);
}

static void the_tapes_values_give_the_tapes_tokens(void **state)
{
    static const char *const FAULTS[] = { "row-swap@s0.attn_out:round=1", "argmax-second@head.biased",
                                         "markov-previous@head.biased", "ring-rotated@s0.window:round=1" };
    eng_options run = run_options("native-packed", 2, "eager");
    (void)state;
    for (size_t k = 0; k < COUNT_OF(FAULTS); k += EVERY > 1 ? 3 : 1) {
        fmt_tape *t = injected(FAULTS[k], &run);
        rpl_attribute_options o = of_metric("drafts");
        o.rounds = NULL;
        rpl_attribution a = attribute(t, &o);
        assert_true(a.n_tape_tokens > 0);
        assert_int_equal(a.n_tape_other, 0);
        rpl_attribution_fini(&a);
        fmt_tape_close(t);
    }
}

/* Round 0 of the shared script with every insert in two halves, by a run with the fault. */
static fmt_tape *injected_in_halves(const char *text)
{
    const eng_script *s = shared_run.script;
    const eng_config *c = eng_weights_config(shared_run.weights);
    const cap_options options = { .level = ENG_LEVEL_DEEP };
    eng_options o = run_options("native-packed", 1, "eager");
    eng_round round = *eng_script_at(s, 0);
    eng_insert_event half[16];
    int32_t inserts[16], drafts[ENG_BATCH_MAX], n = 0;
    eng_fault fault;
    eng_engine *g;
    cap_recorder *r;
    fmt_tape *t;
    OK(eng_fault_parse(text, &fault, e));
    o.fault = &fault;
    json_t *identity = eng_identity(shared_run.weights, &o);
    for (int32_t k = 0; k < round.n_inserts; k++) {
        const eng_insert_event *in = &round.inserts[k];
        int32_t first = in->rows / 2;
        assert_true(first > 0 && n < 15);
        for (int part = 0; part < 2; part++) {
            inserts[n] = eng_script_dense(s, in->slot);
            half[n++] = (eng_insert_event){ in->slot, part ? in->rows - first : first,
                                            in->taps + (part ? (int64_t)first * c->n_taps * c->dim : 0),
                                            in->pos + (part ? first : 0) };
        }
    }
    for (int32_t k = 0; k < round.batch; k++) drafts[k] = eng_script_dense(s, round.slots[k]);
    round.inserts = half;
    round.n_inserts = n;
    unlink("halves.tape");
    OK(eng_open(shared_run.weights, &o, eng_script_slots(s), cap_retain_level(&options), true, &g, e));
    OK(cap_recorder_open(g, "halves.tape", identity, &options, &r, e));
    OK(cap_recorder_round(r, &round, inserts, drafts, NULL, e));
    OK(cap_recorder_finish(r, e));
    eng_close(g);
    json_decref(identity);
    OK(fmt_tape_open("halves.tape", &t, e));
    return t;
}

static void every_insert_of_a_slot_has_its_own_rows(void **state)
{
    fmt_tape *t = injected_in_halves("gain-missing@main_x");
    rpl_attribute_options o = of_metric("excess:main_x");
    (void)state;
    o.rounds = NULL;
    rpl_attribution a = attribute(t, &o);
    assert_string_equal(names(&a, &a.away), "main_x");
    assert_int_equal(a.n_tape_other, 0); /* both halves are as recorded */
    assert_true(a.n_tape_tokens > 0);
    rpl_attribution_fini(&a);
    fmt_tape_close(t);
}

static void an_arm_is_attributed_by_running_its_ops(void **state)
{
    eng_options fused = run_options("native-expanded", 2, "eager"), same = run_options("native-hybrid", 1, "graph");
    rpl_attribute_options o = of_metric("kl");
    (void)state;
    fused.combine = ENG_COMBINE_FUSED;
    o.arm = &fused;
    rpl_attribution a = attribute(clean, &o);
    assert_string_equal(rpl_attribution_verdict(&a), "ATTRIBUTED");
    assert_null(a.deviations);
    for (int32_t i = 0; i < a.n_units; i++)
        if (a.away.unit[i]) assert_non_null(strstr(rpl_mix_unit(a.mix, i)->name, ".ffn_out"));
    check_minimal(&a, 1);
    rpl_attribution_fini(&a);
    o.arm = &same;
    a = attribute(clean, &o);
    assert_string_equal(rpl_attribution_verdict(&a), "SAME");
    rpl_attribution_fini(&a);
}

static void a_control_is_one_mixture(void **state)
{
    eng_options run = run_options("native-packed", 1, "eager");
    rpl_attribute_options o = of_metric("kl");
    fmt_tape *t = injected("rope-late@s1.attn.q", &run);
    rpl_only only[2] = { { .set = "s1.attn" }, { .set = "s0", .by = run } };
    (void)state;
    o.only = only;
    o.n_only = 2;
    rpl_attribution a = attribute(t, &o);
    assert_string_equal(rpl_attribution_verdict(&a), "DIFFERS");
    assert_int_equal(a.n_tries, 1);
    assert_string_equal(a.tried[0].text, "s0.* s1.attn.* (35 ops)");
    rpl_attribution_fini(&a);
    only[0].set = "s0.attn";
    a = attribute(t, &o);
    assert_string_equal(rpl_attribution_verdict(&a), "SAME"); /* the fault lies elsewhere */
    rpl_attribution_fini(&a);
    only[0].set = "s9.attn";
    a = (rpl_attribution){ 0 };
    REFUSED(rpl_attribute(t, shared_run.weights, &o, &a, e), ERR_ARG, "s9.attn");
    rpl_attribution_fini(&a);
    fmt_tape_close(t);
}

static void a_spent_budget_is_said(void **state)
{
    eng_options run = run_options("native-packed", 2, "eager");
    rpl_attribute_options o = of_metric("kl");
    (void)state;
    run.combine = ENG_COMBINE_FUSED;
    fmt_tape *t = injected("rope-late@s1.attn.q", &run);
    o.tries = 6;
    rpl_attribution a = attribute(t, &o);
    assert_string_equal(rpl_attribution_verdict(&a), "PARTIAL");
    assert_int_equal(a.n_tries, 6);
    assert_true(a.away.searched && !a.away.minimal && a.away.n > 0);
    assert_false(a.appear.searched);
    json_t *j = rpl_attribution_json(&a, t);
    assert_string_equal(json_string_value(json_object_get(j, "verdict")), "PARTIAL");
    json_decref(j);
    rpl_attribution_fini(&a);
    fmt_tape_close(t);
}

static void rounds_are_chosen(void **state)
{
    eng_options run = run_options("native-packed", 1, "eager");
    fmt_tape *t = injected("row-swap@s0.attn_out:round=2", &run);
    rpl_attribute_options o = of_metric("excess:s0.attn_out");
    bool rounds[4] = { true, true, false, false };
    (void)state;
    o.rounds = NULL;
    rpl_attribution a = attribute(t, &o);
    assert_int_equal(a.n_wanted, 1);
    assert_true(a.wanted[2]);
    rpl_attribution_fini(&a);
    o.rounds = rounds;
    a = attribute(t, &o);
    assert_string_equal(rpl_attribution_verdict(&a), "SAME");
    rpl_attribution_fini(&a);
    fmt_tape_close(t);
}

static void unknown_metrics_are_refused(void **state)
{
    rpl_metric m;
    (void)state;
    REFUSED(rpl_metric_parse("speed", &m, e), ERR_ARG, "speed");
    REFUSED(rpl_metric_parse("excess:", &m, e), ERR_ARG, "excess:");
    static const char *const VALUES[] = { "excess:s9.attn_out", "excess:drafts", "excess:s0.window", "excess:taps" };
    for (size_t k = 0; k < COUNT_OF(VALUES); k++) {
        rpl_attribute_options o = of_metric(VALUES[k]);
        rpl_attribution a = { 0 };
        REFUSED(rpl_attribute(clean, shared_run.weights, &o, &a, e), ERR_ARG, VALUES[k]);
        rpl_attribution_fini(&a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_clean_run_has_no_difference),
        cmocka_unit_test(no_difference_in_what_is_left_of_a_damaged_tape_is_partial),
        cmocka_unit_test(a_comparison_of_nothing_is_no_pass),
        cmocka_unit_test(each_planted_fault_comes_out_as_its_op),
        cmocka_unit_test(a_fault_among_other_differences_is_in_a_minimal_set),
        cmocka_unit_test(the_tapes_values_give_the_tapes_tokens),
        cmocka_unit_test(every_insert_of_a_slot_has_its_own_rows),
        cmocka_unit_test(an_arm_is_attributed_by_running_its_ops),
        cmocka_unit_test(a_control_is_one_mixture),
        cmocka_unit_test(a_spent_budget_is_said),
        cmocka_unit_test(rounds_are_chosen),
        cmocka_unit_test(unknown_metrics_are_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
