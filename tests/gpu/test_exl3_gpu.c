/* EXL3 on the card: tiles and A bit for bit, products inside their bound, experts, views cut anywhere, graphs. */
#include "gpu.h"

#include "base/mem.h"
#include "kernels/exl3.h"

#include <math.h>

enum { BLOCK = FMT_EXL3_BLOCK, TILE = FMT_EXL3_TILE };

static void *take(int64_t bytes)
{
    void *p = mem_alloc((size_t)bytes, 1);
    assert_non_null(p);
    return p;
}

/* ---- weights ---- */

/* A stored tensor [k, n], both multiples of 128, on both sides. */
typedef struct tensor {
    krn_weight host, dev;
    uint16_t *tiles, *suh, *svh; /* the host's */
} tensor;

/* +- [least, 2 least): scales are positive in no delivery. */
static void fill_scales(uint16_t *h, int64_t n, float least, uint64_t seed)
{
    for (int64_t i = 0; i < n; i++) {
        const float u = gpu_unit(seed, (uint64_t)i);
        h[i] = fp16_from_f32((u < 0 ? -1.0f : 1.0f) * least * (1 + fabsf(u)));
    }
}

/* in_file: tiles lie as in the file, else a block of columns together. */
static tensor tensor_make(int32_t bits, int32_t codebook, int32_t n, int32_t k, bool in_file, uint64_t seed)
{
    const int64_t tile = fmt_exl3_tile_bytes(bits), bytes = (int64_t)n / TILE * (k / TILE) * tile;
    tensor t = { .tiles = take(bytes), .suh = take(2 * k), .svh = take(2 * n) };
    for (int64_t i = 0; i < bytes / 4; i++) put_u32((uint8_t *)t.tiles + 4 * i, gpu_hash(seed, (uint64_t)i));
    fill_scales(t.suh, k, 0.01f, seed + 1);
    fill_scales(t.svh, n, 0.7f, seed + 2);
    t.host = (krn_weight){
        .format = KRN_W_EXL3, .n = n, .k = k, .data = t.tiles, .row_bytes = in_file ? n / TILE * tile : 8 * tile,
        .exl3 = { .bits = bits, .codebook = codebook, .block_bytes = in_file ? 8 * tile : k / TILE * 8 * tile, .suh = t.suh,
                  .svh = t.svh },
    };
    t.dev = t.host;
    t.dev.data = gpu_put(t.tiles, (size_t)bytes);
    t.dev.exl3.suh = gpu_put(t.suh, (size_t)k * 2);
    t.dev.exl3.svh = gpu_put(t.svh, (size_t)n * 2);
    return t;
}
static void tensor_free(tensor *t) { free(t->tiles), free(t->suh), free(t->svh); }

static krn_exl3_scratch scratch_make(uint64_t bytes) { return (krn_exl3_scratch){ gpu_out(bytes), bytes }; }

/* ---- decoding ---- */

static void every_tile_is_what_the_format_says(void **state)
{
    (void)state;
    for (int32_t codebook = 0; codebook < FMT_EXL3_CODEBOOKS; codebook++)
        for (int32_t bits = 1; bits <= FMT_EXL3_BITS_MAX; bits++) {
            enum { N = 384, K = 256 };
            err e = { 0 };
            tensor t = tensor_make(bits, codebook, N, K, bits % 2, (uint64_t)(codebook * 8 + bits));
            const krn_weight view = krn_weight_slice(&t.dev, 5, N - 9, 0, K);
            uint16_t *wanted = take(N * K * 2), *got = take(N * K * 2), *dev = gpu_out(N * K * 2);
            for (int32_t i = 0; i < K / TILE; i++)
                for (int32_t j = 0; j < N / TILE; j++) {
                    uint16_t s[FMT_EXL3_TILE_WEIGHTS];
                    fmt_exl3_unpack((const uint16_t *)((uint8_t *)t.tiles + i * t.host.row_bytes +
                                                       j / 8 * t.host.exl3.block_bytes + j % 8 * fmt_exl3_tile_bytes(bits)),
                                    bits, s);
                    for (int32_t p = 0; p < FMT_EXL3_TILE_WEIGHTS; p++) {
                        const int32_t at = fmt_exl3_place(p);
                        wanted[(i * TILE + at / TILE) * N + j * TILE + at % TILE] =
                            fmt_exl3_value((fmt_exl3_codebook)codebook, s[p]);
                    }
                }
            gpu_ok(krn_exl3_decode(&view, dev, gpu_stream(), &e), &e);
            gpu_get(dev, got, N * K * 2);
            char label[64];
            snprintf(label, sizeof label, "%s, %d bits", fmt_exl3_codebook_name((fmt_exl3_codebook)codebook), bits);
            gpu_same(label, got, wanted, N * K, 2);
            free(wanted), free(got);
            tensor_free(&t);
            gpu_free_all();
        }
}

