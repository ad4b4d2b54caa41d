#include "tape_help.h"

#include "capture/joined.h"

static const int64_t S2x4[] = { 2, 4 };

static void put_part(fmt_tape_writer *w, const char *name, int32_t rank, int32_t n_ranks, fmt_place place, int32_t axis,
                     const float *data, int64_t rows, int64_t cols)
{
    fmt_tensor t = fmt_tensor_make(FMT_DTYPE_F32, data, 2, (const int64_t[]){ rows, cols });
    fmt_tape_key key = { 0, FMT_TAPE_NO_SLOT, rank, name };
    OK(fmt_tape_put(w, &key, &t, place, axis, n_ranks, FMT_TIER_TENSOR, e));
}

static fmt_tape_key named(const char *name) { return (fmt_tape_key){ 0, FMT_TAPE_NO_SLOT, 0, name }; }

static void shards_of_unequal_width_join_in_rank_order(void **state)
{
    const float a[] = { 0, 1, 2, 10, 11, 12 }, b[] = { 3, 4, 13, 14 }, c[] = { 5, 15 };
    const float want[] = { 0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15 };
    (void)state;
    fmt_tape_writer *w = tape_begin("shards.tape", NULL);
    put_part(w, "cols", 0, 3, FMT_PLACE_SHARDED, 1, a, 2, 3);
    put_part(w, "cols", 1, 3, FMT_PLACE_SHARDED, 1, b, 2, 2);
    put_part(w, "cols", 2, 3, FMT_PLACE_SHARDED, 1, c, 2, 1);
    put_part(w, "rows", 1, 2, FMT_PLACE_SHARDED, 0, b, 1, 4);
    put_part(w, "rows", 0, 2, FMT_PLACE_SHARDED, 0, a, 1, 4);
    fmt_tape *t = tape_end(w, "shards.tape");
    cap_value v = { 0 };
    fmt_tape_key key = named("cols");
    OK(cap_joined_get(t, &key, &v, e));
    assert_int_equal(v.tensor.ndim, 2);
    assert_int_equal(v.tensor.shape[0], 2);
    assert_int_equal(v.tensor.shape[1], 6);
    assert_int_equal(v.n_ranks, 3);
    assert_memory_equal(v.tensor.data, want, sizeof want);
    key = named("rows");
    OK(cap_joined_get(t, &key, &v, e));
    assert_int_equal(v.tensor.shape[0], 2);
    assert_memory_equal(v.tensor.data, a, 4 * sizeof *a);
    assert_memory_equal((const float *)v.tensor.data + 4, b, sizeof b);
    cap_value_fini(&v);
    fmt_tape_close(t);
}

static void partials_are_summed_from_rank_0_on(void **state)
{
    /* (1 + 2^-24) + 2^-24 is 1, 1 + (2^-24 + 2^-24) is not: the order shows. */
    const float tiny = 0x1p-24f, a[8] = { 1, 2, 3, 4, 5, 6, 7, 8 }, b[8] = { tiny, 1, 1, 1, 1, 1, 1, 1 };
    (void)state;
    fmt_tape_writer *w = tape_begin("partial.tape", NULL);
    put_part(w, "sum", 0, 3, FMT_PLACE_PARTIAL, 0, a, 2, 4);
    put_part(w, "sum", 1, 3, FMT_PLACE_PARTIAL, 0, b, 2, 4);
    put_part(w, "sum", 2, 3, FMT_PLACE_PARTIAL, 0, b, 2, 4);
    put_part(w, "alone", 0, 1, FMT_PLACE_PARTIAL, 0, a, 2, 4);
    fmt_tape *t = tape_end(w, "partial.tape");
    cap_value v = { 0 };
    fmt_tape_key key = named("sum");
    OK(cap_joined_get(t, &key, &v, e));
    const float *sum = v.tensor.data;
    for (int i = 0; i < 8; i++) assert_int_equal(f32_bits(sum[i]), f32_bits((a[i] + b[i]) + b[i]));
    assert_true(sum[0] == 1.0f);
    key = named("alone");
    OK(cap_joined_get(t, &key, &v, e));
    assert_memory_equal(v.tensor.data, a, sizeof a);
    cap_value_fini(&v);
    fmt_tape_close(t);
}

