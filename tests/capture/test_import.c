#include "tape_help.h"

#include "capture/export.h"
#include "capture/import.h"
#include "capture/joined.h"

/* A file of [n, 2] I32 tensors with these names. */
static fmt_safetensors *make_file(const char *path, const char *const *names, size_t n, const json_t *meta)
{
    fmt_safetensors_decl decl[32] = { 0 };
    fmt_safetensors_writer *w;
    fmt_safetensors *f;
    for (size_t i = 0; i < n; i++) decl[i] = (fmt_safetensors_decl){ names[i], FMT_DTYPE_I32, 2, { (int64_t)i + 1, 2 } };
    OK(fmt_safetensors_create(path, decl, n, meta, &w, e));
    for (size_t i = 0; i < n; i++)
        for (int32_t k = 0; k < ((int32_t)i + 1) * 2; k++) fmt_safetensors_put(w, &(int32_t){ (int32_t)i * 100 + k }, 4);
    OK(fmt_safetensors_finish(w, e));
    OK(fmt_safetensors_open(path, &f, e));
    return f;
}

static err_code import_names(const char *const *names, size_t n, const json_t *map, err *e)
{
    fmt_safetensors *f = make_file("in.safetensors", names, n, NULL);
    const cap_import_options o = { map, NULL, true };
    cap_import_result r;
    err_code rc = cap_import(f, "out.tape", &o, &r, e);
    fmt_safetensors_close(f);
    return rc;
}

static void records_stand_in_the_order_of_a_recorder(void **state)
{
    static const char *const IN[] = {
        "round.1.drafts", "round.0.confidence", "round.0.drafts", "round.0.head.logits", "round.0.ids", "round.0.mystery",
        "round.0.s1.attn_out", "round.0.s0.out", "round.0.s0.attn.mix_pre", "round.0.window.7.s0", "round.0.window.2.s1",
        "round.0.window.2.s0", "round.0.draft.n_out", "round.0.draft.slots", "round.0.insert.7.taps",
        "round.0.insert.2.s0.main_kv", "round.0.insert.2.pos", "round.0.insert.2.main_x", "round.10.ids", "round.2.ids",
    };
    static const char *const WANT[] = {
        "round.0.insert.2.pos", "round.0.insert.2.main_x", "round.0.insert.2.s0.main_kv", "round.0.insert.7.taps",
        "round.0.draft.slots", "round.0.draft.n_out", "round.0.window.2.s0", "round.0.window.7.s0", "round.0.window.2.s1",
        "round.0.ids", "round.0.s0.attn.mix_pre", "round.0.s0.out", "round.0.s1.attn_out", "round.0.head.logits",
        "round.0.drafts", "round.0.confidence", "round.0.mystery", "round.1.drafts", "round.2.ids", "round.10.ids",
    };
    enum { N = sizeof IN / sizeof IN[0] };
    (void)state;
    OK(import_names(IN, N, NULL, e));
    fmt_tape *t;
    fmt_safetensors *f;
    OK(fmt_tape_open("out.tape", &t, e));
    OK(fmt_safetensors_open("in.safetensors", &f, e));
    assert_int_equal(fmt_tape_count(t), N);
    cap_value v = { 0 };
    for (size_t i = 0; i < N; i++) {
        fmt_tape_record r;
        char name[CAP_EXPORT_NAME];
        fmt_tape_at(t, i, &r);
        cap_export_name(r.key.round, r.key.slot, r.key.name, name);
        assert_string_equal(name, WANT[i]);
        assert_int_equal(r.key.rank, FMT_TAPE_NO_RANK);
        OK(cap_joined_get(t, &r.key, &v, e));
        const fmt_safetensors_entry *x = fmt_safetensors_find(f, name);
        assert_int_equal(v.tensor.shape[0], x->tensor.shape[0]);
        assert_memory_equal(v.tensor.data, x->tensor.data, x->bytes);
    }
    cap_value_fini(&v);
    fmt_safetensors_close(f);
    fmt_tape_close(t);
}

static void a_name_that_is_no_value_is_refused_unless_mapped(void **state)
{
    static const char *const NAMES[] = { "round.0.ids", "model.layers.0.weight" };
    static const char *const TWICE[] = { "round.0.ids", "mine" };
    (void)state;
    REFUSED(import_names(NAMES, 2, NULL, e), ERR_INPUT, "1 of 2 tensors");
    REFUSED(import_names(NAMES, 2, NULL, e), ERR_INPUT, "model.layers.0.weight");
    assert_int_not_equal(access("out2.tape.part", F_OK), 0);
    json_t *map = json_pack("{s:s, s:s}", "model.layers.0.weight", "round.0.s0.attn_out", "absent", "round.0.s0.out");
    OK(import_names(NAMES, 2, map, e));
    fmt_tape *t;
    OK(fmt_tape_open("out.tape", &t, e));
    assert_true(fmt_tape_find(t, &(fmt_tape_key){ 0, FMT_TAPE_NO_SLOT, FMT_TAPE_NO_RANK, "s0.attn_out" }) >= 0);
    fmt_tape_close(t);
    json_object_set_new(map, "model.layers.0.weight", json_string("nowhere"));
    REFUSED(import_names(NAMES, 2, map, e), ERR_INPUT, "'nowhere'");
    json_object_set_new(map, "model.layers.0.weight", json_integer(3));
    REFUSED(import_names(NAMES, 2, map, e), ERR_INPUT, "no string");
    json_object_set_new(map, "mine", json_string("round.0.ids"));
    REFUSED(import_names(TWICE, 2, map, e), ERR_INPUT, "the same value");
    json_decref(map);
    REFUSED(import_names(NAMES, 0, NULL, e), ERR_INPUT, "no tensor");
}

