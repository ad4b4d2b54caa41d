/* Shots on the CPU: the bits that the taps show, for every mode, rank count and length; digests, top rows and windows of
 * them; a pool that runs out, steps that fail, steps that are traced, and windows put back. */
#include "engine/shots.h"

#include "base/mem.h"
#include "engine/shots_fill.h"
#include "engine/synth.h"
#include "tests/engine/shot_check.h"
#include "tests/support/alloc_guard.h"

#include <unistd.h>

enum { SLOTS = 4, ROWS_MAX = 300 };

static eng_weights *weights;
static eng_config config;
static bf16 *taps; /* [ROWS_MAX, n_taps * dim] */
static int32_t positions[ROWS_MAX];

static int make_model(void **state)
{
    (void)state;
    err e = { 0 };
    eng_synth_report report;
    char folder[] = "model-XXXXXX";
    assert_non_null(mkdtemp(folder));
    assert_true(eng_config_preset("tiny", &config));
    setenv("XDG_CACHE_HOME", folder, 1);
    if (eng_synth_checkpoint(folder, &config, 7, true, &report, &e) != ERR_OK) fail_msg("%s", e.msg);
    if (eng_weights_open(folder, true, &weights, &e) != ERR_OK) fail_msg("%s", e.msg);
    size_t n = (size_t)ROWS_MAX * (size_t)config.n_taps * (size_t)config.dim;
    taps = mem_alloc(n, sizeof *taps);
    assert_non_null(taps);
    uint32_t seed = 4711;
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        taps[i] = bf16_from_f32(((float)(seed >> 8) / 8388608.0f - 1) * 40.0f);
    }
    for (int32_t i = 0; i < ROWS_MAX; i++) positions[i] = i;
    return 0;
}

static int drop_model(void **state)
{
    (void)state;
    eng_weights_close(weights);
    free(taps);
    return 0;
}

static eng_engine *open_engine(eng_mode mode, int32_t tp, eng_level retain)
{
    eng_option_words words = { .mode = eng_mode_name(mode), .tp = tp };
    eng_options o;
    eng_engine *g;
    err e = { 0 };
    shown_ok(eng_options_parse(&words, 0, &o, &e), &e);
    shown_ok(eng_open(weights, &o, SLOTS, retain, true, &g, &e), &e);
    return g;
}

/* ---- steps ---- */

static void insert(eng_engine *g, int32_t slot, int32_t first, int32_t n, const eng_tap *tap)
{
    err e = { 0 };
    int64_t width = (int64_t)config.n_taps * config.dim;
    shown_ok(eng_insert(g, slot, taps + first * width, positions + first, n, tap, &e), &e);
}

typedef struct outcome { int32_t drafts[SLOTS * ENG_BLOCK_MAX]; float confidence[SLOTS * ENG_BLOCK_MAX]; } outcome;

static outcome draft(eng_engine *g, int32_t batch, const int32_t *slots, int32_t n_out, const eng_tap *tap)
{
    outcome o = { 0 };
    err e = { 0 };
    int32_t anchors[SLOTS], pos[SLOTS];
    for (int32_t b = 0; b < batch; b++) {
        anchors[b] = 17 * (slots[b] % 2 + 1);
        pos[b] = eng_slot_last(g, slots[b]);
    }
    shown_ok(eng_draft(g, batch, slots, anchors, pos, n_out, o.drafts, o.confidence, tap, &e), &e);
    return o;
}

static const int32_t ALL[SLOTS] = { 3, 0, 2, 1 };

static void fill(eng_engine *g)
{
    insert(g, 0, 0, 2, NULL);
    insert(g, 1, 0, 127, NULL);
    insert(g, 2, 0, 128, NULL);
    insert(g, 3, 0, 300, NULL);
}

/* ---- the tests ---- */

