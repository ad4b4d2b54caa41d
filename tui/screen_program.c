/* Program: the values of one request's round in the order in which the step makes them, grouped by stage. */
#include "tui/program_lines.h"
#include "tui/ref.h"

#include <math.h>

/* Puts the cursor on app->at; without a choice on the first origin, else on the first value. */
static void find_cursor(tui_app *app, tui_program *s)
{
    const tui_request *r = tui_at_request(app);
    if (app->at.value < 0 && r) app->at.value = r->first_origin;
    s->list.cursor = s->list.n > 1 && !s->sorted ? 1 : 0;
    for (int32_t i = 0; i < s->list.n; i++)
        if (app->at.value >= 0 && s->line[i].value == app->at.value) s->list.cursor = i;
    if (s->list.n) app->at.value = s->line[s->list.cursor].value;
    tui_list_fit(&s->list, app->page);
}

static void enter(tui_app *app, void *state)
{
    tui_program_make(app, state);
    find_cursor(app, state);
}

/* ---- drawing ---- */

static void draw_pair(tui_app *app, const tui_layout *l, int32_t y, const cap_name *n, const rpl_value *v)
{
    char text[160], number[32];
    tui_canvas *c = &app->canvas;
    const eng_op *op = tui_model_op(app->model, n);
    tui_verdict verdict = v ? tui_verdict_of(v) : TUI_VERDICT_PENDING;
    int style = TUI_VERDICT[verdict].style;
    tui_table_put(c, TUI_PAIR_COLUMNS, PAIR_VERDICT, l, y, style, TUI_VERDICT[verdict].glyph);
    tui_table_put(c, TUI_PAIR_COLUMNS, PAIR_VALUE, l, y, style, n->name);
    tui_table_put(c, TUI_PAIR_COLUMNS, PAIR_OP, l, y, TUI_PLAIN, op ? eng_kind_name(op->kind) : "");
    tui_program_type(app, n, text, sizeof text);
    tui_table_put(c, TUI_PAIR_COLUMNS, PAIR_TYPE, l, y, TUI_DIM, text);
    if (!v) return;
    const tui_program_of of = { app, n, v };
    tui_program_note(&of, text, sizeof text);
    bool warn = v->m.findings || verdict == TUI_VERDICT_BROKEN;
    tui_table_put(c, TUI_PAIR_COLUMNS, PAIR_NOTE, l, y, warn ? TUI_WARN : TUI_PLAIN, text);
    if (v->state != RPL_STATE_COMPARED || v->m.n_equal == v->m.n) return;
    tui_table_put(c, TUI_PAIR_COLUMNS, PAIR_DIFFER, l, y, TUI_PLAIN,
                  tui_count((uint64_t)(v->m.n - v->m.n_equal), 7, number));
    if (!tui_is_float(v->a.dtype)) return;
    tui_table_put(c, TUI_PAIR_COLUMNS, PAIR_L2, l, y, style, tui_number(v->m.rel_l2, 8, number));
    tui_table_put(c, TUI_PAIR_COLUMNS, PAIR_ULP, l, y, TUI_PLAIN, tui_count(v->m.max_ulp, 5, number));
    tui_bar(c, l->x[PAIR_BAR], y, l->width[PAIR_BAR], style, tui_program_error(&of));
}