/* ---- products ---- */

static void fill_rows(bf16 *x, int32_t T, int32_t k, uint64_t seed)
{
    for (int32_t t = 0; t < T; t++) gpu_fill_bf16(x + (int64_t)t * k, k, seed + (uint64_t)t, ldexpf(1.0f, t % 7 * 3 - 9));
}

/* y of the card, dense. dx [T, k]. */
static void run_linear(const krn_weight *dev, const bf16 *dx, int32_t T, krn_out out, void *y)
{
    err e = { 0 };
    const size_t bytes = (size_t)T * (size_t)dev->n * (out == KRN_OUT_BF16 ? 2 : 4);
    void *dy = gpu_out(bytes);
    gpu_ok(krn_exl3_linear(dx, dev->k, T, dev, out, dy, dev->n, scratch_make(krn_exl3_linear_scratch(T, dev->n, dev->k)),
                           gpu_stream(), &e), &e);
    gpu_get(dy, y, bytes);
}

/* Judges T rows of a view, and that rows 0, 3, 6, ... alone have the same bits. */
static void judge_linear(gpu_tally *tally, const krn_weight *host, const krn_weight *dev, int32_t T, krn_out out,
                         uint64_t seed)
{
    const int64_t n = host->n, k = host->k, elem = out == KRN_OUT_BF16 ? 2 : 4;
    bf16 *x = take(T * k * 2);
    uint8_t *y = take(T * n * elem), *one = take(n * elem);
    krn_span *span = take(T * n * (int64_t)sizeof *span);
    krn_linear_bound_job *jobs = take(T * (int64_t)sizeof *jobs);
    fill_rows(x, T, host->k, seed);
    for (int32_t t = 0; t < T; t++)
        jobs[t] = (krn_linear_bound_job){ .w = host, .x = x + t * k, .y = span + t * n };
    krn_linear_bound(jobs, T, KRN_RULE_PARITY);
    const bf16 *dx = gpu_put(x, (size_t)(T * k * 2));
    run_linear(dev, dx, T, out, y);
    for (int64_t i = 0; i < T * n; i++) {
        const double exact = krn_span_middle(span[i]), delta = krn_span_half(span[i]);
        if (out == KRN_OUT_BF16) gpu_judge_bf16(tally, i, exact, delta, ((bf16 *)y)[i]);
        else gpu_judge_f32(tally, i, exact, delta, ((float *)y)[i]);
    }
    for (int32_t t = 0; t < T; t += T > 8 ? T / 3 : 3) {
        run_linear(dev, dx + t * k, 1, out, one);
        gpu_same("a row alone", one, y + t * n * elem, n, (size_t)elem);
    }
    free(x), free(y), free(one), free(span), free(jobs);
}

static void every_format_is_legal(void **state)
{
    (void)state;
    for (int32_t codebook = 0; codebook < FMT_EXL3_CODEBOOKS; codebook++) {
        char label[64];
        snprintf(label, sizeof label, "%s, 1 to 8 bits", fmt_exl3_codebook_name((fmt_exl3_codebook)codebook));
        gpu_tally tally = { .label = label };
        for (int32_t bits = 1; bits <= FMT_EXL3_BITS_MAX; bits++) {
            tensor t = tensor_make(bits, codebook, 256, 640, bits % 2, 100 + (uint64_t)bits);
            judge_linear(&tally, &t.host, &t.dev, 9, KRN_OUT_F32, 7);
            tensor_free(&t);
            gpu_free_all();
        }
        gpu_tally_end(&tally, 0);
    }
}

static void any_number_of_rows_is_legal(void **state)
{
    (void)state;
    static const int32_t ROWS[] = { 1, 5, 8, 9, 20, 32, 33, 128 };
    gpu_tally f32 = { .label = "1 to 128 rows" }, b16 = { .label = "1 to 128 rows, bf16" };
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        tensor t = tensor_make(2, FMT_EXL3_MUL1, 256, 1152, i % 2, 200);
        judge_linear(&f32, &t.host, &t.dev, ROWS[i], KRN_OUT_F32, 8);
        judge_linear(&b16, &t.host, &t.dev, ROWS[i], KRN_OUT_BF16, 9);
        tensor_free(&t);
        gpu_free_all();
    }
    gpu_tally_end(&f32, 0);
    gpu_tally_end(&b16, 0.99);
}

