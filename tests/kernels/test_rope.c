/* krn_rope_ref and its frequencies: the table's bits, pairs side by side, both roundings of the angle, the inverse. */
#include "kernels/rope.h"

#include "check.h"
#include "golden_ops.h"

static const krn_acc MODES[] = { KRN_ACC_BLOCKED, KRN_ACC_F64 };

static void frequencies_have_the_official_bits(void **state)
{
    (void)state;
    static const uint32_t want[32] = {
        0x3f800000, 0x3f3ff911, 0x3f0ff59a, 0x3ed7e89b, 0x3ea1e89b, 0x3e72d423, 0x3e361887, 0x3e088d77,
        0x3dcccccd, 0x3d99940d, 0x3d6655c2, 0x3d2cba15, 0x3d0186e3, 0x3cc2434f, 0x3c91ad39, 0x3c5a7bf2,
        0x3c23d70a, 0x3bf5b9b0, 0x3bb8449c, 0x3b8a2e77, 0x3b4f3e38, 0x3b1b690d, 0x3ae91528, 0x3aaec98e,
        0x3a83126f, 0x3a44948c, 0x3a136a16, 0x39dd1725, 0x39a5cb60, 0x3978a815, 0x393a7753, 0x390bd472,
    };
    float freq[32];
    krn_rope_freqs(10000.0, 64, freq);
    for (int i = 0; i < 32; i++) assert_int_equal(f32_bits(freq[i]), want[i]);
}

static void pairs_are_neighbours_and_only_the_tail_turns(void **state)
{
    (void)state;
    enum { HD = 40, RD = 8 };
    float freq[RD / 2];
    krn_rope_freqs(10000.0, RD, freq);
    for (int m = 0; m < 2; m++) {
        for (int i = 0; i < RD / 2; i++) {
            bf16 x[HD] = { 0 }, y[HD], want[HD];
            x[0] = 0x7f81; /* a NaN with a payload: copied, not computed */
            x[HD - RD + 2 * i] = bf16_from_f32(1.0f);
            memcpy(want, x, sizeof x);
            int32_t pos = 7;
            double angle = (double)(7.0f * freq[i]);
            want[HD - RD + 2 * i] = bf16_from_f32((float)cos(angle));
            want[HD - RD + 2 * i + 1] = bf16_from_f32((float)sin(angle));
            krn_rope_ref(x, y, 1, 1, HD, RD, &pos, freq, false, MODES[m]);
            assert_bf16_same(y, want, HD);
        }
    }
}

static void long_positions_use_the_rounded_angle(void **state)
{
    (void)state;
    float freq[32];
    krn_rope_freqs(10000.0, 64, freq);
    int differ = 0;
    for (int32_t pos = 299990; pos < 300010; pos++) {
        bf16 x[64], y[64];
        for (int i = 0; i < 64; i++) x[i] = i % 2 ? 0 : bf16_from_f32(1.0f);
        krn_rope_ref(x, y, 1, 1, 64, 64, &pos, freq, false, KRN_ACC_F64);
        for (int i = 0; i < 32; i++) {
            float angle = (float)pos * freq[i];
            assert_int_equal(y[2 * i], bf16_from_f32((float)cos((double)angle)));
            differ += y[2 * i] != bf16_from_f32((float)cos((double)pos * pow(10000.0, -i / 32.0)));
        }
    }
    assert_true(differ > 20); /* the angle in double would have been seen */
}

