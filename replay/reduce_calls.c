/* The calls of a bundle's test.c: one line or two for each op of the chain, with the numbers and the data that
 * engine/exec_ops.c gives the twin. */
#include "replay/reduce.h"

#include <inttypes.h>

#include "base/mem.h"
#include "formats/exl3.h"

/* An op being written out. */
typedef struct call {
    rpl_bundle *b;
    const eng_op *op;
    FILE *f;
    char in[ENG_OP_INS][48], out[ENG_OP_OUTS][48]; /* names in C */
} call;

/* ---- values ---- */

static const char *c_type(fmt_dtype d) { return d == FMT_DTYPE_BF16 ? "bf16" : d == FMT_DTYPE_F32 ? "float" : "int32_t"; }

static int64_t elems(const rpl_bundle *b, int32_t v)
{
    fmt_tensor t = rpl_bundle_slice(b, v, NULL);
    return fmt_tensor_elems(&t);
}

static int32_t width(const rpl_bundle *b, int32_t v)
{
    fmt_tensor t = rpl_bundle_slice(b, v, NULL);
    return t.shape[0] ? (int32_t)(fmt_tensor_elems(&t) / t.shape[0]) : 0;
}

static bool reads(const rpl_group *g, int32_t v)
{
    for (int32_t k = 0; k < g->n_in; k++)
        if (g->in[k] == v) return true;
    return false;
}

/* Tokens and positions become rows of an embedding and lengths of windows: test.c has these instead. */
static bool is_number(eng_kind kind, int32_t k)
{
    return (kind == ENG_OP_EMBED && k == 0) || (kind == ENG_OP_ATTENTION && k >= 2) || (kind == ENG_OP_MARKOV && k == 1) ||
           (kind == ENG_OP_CONFIDENCE && k >= 1);
}

static bool is_loaded(const rpl_bundle *b, int32_t v)
{
    for (int32_t i = 0; i < b->group->n_ops; i++) {
        const eng_op *op = &b->program->op[b->group->op[i]];
        for (int32_t k = 0; k < op->n_in; k++)
            if (op->in[k] == v && !is_number(op->kind, k)) return true;
    }
    return false;
}

static err_code load_inputs(rpl_bundle *b, err *e)
{
    for (int32_t k = 0; k < b->group->n_in; k++) {
        int32_t v = b->group->in[k];
        char name[48];
        if (!is_loaded(b, v)) continue;
        fmt_tensor t = rpl_bundle_slice(b, v, eng_bench_value(b->bench, v));
        rpl_bundle_name(b, v, name);
        TRY(rpl_bundle_array(b, b->program->value[v].name, &t, e));
        fprintf(b->test, "    const %s *%s = bundle_load(\"%s\", %" PRIu64 ");\n", c_type(t.dtype), name,
                b->program->value[v].name, fmt_tensor_bytes(&t));
    }
    return ERR_OK;
}

/* ---- weights ---- */

/* "attn.wq_a"; of an expert "ffn.experts.7.w1", of all of them (-1) "ffn.experts.w1". */
static void weight_name(const call *c, int i, int32_t expert, char name[64])
{
    const char *kind = eng_wkind_of(c->op->weight[i])->name, *star = strchr(kind, '*');
    if (!star) snprintf(name, 64, "%s", kind);
    else if (expert < 0) snprintf(name, 64, "%.*s%s", (int)(star - kind), kind, star + 2);
    else snprintf(name, 64, "%.*s%d%s", (int)(star - kind), kind, expert, star + 1);
}

static void c_weight(const char *name, char out[64])
{
    snprintf(out, 64, "w_%.60s", name);
    for (char *p = out; *p; p++)
        if (*p == '.') *p = '_';
}

/* Rows of a strided matrix as data/NAME.npy. rows: which (NULL: the first n). */
static err_code write_rows(rpl_bundle *b, const char *name, fmt_dtype dtype, const void *data, int64_t stride_bytes,
                           const int32_t *rows, int32_t n, int64_t cols, err *e)
{
    size_t row_bytes = (size_t)cols * fmt_dtype_bytes(dtype);
    uint8_t *dense = mem_alloc((size_t)n * row_bytes + 1, 1);
    if (!dense) return err_set(e, ERR_NOMEM, "reduce: no memory for %s", name);
    for (int32_t r = 0; r < n; r++)
        memcpy(dense + (size_t)r * row_bytes, (const uint8_t *)data + (rows ? rows[r] : r) * stride_bytes, row_bytes);
    fmt_tensor t = fmt_tensor_make(dtype, dense, 2, (const int64_t[]){ n, cols });
    err_code rc = rpl_bundle_array(b, name, &t, e);
    free(dense);
    return rc;
}

