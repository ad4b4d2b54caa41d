/* Program: the values of one request's round in the order in which the step makes them, grouped by stage. */
#include "tui/app.h"

#include "base/mem.h"
#include "tui/ref.h"

#include <math.h>

enum { PAIR_VERDICT, PAIR_VALUE, PAIR_OP, PAIR_TYPE, PAIR_DIFFER, PAIR_L2, PAIR_ULP, PAIR_BAR, PAIR_NOTE, PAIR_COUNT };
static const tui_column PAIR_COLUMNS[PAIR_COUNT] = {
    [PAIR_VERDICT] = { "", 1, 1, 0, false, false },
    [PAIR_VALUE] = { "value", 18, 24, 0, false, false },
    [PAIR_OP] = { "op", 12, 16, 4, false, false },
    [PAIR_TYPE] = { "type", 16, 22, 5, false, false },
    [PAIR_DIFFER] = { "differ", 7, 8, 1, true, false },
    [PAIR_L2] = { "rel L2", 8, 8, 0, true, false },
    [PAIR_ULP] = { "ULP", 5, 6, 1, true, false },
    [PAIR_BAR] = { "1e-8..1", 10, 24, 2, false, false },
    [PAIR_NOTE] = { "note", 16, 40, 3, false, false },
};

enum { LONE_VALUE, LONE_OP, LONE_TYPE, LONE_MIN, LONE_MAX, LONE_RMS, LONE_NOTE, LONE_COUNT };
static const tui_column LONE_COLUMNS[LONE_COUNT] = {
    [LONE_VALUE] = { "value", 18, 24, 0, false, false },
    [LONE_OP] = { "op", 12, 16, 4, false, false },
    [LONE_TYPE] = { "type", 16, 22, 1, false, false },
    [LONE_MIN] = { "min", 8, 10, 1, true, false },
    [LONE_MAX] = { "max", 8, 10, 0, true, false },
    [LONE_RMS] = { "rms", 8, 10, 2, true, false },
    [LONE_NOTE] = { "note", 10, 40, 3, false, false },
};

typedef struct program_line { int32_t value; /* -1: the heading of a group */ int32_t group; } program_line;

typedef struct program {
    program_line *line;
    size_t capacity;
    tui_list list;
    char filter[64];
} program;

/* ---- groups ---- */

enum { GROUP_INSERT, GROUP_INPUT, GROUP_WINDOW, GROUP_BLOCK, GROUP_HEAD, GROUP_OTHER, GROUP_STAGE /* + k */ };

static int32_t group_of(const cap_name *n)
{
    static const char *const BLOCK[] = { "ids", "block_pos", "x0" }, *const LAST[] = { "drafts", "confidence" };
    if (strstr(n->name, ".window")) return GROUP_WINDOW;
    if (n->slot != FMT_TAPE_NO_SLOT) return GROUP_INSERT;
    if (strncmp(n->name, "draft.", 6) == 0) return GROUP_INPUT;
    if (strncmp(n->name, "head.", 5) == 0) return GROUP_HEAD;
    if (n->name[0] == 's' && n->name[1] >= '0' && n->name[1] <= '9') return GROUP_STAGE + atoi(n->name + 1);
    for (size_t i = 0; i < COUNT_OF(BLOCK); i++)
        if (strcmp(n->name, BLOCK[i]) == 0) return GROUP_BLOCK;
    for (size_t i = 0; i < COUNT_OF(LAST); i++)
        if (strcmp(n->name, LAST[i]) == 0) return GROUP_HEAD;
    return GROUP_OTHER;
}

static void group_text(int32_t group, char *buf, size_t bytes)
{
    static const char *const TEXT[] = { "insert", "inputs of the draft step", "windows", "block", "head", "other values" };
    if (group < GROUP_STAGE) snprintf(buf, bytes, "%s", TEXT[group]);
    else snprintf(buf, bytes, "stage %d", group - GROUP_STAGE);
}

/* ---- the lines ---- */

static bool add_line(program *s, int32_t value, int32_t group)
{
    void *array = s->line;
    if (!mem_grow(&array, &s->capacity, (size_t)s->list.n + 1, sizeof *s->line)) return false;
    s->line = array;
    s->line[s->list.n++] = (program_line){ value, group };
    return true;
}

