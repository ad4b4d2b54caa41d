#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/mem.h"
#include "replay/fold.h"

static eng_program *make(eng_step_kind step, int32_t n_ranks, eng_combine combine)
{
    eng_config c;
    eng_program *p;
    assert_true(eng_config_preset("tiny", &c));
    assert_int_equal(eng_program_make(&c, step, n_ranks, combine, NULL, &p, NULL), ERR_OK);
    return p;
}

static rpl_fold *fold_at(const eng_program *p, eng_level level, bool *recorded)
{
    rpl_fold *f;
    for (int32_t v = 0; v < p->n_values; v++) recorded[v] = p->value[v].level <= level;
    assert_int_equal(rpl_fold_make(p, recorded, NULL, &f, NULL), ERR_OK);
    return f;
}

static bool holds(const int32_t *list, int32_t n, int32_t x)
{
    for (int32_t i = 0; i < n; i++)
        if (list[i] == x) return true;
    return false;
}

/* Walks a group's ops in order and checks that each reads only what was given or made before it. */
static void assert_runs(const eng_program *p, const rpl_group *g)
{
    bool *known = mem_alloc((size_t)p->n_values, sizeof *known);
    for (int32_t i = 0; i < g->n_in; i++) known[g->in[i]] = true;
    for (int32_t i = 0; i < g->n_ops; i++) {
        const eng_op *op = &p->op[g->op[i]];
        assert_true(i == 0 || g->op[i] > g->op[i - 1]);
        for (int32_t k = 0; k < op->n_in; k++)
            if (!known[op->in[k]]) fail_msg("%s reads %s, which nothing gives it", op->name, p->value[op->in[k]].name);
        for (int32_t k = 0; k < op->n_out; k++) known[op->out[k]] = true;
    }
    for (int32_t k = 0; k < g->n_out; k++) assert_true(known[g->out[k]]);
    free(known);
}

static void groups_run_from_recorded_values_alone_at_every_level(void **state)
{
    static const eng_level LEVELS[] = { ENG_LEVEL_IO, ENG_LEVEL_V1, ENG_LEVEL_DEEP, ENG_LEVEL_HIDDEN };
    (void)state;
    for (int step = 0; step < 2; step++)
        for (int32_t ranks = 1; ranks <= 2; ranks++)
            for (int combine = 0; combine < 2; combine++)
                for (size_t l = 0; l < COUNT_OF(LEVELS); l++) {
                    eng_program *p = make((eng_step_kind)step, ranks, (eng_combine)combine);
                    bool *recorded = mem_alloc((size_t)p->n_values, sizeof *recorded);
                    rpl_fold *f = fold_at(p, LEVELS[l], recorded);
                    for (int32_t i = 0; i < rpl_fold_count(f); i++) {
                        const rpl_group *g = rpl_fold_at(f, i);
                        assert_true(g->complete);
                        for (int32_t k = 0; k < g->n_in; k++) assert_true(recorded[g->in[k]] || p->value[g->in[k]].state);
                        assert_runs(p, g);
                    }
                    for (int32_t v = 0; v < p->n_values; v++)
                        assert_int_equal(rpl_fold_of_value(f, v) >= 0, recorded[v] && p->value[v].producer >= 0);
                    rpl_fold_free(f);
                    eng_program_free(p);
                    free(recorded);
                }
}

static void a_hidden_value_is_made_again_inside_each_group_that_needs_it(void **state)
{
    eng_program *p = make(ENG_STEP_DRAFT, 1, ENG_COMBINE_EXACT);
    bool *recorded = mem_alloc((size_t)p->n_values, sizeof *recorded);
    rpl_fold *f = fold_at(p, ENG_LEVEL_DEEP, recorded);
    (void)state;
    int32_t qdq = p->value[eng_program_find_value(p, "s0.attn.norm.qdq~")].producer;
    int32_t norm = eng_program_find_value(p, "s0.attn.norm");
    const char *const both[] = { "s0.attn.qr", "s0.attn.kv" };
    for (int i = 0; i < 2; i++) {
        const rpl_group *g = rpl_fold_at(f, rpl_fold_of_value(f, eng_program_find_value(p, both[i])));
        assert_true(holds(g->op, g->n_ops, qdq));
        assert_true(holds(g->in, g->n_in, norm));
    }
    rpl_fold_free(f);
    eng_program_free(p);
    free(recorded);
}

static void attention_reads_the_windows(void **state)
{
    eng_program *p = make(ENG_STEP_DRAFT, 1, ENG_COMBINE_EXACT);
    bool *recorded = mem_alloc((size_t)p->n_values, sizeof *recorded);
    rpl_fold *f = fold_at(p, ENG_LEVEL_V1, recorded);
    (void)state;
    const rpl_group *g = rpl_fold_at(f, rpl_fold_of_value(f, eng_program_find_value(p, "s1.attn_out")));
    assert_true(holds(g->in, g->n_in, eng_program_find_value(p, "s1.window")));
    assert_false(holds(g->in, g->n_in, eng_program_find_value(p, "s0.window")));
    assert_true(g->n_ops > 10); /* everything between two V1 values */
    rpl_fold_free(f);
    eng_program_free(p);
    free(recorded);
}

static void a_missing_input_makes_a_group_incomplete(void **state)
{
    eng_program *p = make(ENG_STEP_INSERT, 1, ENG_COMBINE_EXACT);
    bool *recorded = mem_alloc((size_t)p->n_values, sizeof *recorded);
    rpl_fold *f;
    (void)state;
    for (int32_t v = 0; v < p->n_values; v++) recorded[v] = p->value[v].level <= ENG_LEVEL_V1;
    recorded[eng_program_find_value(p, "taps")] = false;
    assert_int_equal(rpl_fold_make(p, recorded, NULL, &f, NULL), ERR_OK);
    assert_false(rpl_fold_at(f, rpl_fold_of_value(f, eng_program_find_value(p, "main_x")))->complete);
    assert_true(rpl_fold_at(f, rpl_fold_of_value(f, eng_program_find_value(p, "s0.main_kv")))->complete);
    rpl_fold_free(f);
    eng_program_free(p);
    free(recorded);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_run_from_recorded_values_alone_at_every_level),
        cmocka_unit_test(a_hidden_value_is_made_again_inside_each_group_that_needs_it),
        cmocka_unit_test(attention_reads_the_windows),
        cmocka_unit_test(a_missing_input_makes_a_group_incomplete),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
