/* Pairs of products: expanded to BF16 against packed as the checkpoint stores it, two of the same rows as one launch, and
 * the Markov term with hot rows. */
#include "engine/ab_sides.h"

#include "engine/noise.h"
#include "kernels/linear.h"
#include "kernels/markov.h"

enum { GROUP = FMT_QDQ_GROUP };

/* ---- dense: BF16, FP8 ---- the same values, sums in another order */

enum { D_N, D_K };
enum { D_X, D_CODES, D_SCALES, D_EXPANDED, D_Y, D_ARRAYS };
/* wq_b, wo_b, wq_a of one of two ranks; then a small one. */
static const int32_t DENSE_SHAPES[][AB_DIMS_MAX] = { { 16384, 1280 }, { 5120, 4096 }, { 1280, 5120 }, { 320, 256 } };

static int32_t dense_arrays(const int32_t *dim, int32_t T, ab_array *a)
{
    const int64_t n = dim[D_N], k = dim[D_K];
    a[D_X] = ab_bf16("x", T * k, 1.0f);
    a[D_CODES] = ab_weight("codes", FMT_DTYPE_F8, n * k);
    a[D_SCALES] = ab_weight("scales", FMT_DTYPE_E8M0, n / GROUP * (k / GROUP));
    a[D_EXPANDED] = ab_weight("expanded", FMT_DTYPE_BF16, n * k);
    a[D_Y] = ab_out("y", FMT_DTYPE_F32, T * n);
    return D_ARRAYS;
}

static krn_weight dense_packed(const int32_t *dim, void *const *buf)
{
    return (krn_weight){ .format = KRN_W_FP8, .n = dim[D_N], .k = dim[D_K], .data = buf[D_CODES], .row_bytes = dim[D_K],
                         .scale = buf[D_SCALES], .scale_row_bytes = dim[D_K] / GROUP };
}

/* Codes of all values but NaN; scales of usual size, which leave every weight a bf16 number. */
static void dense_weights(const ab_inputs *in)
{
    enum { ROWS = 32 }; /* that share their scales: decoded together */
    const int64_t n = in->dim[D_N], k = in->dim[D_K];
    uint8_t *codes = in->buf[D_CODES], *scales = in->buf[D_SCALES];
    bf16 *expanded = in->buf[D_EXPANDED];
    const uint64_t key = eng_noise_key(1, "ab dense");
    const krn_weight w = dense_packed(in->dim, in->buf);
    for (int64_t i = 0; i < n / GROUP * (k / GROUP); i++)
        scales[i] = (uint8_t)(114 + eng_noise_bits(key + 1, (uint64_t)i) % 5);
#pragma omp parallel for
    for (int64_t row = 0; row < n; row += ROWS) {
        for (int64_t i = row * k; i < (row + ROWS) * k; i++) {
            const uint8_t code = (uint8_t)eng_noise_bits(key, (uint64_t)i);
            codes[i] = (code & 0x7f) == 0x7f ? code - 1 : code;
        }
        CHECK(krn_weight_decode_bf16(&w, (int32_t)row, ROWS, expanded + row * k) == 0);
    }
}

static err_code dense_run(const ab_call *c, const krn_weight *w, err *e)
{
    const int32_t n = c->dim[D_N], k = c->dim[D_K];
    if (!c->on_card) krn_linear_ref(c->buf[D_X], k, c->T, w, KRN_ACC_BLOCKED, KRN_OUT_F32, c->buf[D_Y], n);
    else AB_CARD(krn_linear(c->buf[D_X], k, c->T, w, KRN_OUT_F32, c->buf[D_Y], n, c->stream, e));
    (void)e;
    return ERR_OK;
}

static err_code dense_base(const ab_call *c, err *e)
{
    const krn_weight w = { .format = KRN_W_BF16, .n = c->dim[D_N], .k = c->dim[D_K], .data = c->buf[D_EXPANDED],
                           .row_bytes = 2 * (int64_t)c->dim[D_K] };
    return dense_run(c, &w, e);
}

static err_code dense_new(const ab_call *c, err *e)
{
    const krn_weight w = dense_packed(c->dim, c->buf);
    return dense_run(c, &w, e);
}

