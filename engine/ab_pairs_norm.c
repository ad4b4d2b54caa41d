/* Pairs around norms and attention: runs of ops, and the one launch of kernels/fused.h that stands for them. The fused
 * launches have no twins: their reference is the ops, and so the CPU runs those for both sides. */
#include "engine/ab_sides.h"

#include "engine/noise.h"
#include "kernels/act_qdq.h"
#include "kernels/attention.h"
#include "kernels/fused.h"
#include "kernels/mhc.h"
#include "kernels/rmsnorm.h"
#include "kernels/rope.h"

static const float EPS = 1e-20f;
enum { BF16_BYTES = 2, F32_BYTES = 4 };

/* Positions of all sizes. The first ones are padding, the start, and a long context. */
static void fill_positions(const ab_inputs *in, int32_t *pos, int32_t rows)
{
    const uint64_t key = eng_noise_key(in->seed, "pos");
    for (int32_t i = 0; i < rows; i++)
        pos[i] = i == 0 ? -1 : i == 1 ? 0 : i == 2 ? 1 << 20 : (int32_t)(eng_noise_bits(key, (uint64_t)i) % 100000);
}

/* ---- collapse, rmsnorm, qdq ---- */

enum { C_DIM, C_HC };
enum { C_X, C_PRE, C_W, C_COLLAPSED, C_NORM, C_N_PLAIN, C_Q = C_N_PLAIN, C_N };
static const int32_t COLLAPSE_SHAPES[][AB_DIMS_MAX] = { { 5120, 4 }, { 4096, 2 }, { 96, 8 } };

static int32_t collapse_arrays_plain(const int32_t *dim, int32_t T, ab_array *a)
{
    const int64_t n = (int64_t)T * dim[C_DIM];
    a[C_X] = ab_bf16("x", n * dim[C_HC], 2.0f);
    a[C_PRE] = ab_f32("pre", (int64_t)T * dim[C_HC], 1.0f);
    a[C_W] = ab_bf16("w", dim[C_DIM], 1.0f);
    a[C_COLLAPSED] = ab_out("collapsed", FMT_DTYPE_BF16, n);
    a[C_NORM] = ab_out("norm", FMT_DTYPE_BF16, n);
    return C_N_PLAIN;
}

static int32_t collapse_arrays(const int32_t *dim, int32_t T, ab_array *a)
{
    collapse_arrays_plain(dim, T, a);
    a[C_Q] = ab_out("q", FMT_DTYPE_BF16, (int64_t)T * dim[C_DIM]);
    return C_N;
}

static err_code collapse_norm_base(const ab_call *c, err *e)
{
    const int32_t dim = c->dim[C_DIM];
    AB_RUN_ACC(krn_mhc_collapse, c->buf[C_X], c->buf[C_PRE], c->buf[C_COLLAPSED], c->T, c->dim[C_HC], dim);
    AB_RUN(krn_rmsnorm, c->buf[C_COLLAPSED], dim, c->buf[C_W], c->buf[C_NORM], dim, c->T, dim, EPS);
    (void)e;
    return ERR_OK;
}

static err_code collapse_norm_fused(const ab_call *c, err *e)
{
    if (!c->on_card) return collapse_norm_base(c, e);
    AB_CARD(krn_collapse_rmsnorm_qdq(c->buf[C_X], c->buf[C_PRE], c->buf[C_W], c->T, c->dim[C_HC], c->dim[C_DIM], EPS,
                                     c->buf[C_COLLAPSED], c->buf[C_NORM], NULL, c->stream, e));
    return ERR_OK;
}

static err_code collapse_base(const ab_call *c, err *e)
{
    const int32_t dim = c->dim[C_DIM];
    TRY(collapse_norm_base(c, e));
    AB_RUN(krn_act_qdq, c->buf[C_NORM], dim, c->buf[C_Q], dim, c->T, dim);
    return ERR_OK;
}

static err_code collapse_fused(const ab_call *c, err *e)
{
    if (!c->on_card) return collapse_base(c, e);
    AB_CARD(krn_collapse_rmsnorm_qdq(c->buf[C_X], c->buf[C_PRE], c->buf[C_W], c->T, c->dim[C_HC], c->dim[C_DIM], EPS,
                                     c->buf[C_COLLAPSED], c->buf[C_NORM], c->buf[C_Q], c->stream, e));
    return ERR_OK;
}

