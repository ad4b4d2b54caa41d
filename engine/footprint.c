#include "engine/footprint.h"

#include "engine/markov_table.h"
#include "formats/exl3.h"
#include "formats/number.h"
#include "kernels/experts_kx.h"

#include <stdlib.h>

enum {
    ROPE_SPARE = 2048,       /* positions past the longest request: a block and a prewarm reach there */
    SPARE_SLOTS = 1,         /* the padding rows of a step write there */
    EXL3_EXPERT_BITS = 2, EXL3_DENSE_BITS = 5, EXL3_HEAD_BITS = 6,
};

#define X(id, name, what) name,
static const char *const NAMES[] = { ENG_FOOT_LIST(X) };
#undef X
#define X(id, name, what) what,
static const char *const WHATS[] = { ENG_FOOT_LIST(X) };
#undef X
const char *eng_foot_name(eng_foot f) { return NAMES[f]; }
const char *eng_foot_what(eng_foot f) { return WHATS[f]; }

static uint64_t groups(uint64_t n) { return (n + FMT_QDQ_GROUP - 1) / FMT_QDQ_GROUP; }
static uint64_t bf16_bytes(uint64_t n, uint64_t k) { return 2 * n * k; }
static uint64_t fp8_bytes(uint64_t n, uint64_t k) { return n * k + groups(n) * groups(k) * sizeof(float); }
static uint64_t fp4_bytes(uint64_t n, uint64_t k) { return n * k / 2 + n * groups(k); }
static uint64_t exl3_bytes(uint64_t n, uint64_t k, uint64_t bits) { return n * k * bits / 8 + 2 * (n + k); }

/* A matrix as a rank holds it. In EXL3 it holds whole blocks: of what the others count n x k. */
typedef struct held { uint64_t n, k, block_n, block_k; } held;

static uint64_t dense_bytes(const eng_arm *arm, eng_wid wid, const held *h)
{
    const uint64_t n = h->n, k = h->k;
    if (arm->dense == ENG_REP_EXL3)
        return wid == ENG_W_WO_A ? fp8_bytes(n, k) : exl3_bytes(h->block_n, h->block_k, EXL3_DENSE_BITS);
    const eng_reps reps = eng_arm_reps(arm);
    return eng_reps_expand(&reps, wid) ? bf16_bytes(n, k) : fp8_bytes(n, k);
}

/* In the layout of kernels/experts_kx.h w1 and w3 are one matrix, counted with w1. */
static uint64_t kx_bytes(eng_wid wid, const held *h)
{
    const int32_t n = (int32_t)h->n, k = (int32_t)h->k;
    if (wid == ENG_W_EXPERT_W3) return 0;
    return (uint64_t)krn_kx_bytes(wid == ENG_W_EXPERT_W1 ? 2 * n : n, k);
}

static uint64_t expert_bytes(const eng_arm *arm, eng_wid wid, const held *h)
{
    if (arm->kx) return kx_bytes(wid, h);
    if (arm->experts == ENG_REP_EXL3) return exl3_bytes(h->block_n, h->block_k, EXL3_EXPERT_BITS);
    return arm->experts == ENG_REP_FP4 ? fp4_bytes(h->n, h->k) : bf16_bytes(h->n, h->k);
}

/* Features of the 128-blocks that [first, first + count) touches. */
static uint64_t blocks_of(int32_t first, int32_t count)
{
    return (uint64_t)(eng_exl3_padded(first + count) - first / FMT_EXL3_BLOCK * FMT_EXL3_BLOCK);
}

/* One matrix or vector. */
static void add_weight(const eng_arm *arm, bool head_exl3, eng_wid wid, const held *h, eng_footprint *out)
{
    const uint64_t n = h->n, k = h->k;
    const eng_wkind *kind = eng_wkind_of(wid);
    switch (kind->part) {
    case ENG_PART_EXPERTS:
        out->bytes[ENG_FOOT_EXPERTS] += expert_bytes(arm, wid, h);
        return;
    case ENG_PART_DENSE:
        out->bytes[ENG_FOOT_DENSE] += dense_bytes(arm, wid, h);
        return;
    case ENG_PART_HEAD:
        out->bytes[ENG_FOOT_HEAD] += head_exl3 ? exl3_bytes(h->block_n, h->block_k, EXL3_HEAD_BITS)
                                                 : bf16_bytes(n, k);
        return;
    case ENG_PART_EMBED:
        out->bytes[ENG_FOOT_EMBED] += bf16_bytes(n, k);
        return;
    case ENG_PART_MARKOV:
        out->bytes[wid == ENG_W_MARKOV_EMBED ? ENG_FOOT_MARKOV_EMBED : ENG_FOOT_MARKOV_HEAD] += bf16_bytes(n, k);
        return;
    case ENG_PART_SMALL:
        out->bytes[wid == ENG_W_CONFIDENCE ? ENG_FOOT_CONFIDENCE : ENG_FOOT_SMALL] +=
            n * k * (kind->wclass == ENG_WC_F32 || wid == ENG_W_GATE ? sizeof(float) : sizeof(bf16));
        return;
    }
}

err_code eng_footprint_of(const eng_config *c, const eng_arm *arm, const eng_footprint_for *f, int32_t rank,
                          eng_footprint *out, err *e)
{
    *out = (eng_footprint){ 0 };
    TRY(eng_cut_check(c, f->n_ranks, e));
    eng_tensor_spec *spec;
    size_t n_specs;
    TRY(eng_inventory(c, &spec, &n_specs, e));
    bool head_exl3 = f->head_exl3 || arm->head == ENG_REP_EXL3;
    for (size_t i = 0; i < n_specs; i++) {
        const eng_wkind *kind = eng_wkind_of(spec[i].wid);
        if (spec[i].is_scale || !kind->loaded) continue; /* a scale is counted with its weight */
        int32_t n, k;
        eng_wid_shape(c, spec[i].wid, &n, &k);
        eng_range cut = eng_cut_range(c, spec[i].wid, rank, f->n_ranks);
        eng_range rows = { 0, n }, cols = { 0, k };
        if (kind->cut == ENG_CUT_COLS) cols = cut;
        if (kind->cut == ENG_CUT_ROWS || kind->cut == ENG_CUT_VOCAB) rows = cut;
        const held h = { (uint64_t)rows.count, (uint64_t)cols.count, blocks_of(rows.first, rows.count),
                         blocks_of(cols.first, cols.count) };
        add_weight(arm, head_exl3, spec[i].wid, &h, out);
    }
    free(spec);

    out->bytes[ENG_FOOT_MARKOV_CACHE] = eng_markov_table_bytes(c, f->markov_cache ? ENG_MARKOV_CACHE : arm->markov,
                                                               eng_cut_range(c, ENG_W_MARKOV_HEAD, rank, f->n_ranks).count);
    out->bytes[ENG_FOOT_ROPE] = ((uint64_t)f->positions + ROPE_SPARE) * (uint64_t)c->rope_dim * sizeof(float);
    out->bytes[ENG_FOOT_WINDOWS] = (uint64_t)(f->slots + SPARE_SLOTS) * (uint64_t)c->n_stages *
                                   bf16_bytes((uint64_t)c->window, (uint64_t)c->head_dim);
    for (int i = 0; i < ENG_FOOT_COUNT; i++) out->total_bytes += out->bytes[i];
    return ERR_OK;
}
