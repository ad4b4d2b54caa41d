/* Writing and reading back. */
#include "tests/formats/tape_cases.h"

#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

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

static fmt_tape *open_tape(const char *p)
{
    fmt_tape *t;
    OK(fmt_tape_open(p, &t, e));
    return t;
}

/* Puts one value on a tape of its own, reads it back, compares bits and facts; returns stored bytes. */
static uint64_t round_trip(fmt_dtype d, int32_t ndim, const int64_t *shape, case_kind kind)
{
    fmt_tensor t = fmt_tensor_make(d, NULL, ndim, shape);
    uint64_t bytes = fmt_tensor_bytes(&t);
    uint8_t *data = case_data(d, (uint64_t)fmt_tensor_elems(&t), kind, 7), *got = malloc(bytes + 1);
    t.data = data;
    fmt_tape_writer *w;
    json_t *head = case_head();
    OK(fmt_tape_create(path, head, &w, e));
    json_decref(head);
    fmt_tape_key key = { 3, 1, 0, "value" };
    OK(fmt_tape_put(w, &key, &t, FMT_PLACE_SHARDED, 0, 2, FMT_TIER_TENSOR, e));
    OK(fmt_tape_finish(w, NULL, e));
    fmt_tape *tape = open_tape(path);
    assert_int_equal(fmt_tape_count(tape), 1);
    assert_int_equal(fmt_tape_find(tape, &key), 0);
    fmt_tape_record r;
    fmt_tape_at(tape, 0, &r);
    assert_int_equal(r.tensor.dtype, d);
    assert_int_equal(r.tensor.ndim, ndim);
    assert_memory_equal(r.tensor.shape, shape, sizeof *shape * (size_t)ndim);
    assert_int_equal(r.raw_bytes, bytes);
    assert_int_equal(r.hash, fmt_hash64(data, bytes));
    fmt_stats want = { 0 };
    fmt_stats_of(&t, &want);
    assert_memory_equal(&r.stats, &want, sizeof want);
    OK(fmt_tape_get(tape, 0, got, bytes, e));
    if (bytes) assert_memory_equal(got, data, bytes);
    fmt_tape_close(tape);
    free(data);
    free(got);
    return r.stored_bytes;
}

static void every_dtype_and_shape_comes_back_bit_for_bit(void **state)
{
    (void)state;
    static const int64_t SHAPE[][3] = { { 1, 1, 1 }, { 3, 5, 7 }, { 0, 4, 2 }, { 2, 32, 3 }, { 33, 31, 1 } };
    for (int d = 0; d < FMT_DTYPE_COUNT; d++)
        for (size_t s = 0; s < COUNT_OF(SHAPE); s++)
            for (int kind = CASE_NOISE; kind <= CASE_SPECIAL; kind++) {
                if (kind == CASE_QDQ) continue;
                round_trip((fmt_dtype)d, 3, SHAPE[s], (case_kind)kind);
            }
    round_trip(FMT_DTYPE_F32, 0, NULL, CASE_NOISE);
}

static void a_value_larger_than_a_chunk_comes_back(void **state)
{
    (void)state;
    round_trip(FMT_DTYPE_F32, 2, (int64_t[]){ 700, 1024 }, CASE_NOISE);
    round_trip(FMT_DTYPE_BF16, 2, (int64_t[]){ 1999, 1000 }, CASE_NOISE);
    round_trip(FMT_DTYPE_BF16, 2, (int64_t[]){ 2000, 1024 }, CASE_QDQ);
    round_trip(FMT_DTYPE_U8, 1, (int64_t[]){ 3000001 }, CASE_SPECIAL);
}

static void a_qdq_value_is_stored_as_codes_and_scales(void **state)
{
    (void)state;
    assert_int_equal(round_trip(FMT_DTYPE_BF16, 2, (int64_t[]){ 40, 128 }, CASE_QDQ), 40 * 128 + 40 * 4);
    assert_int_equal(round_trip(FMT_DTYPE_BF16, 2, (int64_t[]){ 40, 128 }, CASE_ZERO), 40 * 128 + 40 * 4);
    assert_int_equal(round_trip(FMT_DTYPE_BF16, 2, (int64_t[]){ 40, 128 }, CASE_NOISE), 40 * 128 * 2);
}

