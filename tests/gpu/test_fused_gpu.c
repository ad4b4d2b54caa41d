/* Every launcher of kernels/fused.h against the launchers of its ops, one after the other, on the same card: all outputs,
 * bit for bit. Inputs hold NaN with payloads, infinities and zero rows; outputs lie between guards and are filled with a
 * pattern first. What the ops themselves must give is their own tests' matter. */
#include "kernels/fused.h"

#include "kernels/act_qdq.h"
#include "kernels/attention.h"
#include "kernels/combine.h"
#include "kernels/gate.h"
#include "kernels/mhc.h"
#include "kernels/rmsnorm.h"
#include "kernels/rope.h"
#include "kernels/swiglu.h"

#include "gpu.h"

#include <stdlib.h>

#define OK(call) gpu_ok(call, &e)

enum { SEPARATE, FUSED, WAYS, OUTPUTS_MAX = 5 };

/* Elements before every array: 0, or 1 to put all of them off 16-byte boundaries. */
static int shift;

/* ---- inputs ---- */

/* A row is all that one token has: a stream of several copies is one row. edges: row 1 of five has a NaN, row 2 is zero,
 * row 3 has an infinity and a NaN of the other sign; the others are plain. */
static bf16 *put_bf16(int64_t rows, int64_t cols, uint64_t seed, float scale, bool edges)
{
    int64_t n = rows * cols + shift;
    bf16 *x = malloc((size_t)n * sizeof *x), *row = x + shift;
    assert_non_null(x);
    gpu_fill_bf16(x, n, seed, scale);
    for (int64_t r = 0; edges && r < rows; r++, row += cols) {
        if (r % 5 == 1) row[gpu_hash(seed, (uint64_t)r) % (uint64_t)cols] = 0x7fc1;
        if (r % 5 == 3) row[0] = 0xffff;
        if (r % 5 == 3) row[cols - 1] = 0xff80;
        for (int64_t i = 0; r % 5 == 2 && i < cols; i++) row[i] = 0;
    }
    bf16 *dev = gpu_put(x, (size_t)n * sizeof *x);
    free(x);
    return dev + shift;
}

static float *put_f32(int64_t rows, int64_t cols, uint64_t seed, float scale, bool edges)
{
    int64_t n = rows * cols + shift;
    float *x = malloc((size_t)n * sizeof *x), *row = x + shift;
    assert_non_null(x);
    gpu_fill_f32(x, n, seed, scale);
    for (int64_t r = 0; edges && r < rows; r++, row += cols) {
        if (r % 5 == 1) row[gpu_hash(seed, (uint64_t)r) % (uint64_t)cols] = NAN;
        if (r % 5 == 3) row[cols - 1] = -INFINITY;
        for (int64_t i = 0; r % 5 == 2 && i < cols; i++) row[i] = 0; /* equal scores */
    }
    float *dev = gpu_put(x, (size_t)n * sizeof *x);
    free(x);
    return dev + shift;
}

static int32_t *put_i32(const int32_t *host, int64_t n) { return gpu_put(host, (size_t)n * sizeof *host); }

/* Positions of all sizes; the first ones are padding, the start and a long context. */
static int32_t *put_positions(int32_t rows)
{
    int32_t pos[256];
    assert_true(rows <= 256);
    for (int32_t i = 0; i < rows; i++)
        pos[i] = i == 0 ? -1 : i == 1 ? 0 : i == 2 ? 1 << 20 : (int32_t)(gpu_hash(77, (uint64_t)i) % 100000);
    return put_i32(pos, rows);
}

static float *put_freqs(int32_t rope_dim)
{
    float *freq = malloc((size_t)rope_dim / 2 * sizeof *freq);
    assert_non_null(freq);
    krn_rope_freqs(10000.0, rope_dim, freq);
    float *dev = gpu_put(freq, (size_t)rope_dim / 2 * sizeof *freq);
    free(freq);
    return dev;
}

/* ---- outputs ---- */

typedef struct output {
    uint8_t *base[WAYS];
    int64_t n; /* elements, with the shift */
    size_t size;
} output;
static output outputs[OUTPUTS_MAX];
static int n_outputs;

