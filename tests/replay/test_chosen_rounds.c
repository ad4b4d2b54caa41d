#include "replay_help.h"

#include "replay/certify.h"
#include "replay/forced.h"
#include "replay/replay.h"
#include "tests/support/slow.h"

enum { ROUNDS = 48, SLOTS = 4, POOL_ROWS = 512, INSERTS_MAX = 2 * SLOTS };

/* Traffic that a worker may see: requests of every age, that draft in some rounds and not in others, insert once, twice or
 * not at all, more rows than a window or one, and end, after which their slot belongs to another. */
typedef struct traffic {
    eng_round round[ROUNDS];
    bool ends[ROUNDS][SLOTS]; /* the slot's request is over before the round */
    eng_insert_event insert[ROUNDS][INSERTS_MAX];
    int32_t slots[ROUNDS][SLOTS], anchors[ROUNDS][SLOTS], pos[ROUNDS][SLOTS];
} traffic;

static eng_config config;
static bf16 *pool;            /* [POOL_ROWS, n_taps * dim] */
static int32_t counting[4096];
static uint64_t random_state;

static int32_t below(int32_t n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (int32_t)((random_state >> 33) % (uint64_t)n);
}

static int setup(void **state)
{
    if (run_setup(state) != 0) return -1;
    config = *eng_weights_config(shared_run.weights);
    size_t n = (size_t)POOL_ROWS * (size_t)config.n_taps * (size_t)config.dim;
    pool = mem_alloc(n, sizeof *pool);
    for (size_t i = 0; i < n; i++) pool[i] = bf16_from_f32((float)(below(2001) - 1000) / 500.0F);
    for (int32_t i = 0; i < (int32_t)COUNT_OF(counting); i++) counting[i] = i;
    return 0;
}

static int teardown(void **state)
{
    free(pool);
    return run_teardown(state);
}

static int32_t tape_slot(int32_t slot) { return 10 * slot + 3; }

static void add_insert(eng_round *r, eng_insert_event *all, int32_t slot, int32_t *last, int32_t first, int32_t rows)
{
    const bf16 *taps = pool + (size_t)below(POOL_ROWS - rows) * (size_t)config.n_taps * (size_t)config.dim;
    all[r->n_inserts++] = (eng_insert_event){ tape_slot(slot), rows, taps, counting + first };
    *last = first + rows - 1;
}

/* again: requests end and others get their slots. */
static void make_traffic(traffic *t, uint64_t seed, bool again)
{
    static const int32_t STARTS[] = { 0, 2600, 1300 }; /* apart: a position tells whose it is */
    int32_t last[SLOTS] = { -1, -1, -1, -1 }, age[SLOTS] = { 0 };
    memset(t, 0, sizeof *t);
    random_state = seed;
    for (int32_t i = 0; i < ROUNDS; i++) {
        eng_round *r = &t->round[i];
        *r = (eng_round){ .round = i, .inserts = t->insert[i], .slots = t->slots[i], .anchors = t->anchors[i],
                          .pos = t->pos[i], .n_out = 1 + below(config.block) };
        for (int32_t s = 0; s < SLOTS; s++) {
            if (again && last[s] >= 0 && age[s] + 1 < (int32_t)COUNT_OF(STARTS) && below(12) == 0) {
                t->ends[i][s] = true;
                last[s] = -1;
                age[s]++;
            }
            if (below(4) == 0) continue;
            int32_t first = STARTS[age[s]];
            int32_t many = 120 + below(80), few = 1 + below(6);
            if (last[s] < 0) add_insert(r, t->insert[i], s, &last[s], first, first ? many + 8 : below(2) ? many : few);
            else if (below(8)) add_insert(r, t->insert[i], s, &last[s], last[s] + 1, below(20) ? few : many);
            if (below(8) == 0) add_insert(r, t->insert[i], s, &last[s], last[s] + 1, 1 + below(3));
            if (below(5) == 0) continue;
            t->slots[i][r->batch] = tape_slot(s);
            t->anchors[i][r->batch] = below(config.vocab);
            t->pos[i][r->batch++] = last[s];
        }
    }
}

