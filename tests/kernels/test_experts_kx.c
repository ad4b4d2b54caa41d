/* The layout of kernels/experts_kx.h: packing has an inverse, and what the lanes of a warp read from it is the matrix. The
 * kernel's index arithmetic is gone through here lane by lane, where no card is needed. */
#include "kernels/experts_kx.h"

#include "base/mem.h"
#include "check.h"

#include <math.h>

enum { LANES = 32, M = 16, N = 8, K = 16 }; /* of mma.m16n8k16 */

/* FP4 of n rows, as a part of rows that are longer by `skip` groups of 32 columns before and after. */
typedef struct matrix { krn_weight w; uint8_t *data, *scale; } matrix;
static matrix matrix_make(int32_t n, int32_t k, int32_t skip, uint64_t seed)
{
    const int32_t groups = k / 32 + 2 * skip;
    matrix m = { .data = mem_alloc((size_t)n * (size_t)groups * 16, 1), .scale = mem_alloc((size_t)n * (size_t)groups, 1) };
    assert_true(m.data && m.scale);
    for (int32_t i = 0; i < n * groups * 16; i++) m.data[i] = (uint8_t)(f32_bits(input_f32(seed, i)) >> 9);
    for (int32_t i = 0; i < n * groups; i++) m.scale[i] = (uint8_t)(120 + i * 7 % 9);
    const krn_weight whole = { .format = KRN_W_FP4, .n = n, .k = 32 * groups, .data = m.data, .row_bytes = groups * 16,
                               .scale = m.scale, .scale_row_bytes = groups };
    m.w = krn_weight_slice(&whole, 0, n, 32 * skip, k);
    return m;
}
static void matrix_free(matrix *m)
{
    free(m->data);
    free(m->scale);
}

static uint8_t *packed_make(const krn_weight *top, const krn_weight *bottom, bool *large)
{
    const size_t bytes = (size_t)krn_kx_bytes(top->n + (bottom ? bottom->n : 0), top->k);
    uint8_t *packed = mem_alloc_aligned(bytes, 1);
    assert_non_null(packed);
    memset(packed, 0xee, bytes); /* every byte is written */
    *large = krn_kx_pack(top, bottom, packed);
    return packed;
}

/* Bytes of codes and scales of the rows of w that differ from those unpacked from row0 on. */
static int32_t differ(const krn_weight *w, const uint8_t *data, const uint8_t *scale, int32_t row0)
{
    const int32_t row_bytes = w->k / 2, groups = w->k / 32;
    int32_t n = 0;
    for (int32_t r = 0; r < w->n; r++) {
        for (int32_t i = 0; i < row_bytes; i++)
            n += data[(row0 + r) * row_bytes + i] != ((const uint8_t *)w->data)[r * w->row_bytes + i];
        for (int32_t i = 0; i < groups; i++) n += scale[(row0 + r) * groups + i] != w->scale[r * w->scale_row_bytes + i];
    }
    return n;
}

static void unpacking_gives_back_every_byte(void **state)
{
    (void)state;
    static const struct { int32_t top, bottom, k; } SHAPE[] = {
        { 1, 0, 32 }, { 32, 0, 128 }, { 31, 0, 96 }, { 33, 33, 416 }, { 64, 32, 1152 }, { 70, 3, 160 },
    };
    for (size_t i = 0; i < sizeof SHAPE / sizeof *SHAPE; i++) {
        const int32_t n = SHAPE[i].top + SHAPE[i].bottom, k = SHAPE[i].k;
        matrix top = matrix_make(SHAPE[i].top, k, 0, 10 + i), bottom = matrix_make(SHAPE[i].bottom + 1, k, 2, 20 + i);
        bottom.w.n = SHAPE[i].bottom;
        uint8_t *data = mem_alloc((size_t)(n * (k / 2)), 1), *scale = mem_alloc((size_t)(n * (k / 32)), 1);
        bool large;
        uint8_t *packed = packed_make(&top.w, bottom.w.n ? &bottom.w : NULL, &large);
        assert_true(data && scale && !large);
        krn_kx_unpack(packed, n, k, data, scale);
        assert_int_equal(differ(&top.w, data, scale, 0), 0);
        assert_int_equal(differ(&bottom.w, data, scale, SHAPE[i].top), 0);
        packed[0] ^= 0x40; /* row 0's first mantissa bit */
        krn_kx_unpack(packed, n, k, data, scale);
        assert_int_equal(differ(&top.w, data, scale, 0), 1);
        free(packed), free(data), free(scale);
        matrix_free(&top), matrix_free(&bottom);
    }
}

