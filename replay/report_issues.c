/* What went wrong in a result, as a list: origins first, then other findings, then what was inherited. */
#include "replay/report.h"

#include "base/mem.h"
#include "replay/scorecard.h"

#include <math.h>

const char *rpl_issue_kind_text(rpl_issue_kind kind)
{
    static const char *const TEXT[] = { [RPL_ISSUE_ORIGIN] = "origin", [RPL_ISSUE_OTHER] = "finding",
                                        [RPL_ISSUE_INHERITED] = "inherited" };
    return TEXT[kind];
}

static err_code add(rpl_report *r, const rpl_issue *s, err *e)
{
    void *array = r->issue;
    if (!mem_grow(&array, &r->capacity[1], r->n_issues + 1, sizeof *s)) return err_set(e, ERR_NOMEM, "report: no memory");
    r->issue = array;
    r->issue[r->n_issues++] = *s;
    return ERR_OK;
}

static rpl_issue issue_of(int32_t result, rpl_issue_kind kind, const char *value, const char *op, const char *cause)
{
    rpl_issue s = { .result = result, .kind = kind, .round = -1, .ratio = NAN, .n = 1, .waiver = -1 };
    snprintf(s.value, sizeof s.value, "%s", value);
    snprintf(s.op, sizeof s.op, "%s", op);
    snprintf(s.cause, sizeof s.cause, "%s", cause);
    return s;
}

/* Round of an object that may be null. */
static int64_t round_of(const json_t *j) { return json_is_object(j) ? rpl_count(j, "round") : -1; }

/* ---- certify ---- */

/* Names with commas; those that do not fit end the list with "...", which no pattern but "*" waives. */
static void outputs_text(const json_t *list, char *buf, size_t buf_bytes)
{
    size_t n = 0, i;
    json_t *name;
    json_array_foreach((json_t *)list, i, name) {
        const char *s = json_string_value(name);
        if (!s) continue;
        if (n + strlen(s) + 6 > buf_bytes) {
            snprintf(buf + n, buf_bytes - n, ",...");
            return;
        }
        n += (size_t)snprintf(buf + n, buf_bytes - n, "%s%s", n ? "," : "", s);
    }
}

static err_code add_origins(rpl_report *r, int32_t result, const json_t *list, rpl_issue_kind kind, err *e)
{
    size_t i;
    json_t *o;
    json_array_foreach((json_t *)list, i, o) {
        char follows[64];
        const json_t *worst = json_object_get(o, "worst");
        snprintf(follows, sizeof follows, "follows from %s", fmt_json_text(o, "from"));
        rpl_issue s = issue_of(result, kind, fmt_json_text(worst, "value"), fmt_json_text(o, "op"),
                               kind == RPL_ISSUE_INHERITED ? follows
                               : json_is_true(json_object_get(o, "ranks_differ")) ? "rank disagreement: the copies differ"
                                                                                  : fmt_json_text(o, "cause"));
        if (json_array_size(json_object_get(o, "outputs")))
            outputs_text(json_object_get(o, "outputs"), s.value, sizeof s.value);
        s.round = rpl_count(o, "round");
        s.ratio = rpl_real(worst, "ratio");
        if (isnan(s.ratio)) s.ratio = INFINITY; /* no number stands there: no ceiling covers it */
        s.n = rpl_count(o, "illegal");
        TRY(add(r, &s, e));
    }
    return ERR_OK;
}

static err_code add_certificate(rpl_report *r, int32_t result, const json_t *j, err *e)
{
    size_t i;
    json_t *n;
    TRY(add_origins(r, result, json_object_get(j, "origins"), RPL_ISSUE_ORIGIN, e));
    json_array_foreach(json_object_get(j, "findings"), i, n) {
        rpl_issue s = issue_of(result, RPL_ISSUE_OTHER, fmt_json_text(n, "value"), "", fmt_json_text(n, "why"));
        s.round = rpl_count(n, "first_round");
        s.n = rpl_count(n, "values");
        TRY(add(r, &s, e));
    }
    return add_origins(r, result, json_object_get(j, "inherited"), RPL_ISSUE_INHERITED, e);
}

/* ---- parity ---- */

/* A count of a column, with the value where it shows first. */
static err_code add_column(rpl_report *r, int32_t result, const json_t *column, const char *key, const char *cause, err *e)
{
    char first_key[32], text[200];
    if (rpl_count(column, key) == 0) return ERR_OK;
    snprintf(first_key, sizeof first_key, "first_%s", key);
    const json_t *first = json_object_get(column, first_key);
    snprintf(text, sizeof text, "%s (%s)", cause, fmt_json_text(column, "name"));
    rpl_issue s = issue_of(result, RPL_ISSUE_ORIGIN, fmt_json_text(first, "value"), fmt_json_text(first, "op"), text);
    s.round = round_of(first);
    s.n = rpl_count(column, key);
    return add(r, &s, e);
}

