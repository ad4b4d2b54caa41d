/* The program as data: docs/values.md's names are there once, in order, with shapes; nothing reads what nobody made. */
#include "engine/plan.h"
#include "engine/program.h"

#include "base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static eng_program *make(eng_step_kind step, int32_t n_ranks, eng_combine combine)
{
    eng_config c;
    eng_program *p;
    err e = { 0 };
    assert_true(eng_config_preset("official", &c));
    assert_int_equal(eng_program_make(&c, step, n_ranks, combine, NULL, &p, &e), ERR_OK);
    return p;
}

static void every_op_reads_only_what_came_before(void **state)
{
    (void)state;
    for (int step = 0; step < 2; step++)
        for (int ranks = 1; ranks <= 2; ranks++)
            for (int combine = 0; combine < 2; combine++) {
                eng_program *p = make((eng_step_kind)step, ranks, (eng_combine)combine);
                for (int32_t i = 0; i < p->n_ops; i++) {
                    for (int32_t k = 0; k < p->op[i].n_in; k++) assert_true(p->value[p->op[i].in[k]].producer < i);
                    for (int32_t k = 0; k < p->op[i].n_out; k++) assert_int_equal(p->value[p->op[i].out[k]].producer, i);
                }
                eng_program_free(p);
            }
}

static void names_are_unique(void **state)
{
    (void)state;
    eng_program *p = make(ENG_STEP_DRAFT, 2, ENG_COMBINE_EXACT);
    for (int32_t i = 0; i < p->n_values; i++) assert_int_equal(eng_program_find_value(p, p->value[i].name), i);
    for (int32_t i = 0; i < p->n_ops; i++) assert_int_equal(eng_program_find_op(p, p->op[i].name), i);
    eng_program_free(p);
}

typedef struct spec_row { const char *name; int64_t d0, d1, d2; } spec_row;

/* docs/values.md, official sizes, B = 2, n_out = 4, one rank */
static const spec_row SPEC[] = {
    { "ids", 10, 1, 1 }, { "block_pos", 10, 1, 1 }, { "x0", 10, 4, 5120 },
    { "s0.attn.mix_pre", 10, 4, 1 }, { "s0.attn.mix_post", 10, 4, 1 }, { "s2.attn.mix_comb", 10, 4, 4 },
    { "s0.attn.collapse", 10, 5120, 1 }, { "s0.attn.norm", 10, 5120, 1 }, { "s1.attn.qr", 10, 1280, 1 },
    { "s0.attn.q", 10, 64, 512 }, { "s0.attn.kv", 10, 512, 1 }, { "s0.attn.o", 10, 64, 512 },
    { "s0.attn.o_qdq", 10, 64, 512 },
    { "s0.attn.wo_a", 10, 8192, 1 }, { "s0.attn_out", 10, 5120, 1 }, { "s0.attn.stream", 10, 4, 5120 },
    { "s2.ffn.mix_pre", 10, 4, 1 }, { "s0.ffn.collapse", 10, 5120, 1 }, { "s0.ffn.norm", 10, 5120, 1 },
    { "s0.ffn.scores", 10, 128, 1 }, { "s0.ffn.ids", 10, 3, 1 }, { "s0.ffn.weights", 10, 3, 1 },
    { "s0.ffn.gate", 10, 3, 2304 }, { "s0.ffn.up", 10, 3, 2304 }, { "s0.ffn.h", 10, 3, 2304 },
    { "s0.ffn.slot", 10, 3, 5120 },
    { "s0.ffn.shared", 10, 5120, 1 }, { "s0.ffn_out", 10, 5120, 1 }, { "s2.out", 10, 4, 5120 },
    { "head.collapse", 10, 5120, 1 }, { "head.norm", 10, 5120, 1 }, { "head.logits", 10, 129280, 1 },
    { "head.biased", 2, 4, 129280 }, { "drafts", 2, 4, 1 }, { "confidence", 2, 4, 1 },
};

static void values_have_the_names_and_shapes_of_the_spec(void **state)
{
    (void)state;
    eng_program *p = make(ENG_STEP_DRAFT, 1, ENG_COMBINE_EXACT);
    eng_extents x = eng_extents_of(&p->config, 10, 2, 4);
    for (size_t i = 0; i < COUNT_OF(SPEC); i++) {
        int64_t s[3];
        int32_t v = eng_program_find_value(p, SPEC[i].name);
        if (v < 0) fail_msg("%s is missing", SPEC[i].name);
        eng_value_shape(p, v, &x, 0, 1, s);
        if (s[0] != SPEC[i].d0 || s[1] != SPEC[i].d1 || s[2] != SPEC[i].d2)
            fail_msg("%s is [%lld, %lld, %lld]", SPEC[i].name, (long long)s[0], (long long)s[1], (long long)s[2]);
    }
    eng_program_free(p);
}

