/* Values of which one or both tapes kept only a digest. */
#include "tests/support/ok.h"

#include <stdlib.h>
#include <unistd.h>

#include "kernels/digest.h"
#include "replay/compare.h"

enum { ROWS = 20, COLS = 3 };

static int setup(void **state)
{
    static char folder[] = "digest-test-XXXXXX";
    (void)state;
    return mkdtemp(folder) && chdir(folder) == 0 ? 0 : -1;
}

/* How a side keeps the value. */
typedef enum kept { AS_TENSOR, AS_HASH, AS_DIGEST, AS_DIGEST_OF_ALL /* no row digests */ } kept;

static void fill(float x[ROWS * COLS])
{
    for (int i = 0; i < ROWS * COLS; i++) x[i] = (float)i * 0.25f;
}

static void swap_rows(float *x, int i, int j)
{
    for (int c = 0; c < COLS; c++) {
        float v = x[i * COLS + c];
        x[i * COLS + c] = x[j * COLS + c];
        x[j * COLS + c] = v;
    }
}

static void put(fmt_tape_writer *w, int32_t round, int32_t rank, const float *x, int64_t rows, int64_t cols, kept how,
                fmt_place place, int32_t n_ranks)
{
    fmt_tensor t = fmt_tensor_make(FMT_DTYPE_F32, x, 2, (int64_t[]){ rows, cols });
    const fmt_tape_key key = { round, FMT_TAPE_NO_SLOT, rank, "x" };
    uint64_t row[ROWS];
    fmt_digest d = { .row = row, .n_rows = how == AS_DIGEST ? (uint64_t)rows : 0 };
    fmt_stats stats;
    krn_digest_ref(&t, row, &d.digest, &stats);
    if (how == AS_TENSOR || how == AS_HASH)
        OK(fmt_tape_put(w, &key, &t, place, 0, n_ranks, how == AS_TENSOR ? FMT_TIER_TENSOR : FMT_TIER_HASH, e));
    else OK(fmt_tape_put_digest(w, &key, &t, place, 0, n_ranks, FMT_TIER_STATS, &d, &stats, e));
}

static fmt_tape_writer *begin(const char *path)
{
    fmt_tape_writer *w;
    json_t *head = json_pack("{s:s}", "format", "sparktape");
    OK(fmt_tape_create(path, head, &w, e));
    json_decref(head);
    return w;
}

static fmt_tape *end(fmt_tape_writer *w, const char *path)
{
    fmt_tape *t;
    OK(fmt_tape_finish(w, NULL, e));
    OK(fmt_tape_open(path, &t, e));
    return t;
}

/* A tape with the value alone, whole. */
static fmt_tape *tape_of(const char *path, const float *x, kept how)
{
    fmt_tape_writer *w = begin(path);
    put(w, 0, 0, x, ROWS, COLS, how, FMT_PLACE_REPLICATED, 1);
    return end(w, path);
}

static rpl_value compare(fmt_tape *a, fmt_tape *b)
{
    rpl_compare *c;
    const rpl_round *r;
    OK(rpl_compare_open(a, b, NULL, NULL, &c, e));
    OK(rpl_compare_round(c, 0, &r, e));
    assert_int_equal(r->n_values, 1);
    rpl_value v = r->value[0];
    rpl_compare_close(c);
    fmt_tape_close(a);
    fmt_tape_close(b);
    return v;
}

static void the_same_bits_compare_equal_however_they_were_kept(void **state)
{
    (void)state;
    float x[ROWS * COLS];
    fill(x);
    for (kept a = AS_TENSOR; a <= AS_DIGEST_OF_ALL; a++)
        for (kept b = AS_TENSOR; b <= AS_DIGEST_OF_ALL; b++) {
            rpl_value v = compare(tape_of("a.tape", x, a), tape_of("b.tape", x, b));
            bool digest = a >= AS_DIGEST || b >= AS_DIGEST, hash = a == AS_HASH || b == AS_HASH;
            if (digest && hash) { /* they do not compare, and that is no difference */
                assert_int_equal(v.state, RPL_STATE_UNKNOWN);
                assert_int_equal(v.cls, RPL_CLASS_NONE);
                continue;
            }
            assert_int_equal(v.state, digest || hash ? RPL_STATE_BY_HASH : RPL_STATE_COMPARED);
            assert_int_equal(v.cls, RPL_CLASS_EQUAL);
            assert_int_equal(v.m.n, ROWS * COLS);
            assert_int_equal(v.m.n_equal, ROWS * COLS);
            assert_int_equal(v.rows.n_differ, 0);
        }
}

