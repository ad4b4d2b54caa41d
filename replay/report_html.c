/* A report as one HTML file: verdicts, errors, pictures of each result (report_map.c), issues. */
#include "replay/report_map.h"
#include "replay/report_svg.h"
#include "replay/waiver.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { ISSUES_SHOWN = 400 /* of a result; the text and the JSON have them all */ };

static void put_verdict(const char *verdict, FILE *out)
{
    static const struct { const char *style, *glyph; } LOOKS[] = {
        [RPL_LOOK_GOOD] = { "good", "= " }, [RPL_LOOK_NONE] = { "none", "" }, [RPL_LOOK_OPEN] = { "open", "? " },
        [RPL_LOOK_BAD] = { "bad", "X " },
    };
    rpl_look look = rpl_word_of(verdict)->look;
    fprintf(out, "<span class=\"v %s\">%s%s</span>", LOOKS[look].style, LOOKS[look].glyph, verdict);
}

static void put_results(const rpl_report *r, FILE *out)
{
    char tape[512], run[512], figures[600];
    fputs("<div class=\"scroll\"><table><thead><tr><th>verdict</th><th>analysis</th><th>tape</th><th>run</th>"
          "<th>figures</th><th class=\"n\">issues</th></tr></thead>\n<tbody>\n", out);
    for (size_t i = 0; i < r->n_results; i++) {
        const rpl_result *x = &r->result[i];
        fputs("<tr><td>", out);
        put_verdict(x->verdict, out);
        fprintf(out, "</td><td><a href=\"#r%zu\">%s</a></td><td>", i, x->analysis->name);
        rpl_escape(rpl_result_tape(x, tape, sizeof tape), out);
        fputs("</td><td>", out);
        rpl_escape(rpl_result_run(x, run, sizeof run), out);
        fputs("</td><td>", out);
        rpl_escape(rpl_result_figures(x, figures, sizeof figures), out);
        fprintf(out, "</td><td class=\"n\">%d", x->n_issues);
        if (x->n_waived) fprintf(out, ", %d waived", x->n_waived);
        fputs("</td></tr>\n", out);
    }
    fputs("</tbody></table></div>\n", out);
}

static void put_list(const char *title, char *const *text, size_t n, FILE *out)
{
    if (n == 0) return;
    fprintf(out, "<h2>%s</h2>\n<ul>\n", title);
    for (size_t i = 0; i < n; i++) {
        fputs("<li><span class=\"v bad\">X</span> ", out);
        rpl_escape(text[i], out);
        fputs("</li>\n", out);
    }
    fputs("</ul>\n", out);
}

static void put_issue(const rpl_report *r, const rpl_issue *s, FILE *out)
{
    fprintf(out, "<tr><td><span class=\"v %s\">%s</span></td><td class=\"n\">",
            s->waiver >= 0 ? "open" : s->kind == RPL_ISSUE_INHERITED ? "none" : "bad",
            s->waiver >= 0 ? "WAIVED" : rpl_issue_kind_text(s->kind));
    if (s->round >= 0) fprintf(out, "%" PRId64, s->round);
    fputs("</td><td><code>", out);
    rpl_escape(s->op, out);
    fputs("</code></td><td><code>", out);
    rpl_escape(s->value, out);
    fprintf(out, "</code></td><td class=\"n\">%" PRId64 "</td><td class=\"n\">", s->n);
    if (!isnan(s->ratio)) fprintf(out, "%.4g", s->ratio);
    fputs("</td><td>", out);
    rpl_escape(s->cause, out);
    if (s->waiver >= 0) {
        fputs("; waived: ", out);
        rpl_escape(r->waivers->item[s->waiver].reason, out);
        fprintf(out, ", until %s", r->waivers->item[s->waiver].expires);
    } else if (s->refused[0]) {
        fputs("; ", out);
        rpl_escape(s->refused, out);
    }
    fputs("</td></tr>\n", out);
}

static void put_issues(const rpl_report *r, size_t result, FILE *out)
{
    int32_t shown = 0;
    if (r->result[result].n_issues == 0) return;
    fputs("<h3>issues, origins first</h3>\n<div class=\"scroll\"><table><thead><tr><th>kind</th><th class=\"n\">round</th>"
          "<th>op</th><th>value</th><th class=\"n\">count</th><th class=\"n\">ratio</th><th>cause</th></tr></thead>\n"
          "<tbody>\n", out);
    for (size_t i = 0; i < r->n_issues; i++)
        if (r->issue[i].result == (int32_t)result && shown++ < ISSUES_SHOWN) put_issue(r, &r->issue[i], out);
    fputs("</tbody></table></div>\n", out);
    if (shown > ISSUES_SHOWN) fprintf(out, "<p class=\"soft\">%d more issues are in the text and the JSON</p>\n",
                                      shown - ISSUES_SHOWN);
}

static void put_result(const rpl_report *r, size_t i, FILE *out)
{
    const rpl_result *x = &r->result[i];
    char tape[512], run[512], figures[600];
    fprintf(out, "<section id=\"r%zu\">\n<h2>", i);
    put_verdict(x->verdict, out);
    fprintf(out, " %s ", x->analysis->name);
    rpl_escape(rpl_result_tape(x, tape, sizeof tape), out);
    fputs("</h2>\n<p>", out);
    rpl_escape(rpl_result_figures(x, figures, sizeof figures), out);
    fputs("</p>\n<p class=\"soft\">", out);
    rpl_escape(rpl_result_run(x, run, sizeof run), out);
    fputs(run[0] ? "; from " : "from ", out);
    rpl_escape(x->files, out);
    if (x->n_parts > 1) fprintf(out, " (%d parts)", x->n_parts);
    fputs("</p>\n", out);
    rpl_map_result(x, out);
    put_issues(r, i, out);
    fputs("</section>\n", out);
}

static void put_unused(const rpl_report *r, FILE *out)
{
    for (size_t i = 0; r->waivers && i < r->waivers->n; i++) {
        const rpl_waiver *w = &r->waivers->item[i];
        if (w->n_matched) continue;
        fprintf(out, "<p><span class=\"v open\">?</span> waiver %zu (", i + 1);
        rpl_escape(w->value, out);
        fputs(": ", out);
        rpl_escape(w->reason, out);
        fputs(") matches nothing</p>\n", out);
    }
}

void rpl_report_html(const rpl_report *r, FILE *out)
{
    fprintf(out, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
            "content=\"width=device-width\">\n<title>%s: sparktape report</title>\n<style>\n%s</style>\n</head>\n<body>\n"
            "<h1>",
            r->verdict, RPL_REPORT_STYLE);
    put_verdict(r->verdict, out);
    fprintf(out, " sparktape report</h1>\n<p>%zu results of %zu files</p>\n", r->n_results, r->n_files);
    put_results(r, out);
    put_unused(r, out);
    put_list("errors", r->error, r->n_errors, out);
    rpl_map_all(r, out);
    for (size_t i = 0; i < r->n_results; i++) put_result(r, i, out);
    fputs("</body>\n</html>\n", out);
}
