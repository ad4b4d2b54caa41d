/* Pairs of the per-layer embedding (kernels/ple.h). The residual streams are updated in place. */
#include "engine/ab_sides.h"

#include "engine/noise.h"
#include "kernels/ple.h"

enum { N, HC, TOP_K, P_TOKENT }; /* of dim */

/* The usual size; hc 2; then off the fast path: other n, one of no multiple of anything, another top_k and plan. */
static const int32_t SHAPES[][AB_DIMS_MAX] = {
    { 2560, 4, 10, KRN_PLE_P_TOKENT }, { 2560, 2, 10, KRN_PLE_P_TOKENT }, { 2560, 4, 7, 20 },
    { 1280, 4, 10, KRN_PLE_P_TOKENT }, { 1000, 4, 10, KRN_PLE_P_TOKENT }, { 77, 2, 3, 0 },
};

static krn_ple_shape shape_of(const ab_call *c) { return (krn_ple_shape){ c->T, c->dim[HC], c->dim[N] }; }

/* ---- combine, query, gate, norm ---- */

enum { RESID, YE, PLAN, YSH, GS, G, KEY, VALUE, W_QUERY, W_CONV, XN, GATE, NORM_W, N_COMB };

static int32_t comb_arrays(const int32_t *dim, int32_t T, ab_array *a)
{
    const int64_t token = (int64_t)dim[HC] * dim[N], tokens = T * token;
    a[RESID] = ab_f32("R", tokens, 1.0f);
    a[RESID].role = AB_STATE;
    a[YE] = ab_f32("ye", (int64_t)T * dim[TOP_K] * dim[N], 0.3f);
    a[PLAN] = ab_i32("plan", dim[P_TOKENT] + (int64_t)T * dim[TOP_K]);
    a[YSH] = ab_f32("ysh", (int64_t)T * dim[N], 1.0f);
    a[GS] = ab_f32("gs", T, 1.0f);
    a[G] = ab_f32("g", (int64_t)T * dim[HC], 1.0f);
    a[KEY] = ab_f32("key", tokens, 1.0f);
    a[VALUE] = ab_f32("value", (int64_t)T * dim[N], 1.0f);
    a[W_QUERY] = ab_f32("w_query", token, 1.0f);
    a[W_CONV] = ab_f32("w_conv", token, 1.0f);
    a[XN] = ab_work("xn", FMT_DTYPE_F32, tokens);
    a[GATE] = ab_out("gate", FMT_DTYPE_F32, (int64_t)T * dim[HC]);
    a[NORM_W] = ab_out("norm_w", FMT_DTYPE_F32, tokens);
    return N_COMB;
}

/* The plan: a row of ye for each pick. Stale: rows repeat, and some lie before or behind ye, as a step with more tokens
 * would leave them; and keys so small that |a| is below 1e-6 in every other stream. */
static void comb_fill(const ab_inputs *in)
{
    const int32_t *dim = in->dim, picks = in->T * dim[TOP_K];
    int32_t *plan = in->buf[PLAN];
    float *key = in->buf[KEY];
    const uint64_t bits = eng_noise_key(in->seed, "plan");
    for (int32_t i = 0; i < dim[P_TOKENT]; i++) plan[i] = -1;
    plan += dim[P_TOKENT];
    for (int32_t i = 0; i < picks; i++) plan[i] = i;
    for (int32_t i = picks - 1; i > 0; i--) {
        const int32_t j = (int32_t)(eng_noise_bits(bits, (uint64_t)i) % (uint64_t)(i + 1)), v = plan[i];
        plan[i] = plan[j];
        plan[j] = v;
    }
    if (in->kind != AB_STALE) return;
    for (int32_t i = 0; i < picks; i++) {
        static const int32_t FAR[4] = { -1, INT32_MIN, INT32_MAX, 1 << 20 };
        const uint64_t b = eng_noise_bits(bits + 1, (uint64_t)i);
        if (b % 4 == 0) plan[i] = plan[i > 0 ? i - 1 : 0];
        if (b % 16 == 1) plan[i] = FAR[b >> 8 & 3];
        if (b % 16 == 3) plan[i] = picks; /* the first row that is not there */
    }
    const int64_t n = dim[N], groups = (int64_t)in->T * dim[HC];
    for (int64_t g = 1; g < groups; g += 2)
        for (int64_t d = 0; d < n; d++) key[g * n + d] *= 1e-9f;
}

