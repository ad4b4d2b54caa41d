/* The table of variants: what is written is read again, a file of another card is left aside, one that is no table is
 * refused by place; and a fault at any allocation or disk call leaves the file of before. */
#include "base/mem.h"
#include "engine/dispatch.h"
#include "tests/engine/scratch.h"
#include "tests/support/each_fault.h"
#include "tests/support/json_whole.h"

static const char PATH[] = "dispatch.json", CARD[] = "NVIDIA H200, sm_90, driver CUDA 13.0", ARM[] = "native-hybrid-kx2";
static const char HEAD[] = "{\"schema\": 1, \"device\": \"NVIDIA H200\", \"arm\": \"native-hybrid-kx2\", \"experts\": ";

static const eng_dispatch_entry ENTRIES[] = {
    { 0, 5, ENG_VARIANT_FUSED, { 45.25, 40.125 } },
    { 0, 20, ENG_VARIANT_SEPARATE, { 60, 61.5 } },
    { 2, 5, ENG_VARIANT_SEPARATE, { 44, 45 } },
    { ENG_STAGES_MAX - 1, ENG_DISPATCH_ROWS, ENG_VARIANT_SEPARATE, { 1, 2 } },
};

static void put_text(const char *text) { scratch_write(PATH, text, strlen(text)); }

static bool same(const eng_dispatch *a, const eng_dispatch *b) { return memcmp(a, b, sizeof *a) == 0; }

static bool is_default(const eng_dispatch *d)
{
    const eng_dispatch plain = eng_dispatch_default();
    return same(d, &plain);
}

static void what_is_written_is_read(void **state)
{
    eng_dispatch d, want = eng_dispatch_default();
    char note[ERR_MSG_BYTES] = "x";
    (void)state;
    for (size_t i = 0; i < COUNT_OF(ENTRIES); i++)
        eng_dispatch_set(&want, ENTRIES[i].stage, ENTRIES[i].rows, ENTRIES[i].variant);
    OK(eng_dispatch_write(PATH, CARD, ARM, 2, ENTRIES, COUNT_OF(ENTRIES), e));
    OK(eng_dispatch_read(PATH, CARD, &d, note, e));
    assert_true(same(&d, &want) && !note[0]);
    assert_int_equal(eng_dispatch_variant(&d, 0, 5), ENG_VARIANT_FUSED);
    assert_int_equal(eng_dispatch_variant(&d, 0, 20), ENG_VARIANT_SEPARATE);
    assert_int_equal(eng_dispatch_variant(&d, 2, 5), ENG_VARIANT_SEPARATE);
    assert_int_equal(eng_dispatch_variant(&d, ENG_STAGES_MAX - 1, ENG_DISPATCH_ROWS), ENG_VARIANT_SEPARATE);
    json_t *j;
    OK(fmt_json_read(PATH, 1 << 20, &j, e));
    assert_string_equal(fmt_json_text(j, "device"), "NVIDIA H200"); /* a new driver does not make a card another one */
    const json_t *us = json_object_get(json_array_get(json_object_get(j, "experts"), 0), "us");
    assert_true(json_real_value(json_object_get(us, "separate")) == 45.25);
    assert_true(json_real_value(json_object_get(us, "fused")) == 40.125);
    json_decref(j);
}

static void what_is_not_named_runs_as_by_default(void **state)
{
    (void)state;
    const eng_dispatch d = eng_dispatch_default(), other = eng_dispatch_all(ENG_VARIANT_FUSED);
    for (int32_t stage = 0; stage < ENG_STAGES_MAX; stage++)
        for (int32_t rows = 1; rows <= ENG_DISPATCH_ROWS; rows++) {
            assert_int_equal(eng_dispatch_variant(&d, stage, rows), ENG_VARIANT_DEFAULT);
            assert_int_equal(eng_dispatch_variant(&other, stage, rows), ENG_VARIANT_FUSED);
        }
    static const int32_t OUTSIDE[][2] = { { -1, 5 }, { ENG_STAGES_MAX, 5 }, { 0, 0 }, { 0, -1 },
                                          { 0, ENG_DISPATCH_ROWS + 1 }, { INT32_MAX, INT32_MAX },
                                          { INT32_MIN, INT32_MIN } };
    for (size_t i = 0; i < COUNT_OF(OUTSIDE); i++)
        assert_int_equal(eng_dispatch_variant(&other, OUTSIDE[i][0], OUTSIDE[i][1]), ENG_VARIANT_DEFAULT);
}

static void no_file_is_the_default(void **state)
{
    eng_dispatch d = eng_dispatch_all(ENG_VARIANT_FUSED); /* not the default */
    char note[ERR_MSG_BYTES] = "x";
    (void)state;
    OK(eng_dispatch_read("nowhere.json", CARD, &d, note, e));
    assert_true(is_default(&d) && !note[0]);
}