/* A row of tiles after the other, as bundle_exl3 reads them: whole blocks, also those that the weight fills in part. */
static err_code write_exl3(rpl_bundle *b, const char *name, const krn_weight *w, err *e)
{
    const krn_exl3 *x = &w->exl3;
    CHECK(x->k0 == 0 && x->n0 == 0); /* a bench holds whole weights */
    const int64_t blocks_k = (w->k - 1) / FMT_EXL3_BLOCK + 1, blocks_n = (w->n - 1) / FMT_EXL3_BLOCK + 1;
    const int64_t strips = blocks_k * (FMT_EXL3_BLOCK / FMT_EXL3_TILE), words = FMT_EXL3_TILE * x->bits;
    const size_t block_row = (size_t)words * sizeof(uint16_t) * (FMT_EXL3_BLOCK / FMT_EXL3_TILE);
    uint8_t *dense = mem_alloc((size_t)(strips * blocks_n), block_row), *to = dense;
    char factors[80];
    if (!dense) return err_set(e, ERR_NOMEM, "reduce: no memory for %s", name);
    for (int64_t i = 0; i < strips; i++)
        for (int64_t j = 0; j < blocks_n; j++, to += block_row)
            memcpy(to, (const uint8_t *)w->data + i * w->row_bytes + j * x->block_bytes, block_row);
    fmt_tensor t = fmt_tensor_make(FMT_DTYPE_U16, dense, 3,
                                   (const int64_t[]){ strips, blocks_n * (FMT_EXL3_BLOCK / FMT_EXL3_TILE), words });
    err_code rc = rpl_bundle_array(b, name, &t, e);
    free(dense);
    if (rc != ERR_OK) return rc;
    snprintf(factors, sizeof factors, "%s.suh", name);
    t = fmt_tensor_make(FMT_DTYPE_F16, x->suh, 1, (const int64_t[]){ blocks_k * FMT_EXL3_BLOCK });
    TRY(rpl_bundle_array(b, factors, &t, e));
    snprintf(factors, sizeof factors, "%s.svh", name);
    t = fmt_tensor_make(FMT_DTYPE_F16, x->svh, 1, (const int64_t[]){ blocks_n * FMT_EXL3_BLOCK });
    return rpl_bundle_array(b, factors, &t, e);
}

/* A matrix: codes and scales, numbers, or tiles and factors. */
static err_code write_matrix(rpl_bundle *b, const char *name, const krn_weight *w, err *e)
{
    char scale[80];
    const int32_t groups = w->k / FMT_QDQ_GROUP;
    snprintf(scale, sizeof scale, "%s.scale", name);
    switch (w->format) {
    case KRN_W_BF16: return write_rows(b, name, FMT_DTYPE_BF16, w->data, w->row_bytes, NULL, w->n, w->k, e);
    case KRN_W_F32: return write_rows(b, name, FMT_DTYPE_F32, w->data, w->row_bytes, NULL, w->n, w->k, e);
    case KRN_W_FP8:
        TRY(write_rows(b, name, FMT_DTYPE_U8, w->data, w->row_bytes, NULL, w->n, w->k, e));
        return write_rows(b, scale, FMT_DTYPE_U8, w->scale, w->scale_row_bytes, NULL,
                          (w->n + FMT_QDQ_GROUP - 1) / FMT_QDQ_GROUP, groups, e);
    case KRN_W_FP4:
        TRY(write_rows(b, name, FMT_DTYPE_U8, w->data, w->row_bytes, NULL, w->n, w->k / 2, e));
        return write_rows(b, scale, FMT_DTYPE_U8, w->scale, w->scale_row_bytes, NULL, w->n, groups, e);
    case KRN_W_EXL3: return write_exl3(b, name, w, e);
    }
    return ERR_OK;
}

