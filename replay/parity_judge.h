/* Judging the columns of a parity run. Private to replay/parity*.c. */
#ifndef REPLAY_PARITY_JUDGE_H
#define REPLAY_PARITY_JUDGE_H

#include "replay/parity.h"

/* Two options that run the same. */
bool rpl_same_run(const eng_options *a, const eng_options *b);

/* Turns what differs from the reference into FLIP or DIFFERS: each distinct result of each differing round is judged once,
 * the reference's too. Sets n_judged and the columns' origins. */
MUST_USE err_code rpl_parity_judge(rpl_parity *p, const fmt_tape *t, const eng_weights *w, const rpl_parity_options *o,
                                   err *e);

#endif
