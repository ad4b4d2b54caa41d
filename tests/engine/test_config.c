#include "engine/config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const char *const KEYS[] = {
    "vocab_size", "dim", "moe_inter_dim", "n_layers", "n_mtp_layers", "dspark_block_size", "dspark_noise_token_id",
    "dspark_target_layer_ids", "dspark_markov_rank", "dspark_n_routed_experts", "dspark_n_activated_experts", "n_heads",
    "score_func", "route_scale", "swiglu_limit", "q_lora_rank", "head_dim", "rope_head_dim", "norm_eps", "o_groups",
    "o_lora_rank", "window_size", "rope_theta", "hc_mult", "hc_sinkhorn_iters", "hc_eps", "dtype", "expert_dtype",
};
enum { N_KEYS = sizeof KEYS / sizeof KEYS[0] };

static json_t *tiny_json(void)
{
    eng_config c;
    assert_true(eng_config_preset("tiny", &c));
    json_t *o = eng_config_json(&c);
    assert_non_null(o);
    return o;
}

/* Parses tiny with one key changed to value (stolen; NULL removes the key). */
static err_code parse_changed(const char *key, json_t *value, eng_config *out, err *e)
{
    json_t *o = tiny_json();
    if (value) json_object_set_new(o, key, value);
    else json_object_del(o, key);
    err_code rc = eng_config_parse(o, "M/config.json", out, e);
    json_decref(o);
    return rc;
}

static void refused(const char *key, json_t *value, const char *found)
{
    eng_config c, before;
    err e = { 0 };
    memset(&c, 0x5a, sizeof c);
    before = c;
    assert_int_equal(parse_changed(key, value, &c, &e), ERR_INPUT);
    assert_non_null(strstr(e.msg, "M/config.json"));
    assert_non_null(strstr(e.msg, key));
    if (!strstr(e.msg, found)) fail_msg("%s: '%s' does not show %s", key, e.msg, found);
    assert_non_null(strstr(e.msg, "wanted"));
    assert_memory_equal(&c, &before, sizeof c); /* untouched on error */
}

static void every_preset_survives_its_json(void **state)
{
    (void)state;
    static const char *const NAMES[] = { "tiny", "mid", "official" };
    for (int i = 0; i < 3; i++) {
        eng_config a, b;
        assert_true(eng_config_preset(NAMES[i], &a));
        json_t *o = eng_config_json(&a);
        assert_int_equal(json_object_size(o), N_KEYS);
        assert_int_equal(eng_config_parse(o, "x", &b, NULL), ERR_OK);
        assert_true(eng_config_equal(&a, &b));
        json_decref(o);
    }
    eng_config c;
    assert_false(eng_config_preset("huge", &c));
}

static void the_official_preset_is_the_documented_one(void **state)
{
    (void)state;
    eng_config c;
    assert_true(eng_config_preset("official", &c));
    assert_int_equal(c.vocab, 129280);
    assert_int_equal(c.noise_id, 128799);
    assert_int_equal(c.tap_layer[2], 39);
    assert_int_equal(c.n_heads * c.head_dim, 32768);
    assert_int_equal(c.o_groups * c.o_lora, 8192);
    assert_true(c.norm_eps == 1e-20 && c.hc_eps == 1e-6 && c.rope_theta == 10000);
}

static void every_missing_key_is_named(void **state)
{
    (void)state;
    for (int i = 0; i < N_KEYS; i++) refused(KEYS[i], NULL, "found nothing");
}

static void every_wrong_type_is_named(void **state)
{
    (void)state;
    for (int i = 0; i < N_KEYS; i++) {
        refused(KEYS[i], json_true(), "found true");
        refused(KEYS[i], json_null(), "found null");
        refused(KEYS[i], json_object(), "found {}");
    }
}

static void integers_written_as_reals_are_refused_and_reals_as_integers_accepted(void **state)
{
    (void)state;
    eng_config c;
    refused("dim", json_real(256.0), "256.0");
    refused("dspark_target_layer_ids", json_pack("[i, f]", 37, 38.0), "38.0");
    assert_int_equal(parse_changed("swiglu_limit", json_integer(7), &c, NULL), ERR_OK);
    assert_true(c.swiglu_limit == 7.0);
}

