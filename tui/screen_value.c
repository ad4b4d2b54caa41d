/* Value: the elements of one value on both sides, as pages of a matrix, under a strip that shows where they differ. */
#include "tui/app.h"
#include "tui/loaded.h"
#include "tui/ref.h"

#include <inttypes.h>
#include <math.h>

/* What a column of figures shows. ALL: the four side by side. */
typedef enum pane { PANE_ALL, PANE_A, PANE_B, PANE_DIFFERENCE, PANE_ULP, PANE_COUNT } pane;
static const struct { const char *title; int32_t narrow, wide; } PANES[PANE_COUNT] = { /* widths beside others, and alone */
    [PANE_A] = { "A", 8, 12 },
    [PANE_B] = { "B", 8, 12 },
    [PANE_DIFFERENCE] = { "B\u2212A", 8, 12 },
    [PANE_ULP] = { "ULP", 5, 8 },
};
enum { LABEL = 8, GAP = 1 }; /* columns: row number in front; the line between panes */

typedef struct value {
    tui_loaded data;
    bool is_loaded;
    int32_t request, index;   /* what is loaded: as in app->at */
    tui_list rows;            /* row of the cursor, and the rows shown */
    int64_t col, left, shown_cols;
    pane pane;
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

/* A value when none is chosen: the first origin, else the first that the request shows. */
static void choose(tui_app *app)
{
    int32_t n;
    const tui_request *r = tui_at_request(app);
    if (!r || app->at.value >= 0) return;
    const cap_name *name = tui_model_values(app->model, r->round_index, &n);
    app->at.value = r->first_origin;
    for (int32_t i = 0; app->at.value < 0 && i < n; i++)
        if (tui_model_shows(r, &name[i])) app->at.value = i;
}

static void enter(tui_app *app, void *state)
{
    value *s = state;
    err e = { 0 };
    choose(app);
    const cap_name *n = tui_at_value(app);
    if (!n || (s->is_loaded && s->request == app->at.request && s->index == app->at.value)) {
        if (n) go_to(app, s, app->at.element >= 0 ? app->at.element : element(s));
        return;
    }
    s->is_loaded = tui_loaded_get(&s->data, app->model, n, &e) == ERR_OK;
    if (!s->is_loaded) {
        tui_say(app, "%s", e.msg);
        return;
    }
    s->request = app->at.request;
    s->index = app->at.value;
    s->rows = (tui_list){ .n = s->data.rows < INT32_MAX ? (int32_t)s->data.rows : INT32_MAX };
    s->col = s->left = 0;
    int64_t first = app->at.element;
    if (first < 0 && s->data.pair) first = s->data.m.worst;
    go_to(app, s, first);
}

/* ---- the matrix ---- */

static const char *decimal(const value *s, int side, int64_t i, int width, char buf[32])
{
    fmt_dtype d = s->data.tensor.dtype;
    const void *data = s->data.side[side].tensor.data;
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
    case PANE_A: return decimal(s, TUI_A, i, width, buf);
    case PANE_B: return decimal(s, TUI_B, i, width, buf);
    case PANE_DIFFERENCE: return tui_number(rpl_element(d, b, i) - rpl_element(d, a, i), width, buf);
    default: return tui_count(tui_loaded_ulp(&s->data, i), width, buf);
    }
}

static bool differs(const value *s, int64_t i)
{
    fmt_dtype d = s->data.tensor.dtype;
    return s->data.pair && rpl_element_bits(d, s->data.side[TUI_A].tensor.data, i) !=
                               rpl_element_bits(d, s->data.side[TUI_B].tensor.data, i);
}

/* The panes to draw: one side alone has only its own. */
static int panes_of(const value *s, pane out[PANE_COUNT])
{
    int n = 0;
    if (!s->data.pair) out[n++] = tui_loaded_first(&s->data) == TUI_A ? PANE_A : PANE_B;
    else if (s->pane != PANE_ALL) out[n++] = s->pane;
    else
        for (pane p = PANE_A; p < PANE_COUNT; p++) out[n++] = p;
    return n;
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
    int32_t width = n_panes > 1 ? PANES[p].narrow : PANES[p].wide, hex = 2 * (int32_t)fmt_dtype_bytes(s->data.tensor.dtype);
    return s->bits && p <= PANE_B && hex > width ? hex : width;
}

