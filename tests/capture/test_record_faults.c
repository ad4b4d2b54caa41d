/* The command `record` whose n-th allocation, or n-th call for the disk, fails: once, and for good. Whatever fails, there
 * is an error in one line and no half-written tape under the name; or no error, and the same tape as without the fault. */
#include "recorder_help.h"

#include "capture/commands.h"
#include "formats/tape_reader.h"
#include "tests/support/each_fault.h"
#include "tests/support/json_whole.h"

#include <fcntl.h>

static const char TAPE[] = "x.tape", PART[] = "x.tape.part";

/* Keys and contents of all records. */
static uint64_t content_of(const char *path)
{
    fmt_tape *t;
    uint64_t sum = 0;
    OK(fmt_tape_open(path, &t, e));
    assert_true(fmt_tape_finished(t));
    for (size_t i = 0; i < fmt_tape_count(t); i++) {
        fmt_tape_record r;
        fmt_tape_at(t, i, &r);
        const uint64_t parts[] = { sum, r.hash, (uint64_t)r.key.round, (uint64_t)r.key.slot,
                                   fmt_hash64(r.key.name, strlen(r.key.name)) };
        sum = fmt_hash64(parts, sizeof parts);
    }
    fmt_tape_close(t);
    return sum;
}

/* What it prints goes nowhere. */
static err_code record(char **words, int n, err *e)
{
    int status = 0;
    fflush(stdout);
    const int out = dup(STDOUT_FILENO), nowhere = open("/dev/null", O_WRONLY);
    dup2(nowhere, STDOUT_FILENO);
    const err_code rc = CMD_RECORD.run(&CMD_RECORD, n, words, &status, e);
    fflush(stdout);
    dup2(out, STDOUT_FILENO);
    close(out);
    close(nowhere);
    return rc;
}

typedef struct work { char **words; int n; uint64_t want; } work;

static void before(const void *ctx)
{
    (void)ctx;
    unlink(TAPE);
    unlink(PART);
}

static err_code run(const void *ctx, err *e) { return record(((const work *)ctx)->words, ((const work *)ctx)->n, e); }

static void after(const void *ctx, err_code rc, const err *e, err_code wanted, long at)
{
    if (rc != ERR_OK && (rc != wanted || !e->msg[0] || strchr(e->msg, '\n')))
        fail_msg("fault %ld: %s: %s", at, err_name(rc), e->msg);
    if (rc == ERR_OK) assert_int_not_equal(access(PART, F_OK), 0);
    else if (access(TAPE, F_OK) != 0) return;
    if (content_of(TAPE) != ((const work *)ctx)->want) fail_msg("fault %ld: %s: another tape", at, err_name(rc));
}

static void a_recording_with_any_fault_is_whole_or_not_there(void **state)
{
    char *words[] = { "model", "--script", "script.safetensors", "-o", "x.tape", "--level", "v1", "--threads", "1",
                      "--quiet" };
    work w = { words, (int)COUNT_OF(words), 0 };
    (void)state;
    OK(record(words, w.n, e));
    w.want = content_of(TAPE);
    every_fault_of(&(fault_loop){ before, run, after, SLOW ? 1 : 6 }, &w, 10, 3);
}

static int set_up(void **state)
{
    eng_traffic_report traffic;
    alloc_fail_init();
    if (make_model(state) != 0) return -1;
    unlink("script.safetensors");
    OK(eng_traffic_write("script.safetensors", &CONFIG, 1, 1, 1, true, &traffic, e));
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(a_recording_with_any_fault_is_whole_or_not_there) };
    return cmocka_run_group_tests(tests, set_up, drop_model);
}
