/* Damage: found wherever it is, bounded, survived. */
#include "tests/formats/tape_cases.h"

#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <sys/wait.h>

static char folder[64], path[128], bad[128], out[128];
static uint8_t *good;
static size_t good_bytes;
static fmt_tape *original;

enum { ROUNDS = 2 };
static size_t per_round; /* records */

static void setup_folder(void)
{
    case_folder(folder);
    case_path(folder, "good.tape", path);
    case_path(folder, "bad.tape", bad);
    case_path(folder, "out.tape", out);
}

static void setup_good(size_t records)
{
    per_round = records;
    good = case_read_file(path, &good_bytes);
    OK(fmt_tape_open(path, &original, e));
}

static int setup(void **state)
{
    (void)state;
    setup_folder();
    case_finish(case_write(path, ROUNDS, 1));
    setup_good(CASE_RECORDS);
    return 0;
}

/* A tape short enough to read it whole for each of its bytes: a chunk a round with a value that differs a little between
 * two ranks, one that a transform shortens, a tier without payload, an event. */
static int setup_short(void **state)
{
    (void)state;
    fmt_tape_writer *w;
    json_t *head = case_head(), *event = json_pack("{s:s}", "event", "drop");
    setup_folder();
    OK(fmt_tape_create(path, head, &w, e));
    for (int r = 0; r < ROUNDS; r++) {
        uint8_t *a = case_data(FMT_DTYPE_BF16, 64, CASE_NOISE, (uint64_t)r);
        uint8_t *b = case_data(FMT_DTYPE_BF16, 64, CASE_NOISE, (uint64_t)r);
        uint8_t *qdq = case_data(FMT_DTYPE_BF16, 64, CASE_QDQ, (uint64_t)r);
        b[40] ^= 1;
        fmt_tensor t = fmt_tensor_make(FMT_DTYPE_BF16, qdq, 2, (int64_t[]){ 2, 32 });
        OK(fmt_tape_put_ranks(w, &(fmt_tape_key){ r, 0, 0, "x" }, &t, (const void *const[]){ a, b }, FMT_PLACE_PARTIAL, 0,
                              2, FMT_TIER_TENSOR, e));
        OK(fmt_tape_put(w, &(fmt_tape_key){ r, 0, 0, "kv" }, &t, FMT_PLACE_REPLICATED, 0, 2, FMT_TIER_TENSOR, e));
        OK(fmt_tape_put(w, &(fmt_tape_key){ r, 0, 0, "x.stats" }, &t, FMT_PLACE_REPLICATED, 0, 2, FMT_TIER_STATS, e));
        OK(fmt_tape_put_event(w, r, event, e));
        OK(fmt_tape_flush(w, e));
        free(a);
        free(b);
        free(qdq);
    }
    case_finish(w);
    json_decref(head);
    json_decref(event);
    setup_good(4);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    free(good);
    fmt_tape_close(original);
    case_folder_remove(folder);
    return 0;
}

/* Chunks of the sound tape. */
static int chunks_of(fmt_chunk chunk[64])
{
    int n = 0;
    for (uint64_t at = FMT_PRELUDE_BYTES; fmt_chunk_get(good, good_bytes, at, &chunk[n], NULL) == ERR_OK; n++)
        at = fmt_chunk_end(&chunk[n]);
    return n;
}

/* Whatever a damaged tape yields must be the original's bits. Returns how many records it yields. */
static size_t yields_only_truth(const char *p)
{
    fmt_tape *t;
    err why;
    size_t n_good = 0;
    if (fmt_tape_open(p, &t, &why) != ERR_OK) {
        assert_true(why.code == ERR_FORMAT);
        return 0;
    }
    for (size_t i = 0; i < fmt_tape_count(t); i++) {
        fmt_tape_record r, want;
        uint8_t got[2048], expected[2048];
        fmt_tape_at(t, i, &r);
        int64_t k = fmt_tape_find(original, &r.key);
        if (r.tier != FMT_TIER_TENSOR) { n_good++; continue; }
        if (r.raw_bytes > sizeof got || fmt_tape_get(t, i, got, sizeof got, &why) != ERR_OK) continue;
        assert_true(k >= 0);
        fmt_tape_at(original, (size_t)k, &want);
        assert_int_equal(r.raw_bytes, want.raw_bytes);
        OK(fmt_tape_get(original, (size_t)k, expected, sizeof expected, e));
        assert_memory_equal(got, expected, r.raw_bytes);
        n_good++;
    }
    for (size_t i = 0; i < fmt_tape_event_count(t); i++) {
        int32_t round;
        assert_non_null(fmt_tape_event_at(t, i, &round));
    }
    fmt_tape_close(t);
    return n_good;
}

