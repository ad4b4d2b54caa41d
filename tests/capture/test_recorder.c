#include "recorder_help.h"

#include "capture/joined.h"
#include "capture/rounds.h"
#include "kernels/digest.h"
#include "kernels/top_rows.h"

/* Records the script; the tape is opened. */
static fmt_tape *record(const char *path, int tp, const char *mode, eng_level level, const cli_list *taps)
{
    const cap_options o = { .level = level, .taps = taps };
    return record_script(path, tp, mode, &o);
}

static bool has(const fmt_tape *t, int32_t round, int32_t slot, int32_t rank, const char *name)
{
    return fmt_tape_find(t, &(fmt_tape_key){ round, slot, rank, name }) >= 0;
}

static void deep_holds_every_value_of_every_rank_and_the_script(void **state)
{
    (void)state;
    for (int tp = 1; tp <= 2; tp++) {
        fmt_tape *t = record("deep.tape", tp, "eager", ENG_LEVEL_DEEP, NULL);
        cap_rounds *rounds; /* which also proves that the script is in there */
        OK(cap_rounds_open(t, &CONFIG, &rounds, e));
        assert_int_equal(cap_rounds_count(rounds), 4);
        for (int32_t i = 0; i < cap_rounds_count(rounds); i++) {
            eng_round at;
            const bf16 *const *main_x;
            OK(cap_rounds_at(rounds, i, &at, &main_x, e));
            for (int step = 0; step < 2; step++) {
                eng_program *p;
                OK(eng_program_make(&CONFIG, (eng_step_kind)step, tp, ENG_COMBINE_EXACT, NULL, &p, e));
                int32_t n_slots = step == ENG_STEP_INSERT ? at.n_inserts : at.batch ? 1 : 0;
                for (int32_t v = 0; v < p->n_values; v++)
                    for (int32_t k = 0; k < n_slots; k++) {
                        const eng_value *value = &p->value[v];
                        bool input = value->producer < 0;
                        if (value->level == ENG_LEVEL_HIDDEN || value->state) continue;
                        int32_t slot = step == ENG_STEP_INSERT ? at.inserts[k].slot : FMT_TAPE_NO_SLOT;
                        for (int32_t rank = 0; rank < (input ? 1 : tp); rank++)
                            if (!has(t, at.round, slot, rank, value->name))
                                fail_msg("round %d slot %d rank %d: no %s", at.round, slot, rank, value->name);
                    }
                eng_program_free(p);
            }
            for (int32_t b = 0; b < at.batch; b++)
                assert_true(has(t, at.round, at.slots[b], 0, "s0.window") && has(t, at.round, at.slots[b], 0, "s1.window"));
        }
        const json_t *taps = json_object_get(fmt_tape_summary(t), "taps");
        assert_int_equal(json_array_size(json_object_get(taps, "never")), 0);
        assert_int_equal(json_integer_value(json_object_get(taps, "armed")),
                         json_integer_value(json_object_get(taps, "fired")));
        cap_rounds_close(rounds);
        fmt_tape_close(t);
    }
}

/* Rows of all inserts so far, put in ring order by hand, are the recorded windows: buckets were put together right, and
 * windows are those after the round's inserts. */
static void recorded_rows_make_the_recorded_windows(void **state)
{
    enum { SLOTS = 4 };
    static bf16 ring[SLOTS][2][64 * 32];
    (void)state;
    fmt_tape *t = record("rows.tape", 2, "eager", ENG_LEVEL_V1, NULL);
    cap_rounds *rounds;
    OK(cap_rounds_open(t, &CONFIG, &rounds, e));
    cap_value v = { 0 };
    int32_t longest = 0, n_windows = 0;
    for (int32_t i = 0; i < cap_rounds_count(rounds); i++) {
        eng_round at;
        const bf16 *const *main_x;
        OK(cap_rounds_at(rounds, i, &at, &main_x, e));
        for (int32_t k = 0; k < 2; k++) {
            char name[32];
            snprintf(name, sizeof name, "s%d.main_kv", k);
            for (int32_t j = 0; j < at.n_inserts; j++) {
                const eng_insert_event *in = &at.inserts[j];
                OK(cap_joined_get(t, &(fmt_tape_key){ at.round, in->slot, 0, name }, &v, e));
                assert_int_equal(v.tensor.shape[0], in->rows);
                assert_int_equal(v.ranks_differ, 0);
                if (in->rows > longest) longest = in->rows;
                for (int32_t row = 0; row < in->rows; row++)
                    memcpy(&ring[in->slot][k][in->pos[row] % 64 * 32], (const bf16 *)v.tensor.data + row * 32,
                           32 * sizeof(bf16));
            }
            snprintf(name, sizeof name, "s%d.window", k);
            for (int32_t b = 0; b < at.batch; b++) {
                OK(cap_joined_get(t, &(fmt_tape_key){ at.round, at.slots[b], 0, name }, &v, e));
                assert_int_equal(v.tensor.shape[0], at.pos[b] + 1 < 64 ? at.pos[b] + 1 : 64);
                assert_memory_equal(v.tensor.data, ring[at.slots[b]][k], fmt_tensor_bytes(&v.tensor));
                n_windows++;
            }
        }
    }
    assert_true(longest > ENG_INSERT_ROWS_MAX);
    assert_true(n_windows > 4);
    cap_value_fini(&v);
    cap_rounds_close(rounds);
    fmt_tape_close(t);
}