/* Records the rounds of keep (NULL: all, as a whole tape). */
static fmt_tape *record_kept(const traffic *t, const char *path, const eng_options *o, eng_level level, const bool *keep)
{
    const cap_options options = { .level = level, .rounds = keep ? "some" : NULL };
    eng_engine *g;
    cap_recorder *r;
    fmt_tape *tape;
    json_t *identity = eng_identity(shared_run.weights, o);
    OK(eng_open(shared_run.weights, o, SLOTS, cap_retain_level(&options), true, &g, e));
    OK(cap_recorder_open(g, path, identity, &options, &r, e));
    for (int32_t i = 0; i < ROUNDS; i++) {
        const eng_round *round = &t->round[i];
        int32_t inserts[INSERTS_MAX], drafts[SLOTS];
        for (int32_t s = 0; s < SLOTS; s++)
            if (t->ends[i][s]) eng_release(g, s);
        for (int32_t k = 0; k < round->n_inserts; k++) inserts[k] = round->inserts[k].slot / 10;
        for (int32_t k = 0; k < round->batch; k++) drafts[k] = round->slots[k] / 10;
        if (round->n_inserts + round->batch == 0) continue;
        if (!keep || keep[i]) OK(cap_recorder_round(r, round, inserts, drafts, NULL, e));
        else OK(cap_recorder_skip_round(r, round, inserts, drafts, NULL, e));
    }
    OK(cap_recorder_finish(r, e));
    eng_close(g);
    json_decref(identity);
    OK(fmt_tape_open(path, &tape, e));
    return tape;
}

/* Where a request ends, the round before is left out: no tape of whole rounds has two requests in one slot. */
static void choose(const traffic *t, bool keep[ROUNDS], int32_t of_8)
{
    for (int32_t i = 0; i < ROUNDS; i++) keep[i] = below(8) < of_8;
    for (int32_t i = 1; i < ROUNDS; i++)
        for (int32_t s = 0; s < SLOTS; s++)
            if (t->ends[i][s]) keep[i - 1] = false;
}

static fmt_tape *replay(const fmt_tape *from, const eng_options *run, eng_level level, rpl_replay_report *report)
{
    const rpl_replay_options o = { .run = *run, .level = level, .quiet = true, .report = report };
    json_t *identity = eng_identity(shared_run.weights, run);
    fmt_tape *t;
    *report = (rpl_replay_report){ 0 };
    OK(rpl_replay_run(from, shared_run.weights, &o, identity, "replayed.tape", e));
    OK(fmt_tape_open("replayed.tape", &t, e));
    json_decref(identity);
    return t;
}

/* ---- the property ---- */

enum { N_CASES = SLOW ? 2 : 6, RESTORED_MIN = SLOW ? 20 : 100 };