static void within_the_bound_and_inverse_turns_back(void **state)
{
    (void)state;
    enum { ROWS = 3, HEADS = 2, HD = 64, RD = 32, N = ROWS * HEADS * HD };
    float freq[RD / 2];
    krn_rope_freqs(10000.0, RD, freq);
    const int32_t pos[ROWS] = { 0, 131, 4001 };
    for (int m = 0; m < 2; m++) {
        for (int inverse = 0; inverse < 2; inverse++) {
            bf16 x[N], y[N], back[N];
            fill_bf16(x, N, 1, 4.0f);
            krn_rope_ref(x, y, ROWS, HEADS, HD, RD, pos, freq, inverse, MODES[m]);
            krn_rope_ref(y, back, ROWS, HEADS, HD, RD, pos, freq, !inverse, MODES[m]);
            assert_bf16_same(y, x, HEADS * HD); /* position 0 turns by nothing */
            for (int v = 0; v < ROWS * HEADS; v++) {
                assert_bf16_same(y + v * HD, x + v * HD, HD - RD);
                for (int i = 0; i < RD / 2; i++) {
                    int at = v * HD + HD - RD + 2 * i;
                    double angle = (double)((float)pos[v / HEADS] * freq[i]);
                    double c = (float)cos(angle), s = (float)sin(inverse ? -angle : angle);
                    double re = f32_from_bf16(x[at]), im = f32_from_bf16(x[at + 1]);
                    assert_true(explained_bf16(y[at], re * c - im * s, 2 * U * (fabs(re * c) + fabs(im * s))));
                    assert_true(explained_bf16(y[at + 1], re * s + im * c, 2 * U * (fabs(re * s) + fabs(im * c))));
                    double size = fabs(re) + fabs(im);
                    assert_true(fabs((double)f32_from_bf16(back[at]) - re) <= 0x1p-7 * size);
                    assert_true(fabs((double)f32_from_bf16(back[at + 1]) - im) <= 0x1p-7 * size);
                }
            }
        }
    }
}

/* A product of bf16 and f32 needs up to 32 bits: blocked rounds it, F64 does not. */
static void blocked_rounds_every_product(void **state)
{
    (void)state;
    float freq[32];
    krn_rope_freqs(10000.0, 64, freq);
    int modes_differ = 0;
    for (int32_t pos = 1; pos < 2000; pos++) {
        bf16 x[64], y[64], z[64];
        fill_bf16(x, 64, (uint64_t)pos, 2.0f);
        krn_rope_ref(x, y, 1, 1, 64, 64, &pos, freq, false, KRN_ACC_BLOCKED);
        krn_rope_ref(x, z, 1, 1, 64, 64, &pos, freq, false, KRN_ACC_F64);
        for (int i = 0; i < 32; i++) {
            float angle = (float)pos * freq[i], c = (float)cos((double)angle), s = (float)sin((double)angle);
            float re = f32_from_bf16(x[2 * i]), im = f32_from_bf16(x[2 * i + 1]);
            volatile float rc = re * c, is = im * s, rs = re * s, ic = im * c;
            assert_int_equal(y[2 * i], bf16_from_f32(rc - is));
            assert_int_equal(y[2 * i + 1], bf16_from_f32(rs + ic));
            modes_differ += y[2 * i] != z[2 * i];
        }
    }
    assert_true(modes_differ > 0);
}

static void golden_and_in_place(void **state)
{
    (void)state;
    enum { N = 4 * 3 * 96 };
    float freq[32];
    krn_rope_freqs(10000.0, 64, freq);
    const int32_t pos[4] = { 0, 5, 131, 300000 };
    bf16 x[N], y[N];
    fill_bf16(x, N, 4, 2.0f);
    krn_rope_ref(x, y, 4, 3, 96, 64, pos, freq, true, KRN_ACC_F64);
    assert_true(hash_bytes(y, sizeof y) == GOLDEN_ROPE_INVERSE);
    krn_rope_ref(x, x, 4, 3, 96, 64, pos, freq, false, KRN_ACC_F64);
    assert_true(hash_bytes(x, sizeof x) == GOLDEN_ROPE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frequencies_have_the_official_bits),
        cmocka_unit_test(pairs_are_neighbours_and_only_the_tail_turns),
        cmocka_unit_test(long_positions_use_the_rounded_angle),
        cmocka_unit_test(within_the_bound_and_inverse_turns_back),
        cmocka_unit_test(blocked_rounds_every_product),
        cmocka_unit_test(golden_and_in_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
