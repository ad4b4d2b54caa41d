/* Rounds: a line for every slot of every round. */
#include "tui/rounds_lines.h"

#include <math.h>

static void follow_cursor(tui_app *app, tui_rounds *s)
{
    if (s->list.n == 0) return;
    int32_t request = s->line[s->list.cursor];
    if (request != app->at.request) app->at = (tui_place){ .request = request, .value = -1, .element = -1 };
}

static void enter(tui_app *app, void *state)
{
    tui_rounds *s = state;
    if (!s->line) s->sorted = ROUNDS_C_ROUND;
    tui_rounds_make(app, s);
    follow_cursor(app, s);
    tui_list_fit(&s->list, app->page);
}

/* ---- drawing ---- */

static int32_t draw_tape(tui_app *app, int side, tui_rect body, int32_t y)
{
    char identity[160];
    if (!tui_model_tape(app->model, side)) return y;
    const fmt_tape *t = tui_model_tape(app->model, side);
    const fmt_tape_fault *faults;
    tui_model_identity(app->model, side, identity, sizeof identity);
    const char *path = fmt_tape_path(t), *slash = strrchr(path, '/');
    int32_t x = body.x + tui_putf(&app->canvas, body.x, y, body.width, TUI_PLAIN, " %c %s  %s", tui_letter(app, side),
                                  slash ? slash + 1 : path, identity);
    if (fmt_tape_damage(t, &faults) > 0) tui_put(&app->canvas, x, y, body.width - x, TUI_WARN, "  damaged: see doctor");
    else if (!fmt_tape_finished(t)) tui_put(&app->canvas, x, y, body.width - x, TUI_WARN, "  unfinished");
    return y + 1;
}

/* What the certificate of one tape says of a round, and where it began. */
static void draw_judgement(tui_app *app, const tui_request *r, tui_rect body, int32_t y)
{
    const rpl_certificate *judged = tui_judgement(app, r);
    if (!judged) return;
    int32_t x = body.x + tui_putf(&app->canvas, body.x, y, body.width, TUI_PLAIN, " judged: %s, %lld of %lld illegal",
                                  rpl_certificate_verdict(judged), (long long)judged->n_illegal, (long long)judged->n);
    if (judged->n_origins == 0) return;
    const rpl_origin *o = &judged->origin[0];
    tui_putf(&app->canvas, x, y, body.x + body.width - x, TUI_ORIGIN, "; it started at %s%s%s", o->worst.value,
             o->cause[0] ? ": " : "", o->cause);
}

/* What the line under the cursor says in words: the lines above the keys. */
static void draw_detail(tui_app *app, const tui_rounds *s, tui_rect body, int32_t y)
{
    const tui_request *r = tui_at_request(app);
    char number[32], a[128], b[128];
    int32_t n;
    tui_canvas *c = &app->canvas;
    int32_t width = body.width;
    if (s->filter[0] || s->expr.n) {
        width /= 2;
        tui_putf(c, body.x + width, y, body.width - width, TUI_STRONG, " %d of %d lines: %s%s%s", s->list.n,
                 tui_model_requests(app->model), s->filter, s->filter[0] && s->expr.n ? ", " : "", s->expr.source);
    }
    if (!r || s->list.n == 0) return;
    const rpl_round *round = tui_model_result(app->model, r->round_index);
    tui_rounds_drafts(r, TUI_A, a, sizeof a);
    tui_rounds_drafts(r, TUI_B, b, sizeof b);
    if (!tui_model_is_pair(app->model)) snprintf(b, sizeof b, "-");
    tui_putf(c, body.x, y + 2, body.width, TUI_PLAIN, " drafts: %c %s  %c %s", tui_letter(app, TUI_A), a,
             tui_letter(app, TUI_B) == 'A' ? 'B' : tui_letter(app, TUI_B), b);
    if (!round) {
        tui_model_values(app->model, r->round_index, &n);
        tui_putf(c, body.x, y, width, TUI_PLAIN, " round %d: %s, %d values", r->round,
                 TUI_VERDICT[r->verdict].word, n);
        draw_judgement(app, r, body, y + 1);
        return;
    }
    int32_t x = tui_putf(c, body.x, y, width, TUI_PLAIN, " round %d: %s, %d of %d values equal", r->round,
                         TUI_VERDICT[r->verdict].word, round->n_equal, round->n_compared);
    if (round->n_values > round->n_compared)
        tui_putf(c, body.x + x, y, width - x, TUI_PLAIN, ", %d not compared", round->n_values - round->n_compared);
    bool inherited;
    const cap_name *values = tui_model_values(app->model, r->round_index, &n);
    const cap_name *origin = r->first_origin < 0 ? NULL : &values[r->first_origin];
    int side;
    const rpl_origin *cause = origin ? tui_any_origin_of(app, origin, &side, &inherited) : NULL;
    if (r->worst < 0) return;
    tui_putf(c, body.x, y + 1, body.width, TUI_PLAIN, " worst %s: relative L2 %s%s%s%s%s",
             tui_rounds_value(app, r, r->worst), tui_number(r->worst_rel_l2, 9, number),
             r->first_origin >= 0 ? "; it started at " : "",
             tui_rounds_value(app, r, r->first_origin), cause && cause->cause[0] ? ": " : "", cause ? cause->cause : "");
}

