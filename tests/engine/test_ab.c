/* The harness of ab, with pairs of its own that have one mistake each, and the registry. */
#include "engine/ab_report.h"

#include "base/mem.h"
#include "engine/commands.h"
#include "formats/json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <unistd.h>

/* ---- a pair: y = 2x, and the state grows by x ---- */

enum { X, STATE, Y, ARRAYS, N = 100 };
typedef enum mistake {
    NONE, ONE_BIT, LEFT_ALONE, BOTH_LEAVE_ALONE, STATE_LEFT_ALONE, INPUT_SPOILT, TOO_FAR, A_NAN,
} mistake;
static mistake made;

static const int32_t SHAPE[1][AB_DIMS_MAX] = { { N } };

static int32_t arrays(const int32_t *dim, int32_t T, ab_array *a)
{
    a[X] = (ab_array){ "x", AB_IN, FMT_DTYPE_F32, (int64_t)T * dim[0], 1.0f };
    a[STATE] = (ab_array){ "state", AB_STATE, FMT_DTYPE_F32, (int64_t)T * dim[0], 1.0f };
    a[Y] = (ab_array){ "y", AB_OUT, FMT_DTYPE_F32, (int64_t)T * dim[0], 0 };
    return ARRAYS;
}

static void side(const ab_call *c, mistake m)
{
    float *x = c->buf[X], *state = c->buf[STATE], *y = c->buf[Y];
    const int32_t n = c->T * c->dim[0];
    for (int32_t i = 0; i < n; i++) {
        if (m != STATE_LEFT_ALONE) state[i] += x[i] + 1;
        if ((m == LEFT_ALONE || m == BOTH_LEAVE_ALONE) && i == 7) continue;
        y[i] = 2 * x[i];
    }
    if (m == ONE_BIT) y[n - 3] = nextafterf(y[n - 3], INFINITY);
    if (m == INPUT_SPOILT) x[5] += 1;
    if (m == TOO_FAR) y[9] += 1e-3f;
    if (m == A_NAN) y[9] = NAN;
}

static err_code base_side(const ab_call *c, err *e)
{
    (void)e;
    side(c, made == BOTH_LEAVE_ALONE ? made : NONE);
    return ERR_OK;
}
static err_code new_side(const ab_call *c, err *e)
{
    (void)e;
    side(c, made);
    return ERR_OK;
}

static void bytes(const int32_t *dim, int32_t T, uint64_t out[AB_SIDES]) { out[0] = out[1] = 16u * (uint64_t)(dim[0] * T); }

static void bound(const ab_inputs *in, krn_span *y)
{
    const float *x = in->buf[X];
    for (int32_t i = 0; i < in->T * in->dim[0]; i++) y[i] = krn_span_around(2.0 * (double)x[i], 1e-5);
}

static const ab_pair BITS = { .name = { "doubled", "doubled_fast" }, .summary = "y = 2x", .own_twin = true, .t_max = 8,
                              .dims = "n", .n_shapes = 1, .shape = SHAPE, .arrays = arrays,
                              .side = { base_side, new_side }, .bytes = bytes };

static ab_device cpu;

static ab_case *open_pair(const ab_pair *p, int32_t T)
{
    err e = { 0 };
    ab_case *c;
    assert_int_equal(ab_case_open(p, p->shape[0], T, &cpu, &c, &e), ERR_OK);
    return c;
}

static ab_finding compare(const ab_pair *p, mistake m, ab_kind kind)
{
    err e = { 0 };
    ab_finding f;
    made = m;
    ab_case *c = open_pair(p, 2);
    assert_int_equal(ab_case_compare(c, kind, 5, &f, &e), ERR_OK);
    ab_case_close(c);
    return f;
}

static void sides_that_agree_are_equal(void **state)
{
    (void)state;
    for (int kind = 0; kind < AB_KINDS; kind++) {
        ab_finding f = compare(&BITS, NONE, (ab_kind)kind);
        assert_int_equal(f.fault, AB_EQUAL);
        assert_int_equal(f.n_all, 4 * N);
        assert_int_equal(f.n_equal, f.n_all);
    }
}

