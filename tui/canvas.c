#include "tui/canvas.h"

#include "base/mem.h"
#include "base/utf8.h"

#include <stdarg.h>

/* The glyphs that screens use beyond ASCII, and what stands for them without UTF-8. */
static const struct { uint32_t glyph; char ascii; } FALLBACK[] = {
    { 0x2026 /* … */, '~' }, { 0x2212 /* − */, '-' }, { 0x2193 /* ↓ */, 'v' }, { 0x2260 /* ≠ */, '#' },
    { 0x25b2 /* ▲ */, '^' }, { 0x25bc /* ▼ */, 'v' }, { 0x2502 /* │ */, '|' }, { 0x2500 /* ─ */, '-' },
    { 0x250c /* ┌ */, '+' }, { 0x2510 /* ┐ */, '+' }, { 0x2514 /* └ */, '+' }, { 0x2518 /* ┘ */, '+' },
    { 0x2501 /* ━ */, '=' }, { 0x2578 /* ╸ */, '-' }, { 0x00b7 /* · */, '.' }, { 0x00d7 /* × */, 'x' },
    { 0x2581 /* ▁ */, ':' }, { 0x2582 /* ▂ */, '-' }, { 0x2583 /* ▃ */, '=' }, { 0x2584 /* ▄ */, '+' },
    { 0x2585 /* ▅ */, '*' }, { 0x2586 /* ▆ */, '%' }, { 0x2587 /* ▇ */, '#' }, { 0x2588 /* █ */, '@' },
};
enum { ELLIPSIS = 0x2026, BAR_WHOLE = 0x2501, BAR_HALF = 0x2578, HEAT_NONE = 0xb7, HEAT_FIRST = 0x2581 };

static uint32_t to_ascii(uint32_t glyph)
{
    for (size_t i = 0; i < COUNT_OF(FALLBACK); i++)
        if (FALLBACK[i].glyph == glyph) return (uint32_t)FALLBACK[i].ascii;
    return '?';
}

/* Printable and one column wide on every terminal. Names and paths come from files, so this is a list of what is known to
 * be safe: Latin, Greek, Cyrillic, and the symbols drawn here. */
static bool is_narrow(uint32_t g)
{
    if (g < 0x7f) return g >= ' ';
    return (g >= 0xa1 && g < 0x300 && g != 0xad) || (g >= 0x370 && g < 0x483) || (g >= 0x2010 && g < 0x2028) ||
           (g >= 0x2190 && g < 0x2300) || (g >= 0x2500 && g < 0x2600);
}

uint32_t tui_next_glyph(const char **p)
{
    const uint8_t *s = (const uint8_t *)*p;
    size_t n = utf8_bytes(*p);
    uint32_t g = n > 1 ? s[0] & (0x7fu >> n) : s[0];
    for (size_t i = 1; i < n; i++) g = g << 6 | (s[i] & 0x3f);
    *p += n ? n : 1;
    return n && is_narrow(g) ? g : '?';
}

int tui_utf8(uint32_t g, char buf[5])
{
    int n = g < 0x80 ? 1 : g < 0x800 ? 2 : g < 0x10000 ? 3 : 4;
    static const uint8_t LEAD[] = { 0, 0, 0xc0, 0xe0, 0xf0 };
    for (int i = n - 1; i > 0; i--, g >>= 6) buf[i] = (char)(0x80 | (g & 0x3f));
    buf[0] = (char)(LEAD[n] | g);
    buf[n] = 0;
    return n;
}

/* ---- the grid ---- */

err_code tui_canvas_resize(tui_canvas *c, int32_t width, int32_t height, err *e)
{
    void *array = c->cell;
    if (!mem_grow(&array, &c->capacity, (size_t)width * (size_t)height, sizeof *c->cell))
        return err_set(e, ERR_NOMEM, "no memory for a screen of %d x %d", width, height);
    c->cell = array;
    c->width = width;
    c->height = height;
    tui_canvas_clear(c);
    return ERR_OK;
}

void tui_canvas_fini(tui_canvas *c)
{
    free(c->cell);
    *c = (tui_canvas){ 0 };
}

void tui_canvas_clear(tui_canvas *c)
{
    for (size_t i = 0; i < (size_t)c->width * (size_t)c->height; i++) c->cell[i] = (tui_cell){ ' ', TUI_PLAIN };
}

