#include "replay_help.h"

#include "base/interrupt.h"
#include "replay/certify.h"

#include <math.h>
#include <signal.h>

static fmt_tape *source; /* deep, native-packed, one rank */

static int setup(void **state)
{
    if (run_setup(state) != 0) return -1;
    eng_options o = run_options("native-packed", 1, "eager");
    source = record("source.tape", &o, ENG_LEVEL_DEEP);
    return 0;
}

static int teardown(void **state)
{
    fmt_tape_close(source);
    return run_teardown(state);
}

/* Certifies all rounds of t; the caller finishes it. */
static rpl_certificate certify(const fmt_tape *t, const rpl_certify_options *options)
{
    int32_t all[64], n = (int32_t)fmt_tape_rounds(t, &(const int32_t *){ NULL });
    rpl_certify_options o = options ? *options : rpl_certify_options_of(t);
    rpl_certificate c = { 0 };
    for (int32_t i = 0; i < n; i++) all[i] = i;
    OK(rpl_certify_tape(t, shared_run.weights, &o, &(rpl_certify_job){ all, n }, &c, e));
    return c;
}

/* Adds ulps to one element of a record. */
typedef struct poke { const char *at; int64_t index; int32_t add; int32_t rank; int n_done; } poke;

static bool poke_element(void *ctx, fmt_tape_record *r, uint8_t *data)
{
    for (poke *p = ctx; p->at; p++) {
        if (!is_at(r, p->at) || r->key.rank != p->rank) continue;
        uint8_t *to = data + p->index * fmt_dtype_bytes(r->tensor.dtype);
        if (r->tensor.dtype == FMT_DTYPE_BF16) put_u16(to, (uint16_t)(get_u16(to) + p->add));
        else put_u32(to, get_u32(to) + (uint32_t)p->add);
        p->n_done++;
    }
    return true;
}

/* Element of a value with the largest magnitude. */
static int64_t largest(const fmt_tape *t, int32_t round, int32_t slot, const char *name)
{
    cap_value v = { 0 };
    int64_t at = 0;
    OK(cap_joined_get(t, &(fmt_tape_key){ round, slot, 0, name }, &v, e));
    for (int64_t i = 0; i < fmt_tensor_elems(&v.tensor); i++)
        if (fabs(rpl_element(v.tensor.dtype, v.tensor.data, i)) > fabs(rpl_element(v.tensor.dtype, v.tensor.data, at)))
            at = i;
    cap_value_fini(&v);
    return at;
}

static void clean_tapes_pass(void **state)
{
    static const struct { const char *arm; int tp; eng_combine combine; } RUNS[] = {
        { "mirror64", 1, ENG_COMBINE_EXACT },     { "mirror", 1, ENG_COMBINE_FUSED },
        { "native-packed", 2, ENG_COMBINE_EXACT }, { "native-expanded", 2, ENG_COMBINE_FUSED },
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(RUNS); i++) {
        eng_options o = run_options(RUNS[i].arm, RUNS[i].tp, "eager");
        o.combine = RUNS[i].combine;
        fmt_tape *t = record("clean.tape", &o, ENG_LEVEL_DEEP);
        rpl_certificate c = certify(t, NULL);
        assert_string_equal(rpl_certificate_verdict(&c), "PASS");
        assert_true(c.n > 100000);
        assert_int_equal(c.n, c.n_equal + c.n_flip);
        assert_int_equal(c.n_origins + c.n_inherited + c.n_notes + c.n_findings, 0);
        if (i == 0) assert_int_equal(c.n_flip, 0);
        rpl_certificate_fini(&c);
        fmt_tape_close(t);
    }
}