/* Two arrays, one for each way. */
static void take(void *way[WAYS], int64_t n, size_t size)
{
    assert_true(n_outputs < OUTPUTS_MAX);
    output *o = &outputs[n_outputs++];
    *o = (output){ .n = n + shift, .size = size };
    for (int i = 0; i < WAYS; i++) {
        o->base[i] = gpu_out((size_t)o->n * size);
        way[i] = o->base[i] + (size_t)shift * size;
    }
}

/* Ends a case. The elements of all outputs that differ; where none may, fails at the first. */
static int64_t compare(const char *label, bool may_differ)
{
    int64_t differ = 0;
    for (int i = 0; i < n_outputs; i++) {
        const output *o = &outputs[i];
        size_t bytes = (size_t)o->n * o->size;
        uint8_t *host[WAYS];
        char name[80];
        for (int k = 0; k < WAYS; k++) {
            host[k] = malloc(bytes);
            assert_non_null(host[k]);
            gpu_get(o->base[k], host[k], bytes);
        }
        snprintf(name, sizeof name, "%s, output %d", label, i);
        if (!may_differ) gpu_same(name, host[FUSED], host[SEPARATE], o->n, o->size);
        for (int64_t j = 0; j < o->n; j++)
            differ += memcmp(host[FUSED] + (size_t)j * o->size, host[SEPARATE] + (size_t)j * o->size, o->size) != 0;
        for (int k = 0; k < WAYS; k++) free(host[k]);
    }
    gpu_free_all();
    n_outputs = 0;
    return differ;
}

/* ---- one case of each launcher ---- off, or other, is added to an argument of the fused call: outputs may then differ */

static const float EPS = 0.25f;

static int64_t collapse_norm(int32_t rows, int32_t hc, int32_t dim, bool quantised, float off)
{
    err e = { 0 };
    void *collapsed[WAYS], *norm[WAYS], *q[WAYS] = { NULL };
    krn_stream s = gpu_stream();
    bf16 *x = put_bf16(rows, (int64_t)hc * dim, 1, 2.0f, true), *w = put_bf16(1, dim, 2, 1.0f, false);
    float *pre = put_f32(rows, hc, 3, 1.0f, false);
    int64_t n = (int64_t)rows * dim;
    take(collapsed, n, 2);
    take(norm, n, 2);
    if (quantised) take(q, n, 2);
    OK(krn_mhc_collapse(x, pre, collapsed[0], rows, hc, dim, s, &e));
    OK(krn_rmsnorm(collapsed[0], dim, w, norm[0], dim, rows, dim, EPS, s, &e));
    if (quantised) OK(krn_act_qdq(norm[0], dim, q[0], dim, rows, dim, s, &e));
    OK(krn_collapse_rmsnorm_qdq(x, pre, w, rows, hc, dim, EPS + off, collapsed[1], norm[1], q[1], s, &e));
    return compare("collapse_rmsnorm_qdq", off != 0);
}

static int64_t norm_qdq(int32_t rows, int32_t dim, float off)
{
    err e = { 0 };
    void *norm[WAYS], *q[WAYS];
    krn_stream s = gpu_stream();
    bf16 *x = put_bf16(rows, dim, 11, 2.0f, true), *w = put_bf16(1, dim, 12, 1.0f, false);
    int64_t n = (int64_t)rows * dim;
    take(norm, n, 2);
    take(q, n, 2);
    OK(krn_rmsnorm(x, dim, w, norm[0], dim, rows, dim, EPS, s, &e));
    OK(krn_act_qdq(norm[0], dim, q[0], dim, rows, dim, s, &e));
    OK(krn_rmsnorm_qdq(x, w, rows, dim, EPS + off, norm[1], q[1], s, &e));
    return compare("rmsnorm_qdq", off != 0);
}

static int64_t norm_rope_qdq(int32_t rows, int32_t head_dim, int32_t rope_dim, float off)
{
    err e = { 0 };
    void *norm[WAYS], *rotated[WAYS], *q[WAYS];
    krn_stream s = gpu_stream();
    bf16 *x = put_bf16(rows, head_dim, 21, 2.0f, true), *w = put_bf16(1, head_dim, 22, 1.0f, false);
    const int32_t *pos = put_positions(rows);
    const float *freq = put_freqs(rope_dim);
    int64_t n = (int64_t)rows * head_dim;
    take(norm, n, 2);
    take(rotated, n, 2);
    take(q, n, 2);
    OK(krn_rmsnorm(x, head_dim, w, norm[0], head_dim, rows, head_dim, EPS, s, &e));
    OK(krn_rope(norm[0], rotated[0], rows, 1, head_dim, rope_dim, pos, freq, false, s, &e));
    OK(krn_act_qdq(rotated[0], head_dim, q[0], head_dim, rows, head_dim, s, &e));
    OK(krn_rmsnorm_rope_qdq(x, w, rows, head_dim, rope_dim, pos, freq, EPS + off, norm[1], rotated[1], q[1], s, &e));
    return compare("rmsnorm_rope_qdq", off != 0);
}

