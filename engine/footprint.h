/* Memory accounting: the bytes one rank of an arm holds, by part, from the shapes alone (no weights are read). */
#ifndef ENGINE_FOOTPRINT_H
#define ENGINE_FOOTPRINT_H

#include "engine/arm.h"
#include "engine/inventory.h"

#define ENG_FOOT_LIST(X)                                                                                     \
    X(EXPERTS, "experts", "routed experts, all stages")                                                      \
    X(DENSE, "dense", "wq_a, wq_b, wkv, wo_a, wo_b, shared experts, main_proj")                              \
    X(HEAD, "head", "the rank's rows of the vocabulary")                                                     \
    X(EMBED, "embedding", "BF16, replicated")                                                                \
    X(MARKOV_EMBED, "markov_embed", "BF16, replicated")                                                      \
    X(MARKOV_HEAD, "markov_head", "BF16, the rank's rows")                                                   \
    X(MARKOV_CACHE, "markov_cache", "rows of the Markov term made ahead, and their index")                   \
    X(ROPE, "rope", "fp32 sine and cosine per position")                                                     \
    X(SMALL, "norms_mhc_router", "BF16 norms, fp32 mHC, gate as fp32")                                       \
    X(CONFIDENCE, "confidence", "BF16 projection, replicated")                                               \
    X(WINDOWS, "windows", "BF16 rings of every slot and one spare")
#define X(id, name, what) ENG_FOOT_##id,
typedef enum eng_foot { ENG_FOOT_LIST(X) ENG_FOOT_COUNT } eng_foot;
#undef X

const char *eng_foot_name(eng_foot f);
const char *eng_foot_what(eng_foot f);

/* What else decides the size. */
typedef struct eng_footprint_for {
    int32_t n_ranks;
    int64_t positions; /* longest request; the RoPE table has 2,048 more */
    int32_t slots;
    bool head_exl3;    /* --head k6 whatever the arm says */
    bool markov_cache; /* the control's bias cache whatever the arm says: published totals of every arm hold it */
} eng_footprint_for;

typedef struct eng_footprint {
    uint64_t bytes[ENG_FOOT_COUNT];
    uint64_t total_bytes;
} eng_footprint;

/* Any arm of the table. FP8 stands with one fp32 per 32 x 32 block, FP4 with its stored E8M0
 * scales, EXL3 at 2 (experts), 5 (dense, wo_a stays FP8) and 6 (head) bits with two fp16 vectors a matrix, in the whole
 * 128-blocks that the rank's part touches. A kx arm's experts stand as a card holds them, in whole blocks of 32 rows by 128
 * columns (kernels/experts_kx.h). ERR_ARG: the rank count does not cut the config. ERR_NOMEM. */
MUST_USE err_code eng_footprint_of(const eng_config *c, const eng_arm *arm, const eng_footprint_for *f, int32_t rank,
                                   eng_footprint *out, err *e);

#endif
