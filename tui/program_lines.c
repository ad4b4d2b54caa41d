#include "tui/program_lines.h"

#include "base/mem.h"
#include "tui/cut.h"

#include <math.h>

const tui_column TUI_PAIR_COLUMNS[PAIR_COUNT] = {
    [PAIR_VERDICT] = { "", 1, 1, 0, false, false },
    [PAIR_VALUE] = { "value", 18, 24, 0, false, false },
    [PAIR_OP] = { "op", 12, 16, 4, false, false },
    [PAIR_TYPE] = { "type", 16, 22, 5, false, false },
    [PAIR_DIFFER] = { "differ", 7, 8, 1, true, false },
    [PAIR_L2] = { "rel L2", 8, 8, 0, true, false },
    [PAIR_ULP] = { "ULP", 5, 6, 1, true, false },
    [PAIR_BAR] = { "error", 10, 24, 2, false, false },
    [PAIR_NOTE] = { "note", 16, 40, 3, false, false },
};

const tui_column TUI_LONE_COLUMNS[LONE_COUNT] = {
    [LONE_ORDER] = { "", 0, 0, 0, false, false },
    [LONE_VALUE] = { "value", 18, 24, 0, false, false },
    [LONE_OP] = { "op", 12, 16, 4, false, false },
    [LONE_TYPE] = { "type", 16, 22, 1, false, false },
    [LONE_MIN] = { "min", 8, 10, 1, true, false },
    [LONE_MAX] = { "max", 8, 10, 0, true, false },
    [LONE_RMS] = { "rms", 8, 10, 2, true, false },
    [LONE_NOTE] = { "note", 10, 40, 3, false, false },
};

const tui_expr_field TUI_PROGRAM_FIELDS[PROGRAM_FIELDS] = {
    [PROGRAM_VALUE] = { "value", true }, [PROGRAM_OP] = { "op", true }, [PROGRAM_STAGE] = { "stage", false },
    [PROGRAM_VERDICT] = { "verdict", true }, [PROGRAM_DIFFER] = { "differ", false }, [PROGRAM_L2] = { "l2", false },
    [PROGRAM_EXCESS] = { "excess", false }, [PROGRAM_ULP] = { "ulp", false }, [PROGRAM_MAX] = { "max", false },
    [PROGRAM_RMS] = { "rms", false },
};

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

void tui_program_group_text(int32_t group, char *buf, size_t bytes)
{
    static const char *const TEXT[] = { "insert", "inputs of the draft step", "windows", "block", "head", "other values" };
    if (group < GROUP_STAGE) snprintf(buf, bytes, "%s", TEXT[group]);
    else snprintf(buf, bytes, "stage %d", group - GROUP_STAGE);
}

/* ---- the lines ---- */

static bool add_line(tui_program *s, int32_t value, int32_t group)
{
    void *array = s->line;
    if (!mem_grow(&array, &s->capacity, (size_t)s->list.n + 1, sizeof *s->line)) return false;
    s->line = array;
    s->line[s->list.n++] = (tui_program_line){ value, group };
    return true;
}

tui_field tui_program_field(void *of, int i)
{
    const tui_program_of *l = of;
    const double none = (double)NAN;
    tui_facts f;
    const eng_op *op = tui_model_op(l->app->model, l->n);
    bool known = tui_model_facts_any(l->app->model, l->n, &f), compared = l->v && l->v->state == RPL_STATE_COMPARED;
    bool measured = compared && tui_is_float(l->v->a.dtype);
    switch (i) {
    case PROGRAM_VALUE: return (tui_field){ none, l->n->name };
    case PROGRAM_OP: return (tui_field){ none, op ? eng_kind_name(op->kind) : "" };
    case PROGRAM_STAGE: return (tui_field){ tui_stage_of(l->n->name), NULL };
    case PROGRAM_VERDICT: return (tui_field){ none, l->v ? TUI_VERDICT[tui_verdict_of(l->v)].word : "" };
    case PROGRAM_DIFFER: return (tui_field){ compared ? (double)(l->v->m.n - l->v->m.n_equal) : none, NULL };
    case PROGRAM_L2: return (tui_field){ measured ? l->v->m.rel_l2 : none, NULL };
    case PROGRAM_EXCESS: return (tui_field){ measured ? tui_excess(l->v->m.rel_l2) : none, NULL };
    case PROGRAM_ULP: return (tui_field){ measured ? (double)l->v->m.max_ulp : none, NULL };
    case PROGRAM_MAX: return (tui_field){ known && f.has_stats ? fmax(fabs(f.stats.min), fabs(f.stats.max)) : none, NULL };
    default: return (tui_field){ known && f.has_stats ? f.stats.rms : none, NULL };
    }
}

static bool passes(tui_app *app, const tui_program *s, const cap_name *n, const rpl_round *round, int32_t i)
{
    const rpl_value *v = round ? &round->value[i] : NULL;
    const eng_op *op = s->filter[0] ? tui_model_op(app->model, n) : NULL;
    if (!tui_expr_passes(&s->expr, tui_program_field, &(tui_program_of){ app, n, v })) return false;
    return tui_contains(n->name, s->filter) || (op && tui_contains(eng_kind_name(op->kind), s->filter)) ||
           (v && tui_contains(TUI_VERDICT[tui_verdict_of(v)].word, s->filter));
}

