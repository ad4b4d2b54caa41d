#include "tui/app.h"

#include "base/mem.h"
#include "tui/command.h"
#include "tui/export.h"

static const tui_screen *const SCREENS[TUI_KINDS] = {
    [TUI_ROUNDS] = &TUI_SCREEN_ROUNDS, [TUI_PROGRAM] = &TUI_SCREEN_PROGRAM, [TUI_VALUE] = &TUI_SCREEN_VALUE,
    [TUI_ROUTING] = &TUI_SCREEN_ROUTING, [TUI_TOKENS] = &TUI_SCREEN_TOKENS, [TUI_MATRIX] = &TUI_SCREEN_MATRIX,
    [TUI_INFO] = &TUI_SCREEN_INFO, [TUI_PAGER] = &TUI_SCREEN_PAGER,
};

/* ---- the stack of screens ---- */

static tui_kind top(const tui_app *app) { return app->stack[app->depth - 1]; }
const tui_screen *tui_app_screen(const tui_app *app) { return SCREENS[top(app)]; }
void *tui_app_state(const tui_app *app) { return app->state[top(app)]; }
static void enter(tui_app *app) { tui_app_screen(app)->enter(app, tui_app_state(app)); }

void tui_open(tui_app *app, tui_kind kind)
{
    int32_t i = 0;
    while (i < app->depth && app->stack[i] != kind) i++;
    app->stack[i] = kind;
    app->depth = i + 1;
    app->list = NULL;
    enter(app);
}

/* Rounds is the ground; any other screen comes on top of what leads to it. */
static void open_by_number(tui_app *app, tui_kind kind)
{
    if (kind == TUI_ROUNDS) app->depth = 0;
    tui_open(app, kind);
}

static void go_back(tui_app *app)
{
    if (app->depth == 1) return;
    if (top(app) == TUI_PAGER) tui_pager_stop(app);
    app->depth--;
    app->list = NULL;
    enter(app);
}

/* ---- open and close ---- */

err_code tui_app_init(tui_app *app, tui_arms *arms, const tui_tools *tools, int32_t width, int32_t height, err *e)
{
    *app = (tui_app){ .arms = arms, .b = arms->n > 1, .tools = *tools, .at = { .value = -1, .element = -1 }, .page = 1,
                      .alone = -1, .canvas.ascii = tools->ascii };
    app->model = tui_arms_first(arms, app->b);
    err_code rc = tui_canvas_resize(&app->canvas, width, height, e);
    for (tui_kind k = TUI_ROUNDS; rc == ERR_OK && k < TUI_KINDS; k++) {
        app->state[k] = mem_alloc(1, SCREENS[k]->state_bytes);
        if (!app->state[k]) rc = err_set(e, ERR_NOMEM, "no memory for the screens");
    }
    if (rc == ERR_OK && tools->checkpoint) rc = tui_judge_open(tools->checkpoint, tools->threaded, &app->judge, e);
    if (rc == ERR_OK) tui_open(app, TUI_ROUNDS);
    else tui_app_fini(app);
    return rc;
}

void tui_app_fini(tui_app *app)
{
    for (tui_kind k = TUI_ROUNDS; k < TUI_KINDS; k++) {
        if (app->state[k] && SCREENS[k]->fini) SCREENS[k]->fini(app->state[k]);
        free(app->state[k]);
    }
    tui_export_end(app->export);
    tui_judge_close(app->judge);
    tui_canvas_fini(&app->canvas);
    free(app->mark);
    *app = (tui_app){ 0 };
}

void tui_app_leave(tui_app *app)
{
    tui_export_end(app->export);
    app->export = NULL;
    tui_pager_stop(app);
}

err_code tui_app_resize(tui_app *app, int32_t width, int32_t height, err *e)
{
    return tui_canvas_resize(&app->canvas, width, height, e);
}

bool tui_is_threaded(const tui_app *app) { return app->tools.threaded; }

bool tui_app_working(tui_app *app)
{
    bool running = tui_work_running() > 0; /* asked first: what ends now is still to be taken over */
    return tui_arms_tick(app->arms, app->model) || running || app->export;
}

/* ---- another model, the same place ---- */

static void set_model(tui_app *app, tui_model *model)
{
    const tui_request *r = tui_at_request(app);
    const cap_name *v = tui_at_value(app);
    int32_t round = r ? r->round : 0, slot = r ? r->slot : FMT_TAPE_NO_SLOT, value_slot = v ? v->slot : FMT_TAPE_NO_SLOT;
    char name[FMT_TAPE_NAME_BYTES] = "";
    if (v) snprintf(name, sizeof name, "%s", v->name);
    app->model = model;
    app->generation++;
    int32_t i = r ? tui_model_find_request(model, round, slot) : -1;
    if (r && i < 0) i = tui_model_find_request(model, round, FMT_TAPE_NO_SLOT);
    app->at.request = i < 0 ? 0 : i;
    app->at.value = -1;
    if (i >= 0 && name[0]) app->at.value = tui_model_find_value(model, tui_at_request(app)->round_index, value_slot, name);
    if (app->at.value < 0) app->at.element = -1;
}

