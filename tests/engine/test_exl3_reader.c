/* EXL3 tensors in a checkpoint: what is read, and what is refused by name. One weight of the fixture, wkv [32, 96], has an
 * EXL3 form: padded to 128 x 128 it is 8 x 8 tiles. */
#include "tests/engine/fixture.h"

#include "engine/weights.h"
#include "formats/exl3.h"
#include "tests/support/ok.h"

#define WKV "mtp.0.attn.wkv"
enum { IN = 128, OUT = 128 };

static size_t put(fixture *f, const char *name, fmt_dtype dtype, int32_t ndim, int64_t a, int64_t b, int64_t c)
{
    const int64_t shape[3] = { a, b, c };
    int64_t elems = 1;
    for (int32_t d = 0; d < ndim; d++) elems *= shape[d];
    size_t i = fixture_add(f, name, dtype, 1, elems ? elems : 1, 1);
    f->decl[i].ndim = ndim;
    for (int32_t d = 0; d < ndim; d++) f->decl[i].shape[d] = shape[d];
    f->bytes[i] = (uint64_t)elems * fmt_dtype_bytes(dtype);
    return i;
}

static void reshape(fixture *f, const char *name, fmt_dtype dtype, int32_t ndim, int64_t a, int64_t b, int64_t c)
{
    size_t i = fixture_find(f, name);
    f->skip[i] = true;
    f->names[i][0] = '-'; /* not found again */
    put(f, name, dtype, ndim, a, b, c);
}

static void marker(fixture *f, const char *name, int32_t value, int32_t ndim, int64_t n)
{
    size_t i = put(f, name, FMT_DTYPE_I32, ndim, n, 1, 1);
    if (n || !ndim) memcpy(f->data[i], &value, sizeof value);
}

static void factors(fixture *f, const char *name, int64_t n)
{
    size_t i = put(f, name, FMT_DTYPE_F16, 1, n, 1, 1);
    for (int64_t k = 0; k < n; k++) put_u16(f->data[i] + 2 * k, (uint16_t)(0x3000 + k + (k & 1) * 0x8000));
}

static void add_exl3(fixture *f)
{
    put(f, WKV ".trellis", FMT_DTYPE_I16, 3, IN / 16, OUT / 16, 80);
    factors(f, WKV ".suh", IN);
    factors(f, WKV ".svh", OUT);
}

static int setup(void **state)
{
    fixture *f = mem_alloc(1, sizeof *f);
    fixture_init(f);
    setenv("XDG_CACHE_HOME", "/nowhere", 1);
    add_exl3(f);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture_fini(*state);
    free(*state);
    return 0;
}

static eng_weights *opened(const fixture *f)
{
    eng_weights *w;
    fixture_write(f);
    OK(eng_weights_open(f->dir, true, &w, e));
    return w;
}

static void refused(const fixture *f, err_code code, const char *text)
{
    eng_weights *w;
    fixture_write(f);
    REFUSED(eng_weights_open(f->dir, true, &w, e), code, text);
}

/* ---- what is read ---- */

static void both_forms_of_a_weight_are_there(void **state)
{
    eng_weights *w = opened(*state);
    const krn_weight official = eng_weights_view(w, ENG_W_WKV, 0, -1), exl3 = eng_weights_exl3(w, ENG_W_WKV, 0, -1);
    assert_int_equal(official.format, KRN_W_FP8);
    assert_int_equal(exl3.format, KRN_W_EXL3);
    assert_true(exl3.n == 32 && exl3.k == 96 && exl3.exl3.bits == 5 && exl3.exl3.codebook == FMT_EXL3_3INST);
    assert_true(exl3.row_bytes == 8 * 160 && exl3.exl3.block_bytes == 8 * 160 && exl3.exl3.k0 == 0 && exl3.exl3.n0 == 0);
    assert_int_equal(exl3.exl3.suh[1], 0xb001);
    assert_null(eng_weights_exl3(w, ENG_W_WKV, 1, -1).data);
    assert_null(eng_weights_exl3(w, ENG_W_WO_A, 0, -1).data);
    eng_weights_close(w);
}