/* Every value of a is in b with the same bits. */
static void assert_contained(const fmt_tape *a, const fmt_tape *b, const char *but)
{
    cap_names *names;
    cap_value v = { 0 }, u = { 0 };
    OK(cap_names_make(a, &names, e));
    for (size_t i = 0; i < cap_names_count(names); i++) {
        const cap_name *n = cap_names_at(names, i);
        const fmt_tape_key key = { n->round, n->slot, 0, n->name };
        if (but && cli_match(but, n->name)) continue;
        OK(cap_joined_get(a, &key, &v, e));
        OK(cap_joined_get(b, &key, &u, e));
        assert_int_equal(fmt_tensor_bytes(&v.tensor), fmt_tensor_bytes(&u.tensor));
        assert_memory_equal(v.tensor.data, u.tensor.data, fmt_tensor_bytes(&v.tensor));
    }
    cap_value_fini(&v);
    cap_value_fini(&u);
    cap_names_free(names);
}

static void graph_records_what_eager_does(void **state)
{
    static const eng_level LEVELS[] = { ENG_LEVEL_IO, ENG_LEVEL_V1, ENG_LEVEL_DEEP };
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        fmt_tape *a = record("eager.tape", 2, "eager", LEVELS[i], NULL);
        fmt_tape *b = record("graph.tape", 2, "graph", LEVELS[i], NULL);
        assert_int_equal(fmt_tape_count(a), fmt_tape_count(b));
        assert_contained(a, b, NULL);
        fmt_tape_close(a);
        fmt_tape_close(b);
    }
}

static void levels_contain_each_other(void **state)
{
    (void)state;
    fmt_tape *io = record("io.tape", 2, "eager", ENG_LEVEL_IO, NULL);
    fmt_tape *v1 = record("v1.tape", 2, "eager", ENG_LEVEL_V1, NULL);
    fmt_tape *deep = record("deep.tape", 2, "eager", ENG_LEVEL_DEEP, NULL);
    assert_contained(io, v1, NULL);
    assert_contained(v1, deep, "*.top,*.top_ids");
    assert_true(fmt_tape_count(io) < fmt_tape_count(v1) && fmt_tape_count(v1) < fmt_tape_count(deep));
    assert_false(has(io, 0, FMT_TAPE_NO_SLOT, 0, "s0.attn_out"));
    assert_false(has(v1, 0, FMT_TAPE_NO_SLOT, 0, "head.logits"));
    assert_false(has(v1, 0, FMT_TAPE_NO_SLOT, 0, "s0.attn.q"));
    /* The v1 top entries are those of the whole logits, both shards together. */
    cap_value top = { 0 }, ids = { 0 }, whole = { 0 };
    static const char *const NAMES[] = { "head.logits", "head.biased" };
    for (int i = 0; i < 2; i++) {
        char name[64];
        const fmt_tape_key key = { 0, FMT_TAPE_NO_SLOT, 0, name };
        snprintf(name, sizeof name, "%s.top", NAMES[i]);
        OK(cap_joined_get(v1, &key, &top, e));
        snprintf(name, sizeof name, "%s.top_ids", NAMES[i]);
        OK(cap_joined_get(v1, &key, &ids, e));
        snprintf(name, sizeof name, "%s", NAMES[i]);
        OK(cap_joined_get(deep, &key, &whole, e));
        int32_t last = whole.tensor.ndim - 1;
        int64_t cols = whole.tensor.shape[last], rows = fmt_tensor_elems(&whole.tensor) / cols;
        assert_int_equal(cols, CONFIG.vocab);
        assert_int_equal(top.tensor.shape[last], KRN_TOP_ROWS);
        assert_int_equal(fmt_tensor_elems(&top.tensor), rows * KRN_TOP_ROWS);
        for (int64_t r = 0; r < rows * KRN_TOP_ROWS; r++) {
            int32_t id = ((const int32_t *)ids.tensor.data)[r];
            const float *row = (const float *)whole.tensor.data + r / KRN_TOP_ROWS * cols;
            const float *v = (const float *)top.tensor.data + r;
            assert_true(row[id] == *v && (r % KRN_TOP_ROWS == 0 || v[-1] >= v[0]));
        }
    }
    cap_value_fini(&top);
    cap_value_fini(&ids);
    cap_value_fini(&whole);
    fmt_tape_close(io);
    fmt_tape_close(v1);
    fmt_tape_close(deep);
}

