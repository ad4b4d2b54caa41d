/* krn_act_qdq on the card: the twin's bits for every bf16 pattern, in groups of like size and of all sizes. */
#include "kernels/act_qdq.h"

#include "base/mem.h"

#include <cuda_runtime_api.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { ROWS = 2048 + 3, COLS = 96, LD = COLS + 32, GUARD = 0x5555, SKIPPED = 77 };

static bf16 x[ROWS * LD], wanted[ROWS * LD], got[ROWS * LD];

static void run(void)
{
    bf16 *dx, *dy;
    err e = { 0 };
    for (int i = 0; i < ROWS * LD; i++) wanted[i] = GUARD;
    krn_act_qdq_ref(x, LD, wanted, LD, ROWS, COLS);
    assert_int_equal(cudaMalloc((void **)&dx, sizeof x), cudaSuccess);
    assert_int_equal(cudaMalloc((void **)&dy, sizeof x), cudaSuccess);
    for (int i = 0; i < ROWS * LD; i++) got[i] = GUARD;
    assert_int_equal(cudaMemcpy(dx, x, sizeof x, cudaMemcpyHostToDevice), cudaSuccess);
    assert_int_equal(cudaMemcpy(dy, got, sizeof x, cudaMemcpyHostToDevice), cudaSuccess);
    if (krn_act_qdq(dx, LD, dy, LD, ROWS, COLS, NULL, &e) != ERR_OK) fail_msg("%s", e.msg);
    assert_int_equal(cudaMemcpy(got, dy, sizeof x, cudaMemcpyDeviceToHost), cudaSuccess);
    for (int i = 0; i < ROWS * LD; i++)
        if (got[i] != wanted[i])
            fail_msg("row %d column %d: x %04x got %04x wanted %04x", i / LD, i % LD, x[i], got[i], wanted[i]);
    cudaFree(dx);
    cudaFree(dy);
}

/* 65,536 patterns fill 2,048 groups of 32 neighbours: equal exponents, every code and tie; NaN and infinities too. */
static void every_pattern_among_its_like(void **state)
{
    (void)state;
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < LD; c++) x[r * LD + c] = (bf16)(32 * r + c);
    run();
}

static void every_pattern_among_all_sizes(void **state)
{
    (void)state;
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < LD; c++) x[r * LD + c] = (bf16)((32u * (uint32_t)r + (uint32_t)c) * 40503u);
    run();
}

/* amax at 448 * 2^k and its neighbours: the scale must step exactly there. */
static void scales_step_at_448_times_powers_of_two(void **state)
{
    (void)state;
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < LD; c++) {
            bf16 edge = (bf16)(0x3be0 + 0x80 * (r % 160) - 0x80 * 60 + r / 160 % 3 - 1);
            x[r * LD + c] = c % 32 == r % 32 ? edge : (bf16)(edge - 0x100 - 37 * c);
        }
    run();
}

int main(void)
{
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) {
        printf("no CUDA device\n");
        return SKIPPED;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pattern_among_its_like),
        cmocka_unit_test(every_pattern_among_all_sizes),
        cmocka_unit_test(scales_step_at_448_times_powers_of_two),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
