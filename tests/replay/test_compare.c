#include "replay_help.h"

#include "replay/value.h"

#include <math.h>

static fmt_tape *source; /* deep, one rank */

static int setup(void **state)
{
    if (run_setup(state) != 0) return -1;
    eng_options o = run_options("native-packed", 1, "eager");
    source = record("source.tape", &o, ENG_LEVEL_DEEP);
    return 0;
}

static int teardown(void **state)
{
    fmt_tape_close(source);
    return run_teardown(state);
}

/* Everything the tests ask of a comparison. */
typedef struct summary {
    int64_t n_elems, n_equal, n_differ, n_findings, by_class[RPL_CLASS_COUNT], by_state[RPL_STATE_COUNT], n_blocks, n_exact;
    char origin[64], inherited[64]; /* first of the kind: "round/slot/name" */
    char origin_op[64];
} summary;

static summary sum_of(rpl_compare *c)
{
    summary s = { 0 };
    for (int32_t i = 0; i < rpl_compare_rounds(c); i++) {
        const rpl_round *r;
        OK(rpl_compare_round(c, i, &r, e));
        s.n_elems += r->n_elems;
        s.n_equal += r->n_equal;
        s.n_differ += r->n_differ;
        s.n_findings += r->n_findings;
        for (int32_t k = 0; k < r->n_values; k++) {
            const rpl_value *v = &r->value[k];
            s.by_class[v->cls]++;
            s.by_state[v->state]++;
            char *to = v->cls == RPL_CLASS_ORIGIN ? s.origin : v->cls == RPL_CLASS_INHERITED ? s.inherited : NULL;
            if (!to || to[0]) continue;
            snprintf(to, 64, "%d/%d/%.40s", r->round, v->slot, v->name);
            if (to == s.origin) snprintf(s.origin_op, sizeof s.origin_op, "%.60s", v->op);
        }
        for (int32_t k = 0; k < r->n_drafts; k++) s.n_exact += r->draft[k].exact;
        s.n_blocks += r->n_drafts;
    }
    return s;
}

static summary compare(const fmt_tape *a, const fmt_tape *b, const char *taps)
{
    rpl_compare *c;
    OK(rpl_compare_open(a, b, NULL, taps, &c, e));
    summary s = sum_of(c);
    rpl_compare_close(c);
    return s;
}

static summary compare_flipped(const char *first, const char *second)
{
    flips f = { .at = { first, second } };
    fmt_tape *t = copy_tape(source, "flipped.tape", flip_bits, &f);
    assert_int_equal(f.n_done, 1 + (second != NULL));
    summary s = compare(source, t, NULL);
    fmt_tape_close(t);
    return s;
}

static void a_tape_equals_itself(void **state)
{
    (void)state;
    summary s = compare(source, source, NULL);
    assert_true(s.n_elems > 100000);
    assert_int_equal(s.n_differ, 0);
    assert_int_equal(s.n_findings, 0);
    assert_int_equal(s.by_state[RPL_STATE_COMPARED], s.n_equal);
    assert_true(s.n_blocks > 0);
    assert_int_equal(s.n_exact, s.n_blocks);
}

static void a_value_changed_alone_is_the_origin(void **state)
{
    static const char *const AT[] = { "1/-1/s1.attn.qr", "2/-1/s0.ffn.slot", "1/-1/head.logits",
                                      "3/-1/confidence", "0/1/s2.main_kv",   "0/0/main_x" };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(AT); i++) {
        summary s = compare_flipped(AT[i], NULL);
        assert_int_equal(s.by_class[RPL_CLASS_ORIGIN], 1);
        assert_int_equal(s.n_differ, 1);
        assert_string_equal(s.origin, AT[i]);
    }
}

static void what_follows_a_changed_input_has_inherited(void **state)
{
    (void)state;
    summary s = compare_flipped("1/-1/s0.attn.norm", "1/-1/s0.attn.qr");
    assert_string_equal(s.origin, "1/-1/s0.attn.norm");
    assert_string_equal(s.inherited, "1/-1/s0.attn.qr");
    s = compare_flipped("1/-1/s0.attn.norm", "1/-1/s0.ffn.gate"); /* s0.ffn.gate does not read s0.attn.norm */
    assert_int_equal(s.by_class[RPL_CLASS_ORIGIN], 2);
}