static void any_choice_of_rounds_replays_to_its_own_bits(void **state)
{
    static const struct { const char *mode; int64_t tp; eng_level level; } CASES[] = {
        { "eager", 1, ENG_LEVEL_DEEP }, { "graph", 2, ENG_LEVEL_V1 }, { "graph", 1, ENG_LEVEL_V1 },
        { "eager", 2, ENG_LEVEL_V1 }, { "eager", 1, ENG_LEVEL_V1 }, { "graph", 2, ENG_LEVEL_DEEP },
    };
    traffic *t = mem_alloc(1, sizeof *t);
    int64_t restored = 0;
    (void)state;
    for (int32_t i = 0; i < N_CASES; i++) {
        bool keep[ROUNDS];
        char what[192] = "";
        rpl_replay_report report;
        eng_options o = run_options("native-packed", CASES[i].tp, CASES[i].mode);
        make_traffic(t, 100 + (uint64_t)i, i % 2 == 0);
        choose(t, keep, 1 + i % 6);
        fmt_tape *kept = record_kept(t, "kept.tape", &o, CASES[i].level, keep);
        fmt_tape *again = replay(kept, &o, CASES[i].level, &report);
        if (!rpl_replay_same(kept, again, what)) fail_msg("case %d: %s", i, what);
        assert_int_equal(report.n_left_out, 0);
        assert_int_equal(report.n_contradictions, 0);
        restored += report.windows_restored;
        rpl_replay_report_fini(&report);
        fmt_tape_close(kept);
        if (i < 2) { /* what a replay writes is such a tape too; and another arm's rows are no contradiction */
            eng_options other = run_options("mirror64", 0, "eager");
            assert_int_equal(rename("replayed.tape", "first.tape"), 0);
            fmt_tape_close(replay(again, &other, ENG_LEVEL_V1, &report));
            assert_int_equal(report.n_left_out + report.n_contradictions, 0);
            rpl_replay_report_fini(&report);
        }
        fmt_tape_close(again);
    }
    assert_true(restored > RESTORED_MIN);
    free(t);
}

/* Flips a bit in a rank's second main_x of a slot in a round. */
typedef struct second { const char *at; int n_seen; int32_t rank; } second;

static bool second_flipped(void *ctx, fmt_tape_record *r, uint8_t *data)
{
    second *s = ctx;
    if (is_at(r, s->at) && r->key.rank == s->rank && ++s->n_seen == 2) data[1] ^= 4; /* an exponent bit */
    return true;
}

/* Chooses the rounds from 10 on in which a slot is inserted into twice; at: main_x of the last such slot. Returns the rows
 * of all their inserts. */
static int64_t choose_twice(const traffic *t, bool keep[ROUNDS], char at[64])
{
    int64_t rows = 0;
    for (int32_t i = 10; i < ROUNDS; i++) {
        for (int32_t k = 1; k < t->round[i].n_inserts; k++) {
            if (t->insert[i][k].slot != t->insert[i][k - 1].slot) continue;
            keep[i] = true;
            snprintf(at, 64, "%d/%d/main_x", i, t->insert[i][k].slot);
        }
        for (int32_t k = 0; keep[i] && k < t->round[i].n_inserts; k++) rows += t->insert[i][k].rows;
    }
    return rows;
}

static void every_insert_of_a_slot_in_a_round_is_compared(void **state)
{
    traffic *t = mem_alloc(1, sizeof *t);
    eng_options o = run_options("native-packed", 1, "eager");
    bool keep[ROUNDS] = { false };
    char at[64] = "", wanted[96];
    int32_t round, slot;
    rpl_repeats repeats;
    (void)state;
    make_traffic(t, 5, false);
    choose_twice(t, keep, at);
    assert_int_equal(sscanf(at, "%d/%d/", &round, &slot), 2);
    snprintf(wanted, sizeof wanted, "round %d slot %d: main_x of insert 2", round, slot);
    fmt_tape *kept = record_kept(t, "twice.tape", &o, ENG_LEVEL_V1, keep);
    for (int i = 0; i < 2; i++) {
        second edit = { .at = i ? at : "" };
        fmt_tape *copy = copy_tape(kept, "copy.tape", second_flipped, &edit);
        rpl_replay_repeats(kept, copy, &repeats);
        assert_true(repeats.n > 10);
        assert_int_equal(repeats.n - repeats.n_equal, i);
        assert_string_equal(repeats.first, i ? wanted : "");
        fmt_tape_close(copy);
    }
    fmt_tape_close(kept);
    free(t);
}