static krn_ple_combine combine_of(const ab_call *c)
{
    return (krn_ple_combine){ c->buf[YE], c->buf[PLAN], c->buf[YSH], c->buf[GS], c->buf[G], c->dim[TOP_K],
                              c->T * c->dim[TOP_K], c->dim[P_TOKENT] };
}

static krn_ple_query query_of(const ab_call *c)
{
    return (krn_ple_query){ c->buf[KEY], c->buf[VALUE], c->buf[W_QUERY], c->buf[W_CONV] };
}

static err_code comb_pair(const ab_call *c, err *e)
{
    AB_RUN(krn_gr_norm_comb, shape_of(c), combine_of(c), c->buf[RESID], c->buf[RESID], c->buf[XN]);
    AB_RUN(krn_ple_query_gate_norm, shape_of(c), query_of(c), c->buf[RESID], c->buf[GATE], c->buf[NORM_W]);
    (void)e;
    return ERR_OK;
}

static err_code comb_fused(const ab_call *c, err *e)
{
    AB_RUN(krn_ple_comb_query_gate_norm, shape_of(c), combine_of(c), query_of(c), c->buf[RESID], c->buf[RESID],
           c->buf[GATE], c->buf[NORM_W]);
    (void)e;
    return ERR_OK;
}

/* The fused one reads and writes R once; the pair also writes xn, and reads R twice more. */
static void comb_bytes(const int32_t *dim, int32_t T, uint64_t out[AB_SIDES])
{
    const uint64_t n = (uint64_t)dim[N], group = n * sizeof(float), hc = (uint64_t)dim[HC], top_k = (uint64_t)dim[TOP_K];
    const uint64_t token = hc * group;                                             /* of one array [hc, n] */
    const uint64_t scalars = (1 + 2 * hc + top_k) * 4;                             /* gs, g, gate, plan */
    const uint64_t fused = (top_k + 2) * group + 4 * token + scalars;              /* ye, ysh, value; R, R, key, norm_w */
    out[AB_NEW] = (uint64_t)T * fused + 2 * token;                                 /* w_query, w_conv */
    out[AB_BASE] = out[AB_NEW] + (uint64_t)T * 3 * token;
}

/* ---- norm alone ---- */

enum { X, W, Y, N_NORM };

static int32_t norm_arrays(const int32_t *dim, int32_t T, ab_array *a)
{
    const int64_t token = (int64_t)dim[HC] * dim[N];
    a[X] = ab_f32("x", T * token, 1.0f);
    a[W] = ab_f32("w", token, 1.0f);
    a[Y] = ab_out("y", FMT_DTYPE_F32, T * token);
    return N_NORM;
}

static err_code norm_base(const ab_call *c, err *e)
{
    AB_RUN(krn_ple_gnorm, shape_of(c), c->buf[X], c->buf[W], c->buf[Y]);
    (void)e;
    return ERR_OK;
}

static err_code norm_cached(const ab_call *c, err *e)
{
    if (!c->on_card) return norm_base(c, e);
    AB_CARD(krn_ple_gnorm_cached(shape_of(c), c->buf[X], c->buf[W], c->buf[Y], c->stream, e));
    return ERR_OK;
}

static void norm_bytes(const int32_t *dim, int32_t T, uint64_t out[AB_SIDES])
{
    const uint64_t token = (uint64_t)dim[HC] * (uint64_t)dim[N] * sizeof(float);
    out[AB_BASE] = (3 * (uint64_t)T + 1) * token;
    out[AB_NEW] = (2 * (uint64_t)T + 1) * token;
}

static const ab_pair PAIRS[] = {
    { .name = { "gr_norm_comb+ple_query_gate_norm", "ple_comb_query_gate_norm" },
      .summary = "deferred combine, query, gate and norm as one kernel: R is read and written once", .own_twin = true,
      .kinds = AB_NUMBERS | AB_BIT(AB_STALE), .t_max = AB_T_MAX, .dims = "n hc top_k p_tokent", .shape = SHAPES,
      .n_shapes = COUNT_OF(SHAPES), .arrays = comb_arrays, .fill = comb_fill, .side = { comb_pair, comb_fused },
      .bytes = comb_bytes },
    { .name = { "ple_gnorm", "ple_gnorm_cached" }, .summary = "the row is kept in registers and read once",
      .kinds = AB_NUMBERS, .t_max = AB_T_MAX, .dims = "n hc", .shape = SHAPES,
      .n_shapes = COUNT_OF(SHAPES), .arrays = norm_arrays, .side = { norm_base, norm_cached }, .bytes = norm_bytes },
};
const ab_pair_list AB_PAIRS_PLE = { PAIRS, COUNT_OF(PAIRS) };