static void a_window_is_judged_by_the_rows_that_went_into_it(void **state)
{
    (void)state;
    summary s = compare_flipped("2/0/s1.window", NULL);
    assert_string_equal(s.origin, "2/0/s1.window");
    assert_string_equal(s.origin_op, "s1.window");
    s = compare_flipped("0/0/s1.main_kv", "2/0/s1.window"); /* the row came in two rounds before */
    assert_string_equal(s.origin, "0/0/s1.main_kv");
    assert_string_equal(s.inherited, "2/0/s1.window");
    s = compare_flipped("2/0/s1.window", "2/-1/s1.attn.o");
    assert_string_equal(s.inherited, "2/-1/s1.attn.o");
}

static void a_changed_input_is_no_origin(void **state)
{
    (void)state;
    summary s = compare_flipped("0/0/taps", "0/0/main_x");
    assert_int_equal(s.by_class[RPL_CLASS_INPUT], 1);
    assert_int_equal(s.by_class[RPL_CLASS_ORIGIN], 0);
    assert_string_equal(s.inherited, "0/0/main_x");
    s = compare_flipped("1/-1/draft.anchor", "1/-1/ids");
    assert_int_equal(s.by_class[RPL_CLASS_INPUT], 1);
    assert_string_equal(s.inherited, "1/-1/ids");
}

static bool drop(void *ctx, fmt_tape_record *r, uint8_t *data)
{
    (void)data;
    return !is_at(r, ctx);
}

static bool flatten(void *ctx, fmt_tape_record *r, uint8_t *data)
{
    (void)data;
    if (!is_at(r, ctx)) return true;
    int64_t n = fmt_tensor_elems(&r->tensor);
    r->tensor = fmt_tensor_make(r->tensor.dtype, NULL, 1, &n);
    return true;
}

static bool as_integers(void *ctx, fmt_tape_record *r, uint8_t *data)
{
    (void)data;
    if (is_at(r, ctx)) r->tensor.dtype = FMT_DTYPE_I32;
    return true;
}

static bool hash_only(void *ctx, fmt_tape_record *r, uint8_t *data)
{
    (void)data;
    if (is_at(r, ctx)) r->tier = FMT_TIER_HASH;
    return true;
}

static void what_cannot_be_compared_is_reported(void **state)
{
    static const struct { edit_fn edit; const char *at; rpl_state want; bool differs; } CASES[] = {
        { drop, "1/-1/s0.attn_out", RPL_STATE_ONLY_A, false },
        { flatten, "1/-1/s0.attn_out", RPL_STATE_SHAPE, true },
        { as_integers, "1/-1/confidence", RPL_STATE_DTYPE, true },
        { hash_only, "1/-1/s0.attn_out", RPL_STATE_BY_HASH, false },
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        fmt_tape *t = copy_tape(source, "odd.tape", CASES[i].edit, (void *)(uintptr_t)CASES[i].at);
        summary s = compare(source, t, NULL);
        assert_int_equal(s.by_state[CASES[i].want], 1);
        assert_int_equal(s.n_differ, CASES[i].differs);
        if (CASES[i].want == RPL_STATE_ONLY_A) assert_int_equal(compare(t, source, NULL).by_state[RPL_STATE_ONLY_B], 1);
        fmt_tape_close(t);
    }
}

static void a_missing_input_leaves_a_difference_unplaced(void **state)
{
    flips f = { .at = { "1/-1/s0.attn.qr" } };
    (void)state;
    fmt_tape *a = copy_tape(source, "less.tape", drop, (void *)(uintptr_t) "1/-1/s0.attn.norm");
    fmt_tape *b = copy_tape(a, "flipped.tape", flip_bits, &f);
    summary s = compare(a, b, NULL);
    assert_int_equal(s.by_class[RPL_CLASS_UNPLACED], 1);
    assert_int_equal(s.n_differ, 1);
    fmt_tape_close(a);
    fmt_tape_close(b);
}

static void a_pattern_that_matches_nothing_compares_nothing(void **state)
{
    (void)state;
    assert_int_equal(compare(source, source, "no.such.value").n_elems, 0);
    summary s = compare(source, source, "s0.attn_out,drafts");
    assert_true(s.n_elems > 0 && s.n_equal < 20);
}

static bool other_token(void *ctx, fmt_tape_record *r, uint8_t *data)
{
    int32_t *token = ctx;
    if (!is_at(r, "1/-1/drafts")) return true;
    token[1] = (int32_t)get_u32(data + 4); /* entry 0, position 1 */
    put_u32(data + 4, (uint32_t)token[0]);
    return true;
}

