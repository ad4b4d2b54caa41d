#include "tui_help.h"

#include "tui/ref.h"

static void a_reference_names_round_slot_value_and_index(void **state)
{
    (void)state;
    tui_ref r;
    OK(tui_ref_parse("a.tape:3/-/s0.attn_out[2, 17]", &r, e));
    assert_int_equal(r.round, 3);
    assert_int_equal(r.slot, FMT_TAPE_NO_SLOT);
    assert_string_equal(r.name, "s0.attn_out");
    assert_int_equal(r.n_index, 2);
    assert_int_equal(r.index[1], 17);
    OK(tui_ref_parse("dir:with:colons/a.tape:4/2/pos", &r, e));
    assert_int_equal(r.round, 4);
    assert_int_equal(r.slot, 2);
    OK(tui_ref_parse("5", &r, e));
    assert_int_equal(r.round, 5);
    assert_false(r.has_slot);
    OK(tui_ref_parse("5/-/s0.attn.q@r1[0,1,2]", &r, e));
    assert_string_equal(r.name, "s0.attn.q");
    assert_int_equal(r.n_index, 3);
}

static void anything_else_is_refused(void **state)
{
    (void)state;
    static const char *const BAD[] = { "", "x", "-1", "3/", "3/x", "3/-/", "3/-/a[", "3/-/a[]", "3/-/a[1", "3/-/a[1]x",
                                       "3/-/a@1", "99999999999", "3/-/a[1,2,3,4,5,6,7,8,9]",
                                       "3/-/a[99999999999999999999]" };
    tui_ref r;
    for (size_t i = 0; i < COUNT_OF(BAD); i++) REFUSED(tui_ref_parse(BAD[i], &r, e), ERR_ARG, BAD[i]);
}

static void an_index_goes_to_text_and_back(void **state)
{
    (void)state;
    fmt_tensor t = fmt_tensor_make(FMT_DTYPE_F32, NULL, 3, (const int64_t[]){ 4, 3, 5 });
    int64_t index[FMT_DIMS_MAX], flat;
    int32_t n;
    char text[128];
    for (int64_t i = 0; i < 60; i++) {
        assert_true(tui_index_parse(tui_index_text(&t, i, text), index, &n));
        assert_int_equal(n, 3);
        assert_true(tui_index_flat(&t, index, n, &flat));
        assert_int_equal(flat, i);
    }
    assert_true(tui_index_parse("59", index, &n) && tui_index_flat(&t, index, n, &flat));
    assert_true(tui_index_parse("60", index, &n) && !tui_index_flat(&t, index, n, &flat));
    assert_true(tui_index_parse("1,1", index, &n) && !tui_index_flat(&t, index, n, &flat));
    assert_true(tui_index_parse("1,3,1", index, &n) && !tui_index_flat(&t, index, n, &flat));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_reference_names_round_slot_value_and_index),
        cmocka_unit_test(anything_else_is_refused),
        cmocka_unit_test(an_index_goes_to_text_and_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
