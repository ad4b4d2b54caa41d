/* Value: the elements of one value on both sides, as pages of a matrix, under a strip that shows where they differ. */
#include "tui/app.h"
#include "tui/loaded.h"
#include "tui/ref.h"
#include "tui/value_panel.h"

#include <inttypes.h>
#include <math.h>

/* What a column of figures shows. ALL: all side by side; MORE + i: the i-th arm beside the two. */
typedef enum pane { PANE_ALL, PANE_A, PANE_B, PANE_DIFFERENCE, PANE_ULP, PANE_MORE, PANES_MAX = PANE_MORE +
                   TUI_ARMS_MAX } pane;
static const struct { const char *title; int32_t narrow, wide; } PANES[PANE_MORE] = { /* widths beside others, and alone */
    [PANE_A] = { "A", 8, 12 },
    [PANE_B] = { "B", 8, 12 },
    [PANE_DIFFERENCE] = { "B\u2212A", 8, 12 },
    [PANE_ULP] = { "ULP", 5, 8 },
};
enum { LABEL = 8, GAP = 1 }; /* columns: row number in front; the line between panes */

/* A value on its way: the work's until it is done. */
typedef struct coming {
    tui_loaded data;
    const tui_model *model;
    const fmt_tape *more[TUI_ARMS_MAX];
    int n_more;
    const cap_name *name;
    err e;
    bool good;
} coming;

typedef struct value {
    tui_loaded data;
    coming coming;
    tui_work *work;
    bool is_loaded;
    int32_t request, index;   /* what is loaded, or coming: as in app->at */
    uint32_t generation;
    char letter[TUI_ARMS_MAX]; /* of the arms beside */
    tui_list rows;            /* row of the cursor, and the rows shown */
    int64_t col, left, shown_cols;
    pane pane;
    tui_panel panel;
    bool bits;
} value;

static int64_t element(const value *s) { return s->rows.cursor * s->data.cols + s->col; }

/* ---- coming here ---- */

static void go_to(tui_app *app, value *s, int64_t i)
{
    int64_t cols = s->data.cols, n = s->data.rows * cols;
    if (n == 0) return;
    if (i < 0) i = 0;
    if (i >= n) i = n - 1;
    s->rows.cursor = (int32_t)(i / cols);
    s->col = i % cols;
    app->at.element = i;
}

static void load(void *ctx, const atomic_bool *cancel)
{
    coming *c = ctx;
    (void)cancel;
    c->good = tui_loaded_get(&c->data, c->model, c->more, c->n_more, c->name, &c->e) == ERR_OK;
}

/* Takes over what has come; false: it is still on its way. */
static bool take(tui_app *app, value *s)
{
    if (!s->work) return s->is_loaded;
    if (!tui_work_done(s->work)) return false;
    tui_work_end(s->work);
    s->work = NULL;
    tui_loaded old = s->data;
    s->data = s->coming.data;
    s->coming.data = old; /* its buffers are used again */
    s->is_loaded = s->coming.good;
    if (!s->is_loaded) {
        tui_say(app, "%s", s->coming.e.msg);
        return false;
    }
    s->rows = (tui_list){ .n = s->data.rows < INT32_MAX ? (int32_t)s->data.rows : INT32_MAX };
    s->col = s->left = 0;
    int64_t first = app->at.element;
    if (first < 0 && s->data.pair) first = s->data.m.worst;
    go_to(app, s, first);
    return true;
}

