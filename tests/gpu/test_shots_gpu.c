/* Shots on a card: the bits that taps show, graph and eager, one rank and two; digests and top rows taken by the card;
 * steps that overlap with the reading; and what it costs. */
#include "engine_case.h"

#include "base/clock.h"
#include "base/mem.h"
#include "tests/engine/shot_check.h"
#include "tests/support/alloc_guard.h"

#include <pthread.h>
#include <sched.h>

static case_run cuda(eng_mode mode, int32_t tp)
{
    return (case_run){ "native-packed", ENG_BACKEND_CUDA, mode, tp, ENG_COMM_EMULATED, ENG_COMBINE_EXACT, ENG_LEVEL_DEEP };
}

static const int32_t MIXED[CASE_SLOTS] = { 3, 0, 2, 1 };

/* Draft steps of every shape, shown and kept at once. */
static void compare_drafts(uint8_t keep)
{
    for (int mode = 0; mode < 2; mode++)
        for (int32_t tp = 1; tp <= 2; tp++) {
            eng_engine *g = case_engine(cuda((eng_mode)mode, tp));
            eng_shots *pool = shots_of_all(g, keep, 1, CASE_ROWS_MAX);
            case_fill(g);
            for (int32_t batch = 1; batch <= CASE_SLOTS; batch++)
                for (int32_t n_out = 1; n_out <= case_config().block; n_out++) {
                    shown s = { 0 };
                    eng_tap tap = { shown_look, &s, shot_take(pool), false };
                    case_draft_tapped(g, batch, MIXED, n_out, &tap);
                    shot_landed(tap.shot);
                    if (keep & ENG_KEEP_TENSOR) shot_has_shown(g, tap.shot, &s);
                    if (keep & ENG_KEEP_DIGEST) shot_digests_shown(g, tap.shot, &s);
                    if (keep & ENG_KEEP_TOP) shot_top_of_shown(g, tap.shot, &s);
                    shot_has_windows(g, tap.shot, keep, batch, MIXED);
                    eng_shot_free(tap.shot);
                    shown_forget(&s);
                }
            eng_shots_close(pool);
            eng_close(g);
        }
}

static void tensors_are_those_that_taps_show(void **state)
{
    (void)state;
    compare_drafts(ENG_KEEP_TENSOR);
}

static void digests_and_top_rows_are_those_of_the_tensors(void **state)
{
    (void)state;
    compare_drafts(ENG_KEEP_DIGEST | ENG_KEEP_TOP);
}

/* Buckets are padded in a graph and cut at 128 rows: the shot holds the rows that were inserted, joined. */
static void inserts_of_any_length_are_joined(void **state)
{
    (void)state;
    static const int32_t lengths[] = { 1, 7, 8, 9, 127, 128, 129, 256, 300 };
    static const uint8_t keeps[] = { ENG_KEEP_TENSOR, ENG_KEEP_DIGEST };
    for (int mode = 0; mode < 2; mode++)
        for (int32_t tp = 1; tp <= 2; tp++)
            for (size_t k = 0; k < COUNT_OF(keeps); k++) {
                eng_engine *g = case_engine(cuda((eng_mode)mode, tp));
                eng_shots *pool = shots_of_all(g, keeps[k], 1, CASE_ROWS_MAX);
                for (size_t i = 0; i < COUNT_OF(lengths); i++) {
                    shown s = { 0 };
                    eng_tap look = { .tensor = shown_look, .ctx = &s }, tap = { .shot = shot_take(pool) };
                    case_insert_tapped(g, 0, 0, lengths[i], &look);
                    case_insert_tapped(g, 1, 0, lengths[i], &tap); /* which nobody is shown: it is not waited for */
                    shot_landed(tap.shot);
                    if (keeps[k] & ENG_KEEP_TENSOR) shot_has_shown(g, tap.shot, &s);
                    else shot_digests_shown(g, tap.shot, &s);
                    eng_shot_free(tap.shot);
                    shown_forget(&s);
                    eng_release(g, 0);
                    eng_release(g, 1);
                }
                eng_shots_close(pool);
                eng_close(g);
            }
}

