/* JSON files and msgpack: what is refused and how it is named, and that what goes out comes back. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/mem.h"
#include "formats/json.h"
#include "tests/formats/alloc_fail.h"

static const char PATH[] = "json_under_test.json";

static void put_file(const char *path, const void *data, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    fclose(f);
}

static err_code read_text(const char *text, size_t max_bytes, json_t **out, err *e)
{
    put_file(PATH, text, strlen(text));
    return fmt_json_read(PATH, max_bytes, out, e);
}

static void a_faulty_file_is_refused_with_path_line_and_column(void **state)
{
    (void)state;
    static const struct { const char *text, *message; } FAULTS[] = {
        { "", "line 1, column 0" },
        { "{\n  \"a\": 1,\n  \"a\": 2\n}", "line 3, column 5: duplicate object key" },
        { "{\"a\": 1", "line 1, column 7" },
        { "{\"a\": 1} x", "end of file expected" },
        { "{\"a\": NaN}", "line 1" },
        { "{\"a\": 1e999}", "real number overflow" },
        { "{\"a\": 99999999999999999999}", "too big integer" },
        { "{\"a\": \"\xff\"}", "unable to decode byte 0xff" },
        { "3", "'[' or '{' expected" },
    };
    for (size_t i = 0; i < COUNT_OF(FAULTS); i++) {
        json_t *v = (json_t *)1;
        err e = { 0 };
        assert_int_equal(read_text(FAULTS[i].text, 1000, &v, &e), ERR_FORMAT);
        assert_null(v);
        assert_non_null(strstr(e.msg, PATH));
        if (!strstr(e.msg, FAULTS[i].message)) fail_msg("'%s' lacks '%s'", e.msg, FAULTS[i].message);
    }
}

static void a_file_over_the_limit_is_refused_with_its_size(void **state)
{
    (void)state;
    json_t *v;
    err e = { 0 };
    assert_int_equal(read_text("[1, 2, 3]", 8, &v, &e), ERR_FORMAT);
    assert_non_null(strstr(e.msg, "found 9 bytes, wanted at most 8"));
    assert_int_equal(read_text("[1, 2, 3]", 9, &v, &e), ERR_OK);
    json_decref(v);
}

static void what_is_no_file_is_refused_without_waiting(void **state)
{
    (void)state;
    json_t *v;
    err e = { 0 };
    unlink("json_pipe");
    assert_int_equal(mkfifo("json_pipe", 0600), 0);
    assert_int_equal(fmt_json_read("json_pipe", 100, &v, &e), ERR_INPUT);
    assert_int_equal(fmt_json_read(".", 100, &v, &e), ERR_INPUT);
    assert_int_equal(fmt_json_read("no/such/file.json", 100, &v, &e), ERR_INPUT);
    assert_non_null(strstr(e.msg, "no/such/file.json"));
    unlink("json_pipe");
}

static json_t *sample(void)
{
    json_t *v = json_pack("{s:i, s:f, s:[b, n, s], s:{s:I, s:s}, s:[]}", "zebra", 1, "apple", 0.1, "list", 1,
                          "text\n\xc3\xa9",
                          "object", "big", (json_int_t)INT64_MIN, "empty", "", "none");
    assert_non_null(v);
    return v;
}

static void a_written_file_reads_back_equal_and_in_order(void **state)
{
    (void)state;
    json_t *v = sample(), *back;
    err e = { 0 };
    assert_int_equal(fmt_json_write(PATH, v, &e), ERR_OK);
    assert_int_equal(fmt_json_read(PATH, 10000, &back, &e), ERR_OK);
    assert_true(json_equal(v, back));
    const char *key;
    json_t *item;
    size_t i = 0;
    static const char *const ORDER[] = { "zebra", "apple", "list", "object", "none" };
    json_object_foreach(back, key, item) assert_string_equal(key, ORDER[i++]);
    json_decref(v);
    json_decref(back);
}

static void a_printed_line_is_compact_and_keeps_17_digits(void **state)
{
    (void)state;
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    json_t *v = json_pack("{s:f, s:[i, i], s:o, s:o, s:o}", "b", 1.0 / 3.0, "a", 1, 2, "x", fmt_json_real(NAN), "y",
                          fmt_json_real(-INFINITY), "z", fmt_json_real(INFINITY));
    err e = { 0 };
    assert_int_equal(fmt_json_print(f, v, &e), ERR_OK);
    fclose(f);
    assert_string_equal(text, "{\"b\":0.33333333333333331,\"a\":[1,2],\"x\":\"nan\",\"y\":\"-inf\",\"z\":\"inf\"}\n");
    free(text);
    json_decref(v);
}

static void a_text_that_is_not_there_is_empty(void **state)
{
    (void)state;
    json_t *v = json_pack("{s:s, s:i, s:n}", "text", "x", "number", 1, "null");
    assert_string_equal(fmt_json_text(v, "text"), "x");
    assert_string_equal(fmt_json_text(v, "number"), "");
    assert_string_equal(fmt_json_text(v, "null"), "");
    assert_string_equal(fmt_json_text(v, "absent"), "");
    assert_string_equal(fmt_json_text(json_object_get(v, "text"), "text"), "");
    assert_string_equal(fmt_json_text(NULL, "text"), "");
    json_decref(v);
}

static void printing_to_a_full_device_is_an_error(void **state)
{
    (void)state;
    FILE *f = fopen("/dev/full", "w");
    if (!f) skip();
    setvbuf(f, NULL, _IONBF, 0);
    json_t *v = sample();
    err e = { 0 };
    assert_int_equal(fmt_json_print(f, v, &e), ERR_IO);
    fclose(f);
    json_decref(v);
}

/* ---- msgpack ---- */

