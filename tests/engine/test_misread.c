/* Mistakes in reading an EXL3 weight: each is another weight; those that undo themselves do; the transforms left out are
 * those of the definition. */
#include "engine/misread.h"

#include "tests/support/ok.h"

#include <math.h>

#include "base/mem.h"
#include "kernels/exl3.h"

enum { N = 256, K = 384, BITS = 2, BLOCK = FMT_EXL3_BLOCK, TILE = FMT_EXL3_TILE };

static uint16_t tiles[K / TILE][N / TILE][TILE * BITS], suh[K], svh[N];
static krn_weight whole;
static void *memory, *second;
static float right[N * K], read_as[N * K];

static uint16_t random_word(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (uint16_t)(*seed >> 16);
}

static int setup(void **state)
{
    uint32_t seed = 99;
    (void)state;
    for (size_t i = 0; i < sizeof tiles / 2; i++) (&tiles[0][0][0])[i] = random_word(&seed);
    for (int i = 0; i < K; i++) suh[i] = fp16_from_f32(random_word(&seed) & 0x8000 ? -0.5f : 0.5f);
    for (int i = 0; i < N; i++) svh[i] = fp16_from_f32(1.0f + (float)i / N);
    whole = (krn_weight){ .format = KRN_W_EXL3, .n = N, .k = K, .data = tiles, .row_bytes = sizeof tiles[0],
                          .exl3 = { .bits = BITS, .codebook = FMT_EXL3_MCG, .block_bytes = 8 * sizeof tiles[0][0],
                                    .suh = suh, .svh = svh } };
    memory = mem_alloc_aligned(eng_misread_bytes(&whole), 1);
    second = mem_alloc_aligned(eng_misread_bytes(&whole), 1);
    krn_weight_decode_f32(&whole, 0, N, right);
    return memory && second ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    free(memory);
    free(second);
    return 0;
}

static int64_t n_differ(const float *a, const float *b, int64_t n)
{
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) count += fabsf(a[i] - b[i]) > 1e-6f;
    return count;
}

static void every_mistake_is_another_weight_and_the_stored_one_stays(void **state)
{
    static float again[N * K];
    (void)state;
    for (int m = 0; m < ENG_MISREAD_BLOCK; m++) {
        const krn_weight w = eng_misread_make((eng_misread)m, &whole, 5, memory);
        assert_true(w.n == N && w.k == K);
        krn_weight_decode_f32(&w, 0, N, read_as);
        if (n_differ(read_as, right, N * K) == 0) fail_msg("%s: the same weight", eng_misread_text((eng_misread)m));
        krn_weight_decode_f32(&whole, 0, N, again);
        assert_memory_equal(again, right, sizeof right);
    }
}

static void what_swaps_swaps_back(void **state)
{
    static const eng_misread SWAPS[] = { ENG_MISREAD_BIT, ENG_MISREAD_WORDS, ENG_MISREAD_STRIPS };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(SWAPS); i++) {
        const krn_weight once = eng_misread_make(SWAPS[i], &whole, 777, memory);
        const krn_weight twice = eng_misread_make(SWAPS[i], &once, 777, second);
        krn_weight_decode_f32(&twice, 0, N, read_as);
        assert_memory_equal(read_as, right, sizeof right);
    }
}

/* A flipped bit stays in its tile: up to 16 / K of the weights before the transforms. */
static void one_bit_moves_few_weights_of_one_tile(void **state)
{
    static float before[K * N], after[K * N];
    (void)state;
    krn_exl3_decode_ref(&whole, before);
    for (int64_t bit = 0; bit < eng_misread_bits(&whole); bit += 4099) {
        const krn_weight w = eng_misread_make(ENG_MISREAD_BIT, &whole, bit, memory);
        krn_exl3_decode_ref(&w, after);
        int64_t n = 0, tile = -1;
        for (int64_t i = 0; i < K * N; i++) {
            if (memcmp(&before[i], &after[i], sizeof *before) == 0) continue;
            const int64_t here = i / N / TILE * (N / TILE) + i % N / TILE;
            assert_true(tile < 0 || here == tile);
            tile = here;
            n++;
        }
        assert_int_equal(tile, bit / (8 * (int64_t)sizeof tiles[0][0]));
        assert_in_range(n, 1, 16 / BITS);
    }
}

