/* The tile quantizer: what a tile can hold comes back exactly, normal weights with the errors that the code is known for,
 * the same bits on every instruction set and thread count. */
#include "kernels/exl3_encode.h"
#include "kernels/kernels.h"

#include <stdlib.h>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "check.h"

enum { WEIGHTS = FMT_EXL3_TILE_WEIGHTS, WORDS_MAX = 16 * FMT_EXL3_BITS_MAX };

static void encode(const float *w, int64_t n, krn_exl3_code code, uint16_t *tiles, double *error)
{
    err e = { 0 };
    if (krn_exl3_encode_tiles_ref(w, n, code, tiles, error, &e) != ERR_OK) fail_msg("%s", e.msg);
}

static void decode(const uint16_t *tile, krn_exl3_code code, float w[WEIGHTS])
{
    uint16_t state[WEIGHTS];
    fmt_exl3_unpack(tile, code.bits, state);
    for (int p = 0; p < WEIGHTS; p++) w[p] = f32_from_fp16(fmt_exl3_value(code.codebook, state[p]));
}

static double distance(const float *a, const float *b)
{
    double sum = 0;
    for (int p = 0; p < WEIGHTS; p++) sum += ((double)a[p] - b[p]) * ((double)a[p] - b[p]);
    return sum;
}

static void random_tile(uint64_t seed, krn_exl3_code code, float w[WEIGHTS])
{
    uint16_t tile[WORDS_MAX];
    for (int i = 0; i < 16 * code.bits; i++) tile[i] = (uint16_t)(f32_bits(input_f32(seed, i)) >> 5);
    decode(tile, code, w);
}

/* ---- normal weights ---- */

/* The value that a share q of N(0, 1) lies below. */
static double quantile(double q)
{
    double lo = -8, hi = 8;
    for (int i = 0; i < 50; i++) {
        double mid = 0.5 * (lo + hi);
        if (0.5 * erfc(-mid * M_SQRT1_2) < q) lo = mid;
        else hi = mid;
    }
    return lo;
}

/* n weights that are the n quantiles of a normal of this width, shuffled: no luck in the sample. */
static float *normal_weights(int n, double rms, uint64_t seed)
{
    float *w = malloc((size_t)n * sizeof *w);
    assert_non_null(w);
    for (int i = 0; i < n; i++) w[i] = (float)(rms * quantile((i + 0.5) / n));
    for (int i = n - 1; i > 0; i--) {
        int k = (int)((input_f32(seed, i) * 0.5 + 0.5) * (i + 1));
        float swap = w[i];
        w[i] = w[k];
        w[k] = swap;
    }
    return w;
}

static double relative_error(krn_exl3_code code, int n_tiles, double rms)
{
    uint16_t *tiles = malloc((size_t)n_tiles * (size_t)fmt_exl3_tile_bytes(code.bits));
    double *error = malloc((size_t)n_tiles * sizeof *error), e2 = 0, w2 = 0;
    assert_true(tiles && error);
    float *w = normal_weights(n_tiles * WEIGHTS, rms, (uint64_t)code.bits);
    encode(w, n_tiles, code, tiles, error);
    for (int i = 0; i < n_tiles; i++) e2 += error[i];
    for (int i = 0; i < n_tiles * WEIGHTS; i++) w2 += (double)w[i] * w[i];
    free(w);
    free(error);
    free(tiles);
    return sqrt(e2 / w2);
}

/* ---- tests ---- */

static void what_a_tile_can_hold_comes_back(void **state)
{
    (void)state;
    for (int32_t bits = 1; bits <= FMT_EXL3_BITS_MAX; bits++)
        for (int32_t c = 0; c < FMT_EXL3_CODEBOOKS; c++) {
            const krn_exl3_code code = { bits, (fmt_exl3_codebook)c, 128 };
            float w[WEIGHTS], got[WEIGHTS];
            uint16_t tile[WORDS_MAX];
            double error;
            random_tile((uint64_t)(8 * c + bits), code, w);
            encode(w, 1, code, tile, &error);
            decode(tile, code, got);
            if (error != 0 || differ_f32("tile", got, w, WEIGHTS) != 0)
                fail_msg("K %d, %s: error %g", bits, fmt_exl3_codebook_name(code.codebook), error);
        }
}

/* A way that does not close would be packed into something else than it was priced for. */
static void the_error_is_that_of_the_packed_tile(void **state)
{
    (void)state;
    enum { N = 2 };
    for (int32_t bits = 1; bits <= FMT_EXL3_BITS_MAX; bits++) {
        const krn_exl3_code code = { bits, FMT_EXL3_MUL1, 64 };
        uint16_t tiles[N * WORDS_MAX];
        double error[N];
        float got[WEIGHTS], *w = normal_weights(N * WEIGHTS, 0.9, 3);
        encode(w, N, code, tiles, error);
        for (int i = 0; i < N; i++) {
            decode(tiles + i * 16 * bits, code, got);
            assert_true(error[i] == distance(w + i * WEIGHTS, got));
            tiles[i * 16 * bits] ^= 0x0400; /* and would not be that of another one */
            decode(tiles + i * 16 * bits, code, got);
            assert_true(error[i] < distance(w + i * WEIGHTS, got));
        }
        free(w);
    }
}