static bool is_sound(const char *p)
{
    fmt_tape_report r;
    err why;
    if (fmt_tape_examine(p, &r, &why) != ERR_OK) return false;
    bool sound = r.n_faults == 0;
    fmt_tape_report_fini(&r);
    return sound;
}

static void a_sound_tape_has_no_faults(void **state)
{
    (void)state;
    fmt_tape_report r;
    OK(fmt_tape_examine(path, &r, e));
    if (r.n_faults) fail_msg("%s", r.faults[0].what);
    assert_int_equal(r.n_records, ROUNDS * CASE_RECORDS);
    assert_int_equal(r.n_rounds, ROUNDS);
    assert_int_equal(r.n_lost_records, 0);
    assert_true(r.finished);
    fmt_tape_report_fini(&r);
    assert_int_equal(yields_only_truth(path), ROUNDS * CASE_RECORDS);
}

static void set_byte(int fd, size_t at, uint8_t byte) { assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1); }

static void every_flipped_byte_is_found_and_costs_one_chunk_at_most(void **state)
{
    (void)state;
    case_write_file(bad, good, good_bytes); /* once: the rest happens in place, which saves most of the time */
    int fd = open(bad, O_WRONLY);
    assert_true(fd >= 0);
    for (size_t at = 0; at < good_bytes; at++) {
        set_byte(fd, at, good[at] ^ (uint8_t)(1u << at % 8));
        if (is_sound(bad)) fail_msg("a flipped bit %zu of byte %zu was not found", at % 8, at);
        size_t kept = at % 3 ? ROUNDS * per_round : yields_only_truth(bad);
        if (at >= FMT_PRELUDE_BYTES && kept < (ROUNDS - 1) * per_round)
            fail_msg("a flipped byte %zu left %zu records of %zu", at, kept, ROUNDS * per_round);
        if (at % 101 == 0) {
            fmt_tape_loss lost;
            OK(fmt_tape_recover(bad, out, &lost, NULL, e));
            assert_true(is_sound(out));
            assert_int_equal(yields_only_truth(out), lost.kept_records);
            assert_int_equal(lost.kept_records + lost.lost_records, ROUNDS * per_round);
            assert_true(lost.kept_records >= (ROUNDS - 1) * per_round);
        }
        set_byte(fd, at, good[at]);
    }
    close(fd);
}

/* Records whose chunks lie wholly before a cut. */
static size_t records_before(size_t cut)
{
    fmt_chunk chunk[64];
    int n = chunks_of(chunk);
    size_t records = 0;
    for (int i = 0; i < n; i++)
        if (chunk[i].kind == FMT_CHUNK_DATA && fmt_chunk_end(&chunk[i]) <= cut) records += per_round;
    return records;
}

static void every_truncation_is_found_and_keeps_every_chunk_before_it(void **state)
{
    (void)state;
    case_write_file(bad, good, good_bytes);
    for (size_t cut = good_bytes; cut-- > 0; ) {
        err why;
        fmt_tape_loss lost;
        assert_int_equal(truncate(bad, (off_t)cut), 0);
        assert_false(is_sound(bad));
        size_t want = records_before(cut);
        if (cut % 3 == 0) assert_int_equal(yields_only_truth(bad), want);
        if (cut % 37 && cut + 20 < good_bytes) continue;
        unlink(out);
        err_code rc = fmt_tape_recover(bad, out, &lost, NULL, &why);
        if (want == 0) {
            assert_int_equal(rc, ERR_FORMAT);
            assert_int_equal(access(out, F_OK), -1);
            continue;
        }
        assert_int_equal(rc, ERR_OK);
        assert_int_equal(lost.kept_records, want);
        assert_true(is_sound(out));
        assert_int_equal(yields_only_truth(out), want);
        bool end_is_whole = cut >= good_bytes - FMT_TRAILER_BYTES;
        assert_int_equal(lost.complete, end_is_whole);
        assert_int_equal(lost.was_finished, end_is_whole);
    }
}