static void one_bit_is_found_and_named(void **state)
{
    (void)state;
    char text[512], wanted[96];
    ab_finding f = compare(&BITS, ONE_BIT, AB_TIES);
    assert_int_equal(f.fault, AB_DIFFERS);
    assert_string_equal(f.array, "y");
    assert_int_equal(f.index, 2 * N - 3);
    assert_int_equal(f.count, 1);
    assert_int_equal(f.n_equal, f.n_all - 1);
    assert_int_equal(llabs((long long)f.bits[AB_NEW] - (long long)f.bits[AB_BASE]), 1);
    ab_finding_text(&f, text, sizeof text);
    assert_non_null(strstr(text, "y[197] of 200"));
    assert_non_null(strstr(text, "bits differ, 1 such; kind ties, seed 5, T 2"));
    snprintf(wanted, sizeof wanted, "base 0x%08x (", (unsigned)f.bits[AB_BASE]);
    assert_non_null(strstr(text, wanted));
    snprintf(wanted, sizeof wanted, "new 0x%08x (", (unsigned)f.bits[AB_NEW]);
    assert_non_null(strstr(text, wanted));
}

static void an_output_left_alone_is_caught(void **state)
{
    (void)state;
    char text[512];
    ab_finding f = compare(&BITS, LEFT_ALONE, AB_PLAIN);
    assert_int_equal(f.fault, AB_UNWRITTEN);
    assert_int_equal(f.index, 7);
    assert_false(f.by[AB_BASE]);
    assert_true(f.by[AB_NEW]);
    ab_finding_text(&f, text, sizeof text);
    assert_non_null(strstr(text, "not written by new"));
    f = compare(&BITS, BOTH_LEAVE_ALONE, AB_PLAIN); /* where both hold what was there before, they do not agree by it */
    assert_int_equal(f.fault, AB_UNWRITTEN);
    assert_true(f.by[AB_BASE] && f.by[AB_NEW]);
}

static void state_that_did_not_move_is_caught(void **state)
{
    (void)state;
    ab_finding f = compare(&BITS, STATE_LEFT_ALONE, AB_PLAIN);
    assert_int_equal(f.fault, AB_DIFFERS);
    assert_string_equal(f.array, "state");
    static const ab_pair STILL = { .name = { "a", "b" }, .dims = "n", .shape = SHAPE, .n_shapes = 1, .t_max = 2,
                                   .arrays = arrays, .side = { new_side, new_side }, .bytes = bytes };
    f = compare(&STILL, STATE_LEFT_ALONE, AB_PLAIN);
    assert_int_equal(f.fault, AB_UNMOVED);
    assert_true(f.by[AB_BASE] && f.by[AB_NEW]);
}

static void an_input_that_is_written_to_is_caught(void **state)
{
    (void)state;
    ab_finding f = compare(&BITS, INPUT_SPOILT, AB_PLAIN);
    assert_int_equal(f.fault, AB_SPOILT);
    assert_string_equal(f.array, "x");
    assert_int_equal(f.index, 5);
}

static void a_value_outside_its_bound_is_caught(void **state)
{
    (void)state;
    ab_pair p = BITS;
    p.promise = AB_BOUND;
    p.bound = bound;
    assert_int_equal(compare(&p, NONE, AB_PLAIN).fault, AB_EQUAL);
    ab_finding f = compare(&p, ONE_BIT, AB_PLAIN); /* inside: legal, and counted */
    assert_int_equal(f.fault, AB_EQUAL);
    assert_int_equal(f.n_equal, f.n_all - 1);
    f = compare(&p, TOO_FAR, AB_PLAIN);
    assert_int_equal(f.fault, AB_OUTSIDE);
    assert_int_equal(f.index, 9);
    assert_true(!f.by[AB_BASE] && f.by[AB_NEW]);
    assert_int_equal(compare(&p, A_NAN, AB_PLAIN).fault, AB_OUTSIDE);
    assert_int_equal(compare(&p, LEFT_ALONE, AB_PLAIN).fault, AB_UNWRITTEN);
}

/* ---- timing ---- */

