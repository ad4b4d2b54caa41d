/* Redaction: the permutation and its key, what it does to the values of a tape, and what it leaves alone. */
#include "honest.h"
#include "recorder_help.h"

#include "capture/joined.h"
#include "capture/redact.h"
#include "kernels/digest.h"

#include <sys/stat.h>

enum { OFFICIAL_VOCAB = 129280 };

/* Bytes first, first + 37, ... */
static void write_key(const char *path, int first, size_t bytes)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    for (size_t i = 0; i < bytes; i++) fputc((first + 37 * (int)i) & 0xff, f);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(chmod(path, 0600), 0);
}

static cap_redact *open_key(const char *path, int32_t vocab)
{
    cap_redact *r;
    OK(cap_redact_open(path, false, vocab, &r, e));
    return r;
}

/* ---- the permutation ---- */

static void every_id_has_one_place_and_comes_back(void **state)
{
    static const int32_t VOCABS[] = { 1, 2, 7, 600, OFFICIAL_VOCAB };
    (void)state;
    write_key("a.key", 0, CAP_KEY_BYTES);
    for (size_t k = 0; k < COUNT_OF(VOCABS); k++) {
        cap_redact *r = open_key("a.key", VOCABS[k]);
        bool *taken = mem_alloc((size_t)VOCABS[k], sizeof *taken);
        int32_t n_fixed = 0;
        assert_non_null(taken);
        for (int32_t i = 0; i < VOCABS[k]; i++) {
            int32_t to = cap_redact_id(r, i);
            assert_in_range(to, 0, VOCABS[k] - 1);
            assert_false(taken[to]);
            taken[to] = true;
            assert_int_equal(cap_redact_reveal(r, to), i);
            n_fixed += to == i;
        }
        if (VOCABS[k] >= 600) assert_true(n_fixed < 10); /* one is to be expected of a random permutation */
        assert_int_equal(cap_redact_id(r, -1), -1);
        assert_int_equal(cap_redact_id(r, VOCABS[k]), VOCABS[k]);
        free(taken);
        cap_redact_close(r);
    }
}

/* Made by a program in another language from the header's words. */
static void the_permutation_is_the_documented_one(void **state)
{
    static const int32_t WANT[] = { 4, 11, 5, 7, 6, 9, 0, 2, 10, 8, 3, 1 };
    static const int32_t OFFICIAL[][2] = { { 0, 124864 }, { 1, 121312 }, { 128799, 97074 }, { 129279, 58255 } };
    (void)state;
    write_key("a.key", 0, CAP_KEY_BYTES);
    cap_redact *r = open_key("a.key", (int32_t)COUNT_OF(WANT));
    for (int32_t i = 0; i < (int32_t)COUNT_OF(WANT); i++) assert_int_equal(cap_redact_id(r, i), WANT[i]);
    assert_string_equal(cap_redact_key(r), "ecc868db6ea7d9fb");
    cap_redact_close(r);
    r = open_key("a.key", OFFICIAL_VOCAB);
    for (size_t i = 0; i < COUNT_OF(OFFICIAL); i++) assert_int_equal(cap_redact_id(r, OFFICIAL[i][0]), OFFICIAL[i][1]);
    cap_redact_close(r);
}

static void another_key_is_another_permutation_with_another_name(void **state)
{
    (void)state;
    write_key("a.key", 0, CAP_KEY_BYTES);
    write_key("b.key", 1, CAP_KEY_BYTES);
    cap_redact *a = open_key("a.key", OFFICIAL_VOCAB), *again = open_key("a.key", OFFICIAL_VOCAB);
    cap_redact *b = open_key("b.key", OFFICIAL_VOCAB);
    int32_t n_same = 0;
    for (int32_t i = 0; i < OFFICIAL_VOCAB; i++) {
        assert_int_equal(cap_redact_id(a, i), cap_redact_id(again, i));
        n_same += cap_redact_id(a, i) == cap_redact_id(b, i);
    }
    assert_true(n_same < 10);
    assert_string_equal(cap_redact_key(a), cap_redact_key(again));
    assert_string_not_equal(cap_redact_key(a), cap_redact_key(b));
    cap_redact_close(a);
    cap_redact_close(again);
    cap_redact_close(b);
}

