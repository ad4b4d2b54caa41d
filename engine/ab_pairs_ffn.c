/* Pairs around the experts, and those that end a sub-block. As in ab_pairs_norm.c the fused launches have no twins. */
#include "engine/ab_sides.h"

#include "engine/noise.h"
#include "kernels/act_qdq.h"
#include "kernels/combine.h"
#include "kernels/fused.h"
#include "kernels/gate.h"
#include "kernels/mhc.h"
#include "kernels/rmsnorm.h"
#include "kernels/swiglu.h"

static const float LIMIT = 10.0f, ROUTE_SCALE = 1.5f;
enum { BF16_BYTES = 2, F32_BYTES = 4 };

/* ---- swiglu, qdq ---- T rows of three picks */

enum { S_COLS, S_PICKS };
enum { S_G, S_U, S_WEIGHT, S_H, S_Q, S_N };
static const int32_t SWIGLU_SHAPES[][AB_DIMS_MAX] = { { 1152, 3 }, { 2304, 1 }, { 96, 3 } };

static int32_t swiglu_arrays(const int32_t *dim, int32_t T, ab_array *a)
{
    const int64_t rows = (int64_t)T * dim[S_PICKS], n = rows * dim[S_COLS];
    a[S_G] = ab_bf16("g", n, 3.0f);
    a[S_U] = ab_bf16("u", n, 3.0f);
    a[S_WEIGHT] = ab_f32("route_weight", rows, 1.0f);
    a[S_H] = ab_out("h", FMT_DTYPE_BF16, n);
    a[S_Q] = ab_out("q", FMT_DTYPE_BF16, n);
    return S_N;
}

static err_code swiglu_base(const ab_call *c, err *e)
{
    const int32_t rows = c->T * c->dim[S_PICKS], cols = c->dim[S_COLS];
    AB_RUN(krn_swiglu, c->buf[S_G], c->buf[S_U], c->buf[S_WEIGHT], LIMIT, c->buf[S_H], rows, cols);
    AB_RUN(krn_act_qdq, c->buf[S_H], cols, c->buf[S_Q], cols, rows, cols);
    (void)e;
    return ERR_OK;
}

static err_code swiglu_fused(const ab_call *c, err *e)
{
    if (!c->on_card) return swiglu_base(c, e);
    AB_CARD(krn_swiglu_qdq(c->buf[S_G], c->buf[S_U], c->buf[S_WEIGHT], LIMIT, c->buf[S_H], c->buf[S_Q],
                           c->T * c->dim[S_PICKS], c->dim[S_COLS], c->stream, e));
    return ERR_OK;
}

static void swiglu_bytes(const int32_t *dim, int32_t T, uint64_t out[AB_SIDES])
{
    const uint64_t rows = (uint64_t)T * (uint64_t)dim[S_PICKS], row = (uint64_t)dim[S_COLS] * BF16_BYTES;
    out[AB_NEW] = rows * (4 * row + F32_BYTES);
    out[AB_BASE] = out[AB_NEW] + rows * row;
}

/* ---- gate scores, top k ---- */

enum { G_EXPERTS, G_K };
enum { G_LOGITS, G_BIAS, G_SCORES, G_IDS, G_WEIGHTS, G_N };
static const int32_t GATE_SHAPES[][AB_DIMS_MAX] = { { 128, 3 }, { 512, 10 }, { 33, 32 } };

static int32_t gate_arrays(const int32_t *dim, int32_t T, ab_array *a)
{
    const int64_t n = (int64_t)T * dim[G_EXPERTS], picks = (int64_t)T * dim[G_K];
    a[G_LOGITS] = ab_f32("logits", n, 4.0f);
    a[G_BIAS] = ab_f32("bias", dim[G_EXPERTS], 0.5f);
    a[G_SCORES] = ab_out("scores", FMT_DTYPE_F32, n);
    a[G_IDS] = ab_out("ids", FMT_DTYPE_I32, picks);
    a[G_WEIGHTS] = ab_out("weights", FMT_DTYPE_F32, picks);
    return G_N;
}

