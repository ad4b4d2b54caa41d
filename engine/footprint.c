#include "engine/footprint.h"

#include "formats/number.h"

#include <stdlib.h>
#include <string.h>

enum {
    ROPE_SPARE = 2048,       /* positions past the longest request: a block and a prewarm reach there */
    SPARE_SLOTS = 1,         /* the padding rows of a step write there */
    CACHE_ROWS = 8192,       /* bias cache of the control: BF16 rows of the frequent tokens */
    HOT_ROWS = 4096,         /* the same in fp32 */
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

static uint64_t dense_bytes(const eng_arm *arm, eng_wid wid, uint64_t n, uint64_t k)
{
    bool deployed = arm->dense == ENG_REP_EXL3 || (arm->dense == ENG_REP_MIXED && arm->experts == ENG_REP_EXL3);
    if (deployed) return wid == ENG_W_WO_A ? fp8_bytes(n, k) : exl3_bytes(n, k, EXL3_DENSE_BITS);
    if (arm->dense == ENG_REP_MIXED) return fp8_bytes(n, k) + bf16_bytes(n, k); /* chosen per shape: both are resident */
    return arm->dense == ENG_REP_FP8 ? fp8_bytes(n, k) : bf16_bytes(n, k);
}

static uint64_t expert_bytes(const eng_arm *arm, uint64_t n, uint64_t k)
{
    if (arm->experts == ENG_REP_EXL3) return exl3_bytes(n, k, EXL3_EXPERT_BITS);
    return arm->experts == ENG_REP_FP4 ? fp4_bytes(n, k) : bf16_bytes(n, k);
}

/* One matrix or vector, n x k as the rank holds it. */
static void add_weight(const eng_arm *arm, bool head_exl3, eng_wid wid, uint64_t n, uint64_t k, eng_footprint *out)
{
    const eng_wkind *kind = eng_wkind_of(wid);
    switch (kind->part) {
    case ENG_PART_EXPERTS:
        out->bytes[ENG_FOOT_EXPERTS] += expert_bytes(arm, n, k);
        return;
    case ENG_PART_DENSE:
        out->bytes[ENG_FOOT_DENSE] += dense_bytes(arm, wid, n, k);
        return;
    case ENG_PART_HEAD:
        out->bytes[ENG_FOOT_HEAD] += head_exl3 ? exl3_bytes(n, k, EXL3_HEAD_BITS) : bf16_bytes(n, k);
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
        if (kind->cut == ENG_CUT_COLS) k = cut.count;
        if (kind->cut == ENG_CUT_ROWS || kind->cut == ENG_CUT_VOCAB) n = cut.count;
        add_weight(arm, head_exl3, spec[i].wid, (uint64_t)n, (uint64_t)k, out);
    }
    free(spec);

    uint64_t vocab_rows = (uint64_t)eng_cut_range(c, ENG_W_MARKOV_HEAD, rank, f->n_ranks).count;
    uint64_t index_bytes = (uint64_t)c->vocab * sizeof(int32_t);
    if (f->markov_cache || strstr(arm->markov, "cache"))
        out->bytes[ENG_FOOT_MARKOV_CACHE] = bf16_bytes(CACHE_ROWS, vocab_rows) + index_bytes;
    else if (strstr(arm->markov, "hot"))
        out->bytes[ENG_FOOT_MARKOV_CACHE] = HOT_ROWS * vocab_rows * sizeof(float) + index_bytes;
    out->bytes[ENG_FOOT_ROPE] = ((uint64_t)f->positions + ROPE_SPARE) * (uint64_t)c->rope_dim * sizeof(float);
    out->bytes[ENG_FOOT_WINDOWS] = (uint64_t)(f->slots + SPARE_SLOTS) * (uint64_t)c->n_stages *
                                   bf16_bytes((uint64_t)c->window, (uint64_t)c->head_dim);
    for (int i = 0; i < ENG_FOOT_COUNT; i++) out->total_bytes += out->bytes[i];
    return ERR_OK;
}
