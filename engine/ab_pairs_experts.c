/* Pairs of the routed experts: banks expanded to BF16 against MXFP4 as stored, that against MXFP4 in fragment order, and
 * the combine inside the product. */
#include "engine/ab_sides.h"

#include "engine/noise.h"
#include "kernels/combine.h"
#include "kernels/experts.h"
#include "kernels/experts_kx.h"

enum { GROUP = FMT_QDQ_GROUP };
enum { EXPERTS, N, K, PICKS }; /* of dim: a bank of EXPERTS matrices [N, K]. up: N is gate and up together */

/* One of two ranks, a bank of fewer experts than the model's: enough that no cache holds it, and little enough to be made
 * in a second. Then a small one. */
static const int32_t UP_SHAPES[][AB_DIMS_MAX] = { { 24, 2304, 5120, 3 }, { 8, 128, 256, 3 } };
static const int32_t DOWN_SHAPES[][AB_DIMS_MAX] = { { 24, 5120, 1152, 3 }, { 8, 256, 128, 3 } };

/* ids: AB_NODES times [T, PICKS], other experts in each node of a timed unit. */
enum { X, IDS, CODES, SCALES, Y, EXPANDED, N_BOTH, SLOT = EXPANDED, SHARED, N_COMBINE, BLOCKS = EXPANDED, N_LAID };

static void bank_arrays(const int32_t *dim, int32_t T, int64_t x_rows, ab_array *a)
{
    const int64_t elems = (int64_t)dim[EXPERTS] * dim[N] * dim[K];
    a[X] = ab_bf16("x", x_rows * dim[K], 1.0f);
    a[IDS] = ab_i32("ids", (int64_t)AB_NODES * T * dim[PICKS]);
    a[CODES] = ab_weight("codes", FMT_DTYPE_U8, elems / 2);
    a[SCALES] = ab_weight("scales", FMT_DTYPE_E8M0, elems / GROUP);
}

static int32_t up_arrays(const int32_t *dim, int32_t T, ab_array *a)
{
    bank_arrays(dim, T, T, a);
    a[Y] = ab_out("gate, up", FMT_DTYPE_BF16, (int64_t)T * dim[PICKS] * dim[N]); /* all of gate before all of up */
    a[EXPANDED] = ab_weight("expanded", FMT_DTYPE_BF16, 2 * a[CODES].n);
    return N_BOTH;
}

static int32_t down_arrays(const int32_t *dim, int32_t T, ab_array *a)
{
    bank_arrays(dim, T, (int64_t)T * dim[PICKS], a);
    a[Y] = ab_out("slot", FMT_DTYPE_F32, (int64_t)T * dim[PICKS] * dim[N]);
    a[EXPANDED] = ab_weight("expanded", FMT_DTYPE_BF16, 2 * a[CODES].n);
    return N_BOTH;
}

static int32_t combine_arrays(const int32_t *dim, int32_t T, ab_array *a)
{
    bank_arrays(dim, T, (int64_t)T * dim[PICKS], a);
    a[Y] = ab_out("y", FMT_DTYPE_F32, (int64_t)T * dim[N]);
    a[SLOT] = ab_work("slot", FMT_DTYPE_F32, (int64_t)T * dim[PICKS] * dim[N]);
    a[SHARED] = ab_f32("shared", a[Y].n, 1.0f);
    return N_COMBINE;
}

static krn_expert_bank packed(const int32_t *dim, void *const *buf)
{
    return (krn_expert_bank){ KRN_W_FP4, dim[EXPERTS], dim[N], dim[K], buf[CODES], buf[SCALES] };
}

static krn_expert_bank expanded(const int32_t *dim, void *const *buf)
{
    return (krn_expert_bank){ KRN_W_BF16, dim[EXPERTS], dim[N], dim[K], buf[EXPANDED], NULL };
}

/* Every FP4 code is a number; scales of usual size. */
static void packed_weights(const ab_inputs *in)
{
    const int64_t elems = (int64_t)in->dim[EXPERTS] * in->dim[N] * in->dim[K];
    uint8_t *codes = in->buf[CODES], *scales = in->buf[SCALES];
    const uint64_t key = eng_noise_key(1, "ab experts");
#pragma omp parallel for
    for (int64_t i = 0; i < elems / 16; i++) put_u64(codes + 8 * i, eng_noise_bits(key, (uint64_t)i));
    for (int64_t i = 0; i < elems / GROUP; i++) scales[i] = (uint8_t)(118 + eng_noise_bits(key + 1, (uint64_t)i) % 5);
}