/* By the certificate, which joins their rows. */
static void every_insert_of_a_slot_in_a_round_is_judged(void **state)
{
    traffic *t = mem_alloc(1, sizeof *t);
    eng_options o = run_options("native-packed", 2, "eager");
    bool keep[ROUNDS] = { false };
    char at[64] = "";
    (void)state;
    make_traffic(t, 5, false);
    int64_t rows = choose_twice(t, keep, at);
    fmt_tape *kept = record_kept(t, "twice.tape", &o, ENG_LEVEL_DEEP, keep);
    const int64_t dim = eng_weights_config(shared_run.weights)->dim;
    for (int32_t i = 0; i < 3; i += SLOW ? 2 : 1) { /* as recorded; each rank's record of the second insert changed */
        second edit = { .at = i ? at : "", .rank = i - 1 };
        fmt_tape *copy = copy_tape(kept, "copy.tape", second_flipped, &edit);
        rpl_certify_options with = rpl_certify_options_of(copy);
        rpl_certificate c = { 0 };
        int32_t all[ROUNDS], n = (int32_t)fmt_tape_rounds(copy, &(const int32_t *){ NULL });
        for (int32_t k = 0; k < n; k++) all[k] = k;
        OK(rpl_certify_tape(copy, shared_run.weights, &with, &(rpl_certify_job){ all, n, NULL, NULL }, &c, e));
        assert_string_equal(rpl_certificate_verdict(&c), i ? "FAIL" : "PASS");
        for (size_t k = 0; k < c.n_sums; k++)
            if (strcmp(c.sum[k].value, "main_x") == 0) assert_int_equal(c.sum[k].n + c.sum[k].n_unjudged, rows * dim);
        if (i) assert_string_equal(c.origin[0].op, "main_x");
        if (i) assert_int_equal(c.origin[0].ranks_differ, i == 2);
        rpl_certificate_fini(&c);
        fmt_tape_close(copy);
    }
    fmt_tape_close(kept);
    free(t);
}

static void a_whole_history_needs_no_window(void **state)
{
    traffic *t = mem_alloc(1, sizeof *t);
    bool all[ROUNDS];
    char what[192] = "";
    rpl_replay_report report;
    eng_options o = run_options("native-packed", 1, "eager");
    (void)state;
    make_traffic(t, 7, false);
    memset(all, true, sizeof all);
    for (int i = SLOW; i < 2; i++) {
        fmt_tape *tape = record_kept(t, "whole.tape", &o, ENG_LEVEL_IO, i ? all : NULL);
        assert_int_equal(cap_rounds_chosen(tape), i);
        fmt_tape *again = replay(tape, &o, ENG_LEVEL_IO, &report);
        if (!rpl_replay_same(tape, again, what)) fail_msg("%s", what);
        assert_int_equal(report.windows_restored + (int64_t)report.n_left_out, 0);
        rpl_replay_report_fini(&report);
        fmt_tape_close(again);
        fmt_tape_close(tape);
    }
    free(t);
}

/* ---- two requests of known positions ---- */

enum { LATE = 16 }; /* the kept round */

/* Slot 3 has one row a round from 0 on, slot 13 200 rows, then five a round; both draft in every round. */
static void make_even(traffic *t)
{
    int32_t last[2] = { -1, -1 };
    memset(t, 0, sizeof *t);
    random_state = 3;
    for (int32_t i = 0; i < ROUNDS; i++) {
        eng_round *r = &t->round[i];
        *r = (eng_round){ .round = i, .batch = 2, .inserts = t->insert[i], .slots = t->slots[i], .anchors = t->anchors[i],
                          .pos = t->pos[i], .n_out = config.block };
        for (int32_t s = 0; s < 2; s++) {
            add_insert(r, t->insert[i], s, &last[s], last[s] + 1, s == 0 ? 1 : i == 0 ? 200 : 5);
            t->slots[i][s] = tape_slot(s);
            t->anchors[i][s] = below(config.vocab);
            t->pos[i][s] = last[s];
        }
    }
}

static fmt_tape *record_even(const char *path, eng_level level, const bool keep[ROUNDS])
{
    traffic *t = mem_alloc(1, sizeof *t);
    eng_options o = run_options("native-packed", 1, "eager");
    make_even(t);
    fmt_tape *tape = record_kept(t, path, &o, level, keep);
    free(t);
    return tape;
}