/* One pane: its title, the columns' numbers over the first of several, and the figures. */
static void draw_pane(tui_app *app, const value *s, pane p, bool numbered, int32_t width, tui_rect r)
{
    char text[32];
    tui_canvas *c = &app->canvas;
    tui_put(c, r.x + 1, r.y, r.width - 1, TUI_STRONG, PANES[p].title);
    for (int64_t k = 0; k < s->shown_cols && s->left + k < s->data.cols; k++) {
        int64_t col = s->left + k;
        int32_t x = r.x + (int32_t)k * (width + 1);
        snprintf(text, sizeof text, "%" PRId64, col);
        if (numbered) tui_put_right(c, x + 3, r.y, width - 2, TUI_STRONG, text);
        for (int32_t line = 0; line < r.height - 1 && s->rows.top + line < s->rows.n; line++) {
            int64_t row = s->rows.top + line, i = row * s->data.cols + col;
            int32_t y = r.y + 1 + line;
            bool dot = p >= PANE_DIFFERENCE && !differs(s, i); /* so that what differs stands out */
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
    pane panes[PANE_COUNT];
    int n = panes_of(s, panes);
    int32_t one = 0, x = r.x + LABEL;
    char label[128];
    tui_canvas *c = &app->canvas;
    for (int p = 0; p < n; p++) one += cell_width(s, n, panes[p]) + 1;
    s->shown_cols = (r.width - LABEL - (n - 1) * GAP) / one;
    if (s->shown_cols < 1) s->shown_cols = 1;
    app->page = r.height - 1;
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
        tui_putf(c, r.x + 1, r.y + 1, r.width - 1, TUI_DIM, "of %s alone%s", tui_loaded_first(d) == TUI_A ? "A" : "B",
                 alone_because(app, d));
    else
        tui_putf(c, r.x + 1, r.y + 1, r.width - 1, TUI_PLAIN,
                 "%" PRId64 " of %" PRId64 " differ  rel L2 %s  max |B\u2212A| %s  max ULP %s", d->m.n - d->m.n_equal,
                 d->m.n, tui_number(d->m.rel_l2, 9, l2), tui_number(d->m.max_abs, 9, most),
                 tui_count(d->m.max_ulp, 9, ulp));
}

enum { DETAIL_PLAIN = 2, DETAIL_BITS = 4 };

static bool shows(const tui_loaded *d, int side) { return d->pair || side == tui_loaded_first(d); }

/* The element under the cursor, its bits, its row. */
static void draw_detail(tui_app *app, const value *s, tui_rect r)
{
    char text[128], number[32], more[32], ulp[32];
    const tui_loaded *d = &s->data;
    const rpl_cell *row = &d->by_row[s->rows.cursor];
    fmt_dtype dtype = d->tensor.dtype;
    int64_t i = element(s);
    int32_t y = r.y, right = r.x + r.width;
    tui_canvas *c = &app->canvas;
    int32_t x = r.x + 1 + tui_put(c, r.x + 1, y, r.width - 1, TUI_STRONG, tui_index_text(&d->tensor, i, text));
    for (int side = TUI_A; side < TUI_SIDES; side++)
        if (shows(d, side))
            x += tui_putf(c, x, y, right - x, TUI_PLAIN, "  %s %s", PANES[side == TUI_A ? PANE_A : PANE_B].title,
                          tui_number(rpl_element(dtype, d->side[side].tensor.data, i), 14, number));
    if (d->pair)
        tui_putf(c, x, y, right - x, TUI_PLAIN, "  B\u2212A %s  ULP %s",
                 differs(s, i) ? cell_text(s, PANE_DIFFERENCE, i, 12, number) : "0",
                 tui_count(tui_loaded_ulp(d, i), 9, ulp));
    for (int side = TUI_A; s->bits && side < TUI_SIDES; side++)
        if (shows(d, side))
            tui_putf(c, r.x + 1, ++y, r.width - 1, TUI_PLAIN, "%s %s", PANES[side == TUI_A ? PANE_A : PANE_B].title,
                     tui_bits_text(dtype, d->side[side].tensor.data, i, text));
    row_label(s, s->rows.cursor, text);
    x = r.x + 1 + tui_putf(c, r.x + 1, ++y, r.width - 1, TUI_PLAIN, "row %s: ", text);
    if (d->pair)
        tui_putf(c, x, y, right - x, TUI_PLAIN, "%d of %" PRId64 " differ  rel L2 %s  max |B\u2212A| %s  max ULP %s",
                 row->n_differ, d->cols, tui_number((double)row->rel_l2, 9, number),
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
    int32_t y = body.y + HEAD, bottom = body.y + body.height - detail;
    draw_head(app, s, n, body);
    draw_strip(app, s, (tui_rect){ body.x, y, body.width, strip + 1 });
    y += strip + 1;
    draw_matrix(app, s, (tui_rect){ body.x, y, body.width, bottom - y });
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
    if (!s->is_loaded || s->data.rows * s->data.cols == 0) return r;
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
    case TUI_DO_GOTO: r.ask = "go to index: "; break;
    case TUI_DO_BITS: s->bits = !s->bits; break;
    case TUI_DO_PANES:
        if (pair) s->pane = (pane)((s->pane + 1) % PANE_COUNT);
        break;
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
    if (action != TUI_DO_GOTO) return;
    if (tui_index_parse(typed, index, &n) && tui_index_flat(&s->data.tensor, index, n, &flat)) go_to(app, s, flat);
    else tui_say(app, "'%s' is no index in %s", typed, fmt_tensor_text(&s->data.tensor, type, sizeof type));
}

static void fini(void *state) { tui_loaded_fini(&((value *)state)->data); }

const tui_screen TUI_SCREEN_VALUE = { "Value", TUI_ON_VALUE, sizeof(value), enter, draw, act, text, fini };