static bool passes(tui_app *app, const program *s, const cap_name *n, const rpl_round *round, int32_t i)
{
    const eng_op *op = tui_model_op(app->model, n);
    return tui_contains(n->name, s->filter) || (op && tui_contains(eng_kind_name(op->kind), s->filter)) ||
           (round && tui_contains(TUI_VERDICT[tui_verdict_of(&round->value[i])].word, s->filter));
}

static void make_lines(tui_app *app, program *s)
{
    int32_t n = 0, group = -1;
    bool room = true;
    const tui_request *r = tui_at_request(app);
    const cap_name *name = r ? tui_model_values(app->model, r->round_index, &n) : NULL;
    const rpl_round *round = r ? tui_model_result(app->model, r->round_index) : NULL;
    s->list.n = 0;
    for (int32_t i = 0; i < n && room; i++) {
        if (!tui_model_shows(r, &name[i]) || !passes(app, s, &name[i], round, i)) continue;
        int32_t g = group_of(&name[i]);
        if (g != group) room = add_line(s, -1, g);
        group = g;
        room = room && add_line(s, i, g);
    }
    if (!room) tui_say(app, "no memory for the list");
}

/* Puts the cursor on app->at; without a choice on the first origin, else on the first value. */
static void find_cursor(tui_app *app, program *s)
{
    const tui_request *r = tui_at_request(app);
    if (app->at.value < 0 && r) app->at.value = r->first_origin;
    s->list.cursor = s->list.n > 1 ? 1 : 0;
    for (int32_t i = 0; i < s->list.n; i++)
        if (app->at.value >= 0 && s->line[i].value == app->at.value) s->list.cursor = i;
    if (s->list.n) app->at.value = s->line[s->list.cursor].value;
    tui_list_fit(&s->list, app->page);
}

static void enter(tui_app *app, void *state)
{
    make_lines(app, state);
    find_cursor(app, state);
}

/* ---- drawing ---- */

/* What does not fit the figures: why it was not compared, findings, agreement of ids and tokens. */
static void pair_note(const rpl_value *v, char *buf, size_t bytes)
{
    char number[32];
    buf[0] = 0;
    if (v->state == RPL_STATE_UNREADABLE) snprintf(buf, bytes, "%s", v->why);
    else if (v->state != RPL_STATE_COMPARED) snprintf(buf, bytes, "%s", rpl_state_text(v->state));
    else if (v->m.findings)
        snprintf(buf, bytes, "%s", rpl_finding_text((rpl_finding)(v->m.findings & -v->m.findings)));
    else if (v->has_ids && v->m.n_equal < v->m.n)
        snprintf(buf, bytes, "same experts %lld/%lld", (long long)v->ids.n_same_set, (long long)v->ids.rows);
    else if (v->has_logits && v->m.n_equal < v->m.n)
        snprintf(buf, bytes, "argmax %lld/%lld KL %s", (long long)v->logits.n_argmax_equal, (long long)v->logits.rows,
                 tui_number(v->logits.kl_max, 8, number));
}

/* 1e-8 … 1 as 0 … 1, by its logarithm. */
static double error_share(double rel_l2) { return rel_l2 > 0 ? fmax(log10(rel_l2) / 8 + 1, 0.02) : 0; }

static void type_text(tui_app *app, const cap_name *n, char *buf, size_t bytes)
{
    tui_facts facts;
    buf[0] = 0;
    if (tui_model_facts_any(app->model, n, &facts)) fmt_tensor_text(&facts.tensor, buf, bytes);
}