static void dense_bytes(const int32_t *dim, int32_t T, uint64_t out[AB_SIDES])
{
    const uint64_t n = (uint64_t)dim[D_N], k = (uint64_t)dim[D_K], rows = (uint64_t)T * (k * 2 + n * 4);
    out[AB_BASE] = n * k * 2 + rows;
    out[AB_NEW] = n * k + n / GROUP * (k / GROUP) + rows;
}

static void dense_bound(const ab_inputs *in, krn_span *y)
{
    const krn_weight w = dense_packed(in->dim, in->buf);
    const bf16 *x = in->buf[D_X];
    krn_linear_bound_job job[AB_T_MAX];
    for (int32_t t = 0; t < in->T; t++)
        job[t] = (krn_linear_bound_job){ .w = &w, .x = x + (int64_t)t * w.k, .y = y + (int64_t)t * w.n };
    krn_linear_bound(job, in->T, KRN_RULE_PARITY);
}

/* ---- two products of the same x, as one launch ---- the first N0 rows of a weight and the others are the two */

enum { P_N, P_K, P_N0 };
enum { P_FIRST = D_Y, P_SECOND = D_Y + 1, P_ARRAYS };
/* wq_a and wkv, w1 and w3 of the shared expert, of one of two ranks; then a small one. */
static const int32_t PAIR_SHAPES[][AB_DIMS_MAX] = { { 1792, 5120, 1280 }, { 2304, 5120, 1152 }, { 160, 256, 96 } };

static int32_t pair_arrays(const int32_t *dim, int32_t T, ab_array *a)
{
    dense_arrays(dim, T, a);
    a[P_FIRST] = ab_out("first", FMT_DTYPE_F32, (int64_t)T * dim[P_N0]);
    a[P_SECOND] = ab_out("second", FMT_DTYPE_F32, (int64_t)T * (dim[P_N] - dim[P_N0]));
    return P_ARRAYS;
}

static void pair_weights_of(const ab_call *c, krn_weight w[2])
{
    const krn_weight both = dense_packed(c->dim, c->buf);
    w[0] = krn_weight_slice(&both, 0, c->dim[P_N0], 0, c->dim[P_K]);
    w[1] = krn_weight_slice(&both, c->dim[P_N0], c->dim[P_N] - c->dim[P_N0], 0, c->dim[P_K]);
}

static err_code pair_apart(const ab_call *c, err *e)
{
    krn_weight w[2];
    pair_weights_of(c, w);
    for (int i = 0; i < 2; i++) {
        if (!c->on_card)
            krn_linear_ref(c->buf[D_X], w[i].k, c->T, &w[i], KRN_ACC_BLOCKED, KRN_OUT_F32, c->buf[P_FIRST + i], w[i].n);
        else AB_CARD(krn_linear(c->buf[D_X], w[i].k, c->T, &w[i], KRN_OUT_F32, c->buf[P_FIRST + i], w[i].n, c->stream, e));
    }
    (void)e;
    return ERR_OK;
}

static err_code pair_together(const ab_call *c, err *e)
{
    krn_weight w[2];
    if (!c->on_card) return pair_apart(c, e);
    pair_weights_of(c, w);
    AB_CARD(krn_linear_pair(c->buf[D_X], w[0].k, c->T,
                            (const krn_linear_side[]){ { &w[0], KRN_OUT_F32, c->buf[P_FIRST], w[0].n },
                                                       { &w[1], KRN_OUT_F32, c->buf[P_SECOND], w[1].n } },
                            c->stream, e));
    return ERR_OK;
}

/* x is read once. */
static void pair_bytes(const int32_t *dim, int32_t T, uint64_t out[AB_SIDES])
{
    dense_bytes(dim, T, out);
    out[AB_BASE] = out[AB_NEW] + (uint64_t)T * (uint64_t)dim[P_K] * 2;
}

/* ---- Markov: computed, from the table of hot rows ---- T slots at their first position */