static void a_changed_draft_shows_its_margin(void **state)
{
    int32_t token[2] = { 7, 0 };
    rpl_compare *c;
    const rpl_round *r;
    (void)state;
    fmt_tape *t = copy_tape(source, "drafts.tape", other_token, token);
    OK(rpl_compare_open(t, source, NULL, NULL, &c, e));
    OK(rpl_compare_round(c, 1, &r, e));
    const rpl_draft *d = &r->draft[0];
    assert_false(d->exact);
    assert_int_equal(d->n_same, 1);
    assert_int_equal(d->token_a, 7);
    assert_int_equal(d->token_b, token[1]);
    assert_true(d->margin_b > 0 && d->gap_b >= d->margin_b);

    cap_value v = { 0 };
    const fmt_tape_key key = { 1, FMT_TAPE_NO_SLOT, 0, "head.biased" };
    OK(cap_joined_get(source, &key, &v, e));
    const float *row = (const float *)v.tensor.data + v.tensor.shape[2];
    assert_true(d->gap_b == (double)row[token[1]] - (double)row[7]);
    cap_value_fini(&v);
    rpl_compare_close(c);
    fmt_tape_close(t);
}

static bool second_rank(void *ctx, fmt_tape_record *r, uint8_t *data)
{
    if (r->key.rank == 1 && is_at(r, ctx)) data[0] ^= 1;
    return true;
}

static void a_rank_whose_copy_differs_is_an_origin(void **state)
{
    eng_options o = run_options("native-packed", 2, "eager");
    (void)state;
    fmt_tape *two = record("two.tape", &o, ENG_LEVEL_DEEP);
    assert_int_equal(compare(two, two, NULL).n_findings, 0);
    fmt_tape *t = copy_tape(two, "ranks.tape", second_rank, (void *)(uintptr_t) "1/-1/s1.attn_out");
    summary s = compare(two, t, NULL);
    assert_int_equal(s.n_findings, 1);
    assert_int_equal(s.n_differ, 1);
    assert_string_equal(s.origin, "1/-1/s1.attn_out");
    s = compare(t, t, NULL); /* on both sides: told, but no difference */
    assert_int_equal(s.n_findings, 1);
    assert_int_equal(s.n_differ, 0);

    /* What reads it has inherited, also where the comparison leaves the value itself out. */
    flips f = { .at = { "1/-1/s1.attn.stream" } };
    fmt_tape *u = copy_tape(t, "reader.tape", flip_bits, &f);
    s = compare(two, u, NULL);
    assert_string_equal(s.origin, "1/-1/s1.attn_out");
    assert_string_equal(s.inherited, "1/-1/s1.attn.stream");
    s = compare(two, u, "s1.attn.stream");
    assert_string_equal(s.origin, "");
    assert_string_equal(s.inherited, "1/-1/s1.attn.stream");
    fmt_tape_close(u);
    fmt_tape_close(t);
    fmt_tape_close(two);
}

static void two_accumulations_start_to_differ_at_origins_only(void **state)
{
    eng_options o = run_options("mirror64", 1, "eager");
    (void)state;
    fmt_tape *other = record("mirror64.tape", &o, ENG_LEVEL_DEEP);
    summary s = compare(source, other, NULL);
    assert_true(s.by_class[RPL_CLASS_ORIGIN] > 0 && s.by_class[RPL_CLASS_INHERITED] > 0);
    assert_int_equal(s.by_class[RPL_CLASS_UNPLACED] + s.by_class[RPL_CLASS_NONE] + s.by_class[RPL_CLASS_INPUT], 0);
    fmt_tape_close(other);
}

static void a_v1_tape_compares_with_the_top_of_its_logits(void **state)
{
    eng_options o = run_options("native-packed", 1, "eager");
    (void)state;
    fmt_tape *v1 = record("v1.tape", &o, ENG_LEVEL_V1);
    flips f = { .at = { "1/-1/head.logits.top" } };
    fmt_tape *t = copy_tape(v1, "flipped.tape", flip_bits, &f);
    summary s = compare(v1, t, NULL);
    assert_string_equal(s.origin, "1/-1/head.logits.top");
    assert_string_equal(s.origin_op, "head.logits");
    fmt_tape_close(t);
    fmt_tape_close(v1);
}