/* Inserts return before they are done: rows of the next ones must not run into theirs. */
static void inserts_in_a_row_do_not_disturb_each_other(void **state)
{
    (void)state;
    eng_engine *g = case_engine(cuda(ENG_MODE_GRAPH, 2)), *slow = case_engine(cuda(ENG_MODE_EAGER, 2));
    case_shown x;
    for (int32_t at = 0, n = 1; at < CASE_ROWS_MAX; at += n, n = n % 9 + 1) {
        if (at + n > CASE_ROWS_MAX) n = CASE_ROWS_MAX - at;
        for (int32_t s = 0; s < CASE_SLOTS; s++) case_insert(g, s, at, n, NULL);
        for (int32_t s = 0; s < CASE_SLOTS; s++) case_insert(slow, s, at, n, &x); /* shown: each is waited for */
    }
    case_outcome a = case_draft(g, CASE_SLOTS, CASE_ALL, 5, NULL), b = case_draft(slow, CASE_SLOTS, CASE_ALL, 5, NULL);
    assert_memory_equal(&a, &b, sizeof a);
    eng_close(g);
    eng_close(slow);
}

/* One launch a rank, two where top rows are kept, and without a shot the same as ever. */
static void a_step_without_a_shot_launches_nothing_more(void **state)
{
    (void)state;
    for (int mode = 0; mode < 2; mode++)
        for (int32_t tp = 1; tp <= 2; tp++) {
            eng_engine *g = case_engine(cuda((eng_mode)mode, tp));
            case_fill(g);
            case_draft(g, 4, CASE_ALL, 5, NULL);
            int64_t start = krn_launch_count();
            case_draft(g, 4, CASE_ALL, 5, NULL);
            int64_t plain = krn_launch_count() - start;
            int64_t counted = eng_device_draft_counts(eng_device_of(g, 0), 4, 5).eager_launches;
            assert_int_equal(plain, mode == ENG_MODE_EAGER ? counted : 0);
            for (int top = 0; top < 2; top++) {
                eng_shots *pool = shots_of_all(g, ENG_KEEP_DIGEST | (top ? ENG_KEEP_TOP : 0), 1, 1);
                eng_tap tap = { .shot = shot_take(pool) };
                start = krn_launch_count();
                case_draft_tapped(g, 4, CASE_ALL, 5, &tap);
                assert_int_equal(krn_launch_count() - start, plain + tp * (1 + top));
                start = krn_launch_count();
                case_draft(g, 4, CASE_ALL, 5, NULL);
                assert_int_equal(krn_launch_count() - start, plain);
                shot_landed(tap.shot);
                eng_shot_free(tap.shot);
                eng_shots_close(pool);
            }
            eng_close(g);
        }
}

static void a_b_a_with_shots_gives_the_same_bits(void **state)
{
    (void)state;
    for (int32_t tp = 1; tp <= 2; tp++) {
        eng_engine *g = case_engine(cuda(ENG_MODE_GRAPH, tp));
        eng_shots *pool = shots_of_all(g, ENG_KEEP_TENSOR, 3, 1);
        const int32_t a[2] = { 0, 3 }, b[2] = { 2, 1 };
        eng_tap first = { .shot = shot_take(pool) }, other = { .shot = shot_take(pool) };
        eng_tap again = { .shot = shot_take(pool) };
        case_fill(g);
        case_outcome plain = case_draft(g, 2, a, 5, NULL);
        case_outcome x = case_draft_tapped(g, 2, a, 5, &first);
        case_draft_tapped(g, 2, b, 5, &other);
        case_outcome y = case_draft_tapped(g, 2, a, 5, &again);
        assert_memory_equal(&plain, &x, sizeof x);
        assert_memory_equal(&plain, &y, sizeof y);
        shot_landed(first.shot);
        shot_landed(other.shot);
        shot_landed(again.shot);
        const eng_program *p = eng_program_of(g, ENG_STEP_DRAFT);
        bool b_differs = false;
        for (int32_t v = 0; v < p->n_values; v++)
            for (int32_t r = 0; shown_tapped(&p->value[v]) && r < tp; r++) {
                fmt_tensor t, u, w;
                eng_shot_tensor(first.shot, r, v, 0, &t);
                eng_shot_tensor(other.shot, r, v, 0, &u);
                eng_shot_tensor(again.shot, r, v, 0, &w);
                if (!shown_equal(&t, &w)) fail_msg("%s of rank %d differs after another step", p->value[v].name, r);
                b_differs = b_differs || !shown_equal(&t, &u);
            }
        assert_true(b_differs);
        eng_shot_free(first.shot);
        eng_shot_free(other.shot);
        eng_shot_free(again.shot);
        eng_shots_close(pool);
        eng_close(g);
    }
}