/* The shapes of a rank, but the head's, of which a few blocks will do. */
static void official_shapes_are_legal(void **state)
{
    (void)state;
    if (getenv("SPARKTAPE_GPU_SMALL")) skip(); /* minutes under a checker, and the same loops as small shapes */
    static const struct { const char *name; int32_t bits, n, k, T; } SHAPES[] = {
        { "wq_a", 5, 1280, 5120, 5 },    { "wkv", 5, 512, 5120, 20 },     { "wq_b", 5, 16384, 1280, 5 },
        { "wo_b", 5, 5120, 4096, 5 },    { "shared w1", 5, 1152, 5120, 20 }, { "shared w2", 5, 5120, 1152, 20 },
        { "main_proj", 5, 1024, 15360, 5 }, { "head", 6, 2560, 5120, 20 },
    };
    for (size_t i = 0; i < sizeof SHAPES / sizeof *SHAPES; i++) {
        tensor t = tensor_make(SHAPES[i].bits, FMT_EXL3_MUL1, SHAPES[i].n, SHAPES[i].k, false, 300 + i);
        gpu_tally tally = { .label = SHAPES[i].name };
        judge_linear(&tally, &t.host, &t.dev, SHAPES[i].T, KRN_OUT_F32, 10 + i);
        gpu_tally_end(&tally, 0);
        tensor_free(&t);
        gpu_free_all();
    }
}

static void views_may_be_cut_anywhere(void **state)
{
    (void)state;
    static const struct { int32_t n0, n, k0, k; } CUTS[] = {
        { 0, 64, 0, 640 }, { 64, 64, 0, 640 }, { 0, 384, 320, 320 }, { 1, 1, 1, 1 }, { 127, 2, 127, 2 },
        { 100, 200, 37, 500 }, { 383, 1, 639, 1 }, { 128, 128, 256, 128 }, { 17, 367, 5, 635 },
    };
    gpu_tally tally = { .label = "cut views" };
    for (size_t i = 0; i < sizeof CUTS / sizeof *CUTS; i++) {
        tensor t = tensor_make(3 + (int32_t)i % 4, (int32_t)i % 3, 384, 640, i % 2, 400 + i);
        const krn_weight host = krn_weight_slice(&t.host, CUTS[i].n0, CUTS[i].n, CUTS[i].k0, CUTS[i].k);
        const krn_weight dev = krn_weight_slice(&t.dev, CUTS[i].n0, CUTS[i].n, CUTS[i].k0, CUTS[i].k);
        judge_linear(&tally, &host, &dev, 5, KRN_OUT_F32, 20 + i);
        tensor_free(&t);
        gpu_free_all();
    }
    gpu_tally_end(&tally, 0);
}

/* ---- A ---- */

static int32_t place_of(int32_t k) /* as kernels/exl3.h says of the scratch */
{
    const int32_t i = k % 32;
    return k - i + i % 8 / 2 * 8 + i / 16 * 4 + i % 16 / 8 * 2 + i % 2;
}

/* Rows of every kind: Gaussian of several sizes, the largest captured tap everywhere, one large among small, zeros, the
 * smallest and the largest numbers, an infinity, a NaN. */
