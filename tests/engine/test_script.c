#include "engine/script.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"

/* A script in memory: tensors by name, spoiled by a test and written out. */
enum { PARTS_MAX = 64, WIDTH = 3 * 256 };
typedef struct part { char name[64]; fmt_dtype dtype; int32_t ndim; int64_t shape[2]; uint8_t *data; size_t bytes; } part;
typedef struct script { part part[PARTS_MAX]; size_t n; const char *format; eng_config config; char path[64]; } script;

static part *put(script *s, const char *name, fmt_dtype dtype, int32_t ndim, int64_t n, int64_t k)
{
    part *p = &s->part[s->n++];
    assert_true(s->n <= PARTS_MAX);
    *p = (part){ .dtype = dtype, .ndim = ndim, .shape = { n, k } };
    snprintf(p->name, sizeof p->name, "%s", name);
    p->bytes = (size_t)(n * (ndim == 2 ? k : 1)) * fmt_dtype_bytes(dtype);
    p->data = mem_alloc(p->bytes, 1);
    return p;
}

static void put_ints(script *s, const char *name, int n, const int32_t *v)
{
    part *p = put(s, name, FMT_DTYPE_I32, 1, n, 1);
    for (int i = 0; i < n; i++) put_u32(p->data + 4 * i, (uint32_t)v[i]);
}

static void add_insert(script *s, int round, int slot, int first, int rows)
{
    char name[64];
    snprintf(name, sizeof name, "round.%d.insert.%d.taps", round, slot);
    part *p = put(s, name, FMT_DTYPE_BF16, 2, rows, WIDTH);
    for (size_t i = 0; i < p->bytes; i += 2) put_u16(p->data + i, (uint16_t)(0x3f80 + i % 64));
    snprintf(name, sizeof name, "round.%d.insert.%d.pos", round, slot);
    p = put(s, name, FMT_DTYPE_I32, 1, rows, 1);
    for (int i = 0; i < rows; i++) put_u32(p->data + 4 * i, (uint32_t)(first + i));
}

static void add_draft(script *s, int round, int n, const int32_t *slots, const int32_t *pos, int n_out)
{
    static const char *const WORDS[] = { "slots", "anchor", "pos", "n_out" };
    const int32_t anchors[8] = { 3, 1279, 0, 7, 8, 9, 10, 11 }, outs[1] = { n_out };
    const int32_t *values[] = { slots, anchors, pos, outs };
    for (int i = 0; i < 4; i++) {
        char name[64];
        snprintf(name, sizeof name, "round.%d.draft.%s", round, WORDS[i]);
        put_ints(s, name, i == 3 ? 1 : n, values[i]);
    }
}

#define INTS(...) ((const int32_t[]){ __VA_ARGS__ })

/* Rounds 2, 10 and 11; slots 7 and 3; window 128. */
static int setup(void **state)
{
    script *s = mem_alloc(1, sizeof *s);
    assert_true(eng_config_preset("tiny", &s->config));
    s->format = "sparktape-script-1";
    strcpy(s->path, "script-XXXXXX");
    int fd = mkstemp(s->path);
    assert_true(fd >= 0);
    close(fd);
    add_insert(s, 10, 3, 0, 5);
    add_insert(s, 2, 7, 1000, 130);
    add_draft(s, 2, 1, INTS(7), INTS(1129), 5);
    add_insert(s, 10, 7, 1130, 2);
    add_draft(s, 10, 2, INTS(7, 3), INTS(1131, 4), 4);
    add_insert(s, 11, 3, 5, 1);
    *state = s;
    return 0;
}

static int teardown(void **state)
{
    script *s = *state;
    for (size_t i = 0; i < s->n; i++) free(s->part[i].data);
    unlink(s->path);
    free(s);
    return 0;
}

static part *get(script *s, const char *name)
{
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->part[i].name, name) == 0) return &s->part[i];
    fail_msg("%s is not in the script", name);
    return NULL;
}