static int64_t norm_pair(int32_t rows, int32_t dim, int32_t head_dim, int32_t rope_dim, float off)
{
    err e = { 0 };
    void *latent[WAYS], *latent_q[WAYS], *norm[WAYS], *rotated[WAYS], *q[WAYS];
    krn_stream s = gpu_stream();
    bf16 *x = put_bf16(rows, dim, 11, 2.0f, true), *w = put_bf16(1, dim, 12, 1.0f, false);
    bf16 *kv_x = put_bf16(rows, head_dim, 21, 2.0f, true), *kv_w = put_bf16(1, head_dim, 22, 1.0f, false);
    const int32_t *pos = put_positions(rows);
    const float *freq = put_freqs(rope_dim);
    const int64_t n = (int64_t)rows * dim, n_kv = (int64_t)rows * head_dim;
    take(latent, n, 2);
    take(latent_q, n, 2);
    take(norm, n_kv, 2);
    take(rotated, n_kv, 2);
    take(q, n_kv, 2);
    OK(krn_rmsnorm(x, dim, w, latent[0], dim, rows, dim, EPS, s, &e));
    OK(krn_act_qdq(latent[0], dim, latent_q[0], dim, rows, dim, s, &e));
    OK(krn_rmsnorm(kv_x, head_dim, kv_w, norm[0], head_dim, rows, head_dim, EPS, s, &e));
    OK(krn_rope(norm[0], rotated[0], rows, 1, head_dim, rope_dim, pos, freq, false, s, &e));
    OK(krn_act_qdq(rotated[0], head_dim, q[0], head_dim, rows, head_dim, s, &e));
    const krn_norm_side side = { x, w, dim, latent[1], latent_q[1] }, kv = { kv_x, kv_w, head_dim, norm[1], q[1] };
    OK(krn_rmsnorm_pair_qdq(&side, &kv, rows, rope_dim, pos, freq, EPS + off, rotated[1], s, &e));
    return compare("rmsnorm_pair_qdq", off != 0);
}

static int64_t attention(int32_t batch, int32_t n_block, int32_t window, int32_t heads, int32_t head_dim, int32_t rope_dim,
                         bool rotate, float off)
{
    static const int32_t SLOT[] = { 3, 0, 4, 1 }, LAST[] = { 1000, -1, 6, 130 };
    enum { N_SLOTS = 5 };
    err e = { 0 };
    void *q_rotated[WAYS] = { NULL }, *attended[WAYS], *o[WAYS], *o_qdq[WAYS];
    krn_stream s = gpu_stream();
    int32_t rows = batch * n_block, width = heads * head_dim;
    int64_t stride = (int64_t)window * head_dim + 8, n = (int64_t)rows * width;
    const float scale = 1.0f / sqrtf((float)head_dim);
    bf16 *q = put_bf16((int64_t)rows * heads, head_dim, 31, 2.0f, heads > 2);
    bf16 *rings = put_bf16(N_SLOTS, stride, 32, 1.0f, false), *kv = put_bf16(rows, head_dim, 33, 1.0f, batch > 2);
    const float *sink = put_f32(heads, 1, 34, 2.0f, heads > 2), *freq = put_freqs(rope_dim);
    const int32_t *slot = put_i32(SLOT, batch), *last = put_i32(LAST, batch), *pos = put_positions(rows);
    if (rotate) take(q_rotated, n, 2);
    take(attended, n, 2);
    take(o, n, 2);
    take(o_qdq, n, 2);
    if (rotate) OK(krn_rope(q, q_rotated[0], rows, heads, head_dim, rope_dim, pos, freq, false, s, &e));
    OK(krn_attention(rotate ? q_rotated[0] : q, rings, stride, slot, last, window, kv, batch, n_block, sink, scale, heads,
                     head_dim, attended[0], s, &e));
    OK(krn_rope(attended[0], o[0], rows, heads, head_dim, rope_dim, pos, freq, true, s, &e));
    OK(krn_act_qdq(o[0], width, o_qdq[0], width, rows, width, s, &e));
    OK(krn_attention_rope_qdq(q, rings, stride, slot, last, window, kv, batch, n_block, sink, scale + off, heads, head_dim,
                              rope_dim, pos, freq, q_rotated[1], attended[1], o[1], o_qdq[1], s, &e));
    return compare("attention_rope_qdq", off != 0);
}

