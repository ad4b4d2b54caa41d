/* safetensors files: every rule of the format broken once, every truncation, and the writer against the reader. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <signal.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/mem.h"
#include "formats/safetensors.h"
#include "tests/formats/alloc_fail.h"

static const char PATH[] = "under_test.safetensors";

/* Header text of header_bytes (the length field says so), then data_bytes of 0, 1, 2 ... */
static void put_file(const char *path, uint64_t header_bytes, const char *header, size_t text_bytes, size_t data_bytes)
{
    uint8_t length[8];
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    put_u64(length, header_bytes);
    fwrite(length, 1, 8, f);
    fwrite(header, 1, text_bytes, f);
    for (size_t i = 0; i < data_bytes; i++) putc((int)(i & 255), f);
    fclose(f);
}
static void put_text(const char *header, size_t data_bytes)
{
    put_file(PATH, strlen(header), header, strlen(header), data_bytes);
}

static const char GOOD[] = "{\"__metadata__\":{\"format\":\"pt\"},"
                           "\"b\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[4,16]},"
                           "\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
                           "\"none\":{\"dtype\":\"I64\",\"shape\":[5,0],\"data_offsets\":[4,4]},"
                           "\"z\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[16,17]}}   ";

static void a_good_file_gives_its_tensors_by_name(void **state)
{
    (void)state;
    fmt_safetensors *f;
    err e = { 0 };
    put_text(GOOD, 17);
    if (fmt_safetensors_open(PATH, &f, &e) != ERR_OK) fail_msg("%s", e.msg);
    assert_string_equal(fmt_safetensors_path(f), PATH);
    assert_int_equal(fmt_safetensors_count(f), 4);
    static const char *const NAMES[] = { "a", "b", "none", "z" };
    for (size_t i = 0; i < 4; i++) {
        assert_string_equal(fmt_safetensors_at(f, i)->name, NAMES[i]);
        assert_ptr_equal(fmt_safetensors_find(f, NAMES[i]), fmt_safetensors_at(f, i));
    }
    assert_null(fmt_safetensors_find(f, "c"));
    assert_null(fmt_safetensors_find(f, "__metadata__"));
    const fmt_safetensors_entry *a = fmt_safetensors_find(f, "a"), *b = fmt_safetensors_find(f, "b");
    char text[64];
    assert_int_equal(a->tensor.ndim, 0);
    assert_int_equal(fmt_tensor_elems(&a->tensor), 1);
    assert_string_equal(fmt_tensor_text(&a->tensor, text, sizeof text), "F32 []");
    assert_string_equal(fmt_tensor_text(&b->tensor, text, sizeof text), "BF16 [2, 3]");
    assert_string_equal(fmt_tensor_text(&b->tensor, text, 8), "BF16 [2"); /* cut, not overrun */
    assert_int_equal(b->bytes, 12);
    assert_int_equal(b->offset, 8 + sizeof GOOD - 1 + 4);
    assert_int_equal(*(const uint8_t *)b->tensor.data, 4);
    assert_int_equal(fmt_safetensors_find(f, "none")->bytes, 0);
    assert_string_equal(json_string_value(json_object_get(fmt_safetensors_metadata(f), "format")), "pt");
    fmt_safetensors_close(f);
}

static void a_file_without_tensors_is_good(void **state)
{
    (void)state;
    fmt_safetensors *f;
    err e = { 0 };
    put_text("{}", 0);
    assert_int_equal(fmt_safetensors_open(PATH, &f, &e), ERR_OK);
    assert_int_equal(fmt_safetensors_count(f), 0);
    assert_null(fmt_safetensors_find(f, "a"));
    assert_null(fmt_safetensors_metadata(f));
    fmt_safetensors_close(f);
    fmt_safetensors_close(NULL);
}

static void refused(const char *message)
{
    fmt_safetensors *f = (fmt_safetensors *)1;
    err e = { 0 };
    assert_int_equal(fmt_safetensors_open(PATH, &f, &e), ERR_FORMAT);
    assert_null(f);
    assert_non_null(strstr(e.msg, PATH));
    if (!strstr(e.msg, message)) fail_msg("'%s' lacks '%s'", e.msg, message);
}