static void values_that_cannot_be_read_are_named_and_the_others_judged(void **state)
{
    int64_t n_lost;
    (void)state;
    for (int k = 1; k < 8; k += 2) {
        fmt_tape *t = damage_tape(source, "damaged.tape", fmt_tape_file_bytes(source) * (uint64_t)k / 8, &n_lost);
        assert_true(n_lost > 0 && (size_t)n_lost < fmt_tape_count(t));
        rpl_certificate c = certify(t, NULL);
        assert_string_equal(rpl_certificate_verdict(&c), "PARTIAL");
        assert_true(c.damaged && c.n > 10000);
        assert_int_equal(c.n_illegal + (int64_t)c.n_origins, 0);
        int64_t n_named = 0;
        for (size_t i = 0; i < c.n_notes; i++)
            if (strstr(c.not_judged[i].why, "damaged")) n_named += c.not_judged[i].n_values;
        assert_int_equal(n_named, n_lost);
        rpl_certificate_fini(&c);
        fmt_tape_close(t);
    }
}

static void a_changed_element_is_named_and_its_readers_are_not(void **state)
{
    (void)state;
    poke p[] = { { "1/-1/s1.attn.o_qdq", largest(source, 1, -1, "s1.attn.o_qdq"), 2, 0, 0 }, { 0 } };
    fmt_tape *t = copy_tape(source, "poked.tape", poke_element, p);
    assert_int_equal(p[0].n_done, 1);
    rpl_certificate c = certify(t, NULL);
    assert_string_equal(rpl_certificate_verdict(&c), "FAIL");
    assert_int_equal(c.n_origins, 1);
    const rpl_origin *o = &c.origin[0];
    assert_string_equal(o->op, "s1.attn.o_qdq");
    assert_int_equal(o->round, 1);
    assert_int_equal(o->n_illegal, 1);
    assert_int_equal(o->worst.index, p[0].index);
    assert_true(o->worst.ratio > 1);
    assert_string_equal(o->cause, "");
    assert_true(c.n_inherited >= 1);
    assert_string_equal(c.inherited[0].op, "s1.attn.wo_a");
    assert_string_equal(c.inherited[0].from, "s1.attn.o_qdq");
    rpl_certificate_fini(&c);
    fmt_tape_close(t);
}

static void an_op_that_is_wrong_on_wrong_inputs_is_an_origin_too(void **state)
{
    (void)state;
    poke p[] = { { "1/-1/s1.attn.qr", largest(source, 1, -1, "s1.attn.qr"), 2, 0, 0 },
                 { "1/-1/s1.attn.q", largest(source, 1, -1, "s1.attn.q"), 2, 0, 0 }, { 0 } };
    fmt_tape *t = copy_tape(source, "poked.tape", poke_element, p);
    rpl_certificate c = certify(t, NULL);
    assert_int_equal(c.n_origins, 2);
    assert_string_equal(c.origin[0].op, "s1.attn.qr");
    assert_string_equal(c.origin[1].op, "s1.attn.q");
    assert_int_equal(c.origin[1].n_illegal, 1); /* not those that follow from qr */
    assert_int_equal(c.origin[1].worst.index, p[1].index);
    rpl_certificate_fini(&c);
    fmt_tape_close(t);
}

static void a_choice_made_from_a_wrong_score_has_inherited(void **state)
{
    (void)state;
    int64_t vocab = eng_weights_config(shared_run.weights)->vocab;
    int64_t other = (largest(source, 1, -1, "head.biased") + 1) % vocab;
    poke p[] = { { "1/-1/head.biased", other, 0, 0, 0 }, { 0 } };
    cap_value v = { 0 };
    OK(cap_joined_get(source, &(fmt_tape_key){ 1, -1, 0, "head.biased" }, &v, e));
    p[0].add = (int32_t)(0x42c80000u - rpl_element_bits(FMT_DTYPE_F32, v.tensor.data, other)); /* to 100: it would win */
    cap_value_fini(&v);
    fmt_tape *t = copy_tape(source, "poked.tape", poke_element, p);
    rpl_certificate c = certify(t, NULL);
    assert_int_equal(c.n_origins, 1);
    assert_int_equal(c.origin[0].n_outputs, 1);
    assert_string_equal(c.origin[0].output[0], "head.biased");
    assert_int_equal(c.origin[0].worst.index, other);
    rpl_certificate_fini(&c);
    fmt_tape_close(t);
}