static void shards_add_up_to_the_whole(void **state)
{
    (void)state;
    eng_program *p = make(ENG_STEP_DRAFT, 2, ENG_COMBINE_EXACT);
    eng_extents x = eng_extents_of(&p->config, 5, 1, 5);
    for (int32_t v = 0; v < p->n_values; v++) {
        if (p->value[v].place != FMT_PLACE_SHARDED) continue;
        int64_t sum = eng_value_elems(p, v, &x, 0, 2) + eng_value_elems(p, v, &x, 1, 2);
        assert_int_equal(sum, eng_value_elems(p, v, &x, 0, 1));
    }
    int64_t s[3]; /* the tile-aligned vocabulary split: 253 and 252 tiles of 256 */
    eng_value_shape(p, eng_program_find_value(p, "head.logits"), &x, 0, 2, s);
    assert_int_equal(s[1], 64768);
    eng_program_free(p);
}

/* At every op, no two values that are alive share a byte, and retained ones are alive to the end. */
static void planned_buffers_never_meet(void **state)
{
    (void)state;
    eng_program *p = make(ENG_STEP_DRAFT, 2, ENG_COMBINE_FUSED);
    eng_extents x = eng_extents_of(&p->config, 20, 4, 5);
    eng_plan shared, whole;
    err e = { 0 };
    assert_int_equal(eng_plan_make(p, &x, 0, 2, ENG_LEVEL_V1, &shared, &e), ERR_OK);
    assert_int_equal(eng_plan_make(p, &x, 0, 2, ENG_LEVEL_HIDDEN, &whole, &e), ERR_OK);
    assert_true(shared.bytes < whole.bytes);
    for (int32_t i = 0; i < p->n_ops; i++) {
        uint64_t out0 = shared.offset[p->op[i].out[0]];
        if (p->value[p->op[i].out[0]].state) continue;
        for (int32_t v = 0; v < p->n_values; v++) {
            bool later = p->value[v].level <= ENG_LEVEL_V1;
            for (int32_t j = i; j < p->n_ops && !later; j++)
                for (int32_t k = 0; k < p->op[j].n_in; k++) later |= p->op[j].in[k] == v;
            if (v == p->op[i].out[0] || p->value[v].producer >= i || !later || p->value[v].state) continue;
            uint64_t bytes = (uint64_t)eng_value_elems(p, v, &x, 0, 2) * fmt_dtype_bytes(p->value[v].dtype);
            uint64_t mine = (uint64_t)eng_value_elems(p, p->op[i].out[0], &x, 0, 2) *
                            fmt_dtype_bytes(p->value[p->op[i].out[0]].dtype);
            if (out0 < shared.offset[v] + bytes && shared.offset[v] < out0 + mine)
                fail_msg("%s overwrites %s", p->op[i].name, p->value[v].name);
        }
    }
    eng_plan_fini(&shared);
    eng_plan_fini(&whole);
    eng_program_free(p);
}

static void two_ranks_add_only_exchanges(void **state)
{
    (void)state;
    for (int combine = 0; combine < 2; combine++) {
        eng_program *one = make(ENG_STEP_DRAFT, 1, (eng_combine)combine);
        eng_program *two = make(ENG_STEP_DRAFT, 2, (eng_combine)combine);
        int32_t k = 0, reduces = 0;
        for (int32_t i = 0; i < two->n_ops; i++) {
            if (two->op[i].kind == ENG_OP_ALL_REDUCE) {
                reduces++;
                continue;
            }
            assert_string_equal(two->op[i].name, one->op[k].name);
            k++;
        }
        assert_int_equal(k, one->n_ops);
        /* wo_b, slots, shared against wo_b, sum: 3 stages */
        assert_int_equal(reduces, combine == ENG_COMBINE_EXACT ? 9 : 6);
        eng_program_free(one);
        eng_program_free(two);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_op_reads_only_what_came_before),
        cmocka_unit_test(names_are_unique),
        cmocka_unit_test(values_have_the_names_and_shapes_of_the_spec),
        cmocka_unit_test(shards_add_up_to_the_whole),
        cmocka_unit_test(planned_buffers_never_meet),
        cmocka_unit_test(two_ranks_add_only_exchanges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
