#include "tests/engine/fixture.h"

#include "engine/identity.h"
#include "engine/weights.h"

#include <fcntl.h>
#include <time.h>

/* Every test has a fresh checkpoint and a fresh cache folder. */
typedef struct world { fixture f; char cache[64]; } world;

static int setup(void **state)
{
    world *w = mem_alloc(1, sizeof *w);
    char full[PATH_MAX];
    fixture_init(&w->f);
    strcpy(w->cache, "cache-XXXXXX");
    assert_non_null(mkdtemp(w->cache));
    assert_non_null(realpath(w->cache, full));
    setenv("XDG_CACHE_HOME", full, 1);
    *state = w;
    return 0;
}

static int teardown(void **state)
{
    world *w = *state;
    char inner[PATH_MAX];
    snprintf(inner, sizeof inner, "%s/sparktape", w->cache);
    remove_folder(inner);
    remove_folder(w->cache);
    fixture_fini(&w->f);
    free(w);
    return 0;
}

static eng_weights *opened(const fixture *f)
{
    eng_weights *w;
    err e = { 0 };
    if (eng_weights_open(f->dir, true, &w, &e) != ERR_OK) fail_msg("refused: %s", e.msg);
    return w;
}

static void refused(const fixture *f, err_code code, const char *shows, const char *also)
{
    eng_weights *w = (eng_weights *)1;
    err e = { 0 };
    fixture_write(f);
    assert_int_equal(eng_weights_open(f->dir, true, &w, &e), code);
    assert_null(w);
    if (!strstr(e.msg, shows) || !strstr(e.msg, also)) fail_msg("'%s' does not show '%s' and '%s'", e.msg, shows, also);
}

static void identity_of(const fixture *f, char hex[FMT_SHA256_HEX])
{
    eng_weights *w = opened(f);
    eng_weights_identity(w, hex);
    eng_weights_close(w);
}

/* ---- opening ---- */

static void views_show_the_stored_bytes(void **state)
{
    const fixture *f = &((world *)*state)->f;
    fixture_write(f);
    eng_weights *w = opened(f);
    assert_true(eng_config_equal(eng_weights_config(w), &f->config));
    krn_weight v = eng_weights_view(w, ENG_W_EXPERT_W2, 1, 3);
    size_t i = fixture_find(f, "mtp.1.ffn.experts.3.w2.weight"), s = fixture_find(f, "mtp.1.ffn.experts.3.w2.scale");
    assert_true(v.format == KRN_W_FP4 && v.n == 96 && v.k == 64 && v.row_bytes == 32 && v.scale_row_bytes == 2);
    assert_memory_equal(v.data, f->data[i], f->bytes[i]);
    assert_memory_equal(v.scale, f->data[s], f->bytes[s]);
    v = eng_weights_view(w, ENG_W_MAIN_PROJ, -1, -1);
    assert_true(v.format == KRN_W_FP8 && v.n == 96 && v.k == 192 && v.scale_row_bytes == 6);
    v = eng_weights_view(w, ENG_W_SINK, 0, -1);
    assert_true(v.format == KRN_W_F32 && v.n == 4 && v.k == 1 && v.row_bytes == 4);
    eng_weights_close(w);
}

static void tensors_at_odd_bytes_are_aligned_for_their_type(void **state)
{
    const fixture *f = &((world *)*state)->f;
    fixture_write(f);
    eng_weights *w = opened(f);
    size_t odd = 0;
    for (size_t i = 0; i < fmt_checkpoint_count(eng_weights_files(w)); i++) {
        const fmt_tensor *t = &fmt_checkpoint_at(eng_weights_files(w), i)->tensor;
        odd += (uintptr_t)t->data % fmt_dtype_bytes(t->dtype) != 0;
    }
    assert_true(odd > 0); /* else this tests nothing */
    for (int32_t stage = 0; stage < 2; stage++) {
        assert_int_equal((uintptr_t)eng_weights_view(w, ENG_W_HC_ATTN_FN, stage, -1).data % 4, 0);
        assert_int_equal((uintptr_t)eng_weights_view(w, ENG_W_ATTN_NORM, stage, -1).data % 2, 0);
    }
    krn_weight v = eng_weights_view(w, ENG_W_HC_FFN_FN, 1, -1);
    size_t i = fixture_find(f, "mtp.1.hc_ffn_fn");
    assert_memory_equal(v.data, f->data[i], f->bytes[i]);
    eng_weights_close(w);
}