static void rows_that_differ_are_named(void **state)
{
    (void)state;
    float x[ROWS * COLS], y[ROWS * COLS];
    char text[160];
    fill(x);
    fill(y);
    y[3 * COLS + 1] += 1;
    y[7 * COLS] += 1;
    for (kept b = AS_TENSOR; b <= AS_DIGEST; b += AS_DIGEST)
        for (kept a = AS_TENSOR; a <= AS_DIGEST; a += AS_DIGEST) {
            if (a == AS_TENSOR && b == AS_TENSOR) continue;
            rpl_value v = compare(tape_of("a.tape", x, a), tape_of("b.tape", y, b));
            assert_int_equal(v.state, RPL_STATE_BY_HASH);
            assert_int_equal(v.cls, RPL_CLASS_UNPLACED);
            assert_int_equal(v.rows.n, ROWS);
            assert_int_equal(v.rows.n_differ, 2);
            assert_false(v.rows.permuted);
            assert_string_equal(rpl_rows_text(&v.rows, text, sizeof text), "rows 3, 7 of 20 differ");
        }
    rpl_value v = compare(tape_of("a.tape", x, AS_DIGEST_OF_ALL), tape_of("b.tape", y, AS_DIGEST));
    assert_int_equal(v.cls, RPL_CLASS_UNPLACED);
    assert_int_equal(v.rows.n, 0); /* which rows is not known */
}

static void rows_that_changed_places_are_a_permutation(void **state)
{
    (void)state;
    float x[ROWS * COLS], y[ROWS * COLS];
    char text[160];
    fill(x);
    fill(y);
    swap_rows(y, 4, 19);
    rpl_value v = compare(tape_of("a.tape", x, AS_DIGEST), tape_of("b.tape", y, AS_TENSOR));
    assert_int_equal(v.cls, RPL_CLASS_UNPLACED);
    assert_true(v.rows.permuted);
    assert_string_equal(rpl_rows_text(&v.rows, text, sizeof text),
                        "rows 4, 19 of 20 changed places, the same rows otherwise");
    y[0] += 1;
    v = compare(tape_of("a.tape", x, AS_DIGEST), tape_of("b.tape", y, AS_DIGEST));
    assert_false(v.rows.permuted);
    assert_string_equal(rpl_rows_text(&v.rows, text, sizeof text), "rows 0, 4, 19 of 20 differ");
}

static void a_text_of_rows_fits_whatever_they_are(void **state)
{
    (void)state;
    char text[160];
    rpl_rows one = { .n = 1, .n_differ = 1 }, many = { .n = INT64_MAX, .n_differ = INT64_MAX };
    for (int i = 0; i < RPL_ROWS_NAMED; i++) many.row[i] = INT64_MAX;
    assert_string_equal(rpl_rows_text(&one, text, sizeof text), "row 0 of 1 differs");
    rpl_rows several = { .n = 20, .n_differ = 9, .row = { 0, 1, 2, 3, 4, 5, 6, 7 } };
    assert_string_equal(rpl_rows_text(&several, text, sizeof text), "9 of 20 rows differ: 0, 1, 2, 3, 4, 5, 6, 7, ...");
    for (size_t n = 1; n <= sizeof text; n++) {
        memset(text, 'x', sizeof text);
        assert_true(strlen(rpl_rows_text(&many, text, n)) < n);
    }
}

static void other_shapes_are_reported(void **state)
{
    (void)state;
    float x[ROWS * COLS];
    fill(x);
    fmt_tape_writer *w = begin("b.tape");
    put(w, 0, 0, x, ROWS - 1, COLS, AS_DIGEST, FMT_PLACE_REPLICATED, 1);
    rpl_value v = compare(tape_of("a.tape", x, AS_TENSOR), end(w, "b.tape"));
    assert_int_equal(v.state, RPL_STATE_SHAPE);
}

/* Shards of two ranks, each half of the rows. */
static fmt_tape *halves(const char *path, const float *x, kept how)
{
    fmt_tape_writer *w = begin(path);
    for (int32_t rank = 0; rank < 2; rank++)
        put(w, 0, rank, x + rank * ROWS / 2 * COLS, ROWS / 2, COLS, how, FMT_PLACE_SHARDED, 2);
    return end(w, path);
}

static void shards_compare_rank_by_rank_or_joined(void **state)
{
    (void)state;
    float x[ROWS * COLS], y[ROWS * COLS];
    fill(x);
    fill(y);
    y[15 * COLS] += 1;
    assert_int_equal(compare(halves("a.tape", x, AS_DIGEST), halves("b.tape", x, AS_TENSOR)).cls, RPL_CLASS_EQUAL);
    assert_int_equal(compare(halves("a.tape", x, AS_DIGEST), halves("b.tape", y, AS_DIGEST)).cls, RPL_CLASS_UNPLACED);
    rpl_value v = compare(tape_of("a.tape", x, AS_DIGEST), halves("b.tape", y, AS_TENSOR)); /* joined */
    assert_int_equal(v.cls, RPL_CLASS_UNPLACED);
    assert_int_equal(v.rows.row[0], 15);
    assert_int_equal(compare(tape_of("a.tape", x, AS_TENSOR), halves("b.tape", x, AS_DIGEST)).state, RPL_STATE_UNKNOWN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_bits_compare_equal_however_they_were_kept),
        cmocka_unit_test(rows_that_differ_are_named),
        cmocka_unit_test(rows_that_changed_places_are_a_permutation),
        cmocka_unit_test(a_text_of_rows_fits_whatever_they_are),
        cmocka_unit_test(other_shapes_are_reported),
        cmocka_unit_test(shards_compare_rank_by_rank_or_joined),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
