#include "tape_help.h"

#include "base/mem.h"
#include "base/outfile.h"
#include "capture/export.h"
#include "capture/joined.h"
#include "capture/npy.h"
#include "formats/safetensors.h"

#include <sys/stat.h>

enum { ROWS = 64, COLS = 96 };

/* Two rounds: a replicated bf16, a partial over two ranks, a window, an insert value, one that is only a hash. */
static void make_tape(const char *path)
{
    bf16 x[ROWS * COLS];
    float a[ROWS * COLS], b[ROWS * COLS];
    const int64_t shape[] = { ROWS, COLS };
    json_t *head = json_pack("{s:s, s:s, s:{s:s, s:s}, s:{s:s, s:s}}", "format", "sparktape", "level", "deep", "identity",
                             "checkpoint", "abc", "combine", "fused", "imported", "note", "kept", "format", "theirs");
    fmt_tape_writer *w = tape_begin(path, head);
    json_decref(head);
    for (int32_t r = 0; r < 2; r++) {
        for (int i = 0; i < ROWS * COLS; i++) {
            x[i] = (bf16)(i * 7 + r);
            a[i] = (float)i * 0.37f;
            b[i] = (float)(i ^ 0x55) * 1.1f;
        }
        tape_put(w, r, 5, 0, "main_x", FMT_DTYPE_BF16, x, 2, shape);
        tape_put(w, r, 5, 0, "s0.window", FMT_DTYPE_BF16, x, 2, shape);
        tape_put(w, r, FMT_TAPE_NO_SLOT, 0, "s0.attn_out", FMT_DTYPE_BF16, x, 2, shape);
        fmt_tensor t = fmt_tensor_make(FMT_DTYPE_F32, NULL, 2, shape);
        fmt_tape_key key = { r, FMT_TAPE_NO_SLOT, 0, "s0.ffn.slot" };
        OK(fmt_tape_put_ranks(w, &key, &t, (const void *const[]){ a, b }, FMT_PLACE_PARTIAL, 0, 2, FMT_TIER_TENSOR, e));
        t.data = a;
        key.name = "s0.ffn.shared";
        OK(fmt_tape_put(w, &key, &t, FMT_PLACE_REPLICATED, 0, 1, FMT_TIER_HASH, e));
        OK(fmt_tape_flush(w, e));
    }
    OK(fmt_tape_finish(w, NULL, e));
}

static cap_export_result export_to(const char *tape, const char *path, const char *pattern, bool per_rank)
{
    const cap_export_options o = { pattern, per_rank, true };
    cap_export_result r;
    fmt_tape *t;
    OK(fmt_tape_open(tape, &t, e));
    OK(cap_export(t, path, &o, &r, e));
    fmt_tape_close(t);
    return r;
}

static bool exists(const char *path) { return access(path, F_OK) == 0; }

static void an_export_holds_the_joined_values_under_their_names(void **state)
{
    (void)state;
    make_tape("a.tape");
    cap_export_result r = export_to("a.tape", "a.safetensors", NULL, false);
    assert_int_equal(r.n_values, 8);
    assert_int_equal(r.n_no_payload, 2);
    assert_int_equal(r.n_damaged, 0);
    assert_string_equal(r.damage, "");
    fmt_safetensors *f;
    fmt_tape *t;
    OK(fmt_safetensors_open("a.safetensors", &f, e));
    OK(fmt_tape_open("a.tape", &t, e));
    assert_int_equal(fmt_safetensors_count(f), 8);
    assert_non_null(fmt_safetensors_find(f, "round.1.window.5.s0"));
    assert_non_null(fmt_safetensors_find(f, "round.0.insert.5.main_x"));
    cap_value v = { 0 };
    OK(cap_joined_get(t, &(fmt_tape_key){ 1, FMT_TAPE_NO_SLOT, 0, "s0.ffn.slot" }, &v, e));
    const fmt_safetensors_entry *x = fmt_safetensors_find(f, "round.1.s0.ffn.slot");
    assert_non_null(x);
    assert_int_equal(x->tensor.dtype, FMT_DTYPE_F32);
    assert_memory_equal(x->tensor.data, v.tensor.data, x->bytes);
    assert_true(((const float *)v.tensor.data)[3] == 3 * 0.37f + (3 ^ 0x55) * 1.1f);
    const json_t *meta = fmt_safetensors_metadata(f);
    assert_string_equal(json_string_value(json_object_get(meta, "format")), "sparktape-export-1");
    assert_string_equal(json_string_value(json_object_get(meta, "level")), "deep");
    assert_string_equal(json_string_value(json_object_get(meta, "combine")), "fused");
    assert_string_equal(json_string_value(json_object_get(meta, "note")), "kept");
    assert_non_null(strstr(json_string_value(json_object_get(meta, "identity")), "\"abc\""));
    cap_value_fini(&v);
    fmt_tape_close(t);
    fmt_safetensors_close(f);
}

