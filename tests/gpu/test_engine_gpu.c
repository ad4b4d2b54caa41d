/* Whole steps on one card: eager and graph give the same bits, a request does not depend on its neighbours or on what ran
 * before, nothing escapes a capture, nothing is allocated inside a step. */
#include "engine_case.h"

#include "base/mem.h"
#include "tests/support/alloc_guard.h"

static const char *const ARMS[] = { "native-packed", "native-expanded", "native-hybrid", "native-hybrid-head",
                                    "native-packed-kx" };

static case_run cuda(const char *arm, eng_mode mode, int32_t tp)
{
    return (case_run){ arm, ENG_BACKEND_CUDA, mode, tp, ENG_COMM_EMULATED, ENG_COMBINE_EXACT };
}

static void graphs_have_the_bits_of_eager_for_every_shape(void **state)
{
    (void)state;
    for (size_t a = 0; a < COUNT_OF(ARMS); a++)
        for (int32_t tp = 1; tp <= 2; tp++)
            for (int combine = 0; combine < 2; combine++) {
                case_run run = cuda(ARMS[a], ENG_MODE_EAGER, tp);
                run.combine = (eng_combine)combine;
                eng_engine *eager = case_engine(run);
                run.mode = ENG_MODE_GRAPH;
                eng_engine *graph = case_engine(run);
                const eng_program *p = eng_program_of(eager, ENG_STEP_DRAFT);
                case_fill(eager);
                case_fill(graph);
                for (int32_t batch = 1; batch <= CASE_SLOTS; batch++)
                    for (int32_t n_out = 1; n_out <= case_config().block; n_out++) { /* some were not captured at open */
                        case_shown x, y;
                        case_outcome o = case_draft(eager, batch, CASE_ALL + CASE_SLOTS - batch, n_out, &x);
                        case_outcome q = case_draft(graph, batch, CASE_ALL + CASE_SLOTS - batch, n_out, &y);
                        assert_memory_equal(&o, &q, sizeof o);
                        case_same(ARMS[a], p, tp, &x, &y);
                    }
                eng_close(eager);
                eng_close(graph);
            }
}

/* The layout of the experts, and which launches run them, is all that a kx arm has of its own (kx2: and main_proj decoded,
 * whose sums are exact): every value of every step is its base's. */
static void a_kx_arm_has_the_bits_of_its_base(void **state)
{
    (void)state;
    static const char *const PAIR[][2] = { { "native-packed", "native-packed-kx" },
                                           { "native-hybrid", "native-hybrid-kx" },
                                           { "native-packed", "native-hybrid-kx2" },
                                           { "native-packed", "native-hybrid-kx2" } };
    const eng_dispatch fused = eng_dispatch_all(ENG_VARIANT_FUSED), separate = eng_dispatch_all(ENG_VARIANT_SEPARATE);
    for (size_t i = 0; i < COUNT_OF(PAIR); i++)
        for (int32_t tp = 1; tp <= 2; tp++)
            for (int combine = 0; combine < 2; combine++) {
                case_run run = cuda(PAIR[i][0], ENG_MODE_EAGER, tp);
                run.combine = (eng_combine)combine;
                eng_engine *base = case_engine(run);
                run.arm = PAIR[i][1];
                run.dispatch = i % 2 ? &separate : &fused;
                run.mode = tp == 1 ? ENG_MODE_EAGER : ENG_MODE_GRAPH;
                eng_engine *kx = case_engine(run);
                case_fill(base);
                case_fill(kx);
                for (int32_t batch = 1; batch <= CASE_SLOTS; batch++) {
                    case_shown x, y;
                    case_outcome o = case_draft(base, batch, CASE_ALL, 5, &x), q = case_draft(kx, batch, CASE_ALL, 5, &y);
                    assert_memory_equal(&o, &q, sizeof o);
                    case_same(PAIR[i][1], eng_program_of(base, ENG_STEP_DRAFT), tp, &x, &y);
                }
                eng_close(base);
                eng_close(kx);
            }
}

