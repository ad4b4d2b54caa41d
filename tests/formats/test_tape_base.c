/* Tapes stored on another one. */
#include "tests/formats/tape_cases.h"

static char folder[64], path[128], base_path[128];

static int setup(void **state)
{
    (void)state;
    case_folder(folder);
    case_path(folder, "t.tape", path);
    case_path(folder, "base.tape", base_path);
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

enum { ROWS = 64, COLS = 128, ELEMS = ROWS * COLS, BYTES = 2 * ELEMS, BIG = 900 * 1024 };

/* The value of a round: round 0 the same in both tapes, 1 nearly, 2 not at all, 3 large and nearly. Owned by the caller. */
static uint8_t *value_of(int round, bool ours, uint64_t *elems)
{
    *elems = round == 3 ? BIG : ELEMS;
    uint8_t *data = case_data(FMT_DTYPE_BF16, *elems, CASE_NOISE, (uint64_t)round + (round == 2 && ours ? 100 : 0));
    for (uint64_t i = 0; ours && round % 2 && i < *elems; i += 7) data[2 * i] ^= (uint8_t)(1 + i % 3);
    return data;
}

enum { ROUNDS = 4 };

static void put_rounds(fmt_tape_writer *w, bool ours)
{
    for (int r = 0; r < ROUNDS; r++) {
        uint64_t elems;
        uint8_t *data = value_of(r, ours, &elems);
        fmt_tensor t = fmt_tensor_make(FMT_DTYPE_BF16, data, 2, (int64_t[]){ (int64_t)elems / COLS, COLS });
        const void *copies[2] = { data, data };
        OK(fmt_tape_put_ranks(w, &(fmt_tape_key){ r, 0, 0, "x" }, &t, copies, FMT_PLACE_REPLICATED, 0, 2, FMT_TIER_TENSOR,
                              e));
        OK(fmt_tape_flush(w, e));
        free(data);
    }
}

/* n: another head gives another tape of the same values. */
static void write_base(int n)
{
    fmt_tape_writer *w;
    json_t *head = json_pack("{s:i}", "n", n);
    OK(fmt_tape_create(base_path, head, &w, e));
    json_decref(head);
    put_rounds(w, false);
    OK(fmt_tape_finish(w, NULL, e));
}

static void write_based(const char *to)
{
    fmt_tape *base = open_tape(base_path);
    fmt_tape_writer *w;
    json_t *head = case_head();
    OK(fmt_tape_create_on(to, head, base, &w, e));
    json_decref(head);
    put_rounds(w, true);
    int32_t ids[3] = { 1, 2, 3 }; /* not in the base */
    fmt_tensor t = fmt_tensor_make(FMT_DTYPE_I32, ids, 1, (int64_t[]){ 3 });
    OK(fmt_tape_put(w, &(fmt_tape_key){ 9, 0, 0, "ids" }, &t, FMT_PLACE_REPLICATED, 0, 1, FMT_TIER_TENSOR, e));
    OK(fmt_tape_finish(w, NULL, e));
    fmt_tape_close(base);
}

enum { RECORDS = 2 * ROUNDS + 1 };

/* Every value of the tape reads as it was put. */
static void check(const char *at, fmt_open_mode mode)
{
    fmt_tape *t;
    OK(fmt_tape_open_mode(at, mode, &t, e));
    assert_int_equal(fmt_tape_count(t), RECORDS);
    uint8_t *got = malloc(2 * BIG);
    for (size_t i = 0; i < 2 * ROUNDS; i++) {
        uint64_t elems;
        uint8_t *want = value_of((int)i / 2, true, &elems);
        OK(fmt_tape_get(t, i, got, 2 * BIG, e));
        assert_memory_equal(got, want, 2 * elems);
        free(want);
    }
    OK(fmt_tape_get(t, 2 * ROUNDS, got, 12, e));
    free(got);
    fmt_tape_close(t);
}

static uint64_t stored(const fmt_tape *t, size_t i)
{
    fmt_tape_record r;
    fmt_tape_at(t, i, &r);
    return r.stored_bytes;
}

static void values_come_back_through_the_base_and_equal_ones_cost_nothing(void **state)
{
    (void)state;
    char alone[128];
    write_base(1);
    write_based(path);
    check(path, FMT_OPEN_NORMAL);
    check(path, FMT_OPEN_SURVEY);
    fmt_tape *t = open_tape(path);
    assert_string_equal(fmt_tape_base_name(t), "base.tape");
    assert_int_equal(stored(t, 0), 0);
    assert_int_equal(stored(t, 1), 0);
    assert_int_equal(stored(t, 2), BYTES); /* planes of the difference, before LZ4 */
    assert_int_equal(stored(t, 4), BYTES); /* by itself */
    uint64_t based_bytes = fmt_tape_file_bytes(t);
    fmt_tape_close(t);

    fmt_tape_loss lost;
    fmt_tape_report report;
    OK(fmt_tape_examine(path, &report, e));
    assert_int_equal(report.n_faults, 0);
    assert_string_equal(report.base, base_path);
    fmt_tape_report_fini(&report);
    OK(fmt_tape_recover(path, case_path(folder, "alone.tape", alone), &lost, NULL, e));
    assert_true(lost.complete);
    assert_int_equal(unlink(base_path), 0);
    check(alone, FMT_OPEN_NORMAL); /* written out in full */
    t = open_tape(alone);
    assert_null(fmt_tape_base_name(t));
    assert_true(fmt_tape_file_bytes(t) > 3 * based_bytes / 2);
    fmt_tape_close(t);
}

/* What reading record i says. */
static err_code get_fails(size_t i, char msg[ERR_MSG_BYTES])
{
    fmt_tape *t = open_tape(path);
    err why = { 0 };
    uint8_t *got = malloc(2 * BIG);
    err_code rc = fmt_tape_get(t, i, got, 2 * BIG, &why);
    memcpy(msg, why.msg, ERR_MSG_BYTES);
    assert_null(strchr(msg, '\n'));
    free(got);
    fmt_tape_close(t);
    return rc;
}

static void the_base_is_found_where_it_was_or_beside_the_tape(void **state)
{
    (void)state;
    char line[600], far[128], near[160];
    snprintf(line, sizeof line, "mkdir -p %s/runs/a %s/other", folder, folder);
    assert_int_equal(system(line), 0);
    write_base(1);
    write_based(case_path(folder, "runs/a/t.tape", far));
    check(far, FMT_OPEN_NORMAL);
    fmt_tape *t = open_tape(far);
    assert_string_equal(fmt_tape_base_name(t), "../../base.tape");
    fmt_tape_close(t);
    snprintf(near, sizeof near, "%s/other/t.tape", folder);
    snprintf(line, sizeof line, "mv %s %s && mv %s %s/other/base.tape", far, near, base_path, folder);
    assert_int_equal(system(line), 0);
    check(near, FMT_OPEN_NORMAL); /* "../../base.tape" leads nowhere from here */
}

static void a_missing_base_is_named_and_costs_only_what_is_stored_on_it(void **state)
{
    (void)state;
    char msg[ERR_MSG_BYTES], copy[128];
    write_base(1);
    write_based(path);
    assert_int_equal(unlink(base_path), 0);
    assert_int_equal(get_fails(0, msg), ERR_INPUT);
    assert_non_null(strstr(msg, path));
    assert_non_null(strstr(msg, base_path));
    assert_int_equal(get_fails(3, msg), ERR_INPUT);
    assert_int_equal(get_fails(4, msg), ERR_OK);
    assert_int_equal(get_fails(8, msg), ERR_OK);
    fmt_tape_report report;
    OK(fmt_tape_examine(path, &report, e));
    assert_int_equal(report.n_faults, 1);
    assert_non_null(strstr(report.faults[0].what, "6 records are stored on base base.tape"));
    assert_int_equal(report.n_base_records, 6);
    assert_int_equal(report.n_lost_records, 6);
    assert_non_null(strstr(report.base, "base.tape: "));
    fmt_tape_report_fini(&report);
    fmt_tape_loss lost;
    OK(fmt_tape_recover(path, case_path(folder, "copy.tape", copy), &lost, NULL, e));
    assert_false(lost.complete);
    assert_int_equal(lost.kept_records, 3);
    assert_int_equal(lost.lost_records, 6);
    assert_int_equal(lost.lost_rounds, 3);
}

static void another_tape_in_the_bases_place_is_refused(void **state)
{
    (void)state;
    char msg[ERR_MSG_BYTES];
    write_base(1);
    write_based(path);
    write_base(2);
    assert_int_equal(get_fails(2, msg), ERR_INPUT);
    assert_non_null(strstr(msg, "is not its base"));
    assert_non_null(strstr(msg, base_path));
    case_write_file(base_path, "no tape at all", 14);
    assert_int_equal(get_fails(2, msg), ERR_INPUT);
    assert_non_null(strstr(msg, "not a tape"));
}

/* The base with its end cut off cannot be told from another one as a whole: the hash of the value does it. */
static void a_base_without_its_end_is_told_by_its_values(void **state)
{
    (void)state;
    char msg[ERR_MSG_BYTES];
    size_t bytes;
    write_base(1);
    write_based(path);
    uint8_t *file = case_read_file(base_path, &bytes);
    case_write_file(base_path, file, bytes - 40);
    free(file);
    check(path, FMT_OPEN_NORMAL);
    fmt_tape_writer *w; /* other values, no end */
    json_t *head = case_head();
    OK(fmt_tape_create(base_path, head, &w, e));
    json_decref(head);
    put_rounds(w, true);
    OK(fmt_tape_finish(w, NULL, e));
    file = case_read_file(base_path, &bytes);
    case_write_file(base_path, file, bytes - 40);
    free(file);
    assert_int_equal(get_fails(0, msg), ERR_OK); /* the same in both */
    assert_int_equal(get_fails(2, msg), ERR_FORMAT);
    assert_non_null(strstr(msg, "is not what it was stored on"));
}

static void a_flip_in_the_base_costs_one_of_its_chunks(void **state)
{
    (void)state;
    char msg[ERR_MSG_BYTES];
    size_t bytes;
    write_base(1);
    write_based(path);
    fmt_tape *base = open_tape(base_path);
    fmt_tape_record r;
    fmt_tape_at(base, 2, &r); /* round 1: its chunk is its own */
    fmt_tape_close(base);
    uint8_t *file = case_read_file(base_path, &bytes);
    file[r.first_chunk_offset + 2000] ^= 1;
    case_write_file(base_path, file, bytes);
    free(file);
    for (size_t i = 0; i < RECORDS; i++) {
        err_code rc = get_fails(i, msg);
        assert_int_equal(rc, i == 2 || i == 3 ? ERR_FORMAT : ERR_OK);
        if (rc != ERR_OK) assert_non_null(strstr(msg, base_path));
    }
    fmt_tape_report report;
    OK(fmt_tape_examine(path, &report, e));
    assert_int_equal(report.n_lost_records, 2);
    fmt_tape_report_fini(&report);
}

/* Makes the head of the tape say that its base is this. Only for names as long as the one there. */
static void rename_base(const char *from, const char *to)
{
    size_t bytes;
    uint8_t *file = case_read_file(path, &bytes);
    fmt_chunk c;
    OK(fmt_chunk_get(file, bytes, FMT_PRELUDE_BYTES, &c, e));
    uint8_t *at = memmem(c.meta, c.meta_bytes, from, strlen(from));
    assert_true(at && strlen(from) == strlen(to));
    memcpy(at, to, strlen(to));
    fmt_chunk_put_header(file + FMT_PRELUDE_BYTES, FMT_CHUNK_HEAD, 0, c.meta, c.meta_bytes, 0, 0);
    case_write_file(path, file, bytes);
    free(file);
}

static void a_tape_that_names_itself_or_a_based_tape_is_refused(void **state)
{
    (void)state;
    char msg[ERR_MSG_BYTES], other[128];
    write_base(1);
    write_based(path);
    assert_int_equal(rename(path, case_path(folder, "self.tape", other)), 0);
    write_based(path);
    rename_base("base.tape", "self.tape"); /* on a tape that has a base */
    assert_int_equal(get_fails(0, msg), ERR_INPUT);
    assert_non_null(strstr(msg, "stored on a base itself"));
    assert_int_equal(rename(path, other), 0);
    case_path(folder, "self.tape", path); /* on itself */
    assert_int_equal(get_fails(0, msg), ERR_INPUT);
    assert_non_null(strstr(msg, "stored on a base itself"));
    rename_base("self.tape", "/etc/host");
    assert_int_equal(get_fails(0, msg), ERR_FORMAT); /* an absolute path is no base's name */
}

static void only_a_finished_tape_that_stands_alone_can_be_a_base(void **state)
{
    (void)state;
    fmt_tape_writer *w, *none;
    err why;
    json_t *head = case_head();
    write_base(1);
    write_based(path);
    fmt_tape *t = open_tape(path);
    assert_int_equal(fmt_tape_create_on("x.tape", head, t, &none, &why), ERR_ARG);
    assert_non_null(strstr(why.msg, "stored on a base itself"));
    fmt_tape_close(t);
    t = open_tape(base_path);
    assert_int_equal(fmt_tape_create_on(base_path, head, t, &none, &why), ERR_ARG);
    assert_non_null(strstr(why.msg, "is its own base"));
    fmt_tape_close(t);
    char part[160];
    OK(fmt_tape_create(path, head, &w, e));
    OK(fmt_tape_flush(w, e));
    snprintf(part, sizeof part, "%s.part", path);
    t = open_tape(part);
    assert_int_equal(fmt_tape_create_on("x.tape", head, t, &none, &why), ERR_ARG);
    assert_non_null(strstr(why.msg, "unfinished"));
    fmt_tape_close(t);
    fmt_tape_discard(w);
    assert_int_equal(access("x.tape.part", F_OK), -1);
    json_decref(head);
}

/* A value of another type under the same key is stored by itself. */
static void another_shape_or_dtype_is_not_stored_on_the_base(void **state)
{
    (void)state;
    write_base(1);
    fmt_tape *base = open_tape(base_path);
    fmt_tape_writer *w;
    uint64_t elems;
    uint8_t *data = value_of(0, false, &elems), *got = malloc(BYTES);
    json_t *head = case_head();
    OK(fmt_tape_create_on(path, head, base, &w, e));
    json_decref(head);
    fmt_tensor shape = fmt_tensor_make(FMT_DTYPE_BF16, data, 2, (int64_t[]){ COLS, ROWS });
    fmt_tensor dtype = fmt_tensor_make(FMT_DTYPE_I16, data, 2, (int64_t[]){ ROWS, COLS });
    OK(fmt_tape_put(w, &(fmt_tape_key){ 0, 0, 0, "x" }, &shape, FMT_PLACE_REPLICATED, 0, 1, FMT_TIER_TENSOR, e));
    OK(fmt_tape_put(w, &(fmt_tape_key){ 1, 0, 0, "x" }, &dtype, FMT_PLACE_REPLICATED, 0, 1, FMT_TIER_TENSOR, e));
    OK(fmt_tape_finish(w, NULL, e));
    fmt_tape_close(base);
    assert_int_equal(unlink(base_path), 0);
    fmt_tape *t = open_tape(path);
    for (size_t i = 0; i < 2; i++) {
        OK(fmt_tape_get(t, i, got, BYTES, e));
        assert_memory_equal(got, data, BYTES);
    }
    fmt_tape_close(t);
    free(data);
    free(got);
}

/* A transform of a later version of the format: its part is lost, the others of its chunk are not. */
static void a_part_of_an_unknown_transform_is_all_that_is_lost(void **state)
{
    (void)state;
    char msg[ERR_MSG_BYTES];
    size_t bytes;
    write_base(1);
    write_based(path);
    uint8_t *file = case_read_file(path, &bytes);
    fmt_chunk c;
    OK(fmt_chunk_get(file, bytes, FMT_PRELUDE_BYTES, &c, e));
    OK(fmt_chunk_get(file, bytes, fmt_chunk_end(&c), &c, e));
    uint8_t *at = memmem(c.meta, c.meta_bytes, "\xa1" "c\x06", 3); /* of the first part */
    assert_non_null(at);
    at[2] = 77;
    fmt_chunk_put_header(file + c.offset, FMT_CHUNK_DATA, c.sequence, c.meta, c.meta_bytes, c.body_bytes, c.body_crc);
    case_write_file(path, file, bytes);
    free(file);
    assert_int_equal(get_fails(0, msg), ERR_FORMAT);
    assert_non_null(strstr(msg, "transform 77 is of a later version"));
    for (size_t i = 2; i < RECORDS; i++) assert_int_equal(get_fails(i, msg), ERR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(values_come_back_through_the_base_and_equal_ones_cost_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(the_base_is_found_where_it_was_or_beside_the_tape, setup, teardown),
        cmocka_unit_test_setup_teardown(a_missing_base_is_named_and_costs_only_what_is_stored_on_it, setup, teardown),
        cmocka_unit_test_setup_teardown(another_tape_in_the_bases_place_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(a_base_without_its_end_is_told_by_its_values, setup, teardown),
        cmocka_unit_test_setup_teardown(a_flip_in_the_base_costs_one_of_its_chunks, setup, teardown),
        cmocka_unit_test_setup_teardown(a_tape_that_names_itself_or_a_based_tape_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(only_a_finished_tape_that_stands_alone_can_be_a_base, setup, teardown),
        cmocka_unit_test_setup_teardown(a_part_of_an_unknown_transform_is_all_that_is_lost, setup, teardown),
        cmocka_unit_test_setup_teardown(another_shape_or_dtype_is_not_stored_on_the_base, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