/* The expression that is the matrix. */
static void put_matrix(FILE *f, const char *name, const krn_weight *w)
{
    static const char *const FORMATS[] = { [KRN_W_FP8] = "KRN_W_FP8", [KRN_W_FP4] = "KRN_W_FP4",
                                           [KRN_W_BF16] = "KRN_W_BF16", [KRN_W_F32] = "KRN_W_F32" };
    static const char *const CODEBOOKS[] = { [FMT_EXL3_3INST] = "FMT_EXL3_3INST", [FMT_EXL3_MCG] = "FMT_EXL3_MCG",
                                             [FMT_EXL3_MUL1] = "FMT_EXL3_MUL1" };
    if (w->format == KRN_W_EXL3)
        fprintf(f, "bundle_exl3(\"%s\", %d, %s, %d, %d)", name, w->exl3.bits, CODEBOOKS[w->exl3.codebook], w->n, w->k);
    else fprintf(f, "bundle_weight(\"%s\", %s, %d, %d)", name, FORMATS[w->format], w->n, w->k);
}

static const krn_weight *weight(const call *c, int i, int32_t expert)
{
    return eng_bench_weight(c->b->bench, c->op->weight[i], c->op->stage, expert);
}

/* Writes weight i and declares it; c_name [64] is its name in C. A vector is a plain array. */
static err_code declare(call *c, int i, char c_name[64], err *e)
{
    const krn_weight *w = weight(c, i, -1);
    char name[64];
    weight_name(c, i, -1, name);
    c_weight(name, c_name);
    if (w->k == 1) {
        fmt_dtype dtype = w->format == KRN_W_F32 ? FMT_DTYPE_F32 : FMT_DTYPE_BF16;
        TRY(write_rows(c->b, name, dtype, w->data, w->row_bytes, NULL, w->n, 1, e));
        fprintf(c->f, "    const %s *%s = bundle_load(\"%s\", %" PRId64 ");\n", c_type(dtype), c_name, name,
                (int64_t)w->n * fmt_dtype_bytes(dtype));
        return ERR_OK;
    }
    TRY(write_matrix(c->b, name, w, e));
    fprintf(c->f, "    const krn_weight %s = ", c_name);
    put_matrix(c->f, name, w);
    fputs(";\n", c->f);
    return ERR_OK;
}

/* Rows id[n] of the embedding that is weight i, once each: they become data/NAME.npy, and id the rows' numbers in it,
 * data/INDEX.npy. *n_rows: how many. */
static err_code declare_embedding(call *c, int i, const char *index, int32_t *id, int32_t n, int32_t *n_rows,
                                  char c_name[64], err *e)
{
    const krn_weight *w = weight(c, i, -1);
    char name[64];
    int32_t *row = mem_alloc((size_t)n + 1, sizeof *row);
    if (!row) return err_set(e, ERR_NOMEM, "reduce: no memory");
    *n_rows = 0;
    for (int32_t k = 0; k < n; k++) {
        int32_t at = 0, one = id[k] < 0 || id[k] >= w->n ? 0 : id[k];
        while (at < *n_rows && row[at] != one) at++;
        if (at == *n_rows) row[(*n_rows)++] = one;
        id[k] = at;
    }
    weight_name(c, i, -1, name);
    c_weight(name, c_name);
    err_code rc = write_rows(c->b, name, FMT_DTYPE_BF16, w->data, w->row_bytes, row, *n_rows, w->k, e);
    free(row);
    if (rc != ERR_OK) return rc;
    fmt_tensor t = fmt_tensor_make(FMT_DTYPE_I32, id, 1, (const int64_t[]){ n });
    fprintf(c->f, "    const bf16 *%s = bundle_load(\"%s\", %" PRId64 "); /* %d rows of %d */\n", c_name, name,
            (int64_t)*n_rows * w->k * 2, *n_rows, w->n);
    fprintf(c->f, "    const int32_t *%s = bundle_load(\"%s\", %d); /* which of them */\n", index, index, 4 * n);
    return rpl_bundle_array(c->b, index, &t, e);
}

/* ---- ops ---- */

