/* An export and an import whose n-th allocation, or n-th call for the disk, fails: once, and for good. Whatever fails,
 * there is an error in one line and nothing half-written under the name; or no error, and the same as without the fault. */
#include "tape_help.h"

#include "base/mem.h"
#include "capture/export.h"
#include "capture/import.h"
#include "tests/support/each_fault.h"
#include "tests/support/same_file.h"

enum { ROWS = 8, COLS = 32 };

static fmt_tape *tape;
static fmt_safetensors *dump;

static void make_tape(const char *path)
{
    bf16 x[ROWS * COLS];
    float a[ROWS * COLS], b[ROWS * COLS];
    const int64_t shape[] = { ROWS, COLS };
    json_t *head = json_pack("{s:s, s:s, s:{s:s, s:s}}", "format", "sparktape", "level", "deep", "identity", "checkpoint",
                             "abc", "combine", "fused");
    fmt_tape_writer *w = tape_begin(path, head);
    json_decref(head);
    for (int i = 0; i < ROWS * COLS; i++) {
        x[i] = (bf16)(i * 7);
        a[i] = (float)i * 0.37f;
        b[i] = (float)(i ^ 0x55) * 1.1f;
    }
    tape_put(w, 0, 5, 0, "main_x", FMT_DTYPE_BF16, x, 2, shape);
    tape_put(w, 0, 5, 0, "s0.window", FMT_DTYPE_BF16, x, 2, shape);
    fmt_tensor t = fmt_tensor_make(FMT_DTYPE_F32, NULL, 2, shape);
    const fmt_tape_key key = { 0, FMT_TAPE_NO_SLOT, 0, "s0.ffn.slot" };
    OK(fmt_tape_put_ranks(w, &key, &t, (const void *const[]){ a, b }, FMT_PLACE_PARTIAL, 0, 2, FMT_TIER_TENSOR, e));
    tape = tape_end(w, path);
}

static err_code run_export(const char *path, err *e)
{
    const cap_export_options o = { .quiet = true };
    cap_export_result r;
    return cap_export(tape, path, &o, &r, e);
}

static err_code run_import(const char *path, err *e)
{
    const cap_import_options o = { .origin = tape, .quiet = true };
    cap_import_result r;
    return cap_import(dump, path, &o, &r, e);
}

/* All but when it was made. */
static bool same_tape(const char *a, const char *b)
{
    fmt_tape *t[2];
    json_t *head[2];
    OK(fmt_tape_open(a, &t[0], e));
    OK(fmt_tape_open(b, &t[1], e));
    for (int i = 0; i < 2; i++) {
        head[i] = json_deep_copy(fmt_tape_head(t[i]));
        json_object_del(head[i], "created");
    }
    bool same = json_equal(head[0], head[1]) && fmt_tape_count(t[0]) == fmt_tape_count(t[1]) &&
                json_equal(fmt_tape_summary(t[0]), fmt_tape_summary(t[1]));
    for (size_t i = 0; same && i < fmt_tape_count(t[0]); i++) {
        fmt_tape_record x, y;
        fmt_tape_at(t[0], i, &x);
        fmt_tape_at(t[1], i, &y);
        same = x.hash == y.hash && strcmp(x.key.name, y.key.name) == 0;
    }
    for (int i = 0; i < 2; i++) {
        json_decref(head[i]);
        fmt_tape_close(t[i]);
    }
    return same;
}

/* ---- faults ---- */

typedef struct work {
    err_code (*run)(const char *path, err *e);
    bool (*same)(const char *a, const char *b);
    const char *want, *path;
} work;

static void remove_all(const void *ctx)
{
    const char *path = ((const work *)ctx)->path;
    char command[256];
    snprintf(command, sizeof command, "rm -rf %s %s.part", path, path);
    assert_int_equal(system(command), 0);
}

static void check(const void *ctx, err_code rc, const err *e, err_code wanted, long at)
{
    const work *w = ctx;
    char part[256];
    snprintf(part, sizeof part, "%s.part", w->path);
    if (rc == ERR_OK) {
        if (!w->same(w->want, w->path)) fail_msg("%s: fault %ld: no error, and another output", w->path, at);
        assert_int_not_equal(access(part, F_OK), 0);
        return;
    }
    if (rc != wanted || !e->msg[0] || strchr(e->msg, '\n'))
        fail_msg("%s: fault %ld: %s: %s", w->path, at, err_name(rc), e->msg);
    if (access(w->path, F_OK) == 0) fail_msg("%s: fault %ld: half of it is there: %s", w->path, at, e->msg);
}

static err_code run(const void *ctx, err *e) { return ((const work *)ctx)->run(((const work *)ctx)->path, e); }

static void every_fault(work w)
{
    OK(w.run(w.want, e));
    every_fault_of(&(fault_loop){ remove_all, run, check }, &w, 10, 3);
}

static void an_export_with_any_fault_is_whole_or_not_there(void **state)
{
    (void)state;
    every_fault((work){ run_export, same_file, "want.safetensors", "x.safetensors" });
    every_fault((work){ run_export, same_file, "want.npz", "x.npz" });
    every_fault((work){ run_export, same_folder, "want", "x" });
}

static void an_import_with_any_fault_is_whole_or_not_there(void **state)
{
    (void)state;
    OK(run_export("dump.safetensors", e));
    OK(fmt_safetensors_open("dump.safetensors", &dump, e));
    every_fault((work){ run_import, same_tape, "want.tape", "x.tape" });
    fmt_safetensors_close(dump);
}

static int set_up(void **state)
{
    alloc_fail_init();
    if (enter_folder(state) != 0) return -1;
    make_tape("a.tape");
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    fmt_tape_close(tape);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_export_with_any_fault_is_whole_or_not_there),
        cmocka_unit_test(an_import_with_any_fault_is_whole_or_not_there),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