static void rounds_may_be_asked_for_in_any_order_and_are_kept(void **state)
{
    rpl_compare *c;
    const rpl_round *last, *again;
    (void)state;
    OK(rpl_compare_open(source, source, NULL, NULL, &c, e));
    int32_t n = rpl_compare_rounds(c);
    assert_false(rpl_compare_done(c, n - 1));
    OK(rpl_compare_round(c, n - 1, &last, e));
    assert_true(rpl_compare_done(c, n - 1) && !rpl_compare_done(c, 0));
    OK(rpl_compare_round(c, n - 1, &again, e));
    assert_ptr_equal(last, again);
    rpl_compare_close(c);
}

/* ---- equal values are told by the index ---- */

enum { LARGE_ROWS = 16, LARGE_COLS = 512 };
typedef enum large_kind { PLAIN, WITH_NAN, ZEROS } large_kind;
typedef struct part { int32_t rank, n_ranks; fmt_place place; int32_t axis; large_kind kind; float first; } part;

/* A tape of one value, one part per rank; the end is where all n_ranks are 0. */
static fmt_tape *large_tape(const char *path, const part *p)
{
    fmt_tape_writer *w;
    fmt_tape *t;
    static float v[LARGE_ROWS * LARGE_COLS];
    json_t *head = json_pack("{s:s}", "format", "sparktape");
    OK(fmt_tape_create(path, head, &w, e));
    json_decref(head);
    for (; p->n_ranks; p++) {
        uint32_t x = 1;
        for (size_t i = 0; i < COUNT_OF(v); i++) {
            x = x * 1664525u + 1013904223u;
            v[i] = p->kind == ZEROS ? 0 : (float)(x >> 8) / 0x1p24f - 0.5f;
        }
        if (p->kind != ZEROS) v[0] = p->first;
        if (p->kind == WITH_NAN) v[7] = NAN;
        fmt_tensor tensor = fmt_tensor_make(FMT_DTYPE_F32, v, 2, (const int64_t[]){ LARGE_ROWS, LARGE_COLS });
        fmt_tape_key key = { 0, FMT_TAPE_NO_SLOT, p->rank, "large" };
        OK(fmt_tape_put(w, &key, &tensor, p->place, p->axis, p->n_ranks, FMT_TIER_TENSOR, e));
    }
    OK(fmt_tape_finish(w, NULL, e));
    OK(fmt_tape_open(path, &t, e));
    return t;
}

/* The tape with the payloads of its first chunk spoilt: whoever decodes one of them fails. */
static fmt_tape *spoilt(const fmt_tape *t)
{
    static char bytes[2 << 20];
    fmt_tape *copy;
    fmt_tape_record r;
    fmt_tape_at(t, 0, &r);
    FILE *f = fopen(fmt_tape_path(t), "rb"), *out = fopen("spoilt.tape", "wb");
    size_t n = fread(bytes, 1, sizeof bytes, f);
    assert_true(n < sizeof bytes && n > r.first_chunk_offset + 20000);
    bytes[r.first_chunk_offset + 15000] ^= 1;
    assert_int_equal(fwrite(bytes, 1, n, out), n);
    fclose(f);
    fclose(out);
    OK(fmt_tape_open("spoilt.tape", &copy, e));
    err e = { 0 };
    cap_value v = { 0 };
    assert_int_equal(cap_record_get(copy, 0, &v, &e), ERR_FORMAT);
    cap_value_fini(&v);
    return copy;
}

static summary compare_spoilt(const part *p, summary *sound)
{
    fmt_tape *a = large_tape("large.tape", p), *b = spoilt(a);
    *sound = compare(a, a, NULL);
    summary s = compare(a, b, NULL);
    fmt_tape_close(a);
    fmt_tape_close(b);
    return s;
}

static void equal_values_are_not_decoded(void **state)
{
    enum { N = LARGE_ROWS * LARGE_COLS };
    static const struct { part part[3]; int64_t n; } CASES[] = {
        { { { 0, 1, FMT_PLACE_REPLICATED, 0, PLAIN, 1 } }, N },
        { { { FMT_TAPE_NO_RANK, 1, FMT_PLACE_REPLICATED, 0, PLAIN, 1 } }, N },
        { { { 0, 2, FMT_PLACE_REPLICATED, 0, PLAIN, 1 }, { 1, 2, FMT_PLACE_REPLICATED, 0, PLAIN, 1 } }, N },
        { { { 0, 2, FMT_PLACE_SHARDED, 1, PLAIN, 1 }, { 1, 2, FMT_PLACE_SHARDED, 1, PLAIN, 2 } }, 2 * N },
        { { { 0, 1, FMT_PLACE_PARTIAL, 0, PLAIN, 1 } }, N },
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        summary sound, s = compare_spoilt(CASES[i].part, &sound);
        assert_int_equal(s.by_state[RPL_STATE_COMPARED], 1);
        assert_int_equal(s.n_equal, 1);
        assert_int_equal(s.n_elems, CASES[i].n);
        assert_int_equal(s.n_findings, 0);
    }
}