/* Large values over several ranks: equal, nearly equal and unrelated copies. */
static void rank_copies_come_back_and_equal_ones_cost_nothing(void **state)
{
    (void)state;
    enum { RANKS = 3, ROWS = 900, COLS = 1024 };
    const size_t bytes = 2u * ROWS * COLS;
    uint8_t *a = case_data(FMT_DTYPE_BF16, ROWS * COLS, CASE_NOISE, 1), *b = case_data(FMT_DTYPE_BF16, ROWS * COLS,
                                                                                       CASE_NOISE, 2);
    uint8_t *near = malloc(bytes), *got = malloc(bytes);
    memcpy(near, a, bytes);
    for (size_t i = 0; i < bytes; i += 1001) near[i] ^= 4;
    const void *copies[3][RANKS] = { { a, a, a }, { a, near, a }, { a, b, near } };
    fmt_tape_writer *w;
    json_t *head = case_head();
    OK(fmt_tape_create(path, head, &w, e));
    json_decref(head);
    fmt_tensor t = fmt_tensor_make(FMT_DTYPE_BF16, a, 2, (int64_t[]){ ROWS, COLS });
    for (int k = 0; k < 3; k++)
        OK(fmt_tape_put_ranks(w, &(fmt_tape_key){ k, -1, 0, "x" }, &t, copies[k], FMT_PLACE_REPLICATED, 0, RANKS,
                              FMT_TIER_TENSOR, e));
    OK(fmt_tape_finish(w, NULL, e));
    fmt_tape *tape = open_tape(path);
    assert_int_equal(fmt_tape_count(tape), 3 * RANKS);
    for (size_t i = 0; i < 3 * RANKS; i++) {
        fmt_tape_record r;
        fmt_tape_at(tape, i, &r);
        assert_int_equal(r.key.round, i / RANKS);
        assert_int_equal(r.key.rank, i % RANKS);
        if (i == 1 || i == 2 || i == 5) assert_int_equal(r.stored_bytes, 0);
        OK(fmt_tape_get(tape, i, got, bytes, e));
        assert_memory_equal(got, copies[i / RANKS][i % RANKS], bytes);
    }
    fmt_tape_close(tape);
    free(a); free(b); free(near); free(got);
}

static uint64_t transforms_on(const char *p)
{
    size_t bytes;
    uint8_t *file = case_read_file(p, &bytes);
    uint64_t seen = 0;
    fmt_chunk c;
    for (uint64_t at = FMT_PRELUDE_BYTES; fmt_chunk_get(file, bytes, at, &c, NULL) == ERR_OK; at = fmt_chunk_end(&c)) {
        fmt_parts parts;
        assert_true(fmt_chunk_end(&c) - at <= FMT_TAPE_CHUNK_BYTES);
        if (c.kind != FMT_CHUNK_DATA) continue;
        OK(fmt_parts_get(&c, &parts, e));
        for (size_t i = 0; i < parts.n; i++) seen |= 1u << parts.part[i].transform;
        fmt_parts_fini(&parts);
    }
    free(file);
    return seen;
}

static void the_case_tape_uses_every_transform(void **state)
{
    (void)state;
    case_finish(case_write(path, 3, 1));
    assert_int_equal(transforms_on(path), 0x3f);
}

