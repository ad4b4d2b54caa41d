/* The twins of the routed experts against krn_linear_ref, pick by pick, and krn_combine_fused_ref. */
#include "kernels/experts.h"

#include "base/mem.h"
#include "check.h"
#include "kernels/combine.h"

enum { EXPERTS = 7, INTER = 300, DIM = 320, ROWS = 40, PICKS = 3, N_PICKS = ROWS * PICKS, UNTOUCHED = 0x5555 };
static const float UNTOUCHED_F32 = 7.0f;

static bf16 x[ROWS * DIM], h[N_PICKS * DIM];
static int32_t ids[N_PICKS];
static uint8_t *data, *scale;

/* A bank of n rows of k = DIM columns, small scales so that every weight is a bf16 number. */
static krn_expert_bank bank_make(krn_wformat format, int32_t n)
{
    int64_t elems = (int64_t)EXPERTS * n * DIM, bytes = format == KRN_W_FP4 ? elems / 2 : 2 * elems;
    data = mem_alloc((size_t)bytes, 1);
    scale = mem_alloc((size_t)(elems / 32), 1);
    assert_true(data && scale);
    if (format == KRN_W_BF16) fill_bf16((bf16 *)(void *)data, elems, 3, 1.0f);
    else
        for (int64_t i = 0; i < bytes; i++) data[i] = (uint8_t)(f32_bits(input_f32(4, i)) >> 9);
    for (int64_t i = 0; i < elems / 32; i++) scale[i] = (uint8_t)(120 + (i * 7) % 9);
    return (krn_expert_bank){ format, EXPERTS, n, DIM, data, format == KRN_W_FP4 ? scale : NULL };
}
static void bank_free(void)
{
    free(data);
    free(scale);
}

/* Distinct ids in a row; expert 2 is never picked, and expert 5 by most rows. */
static void inputs_make(void)
{
    fill_bf16(x, ROWS * DIM, 1, 2.0f);
    fill_bf16(h, N_PICKS * DIM, 2, 2.0f);
    for (int r = 0; r < ROWS; r++) {
        ids[r * PICKS] = r % 5 ? 5 : 4;
        ids[r * PICKS + 1] = r % 2 ? 6 : 0;
        ids[r * PICKS + 2] = r % 3 ? 1 : 3;
    }
}

static void up_is_the_linear_of_each_pick(void **state)
{
    (void)state;
    static bf16 gate[N_PICKS * INTER], up[N_PICKS * INTER], want[2 * INTER];
    inputs_make();
    for (krn_wformat f = KRN_W_FP4; f <= KRN_W_BF16; f++)
        for (krn_acc acc = KRN_ACC_BLOCKED; acc <= KRN_ACC_F64; acc++) {
            krn_expert_bank bank = bank_make(f, 2 * INTER);
            krn_experts_up_ref(x, ids, ROWS, PICKS, &bank, gate, up, acc);
            for (int p = 0; p < N_PICKS; p++) {
                krn_weight w = krn_expert_weight(&bank, ids[p]);
                krn_linear_ref(x + p / PICKS * DIM, DIM, 1, &w, acc, KRN_OUT_BF16, want, 2 * INTER);
                assert_bf16_same(gate + p * INTER, want, INTER);
                assert_bf16_same(up + p * INTER, want + INTER, INTER);
            }
            bank_free();
        }
}

