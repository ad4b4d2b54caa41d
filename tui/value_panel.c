#include "tui/value_panel.h"

#include "tui/ref.h"

#include <inttypes.h>
#include <math.h>

/* A line of a chart: a label, a bar, a number. share < 0: no bar. */
static void chart_line(tui_canvas *c, tui_rect r, int32_t y, const char *label, int style, double share, const char *number)
{
    enum { LABEL = 11, NUMBER = 8 };
    tui_put_right(c, r.x, y, LABEL - 1, TUI_DIM, label);
    if (share >= 0) tui_bar(c, r.x + LABEL, y, r.width - LABEL - NUMBER - 1, style, share);
    tui_put_right(c, r.x + r.width - NUMBER - 1, y, NUMBER, TUI_PLAIN, number);
}

/* ---- histograms: counts by logarithm, so that one outlier shows beside millions ---- */

static double count_share(int64_t n, int64_t most) { return n <= 0 ? 0 : log1p((double)n) / log1p((double)most); }

static void draw_values(tui_app *app, const tui_loaded *d, tui_rect r)
{
    char label[32], number[32];
    int32_t lines = r.height - 1;
    int per = (TUI_BINS + lines - 1) / lines;
    int64_t most = 1;
    if (!d->pair) tui_put(&app->canvas, r.x, r.y, r.width, TUI_STRONG, "values");
    else
        tui_putf(&app->canvas, r.x, r.y, r.width, TUI_STRONG, "values: %c above %c", tui_letter(app, TUI_A),
                 tui_letter(app, TUI_B));
    if (!(d->highest >= d->lowest)) return;
    if (d->pair && lines > 1) per = (TUI_BINS + lines / 2 - 1) / (lines / 2);
    for (int bin = 0; bin < TUI_BINS; bin += per)
        for (int side = TUI_A; side < TUI_SIDES; side++) {
            int64_t n = 0;
            for (int k = bin; k < bin + per && k < TUI_BINS; k++) n += d->bin[side][k];
            if (n > most) most = n;
        }
    int32_t y = r.y + 1;
    for (int bin = 0; bin < TUI_BINS; bin += per)
        for (int side = TUI_A; side < TUI_SIDES && y < r.y + r.height; side++) {
            int64_t n = 0;
            if (!tui_loaded_shows(d, side)) continue;
            for (int k = bin; k < bin + per && k < TUI_BINS; k++) n += d->bin[side][k];
            double low = d->lowest + (d->highest - d->lowest) * bin / TUI_BINS;
            snprintf(label, sizeof label, "%.3g", low);
            chart_line(&app->canvas, r, y++, side == TUI_B && d->pair ? "" : label,
                       side == TUI_A ? TUI_PLAIN : TUI_INHERITED, count_share(n, most), tui_count((uint64_t)n, 7, number));
        }
}

/* Lines that are not empty, from the largest distance down when there is not room for all. */
static void draw_counts(tui_app *app, tui_rect r, const char *title, const int64_t *count, int n_counts,
                        const char *(*text)(int, char[24]))
{
    char label[24], number[32];
    int64_t most = 1;
    int n_lines = 0, skip;
    tui_put(&app->canvas, r.x, r.y, r.width, TUI_STRONG, title);
    for (int i = 0; i < n_counts; i++) {
        n_lines += count[i] > 0;
        if (count[i] > most) most = count[i];
    }
    skip = n_lines - (r.height - 1);
    int32_t y = r.y + 1;
    for (int i = 0; i < n_counts && y < r.y + r.height; i++) {
        if (count[i] == 0 || (skip-- > 0 && i > 0)) continue;
        chart_line(&app->canvas, r, y++, text(i, label), i ? TUI_DIFFERS : TUI_PLAIN, count_share(count[i], most),
                   tui_count((uint64_t)count[i], 7, number));
    }
}

static void draw_histograms(tui_app *app, const tui_loaded *d, tui_rect r)
{
    int32_t width = d->pair ? r.width / 3 : r.width < 60 ? r.width : 60;
    draw_values(app, d, (tui_rect){ r.x + 1, r.y, width - 2, r.height });
    if (!d->pair) return;
    draw_counts(app, (tui_rect){ r.x + 1 + width, r.y, width - 2, r.height }, "|B\u2212A| from", d->decade, TUI_DECADES,
                tui_decade_text);
    draw_counts(app, (tui_rect){ r.x + 1 + 2 * width, r.y, width - 2, r.height }, "ULPs", d->m.ulp, RPL_ULP_BUCKETS,
                rpl_ulp_bucket_text);
}

/* ---- profiles ---- */

/* Of a pair the relative L2 by decades, of one side the magnitude against the value's largest by powers of two. */
static double cell_share(const tui_loaded *d, double figure)
{
    if (!(figure > 0)) return 0;
    if (d->pair) return fmin(1, fmax(0.02, log10(figure) / 8 + 1));
    return d->largest > 0 ? fmin(1, fmax(0.02, 1 + log2(figure / d->largest) / 16)) : 0;
}

static double figure_of(const tui_loaded *d, const rpl_cell *cell)
{
    return (double)(d->pair ? cell->rel_l2 : cell->max_abs);
}