void tui_use_pair(tui_app *app, int a, int b)
{
    tui_model *m = tui_arms_pair(app->arms, a, b);
    if (!m) {
        tui_say(app, "%c and %c: %s", 'A' + a, 'A' + b, app->arms->failed.code ? app->arms->failed.msg : "being opened");
        return;
    }
    app->a = a < b ? a : b;
    app->b = a < b ? b : a;
    set_model(app, m);
    enter(app);
}

void tui_app_replace(tui_app *app, tui_arms *arms)
{
    bool at_end = top(app) == TUI_ROUNDS && app->at.request + 1 >= tui_model_requests(app->model);
    tui_judge_forget(app->judge);
    tui_export_end(app->export);
    app->export = NULL;
    for (tui_kind k = TUI_ROUNDS; k < TUI_KINDS; k++)
        if (SCREENS[k]->drop) SCREENS[k]->drop(app->state[k]);
    if (app->a != 0) app->a = 0, app->b = arms->n > 1; /* other pairs are opened anew when they are asked for */
    set_model(app, tui_arms_first(arms, app->b));
    app->arms = arms;
    int32_t n = tui_model_requests(app->model);
    if (at_end && n > 0) app->at = (tui_place){ .request = n - 1, .value = -1, .element = -1 };
    enter(app);
}

/* ---- keys ---- */

void tui_say(tui_app *app, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(app->message, sizeof app->message, fmt, args);
    va_end(args);
}

/* What only the stack is about; false: not one of these. */
static bool act_stack(tui_app *app, tui_action action)
{
    switch (action) {
    case TUI_DO_QUIT: app->quit = true; return true;
    case TUI_DO_BACK:
        app->quit = app->depth == 1;
        go_back(app);
        return true;
    case TUI_DO_ESCAPE: go_back(app); return true;
    case TUI_DO_HELP: app->help = 1; return true;
    case TUI_DO_GO_ROUNDS: open_by_number(app, TUI_ROUNDS); return true;
    case TUI_DO_GO_PROGRAM: open_by_number(app, TUI_PROGRAM); return true;
    case TUI_DO_GO_VALUE: open_by_number(app, TUI_VALUE); return true;
    case TUI_DO_GO_ROUTING: open_by_number(app, TUI_ROUTING); return true;
    case TUI_DO_GO_TOKENS: open_by_number(app, TUI_TOKENS); return true;
    case TUI_DO_GO_MATRIX: open_by_number(app, TUI_MATRIX); return true;
    case TUI_DO_GO_INFO: open_by_number(app, TUI_INFO); return true;
    default: return false;
    }
}

/* A key while a line is being typed. */
static void type_key(tui_app *app, int32_t key)
{
    size_t n = strlen(app->typed);
    if (key == TUI_KEY_ESC) app->ask = NULL;
    else if (key == TUI_KEY_BACKSPACE || key == TUI_KEY_DELETE) {
        while (n > 0 && (app->typed[n - 1] & 0xc0) == 0x80) n--; /* the whole character */
        app->typed[n ? n - 1 : 0] = 0;
    } else if (key == TUI_KEY_CLEAR) app->typed[0] = 0;
    else if (key >= ' ' && key != 0x7f && key < TUI_KEY_SPECIAL) {
        char glyph[5];
        size_t bytes = (size_t)tui_utf8((uint32_t)key, glyph);
        if (n + bytes < sizeof app->typed) memcpy(app->typed + n, glyph, bytes + 1);
    } else if (key == TUI_KEY_ENTER) {
        app->ask = NULL;
        if (!tui_act_text(app, app->asked_by, app->typed))
            tui_app_screen(app)->text(app, tui_app_state(app), app->asked_by, app->typed);
    }
}

static void do_action(tui_app *app, tui_action action)
{
    tui_reaction r = { 0 };
    if (act_stack(app, action)) return;
    if (!tui_act(app, action, &r)) r = tui_app_screen(app)->act(app, tui_app_state(app), action);
    if (r.open != TUI_STAY) tui_open(app, r.open);
    app->ask = r.ask;
    app->asked_by = action;
    memcpy(app->typed, r.typed, sizeof app->typed);
}

bool tui_app_key(tui_app *app, int32_t key)
{
    if (app->ask) {
        type_key(app, key);
        return !app->quit;
    }
    app->message[0] = 0;
    if (app->help) {
        app->help = key == TUI_KEY_ESC || app->help >= tui_help_pages(app) ? 0 : app->help + 1;
        return true;
    }
    const tui_binding *b = tui_binding_find(key, tui_app_screen(app)->bit);
    if (b) do_action(app, b->action);
    return !app->quit;
}

void tui_app_click(tui_app *app, int32_t y)
{
    if (app->ask || app->help || !app->list || y < app->list_y || y >= app->list_y + app->page) return;
    int32_t line = app->list->top + y - app->list_y;
    if (line >= app->list->n) return;
    bool again = line == app->list->cursor;
    int32_t by = line > app->list->cursor ? 1 : -1;
    while (app->list->cursor != line) { /* as the keys do it, so that what follows the cursor follows */
        int32_t before = app->list->cursor;
        do_action(app, by > 0 ? TUI_DO_DOWN : TUI_DO_UP);
        if (app->list->cursor == before || (app->list->cursor - line) * by > 0) break;
    }
    if (again) do_action(app, TUI_DO_OPEN);
}