/* Random bytes over random places, several at once: no promise but memory safety and truth. */
static void random_damage_yields_only_truth(void **state)
{
    (void)state;
    uint8_t *copy = malloc(good_bytes);
    for (uint64_t trial = 0; trial < 150; trial++) {
        memcpy(copy, good, good_bytes);
        for (uint64_t k = 0; k < 1 + trial % 6; k++) {
            uint64_t w = case_word(trial, k), at = w % good_bytes, n = w >> 32 & 63;
            for (uint64_t i = at; i < at + n && i < good_bytes; i++) copy[i] = (uint8_t)case_word(w, i);
        }
        case_write_file(bad, copy, good_bytes);
        fmt_tape_loss lost;
        err why;
        is_sound(bad);
        yields_only_truth(bad);
        if (trial % 20 == 0 && fmt_tape_recover(bad, out, &lost, NULL, &why) == ERR_OK) {
            assert_true(is_sound(out));
            yields_only_truth(out);
        }
    }
    free(copy);
}

/* Checksums that fit hostile content: each byte of every meta changed, its checksums made right again. */
static void lies_behind_right_checksums_are_survived(void **state)
{
    (void)state;
    fmt_chunk chunk[64];
    uint8_t *copy = malloc(good_bytes);
    int n = chunks_of(chunk);
    static const uint8_t LIE[] = { 0xff, 0x00, 0x80, 0xc4, 0xdd, 0xdf, 0xcf, 0xd3 };
    for (int i = 0; i < n; i++)
        for (uint32_t at = 0; at < chunk[i].meta_bytes + chunk[i].body_bytes; at += at < chunk[i].meta_bytes ? 3 : 23) {
            memcpy(copy, good, good_bytes);
            uint8_t *h = copy + chunk[i].offset, *meta = h + FMT_CHUNK_HEADER_BYTES;
            meta[at] = at % 3 ? LIE[(at + (uint32_t)i) % COUNT_OF(LIE)] : (uint8_t)(meta[at] + 1);
            fmt_chunk_put_header(h, chunk[i].kind, chunk[i].sequence, meta, chunk[i].meta_bytes, chunk[i].body_bytes,
                                 fmt_crc32c(0, meta + chunk[i].meta_bytes, chunk[i].body_bytes));
            case_write_file(bad, copy, good_bytes);
            fmt_tape *t;
            err why;
            bool sound = is_sound(bad);
            if (fmt_tape_open(bad, &t, &why) != ERR_OK) continue;
            for (size_t r = 0; r < fmt_tape_count(t); r++) {
                fmt_tape_record rec;
                uint8_t got[2048];
                fmt_tape_at(t, r, &rec);
                /* Never more than the parts that fit in the file could hold. */
                assert_true(rec.raw_bytes <= good_bytes / 24 * FMT_TAPE_CHUNK_BYTES);
                /* Checksums that fit are believed; doctor, which hashes values again, is not fooled. */
                if (rec.raw_bytes <= sizeof got && rec.tier == FMT_TIER_TENSOR &&
                    fmt_tape_get(t, r, got, sizeof got, &why) == ERR_OK && fmt_hash64(got, rec.raw_bytes) != rec.hash)
                    assert_false(sound);
            }
            fmt_tape_close(t);
        }
    free(copy);
}

static void a_damaged_head_is_read_from_the_end(void **state)
{
    (void)state;
    fmt_tape *t;
    fmt_tape_loss lost;
    fmt_chunk chunk[64];
    int n = chunks_of(chunk);
    good[FMT_PRELUDE_BYTES + FMT_CHUNK_HEADER_BYTES + 3] ^= 1;
    case_write_file(bad, good, good_bytes);
    OK(fmt_tape_open(bad, &t, e));
    assert_string_equal(json_string_value(json_object_get(fmt_tape_head(t), "format")), "sparktape");
    fmt_tape_close(t);
    OK(fmt_tape_recover(bad, out, &lost, NULL, e));
    assert_true(lost.complete);
    good[chunk[n - 1].offset + FMT_CHUNK_HEADER_BYTES + 5] ^= 1; /* the end too */
    case_write_file(bad, good, good_bytes);
    err why;
    assert_int_equal(fmt_tape_open(bad, &t, &why), ERR_FORMAT);
    assert_non_null(strstr(why.msg, "head"));
    OK(fmt_tape_recover(bad, out, &lost, NULL, e));
    assert_true(lost.head_lost && !lost.complete);
    assert_int_equal(lost.kept_records, ROUNDS * CASE_RECORDS);
}

