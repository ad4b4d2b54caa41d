/* Narrowing changes no value, or is not done. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "capture/narrow.h"
#include "engine/program.h"
#include "formats/number.h"

static fmt_tensor vector(fmt_dtype d, const void *data, int64_t n) { return fmt_tensor_make(d, data, 1, &n); }

/* The table of names agrees with the program, value for value. */
static void every_value_of_the_program_has_its_dtype(void **state)
{
    (void)state;
    eng_config c;
    err e = { 0 };
    assert_true(eng_config_preset("tiny", &c));
    for (int step = 0; step < 2; step++) {
        eng_program *p;
        assert_int_equal(eng_program_make(&c, (eng_step_kind)step, 1, ENG_COMBINE_EXACT, NULL, &p, &e), ERR_OK);
        for (int32_t v = 0; v < p->n_values; v++) {
            fmt_dtype d;
            if (p->value[v].level == ENG_LEVEL_HIDDEN) continue;
            if (!cap_name_dtype(p->value[v].name, &d)) fail_msg("%s has no dtype", p->value[v].name);
            if (d != p->value[v].dtype) fail_msg("%s: %s", p->value[v].name, fmt_dtype_name(d));
        }
        eng_program_free(p);
    }
    fmt_dtype d;
    assert_false(cap_name_dtype("s0.attention", &d));
}

static void exact_values_keep_their_bits(void **state)
{
    (void)state;
    enum { N = 65536 };
    static float wide[N];
    static double wider[N];
    static bf16 out[N];
    for (int i = 0; i < N; i++) wide[i] = f32_from_bf16((bf16)i), wider[i] = (double)wide[i];
    fmt_tensor f = vector(FMT_DTYPE_F32, wide, N), d = vector(FMT_DTYPE_F64, wider, N);
    for (int pass = 0; pass < 2; pass++) {
        assert_int_equal(cap_narrow(pass ? &d : &f, FMT_DTYPE_BF16, out), 0);
        for (int i = 0; i < N; i++) assert_int_equal(out[i], (i & 0x7fff) > 0x7f80 ? 0x7fc0 : i);
    }
    static float single[N];
    assert_int_equal(cap_narrow(&d, FMT_DTYPE_F32, single), 0);
    for (int i = 0; i < N; i++) assert_true(single[i] == wide[i] || isnan(wide[i]));
}

static void half_precision_is_read_by_its_own_rules(void **state)
{
    (void)state;
    static const uint16_t half[] = { 0x0001, 0x03ff, 0x0400, 0x3c00, 0xc000, 0x7bff, 0x7c00, 0x8000 };
    static const float value[] = { 0x1p-24f, 0x1.ff8p-15f, 0x1p-14f, 1, -2, 65504, INFINITY, -0.0f };
    float out[8];
    fmt_tensor t = vector(FMT_DTYPE_F16, half, 8);
    assert_int_equal(cap_narrow(&t, FMT_DTYPE_F32, out), 0);
    assert_memory_equal(out, value, sizeof out);
}

static void what_does_not_fit_is_counted(void **state)
{
    (void)state;
    const float f[] = { 1, 1.00390625f, 3e-45f, INFINITY };
    const int64_t i[] = { 5, INT64_C(1) << 31, -INT64_C(2147483648), -INT64_C(2147483649) };
    int32_t out[4];
    fmt_tensor t = vector(FMT_DTYPE_F32, f, 4), u = vector(FMT_DTYPE_I64, i, 4), w = vector(FMT_DTYPE_I32, out, 4);
    assert_int_equal(cap_narrow(&t, FMT_DTYPE_BF16, out), 2);
    assert_int_equal(cap_narrow(&u, FMT_DTYPE_I32, out), 2);
    assert_int_equal(cap_narrow(&w, FMT_DTYPE_BF16, out), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_value_of_the_program_has_its_dtype),
        cmocka_unit_test(exact_values_keep_their_bits),
        cmocka_unit_test(half_precision_is_read_by_its_own_rules),
        cmocka_unit_test(what_does_not_fit_is_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