static void begin(tui_app *app, value *s, const cap_name *n)
{
    enum { AT_ONCE_BYTES = 1 << 18 }; /* read before the next picture: a page of "reading" would only flicker */
    tui_facts facts;
    bool small = tui_model_facts_any(app->model, n, &facts) && fmt_tensor_bytes(&facts.tensor) <= AT_ONCE_BYTES;
    tui_work_end(s->work);
    s->work = NULL;
    s->is_loaded = false;
    s->request = app->at.request;
    s->index = app->at.value;
    s->generation = app->generation;
    s->coming.model = app->model;
    s->coming.name = n;
    s->coming.n_more = 0;
    s->coming.e = (err){ 0 };
    for (int i = 0; i < app->arms->n; i++) {
        if (i == app->a || i == app->b) continue;
        s->letter[s->coming.n_more] = (char)('A' + i);
        s->coming.more[s->coming.n_more++] = app->arms->tape[i];
    }
    err e = { 0 };
    if (tui_work_begin(tui_is_threaded(app) && !small, load, &s->coming, &s->work, &e) != ERR_OK) tui_say(app, "%s", e.msg);
    else take(app, s);
}

static void enter(tui_app *app, void *state)
{
    value *s = state;
    tui_choose_value(app);
    const cap_name *n = tui_at_value(app);
    if (!n) return;
    bool same = s->request == app->at.request && s->index == app->at.value && s->generation == app->generation;
    if (!same || (!s->is_loaded && !s->work)) begin(app, s, n);
    else if (take(app, s)) go_to(app, s, app->at.element >= 0 ? app->at.element : element(s));
}

/* ---- the matrix ---- */

static const char *decimal(const value *s, const void *data, int64_t i, int width, char buf[32])
{
    fmt_dtype d = s->data.tensor.dtype;
    if (s->bits) {
        snprintf(buf, 32, "%0*" PRIx64, 2 * (int)fmt_dtype_bytes(d), rpl_element_bits(d, data, i));
        return buf;
    }
    return tui_number(rpl_element(d, data, i), width, buf);
}

static const char *cell_text(const value *s, pane p, int64_t i, int width, char buf[32])
{
    fmt_dtype d = s->data.tensor.dtype;
    const void *a = s->data.side[TUI_A].tensor.data, *b = s->data.side[TUI_B].tensor.data;
    switch (p) {
    case PANE_A: return decimal(s, a, i, width, buf);
    case PANE_B: return decimal(s, b, i, width, buf);
    case PANE_DIFFERENCE: return tui_number(rpl_element(d, b, i) - rpl_element(d, a, i), width, buf);
    case PANE_ULP: return tui_count(tui_loaded_ulp(&s->data, i), width, buf);
    default: return decimal(s, s->data.more[p - PANE_MORE].tensor.data, i, width, buf); /* there, or no such pane is */
    }
}

static bool differs(const value *s, int64_t i)
{
    fmt_dtype d = s->data.tensor.dtype;
    return s->data.pair && rpl_element_bits(d, s->data.side[TUI_A].tensor.data, i) !=
                               rpl_element_bits(d, s->data.side[TUI_B].tensor.data, i);
}

/* Every pane there is, in the order in which they stand. */
static int all_panes(const value *s, pane out[PANES_MAX])
{
    int n = 0;
    out[n++] = s->data.pair || tui_loaded_first(&s->data) == TUI_A ? PANE_A : PANE_B;
    if (s->data.pair) out[n++] = PANE_B;
    for (int i = 0; i < s->data.n_more; i++)
        if (s->data.more_there[i]) out[n++] = (pane)(PANE_MORE + i);
    if (s->data.pair) out[n++] = PANE_DIFFERENCE;
    if (s->data.pair) out[n++] = PANE_ULP;
    return n;
}

/* The panes to draw. */
static int panes_of(const value *s, pane out[PANES_MAX])
{
    int n = all_panes(s, out);
    for (int i = 0; i < n; i++)
        if (out[i] == s->pane) {
            out[0] = s->pane;
            return 1;
        }
    return n;
}

static void next_pane(value *s)
{
    pane all[PANES_MAX];
    int n = all_panes(s, all), i = 0;
    while (i < n && all[i] != s->pane) i++;
    if (i == n) s->pane = n > 1 ? all[0] : PANE_ALL;
    else s->pane = i + 1 < n ? all[i + 1] : PANE_ALL;
}

