/* Hyper-connections: orientation of comb, where Sinkhorn ends, which eps goes where, bounds against double, both orders. */
#include "kernels/mhc.h"

#include "check.h"
#include "golden_ops.h"

enum { MAX_HC = 5, DIM = 24, ITERS = 20 };
static const krn_acc MODES[] = { KRN_ACC_BLOCKED, KRN_ACC_F64 };

typedef struct mixes { float pre[MAX_HC], post[MAX_HC], comb[MAX_HC * MAX_HC]; } mixes;

static mixes mixes_of(const bf16 *x, const float *dots, const float *base, const float *scale, int hc, int iters,
                      krn_acc acc)
{
    mixes m;
    krn_mhc_mixes_ref(x, dots, base, scale, 1, hc, DIM, 1e-20f, 1e-6f, iters, m.pre, m.post, m.comb, acc);
    return m;
}

static void fill_case(int hc, uint64_t seed, bf16 *x, float *dots, float *base, float *scale)
{
    fill_bf16(x, (int64_t)hc * DIM, seed, 2.0f);
    fill_f32(dots, (2 + hc) * hc, seed + 1, 6.0f);
    fill_f32(base, (2 + hc) * hc, seed + 2, 1.0f);
    fill_f32(scale, 3, seed + 3, 2.0f);
}

/* The mixes in double, as a formula; and the largest |change| of z that the contract allows. */
static double mixes_exact(const bf16 *x, const float *dots, const float *base, const float *scale, int hc, double *pre,
                          double *post, double *comb)
{
    double sum = 0, dz = 0;
    for (int i = 0; i < hc * DIM; i++) sum += pow((double)f32_from_bf16(x[i]), 2);
    double r = 1 / sqrt(sum / (hc * DIM) + 1e-20), z[MAX_HC * (2 + MAX_HC)];
    for (int i = 0; i < hc * (2 + hc); i++) {
        double part = (double)dots[i] * r * (double)scale[i < hc ? 0 : i < 2 * hc ? 1 : 2];
        z[i] = part + (double)base[i];
        dz = fmax(dz, fabs(part) * 5.5 * U + U * fabs(z[i]));
    }
    for (int j = 0; j < hc; j++) {
        pre[j] = 1 / (1 + exp(-z[j])) + 1e-6;
        post[j] = 2 / (1 + exp(-z[hc + j]));
    }
    for (int j = 0; j < hc; j++) {
        double total = 0;
        for (int k = 0; k < hc; k++) total += exp(z[2 * hc + j * hc + k]);
        for (int k = 0; k < hc; k++) comb[j * hc + k] = exp(z[2 * hc + j * hc + k]) / total + 1e-6;
    }
    for (int pass = 1; pass < 2 * ITERS; pass++) { /* odd passes: columns */
        for (int a = 0; a < hc; a++) {
            double total = 1e-6;
            for (int b = 0; b < hc; b++) total += pass % 2 ? comb[b * hc + a] : comb[a * hc + b];
            for (int b = 0; b < hc; b++) *(pass % 2 ? &comb[b * hc + a] : &comb[a * hc + b]) /= total;
        }
    }
    return dz;
}

static void mixes_lie_within_the_bound(void **state)
{
    (void)state;
    for (int hc = 1; hc <= MAX_HC; hc++) {
        for (uint64_t seed = 0; seed < 20; seed++) {
            bf16 x[MAX_HC * DIM];
            float dots[MAX_HC * (2 + MAX_HC)], base[MAX_HC * (2 + MAX_HC)], scale[3];
            double pre[MAX_HC], post[MAX_HC], comb[MAX_HC * MAX_HC];
            fill_case(hc, seed * 10, x, dots, base, scale);
            double dz = mixes_exact(x, dots, base, scale, hc, pre, post, comb);
            for (int m = 0; m < 2; m++) {
                mixes got = mixes_of(x, dots, base, scale, hc, ITERS, MODES[m]);
                for (int j = 0; j < hc; j++) {
                    assert_true(explained_f32(got.pre[j], pre[j], pre[j] * (dz + 5 * U)));
                    assert_true(explained_f32(got.post[j], post[j], post[j] * (dz + 5 * U)));
                }
                for (int j = 0; j < hc * hc; j++)
                    assert_true(explained_f32(got.comb[j], comb[j], comb[j] * (4 * dz + 2 * ITERS * (hc + 3) * U)));
            }
        }
    }
}