static void ratios_are_taken_pair_by_pair(void **state)
{
    (void)state;
    /* The device slows down: medians of the sides alone would not see that new took half the time in every pair. */
    const double base[5] = { 10, 20, 30, 40, 50 }, fresh[5] = { 5, 10, 15, 20, 40 };
    double room[5];
    ab_times t;
    ab_times_of(base, fresh, 5, room, &t);
    assert_int_equal(t.n, 5);
    assert_true(t.p50_us[AB_BASE] == 30 && t.p50_us[AB_NEW] == 15);
    assert_true(t.ratio == 0.5 && t.ratio_min == 0.5 && t.ratio_max == 0.8);
    assert_true(fabs(t.faster - 1) < 1e-9);
    assert_true(fabs(t.drift - 40.0 / 10) < 1e-9); /* medians of { 30, 40, 50 } and { 10, 20 } */
    assert_string_equal(ab_times_word(&t), "faster");
    ab_times_of(fresh, base, 5, room, &t);
    assert_string_equal(ab_times_word(&t), "slower");
    const double even[4] = { 1, 2, 1, 2 }, odd[4] = { 2, 1, 2, 1 };
    ab_times_of(even, odd, 4, room, &t);
    assert_string_equal(ab_times_word(&t), "no difference");
    ab_times_of(base, fresh, 1, room, &t);
    assert_true(t.ratio == 0.5 && t.drift == 1);
}

/* A device whose units say who they are and take 10 us a run, the new side 4. */
enum { LOG_MAX = 64 };
static char order[LOG_MAX];
static int n_order, n_opened;
static err_code open_unit(ab_device *d, ab_launch_fn launch, void *ctx, int32_t n, bool graph, void **out, err *e)
{
    static const char WHO[] = "AB";
    (void)d, (void)launch, (void)ctx, (void)e, (void)graph;
    assert_int_equal(n, 4);
    *out = (void *)(uintptr_t)&WHO[n_opened++];
    return ERR_OK;
}
static err_code time_unit(ab_device *d, void *unit, double *us, err *e)
{
    (void)d, (void)e;
    const char who = *(const char *)unit;
    if (n_order < LOG_MAX - 1) order[n_order++] = who;
    *us = who == 'A' ? 40 : 16;
    return ERR_OK;
}
static void close_unit(ab_device *d, void *unit) { (void)d, (void)unit; }

static void sides_are_timed_in_turn(void **state)
{
    (void)state;
    err e = { 0 };
    ab_device scripted = cpu;
    ab_times t;
    ab_case *c;
    made = NONE;
    scripted.nodes = 4;
    scripted.unit_open = open_unit;
    scripted.unit_time = time_unit;
    scripted.unit_close = close_unit;
    const ab_settings s = { .iterations = 6 };
    assert_int_equal(ab_case_open(&BITS, SHAPE[0], 1, &scripted, &c, &e), ERR_OK);
    assert_int_equal(ab_case_time(c, true, &s, &t, &e), ERR_OK);
    ab_case_close(c);
    assert_string_equal(order, "ABABABABABABAB"); /* one pair to settle, six that count */
    assert_int_equal(t.n, 6);
    assert_true(t.p50_us[AB_BASE] == 10 && t.p50_us[AB_NEW] == 4); /* of one run */
    assert_true(fabs(t.ratio - 0.4) < 1e-9);
}

/* A pair that looks at its weight alone. */
enum { NODES = 4, WEIGHT_N = 50 };
static const void *seen[NODES];
static int32_t weight_arrays(const int32_t *dim, int32_t T, ab_array *a)
{
    (void)dim, (void)T;
    a[0] = (ab_array){ "w", AB_WEIGHT, FMT_DTYPE_I32, WEIGHT_N, 0 };
    return 1;
}
static void fill_weight(const ab_inputs *in)
{
    for (int32_t i = 0; i < WEIGHT_N; i++) ((int32_t *)in->buf[0])[i] = 7 * i;
}
static err_code look(const ab_call *c, err *e)
{
    (void)e;
    assert_in_range(c->node, 0, NODES - 1);
    seen[c->node] = c->buf[0];
    for (int32_t i = 0; i < WEIGHT_N; i++) assert_int_equal(((const int32_t *)c->buf[0])[i], 7 * i);
    return ERR_OK;
}

