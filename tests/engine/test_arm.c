#include "engine/arm.h"

#include "engine/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "engine/config.h"

static eng_options accepted(eng_option_words w)
{
    eng_options o;
    err e = { 0 };
    if (eng_options_parse(&w, 0, &o, &e) != ERR_OK) fail_msg("refused: %s", e.msg);
    return o;
}

static void refused(eng_option_words w, err_code code, const char *shows)
{
    eng_options o, before;
    err e = { 0 };
    memset(&o, 0x5a, sizeof o);
    before = o;
    assert_int_equal(eng_options_parse(&w, 0, &o, &e), code);
    if (!strstr(e.msg, shows)) fail_msg("'%s' does not show '%s'", e.msg, shows);
    assert_memory_equal(&o, &before, sizeof o);
}

static void every_documented_arm_is_in_the_table_in_order(void **state)
{
    (void)state;
    static const char *const NAMES[] = {
        "k2-tp2", "k2-head", "native-experts-packed", "native-packed", "native-hybrid", "native-expanded",
        "native-hybrid-head", "native-hybrid-head-hot", "native-packed-kx", "native-hybrid-kx", "native-hybrid-kx2",
        "mirror", "mirror64",
    };
    assert_int_equal(eng_arm_count(), sizeof NAMES / sizeof NAMES[0]);
    for (size_t i = 0; i < eng_arm_count(); i++) {
        assert_string_equal(eng_arm_at(i)->name, NAMES[i]);
        assert_ptr_equal(eng_arm_find(NAMES[i]), eng_arm_at(i));
        assert_string_not_equal(eng_rep_name(eng_arm_at(i)->experts), "?");
    }
    assert_null(eng_arm_find("native"));
}

static void no_words_mean_the_documented_defaults(void **state)
{
    (void)state;
    eng_options o = accepted((eng_option_words){ 0 });
    assert_string_equal(o.arm->name, "native-packed");
    assert_true(o.backend == ENG_BACKEND_CPU && o.mode == ENG_MODE_EAGER && o.combine == ENG_COMBINE_EXACT);
    assert_true(o.acc == KRN_ACC_BLOCKED && o.n_ranks == 1 && o.threads == 0);
}

static void every_word_is_taken_and_named_back(void **state)
{
    (void)state;
    eng_options o = accepted((eng_option_words){ .arm = "native-expanded", .backend = "cpu", .mode = "graph", .acc = "f64",
                                                 .combine = "fused", .head = "official", .tp = ENG_RANKS_MAX });
    assert_string_equal(eng_mode_name(o.mode), "graph");
    assert_string_equal(eng_acc_name(o.acc), "f64");
    assert_string_equal(eng_combine_name(o.combine), "fused");
    assert_string_equal(eng_backend_name(o.backend), "cpu");
    assert_int_equal(o.n_ranks, ENG_RANKS_MAX);
}

static void unknown_words_are_refused_with_the_known_ones(void **state)
{
    (void)state;
    refused((eng_option_words){ .arm = "native" }, ERR_ARG, "native-packed");
    refused((eng_option_words){ .arm = "native" }, ERR_ARG, "mirror64"); /* the list is not cut off */
    refused((eng_option_words){ .backend = "gpu" }, ERR_ARG, "cpu, cuda");
    refused((eng_option_words){ .mode = "lazy" }, ERR_ARG, "eager, graph");
    refused((eng_option_words){ .acc = "f32" }, ERR_ARG, "blocked, f64");
    refused((eng_option_words){ .combine = "" }, ERR_ARG, "exact, fused");
    refused((eng_option_words){ .head = "bf16" }, ERR_ARG, "official, k6");
    refused((eng_option_words){ .tp = -1 }, ERR_ARG, "1 to 8");
    refused((eng_option_words){ .tp = ENG_RANKS_MAX + 1 }, ERR_ARG, "1 to 8");
}

static void the_references_keep_their_accumulation_and_one_rank(void **state)
{
    (void)state;
    assert_int_equal(accepted((eng_option_words){ .arm = "mirror64" }).acc, KRN_ACC_F64);
    assert_int_equal(accepted((eng_option_words){ .arm = "mirror64", .acc = "f64", .combine = "fused" }).acc, KRN_ACC_F64);
    assert_int_equal(accepted((eng_option_words){ .arm = "mirror", .tp = 1 }).acc, KRN_ACC_BLOCKED);
    refused((eng_option_words){ .arm = "mirror", .acc = "f64" }, ERR_ARG, "wanted blocked");
    refused((eng_option_words){ .arm = "mirror64", .acc = "blocked" }, ERR_ARG, "wanted f64");
    refused((eng_option_words){ .arm = "mirror", .tp = 2 }, ERR_ARG, "one rank");
}