static void what_is_not_on_the_tape_is_said_and_the_rest_goes_on(void **state)
{
    bool keep[ROUNDS] = { [0] = true, [1] = true, [LATE] = true };
    char text[256], what[192] = "";
    rpl_replay_report report;
    eng_options o = run_options("native-packed", 1, "eager");
    (void)state;
    for (int32_t i = 20; i < ROUNDS; i++) keep[i] = true;
    fmt_tape *t = record_even("io.tape", ENG_LEVEL_IO, keep), *again = replay(t, &o, ENG_LEVEL_IO, &report);
    assert_int_equal(report.rounds, 3 + ROUNDS - 20);
    assert_string_equal(rpl_left_out_text(&report.left_out[0], text, sizeof text),
                        "round 16 slot 3: its draft cannot be replayed: found no rows of positions 0 to 15, wanted them or "
                        "s0.window (level v1 or deep)");
    assert_string_equal(rpl_left_out_text(&report.left_out[1], text, sizeof text),
                        "round 16 slot 13: its draft cannot be replayed: found no rows of positions 152 to 274, wanted "
                        "them or s0.window (level v1 or deep)");
    /* 28 rounds of 5 rows, the last: slot 13 has all of its 128 rows again from the 26th on, slot 3 never has */
    assert_int_equal(report.rounds_left_out, 1 + ROUNDS - 20);
    assert_int_equal(report.n_left_out, 2 + ROUNDS - 20 + 25);
    rpl_replay_report_fini(&report);
    /* every insert ran, the drafts of rounds 0 and 1 too */
    size_t n_pos = 0;
    for (size_t i = 0; i < fmt_tape_count(again); i++) {
        fmt_tape_record r;
        fmt_tape_at(again, i, &r);
        int64_t at = fmt_tape_find(t, &r.key);
        assert_true(at >= 0);
        fmt_tape_record of;
        fmt_tape_at(t, (size_t)at, &of);
        assert_int_equal(of.hash, r.hash);
        n_pos += strcmp(r.key.name, "pos") == 0;
    }
    assert_int_equal(n_pos, 2 * (3 + ROUNDS - 20));
    assert_true(fmt_tape_find(again, &(fmt_tape_key){ 1, FMT_TAPE_NO_SLOT, 0, "drafts" }) >= 0);
    assert_int_equal(fmt_tape_find(again, &(fmt_tape_key){ LATE, FMT_TAPE_NO_SLOT, 0, "drafts" }), -1);
    fmt_tape *third = replay(again, &o, ENG_LEVEL_IO, &report);
    if (!rpl_replay_same(again, third, what)) fail_msg("%s", what);
    rpl_replay_report_fini(&report);
    fmt_tape_close(third);
    fmt_tape_close(again);
    fmt_tape_close(t);
}