static void a_scale_above_the_limit_is_told(void **state)
{
    (void)state;
    matrix m = matrix_make(40, 64, 0, 1);
    bool large;
    m.scale[79] = KRN_KX_SCALE_SMALL;
    free(packed_make(&m.w, NULL, &large));
    assert_false(large);
    m.scale[79] = KRN_KX_SCALE_SMALL + 1;
    free(packed_make(&m.w, NULL, &large));
    assert_true(large);
    matrix_free(&m);
}

/* Of every code in every column, the others all ones: nothing of theirs gets between its bits. */
static void every_code_is_placed(void **state)
{
    (void)state;
    static const float VALUE[8] = { 0, 0.5f, 1, 1.5f, 2, 3, 4, 6 };
    for (uint32_t column = 0; column < 8; column++)
        for (uint32_t code = 0; code < 16; code++)
            for (uint32_t others = 0; others < 2; others++) {
                uint8_t data[16] = { 0 }, scale = 127, out[KRN_KX_BLOCK_BYTES];
                put_u32(data, ((others ? 0xffffffffu : 0) & ~(15u << 4 * column)) | code << 4 * column);
                const krn_weight w = { .format = KRN_W_FP4, .n = 1, .k = 32, .data = data, .row_bytes = 16, .scale = &scale,
                                       .scale_row_bytes = 1 };
                krn_kx_pack(&w, NULL, out);
                uint32_t pair[4];
                krn_kx_place(get_u32(out), pair);
                for (uint32_t i = 0; i < 8; i++) {
                    const uint32_t want = i == column ? code : others ? 15 : 0, got = pair[i % 4] >> 16 * (i / 4) & 0xffff;
                    assert_int_equal(got, (want & 8) << 12 | (want & 7) << 6);
                    assert_true(f32_from_bf16((bf16)got) * 0x1p126f == (want & 8 ? -VALUE[want & 7] : VALUE[want & 7]));
                }
            }
}

/* ---- a warp ---- */

/* a [16][16], b [16][8] from the registers of all lanes, as PTX has them for mma.m16n8k16. */
static void mma(const uint32_t a[LANES][4], const uint32_t b[LANES][2], double acc[M][N])
{
    float wide_a[M][K], wide_b[K][N];
    for (int lane = 0; lane < LANES; lane++)
        for (int half = 0; half < 2; half++) {
            const int g = lane / 4, k = lane % 4 * 2 + half;
            for (int r = 0; r < 4; r++)
                wide_a[g + r % 2 * 8][k + r / 2 * 8] = f32_from_bf16((bf16)(a[lane][r] >> 16 * half));
            for (int r = 0; r < 2; r++) wide_b[k + r * 8][g] = f32_from_bf16((bf16)(b[lane][r] >> 16 * half));
        }
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++)
            for (int k = 0; k < K; k++) acc[m][n] += (double)wide_a[m][k] * (double)wide_b[k][n];
}

