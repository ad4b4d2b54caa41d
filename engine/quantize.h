/* A checkpoint's EXL3 delivery: every linear that has one (all but wo_a and the gates), written as exl3-*.safetensors.
 *
 * Shards: exl3-sS-dense (stage S; main_proj with the first), exl3-sS-experts-EEE (16 experts from EEE on), exl3-head.
 * Tensors of a linear: the official name without .weight, then .mcg or .mul1 where the codebook has a marker, .suh, .svh,
 * .trellis. A shard appears under its name when it is whole, and its metadata says what it was made of and how: an
 * interrupted run that is started again keeps the whole ones. The same model and parameters give the same bytes on every
 * machine, backend and thread count.
 *
 * into MODEL itself: the shards stand beside the official ones; where there is an index their tensors are added to it when
 * all of them are there. Into another folder: exl3-official.safetensors holds every tensor that has no EXL3 form, and an
 * index and config.json make the folder a checkpoint of its own. */
#ifndef ENGINE_QUANTIZE_H
#define ENGINE_QUANTIZE_H

#include "engine/weights.h"
#include "formats/exl3.h"

typedef struct eng_quantize_options {
    int32_t experts, dense, head;  /* bits, 1 to 8 */
    fmt_exl3_codebook codebook;
    uint64_t seed;                 /* of the signs */
    bool cuda;
    bool force;                    /* replace shards that were made of something else or otherwise */
    const char *calibrate;         /* a deep tape of the same checkpoint: LDLQ; NULL: every tile alone */
    bool quiet;
} eng_quantize_options;

enum { ENG_QUANTIZE_PARTS = 3 }; /* experts, dense, head */
extern const char *const ENG_QUANTIZE_PART[ENG_QUANTIZE_PARTS];

typedef struct eng_quantize_report {
    int32_t shards, kept;  /* of EXL3 tensors; kept: found whole */
    int64_t tensors;       /* of all of them */
    uint64_t bytes;
    int64_t tiles;         /* encoded by this run */
    double seconds;
    struct {
        int32_t linears, calibrated; /* encoded by this run; of them with a Hessian */
        double error;                /* RMS of what became of the weights less them, by theirs; 0 without linears */
        double proxy;                /* mean proxy error of the calibrated ones */
    } part[ENG_QUANTIZE_PARTS];
} eng_quantize_report;

/* out: MODEL, a folder that is not there (its parent is), an empty one, or one of an earlier run. ERR_ARG: out holds
 * something else, or shards that were made otherwise (without force). ERR_SYSTEM: interrupted (base/interrupt.h).
 * eng_weights_open's errors, ERR_INPUT for a tape that is none of this checkpoint's, ERR_DEVICE, ERR_NOMEM, ERR_IO. */
MUST_USE err_code eng_quantize(const char *model, const char *out, const eng_quantize_options *o,
                               eng_quantize_report *report, err *e);

#endif