static int64_t swiglu(int32_t rows, int32_t cols, bool routed, float off)
{
    err e = { 0 };
    void *h[WAYS], *q[WAYS];
    krn_stream s = gpu_stream();
    const float limit = 3.0f;
    bf16 *g = put_bf16(rows, cols, 41, 3.0f, true), *u = put_bf16(rows, cols, 42, 3.0f, rows > 8);
    const float *weight = routed ? put_f32(rows, 1, 43, 1.0f, rows > 8) : NULL;
    int64_t n = (int64_t)rows * cols;
    take(h, n, 2);
    take(q, n, 2);
    OK(krn_swiglu(g, u, weight, limit, h[0], rows, cols, s, &e));
    OK(krn_act_qdq(h[0], cols, q[0], cols, rows, cols, s, &e));
    OK(krn_swiglu_qdq(g, u, weight, limit + off, h[1], q[1], rows, cols, s, &e));
    return compare("swiglu_qdq", off != 0);
}

static int64_t gate(int32_t rows, int32_t n_experts, int32_t k, float off)
{
    err e = { 0 };
    void *scores[WAYS], *ids[WAYS], *weights[WAYS];
    krn_stream s = gpu_stream();
    const float *logits = put_f32(rows, n_experts, 51, 8.0f, true), *bias = put_f32(1, n_experts, 52, 0.5f, false);
    take(scores, (int64_t)rows * n_experts, 4);
    take(ids, (int64_t)rows * k, 4);
    take(weights, (int64_t)rows * k, 4);
    OK(krn_gate_scores(logits, scores[0], rows, n_experts, s, &e));
    OK(krn_gate_topk(scores[0], bias, rows, n_experts, k, 2.5f, ids[0], weights[0], s, &e));
    OK(krn_gate_select(logits, bias, rows, n_experts, k, 2.5f + off, scores[1], ids[1], weights[1], s, &e));
    return compare("gate_select", off != 0);
}

/* What the two runs that end in expand share. post has a value more, so that other = 1 can take the next one each. */
typedef struct mixing {
    bf16 *x;
    float *post, *comb;
} mixing;
static mixing mixing_put(int32_t rows, int32_t hc, int32_t dim)
{
    return (mixing){ put_bf16(rows, (int64_t)hc * dim, 61, 2.0f, true), put_f32(rows + 1, hc, 62, 1.0f, false),
                     put_f32(rows, (int64_t)hc * hc, 63, 1.0f, false) };
}

static int64_t round_expand(int32_t rows, int32_t hc, int32_t dim, int32_t other)
{
    err e = { 0 };
    void *y[WAYS], *out[WAYS];
    krn_stream s = gpu_stream();
    const mixing m = mixing_put(rows, hc, dim);
    const float *sum = put_f32(rows, dim, 71, 1.0f, true);
    int64_t n = (int64_t)rows * dim;
    take(y, n, 2);
    take(out, n * hc, 2);
    OK(krn_round_bf16(sum, y[0], n, s, &e));
    OK(krn_mhc_expand(y[0], m.x, m.post, m.comb, out[0], rows, hc, dim, s, &e));
    OK(krn_round_expand(sum, m.x, m.post + other, m.comb, rows, hc, dim, y[1], out[1], s, &e));
    return compare("round_expand", other != 0);
}

