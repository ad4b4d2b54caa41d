/* A report as text for people, and as JSON. */
#include "replay/report.h"

#include "base/mem.h"
#include "base/utf8.h"
#include "replay/waiver.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { FEW = 20 }; /* lines of a kind unless all are wanted */

/* ---- figures ---- */

static void coverage_text(const json_t *j, char *buf, size_t buf_bytes)
{
    const json_t *shard = json_object_get(j, "shard");
    int64_t n = rpl_count(shard, "n"), have = (int64_t)json_array_size(json_object_get(shard, "have"));
    size_t used = strlen(buf);
    if (n > 1 && used < buf_bytes)
        used += (size_t)snprintf(buf + used, buf_bytes - used, "; %" PRId64 " of %" PRId64 " shards", have, n);
    if (!json_is_true(json_object_get(j, "partial")) || used >= buf_bytes) return;
    const char *of = json_object_get(j, "planted_wanted") ? "planted" : "rounds";
    char wanted[32];
    snprintf(wanted, sizeof wanted, "%s_wanted", of);
    snprintf(buf + used, buf_bytes - used, "; partial: %" PRId64 " of %" PRId64 " %s%s", rpl_count(j, of),
             rpl_count(j, wanted), of, json_is_true(json_object_get(j, "damaged")) ? ", the tape is damaged" : "");
}

static void parity_figures(const json_t *j, char *buf, size_t buf_bytes)
{
    int64_t flips = 0, differs = 0;
    size_t i;
    json_t *c;
    json_array_foreach(json_object_get(j, "columns"), i, c) {
        flips += rpl_count(c, "flip");
        differs += rpl_count(c, "differs");
    }
    snprintf(buf, buf_bytes, "%" PRId64 " values in %" PRId64 " rounds, %zu ways: %" PRId64 " flips, %" PRId64 " differ",
             rpl_count(j, "values"), rpl_count(j, "rounds"), json_array_size(json_object_get(j, "columns")), flips,
             differs);
}

static void gate_figures(const json_t *j, char *buf, size_t buf_bytes)
{
    const char *key;
    json_t *gate;
    size_t n = (size_t)snprintf(buf, buf_bytes, "%zu keys in %" PRId64 " rounds:",
                                json_array_size(json_object_get(j, "keys")), rpl_count(j, "rounds"));
    json_object_foreach(json_object_get(j, "gates"), key, gate) {
        if (n >= buf_bytes) return;
        n += (size_t)snprintf(buf + n, buf_bytes - n, " %s %.4g/%.4g", key, rpl_real(gate, "figure"),
                              rpl_real(gate, "limit"));
    }
}

static void accept_figures(const json_t *j, char *buf, size_t buf_bytes)
{
    size_t i, n = (size_t)snprintf(buf, buf_bytes, "%" PRId64 " blocks, %" PRId64 " determined; accepted",
                                   rpl_count(j, "blocks"), rpl_count(j, "determined"));
    json_t *run;
    json_array_foreach(json_object_get(j, "runs"), i, run) {
        const json_t *m = json_object_get(run, "accepted");
        if (!json_is_object(m) || n >= buf_bytes) continue;
        n += (size_t)snprintf(buf + n, buf_bytes - n, " %s%s%s %.3f", fmt_json_text(run, "run"),
                              fmt_json_text(run, "windows")[0] ? "/" : "", fmt_json_text(run, "windows"),
                              rpl_real(m, "mean"));
    }
}

