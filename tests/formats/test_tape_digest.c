/* Records of which only digests were kept. */
#include "tests/formats/tape_cases.h"

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

static uint64_t *some_digests(uint64_t n, uint64_t seed)
{
    uint64_t *row = malloc((n + 1) * sizeof *row);
    for (uint64_t i = 0; i < n; i++) row[i] = case_word(seed, i);
    return row;
}

static fmt_tape_writer *begin(void)
{
    fmt_tape_writer *w;
    json_t *head = case_head();
    OK(fmt_tape_create(path, head, &w, e));
    json_decref(head);
    return w;
}

/* Record i of the tape at path, opened either way, is this digest. */
static void check(fmt_open_mode mode, size_t i, const fmt_tensor *shape, fmt_tier tier, const fmt_digest *want,
                  const fmt_stats *stats)
{
    fmt_tape *t;
    fmt_tape_record r;
    err why;
    const fmt_stats none = { 0 };
    const fmt_tape_fault *faults;
    OK(fmt_tape_open_mode(path, mode, &t, e));
    assert_int_equal(fmt_tape_damage(t, &faults), 0);
    fmt_tape_at(t, i, &r);
    assert_true(r.has_digest);
    assert_int_equal(r.hash, 0);
    assert_int_equal(r.digest, want->digest);
    assert_int_equal(r.n_digest_rows, want->n_rows);
    assert_int_equal(r.tier, tier);
    assert_int_equal(r.raw_bytes, 0);
    assert_memory_equal(r.tensor.shape, shape->shape, sizeof shape->shape);
    assert_memory_equal(&r.stats, stats ? stats : &none, sizeof none);
    uint64_t *got = malloc((want->n_rows + 1) * sizeof *got);
    if (want->n_rows) {
        OK(fmt_tape_digest_rows(t, i, got, want->n_rows, e));
        assert_memory_equal(got, want->row, want->n_rows * sizeof *got);
        assert_int_equal(fmt_tape_digest_rows(t, i, got, want->n_rows - 1, &why), ERR_ARG);
    } else {
        assert_int_equal(fmt_tape_digest_rows(t, i, got, 0, &why), ERR_INPUT);
    }
    assert_int_equal(fmt_tape_get(t, i, got, 0, &why), ERR_INPUT);
    free(got);
    fmt_tape_close(t);
}

static void digests_come_back_by_index_by_scan_and_after_recovery(void **state)
{
    (void)state;
    static const int64_t SHAPE[][2] = { { 5, 3 }, { 1, 7 }, { 150000, 2 }, { 4, 0 }, { 0, 4 } };
    enum { N = COUNT_OF(SHAPE) };
    const fmt_stats stats = { .min = -1, .max = 2.5, .rms = 0.5, .n_nan = 1, .n_inf = 2, .n_zero = 3, .n_denormal = 4 };
    fmt_tape_writer *w = begin();
    fmt_tensor shape[2 * N];
    fmt_digest digest[2 * N];
    uint64_t *rows[N];
    for (size_t k = 0; k < 2 * N; k++) {
        shape[k] = fmt_tensor_make(FMT_DTYPE_BF16, NULL, 2, SHAPE[k / 2]);
        uint64_t n = (uint64_t)SHAPE[k / 2][0];
        if (k % 2 == 0) rows[k / 2] = some_digests(n, k);
        digest[k] = case_digest(rows[k / 2], n);
        if (k % 2) digest[k].n_rows = 0; /* the same without row digests, and with statistics */
        OK(fmt_tape_put_digest(w, &(fmt_tape_key){ (int32_t)k, 0, 0, "x" }, &shape[k], FMT_PLACE_REPLICATED, 0, 2,
                               k % 2 ? FMT_TIER_STATS : FMT_TIER_HASH, &digest[k], k % 2 ? &stats : NULL, e));
    }
    OK(fmt_tape_finish(w, NULL, e));
    for (int round = 0; round < 2; round++) {
        for (size_t k = 0; k < 2 * N; k++)
            for (int mode = 0; mode < 2; mode++)
                check((fmt_open_mode)mode, k, &shape[k], k % 2 ? FMT_TIER_STATS : FMT_TIER_HASH, &digest[k],
                      k % 2 ? &stats : NULL);
        char copy[128];
        fmt_tape_loss lost;
        OK(fmt_tape_recover(path, case_path(folder, "copy.tape", copy), &lost, NULL, e));
        assert_true(lost.complete);
        assert_int_equal(lost.kept_records, 2 * N);
        assert_int_equal(rename(copy, path), 0);
    }
    for (size_t k = 0; k < N; k++) free(rows[k]);
}

