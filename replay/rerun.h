/* One slot's draft of a dump made again: from the window that it saw, its anchor and position, under its own tokens.
 *
 * By an arm, or by an arm with the ops of some sets made by other arms ("s0.attn.o=native-expanded"), whole values on the
 * CPU, sums cut as the arm's ranks cut them (eng_bench_open). What else was in the step does not matter: a row's bits
 * depend on its slot alone. */
#ifndef REPLAY_RERUN_H
#define REPLAY_RERUN_H

#include "engine/engine.h"
#include "replay/fold.h"

/* Ops that another arm makes. set: names of ops or of values that they write, as cli_match has them, and what lies below:
 * "s*.attn" is "s*.attn.*" and "s*.attn_*" too. Borrowed until close. */
typedef struct rpl_substitute { const char *set; eng_options by; } rpl_substitute;
enum { RPL_SUBSTITUTES_MAX = 8, RPL_SET_BYTES = 128 /* the longest set, and its end */ };

/* "SET=ARM"; the set is copied to buf. words: the rest of the arm's options. ERR_ARG. */
MUST_USE err_code rpl_substitute_parse(const char *text, const eng_option_words *words, int64_t threads,
                                       char buf[RPL_SET_BYTES], rpl_substitute *out, err *e);

/* Whether set has the op or the value of that name. */
bool rpl_set_has(const char *set, const char *name);
/* Whether set has the group: its op, a value that it writes, or by its very name a hidden op inside. */
bool rpl_set_has_group(const char *set, const eng_program *p, const rpl_group *g);

typedef struct rpl_rerun_draft {
    int32_t anchor, pos, n_out;
    const bf16 *const *window; /* [n_stages] each [min(window, pos + 1), head_dim] */
    const int32_t *drafts;     /* [n_out] the tokens that later positions come after */
} rpl_rerun_draft;

typedef struct rpl_rerun rpl_rerun;

/* w is borrowed until close. The first substitute whose set has an op makes it. ERR_ARG: a set without an op. ERR_NOMEM. */
MUST_USE err_code rpl_rerun_open(const eng_weights *w, const eng_options *o, const rpl_substitute *substitute,
                                 int32_t n_substitutes, rpl_rerun **out, err *e);
void rpl_rerun_close(rpl_rerun *r); /* NULL is a no-op */
MUST_USE err_code rpl_rerun_run(rpl_rerun *r, const rpl_rerun_draft *draft, err *e);
/* What the last run gave of a value of the draft step (docs/values.md), as for a batch of one with n_out = block: its row
 * i < n_out of head.biased is that of position i. Valid until the next run; NULL: no such value. */
const void *rpl_rerun_value(const rpl_rerun *r, const char *name);

#endif