char *tui_canvas_text(const tui_canvas *c)
{
    enum { GLYPH_BYTES = 4 };
    char *text = mem_alloc((size_t)c->height * ((size_t)c->width * GLYPH_BYTES + 1) + 1, 1), *p = text;
    if (!text) return NULL;
    for (int32_t y = 0; y < c->height; y++) {
        const tui_cell *row = c->cell + (size_t)y * (size_t)c->width;
        int32_t width = c->width;
        char buf[5];
        while (width > 0 && row[width - 1].glyph == ' ') width--;
        for (int32_t x = 0; x < width; x++) {
            int n = tui_utf8(row[x].glyph, buf);
            memcpy(p, buf, (size_t)n);
            p += n;
        }
        *p++ = '\n';
    }
    *p = 0;
    return text;
}

/* ---- drawing ---- */

void tui_glyph(tui_canvas *c, int32_t x, int32_t y, int style, uint32_t glyph)
{
    if (x < 0 || y < 0 || x >= c->width || y >= c->height) return;
    if (c->ascii && glyph >= 0x80) glyph = to_ascii(glyph);
    c->cell[(size_t)y * (size_t)c->width + (size_t)x] = (tui_cell){ glyph, (uint8_t)style };
}

int32_t tui_columns(const char *text)
{
    int32_t n = 0;
    while (*text) {
        tui_next_glyph(&text);
        n++;
    }
    return n;
}

int32_t tui_put(tui_canvas *c, int32_t x, int32_t y, int32_t width, int style, const char *text)
{
    int32_t n = tui_columns(text), shown = n <= width ? n : width;
    for (int32_t i = 0; i < shown; i++) {
        uint32_t g = tui_next_glyph(&text);
        tui_glyph(c, x + i, y, style, i == width - 1 && n > width ? ELLIPSIS : g);
    }
    return shown > 0 ? shown : 0;
}

int32_t tui_putf(tui_canvas *c, int32_t x, int32_t y, int32_t width, int style, const char *fmt, ...)
{
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return tui_put(c, x, y, width, style, text);
}

void tui_put_right(tui_canvas *c, int32_t x, int32_t y, int32_t width, int style, const char *text)
{
    int32_t n = tui_columns(text);
    if (n >= width) tui_put(c, x, y, width, style, text);
    else tui_put(c, x + width - n, y, n, style, text);
}

void tui_put_lines(tui_canvas *c, tui_rect r, int style, const char *text)
{
    for (int32_t i = 0; *text && i < r.width * r.height; i++)
        tui_glyph(c, r.x + i % r.width, r.y + i / r.width, style, tui_next_glyph(&text));
}

int32_t tui_lines_of(const char *text, int32_t width)
{
    int32_t n = tui_columns(text);
    return n > width ? (n + width - 1) / width : 1;
}

const char *tui_skip(const char *text, int32_t n)
{
    for (; n > 0 && *text; n--) tui_next_glyph(&text);
    return text;
}

void tui_bar(tui_canvas *c, int32_t x, int32_t y, int32_t width, int style, double share)
{
    if (!(share > 0) || width < 1) return;
    int32_t halves = share >= 1 ? 2 * width : (int32_t)(share * 2 * width);
    if (halves < 1) halves = 1;
    for (int32_t i = 0; i < halves / 2; i++) tui_glyph(c, x + i, y, style, BAR_WHOLE);
    if (halves % 2) tui_glyph(c, x + halves / 2, y, style, BAR_HALF);
}

void tui_box(tui_canvas *c, tui_rect r, int style, const char *title)
{
    int32_t right = r.x + r.width - 1, bottom = r.y + r.height - 1;
    for (int32_t y = r.y; y <= bottom; y++)
        for (int32_t x = r.x; x <= right; x++) {
            bool side = x == r.x || x == right, level = y == r.y || y == bottom;
            uint32_t corner = y == r.y ? (x == r.x ? 0x250c : 0x2510) : (x == r.x ? 0x2514 : 0x2518);
            tui_glyph(c, x, y, style, side && level ? corner : side ? 0x2502 : level ? 0x2500 : ' ');
        }
    if (title) tui_putf(c, r.x + 2, r.y, r.width - 4, style, " %s ", title);
}

void tui_mark(tui_canvas *c, tui_rect r, int style)
{
    for (int32_t y = r.y; y < r.y + r.height; y++)
        for (int32_t x = r.x; x < r.x + r.width; x++)
            if (x >= 0 && y >= 0 && x < c->width && y < c->height)
                c->cell[(size_t)y * (size_t)c->width + (size_t)x].style |= (uint8_t)style;
}

uint32_t tui_heat_glyph(int level) { return level <= 0 ? HEAT_NONE : HEAT_FIRST + (uint32_t)(level < 8 ? level : 8) - 1; }
