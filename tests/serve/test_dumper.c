/* V1 dumps: the eager run on the spot agrees with the graph, and a difference is found, named, told and counted. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "serve/dumper.h"
#include "tests/serve/serve_help.h"

enum { SLOTS = 2 };

typedef struct world {
    eng_engine *g;
    srv_dumper *d;
    srv_dump hooks;
    json_t *identity;
} world;

static world open_world(const char *rounds, bool poison)
{
    world w = { .identity = json_object() };
    eng_option_words words = { .mode = "graph", .tp = 2 };
    eng_options o;
    srv_dumper_setup s = { .dir = ".", .rounds_text = rounds, .slots = SLOTS, .poison = poison, .identity = w.identity,
                           .rotate_bytes = 1 << 30 };
    OK(eng_options_parse(&words, 2, &o, e));
    OK(eng_open(help_weights, &o, SLOTS + 1, ENG_LEVEL_V1, true, &w.g, e));
    OK(cap_round_list_parse(rounds, "--dump-rounds", &s.rounds, e));
    s.engine = w.g;
    OK(srv_dumper_open(&s, &w.d, e));
    srv_dumper_hooks(w.d, &w.hooks);
    return w;
}

static void close_world(world *w)
{
    srv_dumper_close(w->d);
    eng_close(w->g);
    json_decref(w->identity);
}

static void insert(world *w, int64_t round, int32_t slot, int32_t first, int32_t rows)
{
    const eng_tap *tap = NULL;
    srv_insert_step s = { round, 100 + slot, slot, rows, help_rows(slot, first), help_pos + first };
    OK(w->hooks.insert_before(w->hooks.ctx, &s, &tap, e));
    OK(eng_insert(w->g, slot, s.taps, s.pos, rows, tap, e));
    OK(w->hooks.insert_after(w->hooks.ctx, &s, true, e));
}

/* The two slots' draft at last; between spoils something, after the step and before its eager run. */
static err_code draft(world *w, int64_t round, int32_t last, void (*between)(world *w, int32_t last), err *e)
{
    int32_t slots[SLOTS] = { 1, 0 }, anchors[SLOTS] = { 7, 8 }, pos[SLOTS] = { last, last };
    int32_t drafts[SLOTS * ENG_BLOCK_MAX];
    float confidence[SLOTS * ENG_BLOCK_MAX];
    const eng_tap *tap = NULL;
    srv_draft_step s = { .round = round, .request = { 101, 100 }, .batch = SLOTS, .n_out = help_config.block, .slots = slots,
                         .anchors = anchors, .pos = pos };
    TRY(w->hooks.draft_before(w->hooks.ctx, &s, &tap, e));
    TRY(eng_draft(w->g, SLOTS, slots, anchors, pos, s.n_out, drafts, confidence, tap, e));
    s.drafts = drafts;
    s.confidence = confidence;
    if (between) between(w, last);
    return w->hooks.draft_after(w->hooks.ctx, &s, true, e);
}

static json_int_t number(world *w, const char *key)
{
    json_t *j = w->hooks.status(w->hooks.ctx);
    json_int_t n = json_integer_value(json_object_get(j, key));
    json_decref(j);
    return n;
}

/* The tape that the last world has left. */
static fmt_tape *last_tape(void)
{
    char name[300] = "";
    DIR *dir = opendir(".");
    for (struct dirent *x; (x = readdir(dir)); )
        if (strncmp(x->d_name, "v1-", 3) == 0 && strstr(x->d_name, ".tape") && strcmp(x->d_name, name) > 0)
            snprintf(name, sizeof name, "%s", x->d_name);
    closedir(dir);
    fmt_tape *t = NULL;
    OK(fmt_tape_open(name, &t, e));
    return t;
}

/* A bit of slot 1's window of stage 1 turns. */
static void flip_window(world *w, int32_t last)
{
    bf16 *copy[ENG_STAGES_MAX];
    const bf16 *window[ENG_STAGES_MAX];
    for (int32_t k = 0; k < help_config.n_stages; k++) {
        fmt_tensor t;
        OK(eng_window(w->g, 1, k, &t, e));
        copy[k] = malloc(fmt_tensor_bytes(&t));
        memcpy(copy[k], t.data, fmt_tensor_bytes(&t));
        window[k] = copy[k];
    }
    copy[1][3] ^= 1;
    OK(eng_restore(w->g, 1, last, window, e));
    for (int32_t k = 0; k < help_config.n_stages; k++) free(copy[k]);
}

static void rows_then_draft(world *w, int64_t round, int32_t first, int32_t rows)
{
    for (int32_t slot = 0; slot < SLOTS; slot++) insert(w, round, slot, first, rows);
    OK(draft(w, round, first + rows - 1, NULL, e));
}