static void hashes_are_those_of_the_bytes(void **state)
{
    const fixture *f = &((world *)*state)->f;
    fixture_write(f);
    eng_weights *w = opened(f);
    for (size_t i = 0; i < f->n; i++) {
        fmt_sha256 found, wanted;
        assert_int_equal(eng_weights_sha256(w, f->names[i], &found, NULL), ERR_OK);
        assert_int_equal(fmt_sha256_of(f->data[i], f->bytes[i], &wanted, NULL), ERR_OK);
        assert_memory_equal(&found, &wanted, sizeof found);
    }
    fmt_sha256 none;
    assert_int_equal(eng_weights_sha256(w, "mtp.0.nothing", &none, NULL), ERR_ARG);
    eng_weights_close(w);
}

static void a_missing_tensor_is_named(void **state)
{
    fixture *f = &((world *)*state)->f;
    static const char *const NAMES[] = { "embed.weight", "head.weight", "mtp.1.norm.weight", "mtp.0.ffn.experts.2.w3.scale",
                                         "mtp.1.ffn.gate.bias_vl" };
    for (size_t k = 0; k < COUNT_OF(NAMES); k++) {
        size_t i = fixture_find(f, NAMES[k]);
        f->skip[i] = true;
        refused(f, ERR_IDENTITY, NAMES[k], "missing");
        f->skip[i] = false;
    }
}

static void an_unknown_tensor_under_mtp_is_named(void **state)
{
    fixture *f = &((world *)*state)->f;
    size_t i = fixture_add(f, "mtp.0.attn.k_norm.weight", FMT_DTYPE_BF16, 1, 32, 1);
    refused(f, ERR_IDENTITY, "mtp.0.attn.k_norm.weight", "unknown");
    strcpy(f->names[i], "mtp.2.norm.weight"); /* a third stage that the config does not have */
    refused(f, ERR_IDENTITY, "mtp.2.norm.weight", "unknown");
    strcpy(f->names[i], "mtp.");
    refused(f, ERR_IDENTITY, "mtp.", "unknown");
}

static void copies_of_the_target_and_its_own_tensors_are_ignored(void **state)
{
    fixture *f = &((world *)*state)->f;
    char before[FMT_SHA256_HEX], after[FMT_SHA256_HEX];
    fixture_write(f);
    identity_of(f, before);
    fixture_add(f, "mtp.0.embed.weight", FMT_DTYPE_BF16, 2, 3, 5);
    size_t i = fixture_add(f, "mtp.1.head.weight", FMT_DTYPE_BF16, 1, 4, 1);
    put_u16(f->data[i], 0x7fc0);
    i = fixture_add(f, "layers.0.attn.wq_a.weight", FMT_DTYPE_F8, 2, 4, 4);
    f->data[i][3] = 0x7f;
    fixture_add(f, "norm.weight", FMT_DTYPE_BF16, 1, 8, 1);
    fixture_write(f);
    identity_of(f, after);
    assert_string_equal(before, after);
}

static void wrong_types_and_shapes_are_named(void **state)
{
    fixture *f = &((world *)*state)->f;
    size_t i = fixture_find(f, "mtp.0.attn.wkv.weight");
    f->decl[i].dtype = FMT_DTYPE_U8;
    refused(f, ERR_IDENTITY, "mtp.0.attn.wkv.weight: found U8", "wanted F8_E4M3 [32, 96]");
    f->decl[i].dtype = FMT_DTYPE_F8;
    f->decl[i].shape[0] = 96;
    f->decl[i].shape[1] = 32;
    refused(f, ERR_IDENTITY, "mtp.0.attn.wkv.weight", "found F8_E4M3 [96, 32]");
    f->decl[i].ndim = 1;
    f->decl[i].shape[0] = 96 * 32;
    refused(f, ERR_IDENTITY, "mtp.0.attn.wkv.weight", "[3072]");
}