/* "drafts of the tape against mirror: 3; goes away with s0.attn.q" */
static void attribute_figures(const json_t *j, char *buf, size_t buf_bytes)
{
    static const char *const SETS[][2] = { { "away", "; goes away with " }, { "appear", "; appears with " } };
    int n = snprintf(buf, buf_bytes, "%s: %s of %s against %s: %.6g", fmt_json_text(j, "verdict"),
                     fmt_json_text(j, "metric"), fmt_json_text(j, "arm"), fmt_json_text(j, "reference"),
                     rpl_real(j, "arm_figure"));
    for (size_t k = 0; k < COUNT_OF(SETS); k++) {
        const json_t *ops = json_object_get(json_object_get(j, SETS[k][0]), "ops");
        size_t i;
        json_t *op;
        json_array_foreach((json_t *)ops, i, op)
            if (n >= 0 && (size_t)n < buf_bytes)
                n += snprintf(buf + n, buf_bytes - (size_t)n, "%s%s", i ? ", " : SETS[k][1],
                              json_is_string(op) ? json_string_value(op) : "?");
    }
}

const char *rpl_result_figures(const rpl_result *r, char *buf, size_t buf_bytes)
{
    const json_t *j = r->json;
    const char *type = r->analysis->type;
    buf[0] = 0;
    if (strcmp(type, "certificate") == 0)
        snprintf(buf, buf_bytes,
                 "%" PRId64 " elements in %" PRId64 " rounds: %" PRId64 " equal, %" PRId64 " flips, %" PRId64
                 " illegal", rpl_count(j, "elements"), rpl_count(j, "rounds"), rpl_count(j, "equal"), rpl_count(j, "flip"),
                 rpl_count(j, "illegal"));
    else if (strcmp(type, "parity") == 0) parity_figures(j, buf, buf_bytes);
    else if (strcmp(type, "first divergence") == 0)
        snprintf(buf, buf_bytes, "%s against %s: round %" PRId64 " of %" PRId64, fmt_json_text(j, "b"),
                 fmt_json_text(j, "a"), rpl_count(j, "round"), rpl_count(j, "rounds"));
    else if (strcmp(type, "diff") == 0)
        snprintf(buf, buf_bytes, "%" PRId64 " values in %" PRId64 " rounds: %" PRId64 " equal, %" PRId64 " differ; %" PRId64
                 " origins, %" PRId64 " inherited", rpl_count(j, "compared"), rpl_count(j, "rounds"), rpl_count(j, "equal"),
                 rpl_count(j, "differ"), rpl_count(j, "origins"), rpl_count(j, "inherited"));
    else if (strcmp(type, "classification") == 0) gate_figures(j, buf, buf_bytes);
    else if (strcmp(type, "acceptance") == 0) accept_figures(j, buf, buf_bytes);
    else if (strcmp(type, "scorecard") == 0)
        snprintf(buf, buf_bytes,
                 "%" PRId64 " planted: %" PRId64 " detected, %" PRId64 " at the right op, %" PRId64 " missed, %"
                 PRId64 " admissible", rpl_count(j, "planted"), rpl_count(j, "detected"), rpl_count(j, "right"),
                 rpl_count(j, "missed"), rpl_count(j, "admissible"));
    else if (strcmp(type, "injection") == 0)
        snprintf(buf, buf_bytes, "%s at %s: %" PRId64 " elements changed",
                 fmt_json_text(json_object_get(j, "injected"), "kind"),
                 fmt_json_text(json_object_get(j, "injected"), "op"), rpl_count(j, "changed"));
    else if (strcmp(type, "attribution") == 0) attribute_figures(j, buf, buf_bytes);
    else if (strcmp(type, "reduction") == 0)
        snprintf(buf, buf_bytes, "%s of round %" PRId64 ": %" PRId64 " elements, %" PRId64 " equal, %" PRId64
                 " within their bounds, %" PRId64 " illegal, %" PRId64 " not judged; %s", fmt_json_text(j, "op"),
                 rpl_count(j, "round"), rpl_count(j, "elements"), rpl_count(j, "equal"), rpl_count(j, "flip"),
                 rpl_count(j, "illegal"), rpl_count(j, "unjudged"), fmt_json_text(j, "folder"));
    coverage_text(j, buf, buf_bytes);
    return buf;
}

/* ---- text ---- */

