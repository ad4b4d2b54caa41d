/* What a mixture is measured by: one number, and whether it is a difference (more than a limit).
 *
 *   drafts        tokens other than those of the reference alone. Limit 0
 *   kl            KL(mirror64 || run) of the biased logits of the drafted positions, each under the tape's tokens (where it
 *                 has none, the reference's), mean over the rounds, as a multiple of KL(mirror64 || mirror). Limit: the
 *                 classifier's (replay/gates.json)
 *   excess:VALUE  relative L2 distance of VALUE from mirror64's, pooled over the rounds, as a multiple of the mirror's.
 *                 Limit: the classifier's for attention
 *
 * The mirror's noise has a floor: of kl, what half a bf16 ulp in one element of head.norm does; of excess, half an ulp of
 * the value's own type in one element. NaN and infinities are at infinite distance. */
#ifndef REPLAY_ATTRIBUTE_METRIC_H
#define REPLAY_ATTRIBUTE_METRIC_H

#include "replay/attribute_run.h"
#include "replay/certify.h"

typedef enum rpl_metric_kind { RPL_METRIC_DRAFTS, RPL_METRIC_KL, RPL_METRIC_EXCESS } rpl_metric_kind;
typedef struct rpl_metric {
    rpl_metric_kind kind;
    char value[RPL_NAME_BYTES]; /* excess */
    double limit;
} rpl_metric;

/* "drafts" "kl" "excess:s0.attn_out", with the default limit. ERR_ARG. */
MUST_USE err_code rpl_metric_parse(const char *text, rpl_metric *out, err *e);
const char *rpl_metric_text(const rpl_metric *m, char buf[64]);

typedef struct rpl_meter rpl_meter;
/* Runs what the metric needs for itself: the reference (side 0), and for kl and excess the sides mirror and mirror64, over
 * the rounds wanted. t and m are borrowed until close. ERR_ARG: VALUE is no floating-point value of a step. *stopped: as
 * rpl_mix_run; *out is then NULL. */
MUST_USE err_code rpl_meter_open(const fmt_tape *t, rpl_mix *m, const rpl_metric *metric, const bool *wanted, int8_t mirror,
                                 int8_t mirror64, rpl_meter **out, bool *stopped, err *e);
void rpl_meter_close(rpl_meter *k); /* NULL is a no-op */

/* Runs the mixture and measures it over wanted (a subset of open's). *stopped: nothing was measured. */
MUST_USE err_code rpl_meter_run(rpl_meter *k, const int8_t *maker, const bool *wanted, bool *stopped, err *e);
/* Of the last run, over the rounds of it that wanted has. */
double rpl_meter_figure(const rpl_meter *k, const bool *wanted);
/* Whether a figure is a difference. */
bool rpl_meter_differs(const rpl_meter *k, double figure);
/* The tape's own tokens: of the rounds wanted, *n_compared that it has, and how many are not those of the last run
 * (free-running, metric drafts or excess), or, with reference set, not the reference's. */
int64_t rpl_meter_tape_tokens(const rpl_meter *k, const bool *wanted, bool reference, int64_t *n_compared);

#endif