static void a_has_the_twins_bits(void **state)
{
    (void)state;
    enum { N = 128, K = 1280, K0 = 70, VIEW = 1100, ROWS = 12, BLOCKS = 10 };
    err e = { 0 };
    tensor t = tensor_make(2, FMT_EXL3_MCG, N, K, false, 500);
    for (int cut = 0; cut < 2; cut++) {
        const int32_t k = cut ? VIEW : K;
        const krn_weight host = krn_weight_slice(&t.host, 0, N, cut ? K0 : 0, k);
        const krn_weight dev = krn_weight_slice(&t.dev, 0, N, cut ? K0 : 0, k);
        bf16 *x = take(ROWS * k * 2);
        fill_rows(x, ROWS, k, 40);
        for (int32_t i = 0; i < k; i++) {
            x[7 * k + i] = bf16_from_f32(gpu_unit(41, (uint64_t)i) < 0 ? -280576.0f : 280576.0f);
            x[8 * k + i] = 0;
            x[9 * k + i] = i % 3 == 0 ? 0x0001 : 0x8000; /* subnormal, -0 */
            x[10 * k + i] = i == 5 ? 0x7f80 : x[10 * k + i];
            x[11 * k + i] = i == 6 ? 0x7fff : i == 7 ? 0x7f7f : x[11 * k + i];
        }
        x[6 * k + 3] = bf16_from_f32(280576.0f);
        const uint64_t bytes = krn_exl3_linear_scratch(ROWS, N, k);
        const krn_exl3_scratch scratch = scratch_make(bytes);
        float y[ROWS * N];
        float *dy = gpu_out(sizeof y);
        const bf16 *dx = gpu_put(x, (size_t)(ROWS * k * 2));
        gpu_ok(krn_exl3_linear(dx, k, ROWS, &dev, KRN_OUT_F32, dy, N, scratch, gpu_stream(), &e), &e);
        uint8_t *memory = take((int64_t)bytes);
        gpu_get(scratch.memory, memory, bytes);
        gpu_get(dy, y, sizeof y);
        for (int32_t r = 0; r < ROWS; r++) {
            fp16 wanted[BLOCKS * BLOCK], got[BLOCKS * BLOCK];
            const int32_t s = krn_exl3_input_ref(x + r * k, &host, wanted);
            for (int32_t i = 0; i < BLOCKS * BLOCK; i++) got[i] = get_u16(memory + 2 * (r * BLOCKS * BLOCK + place_of(i)));
            char label[32];
            snprintf(label, sizeof label, "A, row %d", r);
            gpu_same(label, got, wanted, BLOCKS * BLOCK, 2);
            assert_int_equal((int32_t)get_u32(memory + (ROWS * BLOCKS * BLOCK * 2 + 255) / 256 * 256 + 4 * r), s);
            for (int32_t i = 0; i < N; i++) {
                if (r < 10) assert_true(isfinite(y[r * N + i]));
                else if (isnan(y[r * N + i])) assert_int_equal(f32_bits(y[r * N + i]), 0x7fc00000);
                else assert_true(isinf(y[r * N + i]));
                if (r == 8) assert_true(y[r * N + i] == 0);
            }
        }
        free(x), free(memory);
    }
    tensor_free(&t);
    gpu_free_all();
}

/* The sum over 120 blocks of taps as large as were captured: y is finite and right. */
static void large_taps_do_not_overflow(void **state)
{
    (void)state;
    enum { N = 128, K = 15360 };
    tensor t = tensor_make(5, FMT_EXL3_MUL1, N, K, false, 600);
    bf16 *x = take(K * 2);
    float y[N];
    krn_span span[N];
    gpu_tally tally = { .label = "main_proj's largest taps" };
    for (int32_t i = 0; i < K; i++) x[i] = bf16_from_f32((f32_from_fp16(t.suh[i]) < 0 ? -280576.0f : 280576.0f));
    const krn_linear_bound_job job = { .w = &t.host, .x = x, .y = span };
    krn_linear_bound(&job, 1, KRN_RULE_PARITY);
    run_linear(&t.dev, gpu_put(x, K * 2), 1, KRN_OUT_F32, y);
    for (int32_t i = 0; i < N; i++) gpu_judge_f32(&tally, i, krn_span_middle(span[i]), krn_span_half(span[i]), y[i]);
    gpu_tally_end(&tally, 0);
    free(x);
    tensor_free(&t);
    gpu_free_all();
}

/* ---- experts ---- */

/* A bank on both sides: expert i's tiles are at i * expert_bytes. */
typedef struct bank {
    krn_exl3_bank host, dev;
    int32_t matrices;
} bank;

