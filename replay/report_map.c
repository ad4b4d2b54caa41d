#include "replay/report_map.h"

#include "replay/report_svg.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

const char *rpl_text_at(const json_t *list, int i, const char *key)
{
    return fmt_json_text(json_array_get(list, (size_t)i), key);
}

int rpl_label_at(char *labels, size_t bytes, int *n, const char *text)
{
    for (int i = 0; i < *n; i++)
        if (strncmp(labels + (size_t)i * bytes, text, bytes - 1) == 0) return i;
    if (*n == RPL_LABELS_MAX) return -1;
    snprintf(labels + (size_t)*n * bytes, bytes, "%s", text);
    return (*n)++;
}

/* ---- parity: values by ways to run ---- */

typedef struct ways { const json_t *names, *columns; } ways;

static const char *way_row(void *ctx, int row) { return rpl_text_at(((ways *)ctx)->names, row, "value"); }
static const char *way_column(void *ctx, int column) { return rpl_text_at(((ways *)ctx)->columns, column, "name"); }

static rpl_tone tone_of_mark(char mark)
{
    switch (mark) {
    case '=': return RPL_TONE_EQUAL;
    case '~': return RPL_TONE_FLIP;
    case 'X': return RPL_TONE_DIFFERS;
    case '?': return RPL_TONE_UNJUDGED;
    case '!': return RPL_TONE_UNSTABLE;
    default: return RPL_TONE_ABSENT;
    }
}

static rpl_tone way_cell(void *ctx, int row, int column, char tip[RPL_HEAT_TEXT], char glyph[16])
{
    const json_t *name = json_array_get(((ways *)ctx)->names, (size_t)row);
    const char *marks = fmt_json_text(name, "marks");
    (void)glyph;
    snprintf(tip, RPL_HEAT_TEXT, "%" PRId64 " of %" PRId64 " values differ%s%s", rpl_count(name, "differ"),
             rpl_count(name, "values"), fmt_json_text(name, "pattern")[0] ? "; " : "", fmt_json_text(name, "pattern"));
    return tone_of_mark(column < (int)strlen(marks) ? marks[column] : '-');
}

static void map_parity(const json_t *j, FILE *out)
{
    ways w = { .names = json_object_get(j, "names"), .columns = json_object_get(j, "columns") };
    const rpl_heat h = { .title = "values by ways to run: the worst of all rounds",
                         .note = "rows: values; columns: ways to run; the tooltip has the counts and who differs",
                         .rows = (int)json_array_size(w.names),
                         .columns = (int)json_array_size(w.columns), .ctx = &w, .row = way_row, .column = way_column,
                         .cell = way_cell };
    rpl_svg_heat(&h, out);
}

/* ---- classify: gates ---- */

static void map_gates(const json_t *j, FILE *out)
{
    enum { GATES_MAX = 8 };
    rpl_bar bar[GATES_MAX];
    int n = 0;
    const char *key;
    json_t *g;
    json_object_foreach(json_object_get(j, "gates"), key, g) {
        if (n == GATES_MAX) {
            fprintf(out, "<p class=\"soft\">only the first %d gates are shown</p>\n", n);
            break;
        }
        rpl_bar *b = &bar[n++];
        *b = (rpl_bar){ .value = rpl_real(g, "figure"), .control = rpl_real(g, "control"), .limit = rpl_real(g, "limit"),
                        .fails = strcmp(fmt_json_text(g, "verdict"), "PASS") != 0 };
        b->control_fails = !(b->control <= b->limit);
        snprintf(b->label, sizeof b->label, "%s", key);
    }
    const char *control = fmt_json_text(j, "control"), *own = fmt_json_text(j, "own");
    fputs("<h3>gates", out);
    fputs(own[0] ? "; by mirrors of the weights of " : "", out);
    rpl_escape(own, out);
    fputs(control[0] ? "; control: " : "", out);
    rpl_escape(control, out);
    fputs("</h3>\n", out);
    rpl_svg_bars(bar, n, control[0] != 0, out);
}

/* ---- accept: positions by runs ---- */

typedef struct positions { const json_t *runs; char row_text[112], column_text[24]; } positions;

static const char *run_row(void *ctx, int row)
{
    positions *p = ctx;
    const char *windows = rpl_text_at(p->runs, row, "windows");
    snprintf(p->row_text, sizeof p->row_text, "%.80s%s%.8s", rpl_text_at(p->runs, row, "run"),
             windows[0] ? ", windows " : "", windows);
    return p->row_text;
}

