#include "replay/parity.h"

#include "base/mem.h"
#include "replay/source.h"

#include <inttypes.h>
#include <math.h>

enum { FEW = 12 }; /* lines of a kind unless all are wanted */

/* One name over all rounds. */
typedef struct name_sum {
    const char *name, *op;
    int64_t n, n_differ, first;          /* rows; first that differs, one that is no legal flip if there is one; -1: none */
    char mark[RPL_COLUMNS_MAX + 1];      /* worst of each column */
} name_sum;

static const char MARKS[] = { [RPL_PARITY_EQUAL] = '=', [RPL_PARITY_FLIP] = '~', [RPL_PARITY_DIFFERS] = 'X',
                              [RPL_PARITY_ABSENT] = '-', [RPL_PARITY_UNJUDGED] = '?' };

static char mark_of(const rpl_parity *p, int64_t row, int32_t c)
{
    return p->column[c].unstable[row] || p->column[c].trace.rank[row] > 0 ? '!' : MARKS[rpl_parity_at(p, row, c)];
}

static bool is_worse(char a, char b)
{
    static const char ORDER[] = "-=~?X!";
    return strchr(ORDER, a) > strchr(ORDER, b);
}

static bool row_differs(const rpl_parity *p, int64_t row)
{
    char text[RPL_PATTERN_TEXT];
    return rpl_parity_pattern(p, row, text)[0] != 0;
}

/* Some column differs illegally, or from itself. */
static bool is_wrong(const rpl_parity *p, int64_t row)
{
    for (int32_t c = 0; c < p->n_columns; c++)
        if (strchr("X!", mark_of(p, row, c))) return true;
    return false;
}

/* Names in program order. NULL: no memory. */
static name_sum *sum_names(const rpl_parity *p, int32_t *n)
{
    name_sum *sum = NULL;
    size_t capacity = 0;
    *n = 0;
    for (int64_t i = 0; i < p->n_rows; i++) {
        const rpl_row *row = rpl_layout_at(p->layout, i);
        int32_t at = 0;
        while (at < *n && sum[at].name != row->name) at++; /* a layout has one pointer for a name */
        if (at == *n) {
            void *array = sum;
            if (!mem_grow(&array, &capacity, (size_t)*n + 1, sizeof *sum)) {
                free(sum);
                return NULL;
            }
            sum = array;
            sum[(*n)++] = (name_sum){ .name = row->name, .op = row->op, .first = -1 };
            memset(sum[at].mark, '-', (size_t)p->n_columns);
        }
        name_sum *s = &sum[at];
        s->n++;
        for (int32_t c = 0; c < p->n_columns; c++)
            if (is_worse(mark_of(p, i, c), s->mark[c])) s->mark[c] = mark_of(p, i, c);
        if (!row_differs(p, i)) continue;
        if (s->n_differ++ == 0 || (is_wrong(p, i) && !is_wrong(p, s->first))) s->first = i;
    }
    if (!sum) sum = mem_alloc(1, sizeof *sum);
    return sum;
}

static int64_t earlier(int64_t a, int64_t b) { return a < 0 || (b >= 0 && b < a) ? b : a; }

/* Where a column is wrong first; of one that never is, where it parts from the reference first. -1: nowhere. */
static int64_t first_of(const rpl_column *c)
{
    int64_t wrong = earlier(earlier(c->first_unstable, c->first_ranks_differ),
                            earlier(c->first_poisoned, c->first[RPL_PARITY_DIFFERS]));
    return wrong >= 0 ? wrong : earlier(c->first[RPL_PARITY_FLIP], c->first[RPL_PARITY_UNJUDGED]);
}

/* ---- text ---- */

static const char *verdict_of(const rpl_parity_report *r)
{
    return rpl_coverage_verdict(&r->coverage, rpl_parity_verdict(r->p));
}

static void print_columns(const rpl_parity *p)
{
    char text[240];
    printf("\n%-34s %9s %9s %9s %9s   %s\n", "", "equal", "flip", "differs", "absent",
           "against itself, and the first difference");
    for (int32_t k = 0; k < p->n_columns; k++) {
        const rpl_column *c = &p->column[k];
        printf("%c  %-31s %9" PRId64 " %9" PRId64 " %9" PRId64 " %9" PRId64 "   ", 'A' + k % 26, c->name,
               c->n[RPL_PARITY_EQUAL], c->n[RPL_PARITY_FLIP], c->n[RPL_PARITY_DIFFERS], c->n[RPL_PARITY_ABSENT]);
        if (c->tape) printf("-");
        else if (c->n_unstable) printf("UNSTABLE in %" PRId64 " values", c->n_unstable);
        else if (c->n_runs > 1) printf("stable");
        else if (c->n_runs) printf("run once");
        else printf("not run");
        if (k == p->reference) printf(", the reference");
        int64_t first = first_of(c);
        if (first >= 0) printf("; %s", rpl_row_text(rpl_layout_at(p->layout, first), text, sizeof text));
        printf("\n");
        if (c->n[RPL_PARITY_UNJUDGED])
            printf("   %" PRId64 " values differ and could not be judged\n", c->n[RPL_PARITY_UNJUDGED]);
    }
}

