/* krn_rope on the card: the blocked twin's bits, the bound against double, what stays untouched. */
#include "kernels/rope.h"

#include "gpu.h"

#include <stdlib.h>

typedef struct shape { int32_t rows, heads, head_dim, rope_dim; } shape;

static const shape SHAPES[] = {
    { 5, 64, 512, 64 }, { 10, 64, 512, 64 }, { 15, 64, 512, 64 }, { 20, 64, 512, 64 }, { 20, 32, 512, 64 },
    { 20, 1, 512, 64 }, { 128, 1, 512, 64 }, /* kv rows */
    { 3, 4, 32, 8 }, { 4, 2, 32, 32 }, { 2, 9, 40, 6 }, { 3, 17, 33, 10 }, { 1, 1, 2, 2 }, { 7, 3, 5, 4 },
    { 2, 1, 1024, 1024 },
};
enum { N_SHAPES = sizeof SHAPES / sizeof SHAPES[0] };

static int64_t elements(const shape *s) { return (int64_t)s->rows * s->heads * s->head_dim; }

/* Short, long and far positions, padding's -1 among them. */
static void make_positions(int32_t *pos, int32_t rows, uint64_t seed)
{
    const int32_t some[] = { 0, 1, -1, 127, 4095, 131071, 1048575, (1 << 24) + 1, INT32_MAX };
    for (int32_t r = 0; r < rows; r++)
        pos[r] = r % 2 ? (int32_t)(gpu_hash(seed, (uint64_t)r) % 300000) : some[(r / 2) % 9];
}

/* y of the kernel: from x in place or not, `shift` elements past an aligned address. */
static bf16 *run(const bf16 *x, const shape *s, const int32_t *pos, const float *freq, bool inverse, bool in_place,
                 int32_t shift)
{
    err e = { 0 };
    int64_t n = elements(s);
    bf16 *host = calloc((size_t)(n + shift), 2);
    assert_non_null(host);
    memcpy(host + shift, x, (size_t)n * 2);
    bf16 *dx = gpu_put(host, (size_t)(n + shift) * 2), *dy = in_place ? dx : gpu_out((size_t)(n + shift) * 2);
    int32_t *dpos = gpu_put(pos, (size_t)s->rows * 4);
    float *dfreq = gpu_put(freq, (size_t)(s->rope_dim / 2) * 4);
    gpu_ok(krn_rope(dx + shift, dy + shift, s->rows, s->heads, s->head_dim, s->rope_dim, dpos, dfreq, inverse,
                    gpu_stream(), &e),
           &e);
    gpu_get(dy, host, (size_t)(n + shift) * 2);
    gpu_free_all();
    memmove(host, host + shift, (size_t)n * 2);
    return host;
}

static void same_bits_as_the_blocked_twin(void **state)
{
    (void)state;
    for (int i = 0; i < N_SHAPES; i++) {
        const shape *s = &SHAPES[i];
        int64_t n = elements(s);
        int32_t pos[128];
        float freq[512];
        bf16 *x = malloc((size_t)n * 2), *want = malloc((size_t)n * 2);
        assert_true(x && want);
        gpu_fill_bf16(x, n, (uint64_t)i, 3.0f);
        x[0] = 0x7f81; /* a NaN: copied with its payload, unless the whole head turns */
        make_positions(pos, s->rows, (uint64_t)i);
        krn_rope_freqs(10000.0, s->rope_dim, freq);
        for (int inverse = 0; inverse < 2; inverse++) {
            krn_rope_ref(x, want, s->rows, s->heads, s->head_dim, s->rope_dim, pos, freq, inverse, KRN_ACC_BLOCKED);
            for (int way = 0; way < 4; way++) {
                bf16 *got = run(x, s, pos, freq, inverse, way % 2, way / 2);
                gpu_same(way == 0 ? "apart" : way == 1 ? "in place" : "odd address", got, want, n, 2);
                free(got);
            }
        }
        free(x);
        free(want);
    }
}

