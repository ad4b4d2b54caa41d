/* Value: the elements of one value on all sides, as pages of a matrix, under a strip that shows where they differ. */
#include "tui/ref.h"
#include "tui/value_matrix.h"

#include <inttypes.h>
#include <math.h>

/* ---- coming here ---- */

static void go_to(tui_app *app, tui_value *s, int64_t i)
{
    int64_t cols = s->data.cols, n = s->data.rows * cols;
    if (n == 0) return;
    if (i < 0) i = 0;
    if (i >= n) i = n - 1;
    s->rows.cursor = (int32_t)(i / cols);
    s->col = i % cols;
    app->at.element = i;
}

static void load(void *ctx, const atomic_bool *cancel)
{
    tui_coming *c = ctx;
    (void)cancel;
    c->good = tui_loaded_get(&c->data, c->model, c->more, c->n_more, c->name, &c->e) == ERR_OK;
}

/* Takes over what has come; false: it is still on its way. */
static bool take(tui_app *app, tui_value *s)
{
    if (!s->work) return s->is_loaded;
    if (!tui_work_done(s->work)) return false;
    tui_work_end(s->work);
    s->work = NULL;
    tui_loaded old = s->data;
    s->data = s->coming.data;
    s->coming.data = old; /* its buffers are used again */
    s->is_loaded = s->coming.good;
    if (!s->is_loaded) {
        tui_say(app, "%s", s->coming.e.msg);
        return false;
    }
    s->rows = (tui_list){ .n = s->data.rows < INT32_MAX ? (int32_t)s->data.rows : INT32_MAX };
    s->col = s->left = 0;
    int64_t first = app->at.element;
    if (first < 0 && s->data.pair) first = s->data.m.worst;
    go_to(app, s, first);
    return true;
}

static void begin(tui_app *app, tui_value *s, const cap_name *n)
{
    enum { AT_ONCE_BYTES = 1 << 18 }; /* read before the next picture: a page of "reading" would only flicker */
    tui_facts facts;
    bool small = tui_model_facts_any(app->model, n, &facts) && fmt_tensor_bytes(&facts.tensor) <= AT_ONCE_BYTES;
    tui_work_end(s->work);
    s->work = NULL;
    s->is_loaded = false;
    s->request = app->at.request;
    s->index = app->at.value;
    s->generation = app->generation;
    s->coming.model = app->model;
    s->coming.name = n;
    s->coming.n_more = 0;
    s->coming.e = (err){ 0 };
    for (int i = 0; i < app->arms->n; i++) {
        if (i == app->a || i == app->b) continue;
        s->letter[s->coming.n_more] = (char)('A' + i);
        s->coming.more[s->coming.n_more++] = app->arms->tape[i];
    }
    err e = { 0 };
    if (tui_work_begin(tui_is_threaded(app) && !small, load, &s->coming, &s->work, &e) != ERR_OK) tui_say(app, "%s", e.msg);
    else take(app, s);
}

static void enter(tui_app *app, void *state)
{
    tui_value *s = state;
    tui_choose_value(app);
    const cap_name *n = tui_at_value(app);
    if (!n) return;
    bool same = s->request == app->at.request && s->index == app->at.value && s->generation == app->generation;
    if (!same || (!s->is_loaded && !s->work)) begin(app, s, n);
    else if (take(app, s)) go_to(app, s, app->at.element >= 0 ? app->at.element : tui_value_element(s));
}

/* ---- the lines around them ---- */

/* Why there is only one side. */
static const char *alone_because(tui_app *app, const tui_loaded *d)
{
    if (!tui_model_is_pair(app->model)) return "";
    if (d->there[TUI_A] && d->there[TUI_B]) return "the other side has another shape or dtype";
    if (d->why[TUI_A][0]) return d->why[TUI_A];
    return d->why[TUI_B][0] ? d->why[TUI_B] : "the other side has none";
}