/* ---- sorted ---- */

static const int PAIR_SORTS[] = { 0, PAIR_DIFFER, PAIR_L2, PAIR_ULP, PAIR_VALUE, PAIR_OP };
static const int LONE_SORTS[] = { 0, LONE_MAX, LONE_RMS, LONE_VALUE, LONE_OP };

int tui_program_next_column(bool pair, int column)
{
    const int *order = pair ? PAIR_SORTS : LONE_SORTS;
    size_t n = pair ? COUNT_OF(PAIR_SORTS) : COUNT_OF(LONE_SORTS), i = 0;
    while (i < n && order[i] != column) i++;
    return order[(i + 1) % n];
}

int tui_program_named_column(bool pair, const char *name)
{
    const int *order = pair ? PAIR_SORTS : LONE_SORTS;
    size_t n = pair ? COUNT_OF(PAIR_SORTS) : COUNT_OF(LONE_SORTS);
    const tui_column *c = pair ? TUI_PAIR_COLUMNS : TUI_LONE_COLUMNS;
    for (size_t i = 0; name[0] && i < n; i++)
        if (tui_contains(order[i] ? c[order[i]].title : "program", name)) return order[i];
    return -1;
}

/* What a line is sorted by: a number, or a text. */
static int sort_field(bool pair, int column)
{
    static const int OF_PAIR[PAIR_COUNT] = { [PAIR_DIFFER] = PROGRAM_DIFFER, [PAIR_L2] = PROGRAM_L2,
                                             [PAIR_ULP] = PROGRAM_ULP, [PAIR_OP] = PROGRAM_OP,
                                             [PAIR_VALUE] = PROGRAM_VALUE };
    static const int OF_LONE[LONE_COUNT] = { [LONE_MAX] = PROGRAM_MAX, [LONE_RMS] = PROGRAM_RMS, [LONE_OP] = PROGRAM_OP,
                                             [LONE_VALUE] = PROGRAM_VALUE };
    return pair ? OF_PAIR[column] : OF_LONE[column];
}

typedef struct sort_line { tui_field key; bool rising; tui_program_line line; } sort_line;

static int by_key(const void *x, const void *y)
{
    const sort_line *a = x, *b = y;
    int order = a->line.value < b->line.value ? -1 : a->line.value > b->line.value;
    if (a->key.text) {
        int words = strcmp(a->key.text, b->key.text);
        return words ? (a->rising ? -words : words) : order;
    }
    double m = isnan(a->key.number) ? -1 : a->key.number, n = isnan(b->key.number) ? -1 : b->key.number;
    if (m != n) return (m > n) == a->rising ? 1 : -1;
    return order;
}

static void sort_lines(tui_app *app, tui_program *s, const cap_name *name, const rpl_round *round)
{
    sort_line *line = mem_alloc((size_t)s->list.n + 1, sizeof *line);
    int by = sort_field(tui_model_is_pair(app->model), s->sorted);
    if (!line) return;
    for (int32_t i = 0; i < s->list.n; i++) {
        int32_t v = s->line[i].value;
        tui_program_of of = { app, &name[v], round ? &round->value[v] : NULL };
        line[i] = (sort_line){ tui_program_field(&of, by), s->rising, s->line[i] };
    }
    qsort(line, (size_t)s->list.n, sizeof *line, by_key);
    for (int32_t i = 0; i < s->list.n; i++) s->line[i] = line[i].line;
    free(line);
}

void tui_program_make(tui_app *app, tui_program *s)
{
    int32_t n = 0, group = -1;
    bool room = true;
    const tui_request *r = tui_at_request(app);
    const cap_name *name = r ? tui_model_values(app->model, r->round_index, &n) : NULL;
    const rpl_round *round = r ? tui_model_result(app->model, r->round_index) : NULL;
    s->list.n = 0;
    s->request = app->at.request;
    s->generation = app->generation;
    s->had_result = round != NULL;
    for (int32_t i = 0; i < n && room; i++) {
        if (!tui_model_shows(r, &name[i]) || !passes(app, s, &name[i], round, i)) continue;
        int32_t g = group_of(&name[i]);
        if (g != group && !s->sorted) room = add_line(s, -1, g);
        group = g;
        room = room && add_line(s, i, g);
    }
    if (!room) tui_say(app, "no memory for the list");
    else if (s->sorted) sort_lines(app, s, name, round);
}

/* ---- what is said of a value ---- */