static void a_value_packs_to_the_bytes_of_the_standard(void **state)
{
    (void)state;
    static const uint8_t WANTED[] = {
        0x83, 0xa1, 'a', 0x93, 0x00, 0x7f, 0xcc, 0x80, 0xa1, 'b', 0xcb, 0x3f, 0xf8, 0, 0, 0, 0, 0, 0, /* 1.5 */
        0xa1, 'c', 0x95, 0xc0, 0xc2, 0xc3, 0xe0, 0xd1, 0xff, 0x00,                                     /* -32, -256 */
    };
    json_t *v = json_pack("{s:[i, i, i], s:f, s:[n, b, b, i, i]}", "a", 0, 127, 128, "b", 1.5, "c", 0, 1, -32, -256);
    uint8_t *p;
    size_t n;
    err e = { 0 };
    assert_int_equal(fmt_msgpack_pack(v, &p, &n, &e), ERR_OK);
    assert_int_equal(n, sizeof WANTED);
    assert_memory_equal(p, WANTED, n);
    free(p);
    json_decref(v);
}

static void a_packed_value_comes_back_equal(void **state)
{
    (void)state;
    json_t *v = sample(), *many = json_array(), *back;
    static const json_int_t EDGES[] = {
        0, 127, 128, 255, 256, 65535, 65536, UINT32_MAX, (json_int_t)UINT32_MAX + 1, INT64_MAX,
        -1, -32, -33, -128, -129, -32768, -32769, INT32_MIN, (json_int_t)INT32_MIN - 1, INT64_MIN,
    };
    for (size_t i = 0; i < COUNT_OF(EDGES); i++) json_array_append_new(many, json_integer(EDGES[i]));
    for (int i = 0; i < 70000; i += 35000) { /* strings of 8, 16 and 32-bit length */
        char *text = malloc((size_t)i + 40);
        memset(text, 'x', (size_t)i + 40);
        json_array_append_new(many, json_stringn(text, (size_t)i + 40));
        json_array_append_new(many, json_stringn(text, (size_t)i + 31));
        free(text);
    }
    for (int i = 0; i < 70000; i++) json_array_append_new(many, json_integer(i));
    json_object_set_new(v, "many", many);
    uint8_t *p;
    size_t n;
    err e = { 0 };
    assert_int_equal(fmt_msgpack_pack(v, &p, &n, &e), ERR_OK);
    assert_int_equal(fmt_msgpack_unpack(p, n, &back, &e), ERR_OK);
    assert_true(json_equal(v, back));
    free(p);
    json_decref(v);
    json_decref(back);
}