static void drop(script *s, const char *name)
{
    part *p = get(s, name);
    free(p->data);
    *p = s->part[--s->n];
}

static void set_int(script *s, const char *name, int i, int32_t v) { put_u32(get(s, name)->data + 4 * i, (uint32_t)v); }

static void write_out(const script *s)
{
    fmt_safetensors_decl decl[PARTS_MAX];
    fmt_safetensors_writer *w;
    json_t *meta = s->format ? json_pack("{s:s}", "format", s->format) : NULL;
    for (size_t i = 0; i < s->n; i++)
        decl[i] = (fmt_safetensors_decl){ s->part[i].name, s->part[i].dtype, s->part[i].ndim,
                                          { s->part[i].shape[0], s->part[i].shape[1] } };
    assert_int_equal(fmt_safetensors_create(s->path, decl, s->n, meta, &w, NULL), ERR_OK);
    for (size_t i = 0; i < s->n; i++) fmt_safetensors_put(w, s->part[i].data, s->part[i].bytes);
    assert_int_equal(fmt_safetensors_finish(w, NULL), ERR_OK);
    json_decref(meta);
}

static eng_script *opened(const script *s)
{
    eng_script *out;
    err e = { 0 };
    write_out(s);
    if (eng_script_open(s->path, &s->config, &out, &e) != ERR_OK) fail_msg("refused: %s", e.msg);
    return out;
}

static void accepted(const script *s) { eng_script_close(opened(s)); }

static void refused(const script *s, const char *where, const char *what)
{
    eng_script *out;
    err e = { 0 };
    write_out(s);
    assert_int_equal(eng_script_open(s->path, &s->config, &out, &e), ERR_INPUT);
    assert_null(out);
    if (!strstr(e.msg, where) || !strstr(e.msg, what)) fail_msg("'%s' does not show '%s' and '%s'", e.msg, where, what);
}

/* ---- what is read ---- */

static void rounds_come_in_number_order_and_inserts_in_slot_order(void **state)
{
    eng_script *s = opened(*state);
    assert_int_equal(eng_script_rounds(s), 3);
    const eng_round *r = eng_script_at(s, 0);
    assert_true(r->round == 2 && r->n_inserts == 1 && r->batch == 1 && r->n_out == 5);
    assert_true(r->inserts[0].slot == 7 && r->inserts[0].rows == 130 && r->inserts[0].pos[129] == 1129);
    r = eng_script_at(s, 1);
    assert_true(r->round == 10 && r->n_inserts == 2 && r->batch == 2 && r->n_out == 4);
    assert_true(r->inserts[0].slot == 3 && r->inserts[1].slot == 7);
    assert_true(r->slots[0] == 7 && r->slots[1] == 3 && r->anchors[1] == 1279 && r->pos[1] == 4);
    assert_true(r->inserts[1].taps[1] == 0x3f82);
    r = eng_script_at(s, 2);
    assert_true(r->round == 11 && r->n_inserts == 1 && r->batch == 0);
    assert_int_equal(eng_script_slots(s), 2);
    assert_int_equal(eng_script_dense(s, 7), 0); /* used first */
    assert_int_equal(eng_script_dense(s, 3), 1);
    eng_script_close(s);
}

static void a_tensor_at_an_odd_byte_is_read_aligned(void **state)
{
    script *s = *state;
    s->format = "an-export-1";
    put(s, "round.2.padding", FMT_DTYPE_U8, 1, 1, 1);
    part odd = s->part[0];
    s->part[0] = s->part[s->n - 1];
    s->part[s->n - 1] = odd; /* everything but the last now lies one byte further */
    eng_script *o = opened(s);
    for (int32_t i = 0; i < eng_script_rounds(o); i++) {
        const eng_round *r = eng_script_at(o, i);
        for (int32_t k = 0; k < r->n_inserts; k++) {
            assert_int_equal((uintptr_t)r->inserts[k].taps % 2, 0);
            assert_int_equal((uintptr_t)r->inserts[k].pos % 4, 0);
        }
    }
    assert_int_equal(eng_script_at(o, 0)->inserts[0].pos[0], 1000);
    eng_script_close(o);
}

