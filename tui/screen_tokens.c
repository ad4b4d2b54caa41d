/* Tokens: each drafted position of a request on all arms: what was drafted, by how much, and what stood next. */
#include "tui/fetch.h"

#include <math.h>

/* Later rounds that may tell the target's token; drafted positions at most; logits of one that are shown. */
enum { AHEAD = 16, POSITIONS = 16, TOP = 16 };

typedef enum part {
    PART_DRAFTS, PART_CONFIDENCE, PART_LOGITS, PART_LOGIT_IDS, PART_BIASED, PART_BIASED_IDS,
    PART_ALL_LOGITS, PART_ALL_BIASED, /* where the largest ones were not kept apart */
    PARTS,
} part;
static const char *const PART_NAME[PARTS] = { "drafts", "confidence", "head.logits.top", "head.logits.top_ids",
                                              "head.biased.top", "head.biased.top_ids", "head.logits", "head.biased" };

/* The largest logits of one position, from all of them. */
typedef struct found { bool made; int64_t n; float top[TOP]; int32_t ids[TOP]; } found;

typedef struct tokens {
    tui_fetch fetch;
    bool made;
    int32_t request, entry, n_ahead;
    uint32_t generation;
    int32_t item[TUI_ARMS_MAX][PARTS];
    int32_t own_pos;                      /* draft.pos of this round */
    struct { int32_t entry, pos, anchor; } ahead[AHEAD];
    found found[TUI_ARMS_MAX][POSITIONS];
    tui_list list;                        /* position x arm */
} tokens;

enum { C_POSITION, C_TARGET, C_ARM, C_DRAFT, C_LOGIT, C_MARKOV, C_MARGIN, C_CONFIDENCE, C_TOP, C_COUNT };
static const tui_column COLUMNS[C_COUNT] = {
    [C_POSITION] = { "pos", 3, 6, 0, true, false },
    [C_TARGET] = { "target", 7, 7, 1, true, false },
    [C_ARM] = { "arm", 3, 18, 0, false, false },
    [C_DRAFT] = { "draft", 7, 7, 0, true, false },
    [C_LOGIT] = { "logit", 8, 9, 2, true, false },
    [C_MARKOV] = { "Markov", 8, 9, 3, true, false },
    [C_MARGIN] = { "margin", 8, 9, 1, true, false },
    [C_CONFIDENCE] = { "confid.", 8, 9, 4, true, false },
    [C_TOP] = { "next ones", 16, 140, 1, false, false },
};

/* ---- what is read ---- */

static void ask(tui_app *app, tokens *s)
{
    const tui_request *r = tui_at_request(app);
    tui_fetch_clear(&s->fetch);
    s->made = true;
    s->request = app->at.request;
    s->generation = app->generation;
    s->entry = r ? r->entry : -1;
    s->n_ahead = 0;
    s->list.n = 0;
    if (s->entry < 0) return;
    memset(s->found, 0, sizeof s->found);
    bool top = tui_model_find_value(app->model, r->round_index, FMT_TAPE_NO_SLOT, PART_NAME[PART_BIASED]) >= 0;
    for (int arm = 0; arm < app->arms->n; arm++)
        for (int p = 0; p < PARTS; p++)
            s->item[arm][p] = top && p >= PART_ALL_LOGITS ? -1 :
                tui_fetch_add(&s->fetch, app->arms->tape[arm], r->round, FMT_TAPE_NO_SLOT, PART_NAME[p]);
    const fmt_tape *t = tui_model_tape(app->model, TUI_A);
    s->own_pos = tui_fetch_add(&s->fetch, t, r->round, FMT_TAPE_NO_SLOT, "draft.pos");
    for (int32_t i = tui_model_step(app->model, s->request, 1); i >= 0 && s->n_ahead < AHEAD;
         i = tui_model_step(app->model, i, 1)) {
        const tui_request *later = tui_model_request(app->model, i);
        if (later->entry < 0) continue;
        s->ahead[s->n_ahead].entry = later->entry;
        s->ahead[s->n_ahead].pos = tui_fetch_add(&s->fetch, t, later->round, FMT_TAPE_NO_SLOT, "draft.pos");
        s->ahead[s->n_ahead++].anchor = tui_fetch_add(&s->fetch, t, later->round, FMT_TAPE_NO_SLOT, "draft.anchor");
    }
    tui_fetch_start(app, &s->fetch);
}