static int64_t combine_expand(int32_t rows, int32_t k, int32_t hc, int32_t dim, int32_t other)
{
    err e = { 0 };
    void *y[WAYS], *out[WAYS];
    krn_stream s = gpu_stream();
    const mixing m = mixing_put(rows, hc, dim);
    int64_t n = (int64_t)rows * dim, picks = (int64_t)rows * k;
    int32_t *ids = malloc((size_t)picks * sizeof *ids);
    assert_non_null(ids);
    for (int64_t i = 0; i < picks; i++) ids[i] = (int32_t)(gpu_hash(80, (uint64_t)i) % 128); /* now and then equal ones */
    const int32_t *dev_ids = put_i32(ids, picks);
    free(ids);
    const float *slot = put_f32(picks, dim, 81, 1.0f, true), *shared = put_f32(rows, dim, 82, 1.0f, false);
    take(y, n, 2);
    take(out, n * hc, 2);
    OK(krn_combine_exact(slot, dev_ids, shared, y[0], rows, k, dim, s, &e));
    OK(krn_mhc_expand(y[0], m.x, m.post, m.comb, out[0], rows, hc, dim, s, &e));
    OK(krn_combine_expand(slot, dev_ids, shared, m.x, m.post + other, m.comb, rows, k, hc, dim, y[1], out[1], s,
                          &e));
    return compare("combine_expand", other != 0);
}

/* From a sub-block's sums (combine: of picks, k > 0) to the next one's input. */
static int64_t expand_norm(int32_t rows, int32_t k, int32_t hc, int32_t dim, bool quantised, float off)
{
    err e = { 0 };
    void *y[WAYS], *out[WAYS], *collapsed[WAYS], *norm[WAYS], *q[WAYS] = { NULL };
    krn_stream s = gpu_stream();
    const mixing m = mixing_put(rows, hc, dim);
    const int64_t n = (int64_t)rows * dim, picks = (int64_t)rows * k;
    int32_t *ids = malloc((size_t)(picks + 1) * sizeof *ids);
    assert_non_null(ids);
    for (int64_t i = 0; i < picks; i++) ids[i] = (int32_t)(gpu_hash(180, (uint64_t)i) % 128);
    const int32_t *dev_ids = put_i32(ids, picks + 1);
    free(ids);
    /* Of combine no slot is infinite: every row would be. */
    const float *sum = put_f32(k ? picks : rows, dim, 181, 1.0f, k == 0), *shared = put_f32(rows, dim, 182, 1.0f, false);
    const float *pre = put_f32(rows, hc, 183, 1.0f, false);
    const bf16 *w = put_bf16(1, dim, 184, 1.0f, false);
    take(y, n, 2);
    take(out, n * hc, 2);
    take(collapsed, n, 2);
    take(norm, n, 2);
    if (quantised) take(q, n, 2);
    if (k) OK(krn_combine_exact(sum, dev_ids, shared, y[0], rows, k, dim, s, &e));
    else OK(krn_round_bf16(sum, y[0], n, s, &e));
    OK(krn_mhc_expand(y[0], m.x, m.post, m.comb, out[0], rows, hc, dim, s, &e));
    OK(krn_mhc_collapse(out[0], pre, collapsed[0], rows, hc, dim, s, &e));
    OK(krn_rmsnorm(collapsed[0], dim, w, norm[0], dim, rows, dim, EPS, s, &e));
    if (quantised) OK(krn_act_qdq(norm[0], dim, q[0], dim, rows, dim, s, &e));
    if (k)
        OK(krn_combine_expand_norm(sum, dev_ids, shared, m.x, m.post, m.comb, pre, w, rows, k, hc, dim, EPS + off, y[1],
                                   out[1], collapsed[1], norm[1], q[1], s, &e));
    else
        OK(krn_round_expand_norm(sum, m.x, m.post, m.comb, pre, w, rows, hc, dim, EPS + off, y[1], out[1], collapsed[1],
                                 norm[1], q[1], s, &e));
    return compare(k ? "combine_expand_norm" : "round_expand_norm", off != 0);
}

/* ---- tests ---- */

static void official_shapes_have_the_bits_of_the_ops(void **state)
{
    (void)state;
    for (int32_t batch = 1; batch <= 4; batch++) {
        int32_t rows = 5 * batch;
        collapse_norm(rows, 4, 5120, true, 0);
        collapse_norm(rows, 4, 5120, false, 0);
        norm_qdq(rows, 5120, 0);
        norm_qdq(rows, 1280, 0);
        norm_rope_qdq(rows, 512, 64, 0);
        norm_pair(rows, 1280, 512, 64, 0);
        attention(batch, 5, 128, 64, 512, 64, false, 0);
        attention(batch, 5, 128, 64, 512, 64, true, 0);
        attention(batch, 5, 128, 32, 512, 64, false, 0);
        attention(batch, 5, 128, 32, 512, 64, true, 0);
        swiglu(3 * rows, 1152, true, 0);
        swiglu(rows, 2304, false, 0);
        gate(rows, 128, 3, 0);
        round_expand(rows, 4, 5120, 0);
        combine_expand(rows, 3, 4, 5120, 0);
        expand_norm(rows, 0, 4, 5120, true, 0);
        expand_norm(rows, 3, 4, 5120, true, 0);
    }
    norm_qdq(128, 5120, 0);
    norm_rope_qdq(128, 512, 64, 0);
}

