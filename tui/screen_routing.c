/* Routing: the experts of every row of one request on all arms, and how often each was taken over the rounds around. */
#include "tui/cut.h"
#include "tui/fetch.h"

#include "base/mem.h"

#include <math.h>

enum { STAGES = ENG_STAGES_MAX, HEAT_ROUNDS = 24, PART_IDS = 0, PART_WEIGHTS, PART_SCORES, PARTS };

typedef struct routing {
    tui_fetch fetch;
    bool made;
    int32_t request;
    uint32_t generation;
    int32_t n_stages, row0, n_rows;      /* rows of the request in a step's values; n_rows 0: not drafted */
    int32_t heat_first, heat_rounds;     /* index of the first round of the map */
    int32_t stage;                       /* of the map */
    int32_t item[TUI_ARMS_MAX][STAGES][PARTS];
    int32_t heat[TUI_SIDES][STAGES][HEAT_ROUNDS];
    tui_list list;                       /* stage x row */
} routing;

enum { C_MARK, C_STAGE, C_ROW, C_IDS_A, C_WEIGHTS_A, C_CUT_A, C_IDS_B, C_WEIGHTS_B, C_CUT_B, C_COUNT };
static const tui_column COLUMNS[C_COUNT] = {
    [C_MARK] = { "", 1, 1, 0, false, true },
    [C_STAGE] = { "stage", 5, 5, 0, true, false },
    [C_ROW] = { "row", 3, 4, 0, true, false },
    [C_IDS_A] = { "experts A", 12, 24, 0, false, false },
    [C_WEIGHTS_A] = { "weights", 14, 26, 1, false, false },
    [C_CUT_A] = { "cut", 7, 9, 2, true, false },
    [C_IDS_B] = { "experts B", 12, 24, 0, false, true },
    [C_WEIGHTS_B] = { "weights", 14, 26, 3, false, true },
    [C_CUT_B] = { "cut", 7, 9, 2, true, true },
};

/* ---- what is read ---- */

static void stage_name(int32_t stage, const char *what, char name[FMT_TAPE_NAME_BYTES])
{
    snprintf(name, FMT_TAPE_NAME_BYTES, "s%d.ffn.%s", stage, what);
}

/* Rows of the request: its place in the step times the rows that each slot has. */
static void find_rows(tui_app *app, routing *s, const tui_request *r)
{
    char name[FMT_TAPE_NAME_BYTES];
    int32_t n, batch = 0, first = tui_model_first_request(app->model, r->round_index);
    tui_facts facts;
    for (int32_t i = first; i < tui_model_requests(app->model) && tui_model_request(app->model, i)->round == r->round; i++)
        if (tui_model_request(app->model, i)->entry >= batch) batch = tui_model_request(app->model, i)->entry + 1;
    const cap_name *values = tui_model_values(app->model, r->round_index, &n);
    for (int32_t k = 0; k < STAGES; k++) {
        stage_name(k, "ids", name);
        int32_t v = tui_model_find_value(app->model, r->round_index, FMT_TAPE_NO_SLOT, name);
        if (v < 0) break;
        s->n_stages = k + 1;
        if (r->entry < 0 || !tui_model_facts_any(app->model, &values[v], &facts) || facts.tensor.ndim != 2) continue;
        s->n_rows = (int32_t)(facts.tensor.shape[0] / batch);
        s->row0 = r->entry * s->n_rows;
    }
}