static void every_run_of_a_unit_reads_its_own_copy_of_the_weights(void **state)
{
    (void)state;
    static const ab_pair LOOKS = { .name = { "a", "b" }, .dims = "n", .shape = SHAPE, .n_shapes = 1, .t_max = 1,
                                   .arrays = weight_arrays, .weights = fill_weight, .side = { look, look },
                                   .bytes = bytes };
    err e = { 0 };
    ab_device many = cpu;
    ab_times t;
    ab_case *c;
    many.nodes = NODES;
    const ab_settings s = { .iterations = 1 };
    assert_int_equal(ab_case_open(&LOOKS, SHAPE[0], 1, &many, &c, &e), ERR_OK);
    assert_int_equal(ab_case_time(c, true, &s, &t, &e), ERR_OK);
    ab_case_close(c);
    for (int i = 0; i < NODES; i++)
        for (int j = 0; j < i; j++) assert_ptr_not_equal(seen[i], seen[j]);
}

static void the_budget_ends_the_pairs_but_not_before_five(void **state)
{
    (void)state;
    err e = { 0 };
    ab_times t;
    made = NONE;
    ab_case *c = open_pair(&BITS, 1);
    const ab_settings s = { .iterations = 1000000, .budget_s = 1e-9 };
    assert_int_equal(ab_case_time(c, true, &s, &t, &e), ERR_OK);
    ab_case_close(c);
    assert_int_equal(t.n, 5);
}

/* ---- inputs ---- */

static void every_kind_of_input_is_what_it_says(void **state)
{
    (void)state;
    enum { COUNT = 4096 };
    static float x[COUNT], again[COUNT];
    static bf16 half[COUNT];
    int plus = 0, different = 0;
    ab_fill_numbers(FMT_DTYPE_F32, x, COUNT, 1.0f, AB_ZEROS, 3, "x");
    for (int i = 0; i < COUNT; i++) assert_true(x[i] == 0), plus += !signbit(x[i]);
    assert_in_range(plus, 1, COUNT - 1);
    ab_fill_numbers(FMT_DTYPE_F32, x, COUNT, 1.0f, AB_DENORMAL, 3, "x");
    ab_fill_numbers(FMT_DTYPE_BF16, half, COUNT, 1.0f, AB_DENORMAL, 3, "x");
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(fpclassify(x[i]), FP_SUBNORMAL);
        assert_int_equal(fpclassify(f32_from_bf16(half[i])), FP_SUBNORMAL);
    }
    ab_fill_numbers(FMT_DTYPE_F32, x, COUNT, 1.0f, AB_HUGE, 3, "x");
    for (int i = 0, beyond = 0; i < COUNT; i++) {
        assert_true(isfinite(x[i]));
        beyond += isinf(x[i] * x[i]);
        if (i == COUNT - 1) assert_true(beyond > COUNT / 2);
    }
    ab_fill_numbers(FMT_DTYPE_F32, x, COUNT, 1.0f, AB_TIES, 3, "x");
    for (int i = 4; i < COUNT; i++) assert_true(x[i] == -1 || x[i] == 0.5f || x[i] == 1 || x[i] == 1.5f);
    ab_fill_numbers(FMT_DTYPE_F32, x, COUNT, 1.0f, AB_PLAIN, 3, "x");
    ab_fill_numbers(FMT_DTYPE_F32, again, COUNT, 1.0f, AB_PLAIN, 3, "x");
    assert_memory_equal(x, again, sizeof x);
    ab_fill_numbers(FMT_DTYPE_F32, again, COUNT, 1.0f, AB_PLAIN, 4, "x");
    for (int i = 0; i < COUNT; i++) different += x[i] != again[i];
    assert_true(different > COUNT * 9 / 10);
}

/* ---- the registry ---- */

static const ab_pair *find(const char *base, const char *fresh)
{
    err e = { 0 };
    const ab_pair *p;
    assert_int_equal(ab_pair_find(base, fresh, &p, &e), ERR_OK);
    return p;
}

static void names_are_found_and_unknown_ones_are_told_the_nearest(void **state)
{
    (void)state;
    err e = { 0 };
    const ab_pair *p;
    for (int32_t i = 0; i < ab_pair_count(); i++)
        assert_ptr_equal(find(ab_pair_at(i)->name[AB_BASE], ab_pair_at(i)->name[AB_NEW]), ab_pair_at(i));
    assert_int_equal(ab_pair_find("ple_gnrm", "ple_gnorm_cached_", &p, &e), ERR_ARG);
    assert_non_null(strstr(e.msg, "found 'ple_gnrm'"));
    assert_non_null(strstr(e.msg, "such as ple_gnorm or "));
    assert_int_equal(ab_pair_find("ple_gnorm", "swiglu_qdq", &p, &e), ERR_ARG);
    assert_non_null(strstr(e.msg, "found 'swiglu_qdq', wanted ple_gnorm_cached"));
    assert_int_equal(ab_pair_find("gnorm", "ple_gnorm_cached", &p, &e), ERR_ARG);
    assert_non_null(strstr(e.msg, "found 'gnorm', wanted ple_gnorm,"));
}