static bank bank_make(int32_t bits, int32_t codebook, int32_t n_experts, int32_t n, int32_t k, int32_t matrices,
                      uint64_t seed)
{
    const int64_t bytes = (int64_t)n_experts * n * k * bits / 8;
    const int64_t n_suh = (int64_t)n_experts * matrices * k, n_svh = (int64_t)n_experts * n;
    uint8_t *tiles = take(bytes);
    uint16_t *suh = take(2 * n_suh), *svh = take(2 * n_svh);
    for (int64_t i = 0; i < bytes / 4; i++) put_u32(tiles + 4 * i, gpu_hash(seed, (uint64_t)i));
    fill_scales(suh, n_suh, 0.01f, seed + 1);
    fill_scales(svh, n_svh, 0.7f, seed + 2);
    bank b = { .host = { bits, codebook, n_experts, n, k, (uint16_t *)(void *)tiles, suh, svh }, .matrices = matrices };
    b.dev = b.host;
    b.dev.tiles = gpu_put(tiles, (size_t)bytes);
    b.dev.suh = gpu_put(suh, (size_t)(2 * n_suh));
    b.dev.svh = gpu_put(svh, (size_t)(2 * n_svh));
    return b;
}
static void bank_free(bank *b)
{
    free((void *)(uintptr_t)b->host.tiles);
    free((void *)(uintptr_t)b->host.suh);
    free((void *)(uintptr_t)b->host.svh);
}
/* Matrix m of an expert as a weight of the host. */
static krn_weight bank_weight(const bank *b, int32_t expert, int32_t m)
{
    const krn_exl3_bank *h = &b->host;
    const int32_t n = h->n / b->matrices;
    const int64_t tile = fmt_exl3_tile_bytes(h->bits), bytes = (int64_t)h->n * h->k * h->bits / 8;
    return (krn_weight){
        .format = KRN_W_EXL3, .n = n, .k = h->k, .row_bytes = 8 * tile,
        .data = (const uint8_t *)h->tiles + expert * bytes + m * (bytes / b->matrices),
        .exl3 = { .bits = h->bits, .codebook = h->codebook, .block_bytes = h->k / TILE * 8 * tile,
                  .suh = h->suh + ((int64_t)expert * b->matrices + m) * h->k,
                  .svh = h->svh + (int64_t)expert * h->n + m * n },
    };
}

/* All picks of rows [r0, r0 + rows) of one call: up [matrix][picks][inter] bf16, down [picks][n] f32. */
static void run_experts(const bank *b, const bf16 *dx, const int32_t *dids, int32_t r0, int32_t rows, int32_t picks,
                        void *y)
{
    err e = { 0 };
    const int64_t k = b->host.k, n = b->host.n, inter = n / 2, all = (int64_t)rows * picks;
    const krn_exl3_scratch scratch = scratch_make(krn_exl3_experts_scratch(rows, picks, b->host.n, b->host.k));
    const int32_t *ids = dids + r0 * picks;
    if (b->matrices == 2) {
        bf16 *gate = gpu_out((size_t)(all * inter * 2)), *up = gpu_out((size_t)(all * inter * 2));
        gpu_ok(krn_exl3_experts_up(dx + r0 * k, ids, rows, picks, &b->dev, gate, up, scratch, gpu_stream(), &e), &e);
        gpu_get(gate, y, (size_t)(all * inter * 2));
        gpu_get(up, (bf16 *)y + all * inter, (size_t)(all * inter * 2));
    } else {
        float *slot = gpu_out((size_t)(all * n * 4));
        const bf16 *h = dx + r0 * picks * k;
        gpu_ok(krn_exl3_experts_down(h, ids, rows, picks, &b->dev, slot, scratch, gpu_stream(), &e), &e);
        gpu_get(slot, y, (size_t)(all * n * 4));
    }
}

static void judge_experts(const char *label, const bank *b, const int32_t *ids, int32_t rows, int32_t picks, uint64_t seed)
{
    const bool up = b->matrices == 2;
    const int64_t k = b->host.k, n = b->host.n / b->matrices, all = (int64_t)rows * picks, x_rows = up ? rows : all;
    const int64_t elem = up ? 2 : 4, bytes = all * b->host.n * elem, one_bytes = picks * b->host.n * elem;
    bf16 *x = take(x_rows * k * 2);
    uint8_t *y = take(bytes), *one = take(one_bytes);
    krn_span *span = take(n * (int64_t)sizeof *span);
    gpu_tally tally = { .label = label };
    fill_rows(x, (int32_t)x_rows, b->host.k, seed);
    const bf16 *dx = gpu_put(x, (size_t)(x_rows * k * 2));
    const int32_t *dids = gpu_put(ids, (size_t)all * 4);
    run_experts(b, dx, dids, 0, rows, picks, y);
    for (int32_t m = 0; m < b->matrices; m++)
        for (int64_t p = 0; p < all; p++) {
            const bool known = ids[p] >= 0 && ids[p] < b->host.n_experts;
            const uint8_t *at = y + (m * all + p) * n * elem;
            if (!known) { /* not written */
                for (int64_t i = 0; i < n * elem; i++) assert_int_equal(at[i], 0xa5);
                continue;
            }
            const krn_weight w = bank_weight(b, ids[p], m);
            const krn_linear_bound_job job = { .w = &w, .x = x + (up ? p / picks : p) * k, .y = span };
            krn_linear_bound(&job, 1, KRN_RULE_PARITY);
            for (int64_t i = 0; i < n; i++) {
                const double exact = krn_span_middle(span[i]), delta = krn_span_half(span[i]);
                if (up) gpu_judge_bf16(&tally, p * n + i, exact, delta, ((const bf16 *)at)[i]);
                else gpu_judge_f32(&tally, p * n + i, exact, delta, ((const float *)at)[i]);
            }
        }
    for (int32_t r = 0; r < rows; r += rows > 6 ? rows / 3 : 2) { /* a row alone */
        run_experts(b, dx, dids, r, 1, picks, one);
        for (int32_t m = 0; m < b->matrices; m++)
            gpu_same(label, one + m * picks * n * elem, y + (m * all + r * picks) * n * elem, picks * n, (size_t)elem);
    }
    gpu_tally_end(&tally, up ? 0.99 : 0);
    free(x), free(y), free(one), free(span);
}