static void ask(tui_app *app, routing *s)
{
    static const char *const WHAT[PARTS] = { "ids", "weights", "scores" };
    char name[FMT_TAPE_NAME_BYTES];
    const tui_request *r = tui_at_request(app);
    tui_fetch_clear(&s->fetch);
    s->made = true;
    s->request = app->at.request;
    s->generation = app->generation;
    s->list.n = s->n_stages = s->n_rows = 0;
    if (!r) return;
    find_rows(app, s, r);
    s->list.n = s->n_stages * s->n_rows;
    if (s->stage >= s->n_stages) s->stage = 0;
    for (int arm = 0; arm < app->arms->n; arm++)
        for (int32_t k = 0; k < s->n_stages; k++)
            for (int p = 0; p < PARTS; p++) {
                stage_name(k, WHAT[p], name);
                s->item[arm][k][p] = tui_fetch_add(&s->fetch, app->arms->tape[arm], r->round, FMT_TAPE_NO_SLOT, name);
            }
    int32_t rounds = tui_model_rounds(app->model);
    s->heat_rounds = rounds < HEAT_ROUNDS ? rounds : HEAT_ROUNDS;
    s->heat_first = r->round_index - s->heat_rounds / 2;
    if (s->heat_first > rounds - s->heat_rounds) s->heat_first = rounds - s->heat_rounds;
    if (s->heat_first < 0) s->heat_first = 0;
    for (int32_t h = 0; h < s->heat_rounds; h++)
        for (int side = TUI_A; side < TUI_SIDES; side++)
            for (int32_t k = 0; k < s->n_stages; k++) {
                const fmt_tape *t = tui_model_tape(app->model, side);
                int32_t n;
                stage_name(k, "ids", name);
                const cap_name *v = tui_model_values(app->model, s->heat_first + h, &n);
                s->heat[side][k][h] = t ? tui_fetch_add(&s->fetch, t, v->round, FMT_TAPE_NO_SLOT, name) : -1;
            }
    tui_fetch_start(app, &s->fetch);
}

static void enter(tui_app *app, void *state)
{
    routing *s = state;
    if (!s->made || s->request != app->at.request || s->generation != app->generation) ask(app, s);
    tui_list_fit(&s->list, app->page);
}

/* ---- one row of one arm ---- */

typedef struct route { int64_t k, n_experts; const int32_t *ids; const float *weights, *scores; } route;

/* false: the arm has no ids of it, or not yet. */
static bool route_of(const routing *s, int arm, int32_t stage, int32_t row, route *out)
{
    const fmt_tensor *ids = tui_fetch_get(&s->fetch, s->item[arm][stage][PART_IDS], FMT_DTYPE_I32, 2);
    const fmt_tensor *weights = tui_fetch_get(&s->fetch, s->item[arm][stage][PART_WEIGHTS], FMT_DTYPE_F32, 2);
    const fmt_tensor *scores = tui_fetch_get(&s->fetch, s->item[arm][stage][PART_SCORES], FMT_DTYPE_F32, 2);
    int64_t r = s->row0 + row;
    if (!ids || r >= ids->shape[0]) return false;
    *out = (route){ .k = ids->shape[1], .ids = (const int32_t *)ids->data + r * ids->shape[1] };
    if (weights && r < weights->shape[0] && weights->shape[1] == out->k)
        out->weights = (const float *)weights->data + r * out->k;
    if (scores && r < scores->shape[0]) {
        out->n_experts = scores->shape[1];
        out->scores = (const float *)scores->data + r * out->n_experts;
    }
    return true;
}

static double cut_of(tui_app *app, const route *r, int32_t stage, int32_t *next)
{
    int64_t n = 0;
    const float *bias = tui_judge_bias(app->judge, stage, &n);
    *next = -1;
    return r->scores ? tui_cut_margin(r->ids, r->k, r->scores, bias && n == r->n_experts ? bias : NULL, r->n_experts, next)
                     : (double)NAN;
}

/* 0: not both there; else as verdicts: the same, the same set in another order, another set. */
typedef enum agreement { UNKNOWN, SAME, ORDER, OTHER } agreement;

static agreement agree(const routing *s, int a, int b, int32_t stage, int32_t row)
{
    route x, y;
    if (!route_of(s, a, stage, row, &x) || !route_of(s, b, stage, row, &y) || x.k != y.k) return UNKNOWN;
    if (memcmp(x.ids, y.ids, (size_t)x.k * sizeof *x.ids) == 0) return SAME;
    for (int64_t i = 0; i < x.k; i++) {
        bool found = false;
        for (int64_t j = 0; j < y.k; j++) found = found || y.ids[j] == x.ids[i];
        if (!found) return OTHER;
    }
    return ORDER;
}

static const struct { const char *glyph, *word; int style; } LOOK[] = {
    [UNKNOWN] = { " ", "", TUI_PLAIN }, [SAME] = { "=", "same experts", TUI_PLAIN },
    [ORDER] = { "i", "same experts, other order", TUI_DIFFERS }, [OTHER] = { "\u2260", "other experts", TUI_ORIGIN },
};

