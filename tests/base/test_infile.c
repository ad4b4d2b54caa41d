/* Only a regular file is opened for reading, and nothing waits. */
#include "tests/support/ok.h"

#include "base/infile.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

static void a_file_is_opened_with_its_size(void **state)
{
    int fd;
    uint64_t bytes;
    char text[8] = "";
    (void)state;
    FILE *f = fopen("in.txt", "w");
    assert_non_null(f);
    fputs("hello", f);
    fclose(f);
    OK(infile_open("in.txt", "in.txt", "text", &fd, &bytes, e));
    assert_int_equal(bytes, 5);
    assert_int_equal(read(fd, text, sizeof text), 5);
    assert_string_equal(text, "hello");
    close(fd);
    unlink("in.txt");
}

static void what_is_no_file_is_refused_at_once(void **state)
{
    int fd;
    (void)state;
    assert_int_equal(mkdir("in.folder", 0777), 0);
    assert_int_equal(mkfifo("in.fifo", 0666), 0);
    REFUSED(infile_open("in.folder", "--in", "text", &fd, NULL, e), ERR_INPUT, "--in: found a folder, wanted text");
    assert_true(fd == -1 && errno == 0);
    REFUSED(infile_open("in.fifo", NULL, "text", &fd, NULL, e), ERR_INPUT, "found no regular file, wanted text");
    REFUSED(infile_open("/dev/zero", NULL, "text", &fd, NULL, e), ERR_INPUT, "found no regular file");
    REFUSED(infile_open("in.nothing", "in.nothing", "text", &fd, NULL, e), ERR_INPUT, "in.nothing: cannot be opened: No");
    assert_true(fd == -1);
    char longest[300];
    memset(longest, 'x', sizeof longest - 1); /* of another's file: no fault of this machine */
    longest[sizeof longest - 1] = 0;
    REFUSED(infile_open(longest, NULL, "text", &fd, NULL, e), ERR_INPUT, "cannot be opened: File name too long");
    rmdir("in.folder");
    unlink("in.fifo");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_is_opened_with_its_size),
        cmocka_unit_test(what_is_no_file_is_refused_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