static err_code gate_base(const ab_call *c, err *e)
{
    const int32_t n = c->dim[G_EXPERTS];
    AB_RUN(krn_gate_scores, c->buf[G_LOGITS], c->buf[G_SCORES], c->T, n);
    AB_RUN_ACC(krn_gate_topk, c->buf[G_SCORES], c->buf[G_BIAS], c->T, n, c->dim[G_K], ROUTE_SCALE, c->buf[G_IDS],
               c->buf[G_WEIGHTS]);
    (void)e;
    return ERR_OK;
}

static err_code gate_fused(const ab_call *c, err *e)
{
    if (!c->on_card) return gate_base(c, e);
    AB_CARD(krn_gate_select(c->buf[G_LOGITS], c->buf[G_BIAS], c->T, c->dim[G_EXPERTS], c->dim[G_K], ROUTE_SCALE,
                            c->buf[G_SCORES], c->buf[G_IDS], c->buf[G_WEIGHTS], c->stream, e));
    return ERR_OK;
}

static void gate_bytes(const int32_t *dim, int32_t T, uint64_t out[AB_SIDES])
{
    const uint64_t row = (uint64_t)dim[G_EXPERTS] * F32_BYTES, t = (uint64_t)T;
    out[AB_NEW] = t * (2 * row + 2 * F32_BYTES * (uint64_t)dim[G_K]) + row;
    out[AB_BASE] = out[AB_NEW] + t * row;
}

/* ---- round or combine, expand ---- */

enum { E_DIM, E_HC, E_K };
enum { E_SUM, E_X, E_POST, E_COMB, E_Y, E_OUT, E_N_ROUND, E_IDS = E_N_ROUND, E_SHARED, E_N };
static const int32_t EXPAND_SHAPES[][AB_DIMS_MAX] = { { 5120, 4, 3 }, { 1000, 2, 10 }, { 37, 8, 5 } };

/* sum: of combine, slots: K rows for one of the output. */
static void expand_arrays(const int32_t *dim, int32_t T, int32_t k, ab_array *a)
{
    const int64_t n = (int64_t)T * dim[E_DIM], hc = dim[E_HC];
    a[E_SUM] = ab_f32(k > 1 ? "slot" : "sum", n * k, 1.0f);
    a[E_X] = ab_bf16("x", n * hc, 2.0f);
    a[E_POST] = ab_f32("post", T * hc, 1.0f);
    a[E_COMB] = ab_f32("comb", T * hc * hc, 1.0f);
    a[E_Y] = ab_out("y", FMT_DTYPE_BF16, n);
    a[E_OUT] = ab_out("out", FMT_DTYPE_BF16, n * hc);
}

static int32_t round_arrays(const int32_t *dim, int32_t T, ab_array *a)
{
    expand_arrays(dim, T, 1, a);
    return E_N_ROUND;
}

static int32_t combine_arrays(const int32_t *dim, int32_t T, ab_array *a)
{
    expand_arrays(dim, T, dim[E_K], a);
    a[E_IDS] = ab_i32("ids", (int64_t)T * dim[E_K]);
    a[E_SHARED] = ab_f32("shared", (int64_t)T * dim[E_DIM], 1.0f);
    return E_N;
}

/* Ids of a row are different, as the gate gives them; stale: they repeat, which the contract allows. */
static void fill_ids(const ab_inputs *in, int32_t *ids)
{
    enum { EXPERTS = 128 };
    const int32_t k = in->dim[E_K];
    const uint64_t key = eng_noise_key(in->seed, "ids");
    for (int32_t i = 0; i < in->T * k; i++) {
        const uint64_t b = eng_noise_bits(key, (uint64_t)(in->kind == AB_STALE ? i : i / k));
        ids[i] = in->kind == AB_STALE ? (int32_t)(b % 4) : (int32_t)((b + 37 * (uint64_t)(i % k)) % EXPERTS);
    }
}

static void combine_fill(const ab_inputs *in) { fill_ids(in, in->buf[E_IDS]); }

static err_code expand(const ab_call *c, err *e)
{
    AB_RUN_ACC(krn_mhc_expand, c->buf[E_Y], c->buf[E_X], c->buf[E_POST], c->buf[E_COMB], c->buf[E_OUT], c->T,
               c->dim[E_HC], c->dim[E_DIM]);
    (void)e;
    return ERR_OK;
}