static void packed_codes_may_be_stored_unsigned(void **state)
{
    fixture *f = &((world *)*state)->f;
    char i8[FMT_SHA256_HEX], u8[FMT_SHA256_HEX];
    fixture_write(f);
    identity_of(f, i8);
    for (size_t i = 0; i < f->n; i++)
        if (f->decl[i].dtype == FMT_DTYPE_I8) f->decl[i].dtype = FMT_DTYPE_U8;
    fixture_write(f);
    identity_of(f, u8);
    assert_string_equal(i8, u8);
}

static void every_nan_is_named_with_its_element(void **state)
{
    fixture *f = &((world *)*state)->f;
    static const struct { const char *name; int element; uint32_t bits; } BAD[] = {
        { "mtp.0.attn.wq_a.weight", 17, 0x7f }, { "mtp.0.attn.wq_a.weight", 6143, 0xff },
        { "mtp.1.ffn.experts.1.w1.scale", 191, 0xff }, { "mtp.0.main_proj.scale", 0, 0xff },
        { "embed.weight", 57599, 0x7f81 }, { "mtp.1.confidence_head.proj.weight", 5, 0xffc0 },
        { "mtp.0.hc_attn_fn", 9215, 0x7f800001 }, { "mtp.1.ffn.gate.bias_vl", 2, 0xffffffff },
        { "mtp.0.attn.attn_sink", 3, 0x7fc00000 },
    };
    for (size_t k = 0; k < COUNT_OF(BAD); k++) {
        size_t i = fixture_find(f, BAD[k].name);
        uint32_t size = fmt_dtype_bytes(f->decl[i].dtype);
        uint8_t *p = f->data[i] + (size_t)BAD[k].element * size, kept[4], bits[4];
        char element[32];
        assert_true((uint64_t)BAD[k].element < f->bytes[i] / size);
        put_u32(bits, BAD[k].bits);
        memcpy(kept, p, size);
        memcpy(p, bits, size);
        snprintf(element, sizeof element, "element %d:", BAD[k].element);
        refused(f, ERR_INPUT, BAD[k].name, element);
        memcpy(p, kept, size);
    }
}

static void infinities_are_no_nan(void **state)
{
    fixture *f = &((world *)*state)->f;
    put_u32(f->data[fixture_find(f, "mtp.0.attn.attn_sink")] + 4, 0xff800000);
    put_u16(f->data[fixture_find(f, "mtp.0.attn_norm.weight")], 0x7f80);
    fixture_write(f);
    eng_weights_close(opened(f));
}

static void a_shard_that_is_gone_or_cut_is_refused(void **state)
{
    fixture *f = &((world *)*state)->f;
    char path[PATH_MAX];
    eng_weights *w;
    err e = { 0 };
    fixture_write(f);
    snprintf(path, sizeof path, "%s/two.safetensors", f->dir);
    assert_int_equal(truncate(path, 1000), 0);
    assert_int_equal(err_exit_status(eng_weights_open(f->dir, true, &w, &e)), 3);
    assert_non_null(strstr(e.msg, "two.safetensors"));
    unlink(path);
    assert_int_equal(err_exit_status(eng_weights_open(f->dir, true, &w, &e)), 3);
    assert_non_null(strstr(e.msg, "two.safetensors"));
}

