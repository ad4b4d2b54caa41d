#include "engine/inventory.h"

#include <inttypes.h>
#include <string.h>

#include "base/mem.h"
#include "engine/inventory_index.h"
#include "formats/exl3.h"
#include "formats/number.h"

enum { GROUP = FMT_QDQ_GROUP };

/* Where a tensor of a kind lives. */
typedef enum place { SHARED, FIRST, LAST, STAGE, EXPERT } place;

/* Sizes that shapes are made of. */
typedef enum size_id {
    N_1, N_3, N_V, N_DIM, N_TAPS, N_Q, N_HEADS, N_Q_OUT, N_HD, N_GROUP_IN, N_GO, N_MIX, N_STREAM, N_E, N_I, N_R, N_CONF
} size_id;

typedef struct row {
    eng_wkind kind;
    place where;
    size_id n, k;
    bool dot_weight; /* the name ends in .weight */
} row;

#define FP8  ENG_WC_FP8
#define FP4  ENG_WC_FP4
#define BF16 ENG_WC_BF16
#define F32  ENG_WC_F32
#define ROW(id, name, wclass, cut, part, loaded, where, n, k, dot) \
    [ENG_W_##id] = { { name, wclass, ENG_CUT_##cut, ENG_PART_##part, loaded }, where, n, k, dot }
/* '*' in a name is the expert's number. */
static const row ROWS[ENG_W_COUNT] = {
    /*  id             name                     class cut    part     loaded where   n           k         .weight */
    ROW(EMBED,         "embed",                 BF16, NONE,  EMBED,   true,  SHARED, N_V,        N_DIM,    true),
    ROW(HEAD,          "head",                  BF16, VOCAB, HEAD,    true,  SHARED, N_V,        N_DIM,    true),
    ROW(MAIN_PROJ,     "main_proj",             FP8,  NONE,  DENSE,   true,  FIRST,  N_DIM,      N_TAPS,   true),
    ROW(MAIN_NORM,     "main_norm",             BF16, NONE,  SMALL,   true,  FIRST,  N_DIM,      N_1,      true),
    ROW(ATTN_NORM,     "attn_norm",             BF16, NONE,  SMALL,   true,  STAGE,  N_DIM,      N_1,      true),
    ROW(WQ_A,          "attn.wq_a",             FP8,  NONE,  DENSE,   true,  STAGE,  N_Q,        N_DIM,    true),
    ROW(Q_NORM,        "attn.q_norm",           BF16, NONE,  SMALL,   true,  STAGE,  N_Q,        N_1,      true),
    ROW(WQ_B,          "attn.wq_b",             FP8,  ROWS,  DENSE,   true,  STAGE,  N_Q_OUT,    N_Q,      true),
    ROW(WKV,           "attn.wkv",              FP8,  NONE,  DENSE,   true,  STAGE,  N_HD,       N_DIM,    true),
    ROW(KV_NORM,       "attn.kv_norm",          BF16, NONE,  SMALL,   true,  STAGE,  N_HD,       N_1,      true),
    ROW(SINK,          "attn.attn_sink",        F32,  ROWS,  SMALL,   true,  STAGE,  N_HEADS,    N_1,      false),
    ROW(WO_A,          "attn.wo_a",             FP8,  ROWS,  DENSE,   true,  STAGE,  N_GO,       N_GROUP_IN, true),
    ROW(WO_B,          "attn.wo_b",             FP8,  COLS,  DENSE,   true,  STAGE,  N_DIM,      N_GO,     true),
    ROW(HC_ATTN_FN,    "hc_attn_fn",            F32,  NONE,  SMALL,   true,  STAGE,  N_MIX,      N_STREAM, false),
    ROW(HC_ATTN_BASE,  "hc_attn_base",          F32,  NONE,  SMALL,   true,  STAGE,  N_MIX,      N_1,      false),
    ROW(HC_ATTN_SCALE, "hc_attn_scale",         F32,  NONE,  SMALL,   true,  STAGE,  N_3,        N_1,      false),
    ROW(FFN_NORM,      "ffn_norm",              BF16, NONE,  SMALL,   true,  STAGE,  N_DIM,      N_1,      true),
    ROW(GATE,          "ffn.gate",              BF16, NONE,  SMALL,   true,  STAGE,  N_E,        N_DIM,    true),
    ROW(GATE_BIAS,     "ffn.gate.bias",         F32,  NONE,  SMALL,   true,  STAGE,  N_E,        N_1,      false),
    ROW(GATE_BIAS_VL,  "ffn.gate.bias_vl",      F32,  NONE,  SMALL,   false, STAGE,  N_E,        N_1,      false),
    ROW(EXPERT_W1,     "ffn.experts.*.w1",      FP4,  ROWS,  EXPERTS, true,  EXPERT, N_I,        N_DIM,    true),
    ROW(EXPERT_W3,     "ffn.experts.*.w3",      FP4,  ROWS,  EXPERTS, true,  EXPERT, N_I,        N_DIM,    true),
    ROW(EXPERT_W2,     "ffn.experts.*.w2",      FP4,  COLS,  EXPERTS, true,  EXPERT, N_DIM,      N_I,      true),
    ROW(SHARED_W1,     "ffn.shared_experts.w1", FP8,  ROWS,  DENSE,   true,  STAGE,  N_I,        N_DIM,    true),
    ROW(SHARED_W3,     "ffn.shared_experts.w3", FP8,  ROWS,  DENSE,   true,  STAGE,  N_I,        N_DIM,    true),
    ROW(SHARED_W2,     "ffn.shared_experts.w2", FP8,  COLS,  DENSE,   true,  STAGE,  N_DIM,      N_I,      true),
    ROW(HC_FFN_FN,     "hc_ffn_fn",             F32,  NONE,  SMALL,   true,  STAGE,  N_MIX,      N_STREAM, false),
    ROW(HC_FFN_BASE,   "hc_ffn_base",           F32,  NONE,  SMALL,   true,  STAGE,  N_MIX,      N_1,      false),
    ROW(HC_FFN_SCALE,  "hc_ffn_scale",          F32,  NONE,  SMALL,   true,  STAGE,  N_3,        N_1,      false),
    ROW(FINAL_NORM,    "norm",                  BF16, NONE,  SMALL,   true,  LAST,   N_DIM,      N_1,      true),
    ROW(MARKOV_EMBED,  "markov_head.embed",     BF16, NONE,  MARKOV,  true,  LAST,   N_V,        N_R,      true),
    ROW(MARKOV_HEAD,   "markov_head.head",      BF16, VOCAB, MARKOV,  true,  LAST,   N_V,        N_R,      true),
    ROW(CONFIDENCE,    "confidence_head.proj",  BF16, NONE,  SMALL,   true,  LAST,   N_1,        N_CONF,   true),
};
#undef ROW
#undef FP8
#undef FP4
#undef BF16
#undef F32

static int32_t size_of(const eng_config *c, size_id s)
{
    switch (s) {
    case N_1: return 1;
    case N_3: return 3;
    case N_V: return c->vocab;
    case N_DIM: return c->dim;
    case N_TAPS: return c->n_taps * c->dim;
    case N_Q: return c->q_lora;
    case N_HEADS: return c->n_heads;
    case N_Q_OUT: return c->n_heads * c->head_dim;
    case N_HD: return c->head_dim;
    case N_GROUP_IN: return c->n_heads / c->o_groups * c->head_dim;
    case N_GO: return c->o_groups * c->o_lora;
    case N_MIX: return (2 + c->hc) * c->hc;
    case N_STREAM: return c->hc * c->dim;
    case N_E: return c->n_experts;
    case N_I: return c->inter;
    case N_R: return c->markov_rank;
    case N_CONF: return c->dim + c->markov_rank;
    }
    CHECK(!"size_id");
    return 0;
}

const eng_wkind *eng_wkind_of(eng_wid id)
{
    CHECK((unsigned)id < ENG_W_COUNT);
    return &ROWS[id].kind;
}

void eng_wid_shape(const eng_config *c, eng_wid id, int32_t *n, int32_t *k)
{
    CHECK((unsigned)id < ENG_W_COUNT);
    *n = size_of(c, ROWS[id].n);
    *k = size_of(c, ROWS[id].k);
}

/* ---- numbering ---- */

int32_t eng_wid_stages(const eng_config *c, eng_wid id)
{
    return ROWS[id].where == STAGE || ROWS[id].where == EXPERT ? c->n_stages : 1;
}

int32_t eng_wid_experts(const eng_config *c, eng_wid id) { return ROWS[id].where == EXPERT ? c->n_experts : 1; }

static size_t first_index(const eng_config *c, eng_wid end)
{
    size_t n = 0;
    for (int id = 0; id < (int)end; id++) n += (size_t)eng_wid_stages(c, id) * (size_t)eng_wid_experts(c, id);
    return n;
}

size_t eng_weight_count(const eng_config *c) { return first_index(c, ENG_W_COUNT); }

size_t eng_weight_index(const eng_config *c, eng_wid id, int32_t stage, int32_t expert)
{
    CHECK((unsigned)id < ENG_W_COUNT);
    int32_t stages = eng_wid_stages(c, id), experts = eng_wid_experts(c, id);
    if (ROWS[id].where != STAGE && ROWS[id].where != EXPERT) stage = 0;
    if (ROWS[id].where != EXPERT) expert = 0;
    CHECK(stage >= 0 && stage < stages && expert >= 0 && expert < experts);
    return first_index(c, id) + (size_t)stage * (size_t)experts + (size_t)expert;
}

const char *eng_weight_name(const eng_config *c, eng_wid id, int32_t stage, int32_t expert, char buf[ENG_TENSOR_NAME])
{
    const row *r = &ROWS[id];
    char prefix[24] = "", number[16];
    if (r->where != SHARED)
        snprintf(prefix, sizeof prefix, "mtp.%d.", r->where == FIRST ? 0 : r->where == LAST ? c->n_stages - 1 : stage);
    const char *star = strchr(r->kind.name, '*');
    size_t head = star ? (size_t)(star - r->kind.name) : strlen(r->kind.name);
    snprintf(number, sizeof number, "%d", expert);
    snprintf(buf, ENG_TENSOR_NAME, "%s%.*s%s%s", prefix, (int)head, r->kind.name, star ? number : "", star ? star + 1 : "");
    return buf;
}

/* ---- the list ---- */

static void append(char name[ENG_TENSOR_NAME], const char *suffix)
{
    size_t used = strlen(name);
    CHECK(used + strlen(suffix) < ENG_TENSOR_NAME);
    strcpy(name + used, suffix);
}

/* Appends the one or two stored tensors of a weight; returns how many. */
static size_t put_specs(const eng_config *c, eng_wid id, int32_t stage, int32_t expert, eng_tensor_spec *out)
{
    const row *r = &ROWS[id];
    int32_t n, k;
    eng_wid_shape(c, id, &n, &k);
    eng_tensor_spec w = { .ndim = r->k == N_1 ? 1 : 2, .shape = { n, k }, .wid = id, .is_scale = false,
                          .stage = r->where == STAGE || r->where == EXPERT ? stage : -1,
                          .expert = r->where == EXPERT ? expert : -1 };
    eng_weight_name(c, id, stage, expert, w.name);
    eng_tensor_spec s = w;
    s.is_scale = true;
    s.dtype = FMT_DTYPE_E8M0;
    append(s.name, ".scale");
    if (r->dot_weight) append(w.name, ".weight");
    switch (r->kind.wclass) {
    case ENG_WC_BF16: w.dtype = FMT_DTYPE_BF16; break;
    case ENG_WC_F32: w.dtype = FMT_DTYPE_F32; break;
    case ENG_WC_FP8: /* one scale per 32 x 32 block */
        w.dtype = FMT_DTYPE_F8;
        s.shape[0] = (n + GROUP - 1) / GROUP;
        s.shape[1] = (k + GROUP - 1) / GROUP;
        break;
    case ENG_WC_FP4: /* two codes a byte; one scale per 32 inputs of a row */
        w.dtype = FMT_DTYPE_I8;
        w.shape[1] = k / 2;
        s.shape[1] = k / GROUP;
        break;
    }
    out[0] = w;
    if (r->kind.wclass != ENG_WC_FP8 && r->kind.wclass != ENG_WC_FP4) return 1;
    out[1] = s;
    return 2;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const eng_tensor_spec *)a)->name, ((const eng_tensor_spec *)b)->name);
}

