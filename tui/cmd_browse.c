#include "tui/commands.h"

#include "base/mem.h"
#include "engine/identity.h"
#include "replay/replay.h"
#include "tui/app.h"
#include "tui/term.h"

#include <langinfo.h>
#include <locale.h>
#include <unistd.h>

typedef struct words {
    const char *against, *model, *at, *keys, *size;
    bool ascii;
} words;

static const cli_option OPTIONS[] = {
    { "--against", "ARM", "compare with a replay of T by this arm", CLI_STR, offsetof(words, against) },
    { "--model", "MODEL", "the checkpoint of --against", CLI_IN, offsetof(words, model) },
    { "--at", "REF", "start at ROUND[/SLOT[/VALUE[INDEX]]], SLOT '-' for none; TAPE: may stand in front", CLI_STR,
      offsetof(words, at) },
    { "--keys", "FILE", "play recorded keys (Enter Down q /text ...), print the final screen; all is compared first",
      CLI_STR, offsetof(words, keys) },
    { "--size", "WxH", "of the printed screen (default 80x24)", CLI_STR, offsetof(words, size) },
    { "--ascii", NULL, "ASCII only (default: as the locale says)", CLI_FLAG, offsetof(words, ascii) },
};

/* Everything a session holds open. */
typedef struct session {
    fmt_tape *tape[TUI_SIDES];
    tui_model *model;
    tui_app app;
    int32_t width, height;
    int32_t *keys;
    size_t n_keys;
} session;

static err_code check_words(session *s, const words *w, int n_tapes, err *e)
{
    char rest;
    s->width = 80;
    s->height = 24;
    if (w->against && n_tapes > 1) return err_set(e, ERR_ARG, "--against: found a second tape, wanted one of the two");
    if (w->against && !w->model) return err_set(e, ERR_ARG, "--against: found no --model, wanted the checkpoint to replay");
    if (w->model && !w->against) return err_set(e, ERR_ARG, "--model: found no --against, wanted the arm to replay with");
    if (w->size && (sscanf(w->size, "%5dx%5d%c", &s->width, &s->height, &rest) != 2 || s->width < 20 || s->height < 5 ||
                    s->width > 1000 || s->height > 1000))
        return err_set(e, ERR_ARG, "--size: found '%s', wanted WxH, 20x5 to 1000x1000", w->size);
    if (w->size && !w->keys) return err_set(e, ERR_ARG, "--size: found no --keys; a terminal has its own size");
    if (w->keys) return tui_keys_read(w->keys, &s->keys, &s->n_keys, e);
    if (isatty(STDIN_FILENO) && isatty(STDOUT_FILENO)) return ERR_OK;
    return err_set(e, ERR_ARG, "found no terminal on standard input and output, wanted one, or --keys FILE");
}

/* Replays tape A into folder and opens the result. */
static err_code replay_into(session *s, const words *w, const cli_common *common, const char *path, err *e)
{
    eng_option_words run = { .arm = w->against };
    rpl_replay_options o = { .level = rpl_replay_level(s->tape[TUI_A]), .quiet = common->quiet };
    eng_weights *weights = NULL;
    json_t *identity = NULL;
    rpl_replay_words(s->tape[TUI_A], &run);
    err_code rc = eng_options_parse(&run, common->threads, &o.run, e);
    if (rc == ERR_OK) rc = eng_weights_open(w->model, common->quiet, &weights, e);
    if (rc == ERR_OK)
        rc = eng_identity_check(json_object_get(fmt_tape_head(s->tape[TUI_A]), "identity"), weights, e);
    if (rc == ERR_OK) identity = eng_identity(weights, &o.run);
    if (rc == ERR_OK && !identity) rc = err_set(e, ERR_NOMEM, "no memory for the identity");
    if (rc == ERR_OK) rc = rpl_replay_run(s->tape[TUI_A], weights, &o, identity, path, e);
    if (rc == ERR_OK) rc = fmt_tape_open(path, &s->tape[TUI_B], e);
    json_decref(identity);
    eng_weights_close(weights);
    return rc;
}

