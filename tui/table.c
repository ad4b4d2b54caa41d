#include "tui/table.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

static int32_t width_of(const tui_column *column, int n, const bool *shown)
{
    int32_t sum = 0;
    for (int i = 0; i < n; i++)
        if (shown[i]) sum += column[i].width + 1;
    return sum - 1;
}

tui_layout tui_layout_of(const tui_column *column, int n, int32_t x, int32_t width, bool pair)
{
    tui_layout l = { 0 };
    bool shown[TUI_COLUMNS_MAX];
    for (int i = 0; i < n; i++) shown[i] = column[i].width > 0 && (pair || !column[i].pair);
    while (width_of(column, n, shown) > width) {
        int drop = -1;
        for (int i = 0; i < n; i++)
            if (shown[i] && column[i].rank > 0 && (drop < 0 || column[i].rank >= column[drop].rank)) drop = i;
        if (drop < 0) break;
        shown[drop] = false;
    }
    int32_t spare = width - width_of(column, n, shown);
    for (int i = 0; i < n; i++) l.width[i] = shown[i] ? column[i].width : 0;
    for (bool grew = true; spare > 0 && grew;) { /* a column of the screen each in turn */
        grew = false;
        for (int i = 0; i < n && spare > 0; i++) {
            if (!shown[i] || l.width[i] >= column[i].width_max) continue;
            l.width[i]++;
            spare--;
            grew = true;
        }
    }
    for (int i = 0; i < n; i++) {
        l.x[i] = x;
        x += shown[i] ? l.width[i] + 1 : 0;
    }
    return l;
}

void tui_table_put(tui_canvas *c, const tui_column *column, int i, const tui_layout *l, int32_t y, int style,
                   const char *text)
{
    if (l->width[i] == 0) return;
    if (column[i].right) tui_put_right(c, l->x[i], y, l->width[i], style, text);
    else tui_put(c, l->x[i], y, l->width[i], style, text);
}

void tui_table_head(tui_canvas *c, const tui_column *column, int n, const tui_layout *l, int32_t y, int sorted,
                    bool falling)
{
    char text[40];
    for (int i = 0; i < n; i++) {
        snprintf(text, sizeof text, "%s%s", column[i].title, i != sorted ? "" : falling ? "\u25bc" : "\u25b2");
        tui_table_put(c, column, i, l, y, TUI_STRONG, text);
    }
}

void tui_list_fit(tui_list *l, int32_t page)
{
    if (page < 1) page = 1;
    if (l->cursor >= l->n) l->cursor = l->n - 1;
    if (l->cursor < 0) l->cursor = 0;
    if (l->top > l->n - page) l->top = l->n - page;
    if (l->top < 0) l->top = 0;
    if (l->cursor < l->top) l->top = l->cursor;
    if (l->cursor >= l->top + page) l->top = l->cursor - page + 1;
}

bool tui_list_move(tui_list *l, tui_action action, int32_t page)
{
    if (page < 1) page = 1;
    switch (action) {
    case TUI_DO_UP: l->cursor--; break;
    case TUI_DO_DOWN: l->cursor++; break;
    case TUI_DO_PAGE_UP: l->cursor -= page, l->top -= page; break;
    case TUI_DO_PAGE_DOWN: l->cursor += page, l->top += page; break;
    case TUI_DO_FIRST: l->cursor = 0; break;
    case TUI_DO_LAST: l->cursor = l->n - 1; break;
    default: return false;
    }
    tui_list_fit(l, page);
    return true;
}

const char *tui_number(double v, int width, char buf[32])
{
    if (isnan(v)) return "NaN";
    if (isinf(v)) return v < 0 ? "-inf" : "inf";
    for (int digits = 9; digits > 0; digits--)
        if (snprintf(buf, 32, "%.*g", digits, v) <= width) break;
    return buf;
}

const char *tui_count(uint64_t v, int width, char buf[32])
{
    static const char UNIT[] = " kMGTPE";
    if (v == UINT64_MAX) return "NaN";
    if (snprintf(buf, 32, "%" PRIu64, v) <= width) return buf;
    for (int unit = 1; unit <= 6; unit++) {
        v /= 1000;
        if (snprintf(buf, 32, "%" PRIu64 "%c", v, UNIT[unit]) <= width) break;
    }
    return buf;
}

bool tui_contains(const char *line, const char *text)
{
    size_t n = strlen(text);
    for (; *line; line++) {
        size_t i = 0;
        while (i < n && tolower((unsigned char)line[i]) == tolower((unsigned char)text[i])) i++;
        if (i == n) return true;
    }
    return n == 0;
}