static void both_weights(const ab_inputs *in)
{
    packed_weights(in);
    const krn_expert_bank bank = packed(in->dim, in->buf);
    bf16 *out = in->buf[EXPANDED];
#pragma omp parallel for
    for (int32_t i = 0; i < bank.n_experts; i++) {
        const krn_weight w = krn_expert_weight(&bank, i);
        CHECK(krn_weight_decode_bf16(&w, 0, bank.n, out + (int64_t)i * bank.n * bank.k) == 0);
    }
}

/* A row's experts are different, and of a node's rows as long as there are experts: the most bytes that it can want. */
static void ids_fill(const ab_inputs *in)
{
    int32_t *ids = in->buf[IDS];
    const int64_t n = (int64_t)AB_NODES * in->T * in->dim[PICKS];
    const uint64_t first = eng_noise_bits(in->seed, 0);
    for (int64_t i = 0; i < n; i++) ids[i] = (int32_t)((first + (uint64_t)i) % (uint64_t)in->dim[EXPERTS]);
}

static const int32_t *ids_of(const ab_call *c)
{
    return (const int32_t *)c->buf[IDS] + (int64_t)c->node * c->T * c->dim[PICKS];
}

/* ---- up ---- */

static err_code up(const ab_call *c, const krn_expert_bank *bank, err *e)
{
    bf16 *gate = c->buf[Y];
    AB_RUN_ACC(krn_experts_up, c->buf[X], ids_of(c), c->T, c->dim[PICKS], bank, gate,
               gate + (int64_t)c->T * c->dim[PICKS] * (c->dim[N] / 2));
    (void)e;
    return ERR_OK;
}

static err_code up_base(const ab_call *c, err *e)
{
    const krn_expert_bank bank = expanded(c->dim, c->buf);
    return up(c, &bank, e);
}

static err_code up_new(const ab_call *c, err *e)
{
    const krn_expert_bank bank = packed(c->dim, c->buf);
    return up(c, &bank, e);
}

/* The bound of rows [n0, n0 + n) of a pick's matrix. */
static void pick_bound(const ab_inputs *in, int32_t pick, const bf16 *x, int32_t n0, int32_t n, krn_span *y)
{
    const int32_t *ids = in->buf[IDS];
    const krn_expert_bank bank = packed(in->dim, in->buf);
    const krn_weight whole = krn_expert_weight(&bank, ids[pick]), w = krn_weight_slice(&whole, n0, n, 0, bank.k);
    const krn_linear_bound_job job = { .w = &w, .x = x, .y = y };
    krn_linear_bound(&job, 1, KRN_RULE_PARITY);
}

static void up_bound(const ab_inputs *in, krn_span *y)
{
    const int32_t inter = in->dim[N] / 2, picks = in->T * in->dim[PICKS];
    for (int32_t p = 0; p < picks; p++) {
        const bf16 *x = (const bf16 *)in->buf[X] + (int64_t)(p / in->dim[PICKS]) * in->dim[K];
        pick_bound(in, p, x, 0, inter, y + (int64_t)p * inter);
        pick_bound(in, p, x, inter, inter, y + (int64_t)(picks + p) * inter);
    }
}

/* ---- down ---- */

static err_code down(const ab_call *c, const krn_expert_bank *bank, float *slot, err *e)
{
    AB_RUN_ACC(krn_experts_down, c->buf[X], ids_of(c), c->T, c->dim[PICKS], bank, slot);
    (void)e;
    return ERR_OK;
}

static err_code down_base(const ab_call *c, err *e)
{
    const krn_expert_bank bank = expanded(c->dim, c->buf);
    return down(c, &bank, c->buf[Y], e);
}

static err_code down_new(const ab_call *c, err *e)
{
    const krn_expert_bank bank = packed(c->dim, c->buf);
    return down(c, &bank, c->buf[Y], e);
}

static void down_bound(const ab_inputs *in, krn_span *y)
{
    for (int32_t p = 0; p < in->T * in->dim[PICKS]; p++)
        pick_bound(in, p, (const bf16 *)in->buf[X] + (int64_t)p * in->dim[K], 0, in->dim[N], y + (int64_t)p * in->dim[N]);
}

/* ---- down, combine ---- */