static err_code add_parity_origin(rpl_report *r, int32_t result, const json_t *column, err *e)
{
    char text[200];
    const json_t *o = json_object_get(column, "origin");
    if (rpl_count(column, "differs") == 0) return ERR_OK;
    snprintf(text, sizeof text, "no order of sums gives it (%s)", fmt_json_text(column, "name"));
    const char *value = fmt_json_text(o, "value");
    if (!value[0]) value = fmt_json_text(json_object_get(column, "first"), "value");
    rpl_issue s = issue_of(result, RPL_ISSUE_ORIGIN, value, fmt_json_text(o, "op"), text);
    double got = rpl_real(o, "got"), exact = rpl_real(o, "exact"), bound = rpl_real(o, "bound");
    s.round = round_of(o);
    s.ratio = bound > 0 && !isnan(got - exact) ? fabs(got - exact) / bound : INFINITY;
    s.n = rpl_count(column, "differs");
    return add(r, &s, e);
}

static err_code add_parity(rpl_report *r, int32_t result, const json_t *j, err *e)
{
    size_t i;
    json_t *o;
    json_array_foreach(json_object_get(j, "columns"), i, o) {
        TRY(add_column(r, result, o, "unstable", "differs from itself", e));
        TRY(add_column(r, result, o, "ranks_differ", "only a rank differs", e));
        TRY(add_column(r, result, o, "poisoned", "reads what was not written", e));
        TRY(add_parity_origin(r, result, o, e));
    }
    json_array_foreach(json_object_get(j, "bitwise"), i, o) {
        char text[200];
        const json_t *first = json_object_get(o, "first");
        if (rpl_count(o, "differ") == 0) continue;
        snprintf(text, sizeof text, "%s: %s, %s", fmt_json_text(o, "why"), fmt_json_text(o, "a"), fmt_json_text(o, "b"));
        rpl_issue s = issue_of(result, RPL_ISSUE_ORIGIN, fmt_json_text(first, "value"), fmt_json_text(first, "op"), text);
        s.round = round_of(first);
        s.n = rpl_count(o, "differ");
        TRY(add(r, &s, e));
    }
    json_array_foreach(json_object_get(j, "columns"), i, o) {
        if (rpl_count(o, "unjudged") == 0) continue;
        rpl_issue s = issue_of(result, RPL_ISSUE_OTHER, fmt_json_text(json_object_get(o, "first"), "value"), "",
                               "differs, and could not be judged");
        s.round = round_of(json_object_get(o, "first"));
        s.n = rpl_count(o, "unjudged");
        TRY(add(r, &s, e));
    }
    return ERR_OK;
}

static err_code add_divergence(rpl_report *r, int32_t result, const json_t *j, err *e)
{
    char text[200];
    if (rpl_count(j, "round") < 0) return ERR_OK;
    snprintf(text, sizeof text, "first divergence: %s, %s", fmt_json_text(j, "a"), fmt_json_text(j, "b"));
    rpl_issue s = issue_of(result, RPL_ISSUE_ORIGIN, fmt_json_text(j, "value"), fmt_json_text(j, "op"), text);
    s.round = rpl_count(j, "round");
    if (json_object_get(j, "values_differ")) s.n = rpl_count(j, "values_differ");
    return add(r, &s, e);
}

/* ---- diff ---- */

/* Its lines that are issues: all but the inherited ones (origins), or these. */
static err_code add_diff(rpl_report *r, int32_t result, const json_t *j, bool origins, err *e)
{
    size_t i;
    json_t *line;
    json_array_foreach(json_object_get(j, "lines"), i, line) {
        const char *type = fmt_json_text(line, "type"), *class = fmt_json_text(line, "class");
        bool value = strcmp(type, "value") == 0, inherited = strcmp(class, "inherited") == 0;
        const json_t *m = json_object_get(line, "metrics"), *findings = json_object_get(line, "findings");
        bool differs = strcmp(fmt_json_text(line, "state"), "compared") != 0 || rpl_count(m, "differ");
        rpl_issue s = issue_of(result, inherited ? RPL_ISSUE_INHERITED : strcmp(class, "origin") == 0 ? RPL_ISSUE_ORIGIN
                                                                                                  : RPL_ISSUE_OTHER,
                               fmt_json_text(line, "value"), fmt_json_text(line, "op"), class);
        if (strcmp(type, "finding") == 0) snprintf(s.cause, sizeof s.cause, "%s", fmt_json_text(line, "finding"));
        else if (!value || (!differs && json_array_size(findings) == 0)) continue;
        else if (json_array_size(findings))
            snprintf(s.cause, sizeof s.cause, "%s", json_string_value(json_array_get(findings, 0)));
        else if (strcmp(class, "none") == 0 || !class[0])
            snprintf(s.cause, sizeof s.cause, "%s", fmt_json_text(line, "state"));
        if ((s.kind != RPL_ISSUE_INHERITED) != origins) continue;
        if (value) s.round = rpl_count(line, "round");
        if (m) s.n = rpl_count(m, "differ");
        TRY(add(r, &s, e));
    }
    return ERR_OK;
}