/* Lines are known once the first arm's drafts are. */
static void count_lines(tui_app *app, tokens *s)
{
    int64_t most = 0;
    for (int arm = 0; arm < app->arms->n && s->entry >= 0; arm++) {
        const fmt_tensor *t = tui_fetch_get(&s->fetch, s->item[arm][PART_DRAFTS], FMT_DTYPE_I32, 2);
        if (t && t->shape[1] > most) most = t->shape[1];
    }
    s->list.n = (int32_t)(most < POSITIONS ? most : POSITIONS) * app->arms->n;
}

static void enter(tui_app *app, void *state)
{
    tokens *s = state;
    if (!s->made || s->request != app->at.request || s->generation != app->generation) ask(app, s);
    count_lines(app, s);
    tui_list_fit(&s->list, app->page);
}

/* ---- one position of one arm ---- */

/* What the tape may not have; NaN is a figure too. */
typedef struct figure { double v; bool known; } figure;
static figure known(double v) { return (figure){ v, true }; }

typedef struct guess {
    int32_t token;
    figure logit, markov, margin, confidence;
    int64_t n_top;
    const float *top;                         /* after the Markov term, [n_top], descending */
    const int32_t *top_ids;
} guess;

/* Row of a value that holds all logits; NULL: not there. */
static const float *all_logits(const tokens *s, int arm, part p, int32_t ndim, int64_t row, int64_t *n)
{
    const fmt_tensor *t = tui_fetch_get(&s->fetch, s->item[arm][p], FMT_DTYPE_F32, ndim);
    if (!t) return NULL;
    *n = t->shape[ndim - 1];
    return row < fmt_tensor_elems(t) / (*n ? *n : 1) ? (const float *)t->data + row * *n : NULL;
}

/* Keeps the TOP largest, ties to the lower id as the model has it. */
static void find_top(found *f, const float *x, int64_t n)
{
    f->made = true;
    f->n = 0;
    for (int64_t i = 0; i < n; i++) {
        if (f->n == TOP && !(x[i] > f->top[TOP - 1])) continue;
        int64_t at = f->n < TOP ? f->n++ : TOP - 1;
        for (; at > 0 && x[i] > f->top[at - 1]; at--) f->top[at] = f->top[at - 1], f->ids[at] = f->ids[at - 1];
        f->top[at] = x[i];
        f->ids[at] = (int32_t)i;
    }
}

static void set_top(guess *g, const float *top, const int32_t *ids, int64_t n)
{
    g->n_top = n;
    g->top = top;
    g->top_ids = ids;
    if (n > 1) g->margin = known((double)top[0] - (double)top[1]);
}

/* Position i's row of logits among those of a step: each slot has as many rows. -1: none. */
static int64_t logits_row(const tokens *s, const fmt_tensor *logits, const fmt_tensor *drafts, int32_t i)
{
    int64_t of_slot = drafts->shape[0] ? logits->shape[0] / drafts->shape[0] : 0;
    return i < of_slot ? s->entry * of_slot + i : -1;
}

