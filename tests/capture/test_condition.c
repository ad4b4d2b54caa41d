/* Conditions: which rounds they keep, what the tape says of why, and what it says when they never held. */
#include "honest.h"

static bf16 OTHER[2 * 96] = { 0x3f80, 0x4040 };
static bf16 HUGE_ROW[2 * 96];

/* As short_round, from any row. */
static err_code round_of(const session *s, int32_t round, const bf16 *row, err *e)
{
    const eng_insert_event in = { 0, 1, row, &round };
    const eng_round at = { .round = round, .n_inserts = 1, .inserts = &in };
    return cap_recorder_round(s->recorder, &at, &(int32_t){ 0 }, NULL, NULL, e);
}

/* Eight short rounds, of which round `odd` (-1: none) inserts another row. */
static fmt_tape *record_odd(const char *path, const cap_options *o, int32_t odd, const bf16 *row)
{
    session s = begin(path, 1, "eager", o);
    for (int32_t i = 0; i < 8; i++) OK(round_of(&s, i, i == odd ? row : ROW, e));
    return finish(&s, path);
}

static const json_t *when_of(const fmt_tape *t) { return json_object_get(fmt_tape_summary(t), "when"); }

static json_int_t condition_number(const fmt_tape *t, size_t i, const char *key)
{
    return json_integer_value(json_object_get(json_array_get(json_object_get(when_of(t), "conditions"), i), key));
}

/* The one trigger of a round. */
static const json_t *trigger_of(const fmt_tape *t, int32_t round)
{
    const json_t *found = NULL;
    for (size_t i = 0; i < fmt_tape_event_count(t); i++) {
        int32_t at;
        const json_t *event = fmt_tape_event_at(t, i, &at);
        if (at != round || strcmp(json_string_value(json_object_get(event, "event")), "trigger") != 0) continue;
        assert_null(found);
        found = event;
    }
    if (!found) fail_msg("%s: no trigger in round %d", fmt_tape_path(t), round);
    return found;
}

static const char *text_in(const json_t *event, const char *key) { return json_string_value(json_object_get(event, key)); }
static json_int_t number_in(const json_t *event, const char *key)
{
    const json_t *n = json_object_get(event, key);
    if (!json_is_integer(n)) fail_msg("the event lacks %s", key);
    return json_integer_value(n);
}

/* ---- range ---- */

/* Largest element of a value of a round, over all ranks. */
static double largest(const fmt_tape *t, int32_t round, const char *name)
{
    size_t first, n;
    double most = -INFINITY;
    fmt_tape_round_span(t, round, &first, &n);
    for (size_t i = first; i < first + n; i++) {
        fmt_tape_record r;
        fmt_tape_at(t, i, &r);
        if (r.key.round == round && strcmp(r.key.name, name) == 0) most = fmax(most, r.stats.max);
    }
    return most;
}

static void a_range_keeps_exactly_the_rounds_outside_of_it(void **state)
{
    static const char *const NAMES[] = { "s0.attn_out", "s1.window", "main_x", "head.logits.top" };
    static const char *const TIERS[] = { "tensor", "stats", "hash" };
    (void)state;
    const cap_options plain = { .level = ENG_LEVEL_V1 };
    for (int tp = 1; tp <= 2; tp++) {
        fmt_tape *all = record_script("all.tape", tp, "eager", &plain);
        for (size_t k = 0; k < COUNT_OF(NAMES); k++) {
            double sum = 0;
            int32_t n_kept = 0, n_with = 0;
            for (int32_t r = 0; r < ROUNDS; r++)
                if (isfinite(largest(all, r, NAMES[k]))) {
                    sum += largest(all, r, NAMES[k]);
                    n_with++;
                }
            char item[96], tap[96];
            double hi = sum / n_with;
            snprintf(item, sizeof item, "range:-1e30..%.17g@%s", hi, NAMES[k]);
            snprintf(tap, sizeof tap, "%s=%s", NAMES[k], TIERS[k % 3]);
            const cli_list when = { 1, { item } }, taps = { 1, { tap } };
            const cap_options o = { .level = ENG_LEVEL_V1, .taps = &taps, .when = &when, .on_full = CAP_BLOCK };
            fmt_tape *t = record_script("range.tape", tp, k % 2 ? "eager" : "graph", &o);
            for (int32_t r = 0; r < ROUNDS; r++) {
                bool outside = largest(all, r, NAMES[k]) > hi;
                assert_int_equal(has_round(t, r), outside);
                n_kept += outside;
                if (!outside) continue;
                assert_string_equal(text_in(trigger_of(t, r), "when"), item);
                assert_string_equal(text_in(trigger_of(t, r), "value"), NAMES[k]);
                assert_int_equal(number_in(trigger_of(t, r), "before"), 0);
            }
            assert_true(n_kept > 0 && n_kept < n_with);
            assert_int_equal(condition_number(t, 0, "fired"), n_kept);
            assert_int_equal(json_integer_value(json_object_get(when_of(t), "judged")), ROUNDS);
            assert_honest(t);
            fmt_tape_close(t);
        }
        fmt_tape_close(all);
    }
}

