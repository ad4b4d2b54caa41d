/* Two cards through NCCL: the bits of both ranks emulated on one card, in eager and in graphs; a rank that does not come
 * fails the step on the other, by name and in time. */
#include "engine_case.h"

#include "base/clock.h"
#include "base/mem.h"

static case_run two(eng_comm_kind comm, eng_mode mode, eng_combine combine)
{
    return (case_run){ "native-packed", ENG_BACKEND_CUDA, mode, 2, comm, combine };
}

static void nccl_has_the_bits_of_emulated(void **state)
{
    (void)state;
    for (int combine = 0; combine < 2; combine++)
        for (int mode = 0; mode < 2; mode++) {
            eng_engine *x = case_engine(two(ENG_COMM_NCCL, (eng_mode)mode, (eng_combine)combine));
            eng_engine *y = case_engine(two(ENG_COMM_EMULATED, (eng_mode)mode, (eng_combine)combine));
            const eng_program *p = eng_program_of(x, ENG_STEP_DRAFT);
            case_fill(x);
            case_fill(y);
            for (int32_t batch = 1; batch <= CASE_SLOTS; batch++)
                for (int32_t n_out = 4; n_out <= 5; n_out++) {
                    case_shown a, b;
                    case_outcome o = case_draft(x, batch, CASE_ALL, n_out, &a);
                    case_outcome q = case_draft(y, batch, CASE_ALL, n_out, &b);
                    assert_memory_equal(&o, &q, sizeof o);
                    case_same("nccl against emulated", p, 2, &a, &b);
                }
            eng_close(x);
            eng_close(y);
        }
}

static void steps_over_nccl_repeat_their_bits(void **state)
{
    (void)state;
    eng_engine *g = case_engine(two(ENG_COMM_NCCL, ENG_MODE_GRAPH, ENG_COMBINE_EXACT));
    case_shown first, again;
    case_fill(g);
    case_draft(g, 4, CASE_ALL, 5, &first);
    for (int i = 0; i < 200; i++) case_draft(g, 1 + i % 4, CASE_ALL, 4 + i % 2, NULL);
    case_draft(g, 4, CASE_ALL, 5, &again);
    case_same("after 200 steps", eng_program_of(g, ENG_STEP_DRAFT), 2, &first, &again);
    eng_close(g);
}

/* One rank runs a step that the other does not: it ends by its deadline and names rank, op and wait. Nothing works
 * afterwards, on either. */
static void a_rank_left_alone_fails_closed_and_in_time(void **state)
{
    (void)state;
    for (int mode = 0; mode < 2; mode++) {
        eng_engine *g = case_engine(two(ENG_COMM_NCCL, (eng_mode)mode, ENG_COMBINE_EXACT));
        const int32_t slot = 0, anchor = 1, pos = 1;
        int32_t drafts[ENG_BLOCK_MAX];
        float confidence[ENG_BLOCK_MAX];
        eng_device_draft in = { 1, 5, &slot, &anchor, &pos };
        err e = { 0 };
        case_fill(g);
        case_draft(g, 1, CASE_ALL, 5, NULL);
        for (int32_t rank = 0; rank < 2; rank++) eng_device_set_deadline(eng_device_of(g, rank), 1000000000u);
        uint64_t start = clock_ns();
        assert_int_equal(eng_device_run_draft(eng_device_of(g, 0), &in, NULL, &e), ERR_COMM);
        assert_non_null(strstr(e.msg, "rank 0, s0.attn.wo_b_sum: not finished within 1.0 s"));
        assert_int_equal(eng_device_run_draft(eng_device_of(g, 0), &in, NULL, &e), ERR_COMM);
        assert_non_null(strstr(e.msg, "rank 0: stopped by an earlier failure"));
        for (int again = 0; again < 2; again++)
            assert_int_equal(eng_draft(g, 1, &slot, &anchor, &pos, 5, drafts, confidence, NULL, &e), ERR_COMM);
        assert_non_null(strstr(e.msg, "engine stopped by an earlier failure"));
        assert_true(clock_ns() - start < 20000000000u);
        eng_close(g);
    }
}

int main(void)
{
    if (krn_device_count() < 2) {
        printf("found %d CUDA devices, wanted 2\n", krn_device_count());
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nccl_has_the_bits_of_emulated),
        cmocka_unit_test(steps_over_nccl_repeat_their_bits),
        cmocka_unit_test(a_rank_left_alone_fails_closed_and_in_time),
    };
    return cmocka_run_group_tests(tests, case_open, case_close);
}