static const char *color_of(const char *verdict)
{
    static const char *const COLORS[] = { [RPL_LOOK_GOOD] = "\033[32m", [RPL_LOOK_NONE] = "", [RPL_LOOK_OPEN] = "\033[33m",
                                          [RPL_LOOK_BAD] = "\033[31m" };
    return COLORS[rpl_word_of(verdict)->look];
}

/* Text of files: control characters, which could speak to the terminal, as '?'. */
static void put(const char *s, FILE *out)
{
    for (; *s; s++) putc((unsigned char)*s < 32 || *s == 127 ? '?' : *s, out);
}

static void print_verdict(const char *verdict, int width, bool color, FILE *out)
{
    const char *begin = color ? color_of(verdict) : "";
    fprintf(out, "%s%-*s%s", begin, width, verdict, begin[0] ? "\033[0m" : "");
}

static void print_results(const rpl_report *r, bool color, FILE *out)
{
    int width = 6;
    char tape[512], run[512], figures[600];
    for (size_t i = 0; i < r->n_results; i++) {
        int n = (int)strlen(rpl_result_tape(&r->result[i], tape, sizeof tape));
        if (n > width) width = n < 40 ? n : 40;
    }
    for (size_t i = 0; i < r->n_results; i++) {
        const rpl_result *x = &r->result[i];
        print_verdict(x->verdict, 13, color, out);
        fprintf(out, " %-14s ", x->analysis->name);
        put(rpl_result_tape(x, tape, sizeof tape), out);
        fprintf(out, "%*s  ", width > (int)strlen(tape) ? width - (int)strlen(tape) : 0, "");
        put(rpl_result_figures(x, figures, sizeof figures), out);
        if (rpl_result_run(x, run, sizeof run)[0]) {
            fputs("; ", out);
            put(run, out);
        }
        if (x->n_waived) fprintf(out, "; %d of %d issues waived", x->n_waived, x->n_issues);
        putc('\n', out);
    }
}

/* n_rounds: of which this is the first. */
static void print_issue(const rpl_report *r, const rpl_issue *s, int64_t n_rounds, FILE *out)
{
    const rpl_result *x = &r->result[s->result];
    char tape[512];
    fprintf(out, "%-10s %s ", s->waiver >= 0 ? "WAIVED" : rpl_issue_kind_text(s->kind), x->analysis->name);
    put(rpl_result_tape(x, tape, sizeof tape), out);
    if (s->round >= 0) fprintf(out, " round %" PRId64, s->round);
    if (n_rounds > 1) fprintf(out, " (rounds %" PRId64 ")", n_rounds);
    if (s->op[0]) fprintf(out, " op ");
    put(s->op, out);
    fputs(s->op[0] && s->value[0] ? ", " : " ", out);
    put(s->value, out);
    fprintf(out, ": %" PRId64, s->n);
    if (!isnan(s->ratio)) fprintf(out, ", ratio %.4g", s->ratio);
    if (s->cause[0]) fputs(", ", out);
    put(s->cause, out);
    if (s->waiver >= 0) {
        const rpl_waiver *w = &r->waivers->item[s->waiver];
        fputs(" (", out);
        put(w->reason, out);
        fprintf(out, "; until %s)", w->expires);
    } else if (s->refused[0]) {
        fputs(" (", out);
        put(s->refused, out);
        putc(')', out);
    }
    putc('\n', out);
}

/* The same op with the same kind of cause in another round: what follows a cause's ":" are figures of the round. */
static bool same_but_round(const rpl_issue *a, const rpl_issue *b)
{
    size_t n = strcspn(a->cause, ":");
    return a->result == b->result && a->kind == b->kind && a->waiver == b->waiver && a->round >= 0 && b->round >= 0 &&
           strcmp(a->op, b->op) == 0 && strcmp(a->value, b->value) == 0 && strcmp(a->refused, b->refused) == 0 &&
           strcspn(b->cause, ":") == n && strncmp(a->cause, b->cause, n) == 0;
}