static void the_identity_covers_exl3(void **state)
{
    fixture *f = *state;
    char with[FMT_SHA256_HEX], other[FMT_SHA256_HEX];
    eng_weights *w = opened(f);
    eng_weights_identity(w, with);
    eng_weights_close(w);
    reshape(f, WKV ".trellis", FMT_DTYPE_U16, 3, IN / 16, OUT / 16, 80); /* other bytes, and the other name of the type */
    w = opened(f);
    eng_weights_identity(w, other);
    eng_weights_close(w);
    assert_string_not_equal(with, other);
}

static void a_marker_says_the_codebook_whatever_its_shape(void **state)
{
    fixture *f = *state;
    static const struct { const char *name; int32_t ndim; int64_t n; fmt_exl3_codebook c; } CASES[] = {
        { WKV ".mcg", 0, 1, FMT_EXL3_MCG }, { WKV ".mul1", 1, 1, FMT_EXL3_MUL1 }, { WKV ".mul1", 1, 0, FMT_EXL3_MUL1 },
    };
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        marker(f, CASES[i].name, fmt_exl3_codebook_marker(CASES[i].c), CASES[i].ndim, CASES[i].n);
        eng_weights *w = opened(f);
        assert_int_equal(eng_weights_exl3(w, ENG_W_WKV, 0, -1).exl3.codebook, CASES[i].c);
        eng_weights_close(w);
        size_t at = fixture_find(f, CASES[i].name);
        f->skip[at] = true;
        f->names[at][0] = '-';
    }
}

static void packed_signs_stand_for_factors(void **state)
{
    fixture *f = *state;
    f->skip[fixture_find(f, WKV ".suh")] = f->skip[fixture_find(f, WKV ".svh")] = true;
    size_t su = put(f, WKV ".su", FMT_DTYPE_I16, 1, IN / 16, 1, 1);
    size_t sv = put(f, WKV ".sv", FMT_DTYPE_I16, 1, OUT / 16, 1, 1);
    memset(f->data[su], 0, IN / 8);
    memset(f->data[sv], 0xff, OUT / 8);
    f->data[su][3] = 0x80; /* bit 15 of word 1: input 31 */
    eng_weights *w = opened(f);
    const krn_weight v = eng_weights_exl3(w, ENG_W_WKV, 0, -1);
    for (int i = 0; i < IN; i++) assert_int_equal(v.exl3.suh[i], i == 31 ? 0xbc00 : 0x3c00);
    for (int i = 0; i < OUT; i++) assert_int_equal(v.exl3.svh[i], 0xbc00);
    eng_weights_close(w);
}

static void one_form_is_enough_for_the_arms_that_read_it(void **state)
{
    fixture *f = *state;
    f->skip[fixture_find(f, WKV ".weight")] = f->skip[fixture_find(f, WKV ".scale")] = true;
    eng_weights *w = opened(f);
    assert_null(eng_weights_view(w, ENG_W_WKV, 0, -1).data);
    REFUSED(eng_weights_need(w, &(eng_reps){ 0 }, e), ERR_IDENTITY, "has no " WKV ".weight");
    REFUSED(eng_weights_need(w, &(eng_reps){ ENG_REP_FP4, ENG_REP_EXL3, ENG_REP_BF16 }, e), ERR_IDENTITY,
            "has no mtp.0.main_proj.trellis: make it with `sparktape quantize`");
    eng_weights_close(w);
}

static void slices_of_wo_a_are_nothing_beside_the_official_one(void **state)
{
    fixture *f = *state;
    put(f, "mtp.0.attn.wo_a.slice.0.trellis", FMT_DTYPE_I16, 3, 8, 8, 80);
    eng_weights_close(opened(f));
    f->skip[fixture_find(f, "mtp.0.attn.wo_a.weight")] = f->skip[fixture_find(f, "mtp.0.attn.wo_a.scale")] = true;
    refused(f, ERR_IDENTITY, "mtp.0.attn.wo_a.scale is missing: attn.wo_a.slice.* in EXL3 are not read in its place");
}

/* ---- what is refused ---- */

