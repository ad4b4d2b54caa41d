#include "replay_help.h"

#include "replay/cause.h"
#include "replay/inject.h"
#include "tests/support/exl3_delivery.h"
#include "tests/support/slow.h"

enum { ROUND = 3 };

enum { EVERY = SLOW ? 4 : 1 };

/* The shared checkpoint, with an EXL3 delivery. */
static int setup(void **state)
{
    if (run_setup(state) != 0) return -1;
    exl3_delivery_write("model", eng_weights_config(shared_run.weights), &(exl3_delivery){ 2, 5, 6, FMT_EXL3_MCG, 3 });
    eng_weights_close(shared_run.weights);
    OK(eng_weights_open("model", true, &shared_run.weights, e));
    return 0;
}
static int teardown(void **state) { return run_teardown(state); }

/* The certificate of round ROUND of a tape, with causes. controls: NULL, none. The caller finishes it. */
static rpl_certificate judge(const fmt_tape *t, const rpl_controls *controls)
{
    rpl_certify_options o = rpl_certify_options_of(t);
    rpl_causes causes = { .tape = t, .n_ranks = o.n_ranks, .controls = controls };
    rpl_certificate c = { 0 };
    const int32_t only = ROUND;
    o.threads = 1;
    o.explain = rpl_cause_explain;
    o.explain_ctx = &causes;
    OK(rpl_certify_tape(t, shared_run.weights, &o, &(rpl_certify_job){ &only, 1 }, &c, e));
    return c;
}

/* What a cause is looked for with. OTHER: the rounds are run again without the fault, as another program would. */
typedef enum evidence { TAPE_ALONE, RERUN, RERUN_OF_OTHER } evidence;

/* The first cause that is named for a run with one fault (NULL: none is planted), and of which op. */
static char first_op[RPL_NAME_BYTES];
static void cause_with(evidence with, const char *fault, const char *arm, int64_t tp, char cause[RPL_CAUSE_BYTES])
{
    eng_options o = run_options(arm, tp, "eager"), again = o;
    eng_fault f, same;
    rpl_controls controls = { 0 };
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
    if (with == RERUN) OK(rpl_controls_options(t, 1, &again, &same, e));
    if (with != TAPE_ALONE)
        OK(rpl_controls_make(t, shared_run.weights, &again, NULL, RPL_CONTROL_RUNS, true, &controls, e));
    rpl_certificate c = judge(t, with == TAPE_ALONE ? NULL : &controls);
    if (c.n_origins) memcpy(cause, c.origin[0].cause, RPL_CAUSE_BYTES);
    snprintf(first_op, sizeof first_op, "%s", c.n_origins ? c.origin[0].op : "");
    rpl_certificate_fini(&c);
    rpl_controls_fini(&controls);
    fmt_tape_close(t);
    unlink("planted.tape");
}

static void cause_of(const char *fault, const char *arm, int64_t tp, char cause[RPL_CAUSE_BYTES])
{
    cause_with(TAPE_ALONE, fault, arm, tp, cause);
}

static bool is_of(const char *cause, eng_cause class)
{
    size_t n = strlen(eng_cause_name(class));
    return strncmp(cause, eng_cause_name(class), n) == 0 && cause[n] == ':';
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
        { "p-unrounded@s0.attn.attend", "native-packed", 1, ENG_CAUSE_ROUNDING_MISSING },
        { "columns-rotated@s0.ffn.h.qdq", "native-expanded", 2, ENG_CAUSE_PERMUTATION },
        { "slot-swap@s1.ffn.slot_sum", "native-expanded", 2, ENG_CAUSE_SLOT_SWAP },
        { "scale-transposed@s1.attn.wo_b", "native-packed", 2, ENG_CAUSE_SCALE_ORDER },
        { "scale-0@s0.ffn.gate", "native-packed", 1, ENG_CAUSE_E8M0_EDGE },
        { "torn@s0.attn.o", "native-packed", 2, ENG_CAUSE_STALE },
    };
    char cause[RPL_CAUSE_BYTES];
    int n_wrong = 0;
    (void)state;
    for (size_t i = 0; i < COUNT_OF(PLANTED); i += EVERY) {
        cause_of(PLANTED[i].fault, PLANTED[i].arm, PLANTED[i].tp, cause);
        if (is_of(cause, PLANTED[i].cause)) continue;
        print_message("%s: found '%s', wanted %s\n", PLANTED[i].fault, cause, eng_cause_name(PLANTED[i].cause));
        n_wrong++;
    }
    assert_int_equal(n_wrong, 0);
}

