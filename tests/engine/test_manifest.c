/* Manifest, receipt, shares and exports of a checkpoint, and that each check can fail. */
#include "engine/manifest.h"
#include "engine/synth.h"
#include "engine/weights_export.h"

#include "scratch.h"

#include <string.h>

static const char SHARD[] = "m/model-00001-of-00002.safetensors";

static int make(void **state)
{
    if (scratch_make(state) != 0) return -1;
    eng_config c;
    eng_synth_report r;
    err e = { 0 };
    return eng_config_preset("tiny", &c) && eng_synth_checkpoint("m", &c, 11, true, &r, &e) == ERR_OK ? 0 : -1;
}

static eng_weights *weights(void)
{
    eng_weights *w;
    err e = { 0 };
    if (eng_weights_open("m", true, &w, &e) != ERR_OK) fail_msg("%s", e.msg);
    return w;
}

static eng_scan scan(const eng_weights *w)
{
    eng_scan s;
    err e = { 0 };
    if (eng_scan_open(w, true, true, &s, &e) != ERR_OK) fail_msg("%s", e.msg);
    return s;
}

static void a_manifest_has_every_tensor_with_the_hash_of_its_bytes(void **state)
{
    (void)state;
    eng_weights *w = weights();
    eng_scan s = scan(w);
    json_t *j = eng_manifest_json(w, &s);
    assert_non_null(j);
    const json_t *tensors = json_object_get(j, "tensors");
    assert_int_equal(json_array_size(tensors), fmt_checkpoint_count(eng_weights_files(w)));
    for (size_t i = 0; i < json_array_size(tensors); i++) {
        const json_t *t = json_array_get(tensors, i);
        const fmt_safetensors_entry *stored =
            fmt_checkpoint_find(eng_weights_files(w), json_string_value(json_object_get(t, "name")));
        assert_non_null(stored);
        fmt_sha256 sha256;
        char hex[FMT_SHA256_HEX];
        err e = { 0 };
        assert_int_equal(fmt_sha256_of(stored->tensor.data, stored->bytes, &sha256, &e), ERR_OK);
        fmt_sha256_hex(&sha256, hex);
        assert_string_equal(json_string_value(json_object_get(t, "sha256")), hex);
        assert_int_equal(json_integer_value(json_object_get(t, "bytes")), stored->bytes);
        assert_int_equal(json_array_size(json_object_get(t, "ranks")), ENG_MANIFEST_RANKS);
    }
    json_decref(j);
    eng_scan_close(&s);
    eng_weights_close(w);
}

static void the_shares_of_all_ranks_are_the_whole_tensor(void **state)
{
    (void)state;
    eng_weights *w = weights();
    eng_scan s = scan(w);
    assert_true(s.has_ranks);
    int cut = 0;
    for (size_t i = 0; i < s.n; i++) {
        const eng_tensor_record *r = &s.record[i];
        if (r->share[0].whole) {
            assert_true(r->share[1].whole);
            assert_int_equal(eng_share_bytes(&r->share[0]), r->bytes);
            continue;
        }
        cut++;
        uint8_t *hits = calloc(r->bytes, 1);
        for (int rank = 0; rank < 2; rank++)
            for (int64_t span = 0; span < r->share[rank].spans; span++)
                for (uint64_t b = 0; b < r->share[rank].span_bytes; b++)
                    hits[r->share[rank].offset_bytes + (uint64_t)span * r->share[rank].stride_bytes + b]++;
        for (uint64_t b = 0; b < r->bytes; b++)
            if (hits[b] != 1) fail_msg("%s: byte %llu is held %d times", r->spec.name, (unsigned long long)b, hits[b]);
        free(hits);
    }
    assert_true(cut > 0);
    eng_scan_close(&s);
    eng_weights_close(w);
}

static void facts_agree_with_decoding_every_element(void **state)
{
    (void)state;
    eng_weights *w = weights();
    eng_scan s = scan(w);
    for (size_t i = 0; i < s.n; i++) {
        const eng_tensor_record *r = &s.record[i];
        if (r->spec.is_scale || r->spec.wid == ENG_W_GATE_BIAS_VL) continue;
        krn_weight v = eng_weights_view(w, r->spec.wid, r->spec.stage, r->spec.expert);
        int64_t n = (int64_t)v.n * v.k, zeros = 0;
        float *out = malloc((size_t)n * sizeof *out), lo = INFINITY, hi = 0;
        krn_weight_decode_f32(&v, 0, v.n, out);
        for (int64_t j = 0; j < n; j++) {
            float a = fabsf(out[j]);
            zeros += a == 0;
            if (a > 0 && a < lo) lo = a;
            if (a > hi) hi = a;
        }
        free(out);
        assert_int_equal(r->facts.elems, n);
        assert_int_equal(r->facts.zeros, zeros);
        assert_true(r->facts.min_abs == (double)lo && r->facts.max_abs == (double)hi);
    }
    eng_scan_close(&s);
    eng_weights_close(w);
}