/* Only rows that the draft reads and nothing else brings come from the tape; what the inserts must write is NaN. */
static void a_restored_ring_holds_what_it_must_and_no_more(void **state)
{
    const bool keep[ROUNDS] = { [LATE] = true };
    const cap_start *start;
    eng_options o = run_options("native-packed", 1, "eager");
    rpl_replay_report report = { 0 };
    cap_rounds *rounds;
    rpl_restore *restore;
    eng_engine *g;
    int32_t n;
    (void)state;
    fmt_tape *t = record_even("late.tape", ENG_LEVEL_V1, keep);
    OK(cap_rounds_open_chosen(t, &config, &rounds, e));
    OK(eng_open(shared_run.weights, &o, cap_rounds_slots(rounds), ENG_LEVEL_V1, true, &g, e));
    OK(rpl_restore_open(t, rounds, g, &report, &restore, e));
    OK(rpl_restore_round(restore, 0, LATE, e));
    OK(cap_rounds_starts(rounds, 0, &start, &n, e));
    assert_int_equal(n, 2);
    for (int32_t i = 0; i < n; i++) {
        int32_t slot = cap_rounds_dense(rounds, start[i].slot), last = i == 0 ? LATE - 1 : 200 + 5 * (LATE - 1) - 1;
        fmt_tensor ring;
        assert_int_equal(eng_slot_last(g, slot), last);
        assert_int_equal(start[i].to, last);
        assert_int_equal(start[i].from, i == 0 ? 0 : last + 5 - 127);
        OK(eng_window(g, slot, config.n_stages - 1, &ring, e));
        assert_int_equal(ring.shape[0], i == 0 ? LATE : 128);
        for (int32_t p = last < 128 ? 0 : last - 127; p <= last; p++) {
            const bf16 *row = (const bf16 *)ring.data + (ptrdiff_t)(p % 128) * config.head_dim;
            const bf16 *recorded = start[i].window[config.n_stages - 1] + (ptrdiff_t)(p % 128) * config.head_dim;
            if (p < start[i].from) assert_true((row[0] & 0x7fff) > 0x7f80);
            else assert_memory_equal(row, recorded, (size_t)config.head_dim * sizeof *row);
        }
    }
    rpl_restore_close(restore);
    eng_close(g);
    cap_rounds_close(rounds);
    fmt_tape_close(t);
}

/* ---- faults ---- */

/* What is done to one window: a bit flipped in row `flip`, or its rows moved on by one. */
typedef struct damage { const char *at; int32_t flip; bool rotate; } damage;

static bool damaged(void *ctx, fmt_tape_record *r, uint8_t *data)
{
    const damage *d = ctx;
    if (!is_at(r, d->at)) return true;
    size_t row = (size_t)r->tensor.shape[1] * sizeof(bf16), bytes = row * (size_t)r->tensor.shape[0];
    if (d->rotate) {
        uint8_t *whole = mem_alloc(bytes, 1);
        memcpy(whole, data, bytes);
        memcpy(data, whole + bytes - row, row);
        memcpy(data + row, whole, bytes - row);
        free(whole);
    } else {
        data[(size_t)d->flip * row + 7] ^= 0x80;
    }
    return true;
}

/* Where the first difference of the source and its replay starts. "": nowhere. */
static void first_origin(const fmt_tape *a, const fmt_tape *b, char out[96])
{
    rpl_compare *c;
    out[0] = 0;
    OK(rpl_compare_open(a, b, &config, NULL, &c, e));
    for (int32_t i = 0; !out[0] && i < rpl_compare_rounds(c); i++) {
        const rpl_round *r;
        OK(rpl_compare_round(c, i, &r, e));
        if (r->first_origin < 0) continue;
        const rpl_value *v = &r->value[r->first_origin];
        snprintf(out, 96, "%d/%d/%s", r->round, v->slot, v->name);
    }
    rpl_compare_close(c);
}

static void forced_origin(const fmt_tape *t, char out[96])
{
    eng_options o = run_options("native-packed", 1, "eager");
    rpl_forced *f;
    out[0] = 0;
    OK(rpl_forced_open(t, shared_run.weights, &o, &f, e));
    for (int32_t i = 0; !out[0] && i < rpl_forced_rounds(f); i++) {
        const rpl_round *r;
        OK(rpl_forced_compare(f, i, NULL, &r, e));
        assert_true(r->n_compared > 10);
        if (r->first_origin < 0) continue;
        const rpl_value *v = &r->value[r->first_origin];
        snprintf(out, 96, "%d/%d/%s", r->round, v->slot, v->name);
    }
    rpl_forced_close(f);
}