err_code eng_inventory(const eng_config *c, eng_tensor_spec **out, size_t *n, err *e)
{
    *out = NULL;
    eng_tensor_spec *list = mem_alloc(2 * eng_weight_count(c), sizeof *list); /* at most a weight and a scale each */
    if (!list) return err_set(e, ERR_NOMEM, "no memory for the list of tensors");
    size_t used = 0;
    for (int id = 0; id < ENG_W_COUNT; id++)
        for (int32_t stage = 0; stage < eng_wid_stages(c, id); stage++)
            for (int32_t expert = 0; expert < eng_wid_experts(c, id); expert++)
                used += put_specs(c, id, stage, expert, list + used);
    qsort(list, used, sizeof *list, by_name);
    *out = list;
    *n = used;
    return ERR_OK;
}

/* ---- EXL3 ---- */

static const struct { const char *suffix; fmt_dtype dtype; } EXL3[ENG_EXL3_COUNT] = {
    [ENG_EXL3_NONE] = { "", FMT_DTYPE_COUNT },
    [ENG_EXL3_TRELLIS] = { ".trellis", FMT_DTYPE_I16 },
    [ENG_EXL3_SUH] = { ".suh", FMT_DTYPE_F16 },
    [ENG_EXL3_SVH] = { ".svh", FMT_DTYPE_F16 },
    [ENG_EXL3_SU] = { ".su", FMT_DTYPE_I16 },
    [ENG_EXL3_SV] = { ".sv", FMT_DTYPE_I16 },
    [ENG_EXL3_MCG] = { ".mcg", FMT_DTYPE_I32 },
    [ENG_EXL3_MUL1] = { ".mul1", FMT_DTYPE_I32 },
};

