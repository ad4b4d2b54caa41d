/* The written spec: its example byte for byte, and a reader made from it alone. */
#include "tests/formats/tape_cases.h"

#include <inttypes.h>
#include <sys/wait.h>

static char folder[64], path[128];

static int setup(void **state)
{
    (void)state;
    case_folder(folder);
    case_path(folder, "t.tape", path);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    case_folder_remove(folder);
    return 0;
}

/* Bytes of the hex dump at the end of TAPE.md: lines "    0010  53 50 ...". */
static size_t example(uint8_t *out, size_t cap)
{
    size_t n = 0, bytes;
    char *text = (char *)case_read_file(TESTS_DIR "/../formats/TAPE.md", &bytes);
    text[bytes] = 0;
    char *at = strstr(text, "\n## Example");
    assert_non_null(at);
    for (char *line = at; (line = strstr(line, "\n    ")) != NULL; ) {
        line += 5;
        assert_int_equal(strtoul(line, &line, 16), n);
        while (*line && *line != '\n') {
            assert_true(n < cap);
            out[n++] = (uint8_t)strtoul(line, &line, 16);
        }
    }
    free(text);
    return n;
}

static void the_example_of_the_spec_is_what_is_written(void **state)
{
    (void)state;
    uint8_t want[4096];
    size_t n = example(want, sizeof want), bytes;
    fmt_tape_writer *w;
    json_t *head = json_pack("{s:s}", "format", "sparktape"), *event = json_pack("{s:s}", "event", "drop");
    float v[2] = { 1.5f, -2.0f };
    fmt_tensor t = fmt_tensor_make(FMT_DTYPE_F32, v, 1, (int64_t[]){ 2 });
    uint64_t rows[2];
    fmt_digest digest = { .row = rows, .n_rows = 2 };
    fmt_stats ignored;
    OK(fmt_tape_create(path, head, &w, e));
    OK(fmt_tape_put(w, &(fmt_tape_key){ 0, 1, 0, "x" }, &t, FMT_PLACE_REPLICATED, 0, 1, FMT_TIER_TENSOR, e));
    t = fmt_tensor_make(FMT_DTYPE_F32, v, 2, (int64_t[]){ 2, 1 });
    krn_digest_ref(&t, rows, &digest.digest, &ignored);
    OK(fmt_tape_put_digest(w, &(fmt_tape_key){ 0, 1, 0, "y" }, &t, FMT_PLACE_REPLICATED, 0, 1, FMT_TIER_HASH, &digest, NULL,
                           e));
    OK(fmt_tape_put_event(w, 0, event, e));
    OK(fmt_tape_finish(w, NULL, e));
    json_decref(head);
    json_decref(event);
    uint8_t *got = case_read_file(path, &bytes);
    assert_int_equal(bytes, n);
    assert_memory_equal(got, want, n);
    free(got);
}

#ifdef PYTHON
/* Runs the stranger's reader; *out is what it printed, owned by the caller. Returns its exit status. */
static int run_reader(const char *tape, char **out)
{
    char line[512];
    size_t n = 0, cap = 0;
    *out = NULL;
    snprintf(line, sizeof line, "%s %s/formats/read_tape.py %s", PYTHON, TESTS_DIR, tape);
    FILE *f = popen(line, "r");
    assert_non_null(f);
    for (int c; (c = fgetc(f)) != EOF; ) {
        assert_true(mem_grow((void **)out, &cap, n + 2, 1));
        (*out)[n++] = (char)c;
    }
    if (*out) (*out)[n] = 0;
    return WEXITSTATUS(pclose(f));
}

/* What the reader should print of a record's hash and digest: the latter, of a tensor, as the kernels make it. */
static void hash_texts(const fmt_tape *t, size_t i, const fmt_tape_record *r, char hash[20], char digest[20])
{
    uint64_t made = r->digest;
    fmt_tensor v = r->tensor;
    fmt_stats ignored;
    uint8_t *data = malloc(r->raw_bytes + 1);
    v.data = data;
    if (r->tier == FMT_TIER_TENSOR) {
        OK(fmt_tape_get(t, i, data, r->raw_bytes, e));
        krn_digest_ref(&v, NULL, &made, &ignored);
    }
    snprintf(hash, 20, r->has_digest ? "-" : "%016" PRIx64, r->hash);
    snprintf(digest, 20, r->has_digest || r->tier == FMT_TIER_TENSOR ? "%016" PRIx64 : "-", made);
    free(data);
}