#define T(name, dtype, shape, span) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" span "}"

static void every_broken_rule_is_refused_by_name(void **state)
{
    (void)state;
    static const struct { const char *header; size_t data_bytes; const char *message; } FAULTS[] = {
        { "[]", 0, "starts with {" },
        { " {}", 0, "byte 8: found 0x20" },
        { "{\"a\":", 0, "header" },
        { "{} x", 0, "header: end of file expected" },
        { "{" T("a", "U8", "[1]", "[0,1]") "," T("a", "U8", "[1]", "[1,2]") "}", 2, "duplicate object key near '\"a\"'" },
        { "{\"a\":7}", 0, "tensor a: found no object" },
        { "{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "tensor a: dtype is missing" },
        { "{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, "tensor a: shape is missing" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "tensor a: data_offsets is missing" },
        { "{" T("a", "F8_E9M9", "[1]", "[0,1]") "}", 1, "tensor a: dtype F8_E9M9 is unknown" },
        { "{" T("a", "bf16", "[1]", "[0,2]") "}", 2, "tensor a: dtype bf16 is unknown" },
        { "{" T("a", "U8", "{}", "[0,1]") "}", 1, "tensor a: shape is missing or no list" },
        { "{" T("a", "U8", "[-1]", "[0,1]") "}", 1, "tensor a: shape[0] is no integer >= 0" },
        { "{" T("a", "U8", "[1,1.0]", "[0,1]") "}", 1, "tensor a: shape[1] is no integer >= 0" },
        { "{" T("a", "U8", "[1,\"1\"]", "[0,1]") "}", 1, "tensor a: shape[1]" },
        { "{" T("a", "U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]") "}", 1, "tensor a: found 9 dimensions" },
        { "{" T("a", "U8", "[4294967296,4294967296]", "[0,1]") "}", 1, "tensor a: its shape overflows at dimension 1" },
        { "{" T("a", "F32", "[4611686018427387905]", "[0,4]") "}", 4, "tensor a: its shape overflows in bytes" },
        { "{" T("a", "U8", "[9223372036854775807,3,0]", "[0,0]") "}", 0, "tensor a: its shape overflows at dimension 1" },
        { "{" T("a", "U8", "[99999999999999999999]", "[0,1]") "}", 1, "too big integer" },
        { "{" T("a", "U8", "[1]", "[0]") "}", 1, "tensor a: data_offsets" },
        { "{" T("a", "U8", "[1]", "[0,1,2]") "}", 1, "tensor a: data_offsets" },
        { "{" T("a", "U8", "[1]", "[-1,0]") "}", 1, "tensor a: data_offsets" },
        { "{" T("a", "U8", "[1]", "[0.0,1.0]") "}", 1, "tensor a: data_offsets" },
        { "{" T("a", "U8", "[1]", "[1,0]") "}", 1, "tensor a: found data_offsets 1 to 0" },
        { "{" T("a", "U8", "[2]", "[0,2]") "}", 1,
         "tensor a: found data_offsets 0 to 2, wanted a span inside the 1 bytes" },
        { "{" T("a", "U8", "[2]", "[0,9223372036854775807]") "}", 2,
         "tensor a: found data_offsets 0 to 9223372036854775807" },
        { "{" T("a", "BF16", "[3]", "[0,5]") "}", 5, "tensor a: found a span of 5 bytes, wanted 6 for BF16 [3]" },
        { "{" T("a", "U8", "[1]", "[1,2]") "}", 2, "tensor a: found data at offset 1, wanted 0: its span leaves a gap" },
        { "{" T("a", "U8", "[2]", "[0,2]") "," T("b", "U8", "[2]", "[3,5]") "}", 5,
         "tensor b: found data at offset 3, wanted 2" },
        { "{" T("a", "U8", "[2]", "[0,2]") "," T("b", "U8", "[2]", "[1,3]") "}", 3,
         "tensor b: found data at offset 1, wanted 2: its span overlaps a" },
        { "{" T("a", "U8", "[2]", "[0,2]") "," T("b", "U8", "[2]", "[0,2]") "}", 2, "its span overlaps" },
        { "{" T("a", "U8", "[0]", "[1,1]") "," T("b", "U8", "[2]", "[0,2]") "}", 2, "overlaps" },
        { "{" T("a", "U8", "[2]", "[0,2]") "}", 3, "found 1 bytes after the last tensor's data" },
        { "{}", 1, "found 1 bytes after the last tensor's data" },
        { "{\"__metadata__\":[]}", 0, "__metadata__ is no object" },
        { "{\"__metadata__\":{\"k\":1}}", 0, "__metadata__: k is no string" },
        { "{\"\\ud800\":1}", 0, "header" },
        { "{\"a\\u0000b\":1}", 0, "header" },
    };
    for (size_t i = 0; i < COUNT_OF(FAULTS); i++) {
        put_text(FAULTS[i].header, FAULTS[i].data_bytes);
        refused(FAULTS[i].message);
    }
}

static void impossible_header_lengths_are_refused_before_anything_is_allocated(void **state)
{
    (void)state;
    static const struct { uint64_t length; const char *message; } LENGTHS[] = {
        { 0, "found a header of 0 bytes" },
        { 3, "found a header of 3 bytes, wanted at most the 2 that follow" },
        { 100000000, "found a header of 100000000 bytes, wanted at most the 2" },
        { 100000001, "found a header of 100000001 bytes, wanted at most 100000000" },
        { UINT64_MAX, "found a header of 18446744073709551615 bytes" },
        { (uint64_t)1 << 63, "found a header of 9223372036854775808 bytes" },
    };
    for (size_t i = 0; i < COUNT_OF(LENGTHS); i++) {
        put_file(PATH, LENGTHS[i].length, "{}", 2, 0);
        refused(LENGTHS[i].message);
    }
}

static void a_header_of_100_000_001_bytes_is_refused_though_it_is_there(void **state)
{
    (void)state;
    put_file(PATH, 100000001, "{}", 2, 0);
    assert_int_equal(truncate(PATH, 8 + 100000001), 0); /* sparse */
    refused("wanted at most 100000000");
    unlink(PATH);
}

static void every_truncation_is_refused(void **state)
{
    (void)state;
    fmt_safetensors *f;
    err e;
    size_t whole = 8 + sizeof GOOD - 1 + 17;
    for (size_t n = 0; n < whole; n++) {
        put_text(GOOD, 17);
        assert_int_equal(truncate(PATH, (off_t)n), 0);
        assert_int_equal(fmt_safetensors_open(PATH, &f, &e), ERR_FORMAT);
        assert_null(f);
    }
}

static void what_is_no_file_is_refused_without_waiting(void **state)
{
    (void)state;
    fmt_safetensors *f;
    err e;
    unlink("pipe.safetensors");
    assert_int_equal(mkfifo("pipe.safetensors", 0600), 0);
    assert_int_equal(fmt_safetensors_open("pipe.safetensors", &f, &e), ERR_INPUT);
    assert_int_equal(fmt_safetensors_open(".", &f, &e), ERR_INPUT);
    assert_int_equal(fmt_safetensors_open("no/such.safetensors", &f, &e), ERR_INPUT);
    assert_non_null(strstr(e.msg, "no/such.safetensors"));
    unlink("pipe.safetensors");
}

/* ---- writer ---- */

static const fmt_safetensors_decl DECLS[] = {
    { "x", FMT_DTYPE_BF16, 2, { 2, 3 } },
    { "scalar", FMT_DTYPE_F32, 0, { 0 } },
    { "empty", FMT_DTYPE_I64, 3, { 4, 0, 2 } },
    { "a\xc3\xa9\"\\\n", FMT_DTYPE_U8, 1, { 5 } },
};
enum { DECLS_BYTES = 12 + 4 + 5 };

/* Writes DECLS with bytes 0, 1, 2 ... in pieces of the given size. */
static err_code write_sample(const char *path, size_t piece, err *e)
{
    fmt_safetensors_writer *w;
    uint8_t data[DECLS_BYTES];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)i;
    json_t *metadata = json_pack("{s:s}", "made by", "a test");
    err_code rc = fmt_safetensors_create(path, DECLS, COUNT_OF(DECLS), metadata, &w, e);
    json_decref(metadata);
    if (rc != ERR_OK) return rc;
    for (size_t at = 0; at < sizeof data; at += piece)
        fmt_safetensors_put(w, data + at, at + piece < sizeof data ? piece : sizeof data - at);
    return fmt_safetensors_finish(w, e);
}

static void what_is_written_in_any_pieces_reads_back(void **state)
{
    (void)state;
    for (size_t piece = 1; piece <= DECLS_BYTES; piece++) {
        fmt_safetensors *f;
        err e = { 0 };
        if (write_sample(PATH, piece, &e) != ERR_OK) fail_msg("%s", e.msg);
        assert_int_equal(access("under_test.safetensors.part", F_OK), -1);
        if (fmt_safetensors_open(PATH, &f, &e) != ERR_OK) fail_msg("%s", e.msg);
        assert_int_equal(fmt_safetensors_count(f), COUNT_OF(DECLS));
        uint8_t first = 0;
        for (size_t i = 0; i < COUNT_OF(DECLS); i++) {
            const fmt_safetensors_entry *x = fmt_safetensors_find(f, DECLS[i].name);
            assert_non_null(x);
            assert_int_equal(x->tensor.dtype, DECLS[i].dtype);
            assert_int_equal(x->tensor.ndim, DECLS[i].ndim);
            for (int d = 0; d < DECLS[i].ndim; d++) assert_int_equal(x->tensor.shape[d], DECLS[i].shape[d]);
            for (size_t k = 0; k < x->bytes; k++) assert_int_equal(((const uint8_t *)x->tensor.data)[k], first + k);
            first = (uint8_t)(first + x->bytes);
        }
        assert_int_equal(fmt_safetensors_find(f, "x")->offset % 8, 0); /* the first tensor's data is aligned */
        assert_string_equal(json_string_value(json_object_get(fmt_safetensors_metadata(f), "made by")), "a test");
        fmt_safetensors_close(f);
    }
}

static void a_table_that_cannot_be_stored_is_refused_and_leaves_no_file(void **state)
{
    (void)state;
    static const fmt_safetensors_decl FAULTS[][2] = {
        { { "a", FMT_DTYPE_U8, 0, { 0 } }, { "a", FMT_DTYPE_U8, 0, { 0 } } },
        { { "a", FMT_DTYPE_U8, 0, { 0 } }, { "__metadata__", FMT_DTYPE_U8, 0, { 0 } } },
        { { "a", FMT_DTYPE_U8, 0, { 0 } }, { "b", FMT_DTYPE_U8, 1, { -1 } } },
        { { "a", FMT_DTYPE_U8, 0, { 0 } }, { "b", FMT_DTYPE_U8, 9, { 1 } } },
        { { "a", FMT_DTYPE_U8, 0, { 0 } }, { "b", FMT_DTYPE_F64, 2, { INT64_MAX, 2 } } },
        { { "a", FMT_DTYPE_U8, 1, { INT64_MAX } }, { "b", FMT_DTYPE_U8, 1, { INT64_MAX } } },
        { { "a", FMT_DTYPE_U8, 0, { 0 } }, { "\xff", FMT_DTYPE_U8, 0, { 0 } } },
        { { "a", FMT_DTYPE_U8, 0, { 0 } }, { "b", FMT_DTYPE_COUNT, 0, { 0 } } },
    };
    unlink(PATH);
    for (size_t i = 0; i < COUNT_OF(FAULTS); i++) {
        fmt_safetensors_writer *w = (fmt_safetensors_writer *)1;
        err e = { 0 };
        assert_int_equal(fmt_safetensors_create(PATH, FAULTS[i], 2, NULL, &w, &e), ERR_ARG);
        assert_null(w);
        assert_non_null(strstr(e.msg, PATH));
    }
    json_t *metadata = json_pack("{s:i}", "k", 1);
    fmt_safetensors_writer *w;
    err e;
    assert_int_equal(fmt_safetensors_create(PATH, DECLS, 1, metadata, &w, &e), ERR_ARG);
    json_decref(metadata);
    assert_int_equal(access(PATH, F_OK), -1);
    assert_int_equal(access("under_test.safetensors.part", F_OK), -1);
}

static void fewer_or_more_bytes_than_declared_leave_no_file(void **state)
{
    (void)state;
    uint8_t data[DECLS_BYTES + 1] = { 0 };
    unlink(PATH);
    for (int i = 0; i < 3; i++) {
        fmt_safetensors_writer *w;
        err e = { 0 };
        assert_int_equal(fmt_safetensors_create(PATH, DECLS, COUNT_OF(DECLS), NULL, &w, &e), ERR_OK);
        fmt_safetensors_put(w, data, i == 0 ? 0 : i == 1 ? DECLS_BYTES - 1 : DECLS_BYTES + 1);
        assert_int_equal(fmt_safetensors_finish(w, &e), ERR_ARG);
        assert_non_null(strstr(e.msg, "wanted the 21 declared"));
        assert_int_equal(access(PATH, F_OK), -1);
        assert_int_equal(access("under_test.safetensors.part", F_OK), -1);
    }
}

static void a_failed_write_leaves_the_old_file_and_no_part(void **state)
{
    (void)state;
    err e = { 0 };
    struct rlimit old, small;
    struct stat before, after;
    assert_int_equal(write_sample(PATH, 100, &e), ERR_OK);
    assert_int_equal(stat(PATH, &before), 0);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    for (rlim_t n = 0; n < (rlim_t)before.st_size; n += 13) {
        small = (struct rlimit){ n, old.rlim_max };
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        err_code rc = write_sample(PATH, 5, &e);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
        assert_int_equal(rc, ERR_IO);
        assert_non_null(strstr(e.msg, PATH));
        assert_int_equal(access("under_test.safetensors.part", F_OK), -1);
        assert_int_equal(stat(PATH, &after), 0);
        assert_int_equal(before.st_ino, after.st_ino);
    }
}

static void every_failed_allocation_is_reported_and_nothing_leaks(void **state)
{
    (void)state;
    err e = { 0 };
    assert_int_equal(write_sample(PATH, 100, &e), ERR_OK);
    for (long at = 0;; at++) {
        fmt_safetensors *f = NULL;
        alloc_fail_at(at, true); /* all from there on, and short tokens: see test_json.c on jansson */
        err_code rc = fmt_safetensors_open(PATH, &f, &e);
        bool hit = alloc_fail_end();
        if (rc != ERR_OK) assert_null(f);
        fmt_safetensors_close(f);
        if (hit) continue;
        assert_int_equal(rc, ERR_OK);
        assert_true(at > 10);
        break;
    }
    for (long at = 0;; at++) {
        unlink("other.safetensors");
        alloc_fail_at(at, true);
        err_code rc = write_sample("other.safetensors", 7, &e);
        if (!alloc_fail_end()) {
            assert_int_equal(rc, ERR_OK);
            break;
        }
        assert_int_not_equal(rc, ERR_OK);
        assert_int_equal(access("other.safetensors", F_OK), -1);
        assert_int_equal(access("other.safetensors.part", F_OK), -1);
    }
}

int main(void)
{
    alloc_fail_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_good_file_gives_its_tensors_by_name),
        cmocka_unit_test(a_file_without_tensors_is_good),
        cmocka_unit_test(every_broken_rule_is_refused_by_name),
        cmocka_unit_test(impossible_header_lengths_are_refused_before_anything_is_allocated),
        cmocka_unit_test(a_header_of_100_000_001_bytes_is_refused_though_it_is_there),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(what_is_no_file_is_refused_without_waiting),
        cmocka_unit_test(what_is_written_in_any_pieces_reads_back),
        cmocka_unit_test(a_table_that_cannot_be_stored_is_refused_and_leaves_no_file),
        cmocka_unit_test(fewer_or_more_bytes_than_declared_leave_no_file),
        cmocka_unit_test(a_failed_write_leaves_the_old_file_and_no_part),
        cmocka_unit_test(every_failed_allocation_is_reported_and_nothing_leaks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