/* ---- nan ---- */

/* The largest finite rows overflow in the first product. */
static void a_value_that_is_not_finite_is_seen_in_every_tier(void **state)
{
    static const cli_list TAPS[] = { { 1, { "*=tensor" } }, { 1, { "*=stats" } }, { 1, { "*=hash" } } };
    static const cli_list WHEN = { 1, { "nan" } };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(HUGE_ROW); i++) HUGE_ROW[i] = 0x7f7f;
    for (size_t k = 0; k < COUNT_OF(TAPS); k++) {
        const cap_options o = { .level = ENG_LEVEL_V1, .taps = &TAPS[k], .when = &WHEN };
        fmt_tape *t = record_odd("nan.tape", &o, 5, HUGE_ROW);
        for (int32_t r = 0; r < 8; r++) assert_int_equal(has_round(t, r), r == 5);
        const json_t *event = trigger_of(t, 5);
        assert_true(number_in(event, "nan") + number_in(event, "inf") > 0);
        assert_int_equal(number_in(event, "slot"), 0);
        assert_int_equal(condition_number(t, 0, "first"), 5);
        assert_honest(t);
        fmt_tape_close(t);
    }
}

/* ---- differs ---- */

/* Every way in which two tiers can be compared: hashes of bytes, digests, a digest made of a record's bytes. */
static void a_value_that_differs_from_the_reference_keeps_its_round(void **state)
{
    static const cli_list TIERS[] = { { 1, { "*=tensor" } }, { 1, { "*=hash" } } };
    static const cli_list WHEN = { 1, { "differs:ref.tape@s*.main_kv" } };
    (void)state;
    for (int a = 0; a < 2; a++)
        for (int b = 0; b < 2; b++) {
            const cap_options of_ref = { .level = ENG_LEVEL_V1, .taps = &TIERS[a] };
            const cap_options o = { .level = ENG_LEVEL_V1, .taps = &TIERS[b], .when = &WHEN };
            fmt_tape_close(record_odd("ref.tape", &of_ref, -1, NULL));
            fmt_tape *same = record_odd("same.tape", &o, -1, NULL), *t = record_odd("odd.tape", &o, 3, OTHER);
            const int32_t *rounds;
            assert_int_equal(fmt_tape_rounds(same, &rounds), 0);
            assert_int_equal(condition_number(same, 0, "looked"), 16); /* two stages, eight rounds */
            for (int32_t r = 0; r < 8; r++) assert_int_equal(has_round(t, r), r == 3);
            const json_t *event = trigger_of(t, 3);
            assert_string_equal(text_in(event, "value"), "s0.main_kv");
            assert_string_not_equal(text_in(event, "found"), text_in(event, "wanted"));
            fmt_tape_close(same);
            fmt_tape_close(t);
        }
}