static uint64_t digest_of(const fmt_tape *t, size_t i)
{
    cap_value v = { 0 };
    fmt_stats stats;
    uint64_t digest;
    OK(cap_record_get(t, i, &v, e));
    krn_digest_ref(&v.tensor, NULL, &digest, &stats);
    cap_value_fini(&v);
    return digest;
}

static void tap_items_change_what_is_kept(void **state)
{
    const cli_list taps = { 7, { "*=off", "s0.attn.*=hash", "s0.attn.q=tensor", "s1.out=stats", "s0.window=hash",
                                 "head.logits.top=hash", "head.biased.top=stats" } };
    (void)state;
    fmt_tape *v1 = record("v1.tape", 2, "eager", ENG_LEVEL_V1, NULL);
    fmt_tape *deep = record("deep.tape", 2, "eager", ENG_LEVEL_DEEP, NULL);
    fmt_tape *t = record("taps.tape", 2, "graph", ENG_LEVEL_IO, &taps);
    fmt_tape_record a, b;
    assert_true(has(t, 0, FMT_TAPE_NO_SLOT, 0, "draft.slots")); /* inputs stay */
    assert_false(has(t, 0, FMT_TAPE_NO_SLOT, 0, "drafts"));
    assert_false(has(t, 0, FMT_TAPE_NO_SLOT, 0, "s1.attn.q"));
    static const struct { const char *name; fmt_tier tier; } CASES[] = {
        { "s0.attn.q", FMT_TIER_TENSOR }, { "s0.attn.kv", FMT_TIER_HASH }, { "s1.out", FMT_TIER_STATS },
        { "s0.window", FMT_TIER_HASH }, { "head.logits.top", FMT_TIER_HASH }, { "head.biased.top_ids", FMT_TIER_STATS },
    };
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        bool top = strstr(CASES[i].name, ".top"), window = strstr(CASES[i].name, "window");
        for (int32_t rank = 0; rank < (top || window ? 1 : 2); rank++) {
            const fmt_tape_key key = { 0, window ? 0 : FMT_TAPE_NO_SLOT, rank, CASES[i].name };
            const fmt_tape *from = top ? v1 : deep;
            int64_t ia = fmt_tape_find(t, &key), ib = fmt_tape_find(from, &key);
            assert_true(ia >= 0 && ib >= 0);
            fmt_tape_at(t, (size_t)ia, &a);
            fmt_tape_at(from, (size_t)ib, &b);
            assert_int_equal(a.tier, CASES[i].tier);
            assert_memory_equal(a.tensor.shape, b.tensor.shape, sizeof a.tensor.shape);
            assert_int_equal(a.has_digest, a.tier != FMT_TIER_TENSOR);
            if (a.has_digest ? a.digest != digest_of(from, (size_t)ib) : a.hash != b.hash)
                fail_msg("%s rank %d: another digest", key.name, rank);
        }
    }
    fmt_tape_close(v1);
    fmt_tape_close(deep);
    fmt_tape_close(t);
}

static void bad_tap_items_are_refused_and_leave_no_file(void **state)
{
    static const struct { const char *item, *text; } BAD[] = {
        { "s0.out", "PATTERN=TIER" }, { "=hash", "PATTERN=TIER" }, { "s0.out=all", "'all'" }, { "s9.out=hash", "no value" },
        { "*~=hash", "no value" },
    };
    const eng_options run = options_of(1, NULL);
    eng_engine *g;
    (void)state;
    OK(eng_open(weights, &run, 1, ENG_LEVEL_IO, true, &g, e));
    for (size_t i = 0; i < sizeof BAD / sizeof BAD[0]; i++) {
        const cli_list taps = { 1, { BAD[i].item } };
        const cap_options o = { .level = ENG_LEVEL_IO, .taps = &taps };
        cap_recorder *r;
        json_t *identity = json_object();
        REFUSED(cap_recorder_open(g, "bad.tape", identity, &o, &r, e), ERR_ARG, BAD[i].text);
        if (i < 3) REFUSED(cap_taps_check(&taps, e), ERR_ARG, BAD[i].text);
        assert_null(r);
        json_decref(identity);
    }
    assert_int_not_equal(access("bad.tape", F_OK), 0);
    assert_int_not_equal(access("bad.tape.part", F_OK), 0);
    eng_close(g);
}

