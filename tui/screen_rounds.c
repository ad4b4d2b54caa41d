/* Rounds: a line for every slot of every round. */
#include "tui/app.h"

#include "base/mem.h"
#include "tui/expr.h"

#include <math.h>

typedef enum column {
    COLUMN_VERDICT, COLUMN_ROUND, COLUMN_SLOT, COLUMN_ARM, COLUMN_ROWS, COLUMN_SAME, COLUMN_DRAFTS_A, COLUMN_DRAFTS_B,
    COLUMN_ORIGIN, COLUMN_WORST, COLUMN_EXCESS, COLUMN_KL, COLUMN_ARMS, COLUMN_COUNT,
} column;

static const tui_column COLUMNS[COLUMN_COUNT] = {
    [COLUMN_VERDICT] = { "", 1, 1, 0, false, true },
    [COLUMN_ROUND] = { "round", 6, 6, 0, true, false },
    [COLUMN_SLOT] = { "slot", 5, 5, 0, true, false },
    [COLUMN_ARM] = { "arm", 13, 30, 4, false, false },
    [COLUMN_ROWS] = { "P", 4, 5, 1, true, false },
    [COLUMN_SAME] = { "same", 4, 5, 1, true, true },
    [COLUMN_DRAFTS_A] = { "drafts A", 9, 34, 2, false, false },
    [COLUMN_DRAFTS_B] = { "drafts B", 9, 34, 2, false, true },
    [COLUMN_ORIGIN] = { "first origin", 14, 22, 1, false, true },
    [COLUMN_WORST] = { "rel L2", 8, 9, 3, true, true },
    [COLUMN_EXCESS] = { "excess", 7, 9, 1, true, true },
    [COLUMN_KL] = { "KL", 8, 9, 2, true, true },
    [COLUMN_ARMS] = { "arms", 4, 7, 1, false, true },
};

/* What filter expressions may ask. */
enum { FIELD_ROUND, FIELD_SLOT, FIELD_P, FIELD_SAME, FIELD_L2, FIELD_EXCESS, FIELD_KL, FIELD_STAGE, FIELD_ORIGIN,
      FIELD_VERDICT,
       FIELD_MARKED, FIELD_COUNT };
static const char *const FIELDS[FIELD_COUNT] = { "round", "slot", "P", "same", "l2", "excess", "kl", "stage", "origin",
                                                 "verdict", "marked" };

typedef struct rounds {
    int32_t *line;   /* requests shown, in the order shown */
    size_t capacity;
    tui_list list;
    int sorted;      /* column; ROUND is the tape's own order */
    bool falling;
    int32_t n_done;  /* rounds compared when the lines were made: sorting and filtering depend on it */
    char filter[64];
    tui_expr expr;
} rounds;

/* ---- cells ---- */

static void draft_text(const tui_request *r, int side, char *buf, size_t bytes)
{
    size_t at = 0;
    buf[0] = 0;
    for (int32_t i = 0; i < r->n_drafts[side] && at < bytes; i++)
        at += (size_t)snprintf(buf + at, bytes - at, "%s%d", i ? " " : "", r->draft[side][i]);
    if (r->n_drafts[side] <= 0) snprintf(buf, bytes, "-");
}

static const char *value_name(tui_app *app, const tui_request *r, int32_t value)
{
    int32_t n;
    return value < 0 ? "" : tui_model_values(app->model, r->round_index, &n)[value].name;
}

/* Glyphs of the request's verdicts against every other arm: "=o". */
static void arms_text(tui_app *app, const tui_request *r, char *buf, size_t bytes)
{
    size_t at = 0;
    buf[0] = 0;
    for (int j = 1; j < app->arms->n && at < bytes; j++) {
        tui_model *m = tui_arms_first(app->arms, j);
        int32_t i = tui_model_find_request(m, r->round, r->slot);
        const char *glyph = i < 0 ? "-" : TUI_VERDICT[tui_model_request(m, i)->verdict].glyph;
        at += (size_t)snprintf(buf + at, bytes - at, "%s", glyph);
    }
}

