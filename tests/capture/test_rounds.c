#include "tape_help.h"

#include "capture/rounds.h"

enum { W = 4, DIM = 32, TAPS = 2 * DIM, VOCAB = 100, BLOCK = 5 };

static eng_config config(void)
{
    eng_config c = { .vocab = VOCAB, .dim = DIM, .n_taps = 2, .window = W, .block = BLOCK, .n_stages = 1 };
    return c;
}

/* What one insert or draft says; a test changes a field and sees it refused. */
typedef struct insert { int32_t slot, first, rows, jump_at; bool no_pos, no_taps, main_x, nan, narrow; } insert;
typedef struct draft { int32_t n, slots[5], pos[5], anchor, n_out; bool no_anchor, short_pos; } draft;

static void put_insert(fmt_tape_writer *w, int32_t round, insert in)
{
    bf16 x[16 * TAPS] = { 0 };
    int32_t pos[16];
    for (int i = 0; i < in.rows; i++) pos[i] = in.first + i + (in.jump_at && i >= in.jump_at);
    for (int i = 0; i < in.rows * TAPS; i++) x[i] = bf16_from_f32((float)(in.first + i));
    if (in.nan) x[in.rows * TAPS - 1] = 0x7f80;
    const int64_t taps_shape[] = { in.rows, in.narrow ? TAPS - 1 : TAPS }, x_shape[] = { in.rows, DIM };
    if (!in.no_taps) tape_put(w, round, in.slot, 0, "taps", FMT_DTYPE_BF16, x, 2, taps_shape);
    if (!in.no_pos) tape_put_ints(w, round, in.slot, "pos", in.rows, pos);
    if (in.main_x) tape_put(w, round, in.slot, 0, "main_x", FMT_DTYPE_BF16, x, 2, x_shape);
}

static void put_draft(fmt_tape_writer *w, int32_t round, draft d)
{
    int32_t anchors[5] = { d.anchor, d.anchor, d.anchor, d.anchor, d.anchor };
    tape_put_ints(w, round, FMT_TAPE_NO_SLOT, "draft.slots", d.n, d.slots);
    if (!d.no_anchor) tape_put_ints(w, round, FMT_TAPE_NO_SLOT, "draft.anchor", d.n, anchors);
    tape_put_ints(w, round, FMT_TAPE_NO_SLOT, "draft.pos", d.short_pos ? d.n - 1 : d.n, d.pos);
    tape_put_ints(w, round, FMT_TAPE_NO_SLOT, "draft.n_out", 1, &d.n_out);
}

static void rounds_come_back_as_they_went_in(void **state)
{
    const eng_config c = config();
    (void)state;
    fmt_tape_writer *w = tape_begin("good.tape", NULL);
    put_insert(w, 2, (insert){ .slot = 9, .first = 0, .rows = 3 });
    put_insert(w, 2, (insert){ .slot = 4, .first = 100, .rows = 6, .main_x = true });
    put_draft(w, 2, (draft){ .n = 2, .slots = { 9, 4 }, .pos = { 2, 105 }, .anchor = 7, .n_out = 3 });
    put_insert(w, 3, (insert){ .slot = 9, .first = 3, .rows = 1, .no_taps = true, .main_x = true });
    tape_put_ints(w, 4, FMT_TAPE_NO_SLOT, "drafts", 1, &(int32_t){ 1 }); /* values alone are no round */
    put_draft(w, 5, (draft){ .n = 1, .slots = { 9 }, .pos = { 3 }, .n_out = BLOCK });
    fmt_tape *t = tape_end(w, "good.tape");
    cap_rounds *r;
    OK(cap_rounds_open(t, &c, &r, e));
    assert_int_equal(cap_rounds_count(r), 3);
    assert_int_equal(cap_rounds_slots(r), 2);
    assert_int_equal(cap_rounds_dense(r, 4), 0); /* ascending slots within a round */
    assert_int_equal(cap_rounds_dense(r, 9), 1);
    assert_int_equal(cap_rounds_dense(r, 5), -1);
    eng_round at;
    const bf16 *const *main_x;
    OK(cap_rounds_at(r, 0, &at, &main_x, e));
    assert_int_equal(at.round, 2);
    assert_int_equal(at.n_inserts, 2);
    assert_int_equal(at.inserts[0].slot, 4);
    assert_int_equal(at.inserts[0].rows, 6);
    assert_int_equal(at.inserts[0].pos[5], 105);
    assert_int_equal(at.inserts[0].taps[1], bf16_from_f32(101));
    assert_non_null(main_x[0]);
    assert_int_equal(at.inserts[1].slot, 9);
    assert_null(main_x[1]);
    assert_int_equal(at.batch, 2);
    assert_int_equal(at.slots[1], 4);
    assert_int_equal(at.pos[1], 105);
    assert_int_equal(at.anchors[0], 7);
    assert_int_equal(at.n_out, 3);
    OK(cap_rounds_at(r, 1, &at, &main_x, e));
    assert_int_equal(at.n_inserts, 1);
    assert_null(at.inserts[0].taps);
    assert_int_equal(main_x[0][2], bf16_from_f32(5));
    assert_int_equal(at.batch, 0);
    OK(cap_rounds_at(r, 2, &at, &main_x, e));
    assert_int_equal(at.n_inserts, 0);
    assert_int_equal(at.batch, 1);
    cap_rounds_close(r);
    fmt_tape_close(t);
}