/* The same facts, whichever way the tape was opened. */
static void check_case(const fmt_tape *t, int n_rounds)
{
    const int32_t *rounds;
    assert_int_equal(fmt_tape_count(t), n_rounds * CASE_RECORDS);
    assert_int_equal(fmt_tape_event_count(t), n_rounds);
    assert_int_equal(fmt_tape_rounds(t, &rounds), n_rounds);
    for (int r = 0; r < n_rounds; r++) {
        size_t first, n;
        int32_t round;
        assert_int_equal(rounds[r], r);
        fmt_tape_round_span(t, r, &first, &n);
        assert_int_equal(first, r * CASE_RECORDS);
        assert_int_equal(n, CASE_RECORDS);
        const json_t *event = fmt_tape_event_at(t, (size_t)r, &round);
        assert_int_equal(round, r);
        assert_int_equal(json_integer_value(json_object_get(event, "n")), r);
        int64_t i = fmt_tape_find(t, &(fmt_tape_key){ r, FMT_TAPE_NO_SLOT, 1, "s1.attn_out" });
        assert_int_equal(i, first + 4);
        uint8_t got[2 * CASE_ELEMS], *want = case_data(FMT_DTYPE_BF16, CASE_ELEMS, CASE_NOISE, 1 + 100 * (uint64_t)r + 1);
        want[40] ^= 1;
        OK(fmt_tape_get(t, (size_t)i, got, sizeof got, e));
        assert_memory_equal(got, want, sizeof got);
        free(want);
        err why;
        fmt_tape_record rec;
        fmt_tape_at(t, first + 6, &rec);
        assert_int_equal(rec.tier, FMT_TIER_STATS);
        assert_true(rec.stats.max > 0);
        assert_int_equal(rec.raw_bytes, 0);
        assert_int_equal(fmt_tape_get(t, first + 6, got, sizeof got, &why), ERR_INPUT);
        assert_int_equal(fmt_tape_get(t, (size_t)i, got, sizeof got - 1, &why), ERR_ARG);
        assert_non_null(strstr(why.msg, "/s1.attn_out@r1"));
    }
    size_t first, n;
    fmt_tape_round_span(t, 99, &first, &n);
    assert_int_equal(n, 0);
    assert_int_equal(fmt_tape_find(t, &(fmt_tape_key){ 0, 0, 0, "absent" }), -1);
    assert_int_equal(fmt_tape_find(t, &(fmt_tape_key){ 0, 5, 0, "drafts" }), -1);
}

static void index_and_scan_tell_the_same(void **state)
{
    (void)state;
    case_finish(case_write(path, 3, 1));
    fmt_tape *a = open_tape(path), *b;
    OK(fmt_tape_open_mode(path, FMT_OPEN_SURVEY, &b, e));
    check_case(a, 3);
    check_case(b, 3);
    assert_true(json_equal(fmt_tape_head(a), fmt_tape_head(b)));
    assert_true(json_equal(fmt_tape_summary(a), fmt_tape_summary(b)));
    assert_int_equal(json_integer_value(json_object_get(json_object_get(fmt_tape_summary(a), "taps"), "armed")), 3);
    assert_true(fmt_tape_finished(a) && fmt_tape_finished(b));
    for (size_t i = 0; i < fmt_tape_count(a); i++) {
        fmt_tape_record x, y;
        fmt_tape_at(a, i, &x);
        fmt_tape_at(b, i, &y);
        assert_string_equal(x.key.name, y.key.name);
        assert_int_equal(x.stored_bytes, y.stored_bytes);
        assert_int_equal(x.first_chunk_offset, y.first_chunk_offset);
        assert_memory_equal(&x.stats, &y.stats, sizeof x.stats);
    }
    fmt_tape_close(a);
    fmt_tape_close(b);
}