/* Those that save a launch, or work on the same bytes in another order. */
static bool moves_as_much(const ab_pair *p)
{
    static const char *const NEW[] = { "rmsnorm_pair_qdq", "experts_up_kx", "experts_down_kx" };
    for (size_t i = 0; i < COUNT_OF(NEW); i++)
        if (strcmp(p->name[AB_NEW], NEW[i]) == 0) return true;
    return false;
}

static void new_moves_fewer_bytes(void **state)
{
    (void)state;
    for (int32_t i = 0; i < ab_pair_count(); i++) {
        const ab_pair *p = ab_pair_at(i);
        for (int32_t T = 1; T <= 4; T++) {
            uint64_t moved[AB_SIDES];
            p->bytes(p->shape[0], T, moved);
            const bool fine = moves_as_much(p) ? moved[AB_NEW] == moved[AB_BASE] : moved[AB_NEW] < moved[AB_BASE];
            if (moved[AB_NEW] == 0 || !fine) fail_msg("%s, T %d", p->name[AB_NEW], T);
        }
    }
    const ab_pair *comb = find("gr_norm_comb+ple_query_gate_norm", "ple_comb_query_gate_norm");
    for (int32_t s = 0; s < comb->n_shapes; s++) {
        const int32_t *dim = comb->shape[s]; /* n, hc */
        uint64_t moved[AB_SIDES];
        comb->bytes(dim, 8, moved);
        assert_int_equal(moved[AB_BASE] - moved[AB_NEW], 8 * 3 * dim[0] * dim[1] * 4);
    }
}

static void every_pair_keeps_its_promise_on_the_cpu(void **state)
{
    (void)state;
    for (int32_t i = 0; i < ab_pair_count(); i++) {
        const ab_pair *p = ab_pair_at(i);
        for (int32_t s = p->cpu_first; s < p->n_shapes; s++) {
            err e = { 0 };
            ab_case *c;
            assert_int_equal(ab_case_open(p, p->shape[s], 2, &cpu, &c, &e), ERR_OK);
            for (int kind = 0; kind < AB_KINDS; kind++) {
                ab_finding f;
                char text[512];
                if (kind != AB_PLAIN && !(p->kinds >> kind & 1)) continue;
                assert_int_equal(ab_case_compare(c, (ab_kind)kind, 11, &f, &e), ERR_OK);
                ab_finding_text(&f, text, sizeof text);
                if (f.fault != AB_EQUAL) fail_msg("%s, shape %d: %s", p->name[AB_NEW], s, text);
            }
            ab_case_close(c);
        }
    }
}

/* ---- the command ---- */

/* What it prints, and how it ends. Its file is the caller's to close. */
static FILE *command(int argc, char **argv, int *status, err_code *rc, err *e)
{
    FILE *out = tmpfile();
    const int kept = dup(STDOUT_FILENO);
    assert_non_null(out);
    fflush(stdout);
    dup2(fileno(out), STDOUT_FILENO);
    *status = 0;
    *e = (err){ 0 };
    *rc = CMD_AB.run(&CMD_AB, argc, argv, status, e);
    fflush(stdout);
    dup2(kept, STDOUT_FILENO);
    close(kept);
    rewind(out);
    return out;
}