static void inserts_of_any_length_have_the_bits_of_eager(void **state)
{
    (void)state;
    eng_engine *eager = case_engine(cuda("native-packed", ENG_MODE_EAGER, 2));
    eng_engine *graph = case_engine(cuda("native-packed", ENG_MODE_GRAPH, 2));
    const eng_program *p = eng_program_of(eager, ENG_STEP_INSERT);
    const int32_t lengths[] = { 1, 7, 8, 9, 16, 17, 33, 64, 127 };
    int32_t at = 0;
    for (size_t i = 0; i < COUNT_OF(lengths) && at + lengths[i] <= CASE_ROWS_MAX; at += lengths[i], i++) {
        case_shown x, y;
        case_insert(eager, 1, at, lengths[i], &x);
        case_insert(graph, 1, at, lengths[i], &y);
        case_same("insert", p, 2, &x, &y);
        for (int32_t s = 0; s < case_config().n_stages; s++) { /* padding rows must not reach the window */
            err e = { 0 };
            fmt_tensor a, b;
            bf16 copy[1 << 16];
            gpu_ok(eng_window(eager, 1, s, &a, &e), &e);
            memcpy(copy, a.data, fmt_tensor_bytes(&a));
            gpu_ok(eng_window(graph, 1, s, &b, &e), &e);
            gpu_same("window", copy, b.data, a.shape[0] * a.shape[1], sizeof(bf16));
        }
    }
    eng_close(eager);
    eng_close(graph);
}

static void a_graph_replayed_on_other_data_and_back_is_unchanged(void **state)
{
    (void)state;
    for (int32_t tp = 1; tp <= 2; tp++) {
        eng_engine *g = case_engine(cuda("native-packed", ENG_MODE_GRAPH, tp));
        const eng_program *p = eng_program_of(g, ENG_STEP_DRAFT);
        const int32_t a[2] = { 0, 3 }, b[2] = { 2, 1 };
        case_shown first, other, again;
        case_fill(g);
        case_outcome x = case_draft(g, 2, a, 5, &first);
        case_draft(g, 2, b, 5, &other);
        case_draft(g, 4, CASE_ALL, 4, NULL);
        case_outcome y = case_draft(g, 2, a, 5, &again);
        assert_memory_equal(&x, &y, sizeof x);
        case_same("A, B, A", p, tp, &first, &again);
        int32_t v = eng_program_find_value(p, "head.logits");
        assert_true(first.hash[0][v] != other.hash[0][v]); /* B was another step */
        eng_close(g);
    }
}

static void a_request_alone_equals_itself_in_a_batch(void **state)
{
    (void)state;
    for (size_t a = 0; a < COUNT_OF(ARMS); a++) {
        eng_engine *g = case_engine(cuda(ARMS[a], ENG_MODE_GRAPH, 2));
        int32_t block = case_config().block;
        case_fill(g);
        case_outcome all = case_draft(g, CASE_SLOTS, CASE_ALL, block, NULL);
        for (int32_t s = 0; s < CASE_SLOTS; s++) {
            case_outcome one = case_draft(g, 1, &s, block, NULL);
            assert_memory_equal(one.drafts, all.drafts + s * block, sizeof(int32_t) * (size_t)block);
            assert_memory_equal(one.confidence, all.confidence + s * block, sizeof(float) * (size_t)block);
        }
        eng_close(g);
    }
}