static void draw_line(tui_app *app, const tui_rounds *s, const tui_layout *l, tui_rect body, int32_t y, int32_t line)
{
    char cell[256];
    int32_t request = s->line[line];
    bool selected = line == s->list.cursor;
    tui_model_read_drafts(app->model, request);
    const tui_request *r = tui_model_request(app->model, request);
    for (tui_rounds_column c = ROUNDS_C_VERDICT; c < ROUNDS_C_COUNT; c++) {
        bool told = c == ROUNDS_C_VERDICT || c == ROUNDS_C_ORIGIN || c == ROUNDS_C_WORST;
        tui_rounds_cell(app, r, c, cell, sizeof cell);
        int style = c == ROUNDS_C_JUDGED ? (strstr(cell, "FAIL") ? TUI_ORIGIN : TUI_EQUAL)
                                         : told ? (int)TUI_VERDICT[r->verdict].style : TUI_PLAIN;
        tui_table_put(&app->canvas, TUI_ROUNDS_COLUMNS, (int)c, l, y, style, cell);
    }
    if (tui_is_marked(app, r)) tui_put(&app->canvas, body.x + 1, y, 1, TUI_STRONG, "*");
    if (selected) {
        tui_put(&app->canvas, body.x, y, 1, TUI_PLAIN, ">");
        tui_mark(&app->canvas, (tui_rect){ body.x, y, body.width, 1 }, TUI_SELECTED);
    }
}

static void draw(tui_app *app, void *state, tui_rect body)
{
    enum { DETAIL_LINES = 3, MARGIN = 2 };
    tui_rounds *s = state;
    int32_t y = body.y, bottom = body.y + body.height - DETAIL_LINES;
    bool chosen = s->filter[0] || s->expr.n || s->sorted != ROUNDS_C_ROUND;
    if (s->n_done != tui_model_rounds_done(app->model) && chosen) tui_rounds_make(app, s);
    tui_column columns[ROUNDS_C_COUNT];
    char titles[TUI_SIDES][16];
    memcpy(columns, TUI_ROUNDS_COLUMNS, sizeof columns);
    for (int side = TUI_A; side < TUI_SIDES; side++)
        snprintf(titles[side], sizeof titles[side], "drafts %c", tui_letter(app, side));
    columns[ROUNDS_C_DRAFTS_A].title = titles[TUI_A];
    columns[ROUNDS_C_DRAFTS_B].title = titles[TUI_B];
    columns[ROUNDS_C_ARMS].pair = true;
    if (app->arms->n < 3) columns[ROUNDS_C_ARMS].width = columns[ROUNDS_C_ARMS].width_max = 0;
    if (!tui_judge_any(app->judge)) columns[ROUNDS_C_JUDGED].width = columns[ROUNDS_C_JUDGED].width_max = 0;
    for (int side = TUI_A; side < TUI_SIDES; side++) y = draw_tape(app, side, body, y);
    bool pair = tui_model_is_pair(app->model);
    tui_layout l = tui_layout_of(columns, ROUNDS_C_COUNT, body.x + MARGIN, body.width - MARGIN, pair);
    tui_table_head(&app->canvas, columns, ROUNDS_C_COUNT, &l, y++, s->sorted, s->falling);
    app->page = bottom - y;
    app->list = &s->list;
    app->list_y = y;
    tui_list_fit(&s->list, app->page);
    for (int32_t i = s->list.top; i < s->list.n && i < s->list.top + app->page; i++)
        draw_line(app, s, &l, body, y + i - s->list.top, i);
    const char *none = s->filter[0] ? "no line has this text" : s->expr.n ? "no line passes" : "the tape holds no round";
    if (s->list.n == 0) tui_put(&app->canvas, body.x + MARGIN, y, body.width, TUI_DIM, none);
    draw_detail(app, s, body, bottom);
}

