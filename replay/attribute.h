/* Attribution: which ops make a run another one than the reference's?
 *
 * An arm, or a tape, stands against a reference, on the rounds of a tape (replay/attribute_run.h). When the arm differs by
 * the metric, two minimal sets of ops are looked for by delta debugging (replay/ddmin.h), stages first, then parts of a
 * stage, then single ops:
 *   away    made by the reference, the rest by the arm: the difference is gone
 *   appear  made by the arm, the rest by the reference: the difference is there
 * Neither keeps its property when any one of its ops is taken out. Ops that the arm makes as the reference does (of a tape:
 * that are recorded bit for bit as the reference makes them) are no candidates. */
#ifndef REPLAY_ATTRIBUTE_H
#define REPLAY_ATTRIBUTE_H

#include "formats/json.h"
#include "replay/attribute_metric.h"
#include "replay/attribute_tape.h"
#include "replay/rerun.h"

enum { RPL_TRY_TEXT = 120, RPL_SIDE_TEXT = 80 };

/* Who made what in one run. */
typedef enum rpl_try_kind { RPL_TRY_REFERENCE, RPL_TRY_ARM, RPL_TRY_AWAY, RPL_TRY_APPEAR, RPL_TRY_ONLY } rpl_try_kind;
typedef struct rpl_try {
    rpl_try_kind kind;
    char text[RPL_TRY_TEXT]; /* the ops: "s0.attn.* (11 ops)", "s1.ffn.ids main_x" */
    int32_t n_units;         /* that were made by the other side */
    double figure, seconds;
    bool differs;
} rpl_try;

/* A search's result. */
typedef struct rpl_found {
    bool searched;           /* false: there was no difference, or no such set */
    bool minimal;            /* false: the search was ended; the set is the smallest so far */
    bool *unit;              /* [n_units] */
    int32_t n;
    double figure;           /* with the set replaced (away), or with it alone (appear) */
} rpl_found;

typedef struct rpl_attribution {
    rpl_metric metric;
    char arm[RPL_SIDE_TEXT], reference[RPL_SIDE_TEXT]; /* "native-packed tp2"; arm: or the options' tape_text */
    rpl_mix *mix;            /* names the units */
    rpl_meter *meter;
    rpl_deviations *deviations; /* NULL: the arm is not the tape */
    int32_t n_units, n_candidates, n_rounds; /* n_rounds: with a draft, compared */
    bool *candidate;         /* [n_units] */
    bool *wanted;            /* [rounds] that the tries ran: those that differ, if there are any alone */
    int32_t n_wanted;
    double reference_figure, arm_figure; /* over the rounds wanted */
    bool differs;            /* the arm does */
    bool stays;              /* the reference alone differs too, or the tape's tokens differ and no op's do: no set of ops
                              * makes it go away */
    bool damaged;            /* the tape is, or is unfinished: set by who opened it, and by values that cannot be read */
    int64_t n_tape_tokens, n_tape_other; /* recorded tokens, and how many are not the arm's */
    rpl_found away, appear;
    rpl_try *tried;
    size_t n_tries, tries_capacity;
    bool interrupted, spent; /* spent: the budget of tries */
} rpl_attribution;

/* A set of ops with who makes them, for a control. by.arm NULL: the tape. */
typedef struct rpl_only { const char *set; eng_options by; } rpl_only;

typedef struct rpl_attribute_options {
    rpl_metric metric;
    eng_options reference;
    const eng_options *arm;  /* NULL: the tape itself */
    const char *tape_text;   /* then: what the tape is, "the tape" */
    const rpl_only *only;    /* one control instead of a search: the reference with these ops; then arm is not used */
    int32_t n_only;
    const bool *rounds;      /* [rounds of the tape, as fmt_tape_rounds has them]; NULL: all */
    int32_t tries;           /* budget of both searches */
    bool quiet;
    void (*say)(void *ctx, const rpl_attribution *a, const rpl_try *t); /* after each try; may be NULL */
    void *ctx;
} rpl_attribute_options;

/* *out is zeroed before; rpl_attribution_fini is right for it whatever happened. t and w are borrowed until then. A caller
 * that catches interrupts (base/interrupt.h) gets what was found before one. ERR_INPUT: a redacted tape, no draft to
 * compare, values that the model does not have; ERR_ARG: a set without an op; ERR_NOMEM. */
MUST_USE err_code rpl_attribute(const fmt_tape *t, const eng_weights *w, const rpl_attribute_options *o,
                                rpl_attribution *out, err *e);
void rpl_attribution_fini(rpl_attribution *a);

/* "SAME": no difference. "INCOMPLETE": none, but of the tape no op's value could be compared. "ATTRIBUTED": both minimal
 * sets were found. "REMAINS": a difference that no set of ops makes go away. "PARTIAL": interrupted, the budget was spent,
 * or no difference in what is left of a damaged tape. Of a control: "DIFFERS" in place of "ATTRIBUTED". */
const char *rpl_attribution_verdict(const rpl_attribution *a);
/* A set of units in words, whole stages and parts as one. Returns buf. */
const char *rpl_units_text(const rpl_attribution *a, const bool *unit, char buf[RPL_TRY_TEXT]);

/* ---- output ---- */
void rpl_attribution_begin(const rpl_attribution *a);                   /* heading of the table of tries */
void rpl_attribution_print_try(const rpl_attribution *a, const rpl_try *t);
void rpl_attribution_print(const rpl_attribution *a);                   /* what was found, after the tries */
json_t *rpl_attribution_json(const rpl_attribution *a, const fmt_tape *t); /* new reference; NULL: no memory */

#endif
