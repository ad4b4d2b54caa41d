/* krn_confidence_ref: one row made of two pieces, summed in sixteen lanes. */
#include "kernels/confidence.h"

#include "check.h"
#include "golden_ops.h"

enum { DIM = 96, RANK = 40 };
static const krn_acc MODES[] = { KRN_ACC_BLOCKED, KRN_ACC_F64 };

static void within_the_bound_wherever_the_row_is_cut(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++) {
        bf16 x[DIM + RANK], w[DIM + RANK];
        fill_bf16(x, DIM + RANK, seed, 4.0f);
        fill_bf16(w, DIM + RANK, seed + 50, 1.0f);
        double exact = 0, size = 0;
        for (int i = 0; i < DIM + RANK; i++) {
            exact += (double)f32_from_bf16(x[i]) * (double)f32_from_bf16(w[i]);
            size += fabs((double)f32_from_bf16(x[i]) * (double)f32_from_bf16(w[i]));
        }
        for (int m = 0; m < 2; m++) {
            float whole = krn_confidence_ref(x, DIM + RANK, NULL, 0, w, MODES[m]);
            assert_true(explained_f32(whole, exact, 6 * U * sqrt(DIM + RANK) * size));
            if (MODES[m] == KRN_ACC_F64) assert_true(whole == (float)exact);
            for (int cut = 1; cut < DIM + RANK; cut++) /* the pieces are one row to the lanes */
                assert_true(krn_confidence_ref(x, cut, x + cut, DIM + RANK - cut, w, MODES[m]) == whole);
        }
    }
}

/* 2^24 and 1 in one lane, -2^24 in another: f32 loses the 1, double does not. */
static void the_modes_differ_where_order_matters(void **state)
{
    (void)state;
    bf16 x[32] = { 0 }, w[32];
    for (int i = 0; i < 32; i++) w[i] = bf16_from_f32(1.0f);
    x[0] = bf16_from_f32(0x1p24f);
    x[16] = bf16_from_f32(1.0f);
    x[8] = bf16_from_f32(-0x1p24f);
    assert_true(krn_confidence_ref(x, 20, x + 20, 12, w, KRN_ACC_BLOCKED) == 0.0f);
    assert_true(krn_confidence_ref(x, 20, x + 20, 12, w, KRN_ACC_F64) == 1.0f);
    x[16] = 0;
    x[17] = bf16_from_f32(1.0f); /* another lane: kept until the tree */
    assert_true(krn_confidence_ref(x, 20, x + 20, 12, w, KRN_ACC_BLOCKED) == 1.0f);
}

static void golden(void **state)
{
    (void)state;
    bf16 x[DIM + RANK], w[DIM + RANK];
    fill_bf16(x, DIM + RANK, 18, 4.0f);
    fill_bf16(w, DIM + RANK, 19, 1.0f);
    float h = krn_confidence_ref(x, DIM, x + DIM, RANK, w, KRN_ACC_F64);
    assert_true(hash_bytes(&h, sizeof h) == GOLDEN_CONFIDENCE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(within_the_bound_wherever_the_row_is_cut),
        cmocka_unit_test(the_modes_differ_where_order_matters),
        cmocka_unit_test(golden),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