static const char *pane_title(const tui_app *app, const value *s, pane p, char buf[8])
{
    char a = tui_letter(app, TUI_A), b = tui_letter(app, TUI_B);
    if (p >= PANE_MORE) snprintf(buf, 8, "%c", s->letter[p - PANE_MORE]);
    else if (p == PANE_DIFFERENCE) snprintf(buf, 8, "%c\u2212%c", b, a);
    else if (p == PANE_ULP) snprintf(buf, 8, "ULP");
    else snprintf(buf, 8, "%c", p == PANE_A ? a : b);
    return buf;
}

/* "2,3": the row's place in all dimensions but the last. */
static void row_label(const value *s, int64_t row, char buf[128])
{
    fmt_tensor lead = s->data.tensor;
    if (lead.ndim < 3) {
        snprintf(buf, 128, "%" PRId64, row);
        return;
    }
    lead.ndim--;
    lead.shape[lead.ndim] = 1;
    tui_index_text(&lead, row, buf);
}

static int32_t cell_width(const value *s, int n_panes, pane p)
{
    bool side = p == PANE_A || p == PANE_B || p >= PANE_MORE;
    const int like = p >= PANE_MORE ? PANE_A : (int)p;
    int32_t width = n_panes > 1 ? PANES[like].narrow : PANES[like].wide, hex =
        2 * (int32_t)fmt_dtype_bytes(s->data.tensor.dtype);
    return s->bits && side && hex > width ? hex : width;
}

/* One pane: its title, the columns' numbers over the first of several, and the figures. */
static void draw_pane(tui_app *app, const value *s, pane p, bool numbered, int32_t width, tui_rect r)
{
    char text[32];
    tui_canvas *c = &app->canvas;
    tui_put(c, r.x + 1, r.y, r.width - 1, TUI_STRONG, pane_title(app, s, p, text));
    for (int64_t k = 0; k < s->shown_cols && s->left + k < s->data.cols; k++) {
        int64_t col = s->left + k;
        int32_t x = r.x + (int32_t)k * (width + 1);
        snprintf(text, sizeof text, "%" PRId64, col);
        if (numbered) tui_put_right(c, x + 3, r.y, width - 2, TUI_STRONG, text);
        for (int32_t line = 0; line < r.height - 1 && s->rows.top + line < s->rows.n; line++) {
            int64_t row = s->rows.top + line, i = row * s->data.cols + col;
            int32_t y = r.y + 1 + line;
            bool dot = (p == PANE_DIFFERENCE || p == PANE_ULP) && !differs(s, i); /* so that what differs stands out */
            tui_put_right(c, x + 1, y, width, differs(s, i) ? TUI_DIFFERS : TUI_PLAIN,
                          dot ? "\u00b7" : cell_text(s, p, i, width, text));
            if (row != s->rows.cursor || col != s->col) continue;
            tui_put(c, x, y, 1, TUI_PLAIN, ">");
            tui_mark(c, (tui_rect){ x, y, width + 1, 1 }, TUI_SELECTED);
        }
    }
}

static void draw_matrix(tui_app *app, value *s, tui_rect r)
{
    pane panes[PANES_MAX];
    int n = panes_of(s, panes);
    int32_t one = 0, x = r.x + LABEL;
    char label[128];
    tui_canvas *c = &app->canvas;
    for (int p = 0; p < n; p++) one += cell_width(s, n, panes[p]) + 1;
    s->shown_cols = (r.width - LABEL - (n - 1) * GAP) / one;
    if (s->shown_cols < 1) s->shown_cols = 1;
    app->page = r.height - 1;
    app->list = &s->rows;
    app->list_y = r.y + 1;
    app->side = n == 1 && panes[0] == PANE_B ? TUI_B : TUI_A;
    tui_list_fit(&s->rows, app->page);
    if (s->col < s->left) s->left = s->col;
    if (s->col >= s->left + s->shown_cols) s->left = s->col - s->shown_cols + 1;
    for (int32_t line = 0; line < app->page && s->rows.top + line < s->rows.n; line++) {
        row_label(s, s->rows.top + line, label);
        tui_put_right(c, r.x, r.y + 1 + line, LABEL - 1, TUI_DIM, label);
    }
    for (int p = 0; p < n; p++) {
        int32_t width = cell_width(s, n, panes[p]), all = (int32_t)s->shown_cols * (width + 1);
        draw_pane(app, s, panes[p], p == 0, width, (tui_rect){ x, r.y, all, r.height });
        x += all + GAP;
        int32_t lines = s->rows.n < app->page ? s->rows.n : app->page;
        for (int32_t y = 0; p + 1 < n && y <= lines; y++) tui_glyph(c, x - GAP, r.y + y, TUI_DIM, 0x2502);
    }
}

