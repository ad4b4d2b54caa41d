/* The judge on recorded runs: nothing is illegal in a clean one, and one wrong element is, where it stands. */
#include "replay_help.h"

#include "replay/admissible.h"
#include "replay/metrics.h"
#include "tests/support/slow.h"

/* What the judge said of a tape. */
typedef struct outcome {
    int64_t n, n_equal, n_flip, n_illegal, n_unjudged, n_events;
    char first[80];        /* the first illegal value: "round/slot/name[element]" */
    double flip_distance;
} outcome;

typedef struct judging {
    rpl_judge *judge;
    outcome out;
    uint8_t *classes;
    size_t capacity;
} judging;

static err_code judge_one(void *ctx, const rpl_forced_value *v, err *e)
{
    judging *j = ctx;
    rpl_verdict r;
    const int64_t n = fmt_tensor_elems(&v->recorded);
    void *array = j->classes;
    if (!mem_grow(&array, &j->capacity, (size_t)n, 1)) return ERR_NOMEM;
    j->classes = array;
    TRY(rpl_judge_value(j->judge, v, &r, j->classes, e));
    /* Without classes flips beyond doubt are not looked at one by one: it must not show. */
    rpl_verdict fast;
    TRY(rpl_judge_value(j->judge, v, &fast, NULL, e));
    assert_true(fast.n_equal == r.n_equal && fast.n_flip == r.n_flip && fast.n_illegal == r.n_illegal);
    assert_true(fast.n_events == r.n_events && fast.flip_distance == r.flip_distance && fast.worst == r.worst);
    assert_int_equal(r.n, n);
    assert_int_equal(r.n, r.n_equal + r.n_flip + r.n_illegal + r.n_unjudged);
    int64_t count[4] = { 0 };
    for (int64_t i = 0; i < n; i++) count[j->classes[i]]++;
    assert_true(count[RPL_EQUAL] == r.n_equal && count[RPL_FLIP] == r.n_flip && count[RPL_ILLEGAL] == r.n_illegal);
    assert_true((r.n_illegal > 0) == (r.first >= 0) && (r.n_illegal > 0) == (r.worst >= 0));
    if (r.first >= 0) {
        assert_int_equal(j->classes[r.first], RPL_ILLEGAL);
        assert_int_equal(j->classes[r.worst], RPL_ILLEGAL);
        assert_true(r.ratio > 1);
    }
    outcome *o = &j->out;
    o->n += r.n, o->n_equal += r.n_equal, o->n_flip += r.n_flip, o->n_illegal += r.n_illegal;
    o->n_unjudged += r.n_unjudged, o->n_events += r.n_events;
    if (r.flip_distance > o->flip_distance) o->flip_distance = r.flip_distance;
    if (r.n_illegal && !o->first[0])
        snprintf(o->first, sizeof o->first, "%d/%d/%.40s[%lld]", v->round, v->slot, v->name, (long long)r.first);
    return ERR_OK;
}

static rpl_forced *open_forced(const fmt_tape *t, eng_combine combine)
{
    eng_options o = run_options("mirror64", 1, "eager");
    rpl_forced *f;
    o.combine = combine;
    OK(rpl_forced_open(t, shared_run.weights, &o, &f, e));
    return f;
}

static outcome judge_tape(const fmt_tape *t, eng_combine combine, rpl_bound bound)
{
    judging j = { 0 };
    rpl_forced *f = open_forced(t, combine);
    OK(rpl_judge_open(shared_run.weights, bound, &j.judge, e));
    for (int32_t i = 0; i < rpl_forced_rounds(f); i++) OK(rpl_forced_round(f, i, judge_one, &j, NULL, e));
    rpl_judge_close(j.judge);
    rpl_forced_close(f);
    free(j.classes);
    return j.out;
}

