#include "replay/report_svg.h"

#include "replay/report.h"

#include <math.h>
#include <string.h>

typedef struct tone { const char *style, *glyph, *text; } tone;
#define X(name, style, glyph, text) { style, glyph, text },
static const tone TONES[] = { RPL_TONE_LIST(X) };
#undef X

/* Blue to orange: apart for every kind of colour blindness; light and dark by the reader's system. Fills have their ink. */
const char RPL_REPORT_STYLE[] =
    ":root{color-scheme:light dark;--page:#fff;--text:#1b1f24;--soft:#59636e;--line:#d1d9e0;--card:#f6f8fa;"
    "--good:#cfe4f5;--good-ink:#0b3a5b;--mild:#8fc1e8;--mild-ink:#06263e;--bad:#d1491b;--bad-ink:#fff;"
    "--open:#f2c230;--open-ink:#3a2c00;--none:#e4e8ec;--none-ink:#59636e;--worst:#7a1f8a;--worst-ink:#fff;"
    "--d0:#eef4f9;--d1:#c3dcf0;--d2:#86b8de;--d3:#3f86bd;--d4:#155a92;--light-ink:#06263e;--dark-ink:#fff}\n"
    "@media(prefers-color-scheme:dark){:root{--page:#0d1117;--text:#e6edf3;--soft:#9198a1;--line:#3d444d;--card:#151b23;"
    "--good:#12344f;--good-ink:#cfe4f5;--mild:#2a6a9e;--mild-ink:#eef6fc;--bad:#e2632f;--bad-ink:#1b0800;"
    "--open:#d9a91c;--open-ink:#241b00;--none:#262c34;--none-ink:#9198a1;--worst:#b565c6;--worst-ink:#1d0522;"
    "--d0:#101c28;--d1:#17354f;--d2:#225d8c;--d3:#4593cc;--d4:#9ccbf0;--light-ink:#e6f1fa;--dark-ink:#04121e}}\n"
    "body{font:15px/1.45 system-ui,sans-serif;background:var(--page);color:var(--text);margin:2rem auto;max-width:76rem;"
    "padding:0 1rem}h1{font-size:1.5rem}h2{font-size:1.2rem;margin-top:2.2rem;border-top:1px solid var(--line);"
    "padding-top:1rem}h3{font-size:1rem;margin:1.4rem 0 .4rem}.scroll{overflow-x:auto}\n"
    "table{border-collapse:collapse;font-size:.9rem}th,td{text-align:left;padding:.25rem .7rem .25rem 0;"
    "border-bottom:1px solid var(--line);vertical-align:top}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}"
    "th{color:var(--soft);font-weight:600}code{font-size:.92em}p.soft,span.soft{color:var(--soft)}\n"
    ".good{--f:var(--good);--i:var(--good-ink)}.mild{--f:var(--mild);--i:var(--mild-ink)}"
    ".bad{--f:var(--bad);--i:var(--bad-ink)}.open{--f:var(--open);--i:var(--open-ink)}"
    ".none{--f:var(--none);--i:var(--none-ink)}.worst{--f:var(--worst);--i:var(--worst-ink)}"
    ".d0{--f:var(--d0);--i:var(--light-ink)}.d1{--f:var(--d1);--i:var(--light-ink)}.d2{--f:var(--d2);--i:var(--light-ink)}"
    ".d3{--f:var(--d3);--i:var(--dark-ink)}.d4{--f:var(--d4);--i:var(--dark-ink)}\n"
    ".v{display:inline-block;padding:0 .5em;border-radius:.3em;font-weight:600;font-size:.85em;white-space:nowrap;"
    "background:var(--f);color:var(--i)}svg{display:block;font:11px system-ui,sans-serif}svg rect{fill:var(--f)}"
    "svg text{fill:var(--i,var(--text))}svg text.soft{fill:var(--soft)}"
    "line.limit{stroke:var(--text);stroke-width:1.5;stroke-dasharray:3 2}"
    "svg rect.control{fill:none;stroke:var(--soft);stroke-width:1.5}\n";

enum { CELL = 18, GLYPH = 7 /* width of a letter */ };

/* Letters, not bytes: labels are UTF-8. */
static int letters(const char *s)
{
    int n = 0;
    for (; *s; s++) n += ((unsigned char)*s & 0xc0) != 0x80;
    return n;
}

static int longest(const rpl_heat *h, const char *(*label)(void *, int), int n)
{
    int most = 0;
    for (int i = 0; i < n; i++) {
        int len = letters(label(h->ctx, i));
        if (len > most) most = len;
    }
    return most;
}

static void put_tip(const rpl_heat *h, int row, int column, const char *tip, FILE *out)
{
    fputs("<title>", out);
    rpl_escape(h->row(h->ctx, row), out);
    fputs(", ", out);
    rpl_escape(h->column(h->ctx, column), out);
    fputs(tip[0] ? ": " : "", out);
    rpl_escape(tip, out);
    fputs("</title>", out);
}

static void put_cell(const rpl_heat *h, int row, int column, int x, int y, int width, bool seen[RPL_TONE_COUNT], FILE *out)
{
    char tip[RPL_HEAT_TEXT] = "", glyph[16] = "";
    rpl_tone kind = h->cell(h->ctx, row, column, tip, glyph);
    const tone *t = &TONES[kind];
    if (kind == RPL_TONE_BLANK) return;
    seen[kind] = true;
    fprintf(out, "<g><rect class=\"%s\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/>", t->style, x, y, width - 1,
            CELL - 1);
    if (glyph[0] || t->glyph[0]) {
        fprintf(out, "<text class=\"%s\" x=\"%d\" y=\"%d\" text-anchor=\"middle\">", t->style, x + width / 2, y + 13);
        rpl_escape(glyph[0] ? glyph : t->glyph, out);
        fputs("</text>", out);
    }
    put_tip(h, row, column, tip, out);
    fputs("</g>\n", out);
}

