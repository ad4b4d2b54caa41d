/* How the members of each kind of result add up. "shard" is the report's own business. */
#include "replay/report_merge.h"

#include <string.h>

#define KEY(name) { name, RPL_MERGE_KEY, false, false, { 0 }, NULL }
#define LABEL(name) { name, RPL_MERGE_LABEL, false, false, { 0 }, NULL }
#define SUM(name) { name, RPL_MERGE_SUM, true, false, { 0 }, NULL }
#define SUM_IF(name) { name, RPL_MERGE_SUM, false, false, { 0 }, NULL }
#define MAX(name) { name, RPL_MERGE_MAX, false, false, { 0 }, NULL }
#define MIN(name) { name, RPL_MERGE_MIN, false, false, { 0 }, NULL }
#define OR(name) { name, RPL_MERGE_OR, false, false, { 0 }, NULL }
#define LIST(name, ...) { name, RPL_MERGE_LIST, true, false, { __VA_ARGS__ }, NULL }
#define KEYED(name, sub, ...) { name, RPL_MERGE_KEYED, true, false, { __VA_ARGS__ }, sub }
#define KEYED_IN_KEY(name, sub, ...) { name, RPL_MERGE_KEYED, true, true, { __VA_ARGS__ }, sub }
#define OBJECT(name, sub) { name, RPL_MERGE_OBJECT, true, false, { 0 }, sub }
#define DERIVED(name) { name, RPL_MERGE_DERIVED, false, false, { 0 }, NULL }
#define RULE(name, rule) { name, RPL_MERGE_##rule, false, false, { 0 }, NULL }
#define END { NULL, RPL_MERGE_KEY, false, false, { 0 }, NULL }

/* What every result has. */
#define COMMON KEY("schema"), KEY("type"), RULE("source", SOURCE), KEY("options"), KEY("by"), DERIVED("verdict")
/* What those have that look at rounds (replay/coverage.h). */
#define COVERAGE SUM("rounds"), SUM_IF("rounds_wanted"), OR("partial"), OR("damaged")

/* ---- certify ---- */

static const rpl_field NOTE[] = { KEY("value"), KEY("why"), SUM("values"), MIN("first_round"), MIN("order"), END };
static const rpl_field SHARPNESS[] = { KEY("ulps"), SUM("tried"), SUM("admitted"), END };
static const rpl_field OP[] = {
    KEY("value"), LABEL("op"), MIN("order"), SUM("values"), SUM("elements"), SUM("equal"), SUM("flip"), SUM("illegal"),
    SUM("unjudged"), SUM("events"), MAX("flip_distance"),
    { "sharpness", RPL_MERGE_KEYED, false, false, { "ulps" }, SHARPNESS }, END,
};
static const rpl_field CERTIFICATE[] = {
    COMMON, COVERAGE, LABEL("tape"), KEY("bound"), KEY("injected"), DERIVED("waived"), SUM("elements"),
    SUM("equal"), SUM("flip"), SUM("illegal"), SUM("values"), SUM("events"), SUM("unjudged"), SUM("values_not_judged"),
    LIST("origins", "round"), LIST("inherited", "round"), KEYED("not_judged", NOTE, "value", "why"),
    KEYED("findings", NOTE, "value", "why"), LIST("ties", "round"), KEYED("ops", OP, "value"), SUM("bytes"),
    MAX("seconds"), END,
};

/* ---- parity ---- */

static const rpl_field COLUMN[] = {
    KEY("name"), KEY("tape"), KEY("reference"), MIN("runs"), SUM("unstable"), SUM("ranks_differ"), SUM("poisoned"),
    SUM("equal"), SUM("flip"), SUM("differs"), SUM("absent"), SUM("unjudged"), RULE("first_unstable", EARLIEST),
    RULE("first_ranks_differ", EARLIEST), RULE("first_poisoned", EARLIEST), RULE("first", EARLIEST),
    RULE("origin", EARLIEST), END,
};
static const rpl_field PAIR[] = {
    KEY("why"), KEY("a"), KEY("b"), SUM("values"), SUM("differ"), RULE("first", EARLIEST), END,
};
static const rpl_field NAME[] = {
    KEY("value"), LABEL("op"), MIN("order"), RULE("marks", MARKS), SUM("values"), SUM("differ"),
    RULE("pattern", WITH_FIRST), RULE("first", EARLIEST), END, /* the pattern before what it goes with */
};
static const rpl_field PARITY[] = {
    COMMON, COVERAGE, LABEL("tape"), SUM("values"), SUM("values_differ"), SUM("judged"), KEY("repeat"), OR("recorded_run"),
    KEYED_IN_KEY("columns", COLUMN, "name"), KEYED("bitwise", PAIR, "why", "a", "b"), KEYED("names", NAME, "value"),
    MAX("seconds"), END,
};
static const rpl_field DIVERGENCE[] = {
    COMMON, LABEL("tape"), KEY("a"), KEY("b"), SUM_IF("rounds"), KEY("round"), KEY("checks"), KEY("state"), KEY("alone"),
    KEY("shown"), KEY("value"), KEY("op"), KEY("slot"), KEY("class"), KEY("values_differ"), KEY("values"), OR("partial"),
    OR("damaged"), SUM_IF("rounds_wanted"), END,
};

/* ---- diff ---- */