static void the_head_is_the_arms_unless_it_is_said(void **state)
{
    (void)state;
    assert_int_equal(accepted((eng_option_words){ .arm = "native-hybrid" }).reps.head, ENG_REP_BF16);
    assert_int_equal(accepted((eng_option_words){ .arm = "native-hybrid", .head = "k6" }).reps.head, ENG_REP_EXL3);
    assert_int_equal(accepted((eng_option_words){ .arm = "k2-tp2" }).reps.head, ENG_REP_EXL3);
    assert_int_equal(accepted((eng_option_words){ .arm = "k2-tp2", .head = "k6" }).reps.head, ENG_REP_EXL3);
    refused((eng_option_words){ .arm = "k2-tp2", .head = "official" }, ERR_ARG, "wanted k6");
    refused((eng_option_words){ .arm = "native-hybrid-head", .head = "k6" }, ERR_ARG, "wanted official");
    refused((eng_option_words){ .arm = "mirror64", .head = "k6" }, ERR_ARG, "mirror64");
}

static void what_an_arm_holds_in_exl3_is_its_kinds_without_wo_a(void **state)
{
    (void)state;
    const eng_reps control = eng_arm_reps(eng_arm_find("k2-tp2"));
    const eng_reps mixed = eng_arm_reps(eng_arm_find("native-experts-packed"));
    const eng_reps hybrid = eng_arm_reps(eng_arm_find("native-hybrid"));
    assert_true(eng_reps_exl3(&control, ENG_W_EXPERT_W2) && eng_reps_exl3(&control, ENG_W_MAIN_PROJ));
    assert_false(eng_reps_exl3(&control, ENG_W_WO_A) || eng_reps_exl3(&control, ENG_W_GATE));
    assert_true(!eng_reps_exl3(&mixed, ENG_W_EXPERT_W2) && eng_reps_exl3(&mixed, ENG_W_SHARED_W2));
    assert_false(eng_reps_exl3(&hybrid, ENG_W_HEAD) || eng_reps_expand(&hybrid, ENG_W_EXPERT_W1));
    assert_true(eng_reps_expand(&hybrid, ENG_W_WO_A) && !eng_reps_expand(&control, ENG_W_WO_A));
}

static void a_kx_arm_is_another_with_its_experts_laid_otherwise(void **state)
{
    (void)state;
    static const char *const PAIR[][2] = { { "native-packed", "native-packed-kx" },
                                           { "native-hybrid", "native-hybrid-kx" } };
    for (size_t i = 0; i < sizeof PAIR / sizeof *PAIR; i++) {
        const eng_options base = accepted((eng_option_words){ .arm = PAIR[i][0], .tp = 2 });
        const eng_options kx = accepted((eng_option_words){ .arm = PAIR[i][1], .tp = 2 });
        assert_memory_equal(&base.reps, &kx.reps, sizeof kx.reps); /* the same mirrors judge it */
        assert_true(!base.arm->kx && kx.arm->kx && kx.reps.experts == ENG_REP_FP4);
        assert_int_equal(accepted((eng_option_words){ .arm = PAIR[i][1], .head = "k6" }).reps.head, ENG_REP_EXL3);
    }
}

static void the_kx2_arm_is_native_packed_with_one_weight_decoded(void **state)
{
    (void)state;
    const eng_options o = accepted((eng_option_words){ .arm = "native-hybrid-kx2", .tp = 2 });
    assert_true(o.arm->kx && o.arm->kx2 && o.reps.experts == ENG_REP_FP4 && o.reps.dense == ENG_REP_MIXED);
    for (int id = 0; id < ENG_W_COUNT; id++) {
        assert_int_equal(eng_reps_expand(&o.reps, (eng_wid)id), id == ENG_W_MAIN_PROJ);
        assert_false(eng_reps_exl3(&o.reps, (eng_wid)id));
    }
}

static void every_arm_runs_here_and_cuda_where_a_card_is(void **state)
{
    (void)state;
    for (size_t i = 0; i < eng_arm_count(); i++) accepted((eng_option_words){ .arm = eng_arm_at(i)->name });
    if (eng_device_present()) accepted((eng_option_words){ .backend = "cuda" });
    else refused((eng_option_words){ .backend = "cuda" }, ERR_DEVICE, "CUDA"); /* a build without it, or no device */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_documented_arm_is_in_the_table_in_order),
        cmocka_unit_test(no_words_mean_the_documented_defaults),
        cmocka_unit_test(every_word_is_taken_and_named_back),
        cmocka_unit_test(unknown_words_are_refused_with_the_known_ones),
        cmocka_unit_test(the_references_keep_their_accumulation_and_one_rank),
        cmocka_unit_test(the_head_is_the_arms_unless_it_is_said),
        cmocka_unit_test(what_an_arm_holds_in_exl3_is_its_kinds_without_wo_a),
        cmocka_unit_test(a_kx_arm_is_another_with_its_experts_laid_otherwise),
        cmocka_unit_test(the_kx2_arm_is_native_packed_with_one_weight_decoded),
        cmocka_unit_test(every_arm_runs_here_and_cuda_where_a_card_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