/* ---- the heat strip: rows down, blocks of 32 columns across ---- */

static void draw_strip(tui_app *app, const value *s, tui_rect r)
{
    int32_t width = r.width - LABEL, lines = r.height - 1;
    const tui_loaded *d = &s->data;
    int64_t per_line = (d->rows + lines - 1) / lines, per_glyph = (d->blocks + width - 1) / width;
    int64_t block = s->col / RPL_PROFILE_BLOCK;
    tui_canvas *c = &app->canvas;
    for (int32_t line = 0; line < lines && line * per_line < d->rows; line++) {
        int64_t row0 = line * per_line, row1 = row0 + per_line < d->rows ? row0 + per_line : d->rows;
        bool here = s->rows.cursor >= row0 && s->rows.cursor < row1;
        char label[48];
        snprintf(label, sizeof label, row1 - row0 > 1 ? "%" PRId64 "-%" PRId64 : "%" PRId64, row0, row1 - 1);
        tui_put_right(c, r.x, r.y + line, LABEL - 2, here ? TUI_STRONG : TUI_DIM, label);
        if (here) tui_put(c, r.x + LABEL - 1, r.y + line, 1, TUI_STRONG, ">");
        for (int32_t x = 0; x < width && x * per_glyph < d->blocks; x++) {
            int level = tui_loaded_heat(d, row0, row1, x * per_glyph, (x + 1) * per_glyph);
            int style = !d->pair || level == 0 ? TUI_DIM : level >= 6 ? TUI_ORIGIN : TUI_DIFFERS;
            tui_glyph(c, r.x + LABEL + x, r.y + line, style, tui_heat_glyph(level));
        }
    }
    int32_t used = (int32_t)((d->rows + per_line - 1) / per_line), caret = r.x + LABEL + (int32_t)(block / per_glyph);
    tui_put(c, caret, r.y + used, 1, TUI_STRONG, "^");
    tui_putf(c, caret + 2, r.y + used, r.x + r.width - caret - 2, TUI_DIM, "block %" PRId64 " of %" PRId64, block,
             d->blocks);
}

/* ---- the lines around them ---- */

/* Why there is only one side. */
static const char *alone_because(tui_app *app, const tui_loaded *d)
{
    if (!tui_model_is_pair(app->model)) return "";
    if (d->there[TUI_A] && d->there[TUI_B]) return ": B has another shape or dtype";
    if (d->why[TUI_A][0]) return d->why[TUI_A];
    return d->why[TUI_B][0] ? d->why[TUI_B] : ": the other side has none";
}