static void a_lost_record_is_named_with_its_chunk(void **state)
{
    (void)state;
    fmt_chunk chunk[64];
    chunks_of(chunk);
    for (int damage_meta = 0; damage_meta < 2; damage_meta++) {
        uint64_t at = chunk[1].offset + FMT_CHUNK_HEADER_BYTES + (damage_meta ? 9 : chunk[1].meta_bytes + 30);
        good[at] ^= 4;
        case_write_file(bad, good, good_bytes);
        good[at] ^= 4;
        fmt_tape_report r;
        OK(fmt_tape_examine(bad, &r, e));
        bool named = false, placed = false;
        for (size_t i = 0; i < r.n_faults; i++) {
            named = named || strstr(r.faults[i].what, "(0/-/s1.attn_out@r1) is lost");
            placed = placed || (r.faults[i].offset_bytes == chunk[1].offset && r.faults[i].chunk == 1);
        }
        assert_true(named);
        assert_true(placed);
        assert_int_equal(r.n_lost_records, damage_meta ? CASE_RECORDS
                         : CASE_RECORDS - 2); /* stats and hash stand in the meta */
        fmt_tape_report_fini(&r);
        fmt_tape_loss lost;
        OK(fmt_tape_recover(bad, out, &lost, NULL, e));
        assert_int_equal(lost.lost_rounds, 1);
        assert_int_equal(lost.kept_rounds, damage_meta ? ROUNDS - 1 : ROUNDS);
        assert_int_equal(lost.lost_events, damage_meta);
    }
}

static void recovery_never_touches_its_input(void **state)
{
    (void)state;
    char part[160];
    err why;
    fmt_tape_loss lost;
    assert_int_equal(fmt_tape_recover(path, path, &lost, NULL, &why), ERR_ARG);
    snprintf(part, sizeof part, "%s.part", out); /* what a dead writer of OUT leaves */
    case_write_file(part, good, good_bytes - 40);
    OK(fmt_tape_recover(part, out, &lost, NULL, e));
    size_t bytes;
    uint8_t *after = case_read_file(part, &bytes);
    assert_int_equal(bytes, good_bytes - 40);
    assert_memory_equal(after, good, bytes);
    assert_true(is_sound(out));
    free(after);
}

static void other_versions_are_told_apart(void **state)
{
    (void)state;
    fmt_tape *t;
    err why;
    good[8] = 2;
    put_u32(good + 12, fmt_crc32c(0, good, 12));
    case_write_file(bad, good, good_bytes);
    assert_int_equal(fmt_tape_open(bad, &t, &why), ERR_FORMAT);
    assert_non_null(strstr(why.msg, "major version 2 is unknown, wanted 1"));
    fmt_tape_report r;
    assert_int_equal(fmt_tape_examine(bad, &r, &why), ERR_FORMAT);
    good[8] = 1;
    good[10] = 7; /* a later minor version */
    put_u32(good + 12, fmt_crc32c(0, good, 12));
    case_write_file(bad, good, good_bytes);
    OK(fmt_tape_open(bad, &t, e));
    assert_int_equal(fmt_tape_minor(t), 7);
    assert_int_equal(fmt_tape_count(t), ROUNDS * CASE_RECORDS);
    fmt_tape_close(t);
    assert_true(is_sound(bad));
}