static void nothing_escapes_the_capture(void **state)
{
    (void)state;
    for (int32_t tp = 1; tp <= 2; tp++) {
        eng_engine *eager = case_engine(cuda("native-packed", ENG_MODE_EAGER, tp));
        eng_engine *graph = case_engine(cuda("native-packed", ENG_MODE_GRAPH, tp));
        case_fill(eager);
        for (int32_t batch = 1; batch <= CASE_SLOTS; batch++) {
            case_draft(eager, batch, CASE_ALL, 5, NULL);
            eng_device_counts x = eng_device_draft_counts(eng_device_of(eager, 0), batch, 5);
            eng_device_counts y = eng_device_draft_counts(eng_device_of(graph, 0), batch, 5);
            assert_true(x.eager_launches > 0);
            assert_int_equal(y.captured_launches, y.graph_kernels);
            assert_true(y.captured_launches > 0 && y.captured_launches < x.eager_launches); /* units are fused */
            assert_int_equal(y.graph_nodes, y.graph_kernels + 1); /* the wait for the windows: no copies, no host work */
        }
        eng_close(eager);
        eng_close(graph);
    }
}

static void steps_allocate_nothing(void **state)
{
    (void)state;
    eng_mode modes[] = { ENG_MODE_EAGER, ENG_MODE_GRAPH };
    for (size_t m = 0; m < COUNT_OF(modes); m++) {
        eng_engine *g = case_engine(cuda("native-packed", modes[m], 2));
        case_fill(g);
        case_draft(g, 4, CASE_ALL, 5, NULL);
        uint64_t device = krn_device_alloc_count();
        int64_t host = alloc_guard_hot_calls;
        case_draft(g, 4, CASE_ALL, 5, NULL);
        case_draft(g, 1, CASE_ALL, 4, NULL);
        case_insert(g, 0, 2, 9, NULL);
        assert_int_equal(krn_device_alloc_count(), device);
        assert_int_equal(alloc_guard_hot_calls, host);
        assert_true(alloc_guard_other_calls > 0); /* the count works */
        eng_close(g);
    }
}

/* Nobody waits between an insert and a draft: the draft runs beside it up to its first look at a window, and no further.
 * The eager engine is waited for after each insert. */
static void a_draft_right_behind_an_insert_sees_its_rows(void **state)
{
    (void)state;
    static const int32_t ROWS[] = { 1, 3, 5, 9, 2, 17, 4, 33 };
    eng_engine *eager = case_engine(cuda("native-packed", ENG_MODE_EAGER, 2));
    eng_engine *graph = case_engine(cuda("native-packed", ENG_MODE_GRAPH, 2));
    for (int32_t again = 0; again < 6; again++) {
        int32_t at = 0;
        const int32_t s = again % CASE_SLOTS;
        for (size_t i = 0; i < COUNT_OF(ROWS); at += ROWS[i], i++) {
            case_shown shown;
            case_insert(eager, s, at, ROWS[i], &shown);
            case_outcome x = case_draft(eager, 1, &s, 5, NULL);
            case_insert(graph, s, at, ROWS[i], NULL);
            case_outcome y = case_draft(graph, 1, &s, 5, NULL);
            assert_memory_equal(&x, &y, sizeof x);
        }
        eng_release(eager, s);
        eng_release(graph, s);
    }
    eng_close(eager);
    eng_close(graph);
}