/* From the largest logits that the tape keeps apart, before and after the Markov term. */
static void guess_from_top(const tokens *s, int arm, int32_t i, const fmt_tensor *drafts, guess *g)
{
    const fmt_tensor *logits = tui_fetch_get(&s->fetch, s->item[arm][PART_LOGITS], FMT_DTYPE_F32, 2);
    const fmt_tensor *ids = tui_fetch_get(&s->fetch, s->item[arm][PART_LOGIT_IDS], FMT_DTYPE_I32, 2);
    const fmt_tensor *biased = tui_fetch_get(&s->fetch, s->item[arm][PART_BIASED], FMT_DTYPE_F32, 3);
    const fmt_tensor *biased_ids = tui_fetch_get(&s->fetch, s->item[arm][PART_BIASED_IDS], FMT_DTYPE_I32, 3);
    if (biased && biased_ids && s->entry < biased->shape[0] && i < biased->shape[1] &&
        memcmp(biased->shape, biased_ids->shape, sizeof biased->shape) == 0) {
        int64_t at = (s->entry * biased->shape[1] + i) * biased->shape[2];
        set_top(g, (const float *)biased->data + at, (const int32_t *)biased_ids->data + at, biased->shape[2]);
    }
    if (!logits || !ids || memcmp(logits->shape, ids->shape, sizeof ids->shape) != 0) return;
    int64_t row = logits_row(s, logits, drafts, i);
    for (int64_t k = 0; row >= 0 && k < logits->shape[1]; k++)
        if (((const int32_t *)ids->data)[row * ids->shape[1] + k] == g->token)
            g->logit = known((double)((const float *)logits->data)[row * logits->shape[1] + k]);
    for (int64_t k = 0; k < g->n_top; k++)
        if (g->top_ids[k] == g->token && g->logit.known) g->markov = known((double)g->top[k] - g->logit.v);
}

/* The same from all logits. */
static void guess_from_all(tokens *s, int arm, int32_t i, const fmt_tensor *drafts, guess *g)
{
    int64_t n;
    const fmt_tensor *base = tui_fetch_get(&s->fetch, s->item[arm][PART_ALL_LOGITS], FMT_DTYPE_F32, 2);
    const float *biased = all_logits(s, arm, PART_ALL_BIASED, 3, s->entry * drafts->shape[1] + i, &n);
    if (!biased) return;
    if (i < POSITIONS) {
        found *f = &s->found[arm][i];
        if (!f->made) find_top(f, biased, n);
        set_top(g, f->top, f->ids, f->n);
    }
    int64_t row = base ? logits_row(s, base, drafts, i) : -1;
    const float *logits = row >= 0 ? all_logits(s, arm, PART_ALL_LOGITS, 2, row, &n) : NULL;
    if (!logits || g->token < 0 || g->token >= n) return;
    g->logit = known((double)logits[g->token]);
    g->markov = known((double)biased[g->token] - g->logit.v);
}

static bool guess_of(tokens *s, int arm, int32_t i, guess *g)
{
    const fmt_tensor *drafts = tui_fetch_get(&s->fetch, s->item[arm][PART_DRAFTS], FMT_DTYPE_I32, 2);
    const fmt_tensor *confidence = tui_fetch_get(&s->fetch, s->item[arm][PART_CONFIDENCE], FMT_DTYPE_F32, 2);
    *g = (guess){ .token = -1 };
    if (!drafts || s->entry >= drafts->shape[0] || i >= drafts->shape[1]) return false;
    g->token = ((const int32_t *)drafts->data)[s->entry * drafts->shape[1] + i];
    if (confidence && s->entry < confidence->shape[0] && i < confidence->shape[1])
        g->confidence = known((double)((const float *)confidence->data)[s->entry * confidence->shape[1] + i]);
    guess_from_top(s, arm, i, drafts, g);
    if (!g->top) guess_from_all(s, arm, i, drafts, g);
    return true;
}

static bool int_at(const tokens *s, int32_t item, int32_t entry, int32_t *out)
{
    const fmt_tensor *t = tui_fetch_get(&s->fetch, item, FMT_DTYPE_I32, 1);
    if (!t || entry >= t->shape[0]) return false;
    *out = ((const int32_t *)t->data)[entry];
    return true;
}

/* A later round of this slot is anchored at the token after its last inserted position: the target's own. -1: unknown. */
static int32_t target_token(const tokens *s, int32_t i)
{
    int32_t p, q, anchor;
    if (!int_at(s, s->own_pos, s->entry, &p)) return -1;
    for (int32_t k = 0; k < s->n_ahead; k++)
        if (int_at(s, s->ahead[k].pos, s->ahead[k].entry, &q) && q == p + 1 + i &&
            int_at(s, s->ahead[k].anchor, s->ahead[k].entry, &anchor))
            return anchor;
    return -1;
}