/* Eight steps follow one another before any shot is read; then shots are freed without a wait and used again. */
static void shots_in_flight_keep_their_own_step(void **state)
{
    (void)state;
    enum { DEPTH = 8 };
    eng_engine *g = case_engine(cuda(ENG_MODE_GRAPH, 2));
    eng_shots *pool = shots_of_all(g, ENG_KEEP_TENSOR, DEPTH, 1);
    case_fill(g);
    for (int turn = 0; turn < 2; turn++) {
        eng_shot *shot[DEPTH];
        for (int i = 0; i < DEPTH; i++) {
            eng_tap tap = { .shot = shot[i] = shot_take(pool) };
            case_draft_tapped(g, i % CASE_SLOTS + 1, MIXED, 4 + i / 4, &tap);
        }
        assert_null(eng_shots_take(pool));
        for (int i = 0; i < DEPTH; i++) {
            shown s = { 0 };
            eng_tap tap = { .tensor = shown_look, .ctx = &s };
            case_draft_tapped(g, i % CASE_SLOTS + 1, MIXED, 4 + i / 4, &tap);
            shot_landed(shot[i]);
            shot_has_shown(g, shot[i], &s);
            eng_shot_free(shot[i]);
            shown_forget(&s);
        }
        for (int i = 0; i < 3 * DEPTH; i++) {
            eng_tap tap = { .shot = shot_take(pool) };
            case_draft_tapped(g, 4, CASE_ALL, 5, &tap);
            eng_shot_free(tap.shot);
        }
    }
    eng_shots_close(pool);
    eng_close(g);
}

/* ---- a reader beside the steps ---- */

enum { QUEUE = 4, READS = 300 };
typedef struct reader {
    eng_shot *_Atomic queue[QUEUE]; /* NULL: free */
    _Atomic bool stop;
    uint64_t first_digest[READS];
    int32_t value, n, failed; /* value: whose digest is asked, -1: none */
} reader;

static void *read_shots(void *arg)
{
    reader *r = arg;
    for (int i = 0;; i = (i + 1) % QUEUE) {
        eng_shot *shot;
        while (!(shot = r->queue[i]) && !r->stop) sched_yield();
        if (!shot) return NULL;
        const uint64_t *row;
        uint64_t n_rows, digest = 0;
        fmt_stats stats;
        err e = { 0 };
        if (eng_shot_wait(shot, &e) != ERR_OK) r->failed++;
        else if (r->value >= 0) eng_shot_digest(shot, 0, r->value, 0, &row, &n_rows, &digest, &stats);
        if (r->n < READS) r->first_digest[r->n] = digest;
        r->n++;
        eng_shot_free(shot);
        r->queue[i] = NULL;
    }
}

/* Gives the reader the shot in the place of step i. */
static void hand_over(reader *r, int i, eng_shot *shot)
{
    while (r->queue[i % QUEUE]) sched_yield();
    r->queue[i % QUEUE] = shot;
}