static void draw_head(tui_app *app, const tui_value *s, const cap_name *n, tui_rect r)
{
    char type[160], l2[32], most[32], ulp[32];
    const rpl_value *v = tui_at_result(app);
    const tui_loaded *d = &s->data;
    tui_canvas *c = &app->canvas;
    const eng_op *op = tui_model_op(app->model, n);
    fmt_tensor_text(&d->tensor, type, sizeof type);
    int32_t x = r.x + 1 + tui_putf(c, r.x + 1, r.y, r.width - 1, TUI_STRONG, "%s", n->name);
    x += tui_putf(c, x, r.y, r.width - x, TUI_PLAIN, "  %s  ", type);
    if (op) x += tui_putf(c, x, r.y, r.width - x, TUI_PLAIN, "by %s  ", eng_kind_name(op->kind));
    if (v) {
        const tui_verdict_look *look = &TUI_VERDICT[tui_verdict_of(v)];
        tui_putf(c, x, r.y, r.width - x, look->style, "%s %s", look->glyph, look->word);
    }
    if (!d->pair)
        tui_putf(c, r.x + 1, r.y + 1, r.width - 1, TUI_DIM, "of %c alone%s%s", tui_letter(app, tui_loaded_first(d)),
                 alone_because(app, d)[0] ? ": " : "", alone_because(app, d));
    else
        tui_putf(c, r.x + 1, r.y + 1, r.width - 1, TUI_PLAIN,
                 "%" PRId64 " of %" PRId64 " differ  rel L2 %s  max |%c\u2212%c| %s  max ULP %s", d->m.n - d->m.n_equal,
                 d->m.n, tui_number(d->m.rel_l2, 9, l2), tui_letter(app, TUI_B), tui_letter(app, TUI_A),
                 tui_number(d->m.max_abs, 9, most), tui_count(d->m.max_ulp, 9, ulp));
    int side;
    bool inherited;
    const rpl_origin *o = tui_any_origin_of(app, n, &side, &inherited);
    if (!o) return;
    tui_putf(c, r.x + 1, r.y + 1, r.width - 1, TUI_PLAIN, "%*s", (int)r.width - 1, ""); /* instead of that line */
    tui_putf(c, r.x + 1, r.y + 1, r.width - 1, inherited ? TUI_INHERITED : TUI_ORIGIN,
             "%c %s: %" PRId64 " of %" PRId64 " illegal, %.3g times the bound; %s%s", tui_letter(app, side),
             o->op, o->n_illegal, o->n, fabs(o->worst.ratio), inherited ? "inherits from " : "",
             inherited ? o->from : o->cause[0] ? o->cause : "no cause named");
}

enum { DETAIL_PLAIN = 2, DETAIL_BITS = 4 };

/* Bits of one side, and what QDQ made them of. */
static void draw_bits(tui_app *app, const tui_value *s, int side, tui_rect r, int32_t y)
{
    char text[128], qdq[96];
    const tui_loaded *d = &s->data;
    int64_t i = tui_value_element(s), first = i - s->col % RPL_PROFILE_BLOCK;
    uint8_t codes[FMT_QDQ_GROUP], scale;
    int32_t x = r.x + 1 + tui_putf(&app->canvas, r.x + 1, y, r.width - 1, TUI_PLAIN, "%c %s", tui_letter(app, side),
                                   tui_bits_text(d->tensor.dtype, d->side[side].tensor.data, i, text));
    bool whole = s->col - s->col % RPL_PROFILE_BLOCK + RPL_PROFILE_BLOCK <= d->cols;
    if (whole && tui_qdq_read(d->tensor.dtype, d->side[side].tensor.data, first, codes, &scale))
        tui_putf(&app->canvas, x, y, r.x + r.width - x, TUI_DIM, "   QDQ %s", tui_qdq_text(codes[i - first], scale, qdq));
}