static err_code round_base(const ab_call *c, err *e)
{
    AB_RUN(krn_round_bf16, c->buf[E_SUM], c->buf[E_Y], (int64_t)c->T * c->dim[E_DIM]);
    return expand(c, e);
}

static err_code round_fused(const ab_call *c, err *e)
{
    if (!c->on_card) return round_base(c, e);
    AB_CARD(krn_round_expand(c->buf[E_SUM], c->buf[E_X], c->buf[E_POST], c->buf[E_COMB], c->T, c->dim[E_HC], c->dim[E_DIM],
                             c->buf[E_Y], c->buf[E_OUT], c->stream, e));
    return ERR_OK;
}

static err_code combine_base(const ab_call *c, err *e)
{
    AB_RUN(krn_combine_exact, c->buf[E_SUM], c->buf[E_IDS], c->buf[E_SHARED], c->buf[E_Y], c->T, c->dim[E_K],
           c->dim[E_DIM]);
    return expand(c, e);
}

static err_code combine_fused(const ab_call *c, err *e)
{
    if (!c->on_card) return combine_base(c, e);
    AB_CARD(krn_combine_expand(c->buf[E_SUM], c->buf[E_IDS], c->buf[E_SHARED], c->buf[E_X], c->buf[E_POST],
                               c->buf[E_COMB], c->T, c->dim[E_K], c->dim[E_HC], c->dim[E_DIM], c->buf[E_Y], c->buf[E_OUT],
                               c->stream, e));
    return ERR_OK;
}

static void expand_bytes(const int32_t *dim, int32_t T, uint64_t in_bytes, uint64_t out[AB_SIDES])
{
    const uint64_t t = (uint64_t)T, hc = (uint64_t)dim[E_HC], row = (uint64_t)dim[E_DIM] * BF16_BYTES;
    out[AB_NEW] = t * (in_bytes + (2 * hc + 1) * row + (hc + hc * hc) * F32_BYTES);
    out[AB_BASE] = out[AB_NEW] + t * row;
}

static void round_bytes(const int32_t *dim, int32_t T, uint64_t out[AB_SIDES])
{
    expand_bytes(dim, T, (uint64_t)dim[E_DIM] * F32_BYTES, out);
}

static void combine_bytes(const int32_t *dim, int32_t T, uint64_t out[AB_SIDES])
{
    const uint64_t k = (uint64_t)dim[E_K];
    expand_bytes(dim, T, (k + 1) * (uint64_t)dim[E_DIM] * F32_BYTES + k * sizeof(int32_t), out);
}

/* ---- the same, and the next sub-block's input ---- */

enum { X_SUM, X_X, X_POST, X_COMB, X_PRE, X_W, X_Y, X_OUT, X_COLLAPSED, X_NORM, X_Q, X_N_ROUND, X_IDS = X_N_ROUND, X_SHARED,
       X_N };
static const int32_t NEXT_SHAPES[][AB_DIMS_MAX] = { { 5120, 4, 3 }, { 1024, 2, 10 }, { 96, 8, 5 } };
static const float NEXT_EPS = 1e-20f;

static void next_arrays(const int32_t *dim, int32_t T, int32_t k, ab_array *a)
{
    const int64_t n = (int64_t)T * dim[E_DIM], hc = dim[E_HC];
    expand_arrays(dim, T, k, a);
    a[X_PRE] = ab_f32("pre", T * hc, 1.0f);
    a[X_W] = ab_bf16("w", dim[E_DIM], 1.0f);
    a[X_Y] = ab_out("y", FMT_DTYPE_BF16, n);
    a[X_OUT] = ab_out("out", FMT_DTYPE_BF16, n * hc);
    a[X_COLLAPSED] = ab_out("collapsed", FMT_DTYPE_BF16, n);
    a[X_NORM] = ab_out("norm", FMT_DTYPE_BF16, n);
    a[X_Q] = ab_out("q", FMT_DTYPE_BF16, n);
}
_Static_assert((int)X_COMB == (int)E_COMB, "the inputs of expand come first");

static int32_t round_next_arrays(const int32_t *dim, int32_t T, ab_array *a)
{
    next_arrays(dim, T, 1, a);
    return X_N_ROUND;
}

