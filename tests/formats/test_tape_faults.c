/* A tape writer and a recovery whose n-th allocation, or n-th call for the disk, fails: once, and for good. Whatever fails,
 * there is an error in one line and the name keeps what it had; or no error, and the same bytes as without the fault. */
#include "tape_cases.h"

#include "tests/support/each_fault.h"

enum { ROUNDS = 3, ELEMS = 128 };

static const char OLD[] = "what was there before";
static uint8_t *values[2];
static json_t *head, *event, *summary;

static err_code write_tape(const char *path, err *e)
{
    fmt_tape_writer *w;
    const int64_t shape[] = { 4, ELEMS / 4 };
    const fmt_tensor t = fmt_tensor_make(FMT_DTYPE_BF16, values[0], 2, shape);
    TRY(fmt_tape_create(path, head, &w, e));
    err_code rc = ERR_OK;
    for (int32_t r = 0; r < ROUNDS && rc == ERR_OK; r++) {
        const fmt_tape_key whole = { r, FMT_TAPE_NO_SLOT, 0, "s0.attn_out" }, slot = { r, 2, 0, "main_x" };
        rc = fmt_tape_put_ranks(w, &whole, &t, (const void *const[]){ values[0], values[1] }, FMT_PLACE_PARTIAL, 0, 2,
                                FMT_TIER_TENSOR, e);
        if (rc == ERR_OK) rc = fmt_tape_put(w, &slot, &t, FMT_PLACE_REPLICATED, 0, 1, FMT_TIER_TENSOR, e);
        if (rc == ERR_OK) rc = fmt_tape_put_event(w, r, event, e);
        if (rc == ERR_OK && r == 1) rc = fmt_tape_flush(w, e);
    }
    if (rc == ERR_OK) return fmt_tape_finish(w, summary, e);
    fmt_tape_discard(w);
    return rc;
}

static err_code recover_tape(const char *path, err *e)
{
    fmt_tape_loss lost;
    return fmt_tape_recover("cut.tape", path, &lost, NULL, e);
}

/* One thing to be done, what it leaves without a fault, and what it may leave beside. */
typedef struct work {
    err_code (*run)(const char *path, err *e);
    const char *path;
    uint8_t *want;
    size_t bytes;
} work;

static bool holds(const char *path, const void *want, size_t bytes)
{
    size_t n;
    uint8_t *got = case_read_file(path, &n);
    const bool same = n == bytes && memcmp(got, want, n) == 0;
    free(got);
    return same;
}

/* Of a tape that could not be finished .part is kept, to be recovered: the beginning of the whole one. */
static void check_part(const work *w)
{
    char part[64];
    size_t n;
    snprintf(part, sizeof part, "%s.part", w->path);
    if (access(part, F_OK) != 0) return;
    uint8_t *got = case_read_file(part, &n);
    assert_true(n <= w->bytes && memcmp(got, w->want, n) == 0);
    free(got);
    assert_int_equal(unlink(part), 0);
}

static void check(const void *ctx, err_code rc, const err *e, err_code wanted, long at)
{
    const work *w = ctx;
    if (rc == ERR_OK) {
        if (!holds(w->path, w->want, w->bytes)) fail_msg("%s: fault %ld: no error, and other bytes", w->path, at);
    } else {
        if (rc != wanted || !e->msg[0] || strchr(e->msg, '\n')) fail_msg("fault %ld: %s: %s", at, err_name(rc), e->msg);
        if (!holds(w->path, OLD, sizeof OLD)) fail_msg("%s: fault %ld: half of it is there: %s", w->path, at, e->msg);
    }
    check_part(w);
    assert_int_not_equal(access("recovered.tape.recovered", F_OK), 0);
    assert_int_not_equal(access("recovered.tape.recovered.part", F_OK), 0);
}

static void put_old(const void *ctx) { case_write_file(((const work *)ctx)->path, OLD, sizeof OLD); }
static err_code run(const void *ctx, err *e) { return ((const work *)ctx)->run(((const work *)ctx)->path, e); }

static void every_fault(work w)
{
    OK(w.run(w.path, e));
    w.want = case_read_file(w.path, &w.bytes);
    every_fault_of(&(fault_loop){ put_old, run, check }, &w, 20, 5);
    free(w.want);
}

static void a_writer_with_any_fault_leaves_a_whole_tape_or_none(void **state)
{
    (void)state;
    every_fault((work){ .run = write_tape, .path = "written.tape" });
}

static void a_recovery_with_any_fault_leaves_a_whole_tape_or_none(void **state)
{
    (void)state;
    OK(write_tape("whole.tape", e));
    size_t bytes;
    uint8_t *tape = case_read_file("whole.tape", &bytes);
    case_write_file("cut.tape", tape, bytes - FMT_TRAILER_BYTES - 40);
    free(tape);
    every_fault((work){ .run = recover_tape, .path = "recovered.tape" });
}

static int set_up(void **state)
{
    static char folder[64];
    (void)state;
    alloc_fail_init();
    for (int i = 0; i < 2; i++) values[i] = case_data(FMT_DTYPE_BF16, ELEMS, CASE_NOISE, (uint64_t)i);
    head = case_head();
    event = json_pack("{s:s, s:[i, i]}", "event", "drop", "n", 1, 2);
    summary = json_pack("{s:i, s:{s:i}}", "dropped", 0, "taps", "armed", 3);
    return head && event && summary && chdir(case_folder(folder)) == 0 ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) free(values[i]);
    json_decref(head);
    json_decref(event);
    json_decref(summary);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_writer_with_any_fault_leaves_a_whole_tape_or_none),
        cmocka_unit_test(a_recovery_with_any_fault_leaves_a_whole_tape_or_none),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