static void what_is_no_tape_is_refused(void **state)
{
    (void)state;
    fmt_tape *t;
    err why;
    fmt_tape_report r;
    fmt_tape_loss lost;
    static const char TEXT[] = "#!/bin/sh\necho no tape at all, though of some length\n";
    case_write_file(bad, TEXT, sizeof TEXT);
    assert_int_equal(fmt_tape_open(bad, &t, &why), ERR_FORMAT);
    assert_non_null(strstr(why.msg, "not a tape"));
    assert_int_equal(fmt_tape_examine(bad, &r, &why), ERR_FORMAT);
    assert_int_equal(fmt_tape_recover(bad, out, &lost, NULL, &why), ERR_FORMAT);
    case_write_file(bad, TEXT, 0);
    assert_int_equal(fmt_tape_examine(bad, &r, &why), ERR_FORMAT);
    assert_int_equal(fmt_tape_examine(folder, &r, &why), ERR_INPUT);
    assert_int_equal(fmt_tape_examine("no-such-file", &r, &why), ERR_INPUT);
    assert_int_equal(access(out, F_OK), -1);
}

/* A child writes and says after each flush which round is safe; it is killed at a random moment. */
static void a_killed_writer_loses_nothing_that_was_flushed(void **state)
{
    (void)state;
    for (uint64_t trial = 0; trial < 12; trial++) {
        int pipe_fd[2];
        char part[160];
        assert_int_equal(pipe(pipe_fd), 0);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            json_t *head = case_head();
            fmt_tape_writer *w;
            if (fmt_tape_create(out, head, &w, NULL) != ERR_OK) _exit(1);
            for (int32_t r = 0; ; r++) {
                uint8_t *data = case_data(FMT_DTYPE_BF16, 30000, CASE_NOISE, (uint64_t)r);
                fmt_tensor t = fmt_tensor_make(FMT_DTYPE_BF16, data, 1, (int64_t[]){ 30000 });
                if (fmt_tape_put(w, &(fmt_tape_key){ r, 0, 0, "x" }, &t, FMT_PLACE_REPLICATED, 0, 1, FMT_TIER_TENSOR,
                                 NULL) ||
                    fmt_tape_flush(w, NULL) || write(pipe_fd[1], &r, sizeof r) != sizeof r)
                    _exit(1);
                free(data);
            }
        }
        close(pipe_fd[1]);
        int32_t safe = -1, r;
        for (uint64_t k = 0; k <= trial && read(pipe_fd[0], &r, sizeof r) == sizeof r; k++) safe = r;
        usleep((useconds_t)(case_word(trial, 1) % 3000));
        kill(child, SIGKILL);
        while (read(pipe_fd[0], &r, sizeof r) == sizeof r) safe = r;
        waitpid(child, NULL, 0);
        close(pipe_fd[0]);
        assert_true(safe >= 0);
        fmt_tape *t;
        fmt_tape_loss lost;
        snprintf(part, sizeof part, "%s.part", out);
        OK(fmt_tape_open(part, &t, e));
        assert_true((int32_t)fmt_tape_count(t) > safe);
        uint8_t *got = malloc(60000), *want = case_data(FMT_DTYPE_BF16, 30000, CASE_NOISE, (uint64_t)safe);
        OK(fmt_tape_get(t, (size_t)safe, got, 60000, e));
        assert_memory_equal(got, want, 60000);
        free(got);
        free(want);
        fmt_tape_close(t);
        OK(fmt_tape_recover(part, bad, &lost, NULL, e));
        assert_true((int32_t)lost.kept_records > safe && !lost.was_finished);
        assert_true(is_sound(bad));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_sound_tape_has_no_faults, setup, teardown),
        cmocka_unit_test_setup_teardown(every_flipped_byte_is_found_and_costs_one_chunk_at_most, setup_short, teardown),
        cmocka_unit_test_setup_teardown(every_truncation_is_found_and_keeps_every_chunk_before_it, setup_short, teardown),
        cmocka_unit_test_setup_teardown(random_damage_yields_only_truth, setup, teardown),
        cmocka_unit_test_setup_teardown(lies_behind_right_checksums_are_survived, setup, teardown),
        cmocka_unit_test_setup_teardown(a_damaged_head_is_read_from_the_end, setup, teardown),
        cmocka_unit_test_setup_teardown(a_lost_record_is_named_with_its_chunk, setup, teardown),
        cmocka_unit_test_setup_teardown(recovery_never_touches_its_input, setup, teardown),
        cmocka_unit_test_setup_teardown(other_versions_are_told_apart, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_no_tape_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(a_killed_writer_loses_nothing_that_was_flushed, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