static void a_file_of_another_card_is_noted_and_left_aside(void **state)
{
    static const char *const OTHERS[] = { "NVIDIA H100, sm_90", "NVIDIA H20", "NVIDIA H200 MIG 1g.18gb, sm_90", "NVIDIA" };
    eng_dispatch d = eng_dispatch_all(ENG_VARIANT_FUSED);
    char note[ERR_MSG_BYTES];
    (void)state;
    OK(eng_dispatch_write(PATH, CARD, ARM, 1, ENTRIES, COUNT_OF(ENTRIES), e));
    for (size_t i = 0; i < COUNT_OF(OTHERS); i++) {
        note[0] = 0;
        OK(eng_dispatch_read(PATH, OTHERS[i], &d, note, e));
        assert_true(is_default(&d));
        assert_non_null(strstr(note, PATH));
        assert_non_null(strstr(note, "found a table of NVIDIA H200, wanted one of NVIDIA"));
        OK(eng_dispatch_read(PATH, OTHERS[i], &d, NULL, e));
        assert_true(is_default(&d));
    }
    put_text("{\"schema\": 1, \"device\": \"a\\u001b[2Jb\\nc\", \"arm\": \"native-hybrid-kx2\", \"experts\": []}");
    OK(eng_dispatch_read(PATH, CARD, &d, note, e));
    assert_null(strchr(note, '\n'));
    assert_null(strchr(note, '\033'));
}

static void what_is_no_table_is_refused_by_place(void **state)
{
    static const struct { err_code code; const char *head, *experts, *end, *found; } BAD[] = {
        { ERR_FORMAT, "", "", "", "dispatch.json: line 1" },
        { ERR_FORMAT, HEAD, "[", "", "dispatch.json: line" },
        { ERR_FORMAT, HEAD, "[], \"schema\": 1", "}", "duplicate" },
        { ERR_INPUT, "[", "", "]", "dispatch.json: found [], wanted an object" },
        { ERR_INPUT, "{", "\"schema\": 2", "}", "key schema: found 2, wanted an integer from 1 to 1" },
        { ERR_INPUT, "{", "\"schema\": 1", "}", "key device: found nothing, wanted a card's name" },
        { ERR_INPUT, "{", "\"schema\": 1, \"device\": 7", "}", "key device: found 7" },
        { ERR_INPUT, "{", "\"schema\": 1, \"device\": \"x\"", "}", "key arm: found nothing" },
        { ERR_INPUT, "{", "\"schema\": 1, \"device\": \"x\", \"arm\": \"nope\"", "}", "key arm: found \"nope\"" },
        { ERR_INPUT, "{", "\"schema\": 1, \"device\": \"x\", \"arm\": \"native-packed\"", "}", "found \"native-packed\"" },
        { ERR_INPUT, HEAD, "{}", "}", "key experts: found {}, wanted an array" },
        { ERR_INPUT, HEAD, "[7]", "}", "experts[0]: found 7, wanted an object" },
        { ERR_INPUT, HEAD, "[{}]", "}", "experts[0]: key stage: found nothing, wanted an integer from 0 to 7" },
        { ERR_INPUT, HEAD, "[{\"stage\": 8, \"rows\": 5, \"variant\": \"fused\"}]", "}", "key stage: found 8" },
        { ERR_INPUT, HEAD, "[{\"stage\": -1, \"rows\": 5, \"variant\": \"fused\"}]", "}", "key stage: found -1" },
        { ERR_INPUT, HEAD, "[{\"stage\": 0.0, \"rows\": 5, \"variant\": \"fused\"}]", "}", "key stage: found 0.0" },
        { ERR_INPUT, HEAD, "[{\"stage\": 0, \"rows\": 0, \"variant\": \"fused\"}]", "}", "key rows: found 0, wanted" },
        { ERR_INPUT, HEAD, "[{\"stage\": 0, \"rows\": 65, \"variant\": \"fused\"}]", "}", "from 1 to 64" },
        { ERR_INPUT, HEAD, "[{\"stage\": 4294967296, \"rows\": 5, \"variant\": \"fused\"}]", "}", "found 4294967296" },
        { ERR_INPUT, HEAD, "[{\"stage\": 0, \"rows\": 5}]", "}", "key variant: found nothing, wanted \"separate\" or" },
        { ERR_INPUT, HEAD, "[{\"stage\": 0, \"rows\": 5, \"variant\": \"Fused\"}]", "}", "key variant: found \"Fused\"" },
        { ERR_INPUT, HEAD, "[{\"stage\": 0, \"rows\": 5, \"variant\": 1}]", "}", "key variant: found 1" },
        { ERR_INPUT, HEAD,
          "[{\"stage\": 1, \"rows\": 5, \"variant\": \"fused\"}, {\"stage\": 1, \"rows\": 5, \"variant\": \"fused\"}]", "}",
          "experts[1]: found stage 1, rows 5 again" },
    };
    char text[1024];
    (void)state;
    for (size_t i = 0; i < COUNT_OF(BAD); i++) {
        eng_dispatch d = eng_dispatch_all(ENG_VARIANT_FUSED); /* not the default */
        snprintf(text, sizeof text, "%s%s%s", BAD[i].head, BAD[i].experts, BAD[i].end);
        put_text(text);
        REFUSED(eng_dispatch_read(PATH, CARD, &d, NULL, e), BAD[i].code, BAD[i].found);
        assert_true(is_default(&d));
        REFUSED(eng_dispatch_read(PATH, "another card", &d, NULL, e), BAD[i].code, BAD[i].found);
    }
    snprintf(text, sizeof text, "%s%s", HEAD,
             "[{\"stage\": 1, \"rows\": 5, \"variant\": \"fused\", \"us\": 0, \"more\": []}]}");
    put_text(text);
    eng_dispatch d;
    OK(eng_dispatch_read(PATH, CARD, &d, NULL, e)); /* what is not read may be anything */
    assert_int_equal(eng_dispatch_variant(&d, 1, 5), ENG_VARIANT_FUSED);
}

