#include "tui/follow.h"

#include "base/clock.h"
#include "base/mem.h"

#include <unistd.h>

/* ---- the tapes ---- */

err_code tui_tapes_open_files(tui_tapes *t, err *e)
{
    char part[1024];
    for (; t->n < t->n_paths; t->n++) {
        const char *path = t->path[t->n];
        snprintf(part, sizeof part, "%s.part", path);
        bool growing = access(path, F_OK) != 0 && access(part, F_OK) == 0;
        TRY(fmt_tape_open(growing ? part : path, &t->tape[t->n], e));
    }
    return ERR_OK;
}

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

struct tui_follow {
    tui_tapes next;
    bool grows;
    tui_work *work;
    bool fresh;        /* the work's until it is done: next holds rounds that are not shown */
    size_t n_shown;    /* records of all tapes that are shown */
    uint64_t last_ns;
    err_code rc;
    err e;
};

err_code tui_follow_open(const char *const *paths, int n, tui_follow **out, err *e)
{
    *out = mem_alloc(1, sizeof **out);
    if (!*out) return err_set(e, ERR_NOMEM, "no memory to follow");
    (*out)->grows = paths != NULL;
    for (int i = 0; paths && i < n; i++) (*out)->next.path[i] = paths[i];
    (*out)->next.n_paths = n;
    return ERR_OK;
}

void tui_follow_close(tui_follow *f)
{
    if (!f) return;
    tui_work_end(f->work);
    tui_tapes_close(&f->next);
    free(f);
}

static size_t records_of(const tui_tapes *t)
{
    size_t n = 0;
    for (int i = 0; i < t->n; i++) n += fmt_tape_count(t->tape[i]);
    return n;
}

/* Lets the set grow, and arranges it if it did. */
static void grow(void *ctx, const atomic_bool *cancel)
{
    tui_follow *f = ctx;
    tui_tapes *t = &f->next;
    (void)cancel;
    tui_arms_fini(&t->arms);
    f->rc = tui_tapes_open_files(t, &f->e);
    for (int i = 0; f->rc == ERR_OK && i < t->n; i++) {
        size_t n_new;
        f->rc = fmt_tape_poll(t->tape[i], &n_new, &f->e);
    }
    if (f->rc != ERR_OK || records_of(t) == f->n_shown) return;
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
    if (clock_ns() - f->last_ns < POLL_NS) return true;
    f->last_ns = clock_ns();
    f->n_shown = records_of(now);
    if (tui_work_begin(true, grow, f, &f->work, &f->e) != ERR_OK) app->follow = false;
    return true;
}
