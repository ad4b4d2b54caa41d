/* A dumper whose n-th allocation, or n-th call for the disk, fails: once, and for good. It costs dumps and never an answer;
 * what has a final name is a whole tape, and what was lost is told. */
#include <dirent.h>

#include "formats/tape_reader.h"
#include "serve/dumper.h"
#include "tests/formats/alloc_fail.h"
#include "tests/serve/serve_help.h"
#include "tests/support/io_fail.h"
#include "tests/support/slow.h"

enum { ROUNDS = 2, ROWS = 2, FAULTS_MAX = 4000 };

static eng_engine *engine; /* one slot, and the spare one */
static json_t *identity;
static cap_round_list all_rounds;

static srv_dumper *open_dumper(srv_dump *hooks)
{
    srv_dumper *d;
    const srv_dumper_setup s = { .engine = engine, .identity = identity, .dir = "dumps", .rounds_text = "all",
                                 .rounds = all_rounds, .rotate_bytes = 1 << 30, .slots = 1, .positions = HELP_ROWS };
    OK(srv_dumper_open(&s, &d, e));
    srv_dumper_hooks(d, hooks);
    return d;
}

/* A round of one slot, as the worker runs it: what the hooks return would be the client's. */
static void run_round(const srv_dump *h, int32_t round)
{
    const eng_tap *tap = NULL;
    const int32_t first = round * ROWS, slot = 0, anchor = 7, last = first + ROWS - 1;
    int32_t drafts[ENG_BLOCK_MAX];
    float confidence[ENG_BLOCK_MAX];
    const srv_insert_step in = { round, 100, slot, ROWS, help_rows(0, first), help_pos + first };
    OK(h->insert_before(h->ctx, &in, &tap, e));
    OK(eng_insert(engine, slot, in.taps, in.pos, ROWS, tap, e));
    OK(h->insert_after(h->ctx, &in, true, e));
    srv_draft_step s = { .round = round, .request = { 100 }, .batch = 1, .n_out = help_config.block, .slots = &slot,
                         .anchors = &anchor, .pos = &last };
    tap = NULL;
    OK(h->draft_before(h->ctx, &s, &tap, e));
    OK(eng_draft(engine, 1, &slot, &anchor, &last, s.n_out, drafts, confidence, tap, e));
    s.drafts = drafts;
    s.confidence = confidence;
    OK(h->draft_after(h->ctx, &s, true, e));
}

/* Rounds on the tapes in dumps/, all of which must be whole, and empties it. */
static int32_t take_tapes(void)
{
    int32_t n = 0;
    DIR *dir = opendir("dumps");
    assert_non_null(dir);
    for (struct dirent *x; (x = readdir(dir));) {
        char path[300];
        const size_t len = strlen(x->d_name);
        snprintf(path, sizeof path, "dumps/%s", x->d_name);
        if (len > 5 && strcmp(x->d_name + len - 5, ".tape") == 0) {
            fmt_tape_report r;
            OK(fmt_tape_examine(path, &r, e));
            assert_true(r.finished && r.n_faults == 0);
            n += (int32_t)r.n_rounds;
            fmt_tape_report_fini(&r);
        }
        if (x->d_name[0] != '.') assert_int_equal(unlink(path), 0);
    }
    closedir(dir);
    return n;
}

static int32_t told(const json_t *status, const char *key)
{
    return (int32_t)json_integer_value(json_object_get(status, key));
}

/* true: a call failed. */
static bool run_once(void (*arm)(long n, bool persistent), bool (*end)(void), err_code wanted, long at, bool persistent)
{
    srv_dump hooks = { 0 };
    err e = { 0 };
    srv_dumper *d = open_dumper(&hooks);
    arm(at, persistent);
    eng_release(engine, 0);
    for (int32_t r = 0; r < ROUNDS; r++) run_round(&hooks, r);
    hooks.finish(hooks.ctx);
    const bool hit = end();
    json_t *status = hooks.status(hooks.ctx);
    assert_non_null(status);
    const int32_t rounds = told(status, "rounds"), dropped = told(status, "dropped");
    json_decref(status);
    const err_code rc = srv_dumper_close(d, &e);
    const int32_t kept = take_tapes();
    if (rc != ERR_OK && (rc != wanted || !hit || !e.msg[0] || strchr(e.msg, '\n')))
        fail_msg("fault %ld: %s: %s", at, err_name(rc), e.msg);
    /* Every round is told as kept or as dropped; what is told as kept is there, but for a tape whose end failed. */
    if (rounds + dropped != ROUNDS || (rc == ERR_OK && kept != rounds) || kept > rounds || (!hit && dropped))
        fail_msg("fault %ld: %s: %d rounds on tapes, told %d kept and %d dropped", at, err_name(rc), kept, rounds, dropped);
    return hit;
}

/* Of many faults some: the first ones, then further and further apart. */
static void every_fault(void (*arm)(long n, bool persistent), bool (*end)(void), err_code wanted)
{
    for (int persistent = 0; persistent < 2; persistent++) {
        long at = 0;
        while (at < FAULTS_MAX && run_once(arm, end, wanted, at, persistent)) at += 1 + at / (SLOW ? 2 : 6);
        assert_true(at > 5 && at < FAULTS_MAX);
    }
}

static void a_failing_disk_costs_dumps_and_no_answer(void **state)
{
    (void)state;
    every_fault(io_fail_at, io_fail_end, ERR_IO);
}

static void failing_memory_costs_dumps_and_no_answer(void **state)
{
    (void)state;
    every_fault(alloc_fail_at, alloc_fail_end, ERR_NOMEM);
}

static int set_up(void **state)
{
    eng_option_words words = { .mode = "graph" };
    eng_options o;
    alloc_fail_init();
    if (help_make_model(state) != 0 || mkdir("dumps", 0700) != 0) return -1;
    identity = json_object();
    OK(eng_options_parse(&words, 1, &o, e));
    OK(eng_open(help_weights, &o, 2, ENG_LEVEL_V1, true, &engine, e));
    OK(cap_round_list_parse("all", "--dump-rounds", &all_rounds, e));
    return 0;
}

static int tear_down(void **state)
{
    eng_close(engine);
    json_decref(identity);
    return help_drop_model(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failing_disk_costs_dumps_and_no_answer),
        cmocka_unit_test(failing_memory_costs_dumps_and_no_answer),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