/* ---- actions ---- */

static void next_line(tui_app *app, tui_rounds *s, int by, bool marks)
{
    bool alone = !tui_model_is_pair(app->model);
    for (int32_t i = s->list.cursor + by; i >= 0 && i < s->list.n; i += by) {
        const tui_request *r = tui_model_request(app->model, s->line[i]);
        const rpl_certificate *judged = alone ? tui_judgement(app, r) : NULL;
        bool different = alone ? judged && judged->n_illegal > 0 : tui_is_different(r->verdict);
        if (marks ? !tui_is_marked(app, r) : !different) continue;
        s->list.cursor = i;
        return;
    }
    const char *what = marks ? "marked" : alone && tui_judge_any(app->judge) ? "illegal" : "different";
    tui_say(app, "no %s %s line%s", by > 0 ? "later" : "earlier", what,
            !marks && tui_model_is_working(app->model) ? " so far: still comparing" : "");
}

static void sort_by(tui_app *app, tui_rounds *s, int by)
{
    s->sorted = by;
    s->falling = by != ROUNDS_C_ROUND && by != ROUNDS_C_SLOT && by != ROUNDS_C_SAME; /* figures start with the worst */
    tui_rounds_make(app, s);
    tui_say(app, "sorted by %s", by == ROUNDS_C_VERDICT ? "verdict" : TUI_ROUNDS_COLUMNS[by].title);
}

static bool sorts(tui_app *app, int by)
{
    return (!TUI_ROUNDS_COLUMNS[by].pair || tui_model_is_pair(app->model)) && by != ROUNDS_C_ARM && by != ROUNDS_C_ARMS &&
           by != ROUNDS_C_JUDGED && by != ROUNDS_C_DRAFTS_A && by != ROUNDS_C_DRAFTS_B;
}

/* The next column that this pair or tape shows. */
static void sort_next(tui_app *app, tui_rounds *s)
{
    int by = s->sorted;
    do by = (by + 1) % ROUNDS_C_COUNT;
    while (!sorts(app, by));
    sort_by(app, s, by);
}

static void sort_named(tui_app *app, tui_rounds *s, const char *name)
{
    for (int c = 0; name[0] && c < ROUNDS_C_COUNT; c++)
        if (sorts(app, c) && tui_contains(c == ROUNDS_C_VERDICT ? "verdict" : TUI_ROUNDS_COLUMNS[c].title, name)) {
            sort_by(app, s, c);
            return;
        }
    tui_say(app, "'%s' is no column to sort by: round slot P same origin L2 excess KL verdict", name);
}

static void go_round(tui_app *app, tui_rounds *s, const char *typed)
{
    char *end;
    long n = strtol(typed, &end, 10);
    int32_t i = *typed && *end == 0 && n >= 0 && n <= INT32_MAX
                    ? tui_model_find_request(app->model, (int32_t)n, FMT_TAPE_NO_SLOT) : -1;
    if (i < 0) {
        tui_say(app, "'%s' is no round of the tape", typed);
        return;
    }
    app->at = (tui_place){ .request = i, .value = -1, .element = -1 };
    tui_rounds_make(app, s);
    tui_list_fit(&s->list, app->page);
    follow_cursor(app, s);
}