static void a_clean_run_has_no_illegal_element(void **state)
{
    static const struct { const char *arm; int tp; bool fused; } RUNS[] = {
        { "mirror", 1, false }, { "mirror64", 1, false }, { "native-packed", 1, false }, { "native-expanded", 1, true },
        { "native-packed", 2, false }, { "native-packed", 2, true }, { "native-expanded", 2, true },
        { "native-packed", 4, true },
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(RUNS); i += SLOW ? 3 : 1) {
        eng_options o = run_options(RUNS[i].arm, RUNS[i].tp, "eager");
        if (RUNS[i].fused) o.combine = ENG_COMBINE_FUSED;
        fmt_tape *t = record("clean.tape", &o, ENG_LEVEL_DEEP);
        for (int bound = RPL_BOUND_DEFAULT; bound < RPL_BOUNDS; bound++) {
            outcome out = judge_tape(t, o.combine, (rpl_bound)bound);
            if (out.n_illegal) fail_msg("%s tp %d: %s", RUNS[i].arm, RUNS[i].tp, out.first);
            assert_true(out.n > 500000);
            assert_int_equal(out.n_unjudged, 0);
            assert_true((out.n_flip == 0) == (strcmp(RUNS[i].arm, "mirror64") == 0));
            assert_true(out.flip_distance <= 1);
        }
        fmt_tape_close(t);
    }
}

/* ---- planted ---- */

/* A change of one element of one value, made on what the forced run hands over. */
typedef enum change_kind { CHANGE_ULPS, CHANGE_NAN, CHANGE_KINDS } change_kind;
typedef struct planted {
    judging j;
    change_kind kind;
    int64_t n_values, n_missed;
    char missed[2000];
} planted;

/* The element of the largest size. */
static int64_t largest(const fmt_tensor *t)
{
    int64_t at = 0;
    for (int64_t i = 1; i < fmt_tensor_elems(t); i++)
        if (fabs(rpl_element(t->dtype, t->data, i)) > fabs(rpl_element(t->dtype, t->data, at))) at = i;
    return at;
}

static void change(change_kind kind, fmt_dtype dtype, uint8_t *data, int64_t i)
{
    uint8_t *at = data + i * fmt_dtype_bytes(dtype);
    if (dtype == FMT_DTYPE_BF16) put_u16(at, kind == CHANGE_NAN ? 0x7fc0 : (uint16_t)(get_u16(at) + 2));
    else if (dtype == FMT_DTYPE_F32) put_u32(at, kind == CHANGE_NAN ? 0x7fc00000 : get_u32(at) + (2u << 16));
    else put_u32(at, get_u32(at) + 1); /* another row, token, position */
}

static err_code plant(void *ctx, const rpl_forced_value *v, err *e)
{
    planted *p = ctx;
    const size_t bytes = (size_t)fmt_tensor_bytes(&v->recorded);
    const int64_t at = largest(&v->recorded);
    rpl_forced_value changed = *v;
    rpl_verdict r;
    uint8_t *data = mem_alloc(bytes, 1), *classes = mem_alloc((size_t)fmt_tensor_elems(&v->recorded), 1);
    assert_true(data && classes);
    memcpy(data, v->recorded.data, bytes);
    change(p->kind, v->recorded.dtype, data, at);
    changed.recorded.data = data;
    TRY(rpl_judge_value(p->j.judge, &changed, &r, classes, e));
    p->n_values++;
    bool found = r.n_illegal == 1 && r.first == at && r.worst == at && classes[at] == RPL_ILLEGAL && r.ratio > 1;
    if (!found) {
        size_t used = strlen(p->missed);
        p->n_missed++;
        snprintf(p->missed + used, sizeof p->missed - used, " %s[%lld]: %lld illegal, first %lld", v->name, (long long)at,
                 (long long)r.n_illegal, (long long)r.first);
    }
    free(data);
    free(classes);
    TRY(rpl_judge_value(p->j.judge, v, &r, NULL, e)); /* what follows is judged from what was recorded */
    if (r.n_illegal) fail_msg("%s is not clean", v->name);
    return ERR_OK;
}