/* Some experts have many rows, some one, some none; ids out of range are among them. */
static void route(int32_t *ids, int32_t rows, int32_t picks, int32_t n_experts, bool wild)
{
    for (int32_t p = 0; p < rows * picks; p++) {
        const int32_t r = p / picks, j = p % picks;
        ids[p] = j == 0 ? n_experts - 1 : (r * 3 + j) % (n_experts - 1);
        if (wild && p % 5 == 2) ids[p] = p % 2 ? -1 - p : n_experts + 1000 * p;
    }
}

static void experts_are_legal(void **state)
{
    (void)state;
    static const struct { int32_t bits, codebook, rows, picks; bool wild; } CASES[] = {
        { 2, FMT_EXL3_MUL1, 5, 3, false }, { 2, FMT_EXL3_MCG, 20, 3, true },   { 2, FMT_EXL3_3INST, 1, 2, false },
        { 3, FMT_EXL3_MUL1, 40, 2, false }, { 4, FMT_EXL3_MUL1, 128, 3, true },
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++)
        for (int32_t matrices = 1; matrices <= 2; matrices++) {
            enum { EXPERTS = 7 };
            const int32_t rows = CASES[i].rows, picks = CASES[i].picks;
            int32_t ids[128 * 3];
            char label[64];
            bank b = bank_make(CASES[i].bits, CASES[i].codebook, EXPERTS, 256 * matrices, matrices == 2 ? 640 : 384,
                               matrices, 700 + i);
            route(ids, rows, picks, EXPERTS, CASES[i].wild);
            snprintf(label, sizeof label, "%s, %d rows%s", matrices == 2 ? "up" : "down", rows,
                     CASES[i].wild ? ", unknown ids" : "");
            judge_experts(label, &b, ids, rows, picks, 30 + i);
            bank_free(&b);
            gpu_free_all();
        }
}

static void official_experts_are_legal(void **state)
{
    (void)state;
    if (getenv("SPARKTAPE_GPU_SMALL")) skip();
    enum { EXPERTS = 8, ROWS = 5, PICKS = 3 };
    int32_t ids[ROWS * PICKS];
    route(ids, ROWS, PICKS, EXPERTS, false);
    bank up = bank_make(2, FMT_EXL3_MUL1, EXPERTS, 2304, 5120, 2, 800);
    judge_experts("official up", &up, ids, ROWS, PICKS, 50);
    bank_free(&up);
    bank down = bank_make(2, FMT_EXL3_MUL1, EXPERTS, 5120, 1152, 1, 900);
    judge_experts("official down", &down, ids, ROWS, PICKS, 60);
    bank_free(&down);
    gpu_free_all();
}