static int32_t rows_of(const call *c) { return (int32_t)c->b->x.n[ENG_DIM_ROWS]; }
static const eng_config *config(const call *c) { return c->b->config; }

static err_code put_embed(call *c, err *e)
{
    int32_t n = rows_of(c), n_rows;
    char w[64];
    const int32_t *ids = (const int32_t *)eng_bench_value(c->b->bench, c->op->in[0]) + c->b->row;
    int32_t *row = mem_alloc((size_t)n + 1, sizeof *row);
    if (!row) return err_set(e, ERR_NOMEM, "reduce: no memory");
    memcpy(row, ids, (size_t)n * sizeof *row);
    err_code rc = declare_embedding(c, 0, "embed_row", row, n, &n_rows, w, e);
    free(row);
    fprintf(c->f, "    krn_embed_ref(embed_row, %d, %s, %d, %d, %d, %s);\n", n, w, n_rows, config(c)->dim, config(c)->hc,
            c->out[0]);
    return rc;
}

/* How sums with weight i are made: of EXL3 weights on the fp16 rows that everybody has, if the tape's run had them. */
static const char *acc_of(const call *c, int i)
{
    const bool exl3 = eng_reps_exl3(&c->b->program->reps, c->op->weight[i]);
    return exl3 && c->b->exl3_acc == KRN_ACC_BLOCKED ? "KRN_ACC_BLOCKED" : "KRN_ACC_F64";
}

/* Parts that are summed each alone, as the bench does: one a rank, where ranks cut the op's sum. */
static int32_t parts_of(const call *c)
{
    return eng_wkind_of(c->op->weight[0])->cut == ENG_CUT_COLS ? eng_bench_ranks(c->b->bench) : 1;
}

static err_code put_linear(call *c, err *e)
{
    char w[64];
    const krn_weight *view = weight(c, 0, -1);
    const int32_t parts = parts_of(c);
    bool wide = c->b->program->value[c->op->out[0]].dtype == FMT_DTYPE_F32;
    TRY(declare(c, 0, w, e));
    if (parts > 1) /* partial sums are f32 */
        fprintf(c->f, "    bundle_parts(%s, %d, &%s, %d, %s, %s);\n", c->in[0], rows_of(c), w, parts, acc_of(c, 0),
                c->out[0]);
    else
        fprintf(c->f, "    krn_linear_ref(%s, %d, %d, &%s, %s, %s, %s, %d);\n", c->in[0], view->k, rows_of(c), w,
                acc_of(c, 0), wide ? "KRN_OUT_F32" : "KRN_OUT_BF16", c->out[0], view->n);
    return ERR_OK;
}

static err_code put_rmsnorm(call *c, err *e)
{
    char w[64];
    int32_t n = width(c->b, c->op->in[0]);
    TRY(declare(c, 0, w, e));
    fprintf(c->f, "    krn_rmsnorm_ref(%s, %d, %s, %s, %d, %d, %d, %.9g);\n", c->in[0], n, w, c->out[0], n, rows_of(c), n,
            (double)(float)config(c)->norm_eps);
    return ERR_OK;
}

static void put_rope(const call *c, bool inverse)
{
    int32_t hd = config(c)->head_dim;
    fprintf(c->f, "    float freq_%s[%d];\n    krn_rope_freqs(%.17g, %d, freq_%s);\n", c->out[0], config(c)->rope_dim / 2,
            config(c)->rope_theta, config(c)->rope_dim, c->out[0]);
    fprintf(c->f, "    krn_rope_ref(%s, %s, %d, %d, %d, %d, %s, freq_%s, %s, KRN_ACC_F64);\n", c->in[0], c->out[0],
            rows_of(c), width(c->b, c->op->in[0]) / hd, hd, config(c)->rope_dim, c->in[1], c->out[0],
            inverse ? "true" : "false");
}

static err_code put_mixes(call *c, err *e)
{
    const eng_config *g = config(c);
    char base[64], scale[64];
    TRY(declare(c, 0, base, e));
    TRY(declare(c, 1, scale, e));
    fprintf(c->f, "    krn_mhc_mixes_ref(%s, %s, %s, %s, %d, %d, %d, %.9g, %.9g, %d, %s, %s, %s, KRN_ACC_F64);\n", c->in[0],
            c->in[1], base, scale, rows_of(c), g->hc, g->dim, (double)(float)g->norm_eps, (double)(float)g->hc_eps,
            g->sinkhorn_iters, c->out[0], c->out[1], c->out[2]);
    return ERR_OK;
}

