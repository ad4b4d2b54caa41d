#include "tui/rounds_lines.h"

#include "base/mem.h"

#include <math.h>

const tui_column TUI_ROUNDS_COLUMNS[ROUNDS_C_COUNT] = {
    [ROUNDS_C_VERDICT] = { "", 1, 1, 0, false, true },
    [ROUNDS_C_ROUND] = { "round", 6, 6, 0, true, false },
    [ROUNDS_C_SLOT] = { "slot", 5, 5, 0, true, false },
    [ROUNDS_C_ARM] = { "arm", 13, 30, 4, false, false },
    [ROUNDS_C_ROWS] = { "P", 4, 5, 1, true, false },
    [ROUNDS_C_SAME] = { "same", 4, 5, 1, true, true },
    [ROUNDS_C_DRAFTS_A] = { "drafts A", 9, 34, 2, false, false },
    [ROUNDS_C_DRAFTS_B] = { "drafts B", 9, 34, 2, false, true },
    [ROUNDS_C_ORIGIN] = { "first origin", 14, 22, 1, false, true },
    [ROUNDS_C_WORST] = { "rel L2", 8, 9, 3, true, true },
    [ROUNDS_C_EXCESS] = { "excess", 7, 9, 1, true, true },
    [ROUNDS_C_KL] = { "KL", 8, 9, 2, true, true },
    [ROUNDS_C_ARMS] = { "arms", 4, 7, 1, false, true },
    [ROUNDS_C_JUDGED] = { "judged", 9, 9, 0, false, false },
};

const tui_expr_field TUI_ROUNDS_FIELDS[ROUNDS_F_COUNT] = {
    [ROUNDS_F_ROUND] = { "round", false }, [ROUNDS_F_SLOT] = { "slot", false }, [ROUNDS_F_P] = { "P", false },
    [ROUNDS_F_SAME] = { "same", false }, [ROUNDS_F_L2] = { "l2", false }, [ROUNDS_F_EXCESS] = { "excess", false },
    [ROUNDS_F_KL] = { "kl", false }, [ROUNDS_F_STAGE] = { "stage", false }, [ROUNDS_F_ORIGIN] = { "origin", true },
    [ROUNDS_F_VERDICT] = { "verdict", true }, [ROUNDS_F_MARKED] = { "marked", false },
};

/* ---- cells ---- */

void tui_rounds_drafts(const tui_request *r, int side, char *buf, size_t bytes)
{
    size_t at = 0;
    buf[0] = 0;
    for (int32_t i = 0; i < r->n_drafts[side] && at < bytes; i++)
        at += (size_t)snprintf(buf + at, bytes - at, "%s%d", i ? " " : "", r->draft[side][i]);
    if (r->n_drafts[side] <= 0) snprintf(buf, bytes, "-");
}

const char *tui_rounds_value(tui_app *app, const tui_request *r, int32_t value)
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

/* "FAIL" of one tape, "PASS|FAIL" of both sides. */
static void judged_text(tui_app *app, const tui_request *r, char *buf, size_t bytes)
{
    const char *word[TUI_SIDES] = { "", "" };
    for (int side = TUI_A; side <= tui_suspect(app); side++) {
        const rpl_certificate *c = tui_judge_of(app->judge, tui_model_tape(app->model, side), r->round);
        if (c) word[side] = rpl_certificate_verdict(c);
    }
    snprintf(buf, bytes, "%s%s%s", word[TUI_A], word[TUI_B][0] ? "|" : "", word[TUI_B]);
}

void tui_rounds_cell(tui_app *app, const tui_request *r, tui_rounds_column c, char *buf, size_t bytes)
{
    char number[32];
    buf[0] = 0;
    switch (c) {
    case ROUNDS_C_ROUND: snprintf(buf, bytes, "%d", r->round); break;
    case ROUNDS_C_SLOT: snprintf(buf, bytes, r->slot == FMT_TAPE_NO_SLOT ? "-" : "%d", r->slot); break;
    case ROUNDS_C_ARM: {
        const char *a = tui_arms_name(app->arms, app->a), *b = tui_arms_name(app->arms, app->b);
        snprintf(buf, bytes, "%s%s%s", a, strcmp(a, b) ? "|" : "", strcmp(a, b) ? b : "");
        break;
    }
    case ROUNDS_C_ROWS:
        if (r->n_rows) snprintf(buf, bytes, "%d", r->n_rows);
        break;
    case ROUNDS_C_SAME:
        if (r->n_same >= 0 && r->n_drafts[TUI_B] >= 0) snprintf(buf, bytes, "%d/%d", r->n_same, r->n_drafts[TUI_B]);
        break;
    case ROUNDS_C_DRAFTS_A: tui_rounds_drafts(r, TUI_A, buf, bytes); break;
    case ROUNDS_C_DRAFTS_B: tui_rounds_drafts(r, TUI_B, buf, bytes); break;
    case ROUNDS_C_ORIGIN: snprintf(buf, bytes, "%s", tui_rounds_value(app, r, r->first_origin)); break;
    case ROUNDS_C_WORST:
        if (!isnan(r->worst_rel_l2))
            snprintf(buf, bytes, "%s", tui_number(r->worst_rel_l2, TUI_ROUNDS_COLUMNS[c].width, number));
        break;
    case ROUNDS_C_KL:
        if (!isnan(r->kl)) snprintf(buf, bytes, "%s", tui_number(r->kl, TUI_ROUNDS_COLUMNS[c].width, number));
        break;
    case ROUNDS_C_EXCESS:
        if (!isnan(r->worst_rel_l2))
            snprintf(buf, bytes, "%s", tui_number(tui_excess(r->worst_rel_l2), TUI_ROUNDS_COLUMNS[c].width, number));
        break;
    case ROUNDS_C_VERDICT: snprintf(buf, bytes, "%s", TUI_VERDICT[r->verdict].glyph); break;
    case ROUNDS_C_ARMS: arms_text(app, r, buf, bytes); break;
    case ROUNDS_C_JUDGED: judged_text(app, r, buf, bytes); break;
    case ROUNDS_C_COUNT: break;
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
    case ROUNDS_F_ROUND: return (tui_field){ r->round, NULL };
    case ROUNDS_F_SLOT: return (tui_field){ r->slot == FMT_TAPE_NO_SLOT ? none : r->slot, NULL };
    case ROUNDS_F_P: return (tui_field){ r->n_rows, NULL };
    case ROUNDS_F_SAME: return (tui_field){ r->n_same < 0 ? none : r->n_same, NULL };
    case ROUNDS_F_L2: return (tui_field){ r->worst_rel_l2, NULL };
    case ROUNDS_F_EXCESS: return (tui_field){ tui_excess(r->worst_rel_l2), NULL };
    case ROUNDS_F_KL: return (tui_field){ r->kl, NULL };
    case ROUNDS_F_STAGE: return (tui_field){ tui_stage_of(tui_rounds_value(l->app, r, r->first_origin)), NULL };
    case ROUNDS_F_ORIGIN: return (tui_field){ none, tui_rounds_value(l->app, r, r->first_origin) };
    case ROUNDS_F_VERDICT: return (tui_field){ none, TUI_VERDICT[r->verdict].word };
    default: return (tui_field){ tui_is_marked(l->app, r), NULL };
    }
}