static void small_shapes_have_the_bits_of_the_ops(void **state)
{
    (void)state;
    for (int32_t hc = 1; hc <= 8; hc++) {
        collapse_norm(7, hc, 64, true, 0);
        round_expand(7, hc, 64, 0);
        combine_expand(7, hc, hc, 64, 0);
        expand_norm(7, 0, hc, 96, true, 0);
        expand_norm(7, hc, hc, 96, false, 0);
    }
    norm_qdq(7, 32, 0);
    norm_qdq(1, 96, 0);
    norm_rope_qdq(7, 64, 16, 0);
    norm_rope_qdq(7, 32, 32, 0);
    norm_rope_qdq(7, 96, 2, 0);
    norm_rope_qdq(7, 128, 42, 0); /* the tail starts inside a group of eight */
    for (int32_t rows = 1; rows <= 20; rows++) norm_pair(rows, 96, 64, 16, 0);
    norm_pair(7, 32, 1280, 42, 0); /* the second is the longer one */
    attention(4, 5, 16, 4, 64, 16, false, 0);
    attention(4, 5, 16, 4, 64, 16, true, 0);
    attention(2, 5, 16, 4, 128, 32, false, 0);
    attention(2, 5, 16, 4, 128, 32, true, 0);
    attention(3, 9, 16, 3, 96, 42, false, 0); /* two groups of queries */
    attention(3, 9, 16, 3, 96, 42, true, 0);
    attention(1, 1, 0, 1, 32, 32, false, 0);
    attention(1, 1, 0, 1, 32, 32, true, 0);
    swiglu(7, 32, true, 0);
    swiglu(3, 96, false, 0);
    gate(7, 8, 3, 0);
    gate(1, 1, 1, 0);
    gate(9, 33, 32, 0);
}

/* Dimensions that are not a multiple of 8, rows longer than a block holds, all arrays off their boundaries. */
static void odd_shapes_have_the_bits_of_the_ops(void **state)
{
    (void)state;
    for (shift = 0; shift <= 1; shift++) {
        collapse_norm(6, 4, 37, false, 0);
        collapse_norm(6, 4, 96, true, 0);
        collapse_norm(3, 4, 8192 + 64, true, 0);
        collapse_norm(3, 2, 3 * 8192 + 3, false, 0);
        norm_qdq(6, 8192 + 64, 0);
        norm_qdq(6, 480, 0);
        norm_rope_qdq(6, 8192 + 32, 8192, 0);
        norm_rope_qdq(6, 160, 64, 0);
        norm_pair(6, 8192 + 64, 160, 64, 0); /* one row longer than a block holds, or both */
        norm_pair(6, 480, 8192 + 32, 8192, 0);
        norm_pair(6, 3 * 8192 + 32, 8192 + 64, 64, 0);
        attention(2, 5, 20, 3, 160, 64, false, 0);
        attention(2, 5, 20, 3, 160, 64, true, 0);
        attention(2, 3, 300, 3, 512, 64, false, 0); /* keys in more than one chunk; by the plain kernel where shifted */
        attention(2, 3, 300, 3, 512, 64, true, 0);
        attention(2, 3, 150, 2, 544, 64, false, 0); /* the plain kernel */
        attention(2, 3, 150, 2, 544, 64, true, 0);
        swiglu(6, 288, true, 0);
        gate(6, 130, 7, 0);
        round_expand(6, 4, 37, 0);
        round_expand(6, 4, 1000, 0);
        combine_expand(6, 9, 4, 37, 0);
        combine_expand(6, 5, 4, 1000, 0);
        expand_norm(6, 0, 4, 37, false, 0);
        expand_norm(6, 5, 4, 1000, false, 0);
        expand_norm(6, 4, 2, 8224, true, 0); /* two launches */
    }
    shift = 0;
    gate(3, KRN_GATE_SELECT_EXPERTS_MAX, 6, 0);
    combine_expand(3, 300, 2, 64, 0);
}