static void equal_row_digests_of_another_rank_cost_nothing(void **state)
{
    (void)state;
    uint64_t *rows = some_digests(100, 1);
    fmt_digest digest = case_digest(rows, 100);
    fmt_tensor t = fmt_tensor_make(FMT_DTYPE_F32, NULL, 2, (int64_t[]){ 100, 8 });
    fmt_tape_writer *w = begin();
    for (int32_t rank = 0; rank < 2; rank++)
        OK(fmt_tape_put_digest(w, &(fmt_tape_key){ 0, 0, rank, "x" }, &t, FMT_PLACE_REPLICATED, 0, 2, FMT_TIER_HASH,
                               &digest, NULL, e));
    OK(fmt_tape_finish(w, NULL, e));
    for (size_t i = 0; i < 2; i++) check(FMT_OPEN_SURVEY, i, &t, FMT_TIER_HASH, &digest, NULL);
    fmt_tape *tape;
    fmt_tape_record r;
    OK(fmt_tape_open(path, &tape, e));
    fmt_tape_at(tape, 0, &r);
    assert_int_equal(r.stored_bytes, 800);
    fmt_tape_at(tape, 1, &r);
    assert_int_equal(r.stored_bytes, 0);
    fmt_tape_close(tape);
    free(rows);
}

static void a_digest_that_does_not_fit_its_record_is_refused(void **state)
{
    (void)state;
    uint64_t rows[5] = { 1, 2, 3, 4, 5 };
    fmt_tensor t = fmt_tensor_make(FMT_DTYPE_F32, NULL, 2, (int64_t[]){ 4, 8 });
    fmt_tensor empty = fmt_tensor_make(FMT_DTYPE_F32, NULL, 2, (int64_t[]){ (int64_t)1 << 60, 0 });
    const fmt_tape_key key = { 0, 0, 0, "x" };
    const fmt_stats stats = { 0 };
    fmt_digest four = { 1, rows, 4 }, five = { 1, rows, 5 }, many = { 1, rows, (uint64_t)1 << 60 };
    fmt_tape_writer *w = begin();
    err why;
#define PUT(t, tier, digest, stats) fmt_tape_put_digest(w, &key, t, FMT_PLACE_REPLICATED, 0, 1, tier, digest, stats, &why)
    assert_int_equal(PUT(&t, FMT_TIER_TENSOR, &four, NULL), ERR_ARG);
    assert_int_equal(PUT(&t, FMT_TIER_HASH, &four, &stats), ERR_ARG);
    assert_int_equal(PUT(&t, FMT_TIER_STATS, &four, NULL), ERR_ARG);
    assert_int_equal(PUT(&t, FMT_TIER_HASH, &five, NULL), ERR_ARG);
    assert_non_null(strstr(why.msg, "digests of 5 rows, wanted 4"));
    assert_int_equal(PUT(&empty, FMT_TIER_HASH, &many, NULL), ERR_ARG);
    assert_int_equal(PUT(&t, FMT_TIER_HASH, &four, NULL), ERR_OK);
#undef PUT
    OK(fmt_tape_finish(w, NULL, e));
    check(FMT_OPEN_NORMAL, 0, &t, FMT_TIER_HASH, &four, NULL);
}

/* Reads a data chunk that holds one part, p, and says whether its meta is within the rules. */
static err_code read_part(const fmt_part *p)
{
    uint8_t data[512];
    fmt_buf meta = { .data = data, .cap = sizeof data };
    fmt_pack_map(&meta, 2);
    fmt_pack_str(&meta, "names");
    fmt_pack_array(&meta, 1);
    fmt_pack_str(&meta, "x");
    fmt_pack_str(&meta, "parts");
    fmt_pack_array(&meta, 1);
    fmt_part_put(&meta, p, 0);
    assert_false(meta.full);
    fmt_chunk c = { .kind = FMT_CHUNK_DATA, .meta = data, .meta_bytes = (uint32_t)meta.used };
    fmt_parts parts;
    err why;
    err_code rc = fmt_parts_get(&c, &parts, &why);
    if (rc == ERR_OK) fmt_parts_fini(&parts);
    return rc;
}

static fmt_part digest_part(int64_t rows, uint64_t n_digests)
{
    fmt_part p = { .record = { .key = { .slot = FMT_TAPE_NO_SLOT }, .n_ranks = 1, .tier = FMT_TIER_HASH, .has_digest = true,
                               .digest = 1, .n_digest_rows = n_digests } };
    p.record.tensor = fmt_tensor_make(FMT_DTYPE_F32, NULL, 2, (int64_t[]){ rows, 0 });
    p.elems = n_digests;
    p.bytes = (uint32_t)(8 * n_digests);
    return p;
}

