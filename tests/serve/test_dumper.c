/* V1 dumps: the eager run on the spot agrees with the graph, and a difference is found, named, told and counted. */
#include <dirent.h>
#include <signal.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/resource.h>

#include <cmocka.h>

#include "serve/dumper.h"
#include "tests/serve/serve_help.h"

enum { SLOTS = 2, LONG_ROWS = 300 };

typedef struct world {
    eng_engine *g;
    srv_dumper *d;
    srv_dump hooks;
    json_t *identity;
} world;

static atomic_bool asked;

static world open_world_when(const char *rounds, bool poison, const cli_list *when, int32_t flight)
{
    world w = { .identity = json_object() };
    eng_option_words words = { .mode = "graph", .tp = 2 };
    eng_options o;
    srv_dumper_setup s = { .dir = ".", .rounds_text = rounds, .slots = SLOTS, .poison = poison, .identity = w.identity,
                           .rotate_bytes = 1 << 30, .positions = LONG_ROWS,
                           .when = when, .flight = flight, .asked = &asked };
    OK(eng_options_parse(&words, 2, &o, e));
    OK(eng_open(help_weights, &o, SLOTS + 1, ENG_LEVEL_V1, true, &w.g, e));
    OK(cap_round_list_parse(rounds, "--dump-rounds", &s.rounds, e));
    s.engine = w.g;
    OK(srv_dumper_open(&s, &w.d, e));
    srv_dumper_hooks(w.d, &w.hooks);
    return w;
}

static world open_world(const char *rounds, bool poison) { return open_world_when(rounds, poison, NULL, 0); }