static void a_pattern_matches_value_names_and_export_names(void **state)
{
    (void)state;
    make_tape("p.tape");
    assert_int_equal(export_to("p.tape", "p.safetensors", "s0.attn_out", false).n_values, 2);
    assert_int_equal(export_to("p.tape", "p.safetensors", "round.1.*", false).n_values, 4);
    assert_int_equal(export_to("p.tape", "p.safetensors", "round.1.window.*,main_x", false).n_values, 3);
    fmt_tape *t;
    cap_export_result r;
    const cap_export_options nothing = { "nosuch", false, true };
    OK(fmt_tape_open("p.tape", &t, e));
    REFUSED(cap_export(t, "none.safetensors", &nothing, &r, e), ERR_INPUT, "nosuch");
    assert_false(exists("none.safetensors"));
    fmt_tape_close(t);
}

static void per_rank_keeps_the_parts_apart(void **state)
{
    (void)state;
    make_tape("r.tape");
    cap_export_result r = export_to("r.tape", "r.safetensors", "s0.ffn.slot", true);
    assert_int_equal(r.n_values, 4);
    fmt_safetensors *f;
    OK(fmt_safetensors_open("r.safetensors", &f, e));
    const fmt_safetensors_entry *x = fmt_safetensors_find(f, "round.0.s0.ffn.slot.rank1");
    assert_non_null(x);
    assert_true(((const float *)x->tensor.data)[3] == (3 ^ 0x55) * 1.1f);
    fmt_safetensors_close(f);
}

static void a_folder_gets_npy_files_or_nothing(void **state)
{
    (void)state;
    make_tape("d.tape");
    assert_int_equal(export_to("d.tape", "folder", NULL, false).n_values, 8);
    assert_true(exists("folder/round.0.s0.attn_out.npy"));
    assert_true(exists("folder/metadata.json"));
    assert_false(exists("folder.part"));
    FILE *f = fopen("folder/round.0.s0.attn_out.npy", "rb");
    char head[128];
    assert_int_equal(fread(head, 1, sizeof head, f), sizeof head);
    fseek(f, 0, SEEK_END);
    assert_int_equal(ftell(f), 128 + ROWS * COLS * 2);
    fclose(f);
    assert_memory_equal(head, "\x93NUMPY\x01\x00\x76\x00{'descr': '<u2', 'fortran_order': False, 'shape': (64, 96), }", 70);
    assert_int_equal(head[127], '\n');
    fmt_tape *t;
    cap_export_result r;
    const cap_export_options all = { NULL, false, true };
    OK(fmt_tape_open("d.tape", &t, e));
    REFUSED(cap_export(t, "folder", &all, &r, e), ERR_ARG, "folder: exists, wanted a new or an empty folder");
    assert_false(exists("folder.part"));
    assert_int_equal(mkdir("killed.part", 0777), 0);
    REFUSED(cap_export(t, "killed", &all, &r, e), ERR_ARG, "killed.part is what a killed export left");
    assert_true(exists("killed.part") && !exists("killed"));
    REFUSED(cap_export(t, "no/such/place", &all, &r, e), ERR_IO, "no/such/place");
    fmt_tape_close(t);
}