static void the_identity_sees_every_byte_and_every_key(void **state)
{
    fixture *f = &((world *)*state)->f;
    char first[FMT_SHA256_HEX], other[FMT_SHA256_HEX];
    fixture_write(f);
    identity_of(f, first);
    uint8_t *p = f->data[fixture_find(f, "mtp.1.ffn.experts.0.w1.weight")] + 100;
    *p ^= 1;
    fixture_write(f);
    identity_of(f, other);
    assert_string_not_equal(first, other);
    *p ^= 1;
    f->config.sinkhorn_iters++;
    fixture_write(f);
    identity_of(f, other);
    assert_string_not_equal(first, other);
    f->config.sinkhorn_iters--;
    fixture_write(f);
    identity_of(f, other);
    assert_string_equal(first, other);
}

static void a_recorded_identity_is_compared_by_checkpoint(void **state)
{
    const fixture *f = &((world *)*state)->f;
    eng_options o;
    err e = { 0 };
    fixture_write(f);
    eng_weights *w = opened(f);
    assert_int_equal(eng_options_parse(&(eng_option_words){ .arm = "mirror64" }, 0, &o, NULL), ERR_OK);
    json_t *id = eng_identity(w, &o);
    assert_non_null(id);
    assert_string_equal(json_string_value(json_object_get(json_object_get(id, "arm"), "name")), "mirror64");
    fmt_sha256 head;
    char hex[FMT_SHA256_HEX];
    assert_int_equal(eng_weights_sha256(w, "head.weight", &head, NULL), ERR_OK);
    fmt_sha256_hex(&head, hex);
    assert_string_equal(json_string_value(json_object_get(json_object_get(id, "head"), "sha256")), hex);
    assert_int_equal(eng_identity_check(id, w, &e), ERR_OK);
    json_object_set_new(id, "checkpoint", json_string("unknown"));
    assert_int_equal(eng_identity_check(id, w, &e), ERR_OK);
    json_object_set_new(id, "checkpoint", json_string("0123"));
    assert_int_equal(eng_identity_check(id, w, &e), ERR_IDENTITY);
    assert_non_null(strstr(e.msg, "0123"));
    json_decref(id);
    eng_weights_close(w);
}

/* ---- the remembered pass ---- */

/* The one cache file whose text mentions shard; false: none. */
static bool cache_file_of(const world *w, const char *shard, char path[PATH_MAX])
{
    char folder[PATH_MAX / 2];
    bool found = false;
    snprintf(folder, sizeof folder, "%s/sparktape", w->cache);
    DIR *d = opendir(folder);
    for (struct dirent *x; d && !found && (x = readdir(d)); ) {
        json_t *o;
        if (x->d_name[0] == '.') continue;
        snprintf(path, PATH_MAX, "%s/%s", folder, x->d_name);
        if (fmt_json_read(path, 1 << 24, &o, NULL) != ERR_OK) continue;
        const char *of = json_string_value(json_object_get(json_object_get(o, "shard"), "path"));
        found = of && strstr(of, shard);
        json_decref(o);
    }
    if (d) closedir(d);
    return found;
}