static void what_the_reference_does_not_have_is_not_judged(void **state)
{
    static const cli_list OFF = { 1, { "*=off" } }, WHEN = { 1, { "differs:ref.tape" } };
    const cap_options of_ref = { .level = ENG_LEVEL_V1, .taps = &OFF }, o = { .level = ENG_LEVEL_V1, .when = &WHEN };
    (void)state;
    fmt_tape_close(record_odd("ref.tape", &of_ref, -1, NULL));
    fmt_tape *t = record_odd("odd.tape", &o, 3, OTHER);
    assert_int_equal(condition_number(t, 0, "looked"), 0);
    assert_int_equal(condition_number(t, 0, "fired"), 0);
    fmt_tape_close(t);
}

/* ---- acceptance ---- */

typedef struct draft_of_slot { int32_t round, pos, n_out; } draft_of_slot;

static void acceptance_is_judged_by_the_rows_that_follow_a_draft(void **state)
{
    static const cli_list WHEN = { 1, { "acceptance:0.5" } };
    const cap_options o = { .level = ENG_LEVEL_IO, .when = &WHEN };
    draft_of_slot last[8];
    json_int_t judged = 0, n_kept = 0;
    eng_script *script;
    (void)state;
    for (size_t i = 0; i < COUNT_OF(last); i++) last[i].pos = -1;
    OK(eng_script_open("script.safetensors", &CONFIG, &script, e));
    fmt_tape *t = record_script("accept.tape", 1, "eager", &o);
    for (int32_t r = 0; r < ROUNDS; r++) {
        const eng_round *round = eng_script_at(script, r);
        bool kept = false;
        for (int32_t k = 0; k < round->n_inserts; k++) {
            const eng_insert_event *in = &round->inserts[k];
            draft_of_slot *d = &last[in->slot];
            if (d->pos < 0) continue;
            int32_t accepted = in->rows - 1 < d->n_out ? in->rows - 1 : d->n_out;
            bool low = 2 * accepted < d->n_out;
            if (low && !kept) { /* the event names the first */
                const json_t *event = trigger_of(t, r);
                assert_int_equal(number_in(event, "of"), last[number_in(event, "slot")].n_out);
                assert_int_equal(number_in(event, "drafted"), last[number_in(event, "slot")].round);
                assert_true(2 * number_in(event, "accepted") < number_in(event, "of"));
            }
            kept = kept || low;
            judged++;
        }
        assert_int_equal(has_round(t, r), kept);
        n_kept += kept;
        for (int32_t b = 0; b < round->batch; b++)
            last[round->slots[b]] = (draft_of_slot){ round->round, round->pos[b], round->n_out };
    }
    assert_true(n_kept > 0 && n_kept < ROUNDS);
    assert_int_equal(condition_number(t, 0, "looked"), judged);
    assert_int_equal(condition_number(t, 0, "fired"), n_kept);
    assert_honest(t);
    fmt_tape_close(t);
    eng_script_close(script);
}

/* ---- all of them ---- */

static void one_of_several_is_enough_and_each_is_counted(void **state)
{
    static const cli_list WHEN = { 3, { "nan", "range:-1e30..1e30", "differs:ref.tape" } };
    const cap_options of_ref = { .level = ENG_LEVEL_V1 }, o = { .level = ENG_LEVEL_V1, .when = &WHEN };
    (void)state;
    fmt_tape_close(record_odd("ref.tape", &of_ref, -1, NULL));
    fmt_tape *t = record_odd("odd.tape", &o, 6, OTHER);
    const int32_t *rounds;
    assert_int_equal(fmt_tape_rounds(t, &rounds), 1);
    assert_int_equal(rounds[0], 6);
    assert_int_equal(condition_number(t, 0, "fired") + condition_number(t, 1, "fired"), 0);
    assert_int_equal(condition_number(t, 2, "fired"), 1);
    assert_true(condition_number(t, 0, "looked") > 0);
    assert_int_equal(json_array_size(json_object_get(fmt_tape_head(t), "when")), 3);
    fmt_tape_close(t);
}