static void shots_hold_what_taps_show(void **state)
{
    (void)state;
    for (int mode = 0; mode < 2; mode++)
        for (int32_t tp = 1; tp <= 2; tp++) {
            eng_engine *g = open_engine((eng_mode)mode, tp, ENG_LEVEL_DEEP);
            eng_shots *pool = shots_of_all(g, ENG_KEEP_TENSOR | ENG_KEEP_DIGEST | ENG_KEEP_TOP, 1, ROWS_MAX);
            fill(g);
            for (int32_t batch = 1; batch <= SLOTS; batch++)
                for (int32_t n_out = 4; n_out <= config.block; n_out++) {
                    shown s = { 0 };
                    eng_tap tap = { shown_look, &s, shot_take(pool), false };
                    draft(g, batch, ALL, n_out, &tap);
                    shot_landed(tap.shot);
                    assert_int_equal(eng_shot_extents(tap.shot)->n[ENG_DIM_B], batch);
                    assert_int_equal(eng_shot_extents(tap.shot)->n[ENG_DIM_N_OUT], n_out);
                    shot_has_shown(g, tap.shot, &s);
                    shot_digests_shown(g, tap.shot, &s);
                    shot_top_of_shown(g, tap.shot, &s);
                    shot_has_windows(g, tap.shot, ENG_KEEP_TENSOR | ENG_KEEP_DIGEST, batch, ALL);
                    eng_shot_free(tap.shot);
                    shown_forget(&s);
                }
            eng_shots_close(pool);
            eng_close(g);
        }
}

static void inserts_of_any_length_are_joined(void **state)
{
    (void)state;
    static const int32_t lengths[] = { 1, 7, 127, 128, 129, 256, 300 };
    for (int mode = 0; mode < 2; mode++)
        for (int32_t tp = 1; tp <= 2; tp++) {
            eng_engine *g = open_engine((eng_mode)mode, tp, ENG_LEVEL_DEEP);
            eng_shots *pool = shots_of_all(g, ENG_KEEP_TENSOR | ENG_KEEP_DIGEST, 1, ROWS_MAX);
            for (size_t i = 0; i < COUNT_OF(lengths); i++) {
                shown s = { 0 };
                eng_tap tap = { shown_look, &s, shot_take(pool), false };
                insert(g, 0, 0, lengths[i], &tap);
                shot_landed(tap.shot);
                assert_int_equal(eng_shot_step(tap.shot), ENG_STEP_INSERT);
                assert_int_equal(eng_shot_extents(tap.shot)->n[ENG_DIM_ROWS], lengths[i]);
                shot_has_shown(g, tap.shot, &s);
                shot_digests_shown(g, tap.shot, &s);
                eng_shot_free(tap.shot);
                eng_release(g, 0);
                shown_forget(&s);
            }
            eng_shots_close(pool);
            eng_close(g);
        }
}

static void the_comparison_sees_one_bit(void **state)
{
    (void)state;
    eng_engine *g = open_engine(ENG_MODE_EAGER, 1, ENG_LEVEL_DEEP);
    eng_shots *pool = shots_of_all(g, ENG_KEEP_TENSOR, 1, ROWS_MAX);
    shown s = { 0 };
    eng_tap tap = { shown_look, &s, shot_take(pool), false };
    fill(g);
    draft(g, 1, ALL, 5, &tap);
    shot_landed(tap.shot);
    int32_t v = eng_program_find_value(eng_program_of(g, ENG_STEP_DRAFT), "s0.attn.q");
    fmt_tensor t;
    eng_shot_tensor(tap.shot, 0, v, 0, &t);
    assert_true(shown_equal(&t, &s.t[0][v]));
    s.data[0][v][fmt_tensor_bytes(&t) - 1] ^= 1;
    assert_false(shown_equal(&t, &s.t[0][v]));
    eng_shot_free(tap.shot);
    shown_forget(&s);
    eng_shots_close(pool);
    eng_close(g);
}