/* Issues that are one line. */
typedef struct line { rpl_issue sum; int64_t n_rounds, last_round; } line;

static void add_to_line(line *l, const rpl_issue *s)
{
    l->n_rounds += s->round != l->last_round;
    l->last_round = s->round;
    l->sum.n += s->n;
    if (s->ratio > l->sum.ratio) {
        l->sum.ratio = s->ratio;
        memcpy(l->sum.cause, s->cause, sizeof s->cause);
    }
}

/* Origins of all results first, then other findings, then what follows; last what is waived. With all, or without the
 * memory for it, each round has a line of its own. */
static void print_issues(const rpl_report *r, bool all, FILE *out)
{
    line *lines = all ? NULL : mem_alloc(r->n_issues + 1, sizeof *lines);
    for (int pass = 0; pass < 4; pass++) {
        size_t shown = 0;
        for (size_t i = 0; i < r->n_issues; i++) {
            const rpl_issue *s = &r->issue[i];
            if ((s->waiver >= 0 ? 3 : (int)s->kind) != pass) continue;
            size_t at = lines ? 0 : shown;
            while (at < shown && !same_but_round(&lines[at].sum, s)) at++;
            if (shown == 0) putc('\n', out);
            if (!lines) print_issue(r, s, 1, out);
            else if (at == shown) lines[at] = (line){ *s, 1, s->round };
            else add_to_line(&lines[at], s);
            shown += at == shown;
        }
        for (size_t i = 0; lines && i < shown && i < FEW; i++) print_issue(r, &lines[i].sum, lines[i].n_rounds, out);
        if (shown > FEW && lines) fprintf(out, "%10s %zu more (--all)\n", "", shown - FEW);
    }
    free(lines);
}

static void print_unused(const rpl_report *r, FILE *out)
{
    for (size_t i = 0; r->waivers && i < r->waivers->n; i++) {
        const rpl_waiver *w = &r->waivers->item[i];
        if (w->n_matched) continue;
        fprintf(out, "%-10s waiver %zu (", "unused", i + 1);
        put(w->value, out);
        fputs(": ", out);
        put(w->reason, out);
        fputs(") matches nothing\n", out);
    }
}

void rpl_report_waived_text(const rpl_report *r, FILE *out)
{
    bool any = false;
    for (size_t i = 0; i < r->n_issues; i++) {
        const rpl_issue *s = &r->issue[i];
        if (s->waiver < 0 && !s->refused[0]) continue;
        if (!any) putc('\n', out);
        any = true;
        print_issue(r, s, 1, out);
    }
    print_unused(r, out);
    for (size_t i = 0; i < r->n_results; i++)
        if (strcmp(r->result[i].verdict, "WAIVED") == 0) fputs("WAIVED     every issue\n", out);
}

void rpl_report_text(const rpl_report *r, bool all, bool color, FILE *out)
{
    print_verdict(r->verdict, 0, color, out);
    fprintf(out, "  %zu results of %zu files:", r->n_results, r->n_files);
    for (int k = 0; k < RPL_VERDICT_WORDS; k++) {
        int n = 0;
        for (size_t i = 0; i < r->n_results; i++) n += rpl_badness(r->result[i].verdict) == k;
        if (n) fprintf(out, " %d %s", n, RPL_VERDICT_WORD[k].text);
    }
    fputs("\n\n", out);
    print_results(r, color, out);
    if (r->n_errors) putc('\n', out);
    for (size_t i = 0; i < r->n_errors; i++) {
        fprintf(out, "%-10s ", "error");
        put(r->error[i], out);
        putc('\n', out);
    }
    print_issues(r, all, out);
    print_unused(r, out);
}

/* ---- JSON ---- */

/* Text that may have been cut, or name a file: bytes that are of no whole character, which JSON cannot hold, as '?'. */
static json_t *text_json(const char *s)
{
    char *text = mem_strdup(s);
    for (char *c = text; c && *c;) {
        size_t n = utf8_bytes(c);
        if (n == 0) *c = '?';
        c += n ? n : 1;
    }
    json_t *j = json_string(text);
    free(text);
    return j;
}