static void draw_pair(tui_app *app, const tui_layout *l, int32_t y, const cap_name *n, const rpl_value *v)
{
    char text[160], number[32];
    tui_canvas *c = &app->canvas;
    const eng_op *op = tui_model_op(app->model, n);
    tui_verdict verdict = v ? tui_verdict_of(v) : TUI_VERDICT_PENDING;
    int style = TUI_VERDICT[verdict].style;
    tui_table_put(c, PAIR_COLUMNS, PAIR_VERDICT, l, y, style, TUI_VERDICT[verdict].glyph);
    tui_table_put(c, PAIR_COLUMNS, PAIR_VALUE, l, y, style, n->name);
    tui_table_put(c, PAIR_COLUMNS, PAIR_OP, l, y, TUI_PLAIN, op ? eng_kind_name(op->kind) : "");
    type_text(app, n, text, sizeof text);
    tui_table_put(c, PAIR_COLUMNS, PAIR_TYPE, l, y, TUI_DIM, text);
    if (!v) return;
    pair_note(v, text, sizeof text);
    bool warn = v->m.findings || verdict == TUI_VERDICT_BROKEN;
    tui_table_put(c, PAIR_COLUMNS, PAIR_NOTE, l, y, warn ? TUI_WARN : TUI_PLAIN, text);
    if (v->state != RPL_STATE_COMPARED || v->m.n_equal == v->m.n) return;
    tui_table_put(c, PAIR_COLUMNS, PAIR_DIFFER, l, y, TUI_PLAIN, tui_count((uint64_t)(v->m.n - v->m.n_equal), 7, number));
    if (!tui_is_float(v->a.dtype)) return;
    tui_table_put(c, PAIR_COLUMNS, PAIR_L2, l, y, style, tui_number(v->m.rel_l2, 8, number));
    tui_table_put(c, PAIR_COLUMNS, PAIR_ULP, l, y, TUI_PLAIN, tui_count(v->m.max_ulp, 5, number));
    tui_bar(c, l->x[PAIR_BAR], y, l->width[PAIR_BAR], style, error_share(v->m.rel_l2));
}

static void draw_lone(tui_app *app, const tui_layout *l, int32_t y, const cap_name *n)
{
    char text[160], number[32];
    tui_facts f;
    tui_canvas *c = &app->canvas;
    const eng_op *op = tui_model_op(app->model, n);
    tui_table_put(c, LONE_COLUMNS, LONE_VALUE, l, y, TUI_PLAIN, n->name);
    tui_table_put(c, LONE_COLUMNS, LONE_OP, l, y, TUI_PLAIN, op ? eng_kind_name(op->kind) : "");
    type_text(app, n, text, sizeof text);
    tui_table_put(c, LONE_COLUMNS, LONE_TYPE, l, y, TUI_DIM, text);
    if (!tui_model_facts(app->model, TUI_A, n, &f)) return;
    if (!f.has_stats) {
        tui_table_put(c, LONE_COLUMNS, LONE_NOTE, l, y, TUI_DIM, f.tier == FMT_TIER_HASH ? "hash only" : "sum of ranks");
        return;
    }
    tui_table_put(c, LONE_COLUMNS, LONE_MIN, l, y, TUI_PLAIN, tui_number(f.stats.min, 8, number));
    tui_table_put(c, LONE_COLUMNS, LONE_MAX, l, y, TUI_PLAIN, tui_number(f.stats.max, 8, number));
    if (f.stats.rms > 0) tui_table_put(c, LONE_COLUMNS, LONE_RMS, l, y, TUI_PLAIN, tui_number(f.stats.rms, 8, number));
    unsigned long long nan = f.stats.n_nan, inf = f.stats.n_inf;
    if (nan || inf) snprintf(text, sizeof text, "%llu NaN, %llu Inf", nan, inf);
    else snprintf(text, sizeof text, "%s", f.tier == FMT_TIER_STATS ? "statistics only" : "");
    tui_table_put(c, LONE_COLUMNS, LONE_NOTE, l, y, nan || inf ? TUI_WARN : TUI_DIM, text);
}

static void draw_heading(tui_app *app, tui_rect body, int32_t y, int32_t group)
{
    char text[48];
    group_text(group, text, sizeof text);
    int32_t x = body.x + 2 + tui_put(&app->canvas, body.x + 2, y, body.width - 2, TUI_STRONG, text) + 1;
    for (; x < body.x + body.width; x++) tui_glyph(&app->canvas, x, y, TUI_DIM, 0x2500);
}

/* The chosen value in words: the two lines above the keys. */
static void draw_detail(tui_app *app, const program *s, tui_rect body, int32_t y)
{
    const cap_name *n = tui_at_value(app);
    const rpl_value *v = tui_at_result(app);
    const eng_op *op = n ? tui_model_op(app->model, n) : NULL;
    char type[160], index[128];
    tui_canvas *c = &app->canvas;
    if (!n || s->list.n == 0) return;
    type_text(app, n, type, sizeof type);
    tui_putf(c, body.x + 1, y, body.width - 1, TUI_PLAIN, "%s  %s%s%s%s", n->name, type, op ? "  by " : "",
             op ? eng_kind_name(op->kind) : "", s->filter[0] ? "  (filtered)" : "");
    if (!v) return;
    const tui_verdict_look *look = &TUI_VERDICT[tui_verdict_of(v)];
    if (v->state != RPL_STATE_COMPARED || v->m.n_equal == v->m.n || v->m.worst < 0) {
        tui_putf(c, body.x + 1, y + 1, body.width - 1, TUI_PLAIN, "%s%s%s", look->word, v->why[0] ? ": " : "", v->why);
        return;
    }
    tui_putf(c, body.x + 1, y + 1, body.width - 1, TUI_PLAIN, "%s: %lld of %lld differ, worst %s A %.9g B %.9g", look->word,
             (long long)(v->m.n - v->m.n_equal), (long long)v->m.n, tui_index_text(&v->a, v->m.worst, index), v->a_worst,
             v->b_worst);
}

