#include "tui/value_matrix.h"

#include "tui/ref.h"

#include <inttypes.h>

static const struct { const char *title; int32_t narrow, wide; } PANES[PANE_MORE] = { /* widths beside others, and alone */
    [PANE_A] = { "A", 8, 12 },
    [PANE_B] = { "B", 8, 12 },
    [PANE_DIFFERENCE] = { "B\u2212A", 8, 12 },
    [PANE_ULP] = { "ULP", 5, 8 },
};
enum { LABEL = 8, GAP = 1 }; /* columns: row number in front; the line between panes */

/* ---- the matrix ---- */

static const char *decimal(const tui_value *s, const void *data, int64_t i, int width, char buf[32])
{
    fmt_dtype d = s->data.tensor.dtype;
    if (s->bits) {
        snprintf(buf, 32, "%0*" PRIx64, 2 * (int)fmt_dtype_bytes(d), rpl_element_bits(d, data, i));
        return buf;
    }
    return tui_number(rpl_element(d, data, i), width, buf);
}

const char *tui_value_cell(const tui_value *s, tui_pane p, int64_t i, int width, char buf[32])
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

/* Every pane there is, in the order in which they stand. */
static int all_panes(const tui_value *s, tui_pane out[PANES_MAX])
{
    int n = 0;
    out[n++] = s->data.pair || tui_loaded_first(&s->data) == TUI_A ? PANE_A : PANE_B;
    if (s->data.pair) out[n++] = PANE_B;
    for (int i = 0; i < s->data.n_more; i++)
        if (s->data.more_there[i]) out[n++] = (tui_pane)(PANE_MORE + i);
    if (s->data.pair) out[n++] = PANE_DIFFERENCE;
    if (s->data.pair) out[n++] = PANE_ULP;
    return n;
}

/* The panes to draw. */
static int panes_of(const tui_value *s, tui_pane out[PANES_MAX])
{
    int n = all_panes(s, out);
    for (int i = 0; i < n; i++)
        if (out[i] == s->pane) {
            out[0] = s->pane;
            return 1;
        }
    return n;
}

void tui_value_next_pane(tui_value *s)
{
    tui_pane all[PANES_MAX];
    int n = all_panes(s, all), i = 0;
    while (i < n && all[i] != s->pane) i++;
    if (i == n) s->pane = n > 1 ? all[0] : PANE_ALL;
    else s->pane = i + 1 < n ? all[i + 1] : PANE_ALL;
}

/* The arm whose elements a pane shows; -1: those of two. */
static int arm_of(const tui_app *app, const tui_value *s, tui_pane p)
{
    if (p >= PANE_MORE) return s->letter[p - PANE_MORE] - 'A';
    return p == PANE_A ? app->a : p == PANE_B ? app->b : -1;
}

static const char *pane_title(const tui_app *app, const tui_value *s, tui_pane p, char buf[8])
{
    char a = tui_letter(app, TUI_A), b = tui_letter(app, TUI_B);
    if (p >= PANE_MORE) snprintf(buf, 8, "%c", s->letter[p - PANE_MORE]);
    else if (p == PANE_DIFFERENCE) snprintf(buf, 8, "%c\u2212%c", b, a);
    else if (p == PANE_ULP) snprintf(buf, 8, "ULP");
    else snprintf(buf, 8, "%c", p == PANE_A ? a : b);
    return buf;
}

void tui_value_row(const tui_value *s, int64_t row, char buf[128])
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

static int32_t cell_width(const tui_value *s, int n_panes, tui_pane p)
{
    bool side = p == PANE_A || p == PANE_B || p >= PANE_MORE;
    const int like = p >= PANE_MORE ? PANE_A : (int)p;
    int32_t width = n_panes > 1 ? PANES[like].narrow : PANES[like].wide, hex =
        2 * (int32_t)fmt_dtype_bytes(s->data.tensor.dtype);
    return s->bits && side && hex > width ? hex : width;
}

/* One pane: its title, the columns' numbers over the first of several, and the figures. */
static void draw_pane(tui_app *app, const tui_value *s, tui_pane p, bool numbered, int32_t width, tui_rect r)
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
            bool differs = tui_loaded_differs(&s->data, i);
            bool dot = (p == PANE_DIFFERENCE || p == PANE_ULP) && !differs; /* what differs stands out */
            tui_put_right(c, x + 1, y, width, differs ? TUI_DIFFERS : TUI_PLAIN,
                          dot ? "\u00b7" : tui_value_cell(s, p, i, width, text));
            if (row != s->rows.cursor || col != s->col) continue;
            tui_put(c, x, y, 1, TUI_PLAIN, ">");
            tui_mark(c, (tui_rect){ x, y, width + 1, 1 }, TUI_SELECTED);
        }
    }
}

void tui_value_matrix(tui_app *app, tui_value *s, tui_rect r)
{
    tui_pane panes[PANES_MAX];
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
    if (n == 1) app->alone = arm_of(app, s, panes[0]);
    tui_list_fit(&s->rows, app->page);
    if (s->col < s->left) s->left = s->col;
    if (s->col >= s->left + s->shown_cols) s->left = s->col - s->shown_cols + 1;
    for (int32_t line = 0; line < app->page && s->rows.top + line < s->rows.n; line++) {
        tui_value_row(s, s->rows.top + line, label);
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

void tui_value_strip(tui_app *app, const tui_value *s, tui_rect r)
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
