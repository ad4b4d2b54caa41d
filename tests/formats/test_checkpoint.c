/* Checkpoint folders: index, shards, and everything about them that is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/mem.h"
#include "formats/safetensors.h"
#include "tests/formats/alloc_fail.h"

/* Each test works in an own new folder "ck", with the working folder beside it. */
static int enter(void **state)
{
    (void)state;
    char folder[] = "checkpoint_XXXXXX";
    return mkdtemp(folder) && chdir(folder) == 0 && mkdir("ck", 0777) == 0 ? 0 : -1;
}
static int leave(void **state)
{
    (void)state;
    char here[4096];
    if (!getcwd(here, sizeof here) || chdir("..") != 0) return -1;
    char command[4200];
    snprintf(command, sizeof command, "rm -rf '%s'", here);
    return system(command);
}

/* A shard with one-byte tensors: the names in a comma-separated list. */
static void put_shard(const char *path, const char *names)
{
    fmt_safetensors_decl decls[16];
    fmt_safetensors_writer *w;
    err e = { 0 };
    char copy[200];
    uint8_t data[16] = { 0 };
    size_t n = 0;
    snprintf(copy, sizeof copy, "%s", names);
    for (char *s = strtok(copy, ","); s; s = strtok(NULL, ",")) decls[n++] = (fmt_safetensors_decl){ s, FMT_DTYPE_U8, 0,
                                                                                                    { 0 } };
    if (fmt_safetensors_create(path, decls, n, NULL, &w, &e) != ERR_OK) fail_msg("%s", e.msg);
    fmt_safetensors_put(w, data, n);
    if (fmt_safetensors_finish(w, &e) != ERR_OK) fail_msg("%s", e.msg);
}