/* A row of the collapse or norm: written by one op, read by the next one. */
static void collapse_norm_bytes(const int32_t *dim, int32_t T, uint64_t out[AB_SIDES])
{
    const uint64_t d = (uint64_t)dim[C_DIM], hc = (uint64_t)dim[C_HC], row = d * BF16_BYTES, t = (uint64_t)T;
    out[AB_NEW] = t * ((hc + 2) * row + hc * F32_BYTES) + row;
    out[AB_BASE] = out[AB_NEW] + t * row;
}

static void collapse_bytes(const int32_t *dim, int32_t T, uint64_t out[AB_SIDES])
{
    const uint64_t rows = (uint64_t)T * (uint64_t)dim[C_DIM] * BF16_BYTES;
    collapse_norm_bytes(dim, T, out);
    out[AB_NEW] += rows;
    out[AB_BASE] += 2 * rows;
}

/* ---- rmsnorm, qdq ---- */

enum { N_DIM };
enum { N_X, N_W, N_NORM, N_Q, N_N };
static const int32_t NORM_SHAPES[][AB_DIMS_MAX] = { { 5120 }, { 1280 }, { 96 } };

static int32_t norm_arrays(const int32_t *dim, int32_t T, ab_array *a)
{
    const int64_t n = (int64_t)T * dim[N_DIM];
    a[N_X] = ab_bf16("x", n, 2.0f);
    a[N_W] = ab_bf16("w", dim[N_DIM], 1.0f);
    a[N_NORM] = ab_out("norm", FMT_DTYPE_BF16, n);
    a[N_Q] = ab_out("q", FMT_DTYPE_BF16, n);
    return N_N;
}

static err_code norm_base(const ab_call *c, err *e)
{
    const int32_t dim = c->dim[N_DIM];
    AB_RUN(krn_rmsnorm, c->buf[N_X], dim, c->buf[N_W], c->buf[N_NORM], dim, c->T, dim, EPS);
    AB_RUN(krn_act_qdq, c->buf[N_NORM], dim, c->buf[N_Q], dim, c->T, dim);
    (void)e;
    return ERR_OK;
}

static err_code norm_fused(const ab_call *c, err *e)
{
    if (!c->on_card) return norm_base(c, e);
    AB_CARD(krn_rmsnorm_qdq(c->buf[N_X], c->buf[N_W], c->T, c->dim[N_DIM], EPS, c->buf[N_NORM], c->buf[N_Q], c->stream, e));
    return ERR_OK;
}

static void norm_bytes(const int32_t *dim, int32_t T, uint64_t out[AB_SIDES])
{
    const uint64_t row = (uint64_t)dim[N_DIM] * BF16_BYTES, t = (uint64_t)T;
    out[AB_NEW] = t * 3 * row + row;
    out[AB_BASE] = out[AB_NEW] + t * row;
}

/* ---- rmsnorm, rope, qdq ---- */

enum { R_HEAD, R_ROPE };
enum { R_X, R_W, R_POS, R_FREQ, R_NORM, R_ROTATED, R_Q, R_N };
static const int32_t ROPE_SHAPES[][AB_DIMS_MAX] = { { 512, 64 }, { 128, 42 }, { 32, 32 } };

static int32_t rope_arrays(const int32_t *dim, int32_t T, ab_array *a)
{
    const int64_t n = (int64_t)T * dim[R_HEAD];
    a[R_X] = ab_bf16("x", n, 2.0f);
    a[R_W] = ab_bf16("w", dim[R_HEAD], 1.0f);
    a[R_POS] = ab_i32("pos", T);
    a[R_FREQ] = ab_f32("freq", dim[R_ROPE] / 2, 0);
    a[R_NORM] = ab_out("norm", FMT_DTYPE_BF16, n);
    a[R_ROTATED] = ab_out("rotated", FMT_DTYPE_BF16, n);
    a[R_Q] = ab_out("q", FMT_DTYPE_BF16, n);
    return R_N;
}

static void rope_fill(const ab_inputs *in)
{
    fill_positions(in, in->buf[R_POS], in->T);
    krn_rope_freqs(10000.0, in->dim[R_ROPE], in->buf[R_FREQ]);
}

static err_code rope_base(const ab_call *c, err *e)
{
    const int32_t head = c->dim[R_HEAD];
    AB_RUN(krn_rmsnorm, c->buf[R_X], head, c->buf[R_W], c->buf[R_NORM], head, c->T, head, EPS);
    AB_RUN_ACC(krn_rope, c->buf[R_NORM], c->buf[R_ROTATED], c->T, 1, head, c->dim[R_ROPE], c->buf[R_POS], c->buf[R_FREQ],
               false);
    AB_RUN(krn_act_qdq, c->buf[R_ROTATED], head, c->buf[R_Q], head, c->T, head);
    (void)e;
    return ERR_OK;
}