static void draw_head(tui_app *app, const value *s, const cap_name *n, tui_rect r)
{
    char type[160], l2[32], most[32], ulp[32];
    const rpl_value *v = tui_at_result(app);
    const tui_loaded *d = &s->data;
    tui_canvas *c = &app->canvas;
    const eng_op *op = tui_model_op(app->model, n);
    fmt_tensor_text(&d->tensor, type, sizeof type);
    int32_t x = r.x + 1 + tui_putf(c, r.x + 1, r.y, r.width - 1, TUI_STRONG, "%s", n->name);
    x += tui_putf(c, x, r.y, r.width - x, TUI_PLAIN, "  %s  ", type);
    if (op) x += tui_putf(c, x, r.y, r.width - x, TUI_PLAIN, "by %s  ", eng_kind_name(op->kind));
    if (v) {
        const tui_verdict_look *look = &TUI_VERDICT[tui_verdict_of(v)];
        tui_putf(c, x, r.y, r.width - x, look->style, "%s %s", look->glyph, look->word);
    }
    if (!d->pair)
        tui_putf(c, r.x + 1, r.y + 1, r.width - 1, TUI_DIM, "of %c alone%s", tui_letter(app, tui_loaded_first(d)),
                 alone_because(app, d));
    else
        tui_putf(c, r.x + 1, r.y + 1, r.width - 1, TUI_PLAIN,
                 "%" PRId64 " of %" PRId64 " differ  rel L2 %s  max |%c\u2212%c| %s  max ULP %s", d->m.n - d->m.n_equal,
                 d->m.n, tui_number(d->m.rel_l2, 9, l2), tui_letter(app, TUI_B), tui_letter(app, TUI_A),
                 tui_number(d->m.max_abs, 9, most), tui_count(d->m.max_ulp, 9, ulp));
    for (int side = TUI_A; side < TUI_SIDES; side++) { /* what a certificate says takes the line's end */
        bool inherited;
        const rpl_origin *o = tui_origin_of(app, side, n, &inherited);
        if (!o) continue;
        tui_putf(c, r.x + 1, r.y + 1, r.width - 1, TUI_PLAIN, "%*s", (int)r.width - 1, "");
        tui_putf(c, r.x + 1, r.y + 1, r.width - 1, inherited ? TUI_INHERITED : TUI_ORIGIN,
                 "%c %s: %" PRId64 " of %" PRId64 " illegal, %.3g times the bound; %s%s", tui_letter(app, side), o->op,
                 o->n_illegal, o->n, fabs(o->worst.ratio), inherited ? "inherits from " : "",
                 inherited ? o->from : o->cause[0] ? o->cause : "no cause named");
        break;
    }
}

enum { DETAIL_PLAIN = 2, DETAIL_BITS = 4 };

static bool shows(const tui_loaded *d, int side) { return d->pair || side == tui_loaded_first(d); }

/* Bits of one side, and what QDQ made them of. */
static void draw_bits(tui_app *app, const value *s, int side, tui_rect r, int32_t y)
{
    char text[128], qdq[96];
    const tui_loaded *d = &s->data;
    int64_t i = element(s), first = i - s->col % RPL_PROFILE_BLOCK;
    uint8_t codes[32], scale;
    int32_t x = r.x + 1 + tui_putf(&app->canvas, r.x + 1, y, r.width - 1, TUI_PLAIN, "%c %s", tui_letter(app, side),
                                   tui_bits_text(d->tensor.dtype, d->side[side].tensor.data, i, text));
    bool whole = s->col - s->col % RPL_PROFILE_BLOCK + RPL_PROFILE_BLOCK <= d->cols;
    if (whole && tui_qdq_read(d->tensor.dtype, d->side[side].tensor.data, first, codes, &scale))
        tui_putf(&app->canvas, x, y, r.x + r.width - x, TUI_DIM, "   QDQ %s", tui_qdq_text(codes[i - first], scale, qdq));
}

