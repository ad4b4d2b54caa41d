/* Which tensors a checkpoint must hold: one table drives loading, checking, the manifest, synth, plan and the TP cuts.
 *
 * The table (inventory.c) lists every kind of tensor once with its name, format, shape and cut; the list for a config
 * expands stages and experts: 2,401 mtp tensors and the two shared ones for the official config. */
#ifndef ENGINE_INVENTORY_H
#define ENGINE_INVENTORY_H

#include "engine/config.h"
#include "formats/dtype.h"

/* Kinds of tensor; a quantised one stands for its .weight and its .scale. */
typedef enum eng_wid {
    ENG_W_EMBED, ENG_W_HEAD,
    ENG_W_MAIN_PROJ, ENG_W_MAIN_NORM,
    ENG_W_ATTN_NORM, ENG_W_WQ_A, ENG_W_Q_NORM, ENG_W_WQ_B, ENG_W_WKV, ENG_W_KV_NORM, ENG_W_SINK, ENG_W_WO_A, ENG_W_WO_B,
    ENG_W_HC_ATTN_FN, ENG_W_HC_ATTN_BASE, ENG_W_HC_ATTN_SCALE,
    ENG_W_FFN_NORM, ENG_W_GATE, ENG_W_GATE_BIAS, ENG_W_GATE_BIAS_VL,
    ENG_W_EXPERT_W1, ENG_W_EXPERT_W3, ENG_W_EXPERT_W2,
    ENG_W_SHARED_W1, ENG_W_SHARED_W3, ENG_W_SHARED_W2,
    ENG_W_HC_FFN_FN, ENG_W_HC_FFN_BASE, ENG_W_HC_FFN_SCALE,
    ENG_W_FINAL_NORM, ENG_W_MARKOV_EMBED, ENG_W_MARKOV_HEAD, ENG_W_CONFIDENCE,
    ENG_W_COUNT
} eng_wid;

typedef enum eng_wclass { ENG_WC_FP8, ENG_WC_FP4, ENG_WC_BF16, ENG_WC_F32 } eng_wclass;

/* How a rank's share is cut. ROWS and COLS are even cuts; VOCAB is in 256-row tiles, the first ranks take the
 * larger share, a ragged last tile goes to the last rank. */
typedef enum eng_cut { ENG_CUT_NONE, ENG_CUT_ROWS, ENG_CUT_COLS, ENG_CUT_VOCAB } eng_cut;
typedef enum eng_part {
    ENG_PART_EMBED, ENG_PART_HEAD, ENG_PART_EXPERTS, ENG_PART_DENSE, ENG_PART_MARKOV, ENG_PART_SMALL
} eng_part;

enum { ENG_VOCAB_TILE = 256, ENG_TENSOR_NAME = 96 };

typedef struct eng_wkind {
    const char *name;      /* "attn.wq_a": what follows the prefix, without .weight */
    eng_wclass wclass;
    eng_cut cut;
    eng_part part;
    bool loaded;           /* false: gate.bias_vl, present but never read */
} eng_wkind;
const eng_wkind *eng_wkind_of(eng_wid id);

/* Logical shape [n, k] of a kind (k = 1 for vectors), before packing. */
void eng_wid_shape(const eng_config *c, eng_wid id, int32_t *n, int32_t *k);

/* What a tensor is of its weight's EXL3 form (formats/exl3.h); NONE: it is official. SU and SV are the signs that an older
 * delivery has in place of SUH and SVH. */
typedef enum eng_exl3 {
    ENG_EXL3_NONE, ENG_EXL3_TRELLIS, ENG_EXL3_SUH, ENG_EXL3_SVH, ENG_EXL3_SU, ENG_EXL3_SV, ENG_EXL3_MCG, ENG_EXL3_MUL1,
    ENG_EXL3_COUNT
} eng_exl3;

/* One stored tensor. */
typedef struct eng_tensor_spec {
    char name[ENG_TENSOR_NAME]; /* full: "mtp.0.attn.wq_a.weight", "mtp.0.attn.wq_a.trellis" */
    fmt_dtype dtype;
    int32_t ndim;
    int64_t shape[3];
    eng_wid wid;
    int32_t stage, expert;      /* -1: none */
    bool is_scale;
    eng_exl3 exl3;
    int32_t codebook;           /* of a trellis that was read: fmt_exl3_codebook */
} eng_tensor_spec;

/* The whole official list, sorted by name. *out malloc'd. ERR_NOMEM. */
MUST_USE err_code eng_inventory(const eng_config *c, eng_tensor_spec **out, size_t *n, err *e);

/* Whether a kind may be delivered in EXL3: experts, the head, dense matrices but wo_a. */
bool eng_wid_has_exl3(eng_wid id);
/* in or out of the stored tensor: n padded to whole blocks of 128. */
int32_t eng_exl3_padded(int32_t n);
/* ".trellis", ".suh", ...; "" for NONE. */
const char *eng_exl3_suffix(eng_exl3 part);
/* Every tensor that an EXL3 delivery may hold, sorted by name; no delivery holds all. A trellis's third dimension, 16 times
 * its bits, is 0: each tensor has its own. *out malloc'd. ERR_NOMEM. */
MUST_USE err_code eng_inventory_exl3(const eng_config *c, eng_tensor_spec **out, size_t *n, err *e);

/* The share of rank r of n: rows or columns [first, first + count) of the cut axis; whole axis when not cut. */
typedef struct eng_range { int32_t first, count; } eng_range;
eng_range eng_cut_range(const eng_config *c, eng_wid id, int32_t rank, int32_t n_ranks);
/* ERR_ARG when n_ranks does not divide the config on 32-element groups: names the tensor and the cut. */
MUST_USE err_code eng_cut_check(const eng_config *c, int32_t n_ranks, err *e);

#endif