/* ---- classify ---- */

static err_code add_classification(rpl_report *r, int32_t result, const json_t *j, err *e)
{
    const char *key;
    json_t *gate;
    json_object_foreach(json_object_get(j, "gates"), key, gate) {
        const char *verdict = fmt_json_text(gate, "verdict");
        if (strcmp(verdict, "PASS") == 0) continue;
        rpl_issue s = issue_of(result, RPL_ISSUE_ORIGIN, key, "", verdict);
        s.ratio = rpl_real(gate, "figure");
        if (isnan(s.ratio) || rpl_count(gate, "of") == 0) s.ratio = INFINITY; /* nothing compared is not a small figure */
        TRY(add(r, &s, e));
    }
    const json_t *v = json_object_get(j, "certificate");
    if (rpl_count(v, "illegal") == 0) return ERR_OK;
    const char *first = fmt_json_text(v, "first_illegal"), *name = strrchr(first, ' ');
    rpl_issue s = issue_of(result, RPL_ISSUE_ORIGIN, name ? name + 1 : first, "", "certificate: no order of sums gives it");
    if (strncmp(first, "round ", 6) == 0) s.round = strtol(first + 6, NULL, 10);
    s.n = rpl_count(v, "illegal");
    s.ratio = INFINITY; /* the classifier's certificate keeps counts only */
    return add(r, &s, e);
}

/* ---- scorecard ---- */

static err_code add_scorecard(rpl_report *r, int32_t result, const json_t *j, err *e)
{
    size_t i;
    json_t *o;
    int64_t detected = rpl_count(j, "detected");
    json_array_foreach(json_object_get(j, "arms"), i, o) {
        char text[200];
        if (strcmp(fmt_json_text(o, "clean"), "PASS") == 0) continue;
        snprintf(text, sizeof text, "false alarm: a clean run of %s is %s", fmt_json_text(o, "arm"),
                 fmt_json_text(o, "clean"));
        rpl_issue s = issue_of(result, RPL_ISSUE_OTHER, "", "", text);
        TRY(add(r, &s, e));
    }
    bool few = !rpl_score_is_enough(rpl_count(j, "right"), detected);
    json_array_foreach(json_object_get(j, "plantings"), i, o) {
        char text[200];
        bool missed = strcmp(fmt_json_text(o, "outcome"), "missed") == 0;
        if (!missed && !(few && strcmp(fmt_json_text(o, "outcome"), "elsewhere") == 0)) continue;
        snprintf(text, sizeof text, "%s%s %s (%s)", missed ? "missed" : "named elsewhere: ",
                 missed ? "" : fmt_json_text(o, "origin"), fmt_json_text(o, "kind"), fmt_json_text(o, "arm"));
        rpl_issue s = issue_of(result, RPL_ISSUE_OTHER, fmt_json_text(o, "op"), fmt_json_text(o, "op"), text);
        TRY(add(r, &s, e));
    }
    return ERR_OK;
}

err_code rpl_issues_add(rpl_report *r, int32_t result, err *e)
{
    const json_t *j = r->result[result].json;
    const char *type = r->result[result].analysis->type;
    if (strcmp(type, "certificate") == 0) return add_certificate(r, result, j, e);
    if (strcmp(type, "parity") == 0) return add_parity(r, result, j, e);
    if (strcmp(type, "first divergence") == 0) return add_divergence(r, result, j, e);
    if (strcmp(type, "classification") == 0) return add_classification(r, result, j, e);
    if (strcmp(type, "scorecard") == 0) return add_scorecard(r, result, j, e);
    if (strcmp(type, "diff") != 0) return ERR_OK;
    TRY(add_diff(r, result, j, true, e));
    return add_diff(r, result, j, false, e);
}
