#include "tui/commands.h"

#include "base/clock.h"
#include "base/mem.h"
#include "tui/against.h"
#include "tui/app.h"
#include "tui/command.h"
#include "tui/config.h"
#include "tui/export.h"
#include "tui/follow.h"
#include "tui/term.h"

#include <langinfo.h>
#include <locale.h>
#include <unistd.h>

typedef struct words {
    const char *model, *at, *keys, *size, *config;
    cli_list against;
    bool ascii, follow, list_keys;
} words;

static const cli_option OPTIONS[] = {
    { "--against", "ARM", "compare with a replay of T by this arm (needs --model); repeatable", CLI_MULTI,
      offsetof(words, against) },
    { "--model", "MODEL", "the checkpoint: of --against, of certificates (c), of commands (:)", CLI_IN,
      offsetof(words, model) },
    { "--at", "REF", "start at ROUND[/SLOT[/VALUE[INDEX]]], SLOT '-' for none; TAPE: may stand in front", CLI_STR,
      offsetof(words, at) },
    { "--follow", NULL, "a tape that is or will be written (T, or T.part): show rounds as they come", CLI_FLAG,
      offsetof(words, follow) },
    { "--keys", "FILE", "play recorded keys (Enter Down q /text ...), print the final screen; all is compared first",
      CLI_STR, offsetof(words, keys) },
    { "--size", "WxH", "of the printed screen (default 80x24)", CLI_STR, offsetof(words, size) },
    { "--ascii", NULL, "ASCII only (default: as the locale says)", CLI_FLAG, offsetof(words, ascii) },
    { "--config", "FILE", "settings and key bindings (default: $XDG_CONFIG_HOME/sparktape/config, or in ~/.config)",
      CLI_STR, offsetof(words, config) },
    { "--list-keys", NULL, "print the actions, their keys and what they do", CLI_FLAG, offsetof(words, list_keys) },
};

/* Everything a session holds open. */
typedef struct session {
    const char *path[TUI_ARMS_MAX]; /* of the given tapes; NULL: a replay, which has no name any more */
    tui_tapes now;
    tui_follow *follow;
    tui_app app;
    bool has_app;
    tui_tools tools;
    tui_config config;
    char program[512];
    int32_t width, height;
    int32_t *keys;
    size_t n_keys;
} session;

static err_code check_words(session *s, const words *w, const cli_args *args, err *e)
{
    char rest;
    s->width = 80;
    s->height = 24;
    if (args->count == 0) return err_set(e, ERR_ARG, "found no tape, wanted T [OTHER ...]");
    if (args->count + w->against.count > TUI_ARMS_MAX)
        return err_set(e, ERR_ARG, "found %d arms, wanted at most %d", args->count + w->against.count, (int)TUI_ARMS_MAX);
    if (w->against.count && !w->model)
        return err_set(e, ERR_ARG, "--against: found no --model, wanted the checkpoint to replay");
    if (w->follow && w->against.count) return err_set(e, ERR_ARG, "--follow: found --against; a replay does not grow");
    if (w->size && (sscanf(w->size, "%5dx%5d%c", &s->width, &s->height, &rest) != 2 || s->width < 20 || s->height < 5 ||
                    s->width > 1000 || s->height > 1000))
        return err_set(e, ERR_ARG, "--size: found '%s', wanted WxH, 20x5 to 1000x1000", w->size);
    if (w->size && !w->keys) return err_set(e, ERR_ARG, "--size: found no --keys; a terminal has its own size");
    if (w->keys) return tui_keys_read(w->keys, &s->keys, &s->n_keys, e);
    if (isatty(STDIN_FILENO) && isatty(STDOUT_FILENO)) return ERR_OK;
    return err_set(e, ERR_ARG, "found no terminal on standard input and output, wanted one, or --keys FILE");
}

/* ---- opening ---- */

/* The tapes, replays included, and what is shown of them. */
static err_code open_all(session *s, const words *w, const cli_common *common, err *e)
{
    if (w->against.count == 0) return tui_tapes_open(&s->now, e);
    TRY(tui_tapes_open_files(&s->now, e));
    for (int i = 0; i < w->against.count; i++) {
        TRY(tui_against_open(s->now.tape[0], w->against.item[i], w->model, common->threads, common->quiet,
                             &s->now.tape[s->now.n], e));
        s->now.n++;
    }
    return tui_tapes_open(&s->now, e);
}

static err_code make_app(session *s, const words *w, err *e)
{
    TRY(tui_arms_start(&s->now.arms, s->tools.threaded, e));
    TRY(tui_app_init(&s->app, &s->now.arms, &s->tools, s->width, s->height, e));
    s->has_app = true;
    s->app.mouse = s->config.mouse;
    s->app.follow = w->follow;
    return w->at ? tui_app_go(&s->app, w->at, e) : ERR_OK;
}

/* ---- recorded keys ---- */