static void draw_rows(tui_app *app, const tui_loaded *d, int64_t row, tui_rect r)
{
    char label[32], number[32];
    int32_t lines = r.height - 1;
    int64_t first = row - lines / 2;
    if (first > d->rows - lines) first = d->rows - lines;
    if (first < 0) first = 0;
    tui_put(&app->canvas, r.x, r.y, r.width, TUI_STRONG, d->pair ? "rows: relative L2, 1e-8 to 1" :
            "rows: largest magnitude");
    for (int32_t y = 0; y < lines && first + y < d->rows; y++) {
        double figure = figure_of(d, &d->by_row[first + y]);
        snprintf(label, sizeof label, "%s%" PRId64, first + y == row ? "> " : "", first + y);
        int style = figure > 0 && d->pair ? TUI_DIFFERS : TUI_PLAIN;
        chart_line(&app->canvas, r, r.y + 1 + y, label, style, cell_share(d, figure), tui_number(figure, 8, number));
    }
}

/* Heads: the last dimension but one of three. A head's figure is that of its worst row. */
static void draw_heads(tui_app *app, const tui_loaded *d, int64_t row, tui_rect r)
{
    char label[32], number[32];
    int64_t heads = d->tensor.shape[d->tensor.ndim - 2], at = row % heads, first = at - (r.height - 1) / 2;
    if (first > heads - (r.height - 1)) first = heads - (r.height - 1);
    if (first < 0) first = 0;
    tui_put(&app->canvas, r.x, r.y, r.width, TUI_STRONG, d->pair ? "heads: relative L2 of the worst row" :
            "heads: largest magnitude");
    for (int32_t y = 0; y < r.height - 1 && first + y < heads; y++) {
        double most = 0;
        for (int64_t k = first + y; k < d->rows; k += heads) most = fmax(most, figure_of(d, &d->by_row[k]));
        snprintf(label, sizeof label, "%s%" PRId64, first + y == at ? "> " : "", first + y);
        chart_line(&app->canvas, r, r.y + 1 + y, label, most > 0 && d->pair ? TUI_DIFFERS : TUI_PLAIN, cell_share(d, most),
                   tui_number(most, 8, number));
    }
}

static void draw_profiles(tui_app *app, const tui_loaded *d, int64_t row, tui_rect r)
{
    bool heads = d->tensor.ndim >= 3;
    draw_rows(app, d, row, (tui_rect){ r.x + 1, r.y, (heads ? r.width / 2 : r.width) - 2, r.height });
    if (heads) draw_heads(app, d, row, (tui_rect){ r.x + r.width / 2, r.y, r.width / 2 - 1, r.height });
}

/* ---- the block of 32 ---- */

static void draw_block(tui_app *app, const tui_loaded *d, int64_t i, tui_rect r)
{
    enum { CELL = 19 };
    char number[32];
    int64_t row = i / d->cols, col0 = i % d->cols / RPL_PROFILE_BLOCK * RPL_PROFILE_BLOCK, first = row * d->cols + col0;
    int64_t n = d->cols - col0 < RPL_PROFILE_BLOCK ? d->cols - col0 : RPL_PROFILE_BLOCK;
    int side = tui_loaded_first(d);
    uint8_t codes[TUI_SIDES][FMT_QDQ_GROUP], scale[TUI_SIDES];
    bool qdq[TUI_SIDES] = { false };
    int32_t x = r.x + 1;
    tui_canvas *c = &app->canvas;
    x += tui_putf(c, x, r.y, r.width - 1, TUI_STRONG, "columns %" PRId64 "-%" PRId64 " of row %" PRId64, col0, col0 + n - 1,
                  row);
    for (int k = TUI_A; k < TUI_SIDES; k++) {
        if (!tui_loaded_shows(d, k)) continue;
        qdq[k] = n == FMT_QDQ_GROUP && tui_qdq_read(d->tensor.dtype, d->side[k].tensor.data, first, codes[k], &scale[k]);
        if (qdq[k])
            x += tui_putf(c, x, r.y, r.x + r.width - x, TUI_PLAIN, "   %c scale byte %d, 2^%d", tui_letter(app, k),
                          scale[k], scale[k] - FMT_E8M0_BIAS);
        else x += tui_putf(c, x, r.y, r.x + r.width - x, TUI_DIM, "   %c not e4m3 with one scale", tui_letter(app, k));
    }
    int32_t columns = (r.width - 1) / CELL, lines = (FMT_QDQ_GROUP + columns - 1) / columns;
    for (int64_t k = 0; k < n; k++) {
        int32_t y = r.y + 1 + (int32_t)(k % lines), at = r.x + 1 + (int32_t)(k / lines) * CELL;
        bool differs = tui_loaded_differs(d, first + k);
        if (y >= r.y + r.height) continue;
        int32_t w = tui_putf(c, at, y, CELL - 1, TUI_DIM, "%2d ", (int)k);
        tui_put(c, at + w, y, CELL - w - 1, differs ? TUI_DIFFERS : TUI_PLAIN,
                tui_number(rpl_element(d->tensor.dtype, d->side[side].tensor.data, first + k), 9, number));
        if (qdq[side]) tui_putf(c, at + 13, y, 2, TUI_DIM, "%02x", codes[side][k]);
        if (differs) tui_put(c, at + 15, y, 1, TUI_ORIGIN, "\u2260");
        if (differs && qdq[TUI_B]) tui_putf(c, at + 16, y, 2, TUI_DIFFERS, "%02x", codes[TUI_B][k]);
        if (first + k == i) tui_mark(c, (tui_rect){ at, y, CELL - 1, 1 }, TUI_SELECTED);
    }
}

void tui_value_panel(tui_app *app, const tui_loaded *d, tui_panel panel, int64_t i, tui_rect r)
{
    if (r.height < 2) return;
    if (panel == TUI_PANEL_HISTOGRAM) draw_histograms(app, d, r);
    if (panel == TUI_PANEL_PROFILE) draw_profiles(app, d, i / d->cols, r);
    if (panel == TUI_PANEL_BLOCK) draw_block(app, d, i, r);
}