/* The element under the cursor, its bits, its row. */
static void draw_detail(tui_app *app, const tui_value *s, tui_rect r)
{
    char text[128], number[32], more[32], ulp[32];
    const tui_loaded *d = &s->data;
    const rpl_cell *row = &d->by_row[s->rows.cursor];
    fmt_dtype dtype = d->tensor.dtype;
    int64_t i = tui_value_element(s);
    int32_t y = r.y, right = r.x + r.width;
    char a = tui_letter(app, TUI_A), b = tui_letter(app, TUI_B);
    tui_canvas *c = &app->canvas;
    int32_t x = r.x + 1 + tui_put(c, r.x + 1, y, r.width - 1, TUI_STRONG, tui_index_text(&d->tensor, i, text));
    for (int side = TUI_A; side < TUI_SIDES; side++)
        if (tui_loaded_shows(d, side))
            x += tui_putf(c, x, y, right - x, TUI_PLAIN, "  %c %s", tui_letter(app, side),
                          tui_number(rpl_element(dtype, d->side[side].tensor.data, i), 14, number));
    for (int k = 0; k < d->n_more; k++)
        if (d->more_there[k])
            x += tui_putf(c, x, y, right - x, TUI_PLAIN, "  %c %s", s->letter[k],
                          tui_number(rpl_element(dtype, d->more[k].tensor.data, i), 14, number));
    if (d->pair)
        tui_putf(c, x, y, right - x, TUI_PLAIN, "  %c\u2212%c %s  ULP %s", b, a,
                 tui_loaded_differs(d, i) ? tui_value_cell(s, PANE_DIFFERENCE, i, 12, number) : "0",
                 tui_count(tui_loaded_ulp(d, i), 9, ulp));
    for (int side = TUI_A; s->bits && side < TUI_SIDES; side++)
        if (tui_loaded_shows(d, side)) draw_bits(app, s, side, r, ++y);
    tui_value_row(s, s->rows.cursor, text);
    x = r.x + 1 + tui_putf(c, r.x + 1, ++y, r.width - 1, TUI_PLAIN, "row %s: ", text);
    if (d->pair)
        tui_putf(c, x, y, right - x, TUI_PLAIN, "%d of %" PRId64 " differ  rel L2 %s  max |%c\u2212%c| %s  max ULP %s",
                 row->n_differ, d->cols, tui_number((double)row->rel_l2, 9, number), b, a,
                 tui_number((double)row->max_abs, 9, more), tui_count(row->max_ulp, 9, ulp));
    else
        tui_putf(c, x, y, right - x, TUI_PLAIN, "largest magnitude %s, %d of %" PRId64 " not finite",
                 tui_number((double)row->max_abs, 9, number), row->n_differ, d->cols);
}

static void draw(tui_app *app, void *state, tui_rect body)
{
    enum { HEAD = 2, STRIP_MAX = 8 };
    tui_value *s = state;
    const cap_name *n = tui_at_value(app);
    const tui_loaded *d = &s->data;
    if (n && !take(app, s) && s->work) {
        tui_putf(&app->canvas, body.x + 1, body.y, body.width - 1, TUI_STRONG, "%s", n->name);
        tui_put(&app->canvas, body.x + 1, body.y + 1, body.width - 1, TUI_DIM, "reading\u2026");
        return;
    }
    if (!n || !s->is_loaded || !tui_loaded_any(d) || d->rows * d->cols == 0) {
        const char *why = d->why[TUI_A][0] ? d->why[TUI_A] : d->why[TUI_B];
        tui_putf(&app->canvas, body.x + 1, body.y, body.width - 1, TUI_STRONG, "%s", n ? n->name : "no value");
        tui_putf(&app->canvas, body.x + 1, body.y + 1, body.width - 1, TUI_DIM, "%s", n && s->is_loaded && why[0] ? why :
                 n && s->is_loaded && tui_loaded_any(d) ? "empty: the value has no elements" : "nothing to show");
        return;
    }
    int32_t detail = s->bits && d->pair ? DETAIL_BITS : s->bits ? DETAIL_BITS - 1 : DETAIL_PLAIN;
    int32_t strip = body.height / 4 < STRIP_MAX ? body.height / 4 : STRIP_MAX;
    int64_t per_line = (d->rows + strip - 1) / strip; /* rows that a line of the strip stands for */
    strip = (int32_t)((d->rows + per_line - 1) / per_line);
    int32_t y = body.y + HEAD, bottom = body.y + body.height - detail, matrix = bottom - y - strip - 1;
    int32_t panel = s->panel == TUI_PANEL_NONE ? 0 : s->panel == TUI_PANEL_BLOCK && matrix / 2 > 9 ? 9 : matrix / 2 + 1;
    draw_head(app, s, n, body);
    tui_value_strip(app, s, (tui_rect){ body.x, y, body.width, strip + 1 });
    y += strip + 1;
    tui_value_matrix(app, s, (tui_rect){ body.x, y, body.width, bottom - y - panel });
    tui_value_panel(app, d, s->panel, tui_value_element(s), (tui_rect){ body.x, bottom - panel, body.width, panel });
    draw_detail(app, s, (tui_rect){ body.x, bottom, body.width, detail });
}

/* ---- actions ---- */