static json_t *issue_json(const rpl_report *r, const rpl_issue *s)
{
    char tape[512];
    const rpl_result *x = &r->result[s->result];
    json_t *j = json_pack("{s:s, s:o, s:s, s:o, s:o, s:o, s:I}", "analysis", x->analysis->name, "tape",
                          text_json(rpl_result_tape(x, tape, sizeof tape)), "kind", rpl_issue_kind_text(s->kind), "value",
                          text_json(s->value), "op", text_json(s->op), "cause", text_json(s->cause), "n", (json_int_t)s->n);
    bool fine = j != NULL;
    if (fine && s->round >= 0) fine = json_object_set_new(j, "round", json_integer(s->round)) == 0;
    if (fine && !isnan(s->ratio)) fine = json_object_set_new(j, "ratio", fmt_json_real(s->ratio)) == 0;
    if (fine && s->refused[0] && s->waiver < 0) fine = json_object_set_new(j, "not_waived", text_json(s->refused)) == 0;
    if (fine && s->waiver >= 0) {
        const rpl_waiver *w = &r->waivers->item[s->waiver];
        json_t *by = json_pack("{s:s, s:s}", "reason", w->reason, "expires", w->expires);
        fine = json_object_set_new(j, "waived", by) == 0;
    }
    if (fine) return j;
    json_decref(j);
    return NULL;
}

static json_t *result_json(const rpl_result *x)
{
    char tape[512], run[512];
    return json_pack("{s:s, s:o, s:o, s:s, s:i, s:i}", "analysis", x->analysis->name, "tape",
                     text_json(rpl_result_tape(x, tape, sizeof tape)), "run", text_json(rpl_result_run(x, run, sizeof run)),
                     "verdict", x->verdict, "issues", (int)x->n_issues, "waived", (int)x->n_waived);
}

static void append(json_t *list, json_t *item, bool *fine) { *fine = json_array_append_new(list, item) == 0 && *fine; }

/* NULL: no memory. Nothing is left out without a word. */
static json_t *last_json(const rpl_report *r)
{
    json_t *results = json_array(), *issues = json_array(), *errors = json_array(), *twice = json_array();
    json_t *unused = json_array();
    bool fine = true;
    for (size_t i = 0; i < r->n_results; i++) append(results, result_json(&r->result[i]), &fine);
    for (size_t i = 0; i < r->n_issues; i++) append(issues, issue_json(r, &r->issue[i]), &fine);
    for (size_t i = 0; i < r->n_errors; i++) append(errors, text_json(r->error[i]), &fine);
    for (size_t i = 0; i < r->n_twice; i++) append(twice, text_json(r->error[i]), &fine);
    for (size_t i = 0; r->waivers && i < r->waivers->n; i++) {
        const rpl_waiver *w = &r->waivers->item[i];
        if (w->n_matched) continue;
        append(unused, json_pack("{s:i, s:s, s:s}", "waiver", (int)i + 1, "value", w->value, "reason", w->reason), &fine);
    }
    json_t *j = json_pack("{s:i, s:s, s:s, s:I, s:o, s:o, s:o, s:o, s:o}", "schema", 1, "type", "report", "verdict",
                          r->verdict, "files", (json_int_t)r->n_files, "results", results, "issues", issues, "errors",
                          errors, "twice", twice, "unused_waivers", unused);
    if (fine) return j;
    json_decref(j);
    return NULL;
}

err_code rpl_report_json(const rpl_report *r, FILE *out, err *e)
{
    for (size_t i = 0; i < r->n_results; i++) TRY(fmt_json_print(out, r->result[i].json, e));
    json_t *last = last_json(r);
    err_code rc = last ? fmt_json_print(out, last, e) : err_set(e, ERR_NOMEM, "report: no memory");
    json_decref(last);
    return rc;
}