/* Everything is compared first, so that the same keys always show the same screen. */
static err_code play(session *s, const words *w, const cli_common *common, err *e)
{
    TRY(open_all(s, w, common, e));
    TRY(make_app(s, w, e));
    tui_app_draw(&s->app);
    for (size_t i = 0; i < s->n_keys && tui_app_key(&s->app, s->keys[i]); i++) tui_app_draw(&s->app);
    char *text = tui_canvas_text(tui_app_draw(&s->app));
    if (!text) return err_set(e, ERR_NOMEM, "no memory for the screen");
    fputs(text, stdout);
    free(text);
    return ERR_OK;
}

/* ---- on a terminal ---- */

static err_code resize(session *s, tui_term *t, err *e)
{
    tui_term_size(t, &s->width, &s->height);
    return s->has_app ? tui_app_resize(&s->app, s->width, s->height, e) : ERR_OK;
}

/* Opening as work of its own: the index of a long tape takes longer to read than a user wants to look at nothing. */
typedef struct opening { tui_tapes *tapes; err_code rc; err e; } opening;

static void open_tapes(void *ctx, const atomic_bool *cancel)
{
    opening *o = ctx;
    (void)cancel;
    o->rc = tui_tapes_open(o->tapes, &o->e);
}

static err_code show_page(session *s, tui_term *t, const char *what, const char *of, err *e)
{
    tui_canvas c = { .ascii = s->tools.ascii };
    char text[ERR_MSG_BYTES + 64];
    TRY(tui_canvas_resize(&c, s->width, s->height, e));
    snprintf(text, sizeof text, "%s %s\u2026", what, of);
    tui_put(&c, 1, 0, c.width - 1, TUI_STRONG, "sparktape");
    tui_put_lines(&c, (tui_rect){ 1, 2, c.width - 2, c.height - 3 }, TUI_PLAIN, text);
    tui_put(&c, 0, c.height - 1, c.width, TUI_KEYS, "q quit");
    tui_term_show(t, &c);
    tui_canvas_fini(&c);
    return ERR_OK;
}

/* A key before there is a screen; false in *go_on: the user left. */
static err_code early_key(session *s, tui_term *t, int wait_ms, bool *go_on, err *e)
{
    int32_t key;
    TRY(tui_term_key(t, wait_ms, &key, e));
    *go_on = key != 'q' && key != 'Q';
    return key == TUI_KEY_RESIZE ? resize(s, t, e) : ERR_OK;
}

static err_code open_in_background(session *s, tui_term *t, bool *go_on, err *e)
{
    enum { SHORT_MS = 5, SHOW_NS = 60000000 }; /* what opens sooner shows its first screen without a page before it */
    opening o = { .tapes = &s->now };
    tui_work *work;
    uint64_t start = clock_ns();
    err_code rc = ERR_OK;
    bool shown = false;
    TRY(tui_work_begin(true, open_tapes, &o, &work, e));
    while (rc == ERR_OK && *go_on && !tui_work_done(work)) {
        if (!shown && clock_ns() - start > SHOW_NS) {
            rc = show_page(s, t, "reading the index of", s->path[0], e);
            shown = true;
        }
        if (rc == ERR_OK) rc = early_key(s, t, SHORT_MS, go_on, e);
    }
    tui_work_end(work);
    return rc != ERR_OK ? rc : o.rc == ERR_OK ? ERR_OK : err_set(e, o.rc, "%s", o.e.msg);
}

/* Followed, a tape may not be there yet, or not even its head: it is tried again. */
static err_code open_when_there(session *s, tui_term *t, bool follow, bool *go_on, err *e)
{
    enum { AGAIN_MS = 400 };
    err_code rc = open_in_background(s, t, go_on, e);
    while (rc != ERR_OK && follow && *go_on && tui_tapes_may_come(&s->now)) {
        TRY(show_page(s, t, "waiting:", e->msg, e));
        TRY(early_key(s, t, AGAIN_MS, go_on, e));
        rc = *go_on ? open_in_background(s, t, go_on, e) : ERR_OK;
    }
    return rc;
}

static err_code take_key(session *s, tui_term *t, int32_t key, bool *on, err *e)
{
    if (key == TUI_KEY_RESIZE) return resize(s, t, e);
    if (key == TUI_KEY_CLICK) tui_app_click(&s->app, tui_term_click(t));
    else if (key != TUI_KEY_NONE) *on = tui_app_key(&s->app, key);
    return ERR_OK;
}

/* Takes key, and what has come of the same one since it was drawn last: a key held down must not run on when it is let go.
 * *next: another key that came behind them. */
static err_code take_keys(session *s, tui_term *t, int32_t key, int32_t *next, bool *on, err *e)
{
    enum { UNDRAWN_NS = 30000000 };
    uint64_t start = clock_ns();
    do {
        TRY(take_key(s, t, key, on, e));
        TRY(tui_term_key(t, 0, next, e));
    } while (*on && *next == key && key != TUI_KEY_NONE && clock_ns() - start < UNDRAWN_NS);
    return ERR_OK;
}

