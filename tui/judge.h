/* Certificates of single rounds, made in the background and kept: which op is wrong, and why. */
#ifndef TUI_JUDGE_H
#define TUI_JUDGE_H

#include "capture/joined.h"
#include "replay/certify.h"

typedef struct tui_judge tui_judge;

/* checkpoint: borrowed; opened with the first round that is judged. ERR_NOMEM. */
MUST_USE err_code tui_judge_open(const char *checkpoint, bool threaded, tui_judge **out, err *e);
void tui_judge_close(tui_judge *j); /* waits for a round being judged; NULL is a no-op */
/* Asks for the certificates of a round of n tapes, borrowed; those that are known are not made again. false: busy with
 * others. */
bool tui_judge_ask(tui_judge *j, const fmt_tape *const *tapes, int n, int32_t round);
int32_t tui_judge_at(tui_judge *j); /* the round that is being judged, -1: none. j may be NULL */
/* true once for an ask that failed; *e says why. j may be NULL. */
bool tui_judge_failed(tui_judge *j, err *e);
/* NULL: not judged. Valid until the next ask. j may be NULL. */
const rpl_certificate *tui_judge_of(tui_judge *j, const fmt_tape *tape, int32_t round);
bool tui_judge_any(tui_judge *j); /* a round has been judged */
/* The illegal element of a value next to flat index `from`, behind it (by 1) or before it (by -1). -1: none, or the round
 * is not judged, or the value's inputs explain it all. j may be NULL. */
int64_t tui_judge_illegal(tui_judge *j, const fmt_tape *tape, const cap_name *n, int64_t from, int by);
/* The router's bias of a stage, [*n] f32: known once a round has been judged. NULL: unknown. */
const float *tui_judge_bias(tui_judge *j, int32_t stage, int64_t *n);
/* Tapes have been closed: nothing refers to them afterwards. */
void tui_judge_forget(tui_judge *j);

#endif