static void ids_text(const route *r, char *buf, size_t bytes)
{
    size_t at = 0;
    buf[0] = 0;
    for (int64_t i = 0; i < r->k && at < bytes; i++)
        at += (size_t)snprintf(buf + at, bytes - at, "%s%d", i ? " " : "", r->ids[i]);
}

static void weights_text(const route *r, char *buf, size_t bytes)
{
    size_t at = 0;
    buf[0] = 0;
    for (int64_t i = 0; r->weights && i < r->k && at < bytes; i++)
        at += (size_t)snprintf(buf + at, bytes - at, "%s%.2f", i ? " " : "", (double)r->weights[i]);
}

/* ---- drawing ---- */

static void draw_side(tui_app *app, const routing *s, const tui_layout *l, const tui_column *column, int32_t y, int side,
                      int32_t stage, int32_t row)
{
    char text[160], number[32];
    route r;
    int first = side == TUI_A ? C_IDS_A : C_IDS_B;
    int32_t next;
    if (!route_of(s, side == TUI_A ? app->a : app->b, stage, row, &r)) {
        tui_table_put(&app->canvas, column, first, l, y, TUI_DIM, tui_work_done(s->fetch.work) ? "-" : "\u2026");
        return;
    }
    int style = LOOK[tui_model_is_pair(app->model) ? agree(s, app->a, app->b, stage, row) : SAME].style;
    ids_text(&r, text, sizeof text);
    tui_table_put(&app->canvas, column, first, l, y, style, text);
    weights_text(&r, text, sizeof text);
    tui_table_put(&app->canvas, column, first + 1, l, y, TUI_DIM, text);
    double cut = cut_of(app, &r, stage, &next);
    if (!isnan(cut)) tui_table_put(&app->canvas, column, first + 2, l, y, TUI_PLAIN, tui_number(cut, 7, number));
}

/* The row under the cursor: every arm's experts with their scores, and who comes next. */
static void draw_detail(tui_app *app, const routing *s, tui_rect r)
{
    int32_t stage = s->list.cursor / s->n_rows, row = s->list.cursor % s->n_rows;
    int64_t n_bias;
    for (int arm = 0; arm < app->arms->n && arm < r.height; arm++) {
        route x;
        char number[32];
        int32_t next, at = r.x + 1;
        at += tui_putf(&app->canvas, at, r.y + arm, r.width - at, TUI_STRONG, "%c %s ", 'A' + arm,
                       tui_arms_name(app->arms, arm));
        if (!route_of(s, arm, stage, row, &x)) continue;
        for (int64_t i = 0; i < x.k && x.scores; i++)
            if (x.ids[i] >= 0 && x.ids[i] < x.n_experts)
                at += tui_putf(&app->canvas, at, r.y + arm, r.width - at, TUI_PLAIN, " %d:%s", x.ids[i],
                               tui_number((double)x.scores[x.ids[i]], 8, number));
        double cut = cut_of(app, &x, stage, &next);
        if (next >= 0)
            tui_putf(&app->canvas, at, r.y + arm, r.width - at, TUI_PLAIN, "  next %d:%s, cut %s%s", next,
                     tui_number((double)x.scores[next], 8, number), tui_number(cut, 8, (char[32]){ 0 }),
                     tui_judge_bias(app->judge, stage, &n_bias) ? "" : " before the bias");
    }
}

/* Picks of experts [e0, e1) in one round by all its rows. */
static int32_t picks(const routing *s, int side, int32_t h, int64_t e0, int64_t e1)
{
    const fmt_tensor *t = tui_fetch_get(&s->fetch, s->heat[side][s->stage][h], FMT_DTYPE_I32, 2);
    int32_t n = 0;
    if (!t) return -1;
    const int32_t *ids = t->data;
    for (int64_t i = 0; i < fmt_tensor_elems(t); i++) n += ids[i] >= e0 && ids[i] < e1;
    return n;
}

/* How many there are: as the tape's configuration says, else as many as were taken. */
static int64_t experts(tui_app *app, const routing *s)
{
    const json_t *config = json_object_get(fmt_tape_head(tui_model_tape(app->model, TUI_A)), "config");
    int64_t most = json_integer_value(json_object_get(config, "dspark_n_routed_experts"));
    if (most < 1 || most > 4096) most = 1;
    for (int32_t h = 0; h < s->heat_rounds; h++) {
        const fmt_tensor *t = tui_fetch_get(&s->fetch, s->heat[TUI_A][s->stage][h], FMT_DTYPE_I32, 2);
        for (int64_t i = 0; t && i < fmt_tensor_elems(t); i++)
            if (((const int32_t *)t->data)[i] >= most && ((const int32_t *)t->data)[i] < 4096)
                most = ((const int32_t *)t->data)[i] + 1;
    }
    return most;
}

