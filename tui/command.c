#include "tui/command.h"

#include "base/mem.h"
#include "tui/ref.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* ---- a running command ---- */

enum { OUTPUT_MAX = 16 << 20 }; /* what is kept of a command that does not stop talking */

struct tui_command {
    tui_work *work;
    pid_t pid;
    int fd, status;
    pthread_mutex_t lock; /* of text and reaped */
    bool reaped;
    tui_text text;
    size_t total;
};

static atomic_int running_group; /* of the command that runs, 0: none does */

void tui_command_abandon(void)
{
    int group = atomic_load(&running_group);
    if (group > 0) kill(-group, SIGTERM);
}

/* Reads until the command closes its output; cancelled, it is told to stop. */
static void read_output(void *ctx, const atomic_bool *cancel)
{
    tui_command *c = ctx;
    char buf[8192];
    int status;
    (void)cancel;
    for (ssize_t n; (n = read(c->fd, buf, sizeof buf)) > 0 || (n < 0 && errno == EINTR);) {
        if (n < 0) continue;
        pthread_mutex_lock(&c->lock);
        if (c->total < OUTPUT_MAX) tui_text_add(&c->text, buf, (size_t)n);
        c->total += (size_t)n;
        pthread_mutex_unlock(&c->lock);
    }
    siginfo_t info; /* ended, but its number is kept until nobody can signal it any more */
    while (waitid(P_PID, (id_t)c->pid, &info, WEXITED | WNOWAIT) < 0 && errno == EINTR) continue;
    pthread_mutex_lock(&c->lock);
    atomic_store(&running_group, 0);
    while (waitpid(c->pid, &status, 0) < 0 && errno == EINTR) continue;
    c->reaped = true;
    pthread_mutex_unlock(&c->lock);
    c->status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static err_code spawn(tui_command *c, const char *program, char *const *argv, err *e)
{
    int out[2];
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none, usual;
    if (pipe2(out, O_CLOEXEC) != 0) return err_set(e, ERR_SYSTEM, "no pipe for %s: %s", program, strerror(errno));
    sigemptyset(&none);
    sigfillset(&usual);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDERR_FILENO);
    posix_spawnattr_init(&attributes); /* a group of its own, so that ^C and ^Z are not for it; signals as usual */
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &usual);
    int failure = posix_spawn(&c->pid, program, &actions, &attributes, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    close(out[1]);
    c->fd = out[0];
    if (!failure) return ERR_OK;
    close(out[0]);
    return err_set(e, ERR_SYSTEM, "%s cannot be run: %s", program, strerror(failure));
}

err_code tui_command_run(const char *program, const char *const *argv, bool threaded, tui_command **out, err *e)
{
    *out = NULL;
    tui_command *c = mem_alloc(1, sizeof *c);
    if (!c) return err_set(e, ERR_NOMEM, "no memory for a command");
    c->status = -1;
    pthread_mutex_init(&c->lock, NULL);
    err_code rc = spawn(c, program, (char *const *)(uintptr_t)argv, e);
    if (rc == ERR_OK) {
        atomic_store(&running_group, c->pid);
        rc = tui_work_begin(threaded, read_output, c, &c->work, e);
        if (rc == ERR_OK) {
            *out = c;
            return ERR_OK;
        }
        atomic_store(&running_group, 0);
        kill(c->pid, SIGTERM);
        waitpid(c->pid, NULL, 0);
        close(c->fd);
    }
    pthread_mutex_destroy(&c->lock);
    free(c);
    return rc;
}

void tui_command_take(tui_command *c, tui_text *text)
{
    pthread_mutex_lock(&c->lock);
    if (c->text.n) tui_text_add(text, c->text.text, c->text.n);
    c->text.n = 0;
    pthread_mutex_unlock(&c->lock);
}

bool tui_command_done(tui_command *c, int *exit_status)
{
    bool done = tui_work_done(c->work);
    *exit_status = done ? c->status : -1;
    return done;
}

void tui_command_stop(tui_command *c)
{
    pthread_mutex_lock(&c->lock);
    if (!c->reaped) kill(-c->pid, SIGTERM); /* its group; not waited for yet, so the number is still its own */
    pthread_mutex_unlock(&c->lock);
}

