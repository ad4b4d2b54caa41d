#include "tui/app.h"

#include "base/mem.h"
#include "tui/ref.h"

#include <stdarg.h>

enum { WIDTH_MIN = 40, HEIGHT_MIN = 10 };

static const tui_screen *const SCREENS[TUI_KINDS] = {
    [TUI_ROUNDS] = &TUI_SCREEN_ROUNDS, [TUI_PROGRAM] = &TUI_SCREEN_PROGRAM, [TUI_VALUE] = &TUI_SCREEN_VALUE,
};

/* ---- the stack of screens ---- */

static tui_kind top(const tui_app *app) { return app->stack[app->depth - 1]; }
static const tui_screen *screen(const tui_app *app) { return SCREENS[top(app)]; }
static void enter(tui_app *app) { screen(app)->enter(app, app->state[top(app)]); }

/* Brings a screen to the front: down to it where it is open already, else on top. */
static void open_screen(tui_app *app, tui_kind kind)
{
    int32_t i = 0;
    while (i < app->depth && app->stack[i] != kind) i++;
    app->stack[i] = kind;
    app->depth = i + 1;
    enter(app);
}

err_code tui_app_init(tui_app *app, tui_model *model, int32_t width, int32_t height, bool ascii, err *e)
{
    *app = (tui_app){ .model = model, .at = { .value = -1, .element = -1 }, .canvas.ascii = ascii, .page = 1 };
    err_code rc = tui_canvas_resize(&app->canvas, width, height, e);
    for (tui_kind k = TUI_ROUNDS; rc == ERR_OK && k < TUI_KINDS; k++) {
        app->state[k] = mem_alloc(1, SCREENS[k]->state_bytes);
        if (!app->state[k]) rc = err_set(e, ERR_NOMEM, "no memory for the screens");
    }
    if (rc == ERR_OK) open_screen(app, TUI_ROUNDS);
    else tui_app_fini(app);
    return rc;
}

void tui_app_fini(tui_app *app)
{
    for (tui_kind k = TUI_ROUNDS; k < TUI_KINDS; k++) {
        if (app->state[k] && SCREENS[k]->fini) SCREENS[k]->fini(app->state[k]);
        free(app->state[k]);
    }
    tui_canvas_fini(&app->canvas);
    *app = (tui_app){ 0 };
}

err_code tui_app_resize(tui_app *app, int32_t width, int32_t height, err *e)
{
    return tui_canvas_resize(&app->canvas, width, height, e);
}

/* ---- where we are ---- */

const tui_request *tui_at_request(tui_app *app)
{
    return app->at.request < tui_model_requests(app->model) ? tui_model_request(app->model, app->at.request) : NULL;
}

const cap_name *tui_at_value(tui_app *app)
{
    int32_t n;
    const tui_request *r = tui_at_request(app);
    const cap_name *v = r ? tui_model_values(app->model, r->round_index, &n) : NULL;
    return v && app->at.value >= 0 && app->at.value < n ? v + app->at.value : NULL;
}

const rpl_value *tui_at_result(tui_app *app)
{
    const cap_name *v = tui_at_value(app);
    const rpl_round *r = v ? tui_model_result(app->model, tui_at_request(app)->round_index) : NULL;
    return r ? &r->value[app->at.value] : NULL;
}

void tui_say(tui_app *app, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(app->message, sizeof app->message, fmt, args);
    va_end(args);
}

void tui_reference(tui_app *app, char *buf, size_t bytes)
{
    const tui_request *r = tui_at_request(app);
    const cap_name *v = tui_at_value(app);
    const char *path = fmt_tape_path(tui_model_tape(app->model, TUI_A));
    char slot[16] = "-", index[128] = "";
    tui_facts facts;
    if (!r) {
        snprintf(buf, bytes, "%s", path);
        return;
    }
    int32_t number = v ? v->slot : r->slot;
    if (number != FMT_TAPE_NO_SLOT) snprintf(slot, sizeof slot, "%d", number);
    if (v && app->at.element >= 0 && tui_model_facts_any(app->model, v, &facts) && facts.tensor.ndim > 0)
        tui_index_text(&facts.tensor, app->at.element, index);
    snprintf(buf, bytes, "%s:%d/%s%s%s%s", path, r->round, slot, v ? "/" : "", v ? v->name : "", index);
}