static void down_and_combine_are_the_linear_of_each_pick_in_ascending_id(void **state)
{
    (void)state;
    static float slot[N_PICKS * INTER], want[N_PICKS * INTER], add[ROWS * INTER], y[ROWS * INTER], sum[ROWS * INTER];
    inputs_make();
    fill_f32(add, ROWS * INTER, 5, 3.0f);
    for (krn_wformat f = KRN_W_FP4; f <= KRN_W_BF16; f++)
        for (krn_acc acc = KRN_ACC_BLOCKED; acc <= KRN_ACC_F64; acc++) {
            krn_expert_bank bank = bank_make(f, INTER);
            krn_experts_down_ref(h, ids, ROWS, PICKS, &bank, slot, acc);
            for (int p = 0; p < N_PICKS; p++) {
                krn_weight w = krn_expert_weight(&bank, ids[p]);
                krn_linear_ref(h + p * DIM, DIM, 1, &w, acc, KRN_OUT_F32, want + p * INTER, INTER);
            }
            assert_f32_same(slot, want, N_PICKS * INTER);

            krn_combine_fused_ref(slot, ids, add, sum, ROWS, PICKS, INTER);
            krn_experts_down_combine_ref(h, ids, ROWS, PICKS, &bank, add, y, acc);
            assert_f32_same(y, sum, ROWS * INTER);
            memcpy(y, add, sizeof y);
            krn_experts_down_combine_ref(h, ids, ROWS, PICKS, &bank, y, y, acc); /* y may be add */
            assert_f32_same(y, sum, ROWS * INTER);
            memset(add, 0, sizeof add);
            krn_combine_fused_ref(slot, ids, add, sum, ROWS, PICKS, INTER);
            krn_experts_down_combine_ref(h, ids, ROWS, PICKS, &bank, NULL, y, acc);
            assert_f32_same(y, sum, ROWS * INTER);
            fill_f32(add, ROWS * INTER, 5, 3.0f);
            bank_free();
        }
}

static void ids_outside_the_bank_are_ignored(void **state)
{
    (void)state;
    enum { N = 64 };
    static bf16 gate[2 * PICKS * N / 2], up[2 * PICKS * N / 2];
    float slot[2 * PICKS * N], y[2 * N], only[N];
    inputs_make();
    const int32_t wild[2 * PICKS] = { -1, EXPERTS, 3, INT32_MAX, INT32_MIN, EXPERTS };
    krn_expert_bank bank = bank_make(KRN_W_FP4, N);
    for (int i = 0; i < 2 * PICKS * N / 2; i++) gate[i] = up[i] = UNTOUCHED;
    for (int i = 0; i < 2 * PICKS * N; i++) slot[i] = UNTOUCHED_F32;
    krn_experts_up_ref(x, wild, 2, PICKS, &bank, gate, up, KRN_ACC_F64);
    krn_experts_down_ref(h, wild, 2, PICKS, &bank, slot, KRN_ACC_F64);
    krn_experts_down_combine_ref(h, wild, 2, PICKS, &bank, NULL, y, KRN_ACC_F64);
    krn_weight w = krn_expert_weight(&bank, 3);
    krn_linear_ref(h + 2 * DIM, DIM, 1, &w, KRN_ACC_F64, KRN_OUT_F32, only, N);
    for (int p = 0; p < 2 * PICKS; p++)
        for (int i = 0; i < N; i++) {
            assert_true((slot[p * N + i] == UNTOUCHED_F32) == (p != 2));
            if (i < N / 2) assert_true((gate[p * N / 2 + i] == UNTOUCHED && up[p * N / 2 + i] == UNTOUCHED) == (p != 2));
        }
    assert_f32_same(y, only, N);
    for (int i = 0; i < N; i++) assert_int_equal(f32_bits(y[N + i]), 0);
    bank_free();
}

static void a_wrong_expert_is_seen(void **state)
{
    (void)state;
    enum { N = 32 };
    float right[N], wrong[N];
    inputs_make();
    const int32_t one = 1, two = 2;
    krn_expert_bank bank = bank_make(KRN_W_FP4, N);
    krn_experts_down_ref(h, &one, 1, 1, &bank, right, KRN_ACC_F64);
    krn_experts_down_ref(h, &two, 1, 1, &bank, wrong, KRN_ACC_F64);
    assert_true(differ_f32("another expert, wanted", wrong, right, N) > N / 2);
    bank_free();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(up_is_the_linear_of_each_pick),
        cmocka_unit_test(down_and_combine_are_the_linear_of_each_pick_in_ascending_id),
        cmocka_unit_test(ids_outside_the_bank_are_ignored),
        cmocka_unit_test(a_wrong_expert_is_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
