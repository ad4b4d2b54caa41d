#include "replay/report_map.h"

#include "replay/report_svg.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* Text member of item i. */
static const char *at_text(const json_t *list, int i, const char *key)
{
    return rpl_text(json_array_get(list, (size_t)i), key);
}

/* ---- certify: values by tapes ---- */

enum { CERTIFICATES_MAX = 64, VALUES_MAX = 1024 };

typedef struct certificates {
    const rpl_result *result[CERTIFICATES_MAX];
    const char *name[CERTIFICATES_MAX]; /* of the column */
    const char *value[VALUES_MAX];
    char label[CERTIFICATES_MAX][48];
    int n, n_values;
} certificates;

static const json_t *op_of(const rpl_result *x, const char *value)
{
    const json_t *ops = json_object_get(x->json, "ops");
    for (size_t i = 0; i < json_array_size(ops); i++)
        if (strcmp(rpl_text(json_array_get(ops, i), "value"), value) == 0) return json_array_get(ops, i);
    return NULL;
}

/* Values in the order of the first result that has them. */
static void add_certificate(certificates *c, const rpl_result *x)
{
    char tape[512];
    const json_t *ops = json_object_get(x->json, "ops");
    if (c->n == CERTIFICATES_MAX) return;
    const char *name = strrchr(rpl_result_tape(x, tape, sizeof tape), '/');
    snprintf(c->label[c->n], sizeof c->label[0], "%.40s", name ? name + 1 : tape);
    c->result[c->n++] = x;
    for (size_t i = 0; i < json_array_size(ops); i++) {
        const char *value = at_text(ops, (int)i, "value");
        int k = 0;
        while (k < c->n_values && strcmp(c->value[k], value) != 0) k++;
        if (k == c->n_values && k < VALUES_MAX) c->value[c->n_values++] = value;
    }
}

static const char *certificate_row(void *ctx, int row) { return ((certificates *)ctx)->value[row]; }
static const char *certificate_column(void *ctx, int column) { return ((certificates *)ctx)->label[column]; }

/* The largest distance/delta of the value's illegal elements; NaN: no origin or inherited one names it. */
static double worst_ratio(const json_t *j, const char *value)
{
    double worst = NAN;
    for (int list = 0; list < 2; list++) {
        size_t i;
        json_t *o;
        json_array_foreach(json_object_get(j, list ? "inherited" : "origins"), i, o) {
            const json_t *w = json_object_get(o, "worst");
            double ratio = rpl_real(w, "ratio");
            if (strcmp(rpl_text(w, "value"), value) == 0 && !(ratio <= worst)) worst = ratio;
        }
    }
    return worst;
}

static rpl_tone tone_of_op(const rpl_result *x, const json_t *op, char tip[RPL_HEAT_TEXT])
{
    double distance = rpl_real(op, "flip_distance"), worst = worst_ratio(x->json, rpl_text(op, "value"));
    int64_t illegal = rpl_count(op, "illegal"), n = rpl_count(op, "elements");
    int used = snprintf(tip, RPL_HEAT_TEXT, "%" PRId64 " elements, %" PRId64 " flips up to %.3g of the bound, %" PRId64
                        " illegal", n, rpl_count(op, "flip"), distance, illegal);
    if (!isnan(worst)) snprintf(tip + used, RPL_HEAT_TEXT - (size_t)used, ", worst %.4g of the bound", worst);
    if (illegal) return RPL_TONE_D4;
    if (n == 0) return RPL_TONE_UNJUDGED;
    if (rpl_count(op, "flip") == 0) return RPL_TONE_D0;
    return distance < 0.1 ? RPL_TONE_D1 : distance < 0.5 ? RPL_TONE_D2 : RPL_TONE_D3;
}

static rpl_tone certificate_cell(void *ctx, int row, int column, char tip[RPL_HEAT_TEXT], char glyph[16])
{
    const certificates *c = ctx;
    const json_t *op = op_of(c->result[column], c->value[row]);
    (void)glyph;
    return op ? tone_of_op(c->result[column], op, tip) : RPL_TONE_ABSENT;
}

