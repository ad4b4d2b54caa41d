/* The scorecard as tables: kinds of fault by kinds of op, stages by arms, and why some plantings show nothing. */
#include "replay/scorecard.h"

#include "base/mem.h"

/* How a planting is put into a table: the text of its row and of its column. */
typedef const char *(*label_fn)(const rpl_scorecard *card, const rpl_planting *p, char buf[24]);

static const char *by_kind(const rpl_scorecard *card, const rpl_planting *p, char buf[24])
{
    (void)card, (void)buf;
    return p->kind->name;
}

static const char *by_op(const rpl_scorecard *card, const rpl_planting *p, char buf[24])
{
    (void)card, (void)buf;
    return eng_kind_name(p->op_kind);
}

/* Ops outside of the stages: those of the inserts, and of the draft's two ends. */
static const char *by_stage(const rpl_scorecard *card, const rpl_planting *p, char buf[24])
{
    (void)card;
    if (p->stage < 0) return p->step == ENG_STEP_INSERT ? "main" : "head";
    snprintf(buf, 24, "s%d %s", p->stage, p->step == ENG_STEP_INSERT ? "insert" : "draft");
    return buf;
}

static const char *by_arm(const rpl_scorecard *card, const rpl_planting *p, char buf[24])
{
    (void)buf;
    return card->arm[p->arm].text;
}

bool rpl_planting_named(const rpl_planting *p)
{
    const char *wanted = eng_cause_name(p->kind->cause);
    return strncmp(p->cause, wanted, strlen(wanted)) == 0 && p->cause[strlen(wanted)] == ':';
}

bool rpl_planting_has_class(const rpl_planting *p)
{
    return p->outcome == RPL_SCORE_RIGHT && p->kind->cause != ENG_CAUSE_FUNCTION;
}

/* ---- tables ---- */

/* Place of a label, made when it is new; -1: no memory. */
static int32_t find_or_add(json_t *labels, const char *text)
{
    size_t n = json_array_size(labels);
    for (size_t i = 0; i < n; i++)
        if (strcmp(json_string_value(json_array_get(labels, i)), text) == 0) return (int32_t)i;
    return json_array_append_new(labels, json_string(text)) == 0 ? (int32_t)n : -1;
}

typedef struct cell { int64_t planted, n[RPL_SCORE_OUTCOMES], classes, named; } cell;

static json_t *cell_json(const cell *c)
{
    if (!c->planted) return json_null();
    json_t *j = json_pack("{s:I, s:I, s:I, s:I}", "planted", (json_int_t)c->planted, "detected",
                          (json_int_t)(c->n[RPL_SCORE_RIGHT] + c->n[RPL_SCORE_ELSEWHERE]), "causes_named",
                          (json_int_t)c->classes, "causes_right", (json_int_t)c->named);
    for (int o = 0; j && o < RPL_SCORE_OUTCOMES; o++)
        fmt_json_put(&j, rpl_outcome_name((rpl_outcome)o), json_integer((json_int_t)c->n[o]));
    return j;
}

static void count_planting(cell *c, const rpl_planting *p)
{
    c->planted++;
    c->n[p->outcome]++;
    c->classes += rpl_planting_has_class(p);
    c->named += rpl_planting_has_class(p) && rpl_planting_named(p);
}

/* NULL: no memory. */
static json_t *table(const rpl_scorecard *card, const char *row_name, label_fn row_of, const char *column_name,
                     label_fn column_of)
{
    char buf[24];
    json_t *rows = json_array(), *columns = json_array(), *cells = json_array();
    bool fine = true;
    for (size_t i = 0; i < card->n_plantings && fine; i++)
        fine = find_or_add(rows, row_of(card, &card->planting[i], buf)) >= 0 &&
               find_or_add(columns, column_of(card, &card->planting[i], buf)) >= 0;
    const size_t n_rows = json_array_size(rows), n_columns = json_array_size(columns);
    cell *sum = fine ? mem_alloc(n_rows * n_columns + 1, sizeof *sum) : NULL;
    for (size_t i = 0; sum && i < card->n_plantings; i++) { /* every label is there by now */
        size_t r = (size_t)find_or_add(rows, row_of(card, &card->planting[i], buf));
        size_t c = (size_t)find_or_add(columns, column_of(card, &card->planting[i], buf));
        count_planting(&sum[r * n_columns + c], &card->planting[i]);
    }
    for (size_t r = 0; sum && r < n_rows; r++) {
        json_t *line = json_array();
        for (size_t c = 0; c < n_columns; c++)
            fine = json_array_append_new(line, cell_json(&sum[r * n_columns + c])) == 0 && fine;
        fine = json_array_append_new(cells, line) == 0 && fine;
    }
    fine = fine && sum;
    free(sum);
    json_t *j = json_pack("{s:s, s:s, s:o, s:o, s:o}", "of", row_name, "by", column_name, "rows", rows, "columns", columns,
                          "cells", cells);
    if (fine) return j;
    json_decref(j);
    return NULL;
}

/* ---- what shows nothing ---- */

static const char *why_of(rpl_outcome o)
{
    switch (o) {
    case RPL_SCORE_ADMISSIBLE: return "recorded bits differ, each as some order of sums gives it";
    case RPL_SCORE_ABSORBED: return "the op's output differed, and a later rounding hid it before anything was recorded";
    case RPL_SCORE_IDLE: return "no occasion: every value was as it is without the fault";
    default: return NULL;
    }
}

/* By kind and outcome, with the kinds of op that it was so at. */
static json_t *unshown(const rpl_scorecard *card)
{
    json_t *list = json_array();
    for (size_t k = 0; k < eng_fault_count(); k++)
        for (int o = 0; o < RPL_SCORE_OUTCOMES; o++) {
            const eng_fault_kind *kind = eng_fault_at(k);
            int64_t n = rpl_scorecard_count(card, (rpl_outcome)o, kind);
            if (!n || !why_of((rpl_outcome)o)) continue;
            json_t *ops = json_array();
            for (size_t i = 0; i < card->n_plantings; i++) {
                const rpl_planting *p = &card->planting[i];
                if (p->kind == kind && (int)p->outcome == o) find_or_add(ops, eng_kind_name(p->op_kind));
            }
            fmt_json_add(&list, json_pack("{s:s, s:s, s:I, s:o, s:s, s:s}", "kind", kind->name, "outcome",
                                                  rpl_outcome_name((rpl_outcome)o), "n", (json_int_t)n, "ops", ops, "why",
                                                  why_of((rpl_outcome)o), "summary", kind->summary));
        }
    return list;
}

json_t *rpl_scorecard_matrix(const rpl_scorecard *card)
{
    return json_pack("{s:[o, o], s:o}", "tables", table(card, "kind", by_kind, "op", by_op),
                     table(card, "stage", by_stage, "arm", by_arm), "unshown", unshown(card));
}