static void a_reader_beside_the_steps_sees_each_of_them(void **state)
{
    (void)state;
    eng_engine *g = case_engine(cuda(ENG_MODE_GRAPH, 1));
    eng_shots *pool = shots_of_all(g, ENG_KEEP_DIGEST | ENG_KEEP_TOP, QUEUE + 1, 1);
    static reader r;
    pthread_t thread;
    r = (reader){ .value = eng_program_find_value(eng_program_of(g, ENG_STEP_DRAFT), "s1.out") };
    case_fill(g);
    assert_int_equal(pthread_create(&thread, NULL, read_shots, &r), 0);
    for (int i = 0; i < READS; i++) {
        eng_tap tap = { 0 };
        while (!(tap.shot = eng_shots_take(pool))) sched_yield();
        case_draft_tapped(g, i % 3 + 1, MIXED, 5, &tap);
        hand_over(&r, i, tap.shot);
    }
    for (int i = 0; i < QUEUE; i++)
        while (r.queue[i]) sched_yield();
    r.stop = true;
    pthread_join(thread, NULL);
    assert_int_equal(r.failed, 0);
    assert_int_equal(r.n, READS);
    for (int i = 3; i < READS; i++) assert_int_equal(r.first_digest[i], r.first_digest[i - 3]);
    assert_true(r.first_digest[0] != r.first_digest[1] && r.first_digest[1] != r.first_digest[2]);
    eng_shots_close(pool);
    eng_close(g);
}

static void keeping_a_step_allocates_nothing(void **state)
{
    (void)state;
    for (int mode = 0; mode < 2; mode++) {
        eng_engine *g = case_engine(cuda((eng_mode)mode, 2));
        eng_shots *pool = shots_of_all(g, ENG_KEEP_TENSOR, 2, 200);
        case_fill(g);
        for (int turn = 0; turn < 2; turn++) { /* the first one may load kernels */
            uint64_t device = krn_device_alloc_count();
            int64_t host = alloc_guard_hot_calls;
            eng_tap draft = { .shot = shot_take(pool) }, insert = { .shot = shot_take(pool) };
            case_insert_tapped(g, 0, eng_slot_last(g, 0) + 1, 140, &insert);
            case_draft_tapped(g, 4, CASE_ALL, 5, &draft);
            shot_landed(insert.shot);
            shot_landed(draft.shot);
            eng_shot_free(insert.shot);
            eng_shot_free(draft.shot);
            if (turn == 0) continue;
            assert_int_equal(krn_device_alloc_count(), device);
            assert_int_equal(alloc_guard_hot_calls, host);
        }
        eng_shots_close(pool);
        eng_close(g);
    }
}

static void a_traced_step_shows_everything(void **state)
{
    (void)state;
    for (int32_t tp = 1; tp <= 2; tp++) {
        case_run little = cuda(ENG_MODE_GRAPH, tp);
        little.retain = ENG_LEVEL_IO;
        eng_engine *g = case_engine(little), *eager = case_engine(cuda(ENG_MODE_EAGER, tp));
        const eng_program *p = eng_program_of(g, ENG_STEP_DRAFT);
        shown x = { 0 }, y = { 0 };
        eng_tap at_x = { .tensor = shown_look, .ctx = &x }, at_y = { .tensor = shown_look, .ctx = &y, .traced = true };
        case_fill(g);
        case_fill(eager);
        case_outcome a = case_draft_tapped(eager, 4, CASE_ALL, 5, &at_x), b = case_draft_tapped(g, 4, CASE_ALL, 5, &at_y);
        assert_memory_equal(&a, &b, sizeof a);
        assert_int_equal(x.n, y.n);
        for (int32_t v = 0; v < p->n_values; v++)
            for (int32_t r = 0; shown_tapped(&p->value[v]) && r < tp; r++)
                if (!shown_equal(&x.t[r][v], &y.t[r][v])) fail_msg("%s of rank %d differs", p->value[v].name, r);
        shown_forget(&x);
        shown_forget(&y);
        eng_close(g);
        eng_close(eager);
    }
}