static err_code combine_base(const ab_call *c, err *e)
{
    const krn_expert_bank bank = packed(c->dim, c->buf);
    TRY(down(c, &bank, c->buf[SLOT], e));
    AB_RUN(krn_combine_fused, c->buf[SLOT], ids_of(c), c->buf[SHARED], c->buf[Y], c->T, c->dim[PICKS], c->dim[N]);
    return ERR_OK;
}

static err_code combine_new(const ab_call *c, err *e)
{
    const krn_expert_bank bank = packed(c->dim, c->buf);
    AB_RUN_ACC(krn_experts_down_combine, c->buf[X], ids_of(c), c->T, c->dim[PICKS], &bank, c->buf[SHARED], c->buf[Y]);
    (void)e;
    return ERR_OK;
}

/* ---- in fragment order ---- a layout is no arithmetic: the CPU runs the checkpoint's for both sides */

static void laid_array(const int32_t *dim, ab_array *a)
{
    a[BLOCKS] = ab_work("blocks", FMT_DTYPE_U8, dim[EXPERTS] * krn_kx_bytes(dim[N], dim[K]));
}

static int32_t up_laid_arrays(const int32_t *dim, int32_t T, ab_array *a)
{
    up_arrays(dim, T, a);
    laid_array(dim, a);
    return N_LAID;
}

static int32_t down_laid_arrays(const int32_t *dim, int32_t T, ab_array *a)
{
    down_arrays(dim, T, a);
    laid_array(dim, a);
    return N_LAID;
}

static err_code lay(const ab_call *c, err *e)
{
    const krn_expert_bank bank = packed(c->dim, c->buf);
    if (c->on_card) AB_CARD(krn_kx_lay(&bank, c->buf[BLOCKS], c->stream, e));
    (void)e, (void)bank;
    return ERR_OK;
}

static krn_kx_bank laid(const ab_call *c)
{
    return (krn_kx_bank){ c->dim[EXPERTS], c->dim[N], c->dim[K], false, c->buf[BLOCKS] };
}

static err_code up_laid(const ab_call *c, err *e)
{
    const krn_kx_bank bank = laid(c);
    bf16 *gate = c->buf[Y];
    if (!c->on_card) return up_new(c, e);
    AB_CARD(krn_experts_kx_up(c->buf[X], ids_of(c), c->T, c->dim[PICKS], &bank, gate,
                              gate + (int64_t)c->T * c->dim[PICKS] * (c->dim[N] / 2), c->stream, e));
    (void)bank, (void)gate;
    return ERR_OK;
}

static err_code down_laid(const ab_call *c, err *e)
{
    const krn_kx_bank bank = laid(c);
    if (!c->on_card) return down_new(c, e);
    AB_CARD(krn_experts_kx_down(c->buf[X], ids_of(c), c->T, c->dim[PICKS], &bank, c->buf[Y], c->stream, e));
    (void)bank;
    return ERR_OK;
}

/* ---- bytes ---- */

/* Of the matrices that T rows want: packed, expanded. */
static void bank_bytes(const int32_t *dim, int32_t T, uint64_t out[AB_SIDES])
{
    const int32_t picks = T * dim[PICKS], used = picks < dim[EXPERTS] ? picks : dim[EXPERTS];
    const uint64_t elems = (uint64_t)used * (uint64_t)dim[N] * (uint64_t)dim[K];
    out[AB_BASE] = elems * 2;
    out[AB_NEW] = elems / 2 + elems / GROUP;
}

static void up_bytes(const int32_t *dim, int32_t T, uint64_t out[AB_SIDES])
{
    const uint64_t t = (uint64_t)T, n = (uint64_t)dim[N], k = (uint64_t)dim[K], picks = (uint64_t)dim[PICKS];
    bank_bytes(dim, T, out);
    for (int s = 0; s < AB_SIDES; s++) out[s] += t * (k * 2 + picks * (n * 2 + sizeof(int32_t)));
}

static void down_bytes(const int32_t *dim, int32_t T, uint64_t out[AB_SIDES])
{
    const uint64_t t = (uint64_t)T, n = (uint64_t)dim[N], k = (uint64_t)dim[K], picks = (uint64_t)dim[PICKS];
    bank_bytes(dim, T, out);
    for (int s = 0; s < AB_SIDES; s++) out[s] += t * picks * (k * 2 + n * 4 + sizeof(int32_t));
}