static void a_trellis_of_another_shape_or_type_is_refused(void **state)
{
    fixture *f = *state;
    static const struct { fmt_dtype dtype; int64_t shape[3]; const char *text; } CASES[] = {
        { FMT_DTYPE_F16, { 8, 8, 80 }, WKV ".trellis: found F16 [8, 8, 80], wanted I16 [8, 8, 16 x bits]" },
        { FMT_DTYPE_I16, { 8, 4, 80 }, "found I16 [8, 4, 80], wanted I16 [8, 8, 16 x bits]" },
        { FMT_DTYPE_I16, { 6, 8, 80 }, "found I16 [6, 8, 80]" },
        { FMT_DTYPE_I16, { 8, 8, 72 }, "4.5 bits a weight: half bits are not read" },
        { FMT_DTYPE_I16, { 8, 8, 144 }, "found 144 words a tile, wanted 16 for each of 1 to 8 bits" },
        { FMT_DTYPE_I16, { 8, 8, 81 }, "found 81 words a tile" },
    };
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        const int64_t *s = CASES[i].shape;
        reshape(f, WKV ".trellis", CASES[i].dtype, 3, s[0], s[1], s[2]);
        if (CASES[i].dtype == FMT_DTYPE_F16) memset(f->data[f->n - 1], 0, f->bytes[f->n - 1]);
        refused(f, ERR_IDENTITY, CASES[i].text);
    }
}

static void factors_that_do_not_fit_or_are_no_numbers_are_refused(void **state)
{
    fixture *f = *state;
    reshape(f, WKV ".suh", FMT_DTYPE_F16, 1, 96, 1, 1);
    refused(f, ERR_IDENTITY, WKV ".suh: found F16 [96], wanted F16 [128]");
    reshape(f, WKV ".suh", FMT_DTYPE_F16, 1, IN, 1, 1);
    size_t suh = f->n - 1;
    memset(f->data[suh], 0, f->bytes[suh]);
    put_u16(f->data[suh] + 2 * 77, 0x7c00);
    refused(f, ERR_INPUT, WKV ".suh: element 77: found NaN or infinity, wanted a finite number");
    put_u16(f->data[suh] + 2 * 77, 0xfe01);
    refused(f, ERR_INPUT, "element 77: found NaN or infinity");
}

static void half_a_form_is_refused(void **state)
{
    fixture *f = *state;
    f->skip[fixture_find(f, WKV ".svh")] = true;
    refused(f, ERR_IDENTITY, "tensor " WKV ".svh is missing");
    f->skip[fixture_find(f, WKV ".svh")] = false;
    f->skip[fixture_find(f, WKV ".trellis")] = true;
    refused(f, ERR_IDENTITY, "tensor " WKV ".trellis is missing");
}

static void foreign_codebooks_and_biases_are_refused(void **state)
{
    fixture *f = *state;
    marker(f, WKV ".mcg", 12345, 0, 1);
    refused(f, ERR_IDENTITY, WKV ".mcg: found multiplier 12345, wanted -877912083");
    f->skip[f->n - 1] = true;
    f->names[f->n - 1][0] = '-';
    marker(f, WKV ".mcg", fmt_exl3_codebook_marker(FMT_EXL3_MCG), 0, 1);
    marker(f, WKV ".mul1", fmt_exl3_codebook_marker(FMT_EXL3_MUL1), 0, 1);
    refused(f, ERR_IDENTITY, "found two codebooks of one weight");
    f->skip[f->n - 1] = true;
    put(f, WKV ".bias", FMT_DTYPE_F16, 1, 32, 1, 1);
    refused(f, ERR_IDENTITY, WKV ".bias is a bias");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(both_forms_of_a_weight_are_there),
        TEST(the_identity_covers_exl3),
        TEST(a_marker_says_the_codebook_whatever_its_shape),
        TEST(packed_signs_stand_for_factors),
        TEST(one_form_is_enough_for_the_arms_that_read_it),
        TEST(slices_of_wo_a_are_nothing_beside_the_official_one),
        TEST(a_trellis_of_another_shape_or_type_is_refused),
        TEST(factors_that_do_not_fit_or_are_no_numbers_are_refused),
        TEST(half_a_form_is_refused),
        TEST(foreign_codebooks_and_biases_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
