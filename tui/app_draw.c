/* What surrounds a screen: the title, the last line, the help. */
#include "tui/app.h"

#include "tui/export.h"

enum { WIDTH_MIN = 40, HEIGHT_MIN = 10 };

static void fill_line(tui_canvas *c, int32_t y, int style)
{
    for (int32_t x = 0; x < c->width; x++) tui_glyph(c, x, y, style, ' ');
}

/* How far the comparison is, or what else works. */
static void progress_text(tui_app *app, char *buf, size_t bytes)
{
    int32_t done = tui_model_rounds_done(app->model), rounds = tui_model_rounds(app->model);
    const char *follow = app->follow ? "following  " : "";
    int32_t judging = tui_judge_at(app->judge);
    if (judging >= 0) snprintf(buf, bytes, "%sjudging round %d\u2026 ", follow, judging);
    else if (!tui_model_is_pair(app->model)) snprintf(buf, bytes, "%s%d rounds ", follow, rounds);
    else if (done == rounds) snprintf(buf, bytes, "%s%d rounds compared ", follow, rounds);
    else snprintf(buf, bytes, "%s%s %d/%d rounds ", follow, app->arms->paused ? "stopped" : "comparing", done, rounds);
}

static void draw_title(tui_app *app)
{
    tui_canvas *c = &app->canvas;
    char right[64];
    const tui_screen *s = tui_app_screen(app);
    const tui_request *r = s->bit & (TUI_ON_PROGRAM | TUI_ON_VALUE | TUI_ON_ROUTING | TUI_ON_TOKENS) ? tui_at_request(app) :
        NULL;
    progress_text(app, right, sizeof right);
    fill_line(c, 0, TUI_TITLE);
    int32_t x = tui_putf(c, 1, 0, c->width - 1, TUI_TITLE, "sparktape  %s", s->title) + 1;
    if (r) x += tui_putf(c, x, 0, c->width - x, TUI_TITLE, "  round %d", r->round);
    if (r && r->slot != FMT_TAPE_NO_SLOT) x += tui_putf(c, x, 0, c->width - x, TUI_TITLE, " slot %d", r->slot);
    if (app->arms->n > 2)
        tui_putf(c, x, 0, c->width - x, TUI_TITLE, "  %c|%c", tui_letter(app, TUI_A), tui_letter(app, TUI_B));
    int32_t room = c->width - x - 2;
    if (room > 0) tui_put_right(c, x + 2, 0, room, TUI_TITLE, right);
}

/* The line being typed, else the message, else the keys. */
static void draw_last_line(tui_app *app)
{
    tui_canvas *c = &app->canvas;
    int32_t y = c->height - 1, x = 0;
    uint32_t bit = tui_app_screen(app)->bit;
    char key[16];
    fill_line(c, y, TUI_KEYS);
    if (app->ask) { /* the end of what is typed stays in sight */
        int32_t room = c->width - tui_columns(app->ask) - 1, n = tui_columns(app->typed);
        x = tui_put(c, 0, y, c->width, TUI_KEYS, app->ask);
        tui_putf(c, x, y, c->width - x, TUI_KEYS, "%s_", tui_skip(app->typed, n > room && room > 0 ? n - room : 0));
    } else if (app->message[0]) { /* whole, over as many lines as it needs: a reference is there to be copied */
        int32_t lines = tui_lines_of(app->message, c->width), top = y - lines + 1;
        for (int32_t i = 0; i < lines; i++) fill_line(c, top + i, TUI_KEYS);
        tui_put_lines(c, (tui_rect){ 0, top, c->width, lines }, TUI_KEYS | TUI_SELECTED, app->message);
    } else {
        for (size_t i = 0; i < tui_bindings(); i++) {
            const tui_binding *b = tui_binding_at(i);
            if (!(b->screens & bit) || !b->label || !b->key[0]) continue;
            tui_key_text(b->key[0], key);
            if (x + (int32_t)(strlen(key) + strlen(b->label)) + 1 > c->width) break;
            x += tui_put(c, x, y, c->width - x, TUI_KEYS | TUI_SELECTED, key);
            x += tui_putf(c, x, y, c->width - x, TUI_KEYS, " %s", b->label) + 2;
        }
    }
}