/* Word r of the lane's 16 bytes of a chunk, as pairs of weights. */
static void decode(const uint8_t *block, int c, int lane, int r, uint32_t pair[4])
{
    const float scale = ldexpf(1, block[KRN_KX_SCALES + lane / 4 * 16 + c * 4 + r] - 127);
    krn_kx_place(get_u32(block + c * KRN_KX_CHUNK_BYTES + lane * 16 + r * 4), pair);
    for (int i = 0; i < 4; i++) {
        const float low = f32_from_bf16((bf16)pair[i]) * 0x1p126f, high = f32_from_bf16((bf16)(pair[i] >> 16)) * 0x1p126f;
        pair[i] = bf16_from_f32(low * scale) | (uint32_t)bf16_from_f32(high * scale) << 16;
    }
}

/* sum [32][8]: one tile times eight rows of x [8][k]. */
static void tile_product(const uint8_t *tile, const bf16 *x, int32_t k, double sum[KRN_KX_ROWS][N])
{
    memset(sum, 0, KRN_KX_ROWS * sizeof *sum);
    for (int32_t step = 0; step < krn_kx_steps(k); step++)
        for (int c = 0; c < 4; c++)
            for (int i = 0; i < KRN_KX_ROWS / M; i++)
                for (int h = 0; h < 2; h++) {
                    uint32_t a[LANES][4], b[LANES][2];
                    for (int lane = 0; lane < LANES; lane++) {
                        const int32_t at = step * KRN_KX_COLUMNS + 32 * c + 8 * (lane % 4);
                        uint32_t w[2][4];
                        for (int r = 0; r < 2; r++) decode(tile + step * KRN_KX_BLOCK_BYTES, c, lane, 2 * i + r, w[r]);
                        a[lane][0] = w[0][2 * h], a[lane][1] = w[1][2 * h];
                        a[lane][2] = w[0][2 * h + 1], a[lane][3] = w[1][2 * h + 1];
                        for (int p = 0; p < 2; p++) {
                            const bf16 *pair = x + (lane / 4) * k + at + 2 * h + p;
                            b[lane][p] = at < k ? pair[0] | (uint32_t)pair[4] << 16 : 0;
                        }
                    }
                    mma((const uint32_t(*)[4])a, (const uint32_t(*)[2])b, &sum[i * M]);
                }
}

/* Whole numbers of x and few different scales: the sums are exact in any order. */
static void lanes_multiply_what_the_matrix_holds(void **state)
{
    (void)state;
    enum { ROWS = 40, COLUMNS = 288 };
    static bf16 x[N * COLUMNS];
    static float want[N * ROWS];
    double sum[KRN_KX_ROWS][N];
    bool large;
    matrix m = matrix_make(ROWS, COLUMNS, 1, 5);
    for (int i = 0; i < N * COLUMNS; i++) x[i] = bf16_from_f32((float)(i * 37 % 17 - 8));
    krn_linear_ref(x, COLUMNS, N, &m.w, KRN_ACC_F64, KRN_OUT_F32, want, ROWS);
    uint8_t *packed = packed_make(&m.w, NULL, &large);
    const int64_t tile_bytes = (int64_t)krn_kx_steps(COLUMNS) * KRN_KX_BLOCK_BYTES;
    for (int pass = 0; pass < 2; pass++) {
        int wrong = 0;
        for (int r = 0; r < ROWS; r++) {
            if (r % KRN_KX_ROWS == 0) tile_product(packed + r / KRN_KX_ROWS * tile_bytes, x, COLUMNS, sum);
            for (int t = 0; t < N; t++) wrong += (float)sum[r % KRN_KX_ROWS][t] != want[t * ROWS + r];
        }
        if (pass == 0) assert_int_equal(wrong, 0);
        else assert_true(wrong > 0 && wrong <= N);
        packed[KRN_KX_SCALES] ^= 1; /* of row 0: is seen, in that row alone */
    }
    free(packed);
    matrix_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unpacking_gives_back_every_byte),
        cmocka_unit_test(a_scale_above_the_limit_is_told),
        cmocka_unit_test(every_code_is_placed),
        cmocka_unit_test(lanes_multiply_what_the_matrix_holds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