static void no_rows_and_no_known_expert_do_nothing(void **state)
{
    (void)state;
    err e = { 0 };
    bank b = bank_make(2, FMT_EXL3_MUL1, 4, 256, 128, 1, 1000);
    const int32_t ids[6] = { -1, 4, 99, -7, INT32_MAX, INT32_MIN };
    bf16 x[6 * 128] = { 0 };
    float slot[6 * 256];
    run_experts(&b, gpu_put(x, sizeof x), gpu_put(ids, sizeof ids), 0, 2, 3, slot);
    for (int i = 0; i < 6 * 256; i++) assert_int_equal(f32_bits(slot[i]), 0xa5a5a5a5u);
    const krn_exl3_scratch none = { NULL, 0 };
    gpu_ok(krn_exl3_experts_down(NULL, NULL, 0, 3, &b.dev, NULL, none, gpu_stream(), &e), &e);
    tensor t = tensor_make(2, FMT_EXL3_MUL1, 128, 128, false, 1);
    gpu_ok(krn_exl3_linear(NULL, 128, 0, &t.dev, KRN_OUT_F32, NULL, 128, none, gpu_stream(), &e), &e);
    tensor_free(&t);
    bank_free(&b);
    gpu_free_all();
}

/* ---- graphs ---- */

static void a_replayed_graph_has_the_same_bits(void **state)
{
    (void)state;
    enum { N = 384, K = 640, T = 5, PICKS = 3, EXPERTS = 6 };
    err e = { 0 };
    bool done;
    krn_graph *graph;
    tensor t = tensor_make(5, FMT_EXL3_MUL1, N, K, false, 1100);
    bank b = bank_make(2, FMT_EXL3_MUL1, EXPERTS, 2 * N, K, 2, 1200);
    bf16 *x = take(T * K * 2), y[T * N], again[T * N], up[2 * T * PICKS * N], up_again[2 * T * PICKS * N];
    int32_t ids[T * PICKS];
    fill_rows(x, T, K, 70);
    route(ids, T, PICKS, EXPERTS, false);
    bf16 *dx = gpu_put(x, T * K * 2), *dy = gpu_out(sizeof y), *dup = gpu_out(sizeof up);
    int32_t *dids = gpu_put(ids, sizeof ids);
    const krn_exl3_scratch one = scratch_make(krn_exl3_linear_scratch(T, N, K));
    const krn_exl3_scratch two = scratch_make(krn_exl3_experts_scratch(T, PICKS, 2 * N, K));
    run_linear(&t.dev, dx, T, KRN_OUT_BF16, y);
    run_experts(&b, dx, dids, 0, T, PICKS, up);

    /* Captured with other ids and rows than it runs with: nothing of them may be in the graph. */
    gpu_ok(krn_fill(dids, 0, sizeof ids, gpu_stream(), &e), &e);
    gpu_ok(krn_capture_begin(gpu_stream(), &e), &e);
    gpu_ok(krn_exl3_linear(dx, K, T, &t.dev, KRN_OUT_BF16, dy, N, one, gpu_stream(), &e), &e);
    gpu_ok(krn_exl3_experts_up(dx, dids, T, PICKS, &b.dev, dup, dup + T * PICKS * N, two, gpu_stream(), &e), &e);
    gpu_ok(krn_capture_end(gpu_stream(), &graph, &e), &e);
    assert_int_equal(krn_graph_nodes(graph), 6);
    for (int i = 0; i < 3; i++) {
        if (i == 1) gpu_ok(krn_copy(dids, ids, sizeof ids, gpu_stream(), &e), &e);
        gpu_ok(krn_graph_launch(graph, gpu_stream(), &e), &e);
        gpu_ok(krn_stream_wait(gpu_stream(), 0, &done, &e), &e);
    }
    gpu_get(dy, again, sizeof again);
    gpu_get(dup, up_again, sizeof up_again);
    gpu_same("linear", again, y, T * N, 2);
    gpu_same("experts", up_again, up, 2 * T * PICKS * N, 2);
    krn_graph_close(graph);
    free(x);
    tensor_free(&t);
    bank_free(&b);
    gpu_free_all();
}

/* ---- what is refused, what is seen ---- */

