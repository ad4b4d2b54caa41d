/* What a merged result's verdict and figures are made of, summed again. Private to report*.c. */
#ifndef REPLAY_REPORT_SUM_H
#define REPLAY_REPORT_SUM_H

#include "formats/json.h"

/* Whether j has every part of --shard that it is made of. */
bool rpl_result_has_all(const json_t *j);
/* Sets the DERIVED members of a merged classification: what the unsharded analysis would have said. ERR_INPUT: a token of
 * no key, a limit that is none; ERR_NOMEM. */
MUST_USE err_code rpl_sum_classification(json_t *j, err *e);

#endif
