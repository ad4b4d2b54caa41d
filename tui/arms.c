#include "tui/arms.h"

#include "base/mem.h"

/* A pair being opened by work of its own. */
typedef struct tui_opening { const fmt_tape *tape[TUI_SIDES]; tui_model **place, *model; bool finish; err e; } tui_opening;

static tui_model **place(tui_arms *arms, int i, int j) { return i < j ? &arms->pair[i][j] : &arms->pair[j][i]; }

static err_code start_one(const tui_arms *arms, tui_model *m, err *e)
{
    if (!arms->threaded) return tui_model_finish(m, e);
    tui_model_pause(m, true);
    return tui_model_start(m, e);
}

err_code tui_arms_init(tui_arms *arms, const fmt_tape *const *tapes, int n, err *e)
{
    *arms = (tui_arms){ .n = n };
    err_code rc = ERR_OK;
    for (int i = 0; i < n; i++) arms->tape[i] = tapes[i];
    if (n == 1) rc = tui_model_open(tapes[0], NULL, &arms->pair[0][0], e);
    for (int j = 1; rc == ERR_OK && j < n; j++) rc = tui_model_open(tapes[0], tapes[j], &arms->pair[0][j], e);
    if (rc != ERR_OK) tui_arms_fini(arms);
    return rc;
}

void tui_arms_fini(tui_arms *arms)
{
    tui_work_end(arms->opening);
    if (arms->opened) tui_model_close(arms->opened->model);
    free(arms->opened);
    for (int i = 0; i < TUI_ARMS_MAX; i++)
        for (int j = 0; j < TUI_ARMS_MAX; j++) tui_model_close(arms->pair[i][j]);
    *arms = (tui_arms){ 0 };
}

err_code tui_arms_start(tui_arms *arms, bool threaded, err *e)
{
    arms->threaded = threaded;
    for (int i = 0; i < arms->n; i++)
        for (int j = 0; j < arms->n; j++)
            if (arms->pair[i][j]) TRY(start_one(arms, arms->pair[i][j], e));
    return ERR_OK;
}

static void open_pair(void *ctx, const atomic_bool *cancel)
{
    tui_opening *o = ctx;
    (void)cancel;
    err_code rc = tui_model_open(o->tape[TUI_A], o->tape[TUI_B], &o->model, &o->e);
    if (rc == ERR_OK && o->finish && tui_model_finish(o->model, &o->e) != ERR_OK) {
        tui_model_close(o->model);
        o->model = NULL;
    }
}

/* Takes over a pair that has been opened meanwhile. */
static void take_opened(tui_arms *arms)
{
    tui_opening *o = arms->opened;
    if (!o || !tui_work_done(arms->opening)) return;
    tui_work_end(arms->opening);
    arms->opening = NULL;
    arms->opened = NULL;
    *o->place = o->model;
    if (!o->model) arms->failed = o->e;
    else if (arms->threaded && start_one(arms, o->model, &arms->failed) != ERR_OK) {
        tui_model_close(o->model);
        *o->place = NULL;
    }
    free(o);
}

tui_model *tui_arms_pair(tui_arms *arms, int i, int j)
{
    tui_model **at = place(arms, i, j);
    take_opened(arms);
    if (*at || arms->opened || arms->failed.code != ERR_OK) return *at;
    arms->opened = mem_alloc(1, sizeof *arms->opened);
    if (!arms->opened) return NULL;
    *arms->opened = (tui_opening){ .tape = { arms->tape[i < j ? i : j], arms->tape[i < j ? j : i] }, .place = at,
                                   .finish = !arms->threaded };
    if (tui_work_begin(arms->threaded, open_pair, arms->opened, &arms->opening, &arms->failed) != ERR_OK) {
        free(arms->opened);
        arms->opened = NULL;
    }
    take_opened(arms);
    return *at;
}

tui_model *tui_arms_first(const tui_arms *arms, int j) { return arms->pair[0][j]; }

bool tui_arms_tick(tui_arms *arms, tui_model *shown)
{
    tui_model *turn = NULL;
    bool working = false;
    if (!arms->threaded) return false;
    take_opened(arms);
    if (!arms->paused && tui_model_rounds_done(shown) < tui_model_rounds(shown)) turn = shown;
    for (int i = 0; i < arms->n; i++)
        for (int j = i + 1; j < arms->n; j++) {
            tui_model *m = arms->pair[i][j];
            if (!m) continue;
            if (!turn && !arms->paused && tui_model_rounds_done(m) < tui_model_rounds(m)) turn = m;
            tui_model_pause(m, m != turn);
            working = working || tui_model_is_working(m);
        }
    return working || turn; /* the one whose turn it was may have ended meanwhile: then it is the next one's */
}

void tui_arms_adopt(tui_arms *arms, tui_arms *old)
{
    for (int i = 0; i < arms->n; i++)
        for (int j = i + 1; j < arms->n; j++)
            if (arms->pair[i][j] && old->pair[i][j]) tui_model_adopt(arms->pair[i][j], old->pair[i][j]);
}

const char *tui_arms_name(const tui_arms *arms, int i)
{
    const json_t *identity = json_object_get(fmt_tape_head(arms->tape[i]), "identity");
    const char *name = json_string_value(json_object_get(json_object_get(identity, "arm"), "name"));
    return name ? name : "?";
}