static err_code put_attention(call *c, err *e)
{
    const eng_config *g = config(c);
    const int32_t *last = (const int32_t *)eng_bench_value(c->b->bench, c->op->in[2]) + c->b->entry;
    char sink[64];
    const int32_t q_block = g->block * g->n_heads * g->head_dim, kv_block = g->block * g->head_dim;
    TRY(declare(c, 0, sink, e));
    for (int32_t b = 0; b < c->b->x.n[ENG_DIM_B]; b++) {
        char name[32];
        int32_t n = last[b] + 1 < g->window ? last[b] + 1 : g->window;
        fmt_tensor ring = fmt_tensor_make(FMT_DTYPE_BF16, eng_bench_ring(c->b->bench, c->b->entry + b, c->op->stage), 2,
                                          (const int64_t[]){ n, g->head_dim });
        snprintf(name, sizeof name, "window%d", b);
        TRY(rpl_bundle_array(c->b, name, &ring, e));
        fprintf(c->f, "    const bf16 *%s = bundle_load(\"%s\", %" PRIu64 ");\n", name, name, fmt_tensor_bytes(&ring));
        fprintf(c->f, "    krn_attention_ref(%s + %d, %s, %d, %s + %d, %d, %s, %.9g, %d, %d, %s + %d, KRN_ACC_F64);\n",
                c->in[0], b * q_block, name, n, c->in[1], b * kv_block, g->block, sink,
                (double)(float)pow((double)g->head_dim, -0.5), g->n_heads, g->head_dim, c->out[0], b * q_block);
    }
    return ERR_OK;
}

static err_code put_wo_a(call *c, err *e)
{
    char w[64];
    TRY(declare(c, 0, w, e));
    fprintf(c->f, "    bundle_grouped_linear(%s, %d, &%s, %d, KRN_ACC_F64, %s);\n", c->in[0], rows_of(c), w,
            config(c)->o_lora, c->out[0]);
    return ERR_OK;
}

static err_code put_topk(call *c, err *e)
{
    const eng_config *g = config(c);
    char bias[64];
    TRY(declare(c, 0, bias, e));
    fprintf(c->f, "    krn_gate_topk_ref(%s, %s, %d, %d, %d, %.9g, %s, %s, KRN_ACC_F64);\n", c->in[0], bias, rows_of(c),
            g->n_experts, g->n_active, (double)(float)g->route_scale, c->out[0], c->out[1]);
    return ERR_OK;
}

static bool is_chosen(const int32_t *ids, int32_t picks, int32_t expert)
{
    for (int32_t k = 0; k < picks; k++)
        if (ids[k] == expert) return true;
    return false;
}

/* The weights of the experts that the rows chose, and no others. */
static err_code put_experts(call *c, bool up, err *e)
{
    const eng_config *g = config(c);
    const int32_t picks = rows_of(c) * g->n_active, *ids = eng_bench_value(c->b->bench, c->op->in[1]);
    ids += (int64_t)c->b->row * g->n_active;
    for (int i = 0; i < c->op->n_weights; i++) {
        int32_t n = 0;
        char name[64], kind[64];
        weight_name(c, i, -1, kind);
        c_weight(kind, name);
        fprintf(c->f, "    const int32_t %s_of[] = { ", name);
        for (int32_t ex = 0; ex < g->n_experts; ex++)
            if (is_chosen(ids, picks, ex)) fprintf(c->f, "%s%d", n++ ? ", " : "", ex);
        fprintf(c->f, " };\n    const krn_weight %s[] = {\n", name);
        for (int32_t ex = 0; ex < g->n_experts; ex++) {
            char file[64];
            const krn_weight *w = weight(c, i, ex);
            if (!is_chosen(ids, picks, ex)) continue;
            weight_name(c, i, ex, file);
            TRY(write_matrix(c->b, file, w, e));
            fputs("        ", c->f);
            put_matrix(c->f, file, w);
            fputs(",\n", c->f);
        }
        fprintf(c->f, "    };\n    bundle_experts(%s, %s, %s, %d, %d, %s_of, %s, %d, %s, %d, %s, %s);\n", c->in[0],
                up ? "false" : "true", c->in[1], rows_of(c), g->n_active, name, name, n, acc_of(c, i), parts_of(c),
                up ? "KRN_OUT_BF16" : "KRN_OUT_F32", c->out[i]);
    }
    return ERR_OK;
}