static void columns_go_where_their_ids_go_over_shards(void **state)
{
    enum { VOCAB = 11, ROWS = 3 };
    static const int64_t COLS[] = { 4, 0, 6, 1 };
    uint32_t in[4][ROWS * 6], out[ROWS * VOCAB];
    const void *shard[4];
    int64_t first = 0;
    (void)state;
    write_key("a.key", 0, CAP_KEY_BYTES);
    cap_redact *r = open_key("a.key", VOCAB);
    for (int s = 0; s < 4; first += COLS[s++]) {
        shard[s] = in[s];
        for (int64_t row = 0; row < ROWS; row++)
            for (int64_t i = 0; i < COLS[s]; i++) in[s][row * COLS[s] + i] = (uint32_t)(100 * row + first + i);
    }
    cap_redact_columns(r, shard, COLS, 4, ROWS, out);
    const uint32_t *at = out;
    first = 0;
    for (int s = 0; s < 4; first += COLS[s++])
        for (int64_t row = 0; row < ROWS; row++)
            for (int64_t i = 0; i < COLS[s]; i++, at++)
                assert_int_equal(*at, 100 * row + cap_redact_reveal(r, (int32_t)(first + i)));
    cap_redact_close(r);
}

/* ---- the key file ---- */

static void a_key_is_made_once_and_for_its_owner_only(void **state)
{
    struct stat st;
    cap_redact *a, *b, *other;
    (void)state;
    OK(cap_redact_open("made.key", true, 600, &a, e));
    assert_int_equal(stat("made.key", &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(st.st_size, CAP_KEY_BYTES);
    OK(cap_redact_open("made.key", true, 600, &b, e));
    OK(cap_redact_open("other.key", true, 600, &other, e));
    assert_string_equal(cap_redact_key(a), cap_redact_key(b));
    assert_string_not_equal(cap_redact_key(a), cap_redact_key(other));
    cap_redact_close(a);
    cap_redact_close(b);
    cap_redact_close(other);
}

static void a_file_that_is_no_key_is_refused(void **state)
{
    cap_redact *r;
    (void)state;
    write_key("short.key", 0, CAP_KEY_BYTES - 1);
    write_key("long.key", 0, CAP_KEY_BYTES + 1);
    REFUSED(cap_redact_open("short.key", true, 600, &r, e), ERR_INPUT, "found 31 bytes, wanted a key of 32");
    assert_null(r);
    REFUSED(cap_redact_open("long.key", true, 600, &r, e), ERR_INPUT, "more than 32");
    REFUSED(cap_redact_open("none/x.key", true, 600, &r, e), ERR_IO, "none/x.key");
    REFUSED(cap_redact_open("none.key", false, 600, &r, e), ERR_INPUT, "none.key");
    REFUSED(cap_redact_open(".", true, 600, &r, e), ERR_INPUT, "found a folder");
    assert_int_equal(mkfifo("fifo.key", 0600), 0);
    REFUSED(cap_redact_open("fifo.key", true, 600, &r, e), ERR_INPUT, "no regular file");
    unlink("fifo.key");
    write_key("open.key", 0, CAP_KEY_BYTES);
    assert_int_equal(chmod("open.key", 0644), 0);
    REFUSED(cap_redact_open("open.key", true, 600, &r, e), ERR_INPUT, "open.key: found mode 0644, wanted 0600");
    assert_int_equal(access("none.key", F_OK), -1);
}

/* ---- tapes ---- */

/* A new integer value is either one of these or names tokens, and then redact.c has to know it. */
static void every_integer_value_is_known_to_tell_tokens_or_not(void **state)
{
    static const char NONE[] = "pos,draft.pos,block_pos,*.ffn.ids";
    (void)state;
    write_key("a.key", 0, CAP_KEY_BYTES);
    cap_redact *r = open_key("a.key", CONFIG.vocab);
    for (int step = 0; step < 2; step++) {
        eng_program *p;
        cap_hide hide[256];
        OK(eng_program_make(&CONFIG, (eng_step_kind)step, 1, ENG_COMBINE_EXACT, NULL, &p, e));
        assert_true(p->n_values <= (int32_t)COUNT_OF(hide));
        OK(cap_redact_program(r, p, true, hide, e));
        for (int32_t v = 0; v < p->n_values; v++) {
            const eng_value *value = &p->value[v];
            bool tells = cap_redact_tells_ids(value->name);
            assert_int_equal(tells, hide[v] == CAP_HIDE_IDS || hide[v] == CAP_HIDE_COLUMNS);
            if (value->dtype == FMT_DTYPE_I32 && tells == cli_match(NONE, value->name))
                fail_msg("%s: is it an id?", value->name);
            if (step == ENG_STEP_INSERT) assert_int_equal(hide[v], CAP_HIDE_NOTHING);
        }
        eng_program_free(p);
    }
    cap_redact_close(r);
}

/* The value of `from` as redaction has to leave it, in place. */
static void expect_hidden(const cap_redact *r, const char *name, cap_value *v)
{
    const fmt_tensor *t = &v->tensor;
    int64_t n = fmt_tensor_elems(t);
    if (t->dtype == FMT_DTYPE_I32) {
        int32_t *ids = (int32_t *)(uintptr_t)t->data;
        for (int64_t i = 0; i < n; i++) ids[i] = cap_redact_id(r, ids[i]);
        return;
    }
    assert_true(strncmp(name, "head.", 5) == 0 && t->shape[t->ndim - 1] == CONFIG.vocab);
    float *x = (float *)(uintptr_t)t->data, row[600];
    for (int64_t at = 0; at < n; at += CONFIG.vocab) {
        for (int32_t i = 0; i < CONFIG.vocab; i++) row[cap_redact_id(r, i)] = x[at + i];
        memcpy(x + at, row, sizeof row);
    }
}

static bool is_withheld(const char *name)
{
    return cli_match("x0,s0.attn.mix_*,s0.attn.collapse,s0.attn.norm,s0.attn.qr,s0.attn.q,s0.attn.kv", name);
}

/* Every value of plain is in red, replaced, withheld or as it was. *n_replaced of them were. */
static void assert_redacted(const cap_redact *r, const fmt_tape *plain, const fmt_tape *red, int32_t *n_replaced)
{
    cap_names *names;
    cap_value v = { 0 }, u = { 0 };
    OK(cap_names_make(plain, &names, e));
    *n_replaced = 0;
    for (size_t i = 0; i < cap_names_count(names); i++) {
        const cap_name *n = cap_names_at(names, i);
        const fmt_tape_key key = { n->round, n->slot, 0, n->name };
        if (is_withheld(n->name)) {
            assert_true(cap_redact_withholds(red, n->name));
            assert_true(fmt_tape_find(red, &key) < 0);
            continue;
        }
        assert_false(cap_redact_withholds(red, n->name));
        OK(cap_joined_get(plain, &key, &v, e));
        OK(cap_joined_get(red, &key, &u, e));
        if (cap_redact_tells_ids(n->name)) {
            if (memcmp(v.tensor.data, u.tensor.data, fmt_tensor_bytes(&v.tensor)) == 0)
                fail_msg("%s is as it was", n->name);
            expect_hidden(r, n->name, &v);
            ++*n_replaced;
        }
        assert_int_equal(fmt_tensor_bytes(&v.tensor), fmt_tensor_bytes(&u.tensor));
        if (memcmp(v.tensor.data, u.tensor.data, fmt_tensor_bytes(&v.tensor)) != 0) fail_msg("%s differs", n->name);
    }
    cap_value_fini(&v);
    cap_value_fini(&u);
    cap_names_free(names);
}

/* Whether the file at path holds these bytes. */
static bool file_holds(const char *path, const void *bytes, size_t n)
{
    FILE *f = fopen(path, "rb");
    struct stat st;
    assert_true(f && fstat(fileno(f), &st) == 0);
    uint8_t *data = mem_alloc((size_t)st.st_size, 1);
    assert_true(data && fread(data, 1, (size_t)st.st_size, f) == (size_t)st.st_size);
    bool found = memmem(data, (size_t)st.st_size, bytes, n) != NULL;
    free(data);
    fclose(f);
    return found;
}

static void ids_and_columns_are_replaced_and_nothing_else_changes(void **state)
{
    static const char *const MODES[] = { "eager", "graph" };
    static const eng_level LEVELS[] = { ENG_LEVEL_IO, ENG_LEVEL_V1, ENG_LEVEL_DEEP };
    uint8_t key[CAP_KEY_BYTES];
    (void)state;
    write_key("a.key", 0, CAP_KEY_BYTES);
    for (size_t i = 0; i < sizeof key; i++) key[i] = (uint8_t)(37 * i);
    cap_redact *r = open_key("a.key", CONFIG.vocab);
    for (size_t m = 0; m < 2; m++)
        for (size_t i = 0; i < 3; i++)
            for (int tp = 1; tp <= 2; tp++) {
                cap_options o = { .level = LEVELS[i] };
                int32_t n_replaced;
                fmt_tape *plain = record_script("plain.tape", tp, MODES[m], &o);
                o.redact = r;
                fmt_tape *red = record_script("red.tape", tp, MODES[m], &o);
                assert_redacted(r, plain, red, &n_replaced);
                assert_true(n_replaced > 3);
                assert_honest(red);
                assert_string_equal(cap_redact_key_of(red), cap_redact_key(r));
                assert_false(cap_redact_same_key(plain, red));
                fmt_tape_close(plain);
                fmt_tape_close(red);
                assert_false(file_holds("red.tape", key, sizeof key));
                assert_true(file_holds("red.tape", cap_redact_key(r), 16)); /* the search can find something */
            }
    cap_redact_close(r);
}

/* A digest of the ids themselves would be a table's look-up away from them. */
static void digests_are_of_what_was_replaced(void **state)
{
    const cli_list taps = { 1, { "*=hash" } };
    (void)state;
    write_key("a.key", 0, CAP_KEY_BYTES);
    cap_redact *r = open_key("a.key", CONFIG.vocab);
    const cap_options whole = { .level = ENG_LEVEL_DEEP, .redact = r };
    const cap_options hashed = { .level = ENG_LEVEL_DEEP, .redact = r, .taps = &taps };
    fmt_tape *tensors = record_script("tensors.tape", 1, "eager", &whole);
    fmt_tape *digests = record_script("digests.tape", 1, "eager", &hashed);
    int32_t n = 0;
    for (size_t i = 0; i < fmt_tape_count(digests); i++) {
        fmt_tape_record d;
        cap_value v = { 0 };
        uint64_t rows[64], digest;
        fmt_stats stats;
        fmt_tape_at(digests, i, &d);
        if (!d.has_digest || !cap_redact_tells_ids(d.key.name)) continue;
        int64_t at = fmt_tape_find(tensors, &d.key);
        if (at < 0) continue; /* top ids: deep keeps the whole */
        OK(cap_record_get(tensors, (size_t)at, &v, e));
        assert_true(krn_digest_rows(&v.tensor) <= COUNT_OF(rows));
        krn_digest_ref(&v.tensor, rows, &digest, &stats);
        if (digest != d.digest) fail_msg("%s: another digest", d.key.name);
        cap_value_fini(&v);
        n++;
    }
    assert_true(n >= 12);
    fmt_tape_close(tensors);
    fmt_tape_close(digests);
    cap_redact_close(r);
}

static void what_tells_ids_is_not_had_by_name(void **state)
{
    const cli_list named = { 2, { "s1.*=tensor", "x0=hash" } }, pattern = { 1, { "x*=tensor" } };
    (void)state;
    write_key("a.key", 0, CAP_KEY_BYTES);
    cap_redact *r = open_key("a.key", CONFIG.vocab);
    cap_options o = { .level = ENG_LEVEL_IO, .redact = r, .taps = &named };
    const eng_options run = options_of(1, "eager");
    session s;
    OK(eng_open(weights, &run, 1, ENG_LEVEL_DEEP, true, &s.engine, e));
    json_t *identity = json_object();
    REFUSED(cap_recorder_open(s.engine, "x.tape", identity, &o, &s.recorder, e), ERR_ARG, "--tap x0");
    json_decref(identity);
    eng_close(s.engine);
    assert_int_equal(access("x.tape.part", F_OK), -1);
    o.taps = &pattern;
    fmt_tape *t = record_script("x.tape", 1, "eager", &o);
    for (size_t i = 0; i < fmt_tape_count(t); i++) {
        fmt_tape_record rec;
        fmt_tape_at(t, i, &rec);
        assert_string_not_equal(rec.key.name, "x0");
    }
    fmt_tape_close(t);
    cap_redact_close(r);
}

static void a_false_answer_is_told_in_replaced_ids(void **state)
{
    int32_t drafts[2], lie[2], pos = 0, slot = 0, anchor = 3, round;
    float confidence[2];
    (void)state;
    write_key("a.key", 0, CAP_KEY_BYTES);
    cap_redact *r = open_key("a.key", CONFIG.vocab);
    const cap_options o = { .level = ENG_LEVEL_IO, .redact = r };
    session s = begin("answer.tape", 1, "eager", &o);
    cap_part *insert, *draft;
    OK(cap_part_insert(s.recorder, 0, ROW, NULL, &pos, 1, &insert, e));
    OK(eng_insert(s.engine, 0, ROW, &pos, 1, cap_part_tap(insert), e));
    OK(cap_part_draft(s.recorder, 1, &slot, &anchor, &pos, 2, &draft, e));
    OK(eng_draft(s.engine, 1, &slot, &anchor, &pos, 2, drafts, confidence, cap_part_tap(draft), e));
    lie[0] = drafts[0];
    lie[1] = (drafts[1] + 1) % CONFIG.vocab;
    cap_part_answer(draft, lie, confidence);
    OK(cap_recorder_submit(s.recorder, 0, &insert, 1, draft, e));
    fmt_tape *t = finish(&s, "answer.tape");
    const json_t *answer = json_object_get(fmt_tape_event_at(t, 0, &round), "answer");
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(json_integer_value(json_array_get(answer, i)), cap_redact_id(r, lie[i]));
    fmt_tape_close(t);
    cap_redact_close(r);
}

/* Without the key ids stay what they are, and what a draft would make of them is not recorded. */
static void a_tape_made_from_a_redacted_one_keeps_its_ids(void **state)
{
    (void)state;
    write_key("a.key", 0, CAP_KEY_BYTES);
    cap_redact *r = open_key("a.key", CONFIG.vocab), *inherited;
    cap_options o = { .level = ENG_LEVEL_V1, .redact = r };
    fmt_tape *red = record_script("red.tape", 1, "eager", &o);
    OK(cap_redact_inherit(red, &inherited, e));
    o.redact = inherited;
    fmt_tape *again = record_script("again.tape", 1, "eager", &o); /* as if the script's ids were replaced ones */
    int32_t n_windows = 0;
    for (size_t i = 0; i < fmt_tape_count(again); i++) {
        fmt_tape_record a, b;
        fmt_tape_at(again, i, &a);
        bool input = strncmp(a.key.name, "draft.", 6) == 0;
        if (a.key.slot == FMT_TAPE_NO_SLOT) assert_true(input);
        n_windows += cli_match("*.window", a.key.name);
        fmt_tape_at(red, (size_t)fmt_tape_find(red, &a.key), &b);
        if (strcmp(a.key.name, "draft.anchor") != 0) assert_true(a.hash == b.hash);
    }
    assert_true(n_windows > 4);
    assert_true(cap_redact_same_key(red, again));
    assert_true(cap_redact_withholds(again, "drafts") && cap_redact_withholds(again, "head.logits.top_ids"));
    assert_false(cap_redact_withholds(again, "main_x"));
    assert_honest(again);
    fmt_tape_close(red);
    fmt_tape_close(again);
    cap_redact_close(r);
    cap_redact_close(inherited);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_id_has_one_place_and_comes_back),
        cmocka_unit_test(the_permutation_is_the_documented_one),
        cmocka_unit_test(another_key_is_another_permutation_with_another_name),
        cmocka_unit_test(columns_go_where_their_ids_go_over_shards),
        cmocka_unit_test(a_key_is_made_once_and_for_its_owner_only),
        cmocka_unit_test(a_file_that_is_no_key_is_refused),
        cmocka_unit_test(every_integer_value_is_known_to_tell_tokens_or_not),
        cmocka_unit_test(ids_and_columns_are_replaced_and_nothing_else_changes),
        cmocka_unit_test(digests_are_of_what_was_replaced),
        cmocka_unit_test(what_tells_ids_is_not_had_by_name),
        cmocka_unit_test(a_false_answer_is_told_in_replaced_ids),
        cmocka_unit_test(a_tape_made_from_a_redacted_one_keeps_its_ids),
    };
    return cmocka_run_group_tests(tests, make_model, drop_model);
}