/* Rounds down, experts across; how dark says how often, and style where A and B differ. */
static void draw_heat(tui_app *app, const routing *s, tui_rect r)
{
    enum { LABEL = 8 };
    const tui_request *at = tui_at_request(app);
    int64_t n = experts(app, s), per_glyph = (n + r.width - LABEL - 1) / (r.width - LABEL);
    int32_t lines = r.height - 1, first = 0, n_values;
    if (s->heat_rounds > lines) first = at->round_index - s->heat_first - lines / 2;
    if (first > s->heat_rounds - lines) first = s->heat_rounds - lines;
    if (first < 0) first = 0;
    tui_putf(&app->canvas, r.x + 1, r.y, r.width - 1, TUI_STRONG,
             "stage %d: experts 0-%lld across, rounds down, how often taken%s",
             s->stage, (long long)n - 1, tui_model_is_pair(app->model) ? "; yellow where B takes others" : "");
    for (int32_t y = 0; y < lines && first + y < s->heat_rounds; y++) {
        int32_t h = first + y, round = tui_model_values(app->model, s->heat_first + h, &n_values)->round;
        char label[16];
        snprintf(label, sizeof label, "%d", round);
        tui_put_right(&app->canvas, r.x, r.y + 1 + y, LABEL - 2, round == at->round ? TUI_STRONG : TUI_DIM, label);
        if (round == at->round) tui_put(&app->canvas, r.x + LABEL - 1, r.y + 1 + y, 1, TUI_STRONG, ">");
        for (int64_t x = 0; x * per_glyph < n; x++) {
            int32_t a = picks(s, TUI_A, h, x * per_glyph, (x + 1) * per_glyph);
            int32_t b = picks(s, TUI_B, h, x * per_glyph, (x + 1) * per_glyph);
            if (a < 0 && b < 0) continue;
            bool differ = a >= 0 && b >= 0 && a != b;
            int level = a > 0 ? (a < TUI_HEAT_LEVELS ? a : TUI_HEAT_LEVELS) : 0;
            tui_glyph(&app->canvas, r.x + LABEL + (int32_t)x, r.y + 1 + y, differ ? TUI_DIFFERS : TUI_DIM,
                      tui_heat_glyph(level));
        }
    }
}

static void draw(tui_app *app, void *state, tui_rect body)
{
    enum { MARGIN = 2, HEAT_MIN = 5 };
    routing *s = state;
    enter(app, s);
    bool pair = tui_model_is_pair(app->model);
    int32_t y = body.y, detail = app->arms->n, heat = body.height / 3 > HEAT_MIN ? body.height / 3 : HEAT_MIN;
    char titles[TUI_SIDES][16];
    if (s->list.n == 0) {
        tui_put(&app->canvas, body.x + MARGIN, y, body.width - MARGIN, TUI_DIM,
                s->n_stages ? "this slot was not drafted in this round" : "the tape has no routing of this round");
        return;
    }
    if (heat > s->heat_rounds + 1) heat = s->heat_rounds + 1;
    tui_column columns[C_COUNT];
    memcpy(columns, COLUMNS, sizeof columns);
    for (int side = TUI_A; side < TUI_SIDES; side++)
        snprintf(titles[side], sizeof titles[side], "experts %c", tui_letter(app, side));
    columns[C_IDS_A].title = titles[TUI_A];
    columns[C_IDS_B].title = titles[TUI_B];
    tui_layout l = tui_layout_of(columns, C_COUNT, body.x + MARGIN, body.width - MARGIN, pair);
    tui_table_head(&app->canvas, columns, C_COUNT, &l, y++, -1, false);
    app->page = body.height - 1 - detail - heat;
    app->list = &s->list;
    app->list_y = y;
    tui_list_fit(&s->list, app->page);
    for (int32_t i = s->list.top; i < s->list.n && i < s->list.top + app->page; i++, y++) {
        char text[16];
        int32_t stage = i / s->n_rows, row = i % s->n_rows;
        agreement a = pair ? agree(s, app->a, app->b, stage, row) : UNKNOWN;
        tui_table_put(&app->canvas, columns, C_MARK, &l, y, LOOK[a].style, LOOK[a].glyph);
        snprintf(text, sizeof text, "%d", stage);
        tui_table_put(&app->canvas, columns, C_STAGE, &l, y, TUI_PLAIN, text);
        snprintf(text, sizeof text, "%d", row);
        tui_table_put(&app->canvas, columns, C_ROW, &l, y, TUI_PLAIN, text);
        for (int side = TUI_A; side < (pair ? TUI_SIDES : TUI_B); side++)
            draw_side(app, s, &l, columns, y, side, stage, row);
        if (i != s->list.cursor) continue;
        tui_put(&app->canvas, body.x, y, 1, TUI_PLAIN, ">");
        tui_mark(&app->canvas, (tui_rect){ body.x, y, body.width, 1 }, TUI_SELECTED);
    }
    draw_heat(app, s, (tui_rect){ body.x, body.y + body.height - detail - heat, body.width, heat });
    draw_detail(app, s, (tui_rect){ body.x, body.y + body.height - detail, body.width, detail });
}

