#include "replay/judge_choice.h"

#include "base/mem.h"

enum { GROUP = FMT_QDQ_GROUP };

/* One element with another value: what it changes in its group's QDQ, and in the sums. */
typedef struct choice {
    int32_t first;       /* column of the group */
    float change[GROUP];
    double *moves;       /* [n] */
} choice;

typedef struct choices { choice *at; size_t n, capacity; } choices;

static void qdq(const bf16 x[GROUP], float out[GROUP])
{
    uint8_t codes[GROUP], scale;
    fmt_qdq_encode(x, codes, &scale);
    for (int i = 0; i < GROUP; i++) out[i] = f32_from_bf16(fmt_qdq_decode(codes[i], scale));
}

/* Adds the choice that element i of the group is v, unless its QDQ is the same. false: no memory. */
static bool add_choice(choices *c, const bf16 *group, int32_t first, int32_t i, double v)
{
    bf16 other[GROUP];
    float before[GROUP], after[GROUP];
    memcpy(other, group, sizeof other);
    other[i] = bf16_from_f32((float)v);
    qdq(group, before);
    qdq(other, after);
    if (memcmp(before, after, sizeof before) == 0) return true;
    void *array = c->at;
    if (!mem_grow(&array, &c->capacity, c->n + 1, sizeof *c->at)) return false;
    c->at = array;
    choice *to = &c->at[c->n++];
    to->first = first;
    for (int k = 0; k < GROUP; k++) to->change[k] = after[k] - before[k];
    return true;
}

static bool find_choices(choices *c, const krn_span *x, const bf16 *mid, int32_t k)
{
    for (int32_t i = 0; i < k; i++) {
        const int32_t first = i / GROUP * GROUP;
        const double own = (double)f32_from_bf16(mid[i]);
        if (x[i].lo != own && !add_choice(c, mid + first, first, i - first, x[i].lo)) return false;
        if (x[i].hi != own && !add_choice(c, mid + first, first, i - first, x[i].hi)) return false;
    }
    return true;
}

/* moves of every choice: [c->n, w->n] into all, one decoded row at a time. */
static void find_moves(choices *c, const krn_weight *w, float *row, double *all)
{
    for (size_t j = 0; j < c->n; j++) c->at[j].moves = all + j * (size_t)w->n;
    for (int32_t n = 0; n < w->n; n++) {
        krn_weight_decode_f32(w, n, 1, row);
        for (size_t j = 0; j < c->n; j++) {
            double sum = 0;
            for (int i = 0; i < GROUP; i++) sum += (double)c->at[j].change[i] * (double)row[c->at[j].first + i];
            c->at[j].moves[n] = sum;
        }
    }
}

/* sum |got - y - moves|, each term at most cap: one wild element does not drown the rest. moves NULL: none. */
static double miss(const float *got, const krn_span *y, const double *moves, int32_t n, double cap)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++) {
        double term = fabs((double)got[i] - krn_span_middle(y[i]) - (moves ? moves[i] : 0));
        sum += term < cap ? term : cap; /* NaN: cap */
    }
    return sum;
}

static void toggle(const choices *c, const float *got, krn_span *y, int32_t n)
{
    double cap = 0;
    for (int32_t i = 0; i < n; i++) cap = fmax(cap, krn_span_largest(y[i]));
    double now = miss(got, y, NULL, n, cap);
    for (;;) {
        const choice *best = NULL;
        for (size_t j = 0; j < c->n; j++) {
            double then = miss(got, y, c->at[j].moves, n, cap);
            if (then < now * (1 - 1e-9)) now = then, best = &c->at[j]; /* less by more than the rounding of these sums */
        }
        if (!best) return;
        for (int32_t i = 0; i < n; i++) {
            y[i].lo += best->moves[i];
            y[i].hi += best->moves[i];
            best->moves[i] *= -1; /* the next toggle gives it back */
        }
    }
}

err_code rpl_choice_explain(const krn_span *x, const bf16 *mid, const krn_weight *w, const float *got, krn_span *y, err *e)
{
    choices c = { 0 };
    float *row = NULL;
    double *all = NULL;
    err_code rc = ERR_OK;
    bool fine = find_choices(&c, x, mid, w->k);
    if (fine && c.n > 0) {
        row = mem_alloc((size_t)w->k, sizeof *row);
        all = mem_alloc(c.n, (size_t)w->n * sizeof *all);
        fine = row && all;
        if (fine) {
            find_moves(&c, w, row, all);
            toggle(&c, got, y, w->n);
        }
    }
    if (!fine) rc = err_set(e, ERR_NOMEM, "judge: no memory for %zu choices", c.n);
    free(c.at);
    free(row);
    free(all);
    return rc;
}