static void rounds_that_only_insert_or_only_draft_are_fine(void **state)
{
    script *s = *state;
    add_draft(s, 12, 1, INTS(3), INTS(5), 1);
    add_draft(s, 13, 1, INTS(3), INTS(5), 1); /* the same draft again */
    accepted(s);
}

static void four_slots_a_step_and_no_more(void **state)
{
    script *s = *state;
    for (int slot = 20; slot < 25; slot++) add_insert(s, 30, slot, 0, 1);
    add_draft(s, 30, 4, INTS(20, 21, 22, 23), INTS(0, 0, 0, 0), 5);
    accepted(s);
    add_draft(s, 31, 5, INTS(20, 21, 22, 23, 24), INTS(0, 0, 0, 0, 0), 5);
    refused(s, "round 31", "draft.slots: found I32 [5], wanted I32 [1 to 4]");
}

static void a_first_insert_may_start_anywhere_if_the_window_is_whole(void **state)
{
    script *s = *state;
    add_insert(s, 20, 1, 500, 128);
    add_draft(s, 20, 1, INTS(1), INTS(627), 5);
    accepted(s);
    add_insert(s, 21, 2, 500, 127);
    accepted(s); /* fine as long as nobody drafts from it */
    add_draft(s, 21, 1, INTS(2), INTS(626), 5);
    refused(s, "round 21 slot 2", "rows from 500 on, wanted from 499 on");
}

static void a_late_start_is_refused_even_below_the_window(void **state)
{
    script *s = *state;
    add_insert(s, 20, 1, 1, 4);
    add_draft(s, 20, 1, INTS(1), INTS(4), 5);
    refused(s, "round 20 slot 1", "wanted from 0 on");
}

static void exports_and_files_without_metadata_are_scripts_too(void **state)
{
    script *s = *state;
    s->format = NULL;
    accepted(s);
    put(s, "round.2.s0.attn_out", FMT_DTYPE_BF16, 2, 5, 256);
    refused(s, "round.2.s0.attn_out", "unknown");
    s->format = "sparktape-script-1";
    refused(s, "round.2.s0.attn_out", "unknown");
    s->format = "sparktape-golden-1";
    accepted(s);
    put(s, "hello", FMT_DTYPE_U8, 1, 1, 1);
    refused(s, "hello", "unknown");
}

/* ---- what is refused ---- */

static void positions_must_go_on_without_a_gap(void **state)
{
    script *s = *state;
    static const struct { int32_t found; const char *what; } BAD[] = {
        { 1129, "repeat" }, { 1128, "go back" }, { 0, "go back" }, { 1132, "gap" }, { INT32_MAX, "at most" },
        { -1, "negative" }, { INT32_MIN, "negative" },
    };
    for (size_t i = 0; i < COUNT_OF(BAD); i++) {
        set_int(s, "round.10.insert.7.pos", 0, BAD[i].found);
        refused(s, "round 10 slot 7: pos[0]", BAD[i].what);
    }
    set_int(s, "round.10.insert.7.pos", 0, 1130);
    set_int(s, "round.10.insert.7.pos", 1, 1132);
    refused(s, "round 10 slot 7: pos[1]: found 1132 after 1130, wanted 1131", "gap");
    set_int(s, "round.10.insert.7.pos", 1, 1130);
    refused(s, "round 10 slot 7: pos[1]", "repeat");
    set_int(s, "round.10.insert.7.pos", 1, 1131);
    set_int(s, "round.2.insert.7.pos", 0, -5);
    refused(s, "round 2 slot 7: pos[0]: found -5", "negative");
}