/* ---- actions ---- */

static void next_different(tui_app *app, routing *s, int by)
{
    for (int32_t i = s->list.cursor + by; s->n_rows && i >= 0 && i < s->list.n; i += by)
        if (agree(s, app->a, app->b, i / s->n_rows, i % s->n_rows) > SAME) {
            s->list.cursor = i;
            return;
        }
    tui_say(app, tui_model_is_pair(app->model) ? "no %s row has other experts" : "one tape alone: nothing differs",
            by > 0 ? "later" : "earlier");
}

static tui_reaction act(tui_app *app, void *state, tui_action action)
{
    routing *s = state;
    char name[FMT_TAPE_NAME_BYTES];
    if (tui_list_move(&s->list, action, app->page)) return (tui_reaction){ 0 };
    switch (action) {
    case TUI_DO_STAGE:
        if (s->n_stages) s->stage = (s->stage + 1) % s->n_stages;
        break;
    case TUI_DO_NEXT_DIFFERENT: next_different(app, s, 1); break;
    case TUI_DO_PREVIOUS_DIFFERENT: next_different(app, s, -1); break;
    case TUI_DO_OPEN:
        if (s->n_rows == 0) break;
        stage_name(s->list.cursor / s->n_rows, "scores", name);
        if (!tui_open_value(app, FMT_TAPE_NO_SLOT, name)) tui_say(app, "the tape has no %s", name);
        break;
    default: break;
    }
    return (tui_reaction){ 0 };
}

static void csv(tui_app *app, void *state, tui_text *out)
{
    static const char *const TITLES[] = { "arm", "stage", "row", "experts", "weights", "cut" };
    const routing *s = state;
    char text[160];
    for (size_t i = 0; i < COUNT_OF(TITLES); i++) tui_text_csv(out, TITLES[i], i + 1 == COUNT_OF(TITLES));
    for (int32_t i = 0; i < s->list.n; i++)
        for (int arm = 0; arm < app->arms->n; arm++) {
            route r;
            int32_t next;
            if (!route_of(s, arm, i / s->n_rows, i % s->n_rows, &r)) continue;
            tui_text_csv(out, tui_arms_name(app->arms, arm), false);
            tui_text_addf(out, "%d,%d,", i / s->n_rows, i % s->n_rows);
            ids_text(&r, text, sizeof text);
            tui_text_csv(out, text, false);
            weights_text(&r, text, sizeof text);
            tui_text_csv(out, text, false);
            double cut = cut_of(app, &r, i / s->n_rows, &next);
            snprintf(text, sizeof text, "%.9g", cut);
            tui_text_csv(out, isnan(cut) ? "" : text, true);
        }
}

static void drop(void *state)
{
    routing *s = state;
    tui_fetch_clear(&s->fetch);
    s->made = false;
}

static void fini(void *state) { tui_fetch_fini(&((routing *)state)->fetch); }

const tui_screen TUI_SCREEN_ROUTING = { "Routing", TUI_ON_ROUTING, sizeof(routing), enter, draw, act, NULL, csv,
                                         drop, fini };