/* Round 0 inserts a (and b unless its rows are 0), round 1 drafts d; all of it is read. */
static err_code attempt(insert a, insert b, draft d, err *e)
{
    const eng_config c = config();
    fmt_tape_writer *w = tape_begin("case.tape", NULL);
    put_insert(w, 0, a);
    if (b.rows) put_insert(w, 1, b);
    if (d.n) put_draft(w, 1, d);
    fmt_tape *t = tape_end(w, "case.tape");
    cap_rounds *r = NULL;
    err_code rc = cap_rounds_open(t, &c, &r, e);
    for (int32_t i = 0; rc == ERR_OK && i < cap_rounds_count(r); i++) {
        eng_round at;
        const bf16 *const *main_x;
        rc = cap_rounds_at(r, i, &at, &main_x, e);
    }
    cap_rounds_close(r);
    fmt_tape_close(t);
    return rc;
}

static void what_no_script_may_say_is_refused_by_round_and_slot(void **state)
{
    const insert a = { .slot = 3, .first = 0, .rows = 3 }, none = { 0 };
    const draft d = { .n = 1, .slots = { 3 }, .pos = { 2 }, .n_out = 5 };
    insert x;
    draft y;
    (void)state;
    OK(attempt(a, none, d, e));
#define CHANGED_INSERT(change, text) do { x = a; x.change; REFUSED(attempt(x, none, d, e), ERR_INPUT, text); } while (0)
#define CHANGED_DRAFT(change, text) do { y = d; y.change; REFUSED(attempt(a, none, y, e), ERR_INPUT, text); } while (0)
    CHANGED_INSERT(jump_at = 1, "round 0 slot 3: position 2 at row 1 does not follow 0");
    CHANGED_INSERT(first = -1, "round 0 slot 3: position -1 at row 0");
    CHANGED_INSERT(no_pos = true, "round 0 slot 3 has no pos");
    CHANGED_INSERT(no_taps = true, "round 0 slot 3: has neither taps nor main_x");
    CHANGED_INSERT(nan = true, "round 0 slot 3: taps is not finite at row 2, column 63");
    CHANGED_INSERT(narrow = true, "round 0 slot 3: taps is BF16 [3, 63], wanted BF16 [3, 64]");
    CHANGED_INSERT(slot = 4, "round 1 slot 3: draft before any insert");
    CHANGED_INSERT(first = 1, "round 1 slot 3: draft at position 2, wanted the last inserted one, 3");
    const insert late = { .slot = 3, .first = 8, .rows = 3 };
    const insert gap = { .slot = 3, .first = 4, .rows = 1 }, again = { .slot = 3, .first = 2, .rows = 1 };
    const draft no_draft = { 0 }, at_10 = { .n = 1, .slots = { 3 }, .pos = { 10 }, .n_out = 1 };
    REFUSED(attempt(late, none, at_10, e), ERR_INPUT,
            "round 1 slot 3: draft at position 10 needs rows from 7 on, the slot begins at 8");
    REFUSED(attempt(a, gap, no_draft, e), ERR_INPUT, "round 1 slot 3: position 4");
    REFUSED(attempt(a, again, no_draft, e), ERR_INPUT, "round 1 slot 3: position 2");
    CHANGED_DRAFT(n_out = 6, "round 1: draft.n_out 6");
    CHANGED_DRAFT(n_out = 0, "round 1: draft.n_out 0");
    CHANGED_DRAFT(anchor = VOCAB, "round 1 slot 3: anchor 100");
    CHANGED_DRAFT(anchor = -1, "round 1 slot 3: anchor -1");
    CHANGED_DRAFT(pos[0] = 1, "round 1 slot 3: draft at position 1");
    CHANGED_DRAFT(no_anchor = true, "round 1 has no draft.anchor");
    y = d;
    y.n = 2;
    y.slots[1] = 3;
    y.pos[1] = 2;
    REFUSED(attempt(a, none, y, e), ERR_INPUT, "round 1 slot 3: twice");
    y.short_pos = true;
    y.slots[1] = 4;
    REFUSED(attempt(a, none, y, e), ERR_INPUT, "round 1: draft.pos is I32 [1], wanted I32 [2]");
    y = d;
    y.n = 5;
    REFUSED(attempt(a, none, y, e), ERR_INPUT, "round 1: draft of 5 slots");
}

static void a_tape_without_inputs_is_refused(void **state)
{
    const eng_config c = config();
    (void)state;
    fmt_tape_writer *w = tape_begin("values.tape", NULL);
    tape_put_ints(w, 0, FMT_TAPE_NO_SLOT, "drafts", 1, &(int32_t){ 1 });
    fmt_tape *t = tape_end(w, "values.tape");
    cap_rounds *r;
    REFUSED(cap_rounds_open(t, &c, &r, e), ERR_INPUT, "no inputs");
    assert_null(r);
    fmt_tape_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounds_come_back_as_they_went_in),
        cmocka_unit_test(what_no_script_may_say_is_refused_by_round_and_slot),
        cmocka_unit_test(a_tape_without_inputs_is_refused),
    };
    return cmocka_run_group_tests(tests, enter_folder, NULL);
}