static const char *position_column(void *ctx, int column)
{
    positions *p = ctx;
    snprintf(p->column_text, sizeof p->column_text, "draft %d", column + 1);
    return p->column_text;
}

static rpl_tone position_cell(void *ctx, int row, int column, char tip[RPL_HEAT_TEXT], char glyph[16])
{
    const json_t *run = json_array_get(((positions *)ctx)->runs, (size_t)row), *at = json_object_get(run, "accepted_at");
    int64_t of = rpl_count(json_object_get(run, "accepted"), "n");
    if (column >= (int)json_array_size(at) || of == 0) return RPL_TONE_ABSENT;
    int64_t n = json_integer_value(json_array_get(at, (size_t)column));
    double share = (double)n / (double)of;
    snprintf(tip, RPL_HEAT_TEXT, "accepted in %" PRId64 " of %" PRId64 " blocks", n, of);
    snprintf(glyph, 16, "%.0f %%", 100 * share);
    return share <= 0 ? RPL_TONE_S0 : share <= 0.25 ? RPL_TONE_S1 : share <= 0.5 ? RPL_TONE_S2 : share <= 0.75 ? RPL_TONE_S3
                                                                                                            : RPL_TONE_S4;
}

static void put_mean(const json_t *m, const char *format, FILE *out)
{
    fputs("<td class=\"n\">", out);
    if (json_is_object(m)) {
        fprintf(out, format, rpl_real(m, "mean"));
        if (!isnan(rpl_real(m, "error"))) fprintf(out, " &#177; %.3f", rpl_real(m, "error"));
    } else fputs("-", out);
    fputs("</td>", out);
}

static void map_acceptance(const json_t *j, FILE *out)
{
    positions p = { .runs = json_object_get(j, "runs") };
    int columns = 0, n = (int)json_array_size(p.runs);
    for (int i = 0; i < n; i++) {
        int here = (int)json_array_size(json_object_get(json_array_get(p.runs, (size_t)i), "accepted_at"));
        if (here > columns) columns = here;
    }
    const rpl_heat h = { .title = "blocks in which the 1st, 2nd, ... draft was accepted", .rows = n, .columns = columns,
                         .ctx = &p, .row = run_row, .column = position_column, .cell = position_cell, .cell_width = 60,
                         .note = "rows: runs; columns: places in the draft; percent of the blocks whose tokens are known" };
    rpl_svg_heat(&h, out);
    fputs("<div class=\"scroll\"><table><thead><tr><th>run</th><th class=\"n\">blocks exact</th>"
          "<th class=\"n\">accepted</th><th class=\"n\">against control</th><th class=\"n\">at temperature 1</th>"
          "<th class=\"n\">against control</th></tr></thead>\n<tbody>\n", out);
    for (int i = 0; i < n; i++) {
        const json_t *run = json_array_get(p.runs, (size_t)i);
        fputs("<tr><td>", out);
        rpl_escape(run_row(&p, i), out);
        if (fmt_json_text(run, "missing")[0]) fputs(", not run: the tape lacks ", out);
        rpl_escape(fmt_json_text(run, "missing"), out);
        fprintf(out, "</td><td class=\"n\">%" PRId64 " of %" PRId64 "</td>", rpl_count(run, "blocks_exact"),
                rpl_count(run, "blocks"));
        put_mean(json_object_get(run, "accepted"), "%.3f", out);
        put_mean(json_object_get(run, "versus_control"), "%+.3f", out);
        put_mean(json_object_get(run, "p_target"), "%.3f", out);
        put_mean(json_object_get(run, "p_target_versus_control"), "%+.3f", out);
        fputs("</tr>\n", out);
    }
    fputs("</tbody></table></div>\n", out);
    if (strcmp(fmt_json_text(j, "traffic"), "synthetic") == 0)
        fputs("<p class=\"soft\">synthetic traffic: no target chose these tokens, and those taken are the recorded drafts, "
              "which favours whatever drafts like them: read what is exact, and the differences between arms of which none "
              "was recorded</p>\n", out);
}

/* ---- scorecard ---- */

enum { OUTCOMES = 6 };

