/* The limits of the classifier: gates.json beside this file holds the defaults, which are strict. A file of the user's may
 * say others; what was overridden is printed with every verdict. */
#ifndef REPLAY_GATES_H
#define REPLAY_GATES_H

#include "base/err.h"

/* key in the file, what the figure is */
#define RPL_GATE_LIST(X)                                                                        \
    X(STATE,     "state_flags",             "state: flagged rows and positions")                \
    X(OWN_LOGIT, "own_logit_flags",         "own-logit: drafts that are not their own argmax")  \
    X(ATTENTION, "attention_median_excess", "attention: median excess of the worst stage")      \
    X(KL,        "kl_ratio",                "KL: multiple of the mirror's band")                \
    X(TOKENS,    "unexplained_tokens",      "tokens: unexplained differences from the mirror")
#define X(name, key, text) RPL_GATE_##name,
typedef enum rpl_gate { RPL_GATE_LIST(X) RPL_GATE_COUNT } rpl_gate;
#undef X
const char *rpl_gate_key(rpl_gate g);
const char *rpl_gate_text(rpl_gate g);

typedef struct rpl_gates {
    double limit[RPL_GATE_COUNT];   /* a figure passes when it is <= limit */
    double strict[RPL_GATE_COUNT];  /* the default */
    bool overridden[RPL_GATE_COUNT];/* the file names it, with another number */
    char file[256];                 /* "": the defaults */
} rpl_gates;

void rpl_gates_default(rpl_gates *out);
/* The defaults, with what FILE (an object of the same keys, "schema" 1, any subset) says instead. ERR_INPUT: an unknown
 * key, or no number of 0 or more; ERR_FORMAT. */
MUST_USE err_code rpl_gates_read(const char *path, rpl_gates *out, err *e);

#endif