static void names_without_a_counterpart_are_told(void **state)
{
    static const char *const IN[] = {
        "a.0", "a.1", "round.0.ids", "round.0.s0.atn_out", "round.0.s1.attn_out",
    };
    enum { N = sizeof IN / sizeof IN[0] };
    char list[CAP_IMPORT_LIST];
    cap_import_result r;
    (void)state;
    json_t *map = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s}", "a.0", "round.0.x0", "a.1", "round.0.mystery", "b",
                            "round.0.s0.out", "c", "round.0.s1.out", "d", "round.0.s2.out", "e", "round.0.s3.out");
    fmt_safetensors *f = make_file("in.safetensors", IN, N, NULL);
    OK(cap_import(f, "out.tape", &(cap_import_options){ map, NULL, true }, &r, e));
    assert_int_equal(r.unmapped.n, 3);
    cap_import_list(&r.unmapped, list);
    assert_string_equal(list, "round.0.ids, round.0.s0.atn_out, round.0.s1.attn_out");
    assert_int_equal(r.unused.n, 4);
    cap_import_list(&r.unused, list);
    assert_string_equal(list, "b, c, d and 1 more");
    assert_int_equal(r.unknown.n, 2);
    cap_import_list(&r.unknown, list);
    assert_string_equal(list, "a.1, round.0.s0.atn_out");
    /* Nothing to tell where there is no map and every name is known; all of the nameless at once. */
    fmt_safetensors_close(f);
    f = make_file("in.safetensors", IN + 2, 1, NULL);
    OK(cap_import(f, "out.tape", &(cap_import_options){ NULL, NULL, true }, &r, e));
    assert_int_equal(r.unmapped.n + r.unused.n + r.unknown.n, 0);
    fmt_safetensors_close(f);
    json_object_del(map, "a.0");
    json_object_del(map, "a.1");
    REFUSED(import_names(IN, N, map, e), ERR_INPUT, "2 of 5 tensors");
    REFUSED(import_names(IN, N, map, e), ERR_INPUT, "--map: a.0, a.1; in the map, but no tensor: b, c, d and 1 more");
    json_decref(map);
}

static void a_long_name_is_told_in_part(void **state)
{
    enum { LONG = 400 };
    char name[LONG + 1], list[CAP_IMPORT_LIST];
    (void)state;
    memset(name, 'n', LONG);
    name[LONG] = 0;
    cap_import_list(&(cap_import_names){ UINT64_MAX, { name, name, name } }, list);
    assert_true(strlen(list) < CAP_IMPORT_LIST);
    assert_non_null(strstr(list, "nnn..., nnn"));
    assert_non_null(strstr(list, "more"));
}