/* Straight from y = ((x suh) H Wq H) svh with one H left out. */
static void a_transform_left_out_is_that_of_the_definition(void **state)
{
    static float wq[K * N];
    const krn_weight in = eng_misread_make(ENG_MISREAD_HADAMARD_IN, &whole, 0, memory);
    const krn_weight out = eng_misread_make(ENG_MISREAD_HADAMARD_OUT, &whole, 0, second);
    const float *no_in = in.data, *no_out = out.data;
    (void)state;
    assert_true(in.format == KRN_W_F32 && out.format == KRN_W_F32);
    krn_exl3_decode_ref(&whole, wq);
    for (int n = 3; n < N; n += 31)
        for (int k = 1; k < K; k += 29) {
            double over_n = 0, over_k = 0;
            for (int i = 0; i < BLOCK; i++) {
                const int column = n / BLOCK * BLOCK + i, row = k / BLOCK * BLOCK + i;
                over_n += (double)wq[k * N + column] * (__builtin_parity((unsigned)(i & n % BLOCK)) ? -1 : 1);
                over_k += (double)wq[row * N + n] * (__builtin_parity((unsigned)(i & k % BLOCK)) ? -1 : 1);
            }
            const double scale = (double)f32_from_fp16(suh[k]) * (double)f32_from_fp16(svh[n]) / sqrt(BLOCK);
            assert_true(fabs((double)no_in[n * K + k] - over_n * scale) < 1e-5);
            assert_true(fabs((double)no_out[n * K + k] - over_k * scale) < 1e-5);
        }
}

/* Along N and along K; a slice that is cut inside a block has the same place in the block before. */
static void a_slice_one_block_early_is_the_slice_before(void **state)
{
    static float a[N * K], b[N * K];
    (void)state;
    const krn_weight late_n = krn_weight_slice(&whole, BLOCK + 64, 32, 0, K);
    const krn_weight late_k = krn_weight_slice(&whole, 0, N, 2 * BLOCK, 96);
    const krn_weight before_n = krn_weight_slice(&whole, 64, 32, 0, K);
    const krn_weight before_k = krn_weight_slice(&whole, 0, N, BLOCK, 96);
    const krn_weight n = eng_misread_make(ENG_MISREAD_BLOCK, &late_n, 0, memory);
    krn_weight_decode_f32(&n, 0, 32, a);
    krn_weight_decode_f32(&before_n, 0, 32, b);
    assert_memory_equal(a, b, sizeof(float) * 32 * K);
    const krn_weight k = eng_misread_make(ENG_MISREAD_BLOCK, &late_k, 1, memory);
    krn_weight_decode_f32(&k, 0, N, a);
    krn_weight_decode_f32(&before_k, 0, N, b);
    assert_memory_equal(a, b, sizeof(float) * N * 96);
}

/* What is made of a rank's slice is the slice of what is made of the whole. */
static void a_slice_is_misread_as_the_whole(void **state)
{
    static float part[N * K];
    const krn_weight slice = krn_weight_slice(&whole, 64, 128, 160, 96);
    (void)state;
    for (int m = ENG_MISREAD_CODEBOOK; m < ENG_MISREAD_BLOCK; m++) {
        const krn_weight w = eng_misread_make((eng_misread)m, &whole, 1, memory);
        const krn_weight s = eng_misread_make((eng_misread)m, &slice, 1, second);
        if (m == ENG_MISREAD_SVH_NEXT) continue; /* its last block is another one */
        krn_weight_decode_f32(&w, 0, N, read_as);
        krn_weight_decode_f32(&s, 0, 128, part);
        for (int r = 0; r < 128; r++)
            for (int k = 0; k < 96; k++)
                if (fabsf(part[r * 96 + k] - read_as[(64 + r) * K + 160 + k]) > 1e-6f)
                    fail_msg("%s: row %d, column %d", eng_misread_text((eng_misread)m), r, k);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_mistake_is_another_weight_and_the_stored_one_stays),
        cmocka_unit_test(what_swaps_swaps_back),
        cmocka_unit_test(one_bit_moves_few_weights_of_one_tile),
        cmocka_unit_test(a_transform_left_out_is_that_of_the_definition),
        cmocka_unit_test(a_slice_one_block_early_is_the_slice_before),
        cmocka_unit_test(a_slice_is_misread_as_the_whole),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