/* What does not fit the figures: why it was not compared, findings, agreement of ids and tokens. */
static void pair_note(const rpl_value *v, char *buf, size_t bytes)
{
    char number[32];
    buf[0] = 0;
    if (v->state == RPL_STATE_UNREADABLE) snprintf(buf, bytes, "%s", v->why);
    else if (v->state == RPL_STATE_BY_HASH && v->rows.n_differ) rpl_rows_text(&v->rows, buf, bytes);
    else if (v->state != RPL_STATE_COMPARED) snprintf(buf, bytes, "%s", rpl_state_text(v->state));
    else if (v->m.findings)
        snprintf(buf, bytes, "%s", rpl_finding_text((rpl_finding)(v->m.findings & -v->m.findings)));
    else if (v->has_ids && v->m.n_equal < v->m.n)
        snprintf(buf, bytes, "same experts %lld/%lld", (long long)v->ids.n_same_set, (long long)v->ids.rows);
    else if (v->has_logits && v->m.n_equal < v->m.n)
        snprintf(buf, bytes, "argmax %lld/%lld KL %s", (long long)v->logits.n_argmax_equal, (long long)v->logits.rows,
                 tui_number(v->logits.kl_max, 8, number));
}

/* Of the router's choice: how near the cut was, in the first row that differs. Of tokens: by how much the first that
 * differs won on side B. */
static void near_tie(tui_app *app, const cap_name *n, const rpl_value *v, char *buf, size_t bytes)
{
    char number[32];
    double margin;
    const tui_request *r = tui_at_request(app);
    const rpl_round *round = r ? tui_model_result(app->model, r->round_index) : NULL;
    for (int32_t i = 0; round && strcmp(n->name, "drafts") == 0 && i < round->n_drafts; i++) {
        const rpl_draft *d = &round->draft[i];
        if (d->entry == r->entry && !d->exact && !isnan(d->margin_b))
            snprintf(buf + strlen(buf), bytes - strlen(buf), "%sdraft %d won by %s", buf[0] ? ", " : "", d->n_same,
                     tui_number(d->margin_b, 7, number));
    }
    if (!v->has_ids || v->m.n_equal == v->m.n || v->ids.first_order < 0) return;
    if (tui_cut_of_row(app, TUI_B, n, v->ids.first_order, &margin))
        snprintf(buf + strlen(buf), bytes - strlen(buf), ", row %lld cut %s", (long long)v->ids.first_order,
                 tui_number(margin, 7, number));
}

/* The certificates' word, the suspect's first; "" when there is none or all is exact. */
static void certificate_note(tui_app *app, const cap_name *n, char *buf, size_t bytes)
{
    int illegal_side;
    bool inherited;
    const rpl_origin *o = tui_any_origin_of(app, n, &illegal_side, &inherited);
    buf[0] = 0;
    if (o)
        snprintf(buf, bytes, "%c %s%s", tui_letter(app, illegal_side), inherited ? "wrong input: " : "",
                 inherited ? o->from : o->cause[0] ? o->cause : "illegal");
    for (int side = tui_suspect(app); side >= TUI_A; side--) {
        const rpl_certificate *c = tui_certificate(app, side);
        for (size_t i = 0; c && !buf[0] && i < c->n_sums; i++) {
            const rpl_value_sum *sum = &c->sum[i];
            if (strcmp(sum->value, n->name) == 0 && sum->n_flip && !sum->n_illegal)
                snprintf(buf, bytes, "%c flip: %lld of %lld", tui_letter(app, side), (long long)sum->n_flip,
                         (long long)sum->n);
        }
    }
}

/* 1e-8 ... 1 as 0 ... 1, by its logarithm. */
static double error_share(double rel_l2) { return rel_l2 > 0 ? fmax(log10(rel_l2) / 8 + 1, 0.02) : 0; }

/* Error against its bound as 0 ... 1 by logarithm, 1/2 at the bound, the ends 1e-4 and 1e4; of the certificates the larger
 * one. NaN: nothing was judged. */
static double bound_share(tui_app *app, const cap_name *n)
{
    double most = (double)NAN;
    for (int side = TUI_A; side < TUI_SIDES; side++) {
        bool inherited;
        const rpl_certificate *c = tui_certificate(app, side);
        const rpl_origin *o = tui_origin_of(app, side, n, &inherited);
        double ratio = o ? fabs(o->worst.ratio) : (double)NAN;
        for (size_t i = 0; c && !o && i < c->n_sums; i++)
            if (strcmp(c->sum[i].value, n->name) == 0) ratio = c->sum[i].n_flip ? c->sum[i].flip_distance : 0;
        if (!isnan(ratio) && !(ratio <= most)) most = ratio;
    }
    if (isnan(most) || most == 0) return most;
    return fmin(1, fmax(0.02, 0.5 + log10(most) / 8));
}

void tui_program_note(const tui_program_of *of, char *buf, size_t bytes)
{
    certificate_note(of->app, of->n, buf, bytes);
    if (buf[0] || !of->v) return;
    pair_note(of->v, buf, bytes);
    near_tie(of->app, of->n, of->v, buf, bytes);
}

double tui_program_error(const tui_program_of *of)
{
    double judged = bound_share(of->app, of->n);
    return isnan(judged) ? error_share(of->v->m.rel_l2) : judged;
}

void tui_program_type(tui_app *app, const cap_name *n, char *buf, size_t bytes)
{
    tui_facts facts;
    buf[0] = 0;
    if (tui_model_facts_any(app->model, n, &facts)) fmt_tensor_text(&facts.tensor, buf, bytes);
}