static void map_certificates(certificates *c, FILE *out)
{
    const rpl_heat h = { .title = "worst distance of each value from the exact one, in parts of its bound",
                         .rows = c->n_values, .columns = c->n, .ctx = c, .row = certificate_row,
                         .column = certificate_column, .cell = certificate_cell };
    rpl_svg_heat(&h, out);
}

void rpl_map_all(const rpl_report *r, FILE *out)
{
    static certificates c; /* large; a report is written by one thread */
    c = (certificates){ .n = 0 };
    for (size_t i = 0; i < r->n_results; i++)
        if (strcmp(r->result[i].analysis->type, "certificate") == 0) add_certificate(&c, &r->result[i]);
    if (c.n < 2) return;
    fputs("<h2>certificates side by side</h2>\n", out);
    map_certificates(&c, out);
}

/* ---- certify: values by stages ---- */

enum { LABELS_MAX = 128 };

typedef struct stages {
    const rpl_result *result;
    char row[LABELS_MAX][48], column[LABELS_MAX][16];
    int rows, columns;
} stages;

/* "s0.attn.q": stage "s0", kind "attn.q"; others have no stage. */
static const char *split_name(const char *value, char stage[16])
{
    size_t n = value[0] == 's' ? strspn(value + 1, "0123456789") : 0;
    snprintf(stage, 16, "%s", "-");
    if (n == 0 || n > 8 || value[n + 1] != '.') return value;
    snprintf(stage, 16, "%.*s", (int)n + 1, value);
    return value + n + 2;
}

/* Place of a label, made when it is new; -1: no room. */
static int label_at(char *labels, size_t bytes, int *n, const char *text)
{
    for (int i = 0; i < *n; i++)
        if (strncmp(labels + (size_t)i * bytes, text, bytes - 1) == 0) return i;
    if (*n == LABELS_MAX) return -1;
    snprintf(labels + (size_t)*n * bytes, bytes, "%s", text);
    return (*n)++;
}

static const char *stage_row(void *ctx, int row) { return ((stages *)ctx)->row[row]; }
static const char *stage_column(void *ctx, int column) { return ((stages *)ctx)->column[column]; }

static rpl_tone stage_cell(void *ctx, int row, int column, char tip[RPL_HEAT_TEXT], char glyph[16])
{
    const stages *s = ctx;
    char value[80];
    bool none = strcmp(s->column[column], "-") == 0;
    snprintf(value, sizeof value, "%s%s%s", none ? "" : s->column[column], none ? "" : ".", s->row[row]);
    (void)glyph;
    const json_t *op = op_of(s->result, value);
    return op ? tone_of_op(s->result, op, tip) : RPL_TONE_BLANK;
}

static void map_stages(const rpl_result *x, FILE *out)
{
    stages s = { .result = x };
    char stage[16];
    const json_t *ops = json_object_get(x->json, "ops");
    for (int i = 0; i < (int)json_array_size(ops); i++) {
        const char *kind = split_name(at_text(ops, i, "value"), stage);
        label_at(s.row[0], sizeof s.row[0], &s.rows, kind);
        label_at(s.column[0], sizeof s.column[0], &s.columns, stage);
    }
    const rpl_heat h = { .title = "worst distance of each value from the exact one, in parts of its bound, by stages",
                         .rows = s.rows, .columns = s.columns, .ctx = &s, .row = stage_row, .column = stage_column,
                         .cell = stage_cell, .cell_width = 24 };
    rpl_svg_heat(&h, out);
}

/* ---- certify: where illegal elements lie ---- */

typedef struct blocks { const json_t *map; char row_text[40], column_text[40]; } blocks;

/* "7", or "14-20" of a cell with several. */
static void range_text(int cell, const json_t *map, const char *step, const char *all, char buf[40])
{
    int64_t n = rpl_count(map, step), first = cell * n, last = first + n - 1, end = rpl_count(map, all) - 1;
    if (last > end) last = end;
    if (first == last) snprintf(buf, 40, "%" PRId64, first);
    else snprintf(buf, 40, "%" PRId64 "-%" PRId64, first, last);
}