static void what_only_the_elements_tell_is_decoded(void **state)
{
    static const struct { part part[3]; rpl_state sound; int n_findings; } CASES[] = {
        { { { 0, 1, FMT_PLACE_REPLICATED, 0, WITH_NAN, 1 } }, RPL_STATE_COMPARED, 1 },
        { { { 0, 2, FMT_PLACE_REPLICATED, 0, PLAIN, 1 }, { 1, 2, FMT_PLACE_REPLICATED, 0, PLAIN, 2 } },
          RPL_STATE_COMPARED, 1 },
        { { { 0, 2, FMT_PLACE_PARTIAL, 0, PLAIN, 1 }, { 1, 2, FMT_PLACE_PARTIAL, 0, PLAIN, 2 } }, RPL_STATE_COMPARED, 0 },
        /* What cannot be put together is not equal: a shard missing, beside a stranger, axis, place, rank count. */
        { { { 0, 2, FMT_PLACE_SHARDED, 1, PLAIN, 1 } }, RPL_STATE_UNREADABLE, 0 },
        { { { 0, 2, FMT_PLACE_SHARDED, 1, PLAIN, 1 }, { 5, 2, FMT_PLACE_SHARDED, 1, PLAIN, 1 } }, RPL_STATE_UNREADABLE, 0 },
        { { { 0, 2, FMT_PLACE_SHARDED, 1, PLAIN, 1 }, { 1, 2, FMT_PLACE_SHARDED, 0, PLAIN, 1 } }, RPL_STATE_UNREADABLE, 0 },
        { { { 0, 2, FMT_PLACE_SHARDED, 3, PLAIN, 1 }, { 1, 2, FMT_PLACE_SHARDED, 3, PLAIN, 1 } }, RPL_STATE_UNREADABLE, 0 },
        { { { 0, 2, FMT_PLACE_SHARDED, 1, PLAIN, 1 }, { 1, 2, FMT_PLACE_REPLICATED, 0, PLAIN, 1 } },
          RPL_STATE_UNREADABLE, 0 },
        { { { 0, 3, FMT_PLACE_SHARDED, 1, PLAIN, 1 }, { 1, 2, FMT_PLACE_SHARDED, 1, PLAIN, 1 } }, RPL_STATE_UNREADABLE, 0 },
        { { { 0, 99, FMT_PLACE_SHARDED, 1, PLAIN, 1 } }, RPL_STATE_UNREADABLE, 0 },
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        summary sound, s = compare_spoilt(CASES[i].part, &sound);
        if (s.by_state[RPL_STATE_UNREADABLE] != 1 || sound.by_state[CASES[i].sound] != 1 ||
            sound.n_findings != CASES[i].n_findings)
            fail_msg("case %zu: %d unreadable, then %d, %d findings", i, (int)s.by_state[RPL_STATE_UNREADABLE],
                     (int)sound.by_state[CASES[i].sound], (int)sound.n_findings);
    }
    fmt_tape *zeros = large_tape("zeros.tape", (const part[]){ { 0, 1, FMT_PLACE_REPLICATED, 0, ZEROS, 0 }, { 0 } });
    assert_int_equal(compare(zeros, zeros, NULL).n_findings, 1); /* all zero on both sides */
    fmt_tape_close(zeros);
}