enum { M_N, M_RANK, M_VOCAB, M_HOT };
enum { M_LOGITS, M_ANCHOR, M_EMBED, M_HEAD, M_ROW, M_TOKENS, M_TERM, M_DRAFTS, M_BIASED, M_BEST, M_ARRAYS };
/* Half of the vocabulary, and as many hot rows as no cache holds; then a small one. */
static const int32_t MARKOV_SHAPES[][AB_DIMS_MAX] = { { 64768, 256, 4096, 256 }, { 1000, 96, 300, 64 } };

static int32_t markov_arrays(const int32_t *dim, int32_t T, ab_array *a)
{
    const int64_t n = dim[M_N], rank = dim[M_RANK];
    a[M_LOGITS] = ab_f32("logits", T * n, 4.0f);
    a[M_ANCHOR] = ab_i32("anchor", (int64_t)AB_NODES * T);
    a[M_EMBED] = ab_weight("embed", FMT_DTYPE_BF16, dim[M_VOCAB] * rank);
    a[M_HEAD] = ab_weight("head", FMT_DTYPE_BF16, n * rank);
    a[M_ROW] = ab_weight("row", FMT_DTYPE_I32, dim[M_VOCAB]);
    a[M_TOKENS] = ab_weight("tokens", FMT_DTYPE_I32, dim[M_HOT]);
    a[M_TERM] = ab_work("term", FMT_DTYPE_F32, dim[M_HOT] * n);
    a[M_DRAFTS] = ab_work("drafts", FMT_DTYPE_I32, T);
    a[M_BIASED] = ab_out("biased", FMT_DTYPE_F32, T * n);
    a[M_BEST] = ab_out("best", FMT_DTYPE_U64, (int64_t)T * KRN_MARKOV_PARTS);
    return M_ARRAYS;
}

/* Every other token is hot, as far as there are rows. */
static void markov_weights(const ab_inputs *in)
{
    const int64_t rank = in->dim[M_RANK];
    int32_t *row = in->buf[M_ROW], *tokens = in->buf[M_TOKENS];
    ab_fill_numbers(FMT_DTYPE_BF16, in->buf[M_EMBED], in->dim[M_VOCAB] * rank, 1.0f, AB_PLAIN, 1, "ab embed");
    ab_fill_numbers(FMT_DTYPE_BF16, in->buf[M_HEAD], in->dim[M_N] * rank, 0.1f, AB_PLAIN, 1, "ab head");
    for (int32_t i = 0; i < in->dim[M_VOCAB]; i++) row[i] = -1;
    for (int32_t i = 0; i < in->dim[M_HOT]; i++) row[tokens[i] = 2 * i] = i;
}

static err_code markov_prepare(const ab_call *c, err *e)
{
    const int32_t *dim = c->dim;
    if (!c->on_card)
        krn_markov_terms_ref(c->buf[M_EMBED], c->buf[M_HEAD], dim[M_VOCAB], dim[M_RANK], dim[M_N], c->buf[M_TOKENS],
                             dim[M_HOT], false, KRN_ACC_BLOCKED, c->buf[M_TERM]);
    else AB_CARD(krn_markov_terms(c->buf[M_EMBED], c->buf[M_HEAD], dim[M_VOCAB], dim[M_RANK], dim[M_N], c->buf[M_TOKENS],
                                  dim[M_HOT], false, c->buf[M_TERM], c->stream, e));
    (void)e;
    return ERR_OK;
}

/* Hot tokens, other ones in each node of a timed unit. Stale: cold ones among them, and ids outside of the vocabulary. */
static void markov_fill(const ab_inputs *in)
{
    const int32_t hot = in->dim[M_HOT], vocab = in->dim[M_VOCAB];
    int32_t *anchor = in->buf[M_ANCHOR];
    const uint64_t key = eng_noise_key(in->seed, "anchor");
    for (int32_t i = 0; i < AB_NODES * in->T; i++) {
        const uint64_t b = eng_noise_bits(key, (uint64_t)i);
        anchor[i] = in->kind == AB_STALE ? (int32_t)(b % (uint64_t)(vocab + 8)) - 4
                                         : (int32_t)(2 * (((uint64_t)i + in->seed) % (uint64_t)hot));
    }
}

