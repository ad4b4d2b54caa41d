/* Output files: whole under their name, or not there. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/outfile.h"

static const char PATH[] = "outfile_under_test", PART[] = "outfile_under_test.part";

static bool exists(const char *path) { return access(path, F_OK) == 0; }
static uint64_t size_of(const char *path)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    return (uint64_t)st.st_size;
}
static uint8_t byte_at(uint64_t i) { return (uint8_t)(i * 2654435761u >> 8); }

static int clean(void **state)
{
    (void)state;
    unlink(PATH);
    unlink(PART);
    return 0;
}

/* Writes total bytes in pieces that grow, so that every path of the buffer is met. */
static void fill(outfile *f, uint64_t total)
{
    static uint8_t piece[1 << 20];
    uint64_t at = 0, n = 1;
    while (at < total) {
        if (n > total - at) n = total - at;
        for (uint64_t i = 0; i < n; i++) piece[i] = byte_at(at + i);
        outfile_write(f, piece, n);
        at += n;
        n = n * 3 % ((1 << 20) - 1) + 1;
    }
}

static void bytes_in_pieces_of_any_size_arrive_in_order(void **state)
{
    (void)state;
    static const uint64_t TOTALS[] = { 0, 1, (1 << 18) - 1, 1 << 18, (1 << 18) + 1, 5000000 };
    for (size_t k = 0; k < sizeof TOTALS / sizeof TOTALS[0]; k++) {
        outfile *f;
        err e = { 0 };
        assert_int_equal(outfile_open(PATH, &f, &e), ERR_OK);
        fill(f, TOTALS[k]);
        assert_int_equal(outfile_bytes(f), TOTALS[k]);
        assert_false(outfile_failed(f));
        assert_int_equal(outfile_commit(f, &e), ERR_OK);
        assert_false(exists(PART));
        assert_int_equal(size_of(PATH), TOTALS[k]);
        FILE *in = fopen(PATH, "rb");
        for (uint64_t i = 0; i < TOTALS[k]; i++)
            if (getc(in) != byte_at(i)) fail_msg("byte %llu differs", (unsigned long long)i);
        fclose(in);
    }
}

static void the_name_appears_only_with_commit(void **state)
{
    (void)state;
    outfile *f;
    err e = { 0 };
    assert_int_equal(outfile_open(PATH, &f, &e), ERR_OK);
    outfile_write(f, "abc", 3);
    assert_int_equal(outfile_flush(f, &e), ERR_OK);
    assert_true(exists(PART) && !exists(PATH));
    assert_int_equal(size_of(PART), 3);
    outfile_abandon(f);
    assert_true(!exists(PART) && !exists(PATH));
    outfile_abandon(NULL);
    outfile_leave(NULL);
}

static void a_file_that_is_left_keeps_its_bytes_in_part(void **state)
{
    (void)state;
    outfile *f;
    err e = { 0 };
    assert_int_equal(outfile_open(PATH, &f, &e), ERR_OK);
    outfile_write(f, "abc", 3);
    outfile_leave(f);
    assert_true(!exists(PATH));
    assert_int_equal(size_of(PART), 3);
}

static void an_old_part_is_replaced_and_links_are_not_followed(void **state)
{
    (void)state;
    outfile *f;
    err e = { 0 };
    FILE *victim = fopen("outfile_victim", "wb");
    fputs("keep", victim);
    fclose(victim);
    assert_int_equal(symlink("outfile_victim", PART), 0);
    assert_int_equal(outfile_open(PATH, &f, &e), ERR_OK);
    outfile_write(f, "new", 3);
    assert_int_equal(outfile_commit(f, &e), ERR_OK);
    assert_int_equal(size_of("outfile_victim"), 4);
    assert_int_equal(size_of(PATH), 3);
    unlink("outfile_victim");
}

static void a_private_file_is_its_owners_from_its_first_byte(void **state)
{
    (void)state;
    outfile *f;
    err e = { 0 };
    struct stat st;
    const mode_t old = umask(0);
    FILE *open_to_all = fopen(PATH, "wb"); /* whose place it takes, and whose mode it must not */
    assert_non_null(open_to_all);
    fclose(open_to_all);
    assert_int_equal(outfile_open_private(PATH, &f, &e), ERR_OK);
    assert_int_equal(stat(PART, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_int_equal(outfile_commit(f, &e), ERR_OK);
    assert_int_equal(stat(PATH, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    umask(old);
}

static void a_folder_that_is_missing_is_named(void **state)
{
    (void)state;
    outfile *f = (outfile *)1;
    err e = { 0 };
    assert_int_equal(outfile_open("no/such/folder/out", &f, &e), ERR_IO);
    assert_null(f);
    assert_non_null(strstr(e.msg, "no/such/folder/out"));
}

static void a_name_taken_by_a_folder_fails_at_commit_and_keeps_the_bytes(void **state)
{
    (void)state;
    outfile *f;
    err e = { 0 };
    assert_int_equal(outfile_open(PATH, &f, &e), ERR_OK);
    assert_int_equal(mkdir(PATH, 0777), 0);
    outfile_write(f, "abc", 3);
    assert_int_equal(outfile_commit(f, &e), ERR_IO);
    assert_int_equal(size_of(PART), 3);
    assert_int_equal(rmdir(PATH), 0);
}

static void a_folder_or_a_device_is_refused_before_any_work(void **state)
{
    (void)state;
    assert_int_equal(mkdir(PATH, 0777), 0);
    static const char *const TAKEN[] = { PATH, "/dev/null" };
    for (int i = 0; i < 2; i++) {
        outfile *f = (outfile *)1;
        err e = { 0 };
        assert_int_equal(outfile_open(TAKEN[i], &f, &e), ERR_IO);
        assert_null(f);
        assert_non_null(strstr(e.msg, TAKEN[i]));
        assert_false(exists(PART));
    }
    assert_int_equal(rmdir(PATH), 0);
}

/* A limit on the file's size stands for a full disk: the write comes back short, then fails. */
static void a_full_disk_is_reported_once_and_leaves_no_file(void **state)
{
    (void)state;
    struct rlimit old;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    for (rlim_t limit = 0; limit < 1000000; limit += 250001) {
        outfile *f;
        err e = { 0 };
        struct rlimit small = { limit, old.rlim_max };
        assert_int_equal(outfile_open(PATH, &f, &e), ERR_OK);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        fill(f, 1000001);
        bool failed = outfile_failed(f);
        err_code rc = outfile_commit(f, &e);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
        assert_true(failed || limit > 700000);
        assert_int_equal(rc, ERR_IO);
        assert_non_null(strstr(e.msg, PATH));
        assert_true(!exists(PATH) && !exists(PART));
    }
}

int main(void)
{
#define CLEAN(test) cmocka_unit_test_setup_teardown(test, clean, clean)
    const struct CMUnitTest tests[] = {
        CLEAN(bytes_in_pieces_of_any_size_arrive_in_order),
        CLEAN(the_name_appears_only_with_commit),
        CLEAN(a_file_that_is_left_keeps_its_bytes_in_part),
        CLEAN(an_old_part_is_replaced_and_links_are_not_followed),
        CLEAN(a_private_file_is_its_owners_from_its_first_byte),
        CLEAN(a_folder_that_is_missing_is_named),
        CLEAN(a_name_taken_by_a_folder_fails_at_commit_and_keeps_the_bytes),
        CLEAN(a_folder_or_a_device_is_refused_before_any_work),
        CLEAN(a_full_disk_is_reported_once_and_leaves_no_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