static void shapes_outside_the_contract_are_refused(void **state)
{
    (void)state;
    err e = { 0 };
    tensor t = tensor_make(2, FMT_EXL3_MUL1, 256, 256, false, 1);
    bank b = bank_make(2, FMT_EXL3_MUL1, 4, 256, 256, 2, 2);
    bf16 *x = gpu_out(65536), *y = gpu_out(65536);
    int32_t *ids = gpu_out(64);
    const uint64_t bytes = krn_exl3_linear_scratch(4, 256, 256);
    const krn_exl3_scratch good = scratch_make(krn_exl3_experts_scratch(40, 3, 256, 256));
    const krn_exl3_scratch small = { good.memory, bytes / 2 }, odd = { (uint8_t *)good.memory + 16, good.bytes - 16 };
    krn_weight bad[6] = { t.dev, t.dev, t.dev, t.dev, t.dev, t.dev };
    bad[0].exl3.bits = 9;
    bad[1].exl3.codebook = 3;
    bad[2].data = (const uint8_t *)t.dev.data + 8;
    bad[3].exl3.k0 = 128;
    bad[4].format = KRN_W_FP8;
    bad[5].n = 0;
    for (int i = 0; i < 6; i++) {
        assert_int_equal(krn_exl3_linear(x, 256, 4, &bad[i], KRN_OUT_F32, y, 256, good, gpu_stream(), &e), ERR_ARG);
        assert_int_equal(krn_exl3_decode(&bad[i], y, gpu_stream(), &e), ERR_ARG);
    }
    assert_int_equal(krn_exl3_linear(x, 256, 4, &t.dev, KRN_OUT_F32, y, 256, small, gpu_stream(), &e), ERR_ARG);
    assert_int_equal(krn_exl3_linear(x, 256, 4, &t.dev, KRN_OUT_F32, y, 256, odd, gpu_stream(), &e), ERR_ARG);
    assert_int_equal(krn_exl3_linear(x, 256, 129, &t.dev, KRN_OUT_F32, y, 256, good, gpu_stream(), &e), ERR_ARG);
    assert_int_equal(krn_exl3_linear(x, 256, -1, &t.dev, KRN_OUT_F32, y, 256, good, gpu_stream(), &e), ERR_ARG);
    krn_exl3_bank wrong[4] = { b.dev, b.dev, b.dev, b.dev };
    wrong[0].n = 384; /* w1 and w3 would share a block */
    wrong[1].k = 192;
    wrong[2].n_experts = 0;
    wrong[3].bits = 0;
    for (int i = 0; i < 4; i++)
        assert_int_equal(krn_exl3_experts_up(x, ids, 2, 3, &wrong[i], y, y, good, gpu_stream(), &e), ERR_ARG);
    assert_int_equal(krn_exl3_experts_up(x, ids, 200, 3, &b.dev, y, y, good, gpu_stream(), &e), ERR_ARG);
    tensor_free(&t);
    bank_free(&b);
    gpu_free_all();
}

/* Every sum of a block with one wrong tile out of its forty moves: most elements must be illegal, those of others none. */
static void the_verdict_sees_a_wrong_tile(void **state)
{
    (void)state;
    enum { N = 256, K = 640, TILE_BYTES = 160 };
    tensor t = tensor_make(5, FMT_EXL3_MUL1, N, K, false, 1300);
    bf16 x[K];
    float y[N];
    krn_span span[N];
    gpu_tally tally = { .label = "wrong tile, illegal wanted" }, other = { .label = "beside a wrong tile" };
    fill_rows(x, 1, K, 80);
    run_linear(&t.dev, gpu_put(x, sizeof x), 1, KRN_OUT_F32, y);
    for (int i = 0; i < TILE_BYTES; i++) ((uint8_t *)t.tiles)[7 * TILE_BYTES + i] ^= 0x55;
    const krn_linear_bound_job job = { .w = &t.host, .x = x, .y = span };
    krn_linear_bound(&job, 1, KRN_RULE_PARITY);
    for (int32_t i = 0; i < N; i++)
        gpu_judge_f32(i < BLOCK ? &tally : &other, i, krn_span_middle(span[i]), krn_span_half(span[i]), y[i]);
    assert_true(tally.illegal > 100);
    gpu_tally_end(&other, 0);
    tensor_free(&t);
    gpu_free_all();
}

int main(void)
{
    if (krn_device_count() == 0) return gpu_skip();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_tile_is_what_the_format_says),
        cmocka_unit_test(a_has_the_twins_bits),
        cmocka_unit_test(every_format_is_legal),
        cmocka_unit_test(any_number_of_rows_is_legal),
        cmocka_unit_test(views_may_be_cut_anywhere),
        cmocka_unit_test(large_taps_do_not_overflow),
        cmocka_unit_test(experts_are_legal),
        cmocka_unit_test(no_rows_and_no_known_expert_do_nothing),
        cmocka_unit_test(a_replayed_graph_has_the_same_bits),
        cmocka_unit_test(shapes_outside_the_contract_are_refused),
        cmocka_unit_test(the_verdict_sees_a_wrong_tile),
        cmocka_unit_test(official_shapes_are_legal),
        cmocka_unit_test(official_experts_are_legal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