static void every_truncation_and_every_extra_byte_is_refused(void **state)
{
    (void)state;
    json_t *v = sample(), *back;
    uint8_t *p;
    size_t n;
    err e = { 0 };
    assert_int_equal(fmt_msgpack_pack(v, &p, &n, &e), ERR_OK);
    for (size_t cut = 0; cut < n; cut++) {
        uint8_t *copy = malloc(cut ? cut : 1); /* of exact size: a read past it is seen by the sanitizer */
        memcpy(copy, p, cut);
        assert_int_equal(fmt_msgpack_unpack(copy, cut, &back, &e), ERR_FORMAT);
        assert_null(back);
        free(copy);
    }
    uint8_t *more = calloc(1, n + 1);
    memcpy(more, p, n);
    assert_int_equal(fmt_msgpack_unpack(more, n + 1, &back, &e), ERR_FORMAT);
    assert_non_null(strstr(e.msg, "1 bytes after the value"));
    free(more);
    free(p);
    json_decref(v);
}

static void hostile_msgpack_is_refused_by_name(void **state)
{
    (void)state;
    static const struct { const char *bytes; size_t n; const char *message; } FAULTS[] = {
        { "\xdd\xff\xff\xff\xff", 5, "array of 4294967295 with 0 bytes left" },
        { "\xdf\xff\xff\xff\xff\xa1", 6, "map of 4294967295 with 1 bytes left" },
        { "\xdb\xff\xff\xff\xff", 5, "found 0 bytes to the end, wanted 4294967295" },
        { "\x82\xa1" "a\x01\xa1" "a\x02", 7, "key 'a' twice" },
        { "\x81\x01\x02", 3, "map key that is no plain string" },
        { "\x81\x90\x02", 3, "as a key" },
        { "\x81\xa2" "a\x00\x02", 5, "map key that is no plain string" },
        { "\xc4\x01" "a", 3, "type 0xc4" },
        { "\xc7\x01\x01" "a", 4, "type 0xc7" },
        { "\xd4\x01" "a", 3, "type 0xd4" },
        { "\xc1", 1, "type 0xc1" },
        { "\xa1\xff", 2, "not UTF-8" },
        { "\xcf\x80\0\0\0\0\0\0\0", 9, "integer 9223372036854775808" },
    };
    for (size_t i = 0; i < COUNT_OF(FAULTS); i++) {
        json_t *v;
        err e = { 0 };
        assert_int_equal(fmt_msgpack_unpack((const uint8_t *)FAULTS[i].bytes, FAULTS[i].n, &v, &e), ERR_FORMAT);
        assert_null(v);
        if (!strstr(e.msg, FAULTS[i].message)) fail_msg("'%s' lacks '%s'", e.msg, FAULTS[i].message);
    }
}

static void sixteen_levels_pass_and_seventeen_do_not(void **state)
{
    (void)state;
    uint8_t deep[64], *p;
    size_t n;
    json_t *v, *w;
    err e = { 0 };
    memset(deep, 0x91, sizeof deep);
    deep[16] = 0x01;
    assert_int_equal(fmt_msgpack_unpack(deep, 17, &v, &e), ERR_OK);
    assert_int_equal(fmt_msgpack_pack(v, &p, &n, &e), ERR_OK);
    assert_int_equal(n, 17);
    free(p);
    deep[16] = 0x91;
    deep[17] = 0x01;
    assert_int_equal(fmt_msgpack_unpack(deep, 18, &w, &e), ERR_FORMAT);
    json_t *deeper = json_pack("[o]", v);
    assert_int_equal(fmt_msgpack_pack(deeper, &p, &n, &e), ERR_ARG);
    assert_null(p);
    json_decref(deeper);
}

static void floats_that_json_lacks_become_words(void **state)
{
    (void)state;
    json_t *v;
    err e = { 0 };
    assert_int_equal(fmt_msgpack_unpack((const uint8_t *)"\xca\x7f\xc0\0\0", 5, &v, &e), ERR_OK);
    assert_string_equal(json_string_value(v), "nan");
    json_decref(v);
    assert_int_equal(fmt_msgpack_unpack((const uint8_t *)"\xca\x3f\xc0\0\0", 5, &v, &e), ERR_OK);
    assert_true(json_real_value(v) == 1.5);
    json_decref(v);
}

