#include "replay_help.h"

#include "replay/cause.h"
#include "replay/inject.h"

enum { ROUND = 3 };

static int setup(void **state) { return run_setup(state); }
static int teardown(void **state) { return run_teardown(state); }

/* The certificate of round ROUND of a tape, with causes. The caller finishes it. */
static rpl_certificate judge(const fmt_tape *t)
{
    rpl_certify_options o = rpl_certify_options_of(t);
    rpl_causes causes = { .tape = t, .n_ranks = o.n_ranks };
    rpl_certificate c = { 0 };
    const int32_t only = ROUND;
    o.threads = 1;
    o.explain = rpl_cause_explain;
    o.explain_ctx = &causes;
    OK(rpl_certify_tape(t, shared_run.weights, &o, &(rpl_certify_job){ &only, 1 }, &c, e));
    return c;
}

/* The first cause that is named for a run with one fault (NULL: none is planted). */
static void cause_of(const char *fault, const char *arm, int64_t tp, char cause[RPL_CAUSE_BYTES])
{
    eng_options o = run_options(arm, tp, "eager");
    eng_fault f;
    fmt_tape *t;
    cause[0] = 0;
    if (fault) {
        OK(eng_fault_parse(fault, &f, e));
        f.round = ROUND;
        f.armed = false;
        o.fault = &f;
    }
    OK(rpl_inject(shared_run.weights, shared_run.script, &o, ENG_LEVEL_DEEP, false, "planted.tape", true, e));
    OK(fmt_tape_open("planted.tape", &t, e));
    rpl_certificate c = judge(t);
    if (c.n_origins) memcpy(cause, c.origin[0].cause, RPL_CAUSE_BYTES);
    rpl_certificate_fini(&c);
    fmt_tape_close(t);
    unlink("planted.tape");
}

static void a_planted_mistake_is_named_by_its_class(void **state)
{
    static const struct { const char *fault, *arm; int tp; eng_cause cause; } PLANTED[] = {
        { "rounding-extra@s0.ffn.slot", "native-packed", 1, ENG_CAUSE_ROUNDING_EXTRA },
        { "qdq-missing@s0.attn.norm.qdq", "native-packed", 1, ENG_CAUSE_ROUNDING_MISSING },
        { "combine-unrounded@s1.ffn_out", "native-packed", 1, ENG_CAUSE_ROUNDING_MISSING },
        { "qdq-scale-low@s0.attn.norm.qdq", "native-packed", 1, ENG_CAUSE_SCALE_BYTE },
        { "scale-missing@s0.attn.wq_b", "native-packed", 1, ENG_CAUSE_SCALE_BYTE },
        { "scale-shift@s0.attn.wq_b", "native-packed", 2, ENG_CAUSE_SCALE_ORDER },
        { "scale-transposed@s0.attn.wq_b", "native-packed", 1, ENG_CAUSE_SCALE_ORDER },
        { "nibble-order@s0.ffn.slot", "native-packed", 1, ENG_CAUSE_NIBBLE_ORDER },
        { "scale-255@s0.attn.wq_b", "native-packed", 1, ENG_CAUSE_E8M0_EDGE },
        { "fp16-output@head.logits", "native-packed", 1, ENG_CAUSE_FP16_RANGE },
        { "stale@s1.attn.stream", "native-packed", 1, ENG_CAUSE_STALE },
        { "row-stale@s1.attn.wq_b", "native-packed", 1, ENG_CAUSE_STALE },
        { "torn@s1.ffn.norm", "native-packed", 1, ENG_CAUSE_STALE },
        { "unwritten-tail@s1.out", "native-packed", 1, ENG_CAUSE_UNWRITTEN },
        { "unwritten-columns@s0.attn.kv_norm:step=draft", "native-packed", 1, ENG_CAUSE_UNWRITTEN },
        { "padding-keys@s0.attn.attend", "native-packed", 1, ENG_CAUSE_PADDING_LEAK },
        { "qdq-padding@s0.attn.norm.qdq", "native-packed", 1, ENG_CAUSE_PADDING_LEAK },
        { "columns-rotated@s0.attn.norm", "native-packed", 1, ENG_CAUSE_PERMUTATION },
        { "row-swap@s1.attn_out", "native-packed", 1, ENG_CAUSE_ROW_SWAP },
        { "head-swap@s1.attn.wq_b", "native-packed", 2, ENG_CAUSE_HEAD_SWAP },
        { "slot-swap@s0.attn_out", "native-packed", 1, ENG_CAUSE_SLOT_SWAP },
        { "ring-other-slot@s0.attn.attend", "native-packed", 1, ENG_CAUSE_SLOT_SWAP },
        { "rope-late@s0.attn.q", "native-packed", 1, ENG_CAUSE_POSITION },
        { "rope-early@s0.attn.kv_rope:step=draft", "native-packed", 1, ENG_CAUSE_POSITION },
        { "confidence-row@confidence", "native-packed", 1, ENG_CAUSE_POSITION },
        { "rank-differs@s1.ffn.norm", "native-packed", 2, ENG_CAUSE_RANK_DISAGREEMENT },
    };
    char cause[RPL_CAUSE_BYTES];
    int n_wrong = 0;
    (void)state;
    for (size_t i = 0; i < COUNT_OF(PLANTED); i++) {
        const char *wanted = eng_cause_name(PLANTED[i].cause);
        cause_of(PLANTED[i].fault, PLANTED[i].arm, PLANTED[i].tp, cause);
        if (strncmp(cause, wanted, strlen(wanted)) == 0 && cause[strlen(wanted)] == ':') continue;
        print_message("%s: found '%s', wanted %s\n", PLANTED[i].fault, cause, wanted);
        n_wrong++;
    }
    assert_int_equal(n_wrong, 0);
}