static void a_window_that_was_recorded_wrong_is_named(void **state)
{
    /* Kept: rounds 8 and 16. Slot 3 stands at 16 in round 16 and reads 0 .. 15; slot 13 stands at 279 and reads
     * 152 .. 279, of which its insert brings 275 .. 279 and round 8 has 152 .. 239. */
    static const struct { damage d; const char *contradiction, *origin, *forced; } CASES[] = {
        { { NULL, 0, false }, "", "", "" },
        { { "16/13/s1.window", 200 % 128, false },
          "round 16 slot 13: s1.window row 72 (position 200) is not what round 8 has of it; 1 of the 88 rows of both "
          "differ", "16/-1/s1.attn_out", "16/13/s1.window" },
        { { "8/13/s1.window", 200 % 128, false },
          "round 16 slot 13: s1.window row 72 (position 200) is not what round 8 has of it; 1 of the 88 rows of both "
          "differ", "8/-1/s1.attn_out", "8/-1/s1.attn_out" },
        { { "16/13/s0.window", 0, true },
          "round 16 slot 13: s0.window row 24 (position 152) is not what round 8 has of it; 88 of the 88 rows of both "
          "differ", "16/13/s0.window", "16/13/s0.window" },
        { { "16/3/s0.window", 4, false },
          "round 16 slot 3: s0.window row 4 (position 4) is not what round 8 has of it; 1 of the 9 rows of both "
          "differ", "16/-1/s0.attn_out", "16/3/s0.window" },
        { { "16/3/s0.window", 12, false }, "", "16/-1/s0.attn_out", "16/-1/s0.attn_out" }, /* no other round has it */
        { { "16/3/s0.window", 16, false }, "", "16/3/s0.window", "16/3/s0.window" },       /* its own insert's row */
    };
    const bool keep[ROUNDS] = { [8] = true, [LATE] = true };
    eng_options o = run_options("native-packed", 1, "eager");
    (void)state;
    fmt_tape *sound = record_even("sound.tape", ENG_LEVEL_V1, keep);
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        damage d = CASES[i].d;
        char text[256] = "", origin[96];
        rpl_replay_report report;
        if (!d.at) d.at = "";
        fmt_tape *t = copy_tape(sound, "damaged.tape", damaged, &d), *again = replay(t, &o, ENG_LEVEL_V1, &report);
        if (report.n_contradictions) rpl_contradiction_text(&report.contradiction[0], text, sizeof text);
        assert_string_equal(text, CASES[i].contradiction);
        assert_true(report.n_contradictions <= 1);
        first_origin(t, again, origin);
        assert_string_equal(origin, CASES[i].origin);
        forced_origin(t, origin);
        assert_string_equal(origin, CASES[i].forced);
        rpl_replay_report_fini(&report);
        fmt_tape_close(again);
        fmt_tape_close(t);
    }
    fmt_tape_close(sound);
}

/* Puts every position of a slot from a round on further on. */
static bool shifted(void *ctx, fmt_tape_record *r, uint8_t *data)
{
    (void)ctx;
    int32_t *pos = (int32_t *)(void *)data;
    if (r->key.round >= LATE && strcmp(r->key.name, "draft.pos") == 0) pos[1] += 7;
    bool late_pos = r->key.round >= LATE && r->key.slot == 13 && strcmp(r->key.name, "pos") == 0;
    for (int i = 0; late_pos && i < 5; i++) pos[i] += 7;
    return true;
}

static void a_gap_where_no_round_is_missing_is_refused(void **state)
{
    bool keep[ROUNDS] = { [LATE - 1] = true, [LATE] = true };
    cap_rounds *rounds;
    (void)state;
    fmt_tape *t = record_even("pair.tape", ENG_LEVEL_V1, keep), *gap = copy_tape(t, "gap.tape", shifted, NULL);
    OK(cap_rounds_open_chosen(t, &config, &rounds, e));
    cap_rounds_close(rounds);
    REFUSED(cap_rounds_open_chosen(gap, &config, &rounds, e), ERR_INPUT,
            "round 16 slot 13: position 282 at row 0 does not follow 274");
    fmt_tape_close(gap);
    /* a reader that wants everything there was does not take it (drive) */
    REFUSED(cap_rounds_open(t, &config, &rounds, e), ERR_INPUT,
            "round 15 slot 3: draft at position 15 needs rows from 0 on, the slot begins at 15");
    fmt_tape_close(t);
}