static void draw_lone(tui_app *app, const tui_layout *l, int32_t y, const cap_name *n)
{
    char text[160], number[32];
    tui_facts f;
    tui_canvas *c = &app->canvas;
    const eng_op *op = tui_model_op(app->model, n);
    tui_table_put(c, TUI_LONE_COLUMNS, LONE_VALUE, l, y, TUI_PLAIN, n->name);
    tui_table_put(c, TUI_LONE_COLUMNS, LONE_OP, l, y, TUI_PLAIN, op ? eng_kind_name(op->kind) : "");
    tui_program_type(app, n, text, sizeof text);
    tui_table_put(c, TUI_LONE_COLUMNS, LONE_TYPE, l, y, TUI_DIM, text);
    if (!tui_model_facts(app->model, TUI_A, n, &f)) return;
    if (!f.has_stats) {
        tui_table_put(c, TUI_LONE_COLUMNS, LONE_NOTE, l, y, TUI_DIM,
                      f.tier == FMT_TIER_HASH ? "hash only" : "sum of ranks");
        return;
    }
    tui_table_put(c, TUI_LONE_COLUMNS, LONE_MIN, l, y, TUI_PLAIN, tui_number(f.stats.min, 8, number));
    tui_table_put(c, TUI_LONE_COLUMNS, LONE_MAX, l, y, TUI_PLAIN, tui_number(f.stats.max, 8, number));
    if (f.stats.rms > 0) tui_table_put(c, TUI_LONE_COLUMNS, LONE_RMS, l, y, TUI_PLAIN, tui_number(f.stats.rms, 8, number));
    unsigned long long nan = f.stats.n_nan, inf = f.stats.n_inf;
    bool inherited;
    tui_program_note(&(tui_program_of){ app, n, NULL }, text, sizeof text);
    if (text[0]) {
        bool origin = tui_origin_of(app, TUI_A, n, &inherited) && !inherited;
        tui_table_put(c, TUI_LONE_COLUMNS, LONE_NOTE, l, y, origin ? TUI_ORIGIN : TUI_INHERITED, text);
        return;
    }
    if (nan || inf) snprintf(text, sizeof text, "%llu NaN, %llu Inf", nan, inf);
    else snprintf(text, sizeof text, "%s", f.tier == FMT_TIER_STATS ? "statistics only" : "");
    tui_table_put(c, TUI_LONE_COLUMNS, LONE_NOTE, l, y, nan || inf ? TUI_WARN : TUI_DIM, text);
}

static void draw_heading(tui_app *app, tui_rect body, int32_t y, int32_t group)
{
    char text[48];
    tui_program_group_text(group, text, sizeof text);
    int32_t x = body.x + 2 + tui_put(&app->canvas, body.x + 2, y, body.width - 2, TUI_STRONG, text) + 1;
    for (; x < body.x + body.width; x++) tui_glyph(&app->canvas, x, y, TUI_DIM, 0x2500);
}

/* What a certificate says of the value, in words; false: nothing. */
static bool draw_cause(tui_app *app, tui_rect body, int32_t y, const cap_name *n)
{
    char index[128];
    tui_facts facts;
    int side;
    bool inherited;
    const rpl_origin *o = tui_any_origin_of(app, n, &side, &inherited);
    if (!o || !tui_model_facts_any(app->model, n, &facts)) return false;
    tui_index_text(&facts.tensor, o->worst.index, index);
    tui_putf(&app->canvas, body.x + 1, y, body.width - 1, inherited ? TUI_INHERITED : TUI_ORIGIN,
             "%c %s %s%s: %lld of %lld illegal, worst %s %.9g, exact %.9g, %.3g times its bound", tui_letter(app, side),
             o->op, inherited ? "inherits from " : "", inherited ? o->from : o->cause[0] ? o->cause : "no cause named",
             (long long)o->n_illegal, (long long)o->n, index, o->worst.got, o->worst.exact, fabs(o->worst.ratio));
    return true;
}

/* The chosen value in words: the lines above the keys. */
static void draw_detail(tui_app *app, const tui_program *s, tui_rect body, int32_t y)
{
    const cap_name *n = tui_at_value(app);
    const rpl_value *v = tui_at_result(app);
    const eng_op *op = n ? tui_model_op(app->model, n) : NULL;
    char type[160], index[128];
    tui_canvas *c = &app->canvas;
    if (!n || s->list.n == 0) return;
    tui_program_type(app, n, type, sizeof type);
    tui_putf(c, body.x + 1, y, body.width - 1, TUI_PLAIN, "%s  %s%s%s%s%s", n->name, type, op ? "  by " : "",
             op ? eng_kind_name(op->kind) : "", v && v->ops[0] ? ": " : "", v ? v->ops : "");
    if (s->filter[0] || s->expr.n) tui_put_right(c, body.x, y, body.width - 1, TUI_STRONG, "(filtered)");
    const rpl_certificate *judged = tui_certificate(app, tui_suspect(app));
    if (!draw_cause(app, body, y + 2, n) && judged)
        for (size_t i = 0; i < judged->n_sums; i++)
            if (strcmp(judged->sum[i].value, n->name) == 0)
                tui_putf(c, body.x + 1, y + 2, body.width - 1, TUI_DIM,
                         "judged: every element of %c's %s is one that some order of sums gives",
                         tui_letter(app, tui_suspect(app)), n->name);
    if (!v) return;
    const tui_verdict_look *look = &TUI_VERDICT[tui_verdict_of(v)];
    if (v->state != RPL_STATE_COMPARED || v->m.n_equal == v->m.n || v->m.worst < 0) {
        tui_putf(c, body.x + 1, y + 1, body.width - 1, TUI_PLAIN, "%s%s%s", look->word, v->why[0] ? ": " : "", v->why);
        return;
    }
    tui_putf(c, body.x + 1, y + 1, body.width - 1, TUI_PLAIN, "%s: %lld of %lld differ, worst %s %c %.9g %c %.9g",
             look->word,
             (long long)(v->m.n - v->m.n_equal), (long long)v->m.n, tui_index_text(&v->a, v->m.worst, index),
             tui_letter(app, TUI_A), v->a_worst, tui_letter(app, TUI_B), v->b_worst);
}