/* The tokens that positions come after, as rows of the Markov embedding. */
static err_code put_tokens_before(call *c, int i, int32_t *n_rows, char embed[64], err *e)
{
    const int32_t batch = (int32_t)c->b->x.n[ENG_DIM_B], n_out = (int32_t)c->b->x.n[ENG_DIM_N_OUT], entry = c->b->entry;
    const int32_t *anchor = eng_bench_value(c->b->bench, c->op->in[1]), *forced = eng_bench_forced_drafts(c->b->bench);
    const int32_t v = eng_program_find_value(c->b->program, "drafts");
    const int32_t *tokens = forced ? forced : eng_bench_value(c->b->bench, v);
    int32_t before[ENG_BATCH_MAX * ENG_BLOCK_MAX];
    for (int32_t b = 0; b < batch; b++)
        for (int32_t k = 0; k < n_out; k++)
            before[b * n_out + k] = k ? tokens[(entry + b) * n_out + k - 1] : anchor[entry + b];
    return declare_embedding(c, i, "token_before", before, batch * n_out, n_rows, embed, e);
}

static err_code put_markov(call *c, err *e)
{
    const eng_config *g = config(c);
    char embed[64], head[64];
    int32_t n_rows;
    TRY(put_tokens_before(c, 0, &n_rows, embed, e));
    TRY(declare(c, 1, head, e));
    fprintf(c->f, "    bundle_markov(%s, %s, %d, %s.data, %d, %d, %d, %d, %d, token_before, %s, KRN_ACC_F64, %s, %s);\n",
            c->in[0], embed, n_rows, head, g->vocab, g->markov_rank, (int)c->b->x.n[ENG_DIM_B], g->block,
            (int)c->b->x.n[ENG_DIM_N_OUT], c->b->program->reps.markov == ENG_MARKOV_CACHE ? "true" : "false", c->out[0],
            c->out[1]);
    return ERR_OK;
}

static err_code put_confidence(call *c, err *e)
{
    const eng_config *g = config(c);
    char embed[64], w[64];
    int32_t n_rows;
    TRY(put_tokens_before(c, 0, &n_rows, embed, e));
    TRY(declare(c, 1, w, e));
    fprintf(c->f, "    bundle_confidence(%s, %d, %s, %d, %s%s, %d, %d, %d, token_before, KRN_ACC_F64, %s);\n", c->in[0],
            g->dim, embed, g->markov_rank, w, weight(c, 1, -1)->k == 1 ? "" : ".data", (int)c->b->x.n[ENG_DIM_B], g->block,
            (int)c->b->x.n[ENG_DIM_N_OUT], c->out[0]);
    return ERR_OK;
}