/* ---- drawing ---- */

static void top_text(const guess *g, char *buf, size_t bytes)
{
    char number[32];
    size_t at = 0;
    buf[0] = 0;
    for (int64_t k = 0; k < g->n_top && at + 24 < bytes; k++)
        if (g->top_ids[k] != g->token)
            at += (size_t)snprintf(buf + at, bytes - at, "%s%d:%s", at ? " " : "", g->top_ids[k],
                                   tui_number((double)g->top[k], 6, number));
}

static void cell_text(tokens *s, tui_app *app, int32_t line, int column, char *buf, size_t bytes)
{
    char number[32];
    guess g;
    int arm = line % app->arms->n;
    int32_t i = line / app->arms->n, target = target_token(s, i);
    bool there = guess_of(s, arm, i, &g);
    figure f;
    buf[0] = 0;
    switch (column) {
    case C_POSITION:
        if (arm == 0) snprintf(buf, bytes, "+%d", i);
        return;
    case C_TARGET:
        if (arm == 0 && target >= 0) snprintf(buf, bytes, "%d", target);
        return;
    case C_ARM: snprintf(buf, bytes, "%c %s", 'A' + arm, tui_arms_name(app->arms, arm)); return;
    case C_DRAFT:
        if (there) snprintf(buf, bytes, "%d", g.token);
        return;
    case C_LOGIT: f = g.logit; break;
    case C_MARKOV: f = g.markov; break;
    case C_MARGIN: f = g.margin; break;
    case C_CONFIDENCE: f = g.confidence; break;
    default: top_text(&g, buf, bytes); return;
    }
    if (f.known) snprintf(buf, bytes, "%s", tui_number(f.v, 8, number));
}

static bool differs(tui_app *app, tokens *s, int32_t position)
{
    guess a, b;
    bool there = guess_of(s, app->a, position, &a), other = guess_of(s, app->b, position, &b);
    return there && other && a.token != b.token;
}

/* What the numbers mean: the token under the cursor in words. */
static void draw_detail(tui_app *app, tokens *s, tui_rect r)
{
    guess a, b;
    char m[32];
    int32_t i = s->list.cursor / app->arms->n, target = target_token(s, i);
    bool there = guess_of(s, app->a, i, &a), other = tui_model_is_pair(app->model) && guess_of(s, app->b, i, &b);
    tui_canvas *c = &app->canvas;
    int32_t x = r.x + 1 + tui_putf(c, r.x + 1, r.y, r.width - 1, TUI_STRONG, "draft %d: ", i);
    if (there && other && a.token != b.token) {
        figure margin = !b.margin.known ? a.margin : !a.margin.known ? b.margin : known(fmin(a.margin.v, b.margin.v));
        x += tui_putf(c, x, r.y, r.width - x, TUI_ORIGIN, "%c drafts %d, %c %d", tui_letter(app, TUI_A), a.token,
                      tui_letter(app, TUI_B), b.token);
        if (margin.known)
            tui_putf(c, x, r.y, r.width - x, TUI_ORIGIN, "; won by %s%s", tui_number(margin.v, 8, m),
                     margin.v < 1e-3 ? ": a near-tie" : "");
    } else if (there) {
        tui_putf(c, x, r.y, r.width - x, TUI_PLAIN, other ? "both draft %d" : "%d", a.token);
    }
    if (target >= 0 && there)
        tui_putf(c, r.x + 1, r.y + 1, r.width - 1, TUI_PLAIN, "the target's token is %d: %s", target,
                 a.token == target ? "drafted" : "not drafted by A");
    else tui_put(c, r.x + 1, r.y + 1, r.width - 1, TUI_DIM, "the target's token is not on the tape");
}