err_code tui_app_go(tui_app *app, const char *reference, err *e)
{
    tui_ref ref;
    tui_facts facts;
    TRY(tui_ref_parse(reference, &ref, e));
    int32_t i = tui_model_find_request(app->model, ref.round, ref.slot);
    if (i < 0 && tui_model_find_request(app->model, ref.round, FMT_TAPE_NO_SLOT) >= 0)
        return err_set(e, ERR_INPUT, "%s: round %d has no slot %d", reference, ref.round, ref.slot);
    if (i < 0) return err_set(e, ERR_INPUT, "%s: round %d is not on the tape", reference, ref.round);
    app->at = (tui_place){ .request = i, .value = -1, .element = -1 };
    enter(app);
    if (ref.has_slot) open_screen(app, TUI_PROGRAM);
    if (!ref.name[0]) return ERR_OK;
    int32_t value = tui_model_find_value(app->model, tui_at_request(app)->round_index, ref.slot, ref.name);
    if (value < 0) return err_set(e, ERR_INPUT, "%s: round %d has no %s of that slot", reference, ref.round, ref.name);
    app->at.value = value;
    enter(app);
    const cap_name *v = tui_at_value(app);
    bool known = tui_model_facts_any(app->model, v, &facts);
    if (ref.n_index && !(known && tui_index_flat(&facts.tensor, ref.index, ref.n_index, &app->at.element)))
        return err_set(e, ERR_INPUT, "%s: the index lies outside the value", reference);
    open_screen(app, TUI_VALUE);
    return ERR_OK;
}

/* ---- actions that do not depend on the screen ---- */

static void step_round(tui_app *app, int by)
{
    const cap_name *v = tui_at_value(app);
    int32_t i = tui_at_request(app) ? tui_model_step(app->model, app->at.request, by) : -1;
    if (i < 0) {
        tui_say(app, "no %s round of this slot", by < 0 ? "earlier" : "later");
        return;
    }
    app->at.request = i;
    app->at.value = v ? tui_model_find_value(app->model, tui_at_request(app)->round_index, v->slot, v->name) : -1;
    if (v && app->at.value < 0) tui_say(app, "round %d has no %s", tui_at_request(app)->round, v->name);
    enter(app);
}

/* On Rounds: of the first round that has one. Elsewhere: of this round. */
static void go_origin(tui_app *app)
{
    int32_t i = app->at.request, n = tui_model_requests(app->model);
    if (!tui_model_is_pair(app->model)) {
        tui_say(app, "one tape alone: nothing differs (browse A B, or --against ARM)");
        return;
    }
    if (top(app) == TUI_ROUNDS)
        for (i = 0; i < n && tui_model_request(app->model, i)->first_origin < 0;) i++;
    const tui_request *r = i < n ? tui_model_request(app->model, i) : NULL;
    if (!r || r->first_origin < 0) {
        tui_say(app, "no origin %s%s", top(app) == TUI_ROUNDS ? "found" : "in this round",
                tui_model_is_working(app->model) ? " so far: still comparing" : "");
        return;
    }
    const rpl_round *result = tui_model_result(app->model, r->round_index);
    app->at = (tui_place){ .request = i, .value = r->first_origin,
                           .element = result ? result->value[r->first_origin].m.worst : -1 };
    if (top(app) == TUI_ROUNDS) open_screen(app, TUI_PROGRAM);
    else enter(app);
}

static void go_back(tui_app *app)
{
    if (app->depth == 1) return;
    app->depth--;
    enter(app);
}

/* false: not one of these. */
static bool act(tui_app *app, tui_action action)
{
    char reference[512];
    switch (action) {
    case TUI_DO_QUIT: app->quit = true; return true;
    case TUI_DO_BACK:
        app->quit = app->depth == 1;
        go_back(app);
        return true;
    case TUI_DO_ESCAPE: go_back(app); return true;
    case TUI_DO_HELP: app->help = true; return true;
    case TUI_DO_GO_ROUNDS: open_screen(app, TUI_ROUNDS); return true;
    case TUI_DO_GO_PROGRAM: open_screen(app, TUI_PROGRAM); return true;
    case TUI_DO_GO_VALUE: open_screen(app, TUI_VALUE); return true;
    case TUI_DO_ROUND_BACK: step_round(app, -1); return true;
    case TUI_DO_ROUND_ON: step_round(app, 1); return true;
    case TUI_DO_ORIGIN: go_origin(app); return true;
    case TUI_DO_REFERENCE:
        tui_reference(app, reference, sizeof reference);
        tui_say(app, "%s", reference);
        return true;
    default: return false;
    }
}

/* A key while a line is being typed. */
static void type_key(tui_app *app, int32_t key)
{
    size_t n = strlen(app->typed);
    if (key == TUI_KEY_ESC) app->ask = NULL;
    else if (key == TUI_KEY_BACKSPACE || key == TUI_KEY_DELETE) app->typed[n ? n - 1 : 0] = 0;
    else if (key >= ' ' && key < 0x7f && n + 1 < sizeof app->typed) {
        app->typed[n] = (char)key;
        app->typed[n + 1] = 0;
    } else if (key == TUI_KEY_ENTER) {
        app->ask = NULL;
        screen(app)->text(app, app->state[top(app)], app->asked_by, app->typed);
    }
}