bool eng_wid_has_exl3(eng_wid id)
{
    eng_part part = eng_wkind_of(id)->part;
    return part == ENG_PART_EXPERTS || part == ENG_PART_HEAD || (part == ENG_PART_DENSE && id != ENG_W_WO_A);
}

int32_t eng_exl3_padded(int32_t n) { return (n + FMT_EXL3_BLOCK - 1) / FMT_EXL3_BLOCK * FMT_EXL3_BLOCK; }

const char *eng_exl3_suffix(eng_exl3 part)
{
    CHECK((unsigned)part < ENG_EXL3_COUNT);
    return EXL3[part].suffix;
}

static size_t put_exl3_specs(const eng_config *c, eng_wid id, int32_t stage, int32_t expert, eng_tensor_spec *out)
{
    eng_tensor_spec official[2];
    int32_t n, k;
    put_specs(c, id, stage, expert, official);
    eng_wid_shape(c, id, &n, &k);
    const int64_t in = eng_exl3_padded(k), outputs = eng_exl3_padded(n);
    for (eng_exl3 part = ENG_EXL3_TRELLIS; part < ENG_EXL3_COUNT; part++, out++) {
        *out = (eng_tensor_spec){ .dtype = EXL3[part].dtype, .ndim = 1, .wid = id, .stage = official[0].stage,
                                  .expert = official[0].expert, .exl3 = part };
        eng_weight_name(c, id, stage, expert, out->name);
        append(out->name, EXL3[part].suffix);
        switch (part) {
        case ENG_EXL3_TRELLIS:
            out->ndim = 3;
            out->shape[0] = in / FMT_EXL3_TILE;
            out->shape[1] = outputs / FMT_EXL3_TILE;
            break;
        case ENG_EXL3_SUH: out->shape[0] = in; break;
        case ENG_EXL3_SVH: out->shape[0] = outputs; break;
        case ENG_EXL3_SU: out->shape[0] = in / 16; break; /* a word holds 16 signs */
        case ENG_EXL3_SV: out->shape[0] = outputs / 16; break;
        default: out->ndim = 0; break;
        }
    }
    return ENG_EXL3_COUNT - 1;
}

