#include "tape_help.h"

#include "base/mem.h"
#include "capture/commands.h"
#include "capture/reference.h"

/* What `show` prints for one reference and option; its error's message where it fails. */
typedef struct printed { err_code rc; char text[4096]; } printed;

static printed show(const char *ref, const char *option)
{
    printed p = { 0 };
    err e = { 0 };
    int status, before = dup(1);
    const char *argv[] = { ref, option };
    FILE *f = fopen("printed", "w+");
    assert_non_null(f);
    fflush(stdout);
    assert_true(before >= 0 && dup2(fileno(f), 1) == 1);
    p.rc = CMD_SHOW.run(&CMD_SHOW, option ? 2 : 1, (char **)(uintptr_t)argv, &status, &e);
    fflush(stdout);
    assert_true(dup2(before, 1) == 1);
    close(before);
    rewind(f);
    size_t n = fread(p.text, 1, sizeof p.text - 1, f);
    fclose(f);
    if (p.rc != ERR_OK) snprintf(p.text + n, sizeof p.text - n, "%s", e.msg);
    return p;
}

static void shows(const char *ref, const char *option, const char *const *wanted)
{
    printed p = show(ref, option);
    for (; *wanted; wanted++)
        if (p.rc != ERR_OK || !strstr(p.text, *wanted)) fail_msg("%s: '%s' lacks '%s'", ref, p.text, *wanted);
}
#define SHOWS(ref, ...) shows(ref, NULL, (const char *const[]){ __VA_ARGS__, NULL })

static void refuses(const char *ref, err_code code, const char *wanted)
{
    printed p = show(ref, NULL);
    if (p.rc != code || !strstr(p.text, wanted)) fail_msg("%s: %s: '%s' lacks '%s'", ref, err_name(p.rc), p.text, wanted);
}

static void put(fmt_tape_writer *w, const char *name, int32_t rank, int32_t n_ranks, fmt_place place, int32_t axis,
                fmt_tier tier, const float *data, int64_t rows, int64_t cols)
{
    fmt_tensor t = fmt_tensor_make(FMT_DTYPE_F32, data, 2, (const int64_t[]){ rows, cols });
    fmt_tape_key key = { 1, FMT_TAPE_NO_SLOT, rank, name };
    OK(fmt_tape_put(w, &key, &t, place, axis, n_ranks, tier, e));
}

static int setup(void **state)
{
    const float a[] = { 0, 1, 10, 11 }, b[] = { 2, 12 };
    if (enter_folder(state) != 0) return -1;
    fmt_tape_writer *w = tape_begin("t.tape", NULL);
    put(w, "cut", 0, 2, FMT_PLACE_SHARDED, 1, FMT_TIER_TENSOR, a, 2, 2);
    put(w, "cut", 1, 2, FMT_PLACE_SHARDED, 1, FMT_TIER_TENSOR, b, 2, 1);
    put(w, "sum", 0, 2, FMT_PLACE_PARTIAL, 0, FMT_TIER_TENSOR, a, 2, 1);
    put(w, "sum", 1, 2, FMT_PLACE_PARTIAL, 0, FMT_TIER_TENSOR, b, 2, 1);
    put(w, "copy", 0, 2, FMT_PLACE_REPLICATED, 0, FMT_TIER_TENSOR, a, 2, 2);
    put(w, "copy", 1, 2, FMT_PLACE_REPLICATED, 0, FMT_TIER_TENSOR, a, 2, 2);
    put(w, "other", 0, 2, FMT_PLACE_REPLICATED, 0, FMT_TIER_TENSOR, a, 2, 1);
    put(w, "other", 1, 2, FMT_PLACE_REPLICATED, 0, FMT_TIER_TENSOR, b, 2, 1);
    put(w, "half", 0, 2, FMT_PLACE_SHARDED, 1, FMT_TIER_TENSOR, a, 2, 2);
    put(w, "counts", 1, 9, FMT_PLACE_SHARDED, 0, FMT_TIER_TENSOR, b, 2, 1); /* the ranks tell different counts */
    put(w, "counts", 0, 2, FMT_PLACE_SHARDED, 0, FMT_TIER_TENSOR, a, 1, 1);
    put(w, "told", 0, 2, FMT_PLACE_SHARDED, 0, FMT_TIER_STATS, a, 1, 2);
    put(w, "told", 1, 2, FMT_PLACE_SHARDED, 0, FMT_TIER_STATS, b, 1, 2);
    put(w, "one", 0, 1, FMT_PLACE_REPLICATED, 0, FMT_TIER_TENSOR, a, 2, 2);
    put(w, "import", FMT_TAPE_NO_RANK, 1, FMT_PLACE_REPLICATED, 0, FMT_TIER_TENSOR, a, 2, 2);
    fmt_tape_close(tape_end(w, "t.tape"));
    return 0;
}

static void without_a_rank_the_parts_are_put_together(void **state)
{
    (void)state;
    SHOWS("t.tape:1/-/cut", "t.tape:1/-/cut\n",
          "F32 [2, 3], sharded along axis 1, 2 ranks, kept as tensor; shards joined\n",
          "24 bytes, ", "in 2 parts", "min 0  max 12 ", "10           11           12");
    SHOWS("t.tape:1/-/sum", "F32 [2, 1], partial, 2 ranks, kept as tensor; summed in rank order\n", "8 bytes", "max 13 ");
    SHOWS("t.tape:1/-/copy", "F32 [2, 2], replicated, 2 ranks, kept as tensor; the lowest rank's copy\n", "16 bytes");
    SHOWS("t.tape:1/-/other", "the lowest rank's copy, rank 1's differs\n");
    SHOWS("t.tape:1/-/counts", "F32 [3, 1], sharded along axis 0, 2 ranks", "in 2 parts");
}