/* The element under the cursor, its bits, its row. */
static void draw_detail(tui_app *app, const value *s, tui_rect r)
{
    char text[128], number[32], more[32], ulp[32];
    const tui_loaded *d = &s->data;
    const rpl_cell *row = &d->by_row[s->rows.cursor];
    fmt_dtype dtype = d->tensor.dtype;
    int64_t i = element(s);
    int32_t y = r.y, right = r.x + r.width;
    char a = tui_letter(app, TUI_A), b = tui_letter(app, TUI_B);
    tui_canvas *c = &app->canvas;
    int32_t x = r.x + 1 + tui_put(c, r.x + 1, y, r.width - 1, TUI_STRONG, tui_index_text(&d->tensor, i, text));
    for (int side = TUI_A; side < TUI_SIDES; side++)
        if (shows(d, side))
            x += tui_putf(c, x, y, right - x, TUI_PLAIN, "  %c %s", tui_letter(app, side),
                          tui_number(rpl_element(dtype, d->side[side].tensor.data, i), 14, number));
    for (int k = 0; k < d->n_more; k++)
        if (d->more_there[k])
            x += tui_putf(c, x, y, right - x, TUI_PLAIN, "  %c %s", s->letter[k],
                          tui_number(rpl_element(dtype, d->more[k].tensor.data, i), 14, number));
    if (d->pair)
        tui_putf(c, x, y, right - x, TUI_PLAIN, "  %c\u2212%c %s  ULP %s", b, a,
                 differs(s, i) ? cell_text(s, PANE_DIFFERENCE, i, 12, number) : "0",
                 tui_count(tui_loaded_ulp(d, i), 9, ulp));
    for (int side = TUI_A; s->bits && side < TUI_SIDES; side++)
        if (shows(d, side)) draw_bits(app, s, side, r, ++y);
    row_label(s, s->rows.cursor, text);
    x = r.x + 1 + tui_putf(c, r.x + 1, ++y, r.width - 1, TUI_PLAIN, "row %s: ", text);
    if (d->pair)
        tui_putf(c, x, y, right - x, TUI_PLAIN, "%d of %" PRId64 " differ  rel L2 %s  max |%c\u2212%c| %s  max ULP %s",
                 row->n_differ, d->cols, tui_number((double)row->rel_l2, 9, number), b, a,
                 tui_number((double)row->max_abs, 9, more), tui_count(row->max_ulp, 9, ulp));
    else
        tui_putf(c, x, y, right - x, TUI_PLAIN, "largest magnitude %s, %d of %" PRId64 " not finite",
                 tui_number((double)row->max_abs, 9, number), row->n_differ, d->cols);
}

static void draw(tui_app *app, void *state, tui_rect body)
{
    enum { HEAD = 2, STRIP_MAX = 8 };
    value *s = state;
    const cap_name *n = tui_at_value(app);
    const tui_loaded *d = &s->data;
    if (n && !take(app, s) && s->work) {
        tui_putf(&app->canvas, body.x + 1, body.y, body.width - 1, TUI_STRONG, "%s", n->name);
        tui_put(&app->canvas, body.x + 1, body.y + 1, body.width - 1, TUI_DIM, "reading\u2026");
        return;
    }
    if (!n || !s->is_loaded || !tui_loaded_any(d) || d->rows * d->cols == 0) {
        const char *why = d->why[TUI_A][0] ? d->why[TUI_A] : d->why[TUI_B];
        tui_putf(&app->canvas, body.x + 1, body.y, body.width - 1, TUI_STRONG, "%s", n ? n->name : "no value");
        tui_putf(&app->canvas, body.x + 1, body.y + 1, body.width - 1, TUI_DIM, "%s", n && s->is_loaded && why[0] ? why :
                 n && s->is_loaded && tui_loaded_any(d) ? "empty: the value has no elements" : "nothing to show");
        return;
    }
    int32_t detail = s->bits && d->pair ? DETAIL_BITS : s->bits ? DETAIL_BITS - 1 : DETAIL_PLAIN;
    int32_t strip = body.height / 4 < STRIP_MAX ? body.height / 4 : STRIP_MAX;
    if (strip > d->rows) strip = (int32_t)d->rows;
    int32_t y = body.y + HEAD, bottom = body.y + body.height - detail, matrix = bottom - y - strip - 1;
    int32_t panel = s->panel == TUI_PANEL_NONE ? 0 : s->panel == TUI_PANEL_BLOCK && matrix / 2 > 9 ? 9 : matrix / 2 + 1;
    draw_head(app, s, n, body);
    draw_strip(app, s, (tui_rect){ body.x, y, body.width, strip + 1 });
    y += strip + 1;
    draw_matrix(app, s, (tui_rect){ body.x, y, body.width, bottom - y - panel });
    tui_value_panel(app, d, s->panel, element(s), (tui_rect){ body.x, bottom - panel, body.width, panel });
    draw_detail(app, s, (tui_rect){ body.x, bottom, body.width, detail });
}

