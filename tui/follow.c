#include "tui/follow.h"

#include "base/clock.h"
#include "base/mem.h"

#include <sys/stat.h>
#include <unistd.h>

/* ---- the tapes ---- */

enum { NAME_BYTES = 4096 + 8 }; /* the longest path that the system opens, and ".part" */

/* PATH, or PATH.part where only that is there. Into buf; returns buf. */
static const char *name_of(const char *path, char buf[NAME_BYTES])
{
    snprintf(buf, NAME_BYTES, "%s.part", path);
    if (access(path, F_OK) == 0 || access(buf, F_OK) != 0) snprintf(buf, NAME_BYTES, "%s", path);
    return buf;
}

/* All zero: nothing is there. */
static tui_file file_of(const char *path)
{
    char name[NAME_BYTES];
    struct stat st;
    if (stat(name_of(path, name), &st) != 0) return (tui_file){ 0 };
    return (tui_file){ st.st_dev, st.st_ino, st.st_size, st.st_mtim };
}

static bool is_same_file(const tui_file *a, const tui_file *b) { return a->device == b->device && a->inode == b->inode; }

err_code tui_tapes_open_files(tui_tapes *t, err *e)
{
    char name[NAME_BYTES];
    for (; t->n < t->n_paths; t->n++) {
        TRY(fmt_tape_open(name_of(t->path[t->n], name), &t->tape[t->n], e));
        t->file[t->n] = file_of(t->path[t->n]); /* behind it: a tape that was finished just now has its last byte */
    }
    return ERR_OK;
}

err_code tui_tapes_check(const tui_tapes *t, err *e)
{
    for (int i = 0; i < t->n_paths && i < t->n; i++) {
        tui_file now = file_of(t->path[i]);
        const tui_file *was = &t->file[i];
        if (!is_same_file(&now, was)) continue; /* the open one has lost its name, and is whole */
        bool written = now.changed.tv_sec != was->changed.tv_sec || now.changed.tv_nsec != was->changed.tv_nsec;
        if (now.bytes < was->bytes || (written && fmt_tape_finished(t->tape[i])))
            return err_set(e, ERR_INPUT, "%s: cut or written to while it was looked at: open it again", t->path[i]);
    }
    return ERR_OK;
}

bool tui_tapes_may_come(const tui_tapes *t) { return t->n < t->n_paths && access(t->path[t->n], F_OK) != 0; }

err_code tui_tapes_open(tui_tapes *t, err *e)
{
    const fmt_tape *tape[TUI_ARMS_MAX];
    TRY(tui_tapes_open_files(t, e));
    for (int i = 0; i < t->n; i++) tape[i] = t->tape[i];
    return tui_arms_init(&t->arms, tape, t->n, e);
}

void tui_tapes_close(tui_tapes *t)
{
    tui_arms_fini(&t->arms);
    for (int i = 0; i < t->n; i++) fmt_tape_close(t->tape[i]);
    t->n = 0;
}

/* ---- following ---- */

enum { POLL_NS = 400000000 };

/* What is shown of all tapes together. */
typedef struct extent { size_t records; bool finished; } extent;

struct tui_follow {
    tui_tapes next;
    tui_file file[TUI_ARMS_MAX]; /* of the paths, when the first set was opened */
    bool grows;
    tui_work *work;
    bool fresh;        /* the work's until it is done: next holds more than is shown */
    extent shown;
    uint64_t last_ns;
    err_code rc;
    err e;
};

err_code tui_follow_open(const tui_tapes *now, bool grows, tui_follow **out, err *e)
{
    tui_follow *f = *out = mem_alloc(1, sizeof **out);
    if (!f) return err_set(e, ERR_NOMEM, "no memory to follow");
    f->grows = grows;
    f->next.n_paths = now->n_paths;
    for (int i = 0; i < now->n_paths; i++) {
        f->next.path[i] = now->path[i];
        f->file[i] = now->file[i];
    }
    return ERR_OK;
}

void tui_follow_close(tui_follow *f)
{
    if (!f) return;
    tui_work_end(f->work);
    tui_tapes_close(&f->next);
    free(f);
}

static extent extent_of(const tui_tapes *t)
{
    extent x = { 0, true };
    for (int i = 0; i < t->n; i++) {
        x.records += fmt_tape_count(t->tape[i]);
        x.finished = x.finished && fmt_tape_finished(t->tape[i]);
    }
    return x;
}

/* A finished tape is renamed and stays what it was; a new recording of the same name is another file. */
static err_code check_names(const tui_follow *f, err *e)
{
    for (int i = 0; i < f->next.n_paths; i++) {
        tui_file now = file_of(f->next.path[i]);
        if (!is_same_file(&now, &f->file[i]))
            return err_set(e, ERR_INPUT, "%s: %s: no longer following", f->next.path[i],
                           now.inode ? "another file has this name now" : "the file is gone");
    }
    return ERR_OK;
}

/* Lets the set grow, and arranges it if it did. */
static void grow(void *ctx, const atomic_bool *cancel)
{
    tui_follow *f = ctx;
    tui_tapes *t = &f->next;
    (void)cancel;
    tui_arms_fini(&t->arms);
    f->rc = check_names(f, &f->e);
    if (f->rc == ERR_OK) f->rc = tui_tapes_open_files(t, &f->e);
    for (int i = 0; f->rc == ERR_OK && i < t->n; i++) {
        size_t n_new;
        f->rc = fmt_tape_poll(t->tape[i], &n_new, &f->e);
        t->file[i] = file_of(t->path[i]);
    }
    if (f->rc != ERR_OK) return;
    extent x = extent_of(t);
    if (x.records == f->shown.records && x.finished == f->shown.finished) return;
    f->rc = tui_tapes_open(t, &f->e);
    f->fresh = f->rc == ERR_OK;
}

static void show(tui_follow *f, tui_app *app, tui_tapes *now)
{
    tui_tapes old = *now;
    bool paused = app->arms->paused;
    err e = { 0 };
    f->fresh = false;
    tui_arms_adopt(&f->next.arms, &now->arms);
    *now = f->next;
    now->arms.paused = paused;
    tui_app_replace(app, &now->arms);
    if (tui_arms_start(&now->arms, true, &e) != ERR_OK) tui_say(app, "%s", e.msg);
    f->next = old; /* with its arms, which the next work closes: that may wait for a round being compared */
}

bool tui_follow_tick(tui_follow *f, tui_app *app, tui_tapes *now)
{
    if (!f || !app->follow) return false;
    if (!f->grows) {
        app->follow = false;
        tui_say(app, "a replay does not grow: nothing to follow");
        return false;
    }
    if (f->work && !tui_work_done(f->work)) return true;
    if (f->work) {
        tui_work_end(f->work);
        f->work = NULL;
        if (f->rc != ERR_OK) {
            app->follow = false;
            tui_say(app, "%s", f->e.msg);
            return false;
        }
    }
    if (f->fresh) {
        if (tui_work_running() == 0) show(f, app, now); /* else something still reads the old set */
        return true;
    }
    f->shown = extent_of(now);
    if (f->shown.finished) {
        app->follow = false;
        tui_say(app, "finished: no more rounds come, no longer following");
        return false;
    }
    if (clock_ns() - f->last_ns < POLL_NS) return true;
    f->last_ns = clock_ns();
    if (tui_work_begin(true, grow, f, &f->work, &f->e) != ERR_OK) {
        app->follow = false;
        tui_say(app, "%s", f->e.msg);
        return false;
    }
    return true;
}