static void prewarm_captures_what_is_new_and_changes_no_window(void **state)
{
    (void)state;
    err e = { 0 };
    int32_t n = -1;
    case_run run = cuda("native-packed", ENG_MODE_GRAPH, 2);
    eng_engine *whole = case_engine(run);
    run.lazy = true;
    eng_engine *g = case_engine(run);
    assert_int_equal(eng_device_draft_counts(eng_device_of(g, 0), 1, 5).graph_nodes, 0);
    gpu_ok(eng_prewarm(whole, ENG_BATCH_MAX, ENG_INSERT_ROWS_MAX, &n, &e), &e);
    assert_int_equal(n, 0); /* done at open */
    case_fill(whole);
    case_fill(g); /* the buckets that it needs are captured on the way */
    case_outcome want = case_draft(whole, 4, CASE_ALL, 5, NULL);
    gpu_ok(eng_prewarm(g, 1, 8, &n, &e), &e);
    assert_int_equal(n, 2);
    gpu_ok(eng_prewarm(g, 1, 8, &n, &e), &e);
    assert_int_equal(n, 0);
    gpu_ok(eng_prewarm(g, 3, 8, &n, &e), &e);
    assert_int_equal(n, 4);
    assert_int_equal(eng_device_draft_counts(eng_device_of(g, 0), 4, 5).graph_nodes, 0);
    case_outcome got = case_draft(g, 4, CASE_ALL, 5, NULL); /* captured when it is wanted */
    assert_memory_equal(&want, &got, sizeof want);
    gpu_ok(eng_prewarm(g, ENG_BATCH_MAX, ENG_INSERT_ROWS_MAX, &n, &e), &e);
    assert_in_range(n, 1, 4); /* four slots with block - 1, and the buckets that filling did not take */
    got = case_draft(g, 4, CASE_ALL, 5, NULL);
    assert_memory_equal(&want, &got, sizeof want);
    assert_int_equal(eng_prewarm(g, ENG_BATCH_MAX + 1, 1, &n, &e), ERR_ARG);
    eng_close(g);
    eng_close(whole);
}

static void a_released_slot_leaves_nothing_to_the_next_request(void **state)
{
    (void)state;
    eng_engine *g = case_engine(cuda("native-packed", ENG_MODE_GRAPH, 2));
    eng_engine *fresh = case_engine(cuda("native-packed", ENG_MODE_GRAPH, 2));
    const int32_t s = 2;
    case_insert(g, s, 0, 300, NULL);
    case_draft(g, 1, &s, 5, NULL);
    eng_release(g, s);
    case_insert(g, s, 0, 3, NULL);
    case_insert(fresh, s, 0, 3, NULL);
    case_outcome x = case_draft(g, 1, &s, 5, NULL), y = case_draft(fresh, 1, &s, 5, NULL);
    assert_memory_equal(&x, &y, sizeof x);
    eng_close(g);
    eng_close(fresh);
}

/* The same program on the other backend: drafts agree but for near-ties, which this checkpoint's requests have none of. */
static void drafts_are_those_of_the_cpu(void **state)
{
    (void)state;
    for (size_t a = 0; a < COUNT_OF(ARMS); a++) {
        eng_engine *card = case_engine(cuda(ARMS[a], ENG_MODE_GRAPH, 2));
        eng_engine *cpu = case_engine((case_run){ .arm = ARMS[a], .tp = 2 });
        case_fill(card);
        case_fill(cpu);
        case_outcome x = case_draft(card, 4, CASE_ALL, 5, NULL), y = case_draft(cpu, 4, CASE_ALL, 5, NULL);
        gpu_same(ARMS[a], x.drafts, y.drafts, 4 * 5, sizeof(int32_t));
        eng_close(card);
        eng_close(cpu);
    }
}

int main(void)
{
    if (krn_device_count() == 0) return gpu_skip();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(graphs_have_the_bits_of_eager_for_every_shape),
        cmocka_unit_test(a_kx_arm_has_the_bits_of_its_base),
        cmocka_unit_test(inserts_of_any_length_have_the_bits_of_eager),
        cmocka_unit_test(a_graph_replayed_on_other_data_and_back_is_unchanged),
        cmocka_unit_test(a_request_alone_equals_itself_in_a_batch),
        cmocka_unit_test(nothing_escapes_the_capture),
        cmocka_unit_test(steps_allocate_nothing),
        cmocka_unit_test(a_draft_right_behind_an_insert_sees_its_rows),
        cmocka_unit_test(prewarm_captures_what_is_new_and_changes_no_window),
        cmocka_unit_test(a_released_slot_leaves_nothing_to_the_next_request),
        cmocka_unit_test(drafts_are_those_of_the_cpu),
    };
    return cmocka_run_group_tests(tests, case_open, case_close);
}