static void a_folder_or_a_huge_file_of_that_name_is_refused(void **state)
{
    eng_dispatch d;
    char path[64];
    (void)state;
    assert_int_equal(mkdir("folder", 0700), 0);
    assert_int_equal(mkdir("folder/dispatch.json", 0700), 0);
    OK(eng_dispatch_path("folder", path, sizeof path, e));
    assert_string_equal(path, "folder/dispatch.json");
    REFUSED(eng_dispatch_read(path, CARD, &d, NULL, e), ERR_INPUT, path);
    REFUSED(eng_dispatch_path("folder", path, 20, e), ERR_ARG, "longer than 20 bytes");
    char *huge = calloc(1, (1 << 20) + 1);
    assert_non_null(huge);
    scratch_write(PATH, huge, (1 << 20) + 1);
    free(huge);
    REFUSED(eng_dispatch_read(PATH, CARD, &d, NULL, e), ERR_FORMAT, "at most 1048576");
}

/* ---- faults ---- */

static void before_write(const void *ctx)
{
    (void)ctx;
    put_text("before");
}

static err_code run_write(const void *ctx, err *e)
{
    (void)ctx;
    return eng_dispatch_write(PATH, CARD, ARM, 1, ENTRIES, COUNT_OF(ENTRIES), e);
}

static void after_write(const void *ctx, err_code rc, const err *why, err_code wanted, long at)
{
    size_t bytes;
    (void)ctx;
    if (rc != ERR_OK && (rc != wanted || !why->msg[0])) fail_msg("fault %ld: %s: %s", at, err_name(rc), why->msg);
    uint8_t *text = scratch_read(PATH, &bytes);
    const bool old = bytes == 6 && memcmp(text, "before", 6) == 0;
    free(text);
    if (old != (rc != ERR_OK)) fail_msg("fault %ld: %s: the file is %s", at, err_name(rc), old ? "the old one" : "another");
    eng_dispatch d;
    if (rc == ERR_OK) OK(eng_dispatch_read(PATH, CARD, &d, NULL, e));
    if (rc == ERR_OK) assert_int_equal(eng_dispatch_variant(&d, 0, 5), ENG_VARIANT_FUSED);
}

static void a_write_with_any_fault_leaves_the_file_of_before(void **state)
{
    (void)state;
    every_fault_of(&(fault_loop){ before_write, run_write, after_write, 0 }, NULL, 10, 3);
}

static eng_dispatch read_back;

static void before_read(const void *ctx)
{
    (void)ctx;
    OK(eng_dispatch_write(PATH, CARD, ARM, 1, ENTRIES, COUNT_OF(ENTRIES), e));
    read_back = eng_dispatch_all(ENG_VARIANT_FUSED);
}

static err_code run_read(const void *ctx, err *e)
{
    (void)ctx;
    return eng_dispatch_read(PATH, CARD, &read_back, NULL, e);
}

static void after_read(const void *ctx, err_code rc, const err *why, err_code wanted, long at)
{
    (void)ctx;
    if (rc != ERR_OK && (rc != wanted || !why->msg[0] || !is_default(&read_back)))
        fail_msg("fault %ld: %s: %s", at, err_name(rc), why->msg);
    if (rc == ERR_OK) assert_int_equal(eng_dispatch_variant(&read_back, 0, 5), ENG_VARIANT_FUSED);
}

static void a_read_without_memory_says_so(void **state)
{
    (void)state;
    for (int persistent = 0; persistent < 2; persistent++)
        assert_true(each_fault(&(fault_loop){ before_read, run_read, after_read, 0 }, NULL, alloc_fail_at, alloc_fail_end,
                               ERR_NOMEM, persistent) > 0);
}

static int set_up(void **state)
{
    alloc_fail_init();
    return scratch_make(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(what_is_not_named_runs_as_by_default),
        cmocka_unit_test(no_file_is_the_default),
        cmocka_unit_test(a_file_of_another_card_is_noted_and_left_aside),
        cmocka_unit_test(what_is_no_table_is_refused_by_place),
        cmocka_unit_test(a_folder_or_a_huge_file_of_that_name_is_refused),
        cmocka_unit_test(a_write_with_any_fault_leaves_the_file_of_before),
        cmocka_unit_test(a_read_without_memory_says_so),
    };
    return cmocka_run_group_tests(tests, set_up, scratch_remove);
}