/* Whole blocks: a little more than codes and scales. */
static void laid_bytes(const int32_t *dim, int32_t T, uint64_t out[AB_SIDES])
{
    const int32_t picks = T * dim[PICKS], used = picks < dim[EXPERTS] ? picks : dim[EXPERTS];
    const uint64_t elems = (uint64_t)used * (uint64_t)dim[N] * (uint64_t)dim[K];
    out[AB_BASE] = out[AB_NEW];
    out[AB_NEW] += (uint64_t)used * (uint64_t)krn_kx_bytes(dim[N], dim[K]) - elems / 2 - elems / GROUP;
}

static void up_laid_bytes(const int32_t *dim, int32_t T, uint64_t out[AB_SIDES])
{
    up_bytes(dim, T, out);
    laid_bytes(dim, T, out);
}

static void down_laid_bytes(const int32_t *dim, int32_t T, uint64_t out[AB_SIDES])
{
    down_bytes(dim, T, out);
    laid_bytes(dim, T, out);
}

/* Slots are written and read by the base alone. */
static void combine_bytes(const int32_t *dim, int32_t T, uint64_t out[AB_SIDES])
{
    const uint64_t t = (uint64_t)T, n = (uint64_t)dim[N], k = (uint64_t)dim[K], picks = (uint64_t)dim[PICKS];
    bank_bytes(dim, T, out);
    out[AB_NEW] += t * (picks * (k * 2 + sizeof(int32_t)) + n * 8);
    out[AB_BASE] = out[AB_NEW] + t * picks * (n * 8 + sizeof(int32_t));
}

static const ab_pair PAIRS[] = {
    { .name = { "experts_up_expanded", "experts_up_packed" },
      .summary = "w1 and w3 of every pick: in BF16, in MXFP4 as stored",
      .promise = AB_BOUND, .own_twin = true, .kinds = AB_BOUNDED, .t_max = 8, .seeds_max = 2,
      .dims = "experts n k picks", .shape = UP_SHAPES, .n_shapes = COUNT_OF(UP_SHAPES), .cpu_first = 1,
      .arrays = up_arrays, .weights = both_weights, .fill = ids_fill, .side = { up_base, up_new }, .bytes = up_bytes,
      .bound = up_bound },
    { .name = { "experts_down_expanded", "experts_down_packed" }, .summary = "w2 of every pick, likewise",
      .promise = AB_BOUND, .own_twin = true, .kinds = AB_BOUNDED, .t_max = 8, .seeds_max = 2,
      .dims = "experts n k picks", .shape = DOWN_SHAPES, .n_shapes = COUNT_OF(DOWN_SHAPES), .cpu_first = 1,
      .arrays = down_arrays, .weights = both_weights, .fill = ids_fill, .side = { down_base, down_new },
      .bytes = down_bytes, .bound = down_bound },
    { .name = { "experts_down+combine_fused", "experts_down_combine" },
      .summary = "w2 of every pick, summed in the product",
      .own_twin = true, .kinds = AB_NUMBERS, .t_max = 8, .seeds_max = 100, .dims = "experts n k picks",
      .shape = DOWN_SHAPES, .n_shapes = COUNT_OF(DOWN_SHAPES), .cpu_first = 1, .arrays = combine_arrays,
      .weights = packed_weights, .fill = ids_fill, .side = { combine_base, combine_new }, .bytes = combine_bytes },
    { .name = { "experts_up_packed", "experts_up_kx" },
      .summary = "w1 and w3 of every pick: MXFP4 as stored, in fragment order", .kinds = AB_NUMBERS, .t_max = 8,
      .seeds_max = 20, .dims = "experts n k picks", .shape = UP_SHAPES, .n_shapes = COUNT_OF(UP_SHAPES), .cpu_first = 1,
      .arrays = up_laid_arrays, .weights = packed_weights, .fill = ids_fill, .prepare = lay, .side = { up_new, up_laid },
      .bytes = up_laid_bytes },
    { .name = { "experts_down_packed", "experts_down_kx" }, .summary = "w2 of every pick, likewise", .kinds = AB_NUMBERS,
      .t_max = 8, .seeds_max = 20, .dims = "experts n k picks", .shape = DOWN_SHAPES, .n_shapes = COUNT_OF(DOWN_SHAPES),
      .cpu_first = 1, .arrays = down_laid_arrays, .weights = packed_weights, .fill = ids_fill, .prepare = lay,
      .side = { down_new, down_laid }, .bytes = down_laid_bytes },
};
const ab_pair_list AB_PAIRS_EXPERTS = { PAIRS, COUNT_OF(PAIRS) };