static void cell_text(tui_app *app, const tui_request *r, column c, char *buf, size_t bytes)
{
    char number[32];
    buf[0] = 0;
    switch (c) {
    case COLUMN_ROUND: snprintf(buf, bytes, "%d", r->round); break;
    case COLUMN_SLOT: snprintf(buf, bytes, r->slot == FMT_TAPE_NO_SLOT ? "-" : "%d", r->slot); break;
    case COLUMN_ARM: {
        const char *a = tui_arms_name(app->arms, app->a), *b = tui_arms_name(app->arms, app->b);
        snprintf(buf, bytes, "%s%s%s", a, strcmp(a, b) ? "|" : "", strcmp(a, b) ? b : "");
        break;
    }
    case COLUMN_ROWS:
        if (r->n_rows) snprintf(buf, bytes, "%d", r->n_rows);
        break;
    case COLUMN_SAME:
        if (r->n_same >= 0 && r->n_drafts[TUI_B] >= 0) snprintf(buf, bytes, "%d/%d", r->n_same, r->n_drafts[TUI_B]);
        break;
    case COLUMN_DRAFTS_A: draft_text(r, TUI_A, buf, bytes); break;
    case COLUMN_DRAFTS_B: draft_text(r, TUI_B, buf, bytes); break;
    case COLUMN_ORIGIN: snprintf(buf, bytes, "%s", value_name(app, r, r->first_origin)); break;
    case COLUMN_WORST:
        if (!isnan(r->worst_rel_l2)) snprintf(buf, bytes, "%s", tui_number(r->worst_rel_l2, COLUMNS[c].width, number));
        break;
    case COLUMN_KL:
        if (!isnan(r->kl)) snprintf(buf, bytes, "%s", tui_number(r->kl, COLUMNS[c].width, number));
        break;
    case COLUMN_EXCESS:
        if (!isnan(r->worst_rel_l2))
            snprintf(buf, bytes, "%s", tui_number(tui_excess(r->worst_rel_l2), COLUMNS[c].width, number));
        break;
    case COLUMN_VERDICT: snprintf(buf, bytes, "%s", TUI_VERDICT[r->verdict].glyph); break;
    case COLUMN_ARMS: arms_text(app, r, buf, bytes); break;
    case COLUMN_COUNT: break;
    }
}

/* ---- the lines: filtered, sorted ---- */

typedef struct line_of { tui_app *app; const tui_request *r; } line_of;

static tui_field field(void *line, int i)
{
    const line_of *l = line;
    const tui_request *r = l->r;
    double none = (double)NAN;
    switch (i) {
    case FIELD_ROUND: return (tui_field){ r->round, NULL };
    case FIELD_SLOT: return (tui_field){ r->slot == FMT_TAPE_NO_SLOT ? none : r->slot, NULL };
    case FIELD_P: return (tui_field){ r->n_rows, NULL };
    case FIELD_SAME: return (tui_field){ r->n_same < 0 ? none : r->n_same, NULL };
    case FIELD_L2: return (tui_field){ r->worst_rel_l2, NULL };
    case FIELD_EXCESS: return (tui_field){ tui_excess(r->worst_rel_l2), NULL };
    case FIELD_KL: return (tui_field){ r->kl, NULL };
    case FIELD_STAGE: return (tui_field){ tui_stage_of(value_name(l->app, r, r->first_origin)), NULL };
    case FIELD_ORIGIN: return (tui_field){ none, value_name(l->app, r, r->first_origin) };
    case FIELD_VERDICT: return (tui_field){ none, TUI_VERDICT[r->verdict].word };
    default: return (tui_field){ tui_is_marked(l->app, r), NULL };
    }
}

/* What the index and the comparison tell; tokens take no part, so that no payload is read for lines out of sight. */
static bool passes(tui_app *app, const rounds *s, int32_t request)
{
    char line[1024], cell[256];
    if (!s->filter[0] && s->expr.n == 0) return true;
    const tui_request *r = tui_model_request(app->model, request);
    if (!tui_expr_passes(&s->expr, field, &(line_of){ app, r })) return false;
    if (!s->filter[0]) return true;
    size_t at = (size_t)snprintf(line, sizeof line, "%s ", TUI_VERDICT[r->verdict].word);
    for (column c = COLUMN_ROUND; c < COLUMN_COUNT && at < sizeof line; c++) {
        if (c == COLUMN_DRAFTS_A || c == COLUMN_DRAFTS_B) continue;
        cell_text(app, r, c, cell, sizeof cell);
        if (cell[0]) at += (size_t)snprintf(line + at, sizeof line - at, "%s %s ", COLUMNS[c].title, cell);
    }
    return tui_contains(line, s->filter);
}