static void taps_must_be_finite(void **state)
{
    script *s = *state;
    uint8_t *last = get(s, "round.10.insert.3.taps")->data + 2 * (4 * WIDTH + 767);
    static const uint16_t BAD[] = { 0x7f80, 0xff80, 0x7fc0, 0xffff, 0x7f81 };
    for (size_t i = 0; i < COUNT_OF(BAD); i++) {
        put_u16(last, BAD[i]);
        refused(s, "round 10 slot 3: taps[4][767]", i < 2 ? "infinity" : "NaN");
    }
    put_u16(last, 0xff7f); /* the largest finite one */
    accepted(s);
}

static void taps_must_have_the_right_width_type_and_rows(void **state)
{
    script *s = *state;
    part *p = get(s, "round.11.insert.3.taps");
    part kept = *p;
    p->dtype = FMT_DTYPE_F16;
    refused(s, "round 11 slot 3: taps", "found F16 [1, 768], wanted BF16 [P, 768]");
    *p = kept;
    p->shape[0] = 2;
    p->shape[1] = WIDTH / 2;
    refused(s, "round 11 slot 3: taps", "found BF16 [2, 384]");
    *p = kept;
    p->ndim = 1;
    p->shape[0] = WIDTH;
    refused(s, "round 11 slot 3: taps", "found BF16 [768]");
    *p = kept;
    p->shape[0] = 0;
    p->bytes = 0;
    refused(s, "round 11 slot 3: taps", "P = 0");
    *p = kept;
    part *pos = get(s, "round.11.insert.3.pos");
    pos->dtype = FMT_DTYPE_U32;
    refused(s, "round 11 slot 3: pos", "found U32 [1], wanted I32 [1]");
    pos->dtype = FMT_DTYPE_I32;
    pos->shape[0] = 0;
    pos->bytes = 0;
    refused(s, "round 11 slot 3: pos", "found I32 [0], wanted I32 [1]");
}

static void an_insert_needs_both_its_tensors(void **state)
{
    script *s = *state;
    drop(s, "round.11.insert.3.pos");
    refused(s, "round 11 slot 3", "taps without pos");
    drop(s, "round.11.insert.3.taps");
    accepted(s);
    drop(s, "round.10.insert.3.taps");
    refused(s, "round 10 slot 3", "pos without taps");
}

static void a_draft_needs_all_its_tensors(void **state)
{
    static const char *const WORDS[] = { "slots", "anchor", "pos", "n_out" };
    script *s = *state;
    for (int i = 0; i < 4; i++) {
        char name[64], word[16];
        snprintf(name, sizeof name, "round.10.draft.%s", WORDS[i]);
        snprintf(word, sizeof word, "draft.%s", WORDS[i]);
        part *p = get(s, name);
        strcpy(p->name, "round.99.draft.n_out"); /* alone in a round of its own, which comes later */
        refused(s, "round 10", word);
        strcpy(p->name, name);
    }
}

static void drafts_must_follow_the_slots_state(void **state)
{
    script *s = *state;
    set_int(s, "round.10.draft.pos", 0, 1130);
    refused(s, "round 10 slot 7", "draft.pos: found 1130, wanted 1131");
    set_int(s, "round.10.draft.pos", 0, 1131);
    set_int(s, "round.10.draft.slots", 1, 7);
    refused(s, "round 10 slot 7", "twice");
    set_int(s, "round.10.draft.slots", 1, 4);
    refused(s, "round 10 slot 4", "before any insert");
    set_int(s, "round.10.draft.slots", 1, -3);
    refused(s, "round 10", "slot -3");
    set_int(s, "round.10.draft.slots", 1, 3);
    set_int(s, "round.2.draft.slots", 0, 3); /* its first insert is in round 10 */
    refused(s, "round 2 slot 3", "before any insert");
}