static void a_growing_tape_is_followed(void **state)
{
    (void)state;
    char part[160];
    size_t n;
    fmt_tape_writer *w = case_write(path, 1, 1);
    snprintf(part, sizeof part, "%s.part", path);
    fmt_tape *t = open_tape(part);
    assert_int_equal(access(path, F_OK), -1);
    assert_false(fmt_tape_finished(t));
    check_case(t, 1);
    for (int r = 1; r < 4; r++) {
        uint8_t *data = case_data(FMT_DTYPE_F32, 300000, CASE_NOISE, (uint64_t)r), *got = malloc(1200000);
        fmt_tensor v = fmt_tensor_make(FMT_DTYPE_F32, data, 1, (int64_t[]){ 300000 });
        OK(fmt_tape_poll(t, &n, e));
        assert_int_equal(n, 0);
        OK(fmt_tape_put(w, &(fmt_tape_key){ r, 0, 0, "big" }, &v, FMT_PLACE_REPLICATED, 0, 1, FMT_TIER_TENSOR, e));
        OK(fmt_tape_flush(w, e));
        OK(fmt_tape_poll(t, &n, e));
        assert_int_equal(n, 1);
        const int32_t *rounds;
        assert_int_equal(fmt_tape_rounds(t, &rounds), r + 1);
        OK(fmt_tape_get(t, (size_t)fmt_tape_find(t, &(fmt_tape_key){ r, 0, 0, "big" }), got, 1200000, e));
        assert_memory_equal(got, data, 1200000);
        free(data);
        free(got);
    }
    case_finish(w);
    OK(fmt_tape_poll(t, &n, e));
    assert_int_equal(n, 0);
    assert_true(fmt_tape_finished(t));
    fmt_tape_close(t);
}

static void a_long_tape_spans_index_pages(void **state)
{
    (void)state;
    enum { N = 30000 };
    fmt_tape_writer *w;
    json_t *head = case_head();
    OK(fmt_tape_create(path, head, &w, e));
    json_decref(head);
    for (int i = 0; i < N; i++) {
        char name[FMT_TAPE_NAME_BYTES + 1];
        snprintf(name, sizeof name, "a.rather.long.name.so.that.pages.fill.up.by.their.tables.%d", i % 9001);
        int32_t v[3] = { i, i + 1, i + 2 };
        fmt_tensor t = fmt_tensor_make(FMT_DTYPE_I32, v, 1, (int64_t[]){ i % 4 });
        OK(fmt_tape_put(w, &(fmt_tape_key){ i / 100, i % 7, 0, name }, &t, FMT_PLACE_REPLICATED, 0, 1, FMT_TIER_TENSOR, e));
        if (i % 3 == 0) {
            json_t *event = json_pack("{s:i}", "n", i);
            OK(fmt_tape_put_event(w, i / 100, event, e));
            json_decref(event);
        }
    }
    OK(fmt_tape_finish(w, NULL, e));
    fmt_tape *t = open_tape(path);
    assert_int_equal(fmt_tape_count(t), N);
    assert_int_equal(fmt_tape_event_count(t), N / 3);
    assert_true(fmt_tape_index(t)->n_pages > 2);
    for (int i = 0; i < N; i += 17) {
        fmt_tape_record r;
        int32_t v[3] = { 0 };
        fmt_tape_at(t, (size_t)i, &r);
        assert_int_equal(r.key.round, i / 100);
        assert_int_equal(fmt_tape_find(t, &r.key), i);
        OK(fmt_tape_get(t, (size_t)i, v, sizeof v, e));
        if (i % 4) assert_int_equal(v[0], i);
    }
    fmt_tape_close(t);
}

typedef struct reading { const fmt_tape *t; int from; bool good; } reading;

static void *read_all(void *ctx)
{
    reading *r = ctx;
    size_t n = fmt_tape_count(r->t);
    r->good = true;
    for (size_t k = 0; k < 2 * n; k++) {
        size_t i = (k * 7 + (size_t)r->from) % n;
        fmt_tape_record rec;
        uint8_t got[4096];
        fmt_tape_at(r->t, i, &rec);
        if (rec.tier != FMT_TIER_TENSOR) continue;
        r->good = r->good && fmt_tape_get(r->t, i, got, sizeof got, NULL) == ERR_OK;
        r->good = r->good && fmt_tape_find(r->t, &rec.key) == (int64_t)i;
    }
    return NULL;
}

static void threads_can_read_one_tape(void **state)
{
    (void)state;
    case_finish(case_write(path, 20, 1)); /* more chunks than the reader keeps */
    fmt_tape *t = open_tape(path);
    pthread_t thread[12];
    reading r[12];
    for (int i = 0; i < 12; i++) {
        r[i] = (reading){ t, i * 13, false };
        assert_int_equal(pthread_create(&thread[i], NULL, read_all, &r[i]), 0);
    }
    for (int i = 0; i < 12; i++) {
        pthread_join(thread[i], NULL);
        assert_true(r[i].good);
    }
    fmt_tape_close(t);
}