static void a_count_of_rows_that_lies_is_refused(void **state)
{
    (void)state;
    fmt_part p = digest_part(4, 4);
    assert_int_equal(read_part(&p), ERR_OK); /* the checker can say yes */
    p = digest_part(4, 0);
    assert_int_equal(read_part(&p), ERR_OK);
    for (uint64_t n = 1; n < 10; n++) {
        p = digest_part(4, n);
        assert_int_equal(read_part(&p), n == 4 ? ERR_OK : ERR_FORMAT);
    }
    p = digest_part((int64_t)1 << 60, (uint64_t)1 << 60); /* 8 bytes each overflow to none */
    assert_int_equal(read_part(&p), ERR_FORMAT);
    p = digest_part((int64_t)1 << 45, (uint64_t)1 << 45);
    assert_int_equal(read_part(&p), ERR_FORMAT); /* of so many rows one part is not all */
    p = digest_part(4, 4);
    p.bytes = 24; /* fewer than it says */
    assert_int_equal(read_part(&p), ERR_FORMAT);
    p = digest_part(4, 4);
    p.record.tensor = fmt_tensor_make(FMT_DTYPE_F32, NULL, 1, (int64_t[]){ 4 }); /* one row */
    assert_int_equal(read_part(&p), ERR_FORMAT);
    p = digest_part(4, 4);
    p.record.has_digest = false; /* rows without a tensor's digest */
    assert_int_equal(read_part(&p), ERR_FORMAT);
    p = digest_part(4, 0);
    p.record.tier = FMT_TIER_TENSOR; /* a digest beside a tensor */
    assert_int_equal(read_part(&p), ERR_FORMAT);
}

/* Changes byte `to` in a column of the tape's only index page, makes the checksums right, and opens it by its index. */
static bool index_opens_with(const char *column, uint8_t to)
{
    size_t bytes;
    uint8_t *file = case_read_file(path, &bytes);
    fmt_chunk c;
    uint64_t at = FMT_PRELUDE_BYTES;
    for (; ; at = fmt_chunk_end(&c)) {
        OK(fmt_chunk_get(file, bytes, at, &c, e));
        if (c.kind == FMT_CHUNK_INDEX) break;
    }
    char text[32];
    size_t n = strlen(column);
    text[0] = (char)(0xa0 | n); /* msgpack: a short string; the type's, then the offset in the body follow */
    memcpy(text + 1, column, n);
    uint8_t *meta = memmem(c.meta, c.meta_bytes, text, n + 1);
    assert_non_null(meta);
    meta += n + 1 + 3;
    file[at + FMT_CHUNK_HEADER_BYTES + c.meta_bytes + (meta[0] == 0xcc ? meta[1] : meta[0])] = to;
    fmt_chunk_put_header(file + at, FMT_CHUNK_INDEX, c.sequence, c.meta, c.meta_bytes, c.body_bytes,
                         fmt_crc32c(0, c.body, c.body_bytes));
    case_write_file(path, file, bytes);
    free(file);
    /* Only an open by scan counts chunks. */
    fmt_tape *t;
    OK(fmt_tape_open(path, &t, e));
    bool indexed = fmt_tape_chunks(t) == 0;
    assert_int_equal(fmt_tape_count(t), 1);
    fmt_tape_close(t);
    return indexed;
}

static void an_index_that_lies_about_digests_is_not_used(void **state)
{
    (void)state;
    uint64_t rows[4] = { 1, 2, 3, 4 };
    fmt_digest digest = { 1, rows, 4 };
    fmt_tensor t = fmt_tensor_make(FMT_DTYPE_F32, NULL, 2, (int64_t[]){ 4, 8 });
    fmt_tape_writer *w = begin();
    OK(fmt_tape_put_digest(w, &(fmt_tape_key){ 0, 0, 0, "x" }, &t, FMT_PLACE_REPLICATED, 0, 1, FMT_TIER_HASH, &digest, NULL,
                           e));
    OK(fmt_tape_finish(w, NULL, e));
    assert_true(index_opens_with("digests", FMT_DIGESTS_ROWS));
    assert_false(index_opens_with("digests", 3));
    assert_true(index_opens_with("digests", FMT_DIGESTS_ROWS));
    assert_false(index_opens_with("tier", FMT_TIER_TENSOR));
}

/* A tape written before there were digests. */
static void a_tape_of_minor_version_0_is_read(void **state)
{
    (void)state;
    const char *old = TESTS_DIR "/fuzz/corpus/fuzz_tape/two_rounds";
    fmt_tape *t;
    fmt_tape_record r;
    fmt_tape_report report;
    OK(fmt_tape_open(old, &t, e));
    assert_int_equal(fmt_tape_minor(t), 0);
    assert_int_equal(fmt_tape_chunks(t), 0); /* by its index */
    assert_int_equal(fmt_tape_count(t), 18);
    for (size_t i = 0; i < fmt_tape_count(t); i++) {
        uint8_t value[4096];
        fmt_tape_at(t, i, &r);
        assert_false(r.has_digest);
        assert_int_not_equal(r.hash, 0);
        if (r.tier != FMT_TIER_TENSOR) continue;
        OK(fmt_tape_get(t, i, value, sizeof value, e));
        assert_int_equal(fmt_hash64(value, r.raw_bytes), r.hash);
    }
    fmt_tape_close(t);
    OK(fmt_tape_examine(old, &report, e));
    assert_int_equal(report.n_faults, 0);
    fmt_tape_report_fini(&report);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(digests_come_back_by_index_by_scan_and_after_recovery, setup, teardown),
        cmocka_unit_test_setup_teardown(equal_row_digests_of_another_rank_cost_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(a_digest_that_does_not_fit_its_record_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(a_count_of_rows_that_lies_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(an_index_that_lies_about_digests_is_not_used, setup, teardown),
        cmocka_unit_test(a_tape_of_minor_version_0_is_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