err_code eng_inventory_exl3(const eng_config *c, eng_tensor_spec **out, size_t *n, err *e)
{
    *out = NULL;
    eng_tensor_spec *list = mem_alloc((ENG_EXL3_COUNT - 1) * eng_weight_count(c), sizeof *list);
    if (!list) return err_set(e, ERR_NOMEM, "no memory for the list of EXL3 tensors");
    size_t used = 0;
    for (int id = 0; id < ENG_W_COUNT; id++)
        for (int32_t stage = 0; eng_wid_has_exl3(id) && stage < eng_wid_stages(c, id); stage++)
            for (int32_t expert = 0; expert < eng_wid_experts(c, id); expert++)
                used += put_exl3_specs(c, id, stage, expert, list + used);
    qsort(list, used, sizeof *list, by_name);
    *out = list;
    *n = used;
    return ERR_OK;
}

/* ---- cuts ---- */

eng_range eng_cut_range(const eng_config *c, eng_wid id, int32_t rank, int32_t n_ranks)
{
    int32_t n, k;
    eng_wid_shape(c, id, &n, &k);
    eng_cut cut = eng_wkind_of(id)->cut;
    if (cut == ENG_CUT_NONE) return (eng_range){ 0, n };
    if (cut == ENG_CUT_VOCAB) {
        int32_t tiles = (n + ENG_VOCAB_TILE - 1) / ENG_VOCAB_TILE, share = tiles / n_ranks, more = tiles % n_ranks;
        int32_t first = (rank * share + (rank < more ? rank : more)) * ENG_VOCAB_TILE;
        int32_t end = first + (share + (rank < more)) * ENG_VOCAB_TILE;
        return (eng_range){ first, (end < n ? end : n) - first };
    }
    int64_t axis = cut == ENG_CUT_ROWS ? n : k;
    int32_t first = (int32_t)(axis * rank / n_ranks);
    return (eng_range){ first, (int32_t)(axis * (rank + 1) / n_ranks) - first };
}