static void a_wrong_function_is_described_and_not_blamed_on_a_class(void **state)
{
    static const char *const PLANTED[] = { "norm-sum@s0.attn.norm", "sink-skipped@s0.attn.attend", "nan@s1.attn_out",
                                           "weight-half@s0.attn.wq_b", "row-repeated@s1.attn_out" };
    char cause[RPL_CAUSE_BYTES];
    (void)state;
    for (size_t i = 0; i < COUNT_OF(PLANTED); i++) {
        cause_of(PLANTED[i], "native-packed", 1, cause);
        if (strncmp(cause, "wrong function: ", 16) != 0) fail_msg("%s: found '%s'", PLANTED[i], cause);
        assert_non_null(strstr(cause, " rows ("));
    }
}

static void a_clean_tape_has_no_cause(void **state)
{
    char cause[RPL_CAUSE_BYTES];
    (void)state;
    cause_of(NULL, "native-packed", 1, cause);
    assert_string_equal(cause, "");
    cause_of(NULL, "native-packed", 2, cause);
    assert_string_equal(cause, "");
}

/* The bench is given back as it was: a round judged with causes has the counts of one judged without. */
static void looking_for_a_cause_changes_no_verdict(void **state)
{
    eng_options o = run_options("native-packed", 1, "eager");
    eng_fault f;
    fmt_tape *t;
    rpl_certificate without = { 0 };
    const int32_t only = ROUND;
    (void)state;
    OK(eng_fault_parse("scale-shift@s0.attn.wq_a", &f, e));
    o.fault = &f;
    OK(rpl_inject(shared_run.weights, shared_run.script, &o, ENG_LEVEL_DEEP, false, "planted.tape", true, e));
    OK(fmt_tape_open("planted.tape", &t, e));
    rpl_certify_options plain = rpl_certify_options_of(t);
    plain.threads = 1;
    OK(rpl_certify_tape(t, shared_run.weights, &plain, &(rpl_certify_job){ &only, 1 }, &without, e));
    rpl_certificate with = judge(t);
    assert_true(with.n_origins > 0);
    assert_int_equal(with.n_origins, without.n_origins);
    assert_int_equal(with.n_illegal, without.n_illegal);
    assert_int_equal(with.n_equal, without.n_equal);
    assert_int_equal(with.n_flip, without.n_flip);
    rpl_certificate_fini(&with);
    rpl_certificate_fini(&without);
    fmt_tape_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_planted_mistake_is_named_by_its_class),
        cmocka_unit_test(a_wrong_function_is_described_and_not_blamed_on_a_class),
        cmocka_unit_test(a_clean_tape_has_no_cause),
        cmocka_unit_test(looking_for_a_cause_changes_no_verdict),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