static const char *block_row(void *ctx, int row)
{
    blocks *b = ctx;
    range_text(row, b->map, "row_step", "rows", b->row_text);
    return b->row_text;
}

static const char *block_column(void *ctx, int column)
{
    blocks *b = ctx;
    range_text(column, b->map, "column_step", "columns", b->column_text);
    return b->column_text;
}

static int hex_at(const char *text, int cell)
{
    char digits[3] = { 0 };
    if ((int)strlen(text) < 2 * cell + 2) return 0;
    memcpy(digits, text + (ptrdiff_t)2 * cell, 2);
    return (int)strtol(digits, NULL, 16);
}

static rpl_tone block_cell(void *ctx, int row, int column, char tip[RPL_HEAT_TEXT], char glyph[16])
{
    const blocks *b = ctx;
    const char *text = json_string_value(json_array_get(json_object_get(b->map, "share"), (size_t)row));
    int share = hex_at(text ? text : "", column);
    if (share == 0) return RPL_TONE_D0;
    snprintf(tip, RPL_HEAT_TEXT, "%.0f %% of the elements are illegal", 100.0 * share / 255);
    snprintf(glyph, 16, "%.0f", 100.0 * share / 255);
    return RPL_TONE_D4;
}

static void map_blocks(const json_t *j, FILE *out)
{
    enum { ORIGINS_SHOWN = 6 };
    const json_t *origins = json_object_get(j, "origins");
    int shown = 0;
    for (size_t i = 0; i < json_array_size(origins) && shown < ORIGINS_SHOWN; i++) {
        const json_t *o = json_array_get(origins, i), *share = json_object_get(json_object_get(o, "map"), "share");
        const char *first = json_string_value(json_array_get(share, 0));
        blocks b = { .map = json_object_get(o, "map") };
        char title[200];
        if (!first) continue;
        snprintf(title, sizeof title, "round %" PRId64 ", %s: %% illegal, rows by columns (a block is 32)",
                 rpl_count(o, "round"), rpl_text(b.map, "value"));
        const rpl_heat h = { .title = title, .rows = (int)json_array_size(share), .columns = (int)strlen(first) / 2,
                             .ctx = &b, .row = block_row, .column = block_column, .cell = block_cell, .cell_width = 26 };
        rpl_svg_heat(&h, out);
        shown++;
    }
}

/* ---- parity: values by ways to run ---- */

typedef struct ways { const json_t *names, *columns; int64_t *row; } ways;

static const char *way_row(void *ctx, int row) { return at_text(((ways *)ctx)->names, row, "value"); }
static const char *way_column(void *ctx, int column) { return at_text(((ways *)ctx)->columns, column, "name"); }

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
    const char *marks = rpl_text(name, "marks");
    (void)glyph;
    snprintf(tip, RPL_HEAT_TEXT, "%" PRId64 " of %" PRId64 " values differ%s%s", rpl_count(name, "differ"),
             rpl_count(name, "values"), rpl_text(name, "pattern")[0] ? "; " : "", rpl_text(name, "pattern"));
    return tone_of_mark(column < (int)strlen(marks) ? marks[column] : '-');
}

static void map_parity(const json_t *j, FILE *out)
{
    ways w = { .names = json_object_get(j, "names"), .columns = json_object_get(j, "columns") };
    const rpl_heat h = { .title = "values by ways to run: the worst of all rounds", .rows = (int)json_array_size(w.names),
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
        if (n == GATES_MAX) break;
        rpl_bar *b = &bar[n++];
        *b = (rpl_bar){ .value = rpl_real(g, "figure"), .control = rpl_real(g, "control"), .limit = rpl_real(g, "limit"),
                        .fails = strcmp(rpl_text(g, "verdict"), "PASS") != 0 };
        b->control_fails = !(b->control <= b->limit);
        snprintf(b->label, sizeof b->label, "%s", key);
    }
    const char *control = rpl_text(j, "control");
    fputs("<h3>gates", out);
    fputs(control[0] ? "; control: " : "", out);
    rpl_escape(control, out);
    fputs("</h3>\n", out);
    rpl_svg_bars(bar, n, control[0] != 0, out);
}