/* ---- actions ---- */

/* false: action is no movement. */
static bool move(value *s, tui_action action, int32_t page)
{
    int64_t last = s->data.cols - 1;
    switch (action) {
    case TUI_DO_LEFT: s->col--; break;
    case TUI_DO_RIGHT: s->col++; break;
    case TUI_DO_PAGE_LEFT: s->col -= s->shown_cols, s->left -= s->shown_cols; break;
    case TUI_DO_PAGE_RIGHT: s->col += s->shown_cols, s->left += s->shown_cols; break;
    case TUI_DO_FIRST: s->col = 0, s->rows.cursor = 0; break;
    case TUI_DO_LAST: s->col = last, s->rows.cursor = s->rows.n - 1; break;
    default: return tui_list_move(&s->rows, action, page);
    }
    if (s->col > last) s->col = last;
    if (s->col < 0) s->col = 0;
    if (s->left > last - s->shown_cols + 1) s->left = last - s->shown_cols + 1;
    if (s->left < 0) s->left = 0;
    return true;
}

static void find(tui_app *app, value *s, int64_t i, const char *what)
{
    if (i >= 0) go_to(app, s, i);
    else tui_say(app, "%s", what);
}

static tui_reaction act(tui_app *app, void *state, tui_action action)
{
    value *s = state;
    tui_reaction r = { 0 };
    bool pair = s->data.pair;
    if (!take(app, s) || s->data.rows * s->data.cols == 0) return r;
    if (move(s, action, app->page)) {
        app->at.element = element(s);
        return r;
    }
    switch (action) {
    case TUI_DO_WORST: find(app, s, tui_loaded_worst(&s->data), "every element is equal"); break;
    case TUI_DO_NEXT_DIFFERENT:
        find(app, s, tui_loaded_next(&s->data, element(s)),
             pair ? "no later element differs" : "every later element is finite");
        break;
    case TUI_DO_PREVIOUS_DIFFERENT:
        find(app, s, tui_loaded_previous(&s->data, element(s)),
             pair ? "no earlier element differs" : "every earlier element is finite");
        break;
    case TUI_DO_PANEL: s->panel = (tui_panel)((s->panel + 1) % TUI_PANELS); break;
    case TUI_DO_GOTO: r.ask = "go to index: "; break;
    case TUI_DO_BITS: s->bits = !s->bits; break;
    case TUI_DO_PANES: next_pane(s); break;
    default: break;
    }
    return r;
}

static void text(tui_app *app, void *state, tui_action action, const char *typed)
{
    value *s = state;
    int64_t index[FMT_DIMS_MAX], flat;
    int32_t n;
    char type[160];
    if (action != TUI_DO_GOTO || !s->is_loaded) return;
    if (tui_index_parse(typed, index, &n) && tui_index_flat(&s->data.tensor, index, n, &flat)) go_to(app, s, flat);
    else tui_say(app, "'%s' is no index in %s", typed, fmt_tensor_text(&s->data.tensor, type, sizeof type));
}

static void drop(void *state)
{
    value *s = state;
    tui_work_end(s->work);
    s->work = NULL;
    s->is_loaded = false;
}

static void fini(void *state)
{
    value *s = state;
    tui_work_end(s->work);
    tui_loaded_fini(&s->data);
    tui_loaded_fini(&s->coming.data);
}

const tui_screen TUI_SCREEN_VALUE = { "Value", TUI_ON_VALUE, sizeof(value), enter, draw, act, text, NULL, drop, fini };
