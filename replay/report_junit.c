/* A report as JUnit XML: a testsuite a result, a testcase an op or a gate, and one for the verdict. */
#include "replay/report.h"

#include "base/mem.h"
#include "base/utf8.h"
#include "replay/waiver.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* A character that XML 1.0 forbids, or a byte of none, at *s; *n: its bytes. Forbidden are control characters, U+FFFE and
 * U+FFFF. */
static bool is_forbidden(const char *s, size_t *n)
{
    const unsigned char *u = (const unsigned char *)s;
    *n = utf8_bytes(s);
    if (*n == 0) *n = 1;
    else if (*n == 1) return u[0] < 32 && u[0] != '\t' && u[0] != '\n' && u[0] != '\r';
    else return u[0] == 0xef && u[1] == 0xbf && u[2] >= 0xbe;
    return true;
}

void rpl_escape(const char *s, FILE *out)
{
    size_t n;
    for (; *s; s += n) {
        if (is_forbidden(s, &n)) putc('?', out);
        else if (*s == '&') fputs("&amp;", out);
        else if (*s == '<') fputs("&lt;", out);
        else if (*s == '>') fputs("&gt;", out);
        else if (*s == '"') fputs("&quot;", out);
        else if (*s == '\'') fputs("&#39;", out);
        else fwrite(s, 1, n, out);
    }
}

/* ---- cases ---- */

/* The list whose items are the cases of a result, and the members that name one; list NULL: the gates. */
typedef struct case_list { const char *type, *list, *name, *class; } case_list;
static const case_list CASES[] = {
    { "certificate", "ops", "value", "op" },    { "parity", "names", "value", "op" },
    { "classification", NULL, NULL, NULL },     { "scorecard", "plantings", "op", "kind" },
    { "diff", "lines", "value", "op" },         { "acceptance", "runs", "run", "windows" },
};

static const case_list *cases_of(const rpl_result *x)
{
    for (size_t i = 0; i < COUNT_OF(CASES); i++)
        if (strcmp(CASES[i].type, x->analysis->type) == 0) return &CASES[i];
    return NULL;
}

/* name is one of the names of the issue, commas between. */
static bool has_name(const char *names, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = names; n && (at = strstr(at, name)) != NULL; at += n)
        if ((at == names || at[-1] == ',') && (at[n] == 0 || at[n] == ',')) return true;
    return false;
}

typedef struct counts { int tests, failures, skipped; } counts;

static void put_issue(const rpl_report *r, const rpl_issue *s, FILE *out)
{
    if (s->round >= 0) fprintf(out, "round %" PRId64 " ", s->round);
    rpl_escape(s->value, out);
    fprintf(out, ": %" PRId64, s->n);
    if (!isnan(s->ratio)) fprintf(out, ", ratio %.4g", s->ratio);
    fputs(s->cause[0] ? ", " : "", out);
    rpl_escape(s->cause, out);
    if (s->waiver >= 0) {
        fputs("; waived: ", out);
        rpl_escape(r->waivers->item[s->waiver].reason, out);
        fprintf(out, " until %s", r->waivers->item[s->waiver].expires);
    }
    if (s->waiver < 0 && s->refused[0]) {
        fputs("; ", out);
        rpl_escape(s->refused, out);
    }
}

/* The first issue about this case: one that is not waived where there is one. NULL: none. */
static const rpl_issue *issue_about(const rpl_report *r, size_t result, const char *name)
{
    const rpl_issue *found = NULL;
    for (size_t i = 0; i < r->n_issues; i++) {
        const rpl_issue *s = &r->issue[i];
        if (s->result != (int32_t)result || !(has_name(s->value, name) || strcmp(s->op, name) == 0)) continue;
        if (s->waiver < 0) return s;
        if (!found) found = s;
    }
    return found;
}