/* ---- accept: positions by runs ---- */

typedef struct positions { const json_t *runs; int64_t determined; char row_text[112], column_text[24]; } positions;

static const char *run_row(void *ctx, int row)
{
    positions *p = ctx;
    const char *windows = at_text(p->runs, row, "windows");
    snprintf(p->row_text, sizeof p->row_text, "%.80s%s%.8s", at_text(p->runs, row, "run"), windows[0] ? ", windows " : "",
             windows);
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
                         .ctx = &p, .row = run_row, .column = position_column, .cell = position_cell, .cell_width = 60 };
    rpl_svg_heat(&h, out);
    fputs("<div class=\"scroll\"><table><thead><tr><th>run</th><th class=\"n\">blocks exact</th>"
          "<th class=\"n\">accepted</th><th class=\"n\">against control</th><th class=\"n\">at temperature 1</th>"
          "<th class=\"n\">against control</th></tr></thead>\n<tbody>\n", out);
    for (int i = 0; i < n; i++) {
        const json_t *run = json_array_get(p.runs, (size_t)i);
        fputs("<tr><td>", out);
        rpl_escape(run_row(&p, i), out);
        if (rpl_text(run, "missing")[0]) fputs(", not run: the tape lacks ", out);
        rpl_escape(rpl_text(run, "missing"), out);
        fprintf(out, "</td><td class=\"n\">%" PRId64 " of %" PRId64 "</td>", rpl_count(run, "blocks_exact"),
                rpl_count(run, "blocks"));
        put_mean(json_object_get(run, "accepted"), "%.3f", out);
        put_mean(json_object_get(run, "versus_control"), "%+.3f", out);
        put_mean(json_object_get(run, "p_target"), "%.3f", out);
        put_mean(json_object_get(run, "p_target_versus_control"), "%+.3f", out);
        fputs("</tr>\n", out);
    }
    fputs("</tbody></table></div>\n", out);
}

/* ---- scorecard ---- */

enum { OUTCOMES = 6 };

/* Counts of outcomes by two members of the plantings. */
typedef struct matrix {
    char row[LABELS_MAX][48], column[LABELS_MAX][64];
    int rows, columns;
    int n[LABELS_MAX][LABELS_MAX][OUTCOMES];
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
    else snprintf(buf, buf_bytes, "%s", rpl_text(o, key));
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
    m = (matrix){ .rows = 0 };
    json_array_foreach(json_object_get(j, "plantings"), i, o) {
        char row[48], column[64];
        member_text(o, row_key, row, sizeof row);
        member_text(o, column_key, column, sizeof column);
        int r = label_at(m.row[0], sizeof m.row[0], &m.rows, row);
        int c = label_at(m.column[0], sizeof m.column[0], &m.columns, column);
        for (int k = 0; r >= 0 && c >= 0 && k < OUTCOMES; k++)
            m.n[r][c][k] += strcmp(rpl_text(o, "outcome"), OUTCOME[k].name) == 0;
    }
    const rpl_heat h = { .title = title, .rows = m.rows, .columns = m.columns, .ctx = &m, .row = matrix_row,
                         .column = matrix_column, .cell = matrix_cell };
    rpl_svg_heat(&h, out);
}

void rpl_map_result(const rpl_result *x, FILE *out)
{
    const char *type = x->analysis->type;
    if (strcmp(type, "certificate") == 0) {
        map_stages(x, out);
        map_blocks(x->json, out);
    }
    if (strcmp(type, "parity") == 0) map_parity(x->json, out);
    if (strcmp(type, "classification") == 0) map_gates(x->json, out);
    if (strcmp(type, "acceptance") == 0) map_acceptance(x->json, out);
    if (strcmp(type, "scorecard") != 0) return;
    map_matrix(x->json, "kind", "op_kind", "faults by kinds of op: the worst outcome", out);
    map_matrix(x->json, "stage", "arm", "stages by arms: the worst outcome", out);
}