/* The drafts do not depend on who looks, and the shot of one step outlives the next ones. */
static void a_shot_is_not_touched_by_later_steps(void **state)
{
    (void)state;
    for (int mode = 0; mode < 2; mode++) {
        eng_engine *g = open_engine((eng_mode)mode, 2, ENG_LEVEL_DEEP);
        eng_shots *pool = shots_of_all(g, ENG_KEEP_TENSOR, 2, ROWS_MAX);
        shown s = { 0 };
        fill(g);
        outcome plain = draft(g, 2, ALL, 5, NULL);
        eng_tap tap = { shown_look, &s, shot_take(pool), false }, other = { .shot = shot_take(pool) }, nothing = { 0 };
        outcome kept = draft(g, 2, ALL, 5, &tap);
        assert_memory_equal(&plain, &kept, sizeof plain);
        outcome b = draft(g, 2, ALL + 2, 5, &other), c = draft(g, 2, ALL + 2, 5, &nothing);
        assert_memory_equal(&b, &c, sizeof b);
        insert(g, 0, 2, 40, NULL);
        shot_landed(tap.shot);
        shot_has_shown(g, tap.shot, &s);
        eng_shot_free(tap.shot);
        eng_shot_free(other.shot);
        eng_shot_cost cost = eng_shots_cost(pool);
        assert_true(cost.n_shots == 2 && cost.bytes > 0 && cost.host_ns > 0 && cost.device_ns == 0);
        shown_forget(&s);
        eng_shots_close(pool);
        eng_close(g);
    }
}

static void an_insert_from_main_x_does_not_have_it(void **state)
{
    (void)state;
    err e = { 0 };
    eng_engine *g = open_engine(ENG_MODE_GRAPH, 1, ENG_LEVEL_DEEP);
    eng_shots *pool = shots_of_all(g, ENG_KEEP_TENSOR, 2, ROWS_MAX);
    eng_tap whole = { .shot = shot_take(pool) }, part = { .shot = shot_take(pool) };
    const eng_program *p = eng_program_of(g, ENG_STEP_INSERT);
    int32_t main_x = eng_program_find_value(p, "main_x"), kv = eng_program_find_value(p, "s1.main_kv");
    fmt_tensor x, a, b;
    insert(g, 0, 0, 200, &whole);
    shot_landed(whole.shot);
    eng_shot_tensor(whole.shot, 0, main_x, 0, &x);
    shown_ok(eng_insert_main_x(g, 1, x.data, positions, 200, &part, &e), &e);
    shot_landed(part.shot);
    assert_true(eng_shot_has(whole.shot, main_x) && eng_shot_has(whole.shot, kv));
    assert_true(!eng_shot_has(part.shot, main_x) && eng_shot_has(part.shot, kv));
    assert_false(eng_shot_has(part.shot, eng_program_find_value(p, "taps")));
    eng_shot_tensor(whole.shot, 0, kv, 0, &a);
    eng_shot_tensor(part.shot, 0, kv, 0, &b);
    assert_true(shown_equal(&a, &b));
    eng_shot_free(whole.shot);
    eng_shot_free(part.shot);
    eng_shots_close(pool);
    eng_close(g);
}

