/* Matrix: every arm against every other, and each arm's ranks among themselves. */
#include "tui/app.h"

#include "base/mem.h"

#include <math.h>

/* What a comparison amounts to. */
typedef struct total {
    int32_t n_done;       /* rounds that are in it */
    int32_t n_blocks, n_exact, first_round, first_value;
    double kl;            /* NaN: no logits */
    bool known;
} total;

/* Replicated values of one arm on all its ranks. */
typedef struct ranks { int64_t n, n_differ; int32_t n_ranks, round; char name[FMT_TAPE_NAME_BYTES]; } ranks;

typedef struct matrix {
    total total[TUI_ARMS_MAX][TUI_ARMS_MAX]; /* [i][j], i < j */
    ranks ranks[TUI_ARMS_MAX];               /* the work's until it is done */
    tui_arms *arms;                          /* whose these are */
    tui_work *work;
    tui_list row;                            /* the cursor */
    int32_t column, left;
} matrix;

enum { LABEL = 17, CELL = 19, CELL_LINES = 3, DETAIL = 4 };

/* Compares every rank's copy with rank 0's by what the index knows, no payload. */
static void compare_ranks(void *ctx, const atomic_bool *cancel)
{
    matrix *s = ctx;
    for (int arm = 0; arm < s->arms->n; arm++) {
        ranks *x = &s->ranks[arm];
        const fmt_tape *t = s->arms->tape[arm];
        *x = (ranks){ .n_ranks = 1 };
        if (json_integer_value(json_object_get(json_object_get(fmt_tape_head(t), "identity"), "tp")) == 1) continue;
        for (size_t i = 0; i < fmt_tape_count(t) && !atomic_load(cancel); i++) {
            fmt_tape_record r, first;
            fmt_tape_at(t, i, &r);
            if (r.n_ranks > x->n_ranks) x->n_ranks = r.n_ranks;
            if (r.place != FMT_PLACE_REPLICATED || r.key.rank < 1) continue;
            fmt_tape_key key = r.key;
            key.rank = 0;
            int64_t at = fmt_tape_find(t, &key);
            if (at < 0) continue;
            fmt_tape_at(t, (size_t)at, &first);
            x->n++;
            if (first.hash == r.hash && first.digest == r.digest) continue;
            if (x->n_differ++ == 0) {
                x->round = r.key.round;
                snprintf(x->name, sizeof x->name, "%s", r.key.name);
            }
        }
    }
}

static void enter(tui_app *app, void *state)
{
    matrix *s = state;
    err e = { 0 };
    if (s->arms != app->arms) {
        s->arms = app->arms;
        memset(s->total, 0, sizeof s->total);
        if (tui_work_begin(tui_is_threaded(app), compare_ranks, s, &s->work, &e) != ERR_OK) tui_say(app, "%s", e.msg);
    }
    s->row.n = app->arms->n;
    s->row.cursor = app->a;
    s->column = app->b;
}

/* Brings the total of a pair up to date. */
static const total *total_of(tui_app *app, matrix *s, int i, int j)
{
    total *t = &s->total[i < j ? i : j][i < j ? j : i];
    tui_model *m = tui_arms_pair(app->arms, i, j);
    if (!m || (t->known && t->n_done == tui_model_rounds_done(m))) return t;
    *t = (total){ .n_done = tui_model_rounds_done(m), .first_round = -1, .kl = (double)NAN, .known = true };
    for (int32_t k = 0; k < tui_model_requests(m); k++) {
        const tui_request *r = tui_model_request(m, k);
        if (r->n_same >= 0) t->n_blocks++, t->n_exact += r->drafts_equal;
        if (!isnan(r->kl) && !(r->kl <= t->kl)) t->kl = r->kl;
        if (r->first_origin < 0 || t->first_round >= 0) continue;
        t->first_round = r->round;
        t->first_value = r->first_origin;
    }
    return t;
}

static const char *first_name(tui_app *app, int i, int j, const total *t)
{
    int32_t n;
    tui_model *m = tui_arms_pair(app->arms, i, j);
    if (!m || t->first_round < 0) return "";
    return tui_model_values(m, tui_model_find_round(m, t->first_round), &n)[t->first_value].name;
}