/* Side B by --against. The new tape has no name once it is open, so nothing is left however the session ends. */
static err_code open_replay(session *s, const words *w, const cli_common *common, err *e)
{
    const char *base = getenv("TMPDIR");
    char folder[512], path[600];
    snprintf(folder, sizeof folder, "%s/sparktape-XXXXXX", base && base[0] && strlen(base) < 400 ? base : "/tmp");
    if (!mkdtemp(folder)) return err_set(e, ERR_SYSTEM, "%s: a temporary folder cannot be made", folder);
    snprintf(path, sizeof path, "%s/%s.tape", folder, strchr(w->against, '/') ? "against" : w->against);
    err_code rc = replay_into(s, w, common, path, e);
    unlink(path);
    rmdir(folder);
    return rc;
}

/* Recorded keys: everything is compared first, so that the same keys always show the same screen. */
static err_code play(session *s, err *e)
{
    TRY(tui_model_finish(s->model, e));
    tui_app_draw(&s->app);
    for (size_t i = 0; i < s->n_keys && tui_app_key(&s->app, s->keys[i]); i++) tui_app_draw(&s->app);
    char *text = tui_canvas_text(tui_app_draw(&s->app));
    if (!text) return err_set(e, ERR_NOMEM, "no memory for the screen");
    fputs(text, stdout);
    free(text);
    return ERR_OK;
}

/* The loop: the only place that draws. While rounds are being compared it wakes to show how far that is. */
static err_code loop(session *s, tui_term *t, err *e)
{
    enum { WORKING_MS = 100, FOREVER = -1 };
    for (bool on = true; on;) {
        int32_t key;
        /* Asked before drawing: work that ends in between is shown by one more turn, not by the next key. */
        bool working = tui_model_is_working(s->model);
        tui_term_show(t, tui_app_draw(&s->app));
        TRY(tui_term_key(t, working ? WORKING_MS : FOREVER, &key, e));
        if (key == TUI_KEY_RESIZE) {
            tui_term_size(t, &s->width, &s->height);
            TRY(tui_app_resize(&s->app, s->width, s->height, e));
        } else {
            on = key == TUI_KEY_NONE || tui_app_key(&s->app, key);
        }
    }
    return ERR_OK;
}

static err_code live(session *s, bool color, err *e)
{
    tui_term *t;
    TRY(tui_model_start(s->model, e));
    TRY(tui_term_open(color, &t, e));
    tui_term_size(t, &s->width, &s->height);
    err_code rc = tui_app_resize(&s->app, s->width, s->height, e);
    if (rc == ERR_OK) rc = loop(s, t, e);
    tui_term_close(t);
    return rc;
}

static err_code browse(session *s, const words *w, const cli_common *common, const cli_args *args, err *e)
{
    bool utf8 = setlocale(LC_CTYPE, "") && strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
    TRY(check_words(s, w, args->count, e));
    TRY(fmt_tape_open(args->item[0], &s->tape[TUI_A], e));
    if (args->count > 1) TRY(fmt_tape_open(args->item[1], &s->tape[TUI_B], e));
    if (w->against) TRY(open_replay(s, w, common, e));
    TRY(tui_model_open(s->tape[TUI_A], s->tape[TUI_B], &s->model, e));
    TRY(tui_app_init(&s->app, s->model, s->width, s->height, w->ascii || !utf8, e));
    if (w->at) TRY(tui_app_go(&s->app, w->at, e));
    return w->keys ? play(s, e) : live(s, cli_color(common), e);
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
    err_code rc = browse(&s, &w, &common, &args, e);
    tui_app_fini(&s.app);
    tui_model_close(s.model);
    for (int side = TUI_A; side < TUI_SIDES; side++) fmt_tape_close(s.tape[side]);
    free(s.keys);
    return rc;
}

const cli_command CMD_BROWSE = { "browse", "T [OTHER]", "looks through a tape, or two side by side, in the terminal",
                                 OPTIONS, (int)COUNT_OF(OPTIONS), run };