static void a_pool_gives_what_it_has_and_no_more(void **state)
{
    (void)state;
    err e = { 0 };
    eng_engine *g = open_engine(ENG_MODE_EAGER, 1, ENG_LEVEL_DEEP);
    eng_shots *pool = shots_of_all(g, ENG_KEEP_TENSOR, 3, ROWS_MAX), *small;
    eng_shot *shot[3] = { shot_take(pool), shot_take(pool), shot_take(pool) };
    assert_int_equal(eng_shots_depth(pool), 3);
    assert_null(eng_shots_take(pool));
    eng_shot_free(shot[1]);
    assert_ptr_equal(eng_shots_take(pool), shot[1]);
    assert_null(eng_shots_take(pool));
    for (int i = 0; i < 3; i++) eng_shot_free(shot[i]);
    uint8_t keep[2][SHOWN_VALUES_MAX] = { { 0 } };
    const uint8_t *const choice[2] = { keep[0], keep[1] };
    keep[1][eng_program_find_value(eng_program_of(g, ENG_STEP_DRAFT), "head.logits")] = ENG_KEEP_TENSOR;
    uint64_t each = eng_shots_bytes(pool) / 3;
    eng_shots_close(pool);
    shown_ok(eng_shots_open(g, choice, 1000, 1, 1, &small, &e), &e);
    assert_int_equal(eng_shots_depth(small), 1); /* at least one, whatever it takes */
    uint64_t one = eng_shots_bytes(small);
    assert_true(one < each);
    eng_shots_close(small);
    shown_ok(eng_shots_open(g, choice, 1000, 5 * one + 1, 1, &small, &e), &e);
    assert_int_equal(eng_shots_depth(small), 5);
    eng_shots_close(small);
    eng_close(g);
}

static void a_failed_step_leaves_a_shot_that_can_be_freed(void **state)
{
    (void)state;
    err e = { 0 };
    eng_engine *g = open_engine(ENG_MODE_EAGER, 1, ENG_LEVEL_DEEP);
    uint8_t keep[2][SHOWN_VALUES_MAX] = { { 0 } };
    eng_shots *pool;
    int32_t v = eng_program_find_value(eng_program_of(g, ENG_STEP_INSERT), "main_x");
    keep[0][v] = ENG_KEEP_TENSOR;
    shown_ok(eng_shots_open(g, (const uint8_t *const[]){ keep[0], keep[1] }, 1, 0, 20, &pool, &e), &e);
    eng_tap tap = { .shot = shot_take(pool) };
    assert_int_equal(eng_insert(g, 0, taps, positions, 21, &tap, &e), ERR_ARG); /* longer than it has room for */
    assert_int_equal(eng_slot_last(g, 0), -1);
    assert_int_equal(eng_shot_wait(tap.shot, &e), ERR_DEVICE);
    assert_int_equal(eng_insert(g, SLOTS, taps, positions, 5, &tap, &e), ERR_INPUT);
    eng_shot_free(tap.shot);
    tap.shot = shot_take(pool);
    shown_ok(eng_shot_begin(tap.shot, g, 0, 5, NULL, &e), &e); /* a step that breaks off in its middle */
    eng_shot_end(tap.shot, false);
    assert_int_equal(eng_shot_wait(tap.shot, &e), ERR_DEVICE);
    assert_false(eng_shot_has(tap.shot, v));
    eng_shot_free(tap.shot);
    tap.shot = shot_take(pool);
    insert(g, 0, 0, 20, &tap);
    shot_landed(tap.shot);
    assert_true(eng_shot_has(tap.shot, v));
    eng_shot_free(tap.shot);
    eng_shots_close(pool);
    eng_close(g);
}