/* After few passes only the side normalised last sums to 1. */
static void sinkhorn_ends_on_columns(void **state)
{
    (void)state;
    for (int m = 0; m < 2; m++) {
        for (int iters = 1; iters <= 2; iters++) {
            bf16 x[4 * DIM];
            float dots[24], base[24], scale[3] = { 1, 1, 1 };
            double row_error = 0;
            fill_case(4, 50, x, dots, base, scale);
            scale[2] = 1;
            mixes got = mixes_of(x, dots, base, scale, 4, iters, MODES[m]);
            for (int k = 0; k < 4; k++) {
                double column = 0, row = 0;
                for (int j = 0; j < 4; j++) {
                    column += (double)got.comb[j * 4 + k];
                    row += (double)got.comb[k * 4 + j];
                }
                assert_true(fabs(column - 1) <= 5e-6);
                row_error = fmax(row_error, fabs(row - 1));
            }
            assert_true(row_error > 1e-3);
        }
    }
}

static void only_pre_has_an_eps_and_post_is_doubled(void **state)
{
    (void)state;
    for (int m = 0; m < 2; m++) {
        bf16 x[4 * DIM];
        float dots[24] = { 0 }, base[24] = { 0 }, scale[3] = { 1, 1, 1 };
        fill_bf16(x, 4 * DIM, 1, 1.0f);
        base[0] = -200; /* sigmoid 0 */
        base[4] = -200;
        base[5] = 200; /* sigmoid 1 */
        mixes got = mixes_of(x, dots, base, scale, 4, ITERS, MODES[m]);
        assert_true(got.pre[0] == 1e-6f && got.pre[1] == 0.5f + 1e-6f);
        assert_true(got.post[0] == 0.0f && got.post[1] == 2.0f && got.post[2] == 1.0f);
    }
}

static void expand_runs_over_the_first_index_of_comb(void **state)
{
    (void)state;
    for (int m = 0; m < 2; m++) {
        bf16 x[4 * DIM], y[DIM], out[4 * DIM], zero[DIM] = { 0 };
        float post[4] = { 0 }, comb[16] = { 0 };
        fill_bf16(x, 4 * DIM, 1, 3.0f);
        fill_bf16(y, DIM, 2, 3.0f);
        comb[1 * 4 + 3] = 1; /* source 1 to destination 3 */
        post[2] = 1;
        krn_mhc_expand_ref(y, x, post, comb, out, 1, 4, DIM, MODES[m]);
        assert_bf16_same(out + 3 * DIM, x + 1 * DIM, DIM);
        assert_bf16_same(out + 2 * DIM, y, DIM);
        for (int d = 0; d < DIM; d++) assert_true(f32_from_bf16(out[1 * DIM + d]) == f32_from_bf16(zero[d]));
    }
}

static void one_hot_collapse_is_the_copy(void **state)
{
    (void)state;
    for (int m = 0; m < 2; m++) {
        bf16 x[4 * DIM], y[DIM];
        const float pre[4] = { 0, 0, 1, 0 };
        fill_bf16(x, 4 * DIM, 1, 3.0f);
        krn_mhc_collapse_ref(x, pre, y, 1, 4, DIM, MODES[m]);
        assert_bf16_same(y, x + 2 * DIM, DIM);
    }
}

static void blocked_adds_left_to_right_and_brackets_the_sum(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 300; seed++) {
        bf16 x[4 * DIM], y[DIM], col[DIM], out[4 * DIM];
        float pre[4], post[4], comb[16];
        fill_bf16(x, 4 * DIM, seed, 3.0f);
        fill_bf16(y, DIM, seed + 1000, 3.0f);
        fill_f32(pre, 4, seed + 2000, 1.0f);
        fill_f32(post, 4, seed + 3000, 2.0f);
        fill_f32(comb, 16, seed + 4000, 1.0f);
        krn_mhc_collapse_ref(x, pre, col, 1, 4, DIM, KRN_ACC_BLOCKED);
        krn_mhc_expand_ref(y, x, post, comb, out, 1, 4, DIM, KRN_ACC_BLOCKED);
        for (int d = 0; d < DIM; d++) {
            float v[4], p[4];
            for (int c = 0; c < 4; c++) v[c] = f32_from_bf16(x[c * DIM + d]);
            for (int c = 0; c < 4; c++) p[c] = pre[c] * v[c];
            assert_int_equal(col[d], bf16_from_f32(((p[0] + p[1]) + p[2]) + p[3]));
            for (int k = 0; k < 4; k++) {
                for (int j = 0; j < 4; j++) p[j] = comb[j * 4 + k] * v[j];
                float bracket = ((p[0] + p[1]) + p[2]) + p[3], own = post[k] * f32_from_bf16(y[d]);
                assert_int_equal(out[k * DIM + d], bf16_from_f32(own + bracket));
            }
        }
    }
}