bool tui_app_key(tui_app *app, int32_t key)
{
    if (app->ask) {
        type_key(app, key);
        return true;
    }
    app->message[0] = 0;
    if (app->help) {
        app->help = false;
        return true;
    }
    const tui_binding *b = tui_binding_find(key, screen(app)->bit);
    if (!b || act(app, b->action)) return !app->quit;
    tui_reaction r = screen(app)->act(app, app->state[top(app)], b->action);
    if (r.open != TUI_STAY) open_screen(app, r.open);
    app->ask = r.ask;
    app->asked_by = b->action;
    app->typed[0] = 0;
    return true;
}

/* ---- drawing ---- */

static void fill_line(tui_canvas *c, int32_t y, int style)
{
    for (int32_t x = 0; x < c->width; x++) tui_glyph(c, x, y, style, ' ');
}

static void draw_title(tui_app *app)
{
    tui_canvas *c = &app->canvas;
    char right[64] = "";
    const tui_request *r = top(app) == TUI_ROUNDS ? NULL : tui_at_request(app);
    int32_t done = tui_model_rounds_done(app->model), rounds = tui_model_rounds(app->model);
    const char *state = tui_model_is_working(app->model) ? "comparing" : "compared";
    if (!tui_model_is_pair(app->model)) snprintf(right, sizeof right, "%d rounds ", rounds);
    else if (done == rounds) snprintf(right, sizeof right, "%d rounds compared ", rounds);
    else snprintf(right, sizeof right, "%s %d/%d rounds ", state, done, rounds);
    fill_line(c, 0, TUI_TITLE);
    int32_t x = tui_putf(c, 1, 0, c->width - 1, TUI_TITLE, "sparktape  %s", screen(app)->title) + 1;
    if (r) x += tui_putf(c, x, 0, c->width - x, TUI_TITLE, "  round %d", r->round);
    if (r && r->slot != FMT_TAPE_NO_SLOT) tui_putf(c, x, 0, c->width - x, TUI_TITLE, " slot %d", r->slot);
    tui_put_right(c, c->width / 2, 0, c->width - c->width / 2, TUI_TITLE, right);
}

/* The line being typed, else the message, else the keys. */
static void draw_last_line(tui_app *app)
{
    tui_canvas *c = &app->canvas;
    int32_t y = c->height - 1, x = 0;
    char key[16];
    fill_line(c, y, TUI_KEYS);
    if (app->ask) {
        x = tui_put(c, 0, y, c->width, TUI_KEYS, app->ask);
        tui_putf(c, x, y, c->width - x, TUI_KEYS, "%s_", app->typed);
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
            if (!(b->screens & screen(app)->bit) || !b->label) continue;
            tui_key_text(b->key[0], key);
            if (x + (int32_t)(strlen(key) + strlen(b->label)) + 1 > c->width) break;
            x += tui_put(c, x, y, c->width - x, TUI_KEYS | TUI_SELECTED, key);
            x += tui_putf(c, x, y, c->width - x, TUI_KEYS, " %s", b->label) + 2;
        }
    }
}

/* Every line of the key table that this screen has, in as many columns as it takes. */
static void draw_help(tui_app *app)
{
    enum { KEYS_WIDTH = 9 };
    tui_canvas *c = &app->canvas;
    int32_t n = 0, rows = c->height - 4, i = 0;
    char title[64], keys[64], key[16];
    for (size_t k = 0; k < tui_bindings(); k++) n += (tui_binding_at(k)->screens & screen(app)->bit) != 0;
    int32_t columns = (n + rows - 1) / rows;
    rows = (n + columns - 1) / columns;
    int32_t width = (c->width - 4) / columns < 44 ? (c->width - 4) / columns : 44;
    tui_rect box = { (c->width - columns * width - 4) / 2, (c->height - rows - 2) / 2, columns * width + 4, rows + 2 };
    snprintf(title, sizeof title, "%s: keys", screen(app)->title);
    tui_box(c, box, TUI_PLAIN, title);
    for (size_t k = 0; k < tui_bindings(); k++) {
        const tui_binding *b = tui_binding_at(k);
        if (!(b->screens & screen(app)->bit)) continue;
        keys[0] = 0;
        for (int j = 0; j < TUI_BINDING_KEYS && b->key[j]; j++)
            snprintf(keys + strlen(keys), sizeof keys - strlen(keys), "%s%s", j ? " " : "", tui_key_text(b->key[j], key));
        int32_t x = box.x + 2 + i / rows * width, y = box.y + 1 + i % rows;
        tui_put(c, x, y, KEYS_WIDTH, TUI_STRONG, keys);
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
    if (tui_at_request(app)) tui_model_want(app->model, tui_at_request(app)->round_index);
    screen(app)->draw(app, app->state[top(app)], (tui_rect){ 0, 1, c->width, c->height - 2 });
    draw_title(app);
    draw_last_line(app);
    if (app->help) draw_help(app);
    return c;
}