static void what_the_format_cannot_hold_is_refused(void **state)
{
    (void)state;
    fmt_tape_writer *w;
    err why;
    json_t *head = case_head(), *large = json_object();
    char *text = malloc(70001);
    memset(text, 'x', 70000);
    text[70000] = 0;
    json_object_set_new(large, "text", json_string(text));
    assert_int_equal(fmt_tape_create(path, large, &w, &why), ERR_ARG);
    assert_null(w);
    assert_int_equal(fmt_tape_create("no-such-folder/x.tape", head, &w, &why), ERR_IO);
    OK(fmt_tape_create(path, head, &w, e));
    float v = 1;
    fmt_tensor t = fmt_tensor_make(FMT_DTYPE_F32, &v, 0, NULL);
    fmt_tape_key bad[] = { { -1, 0, 0, "x" }, { 0, -2, 0, "x" }, { 0, 0, -2, "x" }, { 0, 0, 0, "" }, { 0, 0, 0, "a\nb" },
                           { 0, 0, 0, text } };
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        assert_int_equal(fmt_tape_put(w, &bad[i], &t, FMT_PLACE_REPLICATED, 0, 1, FMT_TIER_TENSOR, &why), ERR_ARG);
    assert_int_equal(fmt_tape_put(w, &(fmt_tape_key){ 0, 0, 0, "x" }, &t, FMT_PLACE_REPLICATED, 8, 1, FMT_TIER_TENSOR,
                                  &why), ERR_ARG);
    assert_int_equal(fmt_tape_put(w, &(fmt_tape_key){ 0, 0, 0, "x" }, &t, FMT_PLACE_REPLICATED, 0, 0, FMT_TIER_TENSOR,
                                  &why), ERR_ARG);
    const fmt_tape_key x = { 0, 0, 0, "x" };
    const fmt_tensor types[] = { { .dtype = FMT_DTYPE_COUNT }, { .dtype = FMT_DTYPE_F32, .ndim = FMT_DIMS_MAX + 1 },
                                 { .dtype = FMT_DTYPE_F32, .ndim = 1, .shape = { -1 } },
                                 { .dtype = FMT_DTYPE_F64, .ndim = 2, .shape = { INT64_MAX, 4 } } };
    for (size_t i = 0; i < COUNT_OF(types); i++)
        assert_int_equal(fmt_tape_put(w, &x, &types[i], FMT_PLACE_REPLICATED, 0, 1, FMT_TIER_TENSOR, &why), ERR_ARG);
    for (int32_t n = 0; n < 66; n += 65)
        assert_int_equal(fmt_tape_put_ranks(w, &x, &t, (const void *const[]){ &v }, FMT_PLACE_REPLICATED, 0, n,
                                            FMT_TIER_TENSOR, &why), ERR_ARG);
    assert_int_equal(fmt_tape_put_event(w, 0, large, &why), ERR_ARG);
    assert_int_equal(fmt_tape_put_event(w, -1, head, &why), ERR_ARG);
    OK(fmt_tape_put(w, &(fmt_tape_key){ 0, 0, 0, "x" }, &t, FMT_PLACE_REPLICATED, 0, 1, FMT_TIER_TENSOR,
                    e)); /* still usable */
    OK(fmt_tape_finish(w, NULL, e));
    fmt_tape *tape = open_tape(path);
    assert_int_equal(fmt_tape_count(tape), 1);
    fmt_tape_close(tape);
    json_object_set_new(large, "more", json_string(text)); /* together more than a summary holds: what is there is kept */
    OK(fmt_tape_create(path, head, &w, e));
    assert_int_equal(fmt_tape_finish(w, large, &why), ERR_ARG);
    assert_non_null(strstr(why.msg, "summary"));
    json_decref(head);
    json_decref(large);
    free(text);
}