static void an_import_of_an_export_is_the_tape_again(void **state)
{
    enum { ROWS = 40, COLS = 64 };
    float a[ROWS * COLS], b[ROWS * COLS];
    bf16 x[ROWS * COLS];
    (void)state;
    for (int i = 0; i < ROWS * COLS; i++) {
        a[i] = (float)i * 0.3f;
        b[i] = f32_from_bits(0x7fc00000u + (uint32_t)i); /* NaN of every kind */
        x[i] = (bf16)(i * 31);
    }
    json_t *head = json_pack("{s:s, s:s, s:{s:s, s:s}, s:{s:i}}", "format", "sparktape", "level", "v1", "identity",
                             "checkpoint", "abc", "combine", "exact", "config", "vocab_size", 7);
    fmt_tape_writer *w = tape_begin("origin.tape", head);
    json_decref(head);
    const int64_t shape[] = { ROWS, COLS };
    fmt_tensor t = fmt_tensor_make(FMT_DTYPE_F32, NULL, 2, shape);
    tape_put(w, 0, 3, 0, "main_x", FMT_DTYPE_BF16, x, 2, shape);
    tape_put(w, 0, FMT_TAPE_NO_SLOT, 0, "empty", FMT_DTYPE_BF16, x, 2, (const int64_t[]){ 0, 5 });
    OK(fmt_tape_put_ranks(w, &(fmt_tape_key){ 0, -1, 0, "s0.ffn.scores" }, &t, (const void *const[]){ b, b },
                          FMT_PLACE_REPLICATED, 0, 2, FMT_TIER_TENSOR, e));
    OK(fmt_tape_put_ranks(w, &(fmt_tape_key){ 0, -1, 0, "s0.ffn.slot" }, &t, (const void *const[]){ a, b },
                          FMT_PLACE_PARTIAL, 0, 2, FMT_TIER_TENSOR, e));
    OK(fmt_tape_put_ranks(w, &(fmt_tape_key){ 0, -1, 0, "head.logits" }, &t, (const void *const[]){ a, b },
                          FMT_PLACE_SHARDED, 1, 2, FMT_TIER_TENSOR, e));
    fmt_tape *origin = tape_end(w, "origin.tape");
    const cap_export_options all = { NULL, false, true };
    cap_export_result er;
    OK(cap_export(origin, "origin.safetensors", &all, &er, e));

    fmt_safetensors *f;
    OK(fmt_safetensors_open("origin.safetensors", &f, e));
    for (int with_origin = 0; with_origin < 2; with_origin++) {
        const cap_import_options o = { NULL, with_origin ? origin : NULL, true };
        cap_import_result ir;
        fmt_tape *again;
        OK(cap_import(f, "again.tape", &o, &ir, e));
        assert_int_equal(ir.n_values, 5);
        OK(fmt_tape_open("again.tape", &again, e));
        cap_names *names;
        OK(cap_names_make(origin, &names, e));
        assert_int_equal(fmt_tape_count(again), cap_names_count(names));
        cap_value v = { 0 }, u = { 0 };
        for (size_t i = 0; i < cap_names_count(names); i++) {
            const cap_name *n = cap_names_at(names, i);
            const fmt_tape_key key = { n->round, n->slot, 0, n->name };
            OK(cap_joined_get(origin, &key, &v, e));
            OK(cap_joined_get(again, &key, &u, e));
            assert_int_equal(v.tensor.dtype, u.tensor.dtype);
            assert_int_equal(v.tensor.ndim, u.tensor.ndim);
            assert_memory_equal(v.tensor.shape, u.tensor.shape, sizeof v.tensor.shape);
            assert_memory_equal(v.tensor.data, u.tensor.data, fmt_tensor_bytes(&v.tensor));
        }
        cap_value_fini(&v);
        cap_value_fini(&u);
        cap_names_free(names);
        const json_t *h = fmt_tape_head(again), *identity = json_object_get(h, "identity");
        assert_string_equal(json_string_value(json_object_get(identity, "checkpoint")), with_origin ? "abc" : "unknown");
        assert_string_equal(json_string_value(json_object_get(h, "level")), "v1");
        assert_int_equal(json_object_get(h, "config") != NULL, with_origin);
        const json_t *kept = json_object_get(h, "imported");
        assert_string_equal(json_string_value(json_object_get(kept, "format")), "sparktape-export-1");
        /* What the import kept goes out again, also when it does not know what made it. */
        OK(cap_export(again, "again.safetensors", &all, &er, e));
        fmt_safetensors *g;
        OK(fmt_safetensors_open("again.safetensors", &g, e));
        const json_t *meta = fmt_safetensors_metadata(g);
        assert_string_equal(json_string_value(json_object_get(meta, "combine")), "exact");
        assert_non_null(strstr(json_string_value(json_object_get(meta, "identity")), "abc"));
        fmt_safetensors_close(g);
        fmt_tape_close(again);
    }
    fmt_safetensors_close(f);
    fmt_tape_close(origin);
}

static void a_failed_import_leaves_the_old_tape(void **state)
{
    static const char *const GOOD[] = { "round.0.ids" }, *const BAD[] = { "nonsense" };
    (void)state;
    OK(import_names(GOOD, 1, NULL, e));
    REFUSED(import_names(BAD, 1, NULL, e), ERR_INPUT, "nonsense");
    fmt_tape *t;
    OK(fmt_tape_open("out.tape", &t, e));
    assert_int_equal(fmt_tape_count(t), 1);
    fmt_tape_close(t);
    assert_int_not_equal(access("out.tape.part", F_OK), 0);
    /* Metadata that a head cannot hold. */
    char *text = malloc(100001);
    memset(text, 'x', 100000);
    text[100000] = 0;
    json_t *meta = json_pack("{s:s}", "long", text);
    fmt_safetensors *f = make_file("big.safetensors", GOOD, 1, meta);
    cap_import_result r;
    const cap_import_options o = { NULL, NULL, true };
    REFUSED(cap_import(f, "big.tape", &o, &r, e), ERR_INPUT, "head");
    assert_int_not_equal(access("big.tape", F_OK), 0);
    assert_int_not_equal(access("big.tape.part", F_OK), 0);
    fmt_safetensors_close(f);
    json_decref(meta);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_stand_in_the_order_of_a_recorder),
        cmocka_unit_test(a_name_that_is_no_value_is_refused_unless_mapped),
        cmocka_unit_test(names_without_a_counterpart_are_told), cmocka_unit_test(a_long_name_is_told_in_part),
        cmocka_unit_test(an_import_of_an_export_is_the_tape_again), cmocka_unit_test(a_failed_import_leaves_the_old_tape),
    };
    return cmocka_run_group_tests(tests, enter_folder, NULL);
}