static void draw(tui_app *app, void *state, tui_rect body)
{
    enum { DETAIL_LINES = 3, MARGIN = 2 };
    tui_program *s = state;
    const tui_request *at = tui_at_request(app);
    bool came = at && !s->had_result && tui_model_result(app->model, at->round_index);
    if (s->generation != app->generation || s->request != app->at.request || came) enter(app, s);
    int32_t n = 0, y = body.y, bottom = body.y + body.height - DETAIL_LINES;
    const tui_request *r = tui_at_request(app);
    const cap_name *name = r ? tui_model_values(app->model, r->round_index, &n) : NULL;
    const rpl_round *round = r ? tui_model_result(app->model, r->round_index) : NULL;
    bool pair = tui_model_is_pair(app->model);
    const tui_column *column = pair ? TUI_PAIR_COLUMNS : TUI_LONE_COLUMNS;
    tui_column judged[PAIR_COUNT];
    if (pair && tui_certificate(app, tui_suspect(app))) { /* the bar is of another thing then */
        memcpy(judged, TUI_PAIR_COLUMNS, sizeof judged);
        judged[PAIR_BAR].title = "bound at |";
        column = judged;
    }
    int n_columns = pair ? PAIR_COUNT : LONE_COUNT;
    tui_layout l = tui_layout_of(column, n_columns, body.x + MARGIN, body.width - MARGIN, true);
    tui_table_head(&app->canvas, column, n_columns, &l, y++, s->sorted ? s->sorted : -1, !s->rising);
    app->page = bottom - y;
    app->list = &s->list;
    app->list_y = y;
    tui_list_fit(&s->list, app->page);
    bool headed = s->list.top > 0 && s->line[s->list.top - 1].value < 0;
    if (headed && s->list.top == s->list.cursor) s->list.top--; /* the group's name stays in sight */
    for (int32_t i = s->list.top; i < s->list.n && y < bottom; i++, y++) {
        int32_t value = s->line[i].value;
        if (value < 0) draw_heading(app, body, y, s->line[i].group);
        else if (pair) draw_pair(app, &l, y, &name[value], round ? &round->value[value] : NULL);
        else draw_lone(app, &l, y, &name[value]);
        if (i != s->list.cursor) continue;
        tui_put(&app->canvas, body.x, y, 1, TUI_PLAIN, ">");
        tui_mark(&app->canvas, (tui_rect){ body.x, y, body.width, 1 }, TUI_SELECTED);
    }
    const char *none = s->filter[0] ? "no value has this text" : s->expr.n ? "no value passes" : "no values";
    if (s->list.n == 0) tui_put(&app->canvas, body.x + MARGIN, body.y + 1, body.width, TUI_DIM, none);
    draw_detail(app, s, body, bottom);
}

/* ---- actions ---- */

/* The cursor rests on values: over a heading it moves on, and back at the list's start. */
static void settle(tui_app *app, tui_program *s, bool upwards)
{
    if (s->list.n == 0) return;
    if (s->line[s->list.cursor].value < 0) s->list.cursor += upwards && s->list.cursor > 0 ? -1 : 1;
    int32_t value = s->line[s->list.cursor].value;
    if (value == app->at.value) return;
    app->at.value = value;
    app->at.element = -1;
}

static void next_different(tui_app *app, tui_program *s, int by)
{
    const tui_request *r = tui_at_request(app);
    const rpl_round *round = r ? tui_model_result(app->model, r->round_index) : NULL;
    bool pair = tui_model_is_pair(app->model), judged = r && !pair && tui_judgement(app, r), inherited;
    int32_t n = 0;
    const cap_name *name = r ? tui_model_values(app->model, r->round_index, &n) : NULL;
    for (int32_t i = s->list.cursor + by; (round || judged) && i >= 0 && i < s->list.n; i += by) {
        int32_t v = s->line[i].value;
        if (v < 0 || !(pair ? tui_is_different(tui_verdict_of(&round->value[v]))
                            : tui_origin_of(app, TUI_A, &name[v], &inherited) != NULL)) continue;
        s->list.cursor = i;
        return;
    }
    if (judged) tui_say(app, "no %s value of this round is illegal", by > 0 ? "later" : "earlier");
    else tui_say(app, !pair ? "one tape alone: nothing differs" : !round ? "not compared yet" :
            by > 0 ? "no later value differs in this round" : "no earlier value differs in this round");
}