static void npy_shapes_are_python_tuples(void **state)
{
    static const struct { int32_t ndim; int64_t shape[3]; const char *text; } CASES[] = {
        { 0, { 1 }, "'shape': (), }" }, { 1, { 7 }, "'shape': (7,), }" }, { 3, { 2, 0, 5 }, "'shape': (2, 0, 5), }" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        uint8_t out[CAP_NPY_HEADER + 1];
        fmt_tensor t = fmt_tensor_make(FMT_DTYPE_I32, NULL, CASES[i].ndim, CASES[i].shape);
        size_t n = cap_npy_header(&t, out);
        out[n] = 0;
        assert_int_equal(n % 64, 0);
        assert_non_null(strstr((char *)out + 10, CASES[i].text));
        assert_non_null(strstr((char *)out + 10, "'<i4'"));
    }
}

/* Kind and width; what numpy has no type for goes out as its bits. */
static void npy_types_are_as_wide_as_the_values(void **state)
{
    (void)state;
    for (int d = 0; d < FMT_DTYPE_COUNT; d++) {
        uint8_t out[CAP_NPY_HEADER + 1];
        char kind, width;
        const fmt_tensor t = fmt_tensor_make((fmt_dtype)d, NULL, 0, NULL);
        out[cap_npy_header(&t, out)] = 0;
        const char *name = fmt_dtype_name((fmt_dtype)d), *descr = strstr((char *)out + 10, "'descr': '");
        assert_int_equal(sscanf(descr, "'descr': '%*c%c%c'", &kind, &width), 2);
        assert_int_equal(width - '0', fmt_dtype_bytes((fmt_dtype)d));
        const char wanted = strcmp(name, "BF16") == 0 || strchr(name, '_') ? 'u' : name[0] == 'B' ? 'b'
                          : name[0] == 'I' ? 'i' : name[0] == 'U' ? 'u' : 'f';
        if (kind != wanted) fail_msg("%s: %s", name, (char *)out + 10);
    }
}

/* Python's zipfile checks structure and every CRC. */
static void python_reads_the_npz(void **state)
{
    (void)state;
    make_tape("z.tape");
    export_to("z.tape", "z.npz", NULL, false);
    if (system("python3 -c 'pass' 2>/dev/null") != 0) skip();
    FILE *f = fopen("check.py", "w");
    fputs("import zipfile\n"
          "z = zipfile.ZipFile('z.npz')\n"
          "assert z.testzip() is None\n"
          "names = z.namelist()\n"
          "assert len(names) == 9 and 'metadata.json' in names, names\n"
          "b = z.read('round.1.window.5.s0.npy')\n"
          "h = b[10:10 + b[8] + 256 * b[9]].decode()\n"
          "assert eval(h) == {'descr': '<u2', 'fortran_order': False, 'shape': (64, 96)}, h\n"
          "assert b[10 + len(h):][:4] == bytes([1, 0, 8, 0])\n", f);
    fclose(f);
    assert_int_equal(system("python3 check.py"), 0);
    assert_int_equal(truncate("z.npz", 20000), 0); /* the checker can fail */
    assert_int_not_equal(system("python3 check.py 2>/dev/null"), 0);
}

static void a_damaged_tape_gives_its_sound_values(void **state)
{
    (void)state;
    make_tape("whole.tape");
    export_to("whole.tape", "whole.safetensors", NULL, false);
    fmt_safetensors *whole;
    OK(fmt_safetensors_open("whole.safetensors", &whole, e));
    FILE *f = fopen("whole.tape", "rb");
    fseek(f, 0, SEEK_END);
    size_t bytes = (size_t)ftell(f), n_damaged = 0, n_all = 0;
    uint8_t *data = malloc(bytes);
    rewind(f);
    assert_int_equal(fread(data, 1, bytes, f), bytes);
    fclose(f);
    for (size_t at = 7; at < bytes; at += bytes / 61) {
        data[at] ^= 0x10;
        f = fopen("flipped.tape", "wb");
        fwrite(data, 1, bytes, f);
        fclose(f);
        data[at] ^= 0x10;
        fmt_tape *t = NULL;
        err why = { 0 };
        if (fmt_tape_open("flipped.tape", &t, &why) != ERR_OK) continue; /* the head */
        const cap_export_options all = { NULL, false, true };
        cap_export_result r;
        err_code rc = cap_export(t, "flipped.safetensors", &all, &r, &why);
        if (rc == ERR_OK) {
            fmt_safetensors *got;
            OK(fmt_safetensors_open("flipped.safetensors", &got, e));
            for (size_t i = 0; i < fmt_safetensors_count(got); i++) {
                const fmt_safetensors_entry *x = fmt_safetensors_at(got, i), *y = fmt_safetensors_find(whole, x->name);
                assert_non_null(y);
                assert_memory_equal(x->tensor.data, y->tensor.data, x->bytes);
            }
            if (fmt_safetensors_count(got) < fmt_safetensors_count(whole)) n_damaged++;
            fmt_safetensors_close(got);
            if (!r.damage[0]) fail_msg("byte %zu flipped: not noticed", at);
        } else assert_int_equal(rc, ERR_INPUT);
        n_all++;
        fmt_tape_close(t);
    }
    assert_true(n_damaged > n_all / 4); /* some flips cost values */
    free(data);
    fmt_safetensors_close(whole);
}

/* A tape may hold any name of printable ASCII: none may lead out of the folder, or out of where an archive is unpacked. */
static void a_value_whose_name_is_a_path_is_not_exported(void **state)
{
    static const char *const OUT[] = { "path", "path.npz", "path.safetensors" };
    const cap_export_options all = { NULL, false, true };
    const int32_t v[] = { 1, 2 };
    cap_export_result r;
    (void)state;
    fmt_tape_writer *w = tape_begin("path.tape", NULL);
    tape_put_ints(w, 0, FMT_TAPE_NO_SLOT, "../../outside", 2, v);
    fmt_tape *t = tape_end(w, "path.tape");
    for (size_t i = 0; i < COUNT_OF(OUT); i++) {
        REFUSED(cap_export(t, OUT[i], &all, &r, e), ERR_INPUT, "'round.0.../../outside' holds a '/'");
        assert_false(exists(OUT[i]));
    }
    fmt_tape_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_export_holds_the_joined_values_under_their_names),
        cmocka_unit_test(a_pattern_matches_value_names_and_export_names), cmocka_unit_test(per_rank_keeps_the_parts_apart),
        cmocka_unit_test(a_folder_gets_npy_files_or_nothing), cmocka_unit_test(npy_shapes_are_python_tuples),
        cmocka_unit_test(npy_types_are_as_wide_as_the_values),
        cmocka_unit_test(python_reads_the_npz), cmocka_unit_test(a_damaged_tape_gives_its_sound_values),
        cmocka_unit_test(a_value_whose_name_is_a_path_is_not_exported),
    };
    return cmocka_run_group_tests(tests, enter_folder, NULL);
}
