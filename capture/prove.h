/* Proof that capture does not disturb: the same rounds untapped, tapped and half-tapped, with equal bits, and the cost. */
#ifndef CAPTURE_PROVE_H
#define CAPTURE_PROVE_H

#include "capture/recorder.h"

/* half: every other tap of the tapped way. */
typedef enum cap_way { CAP_UNTAPPED, CAP_TAPPED, CAP_HALF_TAPPED, CAP_WAYS } cap_way;

typedef struct cap_proof {
    int32_t rounds, passes;      /* each way ran all rounds so often, in turns */
    bool same;                   /* drafts, confidence and windows of the drafted slots, in every round, way and pass */
    char difference[ERR_MSG_BYTES]; /* else the first one */
    double round_us[CAP_WAYS];   /* median time of a round's steps until they are answered, without the first pass */
    double device_us[CAP_WAYS];  /* CUDA: median time that they take device 0, from a step's first op until its shot is
                                  * packed, which no answer waits for; else 0 */
    double taps, kbytes;         /* of a tapped round, mean */
    double extra_us, noise_us;   /* of a round tapped less the same one untapped, of the device where there is one: the
                                  * median, and twice its standard error. Not above it, there is no cost to see */
    double us_per_tap, us_per_kb; /* extra_us shared out */
} cap_proof;

/* g: opened with cap_retain_level(o) and the script's slots, which are empty afterwards. Nothing is written. ERR_ARG: a bad
 * tap item; what the steps say. */
MUST_USE err_code cap_prove(eng_engine *g, const eng_script *s, const cap_options *o, bool quiet, cap_proof *out, err *e);
/* "PASS ..." or "FAIL ...", and the cost; or one JSON object. ERR_IO. */
MUST_USE err_code cap_proof_print(const cap_proof *p, bool json, err *e);

#endif