static void a_copy_that_differs_on_another_rank_is_an_origin(void **state)
{
    (void)state;
    eng_options o = run_options("native-packed", 2, "eager");
    fmt_tape *two = record("two.tape", &o, ENG_LEVEL_DEEP);
    poke p[] = { { "1/-1/s1.attn.kv", 5, 1, 1, 0 }, { 0 } };
    fmt_tape *t = copy_tape(two, "poked.tape", poke_element, p);
    assert_int_equal(p[0].n_done, 1);
    rpl_certificate c = certify(t, NULL);
    assert_string_equal(rpl_certificate_verdict(&c), "FAIL");
    assert_int_equal(c.n_origins, 1);
    assert_string_equal(c.origin[0].op, "s1.attn.kv");
    assert_int_equal(c.origin[0].rank, 1);
    assert_true(c.origin[0].ranks_differ);
    assert_int_equal(c.origin[0].worst.index, 5);
    rpl_certificate_fini(&c);
    fmt_tape_close(t);
    fmt_tape_close(two);
}

static void rounds_in_any_order_give_the_same_findings(void **state)
{
    (void)state;
    poke p[] = { { "0/0/s1.main_kv", largest(source, 0, 0, "s1.main_kv"), 2, 0, 0 }, { 0 } };
    fmt_tape *t = copy_tape(source, "poked.tape", poke_element, p);
    rpl_certificate whole = certify(t, NULL);
    rpl_certify_options o = rpl_certify_options_of(t);
    rpl_certify *c;
    size_t n_inherited = 0;
    assert_int_equal(whole.n_origins, 1);
    assert_string_equal(whole.origin[0].op, "s1.main_kv");
    assert_true(whole.n_inherited > 2);
    OK(rpl_certify_open(t, shared_run.weights, &o, &c, e));
    for (int32_t i = rpl_certify_rounds(c) - 1; i >= 0; i--) {
        rpl_certificate one = { 0 };
        OK(rpl_certify_round(c, i, &one, e));
        assert_int_equal(one.n_origins, i == 0);
        n_inherited += one.n_inherited;
        rpl_certificate_fini(&one);
    }
    assert_int_equal(n_inherited, whole.n_inherited);
    rpl_certify_close(c);
    rpl_certificate_fini(&whole);
    fmt_tape_close(t);
}

static err_code explain(void *ctx, const rpl_forced_value *v, const rpl_verdict *verdict, const uint8_t *classes,
                        rpl_origin *o, err *e)
{
    (void)e;
    assert_int_equal(classes[verdict->worst], RPL_ILLEGAL);
    assert_true(v->recorded.data && v->computed.data && v->bench);
    snprintf(o->cause, sizeof o->cause, "%s of %s", (const char *)ctx, v->name);
    return ERR_OK;
}

static void causes_are_asked_for_while_the_tensors_are_at_hand(void **state)
{
    (void)state;
    poke p[] = { { "1/-1/s1.ffn.h", largest(source, 1, -1, "s1.ffn.h"), 3, 0, 0 }, { 0 } };
    fmt_tape *t = copy_tape(source, "poked.tape", poke_element, p);
    rpl_certify_options o = rpl_certify_options_of(t);
    o.explain = explain;
    o.explain_ctx = "a change";
    rpl_certificate c = certify(t, &o);
    assert_int_equal(c.n_origins, 1);
    assert_string_equal(c.origin[0].cause, "a change of s1.ffn.h");
    rpl_certificate_fini(&c);
    fmt_tape_close(t);
}

static void nothing_judged_and_rounds_left_are_no_pass(void **state)
{
    (void)state;
    eng_options o = run_options("native-packed", 1, "eager");
    fmt_tape *t = record("io.tape", &o, ENG_LEVEL_IO);
    rpl_certificate c = certify(t, NULL);
    assert_int_equal(c.n, 0);
    assert_string_equal(rpl_certificate_verdict(&c), "FAIL");
    assert_true(c.n_not_judged > 0 && c.n_notes > 0);
    rpl_certificate_fini(&c);
    fmt_tape_close(t);
    rpl_certify_options options = rpl_certify_options_of(source);
    const rpl_certify_job job = { .rounds = (const int32_t[]){ 0, 1 }, .n = 2 };
    interrupt_catch();
    raise(SIGTERM);
    OK(rpl_certify_tape(source, shared_run.weights, &options, &job, &c, e));
    interrupt_catch();
    assert_string_equal(rpl_certificate_verdict(&c), "PARTIAL");
    assert_int_equal(c.n_rounds, 0);
    assert_int_equal(c.n_rounds_wanted, 2);
    rpl_certificate_fini(&c);
}

