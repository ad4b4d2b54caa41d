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

/* Rows of a slot as an insert of two ranks leaves them: main_x whole on both, main_kv cut, the window after it. */
static void put_insert(fmt_tape_writer *w, int32_t rows, float first, const float window[8])
{
    float x[32];
    for (int i = 0; i < 32; i++) x[i] = first + (float)i;
    for (int32_t rank = 0; rank < 2; rank++) {
        const fmt_tensor whole = fmt_tensor_make(FMT_DTYPE_F32, x, 2, (const int64_t[]){ rows, 4 });
        const fmt_tensor half = fmt_tensor_make(FMT_DTYPE_F32, x + 2 * rank, 2, (const int64_t[]){ rows, 2 });
        const fmt_tensor ring = fmt_tensor_make(FMT_DTYPE_F32, window, 2, S2x4);
        OK(fmt_tape_put(w, &(fmt_tape_key){ 3, 7, rank, "main_x" }, &whole, FMT_PLACE_REPLICATED, 0, 2, FMT_TIER_TENSOR,
                        e));
        OK(fmt_tape_put(w, &(fmt_tape_key){ 3, 7, rank, "half" }, &half, FMT_PLACE_SHARDED, 1, 2, FMT_TIER_TENSOR, e));
        OK(fmt_tape_put(w, &(fmt_tape_key){ 3, 7, rank, "s0.window" }, &ring, FMT_PLACE_REPLICATED, 0, 2, FMT_TIER_TENSOR,
                        e));
    }
}

static void inserts_of_a_slot_in_one_round_are_one_value_of_all_their_rows(void **state)
{
    const float early[8] = { 1 }, late[8] = { 2 };
    const float whole[] = { 0, 1, 2, 3, 4, 5, 6, 7, 100, 101, 102, 103 };
    const float half[] = { 0, 1, 2, 3, 2, 3, 4, 5, 100, 101, 102, 103 }; /* a row: two columns of rank 0, two of rank 1 */
    (void)state;
    fmt_tape_writer *w = tape_begin("inserts.tape", NULL);
    put_insert(w, 2, 0, early);
    tape_put_ints(w, 3, 8, "main_x", 1, (const int32_t[]){ 5 }); /* another slot's, between */
    put_insert(w, 1, 100, late);
    tape_put_ints(w, 4, 7, "main_x", 1, (const int32_t[]){ 6 }); /* another round's */
    fmt_tape *t = tape_end(w, "inserts.tape");
    cap_value v = { 0 };
    OK(cap_joined_get(t, &(fmt_tape_key){ 3, 7, 0, "main_x" }, &v, e));
    assert_int_equal(v.tensor.shape[0], 3);
    assert_int_equal(v.tensor.shape[1], 4);
    assert_memory_equal(v.tensor.data, whole, sizeof whole);
    assert_int_equal(v.ranks_differ, 0);
    OK(cap_joined_get(t, &(fmt_tape_key){ 3, 7, 0, "half" }, &v, e));
    assert_int_equal(v.tensor.shape[0], 3);
    assert_memory_equal(v.tensor.data, half, sizeof half);
    OK(cap_joined_get(t, &(fmt_tape_key){ 3, 7, 0, "s0.window" }, &v, e));
    assert_int_equal(v.tensor.shape[0], 2);
    assert_memory_equal(v.tensor.data, late, sizeof late);
    OK(cap_joined_get(t, &(fmt_tape_key){ 4, 7, 0, "main_x" }, &v, e));
    assert_int_equal(v.tensor.shape[0], 1);
    assert_int_equal(fmt_tape_again(t, 0), 7);
    assert_int_equal(fmt_tape_again(t, 7), -1);
    cap_value_fini(&v);
    fmt_tape_close(t);
}

static void inserts_that_do_not_fit_each_other_are_refused(void **state)
{
    const float x[8] = { 0 };
    (void)state;
    fmt_tape_writer *w = tape_begin("misfit.tape", NULL);
    tape_put(w, 0, 1, 0, "main_x", FMT_DTYPE_F32, x, 2, S2x4);
    tape_put(w, 0, 1, 0, "main_x", FMT_DTYPE_F32, x, 2, (const int64_t[]){ 4, 2 });
    fmt_tape *t = tape_end(w, "misfit.tape");
    cap_value v = { 0 };
    REFUSED(cap_joined_get(t, &(fmt_tape_key){ 0, 1, 0, "main_x" }, &v, e), ERR_INPUT, "do not fit each other");
    assert_null(v.tensor.data);
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
        cmocka_unit_test(inserts_of_a_slot_in_one_round_are_one_value_of_all_their_rows),
        cmocka_unit_test(inserts_that_do_not_fit_each_other_are_refused),
    };
    return cmocka_run_group_tests(tests, enter_folder, NULL);
}