/* The loop: the only place that draws. While something works it wakes to show how far that is. */
static err_code loop(session *s, tui_term *t, err *e)
{
    enum { WORKING_MS = 50, FOLLOWING_MS = 200, FOREVER = -1 };
    int32_t key, next = TUI_KEY_NONE;
    for (bool on = true; on;) {
        TRY(tui_tapes_check(&s->now, e));
        /* Asked before drawing: work that ends in between is shown by one more turn, not by the next key. */
        bool working = tui_app_working(&s->app), following = tui_follow_tick(s->follow, &s->app, &s->now);
        tui_term_mouse(t, s->app.mouse);
        tui_term_show(t, tui_app_draw(&s->app));
        if (s->app.copied[0]) tui_term_copy(t, s->app.copied);
        s->app.copied[0] = 0;
        working = tui_app_working(&s->app) || working; /* a screen may have asked for something while it was drawn */
        key = next;
        next = TUI_KEY_NONE;
        if (key == TUI_KEY_NONE)
            TRY(tui_term_key(t, working ? WORKING_MS : following ? FOLLOWING_MS : FOREVER, &key, e));
        TRY(tui_tapes_check(&s->now, e));
        if (key != TUI_KEY_NONE) TRY(take_keys(s, t, key, &next, &on, e));
    }
    return ERR_OK;
}

/* A signal ends the process: nothing of the session goes on, or is left. */
static void on_ending(void)
{
    tui_command_abandon();
    tui_export_abandon();
}

static err_code live(session *s, const words *w, const cli_common *common, err *e)
{
    tui_term *t;
    bool go_on = true, replayed = w->against.count > 0;
    if (replayed) TRY(open_all(s, w, common, e)); /* with its line of progress, before the terminal is another */
    TRY(tui_term_open(cli_color(common) && !s->config.no_color, on_ending, &t, e));
    err_code rc = resize(s, t, e);
    if (rc == ERR_OK && !replayed) rc = open_when_there(s, t, w->follow, &go_on, e);
    if (rc == ERR_OK && go_on) rc = make_app(s, w, e);
    if (rc == ERR_OK && go_on) rc = tui_follow_open(&s->now, !replayed, &s->follow, e);
    if (rc == ERR_OK && go_on) rc = loop(s, t, e);
    tui_term_close(t);
    return rc;
}

static err_code browse(session *s, const words *w, const cli_common *common, const cli_args *args, err *e)
{
    bool utf8 = setlocale(LC_CTYPE, "") && strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
    TRY(tui_config_read(w->config, &s->config, e));
    TRY(check_words(s, w, args, e));
    ssize_t n = readlink("/proc/self/exe", s->program, sizeof s->program - 1);
    s->tools = (tui_tools){ .checkpoint = w->model, .program = n > 0 ? s->program : NULL, .threaded = !w->keys,
                            .ascii = w->ascii || s->config.ascii || !utf8 };
    for (int i = 0; i < args->count; i++) s->path[i] = s->now.path[i] = args->item[i];
    s->now.n_paths = args->count;
    return w->keys ? play(s, w, common, e) : live(s, w, common, e);
}

static void list_keys(void)
{
    char keys[64];
    const char *help = "";
    for (size_t i = 0; i < tui_bindings(); i++) {
        const tui_binding *b = tui_binding_at(i);
        char text[16];
        keys[0] = 0;
        for (int k = 0; k < TUI_BINDING_KEYS && b->key[k]; k++)
            snprintf(keys + strlen(keys), sizeof keys - strlen(keys), "%s%s", k ? " " : "", tui_key_text(b->key[k], text));
        if (b->help) help = b->help;
        printf("%-20s %-12s %s\n", b->name, keys, help);
    }
}

static err_code run(const cli_command *self, int argc, char **argv, int *exit_status, err *e)
{
    words w = { 0 };
    cli_common common;
    cli_args args;
    session s = { 0 };
    *exit_status = 0;
    TRY(cli_parse(self, argc, argv, &w, &common, &args, e));
    if (common.help) {
        cli_help(self);
        return ERR_OK;
    }
    if (w.list_keys) {
        TRY(tui_config_read(w.config, &s.config, e));
        list_keys();
        return ERR_OK;
    }
    err_code rc = browse(&s, &w, &common, &args, e);
    if (rc == ERR_OK && s.has_app && s.tools.threaded && tui_app_working(&s.app)) {
        /* A round being compared or judged may take long, and nobody waits for it any more: the process ends without it. */
        tui_app_leave(&s.app);
        fflush(stdout);
        _exit(*exit_status);
    }
    if (s.has_app) tui_app_fini(&s.app);
    tui_follow_close(s.follow);
    tui_tapes_close(&s.now);
    free(s.keys);
    return rc;
}

const cli_command CMD_BROWSE = { "browse", "[T] [OTHER..]",
                                "looks through a tape, or several side by side, in the terminal",
                                 OPTIONS, (int)COUNT_OF(OPTIONS), run };