static void one_wrong_element_of_any_value_is_illegal_and_no_other(void **state)
{
    (void)state;
    for (int tp = 1; tp <= 2; tp++) {
        eng_options o = run_options(tp == 1 ? "mirror" : "native-packed", tp, "eager");
        if (tp == 2) o.combine = ENG_COMBINE_FUSED;
        fmt_tape *t = record("planted.tape", &o, ENG_LEVEL_DEEP);
        for (int kind = 0; kind < CHANGE_KINDS; kind++) {
            planted p = { .kind = (change_kind)kind };
            rpl_forced *f = open_forced(t, o.combine);
            OK(rpl_judge_open(shared_run.weights, RPL_BOUND_DEFAULT, &p.j.judge, e));
            for (int32_t i = 0; i < 2; i++) OK(rpl_forced_round(f, i, plant, &p, NULL, e));
            assert_true(p.n_values > 200);
            if (p.n_missed) fail_msg("%lld of %lld values:%s", (long long)p.n_missed, (long long)p.n_values, p.missed);
            rpl_judge_close(p.j.judge);
            rpl_forced_close(f);
        }
        fmt_tape_close(t);
    }
}

typedef struct poke { const char *at; int what; } poke;
enum { SWAP_FIRST_TWO, SWAP_CUT, EXTRA_BF16, REPEAT_ROW };

static bool poke_value(void *ctx, fmt_tape_record *r, uint8_t *data)
{
    const poke *p = ctx;
    const int64_t cols = r->tensor.ndim > 1 ? r->tensor.shape[1] : 1;
    if (!is_at(r, p->at)) return true;
    if (p->what == SWAP_FIRST_TWO) {
        uint32_t first = get_u32(data);
        put_u32(data, get_u32(data + 4));
        put_u32(data + 4, first);
    } else if (p->what == SWAP_CUT) { /* the last pick of row 0: an expert that is no pick */
        uint32_t other = 0;
        for (int64_t i = 0; i < cols; i++)
            if (get_u32(data + 4 * i) == other) other++, i = -1;
        put_u32(data + 4 * (cols - 1), other);
    } else if (p->what == EXTRA_BF16) { /* f32 sums as if they had been rounded to bf16 */
        for (uint64_t i = 0; i < r->raw_bytes; i += 4)
            put_u32(data + i, f32_bits(bf16_round(f32_from_bits(get_u32(data + i)))));
    } else {
        memmove(data + r->raw_bytes / (uint64_t)r->tensor.shape[0], data, r->raw_bytes / (uint64_t)r->tensor.shape[0]);
    }
    return true;
}

static void wrong_choices_and_roundings_are_named(void **state)
{
    static const struct { poke p; const char *first; int64_t least, most; } CASES[] = {
        { { "1/-1/s1.ffn.ids", SWAP_FIRST_TWO }, "1/-1/s1.ffn.ids[0]", 2, 2000 },
        { { "1/-1/s1.ffn.ids", SWAP_CUT }, "1/-1/s1.ffn.ids[", 1, 2000 },
        { { "0/-1/s0.ffn.shared", EXTRA_BF16 }, "0/-1/s0.ffn.shared[", 500, 100000 },
        { { "0/-1/head.logits", EXTRA_BF16 }, "0/-1/head.logits[", 500, 100000 },
        { { "0/-1/s2.attn.kv", REPEAT_ROW }, "0/-1/s2.attn.kv[", 50, 100000 },
        { { "1/0/s1.window", REPEAT_ROW }, "1/0/s1.window[", 50, 100000 },
    };
    eng_options o = run_options("native-packed", 1, "eager");
    (void)state;
    fmt_tape *source = record("source.tape", &o, ENG_LEVEL_DEEP);
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        poke p = CASES[i].p;
        fmt_tape *t = copy_tape(source, "poked.tape", poke_value, &p);
        outcome out = judge_tape(t, ENG_COMBINE_EXACT, RPL_BOUND_DEFAULT);
        if (strncmp(out.first, CASES[i].first, strlen(CASES[i].first)) != 0) fail_msg("%s: %s", CASES[i].first, out.first);
        if (out.n_illegal < CASES[i].least || out.n_illegal > CASES[i].most)
            fail_msg("%s: %lld", out.first, (long long)out.n_illegal);
        fmt_tape_close(t);
    }
    fmt_tape_close(source);
}