static int32_t combine_next_arrays(const int32_t *dim, int32_t T, ab_array *a)
{
    next_arrays(dim, T, dim[E_K], a);
    a[X_IDS] = ab_i32("ids", (int64_t)T * dim[E_K]);
    a[X_SHARED] = ab_f32("shared", (int64_t)T * dim[E_DIM], 1.0f);
    return X_N;
}

static void combine_next_fill(const ab_inputs *in) { fill_ids(in, in->buf[X_IDS]); }

/* On the card the second of two fused launches. */
static err_code next(const ab_call *c, err *e)
{
    const int32_t dim = c->dim[E_DIM];
    if (!c->on_card) {
        AB_RUN_ACC(krn_mhc_expand, c->buf[X_Y], c->buf[X_X], c->buf[X_POST], c->buf[X_COMB], c->buf[X_OUT], c->T,
                   c->dim[E_HC], dim);
        AB_RUN_ACC(krn_mhc_collapse, c->buf[X_OUT], c->buf[X_PRE], c->buf[X_COLLAPSED], c->T, c->dim[E_HC], dim);
        AB_RUN(krn_rmsnorm, c->buf[X_COLLAPSED], dim, c->buf[X_W], c->buf[X_NORM], dim, c->T, dim, NEXT_EPS);
        AB_RUN(krn_act_qdq, c->buf[X_NORM], dim, c->buf[X_Q], dim, c->T, dim);
        return ERR_OK;
    }
    AB_CARD(krn_collapse_rmsnorm_qdq(c->buf[X_OUT], c->buf[X_PRE], c->buf[X_W], c->T, c->dim[E_HC], dim, NEXT_EPS,
                                     c->buf[X_COLLAPSED], c->buf[X_NORM], c->buf[X_Q], c->stream, e));
    (void)e;
    return ERR_OK;
}

static err_code round_next_base(const ab_call *c, err *e)
{
    if (!c->on_card) {
        AB_RUN(krn_round_bf16, c->buf[X_SUM], c->buf[X_Y], (int64_t)c->T * c->dim[E_DIM]);
        return next(c, e);
    }
    AB_CARD(krn_round_expand(c->buf[X_SUM], c->buf[X_X], c->buf[X_POST], c->buf[X_COMB], c->T, c->dim[E_HC], c->dim[E_DIM],
                             c->buf[X_Y], c->buf[X_OUT], c->stream, e));
    return next(c, e);
}

static err_code round_next(const ab_call *c, err *e)
{
    if (!c->on_card) return round_next_base(c, e);
    AB_CARD(krn_round_expand_norm(c->buf[X_SUM], c->buf[X_X], c->buf[X_POST], c->buf[X_COMB], c->buf[X_PRE], c->buf[X_W],
                                  c->T, c->dim[E_HC], c->dim[E_DIM], NEXT_EPS, c->buf[X_Y], c->buf[X_OUT],
                                  c->buf[X_COLLAPSED], c->buf[X_NORM], c->buf[X_Q], c->stream, e));
    return ERR_OK;
}

static err_code combine_next_base(const ab_call *c, err *e)
{
    if (!c->on_card) {
        AB_RUN(krn_combine_exact, c->buf[X_SUM], c->buf[X_IDS], c->buf[X_SHARED], c->buf[X_Y], c->T, c->dim[E_K],
               c->dim[E_DIM]);
        return next(c, e);
    }
    AB_CARD(krn_combine_expand(c->buf[X_SUM], c->buf[X_IDS], c->buf[X_SHARED], c->buf[X_X], c->buf[X_POST],
                               c->buf[X_COMB], c->T, c->dim[E_K], c->dim[E_HC], c->dim[E_DIM], c->buf[X_Y], c->buf[X_OUT],
                               c->stream, e));
    return next(c, e);
}

static err_code combine_next(const ab_call *c, err *e)
{
    if (!c->on_card) return combine_next_base(c, e);
    AB_CARD(krn_combine_expand_norm(c->buf[X_SUM], c->buf[X_IDS], c->buf[X_SHARED], c->buf[X_X], c->buf[X_POST],
                                    c->buf[X_COMB], c->buf[X_PRE], c->buf[X_W], c->T, c->dim[E_K], c->dim[E_HC],
                                    c->dim[E_DIM], NEXT_EPS, c->buf[X_Y], c->buf[X_OUT], c->buf[X_COLLAPSED],
                                    c->buf[X_NORM], c->buf[X_Q], c->stream, e));
    return ERR_OK;
}