static void replicated_copies_that_differ_are_reported(void **state)
{
    float a[8] = { 1, 2, 3, 4, 5, 6, 7, 8 }, b[8];
    (void)state;
    memcpy(b, a, sizeof a);
    b[7] = 9;
    fmt_tape_writer *w = tape_begin("copies.tape", NULL);
    for (int32_t rank = 0; rank < 3; rank++) {
        put_part(w, "same", rank, 3, FMT_PLACE_REPLICATED, 0, a, 2, 4);
        put_part(w, "other", rank, 3, FMT_PLACE_REPLICATED, 0, rank == 2 ? b : a, 2, 4);
    }
    put_part(w, "rank 1 only", 1, 2, FMT_PLACE_REPLICATED, 0, a, 2, 4);
    fmt_tape *t = tape_end(w, "copies.tape");
    cap_value v = { 0 };
    fmt_tape_key key = named("same");
    OK(cap_joined_get(t, &key, &v, e));
    assert_int_equal(v.ranks_differ, 0);
    key = named("other");
    OK(cap_joined_get(t, &key, &v, e));
    assert_int_equal(v.ranks_differ, 2);
    assert_memory_equal(v.tensor.data, a, sizeof a);
    key = named("rank 1 only");
    OK(cap_joined_get(t, &key, &v, e));
    assert_memory_equal(v.tensor.data, a, sizeof a);
    cap_value_fini(&v);
    fmt_tape_close(t);
}

static void what_cannot_be_joined_is_refused_by_name(void **state)
{
    const float a[8] = { 1, 2, 3, 4, 5, 6, 7, 8 };
    (void)state;
    fmt_tape_writer *w = tape_begin("broken.tape", NULL);
    put_part(w, "half", 0, 2, FMT_PLACE_SHARDED, 1, a, 2, 4);
    put_part(w, "other half", 1, 2, FMT_PLACE_PARTIAL, 0, a, 2, 4);
    put_part(w, "rows differ", 0, 2, FMT_PLACE_SHARDED, 1, a, 2, 4);
    put_part(w, "rows differ", 1, 2, FMT_PLACE_SHARDED, 1, a, 1, 4);
    put_part(w, "sums differ", 0, 2, FMT_PLACE_PARTIAL, 0, a, 2, 4);
    put_part(w, "sums differ", 1, 2, FMT_PLACE_PARTIAL, 0, a, 2, 3);
    fmt_tensor whole = fmt_tensor_make(FMT_DTYPE_F32, a, 2, S2x4);
    fmt_tape_key key = named("hashed");
    OK(fmt_tape_put(w, &key, &whole, FMT_PLACE_REPLICATED, 0, 1, FMT_TIER_HASH, e));
    fmt_tape *t = tape_end(w, "broken.tape");
    cap_value v = { 0 };
    static const struct { const char *name, *text; } CASES[] = {
        { "half", "rank 1" }, { "other half", "rank 0" }, { "rows differ", "rank 1" }, { "sums differ", "rank 1" },
        { "hashed", "a hash" }, { "absent", "has no absent" },
    };
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        key = named(CASES[i].name);
        REFUSED(cap_joined_get(t, &key, &v, e), ERR_INPUT, CASES[i].text);
        assert_null(v.tensor.data);
    }
    cap_value_fini(&v);
    fmt_tape_close(t);
}

static void an_imported_value_has_no_rank(void **state)
{
    const float a[8] = { 1, 2, 3, 4, 5, 6, 7, 8 };
    (void)state;
    fmt_tape_writer *w = tape_begin("imported.tape", NULL);
    tape_put(w, 0, 5, FMT_TAPE_NO_RANK, "main_x", FMT_DTYPE_F32, a, 2, S2x4);
    fmt_tape *t = tape_end(w, "imported.tape");
    cap_value v = { 0 };
    OK(cap_joined_get(t, &(fmt_tape_key){ 0, 5, 0, "main_x" }, &v, e));
    assert_memory_equal(v.tensor.data, a, sizeof a);
    assert_int_equal(v.n_ranks, 1);
    cap_value_fini(&v);
    fmt_tape_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shards_of_unequal_width_join_in_rank_order), cmocka_unit_test(partials_are_summed_from_rank_0_on),
        cmocka_unit_test(replicated_copies_that_differ_are_reported),
        cmocka_unit_test(what_cannot_be_joined_is_refused_by_name),
        cmocka_unit_test(an_imported_value_has_no_rank),
    };
    return cmocka_run_group_tests(tests, enter_folder, NULL);
}
