/* The pictures of certificates: values by tapes, values by stages, where illegal elements lie. */
#include "replay/report_map.h"

#include "replay/report_svg.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- certify: values by tapes ---- */

enum { CERTIFICATES_MAX = 64, VALUES_MAX = 1024 };

typedef struct certificates {
    const rpl_result *result[CERTIFICATES_MAX];
    const char *name[CERTIFICATES_MAX]; /* of the column */
    const char *value[VALUES_MAX];
    char label[CERTIFICATES_MAX][48];
    int n, n_values;
    int n_all, n_left_out; /* tapes; values of those shown that are not */
} certificates;

static const json_t *op_of(const rpl_result *x, const char *value)
{
    const json_t *ops = json_object_get(x->json, "ops");
    for (size_t i = 0; i < json_array_size(ops); i++)
        if (strcmp(fmt_json_text(json_array_get(ops, i), "value"), value) == 0) return json_array_get(ops, i);
    return NULL;
}

/* Values in the order of the first result that has them. */
static void add_certificate(certificates *c, const rpl_result *x)
{
    char tape[512];
    const json_t *ops = json_object_get(x->json, "ops");
    c->n_all++;
    if (c->n == CERTIFICATES_MAX) return;
    const char *name = strrchr(rpl_result_tape(x, tape, sizeof tape), '/');
    snprintf(c->label[c->n], sizeof c->label[0], "%.40s", name ? name + 1 : tape);
    c->result[c->n++] = x;
    for (size_t i = 0; i < json_array_size(ops); i++) {
        const char *value = rpl_text_at(ops, (int)i, "value");
        int k = 0;
        while (k < c->n_values && strcmp(c->value[k], value) != 0) k++;
        if (k < c->n_values) continue;
        if (k < VALUES_MAX) c->value[c->n_values++] = value;
        else c->n_left_out++;
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
            if (strcmp(fmt_json_text(w, "value"), value) == 0 && !(ratio <= worst)) worst = ratio;
        }
    }
    return worst;
}

static rpl_tone tone_of_op(const rpl_result *x, const json_t *op, char tip[RPL_HEAT_TEXT])
{
    double distance = rpl_real(op, "flip_distance"), worst = worst_ratio(x->json, fmt_json_text(op, "value"));
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

static const char OF_CELL[] = "a cell is the worst of all elements and rounds; its tooltip has the counts";

static void map_certificates(certificates *c, FILE *out)
{
    char note[300] = "";
    int used = snprintf(note, sizeof note, "rows: values; columns: tapes; %s", OF_CELL);
    if (c->n_all > c->n)
        used += snprintf(note + used, sizeof note - (size_t)used, "; only %d of %d tapes are shown", c->n, c->n_all);
    if (c->n_left_out)
        snprintf(note + used, sizeof note - (size_t)used, "; only the first %d values are shown", c->n_values);
    const rpl_heat h = { .title = "worst distance of each value from the exact one, in parts of its bound",
                         .rows = c->n_values, .columns = c->n, .ctx = c, .row = certificate_row,
                         .column = certificate_column, .cell = certificate_cell, .note = note };
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

typedef struct stages {
    const rpl_result *result;
    char row[RPL_LABELS_MAX][48], column[RPL_LABELS_MAX][16];
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
    char stage[16], note[300];
    int n_left_out = 0;
    const json_t *ops = json_object_get(x->json, "ops");
    for (int i = 0; i < (int)json_array_size(ops); i++) {
        const char *kind = split_name(rpl_text_at(ops, i, "value"), stage);
        bool room = rpl_label_at(s.row[0], sizeof s.row[0], &s.rows, kind) >= 0;
        n_left_out += !(rpl_label_at(s.column[0], sizeof s.column[0], &s.columns, stage) >= 0 && room);
    }
    int used = snprintf(note, sizeof note, "rows: values; columns: stages, - of none; %s", OF_CELL);
    if (n_left_out)
        snprintf(note + used, sizeof note - (size_t)used, "; %d values are not shown: more than %d rows or columns",
                 n_left_out, RPL_LABELS_MAX);
    const rpl_heat h = { .title = "worst distance of each value from the exact one, in parts of its bound, by stages",
                         .rows = s.rows, .columns = s.columns, .ctx = &s, .row = stage_row, .column = stage_column,
                         .cell = stage_cell, .cell_width = 24, .note = note };
    rpl_svg_heat(&h, out);
}

/* ---- certify: where illegal elements lie ---- */

typedef struct blocks { const json_t *map; char row_text[48], column_text[48]; } blocks;

/* A dimension: of 32 bits where it was written, whatever the file says. */
static int64_t dimension(const json_t *map, const char *key)
{
    int64_t n = rpl_count(map, key);
    return n < 0 ? 0 : n > INT32_MAX ? INT32_MAX : n;
}

/* "7", or "14-20" of a cell with several. */
static void range_text(int cell, const json_t *map, const char *step, const char *all, char buf[48])
{
    int64_t n = dimension(map, step), first = cell * n, last = first + n - 1, end = dimension(map, all) - 1;
    if (last > end) last = end;
    if (first == last) snprintf(buf, 48, "%" PRId64, first);
    else snprintf(buf, 48, "%" PRId64 "-%" PRId64, first, last);
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
    if (share == 0) return RPL_TONE_P0;
    snprintf(tip, RPL_HEAT_TEXT, "%.0f %% of the elements are illegal", 100.0 * share / 255);
    snprintf(glyph, 16, "%.0f", 100.0 * share / 255);
    return RPL_TONE_P1;
}

static void map_blocks(const json_t *j, FILE *out)
{
    enum { ORIGINS_SHOWN = 6 };
    const json_t *origins = json_object_get(j, "origins");
    int shown = 0, n_left_out = 0;
    for (size_t i = 0; i < json_array_size(origins); i++) {
        const json_t *o = json_array_get(origins, i), *share = json_object_get(json_object_get(o, "map"), "share");
        const char *first = json_string_value(json_array_get(share, 0));
        blocks b = { .map = json_object_get(o, "map") };
        char title[200];
        if (!first || shown == ORIGINS_SHOWN) {
            n_left_out += first != NULL;
            continue;
        }
        snprintf(title, sizeof title, "round %" PRId64 ", %s: %% illegal, rows by columns (a block is 32)",
                 rpl_count(o, "round"), fmt_json_text(b.map, "value"));
        const rpl_heat h = { .title = title, .rows = (int)json_array_size(share), .columns = (int)strlen(first) / 2,
                             .ctx = &b, .row = block_row, .column = block_column, .cell = block_cell, .cell_width = 26 };
        rpl_svg_heat(&h, out);
        shown++;
    }
    if (n_left_out)
        fprintf(out, "<p class=\"soft\">%d more origins have such a map; it is in the JSON</p>\n", n_left_out);
}

void rpl_map_certificate(const rpl_result *x, FILE *out)
{
    map_stages(x, out);
    map_blocks(x->json, out);
}