static void a_restored_slot_drafts_as_the_one_it_was_copied_from(void **state)
{
    (void)state;
    static const int32_t lasts[] = { 0, 5, 126, 127, 128, 290 };
    eng_config c = case_config();
    size_t ring = (size_t)c.window * (size_t)c.head_dim;
    bf16 *copy = mem_alloc(ring * (size_t)c.n_stages, sizeof *copy);
    assert_non_null(copy);
    for (size_t i = 0; i < COUNT_OF(lasts); i++) {
        eng_engine *g = case_engine(cuda(ENG_MODE_GRAPH, 2));
        const bf16 *window[ENG_STAGES_MAX];
        err e = { 0 };
        case_insert(g, 2, 0, lasts[i] + 1, NULL);
        case_insert(g, 0, 0, CASE_ROWS_MAX, NULL); /* it must leave nothing behind */
        for (int32_t k = 0; k < c.n_stages; k++) {
            fmt_tensor t;
            gpu_ok(eng_window(g, 2, k, &t, &e), &e);
            memcpy(copy + ring * (size_t)k, t.data, fmt_tensor_bytes(&t));
            window[k] = copy + ring * (size_t)k;
        }
        gpu_ok(eng_restore(g, 0, lasts[i], window, &e), &e);
        for (int more = 0; more < 2; more++) {
            int32_t anchor = 9, at = eng_slot_last(g, 0), drafts[2][ENG_BLOCK_MAX] = { { 0 } };
            float confidence[2][ENG_BLOCK_MAX] = { { 0 } };
            assert_int_equal(at, eng_slot_last(g, 2));
            for (int32_t s = 0; s < 2; s++)
                gpu_ok(eng_draft(g, 1, &(int32_t){ 2 * s }, &anchor, &at, 5, drafts[s], confidence[s], NULL, &e), &e);
            assert_memory_equal(drafts[0], drafts[1], sizeof drafts[0]);
            assert_memory_equal(confidence[0], confidence[1], sizeof confidence[0]);
            case_insert(g, 0, at + 1, 4, NULL);
            case_insert(g, 2, at + 1, 4, NULL);
        }
        eng_close(g);
    }
    free(copy);
}

/* ---- figures ---- */

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef struct figure { double device_us, wall_us; } figure;

/* Medians of steps of four slots, a reader taking the shots away (pool NULL: no shots). */
static figure time_steps(eng_engine *g, eng_shots *pool, int32_t value)
{
    enum { SAMPLES = 400, WARM = 50 };
    static double device[SAMPLES], wall[SAMPLES];
    static reader r;
    pthread_t thread;
    r = (reader){ .value = value };
    if (pool) assert_int_equal(pthread_create(&thread, NULL, read_shots, &r), 0);
    for (int i = 0; i < WARM + SAMPLES; i++) {
        eng_tap tap = { 0 };
        while (pool && !(tap.shot = eng_shots_take(pool))) sched_yield();
        uint64_t start = clock_ns();
        case_draft_tapped(g, 4, CASE_ALL, 5, pool ? &tap : NULL);
        uint64_t ns = clock_ns() - start;
        if (i >= WARM) {
            wall[i - WARM] = (double)ns * 1e-3;
            device[i - WARM] = eng_device_step_us(eng_device_of(g, 0));
        }
        if (pool) hand_over(&r, i, tap.shot);
    }
    for (int i = 0; pool && i < QUEUE; i++)
        while (r.queue[i]) sched_yield();
    r.stop = true;
    if (pool) pthread_join(thread, NULL);
    qsort(device, SAMPLES, sizeof *device, ascending);
    qsort(wall, SAMPLES, sizeof *wall, ascending);
    return (figure){ device[SAMPLES / 2], wall[SAMPLES / 2] };
}