static void close_world(world *w)
{
    OK(srv_dumper_close(w->d, e));
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

/* Rows 0 on, that need more than one bucket. */
static void insert_long(world *w, int64_t round, int32_t slot, int32_t rows)
{
    const eng_tap *tap = NULL;
    int32_t pos[LONG_ROWS + 1];
    bf16 *taps = mem_alloc((size_t)rows * help_width(), sizeof *taps);
    for (int32_t i = 0; i < rows; i++) pos[i] = i;
    srv_insert_step s = { round, 100 + slot, slot, rows, taps, pos };
    OK(w->hooks.insert_before(w->hooks.ctx, &s, &tap, e));
    OK(eng_insert(w->g, slot, s.taps, s.pos, rows, tap, e));
    OK(w->hooks.insert_after(w->hooks.ctx, &s, true, e));
    free(taps);
}

/* The two slots' draft at last; between spoils something, after the step and before its eager run. */
static err_code draft_of(world *w, int64_t round, int64_t request, int32_t last,
                         void (*between)(world *w, int32_t last), err *e)
{
    int32_t slots[SLOTS] = { 1, 0 }, anchors[SLOTS] = { 7, 8 }, pos[SLOTS] = { last, last };
    int32_t drafts[SLOTS * ENG_BLOCK_MAX];
    float confidence[SLOTS * ENG_BLOCK_MAX];
    const eng_tap *tap = NULL;
    srv_draft_step s = { .round = round, .request = { request + 1, request }, .batch = SLOTS, .n_out = help_config.block,
                         .slots = slots, .anchors = anchors, .pos = pos };
    TRY(w->hooks.draft_before(w->hooks.ctx, &s, &tap, e));
    TRY(eng_draft(w->g, SLOTS, slots, anchors, pos, s.n_out, drafts, confidence, tap, e));
    s.drafts = drafts;
    s.confidence = confidence;
    if (between) between(w, last);
    return w->hooks.draft_after(w->hooks.ctx, &s, true, e);
}

static err_code draft(world *w, int64_t round, int32_t last, void (*between)(world *w, int32_t last), err *e)
{
    return draft_of(w, round, 100, last, between, e);
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

/* With conditions, of which none holds: what is kept is the round that differs and what was asked for, and one before. */
static void a_difference_and_what_was_asked_for_pass_conditions(void **state)
{
    (void)state;
    cli_list when = { .item = { "nan" }, .count = 1 };
    world w = open_world_when("all", false, &when, 1);
    for (int32_t r = 0; r < 9; r++) {
        for (int32_t slot = 0; slot < SLOTS; slot++) insert(&w, r, slot, r, 1);
        if (r == 7) atomic_store(&asked, true);
        OK(draft(&w, r, r, r == 3 ? flip_window : NULL, e));
    }
    w.hooks.finish(w.hooks.ctx);
    assert_int_equal(number(&w, "judged"), 9);
    assert_true(number(&w, "mismatches") > 0);
    fmt_tape *t = last_tape();
    const int32_t *rounds;
    static const int32_t KEPT[] = { 2, 3, 6, 7 };
    assert_int_equal(fmt_tape_rounds(t, &rounds), COUNT_OF(KEPT));
    assert_memory_equal(rounds, KEPT, sizeof KEPT);
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

/* While another slot's part is held, so that the shots cannot be made anew. */
static void the_longest_insert_of_a_session_finds_room(void **state)
{
    (void)state;
    world w = open_world("all", false);
    assert_int_equal(number(&w, "insert_rows"), LONG_ROWS);
    insert_long(&w, 0, 0, LONG_ROWS);
    insert_long(&w, 0, 1, LONG_ROWS);
    OK(draft(&w, 0, LONG_ROWS - 1, NULL, e));
    assert_int_equal(number(&w, "checked"), 1);
    assert_int_equal(number(&w, "dropped"), 0);
    for (int32_t slot = 0; slot < SLOTS; slot++) w.hooks.released(w.hooks.ctx, 100 + slot, slot), eng_release(w.g, slot);
    insert_long(&w, 1, 0, LONG_ROWS + 1); /* no session allows it; where memory does not, it is the same */
    insert_long(&w, 1, 1, LONG_ROWS + 1);
    OK(draft(&w, 1, LONG_ROWS, NULL, e));
    assert_int_equal(number(&w, "dropped"), 1);
    w.hooks.finish(w.hooks.ctx);
    fmt_tape *t = last_tape();
    int32_t round;
    const char *why = json_string_value(json_object_get(fmt_tape_event_at(t, 0, &round), "why"));
    assert_int_equal(round, 1);
    assert_non_null(strstr(why, "longer than"));
    fmt_tape_close(t);
    close_world(&w);
}

/* Tapes number rounds and requests with 31 bits; the worker counts on. */
static void numbers_that_no_tape_has_are_lost_and_counted(void **state)
{
    (void)state;
    world w = open_world("all", false);
    rows_then_draft(&w, INT32_MAX, 0, 1);
    rows_then_draft(&w, (int64_t)INT32_MAX + 1, 1, 1);
    for (int32_t slot = 0; slot < SLOTS; slot++) insert(&w, 7, slot, 2, 1);
    OK(draft_of(&w, 7, INT32_MAX, 2, NULL, e)); /* the second request is one too many */
    assert_int_equal(number(&w, "checked"), 1);
    assert_int_equal(number(&w, "dropped"), 2);
    w.hooks.finish(w.hooks.ctx);
    fmt_tape *t = last_tape();
    const int32_t *rounds;
    assert_int_equal(fmt_tape_rounds(t, &rounds), 1);
    assert_int_equal(rounds[0], INT32_MAX);
    fmt_tape_close(t);
    close_world(&w);
}

static void the_counts_after_the_end_are_the_last_ones(void **state)
{
    (void)state;
    world w = open_world("all", false);
    for (int32_t r = 0; r < 5; r++) rows_then_draft(&w, r, r, 1);
    w.hooks.finish(w.hooks.ctx);
    assert_int_equal(number(&w, "rounds"), 5);
    assert_int_equal(number(&w, "tapes"), 1);
    close_world(&w);
}

/* The disk is full when the last tape gets its index. */
static void a_tape_that_cannot_be_closed_is_told(void **state)
{
    (void)state;
    world w = open_world("all", false);
    rows_then_draft(&w, 0, 0, 1);
    for (int i = 0; i < 10000 && number(&w, "rounds") < 1; i++) usleep(1000);
    struct rlimit before, full;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    full = (struct rlimit){ (rlim_t)number(&w, "bytes"), before.rlim_max };
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &full), 0);
    err e = { 0 };
    err_code rc = srv_dumper_close(w.d, &e);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(rc, ERR_IO);
    assert_non_null(strstr(e.msg, "1 rounds kept, 0 dropped"));
    eng_close(w.g);
    json_decref(w.identity);
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
        cmocka_unit_test(a_difference_and_what_was_asked_for_pass_conditions),
        cmocka_unit_test(with_poison_a_difference_is_an_error),
        cmocka_unit_test(a_released_request_leaves_nothing),
        cmocka_unit_test(a_round_without_room_is_counted),
        cmocka_unit_test(the_longest_insert_of_a_session_finds_room),
        cmocka_unit_test(numbers_that_no_tape_has_are_lost_and_counted),
        cmocka_unit_test(the_counts_after_the_end_are_the_last_ones),
        cmocka_unit_test(a_tape_that_cannot_be_closed_is_told),
        cmocka_unit_test(a_folder_that_is_none_is_refused),
    };
    return cmocka_run_group_tests(tests, help_make_model, help_drop_model);
}