static void discard_leaves_nothing(void **state)
{
    (void)state;
    char part[160];
    snprintf(part, sizeof part, "%s.part", path);
    fmt_tape_discard(case_write(path, 1, 1));
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(access(part, F_OK), -1);
    fmt_tape_discard(NULL);
}

/* What a request held is nobody else's: also while it is written, and of what is recovered. */
static void only_its_owner_can_read_a_tape(void **state)
{
    (void)state;
    char part[160], saved[128];
    struct stat st;
    fmt_tape_loss lost;
    const mode_t old = umask(0);
    snprintf(part, sizeof part, "%s.part", path);
    fmt_tape_writer *w = case_write(path, 1, 1);
    assert_int_equal(stat(part, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    case_finish(w);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    OK(fmt_tape_recover(path, case_path(folder, "saved.tape", saved), &lost, NULL, e));
    assert_int_equal(stat(saved, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    umask(old);
}

/* A limit on the file's size stands in for a full disk: the write fails in the middle of a chunk. */
static void a_full_disk_is_an_error_that_stays_and_keeps_what_was_written(void **state)
{
    (void)state;
    err why = { 0 };
    char part[160];
    struct rlimit before, limit;
    getrlimit(RLIMIT_FSIZE, &before);
    limit = before;
    limit.rlim_cur = 3000000;
    signal(SIGXFSZ, SIG_IGN);
    snprintf(part, sizeof part, "%s.part", path);
    fmt_tape_writer *w = case_write(path, 2, 1);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    uint8_t *data = case_data(FMT_DTYPE_U8, 1000000, CASE_SPECIAL, 3);
    fmt_tensor t = fmt_tensor_make(FMT_DTYPE_U8, data, 1, (int64_t[]){ 1000000 });
    int n = 0;
    err_code rc;
    do {
        data[0]++; /* or it would be stored by reference */
        rc = fmt_tape_put(w, &(fmt_tape_key){ 5 + n++, 0, 0, "big" }, &t, FMT_PLACE_REPLICATED, 0, 1, FMT_TIER_TENSOR,
                          &why);
    } while (rc == ERR_OK && n < 50);
    assert_int_equal(rc, ERR_IO);
    assert_int_equal(fmt_tape_flush(w, &why), ERR_IO);
    assert_int_equal(fmt_tape_put(w, &(fmt_tape_key){ 0, 0, 0, "x" }, &t, FMT_PLACE_REPLICATED, 0, 1, FMT_TIER_TENSOR,
                                  &why), ERR_IO);
    assert_int_equal(fmt_tape_finish(w, NULL, &why), ERR_IO);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(access(path, F_OK), -1);
    fmt_tape *tape = open_tape(part);
    assert_true(fmt_tape_count(tape) >= 2 * CASE_RECORDS + 1);
    fmt_tape_close(tape);
    free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_dtype_and_shape_comes_back_bit_for_bit, setup, teardown),
        cmocka_unit_test_setup_teardown(a_value_larger_than_a_chunk_comes_back, setup, teardown),
        cmocka_unit_test_setup_teardown(a_qdq_value_is_stored_as_codes_and_scales, setup, teardown),
        cmocka_unit_test_setup_teardown(rank_copies_come_back_and_equal_ones_cost_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(the_case_tape_uses_every_transform, setup, teardown),
        cmocka_unit_test_setup_teardown(index_and_scan_tell_the_same, setup, teardown),
        cmocka_unit_test_setup_teardown(a_growing_tape_is_followed, setup, teardown),
        cmocka_unit_test_setup_teardown(a_long_tape_spans_index_pages, setup, teardown),
        cmocka_unit_test_setup_teardown(threads_can_read_one_tape, setup, teardown),
        cmocka_unit_test_setup_teardown(what_the_format_cannot_hold_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(discard_leaves_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(only_its_owner_can_read_a_tape, setup, teardown),
        cmocka_unit_test_setup_teardown(a_full_disk_is_an_error_that_stays_and_keeps_what_was_written, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