/* Texts of a tape are printed. */
static void control_characters_become_question_marks(void **state)
{
    (void)state;
    static const char PACKED[] = "\x81\xa3" "k\x07k" "\xab" "\x1b[2J\n\t\x7f\xc2\x9b\xc3\xa9";
    json_t *v;
    err e = { 0 };
    assert_int_equal(fmt_msgpack_unpack((const uint8_t *)PACKED, sizeof PACKED - 1, &v, &e), ERR_OK);
    assert_string_equal(fmt_json_text(v, "k?k"), "?[2J\n\t???\xc3\xa9"); /* lines stay lines, letters letters */
    json_decref(v);
}

/* What is built step by step is whole, or nothing. */
static void a_failed_step_leaves_no_part(void **state)
{
    (void)state;
    json_t *list = json_array(), *object = json_object();
    fmt_json_add(&list, json_integer(1));
    fmt_json_put(&object, "a", json_integer(1));
    assert_int_equal(json_array_size(list), 1);
    assert_int_equal(json_object_size(object), 1);
    fmt_json_add(&list, NULL);
    fmt_json_put(&object, "b", NULL);
    assert_true(!list && !object);
    fmt_json_add(&list, json_integer(2)); /* is released */
    fmt_json_put(&object, "c", json_integer(2));
    assert_true(!list && !object);
    assert_null(json_pack("{s:o, s:o}", "list", list, "other", json_integer(3)));
}

static void every_failed_allocation_is_reported_and_nothing_leaks(void **state)
{
    (void)state;
    json_t *v = sample(), *back = NULL;
    uint8_t *p;
    size_t n;
    err e = { 0 };
    assert_int_equal(fmt_msgpack_pack(v, &p, &n, &e), ERR_OK);
    /* Not fmt_json_read: when its token buffer may not grow, jansson's lexer goes on and then asserts. */
    for (int persistent = 0; persistent < 2; persistent++)
        for (long at = 0;; at++) {
            alloc_fail_at(at, persistent);
            err_code rc = fmt_msgpack_unpack(p, n, &back, &e);
            bool hit = alloc_fail_end();
            if (rc != ERR_OK) assert_null(back);
            else assert_true(json_equal(v, back));
            json_decref(back);
            if (hit) continue;
            assert_int_equal(rc, ERR_OK);
            assert_true(at > 10);
            break;
        }
    for (long at = 0;; at++) {
        uint8_t *q;
        size_t m;
        alloc_fail_at(at, true);
        err_code rc = fmt_msgpack_pack(v, &q, &m, &e);
        bool hit = alloc_fail_end();
        assert_true(rc == ERR_OK ? q != NULL : q == NULL);
        free(q);
        if (hit) continue;
        assert_int_equal(rc, ERR_OK);
        break;
    }
    char *want = fmt_json_dumps(v, JSON_COMPACT);
    assert_non_null(want);
    for (int persistent = 0; persistent < 2; persistent++)
        for (long at = 0;; at++) {
            alloc_fail_at(at, persistent);
            char *text = fmt_json_dumps(v, JSON_COMPACT);
            bool hit = alloc_fail_end();
            assert_true(text || hit);
            if (text) assert_string_equal(text, want); /* all of it, keys too */
            free(text);
            if (!hit) break;
        }
    free(want);
    free(p);
    json_decref(v);
}

int main(void)
{
    alloc_fail_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_faulty_file_is_refused_with_path_line_and_column),
        cmocka_unit_test(a_file_over_the_limit_is_refused_with_its_size),
        cmocka_unit_test(what_is_no_file_is_refused_without_waiting),
        cmocka_unit_test(a_written_file_reads_back_equal_and_in_order),
        cmocka_unit_test(a_printed_line_is_compact_and_keeps_17_digits),
        cmocka_unit_test(a_text_that_is_not_there_is_empty),
        cmocka_unit_test(printing_to_a_full_device_is_an_error),
        cmocka_unit_test(a_value_packs_to_the_bytes_of_the_standard),
        cmocka_unit_test(a_packed_value_comes_back_equal),
        cmocka_unit_test(every_truncation_and_every_extra_byte_is_refused),
        cmocka_unit_test(hostile_msgpack_is_refused_by_name),
        cmocka_unit_test(sixteen_levels_pass_and_seventeen_do_not),
        cmocka_unit_test(floats_that_json_lacks_become_words),
        cmocka_unit_test(control_characters_become_question_marks),
        cmocka_unit_test(a_failed_step_leaves_no_part),
        cmocka_unit_test(every_failed_allocation_is_reported_and_nothing_leaks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