/* The figures are of a full search over 8,192 normal weights each; 3 % for the shorter seam and another sample. */
static void normal_weights_have_the_known_errors(void **state)
{
    (void)state;
    static const struct { krn_exl3_code code; int tiles; double codebook_rms, g, error; } CASES[] = {
        { { 1, FMT_EXL3_MUL1, 128 }, 8, 1.00031, 1.10, 0.522 },
        { { 2, FMT_EXL3_MUL1, 128 }, 24, 1.00031, 1.00, 0.262 },
        { { 2, FMT_EXL3_MCG, 128 }, 16, 1.24411, 1.00, 0.261 },
        { { 2, FMT_EXL3_3INST, 128 }, 16, 1.24371, 1.00, 0.262 },
        { { 3, FMT_EXL3_MUL1, 128 }, 16, 1.00031, 0.95, 0.132 },
        { { 4, FMT_EXL3_MUL1, 128 }, 16, 1.00031, 0.90, 0.0664 },
        { { 5, FMT_EXL3_MUL1, 128 }, 24, 1.00031, 0.90, 0.0336 },
        { { 6, FMT_EXL3_MUL1, 128 }, 24, 1.00031, 0.90, 0.0169 },
        { { 7, FMT_EXL3_MUL1, 128 }, 16, 1.00031, 0.90, 0.0087 },
        { { 8, FMT_EXL3_MUL1, 128 }, 16, 1.00031, 0.80, 0.0045 },
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        const krn_exl3_code code = CASES[i].code;
        double found = relative_error(code, CASES[i].tiles, CASES[i].g * CASES[i].codebook_rms);
        if (!(fabs(found / CASES[i].error - 1) <= 0.03))
            fail_msg("K %d, %s: found %.5f, wanted %.5f within 3 %%", code.bits, fmt_exl3_codebook_name(code.codebook),
                     found, CASES[i].error);
    }
}

static void a_longer_seam_is_no_worse(void **state)
{
    (void)state;
    const double shortest = relative_error((krn_exl3_code){ 4, FMT_EXL3_MUL1, 2 }, 12, 0.9);
    const double usual = relative_error((krn_exl3_code){ 4, FMT_EXL3_MUL1, 64 }, 12, 0.9);
    const double full = relative_error((krn_exl3_code){ 4, FMT_EXL3_MUL1, KRN_EXL3_SEAM_MAX }, 12, 0.9);
    if (!(full <= usual && usual < shortest)) fail_msg("seam 2: %.5f, 64: %.5f, 256: %.5f", shortest, usual, full);
}

static void every_instruction_set_gives_the_same_bits(void **state)
{
    (void)state;
    float *w = normal_weights(WEIGHTS, 1.0, 5), zeros[WEIGHTS] = { 0 };
    for (int32_t bits = 1; bits <= FMT_EXL3_BITS_MAX; bits++)
        for (int tied = 0; tied < 2; tied++) { /* zeros: many ways cost the same */
            const krn_exl3_code code = { bits, FMT_EXL3_MUL1, 32 };
            uint16_t want[WORDS_MAX], got[WORDS_MAX];
            double want_error, got_error;
            krn_isa_set(KRN_ISA_SCALAR);
            encode(tied ? zeros : w, 1, code, want, &want_error);
            for (int isa = KRN_ISA_SCALAR + 1; isa <= (int)krn_isa_best(); isa++) {
                krn_isa_set((krn_isa)isa);
                encode(tied ? zeros : w, 1, code, got, &got_error);
                assert_memory_equal(got, want, (size_t)fmt_exl3_tile_bytes(bits));
                assert_true(got_error == want_error);
            }
            krn_isa_set(krn_isa_best());
        }
    free(w);
}

static void threads_change_nothing(void **state)
{
    (void)state;
#ifdef _OPENMP
    enum { N = 7 };
    const krn_exl3_code code = { 5, FMT_EXL3_MUL1, 64 };
    uint16_t one[N * WORDS_MAX], three[N * WORDS_MAX];
    double error_one[N], error_three[N];
    float *w = normal_weights(N * WEIGHTS, 0.9, 9);
    const int before = omp_get_max_threads();
    omp_set_num_threads(1);
    encode(w, N, code, one, error_one);
    omp_set_num_threads(3);
    encode(w, N, code, three, error_three);
    omp_set_num_threads(before);
    assert_memory_equal(one, three, N * (size_t)fmt_exl3_tile_bytes(code.bits));
    assert_memory_equal(error_one, error_three, sizeof error_one);
    free(w);
#endif
}

static void no_tiles_are_no_work(void **state)
{
    (void)state;
    encode(NULL, 0, (krn_exl3_code){ 2, FMT_EXL3_MUL1, 64 }, NULL, NULL);
}

int main(void)
{
    static const struct CMUnitTest TESTS[] = {
        cmocka_unit_test(what_a_tile_can_hold_comes_back),
        cmocka_unit_test(the_error_is_that_of_the_packed_tile),
        cmocka_unit_test(normal_weights_have_the_known_errors),
        cmocka_unit_test(a_longer_seam_is_no_worse),
        cmocka_unit_test(every_instruction_set_gives_the_same_bits),
        cmocka_unit_test(threads_change_nothing),
        cmocka_unit_test(no_tiles_are_no_work),
    };
    return cmocka_run_group_tests(TESTS, NULL, NULL);
}