static void print_findings(const rpl_parity *p)
{
    char text[240];
    for (int32_t k = 0; k < p->n_columns; k++) {
        const rpl_column *c = &p->column[k];
        const rpl_origin *o = &c->origin;
        if (c->n_unstable)
            printf("unstable   %s differs from itself: %" PRId64 " values, first %s\n", c->name, c->n_unstable,
                   rpl_row_text(rpl_layout_at(p->layout, c->first_unstable), text, sizeof text));
        if (c->n_ranks_differ)
            printf("ranks      %s: only rank %d differs: %" PRId64 " values, first %s\n", c->name,
                   c->trace.rank[c->first_ranks_differ], c->n_ranks_differ,
                   rpl_row_text(rpl_layout_at(p->layout, c->first_ranks_differ), text, sizeof text));
        if (c->n_poisoned)
            printf("poison     %s reads what was not written: %" PRId64 " values change, first %s\n", c->name,
                   c->n_poisoned, rpl_row_text(rpl_layout_at(p->layout, c->first_poisoned), text, sizeof text));
        if (o->op[0])
            printf("origin     %s: round %d op %s, %s: %" PRId64 " of %" PRId64 " elements illegal; got %.9g, exact %.9g, "
                   "bound %.3g%s%s\n", c->name, o->round, o->op, o->output[0], o->n_illegal, o->n, o->worst.got,
                   o->worst.exact, o->worst.bound, o->cause[0] ? "; " : "", o->cause);
    }
}

static void print_pairs(const rpl_parity *p)
{
    char text[240];
    for (int32_t k = 0; k < p->n_pairs; k++) {
        const rpl_pair *pair = &p->pair[k];
        printf("bitwise    %s: %s, %s: ", pair->why, p->column[pair->a].name, p->column[pair->b].name);
        if (pair->n_differ == 0) printf("%" PRId64 " values, all equal\n", pair->n);
        else printf("%" PRId64 " of %" PRId64 " values DIFFER, first %s\n", pair->n_differ, pair->n,
                    rpl_row_text(rpl_layout_at(p->layout, pair->first), text, sizeof text));
    }
    if (p->column[0].tape && !p->recorded_run)
        printf("bitwise    recorded against run again: no column is the recorded run\n");
}

/* Those with an X or ! first. */
static void print_names(const rpl_parity *p, const name_sum *sum, int32_t n, bool all)
{
    char text[RPL_PATTERN_TEXT], letters[RPL_COLUMNS_MAX + 1] = "";
    int32_t n_differ = 0, shown = 0;
    for (int32_t k = 0; k < n; k++) n_differ += sum[k].n_differ > 0;
    if (n_differ == 0) {
        printf("\nevery value has the same bits in all columns\n");
        return;
    }
    for (int32_t c = 0; c < p->n_columns; c++) letters[c] = (char)('A' + c % 26);
    printf("\n%-22s %s  %s  (= equal  ~ flip  X differs  ? unjudged  - absent  ! not itself)\n", "", letters,
           "values differ");
    for (int32_t k = 0; k < 2 * n; k++) {
        const name_sum *s = &sum[k % n];
        bool wrong = strpbrk(s->mark, "X!") != NULL;
        if (s->n_differ == 0 || wrong != (k < n) || (!all && shown == FEW)) continue;
        shown++;
        printf("%-22s %s  %6" PRId64 "/%-6" PRId64 "  round %d: %s\n", s->name, s->mark, s->n_differ, s->n,
               rpl_layout_at(p->layout, s->first)->round, rpl_parity_pattern(p, s->first, text));
    }
    if (shown < n_differ)
        printf("... and %d more names (--all); %d names are equal in all columns\n", n_differ - shown, n - n_differ);
}

err_code rpl_parity_print(const rpl_parity_report *r, err *e)
{
    const rpl_parity *p = r->p;
    int32_t n;
    name_sum *sum = sum_names(p, &n);
    if (!sum) return err_set(e, ERR_NOMEM, "parity: no memory for the report");
    printf("%s  %s: %d rounds, %" PRId64 " values, %d columns, %d results of rounds judged, %.1f s\n",
           verdict_of(r), fmt_tape_path(r->tape), p->n_rounds, p->n_rows, p->n_columns, p->n_judged, r->seconds);
    rpl_coverage_print(&r->coverage);
    if (rpl_coverage_empty(&r->coverage)) {
        free(sum);
        return ERR_OK;
    }
    if (p->n_rows == 0) printf("nothing compared: no round of the tape makes a value\n");
    print_pairs(p);
    print_findings(p);
    print_columns(p);
    print_names(p, sum, n, r->all);
    free(sum);
    return ERR_OK;
}