static err_code markov_run(const ab_call *c, const krn_markov_table *table, err *e)
{
    const int32_t *dim = c->dim, *anchor = (const int32_t *)c->buf[M_ANCHOR] + (int64_t)c->node * c->T;
    krn_best *best = c->buf[M_BEST], one[KRN_MARKOV_BATCH_MAX];
    if (c->on_card) {
        AB_CARD(krn_markov_step(c->buf[M_LOGITS], c->buf[M_EMBED], c->buf[M_HEAD], dim[M_VOCAB], dim[M_RANK], dim[M_N], 0,
                                c->T, 1, 1, 0, anchor, NULL, 1, table, c->buf[M_DRAFTS], c->buf[M_BIASED], best, c->stream,
                                e));
        return ERR_OK;
    }
    krn_markov_step_ref(c->buf[M_LOGITS], c->buf[M_EMBED], c->buf[M_HEAD], dim[M_VOCAB], dim[M_RANK], dim[M_N], 0, c->T, 1,
                        1, 0, anchor, c->buf[M_DRAFTS], table, KRN_ACC_BLOCKED, c->buf[M_BIASED], one);
    for (int32_t i = 0; i < c->T * KRN_MARKOV_PARTS; i++) best[i] = one[i / KRN_MARKOV_PARTS]; /* the twin has one part */
    (void)e;
    return ERR_OK;
}

static err_code markov_base(const ab_call *c, err *e) { return markov_run(c, NULL, e); }

static err_code markov_hot(const ab_call *c, err *e)
{
    const krn_markov_table table = { .bf16 = false, .row = c->buf[M_ROW], .term = c->buf[M_TERM] };
    return markov_run(c, &table, e);
}

/* Where all tokens are hot: the head is not read at all. */
static void markov_bytes(const int32_t *dim, int32_t T, uint64_t out[AB_SIDES])
{
    const uint64_t n = (uint64_t)dim[M_N], rank = (uint64_t)dim[M_RANK], t = (uint64_t)T;
    out[AB_BASE] = t * n * 8 + n * rank * 2 + t * rank * 2;
    out[AB_NEW] = t * n * 12;
}

static const ab_pair PAIRS[] = {
    { .name = { "linear_expanded", "linear_packed" }, .summary = "a dense product: weights in BF16, in FP8 as stored",
      .promise = AB_BOUND, .own_twin = true, .kinds = AB_BOUNDED, .t_max = AB_T_MAX, .seeds_max = 4, .dims = "n k",
      .shape = DENSE_SHAPES, .n_shapes = COUNT_OF(DENSE_SHAPES), .cpu_first = COUNT_OF(DENSE_SHAPES) - 1,
      .arrays = dense_arrays, .weights = dense_weights, .side = { dense_base, dense_new }, .bytes = dense_bytes,
      .bound = dense_bound },
    { .name = { "linear+linear", "linear_pair" }, .summary = "two products of the same rows", .kinds = AB_NUMBERS,
      .t_max = AB_T_MAX, .seeds_max = 20, .dims = "n k n0", .shape = PAIR_SHAPES, .n_shapes = COUNT_OF(PAIR_SHAPES),
      .cpu_first = COUNT_OF(PAIR_SHAPES) - 1, .arrays = pair_arrays, .weights = dense_weights,
      .side = { pair_apart, pair_together }, .bytes = pair_bytes },
    { .name = { "markov_step", "markov_step_hot" }, .summary = "the Markov term: computed, from the table of hot rows",
      .own_twin = true, .kinds = AB_NUMBERS | AB_BIT(AB_STALE), .t_max = KRN_MARKOV_BATCH_MAX,
      .dims = "n rank vocab hot", .shape = MARKOV_SHAPES, .n_shapes = COUNT_OF(MARKOV_SHAPES),
      .cpu_first = COUNT_OF(MARKOV_SHAPES) - 1, .arrays = markov_arrays, .weights = markov_weights, .fill = markov_fill,
      .prepare = markov_prepare, .side = { markov_base, markov_hot }, .bytes = markov_bytes },
};
const ab_pair_list AB_PAIRS_LINEAR = { PAIRS, COUNT_OF(PAIRS) };
