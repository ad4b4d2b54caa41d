/* The capture API, as a program of somebody else's uses it. */
#include "tests/support/ok.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "capture/sparktape.h"
#include "formats/number.h"
#include "formats/tape.h"

static char dir[] = "capture-test-XXXXXX";

static int setup(void **state)
{
    (void)state;
    return mkdtemp(dir) && chdir(dir) == 0 ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    unlink("t.tape");
    unlink("t.tape.part");
    return chdir("..") == 0 && rmdir(dir) == 0 ? 0 : -1;
}

static sparktape *created(void)
{
    char why[200] = "";
    sparktape *t = sparktape_create("t.tape", "test", why, sizeof why);
    if (!t) fail_msg("%s", why);
    return t;
}

static fmt_tape *finished(sparktape *t)
{
    char why[200] = "";
    fmt_tape *read;
    if (sparktape_finish(t, why, sizeof why) != 0) fail_msg("%s", why);
    OK(fmt_tape_open("t.tape", &read, e));
    return read;
}

static void what_is_put_is_read(void **state)
{
    const float exact[2] = { 1.5f, -2.0f }, inexact[2] = { 1.0f / 3, 1 };
    const int64_t two = 2;
    const int32_t id = 7;
    float got[2];
    bf16 narrow[2];
    (void)state;
    sparktape *t = created();
    assert_int_equal(sparktape_put(t, "round.0.insert.1.main_x", "F32", 1, &two, exact), 0);
    assert_int_equal(sparktape_put(t, "round.0.s0.attn_out", "F32", 1, &two, inexact), 0);
    assert_int_equal(sparktape_put(t, "round.4.their.own", "I32", 0, NULL, &id), 0);
    assert_string_equal(sparktape_error(t), "");
    fmt_tape *r = finished(t);
    assert_int_equal(fmt_tape_count(r), 3);
    fmt_tape_record a;
    fmt_tape_at(r, 0, &a);
    assert_int_equal(a.tensor.dtype, FMT_DTYPE_BF16); /* its name's dtype, in which nothing is lost */
    assert_int_equal(a.key.slot, 1);
    OK(fmt_tape_get(r, 0, narrow, sizeof narrow, e));
    assert_true(f32_from_bf16(narrow[0]) == 1.5f && f32_from_bf16(narrow[1]) == -2.0f);
    fmt_tape_at(r, 1, &a);
    assert_int_equal(a.tensor.dtype, FMT_DTYPE_F32); /* a third is no bf16 */
    OK(fmt_tape_get(r, 1, got, sizeof got, e));
    assert_memory_equal(got, inexact, sizeof got);
    fmt_tape_at(r, 2, &a);
    assert_int_equal(a.key.round, 4);
    assert_string_equal(a.key.name, "their.own");
    const json_t *identity = json_object_get(fmt_tape_head(r), "identity");
    assert_string_equal(json_string_value(json_object_get(identity, "engine")), "test");
    assert_int_equal(json_integer_value(json_object_get(fmt_tape_summary(r), "rounds")), 2);
    fmt_tape_close(r);
}

static void what_is_refused_is_named_and_counted_and_the_rest_goes_on(void **state)
{
    const int64_t two = 2, minus = -1, huge[3] = { INT64_MAX, INT64_MAX, 4 };
    const float x[2] = { 0 };
    const struct { const char *name, *dtype; int ndim; const int64_t *shape; const void *data; const char *text; } BAD[] = {
        { "s0.attn_out", "F32", 1, &two, x, "round.0.s0.attn_out" }, { NULL, "F32", 1, &two, x, "found ''" },
        { "round.1.x", "float", 1, &two, x, "found 'float'" }, { "round.1.x", NULL, 1, &two, x, "dtype" },
        { "round.1.x", "F32", 9, &two, x, "9 dimensions" }, { "round.1.x", "F32", -1, &two, x, "-1 dimensions" },
        { "round.1.x", "F32", 1, NULL, x, "1 dimensions" }, { "round.1.x", "F32", 1, &minus, x, "found -1" },
        { "round.1.x", "F32", 3, huge, x, "size 0" }, { "round.1.x", "F32", 1, &two, NULL, "no data" },
        { "round.0.x", "F32", 1, &two, x, "round 0 after round 1" }, { "round.1.first", "F32", 1, &two, x, "twice" },
    };
    (void)state;
    sparktape *t = created();
    assert_int_equal(sparktape_put(t, "round.1.first", "F32", 1, &two, x), 0);
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        assert_int_equal(sparktape_put(t, BAD[i].name, BAD[i].dtype, BAD[i].ndim, BAD[i].shape, BAD[i].data), -1);
        if (!strstr(sparktape_error(t), BAD[i].text)) fail_msg("'%s' lacks '%s'", sparktape_error(t), BAD[i].text);
    }
    assert_int_equal(sparktape_put(t, "round.1.last", "F32", 1, &two, x), 0);
    char why[200] = "";
    fmt_tape *r;
    assert_int_equal(sparktape_finish(t, why, sizeof why), 0);
    assert_string_equal(why, "12 values were refused");
    OK(fmt_tape_open("t.tape", &r, e));
    assert_int_equal(fmt_tape_count(r), 2);
    assert_int_equal(json_integer_value(json_object_get(fmt_tape_summary(r), "dropped")), sizeof BAD / sizeof *BAD);
    fmt_tape_close(r);
}

static void files_appear_when_they_are_whole(void **state)
{
    char why[64] = "";
    struct stat st;
    (void)state;
    unlink("t.tape");
    sparktape *t = created();
    assert_int_equal(stat("t.tape", &st), -1);
    assert_int_equal(stat("t.tape.part", &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    sparktape_discard(t);
    assert_int_equal(stat("t.tape.part", &st), -1);
    assert_null(sparktape_create("no/such/folder/t.tape", "test", why, sizeof why));
    assert_non_null(strstr(why, "no/such/folder"));
    assert_null(sparktape_create("t.tape", "\xff", why, sizeof why));
    assert_non_null(strstr(why, "UTF-8"));
    assert_null(sparktape_create(NULL, "test", NULL, 0));
    assert_int_equal(sparktape_put(NULL, "round.0.x", "F32", 0, NULL, why), -1);
    assert_int_equal(sparktape_finish(NULL, why, sizeof why), -1);
    sparktape_discard(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_put_is_read),
        cmocka_unit_test(what_is_refused_is_named_and_counted_and_the_rest_goes_on),
        cmocka_unit_test(files_appear_when_they_are_whole),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