static err_code rope_fused(const ab_call *c, err *e)
{
    if (!c->on_card) return rope_base(c, e);
    AB_CARD(krn_rmsnorm_rope_qdq(c->buf[R_X], c->buf[R_W], c->T, c->dim[R_HEAD], c->dim[R_ROPE], c->buf[R_POS],
                                 c->buf[R_FREQ], EPS, c->buf[R_NORM], c->buf[R_ROTATED], c->buf[R_Q], c->stream, e));
    return ERR_OK;
}

static void rope_bytes(const int32_t *dim, int32_t T, uint64_t out[AB_SIDES])
{
    const uint64_t row = (uint64_t)dim[R_HEAD] * BF16_BYTES, t = (uint64_t)T;
    const uint64_t rest = row + t * sizeof(int32_t) + (uint64_t)dim[R_ROPE] / 2 * F32_BYTES;
    out[AB_NEW] = t * 4 * row + rest;
    out[AB_BASE] = out[AB_NEW] + t * 2 * row;
}

/* ---- both, side by side ---- */

enum { B_DIM, B_HEAD, B_ROPE };
enum { B_X, B_W, B_KV, B_KV_W, B_POS, B_FREQ, B_NORM, B_Q, B_KV_NORM, B_KV_ROTATED, B_KV_Q, B_N };
static const int32_t BOTH_SHAPES[][AB_DIMS_MAX] = { { 1280, 512, 64 }, { 96, 128, 42 }, { 512, 32, 32 } };

static int32_t both_arrays(const int32_t *dim, int32_t T, ab_array *a)
{
    const int64_t n = (int64_t)T * dim[B_DIM], kv = (int64_t)T * dim[B_HEAD];
    a[B_X] = ab_bf16("x", n, 2.0f);
    a[B_W] = ab_bf16("w", dim[B_DIM], 1.0f);
    a[B_KV] = ab_bf16("kv", kv, 2.0f);
    a[B_KV_W] = ab_bf16("kv w", dim[B_HEAD], 1.0f);
    a[B_POS] = ab_i32("pos", T);
    a[B_FREQ] = ab_f32("freq", dim[B_ROPE] / 2, 0);
    a[B_NORM] = ab_out("norm", FMT_DTYPE_BF16, n);
    a[B_Q] = ab_out("q", FMT_DTYPE_BF16, n);
    a[B_KV_NORM] = ab_out("kv norm", FMT_DTYPE_BF16, kv);
    a[B_KV_ROTATED] = ab_out("kv rotated", FMT_DTYPE_BF16, kv);
    a[B_KV_Q] = ab_out("kv q", FMT_DTYPE_BF16, kv);
    return B_N;
}

static void both_fill(const ab_inputs *in)
{
    fill_positions(in, in->buf[B_POS], in->T);
    krn_rope_freqs(10000.0, in->dim[B_ROPE], in->buf[B_FREQ]);
}

/* On the card two fused launches. */
static err_code both_apart(const ab_call *c, err *e)
{
    const int32_t dim = c->dim[B_DIM], head = c->dim[B_HEAD];
    if (!c->on_card) {
        AB_RUN(krn_rmsnorm, c->buf[B_X], dim, c->buf[B_W], c->buf[B_NORM], dim, c->T, dim, EPS);
        AB_RUN(krn_act_qdq, c->buf[B_NORM], dim, c->buf[B_Q], dim, c->T, dim);
        AB_RUN(krn_rmsnorm, c->buf[B_KV], head, c->buf[B_KV_W], c->buf[B_KV_NORM], head, c->T, head, EPS);
        AB_RUN_ACC(krn_rope, c->buf[B_KV_NORM], c->buf[B_KV_ROTATED], c->T, 1, head, c->dim[B_ROPE], c->buf[B_POS],
                   c->buf[B_FREQ], false);
        AB_RUN(krn_act_qdq, c->buf[B_KV_ROTATED], head, c->buf[B_KV_Q], head, c->T, head);
        return ERR_OK;
    }
    AB_CARD(krn_rmsnorm_qdq(c->buf[B_X], c->buf[B_W], c->T, dim, EPS, c->buf[B_NORM], c->buf[B_Q], c->stream, e));
    AB_CARD(krn_rmsnorm_rope_qdq(c->buf[B_KV], c->buf[B_KV_W], c->T, head, c->dim[B_ROPE], c->buf[B_POS], c->buf[B_FREQ],
                                 EPS, c->buf[B_KV_NORM], c->buf[B_KV_ROTATED], c->buf[B_KV_Q], c->stream, e));
    (void)e;
    return ERR_OK;
}