/* The tape is whole, empty, and says what was looked for and not seen. */
static void a_condition_that_never_held_is_told(void **state)
{
    static const cli_list WHEN = { 1, { "nan" } };
    const cap_options o = { .level = ENG_LEVEL_V1, .when = &WHEN };
    (void)state;
    session s = begin("never.tape", 2, "graph", &o);
    for (int32_t i = 0; i < ROUNDS; i++) OK(run_round(&s, i, true, e));
    cap_counts c;
    OK(cap_recorder_end(s.recorder, &c, e));
    end_session(&s);
    assert_int_equal(c.judged, ROUNDS);
    assert_int_equal(c.fired + c.rounds, 0);
    fmt_tape *t;
    OK(fmt_tape_open("never.tape", &t, e));
    assert_true(fmt_tape_finished(t));
    assert_int_equal(fmt_tape_count(t) + fmt_tape_event_count(t), 0);
    assert_int_equal(condition_number(t, 0, "fired"), 0);
    assert_true(condition_number(t, 0, "looked") > 0);
    assert_true(json_number_value(json_object_get(fmt_tape_summary(t), "cost_us_per_round")) > 0); /* judging is not free */
    assert_honest(t);
    fmt_tape_close(t);
}

static void bad_conditions_are_refused_and_leave_no_file(void **state)
{
    static const struct { const char *item; err_code code; const char *text; } BAD[] = {
        { "", ERR_ARG, "wanted nan" }, { "nan:", ERR_ARG, "wanted nan" }, { "nan@", ERR_ARG, "no pattern" },
        { "range", ERR_ARG, "LO..HI" }, { "range:1", ERR_ARG, "LO..HI" }, { "range:2..1", ERR_ARG, "LO..HI" },
        { "range:nan..1", ERR_ARG, "LO..HI" }, { "range:1..x@s0.out", ERR_ARG, "LO..HI" }, { "differs:", ERR_ARG, "TAPE" },
        { "acceptance:0", ERR_ARG, "above 0" }, { "acceptance:1.5", ERR_ARG, "above 0" },
        { "acceptance:0.5@s0.out", ERR_ARG, "above 0" }, { "differs:script.safetensors", ERR_ARG, "an input" },
        { "nan@ids", ERR_ARG, "that is kept" }, /* integers */ { "nan@s0.attn.q", ERR_ARG, "that is kept" },
        { "differs:none.tape", ERR_IO, "none.tape" },
    };
    const eng_options run = options_of(1, NULL);
    json_t *identity = json_object();
    eng_engine *g;
    (void)state;
    OK(eng_open(weights, &run, 1, ENG_LEVEL_V1, true, &g, e));
    for (size_t i = 0; i < COUNT_OF(BAD); i++) {
        const cli_list when = { 1, { BAD[i].item } };
        const cap_options o = { .level = ENG_LEVEL_V1, .when = &when };
        cap_recorder *r = NULL;
        err e = { 0 };
        err_code rc = i < 13 ? cap_when_check(&when, "script.safetensors", &e)
                             : cap_recorder_open(g, "bad.tape", identity, &o, &r, &e);
        if (rc != BAD[i].code && !(BAD[i].code == ERR_IO && rc != ERR_OK)) fail_msg("'%s': %s", BAD[i].item, err_name(rc));
        if (!strstr(e.msg, BAD[i].text)) fail_msg("'%s': %s", BAD[i].item, e.msg);
        assert_null(r);
    }
    assert_int_equal(access("bad.tape", F_OK), -1);
    assert_int_equal(access("bad.tape.part", F_OK), -1);
    json_decref(identity);
    eng_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_range_keeps_exactly_the_rounds_outside_of_it),
        cmocka_unit_test(a_value_that_is_not_finite_is_seen_in_every_tier),
        cmocka_unit_test(a_value_that_differs_from_the_reference_keeps_its_round),
        cmocka_unit_test(what_the_reference_does_not_have_is_not_judged),
        cmocka_unit_test(acceptance_is_judged_by_the_rows_that_follow_a_draft),
        cmocka_unit_test(one_of_several_is_enough_and_each_is_counted),
        cmocka_unit_test(a_condition_that_never_held_is_told),
        cmocka_unit_test(bad_conditions_are_refused_and_leave_no_file),
    };
    return cmocka_run_group_tests(tests, make_long_model, drop_model);
}