static void within_the_bound_of_the_exact_turn(void **state)
{
    (void)state;
    const shape s = { 20, 64, 512, 64 };
    const int64_t n = elements(&s);
    int32_t pos[20], keep = s.head_dim - s.rope_dim;
    float freq[32];
    bf16 *x = malloc((size_t)n * 2);
    assert_non_null(x);
    gpu_fill_bf16(x, n, 5, 3.0f);
    make_positions(pos, s.rows, 6);
    krn_rope_freqs(10000.0, s.rope_dim, freq);
    bf16 *y = run(x, &s, pos, freq, false, false, 0);
    gpu_tally tally = { .label = "rope 20 x 64 x 512" }, bad = { .label = "perturbed" };
    for (int64_t h = 0; h < (int64_t)s.rows * s.heads; h++) {
        for (int32_t i = 0; i < s.rope_dim / 2; i++) {
            int64_t at = h * s.head_dim + keep + 2 * i;
            double angle = (float)pos[h / s.heads] * freq[i];
            double c = (float)cos(angle), sn = (float)sin(angle), re = f32_from_bf16(x[at]), im = f32_from_bf16(x[at + 1]);
            double delta = 0x1p-23 * (fabs(re * c) + fabs(im * sn)), delta2 = 0x1p-23 * (fabs(re * sn) + fabs(im * c));
            gpu_judge_bf16(&tally, at, re * c - im * sn, delta, y[at]);
            gpu_judge_bf16(&tally, at + 1, re * sn + im * c, delta2, y[at + 1]);
            if (h == 0) gpu_judge_bf16(&bad, at, re * c - im * sn, delta, (bf16)(y[at] + 2));
        }
    }
    gpu_tally_end(&tally, 0.999);
    assert_int_equal(bad.illegal, bad.n); /* two steps beside the kernel's own result are refused */
    free(x);
    free(y);
}

/* 2^17 positions in rows of one head: the angle's rounding, sine and cosine over the whole range of a context. */
static void every_position_of_a_context_turns_alike(void **state)
{
    (void)state;
    const shape s = { 1 << 17, 1, 64, 64 };
    int32_t *pos = malloc((size_t)s.rows * 4);
    bf16 *x = malloc((size_t)elements(&s) * 2), *want = malloc((size_t)elements(&s) * 2);
    float freq[32];
    assert_true(pos && x && want);
    for (int32_t r = 0; r < s.rows; r++) pos[r] = r;
    gpu_fill_bf16(x, elements(&s), 8, 1.0f);
    krn_rope_freqs(10000.0, s.rope_dim, freq);
    krn_rope_ref(x, want, s.rows, 1, 64, 64, pos, freq, false, KRN_ACC_BLOCKED);
    bf16 *got = run(x, &s, pos, freq, false, false, 0);
    gpu_same("positions", got, want, elements(&s), 2);
    free(pos);
    free(x);
    free(want);
    free(got);
}

static void a_row_alone_gives_the_rows_bits(void **state)
{
    (void)state;
    const shape s = { 20, 64, 512, 64 }, one = { 1, 64, 512, 64 };
    int32_t pos[20];
    float freq[32];
    bf16 *x = malloc((size_t)elements(&s) * 2);
    assert_non_null(x);
    gpu_fill_bf16(x, elements(&s), 9, 3.0f);
    make_positions(pos, s.rows, 10);
    krn_rope_freqs(10000.0, s.rope_dim, freq);
    bf16 *all = run(x, &s, pos, freq, true, false, 0);
    for (int32_t r = 0; r < s.rows; r++) {
        bf16 *alone = run(x + r * elements(&one), &one, pos + r, freq, true, false, 0);
        gpu_same("row alone", all + r * elements(&one), alone, elements(&one), 2);
        free(alone);
    }
    free(x);
    free(all);
}

static void shapes_outside_the_contract_are_refused(void **state)
{
    (void)state;
    const shape bad[] = { { -1, 1, 64, 64 }, { 1, -1, 64, 64 }, { 1, 1, 64, 0 }, { 1, 1, 64, 7 }, { 1, 1, 64, 66 },
                          { 1, 1, 20000, 8194 } };
    err e = { 0 };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(krn_rope(NULL, NULL, bad[i].rows, bad[i].heads, bad[i].head_dim, bad[i].rope_dim, NULL, NULL,
                                  false, gpu_stream(), &e),
                         ERR_ARG);
    gpu_ok(krn_rope(NULL, NULL, 0, 1, 64, 64, NULL, NULL, false, gpu_stream(), &e), &e);
    gpu_ok(krn_rope(NULL, NULL, 1, 0, 64, 64, NULL, NULL, false, gpu_stream(), &e), &e);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(same_bits_as_the_blocked_twin),
    cmocka_unit_test(within_the_bound_of_the_exact_turn),
    cmocka_unit_test(every_position_of_a_context_turns_alike),
    cmocka_unit_test(a_row_alone_gives_the_rows_bits),
    cmocka_unit_test(shapes_outside_the_contract_are_refused),
};
GPU_MAIN(tests)