/* ---- drawing ---- */

static void draw_ranks(tui_app *app, const matrix *s, tui_rect r, int arm)
{
    const ranks *x = &s->ranks[arm];
    if (!tui_work_done(s->work)) tui_put(&app->canvas, r.x, r.y, r.width, TUI_DIM, "ranks\u2026");
    else if (x->n_ranks < 2) tui_put(&app->canvas, r.x, r.y, r.width, TUI_DIM, "one rank");
    else {
        tui_putf(&app->canvas, r.x, r.y, r.width, TUI_PLAIN, "%d ranks", x->n_ranks);
        if (x->n_differ == 0) tui_putf(&app->canvas, r.x, r.y + 1, r.width, TUI_EQUAL, "= %lld copies", (long long)x->n);
        else tui_putf(&app->canvas, r.x, r.y + 1, r.width, TUI_ORIGIN, "! %lld of %lld", (long long)x->n_differ,
                      (long long)x->n);
        if (x->n_differ) tui_putf(&app->canvas, r.x, r.y + 2, r.width, TUI_ORIGIN, "r%d %s", x->round, x->name);
    }
}

static void draw_cell(tui_app *app, matrix *s, tui_rect r, int i, int j)
{
    char number[32];
    if (i == j) {
        draw_ranks(app, s, r, i);
        return;
    }
    const total *t = total_of(app, s, i, j);
    tui_model *m = tui_arms_pair(app->arms, i, j);
    if (!m || t->n_done == 0) {
        tui_put(&app->canvas, r.x, r.y, r.width, TUI_DIM, app->arms->failed.code ? "failed" : "\u2026");
        return;
    }
    bool exact = t->n_exact == t->n_blocks;
    double share = t->n_blocks ? 100.0 * t->n_exact / t->n_blocks : 0;
    tui_putf(&app->canvas, r.x, r.y, r.width, exact ? TUI_EQUAL : TUI_DIFFERS, "%s %d/%d %.1f %%", exact ? "=" : "\u2260",
             t->n_exact, t->n_blocks, share);
    if (!isnan(t->kl)) tui_putf(&app->canvas, r.x, r.y + 1, r.width, TUI_PLAIN, "KL %s", tui_number(t->kl, 9, number));
    if (t->first_round >= 0)
        tui_putf(&app->canvas, r.x, r.y + 2, r.width, TUI_ORIGIN, "o r%d %s", t->first_round, first_name(app, i, j, t));
}

/* The chosen pair in words. */
static void draw_detail(tui_app *app, matrix *s, tui_rect r)
{
    int i = s->row.cursor, j = s->column;
    char number[32];
    const ranks *x = &s->ranks[i];
    tui_canvas *c = &app->canvas;
    if (i == j) {
        tui_putf(c, r.x + 1, r.y, r.width - 1, TUI_PLAIN, "%c %s: %d rank%s", 'A' + i, tui_arms_name(app->arms, i),
                 tui_work_done(s->work) ? x->n_ranks : 0, x->n_ranks == 1 ? "" : "s");
        if (tui_work_done(s->work) && x->n_ranks > 1)
            tui_putf(c, r.x + 1, r.y + 1, r.width - 1, TUI_PLAIN,
                     "%lld replicated copies, %lld that differ from rank 0's%s%s",
                     (long long)x->n, (long long)x->n_differ, x->n_differ ? ", the first " : "", x->name);
        return;
    }
    const total *t = total_of(app, s, i, j);
    tui_model *m = tui_arms_pair(app->arms, i, j);
    tui_putf(c, r.x + 1, r.y, r.width - 1, TUI_STRONG, "%c %s against %c %s", 'A' + i, tui_arms_name(app->arms, i), 'A' + j,
             tui_arms_name(app->arms, j));
    if (!m) return;
    tui_putf(c, r.x + 1, r.y + 1, r.width - 1, TUI_PLAIN,
             "%d of %d rounds compared: %d of %d blocks draft the same tokens; largest KL %s",
             t->n_done, tui_model_rounds(m), t->n_exact, t->n_blocks,
             isnan(t->kl) ? "unknown" : tui_number(t->kl, 9, number));
    if (t->first_round >= 0)
        tui_putf(c, r.x + 1, r.y + 2, r.width - 1, TUI_PLAIN, "first origin: round %d, %s", t->first_round,
                 first_name(app, i, j, t));
    tui_put(c, r.x + 1, r.y + 3, r.width - 1, TUI_DIM, "Enter makes these two A and B of the other screens");
}