static void tokens_and_rows_of_a_v1_tape_are_judged_and_hidden_blocks_are_not_passed(void **state)
{
    eng_options o = run_options("native-packed", 1, "eager");
    (void)state;
    fmt_tape *source = record("v1.tape", &o, ENG_LEVEL_V1);
    outcome out = judge_tape(source, ENG_COMBINE_EXACT, RPL_BOUND_DEFAULT);
    assert_int_equal(out.n_illegal, 0);
    assert_true(out.n_unjudged > 0);
    poke p = { "0/-1/s1.attn_out", REPEAT_ROW };
    fmt_tape *t = copy_tape(source, "v1_poked.tape", poke_value, &p);
    outcome bad = judge_tape(t, ENG_COMBINE_EXACT, RPL_BOUND_DEFAULT);
    assert_true(bad.n_unjudged > out.n_unjudged); /* not a pass */
    fmt_tape_close(t);
    p = (poke){ "0/0/main_x", REPEAT_ROW };
    t = copy_tape(source, "v1_poked.tape", poke_value, &p);
    bad = judge_tape(t, ENG_COMBINE_EXACT, RPL_BOUND_DEFAULT);
    assert_true(strncmp(bad.first, "0/0/main_x[", 11) == 0);
    fmt_tape_close(t);
    p = (poke){ "1/-1/drafts", SWAP_FIRST_TWO };
    t = copy_tape(source, "v1_poked.tape", poke_value, &p);
    bad = judge_tape(t, ENG_COMBINE_EXACT, RPL_BOUND_DEFAULT);
    assert_true(strncmp(bad.first, "1/-1/drafts[", 12) == 0);
    fmt_tape_close(t);
    fmt_tape_close(source);
}

/* ---- sharpness ---- */

typedef struct sharpness { rpl_judge *judge; int64_t admitted[3], tried[3]; double worst; char name[64]; } sharpness;

static err_code try_neighbours(void *ctx, const rpl_forced_value *v, err *e)
{
    sharpness *s = ctx;
    rpl_verdict r;
    TRY(rpl_judge_value(s->judge, v, &r, NULL, e));
    for (int ulps = 1; ulps <= 2; ulps++) {
        int64_t admitted, tried;
        TRY(rpl_judge_sharpness(s->judge, v, ulps, &admitted, &tried, e));
        assert_true(tried <= 2 * r.n && tried >= r.n);
        s->admitted[ulps] += admitted;
        s->tried[ulps] += tried;
        double share = (double)admitted / (double)tried;
        if (ulps == 2 && r.n > 1000 && share > s->worst) {
            s->worst = share;
            snprintf(s->name, sizeof s->name, "%.60s", v->name);
        }
    }
    return ERR_OK;
}

static void two_ulps_pass_in_few_elements(void **state)
{
    eng_options o = run_options("native-packed", 1, "eager");
    sharpness s = { 0 };
    (void)state;
    fmt_tape *t = record("sharp.tape", &o, ENG_LEVEL_DEEP);
    rpl_forced *f = open_forced(t, ENG_COMBINE_EXACT);
    OK(rpl_judge_open(shared_run.weights, RPL_BOUND_DEFAULT, &s.judge, e));
    for (int32_t i = 0; i < 2; i++) OK(rpl_forced_round(f, i, try_neighbours, &s, NULL, e));
    print_message("admitted: 1 ulp %.3f %%, 2 ulps %.3f %%; most: %.2f %% of %s\n",
                  100 * (double)s.admitted[1] / (double)s.tried[1], 100 * (double)s.admitted[2] / (double)s.tried[2],
                  100 * s.worst, s.name);
    assert_true(s.admitted[2] < s.admitted[1]);
    assert_true((double)s.admitted[2] <= 0.01 * (double)s.tried[2]);
    assert_true(s.worst <= 0.05); /* attention, of small rows */
    rpl_judge_close(s.judge);
    rpl_forced_close(f);
    fmt_tape_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_clean_run_has_no_illegal_element),
        cmocka_unit_test(one_wrong_element_of_any_value_is_illegal_and_no_other),
        cmocka_unit_test(wrong_choices_and_roundings_are_named),
        cmocka_unit_test(tokens_and_rows_of_a_v1_tape_are_judged_and_hidden_blocks_are_not_passed),
        cmocka_unit_test(two_ulps_pass_in_few_elements),
    };
    return cmocka_run_group_tests(tests, run_setup, run_teardown);
}