static tui_reaction act(tui_app *app, void *state, tui_action action)
{
    tui_rounds *s = state;
    tui_reaction r = { 0 };
    if (tui_list_move(&s->list, action, app->page)) {
        follow_cursor(app, s);
        return r;
    }
    switch (action) {
    case TUI_DO_OPEN:
        if (s->list.n) r.open = TUI_PROGRAM;
        break;
    case TUI_DO_SORT: sort_next(app, s); break;
    case TUI_DO_SORT_TURN:
        s->falling = !s->falling;
        tui_rounds_make(app, s);
        break;
    case TUI_DO_SORT_BY: r.ask = "sort by column: "; break;
    case TUI_DO_FILTER: r.ask = "/"; break;
    case TUI_DO_EXPRESSION: r.ask = "only lines with, like excess>4 && stage==0: "; break;
    case TUI_DO_GOTO: r.ask = "go to round: "; break;
    case TUI_DO_NEXT_DIFFERENT: next_line(app, s, 1, false); break;
    case TUI_DO_PREVIOUS_DIFFERENT: next_line(app, s, -1, false); break;
    case TUI_DO_NEXT_MARK: next_line(app, s, 1, true); break;
    default: break;
    }
    follow_cursor(app, s);
    return r;
}

static void text(tui_app *app, void *state, tui_action action, const char *typed)
{
    tui_rounds *s = state;
    err e = { 0 };
    tui_expr expr;
    switch (action) {
    case TUI_DO_SORT_BY: sort_named(app, s, typed); return;
    case TUI_DO_GOTO: go_round(app, s, typed); return;
    case TUI_DO_EXPRESSION:
        if (tui_expr_parse(typed, TUI_ROUNDS_FIELDS, ROUNDS_F_COUNT, &expr, &e) != ERR_OK) {
            tui_say(app, "%s", e.msg);
            return;
        }
        s->expr = expr;
        break;
    default: snprintf(s->filter, sizeof s->filter, "%.*s", (int)sizeof s->filter - 1, typed); break;
    }
    tui_rounds_make(app, s);
    follow_cursor(app, s);
}

/* Tokens are read from the tape, so they are left out of long tables. */
static void csv(tui_app *app, void *state, tui_text *out)
{
    enum { TOKENS_MAX = 500 };
    const tui_rounds *s = state;
    char cell[256];
    bool tokens = s->list.n <= TOKENS_MAX;
    int last = app->arms->n > 2 ? ROUNDS_C_ARMS : ROUNDS_C_KL;
    tui_text_csv(out, "verdict", false);
    for (tui_rounds_column c = ROUNDS_C_ROUND; (int)c <= last; c++)
        if (tokens || (c != ROUNDS_C_DRAFTS_A && c != ROUNDS_C_DRAFTS_B))
            tui_text_csv(out, TUI_ROUNDS_COLUMNS[c].title, (int)c == last);
    for (int32_t i = 0; i < s->list.n; i++) {
        if (tokens) tui_model_read_drafts(app->model, s->line[i]);
        const tui_request *r = tui_model_request(app->model, s->line[i]);
        tui_text_csv(out, TUI_VERDICT[r->verdict].word, false);
        for (tui_rounds_column c = ROUNDS_C_ROUND; (int)c <= last; c++) {
            if (!tokens && (c == ROUNDS_C_DRAFTS_A || c == ROUNDS_C_DRAFTS_B)) continue;
            tui_rounds_cell(app, r, c, cell, sizeof cell);
            tui_text_csv(out, cell, (int)c == last);
        }
    }
}

static void fini(void *state) { free(((tui_rounds *)state)->line); }

const tui_screen TUI_SCREEN_ROUNDS = { "Rounds", TUI_ON_ROUNDS, sizeof(tui_rounds), enter, draw, act, text, csv, NULL,
                                        fini };