static void an_index_is_one_into_the_joined_value(void **state)
{
    (void)state;
    SHOWS("t.tape:1/-/cut[1,2]", "\n12  0x41400000  sign 0");
    SHOWS("t.tape:1/-/sum[1,0]", "\n13  0x41500000");
    SHOWS("t.tape:1/-/copy[1,1]", "\n11  0x41300000");
    refuses("t.tape:1/-/cut[0,3]", ERR_ARG, "[2, 3]");
    shows("t.tape:1/-/cut[1,2]", "--json",
          (const char *const[]){ "\"joined\":\"shards joined\"", "\"shape\":[2,3]", "12.0", NULL });
}

static void with_a_rank_its_record_is_shown(void **state)
{
    (void)state;
    SHOWS("t.tape:1/-/cut@r1", "t.tape:1/-/cut@r1\n", "F32 [2, 1], sharded along axis 1, 2 ranks, kept as tensor\n");
    SHOWS("t.tape:1/-/sum@r1[1,0]", "\n12  0x41400000");
    refuses("t.tape:1/-/cut@r1[1,2]", ERR_ARG, "[2, 1]");
    refuses("t.tape:1/-/cut@r2", ERR_INPUT, "no cut");
}

static void a_value_of_one_rank_is_its_record(void **state)
{
    (void)state;
    SHOWS("t.tape:1/-/one", "t.tape:1/-/one@r0\n", "F32 [2, 2], replicated, 1 rank, kept as tensor\n");
    SHOWS("t.tape:1/-/import", "t.tape:1/-/import\n", "1 rank, kept as tensor\n");
}

static void what_cannot_be_joined_is_shown_rank_by_rank(void **state)
{
    (void)state;
    refuses("t.tape:1/-/half", ERR_INPUT, "@rRANK");
    refuses("t.tape:1/-/half[0,0]", ERR_INPUT, "rank 1");
    SHOWS("t.tape:1/-/half@r0[0,1]", "\n1  0x3f800000");
    SHOWS("t.tape:1/-/told", "t.tape:1/-/told@r0\n", "kept as stats\n", "max 1 "); /* no payload: nothing to join */
    refuses("t.tape:1/-/told[0,0]", ERR_INPUT, "statistics");
}

static void the_tape_may_stand_beside_the_place(void **state)
{
    (void)state;
    static const struct { const char *a, *b; } FORMS[] = {
        { "t.tape", "1/-/cut[1,2]" }, { "1/-/cut[1,2]", "t.tape" }, { "t.tape", "t.tape:1/-/cut[1,2]" },
    };
    for (size_t i = 0; i < COUNT_OF(FORMS); i++)
        shows(FORMS[i].a, FORMS[i].b, (const char *const[]){ "\n12  0x41400000", NULL });
    printed other = show("t.tape", "u.tape:1/-/cut");
    assert_int_equal(other.rc, ERR_ARG);
    assert_non_null(strstr(other.text, "u.tape"));
    refuses("1/-/cut", ERR_ARG, "without a tape");
    refuses("t.tape", ERR_ARG, "ROUND/SLOT/VALUE");
}

/* Colons in a tape's name, numbers that are none, what stands behind a name. */
static void references_are_read_from_their_end(void **state)
{
    (void)state;
    cap_reference r;
    assert_int_equal(cap_reference_parse("a:1/2/x:30/4/y.z@r5[6, 7]", &r, NULL), ERR_OK);
    assert_string_equal(r.tape, "a:1/2/x");
    assert_string_equal(r.value, "y.z");
    assert_true(r.round == 30 && r.slot == 4 && r.rank == 5 && r.n_index == 2 && r.index[0] == 6 && r.index[1] == 7);
    cap_reference_fini(&r);
    assert_int_equal(cap_reference_parse("1/-/x", &r, NULL), ERR_OK);
    assert_true(!r.tape && r.slot == FMT_TAPE_NO_SLOT && r.rank == FMT_TAPE_NO_RANK && !r.indexed);
    cap_reference_fini(&r);
    static const char *const BAD[] = { "", ":", "1/-/", "t:1/-/", "t:x/-/y", "t:1/y", "t:9999999999/-/y", "t:1/-/y[",
                                       "t:1/-/y[1", "t:1/-/y[a]", "t:1/-/y@r", "t:1/-/y@r1@r2", "t:1/-/[1]", "t:-1/-/y" };
    for (size_t i = 0; i < COUNT_OF(BAD); i++)
        if (cap_reference_parse(BAD[i], &r, NULL) != ERR_ARG || r.tape || r.value) fail_msg("'%s' is taken", BAD[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_rank_the_parts_are_put_together),
        cmocka_unit_test(an_index_is_one_into_the_joined_value),
        cmocka_unit_test(with_a_rank_its_record_is_shown),
        cmocka_unit_test(a_value_of_one_rank_is_its_record),
        cmocka_unit_test(what_cannot_be_joined_is_shown_rank_by_rank),
        cmocka_unit_test(the_tape_may_stand_beside_the_place),
        cmocka_unit_test(references_are_read_from_their_end),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