/* EXL3: the op whose product it is (its value on the tape), and the mistake. */
static void a_misread_exl3_weight_is_named_with_its_mistake(void **state)
{
    static const struct { const char *fault; int tp; const char *op, *cause; } PLANTED[] = {
        { "exl3-codebook@s0.attn.wq_a:index=0", 1, "s0.attn.qr",
          "weight misread: s0.attn.wq_a, another codebook, mul1, 100 %" },
        { "exl3-codebook@main_proj:index=1", 1, "main_x", "weight misread: main_proj, another codebook, 3inst, 100 %" },
        { "exl3-suh-missing@s0.attn.wo_b", 2, "s0.attn_out", "weight misread: s0.attn.wo_b, suh left out, 100 %" },
        { "exl3-suh-sign@s1.ffn.gate", 2, "s1.ffn.gate", "weight misread: s1.ffn.gate of expert" },
        { "exl3-svh-shift@head.logits_sum", 2, "head.logits", "weight misread: head.logits_sum, svh of the next block" },
        { "exl3-word-order@s0.ffn.slot", 2, "s0.ffn.slot", "weight misread: s0.ffn.slot of expert" },
        { "exl3-tile-rows@s0.ffn.slot", 1, "s0.ffn.slot", "weight misread: s0.ffn.slot of expert" },
        { "exl3-tile-swap@s1.attn.wkv:step=draft", 1, "s1.attn.kv", "weight misread: s1.attn.wkv, tiles of neighbouring" },
        { "exl3-no-hadamard-in@s0.ffn.shared", 2, "s0.ffn.shared",
          "weight misread: s0.ffn.shared, inputs not transformed" },
        { "exl3-no-hadamard-out@s0.attn.wq_b:rank=1", 2, "s0.attn.q",
          "weight misread: s0.attn.wq_b on rank 1, outputs not transformed" },
        { "exl3-slice@s0.attn.wq_b", 2, "s0.attn.q", "weight misread: s0.attn.wq_b, one block too early" },
        { "exl3-bit@s0.attn.wq_a", 1, "s0.attn.qr", "wrong function" }, /* too many bits to try */
    };
    char cause[RPL_CAUSE_BYTES];
    (void)state;
    for (size_t i = 0; i < COUNT_OF(PLANTED); i += SLOW ? 8 : 1) {
        cause_of(PLANTED[i].fault, "k2-tp2", PLANTED[i].tp, cause);
        if (strcmp(first_op, PLANTED[i].op) != 0) fail_msg("%s: found %s first", PLANTED[i].fault, first_op);
        if (strncmp(cause, PLANTED[i].cause, strlen(PLANTED[i].cause)) != 0)
            fail_msg("%s: found '%s'", PLANTED[i].fault, cause);
    }
    cause_of(NULL, "k2-tp2", 2, cause);
    assert_string_equal(cause, "");
}