static bool other_slot(void *ctx, fmt_tape_record *r, uint8_t *data)
{
    if (r->key.round == *(int32_t *)ctx && strcmp(r->key.name, "draft.slots") == 0) put_u32(data, 77);
    return true;
}

static void a_slot_that_the_round_does_not_have_is_a_finding(void **state)
{
    (void)state;
    int32_t round = 1;
    fmt_tape *t = copy_tape(source, "slot.tape", other_slot, &round);
    rpl_certificate c = certify(t, NULL);
    assert_string_equal(rpl_certificate_verdict(&c), "FAIL");
    assert_int_equal(c.n_findings, 1);
    assert_string_equal(c.finding[0].value, "draft.slots");
    assert_int_equal(c.finding[0].first_round, 1);
    rpl_certificate_fini(&c);
    fmt_tape_close(t);
}

static void json_has_its_pinned_keys(void **state)
{
    (void)state;
    static const char *const KEYS[] = { "schema", "verdict", "rounds", "elements", "equal", "flip", "illegal", "origins",
                                        "inherited" };
    static const char *const OF_ORIGIN[] = { "round", "op", "outputs", "rank", "illegal", "worst", "cause" };
    static const char *const OF_WORST[] = { "index", "got", "exact", "bound", "ratio" };
    poke p[] = { { "1/-1/s0.attn.norm", largest(source, 1, -1, "s0.attn.norm"), 2, 0, 0 }, { 0 } };
    fmt_tape *t = copy_tape(source, "poked.tape", poke_element, p);
    rpl_certificate c = certify(t, NULL);
    json_t *j = rpl_certify_json(&(rpl_certify_report){ .c = &c, .tape = t, .coverage = { 1, 1, 2, 3, 3, true, false } });
    assert_non_null(j);
    for (size_t i = 0; i < COUNT_OF(KEYS); i++) assert_non_null(json_object_get(j, KEYS[i]));
    assert_true(json_is_true(json_object_get(j, "partial")) && json_is_false(json_object_get(j, "damaged")));
    assert_int_equal(json_integer_value(json_object_get(j, "rounds_wanted")), 3);
    const json_t *origin = json_array_get(json_object_get(j, "origins"), 0);
    for (size_t i = 0; i < COUNT_OF(OF_ORIGIN); i++) assert_non_null(json_object_get(origin, OF_ORIGIN[i]));
    for (size_t i = 0; i < COUNT_OF(OF_WORST); i++)
        assert_non_null(json_object_get(json_object_get(origin, "worst"), OF_WORST[i]));
    json_decref(j);
    rpl_certificate_fini(&c);
    fmt_tape_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clean_tapes_pass),
        cmocka_unit_test(a_slot_that_the_round_does_not_have_is_a_finding),
        cmocka_unit_test(values_that_cannot_be_read_are_named_and_the_others_judged),
        cmocka_unit_test(a_changed_element_is_named_and_its_readers_are_not),
        cmocka_unit_test(an_op_that_is_wrong_on_wrong_inputs_is_an_origin_too),
        cmocka_unit_test(a_choice_made_from_a_wrong_score_has_inherited),
        cmocka_unit_test(a_copy_that_differs_on_another_rank_is_an_origin),
        cmocka_unit_test(rounds_in_any_order_give_the_same_findings),
        cmocka_unit_test(causes_are_asked_for_while_the_tensors_are_at_hand),
        cmocka_unit_test(nothing_judged_and_rounds_left_are_no_pass),
        cmocka_unit_test(json_has_its_pinned_keys),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