void tui_command_end(tui_command *c)
{
    if (!c) return;
    tui_command_stop(c);
    tui_work_end(c->work);
    close(c->fd);
    tui_text_fini(&c->text);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

/* ---- the typed line ---- */

/* What a command without arguments is given. */
static const struct { const char *name, *arguments; } DEFAULTS[] = {
    { "show", "%y" }, { "info", "%t" }, { "ls", "%t" }, { "doctor", "%t" }, { "diff", "%a %b" },
    { "certify", "%t %m --rounds %r" },
    { "classify", "%t %m" }, { "accept", "%t %m" }, { "parity", "%t %m" }, { "attribute", "%t %m" },
    { "identity", "%m" }, { "manifest", "%m" }, { "verify", "%m" }, { "weights", "%m" },
};

enum { WORDS_MAX = 48 };
typedef struct words {
    int n;
    const char *word[WORDS_MAX + 2];
    char text[2 * TUI_REFERENCE_BYTES];
    size_t used;
    char about[8]; /* letters of the sides whose tapes stand in it, "B" */
} words;

/* A path as an argument: none that begins like an option. */
static const char *path_word(const char *path, char buf[TUI_REFERENCE_BYTES])
{
    if (!path || path[0] != '-') return path;
    snprintf(buf, TUI_REFERENCE_BYTES, "./%s", path);
    return buf;
}

/* What stands for %LETTER; NULL: there is none. */
static const char *stands_for(tui_app *app, char letter, char buf[TUI_REFERENCE_BYTES])
{
    const tui_request *r = tui_at_request(app);
    const cap_name *v = tui_at_value(app);
    const fmt_tape *b = tui_model_tape(app->model, TUI_B);
    switch (letter) {
    case 'a': return path_word(fmt_tape_path(tui_model_tape(app->model, TUI_A)), buf);
    case 'b': return b ? path_word(fmt_tape_path(b), buf) : NULL;
    case 't': return path_word(fmt_tape_path(tui_model_tape(app->model, tui_suspect(app))), buf);
    case 'm': return path_word(app->tools.checkpoint, buf);
    case 'v': return v ? v->name : NULL;
    case 'r': snprintf(buf, TUI_REFERENCE_BYTES, "%d", r ? r->round : 0); return r ? buf : NULL;
    case 's': snprintf(buf, TUI_REFERENCE_BYTES, r && r->slot >= 0 ? "%d" : "-", r ? r->slot : 0); return buf;
    case 'y':
        tui_choose_value(app);
        tui_reference(app, buf);
        return buf;
    default: return NULL;
    }
}

/* Notes whose tape %LETTER is. */
static void note_side(const tui_app *app, words *w, char letter)
{
    size_t n = strlen(w->about);
    int side = letter == 'a' ? TUI_A : letter == 'b' ? TUI_B : tui_suspect(app);
    if (!strchr("abt", letter) || n + 1 >= sizeof w->about || strchr(w->about, tui_letter(app, side))) return;
    w->about[n] = tui_letter(app, side);
    w->about[n + 1] = 0;
}

/* Splits at blanks, "a text" is one word, %LETTER stands for something. */
static bool add_words(tui_app *app, words *w, const char *line)
{
    for (const char *p = line + strspn(line, " "); *p; p += strspn(p, " ")) {
        char buf[TUI_REFERENCE_BYTES];
        bool quoted = *p == '"';
        size_t n = quoted ? strcspn(++p, "\"") : strcspn(p, " ");
        const char *text = p;
        size_t text_bytes = n;
        if (n == 2 && p[0] == '%') {
            text = stands_for(app, p[1], buf);
            if (!text) {
                tui_say(app, "%%%c: there is none (tapes %%a and %%b, the suspect %%t, the checkpoint %%m, see the manual)",
                        p[1]);
                return false;
            }
            text_bytes = strlen(text);
            note_side(app, w, p[1]);
        }
        if (w->n == WORDS_MAX || w->used + text_bytes + 1 > sizeof w->text) {
            tui_say(app, "the line is too long");
            return false;
        }
        w->word[w->n++] = w->text + w->used;
        memcpy(w->text + w->used, text, text_bytes);
        w->text[w->used + text_bytes] = 0;
        w->used += text_bytes + 1;
        p += n + (quoted && p[n] == '"');
    }
    return true;
}

static void run_line(tui_app *app, const char *line)
{
    words w = { .n = 1 };
    err e = { 0 };
    tui_command *c;
    size_t name_bytes = strcspn(line, " ");
    const char *rest = line + name_bytes + strspn(line + name_bytes, " ");
    char name[32];
    snprintf(name, sizeof name, "%.*s", (int)name_bytes, line);
    if (!app->tools.program) {
        tui_say(app, "no program to run '%s' with", name);
        return;
    }
    if (!add_words(app, &w, name)) return;
    for (size_t i = 0; i < COUNT_OF(DEFAULTS) && (*rest == 0 || *rest == '-'); i++)
        if (strcmp(DEFAULTS[i].name, name) == 0 && !add_words(app, &w, DEFAULTS[i].arguments)) return;
    if (!add_words(app, &w, rest)) return;
    w.word[0] = app->tools.program;
    if (tui_command_run(app->tools.program, w.word, tui_is_threaded(app), &c, &e) != ERR_OK) tui_say(app, "%s", e.msg);
    else tui_pager_show(app, tui_model_is_pair(app->model) ? w.about : "", &w.word[1], c);
}

void tui_command_line(tui_app *app, const char *line)
{
    tui_ref ref;
    err e = { 0 };
    line += strspn(line, " ");
    if (*line == 0) return;
    if (strcmp(line, "q") == 0 || strcmp(line, "quit") == 0) app->quit = true;
    else if (strcmp(line, "help") == 0) app->help = 1;
    else if (tui_ref_parse(line, &ref, &e) == ERR_OK) {
        if (tui_app_go(app, line, &e) != ERR_OK) tui_say(app, "%s", e.msg);
    } else run_line(app, line);
}

void tui_attribute(tui_app *app)
{
    char line[256];
    const tui_request *r = tui_at_request(app);
    tui_choose_value(app);
    const cap_name *v = tui_at_value(app);
    tui_facts facts;
    if (!r || !v) return;
    bool known = tui_model_facts_any(app->model, v, &facts);
    bool excess = known && tui_is_float(facts.tensor.dtype) && v->slot == FMT_TAPE_NO_SLOT && tui_model_op(app->model, v);
    snprintf(line, sizeof line, "attribute --metric %s%s --rounds %d", excess ? "excess:" : "drafts", excess ? v->name : "",
             r->round);
    if (app->tools.program && app->tools.checkpoint) tui_command_line(app, line);
    else
        tui_say(app, "without --model, in a shell: sparktape attribute %s MODEL%s",
                fmt_tape_path(tui_model_tape(app->model, tui_suspect(app))),
                line + strlen("attribute"));
}