/* false: action is no movement. */
static bool move(tui_value *s, tui_action action, int32_t page)
{
    int64_t last = s->data.cols - 1;
    switch (action) {
    case TUI_DO_LEFT: s->col--; break;
    case TUI_DO_RIGHT: s->col++; break;
    case TUI_DO_PAGE_LEFT: s->col -= s->shown_cols, s->left -= s->shown_cols; break;
    case TUI_DO_PAGE_RIGHT: s->col += s->shown_cols, s->left += s->shown_cols; break;
    case TUI_DO_FIRST: s->col = 0, s->rows.cursor = 0; break;
    case TUI_DO_LAST: s->col = last, s->rows.cursor = s->rows.n - 1; break;
    default: return tui_list_move(&s->rows, action, page);
    }
    if (s->col > last) s->col = last;
    if (s->col < 0) s->col = 0;
    if (s->left > last - s->shown_cols + 1) s->left = last - s->shown_cols + 1;
    if (s->left < 0) s->left = 0;
    return true;
}

/* Of a pair what differs; of one side what is not finite, and once its round is judged what is illegal. */
static void next_element(tui_app *app, tui_value *s, int by)
{
    const tui_loaded *d = &s->data;
    const fmt_tape *t = tui_model_tape(app->model, tui_loaded_first(d));
    int64_t from = tui_value_element(s), i = by > 0 ? tui_loaded_next(d, from) : tui_loaded_previous(d, from);
    int64_t illegal = d->pair ? -1 : tui_judge_illegal(app->judge, t, tui_at_value(app), from, by);
    bool judged = tui_judge_of(app->judge, t, tui_at_request(app)->round);
    if (i < 0 || (illegal >= 0 && (illegal - i) * by < 0)) i = illegal; /* the nearer one */
    if (i >= 0) go_to(app, s, i);
    else
        tui_say(app, "no %s element %s", by > 0 ? "later" : "earlier",
                d->pair ? "differs" : judged ? "is illegal, or not finite"
                        : app->judge ? "is NaN or infinite; c judges the round, then illegal ones are found too"
                                     : "is NaN or infinite");
}

static void go_worst(tui_app *app, tui_value *s)
{
    int64_t i = tui_loaded_worst(&s->data);
    if (i >= 0) go_to(app, s, i);
    else tui_say(app, "every element is equal");
}

static tui_reaction act(tui_app *app, void *state, tui_action action)
{
    tui_value *s = state;
    tui_reaction r = { 0 };
    if (!tui_at_value(app) || !take(app, s) || s->data.rows * s->data.cols == 0) return r;
    if (move(s, action, app->page)) {
        app->at.element = tui_value_element(s);
        return r;
    }
    switch (action) {
    case TUI_DO_WORST: go_worst(app, s); break;
    case TUI_DO_NEXT_DIFFERENT: next_element(app, s, 1); break;
    case TUI_DO_PREVIOUS_DIFFERENT: next_element(app, s, -1); break;
    case TUI_DO_PANEL: s->panel = (tui_panel)((s->panel + 1) % TUI_PANELS); break;
    case TUI_DO_GOTO: r.ask = "go to index: "; break;
    case TUI_DO_BITS: s->bits = !s->bits; break;
    case TUI_DO_PANES: tui_value_next_pane(s); break;
    default: break;
    }
    return r;
}

static void text(tui_app *app, void *state, tui_action action, const char *typed)
{
    tui_value *s = state;
    int64_t index[FMT_DIMS_MAX], flat;
    int32_t n;
    char type[160];
    if (action != TUI_DO_GOTO || !s->is_loaded) return;
    if (tui_index_parse(typed, index, &n) && tui_index_flat(&s->data.tensor, index, n, &flat)) go_to(app, s, flat);
    else tui_say(app, "'%s' is no index in %s", typed, fmt_tensor_text(&s->data.tensor, type, sizeof type));
}

static void drop(void *state)
{
    tui_value *s = state;
    tui_work_end(s->work);
    s->work = NULL;
    s->is_loaded = false;
}

static void fini(void *state)
{
    tui_value *s = state;
    tui_work_end(s->work);
    tui_loaded_fini(&s->data);
    tui_loaded_fini(&s->coming.data);
}

const tui_screen TUI_SCREEN_VALUE = { "Value", TUI_ON_VALUE, sizeof(tui_value), enter, draw, act, text, NULL, drop, fini };