static void draw(tui_app *app, void *state, tui_rect body)
{
    enum { MARGIN = 2, DETAIL = 2 };
    tokens *s = state;
    char text[256];
    enter(app, s);
    int32_t y = body.y;
    if (s->list.n == 0) {
        bool reading = s->entry >= 0 && !tui_work_done(s->fetch.work);
        tui_put(&app->canvas, body.x + MARGIN, y, body.width - MARGIN, TUI_DIM,
                reading ? "reading\u2026" : s->entry < 0 ? "this slot was not drafted in this round" :
                    "the tape has no drafts");
        return;
    }
    tui_layout l = tui_layout_of(COLUMNS, C_COUNT, body.x + MARGIN, body.width - MARGIN, true);
    tui_table_head(&app->canvas, COLUMNS, C_COUNT, &l, y++, -1, false);
    app->page = body.height - 1 - DETAIL;
    app->list = &s->list;
    app->list_y = y;
    tui_list_fit(&s->list, app->page);
    for (int32_t i = s->list.top; i < s->list.n && i < s->list.top + app->page; i++, y++) {
        bool differ = differs(app, s, i / app->arms->n);
        for (int c = 0; c < C_COUNT; c++) {
            cell_text(s, app, i, c, text, sizeof text);
            if (c == C_ARM && l.width[c] < 8) text[1] = 0; /* no room for a name: the letter alone */
            tui_table_put(&app->canvas, COLUMNS, c, &l, y, differ && c == C_DRAFT ? TUI_ORIGIN : TUI_PLAIN, text);
        }
        if (differ) tui_put(&app->canvas, body.x + 1, y, 1, TUI_ORIGIN, "\u2260");
        if (i != s->list.cursor) continue;
        tui_put(&app->canvas, body.x, y, 1, TUI_PLAIN, ">");
        tui_mark(&app->canvas, (tui_rect){ body.x, y, body.width, 1 }, TUI_SELECTED);
    }
    draw_detail(app, s, (tui_rect){ body.x, body.y + body.height - DETAIL, body.width, DETAIL });
}

/* ---- actions ---- */

static tui_reaction act(tui_app *app, void *state, tui_action action)
{
    tokens *s = state;
    int by = action == TUI_DO_PREVIOUS_DIFFERENT ? -1 : 1;
    if (tui_list_move(&s->list, action, app->page)) return (tui_reaction){ 0 };
    if (action == TUI_DO_OPEN && !tui_open_value(app, FMT_TAPE_NO_SLOT, "head.biased") &&
        !tui_open_value(app, FMT_TAPE_NO_SLOT, "head.biased.top"))
        tui_say(app, "the tape has no logits");
    if (action != TUI_DO_NEXT_DIFFERENT && action != TUI_DO_PREVIOUS_DIFFERENT) return (tui_reaction){ 0 };
    for (int32_t i = s->list.cursor / app->arms->n + by; i >= 0 && i * app->arms->n < s->list.n; i += by)
        if (differs(app, s, i)) {
            s->list.cursor = i * app->arms->n;
            return (tui_reaction){ 0 };
        }
    tui_say(app, tui_model_is_pair(app->model) ? "no %s token differs" : "one tape alone: nothing differs",
            by > 0 ? "later" : "earlier");
    return (tui_reaction){ 0 };
}

static void csv(tui_app *app, void *state, tui_text *out)
{
    tokens *s = state;
    char text[512];
    for (int c = 0; c < C_COUNT; c++) tui_text_csv(out, COLUMNS[c].title, c + 1 == C_COUNT);
    for (int32_t i = 0; i < s->list.n; i++)
        for (int c = 0; c < C_COUNT; c++) {
            int32_t first = i - i % app->arms->n; /* a line of a file has its position whichever arm it is of */
            cell_text(s, app, c == C_POSITION || c == C_TARGET ? first : i, c, text, sizeof text);
            tui_text_csv(out, text, c + 1 == C_COUNT);
        }
}

static void drop(void *state)
{
    tokens *s = state;
    tui_fetch_clear(&s->fetch);
    s->made = false;
}

static void fini(void *state) { tui_fetch_fini(&((tokens *)state)->fetch); }

const tui_screen TUI_SCREEN_TOKENS = { "Tokens", TUI_ON_TOKENS, sizeof(tokens), enter, draw, act, NULL, csv, drop,
                                        fini };