/* Every bf16 there is as a gate: near ties of bf16 the exponential is taken in double, per element. */
static void every_gate_has_the_bits_of_the_ops(void **state)
{
    (void)state;
    enum { N = 1 << 16 };
    static bf16 g[N];
    err e = { 0 };
    void *h[WAYS], *q[WAYS];
    krn_stream s = gpu_stream();
    for (int i = 0; i < N; i++) g[i] = (bf16)(i * 40503);
    bf16 *gate_dev = gpu_put(g, sizeof g), *u = put_bf16(1, N, 90, 3.0f, false);
    take(h, N, 2);
    take(q, N, 2);
    OK(krn_swiglu(gate_dev, u, NULL, INFINITY, h[0], 4, N / 4, s, &e));
    OK(krn_act_qdq(h[0], N / 4, q[0], N / 4, 4, N / 4, s, &e));
    OK(krn_swiglu_qdq(gate_dev, u, NULL, INFINITY, h[1], q[1], 4, N / 4, s, &e));
    compare("every gate", false);
}

static void a_fused_call_with_another_argument_is_seen(void **state)
{
    (void)state;
    assert_true(collapse_norm(5, 4, 512, true, 0.25f) > 0);
    assert_true(norm_qdq(5, 512, 0.25f) > 0);
    assert_true(norm_rope_qdq(5, 512, 64, 0.25f) > 0);
    assert_true(norm_pair(5, 1280, 512, 64, 0.25f) > 0);
    assert_true(attention(1, 5, 16, 4, 64, 16, false, 0.25f) > 0);
    assert_true(attention(1, 5, 16, 4, 64, 16, true, 0.25f) > 0);
    assert_true(swiglu(5, 256, true, -1.0f) > 0);
    assert_true(gate(5, 128, 3, 0.5f) > 0);
    assert_true(round_expand(5, 4, 512, 1) > 0);
    assert_true(combine_expand(5, 3, 4, 512, 1) > 0);
    assert_true(expand_norm(5, 0, 4, 512, true, 1) > 0);
    assert_true(expand_norm(5, 3, 4, 512, false, 1) > 0);
}