static void a_stranger_reads_the_tape_from_the_spec_alone(void **state)
{
    (void)state;
    fmt_tape_writer *w = case_write(path, 3, 1);
    uint8_t *big = case_data(FMT_DTYPE_BF16, 301 * 1000, CASE_NOISE, 5), *qdq = case_data(FMT_DTYPE_BF16, 32 * 1000,
                                                                                          CASE_QDQ, 6);
    fmt_tensor t = fmt_tensor_make(FMT_DTYPE_BF16, big, 2, (int64_t[]){ 301, 1000 });
    OK(fmt_tape_put(w, &(fmt_tape_key){ 3, 0, 0, "of.two.parts" }, &t, FMT_PLACE_REPLICATED, 0, 1, FMT_TIER_TENSOR, e));
    t = fmt_tensor_make(FMT_DTYPE_BF16, qdq, 2, (int64_t[]){ 32, 1000 });
    OK(fmt_tape_put(w, &(fmt_tape_key){ 3, 0, 0, "qdq" }, &t, FMT_PLACE_REPLICATED, 0, 1, FMT_TIER_TENSOR, e));
    case_finish(w);
    char *got, *want = calloc(1, 65536);
    int status = run_reader(path, &got);
    if (status == 77) { free(big); free(qdq); free(got); free(want); skip(); }
    assert_int_equal(status, 0);
    fmt_tape *tape;
    OK(fmt_tape_open(path, &tape, e));
    for (size_t i = 0; i < fmt_tape_count(tape); i++) {
        fmt_tape_record r;
        char slot[16] = "-", shape[64] = "", hash[20], digest[20];
        fmt_tape_at(tape, i, &r);
        hash_texts(tape, i, &r, hash, digest);
        if (r.key.slot >= 0) snprintf(slot, sizeof slot, "%d", r.key.slot);
        for (int d = 0; d < r.tensor.ndim; d++)
            snprintf(shape + strlen(shape), sizeof shape - strlen(shape), "%s%" PRId64, d ? ", " : "", r.tensor.shape[d]);
        sprintf(want + strlen(want), "%d/%s/%s@%d %s [%s] %s %s\n", r.key.round, slot, r.key.name, r.key.rank,
                fmt_dtype_name(r.tensor.dtype), shape, hash, digest);
    }
    assert_string_equal(got, want);
    fmt_tape_close(tape);
    free(big); free(qdq); free(got); free(want);
}

static void a_stranger_reads_a_tape_through_its_base(void **state)
{
    (void)state;
    char base_path[128], *got;
    case_finish(case_write(case_path(folder, "base.tape", base_path), 2, 1));
    fmt_tape *base, *t;
    fmt_tape_writer *w;
    json_t *head = case_head();
    OK(fmt_tape_open(base_path, &base, e));
    OK(fmt_tape_create_on(path, head, base, &w, e));
    json_decref(head);
    for (size_t i = 0; i < fmt_tape_count(base); i++) { /* the same values, some of them a little changed */
        uint64_t value[256] = { 0 };
        fmt_tape_record r;
        fmt_tape_at(base, i, &r);
        if (r.tier != FMT_TIER_TENSOR) continue;
        OK(fmt_tape_get(base, i, value, sizeof value, e));
        value[0] ^= i % 2;
        r.tensor.data = value;
        OK(fmt_tape_put(w, &r.key, &r.tensor, r.place, r.axis, r.n_ranks, r.tier, e));
    }
    OK(fmt_tape_finish(w, NULL, e));
    int status = run_reader(path, &got);
    if (status == 77) { free(got); fmt_tape_close(base); skip(); }
    assert_int_equal(status, 0);
    OK(fmt_tape_open(path, &t, e));
    for (size_t i = 0; i < fmt_tape_count(t); i++) {
        char hash[20];
        fmt_tape_record r;
        fmt_tape_at(t, i, &r);
        snprintf(hash, sizeof hash, "%016" PRIx64, r.hash);
        assert_non_null(strstr(got, hash));
    }
    fmt_tape_close(t);
    fmt_tape_close(base);
    free(got);
    case_finish(case_write(base_path, 1, 1)); /* and notices another one */
    assert_non_null(freopen("/dev/null", "w", stderr)); /* its traceback */
    assert_int_not_equal(run_reader(path, &got), 0);
    free(got);
}

static void the_strangers_reader_notices_damage(void **state)
{
    (void)state;
    case_finish(case_write(path, 1, 1));
    size_t bytes;
    char *got;
    uint8_t *file = case_read_file(path, &bytes);
    file[bytes / 2] ^= 1;
    case_write_file(path, file, bytes);
    free(file);
    assert_non_null(freopen("/dev/null", "w", stderr)); /* its traceback */
    assert_int_not_equal(run_reader(path, &got), 0);
    free(got);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_example_of_the_spec_is_what_is_written, setup, teardown),
#ifdef PYTHON
        cmocka_unit_test_setup_teardown(a_stranger_reads_the_tape_from_the_spec_alone, setup, teardown),
        cmocka_unit_test_setup_teardown(a_stranger_reads_a_tape_through_its_base, setup, teardown),
        cmocka_unit_test_setup_teardown(the_strangers_reader_notices_damage, setup, teardown),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