static const rpl_field DIFF[] = {
    COMMON, COVERAGE, LABEL("a"), LABEL("b"), KEY("forced"), SUM("values"), SUM("compared"), SUM("equal"), SUM("differ"),
    SUM("one_sided"), SUM("elements"), SUM("origins"), SUM("inherited"), SUM("unplaced"), SUM("findings"), SUM("drafts"),
    SUM("drafts_equal"), SUM("rounds_differ"), KEY("identity"), SUM("redacted"), LIST("lines", "round"), END,
};

/* ---- classify ---- */

static const rpl_field GATE[] = {
    DERIVED("verdict"), DERIVED("figure"), DERIVED("of"), DERIVED("control"), KEY("limit"), KEY("default"), END,
};
static const rpl_field GATES[] = {
    OBJECT("state_flags", GATE), OBJECT("own_logit_flags", GATE), OBJECT("attention_median_excess", GATE),
    OBJECT("kl_ratio", GATE), OBJECT("unexplained_tokens", GATE), END,
};
static const rpl_field STATE[] = {
    SUM("rows"), SUM("windows"), SUM("windows_given"), SUM("main_x_given"), SUM("keys_in_doubt"), END,
};
static const rpl_field VERDICT[] = {
    DERIVED("verdict"), SUM("elements"), SUM("equal"), SUM("flip"), SUM("illegal"), SUM("not_judged"),
    RULE("first_illegal", FIRST_TEXT), END,
};
static const rpl_field CLASSIFICATION[] = {
    COMMON, COVERAGE, LABEL("tapes"), LABEL("model"), KEY("own"), KEY("control"), LABEL("gates_file"),
    OBJECT("gates", GATES), OBJECT("state", STATE), DERIVED("band"), DERIVED("noise"), DERIVED("worker"),
    DERIVED("control_figures"), OBJECT("certificate", VERDICT), LIST("flags", "tape", "round"),
    LIST("tokens", "tape", "round"), LIST("keys", "tape", "round"), END,
};

/* ---- accept ---- */

static const rpl_field ACCEPT_RUN[] = {
    KEY("arm"), KEY("run"), KEY("windows"), KEY("missing"), SUM_IF("blocks"), SUM_IF("blocks_exact"), SUM_IF("tokens"),
    SUM_IF("tokens_equal"), RULE("accepted_at", SUMS), DERIVED("accepted"), DERIVED("versus_control"), DERIVED("p_target"),
    DERIVED("p_target_versus_control"), END,
};
static const rpl_field ACCEPTANCE[] = {
    COMMON, COVERAGE, LABEL("tape"), LABEL("model"), KEY("control"), SUM("blocks"), SUM("determined"), MAX("short"),
    MAX("target_logits"), MAX("rounds_left_out"), KEY("traffic"), KEYED_IN_KEY("runs", ACCEPT_RUN, "run", "windows"),
    LIST("block_list", "round"), END,
};

/* ---- planted faults ---- */

static const rpl_field SCORE_ARM[] = { KEY("arm"), LABEL("clean"), END };
static const rpl_field SCORECARD[] = {
    COMMON, OR("partial"), LABEL("model"), KEY("bound"), KEY("seed"), KEY("kinds"), KEY("ops"), KEY("every"),
    SUM_IF("planted_wanted"),
    DERIVED("matrix"), SUM("planted"), SUM("detected"), SUM("right"), SUM("missed"), SUM("admissible"),
    SUM("absorbed"), SUM("idle"), SUM_IF("causes_named"), SUM_IF("causes_right"), MAX("seconds"),
    KEYED_IN_KEY("arms", SCORE_ARM, "arm"), LIST("plantings", NULL), END,
};
static const rpl_field INJECTION[] = {
    COMMON, LABEL("path"), KEY("injected"), SUM("changed"), KEY("hidden"), KEY("must"), OR("partial"), END,
};

/* ---- attribute, reduce: of one tape, never in parts ---- */

static const rpl_field ATTRIBUTION[] = {
    COMMON, LABEL("tape"), KEY("metric"), KEY("arm"), KEY("reference"), KEY("limit"), KEY("rounds"), KEY("candidates"),
    KEY("reference_figure"), KEY("arm_figure"), KEY("differs"), KEY("away"), KEY("appear"), KEY("tries"), OR("interrupted"),
    OR("damaged"), KEY("tape_tokens"), KEY("tape_tokens_other"), END,
};
static const rpl_field REDUCTION[] = {
    COMMON, LABEL("tape"), LABEL("folder"), KEY("op"), KEY("kinds"), KEY("round"), KEY("rows"), KEY("rows_total"),
    LABEL("bytes"), KEY("elements"), KEY("equal"), KEY("flip"), KEY("illegal"), KEY("unjudged"), END,
};

const rpl_analysis RPL_ANALYSES[] = {
    { "certificate", "certify", CERTIFICATE },
    { "parity", "parity", PARITY },
    { "first divergence", "parity --first", DIVERGENCE },
    { "diff", "diff", DIFF },
    { "classification", "classify", CLASSIFICATION },
    { "acceptance", "accept", ACCEPTANCE },
    { "scorecard", "scorecard", SCORECARD },
    { "injection", "inject", INJECTION },
    { "attribution", "attribute", ATTRIBUTION },
    { "reduction", "reduce", REDUCTION },
    { NULL, NULL, NULL },
};

const rpl_analysis *rpl_analysis_find(const char *type)
{
    for (const rpl_analysis *a = RPL_ANALYSES; a->type; a++)
        if (strcmp(a->type, type) == 0) return a;
    return NULL;
}