/* One tape does not tell them from a wrong function, and says so; a second run and poison do. */
static void what_only_a_rerun_tells_is_named_by_a_rerun(void **state)
{
    static const struct { const char *fault, *arm; int tp; eng_cause cause; } PLANTED[] = {
        { "unstable@s1.attn_out", "native-packed", 1, ENG_CAUSE_UNSTABLE },
        { "unstable@s1.main_kv:step=insert", "native-packed", 2, ENG_CAUSE_UNSTABLE },
        { "unwritten-held@s1.ffn.norm", "native-packed", 1, ENG_CAUSE_UNWRITTEN },
        { "unwritten-held@s2.attn.kv:step=draft", "native-packed", 2, ENG_CAUSE_UNWRITTEN },
    };
    char cause[RPL_CAUSE_BYTES];
    (void)state;
    for (size_t i = 0; i < COUNT_OF(PLANTED); i++) {
        cause_with(RERUN, PLANTED[i].fault, PLANTED[i].arm, PLANTED[i].tp, cause);
        if (!is_of(cause, PLANTED[i].cause)) fail_msg("%s run again: found '%s'", PLANTED[i].fault, cause);
        cause_of(PLANTED[i].fault, PLANTED[i].arm, PLANTED[i].tp, cause);
        if (is_of(cause, ENG_CAUSE_FUNCTION)) fail_msg("%s: the tape alone said '%s'", PLANTED[i].fault, cause);
    }
}

static void a_rerun_takes_no_class_from_a_mistake_that_comes_back(void **state)
{
    static const struct { const char *fault; eng_cause cause; } PLANTED[] = {
        { "stale@s1.attn.stream", ENG_CAUSE_STALE }, { "row-swap@s1.attn_out", ENG_CAUSE_ROW_SWAP },
        { "norm-sum@s0.attn.norm", ENG_CAUSE_FUNCTION }, { "scale-255@s1.attn.wkv:step=insert", ENG_CAUSE_E8M0_EDGE },
        { "unwritten-columns@s0.attn.kv_norm:step=draft", ENG_CAUSE_UNWRITTEN },
        { "unwritten-columns@main_proj", ENG_CAUSE_UNWRITTEN }, /* its main_x is NaN; the rounds run again all the same */
    };
    char cause[RPL_CAUSE_BYTES];
    (void)state;
    for (size_t i = 0; i < COUNT_OF(PLANTED); i++) {
        cause_with(RERUN, PLANTED[i].fault, "native-packed", 1, cause);
        if (!is_of(cause, PLANTED[i].cause)) fail_msg("%s: found '%s'", PLANTED[i].fault, cause);
    }
}

/* Bits that another program made and this one does not make again: neither stable nor unstable. */
static void a_rerun_of_another_program_proves_nothing(void **state)
{
    char cause[RPL_CAUSE_BYTES];
    (void)state;
    cause_with(RERUN_OF_OTHER, "norm-sum@s0.attn.norm", "native-packed", 1, cause);
    assert_non_null(strstr(cause, "wrong function, unstable or unwritten: "));
    cause_with(RERUN_OF_OTHER, "row-swap@s1.attn_out", "native-packed", 1, cause);
    assert_true(is_of(cause, ENG_CAUSE_ROW_SWAP));
}

static void a_wrong_function_is_described_and_not_blamed_on_a_class(void **state)
{
    static const char *const PLANTED[] = { "norm-sum@s0.attn.norm", "sink-skipped@s0.attn.attend", "nan@s1.attn_out",
                                           "weight-half@s0.attn.wq_b", "row-repeated@s1.attn_out" };
    char cause[RPL_CAUSE_BYTES];
    (void)state;
    for (size_t i = 0; i < COUNT_OF(PLANTED); i++) {
        cause_of(PLANTED[i], "native-packed", 1, cause);
        if (strncmp(cause, "wrong function, unstable or unwritten: ", 39) != 0) fail_msg("%s: '%s'", PLANTED[i], cause);
        assert_non_null(strstr(cause, " rows ("));
        assert_non_null(strstr(cause, "sparktape certify --rerun"));
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
    rpl_certificate with = judge(t, NULL);
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
        cmocka_unit_test(a_misread_exl3_weight_is_named_with_its_mistake),
        cmocka_unit_test(what_only_a_rerun_tells_is_named_by_a_rerun),
        cmocka_unit_test(a_rerun_takes_no_class_from_a_mistake_that_comes_back),
        cmocka_unit_test(a_rerun_of_another_program_proves_nothing),
        cmocka_unit_test(a_wrong_function_is_described_and_not_blamed_on_a_class),
        cmocka_unit_test(a_clean_tape_has_no_cause),
        cmocka_unit_test(looking_for_a_cause_changes_no_verdict),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