static void anchors_and_counts_must_be_in_range(void **state)
{
    script *s = *state;
    static const int32_t BAD_OUT[] = { 0, -1, 6, INT32_MAX }, BAD_ANCHOR[] = { -1, 1280, INT32_MAX };
    for (size_t i = 0; i < COUNT_OF(BAD_OUT); i++) {
        set_int(s, "round.10.draft.n_out", 0, BAD_OUT[i]);
        refused(s, "round 10 slot 7", "draft.n_out");
    }
    set_int(s, "round.10.draft.n_out", 0, 1);
    for (size_t i = 0; i < COUNT_OF(BAD_ANCHOR); i++) {
        set_int(s, "round.10.draft.anchor", 1, BAD_ANCHOR[i]);
        refused(s, "round 10 slot 3", "draft.anchor");
    }
    set_int(s, "round.10.draft.anchor", 1, 0);
    part *p = get(s, "round.10.draft.anchor");
    p->shape[0] = 1;
    p->bytes = 4;
    refused(s, "round 10", "draft.anchor: found I32 [1], wanted I32 [2]");
}

static void only_plain_names_are_names(void **state)
{
    static const char *const BAD[] = {
        "round.02.insert.7.taps", "round.2.insert.07.taps", "round.-1.draft.pos", "round.2.insert.+7.pos",
        "round.2.insert.7.tap", "round.2.insert.7", "round.2.insert..taps", "round..draft.pos", "round.2.draft.",
        "round.2.draft.slot", "Round.2.draft.pos", "round.2147483648.draft.pos",
        "round.2.insert.99999999999999999999.pos", "round.2.insert.7.taps.x", "round.2", "",
    };
    script *s = *state;
    part *p = put(s, "x", FMT_DTYPE_I32, 1, 1, 1);
    for (size_t i = 0; i < COUNT_OF(BAD); i++) {
        snprintf(p->name, sizeof p->name, "%s", BAD[i]);
        refused(s, BAD[i], "unknown");
    }
}

static void a_script_without_rounds_is_refused(void **state)
{
    script *s = *state;
    while (s->n) drop(s, s->part[0].name);
    refused(s, s->path, "no rounds");
    add_draft(s, 0, 1, INTS(0), INTS(0), 1);
    refused(s, "round 0 slot 0", "before any insert");
}

static void the_position_rule_names_the_first_bad_row(void **state)
{
    (void)state;
    int32_t bad = 99;
    assert_true(eng_positions_follow(-1, INTS(17, 18), 2, &bad));
    assert_true(eng_positions_follow(16, INTS(17, 18), 2, &bad));
    assert_int_equal(bad, 99);
    assert_false(eng_positions_follow(15, INTS(17, 18), 2, &bad));
    assert_int_equal(bad, 0);
    assert_false(eng_positions_follow(-1, INTS(17, 18, 18), 3, &bad));
    assert_int_equal(bad, 2);
    assert_false(eng_positions_follow(INT32_MAX - 1, INTS(INT32_MAX), 1, &bad));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(rounds_come_in_number_order_and_inserts_in_slot_order),
        TEST(a_tensor_at_an_odd_byte_is_read_aligned),
        TEST(rounds_that_only_insert_or_only_draft_are_fine),
        TEST(four_slots_a_step_and_no_more),
        TEST(a_first_insert_may_start_anywhere_if_the_window_is_whole),
        TEST(a_late_start_is_refused_even_below_the_window),
        TEST(exports_and_files_without_metadata_are_scripts_too),
        TEST(positions_must_go_on_without_a_gap),
        TEST(taps_must_be_finite),
        TEST(taps_must_have_the_right_width_type_and_rows),
        TEST(an_insert_needs_both_its_tensors),
        TEST(a_draft_needs_all_its_tensors),
        TEST(drafts_must_follow_the_slots_state),
        TEST(anchors_and_counts_must_be_in_range),
        TEST(only_plain_names_are_names),
        TEST(a_script_without_rounds_is_refused),
        TEST(the_position_rule_names_the_first_bad_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