/* out NULL: only counted. */
static void put_case(const rpl_report *r, size_t result, const char *class, const char *name, counts *n, FILE *out)
{
    const rpl_issue *s = issue_about(r, result, name);
    n->tests++;
    n->failures += s && s->waiver < 0;
    n->skipped += s && s->waiver >= 0;
    if (!out) return;
    fputs("    <testcase classname=\"", out);
    rpl_escape(r->result[result].analysis->name, out);
    fputs(class[0] ? "." : "", out);
    rpl_escape(class, out);
    fputs("\" name=\"", out);
    rpl_escape(name, out);
    if (!s) {
        fputs("\"/>\n", out);
        return;
    }
    fputs(s->waiver < 0 ? "\"><failure message=\"" : "\"><skipped message=\"", out);
    put_issue(r, s, out);
    fputs("\"/></testcase>\n", out);
}

/* The verdict fails the suite whatever its cases say: a result may fail because nothing was there to compare. */
static void put_verdict(const rpl_result *x, counts *n, FILE *out)
{
    char figures[600];
    const bool fine = rpl_word_of(x->verdict)->fine;
    n->tests++;
    n->failures += !fine;
    if (!out) return;
    fputs("    <testcase classname=\"", out);
    rpl_escape(x->analysis->name, out);
    fputs(fine ? "\" name=\"verdict\"><system-out>" : "\" name=\"verdict\"><failure message=\"", out);
    fputs(x->verdict, out);
    fputs(": ", out);
    rpl_escape(rpl_result_figures(x, figures, sizeof figures), out);
    fputs(fine ? "</system-out></testcase>\n" : "\"/></testcase>\n", out);
}

/* Whether name is new to the set, in which it then is. */
static bool is_new(json_t *set, const char *name)
{
    return !json_object_get(set, name) && json_object_set_new(set, name, json_true()) == 0;
}

static void put_cases(const rpl_report *r, size_t result, counts *n, FILE *out)
{
    const rpl_result *x = &r->result[result];
    const case_list *c = cases_of(x);
    const char *key;
    json_t *v;
    size_t i;
    put_verdict(x, n, out);
    if (c && !c->list)
        json_object_foreach(json_object_get(x->json, "gates"), key, v) put_case(r, result, "gate", key, n, out);
    if (!c || !c->list) return;
    const json_t *list = json_object_get(x->json, c->list);
    bool whole_name = strcmp(c->list, "runs") == 0; /* a run is named together with its windows */
    json_t *seen = json_object();
    json_array_foreach((json_t *)list, i, v) {
        const char *name = fmt_json_text(v, c->name);
        if (name[0] && (whole_name || is_new(seen, name))) put_case(r, result, fmt_json_text(v, c->class), name, n, out);
    }
    json_decref(seen);
}

static void put_suite(const rpl_report *r, size_t result, FILE *out)
{
    const rpl_result *x = &r->result[result];
    char tape[512], run[512];
    counts n = { 0 };
    put_cases(r, result, &n, NULL);
    fputs("  <testsuite name=\"", out);
    rpl_escape(x->analysis->name, out);
    putc(' ', out);
    rpl_escape(rpl_result_tape(x, tape, sizeof tape), out);
    if (rpl_result_run(x, run, sizeof run)[0]) fputs(", ", out);
    rpl_escape(run, out);
    fprintf(out, "\" tests=\"%d\" failures=\"%d\" errors=\"0\" skipped=\"%d\"", n.tests, n.failures, n.skipped);
    double seconds = rpl_real(x->json, "seconds");
    if (!isnan(seconds)) fprintf(out, " time=\"%.3f\"", seconds);
    fputs(">\n", out);
    put_cases(r, result, &n, out);
    fputs("  </testsuite>\n", out);
}

void rpl_report_junit(const rpl_report *r, FILE *out)
{
    fputs("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"sparktape report\">\n", out);
    if (r->n_errors) {
        fprintf(out, "  <testsuite name=\"report\" tests=\"%zu\" failures=\"0\" errors=\"%zu\" skipped=\"0\">\n",
                r->n_errors, r->n_errors);
        for (size_t i = 0; i < r->n_errors; i++) {
            fprintf(out, "    <testcase classname=\"report\" name=\"error %zu\"><error message=\"", i + 1);
            rpl_escape(r->error[i], out);
            fputs("\"/></testcase>\n", out);
        }
        fputs("  </testsuite>\n", out);
    }
    for (size_t i = 0; i < r->n_results; i++) put_suite(r, i, out);
    fputs("</testsuites>\n", out);
}