/* The key of a column: larger is worse, unknown is least. */
static double sort_key(tui_app *app, int32_t request, int sorted)
{
    const tui_request *r = tui_model_request(app->model, request);
    switch ((column)sorted) {
    case COLUMN_SLOT: return r->slot;
    case COLUMN_ROWS: return r->n_rows;
    case COLUMN_SAME: return r->n_same;
    case COLUMN_ORIGIN: return r->first_origin < 0 ? -(double)INT32_MAX : -(double)r->first_origin; /* earlier is worse */
    case COLUMN_WORST: case COLUMN_EXCESS: return isnan(r->worst_rel_l2) ? -1 : r->worst_rel_l2;
    case COLUMN_DRAFTS_A: case COLUMN_DRAFTS_B: return r->n_same < 0 ? -1 :
        -(double)r->n_same; /* read for few lines only */
    case COLUMN_KL: return isnan(r->kl) ? -1 : r->kl;
    case COLUMN_VERDICT: return r->verdict;
    default: return request;
    }
}

typedef struct sort_line { double key; int32_t request; } sort_line;

static int rising_order(const void *x, const void *y)
{
    const sort_line *a = x, *b = y;
    if (a->key != b->key) return a->key < b->key ? -1 : 1;
    return a->request < b->request ? -1 : a->request > b->request;
}

static int falling_order(const void *x, const void *y)
{
    const sort_line *a = x, *b = y;
    if (a->key != b->key) return a->key > b->key ? -1 : 1;
    return a->request < b->request ? -1 : a->request > b->request;
}

static bool make_room(tui_app *app, rounds *s)
{
    size_t n = (size_t)tui_model_requests(app->model);
    if (s->capacity >= n && s->line) return true;
    free(s->line);
    s->line = mem_alloc(n + 1, sizeof *s->line);
    s->capacity = s->line ? n : 0;
    return s->line;
}

/* Makes the lines again; the cursor stays on app->at. */
static void make_lines(tui_app *app, rounds *s)
{
    s->list.n = 0;
    s->n_done = tui_model_rounds_done(app->model);
    if (!make_room(app, s)) {
        tui_say(app, "no memory for the list");
        return;
    }
    for (int32_t i = 0; i < tui_model_requests(app->model); i++)
        if (passes(app, s, i)) s->line[s->list.n++] = i;
    sort_line *order = s->sorted == COLUMN_ROUND && !s->falling ? NULL : mem_alloc((size_t)s->list.n + 1, sizeof *order);
    for (int32_t i = 0; order && i < s->list.n; i++) {
        order[i] = (sort_line){ sort_key(app, s->line[i], s->sorted), s->line[i] };
    }
    if (order) qsort(order, (size_t)s->list.n, sizeof *order, s->falling ? falling_order : rising_order);
    for (int32_t i = 0; order && i < s->list.n; i++) s->line[i] = order[i].request;
    free(order);
    s->list.cursor = 0;
    for (int32_t i = 0; i < s->list.n; i++)
        if (s->line[i] == app->at.request) s->list.cursor = i;
}

static void follow_cursor(tui_app *app, rounds *s)
{
    if (s->list.n == 0) return;
    int32_t request = s->line[s->list.cursor];
    if (request != app->at.request) app->at = (tui_place){ .request = request, .value = -1, .element = -1 };
}