/* A tape that lost a round without being asked to is one of chosen rounds too. */
static void a_dropped_round_makes_the_others_chosen(void **state)
{
    fmt_tape_writer *w;
    fmt_tape *t;
    (void)state;
    for (int i = 0; i < 2; i++) {
        json_t *head = json_pack("{s:s}", "format", "sparktape");
        json_t *event = json_pack("{s:s, s:i, s:s}", "event", i ? "dropped" : "mismatch", "round", 4, "why", "no room");
        OK(fmt_tape_create("event.tape", head, &w, e));
        OK(fmt_tape_put_event(w, 4, event, e));
        OK(fmt_tape_finish(w, NULL, e));
        OK(fmt_tape_open("event.tape", &t, e));
        assert_int_equal(cap_rounds_chosen(t), i);
        fmt_tape_close(t);
        json_decref(head);
        json_decref(event);
    }
}

static void places_in_the_engine_are_used_again(void **state)
{
    enum { REQUESTS = 50 };
    const cap_options options = { .level = ENG_LEVEL_IO, .rounds = "all" };
    eng_options o = run_options("native-packed", 1, "eager");
    eng_engine *g;
    cap_recorder *r;
    cap_rounds *rounds;
    fmt_tape *t;
    char what[192] = "";
    rpl_replay_report report;
    (void)state;
    json_t *identity = eng_identity(shared_run.weights, &o);
    OK(eng_open(shared_run.weights, &o, 2, ENG_LEVEL_IO, true, &g, e));
    OK(cap_recorder_open(g, "many.tape", identity, &options, &r, e));
    for (int32_t i = 0; i < REQUESTS; i++) { /* request i lives in rounds i and i + 1 */
        const eng_insert_event in[2] = { { i, 3, pool, counting }, { i + 1, 2, pool, counting } };
        const int32_t next_pos[1] = { 2 }, slot[1] = { i }, anchor[1] = { 5 }, engine[2] = { i % 2, (i + 1) % 2 };
        eng_insert_event first = in[0];
        if (i > 0) first = (eng_insert_event){ i, 1, pool, counting + 2 };
        const eng_insert_event both[2] = { first, in[1] };
        const eng_round round = { .round = i, .n_inserts = 2, .inserts = both, .batch = 1, .slots = slot, .anchors = anchor,
                                  .pos = next_pos, .n_out = 2 };
        eng_release(g, (i + 1) % 2);
        OK(cap_recorder_round(r, &round, engine, engine, NULL, e));
    }
    OK(cap_recorder_finish(r, e));
    eng_close(g);
    json_decref(identity);
    OK(fmt_tape_open("many.tape", &t, e));
    OK(cap_rounds_open_chosen(t, &config, &rounds, e));
    assert_int_equal(cap_rounds_slots(rounds), 2);
    cap_rounds_close(rounds);
    fmt_tape *again = replay(t, &o, ENG_LEVEL_IO, &report);
    if (!rpl_replay_same(t, again, what)) fail_msg("%s", what);
    rpl_replay_report_fini(&report);
    fmt_tape_close(again);
    fmt_tape_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_choice_of_rounds_replays_to_its_own_bits),
        cmocka_unit_test(every_insert_of_a_slot_in_a_round_is_compared),
        cmocka_unit_test(every_insert_of_a_slot_in_a_round_is_judged),
        cmocka_unit_test(a_whole_history_needs_no_window),
        cmocka_unit_test(what_is_not_on_the_tape_is_said_and_the_rest_goes_on),
        cmocka_unit_test(a_restored_ring_holds_what_it_must_and_no_more),
        cmocka_unit_test(a_window_that_was_recorded_wrong_is_named),
        cmocka_unit_test(a_gap_where_no_round_is_missing_is_refused),
        cmocka_unit_test(a_dropped_round_makes_the_others_chosen),
        cmocka_unit_test(places_in_the_engine_are_used_again),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