static void draw(tui_app *app, void *state, tui_rect body)
{
    enum { DETAIL_LINES = 2, MARGIN = 2 };
    program *s = state;
    int32_t n = 0, y = body.y, bottom = body.y + body.height - DETAIL_LINES;
    const tui_request *r = tui_at_request(app);
    const cap_name *name = r ? tui_model_values(app->model, r->round_index, &n) : NULL;
    const rpl_round *round = r ? tui_model_result(app->model, r->round_index) : NULL;
    bool pair = tui_model_is_pair(app->model);
    const tui_column *column = pair ? PAIR_COLUMNS : LONE_COLUMNS;
    int n_columns = pair ? PAIR_COUNT : LONE_COUNT;
    tui_layout l = tui_layout_of(column, n_columns, body.x + MARGIN, body.width - MARGIN, true);
    tui_table_head(&app->canvas, column, n_columns, &l, y++, -1, false);
    app->page = bottom - y;
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
    const char *none = s->filter[0] ? "no value has this text" : "no values";
    if (s->list.n == 0) tui_put(&app->canvas, body.x + MARGIN, body.y + 1, body.width, TUI_DIM, none);
    draw_detail(app, s, body, bottom);
}

/* ---- actions ---- */

/* The cursor rests on values: over a heading it moves on, and back at the list's start. */
static void settle(tui_app *app, program *s, bool upwards)
{
    if (s->list.n == 0) return;
    if (s->line[s->list.cursor].value < 0) s->list.cursor += upwards && s->list.cursor > 0 ? -1 : 1;
    int32_t value = s->line[s->list.cursor].value;
    if (value == app->at.value) return;
    app->at.value = value;
    app->at.element = -1;
}

static void next_different(tui_app *app, program *s, int by)
{
    const tui_request *r = tui_at_request(app);
    const rpl_round *round = r ? tui_model_result(app->model, r->round_index) : NULL;
    for (int32_t i = s->list.cursor + by; round && i >= 0 && i < s->list.n; i += by) {
        if (s->line[i].value < 0 || !tui_is_different(tui_verdict_of(&round->value[s->line[i].value]))) continue;
        s->list.cursor = i;
        return;
    }
    tui_say(app, !tui_model_is_pair(app->model) ? "one tape alone: nothing differs" : !round ? "not compared yet" :
            by > 0 ? "no later value differs in this round" : "no earlier value differs in this round");
}

static tui_reaction act(tui_app *app, void *state, tui_action action)
{
    program *s = state;
    tui_reaction r = { 0 };
    if (tui_list_move(&s->list, action, app->page)) {
        settle(app, s, action == TUI_DO_UP || action == TUI_DO_PAGE_UP);
        return r;
    }
    switch (action) {
    case TUI_DO_OPEN:
        if (s->list.n) r.open = TUI_VALUE;
        break;
    case TUI_DO_FILTER: r.ask = "/"; break;
    case TUI_DO_NEXT_DIFFERENT: next_different(app, s, 1); break;
    case TUI_DO_PREVIOUS_DIFFERENT: next_different(app, s, -1); break;
    default: break;
    }
    settle(app, s, false);
    return r;
}

static void text(tui_app *app, void *state, tui_action action, const char *typed)
{
    program *s = state;
    if (action != TUI_DO_FILTER) return;
    snprintf(s->filter, sizeof s->filter, "%.*s", (int)sizeof s->filter - 1, typed);
    enter(app, s);
}

static void fini(void *state) { free(((program *)state)->line); }

const tui_screen TUI_SCREEN_PROGRAM = { "Program", TUI_ON_PROGRAM, sizeof(program), enter, draw, act, text, fini };