static void sort_by(tui_app *app, tui_program *s, int column)
{
    const tui_column *c = tui_model_is_pair(app->model) ? TUI_PAIR_COLUMNS : TUI_LONE_COLUMNS;
    s->sorted = column;
    s->rising = false;
    enter(app, s);
    tui_say(app, "%s%s", column ? "sorted by " : "program order", column ? c[column].title : "");
}

/* name NULL: the next column. */
static void sort_column(tui_app *app, tui_program *s, const char *name)
{
    bool pair = tui_model_is_pair(app->model);
    int column = name ? tui_program_named_column(pair, name) : tui_program_next_column(pair, s->sorted);
    if (column >= 0) sort_by(app, s, column);
    else tui_say(app, "'%s' is no column to sort by: program %s value op", name, pair ? "differ L2 ULP" : "max rms");
}

static tui_reaction act(tui_app *app, void *state, tui_action action)
{
    tui_program *s = state;
    tui_reaction r = { 0 };
    if (tui_list_move(&s->list, action, app->page)) {
        settle(app, s, action == TUI_DO_UP || action == TUI_DO_PAGE_UP);
        return r;
    }
    switch (action) {
    case TUI_DO_OPEN:
        if (s->list.n) r.open = TUI_VALUE;
        break;
    case TUI_DO_SORT: sort_column(app, s, NULL); break;
    case TUI_DO_SORT_BY: r.ask = "sort by column: "; break;
    case TUI_DO_SORT_TURN:
        s->rising = !s->rising;
        enter(app, s);
        break;
    case TUI_DO_FILTER: r.ask = "/"; break;
    case TUI_DO_EXPRESSION: r.ask = "only values with, like excess>4 && stage==0: "; break;
    case TUI_DO_NEXT_DIFFERENT: next_different(app, s, 1); break;
    case TUI_DO_PREVIOUS_DIFFERENT: next_different(app, s, -1); break;
    default: break;
    }
    settle(app, s, false);
    return r;
}

static void text(tui_app *app, void *state, tui_action action, const char *typed)
{
    tui_program *s = state;
    err e = { 0 };
    tui_expr expr;
    if (action == TUI_DO_SORT_BY) {
        sort_column(app, s, typed);
        return;
    }
    if (action == TUI_DO_FILTER) snprintf(s->filter, sizeof s->filter, "%.*s", (int)sizeof s->filter - 1, typed);
    else if (tui_expr_parse(typed, TUI_PROGRAM_FIELDS, PROGRAM_FIELDS, &expr, &e) == ERR_OK) s->expr = expr;
    else tui_say(app, "%s", e.msg);
    enter(app, s);
}

static void csv(tui_app *app, void *state, tui_text *out)
{
    const tui_program *s = state;
    int32_t n = 0;
    char cell[256];
    const tui_request *r = tui_at_request(app);
    const cap_name *name = r ? tui_model_values(app->model, r->round_index, &n) : NULL;
    const rpl_round *round = r ? tui_model_result(app->model, r->round_index) : NULL;
    for (int i = 0; i < PROGRAM_FIELDS; i++) tui_text_csv(out, TUI_PROGRAM_FIELDS[i].name, false);
    tui_text_csv(out, "note", true);
    for (int32_t i = 0; i < s->list.n; i++) {
        int32_t v = s->line[i].value;
        if (v < 0) continue;
        tui_program_of of = { app, &name[v], round ? &round->value[v] : NULL };
        for (int k = 0; k < PROGRAM_FIELDS; k++) {
            tui_field f = tui_program_field(&of, k);
            if (!f.text) snprintf(cell, sizeof cell, "%.9g", f.number);
            tui_text_csv(out, f.text ? f.text : isnan(f.number) ? "" : cell, false);
        }
        tui_program_note(&of, cell, sizeof cell);
        tui_text_csv(out, cell, true);
    }
}

static void fini(void *state) { free(((tui_program *)state)->line); }

const tui_screen TUI_SCREEN_PROGRAM = { "Program", TUI_ON_PROGRAM, sizeof(tui_program), enter, draw, act, text, csv,
                                         NULL, fini };