static void enter(tui_app *app, void *state)
{
    rounds *s = state;
    if (!s->line) s->sorted = COLUMN_ROUND;
    make_lines(app, s);
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

/* What the line under the cursor says in words: the lines above the keys. */
static void draw_detail(tui_app *app, const rounds *s, tui_rect body, int32_t y)
{
    const tui_request *r = tui_at_request(app);
    char number[32], a[128], b[128];
    int32_t n;
    tui_canvas *c = &app->canvas;
    if (s->filter[0] || s->expr.n)
        tui_putf(c, body.x + body.width / 2, y, body.width / 2, TUI_STRONG, " %d of %d lines: %s%s%s", s->list.n,
                 tui_model_requests(app->model), s->filter, s->filter[0] && s->expr.n ? ", " : "", s->expr.source);
    if (!r || s->list.n == 0) return;
    const rpl_round *round = tui_model_result(app->model, r->round_index);
    draft_text(r, TUI_A, a, sizeof a);
    draft_text(r, TUI_B, b, sizeof b);
    if (!tui_model_is_pair(app->model)) snprintf(b, sizeof b, "-");
    tui_putf(c, body.x, y + 2, body.width, TUI_PLAIN, " drafts: %c %s  %c %s", tui_letter(app, TUI_A), a,
             tui_letter(app, TUI_B) == 'A' ? 'B' : tui_letter(app, TUI_B), b);
    if (!round) {
        tui_model_values(app->model, r->round_index, &n);
        tui_putf(c, body.x, y, body.width / 2, TUI_PLAIN, " round %d: %s, %d values", r->round,
                 TUI_VERDICT[r->verdict].word, n);
        return;
    }
    tui_putf(c, body.x, y, body.width / 2, TUI_PLAIN, " round %d: %s, %d of %d values equal", r->round,
             TUI_VERDICT[r->verdict].word, round->n_equal, round->n_compared);
    bool inherited;
    const cap_name *values = tui_model_values(app->model, r->round_index, &n);
    const cap_name *origin = r->first_origin < 0 ? NULL : &values[r->first_origin];
    const rpl_origin *cause = origin ? tui_origin_of(app, TUI_A, origin, &inherited) : NULL;
    if (!cause && origin) cause = tui_origin_of(app, TUI_B, origin, &inherited);
    if (r->worst >= 0)
        tui_putf(c, body.x, y + 1, body.width, TUI_PLAIN, " worst %s: relative L2 %s%s%s%s%s", value_name(app, r, r->worst),
                 tui_number(r->worst_rel_l2, 9, number), r->first_origin >= 0 ? "; it started at " : "",
                 value_name(app, r, r->first_origin), cause && cause->cause[0] ? ": " : "", cause ? cause->cause : "");
}

static void draw_line(tui_app *app, const rounds *s, const tui_layout *l, tui_rect body, int32_t y, int32_t line)
{
    char cell[256];
    int32_t request = s->line[line];
    bool selected = line == s->list.cursor;
    tui_model_read_drafts(app->model, request);
    const tui_request *r = tui_model_request(app->model, request);
    for (column c = COLUMN_VERDICT; c < COLUMN_COUNT; c++) {
        bool told = c == COLUMN_VERDICT || c == COLUMN_ORIGIN || c == COLUMN_WORST;
        cell_text(app, r, c, cell, sizeof cell);
        tui_table_put(&app->canvas, COLUMNS, (int)c, l, y, told ? TUI_VERDICT[r->verdict].style : TUI_PLAIN, cell);
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
    rounds *s = state;
    int32_t y = body.y, bottom = body.y + body.height - DETAIL_LINES;
    bool chosen = s->filter[0] || s->expr.n || s->sorted != COLUMN_ROUND;
    if (s->n_done != tui_model_rounds_done(app->model) && chosen) make_lines(app, s);
    tui_column columns[COLUMN_COUNT];
    const char titles[2][10] = { { 'd', 'r', 'a', 'f', 't', 's', ' ', tui_letter(app, TUI_A) },
                                 { 'd', 'r', 'a', 'f', 't', 's', ' ', tui_letter(app, TUI_B) } };
    memcpy(columns, COLUMNS, sizeof columns);
    columns[COLUMN_DRAFTS_A].title = titles[0];
    columns[COLUMN_DRAFTS_B].title = titles[1];
    columns[COLUMN_ARMS].pair = true;
    if (app->arms->n < 3) columns[COLUMN_ARMS].width = columns[COLUMN_ARMS].width_max = 0;
    for (int side = TUI_A; side < TUI_SIDES; side++) y = draw_tape(app, side, body, y);
    bool pair = tui_model_is_pair(app->model);
    tui_layout l = tui_layout_of(columns, COLUMN_COUNT, body.x + MARGIN, body.width - MARGIN, pair);
    tui_table_head(&app->canvas, columns, COLUMN_COUNT, &l, y++, s->sorted, s->falling);
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

static void next_line(tui_app *app, rounds *s, int by, bool marks)
{
    for (int32_t i = s->list.cursor + by; i >= 0 && i < s->list.n; i += by) {
        const tui_request *r = tui_model_request(app->model, s->line[i]);
        if (marks ? !tui_is_marked(app, r) : !tui_is_different(r->verdict)) continue;
        s->list.cursor = i;
        return;
    }
    tui_say(app, "no %s %s line%s", by > 0 ? "later" : "earlier", marks ? "marked" : "different",
            !marks && tui_model_is_working(app->model) ? " so far: still comparing" : "");
}

static void sort_by(tui_app *app, rounds *s, int by)
{
    s->sorted = by;
    s->falling = by != COLUMN_ROUND && by != COLUMN_SLOT && by != COLUMN_SAME; /* figures start with the worst */
    make_lines(app, s);
    tui_say(app, "sorted by %s", by == COLUMN_VERDICT ? "verdict" : COLUMNS[by].title);
}

static bool sorts(tui_app *app, int by)
{
    return (!COLUMNS[by].pair || tui_model_is_pair(app->model)) && by != COLUMN_ARM && by != COLUMN_ARMS &&
           by != COLUMN_DRAFTS_A && by != COLUMN_DRAFTS_B;
}

/* The next column that this pair or tape shows. */
static void sort_next(tui_app *app, rounds *s)
{
    int by = s->sorted;
    do by = (by + 1) % COLUMN_COUNT;
    while (!sorts(app, by));
    sort_by(app, s, by);
}

static void sort_named(tui_app *app, rounds *s, const char *name)
{
    for (int c = 0; name[0] && c < COLUMN_COUNT; c++)
        if (sorts(app, c) && tui_contains(c == COLUMN_VERDICT ? "verdict" : COLUMNS[c].title, name)) {
            sort_by(app, s, c);
            return;
        }
    tui_say(app, "'%s' is no column to sort by: round slot P same origin L2 excess KL verdict", name);
}

static void go_round(tui_app *app, rounds *s, const char *typed)
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
    make_lines(app, s);
    tui_list_fit(&s->list, app->page);
    follow_cursor(app, s);
}

static tui_reaction act(tui_app *app, void *state, tui_action action)
{
    rounds *s = state;
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
        make_lines(app, s);
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
    rounds *s = state;
    err e = { 0 };
    tui_expr expr;
    switch (action) {
    case TUI_DO_SORT_BY: sort_named(app, s, typed); return;
    case TUI_DO_GOTO: go_round(app, s, typed); return;
    case TUI_DO_EXPRESSION:
        if (tui_expr_parse(typed, FIELDS, FIELD_COUNT, &expr, &e) != ERR_OK) {
            tui_say(app, "%s", e.msg);
            return;
        }
        s->expr = expr;
        break;
    default: snprintf(s->filter, sizeof s->filter, "%.*s", (int)sizeof s->filter - 1, typed); break;
    }
    make_lines(app, s);
    follow_cursor(app, s);
}

/* Tokens are read from the tape, so they are left out of long tables. */
static void csv(tui_app *app, void *state, tui_text *out)
{
    enum { TOKENS_MAX = 500 };
    const rounds *s = state;
    char cell[256];
    bool tokens = s->list.n <= TOKENS_MAX;
    int last = app->arms->n > 2 ? COLUMN_ARMS : COLUMN_KL;
    tui_text_csv(out, "verdict", false);
    for (column c = COLUMN_ROUND; (int)c <= last; c++)
        if (tokens || (c != COLUMN_DRAFTS_A && c != COLUMN_DRAFTS_B)) tui_text_csv(out, COLUMNS[c].title, (int)c == last);
    for (int32_t i = 0; i < s->list.n; i++) {
        if (tokens) tui_model_read_drafts(app->model, s->line[i]);
        const tui_request *r = tui_model_request(app->model, s->line[i]);
        tui_text_csv(out, TUI_VERDICT[r->verdict].word, false);
        for (column c = COLUMN_ROUND; (int)c <= last; c++) {
            if (!tokens && (c == COLUMN_DRAFTS_A || c == COLUMN_DRAFTS_B)) continue;
            cell_text(app, r, c, cell, sizeof cell);
            tui_text_csv(out, cell, (int)c == last);
        }
    }
}

static void fini(void *state) { free(((rounds *)state)->line); }

const tui_screen TUI_SCREEN_ROUNDS = { "Rounds", TUI_ON_ROUNDS, sizeof(rounds), enter, draw, act, text, csv, NULL,
                                        fini };