static void what_cannot_be_kept_is_refused(void **state)
{
    (void)state;
    static const struct { eng_step_kind step; const char *value; uint8_t keep; bool fine; } CASES[] = {
        { ENG_STEP_DRAFT, "s0.out", ENG_KEEP_TENSOR | ENG_KEEP_DIGEST, true },
        { ENG_STEP_DRAFT, "head.logits", ENG_KEEP_TOP, true },
        { ENG_STEP_DRAFT, "s2.window", ENG_KEEP_DIGEST, true },
        { ENG_STEP_DRAFT, "s0.out", ENG_KEEP_TOP, false },           /* no vocabulary */
        { ENG_STEP_DRAFT, "s0.out", 8, false },
        { ENG_STEP_DRAFT, "s2.window", ENG_KEEP_TOP, false },
        { ENG_STEP_INSERT, "s2.window", ENG_KEEP_TENSOR, false },    /* the draft's are the ones */
        { ENG_STEP_DRAFT, "draft.pos", ENG_KEEP_TENSOR, false },     /* an input */
        { ENG_STEP_INSERT, "taps", ENG_KEEP_TENSOR, false },
        { ENG_STEP_DRAFT, "s0.attn.wq_a~", ENG_KEEP_TENSOR, false }, /* hidden */
        { ENG_STEP_DRAFT, "s0.attn.q", ENG_KEEP_TENSOR, false },     /* not retained */
    };
    eng_engine *g = open_engine(ENG_MODE_GRAPH, 1, ENG_LEVEL_V1);
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        uint8_t keep[2][SHOWN_VALUES_MAX] = { { 0 } };
        err e = { 0 };
        eng_shots *pool;
        int32_t v = eng_program_find_value(eng_program_of(g, CASES[i].step), CASES[i].value);
        assert_true(v >= 0);
        keep[CASES[i].step][v] = CASES[i].keep;
        err_code rc = eng_shots_open(g, (const uint8_t *const[]){ keep[0], keep[1] }, 1, 0, 1, &pool, &e);
        assert_int_equal(rc, CASES[i].fine ? ERR_OK : ERR_ARG);
        if (!CASES[i].fine) assert_non_null(strstr(e.msg, CASES[i].value));
        eng_shots_close(pool);
    }
    eng_close(g);
}

/* A planned engine that retains little runs one step eagerly: every value is shown, with the bits of an eager engine. */
static void a_traced_step_shows_everything(void **state)
{
    (void)state;
    for (int32_t tp = 1; tp <= 2; tp++) {
        eng_engine *eager = open_engine(ENG_MODE_EAGER, tp, ENG_LEVEL_IO);
        eng_engine *planned = open_engine(ENG_MODE_GRAPH, tp, ENG_LEVEL_IO);
        shown x = { 0 }, y = { 0 }, z = { 0 };
        eng_tap at_x = { .tensor = shown_look, .ctx = &x }, at_y = { .tensor = shown_look, .ctx = &y, .traced = true };
        eng_tap at_z = { .tensor = shown_look, .ctx = &z };
        fill(eager);
        fill(planned);
        outcome a = draft(eager, 4, ALL, 5, &at_x), b = draft(planned, 4, ALL, 5, &at_y);
        outcome c = draft(planned, 4, ALL, 5, &at_z);
        assert_memory_equal(&a, &b, sizeof a);
        assert_memory_equal(&a, &c, sizeof a);
        assert_true(z.n > 0 && z.n < y.n);
        assert_int_equal(x.n, y.n);
        for (int32_t r = 0; r < tp; r++)
            for (int32_t v = 0; v < SHOWN_VALUES_MAX; v++) {
                assert_true((x.data[r][v] != NULL) == (y.data[r][v] != NULL));
                if (x.data[r][v]) assert_true(shown_equal(&x.t[r][v], &y.t[r][v]));
            }
        shown_forget(&x);
        shown_forget(&y);
        shown_forget(&z);
        eng_close(eager);
        eng_close(planned);
    }
}