static void shapes_outside_the_contract_are_refused(void **state)
{
    (void)state;
    err e = { 0 };
    krn_stream s = gpu_stream();
    bf16 *some = gpu_out(64); /* never touched */
#define COLLAPSE(rows, hc, dim, q) krn_collapse_rmsnorm_qdq(some, NULL, NULL, rows, hc, dim, 1, NULL, NULL, q, s, &e)
    assert_int_equal(COLLAPSE(-1, 4, 64, NULL), ERR_ARG);
    assert_int_equal(COLLAPSE(1, 9, 64, NULL), ERR_ARG);
    assert_int_equal(COLLAPSE(1, 4, 0, NULL), ERR_ARG);
    assert_int_equal(COLLAPSE(1, 4, 65, some), ERR_ARG);
    OK(COLLAPSE(0, 4, 65, NULL));
#define NORM(rows, dim) krn_rmsnorm_qdq(some, NULL, rows, dim, 1, NULL, NULL, s, &e)
    assert_int_equal(NORM(-1, 64), ERR_ARG);
    assert_int_equal(NORM(1, 48), ERR_ARG);
    assert_int_equal(NORM(1, 0), ERR_ARG);
    OK(NORM(0, 64));
#define NORM_ROPE(rows, head_dim, rope_dim) \
    krn_rmsnorm_rope_qdq(some, NULL, rows, head_dim, rope_dim, NULL, NULL, 1, NULL, NULL, NULL, s, &e)
    assert_int_equal(NORM_ROPE(-1, 64, 16), ERR_ARG);
    assert_int_equal(NORM_ROPE(1, 48, 16), ERR_ARG);
    assert_int_equal(NORM_ROPE(1, 64, 66), ERR_ARG);
    assert_int_equal(NORM_ROPE(1, 64, 15), ERR_ARG);
    assert_int_equal(NORM_ROPE(1, 64, 0), ERR_ARG);
    assert_int_equal(NORM_ROPE(1, 8224, 8194), ERR_ARG);
    OK(NORM_ROPE(0, 64, 16));
#define PAIR(rows, dim, head_dim, rope_dim)                                                                       \
    krn_rmsnorm_pair_qdq(&(krn_norm_side){ some, some, dim, some, some },                                         \
                         &(krn_norm_side){ some, some, head_dim, some, some }, rows, rope_dim, NULL, NULL, 1, some, s, &e)
    assert_int_equal(PAIR(-1, 64, 64, 16), ERR_ARG);
    assert_int_equal(PAIR(1, 48, 64, 16), ERR_ARG);
    assert_int_equal(PAIR(1, 64, 48, 16), ERR_ARG);
    assert_int_equal(PAIR(1, 64, 64, 66), ERR_ARG);
    OK(PAIR(0, 64, 64, 16));
#define ATTENTION(batch, n_block, head_dim, rope_dim)                                                                    \
    krn_attention_rope_qdq(some, some, 1 << 20, NULL, NULL, 16, some, batch, n_block, NULL, 1, 4, head_dim, rope_dim,   \
                           NULL, NULL, NULL, some, some, some, s, &e)
    assert_int_equal(ATTENTION(-1, 5, 64, 16), ERR_ARG);
    assert_int_equal(ATTENTION(1, 0, 64, 16), ERR_ARG);
    assert_int_equal(ATTENTION(1, 5, 48, 16), ERR_ARG);
    assert_int_equal(ATTENTION(1, 5, 64, 66), ERR_ARG);
    assert_int_equal(ATTENTION(1, 5, 64, 3), ERR_ARG);
    assert_int_equal(ATTENTION(1, 5, KRN_ATTENTION_HEAD_DIM_MAX + 32, 16), ERR_ARG);
    OK(ATTENTION(0, 5, 64, 16));
#define SWIGLU(rows, cols) krn_swiglu_qdq(some, NULL, NULL, 1, NULL, NULL, rows, cols, s, &e)
    assert_int_equal(SWIGLU(-1, 32), ERR_ARG);
    assert_int_equal(SWIGLU(1, 33), ERR_ARG);
    OK(SWIGLU(0, 32));
    OK(SWIGLU(1, 0));
#define GATE(rows, n_experts, k) krn_gate_select(NULL, NULL, rows, n_experts, k, 1, NULL, NULL, NULL, s, &e)
    assert_int_equal(GATE(-1, 8, 3), ERR_ARG);
    assert_int_equal(GATE(1, 8, 9), ERR_ARG);
    assert_int_equal(GATE(1, 8, 0), ERR_ARG);
    assert_int_equal(GATE(1, 64, KRN_GATE_PICKS_MAX + 1), ERR_ARG);
    assert_int_equal(GATE(1, KRN_GATE_SELECT_EXPERTS_MAX + 1, 3), ERR_ARG);
    OK(GATE(0, 8, 3));
#define ROUND(rows, hc, dim) krn_round_expand(NULL, some, NULL, NULL, rows, hc, dim, NULL, NULL, s, &e)
    assert_int_equal(ROUND(-1, 4, 64), ERR_ARG);
    assert_int_equal(ROUND(1, 0, 64), ERR_ARG);
    OK(ROUND(0, 4, 64));
#define COMBINE(rows, k, hc) krn_combine_expand(NULL, NULL, NULL, some, NULL, NULL, rows, k, hc, 64, NULL, NULL, s, &e)
    assert_int_equal(COMBINE(-1, 3, 4), ERR_ARG);
    assert_int_equal(COMBINE(1, 0, 4), ERR_ARG);
    assert_int_equal(COMBINE(1, 4097, 4), ERR_ARG);
    assert_int_equal(COMBINE(1, 3, 9), ERR_ARG);
    OK(COMBINE(0, 3, 4));
    gpu_free_all();
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(official_shapes_have_the_bits_of_the_ops),
    cmocka_unit_test(small_shapes_have_the_bits_of_the_ops),
    cmocka_unit_test(odd_shapes_have_the_bits_of_the_ops),
    cmocka_unit_test(every_gate_has_the_bits_of_the_ops),
    cmocka_unit_test(a_fused_call_with_another_argument_is_seen),
    cmocka_unit_test(shapes_outside_the_contract_are_refused),
};
GPU_MAIN(tests)
