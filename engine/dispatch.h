/* Which launches run the experts of a step, by stage and rows: measured once per card, kept in MODEL/dispatch.json.
 *
 *   { "schema": 1, "device": "NVIDIA H200", "arm": "native-hybrid-kx2",
 *     "experts": [ { "stage": 0, "rows": 5, "variant": "fused", "us": { "separate": 45.2, "fused": 40.1 } }, ... ] }
 *
 * us is the measured time of a whole draft step with either variant; it and keys not named here are not read. What the
 * file does not name runs as by default. A variant changes no bit of a result, so none of this is part of an identity. */
#ifndef ENGINE_DISPATCH_H
#define ENGINE_DISPATCH_H

#include "engine/engine.h"

/* The experts of a stage: gate and up, SwiGLU with QDQ, down as separate launches, or all of them as one. */
typedef enum eng_variant { ENG_VARIANT_SEPARATE, ENG_VARIANT_FUSED, ENG_VARIANTS } eng_variant;
enum {
    ENG_VARIANT_DEFAULT = ENG_VARIANT_SEPARATE, /* on a card that nobody has measured */
    ENG_DISPATCH_ROWS = ENG_BATCH_MAX * ENG_BLOCK_MAX,
};

/* By stage, rows - 1. A plain value: copied, compared, kept on a stack. */
typedef struct eng_dispatch { uint8_t variant[ENG_STAGES_MAX][ENG_DISPATCH_ROWS]; } eng_dispatch;

typedef struct eng_dispatch_entry {
    int32_t stage, rows;
    eng_variant variant;
    double us[ENG_VARIANTS];
} eng_dispatch_entry;

const char *eng_variant_name(eng_variant v); /* "separate" "fused" */

eng_dispatch eng_dispatch_default(void);
/* One variant everywhere. */
eng_dispatch eng_dispatch_all(eng_variant v);
/* The default for a stage or number of rows that no table holds. */
eng_variant eng_dispatch_variant(const eng_dispatch *d, int32_t stage, int32_t rows);
/* stage 0..ENG_STAGES_MAX-1, rows 1..ENG_DISPATCH_ROWS. */
void eng_dispatch_set(eng_dispatch *d, int32_t stage, int32_t rows, eng_variant v);

/* FOLDER/dispatch.json. ERR_ARG: longer than the room for it. */
MUST_USE err_code eng_dispatch_path(const char *folder, char *out, size_t bytes, err *e);
/* device: as eng_device_name says it; the card's name is what stands before the first comma. No such file: the default. A
 * file made on another card: the default too, and note (ERR_MSG_BYTES, may be NULL; else "") says so in one line. On error
 * *out is the default. ERR_FORMAT: no JSON; ERR_INPUT: JSON that is no such table; ERR_IO, ERR_NOMEM. */
MUST_USE err_code eng_dispatch_read(const char *path, const char *device, eng_dispatch *out, char *note, err *e);
/* Whole or not at all (base/outfile.h). device as above. tp: the ranks it was measured with, for who reads the file.
 * ERR_IO, ERR_NOMEM. */
MUST_USE err_code eng_dispatch_write(const char *path, const char *device, const char *arm, int32_t tp,
                                     const eng_dispatch_entry *entries, int32_t n, err *e);

#endif