static void dimensions_that_the_formats_cannot_hold_are_refused(void **state)
{
    (void)state;
    static const struct { const char *key; int value; } BAD[] = {
        { "dim", 250 }, { "dim", 0 }, { "dim", -32 }, { "dim", 1 << 30 }, { "moe_inter_dim", 100 }, { "q_lora_rank", 48 },
        { "head_dim", 40 }, { "o_lora_rank", 7 }, { "o_groups", 3 }, { "o_groups", 0 }, { "n_heads", 6 },
        { "rope_head_dim", 15 }, { "rope_head_dim", 66 }, { "rope_head_dim", 0 }, { "dspark_noise_token_id", 1280 },
        { "dspark_noise_token_id", -1 }, { "dspark_n_activated_experts", 9 }, { "dspark_n_activated_experts", 0 },
        { "hc_mult", 0 }, { "hc_mult", 9 }, { "hc_sinkhorn_iters", 0 }, { "window_size", 0 }, { "n_mtp_layers", 0 },
        { "n_mtp_layers", 9 }, { "dspark_block_size", 0 }, { "dspark_block_size", 17 }, { "vocab_size", 1 },
        { "dspark_markov_rank", 0 }, { "n_layers", 0 }, { "norm_eps", -1 }, { "rope_theta", 0 }, { "swiglu_limit", 0 },
    };
    for (size_t i = 0; i < sizeof BAD / sizeof BAD[0]; i++) {
        char found[24];
        snprintf(found, sizeof found, "%d", BAD[i].value);
        refused(BAD[i].key, json_integer(BAD[i].value), found);
    }
    refused("dspark_target_layer_ids", json_array(), "[]");
    refused("dspark_target_layer_ids", json_pack("[i]", 40), "40");
    refused("dspark_target_layer_ids", json_pack("[i,i,i,i,i,i,i,i,i]", 1, 1, 1, 1, 1, 1, 1, 1, 1), "[1,1");
}

static void only_the_one_arithmetic_is_accepted(void **state)
{
    (void)state;
    refused("score_func", json_string("sigmoid"), "sigmoid");
    refused("dtype", json_string("bf16"), "bf16");
    refused("expert_dtype", json_string("fp8"), "fp8");
}

static void unusual_but_possible_values_are_honoured(void **state)
{
    (void)state;
    eng_config c;
    assert_int_equal(parse_changed("window_size", json_integer(1), &c, NULL), ERR_OK);
    assert_int_equal(c.window, 1);
    assert_int_equal(parse_changed("n_mtp_layers", json_integer(8), &c, NULL), ERR_OK);
    assert_int_equal(parse_changed("hc_mult", json_integer(1), &c, NULL), ERR_OK);
    assert_int_equal(parse_changed("rope_head_dim", json_integer(64), &c, NULL), ERR_OK);
    assert_int_equal(parse_changed("norm_eps", json_integer(0), &c, NULL), ERR_OK);
    assert_int_equal(parse_changed("n_routed_experts", json_integer(384), &c, NULL), ERR_OK); /* the target's: ignored */
}

static void a_file_is_read_and_its_faults_name_it(void **state)
{
    (void)state;
    char dir[] = "config-XXXXXX", path[64];
    eng_config c, tiny;
    err e = { 0 };
    assert_non_null(mkdtemp(dir));
    assert_int_equal(eng_config_read(dir, &c, &e), ERR_INPUT);
    assert_non_null(strstr(e.msg, "config.json"));
    snprintf(path, sizeof path, "%s/config.json", dir);
    json_t *o = tiny_json();
    assert_int_equal(fmt_json_write(path, o, NULL), ERR_OK);
    json_decref(o);
    assert_int_equal(eng_config_read(dir, &c, &e), ERR_OK);
    assert_true(eng_config_preset("tiny", &tiny) && eng_config_equal(&c, &tiny));
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs("[1, 2]", f);
    fclose(f);
    assert_int_equal(eng_config_read(dir, &c, &e), ERR_INPUT);
    assert_non_null(strstr(e.msg, "wanted an object"));
    unlink(path);
    rmdir(dir);
}

static void a_difference_in_any_key_is_seen(void **state)
{
    (void)state;
    eng_config a, b;
    assert_true(eng_config_preset("tiny", &a));
    b = a;
    b.sinkhorn_iters++;
    assert_false(eng_config_equal(&a, &b));
    b = a;
    b.tap_layer[1]--;
    assert_false(eng_config_equal(&a, &b));
    b = a;
    b.hc_eps *= 2;
    assert_false(eng_config_equal(&a, &b));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_preset_survives_its_json),
        cmocka_unit_test(the_official_preset_is_the_documented_one),
        cmocka_unit_test(every_missing_key_is_named),
        cmocka_unit_test(every_wrong_type_is_named),
        cmocka_unit_test(integers_written_as_reals_are_refused_and_reals_as_integers_accepted),
        cmocka_unit_test(dimensions_that_the_formats_cannot_hold_are_refused),
        cmocka_unit_test(only_the_one_arithmetic_is_accepted),
        cmocka_unit_test(unusual_but_possible_values_are_honoured),
        cmocka_unit_test(a_file_is_read_and_its_faults_name_it),
        cmocka_unit_test(a_difference_in_any_key_is_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
