/* Pager: what a command says, while it says it. Going back stops the command. */
#include "tui/command.h"

#include "base/mem.h"

enum { ASIDE = 8 }; /* columns that Left and Right move by */

typedef struct pager {
    tui_command *command;  /* NULL: never asked for */
    char about[8], title[256], search[128]; /* about: letters of sides, "B" */
    tui_text text;
    size_t scanned;        /* bytes of text that line knows */
    size_t *line;          /* starts of lines */
    size_t capacity;
    tui_list list;
    int32_t left;
} pager;

static void clear(pager *s)
{
    tui_command_end(s->command);
    tui_text_fini(&s->text);
    s->command = NULL;
    s->scanned = 0;
    s->list = (tui_list){ 0 };
    s->left = 0;
}

/* Takes in what came since and finds the lines in it. */
static void take(pager *s)
{
    if (!s->command) return;
    tui_command_take(s->command, &s->text);
    for (; s->scanned < s->text.n; s->scanned++) {
        if (s->scanned > 0 && s->text.text[s->scanned - 1] != '\n') continue;
        void *array = s->line;
        if (!mem_grow(&array, &s->capacity, (size_t)s->list.n + 1, sizeof *s->line)) return;
        s->line = array;
        s->line[s->list.n++] = s->scanned;
    }
}

/* Line i with tabs as blanks; returns buf. */
static const char *line_text(const pager *s, int32_t i, char buf[1024])
{
    const char *p = s->text.text + s->line[i];
    size_t n = 0;
    for (; *p && *p != '\n' && n + 9 < 1024; p++)
        if (*p == '\t')
            do buf[n++] = ' ';
            while (n % 8);
        else if (*p != '\r') buf[n++] = *p;
    buf[n] = 0;
    return buf;
}

void tui_pager_show(tui_app *app, const char *about, const char *const *argv, tui_command *c)
{
    pager *s = app->state[TUI_PAGER];
    clear(s);
    s->command = c;
    snprintf(s->about, sizeof s->about, "%s", about);
    s->title[0] = 0;
    for (size_t n = 0; *argv; argv++, n = strlen(s->title))
        snprintf(s->title + n, sizeof s->title - n, "%s%s", n ? " " : "", *argv);
    tui_open(app, TUI_PAGER);
}

void tui_pager_stop(tui_app *app)
{
    pager *s = app->state[TUI_PAGER];
    if (s->command) tui_command_stop(s->command);
}

static void enter(tui_app *app, void *state)
{
    (void)app;
    take(state);
}

/* The text past its first `left` glyphs. */
static const char *skip(const char *text, int32_t left)
{
    for (; left > 0 && *text; left--)
        do text++;
        while (((uint8_t)*text & 0xc0) == 0x80);
    return text;
}

static void draw(tui_app *app, void *state, tui_rect body)
{
    pager *s = state;
    tui_canvas *c = &app->canvas;
    char buf[1024], end[64] = "running: q stops it";
    int status;
    bool done = !s->command || tui_command_done(s->command, &status);
    take(s);
    if (done && s->command && strncmp(s->title, "classify ", 9) == 0)
        snprintf(app->gates, sizeof app->gates, status == 0 || status == 1 ? "%s%s%s" : "%s%s%s, exit %d", s->about,
                 s->about[0] ? ": " : "", status == 0 ? "PASS" : status == 1 ? "FAIL" : "not judged", status);
    if (done && s->command) snprintf(end, sizeof end, status < 0 ? "stopped" : "exit %d", status);
    tui_putf(c, body.x + 1, body.y, body.width - 26, TUI_STRONG, "%s%s$ sparktape %s",
             s->command ? s->about : "", s->command && s->about[0] ? ": " : "", s->command ? s->title : "");
    tui_put_right(c, body.x + body.width - 24, body.y, 23, done && status == 0 ? TUI_DIM : TUI_WARN, s->command ? end : "");
    app->page = body.height - 1;
    app->list = &s->list;
    app->list_y = body.y + 1;
    tui_list_fit(&s->list, app->page);
    for (int32_t y = 0; y < app->page && s->list.top + y < s->list.n; y++) {
        int32_t i = s->list.top + y;
        const char *text = line_text(s, i, buf);
        bool found = s->search[0] && tui_contains(text, s->search);
        tui_put(c, body.x + 1, body.y + 1 + y, body.width - 1, found ? TUI_DIFFERS : TUI_PLAIN, skip(text, s->left));
        if (i == s->list.cursor) tui_put(c, body.x, body.y + 1 + y, 1, TUI_STRONG, ">");
    }
    if (!s->command) tui_put(c, body.x + 1, body.y + 1, body.width - 1, TUI_DIM, "nothing was run: type : and a command");
}

static void find(tui_app *app, pager *s, int by)
{
    char buf[1024];
    for (int32_t i = s->list.cursor + by; i >= 0 && i < s->list.n; i += by)
        if (s->search[0] && tui_contains(line_text(s, i, buf), s->search)) {
            s->list.cursor = i;
            return;
        }
    tui_say(app, s->search[0] ? "no %s line has '%s'" : "search first: /", by > 0 ? "later" : "earlier", s->search);
}

static tui_reaction act(tui_app *app, void *state, tui_action action)
{
    pager *s = state;
    tui_reaction r = { 0 };
    if (tui_list_move(&s->list, action, app->page)) return r;
    switch (action) {
    case TUI_DO_LEFT: s->left -= s->left < ASIDE ? s->left : ASIDE; break;
    case TUI_DO_RIGHT: s->left += ASIDE; break;
    case TUI_DO_FILTER: r.ask = "/"; break;
    case TUI_DO_NEXT_DIFFERENT: find(app, s, 1); break;
    case TUI_DO_PREVIOUS_DIFFERENT: find(app, s, -1); break;
    default: break;
    }
    return r;
}

static void text(tui_app *app, void *state, tui_action action, const char *typed)
{
    pager *s = state;
    if (action != TUI_DO_FILTER) return;
    snprintf(s->search, sizeof s->search, "%.*s", (int)sizeof s->search - 1, typed);
    if (typed[0]) find(app, s, 1);
}

static void leave(void *state)
{
    pager *s = state;
    clear(s);
    free(s->line);
}

const tui_screen TUI_SCREEN_PAGER = { "Output", TUI_ON_PAGER, sizeof(pager), enter, draw, act, text, NULL, NULL,
                                       leave };