static err_code put_op(call *c, err *e)
{
    const eng_config *g = config(c);
    const eng_op *op = c->op;
    const int32_t rows = rows_of(c), n = op->n_in ? width(c->b, op->in[0]) : 0;
    FILE *f = c->f;
    switch (op->kind) {
    case ENG_OP_BLOCK_IDS:
        fprintf(f, "    krn_block_ids_ref(%s, %s, %d, %d, %d, %s, %s);\n", c->in[0], c->in[1], (int)c->b->x.n[ENG_DIM_B],
                g->block, g->noise_id, c->out[0], c->out[1]);
        break;
    case ENG_OP_EMBED: return put_embed(c, e);
    case ENG_OP_FIRST_PRE: fprintf(f, "    krn_first_pre_ref(%s, %d, %d);\n", c->out[0], rows, g->hc); break;
    case ENG_OP_ACT_QDQ:
        fprintf(f, "    krn_act_qdq_ref(%s, %d, %s, %d, %d, %d);\n", c->in[0], n, c->out[0], n, rows, n);
        break;
    case ENG_OP_LINEAR: return put_linear(c, e);
    case ENG_OP_RMSNORM: return put_rmsnorm(c, e);
    case ENG_OP_ROPE: put_rope(c, false); break;
    case ENG_OP_ROPE_INV: put_rope(c, true); break;
    case ENG_OP_MIXES: return put_mixes(c, e);
    case ENG_OP_COLLAPSE:
        fprintf(f, "    krn_mhc_collapse_ref(%s, %s, %s, %d, %d, %d, KRN_ACC_F64);\n", c->in[0], c->in[1], c->out[0], rows,
                g->hc, g->dim);
        break;
    case ENG_OP_EXPAND:
        fprintf(f, "    krn_mhc_expand_ref(%s, %s, %s, %s, %s, %d, %d, %d, KRN_ACC_F64);\n", c->in[0], c->in[1], c->in[2],
                c->in[3], c->out[0], rows, g->hc, g->dim);
        break;
    case ENG_OP_ATTENTION: return put_attention(c, e);
    case ENG_OP_WO_A: return put_wo_a(c, e);
    case ENG_OP_ROUND:
        fprintf(f, "    krn_round_bf16%s_ref(%s, %s, %" PRId64 ");\n",
                c->b->program->value[op->out[0]].dtype == FMT_DTYPE_F32 ? "_f32" : "", c->in[0], c->out[0],
                elems(c->b, op->in[0]));
        break;
    case ENG_OP_GATE_SCORES:
        fprintf(f, "    krn_gate_scores_ref(%s, %s, %d, %d);\n", c->in[0], c->out[0], rows, g->n_experts);
        break;
    case ENG_OP_TOPK: return put_topk(c, e);
    case ENG_OP_EXPERTS_UP: return put_experts(c, true, e);
    case ENG_OP_EXPERTS_DOWN: return put_experts(c, false, e);
    case ENG_OP_SWIGLU:
        fprintf(f, "    krn_swiglu_ref(%s, %s, %s, %.9g, %s, %d, %d);\n", c->in[0], c->in[1],
                op->n_in > 2 ? c->in[2] : "NULL", (double)(float)g->swiglu_limit, c->out[0],
                (int)(elems(c->b, op->in[0]) / g->inter), g->inter);
        break;
    case ENG_OP_COMBINE_EXACT:
    case ENG_OP_COMBINE_FUSED:
        fprintf(f, "    krn_combine_%s_ref(%s, %s, %s, %s, %d, %d, %d);\n",
                op->kind == ENG_OP_COMBINE_EXACT ? "exact" : "fused", c->in[0], c->in[1], c->in[2], c->out[0], rows,
                g->n_active, g->dim);
        break;
    case ENG_OP_MARKOV: return put_markov(c, e);
    case ENG_OP_CONFIDENCE: return put_confidence(c, e);
    case ENG_OP_ALL_REDUCE: /* a bench has one rank */
    case ENG_OP_RING_WRITE: /* refused before */
    case ENG_KIND_COUNT: break;
    }
    return ERR_OK;
}

err_code rpl_bundle_calls(rpl_bundle *b, err *e)
{
    TRY(load_inputs(b, e));
    for (int32_t k = 0; k < b->group->n_ops; k++) {
        call c = { .b = b, .op = &b->program->op[b->group->op[k]], .f = b->test };
        for (int32_t i = 0; i < c.op->n_in; i++) rpl_bundle_name(b, c.op->in[i], c.in[i]);
        fprintf(b->test, "\n    /* %s: %s */\n", c.op->name, eng_kind_name(c.op->kind));
        for (int32_t i = 0; i < c.op->n_out; i++) {
            int32_t v = c.op->out[i];
            fmt_tensor t = rpl_bundle_slice(b, v, NULL);
            rpl_bundle_name(b, v, c.out[i]);
            /* What the tape holds of a value between two groups wins: the op's own result goes elsewhere. */
            size_t used = strlen(c.out[i]);
            if (reads(b->group, v)) snprintf(c.out[i] + used, sizeof c.out[i] - used, "_made");
            fprintf(b->test, "    %s *%s = bundle_room(%" PRIu64 ");\n", c_type(t.dtype), c.out[i], fmt_tensor_bytes(&t));
        }
        TRY(put_op(&c, e));
    }
    return ERR_OK;
}
