/* A script run under capture with a fault planted in one op (engine/fault.h). */
#ifndef REPLAY_INJECT_H
#define REPLAY_INJECT_H

#include "engine/fault.h"
#include "engine/script.h"
#include "engine/weights.h"

/* Runs s as `record` does, with o->fault armed in its rounds (NULL: a clean run), and writes the tape `out`, whose identity
 * says what was planted. ERR_ARG: the fault does not fit, or the script has no such round or slot; ERR_INPUT: with
 * refuse_unchanged, a fault that changed nothing (no tape is left); what steps and writer say. */
MUST_USE err_code rpl_inject(const eng_weights *w, const eng_script *s, const eng_options *o, eng_level level,
                             bool refuse_unchanged, const char *out, bool quiet, err *e);

/* "row-swap at s0.attn_out (draft), round 3", from the identity of a tape; NULL: nothing was planted. Returns buf. */
enum { RPL_INJECTED_TEXT = 160 };
const char *rpl_injected(const json_t *identity, char buf[RPL_INJECTED_TEXT]);

#endif