static err_code both_together(const ab_call *c, err *e)
{
    if (!c->on_card) return both_apart(c, e);
    const krn_norm_side latent = { c->buf[B_X], c->buf[B_W], c->dim[B_DIM], c->buf[B_NORM], c->buf[B_Q] };
    const krn_norm_side kv = { c->buf[B_KV], c->buf[B_KV_W], c->dim[B_HEAD], c->buf[B_KV_NORM], c->buf[B_KV_Q] };
    AB_CARD(krn_rmsnorm_pair_qdq(&latent, &kv, c->T, c->dim[B_ROPE], c->buf[B_POS], c->buf[B_FREQ], EPS,
                                 c->buf[B_KV_ROTATED], c->stream, e));
    (void)latent, (void)kv;
    return ERR_OK;
}

static void both_bytes(const int32_t *dim, int32_t T, uint64_t out[AB_SIDES])
{
    const uint64_t n = (uint64_t)dim[B_DIM], kv = (uint64_t)dim[B_HEAD], t = (uint64_t)T;
    out[AB_BASE] = out[AB_NEW] = BF16_BYTES * ((3 * t + 1) * n + (4 * t + 1) * kv) + 4 * t;
}

/* ---- rope, attention, rope back, qdq ---- T slots, each with a block of five rows and a full ring */

enum { A_HEADS, A_HEAD, A_ROPE, A_WINDOW };
enum { BLOCK = 5 };
enum { A_Q, A_RINGS, A_SLOT, A_LAST, A_KV, A_SINK, A_POS, A_FREQ, A_ATTENDED, A_O, A_QDQ, A_N_PLAIN,
       A_ROTATED = A_N_PLAIN, A_N };
static const int32_t ATTENTION_SHAPES[][AB_DIMS_MAX] = { { 32, 512, 64, 128 }, { 64, 512, 64, 128 }, { 4, 64, 16, 16 } };

static int32_t attention_arrays_plain(const int32_t *dim, int32_t T, ab_array *a)
{
    const int64_t rows = (int64_t)T * BLOCK, n = rows * dim[A_HEADS] * dim[A_HEAD];
    a[A_Q] = ab_bf16("q", n, 2.0f);
    a[A_RINGS] = ab_bf16("rings", (int64_t)T * dim[A_WINDOW] * dim[A_HEAD], 1.0f);
    a[A_SLOT] = ab_i32("slot", T);
    a[A_LAST] = ab_i32("last", T);
    a[A_KV] = ab_bf16("block_kv", rows * dim[A_HEAD], 1.0f);
    a[A_SINK] = ab_f32("sink", dim[A_HEADS], 2.0f);
    a[A_POS] = ab_i32("pos", rows);
    a[A_FREQ] = ab_f32("freq", dim[A_ROPE] / 2, 0);
    a[A_ATTENDED] = ab_out("attended", FMT_DTYPE_BF16, n);
    a[A_O] = ab_out("o", FMT_DTYPE_BF16, n);
    a[A_QDQ] = ab_out("o_qdq", FMT_DTYPE_BF16, n);
    return A_N_PLAIN;
}

static int32_t attention_arrays(const int32_t *dim, int32_t T, ab_array *a)
{
    attention_arrays_plain(dim, T, a);
    a[A_ROTATED] = ab_out("q_rotated", FMT_DTYPE_BF16, a[A_Q].n);
    return A_N;
}

/* Rings are full; stale: short ones, empty ones, and entries that share one. */
static void attention_fill(const ab_inputs *in)
{
    int32_t *slot = in->buf[A_SLOT], *last = in->buf[A_LAST];
    const uint64_t key = eng_noise_key(in->seed, "slot");
    for (int32_t i = 0; i < in->T; i++) {
        const uint64_t b = eng_noise_bits(key, (uint64_t)i);
        slot[i] = in->kind == AB_STALE ? (int32_t)(b % (uint64_t)in->T) : in->T - 1 - i;
        last[i] = in->kind == AB_STALE ? (int32_t)(b >> 32 & 0xff) - 16 : 1000 + i;
    }
    fill_positions(in, in->buf[A_POS], in->T * BLOCK);
    krn_rope_freqs(10000.0, in->dim[A_ROPE], in->buf[A_FREQ]);
}