/* Windows A: the recorded main_x goes in instead of the taps, and everything comes out again. */
static void captured_main_x_gives_the_same_windows(void **state)
{
    (void)state;
    fmt_tape *t = record("b.tape", 1, "eager", ENG_LEVEL_V1, NULL), *again;
    const eng_options run = options_of(1, NULL);
    const cap_options o = { .level = ENG_LEVEL_V1 };
    cap_rounds *rounds;
    eng_engine *g;
    cap_recorder *r;
    OK(cap_rounds_open(t, &CONFIG, &rounds, e));
    OK(eng_open(weights, &run, cap_rounds_slots(rounds), ENG_LEVEL_V1, true, &g, e));
    json_t *identity = json_object();
    OK(cap_recorder_open(g, "a.tape", identity, &o, &r, e));
    for (int32_t i = 0; i < cap_rounds_count(rounds); i++) {
        eng_round at;
        const bf16 *const *main_x;
        int32_t of_inserts[16], of_draft[16];
        OK(cap_rounds_at(rounds, i, &at, &main_x, e));
        for (int32_t k = 0; k < at.n_inserts; k++) of_inserts[k] = cap_rounds_dense(rounds, at.inserts[k].slot);
        for (int32_t k = 0; k < at.batch; k++) of_draft[k] = cap_rounds_dense(rounds, at.slots[k]);
        OK(cap_recorder_round(r, &at, of_inserts, of_draft, main_x, e));
    }
    OK(cap_recorder_finish(r, e));
    OK(fmt_tape_open("a.tape", &again, e));
    assert_int_equal(fmt_tape_count(t), fmt_tape_count(again));
    assert_contained(t, again, NULL);
    fmt_tape_close(again);
    fmt_tape_close(t);
    json_decref(identity);
    eng_close(g);
    cap_rounds_close(rounds);
}

static void taps_that_never_fire_are_named(void **state)
{
    const eng_options run = options_of(1, NULL);
    const cap_options o = { .level = ENG_LEVEL_IO };
    static bf16 taps[2 * 96];
    static const int32_t pos[] = { 0 };
    const eng_insert_event in = { 0, 1, taps, pos };
    const eng_round round = { .round = 0, .n_inserts = 1, .inserts = &in };
    eng_engine *g;
    cap_recorder *r;
    fmt_tape *t;
    (void)state;
    OK(eng_open(weights, &run, 1, ENG_LEVEL_IO, true, &g, e));
    json_t *identity = json_object();
    OK(cap_recorder_open(g, "never.tape", identity, &o, &r, e));
    OK(cap_recorder_round(r, &round, &(int32_t){ 0 }, NULL, NULL, e));
    REFUSED(cap_recorder_round(r, &round, &(int32_t){ 0 }, NULL, NULL, e), ERR_INPUT, "round 0 slot 0");
    OK(cap_recorder_finish(r, e));
    OK(fmt_tape_open("never.tape", &t, e));
    const json_t *never = json_object_get(json_object_get(fmt_tape_summary(t), "taps"), "never");
    assert_int_equal(json_array_size(never), 2);
    assert_string_equal(json_string_value(json_array_get(never, 0)), "drafts");
    fmt_tape_close(t);
    json_decref(identity);
    eng_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(deep_holds_every_value_of_every_rank_and_the_script),
        cmocka_unit_test(recorded_rows_make_the_recorded_windows), cmocka_unit_test(graph_records_what_eager_does),
        cmocka_unit_test(levels_contain_each_other), cmocka_unit_test(tap_items_change_what_is_kept),
        cmocka_unit_test(bad_tap_items_are_refused_and_leave_no_file),
        cmocka_unit_test(captured_main_x_gives_the_same_windows),
        cmocka_unit_test(taps_that_never_fire_are_named),
    };
    return cmocka_run_group_tests(tests, make_model, drop_model);
}
