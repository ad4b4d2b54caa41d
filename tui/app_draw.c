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
    if (tui_judge_busy(app->judge)) snprintf(buf, bytes, "%sjudging\u2026 ", follow);
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
    tui_put_right(c, c->width / 2, 0, c->width - c->width / 2, TUI_TITLE, right);
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
        int32_t room = c->width - (int32_t)strlen(app->ask) - 1, n = (int32_t)strlen(app->typed);
        x = tui_put(c, 0, y, c->width, TUI_KEYS, app->ask);
        tui_putf(c, x, y, c->width - x, TUI_KEYS, "%s_", app->typed + (n > room && room > 0 ? n - room : 0));
    } else if (app->message[0]) { /* whole, over as many lines as it needs: a reference is there to be copied */
        int32_t lines = (int32_t)strlen(app->message) / c->width + 1;
        for (int32_t i = 0; i < lines; i++) {
            char line[sizeof app->message];
            fill_line(c, y - lines + 1 + i, TUI_KEYS);
            snprintf(line, sizeof line, "%.*s", (int)c->width, app->message + i * c->width);
            tui_put(c, 0, y - lines + 1 + i, c->width, TUI_KEYS | TUI_SELECTED, line);
        }
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

/* A line of the help: a binding with a text of its own. */
static bool helps(const tui_binding *b, uint32_t bit) { return (b->screens & bit) && b->help; }

/* Every line of the key table that this screen has, in as many columns as it takes. */
static void draw_help(tui_app *app)
{
    enum { KEYS_WIDTH = 11, COLUMN_MAX = 44 };
    tui_canvas *c = &app->canvas;
    int32_t n = 0, rows = c->height - 4, i = 0;
    uint32_t bit = tui_app_screen(app)->bit;
    char title[64], keys[64];
    for (size_t k = 0; k < tui_bindings(); k++) n += helps(tui_binding_at(k), bit);
    int32_t columns = (n + rows - 1) / rows;
    rows = (n + columns - 1) / columns;
    int32_t width = (c->width - 4) / columns < COLUMN_MAX ? (c->width - 4) / columns : COLUMN_MAX;
    tui_rect box = { (c->width - columns * width - 4) / 2, (c->height - rows - 2) / 2, columns * width + 4, rows + 2 };
    snprintf(title, sizeof title, "%s: keys", tui_app_screen(app)->title);
    tui_box(c, box, TUI_PLAIN, title);
    for (size_t k = 0; k < tui_bindings(); k++) {
        const tui_binding *b = tui_binding_at(k);
        if (!helps(b, bit)) continue;
        int32_t x = box.x + 2 + i / rows * width, y = box.y + 1 + i % rows;
        tui_put(c, x, y, KEYS_WIDTH, TUI_STRONG, tui_binding_keys_text(k, bit, KEYS_WIDTH - 1, keys));
        tui_put(c, x + KEYS_WIDTH, y, width - KEYS_WIDTH - 1, TUI_PLAIN, b->help);
        i++;
    }
}

const tui_canvas *tui_app_draw(tui_app *app)
{
    tui_canvas *c = &app->canvas;
    tui_canvas_clear(c);
    if (c->width < WIDTH_MIN || c->height < HEIGHT_MIN) {
        tui_putf(c, 0, 0, c->width, TUI_PLAIN, "%dx%d: wanted %dx%d", c->width, c->height, WIDTH_MIN, HEIGHT_MIN);
        return c;
    }
    tui_export_poll(app);
    if (app->judging && !tui_judge_busy(app->judge)) tui_say(app, "%s", "");
    if (tui_judge_why(app->judge)[0] && !app->message[0]) tui_say(app, "%s", tui_judge_why(app->judge));
    if (tui_at_request(app)) tui_model_want(app->model, tui_at_request(app)->round_index);
    app->list = NULL;
    tui_app_screen(app)->draw(app, tui_app_state(app), (tui_rect){ 0, 1, c->width, c->height - 2 });
    draw_title(app);
    draw_last_line(app);
    if (app->help) draw_help(app);
    return c;
}