/* What a V1 tape wants: its values and the windows whole, of the logits the top. */
static eng_shots *v1_shots(eng_engine *g)
{
    uint8_t choice[2][SHOWN_VALUES_MAX] = { { 0 } };
    eng_shots *s = NULL;
    err e = { 0 };
    for (int step = 0; step < 2; step++) {
        const eng_program *p = eng_program_of(g, (eng_step_kind)step);
        for (int32_t v = 0; v < p->n_values; v++) {
            const eng_value *value = &p->value[v];
            bool wanted = value->state ? step == ENG_STEP_DRAFT : value->producer >= 0 && value->level <= ENG_LEVEL_V1;
            if (wanted) choice[step][v] = value->top_only ? ENG_KEEP_TOP : ENG_KEEP_TENSOR;
        }
    }
    gpu_ok(eng_shots_open(g, (const uint8_t *const[]){ choice[0], choice[1] }, QUEUE + 1, 0, 1, &s, &e), &e);
    return s;
}

static void print_figure(const char *what, figure f, figure plain, eng_shots *pool)
{
    eng_shot_cost c = eng_shots_cost(pool);
    double n = (double)c.n_shots;
    printf("figure: %-14s step %+.1f us (%+.1f %%), wall %+.1f us; packing %.1f us, host %.1f us, %.0f KB a step\n", what,
           f.device_us - plain.device_us, 100 * (f.device_us / plain.device_us - 1), f.wall_us - plain.wall_us,
           (double)c.device_ns / n * 1e-3, (double)c.host_ns / n * 1e-3, (double)c.bytes / n / 1000);
}

/* Prints what shots add to a step of four slots; asserts only that the steps answer the same. */
static void figures(void **state)
{
    (void)state;
    eng_engine *g = case_engine(cuda(ENG_MODE_GRAPH, 1));
    case_fill(g);
    case_outcome before = case_draft(g, 4, CASE_ALL, 5, NULL);
    figure plain = time_steps(g, NULL, 0);
    printf("figure: %-14s step %.1f us, wall %.1f us (%s)\n", "no shots, B 4", plain.device_us, plain.wall_us,
           eng_device_name());
    const int32_t digested = eng_program_find_value(eng_program_of(g, ENG_STEP_DRAFT), "s1.out");
    const struct { const char *what; eng_shots *pool; int32_t value; } kinds[] = {
        { "v1", v1_shots(g), -1 },
        { "digest of all", shots_of_all(g, ENG_KEEP_DIGEST, QUEUE + 1, 1), digested },
        { "all tensors", shots_of_all(g, ENG_KEEP_TENSOR, QUEUE + 1, 1), -1 },
    };
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        print_figure(kinds[i].what, time_steps(g, kinds[i].pool, kinds[i].value), plain, kinds[i].pool);
        eng_shots_close(kinds[i].pool);
    }
    case_outcome after = case_draft(g, 4, CASE_ALL, 5, NULL);
    assert_memory_equal(&before, &after, sizeof before);
    eng_close(g);
}

int main(void)
{
    if (krn_device_count() == 0) return gpu_skip();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_are_those_that_taps_show),
        cmocka_unit_test(digests_and_top_rows_are_those_of_the_tensors),
        cmocka_unit_test(inserts_of_any_length_are_joined),
        cmocka_unit_test(inserts_in_a_row_do_not_disturb_each_other),
        cmocka_unit_test(a_step_without_a_shot_launches_nothing_more),
        cmocka_unit_test(a_b_a_with_shots_gives_the_same_bits),
        cmocka_unit_test(shots_in_flight_keep_their_own_step),
        cmocka_unit_test(a_reader_beside_the_steps_sees_each_of_them),
        cmocka_unit_test(keeping_a_step_allocates_nothing),
        cmocka_unit_test(a_traced_step_shows_everything),
        cmocka_unit_test(a_restored_slot_drafts_as_the_one_it_was_copied_from),
        cmocka_unit_test(figures),
    };
    return cmocka_run_group_tests(tests, case_open, case_close);
}