static void a_settled_shard_is_remembered_and_a_changed_one_is_not_trusted(void **state)
{
    world *w = *state;
    char first[FMT_SHA256_HEX], again[FMT_SHA256_HEX], path[PATH_MAX], folder[PATH_MAX];
    struct stat st;
    err e = { 0 };
    fixture_write(&w->f);
    identity_of(&w->f, first);
    assert_false(cache_file_of(w, "one.safetensors", path)); /* just written: its times prove nothing yet */
    nanosleep(&(struct timespec){ .tv_sec = 2, .tv_nsec = 100000000 }, NULL);
    identity_of(&w->f, again);
    assert_string_equal(first, again);
    assert_true(cache_file_of(w, "two.safetensors", path));
    assert_true(cache_file_of(w, "one.safetensors", path));
    snprintf(folder, sizeof folder, "%s/sparktape", w->cache);
    assert_int_equal(stat(folder, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);

    /* It is used: a hash changed there shows. */
    json_t *kept;
    assert_int_equal(fmt_json_read(path, 1 << 24, &kept, NULL), ERR_OK);
    json_t *tensors = json_object_get(kept, "tensors");
    json_t *old = json_deep_copy(json_object_get(tensors, "embed.weight"));
    assert_non_null(old);
    json_object_set_new(tensors, "embed.weight", json_pack("s", "00000000000000000000000000000000"
                                                                "00000000000000000000000000000000"));
    assert_int_equal(fmt_json_write(path, kept, NULL), ERR_OK);
    identity_of(&w->f, again);
    assert_string_not_equal(first, again);

    /* Rubbish in it only costs the pass. */
    static const char *const RUBBISH[] = { "", "[]", "{\"shard\": 1}", "{\"tensors\": []}", "\xff\xfe", "{\"tensors\": {" };
    for (size_t i = 0; i < COUNT_OF(RUBBISH); i++) {
        FILE *out = fopen(path, "w");
        assert_non_null(out);
        fputs(RUBBISH[i], out);
        fclose(out);
        identity_of(&w->f, again);
        assert_string_equal(first, again);
    }
    static const char *const BAD_HASH[] = { "", "xyz", "0123456789abcdef" };
    for (size_t i = 0; i < COUNT_OF(BAD_HASH); i++) {
        json_object_set_new(tensors, "embed.weight", json_string(BAD_HASH[i]));
        assert_int_equal(fmt_json_write(path, kept, NULL), ERR_OK);
        identity_of(&w->f, again);
        assert_string_equal(first, again);
    }
    json_decref(old);
    json_decref(kept);

    /* The same size and mtime, another byte: the pass is made again. */
    char shard[PATH_MAX];
    snprintf(shard, sizeof shard, "%s/one.safetensors", w->f.dir);
    assert_int_equal(stat(shard, &st), 0);
    FILE *io = fopen(shard, "r+");
    assert_non_null(io);
    assert_int_equal(fseek(io, -1, SEEK_END), 0);
    int last = fgetc(io);
    assert_int_equal(fseek(io, -1, SEEK_END), 0);
    fputc(last ^ 1, io);
    fclose(io);
    struct timespec times[2] = { st.st_atim, st.st_mtim };
    assert_int_equal(utimensat(AT_FDCWD, shard, times, 0), 0);
    eng_weights *opened_again;
    err_code rc = eng_weights_open(w->f.dir, true, &opened_again, &e);
    assert_int_equal(rc, ERR_OK);
    eng_weights_identity(opened_again, again);
    eng_weights_close(opened_again);
    assert_string_not_equal(first, again);
}

static void a_cache_that_cannot_be_written_is_no_error(void **state)
{
    const fixture *f = &((world *)*state)->f;
    fixture_write(f);
    nanosleep(&(struct timespec){ .tv_sec = 2, .tv_nsec = 100000000 }, NULL);
    setenv("XDG_CACHE_HOME", "/proc/nowhere", 1);
    eng_weights_close(opened(f));
    setenv("XDG_CACHE_HOME", "relative", 1);
    setenv("HOME", "/dev/null", 1);
    eng_weights_close(opened(f));
    unsetenv("HOME");
    eng_weights_close(opened(f));
}

/* ---- what a rank holds ---- */

static eng_rank_weights *rank_of(const eng_weights *w, int32_t rank, int32_t ranks, bool experts, bool dense)
{
    eng_rank_weights *r;
    err e = { 0 };
    const eng_reps reps = { experts ? ENG_REP_BF16 : ENG_REP_FP4, dense ? ENG_REP_BF16 : ENG_REP_FP8, ENG_REP_BF16 };
    if (eng_rank_weights_open(w, rank, ranks, &reps, true, &r, &e) != ERR_OK) fail_msg("refused: %s", e.msg);
    return r;
}

static void ranks_hold_their_share_of_every_weight_packed_or_expanded(void **state)
{
    const fixture *f = &((world *)*state)->f;
    enum { RANKS = 2 };
    fixture_write(f);
    eng_weights *w = opened(f);
    const eng_config *c = eng_weights_config(w);
    for (int expand = 0; expand < 2; expand++)
        for (int32_t rank = 0; rank < RANKS; rank++) {
            eng_rank_weights *r = rank_of(w, rank, RANKS, expand, expand);
            assert_true(expand ? eng_rank_weights_owned_bytes(r) > 0 : eng_rank_weights_owned_bytes(r) == 0);
            for (int id = 0; id < ENG_W_COUNT; id++) {
                krn_weight whole = eng_weights_view(w, id, 1, 2);
                const krn_weight *part = eng_rank_weight(r, id, 1, 2);
                if (!eng_wkind_of(id)->loaded) {
                    assert_null(part->data);
                    continue;
                }
                eng_range share = eng_cut_range(c, id, rank, RANKS);
                bool cols = eng_wkind_of(id)->cut == ENG_CUT_COLS;
                assert_int_equal(cols ? part->k : part->n, share.count);
                bool quantised = whole.format == KRN_W_FP4 || whole.format == KRN_W_FP8;
                assert_int_equal(part->format, expand && quantised ? KRN_W_BF16 : whole.format);
                float *a = mem_alloc((size_t)whole.n * (size_t)whole.k, sizeof *a);
                float *b = mem_alloc((size_t)part->n * (size_t)part->k, sizeof *b);
                krn_weight_decode_f32(&whole, 0, whole.n, a);
                krn_weight_decode_f32(part, 0, part->n, b);
                for (int32_t n = 0; n < part->n; n++) {
                    size_t at = (size_t)(cols ? n : n + share.first) * (size_t)whole.k + (size_t)(cols ? share.first : 0);
                    assert_memory_equal(b + (size_t)n * (size_t)part->k, a + at, (size_t)part->k * sizeof *a);
                }
                free(a);
                free(b);
            }
            eng_rank_weights_close(r);
        }
    eng_weights_close(w);
}

static void what_bf16_cannot_hold_is_not_expanded(void **state)
{
    fixture *f = &((world *)*state)->f;
    eng_rank_weights *r;
    err e = { 0 };
    f->data[fixture_find(f, "mtp.1.attn.wo_b.weight")][0] = 0x01; /* 2^-9 ... */
    f->data[fixture_find(f, "mtp.1.attn.wo_b.scale")][0] = 0;     /* ... times 2^-127: below bf16's smallest */
    fixture_write(f);
    eng_weights *w = opened(f);
    const eng_reps expanded = { ENG_REP_FP4, ENG_REP_BF16, ENG_REP_BF16 };
    assert_int_equal(eng_rank_weights_open(w, 0, 1, &expanded, true, &r, &e), ERR_INPUT);
    assert_non_null(strstr(e.msg, "mtp.1.attn.wo_b"));
    assert_null(r);
    eng_rank_weights_close(rank_of(w, 0, 1, true, false)); /* the experts alone can be */
    assert_int_equal(eng_rank_weights_open(w, 0, 3, &(eng_reps){ 0 }, true, &r, &e), ERR_ARG);
    eng_weights_close(w);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(views_show_the_stored_bytes),
        TEST(tensors_at_odd_bytes_are_aligned_for_their_type),
        TEST(hashes_are_those_of_the_bytes),
        TEST(a_missing_tensor_is_named),
        TEST(an_unknown_tensor_under_mtp_is_named),
        TEST(copies_of_the_target_and_its_own_tensors_are_ignored),
        TEST(wrong_types_and_shapes_are_named),
        TEST(packed_codes_may_be_stored_unsigned),
        TEST(every_nan_is_named_with_its_element),
        TEST(infinities_are_no_nan),
        TEST(a_shard_that_is_gone_or_cut_is_refused),
        TEST(the_identity_sees_every_byte_and_every_key),
        TEST(a_recorded_identity_is_compared_by_checkpoint),
        TEST(a_settled_shard_is_remembered_and_a_changed_one_is_not_trusted),
        TEST(a_cache_that_cannot_be_written_is_no_error),
        TEST(ranks_hold_their_share_of_every_weight_packed_or_expanded),
        TEST(what_bf16_cannot_hold_is_not_expanded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