static void put_index(const char *text)
{
    FILE *f = fopen("ck/model.safetensors.index.json", "wb");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static bool wants_m(void *ctx, const char *name) { (void)ctx; return name[0] == 'm'; }

static void refused(fmt_wanted wanted, const char *m1, const char *m2, const char *m3)
{
    fmt_checkpoint *c = (fmt_checkpoint *)1;
    err e = { 0 };
    err_code rc = fmt_checkpoint_open("ck", wanted, NULL, &c, &e);
    assert_null(c);
    if (err_exit_status(rc) != 3) fail_msg("exit status %d: %s", err_exit_status(rc), e.msg);
    const char *parts[] = { m1, m2, m3 };
    for (int i = 0; i < 3; i++)
        if (!strstr(e.msg, parts[i])) fail_msg("'%s' lacks '%s'", e.msg, parts[i]);
}

static const char INDEX[] = "model.safetensors.index.json";

static void only_shards_with_wanted_tensors_are_needed(void **state)
{
    (void)state;
    fmt_checkpoint *c;
    err e = { 0 };
    put_shard("ck/2.safetensors", "m.b,layers.1");
    put_shard("ck/1.safetensors", "m.c,m.a");
    put_index("{\"metadata\":{\"total_size\":5},"
              "\"weight_map\":{\"m.c\":\"1.safetensors\",\"layers.0\":\"absent.safetensors\","
              "\"m.a\":\"1.safetensors\",\"m.b\":\"2.safetensors\",\"layers.1\":\"2.safetensors\"}}");
    if (fmt_checkpoint_open("ck", wants_m, NULL, &c, &e) != ERR_OK) fail_msg("%s", e.msg);
    assert_string_equal(fmt_checkpoint_folder(c), "ck");
    assert_int_equal(fmt_checkpoint_count(c), 3);
    assert_string_equal(fmt_checkpoint_at(c, 0)->name, "m.a");
    assert_string_equal(fmt_checkpoint_at(c, 2)->name, "m.c");
    assert_string_equal(fmt_checkpoint_shard_name(c, 0), "1.safetensors");
    assert_string_equal(fmt_checkpoint_shard_name(c, 1), "2.safetensors");
    assert_string_equal(fmt_safetensors_path(fmt_checkpoint_shard(c, 1)), "ck/2.safetensors");
    assert_ptr_equal(fmt_checkpoint_find(c, "m.b"), fmt_checkpoint_at(c, 1));
    assert_null(fmt_checkpoint_find(c, "layers.1"));
    assert_null(fmt_checkpoint_find(c, "m.d"));
    fmt_checkpoint_close(c);
    fmt_checkpoint_close(NULL);
    refused(NULL, INDEX, "absent.safetensors", "No such file");
}

static void a_folder_without_index_is_read_from_all_its_shards(void **state)
{
    (void)state;
    fmt_checkpoint *c;
    err e = { 0 };
    put_shard("ck/2.safetensors", "m.b");
    put_shard("ck/1.safetensors", "m.c,m.a,layers.0");
    put_shard("elsewhere", "m.d");
    assert_int_equal(symlink("../elsewhere", "ck/link.safetensors"), 0);
    FILE *f = fopen("ck/9.safetensors.part", "wb"); /* not a shard */
    fclose(f);
    if (fmt_checkpoint_open("ck", wants_m, NULL, &c, &e) != ERR_OK) fail_msg("%s", e.msg);
    assert_int_equal(fmt_checkpoint_count(c), 4);
    assert_string_equal(fmt_checkpoint_shard_name(c, 0), "1.safetensors");
    assert_string_equal(fmt_checkpoint_shard_name(c, 3), "link.safetensors");
    fmt_checkpoint_close(c);
}

static void a_folder_that_holds_no_checkpoint_is_refused(void **state)
{
    (void)state;
    fmt_checkpoint *c;
    err e;
    refused(NULL, "ck", "neither model.safetensors.index.json", "*.safetensors");
    assert_int_equal(fmt_checkpoint_open("absent", NULL, NULL, &c, &e), ERR_INPUT);
    assert_non_null(strstr(e.msg, "absent"));
    put_shard("file", "m.a");
    assert_int_equal(fmt_checkpoint_open("file", NULL, NULL, &c, &e), ERR_INPUT);
}

static void a_tensor_in_two_shards_is_refused(void **state)
{
    (void)state;
    put_shard("ck/1.safetensors", "m.a");
    put_shard("ck/2.safetensors", "m.a,layers.0");
    refused(wants_m, "tensor m.a", "1.safetensors", "2.safetensors");
    put_index("{\"weight_map\":{\"m.a\":\"1.safetensors\",\"m.b\":\"2.safetensors\"}}");
    put_shard("ck/2.safetensors", "m.a,m.b");
    refused(wants_m, "tensor m.a", "found in shard 2.safetensors", "wanted only in 1.safetensors");
}

static void an_index_and_a_shard_that_disagree_are_refused(void **state)
{
    (void)state;
    put_shard("ck/1.safetensors", "m.a,m.x");
    put_index("{\"weight_map\":{\"m.a\":\"1.safetensors\",\"m.b\":\"1.safetensors\"}}");
    refused(wants_m, INDEX, "tensor m.b", "shard 1.safetensors lacks it");
    put_index("{\"weight_map\":{\"m.a\":\"1.safetensors\"}}");
    refused(wants_m, INDEX, "tensor m.x", "1.safetensors");
    put_shard("ck/1.safetensors", "m.a,layers.9"); /* not wanted: nobody's business */
    fmt_checkpoint *c;
    err e;
    assert_int_equal(fmt_checkpoint_open("ck", wants_m, NULL, &c, &e), ERR_OK);
    fmt_checkpoint_close(c);
}

static void a_shard_name_that_could_leave_the_folder_is_refused(void **state)
{
    (void)state;
    static const char *const NAMES[] = { "../elsewhere.safetensors", "/etc/passwd", "sub/1.safetensors", "..", ".", "",
                                         "..\\\\1.safetensors", "./1.safetensors" };
    put_shard("ck/1.safetensors", "m.a");
    put_shard("elsewhere.safetensors", "m.b");
    for (size_t i = 0; i < COUNT_OF(NAMES); i++) {
        char text[200];
        snprintf(text, sizeof text, "{\"weight_map\":{\"m.a\":\"1.safetensors\",\"m.b\":\"%s\"}}", NAMES[i]);
        put_index(text);
        char shown[100];
        snprintf(shown, sizeof shown, "shard '%s'", i == 6 ? "..\\1.safetensors" : NAMES[i]);
        refused(wants_m, INDEX, "tensor m.b", shown);
    }
    put_index("{\"weight_map\":{\"m.a\":3}}");
    refused(wants_m, INDEX, "tensor m.a", "no string");
    put_index("{\"weight_map\":{\"m.a\":\"1.safetensors\\u0000\"}}");
    refused(wants_m, INDEX, "line 1", "");
}

static void an_index_that_is_no_index_is_refused(void **state)
{
    (void)state;
    static const char *const TEXTS[] = { "", "[]", "{}", "{\"weight_map\":[]}",
                                        "{\"weight_map\":{\"m.a\":\"1\",\"m.a\":\"1\"}}", "{" };
    put_shard("ck/1.safetensors", "m.a");
    for (size_t i = 0; i < COUNT_OF(TEXTS); i++) {
        put_index(TEXTS[i]);
        refused(wants_m, INDEX, "", "");
    }
    unlink("ck/model.safetensors.index.json");
    assert_int_equal(symlink("nowhere", "ck/model.safetensors.index.json"), 0);
    refused(wants_m, INDEX, "No such file", "");
    unlink("ck/model.safetensors.index.json");
    assert_int_equal(mkdir("ck/model.safetensors.index.json", 0777), 0);
    refused(wants_m, INDEX, "found a folder", "");
}

static void a_damaged_shard_is_refused_with_index_and_shard(void **state)
{
    (void)state;
    put_shard("ck/1.safetensors", "m.a");
    put_index("{\"weight_map\":{\"m.a\":\"1.safetensors\"}}");
    assert_int_equal(truncate("ck/1.safetensors", 20), 0);
    refused(wants_m, INDEX, "shard 1.safetensors", "byte 0");
}

static bool wants_draft(void *ctx, const char *name) { (void)ctx; return strncmp(name, "mtp.", 4) == 0; }

/* The target's own index: 96,085 names in 46 shards, of which two hold what is wanted and exist. */
static void an_index_of_the_whole_target_loads_fast(void **state)
{
    (void)state;
    enum { N_NAMES = 96085, N_SHARDS = 46, PER_SHARD = (N_NAMES + N_SHARDS - 1) / N_SHARDS };
    FILE *f = fopen("ck/model.safetensors.index.json", "wb");
    fprintf(f, "{\"metadata\":{\"total_size\":1},\"weight_map\":{");
    for (int i = 0; i < N_NAMES; i++)
        fprintf(f, "%s\n\"%s.%d.ffn.experts.%d.w%d.weight\":\"model-%05d-of-%05d.safetensors\"", i ? "," : "",
                i >= 44 * PER_SHARD ? "mtp" : "layers", i / 2304, i % 768, i / 768 % 3, i / PER_SHARD + 1, N_SHARDS);
    fprintf(f, "}}");
    fclose(f);
    int n_wanted = 0;
    for (int s = 44; s < N_SHARDS; s++) {
        static fmt_safetensors_decl decls[PER_SHARD];
        static char names[PER_SHARD][64];
        static uint8_t data[PER_SHARD];
        char path[64];
        size_t n = 0;
        fmt_safetensors_writer *w;
        err e;
        for (int i = s * PER_SHARD; i < (s + 1) * PER_SHARD && i < N_NAMES; i++, n++) {
            snprintf(names[n], sizeof names[n], "mtp.%d.ffn.experts.%d.w%d.weight", i / 2304, i % 768, i / 768 % 3);
            decls[n] = (fmt_safetensors_decl){ names[n], FMT_DTYPE_U8, 0, { 0 } };
        }
        snprintf(path, sizeof path, "ck/model-%05d-of-%05d.safetensors", s + 1, N_SHARDS);
        assert_int_equal(fmt_safetensors_create(path, decls, n, NULL, &w, &e), ERR_OK);
        fmt_safetensors_put(w, data, n);
        assert_int_equal(fmt_safetensors_finish(w, &e), ERR_OK);
        n_wanted += (int)n;
    }
    fmt_checkpoint *c;
    err e = { 0 };
    uint64_t t = clock_ns();
    if (fmt_checkpoint_open("ck", wants_draft, NULL, &c, &e) != ERR_OK) fail_msg("%s", e.msg);
    t = clock_ns() - t;
    print_message("96,085 names: %.0f ms\n", (double)t / 1e6);
    assert_int_equal(fmt_checkpoint_count(c), n_wanted);
    assert_true(t < 5000000000u); /* 300 ms is the aim of a release build; sanitizers and busy machines take longer */
    fmt_checkpoint_close(c);
}

static void every_failed_allocation_is_reported_and_nothing_leaks(void **state)
{
    (void)state;
    put_shard("ck/2.safetensors", "m.b");
    put_shard("ck/1.safetensors", "m.c,m.a");
    for (int with_index = 0; with_index < 2; with_index++) {
        if (with_index)
            put_index("{\"weight_map\":{\"m.a\":\"1.safetensors\",\"m.b\":\"2.safetensors\",\"m.c\":\"1.safetensors\"}}");
        for (long at = 0;; at++) {
            fmt_checkpoint *c = NULL;
            err e;
            alloc_fail_at(at, true);
            err_code rc = fmt_checkpoint_open("ck", NULL, NULL, &c, &e);
            bool hit = alloc_fail_end();
            fmt_checkpoint_close(c);
            if (hit) {
                assert_int_not_equal(rc, ERR_OK);
                continue;
            }
            assert_int_equal(rc, ERR_OK);
            assert_true(at > 10);
            break;
        }
    }
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, enter, leave)

int main(void)
{
    alloc_fail_init();
    const struct CMUnitTest tests[] = {
        IN_FOLDER(only_shards_with_wanted_tensors_are_needed),
        IN_FOLDER(a_folder_without_index_is_read_from_all_its_shards),
        IN_FOLDER(a_folder_that_holds_no_checkpoint_is_refused),
        IN_FOLDER(a_tensor_in_two_shards_is_refused),
        IN_FOLDER(an_index_and_a_shard_that_disagree_are_refused),
        IN_FOLDER(a_shard_name_that_could_leave_the_folder_is_refused),
        IN_FOLDER(an_index_that_is_no_index_is_refused),
        IN_FOLDER(a_damaged_shard_is_refused_with_index_and_shard),
        IN_FOLDER(an_index_of_the_whole_target_loads_fast),
        IN_FOLDER(every_failed_allocation_is_reported_and_nothing_leaks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