static void chosen_rounds_are_whole_on_the_tape(void **state)
{
    (void)state;
    world w = open_world("1,3", false);
    for (int32_t r = 0; r < 5; r++) rows_then_draft(&w, r, 3 * r, 3);
    assert_int_equal(number(&w, "checked"), 2);
    assert_int_equal(number(&w, "mismatches"), 0);
    assert_int_equal(number(&w, "dropped"), 0);
    w.hooks.finish(w.hooks.ctx);
    fmt_tape *t = last_tape();
    const int32_t *rounds;
    assert_int_equal(fmt_tape_rounds(t, &rounds), 2);
    assert_int_equal(rounds[0], 1);
    assert_int_equal(rounds[1], 3);
    static const char *const NAMES[] = { "taps", "pos", "main_x", "s0.main_kv", "s1.window" };
    for (size_t i = 0; i < COUNT_OF(NAMES); i++)
        assert_true(fmt_tape_find(t, &(fmt_tape_key){ 3, 101, 0, NAMES[i] }) >= 0);
    assert_true(fmt_tape_find(t, &(fmt_tape_key){ 3, FMT_TAPE_NO_SLOT, 0, "s2.attn_out" }) >= 0);
    fmt_tape_close(t);
    close_world(&w);
}

static void a_difference_is_found_and_named(void **state)
{
    (void)state;
    world w = open_world("all", false);
    rows_then_draft(&w, 0, 0, 4);
    for (int32_t slot = 0; slot < SLOTS; slot++) insert(&w, 1, slot, 4, 2);
    OK(draft(&w, 1, 5, flip_window, e));
    assert_true(number(&w, "mismatches") >= 1);
    assert_int_equal(number(&w, "events_lost"), 0);
    json_t *j = w.hooks.status(w.hooks.ctx);
    const char *first = json_string_value(json_object_get(j, "first_mismatch"));
    assert_non_null(strstr(first, "round 1: draft"));
    assert_non_null(strstr(first, "s1."));
    json_decref(j);
    w.hooks.finish(w.hooks.ctx);
    fmt_tape *t = last_tape();
    int32_t round;
    assert_true(fmt_tape_event_count(t) >= 1);
    assert_string_equal(json_string_value(json_object_get(fmt_tape_event_at(t, 0, &round), "event")), "mismatch");
    assert_int_equal(round, 1);
    fmt_tape_close(t);
    close_world(&w);
}

static void with_poison_a_difference_is_an_error(void **state)
{
    (void)state;
    world w = open_world("all", true);
    err e = { 0 };
    assert_true(w.hooks.hold_replies);
    for (int32_t slot = 0; slot < SLOTS; slot++) insert(&w, 0, slot, 0, 4);
    assert_int_not_equal(draft(&w, 0, 3, flip_window, &e), ERR_OK);
    assert_non_null(strstr(e.msg, "differ"));
    close_world(&w);
}

static void a_released_request_leaves_nothing(void **state)
{
    (void)state;
    world w = open_world("all", false);
    insert(&w, 0, 0, 0, 4);
    w.hooks.released(w.hooks.ctx, 100, 0);
    eng_release(w.g, 0);
    rows_then_draft(&w, 0, 0, 2);
    w.hooks.finish(w.hooks.ctx);
    fmt_tape *t = last_tape();
    fmt_tape_record r;
    fmt_tape_at(t, (size_t)fmt_tape_find(t, &(fmt_tape_key){ 0, 100, 0, "pos" }), &r);
    assert_int_equal(r.tensor.shape[0], 2);
    fmt_tape_close(t);
    close_world(&w);
}

/* More inserts than there are shots: the round cannot be whole, and is not pretended to be. */
static void a_round_without_room_is_counted(void **state)
{
    (void)state;
    world w = open_world("all", false);
    for (int32_t p = 0; p < 30; p++) insert(&w, 0, 0, p, 1);
    insert(&w, 0, 1, 0, 30);
    OK(draft(&w, 0, 29, NULL, e));
    assert_int_equal(number(&w, "dropped"), 1);
    rows_then_draft(&w, 1, 30, 1);
    assert_int_equal(number(&w, "checked"), 1);
    close_world(&w);
}

static void a_folder_that_is_none_is_refused(void **state)
{
    (void)state;
    srv_dumper *d;
    err e = { 0 };
    srv_dumper_setup s = { .dir = "nowhere" };
    assert_int_equal(srv_dumper_open(&s, &d, &e), ERR_INPUT);
    assert_non_null(strstr(e.msg, "nowhere"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chosen_rounds_are_whole_on_the_tape),
        cmocka_unit_test(a_difference_is_found_and_named),
        cmocka_unit_test(with_poison_a_difference_is_an_error),
        cmocka_unit_test(a_released_request_leaves_nothing),
        cmocka_unit_test(a_round_without_room_is_counted),
        cmocka_unit_test(a_folder_that_is_none_is_refused),
    };
    return cmocka_run_group_tests(tests, help_make_model, help_drop_model);
}
