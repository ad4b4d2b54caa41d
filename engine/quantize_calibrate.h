/* The inputs that linears had while a deep tape was recorded. */
#ifndef ENGINE_QUANTIZE_CALIBRATE_H
#define ENGINE_QUANTIZE_CALIBRATE_H

#include "engine/weights.h"

typedef struct eng_calibration eng_calibration;

enum { ENG_CALIBRATION_ROWS = 1 << 14 }; /* more of one linear's inputs are not looked at */

/* Opens a finished tape of level deep. ERR_IDENTITY: of another checkpoint. ERR_INPUT: unfinished, or of another level.
 * ERR_FORMAT, ERR_NOMEM. */
MUST_USE err_code eng_calibration_open(const char *path, const eng_weights *w, eng_calibration **out, err *e);
void eng_calibration_close(eng_calibration *c); /* NULL is a no-op */
/* sha256 over place, name and hash of every value that some linear's inputs are read from. Hex. */
const char *eng_calibration_id(const eng_calibration *c);

/* The rows that this linear multiplied, without FP8 rounding: *x [*rows, k of the linear] f32, owned by the caller (free).
 * An expert's are those that were routed to it, but w1 and w3 share their stage's input and take all of it. *rows is 0 and
 * *x NULL where the tape has none; the shared expert's w2 has no input on any tape. ERR_NOMEM, ERR_FORMAT. */
MUST_USE err_code eng_calibration_rows(const eng_calibration *c, eng_wid id, int32_t stage, int32_t expert, float **x,
                                       int64_t *rows, err *e);

#endif
