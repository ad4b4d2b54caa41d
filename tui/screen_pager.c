/* Pager: what a command says, while it says it. Going back stops the command. */
#include "tui/command.h"

#include "base/mem.h"

enum { ASIDE = 8 }; /* columns that Left and Right move by */

typedef struct pager {
    tui_command *command;   /* NULL: never asked for */
    char about[8];          /* letters of sides, "B" */
    char title[2 * TUI_REFERENCE_BYTES + 256]; /* what was run, in words */
    char search[128];
    tui_text text;          /* lines, each ended by 0; tabs as blanks */
    size_t *line;           /* starts of lines */
    size_t capacity;
    bool in_line;           /* the last line has no end yet */
    int32_t columns, widest;/* of the last line, of all */
    tui_list list;
    int32_t left;
} pager;

static void clear(pager *s)
{
    tui_command_end(s->command);
    tui_text_fini(&s->text);
    s->command = NULL;
    s->in_line = false;
    s->widest = 0;
    s->list = (tui_list){ 0 };
    s->left = 0;
}

static bool begin_line(pager *s)
{
    void *array = s->line;
    if (!mem_grow(&array, &s->capacity, (size_t)s->list.n + 1, sizeof *s->line)) return false;
    s->line = array;
    s->line[s->list.n++] = s->text.n;
    s->columns = 0;
    return true;
}

static void add_byte(pager *s, char byte)
{
    enum { TAB = 8 };
    if (!s->in_line && !begin_line(s)) return;
    s->in_line = byte != '\n';
    if (byte == '\r') return;
    int32_t blanks = TAB - s->columns % TAB;
    bool begins_glyph = ((uint8_t)byte & 0xc0) != 0x80;
    if (byte == '\t') tui_text_add(&s->text, "        ", (size_t)blanks);
    else tui_text_add(&s->text, byte == '\n' ? "" : &byte, 1);
    s->columns += byte == '\t' ? blanks : byte != '\n' && begins_glyph;
    if (s->columns > s->widest) s->widest = s->columns;
}

/* Takes in what came since. */
static void take(tui_app *app, pager *s)
{
    tui_text more = { 0 };
    int status;
    if (!s->command) return;
    bool done = tui_command_done(s->command, &status); /* asked first: what is said last belongs to it */
    tui_command_take(s->command, &more);
    for (size_t i = 0; i < more.n; i++) add_byte(s, more.text[i]);
    tui_text_fini(&more);
    if (!done || strncmp(s->title, "classify ", strlen("classify ")) != 0) return;
    snprintf(app->gates, sizeof app->gates, status == 0 || status == 1 ? "%s%s%s" : "%s%s%s, exit %d", s->about,
             s->about[0] ? ": " : "", status == 0 ? "PASS" : status == 1 ? "FAIL" : "not judged", status);
}

static const char *line_text(const pager *s, int32_t i) { return s->text.text + s->line[i]; }

void tui_pager_show(tui_app *app, const char *about, const char *const *argv, tui_command *c)
{
    pager *s = app->state[TUI_PAGER];
    clear(s);
    s->command = c;
    snprintf(s->about, sizeof s->about, "%s", about);
    s->title[0] = 0;
    for (size_t n = 0; *argv; argv++, n = strlen(s->title)) {
        const char *quote = **argv == 0 || strchr(*argv, ' ') ? "\"" : "";
        snprintf(s->title + n, sizeof s->title - n, "%s%s%s%s", n ? " " : "", quote, *argv, quote);
    }
    tui_open(app, TUI_PAGER);
}

void tui_pager_stop(tui_app *app)
{
    pager *s = app->state[TUI_PAGER];
    if (s->command) tui_command_stop(s->command);
}

static void enter(tui_app *app, void *state) { take(app, state); }

/* What was run, over as many lines as it needs, and how it stands. Returns the lines. */
static int32_t draw_head(tui_app *app, const pager *s, tui_rect body)
{
    char text[sizeof s->title + 32], how[32] = "running: q stops it";
    tui_canvas *c = &app->canvas;
    int status;
    bool done = tui_command_done(s->command, &status);
    if (done) snprintf(how, sizeof how, status < 0 ? "stopped" : "exit %d", status);
    int32_t how_width = (int32_t)strlen(how);
    tui_rect r = { body.x + 1, body.y, body.width - how_width - 4, body.height / 2 };
    snprintf(text, sizeof text, "%s%s$ sparktape %s", s->about, s->about[0] ? ": " : "", s->title);
    int32_t lines = tui_lines_of(text, r.width);
    tui_put_lines(c, r, TUI_STRONG, text);
    tui_put_right(c, body.x + body.width - how_width - 1, body.y, how_width, done && status == 0 ? TUI_DIM : TUI_WARN, how);
    return lines < r.height ? lines : r.height;
}

static void draw(tui_app *app, void *state, tui_rect body)
{
    pager *s = state;
    tui_canvas *c = &app->canvas;
    if (!s->command) {
        tui_put(c, body.x + 1, body.y + 1, body.width - 1, TUI_DIM, "nothing was run: type : and a command");
        return;
    }
    take(app, s);
    int32_t head = draw_head(app, s, body);
    app->page = body.height - head;
    app->list = &s->list;
    app->list_y = body.y + head;
    tui_list_fit(&s->list, app->page);
    for (int32_t y = 0; y < app->page && s->list.top + y < s->list.n; y++) {
        int32_t i = s->list.top + y;
        bool found = s->search[0] && tui_contains(line_text(s, i), s->search);
        tui_put(c, body.x + 1, app->list_y + y, body.width - 1, found ? TUI_DIFFERS : TUI_PLAIN,
                tui_skip(line_text(s, i), s->left));
        if (i == s->list.cursor) tui_put(c, body.x, app->list_y + y, 1, TUI_STRONG, ">");
    }
}

static void find(tui_app *app, pager *s, int by)
{
    for (int32_t i = s->list.cursor + by; i >= 0 && i < s->list.n; i += by)
        if (s->search[0] && tui_contains(line_text(s, i), s->search)) {
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
    case TUI_DO_RIGHT: s->left += s->left + ASIDE < s->widest ? ASIDE : 0; break;
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

static void fini(void *state)
{
    pager *s = state;
    clear(s);
    free(s->line);
}

const tui_screen TUI_SCREEN_PAGER = { "Output", TUI_ON_PAGER, sizeof(pager), enter, draw, act, text, NULL, NULL,
                                       fini };