static void values_that_a_format_cannot_hold_are_counted(void **state)
{
    (void)state;
    eng_config c;
    assert_true(eng_config_preset("tiny", &c));
    eng_tensor_spec t = { .name = "mtp.0.ffn.gate.bias", .dtype = FMT_DTYPE_F32, .ndim = 1, .shape = { 8 },
                          .wid = ENG_W_GATE_BIAS, .stage = 0, .expert = -1 };
    const float v[8] = { 0, 1, 1.00390625f /* 1 + 2^-8 */, 65504, 65536, 0x1p-24f, NAN, -INFINITY };
    eng_share whole = eng_share_of(&c, &t, 0, 1);
    static uint64_t bins[ENG_FACTS_BINS];
    eng_facts f;
    eng_facts_of(&c, &t, &whole, v, NULL, bins, &f);
    assert_int_equal(f.elems, 8);
    assert_int_equal(f.zeros, 1);
    assert_int_equal(f.nans, 1);
    assert_int_equal(f.infs, 1);
    assert_int_equal(f.inexact_bf16, 2); /* 1 + 2^-8 and 65504 */
    assert_int_equal(f.inexact_fp16, 1); /* 65536 */
    assert_true(f.min_abs == 0x1p-24 && f.max_abs == 65536);
}

/* ---- checks ---- */

static err_code check(const char *manifest, eng_difference *d, err *e)
{
    eng_weights *w = weights();
    eng_scan s = scan(w);
    err_code rc = eng_manifest_check(manifest, w, &s, d, e);
    eng_scan_close(&s);
    eng_weights_close(w);
    return rc;
}

static void write_manifest(const char *path)
{
    eng_weights *w = weights();
    eng_scan s = scan(w);
    json_t *j = eng_manifest_json(w, &s);
    err e = { 0 };
    assert_int_equal(fmt_json_write(path, j, &e), ERR_OK);
    json_decref(j);
    eng_scan_close(&s);
    eng_weights_close(w);
}

/* Flips the lowest mantissa bit of the first value of a tensor; again restores it. */
static void flip(const char *tensor)
{
    fmt_safetensors *f;
    err e = { 0 };
    assert_int_equal(fmt_safetensors_open(SHARD, &f, &e), ERR_OK);
    const fmt_safetensors_entry *t = fmt_safetensors_find(f, tensor);
    assert_non_null(t);
    uint64_t offset = t->offset;
    fmt_safetensors_close(f);
    size_t n;
    uint8_t *bytes = scratch_read(SHARD, &n);
    bytes[offset] ^= 1;
    scratch_write(SHARD, bytes, n);
    free(bytes);
}

static void a_flipped_bit_differs_from_the_manifest_by_name(void **state)
{
    (void)state;
    eng_difference d;
    err e = { 0 };
    write_manifest("manifest.json");
    assert_int_equal(check("manifest.json", &d, &e), ERR_OK);
    assert_string_equal(d.text, "");
    flip("mtp.0.attn_norm.weight");
    assert_int_equal(check("manifest.json", &d, &e), ERR_OK);
    assert_non_null(strstr(d.text, "mtp.0.attn_norm.weight"));
    flip("mtp.0.attn_norm.weight");
    assert_int_equal(check("manifest.json", &d, &e), ERR_OK);
    assert_string_equal(d.text, "");
}

static void a_manifest_with_other_tensors_differs(void **state)
{
    (void)state;
    eng_difference d;
    err e = { 0 };
    json_t *j;
    write_manifest("manifest.json");
    assert_int_equal(fmt_json_read("manifest.json", 1 << 24, &j, &e), ERR_OK);
    json_t *tensors = json_object_get(j, "tensors"), *first = json_incref(json_array_get(tensors, 0));
    json_array_remove(tensors, 0);
    assert_int_equal(fmt_json_write("less.json", j, &e), ERR_OK);
    assert_int_equal(check("less.json", &d, &e), ERR_OK);
    assert_non_null(strstr(d.text, "embed.weight"));

    json_array_append(tensors, first);
    json_t *extra = json_deep_copy(first);
    json_object_set_new(extra, "name", json_string("mtp.9.norm.weight"));
    json_array_append_new(tensors, extra);
    assert_int_equal(fmt_json_write("more.json", j, &e), ERR_OK);
    assert_int_equal(check("more.json", &d, &e), ERR_OK);
    assert_non_null(strstr(d.text, "mtp.9.norm.weight"));
    json_decref(first);
    json_decref(j);
}

