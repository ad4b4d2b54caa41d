/* The inner loops of the twins give the same bits on every instruction set, on sizes that fill no vector and on odd
 * numbers, and read and write nothing outside of what they are given. */
#include "base/mem.h"
#include "kernels/act_qdq.h"
#include "kernels/attention.h"
#include "kernels/mhc.h"
#include "kernels/rmsnorm.h"

#include "check.h"

enum { ROWS = 2, HC = 4, DIM_MAX = 192, RING = 70, HEADS = 2 };

/* Everything that one instruction set gives; exact sizes on the heap, so that a sanitizer sees a step too far. */
typedef struct results {
    bf16 *o[2], *norm, *collapsed[2], *expanded[2], *qdq;
    float *pre, *post, *comb;
} results;

static void *copy_of(const void *from, size_t bytes)
{
    void *to = malloc(bytes);
    assert_non_null(to);
    memcpy(to, from, bytes);
    return to;
}

static void run(krn_isa isa, int dim, const bf16 *x, const float *mix, results *r)
{
    const size_t row = (size_t)dim * sizeof(bf16), n = (size_t)(ROWS * HC);
    bf16 *exact = copy_of(x, row * (RING + n)); /* rows of x: the ring, then the stream */
    bf16 *stream = exact + RING * dim;
    float *w = copy_of(mix, 64 * sizeof *w);
    krn_isa_set(isa);
    for (int acc = 0; acc < 2; acc++) {
        r->o[acc] = malloc(row * ROWS * HEADS);
        r->collapsed[acc] = malloc(row * ROWS);
        r->expanded[acc] = malloc(row * n);
        assert_true(r->o[acc] && r->collapsed[acc] && r->expanded[acc]);
        krn_attention_ref(stream, exact, RING, stream, ROWS, w, 0.1f, HEADS, dim, r->o[acc], (krn_acc)acc);
        krn_mhc_collapse_ref(stream, w, r->collapsed[acc], ROWS, HC, dim, (krn_acc)acc);
        krn_mhc_expand_ref(stream, stream, w, w + 8, r->expanded[acc], ROWS, HC, dim, (krn_acc)acc);
    }
    r->norm = malloc(row * n);
    r->qdq = malloc(row * n);
    r->pre = malloc(sizeof(float) * n);
    r->post = malloc(sizeof(float) * n);
    r->comb = malloc(sizeof(float) * n * HC);
    assert_true(r->norm && r->qdq && r->pre && r->post && r->comb);
    krn_rmsnorm_ref(stream, dim, exact, r->norm, dim, ROWS * HC, dim, 1e-6f);
    if (dim % 32 == 0) krn_act_qdq_ref(stream, dim, r->qdq, dim, ROWS * HC, dim);
    else memset(r->qdq, 0, row * n);
    krn_mhc_mixes_ref(stream, w, w, w, ROWS, HC, dim, 1e-6f, 1e-6f, 3, r->pre, r->post, r->comb, KRN_ACC_F64);
    krn_isa_set(krn_isa_best());
    free(exact);
    free(w);
}

static bool same(const results *a, const results *b, int dim)
{
    const size_t row = (size_t)dim * sizeof(bf16), n = (size_t)(ROWS * HC);
    bool fine = memcmp(a->norm, b->norm, row * n) == 0 && memcmp(a->qdq, b->qdq, row * n) == 0 &&
                memcmp(a->pre, b->pre, sizeof(float) * n) == 0 && memcmp(a->post, b->post, sizeof(float) * n) == 0 &&
                memcmp(a->comb, b->comb, sizeof(float) * n * HC) == 0;
    for (int acc = 0; acc < 2; acc++)
        fine = fine && memcmp(a->o[acc], b->o[acc], row * ROWS * HEADS) == 0 &&
               memcmp(a->collapsed[acc], b->collapsed[acc], row * ROWS) == 0 &&
               memcmp(a->expanded[acc], b->expanded[acc], row * n) == 0;
    return fine;
}

static void drop(results *r)
{
    for (int acc = 0; acc < 2; acc++) {
        free(r->o[acc]);
        free(r->collapsed[acc]);
        free(r->expanded[acc]);
    }
    free(r->norm);
    free(r->qdq);
    free(r->pre);
    free(r->post);
    free(r->comb);
}

static void every_instruction_set_gives_the_same_bits(void **state)
{
    (void)state;
    static bf16 x[DIM_MAX * (RING + ROWS * HC)];
    static float mix[64];
    const int dims[] = { 1, 15, 16, 17, 31, 32, 63, 64, 65, 96, 160, DIM_MAX };
    for (size_t i = 0; i < COUNT_OF(dims); i++)
        for (int odd = 0; odd < 2; odd++) {
            results want, got;
            const int n = dims[i] * (RING + ROWS * HC);
            fill_bf16(x, n, (uint64_t)(10 * dims[i] + odd), 3.0f);
            for (int k = 0; k < 64; k++) mix[k] = f32_from_bf16(x[k % n]) * 0.25f;
            if (odd) { /* infinity, NaN, subnormals, a zero with a sign, a large one */
                const bf16 numbers[] = { 0x7f80, 0xffc0, 0x0001, 0x8000, 0x7f7f, 0x8003 };
                for (size_t k = 0; k < COUNT_OF(numbers); k++) x[(size_t)n - 1 - k * (size_t)n / 97] = numbers[k];
            }
            run(KRN_ISA_SCALAR, dims[i], x, mix, &want);
            for (krn_isa isa = KRN_ISA_SCALAR; isa <= krn_isa_best(); isa++) {
                run(isa, dims[i], x, mix, &got);
                if (!same(&got, &want, dims[i])) fail_msg("dim %d, odd %d: %s", dims[i], odd, krn_isa_name(isa));
                drop(&got);
            }
            drop(&want);
        }
}

static void the_checker_sees_one_bit(void **state)
{
    (void)state;
    static bf16 x[32 * (RING + ROWS * HC)];
    static float mix[64];
    results a, b;
    fill_bf16(x, (int)COUNT_OF(x), 1, 1.0f);
    run(KRN_ISA_SCALAR, 32, x, mix, &a);
    run(KRN_ISA_SCALAR, 32, x, mix, &b);
    assert_true(same(&a, &b, 32));
    b.expanded[1][7] ^= 1;
    assert_false(same(&a, &b, 32));
    drop(&a);
    drop(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_instruction_set_gives_the_same_bits),
        cmocka_unit_test(the_checker_sees_one_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