static void draw(tui_app *app, void *state, tui_rect body)
{
    matrix *s = state;
    tui_canvas *c = &app->canvas;
    int n = app->arms->n;
    int32_t shown = (body.width - LABEL) / CELL, lines = (body.height - 1 - DETAIL) / CELL_LINES;
    if (s->arms != app->arms) enter(app, s);
    app->page = lines;
    tui_list_fit(&s->row, lines);
    if (s->column < s->left) s->left = s->column;
    if (s->column >= s->left + shown) s->left = s->column - shown + 1;
    for (int32_t x = 0; x < shown && s->left + x < n; x++)
        tui_putf(c, body.x + LABEL + x * CELL, body.y, CELL - 1, TUI_STRONG, "%c %s", 'A' + s->left + x,
                 tui_arms_name(app->arms, s->left + x));
    for (int32_t y = 0; y < lines && s->row.top + y < n; y++) {
        int i = s->row.top + y;
        int32_t at = body.y + 1 + y * CELL_LINES;
        tui_putf(c, body.x + 1, at, LABEL - 2, TUI_STRONG, "%c %s", 'A' + i, tui_arms_name(app->arms, i));
        for (int32_t x = 0; x < shown && s->left + x < n; x++) {
            int j = s->left + x;
            tui_rect r = { body.x + LABEL + x * CELL, at, CELL - 1, CELL_LINES };
            draw_cell(app, s, r, i, j);
            if (i == s->row.cursor && j == s->column) {
                tui_put(c, r.x - 1, r.y, 1, TUI_PLAIN, ">");
                tui_mark(c, (tui_rect){ r.x - 1, r.y, r.width, 1 }, TUI_SELECTED);
            }
        }
    }
    draw_detail(app, s, (tui_rect){ body.x, body.y + body.height - DETAIL, body.width, DETAIL });
}

static tui_reaction act(tui_app *app, void *state, tui_action action)
{
    matrix *s = state;
    if (tui_list_move(&s->row, action, 1)) return (tui_reaction){ 0 };
    if (action == TUI_DO_LEFT && s->column > 0) s->column--;
    if (action == TUI_DO_RIGHT && s->column + 1 < app->arms->n) s->column++;
    if (action == TUI_DO_OPEN && s->row.cursor != s->column) {
        tui_use_pair(app, s->row.cursor, s->column);
        return (tui_reaction){ .open = TUI_ROUNDS };
    }
    return (tui_reaction){ 0 };
}

static void csv(tui_app *app, void *state, tui_text *out)
{
    matrix *s = state;
    tui_text_addf(out, "a,b,rounds,blocks,exact,kl,first_round,first_origin\n");
    for (int i = 0; i < app->arms->n; i++)
        for (int j = i + 1; j < app->arms->n; j++) {
            const total *t = total_of(app, s, i, j);
            tui_text_csv(out, tui_arms_name(app->arms, i), false);
            tui_text_csv(out, tui_arms_name(app->arms, j), false);
            tui_text_addf(out, "%d,%d,%d,", t->n_done, t->n_blocks, t->n_exact);
            if (!isnan(t->kl)) tui_text_addf(out, "%.9g", t->kl);
            if (t->first_round >= 0) tui_text_addf(out, ",%d,", t->first_round);
            else tui_text_addf(out, ",,");
            tui_text_csv(out, first_name(app, i, j, t), true);
        }
}

static void drop(void *state)
{
    matrix *s = state;
    tui_work_cancel(s->work);
    tui_work_end(s->work);
    s->work = NULL;
    s->arms = NULL;
}

const tui_screen TUI_SCREEN_MATRIX = { "Matrix", TUI_ON_MATRIX, sizeof(matrix), enter, draw, act, NULL, csv, drop,
                                        drop };