/* Slots 2 and 0 draft with the same anchor: 2 is copied over 0. */
static void a_restored_slot_drafts_as_the_one_it_was_copied_from(void **state)
{
    (void)state;
    static const int32_t lasts[] = { 0, 5, 126, 127, 128, 200, 290 };
    for (int32_t tp = 1; tp <= 2; tp++)
        for (size_t i = 0; i < COUNT_OF(lasts); i++) {
            eng_engine *g = open_engine(ENG_MODE_GRAPH, tp, ENG_LEVEL_IO);
            const bf16 *window[ENG_STAGES_MAX];
            const int32_t from = 2, to = 0;
            err e = { 0 };
            insert(g, from, 0, lasts[i] + 1, NULL);
            insert(g, to, 0, 300, NULL); /* it must leave nothing behind */
            for (int32_t k = 0; k < config.n_stages; k++) {
                fmt_tensor t;
                shown_ok(eng_window(g, from, k, &t, &e), &e);
                window[k] = t.data;
            }
            shown_ok(eng_restore(g, to, lasts[i], window, &e), &e);
            assert_int_equal(eng_slot_last(g, to), lasts[i]);
            for (int more = 0; more < 2; more++) {
                outcome a = draft(g, 1, &from, 5, NULL), b = draft(g, 1, &to, 5, NULL);
                assert_memory_equal(&a, &b, sizeof a);
                insert(g, from, eng_slot_last(g, from) + 1, 4, NULL); /* and it goes on like it */
                insert(g, to, eng_slot_last(g, to) + 1, 4, NULL);
            }
            eng_close(g);
        }
}

static void wrong_windows_are_refused(void **state)
{
    (void)state;
    err e = { 0 };
    eng_engine *g = open_engine(ENG_MODE_EAGER, 1, ENG_LEVEL_IO);
    const bf16 *window[ENG_STAGES_MAX] = { taps, taps, taps };
    insert(g, 0, 0, 3, NULL);
    assert_int_equal(eng_restore(g, SLOTS, 3, window, &e), ERR_INPUT);
    assert_int_equal(eng_restore(g, -1, 3, window, &e), ERR_INPUT);
    assert_int_equal(eng_restore(g, 0, -1, window, &e), ERR_INPUT);
    assert_int_equal(eng_slot_last(g, 0), 2);
    eng_close(g);
}

static void keeping_a_step_allocates_nothing(void **state)
{
    (void)state;
    for (int mode = 0; mode < 2; mode++)
        for (int32_t tp = 1; tp <= 2; tp++) {
            eng_engine *g = open_engine((eng_mode)mode, tp, ENG_LEVEL_DEEP);
            eng_shots *pool = shots_of_all(g, ENG_KEEP_TENSOR | ENG_KEEP_DIGEST | ENG_KEEP_TOP, 2, ROWS_MAX);
            fill(g);
            int64_t hot = alloc_guard_hot_calls, other = alloc_guard_other_calls;
            eng_tap first = { .shot = eng_shots_take(pool) }, second = { .shot = eng_shots_take(pool) };
            insert(g, 0, 2, 200, &first);
            draft(g, 4, ALL, 5, &second);
            shot_landed(second.shot);
            const float *value;
            const int32_t *id;
            int64_t rows;
            eng_shot_top(second.shot, eng_program_find_value(eng_program_of(g, ENG_STEP_DRAFT), "head.biased"), &value, &id,
                         &rows);
            eng_shot_free(first.shot);
            eng_shot_free(second.shot);
            assert_int_equal(alloc_guard_hot_calls, hot);
            assert_int_equal(alloc_guard_other_calls, other);
            assert_true(other > 0); /* the guard is in place */
            eng_shots_close(pool);
            eng_close(g);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shots_hold_what_taps_show),
        cmocka_unit_test(inserts_of_any_length_are_joined),
        cmocka_unit_test(the_comparison_sees_one_bit),
        cmocka_unit_test(a_shot_is_not_touched_by_later_steps),
        cmocka_unit_test(an_insert_from_main_x_does_not_have_it),
        cmocka_unit_test(a_pool_gives_what_it_has_and_no_more),
        cmocka_unit_test(a_failed_step_leaves_a_shot_that_can_be_freed),
        cmocka_unit_test(what_cannot_be_kept_is_refused),
        cmocka_unit_test(a_traced_step_shows_everything),
        cmocka_unit_test(a_restored_slot_drafts_as_the_one_it_was_copied_from),
        cmocka_unit_test(wrong_windows_are_refused),
        cmocka_unit_test(keeping_a_step_allocates_nothing),
    };
    return cmocka_run_group_tests(tests, make_model, drop_model);
}