static float attention_scale(const ab_call *c) { return 1.0f / sqrtf((float)c->dim[A_HEAD]); }

/* krn_attention's twin takes one entry: its ring, and how many rows of it there are. */
static void attention_twin(const ab_call *c, const bf16 *q, bf16 *o)
{
    const int32_t heads = c->dim[A_HEADS], head = c->dim[A_HEAD], window = c->dim[A_WINDOW];
    const int32_t *slot = c->buf[A_SLOT], *last = c->buf[A_LAST];
    const bf16 *rings = c->buf[A_RINGS], *kv = c->buf[A_KV];
    for (int32_t i = 0; i < c->T; i++) {
        const int64_t at = (int64_t)i * BLOCK * heads * head;
        const int32_t n_ring = last[i] < 0 ? 0 : last[i] + 1 < window ? last[i] + 1 : window;
        krn_attention_ref(q + at, rings + (int64_t)slot[i] * window * head, n_ring, kv + (int64_t)i * BLOCK * head, BLOCK,
                          c->buf[A_SINK], attention_scale(c), heads, head, o + at, KRN_ACC_BLOCKED);
    }
}

static err_code attend_base(const ab_call *c, const bf16 *q, err *e)
{
    const int32_t heads = c->dim[A_HEADS], head = c->dim[A_HEAD], rows = c->T * BLOCK, width = heads * head;
    if (!c->on_card) attention_twin(c, q, c->buf[A_ATTENDED]);
    else AB_CARD(krn_attention(q, c->buf[A_RINGS], (int64_t)c->dim[A_WINDOW] * head, c->buf[A_SLOT], c->buf[A_LAST],
                               c->dim[A_WINDOW], c->buf[A_KV], c->T, BLOCK, c->buf[A_SINK], attention_scale(c), heads, head,
                               c->buf[A_ATTENDED], c->stream, e));
    AB_RUN_ACC(krn_rope, c->buf[A_ATTENDED], c->buf[A_O], rows, heads, head, c->dim[A_ROPE], c->buf[A_POS],
               c->buf[A_FREQ], true);
    AB_RUN(krn_act_qdq, c->buf[A_O], width, c->buf[A_QDQ], width, rows, width);
    (void)e;
    return ERR_OK;
}

static err_code attention_base(const ab_call *c, err *e) { return attend_base(c, c->buf[A_Q], e); }

static err_code rope_attention_base(const ab_call *c, err *e)
{
    AB_RUN_ACC(krn_rope, c->buf[A_Q], c->buf[A_ROTATED], c->T * BLOCK, c->dim[A_HEADS], c->dim[A_HEAD], c->dim[A_ROPE],
               c->buf[A_POS], c->buf[A_FREQ], false);
    return attend_base(c, c->buf[A_ROTATED], e);
}

#ifdef HAVE_CUDA
static err_code attend_fused(const ab_call *c, bf16 *rotated, err *e)
{
    return krn_attention_rope_qdq(c->buf[A_Q], c->buf[A_RINGS], (int64_t)c->dim[A_WINDOW] * c->dim[A_HEAD],
                                  c->buf[A_SLOT], c->buf[A_LAST], c->dim[A_WINDOW], c->buf[A_KV], c->T, BLOCK,
                                  c->buf[A_SINK], attention_scale(c), c->dim[A_HEADS], c->dim[A_HEAD], c->dim[A_ROPE],
                                  c->buf[A_POS], c->buf[A_FREQ], rotated, c->buf[A_ATTENDED], c->buf[A_O], c->buf[A_QDQ],
                                  c->stream, e);
}
#endif

static err_code attention_fused(const ab_call *c, err *e)
{
    if (!c->on_card) return attention_base(c, e);
    AB_CARD(attend_fused(c, NULL, e));
    return ERR_OK;
}

static err_code rope_attention_fused(const ab_call *c, err *e)
{
    if (!c->on_card) return rope_attention_base(c, e);
    AB_CARD(attend_fused(c, c->buf[A_ROTATED], e));
    return ERR_OK;
}