/* Counts of outcomes by two members of the plantings. */
typedef struct matrix {
    char row[RPL_LABELS_MAX][48], column[RPL_LABELS_MAX][64];
    int rows, columns;
    int n[RPL_LABELS_MAX][RPL_LABELS_MAX][OUTCOMES];
} matrix;

/* Worst last: what a cell shows. */
static const struct { const char *name; rpl_tone tone; } OUTCOME[OUTCOMES] = {
    { "idle", RPL_TONE_IDLE }, { "absorbed", RPL_TONE_ABSORBED }, { "admissible", RPL_TONE_ADMISSIBLE },
    { "right", RPL_TONE_RIGHT }, { "elsewhere", RPL_TONE_ELSEWHERE }, { "missed", RPL_TONE_MISSED },
};

static void member_text(const json_t *o, const char *key, char *buf, size_t buf_bytes)
{
    const json_t *v = json_object_get(o, key);
    if (json_is_integer(v) && json_integer_value(v) >= 0) snprintf(buf, buf_bytes, "stage %" PRId64, rpl_count(o, key));
    else if (json_is_integer(v)) snprintf(buf, buf_bytes, "outside the stages");
    else snprintf(buf, buf_bytes, "%s", fmt_json_text(o, key));
}

static const char *matrix_row(void *ctx, int row) { return ((matrix *)ctx)->row[row]; }
static const char *matrix_column(void *ctx, int column) { return ((matrix *)ctx)->column[column]; }

static rpl_tone matrix_cell(void *ctx, int row, int column, char tip[RPL_HEAT_TEXT], char glyph[16])
{
    const int *n = ((matrix *)ctx)->n[row][column];
    size_t used = 0;
    rpl_tone worst = RPL_TONE_BLANK;
    (void)glyph;
    for (int k = OUTCOMES - 1; k >= 0; k--) {
        if (!n[k]) continue;
        if (worst == RPL_TONE_BLANK) worst = OUTCOME[k].tone;
        if (used < RPL_HEAT_TEXT)
            used += (size_t)snprintf(tip + used, RPL_HEAT_TEXT - used, "%s%d %s", used ? ", " : "", n[k], OUTCOME[k].name);
    }
    return worst;
}

static void map_matrix(const json_t *j, const char *row_key, const char *column_key, const char *title, FILE *out)
{
    static matrix m; /* large; a report is written by one thread */
    size_t i;
    json_t *o;
    char note[200];
    int n_left_out = 0;
    m = (matrix){ .rows = 0 };
    json_array_foreach(json_object_get(j, "plantings"), i, o) {
        char row[48], column[64];
        member_text(o, row_key, row, sizeof row);
        member_text(o, column_key, column, sizeof column);
        int r = rpl_label_at(m.row[0], sizeof m.row[0], &m.rows, row);
        int c = rpl_label_at(m.column[0], sizeof m.column[0], &m.columns, column);
        n_left_out += r < 0 || c < 0;
        for (int k = 0; r >= 0 && c >= 0 && k < OUTCOMES; k++)
            m.n[r][c][k] += strcmp(fmt_json_text(o, "outcome"), OUTCOME[k].name) == 0;
    }
    int used = snprintf(note, sizeof note, "a cell is the worst outcome of its plantings; the tooltip counts them");
    if (n_left_out)
        snprintf(note + used, sizeof note - (size_t)used, "; %d plantings are not shown: more than %d rows or columns",
                 n_left_out, RPL_LABELS_MAX);
    const rpl_heat h = { .title = title, .rows = m.rows, .columns = m.columns, .ctx = &m, .row = matrix_row,
                         .column = matrix_column, .cell = matrix_cell, .note = note };
    rpl_svg_heat(&h, out);
}

void rpl_map_result(const rpl_result *x, FILE *out)
{
    const char *type = x->analysis->type;
    if (strcmp(type, "certificate") == 0) rpl_map_certificate(x, out);
    if (strcmp(type, "parity") == 0) map_parity(x->json, out);
    if (strcmp(type, "classification") == 0) map_gates(x->json, out);
    if (strcmp(type, "acceptance") == 0) map_acceptance(x->json, out);
    if (strcmp(type, "scorecard") != 0) return;
    map_matrix(x->json, "kind", "op_kind", "faults by kinds of op: the worst outcome", out);
    map_matrix(x->json, "stage", "arm", "stages by arms: the worst outcome", out);
}