static void a_file_that_is_no_manifest_is_refused(void **state)
{
    (void)state;
    static const char *const BAD[] = {
        "", "[]", "{}", "{\"tensors\":{}}", "{\"tensors\":[1]}", "{\"tensors\":[{\"name\":\"a\"}]}",
        "{\"tensors\":[{\"name\":\"a\",\"sha256\":\"\",\"dtype\":1,\"shape\":[]}]}",
        ("{\"tensors\":[{\"name\":\"a\",\"sha256\":\"\",\"dtype\":\"\",\"shape\":[]},"
         "{\"name\":\"a\",\"sha256\":\"\",\"dtype\":\"\",\"shape\":[]}]}"),
    };
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        eng_difference d;
        err e = { 0 };
        scratch_write("bad.json", BAD[i], strlen(BAD[i]));
        assert_int_equal(check("bad.json", &d, &e), ERR_FORMAT);
        assert_non_null(strstr(e.msg, "bad.json"));
    }
}

static err_code receipt(const char *text, int32_t *checked, int32_t *absent, eng_difference *d, err *e)
{
    scratch_write("receipt", text, strlen(text));
    eng_weights *w = weights();
    eng_scan s = scan(w);
    err_code rc = eng_receipt_check("receipt", w, &s, true, checked, absent, d, e);
    eng_scan_close(&s);
    eng_weights_close(w);
    return rc;
}

static void shard_line(char *line, size_t size, int shard)
{
    char path[64], hex[FMT_SHA256_HEX];
    snprintf(path, sizeof path, "m/model-0000%d-of-00002.safetensors", shard);
    size_t n;
    uint8_t *bytes = scratch_read(path, &n);
    fmt_sha256 sha256;
    err e = { 0 };
    assert_int_equal(fmt_sha256_of(bytes, n, &sha256, &e), ERR_OK);
    free(bytes);
    fmt_sha256_hex(&sha256, hex);
    snprintf(line, size, "%s  %s\n", hex, path + 2);
}

static void a_receipt_must_list_every_shard_with_its_hash(void **state)
{
    (void)state;
    char one[160], two[160], text[512];
    int32_t checked, absent;
    eng_difference d;
    err e = { 0 };
    shard_line(one, sizeof one, 1);
    shard_line(two, sizeof two, 2);
    snprintf(text, sizeof text, "# shards\n\n%s%.64s *elsewhere/model-9.safetensors\r\n%s", one, one, two);
    assert_int_equal(receipt(text, &checked, &absent, &d, &e), ERR_OK);
    assert_string_equal(d.text, "");
    assert_int_equal(checked, 2);
    assert_int_equal(absent, 1);

    assert_int_equal(receipt(one, &checked, &absent, &d, &e), ERR_OK);
    assert_non_null(strstr(d.text, "model-00002-of-00002.safetensors"));
    two[0] = two[0] == '0' ? '1' : '0';
    snprintf(text, sizeof text, "%s%s", one, two);
    assert_int_equal(receipt(text, &checked, &absent, &d, &e), ERR_OK);
    assert_non_null(strstr(d.text, "model-00002-of-00002.safetensors"));
}

static void a_receipt_line_of_another_form_is_refused_by_number(void **state)
{
    (void)state;
    char one[160], text[512];
    shard_line(one, sizeof one, 1);
    const char *bad[] = { "abc  x\n", "\n\nzz\n", one + 1 };
    for (int i = 0; i < 3; i++) {
        int32_t checked, absent;
        eng_difference d;
        err e = { 0 };
        snprintf(text, sizeof text, "%s%s", one, bad[i]);
        assert_int_equal(receipt(text, &checked, &absent, &d, &e), ERR_FORMAT);
        assert_non_null(strstr(e.msg, i == 1 ? "line 4" : "line 2"));
    }
}

static void a_receipt_that_is_no_file_is_refused(void **state)
{
    (void)state;
    static const char *const BAD[] = { "no-receipt", "m", "/dev/zero" };
    eng_weights *w = weights();
    eng_scan s;
    err e = { 0 };
    assert_int_equal(eng_scan_open(w, false, true, &s, &e), ERR_OK);
    for (size_t i = 0; i < sizeof BAD / sizeof BAD[0]; i++) {
        int32_t checked, absent;
        eng_difference d;
        assert_int_equal(eng_receipt_check(BAD[i], w, &s, true, &checked, &absent, &d, &e), ERR_INPUT);
        assert_non_null(strstr(e.msg, BAD[i]));
    }
    eng_scan_close(&s);
    eng_weights_close(w);
}