/* ---- JSON ---- */

static json_t *row_json(const rpl_parity *p, int64_t row)
{
    if (row < 0) return json_null();
    const rpl_row *r = rpl_layout_at(p->layout, row);
    return json_pack("{s:i, s:i, s:s, s:s}", "round", r->round, "slot", r->slot, "value", r->name, "op", r->op);
}

static json_t *origin_json(const rpl_origin *o)
{
    if (!o->op[0]) return json_null();
    return json_pack("{s:i, s:s, s:s, s:s, s:i, s:I, s:I, s:o, s:o, s:o}", "round", o->round, "op", o->op, "value",
                     o->output[0], "cause", o->cause, "rank", o->rank, "illegal", (json_int_t)o->n_illegal, "elements",
                     (json_int_t)o->n, "got", fmt_json_real(o->worst.got), "exact", fmt_json_real(o->worst.exact), "bound",
                     fmt_json_real(o->worst.bound));
}

static json_t *column_json(const rpl_parity *p, int32_t k)
{
    const rpl_column *c = &p->column[k];
    json_t *j = json_pack("{s:s, s:b, s:b, s:i, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o}", "name", c->name, "tape", c->tape,
                          "reference", k == p->reference, "runs", (int)c->n_runs, "unstable", (json_int_t)c->n_unstable,
                          "ranks_differ", (json_int_t)c->n_ranks_differ, "poisoned", (json_int_t)c->n_poisoned,
                          "first_unstable", row_json(p, c->first_unstable), "first_ranks_differ",
                          row_json(p, c->first_ranks_differ), "first_poisoned", row_json(p, c->first_poisoned), "first",
                          row_json(p, first_of(c)), "origin", origin_json(&c->origin));
    for (int s = 0; j && s < RPL_PARITY_STATES; s++)
        fmt_json_put(&j, rpl_parity_state_name((rpl_parity_state)s), json_integer((json_int_t)c->n[s]));
    return j;
}

static json_t *names_json(const rpl_parity *p, const name_sum *sum, int32_t n)
{
    char text[RPL_PATTERN_TEXT];
    json_t *list = json_array();
    for (int32_t k = 0; k < n; k++) {
        const name_sum *s = &sum[k];
        bool differs = s->first >= 0;
        fmt_json_add(&list, json_pack("{s:s, s:s, s:s, s:I, s:I, s:o, s:s}", "value", s->name, "op", s->op, "marks",
                                              s->mark, "values", (json_int_t)s->n, "differ", (json_int_t)s->n_differ,
                                              "first", row_json(p, s->first), "pattern",
                                              differs ? rpl_parity_pattern(p, s->first, text) : ""));
    }
    return list;
}

json_t *rpl_parity_json(const rpl_parity_report *r)
{
    const rpl_parity *p = r->p;
    int32_t n;
    name_sum *sum = sum_names(p, &n);
    json_t *columns = json_array(), *pairs = json_array();
    if (!sum) return NULL;
    for (int32_t k = 0; k < p->n_columns; k++) fmt_json_add(&columns, column_json(p, k));
    for (int32_t k = 0; k < p->n_pairs; k++) {
        const rpl_pair *pair = &p->pair[k];
        fmt_json_add(&pairs, json_pack("{s:s, s:s, s:s, s:I, s:I, s:o}", "why", pair->why, "a",
                                               p->column[pair->a].name, "b", p->column[pair->b].name, "values",
                                               (json_int_t)pair->n, "differ", (json_int_t)pair->n_differ, "first",
                                               row_json(p, pair->first)));
    }
    json_t *j = json_pack("{s:i, s:s, s:s, s:s, s:i, s:I, s:I, s:i, s:i, s:b, s:o, s:o, s:o, s:f}", "schema", 1, "type",
                          "parity", "verdict", verdict_of(r), "tape", fmt_tape_path(r->tape), "rounds", p->n_rounds,
                          "values", (json_int_t)p->n_rows, "values_differ", (json_int_t)p->n_differ, "judged", p->n_judged,
                          "repeat", r->repeat, "recorded_run", p->recorded_run, "columns", columns, "bitwise", pairs,
                          "names", names_json(p, sum, n), "seconds", r->seconds);
    free(sum);
    return rpl_source_json(rpl_coverage_json(&r->coverage, j), r->tape);
}