/* Keys are read once for all heads of a slot: a floor. */
static void attention_bytes(const int32_t *dim, int32_t T, uint64_t out[AB_SIDES])
{
    const uint64_t t = (uint64_t)T, head = (uint64_t)dim[A_HEAD] * BF16_BYTES;
    const uint64_t q = t * BLOCK * (uint64_t)dim[A_HEADS] * head;
    out[AB_NEW] = 4 * q + t * ((uint64_t)dim[A_WINDOW] + BLOCK) * head;
    out[AB_BASE] = out[AB_NEW] + 2 * q;
}

static void rope_attention_bytes(const int32_t *dim, int32_t T, uint64_t out[AB_SIDES])
{
    const uint64_t q = (uint64_t)T * BLOCK * (uint64_t)dim[A_HEADS] * (uint64_t)dim[A_HEAD] * BF16_BYTES;
    attention_bytes(dim, T, out);
    out[AB_NEW] += q;
    out[AB_BASE] += 2 * q;
}

static const ab_pair PAIRS[] = {
    { .name = { "mhc_collapse+rmsnorm+act_qdq", "collapse_rmsnorm_qdq" }, .summary = "the stream to a sub-block's input",
      .kinds = AB_NUMBERS, .t_max = AB_T_MAX, .dims = "dim hc", .shape = COLLAPSE_SHAPES,
      .n_shapes = COUNT_OF(COLLAPSE_SHAPES), .arrays = collapse_arrays, .side = { collapse_base, collapse_fused },
      .bytes = collapse_bytes },
    { .name = { "mhc_collapse+rmsnorm", "collapse_rmsnorm" }, .summary = "the same, where no quantised product follows",
      .kinds = AB_NUMBERS, .t_max = AB_T_MAX, .dims = "dim hc", .shape = COLLAPSE_SHAPES,
      .n_shapes = COUNT_OF(COLLAPSE_SHAPES), .arrays = collapse_arrays_plain,
      .side = { collapse_norm_base, collapse_norm_fused }, .bytes = collapse_norm_bytes },
    { .name = { "rmsnorm+act_qdq", "rmsnorm_qdq" }, .summary = "norm of the query's latent, and of taps",
      .kinds = AB_NUMBERS, .t_max = AB_T_MAX, .dims = "dim", .shape = NORM_SHAPES, .n_shapes = COUNT_OF(NORM_SHAPES),
      .arrays = norm_arrays, .side = { norm_base, norm_fused }, .bytes = norm_bytes },
    { .name = { "rmsnorm+rope+act_qdq", "rmsnorm_rope_qdq" }, .summary = "a row of keys and values, as a window keeps it",
      .kinds = AB_NUMBERS, .t_max = AB_T_MAX, .dims = "head_dim rope_dim", .shape = ROPE_SHAPES,
      .n_shapes = COUNT_OF(ROPE_SHAPES), .arrays = rope_arrays, .fill = rope_fill, .side = { rope_base, rope_fused },
      .bytes = rope_bytes },
    { .name = { "rmsnorm_qdq+rmsnorm_rope_qdq", "rmsnorm_pair_qdq" }, .summary = "these two, side by side",
      .kinds = AB_NUMBERS, .t_max = AB_T_MAX, .dims = "dim head_dim rope_dim", .shape = BOTH_SHAPES,
      .n_shapes = COUNT_OF(BOTH_SHAPES), .arrays = both_arrays, .fill = both_fill,
      .side = { both_apart, both_together }, .bytes = both_bytes },
    { .name = { "attention+rope+act_qdq", "attention_rope_qdq" }, .summary = "T slots of five rows, rotated already",
      .kinds = AB_NUMBERS | AB_BIT(AB_STALE), .t_max = 8, .dims = "heads head_dim rope_dim window",
      .shape = ATTENTION_SHAPES, .n_shapes = COUNT_OF(ATTENTION_SHAPES), .cpu_first = 2, .arrays = attention_arrays_plain,
      .fill = attention_fill, .side = { attention_base, attention_fused }, .bytes = attention_bytes },
    { .name = { "rope+attention+rope+act_qdq", "rope_attention_rope_qdq" }, .summary = "the same, queries rotated in it",
      .kinds = AB_NUMBERS | AB_BIT(AB_STALE), .t_max = 8, .dims = "heads head_dim rope_dim window",
      .shape = ATTENTION_SHAPES, .n_shapes = COUNT_OF(ATTENTION_SHAPES), .cpu_first = 2, .arrays = attention_arrays,
      .fill = attention_fill, .side = { rope_attention_base, rope_attention_fused }, .bytes = rope_attention_bytes },
};
const ab_pair_list AB_PAIRS_NORM = { PAIRS, COUNT_OF(PAIRS) };