/* ---- exports ---- */

static fmt_safetensors *export(const eng_export_options *o, const char *path)
{
    eng_weights *w = weights();
    eng_export_item *items;
    size_t n;
    fmt_safetensors *f;
    err e = { 0 };
    assert_int_equal(eng_export_select(w, o, &items, &n, &e), ERR_OK);
    if (eng_export_write(w, o, items, n, path, true, &e) != ERR_OK) fail_msg("%s", e.msg);
    free(items);
    eng_weights_close(w);
    if (fmt_safetensors_open(path, &f, &e) != ERR_OK) fail_msg("%s", e.msg);
    return f;
}

static void official_bytes_come_out_as_they_are(void **state)
{
    (void)state;
    fmt_safetensors *f = export(&(eng_export_options){ .n_ranks = 1 }, "all.safetensors");
    eng_weights *w = weights();
    const fmt_checkpoint *c = eng_weights_files(w);
    assert_int_equal(fmt_safetensors_count(f), fmt_checkpoint_count(c));
    for (size_t i = 0; i < fmt_safetensors_count(f); i++) {
        const fmt_safetensors_entry *a = fmt_safetensors_at(f, i), *b = fmt_checkpoint_at(c, i);
        assert_string_equal(a->name, b->name);
        assert_int_equal(a->tensor.dtype, b->tensor.dtype);
        assert_int_equal(a->bytes, b->bytes);
        assert_memory_equal(a->tensor.data, b->tensor.data, a->bytes);
    }
    eng_weights_close(w);
    fmt_safetensors_close(f);
}

static void decoded_shares_are_cuts_of_the_decoded_whole(void **state)
{
    (void)state;
    eng_export_options o = { .pattern = "mtp.0.attn.w*,mtp.1.ffn.experts.3.*,mtp.2.ffn.shared*", .decode = true };
    o.n_ranks = 1;
    fmt_safetensors *whole = export(&o, "whole.safetensors");
    assert_int_equal(fmt_safetensors_count(whole), 5 + 3 + 3); /* scales are left out */
    o.n_ranks = 2;
    for (o.rank = 0; o.rank < 2; o.rank++) {
        fmt_safetensors *part = export(&o, "part.safetensors");
        for (size_t i = 0; i < fmt_safetensors_count(part); i++) {
            const fmt_tensor *p = &fmt_safetensors_at(part, i)->tensor, *t = &fmt_safetensors_at(whole, i)->tensor;
            assert_int_equal(p->dtype, FMT_DTYPE_BF16);
            int64_t row0 = t->shape[0] == p->shape[0] ? 0 : o.rank * p->shape[0];
            int64_t col0 = t->shape[1] == p->shape[1] ? 0 : o.rank * p->shape[1];
            const uint8_t *mine = p->data, *all = t->data;
            for (int64_t r = 0; r < p->shape[0]; r++)
                assert_memory_equal(mine + r * p->shape[1] * 2, all + ((row0 + r) * t->shape[1] + col0) * 2,
                                    (size_t)p->shape[1] * 2);
        }
        fmt_safetensors_close(part);
    }
    fmt_safetensors_close(whole);
}

static void a_pattern_that_matches_nothing_is_refused(void **state)
{
    (void)state;
    eng_weights *w = weights();
    eng_export_item *items;
    size_t n;
    err e = { 0 };
    eng_export_options o = { .pattern = "nothing", .n_ranks = 1 };
    assert_int_equal(eng_export_select(w, &o, &items, &n, &e), ERR_ARG);
    assert_null(items);
    eng_weights_close(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_manifest_has_every_tensor_with_the_hash_of_its_bytes),
        cmocka_unit_test(the_shares_of_all_ranks_are_the_whole_tensor),
        cmocka_unit_test(facts_agree_with_decoding_every_element),
        cmocka_unit_test(values_that_a_format_cannot_hold_are_counted),
        cmocka_unit_test(a_flipped_bit_differs_from_the_manifest_by_name),
        cmocka_unit_test(a_manifest_with_other_tensors_differs),
        cmocka_unit_test(a_file_that_is_no_manifest_is_refused),
        cmocka_unit_test(a_receipt_must_list_every_shard_with_its_hash),
        cmocka_unit_test(a_receipt_line_of_another_form_is_refused_by_number),
        cmocka_unit_test(a_receipt_that_is_no_file_is_refused),
        cmocka_unit_test(official_bytes_come_out_as_they_are),
        cmocka_unit_test(decoded_shares_are_cuts_of_the_decoded_whole),
        cmocka_unit_test(a_pattern_that_matches_nothing_is_refused),
    };
    return cmocka_run_group_tests(tests, make, scratch_remove);
}