/* What the index and the comparison tell; tokens take no part, so that no payload is read for lines out of sight. */
static bool passes(tui_app *app, const tui_rounds *s, int32_t request)
{
    char line[1024], cell[256];
    if (!s->filter[0] && s->expr.n == 0) return true;
    const tui_request *r = tui_model_request(app->model, request);
    if (!tui_expr_passes(&s->expr, field, &(line_of){ app, r })) return false;
    if (!s->filter[0]) return true;
    size_t at = (size_t)snprintf(line, sizeof line, "%s ", TUI_VERDICT[r->verdict].word);
    for (tui_rounds_column c = ROUNDS_C_ROUND; c < ROUNDS_C_COUNT && at < sizeof line; c++) {
        if (c == ROUNDS_C_DRAFTS_A || c == ROUNDS_C_DRAFTS_B) continue;
        tui_rounds_cell(app, r, c, cell, sizeof cell);
        if (cell[0]) at += (size_t)snprintf(line + at, sizeof line - at, "%s %s ", TUI_ROUNDS_COLUMNS[c].title, cell);
    }
    return tui_contains(line, s->filter);
}

/* The key of a column: larger is worse, unknown is least. */
static double sort_key(tui_app *app, int32_t request, int sorted)
{
    const tui_request *r = tui_model_request(app->model, request);
    switch ((tui_rounds_column)sorted) {
    case ROUNDS_C_SLOT: return r->slot;
    case ROUNDS_C_ROWS: return r->n_rows;
    case ROUNDS_C_SAME: return r->n_same;
    case ROUNDS_C_ORIGIN: return r->first_origin < 0 ? -(double)INT32_MAX : -(double)r->first_origin; /* earlier is worse */
    case ROUNDS_C_WORST: case ROUNDS_C_EXCESS: return isnan(r->worst_rel_l2) ? -1 : r->worst_rel_l2;
    case ROUNDS_C_KL: return isnan(r->kl) ? -1 : r->kl;
    case ROUNDS_C_VERDICT: return r->verdict;
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

static bool make_room(tui_app *app, tui_rounds *s)
{
    size_t n = (size_t)tui_model_requests(app->model);
    if (s->capacity >= n && s->line) return true;
    free(s->line);
    s->line = mem_alloc(n + 1, sizeof *s->line);
    s->capacity = s->line ? n : 0;
    return s->line;
}

void tui_rounds_make(tui_app *app, tui_rounds *s)
{
    s->list.n = 0;
    s->n_done = tui_model_rounds_done(app->model);
    if (!make_room(app, s)) {
        tui_say(app, "no memory for the list");
        return;
    }
    for (int32_t i = 0; i < tui_model_requests(app->model); i++)
        if (passes(app, s, i)) s->line[s->list.n++] = i;
    sort_line *order = s->sorted == ROUNDS_C_ROUND && !s->falling ? NULL : mem_alloc((size_t)s->list.n + 1, sizeof *order);
    for (int32_t i = 0; order && i < s->list.n; i++)
        order[i] = (sort_line){ sort_key(app, s->line[i], s->sorted), s->line[i] };
    if (order) qsort(order, (size_t)s->list.n, sizeof *order, s->falling ? falling_order : rising_order);
    for (int32_t i = 0; order && i < s->list.n; i++) s->line[i] = order[i].request;
    free(order);
    s->list.cursor = 0;
    int32_t request = app->at.request >= 0 ? app->at.request : s->hidden;
    for (int32_t i = 0; i < s->list.n; i++)
        if (s->line[i] == request) s->list.cursor = i;
    if (s->list.n == 0 && app->at.request >= 0) {
        s->hidden = app->at.request;
        app->at = (tui_place){ .request = -1, .value = -1, .element = -1 };
    }
}
