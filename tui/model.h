/* The model: what the screens show of one tape, or of a pair of them.
 *
 * Opening reads indexes only. The comparison runs round by round on a thread of its own and never makes a screen wait: a
 * round's result is there, or not yet. Of every round a summary per request is kept; the results themselves only of the
 * last rounds compared, and older ones are compared again when they are looked at. Everything else is called by one
 * thread, at a time at least: the one that opens a model may be another. */
#ifndef TUI_MODEL_H
#define TUI_MODEL_H

#include "replay/compare.h"
#include "tui/canvas.h"

enum { TUI_A, TUI_B, TUI_SIDES };
enum { TUI_DRAFTS_MAX = 8 }; /* tokens of a slot that are kept for display */

/* How a value, or a round, came out; a worse one is larger. */
typedef enum tui_verdict {
    TUI_VERDICT_NONE,      /* nothing to compare with */
    TUI_VERDICT_PENDING,   /* not compared yet */
    TUI_VERDICT_EQUAL,
    TUI_VERDICT_INHERITED,
    TUI_VERDICT_DIFFERS,   /* cannot be placed */
    TUI_VERDICT_INPUT,     /* the two runs were asked different things */
    TUI_VERDICT_ORIGIN,
    TUI_VERDICT_BROKEN,    /* unreadable, other shape or dtype */
    TUI_VERDICT_COUNT,
} tui_verdict;
typedef struct tui_verdict_look { const char *glyph, *word; tui_style style; } tui_verdict_look;
extern const tui_verdict_look TUI_VERDICT[TUI_VERDICT_COUNT];
static inline bool tui_is_different(tui_verdict v) { return v >= TUI_VERDICT_INHERITED; }
tui_verdict tui_verdict_of(const rpl_value *v);

/* One slot in one round: a line of the Rounds screen. */
typedef struct tui_request {
    int32_t round_index, round, slot; /* slot FMT_TAPE_NO_SLOT: a round with values but no slot */
    int32_t entry;  /* place in the draft step, -1: not drafted */
    int32_t n_rows; /* inserted rows, P */
    int32_t n_drafts[TUI_SIDES]; /* tokens there are; -1: not read yet */
    int32_t draft[TUI_SIDES][TUI_DRAFTS_MAX];
    /* Of the comparison, once it is there: over the slot's own values and those of the whole step. */
    tui_verdict verdict;
    int32_t first_origin, worst; /* indices of values, -1: none */
    double worst_rel_l2, kl;     /* NaN: none */
    int32_t n_same;              /* leading tokens that agree, -1: not drafted on both sides */
    bool drafts_equal;           /* as many on both sides, and all agree */
} tui_request;
/* A relative L2 distance in half ulps of bf16, 2^-9: what rounding each element once may give. */
static inline double tui_excess(double rel_l2) { return rel_l2 * 512; }

typedef struct tui_model tui_model;

/* a and b are borrowed until close; b NULL: one tape alone. *out is NULL on error. ERR_NOMEM; ERR_FORMAT: damaged. */
MUST_USE err_code tui_model_open(const fmt_tape *a, const fmt_tape *b, tui_model **out, err *e);
/* Waits for the round that is being compared. NULL is a no-op. */
void tui_model_close(tui_model *m);
bool tui_model_is_pair(const tui_model *m);
const fmt_tape *tui_model_tape(const tui_model *m, int side); /* NULL: no B */
/* "native-packed, cpu, tp 2, exact, deep" as the head says; "?" for what it does not. */
void tui_model_identity(const tui_model *m, int side, char *buf, size_t bytes);

/* ---- comparing ---- */
/* Starts the thread. A no-op for one tape. ERR_SYSTEM. */
MUST_USE err_code tui_model_start(tui_model *m, err *e);
/* Compares everything on the calling thread: recorded keys. Not after tui_model_start. ERR_NOMEM. */
MUST_USE err_code tui_model_finish(tui_model *m, err *e);
/* Paused, only wanted rounds are compared. */
void tui_model_pause(tui_model *m, bool on);
/* This round is shown: it is compared next, unless its result is there. */
void tui_model_want(tui_model *m, int32_t round_index);
int32_t tui_model_rounds(const tui_model *m);
int32_t tui_model_rounds_done(const tui_model *m);
bool tui_model_is_working(tui_model *m); /* more results will come */
/* Also wants the round. NULL: nothing to compare with, or not compared yet, or no longer kept: then it comes (without the
 * thread it is compared at once). Its values are those of tui_model_values, in the same order. Valid until another round is
 * wanted. */
const rpl_round *tui_model_result(tui_model *m, int32_t round_index);
/* Takes what an older model of the same tapes, when they were shorter, knows of rounds that have not grown since. */
void tui_model_adopt(tui_model *m, tui_model *old);

/* ---- requests and values ---- */
int32_t tui_model_requests(const tui_model *m);
/* Brings its comparison up to date. Valid until close. */
const tui_request *tui_model_request(tui_model *m, int32_t i);
/* Reads the drafted tokens of a request: two small values per side. Unreadable ones count as none. */
void tui_model_read_drafts(tui_model *m, int32_t i);
/* Request of a slot in the nearest round before (by < 0) or after (by > 0) request i that has it; -1: none. */
int32_t tui_model_step(const tui_model *m, int32_t i, int by);
int32_t tui_model_find_request(const tui_model *m, int32_t round, int32_t slot); /* NO_SLOT: the first of the round; -1 */
int32_t tui_model_find_round(const tui_model *m, int32_t round); /* index; -1: not there */
int32_t tui_model_first_request(const tui_model *m, int32_t round_index); /* requests of a round stand together */
/* Values of a round in program order, all slots. */
const cap_name *tui_model_values(const tui_model *m, int32_t round_index, int32_t *n);
/* Index of a value among them, -1: none. */
int32_t tui_model_find_value(const tui_model *m, int32_t round_index, int32_t slot, const char *name);
/* Of request i: the value belongs to its slot or to the whole step. */
bool tui_model_shows(const tui_request *r, const cap_name *n);
/* 0 of "s0.attn_out"; NaN: of no stage. */
double tui_stage_of(const char *name);
/* Whether distances of values of this dtype mean anything: not those of ids and positions. */
bool tui_is_float(fmt_dtype d);
/* The op that writes a value; NULL: an input, or no program is known. */
const eng_op *tui_model_op(const tui_model *m, const cap_name *n);

/* What the index knows of a value on one side, all ranks together. */
typedef struct tui_facts {
    fmt_tensor tensor;   /* joined shape; data NULL */
    fmt_tier tier;
    int32_t n_ranks;
    bool has_stats;      /* false: hash tier, or rank partials, whose sum the index does not know */
    fmt_stats stats;
} tui_facts;
bool tui_model_facts(const tui_model *m, int side, const cap_name *n, tui_facts *out); /* false: not on that side */
bool tui_model_facts_any(const tui_model *m, const cap_name *n, tui_facts *out);       /* of A, or of B where A has none */

#endif