/* Beside expand's bytes: pre and w are read, three rows written; the stream is not read again, as by the two. */
static void next_bytes(const int32_t *dim, int32_t T, uint64_t out[AB_SIDES])
{
    const uint64_t t = (uint64_t)T, hc = (uint64_t)dim[E_HC], row = (uint64_t)dim[E_DIM] * BF16_BYTES;
    const uint64_t more = row + t * (3 * row + hc * F32_BYTES), of_expand = out[AB_NEW];
    out[AB_NEW] = of_expand + more;
    out[AB_BASE] = of_expand + more + t * hc * row;
}

static void round_next_bytes(const int32_t *dim, int32_t T, uint64_t out[AB_SIDES])
{
    round_bytes(dim, T, out);
    next_bytes(dim, T, out);
}

static void combine_next_bytes(const int32_t *dim, int32_t T, uint64_t out[AB_SIDES])
{
    combine_bytes(dim, T, out);
    next_bytes(dim, T, out);
}

static const ab_pair PAIRS[] = {
    { .name = { "swiglu+act_qdq", "swiglu_qdq" }, .summary = "the middle of the experts, T rows of several picks",
      .kinds = AB_NUMBERS, .t_max = AB_T_MAX, .dims = "cols picks", .shape = SWIGLU_SHAPES,
      .n_shapes = COUNT_OF(SWIGLU_SHAPES), .arrays = swiglu_arrays, .side = { swiglu_base, swiglu_fused },
      .bytes = swiglu_bytes },
    { .name = { "gate_scores+gate_topk", "gate_select" }, .summary = "the router",
      .kinds = AB_NUMBERS, .t_max = AB_T_MAX, .dims = "experts k", .shape = GATE_SHAPES, .n_shapes = COUNT_OF(GATE_SHAPES),
      .arrays = gate_arrays, .side = { gate_base, gate_fused }, .bytes = gate_bytes },
    { .name = { "round_bf16+mhc_expand", "round_expand" }, .summary = "the end of attention: its sum into the stream",
      .kinds = AB_NUMBERS, .t_max = AB_T_MAX, .dims = "dim hc", .shape = EXPAND_SHAPES,
      .n_shapes = COUNT_OF(EXPAND_SHAPES), .arrays = round_arrays, .side = { round_base, round_fused },
      .bytes = round_bytes },
    { .name = { "combine_exact+mhc_expand", "combine_expand" }, .summary = "the end of the experts, likewise",
      .kinds = AB_NUMBERS | AB_BIT(AB_STALE), .t_max = AB_T_MAX, .dims = "dim hc k", .shape = EXPAND_SHAPES,
      .n_shapes = COUNT_OF(EXPAND_SHAPES), .arrays = combine_arrays, .fill = combine_fill,
      .side = { combine_base, combine_fused }, .bytes = combine_bytes },
    { .name = { "round_expand+collapse_rmsnorm_qdq", "round_expand_norm" },
      .summary = "from attention's sum to the experts' input", .kinds = AB_NUMBERS, .t_max = AB_T_MAX, .dims = "dim hc",
      .shape = NEXT_SHAPES, .n_shapes = COUNT_OF(NEXT_SHAPES), .arrays = round_next_arrays,
      .side = { round_next_base, round_next }, .bytes = round_next_bytes },
    { .name = { "combine_expand+collapse_rmsnorm_qdq", "combine_expand_norm" },
      .summary = "from the experts' sums to the next stage's input", .kinds = AB_NUMBERS | AB_BIT(AB_STALE),
      .t_max = AB_T_MAX, .dims = "dim hc k", .shape = NEXT_SHAPES, .n_shapes = COUNT_OF(NEXT_SHAPES),
      .arrays = combine_next_arrays, .fill = combine_next_fill, .side = { combine_next_base, combine_next },
      .bytes = combine_next_bytes },
};
const ab_pair_list AB_PAIRS_FFN = { PAIRS, COUNT_OF(PAIRS) };