/* What a cut of this kind may not split, in elements of the cut axis. head_dim is a multiple of 32; o_lora need not be. */
static int32_t cut_unit(const eng_config *c, eng_wid id, const char **what)
{
    switch (id) {
    case ENG_W_SINK: *what = "a head"; return 1;
    case ENG_W_WQ_B: *what = "a head"; return c->head_dim;
    case ENG_W_WO_A:
    case ENG_W_WO_B: *what = "an output group"; return c->o_lora;
    default: *what = "a 32-element group"; return GROUP;
    }
}

static err_code check_even_cut(const eng_config *c, eng_wid id, int32_t n_ranks, err *e)
{
    bool rows = eng_wkind_of(id)->cut == ENG_CUT_ROWS;
    int32_t n, k;
    char name[ENG_TENSOR_NAME];
    const char *what;
    eng_wid_shape(c, id, &n, &k);
    int32_t unit = cut_unit(c, id, &what);
    for (int32_t rank = 1; rank < n_ranks; rank++) {
        int64_t axis = rows ? n : k, at = axis * rank;
        bool whole = at % n_ranks == 0, fits = whole && at / n_ranks % unit == 0;
        /* Scales are shared by 32 whatever the unit is; the sink has none. */
        if (fits && (id == ENG_W_SINK || at / n_ranks % GROUP == 0)) continue;
        return err_set(e, ERR_ARG, "%d ranks: the cut of %s at %s %.*f of %" PRId64 " falls inside %s", n_ranks,
                       eng_weight_name(c, id, 0, 0, name), rows ? "row" : "column", whole ? 0 : 2, (double)at / n_ranks,
                       axis, fits ? "a 32-element group" : what);
    }
    return ERR_OK;
}

err_code eng_cut_check(const eng_config *c, int32_t n_ranks, err *e)
{
    if (n_ranks < 1 || n_ranks > ENG_RANKS_MAX)
        return err_set(e, ERR_ARG, "rank count: found %d, wanted 1 to %d", n_ranks, ENG_RANKS_MAX);
    for (int id = 0; id < ENG_W_COUNT; id++) {
        eng_cut cut = eng_wkind_of(id)->cut;
        if (cut == ENG_CUT_ROWS || cut == ENG_CUT_COLS) TRY(check_even_cut(c, id, n_ranks, e));
    }
    /* Both heads are cut alike. */
    if ((c->vocab + ENG_VOCAB_TILE - 1) / ENG_VOCAB_TILE < n_ranks)
        return err_set(e, ERR_ARG, "%d ranks: the cut of head.weight leaves a rank none: found %d rows, wanted %d for each",
                       n_ranks, c->vocab, ENG_VOCAB_TILE);
    return ERR_OK;
}