/* 1 + 2^-25 + 2^-25 - 1: f32 loses the small terms one by one, double keeps them. */
static void the_modes_differ_where_order_matters(void **state)
{
    (void)state;
    bf16 x[4], y;
    for (int c = 0; c < 4; c++) x[c] = bf16_from_f32(1.0f);
    const float pre[4] = { 1, 0x1p-25f, 0x1p-25f, -1 };
    krn_mhc_collapse_ref(x, pre, &y, 1, 4, 1, KRN_ACC_BLOCKED);
    assert_true(f32_from_bf16(y) == 0.0f);
    krn_mhc_collapse_ref(x, pre, &y, 1, 4, 1, KRN_ACC_F64);
    assert_true(f32_from_bf16(y) == 0x1p-24f);
}

static void rows_are_independent(void **state)
{
    (void)state;
    enum { ROWS = 3, HC = 4 };
    bf16 x[ROWS * HC * DIM], y[ROWS * DIM], out[ROWS * HC * DIM], one_y[DIM], one_out[HC * DIM];
    float dots[ROWS * 24], base[24], scale[3], pre[ROWS * HC], post[ROWS * HC], comb[ROWS * HC * HC];
    fill_case(HC, 70, x, dots, base, scale);
    fill_bf16(x, ROWS * HC * DIM, 1, 2.0f);
    fill_f32(dots, ROWS * 24, 2, 6.0f);
    for (int m = 0; m < 2; m++) {
        krn_mhc_mixes_ref(x, dots, base, scale, ROWS, HC, DIM, 1e-20f, 1e-6f, ITERS, pre, post, comb, MODES[m]);
        krn_mhc_collapse_ref(x, pre, y, ROWS, HC, DIM, MODES[m]);
        krn_mhc_expand_ref(y, x, post, comb, out, ROWS, HC, DIM, MODES[m]);
        for (int r = 0; r < ROWS; r++) {
            const bf16 *xr = x + r * HC * DIM;
            mixes one = mixes_of(xr, dots + r * 24, base, scale, HC, ITERS, MODES[m]);
            assert_f32_same(pre + r * HC, one.pre, HC);
            assert_f32_same(post + r * HC, one.post, HC);
            assert_f32_same(comb + r * HC * HC, one.comb, HC * HC);
            krn_mhc_collapse_ref(xr, one.pre, one_y, 1, HC, DIM, MODES[m]);
            krn_mhc_expand_ref(one_y, xr, one.post, one.comb, one_out, 1, HC, DIM, MODES[m]);
            assert_bf16_same(y + r * DIM, one_y, DIM);
            assert_bf16_same(out + r * HC * DIM, one_out, HC * DIM);
        }
    }
}

static void golden(void **state)
{
    (void)state;
    bf16 x[3 * 4 * 64], y[3 * 64], col[3 * 64], out[3 * 4 * 64];
    float dots[3 * 24], base[24], scale[3], pre[12], post[12], comb[48];
    fill_bf16(x, 3 * 4 * 64, 5, 2.0f);
    fill_bf16(y, 3 * 64, 6, 2.0f);
    fill_f32(dots, 3 * 24, 7, 6.0f);
    fill_f32(base, 24, 8, 1.0f);
    fill_f32(scale, 3, 9, 2.0f);
    krn_mhc_mixes_ref(x, dots, base, scale, 3, 4, 64, 1e-20f, 1e-6f, 20, pre, post, comb, KRN_ACC_F64);
    assert_true(hash_bytes(pre, sizeof pre) == GOLDEN_MHC_PRE);
    assert_true(hash_bytes(post, sizeof post) == GOLDEN_MHC_POST);
    assert_true(hash_bytes(comb, sizeof comb) == GOLDEN_MHC_COMB);
    krn_mhc_collapse_ref(x, pre, col, 3, 4, 64, KRN_ACC_F64);
    assert_true(hash_bytes(col, sizeof col) == GOLDEN_MHC_COLLAPSE);
    krn_mhc_expand_ref(y, x, post, comb, out, 3, 4, 64, KRN_ACC_F64);
    assert_true(hash_bytes(out, sizeof out) == GOLDEN_MHC_EXPAND);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mixes_lie_within_the_bound),
        cmocka_unit_test(sinkhorn_ends_on_columns),
        cmocka_unit_test(only_pre_has_an_eps_and_post_is_doubled),
        cmocka_unit_test(expand_runs_over_the_first_index_of_comb),
        cmocka_unit_test(one_hot_collapse_is_the_copy),
        cmocka_unit_test(blocked_adds_left_to_right_and_brackets_the_sum),
        cmocka_unit_test(the_modes_differ_where_order_matters),
        cmocka_unit_test(rows_are_independent),
        cmocka_unit_test(golden),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
