/* Info: what the tapes are. What differs between them first, then what was lost in capture, then everything. */
#include "tui/app.h"

#include "base/mem.h"
#include "tui/command.h"

#include <inttypes.h>

typedef struct info_line { size_t at; int style; bool gates; } info_line; /* at: of its text */

typedef struct info {
    tui_text text;       /* lines, each ended by 0 */
    info_line *line;
    size_t capacity;
    tui_list list;
    tui_arms *arms;      /* whose they are */
    int a, b;
} info;

static void add(info *s, int style, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void add(info *s, int style, const char *fmt, ...)
{
    char buf[1024];
    va_list args;
    void *array = s->line;
    if (!mem_grow(&array, &s->capacity, (size_t)s->list.n + 1, sizeof *s->line)) return;
    s->line = array;
    va_start(args, fmt);
    vsnprintf(buf, sizeof buf, fmt, args);
    va_end(args);
    size_t at = s->text.n;
    tui_text_add(&s->text, buf, strlen(buf) + 1);
    if (!s->text.failed) s->line[s->list.n++] = (info_line){ at, style, false };
}

/* "arm.name  native-packed", depth first. */
static void add_json(info *s, const char *prefix, const json_t *value)
{
    char name[256], *text;
    const char *key;
    json_t *item;
    if (json_is_object(value)) {
        json_object_foreach((json_t *)(uintptr_t)value, key, item) {
            snprintf(name, sizeof name, "%s%s%s", prefix, prefix[0] ? "." : "", key);
            add_json(s, name, item);
        }
        return;
    }
    text = fmt_json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    if (json_is_string(value)) add(s, TUI_PLAIN, "  %-28s %s", prefix, json_string_value(value));
    else if (text) add(s, TUI_PLAIN, "  %-28s %s", prefix, text);
    free(text);
}

static const json_t *part_of(const fmt_tape *t, const char *key) { return json_object_get(fmt_tape_head(t), key); }

static void add_differences(tui_app *app, info *s)
{
    static const char *const PARTS[] = { "identity", "config", "level" };
    for (int j = 1; j < app->arms->n; j++) {
        int32_t before = s->list.n;
        add(s, TUI_STRONG, "A %s  |  %c %s", tui_arms_name(app->arms, 0), 'A' + j, tui_arms_name(app->arms, j));
        for (size_t p = 0; p < COUNT_OF(PARTS); p++) {
            if (!part_of(app->arms->tape[0], PARTS[p]) || !part_of(app->arms->tape[j], PARTS[p])) continue;
            json_t *a = json_pack("{s:O?}", PARTS[p], part_of(app->arms->tape[0], PARTS[p]));
            json_t *b = json_pack("{s:O?}", PARTS[p], part_of(app->arms->tape[j], PARTS[p]));
            char **lines = a && b ? rpl_identity_diff(a, b) : NULL;
            for (char **l = lines; l && *l; l++) add(s, TUI_DIFFERS, "\u2260 %s", *l);
            rpl_lines_free(lines);
            json_decref(a);
            json_decref(b);
        }
        if (s->list.n == before + 1) add(s, TUI_EQUAL, "= the same model, configuration and arm");
    }
}

/* Dropped values, lost events, damage, a missing end: anything that makes the tape less than the run. */
static void add_losses(info *s, const fmt_tape *t, char letter)
{
    static const char *const COUNTS[] = { "dropped", "events_lost", "waits" };
    const fmt_tape_fault *fault;
    const json_t *summary = fmt_tape_summary(t);
    size_t n_faults = fmt_tape_damage(t, &fault);
    bool clean = fmt_tape_finished(t) && n_faults == 0;
    if (!fmt_tape_finished(t)) add(s, TUI_WARN, "%c ! unfinished: it is still being written, or its writer died", letter);
    if (n_faults) add(s, TUI_WARN, "%c ! %zu damages; sparktape doctor names them all", letter, n_faults);
    for (size_t i = 0; i < n_faults && i < 5; i++) add(s, TUI_WARN, "    %s", fault[i].what);
    for (size_t i = 0; i < COUNT_OF(COUNTS); i++) {
        json_int_t n = json_integer_value(json_object_get(summary, COUNTS[i]));
        if (n == 0) continue;
        bool loss = strcmp(COUNTS[i], "waits") != 0;
        add(s, loss ? TUI_WARN : TUI_PLAIN, "%c %s %s: %" JSON_INTEGER_FORMAT, letter, loss ? "!" : " ", COUNTS[i], n);
        clean = clean && !loss;
    }
    const char *failed = json_string_value(json_object_get(summary, "failed"));
    if (failed) add(s, TUI_WARN, "%c ! capture failed: %s", letter, failed);
    if (clean && !failed) add(s, TUI_EQUAL, "%c = nothing was lost", letter);
}

static void add_tape(tui_app *app, info *s, int arm)
{
    const fmt_tape *t = app->arms->tape[arm];
    const int32_t *rounds;
    size_t n = fmt_tape_rounds(t, &rounds);
    add(s, TUI_STRONG, "%c %s", 'A' + arm, fmt_tape_path(t));
    add(s, TUI_PLAIN, "  %-28s %" PRIu64 ", format %d.%d%s", "bytes", fmt_tape_file_bytes(t), (int)FMT_TAPE_MAJOR,
        fmt_tape_minor(t), fmt_tape_finished(t) ? ", finished" : "");
    add(s, TUI_PLAIN, "  %-28s %zu in %zu rounds, %zu events", "records", fmt_tape_count(t), n, fmt_tape_event_count(t));
    if (fmt_tape_base_name(t)) add(s, TUI_PLAIN, "  %-28s %s", "stored on", fmt_tape_base_name(t));
    if (json_object_get(part_of(t, "identity"), "injected"))
        add(s, TUI_WARN, "  ! a fault was planted in this run: sparktape inject");
    add_json(s, "", fmt_tape_head(t));
    if (fmt_tape_summary(t)) add_json(s, "summary", fmt_tape_summary(t));
}

static void make(tui_app *app, info *s)
{
    char suspect = tui_letter(app, tui_suspect(app));
    s->text.n = 0;
    s->list.n = 0;
    s->arms = app->arms;
    s->a = app->a;
    s->b = app->b;
    if (app->arms->n > 1) {
        add(s, TUI_TITLE, "what differs");
        add_differences(app, s);
    }
    add(s, TUI_TITLE, "capture");
    for (int i = 0; i < app->arms->n; i++) add_losses(s, app->arms->tape[i], (char)('A' + i));
    add(s, TUI_TITLE, "gates");
    if (app->gates[0])
        add(s, strstr(app->gates, "PASS") ? TUI_EQUAL : TUI_WARN, "%s; Enter judges %c, by sparktape classify",
            app->gates, suspect);
    else
        add(s, TUI_PLAIN, "Enter here judges %c by the gates: sparktape classify%s", suspect,
            app->tools.checkpoint ? "" : " (needs --model MODEL)");
    if (s->list.n) s->line[s->list.n - 1].gates = true;
    for (int i = 0; i < app->arms->n; i++) {
        add(s, TUI_TITLE, "tape");
        add_tape(app, s, i);
    }
}

static void enter(tui_app *app, void *state)
{
    info *s = state;
    make(app, s);
    tui_list_fit(&s->list, app->page);
}

static void draw(tui_app *app, void *state, tui_rect body)
{
    info *s = state;
    if (s->arms != app->arms) enter(app, s);
    app->page = body.height;
    app->list = &s->list;
    app->list_y = body.y;
    tui_list_fit(&s->list, app->page);
    for (int32_t i = s->list.top, y = body.y; i < s->list.n && y < body.y + body.height; i++, y++) {
        const char *text = s->text.text + s->line[i].at;
        if (s->line[i].style == TUI_TITLE) { /* a heading */
            int32_t x = body.x + 1 + tui_put(&app->canvas, body.x + 1, y, body.width - 1, TUI_STRONG, text) + 1;
            for (; x < body.x + body.width; x++) tui_glyph(&app->canvas, x, y, TUI_DIM, 0x2500);
        } else {
            tui_put(&app->canvas, body.x + 2, y, body.width - 2, s->line[i].style, text);
        }
        if (i == s->list.cursor) tui_put(&app->canvas, body.x, y, 1, TUI_STRONG, ">");
    }
}

static tui_reaction act(tui_app *app, void *state, tui_action action)
{
    info *s = state;
    if (tui_list_move(&s->list, action, app->page)) return (tui_reaction){ 0 };
    if (action == TUI_DO_OPEN && s->list.n && s->line[s->list.cursor].gates) tui_command_line(app, "classify");
    else if (action == TUI_DO_OPEN && s->list.n) tui_say(app, "%s", s->text.text + s->line[s->list.cursor].at);
    return (tui_reaction){ 0 };
}

static void drop(void *state) { ((info *)state)->arms = NULL; }

static void fini(void *state)
{
    info *s = state;
    tui_text_fini(&s->text);
    free(s->line);
}

const tui_screen TUI_SCREEN_INFO = { "Info", TUI_ON_INFO, sizeof(info), enter, draw, act, NULL, NULL, drop, fini };