static void json_has_a_row_for_each_t_and_a_verdict(void **state)
{
    (void)state;
    char *argv[] = { "ple_gnorm", "ple_gnorm_cached", "1", "2", "--cpu", "--json", "--seeds", "1", "--iterations", "5" };
    char line[4096];
    int status, n = 0;
    err_code rc;
    err e;
    FILE *out = command(COUNT_OF(argv), argv, &status, &rc, &e);
    assert_int_equal(rc, ERR_OK);
    assert_int_equal(status, 0);
    for (; fgets(line, sizeof line, out); n++) {
        json_t *j = json_loads(line, 0, NULL);
        assert_non_null(j);
        assert_int_equal(json_integer_value(json_object_get(j, "schema")), 1);
        if (n == 0) assert_string_equal(fmt_json_text(j, "backend"), "cpu");
        if (n == 1 || n == 2) {
            assert_int_equal(json_integer_value(json_object_get(j, "T")), n);
            assert_true(json_is_true(json_object_get(j, "kept")));
            assert_true(json_is_true(json_object_get(j, "same_code"))); /* no twin of its own: it says so */
            assert_true(json_real_value(json_object_get(json_object_get(j, "times"), "ratio")) > 0);
        }
        if (n == 3) assert_string_equal(fmt_json_text(j, "verdict"), "PASS");
        json_decref(j);
    }
    assert_int_equal(n, 4);
    fclose(out);
}

static void a_broken_promise_is_counted_and_shown_with_its_command(void **state)
{
    (void)state;
    const int kept = dup(STDOUT_FILENO);
    char text[4096] = "";
    err e = { 0 };
    ab_totals t = { 0 };
    ab_row row = { .T = 2, .compared = 9, .finding = compare(&BITS, ONE_BIT, AB_PLAIN), .broken_dim = SHAPE[0] };
    FILE *out = tmpfile();
    fflush(stdout);
    dup2(fileno(out), STDOUT_FILENO);
    const err_code rc = ab_print_pair(&BITS, SHAPE[0], &cpu, &row, 1, false, &t, &e);
    fflush(stdout);
    dup2(kept, STDOUT_FILENO);
    close(kept);
    rewind(out);
    assert_true(fread(text, 1, sizeof text - 1, out) > 0);
    fclose(out);
    assert_int_equal(rc, ERR_OK);
    assert_int_equal(t.broken, 1);
    assert_int_equal(t.faster + t.slower, 0);
    assert_non_null(strstr(text, "bits differ"));
    assert_non_null(strstr(text, "again: sparktape ab doubled doubled_fast 2 --seeds 1 --seed 5"));
}

static void wrong_usage_is_refused(void **state)
{
    (void)state;
    char *cases[][4] = {
        { "ple_gnorm", NULL },
        { "ple_gnorm", "ple_gnorm_", NULL },
        { "markov_step", "markov_step_hot", "5", NULL }, /* it takes 4 slots */
        { "ple_gnorm", "ple_gnorm_cached", "0", NULL },
        { "--seeds=0", NULL },
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        int status, argc = 0;
        err_code rc;
        err e;
        while (cases[i][argc]) argc++;
        fclose(command(argc, cases[i], &status, &rc, &e));
        assert_int_equal(rc, ERR_ARG);
        assert_non_null(strstr(e.msg, "found"));
        assert_non_null(strstr(e.msg, "wanted"));
    }
}

static int open_cpu(void **state)
{
    err e = { 0 };
    (void)state;
    return ab_cpu_open(&cpu, &e) == ERR_OK ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sides_that_agree_are_equal),
        cmocka_unit_test(one_bit_is_found_and_named),
        cmocka_unit_test(an_output_left_alone_is_caught),
        cmocka_unit_test(state_that_did_not_move_is_caught),
        cmocka_unit_test(an_input_that_is_written_to_is_caught),
        cmocka_unit_test(a_value_outside_its_bound_is_caught),
        cmocka_unit_test(ratios_are_taken_pair_by_pair),
        cmocka_unit_test(sides_are_timed_in_turn),
        cmocka_unit_test(every_run_of_a_unit_reads_its_own_copy_of_the_weights),
        cmocka_unit_test(the_budget_ends_the_pairs_but_not_before_five),
        cmocka_unit_test(every_kind_of_input_is_what_it_says),
        cmocka_unit_test(names_are_found_and_unknown_ones_are_told_the_nearest),
        cmocka_unit_test(new_moves_fewer_bytes),
        cmocka_unit_test(every_pair_keeps_its_promise_on_the_cpu),
        cmocka_unit_test(json_has_a_row_for_each_t_and_a_verdict),
        cmocka_unit_test(a_broken_promise_is_counted_and_shown_with_its_command),
        cmocka_unit_test(wrong_usage_is_refused),
    };
    return cmocka_run_group_tests(tests, open_cpu, NULL);
}