/* Binding k has a line of the help: a text of its own, and a key. */
static bool helps(size_t k, uint32_t bit)
{
    char keys[64];
    const tui_binding *b = tui_binding_at(k);
    return (b->screens & bit) && b->help && tui_binding_keys_text(k, bit, INT32_MAX, keys)[0];
}

/* The help of a screen: every line of the key table that it has, in as few columns and pages as take them whole. */
typedef struct help_layout { int32_t rows, columns, width, pages; } help_layout;
enum { HELP_KEYS = 11, HELP_COLUMN_MIN = 36, HELP_COLUMN_MAX = 44, HELP_FRAME = 4 };

static help_layout lay_out_help(const tui_app *app)
{
    const tui_canvas *c = &app->canvas;
    int32_t n = 0, rows = c->height - HELP_FRAME, room = c->width - HELP_FRAME;
    for (size_t k = 0; k < tui_bindings(); k++) n += helps(k, tui_app_screen(app)->bit);
    if (rows < 1) rows = 1; /* keys are taken on screens that are too small to show anything, too */
    int32_t columns = (n + rows - 1) / rows, most = room / HELP_COLUMN_MIN;
    if (columns > most) columns = most;
    if (columns < 1) columns = 1;
    int32_t width = room / columns < HELP_COLUMN_MAX ? room / columns : HELP_COLUMN_MAX;
    int32_t pages = (n + rows * columns - 1) / (rows * columns);
    if (pages == 1) rows = (n + columns - 1) / columns;
    return (help_layout){ rows, columns, width, pages };
}

int32_t tui_help_pages(const tui_app *app) { return lay_out_help(app).pages; }

static void draw_help(tui_app *app)
{
    tui_canvas *c = &app->canvas;
    help_layout l = lay_out_help(app);
    uint32_t bit = tui_app_screen(app)->bit;
    char title[64], keys[64];
    if (app->help > l.pages) app->help = l.pages; /* the screen has grown */
    int32_t width = l.columns * l.width + HELP_FRAME, height = l.rows + 2;
    tui_rect box = { (c->width - width) / 2, (c->height - height) / 2, width, height };
    snprintf(title, sizeof title, l.pages > 1 ? "%s: keys, %d of %d" : "%s: keys", tui_app_screen(app)->title, app->help,
             l.pages);
    tui_box(c, box, TUI_PLAIN, title);
    int32_t i = -(app->help - 1) * l.rows * l.columns; /* place on this page */
    for (size_t k = 0; k < tui_bindings(); k++) {
        if (!helps(k, bit)) continue;
        int32_t x = box.x + 2 + i / l.rows * l.width, y = box.y + 1 + i % l.rows;
        if (i >= 0 && i < l.rows * l.columns) {
            tui_put(c, x, y, HELP_KEYS - 1, TUI_STRONG, tui_binding_keys_text(k, bit, HELP_KEYS - 1, keys));
            tui_put(c, x + HELP_KEYS, y, l.width - HELP_KEYS - 1, TUI_PLAIN, tui_binding_at(k)->help);
        }
        i++;
    }
}

const tui_canvas *tui_app_draw(tui_app *app)
{
    tui_canvas *c = &app->canvas;
    err e = { 0 };
    tui_canvas_clear(c);
    if (c->width < WIDTH_MIN || c->height < HEIGHT_MIN) {
        tui_putf(c, 0, 0, c->width, TUI_PLAIN, "%dx%d: wanted %dx%d", c->width, c->height, WIDTH_MIN, HEIGHT_MIN);
        return c;
    }
    tui_export_poll(app);
    if (tui_judge_failed(app->judge, &e)) tui_say(app, "%s", e.msg);
    if (tui_at_request(app)) tui_model_want(app->model, tui_at_request(app)->round_index);
    app->list = NULL;
    app->alone = -1;
    tui_app_screen(app)->draw(app, tui_app_state(app), (tui_rect){ 0, 1, c->width, c->height - 2 });
    draw_title(app);
    draw_last_line(app);
    if (app->help) draw_help(app);
    return c;
}