static void the_index_says_what_the_elements_would(void **state)
{
    rpl_compare *c;
    const rpl_round *r;
    (void)state;
    OK(rpl_compare_open(source, source, NULL, NULL, &c, e));
    int n_large = 0;
    for (int32_t i = 0; i < rpl_compare_rounds(c); i++) {
        OK(rpl_compare_round(c, i, &r, e));
        for (int32_t k = 0; k < r->n_values; k++) {
            const rpl_value *got = &r->value[k];
            rpl_value want = { .name = got->name, .slot = got->slot };
            cap_value v = { 0 };
            OK(cap_joined_get(source, &(fmt_tape_key){ r->round, got->slot, 0, got->name }, &v, e));
            rpl_value_compare(&want, &v.tensor, &v.tensor, rpl_compare_program(c, ENG_STEP_DRAFT)->config.vocab);
            n_large += fmt_tensor_bytes(&v.tensor) >= 4096;
            assert_true(got->cls == want.cls && got->state == want.state && got->m.n == want.m.n);
            assert_true(got->m.n_equal == want.m.n_equal && got->m.n_zero_a == want.m.n_zero_a);
            assert_memory_equal(got->m.ulp, want.m.ulp, sizeof want.m.ulp);
            assert_true(fabs(got->m.norm_a - want.m.norm_a) <= 1e-6 * want.m.norm_a);
            assert_true(fabs(got->m.cosine - want.m.cosine) <= 1e-12);
            assert_true(got->m.rel_l2 == want.m.rel_l2 && got->m.worst == want.m.worst);
            assert_true(got->has_logits == want.has_logits && got->has_ids == want.has_ids);
            assert_memory_equal(&got->logits, &want.logits, sizeof want.logits);
            assert_memory_equal(&got->ids, &want.ids, sizeof want.ids);
            cap_value_fini(&v);
        }
    }
    assert_true(n_large > 20);
    rpl_compare_close(c);
}

static void a_forgotten_round_is_compared_again_to_the_same(void **state)
{
    flips f = { .at = { "1/-1/s0.attn.norm", "1/-1/drafts" } };
    rpl_compare *c;
    const rpl_round *r;
    (void)state;
    fmt_tape *t = copy_tape(source, "flipped.tape", flip_bits, &f);
    OK(rpl_compare_open(source, t, NULL, NULL, &c, e));
    summary before = sum_of(c);
    for (int32_t i = 0; i < rpl_compare_rounds(c); i++) {
        OK(rpl_compare_round(c, i, &r, e));
        assert_true(rpl_round_bytes(r) >= (uint64_t)r->n_values * sizeof(rpl_value));
        rpl_compare_forget(c, i);
        rpl_compare_forget(c, i); /* nothing left to forget */
        assert_false(rpl_compare_done(c, i));
    }
    summary after = sum_of(c);
    assert_true(before.n_differ >= 2);
    assert_memory_equal(&before, &after, sizeof after);
    rpl_compare_close(c);
    fmt_tape_close(t);
}

static void identity_differences_are_named_by_path(void **state)
{
    (void)state;
    json_t *a = json_pack("{s:s, s:{s:s, s:i}, s:i}", "x", "same", "arm", "name", "one", "k", 1, "tp", 1);
    json_t *b = json_pack("{s:s, s:{s:s, s:i}, s:s}", "x", "same", "arm", "name", "two", "k", 1, "new", "a\nb");
    char **lines = rpl_identity_diff(a, b);
    assert_string_equal(lines[0], "arm.name: one | two");
    assert_string_equal(lines[1], "tp: 1 | -");
    assert_string_equal(lines[2], "new: - | a?b");
    assert_null(lines[3]);
    rpl_lines_free(lines);
    lines = rpl_identity_diff(a, a);
    assert_null(lines[0]);
    rpl_lines_free(lines);
    json_decref(a);
    json_decref(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tape_equals_itself),
        cmocka_unit_test(a_value_changed_alone_is_the_origin),
        cmocka_unit_test(what_follows_a_changed_input_has_inherited),
        cmocka_unit_test(a_window_is_judged_by_the_rows_that_went_into_it),
        cmocka_unit_test(a_changed_input_is_no_origin),
        cmocka_unit_test(what_cannot_be_compared_is_reported),
        cmocka_unit_test(a_missing_input_leaves_a_difference_unplaced),
        cmocka_unit_test(a_pattern_that_matches_nothing_compares_nothing),
        cmocka_unit_test(a_changed_draft_shows_its_margin),
        cmocka_unit_test(a_rank_whose_copy_differs_is_an_origin),
        cmocka_unit_test(two_accumulations_start_to_differ_at_origins_only),
        cmocka_unit_test(a_v1_tape_compares_with_the_top_of_its_logits),
        cmocka_unit_test(rounds_may_be_asked_for_in_any_order_and_are_kept),
        cmocka_unit_test(a_forgotten_round_is_compared_again_to_the_same),
        cmocka_unit_test(equal_values_are_not_decoded),
        cmocka_unit_test(what_only_the_elements_tell_is_decoded),
        cmocka_unit_test(the_index_says_what_the_elements_would),
        cmocka_unit_test(identity_differences_are_named_by_path),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