/* Column labels stand on end where they are wider than a cell. */
static void put_columns(const rpl_heat *h, int left, int top, int width, bool upright, FILE *out)
{
    for (int c = 0; c < h->columns; c++) {
        int x = left + c * width + width / 2;
        if (upright) fprintf(out, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">", x, top - 5);
        else fprintf(out, "<text transform=\"translate(%d,%d) rotate(-60)\">", x + 3, top - 5);
        rpl_escape(h->column(h->ctx, c), out);
        fputs("</text>\n", out);
    }
}

static void put_legend(const char *note, const bool seen[RPL_TONE_COUNT], FILE *out)
{
    fputs("<p class=\"soft\">", out);
    rpl_escape(note ? note : "", out);
    fputs(note ? "<br>\n" : "", out);
    for (int k = 0; k < RPL_TONE_COUNT; k++) {
        if (!seen[k]) continue;
        fprintf(out, "<span class=\"v %s\">", TONES[k].style);
        rpl_escape(TONES[k].glyph[0] ? TONES[k].glyph : "\xc2\xa0", out);
        fputs("</span> ", out);
        rpl_escape(TONES[k].text, out);
        fputs(" &#160; ", out);
    }
    fputs("</p>\n", out);
}

void rpl_svg_heat(const rpl_heat *h, FILE *out)
{
    bool seen[RPL_TONE_COUNT] = { false };
    if (h->rows < 1 || h->columns < 1) return;
    int width = h->cell_width ? h->cell_width : CELL, most = longest(h, h->column, h->columns);
    bool upright = most * GLYPH <= width;
    int left = longest(h, h->row, h->rows) * GLYPH + 12;
    int top = upright ? 20 : (int)(most * GLYPH * 0.87) + 14, over = upright ? 8 : most * GLYPH / 2 + 8;
    fputs("<h3>", out);
    rpl_escape(h->title, out);
    fprintf(out, "</h3>\n<div class=\"scroll\"><svg role=\"img\" width=\"%d\" height=\"%d\" aria-label=\"",
            left + h->columns * width + over, top + h->rows * CELL + 4);
    rpl_escape(h->title, out);
    fputs("\">\n", out);
    put_columns(h, left, top, width, upright, out);
    for (int r = 0; r < h->rows; r++) {
        fprintf(out, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">", left - 6, top + r * CELL + 13);
        rpl_escape(h->row(h->ctx, r), out);
        fputs("</text>\n", out);
        for (int c = 0; c < h->columns; c++) put_cell(h, r, c, left + c * width, top + r * CELL, width, seen, out);
    }
    fputs("</svg></div>\n", out);
    put_legend(h->note, seen, out);
}

/* ---- bars ---- */

enum { BAR_LEFT = 200, BAR_WIDTH = 420, BAR_ROW = 34, DECADES = 4 };

/* Figures from a hundredth of the limit to a hundred times it; 0 at the left end. A limit of 0: any figure is above it. */
static double place(double value, double limit)
{
    if (isnan(value) || value <= 0) return 0;
    double x = limit > 0 ? (log10(value / limit) + DECADES / 2) / DECADES : 0.75;
    return x < 0.01 ? 0.01 : x > 1 ? 1 : x;
}

static void put_bar(const char *style, double value, double limit, int y, int height, const char *what, FILE *out)
{
    fprintf(out, "<g><rect class=\"%s\" x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"%d\"/><title>%s %.6g, limit "
                 "%.6g</title></g>\n",
            style, BAR_LEFT, y, place(value, limit) * BAR_WIDTH, height, what, value, limit);
}

void rpl_svg_bars(const rpl_bar *bar, int n, bool controls, FILE *out)
{
    fprintf(out, "<div class=\"scroll\"><svg role=\"img\" width=\"%d\" height=\"%d\" aria-label=\"figures and limits\">\n",
            BAR_LEFT + BAR_WIDTH + 260, n * BAR_ROW + 22);
    for (int i = 0; i < n; i++) {
        const rpl_bar *b = &bar[i];
        int y = i * BAR_ROW + 4;
        fprintf(out, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">", BAR_LEFT - 8, y + 17);
        rpl_escape(b->label, out);
        fputs("</text>\n", out);
        put_bar(b->fails ? "bad" : "mild", b->value, b->limit, y, 13, "worker", out);
        if (!isnan(b->control)) put_bar("control", b->control, b->limit, y + 15, 8, "control", out);
        fprintf(out, "<text x=\"%d\" y=\"%d\">%s %.4g of %.4g", BAR_LEFT + BAR_WIDTH + 10, y + 12,
                b->fails ? "X" : "=", b->value, b->limit);
        if (!isnan(b->control)) fprintf(out, "; control %s %.4g", b->control_fails ? "X" : "=", b->control);
        fputs("</text>\n", out);
    }
    fprintf(out, "<line class=\"limit\" x1=\"%d\" y1=\"0\" x2=\"%d\" y2=\"%d\"/><text class=\"soft\" x=\"%d\" y=\"%d\">"
            "limit; each quarter is a factor of ten%s</text>\n</svg></div>\n", BAR_LEFT + BAR_WIDTH / 2,
            BAR_LEFT + BAR_WIDTH / 2, n * BAR_ROW + 2, BAR_LEFT + BAR_WIDTH / 2 + 5, n * BAR_ROW + 14,
            controls ? "; outlined: the control" : "");
}
